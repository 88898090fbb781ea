//! Connections of other nodes: which are let in, and what they bring to the member.
//!
//! **The identity of a node.** Not its number alone: the node UUID of its directory, how often that
//! directory was started, and the random number of the process. The newest start is on record,
//! durably before it is let in ([`kestrel_cluster::peer_identity`]). So a directory that was made
//! anew, an old copy and a second process are distinguished from the node that the cluster has;
//! they would bring what the others do not have, or take numbers that are taken. A start is counted
//! before it connects to any node, so no two starts of one directory have the same number: two that
//! do are copies.
//!
//! **Its address** it sends, too: that is on record with its start
//! ([`kestrel_cluster::addresses`]), and this node dials it there.
//!
//! **That it is of this cluster** it proves by what only nodes of the cluster can compute
//! ([`kestrel_rpc::peer::proof`]), and over TLS by a certificate with its number besides. Until
//! then it learns nothing but that this node is one.
//!
//! A node has one connection at a time; a newer one replaces it, as a node that was started again
//! replaces what it was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_cluster::addresses::NodeAddress;
use kestrel_cluster::host::NodeHost;
use kestrel_cluster::peer_identity::PeerIdentity;
use kestrel_cluster::{Envelope, Message};
use kestrel_rpc::handler::Outbox;
use kestrel_rpc::peer::proof::{holds, nonce, prove};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::placement::NodeId;
use kestrel_types::security::{PeerName, Security};
use kestrel_types::wire::{
    PROOF_BYTES, PeerChallenge, PeerHello, Prover, REFUSED_LEFT, REFUSED_NODE_UUID, REFUSED_OLD,
    REFUSED_TWICE, ToServer,
};
use parking_lot::Mutex;

use super::Server;
use crate::backend::Backend;
use crate::peers::Identity;

/// The connection of a node.
struct PeerConn {
    number: u64,
    outbox: Arc<dyn Outbox>,
}

#[derive(Default)]
struct PeerConns {
    last: u64,
    taken: BTreeMap<NodeId, PeerConn>,
}

/// See the module's header.
pub(crate) struct PeerHandshake {
    host: Arc<NodeHost>,
    identity: Identity,
    /// Identities of other nodes, as far as they were read from the records. Held while a node is
    /// let in, and taken before the connections.
    identities: Mutex<BTreeMap<NodeId, PeerIdentity>>,
    /// Nodes that are to join, or are in a table that is to come.
    expected: Mutex<BTreeSet<NodeId>>,
    conns: Mutex<PeerConns>,
}

const NO_CLUSTER: FsError =
    FsError::new(libc::EINVAL, "this node has its volume to itself: it is in no cluster");

/// The claim of a peer to be a node.
pub(crate) struct PeerClaim<'a> {
    pub hello: &'a PeerHello,
    /// The random number that its proof has to be about.
    pub nonce: &'a [u8; 16],
    pub proof: &'a [u8; PROOF_BYTES],
    /// What its connection runs over.
    pub security: &'a Security,
}

/// A connection that was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcceptedPeer {
    from: NodeId,
    number: u64,
}

impl PeerHandshake {
    /// That of a member; none of a node alone.
    pub fn of(backend: &Backend, identity: Option<&Identity>) -> Option<Self> {
        let (Backend::Member(host), Some(identity)) = (backend, identity) else { return None };
        Some(Self {
            host: host.clone(),
            identity: identity.clone(),
            identities: Mutex::default(),
            expected: Mutex::default(),
            conns: Mutex::default(),
        })
    }

    /// Lets these in, too.
    pub fn expect(&self, nodes: impl IntoIterator<Item = NodeId>) {
        self.expected.lock().extend(nodes);
    }

    fn belongs(&self, node: NodeId) -> bool {
        let table = self.host.node().cluster().map(|cluster| cluster.table());
        table.is_some_and(|table| table.placement.map.member(node).is_some())
            || self.expected.lock().contains(&node)
            || self.host.expected().iter().any(|(expected, _)| *expected == node)
    }

    fn has_left(&self, node: NodeId) -> bool {
        let table = self.host.node().cluster().map(|cluster| cluster.table());
        table.is_some_and(|table| table.placement.heir_of(node).is_some())
    }

    /// Whether it is a node of this cluster, and the one that it claims to be.
    fn believe(&self, PeerClaim { hello, nonce, proof, security }: &PeerClaim<'_>) -> FsResult<()> {
        if !holds(&self.identity.secret, Prover::Dialed, hello, nonce, proof) {
            let why = "the secrets of the clusters differ: this node belongs to another cluster \
                       than the one that connects, or one of \
                       their descriptors was written anew";
            return Err(FsError::new(libc::EACCES, why));
        }
        let shown = match security {
            Security::Tls { peer } => peer.as_ref(),
            // What is allowed in clear is decided where connections are accepted.
            Security::Loopback | Security::Plain => return Ok(()),
        };
        if shown != Some(&PeerName::Node(hello.from)) {
            let shown = match shown {
                Some(PeerName::Node(node)) => format!("is that of node {node}"),
                Some(PeerName::Client(_)) => "is a client's".into(),
                None => "is none of this volume's".into(),
            };
            let why =
                format!("the certificate of a peer that says to be node {} {shown}", hello.from);
            return Err(FsError::because(libc::EACCES, why));
        }
        Ok(())
    }

    fn check(&self, hello: &PeerHello) -> FsResult<()> {
        let refused = |errno, why: String| Err(FsError::because(errno, why));
        let me = self.host.me();
        if hello.volume != self.identity.volume {
            return refused(
                libc::ENOENT,
                "this node serves another volume: check the addresses of the cluster".into(),
            );
        }
        if hello.from == me {
            let why = format!(
                "two processes are node {me} of this cluster: one of them was started on a copy of \
                 the other's directory; stop it"
            );
            return refused(libc::EEXIST, why);
        }
        if hello.to != me {
            let why = format!(
                "this is node {me}, not node {}: check the addresses of the cluster",
                hello.to
            );
            return refused(libc::EINVAL, why);
        }
        if self.has_left(hello.from) {
            let why = format!("node {} has left the cluster: {}", hello.from, crate::LEFT_BEHIND);
            return refused(REFUSED_LEFT, why);
        }
        if !self.belongs(hello.from) {
            let why = format!(
                "node {} is not one of the cluster's, as far as node {me} knows: one that joins is \
                 let in when `kestrel cluster \
                 add-node` has announced it, by all nodes when its turn comes",
                hello.from
            );
            return refused(libc::EAGAIN, why);
        }
        Ok(())
    }

    /// Whether this start of the node is the one that is on record, or a newer one, which is put on
    /// record.
    fn recognize(
        &self,
        identities: &mut BTreeMap<NodeId, PeerIdentity>,
        hello: &PeerHello,
        address: &str,
    ) -> FsResult<()> {
        let engine = &**self.host.node().engine();
        let came = PeerIdentity {
            node_uuid: hello.node_uuid,
            epoch: hello.epoch,
            start: hello.start,
            address: Some(hello.address.clone()),
        };
        let on_record = match identities.get(&hello.from) {
            Some(seen) => Some(seen.clone()),
            None => PeerIdentity::read(engine, hello.from)?,
        };
        if let Some(seen) = &on_record {
            // The address that it calls from has a meaningless port, another one each time.
            let address = address.rsplit_once(':').map_or(address, |(host, _)| host);
            if let Err(why) = check_identity(seen, &came, hello.from, self.host.me(), address) {
                let is_shared =
                    self.host.node().cluster().is_some_and(|cluster| cluster.is_shared());
                if !(is_shared && why.errno == REFUSED_OLD) {
                    log::error!("cluster: {}", why.reason);
                    return Err(why);
                }
                let why = format!(
                    "node {} has been started since the process at {address} was (start {}, node \
                     {} has seen start {}): another one \
                     serves in its place, and that one ends when it notices",
                    hello.from,
                    came.epoch,
                    self.host.me(),
                    seen.epoch
                );
                log::warn!("cluster: {why}");
                return Err(FsError::because(REFUSED_OLD, why));
            }
            identities.insert(hello.from, seen.clone());
        }
        if on_record.as_ref() != Some(&came) {
            came.write(engine, hello.from)?;
            identities.insert(hello.from, came);
        }
        Ok(())
    }
}

/// Whether the peer that has come may be the node of which `seen` is on record at node `me`.
fn check_identity(
    seen: &PeerIdentity,
    came: &PeerIdentity,
    from: NodeId,
    me: NodeId,
    address: &str,
) -> FsResult<()> {
    let refused = |errno, why: String| Err(FsError::because(errno, why));
    if came.node_uuid != seen.node_uuid {
        let why = format!(
            "node {from}, which connects from {address}, is not the node {from} that this cluster \
             knows: its directory was made \
             anew, and what the old one held is gone; stop it and start the old directory, or \
             restore all nodes from backups of one \
             moment"
        );
        return refused(REFUSED_NODE_UUID, why);
    }
    if came.epoch < seen.epoch {
        let why = format!(
            "an old copy of the directory of node {from} was started at {address} (start {}, node \
             {me} has seen start {}); stop it \
             and start the present one, or restore all nodes from backups of one moment",
            came.epoch, seen.epoch
        );
        return refused(REFUSED_OLD, why);
    }
    if came.epoch == seen.epoch && came.start != seen.start {
        let why = format!(
            "two processes serve node {from}: the one that connects from {address} was started on \
             a copy of the directory (both \
             are its start {}); stop it, and see that one directory of node {from} is left",
            came.epoch
        );
        return refused(REFUSED_TWICE, why);
    }
    Ok(())
}

impl Server {
    /// Proves to a peer that claims to be a node that this is one of the cluster, and asks for the
    /// peer's proof.
    ///
    /// # Errors
    /// What it is refused with.
    pub(crate) fn challenge_peer(&self, hello: &PeerHello) -> FsResult<PeerChallenge> {
        let handshake = self.peer_handshake.as_ref().ok_or(NO_CLUSTER)?;
        let nonce = nonce().ok_or(FsError::new(libc::EAGAIN, "the system has no randomness"))?;
        let proof = prove(&handshake.identity.secret, Prover::Reached, hello, &nonce);
        Ok(PeerChallenge { nonce, proof })
    }

    /// Takes in another node's connection, in the place of the one it had. `address` is for people.
    ///
    /// # Errors
    /// What it is refused with.
    pub(crate) fn accept_peer(
        &self,
        claim: &PeerClaim<'_>,
        outbox: &Arc<dyn Outbox>,
        address: &str,
    ) -> FsResult<AcceptedPeer> {
        let handshake = self.peer_handshake.as_ref().ok_or(NO_CLUSTER)?;
        handshake.believe(claim)?;
        let hello = claim.hello;
        handshake.check(hello)?;
        let (peer, replaced) = {
            let mut identities = handshake.identities.lock();
            handshake.recognize(&mut identities, hello, address)?;
            let mut conns = handshake.conns.lock();
            conns.last += 1;
            let number = conns.last;
            let replaced =
                conns.taken.insert(hello.from, PeerConn { number, outbox: outbox.clone() });
            (AcceptedPeer { from: hello.from, number }, replaced)
        };
        self.shared.counts.peers_welcomed.add(1);
        let at =
            NodeAddress { node: hello.from, epoch: hello.epoch, address: hello.address.clone() };
        handshake.host.address_book().met(&at);
        if let Some(PeerConn { outbox, .. }) = replaced {
            outbox.close("a newer connection of the same node has taken over");
        }
        Ok(peer)
    }

    /// Takes another node's messages.
    ///
    /// # Errors
    /// If that is not what nodes say: its connection ends.
    pub(crate) fn receive_from_peer(
        &self,
        peer: AcceptedPeer,
        messages: impl Iterator<Item = ToServer>,
    ) -> FsResult<()> {
        let Some(handshake) = &self.peer_handshake else { return Ok(()) };
        let current = handshake
            .conns
            .lock()
            .taken
            .get(&peer.from)
            .is_some_and(|conn| conn.number == peer.number);
        if !current {
            return Ok(());
        }
        let (mut envelopes, mut wrong) = (Vec::new(), Ok(()));
        for message in messages {
            match message {
                ToServer::Peer(bytes) => match Envelope::decode(&bytes) {
                    Ok(Envelope { from, message: Message::Tokens(message), .. })
                        if from == peer.from =>
                    {
                        self.tokens.receive(from, message, self.clock.now());
                    }
                    Ok(Envelope { from, message: Message::Addresses(mut nodes), .. })
                        if from == peer.from =>
                    {
                        // This node has its own address best; of others there are as many as the
                        // cluster has.
                        nodes.retain(|at| {
                            at.node != handshake.host.me() && handshake.belongs(at.node)
                        });
                        handshake.host.address_book().heard(&nodes);
                    }
                    Ok(envelope) if envelope.from == peer.from => envelopes.push(envelope),
                    Ok(_) => {
                        wrong = Err(FsError::new(libc::EPROTO, "a node speaks for itself only"));
                        break;
                    }
                    Err(why) => {
                        wrong = Err(FsError::because(
                            libc::EPROTO,
                            format!("a message of a node: {why}"),
                        ));
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
            handshake.host.receive_many(envelopes);
        }
        wrong
    }

    /// Another node's connection has ended.
    pub(crate) fn peer_left(&self, peer: AcceptedPeer) {
        if let Some(handshake) = &self.peer_handshake {
            handshake.conns.lock().taken.retain(|_, conn| conn.number != peer.number);
        }
    }

    pub(super) fn close_peers(&self) {
        let Some(handshake) = &self.peer_handshake else { return };
        for (_, conn) in std::mem::take(&mut handshake.conns.lock().taken) {
            conn.outbox.close("the node is shutting down");
        }
    }
}
