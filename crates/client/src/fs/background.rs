//! What a client does on its own: commits bytes that have been in memory too long, removes trees,
//! what has expired in the trash, and what else is left over, deletes objects after their grace,
//! and, slowly, rewrites objects of which little is in use.
//!
//! One of several nodes deletes objects together with the others, and rewrites none: to know what
//! refers to an object takes the rows of all of them.

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use kestrel_admin::fragmented::FragmentedReport;
use kestrel_cluster::host::NodeHost;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::FsResult;

use super::{CompactOptions, Done, Fs};
use crate::file::data_error;

/// How often the thread looks for work.
const TICK: Duration = Duration::from_millis(250);

/// How often the thread that tidies looks for work.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// Pause after each part of the history that is looked through when snapshots were removed.
const HISTORY_PAUSE: Duration = Duration::from_millis(2);

/// Pause after each batch of events that are removed from change feeds.
const FEED_PAUSE: Duration = Duration::from_millis(2);

/// Pause after that has failed.
const FEED_RETRY: Duration = Duration::from_secs(60);

/// Pause after each part of a clone that is finished: 512 names take about as long.
const CLONE_PAUSE: Duration = Duration::from_millis(2);

/// Time between looks for objects to delete.
const REAP_INTERVAL: Duration = Duration::from_secs(5);

/// Objects that the client asks to delete at a time.
const REAP_AT_ONCE: usize = 64;

/// Objects deleted in one look.
const REAP_BATCH: usize = 1024;

/// Time between two looks for objects of which little is in use: a listing of the store and a walk
/// over the accounts.
const REPACK_INTERVAL: Duration = Duration::from_secs(3600);

/// Objects written to less than this ago are not rewritten on our own: their files may still change
/// a lot.
const REPACK_AGE: Nanos = 600 * SECOND;

/// Rewriting begins when this much is unused in sparse objects, bytes, and this share of all that
/// is stored, percent.
const REPACK_UNUSED_MIN: u64 = 64 << 20;
const REPACK_UNUSED_PERCENT: u64 = 5;

/// How fast, bytes a second: reads and writes of applications must not feel it.
const REPACK_BYTES_PER_SECOND: u64 = 8 << 20;

/// Pause after each page of metadata.
const REPACK_PAGE_PAUSE: Duration = Duration::from_millis(5);

/// What stops the threads.
pub(super) type Stop = (Mutex<bool>, Condvar);

/// What a thread does until it is stopped or the file system is gone.
type Work = fn(&Weak<Fs>, &Stop);

/// The threads and what stops them.
#[derive(Default)]
pub(super) struct Background {
    stop: Arc<Stop>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// They were started.
    begun: OnceLock<()>,
    /// Held by the thread that compacts the volume.
    pub compacting: Mutex<()>,
}

impl Drop for Background {
    /// Without a shutdown the threads end by themselves; one of them may drop this, so no thread
    /// waits for them.
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
    }
}

impl Fs {
    pub(super) fn start_background(self: &Arc<Self>) {
        if !self.config.read_only {
            self.writes();
        }
    }

    /// Something is written, or may be. A mount that was begun read-only can be remounted: the
    /// background work begins then.
    pub(super) fn writes(self: &Arc<Self>) {
        self.background.begun.get_or_init(|| self.start_threads());
    }

    fn start_threads(self: &Arc<Self>) {
        // Apart, because a store that does not answer keeps a thread that deletes or rewrites
        // objects waiting, and a large removal one that tidies; flushes must go on.
        let threads: [(&str, Work); 4] = [
            ("kestrel-flush", run),
            ("kestrel-tidy", tidy),
            ("kestrel-reap", reap),
            ("kestrel-repack", repack),
        ];
        // Of a volume that is served by another process only its own bytes are this client's
        // business.
        let count = match (self.node(), self.member()) {
            (Some(_), _) => threads.len(),
            (None, Some(_)) => {
                log::info!(
                    "one of several nodes: objects of which little is in use are rewritten by \
                     `kestrel compact` only"
                );
                threads.len() - 1
            }
            (None, None) => 1,
        };
        for (name, work) in threads.into_iter().take(count) {
            let (weak, stop) = (Arc::downgrade(self), self.background.stop.clone());
            match std::thread::Builder::new().name(name.into()).spawn(move || work(&weak, &stop)) {
                Ok(thread) => self.background.threads.lock().push(thread),
                // Closing a file still stores it; only the bound on how long bytes stay in memory
                // is lost.
                Err(error) => log::error!("cannot start the thread {name}: {error}"),
            }
        }
    }

    /// The threads look for work at once.
    pub(super) fn wake_background(&self) {
        self.background.stop.1.notify_all();
    }

    /// Stores everything that is written, makes it durable, and stops the background work.
    ///
    /// # Errors
    /// The first file that could not be stored, or the sync's error. Everything that could be
    /// stored is.
    pub fn shutdown(self: &Arc<Self>) -> FsResult<()> {
        self.whole.close();
        self.stop_background();
        if self.background.begun.get().is_none() {
            return Ok(());
        }
        // All at once: a store that does not answer costs one deadline, not one a file.
        let (send, flushed) = std::sync::mpsc::channel();
        for file in self.files.all() {
            let send = send.clone();
            self.flush_file(&file, Box::new(move |result| drop(send.send(result))));
        }
        drop(send);
        self.finish_accesses();
        let result = flushed.iter().fold(Ok(()), Result::and);
        self.packer.seal_all();
        result.and(super::wait(|done| self.sync(done))).and(self.metadata.close())
    }

    /// Stops the background work, and waits for that.
    pub(super) fn stop_background(&self) {
        *self.background.stop.0.lock() = true;
        self.background.stop.1.notify_all();
        for thread in self.background.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }

    /// Starts flushing files with an oldest uncommitted byte that is older than the flush interval.
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

    /// Deletes what large files left behind that were truncated or removed, finishes clones, and
    /// deletes what only snapshots needed that were removed, unless the file system ends.
    fn sweep(&self, stop: &Stop) -> FsResult<()> {
        let Some(node) = self.node() else { return Ok(()) };
        while !*stop.0.lock() && node.sweep()? {}
        while !*stop.0.lock() && node.tidy_clones()? {
            std::thread::sleep(CLONE_PAUSE);
        }
        while !*stop.0.lock() && node.tidy_history()? {
            std::thread::sleep(HISTORY_PAUSE);
        }
        Ok(())
    }

    /// Removes events of change feeds that have expired.
    fn trim_all_feeds(self: &Arc<Self>, stop: &Stop) -> FsResult<()> {
        while !*stop.0.lock() && self.trim_feeds()? {
            std::thread::sleep(FEED_PAUSE);
        }
        Ok(())
    }

    /// Deletes objects that nothing has referred to for the whole grace period
    /// (`docs/design/data.md`, section 5), if the node is in this process.
    ///
    /// # Errors
    /// The node's or the store's; objects not deleted stay due.
    pub fn reap(self: &Arc<Self>) -> FsResult<usize> {
        if let Some(member) = self.member() {
            return self.reap_together(member);
        }
        let Some(node) = self.node() else { return Ok(0) };
        let due =
            node.due_objects(self.clock.now(), REAP_BATCH, &|object| self.is_open_object(object))?;
        if due.is_empty() {
            return Ok(0);
        }
        // That nothing refers to them must be durable before they go, or a power cut could bring a
        // reference back; and so must it be where other machines read the rows.
        super::wait(|done| self.sync(done))?;
        node.upload()?;
        let mut reaped = 0;
        for some in due.chunks(REAP_AT_ONCE) {
            kestrel_types::crash::point("reap.before-delete");
            let deleted = self.store.delete_each(some);
            kestrel_types::crash::point("reap.deleted");
            let mut failed = None;
            for (object, deleted) in some.iter().zip(deleted) {
                match deleted {
                    Ok(()) => {
                        node.forget_object(*object)?;
                        Self::count(&self.counters.reaped_objects, 1);
                        reaped += 1;
                    }
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(data_error(&error));
            }
        }
        Ok(reaped)
    }

    /// The same for one of several nodes: what its clients released and no node refers to any more.
    fn reap_together(&self, member: &Arc<NodeHost>) -> FsResult<usize> {
        let now = self.clock.now();
        let Some(due) = self.unless_stopped(|done| member.condemn(now, REAP_BATCH, done))? else {
            return Ok(0);
        };
        let (mut gone, mut failed) = (Vec::new(), None);
        for some in due.chunks(REAP_AT_ONCE) {
            for (object, deleted) in some.iter().zip(self.store.delete_each(some)) {
                match deleted {
                    Ok(()) => gone.push(*object),
                    Err(error) => failed = Some(error),
                }
            }
        }
        let reaped = gone.len();
        if reaped > 0 {
            self.unless_stopped(|done| member.reaped(gone, done))?;
            Self::count(&self.counters.reaped_objects, reaped as u64);
        }
        match failed {
            None => Ok(reaped),
            Some(error) => Err(data_error(&error)),
        }
    }

    /// What other nodes have to answer for; nothing if the background work ends meanwhile.
    fn unless_stopped<T: Send + 'static>(&self, call: impl FnOnce(Done<T>)) -> FsResult<Option<T>> {
        let (send, heard) = std::sync::mpsc::channel();
        call(Box::new(move |result| drop(send.send(result))));
        loop {
            match heard.recv_timeout(TICK) {
                Ok(result) => return result.map(Some),
                Err(RecvTimeoutError::Timeout) if !*self.background.stop.0.lock() => {}
                // The member ends, and so does this.
                Err(_) => return Ok(None),
            }
        }
    }
}

/// Sleeps unless it is time to stop: then true.
pub(super) fn stopped_after(stop: &Stop, time: Duration) -> bool {
    let mut stopped = stop.0.lock();
    if !*stopped && !time.is_zero() {
        stop.1.wait_for(&mut stopped, time);
    }
    *stopped
}

fn repack(fs: &Weak<Fs>, stop: &Stop) {
    let is_worth = |found: &FragmentedReport| {
        found.unused_bytes
            >= REPACK_UNUSED_MIN.max(found.stored_bytes / 100 * REPACK_UNUSED_PERCENT)
    };
    let go_on = |stored: u64| {
        let pause = match stored {
            0 => REPACK_PAGE_PAUSE,
            bytes => Duration::from_millis(bytes * 1000 / REPACK_BYTES_PER_SECOND),
        };
        !stopped_after(stop, pause)
    };
    while !stopped_after(stop, REPACK_INTERVAL) {
        let Some(fs) = fs.upgrade() else { return };
        let options = CompactOptions {
            rows: None,
            paths: None,
            grace: REPACK_AGE,
            dry_run: false,
            is_worth: &is_worth,
            go_on: &go_on,
        };
        match fs.compact_volume(&options, &mut |_, _| {}) {
            Ok(done) if done == Default::default() => {}
            Ok(done) => log::info!(
                "{} sparse objects: {} references with {} bytes moved, {} changed meanwhile, {} \
                 failed; {} windows folded",
                done.sparse_objects,
                done.moved,
                done.stored_bytes,
                done.changed,
                done.failed,
                done.folded
            ),
            Err(error) if error.errno == libc::EBUSY || *stop.0.lock() => {}
            Err(error) => log::warn!("rewriting sparse objects: {error}"),
        }
    }
}

fn run(fs: &Weak<Fs>, stop: &Stop) {
    while !stopped_after(stop, TICK) {
        let Some(fs) = fs.upgrade() else { return };
        fs.flush_old();
        fs.send_accesses(false);
    }
}

fn tidy(fs: &Weak<Fs>, stop: &Stop) {
    let (mut retry, mut look) = (None, None);
    let mut trim_after = Instant::now();
    while !stopped_after(stop, TIDY_INTERVAL) {
        let Some(fs) = fs.upgrade() else { return };
        if let Err(error) = fs.sweep(stop) {
            log::warn!("deleting what was cut off files: {error}");
        }
        if trim_after <= Instant::now()
            && let Err(error) = fs.trim_all_feeds(stop)
        {
            trim_after = Instant::now() + FEED_RETRY;
            log::warn!("removing expired events of change feeds, tried again in a minute: {error}");
        }
        if let Err(error) = fs.remove_taken(stop, &mut retry) {
            log::warn!("removing what is in /.trash/removing: {error}");
        }
        if let Err(error) = fs.remove_expired(stop, &mut look) {
            log::warn!(
                "removing what has expired in /.trash/kept, tried again in a minute: {error}"
            );
        }
    }
}

fn reap(fs: &Weak<Fs>, stop: &Stop) {
    while !stopped_after(stop, REAP_INTERVAL) {
        let Some(fs) = fs.upgrade() else { return };
        if let Err(error) = fs.reap() {
            log::warn!("deleting unreferenced objects: {error}");
        }
    }
}
