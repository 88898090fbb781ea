//! The handshake of the dialing side, on a blocking socket.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kestrel_types::security::Security;
use kestrel_types::wire::{self, Frames, HELLO_BYTES_MAX, ToClient};
use rustls::{AlertDescription, CertificateError, ClientConnection, Error};

use super::socket::Socket;
use crate::tls::{Chosen, name_of_server};

/// Time for a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// First bytes of what a TLS server says: a handshake, or an alert.
const TLS_RECORDS: [u8; 2] = [0x16, 0x15];

/// Why there is no encrypted connection.
pub(crate) enum Unsafe {
    /// It may work the next time.
    Broken(String),
    /// It will not until a person changes the settings.
    Refused(String),
}

impl From<io::Error> for Unsafe {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Self::Broken(format!("no TLS handshake within {} s", HANDSHAKE_MAX.as_secs()))
            }
            _ => Self::Broken(format!("in the TLS handshake: {error}")),
        }
    }
}

/// Encrypts a connection.
pub(crate) fn encrypt(stream: TcpStream, chosen: Chosen) -> Result<Socket, Unsafe> {
    let Chosen { config, name, is_volume } = chosen;
    let mut session = ClientConnection::new(config, name)
        .map_err(|why| Unsafe::Refused(format!("TLS: {why}")))?;
    session.set_buffer_limit(None);
    let deadline = Instant::now() + HANDSHAKE_MAX;
    let mut received = false;
    loop {
        while session.wants_write() {
            stream.set_write_timeout(Some(left(deadline)?))?;
            session.write_tls(&mut &stream)?;
        }
        if !session.is_handshaking() {
            break;
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        let mut bytes = [0; 4096];
        let read = (&stream).read(&mut bytes)?;
        if read == 0 {
            let why = "the other side has closed the connection in the TLS handshake";
            return Err(Unsafe::Broken(why.into()));
        }
        if !std::mem::replace(&mut received, true) && !TLS_RECORDS.contains(&bytes[0]) {
            return Err(Unsafe::Refused(in_clear(&bytes[..read])));
        }
        let mut rest = &bytes[..read];
        while !rest.is_empty() {
            if session.read_tls(&mut rest)? == 0 {
                return Err(Unsafe::Broken(
                    "the other side has said farewell in the TLS handshake".into(),
                ));
            }
            if let Err(why) = session.process_new_packets() {
                // The peer gets an alert with the reason, if it can still be sent.
                let _ = session.write_tls(&mut &stream);
                return Err(Unsafe::Refused(in_words(&why)));
            }
        }
    }
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    // Of an operator's certificate the names are hosts.
    let peer = if is_volume { name_of_server(session.peer_certificates()) } else { None };
    Ok(Socket::encrypted(stream, session, Security::Tls { peer }))
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The message about a server that has answered in clear. Its text is not authenticated: any host
/// on the way may have written it.
fn in_clear(bytes: &[u8]) -> String {
    let mut frames = Frames::new(HELLO_BYTES_MAX);
    frames.push(bytes);
    let message = match frames.next_frame().ok().flatten().map(wire::decode_to_client) {
        Some(Ok(ToClient::Refused(refused))) => format!(" ({})", refused.reason),
        _ => String::new(),
    };
    format!(
        "it was asked to encrypt and answers in clear{message}: its TLS is switched off, or \
         somebody is between it and you; start it with --tls auto, or add ?tls=off to the URL \
         on a network that nobody else can read or change"
    )
}

/// An error of TLS, with what to do.
pub(super) fn in_words(error: &Error) -> String {
    use CertificateError as Certificate;
    match error {
        Error::InvalidCertificate(why) => match why {
            Certificate::Expired
            | Certificate::ExpiredContext { .. }
            | Certificate::NotValidYet
            | Certificate::NotValidYetContext { .. } => {
                format!(
                    "the server's certificate is of another time ({error}): compare the clocks of \
                     both machines"
                )
            }
            Certificate::Other(why) => format!("the server is not the one it should be: {}", why.0),
            _ => format!(
                "the server is not the one it should be: {error}; check the fingerprint or file \
                 that ?ca= names"
            ),
        },
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server takes only clients with a certificate: add ?cert=FILE to the URL".into()
        }
        Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        ) => format!(
            "the server does not accept this side's certificate ({error}): it is expired, or \
             another volume's"
        ),
        _ => format!("TLS: {error}"),
    }
}
