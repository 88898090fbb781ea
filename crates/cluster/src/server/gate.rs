//! Connections of other nodes: who is let in, and what they bring to the member.
//!
//! A node has one connection at a time; a newer one replaces it, as a node that was started again replaces what it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_meta::member::Envelope;
use kestrel_meta::member::host::MemberHost;
use kestrel_net::handler::Outbox;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::placement::NodeId;
use kestrel_types::wire::{PeerHello, ToServer};
use parking_lot::Mutex;

use super::Server;
use crate::backend::Backend;
use crate::peers::Identity;

/// The connection of a node.
struct Seat {
    number: u64,
    outbox: Arc<dyn Outbox>,
}

#[derive(Default)]
struct Seats {
    last: u64,
    taken: BTreeMap<NodeId, Seat>,
}

/// See the module's header.
pub(crate) struct Gate {
    host: Arc<MemberHost>,
    identity: Identity,
    seats: Mutex<Seats>,
}

/// A connection that was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guest {
    from: NodeId,
    number: u64,
}

impl Gate {
    /// The gate of a member; none of a node alone.
    pub fn of(backend: &Backend, identity: Option<&Identity>) -> Option<Self> {
        let (Backend::Member(host), Some(identity)) = (backend, identity) else { return None };
        Some(Self { host: host.clone(), identity: identity.clone(), seats: Mutex::default() })
    }

    fn check(&self, hello: &PeerHello) -> FsResult<()> {
        let refused = |errno, why: String| Err(FsError::because(errno, why));
        let me = self.host.me();
        if hello.secret != self.identity.secret {
            let why = "the secrets of the clusters differ: this node belongs to another cluster than the one that \
                       connects, or one of their descriptors was written anew";
            return refused(libc::EACCES, why.into());
        }
        if hello.volume != self.identity.volume {
            return refused(
                libc::ENOENT,
                "this node serves another volume: check the addresses of the cluster".into(),
            );
        }
        if hello.from == me {
            let why = format!(
                "two processes are node {me} of this cluster: one of them was started on a copy of the other's directory; stop it"
            );
            log::error!("cluster: {why}");
            return refused(libc::EEXIST, why);
        }
        if hello.to != me {
            let why = format!("this is node {me}, not node {}: check the addresses of the cluster", hello.to);
            return refused(libc::EINVAL, why);
        }
        let placement = self.host.node().cluster().map(|cluster| &cluster.placement);
        let Some(placement) = placement.filter(|placement| placement.map.member(hello.from).is_some()) else {
            return refused(
                libc::EINVAL,
                format!("node {} is not in the table of placement of node {me}", hello.from),
            );
        };
        if hello.table != placement.version {
            let why = format!(
                "node {} has version {} of the table of placement, node {me} has version {}: all nodes need the same one",
                hello.from, hello.table, placement.version
            );
            return refused(libc::ESTALE, why);
        }
        Ok(())
    }
}

impl Server {
    /// Takes in another node's connection, in the place of the one it had.
    ///
    /// # Errors
    /// What it is refused with.
    pub(crate) fn greet_peer(&self, hello: &PeerHello, outbox: &Arc<dyn Outbox>) -> FsResult<Guest> {
        let Some(gate) = &self.gate else {
            return Err(FsError::new(
                libc::EINVAL,
                "this node has its volume to itself: it is in no cluster",
            ));
        };
        gate.check(hello)?;
        let (guest, replaced) = {
            let mut seats = gate.seats.lock();
            seats.last += 1;
            let number = seats.last;
            let replaced = seats.taken.insert(hello.from, Seat { number, outbox: outbox.clone() });
            (Guest { from: hello.from, number }, replaced)
        };
        self.shared.counts.peers_welcomed.add(1);
        if let Some(Seat { outbox, .. }) = replaced {
            outbox.close("a newer connection of the same node has taken over");
        }
        Ok(guest)
    }

    /// Takes what another node says.
    ///
    /// # Errors
    /// If that is not what nodes say: its connection ends.
    pub(crate) fn hear_peer(&self, guest: Guest, messages: impl Iterator<Item = ToServer>) -> FsResult<()> {
        let Some(gate) = &self.gate else { return Ok(()) };
        let current =
            gate.seats.lock().taken.get(&guest.from).is_some_and(|seat| seat.number == guest.number);
        if !current {
            return Ok(());
        }
        let (mut envelopes, mut wrong) = (Vec::new(), Ok(()));
        for message in messages {
            match message {
                ToServer::Peer(bytes) => match Envelope::decode(&bytes) {
                    Ok(envelope) if envelope.from == guest.from => envelopes.push(envelope),
                    Ok(_) => {
                        wrong = Err(FsError::new(libc::EPROTO, "a node speaks for itself only"));
                        break;
                    }
                    Err(why) => {
                        wrong = Err(FsError::because(libc::EPROTO, format!("a message of a node: {why}")));
                        break;
                    }
                },
                // A sign of life.
                ToServer::Ping { .. } => {}
                _ => {
                    wrong = Err(FsError::new(libc::EPROTO, "a node has no session"));
                    break;
                }
            }
        }
        self.shared.counts.envelopes.add(envelopes.len() as u64);
        if !envelopes.is_empty() {
            gate.host.receive_many(envelopes);
        }
        wrong
    }

    /// Another node's connection has ended.
    pub(crate) fn peer_left(&self, guest: Guest) {
        if let Some(gate) = &self.gate {
            gate.seats.lock().taken.retain(|_, seat| seat.number != guest.number);
        }
    }

    pub(super) fn close_peers(&self) {
        let Some(gate) = &self.gate else { return };
        for (_, seat) in std::mem::take(&mut gate.seats.lock().taken) {
            seat.outbox.close("the node is shutting down");
        }
    }
}
