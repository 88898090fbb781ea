//! Rules of Accessed: what a read that a client tells of does to the access time, and that it does
//! nothing else.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::rules::{create, fixture, lookup, mkdir, seen};
use common::{Fixture, at, user};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::inode::{Inode, InodeFlags};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Accessed, Answer, Op, SetAttr, SetTime};

const DAY: Nanos = 86_400 * SECOND;

fn accessed(inode: InodeRef, at: Nanos, relative: bool) -> Op {
    Op::Accessed(inode, Accessed { at, relative })
}

/// Tells of a read of what is at a path of the root; how it is after that.
fn after(f: &Fixture, path: &str, at: Nanos, relative: bool) -> Inode {
    let ino = f.inode(lookup(path)).ino;
    assert_eq!(
        f.call_as(&user(1234, 1234, &[]), accessed(seen(ino, path), at, relative)).unwrap(),
        Answer::Done
    );
    f.inode(lookup(path))
}

/// The access time of files, directories and links moves forward to the read, at most to the
/// present; nothing else that is shown changes. The client that tells of it needs no permission.
#[test]
fn reads_move_the_access_time_forward() {
    let f = fixture();
    f.inode(create("f"));
    f.inode(mkdir("d"));
    f.inode(Op::Symlink(at(1, "s"), b"t"[..].into()));
    f.clock.advance(100 * SECOND);
    let now = 1_100 * SECOND;
    for path in ["f", "d", "s"] {
        let before = f.inode(lookup(path));
        let read = after(&f, path, now - 5, false);
        let same = Inode { atime: now - 5, change: read.change, ..before.clone() };
        assert!(read == same && read.change > before.change, "{read:?}");
        for earlier in [now - 6, now - 5, 0, i64::MIN] {
            assert_eq!(after(&f, path, earlier, false), read, "nothing changes");
        }
        assert_eq!(after(&f, path, now + DAY, false).atime, now, "not beyond the present");
    }
    f.check();
}

/// With the rule of relatime only what is due counts, whatever a client believes.
#[test]
fn reads_that_are_due() {
    let f = fixture();
    f.inode(create("f"));
    f.inode(mkdir("d"));
    let mut now = 1_000 * SECOND;
    let mut pass = |time: Nanos| {
        f.clock.advance(time);
        now += time;
        now
    };
    for path in ["f", "d"] {
        let first = pass(SECOND);
        assert_eq!(after(&f, path, first, true).atime, first, "as old as its last change");
        let second = pass(SECOND);
        assert_eq!(after(&f, path, second, true).atime, first, "not due");
        let ino = f.inode(lookup(path)).ino;
        f.inode(Op::SetAttr(seen(ino, path), SetAttr { mode: Some(0o700), ..SetAttr::default() }));
        let third = pass(SECOND);
        assert_eq!(after(&f, path, third, true).atime, third, "changed since");
        let fourth = pass(DAY - SECOND);
        assert_eq!(after(&f, path, fourth, true).atime, third);
        let fifth = pass(SECOND);
        assert_eq!(after(&f, path, fifth, true).atime, fifth, "a day old");
    }
    let last = f.inode(lookup("d")).atime;
    pass(SECOND);
    f.inode(create("d/new"));
    let read = pass(SECOND);
    assert_eq!(after(&f, "d", read, true).atime, read, "a new name since {last}");
    f.check();
}

/// Nothing of what is immutable or has no access times moves; what is gone is said to be gone.
#[test]
fn reads_of_what_keeps_no_time() {
    let f = fixture();
    let ino = f.inode(create("f")).ino;
    let old = SetAttr { atime: Some(SetTime::At(7)), ..SetAttr::default() };
    f.inode(Op::SetAttr(seen(ino, "f"), old));
    f.clock.advance(SECOND);
    for flags in [InodeFlags::IMMUTABLE, InodeFlags::NO_ATIME] {
        f.inode(Op::SetFlags(seen(ino, "f"), flags));
        assert_eq!(after(&f, "f", 1_001 * SECOND, false).atime, 7);
    }
    f.inode(Op::SetFlags(seen(ino, "f"), InodeFlags::APPEND));
    assert_eq!(after(&f, "f", 1_001 * SECOND, false).atime, 1_001 * SECOND);
    assert_eq!(f.errno(accessed(InodeRef::by_id(4711), 1, false)), libc::ESTALE);
    f.check();
}
