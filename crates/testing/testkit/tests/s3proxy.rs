//! The proxy between a client and a store that are both parts of this test. `tests/s3/proxy.sh`
//! tests it on a real store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use kestrel_testkit::s3proxy::control::request_control;
use kestrel_testkit::s3proxy::http::{Collector, Framing, Head, answer, pass_body};
use kestrel_testkit::s3proxy::server::{Proxy, Server, start};
use kestrel_testkit::s3proxy::socket::Address;

const BODY: &[u8] = b"what the store holds, long enough to be cut somewhere";

/// A request as the store got it: its head, and its body without framing.
type Request = (Vec<u8>, Vec<u8>);

/// A store that sends every request that it gets to a channel, and answers a GET with `BODY`,
/// everything else with nothing.
fn store() -> (SocketAddr, mpsc::Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut client = BufReader::new(client);
                while let Ok(Some(head)) = Head::read(&mut client) {
                    let mut body = Collector { bytes: Vec::new(), limit: 1 << 20 };
                    pass_body(head.request_framing(), &mut client, &mut body).unwrap();
                    let content = if head.word(0) == "GET" { BODY } else { b"" };
                    let _ = sender.send((head.raw().to_vec(), body.bytes));
                    if answer(client.get_mut(), "200 OK", "x/y", content, true).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, requests)
}

fn proxy(store: SocketAddr) -> Server {
    start(Proxy::new(Address::Tcp(store.to_string()), 3, None), "127.0.0.1:0", "127.0.0.1:0")
        .unwrap()
}

fn rules(server: &Server, rules: &str) {
    request_control(&server.control.to_string(), "PUT", "/rules", rules).unwrap();
}

/// Sends bytes on a new connection; the head of the answer and what of its body came before the
/// end.
fn send(server: &Server, request: &[u8]) -> Option<(Head, Vec<u8>)> {
    let mut client = BufReader::new(TcpStream::connect(server.address).unwrap());
    client.get_ref().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client.get_mut().write_all(request).unwrap();
    let head = Head::read(&mut client).ok()??;
    let mut body = Vec::new();
    if let Framing::Length(length) = head.answer_framing("GET") {
        // A body that is cut off is one of the things to be seen.
        let _ = client.take(length).read_to_end(&mut body);
    }
    Some((head, body))
}

const GET: &[u8] =
    b"GET /b/k HTTP/1.1\r\nHost: store.example:9\r\nAuthorization: AWS4 odd  spaces\r\n\r\n";

#[test]
fn requests_arrive_byte_by_byte() {
    let (address, requests) = store();
    let server = proxy(address);
    let (head, body) = send(&server, GET).unwrap();
    assert_eq!((head.status(), body.as_slice()), (200, BODY));
    assert_eq!(requests.recv().unwrap().0, GET);
    let put = b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;s=1\r\nabc\r\n0\r\n\r\n";
    assert_eq!(send(&server, put).unwrap().0.status(), 200);
    let (head, body) = requests.recv().unwrap();
    assert_eq!((head.as_slice(), body.as_slice()), (&put[..put.len() - 17], &b"abc"[..]));
}

#[test]
fn faults_hit_before_and_behind_the_store() {
    let (address, requests) = store();
    let server = proxy(address);
    for (fault, reaches) in [("status:code=503", false), ("reset", false), ("lost-answer", true)] {
        rules(&server, fault);
        let got = send(&server, GET);
        assert_eq!(
            got.map(|(head, _)| head.status()),
            (fault == "status:code=503").then_some(503),
            "{fault}"
        );
        assert_eq!(requests.recv_timeout(Duration::from_millis(300)).is_ok(), reaches, "{fault}");
    }
}

#[test]
fn damaged_bodies() {
    let (address, _told) = store();
    let server = proxy(address);
    for (fault, is_it) in [
        (
            "truncate",
            (|announced, got| announced == BODY.len() && got.len() < announced)
                as fn(usize, &[u8]) -> bool,
        ),
        ("short", |announced, got| announced < BODY.len() && got == &BODY[..announced]),
        ("long", |announced, got| {
            announced > BODY.len() && got.len() == announced && got.starts_with(BODY)
        }),
        ("wrong-bytes", |announced, got| {
            announced == BODY.len() && got.len() == announced && got != BODY
        }),
    ] {
        rules(&server, fault);
        let (head, body) = send(&server, GET).unwrap();
        let announced = head.header("content-length").unwrap().parse().unwrap();
        assert!(
            is_it(announced, &body),
            "{fault}: {announced} bytes announced, {} came",
            body.len()
        );
    }
}

#[test]
fn end_of_hangs_by_new_rules() {
    let (address, requests) = store();
    let server = proxy(address);
    rules(&server, "hang");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| send(&server, GET));
        // It is counted before it hangs.
        while !request_control(&server.control.to_string(), "GET", "/counts", "")
            .unwrap()
            .contains("\"hang\":1")
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        rules(&server, "");
        assert!(waiting.join().unwrap().is_none());
    });
    assert!(requests.try_recv().is_err());
    assert_eq!(send(&server, GET).unwrap().1, BODY);
}

#[test]
fn a_store_that_is_not_there_resets() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(send(&proxy(nobody), GET).is_none());
}
