//! A proxy in front of the server that does to each request what a test's script has.
//!
//! One thread a connection and one request a connection: simple enough to be trusted when a test
//! fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`.
    pub method: String,
    /// `/bucket/key?query`.
    pub target: String,
    /// All lines of the head but the first.
    pub headers: Vec<String>,
    /// Number of requests before it that had the same method and target.
    pub repeats: usize,
}

impl Request {
    /// Whether it is for an object.
    pub fn is_object(&self) -> bool {
        self.target.contains("/objects/")
    }

    /// Whether it is for a listing.
    pub fn is_list(&self) -> bool {
        self.target.contains("list-type=2")
    }
}

/// What is done to a request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Nothing.
    None,
    /// Answered by the proxy: status line's rest, further header lines, body.
    Answer(&'static str, Vec<String>, String),
    /// The connection ends before the server gets the request.
    Reset,
    /// The server does it, and its answer is lost.
    LostAnswer,
    /// The server does it, and another answer comes.
    Replaced(&'static str, String),
    /// The body ends after so many bytes.
    Truncated(usize),
    /// The answer's text is changed: what is found, what is put there. The length in the head is
    /// made to fit.
    Edited(&'static str, &'static str),
    /// Nothing comes back for so long, then the answer.
    Late(Duration),
}

/// A running proxy.
pub struct Proxy {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    stopped: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy to the server at `port`.
    pub fn start(port: u16, script: impl Fn(&Request) -> Fault + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let stopped = Arc::new(AtomicBool::new(false));
        let script = Arc::new(script);
        let (seen, stop) = (requests.clone(), stopped.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (seen, script) = (seen.clone(), script.clone());
                std::thread::spawn(move || {
                    // A client that goes away is what several tests are about.
                    let _ = serve(stream, port, &seen, &*script);
                });
            }
        });
        Self { port: own_port, requests, stopped }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// How many requests of a method were for objects.
    pub fn count(&self, method: &str) -> usize {
        self.requests()
            .iter()
            .filter(|request| request.method == method && request.is_object())
            .count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(
    client: TcpStream,
    port: u16,
    seen: &Mutex<Vec<Request>>,
    script: &(dyn Fn(&Request) -> Fault + Send + Sync),
) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let Some((request, body)) = read_request(&mut reader, seen)? else { return Ok(()) };
    let mut client = client;
    let fault = script(&request);
    match fault {
        Fault::Answer(status, headers, body) => {
            return answer(&mut client, status, &headers, body.as_bytes());
        }
        Fault::Reset => return client.shutdown(Shutdown::Both),
        Fault::Late(time) => std::thread::sleep(time),
        _ => {}
    }
    let (head, mut reply) = forward(port, &request, &body)?;
    match fault {
        Fault::LostAnswer => return client.shutdown(Shutdown::Both),
        Fault::Replaced(status, body) => return answer(&mut client, status, &[], body.as_bytes()),
        _ => {}
    }
    let mut head = head;
    if let Fault::Edited(from, to) = fault {
        let text = String::from_utf8_lossy(&reply).replace(from, to);
        reply = text.into_bytes();
        head.retain(|line| !line.to_ascii_lowercase().starts_with("content-length:"));
        head.push(format!("Content-Length: {}", reply.len()));
    }
    client.write_all((head.join("\r\n") + "\r\n\r\n").as_bytes())?;
    let sent = if let Fault::Truncated(len) = fault { len.min(reply.len()) } else { reply.len() };
    client.write_all(&reply[..sent])?;
    client.shutdown(Shutdown::Write)?;
    // Waits for the client to close, so that no unread byte turns the end into a reset.
    let _ = client.read(&mut [0; 16]);
    Ok(())
}

fn read_request(
    reader: &mut BufReader<TcpStream>,
    seen: &Mutex<Vec<Request>>,
) -> std::io::Result<Option<(Request, Vec<u8>)>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split_whitespace();
    let (method, target) = (
        words.next().unwrap_or_default().to_string(),
        words.next().unwrap_or_default().to_string(),
    );
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            break;
        }
        headers.push(line.trim_end().to_string());
    }
    let mut body = vec![0; content_length(&headers)];
    reader.read_exact(&mut body)?;
    let mut seen = seen.lock().unwrap();
    let repeats =
        seen.iter().filter(|before| before.method == method && before.target == target).count();
    let request = Request { method, target, headers, repeats };
    seen.push(request.clone());
    Ok(Some((request, body)))
}

/// The server's answer: lines of the head, body.
fn forward(port: u16, request: &Request, body: &[u8]) -> std::io::Result<(Vec<String>, Vec<u8>)> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.target);
    for line in
        request.headers.iter().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"))
    {
        head.push_str(line);
        head.push_str("\r\n");
    }
    head.push_str("Connection: close\r\n\r\n");
    server.write_all(head.as_bytes())?;
    // A server may answer before it has read everything.
    let _ = server.write_all(body);
    let mut reader = BufReader::new(server);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            break;
        }
        head.push(line.trim_end().to_string());
    }
    let mut reply = Vec::new();
    if request.method != "HEAD" {
        reader.read_to_end(&mut reply)?;
        let chunked =
            head.iter().any(|line| line.eq_ignore_ascii_case("transfer-encoding: chunked"));
        if chunked {
            head.retain(|line| !line.eq_ignore_ascii_case("transfer-encoding: chunked"));
            reply = unchunked(&reply);
            head.push(format!("Content-Length: {}", reply.len()));
        }
    }
    Ok((head, reply))
}

fn unchunked(mut chunks: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = chunks.windows(2).position(|pair| pair == b"\r\n") {
        let len = std::str::from_utf8(&chunks[..at])
            .ok()
            .and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(len) = len.filter(|len| *len > 0) else { break };
        out.extend_from_slice(&chunks[at + 2..at + 2 + len]);
        chunks = &chunks[at + 4 + len..];
    }
    out
}

fn content_length(headers: &[String]) -> usize {
    let found = headers.iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    found.unwrap_or(0)
}

fn answer(
    client: &mut TcpStream,
    status: &str,
    headers: &[String],
    body: &[u8],
) -> std::io::Result<()> {
    let mut head =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    for line in headers {
        head.push_str(line);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    client.write_all(head.as_bytes())?;
    client.write_all(body)?;
    client.shutdown(Shutdown::Write)?;
    let _ = client.read(&mut [0; 16]);
    Ok(())
}
