//! Content of files over several members: records, chunks and shares on different nodes, and
//! objects that go when no node refers to them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_cluster::{ClusterNode, Message, PollQuestion};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::ids::counter_row;
use kestrel_meta::rows::SCAN_ROWS_MAX;
use kestrel_types::clock::{Clock, SECOND};
use kestrel_types::error::FsResult;
use kestrel_types::extent::Extent;
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode};
use kestrel_types::key::Table;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::placement::NodeId;
use kestrel_types::request::{
    Answer, COMMIT_EXTENTS_MAX, Commit, Creds, NewData, Op, RenameFlags, Request, SetAttr, Usage,
};
use parking_lot::Mutex;

use common::check;
use common::errno;
use common::members::{Cluster, at, mknod};
use common::rules::range;
use common::snapshots::remove;

/// A file of the root.
fn seen(ino: u64, name: &str) -> InodeRef {
    InodeRef { ino, seen: Some((1, Name::new(name.as_bytes()).unwrap())) }
}

fn commit(file: &Inode, name: &str, data: NewData, size: u64) -> Op {
    let (inode, base) = (seen(file.ino, name), file.data_change);
    Op::Commit(Commit { inode, base, data, size: Some(size), mtime: 5, kill_suid: false })
}

fn patch(chunk: u64, object: u64, len: u32) -> (u64, Extent) {
    (chunk, Extent::of_range(0, range(object, len)))
}

fn packed(object: u64, len: u32) -> NewData {
    NewData::Packed(range(object, len))
}

impl Cluster {
    /// All rows together, which must be a sound volume.
    fn check(&mut self) -> check::Found {
        self.tick(SECOND);
        self.carry(|_, _| false);
        let volume = MemoryEngine::new(SyncWhen::Asked);
        let mut rows = vec![counter_row("clock", u64::MAX), counter_row("inodes", u64::MAX)];
        for engine in self.engines.values() {
            for table in
                Table::ALL.into_iter().filter(|table| !matches!(table, Table::System | Table::Txn))
            {
                let visited = engine.scan_table(table, None, &mut |key, value| {
                    rows.push(Mutation { key: key.to_owned(), value: Some(value.into()) });
                    ControlFlow::Continue(())
                });
                visited.unwrap();
            }
        }
        volume.commit(BatchKind::Growing, rows).unwrap();
        check::check(&volume, &|_| false)
    }

    fn usage(&mut self, op: Op) -> Usage {
        match self.ask(1, op) {
            Ok(Answer::Usage(usage)) => usage,
            other => panic!("{other:?}"),
        }
    }

    fn chunks(&mut self, ino: u64) -> Vec<u64> {
        match self.ask(1, Op::Chunks { ino, first: 0, last: 100 }) {
            Ok(Answer::Chunks { chunks, end: true }) => {
                chunks.into_iter().map(|(chunk, _)| chunk).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// A member asks for objects to delete.
    fn condemn(&mut self, node: NodeId) -> Arc<Mutex<Option<FsResult<Vec<u64>>>>> {
        let heard: Arc<Mutex<Option<FsResult<Vec<u64>>>>> = Arc::default();
        let slot = heard.clone();
        let done = Box::new(move |free| *slot.lock() = Some(free));
        self.members.get_mut(&node).unwrap().condemn(self.clock.now(), 100, done, self.now);
        heard
    }

    /// What a member would have deleted when the grace period is over, long ago even.
    fn due(&mut self, node: NodeId) -> Vec<u64> {
        self.clock.advance(2000 * SECOND);
        let heard = self.condemn(node);
        self.settle();
        heard.lock().take().unwrap().unwrap()
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            self.carry(|_, _| false);
            self.tick(SECOND / 100);
        }
    }

    /// Objects that a member was given are deleted.
    fn reaped(&mut self, node: NodeId, objects: &[u64]) {
        let heard: Arc<Mutex<Option<FsResult<()>>>> = Arc::default();
        let slot = heard.clone();
        let done = Box::new(move |result| *slot.lock() = Some(result));
        self.members.get_mut(&node).unwrap().reaped(objects, done, self.now);
        self.settle();
        heard.lock().take().unwrap().unwrap();
    }

    fn rows(&self, node: NodeId, table: Table) -> usize {
        let mut count = 0;
        let visited = self.engines[&node].scan_table(table, None, &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        });
        visited.unwrap();
        count
    }
}

/// A file with its record and its chunks on different nodes is written and read.
#[test]
fn record_and_chunks_on_different_nodes() {
    let mut cluster = Cluster::new(3);
    // Its number leads to node 1; its record goes to node 2; node 3 leads everything that follows.
    let file = cluster.inode(1, mknod("a1"));
    assert_eq!(errno(&cluster.ask(1, Op::Rename(at("a1"), at("b2"), RenameFlags::default()))), 0);
    let patches = NewData::Patches(vec![patch(0, 7, 100), patch(2, 8, 50)]);
    let file = cluster.inode(3, commit(&file, "b2", patches, 2 * CHUNK_BYTES + 50));
    assert_eq!(file.data, Data::Chunked);
    assert_eq!((cluster.rows(1, Table::Chunk), cluster.rows(3, Table::ObjStat)), (2, 2));
    assert_eq!((cluster.rows(1, Table::ObjStat), cluster.rows(2, Table::ObjStat)), (0, 0));
    assert_eq!(cluster.chunks(file.ino), [0, 2]);
    // Another content has been there since.
    let stale = Inode { data_change: 0, ..file.clone() };
    assert!(cluster.ask(2, commit(&stale, "b2", packed(9, 5), 5)).is_err());
    // Bytes are shared with a file elsewhere.
    let other = cluster.inode(2, mknod("c3"));
    let clone = Op::Clone {
        from: seen(file.ino, "b2"),
        from_offset: 0,
        to: seen(other.ino, "c3"),
        to_offset: 0,
        len: 100,
    };
    cluster.inode(1, clone);
    assert_eq!(cluster.check().objects, [(7, 200), (8, 50)].into());
    let cut = SetAttr { size: Some(60), ..SetAttr::default() };
    assert_eq!(cluster.inode(2, Op::SetAttr(seen(file.ino, "b2"), cut)).size, 60);
    let found = cluster.check();
    assert_eq!(found.objects.get(&8).copied().unwrap_or(0), 0);
    assert_eq!((found.files, found.bytes), (2, 160));
    assert_eq!(cluster.usage(Op::Usage), Usage { files: 2, dirs: 0, bytes: 160 });
    // What a restart counts anew is the same.
    for node in 1..=3 {
        cluster.restart(node);
    }
    assert_eq!(cluster.usage(Op::Usage), Usage { files: 2, dirs: 0, bytes: 160 });
}

/// A large file is truncated at once, and its home deletes the rows later.
#[test]
fn truncation_of_a_large_file() {
    let mut cluster = Cluster::new(3);
    let mut file = cluster.inode(1, mknod("a1"));
    let count = 2 * SCAN_ROWS_MAX as u64 + 100;
    for part in (0..count).collect::<Vec<_>>().chunks(COMMIT_EXTENTS_MAX) {
        let patches = part.iter().map(|chunk| patch(*chunk, 7, 10)).collect();
        let size = (part[part.len() - 1] + 1) * CHUNK_BYTES;
        file = cluster.inode(1, commit(&file, "a1", NewData::Patches(patches), size));
    }
    assert_eq!(errno(&cluster.ask(1, Op::Rename(at("a1"), at("b2"), RenameFlags::default()))), 0);
    let cut = SetAttr { size: Some(3 * CHUNK_BYTES), ..SetAttr::default() };
    let reference = seen(file.ino, "b2");
    file = cluster.inode(3, Op::SetAttr(reference.clone(), cut.clone()));
    assert_eq!(cluster.rows(1, Table::Sweep), 1, "the row of what is left to do is at home");
    cluster.restart(1);
    // It waits until the home has deleted what would come back.
    file = cluster
        .inode(3, commit(&file, "b2", NewData::Patches(vec![patch(9, 8, 10)]), 10 * CHUNK_BYTES));
    assert_eq!(cluster.chunks(file.ino), [0, 1, 2, 9]);
    cluster.settle();
    assert_eq!(cluster.rows(1, Table::Sweep), 0);
    assert_eq!(cluster.check().objects, [(7, 30), (8, 10)].into());
    // Rows of a file that is removed by another node go as well.
    for part in (10..count).collect::<Vec<_>>().chunks(COMMIT_EXTENTS_MAX) {
        let patches = part.iter().map(|chunk| patch(*chunk, 7, 10)).collect();
        let size = (part[part.len() - 1] + 1) * CHUNK_BYTES;
        file = cluster.inode(1, commit(&file, "b2", NewData::Patches(patches), size));
    }
    let other = cluster.inode(3, mknod("c3"));
    assert_eq!(errno(&cluster.ask(3, Op::SetAttr(reference, SetAttr { size: Some(0), ..cut }))), 0);
    cluster.settle();
    assert_eq!((cluster.rows(1, Table::Sweep), cluster.rows(1, Table::Chunk)), (0, 0));
    assert_eq!(cluster.inode(2, Op::GetAttr(seen(other.ino, "c3"))).size, 0);
    assert!(cluster.check().objects.values().all(|bytes| *bytes == 0));
}

/// An object is deleted when its references over all nodes add up to zero.
#[test]
fn object_deleted_at_a_sum_of_zero() {
    let mut cluster = Cluster::new(3);
    let file = cluster.inode(1, mknod("a1"));
    let file = cluster.inode(1, commit(&file, "a1", packed(7, 100), 100));
    let other = cluster.inode(3, mknod("c3"));
    cluster.inode(3, commit(&other, "c3", packed(7, 50), 50));
    // Node 1 added these bytes, node 2 releases them.
    assert_eq!(errno(&cluster.ask(1, Op::Rename(at("a1"), at("b2"), RenameFlags::default()))), 0);
    cluster.inode(2, commit(&file, "b2", packed(8, 10), 10));
    assert_eq!(cluster.rows(2, Table::Reap), 1, "its part is below nought");
    assert!(cluster.due(2).is_empty(), "another file refers to it");
    assert_eq!(cluster.rows(2, Table::Reap), 1, "nobody else would look at it");
    assert_eq!(errno(&cluster.ask(3, Op::Unlink(at("c3")))), 0);
    assert_eq!(cluster.rows(3, Table::Reap), 1);
    assert_eq!(cluster.due(3), [7]);
    // Until it is deleted and forgotten nobody may refer to it.
    let fresh = cluster.inode(1, mknod("d1"));
    assert_eq!(errno(&cluster.ask(1, commit(&fresh, "d1", packed(7, 10), 10))), libc::EIO);
    cluster.reaped(3, &[7]);
    let shares: usize = (1..=3).map(|node| cluster.rows(node, Table::ObjStat)).sum();
    assert_eq!((shares, cluster.rows(3, Table::Reap)), (1, 0), "object 8 has a share");
    // The other node's row leads to nothing any more.
    assert!(cluster.due(2).is_empty());
    assert_eq!(cluster.rows(2, Table::Reap), 0);
    assert_eq!(cluster.check().objects, [(8, 10)].into());
}

/// A file of node 1 with an object that nothing refers to any more, and one that could be cloned.
fn with_an_unused_object(cluster: &mut Cluster) {
    let file = cluster.inode(1, mknod("a1"));
    let file = cluster.inode(1, commit(&file, "a1", packed(7, 100), 100));
    cluster.inode(1, commit(&file, "a1", packed(8, 10), 10));
}

/// An object that a client of any cluster member may still refer to stays.
#[test]
fn objects_in_use_at_any_member() {
    let mut cluster = Cluster::new(3);
    with_an_unused_object(&mut cluster);
    let uses = Arc::new(Mutex::new(true));
    let asked = uses.clone();
    let users = Box::new(move |object| object == 7 && *asked.lock());
    cluster.members.get_mut(&3).unwrap().set_object_users(users);
    assert!(cluster.due(1).is_empty());
    // It is not condemned either.
    let file = cluster.inode(2, mknod("b2"));
    let file = cluster.inode(2, commit(&file, "b2", packed(7, 5), 5));
    cluster.inode(2, commit(&file, "b2", NewData::Inline([1].into()), 1));
    *uses.lock() = false;
    assert_eq!(cluster.due(1), [7]);
    cluster.reaped(1, &[7]);
    assert!(!cluster.check().objects.contains_key(&7));
}

/// Whether a member is asked to confirm.
fn confirms(to: NodeId) -> impl Fn(NodeId, &Message) -> bool {
    move |node, message| {
        node == to && matches!(message, Message::Poll { question: PollQuestion::Confirm(..), .. })
    }
}

/// A node that refers to an object between the two questions, or that restarts, saves the object.
#[test]
fn reference_between_two_questions() {
    let mut cluster = Cluster::new(3);
    with_an_unused_object(&mut cluster);
    cluster.clock.advance(2000 * SECOND);
    let heard = cluster.condemn(1);
    let held = cluster.carry(confirms(2)).unwrap();
    let file = cluster.inode(2, mknod("b2"));
    let file = cluster.inode(2, commit(&file, "b2", packed(7, 5), 5));
    cluster.under_way.push_back(held);
    cluster.settle();
    assert_eq!(heard.lock().take().unwrap().unwrap(), []);
    cluster.inode(2, commit(&file, "b2", packed(8, 5), 5));
    cluster.clock.advance(2000 * SECOND);
    let heard = cluster.condemn(2);
    let held = cluster.carry(confirms(3)).unwrap();
    cluster.restart(3);
    cluster.under_way.push_back(held);
    cluster.settle();
    assert_eq!(heard.lock().take().unwrap().unwrap(), [], "node 3 does not know the round");
    // Nothing is condemned for long.
    let third = cluster.inode(3, mknod("c3"));
    let third = cluster.inode(3, commit(&third, "c3", packed(7, 5), 5));
    cluster.inode(3, commit(&third, "c3", packed(8, 5), 5));
    assert_eq!(cluster.due(3), [7]);
}

/// An object stays that history is about to refer to: the leader of a transaction has released it,
/// and the participant with the file's record hears of that between the two questions, or later.
#[test]
fn objects_of_history_not_yet_written() {
    for between in [true, false] {
        let mut cluster = Cluster::new(3);
        let file = cluster.inode(1, mknod("a1"));
        let file = cluster.inode(1, commit(&file, "a1", packed(7, 100), 100));
        assert_eq!(errno(&cluster.ask(1, Op::Link(seen(file.ino, "a1"), at("b2")))), 0);
        cluster.snapshot(1, "kept");

        let op = commit(&file, "b2", packed(8, 10), 10);
        let reply = cluster.submit(2, Request { creds: Creds::root(), op }, None);
        let decides = |_, message: &Message| matches!(message, Message::Decide(_, true, _));
        let decided = (0..1000).find_map(|_| {
            cluster.tick(SECOND / 100);
            cluster.carry(decides)
        });
        let decided = decided.unwrap();
        assert_eq!(decided.0, 1, "the file's record is at node 1");
        cluster.clock.advance(2000 * SECOND);
        let heard = cluster.condemn(2);
        let held = cluster.carry(confirms(1)).unwrap();
        if between {
            cluster.under_way.push_back(decided);
            assert!(cluster.carry(|_, _| false).is_none());
            cluster.under_way.push_back(held);
            assert!(cluster.carry(|_, _| false).is_none());
        } else {
            cluster.under_way.push_back(held);
            assert!(cluster.carry(|_, _| false).is_none());
            cluster.under_way.push_back(decided);
        }
        cluster.settle();
        assert_eq!(heard.lock().take().unwrap().unwrap(), [], "{between}");
        assert_eq!(errno(&reply.lock().take().unwrap()), 0);
        assert!(cluster.history_rows() > 0);
        cluster.check_history_shares();
        assert!((1..=3).all(|node| cluster.due(node).is_empty()), "the snapshot has the file");

        assert_eq!(errno(&cluster.ask(cluster.leader(), remove(1, "kept"))), 0);
        cluster.come_to_rest();
        let freed: Vec<u64> = (1..=3).flat_map(|node| cluster.due(node)).collect();
        assert!(freed.contains(&7), "{freed:?}");
    }
}

#[test]
fn deleting_goes_on_where_a_crash_left_it() {
    let mut cluster = Cluster::new(3);
    with_an_unused_object(&mut cluster);
    assert_eq!(cluster.due(1), [7]);
    // Deleted, and nobody was told.
    cluster.restart(1);
    assert_eq!(cluster.due(1), [7]);
    // On record, and one member never hears of it.
    cluster.members.get_mut(&1).unwrap().reaped(&[7], Box::new(|_| ()), cluster.now);
    cluster.carry(|node, _| node == 1);
    cluster.restart(1);
    assert_eq!(cluster.rows(1, Table::Reap), 1);
    assert!(cluster.due(1).is_empty(), "it is deleted already");
    assert_eq!(cluster.rows(1, Table::Reap), 0);
    assert!(!cluster.check().objects.contains_key(&7));
}

#[test]
fn numbers_of_objects_are_one_nodes_and_increase() {
    let mut cluster = Cluster::new(2);
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for node in [1, 2, 1, 2] {
        let slot = cluster.submit(
            node,
            Request { creds: Creds::root(), op: Op::AllocObjects(700_000) },
            None,
        );
        cluster.carry(|_, _| false);
        let Ok(Answer::Objects { first, count }) = slot.lock().take().unwrap() else {
            panic!("no numbers")
        };
        taken.push((first, first + u64::from(count)));
    }
    assert!(taken[0] < taken[2] && taken[1] < taken[3]);
    taken.sort_unstable();
    assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{taken:?}");
}

#[test]
fn figures_of_a_tree_are_sums_over_all_nodes() {
    let mut cluster = Cluster::new(3);
    let dir = cluster.inode(2, Op::MkDir(at("a1"), 0o755));
    for inner in ["a1/a1", "a1/b2", "a1/b2/c3"] {
        cluster.inode(1, Op::MkDir(at(inner), 0o755));
        for file in ["d1", "d2", "d3"] {
            cluster.inode(1, mknod(&format!("{inner}/{file}")));
        }
    }
    let file = cluster.inode(3, Op::Lookup(at("a1/b2/c3/d2")));
    let inner = cluster.inode(1, Op::Lookup(at("a1/b2/c3"))).ino;
    let inode = InodeRef { ino: file.ino, seen: Some((inner, Name::new(b"d2").unwrap())) };
    let (base, data) = (file.data_change, NewData::Inline([1; 9].into()));
    cluster.inode(
        3,
        Op::Commit(Commit { inode, base, data, size: Some(9), mtime: 5, kill_suid: false }),
    );
    assert_eq!(cluster.usage(Op::TreeUsage(dir.ino)), Usage { files: 9, dirs: 3, bytes: 9 });
    assert_eq!(cluster.usage(Op::Usage), Usage { files: 9, dirs: 4, bytes: 9 });
    assert_eq!(errno(&cluster.ask(2, Op::TreeUsage(12345))), libc::ENOENT);
    assert!(cluster.members.values().all(ClusterNode::is_idle));
}
