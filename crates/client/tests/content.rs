//! File content against a model: whatever is written, truncated, punched, copied, flushed and
//! reopened in whatever order, a read returns what an array of bytes would.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;

use common::{BLOCK, file_system, open};
use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::{Caller, CopyRange, Fallocate, FileHandle, Fs, Hole, Seek, wait};
use kestrel_types::request::SetAttr;
use proptest::prelude::*;

fn resize(fs: &Arc<Fs>, file: &Arc<FileHandle>, size: u64) {
    let set = SetAttr { size: Some(size), through_handle: true, ..SetAttr::default() };
    wait(|done| fs.setattr(Caller::ROOT, file.ino(), set, done)).unwrap();
}

fn read_all(fs: &Arc<Fs>, file: &Arc<FileHandle>) -> Vec<u8> {
    wait(|done| fs.read(file, 0, 16 << 20, done)).unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Write { file: usize, offset: u64, len: usize, byte: u8 },
    Truncate { file: usize, size: u64 },
    Fallocate { file: usize, hole: u8, offset: u64, len: u64, keep: bool },
    Copy { from: usize, from_offset: u64, to_offset: u64, len: u64 },
    Flush { file: usize },
    Fsync { file: usize },
    Reopen { file: usize },
    Read { file: usize, offset: u64, len: usize },
    Reap,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = 0..2usize;
    let edge = prop_oneof![
        0u64..10_000,
        (0u64..6, 0u64..6).prop_map(|(blocks, off)| (blocks * u64::from(BLOCK))
            .saturating_add(off)
            .saturating_sub(3)),
        0u64..800_000,
    ];
    let len =
        prop_oneof![1u64..100, 1u64..9_000, 1u64..300_000, Just(u64::from(BLOCK)), Just(270_000)];
    let step = prop_oneof![
        8 => (file.clone(), edge.clone(), len.clone(), 1u8..)
            .prop_map(|(file, offset, len, byte)| Step::Write { file, offset, len: len as usize,
                byte }),
        2 => (file.clone(), edge.clone()).prop_map(|(file, size)| Step::Truncate { file, size }),
        2 => (file.clone(), 0u8..3, edge.clone(), len.clone(), any::<bool>())
            .prop_map(|(file, hole, offset, len, keep)| Step::Fallocate { file, hole, offset, len,
                keep }),
        2 => (file.clone(), edge.clone(), edge.clone(), len.clone())
            .prop_map(|(from, from_offset, to_offset, len)| Step::Copy { from, from_offset,
                to_offset, len }),
        2 => file.clone().prop_map(|file| Step::Flush { file }),
        1 => file.clone().prop_map(|file| Step::Fsync { file }),
        1 => file.clone().prop_map(|file| Step::Reopen { file }),
        4 => (file, edge, len)
        .prop_map(|(file, offset, len)| Step::Read { file, offset, len: len as usize }),
        1 => Just(Step::Reap),
    ];
    prop::collection::vec(step, 1..40)
}

fn put(model: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    if !bytes.is_empty() && model.len() < end {
        model.resize(end, 0);
    }
    if !bytes.is_empty() {
        model[offset as usize..end].copy_from_slice(bytes);
    }
}

fn run(steps: Vec<Step>, store: MemoryStore) {
    let (fs, _) = file_system(Arc::new(store));
    let names = ["a", "b"];
    let mut handles = names.map(|name| open(&fs, name));
    let mut models = [Vec::new(), Vec::new()];
    for step in steps {
        match step {
            Step::Write { file, offset, len, byte } => {
                // Not constant, so that bytes from a wrong place show.
                let bytes: Vec<u8> =
                    (0..len).map(|i| byte.wrapping_add((i / 7) as u8) | 1).collect();
                fs.write(&handles[file], offset, &bytes, false).unwrap();
                put(&mut models[file], offset, &bytes);
            }
            Step::Truncate { file, size } => {
                resize(&fs, &handles[file], size);
                models[file].resize(size as usize, 0);
            }
            Step::Fallocate { file, hole, offset, len, keep } => {
                let hole = [Hole::Allocate, Hole::Punch, Hole::Zero][usize::from(hole)];
                let what = Fallocate { hole, offset, len, keep_size: keep, unprivileged: None };
                wait(|done| fs.fallocate(&handles[file], what, done)).unwrap();
                let (model, end) = (&mut models[file], (offset + len) as usize);
                if hole != Hole::Punch && !keep && model.len() < end {
                    model.resize(end, 0);
                }
                let upto = end.min(model.len());
                if hole != Hole::Allocate && (offset as usize) < upto {
                    model[offset as usize..upto].fill(0);
                }
            }
            Step::Copy { from, from_offset, to_offset, len } => {
                let to = 1 - from;
                let (source, target) = (handles[from].clone(), handles[to].clone());
                let copy = CopyRange {
                    from: source,
                    from_offset,
                    to: target,
                    to_offset,
                    len,
                    unprivileged: None,
                };
                let copied = wait(|done| fs.copy_range(copy, done)).unwrap();
                let bytes: Vec<u8> = models[from]
                    .iter()
                    .skip(from_offset as usize)
                    .take(copied as usize)
                    .copied()
                    .collect();
                assert_eq!(bytes.len() as u64, copied);
                assert_eq!(copied == 0, from_offset as usize >= models[from].len());
                put(&mut models[to], to_offset, &bytes);
            }
            Step::Flush { file } => wait(|done| fs.flush(&handles[file], done)).unwrap(),
            Step::Fsync { file } => wait(|done| fs.fsync(&handles[file], done)).unwrap(),
            Step::Reopen { file } => {
                wait(|done| fs.flush(&handles[file], done)).unwrap();
                wait(|done| fs.release(handles[file].clone(), done)).unwrap();
                handles[file] = open(&fs, names[file]);
            }
            Step::Read { file, offset, len } => {
                let found = wait(|done| fs.read(&handles[file], offset, len, done)).unwrap();
                let wanted: Vec<u8> =
                    models[file].iter().skip(offset as usize).take(len).copied().collect();
                assert!(found == wanted, "read of {len} bytes at {offset}");
            }
            Step::Reap => {
                fs.reap().unwrap();
            }
        }
        for file in 0..2 {
            let inode = wait(|done| fs.getattr(Caller::ROOT, handles[file].ino(), done)).unwrap();
            assert_eq!(inode.size, models[file].len() as u64);
        }
    }
    for file in 0..2 {
        assert!(read_all(&fs, &handles[file]) == models[file], "content of {}", names[file]);
        wait(|done| fs.flush(&handles[file], done)).unwrap();
        assert!(
            read_all(&fs, &handles[file]) == models[file],
            "content of {} after a flush",
            names[file]
        );
        check_holes(&fs, &handles[file], &models[file]);
        wait(|done| fs.release(handles[file].clone(), done)).unwrap();
        let again = open(&fs, names[file]);
        assert!(read_all(&fs, &again) == models[file], "content of {} opened again", names[file]);
    }
    fs.shutdown().unwrap();
}

/// Whatever is reported as a hole must read as zeros, and the two kinds must alternate up to the
/// end.
fn check_holes(fs: &Arc<Fs>, file: &Arc<FileHandle>, model: &[u8]) {
    let mut at = 0;
    while at < model.len() as u64 {
        let hole = wait(|done| fs.seek(file, at, Seek::Hole, done)).unwrap();
        assert!(hole >= at && hole <= model.len() as u64);
        let data = wait(|done| fs.seek(file, hole, Seek::Data, done)).unwrap_or(model.len() as u64);
        assert!(
            model[hole as usize..data as usize].iter().all(|byte| *byte == 0),
            "data within a hole"
        );
        at = data.max(hole);
        if hole == model.len() as u64 || data == model.len() as u64 {
            break;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn reads_return_what_an_array_of_bytes_would(steps in steps(), remote in any::<bool>()) {
        run(steps, if remote { MemoryStore::put_only() } else { MemoryStore::new() });
    }
}

/// A large hole may begin within bytes that lie in the inode: A few bytes in the inode of a file
/// that is much longer, and a window over some of them that is too large to be written.
#[test]
fn large_hole_over_inline_bytes() {
    let hole = |hole, offset, len, keep| Step::Fallocate { file: 0, hole, offset, len, keep };
    for (written, offset) in [(1, 1), (3000, 100), (3000, 0), (3000, 3000), (4096, 4095)] {
        for (kind, keep) in [(1, true), (1, false), (2, true), (2, false)] {
            let short = Step::Write { file: 0, offset: 0, len: written, byte: 1 };
            let grow = Step::Truncate { file: 0, size: 663_000 };
            let steps =
                vec![short, Step::Flush { file: 0 }, grow, hole(kind, offset, 700_000, keep)];
            run(steps, MemoryStore::new());
        }
    }
}

#[test]
fn many_small_overwrites_are_compacted_and_stay_right() {
    let (fs, _) = file_system(Arc::new(MemoryStore::new()));
    let file = open(&fs, "a");
    let mut model = vec![7u8; 6 << 20];
    fs.write(&file, 0, &model, false).unwrap();
    wait(|done| fs.flush(&file, done)).unwrap();
    for round in 0..1500u64 {
        let offset = ((round * 7919 * 512) % (6 << 20)) & !511;
        let bytes = [(round % 250) as u8 + 1; 300];
        fs.write(&file, offset, &bytes, false).unwrap();
        put(&mut model, offset, &bytes);
        if round % 3 == 0 {
            wait(|done| fs.flush(&file, done)).unwrap();
        }
    }
    wait(|done| fs.flush(&file, done)).unwrap();
    assert!(read_all(&fs, &file) == model);
    for _ in 0..500 {
        if fs.counters().compactions.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(
        fs.counters().compactions.load(std::sync::atomic::Ordering::Relaxed) > 0,
        "nothing was compacted"
    );
    fs.shutdown().unwrap();
}

/// A write buffer that is far smaller than what is written does not stop writers.
#[test]
fn writes_far_beyond_the_write_buffer() {
    small_budget(MemoryStore::new());
    small_budget(MemoryStore::put_only());
}

fn small_budget(store: MemoryStore) {
    let (fs, _) = file_system(Arc::new(store));
    let files: Vec<_> = (0..20).map(|i| open(&fs, &format!("f{i}"))).collect();
    for round in 0..8u64 {
        for (i, file) in files.iter().enumerate() {
            fs.write(file, round * 50_000, &vec![i as u8 + 1; 50_000], false).unwrap();
        }
    }
    for (i, file) in files.iter().enumerate() {
        wait(|done| fs.flush(file, done)).unwrap();
        assert!(read_all(&fs, file) == vec![i as u8 + 1; 400_000]);
    }
    fs.shutdown().unwrap();
}

/// A large file is written to a remote store within the bounds of the write buffer. With a store
/// across a network bytes stay in memory until they are committed, and count.
#[test]
fn large_file_within_write_buffer() {
    let (fs, _) = file_system(Arc::new(MemoryStore::put_only()));
    let file = open(&fs, "large");
    let block = |step: u64| -> Vec<u8> { (0..BLOCK).map(|i| (i / 7) as u8 ^ step as u8).collect() };
    for step in 0..256 {
        fs.write(&file, step * u64::from(BLOCK), &block(step), false).unwrap();
        assert!(fs.dirty_bytes() <= 1 << 20, "{} bytes at block {step}", fs.dirty_bytes());
    }
    let early = fs.counters().commits.load(std::sync::atomic::Ordering::Relaxed);
    assert!(early >= 2, "only commits make room, {early} made");
    wait(|done| fs.flush(&file, done)).unwrap();
    let content = read_all(&fs, &file);
    assert!(content.chunks(BLOCK as usize).zip(0..).all(|(found, step)| found == block(step)));
    assert_eq!(content.len(), 256 * BLOCK as usize);
    fs.shutdown().unwrap();
}
