//! etcd's API v3 by its JSON gateway: one request after another to whichever member answers.
//!
//! An attempt that fails may have been carried out all the same, so everything that changes
//! something compares first ([`crate::store`]), and a second attempt does no harm.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kestrel_engine::EngineError;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::url::EtcdUrl;

/// Longest time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time for an answer to what changes or reads little: then another member is tried.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// The same for an answer with many rows.
const LONG_ATTEMPT_MAX: Duration = Duration::from_secs(10);
/// Pause between attempts.
pub const PAUSE: Duration = Duration::from_millis(100);
/// How long a connection is kept without use.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer, bytes: all rows that a shard may have, in base64.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// gRPC's codes of what goes wrong, as far as they matter here.
mod code {
    pub const NOT_FOUND: u64 = 5;
    pub const PERMISSION_DENIED: u64 = 7;
    pub const RESOURCE_EXHAUSTED: u64 = 8;
    pub const UNAUTHENTICATED: u64 = 16;
    pub const UNKNOWN: u64 = 2;
    /// Cancelled, unknown, deadline exceeded, aborted, internal, unavailable: what may pass.
    pub const PASSING: [u64; 6] = [1, UNKNOWN, 4, 10, 13, 14];
}

/// Why there is no answer.
#[derive(Debug)]
pub enum RequestError {
    /// Trying again may help; the request may have been carried out.
    Passing(EngineError),
    /// etcd is full, and has done nothing.
    Full,
    /// The thing that the request is about is not there.
    Missing,
    /// Trying again does not help.
    Final(EngineError),
}

impl RequestError {
    /// What it is.
    pub fn why(self) -> EngineError {
        match self {
            RequestError::Passing(why) | RequestError::Final(why) => why,
            RequestError::Full => EngineError::NoSpace,
            RequestError::Missing => io("what was asked for is not there"),
        }
    }
}

/// An error in words.
pub fn io(why: impl std::fmt::Display) -> EngineError {
    EngineError::Io(format!("metadata in etcd: {why}"))
}

fn passing(why: impl std::fmt::Display) -> RequestError {
    RequestError::Passing(io(why))
}

/// Bytes as JSON has them.
pub fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a member of a JSON object; one that is not there is empty, as etcd leaves out what
/// is.
pub fn decoded(object: &Value, name: &str) -> Result<Vec<u8>, EngineError> {
    let text = object.get(name).and_then(Value::as_str).unwrap_or_default();
    STANDARD.decode(text).map_err(|_| io(format!("an answer has a {name} that is not base64")))
}

/// The number of a member of a JSON object, which etcd writes as a string; one that is not there is
/// zero.
pub fn number(object: &Value, name: &str) -> u64 {
    object.get(name).and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A connection to an etcd, shared by all that use it.
pub struct Client {
    pub url: EtcdUrl,
    http: Http<HttpsConnector<Tcp>, Full<Bytes>>,
    /// The member that gets the next request; counts on.
    at: AtomicUsize,
    /// What it gave for the password.
    token: Mutex<Option<String>>,
    /// Since when a request is open and nothing answered.
    unanswered: Mutex<Option<Instant>>,
}

impl Client {
    /// A client; it sends nothing yet. To be used on a tokio runtime.
    ///
    /// # Errors
    /// If TLS is needed and there are no certificates to check etcd's by.
    pub fn new(url: EtcdUrl) -> Result<Arc<Self>, EngineError> {
        let is_tls = url.endpoints.iter().any(|endpoint| endpoint.starts_with("https"));
        let roots = if is_tls { roots(&url)? } else { RootCertStore::empty() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = Tcp::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let dialer = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let http = Http::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(dialer);
        let (at, token, unanswered) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
        Ok(Arc::new(Self { url, http, at, token, unanswered }))
    }

    /// How long etcd has left requests unanswered; zero if none is open.
    pub fn silence(&self) -> Duration {
        self.unanswered.lock().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// One attempt at a request that has a short answer.
    ///
    /// # Errors
    /// Adds what to do about it.
    pub async fn attempt(&self, path: &str, body: &Value) -> Result<Value, RequestError> {
        self.attempt_within(path, body, ATTEMPT_MAX).await
    }

    /// Sends a request until there is an answer or it is `until`. At least once.
    ///
    /// # Errors
    /// The last one.
    pub async fn request(
        &self,
        path: &str,
        body: &Value,
        until: Instant,
    ) -> Result<Value, RequestError> {
        self.request_within(path, body, ATTEMPT_MAX, until).await
    }

    /// The same for what may have a long answer.
    ///
    /// # Errors
    /// The last one.
    pub async fn request_large(
        &self,
        path: &str,
        body: &Value,
        until: Instant,
    ) -> Result<Value, RequestError> {
        self.request_within(path, body, LONG_ATTEMPT_MAX, until).await
    }

    async fn request_within(
        &self,
        path: &str,
        body: &Value,
        limit: Duration,
        until: Instant,
    ) -> Result<Value, RequestError> {
        loop {
            match self.attempt_within(path, body, limit).await {
                Err(RequestError::Passing(why)) if Instant::now() < until => {
                    log::debug!("{why}; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }

    async fn attempt_within(
        &self,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<Value, RequestError> {
        self.unanswered.lock().get_or_insert_with(Instant::now);
        let at = self.at.load(Ordering::Relaxed);
        let endpoint = &self.url.endpoints[at % self.url.endpoints.len()];
        let answer = match tokio::time::timeout(limit, self.authorised(endpoint, path, body)).await
        {
            Ok(answer) => answer,
            Err(_) => Err(passing(format!("{endpoint} does not answer"))),
        };
        if let Err(RequestError::Passing(_)) = answer {
            // The next attempt goes to the next member, unless another call has moved on already.
            let _ = self.at.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            *self.unanswered.lock() = None;
        }
        answer
    }

    /// With a token, if there is a user; one that has expired is replaced once.
    async fn authorised(
        &self,
        endpoint: &str,
        path: &str,
        body: &Value,
    ) -> Result<Value, RequestError> {
        let Some((user, password)) = &self.url.user else {
            return self
                .post(endpoint, path, body, None)
                .await
                .map_err(|error| error.request_error(endpoint));
        };
        for is_last in [false, true] {
            let held = self.token.lock().clone();
            let token = match held {
                Some(token) => token,
                None => {
                    let who = json!({ "name": user, "password": password });
                    let given = self.post(endpoint, "auth/authenticate", &who, None).await;
                    let given = given.map_err(|error| error.request_error(endpoint))?;
                    let token =
                        given.get("token").and_then(Value::as_str).unwrap_or_default().to_string();
                    *self.token.lock() = Some(token.clone());
                    token
                }
            };
            match self.post(endpoint, path, body, Some(&token)).await {
                // A user or a role was changed since: older tokens are of no use.
                Err(error) if error.is_outdated() && !is_last => *self.token.lock() = None,
                done => return done.map_err(|error| error.request_error(endpoint)),
            }
        }
        Err(passing("no token was accepted"))
    }

    async fn post(
        &self,
        endpoint: &str,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> Result<Value, EtcdError> {
        let broken = |why: String| EtcdError { code: code::UNKNOWN, text: why };
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{endpoint}/v3/{path}"))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|why| broken(format!("a request cannot be made: {why}")))?;
        let answer = self.http.request(request).await.map_err(|why| broken(chain(&why)))?;
        let status = answer.status();
        let whole = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let bytes = whole.map_err(|why| broken(format!("an answer broke off: {why}")))?.to_bytes();
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| {
            broken(format!("it says {status}, which is no answer of etcd's gateway"))
        })?;
        // A stream's errors come under status 200.
        let error = value.get("error").filter(|error| !error.is_null());
        if status == StatusCode::OK && error.is_none() {
            return Ok(value);
        }
        let object = error.filter(|error| error.is_object()).unwrap_or(&value);
        let code = object.get("code").or(object.get("grpc_code")).and_then(Value::as_u64);
        let text = object.get("message").or(object.get("error")).and_then(Value::as_str);
        let text = text.map_or_else(|| status.to_string(), str::to_string);
        Err(EtcdError { code: code.unwrap_or(code::UNKNOWN), text })
    }
}

/// An error of etcd, or of the way to it.
struct EtcdError {
    code: u64,
    text: String,
}

impl EtcdError {
    /// Whether another token may be accepted.
    fn is_outdated(&self) -> bool {
        self.code == code::UNAUTHENTICATED || self.text.contains("revision of auth store is old")
    }

    fn request_error(self, endpoint: &str) -> RequestError {
        let outdated = self.is_outdated();
        let Self { code, text } = self;
        let refused = |help: &str| {
            RequestError::Final(EngineError::Refused(format!(
                "metadata in etcd: {endpoint}: {text}; {help}"
            )))
        };
        match code {
            code::NOT_FOUND => RequestError::Missing,
            code::RESOURCE_EXHAUSTED if text.contains("space exceeded") => RequestError::Full,
            code::RESOURCE_EXHAUSTED => passing(format!("{endpoint}: {text}")),
            code::PERMISSION_DENIED => {
                refused("give the user the role to read and write below the URL's prefix")
            }
            code::UNAUTHENTICATED => refused("see to user and password"),
            // What is sent again compares first.
            _ if outdated => passing(format!("{endpoint}: {text}")),
            _ if text.contains("user name is empty") || text.contains("authentication failed") => {
                refused(
                    "name a user in the URL, and give its password in ETCDCTL_PASSWORD or \
                     ?passfile=FILE",
                )
            }
            _ if text.contains("authentication is not enabled") => {
                refused("leave the user out of the URL")
            }
            _ if code::PASSING.contains(&code) => passing(format!("{endpoint}: {text}")),
            _ => RequestError::Final(io(format!("{endpoint}: {text}"))),
        }
    }
}

/// An error with what lies below it.
fn chain(why: &dyn std::error::Error) -> String {
    let mut text = why.to_string();
    let mut source = why.source();
    while let Some(why) = source {
        text = format!("{text}: {why}");
        source = why.source();
    }
    text
}

/// The authorities that may sign etcd's certificate.
fn roots(url: &EtcdUrl) -> Result<RootCertStore, EngineError> {
    let mut roots = RootCertStore::empty();
    let Some(file) = &url.ca else {
        let (good, _) =
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if good == 0 {
            return Err(EngineError::Refused(
                "metadata in etcd: this system has no root certificates to check etcd's by; \
                 install the package ca-certificates or name a \
                 file with ?ca=FILE"
                    .into(),
            ));
        }
        return Ok(roots);
    };
    let bad =
        |why: String| EngineError::Refused(format!("metadata in etcd: {}: {why}", file.display()));
    let text = fs::read(file).map_err(|why| bad(why.to_string()))?;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate =
            certificate.map_err(|why| bad(format!("it is no certificate ({why})")))?;
        roots
            .add(certificate)
            .map_err(|why| bad(format!("a certificate of it cannot be used ({why})")))?;
    }
    if roots.is_empty() {
        return Err(bad("it holds no certificate".into()));
    }
    Ok(roots)
}
