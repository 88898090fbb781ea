//! A process as one of several nodes: its identity, and its connections to the others.

use std::sync::Arc;
use std::time::Instant;

use kestrel_client::descriptor::{ClusterSection, random};
use kestrel_client::volume::Volume;
use kestrel_cluster::host::NodeHost;
use kestrel_server::peers::{Identity, Peers};
use kestrel_server::server::Server;
use kestrel_types::placement::{NodeId, PlacementMap};
use kestrel_types::wire::PeerSecret;
use serde_json::{Value, json};

use super::balance::{Balancing, Pace};
use super::tls::ServeTls;

/// See the module's header.
pub struct NodeOfCluster {
    /// Its number.
    pub node: NodeId,
    /// What the nodes know each other by.
    pub identity: Identity,
    /// Its connections to the others.
    pub peers: Arc<Peers>,
    /// How often it balances by itself, when it leads changes.
    pub pace: Pace,
    /// What came of that.
    pub balancing: Arc<Balancing>,
    /// The table that it was formed with.
    formed: PlacementMap,
    /// It was formed for a cluster that does not have it yet.
    joins: bool,
    /// The node on the machine that serves it, and since when, if that is not its own.
    pub stands_in: Option<(NodeId, Instant)>,
}

impl NodeOfCluster {
    /// The node of the descriptor, and by what the others know it; they reach it at `address`.
    ///
    /// # Errors
    /// In words.
    pub fn new(
        volume: &Volume,
        section: &ClusterSection,
        pace: Pace,
        address: String,
    ) -> Result<Self, String> {
        let placement = section.placement().map_err(|why| why.to_string())?;
        let secret = section.secret().map_err(|why| why.to_string())?;
        let node_uuid = volume.node_uuid(section).map_err(|why| why.to_string())?;
        let start = u64::from_be_bytes(random().map_err(|why| why.to_string())?);
        let (volume, secret) = (volume.descriptor.uuid_bytes(), PeerSecret(secret));
        let identity = Identity { volume, secret, node_uuid, start, address };
        Ok(Self {
            node: section.node,
            identity,
            peers: Arc::default(),
            pace,
            balancing: Arc::default(),
            formed: placement,
            joins: section.joining,
            stands_in: None,
        })
    }

    /// Begins to connect to the others: its member, which has counted this start, knows which there
    /// are. Starts threads.
    ///
    /// # Errors
    /// In words.
    pub fn connect(&self, host: &NodeHost, tls: &ServeTls) -> Result<(), String> {
        self.peers.introduce(&self.identity, host, tls.to_nodes(self.node)?);
        let begun = self.peers.meet(&host.placement());
        begun.map_err(|why| format!("no threads for connections to the other nodes: {why}"))
    }

    /// Whether the others do not have it in their table yet: it serves nothing.
    pub fn is_joining(&self, host: &NodeHost) -> bool {
        self.joins && host.placement().version <= self.formed.version
    }

    /// Has the member tell of tables: their nodes are let in, and connected to.
    pub fn follow_tables(&self, host: &NodeHost, server: &Arc<Server>) {
        let (peers, server) = (self.peers.clone(), Arc::downgrade(server));
        host.set_table_listener(Box::new(move |placement| {
            if let Some(server) = server.upgrade() {
                server.expect(placement.map.members().iter().map(|member| member.id));
            }
            if let Err(why) = peers.meet(placement) {
                log::error!(
                    "no threads for connections to new nodes: {why}; start this node again"
                );
            }
        }));
    }

    /// Has all nodes know the same tokens.
    pub fn share_tokens(&self, host: &Arc<NodeHost>, server: &Server) {
        let host = Arc::downgrade(host);
        let nodes = move || {
            let placement = host.upgrade().map(|host| host.placement());
            placement.map_or(Vec::new(), |placement| {
                placement.map.members().iter().map(|member| member.id).collect()
            })
        };
        server.tokens().are_shared(self.node, self.peers.clone(), Box::new(nodes));
    }

    /// What a status tells of the connections to members.
    pub fn peers(&self, placement: &PlacementMap) -> Value {
        let link = |(node, stats): (NodeId, kestrel_rpc::peer::PeerStats)| {
            json!({
                "node": node,
                "up": stats.up,
                "why": self.peers.why_down(node),
                "connects": stats.connects,
                "envelopes": stats.envelopes,
                "writes": stats.writes,
                "dropped": stats.dropped,
                "sent_bytes": stats.bytes_out,
            })
        };
        let stats = self.peers.stats().into_iter();
        stats.filter(|(node, _)| placement.map.member(*node).is_some()).map(link).collect()
    }
}
