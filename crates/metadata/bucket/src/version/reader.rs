//! The rows of a version as they are stored, for a process that looks through them.

use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_engine::row_cache::{Bytes, Cursor};
use kestrel_types::key::KeyRef;

use super::{VersionManifest, VersionPlace, named, tree_of};
use crate::tree::{Merged, Tree};

/// Reads a version from the store. Only blocks of tables are kept, so its memory is bounded however
/// much is read.
pub struct VersionReader {
    tree: Arc<Tree>,
    name: Arc<str>,
}

/// Rows of a range, in the order of their keys.
pub struct VersionRows {
    rows: Merged<Arc<Tree>>,
    name: Arc<str>,
}

impl VersionReader {
    /// Reads nothing yet. Blocks of tables take `cache_bytes`, about.
    ///
    /// # Errors
    /// Those of the versions below, of a version that a job made.
    pub fn new(
        place: &VersionPlace,
        manifest: &VersionManifest,
        cache_bytes: u64,
    ) -> Result<Self, EngineError> {
        let tree = Arc::new(tree_of(place, manifest, cache_bytes)?);
        Ok(Self { tree, name: manifest.name.as_str().into() })
    }

    /// The value of a row, if it is there.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn get(&self, key: KeyRef<'_>) -> Result<Option<Bytes>, EngineError> {
        let mut bytes = Vec::with_capacity(64);
        key.encode_into(&mut bytes);
        let found = self.tree.get(&self.tree.view(), &bytes);
        found.map_err(|why| named(&self.name, why))
    }

    /// Rows from one encoded key on up to another one, which is not among them.
    pub fn rows(&self, from: &[u8], to: &[u8]) -> VersionRows {
        VersionRows { rows: Merged::over(&self.tree, (from, to)), name: self.name.clone() }
    }
}

impl VersionRows {
    /// The next row: its encoded key and its value.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn next_row(&mut self) -> Result<Option<(Bytes, Bytes)>, EngineError> {
        self.rows.next().map_err(|why| named(&self.name, why))
    }
}
