//! Sums of shares that members tell each other under leases: what a stat of a directory costs in
//! messages, and that nobody hears of a sum that a change of a share has made old. (What happens
//! under faults the simulator judges.)

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use kestrel_cluster::lease::{LEASE, PROMISE, RENEW};
use kestrel_cluster::sums::{COOL_MAX, COOL_MIN};
use kestrel_cluster::{Envelope, Message, SumMessage};
use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::ids::InodeId;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Creds, Op, RenameFlags, Reply, Request, SetAttr, SetTime};

use common::errno;
use common::members::{Cluster, at, mknod};

/// A request of which nothing is carried yet.
type Slot = std::sync::Arc<parking_lot::Mutex<Option<Reply>>>;

fn begin(cluster: &mut Cluster, op: Op) -> Slot {
    cluster.submit(1, Request { creds: Creds::root(), op }, None)
}

/// Messages that carry no lease: how many were needed until nothing is under way.
fn settle(cluster: &mut Cluster) -> usize {
    let count = std::cell::Cell::new(0);
    let counted = |_: NodeId, message: &Message| {
        count.set(count.get() + usize::from(!matches!(message, Message::Lease(_))));
        false
    };
    assert!(cluster.carry(counted).is_none());
    count.get()
}

/// Serves a request; its reply and the messages that were needed, those included that nobody waits
/// for.
fn counted(cluster: &mut Cluster, op: Op) -> (Reply, usize) {
    let slot = begin(cluster, op);
    let count = settle(cluster);
    (slot.lock().take().expect("nothing had to wait for time"), count)
}

/// Link count of a directory, and the messages needed to learn it.
fn stat(cluster: &mut Cluster, path: &str) -> (u32, usize) {
    match counted(cluster, Op::Lookup(at(path))) {
        (Ok(Answer::Entry { inode, .. }), count) => (inode.nlink, count),
        (other, _) => panic!("{other:?}"),
    }
}

/// Time passes in steps that no lease notices.
fn pass(cluster: &mut Cluster, time: Nanos) {
    let end = cluster.now + time;
    while cluster.now < end {
        cluster.tick((end - cluster.now).min(RENEW / 4));
        settle(cluster);
    }
}

fn cluster_with_dir(nodes: u32) -> Cluster {
    let mut cluster = Cluster::new(nodes);
    pass(&mut cluster, RENEW);
    cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    for node in 1..=nodes {
        // Each member knows the directory.
        cluster.inode(node, mknod(&format!("a1/a{node}")));
    }
    settle(&mut cluster);
    cluster
}

fn mkdir(path: &str) -> Op {
    Op::MkDir(at(path), 0o755)
}

/// One round when a sum is not known, nothing when it is, whatever time passes; the round of one
/// node after a change there.
#[test]
fn messages_of_a_directory_stat() {
    for nodes in 2..=4u32 {
        let (mut cluster, others) = (cluster_with_dir(nodes), nodes as usize - 1);
        assert_eq!(stat(&mut cluster, "a1"), (2, 2 * others), "one round");
        for _ in 0..3 {
            assert_eq!(stat(&mut cluster, "a1"), (2, 0), "nothing has changed");
        }
        pass(&mut cluster, 20 * SECOND);
        assert_eq!(stat(&mut cluster, "a1"), (2, 0), "leases last while members answer each other");
        // The leader's own share is no other node's business.
        assert_eq!(counted(&mut cluster, mkdir("a1/b1")).1, 0);
        assert_eq!(stat(&mut cluster, "a1"), (3, 0));
        assert_eq!(
            counted(&mut cluster, mkdir("a1/b2")).1,
            2,
            "one holder is told, and says that it knows"
        );
        pass(&mut cluster, COOL_MIN);
        assert_eq!(stat(&mut cluster, "a1"), (4, 2), "the node that has changed it is asked");
        assert_eq!(stat(&mut cluster, "a1"), (4, 0));
    }
}

/// Creating in a directory that nobody stats needs no message.
#[test]
fn creates_without_a_lease_are_free() {
    let mut cluster = cluster_with_dir(3);
    cluster.inode(1, mkdir("b1"));
    for (name, number) in ["b2", "b3", "c2", "c3"].iter().zip(0..) {
        assert_eq!(counted(&mut cluster, mknod(&format!("a1/{name}"))).1, 0);
        // Not even where another directory is leased.
        assert_eq!(stat(&mut cluster, "b1").1, if number == 0 { 4 } else { 0 });
    }
}

/// Where creates and stats take turns a stat costs at most what it did without leases, and few
/// creates wait for a revocation.
#[test]
fn leases_rest_where_creates_and_stats_take_turns() {
    let mut cluster = cluster_with_dir(3);
    stat(&mut cluster, "a1");
    let (mut revocations, mut stats, turns) = (0, 0, 400);
    for turn in 0..turns {
        let path = format!("a1/{}", if turn % 2 == 0 { "b2" } else { "c3" });
        let op = if turn % 4 < 2 { mkdir(&path) } else { Op::RmDir(at(&path), None) };
        let create = begin(&mut cluster, op);
        let count = std::cell::Cell::new(0);
        let told = |_: NodeId, message: &Message| {
            count.set(
                count.get()
                    + usize::from(matches!(message, Message::Sum(SumMessage::Revoke { .. }))),
            );
            false
        };
        for _ in 0..100 {
            cluster.carry(told);
            if create.lock().is_some() {
                break;
            }
            cluster.tick(MILLISECOND);
        }
        assert_eq!(errno(&create.lock().take().unwrap()), 0);
        revocations += count.get();
        let (nlink, messages) = stat(&mut cluster, "a1");
        assert_eq!(nlink, [3, 4, 3, 2][turn % 4]);
        stats += messages;
        cluster.tick(MILLISECOND);
    }
    assert!(revocations <= 20, "{revocations} revocations");
    assert!(stats <= turns * 7, "{stats} messages for {turns} stats");
    // When it is quiet for as long as a lease may rest, there are leases again.
    pass(&mut cluster, COOL_MAX);
    stat(&mut cluster, "a1");
    assert_eq!(stat(&mut cluster, "a1"), (2, 0));
}

/// A change of a share happens, for every client, only when the holder of a lease has forgotten
/// the sum.
#[test]
fn a_share_changes_when_holders_have_forgotten() {
    let mut cluster = cluster_with_dir(3);
    stat(&mut cluster, "a1");
    let made = begin(&mut cluster, mkdir("a1/b2"));
    let is_revoke =
        |_: NodeId, message: &Message| matches!(message, Message::Sum(SumMessage::Revoke { .. }));
    let (to, revoke) = cluster.carry(is_revoke).unwrap();
    assert_eq!(to, 1);
    assert!(cluster.carry(is_revoke).is_none() && made.lock().is_none(), "it waits");
    let looked = begin(&mut cluster, Op::Lookup(at("a1/b2")));
    settle(&mut cluster);
    assert_eq!(errno(&looked.lock().take().unwrap()), libc::ENOENT, "nobody has seen it yet");
    assert_eq!(stat(&mut cluster, "a1"), (2, 0), "so the old sum is right");
    cluster.members.get_mut(&1).unwrap().receive(revoke, cluster.now);
    settle(&mut cluster);
    assert_eq!(errno(&made.lock().take().unwrap()), 0);
    assert_eq!(stat(&mut cluster, "a1").0, 3);
}

/// An answer that was given before a revocation, and comes after it, does not count.
#[test]
fn a_late_answer_is_no_lease() {
    let mut cluster = cluster_with_dir(2);
    let looked = begin(&mut cluster, Op::Lookup(at("a1")));
    let is_sum =
        |_: NodeId, message: &Message| matches!(message, Message::Sum(SumMessage::Sum { .. }));
    let (_, late) = cluster.carry(is_sum).unwrap();
    assert_eq!(counted(&mut cluster, mkdir("a1/b2")).0.map(drop), Ok(()));
    cluster.members.get_mut(&1).unwrap().receive(late, cluster.now);
    settle(&mut cluster);
    assert!(looked.lock().take().is_some_and(|reply| reply.is_ok()));
    assert_eq!(stat(&mut cluster, "a1").0, 3);
}

/// A holder that does not answer delays a change by no more than the promise to it; when it answers
/// again it asks anew.
#[test]
fn a_silent_holder_delays_a_change_for_a_time() {
    let mut cluster = cluster_with_dir(3);
    stat(&mut cluster, "a1");
    let begun = cluster.now;
    let made = begin(&mut cluster, mkdir("a1/b2"));
    let (mut took, mut held_back) = (None, Vec::new());
    while took.is_none() {
        assert!(cluster.now - begun <= PROMISE + SECOND, "it waits for ever");
        cluster.tick(SECOND / 20);
        // The holder hears and says nothing: it is cut off.
        let cut = |to: NodeId, envelope: &Envelope| to == 1 || envelope.from == 1;
        cluster.collect();
        while let Some((to, envelope)) = cluster.under_way.pop_front() {
            if cut(to, &envelope) {
                held_back.push((to, envelope));
            } else {
                cluster.members.get_mut(&to).unwrap().receive(envelope, cluster.now);
            }
            cluster.collect();
        }
        took = made.lock().take().map(|reply| (errno(&reply), cluster.now - begun));
    }
    let (result, took) = took.unwrap();
    assert!(result == 0 && (LEASE - RENEW..=PROMISE + SECOND).contains(&took), "{took}");
    let looked = begin(&mut cluster, Op::Lookup(at("a1")));
    assert!(looked.lock().is_none(), "its lease is over");
    cluster.under_way.extend(held_back);
    pass(&mut cluster, SECOND);
    let Some(Ok(Answer::Entry { inode, .. })) = looked.lock().take() else { panic!("no answer") };
    assert_eq!(inode.nlink, 3);
    stat(&mut cluster, "a1");
    assert_eq!(stat(&mut cluster, "a1"), (3, 0));
}

/// A granter that starts again changes no share before others have forgotten what its earlier start
/// had told.
#[test]
fn a_granter_that_starts_again_revokes_first() {
    for crashed in [false, true] {
        let mut cluster = cluster_with_dir(3);
        stat(&mut cluster, "a1");
        if crashed {
            cluster.crash(2)
        } else {
            cluster.restart(2)
        }
        let made = begin(&mut cluster, mkdir("a1/b2"));
        let to_holder = |to: NodeId, message: &Message| {
            to == 1 && matches!(message, Message::Sum(SumMessage::Revoke { .. }))
        };
        cluster.tick(0);
        let (_, revoke) = cluster.carry(to_holder).unwrap();
        cluster.tick(0);
        settle(&mut cluster);
        assert!(made.lock().is_none(), "the holder has not forgotten");
        assert_eq!(stat(&mut cluster, "a1"), (2, 0));
        cluster.members.get_mut(&1).unwrap().receive(revoke, cluster.now);
        settle(&mut cluster);
        assert_eq!(errno(&made.lock().take().unwrap()), 0);
        assert_eq!(stat(&mut cluster, "a1").0, 3);
    }
}

/// Transactions that change shares of leased directories: a rename between directories of two
/// nodes, explicit times, a removal.
#[test]
fn transactions_revoke_too() {
    let mut cluster = cluster_with_dir(3);
    cluster.inode(2, mkdir("b2"));
    cluster.inode(3, mkdir("a1/c3"));
    for path in ["a1", "b2", "a1", "b2"] {
        pass(&mut cluster, COOL_MAX);
        stat(&mut cluster, path);
    }
    let rename = Op::Rename(at("a1/c3"), at("b2/c2"), RenameFlags::default());
    assert_eq!(errno(&cluster.ask(3, rename)), 0);
    settle(&mut cluster);
    assert_eq!((stat(&mut cluster, "a1").0, stat(&mut cluster, "b2").0), (2, 3));
    pass(&mut cluster, COOL_MAX);
    assert_eq!((stat(&mut cluster, "a1").0, stat(&mut cluster, "b2").0), (2, 3));
    let dir = cluster.inode(2, Op::Lookup(at("b2")));
    let mtime = SetAttr { mtime: Some(SetTime::At(5 * SECOND)), ..SetAttr::default() };
    cluster.inode(2, Op::SetAttr(InodeRef::by_id(dir.ino), mtime));
    pass(&mut cluster, COOL_MAX);
    assert_eq!(cluster.inode(2, Op::Lookup(at("b2"))).mtime, 5 * SECOND);
    assert_eq!(errno(&cluster.ask(3, Op::RmDir(at("b2/c2"), None))), 0);
    assert_eq!(errno(&cluster.ask(3, Op::RmDir(at("b2"), None))), 0);
    assert_eq!(cluster.inode(1, Op::GetAttr(InodeRef::by_id(1))).nlink, 3);
}

/// A listing of pages by 1,000; the messages it needed.
fn list(cluster: &mut Cluster, dir: InodeId, limit: usize) -> (Vec<Name>, usize) {
    let (mut names, mut after, mut messages) = (Vec::new(), None, 0);
    loop {
        let page = Op::ReadDir { dir, after, limit, check: true };
        let (Ok(Answer::Entries { entries, end, .. }), count) = counted(cluster, page) else {
            panic!("no page")
        };
        messages += count;
        after = entries.last().map(|entry| entry.name.clone());
        names.extend(entries.into_iter().map(|entry| entry.name));
        if end {
            return (names, messages);
        }
    }
}

/// Two messages with each other member for a directory of 10,000 files, whatever the size of its
/// pages; none while nothing in it changes.
#[test]
fn messages_of_a_listing() {
    for nodes in [2, 4] {
        let mut cluster = cluster_with_dir(nodes);
        let dir = cluster.inode(1, Op::Lookup(at("a1"))).ino;
        let mut expected: Vec<Name> =
            (1..=nodes).map(|node| Name::new(format!("a{node}").as_bytes()).unwrap()).collect();
        for number in 0..10_000 - nodes {
            let name = format!("file-{number}");
            assert_eq!(counted(&mut cluster, mknod(&format!("a1/{name}"))).0.map(drop), Ok(()));
            expected.push(Name::new(name.as_bytes()).unwrap());
        }
        expected.sort();
        pass(&mut cluster, COOL_MAX);
        let round = 2 * (nodes as usize - 1);
        assert_eq!(list(&mut cluster, dir, 1000), (expected.clone(), round));
        assert_eq!(list(&mut cluster, dir, 4096), (expected.clone(), 0));
        assert_eq!(
            counted(&mut cluster, mknod("a1/b2")).1,
            2,
            "one holder is told, and says that it knows"
        );
        expected.push(Name::new(b"b2").unwrap());
        expected.sort();
        let (names, messages) = list(&mut cluster, dir, 1000);
        assert!(names == expected && messages <= 11 * 5 * round, "{messages}");
        pass(&mut cluster, COOL_MAX);
        assert_eq!(
            list(&mut cluster, dir, 1000),
            (expected, 2),
            "the node that has changed it is asked"
        );
    }
}

/// A page that begins anywhere asks each other member for no more than the page needs, and once;
/// pages that follow it ask for many names at once.
#[test]
fn messages_of_pages_from_anywhere() {
    let mut cluster = cluster_with_dir(4);
    let dir = cluster.inode(1, Op::Lookup(at("a1"))).ino;
    for number in 10_000..15_000 {
        let name = format!("a1/file-{number}");
        assert_eq!(counted(&mut cluster, mknod(&name)).0.map(drop), Ok(()));
    }
    pass(&mut cluster, COOL_MAX);
    let name = |number: usize| Name::new(format!("file-{number}").as_bytes()).unwrap();
    // The number of the last name, and the messages that the page needed.
    let page = |cluster: &mut Cluster, number: usize| {
        let op = Op::ReadDir { dir, after: Some(name(number)), limit: 100, check: true };
        let (Ok(Answer::Entries { entries, end: false, .. }), messages) = counted(cluster, op)
        else {
            panic!("no page")
        };
        let names: Vec<Name> = entries.into_iter().map(|entry| entry.name).collect();
        let last = number + names.len();
        assert_eq!(names, (number + 1..=last).map(name).collect::<Vec<_>>());
        (last, messages)
    };
    for number in [14_000, 10_500, 12_000] {
        assert_eq!(page(&mut cluster, number), (number + 100, 6));
    }
    // Each member told 101 names, of which that page needed about 25.
    let (mut last, mut following) = (12_100, 0);
    while last < 14_000 {
        let (next, messages) = page(&mut cluster, last);
        assert!(next > last);
        (last, following) = (next, following + messages);
    }
    assert_eq!(following, 6, "each member was asked once more");
}

/// A listing that needs several answers of each member: names as long as can be.
#[test]
fn a_listing_of_many_answers() {
    let mut cluster = cluster_with_dir(3);
    let dir = cluster.inode(1, Op::Lookup(at("a1"))).ino;
    let mut expected: Vec<Name> =
        (1..=3).map(|node| Name::new(format!("a{node}").as_bytes()).unwrap()).collect();
    for number in 0..15_000 {
        let name = format!("{number:0>255}");
        assert_eq!(counted(&mut cluster, mknod(&format!("a1/{name}"))).0.map(drop), Ok(()));
        expected.push(Name::new(name.as_bytes()).unwrap());
    }
    expected.sort();
    pass(&mut cluster, COOL_MAX);
    for limit in [1000, 777] {
        let (names, messages) = list(&mut cluster, dir, limit);
        assert!(names == expected && messages > 4 && messages < 40, "{messages}");
    }
}

/// Many listings at once, of as many directories, need no more messages than one after the other,
/// also if all answers of one member come before those of the next: no listing takes away what
/// another one was told.
#[test]
fn listings_at_once() {
    const DIRS: usize = 90;
    let mut cluster = cluster_with_dir(3);
    let mut dirs = Vec::new();
    for number in 0..DIRS {
        let dir = format!("many-{number}");
        dirs.push(cluster.inode(1, Op::MkDir(at(&dir), 0o755)).ino);
        assert_eq!(counted(&mut cluster, mknod(&format!("{dir}/f"))).0.map(drop), Ok(()));
    }
    pass(&mut cluster, COOL_MAX);
    let page = |dir: &InodeId| Op::ReadDir { dir: *dir, after: None, limit: 100, check: true };
    let slots: Vec<Slot> = dirs.iter().map(|dir| begin(&mut cluster, page(dir))).collect();
    let mut answers = Vec::new();
    let is_answer = |_, message: &Message| matches!(message, Message::Sum(SumMessage::Sum { .. }));
    while let Some(answer) = cluster.carry(is_answer) {
        answers.push(answer);
    }
    assert_eq!(answers.len(), DIRS * 2);
    answers.sort_by_key(|(_, envelope)| envelope.from);
    cluster.under_way.extend(answers);
    let messages = settle(&mut cluster);
    for slot in slots {
        let Some(Ok(Answer::Entries { entries, end: true, .. })) = slot.lock().take() else {
            panic!("no page")
        };
        assert_eq!(entries.len(), 1);
    }
    assert_eq!(messages, DIRS * 2, "the answers alone");
}
