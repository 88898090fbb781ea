//! The names of versions: objects that are made only where there is none.
//!
//! The name of the object is that of the version in hexadecimal digits, which are in the order of
//! the names. The object is the manifest, so publishing is one conditional put: it fails if the
//! name is taken, and nothing of a version is seen before it.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use kestrel_blockstore::named::{NamedObject, encrypted_volume};
use kestrel_engine::EngineError;
use kestrel_types::crash;
use kestrel_types::hex::{from_hex, to_hex};

use super::place::DATA;
use super::{
    JobBase, JobRecord, JobRegistry, VersionId, VersionManifest, VersionPlace, WRITER, check_name,
    cleaned_up, failed, has_identity,
};
use crate::Uuid;
use crate::health::read_checked;

/// Where the names are.
const NAMES: &str = "name/";
/// The manifest of what a rank has logged, below that of its log.
const PART: &str = "part";
/// Where the plans of compactions are.
pub(super) const PLANS: &str = "compaction/";

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
        failed(&**self.place.store(), why)
    }

    /// The version of a name, if there is one.
    ///
    /// # Errors
    /// `Refused` for what cannot be a name, a newer format, and another volume's; `Corrupt`; the
    /// store's.
    pub fn find(&self, name: &str) -> Result<Option<VersionManifest>, EngineError> {
        check_name(name).map_err(EngineError::Refused)?;
        let decode = |found: &NamedObject| VersionManifest::decode(name, &found.bytes);
        let found = read_checked(&**self.place.store(), &object_of(name), decode)?;
        let Some((manifest, _)) = found else { return Ok(None) };
        manifest.check_volume(&self.volume)?;
        Ok(Some(manifest))
    }

    /// Names that begin with `prefix`, in order.
    ///
    /// # Errors
    /// The store's.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>, EngineError> {
        let found = self.place.store().list(NAMES).map_err(|why| self.failed(&why))?;
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
        let store = self.place.store();
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
        let store = self.place.store();
        let made = store.create(&object_of(to), renamed.encode().into());
        if !made.map_err(|why| self.failed(&why))? {
            return Ok(false);
        }
        crash::point("version.renamed");
        store.remove(&object_of(&manifest.name)).map_err(|why| self.failed(&why))?;
        Ok(true)
    }

    /// Takes a version's name away, and then its tables unless it has another name, or another
    /// version or a job needs it. What it holds in the volume is for the caller to release, if the
    /// answer is `true`: nothing needs it.
    ///
    /// # Errors
    /// The store's; the name may be gone then.
    pub fn remove(&self, manifest: &VersionManifest) -> Result<bool, EngineError> {
        let store = self.place.store();
        let id = manifest.id_bytes();
        let mut has_other = self.is_needed_by_job(&id)?;
        for name in self.names("")?.iter().filter(|name| **name != manifest.name) {
            has_other |= self.needs_it(name, &id)?;
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
        self.place.store().remove(&object_of(name)).map_err(|why| self.failed(&why))
    }

    /// Whether the version of a name is that of this identity, or cannot be read without it. One
    /// that is damaged or newer says so by having the identity in it.
    fn needs_it(&self, name: &str, id: &VersionId) -> Result<bool, EngineError> {
        let found = self.place.store().read(&object_of(name)).map_err(|why| self.failed(&why))?;
        let Some(found) = found else { return Ok(false) };
        let id = to_hex(id);
        Ok(match VersionManifest::decode(name, &found.bytes) {
            Ok(version) => version.id == id || version.needs().any(|needed| needed == id),
            Err(_) => has_identity(&found.bytes, &id),
        })
    }

    /// The version of this identity, if it has a name; of several one.
    ///
    /// # Errors
    /// The store's, and those of a manifest that cannot be read and has the identity in it.
    pub fn of_id(&self, id: &VersionId) -> Result<Option<VersionManifest>, EngineError> {
        for name in self.names("")? {
            match self.find(&name) {
                Ok(Some(version)) if version.id_bytes() == *id => return Ok(Some(version)),
                Ok(_) => {}
                Err(why) if self.needs_it(&name, id)? => return Err(why),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Keeps the manifest of a version that gets no name: that of what a rank has logged.
    ///
    /// # Errors
    /// The store's.
    pub fn keep_part(&self, manifest: &VersionManifest) -> Result<(), EngineError> {
        let name = VersionPlace::part_of(&manifest.id_bytes(), PART);
        // One that is there was written by a process that was killed behind that.
        let made = self.place.store().create(&name, manifest.encode().into());
        made.map(drop).map_err(|why| self.failed(&why))
    }

    /// That manifest, which has the name of what the rank's log is to become, if it is there.
    ///
    /// # Errors
    /// The store's, `Corrupt`, and `Refused` for a newer format and another volume's.
    pub fn part(&self, log: &JobRecord) -> Result<Option<VersionManifest>, EngineError> {
        let name = VersionPlace::part_of(&log.id_bytes(), PART);
        let decode = |found: &NamedObject| VersionManifest::decode(&log.name, &found.bytes);
        let found = read_checked(&**self.place.store(), &name, decode)?;
        let Some((manifest, _)) = found else { return Ok(None) };
        manifest.check_volume(&self.volume)?;
        Ok(Some(manifest))
    }

    /// Forgets it.
    ///
    /// # Errors
    /// The store's.
    pub fn forget_part(&self, id: &VersionId) -> Result<(), EngineError> {
        let name = VersionPlace::part_of(id, PART);
        self.place.store().remove(&name).map_err(|why| self.failed(&why))
    }

    /// From now on a process that is writing this version cannot give it a name.
    ///
    /// # Errors
    /// The store's.
    pub fn stop_writer(&self, id: &VersionId) -> Result<(), EngineError> {
        let writer = VersionPlace::part_of(id, WRITER);
        self.place.store().remove(&writer).map_err(|why| self.failed(&why))
    }

    /// Whether a job is this version, or was begun on it.
    fn is_needed_by_job(&self, id: &VersionId) -> Result<bool, EngineError> {
        let jobs = JobRegistry::new(self.place.clone(), self.volume);
        let id = to_hex(id);
        for number in jobs.numbers()? {
            let needs = match jobs.find(number) {
                Ok(Some(job)) => job.id == id || job.base.layers.iter().any(|layer| layer.id == id),
                Ok(None) => false,
                // It says so by having the identity in it.
                Err(EngineError::Corrupt(_) | EngineError::Refused(_)) => {
                    jobs.has_identity(number, &id)?
                }
                Err(why) => return Err(why),
            };
            if needs {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Identities of all versions that have a name, that such versions or jobs need, and of jobs.
    ///
    /// # Errors
    /// The store's, and those of manifests that cannot be read: what they refer to is not known.
    fn ids(&self) -> Result<HashSet<VersionId>, EngineError> {
        let mut ids = HashSet::new();
        let mut add =
            |id: &str| ids.extend(from_hex(id).and_then(|id| VersionId::try_from(id).ok()));
        // Jobs first: one that is published meanwhile has its name before its record goes.
        let jobs = JobRegistry::new(self.place.clone(), self.volume);
        for number in jobs.numbers()? {
            let Some(job) = jobs.find(number)? else { continue };
            add(&job.id);
            job.base.layers.iter().for_each(|layer| add(&layer.id));
        }
        for name in self.names("")? {
            let Some(version) = self.find(&name)? else { continue };
            add(&version.id);
            version.needs().for_each(&mut add);
        }
        Ok(ids)
    }

    /// Numbers of all jobs with objects that something may need: those that there are, and those
    /// that made versions.
    ///
    /// # Errors
    /// The store's, and those of records and manifests that cannot be read.
    pub fn live_jobs(&self) -> Result<HashSet<u32>, EngineError> {
        let mut live = HashSet::new();
        let mut add = |base: &JobBase| {
            live.insert(base.job);
            live.extend(base.layers.iter().map(|layer| layer.job));
        };
        let jobs = JobRegistry::new(self.place.clone(), self.volume);
        let numbers = jobs.numbers()?;
        for number in &numbers {
            if let Some(job) = jobs.find(*number)? {
                add(&job.base);
            }
        }
        for name in self.names("")? {
            if let Some(version) = self.find(&name)? {
                version.changes().iter().for_each(|changes| add(&changes.base));
            }
        }
        Ok(live)
    }

    /// Versions that have tables and no name, with a writer that has said nothing for `age`: the
    /// writer was killed, or the version was being removed.
    ///
    /// # Errors
    /// The store's, and those of manifests that cannot be read.
    pub fn leftovers(&self, age: Duration) -> Result<Vec<VersionId>, EngineError> {
        let store = self.place.store();
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
        for (object, _) in self.place.store().list(DATA).map_err(|why| self.failed(&why))? {
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
        let store = self.place.store();
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
        let jobs = JobRegistry::new(self.place.clone(), self.volume);
        jobs.remove_all()?;
        for below in [PLANS, DATA] {
            for (object, _) in store.list(below).map_err(|why| self.failed(&why))? {
                store.remove(&object).map_err(|why| self.failed(&why))?;
            }
        }
        Ok(())
    }

    /// Removes the tables of a version that a job was being published as, and that has no name.
    ///
    /// # Errors
    /// The store's.
    pub fn remove_tables(&self, id: &VersionId) -> Result<(), EngineError> {
        self.stop_writer(id)?;
        let store = self.place.store();
        let found = store.list(&VersionPlace::tables_of(id)).map_err(|why| self.failed(&why))?;
        found
            .iter()
            .try_for_each(|(object, _)| store.remove(object).map_err(|why| self.failed(&why)))
    }

    /// Removes the tables of a version that has no name, and so many objects.
    ///
    /// # Errors
    /// The store's.
    pub fn remove_data(&self, id: &VersionId) -> Result<usize, EngineError> {
        // First: a writer that is still there finds out.
        self.stop_writer(id)?;
        let store = self.place.store();
        let found = store.list(&VersionPlace::prefix_of(id)).map_err(|why| self.failed(&why))?;
        for (object, _) in &found {
            store.remove(object).map_err(|why| self.failed(&why))?;
        }
        Ok(found.len() + 1)
    }
}
