//! How long policies have something kept: what is removed ([`crate::trash`]), and the events of a
//! change feed ([`crate::feed`]).

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use crate::clock::{Nanos, SECOND};

const HOURS_A_DAY: u16 = 24;

/// Expiries are rounded up to whole minutes, seconds.
const STEP: i64 = 60;

/// A time in whole hours, or nothing is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Retention(NonZeroU16);

impl Retention {
    /// Nothing is kept.
    pub const NONE: Retention = Retention(NonZeroU16::MIN);

    /// Longest time, hours.
    pub const HOURS_MAX: u16 = u16::MAX - 1;

    /// So many hours; nothing for 0. `None` if it is longer than [`Retention::HOURS_MAX`].
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

    /// When something that comes at `now` expires, in seconds since 1970: a full minute, and
    /// not too early. `None` if nothing is kept.
    pub fn expiry(self, now: Nanos) -> Option<u64> {
        let hours = i64::from(NonZeroU16::new(self.hours())?.get());
        let seconds = now.max(0) / SECOND + hours * 3600 + STEP;
        Some((seconds - seconds % STEP).cast_unsigned())
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hours() {
            0 => f.write_str("none"),
            hours if hours % HOURS_A_DAY == 0 => write!(f, "{}d", hours / HOURS_A_DAY),
            hours => write!(f, "{hours}h"),
        }
    }
}

/// A text that is no [`Retention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotARetention;

impl FromStr for Retention {
    type Err = NotARetention;

    /// `none`, or a number of hours or days such as `12h` and `7d`.
    fn from_str(text: &str) -> Result<Self, NotARetention> {
        if text == "none" {
            return Ok(Self::NONE);
        }
        let (number, hours) = match (text.strip_suffix('h'), text.strip_suffix('d')) {
            (Some(number), _) => (number, 1),
            (_, Some(number)) => (number, HOURS_A_DAY),
            (None, None) => return Err(NotARetention),
        };
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NotARetention);
        }
        let number: u16 = number.parse().map_err(|_| NotARetention)?;
        number.checked_mul(hours).and_then(Self::from_hours).ok_or(NotARetention)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// Times are written and read in hours and days, and what is no time is refused.
    #[test]
    fn time_texts() {
        for (text, hours) in [("none", 0), ("1h", 1), ("25h", 25), ("7d", 168), ("2730d", 65520)] {
            let time: Retention = text.parse().unwrap();
            assert_eq!((time.hours(), time.to_string().as_str()), (hours, text));
        }
        assert_eq!("48h".parse::<Retention>().unwrap().to_string(), "2d");
        assert_eq!("0d".parse::<Retention>(), Ok(Retention::NONE));
        for text in ["", "h", "7", "-1h", "+1h", "1 h", "65535h", "2731d", "7w", "99999d", "1.5d"] {
            assert_eq!(text.parse::<Retention>(), Err(NotARetention), "{text}");
        }
    }

    /// Nothing expires before its time, nor more than a minute after it.
    #[test]
    fn expiries() {
        let hour = Retention::from_hours(1).unwrap();
        for seconds in [0, 1, 59, 60, 61, 1_764_888_000] {
            let expiry = hour.expiry(seconds * SECOND + 5).unwrap();
            assert!(expiry.is_multiple_of(60));
            assert!((1..=60).contains(&(expiry - 3600 - seconds.cast_unsigned())), "{seconds}");
        }
        assert_eq!(Retention::NONE.expiry(0), None);
    }
}
