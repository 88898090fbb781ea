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

/// See the module's header. Dropping it closes the connections. What is to be carried before they are begun is lost, which a
/// carrier may do.
#[derive(Default)]
pub struct Peers(OnceLock<BTreeMap<NodeId, PeerLink>>);

impl Peers {
    /// Begins to connect to all other nodes of the table, each at its address there: once, when the member has counted its start.
    ///
    /// # Errors
    /// If a thread does not start.
    pub fn connect(
        &self,
        identity: &Identity,
        me: NodeId,
        epoch: u64,
        placement: &Placement,
    ) -> io::Result<()> {
        let others = placement.map.members().iter().filter(|member| member.id != me);
        let link = |member: &kestrel_types::placement::Member| {
            let hello = PeerHello {
                versions: Versions::OURS,
                volume: identity.volume,
                from: me,
                to: member.id,
                table: placement.version,
                secret: identity.secret,
                birth: identity.birth,
                epoch,
                start: identity.start,
            };
            let seed = u64::from(me) << 32 | u64::from(member.id);
            Ok((member.id, PeerLink::start(PeerConfig::new(member.address.clone(), hello), seed)?))
        };
        let links = others.map(link).collect::<io::Result<_>>()?;
        self.0.set(links).map_err(|_| io::Error::other("connections to the other nodes were begun before"))
    }

    fn links(&self) -> impl Iterator<Item = (NodeId, &PeerLink)> {
        self.0.get().into_iter().flatten().map(|(node, link)| (*node, link))
    }

    fn link(&self, node: NodeId) -> Option<&PeerLink> {
        self.0.get()?.get(&node)
    }

    /// Why there is no connection to a node, if there is none and that is known.
    pub fn why_down(&self, node: NodeId) -> Option<String> {
        self.link(node)?.why_down()
    }

    /// Another node has refused this one for good, and said so: this node must end.
    pub fn expelled(&self) -> Option<String> {
        self.links().find_map(|(_, link)| link.expelled())
    }

    /// What the connections have carried, by node.
    pub fn figures(&self) -> BTreeMap<NodeId, PeerFigures> {
        self.links().map(|(node, link)| (node, link.figures())).collect()
    }
}

impl Carrier for Peers {
    fn carry(&self, to: NodeId, envelope: Envelope) -> Result<(), Box<Unsent>> {
        // Nobody else would take it: it is from a node that is not in the table.
        let Some(link) = self.link(to) else { return Ok(()) };
        let mut bytes = Vec::new();
        let sent = envelope.encode(&mut bytes).and_then(|()| link.send(&bytes));
        sent.map_err(|why| Box::new(Unsent { envelope, why }))
    }

    fn flush(&self) {
        self.links().for_each(|(_, link)| link.flush());
    }
}
