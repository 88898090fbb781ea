//! A process as one of several nodes: who it is, and its connections to the others.

use std::sync::Arc;

use kestrel_client::descriptor::{ClusterSection, Descriptor};
use kestrel_cluster::peers::{Identity, Peers};
use kestrel_types::placement::NodeId;
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
}

impl NodeOfCluster {
    /// Begins to connect to the others. Starts threads.
    ///
    /// # Errors
    /// In words.
    pub fn start(descriptor: &Descriptor, section: &ClusterSection) -> Result<Self, String> {
        let placement = section.placement().map_err(|why| why.to_string())?;
        let secret = section.secret().map_err(|why| why.to_string())?;
        let identity = Identity { volume: descriptor.uuid_bytes(), secret: PeerSecret(secret) };
        let peers = Peers::start(&identity, section.node, &placement)
            .map_err(|why| format!("no threads for connections to the other nodes: {why}"))?;
        Ok(Self { node: section.node, identity, peers })
    }

    /// What a status tells of the connections.
    pub fn peers(&self) -> Value {
        let link = |(node, figures): (NodeId, kestrel_net::peer::PeerFigures)| {
            json!({
                "node": node,
                "up": figures.up,
                "connects": figures.connects,
                "envelopes": figures.envelopes,
                "dropped": figures.dropped,
                "sent_bytes": figures.bytes_out,
            })
        };
        self.peers.figures().into_iter().map(link).collect()
    }
}
