//! The rows of the next names of a directory of a clone.

use std::collections::BTreeMap;

use kestrel_engine::Mutation;
use kestrel_types::clone::{CloneInfo, ClonedLink, PartialFile, PendingDir};
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode, Kind};
use kestrel_types::key::{Key, Table, number_of};
use kestrel_types::name::Name;
use kestrel_types::perm::{CAPABILITY, SET_GID, SET_UID};
use kestrel_types::placement::{id_in, slot_of_id};
use kestrel_types::snapshot::references;
use kestrel_types::stat::ObjStat;

use super::damaged;
use super::rows::{ReadRows, all_rows, source_dir};
use crate::clones::SuffixRow;
use crate::ops::clone_dir::based as based_record;
use crate::owners::MapView;
use crate::rows::{Span, is_full, share_suffix};
use crate::stop::Stop;
use crate::view::{encode_dir_id, home_at};

/// Most names that come into being in one batch.
pub(super) const NAMES_MAX: usize = 512;

/// Bytes of rows after which a batch takes no further name.
pub(super) const BYTES_MAX: usize = 4 << 20;

/// The share of objects and directories that the rows are booked to: every worker's state is held.
const SHARE: usize = 0;

/// A directory that gets its next names, of a clone.
pub(super) struct Next<'a> {
    pub clone: &'a CloneInfo,
    pub dir: InodeId,
    pub pending: &'a PendingDir,
}

/// What a batch may be.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub names: usize,
    pub bytes: usize,
    /// Most chunks of a file.
    pub scan_rows: usize,
}

/// Numbers for new inodes.
struct Numbers<'a> {
    /// The next one, or what it is made of where several nodes make them.
    next: u64,
    /// The placement map of several nodes.
    table: Option<&'a MapView>,
}

/// Takes so many numbers; the first one.
pub(super) type TakeNumbers<'a> = dyn FnMut(u64) -> FsResult<u64> + 'a;

impl Numbers<'_> {
    fn take(&mut self, slot: impl Fn(&MapView) -> u16) -> InodeId {
        self.next += 1;
        let counter = self.next - 1;
        self.table.map_or(counter, |table| id_in(counter, table.me, slot(table)))
    }

    /// The share of a new directory that has its figures: one of the node where it is found by its
    /// number.
    fn share_of(&self, dir: InodeId) -> [u8; 2] {
        share_suffix(self.table.map_or(SHARE, |table| home_at(table.home_of(dir), SHARE)))
    }

    /// The share of objects that the new rows are counted in.
    fn own_share(&self) -> [u8; 2] {
        share_suffix(self.table.map_or(SHARE, |table| home_at(table.me, SHARE)))
    }
}

/// One batch.
pub(super) struct Part<'a> {
    clone: &'a CloneInfo,
    dir: InodeId,
    /// The rows of the snapshot, and of now.
    then: &'a mut dyn ReadRows,
    now: &'a mut dyn ReadRows,
    limits: Limits,
    numbers: Numbers<'a>,
    pub rows: Vec<Mutation>,
    bytes: usize,
    references: BTreeMap<ObjectId, i64>,
    links: BTreeMap<InodeId, ClonedLink>,
    /// Files, directories and bytes that come to the volume's.
    pub usage: [i64; 3],
    pub names: u64,
    /// The directory has all names then.
    pub is_last: bool,
}

/// What became of a name.
enum Copied {
    Wholly,
    /// The batch is full of extents of its file.
    Partly(PartialFile),
}

fn failure(stop: Stop) -> kestrel_types::error::FsError {
    match stop.without_rows() {
        kestrel_types::request::Outcome::Failed(why) => why,
        _ => damaged("a record of its source"),
    }
}

impl<'a> Part<'a> {
    /// The next batch for a directory; `None` if it has all names, or the rows of the snapshot that
    /// say so are not here.
    pub fn of(
        next: &Next<'a>,
        then: &'a mut dyn ReadRows,
        now: &'a mut dyn ReadRows,
        (table, numbers): (Option<&'a MapView>, &mut TakeNumbers<'_>),
        limits: Limits,
    ) -> FsResult<Option<Self>> {
        let Next { clone, dir, pending } = *next;
        let after = pending.after.as_ref().map(|name| name.as_bytes().into());
        let rows_max = u32::try_from(limits.names).unwrap_or(u32::MAX);
        let span = Span { table: Table::Entry, id: pending.source, after, rows_max };
        let found = then.rows(span)?;
        if found.is_empty() {
            return Ok(None);
        }
        let is_last = found.len() < limits.names;
        let numbers = Numbers { next: numbers(found.len() as u64)?, table };
        let mut part = Self {
            clone,
            dir,
            then,
            now,
            limits,
            numbers,
            rows: Vec::with_capacity(found.len() + 8),
            bytes: 0,
            references: BTreeMap::new(),
            links: BTreeMap::new(),
            usage: [0; 3],
            names: 0,
            is_last,
        };
        let mut state = pending.clone();
        for (name, row) in found {
            if part.bytes > limits.bytes {
                part.is_last = false;
                break;
            }
            match part.copy(&name, &row, state.file.take())? {
                Copied::Wholly => {
                    let name = Name::new(&name).map_err(|_| damaged("a name"))?;
                    (state.after, part.names) = (Some(name), part.names + 1);
                }
                Copied::Partly(file) => {
                    (state.file, part.is_last) = (Some(file), false);
                    break;
                }
            }
        }
        part.put(PendingDir::key(clone.id, dir), state.encode());
        for (old, link) in std::mem::take(&mut part.links) {
            part.put(ClonedLink::key(clone.id, old), link.encode());
        }
        part.book()?;
        Ok(Some(part))
    }

    /// Objects that the rows refer to.
    pub fn objects(&self) -> Vec<ObjectId> {
        self.references.keys().copied().collect()
    }

    fn put(&mut self, key: Key, value: Box<[u8]>) {
        self.bytes += key.suffix.len() + value.len();
        for released in references(key.table, &value) {
            *self.references.entry(released.range.object).or_default() += i64::from(released.bytes);
        }
        self.rows.push(Mutation { key, value: Some(value) });
    }

    /// Copies what a name of the source stands for. `begun`: its file, if a part was copied before.
    fn copy(&mut self, name: &[u8], row: &[u8], begun: Option<PartialFile>) -> FsResult<Copied> {
        let key = Key::new(Table::Entry, self.dir, name);
        let entry = Entry::decode(row).map_err(|why| damaged(format!("an entry: {why}")))?;
        let new = match entry {
            Entry::Inode(inode) if inode.kind == Kind::Dir => self.dir_of(name, inode)?,
            Entry::Inode(inode) => {
                let dir = self.dir;
                let begun = begun.unwrap_or_else(|| PartialFile {
                    ino: self.numbers.take(|table| table.placement.slot_of(dir, name)),
                    chunk: 0,
                });
                if let Some(partly) = self.content(&inode, begun)? {
                    return Ok(Copied::Partly(partly));
                }
                Entry::Inode(self.file(inode, begun.ino))
            }
            Entry::Link { ino, kind } => match self.link(ino, begun)? {
                Ok(ino) => Entry::Link { ino, kind },
                Err(partly) => return Ok(Copied::Partly(partly)),
            },
        };
        self.put(key, new.encode());
        Ok(Copied::Wholly)
    }

    /// A new directory without names.
    fn dir_of(&mut self, name: &[u8], old: Inode) -> FsResult<Entry> {
        let old_ino = old.ino;
        let source = source_dir(self.then, old, self.numbers.table)?;
        let dir = self.dir;
        let ino = self.numbers.take(|table| table.placement.slot_of(dir, name));
        let (inode, _, stat) = based_record(&source, ino, self.clone).map_err(failure)?;
        self.put(Key::new(Table::DirId, ino, b""), encode_dir_id(dir, name));
        self.put(Key::new(Table::Subdir, dir, &ino.to_be_bytes()), Box::default());
        self.put(Key::new(Table::DirStat, ino, &self.numbers.share_of(ino)), stat.encode());
        for (name, value) in source.xattrs {
            self.put(Key::new(Table::Xattr, ino, &name), value);
        }
        let pending = PendingDir { source: old_ino, after: None, file: None };
        self.put(PendingDir::key(self.clone.id, ino), pending.encode());
        self.usage[0] += stat.children - stat.subdirs;
        self.usage[1] += stat.subdirs;
        self.usage[2] = self.usage[2].wrapping_add(stat.bytes);
        Ok(Entry::Inode(inode))
    }

    /// The user that made the clone could not have made this file with set-id bits.
    fn loses_set_ids(&self, inode: &Inode) -> bool {
        let is_others = self.clone.uid != 0 && self.clone.uid != inode.uid;
        is_others && inode.kind == Kind::File
    }

    /// A new file with the content of an old one.
    fn file(&self, old: Inode, ino: InodeId) -> Inode {
        let mode = match self.loses_set_ids(&old) {
            true => old.mode & !(SET_UID | SET_GID),
            false => old.mode,
        };
        let (ctime, change) = (self.clone.created, self.clone.stamp);
        Inode { ino, mode, ctime, change, data_change: change, ..old }
    }

    /// Copies extents and extended attributes to a new file, as many as one batch may take; where
    /// to go on, if that is not all.
    fn content(&mut self, old: &Inode, begun: PartialFile) -> FsResult<Option<PartialFile>> {
        if old.xattrs && begun.chunk == 0 {
            let drops = self.loses_set_ids(old);
            for (name, value) in all_rows(self.then, Table::Xattr, old.ino)? {
                if !drops || *name != *CAPABILITY {
                    self.put(Key::new(Table::Xattr, begun.ino, &name), value);
                }
            }
        }
        if old.data != Data::Chunked {
            return Ok(None);
        }
        // What lies behind the end has been cut off, and is being deleted.
        let end = old.size.div_ceil(CHUNK_BYTES);
        let after = begun.chunk.checked_sub(1).map(|before| before.to_be_bytes()[..].into());
        let span = Span { table: Table::Chunk, id: old.ino, after, rows_max: u32::MAX };
        let (mut found, mut bytes, mut next): (Vec<SuffixRow>, _, _) = (Vec::new(), 0, None);
        for (suffix, row) in self.then.rows(span)? {
            let chunk = number_of(&suffix);
            bytes += row.len();
            if chunk >= end {
                break;
            }
            if is_full(self.limits.scan_rows, found.len(), bytes) {
                next = Some(PartialFile { ino: begun.ino, chunk });
                break;
            }
            found.push((suffix, row));
        }
        for (suffix, row) in found {
            self.put(Key::new(Table::Chunk, begun.ino, &suffix), row);
        }
        Ok(next)
    }

    /// A further name of a file that had several: its new number, or where to go on.
    fn link(
        &mut self,
        old: InodeId,
        begun: Option<PartialFile>,
    ) -> FsResult<Result<InodeId, PartialFile>> {
        let known = match self.links.get(&old) {
            Some(link) => Some(*link),
            None => {
                let row = self.now.get(ClonedLink::key(self.clone.id, old))?;
                let link = row.map(|row| ClonedLink::decode(&row)).transpose();
                link.map_err(|why| damaged(format!("file {old}: {why}")))?
            }
        };
        if let Some(link) = known {
            self.links.insert(old, ClonedLink { names: link.names + 1, ..link });
            return Ok(Ok(link.ino));
        }
        let inode = match self.then.get(Key::new(Table::Link, old, b""))? {
            Some(row) => Inode::decode(&mut Reader::new(&row))
                .map_err(|why| damaged(format!("file {old}: {why}")))?,
            // What this one comes to says nothing.
            None if self.then.lacks() => Inode::new(old, Kind::File, 0, 0),
            None => return Err(damaged(format!("no file {old}"))),
        };
        let begun = begun.unwrap_or_else(|| PartialFile {
            ino: self.numbers.take(|_| slot_of_id(old)),
            chunk: 0,
        });
        if let Some(partly) = self.content(&inode, begun)? {
            return Ok(Err(partly));
        }
        self.links.insert(old, ClonedLink { ino: begun.ino, names: 1, total: inode.nlink });
        let inode = self.file(inode, begun.ino);
        self.usage[2] = self.usage[2].wrapping_add(inode.size.cast_signed());
        let mut row = Vec::with_capacity(80);
        inode.encode_into(&mut row);
        self.put(Key::new(Table::Link, begun.ino, b""), row.into());
        Ok(Ok(begun.ino))
    }

    /// Books the references of the new rows. What they refer to cannot be on its way out: the
    /// snapshot refers to it.
    fn book(&mut self) -> FsResult<()> {
        let share = self.numbers.own_share();
        for (object, added) in self.references.clone() {
            let key = Key::new(Table::ObjStat, object, &share);
            let stat = self.now.get(key.clone())?.map(|row| ObjStat::decode(&row)).transpose();
            let stat = stat.map_err(|why| damaged(format!("objstat: {why}")))?.unwrap_or_default();
            let value = ObjStat { referenced: stat.referenced + added }.encode();
            self.rows.push(Mutation { key, value: Some(value) });
        }
        Ok(())
    }
}
