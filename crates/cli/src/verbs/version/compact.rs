//! `kestrel version compact`: the same rows as another version, of one run of tables.
//!
//! The first process asks the process that has the volume open to hold the snapshot, and records a
//! plan. From then on all processes are alike, on this machine and on others: each takes work from
//! the plan in the store until none is left. With more than one worker they are child processes,
//! which end with their parent.

use std::ffi::OsString;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use clap::Args;
use kestrel_client::descriptor::random;
use kestrel_client::version::{
    self, Compaction, CompactionEnd, CompactionOrder, CompactionWorker, PARTITIONS_MAX, VersionId,
    VersionManifest, VersionRegistry, VersionUrl, VersionWriter, WorkEnd, check_name,
};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::snapshots::versions::describe;
use kestrel_daemon::units::{bytes, duration_arg};
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::hex::to_hex;
use serde_json::json;

use super::super::print_json;
use super::super::snapshot::KeyArgs;
use super::{VERB, ask, fail, find};
use crate::progress::Progress;

/// Most workers of one process.
const WORKERS_MAX: usize = 256;

/// Least and most time after which a worker is taken for dead.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

/// Time between two looks at the child processes.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Looks between two requests that ask how far the work is.
const LOOKS_A_TELL: u32 = 10;

/// Make a version with the same files in fewer, sorted tables, which is read faster.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel version compact /data/vol//imagenet@v4 --into imagenet@v4c
  kestrel version compact 's3://bucket/photos//all@7?region=eu-1' --into all@7c --workers 16
  kestrel version compact 's3://bucket/photos//all@7?region=eu-1' --into all@7c --join

The workers are processes that take partitions of the names from a plan in the store. More machines
help with --join. Any of them may be killed: others go on, and the same command goes on where all of
them ended. The version that is compacted stays what it is, and either may be deleted.")]
pub struct CompactArgs {
    /// The version that is compacted: VOLUME//NAME
    #[arg(value_name = "VOLUME//NAME")]
    version: OsString,
    /// The name of the version that is made, which must be free
    #[arg(long, value_name = "NAME")]
    into: String,
    /// Worker processes [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = workers_arg)]
    workers: Option<usize>,
    /// Parts of about the same size, with tables of their own [default: one for 24 MiB of tables]
    #[arg(long, value_name = "P", value_parser = partitions_arg)]
    partitions: Option<usize>,
    /// Help with a compaction that was begun elsewhere
    #[arg(long, conflicts_with = "partitions")]
    join: bool,
    /// Take work over from a worker that was not heard of for so long
    #[arg(long, value_name = "TIME", value_parser = patience_arg, default_value = "30s",
        conflicts_with = "join")]
    patience: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// This is a worker of another process, and ends with it
    #[arg(long, hide = true)]
    child: bool,
    #[command(flatten)]
    store: KeyArgs,
}

fn workers_arg(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=WORKERS_MAX).contains(&number) => Ok(number),
        _ => Err(format!("from 1 to {WORKERS_MAX}")),
    }
}

fn partitions_arg(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=PARTITIONS_MAX).contains(&number) => Ok(number),
        _ => Err(format!("from 1 to {PARTITIONS_MAX}")),
    }
}

fn patience_arg(text: &str) -> Result<Duration, String> {
    match duration_arg(text)? {
        time if (PATIENCE_MIN..=PATIENCE_MAX).contains(&time) => Ok(time),
        _ => Err("from 1s to 1h".into()),
    }
}

/// Does it.
pub fn run(args: &CompactArgs) -> Result<ExitStatus, Failure> {
    check_name(&args.into).map_err(|why| Failure::usage(format!("{VERB}: {why}")))?;
    let text = args.version.to_string_lossy();
    let url = VersionUrl::parse(&text);
    let url = url.map_err(|why| Failure::usage(format!("{VERB}: {why}")))?.ok_or_else(|| {
        Failure::usage(format!("{VERB}: {text}: name a version of a volume as VOLUME//NAME"))
    })?;
    if args.child {
        end_with_parent();
    }
    let registry = version::registry(&url.volume, &args.store.store().options()).map_err(fail)?;
    let input = find(&registry, &url.name)?;
    if let Some(made) = finished(&registry, &input, &args.into)? {
        return print(args, &made, None);
    }
    let compaction = match under_way(&registry, &input, &args.into)? {
        Some(compaction) => compaction,
        None => begin(args, &url, &registry, &input)?,
    };
    let before = compaction.progress().map_err(fail)?;
    let workers = args
        .workers
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX));
    // More would only wait.
    let workers = workers.min(before.1 - before.0).max(1);
    let end = if args.child || workers == 1 {
        work(&compaction, &input)?
    } else {
        work_with_children(args, &compaction, workers)?
    };
    if args.child {
        return Ok(ExitStatus::Good);
    }
    let end = match end {
        WorkEnd::Done => compaction.finish(&input).map_err(fail)?,
        WorkEnd::Over => CompactionEnd::Over,
    };
    match end {
        CompactionEnd::Published(made) => print(args, &made, Some(before)),
        CompactionEnd::Taken => Err(taken(&args.into)),
        CompactionEnd::Over => match finished(&registry, &input, &args.into)? {
            Some(made) => print(args, &made, Some(before)),
            None => Err(fail(format!(
                "the compaction into {} was cleaned up, or its version has another name by now; \
                 look with `kestrel version list`",
                args.into
            ))),
        },
    }
}

fn taken(into: &str) -> Failure {
    fail(format!(
        "there is a version {into} already, and a version never changes; choose another name"
    ))
}

/// The version that is to be made, if it is there already; another one of its name is an error.
fn finished(
    registry: &VersionRegistry,
    input: &VersionManifest,
    into: &str,
) -> Result<Option<VersionManifest>, Failure> {
    let Some(found) = registry.find(into).map_err(fail)? else { return Ok(None) };
    let is_of = matches!(found.inputs(), [one] if one.id == input.id);
    if !is_of || found.source != input.source || found.runs.len() > 1 {
        return Err(taken(into));
    }
    Compaction::tidy(registry, &found).map_err(fail)?;
    Ok(Some(found))
}

/// The compaction into this name that has begun.
fn under_way<'r>(
    registry: &'r VersionRegistry,
    input: &VersionManifest,
    into: &str,
) -> Result<Option<Compaction<'r>>, Failure> {
    let found = Compaction::find(registry, into).map_err(fail)?;
    match found {
        Some(found) if found.plan().input().id != input.id => Err(fail(format!(
            "a compaction of {} into {into} has begun; choose another name, or let `kestrel \
             version clean` remove it",
            found.plan().input().name
        ))),
        found => Ok(found),
    }
}

/// Has the volume keep the snapshot with the file data for a version of this identity; the user
/// that asks.
fn hold(
    args: &CompactArgs,
    url: &VersionUrl,
    input: &VersionManifest,
    id: &VersionId,
) -> Result<u32, Failure> {
    let question = json!({ "act": "version-hold", "version": input.name, "id": to_hex(id) });
    let held = ask(&OsString::from(&url.volume), &args.store, question)?;
    Ok(held["user"].as_u64().and_then(|user| u32::try_from(user).ok()).unwrap_or(0))
}

/// Begins a compaction.
fn begin<'r>(
    args: &CompactArgs,
    url: &VersionUrl,
    registry: &'r VersionRegistry,
    input: &VersionManifest,
) -> Result<Compaction<'r>, Failure> {
    if args.join {
        return Err(fail(format!(
            "no compaction into {} is under way; begin it with the same command without --join",
            args.into
        )));
    }
    let id: VersionId = random().map_err(fail)?;
    let user = match input.changes() {
        None => hold(args, url, input, &id)?,
        // The versions below it keep the snapshots.
        Some(_) => {
            VersionWriter::begin(registry.place(), id).map_err(fail)?;
            // SAFETY: geteuid takes nothing and cannot fail.
            unsafe { libc::geteuid() }
        }
    };
    let order = CompactionOrder {
        input,
        into: &args.into,
        id,
        created: SystemClock.now(),
        user,
        partitions: args.partitions,
        patience: args.patience,
    };
    if let Some(begun) = Compaction::begin(registry, &order).map_err(fail)? {
        return Ok(begun);
    }
    // Another process was faster. Its tag on the snapshot is left over, for `version clean`.
    registry.remove_data(&id).map_err(fail)?;
    under_way(registry, input, &args.into)?.ok_or_else(|| {
        fail("another process has begun and ended the same; look with `kestrel version list`")
    })
}

/// Works in this process.
fn work(compaction: &Compaction<'_>, input: &VersionManifest) -> Result<WorkEnd, Failure> {
    let name: [u8; 8] = random().map_err(fail)?;
    CompactionWorker::new(compaction, input, &to_hex(&name)).map_err(fail)?.run().map_err(fail)
}

/// Lets so many child processes work.
fn work_with_children(
    args: &CompactArgs,
    compaction: &Compaction<'_>,
    workers: usize,
) -> Result<WorkEnd, Failure> {
    let mut children = Vec::with_capacity(workers);
    for _ in 0..workers {
        children.push(start_child(args).map_err(|why| fail(format!("starting a worker: {why}")))?);
    }
    let mut progress = Progress::new();
    let mut looks = 0u32;
    while !children.is_empty() {
        thread::sleep(LOOK_EVERY);
        let mut running = Vec::with_capacity(children.len());
        for mut child in children {
            match child.try_wait() {
                Ok(None) => running.push(child),
                Ok(Some(status)) if status.success() => {}
                // The others take its work over.
                Ok(Some(status)) => eprintln!("kestrel {VERB}: a worker ended: {status}"),
                Err(why) => return Err(fail(format!("waiting for a worker: {why}"))),
            }
        }
        children = running;
        looks += 1;
        if looks.is_multiple_of(LOOKS_A_TELL)
            && progress.is_due()
            && let Ok((done, _)) = compaction.progress()
        {
            progress.tick("partitions", done as u64);
        }
    }
    drop(progress);
    let (done, all) = compaction.progress().map_err(fail)?;
    if done == all {
        return Ok(WorkEnd::Done);
    }
    if !compaction.is_planned().map_err(fail)? {
        return Ok(WorkEnd::Over);
    }
    Err(fail(format!(
        "{done} of {all} partitions are done, and no worker is left; the same command goes on"
    )))
}

fn start_child(args: &CompactArgs) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["version", "compact", "--child", "--join", "--into", &args.into]);
    let store = args.store.store();
    for (name, file) in [("--credentials", store.credentials), ("--key-file", store.key_file)] {
        if let Some(file) = file {
            command.arg(name).arg(file);
        }
    }
    // The child reads to the end of its input, which comes when this process ends.
    command.arg("--").arg(&args.version).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
}

/// Ends this process as soon as its parent has ended.
fn end_with_parent() {
    thread::spawn(|| {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {}
        std::process::exit(1);
    });
}

fn print(
    args: &CompactArgs,
    made: &VersionManifest,
    before: Option<(usize, usize)>,
) -> Result<ExitStatus, Failure> {
    if args.json {
        let mut shown = describe(made);
        if let Some((done, all)) = before {
            (shown["partitions"], shown["partitions_found"]) = (all.into(), done.into());
        }
        print_json(&shown);
        return Ok(ExitStatus::Good);
    }
    let found = match before {
        Some((0, all)) => format!("; {all} partitions"),
        Some((done, all)) => format!("; {all} partitions, of which {done} were done before"),
        None => ", as an earlier command has made it".to_string(),
    };
    println!("{}: {} tables of {}{found}", made.name, made.tables(), bytes(made.table_bytes()));
    Ok(ExitStatus::Good)
}
