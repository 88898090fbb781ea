//! `kestrel status`.

use std::path::Path;

use clap::Args;
use kestrel_admin::info::{self, InfoError};
use kestrel_client::descriptor::Descriptor;
use kestrel_client::volume::VolumeLock;
use kestrel_meta::engine::Engine;
use kestrel_types::ids::ROOT;
use serde_json::{Value, json};

use super::store_args::StoreArgs;
use super::{ask, locate, open, print_json};
use crate::failure::{Failure, Verdict};
use crate::units::{bytes, count};

/// Show what a volume is, what it holds, and whether it is mounted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel status /data/vol
  kestrel status file:///data/vol --json")]
pub struct StatusArgs {
    /// The volume: a path or file:///path
    pub volume: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Name, settings and sums of a volume.
///
/// # Errors
/// If the metadata cannot be read.
pub fn describe(dir: &Path, descriptor: &Descriptor, engine: &dyn Engine) -> Result<Value, InfoError> {
    let tree = info::tree_sums(engine, ROOT)?;
    let objects = info::object_sums(engine)?;
    let settings = &descriptor.settings;
    let stats = engine.stats();
    Ok(json!({
        "volume": dir.to_string_lossy(),
        "name": settings.name,
        "uuid": descriptor.uuid,
        "format_version": descriptor.format_version,
        "created": crate::logger::utc(descriptor.created),
        "durability": settings.durability,
        "storage": settings.storage,
        "block_size": settings.block_bytes,
        "inline_max": settings.inline_max,
        "grace_seconds": settings.grace_seconds,
        "files": tree.files,
        "directories": tree.dirs + 1,
        "bytes": tree.bytes,
        "objects": objects.objects,
        "object_bytes": objects.referenced_bytes,
        "metadata_disk_bytes": stats.log_disk_bytes + stats.run_disk_bytes,
    }))
}

/// Shows it.
pub fn run(args: &StatusArgs) -> Result<Verdict, Failure> {
    let dir = locate("status", &args.volume)?;
    Descriptor::read(&dir).map_err(|why| Failure::new("status", why))?;
    let status = match ask("status", &dir, &json!({ "verb": "status" }), kestrel_client::control::QUICK)? {
        Some(status) => status,
        None => {
            let volume = open("status", &args.volume, &args.store)?;
            let mut status = describe(&dir, &volume.descriptor, &*volume.engine)
                .map_err(|why| Failure::new("status", format!("{}: {why}", dir.display())))?;
            status["mounted"] = false.into();
            status["pid"] = Value::Null;
            status["mount_point"] = Value::Null;
            status
        }
    };
    debug_assert!(status["mounted"] == false || VolumeLock::holder(&dir).is_some());
    if args.json {
        print_json(&status);
        return Ok(Verdict::Good);
    }
    let text = |name: &str| status[name].as_str().unwrap_or("-").to_string();
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    println!("volume       {} ({})", text("name"), text("volume"));
    println!(
        "uuid         {}, format {}, created {}",
        text("uuid"),
        number("format_version"),
        text("created")
    );
    println!("storage      {}", status["storage"].as_str().unwrap_or("inside the volume"));
    println!(
        "settings     durability {}, blocks of {}, inline up to {}, grace {} s",
        text("durability"),
        bytes(number("block_size")),
        bytes(number("inline_max")),
        number("grace_seconds")
    );
    println!(
        "holds        {} files, {} directories, {}",
        count(number("files")),
        count(number("directories")),
        bytes(number("bytes"))
    );
    println!("objects      {} with {} referred to", count(number("objects")), bytes(number("object_bytes")));
    println!("metadata     {} on disk", bytes(number("metadata_disk_bytes")));
    if status["mounted"] == true {
        let mode = if status["read_only"] == true { ", read-only" } else { "" };
        println!("mounted      {} (process {}{mode})", text("mount_point"), number("pid"));
    } else {
        println!("mounted      no");
    }
    Ok(Verdict::Good)
}
