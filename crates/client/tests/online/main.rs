//! Administration beside load: writers write, cut, clone, rename and remove while the volume is
//! compacted, collected, reaped and checked again and again, all without any grace period. Nothing
//! that a writer acknowledged may be lost, no check may find damage, and in the end everything that
//! is stored is in use.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod churn;
mod volume;

use std::io::IoSlice;
use std::sync::Arc;

use churn::churn;
use kestrel_blockstore::store::MemoryStore;
use kestrel_blockstore::store::failing::{FailingStore, Fault, Rule, StoreCall};
use kestrel_client::fs::{Caller, CompactOptions, Compacted, wait};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Data;
use kestrel_types::name::PathRef;
use kestrel_types::request::SetAttr;
use volume::{
    Volume, close, collect, compact, copy, errors, everything, name, objects, open, pattern,
    read_all, volume, write,
};

/// Nothing is lost beside compaction, collection and checks on a store that appends.
#[test]
fn maintenance_beside_writers_on_append_store() {
    churn(Arc::new(MemoryStore::new()), 1500);
}

/// Nothing is lost beside compaction, collection and checks on a store that only puts whole
/// objects.
#[test]
fn maintenance_beside_writers_on_put_only_store() {
    churn(Arc::new(MemoryStore::put_only()), 1500);
}

/// Files of which one in four is left, and what they should hold.
fn thinned(volume: &Volume) -> Vec<(String, Vec<u8>)> {
    let files: Vec<_> =
        (0..40).map(|i| (format!("f{i}"), pattern(i, 20_000 + i as usize))).collect();
    files.iter().for_each(|(text, bytes)| write(&volume.fs, text, bytes));
    for (text, _) in files.iter().enumerate().filter(|(i, _)| i % 4 != 0).map(|(_, file)| file) {
        wait(|done| volume.fs.unlink(Caller::ROOT, PathRef::new(ROOT, name(text)), done)).unwrap();
    }
    // The last pack may still be open: sealed, it is looked at like any other.
    write(&volume.fs, "filler", &pattern(99, 300_000));
    files.into_iter().step_by(4).collect()
}

/// A file and its clone, of which little is left.
fn shared(volume: &Volume) {
    write(&volume.fs, "original", &pattern(7, 400_000));
    let (source, target) = (open(&volume.fs, "original"), open(&volume.fs, "clone"));
    copy(&volume.fs, &source, &target);
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
    wait(|done| volume.fs.lookup(Caller::ROOT, PathRef::new(ROOT, name(text)), done)).unwrap()
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

    let look = CompactOptions { dry_run: true, ..everything() };
    let dry = volume.fs.compact_volume(&look, &mut |_, _| {}).unwrap();
    assert!(dry.sparse_objects > 0 && dry.unused_bytes > 0 && dry.moved == 0, "{dry:?}");
    assert_eq!(objects(&*volume.store), stored, "a dry run stores nothing");
    let done = compact(&volume);
    assert_eq!((done.sparse_objects, done.changed, done.failed), (dry.sparse_objects, 0, 0));
    // What was moved into a pack that was open and thin already may be moved once more when that is
    // sealed.
    let rest = (0..3).map(|_| compact(&volume)).find(|rest| *rest == Compacted::default());
    assert!(rest.is_some(), "there is nothing left to do");

    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(volume.fs.reap().unwrap() as u64 >= done.sparse_objects, "the old objects go");
    for ((text, bytes), before) in files.iter().zip(before) {
        let after = inode(&volume, text);
        let (Data::Packed { range: old, .. }, Data::Packed { range: new, .. }) =
            (&before.data, &after.data)
        else {
            panic!("{text}: {:?}, {:?}", before.data, after.data)
        };
        assert!(volume.store.size(old.object).is_ok() || old != new);
        assert_eq!(
            kestrel_types::inode::Inode { data: before.data.clone(), ..after },
            before,
            "{text}"
        );
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
        rows: None,
        paths: Some(&paths),
        grace: 0,
        dry_run: false,
        is_worth: &|_| true,
        go_on: &|_| true,
    };
    assert_eq!(volume.fs.compact_volume(&options, &mut |_, _| {}).unwrap(), Compacted::default());
    let paths = [b"f0".to_vec()];
    let done = volume
        .fs
        .compact_volume(&CompactOptions { paths: Some(&paths), ..options }, &mut |_, _| {});
    assert_eq!(done.unwrap().sparse_objects, 1, "the pack that it lies in");
    let paths = [b"nothing".to_vec()];
    let options = CompactOptions { paths: Some(&paths), ..options };
    assert!(
        volume
            .fs
            .compact_volume(&options, &mut |_, _| {})
            .unwrap_err()
            .to_string()
            .contains("no such")
    );
    volume.fs.shutdown().unwrap();
}

/// Compaction folds files in many pieces, and keeps their holes.
#[test]
fn folding_of_files_with_holes() {
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
        wait(|done| volume.fs.layout(ino, done))
            .unwrap()
            .1
            .iter()
            .map(|(_, list)| list.len())
            .sum::<usize>()
    };
    let before = pieces(&volume);
    assert!(before > 38, "{before} pieces");
    let done = compact(&volume);
    assert_eq!(
        (done.deep_chunks, done.folded, done.changed, done.failed),
        (1, 1, 0, 0),
        "{done:?}"
    );
    assert!(pieces(&volume) <= 12, "{} pieces", pieces(&volume));
    let file = open(&volume.fs, "deep");
    assert!(read_all(&volume.fs, &file) == model);
    let hole = wait(|done| volume.fs.seek(&file, 0, kestrel_client::fs::Seek::Hole, done)).unwrap();
    assert_eq!(hole, 150_000_u64.next_multiple_of(4096), "a hole is still one");
    close(&volume.fs, file);
    volume.fs.shutdown().unwrap();
}

#[test]
fn what_cannot_be_read_or_stored_stays_where_it_is() {
    let inner = Arc::new(MemoryStore::new());
    let store = Arc::new(FailingStore::new(inner, 1));
    let volume = volume(store.clone());
    let files = thinned(&volume);
    store.add(Rule::always(StoreCall::Read, Fault::WrongByte));
    let done = compact(&volume);
    assert_eq!((done.moved, done.stored_bytes), (0, 0), "{done:?}");
    assert!(done.failed > 0);
    store.heal();
    store.add(Rule {
        calls: vec![StoreCall::Create, StoreCall::Append],
        ..Rule::always(StoreCall::Put, Fault::Errno(libc::ENOSPC))
    });
    let failed = volume.fs.compact_volume(&everything(), &mut |_, _| {}).unwrap_err();
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
