//! What an embedded client needs of the stack does not grow with what others do at the same time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::{FileHandle, Fs, wait};
use kestrel_client::metadata::{Embedded, Metadata};
use kestrel_engine::memory::MemoryEngine;
use kestrel_meta::node::{Node, NodeConfig, RootAttr};
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::error::FsResult;
use kestrel_types::op_counters::NodeStats;
use kestrel_types::request::{Done, Op, Request};

use common::{client, open};

/// A node, and another client that writes to the file and flushes it during each of the node's
/// commits.
struct Busy {
    node: Embedded,
    others: OnceLock<(Arc<Fs>, Arc<FileHandle>)>,
    left: AtomicU64,
    flushed: Arc<AtomicU64>,
}

impl Metadata for Busy {
    fn submit(&self, request: Request, done: Done) {
        if let (Op::Commit(_), Some((fs, file))) = (&request.op, self.others.get())
            && self.left.load(Ordering::Relaxed) > 0
        {
            self.left.fetch_sub(1, Ordering::Relaxed);
            fs.write(file, 0, b"more", false).unwrap();
            let flushed = self.flushed.clone();
            fs.flush(
                file,
                Box::new(move |result| {
                    result.unwrap();
                    flushed.fetch_add(1, Ordering::Relaxed);
                }),
            );
        }
        self.node.submit(request, done);
    }

    fn local(&self) -> Option<&Arc<Node>> {
        self.node.local()
    }

    fn stats(&self) -> NodeStats {
        self.node.stats()
    }

    fn close(&self) -> FsResult<()> {
        self.node.close()
    }
}

/// Flushes that are asked for while another one commits follow each other at one depth.
#[test]
fn chain_of_flushes_on_a_small_stack() {
    const FLUSHES: u64 = 5_000;
    let work = || {
        let engine = Arc::new(MemoryEngine::default());
        Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, SECOND).unwrap();
        let clock = Arc::new(ManualClock::new(2 * SECOND));
        let config = NodeConfig { workers: 2, ..NodeConfig::default() };
        let node = Embedded::new(Node::open(engine, clock.clone(), config).unwrap());
        let flushed = Arc::new(AtomicU64::new(0));
        let busy =
            Busy { node, others: OnceLock::new(), left: FLUSHES.into(), flushed: flushed.clone() };
        let metadata = Arc::new(busy);
        let fs = client(metadata.clone(), Arc::new(MemoryStore::new()), clock, 1);
        let file = open(&fs, "f");
        fs.write(&file, 0, b"first", false).unwrap();
        assert!(metadata.others.set((fs.clone(), file.clone())).is_ok());
        wait(|done| fs.flush(&file, done)).unwrap();
        assert_eq!(flushed.load(Ordering::Relaxed), FLUSHES);
        fs.shutdown().unwrap();
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap();
    thread.join().unwrap();
}
