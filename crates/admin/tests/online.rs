//! Collection and check of a volume in use, step by step: what happens between two steps is made to
//! happen there.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use kestrel_testkit::stop::StopOnDrop;
use std::io::{IoSlice, IoSliceMut};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::driver::{Driver, findings};
use common::*;
use kestrel_admin::check::{Live, Options as CheckOptions, check};
use kestrel_admin::cut::Cut;
use kestrel_admin::finding::{FindingKind, Severity};
use kestrel_admin::gc::{GcError, GcEvent, Options, Totals, collect};
use kestrel_admin::rows::put;
use kestrel_blockstore::error::Result as StoreResult;
use kestrel_blockstore::store::{AppendStore, BlockStore, MemoryStore, Page, Usage};
use kestrel_engine::{Engine, EngineError, Layer, Mutation};
use kestrel_types::ids::ObjectId;
use kestrel_types::inode::{Data, Kind};
use kestrel_types::key::{Key, KeyRef, Table};

/// A store that lists two objects a page, and fails at one page or ends before it as if there were
/// none.
struct Paged<'a> {
    store: &'a MemoryStore,
    pages: AtomicUsize,
    fails_at: usize,
    silently: bool,
}

impl<'a> Paged<'a> {
    fn new(store: &'a MemoryStore, fails_at: usize, silently: bool) -> Self {
        Self { store, pages: AtomicUsize::new(0), fails_at, silently }
    }
}

impl BlockStore for Paged<'_> {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> StoreResult<()> {
        self.store.put(object, parts)
    }

    fn appends(&self) -> Option<&dyn AppendStore> {
        self.store.appends()
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> StoreResult<()> {
        self.store.read(object, offset, parts)
    }

    fn size(&self, object: ObjectId) -> StoreResult<u64> {
        self.store.size(object)
    }

    fn delete(&self, object: ObjectId) -> StoreResult<bool> {
        self.store.delete(object)
    }

    fn sync(&self) -> StoreResult<()> {
        self.store.sync()
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> StoreResult<()> {
        self.store.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, _: usize) -> StoreResult<Page> {
        if self.pages.fetch_add(1, Ordering::SeqCst) == self.fails_at {
            if self.silently {
                return Ok(Page::default());
            }
            return Err(kestrel_blockstore::Error::Deadline { during: "listing" });
        }
        self.store.list(after, 2)
    }

    fn usage(&self) -> StoreResult<Usage> {
        self.store.usage()
    }
}

/// What happens before a scan of a table; it gets the number of the scan.
type BeforeScan<'a> = &'a (dyn Fn(usize, Table) -> Result<(), EngineError> + Sync);

/// An engine that reads one row a scan, and something happens before each.
struct Slow<'a> {
    engine: &'a dyn Engine,
    scans: AtomicUsize,
    before: BeforeScan<'a>,
    /// Rows of this table are not shown: a listing with a page missing.
    hides: Option<Table>,
}

impl<'a> Slow<'a> {
    fn new(engine: &'a dyn Engine, before: BeforeScan<'a>) -> Self {
        Self { engine, scans: AtomicUsize::new(0), before, hides: None }
    }
}

impl Layer for Slow<'_> {
    fn below(&self) -> &dyn Engine {
        self.engine
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        if self.hides == Some(table) {
            return Ok(());
        }
        // Row by row, so that something can happen between any two.
        let mut from = from.map(KeyRef::to_owned);
        loop {
            (self.before)(self.scans.fetch_add(1, Ordering::SeqCst), table)?;
            let mut row: Option<(Key, Box<[u8]>)> = None;
            self.engine.scan_table(table, from.as_ref().map(Key::borrow), &mut |key, value| {
                row = Some((key.to_owned(), value.into()));
                ControlFlow::Break(())
            })?;
            let Some((key, value)) = row else { return Ok(()) };
            if visit(key.borrow(), &value).is_break() {
                return Ok(());
            }
            from = Some(Key::new(table, key.id, &[&key.suffix[..], b"\0"].concat()));
        }
    }
}

fn gc(engine: &dyn Engine, store: &dyn BlockStore) -> Result<Totals, GcError> {
    gc_with(engine, store, &|_| false, &mut |_| {})
}

/// Deletes at once everything that it takes for leaked.
fn gc_with(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    is_open: &dyn Fn(ObjectId) -> bool,
    report: &mut dyn FnMut(GcEvent<'_>),
) -> Result<Totals, GcError> {
    let options = Options { now: NOW, grace: 0, delete: true, is_open, go_on: &|| true };
    collect(engine, store, &options, report, &mut |_, _| {})
}

/// The fixture with two leaked objects, 40 and 41.
fn leaky() -> Volume {
    let volume = Volume::new();
    for object in [40, 41] {
        volume.store.put(object, &[IoSlice::new(&[1; 10])]).unwrap();
    }
    volume
}

fn stored(volume: &Volume) -> Vec<ObjectId> {
    let mut found: Vec<_> = (1..100).filter(|object| volume.store.size(*object).is_ok()).collect();
    found.sort_unstable();
    found
}

/// If any page of either listing fails, the collection deletes nothing. juicedata/juicefs#6479: a
/// collection went on after a listing that was not complete.
#[test]
fn failed_page_of_either_listing() {
    let mut page = 0;
    loop {
        let volume = leaky();
        let store = Paged::new(&volume.store, page, false);
        match gc(&volume.engine, &store) {
            Err(GcError::Listing(_)) => {
                assert_eq!(stored(&volume), [1, 2, 3, 40, 41], "page {page}")
            }
            other => {
                assert_eq!(other.unwrap().deleted, 2);
                break;
            }
        }
        page += 1;
    }
    assert_eq!(page, 3, "every page failed once");
    let mut scan = 0;
    loop {
        let volume = leaky();
        let before = |number: usize, _| {
            if number == scan { Err(EngineError::Io("injected".into())) } else { Ok(()) }
        };
        match gc(&Slow::new(&volume.engine, &before), &volume.store) {
            Err(GcError::Engine(_)) => {
                assert_eq!(stored(&volume), [1, 2, 3, 40, 41], "scan {scan}")
            }
            other => {
                assert_eq!(other.unwrap().deleted, 2);
                break;
            }
        }
        scan += 1;
    }
    assert!(scan > 15, "every scan failed once: {scan}");
}

/// A page that is missing without an error, so that the listing does not say that it is incomplete,
/// makes the collection delete nothing that is in use.
#[test]
fn silently_missing_page_of_listing() {
    for page in 0..4 {
        let volume = leaky();
        gc(&volume.engine, &Paged::new(&volume.store, page, true)).unwrap();
        assert_eq!(stored(&volume)[..3], [1, 2, 3], "page {page} of the store");
    }
    for table in [Table::Entry, Table::Link, Table::Chunk] {
        let volume = leaky();
        let mut disputed = Vec::new();
        let mut report = |event: GcEvent<'_>| {
            if let GcEvent::Disputed(object) = event {
                disputed.push(object);
            }
        };
        let engine = Slow { hides: Some(table), ..Slow::new(&volume.engine, &|_, _| Ok(())) };
        let totals = gc_with(&engine, &volume.store, &|_| false, &mut report).unwrap();
        assert_eq!(stored(&volume), [1, 2, 3], "{table:?}");
        assert_eq!((totals.deleted, totals.disputed), (2, disputed.len() as u64));
        // Objects 2 and 3 are referred to from one table each.
        assert_eq!(disputed.is_empty(), table == Table::Entry, "{table:?}: the accounts told");
    }
}

/// A rename takes a reference from behind where the walk is to before it, so that the walk never
/// sees it. It has no account, so that only the tap sees it.
#[test]
fn a_reference_that_moves_past_the_walk_is_seen() {
    let volume = leaky();
    let record = inode(30, Kind::File, 10, Data::Packed { range: range(40, 0, 10), visible: 10 });
    let (old, new) = (entry(C, "zzz", record.clone()), entry(A, "aaa", record));
    volume.apply(vec![old.clone()]);
    // Before it come the root, its three entries and the four of directory A.
    let before = |number, table| {
        if table == Table::Entry && number == 9 {
            volume.apply(vec![new.clone(), Mutation { value: None, ..old.clone() }]);
        }
        Ok(())
    };
    let mut seen = Vec::new();
    let slow = Slow::new(&volume.engine, &before);
    let walk = kestrel_admin::references::for_each(&slow, &mut |reference| {
        if let kestrel_admin::references::Seen::Reference(reference) = reference {
            seen.push(reference.range.object);
        }
    });
    walk.unwrap();
    assert!(!seen.contains(&40), "a walk by itself misses it");
    volume.apply(vec![old.clone(), Mutation { value: None, ..new.clone() }]);
    let totals = gc(&Slow::new(&volume.engine, &before), &volume.store).unwrap();
    assert!(volume.value(Table::Entry, A, b"aaa").is_some(), "it was moved");
    assert_eq!((totals.deleted, totals.young), (1, 1), "{totals:?}");
    assert!(volume.store.size(40).is_ok() && volume.store.size(41).is_err());
}

/// An object is listed, its pin held; the commit comes after the walk and before the deletion, then
/// the pin goes.
#[test]
fn what_is_committed_after_the_walk_is_seen() {
    let volume = leaky();
    let pinned = AtomicBool::new(true);
    let is_open = |object| {
        let open = object == 40 && pinned.load(Ordering::SeqCst);
        if object == 41 && pinned.swap(false, Ordering::SeqCst) {
            let data = Data::Packed { range: range(40, 0, 10), visible: 10 };
            volume
                .apply(vec![entry(A, "new", inode(30, Kind::File, 10, data)), obj_stat(40, 0, 10)]);
        }
        open
    };
    let totals = gc_with(&volume.engine, &volume.store, &is_open, &mut |_| {}).unwrap();
    assert!(!pinned.load(Ordering::SeqCst));
    assert_eq!(totals.deleted, 1);
    assert!(volume.store.size(40).is_ok() && volume.store.size(41).is_err());
}

#[test]
fn a_collection_ends_when_nobody_wants_it() {
    let volume = leaky();
    let options =
        Options { now: NOW, grace: 0, delete: true, is_open: &|_| false, go_on: &|| false };
    let totals =
        collect(&volume.engine, &volume.store, &options, &mut |_| {}, &mut |_, _| {}).unwrap();
    assert_eq!((totals.leaked, totals.deleted), (2, 0));
}

#[test]
fn a_cut_is_a_moment_of_a_volume_in_use() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 1..=2 {
        let mut driver = Driver::new(seed);
        let engine = driver.engine.clone();
        (0..500).for_each(|_| driver.step());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stopper = StopOnDrop::new(&stop);
            let worker = scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    driver.step();
                }
            });
            // A walk over what changes meanwhile finds all kinds of damage that there are not; a
            // cut has none.
            for round in 0..4 {
                let cut = Cut::take(&*engine, dir.path(), 0, &mut |_| {}).unwrap();
                assert_eq!(findings(cut.engine()).0, [], "seed {seed}, round {round}");
            }
            drop(stopper);
            worker.join().unwrap();
        });
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left of the copies");
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("cut.123/rows")).unwrap();
    std::fs::write(dir.path().join("cut.123/rows/x"), "x").unwrap();
    std::fs::write(dir.path().join("other"), "x").unwrap();
    Cut::remove_stale(dir.path());
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["other"]);
}

/// Findings of a check of a cut taken from `volume` before `then` happened to it.
fn live_findings(volume: &Volume, grace: i64, then: impl FnOnce()) -> (Vec<FindingKind>, u64) {
    let dir = tempfile::tempdir().unwrap();
    let cut = Cut::take(&volume.engine, dir.path(), 0, &mut |_| {}).unwrap();
    then();
    let live = Live { engine: &volume.engine, now: NOW, grace, is_open: &|object| object == 41 };
    let mut options =
        CheckOptions { store: Some(&volume.store), live: Some(live), ..CheckOptions::default() };
    let mut kinds = Vec::new();
    let totals =
        check(cut.engine(), &mut options, &mut |finding| kinds.push(finding.kind), &mut |_, _| {})
            .unwrap();
    (kinds, totals.leaked_objects)
}

#[test]
fn what_went_by_right_since_the_cut_is_not_damage() {
    // Its last reference goes and so does the object: right.
    let volume = Volume::new();
    let gone = || {
        let mut rows = vec![obj_stat(2, 0, 0)];
        rows[0].value = None;
        volume.apply(rows);
        volume.store.delete(2).unwrap();
    };
    assert_eq!(live_findings(&volume, 0, gone).0, []);
    // The object goes and its references do not: damage, and the file is named.
    let volume = Volume::new();
    let lost = || assert!(volume.store.delete(2).unwrap());
    assert_eq!(live_findings(&volume, 0, lost).0, [FindingKind::ObjectMissing]);
    let volume = Volume::new();
    let cut_off = || volume.store.tamper(2, |bytes| bytes.truncate(50));
    assert_eq!(live_findings(&volume, 0, cut_off).0, [FindingKind::ObjectShort]);
}

#[test]
fn what_may_be_on_its_way_is_not_leaked() {
    let volume = leaky();
    assert_eq!(
        live_findings(&volume, 0, || {}),
        (vec![FindingKind::ObjectsLeaked], 1),
        "one is open"
    );
    assert_eq!(live_findings(&volume, i64::MAX, || {}), (vec![], 0), "both are young");
    // A file that is open and has no name is no finding while the volume is in use.
    let volume = Volume::new();
    let orphan = kestrel_types::inode::Inode { nlink: 0, ..inode(30, Kind::File, 0, Data::None) };
    volume.apply(vec![put(Table::Link, 30, &[], encode_inode(&orphan))]);
    assert_eq!(live_findings(&volume, 0, || {}).0, []);
    assert_eq!(volume.kinds(), [FindingKind::OpenUnlinked]);
    let (_, totals) = volume.check();
    assert_eq!((totals.orphans, totals.orphan_bytes), (1, orphan.size));
    assert_eq!(FindingKind::OpenUnlinked.severity(), Severity::Info);
}
