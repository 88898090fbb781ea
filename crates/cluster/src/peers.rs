//! The other nodes of the cluster: connections to them, over which envelopes of this node's member leave.
//!
//! What comes from them comes over connections that they have dialed, to the same port that clients use
//! ([`crate::server`]'s gate).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kestrel_meta::member::Envelope;
use kestrel_meta::member::host::{Carrier, Unsent};
use kestrel_net::peer::{PeerConfig, PeerFigures, PeerLink};
use kestrel_types::placement::{NodeId, Placement};
use kestrel_types::wire::{PeerHello, PeerSecret, Versions};

/// What tells nodes of one cluster from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The volume's number.
    pub volume: [u8; 16],
    /// What its nodes know and nobody else.
    pub secret: PeerSecret,
}

/// See the module's header. Dropping it closes the connections.
pub struct Peers(BTreeMap<NodeId, PeerLink>);

impl Peers {
    /// Begins to connect to all other nodes of the table, each at its address there.
    ///
    /// # Errors
    /// If a thread does not start.
    pub fn start(identity: &Identity, me: NodeId, placement: &Placement) -> io::Result<Arc<Self>> {
        let others = placement.map.members().iter().filter(|member| member.id != me);
        let link = |member: &kestrel_types::placement::Member| {
            let hello = PeerHello {
                versions: Versions::OURS,
                volume: identity.volume,
                from: me,
                to: member.id,
                table: placement.version,
                secret: identity.secret,
            };
            let seed = u64::from(me) << 32 | u64::from(member.id);
            Ok((member.id, PeerLink::start(PeerConfig::new(member.address.clone(), hello), seed)?))
        };
        Ok(Arc::new(Self(others.map(link).collect::<io::Result<_>>()?)))
    }

    /// What the connections have carried, by node.
    pub fn figures(&self) -> BTreeMap<NodeId, PeerFigures> {
        self.0.iter().map(|(node, link)| (*node, link.figures())).collect()
    }

    /// Another node has just connected to this one: it is there.
    pub fn hurry(&self, node: NodeId) {
        if let Some(link) = self.0.get(&node) {
            link.hurry();
        }
    }
}

impl Carrier for Peers {
    fn carry(&self, to: NodeId, envelope: Envelope) -> Result<(), Box<Unsent>> {
        // Nobody else would take it: it is from a node that is not in the table.
        let Some(link) = self.0.get(&to) else { return Ok(()) };
        let mut bytes = Vec::new();
        let sent = envelope.encode(&mut bytes).and_then(|()| link.send(&bytes));
        sent.map_err(|why| Box::new(Unsent { envelope, why }))
    }

    fn flush(&self) {
        self.0.values().for_each(PeerLink::flush);
    }
}
