//! Compression and encryption of objects, above any block store.
//!
//! | file | |
//! | --- | --- |
//! | `head` | the head of a coded object: header, table of chunks, checks |
//! | `heads` | heads in memory, so that each is read once |
//! | `flights` | threads that want the same head at the same time read it once |
//! | `encode` | coding a whole object |
//! | `decode` | decoding chunks into the buffers of a reader |
//! | `read` | reading chunks of a coded object |
//! | `compression` | compression of chunks: LZ4 blocks and Zstandard frames |
//! | `keys` | keys that objects are encrypted with |
//! | `buffers` | memory that objects are coded in, and large reads decoded |
//! | `local_cache` | the cache below, in bytes of objects as they were before coding |
//!
//! **Contract.** Above it objects look as they always do: offsets, lengths and [`BlockStore::size`]
//! are those of the object before it was coded ("plain"). Below it lies what `head` describes: a
//! head and chunks that are compressed, encrypted or both, each by itself, so that a read decodes
//! the chunks it touches and no others. Each object has in its head how it was coded, so settings
//! may change at any time: what is coded, what is not, and what was coded otherwise lie side by
//! side in one store. Listings contain stored sizes.
//!
//! **Volumes with settings that code nothing** ([`CodedStore::of_plain`]). Objects may be
//! compressed all the same, where a directory's policy says so. To look at each object's beginning
//! would cost a volume without such policies a request for each object. So objects are read as they
//! are stored until a compressed one shows: it is put here, [`BlockStore::expect_compressed`] tells
//! of it, or a reader finds bytes that do not match their checksum and reads them by
//! [`BlockStore::read_fresh`], which always looks. From then on each object is looked at.
//!
//! What the store returns is verified before anything is made of it: a chunk that is not what was
//! stored, in its position in its object in its volume, is `Corrupt`. What cannot be verified (no
//! key for it, a newer format, not encrypted where everything must be) is `Coding`, which is never
//! a reason to call data damaged.
//!
//! Objects that are to be coded are put whole: a store that codes what is written cannot append.
//! Heads are read once and kept in bounded memory. On remote stores the first read of an object's
//! beginning takes one request, the first read elsewhere in it two, every other one.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use kestrel_types::ids::ObjectId;
use kestrel_types::tier::Tier;

use super::{AppendStore, BlockStore, LocalCache, Page, PutOptions, TieredStore, Usage, total_len};
use crate::error::{Error, Result};
use crate::object::VolumeId;

mod buffers;
mod compression;
mod decode;
mod encode;
mod flights;
mod head;
mod heads;
mod keys;
mod local_cache;
mod read;

pub use compression::Compression;
pub use keys::{DATA_KEY_BYTES, DataKey, Keys};
pub(crate) use keys::{NoncePart, ObjectKey, SALT_BYTES, TAG_BYTES, random_salt};

use buffers::{Buffers, KEPT_BYTES_MAX};
use decode::OutputBuffers;
use encode::Encoder;
use flights::{FlightRole, Flights};
use head::{CHUNK_BYTES, FIRST_CHUNK_BYTES, HEADER_BYTES, Head, Header, MAGIC};
use heads::{HEADS_BYTES_MAX, Heads, ObjectCoding};
use read::Read;

/// Bytes read for an object's head: enough for objects of up to 31 MiB.
const START_BYTES: u64 = 4096;

/// Reads that end before this many plain bytes come with the head, in one request, if a request is
/// what costs.
const FIRST_READ_BYTES_MAX: u64 = 384 << 10;

/// Bytes of the magic that must be right for an object to be taken for a damaged coded one. The
/// magic of plain objects has four in common with it.
const MAGIC_LIKENESS: usize = 6;

/// How objects of a volume are coded.
#[derive(Debug, Clone, Default)]
pub struct Coding {
    /// How new objects are compressed.
    pub compression: Compression,
    /// Keys to read objects with, and to write them with if there is a [`Keys::write_key`].
    pub cipher: Option<Keys>,
}

impl Coding {
    /// Whether new objects are stored otherwise than they come.
    fn changes_objects(&self) -> bool {
        self.changes_compressed(self.compression)
    }

    /// The same of objects that are compressed like this.
    fn changes_compressed(&self, compression: Compression) -> bool {
        compression != Compression::None
            || self.cipher.as_ref().is_some_and(|keys| keys.write_key().is_some())
    }
}

/// Counters since the store was opened.
#[derive(Debug, Default)]
struct CodedStats {
    objects_written: AtomicU64,
    plain_bytes_written: AtomicU64,
    stored_bytes_written: AtomicU64,
    heads_read: AtomicU64,
    chunks_read: AtomicU64,
}

/// Memory of a [`CodedStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodingMemory {
    /// What objects are coded in, and large reads decoded, while it is not used, bytes.
    pub kept_bytes: usize,
    /// The heads of objects, bytes.
    pub head_bytes: usize,
}

impl Default for CodingMemory {
    fn default() -> Self {
        Self { kept_bytes: KEPT_BYTES_MAX, head_bytes: HEADS_BYTES_MAX }
    }
}

/// A block store that codes its objects in the store below it.
pub struct CodedStore {
    inner: Arc<dyn BlockStore>,
    volume: VolumeId,
    coding: Coding,
    heads: Heads,
    flights: Flights,
    buffers: Buffers,
    stats: CodedStats,
    /// An object may be coded: each is looked at before it is read.
    looks: AtomicBool,
}

/// How the store below is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Wait,
    /// Past every cache.
    Fresh,
    /// Not if it would block.
    Now,
}

/// An object of which the beginning was read, or nothing.
struct Found {
    coding: ObjectCoding,
    /// Its first stored bytes; empty if its head was in memory already.
    start: Vec<u8>,
}

impl CodedStore {
    /// Codes the objects of `volume` in `inner`.
    pub fn new(inner: Arc<dyn BlockStore>, volume: VolumeId, coding: Coding) -> Self {
        let CodingMemory { kept_bytes, head_bytes } = CodingMemory::default();
        let (heads, flights) = (Heads::new(head_bytes), Flights::default());
        let (buffers, stats) = (Buffers::new(kept_bytes), CodedStats::default());
        let looks = AtomicBool::new(true);
        Self { inner, volume, coding, heads, flights, buffers, stats, looks }
    }

    /// The same of a volume with settings that code nothing: objects are read as they are stored
    /// until a compressed one shows.
    pub fn of_plain(inner: Arc<dyn BlockStore>, volume: VolumeId) -> Self {
        Self { looks: AtomicBool::new(false), ..Self::new(inner, volume, Coding::default()) }
    }

    /// Whether each object is looked at before it is read.
    fn looks(&self) -> bool {
        self.looks.load(Ordering::Relaxed)
    }

    /// The same with other bounds of its memory.
    pub fn with_memory(self, memory: CodingMemory) -> Self {
        Self {
            heads: Heads::new(memory.head_bytes),
            buffers: Buffers::new(memory.kept_bytes),
            ..self
        }
    }

    /// What an object is, from memory or from the store; `until` is the plain byte that the caller
    /// will read up to.
    fn coding_of(&self, object: ObjectId, until: Option<u64>, how: How) -> Result<Found> {
        if how == How::Fresh {
            return self.load(object, until, how);
        }
        let from_memory = |coding| Found { coding, start: Vec::new() };
        if let Some(coding) = self.heads.get(object) {
            return Ok(from_memory(coding));
        }
        match self.flights.lead_or_join(object) {
            FlightRole::Joiner(result) => result.map(from_memory),
            FlightRole::Leader(leader) => {
                // The last leader may have finished between the lookup in memory and the call of
                // `lead_or_join`.
                let found = match self.heads.get(object) {
                    Some(coding) => Ok(from_memory(coding)),
                    None => self.load(object, until, how),
                };
                leader
                    .finish(found.as_ref().map(|found| found.coding.clone()).map_err(Error::clone));
                found
            }
        }
    }

    /// Reads what an object is from the store.
    fn load(&self, object: ObjectId, until: Option<u64>, how: How) -> Result<Found> {
        let mut start = vec![0; self.start_len(until) as usize];
        if how == How::Fresh {
            let size = self.inner.size(object)?.min(START_BYTES);
            start.truncate(size as usize);
            self.inner.read_fresh(object, 0, &mut [IoSliceMut::new(&mut start)])?;
        } else {
            let len = self.inner.read_up_to(object, 0, &mut start)?;
            start.truncate(len);
        }
        self.stats.heads_read.fetch_add(1, Ordering::Relaxed);
        let coding = self.classify(object, &start, how)?;
        if matches!(coding, ObjectCoding::Coded(_)) {
            self.looks.store(true, Ordering::Relaxed);
        }
        self.heads.insert(object, coding.clone());
        Ok(Found { coding, start })
    }

    /// How much of an object to read when its head is not in memory.
    fn start_len(&self, until: Option<u64>) -> u64 {
        match until.filter(|until| self.inner.is_remote() && *until <= FIRST_READ_BYTES_MAX) {
            None => START_BYTES,
            Some(until) => {
                // Whole chunks; compressed ones end earlier, encrypted ones have a tag each.
                let more = until
                    .saturating_sub(u64::from(FIRST_CHUNK_BYTES))
                    .div_ceil(u64::from(CHUNK_BYTES));
                let chunk_bytes = u64::from(CHUNK_BYTES) + keys::TAG_BYTES as u64;
                START_BYTES
                    + u64::from(FIRST_CHUNK_BYTES)
                    + keys::TAG_BYTES as u64
                    + more * chunk_bytes
            }
        }
    }

    /// What an object that begins with `start` is.
    fn classify(&self, object: ObjectId, start: &[u8], how: How) -> Result<ObjectCoding> {
        let must_be_encrypted =
            self.coding.cipher.as_ref().is_some_and(|keys| !keys.is_plain_allowed());
        let refused = || Error::Coding {
            object,
            why: "it is not encrypted, but every object of this volume is: somebody else put it \
                  there; replace it by the \
                  right object from a copy of the store"
                .into(),
        };
        let likeness = start.iter().zip(&MAGIC).filter(|(is, coded)| is == coded).count();
        if likeness < MAGIC.len() {
            let cut_off =
                Err(Error::Corrupt { object, offset: 0, what: "it is no object of KestrelFS" });
            return match likeness {
                MAGIC_LIKENESS.. => cut_off,
                _ if must_be_encrypted => Err(refused()),
                _ => Ok(ObjectCoding::Plain),
            };
        }
        let cut_off =
            Error::Corrupt { object, offset: 0, what: "a coded object's head is cut off" };
        let header = start.first_chunk::<HEADER_BYTES>().ok_or(cut_off)?;
        let header = Header::decode(header, &self.volume, object)?;
        if must_be_encrypted && header.key.is_none() {
            return Err(refused());
        }
        let head_len = header.head_len();
        let keys = self.coding.cipher.as_ref();
        let head = match start.get(..head_len) {
            Some(head) => Head::decode(header, head, keys)?,
            None => {
                let mut head = start.to_vec();
                head.resize(head_len, 0);
                self.fetch(object, start.len() as u64, &mut head[start.len()..], how)?;
                Head::decode(header, &head, keys)?
            }
        };
        Ok(ObjectCoding::Coded(Arc::new(head)))
    }

    /// Stored bytes of an object; false if that would block and `how` forbids it.
    fn fetch(&self, object: ObjectId, at: u64, out: &mut [u8], how: How) -> Result<bool> {
        self.read_plain(object, at, &mut [IoSliceMut::new(out)], how)
    }

    fn read_with(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
        how: How,
    ) -> Result<bool> {
        let until = offset.saturating_add(total_len(parts) as u64);
        if !self.looks() && how != How::Fresh {
            return self.read_plain(object, offset, parts, how);
        }
        let found = match how {
            How::Now => match self.heads.get(object) {
                Some(coding) => Found { coding, start: Vec::new() },
                None => return Ok(false),
            },
            _ => self.coding_of(object, Some(until), how)?,
        };
        match &found.coding {
            ObjectCoding::Coded(head) => {
                let start = &found.start;
                self.read_coded(&Read { head, start, wanted: offset..until, how }, parts)
            }
            ObjectCoding::Plain => {
                let start = usize::try_from(offset).ok().zip(usize::try_from(until).ok());
                if let Some(bytes) = start.and_then(|(from, until)| found.start.get(from..until)) {
                    OutputBuffers::new(parts).push(bytes);
                    return Ok(true);
                }
                self.read_plain(object, offset, parts, how)
            }
        }
    }

    /// Reads bytes as they are stored; false if that would block and `how` forbids it.
    fn read_plain(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
        how: How,
    ) -> Result<bool> {
        match how {
            How::Wait => self.inner.read(object, offset, parts).map(|()| true),
            How::Fresh => self.inner.read_fresh(object, offset, parts).map(|()| true),
            How::Now => Ok(self.inner.try_read_nowait(object, offset, parts)?.is_some()),
        }
    }

    /// Codes an object and puts it.
    fn put_coded(
        &self,
        object: ObjectId,
        parts: &[IoSlice<'_>],
        (compression, tier): (Compression, Option<Tier>),
    ) -> Result<()> {
        let (volume, keys) = (self.volume, self.coding.cipher.as_ref());
        let coded = Encoder { volume, compression, keys }.encode(object, parts, &self.buffers)?;
        let stored_bytes = coded.len() as u64;
        let coded = Bytes::from(coded);
        self.looks.store(true, Ordering::Relaxed);
        let options = PutOptions { compression: None, tier };
        let done = self.inner.put_with(object, std::slice::from_ref(&coded), options);
        // Used again unless it is still held: by a cache, or by a connection that broke.
        if let Ok(coded) = coded.try_into_mut() {
            self.buffers.give(coded.into());
        }
        done?;
        self.stats.objects_written.fetch_add(1, Ordering::Relaxed);
        self.stats.plain_bytes_written.fetch_add(total_len(parts) as u64, Ordering::Relaxed);
        self.stats.stored_bytes_written.fetch_add(stored_bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl BlockStore for CodedStore {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        match self.coding.changes_objects() {
            true => self.put_coded(object, parts, (self.coding.compression, None)),
            false => self.inner.put(object, parts),
        }
    }

    fn put_shared(&self, object: ObjectId, parts: &[Bytes]) -> Result<()> {
        self.put_with(object, parts, PutOptions::default())
    }

    fn put_with(&self, object: ObjectId, parts: &[Bytes], options: PutOptions) -> Result<()> {
        let PutOptions { compression, tier } = options;
        let compression = compression.unwrap_or(self.coding.compression);
        if !self.coding.changes_compressed(compression) {
            let options = PutOptions { compression: None, tier };
            return self.inner.put_with(object, parts, options);
        }
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        self.put_coded(object, &slices, (compression, tier))
    }

    fn tiers(&self) -> Option<&dyn TieredStore> {
        self.inner.tiers()
    }

    fn compression(&self) -> Option<Compression> {
        Some(self.coding.compression)
    }

    fn expect_compressed(&self) {
        self.looks.store(true, Ordering::Relaxed);
    }

    /// None while new objects are coded.
    fn appends(&self) -> Option<&dyn AppendStore> {
        if self.coding.changes_objects() { None } else { self.inner.appends() }
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.read_with(object, offset, parts, How::Wait).map(drop)
    }

    fn try_read_nowait(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<Option<()>> {
        Ok(self.read_with(object, offset, parts, How::Now)?.then_some(()))
    }

    fn read_up_to(&self, object: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize> {
        if !self.looks() {
            return self.inner.read_up_to(object, offset, out);
        }
        let found =
            self.coding_of(object, Some(offset.saturating_add(out.len() as u64)), How::Wait)?;
        match &found.coding {
            ObjectCoding::Plain => self.inner.read_up_to(object, offset, out),
            ObjectCoding::Coded(head) => {
                let until = head.header.plain_len.min(offset.saturating_add(out.len() as u64));
                let len = until.saturating_sub(offset);
                let parts = &mut [IoSliceMut::new(&mut out[..len as usize])];
                let (start, wanted, how) = (&found.start[..], until - len..until, How::Wait);
                self.read_coded(&Read { head, start, wanted, how }, parts)?;
                Ok(len as usize)
            }
        }
    }

    /// Only an object that is stored as it is can be left to the store's own cache: what has to be
    /// decoded is better read ahead into memory, by the threads that read ahead.
    fn prefetch(&self, object: ObjectId, offset: u64, len: u64) -> bool {
        let is_plain = !self.looks() || matches!(self.heads.get(object), Some(ObjectCoding::Plain));
        is_plain && self.inner.prefetch(object, offset, len)
    }

    fn read_fresh(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        self.read_with(object, offset, parts, How::Fresh).map(drop)
    }

    fn is_remote(&self) -> bool {
        self.inner.is_remote()
    }

    fn near(&self) -> Option<&dyn LocalCache> {
        let cache = self.inner.near()?;
        Some(if self.looks() { self } else { cache })
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let own = &self.stats;
        for (name, figure) in [
            ("coded_objects_written", &own.objects_written),
            ("coded_plain_bytes_written", &own.plain_bytes_written),
            ("coded_stored_bytes_written", &own.stored_bytes_written),
            ("coded_heads_read", &own.heads_read),
            ("coded_chunks_read", &own.chunks_read),
        ] {
            report(name, figure.load(Ordering::Relaxed));
        }
        self.inner.stats(report);
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        match self.coding_of(object, None, How::Wait)?.coding {
            ObjectCoding::Plain => self.inner.size(object),
            ObjectCoding::Coded(head) => Ok(head.header.plain_len),
        }
    }

    fn delete(&self, object: ObjectId) -> Result<bool> {
        let deleted = self.inner.delete(object)?;
        self.heads.forget(object);
        Ok(deleted)
    }

    fn delete_each(&self, objects: &[ObjectId]) -> Vec<Result<()>> {
        let deleted = self.inner.delete_each(objects);
        objects.iter().for_each(|&object| self.heads.forget(object));
        deleted
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.inner.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        self.inner.list(after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.inner.usage()
    }
}

#[cfg(test)]
mod tests;
