//! What a server of clients across a network needs of the node: numbered requests, sessions that
//! outlive it, opens that are claimed after a restart.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use kestrel_engine::{BatchKind, Mutation};
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Creds, Done, Op, OpenFlags, Outcome, Request};
use kestrel_types::wire::ClientId;

use super::Node;
use crate::ids::{counter_row, decode_counter, system_key};
use crate::session::{Claim, OpenState};
use crate::stop::engine_error;
use crate::txn::{
    Origin, SessionRecord, TxnKey, answer_key, decode_session, encode_session, session_key,
};
use crate::worker::{QueuedRequest, ReplySink, ReplyTarget};

/// Row of the longest lease that a client may believe in, in nanoseconds.
const LEASE: &str = "lease";

/// Rows deleted in one batch when the time of claims ends.
const DELETED_MAX: usize = 65_536;

impl Node {
    /// As [`Node::submit`], for a request that must not be executed twice (see [`crate::txn`]).
    pub fn submit_from(&self, request: Request, origin: Origin, done: Done) {
        self.drive_one(request, Some(origin), done);
    }

    /// As [`Node::submit_many`], for requests of clients across a network, numbered or not.
    pub fn submit_many_from(&self, requests: Vec<(Request, Option<Origin>, Done)>) {
        let (mut pending, now) = (0, Instant::now());
        for (request, origin, done) in requests {
            pending |= self.enqueue(request, origin, ReplyTarget::Callback(done), now);
        }
        self.drive(pending);
    }

    /// As [`Node::submit_many_from`]; `sink` hears each reply with the request's index.
    pub fn submit_batch(
        &self,
        requests: Vec<(Request, Option<Origin>)>,
        sink: &Arc<impl ReplySink + 'static>,
    ) {
        let (mut pending, now) = (0, Instant::now());
        for (number, (request, origin)) in requests.into_iter().enumerate() {
            pending |= self.enqueue(request, origin, ReplyTarget::Sink(sink.clone(), number), now);
        }
        self.drive(pending);
    }

    /// Writes a client's session, new or changed. The reply comes when it is durable, in either
    /// mode: a request of the client that is executed before may be executed again after a crash.
    pub fn record_session(&self, session: &SessionRecord, done: Done) {
        let tray = self.reply_thread.tray(
            self.counters.clone(),
            self.core.workers + 2,
            self.is_claimable(),
        );
        match self.engine.commit(BatchKind::Growing, vec![session_row(session)]) {
            Err(why) => done(Err(engine_error(why).into())),
            Ok(position) => {
                self.committed_at(position);
                let call = move |result| tray.call(vec![(ReplyTarget::Callback(done), result)]);
                self.engine.on_durable(
                    position,
                    Box::new(move |result| match result {
                        Ok(()) => call(Ok(Answer::Done)),
                        Err(why) => call(Err(engine_error(why).into())),
                    }),
                );
            }
        }
    }

    /// Sessions on record, in the order of their clients' numbers.
    ///
    /// # Errors
    /// `EIO` for a damaged row; the engine's.
    pub fn sessions(&self) -> FsResult<Vec<SessionRecord>> {
        let (mut sessions, mut damaged) = (Vec::new(), None);
        let visited = self.engine.scan(Table::Txn, 0, None, &mut |suffix, row, _| {
            if let Some(TxnKey::Session(client)) = TxnKey::decode(0, suffix) {
                match decode_session(client, row) {
                    Ok(session) => sessions.push(session),
                    Err(why) => {
                        damaged = Some(format!(
                            "metadata: damaged row: session of {client}: {why}; run kestrel fsck"
                        ));
                    }
                }
            }
            ControlFlow::Continue(())
        });
        visited.map_err(engine_error)?;
        match damaged {
            Some(why) => Err(FsError::because(libc::EIO, why)),
            None => Ok(sessions),
        }
    }

    /// The longest lease that clients were promised by a start of which one may still believe in
    /// locks, if that is on record.
    ///
    /// # Errors
    /// `EIO` if the record is damaged; the engine's.
    pub fn lease_on_record(&self) -> FsResult<Option<Nanos>> {
        let mut found = Ok(None);
        let read = self.engine.get_many(&[system_key(LEASE)], &mut |_, row| {
            found = row.value.map(decode_counter).transpose();
        });
        read.map_err(engine_error)?;
        let lease = found.map_err(|why| {
            FsError::because(
                libc::EIO,
                format!("metadata: damaged record {LEASE:?}: {why}; run kestrel fsck"),
            )
        })?;
        Ok(lease.map(|lease| Nanos::try_from(lease).unwrap_or(Nanos::MAX)))
    }

    /// Puts it on record. Not waited for.
    ///
    /// # Errors
    /// The engine's.
    pub fn record_lease(&self, lease: Nanos) -> FsResult<()> {
        let row = counter_row(LEASE, lease.unsigned_abs());
        let position = self.engine.commit(BatchKind::Freeing, vec![row]).map_err(engine_error)?;
        self.committed_at(position);
        Ok(())
    }

    /// Records that a client's session has ended. Its answers stay, should it come back and ask,
    /// until [`Node::forget_client`]. Not waited for: a crash may bring the session back, which
    /// then ends again.
    ///
    /// # Errors
    /// `ENOENT` if there is no such session; the engine's.
    pub fn end_session(&self, client: ClientId, now: Nanos) -> FsResult<()> {
        let mut session = None;
        let key = session_key(client);
        let read = self.engine.get_many(&[key.borrow()], &mut |_, row| {
            session = row.value.map(|bytes| decode_session(client, bytes));
        });
        read.map_err(engine_error)?;
        let session = match session {
            Some(Ok(session)) => SessionRecord { ended: Some(now), ..session },
            Some(Err(why)) => {
                return Err(FsError::because(
                    libc::EIO,
                    format!("metadata: damaged row: session of {client}: {why}"),
                ));
            }
            None => {
                return Err(FsError::new(
                    libc::ENOENT,
                    "metadata: no session of this client is on record",
                ));
            }
        };
        let position = self
            .engine
            .commit(BatchKind::Freeing, vec![session_row(&session)])
            .map_err(engine_error)?;
        self.committed_at(position);
        Ok(())
    }

    /// Deletes a client's session and its answers, in one batch. It must have no request at the
    /// node and send none any more. Not waited for.
    ///
    /// # Errors
    /// The engine's; nothing was deleted then.
    pub fn forget_client(&self, client: ClientId) -> FsResult<()> {
        let mut gone = vec![session_key(client)];
        let first = answer_key(client, 0);
        // Everything from the first slot on; another client's rows under the same id, should there
        // be one, are passed over.
        let visited = self.engine.scan(Table::Txn, first.id, None, &mut |suffix, _, _| {
            if matches!(TxnKey::decode(first.id, suffix),
                Some(TxnKey::Answer(whose, _)) if whose == client)
            {
                gone.push(Key::new(Table::Txn, first.id, suffix));
            }
            ControlFlow::Continue(())
        });
        visited.map_err(engine_error)?;
        self.delete(gone)
    }

    fn delete(&self, keys: Vec<Key>) -> FsResult<()> {
        let rows = keys.into_iter().map(|key| Mutation { key, value: None }).collect();
        let position = self.engine.commit(BatchKind::Freeing, rows).map_err(engine_error)?;
        self.committed_at(position);
        Ok(())
    }

    /// A client claims `count` opens that it had of a file before the node restarted, or before its
    /// session expired. The reply is `Opened`, or `ESTALE` if the file does not exist any more.
    /// `linkable`: the file was made without a name and may be given one. (One of several nodes may
    /// not find it by itself: ask its `kestrel_cluster::ClusterNode`.)
    pub fn reclaim_open(&self, inode: InodeRef, count: u32, linkable: bool, done: Done) {
        let request = Request { creds: Creds::root(), op: Op::Open(inode, OpenFlags::default()) };
        let job = QueuedRequest::new(request, ReplyTarget::Callback(done));
        self.submit_on(
            self.core.workers,
            QueuedRequest { claim: Some(Claim { count, linkable }), ..job },
        );
    }

    /// Whether clients may still claim what they had open before the node started
    /// ([`crate::session::Reclaiming`]).
    pub fn in_grace(&self) -> bool {
        self.core.reclaiming.lasts()
    }

    /// Ends the time of claims: files without names that nobody has open are deleted, and their
    /// number is returned; nobody is waited for while that happens. Of a node that serves no
    /// clients across a network, or a second time: nothing. One of several deletes them later, when
    /// no other one has them open either.
    ///
    /// # Errors
    /// The engine's: rows that tell where renamed files went were not deleted, which a later start
    /// makes good. The time has ended all the same. A file that could not be deleted is left for
    /// the next start, and logged.
    pub fn end_grace(&self) -> FsResult<usize> {
        let (orphans, settled) = {
            let _all = self.hold_all();
            let mut orphans = self.core.reclaiming.end();
            if self.shares_volume() {
                // Its member asks the others about files without names.
                return Ok(0);
            }
            orphans.retain(|ino| self.core.opens.get(*ino).count == 0);
            for ino in &orphans {
                self.core.opens.set(*ino, OpenState { count: 1, orphan: true, linkable: false });
            }
            (orphans, self.settle_moved())
        };
        let count = orphans.len();
        let failed = Arc::new(AtomicUsize::new(0));
        for ino in orphans {
            let failed = failed.clone();
            let request = Request { creds: Creds::root(), op: Op::Release(ino) };
            let done: Done = Box::new(move |reply| {
                if let Err(Outcome::Failed(why)) = reply
                    && failed.fetch_add(1, Ordering::Relaxed) == 0
                {
                    log::warn!(
                        "metadata: file {ino}, which has no name and is not open, was not deleted: \
                         {why}"
                    );
                }
            });
            self.submit(request, done);
        }
        settled.map(|()| count)
    }

    /// Deletes rows of table `moved` of files that nobody has open. With every worker's state held.
    fn settle_moved(&self) -> FsResult<()> {
        let closed = self.core.moved.closed_rows(&self.core.opens);
        for part in closed.chunks(DELETED_MAX) {
            self.delete(
                part.iter().map(|ino| KeyRef::new(Table::Moved, *ino, b"").to_owned()).collect(),
            )?;
            part.iter().for_each(|ino| self.core.moved.drop_row(*ino));
        }
        Ok(())
    }
}

fn session_row(session: &SessionRecord) -> Mutation {
    Mutation { key: session_key(session.client), value: Some(encode_session(session)) }
}
