//! Where what is removed is kept: the directory `/.trash/kept` of the volume.
//!
//! A directory with the policy `trash` keeps what is removed below it, but for what is in the trash
//! already. The directory is made with the policy, by clients; an operation only finds it.

use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::policy::Policy;
use kestrel_types::trash::{KEPT, KeptName, TRASH};

use super::{LocatedInode, Spot, View};
use crate::perm::Dentry;
use crate::stop::{Run, Stop, fail};

/// A place in the trash.
#[derive(Debug, Clone)]
pub struct KeptPlace {
    /// The place.
    pub spot: Spot,
    /// Its name.
    pub name: Vec<u8>,
}

/// Permission bits of anybody but the owner.
const OTHERS: u16 = 0o077;

const MISSING: Stop = fail(
    libc::EIO,
    "the directory keeps what is removed (policy trash), and /.trash/kept is missing or not root's \
     alone: kestrel policy set DIRECTORY trash=TIME makes it",
);

impl View<'_> {
    /// Where `found` is kept when it loses the name `name` in `dir`, for which `policy` counts.
    /// `None` if it goes: nothing is kept there, it is in the trash already, it is a file with
    /// another name, or a directory with a quota.
    #[inline]
    pub fn kept_place(
        &mut self,
        policy: Policy,
        (dir, name): (&Dentry, &[u8]),
        found: &LocatedInode,
    ) -> Run<Option<KeptPlace>> {
        match policy.trash.and_then(|time| time.expiry(self.now)) {
            Some(expiry) => self.place_in_trash(expiry, (dir.ino, name), found),
            None => Ok(None),
        }
    }

    #[cold]
    fn place_in_trash(
        &mut self,
        expiry: u64,
        (dir, name): (InodeId, &[u8]),
        found: &LocatedInode,
    ) -> Run<Option<KeptPlace>> {
        let has_quota = || self.core.quotas.table().dir(found.inode.ino).is_some();
        if if found.is_dir() { has_quota() } else { found.inode.nlink > 1 } {
            return Ok(None);
        }
        let kept = self.kept_dir()?;
        if self.is_above(kept.parent, dir)? {
            return Ok(None);
        }
        self.need_exclusive()?;
        if found.is_dir() {
            self.lock_dir_renames()?;
        }
        let name = KeptName::new(expiry, dir, found.inode.ino, name).encode();
        let spot = self.spot_in(kept, &name, true)?;
        match self.entry(spot.entry)? {
            None => Ok(Some(KeptPlace { spot, name })),
            Some(_) => {
                Err(fail(libc::EIO, "the trash has the same entry already; run kestrel fsck"))
            }
        }
    }

    /// The directory for what is kept.
    fn kept_dir(&mut self) -> Run<Dentry> {
        let mut dir = self.dir(ROOT)?;
        for name in [TRASH, KEPT] {
            dir = match self.walk(dir, name, 0) {
                Err(Stop::Fail(why)) if matches!(why.errno, libc::ENOENT | libc::ENOTDIR) => {
                    return Err(MISSING);
                }
                Err(Stop::Out(_)) => return Err(MISSING),
                walked => walked?,
            };
            if dir.guard.uid != 0 || dir.guard.mode & OTHERS != 0 {
                return Err(MISSING);
            }
        }
        Ok(dir)
    }

    /// Fails with `ENOENT` if a directory was removed and is kept: nothing gets a name in it.
    #[inline]
    pub fn check_not_removed(dir: &Dentry) -> Run<()> {
        if dir.policy.removed {
            return Err(fail(libc::ENOENT, "the directory has been removed"));
        }
        Ok(())
    }
}
