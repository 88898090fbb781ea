//! Placement: which slot of a cluster, which node and which worker a name or an inode belongs to.
//!
//! | file | what it has |
//! | --- | --- |
//! | `placement/exceptions.rs` | [`Exceptions`]: names that a hash alone would place badly |
//! | `placement/slot_map.rs` | [`SlotMap`]: the owner of each slot, and the address of each node |
//! | `placement/map.rs` | [`PlacementMap`]: both under one version, and its bytes |
//!
//! Three steps lead to the owner of an entry (`docs/design/metadata.md`, section 4):
//!
//! 1. its *slot*, one of [`SLOTS`]: the hash of the name alone, so that a client finds it without
//!    knowing the directory; unless the [`exceptions`] name another slot, or say that for this name
//!    the directory counts as well;
//! 2. the *node* that the [`slot_map`] gives the slot to;
//! 3. within the node the worker, by a hash of directory and name that is independent of the slot.
//!
//! The hashes decide where rows are kept on disk, so they are written down here and pinned by test
//! vectors; no library may change them. They have to spread, not to resist attack: a user with many
//! names that meet in one slot makes one node fuller, which the balancing evens out.

pub mod exceptions;
mod map;
pub mod slot_map;

pub use crate::ids::NodeId;
pub use exceptions::{Exceptions, Rule};
pub use map::{Owner, PLACEMENT_BYTES_MAX, PlacementError, PlacementMap};
pub use slot_map::{Member, SlotMap};

use crate::ids::{FIRST_OBJECT, InodeId, ObjectId};

/// Most workers of a node: a worker is a bit of a word, and shares are numbered
/// `node << 6 | worker`.
pub const WORKERS_MAX: usize = 64;

/// Number of the share that counts what rows of table `history` of a member of a cluster refer to:
/// that of its worker 63, which no member has. It never gets another owner: a member that gets a
/// row of table `history` adds its references to its own share, and one that loses the row takes
/// them away from its own.
pub fn history_share_of(node: NodeId) -> u16 {
    // Numbers of nodes are below 1,024.
    (node as u16).wrapping_mul(WORKERS_MAX as u16).wrapping_add(WORKERS_MAX as u16 - 1)
}

/// Whether a share's number, as its key has it, is that of a share of history of a member of a
/// cluster.
#[inline]
pub fn is_history_share(suffix: &[u8]) -> bool {
    let share = suffix.try_into().map(u16::from_be_bytes);
    share.is_ok_and(|share| share % WORKERS_MAX as u16 == WORKERS_MAX as u16 - 1)
}

/// Slots of a cluster. Nodes own slots, so a node can be added without hashing anything anew. On
/// disk: never changes.
pub const SLOTS: usize = 1 << 14;

/// Number of a slot, below [`SLOTS`].
pub type Slot = u16;

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// One round: mixes a word into the state (a 128-bit product folded to 64 bits).
#[inline]
const fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word) as u128 * MULTIPLIER as u128;
    (product as u64) ^ (product >> 64) as u64
}

/// Mixes a name into the state. Words are little-endian, the last one padded with zeros; the length
/// goes in last, so padding cannot collide with content.
#[inline]
fn mix_name(mut state: u64, name: &[u8]) -> u64 {
    let (words, tail) = name.as_chunks::<8>();
    for word in words {
        state = mix(state, u64::from_le_bytes(*word));
    }
    if !tail.is_empty() {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        state = mix(state, u64::from_le_bytes(last));
    }
    mix(state, name.len() as u64)
}

/// Hash of an entry's key: its worker within a node.
#[inline]
pub fn hash_entry(parent: InodeId, name: &[u8]) -> u64 {
    mix_name(mix(0x6b65_7374_7265_6c31, parent), name)
}

/// Hash of an inode number: its worker within a node.
#[inline]
pub fn hash_inode(ino: InodeId) -> u64 {
    mix(0x6b65_7374_7265_6c32, ino)
}

/// Hash of a name, whatever its directory: its slot, unless it is an exception. (Here and below
/// seeds are digits of π: they must not be near each other, since what is hashed first is only
/// XORed to them.)
#[inline]
pub fn hash_name(name: &[u8]) -> u64 {
    mix_name(0x243f_6a88_85a3_08d3, name)
}

/// Hash of directory and name: the slot of a name that is spread over all slots. Not
/// [`hash_entry`], or all such entries of a slot would have the same worker.
#[inline]
pub fn hash_spread(parent: InodeId, name: &[u8]) -> u64 {
    mix_name(mix(0x1319_8a2e_0370_7344, parent), name)
}

/// The slot of a hash: its 14 high bits.
#[inline]
pub fn slot_of_hash(hash: u64) -> Slot {
    // Below SLOTS, which fits.
    (hash >> (64 - SLOTS.trailing_zeros())) as Slot
}

/// The home slot of what is found by an id, which the id carries: a directory's place, the inode of
/// a file with several names, chunks, extended attributes.
#[inline]
pub fn slot_of_id(id: u64) -> Slot {
    // Below SLOTS, which fits.
    (id % SLOTS as u64) as Slot
}

/// Bits of an inode number that say which node made it up.
const MEMBER_BITS: u32 = 10;

/// Inode numbers that one node of a cluster can make up: what is left of 63 bits.
pub const COUNTERS_MAX: u64 = 1 << (63 - MEMBER_BITS - SLOTS.trailing_zeros());

/// The inode number that the node `member` makes of its own `counter` for something with the home
/// `slot`: no two nodes make up the same, and what a name stands for starts out on the node that
/// owns the name.
///
/// # Panics
/// If the node's number or the counter is out of bounds (1,024 nodes, [`COUNTERS_MAX`] counters).
#[inline]
pub fn id_in(counter: u64, member: NodeId, slot: Slot) -> InodeId {
    assert!(member < 1 << MEMBER_BITS && counter < COUNTERS_MAX, "an inode number out of bounds");
    let slot_bits = SLOTS.trailing_zeros();
    counter << (MEMBER_BITS + slot_bits) | u64::from(member) << slot_bits | u64::from(slot)
}

/// The counter that an inode number was made of, and the node that made it up ([`id_in`]).
#[inline]
pub fn maker_of_id(id: InodeId) -> (u64, NodeId) {
    let rest = id >> SLOTS.trailing_zeros();
    // Below 1024, which fits.
    (rest >> MEMBER_BITS, (rest % (1 << MEMBER_BITS)) as NodeId)
}

/// A counter of which no node makes an inode number that is not above this one.
#[inline]
pub fn counter_above(id: InodeId) -> u64 {
    maker_of_id(id).0 + 1
}

/// Object numbers that are consecutive: a node's numbers are in blocks of so many, and the blocks
/// of all nodes alternate.
pub const OBJECT_BLOCK: u64 = 1 << OBJECT_BLOCK_BITS;

const OBJECT_BLOCK_BITS: u32 = 20;

/// Bound of the counter in an object's number.
pub const OBJECT_COUNTERS_MAX: u64 = 1 << (63 - MEMBER_BITS);

/// The object number that the node `member` makes of its own `counter`. Those of one node increase
/// with the counter, no two nodes make up the same, and counters of one block give consecutive
/// numbers.
///
/// # Panics
/// If the node's number or the counter is out of bounds (1,024 nodes, [`OBJECT_COUNTERS_MAX`]
/// counters).
#[inline]
pub fn object_in(counter: u64, member: NodeId) -> ObjectId {
    assert!(
        member < 1 << MEMBER_BITS && counter < OBJECT_COUNTERS_MAX,
        "an object number out of bounds"
    );
    let block = (counter / OBJECT_BLOCK) << MEMBER_BITS | u64::from(member);
    block * OBJECT_BLOCK + counter % OBJECT_BLOCK
}

/// Bound of the counter in the number of an object of a job that several nodes serve: the job's
/// numbers are [`crate::ids::objects_of_job`], fewer than those of a volume.
pub const JOB_OBJECT_COUNTERS_MAX: u64 = (1 << (40 - MEMBER_BITS)) - OBJECT_BLOCK;

/// The object number that the node `member` of a job makes of its own `counter`; `from`: the first
/// number that the job has.
///
/// # Panics
/// If the node's number or the counter is out of bounds (1,024 nodes, [`JOB_OBJECT_COUNTERS_MAX`]
/// counters).
#[inline]
pub fn job_object_in(from: ObjectId, counter: u64, member: NodeId) -> ObjectId {
    assert!(counter < JOB_OBJECT_COUNTERS_MAX, "an object number out of bounds");
    from - FIRST_OBJECT + object_in(counter, member)
}

/// A number of an object of a job that is above all that nodes make of lower counters.
#[inline]
pub fn job_object_above(from: ObjectId, counter: u64) -> ObjectId {
    job_object_in(from, counter.next_multiple_of(OBJECT_BLOCK), 0)
}

/// The counter that an object number was made of, and the node that made it up ([`object_in`]).
#[inline]
pub fn maker_of_object(object: ObjectId) -> (u64, NodeId) {
    let block = object / OBJECT_BLOCK;
    // Below 1024, which fits.
    let member = (block % (1 << MEMBER_BITS)) as NodeId;
    ((block >> MEMBER_BITS) * OBJECT_BLOCK + object % OBJECT_BLOCK, member)
}

/// Maps a hash to one of `count` places, by its high bits (Lemire's multiply-shift).
#[inline]
pub fn place_of(hash: u64, count: usize) -> usize {
    ((hash as u128 * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_never_change() {
        for (parent, name, hash) in VECTORS {
            assert_eq!(
                hash_entry(*parent, name),
                *hash,
                "{parent} {name:?} {:#018x}",
                hash_entry(*parent, name)
            );
        }
        for (ino, hash) in INODES {
            assert_eq!(hash_inode(*ino), *hash, "{ino} {:#018x}", hash_inode(*ino));
        }
        for (name, hash, slot) in NAMES {
            let found = hash_name(name);
            assert_eq!((found, slot_of_hash(found)), (*hash, *slot), "{name:?} {found:#018x}");
        }
        for (parent, name, hash, slot) in SPREAD {
            let found = hash_spread(*parent, name);
            assert_eq!(
                (found, slot_of_hash(found)),
                (*hash, *slot),
                "{parent} {name:?} {found:#018x}"
            );
        }
        assert_eq!(place_of(0, 3), 0);
        assert_eq!(place_of(u64::MAX, 3), 2);
        assert_eq!(place_of(1 << 63, 2), 1);
    }

    const VECTORS: &[(u64, &[u8], u64)] = &[
        (1, b"a", 0x3708_ab14_ef94_85f2),
        (1, b"b", 0xb105_9c34_00c9_bb38),
        (2, b"a", 0x3079_3c1c_471f_8886),
        (1, b"a\0", 0xd5d0_35d3_605e_09e5),
        (1, b"Makefile", 0xd600_05de_4dd1_ace0),
        (u64::MAX, b"000001.jpg", 0x5831_639a_366b_38b8),
        (42, &[0xff; 255], 0x138a_4303_e506_a301),
    ];

    const NAMES: &[(&[u8], u64, Slot)] = &[
        (b"", 0xe184_8576_4ba0_3644, 14433),
        (b"a", 0x82bc_3219_09f8_1c61, 8367),
        (b"a\0", 0xf95a_8135_8fd8_91a4, 15958),
        (b"Makefile", 0xd0e8_f7a7_a803_4df2, 13370),
        (b"000001.jpg", 0x34b3_e80e_b91c_6310, 3372),
        (&[0xff; 255], 0x72ab_dc67_c713_f118, 7338),
    ];

    const SPREAD: &[(u64, &[u8], u64, Slot)] = &[
        (1, b"a", 0xb6ae_e1c5_442f_8f50, 11691),
        (2, b"a", 0x15cb_964d_4776_ff19, 1394),
        (1, b"Makefile", 0x572d_c100_740a_f924, 5579),
        (u64::MAX, b"000001.jpg", 0xa885_f793_ad2a_ff79, 10785),
    ];

    const INODES: &[(u64, u64)] = &[
        (1, 0x2e53_6ece_6790_ad5d),
        (16, 0xa802_9b60_d36e_6fad),
        (u64::MAX, 0xc824_e4b4_e4e5_2973),
    ];

    #[test]
    fn ids_carry_their_slot_and_differ_between_nodes() {
        assert_eq!(id_in(16, 0, 0), 16 << 24);
        assert_eq!(id_in(16, 3, 8367), (16 << 24) + (3 << 14) + 8367);
        assert_eq!(slot_of_id(id_in(COUNTERS_MAX - 1, 1023, 16383)), 16383);
        assert!(id_in(COUNTERS_MAX - 1, 1023, 16383) < 1 << 63);
        assert_eq!(slot_of_id(crate::ids::ROOT), 1);
        assert_eq!(maker_of_id(id_in(COUNTERS_MAX - 1, 1023, 77)), (COUNTERS_MAX - 1, 1023));
        assert_eq!(maker_of_id(crate::ids::ROOT), (0, 0));
        for counter in [0, 5, OBJECT_BLOCK, 3 * OBJECT_BLOCK + 7, OBJECT_COUNTERS_MAX - 1] {
            assert_eq!(maker_of_object(object_in(counter, 1023)), (counter, 1023));
        }
    }

    /// Object numbers belong to one node each, and are consecutive within a block.
    #[test]
    fn object_numbers_by_node_and_block() {
        assert_eq!(
            (object_in(1, 1), object_in(OBJECT_BLOCK - 1, 1)),
            ((1 << 20) + 1, (2 << 20) - 1)
        );
        assert_eq!(object_in(OBJECT_BLOCK, 1), (1 << 30) + (1 << 20));
        assert_eq!(object_in(3 * OBJECT_BLOCK + 7, 1023), 3 << 30 | 1023 << 20 | 7);
        assert!(object_in(OBJECT_COUNTERS_MAX - 1, 1023) < 1 << 63);
    }

    #[test]
    fn spreads_numbered_names_and_inodes_evenly() {
        for workers in [2usize, 3, 4, 8, 16] {
            let mut by_name = vec![0u32; workers];
            let mut by_ino = vec![0u32; workers];
            for i in 0..16_000u64 {
                by_name
                    [place_of(hash_entry(i / 1000, format!("{i:06}.jpg").as_bytes()), workers)] +=
                    1;
                by_ino[place_of(hash_inode(i), workers)] += 1;
            }
            let fair = 16_000 / workers as u32;
            for count in by_name.iter().chain(&by_ino) {
                assert!(count.abs_diff(fair) < fair / 5, "{workers} {by_name:?} {by_ino:?}");
            }
        }
    }

    /// Sum of (observed - expected)² / expected: about `counts.len()` for what is random.
    fn chi_square(counts: &[u32]) -> f64 {
        let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
    }

    /// Slots are filled as by chance, and independently of workers.
    #[test]
    fn distribution_over_slots_and_workers() {
        // 10 a slot; the standard deviation of chi-square over SLOTS cells is sqrt(2 SLOTS) = 181:
        // six of them are allowed.
        let bound = SLOTS as f64 + 6.0 * (2.0 * SLOTS as f64).sqrt();
        let formats: [fn(u64) -> String; 3] =
            [|i| format!("{i}"), |i| format!("{i:08}.jpg"), |i| format!("sample-{i:x}")];
        for format in formats {
            let (mut by_name, mut by_parent) = (vec![0; SLOTS], vec![0; SLOTS]);
            let mut by_slot_and_worker = vec![0; SLOTS];
            for i in 0..10 * SLOTS as u64 {
                let name = format(i);
                let slot = slot_of_hash(hash_name(name.as_bytes()));
                by_name[usize::from(slot)] += 1;
                by_parent[usize::from(slot_of_hash(hash_spread(i, b"Makefile")))] += 1;
                let worker = place_of(hash_entry(7, name.as_bytes()), 128);
                by_slot_and_worker[usize::from(slot) / 128 * 128 + worker] += 1;
            }
            for counts in [by_name, by_parent, by_slot_and_worker] {
                let found = chi_square(&counts);
                assert!(found < bound, "{found} for {}", format(1));
            }
        }
    }
}
