//! What a server has done and holds, for metrics and `kestrel status`.

use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::clock::Nanos;
use kestrel_types::wire::ClientId;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the start.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $(pub $name: Count,)*
        }

        /// Counters since the start of the server.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            pub fn totals(&self) -> Totals {
                Totals { $($name: self.$name.get(),)* }
            }
        }
    };
}

counts! {
    /// Clients that were welcomed, each reconnect included.
    welcomes,
    /// Connections that were refused.
    refused,
    /// Connections that a newer one of the same client took the place of.
    superseded,
    /// Sessions that began.
    sessions_begun,
    /// Sessions that ended with a farewell.
    sessions_ended,
    /// Sessions of clients that sent no message within the lease.
    sessions_expired,
    /// Sessions that reclaimed what they held.
    sessions_reclaimed,
    /// Opens that were reclaimed.
    opens_reclaimed,
    /// Opens that could not be reclaimed.
    opens_lost,
    /// Locks that were reclaimed.
    locks_reclaimed,
    /// Locks that could not be reclaimed.
    locks_lost,
    /// Batches received.
    batches,
    /// Calls received.
    calls,
    /// Calls sent again by clients.
    retries,
    /// Of these, those answered from memory.
    retries_answered,
    /// Of these, those found still being executed.
    retries_running,
    /// Of these, those that went to the node, which looks for a recorded answer first.
    retries_submitted,
    /// Messages dropped because a newer connection has taken over.
    stale_messages,
    /// Calls refused because they do not fit the session.
    calls_refused,
    /// Connections of other nodes that were let in.
    peers_welcomed,
    /// Envelopes of other nodes received.
    envelopes,
    /// Bytes of frames sent.
    bytes_out,
}

/// What a server has done and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Since the start.
    pub totals: Totals,
    /// Clients with a session.
    pub sessions: u64,
    /// Of these, those connected now.
    pub connected: u64,
    /// Clients without a session, of which answers are kept.
    pub expired: u64,
    /// Opens held by sessions.
    pub opens: u64,
    /// Ranges of locks held.
    pub lock_ranges: u64,
    /// Calls that wait for locks.
    pub lock_waits: u64,
    /// What is left of the grace period after the start; 0 if there is none.
    pub grace_left: Nanos,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The client.
    pub client: ClientId,
    /// The client's name, as its Hello has it.
    pub who: String,
    /// Where it is connected from, if it is.
    pub peer: Option<String>,
    /// `live`, `reclaiming` or `expired`.
    pub state: &'static str,
    /// When the session began, wall time.
    pub since: Nanos,
    /// Time until the session is given up, unless a message of the client comes.
    pub lease_left: Nanos,
    /// Connections so far.
    pub incarnation: u64,
    /// Opens.
    pub opens: usize,
    /// Ranges of locks held.
    pub locks: usize,
}
