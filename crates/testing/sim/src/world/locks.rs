//! Locks as clients believe to hold them: no two that exclude each other, ever, while both sessions
//! live.

use kestrel_types::wire::{LockAnswer, LockMode, LockReply, LockRequest, LockSpan};

use super::World;
use crate::event_queue::Scene;

/// Whether a lock is one that an unlock by this owner gives up.
fn is_of(lock: &LockSpan, request: &LockRequest) -> bool {
    match *request {
        LockRequest::Set { lock: other, .. } | LockRequest::Get(other) => {
            (lock.ino, lock.owner, lock.kind) == (other.ino, other.owner, other.kind)
        }
        LockRequest::Unlock { ino, owner, kind, .. }
        | LockRequest::ReleaseOwner { ino, owner, kind } => {
            (lock.ino, lock.owner, lock.kind) == (ino, owner, kind)
        }
    }
}

impl World {
    /// A client asks about a lock: what it may give up by that it does not count on any more.
    pub(super) fn begin_lock(&mut self, place: usize, request: &LockRequest) {
        if !matches!(request, LockRequest::Get(_)) {
            self.clients[place].locks.retain(|lock| !is_of(lock, request));
        }
        // Calls of one owner about one file are not in an order that anybody could rely on.
        self.clients[place].asked_of(request);
    }

    /// A client has heard about a lock, or never will.
    pub(super) fn lock_ended(
        &mut self,
        place: usize,
        request: &LockRequest,
        reply: Option<LockReply>,
    ) {
        self.say(|| format!("client {place}: {request:?}: {reply:?}"));
        let alone = self.clients[place].answered_of(request);
        let (LockRequest::Set { lock, .. }, Some(Ok(LockAnswer::Done)), true) =
            (request, reply, alone)
        else {
            return;
        };
        // Granted to a session that was given up since; the client will hear of that.
        if self.clients[place].broken {
            return;
        }
        for (other, client) in self.clients.iter().enumerate() {
            let excluded = client.locks.iter().find(|held| {
                other != place
                    && (held.ino, held.kind) == (lock.ino, lock.kind)
                    && (held.mode == LockMode::Write || lock.mode == LockMode::Write)
            });
            if let Some(held) = excluded {
                let why = format!("client {place} has {lock:?} while client {other} has {held:?}");
                return self.fail(why);
            }
        }
        self.clients[place].locks.push(*lock);
    }
}
