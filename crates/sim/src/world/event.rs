//! What happens, and when.

use kestrel_types::clock::Nanos;

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    /// A client's connection reaches the node.
    Accept(u64),
    /// Bytes arrive at the node.
    ToHost(u64, Vec<u8>),
    /// The node hears that a connection is gone.
    HostLoses(u64),
    /// Bytes arrive at a client.
    ToClient(u64, Vec<u8>),
    /// A client hears that a connection is gone.
    ClientLoses(u64),
    /// A client tries to connect.
    Connect(usize),
    /// A client's timer.
    ClientTick(usize),
    /// A client may ask something.
    Think(usize),
    /// The node's timer.
    HostTick(u64),
    /// The disk has synced.
    Synced(u64),
    /// The node starts again.
    Start,
    /// Something goes wrong.
    Fault,
    /// Objects are deleted.
    Reap,
    /// The faults are over.
    Mend,
}

/// An event and its time; ordered by time, then by number.
pub(super) struct Planned {
    pub at: Nanos,
    pub number: u64,
    pub event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
