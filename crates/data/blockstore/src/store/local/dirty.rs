//! Which objects are written but not durable, and making them so.
//!
//! Every write bumps a counter of its file and of the store *after* its bytes are in the page cache
//! and before it is reported as done. A sync reads the counter first and flushes then, so it covers
//! every write reported before it began. Callers of one [`SyncPoint`] queue on its lock; a caller
//! that gets it after a flush that covered it returns at once, so any number of concurrent callers
//! costs at most two flushes.
//!
//! A failed flush is final ("fsyncgate": Linux marks the pages clean and forgets, so a retry would
//! succeed without having written anything): the failure sticks to the store and every later sync
//! reports it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kestrel_types::ids::ObjectId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::files::{self, ObjectFile};
use super::sys;
use crate::error::{Error, Result};
use crate::store::key;

/// Most unsynced objects, each of which holds a descriptor. Creating one more syncs them all first.
pub const FILES_MAX: usize = 512;

/// How much of something is written and how much of that is durable, in numbers of writes.
pub(super) struct SyncPoint {
    written: AtomicU64,
    synced: AtomicU64,
    flushing: Mutex<()>,
}

impl SyncPoint {
    /// Nothing written, nothing to sync.
    pub fn clean() -> Self {
        Self { written: AtomicU64::new(0), synced: AtomicU64::new(0), flushing: Mutex::new(()) }
    }

    /// Notes a write that is complete.
    pub fn wrote(&self) {
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    pub fn is_clean(&self) -> bool {
        self.synced.load(Ordering::SeqCst) >= self.written.load(Ordering::SeqCst)
    }

    /// Returns when every write noted before the call was covered by a successful `flush`, its own
    /// or another caller's.
    pub fn reach(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let wanted = self.written.load(Ordering::SeqCst);
        if self.synced.load(Ordering::SeqCst) >= wanted {
            return Ok(());
        }
        let _flushing = self.flushing.lock();
        if self.synced.load(Ordering::SeqCst) >= wanted {
            return Ok(());
        }
        let covered = self.written.load(Ordering::SeqCst);
        flush()?;
        self.synced.fetch_max(covered, Ordering::SeqCst);
        Ok(())
    }
}

/// A directory of objects with one prefix.
struct PrefixDir {
    /// Names in it.
    names: SyncPoint,
    /// Its own name is noted in [`Dirty::dir_names`].
    is_noted: AtomicBool,
}

impl PrefixDir {
    fn new() -> Self {
        Self { names: SyncPoint::clean(), is_noted: AtomicBool::new(false) }
    }
}

/// The unsynced part of a store.
pub(super) struct Dirty {
    root: Arc<File>,
    files: Mutex<FxHashMap<ObjectId, Arc<ObjectFile>>>,
    /// All writes.
    store: SyncPoint,
    /// The prefix directories.
    dirs: Vec<PrefixDir>,
    /// Their names.
    dir_names: SyncPoint,
    /// What an earlier process may have left unsynced.
    inherited: SyncPoint,
    lost: Mutex<Option<Error>>,
    is_lost: AtomicBool,
}

impl Dirty {
    pub fn new(root: Arc<File>) -> Self {
        let (store, inherited) = (SyncPoint::clean(), SyncPoint::clean());
        store.wrote();
        inherited.wrote();
        Self {
            root,
            files: Mutex::default(),
            store,
            dirs: std::iter::repeat_with(PrefixDir::new).take(key::PREFIXES).collect(),
            dir_names: SyncPoint::clean(),
            inherited,
            lost: Mutex::new(None),
            is_lost: AtomicBool::new(false),
        }
    }

    /// A file was made. It counts as unsynced from its first write on.
    pub fn created(&self, file: &ObjectFile) {
        let dir = &self.dirs[usize::from(key::prefix(file.object))];
        // A thread may make the first file before the thread that made the directory can say so:
        // each of them notes it.
        if !dir.is_noted.load(Ordering::SeqCst) {
            self.dir_names.wrote();
            dir.is_noted.store(true, Ordering::SeqCst);
        }
        dir.names.wrote();
    }

    /// Bytes were written to `file` and are complete.
    pub fn wrote(&self, file: &Arc<ObjectFile>) {
        file.synced.wrote();
        self.files.lock().entry(file.object).or_insert_with(|| Arc::clone(file));
        self.store.wrote();
    }

    /// The object is gone.
    pub fn forget(&self, object: ObjectId) {
        let gone = self.files.lock().remove(&object);
        drop(gone);
    }

    /// Keeps the number of unsynced objects below its limit, by syncing.
    pub fn make_room(&self) -> Result<()> {
        if self.files.lock().len() < FILES_MAX { Ok(()) } else { self.sync_all() }
    }

    /// Makes everything durable.
    pub fn sync_all(&self) -> Result<()> {
        self.check()?;
        let done = self.store.reach(|| self.sticky(self.flush_all()));
        // Callers that waited while another caller's flush failed flushed nothing themselves, or
        // found nothing left.
        done.and_then(|()| self.check())
    }

    /// Makes some objects durable.
    pub fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.check()?;
        self.sticky(self.flush_objects(objects))?;
        self.check()
    }

    fn check(&self) -> Result<()> {
        if !self.is_lost.load(Ordering::SeqCst) {
            return Ok(());
        }
        match &*self.lost.lock() {
            Some(cause) => Err(Error::SyncLost { cause: Box::new(cause.clone()) }),
            None => Ok(()),
        }
    }

    /// Remembers the first failure.
    fn sticky(&self, done: Result<()>) -> Result<()> {
        if let Err(error) = &done {
            self.lost.lock().get_or_insert_with(|| error.clone());
            self.is_lost.store(true, Ordering::SeqCst);
        }
        done
    }

    fn flush_all(&self) -> Result<()> {
        self.check()?;
        self.inherited.reach(|| self.flush_inherited())?;
        let files: Vec<_> = self.files.lock().values().map(Arc::clone).collect();
        self.flush_files(&files)
    }

    fn flush_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.inherited.reach(|| self.flush_inherited())?;
        let dirty = self.files.lock();
        let files: Vec<_> =
            objects.iter().filter_map(|object| dirty.get(object).map(Arc::clone)).collect();
        drop(dirty);
        self.flush_files(&files)
    }

    /// They stay in the map until they are durable, so that other syncs still find them.
    fn flush_files(&self, files: &[Arc<ObjectFile>]) -> Result<()> {
        if files.len() > 1 {
            // The disk gets all the work before the first wait.
            for file in files {
                sys::start_writeback(&file.file);
            }
        }
        for file in files {
            self.flush_file(file)?;
            self.drop_clean(file);
        }
        Ok(())
    }

    /// Removes a file that has no unsynced write. A write that is going on puts it back when it is
    /// complete.
    fn drop_clean(&self, file: &ObjectFile) {
        let mut files = self.files.lock();
        let gone = if file.synced.is_clean() { files.remove(&file.object) } else { None };
        drop(files);
        drop(gone);
    }

    /// Contents first, then the names that lead to them.
    fn flush_file(&self, file: &ObjectFile) -> Result<()> {
        let failed = |source| Error::from_io("syncing", Some(file.object), source);
        // A missing file or directory here is damage, not "not found": the object was written by
        // this process.
        let failed = |source: io::Error| match failed(source) {
            Error::NotFound { object } => {
                Error::Corrupt { object, offset: 0, what: "its directory vanished" }
            }
            other => other,
        };
        file.synced.reach(|| file.file.sync_data().map_err(failed))?;
        let prefix = key::prefix(file.object);
        self.dirs[usize::from(prefix)].names.reach(|| {
            let dir = sys::open_at(self.root.as_fd(), &files::dir_name(prefix)).map_err(failed)?;
            dir.sync_all().map_err(failed)
        })?;
        self.dir_names.reach(|| self.root.sync_all().map_err(failed))
    }

    fn flush_inherited(&self) -> Result<()> {
        sys::sync_file_system(&self.root)
            .map_err(|source| Error::from_io("syncing the block store", None, source))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn concurrent_callers_share_flushes() {
        let point = SyncPoint::clean();
        let flushes = AtomicUsize::new(0);
        point.wrote();
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    point.reach(|| {
                        flushes.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        Ok(())
                    })
                });
            }
        });
        assert_eq!(flushes.load(Ordering::SeqCst), 1);
        assert!(point.is_clean());
    }

    #[test]
    fn a_write_during_a_flush_is_not_covered_by_it() {
        let point = SyncPoint::clean();
        point.wrote();
        point
            .reach(|| {
                point.wrote();
                Ok(())
            })
            .unwrap();
        assert!(!point.is_clean());
    }

    /// The first file of a directory marks the directory's own name for a sync too.
    #[test]
    fn directory_synced_with_its_first_file() {
        let dir = tempfile::tempdir().unwrap();
        let dirty = Dirty::new(Arc::new(File::open(dir.path()).unwrap()));
        let file = Arc::new(ObjectFile::new(5, tempfile::tempfile().unwrap()));
        std::fs::create_dir(dir.path().join(files::dir_name(key::prefix(5)).to_str().unwrap()))
            .unwrap();
        dirty.created(&file);
        assert!(!dirty.dir_names.is_clean());
        dirty.wrote(&file);
        dirty.sync_all().unwrap();
        dirty.created(&file);
        assert!(
            dirty.dir_names.is_clean() && !dirty.dirs[usize::from(key::prefix(5))].names.is_clean()
        );
    }

    /// fdatasync of a pipe fails with EINVAL, which stands for a disk's failure here.
    #[test]
    fn a_failed_sync_sticks_and_reaches_everyone() {
        let dir = tempfile::tempdir().unwrap();
        let dirty = Dirty::new(Arc::new(File::open(dir.path()).unwrap()));
        dirty.sync_all().unwrap();
        let (_reader, writer) = std::io::pipe().unwrap();
        let broken = Arc::new(ObjectFile::new(5, File::from(OwnedFd::from(writer))));
        dirty.wrote(&broken);
        assert!(matches!(dirty.sync_objects(&[5]), Err(Error::Io { object: Some(5), .. })));
        assert!(matches!(dirty.sync_objects(&[5]), Err(Error::SyncLost { .. })));
        assert!(matches!(dirty.sync_all(), Err(Error::SyncLost { .. })));
        dirty.forget(5);
        assert!(matches!(dirty.sync_all(), Err(Error::SyncLost { .. })));
        assert!(matches!(dirty.sync_objects(&[6]), Err(Error::SyncLost { .. })));
    }
}
