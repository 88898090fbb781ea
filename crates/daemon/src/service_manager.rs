//! What the service manager is told of this process, if it was started as a service that says when
//! it is ready (systemd, `Type=notify`): that it serves, and what; that it ends.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing happens. Processes in the background and
//! those that take other nodes over do not get it ([`crate::background`]): a unit has one main
//! process. The protocol is that of sd_notify(3), a datagram of lines. The crate sd-notify knows no
//! abstract sockets, which managers of containers use.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Name of the environment variable with the manager's socket.
pub const SOCKET_ENV: &str = "NOTIFY_SOCKET";

/// This process serves, as `what` says in words: units that are ordered after it may start.
pub fn ready(what: &str) {
    tell("READY=1", what);
}

/// This process has begun to end, by itself or because it was told to.
pub fn stopping() {
    tell("STOPPING=1", "stores what is left, and ends");
}

fn tell(state: &str, status: &str) {
    let Some(socket) = std::env::var_os(SOCKET_ENV).filter(|socket| !socket.is_empty()) else {
        return;
    };
    // A name of a volume may have a line break.
    let text = format!("{state}\nSTATUS={}\n", status.replace('\n', " "));
    if let Err(why) = send(&socket, text.as_bytes()) {
        log::warn!(
            "the service manager cannot be told {state}: {why}; it takes a unit of Type=notify \
             for one that hangs: use Type=exec"
        );
    }
}

/// Sends a datagram to a socket: a path, or behind an `@` the name of an abstract one.
fn send(socket: &OsStr, datagram: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(datagram, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram arrives at a socket with a path and at an abstract one; a socket that is not
    /// there is an error.
    #[test]
    fn datagrams_to_both_kinds_of_socket() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let name = format!("kestrel-service-manager-{}", std::process::id());
        let abstract_socket = SocketAddr::from_abstract_name(&name).unwrap();
        for (listener, told) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstract_socket).unwrap(), format!("@{name}").into()),
        ] {
            send(&told, b"READY=1").unwrap();
            let mut bytes = [0; 16];
            assert_eq!(listener.recv(&mut bytes).unwrap(), 7);
            assert_eq!(&bytes[..7], b"READY=1");
        }
        assert!(send(OsStr::new("/nowhere/notify"), b"READY=1").is_err());
    }
}
