//! A new volume from what is intact of a damaged one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kestrel_admin::dump::load::keep_clear_of;
use kestrel_admin::salvage::{LostPath, name_lost};
use kestrel_engine::embedded::EmbeddedEngine;
use kestrel_engine::embedded::salvage::{salvage as salvage_rows, scratch_in};
use kestrel_engine::{BatchKind, BeforeSync, Engine, EngineError};

use super::format::{clear, occupy};
use super::{META_DIR, VolumeLock};
use crate::descriptor::{Descriptor, RowsAt};
use crate::disk_space::fitting_options;
use crate::error::VolumeError;
use crate::storage::{OBJECTS_DIR, Storage, StoreOptions};

/// What a salvage recovered and what it did not.
#[derive(Debug)]
pub struct Salvaged {
    /// What the volume is; the new one's descriptor is the same.
    pub descriptor: Descriptor,
    /// The new volume's directory.
    pub dir: PathBuf,
    /// Rows and changes recovered.
    pub rows: u64,
    /// What could not be recovered.
    pub lost: Vec<LostPath>,
}

/// Makes a volume in the directory `to`, which must be missing or empty, from every intact row of
/// the volume in `from`, of which nothing is changed. Objects in the directory of the old volume
/// become the new one's by hard links, or as copies; objects elsewhere are the same for both, so
/// only one of the two may be used from then on. The new volume is to be repaired before it is
/// used: sums and links may lack what was lost. `progress` gets the number of rows so far.
///
/// # Errors
/// If the descriptor is damaged, the metadata is in a database, the volume is in use, or the disk
/// takes no more. What was made in `to` is removed then.
pub fn salvage(
    from: &Path,
    to: &Path,
    options: &StoreOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<Salvaged, VolumeError> {
    let descriptor = Descriptor::read(from)?;
    if !matches!(descriptor.rows()?, RowsAt::Directory) {
        let why = "its metadata is in a database or bucket: restore it there, or load a dump of \
                   the volume";
        return Err(VolumeError::Invalid(format!("{}: {why}", from.display())));
    }
    let _old = VolumeLock::take(from, "kestrel fsck --salvage")?;
    let (lock, _) = occupy(to, false).map_err(|why| match why {
        VolumeError::NotEmpty(dir) => VolumeError::Invalid(format!(
            "{}: not empty; name a directory for the new volume that is",
            dir.display()
        )),
        why => why,
    })?;
    let made = make((from, to), &descriptor, options, progress);
    let _ = fs::remove_dir_all(scratch_in(to));
    if made.is_err() {
        clear(to);
    }
    drop(lock);
    let (rows, lost) = made?;
    Ok(Salvaged { descriptor, dir: to.to_path_buf(), rows, lost })
}

fn make(
    (from, to): (&Path, &Path),
    descriptor: &Descriptor,
    options: &StoreOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, Vec<LostPath>), VolumeError> {
    let (meta, scratch) = (to.join(META_DIR), scratch_in(to));
    for dir in [&meta, &scratch] {
        fs::create_dir_all(dir).map_err(|error| VolumeError::io("create", dir, error))?;
    }
    let uuid = descriptor.uuid_bytes();
    let nothing: BeforeSync = Arc::new(|| Ok(()));
    let engine = EmbeddedEngine::open(&meta, uuid, fitting_options(to), nothing, &mut |_| true)
        .map_err(|why| VolumeError::engine_at(from, why))?;
    let mut given = 0;
    let mut recovered = |batch: Vec<_>| -> Result<(), EngineError> {
        given += batch.len() as u64;
        progress(given);
        if batch.is_empty() { Ok(()) } else { engine.commit(BatchKind::Growing, batch).map(drop) }
    };
    let mut lost = Vec::new();
    let rows = salvage_rows(&from.join(META_DIR), uuid, &scratch, &mut recovered, &mut |loss| {
        lost.push(loss)
    })
    .map_err(|why| VolumeError::engine_at(from, why))?;
    if descriptor.settings.storage.is_none() {
        link_tree(&from.join(OBJECTS_DIR), &to.join(OBJECTS_DIR))?;
    }
    let storage = Storage::open(to, descriptor, options)?;
    keep_clear_of(&engine, &*storage.store).map_err(|why| VolumeError::engine_at(from, why))?;
    let lost = name_lost(&engine, &lost).map_err(|why| VolumeError::engine_at(from, why))?;
    engine.close().map_err(|why| VolumeError::engine_at(from, why))?;
    // Last: with it there is a volume.
    descriptor.write(to)?;
    Ok((rows, lost))
}

/// Gives every file below `from` a second name below `to`, or copies it if that is another file
/// system. An object never changes once it is written, so both volumes may have it.
fn link_tree(from: &Path, to: &Path) -> Result<(), VolumeError> {
    fs::create_dir_all(to).map_err(|error| VolumeError::io("create", to, error))?;
    let listing = fs::read_dir(from).map_err(|error| VolumeError::io("list", from, error))?;
    for entry in listing {
        let entry = entry.map_err(|error| VolumeError::io("list", from, error))?;
        let (old, new) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(|error| VolumeError::io("read", &old, error))?;
        if kind.is_dir() {
            link_tree(&old, &new)?;
        } else if fs::hard_link(&old, &new).is_err() {
            fs::copy(&old, &new)
                .and_then(|_| fs::File::open(&new)?.sync_all())
                .map_err(|error| VolumeError::io("copy", &old, error))?;
        }
    }
    fs::File::open(to)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| VolumeError::io("sync", to, error))
}
