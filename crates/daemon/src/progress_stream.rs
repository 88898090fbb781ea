//! What a job that takes long tells while it works: events, as the control socket carries them
//! (`{"finding": …}`, `{"progress": {"what": …, "count": …}}`), to the asker, in this process or
//! another.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kestrel_engine::EngineError;
use serde_json::{Value, json};

/// Time between two tellings of progress.
const STEP: Duration = Duration::from_millis(200);

/// The way to the asker. Knows when the asker does not listen any more: then the job ends.
pub struct ProgressStream<'a> {
    tell: RefCell<StreamState<'a>>,
    gone: AtomicBool,
}

struct StreamState<'a> {
    tell: &'a mut dyn FnMut(&Value) -> bool,
    last: Instant,
}

/// What stops a job without touching its feed, from any thread.
pub struct StopHandle<'a>(&'a AtomicBool);

impl<'a> ProgressStream<'a> {
    /// `tell` says whether somebody still listens.
    pub fn new(tell: &'a mut dyn FnMut(&Value) -> bool) -> Self {
        Self {
            tell: RefCell::new(StreamState { tell, last: Instant::now() }),
            gone: AtomicBool::new(false),
        }
    }

    /// Tells of something found.
    pub fn event(&self, event: &Value) {
        if !(self.tell.borrow_mut().tell)(event) {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// Tells how far the job is, now and then.
    pub fn progress(&self, what: &str, count: u64) {
        let due = self.tell.borrow().last.elapsed() >= STEP;
        if due {
            self.tell.borrow_mut().last = Instant::now();
            self.event(&json!({ "progress": { "what": what, "count": count } }));
        }
    }

    /// What the job asks whether to go on.
    pub fn listening(&self) -> StopHandle<'_> {
        StopHandle(&self.gone)
    }
}

impl StopHandle<'_> {
    /// Whether anybody wants to know.
    pub fn is_on(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }

    /// The same, after a rest as long as these bytes take at a rate; 0: no limit.
    pub fn is_on_after(&self, bytes: u64, bytes_per_second: u64) -> bool {
        if let Some(pause) = (bytes * 1000).checked_div(bytes_per_second) {
            std::thread::sleep(Duration::from_millis(pause));
        }
        self.is_on()
    }

    /// The same, as walks over the metadata ask it.
    ///
    /// # Errors
    /// If nobody does.
    pub fn go_on(&self) -> Result<(), EngineError> {
        if self.is_on() {
            Ok(())
        } else {
            Err(EngineError::Refused("nobody waits for the result any more".into()))
        }
    }
}
