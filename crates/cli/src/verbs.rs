//! One module a verb: its arguments, what it does, what it prints.

pub mod cluster;
pub mod compact;
pub mod config;
pub mod dump;
pub mod format;
pub mod fsck;
pub mod gc;
pub mod info;
pub mod key;
pub mod load;
pub mod mount;
pub mod null_fs;
pub mod objbench;
pub mod stats;
pub mod status;
pub mod store_args;
pub mod umount;
pub mod warmup;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kestrel_client::descriptor::volume_dir;
use kestrel_client::volume::{Resources, Volume, VolumeLock};
use kestrel_fuse::mount::{MountEntry, mounts};
use serde_json::Value;

use self::store_args::StoreArgs;

use crate::failure::Failure;

/// Directory of the volume that `url` names, absolute.
fn locate(verb: &str, url: &str) -> Result<PathBuf, Failure> {
    let dir = volume_dir(url).map_err(|why| Failure::usage(format!("{verb}: {why}")))?;
    Ok(std::fs::canonicalize(&dir).unwrap_or(dir))
}

/// Opens a volume that nobody serves.
fn open(verb: &str, url: &str, store: &StoreArgs) -> Result<Volume, Failure> {
    let role = format!("kestrel {verb}");
    let resources = Resources { store: store.options(verb)?, ..Resources::default() };
    Volume::open(url, &role, &resources).map_err(|why| Failure::new(verb, why))
}

/// Asks the process that serves the volume at `dir`; `None` if nobody has it open.
fn ask(verb: &str, dir: &Path, question: &Value, limit: Option<Duration>) -> Result<Option<Value>, Failure> {
    if VolumeLock::holder(dir).is_none() {
        return Ok(None);
    }
    kestrel_client::control::ask(dir, question, limit).map(Some).map_err(|why| Failure::new(verb, why))
}

/// The same for work that takes long: `on_event` gets what it tells meanwhile.
fn ask_with(
    verb: &str,
    dir: &Path,
    question: &Value,
    on_event: &mut dyn FnMut(Value),
) -> Result<Option<Value>, Failure> {
    if VolumeLock::holder(dir).is_none() {
        return Ok(None);
    }
    let answer = kestrel_client::control::ask_with(dir, question, None, on_event);
    answer.map(Some).map_err(|why| Failure::new(verb, why))
}

/// The KestrelFS mount a path lies in: the longest mount point above it, and the last one there.
fn mount_above(verb: &str, path: &Path) -> Result<MountEntry, Failure> {
    let mut best: Option<MountEntry> = None;
    for entry in mounts().map_err(|why| Failure::new(verb, why))? {
        let depth = |entry: &MountEntry| entry.mount_point.components().count();
        if path.starts_with(&entry.mount_point)
            && best.as_ref().is_none_or(|best| depth(best) <= depth(&entry))
        {
            best = Some(entry);
        }
    }
    best.filter(MountEntry::is_kestrel).ok_or_else(|| {
        Failure::new(
            verb,
            format!("{}: not in a KestrelFS mount; mount a volume with `kestrel mount`", path.display()),
        )
    })
}

/// Directory of the volume that is mounted there: the mount's source.
fn volume_of(entry: &MountEntry) -> PathBuf {
    PathBuf::from(&entry.source)
}

/// A path as questions carry it: a string, or a list of bytes if it is not UTF-8.
fn path_value(path: &[u8]) -> Value {
    std::str::from_utf8(path).map_or_else(|_| path.into(), Value::from)
}

/// What [`path_value`] made.
pub fn path_bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Array(bytes) => {
            bytes.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok())).collect()
        }
        _ => None,
    }
}

/// Prints a JSON document.
fn print_json(value: &Value) {
    println!("{value:#}");
}
