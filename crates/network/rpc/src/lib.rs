//! Frames over sockets: the transport of a metadata node, and a client's connection to it.
//!
//! - [`handler`]: what a server implements to be served by
//! - [`server`]: the listening side, on tokio;
//! - [`session`]: a client's session as a state machine without sockets, threads, clocks and
//!   randomness, so that the simulator drives the same code as
//! - [`client`]: the real connection, shared by many threads, which comes back after every outage;
//! - [`peer`]: a node's connection to another node of its cluster, one way.
//!
//! Messages and their bytes are `kestrel_types::wire`.

pub mod backoff;
pub mod client;
pub mod handler;
pub mod peer;
pub mod server;
pub mod session;
pub mod tls;
pub mod token;

#[cfg(test)]
mod testing;
