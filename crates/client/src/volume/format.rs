//! Making a volume.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kestrel_meta::engine::embedded::EmbeddedEngine;
use kestrel_meta::engine::{BeforeSync, Engine};
use kestrel_meta::member::Member;
use kestrel_meta::node::{Node, RootAttr};
use kestrel_types::clock::{Clock, SystemClock};

use super::lock::LOCK_FILE;
use super::sizes::fitting_options;
use super::{META_DIR, VolumeLock};
use crate::descriptor::{Descriptor, FILE_NAME, Settings, volume_dir};
use crate::error::VolumeError;
use crate::keys;
use crate::storage::{self, OBJECTS_DIR, StoreOptions};

/// What a new volume shall be.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Its settings.
    pub settings: Settings,
    /// How objects are compressed.
    pub compression: kestrel_data::store::coded::Compression,
    /// File with the key that encrypts them; none: they are not encrypted.
    pub encrypt_with: Option<PathBuf>,
    /// Take the place of a volume that is there.
    pub force: bool,
}

/// Creates a volume in a directory that is missing or empty; with `force`, replaces a volume that is there.
///
/// # Errors
/// Names what is in the way. Nothing of an existing volume is touched before all checks have passed.
pub fn format(url: &str, new: NewVolume, options: &StoreOptions) -> Result<Descriptor, VolumeError> {
    format_as(url, new, options, &|_, descriptor| Ok(descriptor))
}

/// The same, where `complete` turns the descriptor into the one that is written once the place for objects is there; it gets
/// the directory.
pub(super) fn format_as(
    url: &str,
    new: NewVolume,
    options: &StoreOptions,
    complete: &dyn Fn(&Path, Descriptor) -> Result<Descriptor, VolumeError>,
) -> Result<Descriptor, VolumeError> {
    let dir = volume_dir(url)?;
    let clock = SystemClock;
    let mut descriptor = Descriptor::new(new.settings, clock.now())?;
    let key_file = new.encrypt_with.as_deref();
    descriptor.coding = keys::new_coding(&descriptor.uuid_bytes(), new.compression, key_file, clock.now())?;
    let (lock, occupied) = occupy(&dir, new.force)?;
    storage::check(&descriptor, options)?;
    if occupied {
        remove_old(&dir, options)?;
    }
    let made = storage::create(&dir, &descriptor, options)
        .and_then(|()| complete(&dir, descriptor.clone()))
        .and_then(|complete| make(&dir, &complete).map(|()| complete));
    if made.is_err() {
        // Nobody will ever open it; if its marker stays, a later format names it and says what to do.
        let _ = storage::erase(&dir, &descriptor, options);
        if !occupied {
            clear(&dir);
        }
    }
    drop(lock);
    made
}

/// Makes the directory and takes its lock; whether it holds something, which only `force` permits.
pub(super) fn occupy(dir: &Path, force: bool) -> Result<(VolumeLock, bool), VolumeError> {
    fs::create_dir_all(dir).map_err(|error| VolumeError::io("create", dir, &error))?;
    let mut entries = fs::read_dir(dir).map_err(|error| VolumeError::io("list", dir, &error))?;
    let occupied = entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found"));
    if occupied && !force {
        return Err(VolumeError::NotEmpty(dir.into()));
    }
    if occupied && let Ok(Descriptor { cluster: Some(section), .. }) = Descriptor::read(dir) {
        return Err(VolumeError::Invalid(format!(
            "{}: node {} of a cluster; what it holds is part of a volume. To give the volume up, remove the directories of all \
             its nodes and its objects",
            dir.display(),
            section.node
        )));
    }
    Ok((VolumeLock::take(dir, "kestrel format")?, occupied))
}

/// Removes what was made of a volume in a directory that was empty: a second try must find the place as the first one did.
pub(super) fn clear(dir: &Path) {
    let _ = fs::remove_dir_all(dir.join(META_DIR));
    let _ = fs::remove_dir_all(dir.join(OBJECTS_DIR));
    let _ = fs::remove_file(dir.join(LOCK_FILE));
}

/// Removes what a volume consists of and nothing else; the descriptor first: a half-removed volume is none.
fn remove_old(dir: &Path, options: &StoreOptions) -> Result<(), VolumeError> {
    let old = Descriptor::read(dir).ok();
    remove(&dir.join(FILE_NAME), |path| fs::remove_file(path))?;
    if let Some(old) = old {
        storage::erase(dir, &old, options)?;
    }
    remove(&dir.join(META_DIR), |path| fs::remove_dir_all(path))?;
    remove(&dir.join(OBJECTS_DIR), |path| fs::remove_dir_all(path))
}

fn remove(path: &Path, how: impl Fn(&Path) -> std::io::Result<()>) -> Result<(), VolumeError> {
    match how(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(VolumeError::io("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Makes the metadata, and the descriptor last of all: with it there is a volume, complete.
pub(super) fn make(dir: &Path, descriptor: &Descriptor) -> Result<(), VolumeError> {
    let meta = dir.join(META_DIR);
    fs::create_dir_all(&meta).map_err(|error| VolumeError::io("create", &meta, &error))?;
    let nothing: BeforeSync = Arc::new(|| Ok(()));
    let engine =
        EmbeddedEngine::open(&meta, descriptor.uuid_bytes(), fitting_options(dir), nothing, &mut |_| true)
            .map_err(|error| VolumeError::Engine(error.to_string()))?;
    // SAFETY: geteuid and getegid take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let root = RootAttr { mode: 0o755, uid, gid };
    let formatted = match &descriptor.cluster {
        // One root for all nodes: each writes those of its rows that are its own.
        Some(section) => {
            Member::format(&engine, root, descriptor.created, section.node, section.placement()?)
                .and_then(|()| section.counters.map_or(Ok(()), |from| Member::count_from(&engine, from)))
        }
        None => Node::format(&engine, root, SystemClock.now()),
    };
    formatted.map_err(|error| VolumeError::Engine(format!("{}: {error}", dir.display())))?;
    engine.sync().map_err(|error| VolumeError::Engine(error.to_string()))?;
    drop(engine);
    descriptor.write(dir)
}
