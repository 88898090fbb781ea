//! Tables that change while a volume is used. (What happens under many faults at once the simulator
//! judges.)

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_cluster::change::{Announced, ChangeMessage};
use kestrel_cluster::{ClusterNode, Message, Requester};
use kestrel_engine::Engine;
use kestrel_meta::txn::Origin;
use kestrel_types::clock::SECOND;
use kestrel_types::error::FsResult;
use kestrel_types::extent::Extent;
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, Table};
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::placement::{Member as MapMember, NodeId, PlacementMap, Rule, Slot, SlotMap};
use kestrel_types::request::{
    Answer, Commit, Creds, NewData, Op, OpenFlags, Outcome, RenameFlags, Reply, Request, XattrFlags,
};
use kestrel_types::wire::ClientId;
use parking_lot::Mutex;

use common::errno;
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

/// Tables with rows that have owners by name or id.
const MOVING: [Table; 8] = [
    Table::Entry,
    Table::DirId,
    Table::Subdir,
    Table::Link,
    Table::Chunk,
    Table::Xattr,
    Table::Moved,
    Table::Sweep,
];

type Ended = Arc<Mutex<Option<FsResult<()>>>>;

/// The table after this one, with these owners of slots.
fn after(table: &PlacementMap, owner: impl Fn(Slot, NodeId) -> NodeId) -> PlacementMap {
    let members = table.map.members().to_vec();
    let map = SlotMap::new(members, |slot| owner(slot, table.map.owner(slot).id)).unwrap();
    PlacementMap { version: table.version + 1, map, ..table.clone() }
}

/// Every member's slots go to the next one, and names get other rules.
fn turned(table: &PlacementMap) -> PlacementMap {
    let nodes = table.map.members().len() as u32;
    let mut next = after(table, |_, owner| owner % nodes + 1);
    for (name, rule) in
        [("plain7", Some(Rule::PathWalk)), ("walked", None), ("plain3", Some(Rule::Override(5)))]
    {
        next.exceptions.set(Name::new(name.as_bytes()).unwrap(), rule).unwrap();
    }
    next
}

/// Half of the slots of node 2 go to node 3.
fn shifted(table: &PlacementMap) -> PlacementMap {
    after(table, |slot, owner| if owner == 2 && slot % 2 == 0 { 3 } else { owner })
}

impl Cluster {
    fn begin(&mut self, next: PlacementMap) -> Ended {
        let slot: Ended = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |result| *filled.lock() = Some(result));
        self.members.get_mut(&1).unwrap().change(next, done, self.now);
        slot
    }

    fn step(&mut self) {
        self.carry(|_, _| false);
        self.tick(SECOND / 100);
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

    fn change(&mut self, next: PlacementMap) {
        let ended = self.begin(next.clone());
        self.end(&ended).unwrap();
        self.placement = next;
    }

    /// Until nobody has anything to do.
    fn settle(&mut self) {
        for _ in 0..20_000 {
            self.step();
            if self.members.values().all(ClusterNode::is_idle) {
                return;
            }
        }
        panic!("somebody does not come to rest");
    }

    /// As a client asks: it looks at the newest table when it is told to.
    fn call(&mut self, op: Op) -> Reply {
        for _ in 0..5000 {
            let slot = self.submit(1, Request { creds: Creds::root(), op: op.clone() }, None);
            let reply = loop {
                self.step();
                if let Some(reply) = slot.lock().take() {
                    break reply;
                }
            };
            if !matches!(reply, Err(Outcome::Misdirected { .. })) {
                return reply;
            }
            self.look();
        }
        panic!("nobody leads {op:?}");
    }

    fn look(&mut self) {
        let tables = self.members.values().map(ClusterNode::placement);
        self.placement = tables.max_by_key(|table| table.version).unwrap();
    }

    /// Rows that the members own, of all of them together, and how many they have that they do not.
    fn rows(&self) -> (BTreeMap<Key, Vec<u8>>, usize) {
        let (mut rows, mut strangers) = (BTreeMap::new(), 0);
        for (id, engine) in &self.engines {
            let table = self.members[id].node().cluster().unwrap().table();
            for kind in MOVING {
                let visited = engine.scan_table(kind, None, &mut |key, value| {
                    if table.owns(key.table, key.id, key.suffix) {
                        let before = rows.insert(key.to_owned(), value.to_vec());
                        assert!(before.is_none(), "{key:?} has two owners");
                    } else {
                        strangers += 1;
                    }
                    ControlFlow::Continue(())
                });
                visited.unwrap();
            }
        }
        (rows, strangers)
    }

    fn versions(&self) -> Vec<u64> {
        self.members.values().map(|member| member.placement().version).collect()
    }

    /// Files and directories of every kind, all over the members.
    fn fill(&mut self) {
        for i in 0..40 {
            self.inode(1, mknod(&format!("plain{i}")));
        }
        for dir in ["a1", "a2", "a3"] {
            self.inode(1, Op::MkDir(at(dir), 0o755));
            for name in ["walked", "plain3", "plain7", "b1", "b2", "b3", "x", "y", "z"] {
                self.inode(1, mknod(&format!("{dir}/{name}")));
            }
            self.inode(1, Op::MkDir(at(&format!("{dir}/sub")), 0o755));
        }
        for (from, to) in [("plain1", "c2"), ("plain2", "c3"), ("a1", "d3")] {
            let rename = Op::Rename(at(from), at(to), RenameFlags::default());
            assert_eq!(errno(&self.ask(1, rename)), 0);
        }
        for i in 10..16 {
            let name = format!("plain{i}");
            let file = self.inode(1, Op::Lookup(at(&name)));
            self.inode(1, Op::Link(seen(&file, &name), at(&format!("linked{i}"))));
        }
        for i in 20..26 {
            let name = format!("plain{i}");
            let file = self.inode(1, Op::Lookup(at(&name)));
            let set = Op::SetXattr(
                seen(&file, &name),
                b"user.x"[..].into(),
                b"value"[..].into(),
                XattrFlags::default(),
            );
            assert_eq!(errno(&self.ask(1, set)), 0);
            let patches = vec![(1, Extent::of_range(0, range(1000 + i, 10)))];
            self.commit(&name, &file, NewData::Patches(patches), (64 << 20) + 10);
        }
    }

    fn commit(&mut self, name: &str, file: &Inode, data: NewData, size: u64) {
        let (inode, base) = (seen(file, name), file.data_change);
        let commit =
            Op::Commit(Commit { inode, base, data, size: Some(size), mtime: 5, kill_suid: false });
        self.inode(1, commit);
    }

    fn listed(&mut self, dir: u64) -> Vec<String> {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let list = Op::ReadDir { dir, after, limit: 7, check: true };
            let Ok(Answer::Entries { entries, end, .. }) = self.call(list) else {
                panic!("no listing")
            };
            names.extend(
                entries
                    .iter()
                    .map(|entry| String::from_utf8_lossy(entry.name.as_bytes()).into_owned()),
            );
            after = entries.last().map(|entry| entry.name.clone());
            if end {
                return names;
            }
        }
    }
}

fn seen(file: &Inode, name: &str) -> InodeRef {
    InodeRef { ino: file.ino, seen: Some((1, Name::new(name.as_bytes()).unwrap())) }
}

fn change_of(message: &Message) -> Option<&ChangeMessage> {
    if let Message::Change(change) = message { Some(change) } else { None }
}

#[test]
fn rows_go_to_their_new_owners_and_nothing_is_left() {
    let mut cluster = Cluster::new(3);
    cluster.fill();
    let (before, _) = cluster.rows();
    let names = cluster.listed(1);
    let usage = cluster.ask(1, Op::Usage);
    for version in 2..5 {
        cluster.change(turned(&cluster.placement.clone()));
        cluster.settle();
        let (rows, strangers) = cluster.rows();
        assert_eq!(strangers, 0);
        assert_eq!(rows, before);
        assert_eq!(cluster.versions(), [version; 3]);
        assert_eq!(cluster.listed(1), names);
        assert_eq!(cluster.ask(2, Op::Usage), usage);
        (1..=3).for_each(|id| cluster.restart(id));
        assert_eq!(cluster.versions(), [version; 3]);
        assert_eq!(cluster.ask(3, Op::Usage), usage);
    }
    // Everything can be had and changed where it is now.
    for name in names {
        let inode = cluster.inode(1, Op::Lookup(at(&name)));
        let again = cluster.inode(1, Op::GetAttr(seen(&inode, &name)));
        assert_eq!(inode, again, "{name}");
        if inode.kind != kestrel_types::inode::Kind::Dir {
            assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(&name)))), 0, "{name}");
        }
    }
    // Their homes ask which members have them open.
    for _ in 0..1000 {
        cluster.step();
    }
    assert!(
        cluster.rows().0.keys().all(|key| key.table != Table::Link && key.table != Table::Chunk)
    );
}

/// A cluster member that restarts at any point of a change finds the old placement map or the new
/// one.
#[test]
fn restart_at_any_point_of_a_change() {
    for node in 1..=3 {
        for power in [false, true] {
            let mut point = 0;
            loop {
                let mut cluster = Cluster::new(3);
                cluster.fill();
                cluster.engines.values().for_each(|engine| engine.sync().unwrap());
                let (before, _) = cluster.rows();
                let ended = cluster.begin(turned(&cluster.placement.clone()));
                let mut told = 0;
                // The message that is about to come is lost with the start.
                let reached = (0..2000).any(|_| {
                    let seen = std::cell::Cell::new(told);
                    let held = cluster.carry(|to, message| {
                        let counts = to == node && change_of(message).is_some();
                        seen.set(seen.get() + u32::from(counts));
                        counts && seen.get() == point + 1
                    });
                    told = seen.get();
                    cluster.tick(SECOND / 100);
                    held.is_some() || ended.lock().is_some() && node != 1 && told <= point
                });
                if ended.lock().is_some() || !reached {
                    break;
                }
                if power {
                    cluster.crash(node)
                } else {
                    cluster.restart(node)
                }
                for _ in 0..3000 {
                    cluster.step();
                }
                cluster.settle();
                let versions = cluster.versions();
                assert!(
                    versions.iter().all(|version| *version == versions[0]),
                    "{node} {point}: {versions:?}"
                );
                assert!(
                    node == 1 || versions[0] == 2,
                    "{node} {point}: only the coordinator forgets a change"
                );
                cluster.look();
                let (rows, strangers) = cluster.rows();
                assert_eq!((strangers, rows == before), (0, true), "{node} {point}");
                cluster.change(shifted(&cluster.placement.clone()));
                point += 1;
            }
            assert!(point >= 3, "{node}: {point}");
        }
    }
}

/// Requests during a change are served, and what they change moves along.
#[test]
fn requests_during_a_change() {
    for lost in 0..7 {
        let mut cluster = Cluster::new(3);
        cluster.fill();
        let mut expected = cluster.listed(1);
        let ended = cluster.begin(turned(&cluster.placement.clone()));
        let mut round = 0;
        while ended.lock().is_none() {
            round += 1;
            assert!(round < 2000);
            // Some messages are lost.
            cluster.collect();
            let mut count = 0;
            cluster.under_way.retain(|_| {
                count += 1;
                lost == 0 || (count + round) % 7 != lost
            });
            let name = format!("new{round}");
            assert_eq!(errno(&cluster.call(mknod(&name))), 0);
            expected.push(name);
            match round {
                1..8 => {
                    let (from, to) = (format!("plain{}", 29 + round), format!("moved{round}"));
                    let rename = Op::Rename(at(&from), at(&to), RenameFlags::default());
                    assert_eq!(errno(&cluster.call(rename)), 0);
                    expected.retain(|name| *name != from);
                    expected.push(to);
                }
                8..15 => {
                    let name = format!("new{}", round - 7);
                    assert_eq!(errno(&cluster.call(Op::Unlink(at(&name)))), 0);
                    expected.retain(|other| *other != name);
                }
                _ => {}
            }
            expected.sort();
            assert_eq!(cluster.listed(1), expected, "round {round}");
        }
        ended.lock().take().unwrap().unwrap();
        cluster.settle();
        assert_eq!(cluster.rows().1, 0);
        assert_eq!(cluster.listed(1), expected);
    }
}

#[test]
fn a_change_that_fails_leaves_everything_as_it_was() {
    let mut cluster = Cluster::new(3);
    cluster.fill();
    let (before, _) = cluster.rows();
    cluster
        .members
        .get_mut(&2)
        .unwrap()
        .set_lock_guard(Box::new(|leaves| usize::from((0..1 << 14).any(leaves))));
    let ended = cluster.begin(turned(&cluster.placement.clone()));
    let why = cluster.end(&ended).unwrap_err();
    assert!(why.errno == libc::EBUSY && why.to_string().contains("node 2 keeps locks"), "{why}");
    cluster.settle();
    assert_eq!((cluster.rows(), cluster.versions()), ((before, 0), vec![1; 3]));
    assert_eq!(errno(&cluster.ask(1, mknod("b2"))), 0);
}

/// A change fails while a cluster member is away, and can be made when the member is back.
#[test]
fn change_with_a_member_away() {
    let mut cluster = Cluster::new(3);
    cluster.fill();
    let away = cluster.members.remove(&3).unwrap();
    let ended = cluster.begin(shifted(&cluster.placement.clone()));
    assert_eq!(cluster.end(&ended).unwrap_err().errno, libc::ETIMEDOUT);
    cluster.members.insert(3, away);
    cluster.change(shifted(&cluster.placement.clone()));
    cluster.settle();
    assert_eq!((cluster.rows().1, cluster.versions()), (0, vec![2; 3]));
}

#[test]
fn a_node_joins_and_gets_slots_later() {
    let mut cluster = Cluster::new(1);
    cluster.inode(1, Op::MkDir(at("dir"), 0o755));
    for i in 0..50 {
        cluster.inode(1, mknod(&format!("dir/file{i}")));
    }
    for id in 2..4 {
        let reserved: Arc<Mutex<Option<FsResult<NodeId>>>> = Arc::default();
        let filled = reserved.clone();
        let announced = Announced { address: format!("node-{id}"), idle: false };
        let done = Box::new(move |node| *filled.lock() = Some(node));
        cluster.members.get_mut(&1).unwrap().expect(announced.clone(), done, cluster.now);
        assert_eq!(reserved.lock().take().unwrap().unwrap(), id);
        cluster.restart(1);
        assert_eq!(cluster.members[&1].expected(), [(id, announced)]);
        let present = cluster.members[&1].placement();
        let mut members = present.map.members().to_vec();
        members.push(MapMember { id, address: format!("node-{id}") });
        let map = SlotMap::new(members, |slot| present.map.owner(slot).id).unwrap();
        cluster.form(id, PlacementMap { map, ..present.clone() }, true);
        for _ in 0..3000 {
            cluster.step();
            if cluster.members.values().all(ClusterNode::is_idle) {
                break;
            }
        }
        assert_eq!(cluster.versions(), vec![present.version + 1; id as usize]);
        assert!(cluster.members[&1].expected().is_empty());
        cluster.restart(id);
        cluster.look();
        cluster.change(after(&cluster.placement.clone(), |slot, _| u32::from(slot) % id + 1));
        cluster.settle();
        assert_eq!(cluster.rows().1, 0);
        let dir = cluster.inode(1, Op::Lookup(at("dir"))).ino;
        assert_eq!(cluster.listed(dir).len(), 50);
        assert_eq!(
            errno(&cluster.ask(1, Op::Rename(at("dir"), at("other"), RenameFlags::default()))),
            0
        );
        assert_eq!(errno(&cluster.ask(1, mknod("dir/more"))), libc::ENOENT);
        assert_eq!(
            errno(&cluster.ask(1, Op::Rename(at("other"), at("dir"), RenameFlags::default()))),
            0
        );
    }
}

/// A file that is open at its former node outlives its last name.
#[test]
fn open_file_after_a_move_of_its_slots() {
    let mut cluster = Cluster::new(2);
    let create =
        |name: &str| Op::Create { place: at(name), mode: 0o644, flags: FLAGS, exclusive: false };
    let opened = |reply: Reply| match reply {
        Ok(Answer::Opened { inode, .. }) => *inode,
        other => panic!("{other:?}"),
    };
    let file = opened(cluster.ask(1, create("a1")));
    let linked = opened(cluster.ask(1, create("b1")));
    cluster.inode(1, Op::Link(seen(&linked, "b1"), at("c1")));
    let orphans = opened(cluster.ask(1, Op::TmpFile { dir: 1, mode: 0o600, exclusive: false }));
    let made_at = cluster.placement.home_of(orphans.ino).id;
    assert_eq!(made_at, 1);
    cluster.change(after(&cluster.placement.clone(), |_, owner| 3 - owner));
    for name in ["a1", "b1", "c1"] {
        assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(name)))), 0);
    }
    for _ in 0..2000 {
        cluster.step();
    }
    let get =
        |cluster: &mut Cluster, ino| errno(&cluster.ask(1, Op::GetAttr(InodeRef::by_id(ino))));
    for file in [&file, &linked, &orphans] {
        assert_eq!(get(&mut cluster, file.ino), 0);
    }
    // They are closed where they were opened.
    for file in [&file, &linked, &orphans] {
        let slot =
            cluster.submit(1, Request { creds: Creds::root(), op: Op::Release(file.ino) }, None);
        cluster.step();
        assert_eq!(errno(&slot.lock().take().unwrap()), 0);
    }
    for _ in 0..2000 {
        cluster.step();
    }
    for file in [&file, &linked, &orphans] {
        assert_eq!(get(&mut cluster, file.ino), libc::ESTALE);
    }
    // What is made after the change is its home's business again.
    let file = opened(cluster.ask(1, create("d1")));
    assert_eq!(errno(&cluster.ask(1, Op::Unlink(at("d1")))), 0);
    let home = cluster.placement.home_of(file.ino).id;
    let slot =
        cluster.submit(home, Request { creds: Creds::root(), op: Op::Release(file.ino) }, None);
    cluster.collect();
    assert_eq!((errno(&slot.lock().take().unwrap()), cluster.under_way.len()), (0, 0));
}

/// A former owner answers a request from its record, and without a record says that it is
/// misdirected.
#[test]
fn retry_at_the_former_owner() {
    let mut cluster = Cluster::new(2);
    let client = ClientId([9; 16]);
    let ask = |cluster: &mut Cluster, op: Op, seq, retry| {
        let slot: Arc<Mutex<Option<Reply>>> = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |reply| *filled.lock() = Some(reply));
        let asker = Requester::Session(Some(Origin { client, seq, retry }));
        let request = Request { creds: Creds::root(), op };
        cluster.members.get_mut(&1).unwrap().submit(request, asker, done, cluster.now);
        cluster.step();
        slot.lock().take().unwrap()
    };
    let made = ask(&mut cluster, mknod("a1"), 1, false);
    assert_eq!(errno(&made), 0);
    cluster.change(after(&cluster.placement.clone(), |_, owner| 3 - owner));
    assert_eq!(ask(&mut cluster, mknod("a1"), 1, true), made);
    for (seq, retry) in [(2, true), (3, false)] {
        let reply = ask(&mut cluster, mknod("b1"), seq, retry);
        assert_eq!(reply, Err(Outcome::Misdirected { table: 2 }));
    }
    assert_eq!(cluster.listed(1), ["a1"]);
}

/// Only the coordinator leads changes, and only changes that make sense.
#[test]
fn refused_changes() {
    let mut cluster = Cluster::new(2);
    let present = cluster.placement.clone();
    let mut stranger = present.map.members().to_vec();
    stranger.push(MapMember { id: 7, address: "node-7".into() });
    let map = SlotMap::new(stranger, |slot| present.map.owner(slot).id).unwrap();
    for (at, next, why) in [
        (2, after(&present, |_, _| 1), "node 1 leads"),
        (1, present.clone(), "meanwhile"),
        (1, PlacementMap { version: 2, map, ..present.clone() }, "not expected"),
    ] {
        let ended: Ended = Arc::default();
        let filled = ended.clone();
        let done = Box::new(move |result| *filled.lock() = Some(result));
        cluster.members.get_mut(&at).unwrap().change(next, done, 0);
        let refused = ended.lock().take().unwrap().unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
}
