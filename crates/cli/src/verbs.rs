//! One module a verb: its arguments, what it does, what it prints.
//!
//! | file | what it has |
//! | --- | --- |
//! | `verbs/format.rs`, `key.rs`, `config.rs` | make a volume, its keys, its settings |
//! | `verbs/mount.rs`, `umount.rs`, `null_fs.rs` | mount and unmount |
//! | `verbs/serve.rs`, `token.rs` | serve a volume over the network; tokens of clients |
//! | `verbs/gateway.rs` | serve a volume to clients of S3 |
//! | `verbs/status.rs`, `stats.rs`, `info.rs` | what a volume, a process or a path is and does |
//! | `verbs/ls.rs` | pages of the names of a directory |
//! | `verbs/du.rs` | what the directories of a tree hold |
//! | `verbs/rm.rs` | remove trees |
//! | `verbs/trash.rs` | what was removed and is kept for a time |
//! | `verbs/watch.rs` | what changes below a directory |
//! | `verbs/fsck.rs`, `gc.rs`, `compact.rs` | check, repair, collect garbage, compact |
//! | `verbs/policy.rs` | what directories hand down |
//! | `verbs/quota.rs` | limits of bytes and files |
//! | `verbs/tier.rs` | where the store keeps files |
//! | `verbs/owner_names.rs` | names of users and groups |
//! | `verbs/volume_job.rs` | work by a process that has the volume's metadata |
//! | `verbs/warmup.rs` | bring files near |
//! | `verbs/snapshot.rs`, `clone.rs` | snapshots and clones of directories |
//! | `verbs/publish.rs`, `version.rs`, `sql.rs` | published versions, queries over them |
//! | `verbs/dump.rs`, `load.rs`, `backup.rs` | metadata to a file or the block store, and back |
//! | `verbs/cluster.rs` | nodes that share a volume |
//! | `verbs/objbench.rs` | measure a block store |

pub mod backup;
pub mod clone;
pub mod cluster;
pub mod compact;
pub mod config;
pub mod csi;
pub mod du;
pub mod dump;
pub mod format;
pub mod fsck;
pub mod gateway;
pub mod gc;
pub mod info;
pub mod job;
pub mod key;
pub mod load;
pub mod ls;
pub mod mount;
pub mod null_fs;
pub mod objbench;
pub mod policy;
pub mod publish;
pub mod quota;
pub mod rm;
pub mod serve;
pub mod share_files;
pub mod snapshot;
pub mod sql;
pub mod stats;
pub mod status;
pub mod tier;
pub mod token;
pub mod trash;
pub mod umount;
pub mod upgrade;
pub mod version;
pub mod warmup;
pub mod watch;

mod owner_names;
mod volume_job;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::{self, RemoteUrl};
use kestrel_client::snapshot::SnapshotUrl;
use kestrel_client::state_dir::is_bucket_url;
use kestrel_client::version::VersionUrl;
use kestrel_client::volume::Volume;
use kestrel_daemon::ask::{ask, ask_with, locate, locate_directory, path_value};
use kestrel_daemon::failure::Failure;
use kestrel_daemon::memory::of_verb;
use kestrel_daemon::runtime;
use kestrel_fuse::mount::{MountEntry, mounts};
use serde_json::Value;

use crate::args::store::StoreArgs;

/// What a verb is about.
enum Target {
    /// The volume in this directory.
    Here(PathBuf),
    /// The volume that is served at this URL.
    Served(String),
}

impl Target {
    /// The volume that `url` names. One in a directory has a descriptor that can be read; that of
    /// one in a bucket may have to be fetched, by the credentials in a file.
    fn of(verb: &str, url: &str, credentials: Option<&Path>) -> Result<Self, Failure> {
        if RemoteUrl::is_one(url) {
            RemoteUrl::parse(url).map_err(|why| Failure::usage(format!("{verb}: {why}")))?;
            return Ok(Self::Served(url.into()));
        }
        let dir = locate(verb, url, credentials)?;
        Descriptor::read(&dir).map_err(|why| Failure::new(verb, why))?;
        Ok(Self::Here(dir))
    }

    /// Asks the process that serves it; `None` if no process has it open. `on_event` gets what is
    /// told meanwhile, `limit` bounds the time between two lines of it.
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
                let who = kestrel_daemon::who(&format!("kestrel {verb}"));
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

/// A name on one line, for people.
fn shown_name(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars()
        .flat_map(|c| match c {
            c if c.is_control() => c.escape_default().collect::<Vec<_>>(),
            c => vec![c],
        })
        .collect()
}

/// Opens a volume that nobody serves.
fn open(verb: &str, url: &str, store: &StoreArgs) -> Result<Volume, Failure> {
    let role = format!("kestrel {verb}");
    let resources = of_verb(store.options());
    if let Ok(Descriptor { job: Some(job), .. }) = Descriptor::read(Path::new(url)) {
        return Err(Failure::new(
            verb,
            format!("{url}: the namespace of job {job}; name the volume itself"),
        ));
    }
    Volume::open(url, &role, &resources).map_err(|why| Failure::new(verb, why))
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
            format!(
                "{}: not in a KestrelFS mount; mount a volume with `kestrel mount`",
                path.display()
            ),
        )
    })
}

/// The volume that a person names: by its URL or directory, or by a path in a mount of it.
fn volume_of(verb: &str, text: &OsStr) -> Result<String, Failure> {
    let given = text.to_string_lossy().into_owned();
    if RemoteUrl::is_one(&given) || is_bucket_url(&given) {
        return Ok(given);
    }
    let path = given.strip_prefix("file://").unwrap_or(&given).to_string();
    if Descriptor::read(Path::new(&path)).is_ok() {
        return Ok(path);
    }
    let found = std::fs::canonicalize(&path).map_err(|why| {
        Failure::new(verb, format!("{path}: neither a volume nor in a mount of one: {why}"))
    })?;
    let source = mount_above(verb, &found)?.source.to_string_lossy().into_owned();
    match VersionUrl::parse(&source) {
        Ok(Some(version)) => Ok(version.volume),
        _ => Ok(source),
    }
}

/// Directory with the lock and the control socket of the process behind a mount: the volume's,
/// which is the mount's source, or the mount's own if the volume is served elsewhere or followed.
fn control_dir(entry: &MountEntry) -> PathBuf {
    match entry.source.to_str() {
        // The source of a mount that has such a volume open is the state directory.
        Some(url) if is_bucket_url(url) => runtime::dir_of(&entry.mount_point),
        Some(url) if RemoteUrl::is_one(url) => runtime::dir_of(&entry.mount_point),
        Some(url) if matches!(VersionUrl::parse(url), Ok(Some(_))) => {
            runtime::dir_of(&entry.mount_point)
        }
        Some(path) => match SnapshotUrl::parse(path) {
            Ok(Some(at)) => PathBuf::from(at.volume),
            _ => PathBuf::from(path),
        },
        None => PathBuf::from(&entry.source),
    }
}

/// Prints a JSON document.
fn print_json(value: &Value) {
    println!("{value:#}");
}
