//! Warming up the fixture's files through a cache that notes its requests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use common::*;
use kestrel_admin::info::InfoError;
use kestrel_admin::warmup::{Act, Options, Totals, run};
use kestrel_blockstore::store::LocalCache;
use kestrel_types::ids::ObjectId;

/// A cache of single bytes.
#[derive(Default)]
struct Bytes {
    held: Mutex<BTreeMap<ObjectId, BTreeSet<u64>>>,
    fills: Mutex<Vec<(ObjectId, u64, u64)>>,
    /// Cannot take anything of this object.
    refuses: Option<ObjectId>,
}

impl LocalCache for Bytes {
    fn fill(&self, object: ObjectId, offset: u64, len: u64) -> kestrel_blockstore::Result<()> {
        if self.refuses == Some(object) {
            return Err(kestrel_blockstore::Error::NotFound { object });
        }
        self.fills.lock().unwrap().push((object, offset, len));
        self.held.lock().unwrap().entry(object).or_default().extend(offset..offset + len);
        Ok(())
    }

    fn holds(&self, object: ObjectId, offset: u64, len: u64) -> u64 {
        let held = self.held.lock().unwrap();
        held.get(&object).map_or(0, |bytes| bytes.range(offset..offset + len).count() as u64)
    }

    fn evict(&self, object: ObjectId) -> u64 {
        self.held.lock().unwrap().remove(&object).map_or(0, |bytes| bytes.len() as u64)
    }
}

fn warm(volume: &Volume, near: &Bytes, act: Act, paths: &[&str]) -> Result<Totals, InfoError> {
    let paths: Vec<Vec<u8>> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
    let options = Options {
        paths: &paths,
        data: Some((act, near)),
        metadata: false,
        threads: 3,
        go_on: &|| true,
    };
    run(&volume.engine, &options, &mut |_, _| {})
}

#[test]
fn a_tree_is_filled_told_of_and_dropped() {
    let (volume, near) = (Volume::new(), Bytes::default());
    let cold = warm(&volume, &near, Act::Check, &[""]).unwrap();
    // A file with two names comes by twice; its bytes count once.
    assert_eq!((cold.files, cold.cached_bytes), (7, 0));
    let filled = warm(&volume, &near, Act::Fill, &["/"]).unwrap();
    assert_eq!((filled.files, filled.failed, filled.unfinished), (7, 0, false));
    let objects: BTreeSet<ObjectId> =
        near.fills.lock().unwrap().iter().map(|fill| fill.0).collect();
    assert_eq!(objects, [1, 2, 3].into());
    let warm_now = warm(&volume, &near, Act::Check, &["."]).unwrap();
    assert_eq!((warm_now.bytes, warm_now.cached_bytes), (cold.bytes, cold.bytes));
    // What lies together in an object came at once.
    assert_eq!(near.fills.lock().unwrap().iter().filter(|fill| fill.0 == 1).count(), 1);
    let evicted = warm(&volume, &near, Act::Evict, &["a/b"]).unwrap();
    assert!(evicted.evicted_bytes > 0);
    let left: Vec<ObjectId> = near.held.lock().unwrap().keys().copied().collect();
    assert_eq!(left, [3], "objects 1 and 2 hold bytes of files below a/b");
}

#[test]
fn single_files_and_paths_that_lead_nowhere() {
    let (volume, near) = (Volume::new(), Bytes::default());
    let done =
        warm(&volume, &near, Act::Fill, &["a/packed", "a/nothing", "a/packed/below", "a/h1"])
            .unwrap();
    assert_eq!((done.files, done.missing, done.failures.len()), (2, 2, 2));
    assert!(done.failures[0].contains("a/nothing"), "{:?}", done.failures);
    let packed: Vec<_> = near.fills.lock().unwrap().clone();
    // 80 of 90 bytes are visible, but a frame is read whole.
    assert_eq!(packed, [(1, 0, 94), (3, 0, 34)]);
}

#[test]
fn what_the_cache_does_not_take_is_told() {
    let (volume, near) = (Volume::new(), Bytes { refuses: Some(2), ..Bytes::default() });
    let done = warm(&volume, &near, Act::Fill, &["a"]).unwrap();
    assert_eq!((done.failed, done.unfinished), (1, false));
    assert!(done.failures[0].contains("object 2"), "{:?}", done.failures);
    assert!(done.cached_bytes < done.bytes);
}

/// A warm-up without data reads the rows only, and a warm-up that is stopped ends unfinished.
#[test]
fn warmup_of_rows_and_its_cancellation() {
    let volume = Volume::new();
    let paths = [Vec::new()];
    let options =
        Options { paths: &paths, data: None, metadata: true, threads: 1, go_on: &|| true };
    let done = run(&volume.engine, &options, &mut |_, _| {}).unwrap();
    // Seven names, a record that two of them share (found from both), and a list of extents.
    assert_eq!((done.files, done.rows, done.bytes), (7, 10, 0));
    let near = Bytes::default();
    let options =
        Options { data: Some((Act::Fill, &near)), metadata: false, go_on: &|| false, ..options };
    assert!(run(&volume.engine, &options, &mut |_, _| {}).unwrap().unfinished);
}
