//! The audit log: refusals, and acts of administration. One JSON object a line, oldest first.
//!
//! Every administrative operation is in it. Refusals, which any client can cause, are in a file of
//! their own, so that they push nothing else out: as many as can be read, above [`REFUSALS_MAX`] a
//! second, or [`REFUSALS_SHARE`] from one address, they are counted, and the count is in the next
//! line (`left_out`). Nothing secret is ever handed to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use kestrel_types::clock::{Nanos, SECOND};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::quota::Quota;

/// Most refusals in a second that get a line.
pub const REFUSALS_MAX: u32 = 20;

/// Most of these from one address.
pub const REFUSALS_SHARE: u32 = 10;

/// What the name of the file of refusals has at its end.
const REFUSED: &str = ".refused";

/// Bytes after which a file is put aside as `NAME.1`, in the place of the one before.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Longest text in a line, bytes.
const TEXT_MAX: usize = 1024;

/// One line of the log.
#[derive(Debug, Clone, Copy)]
pub struct AuditEntry<'a> {
    /// What kind of thing.
    pub event: AuditEvent,
    /// The client's name, as its Hello has it.
    pub who: &'a str,
    /// Where from: its address, or `local`.
    pub from: &'a str,
    /// Number of its token, if it has shown one.
    pub token: Option<kestrel_types::token::TokenId>,
    /// What it wanted.
    pub what: &'a str,
    /// What came of it: `done`, or why not.
    pub result: &'a str,
}

/// Kinds of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditEvent {
    /// A connection was refused.
    Handshake,
    /// An operation was refused.
    Operation,
    /// An administrative operation of a client that may administer, failed or not.
    Admin,
}

impl AuditEvent {
    fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake refused",
            Self::Operation => "operation refused",
            Self::Admin => "administration",
        }
    }
}

/// One of the two files.
struct Log {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
}

/// What is guarded by the lock.
struct State {
    administration: Log,
    refused: Log,
    /// Lines for refusals.
    refusals: Quota,
    /// A failure to write has been logged.
    failed: bool,
}

/// See the module's header. One that was switched off takes everything and keeps nothing.
#[derive(Default)]
pub struct Audit(Option<Mutex<State>>);

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("on", &self.0.is_some()).finish_non_exhaustive()
    }
}

impl Audit {
    /// Goes on with the file and that of refusals, or begins them; only their owner may read them.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (administration, refused) =
            (Log::open(path.into())?, Log::open(with_end(path, REFUSED))?);
        let refusals = Quota::new(SECOND, REFUSALS_MAX, REFUSALS_SHARE);
        let state = State { administration, refused, refusals, failed: false };
        Ok(Self(Some(Mutex::new(state))))
    }

    /// Writes an entry, at this time by the wall.
    pub fn tell(&self, now: Nanos, entry: AuditEntry<'_>) {
        let Some(state) = &self.0 else { return };
        let mut state = state.lock();
        let refused = entry.event != AuditEvent::Admin;
        if refused && !state.refusals.allows(now, entry.from) {
            return;
        }
        let mut line = Map::new();
        line.insert("time".into(), json!(now as f64 / SECOND as f64));
        line.insert("event".into(), entry.event.name().into());
        for (name, text) in [
            ("who", entry.who),
            ("from", entry.from),
            ("what", entry.what),
            ("result", entry.result),
        ] {
            line.insert(name.into(), cut(text).into());
        }
        line.insert("token".into(), entry.token.map(|id| id.to_string()).into());
        let left_out = if refused { state.refusals.take_left_out() } else { 0 };
        if left_out > 0 {
            line.insert("left_out".into(), left_out.into());
        }
        let log = if refused { &mut state.refused } else { &mut state.administration };
        match log.write(&format!("{}\n", Value::Object(line))) {
            Ok(()) => state.failed = false,
            Err(why) => {
                let path = log.path.display().to_string();
                if !std::mem::replace(&mut state.failed, true) {
                    log::error!("{path}: the audit log cannot be written: {why}");
                }
            }
        }
    }
}

impl Log {
    fn open(path: PathBuf) -> io::Result<Self> {
        let (file, bytes) = open(&path)?;
        Ok(Self { path, file: Some(file), bytes })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.bytes >= FILE_BYTES_MAX {
            std::fs::rename(&self.path, with_end(&self.path, ".1"))?;
            self.file = None;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let (file, bytes) = open(&self.path)?;
                self.bytes = bytes;
                self.file.insert(file)
            }
        };
        file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(end);
    name.into()
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

fn cut(text: &str) -> &str {
    let mut end = TEXT_MAX.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(event: AuditEvent) -> AuditEntry<'static> {
        AuditEntry {
            event,
            who: "host:1:/mnt",
            from: "10.0.0.1:5",
            token: None,
            what: "Lookup",
            result: "no\nline",
        }
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Refusals beyond a bound are counted only, and acts of administration are always recorded.
    #[test]
    fn bounded_refusals_in_the_audit_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::open(&path).unwrap();
        for number in 0..REFUSALS_MAX + 5 {
            let from = if number % 2 == 0 { "10.0.0.1:5" } else { "10.0.0.2:5" };
            audit.tell(7 * SECOND, AuditEntry { from, ..entry(AuditEvent::Operation) });
        }
        audit.tell(7 * SECOND, entry(AuditEvent::Admin));
        audit.tell(8 * SECOND, entry(AuditEvent::Handshake));
        let refused = lines(&dir.path().join("audit.log.refused"));
        assert_eq!((refused.len(), lines(&path).len()), (REFUSALS_MAX as usize + 1, 1));
        let (first, last) = (&refused[0], &refused[refused.len() - 1]);
        assert_eq!((&last["event"], &last["left_out"]), (&json!("handshake refused"), &json!(5)));
        assert_eq!((&first["result"], &first["token"]), (&json!("no\nline"), &Value::Null));
        assert!(first.get("left_out").is_none());
        assert_eq!(lines(&path)[0]["event"], "administration");
    }

    /// A log file that is long enough is rotated, and the log of refusals is rotated by itself.
    #[test]
    fn rotation_of_audit_log_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let file = |name: &str| lines(&dir.path().join(name)).len();
        std::fs::write(&path, "{}\n").unwrap();
        let audit = Audit::open(&path).unwrap();
        for (second, event) in
            [(1, AuditEvent::Admin), (2, AuditEvent::Operation), (3, AuditEvent::Handshake)]
        {
            {
                let State { administration, refused, .. } = &mut *audit.0.as_ref().unwrap().lock();
                let log = if event == AuditEvent::Admin { administration } else { refused };
                log.bytes = FILE_BYTES_MAX;
            }
            audit.tell(second * SECOND, entry(event));
        }
        assert_eq!((file("audit.log"), file("audit.log.1")), (1, 1));
        assert_eq!((file("audit.log.refused"), file("audit.log.refused.1")), (1, 1));
    }
}
