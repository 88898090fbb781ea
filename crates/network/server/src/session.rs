//! A client's session: what the node keeps for it, and in which phase of its life it is.
//!
//! | file | |
//! | --- | --- |
//! | `window` | outcomes of a client's numbered calls: the memory behind exactly-once |
//!
//! ```text
//!            Hello                    all reclaimed
//!  (nothing) ─────▶ Reclaiming ───────────────────────▶ Live ──Bye──▶ (gone)
//!      │                ▲  │ lease ends                 │
//!      └───Hello────────┼──┼───────────────────────────▶│ lease ends
//!                       │  ▼                            ▼
//!                       └─ Expired ◀────────────────────┘ ──30 min──▶ (gone)
//! ```
//!
//! - **Live**: calls are served, as soon as the record of the session is durable.
//! - **Reclaiming**: the node has no record of what the client holds, because it restarted, had
//!   given the session up, or never had the session of a client that claims one. Nothing but
//!   Reclaim is served.
//! - **Expired**: no message of the client came for the lease. Its opens and locks are gone; the
//!   replies to its calls are still recorded, so one that comes back executes nothing twice.
//!
//! A session has one connection at most, that with the highest incarnation. Under the session's
//! lock it is decided whether a frame belongs to it; what is found to do then is marked there (a
//! numbered call as running, a lock as taken) before the lock is let go, so that nothing an older
//! connection brought can take effect after a newer one was welcomed.

pub mod window;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kestrel_rpc::handler::Outbox;
use kestrel_types::clock::Nanos;
use kestrel_types::ids::InodeId;
use kestrel_types::security::Security;
use kestrel_types::wire::{Checksum, ClientId, LockSpan, Reclaim, Reclaimed, SessionState};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::grant::Grant;
use crate::granted::GrantedInodes;
use crate::opens::Opens;
use window::Window;

/// See the module's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The client must say what it holds.
    Reclaiming,
    /// Calls are served.
    Live,
    /// Given up.
    Expired,
    /// The client said Bye.
    Ended,
}

/// The connection of a session.
pub struct SessionConn {
    /// Where frames are put.
    pub outbox: Arc<dyn Outbox>,
    /// Whether they carry checksums.
    pub checksum: Checksum,
    /// What it runs over, and the identity that the client has proved.
    pub security: Security,
    /// Where from, for people.
    pub peer: Arc<str>,
}

/// A message of claims that is being worked on.
#[derive(Debug)]
pub struct ClaimMessage {
    /// The call to answer.
    pub call: u64,
    /// Claims that the node has not answered.
    pub pending: usize,
    /// What could not be had.
    pub lost: Reclaimed,
    /// Nothing more follows.
    pub last: bool,
    /// The client has begun again: no call waits for the answer.
    pub superseded: bool,
}

/// What a client has claimed so far.
#[derive(Debug, Default)]
pub struct Claims {
    /// The message that is being worked on: one at a time.
    pub message: Option<ClaimMessage>,
    /// Messages that came meanwhile: call and content.
    pub parked: VecDeque<(u64, Reclaim)>,
    /// How often each file is claimed to be open, in this attempt.
    pub opens: BTreeMap<InodeId, u32>,
    /// Locks claimed so far, over all attempts, and whether they were had: the answer may not have
    /// reached the client, and what was lost once stays lost even if it is free by now.
    pub locks: FxHashMap<LockSpan, bool>,
    /// Whether what the next message names is within the subtree is being looked at: the number of
    /// that look.
    pub vetting: Option<u64>,
    /// Inodes of the next message that are outside, once they are checked.
    pub outside: Option<Vec<InodeId>>,
}

/// What is guarded by the session's lock.
pub struct State {
    /// Where it is in its life.
    pub phase: Phase,
    /// The state of the session, as the client's Welcome had it or will have it.
    pub announced: SessionState,
    /// Number of the newest connection.
    pub incarnation: u64,
    /// The connection, if there is one.
    pub conn: Option<SessionConn>,
    /// For people.
    pub who: String,
    /// Its number as an owner of locks and objects: a new one each time the session is given up.
    pub holder: u64,
    /// Numbered calls.
    pub window: Window,
    /// Open files.
    pub opens: Opens,
    /// What is being reclaimed.
    pub claims: Claims,
    /// The session's locks may be reclaimed: it was interrupted by a restart, and the grace period
    /// has not ended.
    pub may_claim_locks: bool,
    /// Something came that is neither claim nor retry since everything was reclaimed: all retries
    /// are in.
    pub retries_in: bool,
    /// The session's record is durable.
    pub recorded: bool,
    /// The session was lost, but its client's newest Hello claims that it holds nothing, and
    /// nothing has confirmed that yet: the state that its Welcome would have had. (That Hello may
    /// be an old one that was long under way.)
    pub denied: Option<SessionState>,
    /// When it was given up.
    pub expired_at: Nanos,
    /// What it may do; everything, if there is none.
    pub grant: Option<Arc<Grant>>,
    /// What it was given, if it is confined.
    pub given: GrantedInodes,
    /// How often it was looked at whether what a message claims is within the subtree.
    pub vettings: u64,
    /// Its token has been checked: another token than that of its grant does not take it over.
    pub bound: bool,
}

/// A client's session.
pub struct Session {
    /// The client.
    pub client: ClientId,
    /// When it began, wall time.
    pub since: Nanos,
    /// Time of the client's last message, by the server's clock.
    last_message: AtomicI64,
    /// The rest.
    pub state: Mutex<State>,
}

impl Session {
    /// A session of a client that has not been welcomed yet.
    pub fn new(client: ClientId, since: Nanos, who: String, holder: u64, now: Nanos) -> Self {
        let state = State {
            phase: Phase::Live,
            announced: SessionState::New,
            incarnation: 0,
            conn: None,
            who,
            holder,
            window: Window::default(),
            opens: Opens::default(),
            claims: Claims::default(),
            may_claim_locks: false,
            retries_in: true,
            recorded: false,
            denied: None,
            expired_at: 0,
            grant: None,
            given: GrantedInodes::default(),
            vettings: 0,
            bound: false,
        };
        Self { client, since, last_message: AtomicI64::new(now), state: Mutex::new(state) }
    }

    /// A message of the client came.
    #[inline]
    pub fn note_message(&self, now: Nanos) {
        self.last_message.fetch_max(now, Ordering::Relaxed);
    }

    /// Time of the client's last message.
    pub fn last_message(&self) -> Nanos {
        self.last_message.load(Ordering::Relaxed)
    }
}

impl State {
    /// Whether the client is being served, or will be.
    pub fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Reclaiming | Phase::Live)
    }

    /// Whether frames of the connection with this number count.
    pub fn is_current(&self, incarnation: u64) -> bool {
        self.is_alive() && self.incarnation == incarnation
    }

    /// The client has to say what it holds before anything else.
    pub fn begin_reclaim(&mut self) {
        self.phase = Phase::Reclaiming;
        self.retries_in = false;
        self.claims = Claims::default();
    }

    /// The client begins its reclaim again, over a new connection. What the node is still working
    /// on goes on.
    pub fn restart_reclaim(&mut self) {
        self.claims.parked.clear();
        self.claims.opens.clear();
        (self.claims.vetting, self.claims.outside) = (None, None);
        if let Some(message) = &mut self.claims.message {
            message.superseded = true;
            message.last = false;
        }
    }
}
