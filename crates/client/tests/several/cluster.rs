//! Several servers of one volume: to a client they are the nodes of a cluster, each with sessions,
//! opens and locks of its own, checked as the real ones are. Behind them is one node in memory, so
//! each can carry out whatever comes to it; what should not have come to it is noted.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_client::descriptor::{Descriptor, Durability, Settings};
use kestrel_client::storage::{Offer, Storage, StoreOptions};
use kestrel_client::volume::{NewVolume, format};
use kestrel_engine::memory::MemoryEngine;
use kestrel_meta::node::{self, Node, NodeConfig, Replies, RootAttr};
use kestrel_rpc::handler::{Connection, Handler, Outbox};
use kestrel_rpc::server::{ListenerConfig as SocketConfig, Serving, serve};
use kestrel_server::admin::{Admin, AdminRequester};
use kestrel_server::config::SessionServerConfig;
use kestrel_server::listen::ClockedServer;
use kestrel_server::locks::LockLimits;
use kestrel_server::server::Server;
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::{Exceptions, Member, NodeId, PlacementMap, SlotMap};
use kestrel_types::request::{Op, Outcome, Subject};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    Answered, Body, Checksum, LOCK_MISDIRECTED, Reclaim, ReplyTo, ToClient, ToServer, WireError,
    encode_to_client,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Nothing a test waits for takes longer, unless something is broken.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// What a server has heard.
#[derive(Default)]
pub struct Notes {
    pub hellos: Mutex<u64>,
    pub ops: Mutex<Vec<Op>>,
    pub locks: Mutex<Vec<InodeId>>,
    pub reclaims: Mutex<Vec<Reclaim>>,
    /// What the last Ping said of objects.
    pub oldest: Mutex<Option<u64>>,
    /// What another server should have been asked.
    pub astray: Mutex<Vec<String>>,
    /// Files that this server says it does not know, unless it is their home.
    pub strange: Mutex<Vec<InodeId>>,
    /// The table it has, if that is another one than the client was mounted with: what another node
    /// leads by it is refused.
    pub present: Mutex<Option<PlacementMap>>,
    /// What it refused so.
    pub misdirected: Mutex<u64>,
}

impl Notes {
    /// What it was asked since the last look.
    pub fn take(&self) -> Vec<Op> {
        std::mem::take(&mut self.ops.lock())
    }
}

/// A server, or the place where it was.
pub struct Served {
    pub node: NodeId,
    pub notes: Arc<Notes>,
    /// The port stays ours while nobody serves.
    listener: TcpListener,
    serving: Option<Serving>,
}

impl Served {
    pub fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }
}

/// A volume and its servers.
pub struct Cluster {
    _dir: TempDir,
    metadata: Arc<Node>,
    pub offer: Offer,
    pub table: PlacementMap,
    pub served: Vec<Served>,
}

impl Cluster {
    /// Three servers. Slots go round, so that files that are made one after the other have
    /// different homes.
    pub fn start() -> Self {
        let mut cluster = Self::of(3);
        cluster.offer.placement = Some(hex(&cluster.table));
        (0..3).for_each(|at| cluster.serve(at));
        cluster
    }

    /// A volume with one server, and no table.
    pub fn of_one() -> Self {
        let mut cluster = Self::of(1);
        cluster.served[0].node = 0;
        cluster.serve(0);
        cluster
    }

    /// Nobody serves yet.
    pub fn of(count: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings {
            name: "vol".into(),
            storage: None,
            block_bytes: 64 * 1024,
            inline_max: 1024,
            durability: Durability::Commit,
            grace_seconds: 60,
            atime: Default::default(),
        };
        let place = dir.path().join("vol");
        let new = NewVolume {
            settings,
            compression: Default::default(),
            encrypt_with: None,
            registry: None,
            metadata: None,
            force: false,
        };
        let descriptor: Descriptor =
            format(place.to_str().unwrap(), new, &StoreOptions::default()).unwrap();
        let storage = Storage::open(&place, &descriptor, &StoreOptions::default()).unwrap();
        let offer = Offer::new(&descriptor, &storage).unwrap();
        let engine = Arc::new(MemoryEngine::default());
        Node::format(&*engine, RootAttr { mode: 0o777, uid: 0, gid: 0 }, SECOND).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let config = NodeConfig {
            workers: 2,
            durability: node::Durability::Commit,
            serves: true,
            replies: Replies::Inline,
            ..NodeConfig::default()
        };
        let metadata = Node::open(engine, clock, config).unwrap();
        let served: Vec<Served> = (1..=count)
            .map(|node| Served {
                node,
                notes: Arc::default(),
                listener: TcpListener::bind("127.0.0.1:0").unwrap(),
                serving: None,
            })
            .collect();
        let members =
            served.iter().map(|served| Member { id: served.node, address: served.address() });
        let map = SlotMap::new(members.collect(), |slot| 1 + u32::from(slot) % count).unwrap();
        let table = PlacementMap::new(map, Exceptions::default());
        Self { _dir: dir, metadata, offer, table, served }
    }

    /// Starts the server of a node, which knows nothing but which clients there were.
    pub fn serve(&mut self, at: usize) {
        let node = self.served[at].node;
        self.serve_as(at, node);
    }

    /// The same, but it says that it is another.
    pub fn serve_as(&mut self, at: usize, node: NodeId) {
        let config = SessionServerConfig {
            volume: "vol".into(),
            descriptor: self.offer.to_json().into(),
            node,
            lease: 6 * SECOND,
            grace: SECOND,
            ..SessionServerConfig::default()
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (limits, admin) =
            (LockLimits::default(), Arc::new(Echo(node, self.served[at].notes.clone())));
        let server = Server::new(self.metadata.clone(), clock, config, limits, admin, 0).unwrap();
        let served = &mut self.served[at];
        let door = Arc::new(Recording {
            door: ClockedServer::new(server, Instant::now()),
            notes: served.notes.clone(),
            node,
            table: self.offer.placement.is_some().then(|| self.table.clone()),
        });
        let listener = served.listener.try_clone().unwrap();
        let sockets = SocketConfig { threads: 1, ..SocketConfig::default() };
        served.serving = Some(serve(listener, door, sockets).unwrap());
    }

    /// Ends it without a word.
    pub fn kill(&mut self, at: usize) {
        self.served[at].serving = None;
    }

    pub fn restart(&mut self, at: usize) {
        self.kill(at);
        self.serve(at);
    }

    /// URL of the volume at one of its servers.
    pub fn url(&self, at: usize) -> String {
        format!("kestrel://{}/vol", self.served[at].address())
    }

    pub fn notes(&self, at: usize) -> &Notes {
        &self.served[at].notes
    }

    /// Expects that every server was asked for what it leads, and nothing else.
    pub fn check(&self) {
        for served in &self.served {
            let astray = served.notes.astray.lock();
            assert!(astray.is_empty(), "node {}: {astray:?}", served.node);
        }
    }

    /// One more server, which no table has yet.
    pub fn add(&mut self) -> Member {
        let node = self.served.len() as u32 + 1;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.served.push(Served { node, notes: Arc::default(), listener, serving: None });
        Member { id: node, address: self.served[node as usize - 1].address() }
    }

    /// The nodes at these places have this table from now on.
    pub fn place(&self, table: &PlacementMap, places: impl IntoIterator<Item = usize>) {
        places.into_iter().for_each(|at| *self.notes(at).present.lock() = Some(table.clone()));
    }

    /// Requests that were refused because another node leads them.
    pub fn misdirected(&self) -> u64 {
        self.served.iter().map(|served| *served.notes.misdirected.lock()).sum()
    }

    /// Forgets what they heard.
    pub fn forget(&self) {
        for served in &self.served {
            served.notes.take();
            served.notes.locks.lock().clear();
            served.notes.reclaims.lock().clear();
        }
    }

    /// The place of the node that owns the entry of a name in the root.
    pub fn owner(&self, name: &str) -> usize {
        self.table.owner_of(kestrel_types::ids::ROOT, name.as_bytes()).id as usize - 1
    }

    /// The place of the node that is the home of a file.
    pub fn home(&self, ino: InodeId) -> usize {
        self.table.home_of(ino).id as usize - 1
    }

    /// A name with an entry that the node at this place owns; different ones for different numbers.
    pub fn name_at(&self, at: usize, number: usize) -> String {
        (0..)
            .map(|n| format!("file-{n}"))
            .filter(|name| self.owner(name) == at)
            .nth(number)
            .unwrap()
    }
}

pub fn hex(table: &PlacementMap) -> String {
    table.encode().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Answers every question with the number of its node, but for that for its table if it has a newer
/// one.
struct Echo(NodeId, Arc<Notes>);

impl Admin for Echo {
    fn submit(&self, question: Box<[u8]>, asker: AdminRequester) {
        let question: Value = serde_json::from_slice(&question).unwrap();
        if question["verb"] == "table"
            && let Some(table) = &*self.1.present.lock()
        {
            // In parts.
            let (all, from) = (hex(table), 2 * question["from"].as_u64().unwrap() as usize);
            let part = &all[from..all.len().min(from + 4000)];
            let answer = json!({ "version": table.version, "bytes": all.len() / 2, "part": part });
            return asker.answer(Ok(answer.to_string().into_bytes().into()));
        }
        assert!(asker.event(b"\"working\""));
        asker.answer(Ok(self.0.to_string().into_bytes().into()));
    }
}

/// A server that notes which client comes with what.
struct Recording {
    door: ClockedServer,
    notes: Arc<Notes>,
    node: NodeId,
    table: Option<PlacementMap>,
}

struct Visitor {
    inner: Box<dyn Connection>,
    outbox: Arc<dyn Outbox>,
    notes: Arc<Notes>,
    node: NodeId,
    table: Option<PlacementMap>,
}

impl Handler for Recording {
    fn connect(
        &self,
        peer: SocketAddr,
        security: Security,
        outbox: Arc<dyn Outbox>,
    ) -> Box<dyn Connection> {
        let inner = self.door.connect(peer, security, outbox.clone());
        let (notes, table) = (self.notes.clone(), self.table.clone());
        Box::new(Visitor { inner, outbox, notes, node: self.node, table })
    }

    fn tick(&self) -> Duration {
        self.door.tick()
    }
}

impl Connection for Visitor {
    fn receive(&mut self, batch: &mut Vec<ToServer>) {
        batch.retain(|message| !self.note(message));
        self.inner.receive(batch);
    }

    fn refuse(&mut self, error: &WireError) {
        panic!("the client sent {error}");
    }

    fn closed(self: Box<Self>) {
        self.inner.closed();
    }
}

impl Visitor {
    /// Notes a message; whether it has been answered.
    fn note(&self, message: &ToServer) -> bool {
        match message {
            ToServer::Hello(_) => *self.notes.hellos.lock() += 1,
            ToServer::Ping { oldest_open_object } => {
                *self.notes.oldest.lock() = Some(*oldest_open_object);
            }
            ToServer::Call(call) => match &call.body {
                Body::Op(request) => {
                    let leader =
                        |table: &PlacementMap| table.leader(&request.op).map(|member| member.id);
                    if let Some(version) = self.leads_not(leader) {
                        let reply = Err(Outcome::Misdirected { table: version });
                        self.answer(call.id, version, Answered::Op(reply));
                        return true;
                    }
                    return self.note_op(call.id, &request.op);
                }
                Body::Lock(request) => {
                    let home = |table: &PlacementMap| Some(table.home_of(request.ino()).id);
                    if let Some(version) = self.leads_not(home) {
                        let why = FsError::new(LOCK_MISDIRECTED, "another node keeps this");
                        self.answer(call.id, version, Answered::Lock(Err(why)));
                        return true;
                    }
                    self.expect(
                        self.table.as_ref().map(|table| table.home_of(request.ino()).id),
                        request,
                    );
                    self.notes.locks.lock().push(request.ino());
                }
                Body::Reclaim(reclaim) => self.notes.reclaims.lock().push(reclaim.clone()),
                Body::Admin(_) => {}
            },
            ToServer::Cancel { .. } | ToServer::Bye => {}
            ToServer::PeerHello(_)
            | ToServer::PeerProof(_)
            | ToServer::Peer(_)
            | ToServer::Proof(_) => {
                panic!("a client speaks as a node")
            }
        }
        false
    }

    fn note_op(&self, call: u64, op: &Op) -> bool {
        let leader = self.table.as_ref().and_then(|table| table.leader(op)).map(|member| member.id);
        self.notes.ops.lock().push(op.clone());
        let home = |ino| self.table.as_ref().map(|table| table.home_of(ino).id);
        if let Subject::Inode(inode) = op.subject()
            && self.notes.strange.lock().contains(&inode.ino)
            && home(inode.ino) != Some(self.node)
        {
            let answered = Answered::Op(Err(FsError::new(libc::ESTALE, "not known here").into()));
            self.answer(call, 1, answered);
            return true;
        }
        self.expect(leader, op);
        false
    }

    fn answer(&self, id: u64, table: u64, answered: Answered) {
        let mut frame = Vec::new();
        let reply = ToClient::Reply(ReplyTo { id, table, answered });
        encode_to_client(&reply, Checksum::Off, &mut frame).unwrap();
        self.outbox.send(&frame);
    }

    /// The version of the node's newer table, if by that another one leads something.
    fn leads_not(&self, leader: impl FnOnce(&PlacementMap) -> Option<NodeId>) -> Option<u64> {
        let present = self.notes.present.lock();
        let table = present.as_ref()?;
        let elsewhere = leader(table).is_some_and(|leader| leader != self.node);
        *self.notes.misdirected.lock() += u64::from(elsewhere);
        elsewhere.then_some(table.version)
    }

    fn expect(&self, leader: Option<NodeId>, what: &impl std::fmt::Debug) {
        if let Some(leader) = leader
            && leader != self.node
            && self.notes.present.lock().is_none()
        {
            self.notes.astray.lock().push(format!("node {leader} leads {what:?}"));
        }
    }
}

/// Waits for something that will come.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < DEADLINE, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
