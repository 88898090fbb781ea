//! Quotas of a node: what is refused, what counts, and that it is exact after any sequence of
//! operations, crashes among them, and with many threads at the limit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use common::rules::{create, lookup, mkdir, rename};
use common::{Fixture, at, config, name, user};
use kestrel_engine::EngineError;
use kestrel_types::clock::SECOND;
use kestrel_types::ids::ROOT;
use kestrel_types::name::InodeRef;
use kestrel_types::quota::{QuotaInfo, QuotaLimits, QuotaSubject, QuotaUsage};
use kestrel_types::request::{
    Answer, Commit, Creds, Done, NewData, Op, OpenFlags, RenameFlags, Request, SetAttr,
};

fn limits(bytes: impl Into<Option<u64>>, files: impl Into<Option<u64>>) -> QuotaLimits {
    QuotaLimits { bytes: bytes.into(), files: files.into(), ..QuotaLimits::default() }
}

fn set(f: &Fixture, of: QuotaSubject, limits: QuotaLimits) -> QuotaInfo {
    match f.call(Op::QuotaSet(of, Box::new(limits))) {
        Ok(Answer::Quotas(quotas)) => quotas[0],
        other => panic!("{other:?}"),
    }
}

fn set_dir(f: &Fixture, path: &str, limits: QuotaLimits) -> QuotaInfo {
    set(f, QuotaSubject::Dir(f.inode(lookup(path)).ino), limits)
}

fn all(f: &Fixture) -> Vec<QuotaInfo> {
    match f.call(Op::QuotaList(None)) {
        Ok(Answer::Quotas(quotas)) => quotas,
        other => panic!("{other:?}"),
    }
}

fn used(f: &Fixture, of: QuotaSubject) -> (i64, i64) {
    let found = all(f).into_iter().find(|info| info.of == of).unwrap();
    (found.used.files, found.used.bytes)
}

/// Every quota says what its names and inodes give.
fn is_exact(f: &Fixture) -> Result<(), String> {
    match f.call(Op::QuotaCheck { repair: false }) {
        Ok(Answer::Quotas(quotas)) => {
            let wrong = quotas.iter().find(|info| info.counted != Some(info.used));
            wrong.map_or(Ok(()), |wrong| Err(format!("{wrong:?}")))
        }
        other => Err(format!("{other:?}")),
    }
}

/// A file as it is found at a path.
fn seen(f: &Fixture, path: &str) -> InodeRef {
    let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = if dir.is_empty() { ROOT } else { f.inode(lookup(dir)).ino };
    InodeRef { ino: f.inode(lookup(path)).ino, seen: Some((parent, name(last))) }
}

fn commit(f: &Fixture, path: &str, size: u64) -> Op {
    let base = f.inode(lookup(path)).data_change;
    let (inode, size) = (seen(f, path), Some(size));
    Op::Commit(Commit { inode, base, data: NewData::Unchanged, size, mtime: 5, kill_suid: false })
}

/// Gives a file so many bytes.
fn write(f: &Fixture, path: &str, size: u64) -> i32 {
    f.errno(commit(f, path, size))
}

fn link(f: &Fixture, from: &str, to: &str) -> Op {
    Op::Link(seen(f, from), at(ROOT, to))
}

/// Makes a file, and closes it.
fn make(f: &Fixture, path: &str) {
    let ino = f.inode(create(path)).ino;
    f.call(Op::Release(ino)).unwrap();
}

fn fixture() -> Fixture {
    Fixture::new(config(3))
}

/// Files and bytes of nested directories are limited by each of them, and room that is given back
/// can be used again.
#[test]
fn nested_directories() {
    let f = fixture();
    for dir in ["a", "a/b", "a/b/c", "other"] {
        f.inode(mkdir(dir));
    }
    f.inode(create("a/b/early"));
    assert_eq!(write(&f, "a/b/early", 100), 0);
    let a = set_dir(&f, "a", limits(1000, 6));
    assert_eq!(a.used, QuotaUsage { files: 3, bytes: 100 });
    let b = set_dir(&f, "a/b", limits(500, None));
    assert_eq!(b.used, QuotaUsage { files: 2, bytes: 100 });
    assert_eq!(used(&f, a.of), (3, 100));
    assert_eq!(write(&f, "a/b/early", 501), libc::EDQUOT);
    assert_eq!(write(&f, "a/b/early", 500), 0);
    f.inode(create("a/one"));
    assert_eq!(write(&f, "a/one", 501), libc::EDQUOT);
    assert_eq!(write(&f, "a/one", 500), 0);
    assert_eq!(f.errno(Op::Symlink(at(ROOT, "a/s"), b"x"[..].into())), libc::EDQUOT);
    assert_eq!(write(&f, "a/one", 400), 0);
    f.inode(Op::Symlink(at(ROOT, "a/s"), b"x"[..].into()));
    f.inode(mkdir("a/b/c/d"));
    for op in [mkdir("a/b/c/e"), create("a/b/c/e"), create("a/f")] {
        assert_eq!(f.errno(op), libc::EDQUOT);
    }
    assert_eq!(used(&f, a.of), (6, 901));
    assert_eq!(used(&f, b.of), (3, 500));
    f.removed(Op::RmDir(at(ROOT, "a/b/c/d"), None));
    f.inode(create("a/b/c/e"));
    f.inode(create("other/free"));
    is_exact(&f).unwrap();
    f.check();
}

/// The superuser is limited as everybody is, and only the superuser handles quotas.
#[test]
fn superuser_and_others() {
    let f = fixture();
    f.inode(mkdir("a"));
    let dir = f.inode(lookup("a")).ino;
    set_dir(&f, "a", limits(None, 0));
    assert_eq!(f.errno(create("a/f")), libc::EDQUOT);
    let of = QuotaSubject::Dir(dir);
    let someone = user(1000, 1000, &[]);
    for op in [
        Op::QuotaSet(of, Box::new(limits(None, 5))),
        Op::QuotaRemove(of),
        Op::QuotaList(None),
        Op::QuotaCheck { repair: true },
    ] {
        assert_eq!(f.errno_as(&someone, op), libc::EPERM);
    }
    let told = f.call_as(&someone, Op::QuotaList(Some(InodeRef::by_id(dir))));
    assert!(matches!(told, Ok(Answer::Quotas(quotas)) if quotas.len() == 1));
    assert_eq!(f.errno(Op::QuotaRemove(QuotaSubject::Dir(4711))), libc::ENOENT);
    assert_eq!(f.errno(Op::QuotaSet(QuotaSubject::Dir(4711), Box::default())), libc::ENOENT);
    assert_eq!(f.call(Op::QuotaRemove(of)), Ok(Answer::Done));
    f.inode(create("a/f"));
}

/// A limit below the usage is allowed: nothing grows, everything shrinks.
#[test]
fn limit_below_usage() {
    let f = fixture();
    f.inode(mkdir("a"));
    for name in ["a/x", "a/y"] {
        make(&f, name);
        assert_eq!(write(&f, name, 100), 0);
    }
    let a = set_dir(&f, "a", limits(50, 1));
    assert_eq!(f.errno(create("a/z")), libc::EDQUOT);
    assert_eq!(write(&f, "a/x", 101), libc::EDQUOT);
    assert_eq!(write(&f, "a/x", 99), 0);
    f.call(rename("a/x", "a/y")).unwrap();
    assert_eq!(used(&f, a.of), (1, 99));
    f.removed(Op::Unlink(at(ROOT, "a/y")));
    f.inode(create("a/z"));
    is_exact(&f).unwrap();
}

/// A file takes its charge over an edge if that fits; directories and files with several names
/// stay, as under project quotas of XFS.
#[test]
fn moves_over_an_edge() {
    let f = fixture();
    for dir in ["a", "a/in", "b", "b/deep", "free"] {
        f.inode(mkdir(dir));
    }
    for file in ["a/f", "a/g", "free/h"] {
        make(&f, file);
        assert_eq!(write(&f, file, 60), 0);
    }
    let a = set_dir(&f, "a", limits(1000, 100));
    let b = set_dir(&f, "b", limits(100, 100));
    f.call(rename("a/f", "b/deep/f")).unwrap();
    assert_eq!(f.errno(rename("a/g", "b/g")), libc::EDQUOT);
    assert_eq!(f.errno(rename("free/h", "b/h")), libc::EDQUOT);
    assert_eq!((used(&f, a.of), used(&f, b.of)), ((2, 60), (2, 60)));
    f.call(rename("a/g", "b/deep/f")).unwrap();
    for op in [rename("a/in", "b/in"), rename("b/deep", "free/deep"), rename("free", "a/free")] {
        assert_eq!(f.errno(op), libc::EXDEV);
    }
    f.call(rename("a", "free/a")).unwrap();
    f.call(rename("free/a", "a")).unwrap();
    assert_eq!(f.errno(link(&f, "free/h", "a/h")), libc::EXDEV);
    assert_eq!(f.errno(link(&f, "b/deep/f", "h")), libc::EXDEV);
    f.call(link(&f, "b/deep/f", "b/second")).unwrap();
    assert_eq!(used(&f, b.of), (3, 60));
    assert_eq!(f.errno(rename("b/second", "a/second")), libc::EXDEV);
    assert_eq!(write(&f, "b/second", 101), libc::EDQUOT);
    assert_eq!(write(&f, "b/second", 100), 0);
    f.removed(Op::Unlink(at(ROOT, "b/second")));
    assert_eq!(used(&f, b.of), (2, 100));
    f.removed(Op::Unlink(at(ROOT, "b/deep/f")));
    assert_eq!(used(&f, b.of), (1, 0));
    is_exact(&f).unwrap();
}

/// Bytes of files without names count until the last close.
#[test]
fn files_without_names() {
    let f = fixture();
    f.inode(mkdir("a"));
    let a = set_dir(&f, "a", limits(100, 10));
    let QuotaSubject::Dir(dir) = a.of else { unreachable!() };
    let temporary = f.inode(Op::TmpFile { dir, mode: 0o600, exclusive: false });
    let grow = |size| {
        let now = f.inode(Op::GetAttr(InodeRef::by_id(temporary.ino)));
        f.errno(Op::SetAttr(
            InodeRef::by_id(now.ino),
            SetAttr { size: Some(size), ..SetAttr::default() },
        ))
    };
    assert_eq!(grow(101), libc::EDQUOT);
    assert_eq!(grow(80), 0);
    assert_eq!(used(&f, a.of), (0, 80));
    let file = f.inode(create("a/f"));
    assert_eq!(write(&f, "a/f", 20), 0);
    f.removed(Op::Unlink(at(ROOT, "a/f")));
    assert_eq!(used(&f, a.of), (0, 100));
    f.call(Op::Link(InodeRef::by_id(temporary.ino), at(ROOT, "a/t"))).unwrap();
    assert_eq!(used(&f, a.of), (1, 100));
    is_exact(&f).unwrap();
    f.call(Op::Release(file.ino)).unwrap();
    assert_eq!(used(&f, a.of), (1, 80));
    is_exact(&f).unwrap();
}

/// Users, groups and the volume; the superuser's chown is not refused.
#[test]
fn users_groups_and_volume() {
    let f = fixture();
    let (one, two) = (user(1001, 50, &[50]), user(1002, 50, &[50]));
    f.inode_as(&one, create("first"));
    let (uid, gid) = (QuotaSubject::User(1001), QuotaSubject::Group(50));
    assert_eq!(set(&f, uid, limits(100, 2)).used.files, 1);
    set(&f, gid, limits(None, 3));
    f.inode_as(&one, create("second"));
    assert_eq!(f.errno_as(&one, create("third")), libc::EDQUOT);
    f.inode_as(&two, create("third"));
    assert_eq!(f.errno_as(&two, create("fourth")), libc::EDQUOT);
    f.inode(create("of-root"));
    let give = |path: &str, uid| {
        let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
        Op::SetAttr(seen(&f, path), set)
    };
    f.inode(give("of-root", 1001));
    assert_eq!(used(&f, uid).0, 3);
    f.inode(give("second", 0));
    assert_eq!(used(&f, uid).0, 2);
    assert_eq!(write(&f, "first", 101), libc::EDQUOT);
    let set_volume = set(&f, QuotaSubject::Volume, limits(50, None));
    assert_eq!(set_volume.used, QuotaUsage { files: 4, bytes: 0 });
    assert_eq!(write(&f, "second", 51), libc::ENOSPC);
    assert_eq!(write(&f, "second", 50), 0);
    is_exact(&f).unwrap();
}

/// Usage is exact with more quotas than a worker remembers from batch to batch, and after the set
/// of quotas has changed.
#[test]
fn quotas_of_many_users() {
    let f = Fixture::new(config(1));
    let of = |number: u32| QuotaSubject::User(2000 + number);
    for number in 0..150 {
        set(&f, of(number), limits(None, 3));
    }
    let make = |round: u32| {
        let requests = (0..150).map(|number| {
            let creds = user(2000 + number, 50, &[50]);
            let done: Done = Box::new(|reply| assert!(reply.is_ok(), "{reply:?}"));
            (Request { creds, op: create(&format!("{round}-{number}")) }, done)
        });
        f.node.submit_many(requests.collect());
    };
    make(0);
    make(1);
    set(&f, QuotaSubject::Volume, limits(None, 1000));
    make(2);
    for number in 0..150 {
        assert_eq!(used(&f, of(number)), (3, 0));
        let creator = user(2000 + number, 50, &[50]);
        assert_eq!(f.errno_as(&creator, create(&format!("3-{number}"))), libc::EDQUOT);
    }
    is_exact(&f).unwrap();
}

/// Above a soft limit there is the grace period, and a new one after having been below it.
#[test]
fn soft_limits() {
    let f = fixture();
    f.inode(mkdir("a"));
    let soft = QuotaLimits { soft_files: Some(1), grace: 60, ..limits(None, 10) };
    let a = set_dir(&f, "a", soft);
    let since = |f: &Fixture| all(f)[0].since.files;
    f.inode(create("a/1"));
    assert_eq!(since(&f), 0);
    f.inode(create("a/2"));
    assert_eq!(since(&f), 1_000 * SECOND);
    f.clock.advance(60 * SECOND);
    f.inode(create("a/3"));
    f.clock.advance(SECOND);
    assert_eq!(f.errno(create("a/4")), libc::EDQUOT);
    let f = f.crash(false);
    assert_eq!(f.errno(create("a/4")), libc::EDQUOT);
    for name in ["a/1", "a/2"] {
        f.removed(Op::Unlink(at(ROOT, name)));
    }
    assert_eq!((since(&f), used(&f, a.of).0), (0, 1));
    f.inode(create("a/4"));
}

/// No clone is made where its names would not be charged, and no quota while one is not finished.
#[test]
fn clones_and_quotas() {
    let f = fixture();
    for dir in ["a", "src", "src/d"] {
        f.inode(mkdir(dir));
    }
    set_dir(&f, "a", limits(None, 100));
    let source = f.inode(lookup("src")).ino;
    let clone = |place: &str| Op::CloneDir { source, at: None, place: at(ROOT, place) };
    assert_eq!(f.errno(clone("a/copy")), libc::EOPNOTSUPP);
    f.inode(clone("copy"));
    let src = QuotaSubject::Dir(source);
    assert_eq!(f.errno(Op::QuotaSet(src, Box::default())), libc::EBUSY);
    while f.node.tidy_clones().unwrap() {}
    set(&f, src, limits(None, 100));
    set(&f, QuotaSubject::Volume, limits(None, 1000));
    assert_eq!(f.errno(clone("third")), libc::EOPNOTSUPP);
    is_exact(&f).unwrap();
}

/// Many threads at the limit: so many files as it allows are made, not one more or less.
#[test]
fn many_threads_at_the_limit() {
    const LIMIT: u64 = 500;
    let f = Arc::new(fixture());
    for dir in ["a", "a/b", "a/b/0", "a/b/1", "a/b/2"] {
        f.inode(mkdir(dir));
    }
    let of = set_dir(&f, "a", limits(None, LIMIT + 4)).of;
    set_dir(&f, "a/b", limits(None, LIMIT + 100));
    let (made, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (f, made, refused) = (&f, &made, &refused);
            scope.spawn(move || {
                for number in 0..100 {
                    let path = format!("a/b/{}/{thread}-{number}", number % 3);
                    match f.errno(create(&path)) {
                        0 => made.fetch_add(1, Ordering::Relaxed),
                        libc::EDQUOT => refused.fetch_add(1, Ordering::Relaxed),
                        other => panic!("errno {other}"),
                    };
                }
            });
        }
    });
    assert_eq!((made.into_inner(), refused.into_inner()), (LIMIT, 800 - LIMIT));
    assert_eq!(used(&f, of).0, LIMIT as i64 + 4);
    is_exact(&f).unwrap();
}

const DIRS: [&str; 5] = ["", "a", "a/b", "a/b/c", "d"];
const NAMES: [&str; 3] = ["x", "y", "z"];

fn place(dir: u8, name: u8) -> String {
    let (dir, name) = (DIRS[usize::from(dir) % DIRS.len()], NAMES[usize::from(name) % NAMES.len()]);
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

type Raw = (u8, u8, u8, u8, u8, u16);

/// An operation, or none if it makes no sense now.
fn op_of(f: &Fixture, (kind, dir, name, to, other, size): Raw) -> Option<Op> {
    let (path, target) = (place(dir, name), place(to, other));
    let found = |path: &str| match f.call(lookup(path)) {
        Ok(Answer::Entry { inode, .. }) => Some(*inode),
        _ => None,
    };
    Some(match kind % 12 {
        0 | 1 => create(&path),
        2 => mkdir(&path),
        3 => Op::Symlink(at(ROOT, &path), vec![b's'; usize::from(size) % 60 + 1].into()),
        4 | 5 => {
            found(&path)?;
            commit(f, &path, u64::from(size) % 400)
        }
        6 => Op::Unlink(at(ROOT, &path)),
        7 => Op::RmDir(at(ROOT, &path), None),
        8 => Op::Rename(
            at(ROOT, &path),
            at(ROOT, &target),
            RenameFlags { exchange: size % 4 == 0, ..RenameFlags::default() },
        ),
        9 => {
            found(&path)?;
            Op::Link(seen(f, &path), at(ROOT, &target))
        }
        10 => {
            let (uid, gid) = (u32::from(to % 3) * 100, u32::from(other % 3) * 10);
            let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
            found(&path)?;
            Op::SetAttr(seen(f, &path), set)
        }
        _ => {
            let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
            Op::OpenAt(at(ROOT, &path), flags)
        }
    })
}

const SUBJECTS: usize = 7;

fn subject(f: &Fixture, number: usize) -> Option<QuotaSubject> {
    Some(match number % SUBJECTS {
        0 => QuotaSubject::User(100),
        1 => QuotaSubject::Group(10),
        2 => QuotaSubject::Volume,
        dir => match f.call(lookup(["a", "a/b", "a/b/c", "d"][dir - 3])) {
            Ok(Answer::Entry { inode, .. }) => QuotaSubject::Dir(inode.ino),
            _ => return None,
        },
    })
}

/// Sets or removes a quota.
fn change_quota(f: &Fixture, (_, number, files, bytes, remove, _): Raw) {
    let Some(of) = subject(f, usize::from(number)) else { return };
    let op = match remove % 4 {
        0 => Op::QuotaRemove(of),
        _ => {
            let limits = limits(u64::from(bytes) * 10, u64::from(files) % 16);
            Op::QuotaSet(of, Box::new(limits))
        }
    };
    let _removed_before = f.call(op);
}

/// Runs a sequence, with commits that fail: usage is exact after each step, an operation that
/// succeeds leaves no quota above its limit that it grew, and one that is refused has changed
/// nothing.
fn run(raws: &[Raw], workers: usize) -> Result<(), TestCaseError> {
    let mut f = Fixture::new(config(workers));
    for dir in DIRS.into_iter().skip(1) {
        f.inode(mkdir(dir));
    }
    for raw in raws {
        match raw.0 {
            0..=24 => change_quota(&f, *raw),
            25..=34 => f = f.crash(false),
            35..=44 => f.engine.fail_commit(EngineError::Io("injected".into())),
            45..=54 => f.engine.fail_commit(EngineError::NoSpace),
            _ => {
                let Some(op) = op_of(&f, *raw) else { continue };
                let before = all(&f);
                let reply = f.call(op.clone());
                let after = all(&f);
                let frees = matches!(&op, Op::SetAttr(..));
                for (was, is) in before.iter().zip(&after) {
                    let grew_above = |was: i64, is: i64, limit: Option<u64>| {
                        is > was && limit.is_some_and(|limit| is > limit as i64)
                    };
                    let files = grew_above(was.used.files, is.used.files, is.limits.files);
                    let bytes = grew_above(was.used.bytes, is.used.bytes, is.limits.bytes);
                    prop_assert!(frees || !files && !bytes, "{op:?}: {was:?} {is:?}");
                }
                if reply.is_err() {
                    prop_assert_eq!(&before, &after, "{:?}: {:?}", op, reply);
                }
                if let Ok(Answer::Opened { inode, .. }) = reply {
                    // With a commit that fails it stays open.
                    let _released = f.call(Op::Release(inode.ino));
                }
            }
        }
        is_exact(&f).map_err(|why| TestCaseError::fail(format!("{raw:?}: {why}")))?;
    }
    f.check();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 5_000, failure_persistence: None,
        ..ProptestConfig::default() })]

    /// Whatever happens, what is told is what there is.
    #[test]
    fn usage_is_exact(raws in prop::collection::vec(any::<Raw>(), 1..80), workers in 1..4usize) {
        run(&raws, workers)?;
    }
}

/// Operations that the node runs together charge each what it does.
#[test]
fn batches_at_the_limit() {
    let f = fixture();
    f.inode(mkdir("a"));
    let of = set_dir(&f, "a", limits(None, 10)).of;
    let (made, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let requests = (0..40).map(|number| {
        let op = if number % 4 == 3 {
            Op::Unlink(at(ROOT, &format!("a/{}", number - 1)))
        } else {
            create(&format!("a/{number}"))
        };
        let (made, refused) = (made.clone(), refused.clone());
        let removes = matches!(op, Op::Unlink(_));
        let done: Done = Box::new(move |reply| match (reply, removes) {
            (Ok(_), false) => drop(made.fetch_add(1, Ordering::Relaxed)),
            (Ok(_), true) => drop(made.fetch_sub(1, Ordering::Relaxed)),
            (Err(_), _) => drop(refused.fetch_add(1, Ordering::Relaxed)),
        });
        (Request { creds: Creds::root(), op }, done)
    });
    f.node.submit_many(requests.collect());
    assert_eq!(used(&f, of).0, made.load(Ordering::Relaxed) as i64);
    assert!(used(&f, of).0 <= 10 && refused.load(Ordering::Relaxed) > 0);
    is_exact(&f).unwrap();
}
