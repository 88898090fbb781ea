//! `kestrel config`.

use std::path::PathBuf;

use clap::Args;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::keys::{self, Change};
use kestrel_client::volume::VolumeLock;
use kestrel_data::store::coded::Compression;
use kestrel_types::clock::{Clock, SystemClock};
use serde_json::json;

use super::{locate, print_json};
use crate::failure::{Failure, Verdict};

/// Show or change how a volume stores new data.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel config /data/vol
  kestrel config /data/vol --compress zstd:3
  kestrel config /data/vol --encrypt --key-file /root/photos.key

Changes apply to what is written from the next mount on; what is stored already stays as it is and stays readable.")]
pub struct ConfigArgs {
    /// The volume: a path or file:///path
    pub volume: String,
    /// Compress new objects: none, lz4, zstd or zstd:LEVEL with a level from 1 to 19
    #[arg(long, value_name = "METHOD")]
    pub compress: Option<Compression>,
    /// Encrypt new objects; what is stored already is not encrypted by this
    #[arg(long, conflicts_with = "no_encrypt")]
    pub encrypt: bool,
    /// Do not encrypt new objects; the key is still needed for those that are
    #[arg(long)]
    pub no_encrypt: bool,
    /// File with the volume's key; by default the one that KESTREL_KEY_FILE names
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Does it.
pub fn run(args: &ConfigArgs) -> Result<Verdict, Failure> {
    let failed = |why| Failure::new("config", why);
    let dir = locate("config", &args.volume)?;
    let encrypt = if args.encrypt { Some(true) } else { args.no_encrypt.then_some(false) };
    let change = Change { compression: args.compress, encrypt };
    let is_changed = change.compression.is_some() || change.encrypt.is_some();
    let descriptor = if is_changed {
        keys::change(&dir, &change, args.key_file.as_deref(), SystemClock.now())
    } else {
        Descriptor::read(&dir)
    };
    let descriptor = descriptor.map_err(failed)?;
    let coding = descriptor.coding.as_ref();
    let compression = coding.map_or(Compression::None, |coding| coding.compression).to_string();
    let encryption = coding.and_then(|coding| coding.encryption.as_ref());
    let open_in = VolumeLock::holder(&dir);
    if args.json {
        print_json(&json!({
            "volume": dir,
            "name": descriptor.settings.name,
            "compression": compression,
            "encrypted": encryption.is_some_and(|encryption| encryption.active),
            "encryption_required": encryption.is_some_and(|encryption| encryption.required),
            "volume_key": encryption.map(|encryption| &encryption.volume_key),
            "in_use_by": open_in,
        }));
        return Ok(Verdict::Good);
    }
    println!("volume       {} ({})", descriptor.settings.name, dir.display());
    println!("compression  {compression}");
    match encryption {
        None => println!("encryption   none"),
        Some(encryption) => println!(
            "encryption   {}, volume key {}, {} data keys",
            if encryption.active { encryption.cipher.as_str() } else { "not for new objects" },
            encryption.volume_key,
            encryption.keys.len()
        ),
    }
    if let Some(pid) = open_in.filter(|_| is_changed) {
        println!("process {pid} has the volume open: changes apply when it is mounted again");
    }
    Ok(Verdict::Good)
}
