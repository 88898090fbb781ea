//! A commit of which the client does not learn whether the node has executed it counts once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::VecDeque;
use std::sync::Arc;

use common::{BLOCK, client, open};
use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::{FileHandle, Fs, WriteAt, wait};
use kestrel_client::metadata::{Embedded, Metadata};
use kestrel_engine::memory::MemoryEngine;
use kestrel_meta::node::{Node, NodeConfig, RootAttr};
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::op_counters::NodeStats;
use kestrel_types::request::{Done, Op, Request};
use parking_lot::Mutex;

/// What becomes of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The node executes it and its answer arrives.
    Answered,
    /// The node executes it and its answer is lost.
    Unanswered,
    /// It does not reach the node.
    Lost,
}

use Fate::{Answered, Lost, Unanswered};

const FATES: [Fate; 3] = [Answered, Unanswered, Lost];

/// A node that cannot always be reached.
struct Unsteady {
    node: Embedded,
    /// Of the commits to come; those after them are answered.
    fates: Mutex<VecDeque<Fate>>,
}

impl Metadata for Unsteady {
    fn submit(&self, request: Request, done: Done) {
        let is_commit = matches!(request.op, Op::Commit(_));
        let fate = is_commit.then(|| self.fates.lock().pop_front()).flatten().unwrap_or(Answered);
        let failed = || Err(FsError::new(libc::EIO, "the connection is lost").into());
        match fate {
            Answered => self.node.submit(request, done),
            Unanswered => self.node.submit(request, Box::new(move |_| done(failed()))),
            Lost => done(failed()),
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

struct Setup {
    metadata: Arc<Unsteady>,
    fs: Arc<Fs>,
    clock: Arc<ManualClock>,
}

impl Setup {
    fn new() -> Self {
        let engine = Arc::new(MemoryEngine::default());
        Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, SECOND).unwrap();
        let clock = Arc::new(ManualClock::new(2 * SECOND));
        let config = NodeConfig { workers: 1, ..NodeConfig::default() };
        let node = Embedded::new(Node::open(engine, clock.clone(), config).unwrap());
        let metadata = Arc::new(Unsteady { node, fates: Mutex::default() });
        let fs = client(metadata.clone(), Arc::new(MemoryStore::new()), clock.clone(), 1);
        Self { metadata, fs, clock }
    }

    fn write(&self, file: &FileHandle, at: WriteAt, bytes: &[u8]) {
        // No two writes have the same nanosecond.
        self.clock.advance(1);
        self.fs.write_unless(file, at, bytes, None, &|| false).unwrap();
    }

    fn flush(&self, file: &Arc<FileHandle>, fate: Fate) {
        self.metadata.fates.lock().push_back(fate);
        let flushed = wait(|done| self.fs.flush(file, done));
        assert_eq!(
            flushed.map_err(|error| error.errno),
            if fate == Answered { Ok(()) } else { Err(libc::EIO) }
        );
    }

    fn content(&self, file: &Arc<FileHandle>) -> Vec<u8> {
        wait(|done| self.fs.read(file, 0, 1 << 20, done)).unwrap()
    }
}

/// `len` bytes in which no stretch occurs twice.
fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect()
}

const APPEND: WriteAt = WriteAt::End { unfinished: false };

/// Whatever becomes of the commits of appended bytes, the file has each of them once: kept in the
/// record, packed, patched and in chunks.
#[test]
fn appends_whose_commit_is_unanswered() {
    for len in [100, 5_000, BLOCK as usize * 3 / 2] {
        for fates in (0..81).map(|n| [n / 27, n / 9 % 3, n / 3 % 3, n % 3].map(|at| FATES[at])) {
            let setup = Setup::new();
            let file = open(&setup.fs, "f");
            let mut expected = bytes(len, 0xff);
            setup.write(&file, APPEND, &expected);
            setup.flush(&file, Answered);
            for (fate, seed) in fates.into_iter().chain([Answered]).zip(1..) {
                let more = bytes(len, seed);
                setup.write(&file, APPEND, &more);
                expected.extend_from_slice(&more);
                setup.flush(&file, fate);
                assert!(
                    setup.content(&file) == expected,
                    "{len} bytes, {fates:?}: after {seed} appends"
                );
            }
        }
    }
}

/// The same where nothing is written between a flush that fails and the next, and where bytes are
/// written to an offset as well.
#[test]
fn flushes_repeated_after_an_unanswered_commit() {
    for fates in (0..27).map(|n| [n / 9, n / 3 % 3, n % 3].map(|at| FATES[at])) {
        let setup = Setup::new();
        let file = open(&setup.fs, "f");
        let mut expected = bytes(10_000, 1);
        setup.write(&file, APPEND, &expected);
        setup.flush(&file, Answered);
        expected.extend_from_slice(&bytes(500, 2));
        setup.write(&file, APPEND, &bytes(500, 2));
        expected[20..120].copy_from_slice(&bytes(100, 3));
        setup.write(&file, WriteAt::Offset(20), &bytes(100, 3));
        for fate in fates {
            setup.flush(&file, fate);
            assert!(setup.content(&file) == expected, "{fates:?}: after {fate:?}");
            if fate == Answered {
                break;
            }
        }
        setup.metadata.fates.lock().clear();
        setup.write(&file, WriteAt::Offset(70), &bytes(10, 4));
        expected[70..80].copy_from_slice(&bytes(10, 4));
        setup.write(&file, APPEND, &bytes(10, 5));
        expected.extend_from_slice(&bytes(10, 5));
        setup.flush(&file, Answered);
        assert!(setup.content(&file) == expected, "{fates:?}");
    }
}
