//! What clients hold: open files, and where renamed files went. In memory only; a crash closes everything. Beside it what
//! the node itself has begun: objects and rows on their way out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::placement::{hash_inode, place_of};
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};

const SHARDS: usize = 64;

/// Renamed files remembered though nobody has them open.
pub const MOVED_MAX: usize = 65_536;

/// How a file is open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenState {
    /// Opens not yet released.
    pub count: u32,
    /// It has no name: the last release deletes it.
    pub orphan: bool,
    /// An orphan that may be given a name (`O_TMPFILE` without `O_EXCL`).
    pub linkable: bool,
}

/// Open files by inode.
///
/// Counts go up under the role of the worker that owns the name (or the inode, for one without), and down under that of the
/// inode's; names go away from open files only with every role held. So "is it open?" has a stable answer for whoever holds
/// every role, and for the owner of a name as far as nought is concerned.
#[derive(Default)]
pub struct OpenTable {
    shards: Vec<Mutex<FxHashMap<InodeId, OpenState>>>,
}

impl OpenTable {
    /// Nothing open.
    pub fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: InodeId) -> &Mutex<FxHashMap<InodeId, OpenState>> {
        &self.shards[place_of(hash_inode(ino), SHARDS)]
    }

    /// How `ino` is open.
    #[inline]
    pub fn get(&self, ino: InodeId) -> OpenState {
        self.shard(ino).lock().get(&ino).copied().unwrap_or_default()
    }

    /// One open more.
    #[inline]
    pub fn open(&self, ino: InodeId) {
        self.shard(ino).lock().entry(ino).or_default().count += 1;
    }

    /// One open less; what is left. `None` if it was not open.
    pub fn release(&self, ino: InodeId) -> Option<OpenState> {
        let mut shard = self.shard(ino).lock();
        let state = shard.get_mut(&ino)?;
        state.count -= 1;
        let left = *state;
        if left.count == 0 {
            shard.remove(&ino);
        }
        Some(left)
    }

    /// Replaces the state, for undoing and for marking orphans.
    pub fn set(&self, ino: InodeId, state: OpenState) {
        let mut shard = self.shard(ino).lock();
        if state.count == 0 {
            shard.remove(&ino);
        } else {
            shard.insert(ino, state);
        }
    }

    /// Files open.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether nothing is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where renamed files went, so that a client that saw one at its old place still finds it. Files that are open stay here
/// until they are closed; of the others the latest [`MOVED_MAX`].
#[derive(Default)]
pub struct MovedTable(RwLock<Moved>);

#[derive(Default)]
struct Moved {
    places: FxHashMap<InodeId, (InodeId, Box<[u8]>)>,
    order: VecDeque<InodeId>,
}

impl MovedTable {
    /// Where a renamed file went.
    pub fn get(&self, ino: InodeId) -> Option<(InodeId, Box<[u8]>)> {
        self.0.read().places.get(&ino).cloned()
    }

    /// A file moved (or lost its place: `None`).
    pub fn set(&self, ino: InodeId, place: Option<(InodeId, Box<[u8]>)>, opens: &OpenTable) {
        // Nearly always: a file goes that never moved.
        if place.is_none() && !self.0.read().places.contains_key(&ino) {
            return;
        }
        let moved = &mut *self.0.write();
        match place {
            None => {
                moved.places.remove(&ino);
            }
            Some(place) => {
                if moved.places.insert(ino, place).is_none() {
                    moved.order.push_back(ino);
                }
            }
        }
        // Bounded work: a file that is open goes to the end of the line, and each insertion looks at two.
        for _ in 0..2 {
            if moved.order.len() <= MOVED_MAX {
                break;
            }
            let Some(oldest) = moved.order.pop_front() else { break };
            if !moved.places.contains_key(&oldest) {
                continue;
            }
            if opens.get(oldest).count > 0 {
                moved.order.push_back(oldest);
            } else {
                moved.places.remove(&oldest);
            }
        }
    }

    /// Files remembered.
    pub fn len(&self) -> usize {
        self.0.read().places.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Files with rows that were cut off and are being deleted: from which chunk on. As table `sweep` has them.
#[derive(Default)]
pub struct Sweeps {
    /// How many, so that looking costs nothing while there is none.
    count: AtomicUsize,
    files: Mutex<BTreeMap<InodeId, u64>>,
}

impl Sweeps {
    /// From which chunk on rows of `ino` are being deleted.
    #[inline]
    pub fn get(&self, ino: InodeId) -> Option<u64> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.files.lock().get(&ino).copied()
    }

    /// Rows go from a chunk on (`None`: all are gone).
    pub fn set(&self, ino: InodeId, first: Option<u64>) {
        let mut files = self.files.lock();
        match first {
            Some(first) => files.insert(ino, first),
            None => files.remove(&ino),
        };
        self.count.store(files.len(), Ordering::Release);
    }

    /// A file with rows to delete.
    pub fn any(&self) -> Option<InodeId> {
        self.files.lock().keys().next().copied()
    }
}

/// Objects that are being deleted: nothing may refer to them any more.
#[derive(Default)]
pub struct Condemned(RwLock<FxHashSet<ObjectId>>);

impl Condemned {
    /// Whether nothing is being deleted.
    pub fn contains(&self, object: ObjectId) -> bool {
        let set = self.0.read();
        !set.is_empty() && set.contains(&object)
    }

    /// The object is about to be deleted.
    pub fn insert(&self, object: ObjectId) {
        self.0.write().insert(object);
    }

    /// The object is gone.
    pub fn remove(&self, object: ObjectId) {
        self.0.write().remove(&object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_opens_and_forgets_what_is_closed() {
        let opens = OpenTable::new();
        opens.open(16);
        opens.open(16);
        opens.set(16, OpenState { orphan: true, ..opens.get(16) });
        assert_eq!(opens.release(16), Some(OpenState { count: 1, orphan: true, linkable: false }));
        assert_eq!(opens.release(16).map(|state| state.count), Some(0));
        assert_eq!(opens.release(16), None);
        assert!(opens.is_empty());
    }

    #[test]
    fn open_files_stay_remembered_and_others_within_the_bound() {
        let (opens, moved) = (OpenTable::new(), MovedTable::default());
        opens.open(1);
        for ino in 1..=(MOVED_MAX as u64 + 1000) {
            moved.set(ino, Some((7, ino.to_string().into_bytes().into())), &opens);
        }
        assert_eq!(moved.get(1), Some((7, b"1"[..].into())));
        assert_eq!(moved.get(2), None);
        assert!(moved.len() <= MOVED_MAX + 1);
    }
}
