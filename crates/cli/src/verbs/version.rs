//! `kestrel version`: the published versions of a volume.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use kestrel_client::version::{self, VersionManifest, VersionRegistry, check_name};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::snapshots::versions::describe;
use kestrel_daemon::units::{bytes, duration_arg};
use serde_json::{Value, json};

mod compact;
mod lineage;

use self::compact::CompactArgs;
use super::snapshot::KeyArgs;
use super::snapshot::place::Place;
use super::{print_json, volume_of};

/// The verb in messages.
const VERB: &str = "version";

/// List, compact, rename and delete published versions (`kestrel publish`).
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  kestrel version list /mnt/data
  kestrel version list 's3://bucket/photos?region=eu-1' imagenet
  kestrel version info kestrel://meta1/photos imagenet@v3
  kestrel version lineage /data/vol imagenet@v4
  kestrel version compact /data/vol//imagenet@v4 --into imagenet@v4c
  kestrel version delete /data/vol imagenet@v1

A volume is a path in a mount, its directory, s3://… or kestrel://…. list, info and lineage read the
store and ask no process that has the volume open. `kestrel version` alone prints the version of
this program.")]
pub struct VersionArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(ListArgs),
    Info(InfoArgs),
    Lineage(LineageArgs),
    Compact(CompactArgs),
    Rename(RenameArgs),
    Delete(DeleteArgs),
    Clean(CleanArgs),
}

/// List versions, in the order of their names.
#[derive(Debug, Args)]
struct ListArgs {
    /// The volume
    volume: OsString,
    /// Only names that begin with this
    #[arg(default_value = "")]
    prefix: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Show a version: how much is in it, and which snapshot keeps its data.
#[derive(Debug, Args)]
struct InfoArgs {
    /// The volume
    volume: OsString,
    /// The version
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Show which versions a version was made from, and those which versions, and which were made from
/// it.
#[derive(Debug, Args)]
#[command(
    after_help = "Inputs are what `kestrel publish --input` was told. An input that was deleted
is shown with the name that it had; its own inputs are not known any more."
)]
struct LineageArgs {
    /// The volume
    volume: OsString,
    /// The version
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Give a version another name, which must be free. Mounts of it go on.
#[derive(Debug, Args)]
struct RenameArgs {
    /// The volume
    volume: OsString,
    /// The version
    name: String,
    /// Its name from now on
    to: String,
    #[command(flatten)]
    store: KeyArgs,
}

/// Delete a version: its name and tables go, and its snapshot, if that was made for it.
#[derive(Debug, Args)]
#[command(after_help = "A mount of a deleted version answers EIO for what it has not read yet.")]
struct DeleteArgs {
    /// The volume
    volume: OsString,
    /// The version
    name: String,
    #[command(flatten)]
    store: KeyArgs,
}

/// Remove what publications, compactions and deletions left that were cut short.
#[derive(Debug, Args)]
struct CleanArgs {
    /// The volume
    volume: OsString,
    /// Leave what a process has written more recently than this: it may still be at it
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "1h")]
    older: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new(VERB, why)
}

fn registry(volume: &OsString, store: &KeyArgs) -> Result<VersionRegistry, Failure> {
    version::registry(&volume_of(VERB, volume)?, &store.store().options()).map_err(fail)
}

fn find(registry: &VersionRegistry, name: &str) -> Result<VersionManifest, Failure> {
    check_name(name).map_err(|why| Failure::usage(format!("{VERB}: {why}")))?;
    registry.find(name).map_err(fail)?.ok_or_else(|| {
        fail(format!(
            "there is no version {name}; `kestrel version list` shows those that there are"
        ))
    })
}

/// Asks the process that has the volume open, or this one.
fn ask(volume: &OsString, store: &KeyArgs, question: Value) -> Result<Value, Failure> {
    let place = Place::of_any(volume, &store.store());
    let mut place = place.map_err(|why| why.of(VERB))?;
    let answer = place.ask_at_length(question, &mut |_| ()).map_err(|why| why.of(VERB));
    let closed = place.close().map_err(|why| why.of(VERB));
    closed.and(answer)
}

/// Does it.
pub fn run(args: &VersionArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::List(args) => return list(args),
        Action::Info(args) => {
            let found = find(&registry(&args.volume, &args.store)?, &args.name)?;
            match args.json {
                true => print_json(&describe(&found)),
                false => print_info(&found),
            }
        }
        Action::Lineage(args) => return lineage(args),
        Action::Compact(args) => return compact::run(args),
        Action::Rename(args) => {
            check_name(&args.to).map_err(|why| Failure::usage(format!("{VERB}: {why}")))?;
            let question = json!({ "act": "version-rename", "name": args.name, "to": args.to });
            ask(&args.volume, &args.store, question)?;
        }
        Action::Delete(args) => {
            let question = json!({ "act": "version-delete", "name": args.name });
            ask(&args.volume, &args.store, question)?;
        }
        Action::Clean(args) => {
            let question = json!({ "act": "version-clean", "older": args.older.as_secs() });
            let done = ask(&args.volume, &args.store, question)?;
            match args.json {
                true => print_json(&done),
                false => println!(
                    "{} left-over versions removed, {} snapshots released, {} objects of jobs \
                     removed",
                    done["removed"], done["released"], done["objects"]
                ),
            }
        }
    }
    Ok(ExitStatus::Good)
}

fn lineage(args: &LineageArgs) -> Result<ExitStatus, Failure> {
    let registry = registry(&args.volume, &args.store)?;
    let of = find(&registry, &args.name)?;
    let (mut versions, mut status) = (lineage::Versions::new(), ExitStatus::Good);
    for name in registry.names("").map_err(fail)? {
        match registry.find(&name) {
            Ok(found) => versions.extend(found.map(|found| (found.id.clone(), found))),
            Err(why) => {
                eprintln!("kestrel {VERB}: {why}");
                status = ExitStatus::Bad;
            }
        }
    }
    match args.json {
        true => print_json(&lineage::describe(&versions, &of)),
        false => lineage::print(&versions, &of),
    }
    Ok(status)
}

fn list(args: &ListArgs) -> Result<ExitStatus, Failure> {
    let registry = registry(&args.volume, &args.store)?;
    let names = registry.names(&args.prefix).map_err(fail)?;
    let (mut found, mut damaged) = (Vec::with_capacity(names.len()), Vec::new());
    for name in &names {
        match registry.find(name) {
            // One that was deleted meanwhile is left out.
            Ok(version) => found.extend(version),
            Err(why) => damaged.push((name, why)),
        }
    }
    if args.json {
        let unreadable =
            damaged.iter().map(|(name, why)| json!({ "name": name, "error": why.to_string() }));
        let unreadable: Vec<Value> = unreadable.collect();
        let versions: Vec<Value> = found.iter().map(describe).collect();
        print_json(&json!({ "versions": versions, "unreadable": unreadable }));
    } else {
        print_list(&found, names.iter().map(String::len).max().unwrap_or(0).max(4));
    }
    for (_, why) in &damaged {
        eprintln!("kestrel {VERB}: {why}");
    }
    Ok(if damaged.is_empty() { ExitStatus::Good } else { ExitStatus::Bad })
}

fn print_list(found: &[VersionManifest], width: usize) {
    if !found.is_empty() {
        println!("{:width$}  {:20}  {:>12}  {:>10}", "NAME", "PUBLISHED", "FILES", "BYTES");
    }
    for one in found {
        let published = kestrel_daemon::logger::utc(one.created);
        let published = published.split('.').next().unwrap_or_default();
        let (files, size) = (one.figures.files, bytes(one.figures.bytes));
        println!("{:width$}  {published:20}  {files:>12}  {size:>10}", one.name);
    }
}

fn print_info(one: &VersionManifest) {
    let snapshot = String::from_utf8_lossy(&one.source.snapshot_name).into_owned();
    let owned = if one.source.owned { ", made for it" } else { "" };
    println!("{}", one.name);
    println!("  published    {} by user {}", kestrel_daemon::logger::utc(one.created), one.user);
    println!("  files        {}", one.figures.files);
    println!("  directories  {}", one.figures.directories);
    println!("  bytes        {}", bytes(one.figures.bytes));
    println!("  tables       {} of {}", one.tables(), bytes(one.table_bytes()));
    println!("  runs         {}", one.runs.len());
    for input in one.inputs() {
        println!("  input        {}", input.name);
    }
    match one.changes() {
        Some(changes) => {
            let below: Vec<&str> =
                changes.base.layers.iter().map(|layer| layer.name.as_str()).collect();
            println!("  made by      job {}", changes.base.job);
            println!("  below it     {}", below.join(", "));
        }
        None => {
            println!("  snapshot     {snapshot} of directory #{}{owned}", one.source.snapshot_dir);
        }
    }
}
