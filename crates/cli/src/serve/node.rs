//! A process as one of several nodes: who it is, and its connections to the others.

use std::sync::Arc;

use kestrel_client::descriptor::{ClusterSection, Descriptor, random};
use kestrel_cluster::peers::{Identity, Peers};
use kestrel_types::placement::{NodeId, Placement};
use kestrel_types::wire::PeerSecret;
use serde_json::{Value, json};

/// See the module's header.
pub struct NodeOfCluster {
    /// Its number.
    pub node: NodeId,
    /// What the nodes know each other by.
    pub identity: Identity,
    /// Its connections to the others.
    pub peers: Arc<Peers>,
    placement: Placement,
}

impl NodeOfCluster {
    /// Who the descriptor says it is.
    ///
    /// # Errors
    /// In words.
    pub fn new(descriptor: &Descriptor, section: &ClusterSection) -> Result<Self, String> {
        let placement = section.placement().map_err(|why| why.to_string())?;
        let secret = section.secret().map_err(|why| why.to_string())?;
        let birth = section.birth().map_err(|why| why.to_string())?;
        let start = u64::from_be_bytes(random().map_err(|why| why.to_string())?);
        let (volume, secret) = (descriptor.uuid_bytes(), PeerSecret(secret));
        let identity = Identity { volume, secret, birth, start };
        Ok(Self { node: section.node, identity, peers: Arc::default(), placement })
    }

    /// Begins to connect to the others: its member has counted this start as the one of this number. Starts threads.
    ///
    /// # Errors
    /// In words.
    pub fn connect(&self, epoch: u64) -> Result<(), String> {
        let begun = self.peers.connect(&self.identity, self.node, epoch, &self.placement);
        begun.map_err(|why| format!("no threads for connections to the other nodes: {why}"))
    }

    /// What a status tells of the connections.
    pub fn peers(&self) -> Value {
        let link = |(node, figures): (NodeId, kestrel_net::peer::PeerFigures)| {
            json!({
                "node": node,
                "up": figures.up,
                "why": self.peers.why_down(node),
                "connects": figures.connects,
                "envelopes": figures.envelopes,
                "dropped": figures.dropped,
                "sent_bytes": figures.bytes_out,
            })
        };
        self.peers.figures().into_iter().map(link).collect()
    }
}
