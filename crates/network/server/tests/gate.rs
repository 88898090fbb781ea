//! The peers that are let in as nodes of the cluster, and what happens to one that does not talk
//! like one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use cluster::{Cluster, at, eventually, identity, introduce, mknod, say_all};
use kestrel_cluster::addresses::NodeAddress;
use kestrel_cluster::{Envelope, Message};
use kestrel_types::request::Op;
use kestrel_types::wire::{
    Checksum, Frames, PeerHello, PeerSecret, REFUSED_NODE_UUID, REFUSED_OLD, REFUSED_TWICE,
    Refused, ToClient, ToServer, VERSION, Versions, decode_to_client, encode_peer,
};

/// The Hello of a node that was started once.
fn hello(from: u32, to: u32) -> PeerHello {
    let identity = identity(from, 1);
    PeerHello {
        versions: Versions::OURS,
        volume: identity.volume,
        from,
        to,
        table: 5,
        nonce: [5; 16],
        node_uuid: identity.node_uuid,
        epoch: 1,
        start: identity.start,
        address: identity.address,
    }
}

fn say(address: SocketAddr, messages: &[ToServer]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    say_all(&mut stream, messages);
    stream
}

/// A node's connection, and the messages that it sends after the proof that it has the secret.
fn come(address: SocketAddr, hello: &PeerHello, rest: &[ToServer]) -> Result<TcpStream, Refused> {
    let mut stream = TcpStream::connect(address).unwrap();
    introduce(&mut stream, hello, identity(2, 1).secret, rest).map(|()| stream)
}

/// What a connection is refused with; `None`: it was closed without a word.
fn refusal(mut stream: TcpStream) -> Option<Refused> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut frames = Frames::default();
    loop {
        if let Some(frame) = frames.next_frame().unwrap() {
            let ToClient::Refused(refused) = decode_to_client(frame).unwrap() else {
                panic!("an answer")
            };
            return Some(refused);
        }
        match stream.read(frames.space()).unwrap() {
            0 => return None,
            read => frames.filled(read),
        }
    }
}

fn refused(address: SocketAddr, hello: PeerHello) -> Refused {
    come(address, &hello, &[])
        .map_or_else(|refused| refused, |stream| refusal(stream).expect("a reason"))
}

#[test]
fn only_the_other_nodes_of_the_cluster_are_let_in() {
    let cluster = Cluster::start();
    let address = cluster.sites[0].address;
    let good = || hello(2, 1);
    for (hello, errno, reason) in [
        (PeerHello { volume: [8; 16], ..good() }, libc::ENOENT, "another volume"),
        (PeerHello { from: 1, ..good() }, libc::EEXIST, "two processes are node 1"),
        (PeerHello { to: 3, ..good() }, libc::EINVAL, "this is node 1, not node 3"),
        (PeerHello { from: 9, ..good() }, libc::EAGAIN, "node 9 is not one of the cluster's"),
        (
            PeerHello { versions: Versions { min: VERSION + 1, max: VERSION + 1 }, ..good() },
            libc::EPROTONOSUPPORT,
            "upgrade",
        ),
    ] {
        let why = refused(address, hello);
        assert_eq!(why.errno, errno, "{why:?}");
        assert!(why.reason.contains(reason), "{why:?}");
    }
    let client = cluster.client();
    client.done(mknod("a file"));
}

/// A peer that does not know the secret, or that repeats another node's messages, learns nothing
/// about the cluster.
#[test]
fn peers_without_the_cluster_secret() {
    let cluster = Cluster::start();
    let address = cluster.sites[0].address;
    // Numbers of another cluster: it is the secret that counts.
    for hello in [hello(2, 1), PeerHello { from: 9, to: 3, volume: [8; 16], ..hello(2, 1) }] {
        let mut stream = TcpStream::connect(address).unwrap();
        introduce(&mut stream, &hello, PeerSecret([8; 16]), &[]).unwrap();
        let why = refusal(stream).unwrap();
        assert_eq!(
            (why.errno, why.reason.contains("another cluster")),
            (libc::EACCES, true),
            "{why:?}"
        );
    }
    // Messages that a node has sent on another connection, to the byte.
    let proof = ToServer::PeerProof([6; 32]);
    let received =
        [ToServer::PeerHello(hello(2, 1)), proof.clone(), ToServer::Ping { oldest_open_object: 0 }];
    let mut stream = say(address, &received);
    let mut frames = Frames::default();
    let read = stream.read(frames.space()).unwrap();
    frames.filled(read);
    let first = decode_to_client(frames.next_frame().unwrap().unwrap()).unwrap();
    assert!(matches!(first, ToClient::PeerChallenge(_)));
    let again = match frames.next_frame().unwrap().map(|frame| decode_to_client(frame).unwrap()) {
        Some(ToClient::Refused(refused)) => refused,
        None => refusal(stream).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(again.errno, libc::EACCES);
    // Before the proof no other message is taken, and a proof by itself is not enough.
    for messages in [
        vec![ToServer::PeerHello(hello(2, 1)), ToServer::Peer(b"me".as_slice().into())],
        vec![proof],
    ] {
        let mut stream = say(address, &messages);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("does not speak the KestrelFS protocol"), "{text}");
    }
}

/// Both other nodes have been let in by node 1.
fn peers_welcomed(cluster: &Cluster, welcomed: u64) {
    let server = &cluster.sites[0].running().server;
    eventually("the others are known", || server.stats(0).totals.peers_welcomed >= welcomed);
}

fn is_refused(cluster: &Cluster, hello: PeerHello, errno: i32, reason: &str) {
    let why = refused(cluster.sites[0].address, hello);
    assert_eq!(why.errno, errno, "{why:?}");
    assert!(why.reason.contains(reason), "{why:?}");
}

/// The handshake refuses a directory that was made anew, an old copy and a second process.
#[test]
fn new_old_and_duplicate_node_directories() {
    let mut cluster = Cluster::start();
    peers_welcomed(&cluster, 2);
    let anew = || PeerHello { node_uuid: 7, epoch: 9, ..hello(2, 1) };
    let twice = || PeerHello { start: 77, ..hello(2, 1) };
    is_refused(&cluster, anew(), REFUSED_NODE_UUID, "its directory was made anew");
    is_refused(&cluster, twice(), REFUSED_TWICE, "two processes serve node 2");
    let before = || PeerHello { epoch: 0, ..hello(2, 1) };
    is_refused(&cluster, before(), REFUSED_OLD, "(start 0, node 1 has seen start 1)");
    // The node that refuses is started again, and still has the record.
    cluster.sites[0].kill();
    cluster.sites[0].run();
    is_refused(&cluster, anew(), REFUSED_NODE_UUID, "its directory was made anew");
    is_refused(&cluster, twice(), REFUSED_TWICE, "two processes serve node 2");
    is_refused(&cluster, before(), REFUSED_OLD, "an old copy");
    // The same directory started again is let in, and its start before that no more.
    peers_welcomed(&cluster, 2);
    cluster.sites[1].kill();
    cluster.sites[1].run();
    peers_welcomed(&cluster, 3);
    is_refused(&cluster, hello(2, 1), REFUSED_OLD, "(start 1, node 1 has seen start 2)");
    let client = cluster.client();
    client.done(Op::MkDir(at("dir"), 0o755));
    client.done(mknod("dir/file"));
    for site in &cluster.sites {
        assert_eq!(site.running().peers.expelled(), None);
    }
}

/// A node with a copy that was started later learns that it must not go on.
#[test]
fn node_with_a_copy_started_later() {
    let cluster = Cluster::start();
    peers_welcomed(&cluster, 2);
    assert_eq!(cluster.sites[1].running().peers.expelled(), None);
    let address = cluster.sites[0].address;
    let _copy = come(address, &PeerHello { epoch: 2, start: 77, ..hello(2, 1) }, &[]).unwrap();
    let peers = &cluster.sites[1].running().peers;
    eventually("it is told", || peers.expelled().is_some());
    let why = peers.expelled().unwrap();
    assert!(why.contains("node 1") && why.contains("old copy"), "{why}");
    assert_eq!(cluster.sites[2].running().peers.expelled(), None);
}

/// A newer connection of a node replaces the older one, and bytes that are no envelope end a
/// connection.
#[test]
fn newer_peer_connection_and_bad_envelopes() {
    let cluster = Cluster::start();
    let address = cluster.sites[0].address;
    eventually("nodes are connected", || cluster.sites[1].running().peers.stats()[&1].up);
    let connects = cluster.sites[1].running().peers.stats()[&1].connects;
    let mut stream = come(address, &hello(2, 1), &[]).unwrap();
    // The true node 2 finds its connection closed, and comes back: then this one is closed.
    assert_eq!(refusal(stream.try_clone().unwrap()), None);
    let _gone = stream.write_all(&[0; 16]);
    assert!(cluster.sites[1].running().peers.stats()[&1].connects > connects);
    for envelope in [&b"garbage"[..], &[], &[1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 99]] {
        let messages = [ToServer::Peer(envelope.into())];
        let why = refusal(come(address, &hello(2, 1), &messages).unwrap()).expect("a reason");
        assert_eq!(why.errno, libc::EPROTO, "{why:?}");
    }
    // A node that speaks for another one.
    let (txn, mut bytes) =
        (kestrel_meta::locks::TxnId { node: 3, epoch: 1, number: 1 }, Vec::new());
    Envelope { from: 3, stamp: 1, message: Message::Ask(txn) }.encode(&mut bytes).unwrap();
    let why = refusal(come(address, &hello(2, 1), &[ToServer::Peer(bytes.into())]).unwrap());
    assert!(why.unwrap().reason.contains("for itself"));
    // Nodes have no sessions, and clients no envelopes.
    let why = refusal(come(address, &hello(2, 1), &[ToServer::Bye]).unwrap()).unwrap();
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

/// A node accepts addresses only of nodes of the cluster, and not of itself.
#[test]
fn addresses_of_other_members_only() {
    let cluster = Cluster::start();
    let (address, host) = (cluster.sites[0].address, cluster.sites[0].running().host.clone());
    eventually("nodes are connected", || cluster.sites[1].running().peers.stats()[&1].up);
    let at = |node| NodeAddress { node, epoch: 9, address: "127.0.0.1:1".into() };
    let (message, mut bytes) = (Message::Addresses(vec![at(1), at(77), at(3)]), Vec::new());
    Envelope { from: 2, stamp: 1, message }.encode(&mut bytes).unwrap();
    eventually("it is heard", || {
        // The true node 2 may have come back before.
        let _stream = come(address, &hello(2, 1), &[ToServer::Peer(bytes.clone().into())]);
        host.address_book().of(3) == Some(at(3))
    });
    assert_eq!(host.address_book().of(77), None);
    assert_ne!(host.address_book().of(1), Some(at(1)));
}
