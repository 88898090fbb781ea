//! Files with more chunks than one batch may take are truncated and removed at once, and their rows
//! go in bounded batches.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::Fixture;
use common::rules::{WRITE, commit, create, fixture, lookup, range, seen};
use kestrel_engine::{Engine, EngineError};
use kestrel_meta::ops::chunks::EXTENTS_TOLD_MAX;
use kestrel_meta::rows::SCAN_ROWS_MAX;
use kestrel_types::extent::Extent;
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode};
use kestrel_types::request::{Answer, COMMIT_EXTENTS_MAX, NewData, Op, OpenFlags, SetAttr};

/// More than two batches.
const CHUNKS: u64 = 2 * SCAN_ROWS_MAX as u64 + 100;

/// The file's object; each chunk refers to bytes of it.
const OBJECT: u64 = 3;

/// A file `f` of the root with one extent in each of [`CHUNKS`] chunks.
fn large(f: &Fixture) -> Inode {
    let mut inode = f.inode(create("f"));
    let ino = inode.ino;
    let chunks: Vec<u64> = (0..CHUNKS).collect();
    for part in chunks.chunks(COMMIT_EXTENTS_MAX) {
        let patches =
            part.iter().map(|chunk| (*chunk, Extent::of_range(7, range(OBJECT, 10)))).collect();
        let size = (part[part.len() - 1] + 1) * CHUNK_BYTES;
        inode = f.inode(commit(ino, "f", inode.data_change, NewData::Patches(patches), size));
    }
    assert!(matches!(f.call(Op::Release(ino)), Ok(Answer::Done)));
    assert_eq!(f.check().objects[&OBJECT], 10 * CHUNKS as i64);
    inode
}

fn resize(ino: u64, size: u64) -> Op {
    Op::SetAttr(seen(ino, "f"), SetAttr { size: Some(size), ..SetAttr::default() })
}

fn sweep_all(f: &Fixture) {
    while f.node.sweep().unwrap() {
        f.check();
    }
}

fn chunks(f: &Fixture, ino: u64, first: u64, last: u64) -> Vec<u64> {
    match f.call(Op::Chunks { ino, first, last }) {
        Ok(Answer::Chunks { chunks, end: true }) => {
            chunks.into_iter().map(|(chunk, _)| chunk).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Lists come a page at a time, from a window of any width, and the pages together are all of them.
#[test]
fn pages_of_chunk_lists() {
    let f = fixture();
    let ino = large(&f).ino;
    let (mut first, mut found) = (0, Vec::new());
    loop {
        match f.call(Op::Chunks { ino, first, last: u64::MAX }) {
            Ok(Answer::Chunks { chunks, end }) => {
                assert!(chunks.len() <= EXTENTS_TOLD_MAX && (end || !chunks.is_empty()));
                found.extend(chunks.iter().map(|(chunk, _)| *chunk));
                first = found.last().unwrap() + 1;
                if end {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(found, (0..CHUNKS).collect::<Vec<_>>());
    assert_eq!(
        f.call(Op::Chunks { ino, first: CHUNKS, last: u64::MAX }),
        Ok(Answer::Chunks { chunks: vec![], end: true })
    );
}

#[test]
fn a_removed_file_is_gone_at_once_and_its_rows_follow() {
    let f = fixture();
    let largest = Arc::new(AtomicUsize::new(0));
    large(&f);
    let seen = largest.clone();
    let tap = f.engine.tap(Box::new(move |batch| {
        seen.fetch_max(batch.len(), Ordering::Relaxed);
    }));
    assert_eq!(f.removed(Op::Unlink(common::at(1, "f"))).nlink, 0);
    assert_eq!(f.errno(lookup("f")), libc::ENOENT);
    assert_eq!(f.check().swept as u64, CHUNKS);
    sweep_all(&f);
    let found = f.check();
    assert_eq!((found.swept, found.bytes, found.objects.len()), (0, 0, 0));
    drop(tap);
    let most = largest.load(Ordering::Relaxed);
    assert!(most < SCAN_ROWS_MAX + 16, "a batch of {most} changes");
}

#[test]
fn what_was_cut_off_goes_on_going_after_a_crash() {
    let mut f = fixture();
    let ino = large(&f).ino;
    let keep = 5 * CHUNK_BYTES + 12;
    assert_eq!(f.inode(resize(ino, keep)).size, keep);
    for round in 0.. {
        f = f.crash(false);
        let found = f.check();
        assert_eq!(found.bytes as u64, keep);
        let kept = chunks(&f, ino, 0, 5);
        assert_eq!(kept, [0, 1, 2, 3, 4, 5]);
        if !f.node.sweep().unwrap() {
            assert!(round > 1 && found.swept == 0, "round {round}, {} rows", found.swept);
            // Five chunks whole, the bytes 7 to 11 of the sixth.
            assert_eq!(found.objects[&OBJECT], 55);
            return;
        }
    }
}

/// A file that was truncated and grows again reads as zeros where it was cut.
#[test]
fn zeros_in_a_regrown_file() {
    let f = fixture();
    let ino = large(&f).ino;
    let cut = f.inode(resize(ino, CHUNK_BYTES));
    assert_eq!(f.check().swept as u64, CHUNKS - 1);
    // As far as nothing is in the way, growing waits for nothing.
    assert_eq!(f.inode(resize(ino, CHUNK_BYTES - 1)).size, CHUNK_BYTES - 1);
    assert_eq!(f.check().swept as u64, CHUNKS - 1);
    let grown = f.inode(resize(ino, 100 * CHUNK_BYTES));
    assert!(grown.size == 100 * CHUNK_BYTES && grown.data_change > cut.data_change);
    // As far as it grew. The rest goes on.
    assert!(f.check().swept < CHUNKS as usize - 1);
    assert_eq!(chunks(&f, ino, 0, 4096), [0]);
    let whole = f.inode(resize(ino, CHUNKS * CHUNK_BYTES));
    assert_eq!((whole.size, f.check().swept), (CHUNKS * CHUNK_BYTES, 0));
    assert_eq!(chunks(&f, ino, CHUNKS - 4096, CHUNKS), []);
    assert_eq!(f.check().objects[&OBJECT], 10);
}

/// A file that was emptied takes new content while its old rows are deleted.
#[test]
fn new_content_during_row_deletion() {
    let f = fixture();
    let ino = large(&f).ino;
    let open = Op::Open(seen(ino, "f"), OpenFlags { truncate: true, ..WRITE });
    let emptied = f.inode(open);
    assert_eq!((emptied.size, &emptied.data), (0, &Data::None));
    let small =
        f.inode(commit(ino, "f", emptied.data_change, NewData::Inline(b"new"[..].into()), 3));
    assert_eq!(f.check().swept as u64, CHUNKS);
    // Chunks of its own only when the old ones are gone. The first patch covers what is inline.
    let patches =
        vec![(0, Extent::of_range(0, range(4, 20))), (9, Extent::of_range(0, range(4, 20)))];
    let chunked =
        f.inode(commit(ino, "f", small.data_change, NewData::Patches(patches), 10 * CHUNK_BYTES));
    assert_eq!(chunked.data, Data::Chunked);
    assert!(f.check().swept < CHUNKS as usize);
    sweep_all(&f);
    assert_eq!(chunks(&f, ino, 0, 4096), [0, 9]);
    assert_eq!(f.check().objects.keys().copied().collect::<Vec<_>>(), [4]);
}

#[test]
fn a_failing_engine_fails_who_waits_and_loses_nothing() {
    let f = fixture();
    let ino = large(&f).ino;
    f.inode(resize(ino, CHUNK_BYTES));
    // More than one request puts up with.
    for _ in 0..100 {
        f.engine.fail_commit(EngineError::Io("injected".into()));
    }
    assert_eq!(f.errno(resize(ino, 2 * CHUNK_BYTES)), libc::EIO);
    assert!(f.node.sweep().is_err());
    assert_eq!(f.inode(Op::GetAttr(seen(ino, "f"))).size, CHUNK_BYTES);
    while f.node.sweep().is_err() {}
    sweep_all(&f);
    assert_eq!(f.check().objects[&OBJECT], 10);
}
