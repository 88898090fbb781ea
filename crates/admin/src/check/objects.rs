//! Objects: what layouts refer to, against the accounts in `objstat` and against the store.
//!
//! Goes over windows of object numbers, so that memory is bounded for any number of objects; a
//! volume with fewer objects than one window holds, which is nearly every one, takes one pass.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kestrel_blockstore::ErrorKind;
use kestrel_blockstore::store::{BlockStore, ObjectInfo, list_all};
use kestrel_types::ids::{ObjectId, job_of_object};
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::is_history_share;
use kestrel_types::stat::ObjStat;

use super::name::name_files_of;
use super::{Check, CheckError};
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::idset::IdSet;
use crate::info::referenced_bytes;
use crate::references::{Reference, Seen, for_each};
use crate::rows::{Rows, delete, put};

/// Files named for each missing or short object, at most, in all.
const FILES_NAMED_MAX: usize = 100_000;

/// Threads that look single objects up in the store: what takes long is the way to it.
const ASKERS: usize = 16;

/// How long nodes need at most to forget an object that they have deleted.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(5);

/// No such object in the store.
const ABSENT: u64 = u64::MAX;

/// What was read of the objects of one window.
struct Window {
    first: ObjectId,
    /// Most objects; the vectors grow as far as needed.
    len_max: usize,
    referenced: Vec<u64>,
    needed: Vec<u32>,
    stored: Vec<u64>,
    /// Smallest number found beyond the window.
    next: Option<ObjectId>,
}

impl Window {
    fn new(first: ObjectId, len_max: usize) -> Self {
        let (referenced, needed, stored) = (Vec::new(), Vec::new(), Vec::new());
        Self { first, len_max, referenced, needed, stored, next: None }
    }

    /// Index of an object in the window; notes those beyond.
    fn index(&mut self, object: ObjectId) -> Option<usize> {
        let index = usize::try_from(object.checked_sub(self.first)?).unwrap_or(usize::MAX);
        if index < self.len_max {
            if index >= self.referenced.len() {
                self.referenced.resize(index + 1, 0);
                self.needed.resize(index + 1, 0);
                self.stored.resize(index + 1, ABSENT);
            }
            return Some(index);
        }
        self.next = Some(self.next.map_or(object, |next| next.min(object)));
        None
    }
}

pub fn check(
    check: &mut Check<'_>,
    store: Option<&dyn BlockStore>,
    window_objects: usize,
) -> Result<(), CheckError> {
    let scheduled = scheduled(check)?;
    let mut highest = 0;
    let mut damaged = false;
    let mut bad = BTreeMap::new();
    let mut first = Some(0);
    let mut pass = 0;
    while let Some(from) = first {
        let mut window = Window::new(from, window_objects.max(1));
        let engine = check.engine;
        let mut rows = 0u64;
        for_each(engine, &mut |seen| match seen {
            Seen::Reference(Reference { range, bytes, .. }) => {
                rows += 1;
                highest = highest.max(range.object);
                if let Some(index) = window.index(range.object) {
                    window.referenced[index] += u64::from(bytes);
                    let end = range.offset.saturating_add(range.stored_len());
                    window.needed[index] = window.needed[index].max(end);
                }
            }
            Seen::Damaged(_) => damaged = true,
        })?;
        (check.progress)("adding up references to objects", rows);
        accounts(check, &mut window, damaged)?;
        if let Some(store) = store {
            stored(check, store, &mut window, pass == 0)?;
        }
        let suspects = compare(check, &window, store.is_some(), &scheduled);
        if let Some(store) = store {
            confirm(check, store, &suspects, &mut bad)?;
        }
        first = window.next;
        pass += 1;
    }
    super::system::numbers(check, crate::rows::OBJECTS, highest)?;
    leaked(check);
    name_files(check, &bad)?;
    Ok(())
}

/// Objects in table `reap`.
fn scheduled(check: &mut Check<'_>) -> Result<IdSet, CheckError> {
    let mut objects = IdSet::default();
    for row in check.rows(Table::Reap) {
        let (key, _) = row?;
        check.row("checking the deletion schedule");
        match <[u8; 8]>::try_from(&*key.suffix) {
            Ok(number) => {
                objects.insert(u64::from_be_bytes(number));
            }
            Err(_) => {
                let finding = Finding::new(
                    FindingKind::RowUnknown,
                    format!("reap #{}", key.id),
                    "not an object",
                );
                check.found(finding.with(Stage::Derived, "removed", Act::Rows(vec![delete(&key)])));
            }
        }
    }
    Ok(objects)
}

/// Compares the shares in `objstat` with the references found. With damaged rows there may be more
/// references than were found, so accounts are then left as they are.
fn accounts(check: &mut Check<'_>, window: &mut Window, damaged: bool) -> Result<(), CheckError> {
    let mut rows = Rows::from(check.engine, Table::ObjStat, window.first, &[]);
    let mut expected = 0;
    loop {
        let id = rows.peek()?.map(|(key, _)| key.id);
        let index = id.and_then(|id| window.index(id));
        let stop = index.unwrap_or(window.referenced.len());
        // Objects that are referred to and have no shares at all.
        for index in expected..stop {
            if window.referenced[index] > 0 {
                account(check, window, index, 0, &[], damaged);
            }
        }
        let (Some(id), Some(index)) = (id, index) else { return Ok(()) };
        expected = index + 1;
        let (mut sum, mut keys, mut broken) = (0i64, Vec::new(), false);
        while rows.peek()?.is_some_and(|(key, _)| key.id == id) {
            let Some(row) = rows.next() else { break };
            let (key, value) = row?;
            check.row("checking accounts of objects");
            match ObjStat::decode(&value) {
                Ok(stat) if check.is_share(&key.suffix) || is_history_share(&key.suffix) => {
                    sum = sum.saturating_add(stat.referenced)
                }
                _ => broken = true,
            }
            keys.push(key);
        }
        if broken || i128::from(sum) != i128::from(window.referenced[index]) {
            account(check, window, index, sum, &keys, damaged);
        }
    }
}

fn account(
    check: &mut Check<'_>,
    window: &Window,
    index: usize,
    sum: i64,
    keys: &[Key],
    damaged: bool,
) {
    let object = window.first + index as u64;
    let referenced = window.referenced[index];
    let detail = format!("the account says {sum} bytes are referred to; {referenced} are");
    let mut finding = Finding::new(FindingKind::ObjStatWrong, format!("object {object}"), detail);
    if !damaged {
        let mut rows: Vec<_> = keys.iter().map(delete).collect();
        if referenced > 0 {
            let stat = ObjStat { referenced: i64::try_from(referenced).unwrap_or(i64::MAX) };
            rows.push(put(Table::ObjStat, object, &check.share, stat.encode()));
        }
        finding = finding.with(Stage::Sums, "counted anew", Act::Rows(rows));
    }
    check.found(finding);
}

/// Lists the store.
fn stored(
    check: &mut Check<'_>,
    store: &dyn BlockStore,
    window: &mut Window,
    first_pass: bool,
) -> Result<(), CheckError> {
    for page in list_all(store) {
        let page = page?;
        // Those of jobs and of their versions are not this volume's to judge.
        let own = page.objects.into_iter().filter(|it| job_of_object(it.object).is_none());
        for object in own {
            if first_pass {
                check.totals.stored_objects += 1;
                check.totals.stored_bytes += object.size;
                (check.progress)("listing objects", check.totals.stored_objects);
            }
            if let Some(index) = window.index(object.object)
                && (window.referenced[index] > 0 || !may_be_on_its_way(check, &object))
            {
                window.stored[index] = object.size;
            }
        }
        if first_pass {
            for name in page.unknown {
                check.found(Finding::new(
                    FindingKind::ObjectUnknown,
                    name,
                    "not an object; left alone",
                ));
            }
        }
    }
    Ok(())
}

/// Whether an object that nothing refers to may be one that is just being written.
fn may_be_on_its_way(check: &Check<'_>, object: &ObjectInfo) -> bool {
    check.live.is_some_and(|live| {
        live.now.saturating_sub(object.modified) < live.grace || (live.is_open)(object.object)
    })
}

/// An object that the listing shows missing or too short, and the bytes it must have.
struct Suspect {
    object: ObjectId,
    needed: u64,
}

/// Counts, and returns what should be looked at more closely.
fn compare(
    check: &mut Check<'_>,
    window: &Window,
    listed: bool,
    scheduled: &IdSet,
) -> Vec<Suspect> {
    let mut suspects = Vec::new();
    for index in 0..window.referenced.len() {
        let object = window.first + index as u64;
        let (referenced, size) = (window.referenced[index], window.stored[index]);
        if referenced > 0 {
            check.totals.objects += 1;
            check.totals.referenced_bytes += referenced;
            let needed = u64::from(window.needed[index]);
            if listed && (size == ABSENT || size < needed) {
                suspects.push(Suspect { object, needed });
            }
        } else if size != ABSENT {
            if scheduled.contains(object) {
                check.totals.scheduled_objects += 1;
            } else {
                check.totals.leaked_objects += 1;
                check.totals.leaked_bytes += size;
            }
        }
    }
    suspects
}

/// Looks each suspect up in the store by itself. A listing has stored sizes, which are smaller than
/// an object's own when it is compressed, and on a volume in use an object may have gone by right
/// since the cut.
fn confirm(
    check: &mut Check<'_>,
    store: &dyn BlockStore,
    suspects: &[Suspect],
    bad: &mut BTreeMap<ObjectId, Option<u64>>,
) -> Result<(), CheckError> {
    let next = AtomicUsize::new(0);
    let probe = || {
        let mut answers = Vec::new();
        while let Some(suspect) = suspects.get(next.fetch_add(1, Ordering::Relaxed)) {
            answers.push((suspect, store.size(suspect.object)));
        }
        answers
    };
    let threads = ASKERS.min(suspects.len());
    let answers: Vec<_> = std::thread::scope(|scope| {
        let probers: Vec<_> = (0..threads).map(|_| scope.spawn(probe)).collect();
        let answers = probers.into_iter().flat_map(|prober| match prober.join() {
            Ok(answers) => answers,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        answers.collect()
    });
    let mut absent = Vec::new();
    for (suspect, answer) in answers {
        match answer {
            Ok(size) if size >= suspect.needed => {}
            Ok(size) => drop(bad.insert(suspect.object, Some(size))),
            Err(why) if why.kind() == ErrorKind::NotFound => absent.push(suspect.object),
            // It is there; how long it was before it was coded cannot be read now.
            Err(why) if why.kind() == ErrorKind::Archived => {}
            // Its own header is damaged: its data are, and reading them shows how.
            Err(why) if why.kind() == ErrorKind::Corrupt => {
                bad.insert(suspect.object, Some(0));
            }
            Err(why) => return Err(why.into()),
        }
    }
    for object in still_referred_to(check, absent)? {
        bad.insert(object, None);
    }
    (check.progress)("asking about objects", suspects.len() as u64);
    Ok(())
}

/// Those of the objects, which are gone, that the volume in use refers to. An account that is not
/// nought now was not when the object went: no operation can add to one that has gone.
fn still_referred_to(
    check: &Check<'_>,
    mut absent: Vec<ObjectId>,
) -> Result<Vec<ObjectId>, CheckError> {
    let Some(live) = check.live else { return Ok(absent) };
    // Several nodes forget their shares of an account one after the other.
    let attempts = if check.is_of_several { 2 } else { 1 };
    for attempt in 0..attempts {
        if attempt > 0 && !absent.is_empty() {
            std::thread::sleep(FORGOTTEN_AFTER);
        }
        let mut left = Vec::with_capacity(absent.len());
        for object in absent {
            if referenced_bytes(live.engine, object)? != 0 {
                left.push(object);
            }
        }
        absent = left;
    }
    Ok(absent)
}

fn leaked(check: &mut Check<'_>) {
    let (objects, bytes) = (check.totals.leaked_objects, check.totals.leaked_bytes);
    if objects > 0 {
        let detail = format!(
            "nothing refers to {objects} objects with {bytes} bytes; `kestrel gc` removes them"
        );
        check.found(Finding::new(FindingKind::ObjectsLeaked, "store", detail));
    }
}

/// Reports which files suffer from missing (no size) and short objects.
fn name_files(
    check: &mut Check<'_>,
    bad: &BTreeMap<ObjectId, Option<u64>>,
) -> Result<(), CheckError> {
    if bad.is_empty() {
        return Ok(());
    }
    let engine = check.engine;
    let mut found: Vec<(Key, FindingKind, String)> = Vec::new();
    let mut last = None;
    for_each(engine, &mut |seen| {
        let Seen::Reference(Reference { row, range, .. }) = seen else { return };
        let Some(size) = bad.get(&range.object) else { return };
        if found.len() >= FILES_NAMED_MAX || last == Some((row.clone(), range)) {
            return;
        }
        last = Some((row.clone(), range));
        let needed = u64::from(range.offset) + u64::from(range.stored_len());
        let (kind, detail) = match size {
            Some(size) if *size >= needed => return,
            Some(size) => (
                FindingKind::ObjectShort,
                format!("object {} has {size} bytes, {needed} are needed", range.object),
            ),
            None => {
                (FindingKind::ObjectMissing, format!("object {} is not in the store", range.object))
            }
        };
        found.push((row.clone(), kind, detail));
    })?;
    let rows: Vec<&Key> = found.iter().map(|(row, ..)| row).collect();
    for (file, (_, kind, detail)) in name_files_of(engine, &rows)?.into_iter().zip(&found) {
        check.found(Finding::new(*kind, file, detail.clone()));
    }
    Ok(())
}
