//! Encrypted connections between our own two ends, and the peers that are kept out.
//!
//! What counts as another machine here is decided by [`TlsMode::On`]: tests stay on loopback.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use kestrel_types::clock::{Clock, Nanos, SECOND, SystemClock};
use kestrel_types::name::InodeRef;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Op, XattrFlags};
use kestrel_types::security::{PeerName, Security};
use kestrel_types::wire::{Reclaim, ReclaimReply, SessionState, ToServer, Welcome};
use parking_lot::Mutex;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::client::{ConnectError, ReclaimSource, Remote, RemoteConfig, secure};
use crate::handler::{Connection, Handler, Outbox};
use crate::server::{ListenerConfig, Serving, serve};
use crate::testing::{Script, eventually, listen, obliging, request};

const SECRET: [u8; 16] = [7; 16];
const DAY: Nanos = 24 * 3600 * SECOND;

fn authority(secret: [u8; 16]) -> Arc<Authority> {
    Arc::new(Authority::derive(&secret).unwrap())
}

fn server_tls(node: NodeId, mode: TlsMode) -> ServerTls {
    ServerTls::new(authority(SECRET), node, mode, None, None).unwrap()
}

/// What a script does with a message.
type Act = fn(ToServer, &Arc<dyn Outbox>);

/// Serves obligingly, and notes what connections run over.
struct Noting {
    script: Script<Act>,
    seen: Arc<Mutex<Vec<Security>>>,
}

impl Handler for Noting {
    fn connect(
        &self,
        peer: SocketAddr,
        security: Security,
        outbox: Arc<dyn Outbox>,
    ) -> Box<dyn Connection> {
        self.seen.lock().push(security.clone());
        self.script.connect(peer, security, outbox)
    }
}

fn serving(tls: Option<ServerTls>) -> (Serving, Arc<Mutex<Vec<Security>>>) {
    let seen = Arc::default();
    let config = ListenerConfig {
        threads: 2,
        greeting: Duration::from_millis(800),
        tls: tls.map(Arc::new),
        ..ListenerConfig::default()
    };
    let handler = Noting { script: Script::new(obliging), seen: Arc::clone(&seen) };
    (serve(listen(), Arc::new(handler), config).unwrap(), seen)
}

struct Bare;

impl ReclaimSource for Bare {
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

    fn outage(&self, _why: &str) {}

    fn restored(&self, _after: Duration) {}
}

fn connect(address: SocketAddr, tls: ClientTls) -> Result<Arc<Remote>, ConnectError> {
    let config = RemoteConfig {
        addresses: vec![address.to_string()],
        volume: "v".into(),
        who: "test".into(),
        deadline: Duration::from_secs(20),
        tls,
        token: None,
        session: None,
    };
    Remote::connect(config, Arc::new(Bare)).map(|(remote, _)| remote)
}

fn trusting(secret: [u8; 16]) -> ClientTls {
    let trust = Trust::Authority(authority(secret).fingerprint());
    ClientTls::new(TlsMode::On, Some(&trust), None).unwrap()
}

fn refusal(address: SocketAddr, tls: ClientTls) -> String {
    match connect(address, tls) {
        Ok(_) => panic!("it is connected"),
        Err(why) => why.to_string(),
    }
}

fn files(dir: &TempDir, name: &str, text: &str) -> OwnFiles {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    set_mode(&path, 0o600);
    OwnFiles::open(&path, &path).unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The authority of a volume is the same everywhere, and another volume has another one.
#[test]
fn authority_of_a_volume() {
    let (one, same, other) = (authority(SECRET), authority(SECRET), authority([8; 16]));
    assert_eq!(one.certificate_pem(), same.certificate_pem());
    assert_ne!(one.fingerprint(), other.fingerprint());
    let shown = one.fingerprint().to_string();
    // Clients have this written down: it never changes.
    assert_eq!(shown, "sha256:8e0e5171d859b9dd88fc95a6860bf85e0ab7319592831e7cf24640ddd9ed9cfe");
    assert_eq!(shown.parse::<Fingerprint>(), Ok(one.fingerprint()));
    for bad in [
        "",
        "sha256:",
        "md5:00",
        &shown[..shown.len() - 1],
        &shown.replace("sha256:", "sha256:é"),
        &format!("{shown}0"),
    ] {
        assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
    }
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("ca.pem");
    std::fs::write(&path, one.certificate_pem()).unwrap();
    assert_eq!(Trust::read(&path), Ok(Trust::Authority(one.fingerprint())));
    std::fs::write(&path, "nothing").unwrap();
    assert!(Trust::read(&path).unwrap_err().0.contains("no certificate"));
}

/// Calls of many threads go through an encrypted connection.
#[test]
fn encrypted_calls_of_many_threads() {
    let (serving, seen) = serving(Some(server_tls(3, TlsMode::On)));
    let remote = connect(serving.address(), trusting(SECRET)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for length in 0..300 {
                    // Up to several records for one request.
                    let value = vec![7u8; length * 200].into();
                    let name = b"user.x".as_slice().into();
                    let inode = InodeRef { ino: 2, seen: None };
                    let set = Op::SetXattr(inode, name, value, XattrFlags::default());
                    remote.call(request(set)).unwrap();
                }
            });
        }
    });
    assert_eq!(*seen.lock(), [Security::Tls { peer: None }]);
    let stats = serving.stats();
    assert_eq!((stats.encrypted, stats.not_encrypted, stats.unwanted), (1, 0, 0));
    remote.close();
}

#[test]
fn servers_that_are_not_the_node() {
    let (serving, seen) = serving(Some(server_tls(3, TlsMode::On)));
    let why = refusal(serving.address(), trusting([8; 16]));
    assert!(
        why.contains("not the one it should be")
            && why.contains(&authority(SECRET).fingerprint().to_string()),
        "{why}"
    );
    let why = refusal(serving.address(), ClientTls::new(TlsMode::On, None, None).unwrap());
    assert!(why.contains("?ca=sha256:"), "{why}");
    // An operator's certificate has to be asked for by its name, and this server has none.
    let dir = TempDir::new().unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(dir.path().join("ca"), other.cert.pem()).unwrap();
    let trust = Trust::read(&dir.path().join("ca")).unwrap();
    let why = refusal(serving.address(), ClientTls::new(TlsMode::On, Some(&trust), None).unwrap());
    assert!(why.contains("not the one it should be"), "{why}");
    assert!(seen.lock().is_empty());
}

/// A certificate of another time, of another node or of a client is not accepted as a server's.
#[test]
fn certificates_that_are_no_server_s() {
    let now = SystemClock.now();
    let node = |node| PeerName::Node(node);
    let cases = [
        (node(3), now, now + DAY, None, ""),
        (node(3), now, now + DAY, Some(3), ""),
        (node(3), now - 10 * DAY, now - DAY, None, "compare the clocks"),
        (node(3), now + 3 * DAY, now + 5 * DAY, None, "compare the clocks"),
        (node(3), now, now + DAY, Some(2), "which is not node-2"),
        (PeerName::Client("t-1".into()), now, now + DAY, None, "not the one it should be"),
    ];
    for (name, from, until, wanted, reason) in cases {
        let certified = authority(SECRET).certify(&name, from, until).unwrap();
        let shown = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(shown);
        let tls = trusting(SECRET);
        let tls = wanted.map_or(tls.clone(), |node| tls.to_node(node));
        let why = handshake(config, &tls).err().unwrap_or_default();
        assert!(
            if reason.is_empty() { why.is_empty() } else { why.contains(reason) },
            "{name:?}: {why}"
        );
    }
}

/// A handshake with a server of another make.
fn handshake(config: rustls::ServerConfig, tls: &ClientTls) -> Result<Security, String> {
    let listener = listen();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let _ = session.complete_io(&mut stream);
    });
    let stream = TcpStream::connect(address).unwrap();
    let chosen = tls.choose(address.ip(), &address.to_string()).unwrap().unwrap();
    let result = secure::encrypt(stream, chosen).map(|socket| socket.security().clone());
    server.join().unwrap();
    result.map_err(|why| match why {
        secure::Unsafe::Broken(why) | secure::Unsafe::Refused(why) => why,
    })
}

#[test]
fn identities_from_certificates() {
    let (serving, seen) = serving(Some(server_tls(3, TlsMode::On)));
    let node = ClientTls::of_node(&authority(SECRET), 5, TlsMode::On).unwrap();
    connect(serving.address(), node.to_node(3)).unwrap().close();
    let why = refusal(serving.address(), node.to_node(4));
    assert!(why.contains("Node(3)") && why.contains("node-4"), "{why}");
    let dir = TempDir::new().unwrap();
    let now = SystemClock.now();
    let pem = authority(SECRET).issue("t-17", now, now + DAY).unwrap();
    let trust = Trust::Authority(authority(SECRET).fingerprint());
    let client =
        ClientTls::new(TlsMode::On, Some(&trust), Some(files(&dir, "good", &pem))).unwrap();
    connect(serving.address(), client).unwrap().close();
    assert_eq!(
        *seen.lock(),
        [Some(PeerName::Node(5)), Some(PeerName::Client("t-17".into()))]
            .map(|peer| Security::Tls { peer })
    );
    // One that has expired, and one of another volume.
    for pem in [
        authority(SECRET).issue("t-17", now - 10 * DAY, now - DAY).unwrap(),
        authority([8; 16]).issue("t-17", now, now + DAY).unwrap(),
    ] {
        let client =
            ClientTls::new(TlsMode::On, Some(&trust), Some(files(&dir, "bad", &pem))).unwrap();
        let config = RemoteConfig {
            addresses: vec![serving.address().to_string()],
            volume: "v".into(),
            who: "test".into(),
            deadline: Duration::from_secs(1),
            tls: client,
            token: None,
            session: None,
        };
        let why = Remote::connect(config, Arc::new(Bare)).err().unwrap().to_string();
        assert!(why.contains("does not accept this side's certificate"), "{why}");
    }
    assert_eq!(seen.lock().len(), 2);
    assert!(authority(SECRET).issue("No Name", now, now + DAY).is_err());
}

/// A server may have a certificate from the operator, and ask clients for theirs.
#[test]
fn certificates_of_operator_and_clients() {
    let dir = TempDir::new().unwrap();
    let made =
        rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
    let pem = |made: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem())
    };
    let server = files(&dir, "server", &pem(&made));
    let ca = dir.path().join("ca");
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let tls = ServerTls::new(authority(SECRET), 3, TlsMode::On, Some(server), None).unwrap();
    let (serving, _) = serving(Some(tls));
    let trust = Trust::read(&ca).unwrap();
    connect(serving.address(), ClientTls::new(TlsMode::On, Some(&trust), None).unwrap())
        .unwrap()
        .close();
    // A client that goes by the volume's own authority is shown that.
    connect(serving.address(), trusting(SECRET)).unwrap().close();
    // The files change: so does what is shown.
    let next = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    std::fs::write(dir.path().join("server"), pem(&next)).unwrap();
    std::fs::write(&ca, next.cert.pem()).unwrap();
    let trust = Trust::read(&ca).unwrap();
    eventually("the new certificate is shown", || {
        let tls = ClientTls::new(TlsMode::On, Some(&trust), None).unwrap();
        connect(serving.address(), tls).is_ok()
    });
    // Half of a pair is not used.
    let cert = dir.path().join("cert");
    std::fs::write(&cert, made.cert.pem()).unwrap();
    assert!(
        OwnFiles::open(&cert, &dir.path().join("server")).unwrap_err().0.contains("another key")
    );
    set_mode(&cert, 0o600);
    assert!(OwnFiles::open(&cert, &cert).unwrap_err().0.contains("no private key"));
    // Nor a key that others can read.
    set_mode(&dir.path().join("server"), 0o604);
    assert!(OwnFiles::open(&cert, &dir.path().join("server")).unwrap_err().0.contains("chmod 600"));
}

#[test]
fn client_certificates_wanted() {
    let dir = TempDir::new().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["gpu7".into()]).unwrap();
    let ca = dir.path().join("ca");
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let tls = ServerTls::new(authority(SECRET), 3, TlsMode::On, None, Some(&ca)).unwrap();
    let (serving, seen) = serving(Some(tls));
    let trust = Trust::Authority(authority(SECRET).fingerprint());
    let config = |own| RemoteConfig {
        addresses: vec![serving.address().to_string()],
        volume: "v".into(),
        who: "test".into(),
        deadline: Duration::from_secs(1),
        tls: ClientTls::new(TlsMode::On, Some(&trust), own).unwrap(),
        token: None,
        session: None,
    };
    let why = Remote::connect(config(None), Arc::new(Bare)).err().unwrap().to_string();
    assert!(why.contains("?cert=FILE"), "{why}");
    let own =
        files(&dir, "own", &format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem()));
    Remote::connect(config(Some(own)), Arc::new(Bare)).unwrap().0.close();
    // The client is let in although its certificate is not of this volume.
    assert_eq!(*seen.lock(), [Security::Tls { peer: None }]);
    // Nodes are, too.
    let node = ClientTls::of_node(&authority(SECRET), 5, TlsMode::On).unwrap();
    connect(serving.address(), node).unwrap().close();
}

/// A side that requires encryption talks to none that refuses it.
#[test]
fn mismatch_of_tls_and_clear_text() {
    let clear = || ClientTls::new(TlsMode::Off, None, None).unwrap();
    let (encrypting, seen) = serving(Some(server_tls(3, TlsMode::On)));
    let why = refusal(encrypting.address(), clear());
    assert!(why.contains("takes nothing in clear") && why.contains("?ca=sha256:"), "{why}");
    let (open, _) = serving(None);
    let why = refusal(open.address(), trusting(SECRET));
    assert!(
        why.contains("answers in clear") && why.contains("TLS is switched off on this server"),
        "{why}"
    );
    assert_eq!((encrypting.stats().unwanted, open.stats().unwanted), (1, 1));
    assert!(seen.lock().is_empty());
    // Within a machine both will do.
    let (auto, seen) = serving(Some(server_tls(3, TlsMode::Auto)));
    connect(auto.address(), ClientTls::default()).unwrap().close();
    connect(auto.address(), trusting(SECRET)).unwrap().close();
    assert_eq!(*seen.lock(), [Security::Loopback, Security::Tls { peer: None }]);
}

/// A relay cannot make a client send in clear text.
#[test]
fn relay_that_strips_tls() {
    // It passes on what the client sends without its TLS, as far as it can: it answers as an open
    // server would.
    let (open, seen) = serving(None);
    let listener = listen();
    let address = listener.local_addr().unwrap();
    let to = open.address();
    let relay = std::thread::spawn(move || relayed(&listener, to));
    let why = refusal(address, trusting(SECRET));
    assert!(why.contains("answers in clear"), "{why}");
    let received = relay.join().unwrap();
    assert_eq!(received[0], 0x16, "all that it heard is a handshake");
    assert!(!received.windows(4).any(|bytes| bytes == b"KSTL"));
    assert_eq!(*seen.lock(), [Security::Loopback], "the relay's own connection");
}

/// Reads a connection to its end, and sends a Welcome of an open server.
fn relayed(listener: &TcpListener, to: SocketAddr) -> Vec<u8> {
    let (mut client, _) = listener.accept().unwrap();
    let mut received = vec![0; 4096];
    let read = client.read(&mut received).unwrap();
    received.truncate(read);
    let mut server = TcpStream::connect(to).unwrap();
    server.write_all(&crate::testing::sent(&crate::testing::hello())).unwrap();
    let mut answer = vec![0; 4096];
    let read = server.read(&mut answer).unwrap();
    client.write_all(&answer[..read]).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest);
    received.extend(rest);
    received
}

/// A handshake that takes too long is cut off, and the number of handshakes at a time is bounded.
#[test]
fn slow_and_numerous_handshakes() {
    let config = ListenerConfig {
        threads: 2,
        unidentified_max: 4,
        greeting: Duration::from_millis(800),
        tls: Some(Arc::new(server_tls(3, TlsMode::On))),
        ..ListenerConfig::default()
    };
    let serving = serve(listen(), Arc::new(Script::new(obliging)), config).unwrap();
    let slow: Vec<TcpStream> = (0..12)
        .map(|at| {
            let mut stream = TcpStream::connect(serving.address()).unwrap();
            // The beginning of a ClientHello of 512 bytes, or nothing at all.
            stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..at]).unwrap();
            stream
        })
        .collect();
    eventually("they are accepted", || serving.stats().accepted >= 12);
    eventually("some make room for others", || serving.stats().connections <= 5);
    eventually("they are cut off", || serving.stats().cut_off >= 12);
    eventually("they are gone", || serving.stats().connections == 0);
    assert_eq!(serving.stats().encrypted, 0);
    drop(slow);
    connect(serving.address(), trusting(SECRET)).unwrap().close();
}

#[test]
fn server_without_a_handshake() {
    let listener = listen();
    let config = RemoteConfig {
        addresses: vec![listener.local_addr().unwrap().to_string()],
        volume: "v".into(),
        who: "test".into(),
        deadline: Duration::from_secs(6),
        tls: trusting(SECRET),
        token: None,
        session: None,
    };
    let why = Remote::connect(config, Arc::new(Bare)).err().unwrap().to_string();
    assert!(why.contains("no TLS handshake within 5 s"), "{why}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Bytes that are no handshake end their connection and nothing else.
    #[test]
    fn bytes_that_are_no_handshake(
        cut in 0usize..600,
        at in 0usize..600,
        flip in any::<u8>(),
        noise in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        static SERVING: std::sync::LazyLock<Serving> = std::sync::LazyLock::new(|| {
            serving(Some(server_tls(3, TlsMode::On))).0
        });
        // A true ClientHello, damaged, cut short, and followed by something else.
        let chosen = trusting(SECRET).choose([127, 0, 0, 1].into(), "x:1").unwrap().unwrap();
        let mut session = rustls::ClientConnection::new(chosen.config, chosen.name).unwrap();
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes).unwrap();
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= flip;
        }
        bytes.truncate(cut);
        bytes.extend_from_slice(&noise);
        let mut stream = TcpStream::connect(SERVING.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut answer);
        prop_assert!(answer.len() < 8192);
    }
}

#[test]
fn nothing_secret_is_shown() {
    let tls = server_tls(3, TlsMode::On);
    let now = SystemClock.now();
    let pem = authority(SECRET).issue("t-1", now, now + DAY).unwrap();
    let dir = TempDir::new().unwrap();
    let own = files(&dir, "own", &pem);
    let shown =
        format!("{tls:?} {:?} {own:?} {:?}", trusting(SECRET), authority(SECRET).fingerprint());
    assert!(!shown.contains("PRIVATE") && !shown.contains("07070707"), "{shown}");
}
