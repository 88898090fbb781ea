//! Asking the process that serves a volume, over its control socket.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kestrel_client::descriptor::{directory_of, volume_dir};
use kestrel_client::error::VolumeError;
use kestrel_client::volume::{self, VolumeLock};
use serde_json::Value;

use crate::failure::Failure;

/// Directory of the volume that `url` names, absolute. Of a volume in a bucket that is the state
/// directory; what it lacks comes from the bucket, by the credentials in this file.
///
/// # Errors
/// If it is the URL of something else, and if the bucket has to be asked and has no volume.
pub fn locate(verb: &str, url: &str, credentials: Option<&Path>) -> Result<PathBuf, Failure> {
    find(verb, url, credentials, false)
}

/// The same for a volume that is going to be opened for long: what the bucket says of it now.
///
/// # Errors
/// As for [`locate`].
pub fn locate_anew(verb: &str, url: &str, credentials: Option<&Path>) -> Result<PathBuf, Failure> {
    find(verb, url, credentials, true)
}

/// The same for a directory that a bucket cannot stand for.
///
/// # Errors
/// If it is the URL of something else.
pub fn locate_directory(verb: &str, url: &str) -> Result<PathBuf, Failure> {
    directory_of(url).map(absolute).map_err(|why| Failure::usage(format!("{verb}: {why}")))
}

fn find(
    verb: &str,
    url: &str,
    credentials: Option<&Path>,
    is_fresh: bool,
) -> Result<PathBuf, Failure> {
    // A mistake in the URL is told as one.
    volume_dir(url).map_err(|why| Failure::usage(format!("{verb}: {why}")))?;
    let found = volume::find(url, credentials, is_fresh);
    found.map(absolute).map_err(|why| Failure::new(verb, why))
}

fn absolute(dir: PathBuf) -> PathBuf {
    std::fs::canonicalize(&dir).unwrap_or(dir)
}

/// How long a process that has a volume open may not answer: it begins, or ends.
const UNSETTLED: Duration = Duration::from_secs(10);

/// Asks the process that serves the volume at `dir`; `None` if nobody has it open, or not any more.
pub fn ask(
    verb: &str,
    dir: &Path,
    question: &Value,
    limit: Option<Duration>,
) -> Result<Option<Value>, Failure> {
    ask_with(verb, dir, question, limit, &mut |_| {})
}

/// The same for work that takes long: `on_event` gets what it tells meanwhile.
pub fn ask_with(
    verb: &str,
    dir: &Path,
    question: &Value,
    limit: Option<Duration>,
    on_event: &mut dyn FnMut(Value),
) -> Result<Option<Value>, Failure> {
    let begun = Instant::now();
    while VolumeLock::holder(dir).is_some() {
        match kestrel_client::control::ask_with(dir, question, limit, on_event) {
            Err(VolumeError::Unanswered(_)) if begun.elapsed() < UNSETTLED => {}
            answer => return answer.map(Some).map_err(|why| Failure::new(verb, why)),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(None)
}

/// A path as questions carry it: a string, or a list of bytes if it is not UTF-8.
pub fn path_value(path: &[u8]) -> Value {
    std::str::from_utf8(path).map_or_else(|_| path.into(), Value::from)
}

/// What [`path_value`] made.
pub fn path_bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Array(bytes) => bytes
            .iter()
            .map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()))
            .collect(),
        _ => None,
    }
}

/// The paths that a question names.
///
/// # Errors
/// If it names none.
pub fn paths(value: &Value) -> Result<Vec<Vec<u8>>, String> {
    let paths = value.as_array().and_then(|paths| paths.iter().map(path_bytes).collect());
    paths.ok_or("the question does not name paths".into())
}
