//! How fast a store is: put, get, range, list, delete.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use kestrel_blockstore::store::{BlockStore, list_all};

use super::workers::{self, WorkersReport};
use super::{BenchPlan, Ended, Stop, content};

/// Bytes of one read of a part of an object: a frame, the least that a file system reads.
const RANGE_BYTES: u64 = 64 << 10;

/// Contents to put, reused: making them must not be what is measured.
const CONTENTS: u64 = 8;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Whole objects written, with the store's sync at the end.
    Put,
    /// Whole objects read.
    Get,
    /// 64 KiB at random places of objects read.
    Range,
    /// Pages of a listing.
    List,
    /// Objects deleted.
    Delete,
}

impl Operation {
    /// `put`, `get`, …
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Range => "range",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }
}

/// What was measured.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// What was done.
    pub operation: Operation,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// How often.
    pub count: u64,
    /// Objects concerned: for listings those listed, else `count`.
    pub objects: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// How long all took, side by side.
    pub took: Duration,
    /// Longest of the faster half.
    pub median: Duration,
    /// Longest but for one in a hundred.
    pub p99: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Measurement {
    fn new(operation: Operation, object_bytes: u64, moved_each: u64, done: &WorkersReport) -> Self {
        let at = |share: f64| {
            let index = (done.latencies.len() as f64 * share).ceil() as usize;
            done.latencies.get(index.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self {
            operation,
            object_bytes,
            count: done.count,
            objects: done.count,
            bytes: done.count * moved_each,
            took: done.took,
            median: at(0.5),
            p99: at(0.99),
            longest: at(1.0),
        }
    }
}

/// Measures with every size of the plan; `report` gets each figure as it is measured. Every object
/// that is read whole is compared with what was written.
///
/// # Errors
/// The first failure of the store; objects may be left in it then.
pub fn measure(
    store: &dyn BlockStore,
    plan: &BenchPlan,
    stop: &Stop,
    report: &mut dyn FnMut(&Measurement),
) -> Result<(), Ended> {
    for &size in &plan.sizes {
        let written = put(store, plan, size, stop)?;
        report(&written);
        let objects = written.count;
        report(&get(store, plan, size, objects, stop)?);
        if size > RANGE_BYTES {
            report(&range(store, plan, size, objects, stop)?);
        }
        report(&list(store, size, objects, stop)?);
        report(&delete(store, plan, size, objects, stop)?);
    }
    Ok(())
}

fn contents(plan: &BenchPlan, size: u64) -> Vec<Vec<u8>> {
    (0..CONTENTS).map(|number| content(plan.seed, number, size)).collect()
}

fn put(
    store: &dyn BlockStore,
    plan: &BenchPlan,
    size: u64,
    stop: &Stop,
) -> Result<Measurement, Ended> {
    let contents = contents(plan, size);
    let jobs = (plan.bytes_max / size.max(1)).max(1);
    let mut done = workers::run(plan.threads, jobs, plan.time, stop, |number| {
        let bytes = &contents[(number % CONTENTS) as usize];
        Ok(store.put(number + 1, &[IoSlice::new(bytes)])?)
    })?;
    let begin = Instant::now();
    store.sync()?;
    done.took += begin.elapsed();
    Ok(Measurement::new(Operation::Put, size, size, &done))
}

fn get(
    store: &dyn BlockStore,
    plan: &BenchPlan,
    size: u64,
    objects: u64,
    stop: &Stop,
) -> Result<Measurement, Ended> {
    let contents = contents(plan, size);
    let order = Order::new(plan.seed, objects);
    let done = workers::run(plan.threads, u64::MAX, plan.time, stop, |number| {
        let object = order.at(number);
        let mut out = vec![0; size as usize];
        store.read(object + 1, 0, &mut [IoSliceMut::new(&mut out)])?;
        if out != contents[(object % CONTENTS) as usize] {
            return Err(Ended::Wrong(format!(
                "object {}: read other bytes than were written",
                object + 1
            )));
        }
        Ok(())
    })?;
    Ok(Measurement::new(Operation::Get, size, size, &done))
}

fn range(
    store: &dyn BlockStore,
    plan: &BenchPlan,
    size: u64,
    objects: u64,
    stop: &Stop,
) -> Result<Measurement, Ended> {
    let contents = contents(plan, size);
    let (order, offsets) =
        (Order::new(plan.seed, objects), Order::new(!plan.seed, size - RANGE_BYTES));
    let done = workers::run(plan.threads, u64::MAX, plan.time, stop, |number| {
        let (object, offset) = (order.at(number), offsets.at(number));
        let mut out = vec![0; RANGE_BYTES as usize];
        store.read(object + 1, offset, &mut [IoSliceMut::new(&mut out)])?;
        let span = offset as usize..(offset + RANGE_BYTES) as usize;
        if out != contents[(object % CONTENTS) as usize][span] {
            return Err(Ended::Wrong(format!(
                "object {}, byte {offset}: read other bytes than were written",
                object + 1
            )));
        }
        Ok(())
    })?;
    Ok(Measurement::new(Operation::Range, size, RANGE_BYTES, &done))
}

fn list(
    store: &dyn BlockStore,
    size: u64,
    objects: u64,
    stop: &Stop,
) -> Result<Measurement, Ended> {
    let (mut found, mut latencies) = (0, Vec::new());
    let begin = Instant::now();
    let mut began = begin;
    for page in list_all(store) {
        if stop.is_stopped() {
            return Err(Ended::Stopped);
        }
        found += page?.objects.len() as u64;
        latencies.push(began.elapsed());
        began = Instant::now();
    }
    let took = begin.elapsed();
    if found != objects {
        return Err(Ended::Wrong(format!("the listing has {found} objects of {objects}")));
    }
    latencies.sort_unstable();
    let done = WorkersReport { count: latencies.len() as u64, took, latencies };
    Ok(Measurement { objects, ..Measurement::new(Operation::List, size, 0, &done) })
}

fn delete(
    store: &dyn BlockStore,
    plan: &BenchPlan,
    size: u64,
    objects: u64,
    stop: &Stop,
) -> Result<Measurement, Ended> {
    let done = workers::run(plan.threads, objects, Duration::MAX, stop, |number| {
        match store.delete(number + 1)? {
            true => Ok(()),
            false => Err(Ended::Wrong(format!("object {} is gone", number + 1))),
        }
    })?;
    Ok(Measurement::new(Operation::Delete, size, 0, &done))
}

/// Numbers below a bound in an order that looks random and can be computed by position.
struct Order {
    seed: u64,
    bound: u64,
}

impl Order {
    fn new(seed: u64, bound: u64) -> Self {
        Self { seed, bound: bound.max(1) }
    }

    /// SplitMix64's finalizer of the position.
    fn at(&self, position: u64) -> u64 {
        let mut x = position.wrapping_add(self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % self.bound
    }
}
