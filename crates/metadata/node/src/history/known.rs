//! The snapshots that there are.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use kestrel_engine::{Engine, EngineError};
use kestrel_types::clone::{CloneId, CloneInfo};
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::name::Name;
use kestrel_types::snapshot::{RECORD_PREFIX, SnapshotId, SnapshotInfo};
use parking_lot::RwLock;

use super::damaged;

/// A snapshot.
#[derive(Debug)]
pub struct Known {
    /// Its record.
    pub info: SnapshotInfo,
    /// Position of the batch that made it, or 0 if it was read from the engine.
    pub made_at: Position,
}

/// Snapshots in the order of their numbers.
type List = Arc<Vec<Arc<Known>>>;

/// All snapshots of a volume, those being removed included. They change with every worker's state
/// held, but for the end of a removal.
pub struct KnownSnapshots {
    /// The newest one that is not being removed; 0 if there is none.
    newest: AtomicU64,
    /// Position of the last batch that changed a record.
    changed_at: AtomicU64,
    list: RwLock<List>,
    /// How many are being removed.
    removed: AtomicUsize,
    /// Clones that are not finished, the oldest first.
    clones: RwLock<Arc<Vec<CloneInfo>>>,
    /// How many these are.
    clones_len: AtomicUsize,
    /// Whether there are some that no user sees.
    hidden: AtomicBool,
    /// Number of the share that counts what history refers to.
    pub share: u16,
    /// Held, alone, by a commit that writes history, and shared by a reader of rows and their
    /// history.
    pub gate: RwLock<()>,
}

impl KnownSnapshots {
    /// Reads the records; `share` counts what history refers to.
    ///
    /// # Errors
    /// `Corrupt` for a damaged record; the engine's.
    pub fn read(engine: &dyn Engine, share: u16) -> Result<Self, EngineError> {
        let (mut list, mut damage) = (Vec::new(), None);
        let from = KeyRef::new(Table::System, 0, RECORD_PREFIX);
        engine.scan_table(Table::System, Some(from), &mut |key, row| {
            match SnapshotInfo::decode(key.suffix, row) {
                Some(Ok(info)) => list.push(Arc::new(Known { info, made_at: 0 })),
                Some(Err(why)) => {
                    let name = String::from_utf8_lossy(key.suffix);
                    damage = Some(damaged(&format!("record {name:?}"), &why));
                }
                None => return ControlFlow::Break(()),
            }
            match damage {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        })?;
        match damage {
            Some(why) => Err(why),
            None => {
                let known = Self {
                    newest: AtomicU64::new(0),
                    changed_at: AtomicU64::new(0),
                    list: RwLock::default(),
                    removed: AtomicUsize::new(0),
                    clones: RwLock::default(),
                    clones_len: AtomicUsize::new(0),
                    hidden: AtomicBool::new(false),
                    share,
                    gate: RwLock::default(),
                };
                known.set(list);
                Ok(known)
            }
        }
    }

    fn set(&self, list: Vec<Arc<Known>>) {
        let newest = list.iter().rev().find(|known| !known.info.removing);
        let newest = newest.map_or(0, |known| known.info.id);
        let removed = list.iter().filter(|known| known.info.removing).count();
        self.removed.store(removed, Ordering::Relaxed);
        let is_hidden = |known: &Arc<Known>| known.info.hidden && !known.info.removing;
        self.hidden.store(list.iter().any(is_hidden), Ordering::Relaxed);
        let clones = list.iter().flat_map(|known| known.info.clones.iter().copied());
        let mut clones: Vec<CloneInfo> = clones.collect();
        clones.sort_unstable_by_key(|clone| clone.id);
        self.clones_len.store(clones.len(), Ordering::Relaxed);
        *self.clones.write() = Arc::new(clones);
        let mut now = self.list.write();
        *now = Arc::new(list);
        self.newest.store(newest, Ordering::Release);
    }

    /// The newest one that is not being removed.
    #[inline]
    pub fn newest(&self) -> Option<SnapshotId> {
        match self.newest.load(Ordering::Relaxed) {
            0 => None,
            newest => Some(newest),
        }
    }

    /// All of them.
    pub fn list(&self) -> Arc<Vec<Arc<Known>>> {
        self.list.read().clone()
    }

    /// One that is not being removed.
    pub fn get(&self, id: SnapshotId) -> Option<Arc<Known>> {
        let list = self.list.read();
        let index = list.binary_search_by_key(&id, |known| known.info.id).ok()?;
        Some(list[index].clone()).filter(|known| !known.info.removing)
    }

    /// The highest number of all, those being removed included; 0 if there are none.
    pub fn highest(&self) -> SnapshotId {
        self.list.read().last().map_or(0, |known| known.info.id)
    }

    /// Whether some are being removed.
    #[inline]
    pub fn has_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed) > 0
    }

    /// Clones that are not finished, the oldest first.
    pub fn clones(&self) -> Arc<Vec<CloneInfo>> {
        self.clones.read().clone()
    }

    /// Whether there are clones that are not finished.
    #[inline]
    pub fn has_clones(&self) -> bool {
        self.clones_len.load(Ordering::Relaxed) > 0
    }

    /// Whether there are snapshots that no user sees.
    pub fn has_hidden(&self) -> bool {
        self.hidden.load(Ordering::Relaxed)
    }

    /// A clone that is not finished.
    pub fn clone_of(&self, id: CloneId) -> Option<CloneInfo> {
        let clones = self.clones.read();
        clones.binary_search_by_key(&id, |clone| clone.id).ok().map(|index| clones[index])
    }

    /// Whether one is being made by several nodes.
    pub fn is_cutting(&self) -> bool {
        let list = self.list.read();
        list.last().is_some_and(|known| known.info.cutting && !known.info.removing)
    }

    /// Whether there is a record of it, whatever that says.
    pub fn has_record(&self, id: SnapshotId) -> bool {
        self.list.read().binary_search_by_key(&id, |known| known.info.id).is_ok()
    }

    /// One of this directory that users see.
    pub fn find(&self, dir: InodeId, name: &Name) -> Option<Arc<Known>> {
        let list = self.list.read();
        let is_it = |known: &&Arc<Known>| {
            (known.info.dir, &known.info.name) == (dir, name) && known.info.is_shown()
        };
        list.iter().find(is_it).cloned()
    }

    /// Numbers from this one on, those being removed included.
    pub fn ids_from(&self, id: SnapshotId) -> Vec<SnapshotId> {
        let list = self.list.read();
        let first = list.partition_point(|known| known.info.id < id);
        list[first..].iter().map(|known| known.info.id).collect()
    }

    /// Whether one above this is being removed.
    pub fn has_removed_above(&self, id: SnapshotId) -> bool {
        let list = self.list.read();
        list.iter().rev().take_while(|known| known.info.id > id).any(|known| known.info.removing)
    }

    /// The position that an answer waits for which tells what snapshots there are: until then a
    /// loss of power may undo the last change.
    pub fn changed_at(&self) -> Position {
        self.changed_at.load(Ordering::Acquire)
    }

    /// A record was committed at this position: one that is new, or has changed.
    pub fn put(&self, info: SnapshotInfo, position: Position) {
        self.changed_at.fetch_max(position, Ordering::AcqRel);
        let mut list = self.list().to_vec();
        match list.binary_search_by_key(&info.id, |known| known.info.id) {
            Ok(index) => {
                let made_at = list[index].made_at;
                list[index] = Arc::new(Known { info, made_at });
            }
            Err(index) => list.insert(index, Arc::new(Known { info, made_at: position })),
        }
        self.set(list);
    }

    /// Records were deleted, at this position.
    pub fn forget(&self, ids: &[SnapshotId], position: Position) {
        self.changed_at.fetch_max(position, Ordering::AcqRel);
        let mut list = self.list().to_vec();
        list.retain(|known| !ids.contains(&known.info.id));
        self.set(list);
    }
}
