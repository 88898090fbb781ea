//! Writing a version: rows in any order become sorted runs of tables.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_blockstore::named::NamedStore;
use kestrel_engine::EngineError;
use kestrel_types::crash;
use kestrel_types::key::KeyRef;

use super::{NODE, VersionId, VersionPlace, WRITER, cleaned_up, damaged, failed};
use crate::table::{TABLE_BYTES, TableIdentity, TableRecord, TableWriter};

/// Bytes of rows in memory from which on they become a run, with what each takes beside.
const RUN_BYTES: usize = 256 << 20;

/// Bytes that a row takes in memory beside key and value, about.
const ROW_OVERHEAD: usize = 64;

/// How often the writer says that it is still there.
const BEAT: Duration = Duration::from_secs(60);

/// Key and value; none: the row is deleted.
type OwnedRow = (Box<[u8]>, Option<Box<[u8]>>);

/// Writes the tables of one version.
pub struct VersionWriter {
    store: Arc<dyn NamedStore>,
    id: VersionId,
    rows: Vec<OwnedRow>,
    bytes: usize,
    runs: Vec<Vec<TableRecord>>,
    next_table: u64,
    written: u64,
    beaten: Instant,
    beats: u64,
}

impl VersionWriter {
    /// Begins a version of this identity.
    ///
    /// # Errors
    /// The store's.
    pub fn begin(place: &VersionPlace, id: VersionId) -> Result<Self, EngineError> {
        let mut writer = Self {
            store: place.store().clone(),
            id,
            rows: Vec::new(),
            bytes: 0,
            runs: Vec::new(),
            next_table: 0,
            written: 0,
            beaten: Instant::now(),
            beats: 0,
        };
        writer.beat()?;
        Ok(writer)
    }

    /// Adds a row. Each key is added once.
    ///
    /// # Errors
    /// The store's.
    pub fn put(&mut self, key: KeyRef<'_>, value: &[u8]) -> Result<(), EngineError> {
        let mut bytes = Vec::with_capacity(9 + key.suffix.len());
        key.encode_into(&mut bytes);
        self.put_encoded(&bytes, Some(value))
    }

    /// The same with an encoded key; without a value: the row of a version below is deleted.
    ///
    /// # Errors
    /// The store's.
    pub fn put_encoded(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), EngineError> {
        self.bytes += key.len() + value.map_or(0, <[u8]>::len) + ROW_OVERHEAD;
        self.rows.push((key.into(), value.map(Into::into)));
        if self.bytes >= RUN_BYTES {
            self.end_run()?;
        }
        if self.beaten.elapsed() >= BEAT {
            self.beat()?;
        }
        Ok(())
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.written + self.rows.len() as u64
    }

    /// Writes what is left. Fails if this version was taken for left over meanwhile.
    ///
    /// # Errors
    /// The store's, and `Io` in that case.
    pub fn finish(mut self) -> Result<Vec<Vec<TableRecord>>, EngineError> {
        self.end_run()?;
        crash::point("version.written");
        self.beat()?;
        Ok(std::mem::take(&mut self.runs))
    }

    /// Replaces the object by which others see that the version is being written.
    fn beat(&mut self) -> Result<(), EngineError> {
        let name = VersionPlace::part_of(&self.id, WRITER);
        let failed = |why| failed(&*self.store, &why);
        let text = |beats: u64| bytes::Bytes::from(format!("{beats} of {}", std::process::id()));
        if self.beats == 0 {
            if !self.store.create(&name, text(0)).map_err(failed)? {
                return Err(EngineError::Io(
                    "the store has a version of the same random identity already".into(),
                ));
            }
        } else {
            let found = self.store.read(&name).map_err(failed)?.ok_or_else(cleaned_up)?;
            let put = self.store.replace(&name, text(self.beats), &found.tag);
            put.map_err(failed)?.ok_or_else(cleaned_up)?;
        }
        self.beats += 1;
        self.beaten = Instant::now();
        Ok(())
    }

    pub(super) fn end_run(&mut self) -> Result<(), EngineError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_unstable();
        if rows.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(EngineError::Io("a row of the version was written twice".into()));
        }
        let mut run = Vec::new();
        let mut writer: Option<TableWriter> = None;
        for (key, value) in &rows {
            let table = writer.get_or_insert_with(|| {
                let id = self.next_table;
                self.next_table += 1;
                TableWriter::new(TableIdentity { uuid: self.id, node: NODE, id })
            });
            table.add(key, value.as_deref());
            if table.bytes() >= TABLE_BYTES
                && let Some(full) = writer.take()
            {
                run.push(self.end_table(full)?);
            }
        }
        if let Some(last) = writer {
            run.push(self.end_table(last)?);
        }
        self.written += rows.len() as u64;
        self.bytes = 0;
        self.runs.push(run);
        Ok(())
    }

    fn end_table(&self, writer: TableWriter) -> Result<TableRecord, EngineError> {
        let (bytes, record) = writer.finish();
        let identity = TableIdentity { uuid: self.id, node: NODE, id: record.id };
        let name = VersionPlace::part_of(&self.id, &identity.name());
        let created = self.store.create(&name, bytes.into());
        match created.map_err(|why| failed(&*self.store, &why))? {
            true => Ok(record),
            false => Err(damaged(&name, "it was not read back as it was written")),
        }
    }
}
