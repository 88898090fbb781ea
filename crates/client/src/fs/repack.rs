//! Compaction of a volume: what files still refer to in sparse objects is stored again, together,
//! and chunks in many pieces are folded (`docs/design/data.md`, section 5: "a pack is rewritten
//! when little is left in it").
//!
//! **Safe beside everything else.** What a walk over the metadata finds is only a guess. Live bytes
//! are read (and verified), stored again, and each reference is moved by [`Op::Compact`], which the
//! node carries out only if the file still refers to exactly those bytes in exactly that place: a
//! file that was written, cut, renamed over or removed meanwhile is left as it is. A clone made
//! meanwhile keeps the old bytes referred to. New objects are pinned until their references are
//! committed, old ones go through the deletion schedule with its grace period like any other, so
//! readers that planned with the old place find it there, and those that come later ask again
//! (`Fs::relearn`).
//!
//! **Sharing stays.** Bytes that several files refer to (clones) are stored once and all references
//! moved to them.
//!
//! **Crash.** Between storing and committing: objects that nothing refers to, which `gc` finds.
//! After: done.
//!
//! **Of a volume that other processes serve** a client does the same with a copy of its metadata,
//! one round each: what the copy says is the same guess, references are moved by the same operation
//! wherever their file's records are, and the new objects are numbered for this client's session,
//! so that no node deletes them before they are referred to.
//!
//! **Bounds.** [`BATCH_BYTES`] in memory, twice while they are stored; [`ROUND_OBJECTS`] objects a
//! round.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use kestrel_admin::fragmented::{self, FragmentedObject, FragmentedReport, RangeUse, User, Users};
use kestrel_blockstore::object::MEMBER_BYTES;
use kestrel_blockstore::{ErrorKind, Payload, StoredRange};
use kestrel_engine::cancellable::CancellableScan;
use kestrel_engine::{Engine, EngineError};
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::{Extent, Source};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Data;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::range::{Range, stored_len};
use kestrel_types::request::{Answer, Op, Outcome, Reply};

use super::{Caller, Fs, plain};

/// Bytes stored again at a time.
const BATCH_BYTES: u64 = 16 << 20;

/// Sparse objects dealt with in one round.
const ROUND_OBJECTS: usize = 4096;

/// Live parts of a range closer than this are stored as one, bytes: a range of its own costs about
/// as much.
const GAP_BYTES: u32 = 4096;

/// An object is rewritten if what is alive of it takes less than this part of it, headers included,
/// percent.
const WORTH_PERCENT: u64 = 75;

/// Threads that read live bytes: on a remote store what takes long is the way.
const READERS: usize = 8;

/// What to compact, and how.
pub struct CompactOptions<'a> {
    /// The metadata to look at, if other processes serve the volume: its own without.
    pub rows: Option<&'a dyn Engine>,
    /// Only files at or below these paths (`/` between names), and sparse objects that they refer
    /// to; all without.
    pub paths: Option<&'a [Vec<u8>]>,
    /// Objects last written to less than this ago are left alone.
    pub grace: Nanos,
    /// Only tell what there is to do.
    pub dry_run: bool,
    /// Whether what was found is worth the work.
    pub is_worth: &'a (dyn Fn(&FragmentedReport) -> bool + Sync),
    /// Asked often, with the bytes stored since it was asked last; may sleep. False ends the work.
    pub go_on: &'a (dyn Fn(u64) -> bool + Sync),
}

/// What a compaction found and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Sparse objects found.
    pub sparse_objects: u64,
    /// Bytes in them that nothing refers to.
    pub unused_bytes: u64,
    /// Chunks in many pieces found.
    pub deep_chunks: u64,
    /// Bytes stored again.
    pub stored_bytes: u64,
    /// References moved to them.
    pub moved: u64,
    /// References that were not what had been seen any more: left alone.
    pub changed: u64,
    /// References that could not be moved, and chunks that could not be folded: the log says why.
    pub failed: u64,
    /// Windows of chunks folded.
    pub folded: u64,
    /// There is more to do, on a newer copy of the metadata.
    pub unfinished: bool,
}

/// A reference to move.
pub(super) struct Mover {
    inode: InodeRef,
    chunk: u64,
    old: Extent,
    skip: u32,
}

/// A live part of a stored range, and the files that refer to it.
pub(super) struct Piece {
    range: Range,
    from: u32,
    to: u32,
    movers: Vec<Mover>,
}

impl Piece {
    fn len(&self) -> u32 {
        self.to - self.from
    }

    /// What a reference to this part becomes when the part is stored at `fresh`.
    fn moved(&self, mover: &Mover, fresh: Range) -> Extent {
        Extent {
            source: Source::Stored { range: fresh, skip: mover.skip - self.from },
            ..mover.old
        }
    }
}

impl Fs {
    /// Compacts. Runs on the caller's thread, beside everything else; one at a time.
    ///
    /// # Errors
    /// `EBUSY` if a compaction runs already, `EINTR` if it was told to end, and what keeps it from
    /// reading the metadata or listing the store. Single files that cannot be rewritten are
    /// counted.
    pub fn compact_volume(
        self: &Arc<Self>,
        options: &CompactOptions<'_>,
        tell: &mut dyn FnMut(&'static str, u64),
    ) -> FsResult<Compacted> {
        let _alone = self.background.compacting.try_lock().ok_or(FsError::new(
            libc::EBUSY,
            "a compaction of this volume runs already: wait for it",
        ))?;
        let mut done = Compacted::default();
        loop {
            let before = done.moved;
            let full = self.compact_round(options, &mut done, tell)?;
            // Folding and paths take one round; what could not be moved must not be tried for ever.
            if !full || options.dry_run || done.moved == before {
                return Ok(done);
            }
            if options.rows.is_some() {
                return Ok(Compacted { unfinished: true, ..done });
            }
        }
    }

    /// The rows that a walk looks at: those given, else this process's own; `otherwise` if it has
    /// none.
    pub(super) fn rows_or_own<'a>(
        &'a self,
        given: Option<&'a dyn Engine>,
        otherwise: &'static str,
    ) -> FsResult<&'a dyn Engine> {
        let own = || self.node().map(|node| &**node.engine());
        given.or_else(own).ok_or(FsError::new(libc::EOPNOTSUPP, otherwise))
    }

    /// True if there are more sparse objects than a round deals with.
    fn compact_round(
        self: &Arc<Self>,
        options: &CompactOptions<'_>,
        done: &mut Compacted,
        tell: &mut dyn FnMut(&'static str, u64),
    ) -> FsResult<bool> {
        let go_on = || {
            if (options.go_on)(0) {
                Ok(())
            } else {
                Err(EngineError::Refused("the compaction was ended".into()))
            }
        };
        let why = "the volume is served by another process, which is the one to compact it";
        let rows = self.rows_or_own(options.rows, why)?;
        let engine = CancellableScan::new(rows, &go_on);
        let is_open = |object| self.is_open_object(object);
        tell("looking for sparse objects", 0);
        let mut found = match options.paths {
            Some(paths) => fragmented::objects_below(&engine, paths)
                .map_err(|why| FsError::because(libc::EIO, why.to_string()))
                .and_then(|objects| {
                    fragmented::find_among(&engine, &*self.store, &objects, &is_open)
                        .map_err(|why| FsError::because(libc::EIO, why.to_string()))
                })?,
            None => {
                let limit = if options.dry_run { usize::MAX } else { ROUND_OBJECTS };
                let looking = fragmented::Options {
                    now: self.clock.now(),
                    grace: options.grace,
                    is_open: &is_open,
                    limit,
                };
                fragmented::find(&engine, &*self.store, &looking)
                    .map_err(|why| FsError::because(libc::EIO, why.to_string()))?
            }
        };
        // A snapshot needs the old objects for as long as it stays: storing again what is in them
        // would take space and free none.
        let node = self.node().or_else(|| self.member().map(|member| member.node()));
        if node.is_some_and(|node| node.has_snapshots()) {
            log::debug!("sparse objects are not rewritten while the volume has snapshots");
            (found.objects, found.unused_bytes) = (Vec::new(), 0);
        }
        if !(options.is_worth)(&found) {
            return Ok(false);
        }
        let objects: Vec<u64> = found.objects.iter().map(|sparse| sparse.object).collect();
        tell("looking for files that refer to them", objects.len() as u64);
        let users = match options.paths {
            // Those above and beside the paths too: an object goes only when nobody refers to it.
            Some(paths) => {
                let below = fragmented::users_below(&engine, paths, &[], true);
                let mut users =
                    below.map_err(|why| FsError::because(libc::EIO, why.to_string()))?;
                if !objects.is_empty() {
                    let all = fragmented::users(&engine, &objects, false);
                    for (ino, user) in
                        all.map_err(|why| FsError::because(libc::EIO, why.to_string()))?
                    {
                        let deep = users.remove(&ino).map(|known| known.deep).unwrap_or_default();
                        users.insert(ino, User { deep, ..user });
                    }
                }
                users
            }
            None => fragmented::users(&engine, &objects, true)
                .map_err(|why| FsError::because(libc::EIO, why.to_string()))?,
        };
        done.deep_chunks += users.values().map(|user| user.deep.len() as u64).sum::<u64>();
        let (deep, pieces) = plan(users);
        let pieces = worthwhile(pieces, &found.objects, done);
        if options.dry_run {
            return Ok(false);
        }
        self.repack(pieces, options, done, tell)?;
        self.fold(&deep, options, done, tell)?;
        Ok(objects.len() == ROUND_OBJECTS)
    }

    /// Stores live parts again, as many at a time as make a pack, and moves their references.
    pub(super) fn repack(
        self: &Arc<Self>,
        pieces: Vec<Piece>,
        options: &CompactOptions<'_>,
        done: &mut Compacted,
        tell: &mut dyn FnMut(&'static str, u64),
    ) -> FsResult<()> {
        let mut rest = pieces.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let within = |piece: &&Piece| {
                bytes += u64::from(piece.len());
                bytes <= BATCH_BYTES
            };
            let count = rest.iter().take_while(within).count().max(1);
            let (batch, later) = rest.split_at(count);
            rest = later;
            let stored_before = done.stored_bytes;
            self.repack_batch(batch, done)?;
            tell("rewriting bytes", done.stored_bytes);
            if !(options.go_on)(done.stored_bytes - stored_before) {
                return Err(FsError::new(
                    libc::EINTR,
                    "the compaction was ended; what it did stays done",
                ));
            }
        }
        Ok(())
    }

    fn repack_batch(self: &Arc<Self>, batch: &[Piece], done: &mut Compacted) -> FsResult<()> {
        let placed = self.store_again(batch)?;
        kestrel_types::crash::point("client.repack.stored");
        let (send, receive) = mpsc::channel::<(usize, usize, Reply)>();
        let mut asked = 0;
        for (at, (piece, placed)) in batch.iter().zip(&placed).enumerate() {
            let Some(placed) = placed else {
                done.failed += piece.movers.len() as u64;
                continue;
            };
            done.stored_bytes += u64::from(piece.len());
            for (which, mover) in piece.movers.iter().enumerate() {
                let new = vec![piece.moved(mover, placed.range)];
                let (inode, chunk, old) = (mover.inode.clone(), mover.chunk, vec![mover.old]);
                let send = send.clone();
                asked += 1;
                self.request(Caller::ROOT, Op::Compact { inode, chunk, old, new }, move |reply| {
                    let _ = send.send((at, which, reply));
                });
            }
        }
        drop(send);
        for (at, which, reply) in receive.iter().take(asked) {
            let (piece, Some(placed)) = (&batch[at], &placed[at]) else { continue };
            let mover = &piece.movers[which];
            match reply {
                Ok(Answer::Done) => {
                    done.moved += 1;
                    self.moved(mover, placed.range);
                }
                // Changed, or gone.
                Err(Outcome::Conflict(_)) => done.changed += 1,
                Err(Outcome::Failed(error)) if error.errno == libc::ESTALE => done.changed += 1,
                other => {
                    done.failed += 1;
                    if let Err(error) = plain(other) {
                        log::warn!(
                            "inode {}: moving its bytes to a fuller object: {error}",
                            mover.inode.ino
                        );
                    }
                }
            }
        }
        kestrel_types::crash::point("client.repack.committed");
        Self::count(&self.counters.repacked_ranges, placed.iter().flatten().count() as u64);
        let bytes: u64 = batch
            .iter()
            .zip(&placed)
            .filter(|(_, p)| p.is_some())
            .map(|(p, _)| u64::from(p.len()))
            .sum();
        Self::count(&self.counters.repacked_bytes, bytes);
        // Only now may the new objects be judged by their references.
        drop(placed);
        Ok(())
    }

    /// Reads and stores; `None` for what cannot be read.
    ///
    /// # Errors
    /// If the store cannot take it: then nothing more is tried.
    fn store_again(self: &Arc<Self>, batch: &[Piece]) -> FsResult<Vec<Option<StoredRange>>> {
        let read = self.read_pieces(batch);
        let dir_of = |piece: &Piece| Some(piece.movers.first()?.inode.seen.as_ref()?.0);
        let options = self.put_options(batch.iter().filter_map(dir_of).collect());
        let (send, receive) = mpsc::channel();
        let mut waiting = 0;
        for (at, bytes) in read {
            let Some(ino) = batch[at].movers.first().map(|mover| mover.inode.ino) else { continue };
            let send = send.clone();
            waiting += 1;
            let told = move |placed| {
                let _ = send.send((at, placed));
            };
            let options = dir_of(&batch[at]).and_then(|dir| options.get(&dir).copied());
            let payload = Payload::from(bytes);
            self.packer.store_with(payload, ino, options.unwrap_or_default(), Box::new(told));
        }
        drop(send);
        let mut all: Vec<Option<StoredRange>> = batch.iter().map(|_| None).collect();
        let mut failure = None;
        for (at, placed) in receive.iter().take(waiting) {
            match placed {
                Ok(placed) => all[at] = Some(placed),
                Err(error) => failure = Some(crate::file::data_error(&error)),
            }
        }
        failure.map_or(Ok(all), Err)
    }

    fn read_pieces(&self, batch: &[Piece]) -> Vec<(usize, Vec<u8>)> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut read = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(piece) = batch.get(at) else { return read };
                let mut bytes = vec![0; piece.len() as usize];
                match self.reader.read(piece.range, piece.from, &mut bytes) {
                    Ok(()) => read.push((at, bytes)),
                    Err(error) if error.kind() == ErrorKind::Archived => {
                        log::debug!("object {}: not rewritten: {error}", piece.range.object)
                    }
                    // Gone, if all files have that referred to it; else reading the file fails as
                    // well, and `fsck --data` names it.
                    Err(error) => {
                        log::warn!("object {}: not rewritten: {error}", piece.range.object)
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let readers: Vec<_> =
                (0..READERS.min(batch.len())).map(|_| scope.spawn(work)).collect();
            // What a reader that panicked held is not rewritten.
            readers.into_iter().flat_map(|reader| reader.join().unwrap_or_default()).collect()
        })
    }

    /// Tells an open file where its bytes are now. One that is being opened at this moment learns
    /// it when it reads.
    fn moved(&self, mover: &Mover, fresh: Range) {
        let Some(file) = self.files.get(mover.inode.ino) else { return };
        let mut state = file.lock();
        state.chunks.remove(mover.chunk);
        if let (Data::Packed { range, .. }, Source::Stored { range: old, .. }) =
            (&mut state.inode.data, mover.old.source)
            && *range == old
        {
            *range = fresh;
        }
    }

    fn fold(
        self: &Arc<Self>,
        deep: &[(InodeRef, u64)],
        options: &CompactOptions<'_>,
        done: &mut Compacted,
        tell: &mut dyn FnMut(&'static str, u64),
    ) -> FsResult<()> {
        for (inode, chunk) in deep {
            match self.fold_chunk(inode, *chunk) {
                Ok((folded, all)) => {
                    done.folded += folded;
                    done.changed += u64::from(!all);
                }
                Err(error) if error.errno == libc::ESTALE => done.changed += 1,
                Err(error) if error.errno == libc::ENOSPC => return Err(error),
                Err(error) => {
                    done.failed += 1;
                    log::warn!("inode {}: folding chunk {chunk}: {error}", inode.ino);
                }
            }
            tell("folding chunks", done.folded);
            if !(options.go_on)(BATCH_BYTES / 4) {
                return Err(FsError::new(
                    libc::EINTR,
                    "the compaction was ended; what it did stays done",
                ));
            }
        }
        Ok(())
    }
}

/// Chunks to fold, and the live parts of the ranges referred to, by object and place.
pub(super) fn plan(users: Users) -> (Vec<(InodeRef, u64)>, Vec<Piece>) {
    let mut deep = Vec::new();
    let mut ranges: BTreeMap<(u64, u32, u32), Vec<Mover>> = BTreeMap::new();
    for (ino, user) in users {
        let inode = reference(ino, &user);
        deep.extend(user.deep.iter().map(|chunk| (inode.clone(), *chunk)));
        for RangeUse { chunk, extent } in user.uses {
            // Folding stores the whole window again: what it would move is moved twice, but rightly
            // so.
            if let Source::Stored { range, skip } = extent.source {
                let mover = Mover { inode: inode.clone(), chunk, old: extent, skip };
                ranges.entry((range.object, range.offset, range.len)).or_default().push(mover);
            }
        }
    }
    let mut pieces = Vec::new();
    for ((object, offset, len), mut movers) in ranges {
        movers.sort_by_key(|mover| mover.skip);
        let range = Range { object, offset, len };
        let mut piece: Option<Piece> = None;
        for mover in movers {
            let (from, to) = (mover.skip, mover.skip + mover.old.len);
            if piece.as_ref().is_some_and(|piece| from > piece.to.saturating_add(GAP_BYTES)) {
                pieces.extend(piece.take());
            }
            let piece = piece.get_or_insert(Piece { range, from, to, movers: Vec::new() });
            piece.to = piece.to.max(to);
            piece.movers.push(mover);
        }
        pieces.extend(piece);
    }
    (deep, pieces)
}

/// Leaves out objects that would hardly be smaller: many tiny files have headers and little else.
/// Counts the others.
fn worthwhile(
    pieces: Vec<Piece>,
    objects: &[FragmentedObject],
    done: &mut Compacted,
) -> Vec<Piece> {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for piece in &pieces {
        let stored = u64::from(stored_len(piece.len())) + MEMBER_BYTES as u64;
        *sizes.entry(piece.range.object).or_default() += stored;
    }
    sizes.retain(|object, fresh| {
        let Ok(index) = objects.binary_search_by_key(object, |sparse| sparse.object) else {
            return false;
        };
        let sparse = objects[index];
        let gains = *fresh * 100 < sparse.size * WORTH_PERCENT;
        if gains {
            done.sparse_objects += 1;
            done.unused_bytes += sparse.unused();
        }
        gains
    });
    pieces.into_iter().filter(|piece| sizes.contains_key(&piece.range.object)).collect()
}

fn reference(ino: InodeId, user: &User) -> InodeRef {
    let place = user.place.as_ref();
    InodeRef { ino, seen: place.and_then(|(dir, name)| Some((*dir, Name::new(name).ok()?))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uses: &[(u32, u32, u32)]) -> User {
        let range = |offset| Range { object: 7, offset, len: 100_000 };
        let stored = |(offset, skip, len): &(u32, u32, u32)| RangeUse {
            chunk: 0,
            extent: Extent {
                pos: 0,
                len: *len,
                source: Source::Stored { range: range(*offset), skip: *skip },
            },
        };
        User { uses: uses.iter().map(stored).collect(), ..User::default() }
    }

    /// Repacking stores a shared extent once, and does not store a dead one.
    #[test]
    fn repacking_of_shared_and_dead_extents() {
        let users = Users::from([
            (2, user(&[(0, 0, 100), (0, 50_000, 1000)])),
            (3, user(&[(0, 50, 100), (200_000, 10, 10)])),
        ]);
        let (deep, pieces) = plan(users);
        assert!(deep.is_empty());
        let seen: Vec<_> = pieces
            .iter()
            .map(|piece| (piece.range.offset, piece.from, piece.to, piece.movers.len()))
            .collect();
        assert_eq!(seen, [(0, 0, 150, 2), (0, 50_000, 51_000, 1), (200_000, 10, 20, 1)]);
        let fresh = Range { object: 9, offset: 80, len: 150 };
        let moved = pieces[0].moved(&pieces[0].movers[1], fresh);
        assert_eq!(moved.source, Source::Stored { range: fresh, skip: 50 });
        assert_eq!(moved.len, 100);
    }
}
