//! Garbage collection deletes what nothing refers to, and nothing else, also after failures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::IoSlice;
use std::sync::Arc;

use common::*;
use kestrel_admin::gc::{GcError, GcEvent, Options, Totals, collect};
use kestrel_admin::rows::put;
use kestrel_blockstore::store::local::LocalConfig;
use kestrel_blockstore::store::{BlockStore, LocalStore};
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use kestrel_types::key::Table;

fn put_object(store: &dyn BlockStore, object: u64, len: usize) {
    store.put(object, &[IoSlice::new(&vec![1; len])]).unwrap();
}

fn options(delete: bool, grace: i64) -> Options<'static> {
    Options {
        now: SystemClock.now() + 1000 * SECOND,
        grace,
        delete,
        is_open: &|object| object == 44,
        go_on: &|| true,
    }
}

fn run(
    volume: &Volume,
    store: &dyn BlockStore,
    options: &Options<'_>,
) -> (Result<Totals, GcError>, Vec<u64>) {
    let mut leaked = Vec::new();
    let mut report = |event: GcEvent<'_>| {
        if let GcEvent::Leaked { object, .. } = event {
            leaked.push(object);
        }
    };
    let done = collect(&volume.engine, store, options, &mut report, &mut |_, _| {});
    (done, leaked)
}

/// A directory store with the fixture's objects, two leaked ones (40, 41), a scheduled one (42) and
/// an open one (44).
fn local(dir: &std::path::Path) -> (Volume, LocalStore) {
    let store = LocalStore::create(&dir.join("objects"), LocalConfig::default()).unwrap();
    for (object, len) in [(1, 154), (2, 100_008), (3, 34), (40, 10), (41, 20), (42, 30), (44, 40)] {
        put_object(&store, object, len);
    }
    let volume = Volume::new();
    volume.apply(vec![put(Table::Reap, 1, &42u64.to_be_bytes(), Box::new([]))]);
    (volume, store)
}

/// A collection finds leaked objects, and deletes them only on request.
#[test]
fn leaked_objects_deleted_on_request_only() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, store) = local(dir.path());
    let (dry, leaked) = run(&volume, &store, &options(false, SECOND));
    let dry = dry.unwrap();
    assert_eq!((leaked, dry.leaked, dry.leaked_bytes, dry.deleted), (vec![40, 41], 2, 30, 0));
    assert_eq!((dry.objects, dry.referenced, dry.scheduled, dry.young), (7, 3, 1, 1));
    assert!(store.size(40).is_ok());
    let wet = run(&volume, &store, &options(true, SECOND)).0.unwrap();
    assert_eq!((wet.deleted, wet.failed), (2, 0));
    for (object, there) in
        [(1, true), (2, true), (3, true), (40, false), (41, false), (42, true), (44, true)]
    {
        assert_eq!(store.size(object).is_ok(), there, "object {object}");
    }
    assert_eq!(run(&volume, &store, &options(true, SECOND)).0.unwrap().leaked, 0);
}

#[test]
fn young_objects_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, store) = local(dir.path());
    let totals = run(&volume, &store, &options(true, 2000 * SECOND)).0.unwrap();
    assert_eq!((totals.leaked, totals.deleted, totals.young), (0, 0, 3));
}

#[test]
fn sparse_packs_are_counted() {
    let volume = Volume::new();
    volume.store.tamper(3, |bytes| bytes.resize(10_000, 0));
    let totals = run(&volume, &volume.store, &options(false, SECOND)).0.unwrap();
    assert_eq!((totals.sparse, totals.sparse_bytes), (1, 9970));
}

#[test]
fn a_damaged_row_stops_everything() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, store) = local(dir.path());
    volume.apply(vec![put(Table::Chunk, BIG, &5u64.to_be_bytes(), Box::new([9]))]);
    assert!(matches!(run(&volume, &store, &options(true, SECOND)).0, Err(GcError::Damaged(_))));
    assert!(store.size(40).is_ok());
}

#[test]
fn a_failed_listing_stops_everything() {
    use kestrel_blockstore::store::failing::{FailingStore, Fault, Rule, StoreCall};
    let dir = tempfile::tempdir().unwrap();
    let (volume, store) = local(dir.path());
    let store = Arc::new(store);
    let failing = FailingStore::new(store.clone(), 1);
    failing.add(Rule::always(StoreCall::List, Fault::Errno(5)));
    assert!(matches!(run(&volume, &failing, &options(true, SECOND)).0, Err(GcError::Listing(_))));
    assert!(store.size(40).is_ok());
}
