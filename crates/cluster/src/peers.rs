//! The other nodes of the cluster: connections to them, over which envelopes of this node's member leave.
//!
//! What comes from them comes over connections that they have dialed, to the same port that clients use
//! ([`crate::server`]'s gate).

use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

use kestrel_meta::member::Envelope;
use kestrel_meta::member::host::{Carrier, Unsent};
use kestrel_net::peer::{PeerConfig, PeerFigures, PeerLink};
use kestrel_types::placement::{NodeId, Placement};
use kestrel_types::wire::{PeerHello, PeerSecret, Versions};
use parking_lot::RwLock;

/// What tells nodes of one cluster from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The volume's number.
    pub volume: [u8; 16],
    /// What its nodes know and nobody else.
    pub secret: PeerSecret,
    /// The word that this node's directory was born with.
    pub birth: u64,
    /// Random, of this process.
    pub start: u64,
}

/// Who this node is to the others.
struct Introduction {
    identity: Identity,
    me: NodeId,
    epoch: u64,
}

/// See the module's header. Dropping it closes the connections. What is to be carried before they are begun is lost, which a
/// carrier may do.
#[derive(Default)]
pub struct Peers {
    introduction: OnceLock<Introduction>,
    links: RwLock<BTreeMap<NodeId, PeerLink>>,
}

impl Peers {
    /// Tells who this node is to the others: once, when its member has counted its start.
    pub fn introduce(&self, identity: &Identity, me: NodeId, epoch: u64) {
        let _ = self.introduction.set(Introduction { identity: identity.clone(), me, epoch });
    }

    /// Begins to connect to those nodes of a table, each at its address there, that there are no connections to. Does not wait for them.
    ///
    /// # Errors
    /// If a thread does not start; the rest is tried again when this is called again.
    pub fn meet(&self, placement: &Placement) -> io::Result<()> {
        let Some(Introduction { identity, me, epoch }) = self.introduction.get() else { return Ok(()) };
        let mut links = self.links.write();
        for member in placement.map.members().iter().filter(|member| member.id != *me) {
            if links.contains_key(&member.id) {
                continue;
            }
            let hello = PeerHello {
                versions: Versions::OURS,
                volume: identity.volume,
                from: *me,
                to: member.id,
                table: placement.version,
                secret: identity.secret,
                birth: identity.birth,
                epoch: *epoch,
                start: identity.start,
            };
            let seed = u64::from(*me) << 32 | u64::from(member.id);
            links.insert(member.id, PeerLink::start(PeerConfig::new(member.address.clone(), hello), seed)?);
        }
        Ok(())
    }

    /// Lets go of nodes that are not in the table any more, when they have gone. Until then they may have to hear that.
    pub fn forget_former(&self, placement: &Placement) {
        let goes = |node: &NodeId, link: &PeerLink| placement.heir_of(*node).is_some() && !link.figures().up;
        let is_any = self.links.read().iter().any(|(node, link)| goes(node, link));
        if is_any {
            let mut links = self.links.write();
            let gone: Vec<NodeId> =
                links.iter().filter(|(node, link)| goes(node, link)).map(|(node, _)| *node).collect();
            let gone: Vec<_> = gone.into_iter().filter_map(|node| links.remove(&node)).collect();
            // What ends a connection waits for its thread.
            drop(links);
            drop(gone);
        }
    }

    /// Why there is no connection to a node, if there is none and that is known.
    pub fn why_down(&self, node: NodeId) -> Option<String> {
        self.links.read().get(&node)?.why_down()
    }

    /// Another node has refused this one for good, and said so: this node must end.
    pub fn expelled(&self) -> Option<String> {
        self.links.read().values().find_map(PeerLink::expelled)
    }

    /// What the connections have carried, by node.
    pub fn figures(&self) -> BTreeMap<NodeId, PeerFigures> {
        self.links.read().iter().map(|(node, link)| (*node, link.figures())).collect()
    }
}

impl Carrier for Peers {
    fn carry(&self, to: NodeId, envelope: Envelope) -> Result<(), Box<Unsent>> {
        // Nobody else would take it: it is from a node that is not in the table.
        let links = self.links.read();
        let Some(link) = links.get(&to) else { return Ok(()) };
        let mut bytes = Vec::new();
        let sent = envelope.encode(&mut bytes).and_then(|()| link.send(&bytes));
        sent.map_err(|why| Box::new(Unsent { envelope, why }))
    }

    fn flush(&self) {
        self.links.read().values().for_each(PeerLink::flush);
    }
}
