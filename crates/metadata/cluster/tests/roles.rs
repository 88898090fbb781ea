//! The coordinator: idle members, and the role that moves. (What happens under many faults at once
//! the simulator judges.)

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;

use kestrel_cluster::change::{Announced, ChangeMessage};
use kestrel_cluster::{ClusterNode, Message};
use kestrel_engine::Engine;
use kestrel_types::clock::SECOND;
use kestrel_types::error::FsResult;
use kestrel_types::key::Table;
use kestrel_types::placement::{Member as MapMember, NodeId, PlacementMap, SlotMap};
use kestrel_types::request::{Creds, Op, RenameFlags, Request};
use parking_lot::Mutex;

use common::errno;
use common::members::{Cluster, at, mknod, placement};

type Ended = Arc<Mutex<Option<FsResult<()>>>>;

/// A coordinator that serves nobody.
const COORDINATOR: NodeId = 4;

fn member(id: NodeId) -> MapMember {
    MapMember { id, address: format!("node-{id}") }
}

/// Three members, and a coordinator without rows.
fn with_coordinator() -> Cluster {
    let table = placement(3).with_member(member(COORDINATOR), true).unwrap();
    Cluster::of(PlacementMap { coordinator: COORDINATOR, ..table })
}

impl Cluster {
    fn step(&mut self) {
        self.carry(|_, _| false);
        self.tick(SECOND / 100);
    }

    fn begin(&mut self, at: NodeId, next: PlacementMap) -> Ended {
        let slot: Ended = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |result| *filled.lock() = Some(result));
        self.members.get_mut(&at).unwrap().change(next, done, self.now);
        slot
    }

    fn change(&mut self, next: PlacementMap) -> FsResult<()> {
        let ended = self.begin(self.placement.coordinator, next.clone());
        for _ in 0..20_000 {
            self.step();
            if let Some(result) = ended.lock().take() {
                self.placement = if result.is_ok() { next } else { self.placement.clone() };
                return result;
            }
        }
        panic!("the change does not end");
    }

    fn hand_over(&mut self, to: NodeId) -> FsResult<()> {
        self.change(self.placement.with_coordinator(to).unwrap())
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

    fn expect(&mut self, address: &str, idle: bool) -> FsResult<NodeId> {
        let slot: Arc<Mutex<Option<FsResult<NodeId>>>> = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |node| *filled.lock() = Some(node));
        let (now, node) = (self.now, Announced { address: address.into(), idle });
        self.members.get_mut(&self.placement.coordinator).unwrap().expect(node, done, now);
        slot.lock().take().unwrap()
    }

    fn tables(&self) -> Vec<PlacementMap> {
        self.members.values().map(ClusterNode::placement).collect()
    }

    fn rows(&self, node: NodeId, table: Table) -> usize {
        let mut rows = 0;
        let visited = self.engines[&node].scan_table(table, None, &mut |_, _| {
            rows += 1;
            std::ops::ControlFlow::Continue(())
        });
        visited.unwrap();
        rows
    }
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename(at(from), at(to), RenameFlags::default())
}

/// A coordinator without rows is needed only for changes of the placement map and moves of
/// directories.
#[test]
fn coordinator_without_rows_away() {
    let mut cluster = with_coordinator();
    for dir in ["a1", "a2", "a3"] {
        cluster.inode(1, Op::MkDir(at(dir), 0o755));
        cluster.inode(1, Op::MkDir(at(&format!("{dir}/sub")), 0o755));
    }
    assert_eq!(errno(&cluster.ask(1, rename("a1/sub", "a2/moved"))), 0);
    for table in [Table::Entry, Table::DirStat, Table::DirId, Table::Subdir, Table::Link] {
        assert_eq!(cluster.rows(COORDINATOR, table), 0, "{table:?}");
    }
    cluster.settle();
    let away = cluster.members.remove(&COORDINATOR).unwrap();
    // Nobody has to be fenced for these, and nobody is waited for.
    let before = cluster.now;
    cluster.inode(1, mknod("a1/file"));
    cluster.inode(1, Op::Lookup(at("a2/moved")));
    assert_eq!(cluster.names(1, 1, 7), ["a1", "a2", "a3"]);
    assert_eq!(errno(&cluster.ask(2, Op::Usage)), 0);
    assert_eq!(errno(&cluster.ask(1, rename("a1", "d1"))), 0, "it keeps its parent");
    assert_eq!(errno(&cluster.ask(1, Op::RmDir(at("a2/moved"), None))), 0);
    assert!(cluster.now - before < SECOND / 4, "{}", cluster.now - before);
    let request = Request { creds: Creds::root(), op: rename("a3/sub", "a2/sub2") };
    let waits = cluster.submit(1, request, None);
    for _ in 0..300 {
        cluster.step();
    }
    assert!(waits.lock().is_none());
    cluster.members.insert(COORDINATOR, away);
    for _ in 0..300 {
        cluster.step();
    }
    assert_eq!(errno(&waits.lock().take().unwrap()), 0);
}

/// An idle cluster member leads nothing, and never gets rows.
#[test]
fn idle_member() {
    let mut cluster = with_coordinator();
    let leads = |node: NodeId| {
        let table = cluster.members[&node].node().cluster().unwrap().table();
        (table.leader(&Op::AllocObjects(1)), table.leader(&Op::Usage))
    };
    assert_eq!((leads(COORDINATOR), leads(2)), ((1, 1), (2, 2)));
    let lease = cluster.members[&COORDINATOR].lease_stats();
    assert!(!lease.held && cluster.members[&1].lease_stats().held);
    let present = cluster.placement.clone();
    let busy = PlacementMap { version: present.version + 1, idle: Vec::new(), ..present.clone() };
    let never = cluster.change(busy).unwrap_err();
    assert!(never.to_string().contains("never changes"), "{never}");
    assert!(present.with_leaving(1).is_err(), "it owns slots");
    // It is taken in, and leaves, as others do.
    let id = cluster.expect("node-5", true).unwrap();
    assert_eq!((id, errno_of(cluster.expect("node-5", false))), (5, libc::EEXIST));
    cluster.form(5, present.with_member(member(5), true).unwrap(), true);
    cluster.settle();
    cluster.placement = cluster.members[&COORDINATOR].placement();
    assert!(
        cluster.placement.is_idle(5)
            && cluster.tables().iter().all(|table| *table == cluster.placement)
    );
    cluster.change(cluster.placement.with_leaving(5).unwrap()).unwrap();
    let without = cluster.placement.without(5, 1).unwrap();
    cluster.change(without).unwrap();
    assert!(cluster.members[&5].has_left() && !cluster.placement.is_idle(5));
}

fn errno_of<T: std::fmt::Debug>(result: FsResult<T>) -> i32 {
    result.unwrap_err().errno
}

#[test]
fn the_role_moves_with_all_that_a_coordinator_knows() {
    let mut cluster = Cluster::new(3);
    cluster.inode(1, Op::MkDir(at("a1"), 0o755));
    cluster.inode(1, Op::MkDir(at("a1/b2"), 0o755));
    let (came, never) =
        (cluster.expect("node-4", true).unwrap(), cluster.expect("node-5", false).unwrap());
    cluster.members.get_mut(&1).unwrap().forget(never, Box::new(|_| ()), cluster.now);
    let at_first = cluster.members[&1].expected();
    cluster.hand_over(3).unwrap();
    cluster.settle();
    assert!(cluster.tables().iter().all(|table| table.coordinator == 3));
    for node in [1, 3, 1, 3] {
        assert_eq!(
            cluster.members[&node].expected(),
            if node == 3 { at_first.clone() } else { Vec::new() }
        );
        cluster.restart(node);
    }
    let mut at = |node: NodeId, next: PlacementMap| {
        let ended = cluster.begin(node, next);
        let refused = ended.lock().take().and_then(|result| result.err());
        refused.map(|why| why.to_string()).unwrap_or_default()
    };
    assert!(at(1, placement(3)).contains("node 3 leads"), "the former one leads nothing");
    assert_eq!(cluster.expect("node-6", false).unwrap(), 6, "5 was forgotten by the former one");
    // A node that was set up before asks everybody, and comes.
    cluster.form(came, placement(3).with_member(member(came), true).unwrap(), true);
    cluster.settle();
    cluster.placement = cluster.members[&3].placement();
    assert!(cluster.placement.is_idle(came));
    assert_eq!(errno(&cluster.ask(1, rename("a1/b2", "moved"))), 0);
    // On it goes, to the idle one, and the first coordinator leaves.
    cluster.hand_over(came).unwrap();
    cluster.settle();
    let present = cluster.placement.clone();
    let members = present.map.members().to_vec();
    let map = SlotMap::new(members, |slot| present.map.owner(slot).id.max(2)).unwrap();
    cluster.change(PlacementMap { version: present.version + 1, map, ..present }).unwrap();
    cluster.change(cluster.placement.with_leaving(1).unwrap()).unwrap();
    cluster.change(cluster.placement.without(1, 2).unwrap()).unwrap();
    cluster.settle();
    cluster.members.remove(&1);
    assert_eq!(errno(&cluster.ask(2, rename("moved", "a1/back"))), 0);
    assert_eq!(cluster.names(2, 1, 7), ["a1"]);
}

/// The coordinator's role moves in a change of its own, to a member that stays, and no other change
/// runs meanwhile.
#[test]
fn move_of_the_coordinator() {
    let mut cluster = with_coordinator();
    let present = cluster.placement.clone();
    let mut more = present.with_coordinator(2).unwrap();
    more.map = SlotMap::new(present.map.members().to_vec(), |_| 1).unwrap();
    assert!(cluster.change(more).unwrap_err().to_string().contains("differs by that only"));
    let ended = cluster.begin(COORDINATOR, present.with_coordinator(2).unwrap());
    assert_eq!(errno_of(cluster.expect("node-5", false)), libc::EBUSY);
    assert_eq!(errno_of(cluster.change(present.with_coordinator(3).unwrap())), libc::EBUSY);
    while ended.lock().is_none() {
        cluster.step();
    }
    ended.lock().take().unwrap().unwrap();
    // While the next one is away nobody else is, and nothing has happened.
    let away = cluster.members.remove(&3).unwrap();
    cluster.placement = cluster.members[&2].placement();
    assert_eq!(errno_of(cluster.hand_over(3)), libc::ETIMEDOUT);
    cluster.members.insert(3, away);
    cluster.settle();
    assert!(cluster.tables().iter().all(|table| table.coordinator == 2));
    cluster.hand_over(COORDINATOR).unwrap();
}

/// Each of two members is lost at each message about the change that it gets; the role is one's or
/// the other's, and what was announced is known.
#[test]
fn a_crash_at_any_point_leaves_one_who_leads() {
    for node in [1, 2, 3] {
        for power in [false, true] {
            let (mut point, mut moved) = (0, 0);
            loop {
                let mut cluster = Cluster::new(3);
                assert_eq!(cluster.expect("node-4", true).unwrap(), 4);
                cluster.settle();
                cluster.engines.values().for_each(|engine| engine.sync().unwrap());
                let next = cluster.placement.with_coordinator(3).unwrap();
                let ended = cluster.begin(1, next);
                let mut told = 0;
                let reached = (0..600).any(|_| {
                    let seen = std::cell::Cell::new(told);
                    let held = cluster.carry(|to, message| {
                        let counts = to == node && matches!(message, Message::Change(_));
                        seen.set(seen.get() + u32::from(counts));
                        counts && seen.get() == point + 1
                    });
                    told = seen.get();
                    cluster.tick(SECOND / 100);
                    held.is_some()
                });
                if !reached {
                    break;
                }
                if power {
                    cluster.crash(node)
                } else {
                    cluster.restart(node)
                }
                for _ in 0..2000 {
                    cluster.step();
                }
                cluster.settle();
                let tables = cluster.tables();
                assert!(
                    tables.iter().all(|table| *table == tables[0]),
                    "{node} {point}: {tables:?}"
                );
                cluster.placement = tables[0].clone();
                let leads = cluster.placement.coordinator;
                assert!(
                    node == 1 || leads == 3,
                    "{node} {point}: only the coordinator forgets a change"
                );
                moved += u32::from(leads == 3);
                for id in 1..=3 {
                    let expected = cluster.members[&id].expected().len();
                    assert_eq!(expected, usize::from(id == leads), "{node} {point}: node {id}");
                }
                drop(ended);
                cluster.hand_over(2).unwrap();
                assert_eq!(cluster.expect("node-5", false).unwrap(), 5);
                point += 1;
            }
            assert!(point >= 3 && moved > 0, "{node}: {point} {moved}");
        }
    }
}

/// What was said before the role moved arrives after it has moved back.
#[test]
fn words_of_an_earlier_tenure_mean_nothing() {
    let mut cluster = Cluster::new(3);
    let mut late = Vec::new();
    for to in [3, 1] {
        let ended = cluster
            .begin(cluster.placement.coordinator, cluster.placement.with_coordinator(to).unwrap());
        while ended.lock().is_none() {
            cluster.collect();
            let told = cluster.under_way.iter().filter(|(_, told)| {
                matches!(&told.message,
                    Message::Change(change) if !matches!(change, ChangeMessage::Rows { .. }))
            });
            late.extend(told.cloned());
            if let Some((to, envelope)) = cluster.under_way.pop_front() {
                cluster.members.get_mut(&to).unwrap().receive(envelope, cluster.now);
            } else {
                cluster.tick(SECOND / 100);
            }
        }
        cluster.settle();
        cluster.placement = cluster.members[&to].placement();
    }
    let before = cluster.tables();
    for (to, envelope) in late {
        cluster.members.get_mut(&to).unwrap().receive(envelope, cluster.now);
        cluster.step();
    }
    cluster.settle();
    assert_eq!((cluster.tables(), before[0].coordinator), (before.clone(), 1));
    cluster.hand_over(2).unwrap();
}
