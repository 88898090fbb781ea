//! `kestrel stats`.

mod several;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kestrel_client::remote::RemoteUrl;
use kestrel_daemon::failure::{Failure, Verdict};
use kestrel_daemon::metrics::percentile_ns;
use kestrel_daemon::units::{bytes, count, duration_arg};
use serde_json::{Value, json};

use super::{Target, control_dir, mount_above, print_json};

/// Show what a mount is doing, or the server of a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel stats /mnt/data
  kestrel stats /mnt/data --interval 5s
  kestrel stats /mnt/data --once --json
  kestrel stats kestrel://meta1/photos
  kestrel stats kestrel://10.0.0.1,10.0.0.2,10.0.0.3/photos --once --json

Of a volume that several nodes serve, the figures are the sums of all nodes', and each node has a line of its own (in JSON its
own figures in `nodes`). Without --once a table is printed for each interval until ctrl-C. --once prints the counters since the mount began; their
names are described in docs/metrics.md.")]
pub struct StatsArgs {
    /// A directory of the mount, or kestrel://host[:port]/NAME for the server's own figures
    pub dir: PathBuf,
    /// Print once, sums since the start
    #[arg(long)]
    pub once: bool,
    /// Time between two tables
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "1s")]
    pub interval: Duration,
    /// Print JSON, one document a line unless --once
    #[arg(long)]
    pub json: bool,
}

/// Shows it.
pub fn run(args: &StatsArgs) -> Result<Verdict, Failure> {
    if args.interval.is_zero() {
        return Err(Failure::usage("stats: --interval 0: at least 1s"));
    }
    let fail = |why: &dyn std::fmt::Display| Failure::new("stats", format!("{}: {why}", args.dir.display()));
    let volume = match args.dir.to_str().filter(|dir| RemoteUrl::is_one(dir)) {
        Some(url) => Target::of("stats", url)?,
        None => {
            let path = std::fs::canonicalize(&args.dir).map_err(|why| fail(&why))?;
            Target::Here(control_dir(&mount_above("stats", &path)?))
        }
    };
    let mut before = take(&volume)?;
    if args.once {
        if args.json {
            print_json(&before);
        } else {
            print_table(&before, &Value::Null, before["uptime_seconds"].as_f64().unwrap_or(1.0).max(1.0));
        }
        return Ok(Verdict::Good);
    }
    loop {
        std::thread::sleep(args.interval);
        let now = take(&volume)?;
        if args.json {
            println!("{now}");
        } else {
            if std::io::stdout().is_terminal() {
                print!("\x1b[H\x1b[2J");
            }
            print_table(&now, &before, args.interval.as_secs_f64());
        }
        if std::io::stdout().flush().is_err() {
            return Ok(Verdict::Good);
        }
        before = now;
    }
}

fn take(volume: &Target) -> Result<Value, Failure> {
    if let Target::Served(url) = volume {
        return several::ask(url).map_err(|why| Failure::new("stats", why));
    }
    volume
        .ask("stats", &json!({ "verb": "stats" }), kestrel_client::control::QUICK, &mut |_| {})?
        .ok_or_else(|| Failure::new("stats", format!("{volume}: nobody serves it any more")))
}

/// One counter's growth between two moments.
fn grown(now: &Value, before: &Value, name: &str) -> u64 {
    now[name].as_u64().unwrap_or(0).saturating_sub(before[name].as_u64().unwrap_or(0))
}

fn buckets(value: &Value) -> Vec<u64> {
    value.as_array().map_or(Vec::new(), |list| list.iter().map(|count| count.as_u64().unwrap_or(0)).collect())
}

fn difference(now: &Value, before: &Value) -> Vec<u64> {
    let before = buckets(before);
    let at = |index: usize| before.get(index).copied().unwrap_or(0);
    buckets(now).iter().enumerate().map(|(index, count)| count.saturating_sub(at(index))).collect()
}

/// Prints what happened between two moments `seconds` apart.
fn print_table(now: &Value, before: &Value, seconds: f64) {
    let per_second = |name: &str| grown(now, before, name) as f64 / seconds;
    println!(
        "{:<16} {:>10} {:>10} {:>10} {:>10} {:>8}",
        "operation", "per s", "p50 µs", "p99 µs", "mean µs", "errors"
    );
    for kind in now["metadata_requests"].as_array().into_iter().flatten() {
        let earlier = before["metadata_requests"]
            .as_array()
            .and_then(|kinds| kinds.iter().find(|other| other["kind"] == kind["kind"]))
            .unwrap_or(&Value::Null);
        let requests = grown(kind, earlier, "requests");
        if requests == 0 {
            continue;
        }
        let latency = difference(&kind["latency_log2_ns"], &earlier["latency_log2_ns"]);
        let us = |part: f64| percentile_ns(&latency, part) as f64 / 1000.0;
        println!(
            "{:<16} {:>10.0} {:>10.1} {:>10.1} {:>10.1} {:>8}",
            kind["kind"].as_str().unwrap_or("?"),
            requests as f64 / seconds,
            us(0.5),
            us(0.99),
            grown(kind, earlier, "nanoseconds") as f64 / 1000.0 / requests as f64,
            grown(kind, earlier, "errors")
        );
    }
    let rate = |name: &str| format!("{}/s", bytes(per_second(name) as u64));
    println!(
        "{:<16} {:>10.0}   read {}, written {}, cold reads {:.0}/s",
        "all",
        per_second("metadata_requests_total"),
        rate("read_bytes_total"),
        rate("written_bytes_total"),
        per_second("cold_reads_total")
    );
    let batches = difference(&now["metadata_batches_log2"], &before["metadata_batches_log2"]);
    let total: u64 = batches.iter().sum();
    let mean =
        if total > 0 { grown(now, before, "metadata_requests_total") as f64 / total as f64 } else { 0.0 };
    println!(
        "batches {:.0}/s of {mean:.1}; log {:.0} syncs/s, {}; engine {:.0} rows/s",
        total as f64 / seconds,
        per_second("engine_log_syncs_total"),
        rate("engine_log_bytes_total"),
        per_second("engine_mutations_total")
    );
    let number = |name: &str| now[name].as_u64().unwrap_or(0);
    print_data(now, before, seconds);
    print_way(now, before, seconds);
    println!(
        "memory: metadata {}, unstored data {}; open files {}; bad reads {}",
        bytes(number("engine_memory_bytes")),
        bytes(number("dirty_bytes")),
        count(number("metadata_open_files")),
        count(number("bad_reads_total"))
    );
    several::print_nodes(now, before, seconds);
}

/// Prints what the way to a metadata server cost, if there is one; times of operations above
/// include it.
fn print_way(now: &Value, before: &Value, seconds: f64) {
    let rate = |name: &str| format!("{}/s", bytes((grown(now, before, name) as f64 / seconds) as u64));
    if now["metadata_sent_bytes_total"].as_u64().unwrap_or(0) > 0 {
        println!(
            "server: sent {}, received {}, {} in flight; {} calls sent again, {} reconnects, {} given up",
            rate("metadata_sent_bytes_total"),
            rate("metadata_received_bytes_total"),
            now["metadata_in_flight"],
            count(grown(now, before, "metadata_retries_total")),
            count(grown(now, before, "metadata_reconnects_total")),
            count(grown(now, before, "metadata_unanswered_total"))
        );
    }
    if now["server_accepted_total"].as_u64().unwrap_or(0) > 0 {
        println!(
            "clients: {} of {} connected; received {}, sent {}; {} calls sent again, {} sessions expired",
            now["server_connected"],
            now["server_sessions"],
            rate("server_received_bytes_total"),
            rate("server_sent_bytes_total"),
            count(grown(now, before, "server_retries_total")),
            count(grown(now, before, "server_sessions_expired_total"))
        );
    }
}

/// Prints what went to and came from the object store and the caches before it, if there is one.
fn print_data(now: &Value, before: &Value, seconds: f64) {
    let sum = |name: &str| now[name].as_u64().unwrap_or(0);
    let per_second = |name: &str| grown(now, before, name) as f64 / seconds;
    let rate = |name: &str| format!("{}/s", bytes(per_second(name) as u64));
    let share = |part: &str, whole: &[&str]| {
        let all: u64 = whole.iter().map(|name| grown(now, before, name)).sum();
        if all == 0 {
            "-".into()
        } else {
            format!("{:.0} %", 100.0 * grown(now, before, part) as f64 / all as f64)
        }
    };
    if sum("store_get_requests_total") + sum("store_put_requests_total") + sum("store_head_requests_total")
        == 0
    {
        return;
    }
    println!(
        "store: {:.0} PUT/s {}, {:.0} GET/s {}; {} retries, {} errors, {} throttled",
        per_second("store_put_requests_total"),
        rate("store_put_bytes_total"),
        per_second("store_get_requests_total"),
        rate("store_get_bytes_total"),
        count(grown(now, before, "store_retries_total")),
        count(grown(now, before, "store_errors_total")),
        count(grown(now, before, "store_throttled_total"))
    );
    println!(
        "hits: memory {} of bytes ({} held), disk cache {} of bytes ({} held); {:.0} files a PUT",
        share("cache_memory_hit_bytes_total", &["stored_read_bytes_total"]),
        bytes(sum("cache_memory_bytes")),
        share("cache_disk_hit_bytes_total", &["cache_disk_hit_bytes_total", "cache_disk_miss_bytes_total"]),
        bytes(sum("cache_disk_bytes")),
        grown(now, before, "pack_members_total") as f64
            / grown(now, before, "pack_rounds_total").max(1) as f64
    );
}
