//! With what lies above (packer, reader) and failing stores below.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use kestrel_types::range::Range;

use super::*;
use crate::packer::{Packer, PackerConfig};
use crate::reader::{Reader, ReaderConfig};
use crate::store::FailingStore;
use crate::store::failing::{Fault, Rule, StoreCall};

fn packed(store: &Arc<CodedStore>, files: &[Vec<u8>]) -> Vec<Range> {
    let next = AtomicU64::new(1);
    let ids = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
    let packer = Packer::new(store.clone(), ids, PackerConfig::new(VOLUME)).unwrap();
    let (sender, receiver) = mpsc::channel();
    for (file, bytes) in files.iter().enumerate() {
        let sender = sender.clone();
        packer.store(
            bytes.clone(),
            1,
            Box::new(move |stored: Result<crate::packer::StoredRange>| {
                sender.send((file, stored.unwrap().range)).unwrap();
            }),
        );
    }
    drop(sender);
    let mut ranges: Vec<(usize, Range)> = receiver.iter().take(files.len()).collect();
    assert_eq!(ranges.len(), files.len());
    ranges.sort_by_key(|(file, _)| *file);
    ranges.into_iter().map(|(_, range)| range).collect()
}

fn files() -> Vec<Vec<u8>> {
    [1, 100, 4096, 65_536, 65_537, 100_000, 300_000, 3 << 20]
        .iter()
        .map(|len| bytes(*len, *len as u64))
        .collect()
}

/// Files are packed, read and healed over stores that fail.
#[test]
fn packing_and_reading_over_failing_stores() {
    for coding in codings().into_iter().filter(Coding::changes_objects) {
        let memory = Arc::new(MemoryStore::put_only());
        let failing = Arc::new(FailingStore::new(memory.clone(), 11));
        let store = Arc::new(CodedStore::new(failing.clone(), VOLUME, coding));
        let files = files();
        let ranges = packed(&store, &files);
        for fault in [Fault::WrongByte, Fault::Zeros, Fault::Short, Fault::Errno(libc::EIO)] {
            failing.heal();
            failing.add(Rule { per_mille: 300, ..Rule::always(StoreCall::Read, fault) });
            for round in 0..20 {
                // Heads anew each time, so that they are hit too.
                let store =
                    Arc::new(CodedStore::new(failing.clone(), VOLUME, store.coding.clone()));
                let reader =
                    Reader::new(store, ReaderConfig { cache_bytes: 0, ..ReaderConfig::default() });
                for (range, written) in ranges.iter().zip(&files) {
                    let skip = (round * 37) % range.len;
                    let mut out = vec![0xee; (range.len - skip) as usize];
                    if reader.read(*range, skip, &mut out).is_ok() {
                        assert_eq!(out, written[skip as usize..], "{fault:?}");
                    }
                }
            }
        }
        assert!(failing.injected() > 100);
        failing.heal();
        let reader = Reader::new(store.clone(), ReaderConfig::default());
        for (range, written) in ranges.iter().zip(&files) {
            let mut out = vec![0; range.len as usize];
            reader.read(*range, 0, &mut out).unwrap();
            assert_eq!(out, *written);
            reader.verify(*range).unwrap();
        }
    }
}

#[test]
fn a_bad_copy_is_healed_by_a_fresh_read() {
    let memory = Arc::new(MemoryStore::put_only());
    let failing = Arc::new(FailingStore::new(memory, 1));
    let store =
        Arc::new(CodedStore::new(failing.clone(), VOLUME, coding(Compression::Zstd(1), Some(1))));
    let files = vec![bytes(500_000, 3)];
    let ranges = packed(&store, &files);
    let reader =
        Reader::new(store.clone(), ReaderConfig { cache_bytes: 0, ..ReaderConfig::default() });
    let mut out = vec![0; 500_000];
    reader.read(ranges[0], 0, &mut out).unwrap();
    failing.add(Rule::once(StoreCall::Read, 0, Fault::WrongByte));
    reader.read(ranges[0], 0, &mut out).unwrap();
    assert_eq!(out, files[0]);
    assert_eq!(reader.stats().healed.load(Ordering::Relaxed), 1);
}

/// A put that fails returns an error, and leaves nothing that can be read.
#[test]
fn failed_put_leaves_nothing_readable() {
    let memory = Arc::new(MemoryStore::put_only());
    let failing = Arc::new(FailingStore::new(memory.clone(), 1));
    let store = CodedStore::new(failing.clone(), VOLUME, coding(Compression::Lz4, Some(1)));
    let written = bytes(200_000, 1);
    failing.add(Rule::once(StoreCall::Put, 0, Fault::Errno(libc::ENOSPC)));
    failing.add(Rule::once(StoreCall::Put, 0, Fault::Torn(libc::EIO)));
    assert!(matches!(store.put(1, &[IoSlice::new(&written)]), Err(Error::NoSpace { .. })));
    assert!(memory.bytes(1).is_none());
    assert!(matches!(store.put(1, &[IoSlice::new(&written)]), Err(Error::Io { .. })));
    assert!(read(&store, 1, 0, written.len()).is_err());
    put(&store, 2, &written);
    assert_eq!(read(&store, 2, 0, written.len()).unwrap(), written);
}
