//! The locks that processes of this client hold, as the server has granted them.
//!
//! Kept for three purposes: a close asks the server only if its process may hold something of the
//! file; a restarted server is told what was held; and files of which locks were lost with a
//! session fail instead of being used as if they were locked.
//!
//! **Order.** Changes are noted when the server's answers arrive, in the order in which it gave
//! them. What is under way is noted as such before it is sent, since a close that comes meanwhile
//! must not overlook it.
//!
//! **Owners and handles.** The kernel names the owner of a lock by a number: of a process, of an
//! open file description (`F_OFD_SETLK`, `flock(2)`). A process's locks of a file go with any close
//! of the file, which the kernel announces (FLUSH with the owner). Those of a description go with
//! its last close: the kernel says so for `flock(2)` (RELEASE with the owner), but not for
//! `F_OFD_SETLK`. So it is remembered through which handles an owner has locked: what is still held
//! by owners that used no handle but the one that is closed for the last time, belongs to its
//! description.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::ids::InodeId;
use kestrel_types::lock_ranges::{HeldRange, LockRanges};
use kestrel_types::wire::{LockKind, LockMode, LockSpan};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::handover::LockNote;

/// What one owner has of one file.
#[derive(Debug, Default)]
struct Held {
    ranges: LockRanges,
    /// Requests for locks that have no answer yet.
    under_way: u32,
    /// A request failed so that the server may or may not have granted it.
    uncertain: bool,
    /// Numbers of the handles through which it locked.
    handles: Vec<u64>,
}

impl Held {
    fn is_over(&self) -> bool {
        self.ranges.is_empty() && self.under_way == 0 && !self.uncertain
    }
}

type Owners = BTreeMap<(LockKind, u64), Held>;

#[derive(Debug, Default)]
struct State {
    files: FxHashMap<InodeId, Owners>,
    /// Files of which locks were lost, with the number of the loss.
    lost: FxHashMap<InodeId, u64>,
}

/// The table.
#[derive(Debug, Default)]
pub struct HeldLocks {
    state: Mutex<State>,
    /// Losses so far.
    losses: AtomicU64,
}

impl HeldLocks {
    /// A lock is about to be asked for through a handle.
    pub fn begin(&self, span: &LockSpan, handle: u64) {
        let mut state = self.state.lock();
        let owners = state.files.entry(span.ino).or_default();
        let held = owners.entry((span.kind, span.owner)).or_default();
        held.under_way += 1;
        if !held.handles.contains(&handle) {
            held.handles.push(handle);
        }
    }

    /// It was granted.
    pub fn granted(&self, span: &LockSpan) {
        self.with(span.ino, span.kind, span.owner, |held| {
            held.under_way = held.under_way.saturating_sub(1);
            held.ranges.set(span.start, span.end, span.mode, span.pid, |_| {});
        });
    }

    /// It was not granted; if this is not `certain`, it may have been. A refused `flock(2)` has
    /// cost what was held before.
    pub fn refused(&self, span: &LockSpan, certain: bool) {
        self.with(span.ino, span.kind, span.owner, |held| {
            held.under_way = held.under_way.saturating_sub(1);
            held.uncertain |= !certain;
            if span.kind == LockKind::Flock {
                held.ranges = LockRanges::default();
            }
        });
    }

    /// A range was given up.
    pub fn unlocked(&self, ino: InodeId, owner: u64, kind: LockKind, (start, end): (u64, u64)) {
        self.with(ino, kind, owner, |held| held.ranges.clear(start, end, |_| {}));
    }

    /// Everything was given up.
    pub fn released(&self, ino: InodeId, owner: u64, kind: LockKind) {
        self.with(ino, kind, owner, |held| {
            held.ranges = LockRanges::default();
            held.uncertain = false;
        });
    }

    /// Whether an owner may hold something of a file.
    pub fn may_hold(&self, ino: InodeId, owner: u64, kind: LockKind) -> bool {
        let state = self.state.lock();
        state.files.get(&ino).is_some_and(|owners| owners.contains_key(&(kind, owner)))
    }

    /// Whether an owner holds an exclusive lock on a byte of a range.
    pub fn excludes(
        &self,
        ino: InodeId,
        owner: u64,
        kind: LockKind,
        (start, end): (u64, u64),
    ) -> bool {
        let state = self.state.lock();
        let held = state.files.get(&ino).and_then(|owners| owners.get(&(kind, owner)));
        held.is_some_and(|held| {
            held.ranges.overlapping(start, end).any(|(_, held)| held.mode == LockMode::Write)
        })
    }

    /// A handle is gone: tells which owners' locks go with it.
    pub fn handle_gone(&self, ino: InodeId, handle: u64) -> Vec<(LockKind, u64)> {
        let mut state = self.state.lock();
        let Some(owners) = state.files.get_mut(&ino) else { return Vec::new() };
        let mut gone = Vec::new();
        for (owner, held) in owners {
            if let Some(at) = held.handles.iter().position(|known| *known == handle) {
                held.handles.swap_remove(at);
                if held.handles.is_empty() {
                    gone.push(*owner);
                }
            }
        }
        gone
    }

    /// All that is held of such files, to be claimed from a server that has restarted.
    pub fn all(&self, of: &dyn Fn(InodeId) -> bool) -> Vec<LockSpan> {
        let state = self.state.lock();
        let mut all = Vec::new();
        for (ino, owners) in state.files.iter().filter(|(ino, _)| of(**ino)) {
            for ((kind, owner), held) in owners {
                all.extend(held.ranges.iter().map(|(start, range)| LockSpan {
                    ino: *ino,
                    owner: *owner,
                    pid: range.pid,
                    kind: *kind,
                    mode: range.mode,
                    start,
                    end: range.end,
                }));
            }
        }
        all
    }

    /// The server holds nothing of these files for this client any more. Answers which of them had
    /// been locked.
    pub fn lost(&self, inos: &[InodeId]) -> Vec<InodeId> {
        let mut state = self.state.lock();
        inos.iter().copied().filter(|ino| self.lose(&mut state, *ino)).collect()
    }

    /// The server may have given the locks of such files to others, or still hold them for this
    /// client: nobody relies on them any more, but their owners give them up when they close.
    /// Answers which files had been locked.
    pub fn suspect_all(&self, of: &dyn Fn(InodeId) -> bool) -> Vec<InodeId> {
        let mut state = self.state.lock();
        let mut suspected = Vec::new();
        for (ino, owners) in state.files.iter_mut().filter(|(ino, _)| of(**ino)) {
            let mut had = false;
            for held in owners.values_mut().filter(|held| !held.ranges.is_empty()) {
                (held.ranges, held.uncertain, had) = (LockRanges::default(), true, true);
            }
            if had {
                suspected.push(*ino);
            }
        }
        suspected.iter().for_each(|ino| self.note_loss(&mut state, *ino));
        suspected
    }

    /// The server holds nothing of such files for this client any more. Answers which of them had
    /// been locked.
    pub fn lost_all(&self, of: &dyn Fn(InodeId) -> bool) -> Vec<InodeId> {
        let mut state = self.state.lock();
        let inos: Vec<InodeId> = state.files.keys().copied().filter(|ino| of(*ino)).collect();
        inos.into_iter().filter(|ino| self.lose(&mut state, *ino)).collect()
    }

    fn lose(&self, state: &mut State, ino: InodeId) -> bool {
        let Some(owners) = state.files.get_mut(&ino) else { return false };
        let had = owners.values().any(|held| !held.ranges.is_empty());
        owners.retain(|_, held| {
            held.ranges = LockRanges::default();
            held.uncertain = false;
            !held.is_over()
        });
        if owners.is_empty() {
            state.files.remove(&ino);
        }
        if had {
            self.note_loss(state, ino);
        }
        had
    }

    fn note_loss(&self, state: &mut State, ino: InodeId) {
        let loss = self.losses.fetch_add(1, Ordering::AcqRel) + 1;
        state.lost.insert(ino, loss);
    }

    /// How many losses there were: what is opened now is not concerned by them.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Whether locks of a file were lost after there had been `losses`.
    pub fn lost_since(&self, ino: InodeId, losses: u64) -> bool {
        // No loss since the open, as nearly always: no mutex.
        losses != self.losses()
            && self.state.lock().lost.get(&ino).is_some_and(|loss| *loss > losses)
    }

    /// The last handle of a file was closed: what it lost concerns nobody any more.
    pub fn file_closed(&self, ino: InodeId) {
        if self.losses() > 0 {
            self.state.lock().lost.remove(&ino);
        }
    }

    /// All of it, written down, and the files of which locks were lost. No request is under way.
    pub fn notes(&self) -> (Vec<LockNote>, Vec<InodeId>) {
        let state = self.state.lock();
        let mut notes = Vec::new();
        for (ino, owners) in &state.files {
            for ((kind, owner), held) in owners {
                let range = |(start, held): (u64, HeldRange)| {
                    (start, held.end, held.mode == LockMode::Write, held.pid)
                };
                notes.push(LockNote {
                    ino: *ino,
                    flock: *kind == LockKind::Flock,
                    owner: *owner,
                    ranges: held.ranges.iter().map(range).collect(),
                    uncertain: held.uncertain || held.under_way > 0,
                    handles: held.handles.clone(),
                });
            }
        }
        (notes, state.lost.keys().copied().collect())
    }

    /// Takes in what another client has written down.
    pub fn take_notes(&self, notes: &[LockNote], lost: &[InodeId]) {
        let mut state = self.state.lock();
        for note in notes {
            let owners = state.files.entry(note.ino).or_default();
            let held = owners.entry((note.kind(), note.owner)).or_default();
            (held.uncertain, held.handles) = (note.uncertain, note.handles.clone());
            for (start, end, exclusive, pid) in &note.ranges {
                held.ranges.set(*start, *end, LockNote::mode(*exclusive), *pid, |_| {});
            }
        }
        lost.iter().for_each(|ino| self.note_loss(&mut state, *ino));
    }

    fn with(&self, ino: InodeId, kind: LockKind, owner: u64, act: impl FnOnce(&mut Held)) {
        let mut state = self.state.lock();
        let Some(owners) = state.files.get_mut(&ino) else { return };
        let Some(held) = owners.get_mut(&(kind, owner)) else { return };
        act(held);
        if held.is_over() {
            owners.remove(&(kind, owner));
        }
        if owners.is_empty() {
            state.files.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::wire::LOCK_END;

    use super::*;

    fn span(owner: u64, mode: LockMode, start: u64, end: u64) -> LockSpan {
        LockSpan { ino: 7, owner, pid: 1, kind: LockKind::Posix, mode, start, end }
    }

    fn take(table: &HeldLocks, span: &LockSpan, handle: u64) {
        table.begin(span, handle);
        table.granted(span);
    }

    /// A client reclaims the locks that were granted to it and that it has not released.
    #[test]
    fn reclaimed_locks() {
        let table = HeldLocks::default();
        take(&table, &span(1, LockMode::Write, 0, 99), 1);
        take(&table, &span(1, LockMode::Read, 10, 19), 1);
        table.unlocked(7, 1, LockKind::Posix, (50, LOCK_END));
        let mut held: Vec<_> =
            table.all(&|_| true).iter().map(|span| (span.start, span.end, span.mode)).collect();
        held.sort_unstable_by_key(|range| range.0);
        assert_eq!(
            held,
            [(0, 9, LockMode::Write), (10, 19, LockMode::Read), (20, 49, LockMode::Write)]
        );
        assert!(table.excludes(7, 1, LockKind::Posix, (19, 20)));
        assert!(!table.excludes(7, 1, LockKind::Posix, (10, 19)));
        table.released(7, 1, LockKind::Posix);
        assert!(table.all(&|_| true).is_empty() && !table.may_hold(7, 1, LockKind::Posix));
    }

    /// A close releases also the locks with an answer that is under way or uncertain.
    #[test]
    fn close_with_locks_in_flight() {
        let table = HeldLocks::default();
        let wanted = span(1, LockMode::Write, 0, 9);
        table.begin(&wanted, 1);
        assert!(table.may_hold(7, 1, LockKind::Posix));
        table.refused(&wanted, false);
        assert!(table.may_hold(7, 1, LockKind::Posix));
        table.released(7, 1, LockKind::Posix);
        assert!(!table.may_hold(7, 1, LockKind::Posix));
        table.begin(&wanted, 1);
        table.refused(&wanted, true);
        assert!(!table.may_hold(7, 1, LockKind::Posix));
    }

    /// The locks of an open file description end with its handle, and those of other owners stay.
    #[test]
    fn locks_of_closed_description() {
        let table = HeldLocks::default();
        take(&table, &span(1, LockMode::Read, 0, 9), 1);
        take(&table, &span(2, LockMode::Read, 0, 9), 1);
        take(&table, &span(2, LockMode::Read, 20, 29), 5);
        assert_eq!(table.handle_gone(7, 1), [(LockKind::Posix, 1)]);
        assert_eq!(table.handle_gone(7, 1), []);
        assert_eq!(table.handle_gone(7, 5), [(LockKind::Posix, 2)]);
    }

    /// A client neither relies on suspected locks nor reclaims them, but releases them.
    #[test]
    fn suspected_locks() {
        let table = HeldLocks::default();
        let before = table.losses();
        take(&table, &span(1, LockMode::Write, 0, 9), 1);
        assert!(table.suspect_all(&|ino| ino == 8).is_empty());
        assert_eq!(table.suspect_all(&|_| true), [7]);
        assert!(table.suspect_all(&|_| true).is_empty(), "once");
        assert!(table.lost_since(7, before) && table.all(&|_| true).is_empty());
        assert!(table.may_hold(7, 1, LockKind::Posix), "the server may still have it");
        assert!(table.lost_all(&|_| true).is_empty() && !table.may_hold(7, 1, LockKind::Posix));
    }

    /// A client that takes a mount over holds the locks that the one before held.
    #[test]
    fn locks_in_notes() {
        let table = HeldLocks::default();
        take(&table, &span(1, LockMode::Write, 0, 99), 4);
        take(&table, &span(1, LockMode::Read, 10, 19), 5);
        let (notes, lost) = table.notes();
        let again = HeldLocks::default();
        again.take_notes(&notes, &lost);
        assert_eq!(again.notes().0[0].ranges, notes[0].ranges);
        assert_eq!(again.all(&|_| true).len(), 3);
        assert_eq!(again.handle_gone(7, 4), []);
        assert_eq!(again.handle_gone(7, 5), [(LockKind::Posix, 1)]);
        table.lost_all(&|_| true);
        let (notes, lost) = table.notes();
        again.take_notes(&notes, &lost);
        assert!(again.lost_since(7, 0) && !again.lost_since(7, again.losses()));
    }

    #[test]
    fn a_loss_concerns_the_handles_that_were_open_then() {
        let table = HeldLocks::default();
        let before = table.losses();
        assert!(table.lost(&[7]).is_empty());
        assert!(!table.lost_since(7, before), "nothing was held");
        take(&table, &span(1, LockMode::Read, 0, 9), 1);
        assert!(
            table.lost_all(&|ino| ino == 8).is_empty() && table.all(&|ino| ino == 8).is_empty()
        );
        assert_eq!(table.lost_all(&|_| true), [7]);
        assert!(table.lost_since(7, before) && !table.lost_since(8, before));
        assert!(!table.lost_since(7, table.losses()));
        assert!(table.all(&|_| true).is_empty());
        table.file_closed(7);
        assert!(!table.lost_since(7, before));
    }
}
