//! What a confined session was given: node ids that it may name because answers within its subtree named them.
//!
//! Files stay known until they are forgotten for want of room. Directories are known by having been followed up to the subtree's root,
//! and for a while only, so that one that was moved out of it is out of reach soon. What is not known is looked for again.

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::InodeId;
use rustc_hash::FxHashSet;

/// Node ids of each kind that a session is known to have been given; half of them may be forgotten then.
const GIVEN_MAX: usize = 1 << 16;

/// A directory is known to be within the subtree for so long, and at most twice as long.
pub const DIRS_TIME: Nanos = 5 * SECOND;

/// See the module's header.
#[derive(Debug, Default)]
pub struct Given {
    /// Directories that are within the subtree.
    pub dirs: Known,
    /// Files, and other things that are no directories.
    pub files: Known,
    /// Directories that the session was allowed to list.
    pub listed: Known,
    turned: Nanos,
}

impl Given {
    /// Time has passed.
    #[inline]
    pub fn look(&mut self, now: Nanos) {
        if now.saturating_sub(self.turned) >= DIRS_TIME {
            self.turned = now;
            self.dirs.turn();
        }
    }
}

/// Node ids, of which those are forgotten that were named longest ago.
#[derive(Debug, Default)]
pub struct Known {
    young: FxHashSet<InodeId>,
    old: FxHashSet<InodeId>,
}

impl Known {
    /// Whether this one is among them. That it was asked for does not make it younger.
    #[inline]
    pub fn has(&self, ino: InodeId) -> bool {
        self.young.contains(&ino) || self.old.contains(&ino)
    }

    /// Adds one.
    pub fn add(&mut self, ino: InodeId) {
        if self.young.len() >= GIVEN_MAX / 2 {
            self.turn();
        }
        self.young.insert(ino);
    }

    fn turn(&mut self) {
        self.old = std::mem::take(&mut self.young);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_bound_and_the_newest_stay() {
        let mut known = Known::default();
        for ino in 0..10 * GIVEN_MAX as InodeId {
            known.add(ino);
            assert!(known.young.len() + known.old.len() <= GIVEN_MAX);
            assert!(known.has(ino.saturating_sub(GIVEN_MAX as InodeId / 2 - 1)));
        }
        assert!(!known.has(0));
    }

    #[test]
    fn directories_are_known_for_a_while() {
        let mut given = Given::default();
        given.dirs.add(7);
        given.files.add(8);
        given.look(DIRS_TIME);
        assert!(given.dirs.has(7));
        given.look(2 * DIRS_TIME - 1);
        assert!(given.dirs.has(7));
        given.look(2 * DIRS_TIME);
        assert!(!given.dirs.has(7) && given.files.has(8));
    }
}
