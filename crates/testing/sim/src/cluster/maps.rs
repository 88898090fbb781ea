//! Placement maps that change in mid-run: an operator requests other owners of the names and
//! numbers that clients are busy with, new members, and another coordinator; clients get the map
//! late.

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
type Results<T> = Arc<Mutex<Vec<FsResult<T>>>>;

/// See the module's header.
#[derive(Default)]
pub struct MapChanges {
    /// Tables change in this run.
    pub on: bool,
    /// Maps that were requested.
    past: Vec<PlacementMap>,
    changed: Results<()>,
    /// Numbers of members to come, and whether they are to be idle.
    expected: Results<(NodeId, bool)>,
    /// All of those, since no number is given twice.
    given: BTreeMap<NodeId, bool>,
    /// How often the coordinator was requested to expect a member.
    requested: usize,
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
    /// The newest map that a member has.
    pub(super) fn newest(&self) -> PlacementMap {
        let maps = self.hosts.values().filter(|host| !host.joins()).filter_map(Host::placement);
        let newest = maps.max_by_key(|placement| placement.version);
        newest.unwrap_or_else(|| self.placement.clone())
    }

    pub(super) fn coordinator(&self) -> NodeId {
        self.newest().coordinator
    }

    /// An operator wants another map, or a member more, and again after a while.
    pub(super) fn want_change(&mut self) {
        if self.plan.calls == 0 {
            return;
        }
        if self.maps.joins < JOINS_MAX && self.prng.chance(12) {
            self.want_member();
        } else if self.prng.chance(25)
            && let Some(next) = self.leaving_map()
        {
            self.request_map(next);
        } else if self.prng.chance(25)
            && let Some(next) = self.handed_map()
        {
            self.request_map(next);
        } else {
            self.request_change();
        }
        if self.troubled && self.prng.chance(40) {
            let after = self.prng.between(0, 2 * SECOND);
            self.plan_in(after, Event::FaultOnce);
        }
        let after = self.prng.between(100 * MS, 4 * SECOND);
        self.plan_in(after, Event::Change);
    }

    /// The map in which another member coordinates: one that waiting members have in their maps,
    /// since they turn to no other.
    fn handed_map(&mut self) -> Option<PlacementMap> {
        let placement = self.newest();
        let waiting: Vec<&PlacementMap> =
            self.hosts.values().filter(|host| host.joins()).map(Host::formed).collect();
        let members = placement.map.members().iter().map(|member| member.id);
        let has = |node: NodeId| waiting.iter().all(|formed| formed.map.member(node).is_some());
        let may = |node: &NodeId| {
            *node != placement.coordinator && !placement.is_leaving(*node) && has(*node)
        };
        let others: Vec<NodeId> = members.filter(may).collect();
        let node = *self.prng.pick(&others)?;
        Some(placement.with_coordinator(node).expect("it stays"))
    }

    fn request_change(&mut self) {
        let next = self.next_map();
        self.request_map(next);
    }

    /// An operator wants this map.
    pub(super) fn request_map(&mut self, next: PlacementMap) {
        let (node, now) = (self.coordinator(), self.queue.now);
        let results = self.maps.changed.clone();
        let done = Box::new(move |result| results.lock().push(result));
        self.say(|| format!("node {node} is asked for table {}", next.version));
        self.maps.past.push(next.clone());
        self.host(node).change(next, done, now);
        self.after(node);
    }

    fn want_member(&mut self) {
        let (node, now) = (self.coordinator(), self.queue.now);
        let results = self.maps.expected.clone();
        let idle = self.prng.chance(25);
        let done = Box::new(move |result: FsResult<NodeId>| {
            results.lock().push(result.map(|id| (id, idle)))
        });
        self.say(|| format!("node {node} is asked to expect another node"));
        self.maps.requested += 1;
        let address = format!("node-new-{}", self.maps.requested);
        self.host(node).expect(Announced { address, idle }, done, now);
        self.after(node);
    }

    /// What the coordinator has answered.
    pub(super) fn take_map_results(&mut self) {
        let expected = std::mem::take(&mut *self.maps.expected.lock());
        for (id, idle) in expected.into_iter().flatten() {
            if self.maps.given.insert(id, idle).is_some() {
                self.fail(format!("two nodes to come got the number {id}"));
            }
            self.maps.joins += 1;
            let after = self.prng.between(MS, SECOND);
            if self.prng.chance(20) {
                self.plan_in(after, Event::Lose(id));
                continue;
            }
            self.plan_in(after, Event::Form(id));
            if self.prng.chance(30) {
                let after = after + self.prng.between(0, 2 * SECOND);
                self.plan_in(after, Event::Lose(id));
            }
        }
        for result in std::mem::take(&mut *self.maps.changed.lock()) {
            self.stats.changes += usize::from(result.is_ok());
            let coordinator = self.coordinator();
            let before =
                self.maps.coordinator.replace(coordinator).unwrap_or(self.placement.coordinator);
            self.stats.handed += usize::from(coordinator != before);
            self.stats.left = self.newest().former.len();
            self.say(|| format!("the change ended: {result:?}"));
        }
    }

    /// A new member's machine is set up with the present table and itself in it.
    pub(super) fn form(&mut self, id: NodeId) {
        let newest = self.newest();
        let member = MapMember { id, address: format!("node-new-{id}") };
        let idle = self.maps.given.get(&id).is_some_and(|idle| *idle);
        let placement = match newest.map.member(id) {
            Some(_) => newest,
            None => newest.with_member(member, idle).expect("a member more"),
        };
        let (seed, workers) = self.maps.host;
        let (clock, used) = (self.queue.clock.clone(), self.objects.used.clone());
        self.say(|| format!("node {id} is set up"));
        let needed = self.leaving.needed.clone();
        self.hosts.insert(
            id,
            Host::new((id, true), placement, clock, workers, seed, (used, needed), self.shared),
        );
        self.start(id);
        self.plan_in(SECOND, Event::CollectGarbage(id));
    }

    /// Slots of names and numbers that clients use.
    fn used_slots(&self) -> Vec<Slot> {
        let placement = self.newest();
        let mut slots = BTreeSet::from([slot_of_id(1), placement.slot_of(0, b"")]);
        let inodes = self.clients.iter().flat_map(|caller| caller.client.seen_inodes.iter());
        for ino in inodes.map(|seen| seen.inode.ino) {
            slots.insert(slot_of_id(ino));
            slots.extend(NAMES.iter().map(|name| placement.slot_of(ino, name.as_bytes())));
        }
        slots.into_iter().collect()
    }

    /// A table that is another one than the newest where clients are at work.
    pub(super) fn next_map(&mut self) -> PlacementMap {
        let newest = self.newest();
        let members = staying(&newest);
        let PlacementMap { version, map, mut exceptions, .. } = newest.clone();
        let mut owners: Vec<NodeId> = (0..1 << 14).map(|slot| map.owner(slot).id).collect();
        let used = self.used_slots();
        let back = self.prng.chance(20).then(|| self.prng.pick(&self.maps.past).cloned()).flatten();
        if let Some(old) = back {
            // It may have members that the running members do not know yet.
            let member_or_first =
                |node: NodeId| if members.contains(&node) { node } else { members[0] };
            owners = (0..1 << 14).map(|slot| member_or_first(old.map.owner(slot).id)).collect();
            exceptions = old.exceptions;
        }
        for _ in 0..self.prng.below(5) {
            let slot = *self.prng.pick(&used).expect("the root's");
            owners[usize::from(slot)] = *self.prng.pick(&members).expect("there are members");
        }
        if self.prng.chance(40) {
            let name = *self.prng.pick(&NAMES).expect("not empty");
            let rule = match self.prng.below(4) {
                0 => None,
                1 => Some(Rule::PathWalk),
                _ => Some(Rule::Override(self.prng.below(1 << 14) as Slot)),
            };
            exceptions
                .set(Name::new(name.as_bytes()).expect("a name"), rule)
                .expect("a few exceptions");
        }
        let (from, to) =
            (*self.prng.pick(&members).expect("one"), *self.prng.pick(&members).expect("one"));
        let percent = match self.prng.below(10) {
            // Drained.
            0 => 100,
            1..=3 => self.prng.below(60),
            _ => 0,
        };
        for owner in owners.iter_mut().filter(|owner| **owner == from) {
            if percent > 0 && self.prng.chance(percent) {
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

    /// An answer showed a client that a member has a newer map.
    pub(super) fn note_version(&mut self, client_index: usize, node: NodeId, version: u64) {
        let caller = &mut self.clients[client_index];
        if version <= caller.placement.version || caller.client.prng.chance(caller.lazy) {
            return;
        }
        let (client, after) = (caller.client.id, self.prng.between(MS, 100 * MS));
        self.plan_in(after, Event::Learn(client_index, client, node));
    }

    /// A client has requested a member's map.
    pub(super) fn learn_map(&mut self, client_index: usize, client: ClientId, node: NodeId) {
        let caller = &self.clients[client_index];
        let placement = self.hosts.get(&node).and_then(Host::placement);
        let Some(placement) =
            placement.filter(|placement| placement.version > caller.placement.version)
        else {
            return;
        };
        if caller.client.id == client {
            self.say(|| format!("client {client_index} has map {} now", placement.version));
            self.clients[client_index].placement = placement;
        }
    }

    /// A table for a client that comes to be: some member's, perhaps an old one.
    pub(super) fn some_map(&mut self) -> PlacementMap {
        let node = self.pick_host();
        let placement =
            self.hosts.get(&node).filter(|host| !host.joins()).and_then(Host::placement);
        placement.unwrap_or_else(|| self.placement.clone())
    }

    /// Whether nothing is under way about tables, and all have the same one.
    pub(super) fn maps_rest(&self) -> bool {
        let mut versions = BTreeSet::new();
        for host in self.hosts.values().filter(|host| !host.is_out()) {
            let Some(placement) =
                host.placement().filter(|_| !host.joins() && host.has_no_change())
            else {
                return false;
            };
            versions.insert(placement.version);
        }
        versions.len() == 1
    }

    /// Now that nothing goes wrong any more a change succeeds, if it is requested often enough: one
    /// may be under way.
    pub(super) fn change_once_more(&mut self) {
        if !self.maps.on {
            return;
        }
        let (before, until) = (self.newest().version, self.queue.now + REST_MAX);
        while self.queue.failure.is_none() && self.newest().version == before {
            if self.queue.now >= until {
                return self.fail(format!(
                    "no change of the table within {} s of peace",
                    REST_MAX / SECOND
                ));
            }
            self.request_change();
            let pause: Nanos = self.queue.now + 5 * SECOND;
            self.run_until(pause, |world| world.newest().version > before);
        }
        self.run_until(until, Self::maps_rest);
        if self.queue.failure.is_none() && !self.maps_rest() {
            self.fail("a change of the table does not end");
        }
        let members = self.hosts.values().filter(|host| !host.is_out());
        let maps: Vec<Option<PlacementMap>> = members.map(Host::placement).collect();
        if maps.iter().any(|placement| *placement != maps[0]) {
            self.fail("members have different tables of one version");
        }
    }
}
