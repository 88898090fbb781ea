//! A directory of the operating system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, DiskFile};

/// Zeros written at a time.
const ZEROS: usize = 1 << 20;

/// The directory.
pub(crate) struct RealDisk(PathBuf);

impl RealDisk {
    /// Uses `dir`, which is made if it does not exist.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self(dir.to_path_buf()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Bytes that can still be allocated on the file system of `dir`.
pub(crate) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let file = File::open(dir)?;
    // SAFETY: all-zero bytes are a valid `statvfs`; the call fills it in.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` outlives the call.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.0)?
            .map(|file| Ok(file?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(self.path(name))?))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path(name);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let fill = || -> io::Result<()> {
            let signed =
                i64::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            // Fails early, and for all of it, where the file system can tell.
            // SAFETY: takes no pointers; the descriptor is open.
            match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, signed) } {
                0 | libc::EOPNOTSUPP | libc::EINVAL => {}
                code => return Err(io::Error::from_raw_os_error(code)),
            }
            // Allocated blocks are marked unwritten: only writing them spares later syncs the
            // change of metadata.
            let zeros = vec![0; ZEROS];
            let mut at = 0;
            while at < len {
                let piece = usize::try_from(len - at).unwrap_or(ZEROS).min(ZEROS);
                file.write_all_at(&zeros[..piece], at)?;
                at += piece as u64;
            }
            file.sync_all()
        };
        match fill() {
            Ok(()) => Ok(Arc::new(file)),
            Err(why) => {
                // The first error is the one that matters.
                let _ = fs::remove_file(&path);
                Err(why)
            }
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        free_bytes(&self.0)
    }

    fn describe(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
