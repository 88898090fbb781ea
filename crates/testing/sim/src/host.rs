//! The metadata node's machine: disk, process, connections.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kestrel_engine::Engine;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, Node, NodeConfig, Replies, RootAttr};
use kestrel_rpc::handler::Outbox;
use kestrel_server::admin::{Admin, AdminRequester};
use kestrel_server::config::{Access, SessionServerConfig};
use kestrel_server::connection::Connection;
use kestrel_server::locks::LockLimits;
use kestrel_server::server::Server;
use kestrel_types::clock::{Clock, ManualClock, Nanos, SECOND};
use kestrel_types::security::Security;
use kestrel_types::token::TokenRecord;
use kestrel_types::wire::{ClientId, Frames, ToServer, decode_to_server};
use parking_lot::Mutex;

/// The lease of the simulated server.
pub const LEASE: Nanos = 3 * SECOND;

/// Name of the simulated volume.
pub const VOLUME: &str = "sim";

/// What the server does to a connection.
#[derive(Debug)]
pub enum Out {
    /// Bytes leave.
    Frames(Vec<u8>),
    /// It is closed.
    Close,
}

/// Messages that the server's connections have sent and that are not taken yet.
pub type Outgoing = Arc<Mutex<VecDeque<(u64, Out)>>>;

struct SimOutbox {
    connection: u64,
    outgoing: Outgoing,
    /// The process lives. One that has crashed sends nothing.
    alive: Arc<AtomicBool>,
}

impl SimOutbox {
    fn put(&self, out: Out) {
        if self.alive.load(Ordering::Relaxed) {
            self.outgoing.lock().push_back((self.connection, out));
        }
    }
}

impl Outbox for SimOutbox {
    fn send(&self, frames: &[u8]) {
        self.put(Out::Frames(frames.to_vec()));
    }

    fn close(&self, _why: &str) {
        self.put(Out::Close);
    }
}

struct NoAdmin;

impl Admin for NoAdmin {
    fn submit(&self, _question: Box<[u8]>, asker: AdminRequester) {
        asker.answer(Ok(Box::from(*b"{}")));
    }
}

/// The process.
struct Process {
    server: Arc<Server>,
    node: Arc<Node>,
    connections: BTreeMap<u64, (Connection, Frames)>,
    alive: Arc<AtomicBool>,
}

/// See the module's header.
pub struct Host {
    /// What is on disk, and in the memory of the process.
    engine: Option<Arc<MemoryEngine>>,
    clock: Arc<ManualClock>,
    process: Option<Process>,
    workers: usize,
    epoch: u64,
    /// Clients show tokens: these.
    tokens: Option<Vec<TokenRecord>>,
    /// What connections have sent.
    pub outgoing: Outgoing,
    batch: Vec<ToServer>,
}

impl Host {
    /// A machine with an empty volume; nothing runs. Clients have to show tokens, or need none.
    pub fn new(clock: Arc<ManualClock>, workers: usize, tokens: bool) -> Self {
        let engine = MemoryEngine::new(SyncWhen::Told);
        Node::format(&engine, RootAttr { mode: 0o777, uid: 0, gid: 0 }, SECOND)
            .expect("an empty engine");
        Self {
            engine: Some(Arc::new(engine)),
            clock,
            process: None,
            workers,
            epoch: 0,
            tokens: tokens.then(Vec::new),
            outgoing: Outgoing::default(),
            batch: Vec::new(),
        }
    }

    /// Whether the process runs.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// The disk.
    pub fn engine(&self) -> &Arc<MemoryEngine> {
        self.engine.as_ref().expect("taken only within a crash")
    }

    /// The node, if the process runs.
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.process.as_ref().map(|process| &process.node)
    }

    /// The server, if the process runs.
    pub fn server(&self) -> Option<&Arc<Server>> {
        self.process.as_ref().map(|process| &process.server)
    }

    /// Starts the process.
    pub fn start(&mut self, now: Nanos) {
        let config = NodeConfig {
            workers: self.workers,
            durability: Durability::Commit,
            grace: 2 * SECOND,
            serves: true,
            replies: Replies::Inline,
            batch_max: 64,
            ..NodeConfig::default()
        };
        self.epoch += 1;
        let node =
            Node::open(self.engine().clone(), self.clock.clone(), config).expect("a sound volume");
        let config = SessionServerConfig {
            volume: VOLUME.into(),
            epoch: self.epoch,
            lease: LEASE,
            grace: LEASE,
            keep_expired: 300 * SECOND,
            access: if self.tokens.is_some() { Access::Tokens } else { Access::Open },
            ..SessionServerConfig::default()
        };
        let limits = LockLimits::default();
        let server =
            Server::new(node.clone(), self.clock.clone(), config, limits, Arc::new(NoAdmin), now);
        let server = server.expect("a sound volume");
        if let Some(tokens) = &self.tokens {
            server.tokens().learn(tokens.clone(), self.clock.now()).expect("no fault was injected");
        }
        self.process = Some(Process {
            server,
            node,
            connections: BTreeMap::new(),
            alive: Arc::new(AtomicBool::new(true)),
        });
    }

    /// The process is gone at once. If the power is, so is what was not synced, or the end of it:
    /// `keep` is how much of it stays, in percent.
    pub fn kill(&mut self, keep: Option<u64>) {
        if let Some(Process { server, node, connections, alive }) = self.process.take() {
            alive.store(false, Ordering::Relaxed);
            drop(connections);
            drop(server);
            drop(node);
        }
        let engine = self.engine.take().expect("taken only here");
        let mut engine = Arc::into_inner(engine).expect("nothing of the process is left");
        if let Some(keep) = keep {
            let unsynced = engine.appended() - engine.durable();
            engine.crash_to(engine.durable() + unsynced * keep / 100);
        } else {
            // The log is in the system's cache; what waited for it to be synced is gone with the
            // process.
            engine.sync().expect("no fault was injected");
        }
        self.engine = Some(Arc::new(engine));
        self.outgoing.lock().clear();
    }

    /// What connections run over: a token is shown only where no third party reads it.
    pub fn security(&self) -> Security {
        if self.tokens.is_some() { Security::Loopback } else { Security::Plain }
    }

    /// A token is made, or revoked. Whether one is needed at all.
    pub fn learn(&mut self, record: TokenRecord) -> bool {
        let Some(tokens) = &mut self.tokens else { return false };
        tokens.retain(|known| known.id != record.id);
        tokens.push(record.clone());
        if let Some(process) = &self.process {
            let learnt = process.server.tokens().learn(vec![record], self.clock.now());
            learnt.expect("no fault was injected");
        }
        true
    }

    /// A client's connection arrives.
    pub fn accept(&mut self, connection: u64) {
        let security = self.security();
        let Some(process) = &mut self.process else { return };
        let outbox =
            SimOutbox { connection, outgoing: self.outgoing.clone(), alive: process.alive.clone() };
        let accepted = process.server.connect(Arc::new(outbox), security, "sim");
        process.connections.insert(connection, (accepted, Frames::default()));
    }

    /// Bytes arrive on a connection.
    pub fn receive(&mut self, connection: u64, bytes: &[u8], now: Nanos) {
        let Some((server, frames)) =
            self.process.as_mut().and_then(|process| process.connections.get_mut(&connection))
        else {
            return;
        };
        frames.push(bytes);
        while let Some(frame) = frames.next_frame().expect("the network damages nothing") {
            self.batch.push(decode_to_server(frame).expect("clients keep the protocol"));
        }
        server.receive(&mut self.batch, now);
    }

    /// A connection is gone.
    pub fn lose(&mut self, connection: u64) {
        if let Some(process) = &mut self.process
            && let Some((mut connection, _)) = process.connections.remove(&connection)
        {
            connection.closed();
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Nanos) {
        if let Some(process) = &self.process {
            process.server.tick(now);
        }
    }

    /// Whether something waits to be synced.
    pub fn is_dirty(&self) -> bool {
        self.engine().appended() > self.engine().durable()
    }

    /// The disk has done its work.
    pub fn sync(&self) {
        self.engine().sync().expect("no fault was injected");
    }

    /// Deletes objects without references, now or later; those that went.
    pub fn reap(&self, wall: Nanos) -> Vec<u64> {
        let Some(process) = &self.process else { return Vec::new() };
        let in_use = |object| process.server.in_use(object);
        let due = process.node.due_objects(wall, 100, &in_use).expect("no fault was injected");
        for object in &due {
            process.node.forget_object(*object).expect("no fault was injected");
        }
        due
    }

    /// Does at most so many steps of what clones lack, and of what follows the removal of
    /// snapshots; false if there is no more to do.
    pub fn tidy(&self, steps: usize) -> bool {
        let Some(process) = &self.process else { return true };
        (0..steps).all(|_| {
            let cloned = process.node.tidy_clones().expect("no fault was injected");
            process.node.tidy_history().expect("no fault was injected") || cloned
        })
    }

    /// Clients with sessions that were given up.
    pub fn expired(&self, now: Nanos) -> Vec<ClientId> {
        let Some(server) = self.server() else { return Vec::new() };
        let sessions = server.sessions(now).into_iter();
        sessions
            .filter(|session| session.state == "expired")
            .map(|session| session.client)
            .collect()
    }
}
