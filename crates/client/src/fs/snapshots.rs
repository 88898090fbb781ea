//! Snapshots of directories: make, list, rename, remove, hold; and the file system at one of them.

use std::sync::Arc;
use std::time::Duration;

use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::request::{Answer, Creds, Op, Request};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use parking_lot::Mutex;

use super::{Caller, Done, Fs, FsConfig, unexpected};
use crate::groups::supplementary_groups;
use crate::metadata::Metadata;
use crate::snapshot_metadata::SnapshotMetadata;

/// How long attributes that came with a listing of a snapshot are used: as long as the directory is
/// open.
const LISTING_TTL: Duration = Duration::from_secs(86_400);

/// By how much fewer attributes of listings a snapshot keeps than the live volume.
const LISTED_PART: usize = 8;

impl Fs {
    /// Makes a snapshot of a directory. What was written through this client before is in it, as
    /// far as it can be stored; of other clients what they have flushed.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken, `EINVAL` if it cannot be one, `EPERM` for anybody but the
    /// directory's owner and the superuser; on a cluster also those of a node out of reach.
    pub fn create_snapshot(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        name: Name,
        done: Done<SnapshotInfo>,
    ) {
        let fs = self.clone();
        self.flush_all(move || {
            fs.ask(caller, Op::SnapshotCreate { dir, name }, move |answer| {
                done(answer.and_then(|answer| match answer {
                    Answer::Snapshots(made) => one(made),
                    other => Err(unexpected(&other)),
                }));
            });
        });
    }

    /// Gives a snapshot of a directory another name.
    ///
    /// # Errors
    /// `ENOENT`, and as [`Fs::create_snapshot`].
    pub fn rename_snapshot(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        (from, to): (Name, Name),
        done: Done<()>,
    ) {
        self.ask(caller, Op::SnapshotRename { dir, from, to }, move |answer| {
            done(answer.map(drop));
        });
    }

    /// Removes a snapshot of a directory. Its space comes back in the background.
    ///
    /// # Errors
    /// `ENOENT`; `EBUSY` if it is held; `EPERM` as [`Fs::create_snapshot`].
    pub fn remove_snapshot(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        name: Name,
        done: Done<()>,
    ) {
        let fs = self.clone();
        let known = move |known: FsResult<Vec<SnapshotInfo>>| {
            let ids: Vec<SnapshotId> = known
                .unwrap_or_default()
                .iter()
                .filter(|info| info.dir == dir && info.name == name)
                .map(|info| info.id)
                .collect();
            let kept = fs.kept.clone();
            fs.ask(caller, Op::SnapshotRemove { dir, name }, move |answer| {
                if answer.is_ok() {
                    ids.iter().for_each(|id| kept.forget(*id));
                }
                done(answer.map(drop));
            });
        };
        self.snapshots(caller, Some(dir), false, Box::new(known));
    }

    /// Puts a tag on a snapshot, which cannot be removed then, or takes the tag away.
    ///
    /// # Errors
    /// `ENOENT`, and as [`Fs::create_snapshot`].
    pub fn hold_snapshot(
        self: &Arc<Self>,
        caller: Caller,
        (dir, name): (InodeId, Name),
        (tag, hold): (Name, bool),
        done: Done<()>,
    ) {
        self.ask(caller, Op::SnapshotHold { dir, name, tag, hold }, move |answer| {
            done(answer.map(drop));
        });
    }

    /// The snapshots of a directory, the oldest first; with `ancestors` also those of the
    /// directories above it in which it was. `None`: all of the volume, for the superuser.
    ///
    /// # Errors
    /// The node's.
    pub fn snapshots(
        self: &Arc<Self>,
        caller: Caller,
        dir: Option<InodeId>,
        ancestors: bool,
        done: Done<Vec<SnapshotInfo>>,
    ) {
        self.ask(caller, Op::SnapshotList { dir, ancestors }, move |answer| {
            done(answer.and_then(|answer| match answer {
                Answer::Snapshots(snapshots) => Ok(snapshots),
                other => Err(unexpected(&other)),
            }));
        });
    }

    /// The file system as it was at a snapshot, with the directory `root` for its root. It is
    /// read-only, and shares store, caches, memory and threads with this one, which must be alive
    /// as long as it is used.
    pub fn at(self: &Arc<Self>, snapshot: SnapshotId, root: InodeId) -> Arc<Fs> {
        let metadata =
            SnapshotMetadata::new(self.metadata.clone(), (snapshot, root), self.kept.clone());
        let listed_entries_max = self.config.listed_entries_max / LISTED_PART;
        let config = FsConfig { read_only: true, listed_entries_max, ..self.config.clone() };
        let fs = Self::assemble(Arc::new(metadata), self.shared(), config);
        fs.set_listing_ttl(LISTING_TTL);
        fs
    }

    /// Attributes of a directory at a snapshot, without a file system there.
    ///
    /// # Errors
    /// `ESTALE` if it was not there, or the snapshot is gone.
    pub fn getattr_at(
        self: &Arc<Self>,
        caller: Caller,
        (snapshot, dir): (SnapshotId, InodeId),
        done: Done<Inode>,
    ) {
        let op = Op::GetAttr(InodeRef::by_id(dir));
        self.ask_at(caller, snapshot, op, move |answer| done(answer.and_then(super::into_inode)));
    }

    /// Value of an extended attribute of a directory at a snapshot, likewise.
    ///
    /// # Errors
    /// As [`Fs::getxattr`], and as [`Fs::getattr_at`].
    pub fn getxattr_at(
        self: &Arc<Self>,
        caller: Caller,
        (snapshot, dir): (SnapshotId, InodeId),
        name: Box<[u8]>,
        done: Done<Box<[u8]>>,
    ) {
        let op = Op::GetXattr(InodeRef::by_id(dir), name);
        self.ask_at(caller, snapshot, op, move |answer| done(answer.and_then(super::into_bytes)));
    }

    /// Names of all extended attributes of a directory at a snapshot, likewise.
    ///
    /// # Errors
    /// As [`Fs::getattr_at`].
    pub fn listxattr_at(
        self: &Arc<Self>,
        caller: Caller,
        (snapshot, dir): (SnapshotId, InodeId),
        done: Done<Box<[u8]>>,
    ) {
        let op = Op::ListXattr(InodeRef::by_id(dir));
        self.ask_at(caller, snapshot, op, move |answer| done(answer.and_then(super::into_bytes)));
    }

    fn ask_at(
        self: &Arc<Self>,
        caller: Caller,
        snapshot: SnapshotId,
        op: Op,
        done: impl FnOnce(FsResult<Answer>) + Send + 'static,
    ) {
        let metadata =
            SnapshotMetadata::new(self.metadata.clone(), (snapshot, ROOT), self.kept.clone());
        // Whether they decide or not: this is rare.
        let groups = (caller.uid != 0).then(|| supplementary_groups(caller.pid));
        let request = Request { creds: Creds { groups, ..super::creds(caller) }, op };
        metadata.submit(request, Box::new(move |reply| done(super::plain(reply))));
    }

    /// Stores and commits what is written, and goes on. What cannot be stored is told by the next
    /// flush of its file.
    pub fn flush_all(self: &Arc<Self>, then: impl FnOnce() + Send + 'static) {
        // Called when the last flush drops it.
        let then = Arc::new(AtEnd(Mutex::new(Some(then))));
        for file in self.files.all() {
            let (then, again) = (then.clone(), file.clone());
            self.flush_file(
                &file,
                Box::new(move |flushed| {
                    if let Err(error) = flushed {
                        again.lock().error = Some(error);
                    }
                    drop(then);
                }),
            );
        }
    }
}

/// Calls what it holds when it is dropped.
struct AtEnd<F: FnOnce()>(Mutex<Option<F>>);

impl<F: FnOnce()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.get_mut().take() {
            call();
        }
    }
}

fn one(made: Vec<SnapshotInfo>) -> FsResult<SnapshotInfo> {
    made.into_iter().next().ok_or_else(|| unexpected(&Answer::Snapshots(Vec::new())))
}
