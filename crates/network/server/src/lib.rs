//! A metadata node as a server: clients, their sessions, and what they hold.
//!
//! A [`server::Server`] stands between connections, which know nothing of sessions, and the node,
//! which knows nothing of clients. It keeps neither threads nor clocks nor sockets: it is called
//! with batches of messages and with the time, by [`listen`] for real and by the simulation in one
//! thread.
//!
//! Behind it is one [`backend`]: a node that has its volume to itself, or a member of a cluster.
//! Members' nodes reach each other by the same port ([`peers`], `server/peer_handshake.rs`).
//!
//! What it promises (`metadata.md` §6, `docs/protocol.md`):
//!
//! - **Exactly once.** A numbered call is executed once, whatever is lost or sent again, also
//!   across a restart of the node ([`session::window`], `kestrel_meta::txn`).
//! - **Sessions.** What a client holds (open files, locks, object numbers) is its own, survives
//!   broken connections and, if the client reclaims it, restarts; it goes when the client says
//!   farewell or is not heard of for the lease.
//! - **A lie gains nothing.** Operations on handles are for the sessions that hold them
//!   ([`authz`]); a client that shows a token does what it allows, and nothing else ([`grant`],
//!   [`tokens`]). Refusals are on record ([`audit`]).

pub mod admin;
pub mod audit;
pub mod authz;
pub mod backend;
pub mod config;
pub mod connection;
pub mod grant;
pub mod listen;
pub mod locks;
pub mod objects;
pub mod peers;
pub mod quota;
pub mod server;
pub mod session;
pub mod stats;
pub mod tokens;

/// What there is to say of the directory of a node that has left its cluster.
pub const LEFT_BEHIND: &str =
    "its directory holds nothing any more that the volume needs, and can be deleted";
