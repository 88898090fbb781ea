//! Dumps that lie in the block store, beside the volume's objects, so that what is left when a
//! metadata machine is lost is enough to restore the volume (`docs/format/dump.md`, "In the block
//! store").
//!
//! A dump is a few objects of a store of its own (`dumps/` below the place of the volume's
//! objects): parts of at most [`PART_BYTES`], compressed, and encrypted if the volume is, and last
//! a small manifest that is neither, since it has what is needed to read the parts: the volume's
//! descriptor, keys wrapped as in `kestrel.json`. A dump without its manifest is none: it is being
//! taken, or was cut short.
//!
//! Numbers of objects: seconds since 1970 when the dump was begun, shifted by 24 bits, and the
//! number of the part, from 1 on; 0 is the manifest. Objects are never overwritten, so of two dumps
//! begun in the same second the later one gets the name of the next second.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;

use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_blockstore::{Error, ErrorKind};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::ObjectId;
use serde_json::{Value, json};

use super::Counts;

/// Bytes of a part, but for the last.
pub const PART_BYTES: usize = 32 << 20;

/// Bits of an object's number that are the part's.
const PART_BITS: u32 = 24;

/// Version of manifest and parts.
const VERSION: u64 = 1;

/// The name of the format, in every manifest.
const MAGIC: &str = "kestrel-dump-manifest";

/// Largest manifest, bytes; anything longer is not ours.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// Parts without a manifest are of a dump that was cut short if they are older than this.
const UNFINISHED_MAX: Nanos = 24 * 3600 * SECOND;

/// How many seconds a dump may be named after the one that it was begun in.
const MOVES_MAX: u64 = 16;

/// Names a dump: seconds since 1970 when it was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Of a moment.
    pub fn at(now: Nanos) -> Self {
        Self((now.max(0) / SECOND).unsigned_abs())
    }

    /// The latest that a dump can have at this time: it may be named after one of the seconds to
    /// come.
    pub fn latest(now: Nanos) -> Self {
        Self(Self::at(now).0 + MOVES_MAX)
    }

    fn of(object: ObjectId) -> Self {
        Self(object >> PART_BITS)
    }

    fn object(self, part: u64) -> ObjectId {
        self.0 << PART_BITS | part
    }
}

/// A complete dump in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Backup {
    /// Its name.
    pub stamp: Stamp,
    /// What it holds.
    pub counts: Counts,
    /// Parts it has.
    pub parts: u64,
    /// Bytes of its parts in the store; 0 where they were not listed.
    pub stored_bytes: u64,
    /// Rows of the volume that were damaged, and are not in it.
    pub left_out: u64,
    /// Descriptor of the volume that was dumped.
    pub volume: Value,
    /// Program that took it.
    pub program: String,
}

/// What a listing found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BackupList {
    /// Complete dumps, the oldest first.
    pub kept: Vec<Backup>,
    /// Dumps without a manifest, the oldest first: being taken, or cut short.
    pub unfinished: Vec<Stamp>,
    /// Dumps with a manifest that cannot be used, the oldest first, and why: damaged, or a newer
    /// program's.
    pub damaged: Vec<(Stamp, String)>,
}

/// The dumps of a volume.
#[derive(Clone)]
pub struct BackupRepository {
    plain: Arc<dyn BlockStore>,
    coded: Arc<dyn BlockStore>,
}

/// Why a dump in the store could not be written or read.
#[derive(Debug)]
pub enum BackupError {
    /// The store failed.
    Store(Error),
    /// There is no complete dump of this name.
    Missing(Stamp),
    /// Its manifest is damaged or no manifest.
    Damaged(Stamp, String),
    /// A newer program took it.
    Newer(Stamp, u64),
    /// Other dumps of the volume were begun in this second and those before it.
    Taken(Stamp),
}

impl std::fmt::Display for BackupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(why) => why.fmt(f),
            Self::Missing(Stamp(stamp)) => {
                write!(f, "there is no complete dump {stamp}; see `kestrel backup list`")
            }
            Self::Damaged(Stamp(stamp), why) => {
                write!(f, "dump {stamp}: its manifest is damaged: {why}; use another dump")
            }
            Self::Newer(Stamp(stamp), version) => write!(
                f,
                "dump {stamp} has version {version}, this program reads {VERSION}; use a newer \
                 kestrel"
            ),
            Self::Taken(Stamp(stamp)) => {
                write!(f, "another dump of this volume was begun at second {stamp}; repeat it")
            }
        }
    }
}

impl std::error::Error for BackupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // It prints as its cause does.
            Self::Store(why) => std::error::Error::source(why),
            _ => None,
        }
    }
}

impl From<Error> for BackupError {
    fn from(why: Error) -> Self {
        Self::Store(why)
    }
}

impl From<BackupError> for io::Error {
    fn from(why: BackupError) -> Self {
        Self::other(why.to_string())
    }
}

impl BackupRepository {
    /// Dumps in `plain`, of which parts are read and written through `coded`, which lies above it.
    pub fn new(plain: Arc<dyn BlockStore>, coded: Arc<dyn BlockStore>) -> Self {
        Self { plain, coded }
    }

    /// Begins a dump. It is kept from [`Writing::finish`] on.
    ///
    /// # Errors
    /// None yet: the first part that is written finds what is in the way.
    pub fn begin(&self, now: Nanos) -> Writing<'_> {
        Writing {
            repository: self,
            stamp: Stamp::at(now),
            buffer: Vec::new(),
            parts: 0,
            moved: 0,
            done: false,
        }
    }

    /// All dumps. Reads every manifest.
    ///
    /// # Errors
    /// If the store fails.
    pub fn list(&self) -> Result<BackupList, BackupError> {
        let mut found: BTreeMap<Stamp, (bool, u64)> = BTreeMap::new();
        for page in list_all(&*self.plain) {
            for info in page?.objects {
                let (has_manifest, bytes) = found.entry(Stamp::of(info.object)).or_default();
                *has_manifest |= info.object == Stamp::of(info.object).object(0);
                *bytes += info.size;
            }
        }
        let mut listed = BackupList::default();
        for (stamp, (has_manifest, stored_bytes)) in found {
            if !has_manifest {
                listed.unfinished.push(stamp);
                continue;
            }
            match self.manifest(stamp) {
                Ok(kept) => listed.kept.push(Backup { stored_bytes, ..kept }),
                // It was removed meanwhile.
                Err(BackupError::Missing(_)) => {}
                Err(why @ (BackupError::Damaged(..) | BackupError::Newer(..))) => {
                    listed.damaged.push((stamp, why.to_string()));
                }
                Err(why) => return Err(why),
            }
        }
        Ok(listed)
    }

    /// The contents of a dump's manifest.
    ///
    /// # Errors
    /// If there is none, or it is not one that this program reads.
    pub fn manifest(&self, stamp: Stamp) -> Result<Backup, BackupError> {
        let object = stamp.object(0);
        let missing = |why: Error| match why.kind() {
            ErrorKind::NotFound => BackupError::Missing(stamp),
            _ => why.into(),
        };
        let size = self.plain.size(object).map_err(missing)?;
        if size > MANIFEST_BYTES_MAX {
            return Err(BackupError::Damaged(stamp, format!("it has {size} bytes")));
        }
        let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
        self.plain.read(object, 0, &mut [IoSliceMut::new(&mut text)]).map_err(missing)?;
        let damaged = |why: &str| BackupError::Damaged(stamp, why.into());
        // The document, a line feed, its CRC-32C in eight hexadecimal digits, a line feed.
        let body = text.len().checked_sub(10).ok_or_else(|| damaged("it is cut off"))?;
        let (document, end) = text.split_at(body);
        if end != format!("\n{:08x}\n", crc32c::crc32c(document)).as_bytes() {
            return Err(damaged("its checksum does not match"));
        }
        let manifest: Value =
            serde_json::from_slice(document).map_err(|why| damaged(&why.to_string()))?;
        if manifest["magic"] != MAGIC {
            return Err(damaged("it is no manifest"));
        }
        let number = |name: &str| {
            manifest[name].as_u64().ok_or_else(|| damaged(&format!("it does not say {name}")))
        };
        match number("version")? {
            VERSION => {}
            other => return Err(BackupError::Newer(stamp, other)),
        }
        if number("stamp")? != stamp.0 {
            return Err(damaged("it is that of another dump"));
        }
        let counts =
            Counts { rows: number("rows")?, changes: number("changes")?, bytes: number("bytes")? };
        let parts = number("parts")?;
        if counts.bytes > parts.saturating_mul(PART_BYTES as u64) {
            return Err(damaged("it says more bytes than its parts have"));
        }
        let program = manifest["program"].as_str().unwrap_or_default().to_string();
        let (left_out, volume) = (number("left_out")?, manifest["volume"].clone());
        Ok(Backup { stamp, counts, parts, stored_bytes: 0, left_out, volume, program })
    }

    /// The bytes of a dump, as [`super::dump`] wrote them.
    pub fn read(&self, kept: &Backup) -> Reading<'_> {
        Reading {
            repository: self,
            stamp: kept.stamp,
            rest: kept.counts.bytes,
            part: 0,
            buffer: io::Cursor::new(Vec::new()),
        }
    }

    /// Removes all but the newest `keep` complete dumps, and what is left of those that were cut
    /// short. The newest one always stays, and so does the newest without damaged rows. What a
    /// clock that was ahead has left is neither counted nor removed.
    ///
    /// # Errors
    /// If the store fails; some may be removed then.
    pub fn prune(&self, keep: usize, now: Nanos) -> Result<Vec<Stamp>, BackupError> {
        let listed = self.list()?;
        let past: Vec<&Backup> =
            listed.kept.iter().filter(|kept| kept.stamp <= Stamp::latest(now)).collect();
        let whole = past.iter().rev().find(|kept| kept.left_out == 0).map(|kept| kept.stamp);
        let surplus = &past[..past.len().saturating_sub(keep.max(1))];
        let surplus = surplus.iter().map(|kept| kept.stamp).filter(|stamp| Some(*stamp) != whole);
        let young = Stamp::at(now.saturating_sub(UNFINISHED_MAX));
        let cut_short = listed.unfinished.iter().copied().filter(|stamp| *stamp < young);
        let gone: Vec<Stamp> = surplus.chain(cut_short).collect();
        for stamp in &gone {
            self.remove(*stamp)?;
        }
        Ok(gone)
    }

    /// Removes a dump: first its manifest, so that what is left of a removal that is cut short is
    /// no dump.
    fn remove(&self, stamp: Stamp) -> Result<(), BackupError> {
        self.plain.delete(stamp.object(0))?;
        let mut parts = Vec::new();
        for page in list_all(&*self.plain) {
            parts.extend(
                page?
                    .objects
                    .iter()
                    .map(|info| info.object)
                    .filter(|object| Stamp::of(*object) == stamp),
            );
        }
        self.plain.delete_each(&parts).into_iter().collect::<Result<Vec<()>, Error>>()?;
        Ok(())
    }
}

/// A dump that is being written. Dropped before its end it is removed as far as that goes.
pub struct Writing<'a> {
    repository: &'a BackupRepository,
    stamp: Stamp,
    buffer: Vec<u8>,
    parts: u64,
    moved: u64,
    done: bool,
}

impl Writing<'_> {
    fn put(&mut self) -> Result<(), BackupError> {
        loop {
            let object = self.stamp.object(self.parts + 1);
            if Stamp::of(object) != self.stamp {
                return Err(
                    Error::Invalid { what: "a dump has more parts than can be numbered" }.into()
                );
            }
            match self.repository.coded.put(object, &[IoSlice::new(&self.buffer)]) {
                Err(Error::Exists { .. }) if self.parts == 0 && self.moved < MOVES_MAX => {
                    // Another one was begun in this second: nothing of it is ours.
                    self.stamp.0 += 1;
                    self.moved += 1;
                }
                Err(Error::Exists { .. }) if self.parts == 0 => {
                    self.done = true;
                    return Err(BackupError::Taken(self.stamp));
                }
                put => {
                    put?;
                    self.parts += 1;
                    self.buffer.clear();
                    return Ok(());
                }
            }
        }
    }

    /// The dump is complete: it is durable, and one of those that are kept, when this returns.
    ///
    /// # Errors
    /// If the store fails: it is none then.
    pub fn finish(
        mut self,
        counts: Counts,
        left_out: u64,
        program: &str,
        volume: Value,
    ) -> Result<Backup, BackupError> {
        if !self.buffer.is_empty() {
            self.put()?;
        }
        self.repository.coded.sync()?;
        let manifest = json!({
            "magic": MAGIC, "version": VERSION, "stamp": self.stamp.0, "program": program,
            "rows": counts.rows,
            "changes": counts.changes, "bytes": counts.bytes, "parts": self.parts,
            "left_out": left_out, "volume": volume,
        });
        let document = manifest.to_string();
        let end = format!("\n{:08x}\n", crc32c::crc32c(document.as_bytes()));
        let manifest = [IoSlice::new(document.as_bytes()), IoSlice::new(end.as_bytes())];
        self.repository.plain.put(self.stamp.object(0), &manifest)?;
        self.repository.plain.sync()?;
        self.done = true;
        let (stamp, parts, program) = (self.stamp, self.parts, program.to_string());
        Ok(Backup { stamp, counts, parts, stored_bytes: 0, left_out, volume, program })
    }
}

impl Write for Writing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PART_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == PART_BYTES {
            self.put()?;
        }
        Ok(taken)
    }

    /// Does nothing: parts are written whole.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // Without a part that it put, what has this name may be another's.
        if self.done || self.parts == 0 {
            return;
        }
        // The manifest first: its put may have come through though its answer was lost, and without
        // parts it must not stay.
        if let Err(why) = self.repository.plain.delete(self.stamp.object(0)) {
            log::warn!(
                "dump {} was cut short, and stays in the store for now: {why}",
                self.stamp.0
            );
            return;
        }
        let parts: Vec<ObjectId> =
            (1..=self.parts + 1).map(|part| self.stamp.object(part)).collect();
        // What stays behind has no manifest, and goes when it is old.
        for failed in self.repository.plain.delete_each(&parts).into_iter().filter_map(Result::err)
        {
            log::warn!("a part of a dump that was cut short stays in the store for now: {failed}");
        }
    }
}

/// Reads a dump part by part.
pub struct Reading<'a> {
    repository: &'a BackupRepository,
    stamp: Stamp,
    rest: u64,
    part: u64,
    buffer: io::Cursor<Vec<u8>>,
}

impl Read for Reading<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.buffer.read(out)?;
        if read > 0 || self.rest == 0 || out.is_empty() {
            return Ok(read);
        }
        self.part += 1;
        let len = usize::try_from(self.rest).unwrap_or(PART_BYTES).min(PART_BYTES);
        let mut part =
            std::mem::replace(&mut self.buffer, io::Cursor::new(Vec::new())).into_inner();
        part.resize(len, 0);
        let object = self.stamp.object(self.part);
        self.repository
            .coded
            .read(object, 0, &mut [IoSliceMut::new(&mut part)])
            .map_err(|why| io::Error::other(format!("part {} of the dump: {why}", self.part)))?;
        self.rest -= len as u64;
        self.buffer = io::Cursor::new(part);
        self.buffer.read(out)
    }
}
