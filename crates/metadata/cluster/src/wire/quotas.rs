//! The bytes of what members say of quotas.

use kestrel_meta::node::{CountedFile, CountedPage, QuotaCount, QuotaPart};
use kestrel_meta::quotas::QuotaPair;
use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::ids::InodeId;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;
use kestrel_types::quota::{
    OverSince, QuotaLimits, QuotaRecord, QuotaRow, QuotaSubject, QuotaUsage,
};

use super::{boolean, key, list, put_key, put_list};
use crate::message::quotas::{QuotaAsk, QuotaMessage};
use crate::message::snapshots::SnapshotOrder;

// What a message says. Numbers are never given to another one.
const SYNC: u8 = 1;
const SYNCED: u8 = 2;
const SET: u8 = 3;
const ASK: u8 = 4;
const GRANTED: u8 = 5;
const DENIED: u8 = 6;
const RECALL: u8 = 7;
const RETURNED: u8 = 8;

/// Most bytes of a quota's record in a row.
const LIMITS_BYTES_MAX: usize = 64;

/// Fewest bytes of a quota: a subject, the length of a record, a record, and what is above.
const RECORD_MIN: usize = 9;

/// Fewest bytes of a part of a quota.
const PART_MIN: usize = 18;

pub(super) fn put(out: &mut Vec<u8>, message: &QuotaMessage) {
    match message {
        QuotaMessage::Sync { order, set, certain, records } => {
            out.push(SYNC);
            put_order(out, *order);
            put_order(out, *set);
            out.push(u8::from(*certain));
            put_list(out, records, put_record);
        }
        QuotaMessage::Synced { order, newer, parts } => {
            out.push(SYNCED);
            put_order(out, *order);
            out.push(u8::from(newer.is_some()));
            newer.iter().for_each(|(set, records)| {
                put_order(out, *set);
                put_list(out, records, put_record);
            });
            put_list(out, parts, put_part);
        }
        QuotaMessage::Set { order, start, records, homes } => {
            out.push(SET);
            put_order(out, *order);
            put_varint(out, *start);
            put_list(out, records, put_record);
            put_list(out, homes, |out, (ino, home)| {
                put_varint(out, *ino);
                put_dir(out, *home);
            });
        }
        QuotaMessage::Ask(QuotaAsk { number, set, of, what, used, growth, free }) => {
            out.push(ASK);
            put_varint(out, *number);
            put_order(out, *set);
            put_subject(out, of);
            out.push(*what);
            [used, growth].into_iter().for_each(|n| out.extend_from_slice(&n.to_be_bytes()));
            out.push(u8::from(*free));
        }
        QuotaMessage::Granted { number, after, to } => {
            out.push(GRANTED);
            put_varint(out, *number);
            put_order(out, *after);
            out.extend_from_slice(&to.to_be_bytes());
        }
        QuotaMessage::Denied { number, soft } => {
            out.push(DENIED);
            put_varint(out, *number);
            out.push(u8::from(*soft));
        }
        QuotaMessage::Recall { order, of } => {
            out.push(RECALL);
            put_order(out, *order);
            put_list(out, of, put_subject);
        }
        QuotaMessage::Returned { order, parts } => {
            out.push(RETURNED);
            put_order(out, *order);
            put_list(out, parts, put_part);
        }
    }
}

pub(super) fn take(r: &mut Reader<'_>) -> Result<QuotaMessage, DecodeError> {
    Ok(match r.u8()? {
        SYNC => QuotaMessage::Sync {
            order: order(r)?,
            set: order(r)?,
            certain: boolean(r)?,
            records: list(r, RECORD_MIN, record)?,
        },
        SYNCED => QuotaMessage::Synced {
            order: order(r)?,
            newer: if boolean(r)? { Some((order(r)?, list(r, RECORD_MIN, record)?)) } else { None },
            parts: list(r, PART_MIN, part)?,
        },
        SET => QuotaMessage::Set {
            order: order(r)?,
            start: r.varint()?,
            records: list(r, RECORD_MIN, record)?,
            homes: list(r, 2, |r| Ok((r.varint()?, dir(r)?)))?,
        },
        ASK => {
            let (number, set, of) = (r.varint()?, order(r)?, subject(r)?);
            let what = Some(r.u8()?).filter(|what| *what < 2);
            let what = what.ok_or(DecodeError("a part of an unknown limit"))?;
            let (used, growth) = (r.i64()?, r.i64()?);
            if growth <= 0 {
                return Err(DecodeError("a part of a quota that is of no use"));
            }
            let free = boolean(r)?;
            QuotaMessage::Ask(QuotaAsk { number, set, of, what, used, growth, free })
        }
        GRANTED => QuotaMessage::Granted { number: r.varint()?, after: order(r)?, to: r.i64()? },
        DENIED => QuotaMessage::Denied { number: r.varint()?, soft: boolean(r)? },
        RECALL => QuotaMessage::Recall { order: order(r)?, of: list(r, 2, subject)? },
        RETURNED => QuotaMessage::Returned { order: order(r)?, parts: list(r, PART_MIN, part)? },
        _ => return Err(DecodeError("an unknown message about quotas")),
    })
}

fn put_order(out: &mut Vec<u8>, order: SnapshotOrder) {
    put_varint(out, order.table);
    put_varint(out, order.number);
}

fn order(r: &mut Reader<'_>) -> Result<SnapshotOrder, DecodeError> {
    Ok(SnapshotOrder { table: r.varint()?, number: r.varint()? })
}

/// What a quota limits is told by the key of its record.
pub(super) fn put_subject(out: &mut Vec<u8>, of: &QuotaSubject) {
    let key = QuotaRow::Record(*of).key();
    put_varint(out, key.id);
    out.push(key.suffix.first().copied().unwrap_or_default());
}

pub(super) fn subject(r: &mut Reader<'_>) -> Result<QuotaSubject, DecodeError> {
    let (id, kind) = (r.varint()?, r.u8()?);
    match QuotaRow::of(id, &[kind]) {
        Some(QuotaRow::Record(of)) => Ok(of),
        _ => Err(DecodeError("a quota of an unknown kind")),
    }
}

fn put_dir(out: &mut Vec<u8>, dir: Option<InodeId>) {
    put_varint(out, dir.unwrap_or(0));
}

fn dir(r: &mut Reader<'_>) -> Result<Option<InodeId>, DecodeError> {
    Ok(Some(r.varint()?).filter(|dir| *dir != 0))
}

fn put_record(out: &mut Vec<u8>, QuotaRecord { of, limits, above }: &QuotaRecord) {
    put_subject(out, of);
    put_string(out, &limits.encode());
    put_dir(out, *above);
}

fn record(r: &mut Reader<'_>) -> Result<QuotaRecord, DecodeError> {
    let of = subject(r)?;
    let limits = QuotaLimits::decode(r.string(LIMITS_BYTES_MAX)?)?;
    Ok(QuotaRecord { of, limits, above: dir(r)? })
}

fn put_part(out: &mut Vec<u8>, (of, part): &(QuotaSubject, QuotaPair)) {
    put_subject(out, of);
    part.iter().for_each(|part| out.extend_from_slice(&part.to_be_bytes()));
}

fn part(r: &mut Reader<'_>) -> Result<(QuotaSubject, QuotaPair), DecodeError> {
    Ok((subject(r)?, [r.i64()?, r.i64()?]))
}

fn put_usage(out: &mut Vec<u8>, usage: &QuotaUsage) {
    out.extend_from_slice(&usage.files.to_be_bytes());
    out.extend_from_slice(&usage.bytes.to_be_bytes());
}

fn usage(r: &mut Reader<'_>) -> Result<QuotaUsage, DecodeError> {
    Ok(QuotaUsage { files: r.i64()?, bytes: r.i64()? })
}

pub(super) fn put_parts(out: &mut Vec<u8>, parts: &[QuotaPart]) {
    put_list(out, parts, |out, QuotaPart { of, own, used, since }| {
        put_subject(out, of);
        put_usage(out, own);
        put_usage(out, used);
        out.extend_from_slice(&since.files.to_be_bytes());
        out.extend_from_slice(&since.bytes.to_be_bytes());
    });
}

pub(super) fn parts(r: &mut Reader<'_>) -> Result<Vec<QuotaPart>, DecodeError> {
    list(r, 50, |r| {
        let (of, own, used) = (subject(r)?, usage(r)?, usage(r)?);
        let since = OverSince { files: r.i64()?, bytes: r.i64()? };
        Ok(QuotaPart { of, own, used, since })
    })
}

/// A question that counts, with where each node is: those that are not named have counted all.
pub(super) fn put_count(
    out: &mut Vec<u8>,
    QuotaCount { files, owners }: &QuotaCount,
    at: &[(NodeId, Option<Key>)],
) {
    out.push(u8::from(*files));
    put_list(out, owners, put_subject);
    put_list(out, at, |out, (node, after)| {
        put_varint(out, u64::from(*node));
        put_last(out, after.as_ref());
    });
}

/// Where each node is that has not counted all.
type CountPlaces = Vec<(NodeId, Option<Key>)>;

pub(super) fn count(r: &mut Reader<'_>) -> Result<(QuotaCount, CountPlaces), DecodeError> {
    let count = QuotaCount { files: boolean(r)?, owners: list(r, 2, subject)? };
    Ok((count, list(r, 2, |r| Ok((r.varint32()?, last(r)?)))?))
}

fn put_last(out: &mut Vec<u8>, last: Option<&Key>) {
    out.push(u8::from(last.is_some()));
    last.into_iter().for_each(|last| put_key(out, last));
}

fn last(r: &mut Reader<'_>) -> Result<Option<Key>, DecodeError> {
    let last = if boolean(r)? { Some(key(r)?) } else { None };
    match last {
        Some(last) if !matches!(last.table, Table::Entry | Table::Link) => {
            Err(DecodeError("a row that no quota counts"))
        }
        last => Ok(last),
    }
}

pub(super) fn put_page(out: &mut Vec<u8>, page: &CountedPage) {
    let CountedPage { owners, names, files, last } = page;
    put_list(out, owners, |out, (of, sum)| {
        put_subject(out, of);
        put_usage(out, sum);
    });
    put_list(out, names, |out, (dir, ino)| {
        put_varint(out, *dir);
        put_varint(out, *ino);
    });
    put_list(out, files, |out, CountedFile { ino, bytes, home }| {
        put_varint(out, *ino);
        out.extend_from_slice(&bytes.to_be_bytes());
        put_dir(out, *home);
    });
    put_last(out, last.as_ref());
}

pub(super) fn page(r: &mut Reader<'_>) -> Result<CountedPage, DecodeError> {
    Ok(CountedPage {
        owners: list(r, 18, |r| Ok((subject(r)?, usage(r)?)))?,
        names: list(r, 2, |r| Ok((r.varint()?, r.varint()?)))?,
        files: list(r, 10, |r| {
            Ok(CountedFile { ino: r.varint()?, bytes: r.i64()?, home: dir(r)? })
        })?,
        last: last(r)?,
    })
}
