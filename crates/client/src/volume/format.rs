//! Making a volume.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kestrel_blockstore::store::coded::Compression;
use kestrel_cluster::{ClusterNode, ownership};
use kestrel_engine::Engine;
use kestrel_meta::node::{Node, RootAttr};
use kestrel_types::clock::{Clock, SystemClock};

use super::lock::LOCK_FILE;
use super::{META_DIR, VolumeLock, contents, engine};
use crate::accesses::AtimeMode;
use crate::descriptor::{COPY_NAME, Descriptor, Durability, FILE_NAME, Settings, directory_of};
use crate::error::VolumeError;
use crate::keys;
use crate::storage::{self, OBJECTS_DIR, StoreOptions};

/// What a new volume shall be.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Its settings.
    pub settings: Settings,
    /// How objects are compressed.
    pub compression: Compression,
    /// Where metadata goes: URL of a database or a bucket; none: into the volume's directory.
    pub metadata: Option<String>,
    /// Where the metadata of nodes goes that only coordinate: URL of an etcd; none: as that of the
    /// others. Of clusters only.
    pub registry: Option<String>,
    /// File with the key that encrypts them; none: they are not encrypted.
    pub encrypt_with: Option<PathBuf>,
    /// Take the place of a volume that is there.
    pub force: bool,
}

impl NewVolume {
    /// A volume that keeps its files in its directory as they are, with the sizes and times that
    /// volumes have unless told otherwise.
    pub fn plain(name: &str, durability: Durability) -> Self {
        let settings = Settings {
            name: name.into(),
            storage: None,
            block_bytes: 4 << 20,
            inline_max: 4096,
            durability,
            grace_seconds: 60,
            atime: AtimeMode::None,
        };
        Self {
            settings,
            compression: Compression::None,
            encrypt_with: None,
            metadata: None,
            registry: None,
            force: false,
        }
    }
}

/// See [`super::format()`]; in a directory.
pub(super) fn format_directory(
    url: &str,
    new: NewVolume,
    options: &StoreOptions,
) -> Result<Descriptor, VolumeError> {
    format_as(url, new, options, &|_, descriptor| Ok(descriptor))
}

/// The same, where `complete` turns the descriptor into the one that is written once the place for
/// objects is there; it gets the directory.
pub(super) fn format_as(
    url: &str,
    new: NewVolume,
    options: &StoreOptions,
    complete: &dyn Fn(&Path, Descriptor) -> Result<Descriptor, VolumeError>,
) -> Result<Descriptor, VolumeError> {
    let dir = directory_of(url)?;
    let clock = SystemClock;
    let mut settings = new.settings;
    if new.metadata.is_some() {
        // What is not in the database or bucket would be lost with the process.
        settings.durability = Durability::Commit;
    }
    let mut descriptor = Descriptor::new(settings, clock.now())?
        .with_metadata(new.metadata)?
        .with_registry(new.registry)?;
    let key_file = new.encrypt_with.as_deref();
    descriptor.coding =
        keys::new_coding(&descriptor.uuid_bytes(), new.compression, key_file, clock.now())?;
    descriptor.require_metadata_encrypted()?;
    let (lock, occupied) = occupy(&dir, new.force)?;
    storage::check(&descriptor, options)?;
    if occupied {
        remove_old(&dir, options)?;
    }
    let made = storage::create(&dir, &descriptor, options)
        .and_then(|()| complete(&dir, descriptor.clone()))
        .and_then(|complete| make(&dir, &complete, false, options).map(|()| complete));
    if made.is_err() {
        // Nobody will ever open it; if its marker stays, a later format names it and says what to
        // do.
        let _ = storage::erase(&dir, &descriptor, options);
        let _ = engine::discard_rows(&descriptor, options.credentials.as_deref());
        if !occupied {
            clear(&dir);
        }
    }
    drop(lock);
    made
}

/// Makes the directory and takes its lock; whether it holds something, which only `force` permits.
pub(super) fn occupy(dir: &Path, force: bool) -> Result<(VolumeLock, bool), VolumeError> {
    fs::create_dir_all(dir).map_err(|error| VolumeError::io("create", dir, error))?;
    let mut entries = fs::read_dir(dir).map_err(|error| VolumeError::io("list", dir, error))?;
    let occupied = entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found"));
    if occupied && !force {
        return Err(VolumeError::NotEmpty(dir.into()));
    }
    if occupied {
        contents::check_replaceable(dir)?;
    }
    if occupied && let Ok(Descriptor { cluster: Some(section), .. }) = Descriptor::read(dir) {
        return Err(VolumeError::Invalid(format!(
            "{}: node {} of a cluster; what it holds is part of a volume. To give the volume up, \
             remove the directories of all its nodes, its objects, and its metadata if that is in \
             a database or bucket",
            dir.display(),
            section.node
        )));
    }
    Ok((VolumeLock::take(dir, "kestrel format")?, occupied))
}

/// Removes what was made of a volume in a directory that was empty: a second try must find the
/// place as the first one did.
pub(super) fn clear(dir: &Path) {
    let _ = fs::remove_dir_all(dir.join(META_DIR));
    let _ = fs::remove_dir_all(dir.join(OBJECTS_DIR));
    let _ = fs::remove_file(dir.join(LOCK_FILE));
}

/// Removes what a volume consists of and nothing else. Its rows in a database first, which knows
/// whether somebody has the volume open elsewhere; then the descriptor: a half-removed volume is
/// none.
fn remove_old(dir: &Path, options: &StoreOptions) -> Result<(), VolumeError> {
    let old = Descriptor::read(dir).ok();
    if let Some(old) = &old {
        engine::discard_rows(old, options.credentials.as_deref())?;
    }
    remove(&dir.join(FILE_NAME), |path| fs::remove_file(path))?;
    remove(&dir.join(COPY_NAME), |path| fs::remove_file(path))?;
    if let Some(old) = old {
        storage::erase(dir, &old, options)?;
    }
    remove(&dir.join(META_DIR), |path| fs::remove_dir_all(path))?;
    remove(&dir.join(OBJECTS_DIR), |path| fs::remove_dir_all(path))
}

fn remove(path: &Path, how: impl Fn(&Path) -> std::io::Result<()>) -> Result<(), VolumeError> {
    match how(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(VolumeError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Makes the metadata, and the descriptor last of all: with it there is a volume, complete. A node
/// that joins may have rows already, if they are in a database and its directory is lost, or was
/// not finished: they are the node's.
pub(super) fn make(
    dir: &Path,
    descriptor: &Descriptor,
    joins: bool,
    options: &StoreOptions,
) -> Result<(), VolumeError> {
    drop(make_rows(dir, descriptor, joins, options)?);
    descriptor.write(dir)
}

/// Makes the metadata; the engine that has it open.
pub(super) fn make_rows(
    dir: &Path,
    descriptor: &Descriptor,
    joins: bool,
    options: &StoreOptions,
) -> Result<Box<dyn Engine>, VolumeError> {
    let engine = engine::create(dir, descriptor, joins, options)?;
    // SAFETY: geteuid and getegid take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let root = RootAttr { mode: 0o755, uid, gid };
    let formatted = match &descriptor.cluster {
        // One root for all nodes: each writes those of its rows that are its own.
        Some(section) => {
            match ClusterNode::format(
                &*engine,
                root,
                descriptor.created,
                section.node,
                section.placement()?,
            ) {
                Err(why) if joins && engine.is_shared() && why.errno == libc::EEXIST => Ok(()),
                formatted => formatted,
            }
            .and_then(|()| {
                section.counters.map_or(Ok(()), |from| ClusterNode::count_from(&*engine, from))
            })
            .and_then(|()| match section.node_uuid() {
                // What the node is known by stays, whichever directory serves it.
                Ok(node_uuid)
                    if engine.is_shared() && ownership::node_uuid(&*engine)?.is_none() =>
                {
                    ownership::bear(&*engine, node_uuid)
                }
                _ => Ok(()),
            })
        }
        None => Node::format(&*engine, root, SystemClock.now()),
    };
    formatted.map_err(|error| VolumeError::engine_at(dir, error))?;
    engine.sync().map_err(VolumeError::engine)?;
    Ok(engine)
}
