//! The bytes of what servers say of tokens.

use kestrel_types::codec::{DecodeError, Reader, put_string};
use kestrel_types::token::{TOKENS_MAX, TokenId, TokenRecord};

use super::{list, put_list};
use crate::message::TokensMessage;

// What a message says. Numbers are never given to another one.
const DIGEST: u8 = 1;
const RECORDS: u8 = 2;
const PRUNE: u8 = 3;

/// Longest record, bytes.
const RECORD_MAX: usize = 8 << 10;

/// Fewest bytes of a record, its length included.
const RECORD_MIN: usize = 70;

pub(super) fn put(out: &mut Vec<u8>, message: &TokensMessage) {
    match message {
        TokensMessage::Digest(digest) => {
            out.push(DIGEST);
            out.extend_from_slice(digest);
        }
        TokensMessage::Records(records) => {
            out.push(RECORDS);
            put_list(out, records, |out, record| put_string(out, &record.encode()));
        }
        TokensMessage::Prune(ids) => {
            out.push(PRUNE);
            put_list(out, ids, |out, id| out.extend_from_slice(&id.0));
        }
    }
}

pub(super) fn take(r: &mut Reader<'_>) -> Result<TokensMessage, DecodeError> {
    let message = match r.u8()? {
        DIGEST => {
            let mut digest = [0; 32];
            digest.copy_from_slice(r.bytes(32)?);
            TokensMessage::Digest(digest)
        }
        RECORDS => {
            let record = |r: &mut Reader<'_>| TokenRecord::decode(r.string(RECORD_MAX)?);
            TokensMessage::Records(list(r, RECORD_MIN, record)?)
        }
        PRUNE => {
            let id = |r: &mut Reader<'_>| {
                let mut id = TokenId([0; 8]);
                id.0.copy_from_slice(r.bytes(8)?);
                Ok(id)
            };
            TokensMessage::Prune(list(r, 8, id)?)
        }
        _ => return Err(DecodeError("an unknown message about tokens")),
    };
    match &message {
        TokensMessage::Records(records) if records.len() > TOKENS_MAX => {
            Err(DecodeError("more tokens than a volume has"))
        }
        _ => Ok(message),
    }
}
