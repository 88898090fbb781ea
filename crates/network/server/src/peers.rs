//! The other nodes of the cluster: connections to them, over which envelopes of this node's member
//! leave.
//!
//! Their messages come over connections that they have dialed, to the same port that clients use
//! (`crate::server::peer_handshake`).
//!
//! A node is dialed at its newest address ([`kestrel_cluster::addresses`]): at once when the node
//! itself, or another one, sends a newer one. The connection to the old address is given up then:
//! the start of the node there has ended, or must get no more messages. The first message over a
//! connection has the addresses of the other nodes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

use kestrel_cluster::addresses::{AddressBook, NodeAddress};
use kestrel_cluster::host::{Carrier, NodeHost, Undeliverable};
use kestrel_cluster::{Envelope, Message};
use kestrel_rpc::peer::{Greeting, PeerConfig, PeerLink, PeerStats};
use kestrel_rpc::tls::ClientTls;
use kestrel_types::placement::{NodeId, PlacementMap};
use kestrel_types::wire::{PeerHello, PeerSecret, Versions};
use parking_lot::RwLock;

/// What distinguishes the nodes of one cluster from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The volume's number.
    pub volume: [u8; 16],
    /// The secret that only its nodes have.
    pub secret: PeerSecret,
    /// The word that this node's directory was born with.
    pub node_uuid: u64,
    /// Random, of this process.
    pub start: u64,
    /// Where others reach it, `host:port`; 1 to 255 bytes.
    pub address: String,
}

/// The identity of this node for the others.
struct Introduction {
    identity: Identity,
    me: NodeId,
    epoch: u64,
    tls: ClientTls,
    address_book: Arc<AddressBook>,
}

impl Introduction {
    fn dial(&self, node: NodeId, address: String, table: u64) -> io::Result<PeerLink> {
        let identity = &self.identity;
        let hello = PeerHello {
            versions: Versions::OURS,
            volume: identity.volume,
            from: self.me,
            to: node,
            table,
            nonce: [0; 16],
            node_uuid: identity.node_uuid,
            epoch: self.epoch,
            start: identity.start,
            address: identity.address.clone(),
        };
        let seed = u64::from(self.me) << 32 | u64::from(node);
        let mut config = PeerConfig::new(address, hello, identity.secret, &self.tls);
        let (me, address_book) = (self.me, self.address_book.clone());
        config.greeting = Some(Greeting(Arc::new(move || {
            // The receiver has its own address, and has just got that of this node.
            let others =
                address_book.all().into_iter().filter(|at| at.node != me && at.node != node);
            envelope(me, others.collect())
        })));
        PeerLink::start(config, seed)
    }

    fn envelope(&self, nodes: Vec<NodeAddress>) -> Option<Vec<u8>> {
        envelope(self.me, nodes)
    }
}

/// The message with the addresses of these nodes; none if there are none.
fn envelope(from: NodeId, nodes: Vec<NodeAddress>) -> Option<Vec<u8>> {
    if nodes.is_empty() {
        return None;
    }
    let (envelope, mut bytes) =
        (Envelope { from, stamp: 0, message: Message::Addresses(nodes) }, Vec::new());
    // As many as a cluster has nodes fit.
    envelope.encode(&mut bytes).ok()?;
    Some(bytes)
}

/// See the module's header. Dropping it closes the connections. What is to be carried before they
/// are begun is lost, which a carrier may do.
#[derive(Default)]
pub struct Peers {
    introduction: OnceLock<Introduction>,
    links: RwLock<BTreeMap<NodeId, PeerLink>>,
}

impl Peers {
    /// Sets the identity of this node for the others, and how it proves that
    /// ([`ClientTls::of_node`]): once, when its member has counted its start.
    pub fn introduce(self: &Arc<Self>, identity: &Identity, host: &NodeHost, tls: ClientTls) {
        let (me, epoch, address_book) = (host.me(), host.epoch(), host.address_book().clone());
        address_book.met(&NodeAddress { node: me, epoch, address: identity.address.clone() });
        let weak = Arc::downgrade(self);
        address_book.listen(Box::new(move |at, is_new| {
            if let Some(peers) = weak.upgrade() {
                peers.found(at, is_new);
            }
        }));
        let _ = self.introduction.set(Introduction {
            identity: identity.clone(),
            me,
            epoch,
            tls,
            address_book,
        });
    }

    /// Begins to connect to those nodes of a map that there are no connections to, each at its
    /// newest address. Does not wait for them.
    ///
    /// # Errors
    /// If a thread does not start; the rest is tried again when this is called again.
    pub fn meet(&self, placement: &PlacementMap) -> io::Result<()> {
        let Some(introduction) = self.introduction.get() else { return Ok(()) };
        let mut links = self.links.write();
        for member in placement.map.members().iter().filter(|member| member.id != introduction.me) {
            if links.contains_key(&member.id) {
                continue;
            }
            let address = introduction.address_book.of(member.id).map(|at| at.address);
            let address = address.unwrap_or_else(|| member.address.clone());
            links.insert(member.id, introduction.dial(member.id, address, placement.version)?);
        }
        Ok(())
    }

    /// A node has sent its address, or others have.
    fn found(&self, at: &NodeAddress, is_new: bool) {
        let Some(introduction) = self.introduction.get() else { return };
        if at.node == introduction.me {
            return;
        }
        let is_elsewhere = match self.links.read().get(&at.node) {
            Some(link) if link.address() == at.address => {
                link.hurry();
                false
            }
            link => link.is_some(),
        };
        if is_elsewhere {
            self.redirect(introduction, at.node);
        }
        if is_new {
            self.pass_on(introduction, at);
        }
    }

    /// Dials a node where it is by now, in the place of the connection there was.
    fn redirect(&self, introduction: &Introduction, node: NodeId) {
        let mut links = self.links.write();
        // Another thread may have been faster, with a newer address.
        let Some(at) = introduction.address_book.of(node) else { return };
        let Some(link) = links.get(&node).filter(|link| link.address() != at.address) else {
            return;
        };
        let before = link.address().to_string();
        match introduction.dial(node, at.address.clone(), 0) {
            Ok(link) => {
                log::info!(
                    "cluster: node {node} is at {} now, by its start {}; it was at {before}",
                    at.address,
                    at.epoch
                );
                let before = links.insert(node, link);
                drop(links);
                // What ends a connection waits for its thread, which may be dialing; a thread that
                // brings news must not. Without a thread it waits.
                let _ = std::thread::Builder::new()
                    .name("kestrel-peer-end".into())
                    .spawn(move || drop(before));
            }
            Err(why) => {
                log::error!("cluster: no thread to connect to node {node} at {}: {why}", at.address)
            }
        }
    }

    /// Sends all other nodes the new address of one. A node that does not get it gets it when it is
    /// connected to.
    fn pass_on(&self, introduction: &Introduction, at: &NodeAddress) {
        let links = self.links.read();
        let Some(envelope) = introduction.envelope(vec![at.clone()]) else { return };
        for (_, link) in links.iter().filter(|(node, _)| **node != at.node) {
            // It fits: it is one address.
            let _ = link.send(&envelope);
            link.flush();
        }
    }

    /// Lets go of nodes that are not in the map any more, when they have gone. Until then they may
    /// have to be told that they have left.
    pub fn forget_former(&self, placement: &PlacementMap) {
        if let Some(introduction) = self.introduction.get() {
            introduction.address_book.forget(|node| placement.heir_of(node).is_some());
        }
        let goes =
            |node: &NodeId, link: &PeerLink| placement.heir_of(*node).is_some() && !link.stats().up;
        let is_any = self.links.read().iter().any(|(node, link)| goes(node, link));
        if is_any {
            let mut links = self.links.write();
            let gone: Vec<NodeId> = links
                .iter()
                .filter(|(node, link)| goes(node, link))
                .map(|(node, _)| *node)
                .collect();
            let gone: Vec<_> = gone.into_iter().filter_map(|node| links.remove(&node)).collect();
            // What ends a connection waits for its thread.
            drop(links);
            drop(gone);
        }
    }

    /// Why there is no connection to a node; none if there is one, or no reason has been found yet.
    pub fn why_down(&self, node: NodeId) -> Option<String> {
        self.links.read().get(&node)?.why_down()
    }

    /// Another node has refused this one for good: this node must end.
    pub fn expelled(&self) -> Option<String> {
        self.links.read().values().find_map(PeerLink::expelled)
    }

    /// What the connections have carried, by node.
    pub fn stats(&self) -> BTreeMap<NodeId, PeerStats> {
        self.links.read().iter().map(|(node, link)| (*node, link.stats())).collect()
    }
}

impl Carrier for Peers {
    fn carry(&self, to: NodeId, envelope: Envelope) -> Result<(), Box<Undeliverable>> {
        // No other node would take it: it is from a node that is not in the map.
        let links = self.links.read();
        let Some(link) = links.get(&to) else { return Ok(()) };
        let mut bytes = Vec::new();
        let sent = envelope.encode(&mut bytes).and_then(|()| link.send(&bytes));
        sent.map_err(|why| Box::new(Undeliverable { envelope, why }))
    }

    fn flush(&self) {
        self.links.read().values().for_each(PeerLink::flush);
    }
}
