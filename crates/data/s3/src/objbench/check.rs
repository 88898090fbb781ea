//! Whether a store does what the file system needs of it.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kestrel_blockstore::error::Error;
use kestrel_blockstore::store::BlockStore;

use super::{BenchPlan, Ended, Stop, content, workers};

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckOutcome {
    /// As it must be.
    Good,
    /// It works, with this drawback.
    Poor(String),
    /// The file system must not be used on this store.
    Bad(String),
}

/// A check that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What must be so.
    pub name: &'static str,
    /// Whether it is.
    pub verdict: CheckOutcome,
}

/// A check: fails by what it returns, or by an error of the store.
type Body = fn(&dyn BlockStore, &BenchPlan, &Stop) -> Result<CheckOutcome, Ended>;

/// All checks in order. Each leaves the store as empty as it found it.
const CHECKS: [(&str, Body); 6] = [
    ("what was written is read at once, by everybody", read_after_write),
    ("ranges are exact, and the end of an object is told", ranges),
    ("large objects come back whole", large),
    ("listings are complete over several pages", listings),
    ("what was deleted is gone at once", deletions),
    ("of several writers of one object one wins", conditional_put),
];

/// Makes every check; `report` gets each as it is made. A store that fails a check is checked on.
///
/// # Errors
/// Only if stopped.
pub fn check(
    store: &dyn BlockStore,
    plan: &BenchPlan,
    stop: &Stop,
    report: &mut dyn FnMut(&Check),
) -> Result<(), Ended> {
    for (name, body) in CHECKS {
        let verdict = match body(store, plan, stop) {
            Ok(verdict) => verdict,
            Err(Ended::Stopped) => return Err(Ended::Stopped),
            Err(Ended::Failed(error)) => CheckOutcome::Bad(error.to_string()),
            Err(Ended::Wrong(why)) => CheckOutcome::Bad(why),
        };
        // Best effort: the check of listings reports a store that cannot even list.
        let _ = clear(store);
        report(&Check { name, verdict });
    }
    Ok(())
}

fn clear(store: &dyn BlockStore) -> Result<(), Error> {
    for page in kestrel_blockstore::store::list_all(store) {
        for info in page?.objects {
            store.delete(info.object)?;
        }
    }
    Ok(())
}

fn wrong<T>(why: impl Into<String>) -> Result<T, Ended> {
    Err(Ended::Wrong(why.into()))
}

fn read(store: &dyn BlockStore, object: u64, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; len as usize];
    store.read(object, offset, &mut [IoSliceMut::new(&mut out)])?;
    Ok(out)
}

/// Also after the object was requested and was not there: some stores and proxies remember that.
fn read_after_write(
    store: &dyn BlockStore,
    plan: &BenchPlan,
    stop: &Stop,
) -> Result<CheckOutcome, Ended> {
    const OBJECTS: u64 = 64;
    workers::run(plan.threads.min(8), OBJECTS, Duration::MAX, stop, |number| {
        let object = number + 1;
        let bytes = content(plan.seed, object, 1000 + number * 100);
        match store.size(object) {
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return wrong(format!("object {object} was there before it was written")),
        }
        store.put(object, &[IoSlice::new(&bytes)])?;
        if store.size(object)? != bytes.len() as u64 {
            return wrong(format!("object {object} has another size than was written"));
        }
        if read(store, object, 0, bytes.len() as u64)? != bytes {
            return wrong(format!("object {object} has other bytes than were written"));
        }
        Ok(())
    })?;
    Ok(CheckOutcome::Good)
}

fn ranges(store: &dyn BlockStore, plan: &BenchPlan, _stop: &Stop) -> Result<CheckOutcome, Ended> {
    const LEN: u64 = 300_007;
    let bytes = content(plan.seed, 1, LEN);
    store.put(1, &[IoSlice::new(&bytes)])?;
    for (offset, len) in
        [(0, 1), (0, LEN), (LEN - 1, 1), (65_536, 65_540), (LEN / 2, LEN - LEN / 2), (3, 99_999)]
    {
        if read(store, 1, offset, len)? != bytes[offset as usize..(offset + len) as usize] {
            return wrong(format!("{len} bytes from byte {offset} on are not what was written"));
        }
    }
    for (offset, len) in [(LEN - 5, 6), (LEN, 1), (LEN * 2, 10)] {
        match read(store, 1, offset, len) {
            Err(Error::Corrupt { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => {
                return wrong(format!(
                    "{len} bytes from byte {offset} on were read, beyond the object's end"
                ));
            }
        }
    }
    let mut out = vec![0; 100];
    if store.read_up_to(1, LEN - 40, &mut out)? != 40 || out[..40] != bytes[LEN as usize - 40..] {
        return wrong("a read over the object's end is not cut there");
    }
    if store.read_up_to(1, LEN, &mut out)? != 0 {
        return wrong("a read behind the object's end gives bytes");
    }
    Ok(CheckOutcome::Good)
}

fn large(store: &dyn BlockStore, plan: &BenchPlan, _stop: &Stop) -> Result<CheckOutcome, Ended> {
    let bytes = content(plan.seed, 1, plan.large_bytes);
    let parts: Vec<IoSlice<'_>> = bytes.chunks(1 << 20).map(IoSlice::new).collect();
    store.put(1, &parts)?;
    if read(store, 1, 0, plan.large_bytes)? != bytes {
        return wrong(format!(
            "an object of {} bytes has other bytes than were written",
            plan.large_bytes
        ));
    }
    Ok(CheckOutcome::Good)
}

fn listings(store: &dyn BlockStore, plan: &BenchPlan, stop: &Stop) -> Result<CheckOutcome, Ended> {
    const OBJECTS: u64 = 90;
    const PAGE: usize = 20;
    workers::run(plan.threads.min(16), OBJECTS, Duration::MAX, stop, |number| {
        Ok(store.put(number + 1, &[IoSlice::new(&content(plan.seed, number, number + 1))])?)
    })?;
    let (mut found, mut after, mut pages) = (BTreeSet::new(), None::<String>, 0);
    loop {
        let page = store.list(after.as_deref(), PAGE)?;
        pages += 1;
        for info in page.objects {
            if info.size != info.object {
                return wrong(format!(
                    "the listing tells object {} with a wrong size",
                    info.object
                ));
            }
            if !found.insert(info.object) {
                return wrong(format!("the listing tells object {} twice", info.object));
            }
        }
        match page.next {
            Some(_) if pages > OBJECTS => return wrong("the listing does not end"),
            Some(next) => after = Some(next),
            None => break,
        }
    }
    if found.len() as u64 != OBJECTS || found.last() != Some(&OBJECTS) {
        return wrong(format!("the listing has {} objects of {OBJECTS}", found.len()));
    }
    if pages < OBJECTS / PAGE as u64 {
        return Ok(CheckOutcome::Poor(format!("pages are longer than asked for: {pages} pages")));
    }
    Ok(CheckOutcome::Good)
}

fn deletions(store: &dyn BlockStore, plan: &BenchPlan, stop: &Stop) -> Result<CheckOutcome, Ended> {
    workers::run(plan.threads.min(8), 16, Duration::MAX, stop, |number| {
        let object = number + 1;
        store.put(object, &[IoSlice::new(b"to be deleted")])?;
        if !store.delete(object)? || store.delete(object)? {
            return wrong(format!("object {object} was deleted, and the store says otherwise"));
        }
        match read(store, object, 0, 1) {
            Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => wrong(format!("object {object} was deleted and can be read")),
        }
    })?;
    match store.list(None, 100)?.objects.first() {
        None => Ok(CheckOutcome::Good),
        Some(info) => wrong(format!("object {} was deleted and is listed", info.object)),
    }
}

fn conditional_put(
    store: &dyn BlockStore,
    plan: &BenchPlan,
    stop: &Stop,
) -> Result<CheckOutcome, Ended> {
    const ROUNDS: u64 = 20;
    const WRITERS: u64 = 8;
    let winners = AtomicU64::new(0);
    let mut lost = 0;
    for object in 1..=ROUNDS {
        winners.store(0, Ordering::Relaxed);
        let last = AtomicU64::new(0);
        workers::run(WRITERS as usize, WRITERS, Duration::MAX, stop, |writer| {
            match store
                .put(object, &[IoSlice::new(&content(plan.seed, object * 100 + writer, 5000))])
            {
                Ok(()) => {
                    winners.fetch_add(1, Ordering::Relaxed);
                    last.store(writer, Ordering::Relaxed);
                    Ok(())
                }
                Err(Error::Exists { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })?;
        let kept = read(store, object, 0, 5000)?
            == content(plan.seed, object * 100 + last.into_inner(), 5000);
        if winners.load(Ordering::Relaxed) != 1 || !kept {
            lost += 1;
        }
        if !matches!(store.put(object, &[IoSlice::new(b"too late")]), Err(Error::Exists { .. })) {
            return wrong("an object that was there has been overwritten");
        }
    }
    Ok(match (lost, plan.puts_conditionally) {
        (0, true) => CheckOutcome::Good,
        (_, false) => CheckOutcome::Poor(
            "the store cannot refuse to overwrite by itself: each put costs a request more, and \
             only one process at a time \
             may write to a volume"
                .to_string(),
        ),
        (lost, true) => CheckOutcome::Bad(format!(
            "in {lost} of {ROUNDS} rounds there was not exactly one \
                                       winner"
        )),
    })
}
