//! Nodes that leave a cluster. (What happens under many faults at once the simulator judges.)

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_cluster::change::{Announced, ChangeMessage, Changed};
use kestrel_cluster::{ClusterNode, Envelope, Message};
use kestrel_engine::Engine;
use kestrel_meta::owners::share_holder_of;
use kestrel_types::clock::SECOND;
use kestrel_types::error::FsResult;
use kestrel_types::extent::Extent;
use kestrel_types::feed::FeedStart;
use kestrel_types::inode::Inode;
use kestrel_types::key::Table;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::placement::{Member as MapMember, NodeId, PlacementMap, SlotMap, object_in};
use kestrel_types::request::{
    Answer, Commit, Creds, NewData, Op, OpenFlags, Outcome, Reply, Request,
};
use parking_lot::Mutex;

use common::errno;
use common::feeds::record;
use common::members::{Cluster, at, mknod};
use common::rules::range;

const FLAGS: OpenFlags = OpenFlags {
    read: true,
    write: true,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

type Ended = Arc<Mutex<Option<FsResult<()>>>>;

fn heard() -> (Ended, Changed) {
    let slot: Ended = Arc::default();
    let filled = slot.clone();
    (slot, Box::new(move |result| *filled.lock() = Some(result)))
}

/// All slots of a node go to node 1.
fn drained(table: &PlacementMap, node: NodeId) -> PlacementMap {
    let members = table.map.members().to_vec();
    let map = SlotMap::new(members, |slot| match table.map.owner(slot).id {
        owner if owner == node => 1,
        owner => owner,
    });
    PlacementMap { version: table.version + 1, map: map.unwrap(), ..table.clone() }
}

impl Cluster {
    fn begin(&mut self, next: PlacementMap) -> Ended {
        let (slot, done) = heard();
        self.members.get_mut(&1).unwrap().change(next, done, self.now);
        slot
    }

    fn forget(&mut self, node: NodeId) -> FsResult<()> {
        let (slot, done) = heard();
        self.members.get_mut(&1).unwrap().forget(node, done, self.now);
        self.end(&slot)
    }

    fn step(&mut self) {
        self.carry(|_, _| false);
        self.tick(SECOND / 100);
    }

    fn steps(&mut self, count: u32) {
        (0..count).for_each(|_| self.step());
    }

    fn end(&mut self, ended: &Ended) -> FsResult<()> {
        for _ in 0..20_000 {
            self.step();
            if let Some(result) = ended.lock().take() {
                return result;
            }
        }
        panic!("the change does not end");
    }

    fn change(&mut self, next: PlacementMap) -> FsResult<()> {
        let ended = self.begin(next.clone());
        self.end(&ended)?;
        self.placement = next;
        Ok(())
    }

    fn settle(&mut self) {
        for _ in 0..20_000 {
            self.step();
            if self.members.values().all(ClusterNode::is_idle) {
                return;
            }
        }
        panic!("somebody does not come to rest");
    }

    /// A node is drained and marked as leaving.
    fn prepare(&mut self, node: NodeId) {
        self.change(drained(&self.placement.clone(), node)).unwrap();
        self.change(self.placement.with_leaving(node).unwrap()).unwrap();
    }

    fn shares(&self, node: NodeId, table: Table) -> Vec<NodeId> {
        let mut holders = Vec::new();
        let visited = self.engines[&node].scan_table(table, None, &mut |key, _| {
            holders.push(share_holder_of(key.suffix));
            ControlFlow::Continue(())
        });
        visited.unwrap();
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    fn expected(&mut self, address: &str) -> FsResult<NodeId> {
        let slot: Arc<Mutex<Option<FsResult<NodeId>>>> = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |node| *filled.lock() = Some(node));
        let node = Announced { address: address.into(), idle: false };
        self.members.get_mut(&1).unwrap().expect(node, done, self.now);
        slot.lock().take().unwrap()
    }

    fn open(&mut self, name: &str) -> Inode {
        let create = Op::Create { place: at(name), mode: 0o644, flags: FLAGS, exclusive: false };
        match self.ask(1, create) {
            Ok(Answer::Opened { inode, .. }) => *inode,
            other => panic!("{other:?}"),
        }
    }

    /// Asks a member straight away, whichever leads it.
    fn ask_member(&mut self, node: NodeId, op: Op) -> Reply {
        let slot: Arc<Mutex<Option<Reply>>> = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |reply| *filled.lock() = Some(reply));
        let asker = kestrel_cluster::Requester::Session(None);
        let request = Request { creds: Creds::root(), op };
        self.members.get_mut(&node).unwrap().submit(request, asker, done, self.now);
        for _ in 0..3000 {
            self.step();
            if let Some(reply) = slot.lock().take() {
                return reply;
            }
        }
        panic!("no answer");
    }
}

fn seen(file: &Inode, name: &str) -> InodeRef {
    InodeRef { ino: file.ino, seen: Some((1, Name::new(name.as_bytes()).unwrap())) }
}

fn is_adopt(message: &Message) -> bool {
    matches!(message, Message::Change(ChangeMessage::Adopt(_)))
}

#[test]
fn who_leaves_is_inherited_from_and_every_sum_stays() {
    let mut cluster = Cluster::new(3);
    for dir in ["a1", "a2", "a3"] {
        cluster.inode(1, Op::MkDir(at(dir), 0o755));
        for name in ["b1", "b2", "b3", "c3", "x", "y"] {
            cluster.inode(1, mknod(&format!("{dir}/{name}")));
        }
    }
    let dirs: Vec<Inode> =
        ["a1", "a2", "a3"].map(|dir| cluster.inode(1, Op::Lookup(at(dir)))).into();
    let look = |cluster: &mut Cluster| -> Vec<Reply> {
        let root = cluster.ask(1, Op::GetAttr(InodeRef::by_id(1)));
        let mut replies = vec![root, cluster.ask(1, Op::Usage), cluster.ask(1, Op::TreeUsage(1))];
        for dir in &dirs {
            replies.push(cluster.ask(1, Op::TreeUsage(dir.ino)));
            let Ok(Answer::Inode(inode)) = cluster.ask(1, Op::GetAttr(InodeRef::by_id(dir.ino)))
            else {
                panic!("a directory is gone");
            };
            assert_eq!((inode.nlink, inode.mtime), (2, dir.mtime.max(inode.mtime)));
            replies.push(Ok(Answer::Inode(inode)));
        }
        replies
    };
    let before = look(&mut cluster);
    // Node 3 goes, and then its heir.
    for (node, heir) in [(3, 2), (2, 1)] {
        cluster.prepare(node);
        assert!(cluster.shares(node, Table::DirStat).contains(&node));
        cluster.change(cluster.placement.without(node, heir).unwrap()).unwrap();
        cluster.settle();
        assert!(cluster.members[&node].has_left());
        assert_eq!(cluster.shares(node, Table::DirStat), []);
        assert_eq!(cluster.shares(heir, Table::DirStat), (heir..=3).collect::<Vec<_>>());
        assert_eq!(look(&mut cluster), before);
        (1..=3).for_each(|id| cluster.restart(id));
        assert_eq!(look(&mut cluster), before);
        for op in [Op::Usage, Op::AllocObjects(1), mknod("b1")] {
            let reply = cluster.ask_member(node, op);
            assert!(matches!(reply, Err(Outcome::Misdirected { .. })), "{reply:?}");
        }
    }
    // What was inherited is changed like the rest.
    for name in ["b1", "b2", "b3", "c3", "x", "y"] {
        assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(&format!("a3/{name}"))))), 0);
    }
    assert_eq!(errno(&cluster.ask(1, Op::RmDir(at("a3"), None))), 0);
    // Numbers are not used again.
    assert_eq!(cluster.expected("new").unwrap(), 4);
}

/// Events of a node that leaves are its heir's: readers go on by their cursors, and from the oldest
/// event on.
#[test]
fn feed_of_nodes_that_leave() {
    let mut cluster = Cluster::new(3);
    let top = cluster.inode(1, Op::MkDir(at("a1"), 0o755)).ino;
    assert_eq!(errno(&cluster.ask(1, record(top))), 0);
    let (_, start) = cluster.events(top, FeedStart::Oldest, 10);
    let mut told = Vec::new();
    let mut make = |cluster: &mut Cluster, letter: char| {
        for node in 1..=3 {
            cluster.inode(1, mknod(&format!("a1/{letter}{node}")));
            told.push(format!("create {letter}{node}"));
        }
        told.clone()
    };
    let before = make(&mut cluster, 'b');
    let (read, cursor) = cluster.events(top, start, 10);
    assert_eq!(read, before);
    make(&mut cluster, 'c');
    for (node, heir, letter) in [(3, 2, 'd'), (2, 1, 'e')] {
        cluster.prepare(node);
        make(&mut cluster, letter);
        cluster.change(cluster.placement.without(node, heir).unwrap()).unwrap();
        let all = make(&mut cluster, (letter as u8 + 2) as char);
        for _ in 0..2 {
            for limit in [1, 4, 100] {
                assert_eq!(cluster.events(top, start, limit).0, all, "{limit}");
                assert_eq!(cluster.events(top, FeedStart::Oldest, limit).0, all, "{limit}");
                assert_eq!(cluster.events(top, cursor, limit).0, all[3..], "{limit}");
            }
            cluster.settle();
            (1..=3).for_each(|id| cluster.restart(id));
        }
        let rows = |node: NodeId| {
            let mut count = 0;
            let visited = cluster.engines[&node].scan_table(Table::Feed, None, &mut |_, _| {
                count += 1;
                ControlFlow::Continue(())
            });
            visited.map(|_| count).unwrap()
        };
        assert_eq!(rows(node), 0, "node {node} has left");
    }
}

/// A node cannot leave while clients have files open there, or while its process objects.
#[test]
fn no_leaving_with_open_files_or_sessions() {
    let mut cluster = Cluster::new(3);
    let file = cluster.open("a3");
    cluster.prepare(3);
    let next = cluster.placement.without(3, 1).unwrap();
    let why = cluster.change(next.clone()).unwrap_err();
    assert!(why.errno == libc::EBUSY && why.to_string().contains("1 files open"), "{why}");
    let reply = cluster.ask_member(3, Op::AllocObjects(1));
    assert!(matches!(reply, Err(Outcome::Misdirected { .. })), "{reply:?}");
    assert_eq!(errno(&cluster.ask_member(3, Op::Release(file.ino))), 0);
    let sessions = Arc::new(Mutex::new(Some("client 7 has a session".to_string())));
    let guard = sessions.clone();
    cluster
        .members
        .get_mut(&3)
        .unwrap()
        .set_departure_guard(Box::new(move || guard.lock().clone()));
    let why = cluster.change(next.clone()).unwrap_err();
    assert!(why.to_string().contains("client 7 has a session"), "{why}");
    *sessions.lock() = None;
    cluster.change(next).unwrap();
    cluster.settle();
    assert!(cluster.members[&3].has_left());
}

/// A node that does not hear that it has left holds up no other node, and hears it later.
#[test]
fn node_away_while_it_is_removed() {
    for power in [false, true] {
        let mut cluster = Cluster::new(3);
        cluster.inode(1, Op::MkDir(at("a1"), 0o755));
        cluster.inode(1, mknod("a1/b3"));
        cluster.prepare(3);
        let next = cluster.placement.without(3, 2).unwrap();
        let ended = cluster.begin(next.clone());
        // It is gone when it is to hear.
        while cluster.carry(|to, message| to == 3 && is_adopt(message)).is_none() {
            cluster.tick(SECOND / 100);
        }
        let away = cluster.members.remove(&3).unwrap();
        cluster.end(&ended).unwrap();
        cluster.placement = next;
        cluster.settle();
        let stats = cluster.inode(1, Op::GetAttr(InodeRef::by_id(1)));
        assert_eq!(stats.nlink, 3);
        // Other tables follow.
        cluster.change(drained(&cluster.placement.clone(), 2)).unwrap();
        cluster.members.insert(3, away);
        if power {
            cluster.crash(3);
        }
        assert!(!cluster.members[&3].has_left());
        cluster.steps(300);
        cluster.settle();
        assert!(cluster.members[&3].has_left());
        assert_eq!(cluster.members[&3].placement().version, cluster.placement.version);
    }
}

/// A cluster member that restarts while a node leaves finds the old placement map or the new one.
#[test]
fn restart_while_a_node_leaves() {
    for node in 1..=3 {
        let mut point = 0;
        loop {
            let mut cluster = Cluster::new(3);
            cluster.inode(1, Op::MkDir(at("a1"), 0o755));
            for name in ["a1/b1", "a1/b2", "a1/b3"] {
                cluster.inode(1, mknod(name));
            }
            let usage = cluster.ask(1, Op::Usage);
            cluster.prepare(3);
            cluster.settle();
            cluster.engines.values().for_each(|engine| engine.sync().unwrap());
            let ended = cluster.begin(cluster.placement.without(3, 2).unwrap());
            let told = std::cell::Cell::new(0);
            let reached = (0..2000).any(|_| {
                let held = cluster.carry(|to, message| {
                    let counts = to == node && matches!(message, Message::Change(_));
                    told.set(told.get() + u32::from(counts));
                    counts && told.get() == point + 1
                });
                cluster.tick(SECOND / 100);
                held.is_some() || ended.lock().is_some()
            });
            if ended.lock().is_some() || !reached {
                break;
            }
            cluster.crash(node);
            cluster.steps(3000);
            cluster.settle();
            cluster.placement = cluster.members[&1].placement();
            if node == 1 && cluster.placement.version == 3 {
                // Only the coordinator forgets a change.
                cluster.change(cluster.placement.without(3, 2).unwrap()).unwrap();
                cluster.settle();
            }
            assert_eq!(cluster.placement.version, 4, "{node} {point}");
            assert!(cluster.members[&3].has_left(), "{node} {point}");
            assert_eq!(cluster.ask(1, Op::Usage), usage);
            cluster.restart(2);
            assert_eq!(cluster.ask(1, Op::Usage), usage);
            point += 1;
        }
        assert!(point >= 3, "{node}: {point}");
    }
}

/// An object that a former node referred to is deleted when nothing refers to it any more.
#[test]
fn objects_referred_to_by_former_nodes() {
    let mut cluster = Cluster::new(3);
    let object = object_in(77, 1);
    let file = cluster.open("a3");
    // Node 3, where it is open, books the reference; another one releases it.
    let commit = |cluster: &mut Cluster, node, name: &str, file: &Inode, object: u64, base| {
        let data = NewData::Patches(vec![(0, Extent::of_range(0, range(object, 10)))]);
        let commit = Commit {
            inode: seen(file, name),
            base,
            data,
            size: Some(10),
            mtime: 5,
            kill_suid: false,
        };
        match cluster.ask_member(node, Op::Commit(commit)) {
            Ok(Answer::Inode(inode)) => *inode,
            other => panic!("{other:?}"),
        }
    };
    commit(&mut cluster, 3, "a3", &file, object, file.data_change);
    assert_eq!(cluster.shares(3, Table::ObjStat), [3]);
    assert_eq!(errno(&cluster.ask_member(3, Op::Release(file.ino))), 0);
    cluster.prepare(3);
    cluster.change(cluster.placement.without(3, 2).unwrap()).unwrap();
    cluster.settle();
    assert_eq!(cluster.shares(2, Table::ObjStat), [3]);
    assert_eq!(errno(&cluster.ask(1, Op::Unlink(at("a3")))), 0);
    cluster.steps(1000);
    let mut deleted = Vec::new();
    for round in 0..40 {
        for id in 1..=2 {
            let slot: Arc<Mutex<Vec<u64>>> = Arc::default();
            let filled = slot.clone();
            let wall = (2000 + round * 500) * SECOND;
            let done =
                Box::new(move |objects: FsResult<Vec<u64>>| filled.lock().extend(objects.unwrap()));
            cluster.members.get_mut(&id).unwrap().condemn(wall, 10, done, cluster.now);
            cluster.steps(50);
            let free = slot.lock().clone();
            if !free.is_empty() {
                deleted.extend(free.clone());
                cluster.members.get_mut(&id).unwrap().reaped(&free, Box::new(|_| ()), cluster.now);
                cluster.steps(50);
            }
        }
    }
    assert_eq!(deleted, [object]);
    assert_eq!(
        (cluster.shares(1, Table::ObjStat), cluster.shares(2, Table::ObjStat)),
        (vec![], vec![])
    );
}

#[test]
fn who_never_came_is_forgotten() {
    let mut cluster = Cluster::new(2);
    // Only expected.
    assert_eq!(cluster.expected("node-3").unwrap(), 3);
    cluster.forget(3).unwrap();
    cluster.restart(1);
    assert!(cluster.members[&1].expected().is_empty());
    assert_eq!(cluster.forget(3).unwrap_err().errno, libc::ENOENT);
    // Added, and lost before it heard of that.
    assert_eq!(cluster.expected("node-4").unwrap(), 4, "numbers are not used again");
    for restarts in [false, true] {
        let number = if restarts { 5 } else { 4 };
        if restarts {
            assert_eq!(cluster.expected("node-5").unwrap(), 5);
        }
        let join =
            Envelope { from: number, stamp: 0, message: Message::Change(ChangeMessage::Join) };
        cluster.members.get_mut(&1).unwrap().receive(join.clone(), cluster.now);
        cluster.steps(500);
        let version = cluster.members[&1].placement().version;
        assert_eq!(cluster.members[&2].placement().map.members().len(), 3);
        if restarts {
            cluster.restart(1);
        }
        let busy = cluster.change(
            cluster.members[&1]
                .placement()
                .with_leaving(2)
                .unwrap_or_else(|_| drained(&cluster.members[&1].placement(), 2)),
        );
        assert_eq!(busy.unwrap_err().errno, libc::EBUSY);
        cluster.steps(500);
        cluster.forget(number).unwrap();
        cluster.settle();
        assert_eq!(cluster.members[&1].placement().version, version + 1);
        assert_eq!(cluster.members[&2].placement().map.members().len(), 2);
        assert!(cluster.members[&1].expected().is_empty());
        // It comes after all.
        cluster.members.get_mut(&1).unwrap().receive(join, cluster.now);
        let told = cluster.members.get_mut(&1).unwrap().take_outbox();
        assert!(told.iter().any(|(to, envelope)| *to == number && is_adopt(&envelope.message)));
        cluster.placement = cluster.members[&1].placement();
        assert_eq!(errno(&cluster.ask(1, Op::MkDir(at(&format!("dir{number}")), 0o755))), 0);
        assert_eq!(errno(&cluster.ask(1, Op::RmDir(at(&format!("dir{number}")), None))), 0);
    }
    assert_eq!(cluster.expected("node-6").unwrap(), 6);
}

#[test]
fn a_coordinator_that_starts_again_goes_on_forgetting() {
    let mut cluster = Cluster::new(2);
    assert_eq!(cluster.expected("node-3").unwrap(), 3);
    let join = Envelope { from: 3, stamp: 0, message: Message::Change(ChangeMessage::Join) };
    cluster.members.get_mut(&1).unwrap().receive(join.clone(), cluster.now);
    cluster.steps(500);
    let (slot, done) = heard();
    cluster.members.get_mut(&1).unwrap().forget(3, done, cluster.now);
    assert!(slot.lock().is_none());
    cluster.restart(1);
    cluster.members.get_mut(&1).unwrap().receive(join, cluster.now);
    cluster.steps(500);
    cluster.settle();
    let table = cluster.members[&2].placement();
    assert_eq!((table.map.members().len(), table.heir_of(3)), (2, Some(1)));
}

#[test]
fn who_cannot_leave_is_told_why() {
    let mut cluster = Cluster::new(3);
    let present = drained(&cluster.placement.clone(), 3);
    cluster.change(present.clone()).unwrap();
    let all_to_2 = {
        let map = SlotMap::new(present.map.members().to_vec(), |_| 2).unwrap();
        PlacementMap { version: present.version + 1, map, ..present.clone() }
    };
    let mut two_more = present.map.members().to_vec();
    two_more.extend([8, 9].map(|id| MapMember { id, address: format!("node-{id}") }));
    let map = SlotMap::new(two_more, |slot| present.map.owner(slot).id).unwrap();
    let two_more = PlacementMap { version: present.version + 1, map, ..present.clone() };
    let mut twice = present.with_leaving(3).unwrap();
    twice.leaving.clear();
    twice.former = vec![(9, 1)];
    for (next, why) in [
        (present.without(3, 1).unwrap(), "is not leaving"),
        (PlacementMap { version: 3, leaving: vec![1], ..all_to_2.clone() }, "cannot leave"),
        (two_more, "one after the other"),
        (twice, "something else"),
    ] {
        let refused = cluster.change(next).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    assert!(cluster.forget(2).unwrap_err().to_string().contains("is a member"));
    assert!(cluster.forget(9).unwrap_err().to_string().contains("not known"));
}
