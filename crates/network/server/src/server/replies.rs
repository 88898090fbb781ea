//! Answers on their way from the node to clients.
//!
//! What the calls of one batch are answered while the batch is being submitted (reads, as a rule)
//! leaves as one; answers that waited for the disk leave one by one, and the transport gathers
//! them.
//!
//! An answer is taken to the session first (what it means for opens and objects, that its number is
//! done) and then sent to the connection on which the call came last: it may have been sent again
//! over a newer one.

use std::sync::{Arc, OnceLock};

use kestrel_meta::node::ReplySink;
use kestrel_rpc::handler::Outbox;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Outcome, Reply};
use kestrel_types::wire::{Answered, Checksum, ReplyTo, ToClient, encode_to_client};
use parking_lot::Mutex;

use super::{Server, ServerShared};
use crate::authz::SessionEffect;
use crate::grant::{Grant, Listable};
use crate::opens::Opens;
use crate::session::{Session, State};

/// Bytes that most answers have at most, header included.
const REPLY_BYTES: usize = 72;

/// Frames gathered while a batch is submitted.
#[derive(Default)]
struct PendingFrames {
    frames: Vec<u8>,
    /// The batch has been submitted: what comes now is sent at once.
    over: bool,
}

/// The calls of one batch of one connection.
pub(crate) struct Batch {
    shared: Arc<ServerShared>,
    session: Arc<Session>,
    incarnation: u64,
    /// What the session may do, if not everything.
    grant: Option<Arc<Grant>>,
    outbox: Arc<dyn Outbox>,
    checksum: Checksum,
    /// Version of the placement map when the batch came.
    map_version: u64,
    pending: Mutex<PendingFrames>,
    /// The calls, in the order of the requests they became.
    calls: OnceLock<Vec<Submitted>>,
}

/// A call that was submitted.
#[derive(Clone)]
pub(crate) struct Submitted {
    pub id: u64,
    /// Its number, or 0.
    pub seq: u64,
    /// What its answer means for the session.
    pub effect: SessionEffect,
    /// It lists this directory.
    pub lists: Option<InodeId>,
    /// The name that its answer is about, if the session is confined.
    pub named: Option<Name>,
    /// It reads a snapshot: what the session has open is of the present.
    pub at_snapshot: bool,
    /// If it is allowed, the session may list this one.
    pub listed: Option<Listable>,
    /// Its session's token does not allow it now: only its recorded reply is looked for.
    pub refused: bool,
}

const NOT_ALLOWED: FsError =
    FsError::new(libc::EACCES, "the client's token does not allow this any more");

impl Batch {
    pub fn new(
        server: &Server,
        session: Arc<Session>,
        (incarnation, grant): (u64, Option<Arc<Grant>>),
        outbox: Arc<dyn Outbox>,
        checksum: Checksum,
    ) -> Arc<Self> {
        let (shared, map_version) = (server.shared.clone(), server.backend.map_version());
        let (pending, calls) = (Mutex::default(), OnceLock::new());
        Arc::new(Self {
            shared,
            session,
            incarnation,
            grant,
            outbox,
            checksum,
            map_version,
            pending,
            calls,
        })
    }

    /// Assigns the calls to the replies of the requests that are now submitted. Once.
    pub fn expect(&self, calls: Vec<Submitted>) {
        // An answer to a call takes about so many bytes.
        self.pending.lock().frames.reserve(calls.len() * REPLY_BYTES);
        let first = self.calls.set(calls).is_ok();
        debug_assert!(first, "a batch is submitted once");
    }

    /// What the session may do, if not everything.
    pub fn grant(&self) -> Option<&Arc<Grant>> {
        self.grant.as_ref()
    }

    /// Sends a message on the connection that the batch came on.
    pub fn send(&self, message: &ToClient) {
        let mut pending = self.pending.lock();
        if pending.over {
            drop(pending);
            return self.shared.send(&*self.outbox, self.checksum, message);
        }
        if let Err(why) = encode_to_client(message, self.checksum, &mut pending.frames) {
            self.outbox.close(&why.to_string());
        }
    }

    /// Answers a Ping.
    pub fn send_pong(&self) {
        self.send(&ToClient::Pong { table: self.map_version });
    }

    /// Answers a call.
    pub fn answer(&self, id: u64, answered: Answered) {
        self.send(&ToClient::Reply(ReplyTo { id, table: self.map_version, answered }));
    }

    /// The batch has been submitted.
    pub fn submitted(&self) {
        let mut pending = self.pending.lock();
        pending.over = true;
        let frames = std::mem::take(&mut pending.frames);
        drop(pending);
        if !frames.is_empty() {
            self.shared.counts.bytes_out.add(frames.len() as u64);
            self.outbox.send(&frames);
        }
    }

    /// The node's reply to a call.
    pub fn reply(&self, call: &Submitted, mut reply: Reply) {
        if call.refused && matches!(&reply, Err(Outcome::Failed(why)) if why.errno == libc::EBADF) {
            // Nothing is on record.
            let ended = self.grant.as_ref().and_then(|grant| Some(grant.why_ended(grant.ended()?)));
            reply = Err(Outcome::Failed(ended.unwrap_or(NOT_ALLOWED)));
        }
        if let Some(grant) = &self.grant {
            note(grant, &mut self.session.state.lock(), call, &mut reply);
        }
        if call.seq == 0 && call.effect == SessionEffect::None {
            return self.answer(call.id, Answered::Op(reply));
        }
        let mut state = self.session.state.lock();
        if call.seq == 0 {
            self.take_effect(&mut state, call.effect, &reply, true);
            drop(state);
            return self.answer(call.id, Answered::Op(reply));
        }
        let waiting = state.window.waiting(call.seq);
        let keep = self.take_effect(&mut state, call.effect, &reply, waiting.is_some());
        // On a newer connection the call has not come yet: when it does, the answer is there.
        let asked = waiting.filter(|waiter| state.is_current(waiter.incarnation));
        let Some(waiter) = asked else { return state.window.finish(call.seq, reply, keep) };
        let message = ToClient::Reply(ReplyTo {
            id: waiter.id,
            table: self.map_version,
            answered: Answered::Op(reply),
        });
        let mut elsewhere = None;
        if waiter.incarnation == self.incarnation {
            self.send(&message);
        } else if let Some(conn) = &state.conn {
            let mut frame = Vec::new();
            // A reply always fits: what is too large becomes an error.
            let fits = encode_to_client(&message, conn.checksum, &mut frame).is_ok();
            elsewhere = fits.then(|| (conn.outbox.clone(), frame));
        }
        if let ToClient::Reply(ReplyTo { answered: Answered::Op(reply), .. }) = message {
            state.window.finish(call.seq, reply, keep);
        }
        drop(state);
        if let Some((outbox, frame)) = elsewhere {
            self.shared.counts.bytes_out.add(frame.len() as u64);
            outbox.send(&frame);
        }
    }

    /// What an answer means for the session. False if the answer no longer is true: its session was
    /// given up.
    fn take_effect(
        &self,
        state: &mut State,
        effect: SessionEffect,
        reply: &Reply,
        awaited: bool,
    ) -> bool {
        let alive = state.is_alive();
        match (effect, reply) {
            // Opens of directories are not counted.
            (SessionEffect::Opens { write }, Ok(Answer::Opened { inode, .. }))
                if inode.kind != Kind::Dir =>
            {
                if alive && awaited {
                    state.opens.add(inode.ino, 1, write);
                } else {
                    self.shared.releases.lock().push((inode.ino, 1));
                }
                alive
            }
            (SessionEffect::Releases { .. }, Ok(_)) => alive,
            (SessionEffect::Releases { ino, write }, Err(_)) => {
                if alive {
                    state.opens.add(ino, 1, write);
                } else {
                    // The session has ended meanwhile; this open was not among those it held then.
                    self.shared.releases.lock().push((ino, 1));
                }
                alive
            }
            (SessionEffect::Allocates, Ok(Answer::Objects { first, count })) => {
                if alive {
                    self.shared.objects.lock().give(state.holder, *first, *count);
                }
                true
            }
            _ => true,
        }
    }
}

/// Notes what a session is given by an answer, and keeps from it what is above its root, and
/// content that none of its users may read.
fn note(
    grant: &Grant,
    State { given, opens, .. }: &mut State,
    call: &Submitted,
    reply: &mut Reply,
) {
    // To open a file is to be allowed its content.
    if let Ok(Answer::Inode(inode) | Answer::Entry { inode, .. })
    | Ok(Answer::Removed(inode) | Answer::Renamed { other: Some(inode), .. })
    | Err(Outcome::Conflict(inode)) = reply
    {
        match call.at_snapshot {
            true => grant.withhold(inode, &Opens::default()),
            false => grant.withhold(inode, opens),
        }
    }
    match (&*reply, call.listed) {
        (Ok(_), Some(Listable::Dir(at, dir))) => given.listed.add((at, dir), ()),
        (
            Ok(Answer::Entry { inode, .. } | Answer::Opened { inode, .. }),
            Some(Listable::Answered(at)),
        ) if inode.kind == Kind::Dir => {
            given.listed.add((at, inode.ino), ());
        }
        _ => {}
    }
    let Some(root) = grant.root() else { return };
    match reply {
        Ok(
            Answer::Entry { inode, parent } | Answer::Opened { inode, parent: Some(parent), .. },
        ) if inode.kind != Kind::Dir => {
            if let Some(name) = &call.named {
                given.add_file(inode.ino, *parent, name.clone());
            }
        }
        Ok(Answer::Entries { entries, parent, .. }) => {
            let Some(dir) = call.lists else { return };
            if dir == root {
                *parent = root;
            }
            let files = entries.iter().filter(|entry| entry.kind != Kind::Dir);
            files.for_each(|entry| given.add_file(entry.ino, dir, entry.name.clone()));
        }
        Ok(Answer::EntriesPlus { entries, .. }) => {
            let Some(dir) = call.lists else { return };
            let files = entries.iter();
            files.for_each(|(name, inode)| given.add_file(inode.ino, dir, name.clone()));
        }
        _ => {}
    }
}

impl ReplySink for Batch {
    fn complete(&self, number: usize, reply: Reply) {
        if let Some(call) = self.calls.get().and_then(|calls| calls.get(number)) {
            self.reply(call, reply);
        }
    }
}

#[cfg(test)]
mod tests;
