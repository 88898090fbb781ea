//! Rules of flags (chattr): what stays as it is, for which users, and what may still be done with
//! it. As ext4 has them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::rules::{WRITE, commit, create, fixture, lookup, mkdir, rename, seen};
use common::{Fixture, at, user};
use kestrel_types::inode::InodeFlags;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{
    Answer, NewData, Op, OpenFlags, RenameFlags, SetAttr, SetTime, XattrFlags,
};

const NONE: InodeFlags = InodeFlags::IMMUTABLE.only(InodeFlags::APPEND);
const IMMUTABLE: InodeFlags = InodeFlags::IMMUTABLE;
const APPEND: InodeFlags = InodeFlags::APPEND;
const READ: OpenFlags = OpenFlags { write: false, ..WRITE };

/// What each change of a file `f` of the root answers.
fn errnos(f: &Fixture, ino: u64, base: u64) -> Vec<(&'static str, i32)> {
    let file = || seen(ino, "f");
    let set = |set: SetAttr| Op::SetAttr(file(), set);
    let none = SetAttr::default;
    let key = || b"user.k"[..].into();
    let open = |flags| Op::Open(file(), flags);
    let ops = vec![
        ("mode", set(SetAttr { mode: Some(0o600), ..none() })),
        ("owner", set(SetAttr { uid: Some(7), ..none() })),
        ("size", set(SetAttr { size: Some(0), through_handle: true, ..none() })),
        ("times", set(SetAttr { mtime: Some(SetTime::At(5)), ..none() })),
        ("touch", set(SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..none() })),
        ("set attribute", Op::SetXattr(file(), key(), b"v"[..].into(), XattrFlags::default())),
        ("remove attribute", Op::RemoveXattr(file(), key())),
        ("unlink", Op::Unlink(at(1, "f"))),
        ("rename", rename("f", "g")),
        ("replace", rename("other", "f")),
        ("link", Op::Link(file(), at(1, "link"))),
        ("write", open(WRITE)),
        ("append", open(OpenFlags { append: true, ..WRITE })),
        ("truncate", open(OpenFlags { append: true, truncate: true, ..WRITE })),
        ("read", open(READ)),
        ("may write", Op::Access(file(), libc::W_OK as u32)),
        ("commit", commit(ino, "f", base, NewData::Inline(b"bytes"[..].into()), 5)),
    ];
    ops.into_iter().map(|(what, op)| (what, f.errno(op))).collect()
}

fn allowed(errnos: &[(&'static str, i32)]) -> Vec<&'static str> {
    assert!(errnos.iter().all(|(_, errno)| [0, libc::EPERM].contains(errno)), "{errnos:?}");
    errnos.iter().filter(|(_, errno)| *errno == 0).map(|(what, _)| *what).collect()
}

/// An immutable file is read and nothing else, also by a process that has it open for writing and
/// by root.
#[test]
fn immutable_files_stay() {
    let f = fixture();
    let file = f.inode(create("f"));
    f.inode(create("other"));
    f.inode(Op::SetFlags(seen(file.ino, "f"), IMMUTABLE));
    assert_eq!(allowed(&errnos(&f, file.ino, file.data_change)), ["read"]);
    let found = f.inode(lookup("f"));
    assert_eq!((found.flags, found.size, found.nlink, found.mode), (IMMUTABLE, 0, 1, 0o644));
    f.inode(Op::SetFlags(seen(file.ino, "f"), NONE));
    assert_eq!(
        f.errno(commit(file.ino, "f", file.data_change, NewData::Inline(b"b"[..].into()), 1)),
        0
    );
    assert_eq!(f.errno(Op::Unlink(at(1, "f"))), 0);
    f.check();
}

/// A file that is append only is opened to be appended to, and its times are set to the present.
#[test]
fn append_only_files_grow() {
    let f = fixture();
    let file = f.inode(create("f"));
    f.inode(create("other"));
    f.inode(Op::SetFlags(seen(file.ino, "f"), APPEND));
    let allowed = allowed(&errnos(&f, file.ino, file.data_change));
    assert_eq!(allowed, ["touch", "append", "read", "may write", "commit"]);
    assert_eq!(f.inode(lookup("f")).size, 5);
    f.check();
}

/// Names in an immutable directory stay; one that is append only gets new ones. Files in both are
/// changed as ever.
#[test]
fn directories_keep_their_names() {
    let f = fixture();
    let dir = f.inode(mkdir("d")).ino;
    f.inode(create("d/f"));
    f.inode(mkdir("d/sub"));
    f.inode(create("f"));
    let set = |flags| f.inode(Op::SetFlags(InodeRef::by_id(dir), flags));
    let make = || {
        [
            create("d/n"),
            mkdir("d/m"),
            Op::Symlink(at(1, "d/s"), b"t"[..].into()),
            rename("f", "d/o"),
        ]
    };
    let take = || {
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        let swap = Op::Rename(at(1, "d/f"), at(1, "d/sub"), exchange);
        [Op::Unlink(at(1, "d/f")), Op::RmDir(at(1, "d/sub"), None), rename("d/f", "x"), swap]
    };
    set(IMMUTABLE);
    for op in make().into_iter().chain(take()) {
        assert_eq!(f.errno(op.clone()), libc::EPERM, "{op:?}");
    }
    assert_eq!(f.errno(Op::RmDir(at(1, "d"), None)), libc::EPERM);
    assert_eq!(f.errno(rename("d", "e")), libc::EPERM);
    assert_eq!(
        f.errno(Op::Create { place: at(1, "d/f"), mode: 0, flags: WRITE, exclusive: false }),
        0
    );
    set(APPEND);
    for op in take() {
        assert_eq!(f.errno(op.clone()), libc::EPERM, "{op:?}");
    }
    for op in make() {
        assert_eq!(f.errno(op.clone()), 0, "{op:?}");
    }
    set(NONE);
    assert_eq!(f.errno(rename("d", "e")), 0);
    f.check();
}

/// Which user may set which flags, of what, and which files get them from the directory.
#[test]
fn flags_are_set_by_owners_and_root() {
    let f = fixture();
    let (owner, other) = (user(1000, 1000, &[]), user(1001, 1001, &[]));
    f.inode(Op::SetAttr(InodeRef::by_id(1), SetAttr { mode: Some(0o777), ..SetAttr::default() }));
    let file = f.inode_as(&owner, create("f")).ino;
    let set = |flags| Op::SetFlags(seen(file, "f"), flags);
    assert_eq!(f.errno_as(&other, set(InodeFlags::NO_DUMP)), libc::EPERM);
    assert_eq!(f.errno_as(&owner, set(InodeFlags::NO_DUMP)), 0);
    for flags in [IMMUTABLE, APPEND] {
        assert_eq!(f.errno_as(&owner, set(flags)), libc::EPERM);
        assert_eq!(f.errno(set(flags)), 0);
        assert_eq!(f.errno_as(&owner, set(NONE)), libc::EPERM);
        assert_eq!(f.errno(set(NONE)), 0);
    }
    assert_eq!(f.errno(set(IMMUTABLE)), 0);
    assert_eq!(
        f.errno(set(IMMUTABLE.with(InodeFlags::NO_DUMP))),
        libc::EPERM,
        "it stays immutable"
    );
    let link = f.inode(Op::Symlink(at(1, "s"), b"t"[..].into())).ino;
    assert_eq!(f.errno(Op::SetFlags(seen(link, "s"), NONE)), libc::EOPNOTSUPP);
    let dir = f.inode(mkdir("d")).ino;
    let all = IMMUTABLE.with(APPEND).with(InodeFlags::NO_DUMP).with(InodeFlags::NO_ATIME);
    f.inode(Op::SetFlags(InodeRef::by_id(dir), all.difference(IMMUTABLE)));
    let inherited = InodeFlags::NO_DUMP.with(InodeFlags::NO_ATIME);
    assert_eq!(f.inode(create("d/f")).flags, inherited);
    assert_eq!(f.inode(mkdir("d/d")).flags, inherited);
    assert_eq!(f.inode(Op::Symlink(at(1, "d/s"), b"t"[..].into())).flags, NONE);
    match f.call(Op::GetAttr(InodeRef::by_id(dir))) {
        Ok(Answer::Inode(inode)) => assert_eq!(inode.flags, all.difference(IMMUTABLE)),
        other => panic!("{other:?}"),
    }
    f.check();
}
