//! Connections: HTTP/1.1, with TLS or without, within limits.
//!
//! - At most [`ServerConfig::connections_max`] connections. One above that is answered with status
//!   503 and closed.
//! - A client has [`HEAD_MAX`] for TLS and for the head of each request, also between two requests,
//!   and [`crate::body::IDLE_MAX`] between two pieces of a body. One that does not take its answer
//!   is cut off by the kernel after [`UNTAKEN_MAX`].
//! - What a connection keeps in memory is its buffers and one piece of the body that it sends or
//!   gets, whatever the size of an object.
//! - At the end no connection is taken any more; requests that are under way get
//!   [`ServerConfig::stop_within`].

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, SERVER, USER_AGENT,
};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kestrel_types::clock::{Clock, SystemClock};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::access_log::{AccessEntry, AccessLog};
use crate::body::BodyProgress;
use crate::metrics::GatewayMetrics;

/// How long a client may take for TLS, and for the head of a request.
pub const HEAD_MAX: Duration = Duration::from_secs(60);

/// How long the kernel waits for a client that takes nothing of what is sent to it.
pub const UNTAKEN_MAX: Duration = Duration::from_secs(60);

/// Largest head of a request, and buffer of a connection, bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Most threads that wait for metadata and for room. Requests above that wait for one of them.
const WAITING_THREADS_MAX: usize = 128;

/// Stack of a thread, bytes: trees are walked by recursion, and a path has up to 2,047 directories.
const STACK_BYTES: usize = 16 << 20;

/// Pause after a failure to take a connection (of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An error of any kind.
pub type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// What a gateway speaks on top of HTTP.
pub trait Protocol: Send + Sync + 'static {
    /// Body of an answer.
    type Body: Body<Data = Bytes, Error: Into<AnyError>> + Send + Unpin + 'static;

    /// Header of an answer that has the number of the request.
    const REQUEST_ID: HeaderName;

    /// What a connection is answered that is one too many: the type of the body, and the body.
    const BUSY: (&'static str, &'static str);

    /// A body without bytes.
    fn empty() -> Self::Body;

    /// The access key that a request names, whether or not it proves it.
    fn claimed_key(request: &Request<Incoming>) -> Option<String>;

    /// A query as the access log has it: without what proves something.
    fn logged_query(query: &str) -> String;

    /// Answers a request. How far its body has come is told in `progress`.
    ///
    /// # Errors
    /// If there is no answer; the client gets status 500.
    fn answer(
        &self,
        request: Request<Incoming>,
        progress: Arc<BodyProgress>,
    ) -> impl Future<Output = Result<Response<Self::Body>, AnyError>> + Send;
}

/// How a gateway serves.
pub struct ServerConfig {
    /// Where.
    pub listen: SocketAddr,
    /// Most connections.
    pub connections_max: usize,
    /// TLS; none: all is in clear.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// The access log, if one is kept.
    pub access_log: Option<AccessLog>,
    /// How long requests get at the end.
    pub stop_within: Duration,
}

/// A gateway that serves.
pub struct Gateway {
    runtime: Option<Runtime>,
    metrics: Arc<GatewayMetrics>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    stop_within: Duration,
}

/// What connections share.
struct Shared<P> {
    protocol: P,
    metrics: Arc<GatewayMetrics>,
    access_log: Option<AccessLog>,
    tls: Option<TlsAcceptor>,
    room: Arc<Semaphore>,
    requests: AtomicU64,
    begun: u32,
}

impl Gateway {
    /// Begins to serve.
    ///
    /// # Errors
    /// If the address cannot be listened on, or there are no threads.
    pub fn start<P: Protocol>(
        config: ServerConfig,
        protocol: P,
        metrics: Arc<GatewayMetrics>,
    ) -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores.clamp(2, 32))
            .max_blocking_threads(WAITING_THREADS_MAX)
            .thread_stack_size(STACK_BYTES)
            .thread_name("kestrel-gateway")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|why| format!("starting threads: {why}"))?;
        let listen = config.listen;
        let failed = |why: std::io::Error| format!("--listen {listen}: {why}");
        let listener = runtime.block_on(TcpListener::bind(listen)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            protocol,
            metrics: metrics.clone(),
            access_log: config.access_log,
            tls: config.tls.map(TlsAcceptor::from),
            room: Arc::new(Semaphore::new(config.connections_max)),
            requests: AtomicU64::new(0),
            begun: (SystemClock.now() >> 20) as u32,
        });
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(take_connections(listener, shared, stopped));
        let stop_within = config.stop_within;
        Ok(Self { runtime: Some(runtime), metrics, address, stop, stop_within })
    }

    /// Where it listens: the port that was chosen, if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counts.
    pub fn metrics(&self) -> Arc<GatewayMetrics> {
        self.metrics.clone()
    }

    /// Takes no connection any more, waits for the requests that are under way, and ends.
    pub fn stop(mut self) {
        // Nobody listens if all connections have ended.
        let _ = self.stop.send(true);
        let until = Instant::now() + self.stop_within;
        let Some(runtime) = self.runtime.take() else { return };
        runtime.block_on(async {
            while self.metrics.connections.load(Ordering::Relaxed) > 0 && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let left = self.metrics.connections.load(Ordering::Relaxed);
        if left > 0 {
            log::warn!("gateway: {left} connections are cut off");
        }
        runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

/// Counts a connection while it is there.
struct Counted(Arc<GatewayMetrics>);

impl Counted {
    fn new(metrics: &Arc<GatewayMetrics>) -> Self {
        metrics.connections.fetch_add(1, Ordering::Relaxed);
        metrics.connections_total.fetch_add(1, Ordering::Relaxed);
        Self(metrics.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn take_connections<P: Protocol>(
    listener: TcpListener,
    shared: Arc<Shared<P>>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        let taken = tokio::select! {
            taken = listener.accept() => taken,
            _ = stopped.changed() => return,
        };
        let (stream, from) = match taken {
            Ok(taken) => taken,
            Err(why) => {
                log::warn!("gateway: no connection can be taken: {why}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(room) = shared.room.clone().try_acquire_owned() else {
            shared.metrics.connections_refused.fetch_add(1, Ordering::Relaxed);
            if shared.tls.is_none() {
                tokio::spawn(turn_away(stream, P::BUSY));
            }
            continue;
        };
        let counted = Counted::new(&shared.metrics);
        let (shared, stopped) = (shared.clone(), stopped.clone());
        tokio::spawn(async move {
            connection(stream, from, shared, stopped).await;
            drop((room, counted));
        });
    }
}

/// Tells a client that there are too many.
async fn turn_away(mut stream: TcpStream, (kind, body): (&str, &str)) {
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: {kind}\r\nRetry-After: \
         1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let tell = async {
        stream.write_all(head.as_bytes()).await?;
        stream.shutdown().await
    };
    // Whether the client hears it is its business.
    let _ = tokio::time::timeout(Duration::from_secs(1), tell).await;
}

async fn connection<P: Protocol>(
    stream: TcpStream,
    from: SocketAddr,
    shared: Arc<Shared<P>>,
    stopped: watch::Receiver<bool>,
) {
    let socket = socket2::SockRef::from(&stream);
    let set = stream.set_nodelay(true).and(socket.set_tcp_user_timeout(Some(UNTAKEN_MAX)));
    if let Err(why) = set {
        log::debug!("gateway: {from}: {why}");
    }
    match &shared.tls {
        None => serve(stream, from, shared.clone(), stopped).await,
        Some(tls) => match tokio::time::timeout(HEAD_MAX, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve(stream, from, shared.clone(), stopped).await,
            Ok(Err(why)) => log::debug!("gateway: {from}: TLS: {why}"),
            Err(_) => log::debug!("gateway: {from}: no TLS within {} s", HEAD_MAX.as_secs()),
        },
    }
}

async fn serve<P: Protocol>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    from: SocketAddr,
    shared: Arc<Shared<P>>,
    mut stopped: watch::Receiver<bool>,
) {
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(&shared, from, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(why) = ended {
        log::debug!("gateway: {from}: {why}");
    }
}

/// A request that is not answered yet, for the log.
struct Pending {
    id: String,
    method: Method,
    uri: Uri,
    key: Option<String>,
    agent: Option<String>,
    progress: Arc<BodyProgress>,
    begun: Instant,
}

async fn answer<P: Protocol>(
    shared: &Arc<Shared<P>>,
    from: SocketAddr,
    request: Request<Incoming>,
) -> Response<AnswerBody<P::Body>> {
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    let agent = request.headers().get(USER_AGENT).and_then(|value| value.to_str().ok());
    let pending = Pending {
        id: format!("{:08X}{number:08X}", shared.begun),
        method: request.method().clone(),
        uri: request.uri().clone(),
        key: P::claimed_key(&request),
        agent: agent.map(String::from),
        progress: Arc::default(),
        begun: Instant::now(),
    };
    shared.metrics.requests.fetch_add(1, Ordering::Relaxed);
    let in_flight = InFlight(shared.metrics.clone());
    let is_expecting = request.headers().contains_key(EXPECT);
    let answered = shared.protocol.answer(request, pending.progress.clone()).await;
    let mut response = answered.unwrap_or_else(|why| {
        log::warn!("gateway: request {}: {why}", pending.id);
        let mut response = Response::new(P::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    response.headers_mut().insert(SERVER, HeaderValue::from_static("KestrelFS"));
    if let Ok(id) = HeaderValue::from_str(&pending.id) {
        response.headers_mut().insert(P::REQUEST_ID, id);
    }
    // A client that waits for leave to send its body, and is answered instead, may send it or not;
    // botocore is confused by that until the connection is closed.
    let progress = &pending.progress;
    let is_whole = progress.ended.load(Ordering::Relaxed);
    let is_begun = progress.bytes.load(Ordering::Relaxed) > 0;
    if !is_whole || (is_expecting && !is_begun) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    tell(shared, from, &pending, &response);
    response.map(|inner| AnswerBody { inner, in_flight })
}

fn tell<P: Protocol>(
    shared: &Shared<P>,
    from: SocketAddr,
    pending: &Pending,
    response: &Response<P::Body>,
) {
    let after = pending.begun.elapsed();
    let status = response.status().as_u16();
    let received = pending.progress.bytes.load(Ordering::Relaxed);
    shared.metrics.answered(&pending.method, status, after);
    shared.metrics.received_bytes.fetch_add(received, Ordering::Relaxed);
    if let Some(access_log) = &shared.access_log {
        let length = response.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
        let entry = AccessEntry {
            id: &pending.id,
            from,
            key: pending.key.as_deref(),
            method: &pending.method,
            path: pending.uri.path(),
            query: pending.uri.query().map(P::logged_query),
            agent: pending.agent.as_deref(),
            status,
            received,
            sent: length.or_else(|| response.body().size_hint().exact()),
            after,
        };
        access_log.tell(SystemClock.now(), &entry);
    }
}

/// Counts a request until its answer is sent.
struct InFlight(Arc<GatewayMetrics>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer.
struct AnswerBody<B> {
    inner: B,
    in_flight: InFlight,
}

impl<B: Body<Data = Bytes, Error: Into<AnyError>> + Unpin> Body for AnswerBody<B> {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            let sent = &self.in_flight.0.sent_bytes;
            sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
