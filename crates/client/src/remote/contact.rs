//! How long the first contact to a server is waited for: a wrong address or a server that is not
//! there is told at once, unless this process was told to wait. Once a volume is in use, calls wait
//! for as long as [`super::Introduction::deadline`] says.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kestrel_rpc::client::Remote;

/// How long nobody may be at any address of a server, unless another time is given: that all is
/// over within two seconds.
pub const CONTACT_DEFAULT: Duration = Duration::from_millis(1500);

/// From when on a person is told what is waited for.
const TOLD_AFTER: Duration = Duration::from_millis(900);

static WAIT: OnceLock<Duration> = OnceLock::new();
static TELL: OnceLock<fn(&str)> = OnceLock::new();

/// Has servers waited for so long that nobody reaches yet. Once, before the first connection.
pub fn wait_for_contact(wait: Duration) {
    let _ = WAIT.set(wait);
}

/// Tells a person, and the log, what this process goes on without.
pub(super) fn tell_absence(what: &str) {
    log::warn!("{what}");
    if let Some(tell) = TELL.get() {
        tell(what);
    }
}

/// Has `tell` say what is waited for, and what is not any longer. Once, before the first
/// connection.
pub fn tell_waiting(tell: fn(&str)) {
    let _ = TELL.set(tell);
}

/// How long nobody may be there.
pub(super) fn contact() -> Duration {
    WAIT.get().copied().unwrap_or(CONTACT_DEFAULT)
}

/// Tells once what is waited for.
pub(super) struct Waiting {
    begun: Instant,
    longest: Duration,
    told: bool,
}

impl Waiting {
    /// Begins to wait for as long as this at most.
    pub fn begin(longest: Duration) -> Self {
        Self { begun: Instant::now(), longest, told: false }
    }

    /// Called again and again while `server` is waited for.
    pub fn goes_on(&mut self, server: &str, remote: &Remote) {
        let Some(tell) = TELL.get().filter(|_| !self.told && self.begun.elapsed() >= TOLD_AFTER)
        else {
            return;
        };
        self.told = true;
        let why = remote.in_vain().unwrap_or_else(|| "no answer yet".into());
        let longest = self.longest.as_secs_f64();
        tell(&format!("waiting up to {longest:.0} s for {server}: {why}"));
    }
}
