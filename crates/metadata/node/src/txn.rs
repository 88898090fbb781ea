//! Table `txn`: answers already given, so that a request that is sent twice is executed once, and
//! the clients they were given to.
//!
//! **Answers.** A request with an [`Origin`] that changes rows has its answer written in the same
//! atomic batch. So a client that lost the answer, to a broken connection or a crash of the node,
//! sends the request again with `retry` set and hears the first answer. Requests that fail change
//! nothing and are not recorded: again, they run again. A row belongs to a slot, the sequence
//! number modulo [`WINDOW`]; the request that comes a window later takes its place, so a client has
//! at most that many rows and none is ever deleted one by one. Hence the rule for clients: no
//! request is sent before all that are [`WINDOW`] or more behind it have been answered.
//!
//! **Sessions.** A client has a row of its own from before its first request is executed until its
//! answers are deleted, so a node that restarts knows which clients to wait for, and nothing is
//! left over.
//!
//! An answer's row is written by the worker that executes the request. No two write one row at the
//! same time, because the server never has two requests of the same number, or of two numbers of
//! one slot, at the node at once.

use kestrel_types::clock::Nanos;
use kestrel_types::codec::{DecodeError, Reader, put_string};
use kestrel_types::error::FsError;
use kestrel_types::ids::Position;
use kestrel_types::key::{Key, Table};
use kestrel_types::request::Reply;
use kestrel_types::wire::{ClientId, WHO_BYTES_MAX, decode_reply, encode_reply};

use crate::locks::TxnId;
use kestrel_engine::{Engine, EngineError, Mutation};

/// Most numbered requests of one client that may be unanswered.
pub const WINDOW: u64 = 4096;

/// Version of an answer's row.
const ANSWER_VERSION: u8 = 1;

/// Version of a session's row.
const SESSION_VERSION: u8 = 1;

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The client.
    pub client: ClientId,
    /// Its number, from 1.
    pub seq: u64,
    /// It may have been executed already.
    pub retry: bool,
}

/// A client that has, or had, a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// The client.
    pub client: ClientId,
    /// When the session began.
    pub since: Nanos,
    /// The client's name, for people; at most [`WHO_BYTES_MAX`] bytes.
    pub who: String,
    /// When the session ended. The client's answers are kept for a while after that.
    pub ended: Option<Nanos>,
}

/// The two halves of a client's number: id and start of the suffix of its rows.
fn halves(client: ClientId) -> (u64, [u8; 8]) {
    let number = u128::from_be_bytes(client.0);
    ((number >> 64) as u64, (number as u64).to_be_bytes())
}

/// Key of the answer to a request.
pub fn answer_key(client: ClientId, seq: u64) -> Key {
    let (id, low) = halves(client);
    let slot = (seq % WINDOW) as u16;
    let mut suffix = [0; 10];
    suffix[..8].copy_from_slice(&low);
    suffix[8..].copy_from_slice(&slot.to_be_bytes());
    Key::new(Table::Txn, id, &suffix)
}

/// Key of a session.
pub fn session_key(client: ClientId) -> Key {
    Key::new(Table::Txn, 0, &client.0)
}

/// What a key of table `txn` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxnKey {
    /// An answer to this client, in this slot.
    Answer(ClientId, u16),
    /// A session of this client.
    Session(ClientId),
    /// Changes that the node has agreed to, of a transaction over several nodes.
    Prepared(TxnId),
    /// A transaction over several nodes that this one has decided.
    Decided(TxnId),
}

/// Id of the rows of transactions over several nodes.
pub const RECORDS_ID: u64 = u64::MAX;

const PREPARED: u8 = b'P';
const DECIDED: u8 = b'D';

impl TxnKey {
    /// Takes a key apart; `None` if it is neither.
    pub fn decode(id: u64, suffix: &[u8]) -> Option<Self> {
        if let (0, Ok(client)) = (id, suffix.try_into()) {
            return Some(Self::Session(ClientId(client)));
        }
        if let (RECORDS_ID, [kind @ (PREPARED | DECIDED), txn @ ..]) = (id, suffix)
            && let Ok(txn) = <[u8; 20]>::try_from(txn)
        {
            let (node, rest) = txn.split_first_chunk::<4>()?;
            let (epoch, number) = rest.split_first_chunk::<8>()?;
            let txn = TxnId {
                node: u32::from_be_bytes(*node),
                epoch: u64::from_be_bytes(*epoch),
                number: u64::from_be_bytes(number.try_into().ok()?),
            };
            return Some(if *kind == PREPARED { Self::Prepared(txn) } else { Self::Decided(txn) });
        }
        let (low, slot) = suffix.split_first_chunk::<8>()?;
        let slot = u16::from_be_bytes(slot.try_into().ok()?);
        let number = u128::from(id) << 64 | u128::from(u64::from_be_bytes(*low));
        (u64::from(slot) < WINDOW).then(|| Self::Answer(ClientId(number.to_be_bytes()), slot))
    }
}

impl TxnKey {
    /// The key.
    pub fn encode(self) -> Key {
        let (kind, txn) = match self {
            Self::Answer(client, slot) => return answer_key(client, u64::from(slot)),
            Self::Session(client) => return session_key(client),
            Self::Prepared(txn) => (PREPARED, txn),
            Self::Decided(txn) => (DECIDED, txn),
        };
        let mut suffix = vec![kind];
        suffix.extend_from_slice(&txn.node.to_be_bytes());
        suffix.extend_from_slice(&txn.epoch.to_be_bytes());
        suffix.extend_from_slice(&txn.number.to_be_bytes());
        Key::new(Table::Txn, RECORDS_ID, &suffix)
    }
}

/// The answer to a request as a row.
pub fn encode_answer(seq: u64, reply: &Reply) -> Box<[u8]> {
    let mut out = Vec::with_capacity(128);
    out.push(ANSWER_VERSION);
    out.extend_from_slice(&seq.to_be_bytes());
    encode_reply(reply, &mut out);
    out.into_boxed_slice()
}

/// Reads what [`encode_answer`] wrote: the request's number and the reply.
pub fn decode_answer(bytes: &[u8]) -> Result<(u64, Reply), DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != ANSWER_VERSION {
        return Err(DecodeError("answer of an unknown format version"));
    }
    let seq = reader.u64()?;
    let reply = decode_reply(&mut reader)?;
    reader.end()?;
    Ok((seq, reply))
}

/// A session as a row. A longer name is cut.
pub fn encode_session(session: &SessionRecord) -> Box<[u8]> {
    let mut out = Vec::with_capacity(32 + session.who.len());
    out.push(SESSION_VERSION);
    out.extend_from_slice(&session.since.to_be_bytes());
    out.push(u8::from(session.ended.is_some()));
    out.extend_from_slice(&session.ended.unwrap_or_default().to_be_bytes());
    let mut end = session.who.len().min(WHO_BYTES_MAX);
    while !session.who.is_char_boundary(end) {
        end -= 1;
    }
    put_string(&mut out, &session.who.as_bytes()[..end]);
    out.into_boxed_slice()
}

/// Reads what [`encode_session`] wrote.
pub fn decode_session(client: ClientId, bytes: &[u8]) -> Result<SessionRecord, DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != SESSION_VERSION {
        return Err(DecodeError("session of an unknown format version"));
    }
    let since = reader.i64()?;
    let ended = match (reader.u8()?, reader.i64()?) {
        (0, 0) => None,
        (1, ended) => Some(ended),
        _ => return Err(DecodeError("neither begun nor ended")),
    };
    let who = std::str::from_utf8(reader.string(WHO_BYTES_MAX)?);
    let who = who.map_err(|_| DecodeError("a name that is not UTF-8"))?.to_owned();
    reader.end()?;
    Ok(SessionRecord { client, since, who, ended })
}

/// What a request that may have been executed already was answered.
pub struct RecordedReply {
    /// The answer; an error if the row cannot tell.
    pub answer: Reply,
    /// Position to wait for before anybody may hear it; 0 if durable.
    pub changed_at: Position,
}

/// Looks up the answers to those of a batch's requests that may have been executed already: one
/// element a request, or none at all if nobody asks again.
pub fn recall(
    engine: &dyn Engine,
    origins: impl ExactSizeIterator<Item = Option<Origin>> + Clone,
) -> Result<Vec<Option<RecordedReply>>, EngineError> {
    let retries = || {
        let known = origins.clone().enumerate();
        let known = known.filter_map(|(number, origin)| Some((number, origin?)));
        known.filter(|(_, origin)| origin.retry)
    };
    if retries().next().is_none() {
        return Ok(Vec::new());
    }
    let asked: Vec<(usize, Origin)> = retries().collect();
    let keys: Vec<Key> =
        asked.iter().map(|(_, origin)| answer_key(origin.client, origin.seq)).collect();
    let keys: Vec<_> = keys.iter().map(Key::borrow).collect();
    let mut told: Vec<Option<RecordedReply>> = origins.map(|_| None).collect();
    engine.get_many(&keys, &mut |index, row| {
        let (number, origin) = asked[index];
        told[number] = row.value.and_then(|bytes| told_by(origin, bytes, row.changed_at));
    })?;
    Ok(told)
}

/// Whether the slot of a request says something about it, or cannot be read.
pub fn is_answered(engine: &dyn Engine, origin: Origin) -> bool {
    let (key, mut answered) = (answer_key(origin.client, origin.seq), false);
    let read = engine.get_many(&[key.borrow()], &mut |_, row| {
        answered = row.value.is_some_and(|bytes| told_by(origin, bytes, row.changed_at).is_some());
    });
    answered || read.is_err()
}

/// What a row in the slot of a request says about it.
fn told_by(origin: Origin, bytes: &[u8], changed_at: Position) -> Option<RecordedReply> {
    let answer = match decode_answer(bytes) {
        Ok((seq, _)) if seq < origin.seq => return None,
        Ok((seq, reply)) if seq == origin.seq => reply,
        Ok((seq, _)) => Err(FsError::because(
            libc::EINVAL,
            format!(
                "metadata: call {} of client {} is older than its answered call {seq}",
                origin.seq, origin.client
            ),
        )
        .into()),
        Err(why) => Err(damaged(origin, why.0).into()),
    };
    Some(RecordedReply { answer, changed_at })
}

fn damaged(origin: Origin, why: &str) -> FsError {
    let Origin { client, seq, .. } = origin;
    let text = format!(
        "metadata: damaged row: the answer to call {seq} of client {client}: {why}; run kestrel \
         fsck"
    );
    FsError::because(libc::EIO, text)
}

/// The row that goes with what a request changed.
pub fn answer_row(origin: Origin, reply: &Reply) -> Mutation {
    Mutation {
        key: answer_key(origin.client, origin.seq),
        value: Some(encode_answer(origin.seq, reply)),
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::request::{Answer, Outcome};

    use super::*;

    const CLIENT: ClientId = ClientId([0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    #[test]
    fn keys_tell_clients_slots_and_sessions_apart() {
        let key = answer_key(CLIENT, 2 * WINDOW + 3);
        assert_eq!(
            (key.id, &*key.suffix),
            (0xa001_0203_0405_0607, &[8, 9, 10, 11, 12, 13, 14, 15, 0, 3][..])
        );
        assert_eq!(TxnKey::decode(key.id, &key.suffix), Some(TxnKey::Answer(CLIENT, 3)));
        let key = session_key(CLIENT);
        assert_eq!(TxnKey::decode(key.id, &key.suffix), Some(TxnKey::Session(CLIENT)));
        // A client with a number that begins with zeros has answers under the id of the sessions.
        let low = ClientId([0; 16]);
        let key = answer_key(low, 1);
        assert_eq!(TxnKey::decode(key.id, &key.suffix), Some(TxnKey::Answer(low, 1)));
        for (id, suffix) in [(0, &[1; 9][..]), (7, &[1; 16]), (7, b""), (7, &[0xff; 10])] {
            assert_eq!(TxnKey::decode(id, suffix), None, "{id} {suffix:?}");
        }
    }

    #[test]
    fn rows_survive_a_round_trip_and_damage_is_noticed() {
        let bytes = encode_answer(77, &Ok(Answer::Done));
        assert_eq!(decode_answer(&bytes), Ok((77, Ok(Answer::Done))));
        assert!(decode_answer(&bytes[..bytes.len() - 1]).is_err());
        assert!(decode_answer(&[&[9], &bytes[1..]].concat()).is_err());
        for ended in [None, Some(-5)] {
            let session =
                SessionRecord { client: CLIENT, since: 12, who: "host 1 /mnt".into(), ended };
            let bytes = encode_session(&session);
            assert_eq!(decode_session(CLIENT, &bytes), Ok(session));
            assert!(decode_session(CLIENT, &bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn a_slot_tells_about_its_own_request_only() {
        let bytes = encode_answer(WINDOW + 5, &Ok(Answer::Done));
        let ask = |seq| told_by(Origin { client: CLIENT, seq, retry: true }, &bytes, 3);
        assert!(ask(2 * WINDOW + 5).is_none(), "a later request has not been answered");
        let told = ask(WINDOW + 5).unwrap();
        assert_eq!((told.answer, told.changed_at), (Ok(Answer::Done), 3));
        assert!(
            matches!(ask(5).unwrap().answer, Err(Outcome::Failed(why)) if why.errno == libc::EINVAL)
        );
    }
}
