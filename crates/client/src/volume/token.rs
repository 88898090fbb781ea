//! What a node needs to join a cluster, in one line: `kestrel-cluster-1:` and the descriptor of the
//! first node, in hexadecimal.
//!
//! It holds the secret of the cluster. So it has no `Debug`, is shown on request only, and belongs
//! neither in logs nor in arguments of processes that stay.

use std::fmt;
use std::path::Path;

use kestrel_types::placement::{Member, NodeId, PlacementMap};

use crate::descriptor::{ClusterSection, Descriptor};
use crate::error::VolumeError;
use kestrel_types::hex::{from_hex, to_hex};

/// How a token begins; the number is its version.
const PREFIX: &str = "kestrel-cluster-1:";

/// How tokens of all versions begin.
const PREFIX_OF_ALL: &str = "kestrel-cluster-";

/// Longest token, bytes: that of the longest descriptor.
pub(crate) const TOKEN_BYTES_MAX: usize = 256 << 10;

/// See the module's header.
pub struct Token {
    descriptor: Descriptor,
    section: ClusterSection,
}

impl Token {
    /// The token of the cluster that this node belongs to: of all nodes the same.
    ///
    /// # Errors
    /// If the volume is not shared by several nodes.
    pub fn of(descriptor: &Descriptor) -> Result<Self, VolumeError> {
        let section = descriptor.cluster.clone().ok_or_else(|| {
            VolumeError::Invalid(format!(
                "the volume {:?} is kept by one node; `kestrel cluster init` makes one that \
                 several share",
                descriptor.settings.name
            ))
        })?;
        Ok(Self { descriptor: descriptor.clone(), section })
    }

    /// The token of one node that is to join: it has a number, and the members know of it.
    /// `placement` is their table, `counters` are those of the node that gave it the number,
    /// inodes' and objects': it begins there.
    ///
    /// # Errors
    /// If the table cannot take it.
    pub fn joining(
        &self,
        placement: &PlacementMap,
        member: Member,
        idle: bool,
        counters: [u64; 2],
    ) -> Result<Self, VolumeError> {
        let node = member.id;
        let placement = match placement.map.member(node) {
            // It has come to the table since.
            Some(_) => placement.clone(),
            None => placement
                .with_member(member, idle)
                .map_err(|why| VolumeError::Invalid(why.to_string()))?,
        };
        let section = self.section.clone().joining(node, &placement, counters);
        let descriptor = self.descriptor.clone().in_cluster(section.clone())?;
        Ok(Self { descriptor, section })
    }

    /// The node that it is for, if it is one that is to join a cluster there is.
    pub fn joins_as(&self) -> Option<NodeId> {
        self.section.joining.then_some(self.section.node)
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it is none, not whole, or of a newer version.
    pub fn parse(text: &str) -> Result<Self, VolumeError> {
        let bad = |why: &str| VolumeError::Invalid(format!("the token {why}"));
        let text = text.trim();
        if !text.starts_with(PREFIX_OF_ALL) {
            return Err(bad("is none; `kestrel cluster token DIR` shows that of a cluster"));
        }
        let Some(digits) = text.strip_prefix(PREFIX) else {
            return Err(bad(
                "is of a newer version; use the version of kestrel that formed the cluster",
            ));
        };
        if text.len() > TOKEN_BYTES_MAX {
            return Err(bad("is too long"));
        }
        let not_whole = || bad("is not whole; copy all of the line");
        let bytes = from_hex(digits).ok_or_else(not_whole)?;
        let loose = serde_json::from_slice(&bytes).map_err(|_| not_whole())?;
        Self::of(&Descriptor::from_json(loose, Path::new("the token"))?)
    }

    /// Name of the volume.
    pub fn name(&self) -> &str {
        &self.descriptor.settings.name
    }

    /// The placement map.
    ///
    /// # Errors
    /// If the table is damaged.
    pub fn placement(&self) -> Result<PlacementMap, VolumeError> {
        self.section.placement()
    }

    /// The descriptor of a node, of no directory yet.
    ///
    /// # Errors
    /// If the cluster has none with this number.
    fn of_node(&self, node: NodeId) -> Result<Descriptor, VolumeError> {
        self.descriptor.clone().in_cluster(ClusterSection { node, ..self.section.clone() }.unborn())
    }

    /// The descriptor of a new directory of a node.
    ///
    /// # Errors
    /// If the cluster has none with this number, or the system no randomness.
    pub(super) fn of_new_node(&self, node: NodeId) -> Result<Descriptor, VolumeError> {
        self.descriptor.clone().in_cluster(ClusterSection { node, ..self.section.clone() }.born()?)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.placement().ok().and_then(|table| Some(table.map.members().first()?.id));
        // One token, whichever node shows it; but one of a node that is to join is its own.
        let first = self.joins_as().or(first);
        let shown = first.and_then(|node| self.of_node(node).ok()).ok_or(fmt::Error)?;
        let json = serde_json::to_vec(&shown).map_err(|_| fmt::Error)?;
        write!(f, "{PREFIX}{}", to_hex(&json))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_told_apart() {
        for (text, why) in [
            ("", "is none"),
            ("kestrel://host/volume", "is none"),
            ("kestrel-cluster-2:00", "newer version"),
            ("kestrel-cluster-1:00", "not whole"),
            ("kestrel-cluster-1:7b7", "not whole"),
            ("kestrel-cluster-1:7b7d", "damaged"),
        ] {
            let error = Token::parse(text).err().unwrap().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
