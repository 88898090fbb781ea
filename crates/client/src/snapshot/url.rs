//! `VOLUME@NAME`: a volume at a snapshot of its root; `VOLUME:/DIR@NAME`: at one of a directory.

use std::fmt;
use std::path::Path;

use kestrel_s3::S3_SCHEME;
use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::name::{NAME_MAX, Name};
use kestrel_types::snapshot::{SnapshotInfo, is_snapshot_name};

use crate::error::VolumeError;
use crate::state_dir::is_bucket_url;
use crate::url::{RemoteUrl, SCHEME};

/// A volume at a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotUrl {
    /// The volume: a path or a URL.
    pub volume: String,
    /// The directory that the snapshot is of; none is the root.
    pub dir: Vec<Name>,
    /// The snapshot's name.
    pub name: Name,
}

impl SnapshotUrl {
    /// Reads what names a volume, maybe at a snapshot; `None` if it is not at one. A directory that
    /// exists is a volume's, whatever its name.
    ///
    /// # Errors
    /// If it is at a snapshot, and the snapshot or its directory cannot have that name.
    pub fn parse(text: &str) -> Result<Option<Self>, VolumeError> {
        if RemoteUrl::is_one(text) {
            return Self::parse_url(text, SCHEME);
        }
        if is_bucket_url(text) {
            let bucket = text[S3_SCHEME.len()..].split(['/', '?']).next().unwrap_or_default();
            // With credentials in it it is no volume's, and is not to be repeated.
            let is_plain = !bucket.contains([':', '@']);
            return if is_plain { Self::parse_url(text, S3_SCHEME) } else { Ok(None) };
        }
        let path = text.strip_prefix("file://").unwrap_or(text);
        if Path::new(path).exists() {
            return Ok(None);
        }
        let Some((left, name)) = path.rsplit_once('@').filter(|(_, name)| !name.contains('/'))
        else {
            return Ok(None);
        };
        if Path::new(left).is_dir() {
            return Self::new(text, left, "", name).map(Some);
        }
        let volume = left.match_indices(":/").find(|(at, _)| Path::new(&left[..*at]).is_dir());
        match volume {
            Some((at, _)) => Self::new(text, &left[..at], &left[at + 1..], name).map(Some),
            None => Ok(None),
        }
    }

    fn parse_url(text: &str, scheme: &str) -> Result<Option<Self>, VolumeError> {
        let (place, options) =
            text.split_once('?').map_or((text, None), |(place, rest)| (place, Some(rest)));
        let from = scheme.len() + place[scheme.len()..].find('/').unwrap_or(0);
        let Some((left, name)) = place[from..].rsplit_once('@').filter(|(_, n)| !n.contains('/'))
        else {
            return Ok(None);
        };
        let (volume, dir) = left.split_once(":/").unwrap_or((left, ""));
        let volume = format!("{}{volume}", &place[..from]);
        let volume = options.map_or(volume.clone(), |options| format!("{volume}?{options}"));
        Self::new(text, &volume, dir, name).map(Some)
    }

    fn new(text: &str, volume: &str, dir: &str, name: &str) -> Result<Self, VolumeError> {
        let bad = |why: &str| VolumeError::Invalid(format!("{text}: {why}"));
        let parts = dir.split('/').filter(|part| !part.is_empty() && *part != ".");
        let dir: FsResult<Vec<Name>> = parts.map(|part| Name::new(part.as_bytes())).collect();
        let dir = dir.map_err(|_| {
            bad("the directory is a path from the volume's root without `..`: VOLUME:/DIR@NAME")
        })?;
        let name = Name::new(name.as_bytes()).ok().filter(is_snapshot_name).ok_or_else(|| {
            bad("what follows the last @ cannot be a snapshot's name: 1 to 255 bytes, no / and no \
                 _ at the beginning")
        })?;
        Ok(Self { volume: volume.into(), dir, name })
    }

    /// The directory, as `/a/b`; `/` for the root.
    pub fn dir_text(&self) -> String {
        let parts = self.dir.iter().map(|part| String::from_utf8_lossy(part.as_bytes()));
        format!("/{}", parts.collect::<Vec<_>>().join("/"))
    }
}

impl fmt::Display for SnapshotUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match RemoteUrl::parse(&self.volume) {
            Ok(url) => url.place(),
            Err(_) => self.volume.clone(),
        };
        f.write_str(&place)?;
        if !self.dir.is_empty() {
            write!(f, ":{}", self.dir_text())?;
        }
        write!(f, "@{}", String::from_utf8_lossy(self.name.as_bytes()))
    }
}

/// The name by which a snapshot is found in the `.snap` of `dir`: its own if it is of `dir`;
/// `_NAME_INODE`, with the directory that it is of, if it is of one above. `None` if that is too
/// long for a name.
pub fn listed_name(snapshot: &SnapshotInfo, dir: InodeId) -> Option<Name> {
    if snapshot.dir == dir {
        return Some(snapshot.name.clone());
    }
    let above = [b"_", snapshot.name.as_bytes(), format!("_{}", snapshot.dir).as_bytes()].concat();
    (above.len() <= NAME_MAX).then(|| Name::new(&above).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(String, String, String)> {
        let url = SnapshotUrl::parse(text).unwrap()?;
        let name = String::from_utf8_lossy(url.name.as_bytes()).into_owned();
        Some((url.volume.clone(), url.dir_text(), name))
    }

    fn all(volume: &str, dir: &str, name: &str) -> Option<(String, String, String)> {
        Some((volume.into(), dir.into(), name.into()))
    }

    /// Volumes in directories: what exists is a volume, whatever its name.
    #[test]
    fn paths_at_snapshots() {
        let work =
            std::env::temp_dir().join(format!("kestrel-snapshot-url-{}", std::process::id()));
        let path = |name: &str| work.join(name).to_string_lossy().into_owned();
        for dir in ["v", "v@real", "c:/d"] {
            std::fs::create_dir_all(path(dir)).unwrap();
        }
        assert_eq!(parsed(&path("v")), None);
        assert_eq!(parsed(&path("v@real")), None);
        assert_eq!(parsed(&path("v@one")), all(&path("v"), "/", "one"));
        assert_eq!(parsed(&format!("file://{}", path("v@one"))), all(&path("v"), "/", "one"));
        assert_eq!(parsed(&path("v@real@one")), all(&path("v@real"), "/", "one"));
        assert_eq!(parsed(&path("v:/a/b@one")), all(&path("v"), "/a/b", "one"));
        assert_eq!(parsed(&path("c:/d@one")), all(&path("c:/d"), "/", "one"));
        assert_eq!(parsed(&path("absent@one")), None);
        assert_eq!(parsed(&path("v@one/x")), None);
        assert!(SnapshotUrl::parse(&path("v@_one")).is_err());
        assert!(SnapshotUrl::parse(&path("v@")).is_err());
        assert!(SnapshotUrl::parse(&path("v:/a/..@one")).is_err());
        let url = SnapshotUrl::parse(&path("v:/a@one")).unwrap().unwrap();
        assert_eq!(url.to_string(), path("v:/a@one"));
        std::fs::remove_dir_all(&work).unwrap();
    }

    /// Served volumes: the last `@` of the name stands before a snapshot.
    #[test]
    fn urls_at_snapshots() {
        assert_eq!(parsed("kestrel://h/v"), None);
        assert_eq!(parsed("kestrel://u@h/v"), None);
        assert_eq!(parsed("kestrel://h/v@one"), all("kestrel://h/v", "/", "one"));
        assert_eq!(
            parsed("kestrel://h:1,i/v:/a/b@one?tls=off"),
            all("kestrel://h:1,i/v?tls=off", "/a/b", "one")
        );
        let url = SnapshotUrl::parse("kestrel://h/v:/a@one?tls=off").unwrap().unwrap();
        assert_eq!(url.to_string(), "kestrel://h:9440/v:/a@one");
    }

    /// Volumes in buckets: the parameters stand behind the snapshot.
    #[test]
    fn buckets_at_snapshots() {
        let query = "?endpoint=http://u:1&region=a";
        let volume = format!("s3://b/p{query}");
        assert_eq!(parsed(&volume), None);
        assert_eq!(parsed("s3://b"), None);
        assert_eq!(parsed(&format!("s3://b/p@one{query}")), all(&volume, "/", "one"));
        assert_eq!(parsed(&format!("s3://b/p:/a/b@one{query}")), all(&volume, "/a/b", "one"));
        assert_eq!(parsed("s3://b/@one"), all("s3://b/", "/", "one"));
        assert!(SnapshotUrl::parse("s3://b/p@_one").is_err());
        assert_eq!(parsed("s3://ID:hush@bucket/p"), None);
        assert_eq!(parsed("s3://ID:hu/sh@_bucket"), None);
    }

    /// Snapshots of directories above have their directory's number in their name.
    #[test]
    fn names_in_a_snapshot_directory() {
        let name = |text: &[u8]| Name::new(text).unwrap();
        let of = |dir, name| SnapshotInfo {
            id: 9,
            dir,
            name,
            created: 0,
            removing: false,
            cutting: false,
            hidden: false,
            holds: Vec::new(),
            clones: Vec::new(),
        };
        assert_eq!(listed_name(&of(20, name(b"a")), 20), Some(name(b"a")));
        assert_eq!(listed_name(&of(20, name(b"a")), 30), Some(name(b"_a_20")));
        assert_eq!(listed_name(&of(20, name(&[b'x'; 252])), 30), None);
    }
}
