//! `kestrel gc`.

pub mod several;

use std::time::Duration;

use clap::Args;
use kestrel_admin::gc::{self, Event, GcError, Options};
use kestrel_admin::sparse::SPARSE_PERCENT;
use kestrel_admin::watched::Watched;
use kestrel_blockstore::store::BlockStore;
use kestrel_engine::Engine;
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use kestrel_types::ids::ObjectId;
use serde_json::{Value, json};

use super::store_args::StoreArgs;
use super::{Target, open, print_json};
use crate::failure::{Failure, Verdict};
use crate::feed::{Feed, shown};
use crate::progress::Progress;
use crate::units::{bytes, count, duration_arg};

/// Age below which an object is left alone, if nothing else is asked for.
pub const GRACE_SECONDS_DEFAULT: u64 = 3600;

/// Leaked objects listed at most; all are counted.
const LISTED_MAX: usize = 1000;

/// Find objects that nothing refers to, and delete them if asked.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel gc /data/vol
  kestrel gc /data/vol --delete
  kestrel gc /data/vol --grace 1d --json

Works on mounted and unmounted volumes. Deletes nothing without --delete, and nothing at all if a page of the store's
listing or a row of the metadata cannot be read. Of a volume that several nodes serve, all of them are asked; what is found is
handed to them, and they ask each other again before they delete it.")]
pub struct GcArgs {
    /// The volume: a path, file:///path or kestrel://host[:port]/NAME
    pub volume: String,
    /// Of a cluster none of whose nodes runs: the directories of all other nodes
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

/// What to collect, by the present time.
pub fn options(grace_seconds: u64, delete: bool, is_open: &dyn Fn(ObjectId) -> bool) -> Options<'_> {
    let grace = i64::try_from(grace_seconds).unwrap_or(i64::MAX).saturating_mul(SECOND);
    Options { now: SystemClock.now(), grace, delete, is_open, go_on: &|| true }
}

/// Collects; what is found is told as it is found, the answer has the sums.
///
/// # Errors
/// Those of the collection; nothing was deleted then.
pub fn collect(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    options: &Options<'_>,
    feed: &Feed<'_>,
) -> Result<Value, GcError> {
    collect_and(engine, store, options, feed, &mut |_| ())
}

/// The same; `leaked` gets every object that is found.
fn collect_and(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    options: &Options<'_>,
    feed: &Feed<'_>,
    leaked: &mut dyn FnMut(ObjectId),
) -> Result<Value, GcError> {
    let listening = feed.listening();
    let go_on = || listening.go_on();
    let engine = Watched::new(engine, &go_on);
    let is_on = || listening.is_on();
    let options = Options { go_on: &is_on, ..*options };
    let mut listed = 0;
    let mut report = |event: Event<'_>| {
        if let Event::Leaked { object, .. } = event {
            leaked(object);
        }
        listed += 1;
        if listed <= LISTED_MAX {
            feed.event(&match event {
                Event::Leaked { object, size, age } => {
                    json!({ "leaked": { "object": object, "bytes": size, "age_seconds": age / SECOND } })
                }
                Event::Disputed(object) => json!({ "disputed": object }),
                Event::Failed(object, why) => {
                    json!({ "failed": { "object": object, "error": why.to_string() } })
                }
                Event::Unknown(name) => json!({ "unknown": name }),
            });
        }
    };
    let totals =
        gc::collect(&engine, store, &options, &mut report, &mut |what, done| feed.progress(what, done))?;
    Ok(json!({
        "objects": totals.objects,
        "bytes": totals.bytes,
        "referenced_objects": totals.referenced,
        "scheduled_objects": totals.scheduled,
        "young_objects": totals.young,
        "disputed_objects": totals.disputed,
        "leaked_objects": totals.leaked,
        "leaked_bytes": totals.leaked_bytes,
        "deleted_objects": totals.deleted,
        "failed_objects": totals.failed,
        "sparse_objects": totals.sparse,
        "sparse_bytes": totals.sparse_bytes,
        "unknown_names": totals.unknown,
        "dry_run": !options.delete,
    }))
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
                "left alone: object {:016x}: no file refers to it but its account says so; run `kestrel fsck`",
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
pub fn run(args: &GcArgs) -> Result<Verdict, Failure> {
    let target = Target::of("gc", &args.volume)?;
    let grace_seconds = args.grace.as_secs();
    let question = json!({ "verb": "gc", "delete": args.delete, "grace_seconds": grace_seconds });
    let found = Printer::KINDS.map(|kind| (kind.to_string(), Value::Array(Vec::new())));
    let mut printer = Printer { json: args.json, found: found.into_iter().collect() };
    let mut progress = Progress::new();
    let mut tell = |event: &Value| {
        shown(&mut progress, event, &mut |event| printer.event(event));
        true
    };
    let of_nodes = several::collect(args, &target, &Feed::new(&mut tell))?;
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
            collect(&*volume.engine, &*volume.store, &options, &Feed::new(&mut tell))
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
    Ok(if all_deleted { Verdict::Good } else { Verdict::Bad })
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
        SPARSE_PERCENT,
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
            println!("{} more whose grace period was over", count(number("reaped_objects")));
        }
    } else if number("leaked_objects") > 0 {
        println!("nothing was deleted; --delete deletes what is leaked");
    }
}
