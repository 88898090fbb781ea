//! Measures what coding costs: `coded_bench [SECONDS]`. Prints one JSON object.
//!
//! CPU seconds per GiB of plain data, written and read in objects of 16 MiB through a
//! [`CodedStore`] above memory, by one thread, for two kinds of data: `text` (this repository's own
//! sources, repeated; compresses) and `noise` (does not). Each variant runs three times,
//! interleaved with the others; the median counts. `store` is the store alone; its copying is part
//! of every other figure.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_blockstore::store::coded::{Coding, Compression, DataKey, Keys};
use kestrel_blockstore::store::{BlockStore, CodedStore, MemoryStore};
use zeroize::Zeroizing;

const OBJECT_BYTES: usize = 16 << 20;
/// As the packer gives them: frames, each with its check.
const PART_BYTES: usize = 64 << 10;
const RUNS: usize = 3;
const GIB: f64 = (1u64 << 30) as f64;

/// CPU time of this thread, seconds.
fn cpu() -> f64 {
    // SAFETY: plain integers, for which all zeros is a valid value; the pointer outlives the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// CPU seconds per GiB of doing `work`, which handles one object, again and again.
fn measure(time: Duration, mut work: impl FnMut(u64)) -> f64 {
    let (begun, before, mut objects) = (Instant::now(), cpu(), 0);
    while begun.elapsed() < time || objects == 0 {
        objects += 1;
        work(objects);
    }
    (cpu() - before) * GIB / (objects as f64 * OBJECT_BYTES as f64)
}

fn text() -> Vec<u8> {
    let mut sources = Vec::new();
    let mut dirs = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                sources.extend(std::fs::read(path).unwrap_or_default());
            }
        }
    }
    sources.into_iter().cycle().take(OBJECT_BYTES).collect()
}

fn noise() -> Vec<u8> {
    let mut x = 1u64;
    std::iter::repeat_with(|| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 56) as u8
    })
    .take(OBJECT_BYTES)
    .collect()
}

fn put(store: &dyn BlockStore, object: u64, data: &[u8]) {
    let parts: Vec<IoSlice<'_>> = data.chunks(PART_BYTES).map(IoSlice::new).collect();
    store.put(object, &parts).expect("put");
}

fn median(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

struct Variant {
    name: &'static str,
    coding: Option<Coding>,
}

fn variants() -> Vec<Variant> {
    let keys = || {
        let key = DataKey::new(Zeroizing::new([7; 32]));
        Keys::new(vec![(1, key)], Some(1), true).expect("one key")
    };
    let variant = |name, compression, is_encrypted: bool| {
        let coding = Coding { compression, cipher: is_encrypted.then(keys) };
        Variant { name, coding: Some(coding) }
    };
    vec![
        Variant { name: "store", coding: None },
        variant("none", Compression::None, false),
        variant("lz4", Compression::Lz4, false),
        variant("zstd:1", Compression::Zstd(1), false),
        variant("zstd:3", Compression::Zstd(3), false),
        variant("zstd:9", Compression::Zstd(9), false),
        variant("aes", Compression::None, true),
        variant("lz4+aes", Compression::Lz4, true),
        variant("zstd:3+aes", Compression::Zstd(3), true),
    ]
}

/// One variant, once: CPU per GiB written and read, stored bytes per plain byte.
fn run(variant: &Variant, data: &[u8], time: Duration) -> (f64, f64, f64) {
    let memory = Arc::new(MemoryStore::put_only());
    let store: Arc<dyn BlockStore> = match &variant.coding {
        Some(coding) => Arc::new(CodedStore::new(memory.clone(), [1; 16], coding.clone())),
        None => memory.clone(),
    };
    let write = measure(time, |object| {
        put(&*store, object, data);
        store.delete(object).expect("delete");
    });
    put(&*store, u64::MAX, data);
    let stored = memory.bytes(u64::MAX).expect("stored").len() as f64;
    let mut out = vec![0; 1 << 20];
    let read = measure(time, |_| {
        for offset in (0..OBJECT_BYTES).step_by(out.len()) {
            store.read(u64::MAX, offset as u64, &mut [IoSliceMut::new(&mut out)]).expect("read");
        }
    });
    assert_eq!(out, data[OBJECT_BYTES - out.len()..], "{}", variant.name);
    (write, read, stored / OBJECT_BYTES as f64)
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    let mut lines = Vec::new();
    for (kind, data) in [("text", text()), ("noise", noise())] {
        let variants = variants();
        let mut runs: Vec<Vec<(f64, f64, f64)>> = vec![Vec::new(); variants.len()];
        for _ in 0..RUNS {
            for (variant, runs) in variants.iter().zip(&mut runs) {
                runs.push(run(variant, &data, time));
            }
        }
        for (variant, runs) in variants.iter().zip(&runs) {
            let write = median(runs.iter().map(|run| run.0).collect());
            let read = median(runs.iter().map(|run| run.1).collect());
            lines.push(format!(
                "{{\"data\": \"{kind}\", \"coding\": \"{}\", \"write_cpu_s_per_gib\": {write:.3}, \
                 \"read_cpu_s_per_gib\": {read:.3}, \"stored_ratio\": {:.3}}}",
                variant.name, runs[0].2
            ));
        }
    }
    println!("{{\"object_bytes\": {OBJECT_BYTES}, \"read_bytes\": {}, \"results\": [", 1 << 20);
    println!("  {}\n]}}", lines.join(",\n  "));
}
