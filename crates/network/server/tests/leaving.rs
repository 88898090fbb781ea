//! A node that leaves: what keeps it, and what it and the others say afterwards.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;

use std::io::Read;
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use cluster::{Cluster, eventually, identity, introduce, mknod, say_all};
use kestrel_types::error::FsResult;
use kestrel_types::placement::{PlacementMap, SlotMap};
use kestrel_types::wire::{
    ClientId, Frames, Hello, PeerHello, REFUSED_LEFT, Refused, ToClient, ToServer, Versions,
    decode_to_client,
};

fn change(cluster: &Cluster, next: &PlacementMap) -> FsResult<()> {
    let (send, ended) = mpsc::channel();
    let done = Box::new(move |result| send.send(result).unwrap());
    cluster.sites[0].running().host.change(next.clone(), done);
    ended.recv_timeout(Duration::from_secs(100)).unwrap()
}

/// What the first message of a connection is refused with.
fn refused(address: std::net::SocketAddr, first: ToServer) -> Refused {
    let mut stream = TcpStream::connect(address).unwrap();
    say_all(&mut stream, &[first]);
    refusal(stream)
}

/// What a connection is refused with.
fn refusal(mut stream: TcpStream) -> Refused {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut frames = Frames::default();
    loop {
        if let Some(frame) = frames.next_frame().unwrap() {
            let ToClient::Refused(refused) = decode_to_client(frame).unwrap() else {
                panic!("it is let in")
            };
            return refused;
        }
        let read = stream.read(frames.space()).unwrap();
        assert!(read > 0, "closed without a word");
        frames.filled(read);
    }
}

#[test]
fn sessions_keep_a_node_and_then_it_is_let_in_nowhere() {
    let mut cluster = Cluster::start();
    let client = cluster.client();
    client.done(mknod("file"));
    let present = &cluster.placement;
    let map =
        SlotMap::new(present.map.members().to_vec(), |slot| match present.map.owner(slot).id {
            3 => 1,
            other => other,
        });
    let drained = PlacementMap { version: 6, map: map.unwrap(), ..present.clone() };
    change(&cluster, &drained).unwrap();
    let leaving = drained.with_leaving(3).unwrap();
    change(&cluster, &leaving).unwrap();
    let gone = leaving.without(3, 2).unwrap();
    let why = change(&cluster, &gone).unwrap_err().to_string();
    assert!(why.contains("clients have sessions there: test (0 files open)"), "{why}");
    drop(client);
    let sessions = || cluster.sites[2].running().server.stats(0).sessions;
    eventually("the session has ended", || sessions() == 0);
    change(&cluster, &gone).unwrap();
    eventually("it knows that it has left", || cluster.sites[2].running().host.has_left());
    let hello = Hello {
        versions: Versions::OURS,
        volume: cluster::VOLUME.into(),
        client: ClientId([5; 16]),
        incarnation: 1,
        who: "late".into(),
        established: false,
        token: None,
    };
    let why = refused(cluster.sites[2].address, ToServer::Hello(hello));
    assert_eq!(
        (why.errno, why.reason.contains("node 3 has left")),
        (libc::ESHUTDOWN, true),
        "{why:?}"
    );
    let identity = identity(3, 2);
    let hello = PeerHello {
        versions: Versions::OURS,
        volume: identity.volume,
        from: 3,
        to: 1,
        table: 5,
        nonce: [5; 16],
        node_uuid: identity.node_uuid,
        epoch: 2,
        start: identity.start,
        address: identity.address,
    };
    let mut stream = TcpStream::connect(cluster.sites[0].address).unwrap();
    introduce(&mut stream, &hello, identity.secret, &[]).unwrap();
    let why = refusal(stream);
    assert_eq!(
        (why.errno, why.reason.contains("node 3 has left")),
        (REFUSED_LEFT, true),
        "{why:?}"
    );
    // The others let go of it when it has gone.
    cluster.sites[2].kill();
    for site in &cluster.sites[..2] {
        eventually("it is not connected to any more", || {
            site.running().peers.forget_former(&gone);
            !site.running().peers.stats().contains_key(&3)
        });
        assert!(site.running().peers.stats().len() == 1);
    }
}
