//! Whole copies: files of the volume as files of the cache disk, byte for byte, for the kernel to
//! read by itself.
//!
//! | file | |
//! | --- | --- |
//! | `label` | the label of a whole copy: its identity and checksum, an extended attribute |
//! | `writer` | [`WholeWriter`]: a file without a name, until the copy is complete |
//!
//! **Contract.** A copy is of one content of one inode ([`WholeId`]) and never of another: it is
//! written without a name (`O_TMPFILE`), labelled with a checksum of its bytes and of what they
//! are, and named when it is complete. So a crash at any point leaves no copy or a good one; power
//! loss, a bad disk or a file copied from elsewhere may leave a bad one, which
//! [`WholeCopies::check`] finds and removes before this process uses it for the first time.
//!
//! A copy in use belongs to one process ([`WholeCopy`] holds a lock): what uses it may change its
//! bytes in step with the file (pass-through readers and a writer), after [`WholeCopy::take_away`]
//! has taken its name, so that no process finds it again. Eviction takes names, never bytes: a
//! process that has a copy open keeps it whole.
//!
//! Format: `docs/format/cache.md`.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use kestrel_blockstore::object::VolumeId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::core::Core;
use crate::disk::{Disk, Side};
use crate::faults::DiskOp;
use crate::sys;

pub(crate) mod label;
mod writer;

pub use label::WholeId;
pub use writer::WholeWriter;

/// Bytes read or written at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Directory of the whole copies of a volume, within the volume's.
pub(crate) const DIR: &str = "whole";

/// Copies that are remembered as good; beyond that they are checked again.
const CHECKED_MAX: usize = 4096;

/// How long a copy waits for room to be made.
const ROOM_DEADLINE: std::time::Duration = std::time::Duration::from_secs(5);

/// Which file on the disk was checked: a number may be given again, but not at the same instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    dev: u64,
    ino: u64,
    created: Option<std::time::SystemTime>,
}

impl FileStamp {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { dev: found.dev(), ino: found.ino(), created: found.created().ok() })
    }
}

/// The whole copies of a volume in the cache directories of a mount. Clones are cheap.
#[derive(Clone)]
pub struct WholeCopies {
    core: Arc<Core>,
    /// Copies that were checked, and which files they are.
    checked: Arc<Mutex<FxHashMap<WholeId, FileStamp>>>,
}

/// A good copy in use by this process, and by no other.
pub struct WholeCopy {
    id: WholeId,
    /// Open for reading and writing, and locked.
    file: File,
    disk: Arc<Disk>,
}

impl WholeCopies {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), checked: Arc::default() }
    }

    pub(crate) fn volume(&self) -> VolumeId {
        self.core.volume
    }

    /// Whether the cache directories can hold whole copies: a file without a name in each.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn probe(&self) -> Result<Vec<File>, String> {
        let tried = |disk: &Arc<Disk>| -> io::Result<File> {
            let file = disk.create_whole()?;
            sys::set_attribute(&file, label::NAME, &[0; label::LABEL_BYTES])?;
            Ok(file)
        };
        self.core.disks.iter().map(tried).collect::<io::Result<_>>().map_err(|error| {
            format!(
                "a cache directory cannot hold whole copies: {error}; its file system must offer \
                 O_TMPFILE and extended \
                 attributes (ext4, xfs and btrfs do)"
            )
        })
    }

    /// Largest file of which a copy is made without a request, bytes: a quarter of the directory.
    pub fn bytes_max(&self) -> u64 {
        self.core.options.bytes / 4
    }

    fn disk(&self, ino: u64) -> io::Result<&Arc<Disk>> {
        self.core.disk_for(ino).ok_or_else(|| io::Error::other("no cache directory is in service"))
    }

    /// Starts a copy; waits while room is being made for it. Copies of other contents of the same
    /// file are removed.
    ///
    /// # Errors
    /// Those of the disk; `StorageFull` if there is no room for all of it.
    pub fn create(&self, id: WholeId) -> io::Result<WholeWriter> {
        let disk = self.disk(id.ino)?;
        if !disk.is_in_service(Side::Write) {
            return Err(io::Error::other("the cache directory is out of service for writes"));
        }
        if !disk.make_room(id.size, ROOM_DEADLINE)? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.before(DiskOp::Write)?;
        for name in disk.whole_names() {
            if label::parse(&name) == Some(id.ino) {
                disk.remove_whole(&name)?;
            }
        }
        let file = disk.create_whole()?;
        Ok(WholeWriter::new(self, id, disk, file))
    }

    /// Whether there is a copy, checked or not.
    pub fn is_there(&self, id: &WholeId) -> bool {
        let found = self.disk(id.ino).and_then(|disk| disk.open_whole(&id.name()));
        matches!(found, Ok(Some(file)) if file.metadata().is_ok_and(|found| found.len() == id.size))
    }

    /// The copy, if there is one that this process has checked and no other one uses. Never waits:
    /// one that could only be opened by waiting for the disk is none.
    pub fn find(&self, id: &WholeId) -> Option<WholeCopy> {
        let stamp = *self.checked.lock().get(id)?;
        let disk = self.core.disk_for(id.ino)?;
        disk.before(DiskOp::ReadCached).ok()?;
        let file = disk.open_whole_cached(&id.name())?;
        if FileStamp::of(&file).ok() != Some(stamp) {
            self.checked.lock().remove(id);
            return None;
        }
        file.try_lock().ok()?;
        let copy = WholeCopy { id: *id, file, disk: Arc::clone(disk) };
        copy.touch(self.core.now());
        Some(copy)
    }

    fn open(&self, id: &WholeId) -> io::Result<Option<WholeCopy>> {
        let disk = self.disk(id.ino)?;
        disk.before(DiskOp::Read)?;
        let Some(file) = disk.open_whole(&id.name())? else { return Ok(None) };
        Ok(Some(WholeCopy { id: *id, file, disk: Arc::clone(disk) }))
    }

    /// Reads a copy that this process has not checked yet, and checks it; false: there is none, or
    /// it was bad and is gone. Takes as long as reading it takes; `go_on` is called between pieces.
    ///
    /// # Errors
    /// Those of the disk; `Interrupted` if it was not to go on.
    pub fn check(&self, id: &WholeId, go_on: &dyn Fn() -> bool) -> io::Result<bool> {
        let Some(mut copy) = self.open(id)? else { return Ok(false) };
        let stamp = FileStamp::of(&copy.file)?;
        if self.checked.lock().get(id) == Some(&stamp) {
            return Ok(true);
        }
        // No process changes it meanwhile; a process that changes it has taken its name.
        if copy.file.try_lock_shared().is_err() {
            return Ok(false);
        }
        if !verify(&mut copy, &self.core.volume, go_on)? {
            self.core.stats.corrupt.add(1);
            log::warn!(
                "inode {}: its whole copy in the cache is damaged or of something else: removed",
                id.ino
            );
            copy.take_away()?;
            return Ok(false);
        }
        let mut checked = self.checked.lock();
        if checked.len() >= CHECKED_MAX {
            checked.clear();
        }
        checked.insert(*id, stamp);
        Ok(true)
    }

    /// Removes all copies of a file; bytes of disk freed once no process uses them.
    pub fn evict(&self, ino: u64) -> u64 {
        let Ok(disk) = self.disk(ino) else { return 0 };
        let of_file = disk.whole_names().into_iter().filter(|name| label::parse(name) == Some(ino));
        of_file.map(|name| disk.remove_whole(&name).unwrap_or(0)).sum()
    }
}

/// Reads all of a copy: whether it is what its label has.
fn verify(copy: &mut WholeCopy, volume: &VolumeId, go_on: &dyn Fn() -> bool) -> io::Result<bool> {
    let id = copy.id;
    if copy.file.metadata()?.len() != id.size {
        return Ok(false);
    }
    let (mut check, mut len) = (0, 0);
    let mut piece = Vec::with_capacity(PIECE_BYTES as usize);
    copy.file.rewind()?;
    while len < id.size {
        if !go_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        copy.disk.before(DiskOp::Read)?;
        piece.clear();
        (&copy.file).take(PIECE_BYTES).read_to_end(&mut piece)?;
        if piece.is_empty() {
            return Ok(false);
        }
        check = crc32c::crc32c_append(check, &piece);
        len += piece.len() as u64;
    }
    let found = sys::attribute::<{ label::LABEL_BYTES }>(&copy.file, label::NAME)?;
    Ok(len == id.size && found == Some(id.label(volume, check)))
}

impl WholeCopy {
    /// Of what it is a copy, or was before it was changed.
    pub fn id(&self) -> WholeId {
        self.id
    }

    /// The file, open for reading and writing. Only this one must be used: others would count as
    /// users.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Notes that it was used, for eviction only; what is lost here costs it its rank.
    fn touch(&self, now: kestrel_types::clock::Nanos) {
        let Ok(file) = self.file.try_clone() else { return };
        let at = std::time::UNIX_EPOCH
            + std::time::Duration::from_nanos(u64::try_from(now).unwrap_or(0));
        let _ = self.disk.writes.submit(Box::new(move || drop(file.set_modified(at))));
    }

    /// Takes its name, before its first change: no process finds it again, and its room comes back
    /// when none has it open.
    ///
    /// # Errors
    /// Those of the disk. It must not be changed then.
    pub fn take_away(&self) -> io::Result<()> {
        let name = self.id.name();
        let is_there = self.disk.open_whole(&name)?;
        let is_same = is_there
            .is_some_and(|there| FileStamp::of(&there).ok() == FileStamp::of(&self.file).ok());
        if is_same { self.disk.remove_whole(&name).map(drop) } else { Ok(()) }
    }

    /// Whether a process beside this one has the file open or mapped.
    ///
    /// # Errors
    /// If the file system has no leases.
    pub fn is_in_use(&self) -> io::Result<bool> {
        sys::is_open_elsewhere(&self.file)
    }

    /// Writes bytes of the file.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.before(DiskOp::Write)?;
        self.file.write_all_at(bytes, offset)
    }

    /// Makes a part of the file zeros; its size stays.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn zero(&self, part: std::ops::Range<u64>) -> io::Result<()> {
        if part.is_empty() { Ok(()) } else { sys::punch(&self.file, part) }
    }
}

impl Drop for WholeCopy {
    fn drop(&mut self) {
        // The kernel may keep the open file for a while; the lock is not to stay with it.
        let _ = self.file.unlock();
    }
}
