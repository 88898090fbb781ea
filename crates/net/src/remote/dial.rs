//! Making a connection.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use kestrel_types::wire::Checksum;

/// Time for a connection to one address.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Addresses of one name that are tried.
const RESOLVED_MAX: usize = 8;

/// Connects to the first address that answers, beginning with number `first`; answers its number too.
pub(crate) fn dial(addresses: &[String], first: usize) -> Result<(TcpStream, usize), String> {
    let mut why = String::new();
    for index in (0..addresses.len()).map(|offset| (first + offset) % addresses.len()) {
        match connect(&addresses[index]) {
            Ok(stream) => return Ok((stream, index)),
            Err(error) => {
                let separator = if why.is_empty() { "" } else { "; " };
                why = format!("{why}{separator}{}: {error}", addresses[index]);
            }
        }
    }
    Err(why)
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
    // A port of our own range can be connected to itself while nobody listens on it.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// Checksums are worth their price wherever a wire is crossed.
pub(crate) fn checksum(stream: &TcpStream) -> Checksum {
    let near = |address: io::Result<SocketAddr>| address.is_ok_and(|address| address.ip().is_loopback());
    if near(stream.local_addr()) && near(stream.peer_addr()) { Checksum::Off } else { Checksum::Crc32c }
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
