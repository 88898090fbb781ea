//! Reading raw rows: page by page, and the small values that have no type of their own in
//! `kestrel-types`.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use kestrel_engine::{Engine, EngineError, Mutation};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::ids::InodeId;
use kestrel_types::key::{Key, KeyRef, Table};

/// Rows read ahead at a time.
const PAGE_ROWS: usize = 2048;
/// Bytes of values read ahead at a time; one row may be larger.
const PAGE_BYTES: usize = 4 << 20;

/// A row: its key and its value.
pub type Row = (Key, Box<[u8]>);

/// All rows of a table in key order, in pages, so that several tables can be walked side by side.
pub struct Rows<'a> {
    engine: &'a dyn Engine,
    table: Table,
    from: Option<Key>,
    page: VecDeque<Row>,
    end: bool,
}

impl<'a> Rows<'a> {
    /// The rows of `table`.
    pub fn new(engine: &'a dyn Engine, table: Table) -> Self {
        Self { engine, table, from: None, page: VecDeque::new(), end: false }
    }

    /// The rows of `table` from `(id, suffix)` on.
    pub fn from(engine: &'a dyn Engine, table: Table, id: u64, suffix: &[u8]) -> Self {
        Self { from: Some(Key::new(table, id, suffix)), ..Self::new(engine, table) }
    }

    /// The next row, left in place.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn peek(&mut self) -> Result<Option<&Row>, EngineError> {
        if self.page.is_empty() && !self.end {
            self.fill()?;
        }
        Ok(self.page.front())
    }

    fn fill(&mut self) -> Result<(), EngineError> {
        let mut bytes = 0;
        let page = &mut self.page;
        let mut more = false;
        let from = self.from.as_ref().map(Key::borrow);
        self.engine.scan_table(self.table, from, &mut |key, value| {
            bytes += value.len();
            page.push_back((key.to_owned(), value.into()));
            more = page.len() >= PAGE_ROWS || bytes >= PAGE_BYTES;
            if more { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.end = !more;
        if let Some((last, _)) = self.page.back() {
            let mut suffix = last.suffix.to_vec();
            suffix.push(0);
            self.from = Some(Key::new(last.table, last.id, &suffix));
        }
        Ok(())
    }
}

impl Iterator for Rows<'_> {
    type Item = Result<Row, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.peek() {
            Ok(_) => self.page.pop_front().map(Ok),
            Err(error) => {
                self.end = true;
                Some(Err(error))
            }
        }
    }
}

/// Values of a few rows.
///
/// # Errors
/// Those of the engine.
pub fn get_all(engine: &dyn Engine, keys: &[Key]) -> Result<Vec<Option<Box<[u8]>>>, EngineError> {
    let refs: Vec<KeyRef<'_>> = keys.iter().map(Key::borrow).collect();
    let mut values = vec![None; keys.len()];
    engine.get_many(&refs, &mut |index, row| values[index] = row.value.map(Box::from))?;
    Ok(values)
}

/// Value of one row.
///
/// # Errors
/// Those of the engine.
pub fn get(engine: &dyn Engine, key: Key) -> Result<Option<Box<[u8]>>, EngineError> {
    Ok(get_all(engine, std::slice::from_ref(&key))?.pop().flatten())
}

/// A row's new value.
pub fn put(table: Table, id: u64, suffix: &[u8], value: Box<[u8]>) -> Mutation {
    Mutation { key: Key::new(table, id, suffix), value: Some(value) }
}

/// A row's removal.
pub fn delete(key: &Key) -> Mutation {
    Mutation { key: key.clone(), value: None }
}

/// Version of the values below.
const VERSION: u8 = 1;

/// Version of the number of workers with shares where there are snapshots.
const VERSION_HISTORY: u8 = 2;

/// Where a directory is: the value of table `dirid`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirId {
    /// The directory above.
    pub parent: InodeId,
    /// Its name there.
    pub name: Box<[u8]>,
}

impl DirId {
    /// The row's bytes: version, parent, name.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.parent.to_be_bytes());
        out.extend_from_slice(&self.name);
        out.into_boxed_slice()
    }

    /// Reads what [`DirId::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are truncated or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return Err(DecodeError("place of a directory of an unknown format version"));
        }
        Ok(Self { parent: reader.u64()?, name: reader.rest().into() })
    }
}

/// Bytes of an extended attribute's value within its row.
///
/// # Errors
/// If the row is of a newer version.
pub fn decode_xattr(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    match bytes.split_first() {
        Some((&VERSION, value)) => Ok(value),
        _ => Err(DecodeError("extended attribute of an unknown format version")),
    }
}

/// Row of an extended attribute's value.
pub fn encode_xattr(value: &[u8]) -> Box<[u8]> {
    [&[VERSION], value].concat().into()
}

/// A counter's ceiling: numbers from it on have not been given out.
///
/// # Errors
/// If the row is not one.
pub fn decode_ceiling(bytes: &[u8]) -> Result<u64, DecodeError> {
    let mut reader = Reader::new(bytes);
    if !matches!(reader.u8()?, VERSION | VERSION_HISTORY) {
        return Err(DecodeError("counter of an unknown format version"));
    }
    let ceiling = reader.u64()?;
    reader.end()?;
    Ok(ceiling)
}

/// Row of the number of workers with shares, as it is where there are snapshots: programs that do
/// not know them refuse the volume.
pub fn encode_shares_with_history(shares: u64) -> Box<[u8]> {
    let mut out = encode_ceiling(shares);
    out[0] = VERSION_HISTORY;
    out
}

/// Row of a counter's ceiling.
pub fn encode_ceiling(ceiling: u64) -> Box<[u8]> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&ceiling.to_be_bytes());
    out.into_boxed_slice()
}

/// Row of the ceiling of inode numbers.
pub const INODES: &[u8] = b"inodes";
/// Row of the ceiling of object numbers.
pub const OBJECTS: &[u8] = b"objects";
/// Row of the volume's sums, present only after a clean stop.
pub const USAGE: &[u8] = b"usage";
/// Row of the ceiling of commit timestamps.
pub const CLOCK: &[u8] = b"clock";
/// Row of the longest lease that a client across a network may believe in, nanoseconds.
pub const LEASE: &[u8] = b"lease";
/// Row of how often one of several nodes was started.
pub const EPOCH: &[u8] = b"epoch";
/// Row of how many workers have shares.
pub const SHARES: &[u8] = b"shares";

/// Most workers a node has.
pub const WORKERS_MAX: u32 = 64;

/// Sums of a clean stop: files, directories, bytes.
///
/// # Errors
/// If the row is not one.
pub fn decode_usage(bytes: &[u8]) -> Result<[i64; 3], DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != VERSION {
        return Err(DecodeError("sums of an unknown format version"));
    }
    let sums = [reader.i64()?, reader.i64()?, reader.i64()?];
    reader.end()?;
    Ok(sums)
}

/// Row of such sums.
pub fn encode_usage(sums: [i64; 3]) -> Box<[u8]> {
    let mut out = vec![VERSION];
    sums.iter().for_each(|sum| out.extend_from_slice(&sum.to_be_bytes()));
    out.into_boxed_slice()
}

/// A name as people read it: bytes that are not printable as `\xNN`.
pub fn readable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' {
                let mut utf8 = [0; 4];
                c.encode_utf8(&mut utf8)
                    .bytes()
                    .for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
            } else {
                out.push(c);
            }
        }
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use kestrel_engine::BatchKind;
    use kestrel_engine::memory::{MemoryEngine, SyncWhen};

    #[test]
    fn rows_come_all_and_in_order_across_pages() {
        let engine = MemoryEngine::new(SyncWhen::Asked);
        let rows = PAGE_ROWS as u64 * 2 + 5;
        let batch = (0..rows)
            .map(|i| put(Table::Entry, i / 7, &[(i % 7) as u8], Box::new([1; 10])))
            .collect();
        engine.commit(BatchKind::Growing, batch).unwrap();
        engine
            .commit(BatchKind::Growing, vec![put(Table::DirStat, 1, b"x", Box::new([]))])
            .unwrap();
        let keys: Vec<Key> = Rows::new(&engine, Table::Entry).map(|row| row.unwrap().0).collect();
        assert_eq!(keys.len() as u64, rows);
        assert!(keys.is_sorted() && keys.iter().all(|key| key.table == Table::Entry));
        assert_eq!(Rows::from(&engine, Table::Entry, 3, b"\x06").next().unwrap().unwrap().0.id, 3);
    }

    #[test]
    fn names_are_readable_whatever_their_bytes() {
        assert_eq!(readable("grün\n\\".as_bytes()), "grün\\x0a\\x5c");
        assert_eq!(readable(b"a\xffb"), "a\\xffb");
    }

    #[test]
    fn small_values_survive_a_round_trip() {
        let dir_id = DirId { parent: 7, name: b"x\xff".as_slice().into() };
        assert_eq!(DirId::decode(&dir_id.encode()), Ok(dir_id));
        assert_eq!(decode_ceiling(&encode_ceiling(9)), Ok(9));
        assert_eq!(decode_usage(&encode_usage([1, -2, 3])), Ok([1, -2, 3]));
        assert_eq!(decode_xattr(&encode_xattr(b"v")), Ok(&b"v"[..]));
        for bad in [&b""[..], b"\x02", b"\x01\0"] {
            assert!(DirId::decode(bad).is_err() && decode_ceiling(bad).is_err());
        }
    }
}
