//! Where the nodes of a cluster are: the address of the newest start of each that was heard of.
//!
//! The placement map says where a node was when it joined. A node that was started elsewhere since
//! tells its address when it connects; a member that hears that has it on record, durably
//! ([`super::peer_identity`]), and tells all others ([`Message::Addresses`]), as it does whenever
//! it connects to one. What was only heard by the way is kept in memory: by it the node is looked
//! for there, and the node that answers there says itself which one it is. So nodes that went
//! elsewhere at one moment find each other as long as each finds one that has heard of both.
//!
//! The newest start counts: starts are numbered, each has one address, and a process that answers
//! at that of an older one is that older start or another node. Of one start what it says itself
//! counts more than what others say. A node that is not in here is where the table says.
//!
//! [`Message::Addresses`]: super::Message::Addresses

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kestrel_engine::Engine;
use kestrel_types::error::FsResult;
use kestrel_types::placement::NodeId;
use parking_lot::Mutex;

use super::peer_identity::PeerIdentity;

/// Where a start of a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// The node.
    pub node: NodeId,
    /// Which of its starts, counted from 1.
    pub epoch: u64,
    /// Where others reach it, `host:port`; 1 to 255 bytes.
    pub address: String,
}

/// Hears where a node is, and whether that is new. Called with no lock of the addresses held; it
/// must not wait.
pub type Listener = dyn Fn(&NodeAddress, bool) + Send + Sync;

/// See the module's header.
#[derive(Default)]
pub struct AddressBook {
    state: Mutex<State>,
    listener: OnceLock<Box<Listener>>,
}

#[derive(Default)]
struct State {
    changes: u64,
    of: BTreeMap<NodeId, StartAddress>,
}

/// Where a start is.
struct StartAddress {
    epoch: u64,
    address: String,
    /// It has said so itself.
    proven: bool,
}

impl StartAddress {
    fn of(&self, node: NodeId) -> NodeAddress {
        NodeAddress { node, epoch: self.epoch, address: self.address.clone() }
    }
}

impl AddressBook {
    /// What is on record of these nodes.
    ///
    /// # Errors
    /// As [`PeerIdentity::read`].
    pub(super) fn read(engine: &dyn Engine, nodes: impl Iterator<Item = NodeId>) -> FsResult<Self> {
        let mut state = State::default();
        for node in nodes {
            if let Some(known) = PeerIdentity::read(engine, node)?
                && let Some(address) = known.address
            {
                state.of.insert(node, StartAddress { epoch: known.epoch, address, proven: true });
            }
        }
        Ok(Self { state: Mutex::new(state), listener: OnceLock::new() })
    }

    /// Has `listener` called whenever a node has said where it is, or others have. Once.
    pub fn listen(&self, listener: Box<Listener>) {
        let _ = self.listener.set(listener);
    }

    /// The node itself has said where it is.
    pub fn met(&self, at: &NodeAddress) {
        let is_new = self.take(at, true);
        self.tell(at, is_new);
    }

    /// Another node has said where these are. What is not newer than what is known says nothing.
    pub fn heard(&self, nodes: &[NodeAddress]) {
        for at in nodes {
            if self.take(at, false) {
                self.tell(at, true);
            }
        }
    }

    /// Lets go of nodes that have left.
    pub fn forget(&self, has_left: impl Fn(NodeId) -> bool) {
        let mut state = self.state.lock();
        let before = state.of.len();
        state.of.retain(|node, _| !has_left(*node));
        state.changes += u64::from(state.of.len() != before);
    }

    fn take(&self, at: &NodeAddress, proven: bool) -> bool {
        let mut state = self.state.lock();
        let known = |place: &StartAddress| (place.epoch, place.proven) >= (at.epoch, proven);
        if state.of.get(&at.node).is_some_and(known) {
            return false;
        }
        let place = StartAddress { epoch: at.epoch, address: at.address.clone(), proven };
        let before = state.of.insert(at.node, place);
        let moved = before.as_ref().is_none_or(|before| before.address != at.address);
        state.changes += u64::from(moved);
        moved || before.is_none_or(|before| before.epoch != at.epoch)
    }

    fn tell(&self, at: &NodeAddress, is_new: bool) {
        if let Some(listener) = self.listener.get() {
            listener(at, is_new);
        }
    }

    /// Where a node is, and by which of its starts, if it was heard of.
    pub fn of(&self, node: NodeId) -> Option<NodeAddress> {
        let state = self.state.lock();
        state.of.get(&node).map(|place| place.of(node))
    }

    /// All of them, ascending by node.
    pub fn all(&self) -> Vec<NodeAddress> {
        let state = self.state.lock();
        state.of.iter().map(|(node, place)| place.of(*node)).collect()
    }

    /// The addresses alone.
    pub fn addresses(&self) -> BTreeMap<NodeId, String> {
        let state = self.state.lock();
        state.of.iter().map(|(node, place)| (*node, place.address.clone())).collect()
    }

    /// Grows with each address that changes.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn at(node: NodeId, epoch: u64, address: &str) -> NodeAddress {
        NodeAddress { node, epoch, address: address.into() }
    }

    /// The address of the newest start counts, and listeners hear of each start that connects
    /// itself.
    #[test]
    fn addresses_of_the_newest_start() {
        let (address_book, told) = (AddressBook::default(), Arc::new(Mutex::new(Vec::new())));
        let notes = told.clone();
        address_book.listen(Box::new(move |at, is_new| notes.lock().push((at.epoch, is_new))));
        address_book.met(&at(2, 5, "b:1"));
        address_book.met(&at(2, 5, "b:1"));
        assert_eq!(address_book.changes(), 1);
        address_book.heard(&[at(2, 5, "x:1"), at(2, 4, "y:1")]);
        assert_eq!(address_book.of(2), Some(at(2, 5, "b:1")));
        address_book.heard(&[at(2, 6, "b:1"), at(3, 1, "c:1")]);
        assert_eq!(*told.lock(), [(5, true), (5, false), (6, true), (1, true)]);
        // An older start that is still there.
        address_book.met(&at(2, 5, "b:1"));
        assert_eq!(address_book.all(), [at(2, 6, "b:1"), at(3, 1, "c:1")]);
        assert_eq!((address_book.changes(), address_book.addresses().len()), (2, 2));
    }

    /// The address that a start gives itself counts more than hearsay, and nodes that have left are
    /// forgotten.
    #[test]
    fn own_address_and_forgotten_nodes() {
        let address_book = AddressBook::default();
        address_book.heard(&[at(2, 5, "x:1"), at(3, 1, "c:1")]);
        address_book.met(&at(2, 5, "b:1"));
        address_book.heard(&[at(2, 5, "x:1")]);
        assert_eq!((address_book.of(2), address_book.changes()), (Some(at(2, 5, "b:1")), 3));
        address_book.forget(|node| node == 4);
        assert_eq!(address_book.changes(), 3);
        address_book.forget(|node| node == 3);
        assert_eq!((address_book.all(), address_book.changes()), (vec![at(2, 5, "b:1")], 4));
    }
}
