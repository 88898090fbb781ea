//! The virtual tables as SQLite sees them.
//!
//! | file | table |
//! | --- | --- |
//! | `versions` | the versions of the volume |
//! | `entries` | names of their trees, with attributes |
//! | `xattrs` | extended attributes |
//!
//! A table says which of its columns has which meaning for push-down, and goes through rows; all
//! that SQLite wants beside is here. The tables have no row numbers, but a primary key.

mod entries;
mod versions;
mod xattrs;

use std::borrow::Cow;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::sync::Arc;

use kestrel_engine::EngineError;
use rusqlite::Connection;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::vtab::{
    Context, Filters, IndexFlags, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor,
    sqlite3_vtab, sqlite3_vtab_cursor,
};

use crate::catalog::Catalog;
use crate::plan::{Column, Plan, Selection, Term};

use entries::EntryRows;
use versions::VersionRows;
use xattrs::XattrRows;

/// Columns that a query uses, a bit each. Tables have fewer than 31.
#[derive(Clone, Copy)]
struct UsedColumns(u32);

impl UsedColumns {
    /// Whether one of these columns is used.
    fn has(self, columns: &[usize]) -> bool {
        columns.iter().any(|column| self.0 & (1 << column) != 0)
    }
}

/// The rows of a table.
trait Rows: Sized {
    /// The columns.
    const SCHEMA: &'static CStr;
    /// The meaning of the first columns.
    const COLUMNS: &'static [Column];
    /// Rows are those of trees.
    const HAS_TREE: bool = true;

    /// Nothing is selected yet.
    fn new(catalog: Arc<Catalog>) -> Self;

    /// Begins with what is selected; [`Rows::advance`] comes next.
    fn begin(&mut self, selection: Selection, used: UsedColumns) -> Result<(), EngineError>;

    /// Goes to the next row; `false`: there is none.
    fn advance(&mut self) -> Result<bool, EngineError>;

    /// A column of the row.
    fn column(&self, column: usize) -> Result<Cell<'_>, EngineError>;
}

/// A value of a column.
enum Cell<'a> {
    Null,
    Integer(i64),
    /// TEXT if it is UTF-8, else a BLOB.
    Bytes(Cow<'a, [u8]>),
}

impl<'a> Cell<'a> {
    fn of(text: &'a str) -> Self {
        Self::Bytes(text.as_bytes().into())
    }

    /// A number that has no sign; the largest ones become negative.
    fn number(number: u64) -> Self {
        Self::Integer(number.cast_signed())
    }
}

/// TEXT if it is, and if SQLite's functions take it so: they end at a zero byte.
fn text_or_blob(bytes: &[u8]) -> ValueRef<'_> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => ValueRef::Text(bytes),
        _ => ValueRef::Blob(bytes),
    }
}

#[repr(C)]
struct SqlTable<R> {
    base: sqlite3_vtab,
    catalog: Arc<Catalog>,
    rows: PhantomData<R>,
}

// SAFETY: the struct has the layout of C and begins with SQLite's own.
unsafe impl<'vtab, R: Rows + 'vtab> VTab<'vtab> for SqlTable<R> {
    type Aux = Arc<Catalog>;
    type Cursor = SqlCursor<R>;

    fn connect(
        db: &mut VTabConnection,
        aux: Option<&Self::Aux>,
        _module: &[u8],
        _database: &[u8],
        _table: &[u8],
        _arguments: &[&[u8]],
    ) -> rusqlite::Result<(Cow<'static, CStr>, Self)> {
        let lost = || rusqlite::Error::ModuleError("there are no versions behind the table".into());
        let catalog = aux.ok_or_else(lost)?.clone();
        db.config(VTabConfig::Innocuous)?;
        let table = Self { base: sqlite3_vtab::default(), catalog, rows: PhantomData };
        Ok((R::SCHEMA.into(), table))
    }

    fn best_index(&self, info: &mut IndexInfo) -> rusqlite::Result<bool> {
        let mut offered = Vec::new();
        for (number, constraint) in info.constraints().enumerate() {
            let column = usize::try_from(constraint.column()).ok();
            let column = column.and_then(|column| R::COLUMNS.get(column));
            let term = column.and_then(|column| Term::of(*column, &constraint.operator()));
            if let Some(term) = term.filter(|_| constraint.is_usable())
                && info.collation(number)? == "BINARY"
            {
                offered.push((number, term));
            }
        }
        let plan = Plan::of(&offered, R::HAS_TREE);
        for (argument, number) in (1..).zip(&plan.used) {
            info.constraint_usage(*number).set_argv_index(argument);
        }
        let used = info.col_used() as u32 & i32::MAX.cast_unsigned();
        info.set_idx_num(used.cast_signed());
        info.set_idx_str(&plan.terms);
        info.set_estimated_cost(plan.cost);
        info.set_estimated_rows(plan.rows);
        if plan.is_unique {
            info.set_idx_flags(IndexFlags::SQLITE_INDEX_SCAN_UNIQUE);
        }
        Ok(true)
    }

    fn open(&'vtab mut self) -> rusqlite::Result<Self::Cursor> {
        let (base, catalog) = (sqlite3_vtab_cursor::default(), self.catalog.clone());
        Ok(SqlCursor { base, rows: R::new(catalog.clone()), catalog, is_over: true })
    }
}

#[repr(C)]
struct SqlCursor<R> {
    base: sqlite3_vtab_cursor,
    rows: R,
    catalog: Arc<Catalog>,
    is_over: bool,
}

// SAFETY: the struct has the layout of C and begins with SQLite's own.
unsafe impl<R: Rows> VTabCursor for SqlCursor<R> {
    fn filter(
        &mut self,
        used: c_int,
        terms: Option<&str>,
        values: &Filters<'_>,
    ) -> rusqlite::Result<()> {
        let selection = Selection::of(terms.unwrap_or_default(), values.iter());
        let Some(selection) = selection else {
            self.is_over = true;
            return Ok(());
        };
        let begun = self.rows.begin(selection, UsedColumns(used.cast_unsigned()));
        begun.map_err(|why| self.catalog.fail(&why))?;
        self.next()
    }

    fn next(&mut self) -> rusqlite::Result<()> {
        let is_there = self.rows.advance().map_err(|why| self.catalog.fail(&why))?;
        self.is_over = !is_there;
        Ok(())
    }

    fn eof(&self) -> bool {
        self.is_over
    }

    fn column(&self, context: &mut Context, column: c_int) -> rusqlite::Result<()> {
        let column = usize::try_from(column).unwrap_or(usize::MAX);
        let cell = self.rows.column(column).map_err(|why| self.catalog.fail(&why))?;
        let value = match &cell {
            Cell::Null => ValueRef::Null,
            Cell::Integer(number) => ValueRef::Integer(*number),
            Cell::Bytes(bytes) => text_or_blob(bytes),
        };
        context.set_result(ToSqlOutput::Borrowed(value))
    }

    fn rowid(&self) -> rusqlite::Result<i64> {
        Err(rusqlite::Error::ModuleError("the table has no row numbers".into()))
    }
}

/// Makes the tables known to a connection.
pub fn register(connection: &Connection, catalog: &Arc<Catalog>) -> rusqlite::Result<()> {
    register_one::<VersionRows>(connection, c"versions", catalog)?;
    register_one::<EntryRows>(connection, c"entries", catalog)?;
    register_one::<XattrRows>(connection, c"xattrs", catalog)
}

fn register_one<R: Rows + 'static>(
    connection: &Connection,
    name: &CStr,
    catalog: &Arc<Catalog>,
) -> rusqlite::Result<()> {
    let module = const { &Module::<SqlTable<R>>::eponymous_only_module().without_rowid() };
    connection.create_module(name, module, Some(catalog.clone()))
}
