//! A line on standard error that tells how far something is: only on a terminal, and only once it
//! has taken two seconds.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing is shown before this.
const QUIET: Duration = Duration::from_secs(2);
/// Time between two updates.
const STEP: Duration = Duration::from_millis(200);

/// The line.
#[derive(Debug)]
pub struct Progress {
    begun: Instant,
    last: Instant,
    terminal: bool,
    shown: bool,
}

impl Progress {
    /// A line that is not yet shown.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { begun: now, last: now, terminal: std::io::stderr().is_terminal(), shown: false }
    }

    /// Whether a tick would be shown now.
    pub fn is_due(&self) -> bool {
        self.terminal && self.last.elapsed() >= STEP && self.begun.elapsed() >= QUIET
    }

    /// `count` of `what` are done.
    pub fn tick(&mut self, what: &str, count: u64) {
        if !self.is_due() {
            return;
        }
        self.last = Instant::now();
        self.shown = true;
        let seconds = self.begun.elapsed().as_secs();
        let _ = write!(
            std::io::stderr(),
            "\r\x1b[K{what}: {} ({seconds} s)",
            kestrel_daemon::units::count(count)
        );
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Shows events on a terminal: progress as a line that goes away, all else by `show`.
pub fn shown(progress: &mut Progress, event: &Value, show: &mut dyn FnMut(&Value)) {
    match event.get("progress") {
        Some(step) => {
            progress.tick(
                step["what"].as_str().unwrap_or("working"),
                step["count"].as_u64().unwrap_or(0),
            );
        }
        None => show(event),
    }
}
