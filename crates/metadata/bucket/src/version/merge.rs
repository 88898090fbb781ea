//! One tree of several versions: what a job with several inputs begins with.
//!
//! The inputs and the versions below them are put in one order, each once and above those that it
//! was made on ([`stacked`]). Row by row the first version that has one decides; so does a row that
//! is stored as deleted. That is a tree already if the first version was made on all others. Else,
//! of two versions of which none was made on the other one, more is to be settled:
//!
//! - Directories under one path are one directory. The numbers of all but one are aliases.
//! - A directory with names of both has figures that none of them has counted.
//! - A file that both have changed is that of the first one, with all of its rows: rows of both
//!   would be a file that nobody has written.
//! - A directory that one has removed and the first one has put something into stays.
//! - Directories that two versions have moved into each other are refused.
//!
//! What is settled becomes rows, which are the first ones of the job. The cost is that of reading
//! the directories that such versions have in common and, if both were made on a third one, their
//! changes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_engine::row_cache::Bytes;
use kestrel_types::entry::{Entry, RemovedEntry};
use kestrel_types::ids::{FIRST_INODE, InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::{KeyRef, PREFIX_LEN, Table};
use kestrel_types::stat::DirStat;

use super::aliases::read_aliases;
use super::manifest::{JobBase, LAYERS_MAX, LayerRecord, NUMBERS_END};
use super::stack::layers_with;
use super::{NODE, VersionManifest, VersionPlace, VersionReader, damaged};
use crate::table::TableIdentity;
use crate::tree::layer::{Aliases, Layer, LayerRows, Mapping, NumberSpan};
use crate::tree::{SourceRow, Tree};

/// Memory for blocks of tables while inputs are merged, bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// Most conflicts that are told one by one.
const CONFLICTS_MAX: usize = 1000;

/// Tables with rows of one inode that belong together.
const INODE_TABLES: [Table; 4] = [Table::DirId, Table::Link, Table::Chunk, Table::Xattr];

/// A name that two inputs say different things of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The directory's number, and the name in it.
    pub dir: InodeId,
    /// The name.
    pub name: Vec<u8>,
    /// The version that the job has the name of.
    pub kept: String,
    /// The other one.
    pub hidden: String,
}

/// An encoded key, and its value, or that the row is deleted.
pub type SettledRow = (Vec<u8>, Option<Vec<u8>>);

/// See the module's header.
#[derive(Debug, Default)]
pub struct MergedInputs {
    /// What is below the job. Its number is for the caller to set.
    pub base: JobBase,
    /// Numbers of directories that have another one too.
    pub aliases: Aliases,
    /// The first rows of the job: encoded keys, and values, or that the row is deleted.
    pub rows: Vec<SettledRow>,
    /// What inputs say differently, as far as [`CONFLICTS_MAX`] goes.
    pub conflicts: Vec<Conflict>,
    /// How many of these there are.
    pub conflict_count: u64,
}

/// An error about inputs.
fn refused(why: String) -> EngineError {
    EngineError::Refused(why)
}

/// One input needs the rows of a version, and another one has them all among its own.
fn compacted(name: &str) -> EngineError {
    refused(format!(
        "inputs: one of them was compacted, and another one is made on version {name}, which is in \
         it; use the version that was compacted instead"
    ))
}

/// Behind the last inode number in the tables of a version that no job made.
fn numbers_end(place: &VersionPlace, version: &VersionManifest) -> Result<InodeId, EngineError> {
    if version.changes().is_some() {
        return Ok(FIRST_INODE);
    }
    let reader = VersionReader::new(place, version, 1 << 20)?;
    let row = reader.get(KeyRef::new(Table::System, 0, b"inodes"))?;
    let number = row.as_deref().and_then(|row| row.get(1..)?.try_into().ok());
    let number = number.map(u64::from_be_bytes);
    number.filter(|number| (FIRST_INODE..NUMBERS_END).contains(number)).ok_or_else(|| {
        damaged(&format!("version {}", version.name), "it does not say how inodes are numbered")
    })
}

/// All versions of some inputs, the first input being the most important one: each version once,
/// above all that it was made on, with the numbers of all of them.
fn stacked(place: &VersionPlace, inputs: &[VersionManifest]) -> Result<JobBase, EngineError> {
    let mut stacks = Vec::new();
    for input in inputs {
        let numbers = input.numbers(numbers_end(place, input)?);
        let job = input.changes().map_or(0, |changes| changes.base.job);
        let mut stack = vec![LayerRecord {
            id: input.id.clone(),
            name: input.name.clone(),
            job,
            numbers,
            runs: input.runs.clone(),
        }];
        stack.extend(input.changes().iter().flat_map(|changes| changes.base.layers.clone()));
        stacks.push(stack);
    }
    let mut numbers: Vec<NumberSpan> = Vec::new();
    for stack in &stacks {
        for span in &stack[0].numbers {
            if numbers.iter().any(|other| other.id == span.id) {
                continue;
            }
            let end = numbers.iter().map(|other| other.end).max();
            let first = end.map_or(span.first, |end| end.max(FIRST_INODE));
            let end = first.checked_add(span.end - span.first).filter(|end| *end < NUMBERS_END);
            let end = end.ok_or_else(|| {
                refused(format!(
                    "inputs: version {} and those before it have more inode numbers than there are",
                    stack[0].name
                ))
            })?;
            numbers.push(NumberSpan { id: span.id.clone(), first, end });
        }
    }
    // The order of a more important input stays. What a less important one has besides comes in as
    // low as may be: above what is below it there.
    let mut layers: Vec<LayerRecord> = Vec::new();
    for stack in stacks {
        for (at, layer) in stack.iter().enumerate().rev() {
            if let Some(other) = layers.iter().find(|other| other.id == layer.id) {
                if other.runs.is_empty() != layer.runs.is_empty() {
                    return Err(compacted(&layer.name));
                }
                continue;
            }
            let is_below = |other: &LayerRecord| stack[at + 1..].iter().any(|it| it.id == other.id);
            let place = layers.iter().position(is_below).unwrap_or(layers.len());
            layers.insert(place, layer.clone());
        }
    }
    if layers.len() > LAYERS_MAX {
        return Err(refused(format!(
            "inputs: they have {} versions in all, and a job has at most {LAYERS_MAX}; copy what \
             is needed in a job without inputs",
            layers.len()
        )));
    }
    Ok(JobBase { job: 0, numbers, aliases: 0, layers })
}

/// Makes one tree of the inputs, the most important one first.
///
/// # Errors
/// `Refused` for inputs that do not go together; the store's; `Corrupt`.
pub fn merge(
    place: &VersionPlace,
    inputs: &[VersionManifest],
) -> Result<MergedInputs, EngineError> {
    let mut seen = HashSet::new();
    if let Some(twice) = inputs.iter().find(|input| !seen.insert(&input.id)) {
        return Err(refused(format!("input {} is there twice", twice.name)));
    }
    let mut base = stacked(place, inputs)?;
    let mut classes = Classes::default();
    let mut known = Vec::new();
    for input in inputs {
        let aliases = input.changes().map_or(0, |changes| changes.base.aliases);
        let aliases = match aliases {
            0 => Aliases::default(),
            count => read_aliases(place, &input.id_bytes(), count)?,
        };
        let bad = |why: String| damaged(&format!("version {}: its manifest", input.name), &why);
        let numbers = input.changes().map_or(Vec::new(), |changes| changes.base.numbers.clone());
        let mapping = Mapping::new(&numbers, &base.numbers, Arc::default()).map_err(bad)?;
        let mut own = Classes::default();
        for (alias, number) in aliases.pairs() {
            let pair = mapping.read(alias).zip(mapping.read(number));
            let (alias, number) =
                pair.ok_or_else(|| bad("it has an alias of no version".into()))?;
            classes.join(alias, number);
            own.join(alias, number);
        }
        known.push((input, own));
    }
    let mut merged = MergedInputs::default();
    if !base.is_settled() {
        let merge = Merge::new(place, &base, classes)?;
        (classes, merged.rows) = merge.settle(&base, &mut merged)?;
    }
    for (input, own) in &mut known {
        check_known(input, own, &mut classes, &base)?;
    }
    merged.aliases = Aliases::new(classes.pairs());
    base.aliases = merged.aliases.pairs().len() as u64;
    merged.base = base;
    Ok(merged)
}

/// Fails if an input knows directories apart that are one now.
fn check_known(
    input: &VersionManifest,
    own: &mut Classes,
    classes: &mut Classes,
    base: &JobBase,
) -> Result<(), EngineError> {
    let Some(changes) = input.changes() else { return Ok(()) };
    let ids: HashSet<&String> = changes.base.numbers.iter().map(|span| &span.id).collect();
    let spans: Vec<&NumberSpan> =
        base.numbers.iter().filter(|span| ids.contains(&span.id) || span.id == input.id).collect();
    let mut known: HashMap<InodeId, InodeId> = HashMap::new();
    for (member, number) in classes.all() {
        if !spans.iter().any(|span| (span.first..span.end).contains(&member)) {
            continue;
        }
        let kept = *known.entry(number).or_insert(member);
        if own.find(kept) != own.find(member) {
            return Err(refused(format!(
                "inputs: version {} has two directories that another input takes for one; publish \
                 one of them by a job with the other as its only input, and use that",
                input.name
            )));
        }
    }
    Ok(())
}

/// Numbers that are one directory.
#[derive(Debug, Default)]
struct Classes {
    above: HashMap<InodeId, InodeId>,
    members: HashMap<InodeId, Vec<InodeId>>,
}

impl Classes {
    /// The least number of those that are one with this.
    fn find(&self, mut number: InodeId) -> InodeId {
        while let Some(above) = self.above.get(&number) {
            number = *above;
        }
        number
    }

    /// Makes two numbers one; whether they were not.
    fn join(&mut self, one: InodeId, other: InodeId) -> bool {
        let (one, other) = (self.find(one), self.find(other));
        if one == other {
            return false;
        }
        let (least, more) = (one.min(other), one.max(other));
        self.above.insert(more, least);
        let moved = self.members.remove(&more).unwrap_or_else(|| vec![more]);
        self.members.entry(least).or_insert_with(|| vec![least]).extend(moved);
        true
    }

    /// All numbers that are one with this.
    fn members(&self, number: InodeId) -> Vec<InodeId> {
        let number = self.find(number);
        self.members.get(&number).cloned().unwrap_or_else(|| vec![number])
    }

    /// Numbers that are one with others, each with the least one.
    fn all(&self) -> Vec<(InodeId, InodeId)> {
        let of = |(least, members): (&InodeId, &Vec<InodeId>)| {
            members.iter().map(|member| (*member, *least)).collect::<Vec<_>>()
        };
        self.members.iter().flat_map(of).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = (InodeId, InodeId)> {
        self.all().into_iter().filter(|(member, least)| member != least)
    }
}

/// A name in a directory.
type Place = (InodeId, Box<[u8]>);

/// Rows of a name: the layer, the number of the directory there, the value.
type NameRow = (usize, InodeId, Option<Bytes>);

/// A name, and its rows in the order of the layers.
type RowsOfName = (Vec<u8>, Vec<NameRow>);

struct Merge {
    layers: Arc<[Arc<Layer>]>,
    names: Vec<String>,
    /// Numbers that each layer gave itself.
    own: Vec<(InodeId, InodeId)>,
    /// Whether a layer was made on another one, or is it.
    sees: Vec<Vec<bool>>,
    classes: Classes,
    /// Layers with changes in a directory.
    touched: HashMap<InodeId, BTreeSet<usize>>,
    /// Layers with changes in a directory or somewhere below it, as they see it.
    asserted: HashMap<InodeId, BTreeSet<usize>>,
    /// Entries of a layer that do not count.
    suppressed: HashSet<(usize, InodeId, Box<[u8]>)>,
    /// Directories that are looked at in any case.
    extra: BTreeSet<InodeId>,
    conflicts: Vec<(InodeId, Box<[u8]>, usize, usize)>,
    conflict_count: u64,
    /// What is settled; keys with numbers that may be aliases.
    rows: BTreeMap<Vec<u8>, Option<Bytes>>,
}

fn key_of(table: Table, id: InodeId, suffix: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(PREFIX_LEN + suffix.len());
    KeyRef::new(table, id, suffix).encode_into(&mut key);
    key
}

/// A key of a layer's row, taken apart.
fn parts(key: &[u8]) -> Result<KeyRef<'_>, EngineError> {
    KeyRef::decode(key).ok_or_else(|| EngineError::Corrupt("a row of an input has no key".into()))
}

/// A directory's parent and name, unless it is the root.
fn place_of(row: &[u8]) -> Option<(InodeId, &[u8])> {
    // A version, the parent, and a name.
    let (parent, name) = row.get(1..)?.split_first_chunk()?;
    let parent = InodeId::from_be_bytes(*parent);
    (parent != 0).then_some((parent, name))
}

fn kind_of(value: &[u8]) -> Result<(InodeId, Kind), EngineError> {
    Entry::peek(value).map_err(|why| EngineError::Corrupt(format!("an entry of an input: {why}")))
}

impl Merge {
    fn new(place: &VersionPlace, base: &JobBase, classes: Classes) -> Result<Self, EngineError> {
        let identity = TableIdentity { uuid: [0; 16], node: NODE, id: 0 };
        let store = (place.store().clone(), Arc::default());
        let tree = Tree::new(store, String::new(), identity, CACHE_BYTES);
        let layers =
            layers_with(place, (&base.layers, &base.numbers), &Arc::default(), (&tree, None))?;
        let span = |layer: &LayerRecord| {
            let span = base.numbers.iter().find(|span| span.id == layer.id);
            span.map_or((0, 0), |span| (span.first, span.end))
        };
        let own = base.layers.iter().map(span).collect();
        let all = &base.layers;
        Ok(Self {
            layers,
            names: all.iter().map(|layer| layer.name.clone()).collect(),
            own,
            sees: all.iter().map(|one| all.iter().map(|it| one.is_above(it)).collect()).collect(),
            classes,
            touched: HashMap::new(),
            asserted: HashMap::new(),
            suppressed: HashSet::new(),
            extra: BTreeSet::new(),
            conflicts: Vec::new(),
            conflict_count: 0,
            rows: BTreeMap::new(),
        })
    }

    /// Whether one of two layers was made on the other one, or is it.
    fn is_ordered(&self, one: usize, other: usize) -> bool {
        self.sees[one][other] || self.sees[other][one]
    }

    /// Whether two of these layers are unordered.
    fn is_shared(&self, layers: &BTreeSet<usize>) -> bool {
        layers.iter().any(|one| layers.iter().any(|other| !self.is_ordered(*one, *other)))
    }

    /// Whether a number is that of something a layer did not make.
    fn is_foreign(&self, layer: usize, number: InodeId) -> bool {
        let (first, end) = self.own[layer];
        !(first..end).contains(&number)
    }

    fn rows_of_table(&self, layer: usize, table: Table) -> LayerRows {
        let (from, to) = (key_of(table, 0, &[]), [table as u8 + 1]);
        self.layers[layer].rows((&from, &to))
    }

    fn rows_of_id(&self, layer: usize, table: Table, id: InodeId) -> LayerRows {
        let (from, to) = (key_of(table, id, &[]), key_of(table, id + 1, &[]));
        self.layers[layer].rows((&from, &to))
    }

    fn touch(&mut self, dir: InodeId, layer: usize) {
        self.touched.entry(dir).or_default().insert(layer);
    }

    /// Layers that say, by what they have changed in it or below, that a directory is there.
    fn asserting(&self, dir: InodeId) -> BTreeSet<usize> {
        let members = self.classes.members(dir);
        members.iter().filter_map(|member| self.asserted.get(member)).flatten().copied().collect()
    }

    /// Notes of each directory with changes those above it, as the layer sees them.
    fn assert_above(&mut self) -> Result<(), EngineError> {
        self.asserted = self.touched.clone();
        for (dir, layers) in &self.touched {
            for layer in layers {
                let mut below = *dir;
                while let Some(parent) = self.parent_seen(*layer, below)? {
                    if !self.asserted.entry(parent).or_default().insert(*layer) {
                        break;
                    }
                    below = parent;
                }
            }
        }
        Ok(())
    }

    /// The directory above one, as a layer sees it.
    fn parent_seen(&self, layer: usize, dir: InodeId) -> Result<Option<InodeId>, EngineError> {
        let place = self.row_seen((Table::DirId, dir, &[]), &|it| self.sees[layer][it])?;
        Ok(place.as_deref().and_then(place_of).map(|(parent, _)| parent))
    }

    /// A row as the first of some layers has it, by any number of its inode.
    fn row_seen(
        &self,
        (table, id, suffix): (Table, InodeId, &[u8]),
        sees: &dyn Fn(usize) -> bool,
    ) -> Result<Option<Bytes>, EngineError> {
        for (_, layer) in self.layers.iter().enumerate().filter(|(at, _)| sees(*at)) {
            for member in self.classes.members(id) {
                if let Some(found) = layer.get(&key_of(table, member, suffix))? {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// All rows of an inode as some layers have them, under this number.
    fn rows_seen(
        &self,
        table: Table,
        id: InodeId,
        sees: &dyn Fn(usize) -> bool,
    ) -> Result<BTreeMap<Vec<u8>, Option<Bytes>>, EngineError> {
        let mut found = BTreeMap::new();
        // From the lowest one up, so that the first one is what stays.
        for layer in (0..self.layers.len()).rev().filter(|layer| sees(*layer)) {
            for member in self.classes.members(id) {
                let mut rows = self.rows_of_id(layer, table, member);
                while let Some((key, value)) = rows.next_row()? {
                    found.insert(key_of(table, id, &key[PREFIX_LEN..]), value);
                }
            }
        }
        Ok(found)
    }

    /// Whether a directory is by a name: by the rows of its place, which is settled, or because
    /// nothing says where else it would be.
    fn is_at(&self, number: InodeId, dir: InodeId, name: &[u8]) -> Result<bool, EngineError> {
        let place = self.settled_row(Table::DirId, number, &[])?;
        Ok(match place.as_deref().and_then(place_of) {
            Some((parent, own)) => {
                self.classes.find(parent) == self.classes.find(dir) && own == name
            }
            None => true,
        })
    }

    /// Whether a path leads to a directory.
    fn is_reachable(&self, dir: InodeId) -> Result<bool, EngineError> {
        let (mut below, mut seen) = (self.classes.find(dir), HashSet::new());
        while below != ROOT {
            if !seen.insert(below) {
                // A circle, which is refused for what it is.
                return Ok(true);
            }
            let place = self.settled_row(Table::DirId, below, &[])?;
            let Some((parent, name)) = place.as_deref().and_then(place_of) else {
                return Ok(false);
            };
            let entry = self.settled_row(Table::Entry, parent, name)?;
            let found = entry.map(|entry| kind_of(&entry)).transpose()?;
            if found.is_none_or(|(number, _)| self.classes.find(number) != below) {
                return Ok(false);
            }
            below = self.classes.find(parent);
        }
        Ok(true)
    }

    /// A row as it is settled, or as the first layer has it.
    fn settled_row(
        &self,
        table: Table,
        id: InodeId,
        suffix: &[u8],
    ) -> Result<Option<Bytes>, EngineError> {
        let members = self.classes.members(id);
        let settled = members.iter().find_map(|it| self.rows.get(&key_of(table, *it, suffix)));
        match settled {
            Some(row) => Ok(row.clone()),
            None => self.row_seen((table, id, suffix), &|_| true),
        }
    }

    /// Rows of a name in the order in which they decide. A directory counts as a row of the first
    /// layer that was made on its layer and has changed something below it.
    fn in_order<'r>(
        &self,
        (dir, name): (InodeId, &[u8]),
        mut rows: Vec<&'r NameRow>,
    ) -> Result<Vec<&'r NameRow>, EngineError> {
        if rows.len() < 2 {
            return Ok(rows);
        }
        let mut firsts = HashMap::new();
        for (layer, member, value) in &rows {
            let Some(value) = value else { continue };
            let (number, kind) = kind_of(value)?;
            if kind == Kind::Dir && self.is_at(number, dir, name)? {
                let by = self.asserting(number).into_iter().find(|by| self.sees[*by][*layer]);
                firsts.insert((*layer, *member), by.unwrap_or(*layer).min(*layer));
            }
        }
        let first = |row: &NameRow| firsts.get(&(row.0, row.1)).copied().unwrap_or(row.0);
        // A layer's own row decides before what it says by changes below.
        rows.sort_by_key(|row| (first(row), first(row) != row.0));
        Ok(rows)
    }

    /// Settles everything.
    fn settle(
        mut self,
        base: &JobBase,
        told: &mut MergedInputs,
    ) -> Result<(Classes, Vec<SettledRow>), EngineError> {
        for layer in 0..self.layers.len() {
            let mut rows = self.rows_of_table(layer, Table::DirStat);
            while let Some((key, _)) = rows.next_row()? {
                self.touch(parts(&key)?.id, layer);
            }
        }
        self.settle_inodes()?;
        let settled = (self.rows.clone(), self.conflicts.clone(), self.conflict_count);
        while self.settle_dirs()? {
            (self.rows, self.conflicts, self.conflict_count) = settled.clone();
        }
        self.check_circles()?;
        let aliases = Aliases::new(self.classes.pairs());
        let mapping = Mapping::new(&base.numbers, &base.numbers, Arc::new(aliases));
        let mapping = mapping.map_err(EngineError::Corrupt)?;
        let mut out = BTreeMap::new();
        let mut reachable = HashMap::new();
        for (key, value) in &self.rows {
            let KeyRef { table, id, suffix } = parts(key)?;
            // Rows of a directory would say that the job has changed it.
            if matches!(table, Table::Entry | Table::DirStat | Table::Subdir) {
                let dir = self.classes.find(id);
                let is_there = match reachable.get(&dir) {
                    Some(is_there) => *is_there,
                    None => self.is_reachable(dir)?,
                };
                reachable.insert(dir, is_there);
                if !is_there {
                    continue;
                }
            }
            let child = match (table, <[u8; 8]>::try_from(suffix)) {
                (Table::Subdir, Ok(child)) => {
                    Some(self.classes.find(u64::from_be_bytes(child)).to_be_bytes())
                }
                _ => None,
            };
            let suffix = child.as_ref().map_or(suffix, |child| &child[..]);
            let key = key_of(table, self.classes.find(id), suffix);
            let value = value.clone().map(|value| mapping.value(table, value)).transpose()?;
            out.insert(key, value.map(|value| value.to_vec()));
        }
        told.conflict_count = self.conflict_count;
        let conflict = |(dir, name, kept, hidden): &(InodeId, Box<[u8]>, usize, usize)| Conflict {
            dir: self.classes.find(*dir),
            name: name.to_vec(),
            kept: self.names[*kept].clone(),
            hidden: self.names[*hidden].clone(),
        };
        told.conflicts = self.conflicts.iter().map(conflict).collect();
        Ok((self.classes, out.into_iter().collect()))
    }

    /// Files and directories that two unordered layers have changed.
    fn settle_inodes(&mut self) -> Result<(), EngineError> {
        let mut places: HashMap<InodeId, Vec<(usize, Place)>> = HashMap::new();
        let mut inodes: HashMap<InodeId, BTreeSet<usize>> = HashMap::new();
        let mut removed: Vec<(usize, InodeId)> = Vec::new();
        for layer in 0..self.layers.len() {
            // Without a version below both, they have no number in common.
            let has_common = (0..self.layers.len()).any(|other| {
                let common = |below: usize| self.sees[layer][below] && self.sees[other][below];
                !self.is_ordered(layer, other) && (0..self.layers.len()).any(common)
            });
            if !has_common {
                continue;
            }
            let mut rows = self.rows_of_table(layer, Table::Entry);
            while let Some((key, value)) = rows.next_row()? {
                let key = parts(&key)?;
                self.touch(key.id, layer);
                let Some(value) = value else { continue };
                let (number, _) = kind_of(&value)?;
                if self.is_foreign(layer, number) && number != ROOT {
                    let number = self.classes.find(number);
                    places.entry(number).or_default().push((layer, (key.id, key.suffix.into())));
                    inodes.entry(number).or_default().insert(layer);
                }
            }
            for table in INODE_TABLES {
                let mut rows = self.rows_of_table(layer, table);
                while let Some((key, _)) = rows.next_row()? {
                    let number = parts(&key)?.id;
                    if self.is_foreign(layer, number) && number != ROOT {
                        inodes.entry(self.classes.find(number)).or_default().insert(layer);
                    }
                }
            }
            let mut rows = self.rows_of_table(layer, Table::Subdir);
            while let Some((key, value)) = rows.next_row()? {
                let key = parts(&key)?;
                let child = kestrel_types::key::number_of(key.suffix);
                let place = key_of(Table::DirId, child, &[]);
                if value.is_none() && matches!(self.layers[layer].get(&place)?, Some(None)) {
                    removed.push((layer, child));
                }
            }
        }
        for (number, layers) in inodes {
            if self.is_shared(&layers)
                && let Some(first) = layers.first()
            {
                self.settle_inode(number, *first, places.get(&number).map_or(&[], Vec::as_slice))?;
            }
        }
        self.assert_above()?;
        self.settle_removed(&removed)
    }

    /// A file or directory is that of the layer `first`, and of those that it was made on.
    fn settle_inode(
        &mut self,
        number: InodeId,
        first: usize,
        places: &[(usize, Place)],
    ) -> Result<(), EngineError> {
        for (layer, (dir, name)) in places {
            if !self.is_ordered(first, *layer) {
                self.suppressed.insert((*layer, *dir, name.clone()));
                self.extra.insert(*dir);
                self.note(*dir, name, first, *layer);
            }
        }
        for table in INODE_TABLES {
            let mut wanted = self.rows_seen(table, number, &|layer| self.sees[first][layer])?;
            for (key, found) in self.rows_seen(table, number, &|_| true)? {
                let wanted = wanted.remove(&key).flatten();
                if found != wanted {
                    self.rows.insert(key, wanted);
                }
            }
        }
        Ok(())
    }

    /// Directories that layers have removed: one that a more important layer has put something
    /// into stays. Those above it have been put something into, too.
    fn settle_removed(&mut self, removed: &[(usize, InodeId)]) -> Result<(), EngineError> {
        for (layer, dir) in removed {
            let asserting = self.asserting(*dir);
            let other = asserting.into_iter().find(|other| !self.is_ordered(*layer, *other));
            let Some(other) = other else { continue };
            let before = self.row_seen((Table::DirId, *dir, &[]), &|it| it != *layer)?;
            if let Some((parent, name)) = before.as_deref().and_then(place_of) {
                self.note(parent, name, other.min(*layer), other.max(*layer));
            }
            if other > *layer {
                continue;
            }
            // What it was before the layer removed it.
            for table in [Table::DirId, Table::Xattr] {
                for (key, value) in self.rows_seen(table, *dir, &|it| it != *layer)? {
                    self.rows.entry(key).or_insert(value);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, dir: InodeId, name: &[u8], kept: usize, hidden: usize) {
        self.conflict_count += 1;
        if self.conflicts.len() < CONFLICTS_MAX {
            self.conflicts.push((dir, name.into(), kept, hidden));
        }
    }

    /// Directories with changes of unordered layers; whether some have become one.
    fn settle_dirs(&mut self) -> Result<bool, EngineError> {
        let dirs: BTreeSet<InodeId> =
            self.asserted.keys().chain(&self.extra).map(|dir| self.classes.find(*dir)).collect();
        let mut queue: Vec<InodeId> = dirs.into_iter().collect();
        let (mut done, mut joined) = (HashSet::new(), false);
        while let Some(dir) = queue.pop() {
            let dir = self.classes.find(dir);
            let is_extra = self.classes.members(dir).iter().any(|it| self.extra.contains(it));
            if (!is_extra && !self.is_shared(&self.asserting(dir))) || !done.insert(dir) {
                continue;
            }
            for number in self.settle_dir(dir)? {
                joined = true;
                done.remove(&number);
                queue.push(number);
            }
        }
        Ok(joined)
    }

    /// One directory; numbers of those below it that have become one with others.
    fn settle_dir(&mut self, dir: InodeId) -> Result<Vec<InodeId>, EngineError> {
        let members = self.classes.members(dir);
        let (mut stat, mut dirs, mut joined) = (DirStat::default(), HashSet::new(), Vec::new());
        let mut names = Names::new(self, &members)?;
        while let Some((name, rows)) = names.next()? {
            let counted = self.in_order((dir, &name), self.counted(&name, &rows))?;
            let chosen = counted.first().and_then(|row| row.2.as_ref().map(|value| (row, value)));
            if counted.first().map(|row| row.0) != rows.first().map(|row| row.0) {
                let value = chosen.map(|(_, value)| value.clone());
                self.rows.insert(key_of(Table::Entry, dir, &name), value);
            }
            let Some(((layer, _, _), value)) = chosen else { continue };
            stat.children += 1;
            let (number, kind) = kind_of(value)?;
            if kind == Kind::Dir {
                stat.subdirs += 1;
            } else if let Ok(RemovedEntry { file: Some((_, size, _)), .. }) =
                Entry::peek_removed(value)
            {
                stat.bytes = stat.bytes.saturating_add(size.cast_signed());
            }
            for (at, (other, _, value)) in counted.iter().enumerate().skip(1) {
                let Some((below, below_kind)) = value.as_ref().map(|it| kind_of(it)).transpose()?
                else {
                    continue;
                };
                let is_seen = self.is_replaced((below, below_kind), *other, &counted[..at])?;
                if kind == Kind::Dir && below_kind == Kind::Dir {
                    if !is_seen && self.classes.join(number, below) {
                        joined.push(self.classes.find(number));
                    }
                } else if !is_seen && !self.is_ordered(*layer, *other) {
                    self.note(dir, &name, *layer, *other);
                }
            }
            if kind == Kind::Dir {
                dirs.insert(number);
            }
        }
        self.settle_children(dir, &members, &dirs)?;
        self.settle_shares(dir, &members, stat)?;
        Ok(joined)
    }

    /// Whether what a layer has by a name was put away by a layer that was made on it: that has
    /// something else there, or nothing. A directory may be elsewhere then.
    fn is_replaced(
        &self,
        (number, kind): (InodeId, Kind),
        layer: usize,
        above: &[&NameRow],
    ) -> Result<bool, EngineError> {
        for (_, _, value) in above.iter().filter(|row| self.sees[row.0][layer]) {
            let by = value.as_ref().map(|value| kind_of(value)).transpose()?;
            let is_same = kind == Kind::Dir
                && by.is_some_and(|(by, _)| self.classes.find(by) == self.classes.find(number));
            if !is_same {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Rows of a name that count.
    fn counted<'r>(&self, name: &[u8], rows: &'r [NameRow]) -> Vec<&'r NameRow> {
        let is_suppressed = |(layer, dir, _): &NameRow| {
            self.suppressed.contains(&(*layer, *dir, Box::<[u8]>::from(name)))
        };
        rows.iter().filter(|row| !is_suppressed(row)).collect()
    }

    /// The rows of table `subdir` of a directory with these subdirectories.
    fn settle_children(
        &mut self,
        dir: InodeId,
        members: &[InodeId],
        dirs: &HashSet<InodeId>,
    ) -> Result<(), EngineError> {
        let visible: HashSet<InodeId> = dirs.iter().map(|it| self.classes.find(*it)).collect();
        // Whether all that have a row of the child say that it is there.
        let mut found: HashMap<InodeId, bool> = HashMap::new();
        for layer in 0..self.layers.len() {
            for member in members {
                let mut rows = self.rows_of_id(layer, Table::Subdir, *member);
                while let Some((key, value)) = rows.next_row()? {
                    let child = kestrel_types::key::number_of(parts(&key)?.suffix);
                    let agree = found.entry(self.classes.find(child)).or_insert(true);
                    *agree &= value.is_some();
                }
            }
        }
        for child in visible.iter().filter(|child| found.get(child) != Some(&true)) {
            let key = key_of(Table::Subdir, dir, &child.to_be_bytes());
            self.rows.insert(key, Some(Bytes::from(&[][..])));
        }
        for child in found.keys().filter(|child| !visible.contains(child)) {
            self.rows.insert(key_of(Table::Subdir, dir, &child.to_be_bytes()), None);
        }
        Ok(())
    }

    /// The shares of a directory with these figures.
    fn settle_shares(
        &mut self,
        dir: InodeId,
        members: &[InodeId],
        mut stat: DirStat,
    ) -> Result<(), EngineError> {
        let mut suffixes: HashSet<Vec<u8>> = HashSet::new();
        for layer in 0..self.layers.len() {
            for member in members {
                let mut rows = self.rows_of_id(layer, Table::DirStat, *member);
                while let Some((key, value)) = rows.next_row()? {
                    suffixes.insert(parts(&key)?.suffix.to_vec());
                    let Some(value) = value else { continue };
                    let share = DirStat::decode(&value).map_err(|why| {
                        EngineError::Corrupt(format!("a directory's share of an input: {why}"))
                    })?;
                    stat.mtime = stat.mtime.max(share.mtime);
                    stat.change = stat.change.max(share.change);
                }
            }
        }
        let first = 0u16.to_be_bytes().to_vec();
        for suffix in suffixes.into_iter().filter(|suffix| *suffix != first) {
            self.rows.insert(key_of(Table::DirStat, dir, &suffix), None);
        }
        let value = Bytes::from(&stat.encode()[..]);
        self.rows.insert(key_of(Table::DirStat, dir, &first), Some(value));
        Ok(())
    }

    /// Fails if a directory that a layer has moved is below itself.
    fn check_circles(&self) -> Result<(), EngineError> {
        let parent_of = |dir: InodeId| -> Result<Option<InodeId>, EngineError> {
            let place = self.settled_row(Table::DirId, dir, &[])?;
            let parent = place.as_deref().and_then(place_of).map(|(parent, _)| parent);
            Ok(parent.map(|parent| self.classes.find(parent)))
        };
        for (layer, name) in self.names.iter().enumerate() {
            let mut rows = self.rows_of_table(layer, Table::DirId);
            while let Some((key, value)) = rows.next_row()? {
                let dir = parts(&key)?.id;
                if value.is_none() || !self.is_foreign(layer, dir) {
                    continue;
                }
                let (mut above, mut seen) = (self.classes.find(dir), HashSet::new());
                while let Some(parent) = parent_of(above)? {
                    if !seen.insert(above) {
                        return Err(refused(format!(
                            "inputs: version {name} has moved a directory into one that another \
                             input has moved into the first; leave one of them out, or make it \
                             anew on the other one"
                        )));
                    }
                    above = parent;
                }
            }
        }
        Ok(())
    }
}

/// The names of a directory in all layers.
struct Names {
    cursors: Vec<(usize, InodeId, LayerRows, Option<SourceRow>)>,
}

impl Names {
    fn new(merge: &Merge, members: &[InodeId]) -> Result<Self, EngineError> {
        let mut cursors = Vec::new();
        for layer in 0..merge.layers.len() {
            for member in members {
                let mut rows = merge.rows_of_id(layer, Table::Entry, *member);
                let first = rows.next_row()?;
                cursors.push((layer, *member, rows, first));
            }
        }
        Ok(Self { cursors })
    }

    /// The next name, with its rows in the order of the layers.
    fn next(&mut self) -> Result<Option<RowsOfName>, EngineError> {
        let names = self.cursors.iter().filter_map(|(_, _, _, row)| row.as_ref());
        let Some(name) = names.map(|(key, _)| &key[PREFIX_LEN..]).min().map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        let mut found = Vec::new();
        for (layer, member, rows, row) in &mut self.cursors {
            if let Some((_, value)) = row.take_if(|(key, _)| key[PREFIX_LEN..] == *name) {
                found.push((*layer, *member, value));
                *row = rows.next_row()?;
            }
        }
        Ok(Some((name, found)))
    }
}
