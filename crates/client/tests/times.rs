//! Times of what is written: those of the writes, whenever it gets committed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;

use common::{BLOCK, file_system, open};
use kestrel_blockstore::store::MemoryStore;
use kestrel_client::fs::{Caller, Fallocate, FileHandle, Fs, Hole, wait};
use kestrel_types::clock::{Clock, SECOND};
use kestrel_types::request::{SetAttr, SetTime};

/// Modification and change, in that order.
fn times(fs: &Arc<Fs>, file: &FileHandle) -> (i64, i64) {
    let inode = wait(|done| fs.getattr(Caller::ROOT, file.ino(), done)).unwrap();
    (inode.mtime, inode.ctime)
}

fn set(fs: &Arc<Fs>, file: &FileHandle, set: SetAttr) {
    wait(|done| fs.setattr(Caller::ROOT, file.ino(), set, done)).unwrap();
}

#[test]
fn a_flush_changes_no_time() {
    let (fs, clock) = file_system(Arc::new(MemoryStore::new()));
    // One file of each form: inline, packed, chunked.
    for len in [100, 10_000, 5 * BLOCK as usize] {
        let file = open(&fs, &len.to_string());
        clock.advance(SECOND);
        let written = clock.now();
        fs.write(&file, 0, &vec![1; len], false).unwrap();
        clock.advance(SECOND);
        assert_eq!(times(&fs, &file), (written, written), "{len} bytes, not flushed");
        wait(|done| fs.flush(&file, done)).unwrap();
        assert_eq!(times(&fs, &file), (written, written), "{len} bytes, flushed");
        // Over what is committed.
        let again = clock.now();
        fs.write(&file, 10, &[2; 50], false).unwrap();
        clock.advance(SECOND);
        wait(|done| fs.fsync(&file, done)).unwrap();
        assert_eq!(times(&fs, &file), (again, again), "{len} bytes, written over");
    }
    fs.shutdown().unwrap();
}

#[test]
fn a_change_after_the_write_keeps_its_own_time() {
    let (fs, clock) = file_system(Arc::new(MemoryStore::new()));
    let file = open(&fs, "f");
    clock.advance(SECOND);
    let written = clock.now();
    fs.write(&file, 0, b"some bytes", false).unwrap();
    clock.advance(SECOND);
    let changed = clock.now();
    set(&fs, &file, SetAttr { mode: Some(0o600), ..SetAttr::default() });
    assert_eq!(times(&fs, &file), (written, changed));
    clock.advance(SECOND);
    wait(|done| fs.flush(&file, done)).unwrap();
    assert_eq!(times(&fs, &file), (written, changed));
    fs.shutdown().unwrap();
}

/// A write after a time in the future was set makes the time the present one again.
#[test]
fn write_after_mtime_in_the_future() {
    let (fs, clock) = file_system(Arc::new(MemoryStore::new()));
    let file = open(&fs, "f");
    let future = clock.now() + 1_000 * SECOND;
    set(&fs, &file, SetAttr { mtime: Some(SetTime::At(future)), ..SetAttr::default() });
    assert_eq!(times(&fs, &file).0, future);
    clock.advance(SECOND);
    let written = clock.now();
    fs.write(&file, 0, b"x", false).unwrap();
    assert_eq!(times(&fs, &file), (written, written));
    wait(|done| fs.flush(&file, done)).unwrap();
    assert_eq!(times(&fs, &file), (written, written));
    fs.shutdown().unwrap();
}

#[test]
fn a_time_that_was_set_after_a_write_stays() {
    let (fs, clock) = file_system(Arc::new(MemoryStore::new()));
    let file = open(&fs, "f");
    fs.write(&file, 0, b"x", false).unwrap();
    clock.advance(SECOND);
    set(&fs, &file, SetAttr { mtime: Some(SetTime::At(7)), ..SetAttr::default() });
    let set_at = clock.now();
    clock.advance(SECOND);
    wait(|done| fs.flush(&file, done)).unwrap();
    assert_eq!(times(&fs, &file), (7, set_at));
    fs.shutdown().unwrap();
}

#[test]
fn punching_and_zeroing_carry_the_time_of_the_call() {
    let (fs, clock) = file_system(Arc::new(MemoryStore::new()));
    let file = open(&fs, "f");
    fs.write(&file, 0, &vec![1; 10 * BLOCK as usize], false).unwrap();
    for hole in [Hole::Punch, Hole::Zero] {
        clock.advance(SECOND);
        let called = clock.now();
        let what = Fallocate { hole, offset: 100, len: 5_000, keep_size: true, unprivileged: None };
        wait(|done| fs.fallocate(&file, what, done)).unwrap();
        clock.advance(SECOND);
        wait(|done| fs.flush(&file, done)).unwrap();
        assert_eq!(times(&fs, &file), (called, called), "{hole:?}");
    }
    fs.shutdown().unwrap();
}
