//! Rows of table `txn` that transactions over several nodes leave until they have ended everywhere:
//! at a participant what it has agreed to change, at the leader that it was decided.

use std::ops::ControlFlow;

use kestrel_engine::{Engine, Mutation};
use kestrel_meta::locks::TxnId;
use kestrel_meta::stop::engine_error;
use kestrel_meta::txn::{RECORDS_ID, TxnKey};
use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::key::{Key, KeyRef, PREFIX_LEN, SUFFIX_MAX, Table};
use kestrel_types::placement::NodeId;

use crate::message::LockedRowsId;

/// Version of both rows.
const VERSION: u8 = 1;

/// Version of a row of changes that are no changes of the volume, and otherwise the same.
const VERSION_BELOW: u8 = 2;

/// Longest value of a row that a transaction changes, bytes: that of an extended attribute with its
/// version, and chunks.
const VALUE_BYTES_MAX: usize = 16 << 20;

/// What a participant has agreed to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The locked rows.
    pub locked: LockedRowsId,
    /// The changes.
    pub mutations: Vec<Mutation>,
    /// They are no changes of the volume: nothing is kept for snapshots.
    pub below: bool,
}

pub fn prepared_key(txn: TxnId) -> Key {
    TxnKey::Prepared(txn).encode()
}

pub fn decision_key(txn: TxnId) -> Key {
    TxnKey::Decided(txn).encode()
}

/// The row of what was agreed to.
pub fn encode_prepared(prepared: &Prepared) -> Box<[u8]> {
    let mut out = vec![if prepared.below { VERSION_BELOW } else { VERSION }];
    out.extend_from_slice(&prepared.locked.epoch.to_be_bytes());
    out.extend_from_slice(&prepared.locked.number.to_be_bytes());
    put_varint(&mut out, prepared.mutations.len() as u64);
    for Mutation { key, value } in &prepared.mutations {
        let mut bytes = Vec::with_capacity(PREFIX_LEN + key.suffix.len());
        key.borrow().encode_into(&mut bytes);
        put_string(&mut out, &bytes);
        out.push(u8::from(value.is_some()));
        if let Some(value) = value {
            put_string(&mut out, value);
        }
    }
    out.into()
}

/// Reads what [`encode_prepared`] wrote.
pub fn decode_prepared(bytes: &[u8]) -> Result<Prepared, DecodeError> {
    let mut reader = Reader::new(bytes);
    let below = match reader.u8()? {
        VERSION => false,
        VERSION_BELOW => true,
        _ => return Err(DecodeError("prepared changes of an unknown format version")),
    };
    let locked = LockedRowsId { epoch: reader.u64()?, number: reader.u64()? };
    let mut mutations = Vec::new();
    for _ in 0..reader.varint()? {
        let key = KeyRef::decode(reader.string(PREFIX_LEN + SUFFIX_MAX)?);
        let key = key.ok_or(DecodeError("no key"))?.to_owned();
        let value = match reader.u8()? {
            0 => None,
            1 => Some(reader.string(VALUE_BYTES_MAX)?.into()),
            _ => return Err(DecodeError("neither a value nor none")),
        };
        mutations.push(Mutation { key, value });
    }
    reader.end()?;
    Ok(Prepared { locked, mutations, below })
}

/// The row of a decision: the participants that must make their changes.
pub fn encode_decision(participants: &[NodeId]) -> Box<[u8]> {
    let mut out = vec![VERSION];
    for node in participants {
        out.extend_from_slice(&node.to_be_bytes());
    }
    out.into()
}

/// Reads what [`encode_decision`] wrote.
pub fn decode_decision(bytes: &[u8]) -> Result<Vec<NodeId>, DecodeError> {
    let (VERSION, nodes) =
        bytes.split_first().map_or((0, bytes), |(version, rest)| (*version, rest))
    else {
        return Err(DecodeError("a decision of an unknown format version"));
    };
    let (nodes, rest) = nodes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(DecodeError("part of a node's number"));
    }
    Ok(nodes.iter().map(|node| NodeId::from_be_bytes(*node)).collect())
}

/// What a node that starts finds on record.
#[derive(Debug, Default)]
pub struct Records {
    /// Changes it has agreed to.
    pub prepared: Vec<(TxnId, Prepared)>,
    /// Decisions it made that some participants may not know.
    pub decided: Vec<(TxnId, Vec<NodeId>)>,
}

/// Reads the records.
///
/// # Errors
/// `EIO` for a damaged row; the engine's.
pub fn read(engine: &dyn Engine) -> FsResult<Records> {
    let (mut records, mut damage) = (Records::default(), None);
    let visited = engine.scan(Table::Txn, RECORDS_ID, None, &mut |suffix, row, _| {
        let read = match TxnKey::decode(RECORDS_ID, suffix) {
            Some(TxnKey::Prepared(txn)) => {
                decode_prepared(row).map(|prepared| records.prepared.push((txn, prepared)))
            }
            Some(TxnKey::Decided(txn)) => {
                decode_decision(row).map(|participants| records.decided.push((txn, participants)))
            }
            // A client with a number that begins with these bytes has its answers here.
            _ => Ok(()),
        };
        damage = damage.take().or(read.err());
        ControlFlow::Continue(())
    });
    visited.map_err(engine_error)?;
    match damage {
        None => Ok(records),
        Some(why) => {
            let text = format!("metadata: damaged row of a transaction: {why}; run kestrel fsck");
            Err(FsError::because(libc::EIO, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_a_round_trip_and_damage_is_noticed() {
        let mutations = vec![
            Mutation { key: Key::new(Table::Entry, 7, b"a"), value: Some(b"row"[..].into()) },
            Mutation { key: Key::new(Table::DirId, 8, b""), value: None },
        ];
        let locked = LockedRowsId { epoch: 3, number: 9 };
        let prepared = Prepared { locked, mutations, below: true };
        let bytes = encode_prepared(&prepared);
        assert_eq!(decode_prepared(&bytes), Ok(prepared.clone()));
        let prepared = Prepared { below: false, ..prepared };
        let bytes = encode_prepared(&prepared);
        assert_eq!(decode_prepared(&bytes), Ok(prepared));
        for len in 0..bytes.len() {
            assert!(decode_prepared(&bytes[..len]).is_err());
        }
        let bytes = encode_decision(&[1, 500]);
        assert_eq!(decode_decision(&bytes), Ok(vec![1, 500]));
        for bytes in [&bytes[..6], &[9], &[]] {
            assert!(decode_decision(bytes).is_err());
        }
    }

    #[test]
    fn keys_are_told_apart() {
        let txn = TxnId { node: 3, epoch: 1 << 40, number: 7 };
        for (key, is_decision) in [(prepared_key(txn), false), (decision_key(txn), true)] {
            let expected = if is_decision { TxnKey::Decided(txn) } else { TxnKey::Prepared(txn) };
            assert_eq!(TxnKey::decode(key.id, &key.suffix), Some(expected));
        }
    }
}
