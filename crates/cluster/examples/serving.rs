//! What a look-up on a deep path costs a node's thread, without sockets and without a client: frames are cut out of a stream,
//! decoded, admitted, executed, answered and encoded as in a server, 256 at a time. One thread, so instructions repeat:
//!
//! `perf stat -e instructions:u target/release/examples/serving DIR [ROUNDS]` makes a volume in `DIR`, which it removes again: 64
//! directories five levels deep with 256 files each. One round looks every file up; with 0 rounds only the volume is made,
//! whose share is to be subtracted. Prints nanoseconds a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kestrel_cluster::admin::{Admin, Asker};
use kestrel_cluster::config::ServerConfig;
use kestrel_cluster::locks::LockLimits;
use kestrel_cluster::server::Server;
use kestrel_meta::engine::Engine;
use kestrel_meta::engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_meta::node::{Durability, Node, NodeConfig, RootAttr};
use kestrel_net::handler::Outbox;
use kestrel_types::clock::SystemClock;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::{Name, Place};
use kestrel_types::request::{Creds, Op, Request};
use kestrel_types::wire::{
    Body, Call, Checksum, ClientId, Frames, Hello, ToServer, Versions, count_replies, decode_to_server,
    encode_to_server,
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
    fn submit(&self, _question: Box<[u8]>, asker: Asker) {
        asker.answer(Ok(Box::from(*b"{}")));
    }
}

fn place(number: u64) -> Place {
    let path = format!("datasets/imagenet/train/level3/dir{}/f{number:08}.jpg", number % DIRS);
    // Names like these are valid.
    Place::from_path(ROOT, path.as_bytes()).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// Everything that is looked up, as a client would send it.
fn frames() -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error>> {
    let mut batches = Vec::new();
    for first in (0..FILES).step_by(BATCH) {
        let mut bytes = Vec::new();
        for number in first..first + BATCH as u64 {
            // Neighbours in time are not neighbours in the tree.
            let op = Op::Lookup(place(number.wrapping_mul(7919) % FILES));
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
    let options =
        EmbeddedOptions { sync_interval: Some(Duration::from_secs(1)), ..EmbeddedOptions::default() };
    let engine = EmbeddedEngine::open(&dir, [7; 16], options, Arc::new(|| Ok(())), &mut |_| true)?;
    let engine: Arc<dyn Engine> = Arc::new(engine);
    Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, 0)?;
    let config =
        NodeConfig { workers: 2, durability: Durability::Fsync, serves: true, ..NodeConfig::default() };
    let node = Node::open(engine.clone(), Arc::new(SystemClock), config)?;
    let call = |op| match node.call(Request { creds: Creds::root(), op }) {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("{why:?}")),
    };
    let mut above = Place::from_path(ROOT, b"datasets")?;
    for below in [&b"imagenet"[..], b"train", b"level3"] {
        call(Op::MkDir(above.clone(), 0o755))?;
        above.dirs.push(&above.name);
        above.name = Name::new(below)?;
    }
    call(Op::MkDir(above.clone(), 0o755))?;
    for number in 0..DIRS {
        let name = Name::new(format!("dir{number}").as_bytes())?;
        let mut dir = Place { name, ..above.clone() };
        dir.dirs.push(&above.name);
        call(Op::MkDir(dir, 0o755))?;
    }
    for number in 0..FILES {
        call(Op::MkNod { place: place(number), kind: Kind::File, mode: 0o644, rdev: 0 })?;
    }
    let config = ServerConfig { volume: "volume".into(), ..ServerConfig::default() };
    let limits = LockLimits::default();
    let server = Server::new(node.clone(), Arc::new(SystemClock), config, limits, Arc::new(NoAdmin), 0)?;
    let counter = Arc::new(Counter::default());
    let mut connection = server.connect(counter.clone(), Checksum::Off, "example");
    let hello = Hello {
        versions: Versions::OURS,
        volume: "volume".into(),
        client: ClientId([1; 16]),
        incarnation: 1,
        who: "example".into(),
        established: false,
    };
    connection.receive(&mut vec![ToServer::Hello(hello)], 0);
    // The welcome waits for the disk.
    while counter.sends.load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (batches, mut splitter, mut messages) = (frames()?, Frames::default(), Vec::with_capacity(BATCH));
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
    println!("{asked} asked, {answered} answered, {} ns each", took.as_nanos() as u64 / asked.max(1));
    drop((connection, server, node, engine));
    std::fs::remove_dir_all(&dir)?;
    if answered == asked { Ok(()) } else { Err("answers are missing".into()) }
}
