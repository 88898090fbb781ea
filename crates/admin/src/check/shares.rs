//! Directories' sums: the shares of table `dirstat` against what the entries give.

use kestrel_engine::EngineError;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::stat::DirStat;

use super::{Check, World};
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::rows::{Rows, delete, put};

/// Sums over a directory's entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub children: i64,
    pub subdirs: i64,
    pub bytes: i64,
}

impl Sums {
    /// Counts an inode's own record; its size if it is a file's.
    pub fn add(&mut self, inode: &Inode) {
        self.children += 1;
        if inode.kind == Kind::Dir {
            self.subdirs += 1;
        } else {
            self.bytes = self.bytes.wrapping_add(inode.size.cast_signed());
        }
    }

    fn of(stat: &DirStat) -> Self {
        Self { children: stat.children, subdirs: stat.subdirs, bytes: stat.bytes }
    }
}

/// The shares of a directory, added up.
#[derive(Debug, Default)]
struct Shares {
    total: DirStat,
    keys: Vec<Key>,
    damaged: bool,
}

/// Walks the shares beside the entries.
pub struct ShareWalk<'a> {
    rows: Rows<'a>,
    shares: u32,
}

impl<'a> ShareWalk<'a> {
    pub fn new(check: &Check<'a>) -> Self {
        Self { rows: check.rows(Table::DirStat), shares: check.shares }
    }

    /// Compares every directory up to `dir` (all if `None`), of which only `dir` has entries, with
    /// sums `sums`.
    pub fn compare(
        &mut self,
        dir: Option<InodeId>,
        sums: Sums,
        wrong: &mut Vec<(InodeId, Sums)>,
    ) -> Result<(), EngineError> {
        let mut seen = false;
        while let Some((key, _)) = self.rows.peek()? {
            let id = key.id;
            if dir.is_some_and(|dir| id > dir) {
                break;
            }
            let shares = take(&mut self.rows, id, self.shares)?;
            let expected = if dir == Some(id) { sums } else { Sums::default() };
            seen |= dir == Some(id);
            if shares.damaged || Sums::of(&shares.total) != expected {
                wrong.push((id, expected));
            }
        }
        if let (Some(dir), false) = (dir, seen)
            && sums != Sums::default()
        {
            wrong.push((dir, sums));
        }
        Ok(())
    }
}

/// Takes all shares of one directory; those of workers from `workers` on would not be read.
fn take(rows: &mut Rows<'_>, dir: InodeId, workers: u32) -> Result<Shares, EngineError> {
    let mut shares = Shares::default();
    while rows.peek()?.is_some_and(|(key, _)| key.id == dir) {
        let Some(row) = rows.next() else { break };
        let (key, value) = row?;
        let worker = <[u8; 2]>::try_from(&*key.suffix)
            .map_or(u32::MAX, |worker| u32::from(u16::from_be_bytes(worker)));
        match DirStat::decode(&value) {
            Ok(stat) if worker < workers => {
                let total = &mut shares.total;
                total.children = total.children.saturating_add(stat.children);
                total.subdirs = total.subdirs.saturating_add(stat.subdirs);
                // As the node adds them and [`Sums::add`] does: sizes of sparse files may add up to
                // more than there is room for.
                total.bytes = total.bytes.wrapping_add(stat.bytes);
                total.mtime = total.mtime.max(stat.mtime);
                total.change = total.change.max(stat.change);
            }
            _ => shares.damaged = true,
        }
        shares.keys.push(key);
    }
    Ok(shares)
}

/// Reports what the first walk noticed, and shares of directories that do not exist.
pub fn check(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    for (dir, expected) in &world.sums {
        if !world.is_dir(*dir) || check.clones.lacks_names(*dir) {
            continue;
        }
        let shares =
            take(&mut Rows::from(check.engine, Table::DirStat, *dir, &[]), *dir, check.shares)?;
        let found = Sums::of(&shares.total);
        let detail = if shares.damaged {
            "a share is damaged, or of a worker that does not exist".to_string()
        } else {
            let (f, e) = (found, expected);
            format!(
                "shares say {} entries, {} directories, {} bytes; there are {}, {}, {}",
                f.children, f.subdirs, f.bytes, e.children, e.subdirs, e.bytes
            )
        };
        let Sums { children, subdirs, bytes } = *expected;
        let right = DirStat { children, subdirs, bytes, ..shares.total };
        let mut rows: Vec<_> = shares.keys.iter().map(delete).collect();
        rows.push(put(Table::DirStat, *dir, &check.share, right.encode()));
        let finding = Finding::new(FindingKind::DirStatWrong, check.dir_path(*dir), detail);
        check.found(finding.with(Stage::Sums, "sums counted anew", Act::Rows(rows)));
    }
    let mut rows = check.rows(Table::DirStat);
    while let Some((key, _)) = rows.peek()? {
        let dir = key.id;
        let shares = take(&mut rows, dir, check.shares)?;
        for _ in &shares.keys {
            check.row("checking sums of directories");
        }
        if !world.is_dir(dir) && world.parents.binary_search(&dir).is_err() {
            let rows = shares.keys.iter().map(delete).collect();
            let finding = Finding::new(
                FindingKind::DirStatDangling,
                format!("#{dir}"),
                "sums of no directory",
            );
            check.found(finding.with(Stage::Derived, "removed", Act::Rows(rows)));
        }
    }
    Ok(())
}
