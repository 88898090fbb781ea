//! `kestrel tier`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::tiers::{RESTORE_DAYS_MAX, TierRequest, serve, serve_nodes};
use kestrel_daemon::units::{bytes, count, duration_arg, size_arg};
use serde_json::{Value, json};

use super::print_json;
use super::volume_job::VolumeJob;
use crate::args::store::StoreArgs;

const VERB: &str = "tier";

/// How long `--until-restored` rests between two looks at the archive, unless told otherwise.
const LOOK_EVERY: &str = "1m";

/// Where the store keeps files: show it, move them, have an archive make them readable.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  kestrel policy set /mnt/data/2023 tier=archive
  kestrel tier migrate /mnt/data/2023 --dry-run
  kestrel tier migrate /mnt/data/2023
  kestrel tier status /mnt/data/2023
  kestrel tier restore /mnt/data/2023/run-7 --days 14 --until-restored

Tiers are storage classes of an S3 store: standard, standard-ia, onezone-ia, intelligent-tiering,
glacier-ir, archive (GLACIER), deep-archive. `kestrel policy set DIR tier=TIER` says where new data
goes, `migrate` moves what is there. Files in an archive cannot be read (EIO) until `restore` has
asked for them and the archive has brought them. docs/datasets.md tells more.")]
pub struct TierArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Status(StatusArgs),
    Migrate(MigrateArgs),
    Restore(RestoreArgs),
}

/// What it is about.
#[derive(Debug, Args)]
struct Place {
    /// A file or directory in a mounted volume, or a volume (a path, file:///path or
    /// kestrel://host[:port]/NAME)
    target: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Show in which tiers files are, and what of archives can be read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel tier status /mnt/data/2023
  kestrel tier status /data/vol --json

Takes one request to the store for each object, which has up to 16 MiB of files. Exit code 1:
something is in an archive and cannot be read now.")]
struct StatusArgs {
    #[command(flatten)]
    place: Place,
}

/// Move files to the tiers that the policies of their directories say.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel tier migrate /mnt/data/2023 --dry-run
  kestrel tier migrate /mnt/data/2023 --rate 200M

The store copies objects by itself, in their place. Objects that hold files from elsewhere as well
(clones, the trash, small files stored together before there was a policy) stay where they are, and
the bytes of the files below are stored again in their tier. What was cut off is resumed by
repeating it. Snapshots of these files have the same objects: what they show of them moves, too.")]
struct MigrateArgs {
    #[command(flatten)]
    place: Place,
    /// Only tell what there is to move, and what the store will charge for
    #[arg(long)]
    dry_run: bool,
    /// Bytes moved a second at most; 0: as fast as it goes
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "0")]
    rate: u64,
}

/// Ask archives to make files readable, for some days.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel tier restore /mnt/data/2023/run-7
  kestrel tier restore /mnt/data/2023/run-7 --days 30 --speed bulk --until-restored

Exit code 1: not everything can be read yet. Repeating it is harmless.")]
struct RestoreArgs {
    #[command(flatten)]
    place: Place,
    /// How long they stay readable, days
    #[arg(long, value_name = "DAYS", default_value_t = 7,
        value_parser = clap::value_parser!(u64).range(1..=RESTORE_DAYS_MAX))]
    days: u64,
    /// How soon they are: minutes, hours, or half a day; the sooner the dearer
    #[arg(long, value_name = "SPEED", default_value = "standard")]
    speed: Speed,
    /// Return when everything can be read
    #[arg(long)]
    until_restored: bool,
    /// With --until-restored: look so often
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = LOOK_EVERY,
        requires = "until_restored")]
    every: Duration,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Speed {
    Expedited,
    Standard,
    Bulk,
}

impl Speed {
    fn name(self) -> &'static str {
        match self {
            Self::Expedited => "expedited",
            Self::Standard => "standard",
            Self::Bulk => "bulk",
        }
    }
}

/// Has the process that has the volume do it.
fn ask(place: &Place, mut question: Value) -> Result<Value, Failure> {
    question["verb"] = VERB.into();
    let wish =
        TierRequest::of(&question).map_err(|why| Failure::usage(format!("{VERB}: {why}")))?;
    let job = VolumeJob {
        verb: VERB,
        question,
        read_only: !wish.changes(),
        store: &place.store,
        here: &|fs, feed| serve(fs, &wish, feed),
        of_nodes: &|fs, nodes, feed| serve_nodes(fs, nodes, &wish, feed),
    };
    job.run(&place.target)
}

/// Runs the verb.
pub fn run(args: &TierArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::Status(args) => {
            let done = ask(&args.place, json!({ "act": "status" }))?;
            show(&args.place, &done, show_status);
            Ok(if objects(&done["archived"]) + objects(&done["restoring"]) == 0 {
                good_unless_failed(&done)
            } else {
                ExitStatus::Bad
            })
        }
        Action::Migrate(args) => {
            let question = json!({
                "act": "migrate", "dry_run": args.dry_run, "bytes_per_second": args.rate,
            });
            let mut done = ask(&args.place, question)?;
            done["dry_run"] = args.dry_run.into();
            show(&args.place, &done, show_moves);
            Ok(good_unless_failed(&done))
        }
        Action::Restore(args) => restore(args),
    }
}

fn restore(args: &RestoreArgs) -> Result<ExitStatus, Failure> {
    let question = json!({ "act": "restore", "days": args.days, "speed": args.speed.name() });
    let mut done = ask(&args.place, question)?;
    while args.until_restored && objects(&done["restoring"]) > 0 {
        eprintln!("kestrel tier: waiting for {}", amount(&done["restoring"]));
        std::thread::sleep(args.every);
        done = ask(&args.place, json!({ "act": "status" }))?;
    }
    show(&args.place, &done, show_status);
    let there = objects(&done["archived"]) + objects(&done["restoring"]) == 0;
    Ok(if there { good_unless_failed(&done) } else { ExitStatus::Bad })
}

fn good_unless_failed(done: &Value) -> ExitStatus {
    if objects(&done["failed"]) == 0 { ExitStatus::Good } else { ExitStatus::Bad }
}

fn objects(sum: &Value) -> u64 {
    sum["objects"].as_u64().unwrap_or(0)
}

/// `12 objects with 180 MiB`.
fn amount(sum: &Value) -> String {
    let of = sum["bytes"].as_u64().unwrap_or(0);
    format!("{} objects with {}", count(objects(sum)), bytes(of))
}

fn show(place: &Place, done: &Value, show: impl Fn(&Value)) {
    if place.json {
        return print_json(done);
    }
    show(done);
    if objects(&done["failed"]) > 0 {
        let failed = amount(&done["failed"]);
        println!("{failed} failed; the log of the serving process says why");
    }
}

fn rows(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let rows = value.as_array().into_iter().flatten();
    rows.map(|row| (row["tier"].as_str().unwrap_or("?"), row))
}

fn show_status(done: &Value) {
    for (tier, found) in rows(&done["found"]) {
        println!("{tier:<20} {}", amount(found));
    }
    if rows(&done["found"]).next().is_none() {
        println!("no file there has data in the store");
    }
    for (name, what) in [
        ("restored", "can be read for a while"),
        ("restoring", "are being restored"),
        ("archived", "have to be restored before they are read: `kestrel tier restore`"),
    ] {
        if objects(&done[name]) > 0 {
            println!("of archives, {} {what}", amount(&done[name]));
        }
    }
}

fn show_moves(done: &Value) {
    let dry = done["dry_run"] == true;
    let mut nothing = true;
    for (tier, moved) in rows(&done["moved"]) {
        nothing = false;
        let verb = if dry { "to move" } else { "moved" };
        println!("{verb} to {tier}: {}, one copy request each", amount(moved));
        if let Some(days) = moved["days_min"].as_u64().filter(|days| *days > 0) {
            println!("  S3 charges {tier} for at least {days} days");
        }
    }
    for (name, what) in [
        ("stored_again", "hold other files, too: the bytes of these files are stored again"),
        ("in_use", "are still written to: repeat this in a minute"),
        ("to_be_restored", "are in an archive: restore them first, then repeat this"),
    ] {
        if objects(&done[name]) > 0 {
            nothing = false;
            println!("{} {what}", amount(&done[name]));
        }
    }
    match (nothing, dry) {
        (true, _) => println!("everything is in its tier"),
        (false, true) => println!("nothing was changed; without --dry-run it will be"),
        (false, false) => {}
    }
}
