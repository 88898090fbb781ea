//! A client on a store and an engine in memory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "not every test uses all of it")]

use std::sync::Arc;

use kestrel_blockstore::packer::{ObjectIds, Packer, PackerConfig};
use kestrel_blockstore::reader::{Reader, ReaderConfig};
use kestrel_blockstore::store::BlockStore;
use kestrel_blockstore::{Pool, ReadAheadConfig};
use kestrel_client::fs::{Caller, Creation, FileHandle, Fs, FsConfig, FsParts, IoPools, wait};
use kestrel_client::metadata::{Embedded, Metadata};
use kestrel_engine::memory::MemoryEngine;
use kestrel_meta::node::{Node, NodeConfig, RootAttr};
use kestrel_types::clock::{ManualClock, SECOND};
use kestrel_types::ids::ROOT;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::OpenFlags;

/// Largest stored range, bytes.
pub const BLOCK: u32 = 64 * 1024;

struct Ids(std::sync::atomic::AtomicU64);

impl ObjectIds for Ids {
    fn next(&self) -> kestrel_blockstore::Result<u64> {
        Ok(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

/// A file system in memory, and its clock, which stands still.
pub fn file_system(store: Arc<dyn BlockStore>) -> (Arc<Fs>, Arc<ManualClock>) {
    let engine = Arc::new(MemoryEngine::default());
    Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, SECOND).unwrap();
    let clock = Arc::new(ManualClock::new(2 * SECOND));
    let node =
        Node::open(engine, clock.clone(), NodeConfig { workers: 2, ..NodeConfig::default() })
            .unwrap();
    let fs = client(Arc::new(Embedded::new(node)), store, clock.clone(), 1);
    (fs, clock)
}

/// A file system on given metadata, with objects that have numbers from `first_object` on.
pub fn client(
    metadata: Arc<dyn Metadata>,
    store: Arc<dyn BlockStore>,
    clock: Arc<ManualClock>,
    first_object: u64,
) -> Arc<Fs> {
    let ids = Arc::new(Ids(first_object.into()));
    let packer = Packer::new(store.clone(), ids, PackerConfig::new([0; 16])).unwrap();
    let reader = Reader::new(store.clone(), ReaderConfig::default());
    let pools = IoPools {
        wanted: Pool::new("test", 2, 1024).unwrap(),
        ahead: Pool::new("test", 2, 64).unwrap(),
        copies: Pool::new("test", 1, 64).unwrap(),
    };
    let config = FsConfig {
        block_bytes: BLOCK,
        inline_max: 4096,
        dirty_bytes_max: 1 << 20,
        read_bytes_max: Some(8 << 20),
        read_kept_bytes: 1 << 20,
        listed_entries_max: 1 << 16,
        snapshot_bytes: 1 << 20,
        readahead: ReadAheadConfig::default(),
        flush_interval: i64::MAX / 4,
        read_only: false,
        atime: Default::default(),
    };
    Fs::new(FsParts { metadata, store, packer, reader, pools, clock }, config)
}

/// Open for reading and writing.
pub const READ_WRITE: OpenFlags = OpenFlags {
    read: true,
    write: true,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

/// Opens a file of the root, made if need be.
pub fn open(fs: &Arc<Fs>, name: &str) -> Arc<FileHandle> {
    let name = Name::new(name.as_bytes()).unwrap();
    let how = Creation { mode: 0o644, flags: READ_WRITE, exclusive: false };
    wait(|done| fs.create(Caller::ROOT, PathRef::new(ROOT, name), how, done)).unwrap().handle
}
