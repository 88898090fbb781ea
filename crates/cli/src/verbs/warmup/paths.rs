//! Which paths to warm up: arguments, lines of a list, names with `*` and `?` expanded; gathered
//! into requests by volume.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use kestrel_daemon::failure::Failure;
use serde_json::Value;

use super::WarmupArgs;
use crate::verbs::{control_dir, mount_above, path_value};

/// Paths in one request, at most: answers come, and work can be cut off, that often.
const PATHS_MAX: usize = 4096;

/// Bytes of paths in one request, at most; a request has room for several times as much.
const BYTES_MAX: usize = 1 << 20;

/// Missing paths named, at most.
const NAMED_MAX: u64 = 20;

/// Paths that are there, one after the other: arguments and lines, expanded.
pub struct WarmupPaths {
    /// Arguments, last first.
    arguments: Vec<PathBuf>,
    list: Option<Box<dyn BufRead>>,
    /// Expanded, last first.
    expanded: Vec<PathBuf>,
    missing: u64,
}

/// Requests, made as paths are read.
pub struct Requests {
    wishes: WarmupPaths,
    /// Belongs to another volume than the request before it.
    held: Option<(PathBuf, Vec<u8>)>,
    /// Where the paths of a directory belong: lists mostly name the files of one directory after
    /// the other.
    known: Option<(PathBuf, VolumePath)>,
}

#[derive(Clone)]
struct VolumePath {
    volume: PathBuf,
    /// The directory's path within the volume.
    below: PathBuf,
}

impl WarmupPaths {
    pub fn new(args: &WarmupArgs) -> Result<Self, Failure> {
        let list: Option<Box<dyn BufRead>> = match &args.from_file {
            Some(name) if name == Path::new("-") => {
                Some(Box::new(BufReader::new(std::io::stdin())))
            }
            Some(name) => {
                let file = File::open(name)
                    .map_err(|why| Failure::new("warmup", format!("{}: {why}", name.display())))?;
                Some(Box::new(BufReader::new(file)))
            }
            None => None,
        };
        let arguments = args.paths.iter().rev().cloned().collect();
        Ok(Self { arguments, list, expanded: Vec::new(), missing: 0 })
    }

    /// Paths that were not there.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// The next path that is there.
    pub fn next_path(&mut self) -> Result<Option<PathBuf>, Failure> {
        loop {
            match self.expanded.pop() {
                Some(path) => return Ok(Some(path)),
                None => match self.next_wish()? {
                    Some(wish) => {
                        let mut found = expand(&wish);
                        if found.is_empty() {
                            self.missing += 1;
                            if self.missing <= NAMED_MAX {
                                eprintln!("kestrel warmup: {}: no such file", wish.display());
                            }
                        }
                        found.reverse();
                        self.expanded = found;
                    }
                    None => return Ok(None),
                },
            }
        }
    }

    /// The next argument or line.
    fn next_wish(&mut self) -> Result<Option<PathBuf>, Failure> {
        if let Some(argument) = self.arguments.pop() {
            return Ok(Some(argument));
        }
        let Some(list) = &mut self.list else { return Ok(None) };
        loop {
            let mut line = Vec::new();
            // A line longer than any path is cut into pieces that lead nowhere.
            let read = list.by_ref().take(64 * 1024).read_until(b'\n', &mut line);
            if read.map_err(|why| Failure::new("warmup", format!("reading the list: {why}")))? == 0
            {
                return Ok(None);
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            if !text.is_empty() {
                return Ok(Some(OsString::from_vec(text.to_vec()).into()));
            }
        }
    }
}

impl Requests {
    pub fn new(args: &WarmupArgs) -> Result<Self, Failure> {
        Ok(Self { wishes: WarmupPaths::new(args)?, held: None, known: None })
    }

    /// Paths that were not there.
    pub fn missing(&self) -> u64 {
        self.wishes.missing()
    }

    /// The next request: a volume, and paths in it.
    pub fn next(&mut self) -> Result<Option<(PathBuf, Vec<Value>)>, Failure> {
        let (mut volume, mut paths, mut bytes) = (None, Vec::new(), 0);
        while paths.len() < PATHS_MAX && bytes < BYTES_MAX {
            let next = match self.held.take() {
                Some(held) => Some(held),
                None => self.wishes.next_path()?.map(|path| self.place(&path)).transpose()?,
            };
            let Some((dir, path)) = next else { break };
            if volume.as_ref().is_some_and(|volume| *volume != dir) {
                self.held = Some((dir, path));
                break;
            }
            volume = Some(dir);
            bytes += path.len();
            paths.push(path_value(&path));
        }
        Ok(volume.map(|volume| (volume, paths)))
    }

    fn place(&mut self, path: &Path) -> Result<(PathBuf, Vec<u8>), Failure> {
        let fail = |why: &dyn std::fmt::Display| {
            Failure::new("warmup", format!("{}: {why}", path.display()))
        };
        // A symbolic link stands for what it leads to; so does a directory given as such.
        let follow =
            path.file_name().is_none() || path.symlink_metadata().is_ok_and(|meta| !meta.is_file());
        let path = if follow {
            std::fs::canonicalize(path).map_err(|why| fail(&why))?
        } else {
            path.to_path_buf()
        };
        let name = if follow && path.is_dir() { None } else { path.file_name() };
        let parent = match name {
            Some(_) => path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new(".")),
            None => &path,
        };
        let place = match &self.known {
            Some((known, place)) if known == parent => place.clone(),
            _ => {
                let dir = std::fs::canonicalize(parent).map_err(|why| fail(&why))?;
                let entry = mount_above("warmup", &dir)?;
                let below =
                    dir.strip_prefix(&entry.mount_point).map_err(|why| fail(&why))?.to_path_buf();
                let place = VolumePath { volume: control_dir(&entry), below };
                self.known = Some((parent.to_path_buf(), place.clone()));
                place
            }
        };
        let below = name.map_or(place.below.clone(), |name| place.below.join(name));
        Ok((place.volume, below.into_os_string().into_vec()))
    }
}

/// What a path stands for: itself if it is there, else what its `*` and `?` match, sorted.
fn expand(path: &Path) -> Vec<PathBuf> {
    if path.symlink_metadata().is_ok() {
        return vec![path.to_path_buf()];
    }
    let mut found = vec![PathBuf::new()];
    for part in path.components() {
        let name = part.as_os_str();
        let is_pattern = name.as_bytes().iter().any(|byte| matches!(byte, b'*' | b'?'));
        let mut next = Vec::new();
        for dir in found {
            if is_pattern {
                next.extend(matching(&dir, name));
            } else {
                next.push(dir.join(name));
            }
        }
        found = next;
    }
    found.retain(|path| path.symlink_metadata().is_ok());
    found
}

/// Entries of a directory that match, sorted; none with a leading dot unless the pattern has one.
fn matching(dir: &Path, pattern: &OsStr) -> Vec<PathBuf> {
    let place = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let hidden = pattern.as_bytes().first() == Some(&b'.');
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| hidden || name.as_bytes().first() != Some(&b'.'))
        .filter(|name| matches(pattern.as_bytes(), name.as_bytes()))
        .map(|name| dir.join(name))
        .collect();
    found.sort_unstable();
    found
}

/// Whether a name matches a pattern of `*` (any bytes) and `?` (any byte). Linear but for the last
/// `*`, to which it goes back.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                back = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match back {
                Some((star, from)) => {
                    back = Some((star, from + 1));
                    p = star + 1;
                    n = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*", "anything", true),
            ("shard-*", "shard-17", true),
            ("shard-*", "shar-17", false),
            ("*.jpg", "a.b.jpg", true),
            ("*.jpg", "a.jpgx", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*c", "xxaxxbxbxc", true),
            ("*a*b*c", "xxaxxcxb", false),
            ("", "", true),
            ("**", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn patterns_stand_for_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a1/x", "a1/.hidden", "a2/x", "b/x", "a*/y"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let names = |pattern: &str| -> Vec<String> {
            let strip = |path: PathBuf| {
                path.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_string()
            };
            expand(&dir.path().join(pattern)).into_iter().map(strip).collect()
        };
        assert_eq!(names("a?/*"), ["a*/y", "a1/x", "a2/x"]);
        assert_eq!(names("a*"), ["a*"], "what is there under this very name is meant");
        assert_eq!(names("a1/.*"), ["a1/.hidden"]);
        assert_eq!(names("*/x"), ["a1/x", "a2/x", "b/x"]);
        assert!(names("c*/x").is_empty() && names("nothing").is_empty());
    }
}
