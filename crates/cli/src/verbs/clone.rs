//! `kestrel clone`.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use clap::Args;
use kestrel_client::snapshot::SnapshotUrl;
use kestrel_client::state_dir::is_bucket_url;
use kestrel_client::version::{self, VersionUrl};
use kestrel_daemon::ask::path_value;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_types::hex::to_hex;
use kestrel_types::name::Name;
use serde_json::{Value, json};

use super::snapshot::KeyArgs;
use super::snapshot::place::{Place, split, unanswered};

/// The verb in messages.
const VERB: &str = "clone";

/// Make a writable copy of a directory at once, which shares the stored bytes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel clone /mnt/data/train /mnt/data/train-relabelled
  kestrel clone /mnt/data/train@before-cleaning /mnt/data/restored
  kestrel clone /data/vol:/train /data/vol:/copy
  kestrel clone /data/vol//imagenet@v3 /mnt/data/imagenet-relabelled
  kestrel clone --eager /mnt/data/train /mnt/data/copy

The clone is made at once, whatever the tree's size. Below it, a directory gets its names when it is
first looked at, and in the background. SRC@NAME is the directory as it was at a snapshot; the
snapshot can be removed at once. Owners, modes, times, extended attributes, policies and hard links
inside the tree are those of the source, ctime is the time of the clone. The source's owner and root
may clone it; others copy what they may read: cp -a --reflink. VOLUME//NAME is a published version
of the volume; its publisher and root may clone it. docs/datasets.md tells more.")]
pub struct CloneArgs {
    /// The directory, of now or of a snapshot: a path in a mount, or VOLUME:/dir; or a published
    /// version, VOLUME//NAME
    #[arg(value_name = "SRC[@NAME]")]
    source: OsString,
    /// The clone: a name that is free, in the same volume
    #[arg(value_name = "DST")]
    target: OsString,
    /// Wait until all names of the clone are there
    #[arg(long)]
    eager: bool,
    #[command(flatten)]
    store: KeyArgs,
}

/// The directory and the snapshot in `SRC@NAME`. What follows the last `@` of the last component is
/// the snapshot, unless there is a directory of the whole name.
pub(super) fn source_of(text: &OsStr) -> (OsString, Option<OsString>) {
    if let Some(url) = text.to_str().filter(|url| is_bucket_url(url))
        && let Ok(Some(at)) = SnapshotUrl::parse(url)
    {
        let dir = format!("{}:{}", at.volume, at.dir_text());
        return (dir.into(), Some(OsStr::from_bytes(at.name.as_bytes()).into()));
    }
    let bytes = text.as_bytes();
    let last = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let at = bytes[last..].iter().rposition(|byte| *byte == b'@').map(|at| last + at);
    match at {
        Some(at) if !Path::new(text).is_dir() => {
            let (dir, name) = (&bytes[..at], &bytes[at + 1..]);
            (OsStr::from_bytes(dir).into(), Some(OsStr::from_bytes(name).into()))
        }
        _ => (text.into(), None),
    }
}

/// The directory that gets the clone, as a question names it, and the clone's name there.
fn target_of(source: &Place, volume: &OsStr, target: &OsStr) -> Result<(Value, Value), Failure> {
    let bad = |why: &str| Failure::usage(format!("{VERB}: {}: {why}", target.to_string_lossy()));
    let in_volume = split(target.as_bytes());
    let path = match (source.mounted(), in_volume) {
        (Some(_), None) => Path::new(target),
        (Some(_), Some(_)) => return Err(bad("name it by a path in the mount, as the source")),
        (None, Some((of, path))) if *of == *volume.as_bytes() => Path::new(OsStr::from_bytes(path)),
        (None, _) => return Err(bad("it must lie in the volume of the source: VOLUME:/dir")),
    };
    let name = path.file_name().ok_or_else(|| bad("the clone needs a name"))?;
    let name = Name::new(name.as_bytes()).map_err(|why| bad(&why.reason))?;
    let above = path.parent().unwrap_or(Path::new(""));
    let to = match source.mounted() {
        Some(mounted) => json!({ "dir": parent_in_mount(mounted, above, target)? }),
        None => json!({ "path": path_value(above.as_os_str().as_bytes()) }),
    };
    Ok((to, path_value(name.as_bytes())))
}

/// Inode number of the directory that gets the clone, which must lie in the source's mount.
fn parent_in_mount(source: &Path, above: &Path, target: &OsStr) -> Result<u64, Failure> {
    let fail = |why: &dyn std::fmt::Display| {
        Failure::new(VERB, format!("{}: {why}", target.to_string_lossy()))
    };
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let read = |path: &Path| {
        let told = |why: std::io::Error| fail(&unanswered(&why).unwrap_or(why.to_string()));
        std::fs::metadata(path).map_err(told)
    };
    let (source, parent) = (read(source)?, read(above)?);
    if !parent.is_dir() {
        return Err(fail(&"what it would lie in is no directory"));
    }
    if source.dev() != parent.dev() {
        return Err(fail(
            &"it lies in another mount than the source; name both by one, or copy with cp -a",
        ));
    }
    Ok(parent.ino())
}

/// Does it.
pub fn run(args: &CloneArgs) -> Result<ExitStatus, Failure> {
    if let Some(text) = args.source.to_str()
        && let Some(url) = VersionUrl::parse(text).map_err(|why| Failure::new(VERB, why))?
    {
        return clone_version(&url, args);
    }
    let (dir, snapshot) = source_of(&args.source);
    if Path::new(&dir).is_file() {
        let shown = dir.to_string_lossy();
        let why = "only directories are cloned; copy a file with cp --reflink";
        return Err(Failure::new(VERB, format!("{shown}: {why}")));
    }
    let place = Place::of(&dir, &args.store.store()).map_err(|why| why.of(VERB))?;
    let volume = split(dir.as_bytes()).map_or(dir.as_bytes().into(), |(volume, _)| volume);
    let (to, name) = target_of(&place, OsStr::from_bytes(&volume), &args.target)?;
    let snapshot = snapshot.map(|name| path_value(name.as_bytes()));
    let question = json!({ "act": "clone", "snapshot": snapshot, "to": to, "name": name });
    make(place, question, args)
}

/// Makes a clone of a published version.
fn clone_version(url: &VersionUrl, args: &CloneArgs) -> Result<ExitStatus, Failure> {
    let bad =
        |why: &str| Failure::usage(format!("{VERB}: {}: {why}", args.target.to_string_lossy()));
    let store = args.store.store();
    let registry = version::registry(&url.volume, &store.options());
    let registry = registry.map_err(|why| Failure::new(VERB, why))?;
    let (volume, path) = match split(args.target.as_bytes()) {
        Some((volume, path)) => (Some(volume), Path::new(OsStr::from_bytes(path))),
        None => (None, Path::new(&args.target)),
    };
    let name = path.file_name().ok_or_else(|| bad("the clone needs a name"))?;
    let name = Name::new(name.as_bytes()).map_err(|why| bad(&why.reason))?;
    let above = path.parent().unwrap_or(Path::new("")).as_os_str();
    let above: OsString = match &volume {
        Some(volume) => OsStr::from_bytes(&[volume, &b":"[..], above.as_bytes()].concat()).into(),
        None if above.is_empty() => ".".into(),
        None => above.into(),
    };
    let place = Place::of(&above, &store).map_err(|why| why.of(VERB))?;
    let question = json!({
        "act": "version-clone",
        "volume": to_hex(registry.volume()),
        "version": url.name,
        "name": path_value(name.as_bytes()),
    });
    make(place, question, args)
}

fn make(mut place: Place, question: Value, args: &CloneArgs) -> Result<ExitStatus, Failure> {
    let made = place.ask(question).map_err(|why| why.of(VERB))?;
    if args.eager {
        finish(&mut place, &made["dir"])?;
    }
    println!("{}", args.target.to_string_lossy());
    place.close().map_err(|why| why.of(VERB))
}

/// Waits until a clone lacks nothing, by doing it.
fn finish(place: &mut Place, dir: &Value) -> Result<(), Failure> {
    let shows = std::io::stderr().is_terminal();
    let mut names = 0;
    loop {
        let step = json!({ "act": "clone-step", "dir": dir });
        let step = place.ask(step).map_err(|why| why.of(VERB))?;
        names += step["names"].as_u64().unwrap_or(0);
        // Of several nodes none knows how many names the others gave.
        let shows = shows && names > 0;
        if shows {
            // What is told is of no use when it cannot be shown.
            let _ = write!(std::io::stderr(), "\r{names} names");
        }
        if step["done"] == true {
            if shows {
                let _ = writeln!(std::io::stderr());
            }
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows the last `@` is the snapshot, in the last component alone.
    #[test]
    fn source_and_snapshot() {
        for (text, dir, snapshot) in [
            ("/nowhere/train@monday", "/nowhere/train", Some("monday")),
            ("/nowhere/a@b/train", "/nowhere/a@b/train", None),
            ("/nowhere/a@b@monday", "/nowhere/a@b", Some("monday")),
            ("/data/vol:/@monday", "/data/vol:/", Some("monday")),
            ("kestrel://h:9440/v:/train", "kestrel://h:9440/v:/train", None),
        ] {
            let found = source_of(OsStr::new(text));
            assert_eq!(found, (dir.into(), snapshot.map(Into::into)), "{text}");
        }
    }
}
