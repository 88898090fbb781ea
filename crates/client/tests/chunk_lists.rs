//! Chunk lists that one message does not hold are asked for in parts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{client, open};
use kestrel_client::fs::wait;
use kestrel_client::metadata::{Embedded, Metadata};
use kestrel_data::store::MemoryStore;
use kestrel_meta::engine::memory::MemoryEngine;
use kestrel_meta::node::{Done, Node, NodeConfig, RootAttr};
use kestrel_meta::stats::NodeStats;
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::inode::CHUNK_BYTES;
use kestrel_types::request::{Op, Request};

/// A node whose messages hold the lists of two chunks.
struct Narrow {
    node: Embedded,
    refused: AtomicU64,
}

impl Metadata for Narrow {
    fn submit(&self, request: Request, done: Done) {
        match request.op {
            Op::Chunks { first, last, .. } if last - first > 1 => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                done(Err(FsError::new(libc::EMSGSIZE, "too many lists for one message").into()));
            }
            _ => self.node.submit(request, done),
        }
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

#[test]
fn lists_above_the_size_of_a_message_come_in_parts() {
    let engine = Arc::new(MemoryEngine::default());
    Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, SECOND).unwrap();
    let clock = Arc::new(ManualClock::new(2 * SECOND));
    let node = Node::open(engine, clock.clone(), NodeConfig { workers: 2, ..NodeConfig::default() }).unwrap();
    let metadata = Arc::new(Narrow { node: Embedded::new(node), refused: 0.into() });
    let fs = client(metadata.clone(), Arc::new(MemoryStore::new()), clock, 1);

    // A piece in each chunk but some.
    let chunks: Vec<u64> = (0..11).filter(|chunk| ![3, 4, 8].contains(chunk)).collect();
    let file = open(&fs, "sparse");
    for chunk in &chunks {
        fs.write(&file, chunk * CHUNK_BYTES + 100, &[*chunk as u8; 5000], false).unwrap();
    }
    wait(|done| fs.fsync(&file, done)).unwrap();
    let (inode, lists) = wait(|done| fs.layout(file.ino(), done)).unwrap();
    assert_eq!(inode.size, 10 * CHUNK_BYTES + 5100);
    assert_eq!(lists.iter().map(|(chunk, _)| *chunk).collect::<Vec<_>>(), chunks);
    assert!(lists.iter().all(|(_, extents)| !extents.is_empty()));
    assert!(metadata.refused.load(Ordering::Relaxed) > 1, "the whole, and a half");
    for chunk in 0..11 {
        let bytes = wait(|done| fs.read(&file, chunk * CHUNK_BYTES + 100, 5000, done)).unwrap();
        let byte = if chunks.contains(&chunk) { chunk as u8 } else { 0 };
        assert!(bytes.len() == 5000 && bytes.iter().all(|read| *read == byte), "chunk {chunk}");
    }
    fs.shutdown().unwrap();
}
