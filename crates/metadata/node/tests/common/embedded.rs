//! A volume in a directory, for tests that kill their process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_meta::node::{Node, RootAttr};
use kestrel_types::clock::{SECOND, SystemClock};
use kestrel_types::request::{Creds, Op, Reply, Request};

use super::config;

/// Opens the volume in a directory, which becomes one if it is none: small files of a small log.
pub fn open(dir: &Path) -> (Arc<EmbeddedEngine>, Arc<Node>) {
    let options = EmbeddedOptions {
        memory_bytes: 256 << 10,
        sync_interval: Some(Duration::from_millis(20)),
        segment_bytes: 64 << 10,
        log_bytes_max: 256 << 10,
        reserve_bytes: 0,
        ..EmbeddedOptions::default()
    };
    let engine =
        EmbeddedEngine::open(dir, [3; 16], options, Arc::new(|| Ok(())), &mut |_| true).unwrap();
    let engine = Arc::new(engine);
    // It is there already after the first time.
    let root = RootAttr { mode: 0o777, uid: 0, gid: 0 };
    let _formatted = Node::format(&*engine, root, SECOND);
    let node = Node::open(engine.clone(), Arc::new(SystemClock), config(2)).unwrap();
    (engine, node)
}

/// Calls as the superuser.
pub fn call(node: &Node, op: Op) -> Reply {
    node.call(Request { creds: Creds::root(), op })
}
