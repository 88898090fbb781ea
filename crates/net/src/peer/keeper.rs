//! The thread of a link: connects, watches, connects again.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_types::wire::{self, Frames, HELLO_BYTES_MAX, ToClient, ToServer};

use super::{PAUSE_MAX, Shared};
use crate::backoff::Backoff;
use crate::remote::{dial, socket};

/// Time between two Pings.
const PING: Duration = Duration::from_secs(1);

/// How long one wait for room takes at most.
const ROOM: Duration = Duration::from_millis(100);

/// A connection that lasted so long was one.
const LASTED: Duration = Duration::from_secs(2);

/// Most reasons of one outage that are logged.
const REASONS_MAX: usize = 8;

/// What is known, and was said, of an outage.
struct Outage {
    since: Instant,
    /// What was logged of it.
    told: Vec<String>,
}

impl Outage {
    fn begun() -> Self {
        Self { since: Instant::now(), told: Vec::new() }
    }
}

pub(super) fn run(shared: &Arc<Shared>, seed: u64) {
    let mut backoff = Backoff::up_to(seed, PAUSE_MAX);
    let mut outage = Some(Outage::begun());
    while !shared.notice.lock().closed {
        let (why, lasted) = match dial::dial(std::slice::from_ref(&shared.config.address), 0) {
            Ok((stream, _)) => {
                let begun = Instant::now();
                (serve(shared, stream, &mut outage), begun.elapsed())
            }
            Err(why) => (why, Duration::ZERO),
        };
        if lasted >= LASTED {
            backoff.served();
        }
        tell(shared, outage.get_or_insert_with(Outage::begun), why);
        let pause = Duration::from_nanos(backoff.failed(0).max(0).cast_unsigned());
        let mut notice = shared.notice.lock();
        if !notice.closed {
            shared.changed.wait_for(&mut notice, pause);
        }
    }
}

/// Logs what is wrong, each thing once.
fn tell(shared: &Shared, outage: &mut Outage, why: String) {
    *shared.why_down.lock() = Some(why.clone());
    if shared.notice.lock().closed || outage.told.len() >= REASONS_MAX || outage.told.contains(&why) {
        return;
    }
    let (node, address) = (shared.config.hello.to, &shared.config.address);
    log::warn!("net: no connection to node {node} at {address}: {why}; trying again until there is one");
    outage.told.push(why);
}

/// A connection to its end; why it ended.
fn serve(shared: &Arc<Shared>, stream: TcpStream, outage: &mut Option<Outage>) -> String {
    if let Err(error) = give_up_after(&stream, shared.config.dead_after) {
        return format!("the socket takes no time limit: {error}");
    }
    let (checksum, stream) = (dial::checksum(&stream), Arc::new(stream));
    let mut hello = Vec::new();
    if let Err(why) =
        wire::encode_to_server(&ToServer::PeerHello(shared.config.hello.clone()), checksum, &mut hello)
    {
        return why.to_string();
    }
    shared.install(stream.clone(), checksum, hello);
    shared.write_left();
    let reads = {
        let (shared, stream) = (shared.clone(), stream.clone());
        std::thread::Builder::new()
            .name(format!("kestrel-peer-{}", shared.config.hello.to))
            .spawn(move || shared.broken(read(&shared, &stream)))
    };
    let why = match &reads {
        Ok(_) => watch(shared, &stream, outage),
        Err(error) => format!("no thread to read: {error}"),
    };
    shared.remove();
    if let Ok(reads) = reads {
        // The connection is cut, so it ends. If it panicked, that has been reported by the panic itself.
        let _ = reads.join();
    }
    why
}

/// Until the connection is broken, or the link closed: why.
fn watch(shared: &Shared, stream: &TcpStream, outage: &mut Option<Outage>) -> String {
    let (begun, mut pinged) = (Instant::now(), Instant::now());
    loop {
        // A node that refuses says so at once.
        if begun.elapsed() >= PING / 2
            && let Some(Outage { since, told }) = outage.take()
        {
            *shared.why_down.lock() = None;
            if !told.is_empty() {
                let (node, after) = (shared.config.hello.to, since.elapsed());
                log::info!("net: node {node} is connected again after {:.1} s", after.as_secs_f64());
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
                shared.changed.wait_for(&mut notice, pause.saturating_sub(pinged.elapsed()).max(ROOM));
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
            match socket::wait(stream, false, ROOM) {
                Ok(ready) if ready.write => shared.write_left(),
                Ok(_) => shared.leave_over(),
                Err(error) => return error.to_string(),
            }
        }
    }
}

impl Shared {
    fn write_left(&self) {
        let wrote = self.write(&mut self.desk.lock());
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
            if queue.bytes.is_empty() && wire::encode_to_server(&ping, checksum, &mut queue.bytes).is_err() {
                return;
            }
            self.offered.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        self.flush();
    }
}

/// Reads until the other side refuses or closes: why.
fn read(shared: &Shared, stream: &TcpStream) -> String {
    let mut frames = Frames::new(2 * HELLO_BYTES_MAX);
    loop {
        match socket::read_some(stream, frames.space()) {
            Ok(0) => return "the node has closed the connection".into(),
            Ok(read) => frames.filled(read),
            Err(error) => return error.to_string(),
        }
        match frames.next_frame().map(|frame| frame.map(wire::decode_to_client)) {
            Ok(None) => {}
            Ok(Some(Ok(ToClient::Refused(refused)))) => {
                shared.refused(refused.errno, &refused.reason);
                return format!("it refuses: {}", refused.reason);
            }
            Ok(Some(Ok(_))) => return "it takes this for the connection of a client".into(),
            Ok(Some(Err(error))) | Err(error) => return format!("the node sent {error}"),
        }
    }
}

/// Has the kernel give the connection up when nothing of what was sent is taken for so long.
fn give_up_after(stream: &TcpStream, limit: Duration) -> std::io::Result<()> {
    let limit_ms = libc::c_uint::try_from(limit.as_millis()).unwrap_or(libc::c_uint::MAX);
    // SAFETY: the pointer and the length are those of an integer that lives until the call returns; the kernel only reads it.
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
