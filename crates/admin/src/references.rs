//! Everything that refers to stored bytes.

use kestrel_engine::{Engine, EngineError};
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::extent::{ExtentList, Source};
use kestrel_types::inode::{Data, Inode};
use kestrel_types::key::{Key, Table};
use kestrel_types::range::Range;
use kestrel_types::snapshot::{decode_history, decode_history_key};

use crate::rows::Rows;

/// One reference.
#[derive(Debug, Clone, Copy)]
pub struct Reference<'a> {
    /// The row it stands in: of table `entry`, `link`, `chunk` or `history`.
    pub row: &'a Key,
    /// Stored bytes.
    pub range: Range,
    /// Bytes it counts for in `objstat` (`kestrel_types::extent`, "Accounting").
    pub bytes: u32,
}

/// A reference, or a row that cannot be decoded and so may hide some.
pub enum Seen<'a> {
    /// A reference.
    Reference(Reference<'a>),
    /// A row that cannot be decoded.
    Damaged(&'a Key),
}

/// Tables with rows that refer to stored bytes.
pub const TABLES: [Table; 4] = [Table::Entry, Table::Link, Table::Chunk, Table::History];

/// Walks all references in the order of their rows.
///
/// # Errors
/// Those of the engine.
pub fn for_each(engine: &dyn Engine, visit: &mut dyn FnMut(Seen<'_>)) -> Result<(), EngineError> {
    for table in TABLES {
        for row in Rows::new(engine, table) {
            let (key, value) = row?;
            of_row(&key, &value, visit);
        }
    }
    Ok(())
}

/// The references of one row; a row of a table that has none has none.
pub fn of_row(key: &Key, value: &[u8], visit: &mut dyn FnMut(Seen<'_>)) {
    if key.table != Table::History {
        return of_value((key, key.table), value, visit);
    }
    // What a row was at a snapshot: its value holds the references.
    match decode_history_key(key.borrow()).zip(decode_history(value).ok()) {
        Some(((of, _), Some(old))) => of_value((key, of.table), old, visit),
        Some((_, None)) => {}
        None => visit(Seen::Damaged(key)),
    }
}

/// The references of a row of a table that has or had this value.
fn of_value((key, table): (&Key, Table), value: &[u8], visit: &mut dyn FnMut(Seen<'_>)) {
    let inode = match table {
        Table::Chunk => {
            let Some(list) = decode_all(value, ExtentList::decode) else {
                return visit(Seen::Damaged(key));
            };
            for extent in list.extents() {
                if let Source::Stored { range, .. } = extent.source {
                    visit(Seen::Reference(Reference { row: key, range, bytes: extent.len }));
                }
            }
            return;
        }
        Table::Link => decode_all(value, Inode::decode),
        Table::Entry => match Entry::decode(value) {
            Ok(Entry::Inode(inode)) => Some(inode),
            Ok(Entry::Link { .. }) => return,
            Err(_) => None,
        },
        _ => return,
    };
    match inode.map(|inode| inode.data) {
        Some(Data::Packed { range, .. }) => {
            visit(Seen::Reference(Reference { row: key, range, bytes: range.len }));
        }
        Some(_) => {}
        None => visit(Seen::Damaged(key)),
    }
}

/// Reads a value that must be nothing but what `decode` reads.
pub fn decode_all<T>(
    bytes: &[u8],
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T, kestrel_types::codec::DecodeError>,
) -> Option<T> {
    let mut reader = Reader::new(bytes);
    let value = decode(&mut reader).ok()?;
    reader.end().ok().map(|()| value)
}
