//! Nodes of a cluster in one process, and their clients.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_cluster::host::NodeHost;
use kestrel_cluster::{ClusterNode, ClusterNodeConfig};
use kestrel_engine::Engine;
use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_meta::node::{Durability, NodeConfig, RootAttr};
use kestrel_model::code as errno;
use kestrel_rpc::client::{ReclaimSource, Remote, RemoteConfig};
use kestrel_rpc::peer::proof;
use kestrel_rpc::server::{self as net, Serving};
use kestrel_rpc::tls::ClientTls;
use kestrel_rpc::token::Token;
use kestrel_server::admin::{Admin, AdminRequester};
use kestrel_server::config::SessionServerConfig;
use kestrel_server::listen::ClockedServer;
use kestrel_server::locks::LockLimits;
use kestrel_server::peers::{Identity, Peers};
use kestrel_server::server::Server;
use kestrel_types::clock::{SECOND, SystemClock};
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::placement::{Exceptions, Member as MapMember, NodeId, PlacementMap, SlotMap};
use kestrel_types::request::{Answer, Creds, Op, Reply, Request};
use kestrel_types::wire::{
    Checksum, Frames, PeerHello, PeerSecret, Prover, Reclaim, ReclaimReply, Refused, SessionState,
    ToClient, ToServer, Welcome, decode_to_client, encode_to_server,
};
use tempfile::TempDir;

pub const VOLUME: &str = "vol";

/// Claims to be a node, at this end of a connection, and answers the challenge; then sends the
/// rest. `Err`: it was refused before.
pub fn introduce(
    stream: &mut TcpStream,
    hello: &PeerHello,
    secret: PeerSecret,
    rest: &[ToServer],
) -> Result<(), Refused> {
    say_all(stream, &[ToServer::PeerHello(hello.clone())]);
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut frames = Frames::default();
    let challenge = loop {
        if let Some(frame) = frames.next_frame().unwrap() {
            match decode_to_client(frame).unwrap() {
                ToClient::PeerChallenge(challenge) => break challenge,
                ToClient::Refused(refused) => return Err(refused),
                _ => panic!("an answer"),
            }
        }
        let read = stream.read(frames.space()).unwrap();
        assert_ne!(read, 0, "closed without a word");
        frames.filled(read);
    };
    let cluster_secret = identity(hello.from, 1).secret;
    assert!(proof::holds(
        &cluster_secret,
        Prover::Reached,
        hello,
        &challenge.nonce,
        &challenge.proof
    ));
    let proof = proof::prove(&secret, Prover::Dialed, hello, &challenge.nonce);
    say_all(stream, &[&[ToServer::PeerProof(proof)], rest].concat());
    Ok(())
}

/// Writes messages to a connection.
pub fn say_all(stream: &mut TcpStream, messages: &[ToServer]) {
    let mut bytes = Vec::new();
    for message in messages {
        encode_to_server(message, Checksum::Crc32c, &mut bytes).unwrap();
    }
    stream.write_all(&bytes).unwrap();
}

/// The identity of a start of a node. Each start of a site is a process of its own.
pub fn identity(node: NodeId, start: u64) -> Identity {
    let (volume, secret, address) = ([7; 16], PeerSecret([9; 16]), format!("node-{node}:1"));
    Identity { volume, secret, node_uuid: 100 + u64::from(node), start, address }
}

/// Waits for something that has to happen sooner or later.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never happened that {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn at(path: &str) -> PathRef {
    PathRef::from_path(1, path.as_bytes()).unwrap()
}

pub fn mknod(path: &str) -> Op {
    Op::MkNod { place: at(path), kind: Kind::File, mode: 0o644, rdev: 0 }
}

struct NoAdmin;

impl Admin for NoAdmin {
    fn submit(&self, _question: Box<[u8]>, asker: AdminRequester) {
        asker.answer(Ok(Box::default()));
    }
}

/// A node that runs.
pub struct Running {
    pub host: Arc<NodeHost>,
    pub peers: Arc<Peers>,
    pub server: Arc<Server>,
    serving: Option<Serving>,
    opened: Instant,
}

/// The place of a node.
pub struct Site {
    pub id: NodeId,
    pub address: SocketAddr,
    dir: TempDir,
    placement: PlacementMap,
    running: Option<Running>,
    starts: u64,
}

impl Site {
    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn engine(&self) -> Arc<dyn Engine> {
        let options = EmbeddedOptions::default();
        let synced = Arc::new(|| Ok(()));
        Arc::new(
            EmbeddedEngine::open(self.dir.path(), [7; 16], options, synced, &mut |_| true).unwrap(),
        )
    }

    fn serve(&mut self, listener: TcpListener) -> (Running, Serving) {
        self.starts += 1;
        let identity = self.identity();
        let node = NodeConfig {
            workers: 2,
            durability: Durability::Commit,
            serves: true,
            ..NodeConfig::default()
        };
        let peers = Arc::new(Peers::default());
        let config = ClusterNodeConfig {
            me: self.id,
            placement: self.placement.clone(),
            node,
            seed: u64::from(self.id),
            joining: false,
            exclusive: true,
        };
        let host =
            NodeHost::open(self.engine(), Arc::new(SystemClock), config, peers.clone()).unwrap();
        peers.introduce(&identity, &host, ClientTls::default());
        peers.meet(&self.placement).unwrap();
        let config = SessionServerConfig {
            volume: VOLUME.into(),
            node: self.id,
            grace: SECOND,
            lease: 10 * SECOND,
            peers: Some(identity),
            ..SessionServerConfig::default()
        };
        let limits = LockLimits::default();
        let clock = Arc::new(SystemClock);
        let server =
            Server::new(host.clone(), clock, config, limits, Arc::new(NoAdmin), 0).unwrap();
        let nodes = self.placement.map.members().iter().map(|member| member.id).collect::<Vec<_>>();
        server.tokens().are_shared(self.id, peers.clone(), Box::new(move || nodes.clone()));
        let opened = Instant::now();
        let serving = listening(&server, opened, listener);
        let running = Running { host, peers, server, serving: None, opened };
        (running, serving)
    }

    /// The identity of its present start.
    pub fn identity(&self) -> Identity {
        Identity { address: self.address.to_string(), ..identity(self.id, self.starts) }
    }

    /// Starts the node.
    pub fn run(&mut self) {
        let listener = bind(self.address);
        let (running, serving) = self.serve(listener);
        self.running = Some(Running { serving: Some(serving), ..running });
    }

    /// Starts it where it has not been.
    pub fn run_elsewhere(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.address = listener.local_addr().unwrap();
        let (running, serving) = self.serve(listener);
        self.running = Some(Running { serving: Some(serving), ..running });
    }

    /// Breaks every connection to it; no connection is let in any more.
    pub fn cut(&mut self) {
        self.running.as_mut().unwrap().serving = None;
    }

    /// Lets clients and nodes in again.
    pub fn listen(&mut self) {
        let listener = bind(self.address);
        let running = self.running.as_mut().unwrap();
        running.serving = Some(listening(&running.server, running.opened, listener));
    }

    /// Stops it without a word.
    pub fn kill(&mut self) {
        let Running { host, peers, server, serving, .. } = self.running.take().unwrap();
        let node = Arc::downgrade(host.node());
        drop((serving, server, host, peers));
        eventually("its store is closed", || node.upgrade().is_none());
    }
}

fn listening(server: &Arc<Server>, opened: Instant, listener: TcpListener) -> Serving {
    let config = net::ListenerConfig { threads: 2, ..net::ListenerConfig::default() };
    net::serve(listener, Arc::new(ClockedServer::new(server.clone(), opened)), config).unwrap()
}

fn bind(address: SocketAddr) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(why) => assert!(begun.elapsed() < Duration::from_secs(30), "{address}: {why}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Three nodes.
pub struct Cluster {
    pub sites: Vec<Site>,
    pub placement: PlacementMap,
}

impl Cluster {
    pub fn start() -> Self {
        let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> =
            listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let member =
            |(id, address): (NodeId, &SocketAddr)| MapMember { id, address: address.to_string() };
        let map = SlotMap::even((1..).zip(&addresses).map(member).collect()).unwrap();
        let placement =
            PlacementMap { version: 5, ..PlacementMap::new(map, Exceptions::default()) };
        let mut sites = Vec::new();
        for ((id, address), listener) in (1..).zip(addresses).zip(listeners) {
            let dir = TempDir::new().unwrap();
            let mut site =
                Site { id, address, dir, placement: placement.clone(), running: None, starts: 0 };
            let root = RootAttr { mode: 0o777, uid: 0, gid: 0 };
            ClusterNode::format(&*site.engine(), root, SECOND, id, placement.clone()).unwrap();
            let (running, serving) = site.serve(listener);
            site.running = Some(Running { serving: Some(serving), ..running });
            sites.push(site);
        }
        Self { sites, placement }
    }

    pub fn client(&self) -> Client {
        self.client_with(None)
    }

    /// A client that shows a token.
    pub fn client_with(&self, token: Option<Arc<Token>>) -> Client {
        let remote = |site: &Site| {
            let config = RemoteConfig {
                addresses: vec![site.address.to_string()],
                volume: VOLUME.into(),
                who: "test".into(),
                deadline: Duration::from_secs(60),
                tls: ClientTls::default(),
                token: token.clone(),
                session: None,
            };
            (site.id, Remote::connect(config, Arc::new(Bare)).unwrap().0)
        };
        Client {
            remotes: self.sites.iter().map(remote).collect(),
            placement: self.placement.clone(),
        }
    }
}

/// Holds nothing.
struct Bare;

impl ReclaimSource for Bare {
    fn welcomed(&self, welcome: &Welcome) -> Result<(), String> {
        if welcome.table == 5 { Ok(()) } else { Err("another table".into()) }
    }

    fn reclaim(&self, _lost: SessionState) -> Vec<Reclaim> {
        Vec::new()
    }

    fn reclaimed(&self, _replies: Vec<ReclaimReply>, _lost: SessionState) {}

    fn oldest_open_object(&self) -> u64 {
        u64::MAX
    }

    fn outage(&self, _why: &str) {}

    fn restored(&self, _after: Duration) {}
}

/// A client with a session at each node.
pub struct Client {
    remotes: BTreeMap<NodeId, Arc<Remote>>,
    placement: PlacementMap,
}

impl Client {
    pub fn leader(&self, op: &Op) -> NodeId {
        self.placement.leader(op).map_or(1, |member| member.id)
    }

    pub fn execute(&self, op: Op) -> Reply {
        self.execute_at(self.leader(&op), op)
    }

    pub fn execute_at(&self, node: NodeId, op: Op) -> Reply {
        self.remotes[&node].call(Request { creds: Creds::root(), op })
    }

    /// Makes a request that has to succeed.
    pub fn done(&self, op: Op) -> Answer {
        let request = format!("{op:?}");
        let reply = self.execute(op);
        assert_eq!(errno(&reply), 0, "{request}: {reply:?}");
        reply.unwrap_or(Answer::Done)
    }

    /// Names in a directory.
    pub fn names(&self, dir: &str) -> Vec<String> {
        let Answer::Entry { inode, .. } = self.done(Op::Lookup(at(dir))) else {
            panic!("no entry")
        };
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let list = Op::ReadDir { dir: inode.ino, after, limit: 1000, check: true };
            let Answer::Entries { entries, end, .. } = self.done(list) else {
                panic!("no listing")
            };
            let name = |entry: &kestrel_types::request::DirEntry| {
                String::from_utf8_lossy(entry.name.as_bytes()).into_owned()
            };
            names.extend(entries.iter().map(name));
            after = entries.last().map(|entry| entry.name.clone());
            if end {
                return names;
            }
        }
    }

    pub fn stat(&self, ino: u64) -> Reply {
        self.execute(Op::GetAttr(InodeRef::by_id(ino)))
    }
}
