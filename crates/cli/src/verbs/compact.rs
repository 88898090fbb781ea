//! `kestrel compact`.

use std::time::Duration;

use clap::Args;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::compact::{CompactRequest, compact, compact_nodes};
use kestrel_daemon::units::{bytes, count, duration_arg, size_arg};
use serde_json::{Value, json};

use super::print_json;
use super::volume_job::VolumeJob;
use crate::args::store::StoreArgs;

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
    let wish = CompactRequest {
        paths: None,
        dry_run: args.dry_run,
        grace_seconds: args.grace.as_secs(),
        bytes_per_second: args.rate,
    };
    let job = VolumeJob {
        verb: "compact",
        question: json!({
            "verb": "compact", "dry_run": args.dry_run, "grace_seconds": args.grace.as_secs(),
            "bytes_per_second": args.rate,
        }),
        read_only: args.dry_run,
        store: &args.store,
        here: &|fs, feed| compact(fs, &wish, feed),
        of_nodes: &|fs, nodes, feed| compact_nodes(fs, nodes, &wish, feed),
    };
    let done = job.run(&args.target)?;
    if args.json {
        print_json(&done);
    } else {
        show(&done);
    }
    Ok(if done["failed"] == 0 { ExitStatus::Good } else { ExitStatus::Bad })
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
