//! The versions below a job, as layers of a tree.

use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_types::hex::from_hex;

use super::aliases::read_aliases;
use super::manifest::{JobBase, LayerRecord};
use super::{NODE, VersionId, VersionPlace, damaged};
use crate::table::TableIdentity;
use crate::tree::Tree;
use crate::tree::layer::{Aliases, Layer, Mapping, NumberSpan, OwnsRow};

/// The layers of a version or job of this identity, which share the cache of `tree`; of their rows
/// those that `owns` tells, if it is there.
///
/// # Errors
/// The store's, and `Corrupt`.
pub fn layers_of(
    place: &VersionPlace,
    id: &VersionId,
    base: &JobBase,
    (tree, owns): (&Tree, Option<&OwnsRow>),
) -> Result<Arc<[Arc<Layer>]>, EngineError> {
    // A hollow layer has no rows.
    let has_rows = |layer: &&LayerRecord| !layer.runs.is_empty();
    let layers: Vec<LayerRecord> = base.layers.iter().filter(has_rows).cloned().collect();
    let aliases = match base.aliases {
        _ if layers.is_empty() => Aliases::default(),
        0 => Aliases::default(),
        count => read_aliases(place, id, count)?,
    };
    layers_with(place, (&layers, &base.numbers), &Arc::new(aliases), (tree, owns))
}

/// The same with these aliases, and `numbers` as they are read.
///
/// # Errors
/// `Corrupt`.
pub fn layers_with(
    place: &VersionPlace,
    (layers, numbers): (&[LayerRecord], &[NumberSpan]),
    aliases: &Arc<Aliases>,
    (tree, owns): (&Tree, Option<&OwnsRow>),
) -> Result<Arc<[Arc<Layer>]>, EngineError> {
    let layer = |(index, record): (usize, &LayerRecord)| {
        let bad = |why: &str| damaged(&format!("version {}: its manifest", record.name), why);
        let id = from_hex(&record.id).and_then(|id| VersionId::try_from(id).ok());
        let id = id.ok_or_else(|| bad("it has no identity"))?;
        let mapping = Mapping::new(&record.numbers, numbers, aliases.clone());
        let mapping = mapping.map_err(|why| bad(&why))?;
        let identity = TableIdentity { uuid: id, node: NODE, id: 0 };
        // The tree above has number 0, and there are at most a thousand layers.
        let number = index as u32 + 1;
        let prefix = VersionPlace::prefix_of(&id);
        let below = tree.sibling(number, place.store().clone(), prefix, identity);
        let runs = below.runs(&record.runs);
        below.change(|view| view.runs = runs);
        Ok(Arc::new(Layer::new(below, mapping, &record.name).only(owns.cloned())))
    };
    layers.iter().enumerate().map(layer).collect()
}
