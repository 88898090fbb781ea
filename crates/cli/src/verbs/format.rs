//! `kestrel format`, and what other verbs that make a volume have in common with it.

use std::path::Path;

use clap::{Args, ValueEnum};
use kestrel_blockstore::store::coded::Compression;
use kestrel_client::descriptor::{Durability, Settings, volume_dir};
use kestrel_client::keys;
use kestrel_client::state_dir::{is_bucket_url, without_parameters};
use kestrel_client::volume::{self, NewVolume};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{bytes, duration_arg, size_arg};
use serde_json::json;

use super::print_json;
use crate::args::atime::AtimeArg;
use crate::args::store::StoreArgs;

/// When changes survive power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArg {
    /// After fsync, or one second; they survive the end of the process at once. As on a local file
    /// system
    Fsync,
    /// Before they are acknowledged
    Commit,
}

/// Create a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel format /data/vol
  kestrel format 's3://bucket/photos?region=eu-1'
  kestrel format /data/vol --name photos --durability commit
  kestrel format file:///data/vol --storage file:///bigdisk/objects --block-size 8M
  kestrel format /data/vol --metadata 'postgres://kestrel@db1,db2/kestrel?schema=photos' --storage \
      's3://…'
  kestrel format /data/vol --metadata 's3://bucket/meta?region=eu-1' --storage \
      's3://bucket/data?region=eu-1'
  kestrel format /data/vol --storage 's3://bucket/prefix?endpoint=https://s3.example.org&region=eu-1'

Credentials of a store are never kept in the volume: see --credentials. A volume that several
metadata nodes share is made by `kestrel cluster init`.")]
pub struct FormatArgs {
    /// Where: a path or file:///path, missing or empty; or
    /// s3://BUCKET/PREFIX[?endpoint=URL&region=NAME], which has metadata and file data then (see
    /// docs/operations/bucket.md)
    pub volume: String,
    /// When changes survive power loss: fsync by default, commit with --metadata or in a bucket
    #[arg(long, value_enum)]
    pub durability: Option<DurabilityArg>,
    #[command(flatten)]
    pub new: NewVolumeArgs,
}

/// What a new volume is to be, wherever its metadata is.
#[derive(Debug, Args)]
pub struct NewVolumeArgs {
    /// Name of the volume; the directory's by default, or the last part of the bucket's prefix
    #[arg(long)]
    pub name: Option<String>,
    /// Where file data goes: file:///path, missing or empty; or
    /// s3://BUCKET/PREFIX?endpoint=URL&region=NAME (see docs/store.md); inside the volume by
    /// default
    #[arg(long, value_name = "URL")]
    pub storage: Option<String>,
    /// Keep metadata in PostgreSQL: postgres://USER@HOST[:PORT][,HOST2]/DATABASE?schema=NAME; or
    /// in a bucket: s3://BUCKET/PREFIX?endpoint=URL&region=NAME; in the volume's directory by
    /// default. The password of a database comes from PGPASSWORD or a password file (see
    /// docs/operations/postgres.md and docs/operations/bucket.md)
    #[arg(long, value_name = "URL")]
    pub metadata: Option<String>,
    /// Largest stored block: larger files are cut; 64K to 16M
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "4M")]
    pub block_size: u64,
    /// Files up to this size are kept in the metadata; at most 16K
    #[arg(long, value_name = "SIZE", value_parser = size_arg, default_value = "4K")]
    pub inline_max: u64,
    /// How long data stays after nothing refers to it any more
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "60s")]
    pub grace: std::time::Duration,
    /// Which reads change access times, at mounts that are not told otherwise. `kestrel config`
    /// changes it later
    #[arg(long, value_enum, value_name = "MODE", default_value_t = AtimeArg::None)]
    pub atime: AtimeArg,
    /// Compress file data: none, lz4, zstd or zstd:LEVEL (1 to 19). `kestrel config` changes it
    /// later
    #[arg(long, value_name = "METHOD", default_value_t = Compression::None)]
    pub compress: Compression,
    /// Encrypt file data with AES-256-GCM; needs --key-file or KESTREL_KEY_FILE (see
    /// `kestrel key create`)
    #[arg(long)]
    pub encrypt: bool,
    /// Replace a volume that is there; everything in it is lost
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

impl NewVolumeArgs {
    /// The volume to make at `place` for `verb`. Its name is the last part of that by default.
    pub fn new_volume(
        &self,
        verb: &str,
        place: &Path,
        durability: Durability,
    ) -> Result<NewVolume, Failure> {
        let from_place = || {
            let name = place.file_name();
            let name = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.is_empty() { "kestrel".to_string() } else { name }
        };
        let small = |name: &str, value: u64| {
            u32::try_from(value)
                .map_err(|_| Failure::usage(format!("{verb}: {name} {value}: too large")))
        };
        let settings = Settings {
            name: self.name.clone().unwrap_or_else(from_place),
            storage: self.storage.clone(),
            block_bytes: small("--block-size", self.block_size)?,
            inline_max: small("--inline-max", self.inline_max)?,
            durability,
            grace_seconds: small("--grace", self.grace.as_secs())?,
            atime: self.atime.mode(),
        };
        settings.check().map_err(|why| Failure::usage(format!("{verb}: {why}")))?;
        let encrypt_with = match (self.encrypt, keys::key_file(self.store.key_file.as_deref())) {
            (false, _) => None,
            (true, None) => {
                let why = "--encrypt needs a key: create one with `kestrel key create FILE` and \
                           give --key-file FILE";
                return Err(Failure::usage(format!("{verb}: {why}")));
            }
            (true, file) => file,
        };
        let metadata = self.metadata.clone();
        Ok(NewVolume {
            settings,
            compression: self.compress,
            encrypt_with,
            metadata,
            registry: None,
            force: self.force,
        })
    }
}

/// Creates the volume.
pub fn run(args: &FormatArgs) -> Result<ExitStatus, Failure> {
    let usage = |why: &dyn std::fmt::Display| Failure::usage(format!("format: {why}"));
    let dir = volume_dir(&args.volume).map_err(|why| usage(&why))?;
    let is_in_bucket = is_bucket_url(&args.volume);
    let elsewhere = is_in_bucket || args.new.metadata.is_some();
    let durability = match (args.durability, elsewhere) {
        (Some(DurabilityArg::Fsync), true) => {
            return Err(Failure::usage(
                "format: --durability fsync: metadata in a database or bucket is of durability \
                 commit, as what is not there is lost with the process",
            ));
        }
        (Some(DurabilityArg::Fsync) | None, false) => Durability::Fsync,
        (Some(DurabilityArg::Commit), _) | (None, true) => Durability::Commit,
    };
    let base = without_parameters(&args.volume);
    let place = if is_in_bucket { Path::new(base) } else { &dir };
    let new = args.new.new_volume("format", place, durability)?;
    let made = volume::format(&args.volume, new, &args.new.store.options())
        .map_err(|why| Failure::new("format", why))?;
    let dir = std::fs::canonicalize(&dir).unwrap_or(dir);
    let shown = if is_in_bucket { format!("'{}'", args.volume) } else { dir.display().to_string() };
    if args.new.json {
        print_json(&json!({ "volume": dir, "name": made.settings.name, "uuid": made.uuid }));
    } else {
        println!(
            "volume {:?} created at {}: blocks of {}, files up to {} inline",
            made.settings.name,
            if is_in_bucket { base.into() } else { dir.display().to_string() },
            bytes(u64::from(made.settings.block_bytes)),
            bytes(u64::from(made.settings.inline_max))
        );
        println!("mount it with: kestrel mount {shown} DIR");
    }
    Ok(ExitStatus::Good)
}
