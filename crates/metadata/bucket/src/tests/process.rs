//! A store as one process sees it: its calls fail, hang while the process is stopped, and have no
//! effect once it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kestrel_blockstore::error::{Error, Result};
use kestrel_blockstore::named::{ETag, MemoryNamed, NamedObject, NamedStore};
use kestrel_testkit::rng::Rng;
use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    /// Every so many percent of calls that change something fail, before or after their effect.
    failing: Option<(Rng, u64)>,
    slow: Duration,
    /// Calls hang: before their effect, or after it.
    stopped: Option<bool>,
    hanging: bool,
    dead: bool,
    full: bool,
}

pub struct Process {
    store: Arc<MemoryNamed>,
    state: Mutex<State>,
    changed: Condvar,
    /// Calls until it ends.
    calls_left: AtomicU64,
}

fn lost() -> Error {
    Error::Remote { during: "a call", object: None, why: "a fault of a test".into() }
}

impl Process {
    pub fn new(store: Arc<MemoryNamed>) -> Arc<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Self { store, state, changed, calls_left: AtomicU64::new(u64::MAX) })
    }

    pub fn slow(&self, by: Duration) {
        self.state.lock().slow = by;
    }

    pub fn fail(&self, seed: u64, percent: u64) {
        self.state.lock().failing = Some((Rng::new(seed), percent));
    }

    /// Calls that change something hang from now on.
    pub fn stop(&self, before_their_effect: bool) {
        self.state.lock().stopped = Some(before_their_effect);
    }

    pub fn is_stopped(&self) -> bool {
        self.state.lock().hanging
    }

    pub fn go_on(&self) {
        self.state.lock().stopped = None;
        self.changed.notify_all();
    }

    /// It takes no new objects.
    pub fn fill(&self, full: bool) {
        self.state.lock().full = full;
    }

    pub fn kill(&self) {
        self.state.lock().dead = true;
    }

    pub fn kill_after(&self, calls: u64) {
        self.calls_left.store(calls, Ordering::Relaxed);
    }

    fn hang(&self, before: bool) {
        let mut state = self.state.lock();
        while state.stopped == Some(before) {
            state.hanging = true;
            self.changed.wait(&mut state);
        }
    }

    fn change<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.kill();
        }
        self.hang(true);
        let (slow, fails) = {
            let mut state = self.state.lock();
            if state.dead {
                return Err(lost());
            }
            let fails = state
                .failing
                .as_mut()
                .map(|(rng, percent)| (rng.percent(*percent), rng.percent(50)));
            (state.slow, fails)
        };
        std::thread::sleep(slow);
        if fails == Some((true, true)) {
            return Err(lost());
        }
        let done = call();
        self.hang(false);
        if fails == Some((true, false)) { Err(lost()) } else { done }
    }

    fn look<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.state.lock().dead { Err(lost()) } else { call() }
    }
}

impl NamedStore for Process {
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        if self.state.lock().full {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull).into();
            return Err(Error::NoSpace { during: "making an object", source });
        }
        self.change(|| self.store.create(name, bytes))
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>> {
        self.change(|| self.store.replace(name, bytes, tag))
    }

    fn read(&self, name: &str) -> Result<Option<NamedObject>> {
        self.look(|| self.store.read(name))
    }

    fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.look(|| self.store.read_range(name, offset, len))
    }

    fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
        self.look(|| self.store.list(below))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.change(|| self.store.remove(name))
    }

    fn shown(&self) -> &str {
        self.store.shown()
    }
}
