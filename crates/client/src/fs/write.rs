//! Writing: bytes go to the file's buffer; full blocks go on to the block store while the
//! application writes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use kestrel_blockstore::{Payload, StoredRange, Turn};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::inode::{FILE_SIZE_MAX, InodeFlags};

use super::{Caller, FileHandle, Fs};
use crate::file::{FileState, OpenFile, WrittenPiece, bad_handle, data_error};

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAt {
    /// To this offset, bytes.
    Offset(u64),
    /// To the end of the file (`O_APPEND`). Where that is, is decided when the bytes are committed:
    /// until then others may append.
    End {
        /// It may be the first part of a write that goes on in a moment, through the same handle.
        /// Nobody else's bytes should come between.
        unfinished: bool,
    },
}

/// How often a write looks whether what was appended before is committed.
const COMMITTED_PAUSE: Duration = Duration::from_millis(1);

/// How long a write waits until what was appended before is committed, before it fails with
/// `ETIMEDOUT`.
const COMMITTED_DEADLINE: Duration = Duration::from_secs(60);

/// How long a write waits while no earlier bytes are stored before it fails with `ETIMEDOUT`.
const BUDGET_DEADLINE: Duration = Duration::from_secs(60);

/// What a write counts for at least, bytes: a piece of a few bytes takes this much memory.
const PIECE_COST_MIN: u64 = 256;

/// Most small pieces of a file that are stored one by one to make room: the queue of the threads
/// that store them is bounded, and a piece that finds it full waits for the next flush.
const PIECES_ALONE_MAX: usize = 32;

/// Pieces are small if they have fewer bytes than this on the average.
const SMALL_PIECE_BYTES: u64 = 64 << 10;

/// How long writes that make a file longer are refused after a quota refused its commit. What was
/// written before is committed again after each flush interval, which is shorter.
const OVER_QUOTA_KEPT: Nanos = 2 * SECOND;

/// Whether nothing stores a piece that is in flight.
fn is_left(piece: &WrittenPiece) -> bool {
    piece.placed.is_none() && !piece.storing
}

/// What written bytes count for in the budget.
fn cost(bytes: usize) -> u64 {
    (bytes as u64).max(PIECE_COST_MIN)
}

/// What is told of a file that became immutable while it was open.
pub(super) const IMMUTABLE: FsError =
    FsError::new(libc::EPERM, "the file is immutable (chattr -i)");

impl Fs {
    /// Like [`Fs::write_unless`] for callers that stay. With `kill_suid` set-id bits go as by a
    /// write of a process that is neither privileged nor in the file's group.
    ///
    /// # Errors
    /// As there.
    pub fn write(
        self: &Arc<Self>,
        handle: &FileHandle,
        offset: u64,
        data: &[u8],
        kill_suid: bool,
    ) -> FsResult<()> {
        let writer = kill_suid.then_some(Caller::STRANGER);
        self.write_unless(handle, WriteAt::Offset(offset), data, writer, &|| false).map(drop)
    }

    /// Writes `data`. Answers at which offset it is for the time being. The bytes are visible to
    /// every reader of this client at once, and are stored and committed by the next flush, fsync
    /// or close, or after the flush interval. Waits for the block store to take earlier bytes if
    /// there is no room (see [`Fs::has_room`]), as long as the caller is not `gone`. An
    /// `unprivileged` writer takes set-id bits away.
    ///
    /// # Errors
    /// `EBADF`, `EFBIG`; `EPERM` if the file is known to be immutable; `EDQUOT` if a quota is known
    /// to be used up; `ETIMEDOUT` if the block store has not taken earlier bytes for a minute.
    pub fn write_unless(
        self: &Arc<Self>,
        handle: &FileHandle,
        at: WriteAt,
        data: &[u8],
        unprivileged: Option<Caller>,
        gone: &dyn Fn() -> bool,
    ) -> FsResult<u64> {
        if !handle.write {
            return Err(bad_handle());
        }
        self.check_locks(handle)?;
        self.heard_of(handle);
        if let WriteAt::Offset(offset) = at {
            end_of(offset, data)?;
        }
        let grant = match self.budget.try_acquire(cost(data.len())) {
            Some(grant) => grant,
            None => {
                self.make_room(data.len() as u64);
                let granted = self.budget.acquire_unless(cost(data.len()), BUDGET_DEADLINE, gone);
                granted.map_err(|e| data_error(&e))?
            }
        };
        self.writes();
        let file = &handle.file;
        let mut state = match at {
            WriteAt::Offset(offset) => self.lock_at(file, offset, gone)?,
            WriteAt::End { .. } => file.lock(),
        };
        if state.inode.flags.has(InodeFlags::IMMUTABLE) {
            return Err(IMMUTABLE);
        }
        // Under the lock, so that of two writers the later one's time stays.
        let now = self.clock.now();
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End { .. } => state.size,
        };
        let end = end_of(offset, data)?;
        if let Some((at, error)) = &state.over_quota
            && end > state.inode.size
            && now - at < OVER_QUOTA_KEPT
        {
            return Err(error.clone());
        }
        if let WriteAt::End { unfinished } = at {
            state.append_from.get_or_insert(offset);
            state.unfinished = unfinished.then_some((handle.number, now));
        }
        state.buffer.write(offset, data);
        match state.grants.last_mut() {
            Some(all) => all.merge(grant),
            None => state.grants.push(grant),
        }
        state.size = state.size.max(end);
        state.told_size = state.told_size.max(end);
        state.mtime = Some(now);
        if let Some(writer) = unprivileged {
            state.written_by(writer);
        }
        state.dirty_since.get_or_insert(now);
        let full = if state.buffer.bytes() as u64 >= u64::from(self.config.block_bytes) {
            Self::take_full_pieces(&mut state)
        } else {
            Vec::new()
        };
        drop(state);
        Self::count(&self.counters.written_bytes, data.len() as u64);
        for bytes in full {
            self.store_in_background(file.clone(), bytes);
        }
        Ok(offset)
    }

    /// Locks a file for a write to `offset`. Where that leaves a gap behind what was appended and
    /// is not committed, that is committed first: it may have to move behind the bytes of others,
    /// and nothing else shall move with it.
    fn lock_at<'a>(
        self: &Arc<Self>,
        file: &'a Arc<OpenFile>,
        offset: u64,
        gone: &dyn Fn() -> bool,
    ) -> FsResult<MutexGuard<'a, FileState>> {
        let (begun, mut flushed) = (Instant::now(), false);
        loop {
            let state = file.lock();
            // Where nobody else appends, what is appended meanwhile stays where it is.
            if !state.ends_with_appended(offset) || (flushed && !state.shared_end) {
                return Ok(state);
            }
            drop(state);
            let (send, committed) = mpsc::channel();
            self.flush_file(file, Box::new(move |result| drop(send.send(result))));
            // The answer comes when the kernel has heard where the bytes are, which can wait for
            // this write.
            while file.lock().ends_with_appended(offset) {
                match committed.recv_timeout(COMMITTED_PAUSE) {
                    Ok(result) => {
                        result?;
                        break;
                    }
                    Err(_) if gone() || begun.elapsed() > COMMITTED_DEADLINE => {
                        let why = "what was appended to the file before could not be committed";
                        return Err(FsError::new(libc::ETIMEDOUT, why));
                    }
                    Err(_) => {}
                }
            }
            flushed = true;
        }
    }

    fn take_full_pieces(state: &mut FileState) -> Vec<Arc<Vec<u8>>> {
        let pieces = state.buffer.take_full();
        push_inflight(state, pieces)
    }

    /// Stores a piece from the pool.
    fn store_in_background(self: &Arc<Self>, file: Arc<OpenFile>, bytes: Arc<Vec<u8>>) {
        let fs = self.clone();
        // If the pool has no time, the next flush stores the piece.
        self.on_pool(move |turn| {
            if turn == Turn::Run {
                fs.store_piece(&file, &bytes);
            }
        });
    }

    /// Stores the piece of a file that is in flight with these bytes (where it goes may change
    /// meanwhile), unless somebody does already.
    fn store_piece(self: &Arc<Self>, file: &Arc<OpenFile>, bytes: &Arc<Vec<u8>>) {
        let mut state = file.lock();
        match state.inflight.iter_mut().find(|piece| Arc::ptr_eq(&piece.bytes, bytes)) {
            Some(piece) if piece.placed.is_none() && !piece.storing => piece.storing = true,
            _ => return,
        }
        drop(state);
        self.store_claimed(file, bytes);
    }

    /// Stores a piece that is marked as being stored.
    pub(super) fn store_claimed(self: &Arc<Self>, file: &Arc<OpenFile>, bytes: &Arc<Vec<u8>>) {
        let (fs, again, file_again) = (self.clone(), bytes.clone(), file.clone());
        let mut payload = Payload::new();
        payload.push_shared(bytes.clone(), 0..bytes.len());
        let done = Box::new(move |placed| fs.stored(&file_again, &again, placed));
        // In mode `commit` the node syncs the store before it acknowledges the commit, for all
        // files at once.
        self.store_bytes(payload, file, done);
    }

    /// A piece was stored, or could not be.
    fn stored(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        bytes: &Arc<Vec<u8>>,
        placed: kestrel_blockstore::Result<StoredRange>,
    ) {
        let mut state = file.lock();
        let found = state.inflight.iter_mut().find(|piece| Arc::ptr_eq(&piece.bytes, bytes));
        let Some(piece) = found else { return };
        piece.storing = false;
        match placed {
            Ok(placed) => {
                piece.placed = Some(placed);
            }
            Err(error) => state.error = Some(data_error(&error)),
        }
        if state.flushing {
            self.continue_flush(file, state);
        } else if self.is_worth_a_commit(&state) {
            self.commit_early(file, state);
        }
    }

    /// Whether what is stored of a file should be committed before its time. Bytes stay in memory
    /// until then, so that reads need not wait for a store that is far away, and count as unstored,
    /// so this is what makes room.
    pub(super) fn is_worth_a_commit(&self, state: &FileState) -> bool {
        let budget = self.config.dirty_bytes_max;
        let stored: u64 = stored_first(state).map(|piece| piece.bytes.len() as u64).sum();
        let is_much = self.store.is_remote() && stored >= budget / 8;
        is_much || (stored > 0 && (self.budget.used() > budget / 2 || self.budget.is_waited_for()))
    }

    /// Has about `bytes` of open files leave memory: commits what is stored, and where not enough
    /// is on its way starts storing what is buffered, largest first.
    fn make_room(self: &Arc<Self>, bytes: u64) {
        // More than asked for, so that the next writer does not have to look again at once.
        let wanted = bytes.max(self.config.dirty_bytes_max / 4);
        let (mut started, mut held_back) = (0, Vec::new());
        for file in self.files.all() {
            let state = file.lock();
            let (left, under_way): (Vec<_>, Vec<_>) =
                state.inflight.iter().partition(|piece| is_left(piece));
            started += under_way.iter().map(|piece| piece.bytes.len() as u64).sum::<u64>();
            let left: u64 = left.iter().map(|piece| piece.bytes.len() as u64).sum();
            let held = state.buffer.bytes() as u64 + left;
            if !state.flushing && stored_first(&state).next().is_some() {
                self.commit_early(&file, state);
            } else {
                drop(state);
            }
            if held > 0 {
                held_back.push((held, file));
            }
        }
        held_back.sort_by_key(|(held, _)| std::cmp::Reverse(*held));
        for (held, file) in held_back {
            if started >= wanted {
                break;
            }
            started += held;
            let mut state = file.lock();
            let count = state.inflight.iter().filter(|piece| is_left(piece)).count()
                + state.buffer.pieces().count();
            if count > PIECES_ALONE_MAX && held / (count as u64) < SMALL_PIECE_BYTES {
                // One flush stores them together.
                if !state.flushing {
                    self.start_flush(&file, state);
                }
                continue;
            }
            let pieces = state.buffer.take();
            let taken = push_inflight(&mut state, pieces);
            drop(state);
            for bytes in taken {
                self.store_in_background(file.clone(), bytes);
            }
        }
    }

    /// Commits what is stored of a file before its time.
    pub(super) fn commit_early(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        state: MutexGuard<'_, FileState>,
    ) {
        match state.shared_end {
            // What is stored may end within what was appended at a time.
            true => self.start_flush(file, state),
            false => self.commit_stored(file, state),
        }
    }

    /// Whether `len` more bytes can be written now without waiting for the block store.
    pub fn has_room(&self, len: usize) -> bool {
        self.budget.has_room(cost(len))
    }

    /// Bytes written and not yet stored and committed, all files together.
    pub fn dirty_bytes(&self) -> u64 {
        self.budget.used()
    }

    /// How often a writer had to wait for room.
    pub fn write_waits(&self) -> u64 {
        self.budget.waits()
    }

    pub(super) fn note_commit(&self) {
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
    }
}

/// First byte after `data` written at `offset`; `EFBIG` if a file cannot be so large.
fn end_of(offset: u64, data: &[u8]) -> FsResult<u64> {
    let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
    end.ok_or(FsError::new(libc::EFBIG, "the file would become larger than 8 EiB"))
}

/// The oldest pieces in flight, as far as they are stored.
pub(super) fn stored_first(state: &FileState) -> impl Iterator<Item = &WrittenPiece> {
    state.inflight.iter().take_while(|piece| piece.placed.is_some())
}

/// Moves pieces that left the buffer to the layer in flight. Each takes its share of the budget
/// with it, and what stays in the buffer keeps its own.
pub(super) fn push_inflight(
    state: &mut FileState,
    pieces: Vec<(u64, Vec<u8>)>,
) -> Vec<Arc<Vec<u8>>> {
    if pieces.is_empty() && !state.buffer.is_empty() {
        return Vec::new();
    }
    let mut grant = std::mem::take(&mut state.grants).into_iter().reduce(|mut all, one| {
        all.merge(one);
        all
    });
    let taken = pieces
        .into_iter()
        .map(|(offset, bytes)| {
            let bytes = Arc::new(bytes);
            let share = grant.as_mut().map(|grant| grant.split(cost(bytes.len())));
            state.inflight.push(WrittenPiece {
                offset,
                bytes: bytes.clone(),
                placed: None,
                storing: false,
                grant: share,
                inline_of: None,
            });
            bytes
        })
        .collect();
    let left = state.buffer.pieces().map(|(_, piece)| cost(piece.len())).sum::<u64>();
    state.grants.extend(grant.filter(|_| left > 0).map(|mut grant| grant.split(left)));
    taken
}
