//! Published versions: the rows of a tree at one moment, as sorted tables that never change, and
//! the registry of their names (`docs/format/versions.md`).
//!
//! A version is read from the store alone: no metadata server is asked for anything.
//! [`VersionWriter`] writes one, [`VersionRegistry`] has their names, [`VersionEngine`] reads one
//! as an engine.
//!
//! | module | what it has |
//! | --- | --- |
//! | `manifest` | [`VersionManifest`]: what a version is, and which tables have its rows |
//! | `writer` | [`VersionWriter`]: rows in any order become runs of tables |
//! | `registry` | [`VersionRegistry`]: names, made by conditional put |
//! | `engine` | [`VersionEngine`]: the rows of a version |

mod engine;
mod manifest;
mod registry;
#[cfg(test)]
mod tests;
mod writer;

pub use engine::VersionEngine;
pub use manifest::{
    INPUTS_MAX, NAME_BYTES_MAX, VersionFigures, VersionId, VersionInput, VersionManifest,
    VersionSource, check_name,
};
pub use registry::{VersionPlace, VersionRegistry};
pub use writer::VersionWriter;

use kestrel_engine::EngineError;

/// The name of the object by which the writer of a version says that it is still there, below that
/// of the version.
const WRITER: &str = "writer";

/// The node in the identity of tables of versions: they belong to none.
const NODE: u32 = 0;

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
