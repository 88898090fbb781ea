//! Segment files: made ahead of need, recycled, never reused under an old generation.
//!
//! `<generation, 16 hex digits>.log` is a segment with a durable header; `free-<generation>` waits to be recycled;
//! `*.tmp` is being made. Every step that matters is durable before the next: header, then name.

use std::io;
use std::sync::Arc;

use kestrel_types::ids::Position;

use super::format::{Header, SEGMENT_HEADER, Uuid, encode_segment_header};
use crate::engine::Epoch;
use crate::engine::disk::{Disk, DiskFile};
use crate::engine::embedded::fence::Fenced;

/// Files kept for recycling while the log is busy: writing zeros to new ones costs as much as the log itself.
const FREE_MAX: usize = 32;
/// Files kept while it is not, so that a quiet volume is small.
pub(super) const FREE_IDLE: usize = 1;

/// A segment ready for records.
#[derive(Clone)]
pub(in crate::engine) struct Segment {
    pub generation: u64,
    pub file: Arc<dyn DiskFile>,
    pub bytes: u64,
}

/// The files.
pub(in crate::engine) struct Segments {
    pub disk: Arc<dyn Disk>,
    pub uuid: Uuid,
    pub fence: Arc<Fenced>,
    /// Epoch of this opening.
    pub epoch: Epoch,
    /// Position of the last batch before it.
    pub base: Position,
    pub segment_bytes: u64,
    /// Above every generation that any file on the disk ever had.
    pub next_generation: u64,
    /// Files of exactly `segment_bytes` that may be overwritten.
    pub free: Vec<String>,
}

/// The name of a segment.
pub(in crate::engine) fn name_of(generation: u64) -> String {
    format!("{generation:016x}.log")
}

/// The generation in a segment's name.
pub(in crate::engine) fn generation_of(name: &str) -> Option<u64> {
    hex(name.strip_suffix(".log")?)
}

/// The generation that a free file had.
pub(in crate::engine) fn freed_generation_of(name: &str) -> Option<u64> {
    hex(name.strip_prefix("free-")?)
}

fn hex(digits: &str) -> Option<u64> {
    if digits.len() == 16 { u64::from_str_radix(digits, 16).ok() } else { None }
}

impl Segments {
    /// Makes a segment that holds at least `bytes`; durable when it returns.
    pub fn prepare(&mut self, bytes: u64) -> io::Result<Segment> {
        // Another process may have taken the files over, and this generation is one of its own.
        self.fence.check(&*self.disk, &self.uuid).map_err(io::Error::other)?;
        let temporary = "next.tmp";
        let (file, bytes) = match self.free.pop().filter(|_| bytes <= self.segment_bytes) {
            Some(free) => {
                // Under its new name at once: whatever happens, nobody takes it for a segment with records.
                self.disk.rename(&free, temporary)?;
                (self.disk.open(temporary)?, self.segment_bytes)
            }
            None => {
                let bytes = bytes.max(self.segment_bytes);
                (self.disk.create(temporary, bytes)?, bytes)
            }
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

    /// Gives up a segment whose records nobody needs. The caller syncs names when it has given up all it wants to.
    pub fn retire(&mut self, generation: u64, bytes: u64) -> io::Result<()> {
        let name = name_of(generation);
        if bytes == self.segment_bytes && self.free.len() < FREE_MAX {
            let free = format!("free-{generation:016x}");
            self.disk.rename(&name, &free)?;
            self.free.push(free);
            Ok(())
        } else {
            self.disk.remove(&name)
        }
    }

    /// Removes free files above `keep`.
    pub fn trim(&mut self, keep: usize) -> io::Result<()> {
        for name in self.free.drain(keep.min(self.free.len())..) {
            self.disk.remove(&name)?;
        }
        Ok(())
    }

    /// Takes over a free file that was found on the disk.
    pub fn adopt(&mut self, name: &str) -> io::Result<()> {
        if self.free.len() < FREE_MAX && self.disk.open(name)?.len()? == self.segment_bytes {
            self.free.push(name.into());
            return Ok(());
        }
        self.disk.remove(name)
    }

    /// Bytes of records that fit a new segment of ordinary size.
    pub fn capacity(&self) -> u64 {
        self.segment_bytes - SEGMENT_HEADER as u64
    }
}
