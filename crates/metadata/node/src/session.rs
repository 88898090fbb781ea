//! What clients hold: open files, and where renamed files went. In memory; a crash closes
//! everything, but clients across a network live on and claim what they had open ([`Reclaiming`]).
//! Beside it what the node itself has begun: objects and rows on their way out.
//!
//! | file | what it has |
//! | --- | --- |
//! | `session/pending_deletes.rs` | objects that are to be deleted |

mod pending_deletes;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kestrel_types::ids::InodeId;
use kestrel_types::placement::{hash_inode, place_of};
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};

pub use pending_deletes::PendingDeletes;

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

/// Opens that a client had before the node restarted, or before its session expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// How many, above zero.
    pub count: u32,
    /// The file was made without a name and may be given one.
    pub linkable: bool,
}

/// Open files by inode.
///
/// Counts go up under the state of the worker that owns the name (or the inode, for one without),
/// and down under that of the inode's; names go away from open files only with every worker's state
/// held. So "is it open?" has a stable answer for a thread that holds every worker's state, and for
/// the owner of a name as far as nought is concerned.
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

    /// The last release of a file does not delete it any more, should it have been so.
    pub fn keep(&self, ino: InodeId) {
        if let Some(state) = self.shard(ino).lock().get_mut(&ino) {
            state.orphan = false;
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

/// Where a file went: directory and name.
pub type NewPath = (InodeId, Box<[u8]>);

/// What a rename or the like made of a file's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// It is here now; with `row`, table `moved` says so too.
    To {
        /// Where.
        place: NewPath,
        /// Whether there is a row.
        row: bool,
    },
    /// It has no place that leads to its record any more: it was removed, or its record lies in
    /// table `link`.
    Away,
}

/// Where renamed files went, so that a client that saw one at its old place still finds it. Files
/// that are open stay here until they are closed; of the others the latest [`MOVED_MAX`].
///
/// Of files open across a network table `moved` keeps the place too, so that it outlives a restart
/// of the node. A row changes under the state of the inode's worker or with every worker's state
/// held.
#[derive(Default)]
pub struct MovedTable(RwLock<MovedState>);

#[derive(Default)]
struct MovedState {
    places: FxHashMap<InodeId, NewPath>,
    order: VecDeque<InodeId>,
    /// Of these table `moved` has a row.
    rows: FxHashSet<InodeId>,
}

impl MovedTable {
    /// Where a renamed file went.
    pub fn get(&self, ino: InodeId) -> Option<NewPath> {
        self.0.read().places.get(&ino).cloned()
    }

    /// Whether table `moved` has a row of the file.
    pub fn has_row(&self, ino: InodeId) -> bool {
        let state = self.0.read();
        !state.rows.is_empty() && state.rows.contains(&ino)
    }

    /// Files that table `moved` has rows of though nobody has them open, in order.
    pub fn closed_rows(&self, opens: &OpenTable) -> Vec<InodeId> {
        let mut closed: Vec<_> = self.0.read().rows.iter().copied().collect();
        closed.retain(|ino| opens.get(*ino).count == 0);
        closed.sort_unstable();
        closed
    }

    /// Table `moved` has no row of the file any more.
    pub fn drop_row(&self, ino: InodeId) {
        self.0.write().rows.remove(&ino);
    }

    /// A file moved, or lost its place.
    pub fn set(&self, ino: InodeId, what: Moved, opens: &OpenTable) {
        // Nearly always: a file goes that never moved.
        if what == Moved::Away && !self.0.read().places.contains_key(&ino) {
            return;
        }
        let moved = &mut *self.0.write();
        match what {
            Moved::Away => {
                moved.places.remove(&ino);
                moved.rows.remove(&ino);
            }
            Moved::To { place, row } => {
                if moved.places.insert(ino, place).is_none() {
                    moved.order.push_back(ino);
                }
                if row {
                    moved.rows.insert(ino);
                } else {
                    moved.rows.remove(&ino);
                }
            }
        }
        // Bounded work: a file that is open goes to the end of the line, and each insertion looks
        // at two.
        for _ in 0..2 {
            if moved.order.len() <= MOVED_MAX {
                break;
            }
            let Some(oldest) = moved.order.pop_front() else { break };
            if !moved.places.contains_key(&oldest) {
                continue;
            }
            if opens.get(oldest).count > 0 || moved.rows.contains(&oldest) {
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

/// The time after a start in which clients of before claim what they had open. Until it ends nobody
/// knows what is open:
///
/// - a file without a name stays, and one that loses its last name becomes one, whether somebody
///   has it open or not;
/// - the last release deletes nothing, because another client may yet claim the file;
/// - the place of every file that is renamed is written to table `moved`;
/// - no object is deleted.
///
/// It begins before the node serves any client and ends with every worker's state held, so a thread
/// that holds a worker's state has a stable answer.
#[derive(Default)]
pub struct Reclaiming {
    on: AtomicBool,
    /// Files that had no name and were not open at some moment of this time.
    orphans: Mutex<BTreeSet<InodeId>>,
}

impl Reclaiming {
    /// Begins, with the files without names there are.
    pub fn begin(&self, orphans: impl IntoIterator<Item = InodeId>) {
        self.orphans.lock().extend(orphans);
        self.on.store(true, Ordering::Release);
    }

    /// Whether it lasts.
    #[inline]
    pub fn lasts(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// This file has no name and is not open: to be looked at when the time ends. (If the batch
    /// that says so fails, that look finds nothing to do.)
    pub fn keep(&self, ino: InodeId) {
        self.orphans.lock().insert(ino);
    }

    /// Ends; the files to look at. With every worker's state held.
    pub fn end(&self) -> BTreeSet<InodeId> {
        self.on.store(false, Ordering::Release);
        std::mem::take(&mut *self.orphans.lock())
    }
}

/// Files without names that have this node, one of several, as their home: as table `link` has
/// them. Other nodes may have counted opens of them, so they have to be asked about before they are
/// deleted (`kestrel_cluster`).
///
/// Changes with the rows, before anybody else runs. A file that got a name and lost it again is
/// another case than before: it has another number.
#[derive(Default)]
pub struct Orphans(Mutex<OrphanFiles>);

#[derive(Default)]
struct OrphanFiles {
    cases: u64,
    files: BTreeMap<InodeId, u64>,
    news: BTreeSet<InodeId>,
}

impl Orphans {
    /// A file has no name, as from now or from before.
    pub fn insert(&self, ino: InodeId) {
        let mut state = self.0.lock();
        state.cases += 1;
        let case = state.cases;
        if let Entry::Vacant(file) = state.files.entry(ino) {
            file.insert(case);
            state.news.insert(ino);
        }
    }

    /// A file has a name, or is gone.
    pub fn remove(&self, ino: InodeId) {
        let mut state = self.0.lock();
        state.files.remove(&ino);
        state.news.remove(&ino);
    }

    /// Nobody has a file open here any more; if it has no name, it is time to ask about it.
    pub fn closed(&self, ino: InodeId) {
        let mut state = self.0.lock();
        if state.files.contains_key(&ino) {
            state.news.insert(ino);
        }
    }

    /// The number of the case, if the file has no name.
    pub fn case(&self, ino: InodeId) -> Option<u64> {
        self.0.lock().files.get(&ino).copied()
    }

    /// Files that have come, or were closed, since this was asked last.
    pub fn take_news(&self) -> BTreeSet<InodeId> {
        std::mem::take(&mut self.0.lock().news)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.lock().files.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Files with rows that were cut off and are being deleted, at their home: from which chunk on. As
/// table `sweep` has them.
#[derive(Default)]
pub struct PendingChunkDeletes {
    /// How many, so that looking costs nothing while there is none.
    count: AtomicUsize,
    files: Mutex<BTreeMap<InodeId, u64>>,
}

impl PendingChunkDeletes {
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

    /// The next file with rows to delete after this one, or the first; after 0, which is no file:
    /// the first.
    pub fn after(&self, ino: InodeId) -> Option<InodeId> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let files = self.files.lock();
        let next = files.range((Bound::Excluded(ino), Bound::Unbounded)).next();
        next.or_else(|| files.first_key_value()).map(|(ino, _)| *ino)
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
    fn a_file_that_loses_its_name_twice_is_two_cases() {
        let orphans = Orphans::default();
        orphans.closed(16);
        orphans.insert(16);
        let first = orphans.case(16);
        orphans.insert(16);
        assert_eq!((orphans.case(16), orphans.take_news()), (first, [16].into()));
        orphans.closed(16);
        assert_eq!(orphans.take_news(), [16].into());
        orphans.remove(16);
        orphans.closed(16);
        assert!(orphans.is_empty() && orphans.take_news().is_empty());
        orphans.insert(16);
        assert!(orphans.case(16).is_some() && orphans.case(16) != first);
    }

    /// The table of moved files keeps open files, and others within its bound.
    #[test]
    fn bound_of_moved_files() {
        let (opens, moved) = (OpenTable::new(), MovedTable::default());
        opens.open(1);
        for ino in 1..=(MOVED_MAX as u64 + 1000) {
            let place = (7, ino.to_string().into_bytes().into());
            moved.set(ino, Moved::To { place, row: ino == 2 }, &opens);
        }
        assert_eq!(moved.get(1), Some((7, b"1"[..].into())));
        assert_eq!((moved.get(2), moved.has_row(2)), (Some((7, b"2"[..].into())), true));
        assert_eq!((moved.get(3), moved.has_row(3)), (None, false));
        assert!(moved.len() <= MOVED_MAX + 2);
        assert_eq!(moved.closed_rows(&opens), [2]);
        moved.set(2, Moved::Away, &opens);
        assert!(!moved.has_row(2));
    }
}
