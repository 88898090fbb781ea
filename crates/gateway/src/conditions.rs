//! Conditions of requests (RFC 9110, section 13), as S3 has them.

use s3s::dto::{ETagCondition, Timestamp};
use s3s::{S3ErrorCode, S3Result};

use crate::error::refused;

/// What a request demands of the object that is there.
#[derive(Debug, Clone, Default)]
pub struct Conditions {
    /// Its ETag is this one.
    pub if_match: Option<ETagCondition>,
    /// Its ETag is another one.
    pub if_none_match: Option<ETagCondition>,
    /// It has changed since.
    pub if_modified_since: Option<Timestamp>,
    /// It has not changed since.
    pub if_unmodified_since: Option<Timestamp>,
}

/// Seconds since 1970: what dates in headers can say.
fn seconds(time: &Timestamp) -> i64 {
    time::OffsetDateTime::from(time.clone()).unix_timestamp()
}

fn matches(condition: &ETagCondition, etag: &str) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(wanted) => wanted.value() == etag,
    }
}

fn unmet() -> s3s::S3Error {
    refused(S3ErrorCode::PreconditionFailed, "a condition of the request does not hold")
}

impl Conditions {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        self.if_match.is_none()
            && self.if_none_match.is_none()
            && self.if_modified_since.is_none()
            && self.if_unmodified_since.is_none()
    }

    /// Whether there must be no object.
    pub fn is_create_only(&self) -> bool {
        matches!(self.if_none_match, Some(ETagCondition::Any))
    }

    /// For reading an object with this ETag that was changed at this time, nanoseconds since 1970.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NotModified`.
    pub fn check_read(&self, etag: &str, mtime: i64) -> S3Result<()> {
        let changed = mtime.div_euclid(1_000_000_000);
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !matches(condition, etag) => return Err(unmet()),
            (None, Some(since)) if changed > seconds(since) => return Err(unmet()),
            _ => {}
        }
        let is_same = match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => matches(condition, etag),
            (None, Some(since)) => changed <= seconds(since),
            (None, None) => false,
        };
        match is_same {
            true => Err(refused(S3ErrorCode::NotModified, "the object has not changed")),
            false => Ok(()),
        }
    }

    /// For a source that is copied: what would be "not modified" is an unmet condition, too.
    ///
    /// # Errors
    /// `PreconditionFailed`.
    pub fn check_source(&self, etag: &str, mtime: i64) -> S3Result<()> {
        self.check_read(etag, mtime).map_err(|_| unmet())
    }

    /// For replacing or removing an object with this ETag; none: there is no object.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NoSuchKey` if one with an ETag must be there, and none is.
    pub fn check_write(&self, present: Option<&str>) -> S3Result<()> {
        match (&self.if_match, present) {
            (Some(_), None) => {
                return Err(refused(S3ErrorCode::NoSuchKey, "there is no such object"));
            }
            (Some(condition), Some(etag)) if !matches(condition, etag) => return Err(unmet()),
            _ => {}
        }
        match (&self.if_none_match, present) {
            (Some(condition), Some(etag)) if matches(condition, etag) => Err(unmet()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use s3s::dto::ETag;

    use super::*;

    fn tag(text: &str) -> Option<ETagCondition> {
        Some(ETagCondition::ETag(ETag::Strong(text.into())))
    }

    fn at(seconds: i64) -> Option<Timestamp> {
        time::OffsetDateTime::from_unix_timestamp(seconds).ok().map(Timestamp::from)
    }

    /// An ETag decides before a date does.
    #[test]
    fn etags_before_dates() {
        const NOW: i64 = 1_000_000_000_500_000_000;
        let same = Conditions { if_match: tag("a"), if_unmodified_since: at(1), ..<_>::default() };
        assert!(same.check_read("a", NOW).is_ok());
        assert!(same.check_read("b", NOW).is_err());
        let other =
            Conditions { if_none_match: tag("a"), if_modified_since: at(2_000_000_000), ..same };
        let other = Conditions { if_match: None, if_unmodified_since: None, ..other };
        assert!(other.check_read("b", NOW).is_ok());
        let why = other.check_read("a", NOW).unwrap_err();
        assert_eq!(why.code(), &S3ErrorCode::NotModified);
        let since = Conditions { if_modified_since: at(1_000_000_000), ..<_>::default() };
        assert!(since.check_read("a", NOW).is_err(), "the date has no fractions");
    }

    /// A write that wants nothing there, or exactly one content there, gets what it wants.
    #[test]
    fn conditions_of_writes() {
        let create = Conditions { if_none_match: Some(ETagCondition::Any), ..<_>::default() };
        assert!(create.is_create_only());
        assert!(create.check_write(None).is_ok());
        assert!(create.check_write(Some("a")).is_err());
        let replace = Conditions { if_match: tag("a"), ..<_>::default() };
        assert!(replace.check_write(Some("a")).is_ok());
        assert!(replace.check_write(Some("b")).is_err());
        let why = replace.check_write(None).unwrap_err();
        assert_eq!(why.code(), &S3ErrorCode::NoSuchKey);
    }
}
