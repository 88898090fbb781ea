//! Benchmark of client logging: one rank of a job creates files, and finishes. JSON on standard
//! output. Also an example of how a program logs what it makes.
//!
//! `cargo run --release -p kestrel-client --example log_bench -- VOLUME JOB RANK [--names 1000000]
//! [--bytes 0] [--dirs 1]`
//!
//! `KESTREL_STATE_DIR` as for the command. Names are in random order, in directories that all ranks
//! have in common.

use std::fmt::Write;
use std::time::{Duration, Instant};

use kestrel_client::job::{ChangeLog, Jobs, LogAttrs, LogOptions};
use kestrel_client::storage::StoreOptions;
use kestrel_client::volume::Resources;
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

/// CPU time of the process, seconds.
fn cpu() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_secs_f64()
}

fn main() -> Result<(), Failure> {
    let mut words = Vec::new();
    let (mut names, mut bytes, mut dirs) = (1_000_000u64, 0usize, 1u64);
    let mut arguments = std::env::args().skip(1);
    while let Some(word) = arguments.next() {
        let Some(name) = word.strip_prefix("--") else {
            words.push(word);
            continue;
        };
        let value: u64 = arguments.next().ok_or(format!("--{name} needs a number"))?.parse()?;
        match name {
            "names" => names = value,
            "bytes" => bytes = usize::try_from(value)?,
            "dirs" => dirs = value.max(1),
            _ => return Err(format!("--{name}: unknown").into()),
        }
    }
    let [volume, job, rank] = words.as_slice() else {
        return Err("log_bench VOLUME JOB RANK".into());
    };
    let rank: u32 = rank.parse()?;

    let jobs = Jobs::of(volume, &StoreOptions::default())?;
    let record = jobs.join(&jobs.find(job)?, rank, false)?;
    let (begun, used) = (Instant::now(), cpu());
    let mut log = ChangeLog::open(&jobs, &record, LogOptions::default())?;
    let attrs = LogAttrs { mode: 0o644, uid: 0, gid: 0, mtime: None };
    let content = vec![b'x'; bytes];
    let mut name = String::new();
    let mut handles = Vec::new();
    for dir in 0..dirs {
        let path = format!("/bench/{dir}");
        handles.push(log.make_dirs(path.as_bytes(), LogAttrs { mode: 0o755, ..attrs })?);
    }
    for number in 0..names {
        name.clear();
        // Each number once, in an order that no table has.
        let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        write!(name, "{random:016x}.{rank}")?;
        log.create(handles[(number % dirs) as usize], name.as_bytes(), attrs, &content)?;
    }
    let created = begun.elapsed();
    log.close()?;
    let (logged, used_logging) = (begun.elapsed(), cpu() - used);
    let (begun, used) = (Instant::now(), cpu());
    let rows = jobs.finish(&record, &Resources::default())?;
    let (finished, used_finishing) = (begun.elapsed(), cpu() - used);
    let each = |seconds: f64| seconds * 1e6 / names as f64;
    println!(
        "{}",
        json!({
            "names": names,
            "bytes": bytes,
            "rows": rows,
            "create_seconds": created.as_secs_f64(),
            "log_seconds": logged.as_secs_f64(),
            "log_cpu_us": each(used_logging),
            "finish_seconds": finished.as_secs_f64(),
            "finish_cpu_us": each(used_finishing),
        })
    );
    Ok(())
}
