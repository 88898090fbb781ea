//! Figures for Prometheus over HTTP/1.0, on a loopback address: one request at a time, bounded in
//! size and time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest request that is read.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// Longest time for one request, from its first byte to the answer's last.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);

/// Makes the answer.
pub type Page = dyn Fn() -> String + Send + Sync;

/// The listening port; closed when dropped.
pub struct MetricsPort {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsPort {
    /// Serves `page` at `http://ADDRESS/metrics`.
    ///
    /// # Errors
    /// If the address is not a loopback address or cannot be listened on.
    pub fn serve(address: SocketAddr, page: Arc<Page>) -> Result<Self, String> {
        if !address.ip().is_loopback() {
            return Err(format!(
                "--metrics {address}: only loopback addresses; scrape through a local agent or \
                 tunnel"
            ));
        }
        let failed =
            |why: std::io::Error| format!("--metrics {address}: {why}; choose another port");
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let serve = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(stream) = stream
                    && let Err(error) = answer(stream, &*page)
                {
                    log::debug!("metrics: {error}");
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("kestrel-metrics".into())
            .spawn(serve)
            .map_err(failed)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where it listens: the port that was chosen, if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsPort {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread out of accept.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, page: &Page) -> std::io::Result<()> {
    let deadline = Instant::now() + REQUEST_TIME_MAX;
    stream.set_write_timeout(Some(REQUEST_TIME_MAX))?;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() >= REQUEST_BYTES_MAX {
            return respond(
                &mut stream,
                "400 Bad Request",
                "the request is too long or too slow\n",
            );
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        match stream.read(&mut part)? {
            0 => break,
            len => request.extend_from_slice(&part[..len]),
        }
    }
    let mut words = request.split(|byte| byte.is_ascii_whitespace());
    match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics" | b"/")) => respond(&mut stream, "200 OK", &page()),
        (Some(b"GET"), _) => respond(&mut stream, "404 Not Found", "only /metrics is here\n"),
        _ => respond(&mut stream, "405 Method Not Allowed", "only GET\n"),
    }
}

fn respond(stream: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: \
         {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        // A request that is refused early is not read to its end.
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn answers_what_it_should_and_refuses_the_rest() {
        let port =
            MetricsPort::serve("127.0.0.1:0".parse().unwrap(), Arc::new(|| "kestrel_x 1\n".into()))
                .unwrap();
        assert!(
            ask(port.address(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                .ends_with("\r\n\r\nkestrel_x 1\n")
        );
        assert!(ask(port.address(), "GET /other HTTP/1.1\r\n\r\n").contains("404"));
        assert!(ask(port.address(), "POST /metrics HTTP/1.1\r\n\r\n").contains("405"));
        ask(port.address(), &"x".repeat(3 * REQUEST_BYTES_MAX));
        assert!(
            ask(port.address(), "GET /metrics HTTP/1.0\r\n\r\n").contains("200 OK"),
            "still serves"
        );
        assert!(
            MetricsPort::serve("192.0.2.1:80".parse().unwrap(), Arc::new(String::new)).is_err()
        );
        assert!(MetricsPort::serve(port.address(), Arc::new(String::new)).is_err(), "taken");
    }
}
