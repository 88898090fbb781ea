//! Policies: what a directory hands down to everything below it.
//!
//! A directory may have a [`PolicyRecord`], the inline data of its inode. What counts for a name is
//! its *effective* policy: of each field what the nearest directory above says ([`Policy::over`]).
//! A new field gets the next tag; a record with a tag or a version that this build does not know is
//! refused, since a field that is ignored is a promise that is broken.

use std::num::NonZeroU64;
use std::str::{self, FromStr};
use std::time::Duration;

use crate::codec::{DecodeError, Reader, put_string};
use crate::compression::Compression;
use crate::retention::Retention;
use crate::tier::Tier;

/// Prefix of the extended attributes that show and set the fields of a directory's policy.
pub const XATTR_PREFIX: &[u8] = b"kestrel.";

/// Name, after [`XATTR_PREFIX`], of the attribute that shows the effective policy.
pub const XATTR_EFFECTIVE: &[u8] = b"policy";

/// How long a kernel may keep names and attributes below an immutable directory: so long may a
/// mount that does not make them miss the changes after the policy is unset.
pub const IMMUTABLE_KEPT: Duration = Duration::from_secs(60 * 60);

/// How long a kernel may keep names and attributes below a directory of `close-to-open`.
pub const CLOSE_TO_OPEN_KEPT: Duration = Duration::from_secs(1);

/// Longest value of a field as text, bytes.
const VALUE_BYTES_MAX: usize = 64;

/// What clients see of each other's changes. Numbers are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Consistency {
    /// All of them, at once.
    Strict = 0,
    /// Names and attributes may be [`CLOSE_TO_OPEN_KEPT`] old; an open sees all.
    CloseToOpen = 1,
    /// There are no changes.
    Immutable = 2,
}

impl Consistency {
    const ALL: [Consistency; 3] = [Self::Strict, Self::CloseToOpen, Self::Immutable];

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::CloseToOpen => "close-to-open",
            Self::Immutable => "immutable",
        }
    }

    fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|value| value.name().as_bytes() == name)
    }

    fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|value| *value as u8 == number)
    }

    /// How long a kernel may keep names and attributes without asking; `None`: as its mount says.
    pub const fn kept(self) -> Option<Duration> {
        match self {
            Self::Strict => None,
            Self::CloseToOpen => Some(CLOSE_TO_OPEN_KEPT),
            Self::Immutable => Some(IMMUTABLE_KEPT),
        }
    }
}

/// A field of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyField {
    /// [`Policy::consistency`].
    Consistency,
    /// [`Policy::compression`].
    Compression,
    /// [`Policy::trash`].
    Trash,
    /// [`Policy::feed`].
    Feed,
    /// [`Policy::tier`].
    Tier,
}

impl PolicyField {
    /// All there are.
    pub const ALL: [PolicyField; 5] =
        [Self::Consistency, Self::Compression, Self::Trash, Self::Feed, Self::Tier];

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Consistency => "consistency",
            Self::Compression => "compression",
            Self::Trash => "trash",
            Self::Feed => "feed",
            Self::Tier => "tier",
        }
    }

    /// The values that it takes, for messages.
    pub const fn values(self) -> &'static str {
        match self {
            Self::Consistency => "strict, close-to-open or immutable",
            Self::Compression => "none, lz4, zstd or zstd:LEVEL with a level from 1 to 19",
            Self::Trash | Self::Feed => "none, or hours or days such as 12h and 7d, at most 2730d",
            Self::Tier => {
                "standard, standard-ia, onezone-ia, intelligent-tiering, glacier-ir, archive or \
                 deep-archive"
            }
        }
    }

    /// What counts where no directory says anything, for people.
    pub const fn default_value(self) -> &'static str {
        match self {
            Self::Consistency => "strict",
            // As `kestrel format --compress` and `kestrel config --compress` set it.
            Self::Compression => "as-volume",
            Self::Trash | Self::Feed => "none",
            Self::Tier => "standard",
        }
    }

    /// The field with this name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name().as_bytes() == name)
    }
}

/// What a directory, or all directories on a path, say. A field that is `None` is not said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    /// What clients see of each other's changes.
    pub consistency: Option<Consistency>,
    /// How new objects with data of files are compressed; `None`: as the volume's setting says.
    pub compression: Option<Compression>,
    /// How long what is removed is kept; answers to clients do not say it.
    pub trash: Option<Retention>,
    /// How long events of changes are kept ([`crate::feed`]); answers to clients do not say it.
    pub feed: Option<Retention>,
    /// Where new objects with data of files are kept.
    pub tier: Option<Tier>,
}

impl Policy {
    /// Whether nothing may change.
    pub fn is_immutable(&self) -> bool {
        self.consistency == Some(Consistency::Immutable)
    }

    /// What answers say of it: what decides how a client keeps and stores things.
    #[must_use]
    pub fn told(self) -> Policy {
        Policy { trash: None, feed: None, ..self }
    }

    /// What of it decides how data of files is stored.
    #[must_use]
    pub fn of_storage(self) -> Policy {
        Policy { compression: self.compression, tier: self.tier, ..Policy::default() }
    }

    /// These fields over those of the directory above.
    #[must_use]
    pub fn over(self, above: Policy) -> Policy {
        Policy {
            consistency: self.consistency.or(above.consistency),
            compression: self.compression.or(above.compression),
            trash: self.trash.or(above.trash),
            feed: self.feed.or(above.feed),
            tier: self.tier.or(above.tier),
        }
    }

    /// The value of a field as users write it.
    pub fn value(&self, field: PolicyField) -> Option<String> {
        match field {
            PolicyField::Consistency => self.consistency.map(|value| value.name().into()),
            PolicyField::Compression => self.compression.map(|value| value.to_string()),
            PolicyField::Trash => self.trash.map(|value| value.to_string()),
            PolicyField::Feed => self.feed.map(|value| value.to_string()),
            PolicyField::Tier => self.tier.map(|value| value.name().into()),
        }
    }

    /// Sets a field from its text. False if the text is not one of its values.
    #[must_use]
    pub fn set(&mut self, field: PolicyField, value: &[u8]) -> bool {
        if value.len() > VALUE_BYTES_MAX {
            return false;
        }
        self.set_parsed(field, value).is_some()
    }

    fn set_parsed(&mut self, field: PolicyField, value: &[u8]) -> Option<()> {
        match field {
            PolicyField::Consistency => self.consistency = Some(Consistency::from_name(value)?),
            PolicyField::Compression => self.compression = Some(parsed(value)?),
            PolicyField::Trash => self.trash = Some(parsed(value)?),
            PolicyField::Feed => self.feed = Some(parsed(value)?),
            PolicyField::Tier => self.tier = Some(parsed(value)?),
        }
        Some(())
    }

    /// Reads the value of the attribute [`XATTR_EFFECTIVE`]: what all lines say that this build
    /// understands.
    pub fn from_effective(text: &[u8]) -> Self {
        let mut policy = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            let setting = line.split(|byte| *byte == b' ').next().unwrap_or_default();
            let Some(equals) = setting.iter().position(|byte| *byte == b'=') else { continue };
            if let Some(field) = PolicyField::from_name(&setting[..equals]) {
                let _understood = policy.set(field, &setting[equals + 1..]);
            }
        }
        policy
    }

    /// A field is not said any more.
    pub fn unset(&mut self, field: PolicyField) {
        match field {
            PolicyField::Consistency => self.consistency = None,
            PolicyField::Compression => self.compression = None,
            PolicyField::Trash => self.trash = None,
            PolicyField::Feed => self.feed = None,
            PolicyField::Tier => self.tier = None,
        }
    }
}

fn parsed<T: FromStr>(value: &[u8]) -> Option<T> {
    str::from_utf8(value).ok()?.parse().ok()
}

/// Version of a record.
const VERSION: u8 = 1;

// Tags of fields, ascending in a record. Numbers are never given to another one.
const TAG_CONSISTENCY: u8 = 1;
const TAG_COMPRESSION: u8 = 2;
const TAG_BASE: u8 = 3;
const TAG_TRASH: u8 = 4;
const TAG_REMOVED: u8 = 5;
const TAG_FEED: u8 = 6;
const TAG_TIER: u8 = 7;
const TAG_IN_USE: u8 = 128;

// First byte of the field `compression`: the methods of coded objects (`docs/format/objects.md`).
// The level follows Zstandard's.
const METHOD_NONE: u8 = 0;
const METHOD_LZ4: u8 = 1;
const METHOD_ZSTD: u8 = 2;

/// Longest record, bytes.
pub const RECORD_BYTES_MAX: usize = 1024;

/// What the inode of a directory holds of policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PolicyRecord {
    /// The directory's own fields.
    pub own: Policy,
    /// Its names have not all come into being: the number of the clone that it is a part of
    /// ([`crate::clone`]).
    pub base: Option<NonZeroU64>,
    /// It was removed, and is in the trash: nothing gets a name in it.
    pub removed: bool,
    /// Of the root alone: a directory of the volume has had a policy, so nodes look for policies.
    pub in_use: bool,
}

impl PolicyRecord {
    /// The record's bytes (`docs/format.md`, "Policies"); `None` if it says nothing.
    pub fn encode(&self) -> Option<Box<[u8]>> {
        if *self == Self::default() {
            return None;
        }
        let mut out = vec![VERSION];
        if let Some(consistency) = self.own.consistency {
            out.push(TAG_CONSISTENCY);
            put_string(&mut out, &[consistency as u8]);
        }
        if let Some(compression) = self.own.compression {
            out.push(TAG_COMPRESSION);
            match compression {
                Compression::None => put_string(&mut out, &[METHOD_NONE]),
                Compression::Lz4 => put_string(&mut out, &[METHOD_LZ4]),
                Compression::Zstd(level) => put_string(&mut out, &[METHOD_ZSTD, level]),
            }
        }
        if let Some(base) = self.base {
            out.push(TAG_BASE);
            put_string(&mut out, &base.get().to_be_bytes());
        }
        if let Some(time) = self.own.trash {
            out.push(TAG_TRASH);
            put_string(&mut out, &time.hours().to_be_bytes());
        }
        if self.removed {
            out.push(TAG_REMOVED);
            put_string(&mut out, &[]);
        }
        if let Some(time) = self.own.feed {
            out.push(TAG_FEED);
            put_string(&mut out, &time.hours().to_be_bytes());
        }
        if let Some(tier) = self.own.tier {
            out.push(TAG_TIER);
            put_string(&mut out, &[tier as u8]);
        }
        if self.in_use {
            out.push(TAG_IN_USE);
            put_string(&mut out, &[]);
        }
        Some(out.into_boxed_slice())
    }

    /// Reads what [`PolicyRecord::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are truncated, of a newer version, or have a field or a value that this build
    /// does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return Err(DecodeError("policy of an unknown format version; use a newer release"));
        }
        let (mut record, mut last) = (Self::default(), 0);
        while reader.remaining() > 0 {
            let tag = reader.u8()?;
            let value = reader.string(RECORD_BYTES_MAX)?;
            if tag <= last {
                return Err(DecodeError("policy with fields out of order"));
            }
            last = tag;
            match (tag, value) {
                (TAG_CONSISTENCY, [number]) => {
                    let value = Consistency::from_u8(*number);
                    let unknown = DecodeError("unknown consistency in a policy");
                    record.own.consistency = Some(value.ok_or(unknown)?);
                }
                (TAG_COMPRESSION, value) => {
                    let unknown = DecodeError("unknown compression in a policy");
                    record.own.compression = Some(decode_compression(value).ok_or(unknown)?);
                }
                (TAG_BASE, [_, _, _, _, _, _, _, _]) => record.base = Some(base_of(value)?),
                (TAG_TRASH | TAG_FEED, [high, low]) => {
                    let time = Retention::from_hours(u16::from_be_bytes([*high, *low]));
                    let unknown = DecodeError("unknown time in a policy");
                    let time = Some(time.ok_or(unknown)?);
                    if tag == TAG_TRASH { record.own.trash = time } else { record.own.feed = time }
                }
                (TAG_REMOVED, []) => record.removed = true,
                (TAG_TIER, [number]) => {
                    let unknown = DecodeError("unknown tier in a policy");
                    record.own.tier = Some(Tier::from_u8(*number).ok_or(unknown)?);
                }
                (TAG_IN_USE, []) => record.in_use = true,
                (
                    TAG_CONSISTENCY | TAG_BASE | TAG_TRASH | TAG_REMOVED | TAG_FEED | TAG_TIER
                    | TAG_IN_USE,
                    _,
                ) => {
                    return Err(DecodeError("policy with a field of a wrong length"));
                }
                _ => return Err(DecodeError("policy with an unknown field; use a newer release")),
            }
        }
        Ok(record)
    }
}

fn decode_compression(value: &[u8]) -> Option<Compression> {
    match value {
        [METHOD_NONE] => Some(Compression::None),
        [METHOD_LZ4] => Some(Compression::Lz4),
        [METHOD_ZSTD, level] => {
            Compression::ZSTD_LEVELS.contains(level).then_some(Compression::Zstd(*level))
        }
        _ => None,
    }
}

fn base_of(value: &[u8]) -> Result<NonZeroU64, DecodeError> {
    NonZeroU64::new(Reader::new(value).u64()?).ok_or(DecodeError("base without a number"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    fn consistency(value: Consistency) -> Policy {
        Policy { consistency: Some(value), ..Policy::default() }
    }

    fn compression(value: Compression) -> Policy {
        Policy { compression: Some(value), ..Policy::default() }
    }

    const COMPRESSIONS: [Option<Compression>; 5] = [
        None,
        Some(Compression::None),
        Some(Compression::Lz4),
        Some(Compression::Zstd(1)),
        Some(Compression::Zstd(19)),
    ];

    /// Every record reads as it was written, and an empty one is no bytes at all.
    #[test]
    fn policy_record_round_trips() {
        assert_eq!(PolicyRecord::default().encode(), None);
        let values = Consistency::ALL.map(Some).into_iter().chain([None]);
        let policies = values.flat_map(|consistency| {
            COMPRESSIONS.map(|compression| Policy { consistency, compression, ..Policy::default() })
        });
        let trash = [None, Some(Retention::NONE), Retention::from_hours(300)];
        let policies = policies.flat_map(|own| trash.map(|trash| Policy { trash, ..own }));
        let feeds = [None, Retention::from_hours(24)];
        let policies = policies.flat_map(|own| feeds.map(|feed| Policy { feed, ..own }));
        let tiers = [None, Some(Tier::Standard), Some(Tier::DeepArchive)];
        let policies = policies.flat_map(|own| tiers.map(|tier| Policy { tier, ..own }));
        let bases = [None, NonZeroU64::new(300)];
        let all = policies.flat_map(|own| bases.map(|base| (own, base)));
        for ((own, base), in_use) in all.flat_map(|it| [(it, false), (it, true)]) {
            let record = PolicyRecord { own, base, removed: base.is_some() != in_use, in_use };
            if let Some(bytes) = record.encode() {
                assert_eq!(PolicyRecord::decode(&bytes), Ok(record));
                for len in 0..bytes.len() {
                    // A shorter one is refused, or ends with a field.
                    assert_ne!(PolicyRecord::decode(&bytes[..len]), Ok(record));
                }
            }
        }
    }

    /// The bytes of a record are those of `docs/format.md`.
    #[test]
    fn policy_record_bytes() {
        let mut record = PolicyRecord { in_use: true, ..PolicyRecord::default() };
        record.own = consistency(Consistency::Immutable);
        assert_eq!(*record.encode().unwrap(), [1, 1, 1, 2, 128, 0]);
        record.base = NonZeroU64::new(258);
        let bytes = [1, 1, 1, 2, 3, 8, 0, 0, 0, 0, 0, 0, 1, 2, 128, 0];
        assert_eq!(*record.encode().unwrap(), bytes);
        let trash = Policy { trash: Retention::from_hours(258), ..Policy::default() };
        let record = PolicyRecord { own: trash, removed: true, ..PolicyRecord::default() };
        assert_eq!(*record.encode().unwrap(), [1, 4, 2, 1, 2, 5, 0]);
        for (value, bytes) in [
            (Compression::None, &[1, 2, 1, 0][..]),
            (Compression::Lz4, &[1, 2, 1, 1]),
            (Compression::Zstd(7), &[1, 2, 2, 2, 7]),
        ] {
            let record = PolicyRecord { own: compression(value), ..PolicyRecord::default() };
            assert_eq!(*record.encode().unwrap(), *bytes);
        }
    }

    /// Versions, fields and values of later releases are refused.
    #[test]
    fn policy_record_of_a_later_release() {
        for bytes in [
            &[][..],
            &[2],
            &[1, 1],
            &[1, 1, 1, 3],
            &[1, 1, 2, 0, 0],
            &[1, 2, 0],
            &[1, 2, 1, 2],
            &[1, 2, 1, 3],
            &[1, 2, 2, 1, 1],
            &[1, 2, 2, 2, 0],
            &[1, 2, 2, 2, 20],
            &[1, 2, 1, 1, 1, 1, 0],
            &[1, 4, 1, 0],
            &[1, 4, 2, 255, 255],
            &[1, 5, 1, 0],
            &[1, 6, 0],
            &[1, 7, 1, 7],
            &[1, 7, 0],
            &[1, 3, 1, 1],
            &[1, 3, 8, 0, 0, 0, 0, 0, 0, 0, 0],
            &[1, 128, 1, 0],
            &[1, 128, 0, 1, 1, 0],
            &[1, 1, 1, 0, 1, 1, 0],
            &[1, 1, 255, 255, 255, 255, 15, 0],
        ] {
            assert!(PolicyRecord::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    /// Of each field the nearest directory's word counts.
    #[test]
    fn nearest_field_wins() {
        let (near, far) = (Consistency::CloseToOpen, Consistency::Immutable);
        assert_eq!(consistency(near).over(consistency(far)), consistency(near));
        assert_eq!(Policy::default().over(consistency(far)), consistency(far));
        assert_eq!(consistency(near).over(Policy::default()), consistency(near));
        let both = Policy { compression: Some(Compression::Lz4), ..consistency(far) };
        assert_eq!(compression(Compression::None).over(both).compression, Some(Compression::None));
        assert_eq!(consistency(near).over(both).compression, Some(Compression::Lz4));
    }

    /// What the attribute with the effective policy says reads back, and what is not understood is
    /// left out.
    #[test]
    fn effective_texts() {
        let text = b"consistency=strict above=0 inode=7\ncompression=zstd:5 above=2 inode=1\n\
            trash=12h above=2 inode=1\nfeed=2d above=0 inode=7\ntier=archive above=1 inode=2\n";
        let expected = Policy {
            consistency: Some(Consistency::Strict),
            compression: Some(Compression::Zstd(5)),
            trash: Retention::from_hours(12),
            feed: Retention::from_hours(48),
            tier: Some(Tier::Archive),
        };
        assert_eq!(Policy::from_effective(text), expected);
        for text in [&b""[..], b"=", b"\n\n", b"later=1 above=0 inode=1\n", b"consistency=later"] {
            assert_eq!(Policy::from_effective(text), Policy::default());
        }
    }

    /// Fields are set by their names and values alone.
    #[test]
    fn field_texts() {
        let field = PolicyField::from_name(b"consistency").unwrap();
        for value in Consistency::ALL {
            let mut policy = Policy::default();
            assert!(policy.set(field, value.name().as_bytes()));
            assert_eq!(policy.value(field).as_deref(), Some(value.name()));
            policy.unset(field);
            assert_eq!(policy, Policy::default());
        }
        let field = PolicyField::from_name(b"compression").unwrap();
        for (text, shown) in
            [("none", "none"), ("lz4", "lz4"), ("zstd", "zstd:3"), ("zstd:19", "zstd:19")]
        {
            let mut policy = Policy::default();
            assert!(policy.set(field, text.as_bytes()));
            assert_eq!(policy.value(field).as_deref(), Some(shown));
            policy.unset(field);
            assert_eq!(policy, Policy::default());
        }
        let field = PolicyField::from_name(b"trash").unwrap();
        for (text, shown) in [("none", "none"), ("24h", "1d"), ("12h", "12h")] {
            let mut policy = Policy::default();
            assert!(policy.set(field, text.as_bytes()));
            assert_eq!(policy.value(field).as_deref(), Some(shown));
            assert_eq!(policy.told(), Policy::default());
            policy.unset(field);
            assert_eq!(policy, Policy::default());
        }
        let mut policy = Policy::default();
        for bad in [&b""[..], b"gzip", b"zstd:20", b"zstd\0", b"\xff"] {
            assert!(!policy.set(field, bad), "{}", bad.escape_ascii());
        }
        let field = PolicyField::Consistency;
        for bad in [&b""[..], b"Strict", b"strict ", b"strict\0", b"mutable", &[b'x'; 65]] {
            assert!(!policy.set(field, bad), "{}", bad.escape_ascii());
        }
        assert_eq!(policy, Policy::default());
        assert_eq!(PolicyField::from_name(b"policy"), None);
    }
}
