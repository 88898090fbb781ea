//! Benchmark of compaction from a store in memory, by one worker: JSON on standard output.
//!
//! `cargo run --release -p kestrel-bucket --example compact_bench -- [--rows 4000000]
//! [--order tree|random] [--rounds 3]`
//!
//! Rows are entries of empty files, a thousand to a directory. In the order of the tree each run
//! has directories of its own, as `kestrel publish` writes them; in random order each run has rows
//! everywhere, as those of many writers would. The limits beside: reading and checksumming the same
//! bytes, and looking at each row without writing it.

use std::sync::Arc;
use std::time::Duration;

use kestrel_blockstore::named::{MemoryNamed, NamedStore};
use kestrel_bucket::version::{
    Compaction, CompactionEnd, CompactionOrder, CompactionWorker, VersionId, VersionManifest,
    VersionPlace, VersionReader, VersionRegistry, VersionSource, VersionWriter,
};
use kestrel_testkit::rng::Rng;
use kestrel_types::entry::Entry;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{KeyRef, Table};
use serde_json::json;

const VOLUME: [u8; 16] = [7; 16];
const NAMES: u64 = 1000;

type Failure = Box<dyn std::error::Error>;

struct Settings {
    rows: u64,
    is_random: bool,
    rounds: usize,
}

fn settings() -> Result<Settings, String> {
    let mut settings = Settings { rows: 4_000_000, is_random: false, rounds: 3 };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: not a number"));
        match (name.as_str(), value.as_str()) {
            ("--rows", _) => settings.rows = number()?,
            ("--rounds", _) => settings.rounds = number()?.max(1) as usize,
            ("--order", "tree" | "random") => settings.is_random = value == "random",
            _ => return Err(format!("{name} {value}: unknown")),
        }
    }
    Ok(settings)
}

/// CPU time of the process, seconds.
fn cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_secs_f64()
}

fn made(settings: &Settings, registry: &VersionRegistry) -> Result<VersionManifest, Failure> {
    let id: VersionId = [1; 16];
    let mut order: Vec<u64> = (0..settings.rows).collect();
    let mut rng = Rng::new(1);
    if settings.is_random {
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at as u64 + 1) as usize);
        }
    }
    let mut writer = VersionWriter::begin(registry.place(), id)?;
    let begun = 1_790_000_000_000_000_000i64;
    for number in order {
        let now = begun + (number * 40_000).cast_signed() + rng.below(20_000).cast_signed();
        let inode = Inode::new(1000 + number, Kind::File, now, 5_000_000 + number);
        let name = format!("file-{number:08}");
        let key = KeyRef::new(Table::Entry, 16 + number / NAMES, name.as_bytes());
        writer.put(key, &Entry::Inode(inode).encode())?;
    }
    let snapshot_name = b"s".into();
    let source =
        VersionSource { dir: 1, snapshot_dir: 1, snapshot: 5, snapshot_name, owned: false };
    let mut made = VersionManifest::new("in", &VOLUME, &id, source);
    made.rows = writer.rows();
    made.runs = writer.finish()?;
    registry.publish(&made)?;
    Ok(made)
}

/// Seconds of reading all tables and making a checksum of all their bytes.
fn checksummed(store: &MemoryNamed, version: &VersionManifest) -> Result<f64, Failure> {
    let begun = cpu();
    let mut sum = 0;
    for table in version.runs.iter().flatten() {
        let name = format!("{}{:016x}", VersionPlace::tables_of(&version.id_bytes()), table.id);
        let mut at = 0;
        while at < table.bytes {
            let bytes = store.read_range(&name, at, 4 << 20)?;
            sum ^= crc32c::crc32c(&bytes);
            at += bytes.len() as u64;
        }
    }
    std::hint::black_box(sum);
    Ok(cpu() - begun)
}

/// Seconds of looking at all rows.
fn visited(registry: &VersionRegistry, version: &VersionManifest) -> Result<f64, Failure> {
    let begun = cpu();
    let reader = VersionReader::new(registry.place(), version, 1 << 20)?;
    let mut bytes = 0;
    reader.visit((&[], &[u8::MAX; 2]), &mut |key: &[u8], value: &[u8]| {
        bytes += key.len() + value.len();
        Ok(())
    })?;
    std::hint::black_box(bytes);
    Ok(cpu() - begun)
}

/// Seconds of a compaction, and what it made.
fn compacted(
    registry: &VersionRegistry,
    input: &VersionManifest,
    round: usize,
) -> Result<(f64, VersionManifest), Failure> {
    let id = [u8::try_from(round + 2)?; 16];
    let into = format!("out{round}");
    VersionWriter::begin(registry.place(), id)?;
    let begun = cpu();
    let order = CompactionOrder {
        input,
        into: &into,
        id,
        created: 0,
        user: 0,
        partitions: None,
        patience: Duration::from_secs(600),
    };
    let compaction = Compaction::begin(registry, &order)?.ok_or("another one is under way")?;
    CompactionWorker::new(&compaction, input, "bench")?.run()?;
    let CompactionEnd::Published(made) = compaction.finish(input)? else {
        return Err("it was not published".into());
    };
    Ok((cpu() - begun, *made))
}

fn least(seconds: Vec<f64>) -> f64 {
    seconds.into_iter().fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), Failure> {
    let settings = settings()?;
    let store = Arc::new(MemoryNamed::default());
    let registry = VersionRegistry::new(VersionPlace::new(store.clone()), VOLUME);
    let input = made(&settings, &registry)?;
    let (mut sums, mut visits, mut compactions) = (Vec::new(), Vec::new(), Vec::new());
    let mut output = None;
    for round in 0..settings.rounds {
        sums.push(checksummed(&store, &input)?);
        visits.push(visited(&registry, &input)?);
        let reads = store.calls("read");
        let (seconds, made) = compacted(&registry, &input, round)?;
        compactions.push(seconds);
        output = Some((made.clone(), store.calls("read") - reads));
        registry.remove(&made)?;
    }
    let (output, reads) = output.ok_or("no rounds")?;
    let rows = settings.rows as f64;
    let rate = |seconds: Vec<f64>| (rows / least(seconds)) as u64;
    println!(
        "{}",
        json!({
            "rows": settings.rows,
            "order": if settings.is_random { "random" } else { "tree" },
            "runs": input.runs.len(),
            "input_bytes": input.table_bytes(),
            "output_bytes": output.table_bytes(),
            "tables": output.tables(),
            "reads": reads,
            "checksums_per_cpu_second": rate(sums),
            "visits_per_cpu_second": rate(visits),
            "entries_per_cpu_second": rate(compactions),
        })
    );
    Ok(())
}
