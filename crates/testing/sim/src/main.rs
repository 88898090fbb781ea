//! `kestrel-sim`: runs seeds. `kestrel-sim --seeds 1..1000`, `kestrel-sim --seed 17 --trace`,
//! `kestrel-sim --cpu-seconds 60`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kestrel_sim::cluster::ClusterRun;
use kestrel_sim::world::World;
use kestrel_sim::{Failure, RunPlan, RunStats};

const USAGE: &str = "usage: kestrel-sim [--nodes N] [--seed N | --seeds FROM..TO | --cpu-seconds \
                     S] [--from N] [--calls N] [--trace] [--keep-going]
example: kestrel-sim --seeds 1..1000";

struct Options {
    from: u64,
    to: u64,
    /// Seeds are run until this process has used so many seconds of processor time.
    cpu_seconds: Option<u64>,
    calls: usize,
    /// Nodes that share the volume; none: one that serves sessions.
    nodes: Option<u32>,
    trace: bool,
    keep_going: bool,
}

fn options() -> Option<Options> {
    let mut options = Options {
        from: 1,
        to: 200,
        cpu_seconds: None,
        calls: 300,
        nodes: None,
        trace: false,
        keep_going: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seed" => {
                options.from = arguments.next()?.parse().ok()?;
                options.to = options.from;
            }
            "--seeds" => {
                let range = arguments.next()?;
                let (from, to) = range.split_once("..")?;
                (options.from, options.to) = (from.parse().ok()?, to.parse().ok()?);
            }
            "--from" => options.from = arguments.next()?.parse().ok()?,
            "--cpu-seconds" => {
                options.cpu_seconds = Some(arguments.next()?.parse().ok()?);
                options.to = u64::MAX;
            }
            "--calls" => options.calls = arguments.next()?.parse().ok()?,
            "--nodes" => {
                options.nodes =
                    Some(arguments.next()?.parse().ok().filter(|nodes| (1..=64).contains(nodes))?);
            }
            "--trace" => options.trace = true,
            "--keep-going" => options.keep_going = true,
            _ => return None,
        }
    }
    Some(options)
}

/// Processor time that this process has used. A run that ends by it tries as many seeds on a busy
/// machine as on an idle one.
fn processor_time() -> Duration {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `used` is valid for the call, which writes a timespec there.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) };
    assert_eq!(answer, 0, "this clock is always there");
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// Runs a seed; a panic is a failure.
fn run(plan: RunPlan, nodes: Option<u32>) -> Result<RunStats, Failure> {
    let run = || match nodes {
        None => World::new(plan).run(),
        Some(nodes) => ClusterRun::new(plan, nodes).run(),
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let why = panic
            .downcast_ref::<String>()
            .cloned()
            .or(panic.downcast_ref::<&str>().map(|s| (*s).into()));
        Err(Failure(format!("panic: {}", why.unwrap_or_default())))
    })
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let begun = Instant::now();
    let limit = options.cpu_seconds.map(Duration::from_secs);
    let (mut seeds, mut failed, mut sum) = (0u64, 0u64, RunStats::default());
    let mut undecided = 0;
    for seed in options.from..=options.to {
        if limit.is_some_and(|limit| processor_time() >= limit) {
            break;
        }
        seeds += 1;
        match run(RunPlan { seed, calls: options.calls, trace: options.trace }, options.nodes) {
            Ok(stats) => {
                sum.calls += stats.calls;
                sum.unheard += stats.unheard;
                sum.crashes += stats.crashes;
                sum.expired += stats.expired;
                sum.retries += stats.retries;
                sum.changes += stats.changes;
                sum.left += stats.left;
                sum.handed += stats.handed;
                sum.misdirected += stats.misdirected;
                sum.lapses += stats.lapses;
                sum.fenced += stats.fenced;
                sum.ghosts += stats.ghosts;
                sum.refused += stats.refused;
                sum.zombies += stats.zombies;
                sum.stores_failed += stats.stores_failed;
                sum.time += stats.time;
                undecided += u64::from(stats.undecided);
            }
            Err(Failure(why)) => {
                failed += 1;
                println!("seed {seed} FAILED: {why}");
                println!(
                    "replay: cargo run --profile ci -p kestrel-sim -- {}--seed {seed} --calls {} \
                     --trace",
                    options.nodes.map_or_else(String::new, |nodes| format!("--nodes {nodes} ")),
                    options.calls
                );
                if !options.keep_going {
                    break;
                }
            }
        }
    }
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    println!(
        "{seeds} seeds, {failed} failed, {undecided} undecided; {:.0} seeds a minute; {} calls ({} \
         unheard, {} retried), {} crashes, {} sessions expired, {} changes of tables, {} nodes \
         left, {} coordinators followed, {} calls misdirected, {} leases lost, {} nodes fenced, {} \
         presumed dead ({} commits refused), {} replaced alive, {} stores failed, {:.1} virtual \
         hours",
        seeds as f64 / minutes,
        sum.calls,
        sum.unheard,
        sum.retries,
        sum.crashes,
        sum.expired,
        sum.changes,
        sum.left,
        sum.handed,
        sum.misdirected,
        sum.lapses,
        sum.fenced,
        sum.ghosts,
        sum.refused,
        sum.zombies,
        sum.stores_failed,
        sum.time as f64 / 3.6e12,
    );
    println!("{} passed, {failed} failed", seeds - failed);
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
