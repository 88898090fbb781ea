//! The whole copies of a cache directory: their names ([`crate::whole`]).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Disk, c_string, found, scan};
use crate::sys;
use crate::whole::{DIR, label};

/// How often to look whether a sweep has made room.
const ROOM_POLL: Duration = Duration::from_millis(50);

impl Disk {
    fn whole_name(&self, name: &str) -> std::ffi::CString {
        c_string(format!("{}/{DIR}/{name}", self.volume))
    }

    /// A new file without a name, where whole copies are.
    pub fn create_whole(&self) -> io::Result<File> {
        let (root, dir) = (self.root(), c_string(format!("{}/{DIR}", self.volume)));
        for _ in 0..super::CREATE_TRIES {
            match sys::create_unnamed_at(root.as_fd(), &dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    for dir in [c_string(self.volume.clone()), dir.clone()] {
                        match sys::mkdir_at(root.as_fd(), &dir) {
                            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                            other => other?,
                        }
                    }
                }
                other => return other,
            }
        }
        sys::create_unnamed_at(root.as_fd(), &dir)
    }

    /// Waits up to `patience` until there is room for `bytes`; whether there is. Makes it, unless
    /// it is more than there ever is.
    pub fn make_room(&self, bytes: u64, patience: Duration) -> io::Result<bool> {
        let until = Instant::now() + patience;
        loop {
            if self.has_room(bytes)? {
                return Ok(true);
            }
            if bytes > self.bytes_max || Instant::now() >= until {
                return Ok(false);
            }
            self.wanted.fetch_max(bytes, Ordering::Relaxed);
            self.request_scan();
            std::thread::sleep(ROOM_POLL);
        }
    }

    /// Names a file that has none, in place of one that has the name.
    pub fn publish_whole(&self, file: &File, name: &str) -> io::Result<()> {
        let (root, path) = (self.root(), self.whole_name(name));
        match sys::link_at(file, root.as_fd(), &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.remove_whole(name)?;
                sys::link_at(file, root.as_fd(), &path)
            }
            other => other,
        }
    }

    /// Opens a whole copy for reading and writing.
    pub fn open_whole(&self, name: &str) -> io::Result<Option<File>> {
        found(sys::open_rw_at(self.root().as_fd(), &self.whole_name(name)))
    }

    /// The same if that needs no waiting. None: there is none, or it does.
    pub fn open_whole_cached(&self, name: &str) -> Option<File> {
        sys::open_rw_at_cached(self.root().as_fd(), &self.whole_name(name)).ok()
    }

    /// Takes a whole copy's name; bytes of disk that come back when no process has it open any
    /// more.
    pub fn remove_whole(&self, name: &str) -> io::Result<u64> {
        let (root, path) = (self.root(), self.whole_name(name));
        let Some(file) = found(sys::open_at(root.as_fd(), &path))? else { return Ok(0) };
        let bytes = scan::disk_bytes(&file.metadata()?);
        match sys::unlink_at(root.as_fd(), &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            other => other?,
        }
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(used.saturating_sub(bytes))
            })
            .ok();
        Ok(bytes)
    }

    /// Names of the volume's whole copies.
    pub fn whole_names(&self) -> Vec<String> {
        let names = scan::names(&self.path.join(&self.volume).join(DIR)).unwrap_or_default();
        names.into_iter().filter(|name| label::parse(name).is_some()).collect()
    }
}
