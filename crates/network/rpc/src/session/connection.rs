//! The connection comes and goes: the messages of the node, answers, retries. The handshakes are in
//! `greeting.rs` and `reclaim.rs`.

use kestrel_types::clock::Nanos;
use kestrel_types::inode::Kind;
use kestrel_types::request::{Answer, Op};
use kestrel_types::security::Security;
use kestrel_types::wire::{Answered, Body, LockAnswer, LockRequest, ReplyTo, ToClient};

use super::calls::{CallOwner, Pending, Sent};
use super::{Broken, CallDeadline, CallId, Link, LinkEvent, Stage, undo};

impl<D> Link<D> {
    /// There is a new connection: it runs over this, and Hello goes out. Answers the number of the
    /// connection.
    pub fn connected(&mut self, now: Nanos, security: Security) -> u64 {
        if matches!(self.stage, Stage::Ended) {
            return self.incarnation;
        }
        debug_assert!(matches!(self.stage, Stage::Down), "one connection at a time");
        self.incarnation += 1;
        self.security = security;
        (self.last_received, self.pinged) = (now, now);
        self.pings.clear();
        self.greet(now);
        self.incarnation
    }

    /// The connection is gone: what was sent on it will be sent again.
    pub fn disconnected(&mut self, now: Nanos) {
        if matches!(self.stage, Stage::Down | Stage::Ended) {
            return;
        }
        self.stage = Stage::Down;
        self.output.clear();
        self.deferred = 0;
        if self.silent_since.is_none() {
            self.silent_since = Some(now);
            // Some deadlines count from the outage: let the next tick see which.
            self.earliest = now;
        }
        self.fail_all(
            |pending| {
                pending.sent == Sent::Now && matches!(pending.deadline, CallDeadline::Connection(_))
            },
            libc::EIO,
            "the connection to the metadata server was lost before the answer came: ask again",
        );
        for id in self.calls.ids(|pending| matches!(pending.owner, CallOwner::Reclaim)) {
            self.calls.remove(id);
        }
        for pending in self.calls.iter_mut().filter(|pending| pending.sent == Sent::Now) {
            pending.sent = Sent::Before;
        }
    }

    /// Messages came on the present connection, in this order. Leaves `messages` empty.
    ///
    /// # Errors
    /// If the node refuses this client or breaks the protocol: close the connection and call
    /// [`Link::disconnected`].
    pub fn received(&mut self, now: Nanos, messages: &mut Vec<ToClient>) -> Result<(), Broken> {
        self.last_received = now;
        let mut outcome = Ok(());
        for message in messages.drain(..) {
            if outcome.is_ok() {
                outcome = self.receive(message);
            }
        }
        self.pump();
        outcome
    }

    fn receive(&mut self, message: ToClient) -> Result<(), Broken> {
        match (&self.stage, message) {
            (Stage::Ended, _) => Ok(()),
            (Stage::Greeting { since, .. }, ToClient::Welcome(welcome)) => {
                self.welcomed(welcome, *since)
            }
            (Stage::Greeting { hello: Some(_), .. }, ToClient::Challenge(nonce)) => {
                self.challenged(&nonce)
            }
            (_, ToClient::Refused(refused)) => Err(self.refused(refused)),
            (Stage::Reclaiming { .. } | Stage::Up, ToClient::Reply(reply)) => self.answered(reply),
            // The answer to a call of an earlier connection came with the Welcome; it will be given
            // again when the call is.
            (Stage::Welcomed { .. }, ToClient::Reply(_)) => Ok(()),
            (Stage::Up, ToClient::Event { id, json }) => {
                self.events.push_back(LinkEvent::AdminEvent { id: CallId(id), json });
                Ok(())
            }
            (Stage::Reclaiming { .. } | Stage::Up, ToClient::Pong { table }) => {
                self.mention(table);
                self.proven = self.pings.pop_front().unwrap_or(self.proven);
                Ok(())
            }
            _ => Err(Broken(
                "the metadata server sent a message at a time when it makes no sense".into(),
            )),
        }
    }

    /// The session goes on: everything unanswered is sent again, in its old order, then what came
    /// meanwhile.
    pub(super) fn serve(&mut self, reclaimed: bool) {
        self.stage = Stage::Up;
        self.silent_since = None;
        self.queue = self.calls.ids(|pending| pending.sent == Sent::Before).into();
        self.retrying = self.queue.len();
        self.queue.extend(self.calls.ids(|pending| pending.sent == Sent::Never));
        self.announce = reclaimed;
        self.cancels.clear();
        self.events.push_back(LinkEvent::Serving);
        self.retried();
        self.pump();
    }

    fn answered(&mut self, reply: ReplyTo) -> Result<(), Broken> {
        self.mention(reply.table);
        let id = CallId(reply.id);
        // Answers to calls given up meanwhile are of no interest.
        let Some(pending) = self.calls.get_mut(id) else { return Ok(()) };
        // One that was sent before may be answered here before it is sent again.
        if pending.sent == Sent::Never || !fits(&pending.call.body, &reply.answered) {
            return Err(Broken("the metadata server answered something that was not asked".into()));
        }
        match &pending.owner {
            CallOwner::Requester(_) => {}
            CallOwner::Reclaim => return self.reclaimed(id, reply.answered),
            CallOwner::GivenUp => {
                if let Some(body) = undoing(pending, &reply.answered) {
                    self.enqueue(body, CallDeadline::Always, CallOwner::GivenUp);
                }
            }
        }
        self.end(id, Ok(reply.answered));
        Ok(())
    }
}

/// Whether an answer is of the kind that the call wants.
fn fits(body: &Body, answered: &Answered) -> bool {
    matches!(
        (body, answered),
        (Body::Op(_), Answered::Op(_))
            | (Body::Lock(_), Answered::Lock(_))
            | (Body::Reclaim(_), Answered::Reclaim(_))
            | (Body::Admin(_), Answered::Admin(_))
    )
}

/// What takes back a call that was given up, and carried out all the same.
fn undoing<D>(pending: &Pending<D>, answered: &Answered) -> Option<Body> {
    match (&pending.call.body, answered) {
        // Opens of directories are not counted.
        (Body::Op(_), Answered::Op(Ok(Answer::Opened { inode, .. })))
            if inode.kind != Kind::Dir =>
        {
            Some(undo(Op::Release(inode.ino)))
        }
        (Body::Lock(LockRequest::Set { lock, .. }), Answered::Lock(Ok(LockAnswer::Done))) => {
            Some(Body::Lock(LockRequest::Unlock {
                ino: lock.ino,
                owner: lock.owner,
                kind: lock.kind,
                start: lock.start,
                end: lock.end,
            }))
        }
        _ => None,
    }
}
