//! What came back in one attempt, noted below the crate `object_store` and read above it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use kestrel_types::clock::Nanos;
use parking_lot::Mutex;

use super::date;

tokio::task_local! {
    /// The attempt that the present task makes; one task makes one at a time.
    static CURRENT: Trace;
}

/// Longest text of an answer that is repeated in messages, characters.
const TEXT_CHARS_MAX: usize = 200;

/// What came back.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Status of the store's answer; none if none came.
    pub(crate) status: Option<StatusCode>,
    /// The answer is to a HEAD: nothing explains its status.
    pub(crate) bare: bool,
    /// S3's code of the error (`NoSuchKey`), empty if there is none.
    pub(crate) code: String,
    /// S3's explanation.
    pub(crate) message: String,
    /// The store's clock.
    pub(crate) date: Option<Nanos>,
    /// Where the bucket really is, if the answer has it.
    pub(crate) region: Option<String>,
    /// How long the client is to wait, by the store's answer.
    pub(crate) retry_after: Option<Duration>,
    /// Why the connection failed.
    pub(crate) broken: Option<String>,
    /// The answer is whole and contradicts itself.
    pub(crate) contradicts: bool,
    /// It failed because the store's certificate is not one to be trusted.
    pub(crate) untrusted: bool,
}

/// A note of one attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace {
    seen: Arc<Mutex<Seen>>,
    must_be_new: bool,
}

/// Runs attempts with a trace each.
pub(crate) struct Traced;

impl Traced {
    /// Runs an attempt. `must_be_new`: what it completes must not replace an object.
    pub(crate) async fn run<T>(must_be_new: bool, attempt: impl Future<Output = T>) -> (T, Seen) {
        let trace = Trace { seen: Arc::default(), must_be_new };
        let done = CURRENT.scope(trace.clone(), attempt).await;
        let seen = trace.seen();
        (done, seen)
    }
}

impl Trace {
    /// The present attempt's; one that is never read if there is none.
    pub(crate) fn current() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }

    /// What has come back so far.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    /// Whether what the attempt completes must not replace an object.
    pub(crate) fn must_be_new(&self) -> bool {
        self.must_be_new
    }

    /// The store's clock, if an answer had it.
    pub(crate) fn date(&self) -> Option<Nanos> {
        self.seen.lock().date
    }

    /// Whether the last connection failed.
    pub(crate) fn is_broken(&self) -> bool {
        self.seen.lock().broken.is_some()
    }

    /// The head of an answer came.
    pub(crate) fn answered(&self, status: StatusCode, bare: bool, headers: &HeaderMap) {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut seen = self.seen.lock();
        seen.status = Some(status);
        seen.bare = bare;
        seen.date = text(header::DATE.as_str()).and_then(date::parse);
        seen.region = text("x-amz-bucket-region").map(ToString::to_string);
        seen.retry_after = text(header::RETRY_AFTER.as_str())
            .and_then(|value| value.parse().ok())
            .map(Duration::from_secs);
    }

    /// The answer's body explains an error.
    pub(crate) fn explained(&self, code: &str, message: &str) {
        let mut seen = self.seen.lock();
        seen.code = code.chars().take(TEXT_CHARS_MAX).collect();
        seen.message = message.chars().take(TEXT_CHARS_MAX).collect();
    }

    /// The answer is whole and contradicts itself.
    pub(crate) fn contradicts(&self) {
        self.seen.lock().contradicts = true;
    }

    /// The connection failed, or the answer is not whole.
    pub(crate) fn broken(&self, error: &(dyn std::error::Error + 'static)) {
        // The chain's last link names what happened ("connection refused"), the others only that
        // something did. An I/O error leaves out what it wraps.
        let mut cause = error;
        loop {
            let wrapped = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            match wrapped
                .map(|inner| inner as &(dyn std::error::Error + 'static))
                .or_else(|| cause.source())
            {
                Some(deeper) => cause = deeper,
                None => break,
            }
        }
        let mut seen = self.seen.lock();
        seen.untrusted |= matches!(
            cause.downcast_ref(),
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
        );
        seen.broken = Some(cause.to_string());
    }
}
