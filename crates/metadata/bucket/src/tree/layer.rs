//! Rows of a version below those of a job that was begun on it, with their numbers translated.
//!
//! Each version numbers the inodes that it made. A job that has several versions below it has one
//! numbering for all of them ([`NumberSpan`]): the numbers that a version gave keep their order,
//! and are moved to where they collide with no others. What a layer reads it translates on the way.
//!
//! Directories that unrelated versions made under one path are one directory. Their numbers are
//! *aliases* of one of them ([`Aliases`]).

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_engine::row_cache::Bytes;
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::ids::{FIRST_INODE, InodeId};
use kestrel_types::inode::Inode;
use kestrel_types::key::{KeyRef, PREFIX_LEN, Table};
use serde::{Deserialize, Serialize};

use crate::tree::{Merged, SourceRow, Tree};

/// Tables with the rows of a tree, which are seen through a layer. Rows of other tables are those
/// of the process that wrote them.
pub const TREE_TABLES: [Table; 7] = [
    Table::Entry,
    Table::DirStat,
    Table::DirId,
    Table::Subdir,
    Table::Link,
    Table::Chunk,
    Table::Xattr,
];

/// Inode numbers that one version gave, `first..end`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberSpan {
    /// Identity of the version, 32 hexadecimal digits.
    pub id: String,
    /// The first number.
    pub first: InodeId,
    /// Behind the last one.
    pub end: InodeId,
}

/// Directories with several numbers: each number is an alias of one of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Aliases {
    /// Of an alias the number that the directory has.
    number_of: HashMap<InodeId, InodeId>,
    /// Of a directory its aliases, in order.
    aliases_of: HashMap<InodeId, Vec<InodeId>>,
}

impl Aliases {
    /// From pairs: an alias, and the number that the directory has.
    pub fn new(pairs: impl IntoIterator<Item = (InodeId, InodeId)>) -> Self {
        let mut made = Self::default();
        for (alias, number) in pairs {
            made.number_of.insert(alias, number);
            made.aliases_of.entry(number).or_default().push(alias);
        }
        made.aliases_of.values_mut().for_each(|aliases| aliases.sort_unstable());
        made
    }

    /// All pairs, ordered.
    pub fn pairs(&self) -> Vec<(InodeId, InodeId)> {
        let mut pairs: Vec<_> = self.number_of.iter().map(|(one, other)| (*one, *other)).collect();
        pairs.sort_unstable();
        pairs
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.number_of.is_empty()
    }

    /// The number that the directory of this number has; other numbers stay what they are.
    pub fn number_of(&self, number: InodeId) -> InodeId {
        self.number_of.get(&number).copied().unwrap_or(number)
    }

    /// Other numbers of a directory.
    fn aliases_of(&self, number: InodeId) -> &[InodeId] {
        self.aliases_of.get(&number).map_or(&[], Vec::as_slice)
    }
}

/// Numbers in a layer's tables that follow each other and stay so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// The first number as it is read, and the one behind the last.
    first: InodeId,
    end: InodeId,
    /// The first number as it is stored.
    stored: InodeId,
}

/// How numbers in a layer's tables are translated.
#[derive(Debug, Default)]
pub struct Mapping {
    /// By the numbers as they are stored, without aliases.
    by_stored: Vec<Piece>,
    /// By the numbers as they are read, with aliases.
    by_read: Vec<Piece>,
    aliases: Arc<Aliases>,
    /// Everything stays what it is.
    is_identity: bool,
}

impl Mapping {
    /// For a layer with numbers as `stored` says, read as `read` says.
    ///
    /// # Errors
    /// Which version `read` lacks, or has other numbers of.
    pub fn new(
        stored: &[NumberSpan],
        read: &[NumberSpan],
        aliases: Arc<Aliases>,
    ) -> Result<Self, String> {
        let mut by_stored = vec![Piece { first: 0, end: FIRST_INODE, stored: 0 }];
        for span in stored {
            let found = read.iter().find(|other| other.id == span.id);
            let found =
                found.ok_or_else(|| format!("numbers of version {} are missing", span.id))?;
            let len = |span: &NumberSpan| span.end.checked_sub(span.first);
            if len(found).is_none() || len(found) != len(span) {
                return Err(format!("version {} has other numbers than it had", span.id));
            }
            by_stored.push(Piece { first: found.first, end: found.end, stored: span.first });
        }
        by_stored.sort_unstable_by_key(|piece| piece.stored);
        let is_identity =
            aliases.is_empty() && by_stored.iter().all(|piece| piece.first == piece.stored);
        let by_read = match is_identity {
            true => vec![Piece { first: 0, end: InodeId::MAX, stored: 0 }],
            false => Self::with_aliases(&by_stored, &aliases),
        };
        Ok(Self { by_stored, by_read, aliases, is_identity })
    }

    /// Pieces in the order in which their rows are read: numbers that are aliases are read as those
    /// of their directories. No piece begins within another one.
    fn with_aliases(by_stored: &[Piece], aliases: &Aliases) -> Vec<Piece> {
        let mut cuts: Vec<InodeId> =
            aliases.pairs().into_iter().flat_map(|(alias, number)| [alias, number]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces = Vec::with_capacity(by_stored.len() + 2 * cuts.len());
        for piece in by_stored {
            let mut rest = *piece;
            let from = cuts.partition_point(|cut| *cut < piece.first);
            for cut in cuts[from..].iter().take_while(|cut| **cut < piece.end) {
                let stored = rest.stored + (cut - rest.first);
                let number = aliases.number_of(*cut);
                pieces.push(Piece { end: *cut, ..rest });
                pieces.push(Piece { first: number, end: number + 1, stored });
                rest = Piece { first: cut + 1, end: rest.end, stored: stored + 1 };
            }
            pieces.push(rest);
        }
        pieces.retain(|piece| piece.first < piece.end);
        pieces.sort_unstable_by_key(|piece| (piece.first, piece.stored));
        pieces
    }

    /// A number as it is read.
    pub fn read(&self, stored: InodeId) -> Option<InodeId> {
        let at = self.by_stored.partition_point(|piece| piece.stored <= stored);
        let piece = self.by_stored.get(at.checked_sub(1)?)?;
        let number = piece.first + (stored - piece.stored);
        (number < piece.end).then(|| self.aliases.number_of(number))
    }

    /// Numbers as they may be stored.
    fn stored(&self, read: InodeId) -> impl Iterator<Item = InodeId> {
        let all = std::iter::once(read).chain(self.aliases.aliases_of(read).iter().copied());
        all.filter_map(|number| {
            let piece = self.by_stored.iter().find(|it| (it.first..it.end).contains(&number))?;
            Some(piece.stored + (number - piece.first))
        })
    }

    /// A value as it is read.
    pub fn value(&self, table: Table, stored: Bytes) -> Result<Bytes, EngineError> {
        let unknown = || DecodeError("a number that no version of it gave");
        let number = |stored: InodeId| self.read(stored).ok_or_else(unknown);
        let translate = || -> Result<Option<Bytes>, DecodeError> {
            Ok(match table {
                Table::Entry => Entry::renumbered(&stored, number)?.map(|row| row[..].into()),
                Table::Link => {
                    let mut reader = Reader::new(&stored);
                    let inode = Inode::decode(&mut reader)?;
                    reader.end()?;
                    let mut out = Vec::with_capacity(stored.len() + 8);
                    Inode { ino: number(inode.ino)?, ..inode }.encode_into(&mut out);
                    Some(out[..].into())
                }
                Table::DirId => {
                    // A version, the parent, and a name.
                    let (version, rest) =
                        stored.split_first().ok_or(DecodeError("an empty place"))?;
                    let (parent, name) =
                        rest.split_first_chunk().ok_or(DecodeError("a place cut short"))?;
                    let parent = number(u64::from_be_bytes(*parent))?.to_be_bytes();
                    Some([&[*version], &parent[..], name].concat()[..].into())
                }
                _ => None,
            })
        };
        match translate() {
            Ok(translated) => Ok(translated.unwrap_or(stored)),
            Err(DecodeError(why)) => Err(EngineError::Corrupt(format!("a row of it: {why}"))),
        }
    }
}

/// Whether a row belongs to the process that reads it, by its key as it is read: of the rows below
/// a job that several processes serve each sees those that are its own. The answer for a key is
/// always the same.
pub type OwnsRow = Arc<dyn Fn(KeyRef<'_>) -> bool + Send + Sync>;

/// See the module's header.
pub struct Layer {
    tree: Tree,
    mapping: Mapping,
    /// Which rows are seen; none: all.
    owns: Option<OwnsRow>,
    /// Name of the version, for errors.
    name: String,
}

impl Layer {
    /// Bytes of its tables.
    pub fn table_bytes(&self) -> u64 {
        self.tree.view().table_bytes()
    }

    /// Shows the blocks of its tables by their first keys, and how many bytes each has.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn visit_index(&self, mut visit: impl FnMut(Vec<u8>, u64)) -> Result<(), EngineError> {
        for table in self.tree.view().runs.iter().flat_map(|run| run.iter()) {
            let index = self.tree.index(table).map_err(|why| self.named(why))?;
            for (first, bytes) in index.index() {
                let Some(key) = KeyRef::decode(first) else { continue };
                // A key of a table that is not seen cuts nothing.
                let Some(id) = self.mapping.read(key.id) else { continue };
                let mut cut = Vec::with_capacity(first.len());
                KeyRef { id, ..key }.encode_into(&mut cut);
                visit(cut, bytes);
            }
        }
        Ok(())
    }

    /// The rows of this tree.
    pub fn new(tree: Tree, mapping: Mapping, name: &str) -> Self {
        Self { tree, mapping, owns: None, name: name.into() }
    }

    /// The same with no others than those that `owns` tells.
    pub fn only(self, owns: Option<OwnsRow>) -> Self {
        Self { owns, ..self }
    }

    fn shows(&self, key: KeyRef<'_>) -> bool {
        self.owns.as_ref().is_none_or(|owns| owns(key))
    }

    fn shows_key(&self, key: &[u8]) -> bool {
        self.owns.is_none() || KeyRef::decode(key).is_some_and(|key| self.shows(key))
    }

    /// What it says of a key: its value, or that it is deleted.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Option<Bytes>>, EngineError> {
        self.look(key).map_err(|why| self.named(why))
    }

    fn look(&self, key: &[u8]) -> Result<Option<Option<Bytes>>, EngineError> {
        let Some(KeyRef { table, id, suffix }) = KeyRef::decode(key) else { return Ok(None) };
        if !TREE_TABLES.contains(&table) || !self.shows(KeyRef::new(table, id, suffix)) {
            return Ok(None);
        }
        let view = self.tree.view();
        if self.mapping.is_identity {
            return self.tree.get_own(&view, key);
        }
        let mut stored = Vec::with_capacity(key.len());
        for id in self.mapping.stored(id) {
            let children: Vec<Box<[u8]>> = match (table, <[u8; 8]>::try_from(suffix)) {
                (Table::Subdir, Ok(child)) => {
                    let child = self.mapping.stored(u64::from_be_bytes(child));
                    child.map(|child| child.to_be_bytes()[..].into()).collect()
                }
                _ => vec![suffix.into()],
            };
            for suffix in children {
                stored.clear();
                KeyRef::new(table, id, &suffix).encode_into(&mut stored);
                if let Some(found) = self.tree.get_own(&view, &stored)? {
                    let value = found.map(|value| self.mapping.value(table, value));
                    return Ok(Some(value.transpose()?));
                }
            }
        }
        Ok(None)
    }

    /// Rows from one encoded key on up to another one, deleted ones among them.
    pub fn rows(self: &Arc<Self>, (from, to): (&[u8], &[u8])) -> LayerRows {
        let (lower, upper) = (Bound::of(from), Bound::of(to));
        let mut parts = VecDeque::new();
        for table in TREE_TABLES {
            let number = table as u8;
            if from >= to || number < lower.table || number > upper.table {
                continue;
            }
            let first = if number == lower.table { lower.id } else { 0 };
            let at = self.mapping.by_read.partition_point(|piece| piece.end <= first);
            for piece in &self.mapping.by_read[at..] {
                if number == upper.table && (piece.first, &[][..]) >= (upper.id, upper.suffix) {
                    break;
                }
                parts.push_back(self.part(table, piece, (&lower, &upper)));
            }
        }
        LayerRows {
            layer: LayerTree(self.clone()),
            parts,
            rows: None,
            sorted: Vec::new(),
            next: None,
        }
    }

    /// The rows of a piece within bounds, as they are stored.
    fn part(&self, table: Table, piece: &Piece, (lower, upper): (&Bound, &Bound)) -> Part {
        // Children of a directory are stored in another order than they are read in.
        let is_ordered = table != Table::Subdir || self.mapping.is_identity;
        let stored_key = |id: InodeId, suffix: &[u8]| {
            let mut key = Vec::with_capacity(PREFIX_LEN + suffix.len());
            KeyRef::new(table, id, suffix).encode_into(&mut key);
            key
        };
        let has = |bound: &Bound| {
            bound.table == table as u8 && (piece.first..piece.end).contains(&bound.id)
        };
        let stored = |id: InodeId| piece.stored + (id - piece.first);
        let from = match has(lower) {
            true if is_ordered => stored_key(stored(lower.id), lower.suffix),
            true => stored_key(stored(lower.id), &[]),
            false => stored_key(piece.stored, &[]),
        };
        let to = match has(upper) {
            true if is_ordered => stored_key(stored(upper.id), upper.suffix),
            true => stored_key(stored(upper.id) + 1, &[]),
            false => stored_key(stored(piece.end), &[]),
        };
        let within = (!is_ordered).then(|| (lower.key(), upper.key()));
        Part { table, shift: piece.first.wrapping_sub(piece.stored), from, to, within }
    }

    fn named(&self, why: EngineError) -> EngineError {
        named(&self.name, why)
    }
}

/// An error of reading a version, with its name.
pub fn named(name: &str, why: EngineError) -> EngineError {
    match why {
        EngineError::Io(why) => {
            EngineError::Io(format!("version {name}: a table is missing or cannot be read: {why}"))
        }
        EngineError::Corrupt(why) => EngineError::Corrupt(format!("version {name}: {why}")),
        other => other,
    }
}

/// A bound of keys, taken apart: what is missing of it is zeros.
struct Bound<'a> {
    table: u8,
    id: u64,
    suffix: &'a [u8],
}

impl<'a> Bound<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let mut head = [0; PREFIX_LEN];
        let len = bytes.len().min(PREFIX_LEN);
        head[..len].copy_from_slice(&bytes[..len]);
        let [table, id @ ..] = head;
        Self { table, id: u64::from_be_bytes(id), suffix: &bytes[len..] }
    }

    fn key(&self) -> Vec<u8> {
        [&[self.table], &self.id.to_be_bytes()[..], self.suffix].concat()
    }
}

/// The tree of a layer that is shared.
#[derive(Clone)]
struct LayerTree(Arc<Layer>);

impl Deref for LayerTree {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.0.tree
    }
}

/// Rows that are stored one behind the other.
struct Part {
    table: Table,
    /// What is added to the ids of their keys.
    shift: u64,
    /// As they are stored.
    from: Vec<u8>,
    to: Vec<u8>,
    /// Of rows that are read in another order: from which key on up to which.
    within: Option<(Vec<u8>, Vec<u8>)>,
}

/// Rows of a layer, in the order of their keys as they are read.
pub struct LayerRows {
    layer: LayerTree,
    parts: VecDeque<Part>,
    rows: Option<(Part, Merged<LayerTree>)>,
    /// Rows of one directory that had to be ordered, the next one last.
    sorted: Vec<SourceRow>,
    /// The first row of the directory behind these.
    next: Option<SourceRow>,
}

impl LayerRows {
    /// The next row, deleted or not.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn next_row(&mut self) -> Result<Option<SourceRow>, EngineError> {
        let found = self.advance();
        found.map_err(|why| self.layer.0.named(why))
    }

    fn advance(&mut self) -> Result<Option<SourceRow>, EngineError> {
        loop {
            if let Some(row) = self.sorted.pop() {
                return Ok(Some(row));
            }
            if self.rows.is_none() {
                let Some(part) = self.parts.pop_front() else { return Ok(None) };
                let tree = &self.layer;
                let rows = Merged::over_own(tree, &tree.view(), (&part.from, &part.to));
                self.rows = Some((part, rows));
            }
            let Some((part, rows)) = &mut self.rows else { return Ok(None) };
            if part.within.is_some() {
                self.sort_directory()?;
                continue;
            }
            match rows.next_row()? {
                Some((key, value)) => {
                    let key = moved(&key, part.shift);
                    if !self.layer.0.shows_key(&key) {
                        continue;
                    }
                    let mapping = &self.layer.0.mapping;
                    let value = match value {
                        Some(value) if !mapping.is_identity => {
                            Some(mapping.value(part.table, value)?)
                        }
                        other => other,
                    };
                    return Ok(Some((key, value)));
                }
                None => self.rows = None,
            }
        }
    }

    /// Takes the rows of one directory out of a part that is read in another order.
    fn sort_directory(&mut self) -> Result<(), EngineError> {
        let Some((part, rows)) = &mut self.rows else { return Ok(()) };
        let within = part.within.clone();
        let mut next = self.next.take();
        loop {
            let row = match next.take() {
                Some(row) => Some(row),
                None => rows.next_row()?,
            };
            let Some((key, value)) = row else {
                self.rows = None;
                break;
            };
            let key = moved(&key, part.shift);
            let is_other = |(last, _): &SourceRow| last[..PREFIX_LEN] != key[..PREFIX_LEN];
            if self.sorted.last().is_some_and(is_other) {
                // It is moved again when it is taken.
                self.next = Some((moved(&key, part.shift.wrapping_neg()), value));
                break;
            }
            let child = <[u8; 8]>::try_from(&key[PREFIX_LEN..]).map(u64::from_be_bytes);
            let child = child.ok().and_then(|child| self.layer.0.mapping.read(child));
            let child = child.ok_or_else(|| {
                EngineError::Corrupt("a row of it: a directory that no version of it made".into())
            })?;
            let key: Bytes = [&key[..PREFIX_LEN], &child.to_be_bytes()].concat()[..].into();
            self.sorted.push((key, value));
        }
        if let Some((from, to)) = within {
            let layer = &self.layer.0;
            let is_seen = |key: &[u8]| *key >= *from && *key < *to && layer.shows_key(key);
            self.sorted.retain(|(key, _)| is_seen(key));
        }
        self.sorted.sort_unstable_by(|one, other| other.0.cmp(&one.0));
        Ok(())
    }
}

/// A key with something added to its id.
fn moved(key: &[u8], shift: u64) -> Bytes {
    if shift == 0 {
        return key.into();
    }
    let mut moved: Vec<u8> = key.to_vec();
    if let Some(id) = moved.get_mut(1..PREFIX_LEN)
        && let Ok(bytes) = <[u8; 8]>::try_from(&*id)
    {
        id.copy_from_slice(&u64::from_be_bytes(bytes).wrapping_add(shift).to_be_bytes());
    }
    moved[..].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: u8, first: InodeId, end: InodeId) -> NumberSpan {
        NumberSpan { id: kestrel_types::hex::to_hex(&[id; 16]), first, end }
    }

    /// Pieces are in order and none begins within another one, whatever has aliases; numbers are
    /// translated there and back.
    #[test]
    fn pieces_of_a_mapping() {
        let stored = [span(1, 16, 100), span(2, 100, 160)];
        let read = [span(3, 16, 50), span(2, 50, 110), span(1, 200, 284)];
        let aliases = Aliases::new([(210, 30), (60, 30), (283, 51), (109, 40)]);
        let mapping = Mapping::new(&stored, &read, Arc::new(aliases)).unwrap();
        let pieces = &mapping.by_read;
        assert!(pieces.windows(2).all(|pair| {
            let (one, next) = (pair[0], pair[1]);
            one.end <= next.first || (one.first == next.first && one.end == next.end)
        }));
        let count: u64 = pieces.iter().map(|piece| piece.end - piece.first).sum();
        assert_eq!(count, 16 + 84 + 60);
        for number in 0..160 {
            let read = mapping.read(number).unwrap();
            assert!(mapping.stored(read).any(|stored| stored == number), "{number}");
        }
        assert_eq!((mapping.read(26), mapping.read(110)), (Some(30), Some(30)));
        assert_eq!(mapping.read(160), None);
        let other = [span(1, 16, 99), span(2, 100, 160)];
        assert!(Mapping::new(&stored, &other, Arc::default()).is_err());
        assert!(Mapping::new(&stored, &read[..2], Arc::default()).is_err());
    }
}
