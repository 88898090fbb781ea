//! What becomes of rows that lie at a node which does not own them.
//!
//! What its owner lacks is brought there, and checked there with everything else. Where the owner
//! has another row, that is the one which all clients have read, so it counts, and what the
//! misplaced one holds of a user's data goes to `/lost+found`. So does a chunk of a file that has
//! none there: a hole is filled with nothing that may be older. What follows from other rows goes.
//!
//! The misplaced row goes last, after a sync of what takes its place.

use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_types::clock::Nanos;
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::extent::{CHUNK_BYTES, ExtentList};
use kestrel_types::inode::{Data, FILE_SIZE_MAX, Inode, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;

use super::write_through::WriteThrough;
use super::{Workshop, moved};
use crate::idset::IdSet;
use crate::rows::{Rows, delete, get, put, readable};

/// See the module's header.
pub struct MisplacedRows<'a> {
    write_through: &'a WriteThrough<'a>,
    now: Nanos,
    /// Inodes that have a record where it belongs.
    inodes: IdSet,
}

impl<'a> MisplacedRows<'a> {
    /// Learns which inodes there are.
    ///
    /// # Errors
    /// Those of the engines.
    pub fn new(write_through: &'a WriteThrough<'a>, now: Nanos) -> Result<Self, EngineError> {
        let mut inodes = IdSet::default();
        for row in Rows::new(write_through, Table::Entry) {
            if let Ok(Entry::Inode(inode)) = Entry::decode(&row?.1) {
                inodes.insert(inode.ino);
            }
        }
        for row in Rows::new(write_through, Table::Link) {
            inodes.insert(row?.0.id);
        }
        Ok(Self { write_through, now, inodes })
    }

    /// Takes a row away from the node where it lies. What was done, or nothing if it has to stay.
    ///
    /// # Errors
    /// Those of the engines.
    pub fn bring(&self, from: NodeId, key: &Key) -> Result<Option<String>, EngineError> {
        let source = self.write_through.node(from)?;
        let Some(value) = get(source, key.clone())? else { return Ok(None) };
        let fix_text = self.resolve(key, value)?;
        if fix_text.is_some() {
            self.write_through.sync()?;
            source.commit(BatchKind::Freeing, vec![delete(key)])?;
        }
        Ok(fix_text)
    }

    fn resolve(&self, key: &Key, value: Box<[u8]>) -> Result<Option<String>, EngineError> {
        let owner = self.write_through.view().owner(key.table, key.id, &key.suffix);
        let home = match (key.table, self.write_through.node(owner)) {
            // Sums are counted anew.
            (Table::DirStat | Table::ObjStat, Err(_)) => {
                return Ok(Some(format!("removed: there is no node {owner}")));
            }
            // It would delete rows that may be a file's again.
            (Table::Sweep, _) => return Ok(Some("removed".into())),
            (_, home) => home?,
        };
        match get(home, key.clone())? {
            Some(there) if there == value => {
                Ok(Some(format!("removed: node {owner} has the same")))
            }
            Some(_) => self.keep(key, &value),
            None if key.table == Table::Chunk && self.inodes.contains(key.id) => {
                self.keep_chunk(key, &value)
            }
            None => {
                let row = put(key.table, key.id, &key.suffix, value);
                home.commit(BatchKind::Freeing, vec![row])?;
                Ok(Some(format!("brought to node {owner}")))
            }
        }
    }

    /// Keeps what a row holds of a user's data though its owner has another.
    fn keep(&self, key: &Key, value: &[u8]) -> Result<Option<String>, EngineError> {
        let removed = || Ok(Some("removed: its owner has another".to_string()));
        let inode = match key.table {
            Table::Entry => match Entry::decode(value) {
                Ok(Entry::Inode(inode)) => inode,
                // The record of the file lies elsewhere.
                Ok(Entry::Link { .. }) => return removed(),
                Err(_) => return Ok(None),
            },
            Table::Link => match Inode::decode(&mut Reader::new(value)) {
                Ok(inode) => inode,
                Err(_) => return Ok(None),
            },
            Table::Chunk => return self.keep_chunk(key, value),
            _ => return removed(),
        };
        let has_inode = self.inodes.contains(inode.ino);
        // What is in a directory is found by its number, and so are chunks.
        if inode.kind == Kind::Dir || has_inode && inode.data == Data::Chunked {
            return removed();
        }
        let workshop = self.workshop();
        let (ino, xattrs) = match has_inode {
            true => (workshop.new_number((key.id, &key.suffix))?, false),
            false => (inode.ino, inode.xattrs),
        };
        self.name(&workshop, Inode { ino, xattrs, nlink: 1, ..inode }, None)
    }

    /// Keeps a chunk as a file of its own.
    fn keep_chunk(&self, key: &Key, value: &[u8]) -> Result<Option<String>, EngineError> {
        let number = <[u8; 8]>::try_from(&*key.suffix).map(u64::from_be_bytes);
        let first = number.ok().and_then(|number| number.checked_mul(u64::from(CHUNK_BYTES)));
        let (Some(first), Ok(list)) = (first, ExtentList::decode(&mut Reader::new(value))) else {
            return Ok(None);
        };
        let workshop = self.workshop();
        let ino = workshop.new_number((key.id, &key.suffix))?;
        let size = first.saturating_add(u64::from(list.end())).min(FILE_SIZE_MAX);
        let file = Inode { size, data: Data::Chunked, ..workshop.inode(ino, Kind::File) };
        self.name(&workshop, file, Some(put(Table::Chunk, ino, &key.suffix, value.into())))
    }

    fn workshop(&self) -> Workshop<'_> {
        Workshop::new(self.write_through, Some(self.write_through), self.now)
    }

    /// Names a file in `/lost+found`.
    fn name(
        &self,
        workshop: &Workshop<'_>,
        inode: Inode,
        chunk: Option<Mutation>,
    ) -> Result<Option<String>, EngineError> {
        let entry = Entry::Inode(inode);
        let (parent, name) = workshop.name_for(&entry)?;
        let named = put(Table::Entry, parent, &name, entry.encode());
        let rows = moved(&named).into_iter().chain(chunk).chain([named]).collect();
        self.write_through.commit(BatchKind::Freeing, rows)?;
        Ok(Some(format!("its owner has another; kept as /lost+found/{}", readable(&name))))
    }
}
