//! The bytes of what members say of snapshots.

use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::error::FsError;
use kestrel_types::name::NAME_MAX;
use kestrel_types::request::Outcome;
use kestrel_types::snapshot::{HOLDS_MAX, SnapshotInfo};
use kestrel_types::wire::{decode_reply, encode_reply};

use super::{STAMP_MAX, failure, list, put_ids, put_list};
use crate::message::snapshots::{SnapshotMessage, SnapshotOrder};

// What a message says. Numbers are never given to another one.
const STOP: u8 = 1;
const STOPPED: u8 = 2;
const MAKE: u8 = 3;
const MADE: u8 = 4;
const DECLINED: u8 = 5;
const RESUME: u8 = 6;
const KEEP: u8 = 7;
const KEPT: u8 = 8;

/// Longest record of a snapshot, bytes: its names, and some for all else.
const RECORD_BYTES_MAX: usize = (HOLDS_MAX + 1) * (NAME_MAX + 2) + 64;

/// Fewest bytes of a snapshot: its number, the length of a record and a record.
const SNAPSHOT_MIN: usize = 14;

pub(super) fn put(out: &mut Vec<u8>, message: &SnapshotMessage) {
    match message {
        SnapshotMessage::Stop(order) => put_order(out, STOP, *order),
        SnapshotMessage::Stopped { order, stamp, start } => {
            put_order(out, STOPPED, *order);
            put_varint(out, *stamp);
            put_varint(out, *start);
        }
        SnapshotMessage::Make { order, info } => {
            put_order(out, MAKE, *order);
            put_snapshot(out, info);
        }
        SnapshotMessage::Made(order) => put_order(out, MADE, *order),
        SnapshotMessage::Declined { order, why } => {
            put_order(out, DECLINED, *order);
            encode_reply(&Err(Outcome::Failed(why.clone())), out);
        }
        SnapshotMessage::Resume(order) => put_order(out, RESUME, *order),
        SnapshotMessage::Keep { order, records, dropped } => {
            put_order(out, KEEP, *order);
            put_list(out, records, put_snapshot);
            put_ids(out, dropped);
        }
        SnapshotMessage::Kept { order, cleared } => {
            put_order(out, KEPT, *order);
            put_ids(out, cleared);
        }
    }
}

pub(super) fn take(r: &mut Reader<'_>) -> Result<SnapshotMessage, DecodeError> {
    let kind = r.u8()?;
    let order = SnapshotOrder { table: r.varint()?, number: r.varint()? };
    Ok(match kind {
        STOP => SnapshotMessage::Stop(order),
        STOPPED => {
            let stamp = Some(r.varint()?).filter(|stamp| *stamp < STAMP_MAX);
            let stamp = stamp.ok_or(DecodeError("a timestamp out of bounds"))?;
            SnapshotMessage::Stopped { order, stamp, start: r.varint()? }
        }
        MAKE => SnapshotMessage::Make { order, info: snapshot(r)? },
        MADE => SnapshotMessage::Made(order),
        DECLINED => SnapshotMessage::Declined { order, why: why(r)? },
        RESUME => SnapshotMessage::Resume(order),
        KEEP => SnapshotMessage::Keep {
            order,
            records: list(r, SNAPSHOT_MIN, snapshot)?,
            dropped: list(r, 1, Reader::varint)?,
        },
        KEPT => SnapshotMessage::Kept { order, cleared: list(r, 1, Reader::varint)? },
        _ => return Err(DecodeError("an unknown message about snapshots")),
    })
}

fn why(r: &mut Reader<'_>) -> Result<FsError, DecodeError> {
    failure(decode_reply(r)?)
}

fn put_order(out: &mut Vec<u8>, kind: u8, order: SnapshotOrder) {
    out.push(kind);
    put_varint(out, order.table);
    put_varint(out, order.number);
}

/// A snapshot is its number and its record, as a row has it.
fn put_snapshot(out: &mut Vec<u8>, info: &SnapshotInfo) {
    put_varint(out, info.id);
    put_string(out, &info.encode());
}

fn snapshot(r: &mut Reader<'_>) -> Result<SnapshotInfo, DecodeError> {
    let id = r.varint()?;
    SnapshotInfo::decode_record(id, r.string(RECORD_BYTES_MAX)?)
}
