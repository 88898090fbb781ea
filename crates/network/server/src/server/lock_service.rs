//! Locks of files, and the calls that wait for them.
//!
//! Of several nodes each keeps the locks of the files that have it as home. A lock request to
//! another node, or while a file is about to get another home, is answered with "misdirected":
//! locks do not move, so a file that has some does not get another home
//! ([`LockService::files_kept`]). So is one to a node that may not answer now
//! ([`crate::backend::Backend::may_answer`]): another process may keep them.
//!
//! The lock service's mutex is taken with that of the session of the call, so a lock is taken or
//! given back before a newer connection of the same client is welcomed. The lock service has the
//! connection of each session: calls that another client's unlock wakes are answered with its mutex
//! held, so never on a connection on which they have not been sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_rpc::handler::Outbox;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::SLOTS;
use kestrel_types::wire::{
    Answered, Checksum, LOCK_MISDIRECTED, LockAnswer, LockReply, LockRequest, LockSpan, ReplyTo,
    ToClient, encode_to_client,
};

use crate::backend::CurrentMap;
use crate::locks::{LockLimits, LockOwner, Locks, Set, Ticket};

const INTERRUPTED: FsError = FsError::new(libc::EINTR, "waiting for the lock was given up");
/// Nothing has been done, and the client sends the request again, perhaps to another node.
const MISDIRECTED: FsError = FsError::new(
    LOCK_MISDIRECTED,
    "another node keeps the locks of this file, or will in a moment",
);

const TOO_MANY: FsError =
    FsError::new(libc::ENOLCK, "too many calls wait for the grace period to end");

/// Most calls that wait for the grace period to end.
const PARKED_MAX: usize = 1 << 16;

/// A call that waits for the grace period to end.
struct Parked {
    holder: u64,
    call: u64,
    lock: LockSpan,
    wait: bool,
}

/// See the module's header.
pub(crate) struct LockService {
    /// The map, which decides which files' locks are kept here.
    current_map: CurrentMap,
    pub locks: Locks,
    /// The grace period lasts: no client gets a lock that it did not hold before.
    grace: bool,
    parked: Vec<Parked>,
    /// Where sessions are connected.
    lines: BTreeMap<u64, (Arc<dyn Outbox>, Checksum)>,
}

impl LockService {
    pub fn new(limits: LockLimits, current_map: CurrentMap) -> Self {
        Self {
            current_map,
            locks: Locks::new(limits),
            grace: false,
            parked: Vec::new(),
            lines: BTreeMap::new(),
        }
    }

    /// The grace period begins.
    pub fn begin_grace(&mut self) {
        self.grace = true;
    }

    /// The grace period has ended: calls that waited for that get their locks, or wait for them.
    pub fn end_grace(&mut self) {
        self.grace = false;
        for Parked { holder, call, lock, wait } in std::mem::take(&mut self.parked) {
            let mut woken = Vec::new();
            let kept = self.current_map.keeps_locks_of(lock.ino);
            let reply = match kept {
                true => self.set(holder, call, &lock, wait, &mut woken),
                false => Some(Err(MISDIRECTED)),
            };
            if let Some(reply) = reply {
                self.answer(Ticket { session: holder, call }, reply);
            }
            self.answer_woken(woken);
        }
    }

    /// A session is connected here, and nowhere else any more: the calls that wait have no
    /// connection for their answers until they are sent again.
    pub fn connect(&mut self, holder: u64, outbox: Arc<dyn Outbox>, checksum: Checksum) {
        self.disconnect(holder);
        self.lines.insert(holder, (outbox, checksum));
    }

    /// A session is connected nowhere. Its locks and its places in line stay.
    pub fn disconnect(&mut self, holder: u64) {
        self.lines.remove(&holder);
        self.locks.orphan_waits(holder);
        self.parked.retain(|other| other.holder != holder);
    }

    /// Serves a request of a session; `None` if the call has to wait.
    pub fn serve(&mut self, holder: u64, call: u64, request: &LockRequest) -> Option<LockReply> {
        if let Err(why) = request.check() {
            return Some(Err(why));
        }
        if !self.current_map.may_answer() || !self.current_map.keeps_locks_of(request.ino()) {
            return Some(Err(MISDIRECTED));
        }
        let mut woken = Vec::new();
        let reply = match *request {
            LockRequest::Set { lock, wait } if self.grace => {
                self.park(Parked { holder, call, lock, wait }).map(Err)
            }
            LockRequest::Set { lock, wait } => self.set(holder, call, &lock, wait, &mut woken),
            LockRequest::Unlock { ino, owner, kind, start, end } => {
                let owner = LockOwner { session: holder, id: owner };
                let done = self.locks.unlock(owner, ino, kind, (start, end), &mut woken);
                Some(done.map(|()| LockAnswer::Done))
            }
            LockRequest::Get(lock) => {
                Some(Ok(self.locks.test(holder, &lock).map_or(LockAnswer::Free, LockAnswer::Held)))
            }
            LockRequest::ReleaseOwner { ino, owner, kind } => {
                self.locks.release_owner(
                    LockOwner { session: holder, id: owner },
                    ino,
                    kind,
                    &mut woken,
                );
                Some(Ok(LockAnswer::Done))
            }
        };
        self.answer_woken(woken);
        reply
    }

    /// A session had this lock before the node was restarted. Whether it has it again.
    pub fn reclaim(&mut self, holder: u64, lock: &LockSpan) -> bool {
        self.current_map.keeps_locks_of(lock.ino) && self.locks.reclaim(holder, lock).is_ok()
    }

    /// Of how many files that leave this node there are locks, or calls that wait for one: those
    /// must not leave. Once a file is about to leave, no new lock is granted
    /// ([`CurrentMap::keeps_locks_of`]), so none means that there will be none. During the grace
    /// period the answer is at least one.
    pub fn files_kept(&self, leaves: &dyn Fn(InodeId) -> bool) -> usize {
        let parked = self.parked.iter().filter(|parked| leaves(parked.lock.ino)).count();
        // A number carries its slot, so that one file stands for all of a slot.
        let unknown = self.grace && (0..SLOTS as InodeId).any(leaves);
        self.locks.files().filter(|ino| leaves(*ino)).count() + parked + usize::from(unknown)
    }

    fn set(
        &mut self,
        holder: u64,
        call: u64,
        lock: &LockSpan,
        wait: bool,
        woken: &mut Vec<Ticket>,
    ) -> Option<LockReply> {
        match self.locks.set(holder, lock, wait.then_some(call), woken) {
            Ok(Set::Granted) => Some(Ok(LockAnswer::Done)),
            Ok(Set::Waiting) => None,
            Err(why) => Some(Err(why)),
        }
    }

    /// Lets a call wait for the end of the grace period.
    fn park(&mut self, parked: Parked) -> Option<FsError> {
        // Sent again over a new connection: it takes its own place.
        self.parked.retain(|other| (other.holder, other.call) != (parked.holder, parked.call));
        if self.parked.len() >= PARKED_MAX {
            return Some(TOO_MANY);
        }
        self.parked.push(parked);
        None
    }

    /// Ends the wait of a call; the answer it gets if it waited.
    pub fn cancel(&mut self, holder: u64, call: u64) -> Option<LockReply> {
        let before = self.parked.len();
        self.parked.retain(|other| (other.holder, other.call) != (holder, call));
        let waited = self.parked.len() < before || self.locks.cancel(holder, call);
        waited.then_some(Err(INTERRUPTED))
    }

    /// A session ends: what it holds and waits for goes.
    pub fn end_session(&mut self, holder: u64) {
        self.disconnect(holder);
        let mut woken = Vec::new();
        self.locks.end_session(holder, &mut woken);
        self.answer_woken(woken);
    }

    fn answer_woken(&self, woken: Vec<Ticket>) {
        for ticket in woken {
            self.answer(ticket, Ok(LockAnswer::Done));
        }
    }

    /// Answers a call that waited. (If its client is not connected, it sends the call again.)
    fn answer(&self, ticket: Ticket, reply: LockReply) {
        let Some((outbox, checksum)) = self.lines.get(&ticket.session) else { return };
        let reply = ReplyTo {
            id: ticket.call,
            table: self.current_map.version(),
            answered: Answered::Lock(reply),
        };
        let mut frame = Vec::new();
        // An answer about a lock is short.
        if encode_to_client(&ToClient::Reply(reply), *checksum, &mut frame).is_ok() {
            outbox.send(&frame);
        }
    }
}
