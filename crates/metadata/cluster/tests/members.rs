//! Several members in one process, messages carried by hand. (What happens under faults the
//! simulator judges.)

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;

use kestrel_cluster::{ClusterNode, ClusterNodeConfig, DEADLINE, Message, Requester, Vote};
use kestrel_engine::EngineError;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, Node, NodeConfig};
use kestrel_meta::txn::Origin;
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::placement::{Exceptions, Member as MapMember, PlacementMap, SlotMap};
use kestrel_types::request::{Creds, Op, Outcome, RenameFlags, Reply, Request, SetAttr};
use kestrel_types::wire::ClientId;
use parking_lot::Mutex;

use common::errno;
use common::members::{Cluster, ROOT_ATTR, at, mknod, placement, settings};

#[test]
fn operations_over_all_members() {
    let mut cluster = Cluster::new(3);
    let dir = cluster.inode(2, Op::MkDir(at("a1"), 0o755));
    for (member, path) in [(1, "a1/b1"), (2, "a1/b2"), (3, "a1/b3"), (1, "a1/c3")] {
        cluster.inode(member, mknod(path));
    }
    assert_eq!(cluster.names(3, dir.ino, 2), ["b1", "b2", "b3", "c3"]);
    assert_eq!(errno(&cluster.ask(3, Op::RmDir(at("a1"), None))), libc::ENOTEMPTY);
    // Over two nodes, then onto a name of the third.
    let moved = cluster.inode(1, Op::Lookup(at("a1/b1"))).ino;
    for (from, to) in [("a1/b1", "d2"), ("d2", "a1/b3")] {
        assert_eq!(errno(&cluster.ask(3, Op::Rename(at(from), at(to), RenameFlags::default()))), 0);
    }
    assert_eq!(cluster.inode(2, Op::Lookup(at("a1/b3"))).ino, moved);
    let linked = cluster.inode(2, Op::Link(InodeRef { ino: moved, seen: None }, at("e3")));
    // It was found by its number alone, which leads to where it was moved last.
    assert_eq!((linked.ino, linked.nlink), (moved, 2));
    assert_eq!(cluster.inode(1, Op::Lookup(at("a1/b3"))).nlink, 2);
    // A directory moves below another one, but not below itself.
    cluster.inode(1, Op::MkDir(at("a1/f2"), 0o700));
    assert_eq!(cluster.inode(2, Op::GetAttr(InodeRef::by_id(dir.ino))).nlink, 3);
    let into_itself = Op::Rename(at("a1"), at("a1/f2/a3"), RenameFlags::default());
    assert_eq!(errno(&cluster.ask(2, into_itself)), libc::EINVAL);
    assert_eq!(
        errno(&cluster.ask(2, Op::Rename(at("a1/f2"), at("f3"), RenameFlags::default()))),
        0
    );
    assert_eq!(cluster.inode(2, Op::GetAttr(InodeRef::by_id(dir.ino))).nlink, 2);
    for path in ["a1/b2", "a1/b3", "a1/c3", "e3"] {
        assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(path)))), 0, "{path}");
    }
    assert_eq!(errno(&cluster.ask(3, Op::RmDir(at("a1"), None))), 0);
    assert_eq!(cluster.names(1, 1, 100), ["f3"]);
    cluster.tick(SECOND);
    cluster.carry(|_, _| false);
    assert!(cluster.members.values().all(ClusterNode::is_idle));
}

/// A directory that loses its permissions loses them at each cluster member at once.
#[test]
fn permission_change_at_all_members() {
    let mut cluster = Cluster::new(3);
    let dir = cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    cluster.inode(2, mknod("a1/b2"));
    cluster.inode(3, mknod("a1/b3"));
    let user = Creds { uid: 5, gid: 5, groups: Some([].into()) };
    let look = |cluster: &mut Cluster, name: &str| {
        let request = Request { creds: user.clone(), op: Op::Lookup(at(name)) };
        let slot = cluster.submit(1, request, None);
        cluster.carry(|_, _| false);
        errno(&slot.lock().take().unwrap())
    };
    assert_eq!((look(&mut cluster, "a1/b2"), look(&mut cluster, "a1/b3")), (0, 0));
    let closed = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    cluster.inode(2, Op::SetAttr(InodeRef::by_id(dir.ino), closed));
    assert_eq!(
        (look(&mut cluster, "a1/b2"), look(&mut cluster, "a1/b3")),
        (libc::EACCES, libc::EACCES)
    );
}

/// A request that is sent again after restarts is executed once.
#[test]
fn retry_after_restarts_of_members() {
    let mut cluster = Cluster::new(3);
    let client = ClientId([9; 16]);
    let origin = |seq, retry| Some(Origin { client, seq, retry });
    let rename = Op::Rename(at("a2"), at("b3"), RenameFlags::default());
    assert_eq!(errno(&cluster.ask_from(1, mknod("a2"), origin(1, false))), 0);
    assert_eq!(errno(&cluster.ask_from(3, rename.clone(), origin(2, false))), 0);
    for id in 1..=3 {
        cluster.restart(id);
    }
    assert_eq!(errno(&cluster.ask_from(1, rename, origin(2, true))), 0);
    assert_eq!(cluster.names(1, 1, 100), ["b3"]);
}

/// A session hears that another member leads its request; the request of a member's own process
/// goes on to the leader.
#[test]
fn misdirected_only_for_sessions() {
    let mut cluster = Cluster::new(3);
    let request = Request { creds: Creds::root(), op: mknod("a2") };
    let mut ask = |asker| {
        let slot: Arc<Mutex<Option<Reply>>> = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |reply| *filled.lock() = Some(reply));
        cluster.members.get_mut(&1).unwrap().submit(request.clone(), asker, done, 0);
        cluster.carry(|_, _| false);
        slot.lock().take().unwrap()
    };
    assert_eq!(ask(Requester::Session(None)), Err(Outcome::Misdirected { table: 1 }));
    assert_eq!(errno(&ask(Requester::Own)), 0);
    assert_eq!(cluster.names(1, 1, 100), ["a2"]);
}

/// Row locks that a participant lost and took again do not count for the old transaction.
#[test]
fn lost_row_locks_begun_again() {
    let mut cluster = Cluster::new(2);
    cluster.inode(1, mknod("a1"));
    let rename = Op::Rename(at("a1"), at("b2"), RenameFlags::default());
    let slot = cluster.submit(1, Request { creds: Creds::root(), op: rename }, None);
    let (_, borrow) =
        cluster.carry(|to, message| to == 2 && matches!(message, Message::Borrow { .. })).unwrap();
    cluster.members.get_mut(&2).unwrap().receive(borrow.clone(), 0);
    let (_, prepare) =
        cluster.carry(|_, message| matches!(message, Message::Prepare { .. })).unwrap();
    // The participant forgets, somebody makes a file of the name, and a copy of the old question
    // comes.
    cluster.restart(2);
    cluster.inode(2, mknod("b2"));
    let participant = cluster.members.get_mut(&2).unwrap();
    participant.receive(borrow, 0);
    participant.receive(prepare, 0);
    let votes: Vec<_> =
        participant.take_outbox().into_iter().map(|(_, envelope)| envelope.message).collect();
    assert!(votes.iter().any(|vote| matches!(vote, Message::Voted(_, Vote::No))), "{votes:?}");
    for _ in 0..1000 {
        cluster.carry(|_, _| false);
        cluster.tick(SECOND / 10);
    }
    assert_eq!(errno(&slot.lock().take().unwrap()), 0, "it was done in the end");
    assert_eq!(cluster.names(1, 1, 100), ["b2"]);
}

/// A renamed file is found by its number after each cluster member was restarted.
#[test]
fn renamed_file_by_number_after_restarts() {
    let mut cluster = Cluster::new(3);
    let file = cluster.inode(1, mknod("a1"));
    let rename = Op::Rename(at("a1"), at("b2"), RenameFlags::default());
    assert_eq!(errno(&cluster.ask(3, rename)), 0);
    (1..=3).for_each(|id| cluster.restart(id));
    let by_old_name = InodeRef { ino: file.ino, seen: Some((1, Name::new(b"a1").unwrap())) };
    for reference in [InodeRef::by_id(file.ino), by_old_name] {
        assert_eq!(cluster.inode(3, Op::GetAttr(reference)).ino, file.ino);
    }
    assert_eq!(cluster.inode(1, Op::Link(InodeRef::by_id(file.ino), at("c3"))).nlink, 2);
}

/// A file is linked into a directory that now has the file's old name.
#[test]
fn link_into_directory_of_the_old_name() {
    let mut cluster = Cluster::new(3);
    let file = cluster.inode(1, mknod("a1"));
    assert_eq!(errno(&cluster.ask(1, Op::Rename(at("a1"), at("c3"), RenameFlags::default()))), 0);
    let dir = cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    // Its leader does not know the directory, and locks the directory's entry to look for the file.
    cluster.restart(2);
    let seen = InodeRef { ino: file.ino, seen: Some((1, Name::new(b"a1").unwrap())) };
    let place = PathRef::new(dir.ino, Name::new(b"b2").unwrap());
    assert_eq!(cluster.inode(2, Op::Link(seen, place)).nlink, 2);
}

#[test]
fn a_part_of_a_volume_is_not_served_alone() {
    let cluster = Cluster::new(2);
    let opened = Node::open(cluster.engines[&1].clone(), cluster.clock.clone(), settings());
    assert_eq!(opened.err().map(|why| why.errno), Some(libc::EINVAL));
}

/// A request that needs a cluster member that is gone fails in time.
#[test]
fn request_that_needs_a_missing_member() {
    let mut cluster = Cluster::new(2);
    cluster.inode(1, mknod("a1"));
    let rename = Op::Rename(at("a1"), at("b2"), RenameFlags::default());
    let slot = cluster.submit(1, Request { creds: Creds::root(), op: rename }, None);
    let mut now = 0;
    while slot.lock().is_none() && now <= DEADLINE + SECOND {
        now += SECOND / 10;
        let member = cluster.members.get_mut(&1).unwrap();
        member.tick(now);
        member.take_outbox();
    }
    assert_eq!(errno(&slot.lock().take().unwrap()), libc::ETIMEDOUT);
    cluster.now = now;
    assert_eq!(cluster.names(1, 1, 100), ["a1"], "and nothing has changed");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let clock = Arc::new(ManualClock::new(SECOND));
    let engine = Arc::new(MemoryEngine::new(SyncWhen::Asked));
    assert_eq!(
        ClusterNode::format(&*engine, ROOT_ATTR, 0, 9, placement(2)).unwrap_err().errno,
        libc::EINVAL
    );
    let member = |id| MapMember { id, address: "node".into() };
    let map = SlotMap::even(vec![member(1), member(1024)]).unwrap();
    let high = PlacementMap::new(map, Exceptions::default());
    assert_eq!(
        ClusterNode::format(&*engine, ROOT_ATTR, 0, 1, high).unwrap_err().errno,
        libc::EINVAL
    );
    ClusterNode::format(&*engine, ROOT_ATTR, 0, 1, placement(2)).unwrap();
    let fsync = NodeConfig { durability: Durability::Fsync, ..settings() };
    for node in [fsync, NodeConfig { workers: 17, ..settings() }] {
        let config = ClusterNodeConfig {
            me: 1,
            placement: placement(2),
            node,
            seed: 1,
            joining: false,
            exclusive: true,
        };
        let opened = ClusterNode::open(engine.clone(), clock.clone(), config, 0);
        assert_eq!(opened.err().map(|why| why.errno), Some(libc::EINVAL));
    }
    // Alone it is a node like any other: it has all rows.
    let alone = Arc::new(MemoryEngine::new(SyncWhen::Asked));
    ClusterNode::format(&*alone, ROOT_ATTR, 0, 1, placement(1)).unwrap();
    assert!(Node::open(alone, clock, settings()).is_ok());
}

/// A cluster member with a log that fails says nothing about what it was deciding.
#[test]
fn log_failure_during_a_decision() {
    let mut cluster = Cluster::new(2);
    cluster.inode(1, mknod("a1"));
    let rename = || Request {
        creds: Creds::root(),
        op: Op::Rename(at("a1"), at("b2"), RenameFlags::default()),
    };
    // A batch that the log refuses is one that was not decided.
    let leader = 1;
    let slot = cluster.submit(leader, rename(), None);
    let vote = cluster.carry(|_, message| matches!(message, Message::Voted(..))).unwrap();
    cluster.engines[&leader].fail_commit(EngineError::Io("too large".into()));
    cluster.under_way.push_back(vote);
    cluster.carry(|_, _| false);
    assert_eq!(errno(&slot.lock().take().unwrap()), libc::EIO);
    assert_eq!(cluster.names(2, 1, 100), ["a1"]);
    // What cannot be made durable may be there after a restart, or not.
    let slot = cluster.submit(leader, rename(), None);
    let vote = cluster.carry(|_, message| matches!(message, Message::Voted(..))).unwrap();
    cluster.engines[&leader].fail_sync(EngineError::Io("no such disk".into()));
    cluster.under_way.push_back(vote);
    for _ in 0..100 {
        assert!(cluster.carry(|_, message| matches!(message, Message::Decide(..))).is_none());
        cluster.tick(SECOND / 10);
    }
    assert_eq!(errno(&slot.lock().take().unwrap()), libc::EIO);
    assert!(cluster.members[&leader].failure().is_some());
    assert_eq!(errno(&cluster.ask(leader, Op::Lookup(at("a1")))), libc::EIO);
    assert!(!cluster.members[&2].is_idle(), "it does not know what became of its half");
}
