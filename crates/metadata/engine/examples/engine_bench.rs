//! Benchmark of the embedded engine below everything else: JSON on standard output.
//!
//! `cargo run --release -p kestrel-engine --example engine_bench -- [--rows 10000000] [--dir DIR]
//! [--memory-mb 4096] [--cold-mb 256] [--compression none|lz4]`
//!
//! Rows have 24-byte keys and 120-byte values, 100 to a directory, directories in random order. The
//! floor is a raw file with one `fdatasync` a batch, in the same run. CPU time is the process's, so
//! it includes flush and merge threads.

use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_engine::embedded::{Compression, EmbeddedEngine, EmbeddedOptions};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::key::{Key, KeyRef, Table};

const UUID: [u8; 16] = [7; 16];
const FILES_PER_DIRECTORY: u64 = 100;
const BATCH: u64 = 256;
const VALUE: usize = 120;

struct Settings {
    rows: u64,
    dir: PathBuf,
    memory_mb: u64,
    cold_mb: u64,
    compression: Compression,
}

fn settings() -> Result<Settings, String> {
    let mut settings = Settings {
        rows: 10_000_000,
        dir: std::env::temp_dir().join("kestrel-engine-bench"),
        memory_mb: 4096,
        cold_mb: 256,
        compression: EmbeddedOptions::default().compression,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: not a number"));
        match name.as_str() {
            "--rows" => settings.rows = number()?,
            "--dir" => settings.dir = value.into(),
            "--memory-mb" => settings.memory_mb = number()?,
            "--cold-mb" => settings.cold_mb = number()?,
            "--compression" if value == "none" => settings.compression = Compression::None,
            "--compression" if value == "lz4" => settings.compression = Compression::Lz4,
            _ => return Err(format!("{name} {value}: unknown")),
        }
    }
    Ok(settings)
}

/// CPU time of the process.
fn cpu() -> Duration {
    // SAFETY: all-zero bytes are a valid `rusage`; the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Resident memory of the process, bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Bytes of all files below a directory.
fn disk(dir: &Path) -> u64 {
    let Ok(files) = std::fs::read_dir(dir) else { return 0 };
    files
        .flatten()
        .map(|file| match file.metadata() {
            Ok(meta) if meta.is_dir() => disk(&file.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

/// A permutation of 64-bit numbers (splitmix64's finaliser).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn directory(row: u64) -> u64 {
    mix(row / FILES_PER_DIRECTORY) >> 16
}

fn name(row: u64) -> [u8; 15] {
    let mut name = *b"image-00000.jpg";
    let digits = format!("{:05}", row % FILES_PER_DIRECTORY);
    name[6..11].copy_from_slice(digits.as_bytes());
    name
}

fn value(row: u64) -> Box<[u8]> {
    let mut value = vec![0; VALUE];
    for (index, piece) in value.chunks_mut(8).enumerate() {
        // Half noise, half what attributes look like.
        let word = if index % 2 == 0 { mix(row + index as u64) } else { index as u64 };
        piece.copy_from_slice(&word.to_be_bytes()[..piece.len()]);
    }
    value.into()
}

fn batch(from: u64, count: u64) -> Vec<Mutation> {
    (from..from + count)
        .map(|row| Mutation {
            key: Key::new(Table::Entry, directory(row), &name(row)),
            value: Some(value(row)),
        })
        .collect()
}

/// Wall and CPU time of something done `count` times.
struct Measured {
    count: u64,
    wall: Duration,
    cpu: Duration,
}

fn measure(count: u64, work: impl FnOnce()) -> Measured {
    let (wall, before) = (Instant::now(), cpu());
    work();
    Measured { count, wall: wall.elapsed(), cpu: cpu() - before }
}

impl Measured {
    fn json(&self, name: &str) -> String {
        let per = |time: Duration| time.as_secs_f64() * 1e6 / self.count as f64;
        format!(
            "\"{name}\": {{\"count\": {}, \"us\": {:.3}, \"cpu_us\": {:.3}, \"per_s\": {:.0}}}",
            self.count,
            per(self.wall),
            per(self.cpu),
            self.count as f64 / self.wall.as_secs_f64()
        )
    }
}

fn options(settings: &Settings, memory_mb: u64) -> EmbeddedOptions {
    EmbeddedOptions {
        memory_bytes: memory_mb << 20,
        compression: settings.compression,
        ..EmbeddedOptions::default()
    }
}

fn open(settings: &Settings, memory_mb: u64) -> EmbeddedEngine {
    let hook = Arc::new(|| Ok(()));
    EmbeddedEngine::open(&settings.dir, UUID, options(settings, memory_mb), hook, &mut |_| true)
        .unwrap_or_else(|why| panic!("{why}"))
}

fn ok<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|why| panic!("{why}"))
}

/// Reads `count` random rows in batches; with `absent`, names that do not exist in directories that
/// do.
fn gets(
    engine: &EmbeddedEngine,
    settings: &Settings,
    count: u64,
    batch: u64,
    absent: bool,
) -> Measured {
    let mut found = 0;
    let measured = measure(count, || {
        let mut names = Vec::new();
        for round in 0..count / batch {
            names.clear();
            for index in 0..batch {
                let row = mix(round * batch + index + 1) % settings.rows;
                let mut name = name(row);
                if absent {
                    name[0] = b'x';
                }
                names.push((directory(row), name));
            }
            let keys: Vec<_> =
                names.iter().map(|(id, name)| KeyRef::new(Table::Entry, *id, name)).collect();
            ok(engine.get_many(&keys, &mut |_, row| found += u64::from(row.value.is_some())));
        }
    });
    assert_eq!(found, if absent { 0 } else { count / batch * batch });
    measured
}

fn scans(engine: &EmbeddedEngine, settings: &Settings, count: u64) -> Measured {
    measure(count, || {
        for round in 0..count {
            let mut rows = 0;
            let id = directory(mix(round + 1) % settings.rows);
            ok(engine.scan(Table::Entry, id, None, &mut |_, _, _| {
                rows += 1;
                ControlFlow::Continue(())
            }));
            assert_eq!(rows, FILES_PER_DIRECTORY);
        }
    })
}

/// Batches made durable one after another, on a raw file and on the engine.
fn durable(engine: &EmbeddedEngine, settings: &Settings, next: &mut u64, out: &mut Vec<String>) {
    let path = settings.dir.join("floor");
    let file = ok(OpenOptions::new().create(true).truncate(true).write(true).open(&path));
    let zeros = vec![0; 1 << 20];
    for piece in 0..256 {
        ok(file.write_all_at(&zeros, piece << 20));
    }
    ok(file.sync_all());
    for size in [1u64, 64, 256, 1024] {
        let rounds = 600 / (1 + size / 256);
        let bytes = vec![7; size as usize * 150];
        let mut at = 0;
        let floor = measure(size * rounds, || {
            for _ in 0..rounds {
                ok(file.write_all_at(&bytes, at));
                at = (at + bytes.len() as u64) % (200 << 20);
                ok(file.sync_data());
            }
        });
        let engine = measure(size * rounds, || {
            for _ in 0..rounds {
                for row in (*next..*next + size).step_by(FILES_PER_DIRECTORY as usize) {
                    engine.hint_new(Table::Entry, directory(row));
                }
                ok(engine.commit(BatchKind::Growing, batch(*next, size)));
                *next += size;
                ok(engine.sync());
            }
        });
        out.push(floor.json(&format!("floor_{size}")));
        out.push(engine.json(&format!("durable_{size}")));
    }
    ok(std::fs::remove_file(path));
}

fn load(engine: &EmbeddedEngine, settings: &Settings, out: &mut Vec<String>) {
    let tenth = settings.rows / 10 / BATCH * BATCH;
    let mut at = 0;
    let mut times = Vec::new();
    let whole = measure(tenth * 10, || {
        for part in 0..10 {
            let measured = measure(tenth, || {
                for from in (at..at + tenth).step_by(BATCH as usize) {
                    for row in from..from + BATCH {
                        if row % FILES_PER_DIRECTORY == 0 {
                            engine.hint_new(Table::Entry, directory(row));
                        }
                    }
                    let batch = batch(from, BATCH);
                    let start = Instant::now();
                    ok(engine.commit(BatchKind::Growing, batch));
                    times.push(start.elapsed().as_micros() as u64);
                }
            });
            at += tenth;
            if part == 0 || part == 9 {
                out.push(measured.json(&format!("load_part_{part}")));
            }
        }
    });
    out.push(whole.json("load"));
    out.push(percentiles("load_commit", times));
    // What making the batches costs, to subtract.
    let made = measure(tenth, || {
        for from in (0..tenth).step_by(BATCH as usize) {
            std::hint::black_box(batch(from, BATCH));
        }
    });
    out.push(made.json("making_batches"));
    for row in at..settings.rows {
        ok(engine.commit(BatchKind::Growing, batch(row, 1)));
    }
}

/// Two threads fill one directory with names in random order; then pages are read from random
/// places.
fn one_directory(engine: &EmbeddedEngine, settings: &Settings, out: &mut Vec<String>) {
    const THREADS: u64 = 2;
    let id = 1 << 60;
    engine.hint_new(Table::Entry, id);
    let batches = (settings.rows / 5).max(BATCH * THREADS) / BATCH / THREADS;
    let name = |row: u64| format!("{:016x}", mix(row));
    let mut slow: Vec<u64> = Vec::new();
    let measured = measure(batches * BATCH * THREADS, || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut times = Vec::new();
                        for number in 0..batches {
                            let from = (number * THREADS + thread) * BATCH;
                            let batch = (from..from + BATCH)
                                .map(|row| Mutation {
                                    key: Key::new(Table::Entry, id, name(row).as_bytes()),
                                    value: Some(value(row)),
                                })
                                .collect();
                            let start = Instant::now();
                            ok(engine.commit(BatchKind::Growing, batch));
                            times.push(start.elapsed().as_micros() as u64);
                        }
                        times
                    })
                })
                .collect();
            for thread in threads {
                slow.extend(thread.join().unwrap_or_default());
            }
        });
    });
    out.push(measured.json("one_directory_load"));
    out.push(percentiles("one_directory_commit", slow));
    let pages = 2000;
    let measured = measure(pages, || {
        for page in 0..pages {
            let mut rows = 0;
            let after = name(mix(page + 1));
            ok(engine.scan(Table::Entry, id, Some(after.as_bytes()), &mut |_, _, _| {
                rows += 1;
                if rows < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            }));
        }
    });
    out.push(measured.json("one_directory_page_1000"));
}

fn percentiles(name: &str, mut times: Vec<u64>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    format!(
        "\"{name}_us\": {{\"p50\": {}, \"p99\": {}, \"p999\": {}, \"max\": {}}}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    )
}

fn main() {
    let settings = settings().unwrap_or_else(|why| {
        eprintln!("engine_bench: {why}");
        std::process::exit(2);
    });
    // From an earlier run.
    let _ = std::fs::remove_dir_all(&settings.dir);
    let mut out = vec![format!(
        "\"rows\": {}, \"compression\": \"{:?}\"",
        settings.rows, settings.compression
    )];
    let base = resident();
    let engine = open(&settings, settings.memory_mb);
    load(&engine, &settings, &mut out);
    let stats = engine.stats();
    out.push(format!(
        "\"memory\": {{\"rows\": {}, \"accounted_bytes_per_row\": {:.1}, \
         \"resident_bytes_per_row\": {:.1}}}",
        stats.rows_in_memory,
        stats.memory_bytes as f64 / stats.rows_in_memory as f64,
        (resident() - base) as f64 / stats.rows_in_memory as f64
    ));
    let count = 4_000_000.min(settings.rows * 4);
    out.push(gets(&engine, &settings, count, 1, false).json("get_1"));
    out.push(gets(&engine, &settings, count, 256, false).json("get_256"));
    out.push(gets(&engine, &settings, count, 256, true).json("miss_256"));
    out.push(scans(&engine, &settings, 100_000.min(settings.rows / 10)).json("scan_100"));
    let mut next = settings.rows.next_multiple_of(FILES_PER_DIRECTORY);
    durable(&engine, &settings, &mut next, &mut out);
    // Dropped without close: what recovery has to do after kill -9.
    drop(engine);
    let engine = measure(1, || drop(open(&settings, settings.memory_mb)));
    out.push(engine.json("reopen_after_kill"));
    let engine = open(&settings, settings.memory_mb);
    out.push(measure(1, || ok(engine.flush())).json("flush"));
    out.push(measure(1, || ok(engine.compact())).json("compact"));
    out.push(measure(1, || ok(engine.close())).json("close"));
    out.push(format!(
        "\"disk\": {{\"bytes_per_row\": {:.1}, \"run_bytes_per_row\": {:.1}, \"rows\": {next}}}",
        disk(&settings.dir) as f64 / next as f64,
        disk(&settings.dir.join("runs")) as f64 / next as f64
    ));
    let before = resident();
    let reopened = Instant::now();
    let engine = open(&settings, settings.cold_mb);
    out.push(format!("\"reopen_after_close_s\": {:.3}", reopened.elapsed().as_secs_f64()));
    out.push(gets(&engine, &settings, 100_000, 256, false).json("cold_get_256"));
    out.push(gets(&engine, &settings, 100_000, 256, true).json("cold_miss_256"));
    out.push(scans(&engine, &settings, 20_000.min(settings.rows / 10)).json("cold_scan_100"));
    out.push(format!("\"cold_resident_mb\": {}", (resident() - before) >> 20));
    let stats = engine.stats();
    out.push(format!("\"cold_memory_mb\": {}", stats.memory_bytes >> 20));
    ok(engine.close());
    ok(std::fs::remove_dir_all(&settings.dir));
    let engine = open(&settings, settings.memory_mb);
    one_directory(&engine, &settings, &mut out);
    // Killed with as much log as a busy volume may have.
    let mut row = settings.rows * 2;
    while engine.stats().log_bytes % (900 << 20) < 800 << 20 && row < settings.rows * 3 {
        ok(engine.commit(BatchKind::Growing, batch(row, BATCH)));
        row += BATCH;
    }
    let dirty = engine.stats().dirty_bytes >> 20;
    drop(engine);
    let reopened = Instant::now();
    let engine = open(&settings, settings.memory_mb);
    out.push(format!(
        "\"reopen_after_kill_busy\": {{\"s\": {:.3}, \"dirty_mb_before\": {dirty}, \"dirty_mb\": \
         {}}}",
        reopened.elapsed().as_secs_f64(),
        engine.stats().dirty_bytes >> 20
    ));
    drop(engine);
    println!("{{\n  {}\n}}", out.join(",\n  "));
    let _ = std::fs::remove_dir_all(&settings.dir);
}
