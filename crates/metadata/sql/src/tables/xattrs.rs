//! Table `xattrs`: extended attributes of what is in the trees. ACLs are not among them.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_engine::row_cache::Bytes;
use kestrel_meta::ops::xattr;
use kestrel_types::key::{PREFIX_LEN, Table};

use super::{Cell, Rows, UsedColumns};
use crate::catalog::Catalog;
use crate::found::{Detail, FoundEntries};
use crate::plan::{Column, Selection};
use crate::version::{behind_id, encoded};

pub struct XattrRows {
    found: FoundEntries,
    /// Attributes of the entry, keys and values; the first one is the row.
    rows: VecDeque<(Bytes, Bytes)>,
}

impl Rows for XattrRows {
    const SCHEMA: &'static CStr = c"create table xattrs (
        version text not null,
        path text not null,
        name text not null,
        value text,
        primary key (version, path, name)) without rowid";
    const COLUMNS: &'static [Column] = &[Column::Version, Column::Path];

    fn new(catalog: Arc<Catalog>) -> Self {
        Self { found: FoundEntries::new(catalog), rows: VecDeque::new() }
    }

    fn begin(&mut self, selection: Selection, used: UsedColumns) -> Result<(), EngineError> {
        self.rows.clear();
        self.found.begin(selection, Detail::Inode, used.has(&[1]))?;
        self.found.want_xattrs();
        Ok(())
    }

    fn advance(&mut self) -> Result<bool, EngineError> {
        self.rows.pop_front();
        while self.rows.is_empty() {
            if !self.found.advance()? {
                return Ok(false);
            }
            let number = self.found.inode().filter(|inode| inode.xattrs).map(|inode| inode.ino);
            let (Some(number), Some(version)) = (number, self.found.open_version()) else {
                continue;
            };
            // An inode has at most so many as one listing has room for.
            let from = encoded(Table::Xattr, number, b"");
            let mut rows = version.rows(&from, &behind_id(Table::Xattr, number));
            while let Some((key, value)) = rows.next_row()? {
                if xattr::decode(&value).is_none() {
                    let what = format!("an attribute of inode {number}");
                    return Err(version.damaged(&what, "it has an unknown format version"));
                }
                self.rows.push_back((key, value));
            }
        }
        Ok(true)
    }

    fn column(&self, column: usize) -> Result<Cell<'_>, EngineError> {
        let Some((key, value)) = self.rows.front() else { return Ok(Cell::Null) };
        Ok(match column {
            0 => Cell::of(self.found.version()),
            1 => Cell::Bytes(self.found.path()?),
            2 => Cell::Bytes(key.get(PREFIX_LEN..).unwrap_or_default().into()),
            3 => Cell::Bytes(xattr::decode(value).unwrap_or_default().into()),
            _ => Cell::Null,
        })
    }
}
