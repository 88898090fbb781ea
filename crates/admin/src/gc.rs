//! Objects in the store that no metadata refers to: left behind by crashes between writing an object and committing what
//! refers to it, or by a restored older backup.
//!
//! Safe on a volume in use. The store is listed first and the metadata walked after, so an object that is written meanwhile is not a
//! candidate; an object younger than the grace period, or that a packer still appends to, is none either; and before the
//! first deletion the metadata is walked once more. If a page of a listing fails, or a row cannot be decoded and may hide a
//! reference, nothing is deleted. 32 bytes of memory an object.

use std::fmt;

use kestrel_data::store::{BlockStore, list_all};
use kestrel_meta::engine::{Engine, EngineError};
use kestrel_types::clock::Nanos;
use kestrel_types::ids::ObjectId;
use kestrel_types::key::Table;

use crate::references::{Seen, for_each};
use crate::rows::{Rows, readable};

/// A pack is sparse when less than this part of it is referred to, percent.
pub const SPARSE_PERCENT: u64 = 50;

/// What to collect.
pub struct Options<'a> {
    /// Present time.
    pub now: Nanos,
    /// Objects last written to less than this ago are left alone.
    pub grace: Nanos,
    /// Delete what is found. Without it nothing is changed.
    pub delete: bool,
    /// Whether somebody in this process still appends to an object or has yet to commit what refers to it.
    pub is_open: &'a dyn Fn(ObjectId) -> bool,
}

/// What was found and done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects in the store.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that something refers to.
    pub referenced: u64,
    /// Unreferenced objects that the deletion schedule knows: the volume deletes them by itself when mounted.
    pub scheduled: u64,
    /// Unreferenced objects that are too young, or open.
    pub young: u64,
    /// Leaked objects.
    pub leaked: u64,
    /// Their bytes.
    pub leaked_bytes: u64,
    /// Leaked objects deleted.
    pub deleted: u64,
    /// Leaked objects that could not be deleted.
    pub failed: u64,
    /// Objects of which less than [`SPARSE_PERCENT`] is referred to.
    pub sparse: u64,
    /// Bytes in them that nothing refers to.
    pub sparse_bytes: u64,
    /// Names in the store that are no object's; left alone.
    pub unknown: u64,
}

/// What happens to one object.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// It is leaked (and will be deleted, if asked).
    Leaked {
        /// Its number.
        object: ObjectId,
        /// Its bytes.
        size: u64,
        /// Since when nobody wrote to it.
        age: Nanos,
    },
    /// It could not be deleted.
    Failed(ObjectId, &'a kestrel_data::Error),
    /// A name that is no object's.
    Unknown(&'a str),
}

/// Why nothing was deleted.
#[derive(Debug)]
pub enum GcError {
    /// The store could not be listed completely.
    Listing(kestrel_data::Error),
    /// The metadata could not be read completely.
    Engine(EngineError),
    /// A row that may hold references cannot be decoded.
    Damaged(String),
}

impl fmt::Display for GcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GcError::Listing(error) => write!(f, "listing the block store: {error}; nothing was deleted"),
            GcError::Engine(error) => write!(f, "reading the metadata: {error}; nothing was deleted"),
            GcError::Damaged(row) => write!(
                f,
                "{row} cannot be decoded and may refer to any object; nothing was deleted; run `kestrel fsck` first"
            ),
        }
    }
}

impl std::error::Error for GcError {}

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

/// Finds leaked objects, and deletes them if asked.
///
/// # Errors
/// See [`GcError`]. Objects that cannot be deleted are no error; they are counted.
pub fn collect(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    options: &Options<'_>,
    report: &mut dyn FnMut(Event<'_>),
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<Totals, GcError> {
    let mut totals = Totals::default();
    let mut objects = list(store, &mut totals, report, progress)?;
    add_references(engine, &mut objects, progress)?;
    mark_scheduled(engine, &mut objects, &mut totals)?;
    for object in &objects {
        if object.referenced > 0 {
            totals.referenced += 1;
            let unused = object.size.saturating_sub(object.referenced);
            if object.referenced < object.size / 100 * SPARSE_PERCENT {
                totals.sparse += 1;
                totals.sparse_bytes += unused;
            }
        }
    }
    objects.retain(|object| object.referenced == 0);
    objects.retain(|object| {
        let young =
            options.now.saturating_sub(object.modified) < options.grace || (options.is_open)(object.number);
        totals.young += u64::from(young);
        !young
    });
    for object in &objects {
        totals.leaked += 1;
        totals.leaked_bytes += object.size;
        let age = options.now.saturating_sub(object.modified);
        report(Event::Leaked { object: object.number, size: object.size, age });
    }
    if options.delete && !objects.is_empty() {
        add_references(engine, &mut objects, progress)?;
        for object in objects.iter().filter(|object| object.referenced == 0) {
            if (options.is_open)(object.number) {
                continue;
            }
            match store.delete(object.number) {
                Ok(_) => totals.deleted += 1,
                Err(error) => {
                    totals.failed += 1;
                    report(Event::Failed(object.number, &error));
                }
            }
            progress("deleting objects", totals.deleted);
        }
    }
    Ok(totals)
}

fn list(
    store: &dyn BlockStore,
    totals: &mut Totals,
    report: &mut dyn FnMut(Event<'_>),
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<Vec<Object>, GcError> {
    let mut objects = Vec::new();
    for page in list_all(store) {
        let page = page.map_err(GcError::Listing)?;
        for name in &page.unknown {
            totals.unknown += 1;
            report(Event::Unknown(name));
        }
        for info in page.objects {
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
            damaged
                .get_or_insert_with(|| format!("row {:?} {} {}", key.table, key.id, readable(&key.suffix)));
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
