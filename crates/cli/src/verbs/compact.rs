//! `kestrel compact`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use kestrel_client::descriptor::{Descriptor, volume_dir};
use kestrel_client::remote::{Introduction, NodeFanOut, RemoteUrl, RemoteVolume};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::compact::{CompactRequest, compact, compact_nodes};
use kestrel_daemon::memory::of_verb;
use kestrel_daemon::progress_stream::ProgressStream;
use kestrel_daemon::units::{bytes, count, duration_arg, size_arg};
use serde_json::{Value, json};

use super::{Target, ask_with, control_dir, mount_above, open, path_value, print_json};
use crate::args::store::StoreArgs;
use crate::progress::{Progress, shown};

/// How long a node may be away.
const DEADLINE: Duration = Duration::from_secs(60);

/// Rewrite what is scattered: objects of which little is in use, and files in many pieces.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel compact /data/vol
  kestrel compact /data/vol --dry-run
  kestrel compact /mnt/data/images
  kestrel compact /data/vol --rate 20M
  kestrel compact kestrel://meta1/photos

Objects of which less than half is in use are read, what is in use is stored again, and they are
deleted after the grace period; files that many small writes cut to pieces are stored in one piece.
Files may be in use meanwhile. A mounted volume does this by itself, slowly; this does it now. Nodes
that share a volume do not do it by themselves: this does, as a client of theirs, and needs room for
a copy of their metadata in the directory for temporary files.")]
pub struct CompactArgs {
    /// The volume (a path, file:///path or kestrel://host[:port]/NAME), or a file or directory in a
    /// mounted volume
    pub target: String,
    /// Only tell what there is to do
    #[arg(long)]
    pub dry_run: bool,
    /// Leave objects alone that were written to less than this ago
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "0")]
    pub grace: Duration,
    /// Bytes stored a second at most; 0: as fast as it goes
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "0")]
    pub rate: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Compacts, wherever the volume is served.
pub fn run(args: &CompactArgs) -> Result<ExitStatus, Failure> {
    let is_volume = RemoteUrl::is_one(&args.target)
        || volume_dir(&args.target).is_ok_and(|dir| Descriptor::read(&dir).is_ok());
    let done = if is_volume { volume(args)? } else { path(args)? };
    if args.json {
        print_json(&done);
    } else {
        show(&done);
    }
    Ok(if done["failed"] == 0 { ExitStatus::Good } else { ExitStatus::Bad })
}

/// What is wanted of the whole volume.
fn wish(args: &CompactArgs) -> CompactRequest {
    CompactRequest {
        paths: None,
        dry_run: args.dry_run,
        grace_seconds: args.grace.as_secs(),
        bytes_per_second: args.rate,
    }
}

fn question(args: &CompactArgs) -> Value {
    json!({
        "verb": "compact", "dry_run": args.dry_run, "grace_seconds": args.grace.as_secs(),
        "bytes_per_second": args.rate,
    })
}

/// Compacts as a client of the nodes that share a volume; nothing if one process serves it alone.
fn of_nodes(args: &CompactArgs, url: &str) -> Result<Option<Value>, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("compact", format!("{url}: {why}"));
    let who = kestrel_daemon::who("kestrel compact");
    let Some(panel) = NodeFanOut::connect(&args.target, &who).map_err(|why| fail(&why))? else {
        return Ok(None);
    };
    let resources = of_verb(args.store.options());
    let introduction = Introduction { who, deadline: DEADLINE, read_only: args.dry_run };
    let volume =
        RemoteVolume::open(&args.target, &introduction, &resources).map_err(|why| fail(&why))?;
    let mut progress = Progress::new();
    let mut tell = |event: &Value| {
        shown(&mut progress, event, &mut |_| {});
        true
    };
    let done = compact_nodes(&volume.fs, &panel, &wish(args), &ProgressStream::new(&mut tell));
    let stored = volume.fs.shutdown().map_err(|why| fail(&why));
    let done = done.map_err(|why| fail(&why))?;
    stored.map(|()| Some(done))
}

fn volume(args: &CompactArgs) -> Result<Value, Failure> {
    let target = Target::of("compact", &args.target)?;
    if let Target::Served(url) = &target
        && let Some(done) = of_nodes(args, url)?
    {
        return Ok(done);
    }
    let mut progress = Progress::new();
    let asked = target.ask("compact", &question(args), None, &mut |event| {
        shown(&mut progress, &event, &mut |_| {})
    })?;
    if let Some(done) = asked {
        return Ok(done);
    }
    let fail = |why: &dyn std::fmt::Display| Failure::new("compact", format!("{target}: {why}"));
    let resources = of_verb(args.store.options());
    let volume = open("compact", &args.target, &args.store)?;
    let served = volume.serve(&resources, false).map_err(|why| fail(&why))?;
    let mut tell = |event: &Value| {
        shown(&mut progress, event, &mut |_| {});
        true
    };
    let done = compact(&served.fs, &wish(args), &ProgressStream::new(&mut tell));
    let stored = served.fs.shutdown().map_err(|why| fail(&why));
    let settled = served.volume.engine.settle().map_err(|why| fail(&why));
    let done = done.map_err(|why| fail(&why))?;
    stored.and(settled).map(|()| done)
}

fn path(args: &CompactArgs) -> Result<Value, Failure> {
    let fail =
        |why: &dyn std::fmt::Display| Failure::new("compact", format!("{}: {why}", args.target));
    let missing = "neither a volume nor a path in a mounted one";
    let path = std::fs::canonicalize(Path::new(&args.target))
        .map_err(|why| fail(&format!("{missing}: {why}")))?;
    let entry = mount_above("compact", &path)?;
    let below = path.strip_prefix(&entry.mount_point).map_err(|why| fail(&why))?;
    let mut question = question(args);
    question["paths"] = vec![path_value(below.as_os_str().as_bytes())].into();
    let dir = control_dir(&entry);
    let mut progress = Progress::new();
    ask_with("compact", &dir, &question, None, &mut |event| {
        shown(&mut progress, &event, &mut |_| {})
    })?
    .ok_or_else(|| fail(&format!("nobody serves the volume {}; mount it again", dir.display())))
}

fn show(done: &Value) {
    let number = |name: &str| done[name].as_u64().unwrap_or(0);
    println!(
        "{} objects less than half in use, with {} unused",
        count(number("sparse_objects")),
        bytes(number("unused_bytes"))
    );
    println!("{} chunks in many pieces", count(number("deep_chunks")));
    if done["dry_run"] == true {
        println!("nothing was changed; without --dry-run it will be");
        return;
    }
    println!(
        "{} references moved, with {}; {} windows of chunks folded",
        count(number("moved_references")),
        bytes(number("stored_bytes")),
        count(number("folded_windows"))
    );
    if number("changed_references") > 0 {
        println!("{} changed meanwhile and were left alone", count(number("changed_references")));
    }
    if number("failed") > 0 {
        println!("{} failed; the log of the serving process says why", count(number("failed")));
    }
}
