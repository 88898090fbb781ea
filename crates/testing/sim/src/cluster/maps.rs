//! Tables of placement that change in mid-run: somebody asks the coordinator for other owners of
//! the names and numbers that clients are busy with, for new members, and for another coordinator;
//! clients hear of it late.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_cluster::change::Announced;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::FsResult;
use kestrel_types::name::Name;
use kestrel_types::placement::{
    Member as MapMember, NodeId, PlacementMap, Rule, Slot, SlotMap, slot_of_id,
};
use kestrel_types::wire::ClientId;
use parking_lot::Mutex;

use super::finish::REST_MAX;
use super::host::Host;
use super::leaving::staying;
use super::{ClusterRun, Event};
use crate::event_queue::Scene;
use crate::network::MS;
use crate::workload::NAMES;

/// Most members that join.
const JOINS_MAX: usize = 2;

/// How the coordinator answered.
type Heard<T> = Arc<Mutex<Vec<FsResult<T>>>>;

/// See the module's header.
#[derive(Default)]
pub struct MapChanges {
    /// Tables change in this run.
    pub on: bool,
    /// Tables that were asked for.
    past: Vec<PlacementMap>,
    changed: Heard<()>,
    /// Numbers of members to come, and whether they are to be idle.
    expected: Heard<(NodeId, bool)>,
    /// All of those, since no number is given twice.
    given: BTreeMap<NodeId, bool>,
    /// How often the coordinator was asked to expect a member.
    asked: usize,
    /// Members that are to join or have.
    joins: usize,
    /// The coordinator when a change ended last.
    coordinator: Option<NodeId>,
    /// Of every member: seed, number of workers, and how many rows are many.
    host: (u64, (usize, usize)),
}

impl MapChanges {
    /// None has changed yet.
    pub fn new(on: bool, host: (u64, (usize, usize))) -> Self {
        Self { on, host, ..Self::default() }
    }
}

impl ClusterRun {
    /// The newest table that a member has.
    pub(super) fn newest(&self) -> PlacementMap {
        let tables = self.hosts.values().filter(|host| !host.joins()).filter_map(Host::placement);
        let newest = tables.max_by_key(|table| table.version);
        newest.unwrap_or_else(|| self.placement.clone())
    }

    pub(super) fn coordinator(&self) -> NodeId {
        self.newest().coordinator
    }

    /// Somebody wants another table, or a member more, and again after a while.
    pub(super) fn want_change(&mut self) {
        if self.plan.calls == 0 {
            return;
        }
        if self.tables.joins < JOINS_MAX && self.dice.chance(12) {
            self.want_member();
        } else if self.dice.chance(25)
            && let Some(next) = self.leaving_table()
        {
            self.ask_for(next);
        } else if self.dice.chance(25)
            && let Some(next) = self.handed_table()
        {
            self.ask_for(next);
        } else {
            self.ask_for_change();
        }
        if self.troubled && self.dice.chance(40) {
            let after = self.dice.between(0, 2 * SECOND);
            self.plan_in(after, Event::FaultOnce);
        }
        let after = self.dice.between(100 * MS, 4 * SECOND);
        self.plan_in(after, Event::Change);
    }

    /// The table in which another member coordinates: one that members know that wait to be taken
    /// in, since they ask no other.
    fn handed_table(&mut self) -> Option<PlacementMap> {
        let table = self.newest();
        let waiting: Vec<&PlacementMap> =
            self.hosts.values().filter(|host| host.joins()).map(Host::formed).collect();
        let members = table.map.members().iter().map(|member| member.id);
        let known = |node: NodeId| waiting.iter().all(|formed| formed.map.member(node).is_some());
        let may =
            |node: &NodeId| *node != table.coordinator && !table.is_leaving(*node) && known(*node);
        let others: Vec<NodeId> = members.filter(may).collect();
        let node = *self.dice.pick(&others)?;
        Some(table.with_coordinator(node).expect("it stays"))
    }

    fn ask_for_change(&mut self) {
        let next = self.next_table();
        self.ask_for(next);
    }

    /// Somebody wants this table.
    pub(super) fn ask_for(&mut self, next: PlacementMap) {
        let (node, now) = (self.coordinator(), self.agenda.now);
        let heard = self.tables.changed.clone();
        let done = Box::new(move |result| heard.lock().push(result));
        self.say(|| format!("node {node} is asked for table {}", next.version));
        self.tables.past.push(next.clone());
        self.host(node).change(next, done, now);
        self.after(node);
    }

    fn want_member(&mut self) {
        let (node, now) = (self.coordinator(), self.agenda.now);
        let heard = self.tables.expected.clone();
        let idle = self.dice.chance(25);
        let done = Box::new(move |result: FsResult<NodeId>| {
            heard.lock().push(result.map(|id| (id, idle)))
        });
        self.say(|| format!("node {node} is asked to expect another node"));
        self.tables.asked += 1;
        let address = format!("node-new-{}", self.tables.asked);
        self.host(node).expect(Announced { address, idle }, done, now);
        self.after(node);
    }

    /// What the coordinator has answered.
    pub(super) fn hear_of_tables(&mut self) {
        let expected = std::mem::take(&mut *self.tables.expected.lock());
        for (id, idle) in expected.into_iter().flatten() {
            if self.tables.given.insert(id, idle).is_some() {
                self.fail(format!("two nodes to come got the number {id}"));
            }
            self.tables.joins += 1;
            let after = self.dice.between(MS, SECOND);
            if self.dice.chance(20) {
                self.plan_in(after, Event::Lose(id));
                continue;
            }
            self.plan_in(after, Event::Form(id));
            if self.dice.chance(30) {
                let after = after + self.dice.between(0, 2 * SECOND);
                self.plan_in(after, Event::Lose(id));
            }
        }
        for result in std::mem::take(&mut *self.tables.changed.lock()) {
            self.tally.changes += usize::from(result.is_ok());
            let coordinator = self.coordinator();
            let before =
                self.tables.coordinator.replace(coordinator).unwrap_or(self.placement.coordinator);
            self.tally.handed += usize::from(coordinator != before);
            self.tally.left = self.newest().former.len();
            self.say(|| format!("the change ended: {result:?}"));
        }
    }

    /// A new member's machine is set up with the present table and itself in it.
    pub(super) fn form(&mut self, id: NodeId) {
        let newest = self.newest();
        let member = MapMember { id, address: format!("node-new-{id}") };
        let idle = self.tables.given.get(&id).is_some_and(|idle| *idle);
        let placement = match newest.map.member(id) {
            Some(_) => newest,
            None => newest.with_member(member, idle).expect("a member more"),
        };
        let (seed, workers) = self.tables.host;
        let (clock, used) = (self.agenda.clock.clone(), self.objects.used.clone());
        self.say(|| format!("node {id} is set up"));
        let needed = self.leaving.needed.clone();
        self.hosts.insert(
            id,
            Host::new((id, true), placement, clock, workers, seed, (used, needed), self.shared),
        );
        self.start(id);
        self.plan_in(SECOND, Event::Reap(id));
    }

    /// Slots of names and numbers that clients use.
    fn used_slots(&self) -> Vec<Slot> {
        let table = self.newest();
        let mut slots = BTreeSet::from([slot_of_id(1), table.slot_of(0, b"")]);
        let known = self.clients.iter().flat_map(|caller| caller.client.known.iter());
        for ino in known.map(|known| known.inode.ino) {
            slots.insert(slot_of_id(ino));
            slots.extend(NAMES.iter().map(|name| table.slot_of(ino, name.as_bytes())));
        }
        slots.into_iter().collect()
    }

    /// A table that is another one than the newest where clients are at work.
    pub(super) fn next_table(&mut self) -> PlacementMap {
        let newest = self.newest();
        let members = staying(&newest);
        let PlacementMap { version, map, mut exceptions, .. } = newest.clone();
        let mut owners: Vec<NodeId> = (0..1 << 14).map(|slot| map.owner(slot).id).collect();
        let used = self.used_slots();
        let back =
            self.dice.chance(20).then(|| self.dice.pick(&self.tables.past).cloned()).flatten();
        if let Some(old) = back {
            // It may have members that the running members do not know yet.
            let known = |node: NodeId| if members.contains(&node) { node } else { members[0] };
            owners = (0..1 << 14).map(|slot| known(old.map.owner(slot).id)).collect();
            exceptions = old.exceptions;
        }
        for _ in 0..self.dice.below(5) {
            let slot = *self.dice.pick(&used).expect("the root's");
            owners[usize::from(slot)] = *self.dice.pick(&members).expect("there are members");
        }
        if self.dice.chance(40) {
            let name = *self.dice.pick(&NAMES).expect("not empty");
            let rule = match self.dice.below(4) {
                0 => None,
                1 => Some(Rule::PathWalk),
                _ => Some(Rule::Override(self.dice.below(1 << 14) as Slot)),
            };
            exceptions
                .set(Name::new(name.as_bytes()).expect("a name"), rule)
                .expect("a few exceptions");
        }
        let (from, to) =
            (*self.dice.pick(&members).expect("one"), *self.dice.pick(&members).expect("one"));
        let percent = match self.dice.below(10) {
            // Drained.
            0 => 100,
            1..=3 => self.dice.below(60),
            _ => 0,
        };
        for owner in owners.iter_mut().filter(|owner| **owner == from) {
            if percent > 0 && self.dice.chance(percent) {
                *owner = to;
            }
        }
        let map = SlotMap::new(map.members().to_vec(), |slot| owners[usize::from(slot)]);
        PlacementMap {
            version: version + 1,
            map: map.expect("the same members"),
            exceptions,
            ..newest
        }
    }

    /// A client has heard that a member has a newer table.
    pub(super) fn hear_of_version(&mut self, place: usize, node: NodeId, version: u64) {
        let caller = &mut self.clients[place];
        if version <= caller.placement.version || caller.client.dice.chance(caller.lazy) {
            return;
        }
        let (client, after) = (caller.client.id, self.dice.between(MS, 100 * MS));
        self.plan_in(after, Event::Learn(place, client, node));
    }

    /// A client has asked a member for its table.
    pub(super) fn learn_table(&mut self, place: usize, client: ClientId, node: NodeId) {
        let caller = &self.clients[place];
        let table = self.hosts.get(&node).and_then(Host::placement);
        let Some(table) = table.filter(|table| table.version > caller.placement.version) else {
            return;
        };
        if caller.client.id == client {
            self.say(|| format!("client {place} has table {} now", table.version));
            self.clients[place].placement = table;
        }
    }

    /// A table for a client that comes to be: some member's, perhaps an old one.
    pub(super) fn some_table(&mut self) -> PlacementMap {
        let node = self.pick_host();
        let table = self.hosts.get(&node).filter(|host| !host.joins()).and_then(Host::placement);
        table.unwrap_or_else(|| self.placement.clone())
    }

    /// Whether nothing is under way about tables, and all have the same one.
    pub(super) fn tables_rest(&self) -> bool {
        let mut versions = BTreeSet::new();
        for host in self.hosts.values().filter(|host| !host.is_out()) {
            let Some(table) = host.placement().filter(|_| !host.joins() && host.has_no_change())
            else {
                return false;
            };
            versions.insert(table.version);
        }
        versions.len() == 1
    }

    /// Now that nothing goes wrong any more a change succeeds, if it is asked for often enough: one
    /// may be under way.
    pub(super) fn change_once_more(&mut self) {
        if !self.tables.on {
            return;
        }
        let (before, until) = (self.newest().version, self.agenda.now + REST_MAX);
        while self.agenda.failure.is_none() && self.newest().version == before {
            if self.agenda.now >= until {
                return self.fail(format!(
                    "no change of the table within {} s of peace",
                    REST_MAX / SECOND
                ));
            }
            self.ask_for_change();
            let pause: Nanos = self.agenda.now + 5 * SECOND;
            self.run_until(pause, |world| world.newest().version > before);
        }
        self.run_until(until, Self::tables_rest);
        if self.agenda.failure.is_none() && !self.tables_rest() {
            self.fail("a change of the table does not end");
        }
        let members = self.hosts.values().filter(|host| !host.is_out());
        let tables: Vec<Option<PlacementMap>> = members.map(Host::placement).collect();
        if tables.iter().any(|table| *table != tables[0]) {
            self.fail("members have different tables of one version");
        }
    }
}
