//! `fs.protected_symlinks`, `fs.protected_regular` and `fs.protected_fifos` (proc_sys_fs(5)): what
//! belongs to others in a sticky directory is not followed, nor opened by a call that would create
//! it.
//!
//! The kernel leaves this to a FUSE daemon that checks permissions: without `default_permissions`
//! it keeps no sticky bits. The settings are those of the machine where the client runs. They are
//! read each time they matter, which is rare, so that a change holds at once.

use std::sync::Arc;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::perm::STICKY;

use super::{Caller, Done, Fs};

const GROUP_WRITE: u16 = 0o020;
const OTHERS_WRITE: u16 = 0o002;

/// What may be protected: its type and owner.
#[derive(Debug, Clone, Copy)]
pub struct Protected {
    kind: Kind,
    uid: u32,
}

impl Protected {
    /// What is to be protected from a caller if its directory is sticky; `None`: the caller's own,
    /// or not protected on this machine.
    pub fn from(caller: Caller, inode: &Inode) -> Option<Self> {
        let protected = Self { kind: inode.kind, uid: inode.uid };
        (inode.uid != caller.uid && protected.level() > 0).then_some(protected)
    }

    /// The machine's setting for this type.
    fn level(self) -> u8 {
        let name = match self.kind {
            Kind::Dir => return 0,
            Kind::Symlink => "protected_symlinks",
            Kind::File => "protected_regular",
            Kind::Fifo => "protected_fifos",
            // Opening devices and sockets with O_CREAT is refused whatever the settings are.
            Kind::Char | Kind::Block | Kind::Socket => return 1,
        };
        let value = std::fs::read_to_string(format!("/proc/sys/fs/{name}"));
        value.ok().and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    }

    /// Whether it is refused to a caller that does not own it, in this directory, at this level.
    fn is_refused(self, dir: &Inode, level: u8) -> bool {
        if level == 0 || dir.mode & STICKY == 0 || dir.uid == self.uid {
            return false;
        }
        let group_counts = level >= 2 && matches!(self.kind, Kind::File | Kind::Fifo);
        dir.mode & OTHERS_WRITE != 0 || group_counts && dir.mode & GROUP_WRITE != 0
    }

    /// Refuses it with `EACCES` if it is protected in this directory.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check(self, dir: &Inode) -> FsResult<()> {
        match self.is_refused(dir, self.level()) {
            true => Err(FsError::new(
                libc::EACCES,
                "it is another user's, in a sticky directory (fs.protected_*)",
            )),
            false => Ok(()),
        }
    }
}

impl Fs {
    /// Refuses what a caller finds in a directory, if it is protected there.
    pub(super) fn check_protected(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        inode: &Inode,
        done: Done<()>,
    ) {
        match Protected::from(caller, inode) {
            Some(protected) => {
                let checked = Box::new(move |dir: FsResult<Inode>| {
                    done(dir.and_then(|dir| protected.check(&dir)))
                });
                self.getattr(Caller::ROOT, dir, checked);
            }
            None => done(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of may_create_in_sticky and may_follow_link of Linux.
    #[test]
    fn refusals_in_sticky_directories() {
        let dir = |mode, uid| {
            let mut inode = Inode::new(2, Kind::Dir, 0, 0);
            (inode.mode, inode.uid) = (mode, uid);
            inode
        };
        for (mode, kind, refused_from) in [
            (0o1777, Kind::File, Some(1)),
            (0o1777, Kind::Fifo, Some(1)),
            (0o1777, Kind::Symlink, Some(1)),
            (0o1777, Kind::Socket, Some(1)),
            (0o1775, Kind::File, Some(2)),
            (0o1775, Kind::Fifo, Some(2)),
            (0o1775, Kind::Symlink, None),
            (0o1775, Kind::Socket, None),
            (0o1755, Kind::File, None),
            (0o777, Kind::File, None),
        ] {
            for level in 0..3 {
                let protected = Protected { kind, uid: 7 };
                let refused = refused_from.is_some_and(|from| level >= from);
                assert_eq!(
                    protected.is_refused(&dir(mode, 0), level),
                    refused,
                    "{mode:o} {kind:?} {level}"
                );
                assert!(!protected.is_refused(&dir(mode, 7), level), "the directory's owner's");
            }
        }
    }
}
