//! Circles of owners that wait for each other's byte ranges.
//!
//! The graph is not kept but walked: an owner waits for the holders of what excludes the range it
//! wants, and that is found in the file's index. A circle can only be closed by a new wait, so it
//! is enough to look when one begins. Costs nothing while no call waits; else in the order of the
//! locks in the way of those that wait, each owner once.

use std::ops::ControlFlow;

use kestrel_types::wire::{LockKind, LockSpan};
use rustc_hash::FxHashSet;

use super::{LockOwner, Locks};

impl Locks {
    /// Whether the wait of `owner` for `span` would close a circle.
    pub(super) fn would_deadlock(&self, owner: LockOwner, span: &LockSpan) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let mut seen = FxHashSet::default();
        let mut to_visit = vec![(owner, *span)];
        while let Some((waiter, span)) = to_visit.pop() {
            let Some(file) = self.files.get(&(span.ino, LockKind::Posix)) else { continue };
            let circle = file.each_in_the_way(waiter, &span, &mut |held| {
                if held.owner == owner {
                    return ControlFlow::Break(());
                }
                if let Some(waits) = self.waiting.get(&held.owner)
                    && seen.insert(held.owner)
                {
                    for (ino, number) in waits {
                        let file = self.files.get(&(*ino, LockKind::Posix));
                        if let Some(wait) = file.and_then(|file| file.waits.get(number)) {
                            to_visit.push((held.owner, wait.span));
                        }
                    }
                }
                ControlFlow::Continue(())
            });
            if circle.is_break() {
                return true;
            }
        }
        false
    }
}
