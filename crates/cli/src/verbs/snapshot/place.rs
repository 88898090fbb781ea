//! Which directory is meant, and which process answers for it: the one that has the volume open or
//! mounts it, this one for a volume at rest and for one that is served elsewhere, or the kernel
//! through `.snap` where this user may not ask that process.

use std::borrow::Cow;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kestrel_client::Fs;
use kestrel_client::control::{QUICK, SOCKET_NAME};
use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::{Introduction, RemoteUrl, RemoteVolume};
use kestrel_client::snapshot::SnapshotUrl;
use kestrel_client::state_dir::is_bucket_url;
use kestrel_client::volume::MountedVolume;
use kestrel_daemon::ask::{ask_with, locate, path_value};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::memory::of_verb;
use kestrel_daemon::snapshots::answer::SnapshotEndpoint;
use kestrel_daemon::snapshots::calls::own_creds;
use kestrel_fuse::mount::MountEntry;
use serde_json::{Value, json};

use super::super::{control_dir, mount_above, open};
use super::{VERB, dot_snap};
use crate::args::store::StoreArgs;

/// How long a call may wait for a server.
const DEADLINE: Duration = Duration::from_secs(60);

/// Which process answers.
enum Answerer {
    /// The one that mounts it, with its control socket in this directory.
    Mount(PathBuf),
    /// The kernel: this directory is in a mount of somebody else's.
    Kernel(PathBuf),
    /// The one that has the volume in this directory open; this one if none has.
    Volume(PathBuf, Box<StoreArgs>),
    /// This one, which has the volume open.
    Own(Box<MountedVolume>),
    /// This one, as a client.
    Client(Box<RemoteVolume>),
}

/// A directory with snapshots, or a volume.
pub struct Place {
    answerer: Answerer,
    /// The directory as questions name it; null for the whole volume.
    dir: Value,
    /// The path of the directory in a mount.
    mounted: Option<PathBuf>,
    /// As it was given.
    shown: String,
}

/// The volume and the directory in `VOLUME:/dir`, or in `VOLUME:#INODE`, by which a directory is
/// named that has been removed.
pub fn split(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    // The scheme of a URL ends so, too.
    let from = text.windows(3).position(|three| three == b"://").map_or(0, |at| at + 3);
    let is_end = |two: &[u8]| matches!(two, b":/" | b":#");
    let rest = text.get(from..)?;
    if !text.starts_with(b"s3://") {
        let colon = from + rest.windows(2).position(is_end)?;
        return Some((text[..colon].into(), &text[colon + 1..]));
    }
    // The directory stands before the parameters, or behind them, where an endpoint has a scheme.
    let query = rest.iter().position(|byte| *byte == b'?').map_or(text.len(), |at| from + at);
    if let Some(colon) = text[from..query].windows(2).position(is_end) {
        let colon = from + colon;
        return Some(([&text[..colon], &text[query..]].concat().into(), &text[colon + 1..query]));
    }
    let is_scheme = |at: usize| text[at..].starts_with(b"://");
    let mut colons = (query..text.len().saturating_sub(1)).filter(|at| is_end(&text[*at..at + 2]));
    let colon = colons.find(|at| !is_scheme(*at))?;
    Some((text[..colon].into(), &text[colon + 1..]))
}

/// A directory in a snapshot: the snapshot's name, as `.snap` has it, and the path below it.
pub type InSnapshot = (Vec<u8>, Vec<u8>);

/// The directory with the snapshot, and what [`InSnapshot`] has, of a path through `.snap`.
fn snapshot_in(path: &[u8]) -> Option<(&[u8], InSnapshot)> {
    let name = dot_snap::NAME.as_bytes();
    let mut from = 0;
    for part in path.split(|byte| *byte == b'/') {
        let end = from + part.len();
        if part == name {
            let dir = &path[..from];
            let rest = path[end..].strip_prefix(b"/").unwrap_or_default();
            let slash = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            return Some((dir, (rest[..slash].to_vec(), rest[slash..].to_vec())));
        }
        from = end + 1;
    }
    None
}

/// The directory as questions name it.
fn question_of(dir: &[u8]) -> Result<Value, Failure> {
    let Some(number) = dir.strip_prefix(b"#") else {
        return Ok(json!({ "path": path_value(dir) }));
    };
    let number = std::str::from_utf8(number).ok().and_then(|number| number.parse::<u64>().ok());
    let number =
        number.ok_or_else(|| Failure::usage(format!("{VERB}: what follows :# is an inode number")));
    Ok(json!({ "dir": number? }))
}

/// What a call on a path of a mount failed with, if nodes of the volume have not answered in time.
pub fn unanswered(why: &std::io::Error) -> Option<String> {
    let is_late = why.raw_os_error() == Some(libc::ETIMEDOUT);
    is_late
        .then(|| format!("a node of the volume does not answer: {why}; see kestrel cluster status"))
}

impl Place {
    /// The directory that `text` names.
    pub fn of(text: &OsString, store: &StoreArgs) -> Result<Self, Failure> {
        let mut place = Self::of_any(text, store)?;
        if !place.is_dir() {
            // The root of the volume.
            place.dir = json!({ "path": "/" });
        }
        Ok(place)
    }

    /// The directory or volume that `text` names.
    pub fn of_any(text: &OsString, store: &StoreArgs) -> Result<Self, Failure> {
        let bytes = text.as_bytes();
        let (volume, path) = match split(bytes) {
            Some((volume, path)) => (volume, Some(path)),
            None => (bytes.into(), None),
        };
        let dir = path.map(question_of).transpose()?.unwrap_or_default();
        let shown = text.to_string_lossy().into_owned();
        let url = String::from_utf8_lossy(&volume).into_owned();
        let place =
            |answerer| Self { answerer, dir: dir.clone(), mounted: None, shown: shown.clone() };
        if RemoteUrl::is_one(&url) {
            RemoteUrl::parse(&url).map_err(|why| Failure::usage(format!("{VERB}: {why}")))?;
            return Ok(place(Answerer::Client(Box::new(connect(&url, store)?))));
        }
        if is_bucket_url(&url) {
            let found = locate(VERB, &url, store.credentials.as_deref())?;
            return Ok(place(Answerer::Volume(found, Box::new(store.clone()))));
        }
        if let Ok(found) = locate(VERB, &url, None)
            && Descriptor::read(&found).is_ok()
        {
            return Ok(place(Answerer::Volume(found, Box::new(store.clone()))));
        }
        Self::in_mount(Path::new(text), shown)
    }

    /// The directory that `text` names, to be read; if it is of a snapshot, the directory of which
    /// the snapshot is, and the snapshot's name and the path below it.
    pub fn to_read(
        text: &OsString,
        store: &StoreArgs,
    ) -> Result<(Self, Option<InSnapshot>), Failure> {
        let bytes = text.as_bytes();
        let volume = split(bytes).map_or(bytes.into(), |(volume, _)| volume);
        let url = String::from_utf8_lossy(&volume);
        let is_volume = RemoteUrl::is_one(&url)
            || is_bucket_url(&url)
            || locate(VERB, &url, None).is_ok_and(|found| Descriptor::read(&found).is_ok());
        if is_volume {
            return match snapshot_in(bytes) {
                Some((dir, snapshot)) => {
                    let place = Self::of(&OsStr::from_bytes(dir).into(), store)?;
                    Ok((place, Some(snapshot)))
                }
                None => Ok((Self::of(text, store)?, None)),
            };
        }
        let shown = text.to_string_lossy().into_owned();
        let fail = |why: &dyn std::fmt::Display| Failure::new(VERB, format!("{shown}: {why}"));
        let path = std::fs::canonicalize(text)
            .map_err(|why| fail(&format!("neither a volume nor a directory in one: {why}")))?;
        if !path.is_dir() {
            return Err(fail(&"not a directory; `kestrel info` tells of a file"));
        }
        let entry = mount_above(VERB, &path)?;
        if let Some(at) = entry.source.to_str().and_then(|url| SnapshotUrl::parse(url).ok()?) {
            return Self::in_mounted_snapshot(&entry, &at, &path, shown);
        }
        match snapshot_in(path.as_os_str().as_bytes()) {
            Some((_, (name, _))) if name.is_empty() => {
                Err(fail(&"`kestrel snapshot list` lists the snapshots of a directory"))
            }
            Some((dir, snapshot)) => {
                let place = Self::in_mount(Path::new(OsStr::from_bytes(dir)), shown)?;
                Ok((place, Some(snapshot)))
            }
            None => Ok((Self::in_mount(&path, shown)?, None)),
        }
    }

    /// A directory in a mount of a snapshot by itself.
    fn in_mounted_snapshot(
        entry: &MountEntry,
        at: &SnapshotUrl,
        path: &Path,
        shown: String,
    ) -> Result<(Self, Option<InSnapshot>), Failure> {
        let Some(dir) = may_ask(entry) else {
            return Err(Failure::new(VERB, format!("{shown}: {}", dot_snap::NOT_THROUGH_IT)));
        };
        let of: Vec<u8> = at.dir.iter().flat_map(|name| [b"/", name.as_bytes()].concat()).collect();
        let below = path.strip_prefix(&entry.mount_point).unwrap_or(Path::new(""));
        let dir_question = json!({ "path": path_value(&of) });
        let place =
            Self { answerer: Answerer::Mount(dir), dir: dir_question, mounted: None, shown };
        let below = below.as_os_str().as_bytes().to_vec();
        Ok((place, Some((at.name.as_bytes().to_vec(), below))))
    }

    fn in_mount(given: &Path, shown: String) -> Result<Self, Failure> {
        let fail = |why: &dyn std::fmt::Display| Failure::new(VERB, format!("{shown}: {why}"));
        let missing = "neither a volume nor a directory in a mounted one";
        let path = std::fs::canonicalize(given).map_err(|why| match unanswered(&why) {
            Some(why) => fail(&why),
            None => fail(&format!("{missing}: {why}")),
        })?;
        if path.components().any(|part| part.as_os_str() == OsStr::new(dot_snap::NAME)) {
            return Err(fail(&"it lies in a snapshot; name the directory without .snap"));
        }
        let meta = std::fs::metadata(&path);
        let meta = meta.map_err(|why| fail(&unanswered(&why).unwrap_or(why.to_string())))?;
        if !meta.is_dir() {
            return Err(fail(&"not a directory; only directories have snapshots"));
        }
        let entry = mount_above(VERB, &path)?;
        let answerer = match may_ask(&entry) {
            Some(dir) => Answerer::Mount(dir),
            None => Answerer::Kernel(path.clone()),
        };
        Ok(Self { answerer, dir: json!({ "dir": meta.ino() }), mounted: Some(path), shown })
    }

    /// Whether it is a directory, and not a whole volume.
    pub fn is_dir(&self) -> bool {
        !self.dir.is_null()
    }

    /// The directory's inode number.
    pub fn dir_ino(&mut self) -> Result<u64, Failure> {
        if let Some(dir) = self.dir["dir"].as_u64() {
            return Ok(dir);
        }
        let found = self.ask(json!({ "act": "list" }))?;
        found["dir"].as_u64().ok_or_else(|| self.fail("its inode number is not told"))
    }

    /// What failed of it.
    pub fn fail(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(VERB, format!("{}: {why}", self.shown))
    }

    /// By what a snapshot of it is read: a path, or what `kestrel mount` takes.
    pub fn path_of(&self, name: &OsStr) -> String {
        match &self.mounted {
            Some(dir) => dir.join(dot_snap::NAME).join(name).display().to_string(),
            None => {
                let name = name.to_string_lossy();
                let split = split(self.shown.as_bytes());
                match self.shown.split_once('?') {
                    // The parameters stand behind the snapshot.
                    Some((base, query)) if is_bucket_url(&self.shown) => match split {
                        Some((volume, dir)) => {
                            let (volume, dir) =
                                [&volume[..], dir].map(String::from_utf8_lossy).into();
                            let (base, query) = volume.split_once('?').unwrap_or((&volume, ""));
                            format!("{base}:{dir}@{name}?{query}")
                        }
                        None => format!("{base}@{name}?{query}"),
                    },
                    _ => format!("{}@{name}", self.shown),
                }
            }
        }
    }

    /// The path of the directory in a mount, if it was named by one.
    pub fn mounted(&self) -> Option<&Path> {
        self.mounted.as_deref()
    }

    /// Whether this process has the volume open.
    pub fn is_own(&self) -> bool {
        matches!(self.answerer, Answerer::Own(_))
    }

    /// As it was given.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Asks about this directory: `question` has the act and what it takes.
    pub fn ask(&mut self, question: Value) -> Result<Value, Failure> {
        self.ask_within(question, QUICK, &mut |_| ())
    }

    /// The same for what takes as long as it takes; `on_event` gets what is told meanwhile.
    pub fn ask_at_length(
        &mut self,
        question: Value,
        on_event: &mut dyn FnMut(Value),
    ) -> Result<Value, Failure> {
        self.ask_within(question, None, on_event)
    }

    fn ask_within(
        &mut self,
        mut question: Value,
        limit: Option<Duration>,
        on_event: &mut dyn FnMut(Value),
    ) -> Result<Value, Failure> {
        question["verb"] = "snapshot".into();
        question["creds"] = own_creds();
        for name in ["dir", "path"] {
            // A question about another directory says which.
            if question.get(name).is_none()
                && let Some(value) = self.dir.get(name)
            {
                question[name] = value.clone();
            }
        }
        let mut tell = |event: &Value| {
            on_event(event.clone());
            true
        };
        let (fs, storage) = match &self.answerer {
            Answerer::Kernel(dir) => return dot_snap::answer(dir, &question, &self.shown),
            Answerer::Mount(dir) => {
                let unserved = || {
                    let dir = dir.display();
                    self.fail(format!("nobody serves the volume {dir}; mount it again"))
                };
                let told = ask_with(VERB, dir, &question, limit, on_event);
                return self.told(told)?.ok_or_else(unserved);
            }
            Answerer::Volume(dir, store) => {
                let told = ask_with(VERB, dir, &question, limit, on_event);
                if let Some(answer) = self.told(told)? {
                    return Ok(answer);
                }
                let url = dir.to_string_lossy();
                let volume = open(VERB, &url, store)?;
                let own =
                    volume.serve(&of_verb(store.options()), false).map_err(|why| self.fail(why))?;
                self.answerer = Answerer::Own(Box::new(own));
                return self.ask_within(question, limit, on_event);
            }
            Answerer::Own(own) => {
                let engine = Some(&*own.volume.engine);
                let storage = &*own.volume.storage;
                return SnapshotEndpoint { fs: &own.fs, engine, storage }
                    .answer_telling(&question, &mut tell)
                    .map_err(|why| self.fail(why));
            }
            Answerer::Client(client) => (&client.fs, &*client.storage),
        };
        SnapshotEndpoint { fs, engine: None, storage }
            .answer_telling(&question, &mut tell)
            .map_err(|why| self.fail(why))
    }

    /// An answer of another process; its error says what it is about.
    fn told(&self, answer: Result<Option<Value>, Failure>) -> Result<Option<Value>, Failure> {
        answer.map_err(|why| self.fail(why.reason()))
    }

    /// Lets go of it.
    pub fn close(self) -> Result<ExitStatus, Failure> {
        let stored = |fs: &Arc<Fs>| fs.shutdown().map_err(|why| self.fail(why));
        match &self.answerer {
            Answerer::Own(own) => {
                let stored = stored(&own.fs);
                let settled = own.volume.engine.settle().map_err(|why| self.fail(why));
                stored.and(settled)?;
            }
            Answerer::Client(client) => stored(&client.fs)?,
            Answerer::Mount(_) | Answerer::Kernel(_) | Answerer::Volume(..) => {}
        }
        Ok(ExitStatus::Good)
    }
}

/// Directory of the control socket of a mount, if this user may ask there. Another user's mount of
/// a served volume has it where this user does not look.
fn may_ask(entry: &MountEntry) -> Option<PathBuf> {
    let dir = control_dir(entry);
    let socket = CString::new(dir.join(SOCKET_NAME).into_os_string().into_vec()).ok()?;
    // SAFETY: `socket` is a string that ends in NUL and outlives the call.
    (unsafe { libc::access(socket.as_ptr(), libc::W_OK) } == 0).then_some(dir)
}

fn connect(url: &str, store: &StoreArgs) -> Result<RemoteVolume, Failure> {
    let who = kestrel_daemon::who("kestrel snapshot");
    let introduction = Introduction { who, deadline: DEADLINE, read_only: false };
    RemoteVolume::open(url, &introduction, &of_verb(store.options()))
        .map_err(|why| Failure::new(VERB, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path in a volume begins at `:/`, which is not that of a URL's scheme.
    #[test]
    fn volume_and_path() {
        for (text, volume, path) in [
            ("/data/vol:/train/a", "/data/vol", Some("/train/a")),
            ("/data/vol:/", "/data/vol", Some("/")),
            ("/data/vol", "/data/vol", None),
            ("kestrel://h:9440/v", "kestrel://h:9440/v", None),
            ("kestrel://h:9440,i:1/v?tls=on:/a:/b", "kestrel://h:9440,i:1/v?tls=on", Some("/a:/b")),
            ("/data/vol:#17", "/data/vol", Some("#17")),
            ("file:///data/vol:/x", "file:///data/vol", Some("/x")),
            ("s3://b/p:/x?region=a", "s3://b/p?region=a", Some("/x")),
            ("s3://b/p?endpoint=http://h:9:/x", "s3://b/p?endpoint=http://h:9", Some("/x")),
            ("s3://b/p?endpoint=http://h:9:#7", "s3://b/p?endpoint=http://h:9", Some("#7")),
            ("s3://b/p?endpoint=http://h:9", "", None),
            ("s3://b/p", "", None),
            ("s3://b/p:", "", None),
            ("", "", None),
        ] {
            let found = split(text.as_bytes());
            let expected = path.map(|path| (volume.as_bytes().into(), path.as_bytes()));
            assert_eq!(found, expected, "{text}");
        }
    }

    /// A path through `.snap` is the directory, the snapshot and the path below it.
    #[test]
    fn paths_through_dot_snap() {
        for (path, expected) in [
            ("/mnt/a/.snap/one/b/c", Some(("/mnt/a/", "one", "/b/c"))),
            ("/mnt/.snap/one", Some(("/mnt/", "one", ""))),
            ("/mnt/.snap", Some(("/mnt/", "", ""))),
            ("/vol:/.snap/one/", Some(("/vol:/", "one", "/"))),
            ("/mnt/a.snap/b", None),
        ] {
            let found = snapshot_in(path.as_bytes());
            let expected = expected.map(|(dir, name, below)| {
                (dir.as_bytes(), (name.as_bytes().to_vec(), below.as_bytes().to_vec()))
            });
            assert_eq!(found, expected, "{path}");
        }
    }
}
