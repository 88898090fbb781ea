use kestrel_blockstore::store::{BlockStore, MemoryStore, Page, Usage};
use std::io::{IoSlice, IoSliceMut};

use super::*;

fn plan() -> BenchPlan {
    BenchPlan {
        sizes: vec![1000, 100_000],
        threads: 4,
        time: Duration::from_millis(50),
        bytes_max: 1 << 20,
        puts_conditionally: true,
        large_bytes: 3 << 20,
        seed: 1,
    }
}

fn checks(store: &dyn BlockStore, plan: &BenchPlan) -> Vec<Check> {
    let mut made = Vec::new();
    check(store, plan, &Stop::new(), &mut |check| made.push(check.clone())).unwrap();
    made
}

#[test]
fn a_good_store_passes_and_is_left_empty() {
    let store = MemoryStore::put_only();
    let made = checks(&store, &plan());
    assert_eq!(made.len(), 6);
    assert!(made.iter().all(|check| check.verdict == CheckOutcome::Good), "{made:?}");
    assert!(store.list(None, 1).unwrap().objects.is_empty());
    let mut measured = Vec::new();
    measure(&store, &plan(), &Stop::new(), &mut |one| measured.push(one.clone())).unwrap();
    let names: Vec<&str> = measured.iter().map(|one| one.operation.name()).collect();
    assert_eq!(names, ["put", "get", "list", "delete", "put", "get", "range", "list", "delete"]);
    for one in &measured {
        assert!(one.count > 0 && one.median <= one.p99 && one.p99 <= one.longest, "{one:?}");
    }
    assert_eq!(measured[0].bytes, measured[0].count * 1000);
    assert!(store.list(None, 1).unwrap().objects.is_empty());
}

#[test]
fn stop_in_the_middle() {
    let stop = Stop::new();
    stop.stop();
    let store = MemoryStore::put_only();
    assert!(matches!(check(&store, &plan(), &stop, &mut |_| {}), Err(Ended::Stopped)));
    assert!(matches!(measure(&store, &plan(), &stop, &mut |_| {}), Err(Ended::Stopped)));
}

/// A store with one fault.
struct Broken {
    inner: MemoryStore,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Overwrites,
    ForgetsAPage,
    ShiftsRanges,
    Undead,
}

impl BlockStore for Broken {
    fn put(&self, object: u64, parts: &[IoSlice<'_>]) -> kestrel_blockstore::Result<()> {
        if self.fault == Fault::Overwrites {
            self.inner.delete(object)?;
        }
        self.inner.put(object, parts)
    }

    fn read(
        &self,
        object: u64,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> kestrel_blockstore::Result<()> {
        let shift = u64::from(self.fault == Fault::ShiftsRanges && offset == 65_536);
        self.inner.read(object, offset + shift, parts)
    }

    fn size(&self, object: u64) -> kestrel_blockstore::Result<u64> {
        self.inner.size(object)
    }

    fn delete(&self, object: u64) -> kestrel_blockstore::Result<bool> {
        if self.fault == Fault::Undead {
            self.inner.size(object).map(|_| true)
        } else {
            self.inner.delete(object)
        }
    }

    fn sync(&self) -> kestrel_blockstore::Result<()> {
        self.inner.sync()
    }

    fn sync_objects(&self, objects: &[u64]) -> kestrel_blockstore::Result<()> {
        self.inner.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, limit: usize) -> kestrel_blockstore::Result<Page> {
        let mut page = self.inner.list(after, limit)?;
        if self.fault == Fault::ForgetsAPage && after.is_some() && page.next.is_some() {
            page = self.inner.list(page.next.as_deref(), limit)?;
        }
        Ok(page)
    }

    fn usage(&self) -> kestrel_blockstore::Result<Usage> {
        self.inner.usage()
    }
}

#[test]
fn each_fault_is_found_by_its_check() {
    for (fault, check) in [
        (Fault::ShiftsRanges, 1),
        (Fault::ForgetsAPage, 3),
        (Fault::Undead, 4),
        (Fault::Overwrites, 5),
    ] {
        let store = Broken { inner: MemoryStore::put_only(), fault };
        let made = checks(&store, &plan());
        assert!(matches!(made[check].verdict, CheckOutcome::Bad(_)), "{:?}", made[check]);
    }
    // A store that needs help and says so is usable.
    let store = MemoryStore::put_only();
    let made = checks(&store, &BenchPlan { puts_conditionally: false, ..plan() });
    assert!(matches!(made[5].verdict, CheckOutcome::Poor(_)), "{:?}", made[5]);
}
