//! The server: sessions, leases, and what has to happen when time passes.
//!
//! | file | |
//! | --- | --- |
//! | `client_handshake` | the first message of a client, and the session that it belongs to |
//! | `peer_handshake` | connections of other nodes: which are let in, and what they bring |
//! | `authn` | whether a client has to show a token, and whether it has the one that it names |
//! | `subtree` | whether node ids that a confined session names are within its subtree |
//! | `replies` | answers on their way from the node to clients |
//! | `lock_service` | locks of files, and the calls that wait for them |
//! | `grace` | the time after a start in which earlier clients may reclaim |
//! | `reclaim` | clients reclaim what they held in a session that the node has lost |
//! | `time` | time passes: leases end, old answers are forgotten, the grace period ends |
//!
//! **Locks of this crate, in the order in which they may be taken:** the directory of sessions; one
//! session; then one of lock service, objects, grace, releases. The node is called with none of
//! them held, and so are outboxes except where noted.
//!
//! **Time** is handed in with every call: nanoseconds of one monotonic clock. Only records that
//! outlive the process carry wall time, which comes from the volume's clock.

mod authn;
mod client_handshake;
mod grace;
mod lock_service;
mod peer_handshake;
mod reclaim;
mod replies;
mod subtree;
mod time;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kestrel_rpc::handler::Outbox;
use kestrel_types::clock::{Clock, Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::placement::{NodeId, PlacementMap};
use kestrel_types::request::{Creds, Op, Outcome, Request};
use kestrel_types::wire::{Checksum, ClientId, Refused, SessionState, ToClient, encode_to_client};
use parking_lot::Mutex;

use crate::admin::Admin;
use crate::audit::Audit;
use crate::backend::{Backend, CurrentMap, Submission};
use crate::config::{LEASE_MAX, LEASE_MIN, SessionServerConfig};
use crate::locks::LockLimits;
use crate::objects::Objects;
use crate::quota::Quota;
use crate::session::{Phase, Session};
use crate::stats::{Counts, ServerStats, SessionInfo};
use crate::tokens::Tokens;
use grace::Grace;
use lock_service::LockService;
use peer_handshake::PeerHandshake;

pub(crate) use authn::AuthnOutcome;
pub(crate) use client_handshake::NO_CURATOR;
pub(crate) use peer_handshake::{AcceptedPeer, PeerClaim};
pub(crate) use replies::{Batch, Submitted};
pub(crate) use subtree::Outside;

/// Most clients that are named in a log line about a wait for them.
const NAMED_MAX: usize = 5;

/// Lines in the log about connections that were refused: so many in this time, and so many of them
/// about one address.
const LOG_QUOTA: (Nanos, u32, u32) = (60 * SECOND, 30, 5);

/// Makes the description of a volume for clients out of a placement map.
pub type Describe = dyn Fn(&PlacementMap) -> Box<[u8]> + Send + Sync;

/// By which table it was made, and after how many changes of nodes' addresses.
type Description = ((u64, u64), Box<[u8]>);

/// What answers need. It does not refer to the node, so answers that never come do not keep it
/// open.
pub(crate) struct ServerShared {
    pub config: SessionServerConfig,
    /// The placement map.
    pub current_map: CurrentMap,
    /// Makes the description of the volume for clients, if several nodes share it.
    describe: OnceLock<Box<Describe>>,
    /// What it made last.
    description: Mutex<Description>,
    pub directory: Mutex<BTreeMap<ClientId, Arc<Session>>>,
    /// Number of the last holder of locks and objects. None is given twice.
    pub last_holder: AtomicU64,
    pub lock_service: Mutex<LockService>,
    pub objects: Mutex<Objects>,
    pub grace: Mutex<Option<Grace>>,
    /// Opens to give back to the node: their sessions are gone.
    pub releases: Mutex<Vec<(InodeId, u32)>>,
    pub counts: Counts,
    /// Lines about refused connections.
    log_quota: Mutex<Quota>,
}

/// See the module's header.
pub struct Server {
    pub(crate) backend: Backend,
    peer_handshake: Option<PeerHandshake>,
    tokens: Arc<Tokens>,
    pub(crate) shared: Arc<ServerShared>,
    pub(crate) admin: Arc<dyn Admin>,
    pub(crate) clock: Arc<dyn Clock>,
    ticked: Mutex<Nanos>,
    /// Since when it may not answer, as a tick found.
    mute: Mutex<Option<Nanos>>,
}

impl Server {
    /// Serves a node, or a member, that was opened for it (`NodeConfig::serves`): reads which
    /// clients had sessions and begins the grace period, or ends it at once if there were none.
    /// `clock` is the volume's wall clock, `now` the monotonic one.
    ///
    /// # Errors
    /// `EINVAL` for settings that make no sense; the engine's.
    pub fn new(
        backend: impl Into<Backend>,
        clock: Arc<dyn Clock>,
        config: SessionServerConfig,
        limits: LockLimits,
        admin: Arc<dyn Admin>,
        now: Nanos,
    ) -> FsResult<Arc<Self>> {
        if !(LEASE_MIN..=LEASE_MAX).contains(&config.lease)
            || !(0..=LEASE_MAX).contains(&config.grace)
        {
            return Err(FsError::new(
                libc::EINVAL,
                "server: a lease is 1 to 600 s, a grace period at most 600 s",
            ));
        }
        let backend = backend.into();
        let records = backend.node().sessions()?;
        let peer_handshake = PeerHandshake::of(&backend, config.peers.as_ref());
        let tokens = Arc::new(Tokens::read(backend.node().engine().clone())?);
        if let Some(identity) = &config.peers {
            tokens.let_nodes_in(&identity.secret.0);
        }
        let shared = ServerShared {
            describe: OnceLock::new(),
            description: Mutex::default(),
            config,
            current_map: backend.current_map(),
            directory: Mutex::default(),
            last_holder: AtomicU64::new(0),
            lock_service: Mutex::new(LockService::new(limits, backend.current_map())),
            objects: Mutex::default(),
            grace: Mutex::default(),
            releases: Mutex::default(),
            counts: Counts::default(),
            log_quota: Mutex::new(Quota::new(LOG_QUOTA.0, LOG_QUOTA.1, LOG_QUOTA.2)),
        };
        let shared = Arc::new(shared);
        if let Backend::Member(host) = &backend {
            let clients = shared.clone();
            host.set_object_users(Box::new(move |object| clients.in_use(object)));
            let locks = shared.clone();
            host.set_lock_guard(Box::new(move |leaves| {
                locks.lock_service.lock().files_kept(leaves)
            }));
            let sessions = shared.clone();
            host.set_departure_guard(Box::new(move || sessions.connected_client()));
        }
        let (ticked, mute) = (Mutex::new(now), Mutex::default());
        let server =
            Arc::new(Self { backend, peer_handshake, tokens, shared, admin, clock, ticked, mute });
        server.restore(records, now)?;
        Ok(server)
    }

    /// Takes up the sessions there were before the restart.
    fn restore(&self, records: Vec<kestrel_meta::txn::SessionRecord>, now: Nanos) -> FsResult<()> {
        let wall = self.clock.now();
        let config = &self.shared.config;
        let node = self.backend.node();
        // Of a node that another process may have been until now: see there.
        let shared = node.cluster().is_some_and(|cluster| cluster.is_shared());
        let before = node.lease_on_record()?;
        let longest = before.unwrap_or(0).clamp(config.lease, LEASE_MAX);
        // A client that wants less than its lease has that, where no other process may have been
        // the node.
        let covers = shared || config.grace >= config.lease;
        let mut grace = Grace::of(if covers { config.grace.max(longest) } else { config.grace });
        if before != Some(longest) {
            // The next Welcome has this lease.
            node.record_lease(longest)?;
            node.engine().sync().map_err(|why| FsError::because(libc::EIO, why.to_string()))?;
        }
        if self.backend.may_answer() {
            grace.begin(now);
        }
        let mut directory = self.shared.directory.lock();
        for record in records {
            let client = record.client;
            let holder = self.shared.next_holder();
            let session = Arc::new(Session::new(client, record.since, record.who, holder, now));
            {
                let mut state = session.state.lock();
                state.recorded = true;
                match record.ended {
                    None => {
                        state.begin_reclaim();
                        state.announced = SessionState::Restarted;
                        state.may_claim_locks = true;
                        grace.awaits(client);
                    }
                    Some(ended) => {
                        state.phase = Phase::Expired;
                        state.expired_at = now.saturating_sub(wall.saturating_sub(ended).max(0));
                    }
                }
            }
            directory.insert(client, session);
        }
        drop(directory);
        if grace.is_over(now) {
            self.backend.node().end_grace()?;
            self.record_lease();
        } else {
            self.shared.lock_service.lock().begin_grace();
            *self.shared.grace.lock() = Some(grace);
        }
        Ok(())
    }

    /// Whether a living client may still come to refer to an object: then it must not be deleted
    /// though nothing refers to it.
    pub fn in_use(&self, object: ObjectId) -> bool {
        self.shared.in_use(object)
    }

    /// Makes clients get the description that `describe` makes of the present placement map, with
    /// the nodes' present addresses, in the place of [`SessionServerConfig::descriptor`]. Once; of
    /// use to a member's server only. It must not wait.
    pub fn describe_by(&self, describe: Box<Describe>) {
        let _ = self.shared.describe.set(describe);
    }

    /// The description of the volume for clients.
    fn description(&self) -> Box<[u8]> {
        let (Some(describe), Backend::Member(host)) = (self.shared.describe.get(), &self.backend)
        else {
            return self.shared.config.descriptor.clone();
        };
        let mut description = self.shared.description.lock();
        let (table, changes) = (host.table(), host.address_book().changes());
        let version = (table.placement.version, changes);
        if description.0 != version {
            *description = (version, describe(&table.placement.at(&host.addresses())));
        }
        description.1.clone()
    }

    /// Writes to the log that a connection was refused, or counts it where there were many.
    pub(crate) fn log_refused(&self, peer: &str, why: &FsError) {
        if *why == NO_CURATOR {
            return log::debug!("{peer}: {why}");
        }
        let admitted = self.shared.log_quota.lock().allows(self.clock.now(), peer);
        // All of them for a caller that looks for them.
        let level = if admitted { log::Level::Warn } else { log::Level::Debug };
        log::log!(level, "{peer}: connection refused: {why}");
    }

    /// Writes to the log how many refused connections got no line, once their minute is over.
    fn log_refused_more(&self) {
        let left_out = self.shared.log_quota.lock().take_left_out_before(self.clock.now());
        if left_out > 0 {
            log::warn!("{left_out} more connections were refused in a minute");
        }
    }

    /// The volume's tokens.
    pub fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// Where refusals and administration are recorded.
    pub fn audit(&self) -> &Audit {
        &self.shared.config.audit
    }

    /// The wall time.
    pub fn wall(&self) -> Nanos {
        self.clock.now()
    }

    /// Lets nodes in that the table does not name: they are to join.
    pub fn expect(&self, nodes: impl IntoIterator<Item = NodeId>) {
        if let Some(handshake) = &self.peer_handshake {
            handshake.expect(nodes);
        }
    }

    /// What it has done and holds.
    pub fn stats(&self, now: Nanos) -> ServerStats {
        let mut stats =
            ServerStats { totals: self.shared.counts.totals(), ..ServerStats::default() };
        for session in self.all_sessions() {
            let state = session.state.lock();
            if state.is_alive() {
                stats.sessions += 1;
                stats.connected += u64::from(state.conn.is_some());
            } else {
                stats.expired += 1;
            }
            stats.opens += state.opens.total() as u64;
        }
        let locks = self.shared.lock_service.lock().locks.counts();
        stats.lock_ranges = locks.ranges as u64;
        stats.lock_waits = locks.waits as u64;
        stats.grace_left = self.shared.grace.lock().as_ref().map_or(0, |grace| grace.left(now));
        stats
    }

    /// All sessions, in order of their clients' numbers.
    pub fn sessions(&self, now: Nanos) -> Vec<SessionInfo> {
        let info = |session: Arc<Session>| {
            let state = session.state.lock();
            SessionInfo {
                client: session.client,
                who: state.who.clone(),
                peer: state.conn.as_ref().map(|conn| conn.peer.to_string()),
                state: match state.phase {
                    Phase::Live => "live",
                    Phase::Reclaiming => "reclaiming",
                    Phase::Expired | Phase::Ended => "expired",
                },
                since: session.since,
                lease_left: (session.last_message() + self.shared.config.lease - now).max(0),
                incarnation: state.incarnation,
                opens: state.opens.total(),
                locks: self.shared.lock_service.lock().locks.session_counts(state.holder).ranges,
            }
        };
        self.all_sessions().into_iter().map(info).collect()
    }

    /// Closes every connection. Sessions stay recorded, so that clients find them again at the next
    /// start.
    pub fn close(&self) {
        self.close_peers();
        for session in self.all_sessions() {
            let conn = session.state.lock().conn.take();
            if let Some(conn) = conn {
                conn.outbox.close("the node is shutting down");
            }
        }
    }

    pub(crate) fn all_sessions(&self) -> Vec<Arc<Session>> {
        self.shared.directory.lock().values().cloned().collect()
    }

    /// Gives opens of sessions that are gone back to the node.
    pub(crate) fn release_abandoned(&self) {
        let releases = std::mem::take(&mut *self.shared.releases.lock());
        let mut requests: Vec<Submission> = Vec::new();
        for (ino, count) in releases {
            for _ in 0..count {
                let request = Request { creds: Creds::root(), op: Op::Release(ino) };
                let shared = Arc::downgrade(&self.shared);
                let done = move |reply| match (reply, shared.upgrade()) {
                    (Ok(_), _) => {}
                    // Other nodes were out of reach: nothing has changed.
                    (Err(Outcome::Failed(why)), Some(shared)) if why.errno == libc::ETIMEDOUT => {
                        shared.releases.lock().push((ino, 1));
                    }
                    (Err(why), _) => {
                        log::warn!("inode {ino}: open of a client that is gone: {why:?}")
                    }
                };
                requests.push((request, Box::new(done)));
            }
        }
        if !requests.is_empty() {
            self.backend.submit_own(requests);
        }
    }
}

impl ServerShared {
    /// The clients that have a session that is alive.
    fn connected_client(&self) -> Option<String> {
        let sessions: Vec<_> = self.directory.lock().values().cloned().collect();
        let alive = sessions.iter().filter_map(|session| {
            let state = session.state.lock();
            state.is_alive().then(|| format!("{} ({} files open)", state.who, state.opens.total()))
        });
        let alive: Vec<String> = alive.collect();
        let more = alive.len().saturating_sub(NAMED_MAX);
        let named = alive.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        match (alive.len(), more) {
            (0, _) => None,
            (_, 0) => Some(format!("clients have sessions there: {named}")),
            _ => Some(format!("clients have sessions there: {named}, and {more} more")),
        }
    }

    fn in_use(&self, object: ObjectId) -> bool {
        self.grace.lock().is_some() || self.objects.lock().in_use(object)
    }

    /// A number for a session to hold locks and objects under.
    pub fn next_holder(&self) -> u64 {
        self.last_holder.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a client the reason why it is not served, and closes its connection.
    pub fn refuse(&self, outbox: &dyn Outbox, checksum: Checksum, why: FsError) {
        self.counts.refused.add(1);
        let close = why.reason.to_string();
        let refused = ToClient::Refused(Refused { errno: why.errno, reason: why.reason });
        self.send(outbox, checksum, &refused);
        outbox.close(&close);
    }

    /// Sends one message.
    pub fn send(&self, outbox: &dyn Outbox, checksum: Checksum, message: &ToClient) {
        let mut frame = Vec::new();
        match encode_to_client(message, checksum, &mut frame) {
            Ok(()) => {
                self.counts.bytes_out.add(frame.len() as u64);
                outbox.send(&frame);
            }
            Err(why) => outbox.close(&why.to_string()),
        }
    }
}
