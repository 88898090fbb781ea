//! A store that fails on purpose: every implementation's companion in tests.
//!
//! Rules say which calls fail, how often and how. What is random comes from one seed, so a failing
//! run repeats.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kestrel_types::ids::ObjectId;
use parking_lot::Mutex;

use super::{
    AppendStore, Appender, BlockStore, LocalCache, Page, PutOptions, TieredStore, Usage, total_len,
};
use crate::error::{Error, Result};

/// A call of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreCall {
    /// [`BlockStore::put`]
    Put,
    /// [`AppendStore::create`]
    Create,
    /// [`Appender::append`]
    Append,
    /// [`BlockStore::read`], [`BlockStore::read_fresh`] and [`BlockStore::try_read_nowait`]
    Read,
    /// [`BlockStore::size`]
    Size,
    /// [`BlockStore::delete`]
    Delete,
    /// [`BlockStore::sync`] and [`BlockStore::sync_objects`]
    Sync,
    /// [`BlockStore::list`]
    List,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// With this errno, nothing done.
    Errno(i32),
    /// A write stops half-way, then fails with this errno.
    Torn(i32),
    /// A read finds the object too short.
    Short,
    /// A read returns one wrong byte.
    WrongByte,
    /// A read returns zeros.
    Zeros,
    /// The call takes this long and succeeds.
    Slow(Duration),
    /// The calling thread panics, as it would over a defect of the store.
    Panic,
}

/// Which calls fail and how.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Calls it applies to.
    pub calls: Vec<StoreCall>,
    /// The object it applies to; none means any.
    pub object: Option<ObjectId>,
    /// Matching calls that pass before the first fault.
    pub skip: u64,
    /// Faults before the rule is spent.
    pub times: u64,
    /// Chance of a fault per matching call, in thousandths.
    pub per_mille: u32,
    /// The fault.
    pub fault: Fault,
}

impl Rule {
    /// Every such call fails.
    pub fn always(call: StoreCall, fault: Fault) -> Self {
        Self { calls: vec![call], object: None, skip: 0, times: u64::MAX, per_mille: 1000, fault }
    }

    /// The first such call after `skip` others fails.
    pub fn once(call: StoreCall, skip: u64, fault: Fault) -> Self {
        Self { skip, times: 1, ..Self::always(call, fault) }
    }
}

#[derive(Default)]
struct Plan {
    rules: Vec<Rule>,
    random: u64,
    lost: Option<Error>,
}

struct Faults {
    plan: Mutex<Plan>,
    injected: AtomicU64,
}

impl Faults {
    /// The fault for this call, if it is its turn. Sleeps out slow ones, and panics where that is
    /// the fault.
    fn draw(&self, call: StoreCall, object: Option<ObjectId>) -> Option<Fault> {
        let mut plan = self.plan.lock();
        let mut drawn = None;
        for index in 0..plan.rules.len() {
            let chance = plan.next_random() % 1000;
            let rule = &mut plan.rules[index];
            let matches =
                rule.calls.contains(&call) && rule.object.is_none_or(|only| object == Some(only));
            if !matches || rule.times == 0 {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            if chance < u64::from(rule.per_mille) {
                rule.times -= 1;
                drawn = Some(rule.fault);
                break;
            }
        }
        drop(plan);
        let fault = drawn?;
        self.injected.fetch_add(1, Ordering::SeqCst);
        if let Fault::Slow(time) = fault {
            std::thread::sleep(time);
            return None;
        }
        if fault == Fault::Panic {
            // Past the hook: nothing is printed.
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        Some(fault)
    }

    fn fail(&self, call: StoreCall, object: Option<ObjectId>) -> Result<()> {
        match self.draw(call, object) {
            Some(Fault::Errno(errno) | Fault::Torn(errno)) => Err(failure(errno, object)),
            _ => Ok(()),
        }
    }

    fn write(
        &self,
        call: StoreCall,
        object: ObjectId,
        parts: &[IoSlice<'_>],
        write: impl FnOnce(&[IoSlice<'_>]) -> Result<u64>,
    ) -> Result<u64> {
        match self.draw(call, Some(object)) {
            Some(Fault::Errno(errno)) => Err(failure(errno, Some(object))),
            Some(Fault::Torn(errno)) => {
                let whole: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
                write(&[IoSlice::new(&whole[..whole.len() / 2])])?;
                Err(failure(errno, Some(object)))
            }
            _ => write(parts),
        }
    }
}

impl Plan {
    /// SplitMix64.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

fn failure(errno: i32, object: Option<ObjectId>) -> Error {
    Error::from_io("injected fault", object, std::io::Error::from_raw_os_error(errno))
}

/// Another store with faults in front of it.
pub struct FailingStore {
    inner: Arc<dyn BlockStore>,
    faults: Arc<Faults>,
}

impl FailingStore {
    /// Passes everything on until rules are added.
    pub fn new(inner: Arc<dyn BlockStore>, seed: u64) -> Self {
        let plan = Plan { random: seed, ..Plan::default() };
        Self {
            inner,
            faults: Arc::new(Faults { plan: Mutex::new(plan), injected: AtomicU64::new(0) }),
        }
    }

    /// Adds a rule. The first one that fires decides.
    pub fn add(&self, rule: Rule) {
        self.faults.plan.lock().rules.push(rule);
    }

    /// Removes all rules. A lost sync stays lost, as in every store.
    pub fn heal(&self) {
        self.faults.plan.lock().rules.clear();
    }

    /// Faults injected so far.
    pub fn injected(&self) -> u64 {
        self.faults.injected.load(Ordering::SeqCst)
    }

    fn sync_with(&self, object: Option<ObjectId>, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        if let Some(cause) = &self.faults.plan.lock().lost {
            return Err(Error::SyncLost { cause: Box::new(cause.clone()) });
        }
        let done = self.faults.fail(StoreCall::Sync, object);
        if let Err(error) = &done {
            self.faults.plan.lock().lost.get_or_insert_with(|| error.clone());
        }
        done.and_then(|()| sync())
    }

    fn read_with(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<Option<()>>,
    ) -> Result<Option<()>> {
        let fault = self.faults.draw(StoreCall::Read, Some(object));
        if let Some(Fault::Errno(errno)) = fault {
            return Err(failure(errno, Some(object)));
        }
        if fault == Some(Fault::Short) {
            return Err(Error::Corrupt {
                object,
                offset,
                what: "the object is shorter than what was stored",
            });
        }
        let done = read(parts)?;
        match fault {
            Some(Fault::WrongByte) => {
                let at = self.faults.plan.lock().next_random() as usize % total_len(parts).max(1);
                let mut before = 0;
                for part in parts {
                    if let Some(byte) = at.checked_sub(before).and_then(|at| part.get_mut(at)) {
                        *byte ^= 0x40;
                    }
                    before += part.len();
                }
            }
            Some(Fault::Zeros) => parts.iter_mut().for_each(|part| part.fill(0)),
            _ => {}
        }
        Ok(done)
    }
}

impl BlockStore for FailingStore {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        let put = |parts: &[IoSlice<'_>]| self.inner.put(object, parts).map(|()| 0);
        self.faults.write(StoreCall::Put, object, parts, put).map(drop)
    }

    fn put_with(&self, object: ObjectId, parts: &[Bytes], options: PutOptions) -> Result<()> {
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let put = |slices: &[IoSlice<'_>]| {
            let parts: Vec<Bytes> =
                slices.iter().map(|part| Bytes::copy_from_slice(part)).collect();
            self.inner.put_with(object, &parts, options).map(|()| 0)
        };
        self.faults.write(StoreCall::Put, object, &slices, put).map(drop)
    }

    fn tiers(&self) -> Option<&dyn TieredStore> {
        self.inner.tiers()
    }

    fn appends(&self) -> Option<&dyn AppendStore> {
        self.inner.appends().map(|_| self as &dyn AppendStore)
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.read_with(object, offset, parts, |parts| {
            self.inner.read(object, offset, parts).map(Some)
        })
        .map(drop)
    }

    fn try_read_nowait(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<Option<()>> {
        self.read_with(object, offset, parts, |parts| {
            self.inner.try_read_nowait(object, offset, parts)
        })
    }

    fn prefetch(&self, object: ObjectId, offset: u64, len: u64) -> bool {
        self.inner.prefetch(object, offset, len)
    }

    fn read_fresh(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        self.read_with(object, offset, parts, |parts| {
            self.inner.read_fresh(object, offset, parts).map(Some)
        })
        .map(drop)
    }

    fn is_remote(&self) -> bool {
        self.inner.is_remote()
    }

    fn near(&self) -> Option<&dyn LocalCache> {
        self.inner.near()
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.inner.stats(report);
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        self.faults.fail(StoreCall::Size, Some(object))?;
        self.inner.size(object)
    }

    fn delete(&self, object: ObjectId) -> Result<bool> {
        self.faults.fail(StoreCall::Delete, Some(object))?;
        self.inner.delete(object)
    }

    fn sync(&self) -> Result<()> {
        self.sync_with(None, || self.inner.sync())
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.sync_with(objects.first().copied(), || self.inner.sync_objects(objects))
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        self.faults.fail(StoreCall::List, None)?;
        self.inner.list(after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.inner.usage()
    }
}

impl AppendStore for FailingStore {
    fn create(&self, object: ObjectId) -> Result<Box<dyn Appender>> {
        self.faults.fail(StoreCall::Create, Some(object))?;
        let Some(appends) = self.inner.appends() else {
            return Err(Error::Invalid { what: "the store cannot append" });
        };
        let inner = appends.create(object)?;
        Ok(Box::new(FailingAppender { inner, object, faults: Arc::clone(&self.faults) }))
    }
}

struct FailingAppender {
    inner: Box<dyn Appender>,
    object: ObjectId,
    faults: Arc<Faults>,
}

impl Appender for FailingAppender {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<u64> {
        let inner = &mut self.inner;
        self.faults.write(StoreCall::Append, self.object, parts, |parts| inner.append(parts))
    }
}
