//! Making a connection.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::secure::{self, Unsafe};
use super::socket::Socket;
use crate::tls::ClientTls;

/// Time for a connection to one address.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Addresses of one name that are tried.
const RESOLVED_MAX: usize = 8;

/// Why there is no connection.
#[derive(Debug, Default)]
pub(crate) struct NotDialed {
    /// In words.
    pub why: String,
    /// Trying again is of no use until a person changes the settings.
    pub hopeless: bool,
    /// An address took the connection, though nothing came of it.
    pub reached: bool,
}

/// Connects to the first address that answers, beginning with number `first`; answers its number
/// too.
pub(crate) fn dial(
    addresses: &[String],
    first: usize,
    tls: &ClientTls,
) -> Result<(Socket, usize), NotDialed> {
    let mut failed = NotDialed::default();
    for index in (0..addresses.len()).map(|offset| (first + offset) % addresses.len()) {
        let address = &addresses[index];
        let connected = connect(address).map_err(Unsafe::from_socket);
        failed.reached |= connected.is_ok();
        let why = match connected.and_then(|stream| secure(stream, address, tls)) {
            Ok(socket) => return Ok((socket, index)),
            Err(Unsafe::Broken(why)) => why,
            Err(Unsafe::Refused(why)) => {
                failed.hopeless = true;
                why
            }
        };
        let separator = if failed.why.is_empty() { "" } else { "; " };
        failed.why = format!("{}{separator}{address}: {why}", failed.why);
    }
    Err(failed)
}

impl Unsafe {
    fn from_socket(error: io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// Encrypts the connection, if it is one to be encrypted.
fn secure(stream: TcpStream, address: &str, tls: &ClientTls) -> Result<Socket, Unsafe> {
    let other = stream.peer_addr().map_err(Unsafe::from_socket)?;
    match tls.choose(other.ip(), address).map_err(|why| Unsafe::Refused(why.0))? {
        None => Ok(Socket::clear(stream)),
        Some(chosen) => secure::encrypt(stream, chosen),
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in address.to_socket_addrs()?.take(RESOLVED_MAX) {
        result = TcpStream::connect_timeout(&address, CONNECT_MAX);
        if result.is_ok() {
            break;
        }
    }
    let stream = result?;
    stream.set_nodelay(true)?;
    // While no process listens on a port, a socket that the kernel gives that very port connects to
    // itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// Sixteen random bytes, not all zero.
pub(crate) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    if read.is_err() || bytes == [0; 16] {
        // Without the device, the seeds of the process's hash tables come from the same generator.
        for half in bytes.chunks_exact_mut(8) {
            half.copy_from_slice(&(RandomState::new().hash_one(0u8) | 1).to_be_bytes());
        }
    }
    bytes
}
