//! The operations: each a pure function from what it sees ([`crate::view::View`]) to an answer and
//! changes of rows.
//!
//! | file | what it has |
//! | --- | --- |
//! | `ops/lookup.rs` | Lookup |
//! | `ops/getattr.rs` | GetAttr, Parent |
//! | `ops/access.rs` | Access, ReadLink |
//! | `ops/open.rs` | Open, OpenAt, Release |
//! | `ops/create.rs` | Create, MkNod |
//! | `ops/mkdir.rs` | MkDir |
//! | `ops/symlink.rs` | Symlink |
//! | `ops/tmpfile.rs` | TmpFile |
//! | `ops/make.rs` | what all operations that create a name have in common |
//! | `ops/link.rs` | Link |
//! | `ops/unlink.rs` | Unlink |
//! | `ops/rmdir.rs` | RmDir |
//! | `ops/rename.rs` | Rename |
//! | `ops/relocate.rs` | what operations that move an entry have in common |
//! | `ops/readdir.rs` | ReadDir, ReadDirPlus |
//! | `ops/removal_check.rs` | RemovalCheck |
//! | `ops/setattr.rs` | SetAttr: chmod, chown, truncate, utimes |
//! | `ops/setflags.rs` | SetFlags: chattr |
//! | `ops/accessed.rs` | Accessed: access times |
//! | `ops/xattr.rs` | extended attributes |
//! | `ops/acl.rs` | POSIX ACLs: extended attributes, inheritance |
//! | `ops/policy.rs` | policies of directories, and what answers say of them |
//! | `ops/chunks.rs` | Chunks: the extents of a stretch of a file |
//! | `ops/commit.rs` | Commit: new content of a file |
//! | `ops/clone.rs` | Clone: shares stored bytes between files |
//! | `ops/clone_dir.rs` | CloneDir: makes a clone of a directory |
//! | `ops/compact.rs` | Compact: fewer extents for the same bytes |
//! | `ops/sweep.rs` | Sweep: deletes chunks that were cut off |
//! | `ops/locate.rs` | Locate: files by number alone |
//! | `ops/usage.rs` | Usage, TreeUsage |
//! | `ops/quota.rs` | QuotaList of what counts for an inode |
//! | `ops/snapshot.rs` | SnapshotCreate, SnapshotRename, SnapshotRemove, SnapshotHold |

pub mod access;
pub mod accessed;
pub mod acl;
pub mod chunks;
pub mod clone;
pub mod clone_dir;
pub mod commit;
pub mod compact;
pub mod create;
pub mod getattr;
pub mod link;
pub mod locate;
pub mod lookup;
pub mod make;
pub mod mkdir;
pub mod open;
pub mod policy;
pub mod quota;
pub mod readdir;
mod relocate;
pub mod removal_check;
pub mod rename;
pub mod rmdir;
pub mod setattr;
pub mod setflags;
pub mod snapshot;
pub mod sweep;
pub mod symlink;
pub mod tmpfile;
pub mod unlink;
pub mod usage;
pub mod xattr;

use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Answer, Op, Request, Subject};

use crate::stop::{Route, Run, fail};
use crate::view::{Core, View};

/// Runs a request. Operations that need no worker never come here.
pub fn execute(view: &mut View<'_>, request: &Request) -> Run<Answer> {
    let mut answer = run(view, request)?;
    let tells = matches!(answer, Answer::Entry { .. } | Answer::Opened { .. } | Answer::Inode(_));
    if tells && view.may_have_policies() {
        policy::tell(view, &request.op, &mut answer)?;
    }
    Ok(answer)
}

fn run(view: &mut View<'_>, request: &Request) -> Run<Answer> {
    let creds = &request.creds;
    match &request.op {
        Op::Lookup(place) => lookup::run(view, creds, place),
        Op::Parent(dir) => getattr::parent(view, *dir),
        Op::GetAttr(inode) => getattr::run(view, inode),
        Op::SetAttr(inode, set) => setattr::run(view, creds, inode, set),
        Op::Accessed(inode, accessed) => accessed::run(view, inode, *accessed),
        Op::SetFlags(inode, flags) => setflags::run(view, creds, inode, *flags),
        Op::Access(inode, mask) => access::run(view, creds, inode, *mask),
        Op::ReadLink(inode) => access::readlink(view, inode),
        Op::Create { place, mode, flags, exclusive } => {
            create::run(view, creds, place, *mode, flags, *exclusive)
        }
        Op::Open(inode, flags) => open::run(view, creds, inode, flags),
        Op::OpenAt(place, flags) => open::at(view, creds, place, flags),
        Op::TmpFile { dir, mode, exclusive } => tmpfile::run(view, creds, *dir, *mode, *exclusive),
        Op::Release(ino) => open::release(view, *ino),
        Op::MkNod { place, kind, mode, rdev } => {
            create::mknod(view, creds, place, *kind, *mode, *rdev)
        }
        Op::MkDir(place, mode) => mkdir::run(view, creds, place, *mode),
        Op::Symlink(place, target) => symlink::run(view, creds, place, target),
        Op::Unlink(place) => unlink::run(view, creds, place),
        Op::RmDir(place, expected) => rmdir::run(view, creds, place, *expected),
        Op::Rename(from, to, flags) => rename::run(view, creds, from, to, *flags),
        Op::Link(inode, place) => link::run(view, creds, inode, place),
        Op::Commit(commit) => commit::run(view, creds, commit),
        Op::Compact { inode, chunk, old, new } => compact::run(view, inode, *chunk, old, new),
        Op::Clone { from, from_offset, to, to_offset, len } => {
            let window = clone::Window { from: *from_offset, to: *to_offset, len: *len };
            clone::run(view, creds, from, to, window)
        }
        Op::Sweep(ino) => sweep::run(view, *ino),
        Op::GetXattr(inode, name) => xattr::get(view, creds, inode, name),
        Op::SetXattr(inode, name, value, flags) => {
            xattr::set(view, creds, inode, name, value, *flags)
        }
        Op::ListXattr(inode) => xattr::list(view, creds, inode),
        Op::RemoveXattr(inode, name) => xattr::remove(view, creds, inode, name),
        Op::SnapshotCreate { dir, name } => snapshot::create(view, creds, *dir, name),
        Op::SnapshotRename { dir, from, to } => snapshot::rename(view, creds, (*dir, from), to),
        Op::SnapshotRemove { dir, name } => snapshot::remove(view, creds, (*dir, name)),
        Op::SnapshotHold { dir, name, tag, hold } => {
            snapshot::hold(view, creds, (*dir, name), tag, *hold)
        }
        Op::QuotaList(Some(inode)) => quota::list(view, inode),
        Op::CloneDir { source, at, place } => clone_dir::run(view, creds, *source, *at, place),
        Op::ReadDir { .. }
        | Op::ReadDirPlus { .. }
        | Op::RemovalCheck { .. }
        | Op::Chunks { .. }
        | Op::CloneStep(_)
        | Op::QuotaSet(..)
        | Op::QuotaRemove(_)
        | Op::QuotaList(None)
        | Op::QuotaCheck { .. }
        | Op::FeedRead { .. }
        | Op::AllocObjects(_)
        | Op::Locate { .. }
        | Op::Usage
        | Op::TreeUsage(_)
        | Op::At(..)
        | Op::SnapshotList { .. }
        | Op::SnapshotChanges { .. }
        | Op::SnapshotUsage { .. }
        | Op::Sync => Err(fail(libc::EINVAL, "this request needs no worker")),
    }
}

/// Where a request is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunsOn {
    /// By the worker with this number.
    Worker(usize),
    /// With every worker's state held.
    Exclusive,
    /// By the caller: it reads the engine or asks for numbers, and no batch.
    Caller,
}

/// The worker where a request starts; it may turn out to belong elsewhere.
pub fn runs_on(core: &Core, op: &Op, route: &Route) -> RunsOn {
    let at = RunsOn::Worker;
    let by_place =
        |place: &PathRef| at(core.worker_of_name(core.replica.guess(place), place.name.as_bytes()));
    let by_inode = |inode: &InodeRef| match (route, &inode.seen) {
        (Route::Name(parent, name), _) => at(core.worker_of_name(*parent, name)),
        (Route::AsAsked, Some((parent, name))) => at(core.worker_of_name(*parent, name.as_bytes())),
        _ => at(core.worker_of_inode(inode.ino)),
    };
    match op {
        Op::RmDir(..)
        | Op::Rename(..)
        | Op::Link(..)
        | Op::Clone { .. }
        | Op::Sweep(_)
        | Op::SnapshotCreate { .. }
        | Op::SnapshotRename { .. }
        | Op::SnapshotRemove { .. }
        | Op::SnapshotHold { .. }
        | Op::CloneDir { .. } => RunsOn::Exclusive,
        Op::ReadDir { .. }
        | Op::ReadDirPlus { .. }
        | Op::RemovalCheck { .. }
        | Op::Chunks { .. }
        | Op::TreeUsage(_)
        | Op::CloneStep(_) => RunsOn::Caller,
        Op::QuotaList(Some(inode)) => by_inode(inode),
        _ => match op.subject() {
            Subject::Path(place) => by_place(place),
            Subject::Inode(inode) | Subject::Held(inode) => by_inode(inode),
            Subject::Open(ino) | Subject::Number(ino) => at(core.worker_of_inode(ino)),
            Subject::Volume => RunsOn::Caller,
        },
    }
}

/// Whether a request that changes no row may change how files are open. Of that nothing is
/// recorded: a client that asks again after a restart is served again, because opens of before are
/// only those that it claims.
pub fn counts_opens(op: &Op) -> bool {
    matches!(
        op,
        Op::Create { .. } | Op::Open(..) | Op::OpenAt(..) | Op::TmpFile { .. } | Op::Release(_)
    )
}

/// Whether a request frees space, so that it may use the reserve of a full disk.
pub fn is_freeing(op: &Op) -> bool {
    match op {
        Op::Unlink(_)
        | Op::RmDir(..)
        | Op::Release(_)
        | Op::RemoveXattr(..)
        | Op::Compact { .. }
        | Op::Sweep(_)
        | Op::SnapshotRemove { .. }
        | Op::SnapshotHold { hold: false, .. } => true,
        Op::SetAttr(_, set) => set.size.is_some(),
        Op::Open(_, flags) | Op::OpenAt(_, flags) => flags.truncate,
        _ => false,
    }
}
