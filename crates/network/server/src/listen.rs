//! The server behind real sockets: gives it the time, and connects it to the transport.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_rpc::handler::{self, Handler, Outbox};
use kestrel_types::clock::Nanos;
use kestrel_types::security::Security;
use kestrel_types::wire::{ToServer, WireError};

use crate::connection::Connection;
use crate::server::Server;

/// A server with a clock: what the transport calls.
#[derive(Clone)]
pub struct ClockedServer {
    server: Arc<Server>,
    opened: Instant,
}

impl ClockedServer {
    /// The door of a server. `opened` is the zero of the clock that the server was made with.
    pub fn new(server: Arc<Server>, opened: Instant) -> Self {
        Self { server, opened }
    }

    /// The server's time.
    pub fn now(&self) -> Nanos {
        Nanos::try_from(self.opened.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    /// The server.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }
}

impl Handler for ClockedServer {
    fn connect(
        &self,
        peer: SocketAddr,
        security: Security,
        outbox: Arc<dyn Outbox>,
    ) -> Box<dyn handler::Connection> {
        let connection = self.server.connect(outbox, security, &peer.to_string());
        Box::new(ClockedConn { connection, server: self.clone() })
    }

    fn tick(&self) -> Duration {
        self.server.tick(self.now());
        Duration::from_nanos(self.server.tick_interval().unsigned_abs())
    }
}

/// A connection with a clock.
struct ClockedConn {
    connection: Connection,
    server: ClockedServer,
}

impl handler::Connection for ClockedConn {
    fn receive(&mut self, batch: &mut Vec<ToServer>) {
        self.connection.receive(batch, self.server.now());
    }

    fn refuse(&mut self, error: &WireError) {
        self.connection.refuse(error);
    }

    fn closed(mut self: Box<Self>) {
        self.connection.closed();
    }
}
