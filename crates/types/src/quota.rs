//! Quotas: limits of the bytes and files of a directory's tree, of a user, of a group or of the
//! volume.
//!
//! Rows of table `quota` (`docs/format.md`, "Quotas"): a record for each quota, what each worker
//! has counted towards it, and which quota the bytes of a file in table `link` count towards. A
//! directory's rows count what lies below it and not below another directory with a quota: what
//! counts towards the outer one is the sum over both. Of several nodes each has all records, and
//! the shares of its own workers, which are numbered as those of directories are
//! ([`crate::placement::WORKERS_MAX`]).

use crate::clock::Nanos;
use crate::codec::{DecodeError, Reader};
use crate::ids::InodeId;
use crate::key::{Key, Table};

/// Most quotas of a volume.
pub const QUOTAS_MAX: usize = 4096;

/// How long usage may be above a soft limit where the quota does not say so: 7 days, in seconds.
pub const GRACE_DEFAULT: u32 = 7 * 24 * 60 * 60;

/// Largest limit: sums of sizes are signed.
pub const LIMIT_MAX: u64 = i64::MAX as u64;

/// What a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaSubject {
    /// All that lies below a directory, without the directory itself.
    Dir(InodeId),
    /// All inodes that a user owns.
    User(u32),
    /// All inodes of a group.
    Group(u32),
    /// The volume, without its root.
    Volume,
}

// First byte of a suffix. Numbers are never given to another kind.
const DIR: u8 = 1;
const USER: u8 = 2;
const GROUP: u8 = 3;
const VOLUME: u8 = 4;
const HOME: u8 = 5;

// Second byte of a suffix, if there is one.
const SHARE: u8 = 1;
const SINCE: u8 = 2;
const ABOVE: u8 = 3;

/// What a row of table `quota` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaRow {
    /// A quota: [`QuotaLimits`].
    Record(QuotaSubject),
    /// What the worker with this number has counted: [`QuotaUsage`].
    Share(QuotaSubject, u16),
    /// Since when usage is above the soft limits: [`OverSince`].
    Since(QuotaSubject),
    /// Of several nodes: the directory of the next quota above that of a directory:
    /// [`encode_home`].
    Above(QuotaSubject),
    /// The directory of the quota that counts the bytes of this file: [`encode_home`].
    Home(InodeId),
}

impl QuotaSubject {
    fn parts(self) -> (u8, u64) {
        match self {
            Self::Dir(ino) => (DIR, ino),
            Self::User(uid) => (USER, uid.into()),
            Self::Group(gid) => (GROUP, gid.into()),
            Self::Volume => (VOLUME, 0),
        }
    }

    fn of(kind: u8, id: u64) -> Option<Self> {
        match (kind, u32::try_from(id)) {
            (DIR, _) => Some(Self::Dir(id)),
            (USER, Ok(uid)) => Some(Self::User(uid)),
            (GROUP, Ok(gid)) => Some(Self::Group(gid)),
            (VOLUME, Ok(0)) => Some(Self::Volume),
            _ => None,
        }
    }
}

impl QuotaRow {
    /// The row's key.
    pub fn key(self) -> Key {
        match self {
            Self::Record(of) => {
                let (kind, id) = of.parts();
                Key::new(Table::Quota, id, &[kind])
            }
            Self::Share(of, worker) => {
                let ((kind, id), [high, low]) = (of.parts(), worker.to_be_bytes());
                Key::new(Table::Quota, id, &[kind, SHARE, high, low])
            }
            Self::Since(of) => {
                let (kind, id) = of.parts();
                Key::new(Table::Quota, id, &[kind, SINCE])
            }
            Self::Above(of) => {
                let (kind, id) = of.parts();
                Key::new(Table::Quota, id, &[kind, ABOVE])
            }
            Self::Home(ino) => Key::new(Table::Quota, ino, &[HOME]),
        }
    }

    /// What the row with this id and suffix is; `None` if there is no such row.
    pub fn of(id: u64, suffix: &[u8]) -> Option<Self> {
        match *suffix {
            [HOME] => Some(Self::Home(id)),
            [kind] => QuotaSubject::of(kind, id).map(Self::Record),
            [kind, SINCE] => QuotaSubject::of(kind, id).map(Self::Since),
            [DIR, ABOVE] => Some(Self::Above(QuotaSubject::Dir(id))),
            [kind, SHARE, high, low] => {
                Some(Self::Share(QuotaSubject::of(kind, id)?, u16::from_be_bytes([high, low])))
            }
            _ => None,
        }
    }
}

/// Version of the encodings in this module.
const VERSION: u8 = 1;

fn versioned(bytes: &[u8]) -> Result<Reader<'_>, DecodeError> {
    let unknown = DecodeError("row of a quota of an unknown format version; use a newer release");
    Reader::versioned(bytes, VERSION, unknown)
}

/// What may be used. A limit that is `None` does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Bytes, at most [`LIMIT_MAX`].
    pub bytes: Option<u64>,
    /// Files of all types, at most [`LIMIT_MAX`].
    pub files: Option<u64>,
    /// Bytes above which there is a warning, and after the grace period no growth.
    pub soft_bytes: Option<u64>,
    /// The same of files.
    pub soft_files: Option<u64>,
    /// Grace period, seconds.
    pub grace: u32,
}

impl Default for QuotaLimits {
    fn default() -> Self {
        let (bytes, files, soft_bytes, soft_files) = (None, None, None, None);
        Self { bytes, files, soft_bytes, soft_files, grace: GRACE_DEFAULT }
    }
}

impl QuotaLimits {
    /// The four limits: bytes, files, and the soft ones.
    pub fn all(&self) -> [Option<u64>; 4] {
        [self.bytes, self.files, self.soft_bytes, self.soft_files]
    }

    /// Whether no limit is above [`LIMIT_MAX`].
    pub fn is_valid(&self) -> bool {
        self.all().into_iter().flatten().all(|limit| limit <= LIMIT_MAX)
    }

    /// The record's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = vec![VERSION, 0];
        for (bit, limit) in self.all().into_iter().enumerate() {
            if let Some(limit) = limit {
                out[1] |= 1 << bit;
                out.extend_from_slice(&limit.to_be_bytes());
            }
        }
        out.extend_from_slice(&self.grace.to_be_bytes());
        out.into_boxed_slice()
    }

    /// Reads what [`QuotaLimits::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are truncated, too many, of a newer version, or a limit is too large.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = versioned(bytes)?;
        let present = reader.u8()?;
        if present > 15 {
            return Err(DecodeError("quota with an unknown limit; use a newer release"));
        }
        let mut limits = [None; 4];
        for (bit, limit) in limits.iter_mut().enumerate() {
            if present & 1 << bit != 0 {
                *limit = Some(reader.u64()?);
            }
        }
        let [bytes, files, soft_bytes, soft_files] = limits;
        let limits = Self { bytes, files, soft_bytes, soft_files, grace: reader.u32()? };
        reader.end()?;
        if limits.is_valid() {
            Ok(limits)
        } else {
            Err(DecodeError("quota with a limit too large"))
        }
    }
}

/// What counts towards a quota. A worker's share of it may be below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaUsage {
    /// Files of all types: names below a directory; inodes of users, groups and the volume.
    pub files: i64,
    /// Sum of file sizes; a file with several names counts once.
    pub bytes: i64,
}

impl QuotaUsage {
    /// The sum. Sizes may be near the limit though a file holds next to nothing, so sums of bytes
    /// wrap around, as those of directories do ([`crate::stat::DirStat`]).
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            files: self.files.wrapping_add(other.files),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }

    /// The difference.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            files: self.files.wrapping_sub(other.files),
            bytes: self.bytes.wrapping_sub(other.bytes),
        }
    }

    /// The row's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = [VERSION; 17];
        out[1..9].copy_from_slice(&self.files.to_be_bytes());
        out[9..].copy_from_slice(&self.bytes.to_be_bytes());
        out.into()
    }

    /// Reads what [`QuotaUsage::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are truncated, too many or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = versioned(bytes)?;
        let usage = Self { files: reader.i64()?, bytes: reader.i64()? };
        reader.end()?;
        Ok(usage)
    }
}

/// Since when usage is above the soft limits; 0 if it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OverSince {
    /// Above that of bytes.
    pub bytes: Nanos,
    /// Above that of files.
    pub files: Nanos,
}

impl OverSince {
    /// The row's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        QuotaUsage { files: self.files, bytes: self.bytes }.encode()
    }

    /// Reads what [`OverSince::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are truncated, too many or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let QuotaUsage { files, bytes } = QuotaUsage::decode(bytes)?;
        Ok(Self { bytes, files })
    }
}

/// A row that names the directory of the quota that counts the bytes of a file in table `link`.
pub fn encode_home(dir: InodeId) -> Box<[u8]> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&dir.to_be_bytes());
    out.into_boxed_slice()
}

/// Reads what [`encode_home`] wrote.
///
/// # Errors
/// If the bytes are truncated, too many or of a newer version.
pub fn decode_home(bytes: &[u8]) -> Result<InodeId, DecodeError> {
    let mut reader = versioned(bytes)?;
    let dir = reader.u64()?;
    reader.end()?;
    Ok(dir)
}

/// A quota, as all nodes of a volume have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaRecord {
    /// What it limits.
    pub of: QuotaSubject,
    /// The limits.
    pub limits: QuotaLimits,
    /// Of a directory: that of the next quota above.
    pub above: Option<InodeId>,
}

/// A quota, as answers tell of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaInfo {
    /// What it limits.
    pub of: QuotaSubject,
    /// The limits.
    pub limits: QuotaLimits,
    /// What counts towards it.
    pub used: QuotaUsage,
    /// Since when that is above the soft limits.
    pub since: OverSince,
    /// Of [`crate::request::Op::QuotaCheck`]: what the names and inodes give, in place of `used`.
    pub counted: Option<QuotaUsage>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// Keys of all rows lead back to what they are of, and others to nothing.
    #[test]
    fn quota_keys_round_trip() {
        let subjects = [
            QuotaSubject::Dir(1),
            QuotaSubject::Dir(u64::MAX),
            QuotaSubject::User(u32::MAX),
            QuotaSubject::Group(0),
            QuotaSubject::Volume,
        ];
        for of in subjects {
            for row in [QuotaRow::Record(of), QuotaRow::Share(of, 513), QuotaRow::Since(of)] {
                let key = row.key();
                assert_eq!(QuotaRow::of(key.id, &key.suffix), Some(row));
            }
        }
        let above = QuotaRow::Above(QuotaSubject::Dir(5));
        assert_eq!(QuotaRow::of(5, &above.key().suffix), Some(above));
        let home = QuotaRow::Home(77).key();
        assert_eq!(QuotaRow::of(home.id, &home.suffix), Some(QuotaRow::Home(77)));
        for (id, suffix) in [
            (0, &[][..]),
            (1 << 32, &[2]),
            (1, &[4]),
            (1, &[6]),
            (1, &[1, 1]),
            (1, &[2, 3]),
            (1, &[1, 1, 0]),
            (1, &[1, 1, 0, 0, 0]),
        ] {
            assert_eq!(QuotaRow::of(id, suffix), None, "{id} {suffix:?}");
        }
    }

    /// Values read as they were written, and cut ones are refused.
    #[test]
    fn quota_values_round_trip() {
        let some = [None, Some(0), Some(LIMIT_MAX)];
        for (bytes, files) in some.iter().flat_map(|a| some.iter().map(move |b| (*a, *b))) {
            let limits =
                QuotaLimits { bytes, files, soft_bytes: files, soft_files: bytes, grace: 9 };
            let row = limits.encode();
            assert_eq!(QuotaLimits::decode(&row), Ok(limits));
            for len in 0..row.len() {
                assert!(QuotaLimits::decode(&row[..len]).is_err());
            }
        }
        let usage = QuotaUsage { files: -3, bytes: i64::MAX };
        assert_eq!(QuotaUsage::decode(&usage.encode()), Ok(usage));
        let since = OverSince { bytes: 0, files: 12 };
        assert_eq!(OverSince::decode(&since.encode()), Ok(since));
        assert_eq!(decode_home(&encode_home(8)), Ok(8));
    }

    /// Rows of later releases and limits that are too large are refused.
    #[test]
    fn hostile_quota_rows() {
        let large = QuotaLimits { bytes: Some(LIMIT_MAX + 1), ..QuotaLimits::default() };
        for row in [&large.encode()[..], &[2], &[1, 16, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0, 0], &[]] {
            assert!(QuotaLimits::decode(row).is_err(), "{row:?}");
        }
        assert!(QuotaUsage::decode(&[2; 17]).is_err());
        assert!(decode_home(&[1; 8]).is_err());
    }
}
