//! What the descriptor of one node of a cluster says beside what those of all its nodes do.

use std::fmt;
use std::path::Path;

use kestrel_types::placement::{
    COUNTERS_MAX, NodeId, OBJECT_COUNTERS_MAX, PlacementMap, WORKERS_MAX,
};
use serde::{Deserialize, Serialize};

use super::secret::{SECRET_BYTES, authority_of, random};
use super::{Descriptor, Durability, FORMAT_VERSION, FORMAT_VERSION_CLUSTER};
use crate::error::VolumeError;
use crate::url::{ADDRESSES_MAX, Ca, RemoteUrl};
use kestrel_types::hex::{from_hex, to_hex};

/// Bytes of the word that a directory is born with.
const NODE_UUID_BYTES: usize = 8;

/// Metadata workers of each node of a new cluster. Machines may have fewer processors: an idle
/// worker costs nothing.
const WORKERS: u32 = 8;

/// The volume is served by several nodes; this is one of them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    /// Its number.
    pub node: NodeId,
    /// The placement map, hexadecimal.
    pub(crate) placement: String,
    /// By what the nodes know each other, hexadecimal. A process that knows it can speak as a node
    /// of the cluster.
    pub(crate) secret: String,
    /// The word that this node's directory was born with, hexadecimal: no other one has it, not one
    /// that is made anew for the same node. A token has none.
    #[serde(rename = "birth", default, skip_serializing_if = "Option::is_none")]
    pub(crate) node_uuid: Option<String>,
    /// Metadata workers of each node: equally many, on whatever machine it runs.
    pub workers: u32,
    /// The word in the directory with the volume's objects, if that is where they are: another
    /// directory under the same path does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects_word: Option<String>,
    /// The node was not in the cluster's table when this was written; the table here has it,
    /// without anything of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joining: bool,
    /// Where the counters of a node began that was added: for inodes and for objects. Numbers of
    /// lower counters may have been made under its number before there was such a node: they came
    /// with a dump.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) counters: Option<[u64; 2]>,
}

impl fmt::Debug for ClusterSection {
    /// Without the secret: what is debugged ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterSection").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ClusterSection {
    /// The first node of a new cluster with this table, and a new secret. Its directory is still to
    /// be born.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn new(node: NodeId, placement: &PlacementMap) -> Result<Self, VolumeError> {
        Ok(Self {
            node,
            placement: to_hex(&placement.encode()),
            secret: to_hex(&random::<SECRET_BYTES>()?),
            node_uuid: None,
            workers: WORKERS,
            objects_word: None,
            joining: false,
            counters: None,
        })
    }

    /// With the word of a directory that is made now.
    ///
    /// # Errors
    /// As [`ClusterSection::new`].
    pub(crate) fn born(self) -> Result<Self, VolumeError> {
        Ok(Self { node_uuid: Some(to_hex(&random::<NODE_UUID_BYTES>()?)), ..self })
    }

    /// As the cluster's tokens have it: of any node of that number, not of one directory.
    pub(crate) fn unborn(self) -> Self {
        Self { node_uuid: None, ..self }
    }

    /// Of a node that is to join a cluster with this table, which the table names, and to count
    /// from there on.
    pub(crate) fn joining(
        self,
        node: NodeId,
        placement: &PlacementMap,
        counters: [u64; 2],
    ) -> Self {
        let placement = to_hex(&placement.encode());
        Self { node, placement, node_uuid: None, joining: true, counters: Some(counters), ..self }
    }

    /// The word that the directory was born with.
    ///
    /// # Errors
    /// If it has none, or one of another length.
    pub fn node_uuid(&self) -> Result<u64, VolumeError> {
        let Some(digits) = &self.node_uuid else {
            return Err(VolumeError::Invalid(
                "the directory has no word to tell it from others of the same node: it was made \
                 before nodes had one, or its \
                 descriptor was made by hand; form the cluster anew"
                    .into(),
            ));
        };
        let bytes =
            from_hex(digits).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        bytes.ok_or_else(|| {
            VolumeError::Invalid(
                "the word of the node's directory does not have 16 hexadecimal digits".into(),
            )
        })
    }

    /// The placement map.
    ///
    /// # Errors
    /// If the table is damaged, or a newer version of KestrelFS wrote it.
    pub fn placement(&self) -> Result<PlacementMap, VolumeError> {
        let bytes = from_hex(&self.placement)
            .ok_or_else(|| VolumeError::Invalid("the placement table is not hexadecimal".into()))?;
        PlacementMap::decode(&bytes).map_err(|why| VolumeError::Invalid(why.to_string()))
    }

    /// URL of the volume, with what tells its nodes from others if they are on other machines.
    ///
    /// # Errors
    /// As [`ClusterSection::placement`].
    pub fn url(&self, name: &str) -> Result<String, VolumeError> {
        let placement = self.placement()?;
        // A URL has a bound, and one node that is there is enough to find the others.
        let members = placement.map.members().iter().take(ADDRESSES_MAX);
        let addresses: Vec<String> = members.map(|member| member.address.clone()).collect();
        let url = RemoteUrl::new(addresses, name);
        if url.is_loopback() {
            return Ok(url.to_string());
        }
        let fingerprint = authority_of(&self.secret()?)?.fingerprint();
        Ok(RemoteUrl { ca: Some(Ca::Fingerprint(fingerprint)), ..url }.to_string())
    }

    /// The placement map as an offer to clients carries it.
    pub fn placement_hex(&self) -> &str {
        &self.placement
    }

    /// By what the nodes know each other.
    ///
    /// # Errors
    /// If it has another length.
    pub fn secret(&self) -> Result<[u8; SECRET_BYTES], VolumeError> {
        let bytes = from_hex(&self.secret).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| {
            VolumeError::Invalid(
                "the secret of the cluster does not have 32 hexadecimal digits".into(),
            )
        })
    }

    /// Checks what it says.
    ///
    /// # Errors
    /// Names what is wrong.
    pub(super) fn check(&self) -> Result<(), VolumeError> {
        let placement = self.placement()?;
        self.secret()?;
        if self.node_uuid.is_some() {
            self.node_uuid()?;
        }
        if !(1..=WORKERS_MAX as u32).contains(&self.workers) {
            return Err(VolumeError::Invalid(format!(
                "the cluster's nodes have {} workers; there are 1 to {WORKERS_MAX}",
                self.workers
            )));
        }
        if self.counters.is_some_and(|[inodes, objects]| {
            inodes >= COUNTERS_MAX || objects >= OBJECT_COUNTERS_MAX
        }) {
            return Err(VolumeError::Invalid(
                "the node's counters begin above all numbers that there are".into(),
            ));
        }
        match placement.map.member(self.node) {
            Some(_) => Ok(()),
            None => Err(VolumeError::Invalid(format!(
                "node {} is not one of the cluster's nodes",
                self.node
            ))),
        }
    }
}

impl Descriptor {
    /// Makes this the descriptor of one node of a cluster.
    ///
    /// # Errors
    /// If a volume with these settings cannot have several nodes.
    pub fn in_cluster(mut self, section: ClusterSection) -> Result<Self, VolumeError> {
        self.format_version = FORMAT_VERSION_CLUSTER;
        self.cluster = Some(section);
        self.check()?;
        self.checksum = self.expected_checksum()?;
        Ok(self)
    }

    /// Refuses one node's part of the volume, which lies at `dir`.
    ///
    /// # Errors
    /// Says what to use instead.
    pub fn is_whole(&self, dir: &Path) -> Result<(), VolumeError> {
        let Some(section) = &self.cluster else { return Ok(()) };
        let url = section.url(&self.settings.name)?;
        Err(VolumeError::OneOfSeveral { dir: dir.into(), node: section.node, url })
    }

    /// The same of a volume that one node has, without a secret and wherever its metadata is: what
    /// a dump says of the volume, whichever volume it is loaded into.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn of_one(&self) -> Result<Self, VolumeError> {
        let mut one = Self {
            cluster: None,
            secret: None,
            metadata: None,
            registry: None,
            format_version: FORMAT_VERSION,
            ..self.clone()
        };
        one.forget_metadata_required();
        one.checksum = one.expected_checksum()?;
        Ok(one)
    }

    /// The same for clients: without what only nodes may know. Of the version that programs refuse
    /// which know nothing of clusters.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn for_clients(&self) -> Result<Self, VolumeError> {
        let mut shown =
            Self { cluster: None, secret: None, metadata: None, registry: None, ..self.clone() };
        shown.forget_metadata_required();
        shown.checksum = shown.expected_checksum()?;
        Ok(shown)
    }

    /// What is to be known of metadata in a bucket is not for clients and dumps.
    fn forget_metadata_required(&mut self) {
        let coding = self.coding.as_mut();
        if let Some(encryption) = coding.and_then(|coding| coding.encryption.as_mut()) {
            encryption.metadata_required = false;
        }
    }

    /// Checks what it says of a cluster. An offer to clients has no section.
    pub(super) fn check_cluster(&self, is_offered: bool) -> Result<(), VolumeError> {
        let is_of_cluster = self.format_version == FORMAT_VERSION_CLUSTER;
        match &self.cluster {
            None if !is_of_cluster || is_offered => Ok(()),
            Some(section) if is_of_cluster && !is_offered => {
                section.check()?;
                // Processes of a job sync all of its servers.
                if self.settings.durability == Durability::Commit || self.job.is_some() {
                    return Ok(());
                }
                Err(VolumeError::Invalid(
                    "a volume that several nodes share has durability commit: what a node has told \
                     the others must not be \
                     lost with its machine"
                        .into(),
                ))
            }
            _ => Err(VolumeError::Invalid(
                "its section \"cluster\" and its format version do not belong together".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::super::{COPY_NAME, FILE_NAME, RowsAt, Settings};
    use super::*;
    use kestrel_types::placement::{Exceptions, Member, SlotMap};

    fn placement() -> PlacementMap {
        let member = |id| Member { id, address: format!("node-{id}:9440") };
        let map = SlotMap::even(vec![member(1), member(2), member(3)]).unwrap();
        PlacementMap::new(map, Exceptions::default())
    }

    fn of_node(node: NodeId) -> Result<Descriptor, VolumeError> {
        let settings = Settings { durability: Durability::Commit, ..settings() };
        Descriptor::new(settings, 5)?.in_cluster(ClusterSection::new(node, &placement())?)
    }

    /// The descriptor of a node reads back as it was written, and has a version of its own.
    #[test]
    fn descriptor_of_node_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let written = of_node(2).unwrap();
        written.write(dir.path()).unwrap();
        let read = Descriptor::read(dir.path()).unwrap();
        assert_eq!((read.format_version, &read), (FORMAT_VERSION_CLUSTER, &written));
        let section = read.cluster.unwrap();
        assert_eq!((section.node, section.placement().unwrap()), (2, placement()));
        let digits = to_hex(&section.secret().unwrap());
        assert!(!format!("{section:?}").contains(&digits), "{section:?}");
        let path = dir.path().join(FILE_NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        let old = "\"format_version\": 1";
        std::fs::remove_file(dir.path().join(COPY_NAME)).unwrap();
        std::fs::write(&path, text.replace("\"format_version\": 2", old)).unwrap();
        assert!(Descriptor::read(dir.path()).is_err());
    }

    /// The descriptor that clients get does not hold the secret, and old clients refuse the volume.
    #[test]
    fn descriptor_for_clients_without_secret() {
        let descriptor = of_node(1).unwrap();
        let offered = serde_json::to_value(descriptor.for_clients().unwrap()).unwrap();
        assert_eq!((offered["format_version"].as_u64(), offered.get("cluster")), (Some(2), None));
        let seen = Descriptor::from_offer(offered.clone(), Path::new("server")).unwrap();
        assert_eq!(seen.uuid, descriptor.uuid);
        assert!(
            Descriptor::from_json(offered, Path::new("kestrel.json")).is_err(),
            "no node has such a file"
        );
    }

    #[test]
    fn a_registry_has_the_rows_of_who_only_coordinates() {
        let url = Some("etcd://me:s3cret@h1,h2/photos".to_string());
        let idle = Member { id: 4, address: "node-4:9440".into() };
        let table = placement().with_member(idle, true).unwrap();
        let settings = Settings { durability: Durability::Commit, ..settings() };
        let of_node = |node| {
            let new =
                Descriptor::new(settings.clone(), 5).unwrap().with_registry(url.clone()).unwrap();
            new.in_cluster(ClusterSection { node, ..ClusterSection::new(1, &table).unwrap() })
                .unwrap()
        };
        assert!(matches!(of_node(1).rows().unwrap(), RowsAt::Directory));
        let RowsAt::Etcd(place) = of_node(4).rows().unwrap() else { panic!("not in the registry") };
        assert_eq!(place.shown(), "etcd://me@h1,h2/photos");
        // Neither clients nor dumps are told.
        assert_eq!(of_node(4).for_clients().unwrap().registry, None);
        assert_eq!(of_node(4).of_one().unwrap().registry, None);
        let dir = tempfile::tempdir().unwrap();
        let written = of_node(4);
        written.write(dir.path()).unwrap();
        assert_eq!(Descriptor::read(dir.path()).unwrap(), written);
        // A volume of one node has none.
        Descriptor::new(settings.clone(), 5)
            .unwrap()
            .with_registry(url.clone())
            .unwrap()
            .write(dir.path())
            .unwrap();
        assert!(Descriptor::read(dir.path()).unwrap_err().to_string().contains("registry"));
    }

    #[test]
    fn what_makes_no_node_is_refused() {
        assert!(of_node(4).unwrap_err().to_string().contains("node 4"));
        let lazy = Descriptor::new(settings(), 5).unwrap();
        let section = ClusterSection::new(1, &placement()).unwrap();
        assert!(lazy.in_cluster(section).unwrap_err().to_string().contains("durability commit"));
    }
}
