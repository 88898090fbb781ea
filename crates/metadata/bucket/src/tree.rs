//! The rows that are durable: those of the newest log objects in memory, all others in tables.
//!
//! A *memtable* has the rows of log objects that no table has yet. When it is large it is frozen,
//! written as a sorted run of tables, and named in the manifest; readers look at the memtables
//! first, then at the runs from the newest on. Runs of about the same size are merged in the
//! background, so that there are few (`flusher`). Of a job the rows of its inputs are below
//! (`layer`).
//!
//! Blocks and heads of tables are read when they are needed and kept in a cache that is bounded. A
//! table that was merged away is removed when its last reader has let go of it.

pub mod layer;

use std::collections::HashMap;
use std::ops::{Bound, Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use kestrel_blockstore::named::NamedStore;
use kestrel_engine::EngineError;
use kestrel_engine::row_cache::{Bytes, Cursor, RowStore, Sorted};
use parking_lot::{Mutex, RwLock};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use self::layer::{Layer, LayerRows};
use crate::health::{Health, failed};
use crate::log::RowChanges;
use crate::table::{Block, TableHead, TableIdentity, TableRecord};

/// Rows that a cursor copies at a time out of a memtable.
const COPIED_MAX: usize = 256;

/// Blocks that come with one request on the way through a table, at first and at most, and most
/// bytes of these.
const AHEAD_BLOCKS_MIN: usize = 8;
const AHEAD_BLOCKS_MAX: usize = 128;
const AHEAD_BYTES_MAX: u64 = 4 << 20;

/// Rows that are looked for at once for which one more thread is worth it, and most threads.
const LOOKUPS_EACH: usize = 4;
const LOOKUPS_MAX: usize = 8;

/// Share of the cache that [`Tree::load`] fills.
const LOAD_SHARE: (u64, u64) = (7, 8);

/// Bytes that a row takes in a memtable beside key and value, about.
const ROW_OVERHEAD: usize = 96;

/// Bytes of a block in the cache, about, for the cache's first size.
const BLOCK_BYTES_ABOUT: u64 = 32 << 10;

/// What the cache has of a table: a block, or its head.
#[derive(Clone)]
enum Kept {
    Head(Arc<TableHead>),
    Block(Arc<Block>),
}

#[derive(Clone)]
struct Weight;

/// Which tree, which of its tables, and which block of that.
type CacheKey = (u32, u64, u64);

impl Weighter<CacheKey, Kept> for Weight {
    fn weight(&self, _: &CacheKey, kept: &Kept) -> u64 {
        let weight = match kept {
            Kept::Head(head) => head.weight(),
            Kept::Block(block) => block.weight(),
        };
        weight as u64 + 64
    }
}

/// The number under which the cache has the head of a table.
const HEAD: u64 = u64::MAX;

/// Rows of log objects.
#[derive(Default)]
pub struct MemTable {
    rows: RwLock<RowChanges>,
    bytes: AtomicUsize,
}

impl MemTable {
    /// Adds rows, newer than those that are there.
    pub fn apply(&self, changes: RowChanges) {
        let mut rows = self.rows.write();
        let mut bytes = 0;
        for (key, value) in changes {
            bytes += key.len() + value.as_ref().map_or(0, |value| value.len()) + ROW_OVERHEAD;
            rows.insert(key, value);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of all rows that were added.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The rows of both; those of `newer` win.
    pub fn merged(newer: &Self, older: &Self) -> Self {
        let merged = Self::default();
        merged.apply(older.rows.read().clone());
        merged.apply(newer.rows.read().clone());
        merged
    }

    fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let rows = self.rows.read();
        rows.get(key).map(|value| value.as_deref().map(Bytes::from))
    }

    /// Some rows from a key on.
    fn copy(&self, from: Bound<&[u8]>, to: &[u8], out: &mut Vec<SourceRow>) {
        let rows = self.rows.read();
        let range = rows.range::<[u8], _>((from, Bound::Excluded(to)));
        out.extend(
            range
                .take(COPIED_MAX)
                .map(|(key, value)| (Bytes::from(&key[..]), value.as_deref().map(Bytes::from))),
        );
    }

    /// Shows all rows in order.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn visit(
        &self,
        mut visit: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let rows = self.rows.read();
        rows.iter().try_for_each(|(key, value)| visit(key, value.as_deref()))
    }
}

/// A table with what becomes of its object.
pub struct Table {
    pub record: TableRecord,
    identity: TableIdentity,
    /// No manifest names it any more.
    obsolete: AtomicBool,
    removed: Arc<Mutex<Vec<String>>>,
}

impl Table {
    /// The manifest does not name it any more: its object goes when the last reader is done.
    pub fn retire(&self) {
        self.obsolete.store(true, Ordering::Relaxed);
    }

    /// The name of its object, below that of the node.
    pub fn name(&self) -> String {
        self.identity.name()
    }

    /// A manifest is to name it.
    pub fn keep(&self) {
        self.obsolete.store(false, Ordering::Relaxed);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::Relaxed) {
            self.removed.lock().push(self.identity.name());
        }
    }
}

/// What [`Tree::load`] has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Blocks of all tables.
    pub blocks: u64,
    /// Those that were read, all of them or as many as there is room for.
    pub kept: u64,
    /// Bytes of memory that these take, and the heads of tables.
    pub bytes: u64,
}

/// Tables that do not overlap, in ascending order.
pub type Run = Vec<Arc<Table>>;

/// All rows at a moment.
#[derive(Clone, Default)]
pub struct View {
    /// Where the sender adds rows.
    pub active: Arc<MemTable>,
    /// Those before it, the newest first: of a writer what is being written as tables, of a
    /// follower all rows of the log.
    pub frozen: Vec<Arc<MemTable>>,
    /// The newest first.
    pub runs: Vec<Arc<Run>>,
    /// Rows below all of these that never change, the first to be asked first.
    pub layers: Arc<[Arc<Layer>]>,
}

impl View {
    /// Bytes of the tables of all runs.
    pub fn table_bytes(&self) -> u64 {
        self.runs.iter().flat_map(|run| run.iter()).map(|table| table.record.bytes).sum()
    }
}

/// See the module's header.
pub struct Tree {
    store: Arc<dyn NamedStore>,
    health: Arc<Health>,
    /// Before each name: that of the node.
    prefix: String,
    identity: TableIdentity,
    view: RwLock<Arc<View>>,
    /// Number of the tree among those that share the cache.
    number: u32,
    cache: Arc<Cache<CacheKey, Kept, Weight>>,
    /// Indexes of tables of which ranges are merged.
    indexes: Mutex<HashMap<u64, Arc<TableHead>>>,
    /// Names of objects to be removed.
    removed: Arc<Mutex<Vec<String>>>,
}

impl Tree {
    /// A tree without rows; the cache of blocks has `cache_bytes`.
    pub fn new(
        (store, health): (Arc<dyn NamedStore>, Arc<Health>),
        prefix: String,
        identity: TableIdentity,
        cache_bytes: u64,
    ) -> Self {
        let items = usize::try_from(cache_bytes / BLOCK_BYTES_ABOUT).unwrap_or(usize::MAX).max(16);
        Self {
            store,
            health,
            prefix,
            identity,
            view: RwLock::default(),
            number: 0,
            cache: Arc::new(Cache::with_weighter(items, cache_bytes, Weight)),
            indexes: Mutex::default(),
            removed: Arc::default(),
        }
    }

    /// Another tree without rows that shares the cache of this one, with a number that none of the
    /// others has.
    pub fn sibling(
        &self,
        number: u32,
        store: Arc<dyn NamedStore>,
        prefix: String,
        identity: TableIdentity,
    ) -> Self {
        Self {
            store,
            health: self.health.clone(),
            prefix,
            identity,
            view: RwLock::default(),
            number,
            cache: self.cache.clone(),
            indexes: Mutex::default(),
            removed: Arc::default(),
        }
    }

    /// All rows as they are now.
    pub fn view(&self) -> Arc<View> {
        self.view.read().clone()
    }

    /// Makes a change of what readers see.
    pub fn change(&self, change: impl FnOnce(&mut View)) {
        let mut view = self.view.write();
        change(Arc::make_mut(&mut view));
    }

    /// A table of this node.
    pub fn table(&self, record: TableRecord) -> Arc<Table> {
        let identity = TableIdentity { id: record.id, ..self.identity };
        let (obsolete, removed) = (AtomicBool::new(false), self.removed.clone());
        Arc::new(Table { record, identity, obsolete, removed })
    }

    /// Runs as a manifest has them. Tables that readers see now stay what they are: an object goes
    /// with the last reader of its table.
    pub fn runs(&self, records: &[Vec<TableRecord>]) -> Vec<Arc<Run>> {
        let view = self.view();
        let table = |record: &TableRecord| {
            let mut known = view.runs.iter().flat_map(|run| run.iter());
            let known = known.find(|table| table.record.id == record.id);
            known.cloned().unwrap_or_else(|| self.table(record.clone()))
        };
        records.iter().map(|run| Arc::new(run.iter().map(table).collect::<Run>())).collect()
    }

    /// Objects that nobody needs any more.
    pub fn take_removed(&self) -> Vec<String> {
        std::mem::take(&mut *self.removed.lock())
    }

    /// Bytes of a table; `fresh`: past every cache.
    fn fetch(
        &self,
        table: &Table,
        (offset, len): (u64, u64),
        fresh: bool,
    ) -> Result<bytes::Bytes, EngineError> {
        let name = format!("{}{}", self.prefix, table.identity.name());
        let read = self.health.watch_cached(|| match fresh {
            false => self.store.read_range(&name, offset, len),
            true => self.store.read_range_fresh(&name, offset, len),
        });
        read.map_err(|why| failed(&*self.store, &why))
    }

    /// Reads something of a table and decodes it; once more if it is damaged: it may have been on
    /// its way only.
    fn read<T>(
        &self,
        table: &Table,
        place: (u64, u64),
        decode: impl Fn(&[u8]) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let first = decode(&self.fetch(table, place, false)?);
        match first {
            Err(EngineError::Corrupt(_)) => decode(&self.fetch(table, place, true)?),
            other => other,
        }
    }

    fn read_head(&self, table: &Table) -> Result<TableHead, EngineError> {
        let at = table.record.head;
        let len = table.record.bytes.saturating_sub(at);
        self.read(table, (at, len), |bytes| TableHead::decode(table.identity, at, bytes))
    }

    /// The index of a table, which this tree keeps for as long as it is there.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn index(&self, table: &Table) -> Result<Arc<TableHead>, EngineError> {
        if let Some(index) = self.indexes.lock().get(&table.record.id) {
            return Ok(index.clone());
        }
        let index = Arc::new(self.read_head(table)?.into_index());
        self.indexes.lock().insert(table.record.id, index.clone());
        Ok(index)
    }

    fn head(&self, table: &Table) -> Result<Arc<TableHead>, EngineError> {
        let key = (self.number, table.record.id, HEAD);
        if let Some(Kept::Head(head)) = self.cache.get(&key) {
            return Ok(head);
        }
        let head = Arc::new(self.read_head(table)?);
        self.cache.insert(key, Kept::Head(head.clone()));
        Ok(head)
    }

    fn block(
        &self,
        table: &Table,
        head: &TableHead,
        number: usize,
    ) -> Result<Arc<Block>, EngineError> {
        let key = (self.number, table.record.id, number as u64);
        if let Some(Kept::Block(block)) = self.cache.get(&key) {
            return Ok(block);
        }
        let place = head.place(number).unwrap_or((0, 0));
        let block = self.read(table, place, |bytes| head.decode_block(number, bytes))?;
        let block = Arc::new(block);
        self.cache.insert(key, Kept::Block(block.clone()));
        Ok(block)
    }

    /// A block on the way through a table: the blocks behind it come with the same request.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn block_ahead(
        &self,
        table: &Table,
        head: &TableHead,
        number: usize,
        ahead: &mut ReadAhead,
        to: &[u8],
    ) -> Result<Arc<Block>, EngineError> {
        let key = (self.number, table.record.id, number as u64);
        ahead.last = None;
        if let Some(Kept::Block(block)) = self.cache.get(&key) {
            return Ok(block);
        }
        let Some((offset, len)) = head.place(number) else {
            return self.block(table, head, number);
        };
        if !ahead.has(table, offset, len) {
            let last = head.block_of(to).unwrap_or(0).min(number.saturating_add(ahead.blocks - 1));
            let ends = (number + 1..=last).filter_map(|block| head.place(block));
            let ends = ends.map(|(offset, len)| offset + len);
            let end = ends.take_while(|end| end - offset <= ahead.bytes_max).last();
            let wanted = end.unwrap_or(offset + len) - offset;
            ahead.bytes = self.fetch(table, (offset, wanted), false)?;
            (ahead.table, ahead.offset) = (table.record.id, offset);
            ahead.blocks = ahead.blocks.saturating_mul(2).min(ahead.blocks_max);
        }
        let at = (offset - ahead.offset) as usize;
        let bytes = ahead.bytes.get(at..at + len as usize).unwrap_or_default();
        match head.decode_block(number, bytes) {
            Ok(block) => {
                let block = Arc::new(block);
                ahead.last = Some(at..at + len as usize);
                if ahead.keep {
                    self.cache.insert(key, Kept::Block(block.clone()));
                }
                Ok(block)
            }
            // It may have been damaged on its way.
            Err(_) => self.block(table, head, number),
        }
    }

    /// Reads tables into the cache, the newest runs first and heads before blocks, as far as there
    /// is room.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn load(&self) -> Result<Loaded, EngineError> {
        let view = self.view();
        let tables: Vec<&Arc<Table>> = view.runs.iter().flat_map(|run| run.iter()).collect();
        // The cache divides its room evenly, and what is read is not of one size.
        let room = self.cache.capacity() / LOAD_SHARE.1 * LOAD_SHARE.0;
        let mut loaded = Loaded::default();
        let mut heads = Vec::with_capacity(tables.len());
        for table in tables {
            let head = self.head(table)?;
            loaded.blocks += head.blocks() as u64;
            loaded.bytes += head.weight() as u64;
            heads.push((table, head));
        }
        for (table, head) in heads {
            let mut ahead = ReadAhead::new(true);
            for number in 0..head.blocks() {
                if loaded.bytes >= room {
                    return Ok(loaded);
                }
                let block = self.block_ahead(table, &head, number, &mut ahead, &[u8::MAX; 2])?;
                loaded.kept += 1;
                loaded.bytes += block.weight() as u64;
            }
        }
        Ok(loaded)
    }

    /// What a run says of a key.
    fn get_in(&self, run: &Run, key: &[u8]) -> Result<Option<Option<Bytes>>, EngineError> {
        let at = run.partition_point(|table| table.record.last.as_slice() < key);
        let Some(table) = run.get(at).filter(|table| table.record.first.as_slice() <= key) else {
            return Ok(None);
        };
        let head = self.head(table)?;
        let Some(number) = head.block_of(key).filter(|_| head.may_have(key)) else {
            return Ok(None);
        };
        let block = self.block(table, &head, number)?;
        Ok(block.get(key).map(|value| value.map(Bytes::from)))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn get(&self, view: &View, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        if let Some(found) = self.get_own(view, key)? {
            return Ok(found);
        }
        for layer in &*view.layers {
            if let Some(found) = layer.get(key)? {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// What the tree itself says of a key, without its layers: its value, or that it is deleted.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn get_own(&self, view: &View, key: &[u8]) -> Result<Option<Option<Bytes>>, EngineError> {
        for memtable in std::iter::once(&view.active).chain(&view.frozen) {
            if let Some(found) = memtable.get(key) {
                return Ok(Some(found));
            }
        }
        for run in &view.runs {
            if let Some(found) = self.get_in(run, key)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The values of keys, of those that have one, in any order; looks for many at once.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn get_many_in(
        &self,
        view: &View,
        keys: &[Vec<u8>],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        if keys.len() < LOOKUPS_EACH || (view.runs.is_empty() && view.layers.is_empty()) {
            for (index, key) in keys.iter().enumerate() {
                if let Some(value) = self.get(view, key)? {
                    visit(index, &value);
                }
            }
            return Ok(());
        }
        // Each may wait for the store.
        let next = AtomicUsize::new(0);
        let look = || -> Result<Vec<(usize, Bytes)>, EngineError> {
            let mut found = Vec::new();
            while let Some((index, key)) = next_of(keys, &next) {
                found.extend(self.get(view, key)?.map(|value| (index, value)));
            }
            Ok(found)
        };
        let threads = (keys.len() / LOOKUPS_EACH).min(LOOKUPS_MAX);
        let found: Vec<_> = thread::scope(|scope| {
            let looking: Vec<_> = (0..threads).map(|_| scope.spawn(look)).collect();
            let done = looking.into_iter().map(|looked| {
                let why = || EngineError::Io("metadata in a bucket: a thread panicked".into());
                looked.join().unwrap_or_else(|_| Err(why()))
            });
            done.collect()
        });
        for part in found {
            for (index, value) in part? {
                visit(index, &value);
            }
        }
        Ok(())
    }

    /// A cursor over all rows of some runs, the newest first.
    pub fn merged_runs<'a>(&'a self, runs: &[Arc<Run>]) -> Merged<&'a Tree> {
        let all = |run: &Arc<Run>| Source::of_run(self, run.clone(), (&[], &[u8::MAX; 2]), false);
        Merged { sources: runs.iter().map(all).collect() }
    }
}

/// A key with its value, or that it is deleted.
pub type SourceRow = (Bytes, Option<Bytes>);

/// Bytes of blocks that a way through a table has fetched.
pub struct ReadAhead {
    /// The table, and where its bytes begin.
    table: u64,
    offset: u64,
    bytes: bytes::Bytes,
    /// Blocks of the next request, and most blocks and bytes of one.
    blocks: usize,
    blocks_max: usize,
    bytes_max: u64,
    /// Blocks go into the cache.
    keep: bool,
    /// Where the block is that was last asked for, if it was right.
    last: Option<Range<usize>>,
}

impl ReadAhead {
    fn new(keep: bool) -> Self {
        // A merge reads all; another reader may end soon.
        let blocks = if keep { AHEAD_BLOCKS_MIN } else { AHEAD_BLOCKS_MAX };
        let (blocks_max, bytes_max) = (AHEAD_BLOCKS_MAX, AHEAD_BYTES_MAX);
        let bytes = bytes::Bytes::new();
        Self { table: 0, offset: 0, bytes, blocks, blocks_max, bytes_max, keep, last: None }
    }

    /// The block that was last asked for, as it is stored, if its bytes are here.
    pub fn stored(&self) -> Option<&[u8]> {
        self.bytes.get(self.last.clone()?)
    }

    /// That of a merge that reads a whole range, with at most so many bytes a request.
    pub fn whole(bytes_max: u64) -> Self {
        Self { blocks: usize::MAX, blocks_max: usize::MAX, bytes_max, ..Self::new(false) }
    }

    fn has(&self, table: &Table, offset: u64, len: u64) -> bool {
        let end = self.offset + self.bytes.len() as u64;
        self.table == table.record.id && self.offset <= offset && offset + len <= end
    }
}

enum Rows<T> {
    Memory(Arc<MemTable>),
    Run { tree: T, run: Arc<Run>, table: usize, block: usize, read_ahead: ReadAhead },
    Layer(Box<LayerRows>),
}

/// Rows of a memtable or run, in order.
struct Source<T> {
    rows: Rows<T>,
    /// Rows that were copied and not taken, the next one last.
    ahead: Vec<SourceRow>,
    /// Behind which key it goes on, or from which.
    from: Bound<Vec<u8>>,
    to: Vec<u8>,
    over: bool,
}

impl<T: Deref<Target = Tree>> Source<T> {
    fn of_memtable(memtable: Arc<MemTable>, from: &[u8], to: &[u8]) -> Self {
        Self {
            rows: Rows::Memory(memtable),
            ahead: Vec::new(),
            from: Bound::Included(from.to_vec()),
            to: to.to_vec(),
            over: from >= to,
        }
    }

    fn of_run(tree: T, run: Arc<Run>, (from, to): (&[u8], &[u8]), keep: bool) -> Self {
        let table = run.partition_point(|table| table.record.last.as_slice() < from);
        Self {
            rows: Rows::Run {
                tree,
                run,
                table,
                block: usize::MAX,
                read_ahead: ReadAhead::new(keep),
            },
            ahead: Vec::new(),
            from: Bound::Included(from.to_vec()),
            to: to.to_vec(),
            over: from >= to,
        }
    }

    fn of_layer(rows: LayerRows) -> Self {
        Self {
            rows: Rows::Layer(Box::new(rows)),
            ahead: Vec::new(),
            from: Bound::Unbounded,
            to: Vec::new(),
            over: false,
        }
    }

    /// Makes sure that the next row is copied, if there is one.
    fn fill(&mut self) -> Result<(), EngineError> {
        while self.ahead.is_empty() && !self.over {
            let from = self.from.as_ref().map(Vec::as_slice);
            match &mut self.rows {
                Rows::Memory(memtable) => {
                    memtable.copy(from, &self.to, &mut self.ahead);
                    self.over = self.ahead.len() < COPIED_MAX;
                    if let Some((key, _)) = self.ahead.last() {
                        self.from = Bound::Excluded(key.to_vec());
                    }
                }
                Rows::Run { tree, run, table, block, read_ahead } => {
                    let Some(current) = run.get(*table) else {
                        self.over = true;
                        break;
                    };
                    if current.record.first.as_slice() >= self.to.as_slice() {
                        self.over = true;
                        break;
                    }
                    let head = tree.head(current)?;
                    if *block == usize::MAX {
                        let key = match from {
                            Bound::Included(key) | Bound::Excluded(key) => key,
                            Bound::Unbounded => &[],
                        };
                        *block = head.block_of(key).unwrap_or(0);
                    }
                    if *block >= head.blocks() {
                        (*table, *block) = (*table + 1, 0);
                        continue;
                    }
                    let found = tree.block_ahead(current, &head, *block, read_ahead, &self.to)?;
                    let first = match from {
                        Bound::Included(key) => found.from(key),
                        Bound::Excluded(_) | Bound::Unbounded => 0,
                    };
                    for row in first..found.rows() {
                        let Some((key, value)) = found.row(row) else { break };
                        if key >= self.to.as_slice() {
                            self.over = true;
                            break;
                        }
                        self.ahead.push((key.into(), value.map(Into::into)));
                    }
                    *block += 1;
                }
                Rows::Layer(rows) => {
                    while self.ahead.len() < COPIED_MAX
                        && let Some(row) = rows.next_row()?
                    {
                        self.ahead.push(row);
                    }
                    self.over = self.ahead.len() < COPIED_MAX;
                }
            }
            self.ahead.reverse();
        }
        Ok(())
    }
}

/// Rows of several sources in order: of those with one key, that of the first source. It borrows
/// the tree, or has its share of it.
pub struct Merged<T> {
    sources: Vec<Source<T>>,
}

impl<T: Deref<Target = Tree> + Clone> Merged<T> {
    /// A cursor over rows of the tree as they are now, deleted ones among them.
    pub fn over(tree: &T, (from, to): (&[u8], &[u8])) -> Self {
        Self::over_view(tree, &tree.view(), (from, to))
    }

    /// The same of the tree as a view has it.
    fn over_view(tree: &T, view: &View, (from, to): (&[u8], &[u8])) -> Self {
        let mut merged = Self::over_own(tree, view, (from, to));
        let layers = view.layers.iter();
        merged.sources.extend(layers.map(|layer| Source::of_layer(layer.rows((from, to)))));
        merged
    }

    /// The same without its layers.
    pub fn over_own(tree: &T, view: &View, (from, to): (&[u8], &[u8])) -> Self {
        let memtables = std::iter::once(&view.active).chain(&view.frozen);
        let mut sources: Vec<Source<T>> =
            memtables.map(|memtable| Source::of_memtable(memtable.clone(), from, to)).collect();
        let runs = view.runs.iter();
        sources.extend(runs.map(|run| Source::of_run(tree.clone(), run.clone(), (from, to), true)));
        Self { sources }
    }

    /// The next row, deleted or not.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn next_row(&mut self) -> Result<Option<SourceRow>, EngineError> {
        let mut least: Option<usize> = None;
        for index in 0..self.sources.len() {
            self.sources[index].fill()?;
            let key = |index: usize| self.sources[index].ahead.last().map(|(key, _)| key);
            match (key(index), least.and_then(key)) {
                (Some(key), Some(smallest)) if key < smallest => least = Some(index),
                (Some(_), None) => least = Some(index),
                _ => {}
            }
        }
        let Some(least) = least else { return Ok(None) };
        let Some(row) = self.sources[least].ahead.pop() else { return Ok(None) };
        for source in &mut self.sources[least + 1..] {
            if source.ahead.last().is_some_and(|(key, _)| *key == row.0) {
                source.ahead.pop();
            }
        }
        Ok(Some(row))
    }
}

impl<T: Deref<Target = Tree> + Clone> Cursor for Merged<T> {
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, EngineError> {
        loop {
            match self.next_row()? {
                Some((key, Some(value))) => return Ok(Some((key, value))),
                Some((_, None)) => {}
                None => return Ok(None),
            }
        }
    }
}

impl Tree {
    /// A cursor over rows of a view.
    pub fn range_in(&self, view: &View, (from, to): (&[u8], &[u8])) -> Box<dyn Cursor + '_> {
        Box::new(Merged::over_view(&self, view, (from, to)))
    }
}

impl Sorted for Tree {
    fn range(&self, from: &[u8], to: &[u8]) -> Box<dyn Cursor + '_> {
        self.range_in(&self.view(), (from, to))
    }
}

fn next_of<'k>(keys: &'k [Vec<u8>], next: &AtomicUsize) -> Option<(usize, &'k Vec<u8>)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, keys.get(index)?))
}

impl RowStore for Tree {
    fn get_many(
        &self,
        keys: &[Vec<u8>],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        self.get_many_in(&self.view(), keys, visit)
    }
}
