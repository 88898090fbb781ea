//! The connection comes and goes: Hello and Welcome, reclaim, answers, retries.

use kestrel_types::clock::Nanos;
use kestrel_types::error::FsError;
use kestrel_types::inode::Kind;
use kestrel_types::request::{Answer, Op};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    Answered, Body, Hello, LockAnswer, LockRequest, Reclaim, Refused, ReplyTo, SessionState,
    ToClient, ToServer, Versions, Welcome,
};

use super::calls::{CallOwner, Pending, Sent};
use super::{Broken, CallDeadline, CallId, Link, LinkEvent, Parts, Stage, mark_last, undo};

/// Shortest lease that makes sense, nanoseconds; a node that grants less is taken to grant this.
const LEASE_MIN: Nanos = kestrel_types::clock::SECOND / 100;

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
        (self.heard, self.pinged) = (now, now);
        self.pings.clear();
        let hello = Hello {
            versions: Versions::OURS,
            volume: self.config.volume.clone(),
            client: self.config.client,
            incarnation: self.incarnation,
            who: self.config.who.clone(),
            established: self.established,
            token: self.config.token.as_ref().map(|token| token.id),
        };
        self.say(&ToServer::Hello(hello.clone()));
        let hello = hello.token.is_some().then(|| Box::new(hello));
        self.stage = Stage::Greeting { since: now, hello };
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
            // Outages end some calls' patience: let the next tick see which.
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
    /// If the node refuses us or breaks the protocol: close the connection and call
    /// [`Link::disconnected`].
    pub fn received(&mut self, now: Nanos, messages: &mut Vec<ToClient>) -> Result<(), Broken> {
        self.heard = now;
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
                self.events.push_back(LinkEvent::Told { id: CallId(id), json });
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

    /// Proves that we have the token, once a connection, and never where somebody could hear it.
    fn challenged(&mut self, nonce: &[u8; 32]) -> Result<(), Broken> {
        if !self.security.is_private() {
            let reason =
                "a token is not shown over a connection that others can read: connect with TLS"
                    .into();
            return Err(self.refused(Refused { errno: libc::EACCES, reason }));
        }
        let (Stage::Greeting { hello, .. }, Some(token)) = (&mut self.stage, &self.config.token)
        else {
            return Ok(());
        };
        if let Some(hello) = hello.take() {
            let proof = token.prove(nonce, &hello, &self.security);
            self.say(&ToServer::Proof(proof));
        }
        Ok(())
    }

    /// The node does not serve this client, and will not later either, so no call waits for that.
    fn refused(&mut self, refused: Refused) -> Broken {
        let why = format!("refused: {}", refused.reason);
        if refused.errno == libc::EACCES {
            self.fail_all(
                |_| true,
                libc::EACCES,
                "the metadata server does not let this client in: its log, and this client's, say \
                 why",
            );
        }
        self.events.push_back(LinkEvent::Refused(refused));
        Broken(why)
    }

    fn welcomed(&mut self, welcome: Welcome, greeted: Nanos) -> Result<(), Broken> {
        if !(Versions::OURS.min..=Versions::OURS.max).contains(&welcome.version) {
            return Err(Broken(format!(
                "the metadata server chose version {} of the protocol",
                welcome.version
            )));
        }
        self.lease = Nanos::from(welcome.lease_ms).saturating_mul(1_000_000).max(LEASE_MIN);
        let (session, table) = (welcome.session, welcome.table);
        self.stage = Stage::Welcomed { since: self.heard, greeted, session, table };
        self.events.push_back(LinkEvent::Welcomed(welcome));
        Ok(())
    }

    /// The node that answered the Hello is the one that is meant: what is owed to it is sent.
    /// Ignored at other times.
    pub fn accept(&mut self) {
        let Stage::Welcomed { session, greeted, table, .. } = self.stage else { return };
        self.proven = greeted;
        self.mention(table);
        self.stats.welcomes += 1;
        let lost = match session {
            SessionState::New => self.established.then_some(session),
            SessionState::Known => None,
            SessionState::Restarted | SessionState::Expired => Some(session),
        };
        if let Some(lost) = lost {
            self.forget(lost);
        }
        self.established = true;
        // A reclaim without an answer is not over, and what it has to mend does not become less.
        self.lost = lost.into_iter().chain(self.lost).max_by_key(|lost| severity(*lost));
        if let Some(lost) = self.lost {
            self.stats.reclaims += 1;
            self.stage = Stage::Reclaiming { parts: None };
            self.events.push_back(LinkEvent::ReclaimWanted { lost });
        } else {
            self.serve(false);
        }
    }

    /// What the node counted for us is gone, and the reclaim sets it anew: there is nothing to undo
    /// any more. A node that knows nothing of us does not know either what became of numbered
    /// calls.
    fn forget(&mut self, lost: SessionState) {
        for id in self.calls.ids(|pending| matches!(pending.owner, CallOwner::GivenUp)) {
            self.end(id, Err(FsError::new(libc::EIO, "given up")));
        }
        if lost == SessionState::New {
            self.fail_all(
                |pending| pending.call.seq != 0,
                libc::EIO,
                "the metadata server has forgotten this client; whether the call was carried out \
                 is unknown: look, and try again",
            );
        }
    }

    /// What the driver holds of the session: answer to [`LinkEvent::ReclaimWanted`]. Ignored at
    /// other times.
    pub fn reclaim(&mut self, mut held: Vec<Reclaim>) {
        if !matches!(self.stage, Stage::Reclaiming { parts: None }) {
            return;
        }
        mark_last(&mut held);
        let mut parts =
            Parts { ids: Vec::with_capacity(held.len()), replies: Vec::with_capacity(held.len()) };
        for part in held {
            let id = self.enqueue(Body::Reclaim(part), CallDeadline::Always, CallOwner::Reclaim);
            self.queue.pop_back();
            if let Some(pending) = self.calls.get_mut(id) {
                pending.call.retry = true;
            }
            self.send(id);
            parts.ids.push(id);
            let unsent = self.calls.get_mut(id).is_none();
            parts.replies.push(unsent.then(|| {
                Err(FsError::new(
                    libc::EMSGSIZE,
                    "what this client holds does not fit one message: its parts are too large",
                ))
            }));
        }
        self.stage = Stage::Reclaiming { parts: Some(parts) };
        self.finish_reclaim();
    }

    /// Goes on if all parts are answered.
    fn finish_reclaim(&mut self) {
        let Stage::Reclaiming { parts: Some(parts) } = &mut self.stage else { return };
        if parts.replies.iter().all(Option::is_some) {
            let replies = parts.replies.drain(..).flatten().collect();
            let lost = self.lost.take().unwrap_or(SessionState::Restarted);
            self.events.push_back(LinkEvent::Reclaimed { lost, replies });
            self.serve(true);
        }
    }

    /// The session goes on: everything unanswered is sent again, in its old order, then what came
    /// meanwhile.
    fn serve(&mut self, reclaimed: bool) {
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
            CallOwner::Asker(_) => {}
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

    fn reclaimed(&mut self, id: CallId, answered: Answered) -> Result<(), Broken> {
        self.calls.remove(id);
        let (Stage::Reclaiming { parts: Some(parts) }, Answered::Reclaim(reply)) =
            (&mut self.stage, answered)
        else {
            return Err(Broken("the metadata server answered a reclaim twice".into()));
        };
        if let Some(index) = parts.ids.iter().position(|part| *part == id) {
            parts.replies[index] = Some(reply);
        }
        self.finish_reclaim();
        Ok(())
    }
}

/// How much a client has lost.
fn severity(session: SessionState) -> u8 {
    match session {
        SessionState::Known => 0,
        SessionState::Restarted => 1,
        SessionState::Expired => 2,
        SessionState::New => 3,
    }
}

/// Whether an answer is of the kind that was asked for.
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
