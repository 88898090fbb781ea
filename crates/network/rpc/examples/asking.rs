//! What a look-up on a deep path costs a client's threads, without sockets and without a node:
//! calls are put into a link and encoded, their answers cut out of a stream, decoded and given to
//! the callers, 256 at a time. One thread, so instructions repeat:
//!
//! `valgrind --tool=callgrind target/release/examples/asking [ROUNDS]` answers so many rounds of
//! 256 calls; with 0 rounds it makes no calls; that share is to be subtracted, and so is
//! `Node::receive`, the other side. Prints nanoseconds a call.

use std::time::{Duration, Instant};

use kestrel_rpc::session::{CallDeadline, FinishedCall, Link, LinkConfig};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::PathRef;
use kestrel_types::request::{Answer, Creds, Op, Request};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    Answered, Body, Checksum, ClientId, Frames, ReplyTo, SessionState, ToClient, ToServer, VERSION,
    Welcome, decode_to_client, decode_to_server, encode_reply_to, encode_to_client,
};

type Failure = Box<dyn std::error::Error>;

const BATCH: u64 = 256;

/// The node's side: the messages that it receives, and those that it sends.
#[derive(Default)]
struct Node {
    heard: Frames,
    output: Vec<u8>,
}

impl Node {
    /// Answers everything alike.
    #[inline(never)]
    fn receive(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.heard.push(bytes);
        while let Some(frame) = self.heard.next_frame()? {
            match decode_to_server(frame)? {
                ToServer::Hello(_) => {
                    let welcome = Welcome {
                        version: VERSION,
                        node: 1,
                        epoch: 1,
                        descriptor: Box::default(),
                        session: SessionState::New,
                        lease_ms: 30_000,
                        table: 1,
                        root: ROOT,
                    };
                    encode_to_client(&ToClient::Welcome(welcome), Checksum::Off, &mut self.output)?;
                }
                ToServer::Call(call) => {
                    let inode =
                        Box::new(Inode::new(4711, Kind::File, 1_700_000_000_000_000_000, 7));
                    let answered = Answered::Op(Ok(Answer::Entry { parent: 42, inode }));
                    let reply = ReplyTo { id: call.id, table: 1, answered };
                    encode_reply_to(&reply, Checksum::Off, &mut self.output);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(1000), |text| text.parse::<u64>())?;
    let config = LinkConfig {
        volume: "volume".into(),
        client: ClientId([1; 16]),
        who: "example".into(),
        server: "nowhere".into(),
        token: None,
    };
    let mut link = Link::new(config, 0);
    let (mut node, mut frames, mut output) = (Node::default(), Frames::default(), Vec::new());
    let (mut messages, mut ended): (Vec<ToClient>, Vec<FinishedCall<u64>>) =
        (Vec::new(), Vec::new());
    link.connected(0, Security::Loopback);
    let place = PathRef::from_path(
        ROOT,
        b"level00000001/level00000002/level00000003/level00000004/dir00000001/f00000001.jpg",
    )?;
    let (mut took, mut sum) = (Duration::ZERO, 0);
    for round in 0..=rounds {
        let begun = Instant::now();
        // In the first round there is nothing but the greeting.
        for number in 0..if round == 0 { 0 } else { BATCH } {
            let request = Request { creds: Creds::root(), op: Op::Lookup(place.clone()) };
            link.submit(Body::Op(request), CallDeadline::Always, number);
        }
        output.clear();
        link.take_output(&mut output);
        took += begun.elapsed();
        node.receive(&output)?;
        let begun = Instant::now();
        frames.push(&node.output);
        node.output.clear();
        while let Some(frame) = frames.next_frame()? {
            messages.push(decode_to_client(frame)?);
        }
        link.received(0, &mut messages).map_err(|why| why.to_string())?;
        link.accept();
        link.take_completions(&mut ended);
        sum += ended.drain(..).map(|completion| completion.done + 1).sum::<u64>();
        took += begun.elapsed();
    }
    let calls = rounds * BATCH;
    println!("{calls} calls, {} ns each", took.as_nanos() as u64 / calls.max(1));
    if sum == rounds * BATCH * (BATCH + 1) / 2 { Ok(()) } else { Err("answers are missing".into()) }
}
