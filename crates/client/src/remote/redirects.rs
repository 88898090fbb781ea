//! What was asked of a node that does not lead it, while it waits: the placement map has changed,
//! or is about to.
//!
//! A node that says so has done nothing, and its answer is the last one to that call: it is asked
//! anew, with a new number, of the node that leads it by a newer table. [`super::map_refresher`]
//! fetches that table once a node has mentioned it, by Misdirected or with any answer; what was
//! redirected waits meanwhile. If no node has a newer one (the nodes are about to change theirs, or
//! one has it before the others), the same is asked again after a pause. All that counts against
//! the time that a call may take.
//!
//! A lock is not moved while a process holds it or waits for it; a client that asks its home while
//! it goes elsewhere, or after that, is told so in the same way. Which answers lead to another
//! attempt at all, for requests and for locks, is decided in one place: [`super::pending`].

use std::cmp;
use std::time::{Duration, Instant};

use kestrel_types::error::FsError;
use kestrel_types::placement::NodeId;
use parking_lot::{Condvar, Mutex};

use super::nodes::NodeConnections;
use super::pending::RedirectedCall;

/// Pause before the same node is asked the same again: the first, which doubles, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Pause after no node had the table that one of them mentioned.
const PAUSE_FETCH: Duration = Duration::from_millis(250);

pub(super) const CLOSED: FsError = FsError::new(libc::ESHUTDOWN, "the volume is being closed");

/// How long the thread sleeps at a time: it looks then whether the volume is still open.
const LOOK: Duration = Duration::from_secs(1);

/// What waits, and what is known of newer tables.
#[derive(Default)]
pub(super) struct Redirects {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest version mentioned, and by which node.
    newest: u64,
    from: NodeId,
    waiting: Vec<ParkedCall>,
    closed: bool,
}

/// A call that waits.
pub(super) struct ParkedCall {
    pub redirected_call: RedirectedCall,
    /// Version of the table it was asked by.
    version: u64,
    /// When to ask again by the same table.
    again: Instant,
}

impl Redirects {
    /// A node has a table of this version. Does not wait.
    pub fn heard_of(&self, node: NodeId, version: u64) {
        let mut state = self.state.lock();
        if version > state.newest {
            (state.newest, state.from) = (version, node);
            self.changed.notify_all();
        }
    }

    /// Keeps what was asked by a table of this version until it can be asked again. Does not wait.
    /// Gives it back if the volume is being closed: the thread that would ask again has ended then.
    pub fn park(&self, redirected_call: RedirectedCall, version: u64) -> Option<RedirectedCall> {
        let again = Instant::now() + pause(redirected_call.redirected());
        let mut state = self.state.lock();
        if state.closed {
            return Some(redirected_call);
        }
        state.waiting.push(ParkedCall { redirected_call, version, again });
        drop(state);
        self.changed.notify_all();
        None
    }

    /// From now on nothing is kept, and what waits is to fail.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for something to do, not for ever. `failed`: when the newest table was last looked for
    /// in vain; `move_out`: when to look at nodes that leave.
    pub fn next_step(
        &self,
        nodes: &NodeConnections,
        failed: Option<Instant>,
        move_out: Option<Instant>,
    ) -> Option<Step> {
        let mut state = self.state.lock();
        let version = nodes.known().version();
        if state.closed {
            return Some(Step::End(std::mem::take(&mut state.waiting)));
        }
        let now = Instant::now();
        let fetch_at = failed.map_or(now, |failed| failed + PAUSE_FETCH);
        let wants_table = state.newest > version;
        if wants_table && fetch_at <= now {
            return Some(Step::Fetch(state.from, state.newest));
        }
        // Later ones by the newer table, when it is there.
        let due = |waiting: &mut ParkedCall| waiting.version < version || waiting.again <= now;
        let ready: Vec<ParkedCall> = state.waiting.extract_if(.., due).collect();
        if !ready.is_empty() {
            return Some(Step::Ask(ready));
        }
        if move_out.is_some_and(|at| at <= now) {
            return Some(Step::MoveOut);
        }
        let agains = state.waiting.iter().map(|waiting| waiting.again).chain(move_out);
        let until = agains.chain(wants_table.then_some(fetch_at)).fold(now + LOOK, cmp::min);
        self.changed.wait_until(&mut state, until);
        None
    }
}

/// What to do next.
pub(super) enum Step {
    /// Fetch a table of this version from this node.
    Fetch(NodeId, u64),
    /// Ask these again.
    Ask(Vec<ParkedCall>),
    /// Look at nodes that leave.
    MoveOut,
    /// Fail these, and end.
    End(Vec<ParkedCall>),
}

fn pause(redirected: u32) -> Duration {
    PAUSE.0.saturating_mul(1 << redirected.saturating_sub(1).min(8)).min(PAUSE.1)
}
