//! Questions to the nodes of a volume one after the other, over connections that stay: for callers
//! with many questions.

use std::sync::Arc;
use std::time::Duration;

use kestrel_rpc::client::Remote;
use kestrel_types::placement::{Member, NodeId, PlacementMap};
use serde_json::Value;

use super::RemoteUrl;
use super::node_query::table_of;
use super::query::connect;
use crate::descriptor::Descriptor;
use crate::error::VolumeError;
use crate::storage::{Offer, Storage, StoreOptions};

/// What the URL of a volume leads to.
pub enum Reached {
    /// The node that serves the volume alone.
    One(SingleNode),
    /// The nodes that share it.
    Several(NodeFanOut),
}

/// The connection to the one node of a volume.
pub struct SingleNode {
    url: RemoteUrl,
    offer: Offer,
    remote: Arc<Remote>,
}

/// Connections to all nodes of a volume that several share.
pub struct NodeFanOut {
    /// The placement map.
    pub placement: PlacementMap,
    url: RemoteUrl,
    offer: Offer,
    links: Vec<(Member, Arc<Remote>)>,
}

impl NodeFanOut {
    /// Connects to all nodes of the volume that `url` names; `None` if it has only one.
    ///
    /// # Errors
    /// If one of them does not answer.
    pub fn connect(url: &str, who: &str) -> Result<Option<Self>, VolumeError> {
        Self::connect_to(url, who, |_, _| true)
    }

    /// Connects to all nodes of the volume that `url` names, whether they are several or one.
    ///
    /// # Errors
    /// If one of them does not answer.
    pub fn reach(url: &str, who: &str) -> Result<Reached, VolumeError> {
        Self::reach_those(url, who, |_, _| true)
    }

    /// Connects to those nodes of a table that are `wanted`, and to no others.
    ///
    /// # Errors
    /// If one of them does not answer.
    pub fn connect_to(
        url: &str,
        who: &str,
        wanted: impl Fn(&PlacementMap, NodeId) -> bool,
    ) -> Result<Option<Self>, VolumeError> {
        Ok(match Self::reach_those(url, who, wanted)? {
            Reached::One(_) => None,
            Reached::Several(panel) => Some(panel),
        })
    }

    fn reach_those(
        url: &str,
        who: &str,
        wanted: impl Fn(&PlacementMap, NodeId) -> bool,
    ) -> Result<Reached, VolumeError> {
        let url = RemoteUrl::parse(url)?;
        let first = connect(&url, who, crate::control::QUICK)?;
        let offer = first.offer.clone();
        let (placement, connected, _) = first.those(&wanted);
        let Some(placement) = placement else {
            let remote = first.remote.clone();
            return Ok(Reached::One(SingleNode { url, offer, remote }));
        };
        let (mut links, mut failed) = (Vec::new(), None);
        for (member, reached) in connected {
            match reached {
                Ok((remote, _)) => links.push((member, remote)),
                Err(why) => failed = failed.or(Some(why)),
            }
        }
        let panel = Self { placement, url, offer, links };
        match failed {
            None => Ok(Reached::Several(panel)),
            Some(why) => Err(why),
        }
    }

    /// The nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.links.iter().map(|(member, _)| member.id)
    }

    /// Asks a node. `limit` bounds how long its answer may take.
    ///
    /// # Errors
    /// What it said, or that it does not answer.
    pub fn ask(
        &self,
        node: NodeId,
        question: &Value,
        limit: Duration,
    ) -> Result<Value, VolumeError> {
        self.remote(node)?
            .admin(question, Some(limit), &mut |_| ())
            .map_err(|why| self.failed(node, &why))
    }

    /// Asks a node something that takes as long as it takes; `on_event` gets what it tells
    /// meanwhile.
    ///
    /// # Errors
    /// As for [`NodeFanOut::ask`].
    pub fn ask_at_length(
        &self,
        node: NodeId,
        question: &Value,
        on_event: &mut dyn FnMut(Value),
    ) -> Result<Value, VolumeError> {
        self.remote(node)?.admin(question, None, on_event).map_err(|why| self.failed(node, &why))
    }

    /// A node's present table.
    ///
    /// # Errors
    /// As for [`NodeFanOut::ask`].
    pub fn table_of(&self, node: NodeId) -> Result<PlacementMap, VolumeError> {
        table_of(self.remote(node)?).map_err(|why| self.failed(node, &why))
    }

    fn remote(&self, node: NodeId) -> Result<&Remote, VolumeError> {
        let link = self.links.iter().find(|(member, _)| member.id == node);
        let (_, remote) = link.ok_or_else(|| self.failed(node, &"there is no such node"))?;
        Ok(remote)
    }

    fn failed(&self, node: NodeId, why: &dyn std::fmt::Display) -> VolumeError {
        VolumeError::Io(format!("{}: node {node}: {why}", self.url))
    }

    /// What the volume is, as its nodes tell clients.
    ///
    /// # Errors
    /// If that is damaged.
    pub fn descriptor(&self) -> Result<Descriptor, VolumeError> {
        self.offer.descriptor(&self.url.to_string())
    }

    /// Opens the block store of the volume from here.
    ///
    /// # Errors
    /// As for [`Storage::open_offered`].
    pub fn open_storage(&self, options: &StoreOptions) -> Result<Storage, VolumeError> {
        Storage::open_offered(&self.offer, &self.url.to_string(), options)
    }
}

impl SingleNode {
    /// Asks the node. `limit` bounds how long its answer may take.
    ///
    /// # Errors
    /// What it said, or that it does not answer.
    pub fn ask(&self, question: &Value, limit: Duration) -> Result<Value, VolumeError> {
        let answer = self.remote.admin(question, Some(limit), &mut |_| ());
        answer.map_err(|why| VolumeError::Io(format!("{}: {why}", self.url)))
    }

    /// What the volume is, as the node tells clients.
    ///
    /// # Errors
    /// If that is damaged.
    pub fn descriptor(&self) -> Result<Descriptor, VolumeError> {
        self.offer.descriptor(&self.url.to_string())
    }
}

impl Drop for SingleNode {
    fn drop(&mut self) {
        self.remote.close();
    }
}

impl Drop for NodeFanOut {
    fn drop(&mut self) {
        self.links.iter().for_each(|(_, remote)| remote.close());
    }
}
