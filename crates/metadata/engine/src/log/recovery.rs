//! Reading the log back.
//!
//! Where the log ends: at the first place, after the checkpoint, where the next record in sequence
//! is not. That is normal for records that no sync covered. But if any valid record behind it marks
//! the missing one as durable, then bytes were lost that must not be, and nothing is touched.

use std::collections::VecDeque;
use std::sync::Arc;

use kestrel_types::ids::Position;

use super::format::{
    ALIGN, Change, Kind, RECORD_HEADER, SEGMENT_HEADER, decode_header, decode_mutations,
    decode_record, decode_segment_header, encode_segment_header, to_owned,
};
use super::segments::{Segments, Sizes, freed_generation_of, generation_of, name_of};
use super::{Older, Start};
use crate::checkpoint::Checkpoint;
use crate::disk::{Disk, DiskFile};
use crate::fence::{self, Fenced};
use crate::small_record::{ADVICE, Uuid};
use crate::{EngineError, Epoch, Mutation};

/// Decides about a batch that no sync marker covers: false cuts the log before it.
pub type Verify<'a> = dyn FnMut(&[Mutation]) -> bool + 'a;

/// Receives each batch that counts, in order.
pub(crate) type Apply<'a> = dyn FnMut(Position, &[Change<'_>]) + 'a;

struct Found {
    generation: u64,
    name: String,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    epoch: Epoch,
    /// Position that no record here may be above: a later opening went on from there. A process
    /// that had not noticed may have appended more, and acknowledged nothing of it.
    limit: Position,
    /// Position of the last batch in the valid sequence, if it has one.
    last: Option<Position>,
}

/// Where the valid sequence ends.
struct End {
    segment: usize,
    offset: usize,
    next: Position,
    durable: Position,
}

fn io(what: &str, file: &str, why: &std::io::Error) -> EngineError {
    EngineError::Io(format!("metadata log: {what} {file} failed: {why}"))
}

/// What recovery goes by.
pub(crate) struct RecoveryContext {
    pub disk: Arc<dyn Disk>,
    pub uuid: Uuid,
    pub sizes: Sizes,
}

/// Recovers the log of a volume: begins an epoch, applies every batch above the checkpoint, cuts
/// off what is not to be believed, and answers where to go on. Changes nothing on the disk but the
/// epoch if it fails.
pub(crate) fn recover(
    RecoveryContext { disk, uuid, sizes }: RecoveryContext,
    checkpoint: Checkpoint,
    verify: &mut Verify<'_>,
    apply: &mut Apply<'_>,
) -> Result<Start, EngineError> {
    let names = disk.list().map_err(|why| io("listing", &disk.describe(""), &why))?;
    let (mut found, mut begun, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for name in &names {
        let Some(generation) = generation_of(name) else { continue };
        let path = disk.describe(name);
        let file = disk.open(name).map_err(|why| io("opening", &path, &why))?;
        let bytes = file.len().map_err(|why| io("reading", &path, &why))?;
        let mut block =
            vec![0; SEGMENT_HEADER.min(usize::try_from(bytes).unwrap_or(SEGMENT_HEADER))];
        file.read_at(&mut block, 0).map_err(|why| io("reading", &path, &why))?;
        let (header, is_whole) = decode_segment_header(&block, &uuid, &path)?;
        if !is_whole {
            damaged.push((path.clone(), file.clone(), header));
        }
        if header.generation != generation {
            return Err(EngineError::Corrupt(format!(
                "log segment {path}: is a copy of another one"
            )));
        }
        begun.push((header.epoch, header.base));
        let (name, epoch) = (name.clone(), header.epoch);
        found.push(Found {
            generation,
            name,
            file,
            bytes,
            epoch,
            limit: Position::MAX,
            last: None,
        });
    }
    found.sort_by_key(|found| found.generation);
    for segment in &mut found {
        let later = begun.iter().filter(|(epoch, _)| *epoch > segment.epoch).map(|(_, base)| *base);
        segment.limit = later.min().unwrap_or(Position::MAX);
    }
    let newest = begun.iter().map(|(epoch, _)| *epoch).max().unwrap_or_default();
    // From here on a process that still has the files acknowledges nothing as durable; so the
    // records may be read.
    let fence = Arc::new(Fenced::open(&*disk, &uuid, newest)?);
    let (old, mut live): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|found| found.generation < checkpoint.generation);
    if live.first().is_none_or(|first| first.generation != checkpoint.generation) {
        return Err(EngineError::Corrupt(format!(
            "log segment {} is missing, where the checkpoint says that the log begins; {ADVICE}",
            disk.describe(&name_of(checkpoint.generation))
        )));
    }
    let mut end = find_end(&mut live, checkpoint, &*disk)?;
    replay(&live, &mut end, checkpoint.position, verify, apply, &*disk)?;

    // From here on the disk is changed: mend what one copy of a header is enough for, and then make
    // sure that what was cut off never comes back.
    for (path, file, header) in damaged {
        let block = encode_segment_header(&uuid, header);
        file.write_at(&block, 0)
            .and_then(|()| file.sync())
            .map_err(|why| io("mending", &path, &why))?;
        log::warn!("log segment {path}: its header was damaged and has been mended from its copy");
    }
    let highest = names
        .iter()
        .filter_map(|name| generation_of(name).or_else(|| freed_generation_of(name)))
        .max()
        .unwrap_or(checkpoint.generation);
    let cut = &live[end.segment];
    clear_record(cut, end.offset).map_err(|why| io("cutting", &disk.describe(&cut.name), &why))?;
    let mut segments = Segments {
        disk: disk.clone(),
        uuid,
        epoch: fence.held(),
        base: end.next - 1,
        fence,
        sizes,
        next_generation: highest + 1,
        free: Vec::new(),
    };
    let fail = |why: std::io::Error| io("recycling below", &disk.describe(""), &why);
    for name in &names {
        if name.ends_with(".tmp") && name != fence::TEMPORARY {
            disk.remove(name).map_err(fail)?;
        } else if freed_generation_of(name).is_some() {
            segments.adopt(name).map_err(fail)?;
        }
    }
    let mut older = VecDeque::new();
    let mut unsynced = Vec::new();
    let mut surplus: Vec<(u64, u64)> =
        old.iter().map(|segment| (segment.generation, segment.bytes)).collect();
    for (index, segment) in live.into_iter().enumerate() {
        match segment.last {
            Some(last) if index <= end.segment && last > checkpoint.position => {
                older.push_back(Older {
                    generation: segment.generation,
                    bytes: segment.bytes,
                    last,
                });
                unsynced.push(segment.file);
            }
            _ => surplus.push((segment.generation, segment.bytes)),
        }
    }
    disk.sync_names().map_err(fail)?;
    let position = end.next - 1;
    Ok(Start { segments, older, unsynced, surplus, position, durable: end.durable.min(position) })
}

fn read(segment: &Found, disk: &dyn Disk) -> Result<Vec<u8>, EngineError> {
    let len = usize::try_from(segment.bytes)
        .map_err(|_| EngineError::Io("log segment too large".into()))?;
    let mut bytes = vec![0; len];
    segment
        .file
        .read_at(&mut bytes, 0)
        .map_err(|why| io("reading", &disk.describe(&segment.name), &why))?;
    Ok(bytes)
}

/// Follows the sequence of records above `checkpoint` through the segments.
fn find_end(
    live: &mut [Found],
    checkpoint: Checkpoint,
    disk: &dyn Disk,
) -> Result<End, EngineError> {
    let Checkpoint { position: checkpoint, durable, .. } = checkpoint;
    let mut end = End { segment: 0, offset: SEGMENT_HEADER, next: checkpoint + 1, durable };
    // The first segment may begin with batches that the checkpoint covers.
    let mut next: Option<Position> = None;
    let mut ended: Option<Vec<u8>> = None;
    let mut place = String::new();
    for (index, segment) in live.iter_mut().enumerate() {
        let bytes = read(segment, disk)?;
        let mut offset = SEGMENT_HEADER;
        while let Some((record, _)) =
            bytes.get(offset..).and_then(|rest| decode_record(rest, segment.generation))
        {
            let follows = match (record.kind, next) {
                (Kind::Batch, Some(next)) => record.position == next,
                (Kind::Marker, Some(next)) => record.position + 1 == next,
                (Kind::Batch, None) => record.position <= checkpoint + 1,
                (Kind::Marker, None) => record.position <= checkpoint,
            };
            if !follows || record.position > segment.limit {
                break;
            }
            offset += record.bytes();
            next = Some(record.position + 1);
            segment.last = Some(record.position);
            end.durable = end.durable.max(record.durable);
        }
        if index == 0 || offset > SEGMENT_HEADER {
            // What is left in the segment before is an earlier end, from which an earlier recovery
            // went on here.
            (end.segment, end.offset) = (index, offset);
            place = format!("{}: the record at byte {offset}", disk.describe(&segment.name));
            ended = Some(bytes);
        } else {
            let place = format!("{place}, or the first one of {},", disk.describe(&segment.name));
            deny_durable(segment, &bytes[offset..], next.unwrap_or(checkpoint + 1), &place)?;
        }
    }
    end.next = next.unwrap_or(checkpoint + 1);
    if end.next <= durable {
        return Err(EngineError::Corrupt(format!(
            "log segment {place} is damaged or missing, although the checkpoint says that it was \
             durable (position {}); \
             nothing was changed; {ADVICE}",
            end.next
        )));
    }
    if let Some(bytes) = ended {
        deny_durable(&live[end.segment], &bytes[end.offset..], end.next, &place)?;
    }
    Ok(end)
}

/// Fails if a record somewhere in `bytes` proves that the batch at `missing`, which should be at
/// `place`, was durable.
fn deny_durable(
    segment: &Found,
    bytes: &[u8],
    missing: Position,
    place: &str,
) -> Result<(), EngineError> {
    let proves = |at| {
        decode_header(&bytes[at..], segment.generation)
            .is_some_and(|record| record.durable >= missing && record.position <= segment.limit)
    };
    if (0..bytes.len().saturating_sub(RECORD_HEADER - 1)).step_by(ALIGN).any(proves) {
        return Err(EngineError::Corrupt(format!(
            "log segment {place} is damaged or missing, although a later one says that it was \
             durable (position {missing}); \
             nothing was changed; {ADVICE}"
        )));
    }
    Ok(())
}

/// Applies the sequence up to `end`, or up to the first batch that `verify` rejects; then that
/// becomes the end.
fn replay(
    live: &[Found],
    end: &mut End,
    checkpoint: Position,
    verify: &mut Verify<'_>,
    apply: &mut Apply<'_>,
    disk: &dyn Disk,
) -> Result<(), EngineError> {
    let mut done = checkpoint;
    for (index, segment) in live.iter().enumerate().take(end.segment + 1) {
        let bytes = read(segment, disk)?;
        let mut offset = SEGMENT_HEADER;
        while let Some((record, payload)) =
            bytes.get(offset..).and_then(|rest| decode_record(rest, segment.generation))
        {
            if record.position >= end.next
                || record.position > segment.limit
                || (index == end.segment && offset >= end.offset)
            {
                break;
            }
            let start = offset;
            offset += record.bytes();
            if record.kind != Kind::Batch || record.position != done + 1 {
                continue;
            }
            let mutations = decode_mutations(payload).map_err(|why| {
                EngineError::Corrupt(format!(
                    "log segment {}: the batch at byte {start} cannot be understood: {why}",
                    disk.describe(&segment.name)
                ))
            })?;
            if record.position > end.durable && !verify(&to_owned(&mutations)) {
                (end.segment, end.offset, end.next) = (index, start, record.position);
                return Ok(());
            }
            apply(record.position, &mutations);
            done = record.position;
        }
    }
    Ok(())
}

/// Makes the record at `offset` invalid for good, if there could be one.
fn clear_record(segment: &Found, offset: usize) -> std::io::Result<()> {
    let room = usize::try_from(segment.bytes)
        .unwrap_or(usize::MAX)
        .saturating_sub(offset)
        .min(RECORD_HEADER);
    let mut header = vec![0; room];
    segment.file.read_at(&mut header, offset as u64)?;
    if header.iter().any(|byte| *byte != 0) {
        segment.file.write_at(&vec![0; room], offset as u64)?;
        segment.file.sync()?;
    }
    Ok(())
}
