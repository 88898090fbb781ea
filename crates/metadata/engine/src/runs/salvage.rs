//! Reading the rows of sorted runs of which some bytes are damaged: every block that is intact
//! counts, even if something is wrong with the blocks, indexes and manifests around it.
//!
//! A table of the tree below begins with its data blocks, one after another, each with a header and
//! checksums of header and content (`lsm-tree` 3.1, `table/block/header.rs`). So blocks are found
//! without the table's index: from the end of the last intact one, or, behind damage, at the next
//! place where an intact block begins.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use lsm_tree::{CompressionType, InternalValue, table::Scanner};

use super::manifest;
use crate::EngineError;
use crate::disk::io_error;

/// First bytes of a block.
const BLOCK_MAGIC: [u8; 4] = *b"LSM\x03";
/// Bytes of a block's header: magic, type, checksum (16), bytes stored, bytes unpacked, checksum of
/// the header (4).
const BLOCK_HEADER: usize = 33;
/// Types of blocks that matter here.
const DATA_BLOCK: u8 = 0;
/// Largest table that is read, bytes.
const TABLE_BYTES_MAX: u64 = 4 << 30;

/// Rows that were in a damaged block: those between two keys, as the tree has them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LostBlock {
    /// The table's file.
    pub file: PathBuf,
    /// Where the damage begins, bytes.
    pub offset: u64,
    /// Key of the last intact row before it.
    pub after: Option<Vec<u8>>,
    /// Key of the first intact row behind it.
    pub before: Option<Vec<u8>>,
}

/// Receives a row: its key and its value.
pub(crate) type VisitBytes<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), EngineError> + 'a;

/// Consecutive intact blocks, and the damage behind them.
struct Stretch {
    blocks: Vec<Range<usize>>,
    /// Where damage begins that may have held rows.
    damage: Option<u64>,
}

/// Reads every intact row of the runs in `dir`, in the order of keys; `lost` gets what is damaged.
/// Files of its own go to `scratch`. Changes nothing in `dir`.
pub(crate) fn read_intact(
    dir: &Path,
    scratch: &Path,
    row: &mut VisitBytes<'_>,
    lost: &mut dyn FnMut(LostBlock),
    note: &mut dyn FnMut(String),
) -> Result<(), EngineError> {
    let fail =
        |why: io::Error| io_error(&format!("reading the sorted runs in {}", dir.display()), &why);
    let mut tables = tables_in(&dir.join("tables")).map_err(fail)?;
    match manifest::intact_version(dir).and_then(|version| numbers_of(&version)) {
        Some(listed) => {
            tables.retain(|(id, _)| listed.contains_key(id));
            for id in listed.keys().filter(|id| tables.iter().all(|(found, _)| found != *id)) {
                note(format!(
                    "sorted runs {}: table {id} is missing with all its rows",
                    dir.display()
                ));
            }
            let streams = open_all(tables, &|id| listed.get(&id).copied(), scratch, lost, note)?;
            merge(streams, row)
        }
        None => {
            if !tables.is_empty() {
                note(format!(
                    "sorted runs {}: the manifest and its copy are damaged; where a row is in \
                     several tables, the one with the \
                     highest number counts, which need not be the newest",
                    dir.display()
                ));
            }
            let streams = open_all(tables, &|_| None, scratch, lost, note)?;
            merge(streams, row)
        }
    }
}

/// The tables' numbers and files.
fn tables_in(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut tables = Vec::new();
    let listing = match fs::read_dir(dir) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(tables),
        listing => listing?,
    };
    for file in listing {
        let file = file?;
        if let Some(id) = file.file_name().to_str().and_then(|name| name.parse().ok()) {
            tables.push((id, file.path()));
        }
    }
    tables.sort();
    Ok(tables)
}

/// A version's list of tables: by number, what is added to the sequence numbers of the rows.
fn numbers_of(version: &[u8]) -> Option<HashMap<u64, u64>> {
    let parsed = sfa::Reader::from_reader(&mut io::Cursor::new(version)).ok()?;
    let section = parsed.toc().section(b"tables")?;
    let begin = usize::try_from(section.pos()).ok()?;
    let mut rest = version.get(begin..begin.checked_add(usize::try_from(section.len()).ok()?)?)?;
    let mut take = |count: usize| -> Option<u64> {
        let (bytes, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(bytes.iter().rev().take(8).fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let mut tables = HashMap::new();
    for _ in 0..take(1)? {
        for _ in 0..take(1)? {
            for _ in 0..take(4)? {
                let id = take(8)?;
                // The kind of checksum and the checksum of the table.
                take(17)?;
                tables.insert(id, take(8)?);
            }
        }
    }
    Some(tables)
}

/// The block at the beginning of `bytes`, if it is intact: its type, its length, and whether it is
/// packed. With damage in its content alone: the same, not intact.
struct Block {
    kind: u8,
    len: usize,
    is_packed: bool,
    is_intact: bool,
}

fn block_at(bytes: &[u8]) -> Option<Block> {
    let header = bytes.first_chunk::<BLOCK_HEADER>()?;
    let number = |at: usize| {
        header[at..at + 4].iter().rev().fold(0usize, |value, byte| value << 8 | usize::from(*byte))
    };
    let sum = xxhash_rust::xxh3::xxh3_128(&header[..29]).to_le_bytes();
    if header[..4] != BLOCK_MAGIC || header[29..] != sum[..4] {
        return None;
    }
    let len = BLOCK_HEADER.checked_add(number(21))?;
    let content = bytes.get(BLOCK_HEADER..len);
    let is_intact = content
        .is_some_and(|content| xxhash_rust::xxh3::xxh3_128(content).to_le_bytes() == header[5..21]);
    Some(Block { kind: header[4], len, is_packed: number(21) != number(25), is_intact })
}

/// Finds the data blocks of a table. Also answers whether their content is packed.
fn stretches_of(bytes: &[u8]) -> (Vec<Stretch>, bool) {
    let (mut stretches, mut is_packed) = (Vec::new(), false);
    let mut blocks: Vec<Range<usize>> = Vec::new();
    // Behind the first block of another type there are no rows.
    let (mut at, mut are_data) = (0, true);
    while at < bytes.len() && are_data {
        let found = block_at(&bytes[at..]);
        let next = match found {
            Some(Block { kind: DATA_BLOCK, len, is_packed: packed, is_intact: true }) => {
                is_packed |= packed;
                blocks.push(at..at + len);
                at += len;
                continue;
            }
            Some(Block { kind, .. }) if kind != DATA_BLOCK => {
                are_data = false;
                continue;
            }
            // The header is intact, so the next block begins at the position in it.
            Some(Block { len, .. }) => at.saturating_add(len),
            None => next_block(bytes, at + 1),
        };
        stretches.push(Stretch { blocks: std::mem::take(&mut blocks), damage: Some(at as u64) });
        at = next;
    }
    stretches.push(Stretch { blocks, damage: None });
    (stretches, is_packed)
}

/// Where, from `from` on, a block with an intact header begins; the end if nowhere.
fn next_block(bytes: &[u8], from: usize) -> usize {
    (from..bytes.len())
        .find(|at| bytes[*at] == BLOCK_MAGIC[0] && block_at(&bytes[*at..]).is_some())
        .unwrap_or(bytes.len())
}

/// Rows of consecutive blocks.
struct Stream {
    rows: Scanner,
    /// What orders versions if the manifest is lost.
    table: Option<u64>,
    head: InternalValue,
}

impl Stream {
    fn rank(&self) -> u64 {
        self.table.unwrap_or(self.head.key.seqno)
    }
}

/// The heap's greatest is the smallest key, of one key the newest version.
impl Ord for Stream {
    fn cmp(&self, other: &Self) -> Ordering {
        let keys = other.head.key.user_key.cmp(&self.head.key.user_key);
        keys.then(self.rank().cmp(&other.rank()))
            .then(self.head.key.seqno.cmp(&other.head.key.seqno))
    }
}

impl PartialOrd for Stream {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Stream {}

/// Opens the intact blocks of all tables and reports which are damaged.
fn open_all(
    tables: Vec<(u64, PathBuf)>,
    added: &dyn Fn(u64) -> Option<u64>,
    scratch: &Path,
    lost: &mut dyn FnMut(LostBlock),
    note: &mut dyn FnMut(String),
) -> Result<Vec<Stream>, EngineError> {
    let mut streams = Vec::new();
    for (id, path) in tables {
        let fail = |why: io::Error| io_error(&format!("reading table {}", path.display()), &why);
        if fs::metadata(&path).map_err(fail)?.len() > TABLE_BYTES_MAX {
            note(format!(
                "table {} is larger than any that this program writes; left out",
                path.display()
            ));
            continue;
        }
        let bytes = fs::read(&path).map_err(fail)?;
        let (stretches, is_packed) = stretches_of(&bytes);
        let compression = if is_packed { CompressionType::Lz4 } else { CompressionType::None };
        let is_whole = stretches.len() == 1;
        let mut damage: Option<(u64, Option<Vec<u8>>)> = None;
        for (index, stretch) in stretches.into_iter().enumerate() {
            if let Some((offset, after)) = damage.take() {
                let before = stretch.blocks.first().and_then(|block| {
                    let file =
                        copy_of(&bytes, std::slice::from_ref(block), scratch, "probe").ok()?;
                    keys_of(&file, 1, compression).map(|(first, _)| first)
                });
                if stretch.blocks.is_empty() && stretch.damage.is_some() {
                    // Damage goes on: one loss, not several.
                    damage = Some((offset, after));
                    continue;
                }
                lost(LostBlock { file: path.clone(), offset, after, before });
            }
            let file = if is_whole || stretch.blocks.is_empty() {
                path.clone()
            } else {
                copy_of(&bytes, &stretch.blocks, scratch, &format!("{id}.{index}")).map_err(fail)?
            };
            if let Some(offset) = stretch.damage {
                let last = keys_of(&file, stretch.blocks.len(), compression).map(|(_, last)| last);
                damage = Some((offset, last));
            }
            if stretch.blocks.is_empty() {
                continue;
            }
            let scanned = guarded(|| {
                Scanner::new(&file, stretch.blocks.len(), compression, added(id).unwrap_or(0)).ok()
            });
            if let Some(mut rows) = scanned
                && let Some(head) = guarded(|| rows.next()?.ok())
            {
                streams.push(Stream { rows, table: added(id).is_none().then_some(id), head });
            }
        }
        if let Some((offset, after)) = damage {
            lost(LostBlock { file: path.clone(), offset, after, before: None });
        }
    }
    Ok(streams)
}

/// The tree asserts things about its files.
fn guarded<R>(work: impl FnOnce() -> Option<R>) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work)).ok().flatten()
}

/// A file of nothing but `blocks`.
fn copy_of(
    bytes: &[u8],
    blocks: &[Range<usize>],
    scratch: &Path,
    name: &str,
) -> io::Result<PathBuf> {
    let path = scratch.join(format!("table.{name}.tmp"));
    let mut file = File::create(&path)?;
    for block in blocks {
        file.write_all(&bytes[block.clone()])?;
    }
    Ok(path)
}

/// The first and the last key of a file of so many data blocks.
fn keys_of(file: &Path, blocks: usize, compression: CompressionType) -> Option<(Vec<u8>, Vec<u8>)> {
    if blocks == 0 {
        return None;
    }
    guarded(|| {
        let mut rows = Scanner::new(file, blocks, compression, 0).ok()?.map_while(Result::ok);
        let first = rows.next()?.key.user_key.to_vec();
        let last = rows.last().map_or_else(|| first.clone(), |row| row.key.user_key.to_vec());
        Some((first, last))
    })
}

/// Gives the newest version of each row to `row`.
fn merge(streams: Vec<Stream>, row: &mut VisitBytes<'_>) -> Result<(), EngineError> {
    let mut heap = BinaryHeap::from(streams);
    let mut done: Option<lsm_tree::UserKey> = None;
    while let Some(mut stream) = heap.pop() {
        let next = guarded(|| stream.rows.next()?.ok());
        let head = match next {
            Some(next) => {
                let head = std::mem::replace(&mut stream.head, next);
                heap.push(stream);
                head
            }
            None => stream.head,
        };
        if done.as_ref() == Some(&head.key.user_key) {
            continue;
        }
        if !head.is_tombstone() {
            row(&head.key.user_key, &head.value)?;
        }
        done = Some(head.key.user_key);
    }
    Ok(())
}
