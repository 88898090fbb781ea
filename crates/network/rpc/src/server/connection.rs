//! The task of one connection.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use kestrel_types::codec::DecodeError;
use kestrel_types::wire::{self, FRAME_BYTES_MAX, Frames, HELLO_BYTES_MAX, ToServer, WireError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::channel::{Channel, Order};
use super::sniff::Stream;
use super::{BATCH_MAX, Shared, count};
use crate::handler::Connection;

/// What is kept of an emptied buffer of replies, bytes.
const OUT_BYTES_KEPT: usize = 256 * 1024;

/// Most bytes that are read and thrown away after the last word, so that the kernel does not send a
/// reset in place of it.
const LINGER_BYTES_MAX: usize = 16 << 20;

/// How far the connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Messages are read and answered.
    Serving,
    /// The peer sent what is no message: nothing more is read, the reason is being sent.
    Refusing,
    /// Everything is written; this many bytes were thrown away while waiting for the peer to close.
    Lingering(usize),
}

/// One connection.
pub(super) struct Task {
    shared: Arc<Shared>,
    channel: Arc<Channel>,
    stream: Stream,
    connection: Box<dyn Connection>,
    /// Its number, and where it comes from.
    peer: (u64, SocketAddr),
    stage: Stage,
    frames: Frames,
    /// There may be whole frames among the bytes read.
    undecoded: bool,
    batch: Vec<ToServer>,
    /// Bytes being written, from `written` on.
    out: Vec<u8>,
    written: usize,
    /// Bytes queued besides.
    queued: usize,
    /// A client has named its token, and has yet to prove that it has it.
    proving: bool,
    /// Some of what was written may be on this side of the encryption still.
    unflushed: bool,
}

impl Task {
    pub fn new(
        shared: Arc<Shared>,
        channel: Arc<Channel>,
        stream: Stream,
        connection: Box<dyn Connection>,
        peer: (u64, SocketAddr),
    ) -> Self {
        Self {
            shared,
            channel,
            stream,
            connection,
            peer,
            stage: Stage::Serving,
            frames: Frames::new(HELLO_BYTES_MAX),
            undecoded: false,
            batch: Vec::new(),
            out: Vec::new(),
            written: 0,
            queued: 0,
            proving: false,
            unflushed: false,
        }
    }

    /// Serves the connection to its end.
    pub async fn run(mut self) {
        if let Err(error) = std::future::poll_fn(|cx| self.poll(cx)).await {
            log::debug!("net: connection of {}: {error}", self.channel.peer);
        }
        self.channel.shut();
        drop(self.stream);
        self.connection.closed();
    }

    /// Does everything there is to do; ready when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            // Looked at before the queue: with no call open, the queue holds all answers.
            let idle = self.channel.calls.load(Ordering::Acquire) == 0;
            let mut order = Order::Serve;
            let flushed = match self.poll_flush(cx, &mut order) {
                Poll::Ready(result) => {
                    result?;
                    true
                }
                Poll::Pending => false,
            };
            // Messages of other nodes are read to the end: open calls of clients may need them.
            let stopping = self.shared.stopping() && !self.channel.node.load(Ordering::Relaxed);
            let over = order == Order::Close || self.stage == Stage::Refusing || (stopping && idle);
            let progress = match (order, self.stage) {
                (Order::Abort, _) => return Poll::Ready(Ok(())),
                (_, Stage::Lingering(_)) => self.poll_linger(cx)?,
                _ if over && flushed => self.poll_end(cx)?,
                _ if over || stopping || self.full() => Poll::Pending,
                _ => self.poll_receive(cx)?,
            };
            match progress {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Poll::Ready(Ok(())),
                Poll::Pending if self.channel.sleep(cx.waker(), order, flushed) => {
                    return Poll::Pending;
                }
                Poll::Pending => {}
            }
        }
    }

    /// Writes what is queued. Ready when there is nothing left.
    fn poll_flush(&mut self, cx: &mut Context<'_>, order: &mut Order) -> Poll<io::Result<()>> {
        loop {
            let before = self.out.is_empty();
            (*order, self.queued) = self.channel.collect(&mut self.out);
            if self.out.is_empty() || *order == Order::Abort {
                if self.unflushed && *order != Order::Abort {
                    ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
                    self.unflushed = false;
                }
                let lingers = matches!(self.stage, Stage::Lingering(_));
                self.channel.unsent.store(lingers, Ordering::Relaxed);
                return Poll::Ready(Ok(()));
            }
            if before {
                self.moved();
                self.channel.unsent.store(true, Ordering::Relaxed);
            }
            while self.written < self.out.len() {
                let written =
                    ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out[self.written..]))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written += written;
                self.unflushed = true;
                self.moved();
                count(&self.shared.counters.bytes_out, written);
                count(&self.shared.counters.writes, 1);
            }
            self.out.clear();
            self.out.shrink_to(OUT_BYTES_KEPT);
            self.written = 0;
        }
    }

    fn moved(&self) {
        self.channel.moved.store(self.shared.rounds.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether the peer has to wait until more is answered, or taken.
    fn full(&self) -> bool {
        let config = &self.shared.config;
        let full = self.channel.calls.load(Ordering::Relaxed) >= config.calls_max
            || self.out.len() - self.written + self.queued >= config.unsent_bytes_max;
        self.channel.paused.store(full, Ordering::Relaxed);
        full
    }

    /// Receives a batch, reading if nothing is left of the last read. Ready(false): the peer has
    /// closed.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<bool>> {
        if !self.undecoded {
            let mut space = ReadBuf::new(self.frames.space());
            match Pin::new(&mut self.stream).poll_read(cx, &mut space) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(result) => result?,
            }
            let read = space.filled().len();
            if read == 0 {
                return Ok(Poll::Ready(false));
            }
            self.frames.filled(read);
            self.undecoded = true;
            count(&self.shared.counters.bytes_in, read);
        }
        let decoded = self.decode();
        if !self.batch.is_empty() {
            self.deliver();
        }
        if let Err(error) = decoded {
            count(&self.shared.counters.malformed, 1);
            log::debug!("net: {} sent {error}", self.channel.peer);
            self.connection.refuse(&error);
            self.stage = Stage::Refusing;
        }
        Ok(Poll::Ready(true))
    }

    /// Moves messages from the bytes read to the batch, as many as there may be in one.
    fn decode(&mut self) -> Result<(), WireError> {
        while self.batch.len() < self.shared.config.batch_max.clamp(1, BATCH_MAX) {
            let greeted = self.channel.greeted.load(Ordering::Relaxed);
            let frame = match self.frames.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    self.undecoded = false;
                    return Ok(());
                }
                // A peer that speaks another protocol gets this error, not one about the header
                // that it seems to have sent.
                Err(_) if !greeted => return Err(WireError::NotHello),
                Err(error) => return Err(error),
            };
            let message = wire::decode_to_server(frame)?;
            match (&message, greeted) {
                (ToServer::Hello(_) | ToServer::PeerHello(_), _)
                    if greeted || self.proving || self.is_node() =>
                {
                    return Err(WireError::Malformed(DecodeError(
                        "a second Hello on one connection",
                    )));
                }
                // A node's connection stays unidentified until the node has proved that it is one.
                (ToServer::PeerHello(_), false) => self.channel.node.store(true, Ordering::Relaxed),
                (ToServer::Hello(hello), false) if hello.token.is_some() => self.proving = true,
                (ToServer::Hello(_), false) => self.greeted(),
                (ToServer::Proof(_), false) if self.proving => self.greeted(),
                (ToServer::PeerProof(_), false) if self.is_node() => self.greeted(),
                (_, false) => return Err(WireError::NotHello),
                (_, true) => {}
            }
            self.batch.push(message);
        }
        Ok(())
    }

    fn is_node(&self) -> bool {
        self.channel.node.load(Ordering::Relaxed)
    }

    /// The peer is identified: its Hello, and the proof if there is to be one, have come.
    fn greeted(&mut self) {
        self.channel.greeted.store(true, Ordering::Relaxed);
        let (number, address) = self.peer;
        self.shared.unidentified.lock().forget(number, address);
        self.frames.set_payload_max(FRAME_BYTES_MAX);
    }

    fn deliver(&mut self) {
        let calls =
            self.batch.iter().filter(|message| matches!(message, ToServer::Call(_))).count();
        self.channel.calls.fetch_add(calls, Ordering::Relaxed);
        self.channel
            .last_received
            .store(self.shared.rounds.load(Ordering::Relaxed), Ordering::Relaxed);
        count(&self.shared.counters.messages, self.batch.len());
        count(&self.shared.counters.batches, 1);
        self.connection.receive(&mut self.batch);
        self.batch.clear();
    }

    /// Everything is written: shuts the sending side, so that the peer sees the end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<bool>> {
        match Pin::new(&mut self.stream).poll_shutdown(cx) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(result) => result?,
        }
        self.stage = Stage::Lingering(0);
        // The watch gives the peer as long to close as it gives others to take something.
        self.moved();
        self.channel.unsent.store(true, Ordering::Relaxed);
        Ok(Poll::Ready(true))
    }

    /// Waits for the peer to close. To close with bytes unread would make the kernel send a reset
    /// in place of the last bytes.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<bool>> {
        let Stage::Lingering(thrown) = self.stage else { return Ok(Poll::Ready(false)) };
        self.frames = Frames::new(0);
        let mut space = ReadBuf::new(self.frames.space());
        match Pin::new(&mut self.stream).poll_read(cx, &mut space) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(result) => result?,
        }
        let read = space.filled().len();
        self.stage = Stage::Lingering(thrown + read);
        Ok(Poll::Ready(read > 0 && thrown < LINGER_BYTES_MAX))
    }
}
