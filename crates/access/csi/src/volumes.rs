//! Directories as volumes: their names, records, quotas and snapshots.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use serde_json::{Value, json};
use tonic::Status;

use crate::Driver;
use crate::program::kestrel;

/// The extended attribute of a directory with its record.
const RECORD: &CStr = c"user.kestrel.csi";
/// Keys of a volume's context: which KestrelFS volume, and which directory of it.
pub const URL: &str = "url";
pub const DIR: &str = "dir";

/// Longest record, bytes.
const RECORD_BYTES_MAX: usize = 4096;
/// Longest name of a directory or snapshot.
const NAME_MAX: usize = 255;

/// What the driver knows of a volume that it has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Its id. A clone has its source's record until it has its own.
    pub id: String,
    /// Its quota in bytes; 0: none.
    pub size: u64,
    /// What it was made from: empty, `volume ID` or `snapshot ID`.
    pub source: String,
}

/// A snapshot of a volume.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub volume: String,
    pub name: String,
    pub created: SystemTime,
    /// Size of the volume.
    pub size: u64,
}

impl Snapshot {
    pub fn id(&self) -> String {
        format!("{}@{}", self.volume, self.name)
    }
}

/// A name that any text has and no other text: letters, digits and `-_.` stand for themselves.
///
/// # Errors
/// If it is too long for a directory.
pub fn id_of(name: &str) -> Result<String, Status> {
    let mut id = String::new();
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'.' if at == 0 => id.push_str("%2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                id.push(char::from(byte));
            }
            _ => id.push_str(&format!("%{byte:02x}")),
        }
    }
    if id.len() > NAME_MAX {
        return Err(Status::invalid_argument("the name is too long for a directory"));
    }
    Ok(id)
}

/// Whether this driver could have made it.
pub fn is_id(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.%".contains(&byte);
    !id.is_empty() && id.len() <= NAME_MAX && !id.starts_with('.') && id.bytes().all(is_plain)
}

/// The volume and the name of a snapshot by its id.
pub fn snapshot_parts(id: &str) -> Option<(&str, &str)> {
    id.split_once('@').filter(|(volume, name)| is_id(volume) && is_id(name))
}

/// An error of the kernel or of `kestrel` that no request is to blame for.
pub fn internal(what: &str, why: impl std::fmt::Display) -> Status {
    Status::internal(format!("{what}: {why}"))
}

impl Driver {
    /// The directory below which volumes are made, in the mount of the whole KestrelFS volume.
    pub fn home(&self) -> Result<PathBuf, Status> {
        let config = &self.0.config;
        let home = self.mounted(&config.url, config.token_file.as_deref())?.join(&config.dir);
        match fs::create_dir(&home) {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
                Err(internal(&home.display().to_string(), why))
            }
            _ => Ok(home),
        }
    }

    /// The directory and record of a volume that is there as a whole.
    pub fn volume(&self, id: &str) -> Result<Option<(PathBuf, VolumeRecord)>, Status> {
        if !is_id(id) {
            return Ok(None);
        }
        let dir = self.home()?.join(id);
        let record = read_record(&dir).map_err(|why| internal(id, why))?;
        Ok(record.filter(|record| record.id == id).map(|record| (dir, record)))
    }

    /// All volumes in the order of their ids.
    pub fn volumes(&self) -> Result<Vec<VolumeRecord>, Status> {
        let home = self.home()?;
        let entries = fs::read_dir(&home).map_err(|why| internal("list", why))?;
        let mut volumes = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|why| internal("list", why))?;
            let name = entry.file_name();
            let record = read_record(&entry.path()).map_err(|why| internal("list", why))?;
            volumes.extend(record.filter(|record| record.id.as_bytes() == name.as_bytes()));
        }
        volumes.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(volumes)
    }

    /// Makes a directory with its quota and record.
    pub fn make(&self, record: &VolumeRecord) -> Result<(), Status> {
        let dir = self.home()?.join(&record.id);
        if dir.exists() {
            // A creation that was cut short.
            self.remove(&dir)?;
        }
        match record.source.split_once(' ') {
            None => fs::create_dir(&dir).map_err(|why| internal(&record.id, why))?,
            Some((_, source)) => {
                let source = self.home()?.join(source);
                // With all its names: until then no quota of the KestrelFS volume can be set.
                self.verb(&["clone", "--eager"], &source, &[&dir.to_string_lossy()])?;
            }
        }
        // Containers run as any user.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        if record.source.is_empty() {
            fs::set_permissions(&dir, open).map_err(|why| internal(&record.id, why))?;
        }
        self.resize(&dir, record)
    }

    /// Gives a directory the quota that its record says, and then the record.
    pub fn resize(&self, dir: &Path, record: &VolumeRecord) -> Result<(), Status> {
        if record.size > 0 {
            self.verb(&["quota", "set"], dir, &["--size", &record.size.to_string()])?;
        }
        write_record(dir, record).map_err(|why| internal(&record.id, why))
    }

    /// Removes a directory with all that is in it.
    pub fn remove(&self, dir: &Path) -> Result<(), Status> {
        self.verb(&["rm", "-r", "-f"], dir, &[]).map(drop)
    }

    /// Snapshots of a volume.
    pub fn snapshots_of(&self, dir: &Path, record: &VolumeRecord) -> Result<Vec<Snapshot>, Status> {
        let text = self.verb(&["snapshot", "list", "--json"], dir, &[])?;
        let list: Value = serde_json::from_str(&text).map_err(|why| internal("snapshot", why))?;
        let own = format!("/{}/{}", self.0.config.dir, record.id);
        let snapshots = list["snapshots"].as_array().into_iter().flatten();
        let of_it = snapshots.filter(|one| one["path"] == own.as_str() && one["removing"] != true);
        let mut found: Vec<Snapshot> = of_it
            .filter_map(|one| {
                let created = Duration::from_nanos(one["created_ns"].as_u64()?);
                Some(Snapshot {
                    volume: record.id.clone(),
                    name: one["name"].as_str()?.to_string(),
                    created: SystemTime::UNIX_EPOCH + created,
                    size: record.size,
                })
            })
            .collect();
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Runs a verb about a directory.
    pub fn verb(&self, verb: &[&str], dir: &Path, more: &[&str]) -> Result<String, Status> {
        let words = verb.iter().map(AsRef::as_ref).chain([dir.as_os_str()]);
        let words: Vec<&std::ffi::OsStr> = words.chain(more.iter().map(AsRef::as_ref)).collect();
        kestrel(&words, self.0.config.token_file.as_deref()).map_err(|why| {
            match why.contains("a clone is not finished") {
                // Another volume is being cloned.
                true => Status::aborted(why),
                false => Status::internal(why),
            }
        })
    }
}

fn read_record(dir: &Path) -> io::Result<Option<VolumeRecord>> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let mut text = vec![0u8; RECORD_BYTES_MAX];
    // SAFETY: two texts that end with a zero byte, and memory of the length that is told.
    let length = unsafe {
        libc::lgetxattr(path.as_ptr(), RECORD.as_ptr(), text.as_mut_ptr().cast(), text.len())
    };
    let Ok(length) = usize::try_from(length) else {
        let why = io::Error::last_os_error();
        return match why.raw_os_error() {
            Some(libc::ENODATA | libc::ENOENT) => Ok(None),
            _ => Err(why),
        };
    };
    let Ok(value) = serde_json::from_slice::<Value>(&text[..length]) else { return Ok(None) };
    let (Some(id), Some(size), Some(source)) =
        (value["id"].as_str(), value["size"].as_u64(), value["source"].as_str())
    else {
        return Ok(None);
    };
    Ok(Some(VolumeRecord { id: id.into(), size, source: source.into() }))
}

fn write_record(dir: &Path, record: &VolumeRecord) -> io::Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let VolumeRecord { id, size, source } = record;
    let text = json!({ "id": id, "size": size, "source": source }).to_string();
    // SAFETY: two texts that end with a zero byte, and memory of the length that is told.
    let done = unsafe {
        libc::lsetxattr(path.as_ptr(), RECORD.as_ptr(), text.as_ptr().cast(), text.len(), 0)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids are names of one directory each, whatever the name of the volume is.
    #[test]
    fn ids_of_names() {
        assert_eq!(id_of("pvc-1_2.3").unwrap(), "pvc-1_2.3");
        assert_eq!(id_of("../a b@c%").unwrap(), "%2e.%2fa%20b%40c%25");
        assert!(id_of(&"/".repeat(86)).is_err());
        for id in ["pvc-1_2.3", "%2e.%2fa%20b%40c%25"] {
            assert!(is_id(id), "{id}");
        }
        for id in ["", ".", "..", "a/b", "a@b", ".snap", "a b", "ä"] {
            assert!(!is_id(id), "{id}");
        }
        assert_eq!(snapshot_parts("a@b"), Some(("a", "b")));
        for id in ["a", "a@", "@b", "a@b@c", "../a@b"] {
            assert_eq!(snapshot_parts(id), None, "{id}");
        }
    }
}
