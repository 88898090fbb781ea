//! What each directory of a tree holds, for `kestrel du`: by the shares of the directories, without
//! a look at any file.
//!
//! [`TreeUsage::walk`] reads the shares of all directories of a tree, a level at a time, and adds
//! them up from below; [`TreeUsage::select`] picks the directories that a person wants to see, and
//! [`TreeUsage::paths`] finds out their names. [`then`] does the same at a snapshot. [`owners`]
//! looks at files, for sums by user and group.

pub mod owners;
pub mod then;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use kestrel_engine::Engine;
use kestrel_types::clock::Nanos;
use kestrel_types::clone::RECORD_PREFIX;
use kestrel_types::ids::InodeId;
use kestrel_types::key::{Key, Table};
use kestrel_types::snapshot::SnapshotInfo;
use kestrel_types::stat::DirStat;

use crate::info::{InfoError, dir_sums};
use crate::rows::{DirId, Rows, get};
use then::DirGrowth;

/// Most directories of a tree. Each takes about 100 bytes of memory.
pub const DIRS_MAX: usize = 50_000_000;

/// Most directories that are read in one step.
const STEP_DIRS: usize = 1024;

/// One directory: the sum of its shares, and the directories in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirPart {
    /// Entries of the directory itself, the bytes of its files, its newest change.
    pub stat: DirStat,
    /// The directories in it.
    pub below: Vec<InodeId>,
}

/// Reads the parts of some directories, in their order.
pub type ReadParts<'a> = dyn FnMut(&[InodeId]) -> Result<Vec<DirPart>, InfoError> + 'a;

/// Reads parts in an engine that has all rows.
///
/// # Errors
/// Those of the engine; damaged shares.
pub fn read_parts(engine: &dyn Engine, dirs: &[InodeId]) -> Result<Vec<DirPart>, InfoError> {
    let part = |dir: &InodeId| {
        let mut below = Vec::new();
        let stat = dir_sums(engine, *dir, &mut |child| below.push(child))?;
        Ok(DirPart { stat, below })
    };
    dirs.iter().map(part).collect()
}

/// Clones of the volume that are not complete: directories of theirs that nobody has looked at have
/// no rows of the directories in them yet, so figures of trees lack those.
///
/// # Errors
/// Those of the engine.
pub fn unfinished_clones(engine: &dyn Engine) -> Result<usize, InfoError> {
    let mut count = clones_with_records(engine)?;
    for row in Rows::from(engine, Table::System, 0, kestrel_types::snapshot::RECORD_PREFIX) {
        let (key, value) = row?;
        match SnapshotInfo::decode(&key.suffix, &value) {
            Some(Ok(info)) => count += info.clones.len(),
            // Of a damaged one nothing is known.
            Some(Err(_)) => {}
            None => break,
        }
    }
    Ok(count)
}

/// Those of them that have records of their own, as before records of snapshots told of them.
///
/// # Errors
/// Those of the engine.
pub fn clones_with_records(engine: &dyn Engine) -> Result<usize, InfoError> {
    let mut count = 0;
    for row in Rows::from(engine, Table::System, 0, RECORD_PREFIX) {
        if !row?.0.suffix.starts_with(RECORD_PREFIX) {
            break;
        }
        count += 1;
    }
    Ok(count)
}

/// Figures of a directory, or of it and all directories below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirFigures {
    /// Entries that are not directories.
    pub files: u64,
    /// Directories, the directory itself left out.
    pub dirs: u64,
    /// Sizes of the files that have one name.
    pub bytes: u64,
    /// The newest change of content; nanoseconds since 1970.
    pub changed: Nanos,
}

impl DirFigures {
    fn of(stat: &DirStat) -> Self {
        let positive = |value: i64| u64::try_from(value).unwrap_or(0);
        Self {
            files: positive(stat.children - stat.subdirs),
            dirs: positive(stat.subdirs),
            bytes: positive(stat.bytes),
            changed: stat.mtime,
        }
    }

    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.dirs += other.dirs;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.changed = self.changed.max(other.changed);
    }
}

/// One directory of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirUsage {
    /// Its number.
    pub dir: InodeId,
    /// Directories between it and the top; 0 is the top itself.
    pub depth: u32,
    /// What lies in it directly.
    pub own: DirFigures,
    /// What lies in it and below.
    pub tree: DirFigures,
    /// How much it has grown, if that was found out.
    pub growth: Option<DirGrowth>,
    /// Index of the directory above it; the top's own.
    parent: usize,
}

/// By what directories are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankBy {
    /// Bytes of their own files.
    Bytes,
    /// Number of their own files.
    Files,
    /// Newest change of their own content.
    Changed,
    /// Growth of the bytes of their own files.
    Growth,
}

/// Which directories of a tree are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// Those so deep or less below the top, parents first, the largest trees first.
    Depth(u32),
    /// The first ones by what lies in them directly, so many.
    Top(usize, RankBy),
}

/// All directories of a tree, parents before their children.
#[derive(Debug)]
pub struct TreeUsage {
    dirs: Vec<DirUsage>,
}

impl TreeUsage {
    /// Reads a tree. Directories that are made, moved or removed meanwhile may be counted or not.
    ///
    /// # Errors
    /// Those of `read`; a tree with more than [`DIRS_MAX`] directories, as a damaged one may have.
    pub fn walk(top: InodeId, read: &mut ReadParts<'_>) -> Result<Self, InfoError> {
        let figures = DirFigures::default();
        let growth = None;
        let mut dirs =
            vec![DirUsage { dir: top, depth: 0, own: figures, tree: figures, growth, parent: 0 }];
        let mut next = 0;
        while next < dirs.len() {
            let end = dirs.len().min(next + STEP_DIRS);
            let step: Vec<InodeId> = dirs[next..end].iter().map(|found| found.dir).collect();
            for (parent, part) in (next..end).zip(read(&step)?) {
                let own = DirFigures::of(&part.stat);
                (dirs[parent].own, dirs[parent].tree) = (own, own);
                let depth = dirs[parent].depth + 1;
                dirs.extend(part.below.into_iter().map(|dir| DirUsage {
                    dir,
                    depth,
                    own: figures,
                    tree: figures,
                    growth,
                    parent,
                }));
            }
            if dirs.len() > DIRS_MAX {
                return Err(InfoError::TooLarge);
            }
            next = end;
        }
        for at in (1..dirs.len()).rev() {
            let (below, parent) = (dirs[at].tree, dirs[at].parent);
            dirs[parent].tree.add(&below);
        }
        Ok(Self { dirs })
    }

    /// The top, with the figures of the whole tree.
    pub fn top(&self) -> &DirUsage {
        &self.dirs[0]
    }

    /// The directories that are wanted.
    pub fn select(&self, selection: Selection) -> Vec<&DirUsage> {
        match selection {
            Selection::Depth(depth) => self.down_to(depth),
            Selection::Top(count, by) => {
                let rank = |found: &DirUsage| match by {
                    RankBy::Bytes => i128::from(found.own.bytes),
                    RankBy::Files => i128::from(found.own.files),
                    RankBy::Changed => i128::from(found.own.changed),
                    RankBy::Growth => found.growth.map_or(0, |growth| i128::from(growth.bytes)),
                };
                let mut all: Vec<&DirUsage> = self.dirs.iter().collect();
                let order = |found: &&DirUsage| (std::cmp::Reverse(rank(found)), found.dir);
                if count > 0 && count < all.len() {
                    all.select_nth_unstable_by_key(count - 1, order);
                }
                all.truncate(count);
                all.sort_by_key(order);
                all
            }
        }
    }

    /// Directories down to a depth: each right behind its parent, of two beside each other the one
    /// with more bytes first.
    fn down_to(&self, depth: u32) -> Vec<&DirUsage> {
        let mut below: HashMap<usize, Vec<usize>> = HashMap::new();
        // The depth never falls from one directory to the next.
        let within = self.dirs.partition_point(|found| found.depth <= depth);
        for at in 1..within {
            below.entry(self.dirs[at].parent).or_default().push(at);
        }
        let (mut found, mut stack) = (Vec::with_capacity(within), vec![0]);
        while let Some(at) = stack.pop() {
            found.push(&self.dirs[at]);
            let mut children = below.remove(&at).unwrap_or_default();
            children.sort_by_key(|child| (self.dirs[*child].tree.bytes, self.dirs[*child].dir));
            stack.extend(children);
        }
        found
    }

    /// Paths of directories of this tree, relative to its top: empty for the top itself, `None` for
    /// one that has been removed or moved since it was read.
    ///
    /// # Errors
    /// Those of the engine; damaged rows.
    pub fn paths(
        &self,
        engine: &dyn Engine,
        of: &[&DirUsage],
    ) -> Result<Vec<Option<Vec<u8>>>, InfoError> {
        let mut names = HashMap::new();
        of.iter().map(|found| self.path(engine, found, &mut names)).collect()
    }

    fn path(
        &self,
        engine: &dyn Engine,
        of: &DirUsage,
        names: &mut HashMap<InodeId, Option<Box<[u8]>>>,
    ) -> Result<Option<Vec<u8>>, InfoError> {
        let (mut parts, mut at) = (Vec::new(), of);
        while at.depth > 0 {
            let parent = &self.dirs[at.parent];
            let name = match names.entry(at.dir) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let row = get(engine, Key::new(Table::DirId, at.dir, &[]))?;
                    let place = row.map(|row| DirId::decode(&row)).transpose()?;
                    let place = place.filter(|place| place.parent == parent.dir);
                    unknown.insert(place.map(|place| place.name))
                }
            };
            let Some(name) = name else { return Ok(None) };
            parts.push(name.clone());
            at = parent;
        }
        parts.reverse();
        Ok(Some(parts.join(&b'/')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::put;
    use kestrel_engine::BatchKind;
    use kestrel_engine::memory::{MemoryEngine, SyncWhen};

    /// Directories as (number, parent, name, files, bytes, time).
    const TREE: [(InodeId, InodeId, &str, i64, i64, Nanos); 5] = [
        (20, 1, "", 1, 10, 5),
        (21, 20, "small", 2, 5, 9),
        (22, 20, "large", 0, 0, 1),
        (23, 22, "inner", 7, 700, 2),
        (24, 22, "other", 8, 70, 3),
    ];

    fn tree() -> MemoryEngine {
        let engine = MemoryEngine::new(SyncWhen::Told);
        let mut rows = Vec::new();
        for (dir, parent, name, files, bytes, mtime) in TREE {
            let below = TREE.iter().filter(|(_, above, ..)| *above == dir);
            let subdirs = below.clone().count().cast_signed() as i64;
            let stat = DirStat { children: files + subdirs, subdirs, bytes, mtime, change: 1 };
            // Two shares: what counts is their sum.
            let part = DirStat { children: -1, subdirs: 0, bytes: -3, mtime: 0, change: 2 };
            let rest = DirStat { children: stat.children + 1, bytes: bytes + 3, ..stat };
            rows.push(put(Table::DirStat, dir, &[0, 0], part.encode()));
            rows.push(put(Table::DirStat, dir, &[0, 1], rest.encode()));
            for (child, ..) in below {
                rows.push(put(Table::Subdir, dir, &child.to_be_bytes(), Box::default()));
            }
            let place = DirId { parent, name: name.as_bytes().into() };
            rows.push(put(Table::DirId, dir, &[], place.encode()));
        }
        engine.commit(BatchKind::Growing, rows).unwrap();
        engine
    }

    fn shown(tree: &TreeUsage, engine: &MemoryEngine, selection: Selection) -> Vec<String> {
        let found = tree.select(selection);
        let paths = tree.paths(engine, &found).unwrap();
        paths.into_iter().map(|path| String::from_utf8(path.unwrap()).unwrap()).collect()
    }

    /// Sums go up to the top, with the newest time below.
    #[test]
    fn figures_of_a_tree() {
        let engine = tree();
        let tree = TreeUsage::walk(20, &mut |dirs| read_parts(&engine, dirs)).unwrap();
        let top = DirFigures { files: 18, dirs: 4, bytes: 785, changed: 9 };
        assert_eq!(tree.top().tree, top);
        assert_eq!(tree.top().own, DirFigures { files: 1, dirs: 2, bytes: 10, changed: 5 });
        let large = tree.select(Selection::Depth(1))[1];
        assert_eq!((large.dir, large.own.bytes, large.tree.bytes), (22, 0, 770));
    }

    /// By depth a directory stands behind its parent, and the larger tree first; by rank what lies
    /// in a directory itself counts.
    #[test]
    fn directories_that_are_shown() {
        let engine = tree();
        let tree = TreeUsage::walk(20, &mut |dirs| read_parts(&engine, dirs)).unwrap();
        let depth = |depth| shown(&tree, &engine, Selection::Depth(depth));
        assert_eq!(depth(0), [""]);
        assert_eq!(depth(1), ["", "large", "small"]);
        assert_eq!(depth(9), ["", "large", "large/inner", "large/other", "small"]);
        let top = |count, by| shown(&tree, &engine, Selection::Top(count, by));
        assert_eq!(top(2, RankBy::Bytes), ["large/inner", "large/other"]);
        assert_eq!(top(1, RankBy::Files), ["large/other"]);
        assert_eq!(top(2, RankBy::Changed), ["small", ""]);
        assert_eq!((top(0, RankBy::Bytes).len(), top(99, RankBy::Bytes).len()), (0, 5));
    }

    /// Records of clones are counted, and no others of their table.
    #[test]
    fn clones_that_are_not_complete() {
        let engine = tree();
        assert_eq!(unfinished_clones(&engine).unwrap(), 0);
        let record = |name: &[u8]| put(Table::System, 0, name, Box::default());
        let rows = vec![record(b"clock"), record(b"clone 01"), record(b"clone 02"), record(b"d")];
        engine.commit(BatchKind::Growing, rows).unwrap();
        assert_eq!(unfinished_clones(&engine).unwrap(), 2);
    }

    /// A directory that was moved away since has no path below the top.
    #[test]
    fn path_of_a_moved_directory() {
        let engine = tree();
        let tree = TreeUsage::walk(20, &mut |dirs| read_parts(&engine, dirs)).unwrap();
        let place = DirId { parent: 21, name: b"large".as_slice().into() };
        let moved = vec![put(Table::DirId, 22, &[], place.encode())];
        engine.commit(BatchKind::Growing, moved).unwrap();
        let found = tree.select(Selection::Depth(1));
        let paths = tree.paths(&engine, &found).unwrap();
        assert_eq!(paths, [Some(b"".to_vec()), None, Some(b"small".to_vec())]);
    }
}
