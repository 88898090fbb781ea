//! How long ranks would take: a model of many processes, from what a few names cost here.

use std::ffi::OsString;

use clap::Args;
use kestrel_client::descriptor::random;
use kestrel_client::job::{self, ChangeLog, JobRecord, Jobs, LogAttrs, LogOptions};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{bytes, size_arg};
use kestrel_types::hex::to_hex;
use serde_json::{Value, json};

use super::super::snapshot::KeyArgs;
use super::super::{print_json, volume_of};
use super::server::{output_of, program, store_options};
use super::{InputArgs, VERB, begin, fail, jobs_of, resources};
use crate::bench::rusage_us;

/// Ranks that are measured; what they make lies in each other.
const RANKS: u32 = 2;

/// Plan a job of many ranks: measure a few here, and tell what more would take.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel job plan /data/vol --files 100000000
  kestrel job plan s3://bucket/vol --files 1000000000 --processes 64,512 --store-rate 10G

Two ranks log names into a job of the volume, which is published, compacted and removed again: that
is what a name costs in processor time and bytes. The model: each process has a core; the store
takes --store-rate bytes a second from all processes together; one process merges the logs when the
job is published, all take part in compacting them. --server-rate puts a server of that many creates
a second beside it.")]
pub struct PlanArgs {
    /// The volume
    volume: OsString,
    /// Files that all processes create together
    #[arg(long, value_name = "N")]
    files: u64,
    /// Numbers of processes
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8,16,32,64,128,256,512")]
    processes: Vec<u32>,
    /// Bytes a second that the store takes; by default what it takes from this machine
    #[arg(long, value_name = "SIZE", value_parser = size_arg)]
    store_rate: Option<u64>,
    /// Creates a second of a server that is to be compared
    #[arg(long, value_name = "N")]
    server_rate: Option<u64>,
    /// Names that each of the two ranks logs
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    sample: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// What a name costs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Costs {
    /// Processor time of logging, finishing, merging and compacting it, seconds.
    log: f64,
    finish: f64,
    merge: f64,
    compact: f64,
    /// Bytes of tables that a finished rank has of it.
    bytes: f64,
    /// Bytes a second of the store.
    store: f64,
}

/// What a number of processes would take, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Plan {
    processes: u32,
    log: f64,
    finish: f64,
    merge: f64,
    compact: f64,
}

impl Plan {
    /// For so many processes and files.
    fn of(costs: Costs, files: u64, processes: u32) -> Self {
        let (files, share) = (files as f64, files as f64 / f64::from(processes.max(1)));
        // Each step writes all rows once, and compaction reads them once as well.
        let io = files * costs.bytes / costs.store;
        Self {
            processes,
            log: (share * costs.log).max(io),
            finish: (share * costs.finish).max(io),
            merge: files * costs.merge,
            compact: (share * costs.compact).max(2.0 * io),
        }
    }

    fn published(&self) -> f64 {
        self.log + self.finish + self.merge
    }

    fn json(&self, files: u64, server: Option<f64>) -> Value {
        json!({
            "processes": self.processes,
            "log_seconds": self.log,
            "finish_seconds": self.finish,
            "merge_seconds": self.merge,
            "compact_seconds": self.compact,
            "creates_per_second": files as f64 / self.log,
            "against_server": server.map(|server| server / self.published()),
        })
    }
}

/// CPU time of this process and its children that have ended, seconds.
fn cpu() -> f64 {
    let used = [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].map(rusage_us);
    used.iter().sum::<u64>() as f64 / 1e6
}

/// See [`PlanArgs`].
pub fn run(args: &PlanArgs) -> Result<ExitStatus, Failure> {
    if args.files == 0 || args.sample == 0 || args.processes.contains(&0) {
        return Err(Failure::usage("job plan: at least one file, name and process"));
    }
    let jobs = jobs_of(&args.volume, &args.store)?;
    let tag: [u8; 8] = random().map_err(fail)?;
    let inputs = InputArgs { inputs: Vec::new(), name: format!("plan-{}", to_hex(&tag)) };
    let record = begin(&jobs, &inputs, Vec::new())?.record;
    let measured = measure(args, &jobs, &record);
    let removed = remove(args, &jobs, &record);
    let mut costs = measured?;
    removed?;
    if let Some(rate) = args.store_rate {
        costs.store = rate as f64;
    }
    tell(args, costs);
    Ok(ExitStatus::Good)
}

/// What names cost here.
fn measure(args: &PlanArgs, jobs: &Jobs, record: &JobRecord) -> Result<Costs, Failure> {
    let resources = resources(&args.store, false);
    let names = (u64::from(RANKS) * args.sample) as f64;
    let store = jobs.store_rate(record).map_err(fail)?;
    let (mut finished, mut logs) = (0.0, Vec::new());
    let begun = cpu();
    for rank in 0..RANKS {
        let log = jobs.join(record, rank, false).map_err(fail)?;
        log_names(jobs, &log, rank, args.sample)?;
        logs.push(log);
    }
    let used = cpu() - begun;
    for log in &logs {
        let begun = cpu();
        jobs.finish(log, &resources).map_err(fail)?;
        finished += cpu() - begun;
    }
    let begun = cpu();
    let done = job::publish(jobs, record, (None, false), &resources).map_err(fail)?;
    let merged = cpu() - begun;
    let changes = done.version.changes();
    let layers = changes.iter().flat_map(|changes| &changes.base.layers);
    let stored: u64 = layers.flat_map(|layer| layer.runs.iter().flatten()).map(|it| it.bytes).sum();
    let begun = cpu();
    let volume = volume_of(VERB, &args.volume)?;
    let mut compact = program()?;
    compact.args(["version", "compact", &version_url(&volume, &record.name)]);
    compact.args(["--workers", "1", "--into", &compacted(record)]);
    output_of(compact.args(store_options(&args.store)))?;
    let compacted = cpu() - begun;
    Ok(Costs {
        log: used / names,
        finish: finished / names,
        merge: merged / names,
        compact: compacted / names,
        bytes: stored as f64 / names,
        store,
    })
}

/// The URL of a version of a volume.
fn version_url(volume: &str, name: &str) -> String {
    match volume.split_once('?') {
        Some((volume, options)) => format!("{volume}//{name}?{options}"),
        None => format!("{volume}//{name}"),
    }
}

fn compacted(record: &JobRecord) -> String {
    format!("{}-compacted", record.name)
}

fn log_names(jobs: &Jobs, log: &JobRecord, rank: u32, count: u64) -> Result<(), Failure> {
    let mut log = ChangeLog::open(jobs, log, LogOptions::default()).map_err(fail)?;
    let attrs = LogAttrs { mode: 0o644, uid: 0, gid: 0, mtime: None };
    let dir = log.make_dirs(b"/names", LogAttrs { mode: 0o755, ..attrs }).map_err(fail)?;
    for number in 0..count {
        // Each number once, in an order that no table has.
        let name = format!("{:016x}.{rank}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        log.create(dir, name.as_bytes(), attrs, b"").map_err(fail)?;
    }
    log.close().map_err(fail)
}

/// Removes all that was made.
fn remove(args: &PlanArgs, jobs: &Jobs, record: &JobRecord) -> Result<(), Failure> {
    if let Ok(left) = jobs.find(&record.number().to_string()) {
        jobs.abort(&left, false).map_err(fail)?;
    }
    let volume = volume_of(VERB, &args.volume)?;
    for name in [compacted(record), record.name.clone()] {
        if jobs.is_published(&name).map_err(fail)? {
            let mut delete = program()?;
            delete.args(["version", "delete", &volume, &name]).args(store_options(&args.store));
            output_of(&mut delete)?;
        }
    }
    Ok(())
}

fn tell(args: &PlanArgs, costs: Costs) {
    let server = args.server_rate.map(|rate| args.files as f64 / rate.max(1) as f64);
    let plans: Vec<Plan> =
        args.processes.iter().map(|some| Plan::of(costs, args.files, *some)).collect();
    if args.json {
        let told: Vec<Value> = plans.iter().map(|plan| plan.json(args.files, server)).collect();
        return print_json(&json!({
            "files": args.files,
            "log_us": costs.log * 1e6,
            "finish_us": costs.finish * 1e6,
            "merge_us": costs.merge * 1e6,
            "compact_us": costs.compact * 1e6,
            "bytes": costs.bytes,
            "store_bytes_per_second": costs.store,
            "server_seconds": server,
            "plans": told,
        }));
    }
    println!(
        "a name: {:.2} us to log, {:.2} to finish, {:.2} to merge, {:.2} to compact; {:.1} bytes",
        costs.log * 1e6,
        costs.finish * 1e6,
        costs.merge * 1e6,
        costs.compact * 1e6,
        costs.bytes
    );
    println!(
        "the store: {} a second; seconds for {} files:",
        bytes(costs.store as u64),
        args.files
    );
    println!("PROCESSES      LOG   FINISH    MERGE  COMPACT    CREATES/S  AGAINST A SERVER");
    for plan in &plans {
        let Plan { processes, log, finish, merge, compact } = plan;
        let rate = args.files as f64 / log;
        let against = server
            .map_or_else(|| "-".to_string(), |server| format!("{:.1}", server / plan.published()));
        println!(
            "{processes:>9} {log:>8.2} {finish:>8.2} {merge:>8.2} {compact:>8.2} {rate:>12.0}  \
             {against}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// About a microsecond, and about a million: what is made of them is exact.
    const MICRO: f64 = 1.0 / FILES as f64;
    const FILES: u64 = 1 << 20;
    const COSTS: Costs = Costs {
        log: MICRO,
        finish: MICRO / 2.0,
        merge: MICRO / 8.0,
        compact: MICRO * 2.0,
        bytes: 16.0,
        store: 1024.0 * FILES as f64,
    };

    /// Twice the processes take half the time, until the store takes no more.
    #[test]
    fn plans_of_more_and_more_processes() {
        let few = Plan::of(COSTS, FILES, 2);
        assert_eq!(few, Plan { processes: 2, log: 0.5, finish: 0.25, merge: 0.125, compact: 1.0 });
        let more = Plan::of(COSTS, FILES, 4);
        assert_eq!((more.log, more.merge), (0.25, 0.125));
        let many = Plan::of(COSTS, FILES, 1_000_000);
        assert_eq!((many.log, many.finish, many.compact), (1.0 / 64.0, 1.0 / 64.0, 1.0 / 32.0));
    }

    /// Versions of volumes with options in their URL.
    #[test]
    fn urls_of_versions() {
        assert_eq!(version_url("/data/vol", "a@1"), "/data/vol//a@1");
        assert_eq!(version_url("s3://b/p?region=x", "a@1"), "s3://b/p//a@1?region=x");
    }
}
