//! The node on the engine it ships with: many threads, then a clean stop or none, and everything is
//! still there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{at, config, stress};
use kestrel_engine::Engine;
use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_meta::node::{Durability, Node, NodeConfig, RootAttr};
use kestrel_types::clock::SystemClock;
use kestrel_types::request::{Answer, Creds, Op, Request};

fn open(dir: &Path, config: NodeConfig) -> Arc<Node> {
    let options = EmbeddedOptions {
        memory_bytes: 64 << 20,
        segment_bytes: 4 << 20,
        log_bytes_max: 32 << 20,
        reserve_bytes: 1 << 20,
        sync_interval: (config.durability == Durability::Fsync)
            .then_some(Duration::from_millis(50)),
        ..EmbeddedOptions::default()
    };
    let engine =
        EmbeddedEngine::open(dir, [3; 16], options, Arc::new(|| Ok(())), &mut |_| true).unwrap();
    let engine: Arc<dyn Engine> = Arc::new(engine);
    match Node::format(&*engine, RootAttr { mode: 0o777, uid: 0, gid: 0 }, 0) {
        Ok(()) => {}
        Err(error) => assert_eq!(error.errno, libc::EEXIST),
    }
    Node::open(engine, Arc::new(SystemClock), config).unwrap()
}

#[test]
fn a_volume_survives_stops_of_every_kind() {
    for durability in [Durability::Fsync, Durability::Commit] {
        let dir = tempfile::tempdir().unwrap();
        let config = NodeConfig { durability, ..config(2) };
        let node = open(dir.path(), config);
        stress::run(&node, 6, 2_000);
        let before = stress::check_volume(&node);
        node.close().unwrap();
        drop(node);
        let node = open(dir.path(), config);
        assert_eq!(stress::check_volume(&node), before);
        // Not closed this time, and something is open without a name.
        let tmp = Op::TmpFile { dir: 1, mode: 0o600, exclusive: false };
        let reply = node.call(Request { creds: Creds::root(), op: tmp });
        assert!(matches!(reply, Ok(Answer::Opened { .. })), "{reply:?}");
        let made = node.call(Request { creds: Creds::root(), op: Op::MkDir(at(1, "last"), 0o755) });
        assert!(made.is_ok());
        drop(node);
        let node = open(dir.path(), config);
        let after = stress::check_volume(&node);
        assert_eq!((after.dirs, after.files, after.orphans), (before.dirs + 1, before.files, 0));
    }
}
