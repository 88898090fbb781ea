//! The bytes of what members say of changes of the table.

use std::sync::Arc;

use kestrel_engine::Mutation;
use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::placement::slot_map::ADDRESS_MAX;
use kestrel_types::placement::{NodeId, PlacementError, PlacementMap};
use kestrel_types::request::Outcome;
use kestrel_types::wire::{decode_reply, encode_reply};

use super::{KEY_MIN, failure, list, put_list, put_row, row};
use crate::message::changes::{Announced, Attempt, ChangeMessage, Charge};

// What a message says. Numbers are never given to another one.
const JOIN: u8 = 1;
const BEGIN: u8 = 2;
const CLEAN: u8 = 3;
const COPY: u8 = 4;
const ROWS: u8 = 5;
const GOT_ROWS: u8 = 6;
const READY: u8 = 7;
const FREEZE: u8 = 8;
const FROZEN: u8 = 9;
const DECLINED: u8 = 10;
const ABORT: u8 = 11;
const ADOPT: u8 = 12;
const ADOPTED: u8 = 13;
const ASK: u8 = 14;
const ENTRUST: u8 = 15;

pub(super) fn put(out: &mut Vec<u8>, message: &ChangeMessage) {
    match message {
        ChangeMessage::Join => out.push(JOIN),
        ChangeMessage::Begin { attempt, next } => {
            put_attempt(out, BEGIN, *attempt);
            put_table(out, next);
        }
        ChangeMessage::Clean(attempt) => put_attempt(out, CLEAN, *attempt),
        ChangeMessage::Copy(attempt) => put_attempt(out, COPY, *attempt),
        ChangeMessage::Rows { attempt, stream, number, rows } => {
            put_attempt(out, ROWS, *attempt);
            put_varint(out, *stream);
            put_varint(out, *number);
            put_list(out, rows, |out, Mutation { key, value }| put_row(out, key, value.as_deref()));
        }
        ChangeMessage::GotRows { attempt, stream, number } => {
            put_attempt(out, GOT_ROWS, *attempt);
            put_varint(out, *stream);
            put_varint(out, *number);
        }
        ChangeMessage::Ready(attempt) => put_attempt(out, READY, *attempt),
        ChangeMessage::Freeze(attempt) => put_attempt(out, FREEZE, *attempt),
        ChangeMessage::Frozen(attempt) => put_attempt(out, FROZEN, *attempt),
        ChangeMessage::Declined { attempt, why } => {
            put_attempt(out, DECLINED, *attempt);
            encode_reply(&Err(Outcome::Failed(why.clone())), out);
        }
        ChangeMessage::Abort(attempt) => put_attempt(out, ABORT, *attempt),
        ChangeMessage::Adopt(table) => {
            out.push(ADOPT);
            put_table(out, table);
        }
        ChangeMessage::Adopted(version) => {
            out.push(ADOPTED);
            put_varint(out, *version);
        }
        ChangeMessage::Ask(attempt) => put_attempt(out, ASK, *attempt),
        ChangeMessage::Entrust { next, charge } => {
            out.push(ENTRUST);
            put_table(out, next);
            put_varint(out, charge.era);
            put_varint(out, u64::from(charge.last_node));
            let expected: Vec<_> = charge.expected.iter().collect();
            put_list(out, &expected, |out, (node, Announced { address, idle })| {
                put_varint(out, u64::from(**node));
                put_string(out, address.as_bytes());
                out.push(u8::from(*idle));
            });
        }
    }
}

pub(super) fn take(r: &mut Reader<'_>) -> Result<ChangeMessage, DecodeError> {
    Ok(match r.u8()? {
        JOIN => ChangeMessage::Join,
        BEGIN => ChangeMessage::Begin { attempt: attempt(r)?, next: table(r)? },
        CLEAN => ChangeMessage::Clean(attempt(r)?),
        COPY => ChangeMessage::Copy(attempt(r)?),
        ROWS => {
            let (attempt, stream, number) = (attempt(r)?, r.varint()?, r.varint()?);
            let rows =
                list(r, KEY_MIN + 1, |r| row(r).map(|(key, value)| Mutation { key, value }))?;
            ChangeMessage::Rows { attempt, stream, number, rows }
        }
        GOT_ROWS => ChangeMessage::GotRows {
            attempt: attempt(r)?,
            stream: r.varint()?,
            number: r.varint()?,
        },
        READY => ChangeMessage::Ready(attempt(r)?),
        FREEZE => ChangeMessage::Freeze(attempt(r)?),
        FROZEN => ChangeMessage::Frozen(attempt(r)?),
        DECLINED => {
            ChangeMessage::Declined { attempt: attempt(r)?, why: failure(decode_reply(r)?)? }
        }
        ABORT => ChangeMessage::Abort(attempt(r)?),
        ADOPT => ChangeMessage::Adopt(table(r)?),
        ADOPTED => ChangeMessage::Adopted(r.varint()?),
        ASK => ChangeMessage::Ask(attempt(r)?),
        ENTRUST => ChangeMessage::Entrust { next: table(r)?, charge: charge(r)? },
        _ => return Err(DecodeError("an unknown message about a change of the table")),
    })
}

fn charge(r: &mut Reader<'_>) -> Result<Charge, DecodeError> {
    let (era, last_node) = (r.varint()?, r.varint32()?);
    // A number, the length of an address and its one byte, whether it is idle.
    let expected: Vec<(NodeId, Announced)> = list(r, 4, |r| {
        let node = r.varint32()?;
        let address =
            std::str::from_utf8(r.string(ADDRESS_MAX)?).ok().filter(|address| !address.is_empty());
        let address = address.ok_or(DecodeError("no address"))?.to_owned();
        let idle = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError("neither 0 nor 1")),
        };
        Ok((node, Announced { address, idle }))
    })?;
    if !expected.is_sorted_by(|one, next| one.0 < next.0) {
        return Err(DecodeError("nodes to come out of order"));
    }
    Ok(Charge { era, last_node, expected: expected.into_iter().collect() })
}

fn put_attempt(out: &mut Vec<u8>, kind: u8, attempt: Attempt) {
    out.push(kind);
    put_varint(out, attempt.epoch);
    put_varint(out, attempt.number);
}

fn attempt(r: &mut Reader<'_>) -> Result<Attempt, DecodeError> {
    Ok(Attempt { epoch: r.varint()?, number: r.varint()? })
}

fn put_table(out: &mut Vec<u8>, table: &PlacementMap) {
    put_string(out, &table.encode());
}

fn table(r: &mut Reader<'_>) -> Result<Arc<PlacementMap>, DecodeError> {
    let bytes = r.string(kestrel_types::placement::PLACEMENT_BYTES_MAX)?;
    match PlacementMap::decode(bytes) {
        Ok(table) => Ok(Arc::new(table)),
        Err(PlacementError::Damaged(why)) => Err(why),
        Err(PlacementError::Newer(_)) => Err(DecodeError("a table of a newer format")),
    }
}
