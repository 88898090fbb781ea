//! The rows of the next names of a directory of a clone.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kestrel_engine::{Engine, Mutation};
use kestrel_types::clone::{CloneInfo, ClonedLink, PartialFile, PendingDir};
use kestrel_types::entry::Entry;
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode, Kind};
use kestrel_types::key::{Key, KeyRef, Table, number_of};
use kestrel_types::name::Name;
use kestrel_types::perm::{CAPABILITY, SET_GID, SET_UID};
use kestrel_types::snapshot::references;
use kestrel_types::stat::ObjStat;

use super::super::Node;
use super::{Based, damaged, get, source_dir};
use crate::clones::SuffixRow;
use crate::ops::clone_dir::based as based_record;
use crate::rows::{is_full, share_suffix};
use crate::stop::{Stop, engine_error};
use crate::view::encode_dir_id;

/// Most names that come into being in one batch.
const NAMES_MAX: usize = 512;

/// Bytes of rows after which a batch takes no further name.
const BYTES_MAX: usize = 4 << 20;

/// The share of objects and directories that the rows are booked to: every worker's state is held.
const SHARE: usize = 0;

/// One batch.
pub(super) struct Part<'a> {
    node: &'a Node,
    clone: &'a CloneInfo,
    then: &'a dyn Engine,
    dir: InodeId,
    pub rows: Vec<Mutation>,
    bytes: usize,
    /// Numbers for new inodes.
    next_ino: InodeId,
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

/// All rows of `(table, id)`: suffixes and values.
pub(super) fn rows_of(engine: &dyn Engine, table: Table, id: u64) -> FsResult<Vec<SuffixRow>> {
    let mut rows = Vec::new();
    let visited = engine.scan(table, id, None, &mut |suffix, row, _| {
        rows.push((suffix.into(), row.into()));
        ControlFlow::Continue(())
    });
    visited.map_err(engine_error)?;
    Ok(rows)
}

fn failure(stop: Stop) -> kestrel_types::error::FsError {
    match stop.without_rows() {
        kestrel_types::request::Outcome::Failed(why) => why,
        _ => damaged("a record of its source"),
    }
}

impl<'a> Part<'a> {
    /// The next batch for a directory; `None` if it has all names.
    pub fn of(node: &'a Node, based: &'a Based, then: &'a dyn Engine) -> FsResult<Option<Self>> {
        let Based { dir, clone, pending, .. } = based;
        let mut found: Vec<SuffixRow> = Vec::new();
        let after = pending.after.as_ref().map(Name::as_bytes);
        let visited = then.scan(Table::Entry, pending.source, after, &mut |name, row, _| {
            found.push((name.into(), row.into()));
            if found.len() < NAMES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        visited.map_err(engine_error)?;
        if found.is_empty() {
            return Ok(None);
        }
        let count = found.len() as u64;
        let next_ino = node.inodes.take(&*node.engine, count).map_err(engine_error)?;
        let mut part = Self {
            node,
            clone,
            then,
            dir: *dir,
            rows: Vec::with_capacity(found.len() + 8),
            bytes: 0,
            next_ino,
            references: BTreeMap::new(),
            links: BTreeMap::new(),
            usage: [0; 3],
            names: 0,
            is_last: false,
        };
        let mut now = pending.clone();
        part.is_last = count < NAMES_MAX as u64;
        for (name, row) in found {
            if part.bytes > BYTES_MAX {
                part.is_last = false;
                break;
            }
            match part.copy(&name, &row, now.file.take())? {
                Copied::Wholly => {
                    let name = Name::new(&name).map_err(|_| damaged("a name"))?;
                    (now.after, part.names) = (Some(name), part.names + 1);
                }
                Copied::Partly(file) => {
                    (now.file, part.is_last) = (Some(file), false);
                    break;
                }
            }
        }
        part.put(PendingDir::key(clone.id, *dir), now.encode());
        for (old, link) in std::mem::take(&mut part.links) {
            part.put(ClonedLink::key(clone.id, old), link.encode());
        }
        part.book()?;
        Ok(Some(part))
    }

    fn put(&mut self, key: Key, value: Box<[u8]>) {
        self.bytes += key.suffix.len() + value.len();
        for released in references(key.table, &value) {
            *self.references.entry(released.range.object).or_default() += i64::from(released.bytes);
        }
        self.rows.push(Mutation { key, value: Some(value) });
    }

    fn new_ino(&mut self) -> InodeId {
        self.next_ino += 1;
        self.next_ino - 1
    }

    /// Copies what a name of the source stands for. `begun`: its file, if a part was copied before.
    fn copy(&mut self, name: &[u8], row: &[u8], begun: Option<PartialFile>) -> FsResult<Copied> {
        let key = Key::new(Table::Entry, self.dir, name);
        let entry = Entry::decode(row).map_err(|why| damaged(format!("an entry: {why}")))?;
        let new = match entry {
            Entry::Inode(inode) if inode.kind == Kind::Dir => self.dir_of(name, inode.ino)?,
            Entry::Inode(inode) => {
                let begun = begun.unwrap_or_else(|| self.begin());
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

    fn begin(&mut self) -> PartialFile {
        PartialFile { ino: self.new_ino(), chunk: 0 }
    }

    /// A new directory without names.
    fn dir_of(&mut self, name: &[u8], old: InodeId) -> FsResult<Entry> {
        let source = source_dir(self.then, old)?;
        let source = source.ok_or_else(|| damaged(format!("no directory {old}")))?;
        let ino = self.new_ino();
        let (inode, _, stat) = based_record(&source, ino, self.clone).map_err(failure)?;
        let dir = self.dir;
        self.put(Key::new(Table::DirId, ino, b""), encode_dir_id(dir, name));
        self.put(Key::new(Table::Subdir, dir, &ino.to_be_bytes()), Box::default());
        self.put(Key::new(Table::DirStat, ino, &share_suffix(SHARE)), stat.encode());
        for (name, value) in source.xattrs {
            self.put(Key::new(Table::Xattr, ino, &name), value);
        }
        let pending = PendingDir { source: old, after: None, file: None };
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
        let (ctime, change) = (self.clone.created, self.clone.id);
        Inode { ino, mode, ctime, change, data_change: change, ..old }
    }

    /// Copies extents and extended attributes to a new file, as many as one batch may take; where
    /// to go on, if that is not all.
    fn content(&mut self, old: &Inode, begun: PartialFile) -> FsResult<Option<PartialFile>> {
        if old.xattrs && begun.chunk == 0 {
            let drops = self.loses_set_ids(old);
            for (name, value) in rows_of(self.then, Table::Xattr, old.ino)? {
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
        let most = self.node.core.scan_rows;
        let (mut found, mut bytes, mut next) = (Vec::new(), 0, None);
        let after = begun.chunk.checked_sub(1).map(u64::to_be_bytes);
        let after = after.as_ref().map(|after| &after[..]);
        let visited = self.then.scan(Table::Chunk, old.ino, after, &mut |suffix, row, _| {
            let chunk = number_of(suffix);
            bytes += row.len();
            if chunk >= end {
                return ControlFlow::Break(());
            }
            if is_full(most, found.len(), bytes) {
                next = Some(PartialFile { ino: begun.ino, chunk });
                return ControlFlow::Break(());
            }
            found.push((suffix.to_vec(), Box::from(row)));
            ControlFlow::Continue(())
        });
        visited.map_err(engine_error)?;
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
                let row = get(&*self.node.engine, ClonedLink::key(self.clone.id, old).borrow())?;
                let link = row.map(|row| ClonedLink::decode(&row)).transpose();
                link.map_err(|why| damaged(format!("file {old}: {why}")))?
            }
        };
        if let Some(link) = known {
            self.links.insert(old, ClonedLink { names: link.names + 1, ..link });
            return Ok(Ok(link.ino));
        }
        let row = get(self.then, KeyRef::new(Table::Link, old, b""))?;
        let row = row.ok_or_else(|| damaged(format!("no file {old}")))?;
        let inode = Inode::decode(&mut kestrel_types::codec::Reader::new(&row))
            .map_err(|why| damaged(format!("file {old}: {why}")))?;
        let begun = begun.unwrap_or_else(|| self.begin());
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
        let share = share_suffix(SHARE);
        let references = std::mem::take(&mut self.references);
        let keys: Vec<KeyRef<'_>> =
            references.keys().map(|object| KeyRef::new(Table::ObjStat, *object, &share)).collect();
        let mut shares = vec![Ok(ObjStat::default()); keys.len()];
        let read = self.node.engine.get_many(&keys, &mut |index, row| {
            if let Some(row) = row.value {
                shares[index] = ObjStat::decode(row);
            }
        });
        read.map_err(engine_error)?;
        for ((key, stat), added) in keys.iter().zip(shares).zip(references.values()) {
            let stat = stat.map_err(|why| damaged(format!("objstat: {why}")))?;
            let value = ObjStat { referenced: stat.referenced + added }.encode();
            self.rows.push(Mutation { key: (*key).to_owned(), value: Some(value) });
        }
        Ok(())
    }
}
