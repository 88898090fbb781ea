//! Whether the store answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_blockstore::error::{Error, ErrorKind};
use kestrel_blockstore::named::{NamedObject, NamedStore};
use kestrel_engine::EngineError;

/// Since when the store owes an answer.
pub struct Health {
    opened: Instant,
    /// Milliseconds since `opened`, plus one; 0: it owes none.
    since: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self { opened: Instant::now(), since: AtomicU64::new(0) }
    }
}

impl Health {
    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Makes a call to the store.
    pub fn watch<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let _ = self.since.compare_exchange(0, self.now(), Ordering::Relaxed, Ordering::Relaxed);
        let done = call();
        if done.is_ok() {
            self.since.store(0, Ordering::Relaxed);
        }
        done
    }

    /// Makes a call that something else may answer in place of the store: it tells nothing of calls
    /// that wait.
    pub fn watch_cached<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let now = self.now();
        let begun = self.since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let done = call();
        if done.is_ok() && begun.is_ok() {
            let _ = self.since.compare_exchange(now, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        done
    }

    /// How long the store has not answered.
    pub fn silence(&self) -> Duration {
        match self.since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.now().saturating_sub(since)),
        }
    }
}

/// How often an object is read that is damaged: it may have been damaged on its way.
const READS_MAX: u32 = 3;

/// Reads an object, if it is there.
///
/// # Errors
/// The store's, and those of `decode`.
pub fn read_checked<T>(
    store: &dyn NamedStore,
    name: &str,
    decode: impl Fn(&NamedObject) -> Result<T, EngineError>,
) -> Result<Option<(T, NamedObject)>, EngineError> {
    read_by(&|| store.read(name).map_err(|why| failed(store, &why)), decode)
}

/// The same of an object that `read` reads.
///
/// # Errors
/// Those of `read` and `decode`.
pub fn read_by<T>(
    read: &dyn Fn() -> Result<Option<NamedObject>, EngineError>,
    decode: impl Fn(&NamedObject) -> Result<T, EngineError>,
) -> Result<Option<(T, NamedObject)>, EngineError> {
    let mut reads = 0;
    loop {
        let Some(found) = read()? else { return Ok(None) };
        reads += 1;
        match decode(&found) {
            Ok(decoded) => return Ok(Some((decoded, found))),
            Err(EngineError::Corrupt(_)) if reads < READS_MAX => {}
            Err(why) => return Err(why),
        }
    }
}

/// The error of a call.
pub fn failed(store: &dyn NamedStore, why: &Error) -> EngineError {
    let text = || format!("metadata in a bucket: {}: {why}", store.shown());
    match (why.kind(), why) {
        (ErrorKind::NoSpace, _) => EngineError::NoSpace,
        (ErrorKind::Corrupt, _) => EngineError::Corrupt(text()),
        (_, Error::CodingNamed { .. }) => EngineError::Refused(text()),
        _ => EngineError::Io(text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a cache answers does not tell that the store does.
    #[test]
    fn silence_behind_a_cache() {
        let health = Health::default();
        let fails = || Err::<(), _>(Error::Invalid { what: "a failure" });
        assert!(health.watch_cached(|| Ok(())).is_ok() && health.silence().is_zero());
        assert!(health.watch(fails).is_err());
        std::thread::sleep(Duration::from_millis(2));
        assert!(health.watch_cached(|| Ok(())).is_ok() && !health.silence().is_zero());
        assert!(health.watch(|| Ok(())).is_ok() && health.silence().is_zero());
        assert!(health.watch_cached(fails).is_err());
        std::thread::sleep(Duration::from_millis(2));
        assert!(!health.silence().is_zero());
    }
}
