//! What tests of both sides share.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_types::error::FsError;
use kestrel_types::ids::ROOT;
use kestrel_types::request::{Answer, Creds, Op, Reply, Request};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    self, Answered, Checksum, ClientId, Hello, Refused, ReplyTo, SessionState, ToClient, ToServer,
    VERSION, Versions, Welcome, WireError,
};
use parking_lot::Mutex;

use crate::handler::{Connection, Handler, Outbox};
use crate::server::{ListenerConfig, Serving, serve};

/// Waits for something that has to happen sooner or later.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never happened that {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn encoded(message: &ToClient) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode_to_client(message, Checksum::Crc32c, &mut bytes).unwrap();
    bytes
}

pub fn sent(message: &ToServer) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode_to_server(message, Checksum::Off, &mut bytes).unwrap();
    bytes
}

pub fn welcome(session: SessionState, lease_ms: u32) -> ToClient {
    let descriptor = Box::default();
    ToClient::Welcome(Welcome {
        version: VERSION,
        node: 1,
        epoch: 1,
        descriptor,
        session,
        lease_ms,
        table: 1,
        root: ROOT,
    })
}

pub fn hello() -> ToServer {
    ToServer::Hello(Hello {
        versions: Versions::OURS,
        volume: "v".into(),
        client: ClientId([1; 16]),
        incarnation: 1,
        who: "test".into(),
        established: false,
        token: None,
    })
}

pub fn reply(id: u64, reply: Reply) -> ToClient {
    ToClient::Reply(ReplyTo { id, table: 1, answered: Answered::Op(reply) })
}

pub fn request(op: Op) -> Request {
    Request { creds: Creds::root(), op }
}

/// A handler with connections that do what a function says, message by message.
pub struct Script<F> {
    act: Arc<F>,
    /// How often connections ended.
    pub closed: Arc<Mutex<usize>>,
}

impl<F: Fn(ToServer, &Arc<dyn Outbox>) + Send + Sync + 'static> Script<F> {
    pub fn new(act: F) -> Self {
        Self { act: Arc::new(act), closed: Arc::default() }
    }
}

struct Scripted<F> {
    act: Arc<F>,
    outbox: Arc<dyn Outbox>,
    closed: Arc<Mutex<usize>>,
}

impl<F: Fn(ToServer, &Arc<dyn Outbox>) + Send + Sync + 'static> Handler for Script<F> {
    fn connect(
        &self,
        _peer: SocketAddr,
        _security: Security,
        outbox: Arc<dyn Outbox>,
    ) -> Box<dyn Connection> {
        Box::new(Scripted { act: self.act.clone(), outbox, closed: self.closed.clone() })
    }
}

impl<F: Fn(ToServer, &Arc<dyn Outbox>) + Send + Sync> Connection for Scripted<F> {
    fn receive(&mut self, batch: &mut Vec<ToServer>) {
        batch.drain(..).for_each(|message| (self.act)(message, &self.outbox));
    }

    fn refuse(&mut self, error: &WireError) {
        let refused = Refused { errno: libc::EPROTO, reason: error.to_string().into() };
        self.outbox.send(&encoded(&ToClient::Refused(refused)));
    }

    fn closed(self: Box<Self>) {
        *self.closed.lock() += 1;
    }
}

/// Welcomes everybody, answers every operation with Done.
pub fn obliging(message: ToServer, outbox: &Arc<dyn Outbox>) {
    match message {
        ToServer::Hello(hello) => {
            let session = if hello.established { SessionState::Known } else { SessionState::New };
            outbox.send(&encoded(&welcome(session, 30_000)));
        }
        ToServer::Call(call) => outbox.send(&encoded(&reply(call.id, Ok(Answer::Done)))),
        ToServer::Ping { .. } => outbox.send(&encoded(&ToClient::Pong { table: 0 })),
        ToServer::Cancel { .. }
        | ToServer::Bye
        | ToServer::PeerHello(_)
        | ToServer::PeerProof(_)
        | ToServer::Peer(_)
        | ToServer::Proof(_) => {}
    }
}

pub fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

pub fn serving(handler: impl Handler, config: ListenerConfig) -> Serving {
    serve(listen(), Arc::new(handler), config).unwrap()
}

/// Errno of a failed reply.
pub fn errno(reply: &Reply) -> Option<i32> {
    match reply {
        Err(kestrel_types::request::Outcome::Failed(FsError { errno, .. })) => Some(*errno),
        _ => None,
    }
}
