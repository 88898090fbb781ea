//! Reads at snapshots at several members, messages carried by hand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_cluster::{Message, Requester};
use kestrel_engine::{BatchKind, Mutation};
use kestrel_meta::worker::{HandedBack, ReplySink};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{
    Answer, Creds, Op, OpenFlags, RenameFlags, Reply, Request, SetAttr, XattrFlags,
};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};

use parking_lot::Mutex;

use common::errno;
use common::members::{Cluster, at, mknod};

/// Makes a snapshot of a directory in a cluster that is idle.
fn snapshot(cluster: &mut Cluster, dir: u64, name: &[u8]) -> SnapshotId {
    for _ in 0..100 {
        cluster.carry(|_, _| false);
        cluster.tick(10_000_000);
    }
    assert!(cluster.members.values().all(|member| member.is_idle()));
    let id = cluster.members.values().map(|member| member.node().stamp()).max().unwrap() + 1;
    let name = Name::new(name).unwrap();
    let info = SnapshotInfo {
        id,
        dir,
        name,
        created: 1,
        removing: false,
        cutting: false,
        hidden: false,
        holds: Vec::new(),
        clones: Vec::new(),
    };
    for member in cluster.members.values() {
        let node = member.node();
        let record = Mutation { key: info.key(), value: Some(info.encode()) };
        let position = node.engine().commit(BatchKind::Freeing, vec![record]).unwrap();
        node.engine().sync().unwrap();
        node.observe(id);
        let quiet = node.quiesce();
        node.core().snapshots.put(info.clone(), position);
        drop(quiet);
    }
    id
}

fn then(snapshot: SnapshotId, op: Op) -> Op {
    Op::At(snapshot, Box::new(op))
}

/// Everything below a directory: attributes by path.
fn tree(cluster: &mut Cluster, from: u32, snapshot: Option<SnapshotId>) -> BTreeMap<String, Inode> {
    let ask = |cluster: &mut Cluster, op: Op| {
        let op = snapshot.map_or(op.clone(), |snapshot| then(snapshot, op));
        cluster.ask(from, op)
    };
    let (mut found, mut todo) = (BTreeMap::new(), vec![(String::new(), 1)]);
    while let Some((path, dir)) = todo.pop() {
        let Ok(Answer::Inode(shown)) = ask(cluster, Op::GetAttr(InodeRef::by_id(dir))) else {
            panic!("{path}")
        };
        found.insert(path.clone(), *shown);
        let mut after = None;
        loop {
            let list = Op::ReadDir { dir, after: after.clone(), limit: 3, check: true };
            let Ok(Answer::Entries { entries, end, .. }) = ask(cluster, list) else {
                panic!("no listing of {path}")
            };
            for entry in &entries {
                let name = std::str::from_utf8(entry.name.as_bytes()).unwrap();
                let path = format!("{path}/{name}");
                if entry.kind == Kind::Dir {
                    todo.push((path, entry.ino));
                    continue;
                }
                let place = PathRef::new(dir, entry.name.clone());
                match ask(cluster, Op::Lookup(place)) {
                    Ok(Answer::Entry { inode, .. }) => drop(found.insert(path, *inode)),
                    other => panic!("{path}: {other:?}"),
                }
            }
            after = entries.last().map(|entry| entry.name.clone());
            if end {
                break;
            }
        }
    }
    found
}

/// Directories and files of all members, some with several names.
fn grow(cluster: &mut Cluster) {
    for node in 1..=3 {
        cluster.inode(node, Op::MkDir(at(&format!("a{node}")), 0o755));
        for other in 1..=3 {
            cluster.inode(node, Op::MkDir(at(&format!("a{node}/b{other}")), 0o755));
            for file in 1..=3 {
                cluster.inode(node, mknod(&format!("a{node}/b{other}/c{file}")));
                cluster.inode(node, mknod(&format!("a{node}/b{other}/walked{file}")));
            }
        }
        let ino = cluster.inode(node, mknod(&format!("a{node}/d1"))).ino;
        let dir = cluster.inode(node, Op::Lookup(at(&format!("a{node}")))).ino;
        let file = InodeRef { ino, seen: Some((dir, Name::new(b"d1").unwrap())) };
        let link = Op::Link(file, at(&format!("a{node}/e2")));
        assert_eq!(errno(&cluster.ask(node, link)), 0);
    }
}

/// Changes of all kinds, everywhere.
fn churn(cluster: &mut Cluster) {
    let chmod = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    for node in 1..=3 {
        assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(&format!("a{node}/b1/c2"))))), 0);
        assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(&format!("a{node}/d1"))))), 0);
        let other = node % 3 + 1;
        let rename = Op::Rename(
            at(&format!("a{node}/b2")),
            at(&format!("a{other}/f{node}")),
            RenameFlags::default(),
        );
        assert_eq!(errno(&cluster.ask(2, rename)), 0);
        let dir = cluster.inode(1, Op::Lookup(at(&format!("a{node}/b3")))).ino;
        let set = Op::SetAttr(InodeRef::by_id(dir), chmod.clone());
        assert_eq!(errno(&cluster.ask(3, set)), 0);
        cluster.inode(node, mknod(&format!("a{node}/b3/new")));
        let value = b"value".as_slice().into();
        let named = b"user.x".as_slice().into();
        let set = Op::SetXattr(InodeRef::by_id(dir), named, value, XattrFlags::default());
        assert_eq!(errno(&cluster.ask(3, set)), 0);
    }
}

/// A tree reads at a snapshot as it did then, from each member, after changes of all kinds and
/// after restarts, at each of several snapshots.
#[test]
fn tree_at_snapshots() {
    let mut cluster = Cluster::new(3);
    grow(&mut cluster);
    let mut taken = Vec::new();
    for name in [b"one", b"two"] {
        let id = snapshot(&mut cluster, 1, name);
        taken.push((id, tree(&mut cluster, 1, None)));
        match name {
            b"one" => churn(&mut cluster),
            _ => {
                assert_eq!(errno(&cluster.ask(1, Op::Unlink(at("a1/b3/new")))), 0);
                cluster.inode(2, Op::MkDir(at("a1/b2"), 0o755));
            }
        }
    }
    let now = tree(&mut cluster, 2, None);
    assert!(now != taken[0].1 && now != taken[1].1 && taken[0].1 != taken[1].1);
    for round in 0..2 {
        for (id, tree_then) in &taken {
            for from in 1..=3 {
                assert_eq!(tree(&mut cluster, from, Some(*id)), *tree_then, "{round} {from}");
            }
        }
        for node in 1..=3 {
            cluster.restart(node);
        }
    }
}

/// All that can be asked of a snapshot is answered as it was, by path and by number, with the
/// figures of the tree; what would change something is refused.
#[test]
fn every_read_at_a_snapshot() {
    let mut cluster = Cluster::new(3);
    grow(&mut cluster);
    let dir = cluster.inode(1, Op::Lookup(at("a2/b3"))).ino;
    let file = cluster.inode(1, Op::Lookup(at("a2/b3/c1")));
    let before = |cluster: &mut Cluster, op: Op| cluster.ask(1, op);
    let reads: Vec<Op> = vec![
        Op::Lookup(at("a2/b2/c3")),
        Op::Lookup(at("a2/b2/none")),
        Op::Lookup(at("a2/none/c3")),
        Op::Parent(dir),
        Op::GetAttr(InodeRef::by_id(1)),
        Op::GetAttr(InodeRef { ino: file.ino, seen: Some((dir, Name::new(b"c1").unwrap())) }),
        Op::Access(InodeRef::by_id(dir), 4),
        Op::ReadDirPlus { dir, after: None, limit: 2 },
        Op::RemovalCheck { dir, after: None, limit: 2 },
        Op::ListXattr(InodeRef::by_id(dir)),
        Op::GetXattr(InodeRef::by_id(dir), b"user.x".as_slice().into()),
        Op::TreeUsage(1),
        Op::TreeUsage(dir),
        Op::Locate { files: vec![file.ino], after: None },
        Op::Chunks { ino: file.ino, first: 0, last: 9 },
        Op::OpenAt(at("a2/e2"), OpenFlags { read: true, ..OpenFlags::default() }),
    ];
    let id = snapshot(&mut cluster, 1, b"s");
    let told: Vec<Reply> = reads.iter().map(|op| before(&mut cluster, op.clone())).collect();
    churn(&mut cluster);
    for (op, told) in reads.iter().zip(&told) {
        for from in 1..=3 {
            assert_eq!(cluster.ask(from, then(id, op.clone())), *told, "{op:?} from {from}");
        }
    }
    let now = cluster.ask(1, Op::Usage);
    assert_eq!(cluster.ask(2, then(id, Op::Usage)), now, "the volume's figures are those of now");
    for op in [mknod("a1/x"), Op::Unlink(at("a2/b3/c1"))] {
        assert_eq!(errno(&cluster.ask(1, then(id, op))), libc::EROFS);
    }
    let other = Creds { uid: 7, gid: 7, ..Creds::root() };
    let locate = Op::Locate { files: vec![file.ino], after: None };
    let asked = cluster.submit(1, Request { creds: other, op: then(id, locate) }, None);
    cluster.carry(|_, _| false);
    assert_eq!(errno(&asked.lock().take().unwrap()), libc::EPERM);
}

/// A snapshot that a member does not have, or has no more, is refused by every member. In the
/// middle of a read another one may not have it yet: the read goes on until its own member hears of
/// a removal.
#[test]
fn snapshot_that_is_gone() {
    let mut cluster = Cluster::new(3);
    grow(&mut cluster);
    assert_eq!(errno(&cluster.ask(1, then(7, Op::GetAttr(InodeRef::by_id(1))))), libc::ESTALE);
    let id = snapshot(&mut cluster, 1, b"s");
    let info = cluster.members[&1].node().core().snapshots.get(id).unwrap().info.clone();
    let gone = SnapshotInfo { removing: true, ..info };
    let list = then(id, Op::ReadDir { dir: 1, after: None, limit: 9, check: true });
    let asked = cluster.submit(1, Request { creds: Creds::root(), op: list.clone() }, None);
    let held = cluster.carry(|_, message| matches!(message, Message::SnapshotRead(_)));
    let (to, envelope) = held.expect("the names are everywhere");
    let remove = |cluster: &Cluster, at: u32| {
        let node = cluster.members[&at].node();
        let quiet = node.quiesce();
        node.core().snapshots.put(gone.clone(), 0);
        drop(quiet);
    };
    // One that does not have it may have joined just now.
    remove(&cluster, to);
    cluster.members.get_mut(&to).unwrap().receive(envelope, cluster.now);
    cluster.carry(|_, _| false);
    assert!(asked.lock().is_none());
    (1..=3).for_each(|at| remove(&cluster, at));
    for _ in 0..100 {
        cluster.tick(10_000_000);
        cluster.carry(|_, _| false);
    }
    assert_eq!(errno(&asked.lock().take().unwrap()), libc::ESTALE);
    for from in 1..=3 {
        assert_eq!(errno(&cluster.ask(from, list.clone())), libc::ESTALE);
        assert_eq!(errno(&cluster.ask(from, then(id, Op::TreeUsage(1)))), libc::ESTALE);
    }
}

/// Messages that are lost or come twice delay a read at a snapshot, and change nothing.
#[test]
fn lost_messages_of_a_read() {
    let mut cluster = Cluster::new(3);
    grow(&mut cluster);
    let id = snapshot(&mut cluster, 1, b"s");
    let taken = tree(&mut cluster, 1, None);
    churn(&mut cluster);
    let list = then(id, Op::ReadDir { dir: 1, after: None, limit: 9, check: true });
    let asked = cluster.submit(1, Request { creds: Creds::root(), op: list.clone() }, None);
    let mut turn = 0;
    while asked.lock().is_none() {
        turn += 1;
        assert!(turn < 1000, "the read ends");
        let held = cluster.carry(|_, message| matches!(message, Message::SnapshotRead(_)));
        match held {
            // The first ones are lost, and later ones come twice.
            Some(_) if turn < 4 => {}
            Some((to, envelope)) => {
                let member = cluster.members.get_mut(&to).unwrap();
                member.receive(envelope.clone(), cluster.now);
                member.receive(envelope, cluster.now);
            }
            None => cluster.tick(100_000_000),
        }
    }
    let Some(Ok(Answer::Entries { entries, end, .. })) = asked.lock().take() else { panic!() };
    assert!(end && entries.len() == 3);
    assert_eq!(tree(&mut cluster, 3, Some(id)), taken);
}

/// Of the snapshots of the directories above, those are listed in which the directory was.
#[test]
fn snapshots_of_directories_above() {
    let mut cluster = Cluster::new(3);
    let top = cluster.inode(1, Op::MkDir(at("a1"), 0o755)).ino;
    let other = cluster.inode(1, Op::MkDir(at("a2"), 0o755)).ino;
    let below = cluster.inode(1, Op::MkDir(at("a1/b2"), 0o755)).ino;
    let early = snapshot(&mut cluster, top, b"early");
    let deep = cluster.inode(1, Op::MkDir(at("a1/b2/c3"), 0o755)).ino;
    let of_root = snapshot(&mut cluster, 1, b"root");
    let of_other = snapshot(&mut cluster, other, b"other");
    let own = snapshot(&mut cluster, deep, b"own");
    let listed = |cluster: &mut Cluster, dir: u64, ancestors: bool| {
        let at = cluster.placement.coordinator;
        match cluster.ask(at, Op::SnapshotList { dir: Some(dir), ancestors }) {
            Ok(Answer::Snapshots(found)) => found.iter().map(|info| info.id).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(listed(&mut cluster, deep, false), [own]);
    assert_eq!(listed(&mut cluster, deep, true), [of_root, own]);
    assert_eq!(listed(&mut cluster, below, true), [early, of_root]);
    assert_eq!(listed(&mut cluster, 1, true), [of_root]);
    let moved = Op::Rename(at("a1/b2"), at("a2/b2"), RenameFlags::default());
    assert_eq!(errno(&cluster.ask(1, moved)), 0);
    let late = snapshot(&mut cluster, other, b"late");
    assert_eq!(listed(&mut cluster, below, true), [of_root, late]);
    assert_eq!(listed(&mut cluster, deep, true), [of_root, own, late]);
    assert_eq!(listed(&mut cluster, other, true), [of_root, of_other, late]);
    assert_eq!(errno(&cluster.ask(1, Op::RmDir(at("a2/b2/c3"), None))), 0);
    let at = cluster.placement.coordinator;
    let removed = cluster.ask(at, Op::SnapshotList { dir: Some(deep), ancestors: true });
    assert_eq!(errno(&removed), libc::ENOENT);
}

/// What the process of a member itself asks of snapshots the member that leads them executes, also
/// if messages are lost or come twice.
#[test]
fn snapshots_for_own_process() {
    let mut cluster = Cluster::new(3);
    let top = cluster.inode(2, Op::MkDir(at("a1"), 0o755)).ino;
    let id = snapshot(&mut cluster, top, b"s");
    for (dir, expected) in [(Some(top), vec![id]), (None, vec![id]), (Some(1), vec![])] {
        for node in 1..=3 {
            let op = Op::SnapshotList { dir, ancestors: true };
            let heard: Arc<Mutex<Option<Reply>>> = Arc::default();
            let filled = heard.clone();
            let done = Box::new(move |reply| *filled.lock() = Some(reply));
            let request = Request { creds: Creds::root(), op };
            let member = cluster.members.get_mut(&node).unwrap();
            member.submit(request, Requester::Own, done, cluster.now);
            let is_forward = |message: &Message| {
                matches!(message, Message::Forward { .. } | Message::Forwarded { .. })
            };
            for turn in 0.. {
                assert!(turn < 1000, "the request ends");
                match cluster.carry(|_, message| is_forward(message)) {
                    // Each is lost once, and comes twice after that.
                    Some(_) if turn == 0 || turn == 3 => {}
                    Some((to, envelope)) => {
                        let member = cluster.members.get_mut(&to).unwrap();
                        member.receive(envelope.clone(), cluster.now);
                        member.receive(envelope, cluster.now);
                    }
                    None => cluster.tick(100_000_000),
                }
                if heard.lock().is_some() {
                    break;
                }
            }
            let Some(Ok(Answer::Snapshots(found))) = heard.lock().take() else { panic!() };
            assert_eq!(found.iter().map(|info| info.id).collect::<Vec<_>>(), expected);
        }
    }
}

/// Hears whether a request has ended, however.
#[derive(Default)]
struct Ended(Mutex<usize>);

impl ReplySink for Ended {
    fn complete(&self, _: usize, _: Reply) {
        *self.0.lock() += 1;
    }

    fn hand_back(&self, _: usize, _: HandedBack) {
        *self.0.lock() += 1;
    }
}

/// A request that comes while a member holds all workers of the node that reads a snapshot is
/// served when the member lets go of them.
#[test]
fn request_while_workers_are_held() {
    let mut cluster = Cluster::new(3);
    let id = snapshot(&mut cluster, 1, b"s");
    let reader = cluster.members[&1].node().node_at(id).unwrap();
    let ended = Arc::new(Ended::default());
    let sink: Arc<dyn ReplySink> = ended.clone();
    let request = Request { creds: Creds::root(), op: Op::Lookup(at("a1")) };
    let quiet = reader.quiesce();
    reader.submit_numbered(std::iter::once((0, request, None)), &sink);
    assert_eq!(*ended.0.lock(), 0);
    drop(quiet);
    assert_eq!(*ended.0.lock(), 1);
}
