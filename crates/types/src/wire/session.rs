//! The bytes of messages: which frame carries what, and the messages that are about the session.
//!
//! The beginning of a Hello (magic, versions) and all of a Refused never change, whatever the
//! version: old and new builds can at least tell each other why they do not work together.

use super::basic::{self, WireWriter};
use super::{
    Answered, Body, Call, ClientId, Frame, HELLO_BYTES_MAX, Hello, JSON_BYTES_MAX, Refused,
    ReplyTo, SessionState, ToClient, ToServer, VOLUME_BYTES_MAX, Versions, WHO_BYTES_MAX, Welcome,
    WireError, lock, op, peer, reclaim, reply,
};
use crate::codec::{DecodeError, Reader};
use crate::error::FsError;
use crate::token::TokenId;

// Kinds of frames from clients. Numbers are never given to another one.
const HELLO: u8 = 1;
pub(super) const CALL: u8 = 2;
const PING: u8 = 3;
const CANCEL: u8 = 4;
const BYE: u8 = 5;
const PEER_HELLO: u8 = 6;
pub(super) const PEER: u8 = 7;
const PEER_PROOF: u8 = 8;
const PROOF: u8 = 9;

// Kinds of frames from nodes.
const WELCOME: u8 = 0x81;
const REFUSED: u8 = 0x82;
pub(super) const REPLY: u8 = 0x83;
const EVENT: u8 = 0x84;
const PONG: u8 = 0x85;
const PEER_CHALLENGE: u8 = 0x86;
const CHALLENGE: u8 = 0x87;

/// What a Hello begins with.
pub(super) const MAGIC: [u8; 4] = *b"KSTL";

// What the body of a call, and its answer, is.
const OP: u8 = 1;
const LOCK: u8 = 2;
const RECLAIM: u8 = 3;
const ADMIN: u8 = 4;

// First byte of the answer to an admin call.
const FAILED: u8 = 0;
const DONE: u8 = 1;

pub(super) fn kind_to_server(message: &ToServer) -> u8 {
    match message {
        ToServer::Hello(_) => HELLO,
        ToServer::Call(_) => CALL,
        ToServer::Ping { .. } => PING,
        ToServer::Cancel { .. } => CANCEL,
        ToServer::Bye => BYE,
        ToServer::PeerHello(_) => PEER_HELLO,
        ToServer::PeerProof(_) => PEER_PROOF,
        ToServer::Peer(_) => PEER,
        ToServer::Proof(_) => PROOF,
    }
}

pub(super) fn kind_to_client(message: &ToClient) -> u8 {
    match message {
        ToClient::Welcome(_) => WELCOME,
        ToClient::Refused(_) => REFUSED,
        ToClient::Reply(_) => REPLY,
        ToClient::Event { .. } => EVENT,
        ToClient::Pong { .. } => PONG,
        ToClient::PeerChallenge(_) => PEER_CHALLENGE,
        ToClient::Challenge(_) => CHALLENGE,
    }
}

pub(super) fn put_to_server(message: &ToServer, w: &mut WireWriter<'_>) {
    match message {
        ToServer::Hello(hello) => put_hello(hello, w),
        ToServer::Call(call) => put_call(call, w),
        ToServer::Ping { oldest_open_object } => w.varint(*oldest_open_object),
        ToServer::Cancel { id } => w.varint(*id),
        ToServer::Bye => {}
        ToServer::PeerHello(hello) => peer::put_hello(hello, w),
        ToServer::PeerProof(proof) => w.fixed(*proof),
        ToServer::Peer(envelope) => w.raw(envelope),
        ToServer::Proof(proof) => w.fixed(*proof),
    }
}

// Called from one place: the message is built where it ends up instead of being moved there.
#[inline(always)]
pub(super) fn to_server(frame: Frame<'_>) -> Result<ToServer, WireError> {
    let mut reader = Reader::new(frame.payload);
    let r = &mut reader;
    let message = match frame.kind {
        HELLO => ToServer::Hello(hello(r)?),
        CALL => ToServer::Call(call(r)?),
        PING => ToServer::Ping { oldest_open_object: r.varint()? },
        CANCEL => ToServer::Cancel { id: r.varint()? },
        BYE => ToServer::Bye,
        PEER_HELLO => ToServer::PeerHello(peer::hello(r)?),
        PEER_PROOF => ToServer::PeerProof(peer::number(r)?),
        PEER => ToServer::Peer(r.rest().into()),
        PROOF => ToServer::Proof(word(r)?),
        kind => return Err(WireError::UnknownKind(kind)),
    };
    reader.end()?;
    Ok(message)
}

pub(super) fn put_to_client(message: &ToClient, w: &mut WireWriter<'_>) {
    match message {
        ToClient::Welcome(welcome) => put_welcome(welcome, w),
        ToClient::Refused(Refused { errno, reason }) => w.error(*errno, reason),
        ToClient::Reply(ReplyTo { id, table, answered }) => put_reply(*id, *table, answered, w),
        ToClient::Event { id, json } => {
            w.varint(*id);
            put_json(json, w);
        }
        ToClient::Pong { table } => w.varint(*table),
        ToClient::PeerChallenge(challenge) => peer::put_challenge(challenge, w),
        ToClient::Challenge(nonce) => w.fixed(*nonce),
    }
}

pub(super) fn to_client(frame: Frame<'_>) -> Result<ToClient, WireError> {
    let mut reader = Reader::new(frame.payload);
    let r = &mut reader;
    let message = match frame.kind {
        WELCOME => ToClient::Welcome(welcome(r)?),
        REFUSED => {
            let FsError { errno, reason } = basic::error(r)?;
            ToClient::Refused(Refused { errno, reason })
        }
        REPLY => ToClient::Reply(reply_to(r)?),
        EVENT => ToClient::Event { id: r.varint()?, json: json(r)? },
        PONG => ToClient::Pong { table: r.varint()? },
        PEER_CHALLENGE => ToClient::PeerChallenge(peer::challenge(r)?),
        CHALLENGE => ToClient::Challenge(word(r)?),
        kind => return Err(WireError::UnknownKind(kind)),
    };
    reader.end()?;
    Ok(message)
}

fn put_hello(hello: &Hello, w: &mut WireWriter<'_>) {
    w.fixed(MAGIC);
    w.fixed(hello.versions.min.to_be_bytes());
    w.fixed(hello.versions.max.to_be_bytes());
    w.fixed(hello.client.0);
    w.fixed(hello.incarnation.to_be_bytes());
    w.u8(u8::from(hello.established));
    w.bounded(hello.volume.as_bytes(), VOLUME_BYTES_MAX, "the length of the volume's name");
    w.bounded(hello.who.as_bytes(), WHO_BYTES_MAX, "the length of the client's description");
    w.u8(u8::from(hello.token.is_some()));
    if let Some(token) = hello.token {
        w.fixed(token.0);
    }
    // With both at their limits a Hello fits what a node reads of a stranger.
    const {
        assert!(
            4 + 4 + 16 + 8 + 1 + 2 + VOLUME_BYTES_MAX + 2 + WHO_BYTES_MAX + 9 <= HELLO_BYTES_MAX
        )
    };
}

/// What every first message begins with.
pub(super) fn versions(r: &mut Reader<'_>) -> Result<Versions, WireError> {
    if r.bytes(MAGIC.len()).ok() != Some(&MAGIC) {
        return Err(WireError::NotHello);
    }
    let versions = Versions { min: r.u16()?, max: r.u16()? };
    if versions.common(Versions::OURS).is_none() {
        return Err(WireError::Version(versions));
    }
    Ok(versions)
}

fn hello(r: &mut Reader<'_>) -> Result<Hello, WireError> {
    let versions = versions(r)?;
    let mut client = ClientId([0; 16]);
    client.0.copy_from_slice(r.bytes(16)?);
    if client.0 == [0; 16] {
        return Err(DecodeError("a client without a name").into());
    }
    let (incarnation, established) = (r.u64()?, basic::boolean(r)?);
    let volume = basic::text(r, VOLUME_BYTES_MAX)?.to_owned();
    if volume.is_empty() {
        return Err(DecodeError("a volume without a name").into());
    }
    let who = basic::text(r, WHO_BYTES_MAX)?.to_owned();
    let token = match basic::boolean(r)? {
        false => None,
        true => {
            let mut token = TokenId([0; 8]);
            token.0.copy_from_slice(r.bytes(8)?);
            Some(token)
        }
    };
    Ok(Hello { versions, volume, client, incarnation, who, established, token })
}

// Bit of the byte after a call's body kind.
const RETRY: u8 = 1;

pub(super) fn put_call(call: &Call, w: &mut WireWriter<'_>) {
    w.u8(match call.body {
        Body::Op(_) => OP,
        Body::Lock(_) => LOCK,
        Body::Reclaim(_) => RECLAIM,
        Body::Admin(_) => ADMIN,
    });
    w.u8(if call.retry { RETRY } else { 0 });
    w.varint(call.id);
    w.varint(call.seq);
    w.varint(call.acked);
    match &call.body {
        Body::Op(request) => op::put_request(request, w),
        Body::Lock(request) => lock::put_request(request, w),
        Body::Reclaim(what) => reclaim::put_reclaim(what, w),
        Body::Admin(question) => put_json(question, w),
    }
}

// Called from one place: the message is built where it ends up instead of being moved there.
#[inline(always)]
fn call(r: &mut Reader<'_>) -> Result<Call, DecodeError> {
    let (body, flags) = (r.u8()?, basic::flags(r, RETRY)?);
    let (id, seq, acked) = (r.varint()?, r.varint()?, r.varint()?);
    let body = match body {
        OP => Body::Op(op::request(r)?),
        LOCK => Body::Lock(lock::request(r)?),
        RECLAIM => Body::Reclaim(reclaim::reclaim(r)?),
        ADMIN => Body::Admin(json(r)?),
        _ => return Err(DecodeError("unknown kind of call")),
    };
    Ok(Call { id, seq, acked, retry: flags & RETRY != 0, body })
}

pub(super) fn put_reply(id: u64, table: u64, answered: &Answered, w: &mut WireWriter<'_>) {
    let kind = |w: &mut WireWriter<'_>, kind: u8| {
        w.u8(kind);
        w.varint(id);
        w.varint(table);
    };
    match answered {
        Answered::Op(answer) => {
            kind(w, OP);
            reply::put_reply(answer, w);
        }
        Answered::Lock(answer) => {
            kind(w, LOCK);
            lock::put_reply(answer, w);
        }
        Answered::Reclaim(answer) => {
            kind(w, RECLAIM);
            reclaim::put_reply(answer, w);
        }
        Answered::Admin(answer) => {
            kind(w, ADMIN);
            match answer {
                Err(error) => {
                    w.u8(FAILED);
                    w.error(error.errno, &error.reason);
                }
                Ok(answer) => {
                    w.u8(DONE);
                    put_json(answer, w);
                }
            }
        }
    }
}

fn reply_to(r: &mut Reader<'_>) -> Result<ReplyTo, DecodeError> {
    let (kind, id, table) = (r.u8()?, r.varint()?, r.varint()?);
    let answered = match kind {
        OP => Answered::Op(reply::reply(r)?),
        LOCK => Answered::Lock(lock::reply(r)?),
        RECLAIM => Answered::Reclaim(reclaim::reply(r)?),
        ADMIN => Answered::Admin(match r.u8()? {
            FAILED => Err(basic::error(r)?),
            DONE => Ok(json(r)?),
            _ => return Err(DecodeError("unknown answer to an admin call")),
        }),
        _ => return Err(DecodeError("unknown kind of answer")),
    };
    Ok(ReplyTo { id, table, answered })
}

fn put_welcome(welcome: &Welcome, w: &mut WireWriter<'_>) {
    w.fixed(welcome.version.to_be_bytes());
    w.fixed(welcome.node.to_be_bytes());
    w.fixed(welcome.epoch.to_be_bytes());
    w.u8(welcome.session as u8);
    w.fixed(welcome.lease_ms.to_be_bytes());
    w.varint(welcome.table);
    w.varint(welcome.root);
    put_json(&welcome.descriptor, w);
}

fn welcome(r: &mut Reader<'_>) -> Result<Welcome, WireError> {
    let version = r.u16()?;
    let spoken = Versions { min: version, max: version };
    if spoken.common(Versions::OURS).is_none() {
        return Err(WireError::Version(spoken));
    }
    let (node, epoch) = (r.u32()?, r.u64()?);
    let session = match r.u8()? {
        1 => SessionState::New,
        2 => SessionState::Known,
        3 => SessionState::Restarted,
        4 => SessionState::Expired,
        _ => return Err(DecodeError("unknown state of a session").into()),
    };
    let (lease_ms, table, root) = (r.u32()?, r.varint()?, r.varint()?);
    Ok(Welcome { version, node, epoch, descriptor: json(r)?, session, lease_ms, table, root })
}

/// A nonce, or what is made of one.
fn word(r: &mut Reader<'_>) -> Result<[u8; 32], DecodeError> {
    let mut word = [0; 32];
    word.copy_from_slice(r.bytes(32)?);
    Ok(word)
}

fn put_json(json: &[u8], w: &mut WireWriter<'_>) {
    w.bounded(json, JSON_BYTES_MAX, "the length of a JSON text");
}

fn json(r: &mut Reader<'_>) -> Result<Box<[u8]>, DecodeError> {
    Ok(r.string(JSON_BYTES_MAX)?.into())
}
