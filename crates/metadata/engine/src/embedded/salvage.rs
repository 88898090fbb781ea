//! Recovers what is intact of an engine's files of which some are damaged.
//!
//! Nothing in the engine's directory is changed. The rows are given out in the order in which they
//! are to be applied: those of the sorted runs, then the batches of the log. A batch is applied as
//! a whole or not at all.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kestrel_types::codec::Reader;
use kestrel_types::ids::Position;
use kestrel_types::key::{Key, KeyRef, SUFFIX_MAX, Table};

use super::super::disk::real::RealDisk;
use super::super::disk::{Disk, DiskFile};
use super::super::log::flipped::unflip;
use super::super::log::format::{
    ALIGN, Kind, RECORD_HEADER, Record, SEGMENT_HEADER, decode_header, decode_mutations,
    decode_record, decode_segment_header, to_owned,
};
use super::super::log::segments::generation_of;
use super::super::runs::salvage::{LostBlock, read_intact};
use super::open::lock;
use super::{EngineError, Epoch, Mutation};
use crate::checkpoint::{self, Checkpoint};
use crate::disk::io_error;
use crate::small_record::Uuid;

/// Something that could not be recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The damaged file and where in it.
    pub place: String,
    /// The rows that this concerns.
    pub rows: LostRows,
}

/// Rows that could not be recovered, or not in their newest state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostRows {
    /// Rows that a change concerned which is lost: they are as they were before it.
    Changed(Vec<Key>),
    /// Rows between two keys, both excluded; none: from the beginning, or to the end.
    Between(Option<Key>, Option<Key>),
    /// None: what was damaged holds no rows, or which rows it held cannot be found out.
    Unknown,
}

/// Receives rows and their removals, in the order in which they are to be applied.
pub type Recovered<'a> = dyn FnMut(Vec<Mutation>) -> Result<(), EngineError> + 'a;

/// Rows given out at a time.
const ROWS_BATCH: usize = 1024;

/// Reads every intact row of the engine in `dir`. `scratch` is an existing directory for temporary
/// files. Returns the number of rows and changes given to `recovered`.
///
/// # Errors
/// `Refused` for a newer format, another volume's files or a directory in use; `Io` and `NoSpace`
/// from the disks; those of `recovered`.
pub fn salvage(
    dir: &Path,
    uuid: Uuid,
    scratch: &Path,
    recovered: &mut Recovered<'_>,
    lost: &mut dyn FnMut(Lost),
) -> Result<u64, EngineError> {
    let _lock = lock(dir)?;
    let mut count = 0;
    let mut batch = Vec::new();
    let mut blocks = Vec::new();
    let mut notes = Vec::new();
    let mut row = |key: &[u8], value: &[u8]| {
        // A key of a table that this program does not know belongs to a newer one, which it cannot
        // stand in for.
        let Some(key) = KeyRef::decode(key) else { return Ok(()) };
        batch.push(Mutation { key: key.to_owned(), value: Some(value.into()) });
        count += 1;
        if batch.len() == ROWS_BATCH { recovered(std::mem::take(&mut batch)) } else { Ok(()) }
    };
    read_intact(
        &dir.join("runs"),
        scratch,
        &mut row,
        &mut |block| blocks.push(block),
        &mut |note| {
            notes.push(note);
        },
    )?;
    recovered(batch)?;
    blocks.into_iter().for_each(|block| lost(of_block(block)));
    notes.into_iter().for_each(|place| lost(Lost { place, rows: LostRows::Unknown }));
    let disk = RealDisk::open(&dir.join("log")).map_err(|why| io_error("opening the log", &why))?;
    Ok(count + Log { disk: &disk, uuid, recovered, lost, pending: None, done: None }.read()?)
}

fn of_block(block: LostBlock) -> Lost {
    let key = |bytes: Option<Vec<u8>>| {
        bytes.and_then(|bytes| KeyRef::decode(&bytes).map(KeyRef::to_owned))
    };
    Lost {
        place: format!("{}: the block at byte {}", block.file.display(), block.offset),
        rows: LostRows::Between(key(block.after), key(block.before)),
    }
}

/// A segment of the log.
struct Segment {
    generation: u64,
    path: String,
    file: Arc<dyn DiskFile>,
    epoch: Epoch,
    base: Position,
    /// Position that no record here may be above ([`super::super::log::recovery`]).
    limit: Position,
}

/// Bytes that are no record, since the last batch.
struct Damage {
    place: String,
    /// Rows that they seem to change.
    keys: Vec<Key>,
    /// Whether a record's header marks them as one.
    is_record: bool,
}

/// The log, as far as it was read.
struct Log<'a, 'b> {
    disk: &'a RealDisk,
    uuid: Uuid,
    recovered: &'a mut Recovered<'b>,
    lost: &'a mut dyn FnMut(Lost),
    /// Damage that may have been a batch; whether it was shows when the next batch is found.
    pending: Option<Damage>,
    /// The last batch that was applied, or that the sorted runs have.
    done: Option<Position>,
}

impl Log<'_, '_> {
    /// Applies every intact batch; returns how many changes they have.
    fn read(mut self) -> Result<u64, EngineError> {
        let checkpoint = match checkpoint::read(self.disk, &self.uuid) {
            Ok(checkpoint) => checkpoint,
            Err(EngineError::Corrupt(place)) => {
                (self.lost)(Lost { place, rows: LostRows::Unknown });
                None
            }
            Err(why) => return Err(why),
        };
        let segments = self.segments(checkpoint)?;
        self.done = checkpoint.map(|checkpoint| checkpoint.position);
        let mut changes = 0;
        for segment in &segments {
            changes += self.read_segment(segment)?;
        }
        let durable = checkpoint.map_or(0, |checkpoint| checkpoint.durable);
        let is_short = self.done.is_some_and(|done| done < durable);
        if is_short || self.pending.as_ref().is_some_and(|damage| damage.is_record) {
            self.report_gap("the end of the log");
        }
        Ok(changes)
    }

    /// The segments from the checkpoint on, oldest first.
    fn segments(
        &mut self,
        checkpoint: Option<Checkpoint>,
    ) -> Result<VecDeque<Segment>, EngineError> {
        let fail = |why: std::io::Error| io_error("reading the log", &why);
        let mut segments = Vec::new();
        for name in self.disk.list().map_err(fail)? {
            let Some(generation) = generation_of(&name) else { continue };
            let path = self.disk.describe(&name);
            let file = self.disk.open(&name).map_err(fail)?;
            let len = usize::try_from(file.len().map_err(fail)?)
                .unwrap_or(usize::MAX)
                .min(SEGMENT_HEADER);
            let mut block = vec![0; len];
            file.read_at(&mut block, 0).map_err(fail)?;
            let (epoch, base) = match decode_segment_header(&block, &self.uuid, &path) {
                Ok((header, _)) => (header.epoch, header.base),
                // Its name has the generation, which the records are checked with; nothing is lost
                // with the rest.
                Err(EngineError::Corrupt(_)) => (Epoch(u64::MAX), Position::MAX),
                Err(why) => return Err(why),
            };
            segments.push(Segment { generation, path, file, epoch, base, limit: Position::MAX });
        }
        let begun: Vec<_> = segments.iter().map(|segment| (segment.epoch, segment.base)).collect();
        for segment in &mut segments {
            let later =
                begun.iter().filter(|(epoch, _)| *epoch > segment.epoch).map(|(_, base)| *base);
            segment.limit = later.min().unwrap_or(Position::MAX);
        }
        segments
            .retain(|segment| checkpoint.is_none_or(|from| segment.generation >= from.generation));
        segments.sort_by_key(|segment| segment.generation);
        Ok(segments.into())
    }

    fn read_segment(&mut self, segment: &Segment) -> Result<u64, EngineError> {
        let fail = |why: std::io::Error| io_error(&format!("reading {}", segment.path), &why);
        let mut bytes = vec![0; usize::try_from(segment.file.len().map_err(fail)?).unwrap_or(0)];
        segment.file.read_at(&mut bytes, 0).map_err(fail)?;
        let mut changes = 0;
        let mut at = SEGMENT_HEADER;
        while at < bytes.len() {
            let repaired = match decode_record(&bytes[at..], segment.generation) {
                Some(_) => None,
                None => unflip(&bytes[at..], segment.generation).filter(|repaired| {
                    decode_record(repaired, segment.generation)
                        .is_some_and(|(record, _)| self.may_follow(record))
                }),
            };
            let found =
                decode_record(repaired.as_deref().unwrap_or(&bytes[at..]), segment.generation);
            let Some((record, payload)) = found else {
                let next = self.next_record(&bytes, at, segment);
                self.keep(&bytes[at..next.unwrap_or(bytes.len())], at, segment);
                let Some(next) = next else { break };
                at = next;
                continue;
            };
            if repaired.is_some() {
                log::warn!(
                    "{}: one flipped bit of the record at byte {at} was set right",
                    segment.path
                );
            }
            if record.position > segment.limit {
                break;
            }
            if record.kind == Kind::Batch && self.done.is_none_or(|done| record.position > done) {
                if self.done.is_some_and(|done| record.position > done + 1) {
                    self.report_gap(&format!("{}: before byte {at}", segment.path));
                }
                self.pending = None;
                self.done = Some(record.position);
                if let Ok(mutations) = decode_mutations(payload) {
                    changes += mutations.len() as u64;
                    (self.recovered)(to_owned(&mutations))?;
                }
            }
            at += record.bytes();
        }
        Ok(changes)
    }

    /// Whether a record can be the next one, or one that was read already.
    fn may_follow(&self, record: Record) -> bool {
        self.done.is_none_or(|done| record.position <= done + 1)
    }

    /// Where behind damage the next record begins.
    fn next_record(&self, bytes: &[u8], at: usize, segment: &Segment) -> Option<usize> {
        (at + ALIGN..bytes.len().saturating_sub(RECORD_HEADER - 1)).step_by(ALIGN).find(|next| {
            decode_record(&bytes[*next..], segment.generation)
                .is_some_and(|(record, _)| self.done.is_none_or(|done| record.position >= done))
        })
    }

    /// Remembers what damaged bytes say that they change. They may be no record at all, but what a
    /// recycled segment had there.
    fn keep(&mut self, bytes: &[u8], at: usize, segment: &Segment) {
        let record = decode_header(bytes, segment.generation);
        let end = record.map_or(bytes.len(), |record| record.bytes().min(bytes.len()));
        let keys = keys_in(bytes.get(RECORD_HEADER..end).unwrap_or_default());
        if record.is_none() && keys.is_empty() {
            return;
        }
        let place = format!("{}: the batch at byte {at}", segment.path);
        let damage = self.pending.get_or_insert_with(|| Damage {
            place: String::new(),
            keys: Vec::new(),
            is_record: false,
        });
        if damage.place.is_empty() || record.is_some() && !damage.is_record {
            damage.place = place;
        }
        damage.is_record |= record.is_some();
        damage.keys.extend(keys);
    }

    /// Reports that batches are missing before `place`.
    fn report_gap(&mut self, place: &str) {
        let none = || Damage { place: place.to_string(), keys: Vec::new(), is_record: false };
        let Damage { place, keys, .. } = self.pending.take().unwrap_or_else(none);
        let rows = if keys.is_empty() { LostRows::Unknown } else { LostRows::Changed(keys) };
        (self.lost)(Lost { place, rows });
    }
}

/// Keys of the mutations in a damaged payload, as far as they can be read.
fn keys_in(payload: &[u8]) -> Vec<Key> {
    let mut reader = Reader::new(payload);
    let mut keys = Vec::new();
    let mut next = || {
        let table = Table::from_u8(reader.u8().ok()?)?;
        let id = reader.u64().ok()?;
        let suffix: Box<[u8]> = reader.string(SUFFIX_MAX).ok()?.into();
        let value_len = reader.varint32().ok()?;
        if value_len > 0 {
            reader.bytes(value_len as usize - 1).ok()?;
        }
        Some(Key { table, id, suffix })
    };
    while let Some(key) = next() {
        // What is only zeros is padding.
        if key.id == 0 && key.suffix.is_empty() {
            break;
        }
        keys.push(key);
    }
    keys
}

/// Where temporary files of a salvage into `dir` go.
pub fn scratch_in(dir: &Path) -> PathBuf {
    dir.join("salvage.tmp")
}
