//! Dumps in a block store: what is listed is complete, what is read is what was written, what was
//! cut short is none and goes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{IoSlice, Read, Write};
use std::sync::Arc;

use kestrel_admin::dump::Counts;
use kestrel_admin::dump::backup::{BackupError, BackupRepository, PART_BYTES, Stamp};
use kestrel_blockstore::store::coded::{Coding, Compression, DataKey, Keys};
use kestrel_blockstore::store::{BlockStore, CodedStore, MemoryStore, list_all};
use kestrel_types::clock::{Nanos, SECOND};
use serde_json::json;

const AT: Nanos = 1_800_000_000 * SECOND;

fn repository() -> (Arc<MemoryStore>, BackupRepository) {
    let plain = Arc::new(MemoryStore::new());
    let keys = Keys::new(vec![(1, DataKey::new([7; 32].into()))], Some(1), false).unwrap();
    let coding = Coding { compression: Compression::Lz4, cipher: Some(keys) };
    let coded = CodedStore::new(plain.clone(), [9; 16], coding);
    (plain.clone(), BackupRepository::new(plain, Arc::new(coded)))
}

/// Text of this length, which differs from place to place.
fn text(bytes: usize) -> Vec<u8> {
    let block = [b'x'; 4096];
    let mut text = Vec::with_capacity(bytes + block.len());
    while text.len() < bytes {
        text.extend_from_slice(&text.len().to_be_bytes());
        text.extend_from_slice(&block);
    }
    text.truncate(bytes);
    text
}

fn put(repository: &BackupRepository, now: Nanos, text: &[u8]) -> Result<(), BackupError> {
    put_without(repository, now, text, 0)
}

fn put_without(
    repository: &BackupRepository,
    now: Nanos,
    text: &[u8],
    left_out: u64,
) -> Result<(), BackupError> {
    let mut writing = repository.begin(now);
    writing.write_all(text).unwrap();
    let counts = Counts { rows: 3, changes: 1, bytes: text.len() as u64 };
    writing.finish(counts, left_out, "test", json!({ "settings": { "name": "v" } })).map(drop)
}

fn objects(store: &dyn BlockStore) -> usize {
    list_all(store).map(|page| page.unwrap().objects.len()).sum()
}

#[test]
fn what_is_kept_is_what_was_written() {
    let (plain, repository) = repository();
    for (number, bytes) in
        [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1].into_iter().enumerate()
    {
        let written = text(bytes);
        put(&repository, AT + number as Nanos * SECOND, &written).unwrap();
        let kept = repository.list().unwrap().kept.pop().unwrap();
        assert_eq!(
            (kept.counts.bytes, kept.counts.rows, kept.program.as_str()),
            (bytes as u64, 3, "test")
        );
        assert_eq!(kept.parts, bytes.div_ceil(PART_BYTES) as u64);
        let mut read = Vec::new();
        repository.read(&kept).read_to_end(&mut read).unwrap();
        assert!(read == written, "{bytes} bytes");
        // Listing alone needs no key.
        let raw = BackupRepository::new(plain.clone(), plain.clone());
        assert_eq!(raw.manifest(kept.stamp).unwrap().volume, kept.volume);
    }
}

#[test]
fn a_dump_that_is_cut_short_is_none_and_goes() {
    let (plain, repository) = repository();
    put(&repository, AT, b"whole").unwrap();
    let mut writing = repository.begin(AT + 10 * SECOND);
    writing.write_all(&text(PART_BYTES + 5)).unwrap();
    assert_eq!(repository.list().unwrap().unfinished, [Stamp::at(AT + 10 * SECOND)]);
    // It may still be under way.
    assert_eq!(repository.prune(5, AT + 20 * SECOND).unwrap(), []);
    // A process that is killed does not clean up.
    std::mem::forget(writing);
    assert_eq!(repository.list().unwrap().kept.len(), 1);
    assert_eq!(
        repository.prune(5, AT + 25 * 3600 * SECOND).unwrap(),
        [Stamp::at(AT + 10 * SECOND)]
    );
    assert_eq!(objects(&*plain), 2);
    // One that gives up does.
    let mut writing = repository.begin(AT + 30 * SECOND);
    writing.write_all(&text(PART_BYTES)).unwrap();
    assert_eq!(objects(&*plain), 3);
    drop(writing);
    assert_eq!(objects(&*plain), 2);
}

#[test]
fn the_newest_are_kept() {
    let (plain, repository) = repository();
    for number in 0..5 {
        put(&repository, AT + number * SECOND, b"text").unwrap();
    }
    assert_eq!(repository.prune(2, AT).unwrap().len(), 3);
    let stamps: Vec<u64> =
        repository.list().unwrap().kept.iter().map(|kept| kept.stamp.0).collect();
    assert_eq!(stamps, [1_800_000_003, 1_800_000_004]);
    assert_eq!(objects(&*plain), 4);
    // The last one stays under every schedule.
    repository.prune(0, AT).unwrap();
    assert_eq!(repository.list().unwrap().kept.len(), 1);
}

/// Pruning keeps the newest whole backups, and leaves those with a time in the future alone.
#[test]
fn pruning_with_damage_and_wrong_clocks() {
    let (plain, repository) = repository();
    put(&repository, AT, b"whole").unwrap();
    for number in 1..4 {
        put_without(&repository, AT + number * SECOND, b"with damage", 2).unwrap();
    }
    put(&repository, AT + 3600 * SECOND, b"of a clock that was ahead").unwrap();
    let stamps = || -> Vec<u64> {
        repository.list().unwrap().kept.iter().map(|kept| kept.stamp.0 - Stamp::at(AT).0).collect()
    };
    repository.prune(2, AT + 4 * SECOND).unwrap();
    assert_eq!(stamps(), [0, 2, 3, 3600]);
    put(&repository, AT + 4 * SECOND, b"whole").unwrap();
    repository.prune(1, AT + 4 * SECOND).unwrap();
    assert_eq!(stamps(), [4, 3600]);
    // One that is damaged or newer does not keep the others from being found.
    plain.delete(Stamp::at(AT + 4 * SECOND).0 << 24).unwrap();
    plain.put(Stamp::at(AT + 4 * SECOND).0 << 24, &[IoSlice::new(b"no manifest")]).unwrap();
    put(&repository, AT + 5 * SECOND, b"whole").unwrap();
    assert_eq!((stamps(), repository.list().unwrap().damaged.len()), (vec![5, 3600], 1));
    repository.prune(1, AT + 5 * SECOND).unwrap();
}

#[test]
fn one_that_never_began_takes_nothing_along() {
    let (_, repository) = repository();
    let writing = repository.begin(AT);
    put(&repository, AT, b"another's").unwrap();
    drop(writing);
    let kept = repository.list().unwrap().kept;
    let mut read = String::new();
    repository.read(&kept[0]).read_to_string(&mut read).unwrap();
    assert_eq!(read, "another's");
}

#[test]
fn two_of_one_second_are_not_mixed() {
    let (_, repository) = repository();
    put(&repository, AT, b"first").unwrap();
    put(&repository, AT + 1, b"second").unwrap();
    let kept = repository.list().unwrap().kept;
    let texts: Vec<String> = kept
        .iter()
        .map(|kept| {
            let mut read = String::new();
            repository.read(kept).read_to_string(&mut read).unwrap();
            read
        })
        .collect();
    assert_eq!(texts, ["first", "second"]);
    // A clock that stands still does not get it any further.
    for number in 2..17 {
        put(&repository, AT, format!("{number}").as_bytes()).unwrap();
    }
    assert!(matches!(put(&repository, AT, b"one more"), Err(BackupError::Taken(_))));
    assert_eq!(repository.list().unwrap().kept.len(), 17);
}

#[test]
fn damage_is_told() {
    let (plain, repository) = repository();
    let stamp = Stamp::at(AT);
    assert!(matches!(repository.manifest(stamp), Err(BackupError::Missing(_))));
    put(&repository, AT, &text(PART_BYTES + 1)).unwrap();
    let object = stamp.0 << 24;
    let manifest = plain.bytes(object).unwrap();
    let replace = |bytes: &[u8]| {
        plain.delete(object).unwrap();
        plain.put(object, &[IoSlice::new(bytes)]).unwrap();
    };
    for cut in [0, 5, 9, 10, manifest.len() - 1] {
        replace(&manifest[..cut]);
        assert!(matches!(repository.manifest(stamp), Err(BackupError::Damaged(..))), "{cut} bytes");
        let listed = repository.list().unwrap();
        assert_eq!((listed.kept.len(), listed.damaged[0].0), (0, stamp));
    }
    for at in (0..manifest.len()).step_by(7) {
        let mut other = manifest.clone();
        other[at] ^= 1;
        replace(&other);
        assert!(matches!(repository.manifest(stamp), Err(BackupError::Damaged(..))), "byte {at}");
    }
    let newer =
        json!({ "magic": "kestrel-dump-manifest", "version": 2, "stamp": stamp.0 }).to_string();
    replace(format!("{newer}\n{:08x}\n", crc32c::crc32c(newer.as_bytes())).as_bytes());
    assert!(matches!(repository.manifest(stamp), Err(BackupError::Newer(_, 2))));
    replace(&manifest);
    let kept = repository.manifest(stamp).unwrap();
    plain.delete(object + 2).unwrap();
    let mut out = Vec::new();
    let why = repository.read(&kept).read_to_end(&mut out).unwrap_err().to_string();
    assert!(why.contains("part 2"), "{why}");
}
