//! Snapshots while the placement map changes: history goes with its rows, records are at
//! every member, and another member may lead.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;

use kestrel_cluster::Message;
use kestrel_cluster::change::{Announced, ChangeMessage};
use kestrel_types::clock::SECOND;
use kestrel_types::error::FsResult;
use kestrel_types::key::Table;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::placement::{Member as MapMember, NodeId, PlacementMap, Slot, SlotMap};
use kestrel_types::request::{Commit, Creds, NewData, Op, RenameFlags, Request};
use kestrel_types::snapshot::SnapshotInfo;
use parking_lot::Mutex;

use common::errno;
use common::members::{Cluster, at, mknod, placement};
use common::rules::range;
use common::snapshots::{Tree, create, made, remove};

type Ended = Arc<Mutex<Option<FsResult<()>>>>;

/// The table after this one, with these owners of slots.
fn after(table: &PlacementMap, owner: impl Fn(Slot, NodeId) -> NodeId) -> PlacementMap {
    let members = table.map.members().to_vec();
    let map = SlotMap::new(members, |slot| owner(slot, table.map.owner(slot).id)).unwrap();
    PlacementMap { version: table.version + 1, map, ..table.clone() }
}

fn begin(cluster: &mut Cluster, next: PlacementMap) -> Ended {
    let slot: Ended = Arc::default();
    let filled = slot.clone();
    let done = Box::new(move |result| *filled.lock() = Some(result));
    let (coordinator, now) = (cluster.placement.coordinator, cluster.now);
    cluster.members.get_mut(&coordinator).unwrap().change(next, done, now);
    slot
}

fn end(cluster: &mut Cluster, ended: &Ended, next: PlacementMap) -> FsResult<()> {
    for _ in 0..20_000 {
        cluster.pass();
        if let Some(result) = ended.lock().take() {
            cluster.placement = if result.is_ok() { next } else { cluster.placement.clone() };
            return result;
        }
    }
    panic!("the change does not end");
}

fn change(cluster: &mut Cluster, next: PlacementMap) {
    let ended = begin(cluster, next.clone());
    end(cluster, &ended, next).unwrap();
    cluster.come_to_rest();
}

/// A file with stored bytes.
fn stored(cluster: &mut Cluster, name: &str, object: u64) {
    let inode = cluster.inode(1, mknod(name));
    let seen = Some((1, Name::new(name.as_bytes()).unwrap()));
    let commit = Commit {
        inode: InodeRef { ino: inode.ino, seen },
        base: inode.data_change,
        data: NewData::Packed(range(object, 5)),
        size: Some(5),
        mtime: 5,
        kill_suid: false,
    };
    assert_eq!(errno(&cluster.ask(1, Op::Commit(commit))), 0);
}

/// A volume with two snapshots and changes after each.
fn prepare(cluster: &mut Cluster) -> [(SnapshotInfo, Tree); 2] {
    for node in 1..=3 {
        cluster.inode(1, Op::MkDir(at(&format!("a{node}")), 0o755));
        for other in 1..=3 {
            cluster.inode(1, mknod(&format!("a{node}/d{other}")));
        }
        for number in 0..8 {
            cluster.inode(1, mknod(&format!("plain{node}{number}")));
        }
        stored(cluster, &format!("b{node}"), (node as u64) << 8);
    }
    let snapshots = ["one", "two"].map(|name| {
        cluster.come_to_rest();
        let before = cluster.tree();
        let info = made(cluster.ask(cluster.leader(), create(1, name)));
        for node in 1..=3 {
            for number in 0..4 {
                let number = if name == "one" { number } else { number + 4 };
                let plain = format!("plain{node}{number}");
                assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(&plain)))), 0);
            }
            let file = if name == "one" { format!("b{node}") } else { format!("a{node}/d1") };
            assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(&file)))), 0);
            cluster.inode(1, mknod(&format!("a{node}/{name}{node}")));
        }
        (info, before)
    });
    let rename = Op::Rename(at("a1"), at("a2/moved"), RenameFlags::default());
    assert_eq!(errno(&cluster.ask(1, rename)), 0);
    snapshots
}

fn check(cluster: &mut Cluster, snapshots: &[(SnapshotInfo, Tree)]) {
    cluster.come_to_rest();
    for (info, before) in snapshots {
        assert_eq!(&cluster.tree_at(info.id), before, "{:?}", info.name);
    }
    let expected: Vec<_> = snapshots.iter().map(|(info, _)| (info.id, false, false)).collect();
    let left: Vec<NodeId> = cluster.placement.former.iter().map(|(node, _)| *node).collect();
    for (node, records) in cluster.records() {
        let keeps = !left.contains(&node) && !cluster.placement.is_idle(node);
        assert!(!keeps || records == expected, "node {node}: {records:?}");
    }
    cluster.check_history_shares();
}

fn remove_all(cluster: &mut Cluster, snapshots: &[(SnapshotInfo, Tree)]) {
    for (info, _) in snapshots {
        let name = String::from_utf8_lossy(info.name.as_bytes()).into_owned();
        assert_eq!(errno(&cluster.ask(cluster.leader(), remove(1, &name))), 0);
    }
    cluster.come_to_rest();
    assert_eq!(cluster.history_rows(), 0);
    cluster.check_history_shares();
}

/// Every slot gets another owner, twice; what rows were at snapshots stays, and removal clears all
/// of it.
#[test]
fn history_moves_with_its_rows() {
    let mut cluster = Cluster::new(3);
    let snapshots = prepare(&mut cluster);
    check(&mut cluster, &snapshots);
    for _ in 0..2 {
        let next = after(&cluster.placement, |_, owner| owner % 3 + 1);
        change(&mut cluster, next);
        check(&mut cluster, &snapshots);
        (1..=3).for_each(|node| cluster.crash(node));
        check(&mut cluster, &snapshots);
        cluster.inode(1, mknod(&format!("new{}", cluster.placement.version)));
        check(&mut cluster, &snapshots);
    }
    remove_all(&mut cluster, &snapshots);
}

/// A change that is called off, since a member starts again, leaves history as it was.
#[test]
fn history_after_a_failed_change() {
    let mut cluster = Cluster::new(3);
    let snapshots = prepare(&mut cluster);
    for victim in 1..=3 {
        let next = after(&cluster.placement, |_, owner| owner % 3 + 1);
        let ended = begin(&mut cluster, next.clone());
        let held = cluster.carry(|_, message| {
            matches!(message, Message::Change(ChangeMessage::GotRows { number: 1, .. }))
        });
        assert!(held.is_some());
        cluster.crash(victim);
        if victim == cluster.placement.coordinator {
            for _ in 0..2_000 {
                cluster.pass();
            }
        } else {
            let _ended = end(&mut cluster, &ended, next);
        }
        check(&mut cluster, &snapshots);
    }
    remove_all(&mut cluster, &snapshots);
}

/// Removal of a snapshot goes on while its history is on its way to other members.
#[test]
fn removal_while_history_moves() {
    let mut cluster = Cluster::new(3);
    let snapshots = prepare(&mut cluster);
    for victim in [None, Some(2)] {
        let next = after(&cluster.placement, |_, owner| owner % 3 + 1);
        let ended = begin(&mut cluster, next.clone());
        let held = cluster.carry(|_, message| {
            matches!(message, Message::Change(ChangeMessage::GotRows { number: 1, .. }))
        });
        assert!(held.is_some());
        if victim.is_none() {
            let request = Request { creds: Creds::root(), op: remove(1, "two") };
            drop(cluster.submit(1, request, None));
        }
        victim.into_iter().for_each(|victim| cluster.crash(victim));
        let _ended = end(&mut cluster, &ended, next);
        check(&mut cluster, &snapshots[..1]);
    }
    remove_all(&mut cluster, &snapshots[..1]);
}

/// A node that joins has all records before it has rows; snapshots are made with it. A node that
/// leaves takes no history with it.
#[test]
fn snapshots_of_nodes_that_come_and_go() {
    let mut cluster = Cluster::new(3);
    let snapshots = prepare(&mut cluster);
    let announced = Announced { address: "node-4".into(), idle: false };
    let now = cluster.now;
    cluster.members.get_mut(&1).unwrap().expect(announced, Box::new(|_| ()), now);
    let present = cluster.placement.clone();
    let mut members = present.map.members().to_vec();
    members.push(MapMember { id: 4, address: "node-4".into() });
    let map = SlotMap::new(members, |slot| present.map.owner(slot).id).unwrap();
    cluster.form(4, PlacementMap { map, ..present }, true);
    cluster.come_to_rest();
    cluster.placement = cluster.members[&1].placement();
    assert_eq!(cluster.placement.map.members().len(), 4);
    check(&mut cluster, &snapshots);
    let next = after(&cluster.placement, |slot, owner| if slot % 4 == 0 { 4 } else { owner });
    change(&mut cluster, next);
    check(&mut cluster, &snapshots);
    let before = cluster.tree();
    let three = cluster.snapshot(1, "three");
    cluster.inode(1, mknod("four"));
    let snapshots = [&snapshots[..], &[(three, before)]].concat();
    check(&mut cluster, &snapshots);
    // Node 3 leaves.
    let next = after(&cluster.placement, |_, owner| if owner == 3 { 2 } else { owner });
    change(&mut cluster, next);
    let next = cluster.placement.with_leaving(3).unwrap();
    change(&mut cluster, next);
    let next = cluster.placement.without(3, 2).unwrap();
    change(&mut cluster, next);
    assert!(cluster.members[&3].has_left());
    check(&mut cluster, &snapshots);
    cluster.snapshot(1, "five");
    assert_eq!(errno(&cluster.ask(1, remove(1, "five"))), 0);
    remove_all(&mut cluster, &snapshots);
}

/// The role moves, and so does the member that leads snapshots; one that serves nobody leads none.
#[test]
fn another_leader_of_snapshots() {
    let idle = MapMember { id: 4, address: "node-4".into() };
    let table = placement(3).with_member(idle, true).unwrap();
    let mut cluster = Cluster::of(PlacementMap { coordinator: 4, ..table });
    assert_eq!(cluster.leader(), 1);
    let mut snapshots = prepare(&mut cluster).to_vec();
    for (to, leader) in [(3, 3), (2, 2), (4, 1)] {
        let rename = Op::SnapshotRename {
            dir: 1,
            from: snapshots[0].0.name.clone(),
            to: Name::new(format!("renamed{to}").as_bytes()).unwrap(),
        };
        assert_eq!(errno(&cluster.ask(cluster.leader(), rename)), 0);
        snapshots[0].0.name = Name::new(format!("renamed{to}").as_bytes()).unwrap();
        let next = cluster.placement.with_coordinator(to).unwrap();
        change(&mut cluster, next);
        assert_eq!(cluster.leader(), leader);
        check(&mut cluster, &snapshots);
        let before = cluster.tree();
        let info = made(cluster.ask(leader, create(1, &format!("by{leader}"))));
        cluster.inode(1, mknod(&format!("then{leader}")));
        snapshots.push((info, before));
        check(&mut cluster, &snapshots);
    }
    remove_all(&mut cluster, &snapshots);
}

/// No snapshot is made while the placement map changes; the caller's request waits for that.
#[test]
fn a_snapshot_while_the_map_changes() {
    let mut cluster = Cluster::new(3);
    let mut snapshots = prepare(&mut cluster).to_vec();
    let next = after(&cluster.placement, |_, owner| owner % 3 + 1);
    let ended = begin(&mut cluster, next.clone());
    let held =
        cluster.carry(|_, message| matches!(message, Message::Change(ChangeMessage::Copy(_))));
    let slot = cluster.begin_snapshot(1, "three");
    let (to, envelope) = held.unwrap();
    cluster.under_way.push_front((to, envelope));
    end(&mut cluster, &ended, next).unwrap();
    for _ in 0..3_000 {
        cluster.pass();
    }
    let before = cluster.tree();
    snapshots.push((made(slot.lock().take().unwrap()), before));
    check(&mut cluster, &snapshots);
    assert!(cluster.now < 100 * SECOND);
}

/// Sources that keep their history to themselves are found out.
#[test]
fn planted_fault_of_moves() {
    let mut cluster = Cluster::new(3);
    let [(info, before), _] = prepare(&mut cluster);
    let next = after(&cluster.placement, |_, owner| owner % 3 + 1);
    let ended = begin(&mut cluster, next);
    while ended.lock().is_none() {
        cluster.carry_changed(|_, envelope| {
            if let Message::Change(ChangeMessage::Rows { rows, .. }) = &mut envelope.message {
                rows.retain(|row| row.key.table != Table::History);
            }
            true
        });
        cluster.tick(SECOND / 100);
    }
    assert_ne!(cluster.tree_at(info.id), before);
}
