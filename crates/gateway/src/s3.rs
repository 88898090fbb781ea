//! S3 on top of HTTP: what the crate s3s is told, and what is refused before it looks.

use std::sync::Arc;

use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderName};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::host::SingleDomain;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, S3Error, S3ErrorCode};

use crate::access_keys::{Keyring, KeyringAuth};
use crate::body::{BodyProgress, RequestBody};
use crate::error::refused;
use crate::metrics::GatewayMetrics;
use crate::server::{AnyError, Protocol};
use crate::service::{CountedAccess, GatewayService};

/// Largest body of a request that is XML: 10,000 parts with their checksums.
const XML_BYTES_MAX: usize = 4 << 20;

/// How far a client's clock may be off, seconds: S3's limit.
const SKEW_MAX_SECONDS: u32 = 15 * 60;

/// S3.
pub struct S3Protocol(S3Service);

impl S3Protocol {
    /// For these access keys. Buckets are in `region`, and with a `domain` also names before it:
    /// `BUCKET.DOMAIN`.
    ///
    /// # Errors
    /// If the domain is none.
    pub fn new(
        keyring: Arc<Keyring>,
        region: String,
        domain: Option<&str>,
        metrics: Arc<GatewayMetrics>,
    ) -> Result<Self, String> {
        let mut builder = S3ServiceBuilder::new(GatewayService::new(keyring.clone(), region));
        builder.set_auth(KeyringAuth(keyring));
        builder.set_access(CountedAccess(metrics));
        if let Some(domain) = domain {
            let host = SingleDomain::new(domain);
            builder.set_host(host.map_err(|why| format!("--domain {domain}: {why}"))?);
        }
        let mut limits = S3Config::default();
        limits.xml_max_body_size = XML_BYTES_MAX;
        limits.presigned_url_max_skew_time_secs = SKEW_MAX_SECONDS;
        // Forms of browsers are refused before they are read.
        limits.post_object_max_file_size = 0;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(limits))));
        Ok(Self(builder.build()))
    }
}

impl Protocol for S3Protocol {
    type Body = Body;

    const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");

    const BUSY: (&'static str, &'static str) = (
        "application/xml",
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code><Message>there are \
         too many connections; try again later</Message></Error>",
    );

    fn empty() -> Body {
        Body::empty()
    }

    fn claimed_key(request: &Request<Incoming>) -> Option<String> {
        claimed_key(request)
    }

    fn logged_query(query: &str) -> String {
        without_signature(query)
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        progress: Arc<BodyProgress>,
    ) -> Result<Response<Body>, AnyError> {
        if let Some(error) = refusal(&request) {
            return Ok(error.to_http_response()?);
        }
        let is_head = request.method() == Method::HEAD;
        let kind = request.headers().get("x-amz-content-sha256");
        let is_chunked = kind.is_some_and(|value| value.as_bytes().starts_with(b"STREAMING-"));
        let request =
            request.map(|body| Body::http_body(RequestBody::new(body, is_chunked, progress)));
        let mut response = self.0.call(request).await.map_err(s3s::StdError::from)?;
        // The protocol library takes no status for this answer.
        if is_head
            && response.status() == StatusCode::OK
            && response.headers().contains_key(CONTENT_RANGE)
        {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        Ok(response)
    }
}

/// What is refused before anything else looks at it.
fn refusal(request: &Request<Incoming>) -> Option<S3Error> {
    let query = request.uri().query().unwrap_or_default();
    let header = request.headers().get(AUTHORIZATION);
    let is_old = header.is_some_and(|value| value.as_bytes().starts_with(b"AWS "))
        || query.split('&').any(|pair| pair.starts_with("AWSAccessKeyId="));
    if is_old {
        let why = "signatures of version 2 are not taken; use version 4";
        return Some(refused(S3ErrorCode::InvalidRequest, why));
    }
    let kind = request.headers().get(CONTENT_TYPE).map(|value| value.as_bytes());
    let is_form = kind.is_some_and(|kind| {
        kind.get(..10).is_some_and(|begin| begin.eq_ignore_ascii_case(b"multipart/"))
    });
    if request.method() == Method::POST && is_form {
        let why = "forms of browsers are not taken; use a signed PUT";
        return Some(refused(S3ErrorCode::NotImplemented, why));
    }
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length: Option<usize> = length.and_then(|length| length.parse().ok());
    if request.method() == Method::POST && length.is_some_and(|length| length > XML_BYTES_MAX) {
        let why = "a request of this kind has a body of at most 4 MiB";
        return Some(refused(S3ErrorCode::EntityTooLarge, why));
    }
    None
}

/// The access key that a request names.
fn claimed_key(request: &Request<Incoming>) -> Option<String> {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let of_header = header.and_then(|text| text.split_once("Credential=")).map(|(_, rest)| rest);
    let query = request.uri().query().unwrap_or_default();
    let of_query = query.split('&').find_map(|pair| pair.strip_prefix("X-Amz-Credential="));
    let text = of_header.or(of_query)?;
    let end = text.find(['/', '%', ',', '&']).unwrap_or(text.len());
    Some(text[..end].to_string())
}

/// A query without what a presigned URL proves.
fn without_signature(query: &str) -> String {
    let shown = |pair: &str| match pair.split_once('=') {
        Some((name @ ("X-Amz-Signature" | "X-Amz-Security-Token"), _)) => format!("{name}=-"),
        _ => pair.to_string(),
    };
    query.split('&').map(shown).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What proves something is not in the log.
    #[test]
    fn log_without_signatures() {
        let query = "list-type=2&X-Amz-Signature=secret&X-Amz-Security-Token=secret&prefix=a";
        let shown = without_signature(query);
        assert!(!shown.contains("secret") && shown.contains("prefix=a"), "{shown}");
    }
}
