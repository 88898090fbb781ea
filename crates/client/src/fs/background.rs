//! What a client does on its own: commits bytes that have been in memory too long, deletes objects whose grace is over.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use kestrel_types::error::FsResult;

use super::Fs;
use crate::file::data_error;

/// How often the thread looks for work.
const TICK: Duration = Duration::from_millis(250);

/// Ticks between looks for objects to delete.
const REAP_TICKS: u32 = 20;

/// Objects deleted in one look.
const REAP_BATCH: usize = 1024;

/// The thread and what stops it.
#[derive(Default)]
pub(super) struct Background {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Fs {
    pub(super) fn start_background(self: &Arc<Self>) {
        if self.config.read_only {
            return;
        }
        let (weak, stop) = (Arc::downgrade(self), self.background.stop.clone());
        let thread =
            std::thread::Builder::new().name("kestrel-flush".into()).spawn(move || run(&weak, &stop));
        match thread {
            Ok(thread) => *self.background.thread.lock() = Some(thread),
            // Closing a file still stores it; only the bound on how long bytes stay in memory is lost.
            Err(error) => log::error!("cannot start the background thread: {error}"),
        }
    }

    /// Stores everything that is written, makes it durable, and stops the background work.
    ///
    /// # Errors
    /// The first file that could not be stored, or the sync's error. Everything that could be stored is.
    pub fn shutdown(self: &Arc<Self>) -> FsResult<()> {
        *self.background.stop.0.lock() = true;
        self.background.stop.1.notify_all();
        if let Some(thread) = self.background.thread.lock().take() {
            let _ = thread.join();
        }
        if self.config.read_only {
            return Ok(());
        }
        let mut result = Ok(());
        for file in self.files.all() {
            result = result.and(super::wait(|done| self.flush_file(&file, done)));
        }
        self.packer.seal_all();
        result.and(super::wait(|done| self.sync(done))).and(self.node.close())
    }

    /// Starts flushing files whose oldest uncommitted byte is older than the flush interval.
    fn flush_old(self: &Arc<Self>) {
        let before = self.clock.now() - self.config.flush_interval;
        for file in self.files.all() {
            let old = file.lock().dirty_since.is_some_and(|since| since <= before);
            if old {
                let ino = file.ino;
                let again = file.clone();
                self.flush_file(
                    &file,
                    Box::new(move |result| {
                        if let Err(error) = result {
                            log::warn!("inode {ino}: background flush: {error}");
                            again.lock().error = Some(error);
                        }
                    }),
                );
            }
        }
    }

    /// Deletes what large files left behind that were truncated or removed, unless the file system ends.
    fn sweep(&self, stop: &(Mutex<bool>, Condvar)) -> FsResult<()> {
        while !*stop.0.lock() && self.node.sweep()? {}
        Ok(())
    }

    /// Deletes objects that nothing has referred to for the whole grace period (`data.md` §5).
    ///
    /// # Errors
    /// The node's or the store's; objects not deleted stay due.
    pub fn reap(self: &Arc<Self>) -> FsResult<usize> {
        let due =
            self.node.due_objects(self.clock.now(), REAP_BATCH, &|object| self.packer.is_open(object))?;
        if due.is_empty() {
            return Ok(0);
        }
        // That nothing refers to them must be durable before they go, or a power cut could bring a reference back.
        super::wait(|done| self.sync(done))?;
        let mut deleted = 0;
        for object in due {
            kestrel_types::crash::point("reap.before-delete");
            self.store.delete(object).map_err(|error| data_error(&error))?;
            kestrel_types::crash::point("reap.deleted");
            self.node.forget_object(object)?;
            deleted += 1;
        }
        Self::count(&self.counters.reaped_objects, deleted as u64);
        Ok(deleted)
    }
}

fn run(fs: &Weak<Fs>, stop: &(Mutex<bool>, Condvar)) {
    for tick in 1u32.. {
        let mut stopped = stop.0.lock();
        if !*stopped {
            stop.1.wait_for(&mut stopped, TICK);
        }
        if *stopped {
            return;
        }
        drop(stopped);
        let Some(fs) = fs.upgrade() else { return };
        fs.flush_old();
        if let Err(error) = fs.sweep(stop) {
            log::warn!("deleting what was cut off files: {error}");
        }
        if tick % REAP_TICKS == 0
            && let Err(error) = fs.reap()
        {
            log::warn!("deleting unreferenced objects: {error}");
        }
    }
}
