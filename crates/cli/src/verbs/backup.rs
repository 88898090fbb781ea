//! `kestrel backup`: dumps in the block store.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kestrel_admin::dump::backup::{BackupRepository, Stamp};
use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::RemoteUrl;
use kestrel_client::state_dir::is_bucket_url;
use kestrel_client::storage::{Storage, StoreOptions};
use kestrel_daemon::backup_schedule::{self, describe};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::dump::write_whole;
use kestrel_daemon::units::{bytes, count};
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use serde_json::{Value, json};

use super::{Target, open, print_json};
use crate::args::store::StoreArgs;
use crate::at_rest::{self, AtRest};
use crate::progress::{Progress, shown};

/// Dumps of a volume's metadata in its block store: take, list, fetch, remove.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel backup now /data/vol
  kestrel backup now kestrel://10.0.0.1,10.0.0.2,10.0.0.3/photos
  kestrel backup list /data/vol
  kestrel backup list 's3://bucket/photos?region=eu-central-1'
  kestrel backup fetch 's3://bucket/photos?region=eu-central-1' /tmp/photos.dump
  kestrel backup prune /data/vol --keep 3

The process that serves a volume puts a dump into its block store once a day and keeps seven
(`--dump-every`, `--dump-keep` of mount and serve), beside the objects that the dump refers to. If
the machine with the metadata is lost, the dump restores the volume: list, fetch, then `kestrel
load`. For that the URL of the store is enough, and the key if the volume is encrypted.")]
pub struct BackupArgs {
    #[command(subcommand)]
    verb: BackupVerb,
}

#[derive(Debug, Subcommand)]
enum BackupVerb {
    /// Put a dump into the block store now
    Now(NowArgs),
    /// List the dumps in the block store, the oldest first
    List(ListArgs),
    /// Write a dump from the block store to a file, for `kestrel load`
    Fetch(FetchArgs),
    /// Remove all but the newest dumps
    Prune(PruneArgs),
}

#[derive(Debug, Args)]
struct NowArgs {
    /// The volume: a path, file:///path, s3://… or kestrel://host[:port]/NAME
    volume: String,
    /// Of a cluster with no node running: the directory of another node; once for each of them
    #[arg(long = "node", value_name = "DIR")]
    nodes: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// The volume: a path, file:///path or kestrel://host[:port]/NAME; or where its objects are:
    /// s3://… or file:///path
    place: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
struct FetchArgs {
    /// The volume: a path, file:///path or s3://…; or where its objects are: s3://… or file:///path
    place: String,
    /// File to write
    file: PathBuf,
    /// Which dump, as `kestrel backup list` names it; the newest by default
    #[arg(long, value_name = "DUMP")]
    dump: Option<u64>,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
struct PruneArgs {
    /// The volume: a path, file:///path, s3://… or kestrel://host[:port]/NAME
    volume: String,
    /// How many of the newest are kept
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    keep: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("backup", why)
}

/// Does it.
pub fn run(args: &BackupArgs) -> Result<ExitStatus, Failure> {
    match &args.verb {
        BackupVerb::Now(args) => now(args),
        BackupVerb::List(args) => list(args),
        BackupVerb::Fetch(args) => fetch(args),
        BackupVerb::Prune(args) => prune(args),
    }
}

/// Asks the process that serves the volume, showing how far it is; `None` if none does.
fn ask(target: &Target, question: &Value) -> Result<Option<Value>, Failure> {
    let mut progress = Progress::new();
    target.ask("backup", question, None, &mut |event| shown(&mut progress, &event, &mut |_| ()))
}

fn now(args: &NowArgs) -> Result<ExitStatus, Failure> {
    let options = args.store.options();
    let is_path = !RemoteUrl::is_one(&args.volume);
    if !is_path && !args.nodes.is_empty() {
        return Err(Failure::usage(
            "backup: a URL stands alone: --node is for nodes that do not run",
        ));
    }
    let target = Target::of("backup", &args.volume, args.store.credentials.as_deref())?;
    let mut progress = Progress::new();
    let mut tick = |rows| progress.tick("dumping rows", rows);
    let kept = if is_path && !args.nodes.is_empty() {
        let nodes = AtRest::open("backup", &args.volume, &args.nodes, &args.store)?;
        let first = nodes.first()?;
        let whole = nodes.gather(&mut tick)?;
        let left_out = whole.findings.len() as u64;
        let whole = whole.into_one(SystemClock.now()).map_err(fail)?;
        let dir = super::locate("backup", &args.volume, args.store.credentials.as_deref())?;
        let shelf = backup_schedule::shelf(&dir, &first.descriptor, &options).map_err(fail)?;
        describe(
            &backup_schedule::keep(
                &shelf,
                whole.engine(),
                &first.descriptor,
                &dir,
                left_out,
                &mut tick,
            )
            .map_err(fail)?,
        )
    } else if let Some(kept) = ask(&target, &json!({ "verb": "backup", "act": "now" }))? {
        kept
    } else if at_rest::is_meant("backup", &args.volume, &args.nodes) {
        return Err(fail(
            "this is one of several nodes, and it does not run: name the others with --node",
        ));
    } else {
        let volume = open("backup", &args.volume, &args.store)?;
        let dir = super::locate("backup", &args.volume, args.store.credentials.as_deref())?;
        let shelf = backup_schedule::shelf(&dir, &volume.descriptor, &options).map_err(fail)?;
        let kept =
            backup_schedule::keep(&shelf, &*volume.engine, &volume.descriptor, &dir, 0, &mut tick);
        describe(&kept.map_err(fail)?)
    };
    drop(progress);
    if args.json {
        print_json(&kept);
    } else {
        let number = |name: &str| kept[name].as_u64().unwrap_or(0);
        println!(
            "dump {}: {} rows and {} changes, {}, in the block store",
            number("dump"),
            count(number("rows")),
            count(number("changes")),
            bytes(number("bytes"))
        );
    }
    match kept["left_out"].as_u64() {
        None | Some(0) => Ok(ExitStatus::Good),
        Some(damaged) => {
            eprintln!(
                "kestrel backup: {damaged} rows are damaged, and not in the dump; run `kestrel \
                 fsck`"
            );
            Ok(ExitStatus::Bad)
        }
    }
}

/// The store of dumps that `place` names, opened from here; a volume's if its directory is named.
enum BackupSource {
    Volume(PathBuf, Box<Descriptor>),
    Store(String),
}

impl BackupSource {
    fn of(place: &str, credentials: Option<&Path>) -> Result<Self, Failure> {
        if is_bucket_url(place) {
            // The dumps of a volume can be used without it, too.
            let found = super::locate("backup", place, credentials).ok();
            let descriptor = found.and_then(|dir| Some((Descriptor::read(&dir).ok()?, dir)));
            return Ok(match descriptor {
                Some((descriptor, dir)) => Self::Volume(dir, Box::new(descriptor)),
                None => Self::Store(place.into()),
            });
        }
        let dir = super::locate("backup", place, None)?;
        match Descriptor::read(&dir) {
            Ok(descriptor) => Ok(Self::Volume(dir, Box::new(descriptor))),
            // A directory with objects; or nothing, and then what is missing is the volume.
            Err(_) if dir.join(kestrel_blockstore::store::key::DUMPS).is_dir() => {
                let path =
                    dir.to_str().ok_or_else(|| Failure::usage("backup: the path must be UTF-8"))?;
                Ok(Self::Store(format!("file://{path}")))
            }
            Err(why) => Err(fail(why)),
        }
    }

    /// Its dumps. Their parts can be read if `stamp`, or the newest, tells how.
    fn shelf(
        &self,
        options: &StoreOptions,
        stamp: Option<Stamp>,
    ) -> Result<(BackupRepository, Option<Stamp>), Failure> {
        match self {
            Self::Volume(dir, descriptor) => {
                Ok((backup_schedule::shelf(dir, descriptor, options).map_err(fail)?, stamp))
            }
            Self::Store(url) => {
                let plain = Storage::find_dumps(url, options).map_err(fail)?;
                let raw = BackupRepository::new(plain.clone(), plain.clone());
                let newest = || raw.list().map(|listed| listed.kept.last().map(|kept| kept.stamp));
                let Some(stamp) =
                    stamp.map_or_else(newest, |stamp| Ok(Some(stamp))).map_err(fail)?
                else {
                    return Ok((raw, None));
                };
                let volume = raw.manifest(stamp).map_err(fail)?.volume;
                let descriptor: Descriptor = serde_json::from_value(volume).map_err(|why| {
                    fail(format!("dump {}: it describes no volume: {why}", stamp.0))
                })?;
                let coded =
                    Storage::coded_dumps(plain.clone(), &descriptor, options).map_err(fail)?;
                Ok((BackupRepository::new(plain, coded), Some(stamp)))
            }
        }
    }
}

fn list(args: &ListArgs) -> Result<ExitStatus, Failure> {
    let options = args.store.options();
    let question = json!({ "verb": "backup", "act": "list" });
    let asked = match RemoteUrl::is_one(&args.place) {
        true => {
            ask(&Target::of("backup", &args.place, args.store.credentials.as_deref())?, &question)?
        }
        false => None,
    };
    let listed = match asked {
        Some(listed) => listed,
        None => match BackupSource::of(&args.place, args.store.credentials.as_deref())? {
            BackupSource::Volume(dir, descriptor) => {
                let plain = Storage::open_dumps(&dir, &descriptor, &options).map_err(fail)?;
                backup_schedule::list(&BackupRepository::new(plain.clone(), plain)).map_err(fail)?
            }
            BackupSource::Store(url) => {
                let plain = Storage::find_dumps(&url, &options).map_err(fail)?;
                backup_schedule::list(&BackupRepository::new(plain.clone(), plain)).map_err(fail)?
            }
        },
    };
    if args.json {
        print_json(&listed);
        return Ok(ExitStatus::Good);
    }
    let dumps = listed["dumps"].as_array().map(Vec::as_slice).unwrap_or_default();
    for dump in dumps {
        let number = |name: &str| dump[name].as_u64().unwrap_or(0);
        println!(
            "{}  {}  {} rows, {} ({} in the store), volume {}",
            number("dump"),
            utc(number("dump")),
            count(number("rows") + number("changes")),
            bytes(number("bytes")),
            bytes(number("stored_bytes")),
            dump["name"].as_str().unwrap_or("?")
        );
    }
    for stamp in listed["unfinished"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
        println!("{stamp}  {}  being taken, or cut short", utc(stamp));
    }
    for damaged in listed["damaged"].as_array().into_iter().flatten() {
        let stamp = damaged["dump"].as_u64().unwrap_or(0);
        println!(
            "{stamp}  {}  cannot be used: {}",
            utc(stamp),
            damaged["why"].as_str().unwrap_or("?")
        );
    }
    if dumps.is_empty() {
        println!("no complete dump; `kestrel backup now` takes one");
    }
    Ok(ExitStatus::Good)
}

/// A time in seconds since 1970, for people.
fn utc(seconds: u64) -> String {
    let text = kestrel_daemon::logger::utc(
        i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(SECOND),
    );
    let whole = text.split_once('.').map_or(text.as_str(), |(whole, _)| whole);
    format!("{}Z", whole.replace('T', " "))
}

fn fetch(args: &FetchArgs) -> Result<ExitStatus, Failure> {
    if RemoteUrl::is_one(&args.place) {
        return Err(Failure::usage(
            "backup: name the volume's directory, or where its objects are, from where the dump is \
             fetched (s3://… or file:///…)",
        ));
    }
    let options = args.store.options();
    let (shelf, stamp) = BackupSource::of(&args.place, args.store.credentials.as_deref())?
        .shelf(&options, args.dump.map(Stamp))?;
    let kept = match stamp {
        Some(stamp) => shelf.manifest(stamp).map_err(fail)?,
        None => {
            let newest = shelf.list().map_err(fail)?.kept.pop();
            newest.ok_or_else(|| {
                fail("there is no complete dump; `kestrel backup list` shows what there is")
            })?
        }
    };
    write(&shelf, &kept, &args.file, args.force).map_err(fail)?;
    if args.json {
        let mut out = describe(&kept);
        out["file"] = args.file.to_string_lossy().into();
        print_json(&out);
    } else {
        println!(
            "{}: dump {} of {}, {}; `kestrel load` makes a volume of it",
            args.file.display(),
            kept.stamp.0,
            utc(kept.stamp.0),
            bytes(kept.counts.bytes)
        );
    }
    Ok(ExitStatus::Good)
}

/// Writes a dump to `file`, which appears complete and durable or not at all.
fn write(
    shelf: &BackupRepository,
    kept: &kestrel_admin::dump::backup::Backup,
    file: &Path,
    force: bool,
) -> Result<(), String> {
    let failed = |why: io::Error| format!("{}: {why}", file.display());
    write_whole(file, force, |out, _| {
        let copied = io::copy(&mut shelf.read(kept), out).map_err(failed)?;
        if copied != kept.counts.bytes {
            return Err(failed(io::Error::other("the dump is shorter than its manifest says")));
        }
        Ok(())
    })
}

fn prune(args: &PruneArgs) -> Result<ExitStatus, Failure> {
    let target = Target::of("backup", &args.volume, args.store.credentials.as_deref())?;
    let question = json!({ "verb": "backup", "act": "prune", "keep": args.keep });
    let done = match ask(&target, &question)? {
        Some(done) => done,
        None => {
            let (shelf, _) = BackupSource::of(&args.volume, args.store.credentials.as_deref())?
                .shelf(&args.store.options(), None)?;
            backup_schedule::prune(&shelf, usize::try_from(args.keep).unwrap_or(usize::MAX))
                .map_err(fail)?
        }
    };
    if args.json {
        print_json(&done);
    } else {
        println!("{} dumps removed", done["removed"].as_array().map_or(0, Vec::len));
    }
    Ok(ExitStatus::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_told_as_calendars_do() {
        assert_eq!(utc(0), "1970-01-01 00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00Z");
        assert_eq!(utc(1_795_406_706), "2026-11-23 04:05:06Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01 00:00:00Z");
    }
}
