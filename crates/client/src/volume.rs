//! An embedded volume: a directory with descriptor, metadata engine and block store, open in one process at a time.
//!
//! [`Volume::open`] gives the raw parts, for the tools that check, dump and collect; [`Volume::serve`] starts a metadata
//! node and a file system on them.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kestrel_data::Pool;
use kestrel_data::packer::{NoSink, Packer, PackerConfig};
use kestrel_data::reader::{Reader, ReaderConfig};
use kestrel_data::store::BlockStore;
use kestrel_data::store::local::{LocalConfig, LocalStore};
use kestrel_meta::engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_meta::engine::{BeforeSync, Engine, EngineError};
use kestrel_meta::node::{self, Node, NodeConfig, RootAttr};
use kestrel_types::clock::{Clock, SECOND, SystemClock};

use crate::descriptor::{Descriptor, Durability, FILE_NAME, Settings, volume_dir};
use crate::error::VolumeError;
use crate::fs::{Fs, FsConfig};
use crate::object_ids::ObjectIdPool;
use crate::recovery::refers_to_intact_data;

/// File that the process using a volume holds a lock on; it names the process.
const LOCK_FILE: &str = "lock";

/// Directory of the metadata engine.
const META_DIR: &str = "meta";

/// Directory of the block store, unless the settings name another place.
const OBJECTS_DIR: &str = "objects";

/// How often a volume in mode `fsync` syncs on its own (`metadata.md` §7.3).
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Most that is left free for metadata on the disk that holds the data, bytes.
const DATA_RESERVE_MAX: u64 = 192 << 20;

/// Jobs that may wait for the block store's threads.
const IO_QUEUE_MAX: usize = 4096;

/// What a process may use for a volume.
#[derive(Debug, Clone)]
pub struct Resources {
    /// Memory for metadata rows, bytes.
    pub metadata_bytes: u64,
    /// Memory for verified frames of file data, bytes.
    pub data_cache_bytes: usize,
    /// Memory for bytes written and not yet stored.
    pub dirty_bytes_max: u64,
    /// Largest read-ahead of one open file, bytes.
    pub readahead_bytes_max: u64,
    /// Threads that wait for the block store.
    pub io_threads: usize,
    /// Metadata workers.
    pub workers: usize,
}

impl Default for Resources {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            metadata_bytes: 512 << 20,
            data_cache_bytes: 64 << 20,
            dirty_bytes_max: 256 << 20,
            readahead_bytes_max: 8 << 20,
            io_threads: (2 * cores).clamp(4, 64),
            workers: cores.clamp(1, 64),
        }
    }
}

/// The raw parts of a volume that this process has open.
pub struct Volume {
    /// Its directory.
    pub dir: PathBuf,
    /// What it is.
    pub descriptor: Descriptor,
    /// Its metadata.
    pub engine: Arc<EmbeddedEngine>,
    /// Its data.
    pub store: Arc<dyn BlockStore>,
    lock: VolumeLock,
}

/// Keeps other processes out of a volume while it lives.
#[derive(Debug)]
pub struct VolumeLock(#[allow(dead_code, reason = "the open file is the lock")] File);

impl VolumeLock {
    /// Takes the lock of the volume at `dir`; `role` tells others what this process does with it.
    ///
    /// # Errors
    /// [`VolumeError::InUse`] names the holder.
    pub fn take(dir: &Path, role: &str) -> Result<Self, VolumeError> {
        let path = dir.join(LOCK_FILE);
        let io = |what: &str, error: &std::io::Error| VolumeError::io(what, &path, error);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| io("open", &error))?;
        // SAFETY: flock takes a descriptor that `file` keeps open, and no pointer.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = std::io::Error::last_os_error();
            if error.kind() != ErrorKind::WouldBlock {
                return Err(io("lock", &error));
            }
            let mut holder = String::new();
            let _ = (&file).take(1024).read_to_string(&mut holder);
            let holder =
                if holder.trim().is_empty() { "another process".into() } else { holder.trim().into() };
            return Err(VolumeError::InUse { dir: dir.into(), holder });
        }
        let write = |file: &mut File| -> std::io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            write!(file, "process {} ({role})", std::process::id())
        };
        // A full disk must not keep a volume from being opened; the note is for people only.
        if let Err(error) = write(&mut file) {
            log::debug!("{}: {error}", path.display());
        }
        Ok(Self(file))
    }

    /// Process that holds the lock of the volume at `dir`, if one does.
    pub fn holder(dir: &Path) -> Option<u32> {
        let file = File::open(dir.join(LOCK_FILE)).ok()?;
        // SAFETY: as in `take`.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) } == 0 {
            return None;
        }
        let mut text = String::new();
        let _ = (&file).take(1024).read_to_string(&mut text);
        text.strip_prefix("process ")?.split(' ').next()?.parse().ok()
    }
}

/// Creates a volume in a directory that is missing or empty; with `force`, replaces a volume that is there.
///
/// # Errors
/// Names what is in the way. Nothing of an existing volume is touched before all checks have passed.
pub fn format(url: &str, settings: Settings, force: bool) -> Result<Descriptor, VolumeError> {
    let dir = volume_dir(url)?;
    let clock = SystemClock;
    let descriptor = Descriptor::new(settings, clock.now())?;
    fs::create_dir_all(&dir).map_err(|error| VolumeError::io("create", &dir, &error))?;
    let mut entries = fs::read_dir(&dir).map_err(|error| VolumeError::io("list", &dir, &error))?;
    let occupied = entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found"));
    if occupied && !force {
        return Err(VolumeError::NotEmpty(dir));
    }
    let lock = VolumeLock::take(&dir, "kestrel format")?;
    let objects = objects_dir(&dir, &descriptor.settings);
    if occupied {
        // Only what a volume consists of is removed, the descriptor first: a half-removed volume is none.
        let removed = remove(&dir.join(FILE_NAME), |path| fs::remove_file(path))
            .and_then(|()| remove(&dir.join(META_DIR), |path| fs::remove_dir_all(path)))
            .and_then(|()| remove(&dir.join(OBJECTS_DIR), |path| fs::remove_dir_all(path)));
        removed?;
    }
    fs::create_dir_all(dir.join(META_DIR))
        .map_err(|error| VolumeError::io("create", &dir.join(META_DIR), &error))?;
    fs::create_dir_all(&objects).map_err(|error| VolumeError::io("create", &objects, &error))?;
    LocalStore::create(&objects, LocalConfig::default())
        .map_err(|error| VolumeError::Io(error.to_string()))?;
    let nothing: BeforeSync = Arc::new(|| Ok(()));
    let options = fitting_options(&dir);
    let engine =
        EmbeddedEngine::open(&dir.join(META_DIR), descriptor.uuid_bytes(), options, nothing, &mut |_| true)
            .map_err(|error| VolumeError::Engine(error.to_string()))?;
    // SAFETY: geteuid and getegid take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    Node::format(&engine, RootAttr { mode: 0o755, uid, gid }, clock.now())
        .map_err(|error| VolumeError::Engine(format!("{}: {error}", dir.display())))?;
    engine.sync().map_err(|error| VolumeError::Engine(error.to_string()))?;
    drop(engine);
    // Last of all: with the descriptor there is a volume, complete.
    descriptor.write(&dir)?;
    drop(lock);
    Ok(descriptor)
}

/// Sizes of the metadata log that suit the disk: on a small one the log must not take most of it.
fn fitting_options(dir: &Path) -> EmbeddedOptions {
    const MIB: u64 = 1 << 20;
    let defaults = EmbeddedOptions::default();
    let Some(disk_bytes) = disk_bytes(dir) else { return defaults };
    EmbeddedOptions {
        segment_bytes: (disk_bytes / 128).clamp(MIB, defaults.segment_bytes),
        log_bytes_max: (disk_bytes / 16).clamp(4 * MIB, defaults.log_bytes_max),
        // Half of what file data leaves free, so that data stops before metadata does.
        reserve_bytes: data_reserve(disk_bytes) / 2,
        ..defaults
    }
}

/// Bytes of a disk that file data leaves free.
fn data_reserve(disk_bytes: u64) -> u64 {
    (disk_bytes / 32).min(DATA_RESERVE_MAX)
}

/// Size of the file system that a directory lies on, bytes.
fn disk_bytes(dir: &Path) -> Option<u64> {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: statvfs is plain data for which zeros are valid.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call, and the path ends in NUL.
    let result = unsafe { libc::statvfs(path.as_ptr(), &raw mut found) };
    (result == 0).then_some(found.f_blocks.saturating_mul(found.f_frsize))
}

fn remove(path: &Path, how: impl Fn(&Path) -> std::io::Result<()>) -> Result<(), VolumeError> {
    match how(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(VolumeError::io("remove", path, &error)),
        _ => Ok(()),
    }
}

fn objects_dir(dir: &Path, settings: &Settings) -> PathBuf {
    match settings.storage.as_deref().and_then(|url| url.strip_prefix("file://")) {
        Some(path) => path.into(),
        None => dir.join(OBJECTS_DIR),
    }
}

impl Volume {
    /// Opens the volume that `url` names: takes its lock, replays its log.
    ///
    /// # Errors
    /// If it is not there, damaged, newer, or in use; the text says which and what to do.
    pub fn open(url: &str, role: &str, resources: &Resources) -> Result<Self, VolumeError> {
        let dir = volume_dir(url)?;
        let descriptor = Descriptor::read(&dir)?;
        let lock = VolumeLock::take(&dir, role)?;
        let objects = objects_dir(&dir, &descriptor.settings);
        let reserve_bytes = disk_bytes(&objects).map_or(0, data_reserve);
        let local_config = LocalConfig { reserve_bytes, ..LocalConfig::default() };
        let store: Arc<dyn BlockStore> = Arc::new(
            LocalStore::open(&objects, local_config)
                .map_err(|error| VolumeError::Io(format!("block store {}: {error}", objects.display())))?,
        );
        let synced = store.clone();
        let before_sync: BeforeSync = Arc::new(move || {
            synced.sync().map_err(|error| EngineError::Io(format!("syncing file data: {error}")))
        });
        let options = EmbeddedOptions {
            memory_bytes: resources.metadata_bytes,
            sync_interval: (descriptor.settings.durability == Durability::Fsync).then_some(SYNC_INTERVAL),
            ..fitting_options(&dir)
        };
        let reader = Reader::new(store.clone(), ReaderConfig { cache_bytes: 0, ..ReaderConfig::default() });
        let mut intact = |mutations: &[_]| refers_to_intact_data(&reader, mutations);
        let engine = EmbeddedEngine::open(
            &dir.join(META_DIR),
            descriptor.uuid_bytes(),
            options,
            before_sync,
            &mut intact,
        )
        .map_err(|error| VolumeError::Engine(format!("{}: {error}", dir.display())))?;
        Ok(Self { dir, descriptor, engine: Arc::new(engine), store, lock })
    }

    /// Starts a metadata node and a file system on the volume.
    ///
    /// # Errors
    /// If the metadata cannot be read or threads cannot be started.
    pub fn serve(self, resources: &Resources, read_only: bool) -> Result<MountedVolume, VolumeError> {
        let settings = &self.descriptor.settings;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let config = NodeConfig {
            workers: resources.workers,
            durability: match settings.durability {
                Durability::Commit => node::Durability::Commit,
                Durability::Fsync => node::Durability::Fsync,
            },
            grace: i64::from(settings.grace_seconds) * SECOND,
            ..NodeConfig::default()
        };
        let node = Node::open(self.engine.clone(), clock.clone(), config)
            .map_err(|error| VolumeError::Engine(format!("{}: {error}", self.dir.display())))?;
        let ids = ObjectIdPool::new(node.clone());
        let packer = Packer::new(
            self.store.clone(),
            Arc::new(ids),
            NoSink,
            PackerConfig::new(self.descriptor.uuid_bytes()),
        )
        .map_err(|error| VolumeError::Io(error.to_string()))?;
        let reader = Reader::new(
            self.store.clone(),
            ReaderConfig { cache_bytes: resources.data_cache_bytes, ..Default::default() },
        );
        let pool = Pool::new("kestrel-io", resources.io_threads, IO_QUEUE_MAX)
            .map_err(|error| VolumeError::Io(error.to_string()))?;
        let config = FsConfig {
            block_bytes: settings.block_bytes,
            inline_max: settings.inline_max,
            dirty_bytes_max: resources.dirty_bytes_max,
            readahead_bytes_max: resources.readahead_bytes_max,
            flush_interval: SECOND,
            read_only,
        };
        let fs = Fs::new(node, self.store.clone(), packer, reader, pool, clock, config);
        Ok(MountedVolume { fs, volume: self })
    }
}

/// A volume with a file system running on it.
pub struct MountedVolume {
    /// The file system. Call [`Fs::shutdown`] before dropping it.
    pub fs: Arc<Fs>,
    /// The raw parts.
    pub volume: Volume,
}

impl Volume {
    /// The lock that keeps others out; held as long as the volume is open.
    pub fn lock(&self) -> &VolumeLock {
        &self.lock
    }
}
