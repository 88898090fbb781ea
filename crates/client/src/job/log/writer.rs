//! The thread that writes the rows of a log: it takes one buffer while the next one is filled.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kestrel_bucket::{BucketEngine, RowBuffer};
use kestrel_engine::{BatchKind, Engine, EngineError};
use kestrel_meta::node::Node;
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::crash;
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::range::Range;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{BUFFER_BYTES, layout};
use crate::error::VolumeError;

/// Most bytes of content on their way to the store.
const CONTENT_BYTES_MAX: usize = 64 << 20;

/// How long a store that fails is tried again, and the pause between two tries.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);

/// A file with content on its way to the store.
pub struct Pending {
    dir: InodeId,
    name: Box<[u8]>,
    file: Mutex<PendingFile>,
}

#[derive(Default)]
struct PendingFile {
    parts: Vec<Option<Range>>,
    /// All of it has been given to the store.
    inode: Option<Inode>,
    given_up: bool,
}

/// What comes into the buffer in its turn.
enum Waiting {
    Row(Key, Vec<u8>),
    File(Arc<Pending>),
}

#[derive(Default)]
struct State {
    buffer: RowBuffer,
    /// A buffer that was written, with its memory.
    spare: RowBuffer,
    waiting: VecDeque<Waiting>,
    /// Bytes of content on their way.
    content_bytes: usize,
    /// The next inode number.
    next: InodeId,
    /// When the buffer got its first row.
    since: Option<Instant>,
    writing: bool,
    /// A caller waits until all is written.
    wanted: bool,
    stopping: bool,
    replaced: u64,
    failure: Option<EngineError>,
}

/// What callers and the thread share.
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The rows of a log on their way.
pub struct LogWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl State {
    /// Moves what is next and complete into the buffer.
    fn release(&mut self) {
        while let Some(first) = self.waiting.pop_front() {
            match first {
                Waiting::Row(key, value) => {
                    self.push(key.borrow(), |out| out.extend_from_slice(&value));
                }
                Waiting::File(pending) => {
                    let mut file = pending.file.lock();
                    if file.given_up {
                        continue;
                    }
                    let whole = file.parts.iter().copied().collect::<Option<Vec<Range>>>();
                    let Some(parts) = whole.filter(|_| file.inode.is_some()) else {
                        drop(file);
                        return self.waiting.push_front(Waiting::File(pending));
                    };
                    let Some(mut inode) = file.inode.take() else { continue };
                    match layout(&parts) {
                        Ok((data, chunks)) => {
                            inode.data = data;
                            for (chunk, extents) in chunks {
                                let suffix = chunk.to_be_bytes();
                                let key = KeyRef::new(Table::Chunk, inode.ino, &suffix);
                                self.push(key, |out| extents.encode_into(out));
                            }
                            let key = KeyRef::new(Table::Entry, pending.dir, &pending.name);
                            self.push(key, |out| inode.encode_into(out));
                        }
                        Err(why) => self.fail(EngineError::Io(why.to_string())),
                    }
                }
            }
        }
    }

    fn push(&mut self, key: KeyRef<'_>, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.buffer.is_empty() {
            self.since = Some(Instant::now());
        }
        if !self.buffer.push(key, encode) {
            self.fail(EngineError::Io("a buffer of the log is full".into()));
        }
    }

    fn fail(&mut self, why: EngineError) {
        self.failure.get_or_insert(why);
    }

    fn check(&self) -> Result<(), VolumeError> {
        self.failure.clone().map_or(Ok(()), |why| Err(VolumeError::engine(why)))
    }

    fn is_written(&self) -> bool {
        self.buffer.is_empty() && self.waiting.is_empty() && !self.writing
    }
}

impl Shared {
    /// A part of a file is in the store, or is not.
    pub fn part_is_stored(
        &self,
        pending: &Arc<Pending>,
        part: (usize, usize),
        stored: Result<Range, String>,
    ) {
        let (part, bytes) = part;
        let mut state = self.state.lock();
        state.content_bytes -= bytes;
        match stored {
            Ok(range) => pending.file.lock().parts[part] = Some(range),
            Err(why) => state.fail(EngineError::Io(format!("storing file data: {why}"))),
        }
        state.release();
        self.changed.notify_all();
    }

    /// Waits while the buffer is full; fails if the log could not be written.
    fn with_room(&self) -> Result<MutexGuard<'_, State>, VolumeError> {
        let mut state = self.state.lock();
        while state.failure.is_none() && state.buffer.bytes() >= BUFFER_BYTES {
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
        state.check()?;
        Ok(state)
    }
}

impl LogWriter {
    /// Starts the thread. `objects`: the next number of an object.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(
        rows: Arc<BucketEngine>,
        sync_every: Duration,
        objects: impl Fn() -> ObjectId + Send + 'static,
    ) -> Result<Self, VolumeError> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("kestrel-job-log".into())
            .spawn(move || run(&of_thread, &rows, sync_every, &objects))
            .map_err(|why| VolumeError::Io(format!("starting a thread: {why}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What answers of the store need.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Numbers below this one have been given to inodes.
    pub fn set_next(&self, next: InodeId) {
        self.shared.state.lock().next = next;
    }

    /// Adds one row.
    ///
    /// # Errors
    /// If the log could not be written.
    pub fn add_row(
        &self,
        key: KeyRef<'_>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), VolumeError> {
        let mut state = self.shared.with_room()?;
        if state.waiting.is_empty() {
            state.push(key, encode);
        } else {
            let mut value = Vec::new();
            encode(&mut value);
            state.waiting.push_back(Waiting::Row(key.to_owned(), value));
        }
        Ok(())
    }

    /// Adds rows of a directory, which wait for nothing: they are written together.
    ///
    /// # Errors
    /// As for [`LogWriter::add_row`].
    pub fn add_together(&self, rows: &[(KeyRef<'_>, &[u8])]) -> Result<(), VolumeError> {
        let mut state = self.shared.with_room()?;
        for (key, value) in rows {
            state.push(*key, |out| out.extend_from_slice(value));
        }
        Ok(())
    }

    /// The next file has content that goes to the store by itself: its row comes when that is
    /// there.
    pub fn expect(&self, dir: InodeId, name: &[u8]) -> Arc<Pending> {
        let pending = Arc::new(Pending { dir, name: name.into(), file: Mutex::default() });
        self.shared.state.lock().waiting.push_back(Waiting::File(pending.clone()));
        pending
    }

    /// So many more bytes of it go to the store: which part this is. Waits while too much is on
    /// its way.
    ///
    /// # Errors
    /// If the log could not be written.
    pub fn begin_part(
        &self,
        pending: &Pending,
        bytes: usize,
    ) -> Result<(usize, usize), VolumeError> {
        let mut state = self.shared.state.lock();
        while state.failure.is_none() && state.content_bytes >= CONTENT_BYTES_MAX {
            self.shared.changed.wait(&mut state);
        }
        state.check()?;
        state.content_bytes += bytes;
        let mut file = pending.file.lock();
        file.parts.push(None);
        Ok((file.parts.len() - 1, bytes))
    }

    /// All of it has been given to the store.
    ///
    /// # Errors
    /// If the log could not be written.
    pub fn end(&self, pending: &Pending, inode: Inode) -> Result<(), VolumeError> {
        let mut state = self.shared.with_room()?;
        pending.file.lock().inode = Some(inode);
        state.release();
        Ok(())
    }

    /// There will be no such file.
    pub fn give_up(&self, pending: &Pending) {
        pending.file.lock().given_up = true;
        self.shared.state.lock().release();
    }

    /// Rows that took the place of others.
    pub fn replaced(&self) -> u64 {
        self.shared.state.lock().replaced
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// If it could not be.
    pub fn sync(&self) -> Result<(), VolumeError> {
        let mut state = self.shared.state.lock();
        loop {
            state.check()?;
            if state.is_written() {
                return Ok(());
            }
            state.wanted = true;
            self.shared.changed.notify_all();
            self.shared.changed.wait(&mut state);
        }
    }

    /// Ends the thread.
    ///
    /// # Errors
    /// If something was not written.
    pub fn stop(&mut self) -> Result<(), VolumeError> {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed that.
            let _ = thread.join();
        }
        let state = self.shared.state.lock();
        state.check()?;
        match state.is_written() {
            true => Ok(()),
            false => Err(VolumeError::Io("the log was not written to its end".into())),
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.stop();
        }
    }
}

fn run(shared: &Shared, rows: &BucketEngine, sync_every: Duration, objects: &dyn Fn() -> ObjectId) {
    let mut state = shared.state.lock();
    loop {
        if state.failure.is_some() || (state.stopping && state.buffer.is_empty()) {
            return;
        }
        let age = state.since.filter(|_| !state.buffer.is_empty()).map(|since| since.elapsed());
        let is_due = age.is_some_and(|age| {
            let is_asked = state.wanted || state.stopping;
            is_asked || age >= sync_every || state.buffer.bytes() >= BUFFER_BYTES
        });
        if !is_due {
            match age {
                Some(age) => {
                    shared.changed.wait_for(&mut state, sync_every.saturating_sub(age));
                }
                None => shared.changed.wait(&mut state),
            }
            continue;
        }
        let spare = std::mem::take(&mut state.spare);
        let mut taken = std::mem::replace(&mut state.buffer, spare);
        (state.writing, state.since) = (true, None);
        let next = state.next;
        shared.changed.notify_all();
        drop(state);
        let written = write(rows, &mut taken, (next, objects()));
        state = shared.state.lock();
        state.writing = false;
        match written {
            Ok(replaced) => state.replaced += replaced,
            Err(why) => state.fail(why),
        }
        taken.clear();
        state.spare = taken;
        if state.is_written() {
            state.wanted = false;
        }
        shared.changed.notify_all();
    }
}

/// Writes one buffer, and tries again while the store may come back.
fn write(
    rows: &BucketEngine,
    buffer: &mut RowBuffer,
    (next, objects): (InodeId, ObjectId),
) -> Result<u64, EngineError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let stamp = SystemClock.now().cast_unsigned();
        // Before the rows, so that no number is given twice.
        let counters = Node::counter_rows(stamp, (next, objects));
        let written = rows.commit(BatchKind::Growing, counters).and_then(|_| rows.ingest(buffer));
        match written {
            Err(EngineError::Io(why)) if Instant::now() < until => {
                log::warn!("the log was not written: {why}; tried again");
                std::thread::sleep(PAUSE);
            }
            Ok(replaced) => {
                crash::point("job.log.written");
                return Ok(replaced);
            }
            other => return other,
        }
    }
}
