//! Where log messages go: standard error, which in the background is the log file.
//!
//! The log file of a process in the background is put aside as `NAME.1`, in the place of the one
//! before, when it has `FILE_BYTES_MAX` bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kestrel_types::clock::{Clock, SECOND, SystemClock};
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;

/// Bytes after which a log file is put aside.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The log file, if standard error is one of this process's own.
static LOG_FILE: Mutex<Option<LogFile>> = Mutex::new(None);

/// A file that a descriptor writes to.
struct LogFile {
    path: PathBuf,
    descriptor: RawFd,
    bytes: u64,
    bytes_max: u64,
}

impl LogFile {
    fn of(descriptor: RawFd, bytes_max: u64) -> io::Result<Self> {
        let link = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
        let path = std::fs::read_link(&link)?;
        let meta = std::fs::metadata(&link)?;
        if !meta.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { path, descriptor, bytes: meta.len(), bytes_max })
    }

    /// Counts a line that is about to be written, and puts the file aside before it if that is
    /// full.
    fn count(&mut self, bytes: usize) {
        if self.bytes + bytes as u64 > self.bytes_max {
            // What cannot be put aside is written to until it has as much again.
            self.bytes = self.put_aside().unwrap_or_default();
        }
        self.bytes += bytes as u64;
    }

    /// Has the descriptor write to a new file; how long that is. Another process that logs there
    /// may have put this one aside.
    fn put_aside(&self) -> io::Result<u64> {
        let ours = std::fs::metadata(format!("/proc/self/fd/{}", self.descriptor))?;
        let there = std::fs::metadata(&self.path);
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            std::fs::rename(&self.path, before(&self.path))?;
        }
        let file: File =
            OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
        let bytes = file.metadata()?.len();
        // SAFETY: both descriptors are open; the second is ours to replace.
        if unsafe { libc::dup2(file.as_raw_fd(), self.descriptor) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(bytes)
    }
}

/// Name of the file that was put aside.
fn before(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".1");
    name.into()
}

/// Standard error is a file of this process's own: it is bounded from now on.
pub fn bound_file() {
    if let Ok(file) = LogFile::of(libc::STDERR_FILENO, FILE_BYTES_MAX) {
        *LOG_FILE.lock() = Some(file);
    }
}

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries' messages about their internals are of no use to the operator of a volume.
        // `lsm_tree` calls a merge that was told to stop an error; the engine reports those that
        // matter.
        metadata.target().starts_with("kestrel")
            || (metadata.level() <= Level::Warn && !metadata.target().starts_with("lsm_tree"))
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let now = utc(SystemClock.now());
            let line =
                format!("{now} {:<5} {}: {}\n", record.level(), record.target(), record.args());
            let mut file = LOG_FILE.lock();
            if let Some(file) = &mut *file {
                file.count(line.len());
            }
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

/// The same of seconds since 1970.
pub fn utc_of_seconds(seconds: u64) -> String {
    utc(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(SECOND))
}

/// `2026-01-31T12:34:56.789Z`.
pub fn utc(nanos: i64) -> String {
    let seconds = nanos.div_euclid(SECOND);
    let millis = nanos.rem_euclid(SECOND) / 1_000_000;
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to civil date in the proleptic Gregorian calendar (Howard Hinnant, "chrono-Compatible
    // Low-Level Date Algorithms").
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
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
    use std::fs;

    use super::*;

    /// A file that is full is put aside in the place of the one before, and lines go on in a new
    /// one. What another process has put aside is not put aside again.
    #[test]
    fn full_files_are_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serve.log");
        let lines = |end: &str| {
            fs::read_to_string(dir.path().join(format!("serve.log{end}")))
                .unwrap_or_default()
                .lines()
                .count()
        };
        fs::write(&path, "old\n").unwrap();
        let mut stream = OpenOptions::new().append(true).open(&path).unwrap();
        let mut file = LogFile::of(stream.as_raw_fd(), 40).unwrap();
        let mut say = |times| {
            for _ in 0..times {
                file.count(10);
                stream.write_all(b"ten bytes\n").unwrap();
            }
        };
        say(3);
        assert_eq!((lines(""), lines(".1")), (4, 0));
        say(1);
        assert_eq!((lines(""), lines(".1")), (1, 4));
        say(1000);
        assert!(lines("") <= 4 && lines(".1") == 4);
        fs::rename(&path, dir.path().join("serve.log.1")).unwrap();
        fs::write(&path, "another's\n").unwrap();
        say(4);
        assert_eq!((lines(""), lines(".1")), (2, 4));
    }

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400 * SECOND + 5_000_000), "2000-02-29T00:00:00.005Z");
        assert_eq!(utc(1_700_000_000 * SECOND), "2023-11-14T22:13:20.000Z");
        assert_eq!(utc(-SECOND), "1969-12-31T23:59:59.000Z");
    }
}
