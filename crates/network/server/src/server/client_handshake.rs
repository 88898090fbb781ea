//! The first message of a connection: whether it is served, and what became of the client's
//! session.

use std::sync::Arc;

use kestrel_meta::txn::SessionRecord;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::request::{Outcome, Reply};
use kestrel_types::wire::{ClientId, Hello, SessionState, ToClient, Versions, Welcome};

use super::{Server, ServerShared};
use crate::grant::Grant;
use crate::session::{Phase, Session, SessionConn, State};

/// A client asks for a version where the volume is served. It reads the store then.
pub(crate) const NO_CURATOR: FsError =
    FsError::new(libc::ENOENT, "no published version is served here: this node serves a volume");

/// Whether a name is that of a version, `VOLUME//VERSION`.
fn is_version(name: &str) -> bool {
    name.contains("//")
}

/// Nanoseconds of a millisecond.
const MS: Nanos = SECOND / 1000;

impl Server {
    /// Takes a client in: finds or begins its session and makes this its connection. The Welcome
    /// leaves at once, or when the session's record is durable.
    ///
    /// # Errors
    /// What the client is refused with.
    pub(crate) fn greet(
        &self,
        hello: Hello,
        conn: SessionConn,
        grant: Option<Arc<Grant>>,
        now: Nanos,
    ) -> FsResult<Arc<Session>> {
        let version = self.check(&hello)?;
        let session = self.session_of(&hello, now)?;
        let mut state = session.state.lock();
        if state.phase == Phase::Ended {
            return Err(FsError::new(
                libc::EAGAIN,
                "the client's session is just ending: connect again",
            ));
        }
        if hello.incarnation <= state.incarnation {
            return Err(FsError::new(
                libc::ESTALE,
                "a newer connection of this client was there before",
            ));
        }
        if state.phase == Phase::Expired && state.window.running() > 0 {
            // Their effect on what is open has to be settled before the client's claim of what it
            // has open.
            return Err(FsError::new(
                libc::EAGAIN,
                "calls of the client's last session are being finished: connect again",
            ));
        }
        let token = |grant: &Option<Arc<Grant>>| grant.as_ref().map(|grant| grant.record.id);
        if state.bound && token(&state.grant) != token(&grant) {
            return Err(FsError::new(
                libc::EACCES,
                "the session belongs to a client with another token",
            ));
        }
        let root = grant.as_ref().and_then(|grant| grant.root()).unwrap_or(ROOT);
        (state.grant, state.bound) = (grant, true);
        session.note_message(now);
        let begins = state.incarnation == 0 && !state.recorded;
        let (outbox, checksum) = (conn.outbox.clone(), conn.checksum);
        let superseded = self.take_over(&mut state, &hello, conn, begins);
        let welcome = self.welcome(version, state.announced, root);
        let record = (!state.recorded).then(|| SessionRecord {
            client: session.client,
            since: session.since,
            who: state.who.clone(),
            ended: None,
        });
        self.shared.lock_service.lock().connect(state.holder, outbox, checksum);
        drop(state);
        if let Some(old) = superseded {
            self.shared.counts.superseded.add(1);
            old.outbox.close("a newer connection of the same client has taken over");
        }
        let incarnation = hello.incarnation;
        match record {
            None => self.shared.say_welcome(&session, incarnation, &welcome),
            Some(record) => {
                let (shared, waiting) = (self.shared.clone(), session.clone());
                let done =
                    Box::new(move |reply| shared.recorded(&waiting, incarnation, &welcome, reply));
                self.backend.node().record_session(&record, done);
            }
        }
        Ok(session)
    }

    fn check(&self, hello: &Hello) -> FsResult<u16> {
        let config = &self.shared.config;
        let version = Versions::OURS.common(hello.versions).ok_or_else(|| {
            let (ours, theirs) = (Versions::OURS, hello.versions);
            FsError::because(
                libc::EPROTONOSUPPORT,
                format!(
                    "the client speaks versions {} to {} of the protocol, this node {} to {}: \
                     upgrade the older one",
                    theirs.min, theirs.max, ours.min, ours.max
                ),
            )
        })?;
        if hello.volume != config.volume {
            if is_version(&hello.volume) && !is_version(&config.volume) {
                return Err(NO_CURATOR);
            }
            let why =
                format!("no volume {:?} here: this node serves {:?}", hello.volume, config.volume);
            return Err(FsError::because(libc::ENOENT, why));
        }
        if self.backend.has_left() && !self.shared.directory.lock().contains_key(&hello.client) {
            let why = format!("node {} has left the cluster: ask another one", config.node);
            // It passes: other addresses are tried.
            return Err(FsError::because(libc::ESHUTDOWN, why));
        }
        if !self.backend.may_answer() {
            return Err(self.why_mute());
        }
        if hello.client == ClientId([0; 16]) || hello.incarnation == 0 {
            return Err(FsError::new(
                libc::EPROTO,
                "a client without a number or a connection without one",
            ));
        }
        Ok(version)
    }

    /// The refusal of a node that may not answer ([`crate::backend::Backend::may_answer`]). It
    /// passes: the client comes again, and asks other nodes for this one's address.
    pub(crate) fn why_mute(&self) -> FsError {
        let why = format!(
            "node {} has no lease: it does not reach most nodes of the cluster, or its metadata, \
             so another process may serve in its \
             place, and it answers nobody until that has passed; ask again, or the other nodes (on \
             its machine `kestrel status` goes on)",
            self.shared.config.node
        );
        FsError::because(libc::EAGAIN, why)
    }

    /// The client's session, begun if there is none.
    fn session_of(&self, hello: &Hello, now: Nanos) -> FsResult<Arc<Session>> {
        let mut directory = self.shared.directory.lock();
        if let Some(session) = directory.get(&hello.client) {
            return Ok(session.clone());
        }
        if directory.len() >= self.shared.config.sessions_max {
            return Err(FsError::new(libc::EUSERS, "this node has as many clients as it takes"));
        }
        let (wall, holder) = (self.clock.now(), self.shared.next_holder());
        let session = Arc::new(Session::new(hello.client, wall, hello.who.clone(), holder, now));
        directory.insert(hello.client, session.clone());
        self.shared.counts.sessions_begun.add(1);
        Ok(session)
    }

    /// Makes this the session's connection, and decides how the session goes on. The connection it
    /// had before.
    fn take_over(
        &self,
        state: &mut State,
        hello: &Hello,
        conn: SessionConn,
        begins: bool,
    ) -> Option<SessionConn> {
        if self.shared.config.immutable {
            self.resume_anywhere(state);
        } else if state.phase == Phase::Expired {
            state.holder = self.shared.next_holder();
            state.begin_reclaim();
            state.announced = SessionState::Expired;
            state.recorded = false;
        } else if state.phase == Phase::Reclaiming {
            state.restart_reclaim();
        } else if begins {
            state.announced = SessionState::New;
            if hello.established {
                state.begin_reclaim();
            }
        } else if state.recorded {
            state.announced = SessionState::Known;
            state.restart_reclaim();
        }
        if hello.established {
            if let Some(announced) = state.denied.take() {
                state.phase = Phase::Reclaiming;
                state.announced = announced;
            }
        } else {
            // The client never got a Welcome, so it holds nothing.
            if state.phase == Phase::Reclaiming && state.announced != SessionState::New {
                state.denied = Some(state.announced);
            }
            state.phase = Phase::Live;
            state.announced = SessionState::New;
        }
        state.incarnation = hello.incarnation;
        state.who.clone_from(&hello.who);
        state.conn.replace(conn)
    }

    /// A client of what never changes: another process may have served it meanwhile, so what this
    /// one knows of the session counts for nothing, and the client says what it has open. Nothing
    /// can have been lost by that, but locks, which such clients keep to themselves. There are no
    /// records of such sessions.
    fn resume_anywhere(&self, state: &mut State) {
        let before = std::mem::replace(&mut state.holder, self.shared.next_holder());
        self.shared.lock_service.lock().end_session(before);
        self.shared.objects.lock().end(before);
        self.shared.releases.lock().extend(state.opens.take_all());
        state.window.forget_opens();
        state.begin_reclaim();
        state.announced = SessionState::Restarted;
        state.recorded = true;
    }

    fn welcome(&self, version: u16, session: SessionState, root: InodeId) -> Welcome {
        let config = &self.shared.config;
        Welcome {
            version,
            node: config.node,
            epoch: config.epoch,
            descriptor: self.description(),
            session,
            lease_ms: u32::try_from(config.lease / MS).unwrap_or(u32::MAX),
            table: self.backend.map_version(),
            root,
        }
    }
}

impl ServerShared {
    /// Welcomes a client, unless another connection of it came meanwhile.
    fn say_welcome(&self, session: &Session, incarnation: u64, welcome: &Welcome) {
        let state = session.state.lock();
        if !state.is_current(incarnation) {
            return;
        }
        // With the session's lock held: nothing may be sent to the client before this.
        if let Some(conn) = &state.conn {
            self.counts.welcomes.add(1);
            self.send(&*conn.outbox, conn.checksum, &ToClient::Welcome(welcome.clone()));
        }
    }

    /// The session's record is durable, or never will be.
    fn recorded(&self, session: &Session, incarnation: u64, welcome: &Welcome, reply: Reply) {
        match reply {
            Ok(_) => {
                session.state.lock().recorded = true;
                self.say_welcome(session, incarnation, welcome);
            }
            Err(outcome) => {
                let why = match outcome {
                    // Another process may have the store by now, and have a session of the client.
                    _ if !self.current_map.may_answer() => {
                        FsError::new(libc::EAGAIN, "the node answers nobody at present: ask again")
                    }
                    Outcome::Failed(why) => why,
                    _ => FsError::new(libc::EIO, "the session's record was not written"),
                };
                let mut state = session.state.lock();
                if !state.is_current(incarnation) {
                    return;
                }
                let conn = state.conn.take();
                drop(state);
                if let Some(SessionConn { outbox, checksum, .. }) = conn {
                    self.refuse(&*outbox, checksum, why);
                }
            }
        }
    }
}
