//! What is in the trash, and where it was.
//!
//! A name in the trash says in which directory it was, by number. Where that directory is, or was
//! if it is in the trash itself, is put together here.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use kestrel_daemon::ask::path_bytes;
use kestrel_daemon::failure::{ExitStatus, Failure};
use serde_json::{Value, json};

use super::super::snapshot::KeyArgs;
use super::super::snapshot::place::{Place, split};
use super::VERB;

/// Directories that one question asks about.
const DIRS_AT_ONCE: usize = 64;

/// Directories above each other where more would be a loop.
const DEPTH_MAX: usize = 4096;

/// Something in the trash.
pub struct KeptEntry {
    /// Its name there.
    pub item: Vec<u8>,
    /// The name that it had, or the beginning of it.
    pub name: Vec<u8>,
    /// The directory that it was in.
    pub parent: u64,
    pub ino: u64,
    pub kind: String,
    pub is_dir: bool,
    pub uid: u64,
    pub bytes: u64,
    /// When it was removed, nanoseconds since 1970.
    pub removed_ns: i64,
    /// The same, and when it expires, as it is shown.
    pub removed: String,
    pub expires: String,
    /// Its path in the volume; `None` if nobody knows where its directory was.
    pub path: Option<Vec<u8>>,
}

impl KeptEntry {
    fn read(entry: &Value) -> Option<Self> {
        let text = |field: &str| entry[field].as_str().map(str::to_owned);
        Some(Self {
            item: path_bytes(&entry["item"])?,
            name: path_bytes(&entry["name"])?,
            parent: entry["parent"].as_u64()?,
            ino: entry["inode"].as_u64()?,
            kind: text("type")?,
            is_dir: entry["type"] == "directory",
            uid: entry["uid"].as_u64()?,
            bytes: entry["bytes"].as_u64()?,
            removed_ns: entry["removed_ns"].as_i64()?,
            removed: text("removed")?,
            expires: text("expires")?,
            path: None,
        })
    }
}

/// The trash of a volume, and a path that it is looked at for.
pub struct Trash {
    place: Place,
    /// The path in the volume, empty for its root.
    below: Vec<u8>,
    /// What is put before paths in the volume to show them, in place of this beginning.
    shown: (Vec<u8>, Vec<u8>),
}

impl Trash {
    /// The trash of the volume with this path, which need not be there any more.
    pub fn open(path: &OsString, store: &KeyArgs) -> Result<Self, Failure> {
        let store = store.store();
        let bytes = path.as_bytes();
        if let Some((volume, inside)) = split(bytes).filter(|(_, inside)| inside.starts_with(b"/"))
        {
            let volume = OsStr::from_bytes(&volume);
            let place = Place::of(&volume.into(), &store).map_err(|why| why.of(VERB))?;
            let shown = [volume.as_bytes(), b":"].concat();
            let below = normal(Path::new(OsStr::from_bytes(inside)));
            return Ok(Self { place, below, shown: (shown, Vec::new()) });
        }
        let absolute = std::path::absolute(path).map_err(|why| Failure::new(VERB, why))?;
        let (dir, rest) = nearest(&absolute);
        let place = Place::of(&dir.clone().into_os_string(), &store).map_err(|why| why.of(VERB))?;
        if place.mounted().is_none() {
            // A volume by its path.
            return Ok(Self { place, below: rest, shown: (dir_bytes(&dir), Vec::new()) });
        }
        let mut trash = Self { place, below: Vec::new(), shown: (dir_bytes(&dir), Vec::new()) };
        let ino = trash.place.dir_ino().map_err(|why| why.of(VERB))?;
        let found = trash.ask(json!({ "act": "trash-paths", "dirs": [ino] }))?;
        match (path_bytes(&found[0]["path"]), found[0]["item"].is_null()) {
            (Some(at), true) => {
                trash.below = [&*at, &*rest].concat();
                trash.shown.1 = at;
                Ok(trash)
            }
            _ => Err(Failure::new(VERB, format!("{}: it is in the trash", dir.display()))),
        }
    }

    /// Asks the process that serves the volume.
    pub fn ask(&mut self, question: Value) -> Result<Value, Failure> {
        self.place.ask(question).map_err(|why| why.of(VERB))
    }

    /// Lets go of it.
    pub fn close(self) -> Result<ExitStatus, Failure> {
        self.place.close().map_err(|why| why.of(VERB))
    }

    /// The path in the volume that it is looked at for.
    pub fn below(&self) -> &[u8] {
        &self.below
    }

    /// Whether something was at or below the path.
    pub fn is_below(&self, entry: &KeptEntry) -> bool {
        match &entry.path {
            Some(path) => is_at_or_below(path, &self.below),
            None => self.below.is_empty(),
        }
    }

    /// Where something was, for people.
    pub fn shown(&self, entry: &KeptEntry) -> String {
        match &entry.path {
            Some(path) => self.shown_path(path),
            None => format!("#{}/{}", entry.parent, String::from_utf8_lossy(&entry.name)),
        }
    }

    /// A path in the volume, for people.
    pub fn shown_path(&self, path: &[u8]) -> String {
        let (begin, instead) = &self.shown;
        let path = match path.strip_prefix(&**instead) {
            Some(rest) => [&**begin, rest].concat(),
            None => path.to_vec(),
        };
        String::from_utf8_lossy(&path).into_owned()
    }

    /// The number of a directory in the same volume, named by a path in the same way.
    pub fn directory(&mut self, path: &OsString) -> Result<u64, Failure> {
        let fail = |why: &dyn std::fmt::Display| {
            Failure::new(VERB, format!("{}: {why}", path.to_string_lossy()))
        };
        let Some(own) = self.place.mounted() else {
            let Some((volume, inside)) = split(path.as_bytes()) else {
                return Err(fail(&"name a directory of the same volume, as VOLUME:/dir"));
            };
            if [&volume[..], b":"].concat() != self.shown.0 {
                return Err(fail(&"it is not in the same volume"));
            }
            let inside = kestrel_daemon::ask::path_value(inside);
            let found = self.ask(json!({ "act": "list", "path": inside }))?;
            return found["dir"].as_u64().ok_or_else(|| fail(&"there is no such directory"));
        };
        use std::os::unix::fs::MetadataExt;
        let (own, other) = (std::fs::metadata(own), std::fs::metadata(path));
        let (own, other) = (own.map_err(|why| fail(&why))?, other.map_err(|why| fail(&why))?);
        match (other.is_dir(), own.dev() == other.dev()) {
            (true, true) => Ok(other.ino()),
            (false, _) => Err(fail(&"not a directory")),
            (_, false) => Err(fail(&"it is not in the same mount")),
        }
    }

    /// All that is in the trash and belongs to the caller, the oldest first, with paths.
    pub fn entries(&mut self) -> Result<Vec<KeptEntry>, Failure> {
        let (mut entries, mut after) = (Vec::new(), Value::Null);
        loop {
            let page = self.ask(json!({ "act": "trash-list", "after": after }))?;
            let some = page["entries"].as_array().into_iter().flatten();
            entries.extend(some.filter_map(KeptEntry::read));
            if page["end"] == true || page["last"].is_null() {
                break;
            }
            after = page["last"].clone();
        }
        let trails = self.trails(&entries)?;
        let items: HashMap<u64, (u64, Vec<u8>)> = entries
            .iter()
            .filter(|entry| entry.is_dir)
            .map(|entry| (entry.ino, (entry.parent, entry.name.clone())))
            .collect();
        for entry in &mut entries {
            let above = path_of(entry.parent, &items, &trails);
            entry.path = above.map(|above| [&*above, b"/", &*entry.name].concat());
        }
        entries.sort_by_key(|entry| entry.removed_ns);
        Ok(entries)
    }

    /// Where the directories are that something was removed from.
    fn trails(&mut self, entries: &[KeptEntry]) -> Result<HashMap<u64, Trail>, Failure> {
        let dirs: HashSet<u64> = entries.iter().map(|entry| entry.parent).collect();
        let dirs: Vec<u64> = dirs.into_iter().collect();
        let mut trails = HashMap::new();
        for some in dirs.chunks(DIRS_AT_ONCE) {
            let found = self.ask(json!({ "act": "trash-paths", "dirs": some }))?;
            for (number, dir) in some.iter().enumerate() {
                if let Some(path) = path_bytes(&found[number]["path"]) {
                    trails.insert(*dir, Trail { item: found[number]["item"].as_u64(), path });
                }
            }
        }
        Ok(trails)
    }
}

/// Where a directory is: names below the root, or below something in the trash.
struct Trail {
    item: Option<u64>,
    path: Vec<u8>,
}

/// The path of a directory; of one in the trash the one that it had.
fn path_of(
    dir: u64,
    items: &HashMap<u64, (u64, Vec<u8>)>,
    trails: &HashMap<u64, Trail>,
) -> Option<Vec<u8>> {
    let (mut at, mut parts) = (dir, Vec::new());
    for _ in 0..DEPTH_MAX {
        let trail = trails.get(&at)?;
        parts.push(trail.path.clone());
        let Some(item) = trail.item else {
            parts.reverse();
            return Some(parts.concat());
        };
        let (parent, name) = items.get(&item)?;
        parts.push([b"/", &**name].concat());
        at = *parent;
    }
    None
}

/// Whether a path is another one, or begins with it.
pub fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// A path without `.`, `..` and repeated slashes; empty for the root.
fn normal(path: &Path) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name.as_bytes()),
            Component::ParentDir => drop(parts.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    parts.iter().flat_map(|name| [b"/", *name].concat()).collect()
}

/// The nearest directory of a path that is there, and the rest of the path.
fn nearest(path: &Path) -> (PathBuf, Vec<u8>) {
    let mut dir = path;
    loop {
        match std::fs::canonicalize(dir) {
            Ok(found) if found.is_dir() => {
                let rest = path.strip_prefix(dir).unwrap_or(Path::new(""));
                return (found, normal(rest));
            }
            _ => match dir.parent() {
                Some(above) => dir = above,
                None => return (PathBuf::from("/"), normal(path)),
            },
        }
    }
}

fn dir_bytes(dir: &Path) -> Vec<u8> {
    let bytes = dir.as_os_str().as_bytes();
    bytes.strip_suffix(b"/").unwrap_or(bytes).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path of a removed directory goes through those that were removed with it, and through
    /// what a tree in the trash has inside.
    #[test]
    fn paths_through_the_trash() {
        let items = HashMap::from([
            (10, (2, b"a".to_vec())),
            (11, (10, b"b".to_vec())),
            (12, (99, b"lost".to_vec())),
            (13, (13, b"loop".to_vec())),
        ]);
        let trail = |item, path: &str| Trail { item, path: path.into() };
        let trails = HashMap::from([
            (1, trail(None, "")),
            (2, trail(None, "/x")),
            (10, trail(Some(10), "")),
            (11, trail(Some(11), "")),
            (20, trail(Some(11), "/in/tree")),
            (12, trail(Some(12), "")),
            (13, trail(Some(13), "")),
        ]);
        let path = |dir| path_of(dir, &items, &trails).map(String::from_utf8);
        for (dir, expected) in [
            (1, Some("")),
            (2, Some("/x")),
            (10, Some("/x/a")),
            (11, Some("/x/a/b")),
            (20, Some("/x/a/b/in/tree")),
            (12, None),
            (13, None),
            (99, None),
        ] {
            assert_eq!(path(dir), expected.map(|path| Ok(path.to_owned())), "{dir}");
        }
    }

    /// What is below a path is told by whole names.
    #[test]
    fn paths_below() {
        for (path, above, expected) in [
            ("/a/b", "/a", true),
            ("/a", "/a", true),
            ("/ab", "/a", false),
            ("/a", "", true),
            ("/a", "/a/b", false),
        ] {
            assert_eq!(is_at_or_below(path.as_bytes(), above.as_bytes()), expected, "{path}");
        }
        assert_eq!(normal(Path::new("//a/./b/../c/")), b"/a/c");
        assert_eq!(normal(Path::new("/")), b"");
    }
}
