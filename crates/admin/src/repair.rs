//! Puts right what a check found, where that needs no guessing.
//!
//! | file | what it has |
//! | --- | --- |
//! | `repair/cluster.rs` | repairs a volume that several nodes share |
//! | `repair/misplaced.rs` | rows that lie at a node that does not own them |
//! | `repair/write_through.rs` | an engine that also writes to the nodes that own the rows |
//!
//! Works in rounds: a check collects repairs, those of the earliest stage are applied, each as one
//! atomic batch, and the next round begins with a new check. It ends when a check finds nothing
//! more to repair. Nothing is thrown away that may hold a user's data: what cannot be put back goes
//! to `/lost+found`, under its inode number.
//!
//! A volume that several nodes share is repaired by [`cluster`].

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;

use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_types::clock::Nanos;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{FIRST_INODE, InodeId, ROOT};
use kestrel_types::inode::{Data, INLINE_MAX, Inode, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::name::Name;
use kestrel_types::policy::PolicyRecord;

use crate::check::{self, CheckError, Options, Progress, Totals};
use crate::cut::CutError;
use crate::finding::{Act, Finding, Fix, Stage};
use crate::rows::{
    DirId, INODES, USAGE, decode_ceiling, delete, encode_ceiling, get, get_all, put,
};
use write_through::WriteThrough;

pub mod cluster;
mod misplaced;
mod write_through;

/// Rounds after which it gives up: every kind of damage needs a few, and each is checked to make
/// progress.
const ROUNDS_MAX: u32 = 1000;

/// Repairs of one round; more are found again in the next.
const FIXES_MAX: usize = 100_000;

/// Findings kept to be reported at the end; the totals count all.
const KEPT_MAX: usize = 100_000;

/// Numbers from this one on are never handed out in earnest; where they stand, something is
/// damaged.
const INODE_MAX: InodeId = 1 << 62;

/// Name of the directory for what was found.
const LOST_FOUND: &[u8] = b"lost+found";

/// Why a repair could not be finished. What it did until then is consistent, and another run
/// continues.
#[derive(Debug)]
pub enum RepairError {
    /// The check failed.
    Check(CheckError),
    /// The engine did not take a change.
    Engine(EngineError),
    /// Damage that comes back: a mistake of this program.
    NoProgress(Box<Finding>),
    /// The rows of several nodes could not be put together.
    Gather(CutError),
    /// Not now; the text has the reason.
    Refused(String),
}

impl fmt::Display for RepairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RepairError::Check(error) => error.fmt(f),
            RepairError::Engine(error) => write!(f, "writing the metadata: {error}"),
            RepairError::Gather(error) => error.fmt(f),
            RepairError::Refused(why) => f.write_str(why),
            RepairError::NoProgress(finding) => write!(
                f,
                "{}: {} comes back after its repair; dump the volume and report this",
                finding.path,
                finding.kind.name()
            ),
        }
    }
}

impl std::error::Error for RepairError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => Some(error),
            // These print as their causes do.
            Self::Check(error) => std::error::Error::source(error),
            Self::Gather(error) => std::error::Error::source(error),
            Self::Refused(_) | Self::NoProgress(_) => None,
        }
    }
}

impl From<CheckError> for RepairError {
    fn from(error: CheckError) -> Self {
        RepairError::Check(error)
    }
}

impl From<CutError> for RepairError {
    fn from(error: CutError) -> Self {
        RepairError::Gather(error)
    }
}

impl From<EngineError> for RepairError {
    fn from(error: EngineError) -> Self {
        RepairError::Engine(error)
    }
}

/// Checks and repairs a volume at rest. `did` gets every finding that was repaired; `left` those
/// that remain. Returns the totals of the last check and the number of repairs.
///
/// # Errors
/// See [`RepairError`].
pub fn repair(
    engine: &dyn Engine,
    options: &mut Options<'_>,
    now: Nanos,
    did: &mut dyn FnMut(&Finding, &Fix),
    left: &mut dyn FnMut(Finding),
    progress: Progress<'_>,
) -> Result<(Totals, u64), RepairError> {
    rounds((engine, None), options, now, did, left, progress)
}

/// The rounds, on the rows of one node, or on those of several.
fn rounds(
    (engine, cluster): (&dyn Engine, Option<&WriteThrough<'_>>),
    options: &mut Options<'_>,
    now: Nanos,
    did: &mut dyn FnMut(&Finding, &Fix),
    left: &mut dyn FnMut(Finding),
    progress: Progress<'_>,
) -> Result<(Totals, u64), RepairError> {
    let mut done = 0;
    // Reading all data takes long and no repair depends on it: the last round alone does it.
    let mut data = options.data.take();
    for _ in 0..ROUNDS_MAX {
        let mut fixes: Vec<Finding> = Vec::new();
        let mut stage = Stage::Sums;
        let mut kept: Vec<Finding> = Vec::new();
        let mut collect = |finding: Finding| match &finding.fix {
            Some(fix) if fix.stage <= stage => {
                if fix.stage < stage {
                    stage = fix.stage;
                    fixes.clear();
                }
                if fixes.len() < FIXES_MAX {
                    fixes.push(finding);
                }
            }
            Some(_) => {}
            None if kept.len() < KEPT_MAX => kept.push(finding),
            None => {}
        };
        let totals = check::check(engine, options, &mut collect, progress)?;
        if fixes.is_empty() {
            if data.is_some() {
                options.data = data.take();
                continue;
            }
            kept.into_iter().for_each(left);
            return Ok((totals, done));
        }
        let mut workshop = Workshop::new(engine, cluster, now);
        let mut applied = 0;
        for finding in &fixes {
            if let Some(fix) = &finding.fix
                && workshop.apply(&fix.act)?
            {
                did(finding, fix);
                applied += 1;
            }
        }
        if applied == 0 {
            return Err(RepairError::NoProgress(Box::new(fixes.swap_remove(0))));
        }
        done += applied;
        engine.commit(BatchKind::Freeing, vec![delete(&Key::new(Table::System, 0, USAGE))])?;
        engine.sync()?;
    }
    Err(RepairError::NoProgress(Box::new(Finding::new(
        crate::finding::FindingKind::InodeInvalid,
        "/",
        "rounds exhausted",
    ))))
}

/// One round's repairs.
struct Workshop<'a> {
    engine: &'a dyn Engine,
    now: Nanos,
    /// The engine again, if its rows are those of several nodes.
    cluster: Option<&'a WriteThrough<'a>>,
    /// Rows that this round changed: a finding that concerns one of them again may be out of date.
    touched: HashSet<Key>,
}

impl<'a> Workshop<'a> {
    fn new(engine: &'a dyn Engine, cluster: Option<&'a WriteThrough<'a>>, now: Nanos) -> Self {
        Self { engine, now, cluster, touched: HashSet::new() }
    }

    /// Carries a repair out; false if it has to wait for the next round.
    fn apply(&mut self, act: &Act) -> Result<bool, EngineError> {
        if let Act::AdoptEntry(key, _) | Act::AdoptBytes(key, _) | Act::Renumber(key, _) = act
            && self.touched.contains(key)
        {
            return Ok(false);
        }
        let mut mutations = match act {
            // Those are carried out before the whole is looked at.
            Act::AtNode(..) | Act::Bring(..) => return Ok(false),
            Act::Rows(mutations) => mutations.clone(),
            Act::NewRoot => {
                let mut root = Inode { mode: 0o755, ..self.inode(ROOT, Kind::Dir) };
                // Directories may have some, and nodes look for them only if it says so.
                root.set_policy(PolicyRecord { in_use: true, ..PolicyRecord::default() });
                let root = Entry::Inode(root);
                let dir_id = DirId { parent: 0, name: Box::new([]) };
                vec![
                    put(Table::Entry, 0, &[], root.encode()),
                    put(Table::DirId, ROOT, &[], dir_id.encode()),
                ]
            }
            Act::AdoptDirectory(ino) => self.adopt_directory(*ino)?,
            Act::AdoptEntry(key, entry) => {
                let (parent, name) = self.name_for(entry)?;
                let mut rows = vec![delete(key)];
                if entry.kind() == Kind::Dir {
                    rows.push(delete(&Key::new(Table::Subdir, key.id, &entry.ino().to_be_bytes())));
                    rows.extend(directory_rows(entry.ino(), parent, &name));
                }
                rows.push(put(Table::Entry, parent, &name, entry.encode()));
                rows
            }
            Act::AdoptLink(ino, kind) => {
                let (parent, name) = self.found_name(&format!("#{ino}"))?;
                vec![put(
                    Table::Entry,
                    parent,
                    &name,
                    Entry::Link { ino: *ino, kind: *kind }.encode(),
                )]
            }
            Act::AdoptExtents(ino, size) => {
                let (parent, name) = self.found_name(&format!("#{ino}"))?;
                let (ino, mut rows) = self.with_a_valid_number(*ino, (parent, &name))?;
                let file =
                    Inode { size: *size, data: Data::Chunked, ..self.inode(ino, Kind::File) };
                rows.push(put(Table::Entry, parent, &name, Entry::Inode(file).encode()));
                rows
            }
            Act::AdoptBytes(key, bytes) => {
                let ino = self.new_number((key.id, &key.suffix))?;
                let (parent, name) = self.found_name(&format!("#{ino}.damaged-record"))?;
                let bytes = &bytes[..bytes.len().min(INLINE_MAX)];
                let data = if bytes.is_empty() { Data::None } else { Data::Inline(bytes.into()) };
                let file = Inode { size: bytes.len() as u64, data, ..self.inode(ino, Kind::File) };
                vec![delete(key), put(Table::Entry, parent, &name, Entry::Inode(file).encode())]
            }
            Act::Renumber(key, inode) => {
                let ino = self.new_number((key.id, &key.suffix))?;
                let fresh = Entry::Inode(Inode { ino, xattrs: false, ..inode.clone() });
                vec![put(key.table, key.id, &key.suffix, fresh.encode())]
            }
        };
        if self.cluster.is_some() && !matches!(act, Act::Rows(_)) {
            let moved: Vec<Mutation> = mutations.iter().filter_map(moved).collect();
            mutations.extend(moved);
        }
        if mutations.iter().any(|mutation| self.touched.contains(&mutation.key)) {
            return Ok(false);
        }
        self.touched.extend(mutations.iter().map(|mutation| mutation.key.clone()));
        self.commit(mutations)?;
        Ok(true)
    }

    fn commit(&self, mutations: Vec<Mutation>) -> Result<(), EngineError> {
        self.engine.commit(BatchKind::Freeing, mutations).map(drop)
    }

    fn inode(&self, ino: InodeId, kind: Kind) -> Inode {
        let mode = if kind == Kind::Dir { 0o700 } else { 0o600 };
        Inode { mode, ..Inode::new(ino, kind, self.now, self.now.max(0).cast_unsigned()) }
    }

    /// The number itself if an inode may have it; else a new one, with the rows that move its
    /// extents there.
    fn with_a_valid_number(
        &self,
        ino: InodeId,
        dir_id: (InodeId, &[u8]),
    ) -> Result<(InodeId, Vec<Mutation>), EngineError> {
        if (FIRST_INODE..INODE_MAX).contains(&ino) {
            return Ok((ino, Vec::new()));
        }
        let fresh = self.new_number(dir_id)?;
        let mut rows = Vec::new();
        self.engine.scan(Table::Chunk, ino, None, &mut |suffix, value, _| {
            rows.push(put(Table::Chunk, fresh, suffix, value.into()));
            rows.push(delete(&Key::new(Table::Chunk, ino, suffix)));
            ControlFlow::Continue(())
        })?;
        Ok((fresh, rows))
    }

    /// A directory's record: at the place that is still recorded for it, if that is free, else in
    /// `lost+found`.
    fn adopt_directory(&self, ino: InodeId) -> Result<Vec<Mutation>, EngineError> {
        let (parent, name) = match self.usable_dir_id(ino)? {
            Some(dir_id) => (dir_id.parent, dir_id.name.to_vec()),
            None => self.found_name(&format!("#{ino}"))?,
        };
        let record = Entry::Inode(self.inode(ino, Kind::Dir)).encode();
        let mut rows = directory_rows(ino, parent, &name);
        rows.push(put(Table::Entry, parent, &name, record));
        Ok(rows)
    }

    fn usable_dir_id(&self, ino: InodeId) -> Result<Option<DirId>, EngineError> {
        let stored = get(self.engine, Key::new(Table::DirId, ino, &[]))?;
        let Some(dir_id) = stored.and_then(|bytes| DirId::decode(&bytes).ok()) else {
            return Ok(None);
        };
        let usable = Name::check(&dir_id.name).is_ok()
            && self.is_directory(dir_id.parent)?
            && get(self.engine, Key::new(Table::Entry, dir_id.parent, &dir_id.name))?.is_none();
        Ok(usable.then_some(dir_id))
    }

    /// Whether a directory with this number exists where its `dirid` row has it.
    fn is_directory(&self, ino: InodeId) -> Result<bool, EngineError> {
        if ino == ROOT {
            return Ok(true);
        }
        let stored = get(self.engine, Key::new(Table::DirId, ino, &[]))?;
        let Some(dir_id) = stored.and_then(|bytes| DirId::decode(&bytes).ok()) else {
            return Ok(false);
        };
        let record = get(self.engine, Key::new(Table::Entry, dir_id.parent, &dir_id.name))?;
        Ok(record.is_some_and(|bytes| Entry::peek(&bytes) == Ok((ino, Kind::Dir))))
    }

    /// A free name in `lost+found`, which is created if need be.
    fn found_name(&self, wanted: &str) -> Result<(InodeId, Vec<u8>), EngineError> {
        self.name_in_found(wanted, None)
    }

    /// A name in `lost+found` for an entry that moves there. Where the very same record of an inode
    /// is, it was being moved when the repair ended.
    fn name_for(&self, entry: &Entry) -> Result<(InodeId, Vec<u8>), EngineError> {
        let same = matches!(entry, Entry::Inode(_)).then(|| entry.encode());
        self.name_in_found(&format!("#{}", entry.ino()), same.as_deref())
    }

    fn name_in_found(
        &self,
        wanted: &str,
        same: Option<&[u8]>,
    ) -> Result<(InodeId, Vec<u8>), EngineError> {
        let parent = self.lost_found()?;
        let mut name = wanted.as_bytes().to_vec();
        for i in 1u32.. {
            let there = get(self.engine, Key::new(Table::Entry, parent, &name))?;
            if there.is_none() || same.is_some() && there.as_deref() == same {
                break;
            }
            name = format!("{wanted}.{i}").into_bytes();
        }
        Ok((parent, name))
    }

    fn lost_found(&self) -> Result<InodeId, EngineError> {
        let mut name = LOST_FOUND.to_vec();
        for i in 1u32.. {
            match get(self.engine, Key::new(Table::Entry, ROOT, &name))? {
                None => break,
                Some(bytes) => match Entry::decode(&bytes) {
                    Ok(Entry::Inode(inode)) if inode.kind == Kind::Dir => return Ok(inode.ino),
                    _ => name = [LOST_FOUND, format!(".{i}").as_bytes()].concat(),
                },
            }
        }
        let ino = self.new_number((ROOT, &name))?;
        let mut rows = directory_rows(ino, ROOT, &name);
        rows.push(put(
            Table::Entry,
            ROOT,
            &name,
            Entry::Inode(self.inode(ino, Kind::Dir)).encode(),
        ));
        self.commit(rows)?;
        Ok(ino)
    }

    /// An inode number that was never used, for something of this name. The check has made sure
    /// before that the counter is above all others.
    fn new_number(&self, (parent, name): (InodeId, &[u8])) -> Result<InodeId, EngineError> {
        if let Some(cluster) = self.cluster {
            return cluster.new_number(parent, name);
        }
        let keys = [Key::new(Table::System, 0, INODES)];
        let stored = get_all(self.engine, &keys)?.pop().flatten();
        let ceiling = stored.and_then(|bytes| decode_ceiling(&bytes).ok()).unwrap_or(FIRST_INODE);
        let ino = ceiling.max(FIRST_INODE);
        self.commit(vec![put(Table::System, 0, INODES, encode_ceiling(ino.saturating_add(1)))])?;
        Ok(ino)
    }
}

/// What goes with the entry of a file that has another place now: with several nodes clients find
/// it by that.
fn moved(change: &Mutation) -> Option<Mutation> {
    let Mutation { key, value: Some(value) } = change else { return None };
    if key.table != Table::Entry {
        return None;
    }
    let Ok(Entry::Inode(inode)) = Entry::decode(value) else { return None };
    let dir_id = DirId { parent: key.id, name: key.suffix.clone() };
    (inode.kind != Kind::Dir).then(|| put(Table::Moved, inode.ino, &[], dir_id.encode()))
}

/// What goes with a directory's entry.
fn directory_rows(ino: InodeId, parent: InodeId, name: &[u8]) -> Vec<Mutation> {
    let dir_id = DirId { parent, name: name.into() };
    vec![
        put(Table::DirId, ino, &[], dir_id.encode()),
        put(Table::Subdir, parent, &ino.to_be_bytes(), Box::new([])),
    ]
}
