//! Reads every stored byte that a file refers to, past all caches, and verifies its checksums.
//!
//! References are gathered and sorted by where they lie: what lies together in an object (the files
//! of a pack) comes with one request, and several threads wait for the store. Memory: [`BATCH`]
//! references of about 150 bytes, and [`SPAN_BYTES`] a thread.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_blockstore::scan::verify_range;
use kestrel_blockstore::store::{BlockStore, Page, Usage};
use kestrel_blockstore::{Error, ErrorKind, Result};
use kestrel_types::ids::ObjectId;
use kestrel_types::key::Key;
use kestrel_types::range::Range;

use super::name::name_files_of;
use super::{Check, CheckError, ReadData};
use crate::finding::{Finding, FindingKind};
use crate::references::{Reference, Seen, for_each};

/// References gathered at a time.
const BATCH: usize = 32 * 1024;

/// Most bytes read at once for several ranges.
const SPAN_BYTES: u64 = 4 << 20;

/// Ranges of an object farther apart than this are read by themselves, bytes.
const GAP_BYTES: u64 = 64 * 1024;

/// Most threads.
const THREADS_MAX: usize = 256;

pub fn check(
    check: &mut Check<'_>,
    store: &dyn BlockStore,
    how: ReadData<'_>,
) -> std::result::Result<(), CheckError> {
    let engine = check.engine;
    let mut work = Work {
        store,
        how,
        batch: Vec::new(),
        bytes: 0,
        archived_bytes: 0,
        bad: Vec::new(),
        unreachable: None,
    };
    let progress = &mut check.progress;
    for_each(engine, &mut |seen| {
        let Seen::Reference(Reference { row, range, .. }) = seen else { return };
        // Extents that were cut or cloned point into one range several times, most often one after
        // the other.
        if work.batch.last().is_none_or(|(last, key)| *last != range || key.id != row.id) {
            work.batch.push((range, row.clone()));
        }
        if work.batch.len() >= BATCH {
            work.verify();
            progress("verifying bytes", work.bytes);
        }
    })?;
    work.verify();
    check.totals.verified_bytes = work.bytes;
    check.totals.archived_bytes = work.archived_bytes;
    let rows: Vec<&Key> = work.bad.iter().map(|(_, row, _)| row).collect();
    for (file, (range, _, why)) in name_files_of(engine, &rows)?.into_iter().zip(&work.bad) {
        let why = why.damage();
        let detail = format!("object {} from byte {}: {why}", range.object, range.offset);
        check.found(Finding::new(FindingKind::DataCorrupt, file, detail));
    }
    work.unreachable.map_or(Ok(()), |why| Err(why.into()))
}

struct Work<'a> {
    store: &'a dyn BlockStore,
    how: ReadData<'a>,
    batch: Vec<(Range, Key)>,
    bytes: u64,
    /// In archives, where they cannot be read.
    archived_bytes: u64,
    bad: Vec<(Range, Key, Error)>,
    /// From a store that does not answer nothing can be concluded about what it holds.
    unreachable: Option<Error>,
}

impl Work<'_> {
    /// Verifies what was gathered.
    fn verify(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        if self.unreachable.is_some() {
            return;
        }
        batch.sort_unstable_by(|(a, one), (b, other)| {
            (a.object, a.offset, a.len, one).cmp(&(b.object, b.offset, b.len, other))
        });
        let mut ranges: Vec<Range> = batch.iter().map(|(range, _)| *range).collect();
        ranges.dedup();
        let groups = groups(&ranges);
        let next = AtomicUsize::new(0);
        let verify = || {
            let mut results = Vec::new();
            while (self.how.go_on)()
                && let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed))
            {
                results.extend(verify_group(self.store, group));
            }
            results
        };
        let threads = self.how.threads.clamp(1, THREADS_MAX).min(groups.len());
        let mut results: Vec<(Range, Result<Option<Error>>)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(verify)).collect();
            let results = threads.into_iter().flat_map(|thread| match thread.join() {
                Ok(results) => results,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            results.collect()
        });
        // As they lie, whichever thread was the first: the same damage gives the same report.
        results.sort_unstable_by_key(|(range, _)| (range.object, range.offset, range.len));
        for (range, result) in results {
            let damage = match result {
                Ok(None) => {
                    self.bytes += u64::from(range.len);
                    continue;
                }
                // Reported when the store was listed.
                Err(why) if why.kind() == ErrorKind::NotFound => continue,
                Ok(Some(why)) | Err(why) if why.kind() == ErrorKind::Archived => {
                    self.archived_bytes += u64::from(range.len);
                    continue;
                }
                Err(why)
                    if matches!(why, Error::Remote { .. }) || why.kind() == ErrorKind::Deadline =>
                {
                    self.unreachable = Some(why);
                    continue;
                }
                Ok(Some(why)) | Err(why) => why,
            };
            let first = batch.partition_point(|(other, _)| {
                (other.object, other.offset, other.len) < (range.object, range.offset, range.len)
            });
            let rows = batch[first..].iter().take_while(|(other, _)| *other == range);
            self.bad.extend(rows.map(|(range, row)| (*range, row.clone(), damage.clone())));
        }
    }
}

fn end(range: &Range) -> u64 {
    u64::from(range.offset) + u64::from(range.stored_len())
}

/// Splits sorted ranges into those that are read together.
fn groups(ranges: &[Range]) -> Vec<&[Range]> {
    let mut groups = Vec::new();
    let mut rest = ranges;
    while let Some(first) = rest.first() {
        let mut reach = end(first);
        let count = rest
            .iter()
            .take_while(|range| {
                let joins = range.object == first.object
                    && u64::from(range.offset) <= reach + GAP_BYTES
                    && end(range) - u64::from(first.offset) <= SPAN_BYTES;
                reach = reach.max(end(range));
                joins
            })
            .count();
        // One that is longer than a span is read by itself, in pieces.
        let (group, later) = rest.split_at(count.max(1));
        groups.push(group);
        rest = later;
    }
    groups
}

fn verify_group(store: &dyn BlockStore, group: &[Range]) -> Vec<(Range, Result<Option<Error>>)> {
    let verify_with = |store: &dyn BlockStore| {
        group.iter().map(|range| (*range, verify_range(store, *range))).collect()
    };
    let ([first, .., _], Some(to)) = (group, group.iter().map(end).max()) else {
        return verify_with(store);
    };
    let from = u64::from(first.offset);
    let mut bytes = vec![0; (to - from) as usize];
    match store.read_fresh(first.object, from, &mut [IoSliceMut::new(&mut bytes)]) {
        Ok(()) => verify_with(&Span { store, object: first.object, from, bytes }),
        // Too short, or gone: which of them suffer shows when each is read.
        Err(_) => verify_with(store),
    }
}

/// A store of which a span of one object is at hand.
struct Span<'a> {
    store: &'a dyn BlockStore,
    object: ObjectId,
    from: u64,
    bytes: Vec<u8>,
}

impl Span<'_> {
    fn part(&self, object: ObjectId, offset: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(offset.checked_sub(self.from)?).ok()?;
        self.bytes.get(at..at.checked_add(len)?).filter(|_| object == self.object)
    }
}

impl BlockStore for Span<'_> {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        self.store.put(object, parts)
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        let Some(mut bytes) = self.part(object, offset, len) else {
            return self.store.read_fresh(object, offset, parts);
        };
        for part in parts {
            let (head, tail) = bytes.split_at(part.len());
            part.copy_from_slice(head);
            bytes = tail;
        }
        Ok(())
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        self.store.size(object)
    }

    fn delete(&self, object: ObjectId) -> Result<bool> {
        self.store.delete(object)
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.store.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        self.store.list(after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.store.usage()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_together_is_read_together() {
        let range = |object, offset, len| Range { object, offset, len };
        let ranges = [
            range(1, 80, 100),
            range(1, 300, 100),
            range(1, 1 << 20, 100),
            range(2, 80, 8 << 20),
            range(2, 9 << 20, 100),
            range(3, 80, 3 << 20),
            range(3, (3 << 20) + 1000, 2 << 20),
        ];
        let sizes: Vec<usize> = groups(&ranges).into_iter().map(<[Range]>::len).collect();
        assert_eq!(sizes, [2, 1, 1, 1, 1, 1]);
    }
}
