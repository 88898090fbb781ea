//! The rows of one batch: what was fetched, and what the batch's operations made of it so far.
//!
//! | file | what it has |
//! | --- | --- |
//! | `rows/locked.rs` | rows of other nodes: lent to this batch, or not to be had here |
//! | `rows/scan.rs` | ranges of rows |
//!
//! Operations never see the engine. They read and write *cells*, found by key; a cell that nobody
//! has fetched yet is *wanted* and the operation runs again once it is there. Changes stay here
//! until the batch commits, so a later operation of the batch sees what an earlier one did. Values
//! are decoded at most once a batch and encoded at most once.
//!
//! A journal undoes the changes of an operation that stopped half-way, so an operation happens
//! wholly or not at all.

mod locked;
mod scan;

use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::extent::ExtentList;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{Key, KeyRef, Table, number_of};
use kestrel_types::placement::hash_entry;
use kestrel_types::stat::{DirStat, ObjStat};
use rustc_hash::FxHashMap;

use kestrel_engine::{Engine, EngineError, Mutation};
use locked::RowBlocked;

pub use locked::{Missing, Scope, Span, SpanRows, TxnRows};
pub use scan::is_full;

/// Index of a cell within its batch.
pub type CellId = u32;

/// Content of a cell.
#[derive(Debug, Clone)]
pub enum Value {
    /// Not fetched yet.
    Wanted,
    /// Not to be had here: it is another node's, or lent.
    Barred(RowBlocked),
    /// No such row.
    Absent,
    /// As fetched: a stretch of the batch's buffer.
    Raw(u32, u32),
    /// A row of table `entry`.
    Entry(Entry),
    /// A row of table `link`.
    Inode(Inode),
    /// A row of table `dirstat`.
    DirStat(DirStat),
    /// A row of table `objstat`.
    ObjStat(ObjStat),
    /// A row of table `chunk`.
    Extents(ExtentList),
    /// A row without a type of its own.
    Bytes(Box<[u8]>),
}

#[derive(Debug)]
struct Cell {
    id: u64,
    hash: u64,
    suffix: u32,
    suffix_len: u16,
    table: Table,
    dirty: bool,
    /// The engine may hold such a row (so a deletion has to be written).
    stored: bool,
    /// Position to wait for before anybody may see what the engine said; 0 if durable.
    changed_at: Position,
    value: Value,
}

struct Undo {
    cell: CellId,
    dirty: bool,
    value: Value,
}

/// Cells by key. Cleared, not freed, between batches.
#[derive(Default)]
pub struct BatchRows {
    cells: Vec<Cell>,
    /// Open addressing over `cells`: cell number + 1, or 0 for a free slot. A power of two, at most
    /// half full.
    index: Vec<u32>,
    suffixes: Vec<u8>,
    values: Vec<u8>,
    wanted: Vec<CellId>,
    journal: Vec<Undo>,
    /// Cells of tables that operations list by inode, whatever their content.
    groups: FxHashMap<(Table, u64), Vec<CellId>>,
    /// First suffix from which on all rows of `(table, id)` are here.
    scanned: FxHashMap<(Table, u64), u64>,
    /// Of `(table, id)` only a part is here: all rows from the first suffix up to, but without, the
    /// second.
    partial: FxHashMap<(Table, u64), (u64, u64)>,
    /// Of `(table, id)` nothing is to be had here.
    barred: FxHashMap<(Table, u64), RowBlocked>,
    wanted_scans: Vec<(Table, u64, u64)>,
    dirty_cells: usize,
}

/// What an entry or an inode in table `link` is to quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// The inode.
    pub ino: InodeId,
    /// It is a directory.
    pub is_dir: bool,
    /// User and group that own it; `None` of a name with its inode in table `link`.
    pub owner: Option<(u32, u32)>,
    /// Its size; nothing of a directory, and of a name with its inode in table `link`.
    pub bytes: i64,
}

impl Counted {
    /// Of an entry.
    pub fn of_entry(entry: &Entry) -> Self {
        match entry {
            Entry::Inode(inode) => Self::of_inode(inode),
            Entry::Link { ino, .. } => Self { ino: *ino, is_dir: false, owner: None, bytes: 0 },
        }
    }

    /// Of an inode.
    pub fn of_inode(inode: &Inode) -> Self {
        let is_dir = inode.kind == Kind::Dir;
        let bytes = if is_dir { 0 } else { inode.size.cast_signed() };
        Self { ino: inode.ino, is_dir, owner: Some((inode.uid, inode.gid)), bytes }
    }
}

/// A change of an entry or of an inode in table `link`.
#[derive(Debug, Clone, Copy)]
pub struct CountedChange {
    /// The directory of the entry; `None`: an inode in table `link`.
    pub dir: Option<InodeId>,
    /// What was there.
    pub old: Option<Counted>,
    /// What is there now.
    pub new: Option<Counted>,
}

/// A name of which the row changed: the inodes, and their types, that it stood for and stands for.
#[derive(Debug, Clone)]
pub struct NameChange {
    /// The directory.
    pub dir: InodeId,
    /// The name.
    pub name: Box<[u8]>,
    /// Before.
    pub old: Option<(InodeId, Kind)>,
    /// Now.
    pub new: Option<(InodeId, Kind)>,
}

/// Most bytes that one batch may read. A batch above it runs again one by one; an operation that
/// needs more alone fails.
const READ_BYTES_MAX: usize = 1 << 30;

/// Most rows of one file that a scan takes in: what needs more is done in several batches.
pub const SCAN_ROWS_MAX: usize = 8192;

/// Buffers above this are given back after a batch that needed them.
const KEEP_BYTES: usize = 4 << 20;

fn is_grouped(table: Table) -> bool {
    matches!(table, Table::Xattr | Table::Chunk | Table::Sweep)
}

/// Key suffix of a worker's share.
pub fn share_suffix(worker: usize) -> [u8; 2] {
    (worker as u16).to_be_bytes()
}

impl BatchRows {
    /// Forgets everything.
    pub fn clear(&mut self) {
        let nothing_scanned =
            self.scanned.is_empty() && self.partial.is_empty() && self.barred.is_empty();
        if self.cells.is_empty() && nothing_scanned {
            return;
        }
        if self.values.capacity() > KEEP_BYTES || self.cells.capacity() > 1 << 15 {
            *self = Self::default();
            return;
        }
        if self.cells.len() * 8 < self.index.len() {
            let mask = self.index.len() - 1;
            for cell in &self.cells {
                // The probe sequence of a cell ends at its own slot; all slots before it belong to
                // other cells.
                let mut at = cell.hash as usize & mask;
                while self.index[at] != 0 {
                    self.index[at] = 0;
                    at = (at + 1) & mask;
                }
            }
            debug_assert!(self.index.iter().all(|slot| *slot == 0));
        } else {
            self.index.fill(0);
        }
        self.cells.clear();
        self.suffixes.clear();
        self.values.clear();
        self.wanted.clear();
        self.journal.clear();
        self.groups.clear();
        self.scanned.clear();
        self.partial.clear();
        self.barred.clear();
        self.wanted_scans.clear();
        self.dirty_cells = 0;
    }

    fn suffix_of(&self, cell: &Cell) -> &[u8] {
        &self.suffixes[cell.suffix as usize..][..usize::from(cell.suffix_len)]
    }

    /// The cell of a key; new ones are wanted.
    #[inline]
    pub fn cell(&mut self, table: Table, id: u64, suffix: &[u8]) -> CellId {
        self.cell_hashed(table, id, suffix, hash_entry(id, suffix))
    }

    /// As [`BatchRows::cell`], with the [`hash_entry`] of `id` and `suffix`.
    pub fn cell_hashed(&mut self, table: Table, id: u64, suffix: &[u8], hash: u64) -> CellId {
        let hash = hash ^ (table as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if self.cells.len() * 2 >= self.index.len() {
            self.grow();
        }
        let mask = self.index.len() - 1;
        let mut at = hash as usize & mask;
        while self.index[at] != 0 {
            let number = self.index[at] - 1;
            let cell = &self.cells[number as usize];
            if cell.hash == hash
                && cell.table == table
                && cell.id == id
                && self.suffix_of(cell) == suffix
            {
                return number;
            }
            at = (at + 1) & mask;
        }
        let number = self.cells.len() as CellId;
        self.index[at] = number + 1;
        let start = self.suffixes.len() as u32;
        self.suffixes.extend_from_slice(suffix);
        self.cells.push(Cell {
            id,
            hash,
            suffix: start,
            suffix_len: suffix.len() as u16,
            table,
            dirty: false,
            stored: true,
            changed_at: 0,
            value: Value::Wanted,
        });
        let known_absent = is_grouped(table) && {
            self.groups.entry((table, id)).or_default().push(number);
            let first = self.scanned.get(&(table, id));
            first.is_some_and(|first| table != Table::Chunk || number_of(suffix) >= *first)
        };
        if known_absent {
            self.cells[number as usize].value = Value::Absent;
            self.cells[number as usize].stored = false;
        } else {
            self.wanted.push(number);
        }
        number
    }

    fn grow(&mut self) {
        let size = (self.index.len() * 2).max(64);
        self.index.clear();
        self.index.resize(size, 0);
        for (number, cell) in self.cells.iter().enumerate() {
            let mut at = cell.hash as usize & (size - 1);
            while self.index[at] != 0 {
                at = (at + 1) & (size - 1);
            }
            self.index[at] = number as u32 + 1;
        }
    }

    /// Wants the rows of `(table, id)` with a suffix that, read as a number, is at least `first`,
    /// of table `chunk` as many as one batch may take; of the other tables all.
    pub fn want_all(&mut self, table: Table, id: u64, first: u64) {
        debug_assert!(is_grouped(table));
        let have = self.scanned.get(&(table, id)).is_some_and(|have| *have <= first);
        if !have && self.left_out(table, id, first).is_none() && !self.is_barred(table, id) {
            self.wanted_scans.push((table, id, first));
        }
    }

    /// After [`BatchRows::want_all`] from `first` on: the first row that was one too many, if there
    /// were too many.
    pub fn left_out(&self, table: Table, id: u64, first: u64) -> Option<u64> {
        self.partial.get(&(table, id)).filter(|(from, _)| *from == first).map(|(_, next)| *next)
    }

    /// Cells of `(table, id)` in the order of their suffixes, absent ones among them. Complete only
    /// from where [`BatchRows::want_all`] asked for.
    pub fn group(&self, table: Table, id: u64) -> Vec<CellId> {
        let mut cells = self.groups.get(&(table, id)).cloned().unwrap_or_default();
        cells.sort_by(|a, b| self.suffix(*a).cmp(self.suffix(*b)));
        cells
    }

    /// A cell's key suffix.
    pub fn suffix(&self, cell: CellId) -> &[u8] {
        self.suffix_of(&self.cells[cell as usize])
    }

    /// Whether something is wanted that is not here yet.
    pub fn lacks(&self) -> bool {
        !self.wanted.is_empty() || !self.wanted_scans.is_empty()
    }

    /// Fetches what is wanted, of the chunks of a file at most `most`. Of several nodes' rows those
    /// that are to be had here; the others are barred.
    pub fn fetch(
        &mut self,
        engine: &dyn Engine,
        scope: Option<Scope<'_>>,
        most: usize,
    ) -> Result<(), EngineError> {
        if let Some(scope) = scope {
            self.bar(scope);
        }
        let wanted = std::mem::take(&mut self.wanted);
        let mut keys = Vec::with_capacity(wanted.len());
        for number in &wanted {
            let cell = &self.cells[*number as usize];
            let suffix = &self.suffixes[cell.suffix as usize..][..usize::from(cell.suffix_len)];
            keys.push(KeyRef::new(cell.table, cell.id, suffix));
        }
        let (values, mut seen) = (&mut self.values, Vec::with_capacity(wanted.len()));
        let mut too_much = false;
        engine.get_many(&keys, &mut |index, row| {
            too_much |= values.len() + row.value.map_or(0, <[u8]>::len) > READ_BYTES_MAX;
            let value = row.value.filter(|_| !too_much).map(|bytes| {
                let start = values.len() as u32;
                values.extend_from_slice(bytes);
                (start, bytes.len() as u32)
            });
            seen.push((index, value, row.changed_at));
        })?;
        drop(keys);
        if too_much {
            return Err(too_large());
        }
        for (index, value, changed_at) in seen {
            let cell = &mut self.cells[wanted[index] as usize];
            if matches!(cell.value, Value::Wanted) {
                cell.stored = value.is_some();
                cell.value = value.map_or(Value::Absent, |(start, len)| Value::Raw(start, len));
                cell.changed_at = changed_at;
            }
        }
        self.wanted = wanted;
        self.wanted.clear();
        while let Some((table, id, first)) = self.wanted_scans.pop() {
            self.scan(engine, table, id, first, most)?;
        }
        Ok(())
    }

    /// Whether an earlier operation of this batch changed the cell, and the position to wait for
    /// before anybody may see what was read from the engine.
    pub fn provenance(&self, cell: CellId) -> (bool, Position) {
        let cell = &self.cells[cell as usize];
        (cell.dirty, cell.changed_at)
    }

    /// Whether the cell has not been fetched.
    #[inline]
    pub fn is_wanted(&self, cell: CellId) -> bool {
        matches!(self.cells[cell as usize].value, Value::Wanted | Value::Barred(_))
    }

    /// Whether the row exists.
    pub fn exists(&self, cell: CellId) -> bool {
        debug_assert!(!matches!(self.cells[cell as usize].value, Value::Wanted));
        !matches!(self.cells[cell as usize].value, Value::Absent | Value::Wanted | Value::Barred(_))
    }

    /// A row of table `entry`.
    pub fn entry(&mut self, cell: CellId) -> Result<Option<&Entry>, DecodeError> {
        let value = &mut self.cells[cell as usize].value;
        if let Value::Raw(start, len) = *value {
            *value = Value::Entry(Entry::decode(&self.values[start as usize..][..len as usize])?);
        }
        Ok(if let Value::Entry(entry) = value { Some(entry) } else { None })
    }

    /// A row of table `link`.
    pub fn inode(&mut self, cell: CellId) -> Result<Option<&Inode>, DecodeError> {
        let value = &mut self.cells[cell as usize].value;
        if let Value::Raw(start, len) = *value {
            let mut reader = Reader::new(&self.values[start as usize..][..len as usize]);
            let inode = Inode::decode(&mut reader)?;
            reader.end()?;
            *value = Value::Inode(inode);
        }
        Ok(if let Value::Inode(inode) = value { Some(inode) } else { None })
    }

    /// A share of a directory; zeros if it does not exist.
    pub fn dir_stat(&mut self, cell: CellId) -> Result<DirStat, DecodeError> {
        let value = &mut self.cells[cell as usize].value;
        if let Value::Raw(start, len) = *value {
            *value =
                Value::DirStat(DirStat::decode(&self.values[start as usize..][..len as usize])?);
        }
        Ok(if let Value::DirStat(stat) = value { *stat } else { DirStat::default() })
    }

    /// A share of an object; zero if it does not exist.
    pub fn obj_stat(&mut self, cell: CellId) -> Result<ObjStat, DecodeError> {
        let value = &mut self.cells[cell as usize].value;
        if let Value::Raw(start, len) = *value {
            *value =
                Value::ObjStat(ObjStat::decode(&self.values[start as usize..][..len as usize])?);
        }
        Ok(if let Value::ObjStat(stat) = value { *stat } else { ObjStat::default() })
    }

    /// Extents of a chunk; none if the row does not exist.
    pub fn extents(&mut self, cell: CellId) -> Result<&ExtentList, DecodeError> {
        static NONE: ExtentList = ExtentList::new();
        let value = &mut self.cells[cell as usize].value;
        if let Value::Raw(start, len) = *value {
            let mut reader = Reader::new(&self.values[start as usize..][..len as usize]);
            let list = ExtentList::decode(&mut reader)?;
            reader.end()?;
            *value = Value::Extents(list);
        }
        Ok(if let Value::Extents(list) = value { list } else { &NONE })
    }

    /// Bytes of a row that is never decoded to another type.
    pub fn bytes(&self, cell: CellId) -> Option<&[u8]> {
        match &self.cells[cell as usize].value {
            Value::Raw(start, len) => Some(&self.values[*start as usize..][..*len as usize]),
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Changes a row. A cell that was not fetched is written blindly.
    pub fn put(&mut self, cell: CellId, value: Value) {
        debug_assert!(!matches!(value, Value::Wanted | Value::Raw(..)));
        let target = &mut self.cells[cell as usize];
        let old = std::mem::replace(&mut target.value, value);
        if matches!(old, Value::Wanted) {
            self.wanted.retain(|wanted| *wanted != cell);
        }
        self.journal.push(Undo { cell, dirty: target.dirty, value: old });
        self.dirty_cells += usize::from(!target.dirty);
        target.dirty = true;
    }

    /// Adds what the operation that runs has changed of entries and inodes, each once; the root is
    /// left out.
    ///
    /// # Errors
    /// If a row is damaged.
    pub fn counted_changes(&self, changes: &mut Vec<CountedChange>) -> Result<(), DecodeError> {
        for (at, undo) in self.journal.iter().enumerate() {
            let cell = &self.cells[undo.cell as usize];
            let is_counted = match cell.table {
                Table::Entry => cell.id != 0,
                table => table == Table::Link,
            };
            if !is_counted || self.journal[..at].iter().any(|earlier| earlier.cell == undo.cell) {
                continue;
            }
            let change = CountedChange {
                dir: (cell.table == Table::Entry).then_some(cell.id),
                old: self.counted(cell.table, &undo.value)?,
                new: self.counted(cell.table, &cell.value)?,
            };
            if change.old != change.new {
                changes.push(change);
            }
        }
        Ok(())
    }

    fn counted(&self, table: Table, value: &Value) -> Result<Option<Counted>, DecodeError> {
        Ok(match value {
            Value::Entry(entry) => Some(Counted::of_entry(entry)),
            Value::Inode(inode) => Some(Counted::of_inode(inode)),
            Value::Raw(start, len) => {
                let row = &self.values[*start as usize..][..*len as usize];
                Some(match table {
                    Table::Entry => Counted::of_entry(&Entry::decode(row)?),
                    _ => Counted::of_inode(&Inode::decode(&mut Reader::new(row))?),
                })
            }
            // What was written without being read is new.
            _ => None,
        })
    }

    /// The names of which the operation that ran has changed the rows, without the root's.
    ///
    /// # Errors
    /// If a row is damaged.
    pub fn name_changes(&self) -> Result<Vec<NameChange>, DecodeError> {
        let mut changes = Vec::new();
        for (at, undo) in self.journal.iter().enumerate() {
            let cell = &self.cells[undo.cell as usize];
            let earlier = |undone: &Undo| undone.cell == undo.cell;
            if cell.table != Table::Entry || cell.id == 0 || self.journal[..at].iter().any(earlier)
            {
                continue;
            }
            let name = self.suffix_of(cell).into();
            let (old, new) = (self.named(&undo.value)?, self.named(&cell.value)?);
            changes.push(NameChange { dir: cell.id, name, old, new });
        }
        Ok(changes)
    }

    fn named(&self, value: &Value) -> Result<Option<(InodeId, Kind)>, DecodeError> {
        match value {
            Value::Entry(entry) => Ok(Some((entry.ino(), entry.kind()))),
            Value::Raw(start, len) => {
                Entry::peek(&self.values[*start as usize..][..*len as usize]).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Whether the operation that ran has changed the row of a file in table `link`.
    pub fn is_changed_link(&self, ino: InodeId) -> bool {
        self.journal.iter().any(|undo| {
            let cell = &self.cells[undo.cell as usize];
            cell.table == Table::Link && cell.id == ino
        })
    }

    /// Whether the operation that ran has changed anything.
    #[inline]
    pub fn has_changes(&self) -> bool {
        !self.journal.is_empty()
    }

    /// The operation that ran is complete: its changes stay. Whether there were any.
    #[inline]
    pub fn keep(&mut self) -> bool {
        let changed = !self.journal.is_empty();
        self.journal.clear();
        changed
    }

    /// Undoes what the operation that ran has changed.
    pub fn rollback(&mut self) {
        while let Some(undo) = self.journal.pop() {
            let cell = &mut self.cells[undo.cell as usize];
            if matches!(undo.value, Value::Wanted) {
                self.wanted.push(undo.cell);
            }
            cell.value = undo.value;
            self.dirty_cells -= usize::from(cell.dirty && !undo.dirty);
            cell.dirty = undo.dirty;
        }
    }

    /// Whether any row changed.
    pub fn is_dirty(&self) -> bool {
        self.dirty_cells > 0
    }

    /// What the batch changed, one mutation a row, with room for `more`.
    pub fn mutations(&self, more: usize) -> Vec<Mutation> {
        let mut out = Vec::with_capacity(self.dirty_cells + more);
        for cell in self.cells.iter().filter(|cell| cell.dirty) {
            let value = match &cell.value {
                Value::Wanted | Value::Barred(_) | Value::Raw(..) => {
                    unreachable!("a changed cell has a decoded value")
                }
                Value::Absent if !cell.stored => continue,
                Value::Absent => None,
                Value::Entry(entry) => Some(entry.encode()),
                Value::Inode(inode) => {
                    let mut bytes = Vec::with_capacity(80);
                    inode.encode_into(&mut bytes);
                    Some(bytes.into_boxed_slice())
                }
                Value::DirStat(stat) => Some(stat.encode()),
                Value::ObjStat(stat) => Some(stat.encode()),
                Value::Extents(list) => {
                    let mut bytes = Vec::new();
                    list.encode_into(&mut bytes);
                    Some(bytes.into_boxed_slice())
                }
                Value::Bytes(bytes) => Some(bytes.clone()),
            };
            out.push(Mutation { key: Key::new(cell.table, cell.id, self.suffix_of(cell)), value });
        }
        out
    }
}

#[cold]
fn too_large() -> EngineError {
    EngineError::Io("metadata: a batch would read more than 1 GiB of rows".into())
}
