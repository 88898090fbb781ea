//! Frames over sockets: the transport of a metadata node, and a client's connection to it.
//!
//! A server implements [`Handler`] and calls [`serve`]. A client calls [`Remote::connect`], and
//! then [`Remote::submit`] from any thread. Nodes of a cluster talk over [`peer`]. Messages and
//! their bytes are [`kestrel_types::wire`].
//!
//! ```
//! use std::net::{SocketAddr, TcpListener};
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use kestrel_rpc::{Connection, Handler, ListenerConfig, Outbox, serve};
//! use kestrel_types::security::Security;
//! use kestrel_types::wire::{ToServer, WireError};
//!
//! /// A server that hangs up on the first message.
//! struct Deaf;
//!
//! impl Handler for Deaf {
//!     fn connect(
//!         &self,
//!         _peer: SocketAddr,
//!         _security: Security,
//!         outbox: Arc<dyn Outbox>,
//!     ) -> Box<dyn Connection> {
//!         Box::new(DeafConnection(outbox))
//!     }
//! }
//!
//! struct DeafConnection(Arc<dyn Outbox>);
//!
//! impl Connection for DeafConnection {
//!     fn receive(&mut self, batch: &mut Vec<ToServer>) {
//!         batch.clear();
//!         self.0.close("this server serves no client");
//!     }
//!     fn refuse(&mut self, _: &WireError) {}
//!     fn closed(self: Box<Self>) {}
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let serving = serve(listener, Arc::new(Deaf), ListenerConfig::default())?;
//! println!("listening on {}", serving.address());
//! serving.stop(Duration::from_secs(1));
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | [`handler`] | what a server implements, and what it sends by ([`Outbox`]) |
//! | [`server`] | the listening side, on tokio |
//! | [`session`] | a client's session as a state machine: [`Link`](session::Link) |
//! | [`client`] | the real connection, shared by threads; it comes back after outages |
//! | [`peer`] | a node's connection to another node of its cluster, one way |
//! | [`tls`] | TLS 1.3, and which side trusts which |
//! | [`token`] | tokens, and proofs that do not show them |
//! | [`backoff`] | when to try again: exponential backoff with jitter |
//!
//! # Invariants
//!
//! - A session has no sockets, threads, clocks or randomness, so the simulator drives the same code
//!   as the real connection.
//! - Messages of a connection are received in the order in which they were sent, by one thread at a
//!   time. Frames leave in the order of the calls of [`Outbox::send`].
//! - A call has one answer, also after outages; one that has none by its deadline fails with `EIO`,
//!   and may have been executed.

pub mod backoff;
pub mod client;
pub mod handler;
pub mod peer;
pub mod server;
pub mod session;
pub mod tls;
pub mod token;

pub use client::{Remote, RemoteConfig};
pub use handler::{Connection, Handler, Outbox};
pub use server::{ListenerConfig, Serving, serve};

#[cfg(test)]
mod testing;
