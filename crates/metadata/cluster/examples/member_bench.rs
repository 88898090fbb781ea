//! What an operation on directories costs a cluster in messages, without a network: members in one
//! process on one thread, with messages that are carried by hand, each to all that wait for a
//! member at a time, and engines in memory.
//!
//! `cargo run --release -p kestrel-cluster --example member_bench -- [NODES,…] [IN-FLIGHT,…]`
//! (1,2,4,8,16 and 1,256) makes and removes directories below others that all members know. Prints
//! one JSON object a line: operation, members, calls in flight, and for an operation: messages
//! between members, how often one had something to say to another (what he says at one moment
//! leaves with one write), bytes of messages, microseconds, in which the one thread did what all
//! members have to do, and messages by kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use kestrel_cluster::{ClusterNode, ClusterNodeConfig, Envelope, Requester};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, NodeConfig, Replies, RootAttr};
use kestrel_types::clock::{MILLISECOND, Nanos, SystemClock};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::PathRef;
use kestrel_types::placement::{Exceptions, Member as MapMember, NodeId, PlacementMap, SlotMap};
use kestrel_types::request::{Creds, Op, Reply, Request};

type Failure = Box<dyn std::error::Error>;

/// Directories that are made and removed, in so many others.
const DIRS: u64 = 2_048;
const ABOVE: u64 = 64;

/// What was said since it was counted last.
#[derive(Default)]
struct Said {
    messages: u64,
    moments: u64,
    bytes: u64,
    kinds: BTreeMap<String, u64>,
}

struct Cluster {
    members: BTreeMap<NodeId, ClusterNode>,
    placement: PlacementMap,
    now: Nanos,
    said: Said,
}

impl Cluster {
    fn new(nodes: u32) -> Result<Self, Failure> {
        let members =
            (1..=nodes).map(|id| MapMember { id, address: format!("node{id}:1") }).collect();
        let map = SlotMap::even(members)?;
        let placement = PlacementMap::new(map, Exceptions::default());
        let open = |id| {
            let engine = Arc::new(MemoryEngine::new(SyncWhen::Asked));
            let root = RootAttr { mode: 0o755, uid: 0, gid: 0 };
            ClusterNode::format(&*engine, root, 0, id, placement.clone())?;
            let (durability, replies) = (Durability::Commit, Replies::Inline);
            let node = NodeConfig { workers: 2, durability, replies, ..NodeConfig::default() };
            let config = ClusterNodeConfig {
                me: id,
                placement: placement.clone(),
                node,
                seed: 1,
                joining: false,
                exclusive: true,
            };
            Ok::<_, Failure>((id, ClusterNode::open(engine, Arc::new(SystemClock), config, 0)?))
        };
        let members = (1..=nodes).map(open).collect::<Result<_, _>>()?;
        Ok(Self { members, placement, now: 0, said: Said::default() })
    }

    /// Carries what everybody has to say; whether there was anything.
    fn carry(&mut self) -> Result<bool, Failure> {
        let mut under_way: BTreeMap<NodeId, Vec<Envelope>> = BTreeMap::new();
        for member in self.members.values_mut() {
            let outbox = member.take_outbox();
            self.said.moments +=
                outbox.iter().map(|(to, _)| to).collect::<BTreeSet<_>>().len() as u64;
            for (to, envelope) in outbox {
                self.said.messages += 1;
                let mut bytes = Vec::new();
                envelope.encode(&mut bytes).map_err(|why| format!("{why:?}"))?;
                self.said.bytes += bytes.len() as u64;
                let told = format!("{:?}", envelope.message);
                let kind = told.split(|at: char| !at.is_alphanumeric()).next().unwrap_or_default();
                *self.said.kinds.entry(kind.to_string()).or_default() += 1;
                under_way.entry(to).or_default().push(envelope);
            }
        }
        let any = !under_way.is_empty();
        for (to, envelopes) in under_way {
            if let Some(member) = self.members.get_mut(&to) {
                envelopes.into_iter().for_each(|envelope| member.receive(envelope, self.now));
            }
        }
        Ok(any)
    }

    /// Creates that lead every member through every directory at the top: they are in all replicas
    /// then.
    fn known_by_all(&self) -> Result<Vec<Op>, Failure> {
        let (mut met, mut ops) = (BTreeSet::new(), Vec::new());
        for number in 0..ABOVE {
            for file in 0.. {
                let place = place(&format!("above{number}/file{file}"))?;
                let op = Op::MkNod { place, kind: Kind::File, mode: 0o644, rdev: 0 };
                if met.insert((number, self.placement.leader(&op).map(|member| member.id))) {
                    ops.push(op);
                }
                if met.len() as u64 == (number + 1) * self.members.len() as u64 {
                    break;
                }
            }
        }
        Ok(ops)
    }

    /// Executes the operations, so many at a time, each at its leader or by default at `at`.
    fn run(&mut self, at: NodeId, in_flight: u64, ops: &[Op]) -> Result<(), Failure> {
        let (done, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut asked = 0;
        while done.load(Ordering::Relaxed) < ops.len() as u64 {
            while asked < ops.len() as u64 && asked - done.load(Ordering::Relaxed) < in_flight {
                let op = ops[asked as usize].clone();
                let leader = self.placement.leader(&op).map_or(at, |member| member.id);
                let (done, failed) = (done.clone(), failed.clone());
                let heard = move |reply: Reply| {
                    if reply.is_err() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                };
                let request = Request { creds: Creds::root(), op };
                let member = self.members.get_mut(&leader).ok_or("nobody leads it")?;
                member.submit(request, Requester::Own, Box::new(heard), self.now);
                asked += 1;
            }
            if !self.carry()? {
                // Somebody waits for a while before he tries again.
                self.now += MILLISECOND;
                self.members.values_mut().for_each(|member| member.tick(self.now));
            }
        }
        while self.carry()? {}
        match failed.load(Ordering::Relaxed) {
            0 => Ok(()),
            failed => Err(format!("{failed} operations failed").into()),
        }
    }

    /// As [`Cluster::run`], and prints what it cost.
    fn measure(&mut self, operation: &str, in_flight: u64, ops: &[Op]) -> Result<(), Failure> {
        self.said = Said::default();
        let begun = Instant::now();
        self.run(1, in_flight, ops)?;
        let each = |count: u64| (count as f64 / ops.len() as f64 * 1000.0).round() / 1000.0;
        let kinds: BTreeMap<_, _> =
            self.said.kinds.iter().map(|(kind, count)| (kind, each(*count))).collect();
        println!(
            "{{\"operation\":\"{operation}\",\"nodes\":{},\"in_flight\":{in_flight},\
             \"messages\":{},\"moments\":{},\"bytes\":{},\"us\":{},\"kinds\":{kinds:?}}}",
            self.members.len(),
            each(self.said.messages),
            each(self.said.moments),
            each(self.said.bytes),
            each(begun.elapsed().as_micros() as u64),
        );
        Ok(())
    }
}

/// The top of what is made.
fn above() -> Result<Vec<Op>, Failure> {
    (0..ABOVE).map(|number| Ok(Op::MkDir(place(&format!("above{number}"))?, 0o755))).collect()
}

fn place(path: &str) -> Result<PathRef, Failure> {
    Ok(PathRef::from_path(ROOT, path.as_bytes())?)
}

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let nodes = words.next().unwrap_or("1,2,4,8,16".into());
    let depths = words.next().unwrap_or("1,256".into());
    for nodes in nodes.split(',').map(str::parse::<u32>) {
        let nodes = nodes?;
        for in_flight in depths.split(',').map(str::parse::<u64>) {
            let (in_flight, mut cluster) = (in_flight?, Cluster::new(nodes)?);
            cluster.run(1, 1, &above()?)?;
            cluster.run(1, 1, &cluster.known_by_all()?)?;
            let path = |number: u64| place(&format!("above{}/dir{number:08}", number % ABOVE));
            let made = (0..DIRS).map(|number| Ok(Op::MkDir(path(number)?, 0o755)));
            cluster.measure("mkdir", in_flight, &made.collect::<Result<Vec<_>, Failure>>()?)?;
            let removed = (0..DIRS).map(|number| Ok(Op::RmDir(path(number)?, None)));
            let removed = removed.collect::<Result<Vec<_>, Failure>>()?;
            cluster.measure("rmdir", in_flight, &removed)?;
        }
    }
    Ok(())
}
