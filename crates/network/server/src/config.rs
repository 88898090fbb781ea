//! Settings of a server, and its limits.

use std::sync::Arc;

use kestrel_types::clock::{Nanos, SECOND};

use crate::audit::Audit;
use crate::peers::Identity;

/// How long the answers of a client that vanished are kept, so that it can still learn what became
/// of its calls.
pub const KEEP_EXPIRED: Nanos = 30 * 60 * SECOND;

/// Most clients at a time, those that vanished and are still remembered included.
pub const SESSIONS_MAX: usize = 65_536;

/// Most opens that one client may have at a time, several of one file included.
pub const OPENS_MAX: usize = 1 << 20;

/// Most ranges of object numbers that one client may hold.
pub const OBJECT_RANGES_MAX: usize = 65_536;

/// Shortest lease: a client has to send three messages within it, over a network.
pub const LEASE_MIN: Nanos = SECOND;

/// Longest lease: what a client leaves behind blocks others for so long.
pub const LEASE_MAX: Nanos = 600 * SECOND;

/// The clients that must show a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Clients on other machines: one on this machine could do by other means all that a token
    /// allows.
    #[default]
    Auto,
    /// Everybody.
    Tokens,
    /// No client.
    Open,
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct SessionServerConfig {
    /// Name of the volume; clients must name it.
    pub volume: String,
    /// The volume's descriptor as JSON, shown to every client.
    pub descriptor: Box<[u8]>,
    /// Number of the node within its cluster.
    pub node: u32,
    /// Counts the starts of the node.
    pub epoch: u64,
    /// A client without a message for this long has lost its session; [`LEASE_MIN`] to
    /// [`LEASE_MAX`].
    pub lease: Nanos,
    /// How long after a start clients of the start before may claim what they held; longer if that
    /// start's lease was longer, unless it is shorter than [`SessionServerConfig::lease`].
    pub grace: Nanos,
    /// How long the answers of a client that vanished are kept.
    pub keep_expired: Nanos,
    /// The node's identity for other nodes of the cluster, if it is a member's server.
    pub peers: Option<Identity>,
    /// The clients that must show a token.
    pub access: Access,
    /// Where refusals are recorded.
    pub audit: Arc<Audit>,
    /// What is served never changes, and other processes serve the same: changes are refused
    /// (`EROFS`), no session is on record, and a client that had its session with another one of
    /// these processes goes on as after a restart.
    pub immutable: bool,
    /// Most clients at a time.
    pub sessions_max: usize,
    /// Most opens that one client may have at a time, several of one file included.
    pub opens_max: usize,
}

impl Default for SessionServerConfig {
    fn default() -> Self {
        Self {
            volume: String::new(),
            descriptor: Box::new([]),
            node: 0,
            epoch: 0,
            lease: 30 * SECOND,
            grace: 30 * SECOND,
            keep_expired: KEEP_EXPIRED,
            peers: None,
            access: Access::default(),
            audit: Arc::default(),
            immutable: false,
            sessions_max: SESSIONS_MAX,
            opens_max: OPENS_MAX,
        }
    }
}
