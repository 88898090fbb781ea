//! How a file is stored, or what a directory holds.

use kestrel_admin::info::{self, InfoError};
use kestrel_blockstore::frame::stored_window;
use kestrel_client::storage::Storage;
use kestrel_engine::Engine;
use kestrel_types::inode::Inode;
use kestrel_types::range::Range;
use serde_json::Value;

use crate::ask::path_bytes;
use crate::nodes::engine::NodesEngine;
use crate::nodes::{ClusterNodes, tree_sums};

/// What several nodes know of an inode.
pub fn of_nodes(
    nodes: &dyn ClusterNodes,
    engine: &NodesEngine<'_>,
    inode: &Inode,
) -> Result<Value, InfoError> {
    info::describe_by(engine, inode, &mut |dir| tree_sums(nodes, dir))
}

/// The inode that a question names.
///
/// # Errors
/// In words.
pub fn asked(engine: &dyn Engine, question: &Value) -> Result<Inode, String> {
    let number = |name: &str| question[name].as_u64();
    let bytes = |name: &str| path_bytes(&question[name]);
    let found = match (number("dir"), number("parent").zip(bytes("name")), bytes("path")) {
        (Some(dir), ..) => info::find_dir(engine, dir),
        (_, Some((parent, name)), _) => info::find(engine, parent, &name),
        (.., Some(path)) => info::find_path(engine, &path),
        _ => return Err("the question names neither a directory nor an entry".into()),
    };
    found.map_err(|why| why.to_string())
}

/// Answers a question about what several nodes share.
///
/// # Errors
/// In words.
pub fn answer_of_nodes(nodes: &dyn ClusterNodes, question: &Value) -> Result<Value, String> {
    let engine = NodesEngine::new(nodes)?;
    let inode = asked(&engine, question)?;
    of_nodes(nodes, &engine, &inode).map_err(|why| why.to_string())
}

/// Adds to each extent where its object lies and how much of it the disk cache has, if there is
/// one.
pub fn tell_places(found: &mut Value, storage: &Storage) {
    let near = storage.store.near();
    for extent in found["extents"].as_array_mut().into_iter().flatten() {
        let field = |name: &str| extent[name].as_u64().and_then(|value| u32::try_from(value).ok());
        let Some(object) = extent["object"].as_u64() else { continue };
        let place = storage.place_of(object);
        if let (Some(near), Some(offset), Some(range_len), Some(skip), Some(len)) =
            (near, field("object_offset"), field("range_len"), field("skip"), field("len"))
        {
            let (at, stored) = stored_window(&Range { object, offset, len: range_len }, skip, len);
            extent["cached_bytes"] = near.holds(object, at, stored).min(u64::from(len)).into();
        }
        extent["place"] = place.into();
    }
}
