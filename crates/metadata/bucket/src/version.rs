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
//! | `registry` | [`VersionRegistry`]: names, made by conditional put |
//! | `engine` | [`VersionEngine`]: the rows of a version, as an engine |
//! | `reader` | [`VersionReader`]: the same rows as they are stored |

mod engine;
mod manifest;
mod reader;
mod registry;
#[cfg(test)]
mod tests;
mod writer;

pub use engine::VersionEngine;
pub use manifest::{
    INPUTS_MAX, NAME_BYTES_MAX, VersionFigures, VersionId, VersionInput, VersionManifest,
    VersionSource, check_name,
};
pub use reader::{VersionReader, VersionRows};
pub use registry::{VersionPlace, VersionRegistry};
pub use writer::VersionWriter;

pub use crate::tree::Loaded;

use std::sync::Arc;

use kestrel_engine::EngineError;

use crate::health::Health;
use crate::table::TableIdentity;
use crate::tree::Tree;

/// The name of the object by which the writer of a version says that it is still there, below that
/// of the version.
const WRITER: &str = "writer";

/// The node in the identity of tables of versions: they belong to none.
const NODE: u32 = 0;

/// The tables of a version, with a cache of their blocks of so many bytes.
fn tree_of(place: &VersionPlace, manifest: &VersionManifest, cache_bytes: u64) -> Tree {
    let identity = TableIdentity { uuid: manifest.id_bytes(), node: NODE, id: 0 };
    let store = (place.store().clone(), Arc::new(Health::default()));
    let tree = Tree::new(store, VersionPlace::prefix_of(&identity.uuid), identity, cache_bytes);
    let runs = tree.runs(&manifest.runs);
    tree.change(|view| view.runs = runs);
    tree
}

/// An error of reading a version, with its name.
fn named(name: &str, why: EngineError) -> EngineError {
    match why {
        EngineError::Io(why) => {
            EngineError::Io(format!("version {name}: a table is missing or cannot be read: {why}"))
        }
        EngineError::Corrupt(why) => EngineError::Corrupt(format!("version {name}: {why}")),
        other => other,
    }
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
