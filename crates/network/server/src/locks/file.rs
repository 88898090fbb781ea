//! The locks of one kind on one file, and the calls that wait for one.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kestrel_types::lock_ranges::{LockRanges, RangeChange};
use kestrel_types::wire::{LockMode, LockSpan};
use rustc_hash::FxHashMap;

use super::index::{Holder, Index};
use super::{LockOwner, Ticket};

/// A call that waits.
#[derive(Debug, Clone)]
pub struct Wait {
    pub owner: LockOwner,
    pub span: LockSpan,
    /// The call to answer; none while the session's connection is gone.
    pub call: Option<u64>,
}

/// Locks and waits. The owners' ranges are the truth, the index is another view of them.
#[derive(Debug, Default)]
pub struct FileLocks {
    owners: FxHashMap<LockOwner, LockRanges>,
    index: Index,
    /// In order of arrival.
    pub waits: BTreeMap<u64, Wait>,
}

impl FileLocks {
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.waits.is_empty()
    }

    /// What an owner holds.
    pub fn ranges(&self, owner: LockOwner) -> Option<&LockRanges> {
        self.owners.get(&owner)
    }

    /// The first range of another owner that excludes this lock.
    pub fn first_in_the_way(&self, owner: LockOwner, span: &LockSpan) -> Option<Holder> {
        let mut found = None;
        let _ = self.each_in_the_way(owner, span, &mut |held| {
            found = Some(*held);
            ControlFlow::Break(())
        });
        found
    }

    /// All ranges of other owners that exclude this lock.
    pub fn each_in_the_way(
        &self,
        owner: LockOwner,
        span: &LockSpan,
        see: &mut dyn FnMut(&Holder) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.index.in_the_way(owner, (span.start, span.end), span.mode, see)
    }

    /// Holds a range. Answers by how many ranges there are more now.
    pub fn hold(&mut self, owner: LockOwner, span: &LockSpan) -> isize {
        let ranges = self.owners.entry(owner).or_default();
        let before = ranges.len();
        ranges.set(span.start, span.end, span.mode, span.pid, mirror(&mut self.index, owner));
        ranges.len() as isize - before as isize
    }

    /// Holds a range no more. Answers by how many ranges there are more now.
    pub fn give_up(&mut self, owner: LockOwner, start: u64, end: u64) -> isize {
        let Some(ranges) = self.owners.get_mut(&owner) else { return 0 };
        let before = ranges.len();
        ranges.clear(start, end, mirror(&mut self.index, owner));
        let grown = ranges.len() as isize - before as isize;
        if ranges.is_empty() {
            self.owners.remove(&owner);
        }
        grown
    }

    /// The first that waits and need not any more.
    pub fn next_ready(&self, after: Option<u64>) -> Option<u64> {
        let from = after.map_or(0, |number| number + 1);
        let free = |wait: &Wait| self.first_in_the_way(wait.owner, &wait.span).is_none();
        self.waits.range(from..).find(|(_, wait)| free(wait)).map(|(number, _)| *number)
    }

    /// By how many ranges holding this (or nothing there) could make the owner's longer.
    pub fn growth(&self, owner: LockOwner, start: u64, end: u64, mode: Option<LockMode>) -> usize {
        match self.owners.get(&owner) {
            Some(ranges) => ranges.growth(start, end, mode),
            None => usize::from(mode.is_some()),
        }
    }
}

/// Repeats what happens to an owner's ranges in the index.
fn mirror(index: &mut Index, owner: LockOwner) -> impl FnMut(RangeChange) + '_ {
    move |change| match change {
        RangeChange::Gone(start) => index.remove(start, owner),
        RangeChange::New(start, held) => {
            index.insert(Holder { owner, start, end: held.end, mode: held.mode, pid: held.pid });
        }
    }
}

impl Wait {
    /// The call to answer.
    pub fn ticket(&self) -> Option<Ticket> {
        self.call.map(|call| Ticket { session: self.owner.session, call })
    }
}
