//! How file data is compressed: a setting of volumes and a policy of directories.

use std::fmt;
use std::str::FromStr;

/// How new objects are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: costs little CPU, gains little.
    Lz4,
    /// Zstandard at a level of [`Compression::ZSTD_LEVELS`]: gains more and costs more, writing far
    /// more than reading.
    Zstd(u8),
}

impl Compression {
    /// Levels of Zstandard that can be chosen. Those above need windows far larger than a chunk.
    pub const ZSTD_LEVELS: std::ops::RangeInclusive<u8> = 1..=19;

    /// Level if none is given: the library's own default.
    pub const ZSTD_LEVEL_DEFAULT: u8 = 3;
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (method, level) =
            text.split_once(':').map_or((text, None), |(method, level)| (method, Some(level)));
        match (method, level) {
            ("none", None) => Ok(Self::None),
            ("lz4", None) => Ok(Self::Lz4),
            ("zstd", None) => Ok(Self::Zstd(Self::ZSTD_LEVEL_DEFAULT)),
            ("zstd", Some(level)) => {
                let parsed = level.parse().ok().filter(|level| Self::ZSTD_LEVELS.contains(level));
                parsed.map(Self::Zstd).ok_or_else(|| {
                    format!("{text:?}: the level must be a whole number from 1 to 19, as in zstd:3")
                })
            }
            _ => Err(format!("{text:?} is no compression; choose none, lz4, zstd or zstd:LEVEL")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// A setting reads as it was written, and a text that is none says which there are.
    #[test]
    fn compression_texts() {
        for text in ["none", "lz4", "zstd:1", "zstd:19"] {
            assert_eq!(Compression::from_str(text).unwrap().to_string(), text);
        }
        assert_eq!(Compression::from_str("zstd"), Ok(Compression::Zstd(3)));
        for text in [
            "", "LZ4", "gzip", "lz4:1", "none:0", "zstd:", "zstd:0", "zstd:20", "zstd:-1", "zstd:x",
        ] {
            let why = Compression::from_str(text).unwrap_err();
            assert!(why.contains("zstd"), "{why}");
        }
    }
}
