//! A connected socket, in clear or encrypted: blocking reads, writes that do not block, and waiting
//! for either.
//!
//! **Encrypted**, both ways share the state of the encryption, behind a lock that no thread holds
//! while it waits for the other side. A write encrypts what there is and sends it as far as there
//! is room; it is done when all of that has left. So a writer that finds no room comes again with
//! the same bytes, which are not encrypted twice.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use kestrel_types::security::Security;
use parking_lot::Mutex;
use rustls::ClientConnection;

use super::secure;

/// Most bytes that one write encrypts.
const ENCRYPTED_MAX: usize = 256 * 1024;

/// Bytes that one read takes from an encrypted socket: four of the largest records.
const SEALED_BYTES: usize = 4 * (16 * 1024 + 256 + 5);

/// Which way a socket is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ready {
    pub read: bool,
    pub write: bool,
}

/// The state of the encryption.
struct Tls {
    session: ClientConnection,
    /// Bytes of the present write that are encrypted; the write ends when they have left.
    taken: usize,
}

/// What came and is not decrypted; the reader's own.
#[derive(Default)]
struct Sealed {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
    /// There may be decrypted bytes that no reader has taken.
    opened: bool,
}

/// See the module's header.
pub(crate) struct Socket {
    stream: TcpStream,
    security: Security,
    tls: Option<(Mutex<Tls>, Mutex<Sealed>)>,
}

impl Socket {
    /// A connection in clear.
    pub fn clear(stream: TcpStream) -> Self {
        let security = stream.peer_addr().map_or(Security::Plain, Security::without_tls);
        Self { stream, security, tls: None }
    }

    /// A socket after its handshake.
    pub fn encrypted(stream: TcpStream, session: ClientConnection, security: Security) -> Self {
        let sealed = Sealed { bytes: vec![0; SEALED_BYTES], opened: true, ..Sealed::default() };
        let tls = Some((Mutex::new(Tls { session, taken: 0 }), Mutex::new(sealed)));
        Self { stream, security, tls }
    }

    /// What it runs over.
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// The socket below.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Writes what there is room for; `WouldBlock` if there is none: then the next write has to
    /// begin with the same bytes. One thread at a time.
    pub fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        let Some((tls, _)) = &self.tls else { return send(&self.stream, bytes) };
        let mut tls = tls.lock();
        if tls.taken == 0 {
            tls.taken = tls.session.writer().write(&bytes[..bytes.len().min(ENCRYPTED_MAX)])?;
        }
        tls.send(&self.stream)?;
        Ok(std::mem::take(&mut tls.taken))
    }

    /// Reads what there is, waiting for something. Zero: the other side has closed. One thread at a
    /// time.
    pub fn read_some(&self, space: &mut [u8]) -> io::Result<usize> {
        let Some((tls, sealed)) = &self.tls else { return receive(&self.stream, space) };
        let mut sealed = sealed.lock();
        loop {
            if sealed.opened || sealed.from < sealed.to {
                let read = sealed.open(&mut tls.lock(), &self.stream, space)?;
                if let Some(read) = read {
                    return Ok(read);
                }
            }
            let read = receive(&self.stream, &mut sealed.bytes)?;
            if read == 0 {
                return Ok(0);
            }
            (sealed.from, sealed.to) = (0, read);
        }
    }

    /// Waits until the socket can be read (if `read` is set) or written, or something is wrong with
    /// it (then it is ready both ways). None within `limit`: not ready. The thread that waits to
    /// read is the reader.
    pub fn wait(&self, read: bool, limit: Duration) -> io::Result<Ready> {
        let has_bytes = read
            && self.tls.as_ref().is_some_and(|(_, sealed)| {
                let sealed = sealed.lock();
                sealed.opened || sealed.from < sealed.to
            });
        let limit = if has_bytes { Duration::ZERO } else { limit };
        let events = libc::POLLOUT | if read { libc::POLLIN } else { 0 };
        let mut poll = libc::pollfd { fd: self.stream.as_raw_fd(), events, revents: 0 };
        let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `poll` is one valid pollfd that lives until the call returns.
        let count = unsafe { libc::poll(&raw mut poll, 1, limit_ms) };
        if count < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let broken = poll.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        Ok(Ready {
            read: broken || has_bytes || poll.revents & libc::POLLIN != 0,
            write: broken || poll.revents & libc::POLLOUT != 0,
        })
    }

    /// Closes both ways; threads that read or wait to write wake up.
    pub fn cut(&self) {
        // It may be closed already; that is as good.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Nothing more is written: the other side sees the end after the last byte.
    pub fn finish(&self) {
        if let Some((tls, _)) = &self.tls {
            let mut tls = tls.lock();
            tls.session.send_close_notify();
            // If there is no room for it, the other side sees the end all the same.
            let _ = tls.send(&self.stream);
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl Tls {
    /// Sends what is encrypted, as far as there is room; `WouldBlock` if not all of it has left.
    fn send(&mut self, stream: &TcpStream) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut Sending(stream))?;
        }
        Ok(())
    }
}

impl Sealed {
    /// Decrypts what has come; none if that takes more.
    fn open(
        &mut self,
        tls: &mut Tls,
        stream: &TcpStream,
        space: &mut [u8],
    ) -> io::Result<Option<usize>> {
        loop {
            match tls.session.reader().read(space) {
                Ok(read) => {
                    self.opened = read == space.len();
                    return Ok(Some(read));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.opened = false,
                // The end without a farewell, as in clear: frames say whether something is missing.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Some(0)),
                Err(error) => return Err(error),
            }
            if self.from == self.to {
                return Ok(None);
            }
            let mut rest = &self.bytes[self.from..self.to];
            tls.session.read_tls(&mut rest)?;
            self.from = self.to - rest.len();
            if let Err(why) = tls.session.process_new_packets() {
                // The peer gets an alert with the reason, if there is room for it.
                let _ = tls.send(stream);
                return Err(io::Error::new(io::ErrorKind::InvalidData, secure::in_words(&why)));
            }
            if tls.taken == 0 && tls.session.wants_write() {
                // An answer of the protocol's own. What there is no room for leaves with the next
                // write.
                match tls.send(stream) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                    _ => {}
                }
            }
        }
    }
}

/// A socket that takes what there is room for.
struct Sending<'a>(&'a TcpStream);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(self.0, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes what there is room for; `WouldBlock` if there is none. The socket itself stays in
/// blocking mode, for the reader.
fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the pointer and the length are those of a slice that lives until the call
        // returns; the kernel only reads it.
        let written = unsafe {
            libc::send(
                stream.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if let Ok(written) = usize::try_from(written) {
            return Ok(written);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Reads what there is, waiting for something.
fn receive(mut stream: &TcpStream, space: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(space) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
