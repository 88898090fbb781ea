//! A walk through the entries of a version, in bounded memory however large it is.
//!
//! A directory is followed by what is below it. Of each directory on the way some rows are ahead,
//! and a cursor is open in the last one only: when the walk is back, it goes on behind the last row
//! that it had.

use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_engine::row_cache::Bytes;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::{PREFIX_LEN, Table};

use crate::range::{NameRange, PathRange, behind};
use crate::version::{CountedRows, OpenVersion, StoredRow, behind_id, encoded};

/// Rows of a directory that are ahead: at first, for a query may end soon, and at most.
const AHEAD_MIN: usize = 16;
const AHEAD_MAX: usize = 1024;

/// The same of directories deeper than this, of which there may be many on the way.
const DEPTH_PLAIN: usize = 32;
const AHEAD_DEEP: usize = 16;

/// Bytes of rows ahead from which on no more are added.
const AHEAD_BYTES: usize = 128 << 10;

/// A directory on the way.
struct Level {
    dir: InodeId,
    /// Length of its path.
    path_len: usize,
    /// The next row is the last one.
    ahead: Vec<StoredRow>,
    /// The encoded key from which on rows are not ahead; none: there are no more.
    from: Option<Vec<u8>>,
    to: Vec<u8>,
    /// Rows that come ahead next time.
    batch: usize,
    rows: Option<CountedRows>,
    /// What the range has of it is known.
    begun: bool,
}

impl Level {
    fn new(dir: InodeId, path_len: usize) -> Self {
        let (from, to) = (Some(encoded(Table::Entry, dir, b"")), behind_id(Table::Entry, dir));
        let (ahead, batch) = (Vec::new(), AHEAD_MIN);
        Self { dir, path_len, ahead, from, to, batch, rows: None, begun: false }
    }

    /// Takes of the directory what `names` says.
    fn begin(&mut self, version: &OpenVersion, names: NameRange) -> Result<(), EngineError> {
        self.begun = true;
        for name in names.single.iter().rev() {
            let found = version.get(Table::Entry, self.dir, name)?;
            let key = encoded(Table::Entry, self.dir, name);
            self.ahead.extend(found.map(|value| (Bytes::from(key), value)));
        }
        self.from = Some(encoded(Table::Entry, self.dir, &names.from));
        if let Some(to) = names.to {
            self.to = encoded(Table::Entry, self.dir, &to);
        }
        Ok(())
    }

    /// Makes sure that the next row is ahead, if there is one.
    fn fill(&mut self, version: &OpenVersion, most: usize) -> Result<(), EngineError> {
        if !self.ahead.is_empty() {
            return Ok(());
        }
        let Some(from) = &self.from else { return Ok(()) };
        let rows = self.rows.get_or_insert_with(|| version.rows(from, &self.to));
        let mut bytes = 0;
        while self.ahead.len() < self.batch.min(most) && bytes < AHEAD_BYTES {
            let Some((key, value)) = rows.next_row()? else {
                self.from = None;
                break;
            };
            bytes += key.len() + value.len();
            self.ahead.push((key, value));
        }
        if let (Some((last, _)), Some(from)) = (self.ahead.last(), &mut self.from) {
            *from = behind(last);
        }
        self.ahead.reverse();
        self.batch = (self.batch * 2).min(AHEAD_MAX);
        Ok(())
    }
}

/// The entry that a cursor is at.
#[derive(Default)]
pub struct CurrentEntry {
    /// The directory's number, 0 of the root.
    pub dir: InodeId,
    /// The path; of a scan in the order of keys the name alone.
    pub path: Vec<u8>,
    /// Where the name begins in it.
    pub name_at: usize,
    /// The value of its row.
    pub value: Bytes,
}

/// See the module's header.
pub struct TreeWalk {
    version: Arc<OpenVersion>,
    range: PathRange,
    /// Directories are entered.
    is_deep: bool,
    levels: Vec<Level>,
}

impl TreeWalk {
    /// Of all paths in a range.
    pub fn of_range(version: Arc<OpenVersion>, range: PathRange) -> Self {
        // The root is the one row of a directory that does not exist.
        let mut top = Level::new(0, 0);
        top.begun = true;
        Self { version, range, is_deep: true, levels: vec![top] }
    }

    /// Of the names of a directory, which has a path of so many bytes.
    pub fn of_children(version: Arc<OpenVersion>, dir: InodeId, path_len: usize) -> Self {
        let mut level = Level::new(dir, path_len);
        level.begun = true;
        Self { version, range: PathRange::default(), is_deep: false, levels: vec![level] }
    }

    /// Goes to the next entry; `false`: there is none. `at` is where the walk was, or the directory
    /// of the names.
    pub fn advance(&mut self, at: &mut CurrentEntry) -> Result<bool, EngineError> {
        let depth = self.levels.len();
        while let Some(level) = self.levels.last_mut() {
            at.path.truncate(level.path_len);
            if level.path_len > 0 {
                at.path.push(b'/');
            }
            if !level.begun {
                level.begin(&self.version, self.range.of_names(&at.path))?;
            }
            level.fill(&self.version, if depth > DEPTH_PLAIN { AHEAD_DEEP } else { AHEAD_MAX })?;
            let Some((key, value)) = level.ahead.pop() else {
                self.levels.pop();
                continue;
            };
            at.dir = level.dir;
            at.name_at = at.path.len();
            at.path.extend_from_slice(key.get(PREFIX_LEN..).unwrap_or_default());
            let is_wanted = self.range.has(&at.path);
            if self.is_deep {
                self.enter(&value, at)?;
            }
            if is_wanted {
                at.value = value;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Goes into the entry if it is a directory that may have paths in the range.
    fn enter(&mut self, value: &[u8], at: &mut CurrentEntry) -> Result<(), EngineError> {
        let (ino, kind) = Entry::peek(value).map_err(self.version.undecoded(at.dir))?;
        let ino = if at.dir == 0 { ROOT } else { ino };
        if kind != Kind::Dir || !self.range.may_have_below(&mut at.path) {
            return Ok(());
        }
        if self.levels.iter().any(|level| level.dir == ino) {
            return Err(self.version.damaged(&format!("directory {ino}"), "it is in itself"));
        }
        if let Some(above) = self.levels.last_mut() {
            above.rows = None;
        }
        self.levels.push(Level::new(ino, at.path.len()));
        Ok(())
    }
}

/// All entries in the order of their keys, which is the fastest way through all of them. Paths are
/// not known on the way.
pub struct KeyScan {
    rows: CountedRows,
}

impl KeyScan {
    /// Of all entries of a version.
    pub fn new(version: &OpenVersion) -> Self {
        let (from, to) = (encoded(Table::Entry, 0, b""), behind_id(Table::Entry, u64::MAX));
        Self { rows: version.rows(&from, &to) }
    }

    /// Goes to the next entry; `false`: there is none.
    pub fn advance(&mut self, at: &mut CurrentEntry) -> Result<bool, EngineError> {
        let Some((key, value)) = self.rows.next_row()? else { return Ok(false) };
        let (head, name) = key.split_at_checked(PREFIX_LEN).unwrap_or_default();
        at.dir = head.get(1..).map_or(0, kestrel_types::key::number_of);
        at.path.clear();
        at.path.extend_from_slice(name);
        (at.name_at, at.value) = (0, value);
        Ok(true)
    }
}
