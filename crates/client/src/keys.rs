//! Keys of volumes (`docs/encryption.md`).
//!
//! | file | |
//! | --- | --- |
//! | `file` | files that hold a volume key: 32 bytes as hexadecimal or base64 text |
//! | `volume_key` | the volume key: wraps data keys |
//!
//! **Contract.** A volume key lives in a file outside the volume; nothing here writes it anywhere
//! else or shows it. It wraps the volume's data keys, which lie in the descriptor, and those
//! encrypt objects ([`kestrel_blockstore::store::coded`]). So the volume key can be replaced
//! without touching an object. The descriptor knows the volume key's fingerprint, so that a wrong
//! key is told before anything is tried with it.

use std::path::{Path, PathBuf};

use kestrel_blockstore::store::coded::{Coding, Compression, Keys};
use kestrel_types::clock::Nanos;

use crate::accesses::AtimeMode;
use crate::descriptor::{CodingSettings, DATA_KEYS_MAX, Descriptor, Encryption, RowsAt};
use crate::error::VolumeError;

mod file;
mod volume_key;

pub use volume_key::VolumeKey;

/// Environment variable that names the file with the volume key, if no option does.
pub const KEY_FILE_ENV: &str = "KESTREL_KEY_FILE";

/// The file with the volume key: the one given, else the one that the environment names.
pub fn key_file(given: Option<&Path>) -> Option<PathBuf> {
    let named =
        || std::env::var_os(KEY_FILE_ENV).filter(|name| !name.is_empty()).map(PathBuf::from);
    given.map(Path::to_path_buf).or_else(named)
}

/// How the objects of a volume are to be coded and read, with the keys from `given` or the
/// environment. None: no object of it was ever coded.
///
/// # Errors
/// Says that there is no key, that it is not this volume's (with both fingerprints), or that the
/// descriptor's keys are damaged.
pub fn coding(
    descriptor: &Descriptor,
    given: Option<&Path>,
) -> Result<Option<Coding>, VolumeError> {
    let Some(CodingSettings { compression, encryption }) = &descriptor.coding else {
        return Ok(None);
    };
    let mut coding = Coding { compression: *compression, cipher: None };
    if let Some(encryption) = encryption {
        coding.cipher = Some(data_keys(descriptor, encryption, given, encryption.required)?);
    }
    Ok(Some(coding))
}

/// Keys of the volume's published versions. None: it was never encrypted.
///
/// # Errors
/// As for [`coding`].
pub fn version_keys(
    descriptor: &Descriptor,
    given: Option<&Path>,
) -> Result<Option<Keys>, VolumeError> {
    Ok(coding(descriptor, given)?.and_then(|coding| coding.cipher))
}

/// The place of rows with the keys that they are encrypted with, if they are in a bucket and the
/// volume was ever encrypted.
///
/// # Errors
/// As for [`coding`], if they are in a bucket.
pub fn with_keys(
    rows: RowsAt,
    descriptor: &Descriptor,
    given: Option<&Path>,
) -> Result<RowsAt, VolumeError> {
    let coding = descriptor.coding.as_ref();
    let encryption = coding.and_then(|coding| coding.encryption.as_ref());
    match (rows, encryption) {
        (RowsAt::Bucket(place), Some(encryption)) => {
            let keys = data_keys(descriptor, encryption, given, encryption.metadata_required)?;
            Ok(RowsAt::Bucket(place.encrypted(descriptor.uuid_bytes(), keys).into()))
        }
        (rows, _) => Ok(rows),
    }
}

/// The volume's data keys. `required`: what is not encrypted is refused.
fn data_keys(
    descriptor: &Descriptor,
    encryption: &Encryption,
    given: Option<&Path>,
    required: bool,
) -> Result<Keys, VolumeError> {
    let volume_key = volume_key(descriptor, encryption, given)?;
    let mut keys = Vec::with_capacity(encryption.keys.len());
    for wrapped in &encryption.keys {
        keys.push((wrapped.id, volume_key.unwrap(&descriptor.uuid_bytes(), wrapped)?));
    }
    let write = encryption.keys.last().map(|last| last.id).filter(|_| encryption.active);
    Keys::new(keys, write, !required).map_err(|error| VolumeError::Key(error.to_string()))
}

/// The volume's key, if it is the right one.
fn volume_key(
    descriptor: &Descriptor,
    encryption: &Encryption,
    given: Option<&Path>,
) -> Result<VolumeKey, VolumeError> {
    let name = &descriptor.settings.name;
    let needed = &encryption.volume_key;
    let Some(path) = key_file(given) else {
        return Err(VolumeError::Key(format!(
            "volume {name:?} is encrypted; give its key with --key-file FILE or in {KEY_FILE_ENV} \
             (the key's fingerprint is \
             {needed})"
        )));
    };
    let key = VolumeKey::read(&path)?;
    if key.fingerprint() != *needed {
        return Err(VolumeError::Key(format!(
            "{}: not the key of volume {name:?}: its fingerprint is {}, that of the volume's key \
             is {needed}; use that key's \
             file",
            path.display(),
            key.fingerprint()
        )));
    }
    Ok(key)
}

/// Coding of a new volume: compressed as asked, encrypted if there is a file with a volume key.
/// None: neither.
///
/// # Errors
/// If the key cannot be read or the system has no randomness.
pub fn new_coding(
    volume: &[u8; 16],
    compression: Compression,
    key_file: Option<&Path>,
    now: Nanos,
) -> Result<Option<CodingSettings>, VolumeError> {
    let encryption = match key_file {
        Some(path) => Some(new_encryption(volume, &VolumeKey::read(path)?, true, now)?),
        None => None,
    };
    let is_coded = compression != Compression::None || encryption.is_some();
    Ok(is_coded.then_some(CodingSettings { compression, encryption }))
}

fn new_encryption(
    volume: &[u8; 16],
    key: &VolumeKey,
    required: bool,
    now: Nanos,
) -> Result<Encryption, VolumeError> {
    Ok(Encryption::new(key.fingerprint(), vec![key.new_data_key(volume, 1, now)?], required))
}

/// A change of settings: of how new objects are coded, and of access times. What is stored already
/// stays as it is.
#[derive(Debug, Clone, Default)]
pub struct SettingsChange {
    /// Compress like this.
    pub compression: Option<Compression>,
    /// Encrypt, or do not.
    pub encrypt: Option<bool>,
    /// Keep access times so, at mounts that are not told otherwise.
    pub atime: Option<AtimeMode>,
}

/// Changes how new objects of the volume at `dir` are coded, from the next time it is opened. To
/// encrypt a volume that never was takes a volume key; objects written before stay readable as they
/// are.
///
/// # Errors
/// If the key is missing or not this volume's. Nothing is changed then.
pub fn change(
    dir: &Path,
    change: &SettingsChange,
    given: Option<&Path>,
    now: Nanos,
) -> Result<Descriptor, VolumeError> {
    Descriptor::update(dir, |descriptor| apply(descriptor, change, given, now))
}

/// The same for a volume that several nodes share and keep in these directories: at all of them or
/// at none. Data keys are made once.
///
/// # Errors
/// As for [`change`], and if their settings differ; the text names the directory that did not take
/// the change.
pub fn change_nodes(
    dirs: &[PathBuf],
    change: &SettingsChange,
    given: Option<&Path>,
    now: Nanos,
) -> Result<Descriptor, VolumeError> {
    Descriptor::update_nodes(dirs, |descriptor, _| apply(descriptor, change, given, now))
}

/// What `change` makes of how objects of this volume are coded, for the process that serves it
/// ([`recode`]). Keys stay here.
///
/// # Errors
/// As for [`change`].
pub fn changed(
    descriptor: &Descriptor,
    change: &SettingsChange,
    given: Option<&Path>,
    now: Nanos,
) -> Result<Option<CodingSettings>, VolumeError> {
    let mut changed = descriptor.clone();
    apply(&mut changed, change, given, now)?;
    Ok(changed.coding)
}

/// What a rotation makes of how objects of the volume at `place` are coded, for the process that
/// serves it ([`recode`]). Keys stay here: what is sent is wrapped with them.
///
/// # Errors
/// As for [`rotate`].
pub fn rotated(
    descriptor: &Descriptor,
    place: &str,
    old: Option<&Path>,
    new: Option<&Path>,
    now: Nanos,
) -> Result<Option<CodingSettings>, VolumeError> {
    let mut rotated = descriptor.clone();
    rotate_in(&mut rotated, Path::new(place), old, new, now)?;
    Ok(rotated.coding)
}

/// Puts `after` in the place of `before`, as somebody elsewhere made it of that. If that is done
/// already, somebody did not hear of it.
///
/// # Errors
/// If the settings are others than `before`, or data keys would be lost. Nothing is changed then.
pub fn recode(
    dir: &Path,
    before: Option<&CodingSettings>,
    after: Option<CodingSettings>,
) -> Result<Descriptor, VolumeError> {
    Descriptor::update(dir, |descriptor| {
        if descriptor.coding == after {
            return Ok(());
        }
        if descriptor.coding.as_ref() != before {
            let why = "its settings or keys have changed meanwhile; look at them, and repeat it";
            return Err(VolumeError::Invalid(format!("{}: {why}", dir.display())));
        }
        let keys = |coding: Option<&CodingSettings>| -> Vec<(u32, i64)> {
            let encryption = coding.and_then(|coding| coding.encryption.as_ref());
            let keys = encryption.into_iter().flat_map(|encryption| &encryption.keys);
            keys.map(|key| (key.id, key.created)).collect()
        };
        if !keys(after.as_ref()).starts_with(&keys(before)) || (before.is_some() && after.is_none())
        {
            let why = "data keys or settings would be lost; nothing was changed";
            return Err(VolumeError::Invalid(format!("{}: {why}", dir.display())));
        }
        descriptor.coding = after.clone();
        Ok(())
    })
}

fn apply(
    descriptor: &mut Descriptor,
    change: &SettingsChange,
    given: Option<&Path>,
    now: Nanos,
) -> Result<(), VolumeError> {
    descriptor.settings.atime = change.atime.unwrap_or(descriptor.settings.atime);
    let volume = descriptor.uuid_bytes();
    let nothing = CodingSettings { compression: Compression::None, encryption: None };
    let before = descriptor.coding.clone();
    let mut coding = before.clone().unwrap_or(nothing.clone());
    coding.compression = change.compression.unwrap_or(coding.compression);
    match (&mut coding.encryption, change.encrypt) {
        (_, None) | (None, Some(false)) => {}
        (Some(encryption), Some(true)) => {
            // A process that turns it on must be able to read what is then written.
            volume_key(descriptor, encryption, given)?;
            encryption.active = true;
        }
        (Some(encryption), Some(false)) => {
            encryption.active = false;
            encryption.required = false;
            encryption.metadata_required = false;
        }
        (none, Some(true)) => {
            let Some(path) = key_file(given) else {
                return Err(VolumeError::Key(format!(
                    "encryption takes a key; make one with `kestrel key create FILE` and give it \
                     with --key-file FILE or \
                     in {KEY_FILE_ENV}"
                )));
            };
            *none = Some(new_encryption(&volume, &VolumeKey::read(&path)?, false, now)?);
        }
    }
    // Once objects may be coded, they may be forever.
    descriptor.coding = (before.is_some() || coding != nothing).then_some(coding);
    Ok(())
}

/// Gives the volume at `dir` a new data key for new objects, and a new volume key if `new` names
/// one. No object is touched, and the volume may be in use. Returns the descriptor as it is now. If
/// `new` is the volume's key already and `old` is not, a rotation to it was cut short after the
/// change, and nothing is left to do.
///
/// # Errors
/// If the volume is not encrypted, `old` is not its key, a key cannot be read, or there are
/// [`DATA_KEYS_MAX`] data keys. Nothing is changed then.
pub fn rotate(
    dir: &Path,
    old: Option<&Path>,
    new: Option<&Path>,
    now: Nanos,
) -> Result<Descriptor, VolumeError> {
    Descriptor::update(dir, |descriptor| rotate_in(descriptor, dir, old, new, now))
}

/// The same for a volume that several nodes share and keep in these directories: at all of them or
/// at none. If it finishes a rotation that was cut short, to this key, that is all it does.
///
/// # Errors
/// As for [`rotate`], and if their settings differ; the text names the directory that did not take
/// the change.
pub fn rotate_nodes(
    dirs: &[PathBuf],
    old: Option<&Path>,
    new: Option<&Path>,
    now: Nanos,
) -> Result<Descriptor, VolumeError> {
    let first = dirs.first().map_or(Path::new(""), PathBuf::as_path);
    Descriptor::update_nodes(dirs, |descriptor, before| {
        let is_done = match before {
            Some(before) => is_rotated(before, descriptor, new)?,
            None => false,
        };
        if is_done { Ok(()) } else { rotate_in(descriptor, first, old, new, now) }
    })
}

/// Whether the keys were replaced between two descriptors, by this volume key if one is named.
fn is_rotated(
    before: &Descriptor,
    after: &Descriptor,
    new: Option<&Path>,
) -> Result<bool, VolumeError> {
    let encryption =
        |descriptor: &Descriptor| descriptor.coding.clone().and_then(|coding| coding.encryption);
    let (Some(before), Some(after)) = (encryption(before), encryption(after)) else {
        return Ok(false);
    };
    let to = new.map(VolumeKey::read).transpose()?.map(|key| key.fingerprint());
    Ok(before.keys.len() < after.keys.len() && to.unwrap_or(before.volume_key) == after.volume_key)
}

fn rotate_in(
    descriptor: &mut Descriptor,
    where_is: &Path,
    old: Option<&Path>,
    new: Option<&Path>,
    now: Nanos,
) -> Result<(), VolumeError> {
    let volume = descriptor.uuid_bytes();
    let name = &descriptor.settings.name;
    let Some(encryption) = descriptor.coding.as_ref().and_then(|coding| coding.encryption.clone())
    else {
        return Err(VolumeError::Key(format!(
            "volume {name:?} is not encrypted and has no keys; `kestrel config {} --encrypt` \
             encrypts what is written \
             from then on",
            where_is.display()
        )));
    };
    if encryption.keys.len() >= DATA_KEYS_MAX {
        return Err(VolumeError::Key(format!(
            "volume {name:?} has {DATA_KEYS_MAX} data keys, the most there may be; copy it to a \
             new volume to start anew"
        )));
    }
    let is_key_of =
        |path: &Path| VolumeKey::read(path).map(|key| key.fingerprint() == encryption.volume_key);
    if let (Some(new), Some(old)) = (new, key_file(old))
        && is_key_of(new)?
        && !is_key_of(&old)?
    {
        // The rotation to this key was cut short after the change had been made.
        return Ok(());
    }
    let old = volume_key(descriptor, &encryption, old)?;
    let new = match new {
        Some(path) => VolumeKey::read(path)?,
        None => old.clone(),
    };
    let mut keys = Vec::with_capacity(encryption.keys.len() + 1);
    for wrapped in &encryption.keys {
        let key = old.unwrap_bytes(&volume, wrapped)?;
        keys.push(new.wrap(&volume, wrapped.id, wrapped.created, &key)?);
    }
    let next = encryption.keys.last().map_or(1, |last| last.id.saturating_add(1));
    keys.push(new.new_data_key(&volume, next, now)?);
    if let Some(coding) = &mut descriptor.coding {
        coding.encryption = Some(Encryption { volume_key: new.fingerprint(), keys, ..encryption });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
