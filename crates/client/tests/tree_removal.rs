//! Removal of trees: what goes, what stays, and what is told of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::file_system;
use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::tree_removal::{RemovedCount, TakenTree, TreeRemoval};
use kestrel_client::fs::{Fs, into_inode, plain};
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{InodeFlags, Kind};
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Answer, Creds, Op, RenameFlags};
use kestrel_types::trash::TRASH;

/// A file system, and requests of the superuser by path.
struct Fixture(Arc<Fs>);

impl Fixture {
    fn new() -> Self {
        Self(file_system(Arc::new(MemoryStore::new())).0)
    }

    fn ask(&self, op: Op) -> FsResult<Answer> {
        plain(self.0.replies(&Creds::root(), vec![op]).pop().unwrap())
    }

    fn mkdir(&self, path: &str) -> InodeId {
        into_inode(self.ask(Op::MkDir(at(path), 0o755)).unwrap()).unwrap().ino
    }

    fn file(&self, path: &str) {
        let op = Op::MkNod { place: at(path), kind: Kind::File, mode: 0o644, rdev: 0 };
        self.ask(op).unwrap();
    }

    fn is_there(&self, path: &str) -> bool {
        self.ask(Op::Lookup(at(path))).is_ok()
    }

    fn rename(&self, from: &str, to: &str) {
        self.ask(Op::Rename(at(from), at(to), RenameFlags::default())).unwrap();
    }

    /// Sets the flags of a directory.
    fn set_flags(&self, path: &str, flags: InodeFlags) {
        let inode = into_inode(self.ask(Op::Lookup(at(path))).unwrap()).unwrap();
        self.ask(Op::SetFlags(InodeRef::by_id(inode.ino), flags)).unwrap();
    }

    /// Removes a tree to the end, so many names a step.
    fn remove(&self, tree: &str, names: usize) -> TreeRemoval {
        let root = into_inode(self.ask(Op::Lookup(at(tree))).unwrap()).unwrap().ino;
        let mut removal = TreeRemoval::new(Creds::root(), at(tree), root);
        self.finish(&mut removal, names);
        removal
    }

    fn finish(&self, removal: &mut TreeRemoval, names: usize) {
        for _ in 0..100_000 {
            if removal.is_done() {
                return;
            }
            removal.step(&self.0, names);
        }
        panic!("a removal that does not end: {:?}", removal.removed());
    }

    /// Waits for the background work.
    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "waited for a minute: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn at(path: &str) -> PathRef {
    PathRef::from_path(ROOT, path.as_bytes()).unwrap()
}

/// Makes directories of `width` directories each, down to `depth`, with as many files in each.
fn fill(f: &Fixture, top: &str, (depth, width): (usize, usize)) -> RemovedCount {
    f.mkdir(top);
    let mut made = RemovedCount { files: 0, dirs: 1 };
    for number in 0..width {
        f.file(&format!("{top}/f{number}"));
        made.files += 1;
        if depth > 0 {
            let below = fill(f, &format!("{top}/d{number}"), (depth - 1, width));
            made.files += below.files;
            made.dirs += below.dirs;
        }
    }
    made
}

/// A tree goes whole, and is counted, however few names a step takes.
#[test]
fn whole_trees() {
    for names in [1, 7, 4096] {
        let f = Fixture::new();
        let made = fill(&f, "tree", (3, 4));
        fill(&f, "other", (1, 2));
        let removal = f.remove("tree", names);
        assert_eq!((removal.removed(), removal.failed()), (made, None), "{names}");
        assert!(!f.is_there("tree") && f.is_there("other/d1/f1"));
        f.0.shutdown().unwrap();
    }
}

/// A directory that has been moved out of the tree since it was listed stays, with all it has.
#[test]
fn directory_moved_out() {
    let f = Fixture::new();
    let root = f.mkdir("tree");
    f.mkdir("tree/moved");
    f.file("tree/moved/kept");
    f.file("tree/f");
    let mut removal = TreeRemoval::new(Creds::root(), at("tree"), root);
    removal.step(&f.0, 4096);
    assert!(f.is_there("tree/moved/kept") && !f.is_there("tree/f"));
    f.rename("tree/moved", "outside");
    f.mkdir("tree/moved");
    f.file("tree/moved/another");
    f.finish(&mut removal, 4096);
    assert_eq!(removal.failed(), None);
    assert!(f.is_there("outside/kept") && !f.is_there("tree"));
    f.0.shutdown().unwrap();
}

/// What is made in a directory that has been listed goes, too.
#[test]
fn names_made_meanwhile() {
    let f = Fixture::new();
    let root = f.mkdir("tree");
    f.mkdir("tree/a");
    let mut removal = TreeRemoval::new(Creds::root(), at("tree"), root);
    removal.step(&f.0, 4096);
    f.file("tree/late");
    f.mkdir("tree/later");
    f.file("tree/later/late");
    f.finish(&mut removal, 4096);
    assert_eq!((removal.failed(), f.is_there("tree")), (None, false));
    f.0.shutdown().unwrap();
}

/// What cannot go is told with its path, and all else of the tree goes.
#[test]
fn what_cannot_go() {
    let f = Fixture::new();
    fill(&f, "tree", (2, 2));
    f.set_flags("tree/d1", InodeFlags::IMMUTABLE);
    let removal = f.remove("tree", 4096);
    let failed = removal.failed().unwrap();
    assert_eq!(failed.error.errno, libc::EPERM);
    assert!(failed.path.starts_with(b"d1"), "{}", failed.path.escape_ascii());
    assert!(f.is_there("tree/d1/f0") && !f.is_there("tree/d0") && !f.is_there("tree/f0"));
    f.set_flags("tree/d1", InodeFlags::default());
    assert_eq!(f.remove("tree", 4096).failed(), None);
    assert!(!f.is_there("tree"));
    f.0.shutdown().unwrap();
}

/// Without permission nothing goes, but an empty directory that cannot be read does.
#[test]
fn permissions_of_the_caller() {
    let f = Fixture::new();
    let root = f.mkdir("tree");
    f.ask(Op::MkDir(at("tree/closed"), 0o700)).unwrap();
    f.file("tree/closed/f");
    let user = Creds { uid: 1000, gid: 1000, groups: Some([].into()) };
    let mut removal = TreeRemoval::new(user, at("tree"), root);
    f.finish(&mut removal, 4096);
    let failed = removal.failed().unwrap();
    assert_eq!((failed.path.as_slice(), failed.error.errno), (&b"closed"[..], libc::EACCES));
    assert!(f.is_there("tree/closed/f"));
    f.0.shutdown().unwrap();
}

/// A tree that is taken has no name from then on; what was below it goes in the background, and so
/// do the directories that were made for it.
#[test]
fn taken_trees() {
    let f = Fixture::new();
    fill(&f, "tree", (4, 5));
    let tree = into_inode(f.ask(Op::Lookup(at("tree"))).unwrap()).unwrap().ino;
    assert_eq!(f.0.take_tree(&at("tree"), tree), Ok(TakenTree::Background));
    assert!(!f.is_there("tree"));
    let again = f.0.take_tree(&at("tree"), tree).unwrap_err();
    assert_eq!(again.errno, libc::ENOENT);
    f.until("the tree is gone", || f.0.left_of_tree(tree).unwrap().is_none());
    f.until("/.trash is gone", || !f.is_there(".trash"));
    f.0.shutdown().unwrap();
}

/// The directory for removed trees goes whenever it is empty, and no removal fails by that.
#[test]
fn trees_one_after_the_other() {
    let f = Fixture::new();
    for number in 0..500 {
        let name = format!("tree{number}");
        let tree = f.mkdir(&name);
        assert_eq!(f.0.take_tree(&at(&name), tree), Ok(TakenTree::Background), "{number}");
        if number % 3 == 0 {
            std::thread::sleep(Duration::from_micros(number * 2));
        }
    }
    f.until("/.trash is gone", || !f.is_there(".trash"));
    f.0.shutdown().unwrap();
}

/// Another directory that has the name meanwhile gets it back.
#[test]
fn another_tree_of_the_name() {
    let f = Fixture::new();
    let tree = f.mkdir("tree");
    f.rename("tree", "renamed");
    f.mkdir("tree");
    f.file("tree/kept");
    assert_eq!(f.0.take_tree(&at("tree"), tree).unwrap_err().errno, libc::ESTALE);
    assert!(f.is_there("tree/kept") && f.is_there("renamed"));
    f.0.shutdown().unwrap();
}

/// Where `/.trash` is not root's alone, the tree stays where it is, to be removed there.
#[test]
fn trash_of_another_user() {
    let f = Fixture::new();
    f.ask(Op::MkDir(PathRef::from_path(ROOT, TRASH).unwrap(), 0o755)).unwrap();
    let tree = f.mkdir("tree");
    assert!(matches!(f.0.take_tree(&at("tree"), tree), Ok(TakenTree::InPlace(_))));
    assert!(f.is_there("tree"));
    f.0.shutdown().unwrap();
}
