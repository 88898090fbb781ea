//! The packer and the reader over a store across a network: every request takes a while, and is
//! counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kestrel_blockstore::reader::{ReadAhead, ReadAheadConfig};
use kestrel_blockstore::store::MemoryStore;
use kestrel_blockstore::store::failing::{FailingStore, Fault, Rule, StoreCall};
use kestrel_blockstore::{Packer, PackerConfig, Pool, Reader, ReaderConfig, Turn};
use kestrel_types::range::Range;

use crate::{cpu_us, data, store_one};

const THREADS: usize = 64;
const FILE_BYTES: usize = 100 * 1024;
/// One PUT a file is slow: this many files of each crowd of connections are enough to see how slow.
const FILES_PER_CONNECTION: usize = 32;
const BLOCK_BYTES: usize = 4 << 20;
const LARGE_BLOCKS: usize = 128;
const READ_BYTES: usize = 1 << 20;

/// A store in which every request takes `latency`.
fn slow_store(latency: Duration) -> Arc<FailingStore> {
    let store = FailingStore::new(Arc::new(MemoryStore::put_only()), 1);
    for call in [StoreCall::Put, StoreCall::Read] {
        store.add(Rule::always(call, Fault::Slow(latency)));
    }
    Arc::new(store)
}

fn packer(store: &Arc<FailingStore>, config: PackerConfig) -> Packer {
    let next = AtomicU64::new(1);
    let ids = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
    Packer::new(store.clone(), ids, config).expect("packer")
}

/// Stores `files` files from many threads; files a second.
fn write_small(packer: &Packer, files: usize) -> (f64, Vec<Range>) {
    let (next, bytes) = (AtomicUsize::new(0), data(FILE_BYTES));
    let begun = Instant::now();
    let ranges = std::thread::scope(|scope| {
        let store = || {
            let mut ranges = Vec::new();
            while next.fetch_add(1, Ordering::Relaxed) < files {
                ranges.push(store_one(packer, &bytes));
            }
            ranges
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(store)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("stored")).collect()
    });
    (files as f64 / begun.elapsed().as_secs_f64(), ranges)
}

/// One PUT a file over so many connections.
fn write_one_by_one(latency: Duration, connections: usize) -> f64 {
    let store = slow_store(latency);
    let config = PackerConfig {
        own_object_bytes: 1,
        uploads: connections + 1,
        ..PackerConfig::new([1; 16])
    };
    write_small(&packer(&store, config), connections * FILES_PER_CONNECTION).0
}

/// Writes blocks as fast as they go, with at most a write buffer's worth under way; MB/s.
fn write_large(packer: &Packer) -> (f64, Vec<Range>) {
    let bytes = data(BLOCK_BYTES);
    let begun = Instant::now();
    let ranges: Vec<Range> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    (0..LARGE_BLOCKS / THREADS)
                        .map(|_| store_one(packer, &bytes))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("stored")).collect()
    });
    ((LARGE_BLOCKS * BLOCK_BYTES) as f64 / 1e6 / begun.elapsed().as_secs_f64(), ranges)
}

/// Reads the blocks one after the other as an open file does; MB/s.
fn read_large(store: &Arc<FailingStore>, blocks: &[Range]) -> f64 {
    let reader = Arc::new(Reader::new(
        store.clone(),
        ReaderConfig { cache_bytes: 256 << 20, ..Default::default() },
    ));
    let pool = Pool::new("bench", 64, 4096).expect("pool");
    let mut ahead = ReadAhead::new(ReadAheadConfig::remote(32 << 20));
    let (mut out, len) = (vec![0; READ_BYTES], (blocks.len() * BLOCK_BYTES) as u64);
    let begun = Instant::now();
    for pos in (0..len).step_by(READ_BYTES) {
        if let Some(window) = ahead.on_read(pos, READ_BYTES as u64, len) {
            let (mut at, end) = (window.pos, window.pos + window.len);
            while at < end {
                let skip = at % BLOCK_BYTES as u64;
                let part = (BLOCK_BYTES as u64 - skip).min(end - at);
                let (reader, range) = (reader.clone(), blocks[(at / BLOCK_BYTES as u64) as usize]);
                let job = move |turn| {
                    if turn == Turn::Run {
                        reader.prefetch(range, skip as u32, part as u32);
                    }
                };
                let _ = pool.try_submit(None, Box::new(job));
                at += part;
            }
        }
        let range = blocks[(pos / BLOCK_BYTES as u64) as usize];
        reader.read(range, (pos % BLOCK_BYTES as u64) as u32, &mut out).expect("read");
    }
    len as f64 / 1e6 / begun.elapsed().as_secs_f64()
}

/// Small files written by 64 threads, together and one by one; then a large file written and read.
pub fn run(milliseconds: u64, files: usize) {
    let latency = Duration::from_millis(milliseconds);
    let store = slow_store(latency);
    let small = packer(&store, PackerConfig::new([1; 16]));
    let cpu = cpu_us();
    let (packed, _) = write_small(&small, files);
    let cpu = (cpu_us() - cpu) / files as f64;
    let puts = small.stats().objects.load(Ordering::Relaxed);
    drop(small);
    println!("{{\n  \"milliseconds\": {milliseconds}, \"threads\": {THREADS}, \"files\": {files},");
    println!(
        "  \"packed\": {{\"files_per_second\": {packed:.0}, \"puts\": {puts}, \"cpu_us\": \
         {cpu:.1}}},"
    );
    for connections in [1, 2, 20, 64] {
        let single = write_one_by_one(latency, connections);
        println!(
            "  \"one_put_a_file_{connections}\": {{\"files_per_second\": {single:.0}, \"ratio\": \
             {:.1}}},",
            packed / single
        );
    }
    let store = slow_store(latency);
    let large = packer(&store, PackerConfig { uploads: 32, ..PackerConfig::new([1; 16]) });
    let (written, blocks) = write_large(&large);
    let read = read_large(&store, &blocks);
    println!(
        "  \"large\": {{\"write_mb_per_second\": {written:.0}, \"read_mb_per_second\": \
         {read:.0}}}\n}}"
    );
}
