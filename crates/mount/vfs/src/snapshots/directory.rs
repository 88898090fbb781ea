//! `.snap`: the directory with the snapshots of a directory, by their names, and with those of the
//! directories above as `_NAME_INODE`. mkdir, rmdir and rename make, remove and rename them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_client::fs::{Caller, Done, OpenedEntry};
use kestrel_client::snapshot::listed_name;
use kestrel_fuse::{self as fuse, Attr, Dirents, Entry, FileKind, Operation, Reply, Request};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::Name;
use kestrel_types::request::OpenFlags;
use kestrel_types::snapshot::SnapshotInfo;
use parking_lot::Mutex;

use super::inside::absent;
use super::nodes::{SnapshotNode, View, shown};
use super::{OpenDir, Snapshots};
use crate::convert;
use crate::core::Core;
use crate::paths::NodeTarget;

/// How long a listing of `.snap` answers look-ups of the thread that lists.
const TOLD_TTL: Duration = Duration::from_secs(1);

/// Cookie after `..`; the entries' follow.
const AFTER_DOTS: u64 = 2;

/// How a directory is opened to be searched.
const SEARCH: OpenFlags = OpenFlags {
    read: false,
    write: false,
    exec: true,
    truncate: false,
    kill_suid: false,
    append: false,
};

/// An entry of `.snap`: its name and the inode number that it shows.
type Shown = (Name, u64);

/// An open `.snap`.
pub(super) struct OpenSnapshotDir {
    dir: InodeId,
    /// What the present pass lists.
    entries: Mutex<Arc<Vec<Shown>>>,
}

/// A listing of `.snap` that a thread was given.
struct Listing {
    thread: u32,
    dir: InodeId,
    since: Instant,
    snapshots: Arc<Vec<SnapshotInfo>>,
}

/// The last listing of `.snap`: `ls -l` looks at each name by a call of its own, and the node has
/// only lists to answer with.
#[derive(Default)]
pub(super) struct Told(Mutex<Option<Listing>>);

impl Told {
    fn note(&self, thread: u32, dir: InodeId, snapshots: Arc<Vec<SnapshotInfo>>) {
        *self.0.lock() = Some(Listing { thread, dir, since: Instant::now(), snapshots });
    }

    fn find(&self, thread: u32, dir: InodeId, name: &Name) -> Option<SnapshotInfo> {
        let told = self.0.lock();
        let told = told.as_ref().filter(|told| (told.thread, told.dir) == (thread, dir))?;
        (told.since.elapsed() < TOLD_TTL).then(|| named(&told.snapshots, dir, name)).flatten()
    }

    /// Whether the thread was given a listing, which may be too old by now.
    fn lists(&self, thread: u32, dir: InodeId) -> bool {
        self.0.lock().as_ref().is_some_and(|told| (told.thread, told.dir) == (thread, dir))
    }

    /// Something was changed here.
    fn forget(&self) {
        *self.0.lock() = None;
    }
}

/// The snapshot with this name in the `.snap` of a directory.
fn named(snapshots: &[SnapshotInfo], dir: InodeId, name: &Name) -> Option<SnapshotInfo> {
    let is_it = |info: &&SnapshotInfo| match is_from_above(name.as_bytes()) {
        true => info.dir != dir && listed_name(info, dir).as_ref() == Some(name),
        false => info.dir == dir && info.name == *name,
    };
    snapshots.iter().filter(|info| !info.removing).find(is_it).cloned()
}

/// Whether a name can only be that of a snapshot of a directory above.
fn is_from_above(name: &[u8]) -> bool {
    name.first() == Some(&b'_')
}

/// The attributes of `.snap`: those of its directory.
fn attr_of(dir: &Inode) -> Attr {
    let mode = libc::S_IFDIR | u32::from(dir.mode) & 0o777;
    Attr { ino: shown(0, dir.ino), mode, nlink: 2, size: 0, blocks: 0, ..convert::attr(dir) }
}

impl Core {
    /// LOOKUP of `.snap` in a live directory, which the caller must be allowed to search.
    pub(crate) fn look_up_snapshot_dir(self: &Arc<Self>, caller: Caller, node: u64, reply: Reply) {
        let Some(snapshots) = self.snapshots.clone() else { return reply.error(libc::ENOENT) };
        let done = self.asked(caller.pid, reply, move |reply: Reply, dir: Inode| {
            let nodeid = snapshots.nodes.enter(SnapshotNode::Dir(dir.ino));
            reply.entry(&Entry {
                nodeid,
                generation: 1,
                attr: attr_of(&dir),
                attr_ttl: Duration::ZERO,
                entry_ttl: Duration::ZERO,
            });
        });
        match self.naming.target(node) {
            NodeTarget::Inode(ino) => {
                let fs = self.fs.clone();
                let allowed = move |allowed: FsResult<()>| match allowed {
                    Ok(()) => fs.getattr(caller, ino, done),
                    Err(error) => done(Err(error)),
                };
                self.fs.access(caller, ino, libc::X_OK as u32, Box::new(allowed));
            }
            NodeTarget::At(place) => {
                let core = self.clone();
                let reached = move |found: FsResult<OpenedEntry>| {
                    done(core.reached(node, found));
                };
                self.fs.open_at(caller, place, SEARCH, Box::new(reached));
            }
            NodeTarget::Gone => done(Err(FsError::new(libc::ESTALE, "the directory is gone"))),
        }
    }

    /// A request about `.snap` of a directory.
    pub(super) fn in_snapshot_dir(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        request: Request<'_>,
        reply: Reply,
    ) {
        let (fs, pid, node) = (&self.fs, caller.pid, request.nodeid);
        match request.op {
            Operation::Lookup { name } => self.look_up_snapshot(caller, dir, name, reply),
            Operation::Getattr { .. } => {
                let answer = |reply: Reply, dir: Inode| reply.attr(&attr_of(&dir), Duration::ZERO);
                fs.getattr(caller, dir, self.asked(pid, reply, answer));
            }
            Operation::Statx { .. } => {
                let answer = |reply: Reply, dir: Inode| {
                    let statx = convert::statx(&dir, Duration::ZERO);
                    reply.statx(&fuse::Statx { attr: attr_of(&dir), ..statx });
                };
                fs.getattr(caller, dir, self.asked(pid, reply, answer));
            }
            Operation::Access { mask } => fs.access(caller, dir, mask, self.empty(pid, reply)),
            Operation::Mkdir { name, .. } => self.make_snapshot(caller, dir, name, reply),
            Operation::Rmdir { name } => match Name::new(name.as_bytes()) {
                Ok(_) if is_from_above(name.as_bytes()) => reply.error(libc::EPERM),
                Ok(name) => {
                    let done = self.changing_snapshots(pid, reply);
                    fs.remove_snapshot(caller, dir, name, done);
                }
                Err(error) => reply.error(error.errno),
            },
            Operation::Rename { new_parent, .. } if new_parent != node => {
                reply.error(libc::EXDEV);
            }
            Operation::Rename { name, new_name, flags, .. } => {
                if flags & !libc::RENAME_NOREPLACE != 0 {
                    return reply.error(libc::EINVAL);
                }
                if is_from_above(name.as_bytes()) {
                    return reply.error(libc::EPERM);
                }
                match (Name::new(name.as_bytes()), Name::new(new_name.as_bytes())) {
                    (Ok(from), Ok(to)) => {
                        let done = self.changing_snapshots(pid, reply);
                        fs.rename_snapshot(caller, dir, (from, to), done);
                    }
                    (Err(error), _) | (_, Err(error)) => reply.error(error.errno),
                }
            }
            Operation::Link { .. } => reply.error(libc::EXDEV),
            Operation::Opendir { .. } => self.open_snapshot_dir(caller, dir, reply),
            Operation::Readdir { fh, offset, size } => {
                self.list_snapshots(caller, fh, (offset, size), reply);
            }
            Operation::Getxattr { name, .. } => {
                let system = name.as_bytes().starts_with(b"system.");
                reply.error(if system { libc::EOPNOTSUPP } else { libc::ENODATA });
            }
            Operation::Listxattr { size } => reply.xattr(size, &[]),
            Operation::Statfs => self.statfs(pid, reply),
            Operation::Ioctl(_) => reply.error(libc::ENOTTY),
            Operation::Fsyncdir { .. } | Operation::Syncfs => reply.empty(),
            // Only snapshots are made and removed here.
            _ => reply.error(libc::EROFS),
        }
    }

    /// LOOKUP of a snapshot in `.snap`.
    fn look_up_snapshot(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        name: &OsStr,
        reply: Reply,
    ) {
        let Some(snapshots) = &self.snapshots else { return reply.error(libc::ESTALE) };
        let name = match name.as_bytes() {
            b"." | b".." => return reply.error(libc::ESTALE),
            name => match Name::new(name) {
                Ok(name) => name,
                Err(error) => return reply.error(error.errno),
            },
        };
        let done = self.entering(caller.pid, dir, reply);
        if let Some(info) = snapshots.told.find(caller.pid, dir, &name) {
            return self.enter_snapshot(caller, dir, info, done);
        }
        let lists = snapshots.told.lists(caller.pid, dir);
        let above = lists || is_from_above(name.as_bytes());
        let (core, known) = (self.clone(), snapshots.clone());
        let listed = move |found: FsResult<Vec<SnapshotInfo>>| {
            let found = found.and_then(|all| {
                let info = named(&all, dir, &name).ok_or_else(absent);
                if lists {
                    known.told.note(caller.pid, dir, Arc::new(all));
                }
                info
            });
            match found {
                Ok(info) => core.enter_snapshot(caller, dir, info, done),
                Err(error) => done(Err(error)),
            }
        };
        self.fs.snapshots(caller, Some(dir), above, Box::new(listed));
    }

    /// Looks at a directory as it is in a snapshot.
    fn enter_snapshot(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        info: SnapshotInfo,
        done: Done<(Arc<View>, Inode)>,
    ) {
        let Some(snapshots) = &self.snapshots else { return done(Err(absent())) };
        let view = snapshots.view(&self.fs, info.id);
        let found = move |found: FsResult<Inode>| {
            done(found.and_then(|inode| match inode.kind {
                Kind::Dir => Ok((view, inode)),
                _ => Err(absent()),
            }));
        };
        self.fs.getattr_at(caller, (info.id, dir), Box::new(found));
    }

    /// Tells the kernel of the root of a snapshot.
    fn entering(
        self: &Arc<Self>,
        pid: u32,
        dir: InodeId,
        reply: Reply,
    ) -> Done<(Arc<View>, Inode)> {
        let snapshots = self.snapshots.clone();
        self.asked(pid, reply, move |reply, (view, inode): (Arc<View>, Inode)| {
            let Some(snapshots) = snapshots else { return reply.error(libc::ESTALE) };
            reply.entry(&snapshots.entry((&view, dir), None, &inode));
        })
    }

    /// MKDIR in `.snap`.
    fn make_snapshot(self: &Arc<Self>, caller: Caller, dir: InodeId, name: &OsStr, reply: Reply) {
        let name = match Name::new(name.as_bytes()) {
            Ok(name) => name,
            Err(error) => return reply.error(error.errno),
        };
        let (core, snapshots) = (self.clone(), self.snapshots.clone());
        let snapshots = move || {
            snapshots.iter().for_each(|known: &Arc<Snapshots>| {
                known.told.forget();
            })
        };
        let done = self.entering(caller.pid, dir, reply);
        let made = move |made: FsResult<SnapshotInfo>| match made {
            Ok(info) => {
                snapshots();
                core.enter_snapshot(caller, dir, info, done);
            }
            Err(error) => done(Err(error)),
        };
        self.fs.create_snapshot(caller, dir, name, Box::new(made));
    }

    /// Answers what removes or renames a snapshot.
    fn changing_snapshots(&self, pid: u32, reply: Reply) -> Done<()> {
        let snapshots = self.snapshots.clone();
        let done = self.empty(pid, reply);
        Box::new(move |changed| {
            snapshots.iter().for_each(|known| known.told.forget());
            done(changed);
        })
    }

    fn open_snapshot_dir(self: &Arc<Self>, caller: Caller, dir: InodeId, reply: Reply) {
        let core = self.clone();
        let answer = move |reply: Reply, ()| {
            let Some(snapshots) = &core.snapshots else { return reply.error(libc::ESTALE) };
            let open = OpenSnapshotDir { dir, entries: Mutex::default() };
            let fh = snapshots.dirs.insert(Arc::new(OpenDir::Snapshots(open)));
            reply.opened(fuse::Opened { fh, ..fuse::Opened::default() });
        };
        let done = self.asked(caller.pid, reply, answer);
        self.fs.access(caller, dir, libc::R_OK as u32, done);
    }

    /// READDIR of `.snap`. The beginning asks for the snapshots, what follows goes on in that list.
    fn list_snapshots(
        self: &Arc<Self>,
        caller: Caller,
        fh: u64,
        (offset, size): (u64, u32),
        reply: Reply,
    ) {
        let Some(snapshots) = self.snapshots.clone() else { return reply.error(libc::EBADF) };
        let Some(handle) = snapshots.dirs.get(fh) else { return reply.error(libc::EBADF) };
        let OpenDir::Snapshots(open) = &*handle else { return reply.error(libc::EBADF) };
        if offset > 0 {
            let entries = open.entries.lock().clone();
            return reply.dirents(dirents(open.dir, &entries, offset, size));
        }
        let (dir, again) = (open.dir, handle.clone());
        let answer = move |reply: Reply, found: Vec<SnapshotInfo>| {
            let found = Arc::new(found);
            let mut distances = snapshots.distances.lock();
            let listed = found.iter().filter(|info| !info.removing).filter_map(|info| {
                Some((listed_name(info, dir)?, shown(distances.of(info.id), dir)))
            });
            let entries = Arc::new(listed.collect::<Vec<_>>());
            drop(distances);
            snapshots.told.note(caller.pid, dir, found);
            if let OpenDir::Snapshots(open) = &*again {
                *open.entries.lock() = entries.clone();
            }
            reply.dirents(dirents(dir, &entries, 0, size));
        };
        let done = self.asked(caller.pid, reply, answer);
        self.fs.snapshots(caller, Some(dir), true, done);
    }
}

/// The part of a listing from a cookie on that fits.
fn dirents(dir: InodeId, entries: &[Shown], offset: u64, size: u32) -> Dirents {
    let mut dirents = Dirents::plain(size);
    let kind = FileKind::Directory;
    let dots = [(".", shown(0, dir), 1), ("..", dir, AFTER_DOTS)];
    for (name, ino, next) in dots.into_iter().filter(|(_, _, next)| *next > offset) {
        if !dirents.push(name.as_ref(), ino, kind, next) {
            return dirents;
        }
    }
    let from = usize::try_from(offset.saturating_sub(AFTER_DOTS)).unwrap_or(usize::MAX);
    for (at, (name, ino)) in entries.iter().enumerate().skip(from) {
        let next = AFTER_DOTS + at as u64 + 1;
        if !dirents.push(OsStr::from_bytes(name.as_bytes()), *ino, kind, next) {
            break;
        }
    }
    dirents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(dir: InodeId, name: &[u8], removing: bool) -> SnapshotInfo {
        let name = Name::new(name).unwrap();
        let [cutting, hidden] = [false; 2];
        let (holds, clones) = (Vec::new(), Vec::new());
        SnapshotInfo { id: 9, dir, name, created: 0, removing, cutting, hidden, holds, clones }
    }

    /// Snapshots are found by the names that a listing shows, and not while they are removed.
    #[test]
    fn snapshots_by_listed_names() {
        let all = [info(20, b"a", false), info(20, b"b", true), info(1, b"c", false)];
        let find = |name: &[u8]| named(&all, 20, &Name::new(name).unwrap()).is_some();
        assert!(find(b"a") && find(b"_c_1"));
        assert!(!find(b"b") && !find(b"c") && !find(b"_a_20"));
    }

    /// A listing goes on where it was cut off.
    #[test]
    fn listing_in_pieces() {
        let entries: Vec<Shown> =
            (0..100).map(|n| (Name::new(format!("s{n}").as_bytes()).unwrap(), n)).collect();
        let (mut offset, mut passes) = (0, 0);
        while offset < AFTER_DOTS + 100 {
            let some = dirents(20, &entries, offset, 512).len() as u64;
            assert!(some > 0);
            offset += some;
            passes += 1;
        }
        assert!(passes > 3 && dirents(20, &entries, offset, 512).is_empty());
    }

    /// Only the thread that was told of snapshots is answered by that.
    #[test]
    fn told_snapshots_of_one_thread() {
        let told = Told::default();
        let name = Name::new(b"a").unwrap();
        told.note(3, 20, Arc::new(vec![info(20, b"a", false)]));
        assert!(told.find(3, 20, &name).is_some());
        assert!(told.find(4, 20, &name).is_none() && told.find(3, 21, &name).is_none());
        told.forget();
        assert!(told.find(3, 20, &name).is_none());
    }
}
