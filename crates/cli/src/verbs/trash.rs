//! `kestrel trash`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `trash/kept.rs` | what is in the trash, and where it was |
//! | `trash/restore.rs` | `kestrel trash restore` |

mod kept;
mod restore;

use std::ffi::OsString;

use clap::{Args, Subcommand};
use kestrel_daemon::ask::path_value;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{bytes, count};
use serde_json::{Value, json};

use super::print_json;
use super::snapshot::KeyArgs;
use kept::{KeptEntry, Trash};

/// The verb in messages.
const VERB: &str = "trash";

/// Entries that are removed for one question.
const REMOVED_AT_ONCE: usize = 256;

/// See, restore and remove for good what the trash keeps.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  kestrel policy set /mnt/data/projects trash=7d
  kestrel trash list /mnt/data
  kestrel trash restore /mnt/data/projects/report.txt
  kestrel trash empty /mnt/data/projects/old-run

The trash keeps what is removed or replaced below a directory with the policy trash=TIME. A path is
where something was, in a mount or as VOLUME:/path; it need not be there any more. Users other than
root see and handle what belongs to them. docs/datasets.md tells more.

By a path in a mount only root and the user of the mount can do this; others name VOLUME:/path.")]
pub struct TrashArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(ListArgs),
    Restore(restore::RestoreArgs),
    Empty(EmptyArgs),
}

/// List what is in the trash, by where it was.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel trash list /mnt/data
  kestrel trash list /mnt/data/projects --json
  kestrel trash list kestrel://10.0.0.1/photos:/

A name that is not UTF-8 is a list of bytes in JSON. #NUMBER stands for a directory that is neither
there nor in the trash: root finds such entries as /.trash/kept/EXPIRY-NUMBER-INODE-NAME.")]
struct ListArgs {
    /// What was at or below this path; the root of the volume for all of it
    path: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Remove from the trash for good what was at or below a path.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel trash empty /mnt/data/projects/old-run
  kestrel trash empty --dry-run /mnt/data

What is in the trash counts as used until it expires or is removed here.")]
struct EmptyArgs {
    /// What was at or below this path; the root of the volume for all of it
    path: OsString,
    /// Tell what would go; remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Does it.
pub fn run(args: &TrashArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::List(args) => list(args),
        Action::Restore(args) => restore::run(args),
        Action::Empty(args) => empty(args),
    }
}

fn list(args: &ListArgs) -> Result<ExitStatus, Failure> {
    let mut trash = Trash::open(&args.path, &args.store)?;
    let entries = trash.entries()?;
    let below = entries.iter().filter(|entry| trash.is_below(entry));
    if args.json {
        print_json(&below.map(|entry| value_of(&trash, entry)).collect());
    } else {
        for entry in below {
            let KeptEntry { removed, expires, .. } = entry;
            let (removed, expires) = (minutes(removed), minutes(expires));
            let size = if entry.is_dir { "-".into() } else { bytes(entry.bytes) };
            println!("{removed}  {expires}  {size:>10}  {}", trash.shown(entry));
        }
    }
    trash.close()
}

/// `2026-01-31 12:34` of `2026-01-31T12:34:56.789Z`.
fn minutes(time: &str) -> String {
    time.chars().take(16).collect::<String>().replace('T', " ")
}

fn value_of(trash: &Trash, entry: &KeptEntry) -> Value {
    json!({
        "path": path_value(trash.shown(entry).as_bytes()),
        "item": path_value(&entry.item),
        "name": path_value(&entry.name),
        "inode": entry.ino,
        "type": entry.kind,
        "uid": entry.uid,
        "bytes": entry.bytes,
        "removed": entry.removed,
        "expires": entry.expires,
    })
}

fn empty(args: &EmptyArgs) -> Result<ExitStatus, Failure> {
    let mut trash = Trash::open(&args.path, &args.store)?;
    let entries = trash.entries()?;
    let mut below: Vec<&KeptEntry> = entries.iter().filter(|entry| trash.is_below(entry)).collect();
    let mut gone = below.len() as u64;
    let size = below.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
    if !args.dry_run {
        gone = 0;
        while !below.is_empty() {
            let some = below.split_off(below.len().saturating_sub(REMOVED_AT_ONCE));
            let items: Vec<Value> = some.iter().map(|entry| path_value(&entry.item)).collect();
            let question = json!({ "act": "trash-remove", "items": items });
            gone += trash.ask(question)?.as_u64().unwrap_or(0);
        }
    }
    if args.json {
        print_json(&json!({ "entries": gone, "bytes": size, "removed": !args.dry_run }));
    } else {
        let done = if args.dry_run { "would be removed" } else { "removed for good" };
        println!("{} entries with {} {done}", count(gone), bytes(size));
    }
    trash.close()
}
