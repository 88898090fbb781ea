//! Published versions: the rows of a tree at one moment, as sorted tables that never change, and
//! the registry of their names (`docs/format/versions.md`).
//!
//! A version is read from the store alone: no metadata server is asked for anything.
//! [`VersionWriter`] writes one, [`VersionRegistry`] has their names, [`VersionEngine`] reads one
//! as an engine, [`VersionReader`] row by row.
//!
//! | module | what it has |
//! | --- | --- |
//! | `manifest` | [`VersionManifest`]: what a version is, and which tables have its rows |
//! | `writer` | [`VersionWriter`]: rows in any order become runs of tables |
//! | `stack` | the versions below a job, as layers |
//! | `job` | [`JobRegistry`]: namespaces that are being made on versions |
//! | `merge` | [`merge()`]: one tree of several versions |
//! | `aliases` | directories that the inputs of a job have in common |
//! | `place` | [`VersionPlace`]: where their objects are |
//! | `registry` | [`VersionRegistry`]: names, made by conditional put |
//! | `engine` | [`VersionEngine`]: the rows of a version, as an engine |
//! | `reader` | [`VersionReader`]: the same rows as they are stored |
//! | `compact` | [`Compaction`]: the same rows as another version, of one run |

mod aliases;
mod compact;
mod engine;
mod job;
mod manifest;
mod merge;
mod place;
mod reader;
mod registry;
mod stack;
#[cfg(test)]
mod tests;
mod writer;

pub use crate::tree::layer::{NumberSpan, OwnsRow};
pub use aliases::{copy_aliases, write_aliases};
pub use compact::{
    Compaction, CompactionEnd, CompactionOrder, CompactionPlan, CompactionWorker, PARTITIONS_MAX,
    WorkEnd, remove_old_plans,
};
pub use engine::VersionEngine;
pub use job::{JobChanges, JobRecord, JobRegistry, JobServers, RankOf};
pub use manifest::{
    ChangesRecord, INPUTS_MAX, JobBase, LayerRecord, NAME_BYTES_MAX, NUMBERS_END, VersionFigures,
    VersionId, VersionInput, VersionManifest, VersionSource, check_name,
};
pub use merge::{Conflict, MergedInputs, SettledRow, merge};
pub use place::VersionPlace;
pub use reader::{StoredRows, VersionReader, VersionRows, VersionSink};
pub use registry::VersionRegistry;
pub use writer::VersionWriter;

pub use crate::tree::Loaded;

use std::sync::Arc;

use kestrel_engine::EngineError;

use crate::health::{self, Health};
use crate::table::TableIdentity;
use crate::tree::Tree;
use crate::tree::layer::named;
use kestrel_blockstore::named::NamedStore;

/// The name of the object by which the writer of a version says that it is still there, below that
/// of the version.
const WRITER: &str = "writer";

/// The node in the identity of tables of versions: they belong to none.
const NODE: u32 = 0;

/// The tables of a version and of those below it, with a cache of their blocks of so many bytes.
fn tree_of(
    place: &VersionPlace,
    manifest: &VersionManifest,
    cache_bytes: u64,
) -> Result<Tree, EngineError> {
    let identity = TableIdentity { uuid: manifest.id_bytes(), node: NODE, id: 0 };
    let store = (place.store().clone(), Arc::new(Health::default()));
    let tree = Tree::new(store, VersionPlace::prefix_of(&identity.uuid), identity, cache_bytes);
    let runs = tree.runs(&manifest.runs);
    tree.change(|view| view.runs = runs);
    if let Some(changes) = manifest.changes() {
        let layers = stack::layers_of(place, &identity.uuid, &changes.base, (&tree, None))?;
        tree.change(|view| view.layers = layers);
    }
    Ok(tree)
}

/// The error of a call to the store.
fn failed(store: &dyn NamedStore, why: &kestrel_blockstore::error::Error) -> EngineError {
    let text = || format!("{}: {why}", store.shown());
    match health::failed(store, why) {
        EngineError::NoSpace => EngineError::Io(format!("{}: the store is full", store.shown())),
        EngineError::Corrupt(_) => EngineError::Corrupt(text()),
        EngineError::Refused(_) => EngineError::Refused(text()),
        _ => EngineError::Io(text()),
    }
}

/// Whether an object that cannot be read has an identity in it, as hexadecimal digits.
fn has_identity(bytes: &[u8], id: &str) -> bool {
    bytes.windows(id.len()).any(|part| part == id.as_bytes())
}

/// An object of a version is damaged.
fn damaged(what: &str, why: &str) -> EngineError {
    EngineError::Corrupt(format!(
        "{what}: {why}; the object was damaged or changed in the store: bring it back from a copy \
         of the store, or publish the tree anew"
    ))
}

/// The version of a writer was removed meanwhile.
fn cleaned_up() -> EngineError {
    EngineError::Io(
        "its writer was taken for one that is gone, and the version was cleaned up; publish it \
         again"
            .into(),
    )
}
