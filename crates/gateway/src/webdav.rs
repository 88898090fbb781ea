//! WebDAV over a volume: `kestrel webdav`.
//!
//! | file | |
//! | --- | --- |
//! | `webdav/request.rs` | a request, as the operations know it |
//! | `webdav/basic.rs` | access keys as user and password of a request |
//! | `webdav/files.rs` | the operations, as the protocol library asks for them |
//! | `webdav/open_file.rs` | files that are read or written |
//! | `webdav/attributes.rs` | attributes as clients see them |
//! | `webdav/properties.rs` | properties of clients, in an extended attribute |
//! | `webdav/locks.rs` | locks of clients, which end |
//! | `webdav/xml.rs` | bodies that are XML, and their limits |
//!
//! The crate dav-server speaks the protocol. What it does otherwise is done here:
//!
//! - a file that replaces another one (PUT, MOVE, COPY) takes its place at once and whole;
//! - a file that becomes shorter while it is sent ends the connection: no zeros in place of bytes;
//! - a listing that cannot be completed ends the connection: no entry is missing without a word;
//! - locks end when their time is over;
//! - XML that is deeply nested is refused before it is read into a tree.

mod attributes;
mod basic;
mod files;
mod locks;
mod open_file;
mod properties;
mod request;
mod xml;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use dav_server::davpath::DavPath;
use dav_server::{DavHandler, DavMethod, DavMethodSet};
use http::header::{HeaderName, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use kestrel_client::Fs;
use parking_lot::Mutex;
use s3s::S3ErrorCode;

use self::files::DavFiles;
use self::locks::LockTable;
use self::request::DavRequest;
use crate::access_keys::Keyring;
use crate::account::Account;
use crate::body::{BodyProgress, RequestBody};
use crate::metrics::GatewayMetrics;
use crate::server::{AnyError, Protocol};

/// What a client is told that gives no access key, or a wrong one.
const CHALLENGE: HeaderValue =
    HeaderValue::from_static("Basic realm=\"KestrelFS\", charset=\"UTF-8\"");

/// WebDAV.
pub struct WebdavProtocol {
    keyring: Arc<Keyring>,
    metrics: Arc<GatewayMetrics>,
    /// A handler for each file system: locks are of a file system.
    handlers: Mutex<Vec<(Arc<Fs>, DavHandler<DavRequest>)>>,
}

impl WebdavProtocol {
    /// For these access keys.
    pub fn new(keyring: Arc<Keyring>, metrics: Arc<GatewayMetrics>) -> Self {
        Self { keyring, metrics, handlers: Mutex::default() }
    }

    fn handler(&self, account: &Account) -> DavHandler<DavRequest> {
        let mut handlers = self.handlers.lock();
        if let Some((_, handler)) = handlers.iter().find(|(fs, _)| Arc::ptr_eq(fs, &account.fs)) {
            return handler.clone();
        }
        let mut methods = DavMethodSet::all();
        methods.remove(DavMethod::Report);
        let handler = DavHandler::builder()
            .filesystem(Box::new(DavFiles))
            .locksystem(Box::new(LockTable::default()))
            .read_buf_size(open_file::PIECE_BYTES)
            .autoindex(true)
            .methods(methods)
            .build_handler();
        handlers.push((account.fs.clone(), handler.clone()));
        handler
    }

    /// The account of a request; the answer if it has none.
    async fn account(
        &self,
        request: &Request<Incoming>,
    ) -> Result<(String, Arc<Account>), Response<DavBody>> {
        let unauthorized = || {
            let mut response =
                plain(StatusCode::UNAUTHORIZED, "an access key and its secret are needed\n");
            response.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE);
            response
        };
        let Some((key, secret)) = basic::credentials(request.headers()) else {
            return Err(unauthorized());
        };
        if !self.keyring.proves(&key, &secret) {
            return Err(unauthorized());
        }
        if let Some(account) = self.keyring.account_at_hand(&key) {
            return Ok((key, account));
        }
        let (keyring, id) = (self.keyring.clone(), key.clone());
        let opened = tokio::task::spawn_blocking(move || keyring.account(&id)).await;
        match opened {
            Ok(Ok(account)) => Ok((key, account)),
            Ok(Err(error)) if *error.code() == S3ErrorCode::ServiceUnavailable => {
                Err(plain(StatusCode::SERVICE_UNAVAILABLE, "the volume's server does not answer\n"))
            }
            Ok(Err(_)) => Err(unauthorized()),
            Err(why) => {
                log::error!("webdav: opening a session failed: {why}");
                Err(plain(StatusCode::INTERNAL_SERVER_ERROR, "the session could not be opened\n"))
            }
        }
    }
}

/// An answer in words.
fn plain(status: StatusCode, why: &'static str) -> Response<DavBody> {
    let mut response = Response::new(DavBody::of(dav_server::body::Body::from(why)));
    *response.status_mut() = status;
    response
}

/// Methods that change nothing.
fn only_reads(method: &Method) -> bool {
    matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS" | "PROPFIND")
}

/// Whether the path of a request can be one: each `%` in it begins the number of a byte.
fn is_path(request: &Request<Incoming>) -> bool {
    let path = request.uri().path();
    let is_byte = |text: &str| text.len() == 2 && text.bytes().all(|it| it.is_ascii_hexdigit());
    let escapes = path.split('%').skip(1);
    let mut escapes = escapes.map(|rest| rest.get(..2).is_some_and(is_byte));
    (path.starts_with('/') || request.method() == Method::OPTIONS) && escapes.all(|good| good)
}

/// Where a MOVE or COPY puts what it moves.
fn destination(request: &Request<Incoming>) -> Option<DavPath> {
    if !matches!(request.method().as_str(), "MOVE" | "COPY") {
        return None;
    }
    let text = request.headers().get("destination")?.to_str().ok()?;
    let uri: Uri = text.parse().ok()?;
    DavPath::new(uri.path()).ok()
}

impl Protocol for WebdavProtocol {
    type Body = DavBody;

    const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

    const BUSY: (&'static str, &'static str) =
        ("text/plain", "there are too many connections; try again later\n");

    fn empty() -> DavBody {
        DavBody::of(dav_server::body::Body::empty())
    }

    fn claimed_key(request: &Request<Incoming>) -> Option<String> {
        basic::credentials(request.headers()).map(|(key, _)| key)
    }

    fn logged_query(query: &str) -> String {
        query.into()
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        progress: Arc<BodyProgress>,
    ) -> Result<Response<DavBody>, AnyError> {
        let (key, account) = match self.account(&request).await {
            Ok(found) => found,
            Err(response) => return Ok(response),
        };
        self.metrics.operation(known_method(request.method()));
        if !only_reads(request.method()) && account.may_write().is_err() {
            return Ok(plain(StatusCode::FORBIDDEN, "this access key may only read\n"));
        }
        if !is_path(&request) {
            return Ok(plain(StatusCode::BAD_REQUEST, "the URL has no path that can be read\n"));
        }
        let handler = self.handler(&account);
        let context = DavRequest::new(&account, destination(&request));
        // Other answers say what failed.
        let is_listing = request.method().as_str() == "PROPFIND";
        let failed = is_listing.then(|| context.failed.clone());
        // A new content is durable before it has its name.
        let is_content = matches!(request.method().as_str(), "PUT" | "PATCH");
        let is_durable = only_reads(request.method()) || request.method() == Method::PUT;
        let (head, body) = request.into_parts();
        let body = RequestBody::new(body, false, progress);
        let response = if is_content {
            handler.handle_guarded(Request::from_parts(head, body), key, context).await
        } else {
            let body = match xml::read(body).await {
                Ok(body) => Full::new(body),
                Err((status, why)) => return Ok(plain(status, why)),
            };
            handler.handle_guarded(Request::from_parts(head, body), key, context).await
        };
        if !is_durable && !response.status().is_client_error() {
            request::blocking(move || account.call(|fs, done| fs.sync(done))).await?;
        }
        Ok(response.map(|inner| DavBody { inner, failed }))
    }
}

/// The name of a method for the metrics.
fn known_method(method: &Method) -> &'static str {
    const KNOWN: [&str; 13] = [
        "GET",
        "HEAD",
        "OPTIONS",
        "PROPFIND",
        "PROPPATCH",
        "PUT",
        "PATCH",
        "DELETE",
        "MKCOL",
        "COPY",
        "MOVE",
        "LOCK",
        "UNLOCK",
    ];
    KNOWN.iter().find(|known| **known == method.as_str()).copied().unwrap_or("other")
}

/// The body of an answer. It does not end well if something failed of which the answer says
/// nothing.
pub struct DavBody {
    inner: dav_server::body::Body,
    failed: Option<Arc<AtomicBool>>,
}

impl DavBody {
    fn of(inner: dav_server::body::Body) -> Self {
        Self { inner, failed: None }
    }
}

impl Body for DavBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if frame.is_none()
            && let Some(failed) = self.failed.take()
            && failed.load(Ordering::Relaxed)
        {
            let why = "the answer is not complete";
            return Poll::Ready(Some(Err(std::io::Error::other(why))));
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        use dav_server::body::BodyType;
        match &self.inner.inner {
            BodyType::Bytes(Some(bytes)) => SizeHint::with_exact(bytes.len() as u64),
            BodyType::Bytes(None) | BodyType::Empty => SizeHint::with_exact(0),
            BodyType::AsyncStream(_) => SizeHint::default(),
        }
    }
}
