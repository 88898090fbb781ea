//! Which clients are let in, whatever a stranger says: a server on an engine in memory, with two
//! tokens, one of which is over. The fuzz target calls this with what libFuzzer thinks of,
//! `crates/network/server/tests/handshake.rs` with the corpus and simple mutations of it.
//!
//! An input is how the server lets clients in, what the connection runs over, and messages: a kind,
//! the length of the payload (two bytes, the smaller part first), the payload. Kind [`HONEST`]
//! stands for the proof that a client with the good token answers with.

use std::sync::Arc;

use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Node, NodeConfig, Replies, RootAttr};
use kestrel_rpc::handler::Outbox;
use kestrel_rpc::token::Token;
use kestrel_server::admin::{Admin, AdminRequester};
use kestrel_server::config::{Access, SessionServerConfig};
use kestrel_server::locks::LockLimits;
use kestrel_server::server::Server;
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::security::{PeerName, Security};
use kestrel_types::token::TokenRecord;
use kestrel_types::wire::{
    Frame, Frames, Hello, ToClient, ToServer, decode_to_client, decode_to_server,
};
use parking_lot::Mutex;

/// See the module's header. No message has this kind.
pub const HONEST: u8 = 0xff;

/// Name of the volume.
pub const VOLUME: &str = "v";

/// The token that is good, and one that was revoked.
pub const TOKENS: [&str; 2] = [
    "kestrel-token:1:0101010101010101:1111111111111111111111111111111111111111111111111111111111111111:-",
    "kestrel-token:1:0202020202020202:2222222222222222222222222222222222222222222222222222222222222222:-",
];

const NOW: i64 = 1000 * SECOND;

#[derive(Default)]
struct Line(Mutex<(Frames, bool)>);

impl Outbox for Line {
    fn send(&self, frames: &[u8]) {
        self.0.lock().0.push(frames);
    }

    fn close(&self, _why: &str) {
        self.0.lock().1 = true;
    }
}

struct Silent;

impl Admin for Silent {
    fn submit(&self, _question: Box<[u8]>, asker: AdminRequester) {
        asker.answer(Ok(Box::default()));
    }
}

/// No client is let in that may not be, and no client that was not let in is served. Whether
/// somebody was.
pub fn handshake(input: &[u8]) -> bool {
    let [access, over, messages @ ..] = input else { return false };
    let access = [Access::Auto, Access::Tokens, Access::Open][usize::from(access % 3)];
    let [good, revoked] = TOKENS.map(|text| Token::parse(text).expect("a token"));
    let peer = [None, None, None, Some(good.id), Some(revoked.id)][usize::from(over % 5)];
    let security = match over % 5 {
        0 => Security::Loopback,
        1 => Security::Plain,
        _ => Security::Tls { peer: peer.map(|id| PeerName::Client(id.to_string())) },
    };
    let server = server(access, &good, &revoked);
    let line = Arc::new(Line::default());
    let mut connection = server.connect(line.clone(), security.clone(), "fuzz");
    let (mut hello, mut nonce, mut may_enter, mut entered): (Option<Hello>, _, _, _) =
        (None, None, false, false);
    for message in Messages(messages) {
        let message = match (message, &hello, nonce) {
            (Message::Frame(frame), _, _) => match decode_to_server(frame) {
                Ok(message) => message,
                // The connection is cut.
                Err(_) => break,
            },
            (Message::Honest, Some(hello), Some(nonce)) => {
                may_enter |= hello.token == Some(good.id);
                ToServer::Proof(good.prove(&nonce, hello, &security))
            }
            (Message::Honest, ..) => continue,
        };
        if let (None, ToServer::Hello(said)) = (&hello, &message) {
            may_enter = match (said.token, peer) {
                (Some(_), _) => false,
                (None, Some(shown)) => shown == good.id,
                (None, None) => {
                    access == Access::Open
                        || access == Access::Auto && security == Security::Loopback
                }
            };
            hello = Some(said.clone());
        }
        connection.receive(&mut vec![message], 0);
        let mut state = line.0.lock();
        while let Some(frame) = state.0.next_frame().expect("frames of ours") {
            match decode_to_client(frame).expect("a message of ours") {
                ToClient::Challenge(asked) => nonce = Some(asked),
                ToClient::Welcome(_) => {
                    assert!(
                        may_enter && !entered,
                        "{hello:?} was let in over {security:?} ({access:?})"
                    );
                    entered = true;
                }
                ToClient::Reply(reply) => assert!(entered, "{hello:?} was answered {reply:?}"),
                _ => (),
            }
        }
        if state.1 {
            break;
        }
    }
    connection.closed();
    assert!(server.stats(0).sessions <= u64::from(entered), "{hello:?} has a session");
    entered
}

fn server(access: Access, good: &Token, revoked: &Token) -> Arc<Server> {
    let (engine, clock) =
        (Arc::new(MemoryEngine::new(SyncWhen::Asked)), Arc::new(ManualClock::new(NOW)));
    Node::format(&*engine, RootAttr { mode: 0o777, uid: 0, gid: 0 }, NOW).expect("an empty engine");
    let config =
        NodeConfig { workers: 1, serves: true, replies: Replies::Inline, ..NodeConfig::default() };
    let node = Node::open(engine, clock.clone(), config).expect("a sound volume");
    let config =
        SessionServerConfig { volume: VOLUME.into(), access, ..SessionServerConfig::default() };
    let server = Server::new(node, clock, config, LockLimits::default(), Arc::new(Silent), 0);
    let server = server.expect("a sound volume");
    let record = |token: &Token| TokenRecord::new(token.id, "fuzz", token.verifier(), 0);
    let records = vec![record(good), TokenRecord { revoked: Some(1), ..record(revoked) }];
    server.tokens().learn(records, NOW).expect("room for two");
    server
}

enum Message<'a> {
    Frame(Frame<'a>),
    Honest,
}

/// The messages of an input, up to where it is none.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (kind, rest) = self.0.split_first()?;
        if *kind == HONEST {
            self.0 = rest;
            return Some(Message::Honest);
        }
        let (length, rest) = rest.split_first_chunk()?;
        let (payload, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        self.0 = rest;
        Some(Message::Frame(Frame { kind: *kind, payload }))
    }
}
