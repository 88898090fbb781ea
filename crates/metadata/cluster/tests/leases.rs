//! Leases and fences, with messages carried by hand. (What happens under many faults at once the
//! simulator judges.)

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;

use kestrel_cluster::change::Announced;
use kestrel_cluster::lease::{LEASE, LeaseMessage, PATIENCE, PROMISE};
use kestrel_cluster::{ClusterNode, DEADLINE, Envelope, Message, Requester};
use kestrel_engine::EngineError;
use kestrel_meta::txn::Origin;
use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::error::FsResult;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::placement::{Member as MapMember, NodeId, PlacementMap, SlotMap};
use kestrel_types::request::{Creds, Op, Outcome, RenameFlags, Reply, Request};
use kestrel_types::wire::ClientId;
use parking_lot::Mutex;

use common::errno;
use common::members::{Cluster, at, mknod};

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
    cluster.members[&node].lease_stats().held
}

/// Looks a name up at its owner, which must not answer unless that is so.
fn look(cluster: &mut Cluster, path: &str, cuts: &[(NodeId, NodeId)]) -> Heard {
    let heard = cluster.submit(1, root(Op::Lookup(at(path))), None);
    carry_but(cluster, cuts);
    heard
}

/// Three members; directory `a1` with a file `b2`, which member 2 has resolved, and all that is
/// known of its lease is fresh.
fn three() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    cluster.inode(2, mknod("a1/b2"));
    pass(&mut cluster, SECOND, &[]);
    cluster
}

/// Renames `a1` while member 2 is cut off by `cuts` and asked for a file of it all the time: it
/// says nothing of it once the rename is answered.
fn rename_behind_its_back(cluster: &mut Cluster, cuts: &[(NodeId, NodeId)]) -> Nanos {
    let begun = cluster.now;
    let renamed =
        cluster.submit(1, root(Op::Rename(at("a1"), at("c3"), RenameFlags::default())), None);
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

/// A directory changes without a cluster member that is cut off, once the member's lease has ended.
#[test]
fn directory_change_past_an_expired_lease() {
    let mut cluster = three();
    let cuts = [(1, 2), (2, 3)];
    let took = rename_behind_its_back(&mut cluster, &cuts);
    assert!((LEASE - SECOND..PATIENCE + PROMISE + SECOND).contains(&took), "{took}");
    assert_eq!(cluster.members[&1].lease_stats().fenced, 1);
    assert_eq!(cluster.members[&2].lease_stats().lapses, 1);
    // Another change need not wait again for one that has not been heard of since.
    let again =
        cluster.submit(1, root(Op::Rename(at("c3"), at("d1"), RenameFlags::default())), None);
    pass(&mut cluster, PATIENCE + SECOND, &cuts);
    let again_by_it =
        cluster.submit(1, root(Op::Rename(at("d1"), at("e3"), RenameFlags::default())), None);
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

/// A cluster member that has restarted keeps the promises that it has forgotten.
#[test]
fn promises_kept_over_restarts() {
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

/// A cluster member that most others reach keeps its lease, and is fenced by these.
#[test]
fn lease_of_a_member_most_can_reach() {
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

/// The answer of a cluster member that restarts after its answer about a fence does not count.
#[test]
fn restart_after_an_answer_about_a_fence() {
    let mut cluster = three();
    let cuts = [(1, 2)];
    // Member 3 lends nothing for it.
    let renamed =
        cluster.submit(1, root(Op::Rename(at("a1"), at("d1"), RenameFlags::default())), None);
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

/// A cluster member alone of three serves no path, and goes on when another one is back.
#[test]
fn one_isolated_member_of_three() {
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
    let lent =
        cluster.carry(|to, message| to == 1 && matches!(message, Message::Lent { .. })).unwrap();
    cluster.tick(LEASE + STEP);
    cluster.under_way.clear();
    cluster.members.get_mut(&1).unwrap().receive(lent.1, cluster.now);
    cluster.collect();
    let given_up = |(to, envelope): &(NodeId, Envelope)| {
        *to == 2 && matches!(envelope.message, Message::Decide(_, false, _))
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
    assert_eq!(cluster.members[&1].lease_stats().lapses, 0);
    let mut cluster = Cluster::new(2);
    assert!(leased(&cluster, 1) && leased(&cluster, 2));
    pass(&mut cluster, LEASE, &[(1, 2)]);
    assert!(!leased(&cluster, 1) && !leased(&cluster, 2));
}

/// A placement map with one more member ends leases that too few of its members have granted.
#[test]
fn leases_under_a_larger_placement_map() {
    let mut cluster = three();
    // The lease of member 2 rests on member 1: two of three, and not most of four. Member 3 hears
    // it no more.
    let cuts = [(2, 3), (2, 4)];
    pass(&mut cluster, 3 * SECOND, &cuts);
    assert!((1..=3).all(|node| leased(&cluster, node)));
    let node = Announced { address: "node-4".into(), idle: false };
    cluster.members.get_mut(&1).unwrap().expect(node, Box::new(|_| ()), cluster.now);
    let present = cluster.members[&1].placement();
    let members = |count: u32| -> Vec<MapMember> {
        (1..=count).map(|id| MapMember { id, address: format!("node-{id}") }).collect()
    };
    let map = SlotMap::new(members(4), |slot| present.map.owner(slot).id).unwrap();
    cluster.form(4, PlacementMap { map, ..present.clone() }, true);
    pass(&mut cluster, 5 * SECOND, &cuts);
    assert!(
        cluster.members.values().all(|member| member.placement().version == present.version + 1)
    );
    assert!(
        leased(&cluster, 1) && !leased(&cluster, 2) && leased(&cluster, 3) && leased(&cluster, 4)
    );
    assert_eq!(cluster.members[&2].lease_stats().lapses, 1);
    let renamed =
        cluster.submit(1, root(Op::Rename(at("a1"), at("c3"), RenameFlags::default())), None);
    pass(&mut cluster, SECOND, &cuts);
    assert_eq!(errno(&renamed.lock().take().unwrap()), 0);
    assert!(look(&mut cluster, "a1/b2", &cuts).lock().is_none());
    // Majorities of tables two members apart need not meet.
    let present = cluster.members[&1].placement();
    let map = SlotMap::new(members(6), |slot| present.map.owner(slot).id).unwrap();
    let refused: Arc<Mutex<Option<i32>>> = Arc::default();
    let filled = refused.clone();
    let done = move |ended: FsResult<()>| *filled.lock() = ended.err().map(|why| why.errno);
    let next = PlacementMap { version: present.version + 1, map, ..present };
    cluster.members.get_mut(&1).unwrap().change(next, Box::new(done), cluster.now);
    assert_eq!(*refused.lock(), Some(libc::EINVAL));
}

/// A dentry that was on its way when the lease ended does not count.
#[test]
fn dentry_in_flight_at_the_end_of_a_lease() {
    let mut cluster = three();
    cluster.restart(2);
    let found = cluster.submit(1, root(Op::Lookup(at("a1/b2"))), None);
    let is_late =
        |to: NodeId, message: &Message| to == 2 && matches!(message, Message::Fetched(..));
    // First the root's, then that of `a1`, which is late.
    let mut late = carry_until(&mut cluster, &[], is_late).unwrap();
    if late.from != 1 {
        cluster.members.get_mut(&2).unwrap().receive(late, cluster.now);
        late = carry_until(&mut cluster, &[], is_late).unwrap();
    }
    let cuts = [(1, 2), (2, 3)];
    let renamed =
        cluster.submit(1, root(Op::Rename(at("a1"), at("c3"), RenameFlags::default())), None);
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

/// Lets time pass beside a process of member 2 that was taken over and goes on: what is said to the
/// member reaches both, and that one reaches all but these. Whether it had a lease together with
/// its successor.
fn pass_beside(
    cluster: &mut Cluster,
    zombie: &mut ClusterNode,
    time: Nanos,
    cuts: &[NodeId],
) -> bool {
    let (until, mut both) = (cluster.now + time, false);
    while cluster.now < until {
        cluster.tick(STEP);
        zombie.tick(cluster.now);
        loop {
            cluster.collect();
            cluster
                .under_way
                .extend(zombie.take_outbox().into_iter().filter(|(to, _)| !cuts.contains(to)));
            let Some((to, envelope)) = cluster.under_way.pop_front() else { break };
            if to == 2 && !cuts.contains(&envelope.from) {
                zombie.receive(envelope.clone(), cluster.now);
            }
            cluster.members.get_mut(&to).unwrap().receive(envelope, cluster.now);
        }
        both |= zombie.lease_stats().held && leased(cluster, 2);
    }
    both
}

/// A question to the process itself for a file that is its own, found without any path.
fn by_handle(cluster: &mut Cluster) -> Request {
    let (dir, file) =
        (cluster.inode(1, Op::Lookup(at("a1"))).ino, cluster.inode(2, Op::Lookup(at("a1/b2"))).ino);
    root(Op::GetAttr(InodeRef { ino: file, seen: Some((dir, Name::new(b"b2").unwrap())) }))
}

fn three_on_shared() -> Cluster {
    let mut cluster = Cluster::on_shared(3);
    cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    cluster.inode(2, mknod("a1/b2"));
    pass(&mut cluster, SECOND, &[]);
    cluster
}

/// A cluster member with a store that others can claim answers nothing without a lease.
#[test]
fn no_answers_without_a_lease() {
    let mut cluster = three_on_shared();
    let asked = by_handle(&mut cluster);
    let cuts = [(1, 2), (2, 3)];
    pass(&mut cluster, LEASE + SECOND, &cuts);
    assert!(!leased(&cluster, 2) && leased(&cluster, 1));
    let Op::GetAttr(InodeRef { ino, .. }) = asked.op else { unreachable!() };
    // Found without any worker.
    let chunks = cluster.submit(2, root(Op::Chunks { ino, first: 0, last: 9 }), None);
    let waits = cluster.submit(2, asked, None);
    let made = cluster.submit(2, root(mknod("c2")), None);
    // Nor does it lend.
    let stat = cluster.submit(1, root(Op::GetAttr(InodeRef { ino: 1, seen: None })), None);
    pass(&mut cluster, SECOND, &cuts);
    assert!(waits.lock().is_none() && made.lock().is_none() && stat.lock().is_none());
    assert!(chunks.lock().is_none());
    pass(&mut cluster, 2 * SECOND, &[]);
    for heard in [waits, made, stat, chunks] {
        assert_eq!(errno(&heard.lock().take().unwrap()), 0);
    }
}

/// Two starts of a cluster member never have leases at the same time.
#[test]
fn leases_of_two_starts() {
    for cuts in [&[][..], &[1], &[3], &[1, 3]] {
        let mut cluster = three_on_shared();
        let asked = by_handle(&mut cluster);
        let mut zombie = cluster.take_over(2, false);
        assert!(zombie.lease_stats().held);
        let begun = cluster.now;
        while !leased(&cluster, 2) {
            assert!(!pass_beside(&mut cluster, &mut zombie, STEP, cuts));
            assert!(cluster.now - begun < 2 * PROMISE, "its successor has to wait for ever");
        }
        assert!(cluster.now - begun >= LEASE - SECOND, "promises to the one before were kept");
        let answers = Arc::new(Mutex::new(None));
        let heard = answers.clone();
        let done = Box::new(move |reply| *heard.lock() = Some(reply));
        zombie.submit(asked.clone(), Requester::Session(None), done, cluster.now);
        let answered = cluster.submit(2, asked, None);
        assert!(!pass_beside(&mut cluster, &mut zombie, 4 * PROMISE, cuts));
        assert!(answers.lock().is_none(), "what it says nobody may believe");
        assert_eq!(errno(&answered.lock().take().unwrap()), 0);
    }
}

/// A start need not wait if the start before it announced its end, or if it is the only one.
#[test]
fn lease_after_an_announced_end() {
    for exclusive in [false, true] {
        let mut cluster = three_on_shared();
        pass(&mut cluster, PROMISE, &[]);
        let now = cluster.now;
        if !exclusive {
            let ends = cluster.members.get_mut(&2).unwrap();
            ends.give_up_lease(now);
            ends.say_released();
            carry_but(&mut cluster, &[]);
        }
        drop(cluster.take_over(2, exclusive));
        pass(&mut cluster, 3 * STEP, &[]);
        assert!(leased(&cluster, 2));
    }
}

/// A cluster member that has restarted grants a lease to the only start of another member at once,
/// and to others late.
#[test]
fn grants_after_a_restart() {
    for (exclusive, waits) in [(true, false), (false, true)] {
        let mut cluster = three_on_shared();
        drop(cluster.take_over(2, exclusive));
        // Member 3 is away: the lease of member 2 needs member 1, which has forgotten what it
        // promised.
        cluster.members.remove(&3);
        cluster.restart(1);
        let begun = cluster.now;
        while !leased(&cluster, 2) {
            cluster.tick(STEP);
            carry_but(&mut cluster, &[]);
            assert!(cluster.now - begun < 4 * PROMISE);
        }
        assert_eq!(cluster.now - begun >= PROMISE - SECOND, waits);
    }
}

/// A cluster member that has a lease knows the members that it has not heard.
#[test]
fn unheard_members() {
    let mut cluster = three_on_shared();
    let cuts = [(1, 2), (2, 3)];
    pass(&mut cluster, LEASE + 2 * SECOND, &cuts);
    assert_eq!(cluster.members[&2].unheard(cluster.now), None);
    let unheard = cluster.members[&1].unheard(cluster.now).unwrap();
    let of = |node: NodeId| unheard.iter().find(|(other, _)| *other == node).unwrap().1;
    assert!(of(2) >= LEASE + SECOND && of(3) <= SECOND && unheard.len() == 2);
}

/// A grant that comes late does not give the lease back to a cluster member that ends.
#[test]
fn late_grant_to_a_member_that_ends() {
    let mut cluster = three_on_shared();
    let is_grant = |to, message: &Message| {
        to == 2 && matches!(message, Message::Lease(LeaseMessage::Granted { .. }))
    };
    let late = loop {
        cluster.tick(STEP);
        if let Some(late) = carry_until(&mut cluster, &[], is_grant) {
            break late;
        }
    };
    let now = cluster.now;
    cluster.members.get_mut(&2).unwrap().give_up_lease(now);
    cluster.members.get_mut(&2).unwrap().receive(late, now);
    carry_but(&mut cluster, &[]);
    assert!(!leased(&cluster, 2));
    pass(&mut cluster, LEASE, &[]);
    assert!(!leased(&cluster, 2));
}

/// A node without others, with a store that others can claim, answers nothing without a lease
/// either.
#[test]
fn no_answers_of_a_lone_node_without_lease() {
    let mut cluster = Cluster::on_shared(1);
    let file = cluster.inode(1, mknod("a1")).ino;
    let now = cluster.now;
    let list = Op::ReadDir { dir: 1, after: None, limit: 9, check: true };
    let asked =
        [list, Op::Usage, Op::TreeUsage(1), Op::Chunks { ino: file, first: 0, last: 9 }, Op::Sync];
    for op in &asked {
        assert_eq!(errno(&cluster.ask(1, op.clone())), 0);
    }
    cluster.members.get_mut(&1).unwrap().give_up_lease(now);
    let heard: Vec<Heard> = asked.into_iter().map(|op| cluster.submit(1, root(op), None)).collect();
    pass(&mut cluster, SECOND, &[]);
    assert!(heard.iter().all(|heard| heard.lock().is_none()));
}

/// Numbered requests of sessions outlast a long time without a lease.
#[test]
fn numbered_requests_without_a_lease() {
    let mut cluster = three_on_shared();
    let asked = by_handle(&mut cluster);
    let cuts = [(1, 2), (2, 3), (1, 3)];
    pass(&mut cluster, LEASE + SECOND, &cuts);
    let origin = |seq, retry| Some(Origin { client: ClientId([1; 16]), seq, retry });
    let made = [
        cluster.submit(2, root(mknod("c2")), origin(1, false)),
        cluster.submit(2, root(mknod("d2")), origin(2, true)),
    ];
    // A client that has lost its connection, and asks again on another one.
    let looked = cluster.submit(2, asked, None);
    pass(&mut cluster, DEADLINE + SECOND, &cuts);
    assert_eq!(errno(&looked.lock().take().unwrap()), libc::ETIMEDOUT);
    assert!(made.iter().all(|made| made.lock().is_none()));
    pass(&mut cluster, DEADLINE + SECOND, &cuts);
    assert!(made.iter().all(|made| made.lock().is_none()));
    pass(&mut cluster, 3 * SECOND, &[]);
    for made in made {
        assert_eq!(errno(&made.lock().take().unwrap()), 0);
    }
}

/// A store that fails at one commit and takes the next one is not lost.
#[test]
fn single_failure_of_the_store() {
    let mut cluster = three_on_shared();
    let fail = |cluster: &Cluster, node: NodeId| {
        cluster.engines[&node].fail_commit(EngineError::Io("above its limit".into()));
    };
    fail(&cluster, 2);
    // A batch: it is not put off, for it would fail again.
    assert_eq!(errno(&cluster.ask(2, mknod("c2"))), libc::EIO);
    // A participant's part in a transaction.
    cluster.inode(2, mknod("b2"));
    let rename = || root(Op::Rename(at("b2"), at("b1"), RenameFlags::default()));
    let moved = cluster.submit(1, rename(), None);
    let (participant, prepare) =
        cluster.carry(|_, message| matches!(message, Message::Prepare { .. })).unwrap();
    fail(&cluster, participant);
    let now = cluster.now;
    cluster.members.get_mut(&participant).unwrap().receive(prepare, now);
    carry_but(&mut cluster, &[]);
    assert_eq!(errno(&moved.lock().take().unwrap()), libc::EIO);
    pass(&mut cluster, SECOND, &[]);
    assert!(
        (1..=3).all(|node| cluster.members[&node].failure().is_none() && leased(&cluster, node))
    );
    assert_eq!(errno(&cluster.ask(1, rename().op)), 0);
}
