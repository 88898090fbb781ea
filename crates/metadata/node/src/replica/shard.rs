//! A part of the replica's dentries, by number: 56 bytes each in one piece of memory, found through
//! a table of their indices there. Names that do not fit are kept apart.

use std::sync::Arc;

use hashbrown::HashTable;
use kestrel_types::acl::Acls;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::placement::hash_inode;
use kestrel_types::policy::PolicyRecord;
use rustc_hash::FxHashMap;

use crate::perm::{Dentry, Guard};

/// Longest name that lies in the dentry itself.
const NAME_INLINE: usize = 21;

/// What one dentry is reckoned to cost: its slot, a part of it that may not be in use yet, and its
/// places in the tables of numbers and of names, which are between half and wholly full; as
/// measured (`crates/metadata/node/examples/replica_bench`).
pub const DENTRY_BYTES: usize = 90;

/// What a longer name is reckoned to cost besides its bytes: its place in the list, an eighth of
/// that, and what the allocator adds.
const LONG_NAME_BYTES: usize = 48;

/// What ACLs are reckoned to cost besides themselves: their place in a table that may be half
/// empty.
const ACLS_BYTES: usize = 40;

/// An index into a shard.
pub(super) type Slot = u32;

struct Cached {
    /// 0: nothing is here.
    ino: InodeId,
    parent: InodeId,
    /// Log position of the change that made it what it is, as far as it may not be durable.
    changed_at: Position,
    uid: u32,
    gid: u32,
    mode: u16,
    /// Of a longer name it is above [`NAME_INLINE`].
    name_len: u8,
    /// The name, or the number that a longer one has in [`LongNames`].
    name: [u8; NAME_INLINE],
}

impl Cached {
    /// Number of a name that does not lie here.
    fn long_name(&self) -> Option<u32> {
        let number = self.name.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        number.filter(|_| usize::from(self.name_len) > NAME_INLINE)
    }
}

/// Names that do not fit their dentries, by number.
#[derive(Default)]
struct LongNames {
    names: Vec<Box<[u8]>>,
    free: Vec<u32>,
}

impl LongNames {
    fn get(&self, number: u32) -> &[u8] {
        self.names.get(number as usize).map_or(&[], |name| name)
    }

    fn keep(&mut self, name: &[u8]) -> u32 {
        if let Some(number) = self.free.pop() {
            self.names[number as usize] = name.into();
            return number;
        }
        if self.names.len() == self.names.capacity() {
            self.names.reserve_exact((self.names.len() / 8).max(8));
        }
        self.names.push(name.into());
        // No more than there are slots.
        (self.names.len() - 1) as u32
    }

    fn forget(&mut self, number: u32) {
        self.names[number as usize] = Box::default();
        self.free.push(number);
    }
}

/// See the module's header.
#[derive(Default)]
pub(super) struct Shard {
    slots: Vec<Cached>,
    /// Slots with nothing in them.
    free: Vec<Slot>,
    by_ino: HashTable<Slot>,
    long_names: LongNames,
    /// What some of the directories say of policies: few do.
    policies: FxHashMap<InodeId, PolicyRecord>,
    /// The ACLs that some of the directories have: few do.
    acls: FxHashMap<InodeId, Arc<Acls>>,
    /// Where eviction goes on.
    hand: usize,
    bytes: usize,
}

/// Shards are chosen by the highest bits, of which a table makes its own use.
fn table_hash(ino: InodeId) -> u64 {
    hash_inode(ino).rotate_right(16)
}

fn cost(name: &[u8]) -> usize {
    if name.len() > NAME_INLINE {
        DENTRY_BYTES + LONG_NAME_BYTES + name.len()
    } else {
        DENTRY_BYTES
    }
}

impl Shard {
    fn slot_of(&self, ino: InodeId) -> Option<Slot> {
        self.by_ino.find(table_hash(ino), |slot| self.slots[*slot as usize].ino == ino).copied()
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.by_ino.len()
    }

    /// A directory by number.
    #[inline]
    pub fn get(&self, ino: InodeId) -> Option<(Dentry, Position)> {
        self.slot_of(ino).map(|slot| self.dentry(slot))
    }

    /// Parent and name of a directory.
    pub fn place(&self, ino: InodeId) -> Option<(InodeId, &[u8])> {
        self.slot_of(ino).map(|slot| self.place_at(slot))
    }

    /// The directory in a slot, if it is the one at this place.
    #[inline]
    pub fn at(&self, slot: Slot, parent: InodeId, name: &[u8]) -> Option<(Dentry, Position)> {
        let cached = self.slots.get(slot as usize)?;
        let is_it = cached.ino != 0 && self.place_at(slot) == (parent, name);
        is_it.then(|| self.dentry(slot))
    }

    /// The number of the directory in a slot, if it is the one at this place.
    #[inline]
    pub fn number_at(&self, slot: Slot, parent: InodeId, name: &[u8]) -> Option<InodeId> {
        let cached = self.slots.get(slot as usize)?;
        (cached.ino != 0 && self.place_at(slot) == (parent, name)).then_some(cached.ino)
    }

    fn dentry(&self, slot: Slot) -> (Dentry, Position) {
        let cached = &self.slots[slot as usize];
        let acls = match self.acls.is_empty() {
            true => None,
            false => self.acls.get(&cached.ino).cloned(),
        };
        let guard = Guard { mode: cached.mode, uid: cached.uid, gid: cached.gid, dir: true, acls };
        let policy = match self.policies.is_empty() {
            true => PolicyRecord::default(),
            false => self.policies.get(&cached.ino).copied().unwrap_or_default(),
        };
        (Dentry { ino: cached.ino, parent: cached.parent, guard, policy }, cached.changed_at)
    }

    fn place_at(&self, slot: Slot) -> (InodeId, &[u8]) {
        let cached = &self.slots[slot as usize];
        let name = match cached.long_name() {
            None => &cached.name[..usize::from(cached.name_len)],
            Some(number) => self.long_names.get(number),
        };
        (cached.parent, name)
    }

    /// Takes a directory in; `left` hears of a slot that has had another place, and of that place.
    /// At most `bytes_max` are kept.
    pub fn insert(
        &mut self,
        dir: Dentry,
        name: &[u8],
        changed_at: Position,
        bytes_max: usize,
        left: &mut dyn FnMut(Slot, InodeId, &[u8]),
    ) -> Slot {
        debug_assert_ne!(dir.ino, 0);
        let slot = match self.slot_of(dir.ino) {
            Some(slot) => {
                let (parent, old) = self.place_at(slot);
                if (parent, old) != (dir.parent, name) {
                    left(slot, parent, old);
                }
                self.bytes -= cost(old);
                slot
            }
            None => {
                if self.bytes + cost(name) > bytes_max {
                    self.evict(bytes_max / 4 * 3, left);
                }
                let slot = self.vacant();
                let Self { slots, by_ino, .. } = self;
                // Rehashing looks at those that are there already.
                let hash_of = |slot: &Slot| table_hash(slots[*slot as usize].ino);
                by_ino.insert_unique(table_hash(dir.ino), slot, hash_of);
                slot
            }
        };
        let Guard { mode, uid, gid, acls, .. } = dir.guard;
        self.forget_name(slot);
        let mut inline = [0; NAME_INLINE];
        if let Some(bytes) = inline.get_mut(..name.len()) {
            bytes.copy_from_slice(name);
        } else {
            inline[..4].copy_from_slice(&self.long_names.keep(name).to_le_bytes());
        }
        // Names have up to 255 bytes.
        let name_len = u8::try_from(name.len()).unwrap_or(u8::MAX);
        self.slots[slot as usize] = Cached {
            ino: dir.ino,
            parent: dir.parent,
            changed_at,
            uid,
            gid,
            mode,
            name_len,
            name: inline,
        };
        self.bytes += cost(name);
        if dir.policy != PolicyRecord::default() {
            self.policies.insert(dir.ino, dir.policy);
        } else if !self.policies.is_empty() {
            self.policies.remove(&dir.ino);
        }
        self.set_acls(dir.ino, acls);
        slot
    }

    /// From now on a directory has these ACLs.
    fn set_acls(&mut self, ino: InodeId, acls: Option<Arc<Acls>>) {
        let cost = |acls: Arc<Acls>| ACLS_BYTES + acls.memory_bytes();
        if !self.acls.is_empty() {
            self.bytes -= self.acls.remove(&ino).map_or(0, cost);
        }
        if let Some(acls) = acls {
            self.bytes += cost(acls.clone());
            self.acls.insert(ino, acls);
        }
    }

    /// A slot's name is not needed any more.
    fn forget_name(&mut self, slot: Slot) {
        let cached = &mut self.slots[slot as usize];
        if let Some(number) = cached.long_name() {
            self.long_names.forget(number);
        }
        cached.name_len = 0;
    }

    /// A slot with nothing in it.
    fn vacant(&mut self) -> Slot {
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact((self.slots.len() / 8).max(8));
        }
        self.slots.push(Cached {
            ino: 0,
            parent: 0,
            changed_at: 0,
            uid: 0,
            gid: 0,
            mode: 0,
            name_len: 0,
            name: [0; NAME_INLINE],
        });
        (self.slots.len() - 1) as Slot
    }

    /// Forgets directories, in the order of their slots, until no more than `bytes_keep` are left:
    /// no bookkeeping on the hot path.
    fn evict(&mut self, bytes_keep: usize, left: &mut dyn FnMut(Slot, InodeId, &[u8])) {
        for _ in 0..self.slots.len() {
            if self.bytes <= bytes_keep {
                return;
            }
            self.hand = (self.hand + 1) % self.slots.len();
            let ino = self.slots[self.hand].ino;
            if ino != 0 {
                self.remove(ino, left);
            }
        }
    }

    /// Forgets a directory, if it is there.
    pub fn remove(&mut self, ino: InodeId, left: &mut dyn FnMut(Slot, InodeId, &[u8])) {
        let Some(slot) = self.slot_of(ino) else { return };
        let (parent, name) = self.place_at(slot);
        left(slot, parent, name);
        self.bytes -= cost(name);
        if let Ok(entry) = self.by_ino.find_entry(table_hash(ino), |other| *other == slot) {
            entry.remove();
        }
        self.forget_name(slot);
        if !self.policies.is_empty() {
            self.policies.remove(&ino);
        }
        self.set_acls(ino, None);
        self.slots[slot as usize].ino = 0;
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dentry_is_as_large_as_it_says() {
        assert_eq!(size_of::<Cached>(), 56);
    }

    #[test]
    fn names_of_any_length_come_and_go() {
        let mut shard = Shard::default();
        let name = |len: usize| vec![b'n'; len];
        let dir = |ino| Dentry {
            ino,
            parent: 1,
            guard: Guard { mode: 0o755, uid: 0, gid: 0, dir: true, acls: None },
            policy: PolicyRecord::default(),
        };
        for round in 0..3 {
            for len in 1..=255 {
                // Each has another name in each round, some of them one that is as long as the
                // other was not.
                let len = (len + round * 100) % 255 + 1;
                let slot = shard.insert(
                    dir(len as u64 % 200 + 1),
                    &name(len),
                    0,
                    usize::MAX,
                    &mut |_, _, _| (),
                );
                assert_eq!(shard.place_at(slot), (1, &*name(len)));
            }
        }
        let kept: Vec<_> =
            shard.slots.iter().map(|cached| cached.ino).filter(|ino| *ino != 0).collect();
        assert_eq!((kept.len(), shard.len()), (200, 200));
        kept.into_iter().for_each(|ino| shard.remove(ino, &mut |_, _, _| ()));
        assert_eq!((shard.bytes, shard.long_names.free.len()), (0, shard.long_names.names.len()));
        assert!(
            shard.long_names.names.len() <= 200
                && shard.long_names.names.iter().all(|name| name.is_empty())
        );
    }
}
