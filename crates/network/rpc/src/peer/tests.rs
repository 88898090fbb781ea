//! Links to a node that a script plays.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use kestrel_types::wire::{
    Frames, PeerChallenge, PeerSecret, Prover, Refused, ToClient, ToServer, Versions,
};

use super::*;
use crate::handler::Outbox;
use crate::server::{ListenerConfig, Serving, serve};
use crate::testing::{Script, encoded, eventually, listen};

fn config(address: SocketAddr) -> PeerConfig {
    let (volume, versions, nonce) = ([1; 16], Versions::OURS, [0; 16]);
    let (from, to, here) = (1, 2, "here:1".into());
    let hello = PeerHello {
        versions,
        volume,
        from,
        to,
        table: 1,
        nonce,
        node_uuid: 4,
        epoch: 5,
        start: 6,
        address: here,
    };
    PeerConfig::new(address.to_string(), hello, SECRET, &ClientTls::default())
}

const SECRET: PeerSecret = PeerSecret([3; 16]);

/// A node that has this secret.
fn challenge(secret: &PeerSecret, hello: &PeerHello) -> Vec<u8> {
    let proof = proof::prove(secret, Prover::Reached, hello, &[7; 16]);
    encoded(&ToClient::PeerChallenge(PeerChallenge { nonce: [7; 16], proof }))
}

/// Notes what comes.
fn noting(listener: TcpListener, received: Arc<Mutex<Vec<ToServer>>>) -> Serving {
    let act = move |message: ToServer, outbox: &Arc<dyn Outbox>| {
        if let ToServer::PeerHello(hello) = &message {
            outbox.send(&challenge(&SECRET, hello));
        }
        received.lock().push(message);
    };
    serve(
        listener,
        Arc::new(Script::new(act)),
        ListenerConfig { threads: 2, ..ListenerConfig::default() },
    )
    .unwrap()
}

fn envelopes(received: &Mutex<Vec<ToServer>>) -> Vec<u64> {
    let number = |message: &ToServer| match message {
        ToServer::Peer(bytes) => Some(u64::from_be_bytes(bytes[..8].try_into().unwrap())),
        _ => None,
    };
    received.lock().iter().filter_map(number).collect()
}

/// Envelopes of many threads arrive once, and many of them leave with one write.
#[test]
fn envelopes_of_many_threads() {
    let received = Arc::default();
    let serving = noting(listen(), Arc::clone(&received));
    let link = PeerLink::start(config(serving.address()), 1).unwrap();
    eventually("the link is up", || link.stats().up);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let link = &link;
            scope.spawn(move || {
                for number in 0..2500u64 {
                    let mut bytes = vec![0; 200];
                    bytes[..8].copy_from_slice(&(thread * 10_000 + number).to_be_bytes());
                    link.send(&bytes).unwrap();
                    if number % 5 == 4 {
                        link.flush();
                    }
                }
            });
        }
    });
    eventually("all have arrived", || envelopes(&received).len() == 10_000);
    let came = envelopes(&received);
    for thread in 0..4 {
        let of: Vec<_> = came.iter().filter(|number| *number / 10_000 == thread).collect();
        assert!(of.is_sorted() && of.len() == 2500, "in the order in which they were sent");
    }
    assert!(matches!(received.lock()[0], ToServer::PeerHello(PeerHello { from: 1, to: 2, .. })));
    let stats = link.stats();
    assert_eq!((stats.envelopes, stats.dropped, stats.connects), (10_000, 0, 1));
    assert!(stats.writes <= 2100, "{stats:?}");
    assert!(link.send(&vec![0; FRAME_BYTES_MAX + 1]).is_err());
}

#[test]
fn each_connection_begins_with_what_there_is_to_say() {
    let received = Arc::default();
    let serving = noting(listen(), Arc::clone(&received));
    let mut config = config(serving.address());
    let times = AtomicU64::new(6);
    config.greeting = Some(Greeting(Arc::new(move || {
        let time = times.fetch_add(1, Ordering::SeqCst) + 1;
        (time != 8).then(|| time.to_be_bytes().to_vec())
    })));
    let link = PeerLink::start(config, 1).unwrap();
    eventually("it was said", || envelopes(&received) == [7]);
    for connects in 2..=3 {
        link.shared.broken("by this test".into());
        link.hurry();
        eventually("it is connected again", || {
            link.stats().connects == connects && link.stats().up
        });
        // Of no use while it is up.
        link.hurry();
    }
    eventually("it was said again, when there was something", || envelopes(&received) == [7, 9]);
    assert_eq!(link.address(), serving.address().to_string());
}

#[test]
fn dropped_envelopes_without_connection() {
    let received = Arc::default();
    let listener = listen();
    let address = listener.local_addr().unwrap();
    let serving = noting(listener, Arc::clone(&received));
    let link = PeerLink::start(config(address), 1).unwrap();
    eventually("the link is up", || link.stats().up);
    drop(serving);
    eventually("the link is down", || !link.stats().up);
    link.send(&7u64.to_be_bytes()).unwrap();
    link.flush();
    assert_eq!(link.stats().dropped, 1);
    let serving = noting(TcpListener::bind(address).unwrap(), Arc::clone(&received));
    eventually("the link is up again", || link.stats().up);
    link.send(&8u64.to_be_bytes()).unwrap();
    link.flush();
    eventually("it carries again", || envelopes(&received) == [8]);
    eventually("a sign of life comes", || {
        received.lock().iter().any(|message| matches!(message, ToServer::Ping { .. }))
    });
    drop(link);
    drop(serving);
}

/// A peer that reads nothing is sent no more than the queue holds.
#[test]
fn queue_bound_for_a_stalled_peer() {
    // Greeted, and not read any more.
    let listener = listen();
    let config = PeerConfig { queue_bytes_max: 1 << 20, ..config(listener.local_addr().unwrap()) };
    let link = PeerLink::start(config, 1).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut frames = Frames::default();
    let hello = loop {
        if let Some(frame) = frames.next_frame().unwrap() {
            break wire::decode_to_server(frame).unwrap();
        }
        let read = stream.read(frames.space()).unwrap();
        frames.filled(read);
    };
    let ToServer::PeerHello(hello) = hello else { panic!("{hello:?}") };
    stream.write_all(&challenge(&SECRET, &hello)).unwrap();
    eventually("the link is up", || link.stats().up);
    for _ in 0..64 {
        link.send(&vec![0; 512 << 10]).unwrap();
        link.flush();
    }
    let stats = link.stats();
    assert!(stats.dropped > 0 && stats.envelopes > 2, "{stats:?}");
}

#[test]
fn backoff_after_refusals() {
    let serving = refusing(libc::EACCES, "another cluster");
    let link = PeerLink::start(config(serving.address()), 1).unwrap();
    eventually("it has tried again", || serving.stats().accepted >= 3);
    std::thread::sleep(Duration::from_secs(1));
    assert!(serving.stats().accepted <= 8, "{:?}", serving.stats());
    assert_eq!(link.stats().connects, 0);
    assert!(link.why_down().unwrap().contains("another cluster"));
    assert_eq!(link.expelled(), None, "that may change");
}

#[test]
fn a_node_that_must_not_go_on_learns_it() {
    let serving = refusing(wire::REFUSED_OLD, "an old copy");
    let link = PeerLink::start(config(serving.address()), 1).unwrap();
    eventually("it is told", || link.expelled().is_some());
    let why = link.expelled().unwrap();
    assert!(why.contains("node 2") && why.contains("an old copy"), "{why}");
}

#[test]
fn peer_without_the_secret() {
    let received = Arc::new(Mutex::new(Vec::new()));
    let noted = received.clone();
    let act = move |message: ToServer, outbox: &Arc<dyn Outbox>| {
        if let ToServer::PeerHello(hello) = &message {
            outbox.send(&challenge(&PeerSecret([4; 16]), hello));
        }
        noted.lock().push(message);
    };
    let serving = serve(listen(), Arc::new(Script::new(act)), ListenerConfig::default()).unwrap();
    let link = PeerLink::start(config(serving.address()), 1).unwrap();
    eventually("it has tried again", || serving.stats().accepted >= 2);
    assert!(link.why_down().unwrap().contains("does not know the secret"));
    assert!(received.lock().iter().all(|message| matches!(message, ToServer::PeerHello(_))));
    assert_eq!(link.stats().connects, 0);
}

/// A node that takes no other.
fn refusing(errno: i32, reason: &'static str) -> Serving {
    let refuse = move |message: ToServer, outbox: &Arc<dyn Outbox>| {
        if let ToServer::PeerHello(_) = message {
            let why = Refused { errno, reason: reason.into() };
            outbox.send(&encoded(&ToClient::Refused(why)));
            outbox.close("refused");
        }
    };
    serve(listen(), Arc::new(Script::new(refuse)), ListenerConfig::default()).unwrap()
}
