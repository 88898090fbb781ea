//! Objects of which little is still referred to, and the files that refer to it: what a compaction
//! of the volume rewrites.
//!
//! Only reads. What it finds on a volume in use is a guess: a caller that acts on it has the
//! metadata node check that a reference is still what was seen (`Op::Compact`).

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_engine::{Engine, EngineError};
use kestrel_types::clock::Nanos;
use kestrel_types::codec::DecodeError;
use kestrel_types::entry::Entry;
use kestrel_types::extent::{Extent, ExtentList, Source};
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::inode::{Data, Inode};
use kestrel_types::key::{Key, Table};
use kestrel_types::stat::ObjStat;

use crate::idset::IdSet;
use crate::references::decode_all;
use crate::rows::Rows;

/// A pack is sparse when less than this part of it is referred to, percent.
pub const FRAGMENTED_PERCENT: u64 = 50;

/// References collected in one plan, at most; about 100 bytes of memory each. What is beyond waits
/// for the next.
pub const USERS_MAX: usize = 1 << 20;

/// An object with less than this unused is left alone, bytes: lone small files have headers and
/// little else.
const UNUSED_MIN: u64 = 4096;

/// Objects looked up one by one to learn whether a listing has their own sizes.
const SAMPLE: usize = 8;

/// Which objects to look at.
pub struct Options<'a> {
    /// Present time.
    pub now: Nanos,
    /// Objects written to less than this ago are left alone: their files may still change a lot.
    pub grace: Nanos,
    /// Whether this process still writes to an object.
    pub is_open: &'a dyn Fn(ObjectId) -> bool,
    /// Objects wanted at most, those with the most to gain first.
    pub limit: usize,
}

/// An object less than [`FRAGMENTED_PERCENT`] of which is referred to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentedObject {
    /// Its number.
    pub object: ObjectId,
    /// Its bytes.
    pub size: u64,
    /// Bytes of it that files refer to; more than 0.
    pub referenced: u64,
}

impl FragmentedObject {
    /// Bytes that nothing refers to.
    pub fn unused(&self) -> u64 {
        self.size.saturating_sub(self.referenced)
    }
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct FragmentedReport {
    /// The sparse objects, by number.
    pub objects: Vec<FragmentedObject>,
    /// Bytes in the store, as listed.
    pub stored_bytes: u64,
    /// Bytes in sparse objects that nothing refers to, those beyond the limit included.
    pub unused_bytes: u64,
}

/// Why nothing was found.
#[derive(Debug)]
pub enum FragmentedError {
    /// The metadata could not be read.
    Engine(EngineError),
    /// The store could not be listed or did not answer.
    Store(kestrel_blockstore::Error),
}

impl std::fmt::Display for FragmentedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FragmentedError::Engine(error) => write!(f, "reading the metadata: {error}"),
            FragmentedError::Store(error) => write!(f, "asking the block store: {error}"),
        }
    }
}

impl std::error::Error for FragmentedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => Some(error),
            Self::Store(error) => Some(error),
        }
    }
}

impl From<EngineError> for FragmentedError {
    fn from(error: EngineError) -> Self {
        FragmentedError::Engine(error)
    }
}

impl From<kestrel_blockstore::Error> for FragmentedError {
    fn from(error: kestrel_blockstore::Error) -> Self {
        FragmentedError::Store(error)
    }
}

/// Whether so little of an object is in use that rewriting the rest costs less than it frees.
pub fn is_fragmented(size: u64, referenced: u64) -> bool {
    referenced > 0
        && referenced.saturating_mul(100) < size.saturating_mul(FRAGMENTED_PERCENT)
        && size - referenced >= UNUSED_MIN
}

/// Finds sparse objects by their accounts and a listing of the store. 16 bytes of memory an object.
///
/// # Errors
/// If either cannot be read completely.
pub fn find(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    options: &Options<'_>,
) -> Result<FragmentedReport, FragmentedError> {
    let accounts = accounts(engine)?;
    let mut found = FragmentedReport::default();
    let mut sample = Vec::new();
    let mut maybe = Vec::new();
    // More is referred to than is stored: a few compressed objects among others, by the policy of a
    // directory, need not be in the sample.
    let mut is_compressed = false;
    for page in list_all(store) {
        for info in page?.objects {
            found.stored_bytes += info.size;
            let Ok(index) = accounts.binary_search_by_key(&info.object, |account| account.0) else {
                continue;
            };
            let young = options.now.saturating_sub(info.modified) < options.grace;
            if young || (options.is_open)(info.object) {
                continue;
            }
            let referenced = accounts[index].1;
            is_compressed |= info.size < referenced;
            if sample.len() < SAMPLE {
                sample.push((info.object, info.size));
            }
            if is_fragmented(info.size, referenced) {
                found.objects.push(FragmentedObject {
                    object: info.object,
                    size: info.size,
                    referenced,
                });
            } else if referenced * 100 < PLAIN_BYTES_MAX * FRAGMENTED_PERCENT {
                maybe.push((info.object, referenced));
            }
        }
    }
    if is_compressed || listed_sizes_differ(store, &sample)? {
        // Compressed: what is stored is less than what it holds, so the listing does not have it.
        for (object, referenced) in maybe {
            let Ok(size) = store.size(object) else { continue };
            if is_fragmented(size, referenced) {
                found.objects.push(FragmentedObject { object, size, referenced });
            }
        }
    }
    found.unused_bytes = found.objects.iter().map(FragmentedObject::unused).sum();
    found.objects.sort_unstable_by_key(|object| std::cmp::Reverse(object.unused()));
    found.objects.truncate(options.limit);
    found.objects.sort_unstable_by_key(|object| object.object);
    Ok(found)
}

/// Largest object that files share, bytes.
const PLAIN_BYTES_MAX: u64 = 16 << 20;

fn listed_sizes_differ(
    store: &dyn BlockStore,
    sample: &[(ObjectId, u64)],
) -> Result<bool, FragmentedError> {
    for (object, listed) in sample {
        match store.size(*object) {
            Ok(size) if size != *listed => return Ok(true),
            Ok(_) => {}
            // Gone since, or in an archive: it counts for nothing.
            Err(error) if is_out_of_reach(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Whether an object cannot be rewritten for a reason that says nothing of others: it is gone, or
/// in an archive.
fn is_out_of_reach(error: &kestrel_blockstore::Error) -> bool {
    use kestrel_blockstore::ErrorKind;
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Archived)
}

/// Sums of the accounts that are above zero, by object.
fn accounts(engine: &dyn Engine) -> Result<Vec<(ObjectId, u64)>, EngineError> {
    let mut sums: Vec<(ObjectId, i64)> = Vec::new();
    for row in Rows::new(engine, Table::ObjStat) {
        let (key, value) = row?;
        let Ok(share) = ObjStat::decode(&value) else { continue };
        match sums.last_mut() {
            Some((object, sum)) if *object == key.id => *sum = sum.saturating_add(share.referenced),
            _ => {
                if sums.last().is_some_and(|(_, sum)| *sum <= 0) {
                    sums.pop();
                }
                sums.push((key.id, share.referenced));
            }
        }
    }
    let above =
        |(object, sum)| u64::try_from(sum).ok().filter(|sum| *sum > 0).map(|sum| (object, sum));
    Ok(sums.into_iter().filter_map(above).collect())
}

/// How a file refers to stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeUse {
    /// The chunk it stands in; 0 for a packed file.
    pub chunk: u64,
    /// What it refers to and where in the chunk; of a packed file all that is visible of its range.
    pub extent: Extent,
}

/// A file that refers to objects looked for, or has chunks in many pieces.
#[derive(Debug, Clone, Default)]
pub struct User {
    /// Directory and name, unless the record lies in table `link`.
    pub place: Option<(InodeId, Box<[u8]>)>,
    /// References to the objects.
    pub uses: Vec<RangeUse>,
    /// Chunks with windows in many pieces.
    pub deep: Vec<u64>,
}

/// Files by inode.
pub type Users = BTreeMap<InodeId, User>;

/// Finds the files that refer to `objects`, and if `deep` those with chunks that should be folded,
/// by a walk over all references. At most [`USERS_MAX`] references.
///
/// # Errors
/// Those of the engine. Rows that cannot be decoded are passed over: nothing is deleted because of
/// what is found here.
pub fn users(engine: &dyn Engine, objects: &[ObjectId], deep: bool) -> Result<Users, EngineError> {
    let mut wanted = Wanted::new(objects, deep);
    // Chunks first: they show which inodes are to be looked for among the records.
    for row in Rows::new(engine, Table::Chunk) {
        let (key, value) = row?;
        wanted.chunk(&key, &value);
        if wanted.is_full() {
            break;
        }
    }
    for table in [Table::Entry, Table::Link] {
        for row in Rows::new(engine, table) {
            let (key, value) = row?;
            wanted.record(&key, &value);
        }
    }
    Ok(wanted.finish())
}

/// Like [`users`] for the files at or below some paths.
///
/// # Errors
/// If there is nothing at a path, or the rows cannot be read.
pub fn users_below(
    engine: &dyn Engine,
    paths: &[Vec<u8>],
    objects: &[ObjectId],
    deep: bool,
) -> Result<Users, crate::info::InfoError> {
    let mut wanted = Wanted::new(objects, deep);
    let mut failed = None;
    for path in paths {
        crate::tree::walk(engine, path, &mut |file| {
            if file.inode.data == Data::Chunked {
                let visited =
                    engine.scan(Table::Chunk, file.inode.ino, None, &mut |suffix, value, _| {
                        wanted.chunk(&Key::new(Table::Chunk, file.inode.ino, suffix), value);
                        ControlFlow::Continue(())
                    });
                failed = visited.err();
            }
            wanted.inode(&file.inode, Some(file.place));
            if failed.is_some() || wanted.is_full() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
    Ok(wanted.finish())
}

/// A file's reference to stored bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reference {
    /// The directory that the walk found the file in.
    pub dir: InodeId,
    /// The file.
    pub ino: InodeId,
    /// The object.
    pub object: ObjectId,
    /// Bytes of it that the node counts for this reference.
    pub bytes: u32,
}

/// Visits the references of all files at or below some paths, those of a file with several names
/// once.
///
/// # Errors
/// As [`users_below`].
pub fn references_below(
    engine: &dyn Engine,
    paths: &[Vec<u8>],
    visit: &mut dyn FnMut(Reference),
) -> Result<(), crate::info::InfoError> {
    let mut linked = IdSet::default();
    let mut failed = None;
    for path in paths {
        crate::tree::walk(engine, path, &mut |file| {
            let (ino, dir) = (file.inode.ino, file.place.0);
            if file.inode.nlink > 1 && !linked.insert(ino) {
                return ControlFlow::Continue(());
            }
            let mut note = |object, bytes| visit(Reference { dir, ino, object, bytes });
            match &file.inode.data {
                Data::Packed { range, .. } => note(range.object, range.len),
                Data::Chunked => {
                    let visited = engine.scan(Table::Chunk, ino, None, &mut |_, value, _| {
                        let list = decode_all(value, ExtentList::decode).unwrap_or_default();
                        let references = list.references();
                        references.for_each(|released| note(released.range.object, released.bytes));
                        ControlFlow::Continue(())
                    });
                    failed = visited.err();
                }
                Data::None | Data::Inline(_) => {}
            }
            if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Objects that the files at or below some paths refer to.
///
/// # Errors
/// As [`users_below`].
pub fn objects_below(
    engine: &dyn Engine,
    paths: &[Vec<u8>],
) -> Result<Vec<ObjectId>, crate::info::InfoError> {
    let mut objects = IdSet::default();
    let mut list = Vec::new();
    references_below(engine, paths, &mut |reference| {
        if objects.insert(reference.object) {
            list.push(reference.object);
        }
    })?;
    list.sort_unstable();
    Ok(list)
}

/// Which of some objects are fragmented, by a look at each in the store.
///
/// # Errors
/// If the metadata cannot be read or the store does not answer.
pub fn find_among(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    objects: &[ObjectId],
    is_open: &dyn Fn(ObjectId) -> bool,
) -> Result<FragmentedReport, FragmentedError> {
    let mut found = FragmentedReport::default();
    for object in objects.iter().filter(|object| !is_open(**object)) {
        let referenced =
            u64::try_from(crate::info::referenced_bytes(engine, *object)?).unwrap_or(0);
        let size = match store.size(*object) {
            Ok(size) => size,
            Err(error) if is_out_of_reach(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        found.stored_bytes += size;
        if is_fragmented(size, referenced) {
            found.objects.push(FragmentedObject { object: *object, size, referenced });
        }
    }
    found.unused_bytes = found.objects.iter().map(FragmentedObject::unused).sum();
    Ok(found)
}

/// A collection of users under way.
struct Wanted {
    objects: IdSet,
    deep: bool,
    found: HashMap<InodeId, User>,
    references: usize,
}

impl Wanted {
    fn new(objects: &[ObjectId], deep: bool) -> Self {
        let mut set = IdSet::default();
        for object in objects {
            set.insert(*object);
        }
        Self { objects: set, deep, found: HashMap::new(), references: 0 }
    }

    fn is_full(&self) -> bool {
        self.references >= USERS_MAX
    }

    fn chunk(&mut self, key: &Key, value: &[u8]) {
        let Ok(chunk) = <[u8; 8]>::try_from(&*key.suffix).map(u64::from_be_bytes) else { return };
        let Some(list) = decode_all(value, ExtentList::decode) else { return };
        for extent in list.extents() {
            if let Source::Stored { range, .. } = extent.source
                && self.objects.contains(range.object)
            {
                self.references += 1;
                self.found
                    .entry(key.id)
                    .or_default()
                    .uses
                    .push(RangeUse { chunk, extent: *extent });
            }
        }
        if self.deep && !list.windows_to_compact().is_empty() {
            self.references += 1;
            self.found.entry(key.id).or_default().deep.push(chunk);
        }
    }

    fn record(&mut self, key: &Key, value: &[u8]) {
        let inode: Result<Inode, DecodeError> = match key.table {
            Table::Link => decode_all(value, Inode::decode).ok_or(DecodeError("damaged")),
            _ => match Entry::decode(value) {
                Ok(Entry::Inode(inode)) => Ok(inode),
                Ok(Entry::Link { .. }) => return,
                Err(why) => Err(why),
            },
        };
        let Ok(inode) = inode else { return };
        let place = (key.table == Table::Entry).then(|| (key.id, key.suffix.clone()));
        self.inode(&inode, place);
    }

    fn inode(&mut self, inode: &Inode, place: Option<(InodeId, Box<[u8]>)>) {
        match &inode.data {
            Data::Packed { range, visible }
                if self.objects.contains(range.object) && !self.is_full() =>
            {
                let extent = Extent {
                    pos: 0,
                    len: *visible,
                    source: Source::Stored { range: *range, skip: 0 },
                };
                let user = self.found.entry(inode.ino).or_default();
                user.place = place;
                // A file with several names comes by several times.
                if user.uses.is_empty() {
                    self.references += 1;
                    user.uses.push(RangeUse { chunk: 0, extent });
                }
            }
            Data::Chunked => {
                if let Some(user) = self.found.get_mut(&inode.ino) {
                    user.place = place;
                }
            }
            _ => {}
        }
    }

    fn finish(self) -> Users {
        self.found.into_iter().collect()
    }
}
