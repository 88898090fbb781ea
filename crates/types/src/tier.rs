//! Tiers: where a store keeps an object, which decides what keeping and reading it costs.
//!
//! On S3 a tier is a storage class. Names are those of the S3 API in lower case, except that
//! `archive` is its class `GLACIER`. Which tier an object has is known to the store alone: it may
//! be moved without a change of metadata.

use std::fmt;
use std::str::FromStr;

/// A tier. Numbers are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tier {
    /// Where objects go by themselves.
    Standard = 0,
    /// Cheaper to keep, dearer to read.
    StandardIa = 1,
    /// The same, in one zone.
    OneZoneIa = 2,
    /// The store moves objects by how they are read.
    IntelligentTiering = 3,
    /// An archive that is read at once.
    GlacierIr = 4,
    /// An archive: objects are restored before they are read, which takes minutes to hours.
    Archive = 5,
    /// The cheapest archive: restoring takes hours to days.
    DeepArchive = 6,
}

impl Tier {
    /// All there are, by their numbers.
    pub const ALL: [Tier; 7] = [
        Self::Standard,
        Self::StandardIa,
        Self::OneZoneIa,
        Self::IntelligentTiering,
        Self::GlacierIr,
        Self::Archive,
        Self::DeepArchive,
    ];

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::StandardIa => "standard-ia",
            Self::OneZoneIa => "onezone-ia",
            Self::IntelligentTiering => "intelligent-tiering",
            Self::GlacierIr => "glacier-ir",
            Self::Archive => "archive",
            Self::DeepArchive => "deep-archive",
        }
    }

    /// The storage class as the S3 API writes it.
    pub const fn s3_class(self) -> &'static str {
        match self {
            Self::Standard => "STANDARD",
            Self::StandardIa => "STANDARD_IA",
            Self::OneZoneIa => "ONEZONE_IA",
            Self::IntelligentTiering => "INTELLIGENT_TIERING",
            Self::GlacierIr => "GLACIER_IR",
            Self::Archive => "GLACIER",
            Self::DeepArchive => "DEEP_ARCHIVE",
        }
    }

    /// The tier of a storage class of the S3 API; `None` of a class that is none of these.
    pub fn from_s3_class(class: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.s3_class() == class)
    }

    /// The tier with this number.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| *tier as u8 == number)
    }

    /// Shortest time for which S3 charges an object of the tier, days.
    pub const fn days_min(self) -> u32 {
        match self {
            Self::Standard | Self::IntelligentTiering => 0,
            Self::StandardIa | Self::OneZoneIa => 30,
            Self::GlacierIr | Self::Archive => 90,
            Self::DeepArchive => 180,
        }
    }

    /// Whether objects have to be restored before they are read.
    pub const fn is_archive(self) -> bool {
        matches!(self, Self::Archive | Self::DeepArchive)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is no [`Tier`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotATier;

impl FromStr for Tier {
    type Err = NotATier;

    fn from_str(text: &str) -> Result<Self, NotATier> {
        Self::ALL.into_iter().find(|tier| tier.name() == text).ok_or(NotATier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers, names and classes each stand for one tier.
    #[test]
    fn tier_names() {
        for (number, tier) in Tier::ALL.into_iter().enumerate() {
            assert_eq!(Tier::from_u8(number as u8), Some(tier));
            assert_eq!(tier.name().parse(), Ok(tier));
            assert_eq!(Tier::from_s3_class(tier.s3_class()), Some(tier));
        }
        assert_eq!(Tier::from_u8(7), None);
        for bad in ["", "Archive", "GLACIER", "archive ", "cold"] {
            assert_eq!(bad.parse::<Tier>(), Err(NotATier), "{bad:?}");
        }
        assert_eq!(Tier::from_s3_class("EXPRESS_ONEZONE"), None);
    }
}
