//! The consistency check: every invariant of the metadata, over the raw rows, and of the objects it
//! refers to.
//!
//! | file | what it has |
//! | --- | --- |
//! | `check/inodes.rs` | the first walk: entries, inodes, table `link` |
//! | `check/system.rs` | volume-wide records |
//! | `check/tree.rs` | the tree of directories |
//! | `check/shares.rs` | shares of directories |
//! | `check/side.rs` | tables that follow from inodes |
//! | `check/history.rs` | snapshots, and what rows were at them |
//! | `check/feeds.rs` | change feeds: whether their rows can be read |
//! | `check/quotas.rs` | quotas: what counts against what there is |
//! | `check/clones.rs` | clones that are not finished |
//! | `check/clients.rs` | sessions, recorded answers, renamed files |
//! | `check/objects.rs` | sums of objects, and the store |
//! | `check/data.rs` | every stored byte, with its checksums |
//! | `check/name.rs` | names of files in findings |
//!
//! The metadata must not change meanwhile: the volume is at rest, or what is checked is a
//! [`crate::cut`] of it and [`Options::live`] gives access to the volume in use. Objects are then
//! looked at later than the metadata was, so an object that is missing is reported only if the
//! volume still refers to it now, and one that nothing refers to only if it cannot be on its way to
//! a file.
//!
//! Tables are walked in key order; what must be kept in memory meanwhile is small: about one bit an
//! inode, 16 bytes a directory and a chunked file, some 40 bytes a hard-linked file, and 20 bytes
//! an object within a window of [`Options::window_objects`] objects (more objects: more passes).
//!
//! Order: entries, the `link` table, volume-wide records, the tree, the tables that follow from
//! them, sums of objects, the store, and last (if wanted) every stored byte.

mod clients;
mod clones;
mod data;
mod feeds;
mod history;
mod inodes;
pub(crate) mod name;
mod objects;
mod quotas;
mod shares;
mod side;
mod system;
mod tree;

pub(crate) use history::removed_record;
pub(crate) use quotas::decode as decode_quota_row;

use std::collections::HashMap;
use std::fmt;

use kestrel_blockstore::store::BlockStore;
use kestrel_engine::{Engine, EngineError};
use kestrel_types::clock::Nanos;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ObjectId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::{Key, Table};
use kestrel_types::snapshot::SnapshotId;

use crate::finding::{Finding, FindingKind, Severity};
use crate::idset::IdSet;
use crate::rows::{DirId, Rows, get, readable};

/// Deepest tree that paths are printed for; deeper ones are printed from some directory's number
/// on.
const PATH_DEPTH_MAX: usize = 2048;

/// Inodes that a second walk looks for the records of, at most: findings beyond wait for the next
/// check.
const LOCATE_MAX: usize = 100_000;

/// How to read every stored byte.
#[derive(Clone, Copy)]
pub struct ReadData<'a> {
    /// Threads that wait for the store.
    pub threads: usize,
    /// Called often: false ends the reading, with nothing reported about what was not read.
    pub go_on: &'a (dyn Fn() -> bool + Sync),
}

/// What to check beyond the metadata, and how.
pub struct Options<'a> {
    /// The block store: objects must be there and long enough. Without it, objects are not looked
    /// at.
    pub store: Option<&'a dyn BlockStore>,
    /// Read every referenced byte of the store.
    pub data: Option<ReadData<'a>>,
    /// Objects looked at in one pass; 20 bytes of memory each.
    pub window_objects: usize,
    /// The volume that the metadata is a cut of, if it is in use.
    pub live: Option<Live<'a>>,
    /// The metadata was put together from that of several nodes ([`crate::cluster_view`]).
    pub is_of_several: bool,
    /// Number of the share that a repair books sums to which it has counted anew.
    pub share: u16,
}

/// A volume in use.
#[derive(Clone, Copy)]
pub struct Live<'a> {
    /// Its metadata as they change.
    pub engine: &'a dyn Engine,
    /// Present time.
    pub now: Nanos,
    /// Unreferenced objects last written to less than this ago may be on their way to a file.
    pub grace: Nanos,
    /// Whether this process still appends to an object or has yet to commit what refers to it.
    pub is_open: &'a dyn Fn(ObjectId) -> bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            store: None,
            data: None,
            window_objects: 4 << 20,
            live: None,
            is_of_several: false,
            share: 0,
        }
    }
}

/// What was looked at, and how often each kind was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries that are not directories.
    pub files: u64,
    /// Directories, the root included.
    pub dirs: u64,
    /// Bytes: sizes of all files.
    pub bytes: u64,
    /// Files without a name: removed while they were open, and not closed since.
    pub orphans: u64,
    /// Bytes: sizes of them.
    pub orphan_bytes: u64,
    /// Rows read.
    pub rows: u64,
    /// Objects that files refer to.
    pub objects: u64,
    /// Bytes of objects that files refer to.
    pub referenced_bytes: u64,
    /// Objects in the store.
    pub stored_objects: u64,
    /// Bytes in the store.
    pub stored_bytes: u64,
    /// Objects that nothing refers to and that are scheduled for deletion.
    pub scheduled_objects: u64,
    /// Objects that nothing refers to and that only `gc` will delete.
    pub leaked_objects: u64,
    /// Bytes of them.
    pub leaked_bytes: u64,
    /// Stored bytes read and verified.
    pub verified_bytes: u64,
    /// Stored bytes in archives, which could not be read.
    pub archived_bytes: u64,
    /// Findings by kind.
    pub findings: HashMap<FindingKind, u64>,
}

impl Totals {
    /// Findings that mean damage.
    pub fn errors(&self) -> u64 {
        let errors = self.findings.iter().filter(|(kind, _)| kind.severity() == Severity::Error);
        errors.map(|(_, count)| count).sum()
    }
}

/// Why a check could not be carried out.
#[derive(Debug)]
pub enum CheckError {
    /// The engine failed.
    Engine(EngineError),
    /// The store could not be listed, or did not answer.
    Store(kestrel_blockstore::error::Error),
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckError::Engine(error) => write!(f, "reading the metadata: {error}"),
            CheckError::Store(error) => write!(f, "asking the block store: {error}"),
        }
    }
}

impl std::error::Error for CheckError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => Some(error),
            Self::Store(error) => Some(error),
        }
    }
}

impl From<EngineError> for CheckError {
    fn from(error: EngineError) -> Self {
        CheckError::Engine(error)
    }
}

impl From<kestrel_blockstore::error::Error> for CheckError {
    fn from(error: kestrel_blockstore::error::Error) -> Self {
        CheckError::Store(error)
    }
}

/// Called now and then with what is being done and how many rows (or bytes, when data is read) were
/// looked at.
pub type Progress<'a> = &'a mut dyn FnMut(&'static str, u64);

/// Checks a volume at rest. `report` gets every finding; nothing is changed.
///
/// # Errors
/// If the engine fails, or the store cannot be listed or does not answer; findings reported until
/// then are true.
pub fn check(
    engine: &dyn Engine,
    options: &mut Options<'_>,
    report: &mut dyn FnMut(Finding),
    progress: Progress<'_>,
) -> Result<Totals, CheckError> {
    let mut check = Check {
        engine,
        report,
        progress,
        totals: Totals::default(),
        shares: 0,
        live: options.live,
        is_of_several: options.is_of_several,
        share: options.share.to_be_bytes(),
        snapshots: Vec::new(),
        clones: clones::Clones::default(),
    };
    system::shares(&mut check)?;
    history::records(&mut check)?;
    clones::records(&mut check)?;
    let mut world = inodes::walk(&mut check)?;
    inodes::links(&mut check, &mut world)?;
    clones::check(&mut check, &world);
    system::check(&mut check, &world)?;
    inodes::locate(&mut check, &world)?;
    tree::check(&mut check, &world)?;
    shares::check(&mut check, &world)?;
    side::check(&mut check, &world)?;
    clients::check(&mut check)?;
    history::rows(&mut check)?;
    drop(world);
    quotas::check(&mut check)?;
    feeds::check(&mut check)?;
    objects::check(&mut check, options.store, options.window_objects)?;
    if let (Some(how), Some(store)) = (options.data, options.store) {
        data::check(&mut check, store, how)?;
    }
    Ok(check.totals)
}

/// A check under way.
struct Check<'a> {
    engine: &'a dyn Engine,
    report: &'a mut dyn FnMut(Finding),
    progress: Progress<'a>,
    totals: Totals,
    /// Workers of which the shares of directories and objects are read; there must be none of
    /// others.
    shares: u32,
    /// The volume in use that the engine is a cut of.
    live: Option<Live<'a>>,
    /// See [`Options::is_of_several`].
    is_of_several: bool,
    /// See [`Options::share`].
    share: [u8; 2],
    /// Snapshots with records, ascending.
    snapshots: Vec<SnapshotId>,
    /// Clones that are not finished.
    clones: clones::Clones,
}

/// What the first walk learned.
#[derive(Default)]
struct World {
    /// Numbers of all inodes that have a record.
    inodes: IdSet,
    /// Of these, with extended attributes.
    marked: IdSet,
    /// Directories but the root with their parents, by number.
    dirs: Vec<(InodeId, InodeId)>,
    /// Directories that have entries, ascending.
    parents: Vec<InodeId>,
    /// Chunked files with their sizes, by number.
    chunked: Vec<(InodeId, u64)>,
    /// Hard-link references: how many, and of what kind.
    references: HashMap<InodeId, (u32, Kind)>,
    /// Directories with sums that differ from their entries, with what they should be.
    sums: Vec<(InodeId, shares::Sums)>,
    /// Inodes with more than one record.
    duplicates: IdSet,
    /// References to inodes without a record.
    dangling: IdSet,
    /// Newest commit timestamp of any inode.
    newest_change: u64,
    /// Inodes with damaged records: nothing can be reported about what belongs to them.
    unjudged: IdSet,
    /// Directories of clones that lack names.
    based: IdSet,
    /// Files that wrongly deny having extended attributes.
    unmarked: IdSet,
}

impl World {
    fn is_dir(&self, ino: InodeId) -> bool {
        ino == ROOT || self.parent_of(ino).is_some()
    }

    /// The directory above, by the entry.
    fn parent_of(&self, ino: InodeId) -> Option<InodeId> {
        self.index_of(ino).map(|index| self.dirs[index].1)
    }

    fn index_of(&self, ino: InodeId) -> Option<usize> {
        self.dirs.binary_search_by_key(&ino, |dir| dir.0).ok()
    }

    fn size_of_chunked(&self, ino: InodeId) -> Option<u64> {
        let index = self.chunked.binary_search_by_key(&ino, |file| file.0).ok()?;
        Some(self.chunked[index].1)
    }
}

impl<'a> Check<'a> {
    fn found(&mut self, finding: Finding) {
        *self.totals.findings.entry(finding.kind).or_default() += 1;
        (self.report)(finding);
    }

    /// Counts a row, and reports the count now and then.
    fn row(&mut self, what: &'static str) {
        self.totals.rows += 1;
        if self.totals.rows.is_multiple_of(8192) {
            (self.progress)(what, self.totals.rows);
        }
    }

    /// Whether a share's key suffix names a worker of which the shares are read.
    fn is_share(&self, suffix: &[u8]) -> bool {
        <[u8; 2]>::try_from(suffix)
            .is_ok_and(|worker| u32::from(u16::from_be_bytes(worker)) < self.shares)
    }

    fn rows(&self, table: Table) -> Rows<'a> {
        Rows::new(self.engine, table)
    }

    /// Path of an entry, for people.
    fn path(&self, parent: InodeId, name: &[u8]) -> String {
        path(self.engine, parent, name)
    }

    /// Path of a directory, for people.
    fn dir_path(&self, dir: InodeId) -> String {
        if dir == ROOT { "/".to_string() } else { path(self.engine, dir, b"") }
    }
}

/// Path of an entry as the directories' places give it; from `#number` on where they break off.
pub fn path(engine: &dyn Engine, parent: InodeId, name: &[u8]) -> String {
    let mut parts = vec![readable(name)];
    let mut dir = parent;
    for _ in 0..PATH_DEPTH_MAX {
        if dir == ROOT {
            parts.push(String::new());
            break;
        }
        let dir_id = get(engine, Key::new(Table::DirId, dir, &[])).ok().flatten();
        match dir_id.and_then(|bytes| DirId::decode(&bytes).ok()) {
            Some(dir_id) => {
                parts.push(readable(&dir_id.name));
                dir = dir_id.parent;
            }
            None => {
                parts.push(format!("#{dir}"));
                break;
            }
        }
    }
    parts.reverse();
    let joined = parts.join("/");
    joined.strip_suffix('/').map_or(joined.clone(), str::to_string)
}

/// Walks the entries once more for the records of some inodes.
fn find_records(
    check: &mut Check<'_>,
    wanted: &dyn Fn(InodeId) -> bool,
) -> Result<HashMap<InodeId, Vec<(Key, Entry)>>, EngineError> {
    let mut found: HashMap<InodeId, Vec<(Key, Entry)>> = HashMap::new();
    for row in check.rows(Table::Entry) {
        let (key, value) = row?;
        check.row("looking for records");
        if !Entry::peek(&value).is_ok_and(|(ino, _)| wanted(ino)) {
            continue;
        }
        if let Ok(entry) = Entry::decode(&value)
            && (found.len() < LOCATE_MAX || found.contains_key(&entry.ino()))
        {
            found.entry(entry.ino()).or_default().push((key, entry));
        }
    }
    Ok(found)
}
