//! Rules one by one: what each operation must refuse, and what it must change.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::rules::{WRITE, commit, create, fixture, lookup, mkdir, range, rename, seen};
use common::{at, errno, name, user};
use kestrel_model::{NEED_GROUPS, SYMLINK};
use kestrel_types::clock::SECOND;
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{
    Answer, Creds, NewData, Op, OpenFlags, Outcome, RenameFlags, Request, SetAttr, SetTime,
};

fn exchange(from: &str, to: &str) -> Op {
    Op::Rename(at(1, from), at(1, to), RenameFlags { exchange: true, ..RenameFlags::default() })
}

fn mode(ino: InodeRef, mode: u16) -> Op {
    Op::SetAttr(ino, SetAttr { mode: Some(mode), ..SetAttr::default() })
}

#[test]
fn paths_are_walked_with_permission_and_links_go_back() {
    let f = fixture();
    let a = f.inode(mkdir("a")).ino;
    f.inode(mkdir("a/b"));
    f.inode(create("a/b/c"));
    f.inode(Op::Symlink(at(1, "s"), b"a/b"[..].into()));
    assert_eq!(f.errno(lookup("a/b/c")), 0);
    assert_eq!(f.errno(lookup("a/x/c")), libc::ENOENT);
    assert_eq!(f.errno(lookup("a/b/c/d")), libc::ENOTDIR);
    assert_eq!(f.errno(lookup("s/c")), SYMLINK);
    match f.call(Op::Lookup(at(1, "s/c"))) {
        Err(Outcome::Symlink { resolved: 0, dir: 1, target }) => assert_eq!(&*target, b"a/b"),
        other => panic!("{other:?}"),
    }
    f.inode(mode(InodeRef::by_id(a), 0o700));
    let somebody = user(1000, 1000, &[]);
    assert_eq!(f.errno_as(&somebody, lookup("a")), 0);
    assert_eq!(f.errno_as(&somebody, lookup("a/b/c")), libc::EACCES);
    f.inode(mode(InodeRef::by_id(a), 0o750));
    let unknown = Creds { groups: None, ..somebody.clone() };
    assert_eq!(f.errno_as(&unknown, lookup("a/b/c")), NEED_GROUPS);
    assert_eq!(f.errno_as(&user(1000, 1000, &[0]), lookup("a/b/c")), 0);
    f.check();
}

#[test]
fn create_opens_what_exists_and_makes_what_does_not() {
    let f = fixture();
    let dir = f.inode(mkdir("d")).ino;
    f.inode(create("f"));
    let again = Op::Create { place: at(1, "f"), mode: 0o600, flags: WRITE, exclusive: false };
    assert!(matches!(f.call(again.clone()), Ok(Answer::Opened { created: false, .. })));
    assert_eq!(f.errno(create("f")), libc::EEXIST);
    assert_eq!(
        f.errno(Op::Create { place: at(1, "d"), mode: 0, flags: WRITE, exclusive: false }),
        libc::EISDIR
    );
    f.inode(Op::Symlink(at(1, "s"), b"f"[..].into()));
    assert_eq!(
        f.errno(Op::Create { place: at(1, "s"), mode: 0, flags: WRITE, exclusive: false }),
        libc::ELOOP
    );
    let somebody = user(1000, 1000, &[]);
    assert_eq!(f.errno_as(&somebody, again), libc::EACCES);
    assert_eq!(f.errno_as(&somebody, create("d/x")), libc::EACCES);
    // The mode of a new file does not restrict the open that made it.
    f.inode(mode(InodeRef::by_id(dir), 0o777));
    let readonly = Op::Create { place: at(dir, "r"), mode: 0o400, flags: WRITE, exclusive: false };
    assert_eq!(f.errno_as(&somebody, readonly.clone()), 0);
    assert_eq!(f.errno_as(&somebody, readonly), libc::EACCES);
    let device = |kind, rdev| Op::MkNod { place: at(dir, "dev"), kind, mode: 0o600, rdev };
    assert_eq!(f.errno_as(&somebody, device(Kind::Block, 1)), libc::EPERM);
    assert_eq!(f.errno_as(&somebody, device(Kind::Dir, 0)), libc::EPERM);
    assert_eq!(f.errno_as(&somebody, device(Kind::Symlink, 0)), libc::EINVAL);
    assert_eq!(f.errno_as(&somebody, device(Kind::Char, 0)), 0);
    f.check();
}

/// `OpenAt` opens what a path leads to, and its answer names the directory.
#[test]
fn open_at_and_its_directory() {
    let f = fixture();
    let dir = f.inode(mkdir("d")).ino;
    let sub = f.inode(mkdir("d/sub")).ino;
    let file = f.inode(create("d/sub/f"));
    f.inode(Op::Symlink(at(1, "d/s"), b"sub"[..].into()));
    f.inode(Op::Link(InodeRef { ino: file.ino, seen: Some((sub, name("f"))) }, at(1, "d/hard")));
    f.call(Op::Release(file.ino)).unwrap();
    let open = |path: &str, flags| f.call(Op::OpenAt(at(1, path), flags));
    let opened = |path: &str, parent: u64, ino: u64| match open(path, WRITE) {
        Ok(Answer::Opened { inode, created: false, parent: Some(told) }) => {
            assert_eq!((inode.ino, told), (ino, parent), "{path}")
        }
        other => panic!("{path}: {other:?}"),
    };
    opened("d/sub/f", sub, file.ino);
    opened("d/hard", dir, file.ino);
    for _ in 0..2 {
        f.call(Op::Release(file.ino)).unwrap();
    }
    assert_eq!(f.errno(Op::Release(file.ino)), libc::EBADF, "one open each");
    // A directory is opened for reading and not counted.
    assert_eq!(errno(&open("d/sub", WRITE)), libc::EISDIR);
    match open("d/sub", OpenFlags { write: false, ..WRITE }) {
        Ok(Answer::Opened { inode, parent, .. }) => {
            assert_eq!((inode.ino, inode.nlink, parent), (sub, 2, Some(dir)))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(f.errno(Op::Release(sub)), libc::EBADF);
    assert_eq!(errno(&open("d/s", WRITE)), libc::ELOOP);
    match open("d/s/f", WRITE) {
        Err(Outcome::Symlink { resolved: 1, dir: within, target }) => {
            assert_eq!((within, &*target), (dir, &b"sub"[..]))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(errno(&open("d/none", WRITE)), libc::ENOENT);
    assert_eq!(errno(&open("none/f", WRITE)), libc::ENOENT);
    assert_eq!(errno(&open("d/hard/f", WRITE)), libc::ENOTDIR);
    let somebody = user(1000, 1000, &[]);
    assert_eq!(f.errno_as(&somebody, Op::OpenAt(at(1, "d/hard"), WRITE)), libc::EACCES);
    f.inode(mode(InodeRef::by_id(dir), 0o700));
    let read = OpenFlags { write: false, ..WRITE };
    assert_eq!(f.errno_as(&somebody, Op::OpenAt(at(1, "d/hard"), read)), libc::EACCES);
    assert_eq!(f.errno_as(&somebody, Op::OpenAt(at(dir, "hard"), read)), libc::EACCES);
    f.inode(Op::OpenAt(at(1, "d/hard"), OpenFlags { truncate: true, ..WRITE }));
    assert_eq!(f.node.stats().open_files, 1);
    f.check();
}

#[test]
fn answers_to_places_tell_their_directories() {
    let f = fixture();
    let a = f.inode(mkdir("a")).ino;
    let b = f.inode(mkdir("a/b")).ino;
    let file = f.inode(create("a/b/f")).ino;
    let parent = |op: Op| match f.call(op.clone()) {
        Ok(Answer::Entry { parent, .. } | Answer::Opened { parent: Some(parent), .. }) => parent,
        other => panic!("{op:?}: {other:?}"),
    };
    assert_eq!(parent(lookup("a")), 1);
    assert_eq!(parent(lookup("a/b")), a);
    assert_eq!(parent(mkdir("a/b/c")), b);
    assert_eq!(parent(create("a/b/g")), b);
    assert_eq!(parent(Op::Symlink(at(a, "b/s"), b"x"[..].into())), b);
    assert_eq!(parent(Op::MkNod { place: at(a, "p"), kind: Kind::Fifo, mode: 0o600, rdev: 0 }), a);
    assert_eq!(
        parent(Op::Link(InodeRef { ino: file, seen: Some((b, name("f"))) }, at(1, "a/h"))),
        a
    );
    let dirs = |op: Op| match f.call(op.clone()) {
        Ok(Answer::Renamed { from, to, .. }) => (from, to),
        other => panic!("{op:?}: {other:?}"),
    };
    assert_eq!(dirs(rename("a/b/g", "a/g")), (b, a));
    assert_eq!(dirs(exchange("a/g", "a/b/s")), (a, b));
    assert_eq!(dirs(rename("a/h", "a/b/f")), (a, b), "two names of one file: nothing happens");
    f.check();
}

#[test]
fn set_group_id_directories_pass_group_and_bit_on() {
    let f = fixture();
    let dir = f.inode(mkdir("d")).ino;
    let set = SetAttr { mode: Some(0o2777), gid: Some(50), ..SetAttr::default() };
    f.inode(Op::SetAttr(InodeRef::by_id(dir), set));
    let somebody = user(1000, 1000, &[]);
    let sub = f.inode_as(&somebody, Op::MkDir(at(dir, "sub"), 0o755));
    assert_eq!((sub.gid, sub.mode), (50, 0o2755));
    let place = at(dir, "f");
    let file =
        f.inode_as(&somebody, Op::Create { place, mode: 0o2755, flags: WRITE, exclusive: true });
    assert_eq!((file.gid, file.mode), (50, 0o755));
}

#[test]
fn chmod_chown_and_utimes_obey_ownership() {
    let f = fixture();
    let owner = user(1000, 1000, &[2000]);
    let other = user(1001, 1001, &[]);
    let file = f.inode_as(
        &owner,
        Op::Create { place: at(1, "f"), mode: 0o6755, flags: WRITE, exclusive: true },
    );
    let me = seen(file.ino, "f");
    let chown = |uid, gid| Op::SetAttr(me.clone(), SetAttr { uid, gid, ..SetAttr::default() });
    assert_eq!(f.errno_as(&owner, chown(Some(1001), None)), libc::EPERM);
    assert_eq!(f.errno_as(&other, chown(Some(1000), None)), libc::EPERM);
    assert_eq!(f.errno_as(&owner, chown(None, Some(3000))), libc::EPERM);
    assert_eq!(f.errno_as(&other, chown(None, Some(1001))), libc::EPERM);
    let changed = f.inode_as(&owner, chown(Some(1000), Some(2000)));
    assert_eq!((changed.gid, changed.mode), (2000, 0o755));
    assert_eq!(f.errno_as(&other, mode(me.clone(), 0o777)), libc::EPERM);
    // Set-group-id only for a group one is in.
    assert_eq!(f.inode_as(&owner, mode(me.clone(), 0o2755)).mode, 0o2755);
    f.inode(chown(None, Some(3000)));
    assert_eq!(f.inode_as(&owner, mode(me.clone(), 0o2755)).mode, 0o755);
    assert_eq!(f.inode(mode(me.clone(), 0o6755)).mode, 0o6755);
    assert_eq!(f.inode(chown(Some(1000), None)).mode, 0o755, "root's chown drops them too");

    let times =
        |atime, mtime| Op::SetAttr(me.clone(), SetAttr { atime, mtime, ..SetAttr::default() });
    let (now, past) = (Some(SetTime::Now), Some(SetTime::At(-5)));
    assert_eq!(f.errno_as(&other, times(past, past)), libc::EPERM);
    assert_eq!(f.errno_as(&other, times(now, past)), libc::EPERM);
    assert_eq!(f.errno_as(&other, times(now, None)), libc::EPERM);
    assert_eq!(f.errno_as(&other, times(now, now)), libc::EACCES);
    f.inode(mode(me.clone(), 0o666));
    assert_eq!(f.errno_as(&other, times(now, now)), 0);
    f.clock.advance(SECOND);
    let set = f.inode_as(&owner, times(past, None));
    assert_eq!((set.atime, set.ctime), (-5, 1_001 * SECOND));
    // An empty change sets ctime, for every user.
    f.clock.advance(SECOND);
    assert_eq!(f.inode_as(&other, times(None, None)).ctime, 1_002 * SECOND);
}

/// The times of a directory follow its content, and times that were set count until the next
/// change.
#[test]
fn directory_times() {
    let f = fixture();
    let dir = f.inode(mkdir("d")).ino;
    let me = InodeRef::by_id(dir);
    f.clock.advance(SECOND);
    f.inode(create("d/a"));
    let shown = f.inode(Op::GetAttr(me.clone()));
    assert_eq!((shown.mtime, shown.ctime, shown.nlink), (1_001 * SECOND, 1_001 * SECOND, 2));
    let future = SetAttr { mtime: Some(SetTime::At(9_000 * SECOND)), ..SetAttr::default() };
    assert_eq!(f.inode(Op::SetAttr(me.clone(), future)).mtime, 9_000 * SECOND);
    assert_eq!(f.inode(Op::GetAttr(me.clone())).mtime, 9_000 * SECOND);
    f.clock.advance(SECOND);
    f.inode(mkdir("d/sub"));
    let shown = f.inode(Op::GetAttr(me.clone()));
    assert_eq!((shown.mtime, shown.nlink), (1_002 * SECOND, 3));
    assert_eq!(
        f.errno(Op::SetAttr(me, SetAttr { size: Some(0), ..SetAttr::default() })),
        libc::EISDIR
    );
}

#[test]
fn unlink_and_rmdir_refuse_in_the_order_linux_does() {
    let f = fixture();
    let owner = user(1000, 1000, &[]);
    let other = user(1001, 1001, &[]);
    let dir = f.inode(mkdir("d")).ino;
    f.inode(mode(InodeRef::by_id(dir), 0o1777));
    f.inode_as(&owner, Op::MkDir(at(dir, "sub"), 0o777));
    f.inode_as(
        &owner,
        Op::Create { place: at(dir, "f"), mode: 0o777, flags: WRITE, exclusive: true },
    );
    assert_eq!(f.errno_as(&other, Op::Unlink(at(dir, "none"))), libc::ENOENT);
    assert_eq!(f.errno_as(&other, Op::Unlink(at(dir, "f"))), libc::EPERM);
    assert_eq!(f.errno_as(&other, Op::RmDir(at(dir, "sub"), None)), libc::EPERM);
    assert_eq!(
        f.errno_as(&other, Op::Rename(at(dir, "f"), at(1, "f"), RenameFlags::default())),
        libc::EPERM
    );
    assert_eq!(f.errno_as(&owner, Op::Unlink(at(dir, "sub"))), libc::EISDIR);
    assert_eq!(f.errno_as(&owner, Op::RmDir(at(dir, "f"), None)), libc::ENOTDIR);
    f.inode(create("d/sub/x"));
    assert_eq!(f.errno_as(&owner, Op::RmDir(at(dir, "sub"), None)), libc::ENOTEMPTY);
    f.inode(mode(InodeRef::by_id(dir), 0o755));
    assert_eq!(f.errno_as(&owner, Op::Unlink(at(dir, "f"))), libc::EACCES);
    assert_eq!(f.errno_as(&owner, Op::Unlink(at(dir, "none"))), libc::ENOENT);
    assert_eq!(f.errno(Op::Unlink(at(dir, "f"))), 0);
    f.call(Op::Unlink(at(dir, "sub/x"))).unwrap();
    assert_eq!(f.errno(Op::RmDir(at(dir, "sub"), None)), 0);
    f.call(Op::RmDir(at(1, "d"), None)).unwrap();
    assert_eq!(f.errno(create("d/x")), libc::ENOENT);
    assert_eq!(f.errno(Op::Lookup(at(dir, "x"))), libc::ENOENT);
    assert_eq!(f.errno(Op::GetAttr(InodeRef::by_id(dir))), libc::ESTALE);
    assert_eq!(f.errno(Op::ReadDir { dir, after: None, limit: 1, check: true }), libc::ENOENT);
    f.check();
}

#[test]
fn only_the_expected_directory_is_removed_or_replaced() {
    let f = fixture();
    let [a, b] = ["a", "b"].map(|path| f.inode(mkdir(path)).ino);
    f.inode(create("file"));
    let remove = |path, ino| f.errno(Op::RmDir(at(1, path), Some(ino)));
    let replace = |from, to, ino| {
        f.errno(Op::Rename(
            at(1, from),
            at(1, to),
            RenameFlags { replaced: Some(ino), ..RenameFlags::default() },
        ))
    };
    assert_eq!((remove("a", b), replace("a", "b", a)), (libc::ESTALE, libc::ESTALE));
    f.inode(create("b/x"));
    assert_eq!((remove("b", a), remove("b", b)), (libc::ESTALE, libc::ENOTEMPTY));
    f.call(Op::Unlink(at(1, "b/x"))).unwrap();
    // What is wrong anyway is said first, and where no directory goes none is expected.
    assert_eq!((remove("file", a), remove("none", a)), (libc::ENOTDIR, libc::ENOENT));
    assert_eq!((replace("a", "file", b), replace("file", "b", a)), (libc::ENOTDIR, libc::EISDIR));
    assert_eq!((replace("file", "other", b), replace("a", "new", b)), (0, 0));
    let exchange = RenameFlags { exchange: true, replaced: Some(a), no_replace: false };
    assert_eq!(f.errno(Op::Rename(at(1, "new"), at(1, "b"), exchange)), 0);
    assert_eq!((replace("new", "b", a), remove("b", b)), (0, 0));
    f.check();
}

#[test]
fn rename_refuses_cycles_and_wrong_types() {
    let f = fixture();
    for path in ["a", "a/b", "a/b/c", "e"] {
        f.inode(mkdir(path));
    }
    f.inode(create("f"));
    f.inode(create("g"));
    assert_eq!(f.errno(rename("a", "a/b/x")), libc::EINVAL);
    assert_eq!(f.errno(rename("a/b/c", "a")), libc::ENOTEMPTY);
    assert_eq!(f.errno(exchange("a/b/c", "a")), libc::EINVAL);
    assert_eq!(f.errno(rename("a", "f")), libc::ENOTDIR);
    assert_eq!(f.errno(rename("f", "e")), libc::EISDIR);
    assert_eq!(f.errno(rename("e", "a")), libc::ENOTEMPTY);
    assert_eq!(f.errno(rename("none", "x")), libc::ENOENT);
    assert_eq!(f.errno(exchange("f", "none")), libc::ENOENT);
    let keep = RenameFlags { no_replace: true, ..RenameFlags::default() };
    assert_eq!(f.errno(Op::Rename(at(1, "f"), at(1, "g"), keep)), libc::EEXIST);
    let both = RenameFlags { no_replace: true, exchange: true, replaced: None };
    assert_eq!(f.errno(Op::Rename(at(1, "f"), at(1, "g"), both)), libc::EINVAL);
    assert_eq!(f.errno(rename("f", "f")), 0);
    assert_eq!(f.errno(exchange("a/b", "f")), 0);
    assert_eq!(f.inode(lookup("f")).kind, Kind::Dir);
    assert_eq!(f.inode(lookup("f/c")).kind, Kind::Dir);
    assert_eq!(f.inode(lookup("a/b")).kind, Kind::File);
    assert_eq!(
        (f.inode(lookup("a")).nlink, f.inode(Op::GetAttr(InodeRef::by_id(1))).nlink),
        (2, 5)
    );
    assert_eq!(f.errno(rename("e", "f/c")), 0);
    f.check();
}

/// A directory that gets another parent must be writable.
#[test]
fn directory_move_needs_write_permission() {
    let f = fixture();
    let owner = user(1000, 1000, &[]);
    for path in ["a", "b"] {
        let dir = f.inode(mkdir(path)).ino;
        f.inode(mode(InodeRef::by_id(dir), 0o777));
    }
    let dir = f.inode_as(&owner, Op::MkDir(at(1, "a/d"), 0o555)).ino;
    assert_eq!(f.errno_as(&owner, rename("a/d", "b/d")), libc::EACCES);
    assert_eq!(f.errno_as(&owner, rename("a/d", "a/e")), 0);
    f.inode_as(&owner, mode(InodeRef::by_id(dir), 0o755));
    assert_eq!(f.errno_as(&owner, rename("a/e", "b/d")), 0);
    match f.call(Op::Parent(dir)) {
        Ok(Answer::Inode(parent)) => assert_eq!(parent.ino, f.inode(lookup("b")).ino),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hard_links_count_and_are_found_by_every_name() {
    let f = fixture();
    let ino = f.inode(create("a")).ino;
    f.call(Op::Release(ino)).unwrap();
    f.inode(mkdir("d"));
    assert_eq!(f.errno(Op::Link(seen(ino, "a"), at(1, "d"))), libc::EEXIST);
    assert_eq!(
        f.errno(Op::Link(InodeRef::by_id(f.inode(lookup("d")).ino), at(1, "x"))),
        libc::EPERM
    );
    assert_eq!(f.inode(Op::Link(seen(ino, "a"), at(1, "d/b"))).nlink, 2);
    assert_eq!(f.inode(lookup("d/b")).ino, ino);
    // Same file under two names: rename does nothing.
    assert_eq!(f.errno(rename("a", "d/b")), 0);
    assert_eq!(f.inode(lookup("a")).nlink, 2);
    f.inode(Op::SetAttr(seen(ino, "a"), SetAttr { size: Some(10), ..SetAttr::default() }));
    assert_eq!(f.inode(lookup("d/b")).size, 10);
    assert_eq!(f.removed(Op::Unlink(at(1, "a"))).nlink, 1);
    assert_eq!(
        f.inode(Op::GetAttr(seen(ino, "a"))).nlink,
        1,
        "a stale place leads to the file by number"
    );
    assert_eq!(f.removed(Op::Unlink(at(1, "d/b"))).nlink, 0);
    assert_eq!(f.errno(Op::GetAttr(seen(ino, "a"))), libc::ESTALE);
    assert_eq!(f.errno(Op::Link(seen(ino, "a"), at(1, "x"))), libc::ESTALE);
    let found = f.check();
    assert_eq!((found.files, found.bytes), (0, 0));
}

#[test]
fn only_safe_files_of_others_can_be_linked() {
    let f = fixture();
    let owner = user(1000, 1000, &[]);
    let other = user(1001, 1001, &[2000]);
    let file = f.inode_as(
        &owner,
        Op::Create { place: at(1, "f"), mode: 0o600, flags: WRITE, exclusive: true },
    );
    let link = Op::Link(seen(file.ino, "f"), at(1, "g"));
    for bits in [0o600, 0o644, 0o4666, 0o2676] {
        f.inode(mode(seen(file.ino, "f"), bits));
        assert_eq!(f.errno_as(&other, link.clone()), libc::EPERM, "{bits:o}");
    }
    f.inode(Op::SetAttr(
        seen(file.ino, "f"),
        SetAttr { gid: Some(2000), mode: Some(0o660), ..SetAttr::default() },
    ));
    assert_eq!(f.errno_as(&Creds { groups: None, ..other.clone() }, link.clone()), NEED_GROUPS);
    assert_eq!(f.errno_as(&other, link), 0);
}

#[test]
fn a_file_has_at_most_65000_names() {
    let f = fixture();
    let ino = f.inode(create("f")).ino;
    for number in 1..kestrel_meta::view::LINK_MAX {
        f.call(Op::Link(seen(ino, "f"), at(1, &format!("l{number}")))).unwrap();
    }
    assert_eq!(f.errno(Op::Link(seen(ino, "f"), at(1, "more"))), libc::EMLINK);
}

/// Open files outlive their names, and temporary files can get a name.
#[test]
fn unlinked_and_temporary_open_files() {
    let f = fixture();
    let ino = f.inode(create("f")).ino;
    let data = NewData::Packed(range(7, 100));
    let inode = f.inode(lookup("f"));
    f.inode(commit(ino, "f", inode.data_change, data, 100));
    f.call(Op::Unlink(at(1, "f"))).unwrap();
    let orphan = f.inode(Op::GetAttr(seen(ino, "f")));
    assert_eq!((orphan.nlink, orphan.size), (0, 100));
    assert_eq!(f.errno(Op::Link(seen(ino, "f"), at(1, "g"))), libc::ENOENT);
    f.inode(create("f"));
    let now = f.inode(Op::GetAttr(seen(ino, "f")));
    assert_eq!(now.ino, ino, "another file with the same name is not mistaken for it");
    f.inode(commit(ino, "f", now.data_change, NewData::Inline(b"x"[..].into()), 1));
    f.call(Op::Release(ino)).unwrap();
    assert_eq!(f.errno(Op::GetAttr(seen(ino, "f"))), libc::ESTALE);
    assert_eq!(f.errno(Op::Release(ino)), libc::EBADF);

    let tmp = |exclusive| Op::TmpFile { dir: 1, mode: 0o600, exclusive };
    let ino = f.inode(tmp(false)).ino;
    assert_eq!(f.inode(Op::Link(InodeRef::by_id(ino), at(1, "named"))).nlink, 1);
    assert_eq!(f.inode(Op::GetAttr(InodeRef::by_id(ino))).ino, ino);
    f.call(Op::Release(ino)).unwrap();
    assert_eq!(f.inode(lookup("named")).ino, ino);
    let ino = f.inode(tmp(true)).ino;
    assert_eq!(f.errno(Op::Link(InodeRef::by_id(ino), at(1, "never"))), libc::ENOENT);
    let f = f.crash(false);
    assert_eq!(f.errno(Op::GetAttr(InodeRef::by_id(ino))), libc::ESTALE, "gone with the crash");
    assert_eq!(f.check().orphans, 0);
}

#[test]
fn listings_continue_where_they_ended() {
    let f = fixture();
    for i in 0..25 {
        f.inode(create(&format!("f{i:02}")));
    }
    let mut after = None;
    let mut all = Vec::new();
    loop {
        let page = Op::ReadDir { dir: 1, after: after.clone(), limit: 7, check: true };
        let Ok(Answer::Entries { entries, parent: 1, end }) = f.call(page) else { panic!() };
        all.extend(entries.iter().map(|entry| entry.name.clone()));
        if end {
            break;
        }
        after = all.last().cloned();
        // What is removed and created meanwhile does not move the others.
        f.call(Op::Unlink(at(1, "f00"))).ok();
        f.inode(create(&format!("e{}", all.len())));
    }
    let expected: Vec<_> = (0..25).map(|i| name(&format!("f{i:02}"))).collect();
    assert_eq!(all, expected);
}

#[test]
fn hostile_requests_get_errors() {
    let f = fixture();
    assert_eq!(f.errno(Op::Lookup(at(0, "x"))), libc::ENOENT);
    assert_eq!(f.errno(Op::GetAttr(InodeRef::by_id(0))), libc::ESTALE);
    assert_eq!(f.errno(Op::GetAttr(InodeRef::by_id(u64::MAX))), libc::ESTALE);
    assert_eq!(f.errno(Op::Chunks { ino: 5, first: 9, last: 8 }), libc::EINVAL);
    assert_eq!(f.errno(Op::Symlink(at(1, "s"), Box::default())), libc::ENOENT);
    assert_eq!(f.errno(Op::Symlink(at(1, "s"), vec![b'x'; 4096].into())), libc::ENAMETOOLONG);
    let ino = f.inode(create("f")).ino;
    let size = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
    assert_eq!(f.errno(Op::SetAttr(seen(ino, "f"), size)), libc::EFBIG);
    assert_eq!(f.errno(Op::ReadLink(seen(ino, "f"))), libc::EINVAL);
    assert_eq!(
        f.errno(Op::ReadDir { dir: ino, after: None, limit: 10, check: true }),
        libc::ENOENT
    );
    let op = Op::Sync;
    assert_eq!(errno(&f.node.call(Request { creds: Creds::root(), op })), 0);
}
