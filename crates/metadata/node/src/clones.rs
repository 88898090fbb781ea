//! Clones that are not finished (`docs/design/metadata.md`, "Clones").
//!
//! A clone is made in O(1): a directory, in its inode the clone's number, its *base*, and a row
//! of table `clone` that says which directory its names come from, and in the record of the
//! snapshot that it stands on what the clone is. A directory
//! with a base gets its names when an operation needs one of them, or when nothing else is to be
//! done ([`crate::node`], `clones.rs`): a batch of names at a time, each with an inode number of
//! its own and with the stored bytes of the old one; a subdirectory has the figures of the old one
//! at once, and a base.
//!
//! **That is no change.** The rows are written below the history layer, with the clone's stamp, as
//! if they had been written when the clone was made: every snapshot since then shows them. This
//! holds because no row that has a base comes into history: a change of a directory's record waits
//! until the directory has its names ([`Stop::Based`](crate::stop::Stop::Based)).
//!
//! **Older snapshots** do not have them: inodes have the clone's stamp. Rows without a stamp, of
//! the place of a directory and of a name of a file with several, are seen there, so a reader at a
//! snapshot takes it for absence if what such a row refers to is missing.
//!
//! **What a clone stands on.** The rows of the source at a snapshot. A clone of the present makes a
//! snapshot that nobody sees; one that users remove is hidden until no clone needs it.
//!
//! **Order.** A clone of a clone may find a directory of its source without names. That gets its
//! names first. Sources are older than clones, so this ends.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_types::clone::{CloneInfo, RECORD_PREFIX};
use kestrel_types::codec::DecodeError;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::stat::DirStat;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::history::damaged;
use crate::history::known::KnownSnapshots;

/// Directories at snapshots that are kept for those that clone them.
const SOURCES_MAX: usize = 16;

/// What an operation on a snapshot ends with that needs names of a directory without: it is run
/// again when the live volume has them.
pub const WITHOUT_NAMES: FsError =
    FsError::new(libc::EAGAIN, "a directory of a clone has not all its names yet");

/// A row of one table and id: suffix and value.
pub type SuffixRow = (Box<[u8]>, Box<[u8]>);

/// A directory that is cloned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDir {
    /// Its record.
    pub inode: Inode,
    /// The sum of its shares.
    pub stat: DirStat,
    /// Rows of its extended attributes: names and values.
    pub xattrs: Vec<SuffixRow>,
}

type Sources = VecDeque<(SnapshotId, Arc<SourceDir>)>;

/// What requests need of clones.
#[derive(Default)]
pub struct CloneNeeds {
    /// Directories at snapshots that were read for a request.
    sources: Mutex<Sources>,
    /// Of a snapshot: directories of which a request lacked names.
    wanted: Mutex<FxHashSet<InodeId>>,
}

/// Has records of snapshots tell of clones that have records of their own: programs wrote these
/// before snapshots of several nodes had clones.
///
/// # Errors
/// `Corrupt` for a damaged record; the engine's.
pub fn move_own_records(
    engine: &dyn Engine,
    snapshots: &KnownSnapshots,
) -> Result<(), EngineError> {
    let (mut list, mut damage) = (Vec::new(), None);
    let from = KeyRef::new(Table::System, 0, RECORD_PREFIX);
    engine.scan_table(Table::System, Some(from), &mut |key, row| {
        match CloneInfo::decode_own_record(key.suffix, row) {
            Some(Ok(info)) => list.push(info),
            Some(Err(why)) => {
                let name = String::from_utf8_lossy(key.suffix);
                damage = Some(damaged(&format!("record {name:?}"), &why));
            }
            None => return ControlFlow::Break(()),
        }
        if damage.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(why) = damage {
        return Err(why);
    }
    for clone in list {
        let Some(known) = snapshots.get(clone.snapshot) else {
            let why = DecodeError("its snapshot is not there");
            return Err(damaged(&format!("record of clone {}", clone.id), &why));
        };
        let info = known.info.with_clone(clone);
        let rows = vec![
            Mutation { key: info.key(), value: Some(info.encode()) },
            Mutation { key: clone.own_record_key(), value: None },
        ];
        let position = engine.commit(BatchKind::Freeing, rows)?;
        snapshots.put(info, position);
    }
    Ok(())
}

impl CloneNeeds {
    /// A directory at a snapshot, if it has been read.
    pub fn source(&self, dir: InodeId, at: SnapshotId) -> Option<Arc<SourceDir>> {
        let sources = self.sources.lock();
        let is_it =
            |(of, source): &&(SnapshotId, Arc<SourceDir>)| (*of, source.inode.ino) == (at, dir);
        sources.iter().find(is_it).map(|(_, source)| source.clone())
    }

    /// A directory at a snapshot was read.
    pub fn keep_source(&self, at: SnapshotId, source: SourceDir) {
        let mut sources = self.sources.lock();
        sources.push_back((at, Arc::new(source)));
        if sources.len() > SOURCES_MAX {
            sources.pop_front();
        }
    }

    /// A request on a snapshot ends with [`WITHOUT_NAMES`] because of this directory.
    pub fn want(&self, dir: InodeId) {
        self.wanted.lock().insert(dir);
    }

    /// Directories that requests lacked.
    pub fn take_wanted(&self) -> Vec<InodeId> {
        self.wanted.lock().drain().collect()
    }
}
