//! The physical limit of what a client and a metadata node on this machine can say to each other:
//! the frames of a stat, answered by a server that does nothing.
//!
//! - `raw`: both sides by hand, blocking sockets, prepared bytes, no decoding: what the sockets
//!   alone can do;
//! - `link`: [`kestrel_rpc::client::Remote`] and [`kestrel_rpc::server`], everything but a node:
//!   encoding, numbering, decoding, completions;
//! - `threads`: the same, with blocking callers instead of callbacks.
//!
//! `cargo run --release -p kestrel-rpc --example echo -- [SECONDS]` prints one JSON object a line:
//! way, requests in flight, requests per second, CPU microseconds per request (both sides
//! together), writes per request of both sides.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_rpc::client::{ReclaimSource, Remote, RemoteConfig};
use kestrel_rpc::handler::{Connection, Handler, Outbox};
use kestrel_rpc::server::{self, ListenerConfig};
use kestrel_rpc::tls::ClientTls;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::request::{Answer, Creds, Op, Request};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    self, Answered, Body, Call, Checksum, Reclaim, ReclaimReply, ReplyTo, SessionState, ToClient,
    ToServer, Welcome, WireError,
};

type Failure = Box<dyn std::error::Error>;

/// Requests in flight, and blocking threads.
const DEPTHS: [usize; 4] = [1, 16, 256, 1024];

fn main() -> Result<(), Failure> {
    let seconds = std::env::args().nth(1).map_or(Ok(2.0), |text| text.parse::<f64>())?;
    let time = Duration::from_secs_f64(seconds);
    for depth in DEPTHS {
        raw(depth, time)?;
    }
    for depth in DEPTHS {
        link(depth, time)?;
    }
    for threads in [1, 16, 64] {
        blocking(threads, time)?;
    }
    Ok(())
}

fn request() -> Result<Request, Failure> {
    let seen = Some((42, Name::new(b"000001.jpg")?));
    Ok(Request { creds: Creds::root(), op: Op::GetAttr(InodeRef { ino: 4711, seen }) })
}

fn answer() -> Answer {
    Answer::Inode(Box::new(Inode::new(4711, Kind::File, 1_700_000_000_000_000_000, 7)))
}

/// What one measurement costs.
struct Meter {
    begun: Instant,
    cpu: f64,
}

impl Meter {
    fn start() -> Self {
        Self { begun: Instant::now(), cpu: cpu_seconds() }
    }

    fn report(&self, way: &str, depth: usize, requests: u64, writes: u64) {
        let (seconds, cpu, requests) =
            (self.begun.elapsed().as_secs_f64(), cpu_seconds() - self.cpu, requests as f64);
        let line = serde_json::json!({
            "way": way,
            "in_flight": depth,
            "requests_per_s": (requests / seconds).round(),
            "cpu_us_per_request": (cpu * 1e6 / requests * 1000.0).round() / 1000.0,
            "writes_per_request": (writes as f64 / requests * 1000.0).round() / 1000.0,
        });
        println!("{line}");
    }
}

/// User and system time of this process, seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = |index: usize| {
        stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(index)?.parse::<f64>().ok())
    };
    (ticks(12).unwrap_or(0.0) + ticks(13).unwrap_or(0.0)) / 100.0
}

/// Both sides by hand.
fn raw(depth: usize, time: Duration) -> Result<(), Failure> {
    let mut encoded = Vec::new();
    let call = Call { id: 1 << 17, seq: 0, acked: 0, retry: false, body: Body::Op(request()?) };
    wire::encode_call(&call, Checksum::Off, &mut encoded)?;
    let mut answered = Vec::new();
    let reply = ReplyTo { id: 1 << 17, table: 0, answered: Answered::Op(Ok(answer())) };
    wire::encode_reply_to(&reply, Checksum::Off, &mut answered);

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (request_len, replies) = (encoded.len(), answered.repeat(4096));
    let reply_len = answered.len();
    let server = std::thread::spawn(move || -> std::io::Result<u64> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let (mut buffer, mut held, mut writes) = (vec![0; request_len * 4096], 0, 0);
        loop {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                return Ok(writes);
            }
            held += read;
            let whole = held / request_len;
            held %= request_len;
            stream.write_all(&replies[..whole * reply_len])?;
            writes += 1;
        }
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let requests = encoded.repeat(depth.max(4096));
    let (mut buffer, mut held, mut done, mut writes) = (vec![0; reply_len * 4096], 0, 0u64, 1u64);
    let meter = Meter::start();
    stream.write_all(&requests[..depth * request_len])?;
    while meter.begun.elapsed() < time {
        held += stream.read(&mut buffer)?;
        let whole = held / reply_len;
        held %= reply_len;
        stream.write_all(&requests[..whole * request_len])?;
        done += whole as u64;
        writes += 1;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    while stream.read(&mut buffer)? > 0 {}
    let writes = writes + server.join().map_err(|_| "the server panicked")??;
    meter.report("raw", depth, done, writes);
    Ok(())
}

/// Answers everything alike.
struct Echo;

struct EchoConnection {
    outbox: Arc<dyn Outbox>,
    replies: Vec<u8>,
}

impl Handler for Echo {
    fn connect(
        &self,
        _peer: SocketAddr,
        _security: Security,
        outbox: Arc<dyn Outbox>,
    ) -> Box<dyn Connection> {
        Box::new(EchoConnection { outbox, replies: Vec::new() })
    }
}

impl Connection for EchoConnection {
    fn receive(&mut self, batch: &mut Vec<ToServer>) {
        for message in batch.drain(..) {
            let reply = match message {
                ToServer::Hello(_) => ToClient::Welcome(Welcome {
                    version: wire::VERSION,
                    node: 1,
                    epoch: 1,
                    descriptor: Box::default(),
                    session: SessionState::New,
                    lease_ms: 30_000,
                    table: 1,
                    root: 1,
                }),
                ToServer::Call(call) => {
                    let reply =
                        ReplyTo { id: call.id, table: 1, answered: Answered::Op(Ok(answer())) };
                    wire::encode_reply_to(&reply, Checksum::Off, &mut self.replies);
                    continue;
                }
                ToServer::Ping { .. } => ToClient::Pong { table: 0 },
                _ => continue,
            };
            // These are small.
            let _ = wire::encode_to_client(&reply, Checksum::Off, &mut self.replies);
        }
        self.outbox.send(&self.replies);
        self.replies.clear();
    }

    fn refuse(&mut self, _error: &WireError) {}

    fn closed(self: Box<Self>) {}
}

struct Nothing;

impl ReclaimSource for Nothing {
    fn welcomed(&self, _welcome: &Welcome) -> Result<(), String> {
        Ok(())
    }

    fn reclaim(&self, _lost: SessionState) -> Vec<Reclaim> {
        Vec::new()
    }

    fn reclaimed(&self, _replies: Vec<ReclaimReply>, _lost: SessionState) {}

    fn oldest_open_object(&self) -> u64 {
        u64::MAX
    }

    fn outage(&self, why: &str) {
        eprintln!("outage: {why}");
    }

    fn restored(&self, _after: Duration) {}
}

fn connected() -> Result<(server::Serving, Arc<Remote>), Failure> {
    let serving = server::serve(
        TcpListener::bind("127.0.0.1:0")?,
        Arc::new(Echo),
        ListenerConfig::default(),
    )?;
    let config = RemoteConfig {
        tls: ClientTls::default(),
        addresses: vec![serving.address().to_string()],
        volume: "echo".into(),
        who: "echo".into(),
        deadline: Duration::from_secs(10),
        token: None,
        session: None,
    };
    let (remote, _) = Remote::connect(config, Arc::new(Nothing))?;
    Ok((serving, remote))
}

/// What the callbacks of one measurement share.
struct Run {
    remote: Arc<Remote>,
    request: Request,
    done: AtomicU64,
    running: AtomicU64,
    over: AtomicBool,
}

/// One request after the other, each submitted by the completion of the one before.
fn next(run: &Arc<Run>) {
    let then = run.clone();
    run.remote.submit(
        run.request.clone(),
        Box::new(move |_| {
            then.done.fetch_add(1, Ordering::Relaxed);
            if then.over.load(Ordering::Relaxed) {
                then.running.fetch_sub(1, Ordering::SeqCst);
            } else {
                next(&then);
            }
        }),
    );
}

fn link(depth: usize, time: Duration) -> Result<(), Failure> {
    let (serving, remote) = connected()?;
    let run = Arc::new(Run {
        remote: remote.clone(),
        request: request()?,
        done: AtomicU64::new(0),
        running: AtomicU64::new(depth as u64),
        over: AtomicBool::new(false),
    });
    let meter = Meter::start();
    (0..depth).for_each(|_| next(&run));
    std::thread::sleep(time);
    run.over.store(true, Ordering::SeqCst);
    while run.running.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let writes = remote.stats().writes + serving.stats().writes;
    meter.report("link", depth, run.done.load(Ordering::SeqCst), writes);
    remote.close();
    serving.stop(Duration::from_secs(1));
    Ok(())
}

fn blocking(threads: usize, time: Duration) -> Result<(), Failure> {
    let (serving, remote) = connected()?;
    let request = request()?;
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let meter = Meter::start();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = remote.call(request.clone());
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(time);
        over.store(true, Ordering::SeqCst);
    });
    let writes = remote.stats().writes + serving.stats().writes;
    meter.report("threads", threads, done.load(Ordering::SeqCst), writes);
    remote.close();
    serving.stop(Duration::from_secs(1));
    Ok(())
}
