//! Data compressed as the policies of directories say: by writes, flushes and compaction.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::{file_system, open};
use kestrel_blockstore::store::{BlockStore, CodedStore, MemoryStore, list_all};
use kestrel_client::fs::{Caller, CompactOptions, Compacted, FileHandle, Fs, wait};
use kestrel_types::ids::{ObjectId, ROOT};
use kestrel_types::request::XattrFlags;

const BLOCK: usize = common::BLOCK as usize;
const NAME: &[u8] = b"kestrel.compression";

/// Bytes that compress, other ones for each seed.
fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at / 40 % 50 + seed * 3 + at / 997) as u8).collect()
}

fn set(fs: &Arc<Fs>, value: &str) {
    let (name, value) = (NAME.into(), value.as_bytes().into());
    wait(|done| fs.setxattr(Caller::ROOT, ROOT, name, value, XattrFlags::default(), done)).unwrap();
}

fn write(fs: &Arc<Fs>, file: &FileHandle, offset: u64, data: &[u8]) {
    fs.write(file, offset, data, false).unwrap();
    wait(|done| fs.fsync(file, done)).unwrap();
}

fn close(fs: &Arc<Fs>, file: Arc<FileHandle>) {
    wait(|done| fs.release(file, done)).unwrap();
}

/// The objects of a store that are compressed, and the others.
fn objects(inner: &Arc<MemoryStore>) -> (BTreeSet<ObjectId>, BTreeSet<ObjectId>) {
    let looking = CodedStore::of_plain(inner.clone(), [0; 16]);
    let all = list_all(&**inner).flat_map(|page| page.unwrap().objects);
    let split = |info: &kestrel_blockstore::store::ObjectInfo| {
        looking.size(info.object).unwrap() != info.size
    };
    let (coded, plain): (Vec<_>, Vec<_>) = all.partition(split);
    let numbers = |infos: Vec<kestrel_blockstore::store::ObjectInfo>| {
        infos.into_iter().map(|info| info.object).collect()
    };
    (numbers(coded), numbers(plain))
}

fn is(fs: &Arc<Fs>, name: &str, expected: &[u8]) {
    let file = open(fs, name);
    assert!(wait(|done| fs.read(&file, 0, 1 << 20, done)).unwrap() == expected, "{name}");
    close(fs, file);
}

/// A file keeps what its open was told: the word that counts for the next open does not change how
/// its bytes are stored, and a reader that joins in does not either.
#[test]
fn word_at_the_open_counts() {
    let inner = Arc::new(MemoryStore::new());
    let (fs, _) = file_system(Arc::new(CodedStore::of_plain(inner.clone(), [0; 16])));
    let before = open(&fs, "before");
    set(&fs, "zstd");
    write(&fs, &before, 0, &content(1, 300_000));
    assert!(objects(&inner).0.is_empty());
    let after = open(&fs, "after");
    write(&fs, &after, 0, &content(2, 300_000));
    let plain = objects(&inner).1;
    wait(|done| fs.removexattr(Caller::ROOT, ROOT, NAME.into(), done)).unwrap();
    // Whole blocks, a few bytes and a small file, at several commits.
    for number in 0..20 {
        write(&fs, &after, number * 1000, &content(number, 100));
        write(&fs, &after, 300_000 + number * 70_000, &content(number, 70_000));
    }
    assert_eq!(objects(&inner).1, plain);
    close(&fs, after);
    let again = open(&fs, "after");
    write(&fs, &again, 0, &content(9, 70_000));
    assert!(objects(&inner).1.len() + objects(&inner).0.len() > plain.len());
    close(&fs, again);
    is(&fs, "before", &content(1, 300_000));
}

/// Compaction stores live bytes again by the word that counts then, and finds compressed sparse
/// objects among plain ones.
#[test]
fn compaction_by_the_present_word() {
    let inner = Arc::new(MemoryStore::put_only());
    let (fs, _) = file_system(Arc::new(CodedStore::of_plain(inner.clone(), [0; 16])));
    let everything = CompactOptions {
        rows: None,
        paths: None,
        grace: 0,
        dry_run: false,
        is_worth: &|_| true,
        go_on: &|_| true,
    };
    let compact = || fs.compact_volume(&everything, &mut |_, _| {}).unwrap();
    let mut kept = Vec::new();
    for (round, value) in ["none", "zstd:5", "none", "lz4"].into_iter().enumerate() {
        // Of each block that is stored first a few bytes stay in use.
        set(&fs, value);
        let (name, mut expected) = (format!("f{round}"), content(round as u64, 10 * BLOCK));
        let file = open(&fs, &name);
        write(&fs, &file, 0, &expected);
        for block in 0..10 {
            let (at, newer) = (block * BLOCK, content(block as u64 + 70, 60_000));
            fs.write(&file, at as u64, &newer, false).unwrap();
            expected[at..at + newer.len()].copy_from_slice(&newer);
        }
        wait(|done| fs.fsync(&file, done)).unwrap();
        close(&fs, file);
        kept.push((name, expected));
        let next = ["zstd:5", "none", "lz4", "zstd:1"][round];
        set(&fs, next);
        let (coded, plain) = objects(&inner);
        let Compacted { moved, failed, changed, .. } = compact();
        assert!(moved > 0 && failed + changed == 0, "{value}: {moved} moved, {failed} failed");
        let (coded_now, plain_now) = objects(&inner);
        assert_eq!(plain_now.difference(&plain).count() > 0, next == "none", "{value}");
        assert_eq!(coded_now.difference(&coded).count() > 0, next != "none", "{value}");
        kept.iter().for_each(|(name, expected)| is(&fs, name, expected));
    }
}
