//! Looking through a cache directory, and making room in it.
//!
//! One process at a time sweeps a directory (`flock` on `evict.lock`); what it decides by is in the
//! directory itself, so it does not matter which one it is. A file is cut to nothing before it is
//! unlinked: other processes may have it open, and the disk's room must come back all the same.
//! They find the page gone and look again.

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use kestrel_blockstore::store::key;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::crash;
use kestrel_types::ids::ObjectId;

use super::{Disk, marker};
use crate::evict::{self, CacheFile};
use crate::faults::DiskOp;
use crate::object::REUSED_BIT;
use crate::sys;
use crate::whole::{DIR, label};

/// A thread that sweeps holds a lock on this file.
const LOCK: &str = "evict.lock";

/// When the bound is reached, this share of it is freed, so that sweeps are few: one in so many.
const SLACK_SHARE: u64 = 32;

/// Empty files and directories that were not touched for so long are leftovers.
const EMPTY_AGE: Nanos = 600 * SECOND;

/// What a cache file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    /// Pages of an object.
    Pages(ObjectId),
    /// A whole copy, by name.
    Whole(String),
}

/// What was found in a directory: 40 bytes a file, so 100 MiB for 10 TiB of blocks, while a sweep
/// lasts.
#[derive(Default)]
struct ScannedFiles {
    files: Vec<CacheFile>,
    /// Of each file, what it is.
    contents: Vec<Content>,
    volumes: Vec<String>,
}

/// What a sweep did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanReport {
    /// Objects of this mount's volume that lost their files.
    pub removed: Vec<ObjectId>,
    /// Bytes of disk freed.
    pub bytes: u64,
}

impl Disk {
    /// Looks through the directory and makes room if there is too little. None: another process is
    /// at it.
    pub(crate) fn scan(&self) -> io::Result<Option<ScanReport>> {
        self.before(DiskOp::Evict)?;
        // If the disk was unmounted, this is another file system's directory now.
        marker::check(&self.path)?;
        let lock = sys::create_at(self.root().as_fd(), &super::c_string(LOCK.to_string()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
        }
        let written = self.written.load(Ordering::Relaxed);
        let now = self.clock.now();
        let found = scan_dirs(&self.path, now)?;
        let mut used: u64 = found.files.iter().map(|file| file.bytes).sum();
        let mut report = ScanReport::default();
        let wanted = self.wanted.swap(0, Ordering::Relaxed);
        for index in evict::plan(&found.files, self.needed(used, wanted)?, now) {
            self.before(DiskOp::Evict)?;
            let (file, content) = (found.files[index], &found.contents[index]);
            let volume = &found.volumes[file.volume];
            match content {
                Content::Pages(object) => cut(&self.path.join(name(volume, *object)))?,
                // A process may be reading it: its bytes stay until no process has it open.
                Content::Whole(whole) => {
                    gone_is_fine(std::fs::remove_file(
                        self.path.join(volume).join(DIR).join(whole),
                    ))?;
                }
            }
            let bytes = file.bytes;
            self.stats.evicted_bytes.add(bytes);
            (report.bytes, used) = (report.bytes + bytes, used - bytes);
            if let Content::Pages(object) = content
                && *volume == self.volume
            {
                report.removed.push(*object);
            }
        }
        // What was written meanwhile may have been found or not: counted twice until the next look
        // is better than not at all.
        let meanwhile = self.written.fetch_sub(written, Ordering::Relaxed) - written;
        self.used.store(used + meanwhile, Ordering::Relaxed);
        Ok(Some(report))
    }

    /// Bytes to free now that `used` are in use and `wanted` are to come.
    fn needed(&self, used: u64, wanted: u64) -> io::Result<u64> {
        let (size, free) = sys::room(&self.root())?;
        let reserve = (size as f64 * self.free_space_ratio) as u64 + wanted;
        let used = used + wanted;
        let over = if used > self.bytes_max {
            used - (self.bytes_max - self.bytes_max / SLACK_SHARE)
        } else {
            0
        };
        let short = if free < reserve { reserve - free + reserve / SLACK_SHARE } else { 0 };
        Ok(over.max(short))
    }

    /// Whether room is short or the last look through the directory is out of date.
    pub(super) fn is_scan_due(&self) -> io::Result<bool> {
        let written = self.written.load(Ordering::Relaxed);
        let (size, free) = sys::room(&self.root())?;
        let is_short = free < (size as f64 * self.free_space_ratio) as u64;
        // Room that others took is looked into only if there is something to give.
        Ok(written > self.scan_every()
            || self.used_bytes() > self.bytes_max
            || (is_short && self.used_bytes() > 0))
    }
}

/// Bytes of disk that a file takes.
pub(crate) fn disk_bytes(found: &Metadata) -> u64 {
    found.blocks() * 512
}

/// Removes a cache file and frees its room even if a process has it open; fine if it is gone.
pub(crate) fn cut(path: &Path) -> io::Result<()> {
    let cut = || {
        std::fs::OpenOptions::new().write(true).open(path)?.set_len(0)?;
        crash::point("cache.evict.cut");
        std::fs::remove_file(path)
    };
    gone_is_fine(cut())
}

fn gone_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// All cache files of a directory. Names that are none of ours are passed over.
fn scan_dirs(path: &Path, now: Nanos) -> io::Result<ScannedFiles> {
    let mut found = ScannedFiles::default();
    for volume in names(path)? {
        if volume.len() != 32 || !is_hex(&volume) {
            continue;
        }
        let mut is_empty = true;
        for prefix in names(&path.join(&volume))? {
            let is_whole = prefix == DIR;
            if !is_whole && (prefix.len() != 2 || !is_hex(&prefix)) {
                is_empty = false;
                continue;
            }
            let before = found.files.len();
            let below = Path::new(&volume).join(&prefix);
            let content = if is_whole { whole_of } else { pages_of };
            scan_dir(path, &below, found.volumes.len(), now, content, &mut found)?;
            // Empty ones go, unless a process has just made them to put something there.
            is_empty &= found.files.len() == before && remove_old_dir(&path.join(&below), now);
        }
        if is_empty {
            remove_old_dir(&path.join(&volume), now);
        }
        found.volumes.push(volume);
    }
    Ok(found)
}

/// Removes a directory if it is empty and has been for a while; whether it did.
fn remove_old_dir(path: &Path, now: Nanos) -> bool {
    let is_old = std::fs::symlink_metadata(path)
        .is_ok_and(|found| now.saturating_sub(found.mtime().saturating_mul(SECOND)) > EMPTY_AGE);
    is_old && std::fs::remove_dir(path).is_ok()
}

/// The cache files of one directory below the volume's.
fn scan_dir(
    path: &Path,
    below: &Path,
    volume: usize,
    now: Nanos,
    content_of: fn(&Path) -> Option<Content>,
    found: &mut ScannedFiles,
) -> io::Result<()> {
    for name in names(&path.join(below))? {
        let name = below.join(name);
        let Some(content) = content_of(&name) else { continue };
        let stat = match std::fs::symlink_metadata(path.join(&name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if !stat.is_file() {
            continue;
        }
        let touched = stat.mtime().saturating_mul(SECOND).saturating_add(stat.mtime_nsec());
        let bytes = disk_bytes(&stat);
        if bytes == 0 && now.saturating_sub(touched) > EMPTY_AGE {
            cut(&path.join(&name))?;
            continue;
        }
        let is_reused = stat.mode() & REUSED_BIT != 0;
        found.files.push(CacheFile { volume, bytes, touched, is_reused });
        found.contents.push(content);
    }
    Ok(())
}

/// Names in a directory; none if it is gone.
pub(super) fn names(path: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(path) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        other => other?,
    };
    let name = |entry: io::Result<std::fs::DirEntry>| {
        entry.map(|entry| entry.file_name().into_string().ok())
    };
    entries.filter_map(|entry| name(entry).transpose()).collect()
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The path of a cache file below the directory.
pub(super) fn name(volume: &str, object: ObjectId) -> String {
    format!("{volume}/{:02x}/{object:016x}", key::prefix(object))
}

fn pages_of(name: &Path) -> Option<Content> {
    object_of(name).map(Content::Pages)
}

fn whole_of(name: &Path) -> Option<Content> {
    let name = name.file_name()?.to_str()?;
    label::parse(name).map(|_| Content::Whole(name.to_string()))
}

/// The object that a cache file is of, if it is exactly where that belongs.
fn object_of(name: &Path) -> Option<ObjectId> {
    let mut parts = name.iter().skip(1).map(|part| part.to_str());
    let (prefix, file) = (parts.next()??, parts.next()??);
    key::parse(&format!("{}/{prefix}/{file}", key::ROOT))
}
