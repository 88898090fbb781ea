//! Members that leave in mid-run, and clients that move out of them; nodes that were announced or
//! added and never come.
//!
//! A client with a map in which a member is leaving opens elsewhere what it has open there and then
//! releases it, one call after the other, and stops using object numbers of that member. The member
//! itself counts opens; its process has the list of clients with numbers of it or a call open, and
//! that keeps it from leaving.

use std::collections::BTreeSet;
use std::sync::Arc;

use kestrel_meta::owners::NODES_MAX;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::FsResult;
use kestrel_types::ids::ObjectId;
use kestrel_types::placement::{NodeId, OBJECT_BLOCK, PlacementMap};
use kestrel_types::request::{Creds, Op, OpenFlags, Request};
use parking_lot::Mutex;

use super::finish::REST_MAX;
use super::{ClusterRun, Event};
use crate::event_queue::Scene;
use crate::network::MS;

/// How a moved file is opened.
const FLAGS: OpenFlags = OpenFlags {
    read: true,
    write: true,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

/// Time between two questions about a node that is to be forgotten.
const TRY_AGAIN: Nanos = SECOND;

/// Members that clients still need.
pub type Needed = Arc<Mutex<BTreeSet<NodeId>>>;

/// The coordinator's answers about nodes that were to be forgotten.
type Forgotten = Arc<Mutex<Vec<(NodeId, FsResult<()>)>>>;

/// What is under way about members that leave.
#[derive(Default)]
pub struct Leaving {
    /// Members that clients still need.
    pub needed: Needed,
    forgotten: Forgotten,
    /// Nodes that are to be forgotten.
    forgetting: BTreeSet<NodeId>,
}

impl Leaving {
    /// Whether no node is being forgotten.
    pub fn is_idle(&self) -> bool {
        self.forgetting.is_empty()
    }
}

/// The node that gave a number.
pub fn giver_of(object: ObjectId) -> NodeId {
    // Below NODES_MAX, which fits.
    (object / OBJECT_BLOCK % u64::from(NODES_MAX)) as NodeId
}

fn is_staying(placement: &PlacementMap, node: NodeId) -> bool {
    placement.map.member(node).is_some() && !placement.is_leaving(node) && !placement.is_idle(node)
}

/// Members that serve clients and are there to stay.
pub fn staying(placement: &PlacementMap) -> Vec<NodeId> {
    let members = placement.serving().map(|member| member.id);
    members.filter(|node| !placement.is_leaving(*node)).collect()
}

impl ClusterRun {
    /// Notes which members clients need, for members that are about to say whether they can leave.
    pub(super) fn note_needed(&mut self) {
        if !self.maps.on {
            return;
        }
        let mut needed = self.leaving.needed.lock();
        needed.clear();
        for caller in self.clients.iter().filter(|caller| !self.dead.contains(&caller.client.id)) {
            needed.extend(caller.waiting.as_ref().map(|waiting| waiting.at));
        }
        needed.extend(self.objects.used.lock().iter().map(|object| giver_of(*object)));
    }

    /// The table without a member that is leaving, or one by which another member is.
    pub(super) fn leaving_map(&mut self) -> Option<PlacementMap> {
        let placement = self.newest();
        let stay = staying(&placement);
        if let Some(node) = self.prng.pick(&placement.leaving).copied()
            && self.prng.chance(70)
        {
            let heir = *self.prng.pick(&stay).expect("somebody serves");
            return Some(placement.without(node, heir).expect("it owns nothing"));
        }
        let members = placement.map.members().iter().map(|member| member.id);
        // One stays to own what there is.
        let may = |node: &NodeId| {
            *node != placement.coordinator && !placement.is_leaving(*node) && stay[..] != [*node]
        };
        let may: Vec<NodeId> = members.filter(may).collect();
        let node = *self.prng.pick(&may)?;
        let mut next = self.next_map();
        let owners: Vec<NodeId> = (0..1 << 14).map(|slot| next.map.owner(slot).id).collect();
        let to = *self.prng.pick(&stay).filter(|to| **to != node)?;
        let map = kestrel_types::placement::SlotMap::new(next.map.members().to_vec(), |slot| {
            let owner = owners[usize::from(slot)];
            if owner == node { to } else { owner }
        });
        next.map = map.expect("the same members");
        Some(PlacementMap {
            version: placement.version + 1,
            ..next.with_leaving(node).expect("it is drained")
        })
    }

    /// What a client has to do first, because of members that leave.
    pub(super) fn move_out(&mut self, client_index: usize) -> Option<Request> {
        let caller = &mut self.clients[client_index];
        let placement = &caller.placement;
        let (stay, gone): (Vec<ObjectId>, Vec<ObjectId>) = caller
            .client
            .objects
            .iter()
            .partition(|object| is_staying(placement, giver_of(**object)));
        caller.client.objects = stay;
        let caller = &self.clients[client_index];
        let placement = &caller.placement;
        let (_, ino) =
            *caller.opens.keys().find(|(node, _)| placement.is_leaving(*node)).unwrap_or(&(0, 0));
        let file =
            caller.opens.iter().find(|((_, open), _)| *open == ino).map(|(_, held)| held.file());
        let elsewhere =
            caller.opens.keys().any(|(node, open)| *open == ino && is_staying(placement, *node));
        self.objects_done(&gone);
        self.choose_giver(client_index);
        if self.prng.chance(30) {
            return None;
        }
        let op = if elsewhere { Op::Release(ino) } else { Op::Open(file?, FLAGS) };
        Some(Request { creds: Creds::root(), op })
    }

    /// A client takes object numbers from a member that stays.
    pub(super) fn choose_giver(&mut self, client_index: usize) {
        let placement = &self.clients[client_index].placement;
        if !is_staying(placement, self.clients[client_index].gives) {
            let stay = staying(placement);
            self.clients[client_index].gives = *self.prng.pick(&stay).expect("somebody serves");
        }
    }

    /// A node that was announced is never set up, or one that was set up is lost before it has
    /// joined.
    pub(super) fn lose(&mut self, node: NodeId) {
        let now = self.queue.now;
        if let Some(host) = self.hosts.get_mut(&node) {
            if !host.joins() || host.member().is_none() || host.has_failed() {
                return;
            }
            host.kill(None, now);
            host.lost = true;
        }
        self.say(|| format!("node {node} is lost before it has joined"));
        self.leaving.forgetting.insert(node);
        let after = self.prng.between(0, 5 * SECOND);
        self.plan_in(after, Event::Forget(node));
    }

    /// The coordinator is requested to forget a node, until it has.
    pub(super) fn forget(&mut self, node: NodeId) {
        if !self.leaving.forgetting.contains(&node) {
            return;
        }
        let (coordinator, now, results) =
            (self.coordinator(), self.queue.now, self.leaving.forgotten.clone());
        let done = Box::new(move |result| results.lock().push((node, result)));
        self.say(|| format!("node {coordinator} is asked to forget node {node}"));
        self.host(coordinator).forget(node, done, now);
        self.after(coordinator);
        self.plan_in(TRY_AGAIN, Event::Forget(node));
    }

    /// The coordinator's answer to that.
    pub(super) fn take_forgotten(&mut self) {
        let results = std::mem::take(&mut *self.leaving.forgotten.lock());
        for (node, result) in results {
            self.say(|| format!("node {node} is forgotten: {result:?}"));
            match result {
                Ok(()) => drop(self.leaving.forgetting.remove(&node)),
                // An earlier request was carried out, and its answer lost.
                Err(why) if why.errno == libc::ENOENT => {
                    self.leaving.forgetting.remove(&node);
                }
                Err(why) if why.errno == libc::EINVAL => {
                    self.fail(format!("node {node}, which never joined, is not forgotten: {why}"));
                }
                Err(_) => {}
            }
        }
    }

    /// Now that all clients are gone, a member that was leaving leaves.
    pub(super) fn leave_for_good(&mut self) {
        let until = self.queue.now + REST_MAX;
        while self.queue.failure.is_none() {
            let placement = self.newest();
            let Some(node) = placement.leaving.first().copied() else { return };
            if self.queue.now >= until {
                return self.fail(format!(
                    "node {node} cannot leave within {} s of peace",
                    REST_MAX / SECOND
                ));
            }
            self.note_needed();
            let heir = *self.prng.pick(&staying(&placement)).expect("somebody serves");
            self.request_map(placement.without(node, heir).expect("it owns nothing"));
            let pause = self.queue.now + 5 * SECOND;
            self.run_until(pause, |world| world.newest().version > placement.version);
            let rests = self.queue.now + 10 * SECOND + MS;
            self.run_until(rests, Self::maps_rest);
        }
    }
}
