//! A version that queries read: look-ups by path, and ranges of its rows.

use std::sync::Arc;

use kestrel_bucket::version::{VersionManifest, VersionPlace, VersionReader, VersionRows};
use kestrel_engine::EngineError;
use kestrel_engine::row_cache::Bytes;
use kestrel_meta::view::decode_dir_id;
use kestrel_types::codec::DecodeError;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::{KeyRef, PREFIX_LEN, Table};
use parking_lot::Mutex;

use crate::store::ReadCounters;

/// Directories that a path has at most. More are a circle.
const DEPTH_MAX: usize = 1 << 16;

/// A directory by its path and number.
type KnownDir = (Vec<u8>, InodeId);

/// See the module's header.
pub struct OpenVersion {
    manifest: VersionManifest,
    reader: VersionReader,
    counters: Arc<ReadCounters>,
    /// The directory that was found last: a join looks up one name after the other of it.
    last: Mutex<Option<KnownDir>>,
}

/// A row of a version: its encoded key and its value.
pub type StoredRow = (Bytes, Bytes);

/// An entry by the row that has it.
pub struct StoredEntry {
    /// The directory's number, 0 of the root.
    pub dir: InodeId,
    /// The row's value.
    pub value: Bytes,
}

/// Rows of a range, which are counted.
pub struct CountedRows {
    rows: VersionRows,
    counters: Arc<ReadCounters>,
}

impl CountedRows {
    /// The next row.
    pub fn next_row(&mut self) -> Result<Option<StoredRow>, EngineError> {
        let found = self.rows.next_row()?;
        self.counters.add_rows(found.is_some().into());
        Ok(found)
    }
}

/// The encoded key of a row.
pub fn encoded(table: Table, id: u64, suffix: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(PREFIX_LEN + suffix.len());
    KeyRef::new(table, id, suffix).encode_into(&mut key);
    key
}

/// The key behind all rows of a table with this id.
pub fn behind_id(table: Table, id: u64) -> Vec<u8> {
    match id.checked_add(1) {
        Some(next) => encoded(table, next, b""),
        None => behind_table(table),
    }
}

/// The key behind all rows of a table.
pub fn behind_table(table: Table) -> Vec<u8> {
    vec![table as u8 + 1]
}

impl OpenVersion {
    /// Reads nothing yet.
    ///
    /// # Errors
    /// Those of the versions below, of a version that a job made.
    pub fn new(
        place: &VersionPlace,
        manifest: VersionManifest,
        counters: Arc<ReadCounters>,
        cache_bytes: u64,
    ) -> Result<Self, EngineError> {
        let reader = VersionReader::new(place, &manifest, cache_bytes)?;
        Ok(Self { manifest, reader, counters, last: Mutex::default() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.manifest.name
    }

    /// What was read and cannot be.
    pub fn damaged(&self, what: &str, why: impl std::fmt::Display) -> EngineError {
        EngineError::Corrupt(format!(
            "version {}: {what}: {why}; publish the tree anew, and report this",
            self.name()
        ))
    }

    /// What a row that cannot be decoded is.
    pub fn undecoded(&self, of: InodeId) -> impl Fn(DecodeError) -> EngineError + '_ {
        move |why| self.damaged(&format!("a row of inode {of}"), why)
    }

    /// A row by its key.
    pub fn get(&self, table: Table, id: u64, suffix: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let found = self.reader.get(KeyRef::new(table, id, suffix))?;
        self.counters.add_rows(found.is_some().into());
        Ok(found)
    }

    /// Rows from one encoded key up to another one, which is not among them.
    pub fn rows(&self, from: &[u8], to: &[u8]) -> CountedRows {
        CountedRows { rows: self.reader.rows(from, to), counters: self.counters.clone() }
    }

    /// What has a path, if there is something.
    pub fn find(&self, path: &[u8]) -> Result<Option<StoredEntry>, EngineError> {
        if path.is_empty() {
            let root = self.get(Table::Entry, 0, b"")?;
            return Ok(root.map(|value| StoredEntry { dir: 0, value }));
        }
        let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
            // A path does not begin with a slash.
            Some(0) => return Ok(None),
            Some(slash) => (self.dir_of(&path[..slash])?, &path[slash + 1..]),
            None => (Some(ROOT), path),
        };
        let Some(dir) = dir.filter(|_| !name.is_empty()) else { return Ok(None) };
        Ok(self.get(Table::Entry, dir, name)?.map(|value| StoredEntry { dir, value }))
    }

    /// The number of the directory of a path.
    pub fn dir_of(&self, path: &[u8]) -> Result<Option<InodeId>, EngineError> {
        if path.is_empty() {
            return Ok(Some(ROOT));
        }
        if let Some((known, number)) = &*self.last.lock()
            && known == path
        {
            return Ok(Some(*number));
        }
        let mut dir = ROOT;
        for name in path.split(|byte| *byte == b'/') {
            if name.is_empty() {
                return Ok(None);
            }
            let Some(value) = self.get(Table::Entry, dir, name)? else { return Ok(None) };
            let (ino, kind) = Entry::peek(&value).map_err(self.undecoded(dir))?;
            if kind != Kind::Dir {
                return Ok(None);
            }
            dir = ino;
        }
        *self.last.lock() = Some((path.to_vec(), dir));
        Ok(Some(dir))
    }

    /// The path of a directory, by the places of those above it.
    pub fn path_of(&self, dir: InodeId) -> Result<Vec<u8>, EngineError> {
        if let Some((path, known)) = &*self.last.lock()
            && *known == dir
        {
            return Ok(path.clone());
        }
        let (mut names, mut at) = (Vec::new(), dir);
        while at != ROOT {
            let value = self.get(Table::DirId, at, b"")?;
            let value = value
                .filter(|_| names.len() < DEPTH_MAX)
                .ok_or_else(|| self.damaged(&format!("directory {dir}"), "it has no place"))?;
            let (parent, name) = decode_dir_id(&value).map_err(self.undecoded(at))?;
            names.push(name.to_vec());
            at = parent;
        }
        names.reverse();
        let path = names.join(&b'/');
        *self.last.lock() = Some((path.clone(), dir));
        Ok(path)
    }
}
