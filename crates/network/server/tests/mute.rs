//! A node that may not answer: others can claim its store, and it has no lease.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Line, hello};
use kestrel_cluster::host::{Carrier, NodeHost, Undeliverable};
use kestrel_cluster::{ClusterNode, ClusterNodeConfig, Envelope};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, NodeConfig, RootAttr};
use kestrel_server::admin::{Admin, AdminRequester};
use kestrel_server::config::SessionServerConfig;
use kestrel_server::locks::LockLimits;
use kestrel_server::server::Server;
use kestrel_types::clock::{SECOND, SystemClock};
use kestrel_types::placement::{Exceptions, Member as MapMember, NodeId, PlacementMap, SlotMap};
use kestrel_types::security::Security;
use kestrel_types::wire::{ToClient, ToServer};

struct Nowhere;

impl Carrier for Nowhere {
    fn carry(&self, _to: NodeId, _envelope: Envelope) -> Result<(), Box<Undeliverable>> {
        Ok(())
    }
}

struct NoAdmin;

impl Admin for NoAdmin {
    fn submit(&self, _question: Box<[u8]>, asker: AdminRequester) {
        asker.answer(Ok(Box::default()));
    }
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it never comes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What comes next.
fn next(line: &Line) -> Vec<ToClient> {
    eventually(|| Some(line.received()).filter(|received| !received.is_empty()))
}

/// A ping that may not be answered ends the connection.
#[test]
fn ping_that_may_not_be_answered() {
    let engine = Arc::new(MemoryEngine::shared(SyncWhen::Asked));
    let map = SlotMap::even(vec![MapMember { id: 1, address: "node-1:1".into() }]).unwrap();
    let placement = PlacementMap::new(map, Exceptions::default());
    let root = RootAttr { mode: 0o777, uid: 0, gid: 0 };
    ClusterNode::format(&*engine, root, SECOND, 1, placement.clone()).unwrap();
    let node = NodeConfig {
        workers: 2,
        durability: Durability::Commit,
        serves: true,
        ..NodeConfig::default()
    };
    let config =
        ClusterNodeConfig { me: 1, placement, node, seed: 1, joining: false, exclusive: true };
    let clock = Arc::new(SystemClock);
    let host = NodeHost::open(engine, clock.clone(), config, Arc::new(Nowhere)).unwrap();
    eventually(|| host.may_answer().then_some(()));
    let config =
        SessionServerConfig { volume: "vol".into(), node: 1, ..SessionServerConfig::default() };
    let server =
        Server::new(host.clone(), clock, config, LockLimits::default(), Arc::new(NoAdmin), 0)
            .unwrap();
    let line = Arc::new(Line::default());
    let mut connection = server.connect(line.clone(), Security::Loopback, "here");
    let ping = || vec![ToServer::Ping { oldest_open_object: u64::MAX }];
    connection.receive(&mut vec![ToServer::Hello(hello(1, 1, false))], 0);
    // When its session is on record.
    assert!(matches!(next(&line)[..], [ToClient::Welcome(_)]));
    connection.receive(&mut ping(), 0);
    assert!(matches!(next(&line)[..], [ToClient::Pong { .. }]));
    host.release();
    connection.receive(&mut ping(), 1);
    assert!(matches!(&next(&line)[..], [ToClient::Refused(why)] if why.errno == libc::EAGAIN));
    assert!(line.is_closed());
}
