//! What was asked of a node that does not lead it: the placement map has changed, or is about to.
//!
//! A node that says so has done nothing, and its answer is the last one to that call: it is asked
//! anew, with a new number, of the node that leads it by a newer table. One thread per volume, the
//! [`MapRefresher`], fetches that table once a node has mentioned it, by Misdirected or with any
//! answer; what was redirected waits meanwhile. If no node has a newer one (the nodes are about to
//! change theirs, or one has it before the others), the same is asked again after a pause. All that
//! counts against the time that a call may take. The same thread moves out of nodes that leave
//! ([`super::leaving`]).
//!
//! A lock is not moved while a process holds it or waits for it; a client that asks its home while
//! it goes elsewhere, or after that, is told so in the same way. Which answers lead to another
//! attempt at all, for requests and for locks, is decided in one place: [`super::pending`].

use std::cmp;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kestrel_rpc::client::{Remote, ask_for_others};
use kestrel_types::error::FsError;
use kestrel_types::placement::{NodeId, PlacementMap};
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use super::metadata::RemoteShared;
use super::pending::RedirectedCall;
use crate::error::VolumeError;
use crate::hex::from_hex;

/// Pause before the same node is asked the same again: the first, which doubles, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Pause after no node had the table that one of them mentioned.
const PAUSE_FETCH: Duration = Duration::from_millis(250);

/// How long a node has to tell its table.
const TELL_TIME: Duration = Duration::from_secs(5);

/// Most parts that a table is fetched in.
const PARTS_MAX: usize = 64;

const TOO_LATE: FsError = FsError::new(
    libc::EIO,
    "the metadata nodes could not agree on which of them keeps this in the time that a call may take; see `kestrel cluster status`",
);

pub(super) const CLOSED: FsError = FsError::new(libc::ESHUTDOWN, "the volume is being closed");

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

struct ParkedCall {
    redirected_call: RedirectedCall,
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
}

fn pause(redirected: u32) -> Duration {
    PAUSE.0.saturating_mul(1 << redirected.saturating_sub(1).min(8)).min(PAUSE.1)
}

/// The thread that fetches tables, asks again, and moves out.
pub(super) struct MapRefresher(Mutex<Option<JoinHandle<()>>>);

impl MapRefresher {
    /// Starts it, unless there is only one node.
    pub fn start(shared: &Arc<RemoteShared>) -> Result<Self, VolumeError> {
        if shared.nodes.known().placement.is_none() {
            return Ok(Self(Mutex::default()));
        }
        let weak = Arc::downgrade(shared);
        let thread = std::thread::Builder::new()
            .name("kestrel-map".into())
            .spawn(move || run(&weak))
            .map_err(|why| {
                VolumeError::Io(format!("cannot start the thread kestrel-map: {why}"))
            })?;
        Ok(Self(Mutex::new(Some(thread))))
    }

    /// Ends it; what waits fails.
    pub fn end(&self, shared: &RemoteShared) {
        shared.redirects.state.lock().closed = true;
        shared.redirects.changed.notify_all();
        let thread = self.0.lock().take();
        if let Some(thread) =
            thread.filter(|thread| thread.thread().id() != std::thread::current().id())
        {
            // If it panicked, that has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

/// What to do next.
enum Step {
    Fetch(NodeId, u64),
    Ask(Vec<ParkedCall>),
    MoveOut,
    End(Vec<ParkedCall>),
}

fn run(weak: &Weak<RemoteShared>) {
    ask_for_others();
    let (mut fetched, mut move_out) = (None, Some(Instant::now()));
    while let Some(shared) = weak.upgrade() {
        match shared.next_step(fetched, move_out) {
            None => {}
            Some(Step::Fetch(node, version)) => {
                let got = shared.fetch(node, version);
                fetched = (!got).then(Instant::now);
                move_out = if got { Some(Instant::now()) } else { move_out };
            }
            Some(Step::MoveOut) => move_out = shared.move_out().map(|pause| Instant::now() + pause),
            Some(Step::Ask(waiting)) => {
                for ParkedCall { redirected_call, .. } in waiting {
                    match shared.time_left(redirected_call.since()).is_zero() {
                        true => redirected_call.end(&shared, TOO_LATE),
                        false => redirected_call.go_on(&shared),
                    }
                }
            }
            Some(Step::End(waiting)) => {
                return waiting
                    .into_iter()
                    .for_each(|waiting| waiting.redirected_call.end(&shared, CLOSED));
            }
        }
    }
}

/// How long the thread sleeps at a time: it looks then whether the volume is still open.
const LOOK: Duration = Duration::from_secs(1);

impl RemoteShared {
    /// Waits for something to do, not for ever. `failed`: when the newest table was last looked for
    /// in vain; `move_out`: when to look at nodes that leave.
    fn next_step(&self, failed: Option<Instant>, move_out: Option<Instant>) -> Option<Step> {
        let mut state = self.redirects.state.lock();
        let version = self.nodes.known().version();
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
        self.redirects.changed.wait_until(&mut state, until);
        None
    }

    /// Gets a table of this version or a newer one, from the node that mentioned it or any other.
    /// Whether there is a newer one now.
    fn fetch(&self, from: NodeId, version: u64) -> bool {
        let known = self.nodes.known();
        let mut links: Vec<_> = known.links.iter().filter(|link| link.remote.is_up()).collect();
        links.sort_by_key(|link| link.node != from);
        let mut best: Option<PlacementMap> = None;
        for link in links {
            match table_of(&link.remote) {
                Ok(table) if best.as_ref().is_none_or(|best| best.version < table.version) => {
                    best = Some(table);
                }
                Ok(_) => {}
                Err(why) => {
                    log::debug!("node {} at {}: its table: {why}", link.node, link.address());
                }
            }
            if best.as_ref().is_some_and(|best| best.version >= version) {
                break;
            }
        }
        let Some(table) = best.filter(|table| table.version > known.version()) else {
            return false;
        };
        match self.nodes.adopt(table) {
            Ok(gone) => {
                gone.iter().for_each(|link| self.let_go(link));
                true
            }
            Err(why) => {
                log::error!("a newer table of the metadata nodes cannot be used: {why}");
                false
            }
        }
    }
}

/// The table of a node: in parts, since an answer has a bound.
pub(super) fn table_of(remote: &Remote) -> Result<PlacementMap, String> {
    table_in_parts(|question| {
        remote.admin(question, Some(TELL_TIME), &mut |_| ()).map_err(|why| why.to_string())
    })
}

/// Asks for a table part by part.
///
/// # Errors
/// What the node said, or that the table was another one, or its nodes elsewhere, before all of it
/// was there.
pub fn table_in_parts(
    mut ask: impl FnMut(&Value) -> Result<Value, String>,
) -> Result<PlacementMap, String> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut first = None;
    for _ in 0..PARTS_MAX {
        let answer = ask(&json!({ "verb": "table", "from": bytes.len() }))?;
        let part = answer["part"].as_str().and_then(from_hex).ok_or("an answer without a table")?;
        let of = ["version", "moves"].map(|name| answer[name].clone());
        if *first.get_or_insert_with(|| of.clone()) != of || part.is_empty() {
            return Err("it has changed meanwhile".into());
        }
        bytes.extend_from_slice(&part);
        if answer["bytes"].as_u64() == Some(bytes.len() as u64) {
            return PlacementMap::decode(&bytes).map_err(|why| why.to_string());
        }
    }
    Err("it is too long".into())
}

#[cfg(test)]
mod tests {
    use kestrel_types::placement::{Exceptions, Member, SlotMap};

    use super::*;
    use crate::hex::to_hex;

    #[test]
    fn parts_of_a_table_are_of_one_moment() {
        let members =
            (1..=3).map(|id| Member { id, address: format!("127.0.0.1:{}", 9440 + id) }).collect();
        let table = PlacementMap::new(SlotMap::even(members).unwrap(), Exceptions::default());
        let bytes = table.encode();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let fetch = |of: [Value; 2], then: [Value; 2]| {
            table_in_parts(|question| {
                let (part, [version, moves]) = if question["from"] == 0 {
                    (first, of.clone())
                } else {
                    (second, then.clone())
                };
                Ok(
                    json!({ "version": version, "moves": moves, "bytes": bytes.len(), "part": to_hex(part) }),
                )
            })
        };
        let at = |version: u64, moves: u64| [json!(version), json!(moves)];
        assert_eq!(fetch(at(1, 4), at(1, 4)), Ok(table));
        for then in [at(2, 4), at(1, 5)] {
            assert!(fetch(at(1, 4), then).unwrap_err().contains("meanwhile"));
        }
    }
}
