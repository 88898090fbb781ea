//! Rules of policies: which user sets them, which directory's word counts for what, and what an
//! immutable tree refuses.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::rules::{WRITE, create, fixture, lookup, mkdir, rename};
use common::{Fixture, at, config, errno, name, user};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::node::{Node, RootAttr};
use kestrel_meta::view::encode_dir_id;
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::compression::Compression;
use kestrel_types::entry::Entry;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Data, Inode, InodeFlags, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::name::InodeRef;
use kestrel_types::policy::{Consistency, Policy};
use kestrel_types::request::{
    Accessed, Answer, Commit, Creds, NewData, Op, OpenFlags, RenameFlags, Request, SetAttr,
    SetTime, XattrFlags,
};
use proptest::prelude::*;

const CONSISTENCY: &str = "kestrel.consistency";

fn set_as(key: &str, value: &str, dir: u64, flags: XattrFlags) -> Op {
    Op::SetXattr(InodeRef::by_id(dir), key.as_bytes().into(), value.as_bytes().into(), flags)
}

fn set(dir: u64, value: &str) -> Op {
    set_as(CONSISTENCY, value, dir, XattrFlags::default())
}

fn unset(dir: u64) -> Op {
    Op::RemoveXattr(InodeRef::by_id(dir), CONSISTENCY.as_bytes().into())
}

/// Sets or removes how what is below a directory is compressed.
fn compress(dir: u64, value: Option<Compression>) -> Op {
    match value {
        Some(value) => {
            set_as("kestrel.compression", &value.to_string(), dir, XattrFlags::default())
        }
        None => Op::RemoveXattr(InodeRef::by_id(dir), b"kestrel.compression"[..].into()),
    }
}

/// The value of a directory's attribute, or the errno.
fn get(f: &Fixture, ino: u64, key: &str) -> Result<String, i32> {
    get_of(f, InodeRef::by_id(ino), key)
}

fn get_of(f: &Fixture, inode: InodeRef, key: &str) -> Result<String, i32> {
    let asked = Op::GetXattr(inode, key.as_bytes().into());
    match f.call(asked.clone()) {
        Ok(Answer::Bytes(bytes)) => Ok(String::from_utf8(bytes.into()).unwrap()),
        _ => Err(f.errno(asked)),
    }
}

fn listed(f: &Fixture, ino: u64) -> Vec<u8> {
    match f.call(Op::ListXattr(InodeRef::by_id(ino))) {
        Ok(Answer::Bytes(names)) => names.into(),
        other => panic!("{other:?}"),
    }
}

fn in_dir(ino: u64, dir: u64, file: &str) -> InodeRef {
    InodeRef { ino, seen: Some((dir, name(file))) }
}

fn commit(file: &Inode, dir: u64, path: &str) -> Op {
    Op::Commit(Commit {
        inode: in_dir(file.ino, dir, path),
        base: file.data_change,
        data: NewData::Inline(b"bytes"[..].into()),
        size: Some(5),
        mtime: 5,
        kill_suid: false,
    })
}

/// A policy is seen, listed, replaced and removed as an extended attribute of its directory.
#[test]
fn policy_as_attributes() {
    let f = fixture();
    let dir = f.inode(mkdir("d")).ino;
    let file = in_dir(f.inode(create("d/f")).ino, dir, "f");
    assert_eq!(get(&f, dir, CONSISTENCY), Err(libc::ENODATA));
    assert_eq!(get(&f, dir, "kestrel.policy"), Ok(String::new()));
    assert_eq!(f.errno(unset(dir)), libc::ENODATA);
    let flags = |create, replace| XattrFlags { create, replace };
    let with = |flags| set_as(CONSISTENCY, "close-to-open", dir, flags);
    assert_eq!(f.errno(with(flags(false, true))), libc::ENODATA);
    assert_eq!(f.errno(with(flags(true, false))), 0);
    assert_eq!(f.errno(with(flags(true, false))), libc::EEXIST);
    assert_eq!(f.errno(with(flags(false, true))), 0);
    assert_eq!(get(&f, dir, CONSISTENCY).as_deref(), Ok("close-to-open"));
    assert_eq!(listed(&f, dir), b"kestrel.consistency\0");
    // A copy of it can be written to.
    assert_eq!(f.errno(set(dir, "immutable")), 0);
    assert_eq!(get(&f, dir, CONSISTENCY).as_deref(), Ok("immutable"));
    assert_eq!(listed(&f, dir), b"");
    // Files have none.
    assert_eq!(get_of(&f, file.clone(), CONSISTENCY), Err(libc::ENODATA));
    assert_eq!(get_of(&f, file.clone(), "kestrel.policy"), Err(libc::ENODATA));
    let (key, value) = (CONSISTENCY.as_bytes().into(), b"strict"[..].into());
    let with = Op::SetXattr(file, key, value, XattrFlags::default());
    assert_eq!(f.errno(with), libc::EOPNOTSUPP);
    assert_eq!(f.errno(unset(dir)), 0);
    assert_eq!((get(&f, dir, CONSISTENCY), listed(&f, dir)), (Err(libc::ENODATA), vec![]));
    f.check();
}

/// Unknown fields and values are refused, and so are users that do not own the directory.
#[test]
fn policies_that_are_refused() {
    let f = fixture();
    let (owner, other) = (user(5, 5, &[]), user(6, 6, &[]));
    let dir = f.inode_as(&owner, Op::MkDir(at(1, "d"), 0o777)).ino;
    for value in ["", "Strict", "immutable\n", "lz4", &"x".repeat(70_000)] {
        assert_eq!(f.errno(set(dir, value)), libc::EINVAL, "{value:.20}");
    }
    for key in ["kestrel.", "kestrel.none", "kestrel.consistency2"] {
        let with = set_as(key, "strict", dir, XattrFlags::default());
        assert_eq!(f.errno(with), libc::EOPNOTSUPP, "{key}");
        assert_eq!(get(&f, dir, key), Err(libc::ENODATA), "{key}");
    }
    assert_eq!(
        f.errno(set_as("kestrel.policy", "strict", dir, XattrFlags::default())),
        libc::EPERM
    );
    assert_eq!(f.errno_as(&other, set(dir, "strict")), libc::EPERM);
    assert_eq!(f.errno_as(&owner, set(dir, "immutable")), 0);
    assert_eq!(f.errno_as(&other, unset(dir)), libc::EPERM);
    assert_eq!(f.errno_as(&owner, unset(dir)), 0);
    let flags = Op::SetFlags(InodeRef::by_id(dir), InodeFlags::IMMUTABLE);
    assert_eq!((f.errno(flags), f.errno(set(dir, "strict"))), (0, libc::EPERM));
    f.check();
}

/// Every change below an immutable directory is refused, to root as well; what only reads is not.
#[test]
fn immutable_tree_refuses_changes() {
    let f = fixture();
    let top = f.inode(mkdir("top")).ino;
    let dir = f.inode(mkdir("top/d")).ino;
    let file = f.inode(create("top/d/f"));
    f.inode(create("outside"));
    f.inode(mkdir("top/d/empty"));
    assert_eq!(f.errno(set(top, "immutable")), 0);
    let known = || in_dir(file.ino, dir, "f");
    let set_attr = |set: SetAttr| Op::SetAttr(known(), set);
    let none = SetAttr::default;
    let key = || b"user.k"[..].into();
    let tmpfile = Op::TmpFile { dir, mode: 0o600, exclusive: false };
    let node = Op::MkNod { place: at(1, "top/d/p"), kind: Kind::Fifo, mode: 0o600, rdev: 0 };
    let append = OpenFlags { append: true, ..WRITE };
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    let found = in_dir(f.inode(lookup("outside")).ino, ROOT, "outside");
    let refused = vec![
        create("top/d/new"),
        mkdir("top/d/new"),
        node,
        Op::Symlink(at(1, "top/d/new"), b"x"[..].into()),
        Op::Link(found, at(1, "top/d/new")),
        Op::Link(known(), at(1, "new")),
        tmpfile,
        Op::Unlink(at(1, "top/d/f")),
        Op::RmDir(at(1, "top/d/empty"), None),
        rename("top/d/f", "top/d/g"),
        rename("top/d/f", "g"),
        rename("outside", "top/d/g"),
        rename("outside", "top/d/f"),
        rename("top/d", "elsewhere"),
        Op::Rename(at(1, "outside"), at(1, "top/d/f"), exchange),
        set_attr(SetAttr { mode: Some(0o600), ..none() }),
        set_attr(SetAttr { uid: Some(7), ..none() }),
        set_attr(SetAttr { size: Some(0), through_handle: true, ..none() }),
        set_attr(SetAttr { mtime: Some(SetTime::Now), atime: Some(SetTime::Now), ..none() }),
        Op::SetAttr(InodeRef::by_id(dir), SetAttr { mode: Some(0o700), ..none() }),
        Op::SetAttr(InodeRef::by_id(top), SetAttr { mode: Some(0o700), ..none() }),
        Op::SetFlags(known(), InodeFlags::NO_DUMP),
        Op::SetXattr(known(), key(), b"v"[..].into(), XattrFlags::default()),
        Op::SetXattr(InodeRef::by_id(dir), key(), b"v"[..].into(), XattrFlags::default()),
        Op::Open(known(), WRITE),
        Op::Open(known(), append),
        Op::OpenAt(at(1, "top/d/f"), WRITE),
        Op::OpenAt(at(1, "top/d/f"), OpenFlags { truncate: true, ..WRITE }),
        Op::Create { place: at(1, "top/d/f"), mode: 0o644, flags: WRITE, exclusive: false },
        commit(&file, dir, "f"),
        Op::Access(known(), libc::W_OK as u32),
        Op::Access(InodeRef::by_id(dir), libc::W_OK as u32),
        set(dir, "strict"),
        unset(dir),
    ];
    for op in refused {
        assert_eq!(f.errno(op.clone()), libc::EPERM, "{op:?}");
    }
    let read = OpenFlags { write: false, ..WRITE };
    let accessed = Op::Accessed(known(), Accessed { at: i64::MAX, relative: false });
    for op in [
        lookup("top/d/f"),
        Op::Open(known(), read),
        Op::Create { place: at(1, "top/d/f"), mode: 0o644, flags: read, exclusive: false },
        Op::Access(known(), libc::R_OK as u32),
        accessed,
        // The directory that says it has its own name in another one.
        rename("top", "moved"),
    ] {
        assert_eq!(f.errno(op.clone()), 0, "{op:?}");
    }
    assert_eq!(f.inode(lookup("moved/d/f")).atime, file.atime, "a read does not count");
    assert_eq!(f.errno(create("moved/d/new")), libc::EPERM);
    assert_eq!(f.errno(unset(top)), 0);
    assert_eq!(f.errno(commit(&file, dir, "f")), 0);
    assert_eq!(f.errno(Op::Unlink(at(1, "moved/d/f"))), 0);
    f.check();
}

/// What answers say a client may keep: nothing without a policy, nothing that has several names,
/// and nothing in a directory that not every user may search.
#[test]
fn policies_in_answers() {
    let f = fixture();
    let top = f.inode(mkdir("top")).ino;
    f.inode(mkdir("top/open"));
    f.inode(Op::MkDir(at(1, "top/closed"), 0o700));
    for path in ["top/open/f", "top/open/g", "top/closed/f"] {
        f.inode(create(path));
    }
    let open = f.inode(lookup("top/open")).ino;
    f.inode(Op::Link(in_dir(f.inode(lookup("top/open/g")).ino, open, "g"), at(1, "g")));
    let told = |path: &str| f.inode(lookup(path)).effective.consistency;
    assert_eq!(told("top/open/f"), None);
    assert_eq!(f.errno(set(top, "immutable")), 0);
    let immutable = Some(Consistency::Immutable);
    for (path, expected) in [
        ("top", immutable),
        ("top/open", immutable),
        ("top/open/f", immutable),
        ("top/closed", immutable),
        ("top/closed/f", None),
        ("top/open/g", None),
        ("g", None),
    ] {
        assert_eq!(told(path), expected, "{path}");
    }
    let dir = f.inode(lookup("top/open")).ino;
    assert_eq!(f.inode(Op::GetAttr(InodeRef::by_id(dir))).effective.consistency, immutable);
    let page = f.call(Op::ReadDirPlus { dir, after: None, limit: 9 });
    let Ok(Answer::EntriesPlus { entries, .. }) = page else { panic!("{page:?}") };
    let told: Vec<_> = entries.iter().map(|(_, inode)| inode.effective.consistency).collect();
    assert_eq!(told, [immutable], "the file with two names is not among them");
    f.check();
}

/// Opens for writing and creations tell how to compress, by the name that they go by, also where
/// nothing may be kept.
#[test]
fn compression_in_answers() {
    let f = fixture();
    let (top, other) = (f.inode(mkdir("top")).ino, f.inode(mkdir("other")).ino);
    let closed = f.inode(Op::MkDir(at(top, "closed"), 0o700)).ino;
    let file = f.inode(create("top/closed/f")).ino;
    f.inode(Op::Link(in_dir(file, closed, "f"), at(other, "g")));
    let zstd = Some(Compression::Zstd(3));
    let told = |op: Op| match f.call(op) {
        Ok(Answer::Opened { inode, .. }) => inode.effective,
        other => panic!("{other:?}"),
    };
    assert_eq!(told(Op::Open(in_dir(file, closed, "f"), WRITE)), Policy::default());
    assert_eq!(f.errno(set_as("kestrel.compression", "zstd", top, XattrFlags::default())), 0);
    assert_eq!(get(&f, top, "kestrel.compression").as_deref(), Ok("zstd:3"));
    assert_eq!(listed(&f, top), b"kestrel.compression\0");
    let compressed = Policy { compression: zstd, ..Policy::default() };
    let truncate = OpenFlags { truncate: true, ..WRITE };
    let made = |name: &str, dir: u64| {
        let (place, flags) = (at(dir, name), WRITE);
        Op::Create { place, mode: 0o600, flags, exclusive: true }
    };
    for (op, expected) in [
        (Op::Open(in_dir(file, closed, "f"), WRITE), compressed),
        (Op::Open(in_dir(file, closed, "f"), truncate), compressed),
        (Op::OpenAt(at(closed, "f"), WRITE), compressed),
        (Op::Open(in_dir(file, other, "g"), WRITE), Policy::default()),
        (Op::OpenAt(at(other, "g"), WRITE), Policy::default()),
        (made("h", closed), compressed),
        (made("h", other), Policy::default()),
        (Op::TmpFile { dir: closed, mode: 0o600, exclusive: true }, compressed),
        (Op::TmpFile { dir: other, mode: 0o600, exclusive: true }, Policy::default()),
    ] {
        assert_eq!(told(op.clone()), expected, "{op:?}");
    }
    let set = f.errno(set_as("kestrel.compression", "gzip", top, XattrFlags::default()));
    assert_eq!(set, libc::EINVAL);
    f.check();
}

/// The schedule of snapshots is an attribute of directories, beside the fields of policies: its
/// owner and the superuser set it, and everybody reads it.
#[test]
fn schedule_as_attribute() {
    const SCHEDULE: &str = "kestrel.snapshot-schedule";
    let f = fixture();
    let (owner, other) = (user(5, 5, &[]), user(6, 6, &[]));
    let dir = f.inode_as(&owner, Op::MkDir(at(1, "d"), 0o700)).ino;
    let file = in_dir(f.inode(create("d/f")).ino, dir, "f");
    let key = || Box::from(SCHEDULE.as_bytes());
    let set = |ino| set_as(SCHEDULE, "1h=24", ino, XattrFlags::default());
    let errno_as = |who: &Creds, op: Op| errno(&f.node.call(Request { creds: who.clone(), op }));
    assert_eq!(get(&f, dir, SCHEDULE), Err(libc::ENODATA));
    assert_eq!(errno_as(&other, set(dir)), libc::EPERM);
    assert_eq!(errno_as(&owner, set(dir)), 0);
    assert_eq!(errno_as(&other, Op::RemoveXattr(InodeRef::by_id(dir), key())), libc::EPERM);
    assert_eq!(errno_as(&other, Op::GetXattr(InodeRef::by_id(dir), key())), 0);
    assert_eq!(get(&f, dir, SCHEDULE).as_deref(), Ok("1h=24"));
    assert_eq!(f.errno(compress(dir, Some(Compression::Lz4))), 0);
    assert_eq!(listed(&f, dir), b"kestrel.compression\0kestrel.snapshot-schedule\0");
    // It is no policy: nothing is handed down.
    assert_eq!(
        get(&f, dir, "kestrel.policy"),
        Ok(format!("compression=lz4 above=0 inode={dir}\n"))
    );
    assert_eq!(f.errno(Op::RemoveXattr(InodeRef::by_id(dir), key())), 0);
    assert_eq!(f.errno(Op::RemoveXattr(InodeRef::by_id(dir), key())), libc::ENODATA);
    let text = Box::from(*b"1d=7");
    let on_file = Op::SetXattr(file.clone(), key(), text, XattrFlags::default());
    assert_eq!(f.errno(on_file), libc::EOPNOTSUPP);
    assert_eq!(f.errno(Op::GetXattr(file, key())), libc::ENODATA);
    f.check();
}

/// A crash after a policy was acknowledged as durable keeps it, and the mark of the volume.
#[test]
fn policies_after_a_crash() {
    let f = fixture();
    let dir = f.inode(mkdir("d")).ino;
    f.inode(mkdir("d/below"));
    assert_eq!((f.errno(set(dir, "immutable")), f.errno(Op::Sync)), (0, 0));
    let f = f.crash(true);
    assert_eq!(f.errno(create("d/below/f")), libc::EPERM);
    assert_eq!(get(&f, dir, CONSISTENCY).as_deref(), Ok("immutable"));
    // Unset everywhere, it counts nowhere.
    assert_eq!((f.errno(unset(dir)), f.errno(create("d/below/f"))), (0, 0));
    f.check();
}

/// A policy of a later release is not ignored: nothing is done below the directory.
#[test]
fn policy_of_a_later_release() {
    const DIR: u64 = 900;
    for later in [&[2, 1, 1, 2][..], &[1, 9, 0], &[1, 1, 1, 9]] {
        let engine = MemoryEngine::new(SyncWhen::Asked);
        Node::format(&engine, RootAttr { mode: 0o777, uid: 0, gid: 0 }, 1).unwrap();
        let bare = Inode { mode: 0o777, ..Inode::new(DIR, Kind::Dir, 1, 1) };
        let dir = Entry::Inode(Inode { data: Data::Inline(later.into()), ..bare });
        let rows = [
            (Key::new(Table::Entry, ROOT, b"d"), dir.encode()),
            (Key::new(Table::DirId, DIR, b""), encode_dir_id(ROOT, b"d")),
            (Key::new(Table::Subdir, ROOT, &DIR.to_be_bytes()), Box::default()),
        ];
        let rows = rows.into_iter().map(|(key, value)| Mutation { key, value: Some(value) });
        engine.commit(BatchKind::Growing, rows.collect()).unwrap();
        let clock = Arc::new(ManualClock::new(1_000 * SECOND));
        let node = Node::open(Arc::new(engine), clock, config(2)).unwrap();
        for op in [create("d/g"), lookup("d/f"), mkdir("d/e"), set(DIR, "strict")] {
            let reply = node.call(Request { creds: Creds::root(), op: op.clone() });
            assert_eq!(errno(&reply), libc::EIO, "{later:?}: {op:?}");
        }
    }
}

/// What a change of a tree of directories is, in the property below.
#[derive(Debug, Clone)]
enum Step {
    MkDir(u8, u8),
    Rename(u8, u8, u8),
    Set(u8, Option<Consistency>),
    Compress(u8, Option<Compression>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // No immutable directories: what those refuse is another test's matter.
    let value =
        prop::sample::select(vec![None, Some(Consistency::Strict), Some(Consistency::CloseToOpen)]);
    let coding =
        prop::sample::select(vec![None, Some(Compression::None), Some(Compression::Zstd(5))]);
    let step = prop_oneof![
        2 => (any::<u8>(), 0..4u8).prop_map(|(dir, name)| Step::MkDir(dir, name)),
        2 => (any::<u8>(), any::<u8>(), 0..4u8)
            .prop_map(|(from, to, name)| Step::Rename(from, to, name)),
        3 => (any::<u8>(), value).prop_map(|(dir, value)| Step::Set(dir, value)),
        2 => (any::<u8>(), coding).prop_map(|(dir, value)| Step::Compress(dir, value)),
    ];
    prop::collection::vec(step, 1..40)
}

/// Directories as the model has them: parent and own word.
type Tree = BTreeMap<u64, (u64, Policy)>;

fn expected(tree: &Tree, dir: u64) -> (Policy, String) {
    let (mut at, mut above) = (dir, 0);
    let (mut policy, mut text) = (Policy::default(), String::new());
    loop {
        let (parent, own) = tree[&at];
        if let (None, Some(value)) = (policy.consistency, own.consistency) {
            policy.consistency = Some(value);
            text += &format!("consistency={} above={above} inode={at}\n", value.name());
        }
        if let (None, Some(value)) = (policy.compression, own.compression) {
            policy.compression = Some(value);
            text += &format!("compression={value} above={above} inode={at}\n");
        }
        if at == ROOT {
            return (policy, text);
        }
        (at, above) = (parent, above + 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is made, moved, set and unset: of each directory the nearest word counts.
    #[test]
    fn nearest_policy_counts(steps in steps()) {
        let f = fixture();
        let mut tree = Tree::from([(ROOT, (ROOT, Policy::default()))]);
        let pick = |tree: &Tree, number: u8| {
            *tree.keys().nth(usize::from(number) % tree.len()).unwrap()
        };
        let mut names: BTreeMap<u64, String> = BTreeMap::new();
        for step in steps {
            match step {
                Step::MkDir(dir, number) => {
                    let (dir, made) = (pick(&tree, dir), format!("n{number}"));
                    if let Ok(Answer::Entry { inode, .. }) =
                        f.call(Op::MkDir(at(dir, &made), 0o755))
                    {
                        tree.insert(inode.ino, (dir, Policy::default()));
                        names.insert(inode.ino, made);
                    }
                }
                Step::Rename(from, to, number) => {
                    let (moved, to) = (pick(&tree, from), pick(&tree, to));
                    if moved == ROOT {
                        continue;
                    }
                    let (dir, old, new) =
                        (tree[&moved].0, names[&moved].clone(), format!("n{number}"));
                    let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
                    if f.call(Op::Rename(at(dir, &old), at(to, &new), flags)).is_ok() {
                        tree.get_mut(&moved).unwrap().0 = to;
                        names.insert(moved, new);
                    }
                }
                Step::Set(dir, value) => {
                    let dir = pick(&tree, dir);
                    let known = tree[&dir].1.consistency.is_some();
                    let errno = match value {
                        Some(value) => f.errno(set(dir, value.name())),
                        None => f.errno(unset(dir)),
                    };
                    let missing = value.is_none() && !known;
                    prop_assert_eq!(errno, if missing { libc::ENODATA } else { 0 });
                    tree.get_mut(&dir).unwrap().1.consistency = value;
                }
                Step::Compress(dir, value) => {
                    let dir = pick(&tree, dir);
                    let own = &mut tree.get_mut(&dir).unwrap().1.compression;
                    let missing = value.is_none() && own.is_none();
                    let errno = f.errno(compress(dir, value));
                    prop_assert_eq!(errno, if missing { libc::ENODATA } else { 0 });
                    *own = value;
                }
            }
            for dir in tree.keys() {
                let (policy, text) = expected(&tree, *dir);
                prop_assert_eq!(get(&f, *dir, "kestrel.policy"), Ok(text));
                let told = f.inode(Op::GetAttr(InodeRef::by_id(*dir))).effective;
                prop_assert_eq!(told, policy);
            }
        }
        f.check();
    }
}
