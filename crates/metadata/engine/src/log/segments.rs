//! Segment files: made ahead of need, recycled, never reused under an old generation.
//!
//! Writing zeros to a segment ahead of need makes syncs of appends cheap, and keeps that room from
//! everything else. So how much is made ahead follows the load ([`Sizes`]): the segments of a
//! volume that changes little are small, and each one that fills up is followed by a larger one, up
//! to the size that suits the disk. A volume that has become quiet gives back what it took.
//!
//! `<generation, 16 hex digits>.log` is a segment with a durable header; `free-<generation>` waits
//! to be recycled; `*.tmp` is being made. Every step that matters is durable before the next:
//! header, then name.

use std::io;
use std::sync::Arc;

use kestrel_types::ids::Position;

use super::format::{Header, SEGMENT_HEADER, encode_segment_header};
use crate::Epoch;
use crate::disk::{Disk, DiskFile, no_space};
use crate::fence::Fenced;
use crate::small_record::Uuid;

/// Files kept for recycling while the log is busy: writing zeros to new ones costs as much as the
/// log itself.
const FREE_MAX: usize = 32;
/// Files kept while it is not, so that a quiet volume is small.
pub(super) const FREE_IDLE: usize = 1;

/// By how much segments grow and shrink.
const STEP: u64 = 4;

/// How large segments are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// The first ones, and those of a quiet volume.
    pub first: u64,
    /// The next one.
    next: u64,
    /// Those of a busy volume.
    pub max: u64,
}

impl Sizes {
    /// From `first` to `max` bytes.
    pub fn new(first: u64, max: u64) -> Self {
        let first = first.min(max);
        Self { first, next: first, max }
    }

    /// Size of the next segment.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// A segment is full, and one of at least `needed` bytes was wanted: the next one is larger.
    pub fn grow(&mut self, needed: u64) {
        self.next =
            (self.next * STEP).max(needed.next_multiple_of(SEGMENT_HEADER as u64)).min(self.max);
    }

    /// The next one is as large as there may be.
    pub fn grow_fully(&mut self) {
        self.next = self.max;
    }

    /// The next one is smaller. Whether it can be.
    pub fn shrink(&mut self) -> bool {
        let before = self.next;
        self.next = (self.next / STEP).next_multiple_of(SEGMENT_HEADER as u64).max(self.first);
        self.next < before
    }

    /// Whether a file of so many bytes serves where `wanted` are: without holding much more.
    fn serves(bytes: u64, wanted: u64) -> bool {
        (wanted..=wanted.saturating_mul(STEP)).contains(&bytes)
    }

    /// Whether a segment that was made ahead is larger than a quiet volume should have.
    pub fn is_excess(&self, bytes: u64) -> bool {
        !Self::serves(bytes, self.next) && bytes > self.next
    }
}

/// A segment ready for records.
#[derive(Clone)]
pub(crate) struct Segment {
    pub generation: u64,
    pub file: Arc<dyn DiskFile>,
    pub bytes: u64,
}

/// The files.
pub(crate) struct Segments {
    pub disk: Arc<dyn Disk>,
    pub uuid: Uuid,
    pub fence: Arc<Fenced>,
    /// Epoch of this opening.
    pub epoch: Epoch,
    /// Position of the last batch before it.
    pub base: Position,
    pub sizes: Sizes,
    /// Above every generation that any file on the disk ever had.
    pub next_generation: u64,
    /// Files that may be overwritten, and their bytes.
    pub free: Vec<(String, u64)>,
}

/// The name of a segment.
pub(crate) fn name_of(generation: u64) -> String {
    format!("{generation:016x}.log")
}

/// The generation in a segment's name.
pub(crate) fn generation_of(name: &str) -> Option<u64> {
    hex(name.strip_suffix(".log")?)
}

/// The generation that a free file had.
pub(crate) fn freed_generation_of(name: &str) -> Option<u64> {
    hex(name.strip_prefix("free-")?)
}

fn hex(digits: &str) -> Option<u64> {
    if digits.len() == 16 { u64::from_str_radix(digits, 16).ok() } else { None }
}

impl Segments {
    /// Makes a segment of at least `bytes`, and of the size that is due; durable when it returns.
    pub fn prepare(&mut self, bytes: u64) -> io::Result<Segment> {
        // Another process may have taken the files over, and this generation is one of its own.
        self.fence.check(&*self.disk, &self.uuid).map_err(io::Error::other)?;
        let temporary = "next.tmp";
        let wanted = bytes.max(self.sizes.next);
        let find = |free: &[(String, u64)], fits: &dyn Fn(u64) -> bool| {
            free.iter().rposition(|(_, bytes)| fits(*bytes))
        };
        let (file, bytes) = match find(&self.free, &|free| Sizes::serves(free, wanted)) {
            Some(at) => self.reuse(at, temporary)?,
            None => match self.disk.create(temporary, wanted) {
                Ok(file) => (file, wanted),
                // On a full disk what there is must do.
                Err(why) => match find(&self.free, &|free| free >= bytes) {
                    Some(at) if no_space(&why) => self.reuse(at, temporary)?,
                    _ => return Err(why),
                },
            },
        };
        let generation = self.next_generation;
        self.next_generation += 1;
        let header = Header { generation, epoch: self.epoch, base: self.base };
        file.write_at(&encode_segment_header(&self.uuid, header), 0)?;
        file.sync()?;
        self.disk.rename(temporary, &name_of(generation))?;
        self.disk.sync_names()?;
        Ok(Segment { generation, file, bytes })
    }

    /// Takes a free file for a segment, under its new name at once: so it is never taken for a
    /// segment with records, even after a crash.
    fn reuse(&mut self, at: usize, name: &str) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        let (free, bytes) = self.free.remove(at);
        self.disk.rename(&free, name)?;
        Ok((self.disk.open(name)?, bytes))
    }

    /// Gives up a segment with records that are not needed. The caller syncs names when it has
    /// given up all it wants to.
    pub fn retire(&mut self, generation: u64, bytes: u64) -> io::Result<()> {
        let name = name_of(generation);
        if self.keeps(bytes) {
            let free = format!("free-{generation:016x}");
            self.disk.rename(&name, &free)?;
            self.free.push((free, bytes));
            Ok(())
        } else {
            self.disk.remove(&name)
        }
    }

    /// Whether a file of so many bytes is kept for recycling: one that will serve before long.
    fn keeps(&self, bytes: u64) -> bool {
        (self.sizes.next..=self.sizes.max).contains(&bytes) && self.free.len() < FREE_MAX
    }

    /// Removes free files that a volume of the present size of segments does not need, and those
    /// above `keep`.
    pub fn trim(&mut self, keep: usize) -> io::Result<()> {
        let mut kept = Vec::with_capacity(keep);
        for (name, bytes) in std::mem::take(&mut self.free) {
            if kept.len() < keep && Sizes::serves(bytes, self.sizes.next) {
                kept.push((name, bytes));
            } else {
                self.disk.remove(&name)?;
            }
        }
        self.free = kept;
        Ok(())
    }

    /// Takes over a free file that was found on the disk.
    pub fn adopt(&mut self, name: &str) -> io::Result<()> {
        let bytes = self.disk.open(name)?.len()?;
        if self.keeps(bytes) {
            self.free.push((name.into(), bytes));
            return Ok(());
        }
        self.disk.remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

    const KIB: u64 = 1 << 10;

    /// From the first size to the largest and back; what is needed is never less.
    #[test]
    fn steps_of_segment_sizes() {
        let mut sizes = Sizes::new(256 * KIB, 32 * KIB * KIB);
        let mut found = vec![sizes.next() / KIB];
        for _ in 0..5 {
            sizes.grow(5000);
            found.push(sizes.next() / KIB);
        }
        assert_eq!(found, [256, 1024, 4096, 16_384, 32_768, 32_768]);
        let mut found = Vec::new();
        while sizes.shrink() {
            found.push(sizes.next() / KIB);
        }
        assert_eq!(found, [8192, 2048, 512, 256]);
        sizes.grow(3000 * KIB + 1);
        assert_eq!(sizes.next(), 3004 * KIB);
        assert!(
            sizes.is_excess(32 * KIB * KIB)
                && !sizes.is_excess(3004 * KIB)
                && !sizes.is_excess(KIB)
        );
        assert_eq!(Sizes::new(256 * KIB, 64 * KIB).next(), 64 * KIB, "a small disk");
    }

    /// Segments without files, on a disk of so many bytes.
    fn segments(disk_bytes: Option<u64>, sizes: Sizes) -> Segments {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(disk_bytes));
        let uuid = [7; 16];
        let fence = Arc::new(Fenced::open(&*disk, &uuid, Epoch(0)).unwrap());
        Segments {
            disk,
            uuid,
            epoch: fence.held(),
            base: 0,
            fence,
            sizes,
            next_generation: 1,
            free: Vec::new(),
        }
    }

    /// A file is used again for a segment of at least a quarter of its size; one that is too small
    /// for the next is not kept.
    #[test]
    fn files_that_fit_are_used_again() {
        let mut segments = segments(None, Sizes::new(16 * KIB, 256 * KIB));
        let made: Vec<Segment> = [0, 60 * KIB, 256 * KIB, 400 * KIB]
            .map(|bytes| segments.prepare(bytes).unwrap())
            .into();
        assert_eq!(
            [16, 60, 256, 400].map(|kib| kib * KIB).to_vec(),
            made.iter().map(|made| made.bytes).collect::<Vec<_>>()
        );
        segments.sizes.grow(0);
        for segment in &made {
            segments.retire(segment.generation, segment.bytes).unwrap();
        }
        let free = |segments: &Segments| {
            segments.free.iter().map(|(_, bytes)| bytes / KIB).collect::<Vec<_>>()
        };
        assert_eq!(free(&segments), [256], "below 64 and above 256 KiB none is kept");
        assert_eq!(segments.prepare(0).unwrap().bytes, 256 * KIB);
        assert_eq!(free(&segments), []);
        let last = segments.prepare(256 * KIB).unwrap();
        segments.retire(last.generation, last.bytes).unwrap();
        assert!(segments.sizes.shrink());
        assert_eq!(
            segments.prepare(0).unwrap().bytes,
            16 * KIB,
            "not a file of sixteen times the size"
        );
        segments.trim(1).unwrap();
        assert_eq!(free(&segments), []);
    }

    /// On a full disk a free file serves for a segment of any size that it holds.
    #[test]
    fn free_files_on_a_full_disk() {
        let mut segments = segments(Some(90 * KIB), Sizes::new(8 * KIB, 64 * KIB));
        let large = segments.prepare(64 * KIB).unwrap();
        while segments.prepare(0).is_ok() {}
        segments.retire(large.generation, large.bytes).unwrap();
        assert!(no_space(&segments.disk.create("more", 8 * KIB).err().unwrap()));
        assert_eq!(segments.prepare(0).unwrap().bytes, 64 * KIB);
    }
}
