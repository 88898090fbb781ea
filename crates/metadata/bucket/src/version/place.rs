//! Where the objects of a volume's versions are.

use std::sync::Arc;

use kestrel_blockstore::named::NamedStore;
use kestrel_types::hex::to_hex;

use super::VersionId;
use crate::table::TABLES;

/// Where the tables are.
pub(super) const DATA: &str = "data/";

/// The place of a volume's versions in its store.
#[derive(Clone)]
pub struct VersionPlace {
    store: Arc<dyn NamedStore>,
}

impl VersionPlace {
    /// The place in this store, which has nothing else.
    pub fn new(store: Arc<dyn NamedStore>) -> Self {
        Self { store }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn NamedStore> {
        &self.store
    }

    /// What the names of a version's tables begin with, before their numbers as hexadecimal digits.
    pub fn tables_of(id: &VersionId) -> String {
        Self::part_of(id, TABLES)
    }

    /// What all objects of a version but its name begin with.
    pub(super) fn prefix_of(id: &VersionId) -> String {
        format!("{DATA}{}/", to_hex(id))
    }

    /// The name of an object of a version.
    pub(super) fn part_of(id: &VersionId, part: &str) -> String {
        format!("{}{part}", Self::prefix_of(id))
    }
}
