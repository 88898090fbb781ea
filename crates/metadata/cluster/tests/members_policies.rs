//! Policies of directories at several members, messages carried by hand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use kestrel_cluster::Message;
use kestrel_types::compression::Compression;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::policy::Consistency;
use kestrel_types::request::{
    Answer, Creds, Op, OpenFlags, RenameFlags, Request, SetAttr, XattrFlags,
};

use common::errno;
use common::members::{Cluster, at, mknod};

const CONSISTENCY: &[u8] = b"kestrel.consistency";

fn set(dir: u64, value: &str) -> Op {
    let value = value.as_bytes().into();
    Op::SetXattr(InodeRef::by_id(dir), CONSISTENCY.into(), value, XattrFlags::default())
}

fn unset(dir: u64) -> Op {
    Op::RemoveXattr(InodeRef::by_id(dir), CONSISTENCY.into())
}

/// What every member says to a new name in each directory.
fn creations(cluster: &mut Cluster, dir: &str, letter: char) -> Vec<i32> {
    let ask = |node: u32| errno(&cluster.ask(node, mknod(&format!("{dir}/{letter}{node}"))));
    (1..=3).map(ask).collect()
}

/// A policy counts at each member at once, below the directory as well, and after restarts.
#[test]
fn policy_at_all_members() {
    let mut cluster = Cluster::new(3);
    let top = cluster.inode(1, Op::MkDir(at("a1"), 0o755)).ino;
    let below = cluster.inode(2, Op::MkDir(at("a1/b2"), 0o755)).ino;
    assert_eq!(creations(&mut cluster, "a1/b2", 'c'), [0; 3]);
    let file = cluster.inode(3, Op::Lookup(at("a1/b2/c3")));
    assert_eq!(file.effective.consistency, None);
    assert_eq!(errno(&cluster.ask(3, set(top, "immutable"))), 0);
    for _ in 0..2 {
        assert_eq!(creations(&mut cluster, "a1/b2", 'd'), [libc::EPERM; 3]);
        for node in 1..=3 {
            let found = cluster.inode(node, Op::Lookup(at(&format!("a1/b2/c{node}"))));
            assert_eq!(found.effective.consistency, Some(Consistency::Immutable));
        }
        assert_eq!(errno(&cluster.ask(2, set(below, "strict"))), libc::EPERM);
        for node in 1..=3 {
            cluster.restart(node);
        }
    }
    assert_eq!(errno(&cluster.ask(2, unset(top))), 0);
    // Directories are changed, however the request knows them.
    let chmod = SetAttr { mode: Some(0o711), ..SetAttr::default() };
    let place = Some((top, Name::new(b"b2").unwrap()));
    for known in [InodeRef { ino: below, seen: place }, InodeRef::by_id(below), InodeRef::by_id(1)]
    {
        for op in
            [Op::SetAttr(known.clone(), chmod.clone()), set(known.ino, "strict"), unset(known.ino)]
        {
            assert_eq!(errno(&cluster.ask(3, op.clone())), 0, "{op:?}");
        }
    }
    assert_eq!(creations(&mut cluster, "a1/b2", 'd'), [0; 3]);
    // A directory that is moved is under the word of its new place.
    let other = cluster.inode(3, Op::MkDir(at("e3"), 0o755)).ino;
    assert_eq!(errno(&cluster.ask(1, set(other, "close-to-open"))), 0);
    let moved = Op::Rename(at("a1/b2"), at("e3/f1"), RenameFlags::default());
    assert_eq!(errno(&cluster.ask(1, moved)), 0);
    for node in 1..=3 {
        let found = cluster.inode(node, Op::Lookup(at(&format!("e3/f1/c{node}"))));
        assert_eq!(found.effective.consistency, Some(Consistency::CloseToOpen), "{node}");
    }
}

/// Opens for writing and creations tell how to compress, whichever member leads them.
#[test]
fn compression_at_all_members() {
    let mut cluster = Cluster::new(3);
    let top = cluster.inode(1, Op::MkDir(at("a1"), 0o755)).ino;
    let below = cluster.inode(2, Op::MkDir(at("a1/b2"), 0o755)).ino;
    assert_eq!(creations(&mut cluster, "a1/b2", 'c'), [0; 3]);
    let (key, value) = (b"kestrel.compression"[..].into(), b"zstd:7"[..].into());
    let set = Op::SetXattr(InodeRef::by_id(top), key, value, XattrFlags::default());
    assert_eq!(errno(&cluster.ask(3, set)), 0);
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    for node in 1..=3 {
        let name = format!("c{node}");
        let file = cluster.inode(node, Op::Lookup(at(&format!("a1/b2/{name}")))).ino;
        let known =
            InodeRef { ino: file, seen: Some((below, Name::new(name.as_bytes()).unwrap())) };
        let place = at(&format!("a1/b2/d{node}"));
        for op in [
            Op::Open(known, flags),
            Op::OpenAt(at(&format!("a1/b2/{name}")), flags),
            Op::Create { place, mode: 0o644, flags, exclusive: false },
            Op::TmpFile { dir: below, mode: 0o644, exclusive: false },
        ] {
            for asked in 1..=3 {
                let reply = cluster.ask(asked, op.clone());
                let Ok(Answer::Opened { inode, .. }) = reply else { panic!("{op:?}: {reply:?}") };
                assert_eq!(inode.effective.compression, Some(Compression::Zstd(7)), "{op:?}");
            }
        }
    }
}

/// A transaction that was run before a directory became immutable, and is decided after that, is
/// run again.
#[test]
fn immutable_during_a_transaction() {
    let mut cluster = Cluster::new(3);
    let top = cluster.inode(1, Op::MkDir(at("a1"), 0o755)).ino;
    let below = cluster.inode(1, Op::MkDir(at("a1/f1"), 0o755)).ino;
    cluster.inode(2, mknod("a1/f1/b2"));
    // Policies are in use.
    let other = cluster.inode(1, Op::MkDir(at("c1"), 0o755)).ino;
    assert_eq!(errno(&cluster.ask(1, set(other, "strict"))), 0);
    let rename = Op::Rename(at("a1/f1/b2"), at("a1/f1/b3"), RenameFlags::default());
    let renaming = cluster.submit(2, Request { creds: Creds::root(), op: rename }, None);
    let held = cluster.carry(|_, message| matches!(message, Message::Prepare { .. }));
    let (to, envelope) = held.expect("the rename concerns two members");
    assert_eq!(errno(&cluster.ask(1, set(top, "immutable"))), 0);
    assert!(renaming.lock().is_none());
    cluster.members.get_mut(&to).unwrap().receive(envelope, cluster.now);
    for _ in 0..1000 {
        cluster.carry(|_, _| false);
        if renaming.lock().is_some() {
            break;
        }
        cluster.tick(10_000_000);
    }
    assert_eq!(errno(&renaming.lock().take().unwrap()), libc::EPERM);
    assert_eq!(cluster.names(1, below, 10), ["b2"]);
}
