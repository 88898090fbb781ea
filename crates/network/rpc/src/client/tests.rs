//! Real connections on loopback: outages of every kind, and the model of a node behind them.
//!
//! | file | |
//! | --- | --- |
//! | `cluster` | a client with several connections; its completions ask over others |

mod cluster;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::tls::ClientTls;
use kestrel_types::error::FsError;
use kestrel_types::ids::ROOT;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, XattrFlags};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    Answered, LockKind, LockMode, LockSpan, Refused, ReplyTo, ToClient, ToServer, WireError,
};
use serde_json::json;

use super::*;
use crate::handler::{Connection, Handler, Outbox};
use crate::server::{ListenerConfig, Serving, serve};
use crate::session::tests::model::Model;
use crate::testing::{
    Script, encoded, errno, eventually, listen, obliging, reply, request, serving, welcome,
};

/// Notes the notifications that it gets.
#[derive(Default)]
struct Notes {
    outages: AtomicUsize,
    restored: AtomicUsize,
    reclaimed: Mutex<Vec<SessionState>>,
    /// A node that is not to be accepted.
    stranger: AtomicBool,
}

impl ReclaimSource for Notes {
    fn welcomed(&self, _welcome: &Welcome) -> Result<(), String> {
        if self.stranger.load(Ordering::SeqCst) {
            Err("it is another volume".into())
        } else {
            Ok(())
        }
    }

    fn reclaim(&self, _lost: SessionState) -> Vec<Reclaim> {
        Vec::new()
    }

    fn reclaimed(&self, replies: Vec<ReclaimReply>, lost: SessionState) {
        assert!(replies.iter().all(Result::is_ok) && !replies.is_empty());
        self.reclaimed.lock().push(lost);
    }

    fn oldest_open_object(&self) -> u64 {
        u64::MAX
    }

    fn outage(&self, _why: &str) {
        self.outages.fetch_add(1, Ordering::SeqCst);
    }

    fn restored(&self, _after: Duration) {
        self.restored.fetch_add(1, Ordering::SeqCst);
    }
}

fn config(addresses: &[SocketAddr], deadline: Duration) -> RemoteConfig {
    RemoteConfig {
        tls: ClientTls::default(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        volume: "v".into(),
        who: "test".into(),
        deadline,
        token: None,
        session: None,
    }
}

const LONG: Duration = Duration::from_secs(60);

fn connect(serving: &Serving) -> (Arc<Remote>, Arc<Notes>) {
    let notes = Arc::new(Notes::default());
    let (remote, _) = Remote::connect(config(&[serving.address()], LONG), notes.clone()).unwrap();
    (remote, notes)
}

fn stat() -> Request {
    request(Op::GetAttr(InodeRef::by_id(ROOT)))
}

/// The model of a node, served.
#[derive(Clone, Default)]
struct Node(Arc<Mutex<Model>>);

struct NodeConnection {
    node: Node,
    outbox: Arc<dyn Outbox>,
    incarnation: u64,
}

impl Handler for Node {
    fn connect(
        &self,
        _peer: SocketAddr,
        _security: Security,
        outbox: Arc<dyn Outbox>,
    ) -> Box<dyn Connection> {
        Box::new(NodeConnection { node: self.clone(), outbox, incarnation: 0 })
    }
}

impl Connection for NodeConnection {
    fn receive(&mut self, batch: &mut Vec<ToServer>) {
        let mut model = self.node.0.lock();
        let mut replies = std::collections::VecDeque::new();
        for message in batch.drain(..) {
            if let ToServer::Hello(hello) = &message {
                self.incarnation = hello.incarnation;
            } else if model.incarnation() != self.incarnation {
                return;
            }
            model.receive(message, &mut replies);
        }
        let frames: Vec<u8> = replies.iter().flat_map(encoded).collect();
        self.outbox.send(&frames);
    }

    fn refuse(&mut self, error: &WireError) {
        panic!("the client sent {error}");
    }

    fn closed(self: Box<Self>) {
        let mut model = self.node.0.lock();
        if model.incarnation() == self.incarnation {
            model.disconnected();
        }
    }
}

/// Calls that completions make are on their way before all completions have run.
#[test]
fn calls_sent_between_completions() {
    let (seen, held) = (Arc::new(AtomicUsize::new(0)), Mutex::new(Vec::new()));
    let asked = seen.clone();
    let serving = serving(
        Script::new(move |message, outbox: &Arc<dyn Outbox>| {
            let ToServer::Call(call) = message else { return obliging(message, outbox) };
            let mut held = held.lock();
            held.extend(encoded(&reply(call.id, Ok(Answer::Done))));
            if asked.fetch_add(1, Ordering::SeqCst) + 1 >= 2 * WRITE_EVERY {
                outbox.send(&std::mem::take(&mut *held));
            }
        }),
        ListenerConfig::default(),
    );
    let (remote, _) = connect(&serving);
    let (tell, done) = std::sync::mpsc::channel();
    let each = |number: usize| {
        let (remote, seen, tell) = (remote.clone(), seen.clone(), tell.clone());
        let done = Box::new(move |_| {
            remote.submit(stat(), Box::new(move |_| tell.send(()).unwrap()));
            if number + 1 == 2 * WRITE_EVERY {
                eventually("more was asked", || seen.load(Ordering::SeqCst) >= 3 * WRITE_EVERY);
            }
        });
        (stat(), done as Done)
    };
    remote.submit_many((0..2 * WRITE_EVERY).map(each).collect());
    (0..2 * WRITE_EVERY).for_each(|_| done.recv().unwrap());
}

/// Calls of many threads are executed once, through restarts of the node.
#[test]
fn calls_of_threads_over_node_restarts() {
    const THREADS: usize = 8;
    const CALLS: usize = 400;
    let node = Node::default();
    // The port stays ours while no server listens.
    let listener = listen();
    let start = || {
        serve(listener.try_clone().unwrap(), Arc::new(node.clone()), ListenerConfig::default())
            .unwrap()
    };
    let mut serving = start();
    let serving_now = std::cell::Cell::new(None);
    let (remote, notes) = connect(&serving);
    let done = AtomicUsize::new(0);
    let lost = [
        SessionState::Restarted,
        SessionState::Expired,
        SessionState::Known,
        SessionState::Restarted,
    ];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (remote, done) = (&remote, &done);
            scope.spawn(move || {
                for number in 0..CALLS {
                    let name = Name::new(format!("{thread}.{number}").as_bytes()).unwrap();
                    let made = remote.call(request(Op::MkDir(PathRef::new(ROOT, name), 0o755)));
                    assert_eq!(made, Ok(Answer::Done));
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let mut losses = 0;
        for (round, how) in lost.into_iter().enumerate() {
            eventually("some calls are done", || {
                done.load(Ordering::SeqCst) >= (round + 1) * THREADS * CALLS / 6
            });
            // The client has found every loss so far, or it would find two as one.
            eventually("what was lost is reclaimed", || notes.reclaimed.lock().len() == losses);
            drop(serving);
            if how != SessionState::Known {
                node.0.lock().lose(how);
                losses += 1;
            }
            serving = start();
        }
        eventually("what was lost is reclaimed", || notes.reclaimed.lock().len() == losses);
        // It has to outlive the threads.
        serving_now.set(Some(serving));
    });
    let model = node.0.lock();
    assert_eq!(model.made.len(), THREADS * CALLS);
    assert!(model.made.values().all(|times| *times == 1));
    drop(model);
    let reclaimed = notes.reclaimed.lock().clone();
    assert_eq!(
        reclaimed,
        [SessionState::Restarted, SessionState::Expired, SessionState::Restarted]
    );
    let stats = remote.stats();
    assert!(
        stats.reconnects >= 4 && stats.sent == (THREADS * CALLS) as u64 && stats.failed == 0,
        "{stats:?}"
    );
    remote.close();
}

#[test]
fn a_half_open_connection_is_left_for_another_address() {
    // The first node welcomes and then never answers again: its machine is gone, and no packet
    // tells the client.
    let hole = listen();
    let hole_address = hole.local_addr().unwrap();
    let swallowed = std::thread::spawn(move || {
        let (mut stream, _) = hole.accept().unwrap();
        stream.write_all(&encoded(&welcome(SessionState::New, 600))).unwrap();
        let mut bytes = [0; 4096];
        while stream.read(&mut bytes).is_ok_and(|read| read > 0) {}
    });
    let node = serving(Script::new(obliging), ListenerConfig::default());
    let notes = Arc::new(Notes::default());
    let addresses = [hole_address, node.address()];
    let (remote, _) = Remote::connect(config(&addresses, LONG), notes).unwrap();
    assert_eq!(remote.call(stat()), Ok(Answer::Done));
    assert_eq!((remote.stats().reconnects, remote.stats().retries), (1, 1));
    swallowed.join().unwrap();
    remote.close();
}

#[test]
fn redirect_during_a_dial() {
    // At first no process listens and no packet comes back; then a server accepts and is silent;
    // then the node serves.
    let (mute, node) = (listen(), serving(Script::new(obliging), ListenerConfig::default()));
    let nowhere = SocketAddr::from(([192, 0, 2, 1], 9));
    let remote = Remote::begin(config(&[nowhere], LONG), Arc::new(Notes::default())).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    remote.redirect(&mute.local_addr().unwrap().to_string());
    drop(mute.accept().unwrap());
    let (_silent, _) = mute.accept().unwrap();
    assert!(remote.missing().is_some());
    remote.redirect(&node.address().to_string());
    assert_eq!(remote.call(stat()), Ok(Answer::Done));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!((remote.address(), remote.missing()), (node.address().to_string(), None));
    // A second redirect to the same address disturbs no call.
    remote.redirect(&node.address().to_string());
    assert_eq!((remote.call(stat()), remote.stats().reconnects), (Ok(Answer::Done), 0));
    remote.close();
}

/// A node that falls silent is reported as missing before its connection is closed.
#[test]
fn silent_node_noticed_before_disconnect() {
    let mute = Arc::new(AtomicBool::new(false));
    let hearing = mute.clone();
    let act = move |message: ToServer, outbox: &Arc<dyn Outbox>| {
        if !hearing.load(Ordering::SeqCst) {
            obliging(message, outbox);
        }
    };
    let (dead, node) = (
        serving(Script::new(act), ListenerConfig::default()),
        serving(Script::new(obliging), ListenerConfig::default()),
    );
    let (remote, _) = connect(&dead);
    mute.store(true, Ordering::SeqCst);
    assert_eq!(remote.missing(), None);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| remote.call(stat()));
        eventually("it is missed", || remote.missing().is_some());
        assert!(begun.elapsed() < Duration::from_secs(10), "long before two thirds of the lease");
        assert!(remote.is_up() && remote.stats().reconnects == 0);
        remote.redirect(&node.address().to_string());
        assert_eq!(asked.join().unwrap(), Ok(Answer::Done));
    });
    assert_eq!((remote.missing(), remote.stats().reconnects), (None, 1));
    remote.close();
}

/// A call ends at its deadline, and the connection goes on.
#[test]
fn call_deadline() {
    let mute = Arc::new(AtomicBool::new(true));
    let hearing = mute.clone();
    let act = move |message: ToServer, outbox: &Arc<dyn Outbox>| {
        if !(hearing.load(Ordering::SeqCst) && matches!(message, ToServer::Call(_))) {
            obliging(message, outbox);
        }
    };
    let node = serving(Script::new(act), ListenerConfig::default());
    let notes = Arc::new(Notes::default());
    let (remote, _) =
        Remote::connect(config(&[node.address()], Duration::from_secs(1)), notes.clone()).unwrap();
    let outcome = remote.call(stat());
    assert_eq!(errno(&outcome), Some(libc::EIO));
    assert!(format!("{outcome:?}").contains("whether it was done is unknown"), "{outcome:?}");
    mute.store(false, Ordering::SeqCst);
    assert_eq!(remote.call(stat()), Ok(Answer::Done));
    // Without a node: an error at the deadline, and service when it is back.
    let listener = TcpListener::bind(node.address());
    assert!(listener.is_err());
    drop(node);
    let outcome = remote.call(stat());
    assert!(format!("{outcome:?}").contains("has not answered for"), "{outcome:?}");
    assert_eq!(notes.outages.load(Ordering::SeqCst), 1);
    assert!(remote.stats().outage.is_some());
    remote.close();
    assert_eq!(errno(&remote.call(stat())), Some(libc::ESHUTDOWN));
}

/// The holder of the connection is notified once of an outage, and about its end.
#[test]
fn outage_events() {
    let listener = listen();
    let start = |listener: &TcpListener| {
        serve(
            listener.try_clone().unwrap(),
            Arc::new(Script::new(obliging)),
            ListenerConfig::default(),
        )
        .unwrap()
    };
    let node = start(&listener);
    let (remote, notes) = connect(&node);
    assert_eq!(remote.call(stat()), Ok(Answer::Done));
    drop(node);
    // No process listens: every attempt fails.
    let address = listener.local_addr().unwrap();
    drop(listener);
    eventually("the outage is told", || notes.outages.load(Ordering::SeqCst) == 1);
    let Ok(listener) = TcpListener::bind(address) else {
        // Another process has taken the port: nothing more to test here.
        return remote.close();
    };
    let node = start(&listener);
    assert_eq!(remote.call(stat()), Ok(Answer::Done));
    eventually("the end is told", || notes.restored.load(Ordering::SeqCst) == 1);
    assert_eq!(notes.outages.load(Ordering::SeqCst), 1);
    remote.close();
    drop(node);
}

#[test]
fn reasons_of_failed_connects() {
    let notes = || Arc::new(Notes::default());
    // No process listens on a port that this test had a moment ago.
    let address = listen().local_addr().unwrap();
    let error =
        Remote::connect(config(&[address], Duration::from_millis(300)), notes()).err().unwrap();
    assert!(error.to_string().contains("kestrel serve"), "{error}");
    // Nodes that refuse for now, each in its words.
    let refusing = |reason: &'static str| {
        serving(
            Script::new(move |message, outbox: &Arc<dyn Outbox>| {
                if let ToServer::Hello(_) = message {
                    let refused = Refused { errno: libc::EAGAIN, reason: reason.into() };
                    outbox.send(&encoded(&ToClient::Refused(refused)));
                    outbox.close("refused");
                }
            }),
            ListenerConfig::default(),
        )
    };
    let (one, two) = (refusing("node 1 has no lease"), refusing("node 2 has none either"));
    let both = [one.address(), two.address()];
    let error =
        Remote::connect(config(&both, Duration::from_secs(2)), notes()).err().unwrap().to_string();
    let received = [(both[0], "node 1 has no lease"), (both[1], "node 2 has none either")];
    assert!(
        received.iter().all(|(at, why)| error.contains(&format!("{at}: refused: {why}"))),
        "{error}"
    );
    // A node that refuses is not dialed again and again until the deadline.
    let act = |message: ToServer, outbox: &Arc<dyn Outbox>| {
        if let ToServer::Hello(_) = message {
            let refused =
                Refused { errno: libc::ENOENT, reason: "there is no volume v here".into() };
            outbox.send(&encoded(&ToClient::Refused(refused)));
            outbox.close("refused");
        }
    };
    let node = serving(Script::new(act), ListenerConfig::default());
    let error = Remote::connect(config(&[node.address()], LONG), notes()).err().unwrap();
    assert!(error.to_string().contains("there is no volume v here"), "{error}");
    // Nor is one that the holder does not want.
    let node = serving(Script::new(obliging), ListenerConfig::default());
    let picky = notes();
    picky.stranger.store(true, Ordering::SeqCst);
    let error = Remote::connect(config(&[node.address()], LONG), picky).err().unwrap();
    assert!(error.to_string().contains("another volume"), "{error}");
    // Nor what speaks another protocol.
    let stranger = listen();
    let address = stranger.local_addr().unwrap();
    let chatter = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = stranger.accept() {
            if stream.write_all(b"220 mail.example.org ESMTP\r\n").is_err() {
                break;
            }
            let mut bytes = [0; 256];
            if stream.read(&mut bytes).unwrap_or(0) == 0 {
                break;
            }
        }
    });
    let error =
        Remote::connect(config(&[address], Duration::from_millis(300)), notes()).err().unwrap();
    assert!(error.to_string().contains("the metadata server sent"), "{error}");
    drop(std::net::TcpStream::connect(address));
    chatter.join().unwrap();
    assert!(Remote::connect(config(&[], LONG), notes()).is_err());
}

/// Completions may make further calls, and these leave with few writes.
#[test]
fn calls_made_by_completions() {
    let node = serving(Script::new(obliging), ListenerConfig::default());
    let (remote, _) = connect(&node);
    struct Run {
        remote: Arc<Remote>,
        left: AtomicUsize,
        ended: AtomicUsize,
    }
    fn next(run: &Arc<Run>) {
        let then = run.clone();
        run.remote.submit(
            stat(),
            Box::new(move |reply| {
                assert_eq!(reply, Ok(Answer::Done));
                then.ended.fetch_add(1, Ordering::SeqCst);
                if then.left.fetch_sub(1, Ordering::SeqCst) > 256 {
                    next(&then);
                }
            }),
        );
    }
    let run = Arc::new(Run {
        remote: remote.clone(),
        left: AtomicUsize::new(10_000),
        ended: AtomicUsize::new(0),
    });
    (0..256).for_each(|_| next(&run));
    eventually("all have ended", || run.ended.load(Ordering::SeqCst) == 10_000);
    let stats = remote.stats();
    assert_eq!((stats.calls, stats.in_flight, stats.waiting), (10_000, 0, 0));
    assert!(stats.writes < 5000, "{stats:?}");
    remote.close();
}

/// Large calls and large answers do not block each other. Much more than sockets hold is under way
/// in both directions: neither side may wait for the other to read first.
#[test]
fn large_calls_beside_large_answers() {
    const BYTES: usize = 48 * 1024;
    let act = |message: ToServer, outbox: &Arc<dyn Outbox>| match message {
        ToServer::Call(call) => {
            outbox.send(&encoded(&reply(call.id, Ok(Answer::Bytes(vec![9; BYTES].into())))))
        }
        other => obliging(other, outbox),
    };
    let node = serving(
        Script::new(act),
        ListenerConfig { unsent_bytes_max: 1 << 20, ..ListenerConfig::default() },
    );
    let (remote, _) = connect(&node);
    let ended = Arc::new(AtomicUsize::new(0));
    let ask = |count: usize| {
        let op = Op::SetXattr(
            InodeRef::by_id(9),
            b"user.x".as_slice().into(),
            vec![1; BYTES].into(),
            XattrFlags::default(),
        );
        let requests = (0..count).map(|_| {
            let ended = ended.clone();
            let done: Done = Box::new(move |reply| {
                assert!(matches!(reply, Ok(Answer::Bytes(bytes)) if bytes.len() == BYTES));
                ended.fetch_add(1, Ordering::SeqCst);
            });
            (request(op.clone()), done)
        });
        remote.submit_many(requests.collect());
    };
    // From this thread, and from the one that reads.
    ask(300);
    let (again, more) = (remote.clone(), ended.clone());
    remote.submit(
        stat(),
        Box::new(move |_| {
            for _ in 0..300 {
                let more = more.clone();
                let op = Op::SetXattr(
                    InodeRef::by_id(9),
                    b"user.x".as_slice().into(),
                    vec![1; BYTES].into(),
                    XattrFlags::default(),
                );
                again.submit(
                    request(op),
                    Box::new(move |_| {
                        more.fetch_add(1, Ordering::SeqCst);
                    }),
                );
            }
        }),
    );
    ask(300);
    eventually("all are answered", || ended.load(Ordering::SeqCst) == 900);
    remote.close();
}

/// Questions of the control protocol get events, and an answer or an error.
#[test]
fn control_questions() {
    let act = |message: ToServer, outbox: &Arc<dyn Outbox>| match message {
        ToServer::Call(call) => {
            let Body::Admin(question) = &call.body else {
                return obliging(ToServer::Call(call), outbox);
            };
            if question.starts_with(b"\"go\"") {
                return outbox.close("gone");
            }
            for n in 0..3 {
                let json = n.to_string().into_bytes().into();
                outbox.send(&encoded(&ToClient::Event { id: call.id, json }));
            }
            let answered = match question.starts_with(b"\"fail\"") {
                true => Answered::Admin(Err(FsError::new(libc::EPERM, "not you"))),
                false => Answered::Admin(Ok(question.clone())),
            };
            outbox.send(&encoded(&ToClient::Reply(ReplyTo { id: call.id, table: 1, answered })));
        }
        other => obliging(other, outbox),
    };
    let node = serving(Script::new(act), ListenerConfig::default());
    let (remote, _) = connect(&node);
    let mut events = Vec::new();
    let answer =
        remote.admin(&json!({"ask": "status"}), Some(LONG), &mut |event| events.push(event));
    assert_eq!(
        (answer, events),
        (Ok(json!({"ask": "status"})), vec![json!(0), json!(1), json!(2)])
    );
    assert_eq!(remote.admin(&json!("fail"), None, &mut |_| {}).unwrap_err().to_string(), "not you");
    let error = remote.admin(&json!("go"), None, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("connection to the metadata server was lost"), "{error}");
    assert_eq!(remote.call(stat()), Ok(Answer::Done));
    remote.close();
}

/// A waiting lock can be cancelled, and Bye ends the session.
#[test]
fn cancelled_lock_and_bye() {
    let received: Arc<Mutex<Vec<ToServer>>> = Arc::default();
    let noting = received.clone();
    let act = move |message: ToServer, outbox: &Arc<dyn Outbox>| {
        noting.lock().push(message.clone());
        match message {
            ToServer::Call(call) if matches!(call.body, Body::Lock(_)) => {}
            ToServer::Cancel { id } => {
                let answered = Answered::Lock(Err(FsError::new(libc::EINTR, "cancelled")));
                outbox.send(&encoded(&ToClient::Reply(ReplyTo { id, table: 1, answered })));
            }
            other => obliging(other, outbox),
        }
    };
    let node = serving(Script::new(act), ListenerConfig::default());
    let (remote, _) = connect(&node);
    let lock = LockSpan {
        ino: 5,
        owner: 1,
        pid: 1,
        kind: LockKind::Posix,
        mode: LockMode::Write,
        start: 0,
        end: 9,
    };
    let (send, receive) = std::sync::mpsc::channel();
    let id = remote.lock(
        LockRequest::Set { lock, wait: true },
        Box::new(move |reply| {
            let _ = send.send(reply);
        }),
    );
    remote.cancel(id);
    assert_eq!(receive.recv().unwrap().unwrap_err().errno, libc::EINTR);
    remote.close();
    eventually("Bye has come", || received.lock().last() == Some(&ToServer::Bye));
    assert_eq!(errno(&remote.call(stat())), Some(libc::ESHUTDOWN));
}

#[test]
fn ids_of_clients_differ() {
    let ids: BTreeSet<_> = (0..100).map(|_| dial::random()).collect();
    assert_eq!(ids.len(), 100);
}
