//! Sizes, durations and levels as people write and read them.

use std::time::Duration;

use log::LevelFilter;

/// Parses `4096`, `64K`, `4M`, `1G`, `2T`, also `4MiB` and `4MB`: powers of 1024 whichever way.
pub fn size_arg(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let shift = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        "P" | "PB" | "PIB" => 50,
        _ => {
            return Err(format!(
                "{text:?} is not a size; write a whole number of bytes, or with K, M, G, T, as 64K \
                 or 4M"
            ));
        }
    };
    let number: u64 = match number.parse() {
        Ok(number) => number,
        Err(_) if number.is_empty() => {
            return Err(format!(
                "{text:?} is not a size; it begins with no number, as in 64K or 4M"
            ));
        }
        Err(_) => return Err(format!("{text:?} is too large")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
}

/// Parses `90`, `90s`, `100ms`, `15m`, `2h`, `7d`.
pub fn duration_arg(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let factor = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => {
            return Err(format!(
                "{text:?} is not a duration; write seconds, or with ms, s, m, h, d, as 90s or 2h"
            ));
        }
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is not a duration; write as 90s or 2h"))?;
    let duration = number.checked_mul(factor).map(Duration::from_millis);
    let bounded = duration.filter(|duration| duration.as_secs() <= u64::from(u32::MAX));
    bounded.ok_or_else(|| format!("{text:?} is too long"))
}

/// `4 KiB`, `1.5 GiB`: a size for people, powers of 1024.
pub fn bytes(size: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if size < 1024 {
        return format!("{size} B");
    }
    let mut value = size as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if (value - value.round()).abs() < 0.05 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// `4K`, `64K`, `1M`: a size as it is given on the command line, if it is a whole number of a unit;
/// else in bytes.
pub fn short(size: u64) -> String {
    for (unit, shift) in [("T", 40), ("G", 30), ("M", 20), ("K", 10)] {
        if size >= 1 << shift && size.is_multiple_of(1 << shift) {
            return format!("{}{unit}", size >> shift);
        }
    }
    size.to_string()
}

/// `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A level of the log, as clap wants it.
///
/// # Errors
/// Names the levels.
pub fn log_level_arg(text: &str) -> Result<LevelFilter, String> {
    text.parse().map_err(|_| format!("{text:?} is none of error, warn, info, debug, trace, off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65_536),
            ("4m", 4 << 20),
            ("1GiB", 1 << 30),
            ("2 T", 2 << 40),
        ] {
            assert_eq!(size_arg(text), Ok(size), "{text}");
        }
        for text in ["", "K", "-1", "4X", "1.5M", "99999999999999999999", "16777216T", "4 M B"] {
            assert!(size_arg(text).is_err(), "{text}");
        }
        assert!(size_arg("4X").unwrap_err().contains("64K"));
    }

    #[test]
    fn durations() {
        assert_eq!(duration_arg("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration_arg("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration_arg("100ms"), Ok(Duration::from_millis(100)));
        for text in ["", "h", "2w", "-3s", "99999999999d"] {
            assert!(duration_arg(text).is_err(), "{text}");
        }
    }

    #[test]
    fn for_people() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(bytes((1 << 20) - 1), "1 MiB");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
        for text in ["0", "100", "4K", "65K", "1M", "3T"] {
            assert_eq!(short(size_arg(text).unwrap()), text);
        }
    }
}
