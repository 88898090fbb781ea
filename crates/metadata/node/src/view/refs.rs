//! What an inode holds on to: opens of it, the place it moved to, references to objects, chunks,
//! extended attributes.

use kestrel_types::clock::SECOND;
use kestrel_types::ids::InodeId;
use kestrel_types::key::{Table, number_of};
use kestrel_types::name::InodeRef;
use kestrel_types::placement::Owner;
use kestrel_types::stat::ObjStat;

use super::{At, LocatedInode, View, decode_dir_id, encode_dir_id};
use crate::effects::OpenUndo;
use crate::ref_deltas::RefDeltas;
use crate::rows::{CellId, Value, share_suffix};
use crate::session::{Moved, NewPath, OpenState};
use crate::stop::{Run, Stop, damaged, fail};

/// Rows of a file's chunks, by chunk.
pub type Chunks = Vec<(u64, CellId)>;

impl View<'_> {
    /// How a file is open.
    pub fn open_state(&self, ino: InodeId) -> OpenState {
        self.core.opens.get(ino)
    }

    /// Counts an open, but of a snapshot, where files stay.
    pub fn count_open(&mut self, ino: InodeId) {
        if self.core.is_snapshot {
            return;
        }
        self.core.opens.open(ino);
        self.effects.opens.push(OpenUndo::Opened(ino));
    }

    /// Counts a release. Whether it was the last one.
    pub fn count_release(&mut self, ino: InodeId) -> bool {
        let before = self.core.opens.get(ino);
        let left = self.core.opens.release(ino);
        if left.is_some() {
            self.effects.opens.push(OpenUndo::Released(ino, before));
        }
        left.is_none_or(|left| left.count == 0)
    }

    /// Changes how a file is open. Only with every worker's state held, or for an inode that nobody
    /// knows yet.
    pub fn set_open(&mut self, ino: InodeId, state: OpenState) {
        self.effects.opens.push(OpenUndo::Set(ino, self.core.opens.get(ino)));
        self.core.opens.set(ino, state);
    }

    /// What an earlier operation of this batch made of a file's place.
    fn moved_here(&mut self, ino: InodeId) -> Option<Moved> {
        let (_, moved) = self.effects.moved.iter().rev().find(|(moved, _)| *moved == ino)?;
        // Whatever rows that leads to.
        self.depends = true;
        Some(moved.clone())
    }

    /// Where a renamed file went. Of several nodes only the row can tell, at the home of the file.
    pub(super) fn moved(&mut self, ino: InodeId) -> Run<Option<NewPath>> {
        if self.core.cluster.is_none() {
            return Ok(self.moved_to(ino));
        }
        let cell = self.rows.cell(Table::Moved, ino, b"");
        let Some(bytes) = self.bytes(cell)? else { return Ok(None) };
        let (parent, name) = decode_dir_id(bytes).map_err(|why| damaged("moved", &why))?;
        Ok((parent != 0).then(|| (parent, name.into())))
    }

    /// Whether no client can have a file open at another node than this one: it lies where it was
    /// made, at its home, and never lay elsewhere or had a second name, the name alone says which
    /// node leads requests for it, and always did.
    pub fn is_only_here(&mut self, found: &LocatedInode) -> Run<bool> {
        let Some(table) = self.table else { return Ok(true) };
        let ino = found.inode.ino;
        let at_home = match found.at {
            At::Name { cell, .. } => {
                let owner = table.placement.owner_of_name(self.rows.suffix(cell));
                table.home_of(ino) == table.me
                    && matches!(owner, Owner::Node(_))
                    && table.made_here(ino)
            }
            At::Dir(_) | At::Link { .. } => false,
        };
        let cell = self.rows.cell(Table::Moved, ino, b"");
        let moved = self.bytes(cell)?.is_some();
        Ok(at_home && !moved)
    }

    /// Whether a file without names may be given one. Of several nodes only the row can tell, since
    /// the node that gives it a name may be another one than where it is open.
    pub fn is_linkable(&mut self, ino: InodeId) -> Run<bool> {
        if self.core.cluster.is_none() {
            return Ok(self.open_state(ino).linkable);
        }
        self.is_noted_linkable(ino)
    }

    /// Whether a row of table `moved` that leads nowhere says that a file without names may be
    /// given one. It outlives a restart of the node, after which a client that did not make the
    /// file cannot say so when it claims its opens.
    pub fn is_noted_linkable(&mut self, ino: InodeId) -> Run<bool> {
        if !self.notes_linkable() {
            return Ok(false);
        }
        let cell = self.rows.cell(Table::Moved, ino, b"");
        let Some(bytes) = self.bytes(cell)? else { return Ok(false) };
        let (parent, _) = decode_dir_id(bytes).map_err(|why| damaged("moved", &why))?;
        Ok(parent == 0)
    }

    /// Clients have files open that outlive the node.
    fn notes_linkable(&self) -> bool {
        self.core.serves || self.core.cluster.is_some()
    }

    /// A file without names goes. Ask for [`View::want_moved`] before.
    pub fn forget_linkable(&mut self, ino: InodeId) {
        if self.notes_linkable() {
            let cell = self.rows.cell(Table::Moved, ino, b"");
            if self.rows.exists(cell) {
                self.put(cell, Value::Absent);
            }
        }
    }

    /// A new file without names may be given one.
    pub fn set_linkable(&mut self, ino: InodeId) {
        if self.notes_linkable() {
            let cell = self.rows.cell(Table::Moved, ino, b"");
            self.put(cell, Value::Bytes(encode_dir_id(0, b"")));
        }
    }

    /// Asks for what [`View::move_away`] and [`View::forget_linkable`] need. Before
    /// [`View::begin`].
    pub fn want_moved(&mut self, ino: InodeId) -> Run<()> {
        if self.notes_linkable() {
            let cell = self.rows.cell(Table::Moved, ino, b"");
            self.fetched(cell)?;
        }
        Ok(())
    }

    fn moved_to(&mut self, ino: InodeId) -> Option<NewPath> {
        match self.moved_here(ino) {
            Some(Moved::To { place, .. }) => Some(place),
            Some(Moved::Away) => None,
            None => self.core.moved.get(ino),
        }
    }

    fn has_moved_row(&mut self, ino: InodeId) -> bool {
        if !self.effects.moved_rows && !self.core.moved.has_row(ino) {
            return false;
        }
        match self.moved_here(ino) {
            Some(Moved::To { row, .. }) => row,
            Some(Moved::Away) => false,
            None => self.core.moved.has_row(ino),
        }
    }

    /// A file has another place now. Clients that saw it elsewhere still find it, those that have
    /// it open across a network also after a restart of the node; of several nodes all do until it
    /// is gone. With every worker's state held.
    pub fn move_to(&mut self, ino: InodeId, parent: InodeId, name: &[u8]) {
        if self.core.cluster.is_some() {
            let cell = self.rows.cell(Table::Moved, ino, b"");
            return self.put(cell, Value::Bytes(encode_dir_id(parent, name)));
        }
        let may_be_open = || self.core.reclaiming.lasts() || self.open_state(ino).count > 0;
        let row = self.core.serves && may_be_open();
        if row {
            let cell = self.rows.cell(Table::Moved, ino, b"");
            self.put(cell, Value::Bytes(encode_dir_id(parent, name)));
            self.effects.moved_rows = true;
        } else {
            self.delete_moved_row(ino);
        }
        self.effects.moved.push((ino, Moved::To { place: (parent, name.into()), row }));
    }

    /// No place leads to a file's record any more. If somebody has it open, with every worker's
    /// state held.
    pub fn move_away(&mut self, ino: InodeId) {
        if self.core.cluster.is_some() {
            let cell = self.rows.cell(Table::Moved, ino, b"");
            if self.rows.exists(cell) {
                self.put(cell, Value::Absent);
            }
            return;
        }
        self.delete_moved_row(ino);
        self.effects.moved.push((ino, Moved::Away));
    }

    /// Nobody has a file open any more, so a restart need not know where it went. At the inode's
    /// own worker.
    pub fn settle(&mut self, ino: InodeId) {
        if self.has_moved_row(ino)
            && let Some(place) = self.moved_to(ino)
        {
            self.delete_moved_row(ino);
            self.effects.moved.push((ino, Moved::To { place, row: false }));
        }
    }

    fn delete_moved_row(&mut self, ino: InodeId) {
        if self.has_moved_row(ino) {
            let cell = self.rows.cell(Table::Moved, ino, b"");
            self.put(cell, Value::Absent);
        }
    }

    /// The place of a file that was found elsewhere than its client saw it, if a restart would
    /// forget the way.
    pub fn strayed(&mut self, asked: &InodeRef, found: &LocatedInode) -> Option<NewPath> {
        let At::Name { cell, parent, .. } = found.at else { return None };
        if !self.core.serves || self.core.cluster.is_some() {
            return None;
        }
        let name = self.rows.suffix(cell);
        if asked.seen.as_ref().is_some_and(|seen| (seen.0, seen.1.as_bytes()) == (parent, name)) {
            return None;
        }
        let place = (parent, name.into());
        if self.has_moved_row(asked.ino) { None } else { Some(place) }
    }

    /// Asks for the shares that a tally is going to change. Before [`View::begin`].
    /// `shared`: a file refers to what is added already, so it cannot be what is being deleted.
    pub fn want_objects(&mut self, tally: &mut RefDeltas, home: usize, shared: bool) -> Run<()> {
        tally.merge();
        tally.keep_from(self.core.objects_from);
        let home = self.core.own_share(home);
        for (object, bytes) in tally.items() {
            if *bytes > 0 {
                if self.core.condemned.refer(*object) && !shared {
                    return Err(fail(
                        libc::EIO,
                        "the object is being deleted: write the data again",
                    ));
                }
                if self.core.cluster.is_some() {
                    self.effects.referred.push(*object);
                }
            }
            self.rows.cell(Table::ObjStat, *object, &share_suffix(home));
            if *bytes < 0 {
                for worker in 0..self.core.shares {
                    let share = self.core.own_share(worker);
                    self.rows.cell(Table::ObjStat, *object, &share_suffix(share));
                }
            }
        }
        Ok(())
    }

    /// Books a tally to a worker's shares, and has objects looked at that may have lost their last
    /// reference.
    ///
    /// The worker sees other shares as they were when the batch fetched them, so it may miss that a
    /// sum became zero. When a sum is zero, some share is not above zero; the rule below makes the
    /// worker that brought it there, or the last one to release anything, write a `reap` row, and
    /// the reaper adds the shares up after the grace period.
    ///
    /// Of several nodes each books what it leads to its own shares, wherever the file is, and sees
    /// no others. Its part of the sum may be below nought: then the reaper keeps the row
    /// ([`crate::node::Node::due_objects`]). So when the sum becomes nought either the part of the
    /// node that released last is not above nought, and the row is written here, or another node's
    /// is below nought.
    pub fn book(&mut self, tally: &RefDeltas, home: usize) -> Run<()> {
        let home = self.core.own_share(home);
        for (object, bytes) in tally.items() {
            let own = self.rows.cell(Table::ObjStat, *object, &share_suffix(home));
            self.fetched(own)?;
            let mut stat = self.rows.obj_stat(own).map_err(|why| damaged("objstat", &why))?;
            stat.referenced += bytes;
            self.put(own, Value::ObjStat(stat));
            if *bytes > 0 {
                continue;
            }
            let (mut sum, mut below) = (0, stat.referenced <= 0);
            for worker in 0..self.core.shares {
                let share = self.core.own_share(worker);
                let cell = self.rows.cell(Table::ObjStat, *object, &share_suffix(share));
                // It may be lent.
                self.fetched(cell)?;
                let ObjStat { referenced } =
                    self.rows.obj_stat(cell).map_err(|why| damaged("objstat", &why))?;
                sum += referenced;
                below |= referenced < 0;
            }
            if sum <= 0 || below {
                let due = ((self.now + self.core.grace).max(0) / SECOND + 1).cast_unsigned();
                let cell = self.rows.cell(Table::Reap, due, &object.to_be_bytes());
                self.put(cell, Value::Bytes(Box::default()));
            }
        }
        Ok(())
    }

    /// Cells of the chunks of a file that exist, from chunk `first` on, in order: as many as one
    /// batch may take, and if that is not all, the chunk that the rest begins at.
    pub fn chunks_from(&mut self, ino: InodeId, first: u64) -> Run<(Chunks, Option<u64>)> {
        self.rows.want_all(Table::Chunk, ino, first);
        self.ready()?;
        self.rows.is_group_here(Table::Chunk, ino)?;
        let rest = self.rows.left_out(Table::Chunk, ino, first);
        let mut chunks = Vec::new();
        for cell in self.rows.group(Table::Chunk, ino) {
            let number = number_of(self.rows.suffix(cell));
            let here = number >= first && rest.is_none_or(|rest| number < rest);
            if here && self.rows.exists(cell) {
                chunks.push((number, cell));
            }
        }
        Ok((chunks, rest))
    }

    /// The chunk from which on a file's rows were cut off and are still being deleted, if some are.
    /// Before [`View::begin`].
    pub fn sweep_of(&mut self, ino: InodeId) -> Run<Option<u64>> {
        if let Some((_, first)) = self.effects.sweeps.iter().rev().find(|(swept, _)| *swept == ino)
        {
            self.depends = true;
            return Ok(*first);
        }
        // A transaction over several nodes reads the row at the file's home; the home's own memory
        // says the same to the home itself.
        if self.no_dirs.is_none() {
            let here = self.core.is_own(self.home_of_inode(ino));
            return if here { Ok(self.core.sweeps.get(ino)) } else { Err(Stop::Away) };
        }
        self.rows.want_all(Table::Sweep, ino, 0);
        self.ready()?;
        let cells = self.rows.group(Table::Sweep, ino);
        let first = cells.into_iter().find(|cell| self.rows.exists(*cell));
        Ok(first.map(|cell| number_of(self.rows.suffix(cell))))
    }

    /// Has a file's rows deleted from chunk `first` on (`None`: they are all gone). Until then the
    /// file must not have chunks there. `before`: what [`View::sweep_of`] said.
    pub fn set_sweep(&mut self, ino: InodeId, before: Option<u64>, first: Option<u64>) {
        if before == first {
            return;
        }
        if let Some(before) = before {
            let cell = self.rows.cell(Table::Sweep, ino, &before.to_be_bytes());
            self.put(cell, Value::Absent);
        }
        if let Some(first) = first {
            let cell = self.rows.cell(Table::Sweep, ino, &first.to_be_bytes());
            self.put(cell, Value::Bytes(Box::default()));
        }
        self.effects.sweeps.push((ino, first));
    }

    /// Cells of the extended attributes of an inode, in the order of their names.
    pub fn xattrs(&mut self, ino: InodeId) -> Run<Vec<CellId>> {
        self.rows.want_all(Table::Xattr, ino, 0);
        self.ready()?;
        self.rows.is_group_here(Table::Xattr, ino)?;
        let mut cells = self.rows.group(Table::Xattr, ino);
        cells.retain(|cell| self.rows.exists(*cell));
        for cell in &cells {
            self.note(*cell);
        }
        Ok(cells)
    }
}
