//! Table `entries`: all names of the trees, with what `stat` says of them in a mount.

use std::borrow::Cow;
use std::ffi::CStr;
use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::inode::{Data, Inode, Kind};

use super::{Cell, Rows, UsedColumns};
use crate::catalog::Catalog;
use crate::found::{Detail, FoundEntries};
use crate::plan::{Column, Selection};

/// Numbers of columns.
const PATH: usize = 1;
const PARENT: usize = 2;
const KIND: usize = 4;
const NLINK: usize = 9;
const INODE: usize = 10;
/// Columns of the inode.
const OF_INODE: [usize; 14] = [5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20];

pub struct EntryRows {
    found: FoundEntries,
}

impl Rows for EntryRows {
    const SCHEMA: &'static CStr = c"create table entries (
        version text not null,
        path text not null,
        parent text,
        name text,
        kind text,
        size integer,
        mode integer,
        uid integer,
        gid integer,
        nlink integer,
        inode integer,
        mtime integer,
        ctime integer,
        atime integer,
        btime integer,
        target text,
        rdev integer hidden,
        mtime_ns integer hidden,
        ctime_ns integer hidden,
        atime_ns integer hidden,
        btime_ns integer hidden,
        primary key (version, path)) without rowid";
    const COLUMNS: &'static [Column] =
        &[Column::Version, Column::Path, Column::Parent, Column::Name];

    fn new(catalog: Arc<Catalog>) -> Self {
        Self { found: FoundEntries::new(catalog) }
    }

    fn begin(&mut self, selection: Selection, used: UsedColumns) -> Result<(), EngineError> {
        let detail = match used {
            used if used.has(&[NLINK]) => Detail::Links,
            used if used.has(&OF_INODE) => Detail::Inode,
            used if used.has(&[KIND, INODE]) => Detail::Number,
            _ => Detail::Name,
        };
        self.found.begin(selection, detail, used.has(&[PATH, PARENT]))
    }

    fn advance(&mut self) -> Result<bool, EngineError> {
        self.found.advance()
    }

    fn column(&self, column: usize) -> Result<Cell<'_>, EngineError> {
        let found = &self.found;
        match column {
            0 => return Ok(Cell::of(found.version())),
            PATH => return Ok(Cell::Bytes(found.path()?)),
            PARENT => {
                return Ok(match found.path()? {
                    path if path.is_empty() => Cell::Null,
                    path => Cell::Bytes(parent_of(path)),
                });
            }
            3 => return Ok(Cell::Bytes(found.name().into())),
            _ => {}
        }
        let Some((ino, kind)) = found.number() else { return Ok(Cell::Null) };
        match column {
            KIND => return Ok(Cell::of(kind.word())),
            INODE => return Ok(Cell::number(ino)),
            _ => {}
        }
        Ok(found.inode().map_or(Cell::Null, |inode| of_inode(inode, column)))
    }
}

fn parent_of(path: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    match path {
        Cow::Borrowed(path) => path[..end].into(),
        Cow::Owned(mut path) => {
            path.truncate(end);
            path.into()
        }
    }
}

fn of_inode(inode: &Inode, column: usize) -> Cell<'_> {
    let seconds = |time: Nanos| Cell::Integer(time.div_euclid(SECOND));
    match column {
        5 => Cell::number(inode.size),
        6 => Cell::Integer(inode.mode.into()),
        7 => Cell::Integer(inode.uid.into()),
        8 => Cell::Integer(inode.gid.into()),
        NLINK => Cell::Integer(inode.nlink.into()),
        11 => seconds(inode.mtime),
        12 => seconds(inode.ctime),
        13 => seconds(inode.atime),
        14 => seconds(inode.btime),
        15 => match (&inode.data, inode.kind) {
            (Data::Inline(target), Kind::Symlink) => Cell::Bytes((&**target).into()),
            _ => Cell::Null,
        },
        16 => Cell::Integer(inode.rdev.into()),
        17 => Cell::Integer(inode.mtime),
        18 => Cell::Integer(inode.ctime),
        19 => Cell::Integer(inode.atime),
        20 => Cell::Integer(inode.btime),
        _ => Cell::Null,
    }
}
