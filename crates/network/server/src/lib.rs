//! A metadata node as a server: clients, their sessions, and what they hold.
//!
//! A [`Server`] stands between connections, which have no code for sessions, and the node, which
//! has none for clients. Behind it is one [`Backend`]: a node that has its volume to itself, or a
//! member of a cluster. [`ClockedServer`] gives it the time and joins it to the transport,
//! [`kestrel_rpc`].
//!
//! ```
//! use std::net::TcpListener;
//! use std::sync::Arc;
//! use std::time::{Duration, Instant};
//!
//! use kestrel_engine::memory::MemoryEngine;
//! use kestrel_meta::node::{Node, NodeConfig, RootAttr};
//! use kestrel_rpc::{ListenerConfig, serve};
//! use kestrel_server::admin::{Admin, AdminRequester};
//! use kestrel_server::locks::LockLimits;
//! use kestrel_server::{ClockedServer, Server, SessionServerConfig};
//! use kestrel_types::clock::{Clock, SystemClock};
//!
//! /// No control protocol: every question gets an empty answer.
//! struct NoAdmin;
//!
//! impl Admin for NoAdmin {
//!     fn submit(&self, _question: Box<[u8]>, asker: AdminRequester) {
//!         asker.answer(Ok(b"{}"[..].into()));
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (engine, clock) = (Arc::new(MemoryEngine::default()), Arc::new(SystemClock));
//! Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, clock.now())?;
//! let node_config = NodeConfig { serves: true, ..NodeConfig::default() };
//! let node = Node::open(engine, clock.clone(), node_config)?;
//!
//! let config = SessionServerConfig { volume: "example".into(), ..SessionServerConfig::default() };
//! let server = Server::new(node, clock, config, LockLimits::default(), Arc::new(NoAdmin), 0)?;
//! let handler = Arc::new(ClockedServer::new(server.clone(), Instant::now()));
//! let serving = serve(TcpListener::bind("127.0.0.1:0")?, handler, ListenerConfig::default())?;
//! // Clients may connect now.
//! serving.stop(Duration::from_secs(1));
//! server.close();
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | [`server`] | sessions, leases, handshakes, what has to happen when time passes |
//! | [`connection`] | one connection of a client, and the way of a batch through it |
//! | [`session`] | one session: its phase, its window of calls |
//! | [`opens`], [`granted`] | open files; inode numbers that a confined client may name |
//! | [`backend`] | the node or cluster member behind the server |
//! | [`locks`] | the lock manager of the volume's files |
//! | [`objects`] | object numbers that clients were given |
//! | [`peers`] | connections to the other nodes of the cluster |
//! | [`listen`] | the server behind real sockets |
//! | [`authz`] | checks that need the session: handles are for the sessions that hold them |
//! | [`grant`], [`tokens`] | what a session may do by its token; the tokens of a volume |
//! | [`audit`], [`quota`] | the record of refusals and administration; how many lines it may take |
//! | [`admin`] | questions of the control protocol to the node as a whole |
//! | [`config`], [`stats`] | settings and limits; metrics |
//!
//! # Invariants
//!
//! The promises are those of `docs/design/metadata.md` §6 and `docs/protocol.md`:
//!
//! - **Exactly once.** A numbered call is executed once, whatever is lost or sent again, also
//!   across a restart of the node ([`session::window`], `kestrel_meta::txn`).
//! - **Sessions.** What a client holds (open files, locks, object numbers) is its own, survives
//!   broken connections and, if the client reclaims it, restarts; it goes when the client says Bye
//!   or sends no message for the lease.
//! - **A lie gains nothing.** Operations on handles are for the sessions that hold them
//!   ([`authz`]); a client that shows a token does what it allows, and nothing else ([`grant`],
//!   [`tokens`]). Refusals are on record ([`audit`]).
//! - **No clock, thread or socket.** The server is called with batches of messages and with the
//!   time, by [`listen`] for real and by the simulation in one thread.
//!
//! Nodes of a cluster reach each other by the same port ([`peers`], `server/peer_handshake.rs`).

pub mod admin;
pub mod audit;
pub mod authz;
pub mod backend;
pub mod config;
pub mod connection;
pub mod grant;
pub mod granted;
pub mod listen;
pub mod locks;
pub mod objects;
pub mod opens;
pub mod peers;
pub mod quota;
pub mod server;
pub mod session;
pub mod stats;
pub mod tokens;

pub use backend::Backend;
pub use config::SessionServerConfig;
pub use listen::ClockedServer;
pub use server::Server;

/// What there is to say of the directory of a node that has left its cluster.
pub const LEFT_BEHIND: &str =
    "its directory holds nothing any more that the volume needs, and can be deleted";
