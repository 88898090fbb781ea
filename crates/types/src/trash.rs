//! The trash: how long what is removed is kept there, and under which name.
//!
//! Below a directory with the policy `trash` ([`crate::policy::Policy::trash`]) a name that is
//! removed moves to the directory `/.trash/kept` of the volume, with the inode that it stands for.
//! Both directories are ordinary ones of the superuser's. A name there is a [`KeptName`]: it says
//! when the entry expires, and where it was. Names sort by the time, so that what has expired is
//! found at the beginning of a listing.

use std::fmt;
use std::num::NonZeroU16;
use std::str::{self, FromStr};

use crate::clock::{Nanos, SECOND};
use crate::ids::InodeId;
use crate::name::{NAME_MAX, Name};

/// The directory of the volume's root for what is removed, below which only the superuser looks.
pub const TRASH: &[u8] = b".trash";

/// The directory in it with what is kept for a time.
pub const KEPT: &[u8] = b"kept";

const HOURS_A_DAY: u16 = 24;

/// Times in names are rounded up to whole minutes, seconds.
const STEP: i64 = 60;

/// How long the trash keeps what is removed: whole hours, or it keeps nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TrashTime(NonZeroU16);

impl TrashTime {
    /// What is removed is gone at once.
    pub const NONE: TrashTime = TrashTime(NonZeroU16::MIN);

    /// Longest time, hours.
    pub const HOURS_MAX: u16 = u16::MAX - 1;

    /// So many hours; nothing for 0. `None` if it is longer than [`TrashTime::HOURS_MAX`].
    pub const fn from_hours(hours: u16) -> Option<Self> {
        match NonZeroU16::MIN.checked_add(hours) {
            Some(time) => Some(Self(time)),
            None => None,
        }
    }

    /// In hours; 0 keeps nothing.
    pub const fn hours(self) -> u16 {
        self.0.get() - 1
    }

    /// When something that is removed at `now` expires, in seconds since 1970: a full minute, and
    /// not too early. `None` if nothing is kept.
    pub fn expiry(self, now: Nanos) -> Option<u64> {
        let hours = i64::from(NonZeroU16::new(self.hours())?.get());
        let seconds = now.max(0) / SECOND + hours * 3600 + STEP;
        Some((seconds - seconds % STEP).cast_unsigned())
    }
}

impl fmt::Display for TrashTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hours() {
            0 => f.write_str("none"),
            hours if hours % HOURS_A_DAY == 0 => write!(f, "{}d", hours / HOURS_A_DAY),
            hours => write!(f, "{hours}h"),
        }
    }
}

/// A text that is no [`TrashTime`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoTrashTime;

impl FromStr for TrashTime {
    type Err = NoTrashTime;

    /// `none`, or a number of hours or days such as `12h` and `7d`.
    fn from_str(text: &str) -> Result<Self, NoTrashTime> {
        if text == "none" {
            return Ok(Self::NONE);
        }
        let (number, hours) = match (text.strip_suffix('h'), text.strip_suffix('d')) {
            (Some(number), _) => (number, 1),
            (_, Some(number)) => (number, HOURS_A_DAY),
            (None, None) => return Err(NoTrashTime),
        };
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NoTrashTime);
        }
        let number: u16 = number.parse().map_err(|_| NoTrashTime)?;
        number.checked_mul(hours).and_then(Self::from_hours).ok_or(NoTrashTime)
    }
}

/// What the name of something in the trash says:
/// `EXPIRY-PARENT-INODE-NAME`, the expiry with ten digits; `~` before a name that was cut.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptName {
    /// When it expires, seconds since 1970.
    pub expiry: u64,
    /// The directory that it was in.
    pub parent: InodeId,
    /// Its inode.
    pub ino: InodeId,
    /// The name that it had there, or the beginning of it.
    pub name: Vec<u8>,
    /// The name was too long.
    pub is_cut: bool,
}

impl KeptName {
    /// The name in the trash of what had `name` in `parent`.
    pub fn new(expiry: u64, parent: InodeId, ino: InodeId, name: &[u8]) -> Self {
        let room = NAME_MAX - prefix(expiry, parent, ino).len() - 1;
        let is_cut = name.len() > room;
        Self { expiry, parent, ino, name: name[..name.len().min(room)].to_vec(), is_cut }
    }

    /// Its bytes: a name of at most [`NAME_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = prefix(self.expiry, self.parent, self.ino).into_bytes();
        out.push(if self.is_cut { b'~' } else { b'-' });
        out.extend_from_slice(&self.name);
        out
    }

    /// Reads what [`KeptName::encode`] wrote; `None` of any other name.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (expiry, rest) = number(bytes)?;
        let (parent, rest) = number(rest.strip_prefix(b"-")?)?;
        let (ino, rest) = number(rest.strip_prefix(b"-")?)?;
        let (is_cut, name) = match rest.split_first()? {
            (b'-', name) => (false, name),
            (b'~', name) => (true, name),
            _ => return None,
        };
        Name::new(name).ok()?;
        let decoded = Self { expiry, parent, ino, name: name.to_vec(), is_cut };
        (decoded.encode() == bytes).then_some(decoded)
    }
}

fn prefix(expiry: u64, parent: InodeId, ino: InodeId) -> String {
    format!("{expiry:010}-{parent}-{ino}")
}

/// The decimal number that `bytes` begin with, and the rest.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = bytes.split_at(end);
    Some((str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use proptest::prelude::*;

    use super::*;

    /// Times are written and read in hours and days, and what is no time is refused.
    #[test]
    fn time_texts() {
        for (text, hours) in [("none", 0), ("1h", 1), ("25h", 25), ("7d", 168), ("2730d", 65520)] {
            let time: TrashTime = text.parse().unwrap();
            assert_eq!((time.hours(), time.to_string().as_str()), (hours, text));
        }
        assert_eq!("48h".parse::<TrashTime>().unwrap().to_string(), "2d");
        assert_eq!("0d".parse::<TrashTime>(), Ok(TrashTime::NONE));
        for text in ["", "h", "7", "-1h", "+1h", "1 h", "65535h", "2731d", "7w", "99999d", "1.5d"] {
            assert_eq!(text.parse::<TrashTime>(), Err(NoTrashTime), "{text}");
        }
    }

    /// Nothing expires before its time, nor more than a minute after it.
    #[test]
    fn expiries() {
        let hour = TrashTime::from_hours(1).unwrap();
        for seconds in [0, 1, 59, 60, 61, 1_764_888_000] {
            let expiry = hour.expiry(seconds * SECOND + 5).unwrap();
            assert!(expiry.is_multiple_of(60));
            assert!((1..=60).contains(&(expiry - 3600 - seconds.cast_unsigned())), "{seconds}");
        }
        assert_eq!(TrashTime::NONE.expiry(0), None);
    }

    proptest! {
        /// A name in the trash is a name, and says what it was made of; a long one its beginning.
        #[test]
        fn kept_name_round_trips(
            expiry in any::<u32>(), parent in 1u64.., ino in any::<u64>(),
            name in prop::collection::vec(1u8..=255, 1..=NAME_MAX),
        ) {
            prop_assume!(Name::new(&name).is_ok());
            let kept = KeptName::new(expiry.into(), parent, ino, &name);
            prop_assert!(name.starts_with(&kept.name));
            prop_assert_eq!(kept.is_cut, kept.name.len() < name.len());
            let bytes = kept.encode();
            prop_assert!(Name::new(&bytes).is_ok());
            prop_assert_eq!(KeptName::decode(&bytes), Some(kept));
        }

        #[test]
        fn garbage_is_no_kept_name(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(KeptName::decode(&bytes), None);
        }
    }

    /// Names that differ in digits alone are not the same entry.
    #[test]
    fn one_spelling_of_a_kept_name() {
        for name in ["1764888000-77-1042-a", "0000000060-77-1042~a", "99999999999-1-2-a"] {
            assert!(KeptName::decode(name.as_bytes()).is_some(), "{name}");
        }
        for name in ["60-77-1042-a", "1764888000-077-1042-a", "1764888000-77-1042-", "17-1-2-.."] {
            assert_eq!(KeptName::decode(name.as_bytes()), None, "{name}");
        }
    }
}
