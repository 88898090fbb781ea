//! Whether a connection is encrypted, by its first byte, and whether it has to be, by its address.
//!
//! A frame begins with a byte 0, the highest of the length of its payload; a TLS handshake with
//! another one. The refusal of a peer here is sent in clear: nothing in it is secret, and an
//! attacker in between could have sent it as well.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use kestrel_types::security::Security;
use kestrel_types::wire::{self, Checksum, Refused, ToClient, ToServer, WireError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::channel::{Channel, Order};
use super::{Shared, count};
use crate::handler::{Connection, Outbox};

/// First byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

const NOT_IN_CLEAR: &str = "this server takes nothing in clear from another machine: leave \
                            ?tls=off out of the URL; and give \
    ?ca=sha256:…, which `kestrel cluster ca DIR` shows on the server";

const NOT_ENCRYPTED: &str = "TLS is switched off on this server, or it was started for this \
                             machine only: start it with `kestrel serve --tls on`, or add ?tls=off \
                             to the URL \
    on a network that nobody else can read or change";

/// A connection's bytes, in clear or encrypted.
pub(super) enum Stream {
    Clear(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// What to make of a connection.
enum SniffOutcome {
    Serve(Stream, Security),
    /// It gets this reason.
    Refuse(TcpStream, &'static str),
}

/// Waits until the first byte shows whether the connection is encrypted, and hands it to the task
/// that serves it; none if it has ended before that. It takes as long as the watch lets it.
pub(super) async fn sniff(
    shared: &Shared,
    channel: &Arc<Channel>,
    stream: TcpStream,
    peer: SocketAddr,
) -> Option<(Stream, Box<dyn Connection>)> {
    let mut sniffing = pin!(sniff_first(shared, stream, peer));
    let sniffed = std::future::poll_fn(|cx| {
        if let Poll::Ready(sniffed) = sniffing.as_mut().poll(cx) {
            return Poll::Ready(Some(sniffed));
        }
        let stays = !shared.stopping() && channel.sleep(cx.waker(), Order::Serve, false);
        if stays { Poll::Pending } else { Poll::Ready(None) }
    });
    match sniffed.await {
        Some(Ok(SniffOutcome::Serve(stream, security))) => {
            let connection = shared.handler.connect(peer, security, channel.clone());
            Some((stream, connection))
        }
        Some(Ok(SniffOutcome::Refuse(stream, why))) => {
            count(&shared.counters.unwanted, 1);
            log::debug!("net: connection of {peer} is refused: {why}");
            Some((Stream::Clear(stream), Box::new(Refusing { channel: channel.clone(), why })))
        }
        Some(Err(error)) => {
            log::debug!("net: connection of {peer}: {error}");
            None
        }
        None => None,
    }
}

async fn sniff_first(
    shared: &Shared,
    stream: TcpStream,
    peer: SocketAddr,
) -> io::Result<SniffOutcome> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match (&shared.config.tls, first[0] == TLS_HANDSHAKE) {
        (Some(tls), true) => {
            let mut attempt = Attempt { shared, done: false };
            let (stream, security) = tls.accept(stream).await?;
            attempt.done = true;
            count(&shared.counters.encrypted, 1);
            Ok(SniffOutcome::Serve(Stream::Encrypted(Box::new(stream)), security))
        }
        (Some(tls), false) if tls.wants(peer.ip()) => {
            Ok(SniffOutcome::Refuse(stream, NOT_IN_CLEAR))
        }
        (None, true) => Ok(SniffOutcome::Refuse(stream, NOT_ENCRYPTED)),
        (_, false) => Ok(SniffOutcome::Serve(Stream::Clear(stream), Security::without_tls(peer))),
    }
}

/// A handshake; counted if it comes to nothing, however that is.
struct Attempt<'a> {
    shared: &'a Shared,
    done: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.done {
            count(&self.shared.counters.not_encrypted, 1);
        }
    }
}

/// Sends the peer the reason why it is not served, for each of its messages.
struct Refusing {
    channel: Arc<Channel>,
    why: &'static str,
}

impl Refusing {
    fn say(&self) {
        let why = Refused { errno: libc::EPROTO, reason: self.why.into() };
        let mut frame = Vec::new();
        if wire::encode_to_client(&ToClient::Refused(why), Checksum::Crc32c, &mut frame).is_ok() {
            self.channel.send(&frame);
        }
        self.channel.close(self.why);
    }
}

impl Connection for Refusing {
    fn receive(&mut self, batch: &mut Vec<ToServer>) {
        batch.clear();
        self.say();
    }

    fn refuse(&mut self, _error: &WireError) {
        self.say();
    }

    fn closed(self: Box<Self>) {}
}

impl Stream {
    fn parts(self: Pin<&mut Self>) -> Parts<'_> {
        match self.get_mut() {
            Self::Clear(stream) => Parts::Clear(Pin::new(stream)),
            Self::Encrypted(stream) => Parts::Encrypted(Pin::new(&mut **stream)),
        }
    }
}

enum Parts<'a> {
    Clear(Pin<&'a mut TcpStream>),
    Encrypted(Pin<&'a mut TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.parts() {
            Parts::Clear(stream) => stream.poll_read(cx, space),
            Parts::Encrypted(stream) => stream.poll_read(cx, space),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.parts() {
            Parts::Clear(stream) => stream.poll_write(cx, bytes),
            Parts::Encrypted(stream) => stream.poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.parts() {
            Parts::Clear(stream) => stream.poll_flush(cx),
            Parts::Encrypted(stream) => stream.poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.parts() {
            Parts::Clear(stream) => stream.poll_shutdown(cx),
            Parts::Encrypted(stream) => stream.poll_shutdown(cx),
        }
    }
}
