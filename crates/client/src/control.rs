//! The control socket of a process that serves a volume: one line of JSON asks, one line answers.
//!
//! It lies in the volume's directory, readable and writable by the owner only, so that who may read the volume's files may
//! ask and nobody else. Verbs are up to whoever serves.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::error::VolumeError;

/// Name of the socket within the volume's directory.
pub const SOCKET_NAME: &str = "control.sock";

/// Longest request or answer, bytes.
const LINE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How long a peer may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for an answer that takes no work.
pub const QUICK: Option<Duration> = Some(Duration::from_secs(20));

/// Longest path a socket address holds.
const SOCKET_PATH_MAX: usize = 100;

/// Answers one request.
pub type Handler = dyn Fn(&Value) -> Result<Value, String> + Send + Sync;

/// A socket being served; removed when dropped.
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Serves `handler` for the volume at `dir`. The caller holds the volume's lock, so an old socket is a dead one.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn serve(dir: &Path, handler: Arc<Handler>) -> Result<Self, VolumeError> {
        let path = dir.join(SOCKET_NAME);
        let _ = std::fs::remove_file(&path);
        let io = |error: std::io::Error| VolumeError::io("listen on", &path, &error);
        let listener = with_short_path(&path, |short| UnixListener::bind(short)).map_err(io)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(io)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let held = listener.try_clone().map_err(io)?;
        let thread = std::thread::Builder::new()
            .name("kestrel-control".into())
            .spawn(move || {
                for stream in listener.incoming() {
                    if stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let handler = handler.clone();
                    // A dump takes long; it must not keep `kestrel stats` waiting.
                    let _ = std::thread::Builder::new().name("kestrel-control".into()).spawn(move || {
                        if let Err(error) = answer(stream, &*handler) {
                            log::debug!("control socket: {error}");
                        }
                    });
                }
            })
            .map_err(io)?;
        Ok(Self { path, listener: held, stop, thread: Some(thread) })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread out of accept, also if somebody has removed the socket's file.
        // SAFETY: takes a descriptor that `listener` keeps open, and no pointer.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(stream: UnixStream, handler: &Handler) -> std::io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => handler(&request),
        Err(error) => Err(format!("the request is not valid JSON: {error}")),
    };
    let answer = match answer {
        Ok(value) => serde_json::json!({ "ok": value }),
        Err(why) => serde_json::json!({ "error": why }),
    };
    writeln!(&stream, "{answer}")
}

/// Asks the process that serves the volume at `dir`, and waits for the answer up to `limit`, or as long as it takes.
///
/// # Errors
/// What the process said, or that none answers.
pub fn ask(dir: &Path, request: &Value, limit: Option<Duration>) -> Result<Value, VolumeError> {
    let path = dir.join(SOCKET_NAME);
    let io = |error: std::io::Error| VolumeError::io("reach the serving process through", &path, &error);
    let stream = with_short_path(&path, |short| UnixStream::connect(short)).map_err(io)?;
    stream.set_read_timeout(limit).map_err(io)?;
    writeln!(&stream, "{request}").map_err(io)?;
    let mut line = String::new();
    BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line).map_err(io)?;
    let bad = |why: &str| VolumeError::Io(format!("{}: {why}", path.display()));
    let mut answer: Value =
        serde_json::from_str(&line).map_err(|_| bad("the serving process gave no valid answer"))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(why) => Err(VolumeError::Io(why.to_string())),
        None => Ok(answer.get_mut("ok").map(Value::take).unwrap_or_default()),
    }
}

/// Socket addresses hold short paths only; a longer one is reached through a descriptor of its directory.
fn with_short_path<T>(path: &Path, act: impl FnOnce(&Path) -> std::io::Result<T>) -> std::io::Result<T> {
    if path.as_os_str().len() < SOCKET_PATH_MAX {
        return act(path);
    }
    let dir = std::fs::File::open(path.parent().unwrap_or(Path::new("/")))?;
    act(&PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", dir.as_raw_fd())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_also_below_a_long_path() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("x".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        for place in [dir.path(), &deep] {
            let handler: Arc<Handler> = Arc::new(|request| match request["verb"].as_str() {
                Some("echo") => Ok(request["text"].clone()),
                _ => Err("no such verb".into()),
            });
            let socket = ControlSocket::serve(place, handler).unwrap();
            assert_eq!(ask(place, &serde_json::json!({"verb": "echo", "text": "hi"}), QUICK).unwrap(), "hi");
            assert!(
                ask(place, &serde_json::json!({"verb": "x"}), QUICK)
                    .unwrap_err()
                    .to_string()
                    .contains("no such verb")
            );
            let _ = std::fs::remove_file(place.join(SOCKET_NAME));
            drop(socket);
            assert!(ask(place, &serde_json::json!({}), QUICK).is_err());
            assert!(!place.join(SOCKET_NAME).exists());
        }
    }
}
