//! The bytes of what members ask each other for at snapshots.

use kestrel_meta::rows::Missing;
use kestrel_types::codec::{DecodeError, Reader, put_varint};

use super::{
    KEY_MIN, SPAN_MIN, key, list, put_ids, put_key, put_list, put_row, put_span, put_span_rows,
    row, span, span_rows,
};
use crate::message::snapshot_reads::{ReadId, SnapshotReadMessage};

// Numbers are never given to another message.
const ROWS: u8 = 1;
const GOT_ROWS: u8 = 2;
const PARENTS: u8 = 3;
const GOT_PARENTS: u8 = 4;
const GONE: u8 = 5;
const BUSY: u8 = 6;
const TOO_LARGE: u8 = 7;

fn put_id(out: &mut Vec<u8>, kind: u8, id: ReadId) {
    out.push(kind);
    put_varint(out, id.number);
    put_varint(out, u64::from(id.round));
}

fn id(r: &mut Reader<'_>) -> Result<ReadId, DecodeError> {
    Ok(ReadId { number: r.varint()?, round: r.varint32()? })
}

pub(super) fn put(out: &mut Vec<u8>, message: &SnapshotReadMessage) {
    match message {
        SnapshotReadMessage::Rows { id, table, snapshot, rows } => {
            put_id(out, ROWS, *id);
            put_varint(out, *table);
            put_varint(out, *snapshot);
            put_list(out, &rows.keys, put_key);
            put_list(out, &rows.spans, put_span);
        }
        SnapshotReadMessage::GotRows { id, rows, spans } => {
            put_id(out, GOT_ROWS, *id);
            put_list(out, rows, |out, (key, value)| put_row(out, key, value.as_deref()));
            put_list(out, spans, put_span_rows);
        }
        SnapshotReadMessage::Parents { id, table, dirs } => {
            put_id(out, PARENTS, *id);
            put_varint(out, *table);
            put_list(out, dirs, |out, (dir, snapshots)| {
                put_varint(out, *dir);
                put_ids(out, snapshots);
            });
        }
        SnapshotReadMessage::GotParents { id, dirs } => {
            put_id(out, GOT_PARENTS, *id);
            put_list(out, dirs, |out, above| put_ids(out, above));
        }
        SnapshotReadMessage::Gone(id) => put_id(out, GONE, *id),
        SnapshotReadMessage::Busy(id) => put_id(out, BUSY, *id),
        SnapshotReadMessage::TooLarge(id) => put_id(out, TOO_LARGE, *id),
    }
}

pub(super) fn take(r: &mut Reader<'_>) -> Result<SnapshotReadMessage, DecodeError> {
    let ids = |r: &mut Reader<'_>| list(r, 1, Reader::varint);
    let (kind, id) = (r.u8()?, id(r)?);
    Ok(match kind {
        ROWS => {
            let (table, snapshot) = (r.varint()?, r.varint()?);
            let rows = Missing { keys: list(r, KEY_MIN, key)?, spans: list(r, SPAN_MIN, span)? };
            SnapshotReadMessage::Rows { id, table, snapshot, rows }
        }
        GOT_ROWS => SnapshotReadMessage::GotRows {
            id,
            rows: list(r, KEY_MIN + 1, row)?,
            spans: list(r, SPAN_MIN + 1, span_rows)?,
        },
        PARENTS => {
            let table = r.varint()?;
            let dirs = list(r, 2, |r| Ok((r.varint()?, ids(r)?)))?;
            SnapshotReadMessage::Parents { id, table, dirs }
        }
        GOT_PARENTS => SnapshotReadMessage::GotParents { id, dirs: list(r, 1, ids)? },
        GONE => SnapshotReadMessage::Gone(id),
        BUSY => SnapshotReadMessage::Busy(id),
        TOO_LARGE => SnapshotReadMessage::TooLarge(id),
        _ => return Err(DecodeError("an unknown message about a snapshot's rows")),
    })
}
