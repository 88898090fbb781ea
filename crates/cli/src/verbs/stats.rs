//! `kestrel stats`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `stats/screen.rs` | the figures that people read |
//! | `stats/cluster.rs` | the sums of all nodes' figures, and a line for each node |

mod cluster;
mod screen;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kestrel_client::descriptor::volume_dir;
use kestrel_client::remote::RemoteUrl;
use kestrel_client::state_dir::is_bucket_url;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::duration_arg;
use serde_json::{Value, json};

use super::{Target, control_dir, mount_above, print_json};

/// Show what a mount is doing, or the server of a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel stats /mnt/data
  kestrel stats /mnt/data --interval 5s
  kestrel stats /mnt/data --once --all
  kestrel stats /mnt/data --once --json
  kestrel stats kestrel://meta1/photos
  kestrel stats kestrel://10.0.0.1,10.0.0.2,10.0.0.3/photos --once --json

Prints one screen for each interval until ctrl-C: the most frequent operations, data, memory. --all
adds all operations and every counter; docs/metrics.md describes them. --once prints once, sums
since the mount or the server began. Of a volume that several nodes serve, the figures are the sums
of all nodes', and each node has a line of its own (in JSON its own figures in `nodes`).")]
pub struct StatsArgs {
    /// A directory of the mount, or kestrel://host[:port]/NAME for the server's own figures
    pub dir: PathBuf,
    /// Print once, sums since the start
    #[arg(long)]
    pub once: bool,
    /// Print all operations and all counters, not one screen
    #[arg(short, long)]
    pub all: bool,
    /// Time between two tables
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "1s")]
    pub interval: Duration,
    /// Print JSON, one document a line unless --once; always all of it
    #[arg(long)]
    pub json: bool,
}

/// Shows it.
pub fn run(args: &StatsArgs) -> Result<ExitStatus, Failure> {
    if args.interval.is_zero() {
        return Err(Failure::usage("stats: --interval 0: at least 1s"));
    }
    let fail = |why: &dyn std::fmt::Display| {
        Failure::new("stats", format!("{}: {why}", args.dir.display()))
    };
    let volume = match args.dir.to_str() {
        Some(url) if RemoteUrl::is_one(url) || is_bucket_url(url) => {
            Target::of("stats", url, None)?
        }
        url => {
            if let Some(Err(why)) = url.map(volume_dir) {
                return Err(Failure::usage(format!("stats: {why}")));
            }
            let path = std::fs::canonicalize(&args.dir).map_err(|why| fail(&why))?;
            Target::Here(control_dir(&mount_above("stats", &path)?))
        }
    };
    let mut before = take(&volume)?;
    if args.once {
        if args.json {
            print_json(&before);
        } else {
            let seconds = before["uptime_seconds"].as_f64().unwrap_or(1.0).max(1.0);
            print!("{}", screen::screen(&before, &Value::Null, seconds, args.all));
        }
        return Ok(ExitStatus::Good);
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
            print!("{}", screen::screen(&now, &before, args.interval.as_secs_f64(), args.all));
        }
        if std::io::stdout().flush().is_err() {
            return Ok(ExitStatus::Good);
        }
        before = now;
    }
}

fn take(volume: &Target) -> Result<Value, Failure> {
    if let Target::Served(url) = volume {
        return cluster::ask(url).map_err(|why| Failure::new("stats", why));
    }
    volume
        .ask("stats", &json!({ "verb": "stats" }), kestrel_client::control::QUICK, &mut |_| {})?
        .ok_or_else(|| {
            Failure::new(
                "stats",
                format!("{volume}: its process has ended; mount or serve it again"),
            )
        })
}

/// One counter's growth between two moments.
fn grown(now: &Value, before: &Value, name: &str) -> u64 {
    now[name].as_u64().unwrap_or(0).saturating_sub(before[name].as_u64().unwrap_or(0))
}

fn buckets(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .map_or(Vec::new(), |list| list.iter().map(|count| count.as_u64().unwrap_or(0)).collect())
}

fn difference(now: &Value, before: &Value) -> Vec<u64> {
    let before = buckets(before);
    let at = |index: usize| before.get(index).copied().unwrap_or(0);
    buckets(now).iter().enumerate().map(|(index, count)| count.saturating_sub(at(index))).collect()
}
