//! What every arm of the dispatcher needs: the state of a mount, and the ways to answer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kestrel_client::fs::{Caller, DirHandle, Done, FileHandle, Fs, Opened};
use kestrel_fuse::{self as fuse, Notifier, Reply};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{NAME_MAX, Name, PathRef};
use kestrel_types::policy::Policy;
use kestrel_types::quota::QuotaInfo;
use kestrel_types::request::Usage;

use crate::convert;
use crate::direct::DirectWrites;
use crate::handles::Handles;
use crate::interruptible::InterruptibleWaits;
use crate::kept_dirs::KeptDirs;
use crate::last_lookups::LastLookups;
use crate::locking::Locking;
use crate::naming::Naming;
use crate::passthrough::PassthroughState;
use crate::paths::NodeTarget;
use crate::snapshots::{SNAPSHOT_DIR, Snapshots};
use crate::trust::{MOMENT, Trust};

/// Block size that `statfs` counts in.
const STATFS_BLOCK: u32 = 4096;

/// Inodes that `statfs` reports free; numbers have 64 bits, so it is the disk that ends first.
const INODES_FREE: u64 = 1 << 40;

/// The state of a mount.
pub struct Core {
    pub fs: Arc<Fs>,
    pub files: Arc<Handles<FileHandle>>,
    pub dirs: Handles<DirHandle>,
    /// What the kernel's node ids stand for.
    pub naming: Naming,
    /// How long the kernel may trust what it is told.
    pub trust: Trust,
    /// Looks after callers that may have to wait long: with a block store or metadata across a
    /// network.
    waits: Option<Arc<InterruptibleWaits>>,
    /// All callers may, because the metadata is across a network.
    all_wait: bool,
    /// Locks that other clients see, if the volume has such.
    pub locking: Option<Arc<Locking>>,
    /// Direct writes beside reads through pages.
    pub direct: DirectWrites,
    /// Files that the kernel reads by itself.
    pub passthrough: PassthroughState,
    /// What is known of snapshots; none where all of the volume is at one.
    pub snapshots: Option<Arc<Snapshots>>,
    /// What threads were told of directories, where others may change that.
    told: Option<LastLookups>,
    /// Directories that are opened without a request.
    pub kept_dirs: KeptDirs,
    /// The way to the kernel, once the mount is there.
    pub notifier: OnceLock<Notifier>,
}

/// What of an open's flags decides how the kernel treats the file.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// Opened with `O_DIRECT`.
    pub direct: bool,
    /// For appending only, on a volume with other clients.
    pub appends: bool,
    /// Opened with `O_NOATIME`.
    pub keeps_access_time: bool,
}

impl How {
    fn settle(self, opened: &Opened) {
        if self.keeps_access_time {
            opened.handle.keep_access_time();
        }
        // The kernel would put the bytes where it believes the end to be, and show them there. So
        // it keeps none of them. Where nobody else appends that is the right place, and what a
        // reader on this machine sees is then never behind the size.
        if self.appends && opened.handle.has_shared_end() {
            opened.handle.go_uncached();
        }
    }
}

/// Has the kernel keep the listing of a directory that does not change. Where it dropped a page it
/// goes on through this handle, at a cookie of another one.
pub fn keep_listing(handle: &DirHandle) -> fuse::OpenFlags {
    handle.stays_as_it_is();
    fuse::OpenFlags::CACHE_DIR | fuse::OpenFlags::KEEP_CACHE
}

impl Core {
    /// What a file's `open(2)` flags mean for how it is opened.
    pub fn how(&self, flags: u32) -> How {
        let flags = flags as i32;
        let appends = flags & libc::O_ACCMODE == libc::O_WRONLY && flags & libc::O_APPEND != 0;
        How {
            direct: flags & libc::O_DIRECT != 0,
            appends: appends && self.locking.is_some(),
            keeps_access_time: flags & libc::O_NOATIME != 0,
        }
    }

    pub fn new(fs: Arc<Fs>, naming: Naming, trust: Trust) -> Arc<Self> {
        let all_wait = fs.is_remote();
        let locking = (fs.has_locks() && !trust.immutable).then(Arc::<Locking>::default);
        let waits = (all_wait || fs.store().is_remote()).then(InterruptibleWaits::start);
        Arc::new(Self {
            fs,
            files: Arc::default(),
            dirs: Handles::default(),
            naming,
            trust,
            waits,
            all_wait,
            locking,
            direct: DirectWrites::default(),
            passthrough: PassthroughState::default(),
            snapshots: (!trust.immutable).then(Arc::default),
            told: (!trust.alone).then(LastLookups::default),
            kept_dirs: KeptDirs::default(),
            notifier: OnceLock::new(),
        })
    }

    /// Which directory a thread thinks it removes or replaces, if that is known.
    pub fn expected(&self, thread: u32, dir: u64, name: &Name) -> Option<InodeId> {
        self.told.as_ref()?.take(thread, dir, name)
    }

    /// Acts on an entry of a directory.
    pub fn placed(
        self: &Arc<Self>,
        caller: Caller,
        (dir, name): (u64, &OsStr),
        reply: Reply,
        act: impl FnOnce(PathRef, Name, Reply),
    ) {
        if self.is_snapshot_dir(name) {
            return reply.error(libc::EBUSY);
        }
        self.named(caller, (dir, name), reply, |name, reply| {
            match self.naming.place(dir, name.clone()) {
                Some(place) => act(place, name, reply),
                None => reply.error(libc::ESTALE),
            }
        });
    }

    /// Whether a name in a live directory is that of its snapshots.
    #[inline]
    pub fn is_snapshot_dir(&self, name: &OsStr) -> bool {
        name.as_bytes() == SNAPSHOT_DIR && self.snapshots.is_some()
    }

    /// Acts on a name of a directory's, if it can be one. If the directory is not there, that comes
    /// first.
    pub fn named(
        self: &Arc<Self>,
        caller: Caller,
        (dir, name): (u64, &OsStr),
        reply: Reply,
        act: impl FnOnce(Name, Reply),
    ) {
        match Name::new(name.as_bytes()) {
            Ok(name) => act(name, reply),
            Err(error) => {
                self.numbered(caller, dir, reply, move |_, _, reply| reply.error(error.errno))
            }
        }
    }

    /// Acts on a node's inode. That of a path node is looked up first.
    pub fn numbered(
        self: &Arc<Self>,
        caller: Caller,
        node: u64,
        reply: Reply,
        act: impl FnOnce(&Arc<Self>, InodeId, Reply) + Send + 'static,
    ) {
        match self.naming.target(node) {
            NodeTarget::Inode(ino) => act(self, ino, reply),
            NodeTarget::At(place) => {
                let core = self.clone();
                let found = move |reply: Reply, ino| act(&core, ino, reply);
                let done = self.asked(caller.pid, reply, found);
                self.find(caller, node, place, done);
            }
            NodeTarget::Gone => reply.error(libc::ESTALE),
        }
    }

    /// Number of the directory at a path node's place.
    pub fn find(self: &Arc<Self>, caller: Caller, node: u64, place: PathRef, done: Done<InodeId>) {
        let core = self.clone();
        let found =
            move |found: FsResult<Inode>| done(found.and_then(|inode| core.saw(node, &inode)));
        self.fs.find_directory(caller, place, Box::new(found));
    }

    /// Notes the attributes of a path node's directory; its number. `ESTALE` if the kernel took the
    /// node for another one.
    pub fn saw(&self, node: u64, inode: &Inode) -> FsResult<InodeId> {
        match self.naming.paths() {
            Some(paths) if !paths.seen(node, inode) => {
                Err(FsError::new(libc::ESTALE, "another directory has its name now"))
            }
            _ => Ok(inode.ino),
        }
    }

    /// Answers as [`with`] does, for what may have to wait for the block store: a caller that is
    /// killed meanwhile is let go.
    pub fn patient<T: 'static>(
        &self,
        pid: u32,
        reply: Reply,
        answer: impl FnOnce(Reply, T) + Send + 'static,
    ) -> Done<T> {
        self.patient_or_undo(pid, reply, answer, drop)
    }

    /// The same; what comes when nobody wants it any more is given to `undo`.
    pub fn patient_or_undo<T: 'static>(
        &self,
        pid: u32,
        reply: Reply,
        answer: impl FnOnce(Reply, T) + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> Done<T> {
        let Some(waits) = &self.waits else { return with(reply, answer) };
        let ticket = waits.watch(pid, reply);
        Box::new(move |result: FsResult<T>| match (ticket.take(), result) {
            (Some(reply), Ok(value)) => answer(reply, value),
            (Some(reply), Err(error)) => reply.error(error.errno),
            (None, Ok(value)) => undo(value),
            (None, Err(_)) => {}
        })
    }

    /// Answers what only has to wait for metadata, whatever comes of it; `undo` as for
    /// [`Core::patient_or_undo`].
    pub fn told<T: 'static>(
        &self,
        pid: u32,
        reply: Reply,
        answer: impl FnOnce(Reply, FsResult<T>) + Send + 'static,
        undo: impl FnOnce(FsResult<T>) + Send + 'static,
    ) -> Done<T> {
        let Some(waits) = self.waits.as_ref().filter(|_| self.all_wait) else {
            return Box::new(move |result| answer(reply, result));
        };
        let ticket = waits.watch(pid, reply);
        Box::new(move |result| match ticket.take() {
            Some(reply) => answer(reply, result),
            None => undo(result),
        })
    }

    /// Answers what only has to wait for metadata.
    pub fn asked<T: 'static>(
        &self,
        pid: u32,
        reply: Reply,
        answer: impl FnOnce(Reply, T) + Send + 'static,
    ) -> Done<T> {
        if self.all_wait { self.patient(pid, reply, answer) } else { with(reply, answer) }
    }

    pub fn empty(&self, pid: u32, reply: Reply) -> Done<()> {
        self.asked(pid, reply, |reply, ()| reply.empty())
    }

    /// Answers the close of a file. If what was written could not be stored, the kernel may have
    /// been told of it meanwhile, to be kept for an hour in an immutable tree: it asks anew.
    pub fn closed(self: &Arc<Self>, ino: InodeId, pid: u32, reply: Reply) -> Done<()> {
        let (core, done) = (self.clone(), self.empty(pid, reply));
        Box::new(move |closed| {
            if closed.is_err()
                && let Some(notifier) = core.notifier.get()
            {
                // An error: the kernel has forgotten it.
                let _ = notifier.invalidate_inode(ino, -1, 0);
            }
            done(closed);
        })
    }

    pub fn bytes<T: AsRef<[u8]> + 'static>(&self, pid: u32, reply: Reply) -> Done<T> {
        self.asked(pid, reply, |reply, bytes: T| reply.data(bytes.as_ref()))
    }

    pub fn file(&self, fh: u64, reply: Reply, act: impl FnOnce(Arc<FileHandle>, Reply)) {
        match self.files.get(fh) {
            Some(file) => act(file, reply),
            None => reply.error(libc::EBADF),
        }
    }

    /// Tells of the inode that was found or made at a name.
    pub fn entry(self: &Arc<Self>, pid: u32, at: (u64, Name), reply: Reply) -> Done<Inode> {
        let done = self.listed_entry(Caller { pid, ..Caller::ROOT }, at, false, reply);
        Box::new(move |found: FsResult<Inode>| done(found.map(|inode| (inode, false))))
    }

    /// The same for what a look-up found, and whether it came with a listing; with `keeps` a
    /// directory is held from now on.
    pub fn listed_entry(
        self: &Arc<Self>,
        caller: Caller,
        at: (u64, Name),
        keeps: bool,
        reply: Reply,
    ) -> Done<(Inode, bool)> {
        let (core, pid, since) = (self.clone(), caller.pid, Instant::now());
        let answer = move |reply: Reply, (mut inode, listed): (Inode, bool)| {
            if listed && !inode.effective.is_immutable() {
                // A listing is as old as the kernel may believe it to be already.
                inode.effective = Policy::default();
            }
            if let (Some(told), Kind::Dir) = (&core.told, inode.kind) {
                told.note(pid, at.0, &at.1, inode.ino);
            }
            if inode.kind == Kind::Dir {
                core.fs.reached(caller, inode.ino, (at.0, &at.1), since);
            }
            let mut entry = core.naming.entry(Some((at.0, &at.1)), &inode, &core.trust);
            core.kept_dirs.note(entry.nodeid, &inode);
            if listed {
                // A program that lists asks several things of each name, one after the other. The
                // kernel does not believe the name: what it opens is looked up again, at the node.
                entry.attr_ttl = entry.attr_ttl.max(MOMENT);
            }
            if let Some(paths) = core.naming.paths()
                && keeps
                && inode.kind == Kind::Dir
                && !paths.hold(entry.nodeid, inode.ino, true)
            {
                return reply.error(libc::ESTALE);
            }
            reply.entry(&entry);
        };
        if !self.all_wait {
            return with(reply, answer);
        }
        let fs = self.fs.clone();
        // The kernel never learned of it.
        self.patient_or_undo(pid, reply, answer, move |(inode, _)| fs.forget(inode.ino, 1))
    }

    pub fn attr(&self, pid: u32, reply: Reply) -> Done<Inode> {
        let trust = self.trust;
        self.asked(pid, reply, move |reply, inode| {
            reply.attr(&convert::attr(&inode), trust.attributes(&inode))
        })
    }

    /// Tells of a file that was created, or found, and opened at a name; `None`: it has none.
    pub fn created(
        self: &Arc<Self>,
        pid: u32,
        at: Option<(u64, Name)>,
        how: How,
        reply: Reply,
    ) -> Done<Opened> {
        let core = self.clone();
        let answer = move |reply: Reply, opened: Opened| {
            if opened.inode.kind != Kind::File {
                // It was there and is a device or the like, which the kernel opens itself, once it
                // knows.
                core.undo_created(opened);
                return reply.error(libc::ESTALE);
            }
            let at = at.as_ref().map(|(dir, name)| (*dir, name));
            let entry = core.naming.entry(at, &opened.inode, &core.trust);
            let (again, ino) = (core.clone(), opened.inode.ino);
            how.settle(&opened);
            core.settle_open(opened, (false, false), move |opened| match opened {
                Ok(opened) => reply.created(&entry, opened),
                Err(error) => {
                    again.fs.forget(ino, 1);
                    reply.error(error.errno);
                }
            });
        };
        if !self.all_wait {
            return with(reply, answer);
        }
        let core = self.clone();
        self.patient_or_undo(pid, reply, answer, move |opened| core.undo_created(opened))
    }

    /// The kernel never learns of what was created and opened.
    pub fn undo_created(&self, opened: Opened) {
        self.fs.forget(opened.inode.ino, 1);
        self.fs.abandon(opened.handle, Box::new(drop));
    }

    /// Tells of an open file.
    pub fn opened(self: &Arc<Self>, pid: u32, how: How, reply: Reply) -> Done<Opened> {
        let core = self.clone();
        let answer = move |reply: Reply, opened: Opened| {
            how.settle(&opened);
            core.settle_open(opened, (how.direct, true), move |opened| match opened {
                Ok(opened) => reply.opened(opened),
                Err(error) => reply.error(error.errno),
            });
        };
        if !self.all_wait {
            return with(reply, answer);
        }
        let fs = self.fs.clone();
        self.patient_or_undo(pid, reply, answer, move |opened| {
            fs.abandon(opened.handle, Box::new(drop))
        })
    }

    /// Numbers a handle. Where nothing has to be done when a descriptor is closed, the kernel need
    /// not tell.
    pub fn give_number(&self, opened: Opened) -> fuse::Opened {
        let mut flags = fuse::OpenFlags::default();
        if opened.keep_cache || self.trust.immutable {
            flags |= fuse::OpenFlags::KEEP_CACHE;
        }
        if opened.handle.is_uncached() {
            flags |= fuse::OpenFlags::DIRECT_IO;
        }
        if !opened.handle.flushes() {
            flags |= fuse::OpenFlags::NOFLUSH;
        }
        fuse::Opened { fh: self.files.insert(opened.handle), flags, ..fuse::Opened::default() }
    }

    /// A file was read without the kernel's asking for its bytes, so it may not ask for the
    /// attributes either.
    pub fn read_unseen(&self, file: &FileHandle) {
        if self.fs.file_accessed(file)
            && !self.trust.files.is_zero()
            && let Some(notifier) = self.notifier.get()
        {
            // An error: the kernel has forgotten it.
            let _ = notifier.invalidate_inode(file.ino(), -1, 0);
        }
    }

    /// Numbers an open directory; with `kept` the kernel may answer later listings by itself.
    pub fn give_directory_number(&self, handle: Arc<DirHandle>, kept: bool) -> fuse::Opened {
        let flags = match kept || self.trust.immutable {
            true => keep_listing(&handle),
            false => fuse::OpenFlags::default(),
        };
        fuse::Opened { fh: self.dirs.insert(handle), flags, ..fuse::Opened::default() }
    }

    /// Totals of the volume.
    pub fn statfs(&self, pid: u32, reply: Reply) {
        self.statfs_below(pid, Vec::new(), reply);
    }

    /// Totals, for an inode below directories with quotas those of the quotas.
    pub fn statfs_of(self: &Arc<Self>, pid: u32, ino: InodeId, reply: Reply) {
        // At a snapshot nothing can grow.
        if self.trust.immutable {
            return self.statfs(pid, reply);
        }
        let core = self.clone();
        // What is gone has none above it.
        let told = move |quotas: FsResult<Vec<QuotaInfo>>| {
            core.statfs_below(pid, quotas.unwrap_or_default(), reply);
        };
        self.fs.quotas_above(ino, Box::new(told));
    }

    fn statfs_below(&self, pid: u32, quotas: Vec<QuotaInfo>, reply: Reply) {
        let store = self.fs.store().clone();
        self.fs.usage(self.asked(pid, reply, move |reply, used: Usage| {
            let room = store.usage().unwrap_or_default();
            let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK);
            let mut free = blocks(room.free.unwrap_or(u64::MAX >> 1));
            let mut total = room.capacity.map_or(free + blocks(used.bytes), blocks);
            let (mut files, mut files_free) = (used.files + used.dirs + INODES_FREE, INODES_FREE);
            let left = |limit: u64, used: i64| limit.saturating_sub(used.max(0).cast_unsigned());
            for QuotaInfo { limits, used, .. } in quotas {
                // Of several the one that ends first.
                if let Some(limit) = limits.bytes
                    && blocks(left(limit, used.bytes)) <= free
                {
                    (total, free) = (blocks(limit), blocks(left(limit, used.bytes)));
                }
                if let Some(limit) = limits.files
                    && left(limit, used.files) <= files_free
                {
                    (files, files_free) = (limit, left(limit, used.files));
                }
            }
            reply.statfs(&fuse::Statfs {
                blocks: total,
                bfree: free,
                bavail: free,
                files,
                ffree: files_free,
                bsize: STATFS_BLOCK,
                frsize: STATFS_BLOCK,
                namelen: NAME_MAX as u32,
            });
        }));
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(waits) = &self.waits {
            waits.stop();
        }
    }
}

/// Answers with a value, or with the error's errno.
fn with<T: 'static>(reply: Reply, answer: impl FnOnce(Reply, T) + Send + 'static) -> Done<T> {
    Box::new(move |result: FsResult<T>| match result {
        Ok(value) => answer(reply, value),
        Err(error) => reply.error(error.errno),
    })
}
