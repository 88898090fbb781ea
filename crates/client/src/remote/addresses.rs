//! Nodes that are not where they were: a node's rows may be served from another machine, under
//! another address.
//!
//! To a client that is an outage of the node and a restart. It knows the node by its number and
//! goes on with the same session, so all that is to be found out is the address, and the other
//! nodes know that: a node that starts tells them. One thread per volume, the [`AddressResolver`],
//! asks one of them, at once when a connection is lost and every [`ASK`] until all nodes are well,
//! about all that are not; each time another one. A thousand clients that lose a node at one moment
//! do not ask at one moment: pauses are drawn. The newest start counts, whichever node told of it:
//! an answer of a node that has not heard of it changes nothing.
//!
//! A node may also be gone without a word. What it was asked stays without an answer then, which is
//! noticed within two seconds ([`Remote::missing`]); the connection is given up when somebody says
//! that the node is elsewhere, or in the end because it is silent.
//!
//! [`Remote::missing`]: kestrel_rpc::client::Remote::missing

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kestrel_rpc::client::{ASK, ask_for_others};
use kestrel_types::placement::NodeId;
use parking_lot::{Condvar, Mutex};

use super::node_query::{NodeAddress, ask_addresses};
use super::nodes::{NodeConnections, NodeLink, NodeSet};
use crate::error::VolumeError;

/// Most nodes that are asked about at a time.
const ASKED_MAX: usize = 64;

/// Time between two looks at connections while nothing is known to be wrong.
const LOOK: Duration = Duration::from_secs(1);

/// Longest time from the loss of a connection to the first question.
const FIRST_MAX: Duration = Duration::from_millis(50);

/// Wakes the seeker.
#[derive(Default)]
pub(super) struct LostNodes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lost: bool,
    closed: bool,
}

impl LostNodes {
    /// A connection is lost. Does not wait.
    pub fn noticed(&self) {
        self.state.lock().lost = true;
        self.changed.notify_all();
    }

    /// Waits until something is lost, not for long. False when there is nothing to wait for any
    /// more.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.lost && !state.closed {
            self.changed.wait_for(&mut state, LOOK);
        }
        state.lost = false;
        !state.closed
    }

    /// Waits for so long, or until the volume is closed.
    fn pause(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.closed {
            self.changed.wait_for(&mut state, pause);
        }
        !state.closed
    }
}

/// See the module's header.
pub(super) struct AddressResolver {
    losses: Arc<LostNodes>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AddressResolver {
    /// Starts it, unless there is only one node: nobody else could be asked.
    pub fn start(nodes: &Arc<NodeConnections>) -> Result<Self, VolumeError> {
        let losses = Arc::<LostNodes>::default();
        if nodes.known().placement.is_none() {
            return Ok(Self { losses, thread: Mutex::default() });
        }
        let (weak, noticed) = (Arc::downgrade(nodes), losses.clone());
        let thread = std::thread::Builder::new()
            .name("kestrel-where".into())
            .spawn(move || run(&weak, &noticed))
            .map_err(|why| {
                VolumeError::Io(format!("cannot start the thread kestrel-where: {why}"))
            })?;
        Ok(Self { losses, thread: Mutex::new(Some(thread)) })
    }

    /// What wakes it.
    pub fn losses(&self) -> Arc<LostNodes> {
        self.losses.clone()
    }

    /// Ends it.
    pub fn end(&self) {
        self.losses.state.lock().closed = true;
        self.losses.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) =
            thread.filter(|thread| thread.thread().id() != std::thread::current().id())
        {
            // If it panicked, that has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

fn run(weak: &Weak<NodeConnections>, losses: &LostNodes) {
    ask_for_others();
    let mut turn = RetryJitter::begin();
    while losses.wait() {
        let mut pause = turn.draw(Duration::ZERO, FIRST_MAX);
        loop {
            let Some(nodes) = weak.upgrade() else { return };
            if lost(&nodes.known()).is_empty() {
                break;
            }
            drop(nodes);
            if !losses.pause(pause) {
                return;
            }
            let Some(nodes) = weak.upgrade() else { return };
            seek(&nodes.known(), &mut turn);
            pause = turn.draw(ASK * 4 / 5, ASK * 6 / 5);
        }
    }
}

/// Draws pauses and the node to ask.
struct RetryJitter(u64);

impl RetryJitter {
    fn begin() -> Self {
        Self(crate::descriptor::random().map_or(1, u64::from_be_bytes) | 1)
    }

    /// Marsaglia's xorshift, 64 bits.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn draw(&mut self, least: Duration, most: Duration) -> Duration {
        let range = u64::try_from((most - least).as_nanos()).unwrap_or(u64::MAX).max(1);
        least + Duration::from_nanos(self.next() % range)
    }
}

/// Nodes that do not seem well.
fn lost(nodes: &NodeSet) -> Vec<NodeId> {
    let lost =
        nodes.links.iter().filter(|link| !link.has_left() && link.remote.missing().is_some());
    lost.map(|link| link.node).take(ASKED_MAX).collect()
}

/// Asks one node that is well where those are that are not, and goes there.
fn seek(nodes: &NodeSet, turn: &mut RetryJitter) {
    let well = |link: &&Arc<NodeLink>| !link.has_left() && link.remote.missing().is_none();
    let well: Vec<_> = nodes.links.iter().filter(well).collect();
    let lost = lost(nodes);
    let (Some(at), false) = ((turn.next() as usize).checked_rem(well.len()), lost.is_empty())
    else {
        return;
    };
    match ask_addresses(&well[at].remote, &lost) {
        Ok(told) => {
            for NodeAddress { node, epoch, address } in told {
                if let Some(link) =
                    nodes.links.iter().find(|link| link.node == node && lost.contains(&node))
                {
                    link.is_at(epoch, &address);
                }
            }
        }
        Err(why) => {
            log::debug!(
                "node {} at {}: where other nodes are: {why}",
                well[at].node,
                well[at].address()
            );
        }
    }
}
