//! What the tests of the node share.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod check;
pub mod embedded;
pub mod rules;
pub mod steps;
pub mod stress;

pub use kestrel_model::code as errno;

use std::sync::Arc;

use kestrel_engine::Engine;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, Node, NodeConfig, RootAttr};
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::inode::Inode;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, Creds, Op, Reply, Request};
use parking_lot::Mutex;

/// A node on an engine in memory.
pub struct Fixture {
    pub engine: Arc<MemoryEngine>,
    pub clock: Arc<ManualClock>,
    pub node: Arc<Node>,
    pub config: NodeConfig,
}

pub fn config(workers: usize) -> NodeConfig {
    NodeConfig {
        workers,
        durability: Durability::Fsync,
        grace: 10 * SECOND,
        ..NodeConfig::default()
    }
}

impl Fixture {
    pub fn new(config: NodeConfig) -> Self {
        Self::with_engine(config, MemoryEngine::new(SyncWhen::Asked))
    }

    pub fn with_engine(config: NodeConfig, engine: MemoryEngine) -> Self {
        let clock = Arc::new(ManualClock::new(1_000 * SECOND));
        let engine = Arc::new(engine);
        Node::format(&*engine, RootAttr { mode: 0o777, uid: 0, gid: 0 }, 1_000 * SECOND).unwrap();
        let node = Node::open(engine.clone(), clock.clone(), config).unwrap();
        Self { engine, clock, node, config }
    }

    /// Kills the node without any farewell and opens the volume again; with `power_loss` what was
    /// not synced is lost.
    pub fn crash(self, power_loss: bool) -> Self {
        let Self { engine, clock, node, config } = self;
        drop(node);
        let mut engine = Arc::into_inner(engine).expect("the node is gone");
        if power_loss {
            engine.crash();
        }
        let engine = Arc::new(engine);
        // Faults that were injected and not met yet fail the opening, which can be tried again.
        let open = || Node::open(engine.clone(), clock.clone(), config);
        let node = (0..100).find_map(|_| open().ok()).expect("faults end");
        Self { engine, clock, node, config }
    }

    pub fn call(&self, op: Op) -> Reply {
        self.call_as(&Creds::root(), op)
    }

    /// As [`Fixture::call_as`]; where answers wait for the log, the log is synced.
    pub fn call_to_the_end(&self, creds: &Creds, op: Op) -> Reply {
        if self.config.durability == Durability::Fsync {
            return self.call_as(creds, op);
        }
        let heard = Arc::new(Mutex::new(None));
        let done = heard.clone();
        let request = Request { creds: creds.clone(), op };
        self.node.submit_many(vec![(request, Box::new(move |reply| *done.lock() = Some(reply)))]);
        self.engine.sync().unwrap();
        heard.lock().take().expect("what was answered waits for nothing else")
    }

    pub fn call_as(&self, creds: &Creds, op: Op) -> Reply {
        self.node.call(Request { creds: creds.clone(), op })
    }

    pub fn inode(&self, op: Op) -> Inode {
        self.inode_as(&Creds::root(), op)
    }

    pub fn inode_as(&self, creds: &Creds, op: Op) -> Inode {
        match self.call_as(creds, op.clone()) {
            Ok(
                Answer::Inode(inode) | Answer::Entry { inode, .. } | Answer::Opened { inode, .. },
            ) => *inode,
            other => panic!("{op:?}: {other:?}"),
        }
    }

    /// What an operation removed, as it was after that.
    pub fn removed(&self, op: Op) -> Inode {
        match self.call(op.clone()) {
            Ok(Answer::Removed(inode) | Answer::Renamed { other: Some(inode), .. }) => *inode,
            other => panic!("{op:?}: {other:?}"),
        }
    }

    /// The errno a request fails with; 0 if it does not.
    pub fn errno(&self, op: Op) -> i32 {
        errno(&self.call(op))
    }

    pub fn errno_as(&self, creds: &Creds, op: Op) -> i32 {
        errno(&self.call_as(creds, op))
    }

    pub fn check(&self) -> check::Found {
        let anything_open = self.node.stats().open_files > 0;
        check::check(&*self.engine as &dyn Engine, &|_| anything_open)
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// A path from a directory.
pub fn at(base: u64, path: &str) -> PathRef {
    PathRef::from_path(base, path.as_bytes()).unwrap()
}

pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Creds {
    Creds { uid, gid, groups: Some(groups.into()) }
}
