//! The bytes of what members say of directories of clones that lack names.

use kestrel_types::codec::{DecodeError, Reader, put_varint};
use kestrel_types::request::Outcome;
use kestrel_types::wire::{decode_reply, encode_reply};

use super::{boolean, failure, list, put_ids, put_numbered};
use crate::message::clones::{CloneMessage, CloneReport};

// Numbers are never given to another message.
const WANT: u8 = 1;
const GIVEN: u8 = 2;
const FAILED: u8 = 3;

pub(super) fn put(out: &mut Vec<u8>, message: &CloneMessage) {
    match message {
        CloneMessage::Want { dir, table } => {
            put_numbered(out, WANT, *dir);
            put_varint(out, *table);
        }
        CloneMessage::Given { dir, names, done } => {
            put_numbered(out, GIVEN, *dir);
            put_varint(out, *names);
            out.push(u8::from(*done));
        }
        CloneMessage::Failed { dir, why } => {
            put_numbered(out, FAILED, *dir);
            encode_reply(&Err(Outcome::Failed(why.clone())), out);
        }
    }
}

pub(super) fn take(r: &mut Reader<'_>) -> Result<CloneMessage, DecodeError> {
    let kind = r.u8()?;
    let dir = r.varint()?;
    Ok(match kind {
        WANT => CloneMessage::Want { dir, table: r.varint()? },
        GIVEN => CloneMessage::Given { dir, names: r.varint()?, done: boolean(r)? },
        FAILED => CloneMessage::Failed { dir, why: failure(decode_reply(r)?)? },
        _ => return Err(DecodeError("an unknown message about a clone")),
    })
}

pub(super) fn put_report(out: &mut Vec<u8>, report: &CloneReport) {
    put_varint(out, report.epoch);
    put_varint(out, report.changes);
    put_ids(out, &report.pending);
    put_ids(out, &report.links);
}

pub(super) fn report(r: &mut Reader<'_>) -> Result<CloneReport, DecodeError> {
    let (epoch, changes) = (r.varint()?, r.varint()?);
    let (pending, links) = (list(r, 1, Reader::varint)?, list(r, 1, Reader::varint)?);
    Ok(CloneReport { epoch, changes, pending, links })
}
