//! A volume in memory without any grace period, and what an administrator does with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_admin::check::{Live, Options, ReadData, check};
use kestrel_admin::cut::Cut;
use kestrel_admin::finding::Severity;
use kestrel_admin::gc;
use kestrel_blockstore::packer::{ObjectIds, Packer, PackerConfig};
use kestrel_blockstore::reader::{Reader, ReaderConfig};
use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_blockstore::{Pool, ReadAheadConfig};
use kestrel_client::fs::{
    Caller, CompactOptions, Compacted, CopyRange, Creation, FileHandle, Fs, FsConfig, FsParts,
    IoPools, wait,
};
use kestrel_client::metadata::Embedded;
use kestrel_engine::Engine;
use kestrel_engine::memory::MemoryEngine;
use kestrel_meta::node::{Node, NodeConfig, RootAttr};
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::ids::ROOT;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, Request};

pub const BLOCK: u32 = 64 * 1024;

pub const READ_WRITE: OpenFlags = OpenFlags {
    read: true,
    write: true,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

struct Ids(AtomicU64);

impl ObjectIds for Ids {
    fn next(&self) -> kestrel_blockstore::Result<u64> {
        Ok(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

pub struct Volume {
    pub fs: Arc<Fs>,
    pub engine: Arc<MemoryEngine>,
    pub store: Arc<dyn BlockStore>,
}

/// A volume without grace, of small packs.
pub fn volume(store: Arc<dyn BlockStore>) -> Volume {
    let engine = Arc::new(MemoryEngine::default());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, clock.now()).unwrap();
    let node_config = NodeConfig { workers: 2, grace: 0, ..NodeConfig::default() };
    let node = Node::open(engine.clone(), clock.clone(), node_config).unwrap();
    let numbers = node.call(Request { creds: Creds::root(), op: Op::AllocObjects(1 << 20) });
    let Ok(Answer::Objects { first, .. }) = numbers else { panic!("{numbers:?}") };
    let config = PackerConfig { pack_bytes: 256 * 1024, ..PackerConfig::new([0; 16]) };
    let packer = Packer::new(store.clone(), Arc::new(Ids(first.into())), config).unwrap();
    let reader =
        Reader::new(store.clone(), ReaderConfig { cache_bytes: 0, ..ReaderConfig::default() });
    let pools = IoPools {
        wanted: Pool::new("test", 4, 1024).unwrap(),
        ahead: Pool::new("test", 2, 64).unwrap(),
        copies: Pool::new("test", 1, 64).unwrap(),
    };
    let config = FsConfig {
        block_bytes: BLOCK,
        inline_max: 1000,
        dirty_bytes_max: 8 << 20,
        read_bytes_max: Some(8 << 20),
        read_kept_bytes: 1 << 20,
        listed_entries_max: 1 << 16,
        snapshot_bytes: 1 << 20,
        readahead: ReadAheadConfig::default(),
        flush_interval: i64::MAX / 4,
        read_only: false,
        atime: Default::default(),
    };
    let parts = FsParts {
        metadata: Arc::new(Embedded::new(node)),
        store: store.clone(),
        packer,
        reader,
        pools,
        clock,
    };
    let fs = Fs::new(parts, config);
    Volume { fs, engine, store }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn open(fs: &Arc<Fs>, text: &str) -> Arc<FileHandle> {
    let how = Creation { mode: 0o644, flags: READ_WRITE, exclusive: false };
    wait(|done| fs.create(Caller::ROOT, PathRef::new(ROOT, name(text)), how, done)).unwrap().handle
}

pub fn close(fs: &Arc<Fs>, file: Arc<FileHandle>) {
    wait(|done| fs.flush(&file, done)).unwrap();
    wait(|done| fs.release(file, done)).unwrap();
}

/// Copies all of `from` over the beginning of `to`.
pub fn copy(fs: &Arc<Fs>, from: &Arc<FileHandle>, to: &Arc<FileHandle>) -> u64 {
    let (from, to) = (from.clone(), to.clone());
    let range =
        CopyRange { from, from_offset: 0, to, to_offset: 0, len: 1 << 20, unprivileged: None };
    wait(|done| fs.copy_range(range, done)).unwrap()
}

pub fn read_all(fs: &Arc<Fs>, file: &Arc<FileHandle>) -> Vec<u8> {
    wait(|done| fs.read(file, 0, 16 << 20, done)).unwrap()
}

pub fn write(fs: &Arc<Fs>, text: &str, bytes: &[u8]) {
    let file = open(fs, text);
    fs.write(&file, 0, bytes, false).unwrap();
    close(fs, file);
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (seed.wrapping_mul(31).wrapping_add(i / 5 + i * i / 977) as u8) | 1)
        .collect()
}

/// Whatever can be, at once.
pub fn everything() -> CompactOptions<'static> {
    CompactOptions {
        rows: None,
        paths: None,
        grace: 0,
        dry_run: false,
        is_worth: &|_| true,
        go_on: &|_| true,
    }
}

pub fn compact(volume: &Volume) -> Compacted {
    volume.fs.compact_volume(&everything(), &mut |_, _| {}).unwrap()
}

pub fn collect(volume: &Volume, grace: i64) -> gc::Totals {
    let is_open = |object| volume.fs.is_open_object(object);
    let options = gc::Options {
        now: SystemClock.now(),
        grace,
        delete: true,
        is_open: &is_open,
        go_on: &|| true,
    };
    gc::collect(&*volume.engine, &*volume.store, &options, &mut |_| {}, &mut |_, _| {}).unwrap()
}

/// Errors that a check of the volume in use finds, data included.
pub fn errors(volume: &Volume, scratch: &std::path::Path) -> Vec<String> {
    let is_open = |object| volume.fs.is_open_object(object);
    let engine: &dyn Engine = &*volume.engine;
    let cut = Cut::take(engine, scratch, 0, &mut |_| {}).unwrap();
    let mut options = Options {
        store: Some(&*volume.store),
        data: Some(ReadData { threads: 2, go_on: &|| true }),
        live: Some(Live { engine, now: SystemClock.now(), grace: 0, is_open: &is_open }),
        ..Options::default()
    };
    let mut found = Vec::new();
    let mut report = |finding: kestrel_admin::finding::Finding| {
        if finding.kind.severity() == Severity::Error {
            found.push(format!("{}: {}: {}", finding.kind.name(), finding.path, finding.detail));
        }
    };
    check(cut.engine(), &mut options, &mut report, &mut |_, _| {}).unwrap();
    found
}

pub fn objects(store: &dyn BlockStore) -> usize {
    list_all(store).map(|page| page.unwrap().objects.len()).sum()
}
