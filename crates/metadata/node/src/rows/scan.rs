//! Ranges of rows: all of a file's, or as many as one batch may take.

use std::ops::ControlFlow;

use kestrel_types::ids::Position;
use kestrel_types::key::{Table, number_of};

use super::{BatchRows, READ_BYTES_MAX, Value, too_large};
use kestrel_engine::{Engine, EngineError};

/// Most bytes of rows that such a scan takes in, but always one row: their extents may all be in
/// different objects.
const SCAN_BYTES_MAX: usize = 4 << 20;

/// A row that a scan found: suffix, place in the batch's buffer, position of the last change.
pub(super) type Scanned = (Vec<u8>, u32, u32, Position);

/// Whether a scan of chunks that takes `most` rows, and has so many, takes no other, with which it
/// would have so many bytes.
pub fn is_full(most: usize, rows: usize, bytes: usize) -> bool {
    rows >= most || bytes > SCAN_BYTES_MAX && rows > 0
}

impl BatchRows {
    pub(super) fn scan(
        &mut self,
        engine: &dyn Engine,
        table: Table,
        id: u64,
        first: u64,
        most: usize,
    ) -> Result<(), EngineError> {
        let mut found: Vec<Scanned> = Vec::new();
        let after = first.checked_sub(1).map(u64::to_be_bytes);
        let (mut too_much, mut left_out, mut bytes) = (false, None, 0);
        let values = &mut self.values;
        let deleted_at = engine.scan(
            table,
            id,
            after.as_ref().map(|a| &a[..]),
            &mut |suffix, value, changed_at| {
                bytes += value.len();
                if table == Table::Chunk && is_full(most, found.len(), bytes) {
                    left_out = Some(number_of(suffix));
                    return ControlFlow::Break(());
                }
                if values.len() + value.len() > READ_BYTES_MAX {
                    too_much = true;
                    return ControlFlow::Break(());
                }
                let start = values.len() as u32;
                values.extend_from_slice(value);
                found.push((suffix.to_vec(), start, value.len() as u32, changed_at));
                ControlFlow::Continue(())
            },
        )?;
        if too_much {
            return Err(too_large());
        }
        self.take_scan(table, id, first, &found, left_out, deleted_at);
        Ok(())
    }

    /// Takes in what a scan found: suffix, place in the batch's buffer, position of the last
    /// change.
    pub(super) fn take_scan(
        &mut self,
        table: Table,
        id: u64,
        first: u64,
        found: &[Scanned],
        left_out: Option<u64>,
        deleted_at: Position,
    ) {
        for (suffix, start, len, changed_at) in found {
            let number = self.cell(table, id, suffix);
            let cell = &mut self.cells[number as usize];
            if matches!(cell.value, Value::Wanted) {
                cell.value = Value::Raw(*start, *len);
                cell.changed_at = (*changed_at).max(deleted_at);
            }
        }
        if let Some(next) = left_out {
            self.partial.insert((table, id), (first, next));
            self.wanted
                .retain(|number| matches!(self.cells[*number as usize].value, Value::Wanted));
            return;
        }
        // Cells that were wanted one by one and did not turn up do not exist.
        let group = self.groups.get(&(table, id)).cloned().unwrap_or_default();
        for number in group {
            let in_range = table != Table::Chunk || number_of(self.suffix(number)) >= first;
            let cell = &mut self.cells[number as usize];
            if in_range && matches!(cell.value, Value::Wanted) {
                cell.value = Value::Absent;
                cell.stored = false;
                cell.changed_at = deleted_at;
            }
        }
        self.wanted.retain(|number| matches!(self.cells[*number as usize].value, Value::Wanted));
        self.scanned.insert((table, id), first);
    }
}
