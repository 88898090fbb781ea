//! Administration beside load: writers write, cut, clone, rename and remove while the volume is compacted, collected, reaped
//! and checked again and again, all without any grace period. Nothing that a writer acknowledged may be lost, no check may
//! find damage, and in the end everything that is stored is in use.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kestrel_admin::check::{Live, Options, check};
use kestrel_admin::cut::Cut;
use kestrel_admin::finding::Severity;
use kestrel_admin::gc;
use kestrel_client::fs::{Caller, CompactOptions, Compacted, FileHandle, Fs, FsConfig, IoPools, wait};
use kestrel_data::packer::{ObjectIds, Packer, PackerConfig};
use kestrel_data::reader::{Reader, ReaderConfig};
use kestrel_data::store::failing::{Call, FailingStore, Fault, Rule};
use kestrel_data::store::{BlockStore, MemoryStore, list_all};
use kestrel_data::{Pool, ReadAheadConfig};
use kestrel_meta::engine::Engine;
use kestrel_meta::engine::memory::MemoryEngine;
use kestrel_meta::node::{Node, NodeConfig, RootAttr};
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Data;
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Creds, Op, OpenFlags, RenameFlags, Request, SetAttr};

const BLOCK: u32 = 64 * 1024;

const READ_WRITE: OpenFlags =
    OpenFlags { read: true, write: true, exec: false, truncate: false, kill_suid: false };

struct Ids(AtomicU64);

impl ObjectIds for Ids {
    fn next(&self) -> kestrel_data::Result<u64> {
        Ok(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

struct Volume {
    fs: Arc<Fs>,
    engine: Arc<MemoryEngine>,
    store: Arc<dyn BlockStore>,
}

/// A volume without grace, of small packs.
fn volume(store: Arc<dyn BlockStore>) -> Volume {
    let engine = Arc::new(MemoryEngine::default());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, clock.now()).unwrap();
    let node_config = NodeConfig { workers: 2, grace: 0, ..NodeConfig::default() };
    let node = Node::open(engine.clone(), clock.clone(), node_config).unwrap();
    let numbers = node.call(Request { creds: Creds::root(), op: Op::AllocObjects(1 << 20) });
    let Ok(Answer::Objects { first, .. }) = numbers else { panic!("{numbers:?}") };
    let config = PackerConfig { pack_bytes: 256 * 1024, ..PackerConfig::new([0; 16]) };
    let packer = Packer::new(store.clone(), Arc::new(Ids(first.into())), config).unwrap();
    let reader = Reader::new(store.clone(), ReaderConfig { cache_bytes: 0, ..ReaderConfig::default() });
    let pools =
        IoPools { wanted: Pool::new("test", 4, 1024).unwrap(), ahead: Pool::new("test", 2, 64).unwrap() };
    let config = FsConfig {
        block_bytes: BLOCK,
        inline_max: 1000,
        dirty_bytes_max: 8 << 20,
        readahead: ReadAheadConfig::default(),
        flush_interval: i64::MAX / 4,
        read_only: false,
    };
    let fs = Fs::new(node, store.clone(), packer, reader, pools, clock, config);
    Volume { fs, engine, store }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn open(fs: &Arc<Fs>, text: &str) -> Arc<FileHandle> {
    wait(|done| fs.create(Caller::ROOT, ROOT, name(text), 0o644, READ_WRITE, false, done)).unwrap().handle
}

fn close(fs: &Arc<Fs>, file: Arc<FileHandle>) {
    wait(|done| fs.flush(&file, done)).unwrap();
    wait(|done| fs.release(file, done)).unwrap();
}

fn read_all(fs: &Arc<Fs>, file: &Arc<FileHandle>) -> Vec<u8> {
    wait(|done| fs.read(file, 0, 16 << 20, done)).unwrap()
}

fn write(fs: &Arc<Fs>, text: &str, bytes: &[u8]) {
    let file = open(fs, text);
    fs.write(&file, 0, bytes, false).unwrap();
    close(fs, file);
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (seed.wrapping_mul(31).wrapping_add(i / 5 + i * i / 977) as u8) | 1).collect()
}

fn compact(volume: &Volume) -> Compacted {
    let options =
        CompactOptions { paths: None, grace: 0, dry_run: false, is_worth: &|_| true, go_on: &|_| true };
    volume.fs.compact_volume(&options, &mut |_, _| {}).unwrap()
}

fn collect(volume: &Volume, grace: i64) -> gc::Totals {
    let is_open = |object| volume.fs.is_open_object(object);
    let options =
        gc::Options { now: SystemClock.now(), grace, delete: true, is_open: &is_open, go_on: &|| true };
    gc::collect(&*volume.engine, &*volume.store, &options, &mut |_| {}, &mut |_, _| {}).unwrap()
}

/// Errors that a check of the volume in use finds, data included.
fn errors(volume: &Volume, scratch: &std::path::Path) -> Vec<String> {
    let is_open = |object| volume.fs.is_open_object(object);
    let engine: &dyn Engine = &*volume.engine;
    let cut = Cut::take(engine, scratch, 0, &mut |_| {}).unwrap();
    let reader =
        Reader::new(volume.store.clone(), ReaderConfig { cache_bytes: 0, ..ReaderConfig::default() });
    let mut verify = |range| reader.verify(range);
    let mut options = Options {
        store: Some(&*volume.store),
        verify: Some(&mut verify),
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

fn objects(store: &dyn BlockStore) -> usize {
    list_all(store).map(|page| page.unwrap().objects.len()).sum()
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// Files of one writer.
const FILES: usize = 16;

/// A writer with its files as they should be.
struct Writer {
    fs: Arc<Fs>,
    id: u64,
    random: Random,
    model: Vec<Option<Vec<u8>>>,
    open: Vec<Option<Arc<FileHandle>>>,
}

impl Writer {
    fn new(fs: Arc<Fs>, id: u64) -> Self {
        let random = Random(0x9e37_79b9_7f4a_7c15 ^ (id + 1));
        Self { fs, id, random, model: vec![None; FILES], open: vec![None; FILES] }
    }

    fn name(&self, file: usize) -> String {
        format!("w{}-{file}", self.id)
    }

    fn handle(&mut self, file: usize) -> Arc<FileHandle> {
        let text = self.name(file);
        self.model[file].get_or_insert_default();
        self.open[file].get_or_insert_with(|| open(&self.fs, &text)).clone()
    }

    fn step(&mut self, step: u64) {
        let file = self.random.below(FILES as u64) as usize;
        match self.random.below(12) {
            0..=2 => {
                let len = 1 + self.random.below(60_000) as usize;
                let bytes = pattern(step * 7 + self.id, len);
                let handle = self.handle(file);
                let set = SetAttr { size: Some(0), through_handle: true, ..SetAttr::default() };
                wait(|done| self.fs.setattr(Caller::ROOT, handle.ino(), set, done)).unwrap();
                self.fs.write(&handle, 0, &bytes, false).unwrap();
                self.model[file] = Some(bytes);
            }
            3..=5 => {
                let (offset, len) = (self.random.below(300_000), 1 + self.random.below(9000) as usize);
                let bytes = pattern(step * 11 + self.id, len);
                let handle = self.handle(file);
                self.fs.write(&handle, offset, &bytes, false).unwrap();
                let model = self.model[file].as_mut().unwrap();
                model.resize(model.len().max(offset as usize + len), 0);
                model[offset as usize..offset as usize + len].copy_from_slice(&bytes);
            }
            6 => {
                let size = self.random.below(200_000);
                let handle = self.handle(file);
                let set = SetAttr { size: Some(size), through_handle: true, ..SetAttr::default() };
                wait(|done| self.fs.setattr(Caller::ROOT, handle.ino(), set, done)).unwrap();
                self.model[file].as_mut().unwrap().resize(size as usize, 0);
            }
            7 => {
                let from = self.random.below(FILES as u64) as usize;
                if from == file || self.model[from].is_none() {
                    return;
                }
                let (source, target) = (self.handle(from), self.handle(file));
                let copied =
                    wait(|done| self.fs.copy_range(source, 0, target, 0, 1 << 20, done)).unwrap() as usize;
                let bytes = self.model[from].clone().unwrap();
                assert_eq!(copied, bytes.len());
                let model = self.model[file].as_mut().unwrap();
                model.resize(model.len().max(copied), 0);
                model[..copied].copy_from_slice(&bytes);
            }
            8 if self.model[file].is_some() => {
                wait(|done| self.fs.unlink(Caller::ROOT, ROOT, name(&self.name(file)), done)).unwrap();
                self.model[file] = None;
                if let Some(handle) = self.open[file].take() {
                    close(&self.fs, handle);
                }
            }
            9 if self.model[file].is_some() => {
                let to = self.random.below(FILES as u64) as usize;
                if to == file {
                    return;
                }
                let names = [self.name(file), self.name(to)].map(|text| (ROOT, name(&text)));
                let [from, onto] = names;
                wait(|done| self.fs.rename(Caller::ROOT, from, onto, RenameFlags::default(), done)).unwrap();
                self.model[to] = self.model[file].take();
                let handle = self.open[file].take();
                if let Some(replaced) = std::mem::replace(&mut self.open[to], handle) {
                    close(&self.fs, replaced);
                }
            }
            10 => {
                if let Some(handle) = self.open[file].take() {
                    close(&self.fs, handle);
                }
            }
            _ => self.verify(file),
        }
        // Committed now, else most of what happens would happen in memory.
        if let Some(handle) = &self.open[file] {
            wait(|done| self.fs.flush(handle, done)).unwrap();
        }
    }

    fn verify(&mut self, file: usize) {
        let Some(expected) = self.model[file].clone() else { return };
        let handle = self.handle(file);
        assert!(read_all(&self.fs, &handle) == expected, "{} is not what was written", self.name(file));
    }

    fn finish(mut self) {
        for file in 0..FILES {
            self.verify(file);
            if let Some(handle) = self.open[file].take() {
                close(&self.fs, handle);
            }
            self.verify(file);
            if let Some(handle) = self.open[file].take() {
                close(&self.fs, handle);
            }
        }
    }
}

fn churn(store: Arc<dyn BlockStore>, steps: u64) {
    let volume = volume(store);
    let scratch = tempfile::tempdir().unwrap();
    let busy = AtomicBool::new(true);
    let mut done = Compacted::default();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|id| {
                let fs = volume.fs.clone();
                scope.spawn(move || {
                    let mut writer = Writer::new(fs, id);
                    (0..steps).for_each(|step| writer.step(step));
                    writer
                })
            })
            .collect();
        let admin = scope.spawn(|| {
            let mut done = Compacted::default();
            let mut rounds = 0;
            while busy.load(Ordering::SeqCst) || rounds < 2 {
                let compacted = compact(&volume);
                done.moved += compacted.moved;
                done.folded += compacted.folded;
                done.failed += compacted.failed;
                volume.fs.reap().unwrap();
                assert_eq!(collect(&volume, 0).disputed, 0);
                assert_eq!(errors(&volume, scratch.path()), [""; 0]);
                rounds += 1;
            }
            done
        });
        let writers: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        busy.store(false, Ordering::SeqCst);
        done = admin.join().unwrap();
        for writer in writers {
            writer.unwrap().finish();
        }
    });
    assert!(done.moved > 0, "{done:?}: there was something to do");
    assert_eq!(done.failed, 0);
    volume.fs.shutdown().unwrap();
    assert_eq!(errors(&volume, scratch.path()), [""; 0]);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    volume.fs.reap().unwrap();
    let left = collect(&volume, 0);
    assert_eq!((left.leaked, left.objects), (0, left.referenced), "{left:?}: what is stored is in use");
}

#[test]
fn nothing_is_lost_beside_compaction_collection_and_checks_on_a_store_that_appends() {
    churn(Arc::new(MemoryStore::new()), 1500);
}

#[test]
fn nothing_is_lost_beside_compaction_collection_and_checks_on_a_put_only_store() {
    churn(Arc::new(MemoryStore::put_only()), 1500);
}

/// Files of which one in four is left, and what they should hold.
fn thinned(volume: &Volume) -> Vec<(String, Vec<u8>)> {
    let files: Vec<_> = (0..40).map(|i| (format!("f{i}"), pattern(i, 20_000 + i as usize))).collect();
    files.iter().for_each(|(text, bytes)| write(&volume.fs, text, bytes));
    for (text, _) in files.iter().enumerate().filter(|(i, _)| i % 4 != 0).map(|(_, file)| file) {
        wait(|done| volume.fs.unlink(Caller::ROOT, ROOT, name(text), done)).unwrap();
    }
    // The last pack may still be open: sealed, it is looked at like any other.
    write(&volume.fs, "filler", &pattern(99, 300_000));
    files.into_iter().step_by(4).collect()
}

/// A file and its clone, of which little is left.
fn shared(volume: &Volume) {
    write(&volume.fs, "original", &pattern(7, 400_000));
    let (source, target) = (open(&volume.fs, "original"), open(&volume.fs, "clone"));
    wait(|done| volume.fs.copy_range(source.clone(), 0, target.clone(), 0, 1 << 20, done)).unwrap();
    for file in [source, target] {
        let set = SetAttr { size: Some(20_000), through_handle: true, ..SetAttr::default() };
        wait(|done| volume.fs.setattr(Caller::ROOT, file.ino(), set, done)).unwrap();
        close(&volume.fs, file);
    }
    assert_eq!(extents(volume, "clone"), extents(volume, "original"));
}

fn extents(volume: &Volume, text: &str) -> Vec<(u64, Vec<kestrel_types::extent::Extent>)> {
    let ino = inode(volume, text).ino;
    wait(|done| volume.fs.layout(ino, done)).unwrap().1
}

fn inode(volume: &Volume, text: &str) -> kestrel_types::inode::Inode {
    wait(|done| volume.fs.lookup(Caller::ROOT, ROOT, name(text), done)).unwrap()
}

#[test]
fn sparse_packs_are_rewritten_and_files_do_not_notice() {
    let volume = volume(Arc::new(MemoryStore::new()));
    let files = thinned(&volume);
    shared(&volume);
    // Open all the time, with its old place in memory.
    let source = open(&volume.fs, "f0");
    let before: Vec<_> = files.iter().map(|(text, _)| inode(&volume, text)).collect();
    let stored = objects(&*volume.store);

    let look = CompactOptions { paths: None, grace: 0, dry_run: true, is_worth: &|_| true, go_on: &|_| true };
    let dry = volume.fs.compact_volume(&look, &mut |_, _| {}).unwrap();
    assert!(dry.sparse_objects > 0 && dry.unused_bytes > 0 && dry.moved == 0, "{dry:?}");
    assert_eq!(objects(&*volume.store), stored, "a dry run stores nothing");
    let done = compact(&volume);
    assert_eq!((done.sparse_objects, done.changed, done.failed), (dry.sparse_objects, 0, 0));
    assert_eq!(compact(&volume), Compacted::default(), "there is nothing left to do");

    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(volume.fs.reap().unwrap() as u64 >= done.sparse_objects, "the old objects go");
    for ((text, bytes), before) in files.iter().zip(before) {
        let after = inode(&volume, text);
        let (Data::Packed { range: old, .. }, Data::Packed { range: new, .. }) = (&before.data, &after.data)
        else {
            panic!("{text}: {:?}, {:?}", before.data, after.data)
        };
        assert!(volume.store.size(old.object).is_ok() || old != new);
        assert_eq!(kestrel_types::inode::Inode { data: before.data.clone(), ..after }, before, "{text}");
        let file = open(&volume.fs, text);
        assert!(read_all(&volume.fs, &file) == *bytes, "{text}");
        close(&volume.fs, file);
    }
    assert_eq!(extents(&volume, "clone"), extents(&volume, "original"), "what was shared still is");
    let clone = open(&volume.fs, "clone");
    assert!(read_all(&volume.fs, &clone) == pattern(7, 20_000));
    close(&volume.fs, clone);
    assert!(read_all(&volume.fs, &source) == files[0].1);
    // A small write merges with the content where it is now.
    volume.fs.write(&source, 5, b"hello", false).unwrap();
    close(&volume.fs, source);
    let source = open(&volume.fs, "f0");
    assert_eq!(
        &read_all(&volume.fs, &source)[..12],
        [&files[0].1[..5], b"hello", &files[0].1[10..12]].concat()
    );
    close(&volume.fs, source);
    assert_eq!(errors(&volume, tempfile::tempdir().unwrap().path()), [""; 0]);
    volume.fs.shutdown().unwrap();
}

#[test]
fn only_what_lies_below_a_path_is_compacted() {
    let volume = volume(Arc::new(MemoryStore::new()));
    thinned(&volume);
    let paths = [b"filler".to_vec()];
    let options = CompactOptions {
        paths: Some(&paths),
        grace: 0,
        dry_run: false,
        is_worth: &|_| true,
        go_on: &|_| true,
    };
    assert_eq!(volume.fs.compact_volume(&options, &mut |_, _| {}).unwrap(), Compacted::default());
    let paths = [b"f0".to_vec()];
    let done = volume.fs.compact_volume(&CompactOptions { paths: Some(&paths), ..options }, &mut |_, _| {});
    assert_eq!(done.unwrap().sparse_objects, 1, "the pack that it lies in");
    let paths = [b"nothing".to_vec()];
    let options = CompactOptions { paths: Some(&paths), ..options };
    assert!(volume.fs.compact_volume(&options, &mut |_, _| {}).unwrap_err().to_string().contains("no such"));
    volume.fs.shutdown().unwrap();
}

#[test]
fn files_in_many_pieces_with_holes_are_folded_and_keep_their_holes() {
    let volume = volume(Arc::new(MemoryStore::put_only()));
    let file = open(&volume.fs, "deep");
    let mut model = vec![0; 2 << 20];
    // Fewer than make the file look at itself.
    for i in 0..50u64 {
        // Every piece beside the one before, but for a hole in the middle.
        let offset = i * 5000 + if i >= 30 { 500_000 } else { 0 };
        let bytes = pattern(i, 5000);
        volume.fs.write(&file, offset, &bytes, false).unwrap();
        wait(|done| volume.fs.flush(&file, done)).unwrap();
        model[offset as usize..offset as usize + 5000].copy_from_slice(&bytes);
    }
    volume.fs.write(&file, (2 << 20) - 1, b"x", false).unwrap();
    model[(2 << 20) - 1] = b'x';
    close(&volume.fs, file);
    let pieces = |volume: &Volume| {
        let ino = inode(volume, "deep").ino;
        wait(|done| volume.fs.layout(ino, done)).unwrap().1.iter().map(|(_, list)| list.len()).sum::<usize>()
    };
    let before = pieces(&volume);
    assert!(before > 38, "{before} pieces");
    let done = compact(&volume);
    assert_eq!((done.deep_chunks, done.folded, done.changed, done.failed), (1, 1, 0, 0), "{done:?}");
    assert!(pieces(&volume) <= 12, "{} pieces", pieces(&volume));
    let file = open(&volume.fs, "deep");
    assert!(read_all(&volume.fs, &file) == model);
    let hole = wait(|done| volume.fs.seek(&file, 0, kestrel_client::fs::Seek::Hole, done)).unwrap();
    assert_eq!(hole, 150_000, "a hole is still one");
    close(&volume.fs, file);
    volume.fs.shutdown().unwrap();
}

#[test]
fn what_cannot_be_read_or_stored_stays_where_it_is() {
    let inner = Arc::new(MemoryStore::new());
    let store = Arc::new(FailingStore::new(inner, 1));
    let volume = volume(store.clone());
    let files = thinned(&volume);
    store.add(Rule::always(Call::Read, Fault::WrongByte));
    let done = compact(&volume);
    assert_eq!((done.moved, done.stored_bytes), (0, 0), "{done:?}");
    assert!(done.failed > 0);
    store.heal();
    store.add(Rule {
        calls: vec![Call::Create, Call::Append],
        ..Rule::always(Call::Put, Fault::Errno(libc::ENOSPC))
    });
    let options =
        CompactOptions { paths: None, grace: 0, dry_run: false, is_worth: &|_| true, go_on: &|_| true };
    let failed = volume.fs.compact_volume(&options, &mut |_, _| {}).unwrap_err();
    assert_eq!(failed.errno, libc::ENOSPC);
    store.heal();
    for (text, bytes) in &files {
        let file = open(&volume.fs, text);
        assert!(read_all(&volume.fs, &file) == *bytes, "{text}");
        close(&volume.fs, file);
    }
    assert!(compact(&volume).moved > 0, "afterwards it works");
    volume.fs.shutdown().unwrap();
}

#[test]
fn leaked_objects_go_and_young_ones_stay() {
    let volume = volume(Arc::new(MemoryStore::put_only()));
    write(&volume.fs, "file", &pattern(1, 50_000));
    volume.store.put(900_000, &[IoSlice::new(&[1; 100])]).unwrap();
    assert_eq!(collect(&volume, i64::MAX / 2).deleted, 0);
    let done = collect(&volume, 0);
    assert_eq!((done.leaked, done.deleted, done.referenced), (1, 1, 1));
    assert!(volume.store.size(900_000).is_err());
    volume.fs.shutdown().unwrap();
}
