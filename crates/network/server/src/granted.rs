//! What a confined session was given: inode numbers that it may name because answers within its
//! subtree named them.
//!
//! A directory counts as granted as long as no directory of the volume changes: then it is followed
//! up to the subtree's root again, by what the node has in memory ([`Tree`]). So a directory that
//! is moved out of the subtree is out of reach when the rename is answered, however the session
//! spends its time. A file counts by a place (directory and name) within the subtree, as long as it
//! is there: a rename, and the removal of that name, end what the number gives. What is forgotten
//! for want of room is looked up again.

use std::hash::Hash;

use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::name::Name;
use kestrel_types::snapshot::SnapshotId;
use rustc_hash::FxHashMap;

/// Most inode numbers of each kind that a session is remembered to have been granted; half of them
/// may be forgotten then.
const GIVEN_MAX: usize = 1 << 16;

/// Most directories between one and the root: a path has no more.
pub const DEPTH_MAX: usize = 2048;

/// The directories above a directory, by what the node has in memory at this moment.
pub trait Tree {
    /// How many directories have changed so far; none while the node may miss changes. What
    /// [`Tree::above`] answers between two calls with the same count was true in between.
    fn changes(&self) -> Option<u64>;

    /// The directory above one, if the node has that in memory.
    fn above(&self, dir: InodeId) -> Option<InodeId>;

    /// Whether the node finds a file under this name at this moment, without asking another node
    /// and without waiting for a transaction. False if only [`Op::Lookup`] can tell.
    ///
    /// [`Op::Lookup`]: kestrel_types::request::Op::Lookup
    fn is_named(&self, file: InodeId, dir: InodeId, name: &Name) -> bool;

    /// Where the node has on record that a renamed file went.
    fn moved_to(&self, file: InodeId) -> Option<Place>;
}

/// A directory and a name in it.
pub type Place = (InodeId, Name);

/// See the module's header.
#[derive(Debug, Default)]
pub struct GrantedInodes {
    /// Directories that are within the subtree, after so many changes of directories.
    dirs: TwoGenerations<InodeId, ()>,
    changes: u64,
    /// Files, and other things that are no directories, and where each was named last.
    files: TwoGenerations<InodeId, Place>,
    /// Directories that the session was allowed to list, at a snapshot or (0) at present.
    pub listed: TwoGenerations<(SnapshotId, InodeId), ()>,
}

impl GrantedInodes {
    /// Whether a directory is `root` or below it, as far as it can be found without a request to
    /// the node.
    #[inline]
    pub fn has_dir(&mut self, dir: InodeId, root: InodeId, tree: &dyn Tree) -> bool {
        if dir == root {
            return true;
        }
        let Some(changes) = tree.changes() else { return false };
        self.knows_dir(dir, changes) || self.climb(dir, root, changes, tree)
    }

    fn knows_dir(&self, dir: InodeId, changes: u64) -> bool {
        self.changes == changes && self.dirs.get(dir).is_some()
    }

    fn climb(&mut self, dir: InodeId, root: InodeId, changes: u64, tree: &dyn Tree) -> bool {
        let (mut at, mut passed) = (dir, Vec::new());
        while at != root && !self.knows_dir(at, changes) {
            if at == ROOT || passed.len() >= DEPTH_MAX {
                return false;
            }
            passed.push(at);
            match tree.above(at) {
                Some(above) => at = above,
                None => return false,
            }
        }
        self.add_dirs(passed, Some(changes), tree)
    }

    /// Adds directories that were found to be within the subtree since the directories had changed
    /// so often. False if they have changed since.
    pub fn add_dirs(
        &mut self,
        dirs: impl IntoIterator<Item = InodeId>,
        since: Option<u64>,
        tree: &dyn Tree,
    ) -> bool {
        let Some(changes) = since.filter(|since| tree.changes() == Some(*since)) else {
            return false;
        };
        if self.changes != changes {
            (self.changes, self.dirs) = (changes, TwoGenerations::default());
        }
        dirs.into_iter().for_each(|dir| self.dirs.add(dir, ()));
        true
    }

    /// Whether a file is in a place within the subtree, as far as is known without asking the node:
    /// `seen`, or where the session was told that it is.
    #[inline]
    pub fn has_file(
        &mut self,
        file: InodeId,
        seen: Option<&Place>,
        root: InodeId,
        tree: &dyn Tree,
    ) -> bool {
        let Some((dir, name)) = seen.cloned().or_else(|| self.place_of(file)) else { return false };
        self.has_dir(dir, root, tree) && tree.is_named(file, dir, &name)
    }

    /// Where the session was told that a file is.
    pub fn place_of(&self, file: InodeId) -> Option<Place> {
        self.files.get(file)
    }

    /// Adds a file that was named in a directory.
    pub fn add_file(&mut self, file: InodeId, dir: InodeId, name: Name) {
        self.files.add(file, (dir, name));
    }
}

/// A map of inode numbers that forgets those that were named longest ago.
#[derive(Debug)]
pub struct TwoGenerations<K, T> {
    young: FxHashMap<K, T>,
    old: FxHashMap<K, T>,
}

impl<K, T> Default for TwoGenerations<K, T> {
    fn default() -> Self {
        Self { young: FxHashMap::default(), old: FxHashMap::default() }
    }
}

impl<K: Eq + Hash, T: Clone> TwoGenerations<K, T> {
    /// The value of this one. Reading it does not make it younger.
    #[inline]
    pub fn get(&self, key: K) -> Option<T> {
        self.young.get(&key).or_else(|| self.old.get(&key)).cloned()
    }

    /// Adds one.
    pub fn add(&mut self, key: K, what: T) {
        if self.young.len() >= GIVEN_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, what);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::*;

    /// Directories and what is above each, some of which the node has in memory.
    #[derive(Default)]
    struct Dirs {
        above: RefCell<BTreeMap<InodeId, InodeId>>,
        changes: Cell<u64>,
        leased: Cell<bool>,
        /// The only file, and where it is.
        file: RefCell<Option<(InodeId, Place)>>,
    }

    fn name() -> Name {
        Name::new(b"f").unwrap()
    }

    impl Dirs {
        fn of(above: &[(InodeId, InodeId)]) -> Self {
            let dirs = Self::default();
            dirs.above.borrow_mut().extend(above.iter().copied());
            dirs.leased.set(true);
            dirs
        }

        fn move_to(&self, dir: InodeId, above: InodeId) {
            self.above.borrow_mut().insert(dir, above);
            self.changes.set(self.changes.get() + 1);
        }
    }

    impl Tree for Dirs {
        fn changes(&self) -> Option<u64> {
            self.leased.get().then(|| self.changes.get())
        }

        fn above(&self, dir: InodeId) -> Option<InodeId> {
            self.above.borrow().get(&dir).copied()
        }

        fn is_named(&self, file: InodeId, dir: InodeId, name: &Name) -> bool {
            self.file.borrow().as_ref() == Some(&(file, (dir, name.clone())))
        }

        fn moved_to(&self, _file: InodeId) -> Option<Place> {
            None
        }
    }

    /// The newest half of what fits is kept, and never more than fits.
    #[test]
    fn bound_of_granted_numbers() {
        let mut generations = TwoGenerations::default();
        for ino in 0..10 * GIVEN_MAX as InodeId {
            generations.add(ino, ());
            assert!(generations.young.len() + generations.old.len() <= GIVEN_MAX);
            assert!(generations.get(ino.saturating_sub(GIVEN_MAX as InodeId / 2 - 1)).is_some());
        }
        assert!(generations.get(0).is_none());
    }

    /// A directory that is moved out is not granted any more at once, with all below it and the
    /// files named there, and is again when it comes back.
    #[test]
    fn moved_directories_are_out_of_reach() {
        let dirs = Dirs::of(&[(20, ROOT), (30, 20), (31, 30), (40, ROOT)]);
        let mut given = GrantedInodes::default();
        *dirs.file.borrow_mut() = Some((99, (31, name())));
        given.add_file(99, 31, name());
        assert!(
            given.has_dir(20, 20, &dirs)
                && given.has_dir(31, 20, &dirs)
                && given.has_file(99, None, 20, &dirs)
        );
        assert!(
            !given.has_dir(40, 20, &dirs)
                && !given.has_dir(ROOT, 20, &dirs)
                && !given.has_dir(50, 20, &dirs)
        );
        dirs.move_to(30, 40);
        assert!(
            !given.has_dir(30, 20, &dirs)
                && !given.has_dir(31, 20, &dirs)
                && !given.has_file(99, None, 20, &dirs)
        );
        dirs.move_to(30, 20);
        assert!(given.has_dir(31, 20, &dirs) && given.has_file(99, None, 20, &dirs));
        // What was found before a change is not believed after it.
        let since = dirs.changes();
        dirs.move_to(30, 40);
        assert!(!given.add_dirs([30], since, &dirs) && !given.has_dir(30, 20, &dirs));
    }

    /// A file is granted while it is where it was named, or where the request says.
    #[test]
    fn moved_files_are_out_of_reach() {
        let dirs = Dirs::of(&[(20, ROOT), (30, 20), (40, ROOT)]);
        let mut given = GrantedInodes::default();
        given.add_file(99, 30, name());
        for (at, by_itself, by_place) in [(30, true, true), (20, false, true), (40, false, false)] {
            *dirs.file.borrow_mut() = Some((99, (at, name())));
            assert_eq!(given.has_file(99, None, 20, &dirs), by_itself, "{at}");
            assert_eq!(given.has_file(99, Some(&(at, name())), 20, &dirs), by_place, "{at}");
        }
    }

    /// Without a lease nothing is granted but the subtree's root.
    #[test]
    fn nothing_granted_without_lease() {
        let dirs = Dirs::of(&[(20, ROOT), (30, 20)]);
        let mut given = GrantedInodes::default();
        assert!(given.has_dir(30, 20, &dirs));
        dirs.leased.set(false);
        assert!(!given.has_dir(30, 20, &dirs) && given.has_dir(20, 20, &dirs));
    }

    /// A cycle, which no volume has, ends the climb.
    #[test]
    fn climbs_are_bounded() {
        let dirs = Dirs::of(&[(30, 31), (31, 30)]);
        assert!(!GrantedInodes::default().has_dir(30, 20, &dirs));
    }
}
