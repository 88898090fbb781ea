//! The names of versions: objects that are made only where there is none.
//!
//! The name of the object is that of the version in hexadecimal digits, which are in the order of
//! the names. The object is the manifest, so publishing is one conditional put: it fails if the
//! name is taken, and nothing of a version is seen before it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kestrel_blockstore::named::{NamedStore, encrypted_volume};
use kestrel_engine::EngineError;
use kestrel_types::crash;
use kestrel_types::hex::{from_hex, to_hex};

use super::{VersionId, VersionManifest, WRITER, check_name, cleaned_up};
use crate::Uuid;
use crate::health::{self, read_checked};
use crate::table::TABLES;

/// Where the names are.
const NAMES: &str = "name/";
/// Where the tables are.
const DATA: &str = "data/";
/// Where the plans of compactions are.
pub(super) const PLANS: &str = "compaction/";

/// The place of a volume's versions in its store.
#[derive(Clone)]
pub struct VersionPlace {
    store: Arc<dyn NamedStore>,
}

/// The error of a call to the store.
pub(super) fn failed(
    store: &dyn NamedStore,
    why: &kestrel_blockstore::error::Error,
) -> EngineError {
    let text = || format!("{}: {why}", store.shown());
    match health::failed(store, why) {
        EngineError::NoSpace => EngineError::Io(format!("{}: the store is full", store.shown())),
        EngineError::Corrupt(_) => EngineError::Corrupt(text()),
        EngineError::Refused(_) => EngineError::Refused(text()),
        _ => EngineError::Io(text()),
    }
}

impl VersionPlace {
    /// The place in this store, which has nothing else.
    pub fn new(store: Arc<dyn NamedStore>) -> Self {
        Self { store }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn NamedStore> {
        &self.store
    }

    /// What the names of a version's tables begin with, before their numbers as hexadecimal digits.
    pub fn tables_of(id: &VersionId) -> String {
        Self::part_of(id, TABLES)
    }

    /// What all objects of a version but its name begin with.
    pub(super) fn prefix_of(id: &VersionId) -> String {
        format!("{DATA}{}/", to_hex(id))
    }

    /// The name of an object of a version.
    pub(super) fn part_of(id: &VersionId, part: &str) -> String {
        format!("{}{part}", Self::prefix_of(id))
    }
}

/// The names of a volume's versions.
pub struct VersionRegistry {
    place: VersionPlace,
    volume: Uuid,
}

/// The object that has a name.
fn object_of(name: &str) -> String {
    format!("{NAMES}{}", to_hex(name.as_bytes()))
}

impl VersionRegistry {
    /// Those of this volume.
    pub fn new(place: VersionPlace, volume: Uuid) -> Self {
        Self { place, volume }
    }

    /// The volume.
    pub fn volume(&self) -> &Uuid {
        &self.volume
    }

    /// Where the versions are.
    pub fn place(&self) -> &VersionPlace {
        &self.place
    }

    fn failed(&self, why: &kestrel_blockstore::error::Error) -> EngineError {
        failed(&*self.place.store, why)
    }

    /// The version of a name, if there is one.
    ///
    /// # Errors
    /// `Refused` for what cannot be a name, a newer format, and another volume's; `Corrupt`; the
    /// store's.
    pub fn find(&self, name: &str) -> Result<Option<VersionManifest>, EngineError> {
        check_name(name).map_err(EngineError::Refused)?;
        let decode = |found: &kestrel_blockstore::named::NamedObject| {
            VersionManifest::decode(name, &found.bytes)
        };
        let found = read_checked(&*self.place.store, &object_of(name), decode)?;
        let Some((manifest, _)) = found else { return Ok(None) };
        manifest.check_volume(&self.volume)?;
        Ok(Some(manifest))
    }

    /// Names that begin with `prefix`, in order.
    ///
    /// # Errors
    /// The store's.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>, EngineError> {
        let found = self.place.store.list(NAMES).map_err(|why| self.failed(&why))?;
        let name_of = |(object, _): (String, u64)| {
            let name = String::from_utf8(from_hex(object.strip_prefix(NAMES)?)?).ok()?;
            (check_name(&name).is_ok() && name.starts_with(prefix)).then_some(name)
        };
        let mut names: Vec<String> = found.into_iter().filter_map(name_of).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Gives a version its name; `false`: the name is taken. From now on readers see it.
    ///
    /// # Errors
    /// The store's.
    pub fn publish(&self, manifest: &VersionManifest) -> Result<bool, EngineError> {
        check_name(&manifest.name).map_err(EngineError::Refused)?;
        let object = object_of(&manifest.name);
        let store = &self.place.store;
        if !store.create(&object, manifest.encode().into()).map_err(|why| self.failed(&why))? {
            return Ok(false);
        }
        crash::point("version.named");
        // A process that took it for left over has removed this first.
        let writer = VersionPlace::part_of(&manifest.id_bytes(), WRITER);
        if store.read(&writer).map_err(|why| self.failed(&why))?.is_none() {
            store.remove(&object).map_err(|why| self.failed(&why))?;
            return Err(cleaned_up());
        }
        Ok(true)
    }

    /// Gives a version another name; `false`: that is taken. For a moment it has both.
    ///
    /// # Errors
    /// The store's.
    pub fn rename(&self, manifest: &VersionManifest, to: &str) -> Result<bool, EngineError> {
        check_name(to).map_err(EngineError::Refused)?;
        if to == manifest.name {
            return Ok(false);
        }
        let mut renamed = manifest.clone();
        renamed.name = to.into();
        let store = &self.place.store;
        let made = store.create(&object_of(to), renamed.encode().into());
        if !made.map_err(|why| self.failed(&why))? {
            return Ok(false);
        }
        crash::point("version.renamed");
        store.remove(&object_of(&manifest.name)).map_err(|why| self.failed(&why))?;
        Ok(true)
    }

    /// Takes a version's name away, and then its tables unless it has another name. What it holds
    /// in the volume is for the caller to release, if the answer is `true`: it has no name left.
    ///
    /// # Errors
    /// The store's; the name may be gone then.
    pub fn remove(&self, manifest: &VersionManifest) -> Result<bool, EngineError> {
        let store = &self.place.store;
        let id = manifest.id_bytes();
        let mut has_other = false;
        for name in self.names("")?.iter().filter(|name| **name != manifest.name) {
            has_other |= self.names_it(name, &id)?;
        }
        store.remove(&object_of(&manifest.name)).map_err(|why| self.failed(&why))?;
        crash::point("version.unnamed");
        if !has_other {
            self.remove_data(&id)?;
        }
        Ok(!has_other)
    }

    /// Takes the name away from a version with a damaged manifest. What it holds is left over then.
    ///
    /// # Errors
    /// The store's.
    pub fn remove_damaged(&self, name: &str) -> Result<(), EngineError> {
        self.place.store.remove(&object_of(name)).map_err(|why| self.failed(&why))
    }

    /// Whether the object of a name is that of the version of this identity. One that is damaged or
    /// newer says so by having the identity in it.
    fn names_it(&self, name: &str, id: &VersionId) -> Result<bool, EngineError> {
        let found = self.place.store.read(&object_of(name)).map_err(|why| self.failed(&why))?;
        let Some(found) = found else { return Ok(false) };
        if let Ok(manifest) = VersionManifest::decode(name, &found.bytes) {
            // Identities of its inputs are in it, too.
            return Ok(manifest.id_bytes() == *id);
        }
        let id = to_hex(id);
        Ok(found.bytes.windows(id.len()).any(|part| part == id.as_bytes()))
    }

    /// Identities of all versions that have a name.
    ///
    /// # Errors
    /// The store's, and those of manifests that cannot be read: what they refer to is not known.
    fn ids(&self) -> Result<HashSet<VersionId>, EngineError> {
        let id_of = |name: String| Ok(self.find(&name)?.map(|found| found.id_bytes()));
        let ids = self.names("")?.into_iter().map(id_of);
        let ids: Result<Vec<Option<VersionId>>, EngineError> = ids.collect();
        Ok(ids?.into_iter().flatten().collect())
    }

    /// Versions that have tables and no name, with a writer that has said nothing for `age`: the
    /// writer was killed, or the version was being removed.
    ///
    /// # Errors
    /// The store's, and those of manifests that cannot be read.
    pub fn leftovers(&self, age: Duration) -> Result<Vec<VersionId>, EngineError> {
        let store = &self.place.store;
        let parts = self.data()?;
        // After the listing: what has got a name meanwhile is not left over.
        let named = self.ids()?;
        let mut left = Vec::new();
        for (id, has_writer) in parts.into_iter().filter(|(id, _)| !named.contains(id)) {
            let writer = match has_writer {
                true => store.read(&VersionPlace::part_of(&id, WRITER)),
                false => Ok(None),
            };
            let writer = writer.map_err(|why| self.failed(&why))?;
            let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
            if writer.is_none_or(|writer| writer.age >= age) {
                left.push(id);
            }
        }
        Ok(left)
    }

    /// Identities of all versions that have objects beside their names, with a name, being written
    /// or left over.
    ///
    /// # Errors
    /// The store's.
    pub fn data_ids(&self) -> Result<HashSet<VersionId>, EngineError> {
        Ok(self.data()?.into_keys().collect())
    }

    /// The same, and whether the writer's object is there.
    fn data(&self) -> Result<BTreeMap<VersionId, bool>, EngineError> {
        let id_of = |object: &str| {
            let (id, part) = object.strip_prefix(DATA)?.split_once('/')?;
            Some((VersionId::try_from(from_hex(id)?).ok()?, part == WRITER))
        };
        let mut parts = BTreeMap::new();
        for (object, _) in self.place.store.list(DATA).map_err(|why| self.failed(&why))? {
            if let Some((id, is_writer)) = id_of(&object) {
                *parts.entry(id).or_default() |= is_writer;
            }
        }
        Ok(parts)
    }

    /// Removes all versions of the volume, names first. Another volume's stay. The registry is one
    /// that reads objects as they are stored.
    ///
    /// # Errors
    /// The store's.
    pub fn remove_all(&self) -> Result<(), EngineError> {
        let store = &self.place.store;
        for name in self.names("")? {
            let object = object_of(&name);
            let stored = store.read(&object).map_err(|why| self.failed(&why))?;
            // Its keys may be gone.
            let is_ours = |volume| volume == self.volume;
            if !stored.and_then(|stored| encrypted_volume(&stored.bytes)).is_some_and(is_ours) {
                match self.find(&name) {
                    Ok(_) | Err(EngineError::Corrupt(_)) => {}
                    Err(why) => return Err(why),
                }
            }
            store.remove(&object).map_err(|why| self.failed(&why))?;
        }
        for below in [PLANS, DATA] {
            for (object, _) in store.list(below).map_err(|why| self.failed(&why))? {
                store.remove(&object).map_err(|why| self.failed(&why))?;
            }
        }
        Ok(())
    }

    /// Removes the tables of a version that has no name, and so many objects.
    ///
    /// # Errors
    /// The store's.
    pub fn remove_data(&self, id: &VersionId) -> Result<usize, EngineError> {
        let store = &self.place.store;
        // The writer's object first: a writer that is still there finds out.
        let writer = VersionPlace::part_of(id, WRITER);
        store.remove(&writer).map_err(|why| self.failed(&why))?;
        let found = store.list(&VersionPlace::prefix_of(id)).map_err(|why| self.failed(&why))?;
        for (object, _) in &found {
            store.remove(object).map_err(|why| self.failed(&why))?;
        }
        Ok(found.len() + 1)
    }
}
