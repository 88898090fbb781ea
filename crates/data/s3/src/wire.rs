//! HTTP below the crate `object_store`, which signs requests and reads answers: every request of
//! the store passes [`Wire`]. It counts them, notes what came back in the attempt's [`Trace`] (the
//! crate's errors have it only as text), and looks into answers where the crate does not: errors
//! under status 200, listings that are shorter than they announce.
//!
//! | file | |
//! | --- | --- |
//! | `answer` | answers that are XML: error codes, and whether a page of a listing is whole |
//! | `date` | the date of an answer, to find clocks that differ |
//! | `trace` | what came back in one attempt |
//!
//! HTTP/1.1 with connections that are kept, TLS by rustls with ring. A connection that the store
//! closed while it was idle is replaced without counting as an attempt.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Uri, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};

use crate::executors::{self, Dialer, Http, IDLE_TIMEOUT};
use crate::stats::{Kind, S3Stats};

mod answer;
mod date;
mod trace;

pub(crate) use trace::{Seen, Trace, Traced};

/// Longest time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest answer that is looked into as a whole, bytes: 1000 keys of 1024 bytes, escaped, are
/// below it.
const LOOKED_INTO_BYTES_MAX: usize = 16 << 20;

/// What makes connections to the store at `bucket_url`: with TLS if that is https or for
/// `always_tls`.
///
/// # Errors
/// If TLS is needed and the system has no root certificates.
pub(crate) fn dialer(bucket_url: &str, always_tls: bool) -> Result<Dialer, String> {
    let is_https = parsed(bucket_url)?.scheme_str() == Some("https");
    let tls = if always_tls || is_https { roots()? } else { rustls::RootCertStore::empty() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(tls)
        .with_no_client_auth();
    let mut tcp = Tcp::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(IDLE_TIMEOUT));
    Ok(hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp))
}

fn parsed(bucket_url: &str) -> Result<Uri, String> {
    bucket_url.parse().map_err(|error| format!("{bucket_url}: {error}"))
}

/// The store's HTTP service, on the executor of the calling thread.
pub(crate) struct Wire {
    /// Host and port of the store; requests to elsewhere are for credentials.
    authority: String,
    stats: Arc<S3Stats>,
}

impl Wire {
    /// A service for the store at `bucket_url`.
    ///
    /// # Errors
    /// If that is no URL.
    pub(crate) fn new(bucket_url: &str, stats: Arc<S3Stats>) -> Result<Self, String> {
        let authority =
            parsed(bucket_url)?.authority().map(ToString::to_string).unwrap_or_default();
        Ok(Self { authority, stats })
    }

    async fn send_to_store(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut head, body) = request.into_parts();
        let kind = kind_of(&head.method, &head.uri);
        let trace = Trace::current();
        if trace.must_be_new() && head.method == Method::POST {
            // Not among the signed headers, which S3 allows; object_store itself adds it in the
            // same way for copies.
            head.headers.insert(header::IF_NONE_MATCH, header::HeaderValue::from_static("*"));
        }
        self.stats.sent(kind, body.content_length() as u64);
        let answer =
            http()?.request(HttpRequest::from_parts(head, body)).await.map_err(|error| {
                trace.broken(&error);
                HttpError::new(HttpErrorKind::Request, error)
            })?;
        let (head, body) = answer.into_parts();
        trace.answered(head.status, kind == Kind::Head, &head.headers);
        if !head.status.is_success()
            || matches!(kind, Kind::List)
            || has_outcome(&head.headers, kind)
        {
            let bytes = whole(body, &trace).await?;
            if let Some(why) = answer::fault(kind, head.status, &bytes, &trace) {
                return Err(HttpError::new_boxed(HttpErrorKind::Decode, why.into()));
            }
            return Ok(HttpResponse::from_parts(head, HttpResponseBody::from(bytes)));
        }
        let stats = (kind == Kind::Get).then(|| Arc::clone(&self.stats));
        let body = body.map_frame(move |frame| {
            if let (Some(stats), Some(bytes)) = (&stats, frame.data_ref()) {
                stats.received(bytes.len() as u64);
            }
            frame
        });
        let body = body.map_err(move |error| {
            trace.broken(&error);
            HttpError::new(HttpErrorKind::Interrupted, error)
        });
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("authority", &self.authority).finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpService for Wire {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request.uri().authority().is_some_and(|authority| authority.as_str() == self.authority) {
            return self.send_to_store(request).await;
        }
        let answer = http()?
            .request(request)
            .await
            .map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
        let (head, body) = answer.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

/// Hands the one client to everything in `object_store` that talks HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Connector(HttpClient);

impl Connector {
    /// A connector that always gives this client.
    pub(crate) fn new(wire: Wire) -> Self {
        Self(HttpClient::new(wire))
    }

    /// The client.
    pub(crate) fn client(&self) -> HttpClient {
        self.0.clone()
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.0.clone())
    }
}

/// The client of the present executor. Requests are made below
/// [`Executors::block`](crate::executors::Executors::block) only.
fn http() -> Result<Http, HttpError> {
    executors::current().ok_or_else(|| {
        HttpError::new_boxed(HttpErrorKind::Request, "a request outside of a lane".into())
    })
}

/// The system's root certificates.
fn roots() -> Result<rustls::RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    let (good, _) = roots.add_parsable_certificates(found.certs);
    if good == 0 {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(format!(
            "this system has no root certificates to check the store's by{why}; install the \
             package ca-certificates or \
             name a file with SSL_CERT_FILE"
        ));
    }
    Ok(roots)
}

/// What a request does, by its method and query.
fn kind_of(method: &Method, uri: &Uri) -> Kind {
    match *method {
        Method::HEAD => Kind::Head,
        Method::DELETE => Kind::Delete,
        Method::GET if uri.query().is_some_and(|query| query.contains("list-type=")) => Kind::List,
        Method::GET => Kind::Get,
        _ => Kind::Put,
    }
}

/// Whether an answer under status 200 has a body with the outcome (multipart uploads).
fn has_outcome(headers: &http::HeaderMap, kind: Kind) -> bool {
    kind == Kind::Put && headers.get(header::CONTENT_LENGTH).is_none_or(|length| length != "0")
}

/// The body as a whole, within bounds.
async fn whole(body: Incoming, trace: &Trace) -> Result<Bytes, HttpError> {
    match Limited::new(body, LOOKED_INTO_BYTES_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => {
            trace.broken(&*error);
            Err(HttpError::new_boxed(HttpErrorKind::Interrupted, error))
        }
    }
}
