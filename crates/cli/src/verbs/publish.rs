//! `kestrel publish`.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use clap::Args;
use kestrel_client::version::check_name;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::bytes;
use serde_json::{Value, json};

use super::clone::source_of;
use super::print_json;
use super::snapshot::KeyArgs;
use super::snapshot::place::Place;
use kestrel_daemon::ask::path_value;
use std::os::unix::ffi::OsStrExt;

/// The verb in messages.
const VERB: &str = "publish";

/// Publish a directory as a version, which is read without any server.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel publish /mnt/data/imagenet imagenet@v3
  kestrel publish /mnt/data/imagenet@cleaned imagenet@v3
  kestrel publish kestrel://10.0.0.1/photos:/train train@1
  kestrel publish /mnt/data/cleaned imagenet@v4 --input imagenet@v3 --input labels@2
  kestrel mount /data/vol//imagenet@v3 /mnt/imagenet

A version is the tree of a directory at one moment, or at the snapshot SNAP. It never changes. Its
names and attributes go into tables in the volume's store; file data is not copied: a snapshot that
the version holds keeps it. A name has 1 to 120 letters, digits, '.', '_', '-' and '@'. Root may
publish, and the user that mounts the volume its own directories. docs/operations/versions.md tells
more.")]
pub struct PublishArgs {
    /// The directory, of now or of a snapshot: a path in a mount, or VOLUME:/dir
    #[arg(value_name = "DIR[@SNAP]")]
    dir: OsString,
    /// The version's name, which must be free: as imagenet@v3
    name: String,
    /// A version that this one was made from, by its name; may be repeated, and is only written
    /// down: `kestrel version lineage` shows it
    #[arg(long = "input", value_name = "VERSION")]
    inputs: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// Does it.
pub fn run(args: &PublishArgs) -> Result<ExitStatus, Failure> {
    check_name(&args.name).map_err(|why| Failure::usage(format!("{VERB}: {why}")))?;
    let (dir, snapshot) = source_of(&args.dir);
    let mut place = Place::of(&dir, &args.store.store()).map_err(|why| why.of(VERB))?;
    let snapshot = snapshot.map(|name| path_value(name.as_bytes()));
    let question = json!({
        "act": "version-publish", "snapshot": snapshot, "name": args.name, "inputs": args.inputs,
    });
    let shows = std::io::stderr().is_terminal();
    let mut shown = false;
    let made = place.ask_at_length(question, &mut |event: Value| {
        if shows && let Some(files) = event["files"].as_u64() {
            shown = true;
            // What is told is of no use when it cannot be shown.
            let _ = write!(std::io::stderr(), "\r{files} files");
        }
    });
    if shown {
        let _ = writeln!(std::io::stderr());
    }
    let made = made.map_err(|why| why.of(VERB))?;
    let of = |field: &str| made[field].as_u64().unwrap_or(0);
    if args.json {
        print_json(&made);
    } else {
        println!(
            "{}: {} files and {} directories, {}; {} tables of {}",
            args.name,
            of("files"),
            of("directories"),
            bytes(of("bytes")),
            of("tables"),
            bytes(of("table_bytes")),
        );
        println!("mount it with: kestrel mount VOLUME//{} DIR", args.name);
    }
    place.close().map_err(|why| why.of(VERB))
}
