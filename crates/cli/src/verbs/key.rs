//! `kestrel key`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kestrel_client::descriptor::{Descriptor, Encryption};
use kestrel_client::keys::{self, VolumeKey};
use kestrel_client::remote::{NodeFanOut, Reached, RemoteUrl};
use kestrel_client::volume::VolumeLock;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_types::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use super::config::{NOT_YET, OfNode};
use super::{locate, print_json};
use crate::at_rest;

/// Make, show and replace keys of encrypted volumes.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  kestrel key create /root/photos.key
  kestrel format /data/vol --encrypt --key-file /root/photos.key
  kestrel key show /data/vol
  kestrel key rotate /data/vol --key-file /root/photos.key --new-key-file /root/photos-2.key

Without its key an encrypted volume cannot be read by anybody: keep a copy of the key file away from
the volume. See docs/encryption.md.")]
pub struct KeyArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(CreateArgs),
    Show(ShowArgs),
    Rotate(RotateArgs),
}

/// Make a new key and write it to a new file that only you can read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel key create /root/photos.key")]
struct CreateArgs {
    /// The file; nothing may be there yet
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show the keys of a volume: numbers and fingerprints, never the keys.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel key show /data/vol
  kestrel key show /data/vol --key-file /root/photos.key     (and checks that the key opens it)
  kestrel key show kestrel://10.0.0.1/photos")]
struct ShowArgs {
    /// The volume: a path, file:///path, s3://… or, where one node serves it,
    /// kestrel://host[:port]/NAME
    volume: String,
    /// Check that the key in this file opens every data key
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Replace the key of a volume, and the data key for what is written from the next mount on. No
/// data is rewritten.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel key rotate /data/vol --key-file /root/photos.key --new-key-file /root/photos-2.key
  kestrel key rotate /data/vol --key-file /root/photos.key     (a new data key only)
  kestrel key rotate kestrel://10.0.0.1/photos --key-file /root/photos.key --new-key-file \
      /root/photos-2.key
  kestrel key rotate /data/node1 --node /data/node2 --node /data/node3 --key-file /root/photos.key

Nodes that share a volume have the same keys: name the directories of all, and they are changed at
all or at none; one that was cut short is finished when it is repeated. By URL it takes a token that
may administer; keys stay on this machine. The volume may be mounted. Copies of kestrel.json and
dumps from before still open with the old key; what was written before stays encrypted with the data
keys of that time.")]
struct RotateArgs {
    /// The volume: a path, file:///path, s3://… or, where one node serves it,
    /// kestrel://host[:port]/NAME
    volume: String,
    /// Of a volume that several nodes share: the directory of another node; once for each of them
    #[arg(long = "node", value_name = "DIR")]
    nodes: Vec<String>,
    /// File with the volume's key; by default the one that KESTREL_KEY_FILE names
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// File with the key that takes its place; without it the volume keeps its key
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Does it.
pub fn run(args: &KeyArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::Create(args) => create(args),
        Action::Show(args) => show(args),
        Action::Rotate(args) => rotate(args),
    }
}

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::new("key", why)
}

fn create(args: &CreateArgs) -> Result<ExitStatus, Failure> {
    let key = VolumeKey::create(&args.file).map_err(failed)?;
    if args.json {
        print_json(&json!({ "file": args.file, "fingerprint": key.fingerprint() }));
    } else {
        println!("key {} created in {}", key.fingerprint(), args.file.display());
        println!(
            "keep a copy of the file in a safe place: without it the volumes it is for cannot be \
             read"
        );
    }
    Ok(ExitStatus::Good)
}

/// The one node that serves the volume at a URL, and what that will be when it is opened the next
/// time.
fn node_at(url: &str) -> Result<OfNode, Failure> {
    let who = kestrel_daemon::who("kestrel key");
    match NodeFanOut::reach(url, &who).map_err(failed)? {
        Reached::One(node) => OfNode::ask(node).map_err(failed),
        Reached::Several(_) => Err(Failure::usage(format!(
            "key: {url}: several nodes share the volume; their keys are changed where all their \
             directories are: name those"
        ))),
    }
}

fn show(args: &ShowArgs) -> Result<ExitStatus, Failure> {
    let (dir, descriptor) = if RemoteUrl::is_one(&args.volume) {
        (PathBuf::from(&args.volume), node_at(&args.volume)?.descriptor)
    } else {
        let dir = locate("key", &args.volume, None)?;
        let descriptor = Descriptor::read(&dir).map_err(failed)?;
        (dir, descriptor)
    };
    let Some(encryption) = encryption(&descriptor) else {
        return Err(failed(format!(
            "{}: the volume is not encrypted and has no keys",
            dir.display()
        )));
    };
    let is_checked = args.key_file.is_some();
    if is_checked {
        keys::coding(&descriptor, args.key_file.as_deref()).map_err(failed)?;
    }
    if args.json {
        let mut found = describe(&dir, encryption);
        found["opens"] = if is_checked { true.into() } else { Value::Null };
        print_json(&found);
        return Ok(ExitStatus::Good);
    }
    println!(
        "volume key   {}{}",
        encryption.volume_key,
        if is_checked { " (this key opens it)" } else { "" }
    );
    for key in &encryption.keys {
        println!("data key     {:<6} made {}", key.id, kestrel_daemon::logger::utc(key.created));
    }
    match encryption.keys.last().filter(|_| encryption.active) {
        Some(last) => {
            println!("new objects  encrypted with data key {}, {}", last.id, encryption.cipher)
        }
        None => println!("new objects  not encrypted"),
    }
    Ok(ExitStatus::Good)
}

/// Rotates keys of a volume that one node serves.
fn rotate_served(args: &RotateArgs) -> Result<ExitStatus, Failure> {
    let url = &args.volume;
    if !args.nodes.is_empty() {
        return Err(Failure::usage("key: a URL stands alone: --node is for directories of nodes"));
    }
    let mut node = node_at(url)?;
    let (old, new) = (args.key_file.as_deref(), args.new_key_file.as_deref());
    let coding =
        keys::rotated(&node.descriptor, url, old, new, SystemClock.now()).map_err(failed)?;
    node.change(coding).map_err(failed)?;
    tell_rotated(args.json, Path::new(url), &node.descriptor)?;
    if !args.json && !node.is_in_use {
        println!("{NOT_YET}");
    }
    Ok(ExitStatus::Good)
}

fn rotate(args: &RotateArgs) -> Result<ExitStatus, Failure> {
    if RemoteUrl::is_one(&args.volume) {
        return rotate_served(args);
    }
    let dir = locate("key", &args.volume, None)?;
    let (old, new) = (args.key_file.as_deref(), args.new_key_file.as_deref());
    let now = SystemClock.now();
    let (descriptor, dirs) = if at_rest::is_meant("key", &args.volume, &args.nodes) {
        let dirs = at_rest::dirs("key", &args.volume, &args.nodes, [old, new])?;
        (keys::rotate_nodes(&dirs, old, new, now), dirs)
    } else {
        (keys::rotate(&dir, old, new, now), vec![dir.clone()])
    };
    tell_rotated(args.json, &dir, &descriptor.map_err(failed)?)?;
    for pid in dirs.iter().filter(|_| !args.json).filter_map(|dir| VolumeLock::holder(dir)) {
        println!(
            "process {pid} has the volume open and goes on with the data key it has until it is \
             mounted again"
        );
    }
    Ok(ExitStatus::Good)
}

fn tell_rotated(json: bool, place: &Path, descriptor: &Descriptor) -> Result<(), Failure> {
    let Some(encryption) = encryption(descriptor) else {
        return Err(failed(
            "the volume lost its keys meanwhile; find out which command changes it",
        ));
    };
    if json {
        print_json(&describe(place, encryption));
        return Ok(());
    }
    let newest = encryption.keys.last().map_or(0, |key| key.id);
    println!(
        "{}: volume key {}, data key {newest} is the newest",
        place.display(),
        encryption.volume_key
    );
    Ok(())
}

fn encryption(descriptor: &Descriptor) -> Option<&Encryption> {
    descriptor.coding.as_ref()?.encryption.as_ref()
}

fn describe(dir: &Path, encryption: &Encryption) -> Value {
    let keys: Vec<Value> = encryption
        .keys
        .iter()
        .map(|key| json!({ "id": key.id, "created": kestrel_daemon::logger::utc(key.created) }))
        .collect();
    json!({
        "volume": dir,
        "cipher": encryption.cipher,
        "volume_key": encryption.volume_key,
        "active": encryption.active,
        "required": encryption.required,
        "data_keys": keys,
    })
}
