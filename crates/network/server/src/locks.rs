//! The lock manager: the byte-range and BSD locks of a volume's files, their holders, and the calls
//! that wait for one.
//!
//! | file | |
//! | --- | --- |
//! | `index` | all ranges of one file, of all owners: which of them conflict with a lock |
//! | `file` | the locks of one kind on one file, and the calls that wait for one |
//! | `deadlock` | circles of owners that wait for each other's byte ranges |
//!
//! Pure: no threads, no clock, no I/O, and the same calls give the same answers in the same order.
//! Its owner calls it under one mutex and answers the calls that it returns as having waited long
//! enough.
//!
//! **Semantics** are those of Linux on one machine, with an owner being (session, what the client's
//! kernel calls the owner). Byte ranges: `fcntl(2)`; BSD locks: `flock(2)`. The two do not see each
//! other.
//!
//! - A request that no *held* lock of another owner excludes is granted at once. When locks go,
//!   waiting calls are looked at in the order in which they came, and each that nothing held
//!   excludes any more gets its lock. A call that waits for an exclusive lock does not keep readers
//!   out, as in Linux: related processes take shared locks one inside the other (`flock -s f make`,
//!   which runs `flock -s f …`), and would wait for ever if the request of another process could
//!   come between.
//! - `EDEADLK`: a wait for a byte range is refused if it would close a circle of owners that wait
//!   for each other, over all files and sessions. Locks of an open file description are byte ranges
//!   like others here: FUSE does not tell them apart. (Linux has no such check for them. Circles
//!   through several threads of one owner may go unnoticed, as there.)
//! - A BSD lock that is converted and cannot be at once is lost first, then waited for, or lost:
//!   `flock(2)`.
//! - Everything is idempotent: a request that is repeated because its answer was lost changes
//!   nothing.
//!
//! **Sessions.** When a connection breaks, the session's waits keep their place in the queue
//! without a connection for the answer ([`Locks::orphan_waits`]), until the same request comes
//! again over the next connection. When a session ends, all it holds and waits for goes. After a
//! restart, clients reclaim their locks ([`Locks::reclaim`]).
//!
//! **Bounds** are in [`LockLimits`]; beyond them requests get `ENOLCK`. Giving up what an owner has
//! as a whole always works.

mod deadlock;
mod file;
mod index;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::wire::{LOCK_END, LockKind, LockMode, LockSpan};
use rustc_hash::FxHashMap;

use self::file::{FileLocks, Wait};

/// Bounds of a lock manager. A range takes about 150 bytes of memory, a wait about 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockLimits {
    /// Most ranges held, all sessions together; waits that are granted may exceed it.
    pub ranges_max: usize,
    /// Most ranges held by one session; waits that are granted may exceed it.
    pub session_ranges_max: usize,
    /// Most waits, all sessions together.
    pub waits_max: usize,
    /// Most waits of one session.
    pub session_waits_max: usize,
}

impl Default for LockLimits {
    fn default() -> Self {
        Self {
            ranges_max: 1 << 20,
            session_ranges_max: 1 << 18,
            waits_max: 1 << 17,
            session_waits_max: 1 << 14,
        }
    }
}

/// The owner that holds or wants a lock. Locks of one owner never conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner {
    /// The session.
    pub session: u64,
    /// The owner within it.
    pub id: u64,
}

/// A call that waited and has got its lock: it is to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The session.
    pub session: u64,
    /// The call, as it was given to [`Locks::set`].
    pub call: u64,
}

/// How a request for a lock went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// The lock is held.
    Granted,
    /// The call waits: it is answered when it is woken or cancelled.
    Waiting,
}

/// What there is, for `kestrel status` and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Ranges held; a BSD lock counts as one.
    pub ranges: usize,
    /// Requests that wait.
    pub waits: usize,
}

/// A file and a kind of lock.
type FileKey = (InodeId, LockKind);

/// What belongs to one session.
#[derive(Debug, Default)]
struct SessionLocks {
    /// Ranges by file and owner; no zeros.
    held: BTreeMap<(FileKey, u64), usize>,
    ranges: usize,
    /// Waits by call.
    calls: BTreeMap<u64, (FileKey, u64)>,
    /// Waits that have lost their connection.
    orphans: BTreeSet<(FileKey, u64)>,
}

impl SessionLocks {
    fn waits(&self) -> usize {
        self.calls.len() + self.orphans.len()
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waits() == 0
    }
}

/// The locks of a volume.
#[derive(Debug, Default)]
pub struct Locks {
    limits: LockLimits,
    files: FxHashMap<FileKey, FileLocks>,
    sessions: FxHashMap<u64, SessionLocks>,
    /// Waits for byte ranges, by owner: the edges of the graph in which circles are looked for.
    waiting: FxHashMap<LockOwner, Vec<(InodeId, u64)>>,
    counts: LockCounts,
    /// Number of the next wait; they order the waiting calls.
    next_wait: u64,
}

impl Locks {
    /// Nothing is held.
    pub fn new(limits: LockLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// What there is in all.
    pub fn counts(&self) -> LockCounts {
        self.counts
    }

    /// The files of which there are locks, or calls that wait for some; one twice if there are
    /// locks of both kinds.
    pub fn files(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.files.keys().map(|(ino, _)| *ino)
    }

    /// What a session has.
    pub fn session_counts(&self, session: u64) -> LockCounts {
        self.sessions.get(&session).map_or(LockCounts::default(), |held| LockCounts {
            ranges: held.ranges,
            waits: held.waits(),
        })
    }

    /// A lock that is in the way of this one (`F_GETLK`), the first by offset. Its `pid` is 0 if
    /// another session holds it.
    pub fn test(&self, session: u64, span: &LockSpan) -> Option<LockSpan> {
        let owner = LockOwner { session, id: span.owner };
        let held = self.files.get(&(span.ino, span.kind))?.first_in_the_way(owner, span)?;
        Some(LockSpan {
            owner: held.owner.id,
            pid: if held.owner.session == session { held.pid } else { 0 },
            mode: held.mode,
            start: held.start,
            end: held.end,
            ..*span
        })
    }

    /// Takes a lock, now or, with a call to answer then, when it is free. Calls that this wakes are
    /// added to `woken`.
    ///
    /// # Errors
    /// `EAGAIN`: another holds it and this was not to wait. `EDEADLK`. `ENOLCK`: a bound. `EINVAL`:
    /// no range, or the call waits for something else.
    pub fn set(
        &mut self,
        session: u64,
        span: &LockSpan,
        wait: Option<u64>,
        woken: &mut Vec<Ticket>,
    ) -> FsResult<Set> {
        check_range(span.kind, span.start, span.end)?;
        let owner = LockOwner { session, id: span.owner };
        let key = (span.ino, span.kind);
        if let Some(call) = wait
            && self.waits_already(owner, span, call)?
        {
            return Ok(Set::Waiting);
        }
        let (mut held, mut free, mut growth) = (false, true, 1);
        if let Some(file) = self.files.get(&key) {
            held = file
                .ranges(owner)
                .is_some_and(|ranges| ranges.covers(span.start, span.end, span.mode));
            free = file.first_in_the_way(owner, span).is_none();
            growth = file.growth(owner, span.start, span.end, Some(span.mode));
        }
        if held {
            return Ok(Set::Granted);
        }
        self.check_room(session, growth)?;
        if free {
            self.hold(owner, key, span, woken);
            return Ok(Set::Granted);
        }
        if span.kind == LockKind::Flock {
            self.give_up(owner, key, span.start, span.end, woken);
        }
        let Some(call) = wait else {
            return Err(FsError::new(libc::EAGAIN, "another process holds a lock on the range"));
        };
        if span.kind == LockKind::Posix && self.would_deadlock(owner, span) {
            return Err(FsError::new(libc::EDEADLK, "the holder of the lock waits for the caller"));
        }
        self.enqueue(owner, key, span, call)?;
        Ok(Set::Waiting)
    }

    /// Takes a lock that a client held before the node was restarted.
    ///
    /// # Errors
    /// `EAGAIN` if another has claimed it: the client has lost it. `ENOLCK`, `EINVAL` as
    /// [`Locks::set`].
    pub fn reclaim(&mut self, session: u64, span: &LockSpan) -> FsResult<()> {
        // No call waits before all clients have reclaimed, so none is woken.
        self.set(session, span, None, &mut Vec::new()).map(|_| ())
    }

    /// Gives up what an owner holds of a range. Calls that this wakes are added to `woken`.
    ///
    /// # Errors
    /// `ENOLCK` if a hole in the middle would leave a range more than the bound. `EINVAL`.
    pub fn unlock(
        &mut self,
        owner: LockOwner,
        ino: InodeId,
        kind: LockKind,
        (start, end): (u64, u64),
        woken: &mut Vec<Ticket>,
    ) -> FsResult<()> {
        check_range(kind, start, end)?;
        let growth =
            self.files.get(&(ino, kind)).map_or(0, |file| file.growth(owner, start, end, None));
        self.check_room(owner.session, growth)?;
        self.give_up(owner, (ino, kind), start, end, woken);
        Ok(())
    }

    /// Gives up all that an owner holds of a file: the owner closed it. Its waits go on, as a
    /// thread of it may wait while another closes.
    pub fn release_owner(
        &mut self,
        owner: LockOwner,
        ino: InodeId,
        kind: LockKind,
        woken: &mut Vec<Ticket>,
    ) {
        self.give_up(owner, (ino, kind), 0, LOCK_END, woken);
    }

    /// Ends the wait of a call. True if it waited: it is to be answered `EINTR`. False if it has
    /// been answered.
    pub fn cancel(&mut self, session: u64, call: u64) -> bool {
        let waits = self.sessions.get(&session).and_then(|held| held.calls.get(&call));
        let Some((key, number)) = waits.copied() else { return false };
        self.remove_wait(key, number);
        true
    }

    /// The session's connection is gone: there is none for answers. Its waits keep their places in
    /// the queue until the same requests come again; one that gets its lock meanwhile holds it, as
    /// the request will then find.
    pub fn orphan_waits(&mut self, session: u64) {
        let Some(held) = self.sessions.get_mut(&session) else { return };
        for (key, number) in std::mem::take(&mut held.calls).into_values() {
            held.orphans.insert((key, number));
            if let Some(wait) =
                self.files.get_mut(&key).and_then(|file| file.waits.get_mut(&number))
            {
                wait.call = None;
            }
        }
    }

    /// Ends a session: all it holds and waits for goes. Calls of others that this wakes are added
    /// to `woken`; its own get no answer.
    pub fn end_session(&mut self, session: u64, woken: &mut Vec<Ticket>) {
        let Some(held) = self.sessions.get(&session) else { return };
        let waits: Vec<_> = held.calls.values().chain(&held.orphans).copied().collect();
        let owners: Vec<_> = held.held.keys().copied().collect();
        for (key, number) in waits {
            self.remove_wait(key, number);
        }
        // All goes before any call is woken: else a later request could pass one that all of it
        // kept out.
        for (key, id) in &owners {
            self.let_go(LockOwner { session, id: *id }, *key, 0, LOCK_END);
        }
        let mut files: Vec<_> = owners.into_iter().map(|(key, _)| key).collect();
        files.dedup();
        for key in files {
            self.wake(key, woken);
            self.forget_empty(key);
        }
        debug_assert!(!self.sessions.contains_key(&session));
    }

    /// Holds a range that nothing excludes, and wakes the calls that a downgrade lets in.
    fn hold(&mut self, owner: LockOwner, key: FileKey, span: &LockSpan, woken: &mut Vec<Ticket>) {
        if self.hold_one(owner, key, span) {
            self.wake(key, woken);
        }
    }

    /// Holds a range that nothing excludes. True if others may get more than before: an exclusive
    /// lock became a shared one.
    fn hold_one(&mut self, owner: LockOwner, key: FileKey, span: &LockSpan) -> bool {
        let file = self.files.entry(key).or_default();
        let weakened = span.mode == LockMode::Read
            && file.ranges(owner).is_some_and(|ranges| {
                ranges
                    .overlapping(span.start, span.end)
                    .any(|(_, held)| held.mode == LockMode::Write)
            });
        let grown = file.hold(owner, span);
        self.count(owner, key, grown);
        weakened
    }

    /// Gives up a range, and wakes the calls that this lets in.
    fn give_up(
        &mut self,
        owner: LockOwner,
        key: FileKey,
        start: u64,
        end: u64,
        woken: &mut Vec<Ticket>,
    ) {
        if self.let_go(owner, key, start, end) {
            self.wake(key, woken);
            self.forget_empty(key);
        }
    }

    /// Gives up a range and wakes no call. False if nothing of it was held.
    fn let_go(&mut self, owner: LockOwner, key: FileKey, start: u64, end: u64) -> bool {
        let Some(file) = self.files.get_mut(&key) else { return false };
        if file.ranges(owner).is_none_or(|ranges| ranges.overlapping(start, end).next().is_none()) {
            return false;
        }
        let grown = file.give_up(owner, start, end);
        self.count(owner, key, grown);
        true
    }

    /// Looks at the calls that wait for locks of a file, in the order in which they came, and
    /// grants what is free.
    fn wake(&mut self, key: FileKey, woken: &mut Vec<Ticket>) {
        let mut after = None;
        while let Some(number) = self.files.get(&key).and_then(|file| file.next_ready(after)) {
            let Some(wait) = self.remove_wait(key, number) else { return };
            woken.extend(wait.ticket());
            // An owner that gave up an exclusive lock with this may let in calls that were passed
            // over.
            after = if self.hold_one(wait.owner, key, &wait.span) { None } else { Some(number) };
        }
    }

    fn enqueue(
        &mut self,
        owner: LockOwner,
        key: FileKey,
        span: &LockSpan,
        call: u64,
    ) -> FsResult<()> {
        let held = self.sessions.entry(owner.session).or_default();
        if held.waits() >= self.limits.session_waits_max
            || self.counts.waits >= self.limits.waits_max
        {
            if held.is_empty() {
                self.sessions.remove(&owner.session);
            }
            return Err(FsError::new(libc::ENOLCK, "too many processes wait for locks"));
        }
        let number = self.next_wait;
        self.next_wait += 1;
        held.calls.insert(call, (key, number));
        self.counts.waits += 1;
        if span.kind == LockKind::Posix {
            self.waiting.entry(owner).or_default().push((span.ino, number));
        }
        let wait = Wait { owner, span: *span, call: Some(call) };
        self.files.entry(key).or_default().waits.insert(number, wait);
        Ok(())
    }

    fn remove_wait(&mut self, key: FileKey, number: u64) -> Option<Wait> {
        let wait = self.files.get_mut(&key)?.waits.remove(&number)?;
        self.counts.waits -= 1;
        if let Some(held) = self.sessions.get_mut(&wait.owner.session) {
            match wait.call {
                Some(call) => held.calls.remove(&call).is_some(),
                None => held.orphans.remove(&(key, number)),
            };
            if held.is_empty() {
                self.sessions.remove(&wait.owner.session);
            }
        }
        if let Some(waits) = self.waiting.get_mut(&wait.owner) {
            waits.retain(|(_, other)| *other != number);
            if waits.is_empty() {
                self.waiting.remove(&wait.owner);
            }
        }
        self.forget_empty(key);
        Some(wait)
    }

    /// Whether a request waits already: it is repeated, perhaps over a new connection.
    fn waits_already(&mut self, owner: LockOwner, span: &LockSpan, call: u64) -> FsResult<bool> {
        let Some(held) = self.sessions.get_mut(&owner.session) else { return Ok(false) };
        if let Some((key, number)) = held.calls.get(&call) {
            let same = self
                .files
                .get(key)
                .and_then(|file| file.waits.get(number))
                .map(|wait| wait.span == *span);
            return match same {
                Some(true) => Ok(true),
                _ => Err(FsError::new(libc::EINVAL, "a call with this id waits for another lock")),
            };
        }
        let key = (span.ino, span.kind);
        for (_, number) in held.orphans.range((key, 0)..=(key, u64::MAX)) {
            let wait = self.files.get_mut(&key).and_then(|file| file.waits.get_mut(number));
            if let Some(wait) = wait
                && wait.span == *span
            {
                wait.call = Some(call);
                let number = *number;
                held.calls.insert(call, (key, number));
                held.orphans.remove(&(key, number));
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn check_room(&self, session: u64, growth: usize) -> FsResult<()> {
        let held = self.sessions.get(&session).map_or(0, |held| held.ranges);
        if growth > 0
            && (held + growth > self.limits.session_ranges_max
                || self.counts.ranges + growth > self.limits.ranges_max)
        {
            return Err(FsError::new(libc::ENOLCK, "too many locks are held"));
        }
        Ok(())
    }

    /// An owner holds so many ranges more, or less, of a file.
    fn count(&mut self, owner: LockOwner, key: FileKey, grown: isize) {
        if grown == 0 {
            return;
        }
        self.counts.ranges = self.counts.ranges.saturating_add_signed(grown);
        let held = self.sessions.entry(owner.session).or_default();
        held.ranges = held.ranges.saturating_add_signed(grown);
        let count = held.held.entry((key, owner.id)).or_default();
        *count = count.saturating_add_signed(grown);
        if *count == 0 {
            held.held.remove(&(key, owner.id));
        }
        if held.is_empty() {
            self.sessions.remove(&owner.session);
        }
    }

    fn forget_empty(&mut self, key: FileKey) {
        if self.files.get(&key).is_some_and(FileLocks::is_empty) {
            self.files.remove(&key);
        }
    }
}

fn check_range(kind: LockKind, start: u64, end: u64) -> FsResult<()> {
    if start > end || end > LOCK_END {
        return Err(FsError::new(
            libc::EINVAL,
            "a lock must end at or after its start, and within the largest offset",
        ));
    }
    if kind == LockKind::Flock && (start, end) != (0, LOCK_END) {
        return Err(FsError::new(libc::EINVAL, "flock locks whole files"));
    }
    Ok(())
}
