//! The thread of a link: connects, watches, connects again.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_types::wire::{
    self, Checksum, Frames, HELLO_BYTES_MAX, PeerHello, Prover, ToClient, ToServer,
};

use super::proof;
use super::{PAUSE_MAX, PeerConfig, Shared};
use crate::backoff::Backoff;
use crate::client::dial;
use crate::client::socket::Socket;

/// Time between two Pings.
const PING: Duration = Duration::from_secs(1);

/// How long one wait for room takes at most.
const ROOM: Duration = Duration::from_millis(100);

/// How long a node is waited for to answer the first message.
const GREETING_MAX: Duration = Duration::from_secs(5);

/// A connection that lasted so long was one.
const LASTED: Duration = Duration::from_secs(2);

/// Most reasons of one outage that are logged.
const REASONS_MAX: usize = 8;

/// An outage, and what was logged of it.
struct Outage {
    since: Instant,
    /// What was logged of it.
    logged: Vec<String>,
}

impl Outage {
    fn begun() -> Self {
        Self { since: Instant::now(), logged: Vec::new() }
    }
}

pub(super) fn run(shared: &Arc<Shared>, seed: u64) {
    let mut backoff = Backoff::up_to(seed, PAUSE_MAX);
    let mut outage = Some(Outage::begun());
    while !shared.notice.lock().closed {
        let (why, lasted) =
            match dial::dial(std::slice::from_ref(&shared.config.address), 0, &shared.config.tls) {
                Ok((socket, _)) => {
                    let begun = Instant::now();
                    (serve(shared, socket, &mut outage), begun.elapsed())
                }
                Err(failed) => (failed.why, Duration::ZERO),
            };
        if lasted >= LASTED {
            backoff.served();
        }
        log_failure(shared, outage.get_or_insert_with(Outage::begun), why);
        let pause = Duration::from_nanos(backoff.failed(0).max(0).cast_unsigned());
        let mut notice = shared.notice.lock();
        if !notice.closed && !notice.hurry {
            shared.changed.wait_for(&mut notice, pause);
        }
        notice.hurry = false;
    }
}

/// Logs what is wrong, each thing once.
fn log_failure(shared: &Shared, outage: &mut Outage, why: String) {
    *shared.why_down.lock() = Some(why.clone());
    if shared.notice.lock().closed
        || outage.logged.len() >= REASONS_MAX
        || outage.logged.contains(&why)
    {
        return;
    }
    let (node, address) = (shared.config.hello.to, &shared.config.address);
    log::warn!(
        "net: no connection to node {node} at {address}: {why}; trying again until there is one"
    );
    outage.logged.push(why);
}

/// A connection to its end; why it ended.
fn serve(shared: &Arc<Shared>, socket: Socket, outage: &mut Option<Outage>) -> String {
    if let Err(error) = give_up_after(socket.stream(), shared.config.dead_after) {
        return format!("the socket takes no time limit: {error}");
    }
    let (checksum, socket) = (socket.security().checksum(), Arc::new(socket));
    let (frames, proof) = match introduce(shared, &socket, checksum) {
        Ok(introduced) => introduced,
        Err(why) => {
            socket.cut();
            return why;
        }
    };
    shared.install(socket.clone(), checksum, proof);
    if let Some(Err(why)) = shared
        .config
        .greeting
        .as_ref()
        .and_then(|greeting| greeting.0())
        .map(|message| shared.send(&message))
    {
        log::error!("net: what node {} is to hear first: {why}", shared.config.hello.to);
    }
    shared.write_left();
    let reads = {
        let (shared, socket) = (shared.clone(), socket.clone());
        std::thread::Builder::new()
            .name(format!("kestrel-peer-{}", shared.config.hello.to))
            .spawn(move || shared.broken(read(&shared, &socket, frames)))
    };
    let why = match &reads {
        Ok(_) => watch(shared, &socket, outage),
        Err(error) => format!("no thread to read: {error}"),
    };
    shared.remove();
    if let Ok(reads) = reads {
        // The connection is cut, so it ends. If it panicked, that has been reported by the panic
        // itself.
        let _ = reads.join();
    }
    why
}

/// Names this node, and has the other node prove that it has the secret: answers this side's proof,
/// to be sent first, and what was read besides.
fn introduce(
    shared: &Shared,
    socket: &Socket,
    checksum: Checksum,
) -> Result<(Frames, Vec<u8>), String> {
    let PeerConfig { hello, secret, .. } = &shared.config;
    let nonce = proof::nonce().ok_or("the system has no randomness")?;
    let hello = PeerHello { nonce, ..hello.clone() };
    let mut bytes = Vec::new();
    wire::encode_to_server(&ToServer::PeerHello(hello.clone()), checksum, &mut bytes)
        .map_err(|why| why.to_string())?;
    let mut rest = &*bytes;
    while !rest.is_empty() {
        match socket.write_some(rest) {
            Ok(written) => rest = &rest[written..],
            // A new connection has room for so little.
            Err(error) => return Err(error.to_string()),
        }
    }
    let time = |limit| socket.stream().set_read_timeout(limit).map_err(|error| error.to_string());
    time(Some(GREETING_MAX))?;
    let mut frames = Frames::new(2 * HELLO_BYTES_MAX);
    let challenge = match next(socket, &mut frames)? {
        ToClient::PeerChallenge(challenge) => challenge,
        ToClient::Refused(refused) => return Err(shared.refused(refused.errno, &refused.reason)),
        _ => return Err("it takes this for the connection of a client".into()),
    };
    time(None)?;
    if !proof::holds(secret, Prover::Reached, &hello, &challenge.nonce, &challenge.proof) {
        let why = "it does not know the secret of this cluster: it belongs to another one, or one \
                   of the descriptors was written anew";
        return Err(why.into());
    }
    let proof = proof::prove(secret, Prover::Dialed, &hello, &challenge.nonce);
    bytes.clear();
    wire::encode_to_server(&ToServer::PeerProof(proof), checksum, &mut bytes)
        .map_err(|why| why.to_string())?;
    Ok((frames, bytes))
}

/// Until the connection is broken, or the link closed: why.
fn watch(shared: &Shared, socket: &Socket, outage: &mut Option<Outage>) -> String {
    let (begun, mut pinged) = (Instant::now(), Instant::now());
    loop {
        // A node that refuses does it at once; the connection counts as made after this time.
        if begun.elapsed() >= PING / 2
            && let Some(Outage { since, logged }) = outage.take()
        {
            *shared.why_down.lock() = None;
            if !logged.is_empty() {
                let (node, after) = (shared.config.hello.to, since.elapsed());
                log::info!(
                    "net: node {node} is connected again after {:.1} s",
                    after.as_secs_f64()
                );
            }
        }
        if pinged.elapsed() >= PING {
            pinged = Instant::now();
            shared.ping();
        }
        let left = {
            let mut notice = shared.notice.lock();
            if !notice.closed && notice.broken.is_none() && !notice.left {
                let pause = if begun.elapsed() < PING { PING / 4 } else { PING };
                shared
                    .changed
                    .wait_for(&mut notice, pause.saturating_sub(pinged.elapsed()).max(ROOM));
            }
            if notice.closed {
                return "closed".into();
            }
            if let Some(why) = notice.broken.take() {
                return why;
            }
            std::mem::take(&mut notice.left)
        };
        if left {
            match socket.wait(false, ROOM) {
                Ok(ready) if ready.write => shared.write_left(),
                Ok(_) => shared.leave_over(),
                Err(error) => return error.to_string(),
            }
        }
    }
}

impl Shared {
    fn write_left(&self) {
        let wrote = self.write(&mut self.write_state.lock());
        if wrote {
            self.flush();
        }
    }

    /// A sign of life, and something that a dead node does not take.
    fn ping(&self) {
        {
            let mut queue = self.queue.lock();
            let Some(checksum) = queue.checksum else { return };
            let ping = ToServer::Ping { oldest_open_object: 0 };
            if queue.bytes.is_empty()
                && wire::encode_to_server(&ping, checksum, &mut queue.bytes).is_err()
            {
                return;
            }
            self.offered.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        self.flush();
    }
}

/// Reads until the other side refuses or closes: why.
fn read(shared: &Shared, socket: &Socket, mut frames: Frames) -> String {
    match next(socket, &mut frames) {
        Ok(ToClient::Refused(refused)) => shared.refused(refused.errno, &refused.reason),
        Ok(_) => "it takes this for the connection of a client".into(),
        Err(why) => why,
    }
}

/// The next message of the node, or why there is none.
fn next(socket: &Socket, frames: &mut Frames) -> Result<ToClient, String> {
    loop {
        match frames.next_frame().map(|frame| frame.map(wire::decode_to_client)) {
            Ok(None) => {}
            Ok(Some(Ok(message))) => return Ok(message),
            Ok(Some(Err(error))) | Err(error) => return Err(format!("the node sent {error}")),
        }
        match socket.read_some(frames.space()) {
            Ok(0) => return Err("the node has closed the connection".into()),
            Ok(read) => frames.filled(read),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(format!("it says nothing to a node for {} s", GREETING_MAX.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Has the kernel give the connection up when nothing of what was sent is taken for so long.
fn give_up_after(stream: &TcpStream, limit: Duration) -> std::io::Result<()> {
    let limit_ms = libc::c_uint::try_from(limit.as_millis()).unwrap_or(libc::c_uint::MAX);
    // SAFETY: the pointer and the length are those of an integer that lives until the call returns;
    // the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            (&raw const limit_ms).cast(),
            size_of::<libc::c_uint>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
