//! `kestrel load`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `load/cluster.rs` | loading into a volume that several nodes share |

mod cluster;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use kestrel_admin::check::{Options, check};
use kestrel_admin::dump::Counts;
use kestrel_admin::dump::load::{Header, keep_clear_of, load, verify};
use kestrel_admin::finding::FindingKind;
use kestrel_admin::references::{Seen, for_each};
use kestrel_blockstore::store::BlockStore;
use kestrel_blockstore::store::coded::Compression;
use kestrel_client::descriptor::{CodingSettings, Descriptor, Settings, volume_dir};
use kestrel_client::error::VolumeError;
use kestrel_client::keys;
use kestrel_client::state_dir::is_bucket_url;
use kestrel_client::storage::Storage;
use kestrel_client::volume::{self, NewVolume, Volume};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{bytes, count};
use kestrel_engine::Engine;
use kestrel_types::ids::ObjectId;
use serde_json::json;

use super::{open, print_json};
use crate::args::store::StoreArgs;
use crate::at_rest;
use crate::progress::Progress;

/// Largest object that is copied: packs and blocks are smaller.
const OBJECT_BYTES_MAX: u64 = 256 << 20;

/// Create a volume from a dump.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel load /backup/vol.dump /data/restored --objects /data/vol/objects
  kestrel load /backup/vol.dump /data/restored --name restored
  kestrel load /backup/vol.dump /data/restored --objects \
      's3://bucket/prefix?endpoint=https://s3.example.org'

  kestrel load /backup/vol.dump /data/node1 /data/node2 /data/node3 --objects /data/vol/objects

The dump is verified as a whole before anything is created. It holds no file data beyond small
files: --objects copies the objects that it refers to from the block store of the volume that was
dumped. Several nodes are formed first (`kestrel cluster init`, `join`); the dump goes to all of
them at once, where one machine reaches their directories and none runs.")]
pub struct LoadArgs {
    /// The dump
    pub file: PathBuf,
    /// Volume to create: a path or file:///path, missing or empty, or s3://…; or a volume that
    /// holds no files
    pub volume: String,
    /// Of a cluster: the directories of all other nodes
    #[arg(value_name = "NODE")]
    pub others: Vec<String>,
    /// Block store to copy objects from: that of the volume that was dumped (its directory
    /// `objects`, or its s3://… URL), or a copy of it
    #[arg(long, value_name = "DIR|URL")]
    pub objects: Option<String>,
    /// Name of the new volume; that of the dumped one by default
    #[arg(long)]
    pub name: Option<String>,
    /// Where the new volume keeps file data: file:///path or s3://…; inside the volume by default
    #[arg(long, value_name = "URL")]
    pub storage: Option<String>,
    /// Where the new volume keeps metadata: postgres://…; inside the volume by default
    #[arg(long, value_name = "URL")]
    pub metadata: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Loads.
pub fn run(args: &LoadArgs) -> Result<ExitStatus, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("load", why);
    let (header, counts) = read_dump(args)?;
    let dumped: Descriptor = serde_json::from_value(header.volume)
        .map_err(|why| fail(&format!("{}: it describes no volume: {why}", args.file.display())))?;
    let from =
        args.objects.as_deref().map(|place| open_objects(args, place, &dumped)).transpose()?;
    let dir = volume_dir(&args.volume).map_err(|why| Failure::usage(format!("load: {why}")))?;
    let dir = std::fs::canonicalize(&dir).unwrap_or(dir);
    if at_rest::is_meant("load", &args.volume, &args.others) {
        if args.name.is_some() || args.storage.is_some() || args.metadata.is_some() {
            return Err(Failure::usage(
                "load: --name, --storage and --metadata are for a volume that is created; these \
                 nodes exist",
            ));
        }
        return cluster::run(args, counts, from.as_deref());
    }
    // A volume that is there keeps its settings and its objects; the load refuses it if it holds
    // files.
    let existing = existing(args, &dir)?;
    let made = match &existing {
        Some(_) if args.name.is_some() || args.storage.is_some() || args.metadata.is_some() => {
            let why = "--name, --storage and --metadata are for a volume that is created; this one \
                       exists";
            return Err(Failure::usage(format!("load: {}: {why}", dir.display())));
        }
        Some(existing) => existing.clone(),
        None => {
            let settings = Settings {
                name: args.name.clone().unwrap_or(dumped.settings.name.clone()),
                storage: args.storage.clone(),
                ..dumped.settings
            };
            let (compression, encrypt_with) = coding_like(args, dumped.coding.as_ref())?;
            let metadata = args.metadata.clone();
            let new = NewVolume {
                settings,
                compression,
                encrypt_with,
                metadata,
                registry: None,
                force: false,
            };
            volume::format(&args.volume, new, &args.store.options()).map_err(|why| fail(&why))?
        }
    };
    let filled = open("load", &args.volume, &args.store)
        .and_then(|volume| fill(args, &volume, from.as_deref()));
    let missing = match filled {
        Ok(missing) => missing,
        Err(failure) => {
            if existing.is_none() {
                // Half a volume must not be taken for a whole one.
                discard(args, &dir, &made);
            }
            return Err(failure);
        }
    };
    Ok(tell(args, &dir, &made, counts, missing))
}

/// The volume that is to be filled, if it is there.
fn existing(args: &LoadArgs, dir: &Path) -> Result<Option<Descriptor>, Failure> {
    if !is_bucket_url(&args.volume) {
        return Ok(Descriptor::read(dir).ok());
    }
    let found = volume::find(&args.volume, args.store.credentials.as_deref(), true);
    match found.and_then(|dir| Descriptor::read(&dir)) {
        Ok(found) => Ok(Some(found)),
        Err(VolumeError::NotAVolume(_)) => Ok(None),
        Err(why) => Err(Failure::new("load", why)),
    }
}

/// Tells what was loaded.
fn tell(
    args: &LoadArgs,
    dir: &Path,
    made: &Descriptor,
    counts: Counts,
    missing: u64,
) -> ExitStatus {
    if args.json {
        print_json(&json!({
            "volume": dir, "name": made.settings.name, "uuid": made.uuid, "rows": counts.rows,
            "changes": counts.changes,
            "files_without_objects": missing,
        }));
    } else {
        println!(
            "{}: {} rows loaded and verified",
            dir.display(),
            count(counts.rows + counts.changes)
        );
        if missing > 0 {
            println!(
                "{} files need objects that are not in {}; repeat with --objects, or `kestrel \
                 fsck` lists them",
                count(missing),
                dir.display()
            );
        }
    }
    if missing == 0 { ExitStatus::Good } else { ExitStatus::Bad }
}

/// The dumped volume's objects, with the keys that the dump holds, wrapped.
fn open_objects(
    args: &LoadArgs,
    place: &str,
    dumped: &Descriptor,
) -> Result<Arc<dyn BlockStore>, Failure> {
    let fail =
        |why: &dyn std::fmt::Display| Failure::new("load", format!("--objects {place}: {why}"));
    let url = match place.contains("://") {
        true => place.to_string(),
        false => {
            let dir = std::fs::canonicalize(place).map_err(|why| fail(&why))?;
            format!("file://{}", dir.to_str().ok_or_else(|| fail(&"its name must be UTF-8"))?)
        }
    };
    let settings = Settings { storage: Some(url), ..dumped.settings.clone() };
    settings.check().map_err(|why| fail(&why))?;
    let there = Descriptor { settings, ..dumped.clone() };
    let options = args.store.options();
    Storage::open(Path::new(""), &there, &options).map(|open| open.store).map_err(|why| fail(&why))
}

/// How the new volume codes objects: as the dumped one did, with the same volume key and a data key
/// of its own.
fn coding_like(
    args: &LoadArgs,
    dumped: Option<&CodingSettings>,
) -> Result<(Compression, Option<PathBuf>), Failure> {
    let Some(CodingSettings { compression, encryption }) = dumped else {
        return Ok((Compression::None, None));
    };
    if !encryption.as_ref().is_some_and(|encryption| encryption.active) {
        return Ok((*compression, None));
    }
    let key_file = keys::key_file(args.store.key_file.as_deref()).ok_or_else(|| {
        let why = "the dumped volume is encrypted, so the new one will be; give a key with \
                   --key-file FILE";
        Failure::new("load", format!("{}: {why}", args.file.display()))
    })?;
    Ok((*compression, Some(key_file)))
}

fn reader(file: &Path) -> Result<BufReader<File>, Failure> {
    let opened = File::open(file)
        .map_err(|why| Failure::new("load", format!("{}: {why}", file.display())))?;
    Ok(BufReader::with_capacity(1 << 20, opened))
}

fn read_dump(args: &LoadArgs) -> Result<(Header, Counts), Failure> {
    let mut progress = Progress::new();
    verify(reader(&args.file)?, &mut |rows| progress.tick("verifying rows", rows))
        .map_err(|why| Failure::new("load", format!("{}: {why}", args.file.display())))
}

/// Loads rows and copies objects; returns how many files need objects that are not there.
fn fill(args: &LoadArgs, volume: &Volume, from: Option<&dyn BlockStore>) -> Result<u64, Failure> {
    let fail = |why: &dyn std::fmt::Display| {
        Failure::new("load", format!("{}: {why}", args.file.display()))
    };
    let mut progress = Progress::new();
    load(reader(&args.file)?, &*volume.engine, &mut |rows| progress.tick("loading rows", rows))
        .map_err(|why| fail(&why))?;
    if let Some(from) = from {
        copy_objects((&*volume.engine, &*volume.store), from, &mut progress)?;
    }
    keep_clear_of(&*volume.engine, &*volume.store).map_err(|why| fail(&why))?;
    look(
        args,
        &*volume.engine,
        &mut Options { store: Some(&*volume.store), ..Options::default() },
        &mut progress,
    )
}

/// Checks what was loaded; how many files need objects that are not there.
fn look(
    args: &LoadArgs,
    engine: &dyn Engine,
    options: &mut Options<'_>,
    progress: &mut Progress,
) -> Result<u64, Failure> {
    let fail = |why: &dyn std::fmt::Display| {
        Failure::new("load", format!("{}: {why}", args.file.display()))
    };
    let (mut missing, mut other) = (0, None);
    let mut report = |finding: kestrel_admin::finding::Finding| match finding.kind {
        FindingKind::ObjectMissing | FindingKind::ObjectShort => missing += 1,
        kind if kind.severity() == kestrel_admin::finding::Severity::Error => {
            other.get_or_insert_with(|| format!("{}: {}", kind.name(), finding.path));
        }
        _ => {}
    };
    check(engine, options, &mut report, &mut |what, rows| progress.tick(what, rows))
        .map_err(|why| fail(&why))?;
    if let Some(other) = other {
        // The dump is a faithful copy: the damage was there before, and can be repaired here as
        // well as there.
        log::warn!("the dumped volume was damaged ({other}); run `kestrel fsck --repair`");
        eprintln!(
            "kestrel load: the dumped volume was damaged ({other}); run `kestrel fsck --repair` on \
             the new one"
        );
    }
    Ok(missing)
}

/// Copies every object that the metadata refers to.
fn copy_objects(
    (engine, store): (&dyn Engine, &dyn BlockStore),
    from: &dyn BlockStore,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let mut wanted: Vec<ObjectId> = Vec::new();
    for_each(engine, &mut |seen| {
        if let Seen::Reference(reference) = seen
            && wanted.last() != Some(&reference.range.object)
        {
            wanted.push(reference.range.object);
        }
    })
    .map_err(|why| Failure::new("load", why))?;
    wanted.sort_unstable();
    wanted.dedup();
    let mut copied = 0;
    for (index, object) in wanted.iter().enumerate() {
        let fail = |why: kestrel_blockstore::Error| {
            Failure::new("load", format!("copying objects: {why}"))
        };
        let size = match from.size(*object) {
            Ok(size) => size,
            // Counted by the check that follows.
            Err(why) if why.kind() == kestrel_blockstore::ErrorKind::NotFound => continue,
            Err(why) => return Err(fail(why)),
        };
        if size > OBJECT_BYTES_MAX {
            let limit = bytes(OBJECT_BYTES_MAX);
            return Err(Failure::new(
                "load",
                format!("object {object:016x} has {}: more than {limit}", bytes(size)),
            ));
        }
        let mut content = vec![0; usize::try_from(size).unwrap_or(0)];
        from.read(*object, 0, &mut [std::io::IoSliceMut::new(&mut content)]).map_err(fail)?;
        store.put(*object, &[std::io::IoSlice::new(&content)]).map_err(fail)?;
        copied += size;
        progress.tick("copying objects", index as u64);
    }
    log::info!("{} objects with {} copied", wanted.len(), bytes(copied));
    store.sync().map_err(|why| Failure::new("load", why))
}

/// Removes what this process created.
fn discard(args: &LoadArgs, dir: &Path, made: &Descriptor) {
    if is_bucket_url(&args.volume) {
        if let Err(why) = volume::discard(&args.volume, made, &args.store.options()) {
            log::warn!("what was loaded stays there until the next format: {why}");
        }
        return;
    }
    let _ = volume::discard_rows(made, args.store.credentials.as_deref());
    for name in [kestrel_client::descriptor::FILE_NAME, kestrel_client::descriptor::COPY_NAME] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    let _ = std::fs::remove_dir_all(dir.join("meta"));
    let _ = std::fs::remove_dir_all(dir.join("objects"));
    let _ = std::fs::remove_file(dir.join("lock"));
}
