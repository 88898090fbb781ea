//! One module a verb: its arguments, what it does, what it prints.

pub mod atime;
pub mod backup;
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
pub mod serve;
pub mod stats;
pub mod status;
pub mod store_args;
pub mod token;
pub mod umount;
pub mod warmup;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kestrel_client::descriptor::{Descriptor, volume_dir};
use kestrel_client::error::VolumeError;
use kestrel_client::remote::{self, RemoteUrl};
use kestrel_client::volume::{Volume, VolumeLock};
use kestrel_fuse::mount::{MountEntry, mounts};
use serde_json::Value;

use self::store_args::StoreArgs;

use crate::failure::Failure;
use crate::serve::memory::of_verb;
use crate::serve::runtime;

/// What a verb is about.
enum Target {
    /// The volume in this directory.
    Here(PathBuf),
    /// The volume that is served at this URL.
    Served(String),
}

impl Target {
    /// The volume that `url` names. One in a directory has a descriptor that can be read.
    fn of(verb: &str, url: &str) -> Result<Self, Failure> {
        if RemoteUrl::is_one(url) {
            RemoteUrl::parse(url).map_err(|why| Failure::usage(format!("{verb}: {why}")))?;
            return Ok(Self::Served(url.into()));
        }
        let dir = locate(verb, url)?;
        Descriptor::read(&dir).map_err(|why| Failure::new(verb, why))?;
        Ok(Self::Here(dir))
    }

    /// Asks whoever serves it; `None` if nobody has it open. `on_event` gets what is told meanwhile, `limit` bounds the time
    /// between two lines of it.
    fn ask(
        &self,
        verb: &str,
        question: &Value,
        limit: Option<Duration>,
        on_event: &mut dyn FnMut(Value),
    ) -> Result<Option<Value>, Failure> {
        match self {
            Self::Here(dir) => ask_with(verb, dir, question, limit, on_event),
            Self::Served(url) => {
                let who = crate::serve::who(&format!("kestrel {verb}"));
                remote::ask(url, &who, question, limit, on_event)
                    .map(Some)
                    .map_err(|why| Failure::new(verb, why))
            }
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Here(dir) => dir.display().fmt(f),
            Self::Served(url) => f.write_str(url),
        }
    }
}

/// Directory of the volume that `url` names, absolute.
///
/// # Errors
/// If it is the URL of something else.
pub fn locate(verb: &str, url: &str) -> Result<PathBuf, Failure> {
    let dir = volume_dir(url).map_err(|why| Failure::usage(format!("{verb}: {why}")))?;
    Ok(std::fs::canonicalize(&dir).unwrap_or(dir))
}

/// Opens a volume that nobody serves.
fn open(verb: &str, url: &str, store: &StoreArgs) -> Result<Volume, Failure> {
    let role = format!("kestrel {verb}");
    let resources = of_verb(store.options());
    Volume::open(url, &role, &resources).map_err(|why| Failure::new(verb, why))
}

/// How long a process that has a volume open may not answer: it begins, or ends.
const UNSETTLED: Duration = Duration::from_secs(10);

/// Asks the process that serves the volume at `dir`; `None` if nobody has it open, or not any more.
pub(crate) fn ask(
    verb: &str,
    dir: &Path,
    question: &Value,
    limit: Option<Duration>,
) -> Result<Option<Value>, Failure> {
    ask_with(verb, dir, question, limit, &mut |_| {})
}

/// The same for work that takes long: `on_event` gets what it tells meanwhile.
fn ask_with(
    verb: &str,
    dir: &Path,
    question: &Value,
    limit: Option<Duration>,
    on_event: &mut dyn FnMut(Value),
) -> Result<Option<Value>, Failure> {
    let begun = Instant::now();
    while VolumeLock::holder(dir).is_some() {
        match kestrel_client::control::ask_with(dir, question, limit, on_event) {
            Err(VolumeError::Unanswered(_)) if begun.elapsed() < UNSETTLED => {}
            answer => return answer.map(Some).map_err(|why| Failure::new(verb, why)),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(None)
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

/// Directory with the lock and the control socket of the process behind a mount: the volume's, which is the mount's source,
/// or the mount's own if the volume is served elsewhere.
fn control_dir(entry: &MountEntry) -> PathBuf {
    match entry.source.to_str() {
        Some(url) if RemoteUrl::is_one(url) => runtime::dir_of(&entry.mount_point),
        _ => PathBuf::from(&entry.source),
    }
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

/// The paths that a question names.
///
/// # Errors
/// If it names none.
pub fn paths(value: &Value) -> Result<Vec<Vec<u8>>, String> {
    let paths = value.as_array().and_then(|paths| paths.iter().map(path_bytes).collect());
    paths.ok_or("the question does not name paths".into())
}

/// Prints a JSON document.
fn print_json(value: &Value) {
    println!("{value:#}");
}
