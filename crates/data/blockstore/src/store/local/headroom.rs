//! Room that file data leaves to the metadata on the same disk: a disk that is full to the last
//! block could not even record that something was deleted.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::sys;

/// Most bytes admitted between two looks at the disk.
const LOOK_BYTES_MAX: u64 = 64 << 20;

/// Of the room there is, this part is admitted before the next look: others write to the disk as
/// well.
const LOOK_PART: u64 = 8;

/// Admits writes as long as the disk has more than the reserve.
pub struct Headroom {
    root: Arc<File>,
    reserve: u64,
    /// Bytes that may be written before the next look at the disk.
    left: AtomicI64,
}

impl Headroom {
    /// Leaves `reserve` bytes of the disk that holds `root`.
    pub fn new(root: Arc<File>, reserve: u64) -> Self {
        Self { root, reserve, left: AtomicI64::new(0) }
    }

    /// Admits a write of `bytes`.
    ///
    /// # Errors
    /// `ENOSPC` if it would eat into the reserve.
    pub fn check(&self, bytes: usize) -> io::Result<()> {
        if self.reserve == 0 {
            return Ok(());
        }
        let wanted = i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.left.fetch_sub(wanted, Ordering::Relaxed) >= wanted {
            return Ok(());
        }
        let (_, free) = sys::room(&self.root)?;
        let room = free.saturating_sub(self.reserve);
        if room < bytes as u64 {
            self.left.store(0, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let next = ((room - bytes as u64) / LOOK_PART).min(LOOK_BYTES_MAX);
        self.left.store(next as i64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_of_free_space() {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(File::open(dir.path()).unwrap());
        let (_, free) = sys::room(&root).unwrap();
        assert!(Headroom::new(root.clone(), 0).check(usize::MAX).is_ok());
        assert!(Headroom::new(root.clone(), free / 2).check(4096).is_ok());
        let full = Headroom::new(root, free.saturating_mul(2));
        assert_eq!(full.check(1).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
}
