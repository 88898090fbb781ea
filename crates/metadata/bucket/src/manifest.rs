//! The manifest of a node: which tables there are, where its log begins, and which epoch writes
//! (`docs/format/bucket.md`, "The manifest").
//!
//! It is one object, which is replaced only by a process that has read the one before: so a process
//! that has been superseded changes nothing any more.

use kestrel_engine::EngineError;
use kestrel_types::hex::to_hex;
use serde::{Deserialize, Serialize};

use crate::Uuid;
use crate::document::{self, Document};
use crate::table::{TableRecord, is_run};
use crate::wire::corrupt;

/// Name of the object, below that of the node.
pub const MANIFEST: &str = "manifest";

/// What every manifest begins with.
const MAGIC: &str = "kestrelfs-metadata";

/// Version of the format of manifest and log.
pub const FORMAT: u32 = 1;

/// See the module's header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    magic: String,
    format: u32,
    /// Identity of the volume, 32 hexadecimal digits.
    pub volume: String,
    /// The node that owns these rows.
    pub node: u32,
    /// The epoch that writes.
    pub epoch: u64,
    /// Counts changes of the manifest.
    pub revision: u64,
    /// A number of the process that wrote it, which no other process has: so no two manifests are
    /// equal, and a process knows its own.
    pub writer: u64,
    /// The process of this epoch has ended as it was told to.
    pub closed: bool,
    /// Position of the last batch that is in the tables.
    pub position: u64,
    /// Number of the first log object that is not in the tables.
    pub log_first: u64,
    /// Log objects that stay: the first of each epoch that may have an earlier process behind it.
    pub fences: Vec<u64>,
    /// Sorted runs, the newest first; each of tables that do not overlap, in ascending order.
    pub runs: Vec<Vec<TableRecord>>,
    /// CRC-32C, eight hexadecimal digits, of this document with this field empty.
    checksum: String,
}

impl Document for Manifest {
    fn checksum(&mut self) -> &mut String {
        &mut self.checksum
    }
}

impl Manifest {
    /// That of a node without rows.
    pub fn new(uuid: &Uuid, node: u32) -> Self {
        Self {
            magic: MAGIC.into(),
            format: FORMAT,
            volume: to_hex(uuid),
            node,
            epoch: 0,
            revision: 0,
            writer: 0,
            closed: true,
            position: 0,
            log_first: 0,
            fences: Vec::new(),
            runs: Vec::new(),
            checksum: String::new(),
        }
    }

    /// The object.
    pub fn encode(&self) -> Vec<u8> {
        document::encode(self)
    }

    /// Reads an object.
    ///
    /// # Errors
    /// `Refused` for a newer format or what is not a manifest, `Corrupt` for a damaged one.
    pub fn decode(bytes: &[u8]) -> Result<Self, EngineError> {
        let bad = |why: &str| corrupt(MANIFEST, why);
        let version = document::head(bytes, &bad)?;
        if version.magic != MAGIC {
            return Err(EngineError::Refused(
                "metadata in a bucket: the object manifest is not one of KestrelFS: choose an \
                 empty prefix"
                    .into(),
            ));
        }
        if version.format != FORMAT {
            return Err(EngineError::Refused(format!(
                "metadata in a bucket: it has format {}, which is not known to this program; use a \
                 newer one",
                version.format
            )));
        }
        let found: Self = document::decode(bytes, &bad)?;
        if !found.runs.iter().all(|run| is_run(run)) {
            return Err(bad("its tables overlap, or have sizes that they cannot have"));
        }
        Ok(found)
    }

    /// Fails unless it is that of this volume's node.
    ///
    /// # Errors
    /// `Refused`.
    pub fn check(&self, uuid: &Uuid, node: u32, shown: &str) -> Result<(), EngineError> {
        if self.volume != to_hex(uuid) || self.node != node {
            return Err(EngineError::Refused(format!(
                "metadata in a bucket: {shown} belongs to node {} of the volume {}, not to node \
                 {node} of {}: another bucket or prefix is meant",
                self.node,
                self.volume,
                to_hex(uuid)
            )));
        }
        Ok(())
    }

    /// Whether both are one object.
    pub fn same_as(&self, other: &Self) -> bool {
        self.encode() == other.encode()
    }
}
