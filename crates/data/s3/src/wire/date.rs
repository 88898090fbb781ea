//! The date of an answer (`Sat, 21 Nov 2026 15:00:56 GMT`, RFC 9110's IMF-fixdate), to find clocks
//! that differ.

use kestrel_types::clock::{Nanos, SECOND};

/// The time of the header; none if it is not of the one form that is sent.
pub(super) fn parse(text: &str) -> Option<Nanos> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let mut words = text.split(' ').skip(1);
    let day: i64 = words.next()?.parse().ok()?;
    let month = words.next().filter(|month| month.len() == 3)?;
    let month = MONTHS.find(month).filter(|at| at % 3 == 0)? as i64 / 3 + 1;
    let year: i64 = words.next()?.parse().ok()?;
    let mut clock = words.next()?.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let fits = (1970..=2200).contains(&year)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    let seconds = (days(year, month, day) * 24 + hour) * 3600 + minute * 60 + second;
    fits.then_some(seconds * SECOND)
}

/// Days since 1970-01-01 (Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year / 400;
    let year_of_era = year - era * 400;
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        assert_eq!(parse("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777 * SECOND));
        assert_eq!(parse("Thu, 29 Feb 2024 23:59:59 GMT"), Some(1_709_251_199 * SECOND));
        for bad in [
            "",
            "x",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 8 GMT",
            "Sun, 6 anF 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
