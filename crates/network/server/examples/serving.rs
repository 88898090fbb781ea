//! What a look-up on a deep path costs a node's thread, without sockets and without a client:
//! frames are cut out of a stream, decoded, admitted, executed, answered and encoded as in a
//! server, 256 at a time. One thread, so instructions repeat:
//!
//! `perf stat -e instructions:u target/release/examples/serving DIR [ROUNDS] [NODES]` makes a
//! volume in `DIR `, which it removes again: 64 directories five levels deep with 256 files each.
//! One round looks every file up; with 0 rounds only the volume is made; that share is to be
//! subtracted. Prints nanoseconds a request. With NODES above 1 the node is one of so many that
//! share the volume, and all names are such that it leads what concerns them: no request goes to
//! the others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use kestrel_cluster::host::{Carrier, NodeHost, Undeliverable};
use kestrel_cluster::lease::LeaseMessage;
use kestrel_cluster::{ClusterNode, ClusterNodeConfig, Envelope, Message};
use kestrel_engine::Engine;
use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_meta::node::{Durability, Node, NodeConfig, RootAttr};
use kestrel_rpc::handler::Outbox;
use kestrel_server::admin::{Admin, AdminRequester};
use kestrel_server::backend::Backend;
use kestrel_server::config::SessionServerConfig;
use kestrel_server::locks::LockLimits;
use kestrel_server::server::Server;
use kestrel_types::clock::SystemClock;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::PathRef;
use kestrel_types::placement::{self, Exceptions, NodeId, PlacementMap, SlotMap};
use kestrel_types::request::{Creds, Done, Op, Request};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    Body, Call, Checksum, ClientId, Frames, Hello, ToServer, Versions, count_replies,
    decode_to_server, encode_to_server,
};

const DIRS: u64 = 64;
const FILES: u64 = 64 * 256;
const BATCH: usize = 256;

/// Counts what would be sent.
#[derive(Default)]
struct Counter {
    sends: AtomicUsize,
    replies: AtomicUsize,
}

impl Outbox for Counter {
    fn send(&self, frames: &[u8]) {
        self.replies.fetch_add(count_replies(frames), Ordering::Relaxed);
        self.sends.fetch_add(1, Ordering::Release);
    }

    fn close(&self, why: &str) {
        println!("closed: {why}");
    }
}

struct NoAdmin;

impl Admin for NoAdmin {
    fn submit(&self, _question: Box<[u8]>, asker: AdminRequester) {
        asker.answer(Ok(Box::from(*b"{}")));
    }
}

/// Names of which one node is the owner.
struct Names {
    above: Vec<String>,
    dirs: Vec<String>,
    files: Vec<String>,
}

impl Names {
    fn of(me: NodeId, placement: &PlacementMap) -> Self {
        let own = |name: &String| placement.owner_of(ROOT, name.as_bytes()).id == me;
        let names = |kind: &'static str, end: &'static str| {
            (0..).map(move |number: u64| format!("{kind}{number:08}{end}")).filter(own)
        };
        Self {
            above: names("level", "").take(4).collect(),
            dirs: names("dir", "").take(DIRS as usize).collect(),
            files: names("f", ".jpg").take(FILES as usize).collect(),
        }
    }

    fn place(&self, path: &[&str]) -> PathRef {
        let above = self.above.iter().map(String::as_str);
        let path = above.chain(path.iter().copied()).collect::<Vec<_>>().join("/");
        // Names like these are valid.
        PathRef::from_path(ROOT, path.as_bytes()).unwrap_or_else(|why| panic!("{path}: {why}"))
    }

    fn file(&self, number: u64) -> PathRef {
        self.place(&[&self.dirs[(number % DIRS) as usize], &self.files[number as usize]])
    }
}

/// No request goes to the others but for leases, which they grant.
#[derive(Default)]
struct Nobody(OnceLock<Weak<NodeHost>>);

impl Carrier for Nobody {
    fn carry(&self, to: NodeId, envelope: Envelope) -> Result<(), Box<Undeliverable>> {
        if let Message::Lease(LeaseMessage::Ask { number, .. }) = envelope.message
            && let Some(host) = self.0.get().and_then(Weak::upgrade)
        {
            let message = Message::Lease(LeaseMessage::Granted { number, sums: true });
            host.receive(Envelope { from: to, message, ..envelope });
        }
        Ok(())
    }
}

/// A node with a volume of its own, or one of several.
fn backend(
    engine: Arc<dyn Engine>,
    me: NodeId,
    placement: &PlacementMap,
) -> Result<Backend, Box<dyn std::error::Error>> {
    let root = RootAttr { mode: 0o755, uid: 0, gid: 0 };
    let node = NodeConfig {
        workers: 2,
        durability: Durability::Commit,
        serves: true,
        ..NodeConfig::default()
    };
    let clock = Arc::new(SystemClock);
    if placement.map.members().len() == 1 {
        Node::format(&*engine, root, 0)?;
        return Ok(Node::open(engine, clock, node)?.into());
    }
    ClusterNode::format(&*engine, root, 0, me, placement.clone())?;
    let config = ClusterNodeConfig {
        me,
        placement: placement.clone(),
        node,
        seed: 1,
        joining: false,
        exclusive: true,
    };
    let nobody = Arc::new(Nobody::default());
    let host = NodeHost::open(engine, clock, config, nobody.clone())?;
    nobody.0.get_or_init(|| Arc::downgrade(&host));
    while !host.lease_stats().held {
        std::thread::sleep(Duration::from_millis(1));
    }
    host.node().end_grace()?;
    Ok(host.into())
}

/// Everything that is looked up, as a client would send it.
fn frames(names: &Names) -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error>> {
    let mut batches = Vec::new();
    for first in (0..FILES).step_by(BATCH) {
        let mut bytes = Vec::new();
        for number in first..first + BATCH as u64 {
            // Neighbours in time are not neighbours in the tree.
            let op = Op::Lookup(names.file(number.wrapping_mul(7919) % FILES));
            let body = Body::Op(Request { creds: Creds::root(), op });
            let call = Call { id: number + 1, seq: 0, acked: 0, retry: false, body };
            encode_to_server(&ToServer::Call(call), Checksum::Off, &mut bytes)?;
        }
        batches.push(bytes);
    }
    Ok(batches)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = std::path::PathBuf::from(args.next().ok_or("usage: serving DIR [ROUNDS]")?);
    let rounds: u64 = args.next().map_or(Ok(20), |rounds| rounds.parse())?;
    let nodes: u32 = args.next().map_or(Ok(1), |nodes| nodes.parse())?;
    let options = EmbeddedOptions {
        sync_interval: Some(Duration::from_secs(1)),
        ..EmbeddedOptions::default()
    };
    let engine = EmbeddedEngine::open(&dir, [7; 16], options, Arc::new(|| Ok(())), &mut |_| true)?;
    let engine: Arc<dyn Engine> = Arc::new(engine);
    let members =
        (1..=nodes).map(|id| placement::Member { id, address: format!("node{id}:1") }).collect();
    let map = SlotMap::even(members)?;
    let placement = PlacementMap::new(map, Exceptions::default());
    // The one that has the root.
    let me = placement.owner_of(0, b"").id;
    let names = Names::of(me, &placement);
    let backend = backend(engine.clone(), me, &placement)?;
    let call = |op| {
        let (told, answer) = std::sync::mpsc::channel();
        let done: Done = Box::new(move |reply| drop(told.send(reply)));
        let request = Request { creds: Creds::root(), op };
        match &backend {
            Backend::Standalone(node) => node.submit(request, done),
            Backend::Member(host) => host.submit(request, done),
        }
        answer.recv()?.map_err(|why| format!("{why:?}"))?;
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    for level in 1..=names.above.len() {
        call(Op::MkDir(
            PathRef::from_path(ROOT, names.above[..level].join("/").as_bytes())?,
            0o755,
        ))?;
    }
    for dir in &names.dirs {
        call(Op::MkDir(names.place(&[dir]), 0o755))?;
    }
    for number in 0..FILES {
        call(Op::MkNod { place: names.file(number), kind: Kind::File, mode: 0o644, rdev: 0 })?;
    }
    let config = SessionServerConfig { volume: "volume".into(), ..SessionServerConfig::default() };
    let limits = LockLimits::default();
    let server =
        Server::new(backend.clone(), Arc::new(SystemClock), config, limits, Arc::new(NoAdmin), 0)?;
    let counter = Arc::new(Counter::default());
    let mut connection = server.connect(counter.clone(), Security::Loopback, "example");
    let hello = Hello {
        versions: Versions::OURS,
        volume: "volume".into(),
        client: ClientId([1; 16]),
        incarnation: 1,
        who: "example".into(),
        established: false,
        token: None,
    };
    connection.receive(&mut vec![ToServer::Hello(hello)], 0);
    // The welcome waits for the disk.
    while counter.sends.load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (batches, mut splitter, mut messages) =
        (frames(&names)?, Frames::default(), Vec::with_capacity(BATCH));
    let begun = Instant::now();
    for _ in 0..rounds {
        for bytes in &batches {
            splitter.push(bytes);
            while let Some(frame) = splitter.next_frame()? {
                messages.push(decode_to_server(frame)?);
            }
            connection.receive(&mut messages, 0);
        }
    }
    let (took, asked) = (begun.elapsed(), rounds * FILES);
    let answered = counter.replies.load(Ordering::Relaxed) as u64;
    println!(
        "{asked} asked, {answered} answered, {} ns each",
        took.as_nanos() as u64 / asked.max(1)
    );
    drop((connection, server, backend, engine));
    std::fs::remove_dir_all(&dir)?;
    if answered == asked { Ok(()) } else { Err("answers are missing".into()) }
}
