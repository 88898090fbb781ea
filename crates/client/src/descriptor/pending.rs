//! Changes of the settings of all nodes of a volume, which may be cut short between two of their
//! directories.
//!
//! First every directory gets the new descriptor beside the present one, under [`NAME`]. When all
//! have it, that is the decision: now each puts the new settings in place, and then they are taken
//! away again. So the next process knows: if not all have it and the descriptors agree, nothing has
//! been decided, or all is done; else it is to be finished. What a directory has for itself (which
//! node it is of, and its cluster) may have changed since, and stays.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use super::{Descriptor, DescriptorLock};
use crate::error::VolumeError;

/// Name of the descriptor to be.
pub(super) const NAME: &str = "kestrel.json.change";

/// Directories, and that nobody else changes their descriptors.
type Nodes<'a> = [(&'a Path, &'a DescriptorLock)];

fn read(dir: &Path) -> Result<Option<Descriptor>, VolumeError> {
    match Descriptor::read_file(dir, NAME) {
        Ok(next) => Ok(Some(next)),
        Err(VolumeError::NotAVolume(_)) => Ok(None),
        Err(why) => Err(why),
    }
}

fn remove(dir: &Path) -> Result<(), VolumeError> {
    let path = dir.join(NAME);
    let removed = match fs::remove_file(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        removed => removed.and_then(|()| File::open(dir)?.sync_all()),
    };
    removed.map_err(|error| VolumeError::io("remove", &path, error))
}

/// Decides that all get the settings of `changed`. If one does not take it, none has it.
pub(super) fn begin(nodes: &Nodes<'_>, changed: &Descriptor) -> Result<(), VolumeError> {
    let points = ["descriptor.change.written", "descriptor.change.renamed"];
    for (dir, lock) in nodes {
        if let Err(why) = changed.put(dir, NAME, lock, Some(points)) {
            // Where it cannot be taken away it is worth nothing, as not all have it.
            nodes.iter().for_each(|(dir, _)| drop(remove(dir)));
            return Err(why);
        }
    }
    Ok(())
}

/// Finishes what was decided and takes away what was not. A descriptor from before the change, if
/// one was finished.
pub(super) fn finish(nodes: &Nodes<'_>) -> Result<Option<Descriptor>, VolumeError> {
    let begun = nodes.iter().map(|(dir, _)| read(dir)).collect::<Result<Vec<_>, _>>()?;
    let Some(next) = begun.iter().flatten().next() else { return Ok(None) };
    let present =
        nodes.iter().map(|(dir, _)| Descriptor::read(dir)).collect::<Result<Vec<_>, _>>()?;
    let agree = present
        .iter()
        .all(|other| present.first().is_some_and(|first| first.has_settings_of(other)));
    let mut before = None;
    if !agree || begun.iter().all(Option::is_some) {
        if begun
            .iter()
            .flatten()
            .any(|other| !other.has_settings_of(next) || other.uuid != next.uuid)
        {
            let places: Vec<String> =
                nodes.iter().map(|(dir, _)| dir.join(NAME).display().to_string()).collect();
            return Err(VolumeError::Invalid(format!(
                "{}: they are of different changes; remove them, and restore kestrel.json of those \
                 that differ from a backup, so \
                 that all agree",
                places.join(", ")
            )));
        }
        for ((dir, lock), old) in nodes.iter().zip(present) {
            if old.has_settings_of(next) {
                continue;
            }
            let (settings, coding) = (next.settings.clone(), next.coding.clone());
            let new = Descriptor { settings, coding, ..old.clone() };
            new.replace(dir, lock).map_err(|why| {
                VolumeError::Invalid(format!(
                    "{why}; some nodes have the change: repeat it, and it is finished at all"
                ))
            })?;
            before.get_or_insert(old);
        }
    }
    nodes.iter().try_for_each(|(dir, _)| remove(dir))?;
    Ok(before)
}
