//! The bytes of envelopes, as nodes send them to each other (`docs/protocol.md`, "Between nodes").
//!
//! | file | what it has |
//! | --- | --- |
//! | `wire/addresses.rs` | addresses of nodes |
//! | `wire/changes.rs` | changes of the placement map |
//! | `wire/clones.rs` | directories of clones that lack names |
//! | `wire/dentries.rs` | dentries |
//! | `wire/leases.rs` | leases |
//! | `wire/polls.rs` | polls and their answers |
//! | `wire/quotas.rs` | quotas |
//! | `wire/snapshot_changes.rs` | what may differ between two snapshots |
//! | `wire/snapshot_reads.rs` | rows as they were at a snapshot |
//! | `wire/snapshots.rs` | snapshots |
//! | `wire/sums.rs` | sums of shares |
//! | `wire/tokens.rs` | tokens |
//! | `wire/tests.rs` | round trips, and hostile bytes |
//!
//! Numbers are varints but for the stamp; keys, rows, requests and replies have the bytes that they
//! have elsewhere. A reader takes nothing that is out of bounds, and memory for a small multiple of
//! the bytes there are.

use kestrel_engine::Mutation;
use kestrel_meta::locks::{RowLockMode, TxnId};
use kestrel_meta::rows::{Missing, Span};
use kestrel_types::codec::{DecodeError, Reader, put_string, put_varint};
use kestrel_types::error::FsError;
use kestrel_types::key::{Key, KeyRef, PREFIX_LEN, SUFFIX_MAX, Table};
use kestrel_types::name::{NAME_MAX, Name};
use kestrel_types::request::{Outcome, Reply};
use kestrel_types::snapshot_changes::{CURSOR_BYTES_MAX, HistoryCursor};
use kestrel_types::wire::{
    FRAME_BYTES_MAX, TooLarge, decode_reply, decode_request, encode_reply, encode_request,
};

use super::message::{Envelope, LockedRowsId, Message, SpanRow, Vote};

mod addresses;
mod changes;
mod clones;
mod dentries;
mod leases;
mod polls;
mod quotas;
mod snapshot_changes;
mod snapshot_reads;
mod snapshots;
mod sums;
#[cfg(test)]
mod tests;
mod tokens;

/// Version of the bytes. Nodes of a cluster speak the same one.
const VERSION: u8 = 13;

/// Stamps are below: what is added to them must not overflow. (They count nanoseconds.)
const STAMP_MAX: u64 = 1 << 63;

// What an envelope says. Numbers are never given to another message.
const FETCH: u8 = 3;
const FETCHED: u8 = 4;
const BORROW: u8 = 5;
const LENT: u8 = 6;
const REFUSED: u8 = 7;
const INVALIDATE: u8 = 8;
const INVALIDATED: u8 = 9;
const PREPARE: u8 = 10;
const VOTED: u8 = 11;
const DECIDE: u8 = 12;
const DECIDED: u8 = 13;
const ASK: u8 = 14;
const ALIVE: u8 = 15;
const POLL: u8 = 16;
const POLLED: u8 = 17;
const CHANGE: u8 = 18;
const LEASE: u8 = 19;
const TOKENS: u8 = 22;
const ADDRESSES: u8 = 23;
const SUM: u8 = 24;
const SNAPSHOT: u8 = 25;
const SNAPSHOT_READ: u8 = 26;
const FORWARD: u8 = 27;
const FORWARDED: u8 = 28;
const QUOTA: u8 = 29;
const CLONE: u8 = 30;

// How a transaction ended.
const WITHOUT_CHANGES: u8 = 0;
const WITH_CHANGES: u8 = 1;
/// The leader's newest snapshot follows.
const WITH_CHANGES_AFTER: u8 = 2;

impl Envelope {
    /// Appends its bytes.
    ///
    /// # Errors
    /// If they are too many for a frame; `out` is then as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), TooLarge> {
        let start = out.len();
        out.push(VERSION);
        put_varint(out, u64::from(self.from));
        out.extend_from_slice(&self.stamp.to_be_bytes());
        let put = put_message(out, &self.message).and_then(|()| match out.len() - start {
            0..=FRAME_BYTES_MAX => Ok(()),
            _ => Err(TooLarge("the length of a message to another node")),
        });
        put.inspect_err(|_| out.truncate(start))
    }

    /// Reads what [`Envelope::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are truncated, out of bounds, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        if r.u8()? != VERSION {
            return Err(DecodeError(
                "a message of another version: all nodes have to run the same release",
            ));
        }
        let (from, stamp) = (r.varint32()?, r.u64()?);
        if stamp >= STAMP_MAX {
            return Err(DecodeError("a timestamp out of bounds"));
        }
        let message = message(r)?;
        reader.end()?;
        Ok(Self { from, stamp, message })
    }
}

fn put_message(out: &mut Vec<u8>, message: &Message) -> Result<(), TooLarge> {
    match message {
        Message::Fetch { number, table, want } => {
            put_numbered(out, FETCH, *number);
            put_varint(out, *table);
            dentries::put_want(out, want);
        }
        Message::Fetched(number, found) => {
            put_numbered(out, FETCHED, *number);
            dentries::put_fetched(out, found);
        }
        Message::Borrow { txn, round, table, mode, rows } => {
            put_txn(out, BORROW, *txn);
            put_varint(out, u64::from(*round));
            put_varint(out, *table);
            out.push(u8::from(*mode == RowLockMode::Exclusive));
            put_list(out, &rows.keys, put_key);
            put_list(out, &rows.spans, put_span);
        }
        Message::Lent { txn, round, locked, rows, spans } => {
            put_txn(out, LENT, *txn);
            put_varint(out, u64::from(*round));
            put_locked(out, *locked);
            put_list(out, rows, |out, (key, value)| put_row(out, key, value.as_deref()));
            put_list(out, spans, put_span_rows);
        }
        Message::Refused(txn, round) => {
            put_txn(out, REFUSED, *txn);
            put_varint(out, u64::from(*round));
        }
        Message::Invalidate(changes) => {
            out.push(INVALIDATE);
            put_list(out, changes, |out, (txn, dirs)| {
                put_txn_id(out, *txn);
                put_ids(out, dirs);
            });
        }
        Message::Invalidated(txns) => {
            out.push(INVALIDATED);
            put_list(out, txns, |out, txn| put_txn_id(out, *txn));
        }
        Message::Prepare { txn, locked, mutations, below } => {
            put_txn(out, PREPARE, *txn);
            put_locked(out, *locked);
            out.push(u8::from(*below));
            put_list(out, mutations, |out, Mutation { key, value }| {
                put_row(out, key, value.as_deref())
            });
        }
        Message::Voted(txn, vote) => {
            put_txn(out, VOTED, *txn);
            match vote {
                Vote::Yes => out.push(0),
                Vote::No => out.push(1),
                Vote::Failed(why) => {
                    out.push(2);
                    encode_reply(&Err(Outcome::Failed(why.clone())), out);
                }
            }
        }
        Message::Decide(txn, commit, cut) => {
            put_txn(out, DECIDE, *txn);
            match (commit, cut) {
                (false, _) => out.push(WITHOUT_CHANGES),
                (true, 0) => out.push(WITH_CHANGES),
                (true, cut) => put_numbered(out, WITH_CHANGES_AFTER, *cut),
            }
        }
        Message::Decided(txn) => put_txn(out, DECIDED, *txn),
        Message::Ask(txn) => put_txn(out, ASK, *txn),
        Message::Alive(txn) => put_txn(out, ALIVE, *txn),
        Message::Poll { number, table, question } => {
            put_numbered(out, POLL, *number);
            put_varint(out, *table);
            polls::put_question(out, question);
        }
        Message::Polled { number, answer } => {
            put_numbered(out, POLLED, *number);
            polls::put_answer(out, answer);
        }
        Message::Change(message) => {
            out.push(CHANGE);
            changes::put(out, message);
        }
        Message::Lease(message) => {
            out.push(LEASE);
            leases::put(out, *message);
        }
        Message::Sum(message) => {
            out.push(SUM);
            sums::put(out, message);
        }
        Message::Quota(message) => {
            out.push(QUOTA);
            quotas::put(out, message);
        }
        Message::Clone(message) => {
            out.push(CLONE);
            clones::put(out, message);
        }
        Message::Snapshot(message) => {
            out.push(SNAPSHOT);
            snapshots::put(out, message);
        }
        Message::Forward { number, table, request } => {
            put_numbered(out, FORWARD, *number);
            put_varint(out, *table);
            encode_request(request, out)?;
        }
        Message::Forwarded { number, reply } => {
            put_numbered(out, FORWARDED, *number);
            encode_reply(reply, out);
        }
        Message::SnapshotRead(message) => {
            out.push(SNAPSHOT_READ);
            snapshot_reads::put(out, message);
        }
        Message::Tokens(message) => {
            out.push(TOKENS);
            tokens::put(out, message);
        }
        Message::Addresses(nodes) => {
            out.push(ADDRESSES);
            addresses::put(out, nodes);
        }
    }
    Ok(())
}

fn message(r: &mut Reader<'_>) -> Result<Message, DecodeError> {
    Ok(match r.u8()? {
        FETCH => {
            Message::Fetch { number: r.varint()?, table: r.varint()?, want: dentries::want(r)? }
        }
        FETCHED => Message::Fetched(r.varint()?, dentries::fetched(r)?),
        BORROW => {
            let (txn, round, table) = (txn(r)?, r.varint32()?, r.varint()?);
            let mode = if boolean(r)? { RowLockMode::Exclusive } else { RowLockMode::Shared };
            let rows = Missing { keys: list(r, KEY_MIN, key)?, spans: list(r, SPAN_MIN, span)? };
            Message::Borrow { txn, round, table, mode, rows }
        }
        LENT => {
            let (txn, round, locked) = (txn(r)?, r.varint32()?, locked(r)?);
            let rows = list(r, KEY_MIN + 1, row)?;
            let spans = list(r, SPAN_MIN + 1, span_rows)?;
            Message::Lent { txn, round, locked, rows, spans }
        }
        REFUSED => Message::Refused(txn(r)?, r.varint32()?),
        INVALIDATE => Message::Invalidate(list(r, TXN_MIN + 1, |r| {
            Ok((txn(r)?, list(r, 1, Reader::varint)?))
        })?),
        INVALIDATED => Message::Invalidated(list(r, TXN_MIN, txn)?),
        PREPARE => {
            let (txn, locked, below) = (txn(r)?, locked(r)?, boolean(r)?);
            let mutations =
                list(r, KEY_MIN + 1, |r| row(r).map(|(key, value)| Mutation { key, value }))?;
            Message::Prepare { txn, locked, mutations, below }
        }
        VOTED => Message::Voted(txn(r)?, vote(r)?),
        DECIDE => {
            let txn = txn(r)?;
            match r.u8()? {
                WITHOUT_CHANGES => Message::Decide(txn, false, 0),
                WITH_CHANGES => Message::Decide(txn, true, 0),
                WITH_CHANGES_AFTER => match r.varint()? {
                    0 => return Err(DecodeError("a snapshot without a number")),
                    cut => Message::Decide(txn, true, cut),
                },
                _ => return Err(DecodeError("an unknown end of a transaction")),
            }
        }
        DECIDED => Message::Decided(txn(r)?),
        ASK => Message::Ask(txn(r)?),
        ALIVE => Message::Alive(txn(r)?),
        POLL => {
            Message::Poll { number: r.varint()?, table: r.varint()?, question: polls::question(r)? }
        }
        POLLED => Message::Polled { number: r.varint()?, answer: polls::answer(r)? },
        CHANGE => Message::Change(changes::take(r)?),
        LEASE => Message::Lease(leases::take(r)?),
        SUM => Message::Sum(sums::take(r)?),
        SNAPSHOT => Message::Snapshot(snapshots::take(r)?),
        QUOTA => Message::Quota(quotas::take(r)?),
        CLONE => Message::Clone(clones::take(r)?),
        FORWARD => {
            let (number, table) = (r.varint()?, r.varint()?);
            Message::Forward { number, table, request: Box::new(decode_request(r)?) }
        }
        FORWARDED => Message::Forwarded { number: r.varint()?, reply: decode_reply(r)? },
        SNAPSHOT_READ => Message::SnapshotRead(snapshot_reads::take(r)?),
        TOKENS => Message::Tokens(tokens::take(r)?),
        ADDRESSES => Message::Addresses(addresses::take(r)?),
        _ => return Err(DecodeError("an unknown message of a node")),
    })
}

fn put_numbered(out: &mut Vec<u8>, kind: u8, number: u64) {
    out.push(kind);
    put_varint(out, number);
}

fn put_list<T>(out: &mut Vec<u8>, items: &[T], mut put: impl FnMut(&mut Vec<u8>, &T)) {
    put_varint(out, items.len() as u64);
    items.iter().for_each(|item| put(out, item));
}

/// A list of elements of at least `bytes_min` bytes each: a count is believed as far as the bytes
/// that follow can bear it.
fn list<'a, T>(
    r: &mut Reader<'a>,
    bytes_min: usize,
    mut take: impl FnMut(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count =
        usize::try_from(r.varint()?).ok().filter(|count| *count <= r.remaining() / bytes_min);
    let mut items = Vec::new();
    for _ in 0..count.ok_or(DecodeError("count above what follows"))? {
        items.push(take(r)?);
    }
    Ok(items)
}

fn put_ids(out: &mut Vec<u8>, ids: &[u64]) {
    put_list(out, ids, |out, id| put_varint(out, *id));
}

fn boolean(r: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError("neither yes nor no")),
    }
}

fn put_txn(out: &mut Vec<u8>, kind: u8, txn: TxnId) {
    out.push(kind);
    put_txn_id(out, txn);
}

/// Fewest bytes of the id of a transaction.
const TXN_MIN: usize = 3;

fn put_txn_id(out: &mut Vec<u8>, txn: TxnId) {
    put_varint(out, u64::from(txn.node));
    put_varint(out, txn.epoch);
    put_varint(out, txn.number);
}

fn txn(r: &mut Reader<'_>) -> Result<TxnId, DecodeError> {
    Ok(TxnId { node: r.varint32()?, epoch: r.varint()?, number: r.varint()? })
}

fn put_locked(out: &mut Vec<u8>, locked: LockedRowsId) {
    put_varint(out, locked.epoch);
    put_varint(out, locked.number);
}

fn locked(r: &mut Reader<'_>) -> Result<LockedRowsId, DecodeError> {
    Ok(LockedRowsId { epoch: r.varint()?, number: r.varint()? })
}

/// Fewest bytes of a key.
const KEY_MIN: usize = 1 + PREFIX_LEN;

fn put_cursor(out: &mut Vec<u8>, cursor: Option<&HistoryCursor>) {
    put_string(out, cursor.map_or(&[][..], |cursor| &**cursor));
}

fn cursor(r: &mut Reader<'_>) -> Result<Option<HistoryCursor>, DecodeError> {
    let bytes = r.string(CURSOR_BYTES_MAX)?;
    Ok((!bytes.is_empty()).then(|| bytes.into()))
}

fn name(r: &mut Reader<'_>) -> Result<Name, DecodeError> {
    Name::new(r.string(NAME_MAX)?).map_err(|_| DecodeError("no name"))
}

fn put_key(out: &mut Vec<u8>, key: &Key) {
    put_varint(out, (PREFIX_LEN + key.suffix.len()) as u64);
    key.borrow().encode_into(out);
}

fn key(r: &mut Reader<'_>) -> Result<Key, DecodeError> {
    let key = KeyRef::decode(r.string(PREFIX_LEN + SUFFIX_MAX)?);
    Ok(key.ok_or(DecodeError("no key"))?.to_owned())
}

fn put_row(out: &mut Vec<u8>, key: &Key, value: Option<&[u8]>) {
    put_key(out, key);
    out.push(u8::from(value.is_some()));
    value.iter().for_each(|value| put_string(out, value));
}

type Row = (Key, Option<Box<[u8]>>);

fn row(r: &mut Reader<'_>) -> Result<Row, DecodeError> {
    let key = key(r)?;
    let value = if boolean(r)? { Some(r.string(FRAME_BYTES_MAX)?.into()) } else { None };
    Ok((key, value))
}

/// Fewest bytes of a range.
const SPAN_MIN: usize = 4;

fn put_span(out: &mut Vec<u8>, span: &Span) {
    out.push(span.table as u8);
    put_varint(out, span.id);
    out.push(u8::from(span.after.is_some()));
    span.after.iter().for_each(|after| put_string(out, after));
    put_varint(out, u64::from(span.rows_max));
}

fn span(r: &mut Reader<'_>) -> Result<Span, DecodeError> {
    let table = Table::from_u8(r.u8()?).ok_or(DecodeError("an unknown table"))?;
    let id = r.varint()?;
    let after = if boolean(r)? { Some(r.string(SUFFIX_MAX)?.into()) } else { None };
    Ok(Span { table, id, after, rows_max: r.varint32()? })
}

fn span_row(r: &mut Reader<'_>) -> Result<SpanRow, DecodeError> {
    Ok((r.string(SUFFIX_MAX)?.into(), r.string(FRAME_BYTES_MAX)?.into()))
}

fn put_span_rows(out: &mut Vec<u8>, (span, rows): &(Span, Vec<SpanRow>)) {
    put_span(out, span);
    put_list(out, rows, |out, (suffix, value)| {
        put_string(out, suffix);
        put_string(out, value);
    });
}

fn span_rows(r: &mut Reader<'_>) -> Result<(Span, Vec<SpanRow>), DecodeError> {
    Ok((span(r)?, list(r, 2, span_row)?))
}

fn vote(r: &mut Reader<'_>) -> Result<Vote, DecodeError> {
    match r.u8()? {
        0 => Ok(Vote::Yes),
        1 => Ok(Vote::No),
        2 => Ok(Vote::Failed(failure(decode_reply(r)?)?)),
        _ => Err(DecodeError("an unknown vote")),
    }
}

fn failure(reply: Reply) -> Result<FsError, DecodeError> {
    match reply {
        Err(Outcome::Failed(why)) => Ok(why),
        _ => Err(DecodeError("no error")),
    }
}
