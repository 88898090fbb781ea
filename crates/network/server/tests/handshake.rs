//! The corpus of the fuzz target `handshake`, and its check over mutations of it, the same ones in
//! each run.
//!
//! `cargo test -p kestrel-server --test handshake -- --ignored` writes the files of new samples.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[path = "../../../../fuzz/handshake.rs"]
mod check;
#[path = "../../../../fuzz/mutations.rs"]
mod mutations;

use std::fs;
use std::path::PathBuf;

use check::{HONEST, TOKENS, VOLUME};
use kestrel_rpc::token::Token;
use kestrel_types::request::{Creds, Op, Request};
use kestrel_types::wire::{
    Body, Call, Checksum, ClientId, HEADER_BYTES, Hello, PeerHello, ToServer, Versions,
    encode_to_server,
};
use mutations::Random;

/// Mutations of each file of the corpus.
const MUTATIONS: usize = 200;

/// How a server lets clients in, and what connections run over: see [`check`].
const AUTO: u8 = 0;
const ONLY_TOKENS: u8 = 1;
const OPEN: u8 = 2;
const LOOPBACK: u8 = 0;
const PLAIN: u8 = 1;
const TLS: u8 = 2;
const CERTIFIED: u8 = 3;
const REVOKED: u8 = 4;

fn frame(message: &ToServer) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_to_server(message, Checksum::Off, &mut bytes).unwrap();
    let payload = &bytes[HEADER_BYTES..];
    [&bytes[4..5], &(payload.len() as u16).to_le_bytes()[..], payload].concat()
}

fn hello(token: Option<usize>) -> ToServer {
    ToServer::Hello(Hello {
        versions: Versions::OURS,
        volume: VOLUME.into(),
        client: ClientId([7; 16]),
        incarnation: 1,
        who: "fuzz".into(),
        established: false,
        token: token.map(|which| Token::parse(TOKENS[which]).unwrap().id),
    })
}

fn call() -> ToServer {
    let request = Request { creds: Creds::root(), op: Op::Sync };
    ToServer::Call(Call { id: 1, seq: 0, acked: 0, retry: false, body: Body::Op(request) })
}

fn peer() -> ToServer {
    ToServer::PeerHello(PeerHello {
        versions: Versions::OURS,
        volume: [3; 16],
        from: 2,
        to: 1,
        table: 1,
        nonce: [4; 16],
        node_uuid: 5,
        epoch: 6,
        start: 7,
        address: "127.0.0.1:9440".into(),
    })
}

/// The corpus by names of files.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let encoded = |access: u8, over: u8, messages: &[ToServer]| {
        let mut bytes = vec![access, over];
        messages.iter().for_each(|message| bytes.extend(frame(message)));
        bytes
    };
    let honest = |access: u8, over: u8, which: usize| {
        let mut bytes = encoded(access, over, &[hello(Some(which))]);
        bytes.push(HONEST);
        bytes.extend(frame(&call()));
        bytes
    };
    vec![
        ("token", honest(ONLY_TOKENS, LOOPBACK, 0)),
        ("token-over-tls", honest(AUTO, TLS, 0)),
        ("token-in-clear", honest(AUTO, PLAIN, 0)),
        ("token-revoked", honest(OPEN, LOOPBACK, 1)),
        (
            "token-not-proved",
            encoded(ONLY_TOKENS, TLS, &[hello(Some(0)), ToServer::Proof([9; 32]), call()]),
        ),
        ("token-and-certificate", honest(ONLY_TOKENS, REVOKED, 0)),
        ("token-then-call", encoded(ONLY_TOKENS, LOOPBACK, &[hello(Some(0)), call()])),
        ("none-here", encoded(AUTO, LOOPBACK, &[hello(None), call(), ToServer::Bye])),
        ("none-there", encoded(AUTO, TLS, &[hello(None), call()])),
        ("none-needed", encoded(OPEN, PLAIN, &[hello(None), call()])),
        ("certificate", encoded(ONLY_TOKENS, CERTIFIED, &[hello(None), call()])),
        ("certificate-revoked", encoded(ONLY_TOKENS, REVOKED, &[hello(None), call()])),
        ("call", encoded(OPEN, LOOPBACK, &[call()])),
        ("proof", encoded(ONLY_TOKENS, LOOPBACK, &[ToServer::Proof([0; 32]), hello(None)])),
        ("hello-twice", encoded(OPEN, LOOPBACK, &[hello(None), hello(Some(0)), call()])),
        ("node", encoded(OPEN, LOOPBACK, &[peer(), ToServer::PeerProof([0; 32]), call()])),
        ("nothing", vec![AUTO, LOOPBACK]),
    ]
}

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/handshake")
}

#[test]
fn the_corpus_has_every_sample() {
    for (name, sample) in samples() {
        assert_eq!(
            fs::read(corpus().join(name)).unwrap(),
            sample,
            "{name}: see the head of this file"
        );
    }
    assert_eq!(fs::read_dir(corpus()).unwrap().count(), samples().len());
}

#[test]
fn clients_without_access() {
    let mut random = Random(0x6b65_7374_7265_6c02);
    let files: Vec<Vec<u8>> = samples().into_iter().map(|(_, sample)| sample).collect();
    let names =
        samples().into_iter().filter(|(_, sample)| check::handshake(sample)).map(|(name, _)| name);
    let entered = [
        "token",
        "token-over-tls",
        "token-and-certificate",
        "none-here",
        "none-needed",
        "certificate",
        "hello-twice",
    ];
    assert_eq!(names.collect::<Vec<_>>(), entered);
    for file in &files {
        for _ in 0..MUTATIONS {
            check::handshake(&random.mutate(file, &files));
        }
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_the_corpus() {
    fs::create_dir_all(corpus()).unwrap();
    for (name, sample) in samples() {
        fs::write(corpus().join(name), sample).unwrap();
    }
}
