//! The access log: one JSON object a line for each request.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kestrel_types::clock::{Nanos, SECOND};
use parking_lot::Mutex;
use serde_json::json;

/// Bytes after which a file is put aside as `NAME.1`, in the place of the one before.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Longest text of a client in a line, bytes.
const TEXT_MAX: usize = 1024;

/// A request, and what it was answered.
#[derive(Debug, Clone)]
pub struct AccessEntry<'a> {
    /// Its number, which the answer has as `x-amz-request-id`.
    pub id: &'a str,
    /// Where it came from.
    pub from: SocketAddr,
    /// The access key that it names; it is a claim unless the status says that it is true.
    pub key: Option<&'a str>,
    /// The method.
    pub method: &'a http::Method,
    /// The path.
    pub path: &'a str,
    /// What follows the `?`, without a signature.
    pub query: Option<String>,
    /// The client's program.
    pub agent: Option<&'a str>,
    /// Status of the answer.
    pub status: u16,
    /// Bytes of the request's body.
    pub received: u64,
    /// Bytes of the answer's body, if it has a length.
    pub sent: Option<u64>,
    /// Time from the request's head to the answer's head.
    pub after: Duration,
}

struct State {
    file: Option<File>,
    bytes: u64,
    failed: bool,
}

/// The log.
pub struct AccessLog {
    path: PathBuf,
    state: Mutex<State>,
}

impl AccessLog {
    /// Goes on with a file, or begins it; only its owner may read it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let (file, bytes) = open(&path)?;
        Ok(Self { path, state: Mutex::new(State { file: Some(file), bytes, failed: false }) })
    }

    /// Writes a line, at this time by the wall.
    pub fn tell(&self, now: Nanos, entry: &AccessEntry<'_>) {
        let line = json!({
            "time": now as f64 / SECOND as f64,
            "id": entry.id,
            "from": entry.from.to_string(),
            "key": entry.key.map(cut),
            "method": entry.method.as_str(),
            "path": cut(entry.path),
            "query": entry.query.as_deref().map(cut),
            "agent": entry.agent.map(cut),
            "status": entry.status,
            "received": entry.received,
            "sent": entry.sent,
            "seconds": (entry.after.as_secs_f64() * 1e6).round() / 1e6,
        });
        let mut state = self.state.lock();
        match state.write(&self.path, &format!("{line}\n")) {
            Ok(()) => state.failed = false,
            Err(why) if !state.failed => {
                state.failed = true;
                log::error!("{}: the access log cannot be written: {why}", self.path.display());
            }
            Err(_) => {}
        }
    }
}

impl State {
    fn write(&mut self, path: &Path, line: &str) -> io::Result<()> {
        if self.bytes >= FILE_BYTES_MAX {
            let mut aside = path.as_os_str().to_os_string();
            aside.push(".1");
            std::fs::rename(path, aside)?;
            self.file = None;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let (file, bytes) = open(path)?;
                self.bytes = bytes;
                self.file.insert(file)
            }
        };
        file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX.min(text.len()))]
}
