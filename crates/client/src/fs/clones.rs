//! Clones of directories: make one, finish it.

use std::sync::Arc;

use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::name::PathRef;
use kestrel_types::request::{Answer, Op};
use kestrel_types::snapshot::SnapshotId;

use super::{Caller, Done, Fs, into_inode, unexpected};

/// A part of a clone came into being.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloneProgress {
    /// So many names.
    pub names: u64,
    /// The clone lacks nothing.
    pub done: bool,
}

impl Fs {
    /// Makes a clone of a directory as it was at a snapshot, or as it is. What was written through
    /// this client before is in a clone of the present, as far as it can be stored; of other
    /// clients what they have flushed. The time does not depend on the size of the tree.
    ///
    /// # Errors
    /// `EEXIST` if the place is taken, `EINVAL` for the present of a directory above the place,
    /// `EPERM` for anybody but the source's owner and the superuser, `ESTALE` if the snapshot is
    /// gone, `EOPNOTSUPP` on a cluster; as for making a directory there.
    pub fn clone_dir(
        self: &Arc<Self>,
        caller: Caller,
        (source, at): (InodeId, Option<SnapshotId>),
        place: PathRef,
        done: Done<Inode>,
    ) {
        let fs = self.clone();
        let make = move || {
            let op = Op::CloneDir { source, at, place };
            fs.ask(caller, op, move |answer| done(answer.and_then(into_inode)));
        };
        match at {
            Some(_) => make(),
            None => self.flush_all(make),
        }
    }

    /// Has a part of what a clone lacks come into being; `dir` is the directory that
    /// [`Fs::clone_dir`] made.
    ///
    /// # Errors
    /// `EPERM` for anybody but the user that made it and the superuser; the node's.
    pub fn clone_step(self: &Arc<Self>, caller: Caller, dir: InodeId, done: Done<CloneProgress>) {
        self.ask(caller, Op::CloneStep(dir), move |answer| {
            done(answer.and_then(|answer| match answer {
                Answer::CloneProgress { names, done } => Ok(CloneProgress { names, done }),
                other => Err(unexpected(&other)),
            }));
        });
    }
}
