//! Real sockets on loopback, with peers that behave well and badly.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use kestrel_types::ids::ROOT;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Op};
use kestrel_types::wire::{
    Body, Call, FRAME_BYTES_MAX, Frames, HEADER_BYTES, Refused, ToClient, ToServer,
    decode_to_client,
};
use parking_lot::Mutex;

use super::*;
use crate::handler::Outbox;
use crate::testing::{Script, encoded, eventually, hello, obliging, reply, request, sent, serving};

fn call(id: u64) -> ToServer {
    let body = Body::Op(request(Op::GetAttr(InodeRef::by_id(ROOT))));
    ToServer::Call(Call { id, seq: 0, acked: 0, retry: false, body })
}

/// Calls that a handler has not answered.
type Held = Arc<Mutex<Vec<(u64, Arc<dyn Outbox>)>>>;

/// Short limits, for tests that wait for them.
fn impatient() -> ListenerConfig {
    let limit = Duration::from_secs(1);
    ListenerConfig {
        threads: 2,
        greeting: limit,
        silent: limit,
        stalled: limit,
        ..ListenerConfig::default()
    }
}

fn patient() -> ListenerConfig {
    ListenerConfig { threads: 2, ..ListenerConfig::default() }
}

struct Peer {
    stream: TcpStream,
    frames: Frames,
}

impl Peer {
    fn connect(serving: &Serving) -> Self {
        let stream = TcpStream::connect(serving.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, frames: Frames::default() }
    }

    /// Connected, and welcomed.
    fn greeted(serving: &Serving) -> Self {
        let mut peer = Self::connect(serving);
        peer.write(&sent(&hello()));
        assert!(matches!(peer.message(), Some(ToClient::Welcome(_))));
        peer
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next message; none at the end of the stream.
    fn message(&mut self) -> Option<ToClient> {
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                return Some(decode_to_client(frame).unwrap());
            }
            match self.stream.read(self.frames.space()) {
                Ok(0) => {
                    assert_eq!(self.frames.pending(), 0, "half a frame at the end");
                    return None;
                }
                Ok(read) => self.frames.filled(read),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn refused(&mut self) -> Refused {
        match self.message() {
            Some(ToClient::Refused(refused)) => {
                assert_eq!(self.message(), None, "nothing follows a refusal");
                refused
            }
            other => panic!("{other:?} instead of a refusal"),
        }
    }
}

/// Many calls in one write are answered in order, with few writes.
#[test]
fn many_calls_in_one_write() {
    let serving = serving(Script::new(obliging), patient());
    let mut peer = Peer::greeted(&serving);
    let calls: Vec<u8> = (0..5000).flat_map(|id| sent(&call(id))).collect();
    let mut writing = peer.stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || writing.write_all(&calls).unwrap());
    for id in 0..5000 {
        assert_eq!(peer.message(), Some(reply(id, Ok(Answer::Done))));
    }
    writer.join().unwrap();
    let stats = serving.stats();
    assert_eq!((stats.messages, stats.connections), (5001, 1));
    assert!(stats.batches < 1000 && stats.writes < 1000, "{stats:?}");
    serving.stop(Duration::from_secs(10));
}

#[test]
fn frames_may_come_byte_by_byte_if_they_come_in_time() {
    let serving = serving(Script::new(obliging), patient());
    let mut peer = Peer::connect(&serving);
    for byte in sent(&hello()).iter().chain(&sent(&call(3))) {
        peer.write(&[*byte]);
    }
    assert!(matches!(peer.message(), Some(ToClient::Welcome(_))));
    assert_eq!(peer.message(), Some(reply(3, Ok(Answer::Done))));
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    let serving = serving(Script::new(obliging), patient());
    // Another protocol; a message of ours that is no Hello; a Hello that is none.
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    for bytes in [http, sent(&ToServer::Bye), vec![0xff; 64]] {
        let mut peer = Peer::connect(&serving);
        peer.write(&bytes);
        let reason = peer.refused().reason;
        assert!(reason.contains("does not speak"), "{reason}");
    }
    // Versions of the future.
    let mut peer = Peer::connect(&serving);
    let ToServer::Hello(mut future) = hello() else { panic!("a Hello") };
    (future.versions.min, future.versions.max) = (900, 901);
    peer.write(&sent(&ToServer::Hello(future)));
    let reason = peer.refused().reason;
    assert!(reason.contains("900 to 901"), "{reason}");
    // After a Hello: a frame beyond the limit, an unknown kind, a second Hello, a damaged checksum.
    let oversized = ((FRAME_BYTES_MAX + 1) as u32).to_be_bytes();
    let oversized = [&oversized[..], &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut unknown = sent(&call(1));
    unknown[4] = 77;
    let mut damaged = Vec::new();
    kestrel_types::wire::encode_to_server(
        &call(1),
        kestrel_types::wire::Checksum::Crc32c,
        &mut damaged,
    )
    .unwrap();
    damaged[HEADER_BYTES] ^= 1;
    for (bytes, reason) in [
        (oversized, "above the limit"),
        (unknown, "unknown kind"),
        (sent(&hello()), "second Hello"),
        (damaged, "checksum"),
    ] {
        let mut peer = Peer::greeted(&serving);
        // What precedes the nonsense is answered; what follows does not take the reason away.
        peer.write(&[sent(&call(8)), bytes, vec![0; 300_000]].concat());
        assert_eq!(peer.message(), Some(reply(8, Ok(Answer::Done))));
        let refused = peer.refused();
        assert!(refused.reason.contains(reason), "{refused:?} is not about {reason}");
    }
    assert_eq!(serving.stats().malformed, 8);
}

#[test]
fn a_truncated_frame_is_not_received() {
    let handler = Script::new(obliging);
    let closed = handler.closed.clone();
    let serving = serving(handler, patient());
    let mut peer = Peer::greeted(&serving);
    let frame = sent(&call(1));
    peer.write(&frame[..frame.len() - 1]);
    peer.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(peer.message(), None);
    eventually("the connection is closed", || *closed.lock() == 1);
    assert_eq!((serving.stats().messages, serving.stats().connections), (1, 0));
}

#[test]
fn silent_and_trickling_peers_are_cut_off() {
    let handler = Script::new(obliging);
    let closed = handler.closed.clone();
    let serving = serving(handler, impatient());
    let silent = Peer::connect(&serving);
    let greeted = Peer::greeted(&serving);
    // One that always has something to say, but never finishes a frame: a byte every few
    // milliseconds.
    let mut trickle = Peer::greeted(&serving);
    let frame = [&(1_000_000u32).to_be_bytes()[..], &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut bytes = frame.into_iter().chain(std::iter::repeat(0));
    eventually("the trickling peer is cut off", || {
        let byte = bytes.next().unwrap_or(0);
        trickle.stream.write_all(&[byte]).is_err()
    });
    for mut peer in [silent, greeted] {
        assert_eq!(peer.message(), None);
    }
    // The handler is not called for a peer that has sent nothing at all.
    eventually("all are closed", || *closed.lock() == 2);
    assert_eq!(serving.stats().cut_off, 3);
}

/// The server stops reading from a peer that never reads, and then closes the connection.
#[test]
fn peer_that_never_reads() {
    let act = |message: ToServer, outbox: &Arc<dyn Outbox>| match message {
        ToServer::Call(call) => {
            outbox.send(&encoded(&reply(call.id, Ok(Answer::Bytes(vec![7; 60_000].into())))));
        }
        other => obliging(other, outbox),
    };
    let handler = Script::new(act);
    let closed = handler.closed.clone();
    let serving = serving(handler, impatient());
    let mut peer = Peer::greeted(&serving);
    // As many calls as the server takes: it stops reading, our writes block, it closes, they fail.
    let calls: Vec<u8> = (0..100).flat_map(|id| sent(&call(id))).collect();
    let mut sent = 0u64;
    while peer.stream.write_all(&calls).is_ok() {
        sent += 100;
        assert!(sent < 10_000_000, "the server reads without end");
    }
    eventually("the connection is closed", || *closed.lock() == 1);
    let stats = serving.stats();
    assert_eq!(stats.cut_off, 1);
    // One batch beyond the limit, and what the sockets hold.
    let answered = stats.messages * 60_000;
    assert!(answered < 128 << 20, "{answered} bytes of replies");
}

#[test]
fn calls_without_reply_are_limited() {
    let held = Held::default();
    let holding = held.clone();
    let act = move |message: ToServer, outbox: &Arc<dyn Outbox>| match message {
        ToServer::Call(call) => holding.lock().push((call.id, outbox.clone())),
        other => obliging(other, outbox),
    };
    let serving = serving(Script::new(act), ListenerConfig { calls_max: 10, ..patient() });
    let mut peer = Peer::greeted(&serving);
    for id in 0..10 {
        peer.write(&sent(&call(id)));
    }
    eventually("ten are received", || held.lock().len() == 10);
    peer.write(&sent(&ToServer::Ping { oldest_open_object: 1 }));
    // Others are served meanwhile.
    Peer::greeted(&serving);
    assert_eq!(serving.stats().messages, 12, "nothing is read while ten calls are open");
    let (id, outbox) = held.lock().pop().unwrap();
    outbox.send(&encoded(&reply(id, Ok(Answer::Done))));
    assert_eq!(peer.message(), Some(reply(id, Ok(Answer::Done))));
    assert_eq!(peer.message(), Some(ToClient::Pong { table: 0 }));
}

#[test]
fn limits_of_connections() {
    let config = ListenerConfig { connections_max: 2, ..patient() };
    let serving = serving(Script::new(obliging), config);
    let _one = Peer::greeted(&serving);
    let two = Peer::greeted(&serving);
    let refused = Peer::connect(&serving).refused();
    assert_eq!(refused.errno, libc::EUSERS);
    drop(two);
    eventually("there is room again", || serving.stats().connections == 1);
    Peer::greeted(&serving);
}

/// Unidentified connections that send nothing, or a byte, delay no other one, however many there
/// are: for each new one above the share of an address an old one is cut off, and a connection that
/// has sent Hello does not count.
#[test]
fn room_from_slow_unidentified_peers() {
    let config = ListenerConfig { unidentified_share: 2, ..patient() };
    let serving = serving(Script::new(obliging), config);
    let mut greeted = Peer::greeted(&serving);
    let mut slow: Vec<_> = (0..20).map(|_| Peer::connect(&serving)).collect();
    for peer in &mut slow {
        // It may have been cut off before.
        let _ = peer.stream.write_all(&[0]);
    }
    Peer::greeted(&serving);
    eventually("all above the share are cut off", || serving.stats().cut_off >= 18);
    greeted.write(&sent(&ToServer::Ping { oldest_open_object: 0 }));
    assert_eq!(greeted.message(), Some(ToClient::Pong { table: 0 }));
    drop(slow);
    eventually("they are gone", || serving.stats().connections == 1);
}

#[test]
fn what_was_queued_before_a_close_arrives() {
    let act = |message: ToServer, outbox: &Arc<dyn Outbox>| match message {
        ToServer::Call(call) => {
            for _ in 0..1000 {
                outbox.send(&encoded(&reply(call.id, Ok(Answer::Bytes(vec![7; 6000].into())))));
            }
            outbox.close("test");
            outbox.send(&encoded(&ToClient::Pong { table: 0 }));
        }
        other => obliging(other, outbox),
    };
    let serving = serving(Script::new(act), patient());
    let mut peer = Peer::greeted(&serving);
    peer.write(&[sent(&call(1)), sent(&call(2)), vec![0; 100_000]].concat());
    let messages = std::iter::from_fn(|| peer.message()).collect::<Vec<_>>();
    assert_eq!(messages.len(), 1000);
    assert!(messages.iter().all(|message| matches!(message, ToClient::Reply(_))));
    drop(peer);
    eventually("the connection is gone", || serving.stats().connections == 0);
}

/// A stop lets calls under way be answered, and takes no new ones.
#[test]
fn stop_with_calls_under_way() {
    let held = Held::default();
    let holding = held.clone();
    let act = move |message: ToServer, outbox: &Arc<dyn Outbox>| match message {
        ToServer::Call(call) => holding.lock().push((call.id, outbox.clone())),
        other => obliging(other, outbox),
    };
    let handler = Script::new(act);
    let closed = handler.closed.clone();
    let serving = serving(handler, patient());
    let address = serving.address();
    let mut peer = Peer::greeted(&serving);
    let idle = Peer::greeted(&serving);
    peer.write(&sent(&call(1)));
    eventually("the call is received", || held.lock().len() == 1);
    let stopping = std::thread::spawn(move || serving.stop(Duration::from_secs(60)));
    // A connection with nothing open is let go at once.
    let mut idle = idle;
    assert_eq!(idle.message(), None);
    drop(idle);
    peer.write(&sent(&call(2)));
    let (id, outbox) = held.lock().pop().unwrap();
    outbox.send(&encoded(&reply(id, Ok(Answer::Done))));
    assert_eq!(peer.message(), Some(reply(1, Ok(Answer::Done))));
    assert_eq!(peer.message(), None);
    drop(peer);
    stopping.join().unwrap();
    assert_eq!((*closed.lock(), held.lock().len()), (2, 0));
    assert!(TcpStream::connect(address).is_err());
}

/// A stop does not wait for calls that are never answered.
#[test]
fn stop_with_calls_never_answered() {
    let act = |message: ToServer, outbox: &Arc<dyn Outbox>| {
        if !matches!(message, ToServer::Call(_)) {
            obliging(message, outbox);
        }
    };
    let handler = Script::new(act);
    let closed = handler.closed.clone();
    let serving = serving(handler, patient());
    let mut peer = Peer::greeted(&serving);
    peer.write(&sent(&call(1)));
    eventually("the call is received", || serving.stats().messages == 2);
    drop(serving);
    assert_eq!(peer.message(), None);
    assert_eq!(*closed.lock(), 1);
}

/// More connections than the standard library has room for can wait to be accepted, as they do when
/// many come at a moment: the next one need not try again.
#[test]
fn many_wait_to_be_accepted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    widen_queue(&listener).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
    let waiting: Vec<_> = (0..300).map(connect).collect();
    assert_eq!(waiting.len(), 300);
}
