//! The control socket of a process that serves a volume: one line of JSON asks, one line answers.
//!
//! **Protocol.** The request is one line, `{"verb": …}`. Then come any number of lines
//! `{"event": …}` (what was found, how far the work is), and last one line, `{"ok": …}` or
//! `{"error": "…"}`. Work that takes long has no deadline: it goes on as long as the asker listens,
//! and the job learns from [`Teller::tell`] when that has ended.
//!
//! It lies in the volume's directory, readable and writable by the owner only, so that only users
//! that may read the volume's files may ask. Verbs are up to the process that serves.

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

/// How long a peer may leave an event unread; then it counts as gone, so that a stopped terminal
/// does not hold up the work.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait for an answer that takes no work.
pub const QUICK: Option<Duration> = Some(Duration::from_secs(20));

/// Longest path a socket address holds.
const SOCKET_PATH_MAX: usize = 100;

/// Answers one request; on the way it may tell events.
pub type Handler = dyn Fn(&Value, &mut Teller<'_>) -> Result<Value, String> + Send + Sync;

/// Tells the asker what happens before the answer.
pub struct Teller<'a> {
    stream: Option<&'a UnixStream>,
}

impl<'a> Teller<'a> {
    fn new(stream: &'a UnixStream) -> Self {
        Self { stream: Some(stream) }
    }

    /// Sends an event. False if nobody listens (any more): work that only they wanted should stop.
    pub fn tell(&mut self, event: &Value) -> bool {
        let line = format!("{}\n", serde_json::json!({ "event": event }));
        let sent = self.stream.is_some_and(|mut stream| stream.write_all(line.as_bytes()).is_ok());
        if !sent {
            self.stream = None;
        }
        sent
    }

    /// Whether an event could not be sent.
    pub fn is_gone(&self) -> bool {
        self.stream.is_none()
    }
}

/// A socket being served; removed when dropped.
pub struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Serves `handler` for the volume at `dir`. The caller holds the volume's lock, so an old
    /// socket is a dead one.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn serve(dir: &Path, handler: Arc<Handler>) -> Result<Self, VolumeError> {
        let path = dir.join(SOCKET_NAME);
        let _ = std::fs::remove_file(&path);
        let io = |error: std::io::Error| VolumeError::io("listen on", &path, error);
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
                    let _ = std::thread::Builder::new().name("kestrel-control".into()).spawn(
                        move || {
                            if let Err(error) = answer(stream, &*handler) {
                                log::debug!("control socket: {error}");
                            }
                        },
                    );
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
    stream.set_write_timeout(Some(EVENT_TIMEOUT))?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => handler(&request, &mut Teller::new(&stream)),
        Err(error) => Err(format!("the request is not valid JSON: {error}")),
    };
    let answer = match answer {
        Ok(value) => serde_json::json!({ "ok": value }),
        Err(why) => serde_json::json!({ "error": why }),
    };
    writeln!(&stream, "{answer}")
}

/// Asks the process that serves the volume at `dir`, and waits for the answer up to `limit`, or as
/// long as it takes.
///
/// # Errors
/// What the process said, or that none answers.
pub fn ask(dir: &Path, request: &Value, limit: Option<Duration>) -> Result<Value, VolumeError> {
    ask_with(dir, request, limit, &mut |_| {})
}

/// Like [`ask`] for work that tells what it does: `on_event` gets each event as it comes. `limit`
/// bounds the time between two lines.
///
/// # Errors
/// What the process said, that none answers, or that it ended before the work did.
pub fn ask_with(
    dir: &Path,
    request: &Value,
    limit: Option<Duration>,
    on_event: &mut dyn FnMut(Value),
) -> Result<Value, VolumeError> {
    let path = dir.join(SOCKET_NAME);
    let io =
        |error: std::io::Error| VolumeError::io("reach the serving process through", &path, error);
    let bad = |why: &str| VolumeError::Io(format!("{}: {why}", path.display()));
    let stream = with_short_path(&path, |short| UnixStream::connect(short))
        .map_err(|error| VolumeError::Unanswered(io(error).to_string()))?;
    stream.set_read_timeout(limit).map_err(io)?;
    writeln!(&stream, "{request}").map_err(io)?;
    let mut lines = BufReader::new(&stream);
    let mut line = String::new();
    loop {
        line.clear();
        let read = lines.by_ref().take(LINE_BYTES_MAX).read_line(&mut line).map_err(io)?;
        if read == 0 {
            return Err(bad(
                "the serving process ended before it had answered; see its log, and ask again",
            ));
        }
        let mut answer: Value = serde_json::from_str(&line)
            .map_err(|_| bad("the serving process gave no valid answer"))?;
        if let Some(event) = answer.get_mut("event") {
            on_event(event.take());
            continue;
        }
        return match answer.get("error").and_then(Value::as_str) {
            Some(why) => Err(VolumeError::Io(why.to_string())),
            None => Ok(answer.get_mut("ok").map(Value::take).unwrap_or_default()),
        };
    }
}

/// Socket addresses hold short paths only; a longer one is reached through a descriptor of its
/// directory.
fn with_short_path<T>(
    path: &Path,
    act: impl FnOnce(&Path) -> std::io::Result<T>,
) -> std::io::Result<T> {
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
            let handler: Arc<Handler> = Arc::new(|request, _| match request["verb"].as_str() {
                Some("echo") => Ok(request["text"].clone()),
                _ => Err("no such verb".into()),
            });
            let socket = ControlSocket::serve(place, handler).unwrap();
            assert_eq!(
                ask(place, &serde_json::json!({"verb": "echo", "text": "hi"}), QUICK).unwrap(),
                "hi"
            );
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
    /// Events come before the answer, and the work learns when no process listens any more.
    #[test]
    fn control_events_and_absent_listeners() {
        let dir = tempfile::tempdir().unwrap();
        let (send, ended) = std::sync::mpsc::channel();
        let send = parking_lot::Mutex::new(send);
        let handler: Arc<Handler> = Arc::new(move |request, teller| {
            let mut told = 0;
            for number in 0..request["events"].as_u64().unwrap() {
                if !teller.tell(&serde_json::json!({ "number": number })) {
                    break;
                }
                told += 1;
            }
            send.lock().send(teller.is_gone()).unwrap();
            Ok(told.into())
        });
        let socket = ControlSocket::serve(dir.path(), handler).unwrap();
        let mut seen = Vec::new();
        let request = serde_json::json!({ "events": 3 });
        let answer =
            ask_with(dir.path(), &request, QUICK, &mut |event| seen.push(event["number"].clone()))
                .unwrap();
        assert_eq!((answer, seen), (3.into(), vec![0.into(), 1.into(), 2.into()]));
        assert_eq!(ask(dir.path(), &request, QUICK).unwrap(), 3, "a caller that ignores events");
        assert!(!ended.recv().unwrap() && !ended.recv().unwrap());
        // An asker that goes away: the socket's buffers fill up, then the next event fails.
        let stream = UnixStream::connect(dir.path().join(SOCKET_NAME)).unwrap();
        writeln!(&stream, "{}", serde_json::json!({ "events": u64::MAX })).unwrap();
        drop(stream);
        assert!(ended.recv().unwrap());
        drop(socket);
    }
}
