//! The trash of a node: what is kept when a name is removed or replaced, under which name, and that
//! nothing is lost on the way, crashes among it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeSet;

use proptest::prelude::*;

use common::rules::{create, fixture, lookup, mkdir, rename};
use common::{Fixture, at, config, name, user};
use kestrel_engine::EngineError;
use kestrel_types::clock::SECOND;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, NAME_MAX, Name};
use kestrel_types::quota::{QuotaLimits, QuotaSubject};
use kestrel_types::request::{
    Answer, Commit, DirEntry, NewData, Op, RenameFlags, SetAttr, XattrFlags,
};
use kestrel_types::trash::KeptName;

fn policy(dir: InodeId, value: &str) -> Op {
    let value = value.as_bytes().into();
    Op::SetXattr(InodeRef::by_id(dir), b"kestrel.trash"[..].into(), value, XattrFlags::default())
}

fn unlink(path: &str) -> Op {
    Op::Unlink(at(ROOT, path))
}

fn rmdir(path: &str) -> Op {
    Op::RmDir(at(ROOT, path), None)
}

fn link(f: &Fixture, path: &str, to: &str) -> Inode {
    f.inode(Op::Link(seen(f, path).unwrap(), at(ROOT, to)))
}

/// What has a path, named as a client names it that has seen it there.
fn seen(f: &Fixture, path: &str) -> Option<InodeRef> {
    match f.call(lookup(path)) {
        Ok(Answer::Entry { parent, inode }) => {
            let last = path.rsplit('/').next().unwrap();
            Some(InodeRef { ino: inode.ino, seen: Some((parent, name(last))) })
        }
        _ => None,
    }
}

/// Creates a file and closes it.
fn make(f: &Fixture, path: &str) -> Inode {
    let inode = f.inode(create(path));
    f.call(Op::Release(inode.ino)).unwrap();
    f.inode(lookup(path))
}

/// Makes the directories of the trash, and a directory `t` that keeps what is removed for an hour.
fn prepare(f: &Fixture) {
    for dir in [".trash", ".trash/kept"] {
        f.inode(Op::MkDir(at(ROOT, dir), 0o700));
    }
    let dir = f.inode(mkdir("t")).ino;
    f.call(policy(dir, "1h")).unwrap();
}

fn listed(f: &Fixture, dir: InodeId) -> Vec<DirEntry> {
    match f.call(Op::ReadDir { dir, after: None, limit: 1000, check: false }) {
        Ok(Answer::Entries { entries, .. }) => entries,
        other => panic!("{other:?}"),
    }
}

/// What is in the trash.
fn kept(f: &Fixture) -> Vec<(KeptName, DirEntry)> {
    let entries = listed(f, f.inode(lookup(".trash/kept")).ino);
    let named = |entry: DirEntry| (KeptName::decode(entry.name.as_bytes()).unwrap(), entry);
    entries.into_iter().map(named).collect()
}

/// The path in the trash of what is there alone.
fn only_kept(f: &Fixture) -> String {
    let [(_, entry)] = &kept(f)[..] else { panic!("{:?}", kept(f)) };
    format!(".trash/kept/{}", String::from_utf8_lossy(entry.name.as_bytes()))
}

/// A file goes to the trash as it is, under a name that says where it was and when it expires.
#[test]
fn removed_file() {
    let f = fixture();
    prepare(&f);
    let (dir, file) = (f.inode(lookup("t")).ino, make(&f, "t/file"));
    let gone = f.removed(unlink("t/file"));
    assert_eq!((gone.ino, gone.nlink, gone.mtime), (file.ino, 1, file.mtime));
    assert_eq!(f.errno(lookup("t/file")), libc::ENOENT);
    let [(name, entry)] = &kept(&f)[..] else { panic!("{:?}", kept(&f)) };
    assert_eq!((name.parent, name.ino, &*name.name), (dir, file.ino, &b"file"[..]));
    assert_eq!((entry.ino, entry.kind), (file.ino, Kind::File));
    let now = (1_000 * SECOND / SECOND).cast_unsigned();
    assert!((now + 3600..=now + 3660).contains(&name.expiry), "{name:?}");
    f.call(rename(&only_kept(&f), "t/file")).unwrap();
    let back = f.inode(lookup("t/file"));
    assert_eq!((back.ino, back.mode, back.mtime, back.uid), (file.ino, file.mode, file.mtime, 0));
    f.check();
}

/// A directory that was removed is kept, nothing can be made in it there, and out of the trash it
/// is as it was.
#[test]
fn removed_directory() {
    let f = fixture();
    prepare(&f);
    let dir = f.inode(mkdir("t/dir"));
    f.call(policy(dir.ino, "2d")).unwrap();
    make(&f, "t/dir/file");
    assert_eq!(f.errno(rmdir("t/dir")), libc::ENOTEMPTY);
    f.call(rename("t/dir/file", "elsewhere")).unwrap();
    assert_eq!(f.removed(rmdir("t/dir")).nlink, 0);
    let inside = |name: &str| at(dir.ino, name);
    let from = at(ROOT, "elsewhere");
    let linked = InodeRef::by_id(f.inode(lookup("elsewhere")).ino);
    for op in [
        Op::MkDir(inside("new"), 0o755),
        Op::Symlink(inside("new"), b"target"[..].into()),
        Op::Rename(from, inside("new"), RenameFlags::default()),
        Op::Link(linked, inside("new")),
        Op::TmpFile { dir: dir.ino, mode: 0o644, exclusive: false },
    ] {
        assert_eq!(f.errno(op), libc::ENOENT);
    }
    f.call(rename(&only_kept(&f), "t/again")).unwrap();
    assert_eq!(f.inode(lookup("t/again")).ino, dir.ino);
    make(&f, "t/again/file");
    f.removed(unlink("t/again/file"));
    assert_eq!(kept(&f)[0].0.parent, dir.ino);
    f.check();
}

/// What a rename replaces is kept, by the same operation.
#[test]
fn replaced() {
    let f = fixture();
    prepare(&f);
    let (old, new) = (make(&f, "t/old"), make(&f, "t/new"));
    f.call(rename("t/new", "t/old")).unwrap();
    assert_eq!(f.inode(lookup("t/old")).ino, new.ino);
    let [(name, _)] = &kept(&f)[..] else { panic!("{:?}", kept(&f)) };
    assert_eq!((name.ino, &*name.name), (old.ino, &b"old"[..]));
    let (old, new) = (f.inode(mkdir("t/d")), f.inode(mkdir("e")));
    f.call(rename("e", "t/d")).unwrap();
    assert_eq!(f.inode(lookup("t/d")).ino, new.ino);
    assert!(kept(&f).iter().any(|(name, _)| name.ino == old.ino));
    // What moves away from where things are kept has not been removed.
    make(&f, "t/moves");
    f.call(rename("t/moves", "moved")).unwrap();
    assert_eq!(kept(&f).len(), 2);
    f.check();
}

/// Of a file with several names the last one to go is kept.
#[test]
fn several_names() {
    let f = fixture();
    prepare(&f);
    let file = make(&f, "t/one");
    link(&f, "t/one", "t/two");
    assert_eq!(f.removed(unlink("t/one")).nlink, 1);
    assert!(kept(&f).is_empty());
    assert_eq!(f.removed(unlink("t/two")).nlink, 1);
    f.call(rename(&only_kept(&f), "t/one")).unwrap();
    assert_eq!(f.inode(lookup("t/one")).ino, file.ino);
    f.check();
}

/// What is removed from the trash goes, also where the policy is the root's; a directory may say
/// that nothing below it is kept.
#[test]
fn removed_for_good() {
    let f = fixture();
    prepare(&f);
    f.call(policy(ROOT, "1h")).unwrap();
    make(&f, "file");
    f.removed(unlink("file"));
    assert_eq!(f.removed(unlink(&only_kept(&f))).nlink, 0);
    assert!(kept(&f).is_empty());
    let scratch = f.inode(mkdir("scratch")).ino;
    f.call(policy(scratch, "none")).unwrap();
    make(&f, "scratch/file");
    assert_eq!(f.removed(unlink("scratch/file")).nlink, 0);
    f.inode(mkdir(".trash/kept/tree"));
    make(&f, ".trash/kept/tree/file");
    assert_eq!(f.removed(unlink(".trash/kept/tree/file")).nlink, 0);
    f.removed(rmdir(".trash/kept/tree"));
    assert!(kept(&f).is_empty());
    f.check();
}

/// Nothing is removed while there is no trash that is the superuser's alone.
#[test]
fn no_trash() {
    let f = fixture();
    let dir = f.inode(mkdir("t")).ino;
    f.call(policy(dir, "1h")).unwrap();
    make(&f, "t/file");
    make(&f, "t/other");
    let refused = |f: &Fixture| {
        assert_eq!(f.errno(unlink("t/file")), libc::EIO);
        assert_eq!(f.errno(rename("t/other", "t/file")), libc::EIO);
    };
    refused(&f);
    f.inode(Op::Symlink(at(ROOT, ".trash"), b"t"[..].into()));
    refused(&f);
    f.removed(unlink(".trash"));
    let trash = f.inode(Op::MkDir(at(ROOT, ".trash"), 0o700)).ino;
    make(&f, ".trash/kept");
    refused(&f);
    f.removed(unlink(".trash/kept"));
    f.inode(Op::MkDir(at(ROOT, ".trash/kept"), 0o700));
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    f.call(Op::SetAttr(InodeRef::by_id(trash), set)).unwrap();
    refused(&f);
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    f.call(Op::SetAttr(InodeRef::by_id(trash), set)).unwrap();
    f.removed(unlink("t/file"));
    f.check();
}

/// Users remove what they may, and the trash is not theirs to enter.
#[test]
fn permissions() {
    let f = fixture();
    prepare(&f);
    let alice = user(100, 10, &[]);
    make(&f, "t/root's");
    assert_eq!(f.errno_as(&alice, unlink("t/root's")), libc::EACCES);
    let dir = f.inode_as(&alice, mkdir("hers")).ino;
    f.call_as(&alice, policy(dir, "1h")).unwrap();
    let file = f.inode_as(&alice, create("hers/file"));
    f.call_as(&alice, Op::Release(file.ino)).unwrap();
    f.call_as(&alice, unlink("hers/file")).unwrap();
    assert_eq!(f.errno_as(&alice, lookup(&only_kept(&f))), libc::EACCES);
    assert_eq!(f.errno_as(&alice, rename(&only_kept(&f), "hers/file")), libc::EACCES);
    let inode = f.inode(lookup(&only_kept(&f)));
    assert_eq!((inode.uid, inode.gid), (100, 10));
    f.check();
}

/// A file that is open when its name goes is written to as before.
#[test]
fn open_file() {
    let f = fixture();
    prepare(&f);
    let file = f.inode(create("t/open"));
    f.removed(unlink("t/open"));
    let commit = Commit {
        inode: InodeRef { ino: file.ino, seen: Some((f.inode(lookup("t")).ino, name("open"))) },
        base: file.data_change,
        data: NewData::Inline(b"later"[..].into()),
        size: Some(5),
        mtime: 5,
        kill_suid: false,
    };
    f.call(Op::Commit(commit)).unwrap();
    f.call(Op::Release(file.ino)).unwrap();
    assert_eq!(f.inode(lookup(&only_kept(&f))).size, 5);
    f.check();
}

/// The name of something with a long name is its beginning, and two such are two.
#[test]
fn long_names() {
    let f = fixture();
    prepare(&f);
    for end in ["1", "2"] {
        let long = format!("t/{}{end}", "n".repeat(NAME_MAX - 1));
        make(&f, &long);
        f.removed(unlink(&long));
    }
    let kept = kept(&f);
    assert_eq!(kept.len(), 2);
    assert!(kept.iter().all(|(name, _)| name.is_cut && name.name.len() > 200));
    f.check();
}

/// Quotas of directories are given back what goes to the trash; a directory with a quota of its
/// own goes for good.
#[test]
fn quotas() {
    let f = fixture();
    prepare(&f);
    let used = |dir: InodeId| match f.call(Op::QuotaList(None)) {
        Ok(Answer::Quotas(quotas)) => {
            quotas.iter().find(|quota| quota.of == QuotaSubject::Dir(dir)).unwrap().used.files
        }
        other => panic!("{other:?}"),
    };
    let limit = |dir: InodeId| {
        let limits = QuotaLimits { files: Some(100), ..QuotaLimits::default() };
        f.call(Op::QuotaSet(QuotaSubject::Dir(dir), Box::new(limits))).unwrap();
    };
    let dir = f.inode(lookup("t")).ino;
    limit(dir);
    f.inode(mkdir("t/dir"));
    make(&f, "t/dir/file");
    link(&f, "t/dir/file", "t/dir/two");
    assert_eq!(used(dir), 3);
    for path in ["t/dir/file", "t/dir/two"] {
        f.removed(unlink(path));
    }
    f.removed(rmdir("t/dir"));
    assert_eq!((used(dir), kept(&f).len()), (0, 2));
    let own = f.inode(mkdir("t/own")).ino;
    limit(own);
    f.removed(rmdir("t/own"));
    assert_eq!(kept(&f).len(), 2);
    for (name, entry) in kept(&f) {
        let path = format!(".trash/kept/{}", String::from_utf8_lossy(entry.name.as_bytes()));
        f.call(rename(&path, &format!("t/{}", String::from_utf8_lossy(&name.name)))).unwrap();
    }
    assert_eq!(used(dir), 2);
    match f.call(Op::QuotaCheck { repair: false }) {
        Ok(Answer::Quotas(quotas)) => {
            assert!(quotas.iter().all(|info| info.counted == Some(info.used)), "{quotas:?}");
        }
        other => panic!("{other:?}"),
    }
    f.check();
}

/// All inodes in the tree and in the trash.
fn all_inodes(f: &Fixture) -> BTreeSet<InodeId> {
    let (mut dirs, mut found) = (vec![ROOT], BTreeSet::new());
    while let Some(dir) = dirs.pop() {
        for entry in listed(f, dir) {
            found.insert(entry.ino);
            if entry.kind == Kind::Dir {
                dirs.push(entry.ino);
            }
        }
    }
    found
}

type Raw = (u8, u8, u8, u8);

fn run(raws: &[Raw], workers: usize) -> Result<(), TestCaseError> {
    let mut f = Fixture::new(config(workers));
    prepare(&f);
    let mut made = all_inodes(&f);
    let path = |number: u8| {
        let dirs = ["t", "t/a", "t/a/b", "t/c"];
        let names = ["a", "b", "c", "x", "y"];
        format!("{}/{}", dirs[usize::from(number) % 4], names[usize::from(number) / 4 % 5])
    };
    for (what, one, two, kind) in raws {
        let (one, two) = (path(*one), path(*two));
        let op = match what % 16 {
            0..=2 => Op::MkNod { place: at(ROOT, &one), kind: Kind::File, mode: 0o644, rdev: 0 },
            3..=5 => mkdir(&one),
            6..=8 => unlink(&one),
            9..=10 => rmdir(&one),
            11..=12 => rename(&one, &two),
            13 => match kept(&f).into_iter().nth(usize::from(*kind) % 4) {
                // Out of the trash again.
                Some((_, entry)) => {
                    let name = Name::new(entry.name.as_bytes()).unwrap();
                    let kept = f.inode(lookup(".trash/kept")).ino;
                    let from = kestrel_types::name::PathRef::new(kept, name);
                    let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
                    Op::Rename(from, at(ROOT, &one), flags)
                }
                None => continue,
            },
            14 => match seen(&f, &one) {
                Some(file) => Op::Link(file, at(ROOT, &two)),
                None => continue,
            },
            _ => {
                match kind % 3 {
                    0 => f = f.crash(false),
                    1 => f.engine.fail_commit(EngineError::Io("injected".into())),
                    _ => f.engine.fail_commit(EngineError::NoSpace),
                }
                continue;
            }
        };
        f.clock.advance(i64::from(*kind) * SECOND);
        if let Ok(Answer::Entry { inode, .. }) = f.call(op) {
            made.insert(inode.ino);
        }
        prop_assert_eq!(&all_inodes(&f), &made, "{:?}", (what, one, two, kind));
    }
    f.check();
    Ok(())
}

proptest! {
    /// Whatever is done below a directory with a trash, all that was ever made is there or in the
    /// trash.
    #[test]
    fn nothing_is_lost(raws in prop::collection::vec(any::<Raw>(), 1..120), workers in 1usize..3) {
        run(&raws, workers)?;
    }
}
