//! What a batch does besides changing rows.
//!
//! Changes of session state (open files) happen at once, because later operations of the batch must
//! see them, and are undone if the operation or the batch fails. Everything else waits until the
//! batch has committed.

use kestrel_engine::Mutation;
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::snapshot::SnapshotInfo;
use rustc_hash::FxHashSet;

use crate::perm::Dentry;
use crate::quotas::{ChargeScratch, Charges};
use crate::session::{Moved, OpenState, OpenTable};

/// A change of the open table, to be undone.
#[derive(Debug, Clone, Copy)]
pub enum OpenUndo {
    /// It was opened once more.
    Opened(InodeId),
    /// It was released; its state before that.
    Released(InodeId, OpenState),
    /// Its state was set; what it was before.
    Set(InodeId, OpenState),
}

/// A change of the open table that a transaction of several nodes makes when it is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenChange {
    /// One open more.
    Opened(InodeId),
    /// One less.
    Released(InodeId),
    /// Its state, for an inode that nobody knew before.
    Set(InodeId, OpenState),
}

impl OpenChange {
    /// Makes it.
    pub fn make(self, opens: &OpenTable) {
        match self {
            OpenChange::Opened(ino) => opens.open(ino),
            OpenChange::Released(ino) => {
                opens.release(ino);
            }
            OpenChange::Set(ino, state) => opens.set(ino, state),
        }
    }
}

impl OpenUndo {
    fn undo(self, opens: &OpenTable) {
        match self {
            OpenUndo::Opened(ino) => {
                opens.release(ino);
            }
            OpenUndo::Released(ino, before) => {
                if opens.get(ino).count == 0 {
                    opens.set(ino, OpenState { count: 1, ..before });
                } else {
                    opens.open(ino);
                }
            }
            OpenUndo::Set(ino, before) => opens.set(ino, before),
        }
    }
}

/// See the module's header.
#[derive(Default)]
pub struct Effects {
    /// Changes of the open table, oldest first.
    pub opens: Vec<OpenUndo>,
    /// Files that moved.
    pub moved: Vec<(InodeId, Moved)>,
    /// Some of these may have rows of table `moved`.
    pub moved_rows: bool,
    /// Files with rows to be deleted from a chunk on, or none any more.
    pub sweeps: Vec<(InodeId, Option<u64>)>,
    /// Directories of which this batch changed the record or place: read them from the rows, not
    /// from the replica.
    pub dirs_changed: FxHashSet<InodeId>,
    /// Directories that this batch made, with their names.
    pub dirs_made: Vec<(Dentry, Box<[u8]>)>,
    /// Records of snapshots that it writes.
    pub snapshots: Vec<SnapshotInfo>,
    /// Objects that it adds references to.
    pub referred: Vec<ObjectId>,
    /// A file that the operation made without a name, and the directory.
    pub unnamed: Option<(InodeId, InodeId)>,
    /// What the operation moved to the trash, or a removed directory that it took out.
    pub kept: Option<InodeId>,
    /// What it charges to quotas.
    pub charges: Charges,
    /// For charging one operation at a time.
    pub charge_scratch: ChargeScratch,
    /// Rows of change feeds.
    pub feed_rows: Vec<Mutation>,
    /// Change of the volume's figures: files, directories, bytes.
    pub usage: [i64; 3],
}

/// A place in [`Effects`] to go back to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    opens: usize,
    moved: usize,
    sweeps: usize,
    made: usize,
    snapshots: usize,
    usage: [i64; 3],
    charged: usize,
    feed_rows: usize,
}

impl Effects {
    /// The volume has so many bytes more. Files may have sizes near the limit though they hold next
    /// to nothing, so sums of bytes wrap around, here and in shares of directories; they come right
    /// again when such a file goes.
    pub fn count_bytes(&mut self, change: i64) {
        self.usage[2] = self.usage[2].wrapping_add(change);
    }

    /// Where an operation starts.
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark {
            opens: self.opens.len(),
            moved: self.moved.len(),
            sweeps: self.sweeps.len(),
            made: self.dirs_made.len(),
            snapshots: self.snapshots.len(),
            usage: self.usage,
            charged: self.charges.operations(),
            feed_rows: self.feed_rows.len(),
        }
    }

    /// Whether the open table changed since `mark`.
    #[inline]
    pub fn session_changed_since(&self, mark: &Mark) -> bool {
        self.opens.len() > mark.opens
    }

    /// Undoes everything since `mark`. (Directories noted as changed stay noted, which is
    /// harmless.)
    pub fn back_to(&mut self, mark: &Mark, opens: &OpenTable) {
        for undo in self.opens.drain(mark.opens..).rev() {
            undo.undo(opens);
        }
        self.moved.truncate(mark.moved);
        self.sweeps.truncate(mark.sweeps);
        self.dirs_made.truncate(mark.made);
        self.snapshots.truncate(mark.snapshots);
        self.usage = mark.usage;
        self.feed_rows.truncate(mark.feed_rows);
        match mark.charged {
            0 => self.charges.undo(),
            before if before < self.charges.operations() => self.charges.undo_last(),
            _ => {}
        }
    }

    /// Takes the changes of the open table back and says what they were, to be made later.
    pub fn postpone_opens(&mut self, opens: &OpenTable) -> Vec<OpenChange> {
        let change = |undo: &OpenUndo| match *undo {
            OpenUndo::Opened(ino) => OpenChange::Opened(ino),
            OpenUndo::Released(ino, _) => OpenChange::Released(ino),
            OpenUndo::Set(ino, _) => OpenChange::Set(ino, opens.get(ino)),
        };
        let changes = self.opens.iter().map(change).collect();
        for undo in self.opens.drain(..).rev() {
            undo.undo(opens);
        }
        changes
    }

    /// Forgets everything; nothing is undone.
    pub fn clear(&mut self) {
        self.opens.clear();
        self.moved.clear();
        self.moved_rows = false;
        self.sweeps.clear();
        self.dirs_changed.clear();
        self.dirs_made.clear();
        self.snapshots.clear();
        self.referred.clear();
        self.unnamed = None;
        self.kept = None;
        self.charges.undo();
        self.feed_rows.clear();
        self.usage = [0; 3];
    }
}
