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
    /// A client begins a lock call: what it may give up by that it does not count on any more.
    pub(super) fn begin_lock(&mut self, client_index: usize, request: &LockRequest) {
        if !matches!(request, LockRequest::Get(_)) {
            self.clients[client_index].locks.retain(|lock| !is_of(lock, request));
        }
        // Calls of one owner about one file are not in an order that a caller could rely on.
        self.clients[client_index].lock_call_begins(request);
    }

    /// A client has the answer about a lock, or never will.
    pub(super) fn lock_ended(
        &mut self,
        client_index: usize,
        request: &LockRequest,
        reply: Option<LockReply>,
    ) {
        self.say(|| format!("client {client_index}: {request:?}: {reply:?}"));
        let alone = self.clients[client_index].answered_of(request);
        let (LockRequest::Set { lock, .. }, Some(Ok(LockAnswer::Done)), true) =
            (request, reply, alone)
        else {
            return;
        };
        // Granted to a session that was given up since; the client will learn that.
        if self.clients[client_index].broken {
            return;
        }
        for (other, client) in self.clients.iter().enumerate() {
            let excluded = client.locks.iter().find(|held| {
                other != client_index
                    && (held.ino, held.kind) == (lock.ino, lock.kind)
                    && (held.mode == LockMode::Write || lock.mode == LockMode::Write)
            });
            if let Some(held) = excluded {
                let why =
                    format!("client {client_index} has {lock:?} while client {other} has {held:?}");
                return self.fail(why);
            }
        }
        self.clients[client_index].locks.push(*lock);
    }
}
