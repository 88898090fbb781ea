//! Instructions of one operation at a node, in batches as a server makes them, by callgrind:
//!
//! ```sh
//! cargo build --release -p kestrel-meta --example op_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='op_cost::measured*' \
//!     target/release/examples/op_cost lookup 20000
//! ```
//!
//! prints the instructions of 20,000 operations (`Collected`). Kinds: `lookup`, `open`, `stat`,
//! `create`, `unlink`. The engine is in memory, the node has one worker, files lie three
//! directories deep, and the caller is no superuser. `op_cost create 20000 10` has the files lie
//! ten directories deep, and with the word `quotas` after that each of these directories, and the
//! caller, has a quota. To compare two builds run both.

use std::sync::Arc;

use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, Node, NodeConfig, RootAttr};
use kestrel_types::clock::{SECOND, SystemClock};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::quota::{QuotaLimits, QuotaSubject};
use kestrel_types::request::{Answer, Creds, Done, Op, OpenFlags, Reply, Request};

/// Requests in a batch.
const BATCH: usize = 32;

type Requests = Vec<(Request, Done)>;

fn fail(why: &str) -> ! {
    eprintln!("op_cost: {why}");
    std::process::exit(1);
}

/// What is counted.
#[inline(never)]
fn measured(node: &Arc<Node>, requests: Requests) {
    node.submit_many(requests);
}

fn user() -> Creds {
    Creds { uid: 1000, gid: 1000, groups: Some([1000, 2000].into()) }
}

fn dir_name(level: usize) -> String {
    format!("dir{level}")
}

fn place(file: usize, depth: usize) -> PathRef {
    let mut path: String = (0..depth).map(|level| dir_name(level) + "/").collect();
    path += &format!("file{file:08}");
    PathRef::from_path(1, path.as_bytes()).unwrap_or_else(|_| fail("a bad path"))
}

fn request(op: Op) -> (Request, Done) {
    let done: Done = Box::new(|reply: Reply| {
        if let Err(why) = reply {
            fail(&format!("a request failed: {why:?}"));
        }
    });
    (Request { creds: user(), op }, done)
}

fn create(place: PathRef) -> Op {
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    Op::Create { place, mode: 0o644, flags, exclusive: true }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(kind), Some(Ok(count))) = (args.next(), args.next().map(|text| text.parse())) else {
        fail("usage: op_cost KIND COUNT [DEPTH [quotas]]")
    };
    let (count, depth): (usize, _) = (count, args.next().map_or(Ok(3), |text| text.parse()));
    let Ok(depth) = depth else { fail("DEPTH is a number") };
    let with_quotas = args.next().is_some_and(|word| word == "quotas");
    let place = |file| place(file, depth);
    let engine = Arc::new(MemoryEngine::new(SyncWhen::Asked));
    let root = RootAttr { mode: 0o777, uid: 0, gid: 0 };
    let config = NodeConfig { workers: 1, durability: Durability::Fsync, ..NodeConfig::default() };
    let formatted = Node::format(&*engine, root, SECOND);
    let opened = Node::open(engine, Arc::new(SystemClock), config);
    let (Ok(_), Ok(node)) = (formatted, opened) else { fail("the volume does not open") };
    let node = Arc::new(node);
    let mut dir = 1;
    let limit = |of| {
        let limits =
            QuotaLimits { bytes: Some(1 << 40), files: Some(1 << 40), ..Default::default() };
        let request = Request { creds: Creds::root(), op: Op::QuotaSet(of, Box::new(limits)) };
        if let Err(why) = node.call(request) {
            fail(&format!("quota: {why:?}"));
        }
    };
    for name in (0..depth).map(dir_name) {
        let place = PathRef::new(dir, Name::new(name.as_bytes()).unwrap_or_else(|_| fail(&name)));
        match node.call(Request { creds: user(), op: Op::MkDir(place, 0o755) }) {
            Ok(Answer::Entry { inode, .. }) => dir = inode.ino,
            other => fail(&format!("mkdir: {other:?}")),
        }
        if with_quotas {
            limit(QuotaSubject::Dir(dir));
        }
    }
    if with_quotas {
        limit(QuotaSubject::User(user().uid));
    }
    let mut inodes = Vec::new();
    for file in 0..if kind == "create" { BATCH } else { count } {
        match node.call(Request { creds: user(), op: create(place(file)) }) {
            Ok(Answer::Opened { inode, .. }) => inodes.push(inode.ino),
            other => fail(&format!("create: {other:?}")),
        }
    }
    let read = OpenFlags { read: true, ..OpenFlags::default() };
    let op = |file: usize| match kind.as_str() {
        "lookup" => Op::Lookup(place(file)),
        "open" => Op::OpenAt(place(file), read),
        "stat" => {
            let seen = Some((dir, place(file).name));
            Op::GetAttr(InodeRef { ino: inodes[file], seen })
        }
        "create" => create(place(file + BATCH)),
        "unlink" => Op::Unlink(place(file)),
        _ => fail("kinds are lookup, open, stat, create, unlink"),
    };
    for first in (0..count).step_by(BATCH) {
        let last = (first + BATCH).min(count);
        measured(&node, (first..last).map(|file| request(op(file))).collect());
    }
}
