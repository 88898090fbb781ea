//! Objects in the store that no metadata refers to: left behind by crashes between writing an
//! object and committing what refers to it, or by a restored older backup.
//!
//! **Exact on a volume in use** (`docs/design/data.md`, section 5). In this order: the store is
//! listed, so an object that is written later is no candidate. A tap then shows every batch
//! committed from now on, and the metadata is walked: a reference that exists at the end was either
//! there all the time, then the walk saw it, or a batch wrote it, then the tap did; renames and
//! clones that move a reference from behind the walk to before it cannot hide one. The tap stays
//! until the last deletion. An object younger than the grace period is left alone, and so is one
//! that a packer still holds pinned (the packer that commits a reference holds the pin until the
//! commit is done, so the pin is checked first and the tap's marks after it), one that the deletion
//! schedule has, and one that something refers to by its account (table `objstat`), a second record
//! of the same truth, kept by other code.
//!
//! If a page of the store's listing or of the metadata cannot be read, or a row cannot be decoded
//! and may hide a reference, nothing is deleted. 33 bytes of memory an object.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_engine::{Engine, EngineError, Tap};
use kestrel_types::clock::Nanos;
use kestrel_types::ids::{ObjectId, Position, job_of_object};
use kestrel_types::key::{Key, Table};
use kestrel_types::stat::ObjStat;

use crate::fragmented::is_fragmented;
use crate::references::{Seen, TABLES, for_each, of_row};
use crate::rows::{Rows, readable};

/// Deletions under way at a time where each costs a round trip: what is checked before a deletion
/// is checked before so many.
const DELETED_AT_A_TIME: usize = 64;

/// What to collect.
pub struct Options<'a> {
    /// Present time.
    pub now: Nanos,
    /// Objects last written to less than this ago are left alone.
    pub grace: Nanos,
    /// Delete what is found. Without it nothing is changed.
    pub delete: bool,
    /// Whether this process still appends to an object or has yet to commit what refers to it.
    pub is_open: &'a dyn Fn(ObjectId) -> bool,
    /// Called before each deletion (of a remote store: before each few): whether to go on.
    pub go_on: &'a dyn Fn() -> bool,
}

/// What was found and done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects in the store.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects of jobs and of versions that jobs made, which are not among these.
    pub of_jobs: u64,
    /// Objects that something refers to.
    pub referenced: u64,
    /// Unreferenced objects that the deletion schedule has: the volume deletes them by itself when
    /// mounted.
    pub scheduled: u64,
    /// Unreferenced objects that are too young, or open, or that something came to refer to
    /// meanwhile.
    pub young: u64,
    /// Unreferenced objects that are referred to by their account: left alone until `kestrel fsck
    /// --repair` has settled it.
    pub disputed: u64,
    /// Leaked objects.
    pub leaked: u64,
    /// Their bytes.
    pub leaked_bytes: u64,
    /// Leaked objects deleted.
    pub deleted: u64,
    /// Leaked objects that could not be deleted.
    pub failed: u64,
    /// Objects of which little is referred to ([`is_fragmented`]).
    pub sparse: u64,
    /// Bytes in them that nothing refers to.
    pub sparse_bytes: u64,
    /// Names in the store that are no object's; left alone.
    pub unknown: u64,
}

/// What happens to one object.
#[derive(Debug, Clone)]
pub enum GcEvent<'a> {
    /// It is leaked (and will be deleted, if wanted).
    Leaked {
        /// Its number.
        object: ObjectId,
        /// Its bytes.
        size: u64,
        /// The time of the last write to it.
        age: Nanos,
    },
    /// Nothing refers to it, but its account has references; left alone.
    Disputed(ObjectId),
    /// It could not be deleted.
    Failed(ObjectId, &'a kestrel_blockstore::Error),
    /// A name that is no object's.
    Unknown(&'a str),
}

/// Why nothing was deleted.
#[derive(Debug)]
pub enum GcError {
    /// The store could not be listed completely.
    Listing(kestrel_blockstore::Error),
    /// The metadata could not be read completely.
    Engine(EngineError),
    /// A row that may hold references cannot be decoded.
    Damaged(String),
}

impl fmt::Display for GcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GcError::Listing(error) => {
                write!(f, "listing the block store: {error}; nothing was deleted")
            }
            GcError::Engine(error) => {
                write!(f, "reading the metadata: {error}; nothing was deleted")
            }
            GcError::Damaged(row) => write!(
                f,
                "{row} cannot be decoded and may refer to any object; nothing was deleted; run \
                 `kestrel fsck` first"
            ),
        }
    }
}

impl std::error::Error for GcError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listing(error) => Some(error),
            Self::Engine(error) => Some(error),
            Self::Damaged(_) => None,
        }
    }
}

impl From<EngineError> for GcError {
    fn from(error: EngineError) -> Self {
        GcError::Engine(error)
    }
}

struct Object {
    number: ObjectId,
    size: u64,
    modified: Nanos,
    referenced: u64,
}

/// What batches committed since the listing refer to.
struct Marks {
    /// Objects found by the listing, ascending.
    numbers: Vec<ObjectId>,
    /// Whether a batch referred to it.
    seen: Vec<AtomicBool>,
    /// A batch could not be decoded.
    damaged: AtomicBool,
}

impl Marks {
    fn new(objects: &[Object]) -> Arc<Self> {
        let numbers: Vec<ObjectId> = objects.iter().map(|object| object.number).collect();
        let seen = numbers.iter().map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self { numbers, seen, damaged: AtomicBool::new(false) })
    }

    /// What the engine calls with each batch, before any client gets its acknowledgement.
    fn tap(self: &Arc<Self>) -> Tap {
        let marks = self.clone();
        Box::new(move |batch| {
            for mutation in batch.iter().filter(|mutation| TABLES.contains(&mutation.key.table)) {
                let Some(value) = &mutation.value else { continue };
                of_row(&mutation.key, value, &mut |seen| match seen {
                    Seen::Reference(reference) => marks.mark(reference.range.object),
                    Seen::Damaged(_) => marks.damaged.store(true, Ordering::SeqCst),
                });
            }
        })
    }

    fn mark(&self, object: ObjectId) {
        if let Ok(index) = self.numbers.binary_search(&object) {
            self.seen[index].store(true, Ordering::SeqCst);
        }
    }

    fn is_marked(&self, object: ObjectId) -> bool {
        self.numbers
            .binary_search(&object)
            .is_ok_and(|index| self.seen[index].load(Ordering::SeqCst))
    }

    fn check(&self) -> Result<(), GcError> {
        if self.damaged.load(Ordering::SeqCst) {
            return Err(GcError::Damaged("a row written meanwhile".into()));
        }
        Ok(())
    }
}

/// Finds leaked objects, and deletes them if wanted.
///
/// # Errors
/// See [`GcError`]. Objects that cannot be deleted are no error; they are counted.
pub fn collect(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    options: &Options<'_>,
    report: &mut dyn FnMut(GcEvent<'_>),
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<Totals, GcError> {
    let mut totals = Totals::default();
    let mut objects = list(store, &mut totals, report, progress)?;
    let marks = Marks::new(&objects);
    let _tap = engine.tap(marks.tap());
    add_references(engine, &mut objects, progress)?;
    marks.check()?;
    count_fragmented(&objects, &mut totals);
    objects.retain(|object| object.referenced == 0);
    mark_scheduled(engine, &mut objects, &mut totals)?;
    // In this order: a pin goes after the batch that made it needless was shown to the tap.
    let in_use = |object: &Object| {
        options.now.saturating_sub(object.modified) < options.grace
            || (options.is_open)(object.number)
            || marks.is_marked(object.number)
    };
    objects.retain(|object| {
        let young = in_use(object);
        totals.young += u64::from(young);
        !young
    });
    mark_disputed(engine, &mut objects, &mut totals, report)?;
    for object in &objects {
        totals.leaked += 1;
        totals.leaked_bytes += object.size;
        let age = options.now.saturating_sub(object.modified);
        report(GcEvent::Leaked { object: object.number, size: object.size, age });
    }
    if options.delete && !objects.is_empty() {
        // That nothing refers to them must be durable before they go, or a power cut could bring a
        // reference back; and so must it be where other machines read the rows.
        engine.sync()?;
        engine.upload(Position::MAX)?;
        let at_a_time = if store.is_remote() { DELETED_AT_A_TIME } else { 1 };
        for some in objects.chunks(at_a_time) {
            if !(options.go_on)() {
                break;
            }
            marks.check()?;
            let numbers: Vec<ObjectId> =
                some.iter().filter(|object| !in_use(object)).map(|object| object.number).collect();
            kestrel_types::crash::point("gc.before-delete");
            for (&number, deleted) in numbers.iter().zip(store.delete_each(&numbers)) {
                match deleted {
                    Ok(()) => totals.deleted += 1,
                    Err(error) => {
                        totals.failed += 1;
                        report(GcEvent::Failed(number, &error));
                    }
                }
            }
            kestrel_types::crash::point("gc.deleted");
            progress("deleting objects", totals.deleted);
        }
    }
    Ok(totals)
}

fn count_fragmented(objects: &[Object], totals: &mut Totals) {
    for object in objects.iter().filter(|object| object.referenced > 0) {
        totals.referenced += 1;
        if is_fragmented(object.size, object.referenced) {
            totals.sparse += 1;
            totals.sparse_bytes += object.size.saturating_sub(object.referenced);
        }
    }
}

fn list(
    store: &dyn BlockStore,
    totals: &mut Totals,
    report: &mut dyn FnMut(GcEvent<'_>),
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<Vec<Object>, GcError> {
    let mut objects = Vec::new();
    for page in list_all(store) {
        let page = page.map_err(GcError::Listing)?;
        for name in &page.unknown {
            totals.unknown += 1;
            report(GcEvent::Unknown(name));
        }
        for info in page.objects {
            if job_of_object(info.object).is_some() {
                // `kestrel version clean` knows whether its job or version is there.
                totals.of_jobs += 1;
                continue;
            }
            totals.objects += 1;
            totals.bytes += info.size;
            objects.push(Object {
                number: info.object,
                size: info.size,
                modified: info.modified,
                referenced: 0,
            });
        }
        progress("listing objects", totals.objects);
    }
    objects.sort_unstable_by_key(|object| object.number);
    // A listing of a store that changes meanwhile may show an object twice.
    objects.dedup_by_key(|object| object.number);
    Ok(objects)
}

fn find(objects: &mut [Object], number: ObjectId) -> Option<&mut Object> {
    let index = objects.binary_search_by_key(&number, |object| object.number).ok()?;
    objects.get_mut(index)
}

fn add_references(
    engine: &dyn Engine,
    objects: &mut [Object],
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<(), GcError> {
    let mut damaged = None;
    let mut seen_references = 0;
    for_each(engine, &mut |seen| match seen {
        Seen::Reference(reference) => {
            seen_references += 1;
            progress("looking for references", seen_references);
            if let Some(object) = find(objects, reference.range.object) {
                object.referenced += u64::from(reference.bytes);
            }
        }
        Seen::Damaged(key) => {
            damaged.get_or_insert_with(|| {
                format!("row {:?} {} {}", key.table, key.id, readable(&key.suffix))
            });
        }
    })?;
    damaged.map_or(Ok(()), |row| Err(GcError::Damaged(row)))
}

/// Takes out what the deletion schedule will deal with.
fn mark_scheduled(
    engine: &dyn Engine,
    objects: &mut Vec<Object>,
    totals: &mut Totals,
) -> Result<(), GcError> {
    let mut scheduled = crate::idset::IdSet::default();
    for row in Rows::new(engine, Table::Reap) {
        let (key, _) = row?;
        if let Ok(number) = <[u8; 8]>::try_from(&*key.suffix) {
            scheduled.insert(u64::from_be_bytes(number));
        }
    }
    objects.retain(|object| {
        let known = object.referenced == 0 && scheduled.contains(object.number);
        totals.scheduled += u64::from(known);
        !known
    });
    Ok(())
}

/// Takes out objects that an account has as in use, and objects with an account that cannot be
/// read. Shares of one object are read one after the other; for an object that nothing refers to
/// they do not change any more.
fn mark_disputed(
    engine: &dyn Engine,
    objects: &mut Vec<Object>,
    totals: &mut Totals,
    report: &mut dyn FnMut(GcEvent<'_>),
) -> Result<(), GcError> {
    let mut disputed = Vec::new();
    let mut rows = Rows::new(engine, Table::ObjStat);
    let mut account: Option<(ObjectId, i64, bool)> = None;
    loop {
        let row = rows.next().transpose()?;
        let next = row.as_ref().map(|(Key { id, .. }, _)| *id);
        if let Some((object, sum, damaged)) = account.take_if(|(object, ..)| Some(*object) != next)
            && (sum != 0 || damaged)
            && objects.binary_search_by_key(&object, |object| object.number).is_ok()
        {
            disputed.push(object);
        }
        let Some((key, value)) = row else { break };
        let (_, sum, damaged) = account.get_or_insert((key.id, 0, false));
        match ObjStat::decode(&value) {
            Ok(stat) => *sum = sum.saturating_add(stat.referenced),
            Err(_) => *damaged = true,
        }
    }
    totals.disputed = disputed.len() as u64;
    disputed.iter().for_each(|object| report(GcEvent::Disputed(*object)));
    objects.retain(|object| disputed.binary_search(&object.number).is_err());
    Ok(())
}
