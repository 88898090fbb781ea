//! `kestrel gc`.

use std::time::Duration;

use clap::Args;
use kestrel_admin::gc::{self, Event, GcError, Options};
use kestrel_data::store::BlockStore;
use kestrel_meta::engine::Engine;
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use kestrel_types::ids::ObjectId;
use serde_json::{Value, json};

use super::{ask, locate, open, print_json};
use crate::failure::{Failure, Verdict};
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
listing or a row of the metadata cannot be read.")]
pub struct GcArgs {
    /// The volume: a path or file:///path
    pub volume: String,
    /// Delete what is found
    #[arg(long)]
    pub delete: bool,
    /// Leave objects alone that were written to less than this ago
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "1h")]
    pub grace: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What to collect, by the present time.
pub fn options(grace_seconds: u64, delete: bool, is_open: &dyn Fn(ObjectId) -> bool) -> Options<'_> {
    let grace = i64::try_from(grace_seconds).unwrap_or(i64::MAX).saturating_mul(SECOND);
    Options { now: SystemClock.now(), grace, delete, is_open }
}

/// Collects, and describes what was found and done.
///
/// # Errors
/// Those of the collection; nothing was deleted then.
pub fn collect(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    options: &Options<'_>,
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<Value, GcError> {
    let (mut listed, mut failed, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    let mut report = |event: Event<'_>| match event {
        Event::Leaked { object, size, age } if listed.len() < LISTED_MAX => {
            listed.push(json!({ "object": object, "bytes": size, "age_seconds": age / SECOND }));
        }
        Event::Failed(object, why) if failed.len() < LISTED_MAX => {
            failed.push(json!({ "object": object, "error": why.to_string() }));
        }
        Event::Unknown(name) if unknown.len() < LISTED_MAX => unknown.push(Value::from(name)),
        _ => {}
    };
    let totals = gc::collect(engine, store, options, &mut report, progress)?;
    Ok(json!({
        "objects": totals.objects,
        "bytes": totals.bytes,
        "referenced_objects": totals.referenced,
        "scheduled_objects": totals.scheduled,
        "young_objects": totals.young,
        "leaked_objects": totals.leaked,
        "leaked_bytes": totals.leaked_bytes,
        "deleted_objects": totals.deleted,
        "failed_objects": totals.failed,
        "sparse_objects": totals.sparse,
        "sparse_bytes": totals.sparse_bytes,
        "unknown_names": totals.unknown,
        "dry_run": !options.delete,
        "leaked": listed,
        "failed": failed,
        "unknown": unknown,
    }))
}

/// Collects.
pub fn run(args: &GcArgs) -> Result<Verdict, Failure> {
    let dir = locate("gc", &args.volume)?;
    kestrel_client::descriptor::Descriptor::read(&dir).map_err(|why| Failure::new("gc", why))?;
    let grace_seconds = args.grace.as_secs();
    let question = json!({ "verb": "gc", "delete": args.delete, "grace_seconds": grace_seconds });
    let done = match ask("gc", &dir, &question, None)? {
        Some(done) => done,
        None => {
            let volume = open("gc", &args.volume)?;
            let mut progress = Progress::new();
            let options = options(grace_seconds, args.delete, &|_| false);
            collect(&*volume.engine, &*volume.store, &options, &mut |what, number| {
                progress.tick(what, number)
            })
            .map_err(|why| Failure::new("gc", format!("{}: {why}", dir.display())))?
        }
    };
    if args.json {
        print_json(&done);
    } else {
        show(args, &done);
    }
    let all_deleted = done["failed_objects"] == 0;
    Ok(if all_deleted { Verdict::Good } else { Verdict::Bad })
}

fn show(args: &GcArgs, done: &Value) {
    let number = |name: &str| done[name].as_u64().unwrap_or(0);
    for leaked in done["leaked"].as_array().into_iter().flatten() {
        let field = |name: &str| leaked[name].as_u64().unwrap_or(0);
        println!(
            "leaked: object {:016x}, {}, {} s old",
            field("object"),
            bytes(field("bytes")),
            field("age_seconds")
        );
    }
    for failed in done["failed"].as_array().into_iter().flatten() {
        println!("not deleted: object {}: {}", failed["object"], failed["error"].as_str().unwrap_or("?"));
    }
    for name in done["unknown"].as_array().into_iter().flatten() {
        println!("not an object, left alone: {}", name.as_str().unwrap_or("?"));
    }
    println!("{} objects with {}", count(number("objects")), bytes(number("bytes")));
    println!("{} leaked with {}", count(number("leaked_objects")), bytes(number("leaked_bytes")));
    println!(
        "{} scheduled for deletion, {} too young or open to judge",
        count(number("scheduled_objects")),
        count(number("young_objects"))
    );
    println!(
        "{} less than {} % in use, with {} unused",
        count(number("sparse_objects")),
        gc::SPARSE_PERCENT,
        bytes(number("sparse_bytes"))
    );
    if args.delete {
        println!("{} deleted", count(number("deleted_objects")));
    } else if number("leaked_objects") > 0 {
        println!("nothing was deleted; --delete deletes what is leaked");
    }
}
