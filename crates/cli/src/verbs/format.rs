//! `kestrel format`.

use clap::{Args, ValueEnum};
use kestrel_client::descriptor::{Durability, Settings};
use serde_json::json;

use super::print_json;
use crate::failure::{Failure, Verdict};
use crate::units::{bytes, duration_arg, size_arg};

/// When changes survive power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// After fsync, or one second; they survive the end of the process at once. As on a local file system
    Fsync,
    /// Before they are acknowledged
    Commit,
}

/// Create a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel format /data/vol
  kestrel format /data/vol --name photos --durability commit
  kestrel format file:///data/vol --storage file:///bigdisk/objects --block-size 8M")]
pub struct FormatArgs {
    /// Where: a path or file:///path; missing or empty
    pub volume: String,
    /// Name of the volume; the directory's by default
    #[arg(long)]
    pub name: Option<String>,
    /// Where file data goes: file:///path, missing or empty; inside the volume by default
    #[arg(long, value_name = "URL")]
    pub storage: Option<String>,
    /// Largest stored block: larger files are cut; 64K to 16M
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "4M")]
    pub block_size: u64,
    /// Files up to this size are kept in the metadata; at most 16K
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "4K")]
    pub inline_max: u64,
    /// When changes survive power loss
    #[arg(long, value_enum, default_value = "fsync")]
    pub durability: Mode,
    /// How long data stays after nothing refers to it any more
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "60s")]
    pub grace: std::time::Duration,
    /// Replace a volume that is there; everything in it is lost
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Creates the volume.
pub fn run(args: &FormatArgs) -> Result<Verdict, Failure> {
    let dir = super::locate("format", &args.volume)?;
    let from_dir = || {
        let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.is_empty() { "kestrel".to_string() } else { name }
    };
    let small = |name: &str, value: u64| {
        u32::try_from(value).map_err(|_| Failure::usage(format!("format: {name} {value}: too large")))
    };
    let settings = Settings {
        name: args.name.clone().unwrap_or_else(from_dir),
        storage: args.storage.clone(),
        block_bytes: small("--block-size", args.block_size)?,
        inline_max: small("--inline-max", args.inline_max)?,
        durability: if args.durability == Mode::Commit { Durability::Commit } else { Durability::Fsync },
        grace_seconds: small("--grace", args.grace.as_secs())?,
    };
    settings.check().map_err(|why| Failure::usage(format!("format: {why}")))?;
    let made = kestrel_client::volume::format(&args.volume, settings, args.force)
        .map_err(|why| Failure::new("format", why))?;
    if args.json {
        print_json(&json!({ "volume": dir, "name": made.settings.name, "uuid": made.uuid }));
    } else {
        println!(
            "volume {:?} created at {}: blocks of {}, files up to {} inline",
            made.settings.name,
            dir.display(),
            bytes(u64::from(made.settings.block_bytes)),
            bytes(u64::from(made.settings.inline_max))
        );
        println!("mount it with: kestrel mount {} DIR", dir.display());
    }
    Ok(Verdict::Good)
}
