//! What requests may ask for, by the spec's rules.

use tonic::Status;

use crate::v1::volume_capability::AccessType;
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::{CapacityRange, VolumeCapability};

/// A field that must be there.
pub fn given<'a>(name: &str, value: &'a str) -> Result<&'a str, Status> {
    match value {
        "" => Err(Status::invalid_argument(format!("{name} is missing"))),
        value => Ok(value),
    }
}

/// Capabilities that a directory of a shared file system has: all but being a block device.
pub fn capabilities(wanted: &[VolumeCapability]) -> Result<(), Status> {
    if wanted.is_empty() {
        return Err(Status::invalid_argument("volume capabilities are missing"));
    }
    wanted.iter().try_for_each(capability)
}

/// One of them.
pub fn capability(wanted: &VolumeCapability) -> Result<(), Status> {
    match (&wanted.access_type, &wanted.access_mode) {
        (Some(AccessType::Mount(_)), Some(mode)) if mode.mode() != Mode::Unknown => Ok(()),
        (Some(AccessType::Block(_)), _) => {
            Err(Status::invalid_argument("a KestrelFS volume is no block device: ask for a mount"))
        }
        (None, _) => Err(Status::invalid_argument("the access type is missing")),
        _ => Err(Status::invalid_argument("the access mode is missing")),
    }
}

/// Whether a capability only reads.
pub fn only_reads(wanted: &VolumeCapability) -> bool {
    let mode = wanted.access_mode.as_ref().map(|mode| mode.mode());
    matches!(mode, Some(Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly))
}

/// How large a volume is to be; 0: without a limit.
pub fn size(range: Option<&CapacityRange>) -> Result<u64, Status> {
    let Some(CapacityRange { required_bytes, limit_bytes }) = range else { return Ok(0) };
    let (Ok(required), Ok(limit)) = (u64::try_from(*required_bytes), u64::try_from(*limit_bytes))
    else {
        return Err(Status::out_of_range("a capacity is not negative"));
    };
    if limit != 0 && required > limit {
        return Err(Status::out_of_range("the required bytes are more than their limit"));
    }
    Ok(if required == 0 { limit } else { required })
}

/// Whether a volume of this size is what a request wants.
pub fn fits(size: u64, range: Option<&CapacityRange>) -> bool {
    let Some(CapacityRange { required_bytes, limit_bytes }) = range else { return true };
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    // Without a quota it has what the whole volume has, and nothing that is limited.
    match size {
        0 => *limit_bytes == 0 && *required_bytes == 0,
        size => size >= *required_bytes && (*limit_bytes == 0 || size <= *limit_bytes),
    }
}

/// A page of a listing: which of `count` entries, and the token of the next page.
pub fn page(
    count: usize,
    token: &str,
    max_entries: i32,
) -> Result<(std::ops::Range<usize>, String), Status> {
    let first = match token {
        "" => 0,
        token => token
            .parse()
            .ok()
            .filter(|first| *first <= count)
            .ok_or_else(|| Status::aborted("the starting token is none of this driver's"))?,
    };
    let most = usize::try_from(max_entries)
        .map_err(|_| Status::invalid_argument("the number of entries is negative"))?;
    let end = if most == 0 { count } else { count.min(first.saturating_add(most)) };
    Ok((first..end, if end < count { end.to_string() } else { String::new() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> CapacityRange {
        CapacityRange { required_bytes, limit_bytes }
    }

    /// Sizes that requests give, and those that they cannot.
    #[test]
    fn sizes_of_requests() {
        assert_eq!(size(None).unwrap(), 0);
        assert_eq!(size(Some(&range(5, 9))).unwrap(), 5);
        assert_eq!(size(Some(&range(0, 9))).unwrap(), 9);
        for wrong in [range(9, 5), range(-1, 0), range(0, -1)] {
            assert_eq!(size(Some(&wrong)).unwrap_err().code(), tonic::Code::OutOfRange);
        }
        assert!(fits(5, None) && fits(5, Some(&range(5, 9))) && fits(0, Some(&range(0, 0))));
        assert!(!fits(4, Some(&range(5, 9))) && !fits(10, Some(&range(5, 9))));
        assert!(!fits(0, Some(&range(5, 0))));
    }

    /// Pages end where the entries do, and foreign tokens are refused.
    #[test]
    fn pages_of_listings() {
        assert_eq!(page(3, "", 0).unwrap(), (0..3, String::new()));
        assert_eq!(page(3, "", 2).unwrap(), (0..2, "2".into()));
        assert_eq!(page(3, "2", 2).unwrap(), (2..3, String::new()));
        assert_eq!(page(3, "x", 2).unwrap_err().code(), tonic::Code::Aborted);
        assert_eq!(page(3, "4", 2).unwrap_err().code(), tonic::Code::Aborted);
    }
}
