//! Flushing: what was written to a file becomes its committed content.
//!
//! One flush of a file runs at a time; a caller that asks meanwhile waits for the next. A flush
//! takes the buffer, decides on a layout (`docs/design/data.md`, section 1), stores what is not
//! stored yet, and commits the layout in one request. If that fails, what was written stays in the
//! layer in flight, so that a later flush can succeed; the error goes to every caller that waited.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;

use kestrel_blockstore::{Payload, StoredRange, Turn};
use kestrel_types::clock::{MILLISECOND, Nanos};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::{Extent, Source, chunk_parts};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode, InodeFlags};
use kestrel_types::range::Range;
use kestrel_types::request::{
    Answer, COMMIT_EXTENTS_MAX, Commit, Creds, NewData, Op, Outcome, Reply, Request,
};

use super::repeat::{LoopStep, Next, repeat};
use super::space::has_hole;
use super::write::{push_inflight, stored_first};
use super::{Caller, Done, FileHandle, Fs, too_late, unexpected};
use crate::file::{FileState, Flush, OpenFile, Unanswered, WrittenPiece, data_error, finish_all};
use crate::write_buffer::copy_piece;

/// A packed file up to this size is rewritten as a whole when part of it changes; larger ones
/// become chunked. Bytes.
const REWRITE_BYTES_MAX: u64 = 256 * 1024;

/// A commit is tried this often when the file keeps changing under it.
const CONFLICTS_MAX: u32 = 8;

/// The same for a file that is appended to: each of these conflicts is a commit of another client,
/// so all together get on.
const APPEND_CONFLICTS_MAX: u32 = 1000;

/// After so many conflicts bytes are stored by themselves, not with what they change, so that the
/// next try takes one request.
const CONFLICTS_TO_PATCH: u32 = 2;

/// How long a flush waits for the rest of a write of which the kernel has sent a part. It sends the
/// rest at once, but a busy machine may keep the writer from running.
const UNFINISHED_MAX: Nanos = 100 * MILLISECOND;

/// How often it looks.
const UNFINISHED_PAUSE: Duration = Duration::from_millis(1);

/// How the content will be laid out.
enum Form {
    /// In the record.
    Inline(Vec<u8>),
    /// One range that has to be stored as a whole.
    Whole(Vec<u8>),
    /// The whole content must be put together from stored bytes and new ones first.
    Merge,
    /// Pieces over what there is.
    Patches,
}

impl Fs {
    /// Commits everything written to the file before; what close(2) waits for.
    pub fn flush(self: &Arc<Self>, handle: &FileHandle, done: Done<()>) {
        if let Err(error) = self.check_locks(handle) {
            return done(Err(error));
        }
        self.finished(handle);
        self.flush_file(&handle.file, done);
    }

    /// Commits everything written to the file before and makes it, and everything else acknowledged
    /// so far, durable.
    pub fn fsync(self: &Arc<Self>, handle: &FileHandle, done: Done<()>) {
        if let Err(error) = self.check_locks(handle) {
            return done(Err(error));
        }
        let fs = self.clone();
        self.finished(handle);
        self.send_access_of(handle.ino());
        self.flush_file(
            &handle.file,
            Box::new(move |flushed| match flushed {
                Ok(()) => fs.make_durable(done),
                Err(error) => done(Err(error)),
            }),
        );
    }

    /// Makes everything acknowledged so far durable, data first.
    pub fn sync(self: &Arc<Self>, done: Done<()>) {
        self.send_accesses(true);
        self.make_durable(done);
    }

    fn make_durable(self: &Arc<Self>, done: Done<()>) {
        self.ask(Caller::ROOT, Op::Sync, move |answer| done(answer.map(|_| ())));
    }

    pub(super) fn flush_ino(self: &Arc<Self>, ino: InodeId, done: Done<()>) {
        match self.files.get(ino) {
            Some(file) => self.flush_file(&file, done),
            None => done(Ok(())),
        }
    }

    pub(super) fn flush_file(self: &Arc<Self>, file: &Arc<OpenFile>, done: Done<()>) {
        let mut state = file.lock();
        if !state.is_dirty() {
            let earlier = state.error.take();
            drop(state);
            return done(earlier.map_or(Ok(()), Err));
        }
        state.waiters.push(done);
        if !state.flushing {
            self.start_flush(file, state);
        }
    }

    /// Goes on when what was appended here does not lie over what others have appended: until a
    /// flush that is under way has its answer, it does, if the node has given a newer content
    /// meanwhile.
    pub(super) fn when_placed(&self, ino: InodeId, go_on: Box<dyn FnOnce() + Send>) {
        let Some(file) = self.files.get(ino) else { return go_on() };
        let mut state = file.lock();
        let content = state.inode.data_change;
        let outdated = state.flush.as_ref().is_some_and(|flush| flush.base != content);
        if state.append_from.is_some() && outdated {
            state.waiters.push(Box::new(move |_| go_on()));
            return;
        }
        drop(state);
        go_on();
    }

    /// What was written through a handle is all there: its writer asks for what comes next.
    pub(super) fn finished(&self, handle: &FileHandle) {
        let mut state = handle.file.lock();
        if state.unfinished.is_some_and(|(number, _)| number == handle.number) {
            state.unfinished = None;
        }
    }

    /// Starts a flush for all callers that wait now, when no write is half there. What is written
    /// from here on belongs to the next.
    pub(super) fn start_flush(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        mut state: MutexGuard<'_, FileState>,
    ) {
        if self.is_half_there(&mut state) {
            drop(state);
            let (fs, file) = (self.clone(), file.clone());
            return self.on_pool(move |_| fs.start_flush_later(&file));
        }
        state.flushing = true;
        state.error = None;
        state.dirty_since = None;
        let waiters = std::mem::take(&mut state.waiters);
        let pieces = state.buffer.take();
        push_inflight(&mut state, pieces);
        let flush = Flush {
            upto: state.inflight.len(),
            size: state.size,
            base: state.inode.data_change,
            mtime: state.mtime.unwrap_or(state.inode.mtime),
            kill_suid: state.kill_suid.clone(),
            conflicts: 0,
            waiters,
        };
        state.flush = Some(flush);
        self.plan_flush(file, state);
    }

    /// Whether the rest of what was appended last is still awaited.
    fn is_half_there(&self, state: &mut FileState) -> bool {
        let before = self.clock.now() - UNFINISHED_MAX;
        state.unfinished = state.unfinished.filter(|(_, since)| *since > before);
        state.unfinished.is_some()
    }

    fn start_flush_later(self: &Arc<Self>, file: &Arc<OpenFile>) {
        loop {
            let mut state = file.lock();
            if state.flushing {
                return;
            }
            if !self.is_half_there(&mut state) {
                return self.start_flush(file, state);
            }
            drop(state);
            std::thread::sleep(UNFINISHED_PAUSE);
        }
    }

    /// Commits what is stored of a file that is being written on, and nothing of what is not. Its
    /// size is then what that reaches to.
    pub(super) fn commit_stored(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        mut state: MutexGuard<'_, FileState>,
    ) {
        state.flushing = true;
        state.flush = Some(Flush {
            upto: stored_first(&state).count(),
            size: state.inode.size,
            base: state.inode.data_change,
            mtime: state.mtime.unwrap_or(state.inode.mtime),
            kill_suid: state.kill_suid.clone(),
            conflicts: 0,
            waiters: Vec::new(),
        });
        self.continue_flush(file, state);
    }

    /// Decides on the layout and does what has to be done before the commit.
    fn plan_flush(self: &Arc<Self>, file: &Arc<OpenFile>, mut state: MutexGuard<'_, FileState>) {
        aim(&mut state);
        let Some(size) = state.flush.as_ref().map(|flush| flush.size) else { return };
        let form = self.form(&state, size);
        // Only patches wait for pieces; in the other forms a piece that gets stored meanwhile must
        // not start a commit.
        state.committing = !matches!(form, Form::Patches);
        match form {
            Form::Inline(content) => {
                drop(state);
                self.commit(file, NewData::Inline(content.into()), None);
            }
            Form::Whole(content) => {
                drop(state);
                self.store_whole(file, content);
            }
            Form::Merge => {
                drop(state);
                let (fs, file) = (self.clone(), file.clone());
                self.on_pool(move |turn| match turn {
                    Turn::Run => fs.merge(&file),
                    Turn::Late => fs.flush_failed(&file, too_late()),
                });
            }
            Form::Patches => {
                let upto = state.flush.as_ref().map_or(0, |flush| flush.upto);
                // All are marked before the first is stored: the flush goes on when none is left.
                let missing: Vec<_> = state.inflight[..upto]
                    .iter_mut()
                    .filter(|piece| piece.placed.is_none() && !piece.storing)
                    .map(|piece| {
                        piece.storing = true;
                        piece.bytes.clone()
                    })
                    .collect();
                if missing.is_empty() {
                    return self.continue_flush(file, state);
                }
                drop(state);
                for bytes in missing {
                    self.store_claimed(file, &bytes);
                }
            }
        }
    }

    fn form(&self, state: &FileState, size: u64) -> Form {
        let upto = state.flush.as_ref().map_or(0, |flush| flush.upto);
        let pieces = &state.inflight[..upto];
        let started = pieces.iter().any(|piece| piece.placed.is_some() || piece.storing);
        let written: u64 = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        if pieces.is_empty() {
            // Only times, or the writer: the content stays as it is.
            return Form::Patches;
        }
        if matches!(state.inode.data, Data::Chunked)
            || size > u64::from(self.config.block_bytes)
            || size == 0
        {
            return Form::Patches;
        }
        let one_covers =
            matches!(pieces, [piece] if piece.offset == 0 && piece.bytes.len() as u64 == size);
        if one_covers && size > u64::from(self.config.inline_max) {
            // The piece is the file: `continue_flush` makes its range the packed content, without a
            // copy.
            return Form::Patches;
        }
        let contended =
            state.flush.as_ref().is_some_and(|flush| flush.conflicts >= CONFLICTS_TO_PATCH);
        if contended && !matches!(state.inode.data, Data::Inline(_)) {
            return Form::Patches;
        }
        let small = size <= REWRITE_BYTES_MAX;
        let mostly_written = written >= size / 2;
        if started || !(small || mostly_written) {
            return Form::Patches;
        }
        if size > u64::from(self.config.inline_max) && has_hole(&state.inode.data, pieces, size) {
            return Form::Patches;
        }
        let mut content = vec![0; size as usize];
        match &state.inode.data {
            Data::Inline(bytes) => copy_piece(0, bytes, 0, &mut content),
            Data::None | Data::Chunked => {}
            Data::Packed { .. } if small && !one_covers => return Form::Merge,
            Data::Packed { .. } if !one_covers => return Form::Patches,
            Data::Packed { .. } => {}
        }
        for piece in pieces {
            copy_piece(piece.offset, &piece.bytes, 0, &mut content);
        }
        if size <= u64::from(self.config.inline_max) {
            Form::Inline(content)
        } else {
            Form::Whole(content)
        }
    }

    /// Puts a small packed file together with what was written over it. Runs on the pool.
    fn merge(self: &Arc<Self>, file: &Arc<OpenFile>) {
        let state = file.lock();
        let (Data::Packed { range, visible }, Some(flush)) = (&state.inode.data, &state.flush)
        else {
            return self.plan_flush(file, state);
        };
        let (range, kept) = (*range, u64::from(*visible).min(flush.size) as usize);
        let mut content = vec![0; flush.size as usize];
        let pieces: Vec<_> = state.inflight[..flush.upto]
            .iter()
            .map(|piece| (piece.offset, piece.bytes.clone()))
            .collect();
        drop(state);
        if let Err(error) = self.reader.read(range, 0, &mut content[..kept]) {
            return self.merge_elsewhere(file, range, data_error(&error));
        }
        for (offset, bytes) in pieces {
            copy_piece(offset, &bytes, 0, &mut content);
        }
        if content.len() <= self.config.inline_max as usize {
            self.commit(file, NewData::Inline(content.into()), None);
        } else {
            self.store_whole(file, content);
        }
    }

    /// The stored content is not where it was when the file was opened: unless it has moved (a
    /// repacked file keeps its `data_change`, so nothing told us) the flush has failed.
    fn merge_elsewhere(self: &Arc<Self>, file: &Arc<OpenFile>, known: Range, error: FsError) {
        let (fs, file) = (self.clone(), file.clone());
        let op = Op::GetAttr(self.known.reference(file.ino));
        self.ask(Caller::ROOT, op, move |answer| match answer.and_then(super::into_inode) {
            Ok(inode) if !matches!(inode.data, Data::Packed { range, .. } if range == known) => {
                let mut state = file.lock();
                state.refresh(inode);
                fs.plan_flush(&file, state);
            }
            _ => fs.flush_failed(&file, error),
        });
    }

    fn store_whole(self: &Arc<Self>, file: &Arc<OpenFile>, content: Vec<u8>) {
        let (fs, again) = (self.clone(), file.clone());
        let done = move |placed: kestrel_blockstore::Result<StoredRange>| match placed {
            Ok(placed) => fs.commit(&again, NewData::Packed(placed.range), Some(placed)),
            Err(error) => fs.flush_failed(&again, data_error(&error)),
        };
        self.store_bytes(Payload::from(content), file, Box::new(done));
    }

    /// Pieces were stored: commits if none is missing any more.
    pub(super) fn continue_flush(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        mut state: MutexGuard<'_, FileState>,
    ) {
        let Some(upto) = state.flush.as_ref().map(|flush| flush.upto) else { return };
        if state.committing || state.inflight[..upto].iter().any(|piece| piece.storing) {
            return;
        }
        let split = aim(&mut state);
        let Some((upto, size)) = state.flush.as_ref().map(|flush| (flush.upto, flush.size)) else {
            return;
        };
        if self.forget_lost(&mut state, upto) || split {
            return self.plan_flush(file, state);
        }
        if state.inflight[..upto].iter().any(|piece| piece.placed.is_none()) {
            let error = state
                .error
                .take()
                .unwrap_or(FsError::new(libc::EIO, "written bytes could not be stored"));
            drop(state);
            return self.flush_failed(file, error);
        }
        let ranges = state.inflight[..upto]
            .iter()
            .filter_map(|piece| piece.placed.as_ref().map(|p| (piece.offset, p.range)));
        let data = match (&state.inode.data, &state.inflight[..upto]) {
            (_, []) => NewData::Unchanged,
            (base, [piece])
                if piece.offset == 0
                    && piece.bytes.len() as u64 == size
                    && size <= u64::from(self.config.block_bytes)
                    && !matches!(base, Data::Chunked) =>
            {
                match &piece.placed {
                    Some(placed) => NewData::Packed(placed.range),
                    None => NewData::Unchanged,
                }
            }
            (Data::Inline(bytes), _) if !bytes.is_empty() && !self.inline_is_placed(&state) => {
                // Inline bytes cannot be referred to: store them as the oldest piece, then come
                // back here.
                let bytes = bytes.to_vec();
                return self.place_inline(file, state, bytes);
            }
            _ => NewData::Patches(
                ranges
                    .flat_map(|(offset, range)| {
                        // What was appended can come to lie anywhere.
                        chunk_parts(offset, u64::from(range.len)).map(move |part| {
                            let source = Source::Stored { range, skip: part.done as u32 };
                            (part.chunk, Extent { pos: part.pos, len: part.len, source })
                        })
                    })
                    .collect(),
            ),
        };
        state.committing = true;
        drop(state);
        self.commit(file, data, None);
    }

    /// Forgets the places of pieces that may be deleted before a commit refers to them, so that
    /// they are stored again. True if there are any: nearly always none were stored before this
    /// client was cut off.
    fn forget_lost(&self, state: &mut FileState, upto: usize) -> bool {
        if !self.metadata.is_remote() {
            return false;
        }
        let mut any = false;
        for piece in &mut state.inflight[..upto] {
            if piece
                .placed
                .as_ref()
                .is_some_and(|placed| self.metadata.is_lost(placed.range.object))
            {
                (piece.placed, any) = (None, true);
            }
        }
        any
    }

    fn inline_is_placed(&self, state: &FileState) -> bool {
        state.inflight.iter().any(|piece| piece.inline_of == Some(state.inode.data_change))
    }

    fn place_inline(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        mut state: MutexGuard<'_, FileState>,
        bytes: Vec<u8>,
    ) {
        let piece = crate::file::WrittenPiece {
            offset: 0,
            bytes: Arc::new(bytes),
            placed: None,
            storing: true,
            grant: None,
            inline_of: Some(state.inode.data_change),
        };
        let bytes = piece.bytes.clone();
        state.push_oldest(piece);
        drop(state);
        self.store_claimed(file, &bytes);
    }

    /// A connection to a node was made anew.
    pub fn reconnected(&self) {
        self.reconnections.fetch_add(1, Ordering::SeqCst);
    }

    /// Commits. `pin` keeps a new object from being reaped until the node knows of it.
    fn commit(self: &Arc<Self>, file: &Arc<OpenFile>, data: NewData, pin: Option<StoredRange>) {
        let (fs, file) = (self.clone(), file.clone());
        let body = move |part, next| fs.commit_part(&file, part, next);
        repeat((data, pin), body, Box::new(drop));
    }

    /// Sends as much of a commit as one request may carry.
    fn commit_part(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        (data, pin): (NewData, Option<StoredRange>),
        next: Next<(NewData, Option<StoredRange>), ()>,
    ) {
        let mut state = file.lock();
        state.committing = true;
        let Some(flush) = &state.flush else { return };
        let (first, rest) = match data {
            // More extents than one request may carry: the last request brings size and times.
            NewData::Patches(mut patches) if patches.len() > COMMIT_EXTENTS_MAX => {
                let rest = patches.split_off(COMMIT_EXTENTS_MAX);
                (NewData::Patches(patches), Some(NewData::Patches(rest)))
            }
            data => (data, None),
        };
        let reach = match &first {
            NewData::Patches(patches) => {
                patches.iter().map(|(c, e)| c * CHUNK_BYTES + u64::from(e.end())).max()
            }
            _ => None,
        };
        let size = match rest {
            // Nobody else's bytes may come to lie where the rest of what was appended goes.
            Some(_) if state.append_from.is_none() => reach.unwrap_or(0).max(state.inode.size),
            _ => flush.size,
        };
        let (base, upto, mtime) = (flush.base, flush.size, flush.mtime);
        let reconnections = self.reconnections.load(Ordering::SeqCst);
        let commit = Commit {
            inode: self.known.reference(file.ino),
            base,
            data: first,
            size: (size != state.inode.size).then_some(size),
            mtime,
            kill_suid: flush.kill_suid.is_some(),
        };
        // It needs no rights; the writer decides about set-id bits.
        let creds = flush.kill_suid.clone().unwrap_or_else(Creds::root);
        drop(state);
        let (fs, file) = (self.clone(), file.clone());
        kestrel_types::crash::point("client.flush.stored");
        let committed = move |reply: Reply| {
            kestrel_types::crash::point("client.flush.committed");
            // The node may have executed it before the connection, and with a lost session what the
            // node answered, was lost. Then the file is as this commit made it, to the nanosecond,
            // and what was appended must not be appended once more.
            let reconnected = fs.reconnections.load(Ordering::SeqCst) != reconnections;
            let reply = match reply {
                Err(Outcome::Conflict(inode))
                    if reconnected && (inode.size, inode.mtime) == (size, mtime) =>
                {
                    Ok(Answer::Inode(inode))
                }
                reply => reply,
            };
            if let Ok(Answer::Inode(inode)) = &reply {
                fs.known.cached_moved(file.ino, base, inode.data_change);
                fs.whole.moved(file.ino, Some(base), inode.data_change);
            }
            match (reply, rest) {
                (Ok(Answer::Inode(inode)), Some(rest)) => {
                    let mut state = file.lock();
                    let content = inode.data_change;
                    // It changed the content that they change, so none of them has been executed.
                    state.unanswered.clear();
                    state.refresh(*inode);
                    state.append_from = state.append_from.map(|from| from.max(upto));
                    if let Some(flush) = &mut state.flush {
                        flush.base = content;
                    }
                    drop(state);
                    next(LoopStep::Again((rest, pin)));
                }
                (reply, rest) => {
                    fs.committed(&file, reply, rest.is_none(), pin.as_ref());
                    drop(pin);
                    next(LoopStep::End(Ok(())));
                }
            }
        };
        self.submit(Request { creds, op: Op::Commit(commit) }, Box::new(committed));
    }

    /// Takes what a commit has come to: the `last` request of it, or one that was not followed by
    /// the others. `pin` is the object that was stored for it.
    fn committed(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        reply: Reply,
        last: bool,
        pin: Option<&StoredRange>,
    ) {
        match reply {
            Ok(Answer::Inode(inode)) => self.flush_succeeded(file, *inode),
            Ok(other) => self.flush_failed(file, unexpected(&other)),
            Err(Outcome::Conflict(inode)) => {
                let mut state = file.lock();
                state.committing = false;
                state.refresh(*inode);
                let most =
                    if state.append_from.is_some() { APPEND_CONFLICTS_MAX } else { CONFLICTS_MAX };
                let error =
                    FsError::new(libc::EAGAIN, "others keep changing the file; write it again");
                self.try_again(file, state, most, error);
            }
            Err(Outcome::Failed(error)) => {
                let mut state = file.lock();
                if error.errno == libc::EPERM {
                    // Another client made it immutable: no more writes until something shows that
                    // it is not any more.
                    state.inode.flags = state.inode.flags.with(InodeFlags::IMMUTABLE);
                }
                if error.errno == libc::EDQUOT {
                    state.over_quota = Some((self.clock.now(), error.clone()));
                }
                if error.errno == libc::EIO && last {
                    note_unanswered(&mut state);
                }
                let upto = state.flush.as_ref().map_or(0, |flush| flush.upto);
                let pin_lost = pin.is_some_and(|pin| self.metadata.is_lost(pin.range.object));
                if self.forget_lost(&mut state, upto) || pin_lost {
                    // The bytes are still in memory: they are stored again.
                    state.committing = false;
                    return self.try_again(file, state, CONFLICTS_MAX, error);
                }
                drop(state);
                self.flush_failed(file, error);
            }
            Err(_) => self.flush_failed(
                file,
                FsError::new(libc::EIO, "the metadata node could not commit the file"),
            ),
        }
    }

    /// Plans a flush anew after its commit was refused, unless that has happened `most` times.
    fn try_again(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        mut state: MutexGuard<'_, FileState>,
        most: u32,
        error: FsError,
    ) {
        let Some(flush) = &mut state.flush else { return };
        flush.conflicts += 1;
        if flush.conflicts > most {
            drop(state);
            return self.flush_failed(file, error);
        }
        self.plan_flush(file, state);
    }

    fn flush_succeeded(self: &Arc<Self>, file: &Arc<OpenFile>, inode: Inode) {
        self.note_commit();
        let mut state = file.lock();
        let Some(flush) = state.flush.take() else { return };
        let small = state.inflight[..flush.upto]
            .iter()
            .filter(|p| p.bytes.len() < self.config.block_bytes as usize)
            .count();
        state.patches_since_compaction += small as u32;
        state.inflight.drain(..flush.upto);
        let later = state.mtime.is_some_and(|mtime| mtime != flush.mtime)
            || state.kill_suid != flush.kill_suid;
        if state.inflight.is_empty() && state.buffer.is_empty() && !later {
            (state.mtime, state.kill_suid) = (None, None);
        }
        state.over_quota = None;
        state.appended_upto(flush.size);
        // It changed the content that they change, so none of them has been executed.
        state.unanswered.clear();
        state.refresh(inode);
        let waiters = match std::mem::take(&mut state.moved) {
            true => vec![self.after_telling(&mut state, flush.waiters)],
            false => flush.waiters,
        };
        self.finish_flush(file, state, waiters, Ok(()));
        self.compact_if_due(file);
    }

    /// Completes all when the kernel has heard that the content is not where its pages have it.
    fn after_telling(self: &Arc<Self>, state: &mut FileState, waiters: Vec<Done<()>>) -> Done<()> {
        let (ino, content) = (state.inode.ino, state.inode.data_change);
        let outdated = state.outdated(content);
        let fs = self.clone();
        Box::new(move |result| {
            let again = fs.clone();
            let go_on = Box::new(move || {
                again.kernel_has(ino, content);
                finish_all(waiters, &result);
            });
            fs.tell_outdated(ino, outdated, go_on);
        })
    }

    fn flush_failed(self: &Arc<Self>, file: &Arc<OpenFile>, error: FsError) {
        log::warn!("inode {}: a flush failed: {error}", file.ino);
        // The kernel's pages hold what was not stored: the next open must not trust them.
        self.known.cached_as(file.ino, 0);
        self.whole.lost(file.ino);
        let mut state = file.lock();
        let Some(flush) = state.flush.take() else { return };
        self.finish_flush(file, state, flush.waiters, Err(error));
    }

    /// Answers the callers that waited, and goes on with the next flush if a caller waits for it.
    pub(super) fn finish_flush(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        mut state: MutexGuard<'_, FileState>,
        waiters: Vec<Done<()>>,
        result: FsResult<()>,
    ) {
        (state.flushing, state.committing) = (false, false);
        let others = if state.is_dirty() { Vec::new() } else { std::mem::take(&mut state.waiters) };
        // What was stored meanwhile may be what others wait for to leave memory.
        let is_worth_it = result.is_ok() && self.is_worth_a_commit(&state);
        let again = is_worth_it || !state.waiters.is_empty();
        if state.is_dirty() && state.dirty_since.is_none() {
            state.dirty_since = Some(self.clock.now());
        }
        drop(state);
        finish_all(waiters, &result);
        finish_all(others, &Ok(()));
        if again {
            self.flush_next(file);
        }
    }
}

/// Remembers the commit of the flush that runs as one that may have been executed.
fn note_unanswered(state: &mut FileState) {
    let Some(flush) = &state.flush else { return };
    let commit =
        Unanswered { base: flush.base, upto: flush.upto, size: flush.size, mtime: flush.mtime };
    // A flush that is repeated without a write in between makes the same commit.
    if !state.unanswered.contains(&commit) {
        state.unanswered.push(commit);
    }
}

/// Makes a flush, of which no commit is under way, one of the content that is known now. Answers
/// whether a piece is not stored any more.
fn aim(state: &mut FileState) -> bool {
    let unstored = state.place_appended();
    let Some(flush) = &mut state.flush else { return unstored };
    let reach = state.inflight[..flush.upto].iter().map(WrittenPiece::end).max().unwrap_or(0);
    (flush.size, flush.base) = (state.inode.size.max(reach), state.inode.data_change);
    unstored
}
