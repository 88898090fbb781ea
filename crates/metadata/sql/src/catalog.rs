//! What the virtual tables share: the versions of a volume, opened as queries name them.

use std::collections::BTreeSet;
use std::sync::Arc;

use kestrel_bucket::version::{VersionManifest, VersionPlace, VersionRegistry, check_name};
use kestrel_engine::EngineError;
use parking_lot::Mutex;

use crate::store::{CountedStore, ReadCounters};
use crate::version::OpenVersion;

/// Versions that are open at a time: a query may compare some.
pub const OPEN_MAX: usize = 4;

/// Names of versions that are not there which are kept, for a message.
const ABSENT_MAX: usize = 10;

/// See the module's header.
pub struct Catalog {
    registry: VersionRegistry,
    /// The only version that there is; none: all of the volume.
    only: Option<VersionManifest>,
    /// Blocks of tables of a version, bytes.
    cache_bytes: u64,
    /// The one that was used last is the last.
    open: Mutex<Vec<Arc<OpenVersion>>>,
    /// Names that were asked for, of no version.
    absent: Mutex<BTreeSet<String>>,
    /// Why a table could not be read.
    failure: Mutex<Option<String>>,
    pub counters: Arc<ReadCounters>,
}

impl Catalog {
    /// Of all versions of a volume, or of one of them.
    pub fn new(
        registry: &VersionRegistry,
        only: Option<VersionManifest>,
        cache_bytes: u64,
    ) -> Self {
        let counters = Arc::<ReadCounters>::default();
        let store = registry.place().store().clone();
        let place = VersionPlace::new(Arc::new(CountedStore { store, counters: counters.clone() }));
        Self {
            registry: VersionRegistry::new(place, *registry.volume()),
            only,
            cache_bytes,
            open: Mutex::default(),
            absent: Mutex::default(),
            failure: Mutex::default(),
            counters,
        }
    }

    /// Names of versions, in order: of all, or the one of this name if there may be one.
    pub fn names(&self, name: Option<&[u8]>) -> Result<Vec<String>, EngineError> {
        let Some(name) = name else {
            return match &self.only {
                Some(only) => Ok(vec![only.name.clone()]),
                None => self.registry.names(""),
            };
        };
        // What cannot be a name is no version's, and no object is asked for it.
        let name = std::str::from_utf8(name).ok().filter(|name| check_name(name).is_ok());
        Ok(name.map(String::from).into_iter().collect())
    }

    /// A version, if it is there.
    pub fn find(&self, name: &str) -> Result<Option<VersionManifest>, EngineError> {
        let found = match &self.only {
            Some(only) => (only.name == name).then(|| only.clone()),
            None => self.registry.find(name)?,
        };
        if found.is_none() {
            let mut absent = self.absent.lock();
            if absent.len() < ABSENT_MAX {
                absent.insert(name.into());
            }
        }
        Ok(found)
    }

    /// Names that were asked for, of no version: some of them.
    pub fn absent(&self) -> Vec<String> {
        self.absent.lock().iter().cloned().collect()
    }

    /// A version to be read, if it is there.
    pub fn open(&self, name: &str) -> Result<Option<Arc<OpenVersion>>, EngineError> {
        let mut open = self.open.lock();
        if let Some(at) = open.iter().position(|version| version.name() == name) {
            let version = open.remove(at);
            open.push(version.clone());
            return Ok(Some(version));
        }
        let Some(manifest) = self.find(name)? else { return Ok(None) };
        let place = self.registry.place();
        let version = OpenVersion::new(place, manifest, self.counters.clone(), self.cache_bytes)?;
        let version = Arc::new(version);
        if open.len() >= OPEN_MAX {
            open.remove(0);
        }
        open.push(version.clone());
        Ok(Some(version))
    }

    /// Keeps why a table could not be read, for SQLite tells it without that.
    pub fn fail(&self, why: &EngineError) -> rusqlite::Error {
        let why = why.to_string();
        *self.failure.lock() = Some(why.clone());
        rusqlite::Error::ModuleError(why)
    }

    /// Why a table could not be read, if that was so since it was last asked.
    pub fn take_failure(&self) -> Option<String> {
        self.failure.lock().take()
    }
}
