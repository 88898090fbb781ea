//! Who is let in as another node of the cluster, and what happens to one that does not talk like one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use cluster::{Cluster, at, eventually, identity, mknod};
use kestrel_meta::member::{Envelope, Message};
use kestrel_types::request::Op;
use kestrel_types::wire::{
    Checksum, Frames, PeerHello, PeerSecret, REFUSED_BIRTH, REFUSED_OLD, REFUSED_TWICE, Refused, ToClient,
    ToServer, Versions, decode_to_client, encode_peer, encode_to_server,
};

/// As a node that was started once says it.
fn hello(from: u32, to: u32) -> PeerHello {
    let identity = identity(from, 1);
    PeerHello {
        versions: Versions::OURS,
        volume: identity.volume,
        from,
        to,
        table: 5,
        secret: identity.secret,
        birth: identity.birth,
        epoch: 1,
        start: identity.start,
    }
}

fn say(address: SocketAddr, messages: &[ToServer]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut bytes = Vec::new();
    for message in messages {
        encode_to_server(message, Checksum::Crc32c, &mut bytes).unwrap();
    }
    stream.write_all(&bytes).unwrap();
    stream
}

/// What a connection is refused with; `None`: it was closed without a word.
fn refusal(mut stream: TcpStream) -> Option<Refused> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut frames = Frames::default();
    loop {
        if let Some(frame) = frames.next_frame().unwrap() {
            let ToClient::Refused(refused) = decode_to_client(frame).unwrap() else { panic!("an answer") };
            return Some(refused);
        }
        match stream.read(frames.space()).unwrap() {
            0 => return None,
            read => frames.filled(read),
        }
    }
}

fn refused(address: SocketAddr, hello: PeerHello) -> Refused {
    refusal(say(address, &[ToServer::PeerHello(hello)])).expect("a reason")
}

#[test]
fn only_the_other_nodes_of_the_cluster_are_let_in() {
    let cluster = Cluster::start();
    let address = cluster.sites[0].address;
    let good = || hello(2, 1);
    for (hello, errno, says) in [
        (PeerHello { secret: PeerSecret([8; 16]), ..good() }, libc::EACCES, "another cluster"),
        (PeerHello { volume: [8; 16], ..good() }, libc::ENOENT, "another volume"),
        (PeerHello { from: 1, ..good() }, libc::EEXIST, "two processes are node 1"),
        (PeerHello { to: 3, ..good() }, libc::EINVAL, "this is node 1, not node 3"),
        (PeerHello { from: 9, ..good() }, libc::EAGAIN, "node 9 is not one of the cluster's"),
        (PeerHello { versions: Versions { min: 9, max: 9 }, ..good() }, libc::EPROTONOSUPPORT, "upgrade"),
    ] {
        let why = refused(address, hello);
        assert_eq!(why.errno, errno, "{why:?}");
        assert!(why.reason.contains(says), "{why:?}");
    }
    let client = cluster.client();
    client.done(mknod("a file"));
}

/// Both other nodes have been let in by node 1.
fn all_are_known(cluster: &Cluster, welcomed: u64) {
    let server = &cluster.sites[0].running().server;
    eventually("the others are known", || server.figures(0).totals.peers_welcomed >= welcomed);
}

fn is_refused(cluster: &Cluster, hello: PeerHello, errno: i32, says: &str) {
    let why = refused(cluster.sites[0].address, hello);
    assert_eq!(why.errno, errno, "{why:?}");
    assert!(why.reason.contains(says), "{why:?}");
}

#[test]
fn a_directory_that_was_made_anew_an_old_copy_and_a_second_process_are_refused() {
    let mut cluster = Cluster::start();
    all_are_known(&cluster, 2);
    let anew = || PeerHello { birth: 7, epoch: 9, ..hello(2, 1) };
    let twice = || PeerHello { start: 77, ..hello(2, 1) };
    is_refused(&cluster, anew(), REFUSED_BIRTH, "its directory was made anew");
    is_refused(&cluster, twice(), REFUSED_TWICE, "two processes serve node 2");
    let before = || PeerHello { epoch: 0, ..hello(2, 1) };
    is_refused(&cluster, before(), REFUSED_OLD, "(start 0, node 1 has seen start 1)");
    // Who refuses is started again, and still knows.
    cluster.sites[0].kill();
    cluster.sites[0].run();
    is_refused(&cluster, anew(), REFUSED_BIRTH, "its directory was made anew");
    is_refused(&cluster, twice(), REFUSED_TWICE, "two processes serve node 2");
    is_refused(&cluster, before(), REFUSED_OLD, "an old copy");
    // The same directory started again is let in, and its start before that no more.
    all_are_known(&cluster, 2);
    cluster.sites[1].kill();
    cluster.sites[1].run();
    all_are_known(&cluster, 3);
    is_refused(&cluster, hello(2, 1), REFUSED_OLD, "(start 1, node 1 has seen start 2)");
    let client = cluster.client();
    client.done(Op::MkDir(at("dir"), 0o755));
    client.done(mknod("dir/file"));
    for site in &cluster.sites {
        assert_eq!(site.running().peers.expelled(), None);
    }
}

#[test]
fn a_node_whose_copy_was_started_after_it_learns_that_it_must_not_go_on() {
    let cluster = Cluster::start();
    all_are_known(&cluster, 2);
    assert_eq!(cluster.sites[1].running().peers.expelled(), None);
    let address = cluster.sites[0].address;
    let _copy = say(address, &[ToServer::PeerHello(PeerHello { epoch: 2, start: 77, ..hello(2, 1) })]);
    let peers = &cluster.sites[1].running().peers;
    eventually("it is told", || peers.expelled().is_some());
    let why = peers.expelled().unwrap();
    assert!(why.contains("node 1") && why.contains("old copy"), "{why}");
    assert_eq!(cluster.sites[2].running().peers.expelled(), None);
}

#[test]
fn a_newer_connection_of_a_node_replaces_the_older_one_and_what_is_no_envelope_ends_it() {
    let cluster = Cluster::start();
    let address = cluster.sites[0].address;
    eventually("nodes are connected", || cluster.sites[1].running().peers.figures()[&1].up);
    let connects = cluster.sites[1].running().peers.figures()[&1].connects;
    let mut stream = say(address, &[ToServer::PeerHello(hello(2, 1))]);
    // The true node 2 finds its connection closed, and comes back: then this one is closed.
    assert_eq!(refusal(stream.try_clone().unwrap()), None);
    let _gone = stream.write_all(&[0; 16]);
    assert!(cluster.sites[1].running().peers.figures()[&1].connects > connects);
    for envelope in [&b"garbage"[..], &[], &[1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 99]] {
        let messages = [ToServer::PeerHello(hello(2, 1)), ToServer::Peer(envelope.into())];
        let why = refusal(say(address, &messages)).expect("a reason");
        assert_eq!(why.errno, libc::EPROTO, "{why:?}");
    }
    // A node that speaks for another one.
    let (txn, mut bytes) = (kestrel_meta::locks::TxnId { node: 3, epoch: 1, number: 1 }, Vec::new());
    Envelope { from: 3, stamp: 1, message: Message::Ask(txn) }.encode(&mut bytes).unwrap();
    let why = refusal(say(address, &[ToServer::PeerHello(hello(2, 1)), ToServer::Peer(bytes.into())]));
    assert!(why.unwrap().reason.contains("for itself"));
    // Nodes have no sessions, and clients no envelopes.
    let why = refusal(say(address, &[ToServer::PeerHello(hello(2, 1)), ToServer::Bye])).unwrap();
    assert!(why.reason.contains("no session"), "{why:?}");
    let mut frame = Vec::new();
    encode_peer(b"too early", Checksum::Off, &mut frame).unwrap();
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(&frame).unwrap();
    assert_eq!(refusal(stranger).unwrap().errno, libc::EPROTO);
    // After all that the nodes still work together.
    let client = cluster.client();
    client.done(Op::MkDir(at("dir"), 0o755));
    client.done(mknod("dir/file"));
    assert_eq!(client.names("dir"), ["file"]);
}
