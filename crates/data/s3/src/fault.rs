//! What an attempt's failure means: whether trying again may help, and its text.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use kestrel_blockstore::error::Error;
use kestrel_types::ids::ObjectId;

use crate::wire::Seen;

/// What to do about certificates.
pub(crate) const TRUST: &str =
    "if the store's certificate is right, name the file with its authority's with SSL_CERT_FILE";

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There is no such object (or upload).
    Missing,
    /// There is no such bucket.
    NoBucket,
    /// There is such an object already.
    Present,
    /// The object is in an archive; or, where it is to be restored, in none.
    Archived,
    /// It is being restored already.
    Restoring,
    /// The store has no such storage class.
    NoClass,
    /// The object ends before the end of the requested range.
    Short,
    /// The store denies access.
    Denied,
    /// The store's clock and ours differ by more than signatures allow.
    ClockSkew,
    /// The store, or our share of it, is full.
    Full,
    /// The store cannot do this.
    Unsupported,
    /// The store refuses the request for another reason.
    Refused,
    /// The store's certificate is not one to be trusted.
    Untrusted,
    /// There are no credentials.
    Credentials,
    /// The store gets too many requests.
    Throttled,
    /// The store failed, or another request was in the way; another time it may work.
    Failed,
    /// No answer, or not a whole one.
    Broken,
    /// A whole answer that contradicts itself, or the request. It may have been damaged on its way,
    /// but a store that answers such a thing is likely to do so again.
    Inconsistent,
    /// No answer in time.
    Late,
}

impl Cause {
    /// Whether another attempt may succeed.
    pub(crate) fn may_pass(self) -> bool {
        matches!(
            self,
            Self::Throttled | Self::Failed | Self::Broken | Self::Inconsistent | Self::Late
        )
    }

    /// What the store's answer means. `bare`: to a HEAD; its answers explain nothing.
    fn of_answer(status: StatusCode, code: &str, bare: bool) -> Self {
        match (code, status.as_u16()) {
            ("NoSuchBucket", _) => Self::NoBucket,
            ("RequestTimeTooSkewed", _) => Self::ClockSkew,
            (
                "SlowDown"
                | "Throttling"
                | "ThrottlingException"
                | "RequestLimitExceeded"
                | "TooManyRequests",
                _,
            )
            | (_, 429 | 503) => Self::Throttled,
            (
                "QuotaExceeded"
                | "XMinioStorageFull"
                | "InsufficientStorage"
                | "InsufficientCapacity",
                _,
            )
            | (_, 507) => Self::Full,
            ("NotImplemented", _) | (_, 501 | 405) => Self::Unsupported,
            ("InvalidObjectState", _) => Self::Archived,
            ("RestoreAlreadyInProgress", _) => Self::Restoring,
            ("InvalidStorageClass", _) => Self::NoClass,
            // What arrived was damaged or cut off on its way; sent again it may arrive whole.
            (
                "RequestTimeout" | "BadDigest" | "IncompleteBody" | "XAmzContentSHA256Mismatch",
                _,
            )
            | (_, 408 | 409) => Self::Failed,
            // "Not found" is believed of objects only: stores answer it about users too, and
            // proxies about anything.
            ("NoSuchKey" | "NoSuchUpload", 404) => Self::Missing,
            ("", 404) if bare => Self::Missing,
            ("", 404) => Self::Failed,
            ("XAdminUserNotFound", _) => Self::Denied,
            (_, 304 | 412) => Self::Present,
            (_, 416) => Self::Short,
            (_, 401 | 403) => Self::Denied,
            // An error in the body of an answer that began well.
            (_, 200..=299 | 500..=599) => Self::Failed,
            _ => Self::Refused,
        }
    }
}

/// A failed attempt.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// Why.
    pub(crate) cause: Cause,
    /// The same for people.
    pub(crate) text: String,
    /// What came back.
    pub(crate) seen: Seen,
}

impl Fault {
    /// The answer cannot be right.
    pub(crate) fn inconsistent(text: impl Into<String>) -> Self {
        Self::found(Cause::Inconsistent, text)
    }

    /// The fault of an attempt, by what came back on the wire; `error` is what `object_store` made
    /// of it.
    pub(crate) fn of_attempt(error: &object_store::Error, seen: Seen) -> Self {
        let (cause, text) = match (&seen.broken, seen.status) {
            (Some(broken), _) if seen.untrusted => (Cause::Untrusted, broken.clone()),
            (Some(broken), _) => (Cause::Broken, format!("no whole answer ({broken})")),
            (None, Some(_)) if seen.contradicts => (Cause::Inconsistent, last_of(error)),
            (None, Some(status)) => {
                let reason = status.canonical_reason().unwrap_or("?");
                let cause = Cause::of_answer(status, &seen.code, seen.bare);
                let text = match (seen.code.as_str(), seen.message.as_str()) {
                    ("", _) if status.is_success() => last_of(error),
                    ("", _) => format!("the store answered {} {reason}", status.as_u16()),
                    (code, "") => format!("the store answered {} {code}", status.as_u16()),
                    (code, message) => {
                        format!("the store answered {} {code}: {message}", status.as_u16())
                    }
                };
                (cause, text)
            }
            // It came to no request: credentials are fetched before.
            (None, None) => (Cause::Credentials, last_of(error)),
        };
        Self { cause, text, seen }
    }

    /// The attempt took too long.
    pub(crate) fn late(limit: Duration, seen: Seen) -> Self {
        let text = match seen.status {
            Some(_) => format!("the answer was not complete after {} s", limit.as_secs_f32()),
            None => format!("no answer in {} s", limit.as_secs_f32()),
        };
        Self { cause: Cause::Late, text, seen }
    }

    /// The answer cannot be believed.
    pub(crate) fn unbelievable(text: impl Into<String>) -> Self {
        Self { cause: Cause::Broken, text: text.into(), seen: Seen::default() }
    }

    /// A fault that this crate finds itself.
    pub(crate) fn found(cause: Cause, text: impl Into<String>) -> Self {
        Self { cause, text: text.into(), seen: Seen::default() }
    }
}

/// The innermost error's text: the outer ones repeat it with addresses.
fn last_of(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// A request that failed for good.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// The last attempt's fault.
    pub(crate) fault: Fault,
    /// How many attempts there were.
    pub(crate) attempts: u32,
    /// How long they took with the waits between.
    pub(crate) took: Duration,
}

impl Failure {
    /// Of a request that was answered, and not as it should be.
    pub(crate) fn found(cause: Cause, text: impl Into<String>) -> Self {
        Self { fault: Fault::found(cause, text), attempts: 1, took: Duration::ZERO }
    }

    /// The last fault with how often it was tried.
    pub(crate) fn text(&self) -> String {
        let text = &self.fault.text;
        match self.attempts {
            0 | 1 => text.clone(),
            count => format!("{text}; tried {count} times in {:.1} s", self.took.as_secs_f64()),
        }
    }

    /// Whether the store may have carried out the request, although the last attempt's answer is
    /// that it cannot: an earlier one's answer may have been lost.
    pub(crate) fn maybe_done(&self) -> bool {
        self.attempts > 1
    }

    /// As the block store's error.
    pub(crate) fn into_error(self, during: &'static str, object: Option<ObjectId>) -> Error {
        let advice = match (self.fault.cause, object) {
            (Cause::Missing, Some(object)) => return Error::NotFound { object },
            (Cause::Present, Some(object)) => return Error::Exists { object },
            (Cause::Archived, Some(object)) => return Error::Archived { object },
            (Cause::Late, _) => return Error::Deadline { during },
            (Cause::Full, _) => {
                let source = Arc::new(io::Error::new(io::ErrorKind::StorageFull, self.text()));
                return Error::NoSpace { during, source };
            }
            (Cause::NoBucket, _) => "the bucket is gone: check the store",
            (Cause::Denied, _) => "check the credentials and what they are allowed to do",
            (Cause::ClockSkew, _) => "set this machine's clock",
            (Cause::Untrusted, _) => TRUST,
            (Cause::Credentials, _) => crate::credentials::GIVE_THEM,
            (Cause::Throttled, _) => {
                "the store is asked too much: lower --max-uploads and --max-downloads"
            }
            (Cause::Failed | Cause::Broken | Cause::Inconsistent, _) => {
                "check the store and the network"
            }
            (
                Cause::Missing
                | Cause::Present
                | Cause::Archived
                | Cause::Restoring
                | Cause::NoClass
                | Cause::Short
                | Cause::Unsupported
                | Cause::Refused,
                _,
            ) => "check the store",
        };
        Error::Remote { during, object, why: format!("{}; {advice}", self.text()).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_of_answers() {
        let cause = |status: u16, code: &str| {
            Cause::of_answer(StatusCode::from_u16(status).unwrap(), code, false)
        };
        assert_eq!(Cause::of_answer(StatusCode::NOT_FOUND, "", true), Cause::Missing);
        assert_eq!(cause(404, "NoSuchKey"), Cause::Missing);
        assert_eq!(cause(404, ""), Cause::Failed);
        assert_eq!(cause(404, "XAdminUserNotFound"), Cause::Denied);
        assert_eq!(cause(404, "SomethingElse"), Cause::Refused);
        assert_eq!(cause(404, "NoSuchBucket"), Cause::NoBucket);
        assert_eq!(cause(403, "AccessDenied"), Cause::Denied);
        assert_eq!(cause(403, "RequestTimeTooSkewed"), Cause::ClockSkew);
        assert_eq!(cause(403, "InvalidObjectState"), Cause::Archived);
        assert_eq!(cause(409, "RestoreAlreadyInProgress"), Cause::Restoring);
        assert_eq!(cause(400, "InvalidStorageClass"), Cause::NoClass);
        assert_eq!(cause(412, "PreconditionFailed"), Cause::Present);
        assert_eq!(cause(409, "ConditionalRequestConflict"), Cause::Failed);
        assert_eq!(cause(503, "SlowDown"), Cause::Throttled);
        assert_eq!(cause(500, "InternalError"), Cause::Failed);
        assert_eq!(cause(200, "InternalError"), Cause::Failed);
        assert_eq!(cause(400, "BadDigest"), Cause::Failed);
        assert_eq!(cause(400, "InvalidArgument"), Cause::Refused);
        assert_eq!(cause(507, ""), Cause::Full);
        assert_eq!(cause(501, "NotImplemented"), Cause::Unsupported);
        for cause in [
            Cause::Missing,
            Cause::Denied,
            Cause::NoBucket,
            Cause::Present,
            Cause::Refused,
            Cause::Full,
            Cause::Archived,
            Cause::Restoring,
        ] {
            assert!(!cause.may_pass(), "{cause:?}");
        }
    }
}
