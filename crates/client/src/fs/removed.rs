//! What the kernel still holds though it is gone: a removed directory that somebody works in, a
//! file without names behind an `O_PATH` descriptor.
//!
//! The node has deleted it and says `ESTALE`. A local file system goes on answering, and so does
//! this: from the attributes it had when it lost its last name, until the kernel forgets it. They
//! may be changed meanwhile; nobody else will ever see that. Its content is gone, and nothing can
//! be created in it (`ENOENT` from the node).

use kestrel_meta::ops::{access, setattr};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::request::{Creds, Outcome, SetAttr};

use super::{Answer, Caller, Fs, plain, unexpected};
use crate::groups::supplementary_groups;

impl Fs {
    /// Takes in what an operation removed.
    pub(super) fn removed(&self, answer: FsResult<Answer>) -> FsResult<Option<Box<Inode>>> {
        match answer? {
            Answer::Removed(inode) => Ok(Some(self.lost_a_name(inode))),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes in what lost a name.
    pub(super) fn lost_a_name(&self, inode: Box<Inode>) -> Box<Inode> {
        self.known.removed(&inode);
        inode
    }

    /// Calls `look` with the attributes of something removed, after the node's `error`, which stays
    /// if it is another one or `ino` is not known to have been removed.
    fn with_removed<T>(
        &self,
        ino: InodeId,
        error: FsError,
        look: impl FnOnce(&mut Inode) -> Result<T, Outcome>,
    ) -> FsResult<T> {
        if error.errno != libc::ESTALE {
            return Err(error);
        }
        match self.known.with_removed(ino, look) {
            Some(result) => result.map_err(refusal),
            None => Err(error),
        }
    }

    pub(super) fn removed_inode(&self, ino: InodeId, error: FsError) -> FsResult<Inode> {
        self.with_removed(ino, error, |inode| Ok(inode.clone()))
    }

    pub(super) fn removed_link(&self, ino: InodeId, error: FsError) -> FsResult<Box<[u8]>> {
        let stale = error.clone();
        self.with_removed(ino, error, |inode| match &inode.data {
            Data::Inline(target) if inode.kind == Kind::Symlink => Ok(target.clone()),
            _ => Err(stale.into()),
        })
    }

    /// Fails unless `ino` was removed and had no extended attributes: its rows are gone.
    pub(super) fn removed_without_xattrs(&self, ino: InodeId, error: FsError) -> FsResult<()> {
        let stale = error.clone();
        self.with_removed(ino, error, |inode| if inode.xattrs { Err(stale.into()) } else { Ok(()) })
    }

    pub(super) fn set_removed(
        &self,
        caller: Caller,
        ino: InodeId,
        set: &SetAttr,
        error: FsError,
    ) -> FsResult<Inode> {
        if error.errno != libc::ESTALE {
            return Err(error);
        }
        let (creds, now) = (all_creds(caller), self.clock.now());
        self.with_removed(ino, error, |inode| {
            setattr::of_removed(&creds, inode, set, now)?;
            Ok(inode.clone())
        })
    }

    pub(super) fn access_removed(
        &self,
        caller: Caller,
        ino: InodeId,
        mask: u32,
        error: FsError,
    ) -> FsResult<()> {
        if error.errno != libc::ESTALE {
            return Err(error);
        }
        let creds = all_creds(caller);
        self.with_removed(ino, error, |inode| access::of_removed(&creds, inode, mask))
    }
}

fn refusal(outcome: Outcome) -> FsError {
    match plain(Err(outcome)) {
        Err(error) => error,
        Ok(answer) => unexpected(&answer),
    }
}

/// With the supplementary groups, whether they decide or not: this is rare.
fn all_creds(caller: Caller) -> Creds {
    Creds { uid: caller.uid, gid: caller.gid, groups: Some(supplementary_groups(caller.pid)) }
}
