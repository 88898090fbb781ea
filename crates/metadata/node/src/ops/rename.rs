//! Rename: moves an entry, replaces what is there, or exchanges two.
//!
//! Order of errors as Linux (`vfs_rename`): the walks; `ENOENT` for the source; `EEXIST`
//! (no_replace); `ENOENT` (exchange without target); into its own subtree `EINVAL`; onto an
//! ancestor `ENOTEMPTY` (exchange: `EINVAL`); same file: success, nothing happens; `EACCES` and
//! `EPERM` (sticky) at the source, then at the target; `ENOTDIR` and `EISDIR`; a directory that
//! gets another parent needs write permission of itself, since its `..` changes (`EACCES`);
//! `ESTALE` (another directory than expected); `ENOTEMPTY`.
//!
//! What is replaced below a directory with the policy `trash` moves to the trash in the same batch.
//!
//! Sets ctime of what moves and times of both directories. A replaced file that is open lives on
//! without a name.
//!
//! Exclusive, so the walk up to the root that proves that no cycle forms stays true until the
//! commit. One batch: after a crash it has happened or not.

use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::name::PathRef;
use kestrel_types::policy::Policy;
use kestrel_types::request::{Answer, Creds, RenameFlags};

use super::relocate::{arrive, keep, leave};
use super::rmdir::DirRemoval;
use super::unlink::{Detach, check_removal};

use crate::perm::{self, EXEC, WRITE};
use crate::rows::Value;
use crate::stop::{Run, fail};
use crate::view::{InodeUse, KeptPlace, LocatedInode, Spot, View};

/// Runs the operation.
pub fn run(
    view: &mut View<'_>,
    creds: &Creds,
    from: &PathRef,
    to: &PathRef,
    flags: RenameFlags,
) -> Run<Answer> {
    if flags.no_replace && flags.exchange {
        return Err(fail(libc::EINVAL, "no_replace and exchange exclude each other"));
    }
    view.need_exclusive()?;
    view.effects.kept = None;
    let (a, b) = (view.spot(creds, from, true)?, view.spot(creds, to, true)?);
    let source =
        view.at_spot(&a, InodeUse::Write)?.ok_or_else(|| fail(libc::ENOENT, "no such entry"))?;
    let target = view.at_spot(&b, InodeUse::Write)?;
    match &target {
        Some(_) if flags.no_replace => return Err(fail(libc::EEXIST, "the target exists")),
        None if flags.exchange => return Err(fail(libc::ENOENT, "no such entry to exchange")),
        _ => {}
    }
    check_cycles(view, &a, &b, &source, target.as_ref(), flags)?;
    let moved = source.inode.ino;
    if target.as_ref().is_some_and(|target| target.inode.ino == moved) {
        return Ok(Answer::Renamed { moved, other: None, from: a.dir.ino, to: b.dir.ino });
    }
    check_permissions(creds, &a, &b, &source, target.as_ref(), flags)?;
    view.check_names_change(&a.dir)?;
    let policy = view.check_names_change(&b.dir)?;
    View::check_not_removed(&b.dir)?;
    let (from_name, to_name) = (from.name.as_bytes(), to.name.as_bytes());
    if let (true, Some(target)) = (flags.exchange, &target) {
        view.begin()?;
        leave(view, &a, &source)?;
        leave(view, &b, target)?;
        arrive(view, &b, to_name, source)?;
        arrive(view, &a, from_name, target.clone())?;
        let other = Some(Box::new(target.inode.clone()));
        return Ok(Answer::Renamed { moved, other, from: a.dir.ino, to: b.dir.ino });
    }
    let replaced = match target {
        Some(target) => {
            Some(Replaced::prepare(view, (&b, to_name, policy), target, flags.replaced)?)
        }
        None => None,
    };
    view.begin()?;
    leave(view, &a, &source)?;
    let other = replaced.map(|replaced| replaced.apply(view, &b)).transpose()?;
    view.put(a.entry, Value::Absent);
    arrive(view, &b, to_name, source)?;
    Ok(Answer::Renamed { moved, other: other.map(Box::new), from: a.dir.ino, to: b.dir.ino })
}

fn check_cycles(
    view: &mut View<'_>,
    a: &Spot,
    b: &Spot,
    source: &LocatedInode,
    target: Option<&LocatedInode>,
    flags: RenameFlags,
) -> Run<()> {
    if a.dir.ino == b.dir.ino {
        return Ok(());
    }
    if source.is_dir() || flags.exchange && target.is_some_and(LocatedInode::is_dir) {
        view.lock_dir_renames()?;
    }
    if source.is_dir() && view.is_above(source.inode.ino, b.dir.ino)? {
        return Err(fail(libc::EINVAL, "a directory cannot move into itself"));
    }
    if let Some(target) = target
        && target.is_dir()
        && view.is_above(target.inode.ino, a.dir.ino)?
    {
        return Err(if flags.exchange {
            fail(libc::EINVAL, "a directory cannot move into itself")
        } else {
            fail(libc::ENOTEMPTY, "the target is above the source")
        });
    }
    Ok(())
}

fn check_permissions(
    creds: &Creds,
    a: &Spot,
    b: &Spot,
    source: &LocatedInode,
    target: Option<&LocatedInode>,
    flags: RenameFlags,
) -> Run<()> {
    check_removal(creds, a, source)?;
    let source_is_dir = source.is_dir();
    match target {
        None => perm::check(creds, &b.dir.guard, WRITE | EXEC)?,
        Some(target) => {
            check_removal(creds, b, target)?;
            match (source_is_dir, target.is_dir()) {
                _ if flags.exchange => {}
                (true, false) => {
                    return Err(fail(libc::ENOTDIR, "a directory replaces directories only"));
                }
                (false, true) => {
                    return Err(fail(libc::EISDIR, "a file does not replace a directory"));
                }
                _ => {}
            }
        }
    }
    if a.dir.ino != b.dir.ino {
        if source_is_dir {
            perm::check(creds, &source.guard(), WRITE)?;
        }
        if let Some(target) = target.filter(|target| flags.exchange && target.is_dir()) {
            perm::check(creds, &target.guard(), WRITE)?;
        }
    }
    Ok(())
}

/// What a rename replaces.
enum Replaced {
    File(Detach),
    Dir(DirRemoval),
    /// It is kept in the trash; of a directory what is told of it.
    Kept(LocatedInode, KeptPlace, Option<DirRemoval>),
}

impl Replaced {
    fn prepare(
        view: &mut View<'_>,
        (spot, name, policy): (&Spot, &[u8], Policy),
        target: LocatedInode,
        expected: Option<InodeId>,
    ) -> Run<Self> {
        let dir = match target.is_dir() {
            true => Some(DirRemoval::prepare(view, &target.inode, expected)?),
            false => None,
        };
        let kept = view.kept_place(policy, (&spot.dir, name), &target)?;
        match (kept, dir) {
            (Some(kept), dir) => Ok(Self::Kept(target, kept, dir)),
            (None, Some(dir)) => Ok(Self::Dir(dir)),
            (None, None) => Ok(Self::File(Detach::prepare(view, target)?)),
        }
    }

    /// Removes it from everywhere but the entry, which the source is going to take.
    fn apply(self, view: &mut View<'_>, spot: &Spot) -> Run<Inode> {
        match self {
            Self::File(detach) => {
                view.change_dir(spot.share, -1, 0, -detach.bytes_here(), true)?;
                detach.apply(view)
            }
            Self::Dir(removal) => {
                view.change_dir(spot.share, -1, -1, 0, true)?;
                Ok(removal.apply(view, spot.dir.ino))
            }
            Self::Kept(target, place, dir) => {
                let kept = keep(view, spot, target, place)?;
                Ok(dir.map_or(kept, |dir| dir.gone(view)))
            }
        }
    }
}
