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

/// The same of rows that come in order, from which on they go into tables as they come.
const STREAM_BYTES: usize = 16 << 20;

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
    /// All rows in memory have come in order.
    in_order: bool,
    stream: Option<Stream>,
    runs: Vec<Vec<TableRecord>>,
    next_table: u64,
    written: u64,
    beaten: Instant,
    beats: u64,
}

/// Rows that come in order, and become a run as they come.
struct Stream {
    table: TableWriter,
    run: Vec<TableRecord>,
    last: Vec<u8>,
    rows: u64,
}

fn twice() -> EngineError {
    EngineError::Io("a row of the version was written twice".into())
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
            in_order: true,
            stream: None,
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
        self.in_order = false;
        self.keep(key, value)
    }

    /// The same of a row with a key above those of all that came this way before. Many of these
    /// need no memory, and are not sorted.
    ///
    /// # Errors
    /// The store's, and `Io` for a key that is not above those before.
    pub fn put_next(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), EngineError> {
        if self.stream.is_none() {
            if self.bytes < STREAM_BYTES || !self.in_order {
                return self.keep(key, value);
            }
            self.begin_stream()?;
        }
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if key <= stream.last.as_slice() {
            return Err(twice());
        }
        stream.add(key, value);
        self.end_full_table()
    }

    fn keep(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), EngineError> {
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

    fn new_table(&mut self) -> TableWriter {
        let id = self.next_table;
        self.next_table += 1;
        TableWriter::new(TableIdentity { uuid: self.id, node: NODE, id })
    }

    /// What came in order until now are the first rows of a stream.
    fn begin_stream(&mut self) -> Result<(), EngineError> {
        let (table, run) = (self.new_table(), Vec::new());
        let mut stream = Stream { table, run, last: Vec::new(), rows: 0 };
        for (key, value) in std::mem::take(&mut self.rows) {
            if *key <= *stream.last {
                return Err(twice());
            }
            stream.add(&key, value.as_deref());
        }
        self.bytes = 0;
        self.stream = Some(stream);
        self.end_full_table()
    }

    fn end_full_table(&mut self) -> Result<(), EngineError> {
        let is_full = |stream: &&mut Stream| stream.table.bytes() >= TABLE_BYTES;
        if self.stream.as_mut().filter(is_full).is_none() {
            return Ok(());
        }
        let next = self.new_table();
        if let Some(mut stream) = self.stream.take() {
            let full = std::mem::replace(&mut stream.table, next);
            stream.run.push(self.end_table(full)?);
            self.stream = Some(stream);
        }
        if self.beaten.elapsed() >= BEAT {
            self.beat()?;
        }
        Ok(())
    }

    fn end_stream(&mut self) -> Result<(), EngineError> {
        let Some(mut stream) = self.stream.take() else { return Ok(()) };
        if stream.table.bytes() > 0 {
            stream.run.push(self.end_table(stream.table)?);
        }
        self.written += stream.rows;
        self.runs.push(stream.run);
        Ok(())
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        let streamed = self.stream.as_ref().map_or(0, |stream| stream.rows);
        self.written + streamed + self.rows.len() as u64
    }

    /// Writes what is left. Fails if this version was taken for left over meanwhile.
    ///
    /// # Errors
    /// The store's, and `Io` in that case.
    pub fn finish(mut self) -> Result<Vec<Vec<TableRecord>>, EngineError> {
        self.end_stream()?;
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
            return Err(twice());
        }
        let mut run = Vec::new();
        let mut writer: Option<TableWriter> = None;
        for (key, value) in &rows {
            let table = writer.get_or_insert_with(|| self.new_table());
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

impl Stream {
    fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.table.add(key, value);
        self.last.clear();
        self.last.extend_from_slice(key);
        self.rows += 1;
    }
}
