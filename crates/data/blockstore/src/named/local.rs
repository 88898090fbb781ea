//! Named objects as files of a directory, which several processes of one machine share.
//!
//! A new file is written beside its place, synced, and linked there: `link` fails where a name is
//! taken. What replaces a file is renamed over it, with the directory's lock held. The tag of a
//! file is the SHA-256 of its content.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use kestrel_types::hex::to_hex;

use super::{ETag, NamedObject, NamedStore};
use crate::error::{Error, Result};

/// Begins the names of files that are being written.
const UNFINISHED: &str = ".new-";

/// See the module's header.
#[derive(Debug)]
pub struct LocalNamed {
    dir: PathBuf,
    url: String,
}

fn failed(during: &'static str) -> impl Fn(io::Error) -> Error {
    move |why| Error::from_io(during, None, why)
}

fn tag_of(bytes: &[u8]) -> ETag {
    to_hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// How old a file that is being written must be to be one of a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Removes what a process that was killed has left unfinished.
fn remove_abandoned(entry: &fs::DirEntry) {
    let is_unfinished = entry.file_name().to_string_lossy().starts_with(UNFINISHED);
    let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
    if is_unfinished && age().is_some_and(|age| age >= ABANDONED) {
        // If it cannot be removed now, the next listing tries again.
        let _ = fs::remove_file(entry.path());
    }
}

/// Makes a file with a name that no other thread or process writes: another container may have a
/// process of the same number.
fn create_unfinished(dir: &Path) -> io::Result<(File, PathBuf)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{UNFINISHED}{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((made?, path)),
        }
    }
}

impl LocalNamed {
    /// The objects below a directory, which is made if it is missing.
    ///
    /// # Errors
    /// The system's.
    pub fn open(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).map_err(failed("making the directory of named objects"))?;
        let url = format!("file://{}", dir.display());
        Ok(Self { dir: dir.to_path_buf(), url })
    }

    /// Writes and syncs a file beside its place.
    fn write(&self, place: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
        let parent = place.parent().unwrap_or(&self.dir);
        if !parent.is_dir() {
            fs::create_dir_all(parent)?;
            for made in parent.ancestors().take_while(|made| made.starts_with(&self.dir)) {
                File::open(made)?.sync_all()?;
            }
        }
        let (mut file, path) = create_unfinished(parent)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(why) = written {
            // What cannot be removed is not listed.
            let _ = fs::remove_file(&path);
            return Err(why);
        }
        Ok(path)
    }

    fn sync_parent(&self, place: &Path) -> io::Result<()> {
        File::open(place.parent().unwrap_or(&self.dir))?.sync_all()
    }

    /// Holds the directory's lock until the file is dropped.
    fn lock(&self) -> io::Result<File> {
        let path = self.dir.join(".lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        // SAFETY: takes no pointers; the descriptor is open.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            let why = io::Error::last_os_error();
            if why.kind() != io::ErrorKind::Interrupted {
                return Err(why);
            }
        }
        Ok(file)
    }
}

fn age_of(file: &File) -> io::Result<Nanos> {
    let written = file.metadata()?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let written = Nanos::try_from(written.as_nanos()).unwrap_or(Nanos::MAX);
    Ok(SystemClock.now().saturating_sub(written).max(0))
}

/// `None` for what is not there.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

impl NamedStore for LocalNamed {
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        let place = self.dir.join(name);
        let made = || -> io::Result<bool> {
            let written = self.write(&place, &bytes)?;
            let linked = fs::hard_link(&written, &place);
            fs::remove_file(&written)?;
            match linked {
                Ok(()) => {
                    self.sync_parent(&place)?;
                    Ok(true)
                }
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {
                    Ok(found(fs::read(&place))?.is_some_and(|there| there == bytes))
                }
                Err(why) => Err(why),
            }
        };
        made().map_err(failed("making a named object"))
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>> {
        let place = self.dir.join(name);
        let replaced = || -> io::Result<Option<ETag>> {
            let written = self.write(&place, &bytes)?;
            let _lock = self.lock()?;
            let there = found(fs::read(&place))?.map(|there| tag_of(&there));
            if there.as_deref() != Some(tag) {
                fs::remove_file(&written)?;
                return Ok(there.filter(|there| *there == tag_of(&bytes)));
            }
            fs::rename(&written, &place)?;
            self.sync_parent(&place)?;
            Ok(Some(tag_of(&bytes)))
        };
        replaced().map_err(failed("replacing a named object"))
    }

    fn read(&self, name: &str) -> Result<Option<NamedObject>> {
        let read = || -> io::Result<Option<NamedObject>> {
            let Some(file) = found(File::open(self.dir.join(name)))? else { return Ok(None) };
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut &file, &mut bytes)?;
            let (tag, age) = (tag_of(&bytes), age_of(&file)?);
            Ok(Some(NamedObject { bytes: bytes.into(), tag, age }))
        };
        read().map_err(failed("reading a named object"))
    }

    fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        let read = || -> io::Result<Bytes> {
            let file = File::open(self.dir.join(name))?;
            let left = file.metadata()?.len().saturating_sub(offset);
            let mut bytes = vec![0; usize::try_from(len.min(left)).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(bytes.into())
        };
        read().map_err(failed("reading a named object"))
    }

    fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
        let mut all = Vec::new();
        let mut dirs = vec![below.trim_end_matches('/').to_string()];
        let mut listed = || -> io::Result<()> {
            while let Some(dir) = dirs.pop() {
                let Some(entries) = found(fs::read_dir(self.dir.join(&dir)))? else { continue };
                for entry in entries {
                    let entry = entry?;
                    let name = entry.file_name();
                    let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
                        remove_abandoned(&entry);
                        continue;
                    };
                    let name = if dir.is_empty() { name.into() } else { format!("{dir}/{name}") };
                    match found(entry.metadata())? {
                        Some(meta) if meta.is_dir() => dirs.push(name),
                        Some(meta) => all.push((name, meta.len())),
                        None => {}
                    }
                }
            }
            Ok(())
        };
        listed().map_err(failed("listing named objects"))?;
        all.sort_unstable();
        Ok(all)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let removed = found(fs::remove_file(self.dir.join(name))).map(drop);
        removed.map_err(failed("removing a named object"))
    }

    fn shown(&self) -> &str {
        &self.url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Several stores of one process in one directory do not write each other's files.
    #[test]
    fn stores_of_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let place = dir.path();
                scope.spawn(move || {
                    for number in 0..50 {
                        let store = LocalNamed::open(place).unwrap();
                        let name = format!("a/{thread}-{number}");
                        assert!(store.create(&name, name.clone().into_bytes().into()).unwrap());
                        let found = store.read(&name).unwrap().unwrap();
                        assert_eq!(found.bytes, name.as_bytes());
                    }
                });
            }
        });
        let all = LocalNamed::open(dir.path()).unwrap().list("a/").unwrap();
        assert_eq!(all.len(), 200);
    }

    /// What a killed process has left unfinished is not listed, and removed after an hour.
    #[test]
    fn abandoned_files() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalNamed::open(dir.path()).unwrap();
        assert!(store.create("a/b", bytes::Bytes::from_static(b"x")).unwrap());
        let [old, new] = [".new-1-0", ".new-1-1"].map(|name| dir.path().join("a").join(name));
        let long_ago = std::time::SystemTime::UNIX_EPOCH + ABANDONED;
        File::create(&old).unwrap().set_modified(long_ago).unwrap();
        File::create(&new).unwrap();
        assert_eq!(store.list("a/").unwrap().len(), 1);
        assert!(!old.exists() && new.exists());
    }
}
