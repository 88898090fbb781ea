//! Scans: rows in memory merged with those below, the sorted runs, in windows, so that no lock is
//! held while rows are shown and memory stays bounded.
//!
//! Why no row is missed: a window's rows are copied out of memory first; then the runs are looked
//! at. A row leaves memory only after the runs have it, so a key that was not in memory has, in
//! runs looked at later, its newest version of that moment or a newer one. A cursor opened for an
//! earlier window may serve a later one only if no row left memory since before it was opened.

use std::ops::ControlFlow;

use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, PREFIX_LEN, Table};

use super::durability::Waiters;
use super::rows::{Copied, GroupKey, MemoryRows, WholeRow, not_durable};
use super::runs::{Bytes, Cursor, Sorted};
use super::small_record::ADVICE;
use super::{EngineError, VisitRow};

/// Rows of the first window; many scans want only a few.
const FIRST_WINDOW: usize = 128;
/// Rows of later windows.
const WINDOW: usize = 1024;
/// A group with at most this many rows in the runs is kept in memory as a whole after it was
/// scanned as a whole.
const KEEP_MAX: usize = 4096;

/// A cursor with the next row already read.
struct Ahead<'a> {
    cursor: Box<dyn Cursor + 'a>,
    next: Option<(Bytes, Bytes)>,
    /// Rows that had left memory when the cursor was opened, or a little less.
    removals: u64,
}

fn bytes_of(key: KeyRef<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_LEN + key.suffix.len() + 1);
    key.encode_into(&mut out);
    out
}

/// The first key bytes behind the group.
fn end_of((table, id): GroupKey) -> Vec<u8> {
    match id.checked_add(1) {
        Some(next) => bytes_of(KeyRef::new(table, next, b"")),
        None => vec![table as u8 + 1],
    }
}

/// The first key bytes behind `key`.
fn behind(key: KeyRef<'_>) -> Vec<u8> {
    let mut out = bytes_of(key);
    out.push(0);
    out
}

fn decode(key: &[u8]) -> Result<KeyRef<'_>, EngineError> {
    KeyRef::decode(key).ok_or_else(|| {
        EngineError::Corrupt(format!("metadata runs: a key cannot be understood; {ADVICE}"))
    })
}

/// Shows a row: key, value or `None` if deleted, position, whether it is from the runs.
type Show<'a> = dyn FnMut(KeyRef<'_>, Option<&[u8]>, Position, bool) -> ControlFlow<()> + 'a;

/// Merges copied rows with the runs: up to the last copied row if `bounded`, else to the cursor's
/// end.
fn merge(
    copied: &Copied,
    bounded: bool,
    ahead: &mut Ahead<'_>,
    show: &mut Show<'_>,
) -> Result<ControlFlow<()>, EngineError> {
    let mut index = 0;
    loop {
        let memory = copied.get(index);
        let run = match &ahead.next {
            Some((key, value)) => Some((decode(key)?, value)),
            None => None,
        };
        let flow = match (memory, run) {
            (None, None) => return Ok(ControlFlow::Continue(())),
            (None, Some(_)) if bounded => return Ok(ControlFlow::Continue(())),
            (Some((key, value, position)), run) if run.is_none_or(|(other, _)| key <= other) => {
                index += 1;
                if run.is_some_and(|(other, _)| key == other) {
                    // Memory has a newer version, or the same.
                    let flow = show(key, value, position, false);
                    ahead.next = ahead.cursor.next()?;
                    flow
                } else {
                    show(key, value, position, false)
                }
            }
            (_, Some((key, value))) => {
                let flow = show(key, Some(value), 0, true);
                ahead.next = ahead.cursor.next()?;
                flow
            }
            // Covered: a row of memory and none of the runs is taken above.
            (Some(_), None) => return Ok(ControlFlow::Continue(())),
        };
        if flow.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
}

/// What scans look at.
pub(super) struct Scans<'a> {
    pub rows: &'a MemoryRows,
    pub below: &'a dyn Sorted,
    pub waiters: &'a Waiters,
    /// Memory for rows, bytes: with more than that no group is kept as a whole.
    pub row_bytes: usize,
}

impl<'a> Scans<'a> {
    fn open_cursor(&self, from: &[u8], to: &[u8], removals: u64) -> Result<Ahead<'a>, EngineError> {
        let mut cursor = self.below.range(from, to);
        let next = cursor.next()?;
        Ok(Ahead { cursor, next, removals })
    }

    /// [`super::Engine::scan`].
    pub fn scan(
        &self,
        group: GroupKey,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        let whole = after.is_none();
        let mut after: Option<Box<[u8]>> = after.map(Into::into);
        let mut copied = Copied::default();
        let mut ahead: Option<Ahead<'_>> = None;
        let mut deleted = 0;
        let mut limit = FIRST_WINDOW;
        let mut first_removals = None;
        let mut kept: Vec<WholeRow> = Vec::new();
        loop {
            let durable = self.waiters.durable();
            copied.clear();
            let (complete, removals) =
                self.rows.copy_group(group, after.as_deref(), limit, &mut copied);
            let first_removals = *first_removals.get_or_insert(removals);
            let bounded = copied.len() == limit;
            let mut show = |key: KeyRef<'_>, value: Option<&[u8]>, position, from_runs| {
                let position = not_durable(position, durable);
                let Some(value) = value else {
                    deleted = deleted.max(position);
                    return ControlFlow::Continue(());
                };
                if from_runs && whole && kept.len() <= KEEP_MAX {
                    kept.push((key.suffix.into(), value.into()));
                }
                visit(key.suffix, value, position)
            };
            if complete {
                for (key, value, position) in copied.iter() {
                    if show(key, value, position, false).is_break() {
                        return Ok(deleted);
                    }
                }
            } else {
                if ahead.as_ref().is_none_or(|ahead| ahead.removals != removals) {
                    let from = match &after {
                        Some(suffix) => behind(KeyRef::new(group.0, group.1, suffix)),
                        None => bytes_of(KeyRef::new(group.0, group.1, b"")),
                    };
                    ahead = Some(self.open_cursor(&from, &end_of(group), removals)?);
                }
                // Just made sure that there is one.
                if let Some(ahead) = &mut ahead
                    && merge(&copied, bounded, ahead, &mut show)?.is_break()
                {
                    return Ok(deleted);
                }
            }
            if !bounded {
                if whole
                    && !complete
                    && kept.len() <= KEEP_MAX
                    && self.rows.bytes() < self.row_bytes
                {
                    self.rows.complete(group, first_removals, &kept);
                }
                return Ok(deleted);
            }
            after = copied.last().map(|(key, ..)| key.suffix.into());
            limit = WINDOW;
        }
    }

    /// [`super::Engine::scan_table`].
    pub fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let start = from.unwrap_or(KeyRef::new(table, 0, b""));
        let ids = self.rows.ids(table, start.id);
        let mut ids = ids.into_iter().peekable();
        // Of the id to come: rows up to here were shown.
        let mut after: Option<Box<[u8]>> = None;
        let mut cursor_from = bytes_of(start);
        let end = vec![table as u8 + 1];
        let mut copied = Copied::default();
        let mut ahead: Option<Ahead<'_>> = None;
        loop {
            copied.clear();
            let before = self.rows.removals();
            while copied.len() < WINDOW {
                let Some(id) = ids.peek().copied() else { break };
                self.rows.copy_group(
                    (table, id),
                    after.as_deref(),
                    WINDOW - copied.len(),
                    &mut copied,
                );
                if copied.len() < WINDOW {
                    ids.next();
                    after = None;
                }
            }
            let bounded = copied.len() == WINDOW;
            if ahead.as_ref().is_none_or(|ahead| ahead.removals != self.rows.removals()) {
                ahead = Some(self.open_cursor(&cursor_from, &end, before)?);
            }
            let mut show = |key: KeyRef<'_>, value: Option<&[u8]>, _, _| match value {
                Some(value) if key >= start => visit(key, value),
                _ => ControlFlow::Continue(()),
            };
            // Just made sure that there is one.
            if let Some(ahead) = &mut ahead
                && merge(&copied, bounded, ahead, &mut show)?.is_break()
            {
                return Ok(());
            }
            match copied.last() {
                Some((key, ..)) if bounded => {
                    after = Some(key.suffix.into());
                    cursor_from = behind(key);
                    // The id may have more rows, or be done; another call is cheap.
                }
                _ => return Ok(()),
            }
        }
    }
}
