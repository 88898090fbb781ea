//! Table `versions`: the versions of the volume.

use std::ffi::CStr;
use std::sync::Arc;

use kestrel_bucket::version::VersionManifest;
use kestrel_engine::EngineError;
use kestrel_types::clock::SECOND;

use super::{Cell, Rows, UsedColumns};
use crate::catalog::Catalog;
use crate::plan::{Column, Selection};

/// The number of column `name`.
const NAME: usize = 0;
/// All others are of the manifest.
const OF_MANIFEST: [usize; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

pub struct VersionRows {
    catalog: Arc<Catalog>,
    /// The next one is the last.
    names: Vec<String>,
    name: String,
    manifest: Option<VersionManifest>,
    /// More than names is asked for.
    reads: bool,
    /// The name was given, so there may be no version of it.
    is_named: bool,
}

impl Rows for VersionRows {
    const SCHEMA: &'static CStr = c"create table versions (
        name text not null,
        id text,
        created integer,
        user integer,
        files integer,
        directories integer,
        bytes integer,
        rows integer,
        tables integer,
        table_bytes integer,
        source_dir integer,
        snapshot text,
        snapshot_id integer,
        snapshot_dir integer,
        snapshot_owned integer,
        created_ns integer hidden,
        primary key (name)) without rowid";
    const COLUMNS: &'static [Column] = &[Column::Version];
    const HAS_TREE: bool = false;

    fn new(catalog: Arc<Catalog>) -> Self {
        let (names, name) = (Vec::new(), String::new());
        Self { catalog, names, name, manifest: None, reads: false, is_named: false }
    }

    fn begin(&mut self, selection: Selection, used: UsedColumns) -> Result<(), EngineError> {
        self.names = self.catalog.names(selection.version.as_deref())?;
        self.names.reverse();
        self.is_named = selection.version.is_some();
        self.reads = used.has(&OF_MANIFEST);
        Ok(())
    }

    fn advance(&mut self) -> Result<bool, EngineError> {
        while let Some(name) = self.names.pop() {
            self.manifest = match self.reads || self.is_named {
                // One that was deleted meanwhile is left out.
                true => match self.catalog.find(&name)? {
                    None => continue,
                    found => found,
                },
                false => None,
            };
            self.name = name;
            return Ok(true);
        }
        Ok(false)
    }

    fn column(&self, column: usize) -> Result<Cell<'_>, EngineError> {
        if column == NAME {
            return Ok(Cell::of(&self.name));
        }
        let Some(one) = &self.manifest else { return Ok(Cell::Null) };
        Ok(match column {
            1 => Cell::of(&one.id),
            2 => Cell::Integer(one.created.div_euclid(SECOND)),
            3 => Cell::Integer(one.user.into()),
            4 => Cell::number(one.figures.files),
            5 => Cell::number(one.figures.directories),
            6 => Cell::number(one.figures.bytes),
            7 => Cell::number(one.rows),
            8 => Cell::number(one.tables() as u64),
            9 => Cell::number(one.table_bytes()),
            10 => Cell::number(one.source.dir),
            11 => Cell::Bytes(one.source.snapshot_name.as_slice().into()),
            12 => Cell::number(one.source.snapshot),
            13 => Cell::number(one.source.snapshot_dir),
            14 => Cell::Integer(one.source.owned.into()),
            15 => Cell::Integer(one.created),
            _ => Cell::Null,
        })
    }
}
