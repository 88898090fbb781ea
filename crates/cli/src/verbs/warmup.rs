//! `kestrel warmup`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `warmup/paths.rs` | which paths: arguments, lists, `*` and `?` |
//! | `warmup/whole.rs` | `kestrel warmup --whole` |

mod paths;
pub mod whole;

use std::path::PathBuf;

use clap::Args;
use kestrel_admin::warmup::THREADS_MAX;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{bytes, count};
use serde_json::{Value, json};

use super::{ask_with, print_json};
use crate::progress::{Progress, shown};
use paths::Requests;

/// Bring files near before they are needed, or tell how much of them is.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel warmup /mnt/data/train
  kestrel warmup '/mnt/data/train/shard-*' --threads 64
  find /mnt/data -newer mark -type f | kestrel warmup --from-file -
  kestrel warmup /mnt/data/train --check
  kestrel warmup /mnt/data/old --evict
  kestrel warmup /mnt/data/models/large.safetensors --whole

Fills the cache directories of the mount (`kestrel mount --cache-dir`). What is there already is not
read again: a run that was cut off is resumed by repeating it. --evict drops the objects that the
files lie in, and with them what other small files stored beside them had in the cache. Exit code 1:
something is missing or could not be brought.")]
pub struct WarmupArgs {
    /// Files and directories in mounted volumes; `*` and `?` in names are expanded if the shell did
    /// not
    #[arg(required_unless_present = "from_file")]
    pub paths: Vec<PathBuf>,
    /// Read more paths from this file, one a line; - is standard input
    #[arg(long, value_name = "FILE")]
    pub from_file: Option<PathBuf>,
    /// Only file data
    #[arg(long, conflicts_with = "metadata")]
    pub data: bool,
    /// Only metadata: rows are read into the serving process's memory
    #[arg(long, conflicts_with_all = ["check", "evict"])]
    pub metadata: bool,
    /// Requests to the store at a time
    #[arg(long, value_name = "N", default_value_t = 32,
        value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX as u64))]
    pub threads: u64,
    /// Only tell what share is cached
    #[arg(long, conflicts_with = "evict")]
    pub check: bool,
    /// Drop it from the cache
    #[arg(long)]
    pub evict: bool,
    /// Copies of whole files that the kernel reads by itself, in place of pieces: files of 1M and
    /// more. With --check and --evict: of such copies
    #[arg(long, conflicts_with_all = ["data", "metadata"])]
    pub whole: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Sums of answers that are added up, by name.
const SUMS: [&str; 7] =
    ["files", "bytes", "cached_bytes", "evicted_bytes", "metadata_rows", "missing_paths", "failed"];

/// What to do, by the name that requests have for it.
fn act(args: &WarmupArgs) -> &'static str {
    match (args.check, args.evict) {
        (true, _) => "check",
        (_, true) => "evict",
        _ => "fill",
    }
}

/// Warms up, request by request: each carries as many paths as fit.
pub fn run(args: &WarmupArgs) -> Result<ExitStatus, Failure> {
    if args.whole {
        return whole::run(args);
    }
    let act = act(args);
    let mut done = json!({ "unfinished": false });
    SUMS.iter().for_each(|name| done[*name] = 0.into());
    let mut progress = Progress::new();
    let mut requests = Requests::new(args)?;
    while let Some((dir, paths)) = requests.next()? {
        let question = json!({
            "verb": "warmup", "paths": paths, "act": if args.metadata { "none" } else { act },
            "metadata": args.metadata || (act == "fill" && !args.data), "threads": args.threads,
        });
        let base = done["bytes"].as_u64().unwrap_or(0)
            + if args.metadata { done["files"].as_u64().unwrap_or(0) } else { 0 };
        let answer = ask_with("warmup", &dir, &question, None, &mut |mut event| {
            if let Some(so_far) = event["progress"]["count"].as_u64() {
                event["progress"]["count"] = (base + so_far).into();
            }
            shown(&mut progress, &event, &mut |event| {
                eprintln!("kestrel warmup: {}", event["failure"].as_str().unwrap_or("?"));
            });
        })?;
        let answer = answer.ok_or_else(|| {
            Failure::new(
                "warmup",
                format!("nobody serves the volume {}; mount it again", dir.display()),
            )
        })?;
        for name in SUMS {
            done[name] =
                (done[name].as_u64().unwrap_or(0) + answer[name].as_u64().unwrap_or(0)).into();
        }
        if answer["unfinished"] == true {
            done["unfinished"] = true.into();
            break;
        }
    }
    drop(progress);
    done["missing_paths"] =
        (done["missing_paths"].as_u64().unwrap_or(0) + requests.missing()).into();
    if args.json {
        print_json(&done);
    } else {
        show(args, &done);
    }
    let good = done["missing_paths"] == 0 && done["failed"] == 0 && done["unfinished"] == false;
    Ok(if good { ExitStatus::Good } else { ExitStatus::Bad })
}

fn show(args: &WarmupArgs, done: &Value) {
    let number = |name: &str| done[name].as_u64().unwrap_or(0);
    let files = count(number("files"));
    let percent = || 100 * number("cached_bytes") / number("bytes").max(1);
    if args.metadata {
        println!("{files} files, {} rows of metadata in memory", count(number("metadata_rows")));
    } else if args.check {
        println!(
            "{files} files: {} of {} cached ({} %)",
            bytes(number("cached_bytes")),
            bytes(number("bytes")),
            percent()
        );
    } else if args.evict {
        println!("{files} files: {} dropped from the cache", bytes(number("evicted_bytes")));
    } else {
        println!(
            "{files} files with {}: {} cached",
            bytes(number("bytes")),
            bytes(number("cached_bytes"))
        );
    }
    if number("missing_paths") > 0 {
        println!("{} paths lead nowhere", count(number("missing_paths")));
    }
    if number("failed") > 0 {
        println!("{} pieces could not be brought", count(number("failed")));
    }
    if done["unfinished"] == true {
        println!("not finished; repeat it to go on where it ended");
    }
}
