//! How far a request is that reads at a snapshot, or lists snapshots
//! ([`crate::snapshot_reads`] takes it on).

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_meta::node::Node;
use kestrel_meta::perm::Dentry;
use kestrel_meta::rows::{Missing, TxnRows};
use kestrel_meta::stop::Want;
use kestrel_meta::view::{decode_dir_id, guard_of};
use kestrel_types::clock::Nanos;
use kestrel_types::codec::DecodeError;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;
use kestrel_types::request::Request;
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};

use crate::RESEND;
use crate::message::snapshot_reads::ReadId;

/// Most snapshots of which the next step up is looked for at a time: a question has some hundred
/// kilobytes.
const STEPS_MAX: usize = 8192;

/// Directories above one that are looked at: a path has no more.
const DEPTH_MAX: u32 = 2048;

/// How far a request is that reads at a snapshot.
pub(crate) struct SnapshotRead {
    pub snapshot: SnapshotId,
    /// What is read there.
    pub request: Request,
    /// The node over the rows of then.
    pub node: Arc<Node>,
    /// Version of the table by which members are asked.
    pub table: u64,
    pub told: TxnRows,
    pub round: u32,
    /// The last one before this attempt, by whichever placement map.
    pub first_round: u32,
    /// What members were asked for and have not answered.
    pub asked: BTreeMap<NodeId, Missing>,
    pub sent: Nanos,
}

/// What rows that were told come to, where a directory is looked for.
pub(crate) enum DirAt {
    /// This row is needed.
    Lacks(Key),
    /// The directory, and its name.
    Dir(Dentry, Box<[u8]>),
    /// None.
    None,
}

impl SnapshotRead {
    pub fn is_due(&self, now: Nanos) -> bool {
        self.sent + RESEND <= now
    }

    /// A directory, from the rows that were told.
    pub fn find(&self, want: &Want) -> Result<DirAt, DecodeError> {
        let (key, ino) = match want {
            Want::Name(parent, name) => (Key::new(Table::Entry, *parent, name), None),
            Want::Id(ROOT) => (Key::new(Table::Entry, 0, b""), Some(ROOT)),
            Want::Id(ino) => {
                let key = Key::new(Table::DirId, *ino, b"");
                match self.told.rows.get(&key) {
                    None => return Ok(DirAt::Lacks(key)),
                    Some(None) => return Ok(DirAt::None),
                    Some(Some(row)) => {
                        let (parent, name) = decode_dir_id(row)?;
                        (Key::new(Table::Entry, parent, name), Some(*ino))
                    }
                }
            }
        };
        let Some(row) = self.told.rows.get(&key) else { return Ok(DirAt::Lacks(key)) };
        let entry = row.as_deref().map(Entry::decode).transpose()?;
        let Some(Entry::Inode(inode)) = entry else { return Ok(DirAt::None) };
        if inode.kind != Kind::Dir || ino.is_some_and(|ino| ino != inode.ino) {
            return Ok(DirAt::None);
        }
        let parent = if inode.ino == ROOT { ROOT } else { key.id };
        let policy = inode.policy()?;
        let dir = Dentry { ino: inode.ino, parent, guard: guard_of(&inode), policy };
        Ok(DirAt::Dir(dir, key.suffix))
    }
}

/// How far a listing of snapshots is.
pub(crate) struct SnapshotListing {
    /// All that may be listed, the oldest first.
    pub found: Vec<(SnapshotInfo, IsListed)>,
    /// Version of the table by which members are asked.
    pub table: u64,
    pub round: u32,
    pub asked: BTreeMap<NodeId, Vec<(InodeId, Vec<SnapshotId>)>>,
    pub sent: Nanos,
}

/// Whether a snapshot is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IsListed {
    Yes,
    No,
    /// If this directory was below that of the snapshot. It is so many steps above the one that was
    /// asked for.
    If(InodeId, u32),
}

impl SnapshotListing {
    pub fn is_due(&self, now: Nanos) -> bool {
        self.sent + RESEND <= now
    }

    /// Whether a member has yet to answer a question.
    pub fn is_asked(&self, from: NodeId, id: ReadId) -> bool {
        self.round == id.round && self.asked.contains_key(&from)
    }

    /// The next steps up: of each directory at which snapshots.
    pub fn steps(&self) -> BTreeMap<InodeId, Vec<SnapshotId>> {
        let mut steps: BTreeMap<InodeId, Vec<SnapshotId>> = BTreeMap::new();
        let open = self.found.iter().filter_map(|(info, listed)| match listed {
            IsListed::If(dir, _) => Some((*dir, info.id)),
            IsListed::Yes | IsListed::No => None,
        });
        for (dir, snapshot) in open.take(STEPS_MAX) {
            steps.entry(dir).or_default().push(snapshot);
        }
        steps
    }

    /// Goes up from these directories at these snapshots.
    pub fn take(&mut self, asked: &[(InodeId, Vec<SnapshotId>)], above: &[Vec<InodeId>]) {
        for ((dir, snapshots), above) in asked.iter().zip(above) {
            for (snapshot, above) in snapshots.iter().zip(above) {
                let index = self.found.binary_search_by_key(snapshot, |(info, _)| info.id);
                let Some((info, listed)) = index.ok().map(|index| &mut self.found[index]) else {
                    continue;
                };
                let IsListed::If(at, steps) = *listed else { continue };
                if at != *dir {
                    continue;
                }
                *listed = match *above {
                    0 => IsListed::No,
                    above if above == info.dir => IsListed::Yes,
                    _ if steps >= DEPTH_MAX => IsListed::No,
                    above => IsListed::If(above, steps + 1),
                };
            }
        }
    }
}
