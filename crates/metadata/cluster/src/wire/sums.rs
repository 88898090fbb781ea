//! The bytes of what members say of sums of shares.

use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::name::NAME_MAX;
use kestrel_types::stat::DirStat;

use super::{boolean, list, put_ids, put_list, put_numbered, span_row};
use crate::message::sums::{Also, Names, SumMessage};

// What a message says. Numbers are never given to another one.
const ASK: u8 = 1;
const TOLD: u8 = 2;
const REFUSED: u8 = 3;
const REVOKE: u8 = 4;
const REVOKED: u8 = 5;

/// Bytes of a sum, which are those of a share's row.
const SUM_BYTES: usize = 41;

/// Counts are below: those of all nodes can be added up.
const COUNT_MAX: u64 = 1 << 52;

pub(super) fn put(out: &mut Vec<u8>, message: &SumMessage) {
    match message {
        SumMessage::Ask { number, table, epoch, dir, also } => {
            put_numbered(out, ASK, *number);
            [table, epoch, dir].into_iter().for_each(|number| put_varint(out, *number));
            put_also(out, also);
        }
        SumMessage::Sum { number, epoch, dir, sum, names } => {
            put_numbered(out, TOLD, *number);
            [epoch, dir].into_iter().for_each(|number| put_varint(out, *number));
            out.extend_from_slice(&sum.encode());
            out.push(u8::from(names.is_some()));
            if let Some(names) = names {
                put_list(out, &names.rows, |out, (name, value)| {
                    put_string(out, name);
                    put_string(out, value);
                });
                out.push(u8::from(names.end));
            }
        }
        SumMessage::Refused { number, dir, pause } => {
            put_numbered(out, REFUSED, *number);
            [dir, pause].into_iter().for_each(|number| put_varint(out, *number));
        }
        SumMessage::Revoke { number, epoch, holder, dirs } => {
            put_numbered(out, REVOKE, *number);
            [epoch, holder].into_iter().for_each(|number| put_varint(out, *number));
            put_ids(out, dirs);
        }
        SumMessage::Revoked { number } => put_numbered(out, REVOKED, *number),
    }
}

pub(super) fn take(r: &mut Reader<'_>) -> Result<SumMessage, DecodeError> {
    Ok(match r.u8()? {
        ASK => {
            let (number, table, epoch, dir) = (r.varint()?, r.varint()?, r.varint()?, r.varint()?);
            SumMessage::Ask { number, table, epoch, dir, also: also(r)? }
        }
        TOLD => {
            let (number, epoch, dir) = (r.varint()?, r.varint()?, r.varint()?);
            let sum = DirStat::decode(r.bytes(SUM_BYTES)?)?;
            if sum.children.unsigned_abs().max(sum.subdirs.unsigned_abs()) >= COUNT_MAX {
                return Err(DecodeError("a sum of shares out of bounds"));
            }
            let names = match boolean(r)? {
                true => Some(Names { rows: list(r, 2, span_row)?, end: boolean(r)? }),
                false => None,
            };
            SumMessage::Sum { number, epoch, dir, sum, names }
        }
        REFUSED => {
            SumMessage::Refused { number: r.varint()?, dir: r.varint()?, pause: r.varint()? }
        }
        REVOKE => {
            let (number, epoch, holder) = (r.varint()?, r.varint()?, r.varint()?);
            SumMessage::Revoke { number, epoch, holder, dirs: list(r, 1, Reader::varint)? }
        }
        REVOKED => SumMessage::Revoked { number: r.varint()? },
        _ => return Err(DecodeError("an unknown message about sums of shares")),
    })
}

fn put_also(out: &mut Vec<u8>, also: &Also) {
    match also {
        Also::Nothing => out.push(0),
        Also::Names { after: None, most } => put_numbered(out, 1, *most),
        Also::Names { after: Some(after), most } => {
            put_numbered(out, 2, *most);
            put_string(out, after);
        }
    }
}

fn also(r: &mut Reader<'_>) -> Result<Also, DecodeError> {
    match r.u8()? {
        0 => Ok(Also::Nothing),
        1 => Ok(Also::Names { most: r.varint()?, after: None }),
        2 => Ok(Also::Names { most: r.varint()?, after: Some(r.string(NAME_MAX)?.into()) }),
        _ => Err(DecodeError("an unknown question about a directory")),
    }
}
