//! `kestrel-cache.json`: marks a directory as a cache directory, with the format.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::page::PAGE_BYTES;
use crate::sys;

/// Its name.
pub(crate) const MARKER: &str = "kestrel-cache.json";

/// The format of cache directories that this code reads and writes.
const VERSION: u32 = 1;

/// Longest marker that is read, bytes.
const MARKER_BYTES_MAX: u64 = 4096;

#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct Marker {
    kestrel_cache: u32,
    page_bytes: u64,
}

/// Opens a cache directory, making an empty or missing one into one.
pub(crate) fn open(path: &Path) -> Result<File, String> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(format!("{error}; make its parent directory, or name another one"));
        }
        _ => {}
    }
    let root = sys::open_dir(path).map_err(|error| format!("{error}; name a directory"))?;
    let found = root.metadata().map_err(|error| error.to_string())?;
    if found.mode() & 0o002 != 0 {
        return Err("everybody may write to it, and so could feed you other bytes; chmod o-w it"
            .to_string());
    }
    match check(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(path)?;
            check(path)
        }
        other => other,
    }
    .map_err(|error| error.to_string())?;
    Ok(root)
}

/// Fails unless the directory is a cache directory of this format; `NotFound` if it is none at all.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let file = File::open(path.join(MARKER))?;
    // What the disk holds, not what the kernel remembers of it.
    sys::forget_cached(&file);
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, MARKER_BYTES_MAX), &mut text)?;
    match serde_json::from_str::<Marker>(&text) {
        Ok(Marker { kestrel_cache: VERSION, page_bytes: PAGE_BYTES }) => Ok(()),
        Ok(_) => Err(io::Error::other(format!(
            "{MARKER} is of another version of KestrelFS; empty the directory or name another one"
        ))),
        Err(_) => Err(io::Error::other(format!(
            "{MARKER} is damaged; empty the directory or name another one"
        ))),
    }
}

fn make(path: &Path) -> Result<(), String> {
    let entries = std::fs::read_dir(path).map_err(|error| error.to_string())?;
    for entry in entries {
        let name = entry.map_err(|error| error.to_string())?.file_name();
        // Another process may be making it a cache directory at this moment.
        let is_fine = name == "lost+found" || name.to_string_lossy().starts_with(MARKER);
        if !is_fine {
            return Err(format!(
                "it holds {} and no {MARKER}, so it is no cache directory; name an empty one",
                name.display()
            ));
        }
    }
    let text = serde_json::to_string(&Marker { kestrel_cache: VERSION, page_bytes: PAGE_BYTES })
        .map_err(|error| error.to_string())?;
    // Written beside and renamed: no process ever reads half of it.
    let beside = path.join(format!("{MARKER}.{}", std::process::id()));
    let write = || {
        let mut file = File::create(&beside)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        std::fs::rename(&beside, path.join(MARKER))
    };
    write().map_err(|error| format!("{error}; check its disk and its permissions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache takes only an empty directory or a cache directory.
    #[test]
    fn directories_that_a_cache_accepts() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        open(&cache).unwrap();
        open(&cache).unwrap();
        let mode = std::fs::metadata(&cache).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(open(&dir.path().join("no/such")).unwrap_err().contains("parent"));
        assert!(open(dir.path()).unwrap_err().contains("holds cache"));
        std::fs::write(cache.join(MARKER), "{\"kestrel_cache\":2,\"page_bytes\":1}").unwrap();
        assert!(open(&cache).unwrap_err().contains("another version"));
        std::fs::write(cache.join(MARKER), "{\"kestrel").unwrap();
        assert!(open(&cache).unwrap_err().contains("damaged"));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(open(&file).is_err());
    }
}
