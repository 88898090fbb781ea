//! Reading: from the page cache of a cache file, from the cache disk, from a flight, from the
//! store; in this order.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

use kestrel_blockstore::{Error, Grant, Result};
use kestrel_types::ids::ObjectId;

use crate::core::Core;
use crate::disk::{Disk, Side};
use crate::faults::DiskOp;
use crate::flight::{Fetched, Flight, GAP_PAGES};
use crate::object::{Object, ObjectState};
use crate::page::{self, PAGE_BYTES};
use crate::pages::runs;
use crate::slots;

/// What to do where the object ends before what was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtEnd {
    Fail,
    Stop,
}

/// The layer that verifies what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// The cache: page by page.
    Pages,
    /// The caller, by checksums of his own; the cache only that the file is the object's.
    Caller,
}

/// What a read wants, and where it goes.
struct Want<'a, 'b> {
    offset: u64,
    len: u64,
    parts: &'a mut [IoSliceMut<'b>],
    /// Where the object turned out to end, if before the end of what is wanted.
    end: Option<u64>,
}

impl Want<'_, '_> {
    /// Bytes of a page that are wanted: up to here, from the page's beginning.
    fn until(&self, page: u32) -> usize {
        (self.offset + self.len - page::page_at(page)).min(PAGE_BYTES) as usize
    }

    /// Copies what is wanted of a page.
    fn put(&mut self, page: u32, data: &[u8]) {
        let at = page::page_at(page);
        let (from, until) =
            (self.offset.max(at), (self.offset + self.len).min(at + data.len() as u64));
        if until < (self.offset + self.len).min(at + PAGE_BYTES) {
            self.end = Some(
                self.end.map_or(at + data.len() as u64, |end| end.min(at + data.len() as u64)),
            );
        }
        let Some(mut data) = data.get((from - at) as usize..(until.max(from) - at) as usize) else {
            return;
        };
        let mut skip = (from - self.offset) as usize;
        for part in self.parts.iter_mut() {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let len = (part.len() - skip).min(data.len());
            let (head, tail) = data.split_at(len);
            part[skip..skip + len].copy_from_slice(head);
            (data, skip) = (tail, 0);
            if data.is_empty() {
                return;
            }
        }
    }
}

/// Ends its flight as failed if the thread dies with it.
struct FlightLeader<'a> {
    core: &'a Core,
    object: &'a Object,
    flight: Arc<Flight>,
    /// Room for what it brings to wait in for the cache disk, if it was had beforehand.
    grant: Option<Grant>,
    is_finished: bool,
}

impl FlightLeader<'_> {
    fn finish(&mut self, result: Result<Arc<Fetched>>) {
        self.is_finished = true;
        self.object.state.lock().flights.finish(&self.flight, result);
    }

    /// Makes the request.
    fn fly(&mut self) -> Result<Arc<Fetched>> {
        self.flight.wait_for_turn();
        let pages = self.object.state.lock().flights.pages(&self.flight);
        let mut bytes = vec![0; pages.len() * PAGE_BYTES as usize];
        let read =
            self.core.store.read_up_to(self.object.id, page::page_at(pages.start), &mut bytes);
        let fetched = read.map(|len| {
            if len < bytes.len() {
                self.object.state.lock().end =
                    Some(pages.start + (len as u64).div_ceil(PAGE_BYTES) as u32);
            }
            bytes.truncate(len);
            Arc::new(Fetched { requested: pages, bytes })
        });
        self.finish(fetched.clone());
        fetched
    }
}

impl Drop for FlightLeader<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.finish(Err(Error::Closed { during: "reading for another thread, which ended" }));
        }
    }
}

impl Core {
    /// Reads `parts` from byte `offset` on; bytes read.
    pub fn read(
        self: &Arc<Self>,
        id: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
        at_end: AtEnd,
    ) -> Result<u64> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let disk = self.disk_for(id);
        let (true, Some(disk)) = (Self::is_cacheable(offset, len), disk) else {
            self.stats.bypassed.add(u64::from(disk.is_none()));
            return self.read_past(id, offset, parts, len, at_end);
        };
        let object = self.table.get(id);
        if self.read_warm(&object, disk, offset, len, parts, Check::Pages) {
            return Ok(len);
        }
        let brought = self.bring(&object, disk, &page::pages(offset, len));
        if brought == Some(true) && self.read_warm(&object, disk, offset, len, parts, Check::Pages)
        {
            return Ok(len);
        }
        let mut want = Want { offset, len, parts, end: None };
        self.read_cold(&object, disk, &mut want, (at_end, brought != Some(false)))?;
        match want.end {
            Some(_) if at_end == AtEnd::Fail => Err(Error::Corrupt {
                object: id,
                offset,
                what: "the object is shorter than what was stored",
            }),
            Some(end) => Ok(end.saturating_sub(offset)),
            None => Ok(len),
        }
    }

    /// Reads from the store itself.
    fn read_past(
        &self,
        id: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
        len: u64,
        at_end: AtEnd,
    ) -> Result<u64> {
        match (at_end, parts) {
            (AtEnd::Stop, [part]) => {
                self.store.read_up_to(id, offset, part).map(|read| read as u64)
            }
            (_, parts) => self.store.read(id, offset, parts).map(|()| len),
        }
    }

    /// Reads without waiting, if that works. No request, no copy but the kernel's.
    pub fn read_warm(
        &self,
        object: &Arc<Object>,
        disk: &Arc<Disk>,
        offset: u64,
        len: u64,
        parts: &mut [IoSliceMut<'_>],
        check: Check,
    ) -> bool {
        let pages = page::pages(offset, len);
        let now = self.now();
        let mut state = object.state.lock();
        state.bind(disk.index);
        let is_on_disk = state.on_disk.contains_all(pages.clone());
        if !is_on_disk
            && (state.looked_up.is_some() && state.is_lookup_recent(now)
                || !state.flights.is_empty())
        {
            return false;
        }
        let opened = match &state.file {
            Some(file) => Some(Arc::clone(file)),
            None => {
                let file = disk.open_file_cached(object.id).map(Arc::new);
                if let Some(file) = &file {
                    state.attach(Arc::clone(file));
                }
                drop(state);
                if file.is_some() {
                    self.table.opened(object);
                }
                state = object.state.lock();
                file
            }
        };
        let Some(file) = opened else { return false };
        let is_this = state.file.as_ref().is_some_and(|current| Arc::ptr_eq(current, &file));
        let is_unchecked = check == Check::Caller && is_on_disk && is_this && state.is_file_proven;
        drop(state);
        let read = disk.before(DiskOp::ReadCached).and_then(|()| {
            if is_unchecked {
                return slots::read_cached_unchecked(&file, offset, len, parts);
            }
            slots::read_cached(&file, &self.owner(object.id), offset, len, parts)
        });
        if !matches!(read, Ok(true)) {
            // The read that may wait finds out what is wrong.
            return false;
        }
        if !is_unchecked {
            let mut state = object.state.lock();
            if state.file.as_ref().is_some_and(|current| Arc::ptr_eq(current, &file)) {
                state.is_file_proven = true;
                pages.clone().for_each(|page| state.on_disk.insert(page));
            }
        }
        self.stats.hits.add(1);
        self.stats.hit_bytes.add(len);
        self.served(object, disk, pages);
        true
    }

    /// Reads pages from wherever they are, waiting for it. Without `reads_disk` it does not look on
    /// the disk, which does not have them.
    fn read_cold(
        self: &Arc<Self>,
        object: &Arc<Object>,
        disk: &Arc<Disk>,
        want: &mut Want<'_, '_>,
        (at_end, reads_disk): (AtEnd, bool),
    ) -> Result<()> {
        let pages = page::pages(want.offset, want.len);
        let mut missing = Vec::new();
        // An object that can still grow may have grown since its last page was cached.
        let is_end_final = at_end == AtEnd::Stop && self.store.appends().is_none();
        let to_look_up = self.copy_finished(object, want, is_end_final, &mut missing);
        let found = if reads_disk { self.lookup(object, disk, &to_look_up) } else { Vec::new() };
        for page in to_look_up {
            match found.iter().find_map(|slots| slots.page(page)) {
                Some(data) if data.len() >= want.until(page) || is_end_final => {
                    want.put(page, data)
                }
                _ => missing.push(page),
            }
        }
        if let Some(end) = want.end {
            missing.retain(|page| page::page_at(*page) < end);
        }
        missing.sort_unstable();
        if missing.is_empty() {
            self.stats.hits.add(1);
            self.stats.hit_bytes.add(want.len);
        } else {
            self.stats.misses.add(1);
            self.stats.miss_bytes.add(want.len);
            self.fetch(object, disk, want, missing)?;
        }
        self.served(object, disk, pages);
        Ok(())
    }

    /// Copies pages that are in memory on their way to the cache disk. Adds those that are still on
    /// their way here to `missing`; returns those to look for on the disk.
    fn copy_finished(
        &self,
        object: &Object,
        want: &mut Want<'_, '_>,
        is_end_final: bool,
        missing: &mut Vec<u32>,
    ) -> Vec<u32> {
        let (mut finished, mut to_look_up) = (Vec::new(), Vec::new());
        let now = self.now();
        let state = object.state.lock();
        for page in page::pages(want.offset, want.len) {
            let flight = state.flights.of(page);
            match flight.map(|flight| flight.finished()) {
                Some(Some(fetched))
                    if is_end_final || fetched.page_len(page) >= want.until(page) =>
                {
                    finished.push((page, fetched));
                }
                None if state.on_disk.contains(page) || !state.is_lookup_recent(now) => {
                    to_look_up.push(page)
                }
                _ => missing.push(page),
            }
        }
        drop(state);
        for (page, fetched) in finished {
            want.put(page, fetched.page(page).unwrap_or_default());
        }
        to_look_up
    }

    /// Brings pages from the store, sharing requests with readers of the same or neighbouring ones.
    fn fetch(
        self: &Arc<Self>,
        object: &Arc<Object>,
        disk: &Arc<Disk>,
        want: &mut Want<'_, '_>,
        missing: Vec<u32>,
    ) -> Result<()> {
        let Claims { own, joined } = self.claim(object, disk, want, missing);
        fly(own, |leader, fetched| {
            match leader.grant.take() {
                Some(grant) => self.keep_granted(object, disk, &leader.flight, fetched, grant),
                None => self.keep(object, disk, &leader.flight, fetched),
            }
            // The pages that it brought of those wanted; if the object ends before, its last page
            // shows it.
            for page in
                page::pages(want.offset, want.len).filter(|page| fetched.requested.contains(page))
            {
                want.put(page, fetched.page(page).unwrap_or_default());
            }
        })?;
        self.stats.coalesced.add(u64::from(!joined.is_empty()));
        for (page, flight) in joined {
            let fetched = flight.wait()?;
            want.put(page, fetched.page(page).unwrap_or_default());
        }
        Ok(())
    }

    /// Decides for each missing page which request brings it.
    fn claim<'a>(
        &'a self,
        object: &'a Object,
        disk: &Disk,
        want: &Want<'_, '_>,
        missing: Vec<u32>,
    ) -> Claims<'a> {
        let mut claims = Claims { own: Vec::new(), joined: Vec::new() };
        let now = self.now();
        let mut state = object.state.lock();
        let mut unclaimed = Vec::new();
        for page in missing {
            match state.flights.of(page) {
                // A flight that ended short was looked at already.
                Some(flight)
                    if flight
                        .finished()
                        .is_none_or(|fetched| fetched.page_len(page) >= want.until(page)) =>
                {
                    claims.joined.push((page, Arc::clone(flight)));
                }
                _ => unclaimed.push(page),
            }
        }
        for run in runs(unclaimed.iter().copied(), GAP_PAGES) {
            if let Some(flight) = state.flights.gather(&run) {
                let mine = unclaimed.iter().filter(|page| run.contains(page));
                claims.joined.extend(mine.map(|page| (*page, Arc::clone(&flight))));
                continue;
            }
            let requests = state.count_request(now);
            let (plan, grant) = self.plan(&mut state, disk, run, requests);
            let flight = state.flights.take(plan);
            claims.own.push(FlightLeader { core: self, object, flight, grant, is_finished: false });
        }
        claims
    }

    /// Brings pages that no flight brings yet and nothing else, for the cache disk; `grant` is room
    /// for them to wait in.
    pub fn fetch_for_disk(
        self: &Arc<Self>,
        object: &Arc<Object>,
        disk: &Arc<Disk>,
        missing: &[u32],
        mut grant: Grant,
    ) -> Result<Vec<Arc<Flight>>> {
        let mut own = Vec::new();
        let mut state = object.state.lock();
        let unclaimed = missing.iter().copied().filter(|page| state.flights.of(*page).is_none());
        for run in runs(unclaimed.collect::<Vec<_>>(), 0) {
            let flight = state.flights.take(run);
            own.push(FlightLeader { core: self, object, flight, grant: None, is_finished: false });
        }
        drop(state);
        let mut flights = Vec::with_capacity(own.len());
        fly(own, |leader, fetched| {
            let room = grant.split(fetched.bytes.len() as u64);
            self.keep_granted(object, disk, &leader.flight, fetched, room);
            flights.push(Arc::clone(&leader.flight));
        })?;
        Ok(flights)
    }

    /// What to request to get `run`, and room for it to wait in. Nothing is fetched ahead that
    /// could not be kept: when the cache disk takes less than the store gives, fetching ahead is
    /// the first to stop.
    fn plan(
        &self,
        state: &mut ObjectState,
        disk: &Disk,
        run: Range<u32>,
        requests: u32,
    ) -> (Range<u32>, Option<Grant>) {
        let bytes = |pages: &Range<u32>| pages.len() as u64 * PAGE_BYTES;
        let is_here = |page| state.on_disk.contains(page) || state.flights.of(page).is_some();
        let mut policy = self.span.lock();
        let mut plan = policy.plan(&run, requests, state.end, is_here);
        let is_roomy = disk.is_in_service(Side::Write)
            && disk.waiting.used() + bytes(&plan) <= disk.waiting.limit() / 2;
        let grant = is_roomy.then(|| disk.waiting.try_acquire(bytes(&plan))).flatten();
        if grant.is_none() {
            plan = run.clone();
        }
        let ahead = bytes(&plan) - bytes(&run);
        policy.fetched(bytes(&run), ahead);
        drop(policy);
        self.stats.span_bytes.add(ahead);
        plan.clone().filter(|page| !run.contains(page)).for_each(|page| state.ahead.insert(page));
        (plan, grant)
    }
}

/// Makes requests one after another. The failure of one is that of those not made yet, too.
fn fly(
    leaders: Vec<FlightLeader<'_>>,
    mut finished: impl FnMut(&mut FlightLeader<'_>, &Arc<Fetched>),
) -> Result<()> {
    let mut failure = None;
    for mut leader in leaders {
        match &failure {
            Some(error) => leader.finish(Err(Error::clone(error))),
            None => match leader.fly() {
                Ok(fetched) => finished(&mut leader, &fetched),
                Err(error) => failure = Some(error),
            },
        }
    }
    failure.map_or(Ok(()), Err)
}

/// The flights that bring missing pages.
struct Claims<'a> {
    /// Requests to make.
    own: Vec<FlightLeader<'a>>,
    /// Pages that other threads bring.
    joined: Vec<(u32, Arc<Flight>)>,
}
