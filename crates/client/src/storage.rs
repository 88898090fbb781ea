//! Where a volume's objects are, and the stack of block stores that leads there:
//!
//! | file | |
//! | --- | --- |
//! | `shared` | the block store of a volume that one process serves and others use |
//!
//! coding (compression, encryption); disk cache, if the mount has
//! one: it holds what the store holds, so data encrypted there is encrypted here too; the store
//! itself: a local directory, or a bucket of an S3 service.

use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kestrel_blockstore::named::{EncryptedNamed, LocalNamed, NamedStore};
use kestrel_blockstore::store::coded::{CodedStore, CodingMemory, Compression, Keys};
use kestrel_blockstore::store::local::{LocalConfig, LocalStore};
use kestrel_blockstore::store::{BlockStore, TieredDirs, key};
use kestrel_bucket::version::{VersionId, VersionPlace, VersionRegistry};
use kestrel_bucket::{BucketUrl, LiveTables};
use kestrel_cache::{CacheOptions, CachedNamed, CachedStore, NumberedNames, WholeCopies};
use kestrel_s3::{OpenError, S3_SCHEME, S3Limits, S3Named, S3Options, S3Store};
use kestrel_types::ids::ObjectId;

use crate::descriptor::{Descriptor, Settings};
use crate::disk_space::{data_reserve, disk_bytes};
use crate::error::VolumeError;
use crate::keys;
use crate::memory::MemoryPlan;
use crate::state_dir::credentials_for;

mod shared;

pub(crate) use shared::mark_objects;
pub use shared::{Offer, SharedDir};

/// Directory of the block store within the volume's, unless the settings name another place.
pub const OBJECTS_DIR: &str = "objects";

/// Why files of jobs are not in the cache as whole copies: those are told apart by numbers that two
/// jobs may give at one time.
const WHOLE_OF_JOBS: &str = "files that a job has made are not kept as whole copies";

/// The part that tables have of the memory for what waits for cache disks.
const TABLES_PART: u64 = 4;

/// How a process reaches a volume's objects. Nothing of this is kept in the volume.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// File with credentials of the store; none: those of the environment or the machine.
    pub credentials: Option<PathBuf>,
    /// File with the volume's key; none: the one that the environment names, if the volume needs
    /// one.
    pub key_file: Option<PathBuf>,
    /// Uploads at a time.
    pub max_uploads: usize,
    /// Downloads at a time.
    pub max_downloads: usize,
    /// Bytes a second written to the store; none: no limit.
    pub upload_limit: Option<NonZeroU64>,
    /// Bytes a second read from the store; none: no limit.
    pub download_limit: Option<NonZeroU64>,
    /// Directories of the disk cache; without any there is none.
    pub cache_dirs: Vec<PathBuf>,
    /// Most bytes in each of them; none: the cache's default.
    pub cache_bytes: Option<u64>,
    /// Part of their disks that stays free; none: the cache's default.
    pub free_space_ratio: Option<f64>,
    /// Memory for all this, and for the rest of the process.
    pub memory: MemoryPlan,
}

impl Default for StoreOptions {
    fn default() -> Self {
        let limits = S3Limits::default();
        Self {
            credentials: None,
            key_file: None,
            max_uploads: limits.max_uploads,
            max_downloads: limits.max_downloads,
            upload_limit: None,
            download_limit: None,
            cache_dirs: Vec::new(),
            cache_bytes: None,
            free_space_ratio: None,
            memory: MemoryPlan::default(),
        }
    }
}

/// Where the settings say the objects are.
#[derive(Clone)]
enum ObjectsUrl {
    Dir(PathBuf),
    S3(S3Options),
}

impl ObjectsUrl {
    fn of(dir: &Path, settings: &Settings, options: &StoreOptions) -> Result<Self, VolumeError> {
        let Some(url) = settings.storage.as_deref() else {
            return Ok(Self::Dir(dir.join(OBJECTS_DIR)));
        };
        match Self::at(url, options)? {
            Self::S3(s3) => {
                let credentials = credentials_for(dir, options.credentials.as_deref());
                Ok(Self::S3(s3.credentials_file(credentials)))
            }
            other => Ok(other),
        }
    }

    fn at(url: &str, options: &StoreOptions) -> Result<Self, VolumeError> {
        match url {
            url if url.starts_with(S3_SCHEME) => {
                let limits = S3Limits {
                    max_uploads: options.max_uploads,
                    max_downloads: options.max_downloads,
                    upload_bytes_per_second: options.upload_limit,
                    download_bytes_per_second: options.download_limit,
                    ..S3Limits::default()
                };
                let parsed = S3Options::parse(url).map_err(refused)?;
                Ok(Self::S3(parsed.credentials_file(options.credentials.clone()).limits(limits)))
            }
            url => Ok(Self::Dir(url.strip_prefix("file://").unwrap_or(url).into())),
        }
    }
}

fn refused(error: OpenError) -> VolumeError {
    match error {
        OpenError::Url(why) => VolumeError::Invalid(why),
        other => VolumeError::Io(other.to_string()),
    }
}

fn block_store(place: &Path, error: &kestrel_blockstore::Error) -> VolumeError {
    VolumeError::Io(format!("block store {}: {error}", place.display()))
}

/// Opens a store in a directory and keeps a part of the disk free.
fn open_dir(dir: &Path) -> Result<Arc<dyn BlockStore>, VolumeError> {
    let reserve_bytes = disk_bytes(dir).map_or(0, data_reserve);
    let config = LocalConfig { reserve_bytes, ..LocalConfig::default() };
    let failed = |error| block_store(dir, &error);
    let looked = TieredDirs::is_one(dir).map_err(|error| VolumeError::io("open", dir, error))?;
    Ok(match looked {
        true => Arc::new(TieredDirs::open(dir, config).map_err(failed)?),
        false => Arc::new(LocalStore::open(dir, config).map_err(failed)?),
    })
}

/// What parts of dumps are bound to in place of the volume's identity: none of them can be passed
/// off as an object of the volume.
fn volume_of_dumps(mut volume: [u8; 16]) -> [u8; 16] {
    for (byte, other) in volume.iter_mut().zip(b"dumps of volume!") {
        *byte ^= other;
    }
    volume
}

/// Finds mistakes in the settings and options that need no request to find.
///
/// # Errors
/// Names the mistake.
pub(crate) fn check(descriptor: &Descriptor, options: &StoreOptions) -> Result<(), VolumeError> {
    ObjectsUrl::of(Path::new(""), &descriptor.settings, options).map(drop)
}

/// Checks that a cluster's objects are reached from here, as far as that needs no request.
///
/// # Errors
/// Says what is in the way.
pub(crate) fn check_reached(
    dir: &Path,
    descriptor: &Descriptor,
    options: &StoreOptions,
) -> Result<(), VolumeError> {
    match (ObjectsUrl::of(dir, &descriptor.settings, options)?, &descriptor.cluster) {
        (ObjectsUrl::Dir(objects), Some(section)) => {
            shared::recognize(&objects, section.objects_word.as_deref())
        }
        _ => Ok(()),
    }
}

/// Makes the place for a new volume's objects.
///
/// # Errors
/// If it cannot be made, or holds something already.
pub(crate) fn create(
    dir: &Path,
    descriptor: &Descriptor,
    options: &StoreOptions,
) -> Result<(), VolumeError> {
    match ObjectsUrl::of(dir, &descriptor.settings, options)? {
        ObjectsUrl::S3(s3) => {
            S3Store::create(s3, descriptor.uuid_bytes()).map(drop).map_err(refused)
        }
        ObjectsUrl::Dir(objects) => {
            fs::create_dir_all(&objects)
                .map_err(|error| VolumeError::io("create", &objects, error))?;
            LocalStore::create(&objects, LocalConfig::default())
                .map(drop)
                .map_err(|error| block_store(&objects, &error))
        }
    }
}

/// Removes a volume's objects, and its dumps, from a bucket. Directories are left to the code that
/// removes the volume's, or made them.
///
/// # Errors
/// If the store refuses; some objects may be gone then.
pub(crate) fn erase(
    dir: &Path,
    descriptor: &Descriptor,
    options: &StoreOptions,
) -> Result<(), VolumeError> {
    erase_unless(dir, descriptor, options, &|_| false)
}

/// The same where another volume may have taken the place: its objects stay.
///
/// # Errors
/// As for [`erase`].
pub(crate) fn erase_own(
    dir: &Path,
    descriptor: &Descriptor,
    options: &StoreOptions,
) -> Result<(), VolumeError> {
    erase_unless(dir, descriptor, options, &|why| matches!(why, OpenError::OtherVolume { .. }))
}

fn erase_unless(
    dir: &Path,
    descriptor: &Descriptor,
    options: &StoreOptions,
    is_fine: &dyn Fn(&OpenError) -> bool,
) -> Result<(), VolumeError> {
    match ObjectsUrl::of(dir, &descriptor.settings, options)? {
        ObjectsUrl::S3(s3) => {
            // Its versions and dumps first: as long as there are objects the volume's marker stays,
            // and it can be repeated.
            let (place, volume) = (ObjectsUrl::S3(s3.clone()), descriptor.uuid_bytes());
            let versions = VersionsUrl { place, volume, keys: None, stored: OnceLock::new() };
            let versions = versions.registry(versions.open_stored(false)?);
            versions.remove_all().map_err(VolumeError::engine)?;
            for place in [s3.clone().below(key::DUMPS), s3] {
                match S3Store::erase(place, descriptor.uuid_bytes()) {
                    // Nothing of this volume is there.
                    Ok(_) | Err(OpenError::NoMarker { .. }) => {}
                    Err(why) if is_fine(&why) => {}
                    Err(error) => return Err(refused(error)),
                }
            }
            Ok(())
        }
        ObjectsUrl::Dir(_) => Ok(()),
    }
}

/// The disk cache that the mount has.
fn cache_options(options: &StoreOptions) -> CacheOptions {
    let mut cache = CacheOptions::new(options.cache_dirs.clone());
    cache.bytes = options.cache_bytes.unwrap_or(cache.bytes);
    cache.free_space_ratio = options.free_space_ratio.unwrap_or(cache.free_space_ratio);
    cache.fill_queue_bytes = options.memory.fill_bytes_max;
    cache.span.bytes_max = options.memory.fetch_bytes(cache.span.bytes_max);
    cache
}

/// Tables with names that begin so, read through the cache directories. Starts threads.
fn cached_tables(
    stored: Arc<dyn NamedStore>,
    owner: [u8; 16],
    prefix: String,
    options: &StoreOptions,
) -> Result<Arc<dyn NamedStore>, String> {
    let mut cache = cache_options(options);
    // Beside that of file data, and tables are small.
    cache.fill_queue_bytes /= TABLES_PART;
    let cached = CachedNamed::open(stored, owner, NumberedNames { prefix }, cache);
    cached.map(|cached| Arc::new(cached) as Arc<dyn NamedStore>).map_err(|error| error.to_string())
}

/// Rows in a bucket, with their tables in the cache directories too, if there are any. What is kept
/// there is what the bucket has, so tables of an encrypted volume are encrypted there.
pub(crate) fn with_cached_tables(rows: BucketUrl, options: &StoreOptions) -> BucketUrl {
    if options.cache_dirs.is_empty() {
        return rows;
    }
    let options = options.clone();
    rows.tables_through(Arc::new(move |stored, tables: &LiveTables| {
        cached_tables(stored, tables.owner, tables.prefix.clone(), &options)
    }))
}

/// The store at the bottom.
enum Base {
    Dir(PathBuf),
    S3(Arc<S3Store>),
}

/// An open block store and what it consists of.
pub struct Storage {
    /// What everybody uses.
    pub store: Arc<dyn BlockStore>,
    /// Copies of whole files in the cache directories, or why there can be none.
    pub whole: Result<WholeCopies, &'static str>,
    base: Base,
    versions: VersionsUrl,
    /// The job, of the namespace of one.
    job: Option<u32>,
}

/// Where the published versions of a volume are.
struct VersionsUrl {
    place: ObjectsUrl,
    volume: [u8; 16],
    /// Data keys, if objects of the volume were ever to be encrypted.
    keys: Option<Keys>,
    /// Opened to read, with objects as they are stored.
    stored: OnceLock<Arc<dyn NamedStore>>,
}

impl VersionsUrl {
    fn of(
        place: ObjectsUrl,
        descriptor: &Descriptor,
        key_file: Option<&Path>,
    ) -> Result<Self, VolumeError> {
        let keys = keys::version_keys(descriptor, key_file)?;
        Ok(Self { place, volume: descriptor.uuid_bytes(), keys, stored: OnceLock::new() })
    }

    /// Opens it, with objects as they are stored; `probes`: it is tried whether the store has
    /// conditional puts.
    fn open_stored(&self, probes: bool) -> Result<Arc<dyn NamedStore>, VolumeError> {
        match &self.place {
            ObjectsUrl::S3(s3) => {
                let below = s3.clone().below(key::VERSIONS);
                Ok(Arc::new(S3Named::open(below, probes).map_err(refused)?))
            }
            ObjectsUrl::Dir(objects) => {
                let dir = objects.join(key::VERSIONS);
                Ok(Arc::new(LocalNamed::open(&dir).map_err(|error| block_store(&dir, &error))?))
            }
        }
    }

    /// The same to read; one for all callers.
    fn stored(&self) -> Result<Arc<dyn NamedStore>, VolumeError> {
        if let Some(store) = self.stored.get() {
            return Ok(store.clone());
        }
        let store = self.open_stored(false)?;
        Ok(self.stored.get_or_init(|| store).clone())
    }

    fn decrypted(&self, stored: Arc<dyn NamedStore>) -> VersionPlace {
        VersionPlace::new(match &self.keys {
            Some(keys) => Arc::new(EncryptedNamed::new(stored, self.volume, keys.clone())),
            None => stored,
        })
    }

    fn registry(&self, stored: Arc<dyn NamedStore>) -> VersionRegistry {
        VersionRegistry::new(self.decrypted(stored), self.volume)
    }
}

impl Storage {
    /// Opens the block store of the volume at `dir`. Starts threads.
    ///
    /// # Errors
    /// If the store cannot be reached, is another volume's, or needs a key that is not there.
    pub fn open(
        dir: &Path,
        descriptor: &Descriptor,
        options: &StoreOptions,
    ) -> Result<Self, VolumeError> {
        check_reached(dir, descriptor, options)?;
        Self::open_at(ObjectsUrl::of(dir, &descriptor.settings, options)?, descriptor, options)
    }

    fn open_at(
        place: ObjectsUrl,
        descriptor: &Descriptor,
        options: &StoreOptions,
    ) -> Result<Self, VolumeError> {
        let volume = descriptor.uuid_bytes();
        // First, because it needs no request.
        let coding = keys::coding(descriptor, options.key_file.as_deref())?;
        let versions = VersionsUrl::of(place.clone(), descriptor, options.key_file.as_deref())?;
        let (base, mut store): (Base, Arc<dyn BlockStore>) = match place {
            ObjectsUrl::S3(s3) => {
                let s3 = Arc::new(S3Store::open(s3, volume).map_err(refused)?);
                (Base::S3(s3.clone()), s3)
            }
            ObjectsUrl::Dir(objects) => {
                let local = open_dir(&objects)?;
                (Base::Dir(objects), local)
            }
        };
        let mut whole = Err("the mount has no cache directory; mount the volume with --cache-dir");
        if !options.cache_dirs.is_empty() {
            let cached = CachedStore::open(store, volume, cache_options(options))
                .map_err(|error| VolumeError::Io(error.to_string()))?;
            whole = match descriptor
                .coding
                .as_ref()
                .is_some_and(|coding| coding.encryption.is_some())
            {
                false => Ok(cached.whole_copies()),
                true => Err(
                    "the volume is encrypted, and copies of whole files would lie in the cache in \
                     the clear",
                ),
            };
            store = Arc::new(cached);
        }
        if descriptor.job.is_some() {
            whole = Err(WHOLE_OF_JOBS);
        }
        let memory = CodingMemory {
            kept_bytes: options.memory.coding_kept_bytes as usize,
            head_bytes: options.memory.head_bytes as usize,
        };
        let coded = match coding {
            Some(coding) => CodedStore::new(store, volume, coding),
            // A directory's policy may have objects compressed.
            None => CodedStore::of_plain(store, volume),
        };
        store = Arc::new(coded.with_memory(memory));
        Ok(Self { store, whole, base, versions, job: descriptor.job })
    }

    /// Opens the store of the volume's dumps, which is made if there is none: [`key::DUMPS`] below
    /// the place of its objects.
    ///
    /// # Errors
    /// As for [`Storage::open`].
    pub fn open_dumps(
        dir: &Path,
        descriptor: &Descriptor,
        options: &StoreOptions,
    ) -> Result<Arc<dyn BlockStore>, VolumeError> {
        check_reached(dir, descriptor, options)?;
        match ObjectsUrl::of(dir, &descriptor.settings, options)? {
            // The marker is the volume's, as that of its objects is.
            ObjectsUrl::S3(s3) => {
                let dumps = S3Store::create(s3.below(key::DUMPS), descriptor.uuid_bytes());
                dumps.map(|dumps| Arc::new(dumps) as Arc<dyn BlockStore>).map_err(refused)
            }
            ObjectsUrl::Dir(objects) => {
                let dumps = objects.join(key::DUMPS);
                fs::create_dir_all(&dumps)
                    .map_err(|error| VolumeError::io("create", &dumps, error))?;
                open_dir(&dumps)
            }
        }
    }

    /// The same for a version that a job made.
    #[must_use]
    pub(crate) fn of_job(self) -> Self {
        Self { whole: Err(WHOLE_OF_JOBS), ..self }
    }

    /// Number of the job, of the namespace of one.
    pub fn job(&self) -> Option<u32> {
        self.job
    }

    /// The published versions of the volume, to read them.
    ///
    /// # Errors
    /// If their place cannot be reached.
    pub fn versions(&self) -> Result<VersionRegistry, VolumeError> {
        Ok(self.versions.registry(self.versions.stored()?))
    }

    /// The place of the versions to read the tables of one: what is read is kept in the cache
    /// directories, if there are any. Starts threads then.
    ///
    /// # Errors
    /// As for [`Storage::versions`], and those of the cache.
    pub fn version_tables(
        &self,
        id: &VersionId,
        options: &StoreOptions,
    ) -> Result<VersionPlace, VolumeError> {
        let stored = self.versions.stored()?;
        if options.cache_dirs.is_empty() {
            return Ok(self.versions.decrypted(stored));
        }
        let cached = cached_tables(stored, *id, VersionPlace::tables_of(id), options);
        Ok(self.versions.decrypted(cached.map_err(VolumeError::Io)?))
    }

    /// The URL of the place of its objects, for another process on this machine.
    pub fn url(&self, settings: &Settings) -> Result<String, VolumeError> {
        match &self.base {
            Base::Dir(dir) => {
                let path =
                    fs::canonicalize(dir).map_err(|error| VolumeError::io("find", dir, error))?;
                Ok(format!("file://{}", path.display()))
            }
            // What is in a bucket is so by its settings.
            Base::S3(_) => Ok(settings.storage.clone().unwrap_or_default()),
        }
    }

    /// The same to publish one.
    ///
    /// # Errors
    /// As there, and if the store has no conditional puts.
    pub fn versions_to_publish(&self) -> Result<VersionRegistry, VolumeError> {
        if let Base::Dir(dir) = &self.base {
            // Servers of the version write nothing, and tell their clients of the marker.
            shared::mark(dir)?;
        }
        Ok(self.versions.registry(self.versions.open_stored(true)?))
    }

    /// The versions of the volume at `dir`, without opening its objects.
    ///
    /// # Errors
    /// As for [`Storage::versions`].
    pub fn versions_of(
        dir: &Path,
        descriptor: &Descriptor,
        options: &StoreOptions,
    ) -> Result<VersionRegistry, VolumeError> {
        check_reached(dir, descriptor, options)?;
        let place = ObjectsUrl::of(dir, &descriptor.settings, options)?;
        let versions = VersionsUrl::of(place, descriptor, options.key_file.as_deref())?;
        Ok(versions.registry(versions.stored()?))
    }

    /// Opens the store of the dumps of whatever volume has its objects at `url`, `s3://…` or
    /// `file:///…`.
    ///
    /// # Errors
    /// If it cannot be reached, or there is none.
    pub fn find_dumps(
        url: &str,
        options: &StoreOptions,
    ) -> Result<Arc<dyn BlockStore>, VolumeError> {
        match ObjectsUrl::at(url, options)? {
            ObjectsUrl::S3(s3) => {
                let dumps = S3Store::open_any(s3.below(key::DUMPS));
                dumps.map(|dumps| Arc::new(dumps) as Arc<dyn BlockStore>).map_err(refused)
            }
            ObjectsUrl::Dir(objects) => open_dir(&objects.join(key::DUMPS)),
        }
    }

    /// What parts of dumps of a volume are read and written through: compression, and the volume's
    /// encryption, above their store.
    ///
    /// # Errors
    /// If the volume's key is needed and not there.
    pub fn coded_dumps(
        plain: Arc<dyn BlockStore>,
        descriptor: &Descriptor,
        options: &StoreOptions,
    ) -> Result<Arc<dyn BlockStore>, VolumeError> {
        let mut coding = keys::coding(descriptor, options.key_file.as_deref())?.unwrap_or_default();
        if coding.compression == Compression::None {
            // They are text.
            coding.compression = Compression::Zstd(Compression::ZSTD_LEVEL_DEFAULT);
        }
        Ok(Arc::new(CodedStore::new(plain, volume_of_dumps(descriptor.uuid_bytes()), coding)))
    }

    /// Where an object lies, for people and other programs: a path or a URL.
    pub fn place_of(&self, object: ObjectId) -> String {
        match &self.base {
            Base::S3(s3) => s3.place(object),
            Base::Dir(dir) => {
                let name = format!("{:02x}/{object:016x}", key::prefix(object));
                let (place, archived) = (dir.join(&name), dir.join(key::ARCHIVE).join(&name));
                let place = if archived.exists() && !place.exists() { archived } else { place };
                place.to_string_lossy().into_owned()
            }
        }
    }
}
