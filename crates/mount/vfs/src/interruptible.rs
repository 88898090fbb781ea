//! Callers that are killed while they wait for the block store are let go.
//!
//! The kernel waits for the answer to a request that a daemon has taken, whatever happens to the
//! caller: a process that is killed while a read or a close waits for a store that does not answer
//! would stay until the store's deadline. FUSE tells that a signal came (INTERRUPT), once, for any
//! signal, and not at all for the close of a dying process. So requests that take long are looked
//! at here: if their caller is dying, they are answered with `EINTR`, which nobody sees any more.
//! What was written goes on to be stored. Callers that merely got a signal wait on: programs do not
//! expect `EINTR` of files.

use std::fs;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kestrel_fuse::Reply;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;

/// A request that takes longer is looked at.
const LONG: Duration = Duration::from_millis(500);

/// How often.
const TICK: Duration = Duration::from_millis(250);

/// After so many looks at nothing the looking rests until a request comes. Not at once: waking a
/// thread for every request costs more than the request.
const VAIN_TICKS_MAX: u32 = 8;

/// `PF_EXITING` of the kernel's `sched.h`: the thread is on its way out.
const PF_EXITING: u64 = 0x4;

/// A reply that the first of several threads sends.
type Shared = Arc<Mutex<Option<Reply>>>;

struct Waiting {
    /// Thread of the caller.
    pid: u32,
    since: Instant,
    reply: Shared,
}

#[derive(Default)]
struct State {
    waiting: FxHashMap<u64, Waiting>,
    next: u64,
    closed: bool,
    /// Nobody looks until told that a request has come.
    rests: bool,
}

/// The requests that wait.
#[derive(Default)]
pub struct InterruptibleWaits {
    state: Mutex<State>,
    changed: Condvar,
}

/// The right to answer a request, unless its caller died before.
pub struct WaitTicket {
    waits: Weak<InterruptibleWaits>,
    number: u64,
    reply: Shared,
}

impl InterruptibleWaits {
    /// Starts to look.
    pub fn start() -> Arc<Self> {
        let waits = Arc::new(Self::default());
        let watch = waits.clone();
        let started =
            std::thread::Builder::new().name("kestrel-waits".into()).spawn(move || watch.run());
        if let Err(error) = started {
            // Killed callers then wait for the store's deadline.
            log::warn!("cannot start the thread that looks after killed callers: {error}");
        }
        waits
    }

    /// Ends the looking.
    pub fn stop(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Notes that a caller waits.
    pub fn watch(self: &Arc<Self>, pid: u32, reply: Reply) -> WaitTicket {
        let reply = Arc::new(Mutex::new(Some(reply)));
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let waiting = Waiting { pid, since: Instant::now(), reply: reply.clone() };
        state.waiting.insert(number, waiting);
        let rested = std::mem::take(&mut state.rests);
        drop(state);
        if rested {
            self.changed.notify_one();
        }
        WaitTicket { waits: Arc::downgrade(self), number, reply }
    }

    fn run(&self) {
        let mut vain = 0;
        let mut state = self.state.lock();
        while !state.closed {
            if state.waiting.is_empty() && vain >= VAIN_TICKS_MAX {
                state.rests = true;
                self.changed.wait(&mut state);
                vain = 0;
                continue;
            }
            self.changed.wait_for(&mut state, TICK);
            vain = if state.waiting.is_empty() { vain + 1 } else { 0 };
            let now = Instant::now();
            let long: Vec<(u32, Shared)> = state
                .waiting
                .values()
                .filter(|waiting| now.duration_since(waiting.since) >= LONG)
                .map(|waiting| (waiting.pid, waiting.reply.clone()))
                .collect();
            drop(state);
            for (pid, reply) in long {
                if is_dying(pid)
                    && let Some(reply) = reply.lock().take()
                {
                    reply.error(libc::EINTR);
                }
            }
            state = self.state.lock();
        }
    }
}

impl WaitTicket {
    /// The reply; none if the caller was let go.
    pub fn take(self) -> Option<Reply> {
        self.reply.lock().take()
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        if let Some(waits) = self.waits.upgrade() {
            waits.state.lock().waiting.remove(&self.number);
        }
    }
}

/// Whether a thread has been killed or is on its way out. False if that cannot be told.
pub fn is_dying(pid: u32) -> bool {
    // 0: the kernel asks for itself, or the caller is in another PID namespace.
    pid != 0 && fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| says_dying(&stat))
}

/// Reads `/proc/PID/stat` (proc_pid_stat(5)): field 9 has the flags, field 31 the pending signals.
fn says_dying(stat: &str) -> bool {
    // Field 2 is the name in parentheses; it may hold anything, so everything is counted from its
    // end.
    let Some((_, after)) = stat.rsplit_once(')') else { return false };
    let mut fields = after.split_ascii_whitespace().map(|field| field.parse::<u64>().unwrap_or(0));
    let flags = fields.nth(6).unwrap_or(0);
    let pending = fields.nth(21).unwrap_or(0);
    flags & PF_EXITING != 0 || pending & 1 << (libc::SIGKILL - 1) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(flags: u64, pending: u64) -> String {
        let mut fields = vec!["0".to_string(); 49];
        (fields[6], fields[28]) = (flags.to_string(), pending.to_string());
        format!("77 (a ) name) S {}", fields[1..].join(" "))
    }

    /// Killed and exiting threads are dying, and others are not.
    #[test]
    fn dying_threads() {
        assert!(!says_dying(&stat(0x400000, 0)));
        assert!(
            !says_dying(&stat(0x400000, 1 << (libc::SIGALRM - 1))),
            "an alarm kills no process that handles it"
        );
        assert!(says_dying(&stat(0x400000, 1 << (libc::SIGKILL - 1))));
        assert!(says_dying(&stat(0x400004, 0)));
        assert!(!says_dying("") && !says_dying("1 (x"));
        assert!(!is_dying(std::process::id()) && !is_dying(0));
    }

    #[test]
    fn the_kernel_shows_a_pending_kill() {
        // A stopped child with SIGKILL blocked cannot be made: SIGKILL acts at once. A zombie has
        // the flag of the exiting.
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let until = Instant::now() + Duration::from_secs(10);
        while !is_dying(child.id()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(is_dying(child.id()));
        child.wait().expect("it ended");
    }
}
