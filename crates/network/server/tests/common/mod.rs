//! A server on an engine in memory, with a disk that syncs when the test calls for it, and clients
//! that write their messages by hand.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
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
use kestrel_types::clock::{ManualClock, Nanos, SECOND};
use kestrel_types::inode::Inode;
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, Outcome, Reply, Request};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    Answered, Body, Call, ClientId, Frames, Hello, Reclaim, Reclaimed, SessionState, ToClient,
    ToServer, Versions, decode_to_client,
};
use parking_lot::Mutex;

/// The lease of the server.
pub const LEASE: Nanos = 3 * SECOND;

/// What a server sent on a connection.
#[derive(Default)]
pub struct Line {
    frames: Mutex<Frames>,
    closed: AtomicBool,
}

impl Outbox for Line {
    fn send(&self, frames: &[u8]) {
        self.frames.lock().push(frames);
    }

    fn close(&self, _why: &str) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Line {
    /// Everything that came since.
    pub fn received(&self) -> Vec<ToClient> {
        let mut frames = self.frames.lock();
        let mut received = Vec::new();
        while let Some(frame) = frames.next_frame().unwrap() {
            received.push(decode_to_client(frame).unwrap());
        }
        received
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// Answers every question with the question, unless the asker's token has ended.
struct Echo;

impl Admin for Echo {
    fn submit(&self, question: Box<[u8]>, asker: AdminRequester) {
        assert!(asker.event(b"{\"working\":true}"));
        let ended = asker.ended();
        asker.answer(ended.map_or(Ok(question), Err));
    }
}

/// A server and its disk.
pub struct Fixture {
    pub engine: Arc<MemoryEngine>,
    pub clock: Arc<ManualClock>,
    pub node: Arc<Node>,
    pub server: Arc<Server>,
    pub now: Nanos,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with_access(Access::Auto)
    }

    pub fn with_access(access: Access) -> Self {
        let engine = MemoryEngine::new(SyncWhen::Told);
        Node::format(&engine, RootAttr { mode: 0o777, uid: 0, gid: 0 }, SECOND).unwrap();
        Self::open(engine, Arc::new(ManualClock::new(1000 * SECOND)), 0, access, LEASE)
    }

    fn open(
        engine: MemoryEngine,
        clock: Arc<ManualClock>,
        now: Nanos,
        access: Access,
        lease: Nanos,
    ) -> Self {
        let engine = Arc::new(engine);
        let config = NodeConfig {
            workers: 2,
            durability: Durability::Commit,
            serves: true,
            replies: Replies::Inline,
            ..NodeConfig::default()
        };
        let node = Node::open(engine.clone(), clock.clone(), config).unwrap();
        let config = SessionServerConfig {
            volume: "vol".into(),
            lease,
            grace: lease,
            opens_max: 100,
            access,
            ..SessionServerConfig::default()
        };
        let limits = LockLimits::default();
        let server =
            Server::new(node.clone(), clock.clone(), config, limits, Arc::new(Echo), now).unwrap();
        Self { engine, clock, node, server, now }
    }

    /// Another server of the same node, of what never changes from now on.
    pub fn immutable(self) -> Self {
        let config = SessionServerConfig {
            volume: "vol".into(),
            lease: LEASE,
            grace: LEASE,
            immutable: true,
            ..SessionServerConfig::default()
        };
        let (node, clock, limits) = (self.node.clone(), self.clock.clone(), LockLimits::default());
        let server = Server::new(node, clock, config, limits, Arc::new(Echo), self.now).unwrap();
        Self { server, ..self }
    }

    /// All rows, by their keys.
    pub fn rows(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut rows = BTreeMap::new();
        for table in Table::ALL {
            let mut visit = |key: KeyRef<'_>, value: &[u8]| {
                let mut bytes = Vec::new();
                key.encode_into(&mut bytes);
                rows.insert(bytes, value.to_vec());
                ControlFlow::Continue(())
            };
            self.engine.scan_table(table, None, &mut visit).unwrap();
        }
        rows
    }

    /// The process dies, and the power goes, and it starts again.
    pub fn crash(self, clients: &mut [&mut Client]) -> Self {
        self.restart(clients, LEASE)
    }

    /// The same, with another lease.
    pub fn restart(self, clients: &mut [&mut Client], lease: Nanos) -> Self {
        for client in clients {
            client.connection = None;
        }
        let Self { engine, clock, node, server, now } = self;
        drop(server);
        drop(node);
        let mut engine = Arc::into_inner(engine).expect("nobody refers to it");
        engine.crash();
        Self::open(engine, clock, now, Access::Auto, lease)
    }

    pub fn sync(&self) {
        self.engine.sync().unwrap();
    }

    /// Time passes, in steps as a server is called.
    pub fn pass(&mut self, by: Nanos) {
        let until = self.now + by;
        while self.now < until {
            self.now = (self.now + self.server.tick_interval()).min(until);
            self.server.tick(self.now);
        }
    }

    pub fn open_files(&self) -> u64 {
        self.node.stats().open_files
    }
}

/// A client's end.
pub struct Client {
    pub id: ClientId,
    pub incarnation: u64,
    pub established: bool,
    pub seq: u64,
    pub acked: u64,
    id_of_call: u64,
    line: Arc<Line>,
    connection: Option<Connection>,
}

pub fn hello(id: u8, incarnation: u64, established: bool) -> Hello {
    Hello {
        versions: Versions::OURS,
        volume: "vol".into(),
        client: ClientId([id; 16]),
        incarnation,
        who: format!("test {id}"),
        established,
        token: None,
    }
}

impl Client {
    pub fn new(id: u8) -> Self {
        Self {
            id: ClientId([id; 16]),
            incarnation: 0,
            established: false,
            seq: 0,
            acked: 0,
            id_of_call: 0,
            line: Arc::default(),
            connection: None,
        }
    }

    /// A client that has been welcomed.
    pub fn connected(id: u8, fixture: &Fixture) -> Self {
        let mut client = Self::new(id);
        assert_eq!(client.connect(fixture), SessionState::New);
        client
    }

    /// Connects again (without a word about the old connection), and is welcomed.
    pub fn connect(&mut self, fixture: &Fixture) -> SessionState {
        self.incarnation += 1;
        let hello = hello(self.id.0[0], self.incarnation, self.established);
        self.send_hello(fixture, hello);
        fixture.sync();
        match self.received().as_slice() {
            [ToClient::Welcome(welcome)] => {
                self.established = true;
                welcome.session
            }
            other => panic!("not welcomed: {other:?}"),
        }
    }

    pub fn send_hello(&mut self, fixture: &Fixture, hello: Hello) {
        self.send_hello_over(fixture, Security::Loopback, hello);
    }

    pub fn send_hello_over(&mut self, fixture: &Fixture, security: Security, hello: Hello) {
        self.line = Arc::default();
        let connection = fixture.server.connect(self.line.clone(), security, "here");
        self.connection = Some(connection);
        self.send(fixture, vec![ToServer::Hello(hello)]);
    }

    pub fn send(&mut self, fixture: &Fixture, mut messages: Vec<ToServer>) {
        self.connection.as_mut().unwrap().receive(&mut messages, fixture.now);
    }

    /// Everything that came since.
    pub fn received(&self) -> Vec<ToClient> {
        self.line.received()
    }

    pub fn is_closed(&self) -> bool {
        self.line.is_closed()
    }

    /// The end of the connection, kept to be used after a newer one.
    pub fn take_connection(&mut self) -> (Connection, Arc<Line>) {
        (self.connection.take().unwrap(), self.line.clone())
    }

    pub fn lose_connection(&mut self) {
        self.connection.take().unwrap().closed();
    }

    /// A call of this client, numbered if it has to be.
    pub fn call(&mut self, body: Body) -> Call {
        self.id_of_call += 1;
        self.seq += u64::from(body.is_numbered());
        let seq = if body.is_numbered() { self.seq } else { 0 };
        Call { id: self.id_of_call, seq, acked: self.acked, retry: false, body }
    }

    pub fn op(&mut self, op: Op) -> Call {
        self.call(Body::Op(Request { creds: Creds::root(), op }))
    }

    /// Sends a call, lets the disk sync, and takes the answer to it.
    pub fn execute(&mut self, fixture: &Fixture, op: Op) -> Reply {
        let call = self.op(op);
        self.execute_call(fixture, call)
    }

    pub fn execute_call(&mut self, fixture: &Fixture, call: Call) -> Reply {
        let id = call.id;
        self.send(fixture, vec![ToServer::Call(call)]);
        fixture.sync();
        let received = self.received();
        let reply = received.iter().find_map(|message| match message {
            ToClient::Reply(reply) if reply.id == id => match &reply.answered {
                Answered::Op(reply) => Some(reply.clone()),
                _ => None,
            },
            _ => None,
        });
        reply.unwrap_or_else(|| panic!("no answer: {received:?}"))
    }

    pub fn reclaim(&mut self, fixture: &Fixture, reclaim: Reclaim) -> Reclaimed {
        let call = self.call(Body::Reclaim(reclaim));
        self.send(fixture, vec![ToServer::Call(call)]);
        fixture.sync();
        match self.received().as_slice() {
            [ToClient::Reply(reply)] => match &reply.answered {
                Answered::Reclaim(Ok(lost)) => lost.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

pub fn at(path: &str) -> PathRef {
    PathRef::from_path(1, path.as_bytes()).unwrap()
}

pub fn create(path: &str) -> Op {
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    Op::Create { place: at(path), mode: 0o644, flags, exclusive: false }
}

pub fn seen(inode: &Inode, name: &str) -> InodeRef {
    InodeRef { ino: inode.ino, seen: Some((1, Name::new(name.as_bytes()).unwrap())) }
}

pub fn opened(reply: &Reply) -> (Inode, bool) {
    match reply {
        Ok(Answer::Opened { inode, created, .. }) => ((**inode).clone(), *created),
        other => panic!("not opened: {other:?}"),
    }
}

pub fn errno(reply: &Reply) -> i32 {
    match reply {
        Ok(_) => 0,
        Err(Outcome::Failed(why)) => why.errno,
        other => panic!("{other:?}"),
    }
}
