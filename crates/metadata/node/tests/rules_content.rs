//! Rules of content, one by one: commits, references to objects, extended attributes, figures,
//! numbers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::rules::{WRITE, commit, create, fixture, lookup, mkdir, range, seen};
use common::{Fixture, at, name, user};
use kestrel_model::CONFLICT;
use kestrel_types::clock::SECOND;
use kestrel_types::extent::{Extent, Source};
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, NewData, Op, SetAttr, XattrFlags};

/// Commits are checked against the content that they were made on.
#[test]
fn commits_on_changed_content() {
    let f = fixture();
    let inode = f.inode(create("f"));
    let (ino, base) = (inode.ino, inode.data_change);
    let first = f.inode(commit(ino, "f", base, NewData::Inline(b"hello"[..].into()), 5));
    assert_eq!((first.size, first.mtime), (5, 5));
    assert_eq!(f.errno(commit(ino, "f", base, NewData::Inline(b"x"[..].into()), 1)), CONFLICT);
    let base = first.data_change;
    assert_eq!(
        f.errno(commit(ino, "f", base, NewData::Inline(b"xyz"[..].into()), 2)),
        libc::EINVAL
    );
    assert_eq!(f.errno(commit(ino, "f", base, NewData::Packed(range(3, 10)), 9)), libc::EINVAL);
    assert_eq!(f.errno(commit(ino, "f", base, NewData::Packed(range(0, 10)), 10)), libc::EINVAL);
    let patch = |pos, len| NewData::Patches(vec![(0, Extent::of_range(pos, range(3, len)))]);
    assert_eq!(
        f.errno(commit(ino, "f", base, patch(1, 10), 11)),
        libc::EINVAL,
        "does not cover the inline bytes"
    );
    assert_eq!(f.errno(commit(ino, "f", base, patch(0, 10), 9)), libc::EINVAL, "beyond the end");
    let huge = NewData::Patches(vec![(u64::MAX, Extent::of_range(0, range(3, 1)))]);
    assert_eq!(f.errno(commit(ino, "f", base, huge, 1 << 40)), libc::EINVAL);
    assert_eq!(f.errno(commit(ino, "f", base, NewData::Unchanged, 1 << 63)), libc::EFBIG);
    let patched = f.inode(commit(ino, "f", base, patch(0, 10), 10));
    assert_eq!(patched.data, Data::Chunked);
    assert_eq!(f.check().objects[&3], 10);
    // Far out, so that there are several chunks; then cut back.
    let far = NewData::Patches(vec![(3, Extent::of_range(0, range(4, 10)))]);
    let grown = f.inode(commit(ino, "f", patched.data_change, far, 3 * CHUNK_BYTES + 10));
    assert_eq!(f.check().objects[&4], 10);
    let cut = f.inode(commit(ino, "f", grown.data_change, NewData::Unchanged, 4));
    assert_eq!(cut.size, 4);
    let found = f.check();
    assert_eq!((found.objects.get(&3), found.objects.get(&4)), (Some(&4), None));
}

#[test]
fn compaction_happens_only_on_what_was_seen() {
    let f = fixture();
    let inode = f.inode(create("f"));
    let old = vec![Extent::of_range(0, range(3, 5)), Extent::of_range(5, range(4, 5))];
    let data = NewData::Patches(old.iter().map(|extent| (0, *extent)).collect());
    let inode = f.inode(commit(inode.ino, "f", inode.data_change, data, 10));
    let new = vec![Extent::of_range(0, range(9, 10))];
    let compact = |old: &[Extent], new: &[Extent]| Op::Compact {
        inode: seen(inode.ino, "f"),
        chunk: 0,
        old: old.to_vec(),
        new: new.to_vec(),
    };
    assert_eq!(f.errno(compact(&old[..1], &new)), libc::EINVAL, "what is new leaves the window");
    assert_eq!(f.errno(compact(&new, &new)), CONFLICT);
    assert_eq!(f.errno(compact(&[], &new)), libc::EINVAL);
    assert_eq!(f.errno(compact(&old, &new)), 0);
    assert_eq!(f.inode(lookup("f")), inode, "the inode does not change");
    let found = f.check();
    assert_eq!(found.objects.into_iter().collect::<Vec<_>>(), [(9, 10)]);
}

/// A window with a hole is compacted, and keeps the hole.
#[test]
fn compaction_of_a_window_with_a_hole() {
    let f = fixture();
    let inode = f.inode(create("f"));
    let stored = [Extent::of_range(0, range(3, 5)), Extent::of_range(5, range(4, 5))];
    let after = Extent::of_range(20, range(5, 5));
    let data = NewData::Patches(vec![(0, stored[0]), (0, stored[1]), (0, after)]);
    let inode = f.inode(commit(inode.ino, "f", inode.data_change, data, 25));
    let old = vec![stored[0], stored[1], Extent::hole(10, 10), after];
    let new = vec![Extent::of_range(0, range(9, 10)), Extent::of_range(20, range(10, 5))];
    let op = |old: &[Extent]| Op::Compact {
        inode: seen(inode.ino, "f"),
        chunk: 0,
        old: old.to_vec(),
        new: new.clone(),
    };
    assert_eq!(
        f.errno(op(&[stored[0], stored[1], after])),
        CONFLICT,
        "without the hole it is not what is there"
    );
    assert_eq!(f.errno(op(&old)), 0);
    let found = f.check().objects.into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(9, 10), (10, 5)]);
    let chunks = f.call(Op::Chunks { ino: inode.ino, first: 0, last: 0 });
    assert_eq!(chunks, Ok(Answer::Chunks { chunks: vec![(0, new.clone())], end: true }));
}

/// A packed file moves to another range, and its content stays the same for readers.
#[test]
fn move_of_a_packed_file() {
    let f = fixture();
    let inode = f.inode(create("f"));
    let inode =
        f.inode(commit(inode.ino, "f", inode.data_change, NewData::Packed(range(3, 100)), 100));
    // Shrunk, then grown again: 60 bytes of the range are visible, the rest is a hole.
    let cut = |size| {
        Op::SetAttr(seen(inode.ino, "f"), SetAttr { size: Some(size), ..SetAttr::default() })
    };
    f.inode(cut(60));
    let inode = f.inode(cut(90));
    let shows = |object, len, visible| Extent {
        pos: 0,
        len: visible,
        source: Source::Stored { range: range(object, len), skip: 0 },
    };
    let op = |old: Extent, new: Extent| Op::Compact {
        inode: seen(inode.ino, "f"),
        chunk: 0,
        old: vec![old],
        new: vec![new],
    };
    assert_eq!(f.errno(op(shows(3, 100, 100), shows(9, 60, 60))), CONFLICT);
    assert_eq!(f.errno(op(shows(4, 100, 60), shows(9, 60, 60))), CONFLICT);
    assert_eq!(f.errno(op(shows(3, 100, 60), shows(9, 60, 50))), libc::EINVAL);
    assert_eq!(f.errno(op(shows(3, 100, 60), shows(9, 60, 60))), 0);
    let moved = f.inode(lookup("f"));
    let data = Data::Packed { range: range(9, 60), visible: 60 };
    assert_eq!(moved, Inode { data, ..inode.clone() }, "nothing else changes");
    assert_eq!(f.check().objects.into_iter().collect::<Vec<_>>(), [(9, 60)]);
    // Of a file with several names too, which has its record elsewhere.
    f.inode(Op::Link(seen(inode.ino, "f"), at(1, "g")));
    assert_eq!(
        f.errno(op(shows(9, 60, 60), shows(10, 80, 60))),
        0,
        "a range may be longer than what is visible"
    );
    assert_eq!(f.check().objects.into_iter().collect::<Vec<_>>(), [(10, 80)]);
    f.call(Op::Unlink(at(1, "f"))).unwrap();
    f.call(Op::Unlink(at(1, "g"))).unwrap();
}

#[test]
fn extended_attributes_by_namespace() {
    let f = fixture();
    let owner = user(1000, 1000, &[]);
    let file = f.inode_as(
        &owner,
        Op::Create { place: at(1, "f"), mode: 0o600, flags: WRITE, exclusive: true },
    );
    let link = f.inode_as(&owner, Op::Symlink(at(1, "s"), b"f"[..].into()));
    let set = |inode: &InodeRef, name: &[u8], value: &[u8]| {
        Op::SetXattr(inode.clone(), name.into(), value.into(), XattrFlags::default())
    };
    let (file, link) = (seen(file.ino, "f"), seen(link.ino, "s"));
    for (name, errno) in [
        (&b"user.a"[..], 0),
        (b"trusted.a", libc::EPERM),
        (b"security.a", libc::EPERM),
        (b"system.posix_acl_access", libc::EINVAL),
        (b"system.other", libc::EOPNOTSUPP),
        (b"nonsense", libc::EOPNOTSUPP),
        (b"user.", libc::EINVAL),
        (&[b'u'; 256], libc::ERANGE),
        (b"", libc::ERANGE),
    ] {
        assert_eq!(
            f.errno_as(&owner, set(&file, name, b"1")),
            errno,
            "{:?}",
            String::from_utf8_lossy(name)
        );
    }
    assert_eq!(f.errno_as(&owner, set(&link, b"user.a", b"1")), libc::EPERM);
    assert_eq!(f.errno(set(&link, b"trusted.a", b"1")), 0);
    assert_eq!(f.errno(set(&file, b"security.a", b"1")), 0);
    assert_eq!(f.errno_as(&owner, set(&file, b"user.big", &[0; 65537])), libc::E2BIG);
    assert_eq!(
        f.errno_as(&user(7, 7, &[]), Op::GetXattr(file.clone(), b"user.a"[..].into())),
        libc::EACCES
    );
    assert_eq!(f.errno_as(&owner, Op::GetXattr(file.clone(), b"security.a"[..].into())), 0);
    assert_eq!(
        f.errno_as(&owner, Op::GetXattr(link.clone(), b"trusted.a"[..].into())),
        libc::ENODATA
    );
    let flags = |create, replace| XattrFlags { create, replace };
    let with = |flags| Op::SetXattr(file.clone(), b"user.a"[..].into(), b"2"[..].into(), flags);
    assert_eq!(f.errno(with(flags(true, false))), libc::EEXIST);
    assert_eq!(f.errno(with(flags(false, true))), 0);
    assert_eq!(
        f.call(Op::GetXattr(file.clone(), b"user.a"[..].into())),
        Ok(Answer::Bytes(b"2"[..].into()))
    );
    assert_eq!(
        f.call(Op::ListXattr(file.clone())),
        Ok(Answer::Bytes(b"security.a\0user.a\0"[..].into()))
    );
    assert_eq!(f.errno(Op::RemoveXattr(file.clone(), b"user.a"[..].into())), 0);
    assert_eq!(f.errno(Op::RemoveXattr(file.clone(), b"user.a"[..].into())), libc::ENODATA);
    // Names together are bounded (`XATTR_NAMES_MAX`): four times what a listing can return on
    // Linux.
    let long = |i: u32| format!("user.{i:0250}").into_bytes();
    let full = (0..1100).find(|i| f.errno(set(&file, &long(*i), b"")) == libc::ENOSPC);
    assert!(full.is_some_and(|count| count > 1000), "{full:?}");
    f.call(Op::Release(file.ino)).unwrap();
    f.call(Op::Unlink(at(1, "f"))).unwrap();
    f.check();
}

/// Unused objects are deleted after the grace period, and checked again before that.
#[test]
fn object_deletion_after_the_grace_period() {
    let f = fixture();
    for path in ["a", "b"] {
        let inode = f.inode(create(path));
        f.inode(commit(inode.ino, path, inode.data_change, NewData::Packed(range(70, 10)), 10));
        f.call(Op::Release(inode.ino)).unwrap();
    }
    f.call(Op::Unlink(at(1, "a"))).unwrap();
    let due = |f: &Fixture, after: i64| {
        f.node.due_objects((1_000 + after) * SECOND, 100, &|_| false).unwrap()
    };
    assert_eq!(due(&f, 100), [0u64; 0], "one file still refers to it");
    f.call(Op::Unlink(at(1, "b"))).unwrap();
    assert_eq!(due(&f, 5), [0u64; 0], "the grace period is 10 s");
    assert_eq!(due(&f, 11), [70]);
    assert_eq!(due(&f, 11), [70], "asked again before it was forgotten");
    let inode = f.inode(create("c"));
    let late = commit(inode.ino, "c", inode.data_change, NewData::Packed(range(70, 10)), 10);
    assert_eq!(f.errno(late.clone()), libc::EIO, "it is being deleted");
    f.node.forget_object(70).unwrap();
    assert_eq!(due(&f, 100), [0u64; 0]);
    f.check();
}

#[test]
fn clones_share_and_count() {
    let f = fixture();
    let (a, b) = (f.inode(create("a")), f.inode(create("b")));
    let a = f.inode(commit(a.ino, "a", a.data_change, NewData::Packed(range(70, 100)), 100));
    let clone = |from: &str, from_ino, from_offset, to_offset, len| Op::Clone {
        from: seen(from_ino, from),
        from_offset,
        to: seen(b.ino, "b"),
        to_offset,
        len,
    };
    assert_eq!(f.errno(clone("a", a.ino, 50, 0, 51)), libc::EINVAL);
    let whole = f.inode(clone("a", a.ino, 0, 0, 100));
    assert_eq!((whole.size, whole.data.clone()), (100, a.data.clone()));
    assert_eq!(f.check().objects[&70], 200);
    assert_eq!(f.errno(clone("b", b.ino, 0, 50, 60)), libc::EINVAL, "overlap");
    assert_eq!(f.inode(clone("b", b.ino, 0, 150, 50)).size, 200);
    assert_eq!(f.check().objects[&70], 250);
    f.inode(commit(a.ino, "a", a.data_change, NewData::Inline(b"x"[..].into()), 1));
    assert_eq!(f.errno(clone("a", a.ino, 0, 0, 1)), libc::EOPNOTSUPP);
    assert_eq!(f.check().objects[&70], 150);
}

#[test]
fn figures_of_trees_come_from_shares() {
    let f = fixture();
    f.inode(mkdir("a"));
    f.inode(mkdir("a/b"));
    for i in 0..10 {
        let path = format!("a/b/f{i}");
        f.inode(create(&path));
        let inode = f.inode(lookup(&path));
        let me = InodeRef {
            ino: inode.ino,
            seen: Some((f.inode(lookup("a/b")).ino, name(&format!("f{i}")))),
        };
        f.inode(Op::SetAttr(me, SetAttr { size: Some(100), ..SetAttr::default() }));
    }
    let Ok(Answer::Usage(tree)) = f.call(Op::TreeUsage(f.inode(lookup("a")).ino)) else { panic!() };
    assert_eq!((tree.files, tree.dirs, tree.bytes), (10, 1, 1000));
    let Ok(Answer::Usage(all)) = f.call(Op::Usage) else { panic!() };
    assert_eq!((all.files, all.dirs, all.bytes), (10, 2, 1000));
    assert_eq!(f.errno(Op::TreeUsage(999)), libc::ENOENT);
    for i in 0..10 {
        let ino = f.inode(lookup(&format!("a/b/f{i}"))).ino;
        f.call(Op::Release(ino)).unwrap();
    }
    // A clean stop records the figures; so does adding them up after any other.
    f.node.close().unwrap();
    f.inode(create("after"));
    f.call(Op::Unlink(at(1, "after"))).unwrap();
    f.call(Op::Release(f.inode(create("more")).ino)).unwrap();
    f.call(Op::Unlink(at(1, "more"))).unwrap();
    f.node.close().unwrap();
    let f = f.crash(true);
    assert_eq!(f.call(Op::Usage), Ok(Answer::Usage(all)));
    let f = f.crash(false);
    assert_eq!(f.call(Op::Usage), Ok(Answer::Usage(all)));
}

#[test]
fn numbers_are_never_given_twice() {
    let mut f = fixture();
    let (mut inodes, mut objects) = (0, 0);
    for round in 0..5 {
        let ino = f.inode(create(&format!("f{round}"))).ino;
        assert!(ino > inodes);
        let Ok(Answer::Objects { first, count: 10 }) = f.call(Op::AllocObjects(10)) else {
            panic!()
        };
        assert!(first > objects);
        objects = first + 9;
        let change = f.inode(lookup(&format!("f{round}"))).change;
        f.call(Op::Sync).unwrap();
        f = f.crash(round % 2 == 0);
        let later = f.inode(create(&format!("g{round}")));
        assert!(later.change > change && later.ino > ino);
        inodes = later.ino;
    }
    assert_eq!(f.errno(Op::AllocObjects(0)), libc::EINVAL);
}
