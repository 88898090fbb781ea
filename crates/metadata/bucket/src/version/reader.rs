//! The rows of a version as they are stored, for a process that looks through them.

use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_engine::row_cache::{Bytes, Cursor};
use kestrel_types::key::KeyRef;

use super::{VersionManifest, VersionPlace, named, tree_of};
use crate::merge::{RowSink, RunMerge};
use crate::table::{Block, TableRow};
use crate::tree::{Merged, Tree};

/// Reads a version from the store. Only blocks of tables are kept, so its memory is bounded however
/// much is read. Clones share their memory.
#[derive(Clone)]
pub struct VersionReader {
    tree: Arc<Tree>,
    name: Arc<str>,
}

/// Rows of a range, in the order of their keys.
pub struct VersionRows {
    rows: Merged<Arc<Tree>>,
    name: Arc<str>,
}

impl VersionReader {
    /// Reads nothing yet. Blocks of tables take `cache_bytes`, about.
    ///
    /// # Errors
    /// Those of the versions below, of a version that a job made.
    pub fn new(
        place: &VersionPlace,
        manifest: &VersionManifest,
        cache_bytes: u64,
    ) -> Result<Self, EngineError> {
        let tree = Arc::new(tree_of(place, manifest, cache_bytes)?);
        Ok(Self { tree, name: manifest.name.as_str().into() })
    }

    /// The value of a row, if it is there.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn get(&self, key: KeyRef<'_>) -> Result<Option<Bytes>, EngineError> {
        let mut bytes = Vec::with_capacity(64);
        key.encode_into(&mut bytes);
        let found = self.tree.get(&self.tree.view(), &bytes);
        found.map_err(|why| named(&self.name, why))
    }

    /// Rows from one encoded key on up to another one, which is not among them.
    pub fn rows(&self, from: &[u8], to: &[u8]) -> VersionRows {
        VersionRows { rows: Merged::over(&self.tree, (from, to)), name: self.name.clone() }
    }

    /// Shows the same rows where they lie, without a copy of any. Indexes of their tables stay in
    /// memory as long as this reader.
    ///
    /// # Errors
    /// The store's, `Corrupt`, and those of the sink.
    pub fn visit(
        &self,
        (from, to): (&[u8], &[u8]),
        sink: &mut impl VersionSink,
    ) -> Result<(), EngineError> {
        let view = self.tree.view();
        if !view.layers.is_empty() {
            let mut rows = self.rows(from, to);
            while let Some((key, value)) = rows.next_row()? {
                sink.row(&key, &value)?;
            }
            return Ok(());
        }
        let runs = view.runs.iter().map(|run| (&*self.tree, run.clone())).collect();
        let named = |why| named(&self.name, why);
        let mut merge = RunMerge::new(runs, (from, to)).map_err(named)?;
        merge.visit(&mut LiveRows(sink)).map_err(|why| match why {
            VisitError::Tables(why) => named(why),
            VisitError::Sink(why) => why,
        })
    }

    /// Keys that cut the rows into ranges of about as many bytes of tables, at most so many.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn cuts(&self, parts: usize) -> Result<Vec<Vec<u8>>, EngineError> {
        let mut blocks: Vec<(Vec<u8>, u64)> = Vec::new();
        let view = self.tree.view();
        for table in view.runs.iter().flat_map(|run| run.iter()) {
            let index = self.tree.index(table).map_err(|why| named(&self.name, why))?;
            blocks.extend(index.index().map(|(first, bytes)| (first.to_vec(), bytes)));
        }
        for layer in &*view.layers {
            layer.visit_index(|first, bytes| blocks.push((first, bytes)))?;
        }
        blocks.sort_unstable();
        let all: u128 = blocks.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
        let (mut cuts, mut part, mut before) = (Vec::<Vec<u8>>::new(), 0, 0);
        for (first, bytes) in blocks {
            let own = before * parts as u128 / all.max(1);
            if own > part && cuts.last().is_none_or(|last| *last < first) {
                part = own;
                cuts.push(first);
            }
            before += u128::from(bytes);
        }
        Ok(cuts)
    }

    /// Number of its rows, where the manifest alone tells it.
    pub fn rows_of(manifest: &VersionManifest) -> Option<u64> {
        manifest.changes().is_none().then_some(manifest.rows)
    }

    /// Bytes of its tables, and of those below it.
    pub fn table_bytes(&self) -> u64 {
        let view = self.tree.view();
        let below: u64 = view.layers.iter().map(|layer| layer.table_bytes()).sum();
        below + view.table_bytes()
    }
}

/// What is done with the rows of a version. A closure takes them one by one.
pub trait VersionSink {
    /// The next row: its encoded key and its value.
    ///
    /// # Errors
    /// What ends the visit.
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError>;

    /// Rows that are next, and lie together in a block of a table.
    ///
    /// # Errors
    /// What ends the visit.
    fn block(&mut self, rows: StoredRows<'_>) -> Result<(), EngineError> {
        rows.rows().try_for_each(|(key, value)| self.row(key, value.unwrap_or_default()))
    }
}

impl<F: FnMut(&[u8], &[u8]) -> Result<(), EngineError>> VersionSink for F {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self(key, value)
    }
}

/// All rows of a block of a table; none is stored as deleted.
pub struct StoredRows<'a> {
    pub(super) block: &'a Block,
    /// The block in its table.
    pub(super) stored: &'a [u8],
}

impl<'a> StoredRows<'a> {
    fn rows(&self) -> impl Iterator<Item = TableRow<'a>> + use<'a> {
        let block = self.block;
        (0..block.rows()).filter_map(|row| block.row(row))
    }
}

/// Lets rows through that are not deleted.
struct LiveRows<'s, S>(&'s mut S);

impl<S: VersionSink> RowSink<VisitError> for LiveRows<'_, S> {
    fn row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), VisitError> {
        match value {
            Some(value) => self.0.row(key, value).map_err(VisitError::Sink),
            None => Ok(()),
        }
    }

    fn block(&mut self, block: &Block, stored: &[u8]) -> Result<(), VisitError> {
        let rows = StoredRows { block, stored };
        match block.has_deleted() {
            false => self.0.block(rows).map_err(VisitError::Sink),
            true => rows.rows().try_for_each(|(key, value)| self.row(key, value)),
        }
    }
}

/// Why a visit ended early.
enum VisitError {
    Tables(EngineError),
    Sink(EngineError),
}

impl From<EngineError> for VisitError {
    fn from(why: EngineError) -> Self {
        Self::Tables(why)
    }
}

impl VersionRows {
    /// The next row: its encoded key and its value.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn next_row(&mut self) -> Result<Option<(Bytes, Bytes)>, EngineError> {
        self.rows.next().map_err(|why| named(&self.name, why))
    }
}
