//! Which of what lies in a directory a volume has made there: `format --force` removes that, and
//! nothing else.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kestrel_blockstore::store::key;
use kestrel_engine::embedded::is_own_file;

use super::META_DIR;
use super::lock::LOCK_FILE;
use crate::control::SOCKET_NAME;
use crate::descriptor::{Descriptor, FILE_NAME};
use crate::error::VolumeError;
use crate::storage::OBJECTS_DIR;

/// Checks that a volume in a directory that is not empty can be replaced: it is one, or what is
/// left of one that was not made or not removed to its end, and all that is going to be removed is
/// its own.
///
/// # Errors
/// Names what is not a volume's.
pub(super) fn check_replaceable(dir: &Path) -> Result<(), VolumeError> {
    // A file that only has the descriptor's name is none.
    if Descriptor::read(dir).is_err() {
        check_rest(dir)?;
    }
    check_all(dir, META_DIR, &is_own_file)?;
    check_all(dir, OBJECTS_DIR, &is_object)
}

/// Of a volume without its descriptor, which is written last and removed first, or with a damaged
/// one nothing else is there. A process takes the directory's lock before it makes anything else
/// there.
fn check_rest(dir: &Path) -> Result<(), VolumeError> {
    let mine = [LOCK_FILE, META_DIR, OBJECTS_DIR, "lost+found"];
    // Also what mounts and servers of it leave, and what is put aside of that.
    let left = [FILE_NAME, SOCKET_NAME, "mount.log", "serve.log", "audit.log"];
    let names = names_in(dir)?;
    let is_own = |name: &str| mine.contains(&name) || left.iter().any(|own| name.starts_with(own));
    let other = names.iter().find(|name| !is_own(name));
    match other {
        Some(name) => Err(VolumeError::NotAVolumes(dir.join(name))),
        None if !names.iter().any(|name| name == LOCK_FILE) => {
            Err(VolumeError::NotAVolume(dir.into()))
        }
        None => Ok(()),
    }
}

/// Checks everything below `dir/top`, which need not be there; `is_own` says of a path below that,
/// and of whether it is a directory, whether a volume makes it.
fn check_all(
    dir: &Path,
    top: &str,
    is_own: &dyn Fn(&Path, bool) -> bool,
) -> Result<(), VolumeError> {
    let top = dir.join(top);
    match fs::symlink_metadata(&top) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(meta) if meta.is_dir() => {}
        _ => return Err(VolumeError::NotAVolumes(top)),
    }
    let mut dirs = vec![PathBuf::new()];
    while let Some(below) = dirs.pop() {
        for name in names_in(&top.join(&below))? {
            let path = below.join(name);
            // What is a link, or has gone, is none of its own.
            let kind = fs::symlink_metadata(top.join(&path)).map(|meta| meta.file_type());
            let is_dir = kind.as_ref().is_ok_and(fs::FileType::is_dir);
            let is_plain = is_dir || kind.as_ref().is_ok_and(fs::FileType::is_file);
            if !is_plain || !is_own(&path, is_dir) {
                return Err(VolumeError::NotAVolumes(top.join(path)));
            }
            if is_dir {
                dirs.push(path);
            }
        }
    }
    Ok(())
}

/// Names in a directory. One that is no text is no volume's, and is shown as well as it can be.
fn names_in(dir: &Path) -> Result<Vec<String>, VolumeError> {
    let failed = |error: std::io::Error| VolumeError::io("list", dir, error);
    let entries = fs::read_dir(dir).map_err(failed)?;
    entries
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()
        .map_err(failed)
}

/// Whether a path below that of a volume's objects is an object's, or a directory of some, or of a
/// dump's.
fn is_object(path: &Path, is_dir: bool) -> bool {
    let path = path.strip_prefix(key::DUMPS).unwrap_or(path);
    let Some(text) = path.to_str() else { return false };
    match (is_dir, text.split_once('/')) {
        (true, None) => text.is_empty() || key::parse_prefix(text).is_some(),
        (false, None) => text == key::MARKER,
        (false, Some(_)) => key::parse(&format!("{}/{text}", key::ROOT)).is_some(),
        (true, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;
    use crate::descriptor::Durability;
    use crate::storage::StoreOptions;
    use crate::volume::{NewVolume, Resources, Volume, format};

    fn again(dir: &Path) -> Result<(), VolumeError> {
        let new = NewVolume { force: true, ..NewVolume::plain("vol", Durability::Fsync) };
        format(&dir.to_string_lossy(), new, &StoreOptions::default()).map(drop)
    }

    fn is_there(path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok()
    }

    fn put(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "precious").unwrap();
    }

    /// Whatever the engine makes while a volume is in use and left as it was, it is the volume's.
    #[test]
    fn used_volumes_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        again(dir.path()).unwrap();
        for _ in 0..3 {
            let url = dir.path().to_string_lossy();
            drop(Volume::open(&url, "a test", &Resources::default()).unwrap());
            check_replaceable(dir.path()).unwrap();
        }
        let log = dir.path().join(META_DIR).join("log");
        for name in ["free-0000000000000007", "0000000000000009.log", "next.tmp", "epoch.tmp"] {
            put(&log.join(name));
        }
        again(dir.path()).unwrap();
    }

    /// A directory that never was a volume stays as it is, whatever its names are.
    #[test]
    fn strangers_directories_stay() {
        for name in [
            "meta/notes",
            "objects/56/0000000000000001",
            "notes",
            "meta/log/0000000000000001.log",
            FILE_NAME,
        ] {
            let dir = tempfile::tempdir().unwrap();
            put(&dir.path().join(name));
            let why = again(dir.path()).unwrap_err().to_string();
            assert!(why.contains(&dir.path().display().to_string()), "{name}: {why}");
            assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), "precious", "{name}");
            assert!(!is_there(&dir.path().join(LOCK_FILE)), "{name}");
        }
    }

    /// A volume is replaced; one that somebody has put something into is not, and stays whole.
    #[test]
    fn strangers_files_in_a_volume_stay() {
        let dir = tempfile::tempdir().unwrap();
        again(dir.path()).unwrap();
        put(&dir.path().join("objects/56/0000000000000001"));
        put(&dir.path().join("notes"));
        again(dir.path()).unwrap();
        assert!(is_there(&dir.path().join("notes")) && !is_there(&dir.path().join("objects/56")));
        for name in [
            "meta/notes",
            "meta/log/notes",
            "objects/notes",
            "objects/56/notes",
            "objects/db/0000000000000001",
        ] {
            let stranger = dir.path().join(name);
            put(&stranger);
            let why = again(dir.path()).unwrap_err().to_string();
            assert!(why.contains(name), "{name}: {why}");
            assert!(is_there(&stranger) && is_there(&dir.path().join(FILE_NAME)), "{name}");
            fs::remove_file(&stranger).unwrap();
        }
        let elsewhere = tempfile::tempdir().unwrap();
        fs::remove_dir_all(dir.path().join(OBJECTS_DIR)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join(OBJECTS_DIR)).unwrap();
        assert!(again(dir.path()).is_err());
    }

    /// What is left of a volume after its making or removal was interrupted is replaced.
    #[test]
    fn remains_of_a_volume_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        again(dir.path()).unwrap();
        fs::remove_file(dir.path().join(FILE_NAME)).unwrap();
        again(dir.path()).unwrap();
        fs::remove_file(dir.path().join(FILE_NAME)).unwrap();
        fs::remove_dir_all(dir.path().join(META_DIR)).unwrap();
        again(dir.path()).unwrap();
        fs::write(dir.path().join(FILE_NAME), "no descriptor").unwrap();
        fs::write(dir.path().join("serve.log.1"), "").unwrap();
        again(dir.path()).unwrap();
        // Without an intact descriptor there is no telling which volume the rest belongs to.
        fs::write(dir.path().join(FILE_NAME), "no descriptor").unwrap();
        fs::remove_file(dir.path().join(crate::descriptor::COPY_NAME)).unwrap();
        put(&dir.path().join("notes"));
        assert!(again(dir.path()).is_err());
    }
}
