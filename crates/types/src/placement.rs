//! The placement hash: which worker (later: which slot of a cluster) an entry or an inode belongs to.
//!
//! It decides where shares of directories and objects are kept on disk, so it is written down here and pinned by test
//! vectors; no library may change it. It has to spread, not to resist attack.

use crate::ids::InodeId;

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// One round: mixes a word into the state (a 128-bit product folded to 64 bits).
#[inline]
const fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word) as u128 * MULTIPLIER as u128;
    (product as u64) ^ (product >> 64) as u64
}

/// Hash of an entry's key. Words of the name are little-endian, the last one padded with zeros; the length goes in last, so
/// padding cannot collide with content.
#[inline]
pub fn hash_entry(parent: InodeId, name: &[u8]) -> u64 {
    let mut state = mix(0x6b65_7374_7265_6c31, parent);
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

/// Hash of an inode number.
#[inline]
pub fn hash_inode(ino: InodeId) -> u64 {
    mix(0x6b65_7374_7265_6c32, ino)
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

    const INODES: &[(u64, u64)] =
        &[(1, 0x2e53_6ece_6790_ad5d), (16, 0xa802_9b60_d36e_6fad), (u64::MAX, 0xc824_e4b4_e4e5_2973)];

    #[test]
    fn spreads_numbered_names_and_inodes_evenly() {
        for workers in [2usize, 3, 4, 8, 16] {
            let mut by_name = vec![0u32; workers];
            let mut by_ino = vec![0u32; workers];
            for i in 0..16_000u64 {
                by_name[place_of(hash_entry(i / 1000, format!("{i:06}.jpg").as_bytes()), workers)] += 1;
                by_ino[place_of(hash_inode(i), workers)] += 1;
            }
            let fair = 16_000 / workers as u32;
            for count in by_name.iter().chain(&by_ino) {
                assert!(count.abs_diff(fair) < fair / 5, "{workers} {by_name:?} {by_ino:?}");
            }
        }
    }
}
