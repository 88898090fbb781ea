//! The thread for what may take long: bringing copies up to date, and looking when their use ends.
//!
//! One for a mount. Jobs are done in the order in which they come; each stands for a request that
//! the kernel waits for, which bounds their number. A job that waits for the block store holds up
//! those behind it.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use kestrel_client::fs::{Caller, FileHandle, Fs, wait};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;

use super::open_inode::{Live, OpenInode, Stores, failed};
use super::page_sums::{PAGE_BYTES, page_of, start_of};
use super::{Answer, Opening, Passthrough, VolumeChange};

/// Bytes read at a time.
const PIECE_BYTES: usize = 4 << 20;

/// A copy is brought up to date so often while others change the file.
const TRIES_MAX: u32 = 4;

/// When a copy that nobody has open is looked at, the first time and then.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often what is stored through maps is brought to the volume while nothing else asks for it.
const COLLECT_EVERY: Duration = Duration::from_secs(30);

/// Before a job is tried again because of a change under way.
const PENDING_PAUSE: Duration = Duration::from_millis(1);

/// What follows a job.
type Then = Box<dyn FnOnce(FsResult<()>) + Send>;

pub(super) enum Job {
    /// An open that needs the copy to be changed first, or a handle for maps.
    Open { node: Arc<OpenInode>, live: Arc<Live>, opening: Opening, answer: Answer },
    /// The volume has changed.
    Change { node: Arc<OpenInode>, live: Arc<Live>, change: VolumeChange, then: Then },
    /// What was stored through maps is wanted.
    Collect { node: Arc<OpenInode>, live: Arc<Live>, then: Then },
    /// Nobody has the copy open any more.
    Linger(Arc<OpenInode>),
    /// Nothing follows.
    Stop,
}

/// The thread and the way to it.
pub(super) struct Service {
    jobs: Sender<Job>,
    todo: Mutex<Option<Receiver<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Service {
    pub fn new() -> Self {
        let (jobs, todo) = channel();
        Self { jobs, todo: Mutex::new(Some(todo)), thread: Mutex::default() }
    }

    /// Starts its thread.
    pub fn start(&self, passthrough: &Arc<Passthrough>) -> io::Result<()> {
        let Some(todo) = self.todo.lock().take() else { return Ok(()) };
        let passthrough = Arc::downgrade(passthrough);
        let thread = std::thread::Builder::new().name("kestrel-pass".into());
        *self.thread.lock() = Some(thread.spawn(move || run(&passthrough, &todo))?);
        Ok(())
    }

    pub fn submit(&self, job: Job) {
        // Its thread ends with the mount, when nobody waits for an answer.
        let _ = self.jobs.send(job);
    }

    /// Does what is queued, and ends.
    pub fn stop(&self) {
        let _ = self.jobs.send(Job::Stop);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// An inode with a copy that no process has open.
struct Lingering {
    node: Arc<OpenInode>,
    collected: Instant,
}

fn run(passthrough: &Weak<Passthrough>, todo: &Receiver<Job>) {
    let mut lingering: Vec<Lingering> = Vec::new();
    let mut look = LOOK_EVERY;
    loop {
        let job = if lingering.is_empty() {
            todo.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            todo.recv_timeout(look)
        };
        let Some(passthrough) = passthrough.upgrade() else { return };
        match job {
            Ok(Job::Linger(node)) => {
                if !lingering.iter().any(|one| Arc::ptr_eq(&one.node, &node)) {
                    lingering.push(Lingering { node, collected: Instant::now() });
                }
                // The kernel closes the copy just after it has released the file.
                look = FIRST_LOOK;
                continue;
            }
            Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(job) => passthrough.work(job),
            Err(RecvTimeoutError::Timeout) => look = LOOK_EVERY,
        }
        lingering.retain_mut(|one| passthrough.is_lingering(one));
    }
}

impl Passthrough {
    fn work(self: &Arc<Self>, job: Job) {
        match job {
            Job::Open { node, live, opening, answer } => {
                let is_current = self.fs.is_whole_of(node.ino, opening.inode.data_change);
                if !is_current && node.pending.load(Ordering::SeqCst) > 0 {
                    // The change may be what this open has found.
                    std::thread::sleep(PENDING_PAUSE);
                    return self.service.submit(Job::Open { node, live, opening, answer });
                }
                let ready = self.make_ready(&node, &live, &opening);
                answer(ready.map(|()| self.mode(&live, &opening)));
            }
            Job::Change { node, live, change, then } => {
                let turn = node.turn.lock();
                let result = self.follow(node.ino, &live, change);
                drop(turn);
                if let Err(error) = &result {
                    log::error!(
                        "inode {}: readers may see what was before its last change: {error}",
                        node.ino
                    );
                }
                then(result);
            }
            Job::Collect { node, live, then } => {
                if node.pending.load(Ordering::SeqCst) > 0 {
                    // Bytes that the change has replaced must not be taken for stores.
                    std::thread::sleep(PENDING_PAUSE);
                    return self.service.submit(Job::Collect { node, live, then });
                }
                then(self.collect(&node, &live));
            }
            // Dealt with where the thread waits.
            Job::Linger(_) | Job::Stop => {}
        }
    }

    fn make_ready(
        self: &Arc<Self>,
        node: &Arc<OpenInode>,
        live: &Arc<Live>,
        opening: &Opening,
    ) -> FsResult<()> {
        let writer = match opening.reads && opening.writes && !live.has_writers() {
            true => Some(self.fs.open_unseen(node.ino, true)?),
            false => None,
        };
        let _turn = node.turn.lock();
        if let Some(writer) = writer
            && let Err(error) = live.expect_stores(writer.clone())
        {
            self.fs.release(writer, Box::new(drop));
            return Err(error);
        }
        let content = opening.inode.data_change;
        if opening.truncated && live.refreshed.load(Ordering::Relaxed) < content {
            // It has replaced all that was stored before.
            live.stores().iter().for_each(|stores| stores.pages.lock().forget());
            return self.refresh(node.ino, live);
        }
        match self.fs.is_whole_of(node.ino, content) {
            true => Ok(()),
            false => self.refresh(node.ino, live),
        }
    }

    /// Changes the copy as the volume was changed. The caller holds the turn.
    fn follow(self: &Arc<Self>, ino: InodeId, live: &Live, change: VolumeChange) -> FsResult<()> {
        let size = wait(|done| self.fs.getattr(Caller::ROOT, ino, done))?.size;
        let part = match change {
            VolumeChange::Size(wanted) if wanted == size => size..size,
            // Something came after it, and not before its end.
            VolumeChange::Size(wanted) => wanted.min(size)..size,
            VolumeChange::Part { offset, len } => offset..offset.saturating_add(len),
            VolumeChange::Unknown => return self.refresh(ino, live),
        };
        let has = live.len().map_err(|error| failed("looking at", &error))?;
        // The page that was or is the last one.
        let edge = has.min(size)..has.min(size) + 1;
        if part.is_empty() && !live.has_writers() {
            return live.resize(size);
        }
        self.through_handle(ino, |handle| {
            copy_part(&self.fs, handle, live, part)?;
            if has == size {
                return Ok(());
            }
            live.resize(size)?;
            let Some(stores) = live.stores() else { return Ok(()) };
            stores.pages.lock().resize(size);
            note_part(&self.fs, handle, stores, edge)
        })
    }

    /// Runs `act` with a handle for reading.
    fn through_handle<T>(
        self: &Arc<Self>,
        ino: InodeId,
        act: impl FnOnce(&Arc<FileHandle>) -> FsResult<T>,
    ) -> FsResult<T> {
        let handle = self.fs.open_unseen(ino, false)?;
        let result = act(&handle);
        self.fs.release(handle, Box::new(drop));
        result
    }

    /// Makes the copy what the volume has; stores stay where the volume has not changed. The caller
    /// holds the turn.
    fn refresh(self: &Arc<Self>, ino: InodeId, live: &Live) -> FsResult<()> {
        self.counters.refreshed.fetch_add(1, Ordering::Relaxed);
        self.through_handle(ino, |handle| self.refresh_through(handle, live))
    }

    fn refresh_through(self: &Arc<Self>, handle: &Arc<FileHandle>, live: &Live) -> FsResult<()> {
        let ino = handle.ino();
        for _ in 0..TRIES_MAX {
            let before = wait(|done| self.fs.getattr(Caller::ROOT, ino, done))?;
            let end = match live.stores() {
                Some(stores) => copy_changes(&self.fs, handle, live, stores)?,
                None => copy_part(&self.fs, handle, live, 0..u64::MAX)?,
            };
            live.resize(end)?;
            let after = wait(|done| self.fs.getattr(Caller::ROOT, ino, done))?;
            if (before.data_change, before.size) == (after.data_change, after.size) {
                self.fs.follow_whole(ino, after.data_change);
                live.refreshed.store(after.data_change, Ordering::Relaxed);
                return Ok(());
            }
        }
        // It is as new as this open must see it; the next one looks again.
        self.fs.follow_whole(ino, 0);
        Ok(())
    }

    /// Whether a copy that nobody has open has to be looked at again. If nobody maps it either, its
    /// life ends.
    fn is_lingering(self: &Arc<Self>, one: &mut Lingering) -> bool {
        let node = &one.node;
        let (live, opens) = {
            let state = node.state.lock();
            let Some(live) = state.live.clone().filter(|_| state.passed.is_empty()) else {
                return false;
            };
            (live, state.opens)
        };
        let is_in_use = live.is_in_use();
        if live.has_writers() && (!is_in_use || one.collected.elapsed() >= COLLECT_EVERY) {
            if node.pending.load(Ordering::SeqCst) > 0 {
                return true;
            }
            one.collected = Instant::now();
            if let Err(error) = self.collect(node, &live) {
                log::error!(
                    "inode {}: what was stored through maps is not stored yet: {error}",
                    node.ino
                );
                return true;
            }
        }
        if is_in_use {
            return true;
        }
        let mut state = node.state.lock();
        let is_same = state.live.as_ref().is_some_and(|now| Arc::ptr_eq(now, &live));
        if !is_same || !state.passed.is_empty() {
            return false;
        }
        // Somebody may have opened it meanwhile, stored to a map, and closed it again.
        if live.is_in_use() || state.opens != opens {
            return true;
        }
        self.end(node, &mut state);
        if state.ordinary == 0 {
            self.leave(node, &mut state);
        }
        false
    }
}

/// Reads pages of a file up to the one with the byte before `end`, and whether more may follow.
fn read(fs: &Arc<Fs>, handle: &FileHandle, at: u64, end: u64) -> FsResult<(Vec<u8>, bool)> {
    let want = end.saturating_sub(at).min(PIECE_BYTES as u64) as usize;
    let want = want.next_multiple_of(PAGE_BYTES);
    let bytes = wait(|done| fs.read(handle, at, want, done))?;
    if bytes.len() > want {
        return Err(FsError::new(libc::EIO, "a read gave more than was asked for"));
    }
    // Fewer bytes: the end of the file.
    let goes_on = bytes.len() == want && want > 0;
    Ok((bytes, goes_on))
}

/// Copies a part of a file from the volume to the copy; the byte after the last one that was read.
fn copy_part(fs: &Arc<Fs>, handle: &FileHandle, live: &Live, part: Range<u64>) -> FsResult<u64> {
    let (mut at, mut goes_on) = (start_of(page_of(part.start)), true);
    while goes_on && at < part.end {
        let bytes;
        (bytes, goes_on) = read(fs, handle, at, part.end)?;
        let end = at + bytes.len() as u64;
        let (from, to) = (at.max(part.start), end.min(part.end));
        if from < to {
            live.put(from, &bytes[(from - at) as usize..(to - at) as usize])?;
        }
        if let Some(stores) = live.stores() {
            stores.pages.lock().set(page_of(at), &bytes);
        }
        at = end;
    }
    Ok(at)
}

/// Copies what the volume has changed since the copy followed it, and leaves the rest, with what
/// was stored there; the byte after the last one of the file.
fn copy_changes(fs: &Arc<Fs>, handle: &FileHandle, live: &Live, stores: &Stores) -> FsResult<u64> {
    let (mut at, mut goes_on) = (0, true);
    while goes_on {
        let bytes;
        (bytes, goes_on) = read(fs, handle, at, u64::MAX)?;
        let changed = stores.pages.lock().differences(page_of(at), &bytes);
        for run in changed {
            let from = at + run.start as u64;
            live.put(from, &bytes[run.clone()])?;
            stores.pages.lock().set(page_of(from), &bytes[run]);
        }
        at += bytes.len() as u64;
    }
    stores.pages.lock().resize(at);
    Ok(at)
}

/// Notes what the volume has of a part, without changing the copy.
fn note_part(fs: &Arc<Fs>, handle: &FileHandle, stores: &Stores, part: Range<u64>) -> FsResult<()> {
    let at = start_of(page_of(part.start));
    let (bytes, _) = read(fs, handle, at, part.end)?;
    stores.pages.lock().set(page_of(at), &bytes);
    Ok(())
}
