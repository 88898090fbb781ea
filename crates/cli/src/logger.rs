//! Where log messages go: standard error, which in the background is the log file.

use std::io::Write;

use kestrel_types::clock::{Clock, SECOND, SystemClock};
use log::{Level, LevelFilter, Log, Metadata, Record};

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries' messages about their internals are of no use to whoever runs a volume. `lsm_tree` calls a merge that was
        // told to stop an error; the engine reports those that matter.
        metadata.target().starts_with("kestrel")
            || (metadata.level() <= Level::Warn && !metadata.target().starts_with("lsm_tree"))
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let now = utc(SystemClock.now());
            let line = format!("{now} {:<5} {}: {}\n", record.level(), record.target(), record.args());
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Sends messages of `level` and above to standard error. The first call counts.
pub fn install(level: LevelFilter) {
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(level);
    }
}

/// `2026-01-31T12:34:56.789Z`.
pub fn utc(nanos: i64) -> String {
    let seconds = nanos.div_euclid(SECOND);
    let millis = nanos.rem_euclid(SECOND) / 1_000_000;
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to civil date in the proleptic Gregorian calendar (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400 * SECOND + 5_000_000), "2000-02-29T00:00:00.005Z");
        assert_eq!(utc(1_700_000_000 * SECOND), "2023-11-14T22:13:20.000Z");
        assert_eq!(utc(-SECOND), "1969-12-31T23:59:59.000Z");
    }
}
