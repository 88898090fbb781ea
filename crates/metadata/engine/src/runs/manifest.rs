//! A second copy of the manifest of the sorted runs: the two small files that say which tables
//! belong to the runs.
//!
//! The tree below does not verify them, and removes tables that they do not name: one flipped bit
//! could remove every row. So they are verified before the tree reads them (`current` has a
//! checksum of the other one, `vN`), and file `manifest.copy` holds both. A copy is written before
//! a flush moves the checkpoint, so a copy that is older than the manifest lacks only rows that are
//! still in the log.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::EngineError;
use crate::disk::io_error;
use crate::small_record::ADVICE;

/// File of the tree that names the newest version.
const CURRENT: &str = "current";
/// The copy of both.
const COPY: &str = "manifest.copy";
const MAGIC: [u8; 8] = *b"KSTRMAN\n";
const VERSION: u32 = 1;
/// Bytes before the content of a copy: magic, version, checksum.
const HEADER: usize = 16;
/// Bytes of `current`: number and checksum of the version, little-endian, and the kind of checksum.
const CURRENT_BYTES: usize = 25;
/// Longest manifest that is read, bytes: room for a million tables.
const BYTES_MAX: u64 = 64 << 20;

/// How often the manifest is read again, and the pause before, if its files do not fit each other.
const READS_MAX: u32 = 5;
const READ_PAUSE: Duration = Duration::from_millis(2);

/// Both files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    current: [u8; CURRENT_BYTES],
    version: Vec<u8>,
}

impl Manifest {
    fn number(&self) -> u64 {
        number_of(&self.current)
    }

    /// What the tree's files say, if they are intact; none if they are not, or not there.
    fn read(dir: &Path) -> io::Result<Option<Self>> {
        let Some(current) = content(&dir.join(CURRENT))? else { return Ok(None) };
        let Ok(current) = <[u8; CURRENT_BYTES]>::try_from(&*current) else { return Ok(None) };
        let Some(version) = content(&version_path(dir, number_of(&current)))? else {
            return Ok(None);
        };
        let manifest = Self { current, version };
        Ok(manifest.is_intact().then_some(manifest))
    }

    fn is_intact(&self) -> bool {
        let sum = xxhash_rust::xxh3::xxh3_128(&self.version);
        self.current[8..24] == sum.to_le_bytes() && self.current[24] == 0
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + CURRENT_BYTES + self.version.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.current);
        bytes.extend_from_slice(&self.version);
        let crc = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, content) = bytes.split_at_checked(HEADER)?;
        let mut zeroed = bytes.to_vec();
        zeroed[12..16].fill(0);
        if header[..8] != MAGIC
            || header[8..12] != VERSION.to_be_bytes()
            || header[12..16] != crc32c::crc32c(&zeroed).to_be_bytes()
        {
            return None;
        }
        let (current, version) = content.split_at_checked(CURRENT_BYTES)?;
        let manifest = Self { current: current.try_into().ok()?, version: version.to_vec() };
        manifest.is_intact().then_some(manifest)
    }

    /// The copy, if there is one that is intact.
    fn read_copy(dir: &Path) -> io::Result<Option<Self>> {
        Ok(content(&dir.join(COPY))?.and_then(|bytes| Self::decode(&bytes)))
    }
}

fn number_of(current: &[u8; CURRENT_BYTES]) -> u64 {
    current[..8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn version_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("v{number}"))
}

/// The content of a small file; none if it is missing or too large to be one.
fn content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Ok(found) if found.len() > BYTES_MAX => Ok(None),
        Ok(_) => fs::read(path).map(Some),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

/// Replaces a file in one step, durably.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

fn failed(what: &str, dir: &Path, why: &io::Error) -> EngineError {
    io_error(&format!("{what} the manifest of the sorted runs in {}", dir.display()), why)
}

/// Makes sure, before the tree is opened, that its manifest is intact: mends it from the copy if it
/// is not.
pub(super) fn repair(dir: &Path) -> Result<(), EngineError> {
    let fail = |why: io::Error| failed("reading", dir, &why);
    if !dir.join(CURRENT).try_exists().map_err(fail)?
        && !dir.join(COPY).try_exists().map_err(fail)?
    {
        // New runs, or those of a first open that did not get far.
        return Ok(());
    }
    if Manifest::read(dir).map_err(fail)?.is_some() {
        return Ok(());
    }
    let Some(copy) = Manifest::read_copy(dir).map_err(fail)? else {
        return Err(EngineError::Corrupt(format!(
            "sorted runs {}: the files `{CURRENT}` and `vN` are damaged, and so is their copy; \
             {ADVICE}",
            dir.display()
        )));
    };
    let restore = || -> io::Result<()> {
        replace(&version_path(dir, copy.number()), &copy.version)?;
        replace(&dir.join(CURRENT), &copy.current)
    };
    restore().map_err(|why| failed("mending", dir, &why))?;
    log::warn!(
        "sorted runs {}: the manifest was damaged and has been mended from its copy",
        dir.display()
    );
    Ok(())
}

/// Brings the copy up to date; durable when it returns. One thread at a time.
pub(super) fn keep_copy(dir: &Path) -> Result<(), EngineError> {
    let keep = || -> io::Result<()> {
        let mut manifest = Manifest::read(dir)?;
        for _ in 0..READS_MAX {
            if manifest.is_some() {
                break;
            }
            // A merge may have replaced one file and not yet the other.
            std::thread::sleep(READ_PAUSE);
            manifest = Manifest::read(dir)?;
        }
        let Some(manifest) = manifest else { return Ok(()) };
        if Manifest::read_copy(dir)?.as_ref() != Some(&manifest) {
            replace(&dir.join(COPY), &manifest.encode())?;
        }
        Ok(())
    };
    keep().map_err(|why| failed("copying", dir, &why))
}

/// The version file that counts, of the copy if the tree's own is damaged; none if both are.
pub(super) fn intact_version(dir: &Path) -> Option<Vec<u8>> {
    let own = Manifest::read(dir).ok().flatten();
    own.or_else(|| Manifest::read_copy(dir).ok().flatten()).map(|manifest| manifest.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs_with_manifest() -> (tempfile::TempDir, Manifest) {
        let dir = tempfile::tempdir().unwrap();
        let version = b"a version of the tree".to_vec();
        let mut current = [0; CURRENT_BYTES];
        current[0] = 7;
        current[8..24].copy_from_slice(&xxhash_rust::xxh3::xxh3_128(&version).to_le_bytes());
        fs::write(dir.path().join("v7"), &version).unwrap();
        fs::write(dir.path().join(CURRENT), current).unwrap();
        (dir, Manifest { current, version })
    }

    /// Any flipped bit in either file is noticed and mended from the copy; without an intact copy
    /// it is refused.
    #[test]
    fn flipped_bits_of_a_manifest() {
        let (dir, manifest) = runs_with_manifest();
        keep_copy(dir.path()).unwrap();
        for name in [CURRENT, "v7"] {
            let path = dir.path().join(name);
            let good = fs::read(&path).unwrap();
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                fs::write(&path, &bad).unwrap();
                repair(dir.path()).unwrap();
                assert_eq!(
                    Manifest::read(dir.path()).unwrap().as_ref(),
                    Some(&manifest),
                    "{name}, bit {bit}"
                );
            }
        }
        let copy = dir.path().join(COPY);
        let mut bad = fs::read(&copy).unwrap();
        bad[20] ^= 1;
        fs::write(&copy, &bad).unwrap();
        repair(dir.path()).unwrap();
        fs::write(dir.path().join("v7"), b"something else").unwrap();
        assert!(matches!(repair(dir.path()), Err(EngineError::Corrupt(_))));
    }
}
