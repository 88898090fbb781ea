//! `kestrel warmup`.

mod paths;
pub mod whole;

use std::path::PathBuf;

use clap::Args;
use kestrel_admin::warmup::{self, Act, THREADS_MAX};
use kestrel_admin::watched::Watched;
use kestrel_blockstore::store::BlockStore;
use kestrel_engine::Engine;
use serde_json::{Value, json};

use super::{ask_with, print_json};
use crate::failure::{Failure, Verdict};
use crate::feed::{Feed, shown};
use crate::progress::Progress;
use crate::units::{bytes, count};
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

Fills the cache directories of the mount (`kestrel mount --cache-dir`). What is there already is not read again: a run that
was cut off is resumed by repeating it. --evict drops the objects that the files lie in, and with them what other small files
stored beside them had in the cache. Exit code 1: something is missing or could not be brought.")]
pub struct WarmupArgs {
    /// Files and directories in mounted volumes; `*` and `?` in names are expanded if the shell did not
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
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX as u64))]
    pub threads: u64,
    /// Only tell what share is cached
    #[arg(long, conflicts_with = "evict")]
    pub check: bool,
    /// Drop it from the cache
    #[arg(long)]
    pub evict: bool,
    /// Copies of whole files that the kernel reads by itself, in place of pieces: files of 1M and more. With --check and
    /// --evict: of such copies
    #[arg(long, conflicts_with_all = ["data", "metadata"])]
    pub whole: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What the serving process is asked to do.
pub struct Wish {
    /// Paths from the root on.
    pub paths: Vec<Vec<u8>>,
    /// What to do with file data, if anything.
    pub data: Option<Act>,
    /// Read rows.
    pub metadata: bool,
    /// Threads.
    pub threads: usize,
}

impl Wish {
    /// What a question asks for.
    ///
    /// # Errors
    /// If it names no paths.
    pub fn of(question: &Value) -> Result<Self, String> {
        Ok(Self {
            paths: super::paths(&question["paths"])?,
            data: match question["act"].as_str() {
                Some("fill") => Some(Act::Fill),
                Some("check") => Some(Act::Check),
                Some("evict") => Some(Act::Evict),
                _ => None,
            },
            metadata: question["metadata"] == true,
            threads: usize::try_from(question["threads"].as_u64().unwrap_or(1)).unwrap_or(1),
        })
    }
}

/// Sums of answers that are added up, by name.
const SUMS: [&str; 7] =
    ["files", "bytes", "cached_bytes", "evicted_bytes", "metadata_rows", "missing_paths", "failed"];

/// Warms up.
///
/// # Errors
/// In words.
pub fn warm(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    wish: &Wish,
    feed: &Feed<'_>,
) -> Result<Value, String> {
    let listening = feed.listening();
    let (go_on, is_on) = (|| listening.go_on(), || listening.is_on());
    let engine = Watched::new(engine, &go_on);
    let data = match (wish.data, store.near()) {
        (Some(act), Some(near)) => Some((act, near)),
        (Some(_), None) => {
            return Err(
                "the mount has no cache directory to warm up; mount the volume with --cache-dir".into()
            );
        }
        (None, _) => None,
    };
    let options = warmup::Options {
        paths: &wish.paths,
        data,
        metadata: wish.metadata,
        threads: wish.threads,
        go_on: &is_on,
    };
    let mut tell = |files: u64, bytes: u64| {
        // One figure that only grows, whatever is warmed up.
        if wish.data.is_some() { feed.progress("bytes", bytes) } else { feed.progress("files", files) }
    };
    let done = warmup::run(&engine, &options, &mut tell).map_err(|why| why.to_string())?;
    for failure in &done.failures {
        feed.event(&json!({ "failure": failure }));
    }
    Ok(json!({
        "files": done.files,
        "bytes": done.bytes,
        "cached_bytes": done.cached_bytes,
        "evicted_bytes": done.evicted_bytes,
        "metadata_rows": done.rows,
        "missing_paths": done.missing,
        "failed": done.failed,
        "unfinished": done.unfinished,
    }))
}

/// What to do, by the name that requests have for it.
fn act(args: &WarmupArgs) -> &'static str {
    match (args.check, args.evict) {
        (true, _) => "check",
        (_, true) => "evict",
        _ => "fill",
    }
}

/// Warms up, request by request: each carries as many paths as fit.
pub fn run(args: &WarmupArgs) -> Result<Verdict, Failure> {
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
            Failure::new("warmup", format!("nobody serves the volume {}; mount it again", dir.display()))
        })?;
        for name in SUMS {
            done[name] = (done[name].as_u64().unwrap_or(0) + answer[name].as_u64().unwrap_or(0)).into();
        }
        if answer["unfinished"] == true {
            done["unfinished"] = true.into();
            break;
        }
    }
    drop(progress);
    done["missing_paths"] = (done["missing_paths"].as_u64().unwrap_or(0) + requests.missing()).into();
    if args.json {
        print_json(&done);
    } else {
        show(args, &done);
    }
    let good = done["missing_paths"] == 0 && done["failed"] == 0 && done["unfinished"] == false;
    Ok(if good { Verdict::Good } else { Verdict::Bad })
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
        println!("{files} files with {}: {} cached", bytes(number("bytes")), bytes(number("cached_bytes")));
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
