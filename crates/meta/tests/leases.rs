//! Leases and fences, with messages carried by hand. (What happens under many faults at once the simulator judges.)

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;

use common::errno;
use common::members::{Cluster, at, mknod};
use kestrel_meta::member::lease::{LEASE, LeaseMessage, PATIENCE, PROMISE};
use kestrel_meta::member::{DEADLINE, Envelope, Message};
use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::error::FsResult;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::placement::{ClusterMap, Member as MapMember, NodeId, Placement};
use kestrel_types::request::{Creds, Op, Outcome, RenameFlags, Reply, Request};
use parking_lot::Mutex;

/// Time between two looks.
const STEP: Nanos = 50 * MILLISECOND;

type Heard = Arc<Mutex<Option<Reply>>>;

fn root(op: Op) -> Request {
    Request { creds: Creds::root(), op }
}

/// Carries what is under way, but for what these two say to each other.
fn carry_but(cluster: &mut Cluster, cuts: &[(NodeId, NodeId)]) {
    carry_until(cluster, cuts, |_, _| false);
}

/// As above, until `stop` holds one back.
fn carry_until(
    cluster: &mut Cluster,
    cuts: &[(NodeId, NodeId)],
    stop: impl Fn(NodeId, &Message) -> bool,
) -> Option<Envelope> {
    loop {
        cluster.collect();
        let (to, envelope) = cluster.under_way.pop_front()?;
        if stop(to, &envelope.message) {
            return Some(envelope);
        }
        let link = (to.min(envelope.from), to.max(envelope.from));
        if !cuts.contains(&link)
            && let Some(member) = cluster.members.get_mut(&to)
        {
            member.receive(envelope, cluster.now);
        }
    }
}

/// Lets time pass.
fn pass(cluster: &mut Cluster, time: Nanos, cuts: &[(NodeId, NodeId)]) {
    let until = cluster.now + time;
    while cluster.now < until {
        cluster.tick(STEP);
        carry_but(cluster, cuts);
    }
}

fn leased(cluster: &Cluster, node: NodeId) -> bool {
    cluster.members[&node].lease_figures().held
}

/// Looks a name up at its owner, which must not answer unless that is so.
fn look(cluster: &mut Cluster, path: &str, cuts: &[(NodeId, NodeId)]) -> Heard {
    let heard = cluster.submit(1, root(Op::Lookup(at(path))), None);
    carry_but(cluster, cuts);
    heard
}

/// Three members; directory `a1` with a file `b2`, which member 2 has resolved, and all that is known of its lease is fresh.
fn three() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    cluster.inode(2, mknod("a1/b2"));
    pass(&mut cluster, SECOND, &[]);
    cluster
}

/// Renames `a1` while member 2 is cut off by `cuts` and asked for a file of it all the time: it says nothing of it once the rename is answered.
fn rename_behind_its_back(cluster: &mut Cluster, cuts: &[(NodeId, NodeId)]) -> Nanos {
    let begun = cluster.now;
    let renamed = cluster.submit(1, root(Op::Rename(at("a1"), at("c3"), RenameFlags::default())), None);
    carry_but(cluster, cuts);
    let mut served = 0;
    while renamed.lock().is_none() {
        assert!(cluster.now - begun < 3 * PROMISE, "the rename takes its time");
        pass(cluster, STEP, cuts);
        if let Some(found) = look(cluster, "a1/b2", cuts).lock().take() {
            assert_eq!(errno(&found), 0);
            assert!(renamed.lock().is_none(), "its path was served after the rename");
            served += 1;
        }
    }
    assert_eq!(errno(&renamed.lock().take().unwrap()), 0);
    assert!(!leased(cluster, 2) && served > 0);
    assert!(look(cluster, "a1/b2", cuts).lock().is_none());
    cluster.now - begun
}

#[test]
fn a_directory_changes_without_a_member_that_is_cut_off_when_its_lease_has_ended() {
    let mut cluster = three();
    let cuts = [(1, 2), (2, 3)];
    let took = rename_behind_its_back(&mut cluster, &cuts);
    assert!((LEASE - SECOND..PATIENCE + PROMISE + SECOND).contains(&took), "{took}");
    assert_eq!(cluster.members[&1].lease_figures().fenced, 1);
    assert_eq!(cluster.members[&2].lease_figures().lapses, 1);
    // Another change need not wait again for one that has not been heard of since.
    let again = cluster.submit(1, root(Op::Rename(at("c3"), at("d1"), RenameFlags::default())), None);
    pass(&mut cluster, PATIENCE + SECOND, &cuts);
    let again_by_it = cluster.submit(1, root(Op::Rename(at("d1"), at("e3"), RenameFlags::default())), None);
    assert_eq!(errno(&again.lock().take().unwrap()), 0);
    pass(&mut cluster, PATIENCE + SECOND, &cuts);
    assert_eq!(errno(&again_by_it.lock().take().unwrap()), 0);
    // It comes back, and what waited for its lease sees the change.
    let waits = look(&mut cluster, "a1/b2", &cuts);
    pass(&mut cluster, 2 * SECOND, &[]);
    assert!(leased(&cluster, 2));
    assert_eq!(errno(&waits.lock().take().unwrap()), libc::ENOENT);
    assert_eq!(errno(&look(&mut cluster, "e3/b2", &[]).lock().take().unwrap()), 0);
}

#[test]
fn who_has_started_again_keeps_the_promises_that_it_has_forgotten() {
    let mut cluster = three();
    // All that the member's lease rests on.
    let cuts = [(1, 2), (2, 3)];
    for id in [1, 3] {
        cluster.under_way.clear();
        let tick = cluster.now;
        cluster.restart(id);
        assert!(cluster.now - tick < LEASE / 4);
    }
    assert!(leased(&cluster, 2));
    let took = rename_behind_its_back(&mut cluster, &cuts);
    assert!(took >= LEASE - SECOND, "{took}");
}

#[test]
fn a_member_that_most_can_reach_keeps_its_lease_and_is_fenced_by_these() {
    let mut cluster = three();
    // The leader of the change does not reach it, the other one does.
    let cuts = [(1, 2)];
    pass(&mut cluster, 3 * SECOND, &cuts);
    assert!(leased(&cluster, 2), "two of three");
    rename_behind_its_back(&mut cluster, &cuts);
    // When the fence is over it is granted one again, over the same link.
    pass(&mut cluster, 3 * SECOND, &cuts);
    assert!(leased(&cluster, 2));
    assert_eq!(errno(&look(&mut cluster, "c3/b2", &[]).lock().take().unwrap()), 0);
}

#[test]
fn one_who_starts_again_after_its_answer_about_a_fence_does_not_count() {
    let mut cluster = three();
    let cuts = [(1, 2)];
    // Member 3 lends nothing for it.
    let renamed = cluster.submit(1, root(Op::Rename(at("a1"), at("d1"), RenameFlags::default())), None);
    // Member 3 holds, and what it says so with is late.
    let is_late = |to: NodeId, message: &Message| {
        to == 1 && matches!(message, Message::Lease(LeaseMessage::Fenced { .. }))
    };
    let late = loop {
        cluster.tick(STEP);
        if let Some(late) = carry_until(&mut cluster, &cuts, is_late) {
            break late;
        }
    };
    cluster.restart(3);
    // What it is asked meanwhile is lost.
    pass(&mut cluster, 2 * SECOND, &[(1, 2), (1, 3)]);
    assert!(leased(&cluster, 2), "granted by who has forgotten");
    cluster.members.get_mut(&1).unwrap().receive(late, cluster.now);
    let begun = cluster.now;
    while renamed.lock().is_none() {
        assert!(cluster.now - begun < 4 * PROMISE);
        pass(&mut cluster, STEP, &cuts);
        let found = look(&mut cluster, "a1/b2", &cuts).lock().take();
        assert!(found.is_none() || renamed.lock().is_none());
    }
    assert!(!leased(&cluster, 2));
}

#[test]
fn alone_of_three_a_member_serves_no_path_and_goes_on_when_another_is_back() {
    let mut cluster = three();
    let (dir, file) =
        (cluster.inode(1, Op::Lookup(at("a1"))).ino, cluster.inode(2, Op::Lookup(at("a1/b2"))).ino);
    let cuts = [(1, 2), (1, 3), (2, 3)];
    pass(&mut cluster, LEASE, &cuts);
    assert!(!(1..=3).any(|node| leased(&cluster, node)));
    let (waits, begun) = (look(&mut cluster, "a1/b2", &cuts), cluster.now);
    // What it finds by its own rows alone it answers.
    let seen = InodeRef { ino: file, seen: Some((dir, Name::new(b"b2").unwrap())) };
    let by_place = cluster.submit(2, root(Op::GetAttr(seen)), None);
    carry_but(&mut cluster, &cuts);
    assert_eq!(errno(&by_place.lock().take().unwrap()), 0);
    pass(&mut cluster, DEADLINE / 2, &cuts);
    assert!(waits.lock().is_none());
    // One is back.
    pass(&mut cluster, SECOND, &[(1, 2), (1, 3)]);
    assert!(leased(&cluster, 3) && leased(&cluster, 2) && !leased(&cluster, 1));
    assert!(cluster.now - begun < DEADLINE);
    pass(&mut cluster, SECOND, &[]);
    assert_eq!(errno(&waits.lock().take().unwrap()), 0);
    // None comes back in time.
    pass(&mut cluster, LEASE, &cuts);
    let fails = look(&mut cluster, "a1/b2", &cuts);
    pass(&mut cluster, DEADLINE + SECOND, &cuts);
    match fails.lock().take().unwrap() {
        Err(Outcome::Failed(why)) => {
            assert_eq!(why.errno, libc::ETIMEDOUT);
            assert!(why.to_string().contains("cannot reach most nodes"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_that_lapses_under_a_transaction() {
    let mut cluster = three();
    let file = cluster.inode(1, mknod("d1"));
    // It runs when its lease has ended: it is given up, and done when there is one.
    let rename = || root(Op::Rename(at("d1"), at("d2"), RenameFlags::default()));
    let renamed = cluster.submit(1, rename(), None);
    let lent = cluster.carry(|to, message| to == 1 && matches!(message, Message::Lent { .. })).unwrap();
    cluster.tick(LEASE + STEP);
    cluster.under_way.clear();
    cluster.members.get_mut(&1).unwrap().receive(lent.1, cluster.now);
    cluster.collect();
    let given_up = |(to, envelope): &(NodeId, Envelope)| {
        *to == 2 && matches!(envelope.message, Message::Decide(_, false))
    };
    assert!(cluster.under_way.iter().any(given_up));
    assert!(renamed.lock().is_none() && !leased(&cluster, 1));
    pass(&mut cluster, SECOND, &[]);
    assert_eq!(errno(&renamed.lock().take().unwrap()), 0);
    assert_eq!(cluster.inode(2, Op::Lookup(at("d2"))).ino, file.ino);
    // It has run before: all was locked then and still is, so it is decided.
    let back = root(Op::Rename(at("d2"), at("d1"), RenameFlags::default()));
    let renamed = cluster.submit(1, back, None);
    let vote = cluster.carry(|_, message| matches!(message, Message::Voted(..))).unwrap();
    cluster.tick(LEASE + STEP);
    cluster.under_way.clear();
    cluster.members.get_mut(&vote.0).unwrap().receive(vote.1, cluster.now);
    assert_eq!(errno(&renamed.lock().take().unwrap()), 0);
    pass(&mut cluster, SECOND, &[]);
    assert_eq!(cluster.inode(1, Op::Lookup(at("d1"))).ino, file.ino);
}

#[test]
fn one_node_needs_no_lease_and_the_first_of_two_does() {
    let mut cluster = Cluster::new(1);
    cluster.tick(10 * LEASE);
    assert!(leased(&cluster, 1));
    cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    assert_eq!(cluster.members[&1].lease_figures().lapses, 0);
    let mut cluster = Cluster::new(2);
    assert!(leased(&cluster, 1) && leased(&cluster, 2));
    pass(&mut cluster, LEASE, &[(1, 2)]);
    assert!(!leased(&cluster, 1) && !leased(&cluster, 2));
}

#[test]
fn a_table_with_another_member_ends_leases_that_too_few_of_it_have_granted() {
    let mut cluster = three();
    // The lease of member 2 rests on member 1: two of three, and not most of four. Member 3 hears it no more.
    let cuts = [(2, 3), (2, 4)];
    pass(&mut cluster, 3 * SECOND, &cuts);
    assert!((1..=3).all(|node| leased(&cluster, node)));
    cluster.members.get_mut(&1).unwrap().expect("node-4".into(), Box::new(|_| ()), cluster.now);
    let present = cluster.members[&1].placement();
    let members = |count: u32| -> Vec<MapMember> {
        (1..=count).map(|id| MapMember { id, address: format!("node-{id}") }).collect()
    };
    let map = ClusterMap::new(members(4), |slot| present.map.owner(slot).id).unwrap();
    cluster.form(4, Placement { map, ..present.clone() }, true);
    pass(&mut cluster, 5 * SECOND, &cuts);
    assert!(cluster.members.values().all(|member| member.placement().version == present.version + 1));
    assert!(leased(&cluster, 1) && !leased(&cluster, 2) && leased(&cluster, 3) && leased(&cluster, 4));
    assert_eq!(cluster.members[&2].lease_figures().lapses, 1);
    let renamed = cluster.submit(1, root(Op::Rename(at("a1"), at("c3"), RenameFlags::default())), None);
    pass(&mut cluster, SECOND, &cuts);
    assert_eq!(errno(&renamed.lock().take().unwrap()), 0);
    assert!(look(&mut cluster, "a1/b2", &cuts).lock().is_none());
    // Majorities of tables two members apart need not meet.
    let present = cluster.members[&1].placement();
    let map = ClusterMap::new(members(6), |slot| present.map.owner(slot).id).unwrap();
    let refused: Arc<Mutex<Option<i32>>> = Arc::default();
    let filled = refused.clone();
    let done = move |ended: FsResult<()>| *filled.lock() = ended.err().map(|why| why.errno);
    let next = Placement { version: present.version + 1, map, ..present };
    cluster.members.get_mut(&1).unwrap().change(next, Box::new(done), cluster.now);
    assert_eq!(*refused.lock(), Some(libc::EINVAL));
}

#[test]
fn a_dentry_that_was_on_its_way_when_the_lease_ended_does_not_count() {
    let mut cluster = three();
    cluster.restart(2);
    let found = cluster.submit(1, root(Op::Lookup(at("a1/b2"))), None);
    let is_late = |to: NodeId, message: &Message| to == 2 && matches!(message, Message::Fetched(..));
    // First the root's, then that of `a1`, which is late.
    let mut late = carry_until(&mut cluster, &[], is_late).unwrap();
    if late.from != 1 {
        cluster.members.get_mut(&2).unwrap().receive(late, cluster.now);
        late = carry_until(&mut cluster, &[], is_late).unwrap();
    }
    let cuts = [(1, 2), (2, 3)];
    let renamed = cluster.submit(1, root(Op::Rename(at("a1"), at("c3"), RenameFlags::default())), None);
    pass(&mut cluster, 2 * PROMISE, &cuts);
    assert_eq!(errno(&renamed.lock().take().unwrap()), 0);
    assert!(!leased(&cluster, 2) && found.lock().is_none());
    // It gets a lease before it hears anything else.
    cluster.tick(LEASE / 4);
    cluster.get_leases();
    assert!(leased(&cluster, 2));
    cluster.members.get_mut(&2).unwrap().receive(late, cluster.now);
    pass(&mut cluster, SECOND, &[]);
    assert_eq!(errno(&found.lock().take().unwrap()), libc::ENOENT);
}
