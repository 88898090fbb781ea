//! Making a volume.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kestrel_meta::engine::embedded::EmbeddedEngine;
use kestrel_meta::engine::{BeforeSync, Engine};
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
    let dir = volume_dir(url)?;
    let clock = SystemClock;
    let mut descriptor = Descriptor::new(new.settings, clock.now())?;
    let key_file = new.encrypt_with.as_deref();
    descriptor.coding = keys::new_coding(&descriptor.uuid_bytes(), new.compression, key_file, clock.now())?;
    fs::create_dir_all(&dir).map_err(|error| VolumeError::io("create", &dir, &error))?;
    let mut entries = fs::read_dir(&dir).map_err(|error| VolumeError::io("list", &dir, &error))?;
    let occupied = entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found"));
    if occupied && !new.force {
        return Err(VolumeError::NotEmpty(dir));
    }
    let lock = VolumeLock::take(&dir, "kestrel format")?;
    storage::check(&descriptor, options)?;
    if occupied {
        remove_old(&dir, options)?;
    }
    let made = make(&dir, &descriptor, options);
    if made.is_err() {
        // Nobody will ever open it; if its marker stays, a later format names it and says what to do.
        let _ = storage::erase(&dir, &descriptor, options);
        if !occupied {
            // All that is there is ours; a second try must find the place as the first one did.
            let _ = fs::remove_dir_all(dir.join(META_DIR));
            let _ = fs::remove_dir_all(dir.join(OBJECTS_DIR));
            let _ = fs::remove_file(dir.join(LOCK_FILE));
        }
    }
    drop(lock);
    made.map(|()| descriptor)
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

fn make(dir: &Path, descriptor: &Descriptor, options: &StoreOptions) -> Result<(), VolumeError> {
    let meta = dir.join(META_DIR);
    fs::create_dir_all(&meta).map_err(|error| VolumeError::io("create", &meta, &error))?;
    storage::create(dir, descriptor, options)?;
    let nothing: BeforeSync = Arc::new(|| Ok(()));
    let engine =
        EmbeddedEngine::open(&meta, descriptor.uuid_bytes(), fitting_options(dir), nothing, &mut |_| true)
            .map_err(|error| VolumeError::Engine(error.to_string()))?;
    // SAFETY: geteuid and getegid take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    Node::format(&engine, RootAttr { mode: 0o755, uid, gid }, SystemClock.now())
        .map_err(|error| VolumeError::Engine(format!("{}: {error}", dir.display())))?;
    engine.sync().map_err(|error| VolumeError::Engine(error.to_string()))?;
    drop(engine);
    // Last of all: with the descriptor there is a volume, complete.
    descriptor.write(dir)
}
