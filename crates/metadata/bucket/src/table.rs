//! Tables: immutable sorted rows in one object (`docs/format/bucket.md`, "Tables").
//!
//! A table is a sequence of blocks, and a *head* behind them: the index of the blocks, a bloom
//! filter, and a footer that names volume, node and table. A reader fetches the head once and then
//! the blocks that it needs. Each checksum begins with the identity of the table, and that of a
//! block with its place too, so that bytes of another table or place are never taken for right.

use kestrel_engine::EngineError;
use kestrel_types::key::{PREFIX_LEN, SUFFIX_MAX};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::hex;
use crate::wire::{Reader, corrupt};

/// Version of the format of tables.
pub const TABLE_VERSION: u32 = 1;

/// A block is full from so many bytes on, before compression.
const BLOCK_BYTES: usize = 32 << 10;

/// A table is full from so many bytes on.
pub const TABLE_BYTES: usize = 32 << 20;

/// No table has so many bytes: rows end it far below.
const OBJECT_BYTES_MAX: u64 = 1 << 40;

/// Bits of bloom filter a row, and hashes: 1 % false positives.
const BLOOM_BITS: usize = 10;
const BLOOM_HASHES: u64 = 7;

/// What the names of tables begin with, below that of the node.
pub const TABLES: &str = "table/";

const MAGIC: &[u8; 8] = b"kstable\0";
const FOOTER_BYTES: usize = 56;
/// Head of a stored block: length of its rows, codec.
const BLOCK_HEAD: usize = 8;
/// Before each row: lengths of key and value.
const ROW_HEAD: usize = 6;
/// The length of a value that is none: the row was deleted.
const DELETED: u32 = u32::MAX;
/// Most bytes of a block before compression: one row of the largest key and value, with room.
const RAW_MAX: usize = 32 << 20;

/// Which table of which node of which volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableIdentity {
    /// The volume.
    pub uuid: [u8; 16],
    /// The node that owns these rows.
    pub node: u32,
    /// The epoch of the process that wrote it, and a number of that process.
    pub id: u64,
}

impl TableIdentity {
    /// The name of the object, below that of the node.
    pub fn name(&self) -> String {
        format!("{TABLES}{:016x}", self.id)
    }

    /// The checksum of something at a place in the object.
    pub fn checksum(&self, place: u64, parts: &[&[u8]]) -> u32 {
        let mut sum = crc32c::crc32c(&self.uuid);
        for part in [&self.node.to_le_bytes()[..], &self.id.to_le_bytes(), &place.to_le_bytes()] {
            sum = crc32c::crc32c_append(sum, part);
        }
        parts.iter().fold(sum, |sum, part| crc32c::crc32c_append(sum, part))
    }
}

/// What a manifest says of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableRecord {
    /// See [`TableIdentity::id`].
    pub id: u64,
    /// Its first key.
    #[serde(with = "hex")]
    pub first: Vec<u8>,
    /// Its last key.
    #[serde(with = "hex")]
    pub last: Vec<u8>,
    /// Rows, deleted ones among them.
    pub rows: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// Where its head begins.
    pub head: u64,
}

/// Whether tables make a run: they do not overlap, are in ascending order, and have sizes that they
/// can have, so that sums of those of one manifest do not overflow.
pub fn is_run(tables: &[TableRecord]) -> bool {
    let can_be = |table: &TableRecord| {
        table.first <= table.last && table.head < table.bytes && table.bytes < OBJECT_BYTES_MAX
    };
    tables.iter().all(can_be) && tables.windows(2).all(|pair| pair[0].last < pair[1].first)
}

/// Whether blocks are one directly behind the other, up to where the head begins, and their first
/// keys ascend.
fn is_index(entries: &[IndexEntry], head: u64) -> bool {
    let mut end = 0u64;
    let adjoin = entries.iter().all(|entry| {
        let begin = std::mem::replace(&mut end, entry.offset.saturating_add(entry.bytes.into()));
        entry.offset == begin
    });
    adjoin && end == head && entries.is_sorted_by(|one, next| one.first < next.first)
}

struct IndexEntry {
    first: Vec<u8>,
    offset: u64,
    bytes: u32,
}

/// Writes a table. Keys must ascend.
pub struct TableWriter {
    identity: TableIdentity,
    out: Vec<u8>,
    block: Vec<u8>,
    offsets: Vec<u32>,
    block_first: Vec<u8>,
    index: Vec<IndexEntry>,
    hashes: Vec<u64>,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl TableWriter {
    /// An empty table.
    pub fn new(identity: TableIdentity) -> Self {
        Self {
            identity,
            out: Vec::new(),
            block: Vec::new(),
            offsets: Vec::new(),
            block_first: Vec::new(),
            index: Vec::new(),
            hashes: Vec::new(),
            first: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Adds a row; `None`: it is deleted.
    pub fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        if self.hashes.is_empty() {
            self.first = key.to_vec();
        }
        if self.offsets.is_empty() {
            self.block_first = key.to_vec();
        }
        // Keys and values are bounded by the engine, far below these types' bounds.
        self.offsets.push(self.block.len() as u32);
        self.block.extend_from_slice(&(key.len() as u16).to_le_bytes());
        let len = value.map_or(DELETED, |value| value.len() as u32);
        self.block.extend_from_slice(&len.to_le_bytes());
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value.unwrap_or_default());
        self.hashes.push(xxh3_64(key));
        self.last.clear();
        self.last.extend_from_slice(key);
        if self.block.len() >= BLOCK_BYTES {
            self.end_block();
        }
    }

    /// Adds all rows of a block of another table as they are stored there.
    pub fn add_block(&mut self, block: &Block, stored: &[u8]) {
        let (Some(first), Some(last)) = (block.key(0), block.key(block.rows().wrapping_sub(1)))
        else {
            return;
        };
        self.end_block();
        if self.hashes.is_empty() {
            self.first = first.to_vec();
        }
        self.hashes.extend(block.keys().map(xxh3_64));
        self.last.clear();
        self.last.extend_from_slice(last);
        let (offset, body) = (self.out.len() as u64, stored.len().saturating_sub(4));
        // The checksum has the identity of the table and the place in it.
        let sum = self.identity.checksum(offset, &[&stored[..body]]);
        self.out.extend_from_slice(&stored[..body]);
        self.out.extend_from_slice(&sum.to_le_bytes());
        let bytes = (self.out.len() as u64 - offset) as u32;
        self.index.push(IndexEntry { first: first.to_vec(), offset, bytes });
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.out.len() + self.block.len()
    }

    fn end_block(&mut self) {
        if self.offsets.is_empty() {
            return;
        }
        for offset in &self.offsets {
            self.block.extend_from_slice(&offset.to_le_bytes());
        }
        self.block.extend_from_slice(&(self.offsets.len() as u32).to_le_bytes());
        let packed = lz4_flex::block::compress(&self.block);
        let (codec, stored) =
            if packed.len() < self.block.len() { (1u32, &packed) } else { (0, &self.block) };
        let offset = self.out.len() as u64;
        let mut head = (self.block.len() as u32).to_le_bytes().to_vec();
        head.extend_from_slice(&codec.to_le_bytes());
        let sum = self.identity.checksum(offset, &[&head, stored]);
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(stored);
        self.out.extend_from_slice(&sum.to_le_bytes());
        let bytes = (self.out.len() as u64 - offset) as u32;
        self.index.push(IndexEntry { first: std::mem::take(&mut self.block_first), offset, bytes });
        self.block.clear();
        self.offsets.clear();
    }

    /// The object, and what the manifest is to say of it.
    pub fn finish(mut self) -> (Vec<u8>, TableRecord) {
        self.end_block();
        let head = self.out.len();
        let mut tail = Vec::new();
        for IndexEntry { first, offset, bytes } in &self.index {
            tail.extend_from_slice(&offset.to_le_bytes());
            tail.extend_from_slice(&bytes.to_le_bytes());
            tail.extend_from_slice(&(first.len() as u16).to_le_bytes());
            tail.extend_from_slice(first);
        }
        let index_bytes = tail.len();
        let words = (self.hashes.len() * BLOOM_BITS).div_ceil(64).max(1);
        let mut bloom = vec![0u64; words];
        for hash in &self.hashes {
            for bit in bloom_bits(*hash, words) {
                bloom[(bit / 64) as usize] |= 1 << (bit % 64);
            }
        }
        bloom.iter().for_each(|word| tail.extend_from_slice(&word.to_le_bytes()));
        tail.extend_from_slice(MAGIC);
        tail.extend_from_slice(&TABLE_VERSION.to_le_bytes());
        tail.extend_from_slice(&self.identity.node.to_le_bytes());
        tail.extend_from_slice(&self.identity.uuid);
        tail.extend_from_slice(&self.identity.id.to_le_bytes());
        tail.extend_from_slice(&(self.index.len() as u32).to_le_bytes());
        tail.extend_from_slice(&(index_bytes as u32).to_le_bytes());
        tail.extend_from_slice(&(words as u32).to_le_bytes());
        let sum = self.identity.checksum(head as u64, &[&tail]);
        tail.extend_from_slice(&sum.to_le_bytes());
        self.out.extend_from_slice(&tail);
        let record = TableRecord {
            id: self.identity.id,
            first: self.first,
            last: self.last,
            rows: self.hashes.len() as u64,
            bytes: self.out.len() as u64,
            head: head as u64,
        };
        (self.out, record)
    }
}

/// The bits of a key in a filter of so many words.
fn bloom_bits(hash: u64, words: usize) -> impl Iterator<Item = u64> {
    let bits = words as u64 * 64;
    let step = (hash >> 32) | 1;
    (0..BLOOM_HASHES).map(move |number| hash.wrapping_add(number.wrapping_mul(step)) % bits)
}

/// Index and bloom filter of a table.
pub struct TableHead {
    identity: TableIdentity,
    index: Vec<IndexEntry>,
    bloom: Box<[u64]>,
}

impl TableHead {
    /// Reads a head: all bytes of the object from `at` on.
    ///
    /// # Errors
    /// `Refused` for a newer format, `Corrupt` for what is not this table's head.
    pub fn decode(identity: TableIdentity, at: u64, bytes: &[u8]) -> Result<Self, EngineError> {
        let name = identity.name();
        let bad = |why: &str| corrupt(&name, why);
        let (body, footer) = bytes
            .split_at_checked(bytes.len().wrapping_sub(FOOTER_BYTES))
            .ok_or_else(|| bad("its head is cut off"))?;
        let mut reader = Reader(footer);
        if reader.take::<8>().as_ref() != Some(MAGIC) {
            return Err(bad("it has no footer of a table"));
        }
        let version = reader.u32().unwrap_or(0);
        if version != TABLE_VERSION {
            return Err(EngineError::Refused(format!(
                "metadata in a bucket: {name} has format {version}, which is not known to this \
                 program; use a newer one"
            )));
        }
        let found = (reader.u32(), reader.take::<16>(), reader.u64());
        if found != (Some(identity.node), Some(identity.uuid), Some(identity.id)) {
            return Err(bad("it is another table"));
        }
        let lens = (reader.u32(), reader.u32(), reader.u32(), reader.u32());
        let (Some(blocks), Some(index_bytes), Some(words), Some(sum)) = lens else {
            return Err(bad("its footer is cut off"));
        };
        if identity.checksum(at, &[&bytes[..bytes.len() - 4]]) != sum {
            return Err(bad("the checksum of its head does not match"));
        }
        let (index, bloom) = body
            .split_at_checked(index_bytes as usize)
            .filter(|(_, bloom)| bloom.len() == words as usize * 8 && words > 0)
            .ok_or_else(|| bad("the parts of its head contradict each other"))?;
        let mut reader = Reader(index);
        let mut entries = Vec::with_capacity((blocks as usize).min(index.len()));
        for _ in 0..blocks {
            let entry = (|| {
                let (offset, bytes, len) = (reader.u64()?, reader.u32()?, reader.u16()?);
                let first = reader.bytes(len.into())?.to_vec();
                Some(IndexEntry { first, offset, bytes })
            })();
            entries.push(entry.ok_or_else(|| bad("its index is cut off"))?);
        }
        if !is_index(&entries, at) {
            return Err(bad("its index names other blocks than there can be"));
        }
        // The chunks have 8 bytes each.
        let bloom = bloom.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        Ok(Self { identity, index: entries, bloom: bloom.collect() })
    }

    /// The same without the bloom filter, which is most of it: for a process that reads ranges.
    pub fn into_index(self) -> Self {
        Self { bloom: Box::default(), ..self }
    }

    /// Whether the table may have a row of this key.
    pub fn may_have(&self, key: &[u8]) -> bool {
        if self.bloom.is_empty() {
            return true;
        }
        let mut bits = bloom_bits(xxh3_64(key), self.bloom.len());
        bits.all(|bit| self.bloom[(bit / 64) as usize] & (1 << (bit % 64)) != 0)
    }

    /// The block that a key would be in; `None`: it is before the first one.
    pub fn block_of(&self, key: &[u8]) -> Option<usize> {
        self.index.partition_point(|entry| entry.first.as_slice() <= key).checked_sub(1)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.index.len()
    }

    /// The blocks in order: their first keys and their lengths.
    pub fn index(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.index.iter().map(|entry| (entry.first.as_slice(), entry.bytes.into()))
    }

    /// Where a block is: offset and length.
    pub fn place(&self, block: usize) -> Option<(u64, u64)> {
        self.index.get(block).map(|entry| (entry.offset, entry.bytes.into()))
    }

    /// Bytes in memory, about.
    pub fn weight(&self) -> usize {
        let index: usize = self.index.iter().map(|entry| entry.first.len() + 40).sum();
        index + self.bloom.len() * 8
    }

    /// Reads a block.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are not it.
    pub fn decode_block(&self, block: usize, bytes: &[u8]) -> Result<Block, EngineError> {
        let name = self.identity.name();
        let bad = |why: &str| corrupt(&name, &format!("block {block}: {why}"));
        let (offset, _) = self.place(block).ok_or_else(|| bad("there is none"))?;
        let (stored, sum) = bytes.split_last_chunk::<4>().ok_or_else(|| bad("it is cut off"))?;
        let mut reader = Reader(stored);
        let (Some(raw), Some(codec)) = (reader.u32(), reader.u32()) else {
            return Err(bad("it is cut off"));
        };
        if self.identity.checksum(offset, &[stored]) != u32::from_le_bytes(*sum) {
            return Err(bad("its checksum does not match"));
        }
        let body = &stored[BLOCK_HEAD..];
        let rows = match codec {
            0 => body.to_vec(),
            1 if raw as usize <= RAW_MAX => lz4_flex::block::decompress(body, raw as usize)
                .map_err(|why| bad(&format!("it cannot be decompressed: {why}")))?,
            _ => return Err(bad("its codec is not known")),
        };
        Block::new(rows).ok_or_else(|| bad("its rows contradict each other"))
    }
}

/// A key, and its value or that it was deleted.
pub type TableRow<'a> = (&'a [u8], Option<&'a [u8]>);

/// Rows of a block.
#[derive(Debug, Default)]
pub struct Block {
    raw: Vec<u8>,
    /// Where the offsets begin.
    offsets: usize,
    /// Rows of it are stored as deleted.
    has_deleted: bool,
}

impl Block {
    /// Rows as they are stored, if each is where its offset says.
    fn new(raw: Vec<u8>) -> Option<Self> {
        let (body, count) = raw.split_last_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        let offsets = body.len().checked_sub(count.checked_mul(4)?)?;
        let mut block = Self { raw, offsets, has_deleted: false };
        let (mut before, mut has_deleted) = (None::<&[u8]>, false);
        for row in 0..count {
            let (key, value) = block.row(row)?;
            has_deleted |= value.is_none();
            let is_key = (PREFIX_LEN..=PREFIX_LEN + SUFFIX_MAX).contains(&key.len());
            if !is_key || before.is_some_and(|before| before >= key) {
                return None;
            }
            before = Some(key);
        }
        block.has_deleted = has_deleted;
        Some(block)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        ((self.raw.len() - self.offsets) / 4).saturating_sub(1)
    }

    /// Whether rows of it are stored as deleted.
    pub fn has_deleted(&self) -> bool {
        self.has_deleted
    }

    /// The keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.rows()).filter_map(|row| self.key(row))
    }

    /// The key of a row, if there are so many.
    pub fn key(&self, row: usize) -> Option<&[u8]> {
        self.row(row).map(|(key, _)| key)
    }

    /// A row, if there are so many.
    pub fn row(&self, row: usize) -> Option<TableRow<'_>> {
        if row >= self.rows() {
            return None;
        }
        let at = self.raw.get(self.offsets + row * 4..)?.first_chunk::<4>()?;
        let mut reader = Reader(self.raw.get(u32::from_le_bytes(*at) as usize..self.offsets)?);
        let (key_len, len) = (reader.u16()?, reader.u32()?);
        let key = reader.bytes(key_len.into())?;
        let value = if len == DELETED { None } else { Some(reader.bytes(len as usize)?) };
        Some((key, value))
    }

    /// The first row with this key or one above.
    pub fn from(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.rows());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.row(middle).is_some_and(|(found, _)| found < key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// What the block says of a key.
    pub fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let (found, value) = self.row(self.from(key))?;
        (found == key).then_some(value)
    }

    /// Bytes in memory, about.
    pub fn weight(&self) -> usize {
        self.raw.len() + ROW_HEAD
    }
}
