//! `kestrel gc`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `gc/cluster.rs` | the collection of a volume that several nodes share |

pub mod cluster;

use std::time::Duration;

use clap::Args;
use kestrel_admin::fragmented::FRAGMENTED_PERCENT;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::gc::{collect, options};
use kestrel_daemon::progress_stream::ProgressStream;
use kestrel_daemon::units::{bytes, count, duration_arg};
use serde_json::{Value, json};

use super::{Target, open, print_json};
use crate::args::store::StoreArgs;
use crate::progress::{Progress, shown};

/// Find objects that nothing refers to, and delete them if asked.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel gc /data/vol
  kestrel gc /data/vol --delete
  kestrel gc /data/vol --grace 1d --json

Works on mounted and unmounted volumes. Deletes nothing without --delete, and nothing at all if a
page of the store's listing or a row of the metadata cannot be read. Of a volume that several nodes
serve, all of them are asked; what is found is handed to them, and they ask each other again before
they delete it.")]
pub struct GcArgs {
    /// The volume: a path, file:///path, s3://… or kestrel://host[:port]/NAME
    pub volume: String,
    /// Of a cluster with no node running: the directories of all other nodes
    #[arg(value_name = "NODE")]
    pub others: Vec<String>,
    /// Delete what is found
    #[arg(long)]
    pub delete: bool,
    /// Leave objects alone that were written to less than this ago
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "1h")]
    pub grace: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// What was found, as it is printed: at once for people, at the end for programs.
struct Printer {
    json: bool,
    found: serde_json::Map<String, Value>,
}

impl Printer {
    /// Kinds of events, which are also the names of their lists.
    const KINDS: [&str; 4] = ["leaked", "disputed", "failed", "unknown"];

    fn event(&mut self, event: &Value) {
        for kind in Self::KINDS {
            let Some(found) = event.get(kind) else { continue };
            if !self.json {
                Self::print(kind, found);
            }
            if let Some(Value::Array(list)) = self.found.get_mut(kind) {
                list.push(found.clone());
            }
        }
    }

    fn print(kind: &str, found: &Value) {
        let number = |name: &str| found[name].as_u64().unwrap_or(0);
        match kind {
            "leaked" => println!(
                "leaked: object {:016x}, {}, {} s old",
                number("object"),
                bytes(number("bytes")),
                number("age_seconds")
            ),
            "disputed" => println!(
                "left alone: object {:016x}: no file refers to it but its account says so; run \
                 `kestrel fsck`",
                found.as_u64().unwrap_or(0)
            ),
            "failed" => println!(
                "not deleted: object {:016x}: {}",
                number("object"),
                found["error"].as_str().unwrap_or("?")
            ),
            _ => println!("not an object, left alone: {}", found.as_str().unwrap_or("?")),
        }
    }
}

/// Collects.
pub fn run(args: &GcArgs) -> Result<ExitStatus, Failure> {
    let target = Target::of("gc", &args.volume, args.store.credentials.as_deref())?;
    let grace_seconds = args.grace.as_secs();
    let question = json!({ "verb": "gc", "delete": args.delete, "grace_seconds": grace_seconds });
    let found = Printer::KINDS.map(|kind| (kind.to_string(), Value::Array(Vec::new())));
    let mut printer = Printer { json: args.json, found: found.into_iter().collect() };
    let mut progress = Progress::new();
    let mut tell = |event: &Value| {
        shown(&mut progress, event, &mut |event| printer.event(event));
        true
    };
    let of_nodes = cluster::collect(args, &target, &ProgressStream::new(&mut tell))?;
    let asked = match of_nodes {
        Some(done) => Some(done),
        None => target.ask("gc", &question, None, &mut |event| {
            tell(&event);
        })?,
    };
    let mut done = match asked {
        Some(done) => done,
        None => {
            let volume = open("gc", &args.volume, &args.store)?;
            let options = options(grace_seconds, args.delete, &|_| false);
            collect(&*volume.engine, &*volume.store, &options, &ProgressStream::new(&mut tell))
                .map_err(|why| Failure::new("gc", format!("{target}: {why}")))?
        }
    };
    drop(progress);
    if args.json {
        if let Value::Object(done) = &mut done {
            done.extend(printer.found);
        }
        print_json(&done);
    } else {
        show(args, &done);
    }
    let all_deleted = done["failed_objects"] == 0;
    Ok(if all_deleted { ExitStatus::Good } else { ExitStatus::Bad })
}

fn show(args: &GcArgs, done: &Value) {
    let number = |name: &str| done[name].as_u64().unwrap_or(0);
    println!("{} objects with {}", count(number("objects")), bytes(number("bytes")));
    println!("{} leaked with {}", count(number("leaked_objects")), bytes(number("leaked_bytes")));
    if number("disputed_objects") > 0 {
        println!("{} with accounts that are wrong", count(number("disputed_objects")));
    }
    println!(
        "{} scheduled for deletion, {} too young or open to judge",
        count(number("scheduled_objects")),
        count(number("young_objects"))
    );
    println!(
        "{} less than {} % in use, with {} unused; `kestrel compact` rewrites them",
        count(number("sparse_objects")),
        FRAGMENTED_PERCENT,
        bytes(number("sparse_bytes"))
    );
    if args.delete {
        println!("{} deleted", count(number("deleted_objects")));
        if number("handed_over_objects") > 0 {
            println!(
                "{} more handed to the nodes, which delete them later",
                count(number("handed_over_objects"))
            );
        }
        if number("reaped_objects") > 0 {
            println!("{} more after their grace period", count(number("reaped_objects")));
        }
    } else if number("leaked_objects") > 0 {
        println!("nothing was deleted; --delete deletes what is leaked");
    }
}
