//! Requests as the tests of single rules make them.

use kestrel_types::name::InodeRef;
use kestrel_types::range::Range;
use kestrel_types::request::{Commit, NewData, Op, OpenFlags, RenameFlags};

use super::{Fixture, at, config, name};

/// Opened for reading and writing.
pub const WRITE: OpenFlags = OpenFlags {
    read: true,
    write: true,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

/// A node with two workers.
pub fn fixture() -> Fixture {
    Fixture::new(config(2))
}

/// Creates a file at a path from the root.
pub fn create(path: &str) -> Op {
    Op::Create { place: at(1, path), mode: 0o644, flags: WRITE, exclusive: true }
}

/// Makes a directory at a path from the root.
pub fn mkdir(path: &str) -> Op {
    Op::MkDir(at(1, path), 0o755)
}

/// Looks a path up from the root.
pub fn lookup(path: &str) -> Op {
    Op::Lookup(at(1, path))
}

/// Renames by paths from the root.
pub fn rename(from: &str, to: &str) -> Op {
    Op::Rename(at(1, from), at(1, to), RenameFlags::default())
}

/// A file that was seen under a name in the root.
pub fn seen(ino: u64, path: &str) -> InodeRef {
    InodeRef { ino, seen: Some((1, name(path))) }
}

/// Commits content of a file in the root, made on the content of `base`.
pub fn commit(ino: u64, path: &str, base: u64, data: NewData, size: u64) -> Op {
    Op::Commit(Commit {
        inode: seen(ino, path),
        base,
        data,
        size: Some(size),
        mtime: 5,
        kill_suid: false,
    })
}

/// Bytes at the start of an object.
pub fn range(object: u64, len: u32) -> Range {
    Range { object, offset: 0, len }
}
