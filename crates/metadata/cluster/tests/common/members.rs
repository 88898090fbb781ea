//! Several members in one process, messages carried by hand. (What happens under faults the
//! simulator judges.)

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kestrel_cluster::{ClusterNode, ClusterNodeConfig, Envelope, Message, RESTART_MIN, Requester};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, NodeConfig, Replies, RootAttr};
use kestrel_meta::txn::Origin;
use kestrel_types::clock::{ManualClock, Nanos, SECOND};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::placement::{
    Exceptions, Member as MapMember, NodeId, PlacementMap, Rule, SlotMap,
};
use kestrel_types::request::{Answer, Creds, Op, Reply, Request};
use parking_lot::Mutex;

pub const ROOT_ATTR: RootAttr = RootAttr { mode: 0o777, uid: 0, gid: 0 };

/// Names `a1`, `b2` … belong to the node of their digit; `walked` belongs to one in each directory.
pub fn placement(nodes: u32) -> PlacementMap {
    let members = (1..=nodes).map(|id| MapMember { id, address: format!("node-{id}") }).collect();
    let map = SlotMap::even(members).unwrap();
    let mut exceptions = Exceptions::default();
    for letter in 'a'..='f' {
        for node in 1..=nodes {
            let slot = (0..1 << 14).find(|slot| map.owner(*slot).id == node).unwrap();
            let name = Name::new(format!("{letter}{node}").as_bytes()).unwrap();
            exceptions.set(name, Some(Rule::Override(slot))).unwrap();
        }
    }
    exceptions.set(Name::new(b"walked").unwrap(), Some(Rule::PathWalk)).unwrap();
    PlacementMap::new(map, exceptions)
}

pub fn settings() -> NodeConfig {
    let (durability, replies) = (Durability::Commit, Replies::Inline);
    NodeConfig { workers: 2, durability, replies, ..NodeConfig::default() }
}

pub struct Cluster {
    pub engines: BTreeMap<NodeId, Arc<MemoryEngine>>,
    pub members: BTreeMap<NodeId, ClusterNode>,
    pub clock: Arc<ManualClock>,
    /// The table by which members are asked.
    pub placement: PlacementMap,
    /// That with which they were formed.
    pub formed: BTreeMap<NodeId, PlacementMap>,
    pub under_way: VecDeque<(NodeId, Envelope)>,
    pub now: Nanos,
    /// Members that start from now on wait for claims.
    pub serves: bool,
    /// Others can claim the stores of members that are formed.
    pub shared: bool,
}

impl Cluster {
    pub fn new(nodes: u32) -> Self {
        Self::of(placement(nodes))
    }

    /// Members with stores that others can claim.
    pub fn on_shared(nodes: u32) -> Self {
        Self::formed_by(placement(nodes), true)
    }

    /// The members of a table.
    pub fn of(placement: PlacementMap) -> Self {
        Self::formed_by(placement, false)
    }

    fn formed_by(placement: PlacementMap, shared: bool) -> Self {
        let nodes: Vec<NodeId> = placement.map.members().iter().map(|member| member.id).collect();
        let mut cluster = Self {
            engines: BTreeMap::new(),
            members: BTreeMap::new(),
            clock: Arc::new(ManualClock::new(1000 * SECOND)),
            placement,
            formed: BTreeMap::new(),
            under_way: VecDeque::new(),
            now: 0,
            serves: false,
            shared,
        };
        for id in nodes {
            cluster.form(id, cluster.placement.clone(), false);
        }
        cluster.get_leases();
        cluster
    }

    /// Forms a member and starts it.
    pub fn form(&mut self, id: NodeId, placement: PlacementMap, joining: bool) {
        let engine = match self.shared {
            true => MemoryEngine::shared(SyncWhen::Asked),
            false => MemoryEngine::new(SyncWhen::Asked),
        };
        let engine = Arc::new(engine);
        ClusterNode::format(&*engine, ROOT_ATTR, SECOND, id, placement.clone()).unwrap();
        self.engines.insert(id, engine);
        self.formed.insert(id, placement);
        self.start(id, joining);
    }

    /// Power fails at a member, and comes back.
    pub fn crash(&mut self, id: NodeId) {
        self.members.remove(&id);
        let engine = self.engines.remove(&id).unwrap();
        let mut engine = Arc::try_unwrap(engine).ok().expect("nobody else has it");
        engine.crash();
        self.engines.insert(id, Arc::new(engine));
        self.restart(id);
    }

    pub fn restart(&mut self, id: NodeId) {
        self.start(id, false);
        self.get_leases();
    }

    /// Members that have started get leases from those that run. Of what else is under way nothing
    /// arrives.
    pub fn get_leases(&mut self) {
        self.tick(0);
        loop {
            self.collect();
            let is_lease =
                |(_, envelope): &(NodeId, Envelope)| matches!(envelope.message, Message::Lease(_));
            let Some(next) = self.under_way.iter().position(is_lease) else { return };
            let Some((to, envelope)) = self.under_way.remove(next) else { return };
            if let Some(member) = self.members.get_mut(&to) {
                member.receive(envelope, self.now);
            }
        }
    }

    fn start(&mut self, id: NodeId, joining: bool) {
        self.members.remove(&id);
        self.now += RESTART_MIN;
        self.open_member(id, joining, true);
    }

    /// Another process takes a member over while the member's own goes on.
    pub fn take_over(&mut self, id: NodeId, exclusive: bool) -> ClusterNode {
        let zombie = self.members.remove(&id).unwrap();
        self.open_member(id, false, exclusive);
        zombie
    }

    fn open_member(&mut self, id: NodeId, joining: bool, exclusive: bool) {
        let node = NodeConfig { serves: self.serves, ..settings() };
        let config = ClusterNodeConfig {
            me: id,
            placement: self.formed[&id].clone(),
            node,
            seed: 7,
            joining,
            exclusive,
        };
        let member =
            ClusterNode::open(self.engines[&id].clone(), self.clock.clone(), config, self.now)
                .unwrap();
        self.members.insert(id, member);
    }

    pub fn collect(&mut self) {
        for member in self.members.values_mut() {
            self.under_way.extend(member.take_outbox());
        }
    }

    /// Carries messages until `stop` holds one back, which it returns, or none is under way.
    pub fn carry(&mut self, stop: impl Fn(NodeId, &Message) -> bool) -> Option<(NodeId, Envelope)> {
        loop {
            self.collect();
            let (to, envelope) = self.under_way.pop_front()?;
            if stop(to, &envelope.message) {
                return Some((to, envelope));
            }
            if let Some(member) = self.members.get_mut(&to) {
                member.receive(envelope, self.now);
            }
        }
    }

    /// A session asks the member that leads the request; `at` what any could lead.
    pub fn submit(
        &mut self,
        at: NodeId,
        request: Request,
        origin: Option<Origin>,
    ) -> Arc<Mutex<Option<Reply>>> {
        let slot: Arc<Mutex<Option<Reply>>> = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |reply| *filled.lock() = Some(reply));
        let leader = self.placement.leader(&request.op).map_or(at, |member| member.id);
        let asker = Requester::Session(origin);
        self.members.get_mut(&leader).unwrap().submit(request, asker, done, self.now);
        slot
    }

    /// A client of a member claims an open.
    pub fn begin_claim(&mut self, at: NodeId, file: InodeRef) -> Arc<Mutex<Option<Reply>>> {
        let slot: Arc<Mutex<Option<Reply>>> = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |reply| *filled.lock() = Some(reply));
        self.members.get_mut(&at).unwrap().reclaim_open(file, 1, false, done, self.now);
        slot
    }

    /// As above; what comes of it.
    pub fn claim(&mut self, at: NodeId, file: InodeRef) -> Reply {
        let slot = self.begin_claim(at, file);
        self.wait_for(&slot)
    }

    pub fn ask_from(&mut self, at: NodeId, op: Op, origin: Option<Origin>) -> Reply {
        let slot = self.submit(at, Request { creds: Creds::root(), op }, origin);
        self.wait_for(&slot)
    }

    pub fn wait_for(&mut self, slot: &Mutex<Option<Reply>>) -> Reply {
        for _ in 0..10_000 {
            self.carry(|_, _| false);
            if let Some(reply) = slot.lock().take() {
                return reply;
            }
            self.tick(SECOND / 100);
        }
        panic!("no answer");
    }

    pub fn ask(&mut self, at: NodeId, op: Op) -> Reply {
        self.ask_from(at, op, None)
    }

    pub fn tick(&mut self, by: Nanos) {
        self.now += by;
        for member in self.members.values_mut() {
            member.tick(self.now);
        }
    }

    pub fn inode(&mut self, at: NodeId, op: Op) -> Inode {
        match self.ask(at, op) {
            Ok(Answer::Inode(inode) | Answer::Entry { inode, .. }) => *inode,
            other => panic!("{other:?}"),
        }
    }

    pub fn names(&mut self, at: NodeId, dir: u64, limit: usize) -> Vec<String> {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let list = Op::ReadDir { dir, after, limit, check: true };
            let Ok(Answer::Entries { entries, end, .. }) = self.ask(at, list) else {
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

pub fn at(path: &str) -> PathRef {
    PathRef::from_path(1, path.as_bytes()).unwrap()
}

pub fn mknod(path: &str) -> Op {
    Op::MkNod { place: at(path), kind: Kind::File, mode: 0o644, rdev: 0 }
}
