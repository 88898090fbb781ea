//! Warming up: bringing the bytes and rows of files into the local cache, counting those that are
//! there, dropping them.
//!
//! Walks the rows of a volume in use, gathers where the files' bytes lie, joins what lies together
//! (a pack holds many files: their bytes come with few requests), and has the local cache filled
//! with some threads. Nothing is remembered between runs: what is there already is not read again,
//! so a run that was cut off is resumed by repeating it.
//!
//! Memory: `SPANS_MAX` spans of 24 bytes at a time, and the local cache's own for each thread.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use kestrel_blockstore::frame::stored_window;
use kestrel_blockstore::store::LocalCache;
use kestrel_engine::Engine;
use kestrel_types::extent::{ExtentList, Source};
use kestrel_types::ids::ObjectId;
use kestrel_types::inode::Data;
use kestrel_types::key::{Key, Table};
use kestrel_types::range::Range;

use crate::idset::IdSet;
use crate::info::InfoError;
use crate::references::decode_all;
use crate::rows::get_all;
use crate::tree::{File, walk};

/// Spans gathered before they are joined and dealt with.
const SPANS_MAX: usize = 64 * 1024;

/// Spans closer than this are one, bytes: a second request costs more than what lies between.
const GAP_BYTES: u64 = 64 * 1024;

/// Longest piece filled at a time, bytes.
const PIECE_BYTES: u64 = 4 << 20;

/// Most threads.
pub const THREADS_MAX: usize = 256;

/// Failures after which it gives up: a cache that cannot take anything does not get a request for
/// every byte.
const FAILURES_MAX: u64 = 1000;

/// Failures described.
const DESCRIBED_MAX: usize = 20;

/// What to do with the bytes of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Bring them into the cache.
    Fill,
    /// Count how many are there.
    Check,
    /// Drop the objects they lie in, which may hold other files' bytes too.
    Evict,
}

/// What to do, to which files.
pub struct Options<'a> {
    /// Paths below the root, `/` between names; directories with all that is below them.
    pub paths: &'a [Vec<u8>],
    /// What to do with file data; `None`: leave it alone.
    pub data: Option<(Act, &'a dyn LocalCache)>,
    /// Read the rows of the files into memory.
    pub metadata: bool,
    /// Threads that wait for the store, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Called often; false ends the work.
    pub go_on: &'a dyn Fn() -> bool,
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files looked at.
    pub files: u64,
    /// Bytes in the store that they consist of, checksums included; what several share counts once,
    /// as a rule.
    pub bytes: u64,
    /// Of these, how many are in the cache: before, for [`Act::Check`]; after, for [`Act::Fill`].
    pub cached_bytes: u64,
    /// Bytes dropped from the cache.
    pub evicted_bytes: u64,
    /// Rows read into memory.
    pub rows: u64,
    /// Paths that lead nowhere.
    pub missing: u64,
    /// Pieces that could not be filled.
    pub failed: u64,
    /// Paths and pieces that failed and why, the first few.
    pub failures: Vec<String>,
    /// It ended before everything was done: too many failures, or `go_on` was false.
    pub unfinished: bool,
}

/// A part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    object: ObjectId,
    from: u64,
    to: u64,
}

/// Warms up. `report` gets the files and the bytes dealt with so far.
///
/// # Errors
/// If the metadata cannot be read; what was done stays done.
pub fn run(
    engine: &dyn Engine,
    options: &Options<'_>,
    report: &mut dyn FnMut(u64, u64),
) -> Result<Totals, InfoError> {
    let mut work =
        Work { options, totals: Totals::default(), spans: Vec::new(), evicted: IdSet::default() };
    for path in options.paths {
        let mut failed = None;
        let walked = walk(engine, path, &mut |file| {
            failed = work.file(engine, &file).err();
            if failed.is_none() && work.spans.len() >= SPANS_MAX {
                work.deal(report);
            } else if work.totals.files.is_multiple_of(1024) {
                report(work.totals.files, work.totals.bytes);
                work.totals.unfinished |= !(options.go_on)();
            }
            if failed.is_some() || work.totals.unfinished {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        match walked {
            Err(InfoError::NotFound) => {
                work.totals.missing += 1;
                work.describe(format!("{}: no such file", crate::rows::readable(path)));
            }
            other => other?,
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if work.totals.unfinished {
            return Ok(work.totals);
        }
    }
    work.deal(report);
    Ok(work.totals)
}

struct Work<'a> {
    options: &'a Options<'a>,
    totals: Totals,
    spans: Vec<Span>,
    evicted: IdSet,
}

impl Work<'_> {
    fn describe(&mut self, failure: String) {
        if self.totals.failures.len() < DESCRIBED_MAX {
            self.totals.failures.push(failure);
        }
    }

    fn file(&mut self, engine: &dyn Engine, file: &File) -> Result<(), InfoError> {
        self.totals.files += 1;
        if self.options.metadata {
            // Reading a row by its key keeps it in memory; the walk's scan need not.
            let keys = [
                Key::new(Table::Entry, file.place.0, &file.place.1),
                Key::new(Table::Link, file.inode.ino, &[]),
            ];
            self.totals.rows += get_all(engine, &keys)?.iter().flatten().count() as u64;
        }
        match &file.inode.data {
            Data::Packed { range, visible } if *visible > 0 => self.span(*range, 0, *visible),
            Data::Chunked => self.chunks(engine, file)?,
            _ => {}
        }
        Ok(())
    }

    fn chunks(&mut self, engine: &dyn Engine, file: &File) -> Result<(), InfoError> {
        let mut keys = Vec::new();
        engine.scan(Table::Chunk, file.inode.ino, None, &mut |suffix, value, _| {
            keys.push(Key::new(Table::Chunk, file.inode.ino, suffix));
            for extent in decode_all(value, ExtentList::decode).unwrap_or_default().extents() {
                if let Source::Stored { range, skip } = extent.source {
                    self.span(range, skip, extent.len);
                }
            }
            ControlFlow::Continue(())
        })?;
        if self.options.metadata {
            self.totals.rows += get_all(engine, &keys)?.iter().flatten().count() as u64;
        }
        Ok(())
    }

    fn span(&mut self, range: Range, skip: u32, len: u32) {
        if self.options.data.is_some() {
            let (from, len) = stored_window(&range, skip, len);
            self.spans.push(Span { object: range.object, from, to: from + len });
        }
    }

    /// Deals with what was gathered.
    fn deal(&mut self, report: &mut dyn FnMut(u64, u64)) {
        let Some((act, cache)) = self.options.data else { return };
        let gap = if act == Act::Fill { GAP_BYTES } else { 0 };
        let spans = joined(std::mem::take(&mut self.spans), gap);
        match act {
            Act::Evict => {
                for span in spans {
                    self.totals.bytes += span.to - span.from;
                    if self.evicted.insert(span.object) {
                        self.totals.evicted_bytes += cache.evict(span.object);
                    }
                }
            }
            Act::Check => {
                for span in spans {
                    self.totals.bytes += span.to - span.from;
                    self.totals.cached_bytes +=
                        cache.holds(span.object, span.from, span.to - span.from);
                }
            }
            Act::Fill => self.fill(cache, &pieces(&spans), report),
        }
        report(self.totals.files, self.totals.bytes);
        self.totals.unfinished |= !(self.options.go_on)();
    }

    fn fill(&mut self, cache: &dyn LocalCache, pieces: &[Span], report: &mut dyn FnMut(u64, u64)) {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let work = |send: mpsc::Sender<(Span, kestrel_blockstore::Result<()>)>| {
            while !stop.load(Ordering::Relaxed)
                && let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let filled = cache.fill(piece.object, piece.from, piece.to - piece.from);
                if send.send((*piece, filled)).is_err() {
                    return;
                }
            }
        };
        let threads = self.options.threads.clamp(1, THREADS_MAX).min(pieces.len());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (work, send) = (&work, send.clone());
                scope.spawn(move || work(send));
            }
            drop(send);
            // Ends when the last thread has let go of its sender.
            for (piece, filled) in receive {
                let len = piece.to - piece.from;
                self.totals.bytes += len;
                match filled {
                    Ok(()) => self.totals.cached_bytes += len,
                    Err(error) => {
                        self.totals.failed += 1;
                        self.describe(format!(
                            "object {} from byte {}: {error}",
                            piece.object, piece.from
                        ));
                    }
                }
                report(self.totals.files, self.totals.bytes);
                if self.totals.failed >= FAILURES_MAX || !(self.options.go_on)() {
                    self.totals.unfinished = true;
                    stop.store(true, Ordering::Relaxed);
                }
            }
        });
    }
}

/// Sorted, and joined where they overlap or are not more than `gap` apart.
fn joined(mut spans: Vec<Span>, gap: u64) -> Vec<Span> {
    spans.sort_unstable();
    let mut out: Vec<Span> = Vec::new();
    for span in spans {
        match out.last_mut() {
            Some(last) if last.object == span.object && span.from <= last.to + gap => {
                last.to = last.to.max(span.to);
            }
            _ => out.push(span),
        }
    }
    out
}

fn pieces(spans: &[Span]) -> Vec<Span> {
    let split = |span: &Span| {
        let Span { object, from, to } = *span;
        let starts = (from..to).step_by(PIECE_BYTES as usize);
        starts.map(move |at| Span { object, from: at, to: to.min(at + PIECE_BYTES) })
    };
    spans.iter().flat_map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spans of one object that lie close to each other are joined, and a long span is cut into
    /// pieces.
    #[test]
    fn span_joining_and_cutting() {
        let span = |object, from, to| Span { object, from, to };
        let spans = vec![
            span(2, 0, 10),
            span(1, 100, 200),
            span(1, 150, 160),
            span(1, 300, 400),
            span(1, 9 << 20, 10 << 20),
            span(2, 5, 20),
        ];
        let cache = joined(spans.clone(), GAP_BYTES);
        assert_eq!(cache, [span(1, 100, 400), span(1, 9 << 20, 10 << 20), span(2, 0, 20)]);
        let exact = joined(spans, 0);
        assert_eq!(exact[..2], [span(1, 100, 200), span(1, 300, 400)]);
        assert_eq!(
            pieces(&[span(3, 1, 1 + PIECE_BYTES + 5)]),
            [span(3, 1, 1 + PIECE_BYTES), span(3, 1 + PIECE_BYTES, 6 + PIECE_BYTES)]
        );
    }
}
