//! Files with large holes: bytes at every power of two, and the time and the stack that holes take.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::{Caller, CopyRange, Fallocate, FileHandle, Fs, Hole, Seek, wait};
use kestrel_client::metadata::{Embedded, Metadata};
use kestrel_engine::memory::MemoryEngine;
use kestrel_meta::node::{Node, NodeConfig, RootAttr};
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::error::FsResult;
use kestrel_types::inode::{CHUNK_BYTES, FILE_SIZE_MAX};
use kestrel_types::op_counters::NodeStats;
use kestrel_types::request::{Done, Op, Request, SetAttr};
use proptest::prelude::*;

use common::{client, open};

/// Holes begin and end at multiples of this.
const BLOCK: u64 = 4096;

/// A node that counts what it is asked.
struct Counting {
    node: Embedded,
    asked: AtomicU64,
}

impl Metadata for Counting {
    fn submit(&self, request: Request, done: Done) {
        if matches!(request.op, Op::Chunks { .. } | Op::Commit(_)) {
            self.asked.fetch_add(1, Ordering::Relaxed);
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

fn volume() -> (Arc<Fs>, Arc<Counting>) {
    let engine = Arc::new(MemoryEngine::default());
    Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, SECOND).unwrap();
    let clock = Arc::new(ManualClock::new(2 * SECOND));
    let node =
        Node::open(engine, clock.clone(), NodeConfig { workers: 2, ..NodeConfig::default() })
            .unwrap();
    let metadata = Arc::new(Counting { node: Embedded::new(node), asked: 0.into() });
    (client(metadata.clone(), Arc::new(MemoryStore::new()), clock, 1), metadata)
}

fn seek(fs: &Arc<Fs>, file: &Arc<FileHandle>, offset: u64, what: Seek) -> Result<u64, i32> {
    wait(|done| fs.seek(file, offset, what, done)).map_err(|error| error.errno)
}

fn read(fs: &Arc<Fs>, file: &Arc<FileHandle>, offset: u64, len: usize) -> Vec<u8> {
    wait(|done| fs.read(file, offset, len, done)).unwrap()
}

fn fallocate(fs: &Arc<Fs>, file: &Arc<FileHandle>, hole: Hole, window: std::ops::Range<u64>) {
    let len = window.end - window.start;
    let what = Fallocate { hole, offset: window.start, len, keep_size: true, unprivileged: None };
    wait(|done| fs.fallocate(file, what, done)).unwrap();
}

/// Offsets around every power of two that a file can have, and the last ones.
fn edges() -> impl Strategy<Value = u64> {
    let near = (0..=63u32, -70_000i64..70_000).prop_map(|(power, by)| {
        let at = (1u64 << power).saturating_add_signed(by);
        at.min(FILE_SIZE_MAX - 1)
    });
    prop_oneof![4 => near, 1 => FILE_SIZE_MAX - 200_000..FILE_SIZE_MAX]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// What is written anywhere in a file of any size is read, found, copied, punched and cut where
    /// it is.
    #[test]
    fn bytes_around_the_powers_of_two(
        mut places in prop::collection::vec((edges(), 1..9_000usize, 1..=255u8), 1..12),
        punch in (edges(), edges()),
        cut in edges(),
    ) {
        let (fs, _) = volume();
        let file = open(&fs, "f");
        let mut model = std::collections::BTreeMap::new();
        let mut size = 0;
        for (offset, len, byte) in &mut places {
            *len = (*len).min((FILE_SIZE_MAX - *offset) as usize);
            wait(|done| fs.flush(&file, done)).unwrap();
            fs.write(&file, *offset, &vec![*byte; *len], false).unwrap();
            model.extend((*offset..*offset + *len as u64).map(|at| (at, *byte)));
            size = size.max(*offset + *len as u64);
        }
        check(&fs, &file, &places, &model, size);
        let (from, to) = (punch.0.min(punch.1), punch.0.max(punch.1) + 1);
        fallocate(&fs, &file, Hole::Punch, from..to);
        model.retain(|at, _| !(from..to).contains(at));
        check(&fs, &file, &places, &model, size);
        let set = SetAttr { size: Some(cut), through_handle: true, ..SetAttr::default() };
        wait(|done| fs.setattr(Caller::ROOT, file.ino(), set, done)).unwrap();
        model.retain(|at, _| *at < cut);
        check(&fs, &file, &places, &model, cut);
        fs.shutdown().unwrap();
    }
}

/// The file is what the model says, before and after what was written is stored.
fn check(
    fs: &Arc<Fs>,
    file: &Arc<FileHandle>,
    places: &[(u64, usize, u8)],
    model: &std::collections::BTreeMap<u64, u8>,
    size: u64,
) {
    for _ in 0..2 {
        for (offset, len, _) in places {
            let from = offset.saturating_sub(100);
            let end = (offset + *len as u64 + 100).min(size).max(from);
            let expected: Vec<u8> =
                (from..end).map(|at| model.get(&at).copied().unwrap_or(0)).collect();
            assert_eq!(read(fs, file, from, (end - from) as usize), expected, "at {from}");
        }
        wait(|done| fs.fsync(file, done)).unwrap();
    }
    assert_eq!(seek(fs, file, size, Seek::Data), Err(libc::ENXIO));
    assert_eq!(seek(fs, file, size, Seek::Hole), Err(libc::ENXIO));
    // Every written byte is found, and no hole has one.
    let (mut at, mut found) = (0, 0);
    while let Ok(data) = seek(fs, file, at, Seek::Data) {
        let hole = seek(fs, file, data, Seek::Hole).unwrap();
        assert!(data < hole && hole <= size, "{at} {data} {hole} {size}");
        assert_eq!(model.range(at..data).count(), 0);
        assert!(data == at || data % BLOCK == 0);
        found += model.range(data..hole).count();
        at = hole;
        if at == size {
            break;
        }
    }
    assert_eq!(found, model.len());
}

/// A hole of 8 EiB costs a request or two, not one for each of its chunks, whatever is done with
/// it.
#[test]
fn requests_over_the_largest_hole() {
    let (fs, node) = volume();
    let file = open(&fs, "f");
    let last = FILE_SIZE_MAX - 3;
    let block = last - last % BLOCK;
    fs.write(&file, last, b"abc", false).unwrap();
    fs.write(&file, 0, b"abc", false).unwrap();
    wait(|done| fs.fsync(&file, done)).unwrap();
    let before = node.asked.load(Ordering::Relaxed);
    assert_eq!(seek(&fs, &file, 3, Seek::Data), Ok(3));
    assert_eq!(seek(&fs, &file, BLOCK, Seek::Data), Ok(block));
    assert_eq!(seek(&fs, &file, 1 << 40, Seek::Data), Ok(block));
    assert_eq!(seek(&fs, &file, 1 << 40, Seek::Hole), Ok(1 << 40));
    assert_eq!(seek(&fs, &file, last, Seek::Hole), Ok(FILE_SIZE_MAX));
    fallocate(&fs, &file, Hole::Punch, 1..last);
    fallocate(&fs, &file, Hole::Zero, 1..FILE_SIZE_MAX);
    assert_eq!(seek(&fs, &file, BLOCK, Seek::Data), Err(libc::ENXIO));
    let asked = node.asked.load(Ordering::Relaxed) - before;
    assert!(asked <= 12, "{asked} requests");
    fs.shutdown().unwrap();
}

/// Thousands of chunks with bytes are gone through on a stack of 128 KiB: found, punched, committed
/// at once, folded.
#[test]
fn small_stack_over_many_chunks() {
    let work = || {
        let (fs, node) = volume();
        let file = open(&fs, "f");
        let chunks = 10_000u64;
        // One flush commits them all.
        for chunk in 0..chunks {
            fs.write(&file, chunk * CHUNK_BYTES + chunk, &[7; 2], false).unwrap();
        }
        wait(|done| fs.fsync(&file, done)).unwrap();
        let before = node.asked.load(Ordering::Relaxed);
        let mut at = 0;
        for chunk in 0..chunks {
            at = seek(&fs, &file, at, Seek::Data).unwrap();
            assert_eq!(at, chunk * CHUNK_BYTES + chunk - chunk % BLOCK);
            at = seek(&fs, &file, at, Seek::Hole).unwrap();
        }
        let asked = node.asked.load(Ordering::Relaxed) - before;
        assert!(asked < chunks / 500, "{asked} requests");
        let copy = open(&fs, "copy");
        let range = CopyRange {
            from: file.clone(),
            from_offset: 0,
            to: copy.clone(),
            to_offset: 1 << 60,
            len: u64::MAX,
            unprivileged: None,
        };
        assert_eq!(wait(|done| fs.copy_range(range, done)), Ok(64 << 30));
        assert_eq!(read(&fs, &copy, (1 << 60) + 9 * CHUNK_BYTES + 9, 3), [7, 7, 0]);
        fallocate(&fs, &file, Hole::Punch, 3..chunks * CHUNK_BYTES);
        assert_eq!(seek(&fs, &file, BLOCK, Seek::Data), Err(libc::ENXIO));
        assert_eq!(seek(&fs, &file, 0, Seek::Hole), Ok(BLOCK));
        fs.shutdown().unwrap();
    };
    let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(work).unwrap();
    thread.join().unwrap();
}
