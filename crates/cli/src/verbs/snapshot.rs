//! `kestrel snapshot`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `snapshot/place.rs` | which directory is meant, which process answers |
//! | `snapshot/dot_snap.rs` | snapshots through `.snap`, where nobody else answers |
//! | `snapshot/diff.rs` | `kestrel snapshot diff` |
//! | `snapshot/text.rs` | what is printed for people |

mod diff;
mod dot_snap;
pub(super) mod place;
mod text;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use kestrel_client::storage::StoreOptions;
use kestrel_daemon::ask::path_value;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::snapshots::schedule::SnapshotSchedule;
use kestrel_types::name::Name;
use kestrel_types::snapshot::is_snapshot_name;
use serde_json::{Value, json};

use super::print_json;
use crate::args::store::StoreArgs;
use place::Place;

/// The verb in messages.
const VERB: &str = "snapshot";

/// Keep a directory as it is now, list what was kept, compare it, remove it.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  kestrel snapshot create /mnt/data/train before-cleaning
  ls /mnt/data/train/.snap/before-cleaning
  kestrel snapshot list /mnt/data/train
  kestrel snapshot diff /mnt/data/train before-cleaning
  kestrel snapshot remove /mnt/data/train before-cleaning
  kestrel snapshot schedule /mnt/data/train 1h=24,1d=7,1w=4

A snapshot is the tree of a directory as it was at one moment. It is made at once, whatever the
tree's size, and is read as DIR/.snap/NAME. A directory is a path in a mount, or VOLUME:/dir, where
VOLUME is a path or kestrel://host[:port]/NAME. docs/datasets.md tells more.")]
pub struct SnapshotArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(OneArgs),
    List(ListArgs),
    Info(InfoArgs),
    Rename(RenameArgs),
    Remove(RemoveArgs),
    /// Keep a snapshot from being removed, by a tag
    Hold(TagArgs),
    /// Take a tag of a snapshot away, so that the snapshot can be removed
    Release(TagArgs),
    Schedule(ScheduleArgs),
    Diff(diff::DiffArgs),
}

/// What opening a volume takes that no process serves.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Volume at rest")]
pub(super) struct KeyArgs {
    /// File with the credentials of an s3:// store [default: AWS_ACCESS_KEY_ID, … or the machine's]
    #[arg(long, value_name = "FILE")]
    pub(super) credentials: Option<PathBuf>,
    /// File with the key of an encrypted volume; by default the one that KESTREL_KEY_FILE names
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
}

impl KeyArgs {
    pub(super) fn store(&self) -> StoreArgs {
        let StoreOptions { max_uploads, max_downloads, .. } = StoreOptions::default();
        let (credentials, key_file) = (self.credentials.clone(), self.key_file.clone());
        let (upload_limit, download_limit) = (0, 0);
        StoreArgs {
            credentials,
            key_file,
            max_uploads,
            max_downloads,
            upload_limit,
            download_limit,
        }
    }
}

/// Make a snapshot of a directory, and print its path.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel snapshot create /mnt/data/train before-cleaning
  kestrel snapshot create /data/vol:/train before-cleaning
  kestrel snapshot create kestrel://10.0.0.1/photos:/train before-cleaning

A name has 1 to 255 bytes, no / and no @, and does not begin with _. What programs have written is
in the snapshot if it was flushed: by close, fsync, or after some seconds.")]
struct OneArgs {
    /// The directory: a path in a mount, or VOLUME:/dir
    dir: OsString,
    /// The snapshot's name among those of the directory
    name: OsString,
    #[command(flatten)]
    store: KeyArgs,
}

/// List snapshots: of a directory and those above it, or all of a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel snapshot list /mnt/data/train
  kestrel snapshot list /data/vol
  kestrel snapshot list kestrel://10.0.0.1/photos --json

Of a directory the names are those that DIR/.snap has: a snapshot of a directory above is shown as
_NAME_INODE. Only root lists all snapshots of a volume, with the paths of their directories; one
without a path is listed as #INODE, and named VOLUME:#INODE.")]
struct ListArgs {
    /// The directory: a path in a mount, or VOLUME:/dir; or a volume [default: the working
    /// directory]
    place: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Show a snapshot: when it was made, its size, its tags, what removing it would give back.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel snapshot info /mnt/data/train before-cleaning

Removing the snapshot gives back at most the bytes that are told: those that the same files have
neither at an older snapshot nor at a newer one or now. Bytes that another file has too, by a rename
or a copy by reference, stay. Reading this takes time in proportion to all that has changed in the
volume since its oldest snapshot.")]
struct InfoArgs {
    /// The directory: a path in a mount, or VOLUME:/dir
    dir: OsString,
    /// The snapshot
    name: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Give a snapshot another name.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel snapshot rename /mnt/data/train before-cleaning raw")]
struct RenameArgs {
    /// The directory: a path in a mount, or VOLUME:/dir
    dir: OsString,
    /// The snapshot
    name: OsString,
    /// Its name from now on
    to: OsString,
    #[command(flatten)]
    store: KeyArgs,
}

/// Remove snapshots. What only they kept is given back in the background.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel snapshot remove /mnt/data/train before-cleaning
  kestrel snapshot remove /mnt/data/train monday tuesday

A snapshot that a tag holds is not removed; see kestrel snapshot release.")]
struct RemoveArgs {
    /// The directory: a path in a mount, or VOLUME:/dir
    dir: OsString,
    /// The snapshots
    #[arg(required = true, value_name = "NAME")]
    names: Vec<OsString>,
    #[command(flatten)]
    store: KeyArgs,
}

/// A snapshot and a tag that keeps it from being removed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel snapshot hold /mnt/data/train before-cleaning paper-2026
  kestrel snapshot release /mnt/data/train before-cleaning paper-2026

A snapshot may have 64 tags; while it has one, neither a person nor a schedule removes it.")]
struct TagArgs {
    /// The directory: a path in a mount, or VOLUME:/dir
    dir: OsString,
    /// The snapshot
    name: OsString,
    /// What it is kept for
    tag: OsString,
    #[command(flatten)]
    store: KeyArgs,
}

/// Make snapshots of a directory by themselves, and keep so many of them; or show what is set.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel snapshot schedule /mnt/data/train 1h=24,1d=7,1w=4
  kestrel snapshot schedule /mnt/data/train
  kestrel snapshot schedule /mnt/data/train --off

1h=24: one snapshot every hour, of which the newest 24 stay. Periods are numbers of m, h, d, w, and
begin at midnight UTC, weeks on Monday. The names are as auto-1h-2026-11-25T22:00Z; a schedule
removes only snapshots with such names of its own periods, and none that a tag holds. The process
that serves the volume makes them: a server, or an embedded mount. --off leaves what was made.")]
struct ScheduleArgs {
    /// The directory: a path in a mount, or VOLUME:/dir
    dir: OsString,
    /// How often one is made and how many are kept: PERIOD=NUMBER, several with commas
    #[arg(value_parser = rules_arg)]
    rules: Option<SnapshotSchedule>,
    /// Make no more
    #[arg(long, conflicts_with = "rules")]
    off: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

fn rules_arg(text: &str) -> Result<SnapshotSchedule, String> {
    SnapshotSchedule::parse(text)
}

/// A name or tag as questions carry it.
fn named(field: &str, name: &OsString) -> Result<Value, Failure> {
    let bytes = name.as_bytes();
    let bad = |why: &str| {
        Failure::usage(format!("{VERB}: {field} {:?}: {why}", String::from_utf8_lossy(bytes)))
    };
    let valid = Name::new(bytes)
        .map_err(|_| bad("it has 1 to 255 bytes, without a slash, and is not . or .."))?;
    if field == "name" && !is_snapshot_name(&valid) {
        return Err(bad("it does not begin with _ and has no @ in it"));
    }
    Ok(path_value(bytes))
}

/// Does it.
pub fn run(args: &SnapshotArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::Create(args) => {
            let name = named("name", &args.name)?;
            let mut place = Place::of(&args.dir, &args.store.store())?;
            place.ask(json!({ "act": "create", "name": name }))?;
            println!("{}", place.path_of(&args.name));
            place.close()
        }
        Action::List(args) => list(args),
        Action::Info(args) => info(args),
        Action::Rename(args) => {
            let (name, to) = (named("name", &args.name)?, named("name", &args.to)?);
            let mut place = Place::of(&args.dir, &args.store.store())?;
            place.ask(json!({ "act": "rename", "name": name, "to": to }))?;
            place.close()
        }
        Action::Remove(args) => remove(args),
        Action::Hold(args) => tag(args, "hold"),
        Action::Release(args) => tag(args, "release"),
        Action::Schedule(args) => schedule(args),
        Action::Diff(args) => diff::run(args),
    }
}

fn list(args: &ListArgs) -> Result<ExitStatus, Failure> {
    let here = OsString::from(".");
    let mut place = Place::of_any(args.place.as_ref().unwrap_or(&here), &args.store.store())?;
    let found = place.ask(json!({ "act": "list", "ancestors": place.is_dir() }))?;
    if args.json {
        print_json(&found);
    } else {
        text::list(&found, &place);
    }
    place.close()
}

/// The snapshot of this name, as it is listed for a directory.
fn find(place: &mut Place, name: &OsString) -> Result<Value, Failure> {
    let found = place.ask(json!({ "act": "list", "ancestors": true }))?;
    let wanted = path_value(name.as_bytes());
    // The name of one that is being removed may have been given to another one.
    let mut all = found["snapshots"].as_array().into_iter().flatten();
    let there = all.find(|one| one["shown"] == wanted && one["removing"] != true);
    match there {
        Some(one) if one["id"].is_u64() => Ok(one.clone()),
        Some(_) => Err(place.fail(dot_snap::NOT_THROUGH_IT)),
        None => Err(place.fail(format!(
            "there is no snapshot {}; `kestrel snapshot list` shows those that there are",
            name.to_string_lossy()
        ))),
    }
}

fn info(args: &InfoArgs) -> Result<ExitStatus, Failure> {
    let mut place = Place::of(&args.dir, &args.store.store())?;
    let mut found = find(&mut place, &args.name)?;
    let dir = place.dir_ino()?;
    found["removal"] = removal(&mut place, &found["id"])?;
    found["tree"] = place.ask(json!({ "act": "usage", "at": found["id"], "dir": dir }))?;
    if args.json {
        print_json(&found);
    } else {
        text::info(&found).print();
    }
    place.close()
}

/// What removing a snapshot would give back; null if that is not known.
fn removal(place: &mut Place, at: &Value) -> Result<Value, Failure> {
    let (mut rows, mut bytes, mut after) = (0, 0, Value::Null);
    loop {
        let part = place.ask(json!({ "act": "removal", "at": at, "after": after }))?;
        if part.is_null() {
            return Ok(part);
        }
        rows += part["rows"].as_u64().unwrap_or(0);
        bytes += part["bytes"].as_u64().unwrap_or(0);
        if part["next"].is_null() {
            return Ok(json!({ "rows": rows, "bytes": bytes }));
        }
        after = part["next"].clone();
    }
}

fn remove(args: &RemoveArgs) -> Result<ExitStatus, Failure> {
    let names = args.names.iter().map(|name| named("name", name)).collect::<Result<Vec<_>, _>>()?;
    let mut place = Place::of(&args.dir, &args.store.store())?;
    let mut verdict = ExitStatus::Good;
    for name in names {
        if let Err(why) = place.ask(json!({ "act": "remove", "name": name })) {
            if args.names.len() == 1 {
                return Err(why);
            }
            // The others are removed all the same.
            eprintln!("kestrel {why}");
            verdict = ExitStatus::Bad;
        }
    }
    place.close()?;
    Ok(verdict)
}

fn tag(args: &TagArgs, act: &str) -> Result<ExitStatus, Failure> {
    let (name, tag) = (named("name", &args.name)?, named("tag", &args.tag)?);
    let mut place = Place::of(&args.dir, &args.store.store())?;
    place.ask(json!({ "act": act, "name": name, "tag": tag }))?;
    place.close()
}

fn schedule(args: &ScheduleArgs) -> Result<ExitStatus, Failure> {
    let mut place = Place::of(&args.dir, &args.store.store())?;
    let text = args.rules.as_ref().map(ToString::to_string);
    let found = match (&text, args.off) {
        (None, false) => place.ask(json!({ "act": "schedule" }))?,
        _ => place.ask(json!({ "act": "schedule", "set": text }))?,
    };
    if args.json {
        print_json(&found);
    } else {
        text::schedule(&found, args.off);
    }
    place.close()?;
    let is_good = found["damaged"].is_null() && found["failed"].is_null();
    Ok(if is_good { ExitStatus::Good } else { ExitStatus::Bad })
}
