#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, Node, NodeConfig, Replies, RootAttr};
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::security::Security;
use kestrel_types::wire::{ClientId, Hello, ToServer, Versions};

use super::*;
use crate::admin::{Admin, AdminRequester};
use crate::config::SessionServerConfig;
use crate::locks::LockLimits;

struct NoOutput;

impl Admin for NoOutput {
    fn submit(&self, _question: Box<[u8]>, asker: AdminRequester) {
        asker.answer(Ok(Box::default()));
    }
}

impl Outbox for NoOutput {
    fn send(&self, _frames: &[u8]) {}

    fn close(&self, _why: &str) {}
}

/// A server that a client has a session with.
fn server() -> (Arc<Server>, Arc<Session>) {
    let engine = MemoryEngine::new(SyncWhen::Asked);
    Node::format(&engine, RootAttr { mode: 0o777, uid: 0, gid: 0 }, SECOND).unwrap();
    let clock = Arc::new(ManualClock::new(SECOND));
    let config = NodeConfig {
        durability: Durability::Commit,
        serves: true,
        replies: Replies::Inline,
        ..NodeConfig::default()
    };
    let node = Node::open(Arc::new(engine), clock.clone(), config).unwrap();
    let config = SessionServerConfig { volume: "vol".into(), ..SessionServerConfig::default() };
    let server =
        Server::new(node, clock, config, LockLimits::default(), Arc::new(NoOutput), 0).unwrap();
    let mut connection = server.connect(Arc::new(NoOutput), Security::Loopback, "here");
    let hello = Hello {
        versions: Versions::OURS,
        volume: "vol".into(),
        client: ClientId([1; 16]),
        incarnation: 1,
        who: "test".into(),
        established: false,
        token: None,
    };
    connection.receive(&mut vec![ToServer::Hello(hello)], 0);
    let session = server.all_sessions().pop().unwrap();
    (server, session)
}

/// A release that fails (a node without a lease) is the session's open again. If the session ended
/// while it was under way, the node is asked to give the open back: nothing else would, and an
/// orphan would be kept, and a node that leaves kept from leaving, until the next start.
#[test]
fn release_that_fails_after_its_session() {
    let (server, session) = server();
    let (shared, checksum) = (&server.shared, Checksum::Crc32c);
    let batch = Batch::new(&server, session.clone(), (1, None), Arc::new(NoOutput), checksum);
    let failed: Reply = Err(Outcome::Failed(FsError::new(libc::ETIMEDOUT, "no lease in time")));
    let release = SessionEffect::Releases { ino: 5, write: false };
    let fail = || batch.take_effect(&mut session.state.lock(), release, &failed, true);

    assert!(fail());
    assert_eq!(session.state.lock().opens.take_all(), [(5, 1)]);
    assert!(shared.releases.lock().is_empty());

    server.end(&session, 0);
    assert!(!fail());
    assert_eq!(*shared.releases.lock(), [(5, 1)]);
}
