//! Rows that the names of a clone are made of, wherever they are: in the engine of a node that has
//! the volume alone, or told by the other nodes.

use std::ops::ControlFlow;

use kestrel_engine::Engine;
use kestrel_types::entry::Entry;
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::stat::DirStat;

use super::damaged;
use crate::clones::{SourceDir, SuffixRow};
use crate::owners::MapView;
use crate::rows::{Missing, Span, TxnRows, is_full, share_suffix};
use crate::stop::engine_error;
use crate::view::{decode_dir_id, home_at};

/// Reads rows of one moment.
pub(super) trait ReadRows {
    /// The value of a row; `None` if there is none, or it is not here.
    fn get(&mut self, key: Key) -> FsResult<Option<Box<[u8]>>>;

    /// The rows of a range, of the chunks of a file one more than a batch may take; none if they
    /// are not here.
    fn rows(&mut self, span: Span) -> FsResult<Vec<SuffixRow>>;

    /// Whether something that was asked for is not here: then what was read says nothing.
    fn lacks(&self) -> bool;
}

/// Rows of an engine.
pub(super) struct EngineRows<'a> {
    pub engine: &'a dyn Engine,
    /// Most chunks of a file that a batch takes.
    pub scan_rows: usize,
}

impl ReadRows for EngineRows<'_> {
    fn get(&mut self, key: Key) -> FsResult<Option<Box<[u8]>>> {
        super::get(self.engine, key.borrow())
    }

    fn rows(&mut self, span: Span) -> FsResult<Vec<SuffixRow>> {
        let Span { table, id, after, rows_max } = span;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let visited = self.engine.scan(table, id, after.as_deref(), &mut |suffix, row, _| {
            bytes += row.len();
            let last = table == Table::Chunk && is_full(self.scan_rows, rows.len(), bytes);
            rows.push((suffix.into(), row.into()));
            match last || rows.len() >= rows_max as usize {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        visited.map_err(engine_error)?;
        Ok(rows)
    }

    fn lacks(&self) -> bool {
        false
    }
}

/// Rows that were told so far. What is not among them is noted.
pub(super) struct ToldRows<'a> {
    told: &'a TxnRows,
    pub missing: Missing,
}

impl<'a> ToldRows<'a> {
    pub fn new(told: &'a TxnRows) -> Self {
        Self { told, missing: Missing::default() }
    }
}

impl ReadRows for ToldRows<'_> {
    fn get(&mut self, key: Key) -> FsResult<Option<Box<[u8]>>> {
        let told = self.told.rows.get(&key).cloned();
        if told.is_none() {
            self.missing.keys.push(key);
        }
        Ok(told.flatten())
    }

    fn rows(&mut self, span: Span) -> FsResult<Vec<SuffixRow>> {
        let Some(told) = self.told.spans.get(&span) else {
            self.missing.spans.push(span);
            return Ok(Vec::new());
        };
        let rows = told.iter().take(span.rows_max as usize);
        Ok(rows.map(|(suffix, value)| (suffix.clone(), value.clone())).collect())
    }

    fn lacks(&self) -> bool {
        self.missing != Missing::default()
    }
}

/// Nothing: to find out what else is needed before rows are locked.
pub(super) struct NoRows;

impl ReadRows for NoRows {
    fn get(&mut self, _key: Key) -> FsResult<Option<Box<[u8]>>> {
        Ok(None)
    }

    fn rows(&mut self, _span: Span) -> FsResult<Vec<SuffixRow>> {
        Ok(Vec::new())
    }

    fn lacks(&self) -> bool {
        false
    }
}

/// A directory's record, and its key; `None` if there is no such directory, or its rows are not
/// here.
pub(super) fn dir_record(rows: &mut dyn ReadRows, dir: InodeId) -> FsResult<Option<(Key, Inode)>> {
    let key = if dir == ROOT {
        Key::new(Table::Entry, 0, b"")
    } else {
        let Some(row) = rows.get(Key::new(Table::DirId, dir, b""))? else { return Ok(None) };
        let (parent, name) =
            decode_dir_id(&row).map_err(|why| damaged(format!("dirid {dir}: {why}")))?;
        Key::new(Table::Entry, parent, name)
    };
    let Some(row) = rows.get(key.clone())? else { return Ok(None) };
    match Entry::decode(&row).map_err(|why| damaged(format!("entry of {dir}: {why}")))? {
        Entry::Inode(inode) if inode.ino == dir && inode.kind == Kind::Dir => {
            Ok(Some((key, inode)))
        }
        _ => Ok(None),
    }
}

/// A directory with this record as a clone needs it, by the rows of a snapshot.
pub(super) fn source_dir(
    then: &mut dyn ReadRows,
    inode: Inode,
    table: Option<&MapView>,
) -> FsResult<SourceDir> {
    let mut stat = DirStat::default();
    // At a snapshot each node has one share.
    for at in 0..table.map_or(1, MapView::share_holders) {
        let holder = table.map_or(0, |table| home_at(table.share_holder(at), 0));
        let share = then.get(Key::new(Table::DirStat, inode.ino, &share_suffix(holder)))?;
        if let Some(row) = share {
            stat.merge(&DirStat::decode(&row).map_err(|why| damaged(format!("dirstat: {why}")))?);
        }
    }
    let xattrs = if inode.xattrs { all_rows(then, Table::Xattr, inode.ino)? } else { Vec::new() };
    Ok(SourceDir { inode, stat, xattrs })
}

/// All rows of `(table, id)`: suffixes and values.
pub(super) fn all_rows(rows: &mut dyn ReadRows, table: Table, id: u64) -> FsResult<Vec<SuffixRow>> {
    rows.rows(Span { table, id, after: None, rows_max: u32::MAX })
}
