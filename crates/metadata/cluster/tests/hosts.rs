//! Members with threads around them: several in one process, messages carried from thread to
//! thread.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use kestrel_cluster::host::{Carrier, NodeHost, Undeliverable};
use kestrel_cluster::{ClusterNode, ClusterNodeConfig, Envelope};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, NodeConfig, ReplySink, RootAttr};
use kestrel_meta::txn::Origin;
use kestrel_model::code as errno;
use kestrel_types::clock::{SECOND, SystemClock};
use kestrel_types::inode::Kind;
use kestrel_types::name::PathRef;
use kestrel_types::placement::{Exceptions, Member as MapMember, NodeId, PlacementMap, SlotMap};
use kestrel_types::request::{Answer, Creds, Op, Outcome, RenameFlags, Reply, Request};
use kestrel_types::wire::{ClientId, TooLarge};
use parking_lot::{Mutex, RwLock};

const NODES: u32 = 3;

/// Hands envelopes to the hosts themselves, on the thread that sends them. Every so many are lost,
/// if that is set.
#[derive(Default)]
struct Wire {
    hosts: RwLock<BTreeMap<NodeId, Weak<NodeHost>>>,
    carried: AtomicU64,
    loses_every: AtomicU64,
    /// Messages of this kind are too large.
    too_large: Mutex<Option<&'static str>>,
}

impl Carrier for Wire {
    fn carry(&self, to: NodeId, envelope: Envelope) -> Result<(), Box<Undeliverable>> {
        if self
            .too_large
            .lock()
            .is_some_and(|kind| format!("{:?}", envelope.message).starts_with(kind))
        {
            return Err(Box::new(Undeliverable {
                envelope,
                why: TooLarge("the length of the message"),
            }));
        }
        let number = self.carried.fetch_add(1, Ordering::Relaxed);
        let every = self.loses_every.load(Ordering::Relaxed);
        let host = self.hosts.read().get(&to).and_then(Weak::upgrade);
        if let Some(host) = host.filter(|_| every == 0 || !number.is_multiple_of(every)) {
            host.receive(envelope);
        }
        Ok(())
    }
}

struct Cluster {
    hosts: BTreeMap<NodeId, Arc<NodeHost>>,
    wire: Arc<Wire>,
    placement: PlacementMap,
}

impl Cluster {
    fn new() -> Self {
        let members =
            (1..=NODES).map(|id| MapMember { id, address: format!("node-{id}") }).collect();
        let map = SlotMap::even(members).unwrap();
        let placement = PlacementMap::new(map, Exceptions::default());
        let (wire, mut hosts) = (Arc::new(Wire::default()), BTreeMap::new());
        for me in 1..=NODES {
            let engine = Arc::new(MemoryEngine::new(SyncWhen::Asked));
            let root = RootAttr { mode: 0o777, uid: 0, gid: 0 };
            ClusterNode::format(&*engine, root, SECOND, me, placement.clone()).unwrap();
            let node = NodeConfig {
                workers: 2,
                durability: Durability::Commit,
                serves: true,
                ..NodeConfig::default()
            };
            let config = ClusterNodeConfig {
                me,
                placement: placement.clone(),
                node,
                seed: u64::from(me),
                joining: false,
                exclusive: true,
            };
            let host = NodeHost::open(engine, Arc::new(SystemClock), config, wire.clone()).unwrap();
            host.node().end_grace().unwrap();
            wire.hosts.write().insert(me, Arc::downgrade(&host));
            hosts.insert(me, host);
        }
        Self { hosts, wire, placement }
    }

    fn leader(&self, op: &Op) -> &Arc<NodeHost> {
        &self.hosts[&self.placement.leader(op).map_or(1, |member| member.id)]
    }

    fn ask(&self, op: Op, origin: Option<Origin>) -> Reply {
        ask_at(self.leader(&op), op, origin)
    }

    fn names(&self, dir: u64) -> Vec<String> {
        let list = Op::ReadDir { dir, after: None, limit: 10_000, check: true };
        let Ok(Answer::Entries { entries, end: true, .. }) = self.ask(list, None) else {
            panic!("no listing")
        };
        entries
            .iter()
            .map(|entry| String::from_utf8_lossy(entry.name.as_bytes()).into_owned())
            .collect()
    }
}

/// One that waits for one reply.
struct Waits(Mutex<Sender<Reply>>);

impl ReplySink for Waits {
    fn complete(&self, _number: usize, reply: Reply) {
        self.0.lock().send(reply).unwrap();
    }
}

fn ask_at(host: &NodeHost, op: Op, origin: Option<Origin>) -> Reply {
    let (sender, replies) = channel();
    let request = Request { creds: Creds::root(), op };
    host.submit_batch(vec![(request, origin)], &Arc::new(Waits(Mutex::new(sender))));
    replies.recv_timeout(Duration::from_secs(60)).expect("an answer within a minute")
}

fn at(path: &str) -> PathRef {
    PathRef::from_path(1, path.as_bytes()).unwrap()
}

fn mknod(path: &str) -> Op {
    Op::MkNod { place: at(path), kind: Kind::File, mode: 0o644, rdev: 0 }
}

/// A cluster member refuses and counts what a session sends to it in error.
#[test]
fn misdirected_requests_of_sessions() {
    let cluster = Cluster::new();
    let op = mknod("somewhere");
    let leader = cluster.placement.leader(&op).unwrap().id;
    let other = cluster.hosts.keys().find(|id| **id != leader).unwrap();
    let reply = ask_at(&cluster.hosts[other], op.clone(), None);
    assert_eq!(reply, Err(Outcome::Misdirected { table: 1 }));
    assert_eq!(cluster.hosts[other].stats().misdirected, 1);
    assert_eq!(errno(&cluster.ask(op, None)), 0);
    // What the node itself wants goes where it is led.
    let (sender, replies) = channel();
    let request = Request { creds: Creds::root(), op: Op::Unlink(at("somewhere")) };
    let done = Box::new(move |reply| sender.send(reply).unwrap());
    cluster.hosts[other].submit(request, done);
    assert_eq!(errno(&replies.recv_timeout(Duration::from_secs(60)).unwrap()), 0);
}

/// Many threads work in the same directories, and none of them hangs.
#[test]
fn threads_in_the_same_directories() {
    let cluster = Cluster::new();
    for dir in ["left", "right"] {
        assert_eq!(errno(&cluster.ask(Op::MkDir(at(dir), 0o777), None)), 0);
    }
    let (threads, each) = (8, 60);
    thread::scope(|scope| {
        for thread in 0..threads {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut seq = 0;
                let mut ask = |op: Op| {
                    seq += 1;
                    let client = ClientId([thread as u8 + 1; 16]);
                    let origin = op.is_numbered().then_some(Origin { client, seq, retry: false });
                    errno(&cluster.ask(op, origin))
                };
                for number in 0..each {
                    let name = format!("f{thread}-{number}");
                    assert_eq!(ask(mknod(&format!("left/{name}"))), 0);
                    let (from, to) = (format!("left/{name}"), format!("right/{name}"));
                    assert_eq!(ask(Op::Rename(at(&from), at(&to), RenameFlags::default())), 0);
                    if number % 10 == 0 {
                        let names = cluster.names(1);
                        assert!(names.contains(&"left".to_owned()), "{names:?}");
                        assert_eq!(
                            ask(Op::MkDir(at(&format!("left/d{thread}-{number}")), 0o777)),
                            0
                        );
                    }
                    assert_eq!(ask(Op::Lookup(at(&to))), 0);
                    if number % 3 == 0 {
                        assert_eq!(ask(Op::Unlink(at(&to))), 0);
                    }
                }
            });
        }
    });
    let dirs = |path: &str| match cluster.ask(Op::Lookup(at(path)), None) {
        Ok(Answer::Entry { inode, .. }) => inode.ino,
        other => panic!("{other:?}"),
    };
    assert_eq!(cluster.names(dirs("right")).len(), threads * (each - each / 3));
    assert_eq!(cluster.names(dirs("left")).len(), threads * each / 10);
    let until = Instant::now() + Duration::from_secs(30);
    while !cluster.hosts.values().all(|host| host.is_idle()) {
        assert!(Instant::now() < until, "something stays under way");
        thread::sleep(Duration::from_millis(10));
    }
    let handed_back: u64 = cluster.hosts.values().map(|host| host.stats().handed_back).sum();
    assert!(handed_back > 0, "nothing concerned several nodes");
    for host in cluster.hosts.values() {
        host.close().unwrap();
    }
}

/// A reply may send the next request, and lost messages are sent again.
#[test]
fn chained_requests_over_lost_messages() {
    let cluster = Arc::new(Cluster::new());
    cluster.wire.loses_every.store(7, Ordering::Relaxed);
    let (sender, finished) = channel();
    for chain in 0..4 {
        next(&cluster, chain, 0, sender.clone());
    }
    for _ in 0..4 {
        assert_eq!(finished.recv_timeout(Duration::from_secs(120)), Ok(0));
    }
}

/// Makes a directory; when that is done, another one.
fn next(cluster: &Arc<Cluster>, chain: u32, step: u32, sender: Sender<i32>) {
    struct Chain(Arc<Cluster>, u32, u32, Mutex<Option<Sender<i32>>>, AtomicUsize);
    impl ReplySink for Chain {
        fn complete(&self, _number: usize, reply: Reply) {
            assert_eq!(self.4.fetch_add(1, Ordering::Relaxed), 0, "two replies to one request");
            let sender = self.3.lock().take().unwrap();
            if errno(&reply) != 0 || self.2 == 11 {
                sender.send(errno(&reply)).unwrap();
            } else {
                next(&self.0, self.1, self.2 + 1, sender);
            }
        }
    }
    let op = match step % 3 {
        0 => Op::MkDir(at(&format!("d{chain}-{step}")), 0o755),
        1 => Op::Rename(
            at(&format!("d{chain}-{}", step - 1)),
            at(&format!("e{chain}-{}", step - 1)),
            RenameFlags::default(),
        ),
        _ => Op::RmDir(at(&format!("e{chain}-{}", step - 2)), None),
    };
    let host = cluster.leader(&op).clone();
    let sink = Chain(cluster.clone(), chain, step, Mutex::new(Some(sender)), AtomicUsize::new(0));
    host.submit_batch(vec![(Request { creds: Creds::root(), op }, None)], &Arc::new(sink));
}

/// A request that needs a message that is too large fails at once.
#[test]
fn request_with_a_too_large_message() {
    let cluster = Cluster::new();
    assert_eq!(errno(&cluster.ask(Op::MkDir(at("dir"), 0o777), None)), 0);
    let rename = || {
        let (from, to) = ("dir".to_owned(), "dir2".to_owned());
        cluster.ask(Op::Rename(at(&from), at(&to), RenameFlags::default()), None)
    };
    for kind in ["Borrow", "Lent", "Prepare", "Invalidate("] {
        *cluster.wire.too_large.lock() = Some(kind);
        let asked = Instant::now();
        assert_eq!(errno(&rename()), libc::EFBIG, "{kind}");
        assert!(asked.elapsed() < Duration::from_secs(5), "{kind}");
    }
    *cluster.wire.too_large.lock() = None;
    assert_eq!(errno(&rename()), 0);
}

#[test]
fn tables_change_while_many_threads_work() {
    let cluster = Arc::new(Cluster::new());
    // As a client: asks again by the newest table.
    let ask = |cluster: &Cluster, op: Op| {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            let tables = cluster.hosts.values().map(|host| host.placement());
            let table = tables.max_by_key(|table| table.version).unwrap();
            let leader = table.leader(&op).map_or(1, |member| member.id);
            match ask_at(&cluster.hosts[&leader], op.clone(), None) {
                Err(Outcome::Misdirected { .. }) => thread::sleep(Duration::from_millis(2)),
                reply => return reply,
            }
        }
        panic!("nobody leads {op:?}");
    };
    assert_eq!(errno(&ask(&cluster, Op::MkDir(at("dir"), 0o777))), 0);
    let over = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let (cluster, over) = (cluster.clone(), over.clone());
            thread::spawn(move || {
                let mut names = Vec::new();
                for step in 0.. {
                    let (made, kept) =
                        (format!("dir/a{worker}-{step}"), format!("dir/b{worker}-{step}"));
                    assert_eq!(errno(&ask(&cluster, mknod(&made))), 0, "{made}");
                    if step % 2 == 0 {
                        let rename = Op::Rename(at(&made), at(&kept), RenameFlags::default());
                        assert_eq!(errno(&ask(&cluster, rename)), 0, "{made}");
                        names.push(kept);
                    } else {
                        assert_eq!(errno(&ask(&cluster, Op::Unlink(at(&made)))), 0, "{made}");
                    }
                    if over.load(Ordering::Relaxed) > 0 {
                        break;
                    }
                }
                names
            })
        })
        .collect();
    for _ in 0..5 {
        let present = cluster.hosts[&1].placement();
        let map = SlotMap::new(present.map.members().to_vec(), |slot| {
            if slot % 3 == 0 {
                present.map.owner(slot).id % NODES + 1
            } else {
                present.map.owner(slot).id
            }
        });
        let next = PlacementMap { version: present.version + 1, map: map.unwrap(), ..present };
        let (sender, ended) = channel();
        cluster.hosts[&1].change(next, Box::new(move |result| sender.send(result).unwrap()));
        ended.recv_timeout(Duration::from_secs(60)).expect("an end within a minute").unwrap();
    }
    over.store(1, Ordering::Relaxed);
    let mut names: Vec<String> =
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    names.sort();
    let Ok(Answer::Entry { inode, .. } | Answer::Inode(inode)) =
        ask(&cluster, Op::Lookup(at("dir")))
    else {
        panic!("no directory")
    };
    let list = Op::ReadDir { dir: inode.ino, after: None, limit: 10_000, check: true };
    let Ok(Answer::Entries { entries, end: true, .. }) = ask(&cluster, list) else {
        panic!("no listing")
    };
    let listed = entries
        .iter()
        .map(|entry| format!("dir/{}", String::from_utf8_lossy(entry.name.as_bytes())));
    assert_eq!(listed.collect::<Vec<_>>(), names);
}
