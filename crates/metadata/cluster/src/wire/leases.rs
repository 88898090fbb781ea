//! The bytes of what members say of leases.

use kestrel_types::codec::{DecodeError, Reader, put_varint};

use super::{boolean, put_numbered, put_txn, txn};
use crate::message::leases::{HoldId, LeaseMessage};

// What a message says. Numbers are never given to another one.
const ASK: u8 = 1;
const GRANTED: u8 = 2;
const FENCE: u8 = 3;
const FENCED: u8 = 4;
const RELEASE: u8 = 5;

/// In [`ASK`]: no earlier start of the sender can be running.
const SOLE: u8 = 1;

pub(super) fn put(out: &mut Vec<u8>, message: LeaseMessage) {
    match message {
        LeaseMessage::Ask { number, epoch, exclusive } => {
            put_numbered(out, ASK, number);
            put_varint(out, epoch);
            out.push(if exclusive { SOLE } else { 0 });
        }
        LeaseMessage::Release { epoch } => put_numbered(out, RELEASE, epoch),
        LeaseMessage::Granted { number, sums } => {
            put_numbered(out, GRANTED, number);
            out.push(u8::from(sums));
        }
        LeaseMessage::Fence { txn, round, node } => {
            put_txn(out, FENCE, txn);
            put_varint(out, u64::from(round));
            put_varint(out, u64::from(node));
        }
        LeaseMessage::Fenced { txn, round, node, hold } => {
            put_txn(out, FENCED, txn);
            put_varint(out, u64::from(round));
            put_varint(out, u64::from(node));
            put_varint(out, hold.epoch);
            put_varint(out, hold.number);
        }
    }
}

pub(super) fn take(r: &mut Reader<'_>) -> Result<LeaseMessage, DecodeError> {
    Ok(match r.u8()? {
        ASK => {
            let (number, epoch) = (r.varint()?, r.varint()?);
            let exclusive = match r.u8()? {
                0 => false,
                SOLE => true,
                _ => return Err(DecodeError("a question for a lease of an unknown kind")),
            };
            LeaseMessage::Ask { number, epoch, exclusive }
        }
        RELEASE => LeaseMessage::Release { epoch: r.varint()? },
        GRANTED => LeaseMessage::Granted { number: r.varint()?, sums: boolean(r)? },
        FENCE => LeaseMessage::Fence { txn: txn(r)?, round: r.varint32()?, node: r.varint32()? },
        FENCED => {
            let (txn, round, node) = (txn(r)?, r.varint32()?, r.varint32()?);
            let hold = HoldId { epoch: r.varint()?, number: r.varint()? };
            LeaseMessage::Fenced { txn, round, node, hold }
        }
        _ => return Err(DecodeError("an unknown message about leases")),
    })
}
