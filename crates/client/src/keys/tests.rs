use std::fs;

use kestrel_blockstore::store::coded::CodedStore;
use kestrel_blockstore::store::{BlockStore, MemoryStore};
use tempfile::TempDir;

use super::*;
use crate::descriptor::{COPY_NAME, Durability, FILE_NAME};
use crate::volume::NewVolume;

/// A directory with a descriptor and key files.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new(compression: Compression, is_encrypted: bool) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["old", "new", "other"] {
            VolumeKey::create(&place.key(name)).unwrap();
        }
        let NewVolume { settings, .. } = NewVolume::plain("demo", Durability::Fsync);
        let mut descriptor = Descriptor::new(settings, 5).unwrap();
        let key = place.key("old");
        let key = is_encrypted.then_some(&*key);
        descriptor.coding = new_coding(&descriptor.uuid_bytes(), compression, key, 6).unwrap();
        descriptor.write(place.dir.path()).unwrap();
        place
    }

    fn key(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn descriptor(&self) -> Descriptor {
        Descriptor::read(self.dir.path()).unwrap()
    }

    fn coding(&self, key: &str) -> Result<Option<Coding>, VolumeError> {
        coding(&self.descriptor(), Some(&self.key(key)))
    }

    fn rotate(&self, old: &str, new: Option<&str>) -> Result<Descriptor, VolumeError> {
        let new = new.map(|name| self.key(name));
        rotate(self.dir.path(), Some(&self.key(old)), new.as_deref(), 7)
    }

    fn change(
        &self,
        compression: Option<Compression>,
        encrypt: Option<bool>,
        key: &str,
    ) -> Result<Descriptor, VolumeError> {
        change(
            self.dir.path(),
            &SettingsChange { compression, encrypt, atime: None },
            Some(&self.key(key)),
            8,
        )
    }

    fn store(&self, inner: &std::sync::Arc<MemoryStore>, key: &str) -> CodedStore {
        let volume = self.descriptor().uuid_bytes();
        CodedStore::new(inner.clone(), volume, self.coding(key).unwrap().unwrap())
    }
}

fn put(store: &dyn BlockStore, object: u64) {
    store.put(object, &[std::io::IoSlice::new(&object.to_be_bytes())]).unwrap();
}

fn reads(store: &dyn BlockStore, object: u64) -> bool {
    let mut out = [0; 8];
    store.read(object, 0, &mut [std::io::IoSliceMut::new(&mut out)]).is_ok()
        && out == object.to_be_bytes()
}

/// A volume without compression and encryption has no coding, and its descriptor is the same as
/// before codings existed.
#[test]
fn descriptor_of_uncoded_volume() {
    let place = Place::new(Compression::None, false);
    assert!(coding(&place.descriptor(), None).unwrap().is_none());
    assert!(!fs::read_to_string(place.key(FILE_NAME)).unwrap().contains("coding"));
}

#[test]
fn keys_that_are_missing_or_wrong_are_named() {
    let place = Place::new(Compression::Lz4, true);
    let needed = VolumeKey::read(&place.key("old")).unwrap().fingerprint();
    let other = VolumeKey::read(&place.key("other")).unwrap().fingerprint();
    let found = place.coding("old").unwrap().unwrap();
    assert_eq!(found.compression, Compression::Lz4);
    assert_eq!(found.cipher.unwrap().write_key(), Some(1));
    let why = place.coding("other").unwrap_err().to_string();
    assert!(why.contains(&needed) && why.contains(&other) && why.contains("demo"), "{why}");
    let why = place.coding("missing").unwrap_err().to_string();
    assert!(why.contains("missing") && why.contains("No such file"), "{why}");
    if key_file(None).is_none() {
        let why = coding(&place.descriptor(), None).unwrap_err().to_string();
        assert!(
            why.contains("--key-file") && why.contains(KEY_FILE_ENV) && why.contains(&needed),
            "{why}"
        );
    }
}

#[test]
fn wrapped_keys_that_were_altered_are_refused() {
    let place = Place::new(Compression::None, true);
    let mut descriptor = place.descriptor();
    let keys = &mut descriptor.coding.as_mut().unwrap().encryption.as_mut().unwrap().keys;
    let changed = if keys[0].wrapped.starts_with('0') { "1" } else { "0" };
    keys[0].wrapped.replace_range(0..1, changed);
    descriptor.write(place.dir.path()).unwrap();
    assert!(place.coding("old").unwrap_err().to_string().contains("data key 1"));
}

/// After a rotation old data stays readable, and the old key opens the volume no longer.
#[test]
fn key_rotation() {
    let place = Place::new(Compression::None, true);
    let inner = std::sync::Arc::new(MemoryStore::put_only());
    put(&place.store(&inner, "old"), 1);
    let before = inner.bytes(1);
    place.rotate("old", Some("new")).unwrap();
    assert!(place.coding("old").is_err());
    let store = place.store(&inner, "new");
    put(&store, 2);
    assert!(reads(&store, 1) && reads(&store, 2));
    assert_eq!(inner.bytes(1), before);
    // Data key 1, then 2.
    assert_eq!(
        (&inner.bytes(1).unwrap()[12..16], &inner.bytes(2).unwrap()[12..16]),
        (&[0, 0, 0, 1][..], &[0, 0, 0, 2][..])
    );
    // A new data key only.
    place.rotate("new", None).unwrap();
    let store = place.store(&inner, "new");
    put(&store, 3);
    assert!(reads(&store, 1) && reads(&store, 2) && reads(&store, 3));
    assert_eq!(inner.bytes(3).unwrap()[12..16], [0, 0, 0, 3]);
}

#[test]
fn a_rotation_that_cannot_be_changes_nothing() {
    let place = Place::new(Compression::None, true);
    let before = place.descriptor();
    assert!(place.rotate("other", Some("new")).is_err());
    assert!(place.rotate("old", Some("missing")).is_err());
    assert!(place.rotate("missing", None).is_err());
    assert_eq!(place.descriptor(), before);
    for _ in 1..DATA_KEYS_MAX {
        place.rotate("old", None).unwrap();
    }
    assert!(place.rotate("old", None).unwrap_err().to_string().contains("most"));
    assert_eq!(
        place.coding("old").unwrap().unwrap().cipher.unwrap().write_key(),
        Some(DATA_KEYS_MAX as u32)
    );
    let plain = Place::new(Compression::Lz4, false);
    assert!(plain.rotate("old", Some("new")).unwrap_err().to_string().contains("--encrypt"));
}

#[test]
fn two_rotations_at_once_both_count() {
    let place = Place::new(Compression::None, true);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    place.rotate("old", None).unwrap();
                }
            });
        }
    });
    let coding = place.descriptor().coding.unwrap();
    assert_eq!(coding.encryption.unwrap().keys.len(), 21);
}

#[test]
fn settings_change_and_what_was_coded_stays_readable() {
    let place = Place::new(Compression::None, false);
    let inner = std::sync::Arc::new(MemoryStore::put_only());
    put(&*inner, 1);
    assert!(place.change(None, None, "old").unwrap().coding.is_none(), "nothing was asked for");
    assert!(place.change(Some(Compression::None), Some(false), "old").unwrap().coding.is_none());
    place.change(Some(Compression::Zstd(5)), None, "old").unwrap();
    put(&place.store(&inner, "old"), 2);
    assert!(place.change(None, Some(true), "missing").is_err());
    place.change(None, Some(true), "old").unwrap();
    put(&place.store(&inner, "old"), 3);
    assert!(place.change(None, Some(true), "other").is_err());
    let off = place.change(Some(Compression::None), Some(false), "other").unwrap();
    assert!(off.coding.is_some(), "objects may be coded");
    put(&place.store(&inner, "old"), 4);
    assert_eq!(inner.bytes(4).unwrap(), 4u64.to_be_bytes());
    let store = place.store(&inner, "old");
    assert!((1..=4).all(|object| reads(&store, object)));
    // On again, with the key it had.
    let on = place.change(None, Some(true), "old").unwrap().coding.unwrap().encryption.unwrap();
    assert!(on.active && !on.required && on.keys.len() == 1);
}

/// A volume that was encrypted from the start refuses objects that are not encrypted, until
/// encryption is turned off.
#[test]
fn plain_objects_in_encrypted_volume() {
    let place = Place::new(Compression::None, true);
    let inner = std::sync::Arc::new(MemoryStore::put_only());
    put(&*inner, 1);
    assert!(!reads(&place.store(&inner, "old"), 1));
    place.change(None, Some(false), "old").unwrap();
    assert!(reads(&place.store(&inner, "old"), 1));
}

#[test]
fn what_a_newer_version_wrote_is_refused_as_such() {
    let place = Place::new(Compression::Lz4, true);
    let path = place.key(FILE_NAME);
    let good = fs::read_to_string(&path).unwrap();
    for (from, to, what) in [
        ("\"lz4\"", "\"brotli\"", "brotli"),
        ("\"compression\"", "\"dedup\": true, \"compression\"", "dedup"),
        ("\"active\"", "\"kms\": \"x\", \"active\"", "kms"),
        ("\"uuid\"", "\"tiers\": [], \"uuid\"", "tiers"),
    ] {
        assert!(good.contains(from));
        // It writes both copies.
        for path in [&path, &place.key(COPY_NAME)] {
            fs::write(path, good.replacen(from, to, 1)).unwrap();
        }
        let why = Descriptor::read(place.dir.path()).unwrap_err().to_string();
        assert!(why.contains(what) && why.contains("newer kestrel"), "{why}");
    }
    let mut descriptor: Descriptor = serde_json::from_str(&good).unwrap();
    descriptor.coding.as_mut().unwrap().encryption.as_mut().unwrap().cipher = "xchacha20".into();
    descriptor.write(place.dir.path()).unwrap();
    let why = Descriptor::read(place.dir.path()).unwrap_err().to_string();
    assert!(why.contains("xchacha20") && why.contains("newer kestrel"), "{why}");
}

#[test]
fn descriptors_from_before_there_was_coding_are_read() {
    let place = Place::new(Compression::None, false);
    // As the first version wrote it, byte for byte.
    let text = include_str!("tests/kestrel-1.json");
    fs::write(place.key(FILE_NAME), text).unwrap();
    let read = place.descriptor();
    assert_eq!((read.settings.name.as_str(), read.coding), ("vol", None));
}
