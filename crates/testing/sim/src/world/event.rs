//! What happens.

/// What happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A client's connection reaches the node.
    Accept(u64),
    /// Bytes arrive at the node.
    ToHost(u64, Vec<u8>),
    /// The node learns that a connection is gone.
    HostLoses(u64),
    /// Bytes arrive at a client.
    ToClient(u64, Vec<u8>),
    /// A client learns that a connection is gone.
    ClientLoses(u64),
    /// A client tries to connect.
    Connect(usize),
    /// A client's timer.
    ClientTick(usize),
    /// A client may begin an action.
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
