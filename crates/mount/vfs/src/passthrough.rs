//! Pass-through: the kernel reads a file by itself from its whole copy in the disk cache.
//!
//! | file | |
//! | --- | --- |
//! | `answers` | where pass-through comes in between an operation and its answer |
//! | `open_inode` | an open inode: its mode, and its live copy |
//! | `service` | the thread for long work: bringing copies up to date, ending their use |
//! | `collect` | bringing stores through writable shared maps of a live copy to the volume |
//! | `page_sums` | what the volume has of each page: which side has changed it |
//!
//! **The mode belongs to the inode** ([`kestrel_fuse::passthrough`] has the kernel's rules). The
//! first open of an inode that nobody has open decides: a reader of a file of which there is a good
//! whole copy makes it *live*, and from then on every open names the copy, until nobody has the
//! file open or mapped; anybody else opens it in the ordinary way, and so does everybody until all
//! of those are closed.
//!
//! **While an inode is live its copy is the file**, for every process of this machine, as on a
//! local file system:
//! - readers and maps use it directly;
//! - an open that may write gets direct I/O beside: its reads are answered from the copy, its
//!   writes change the copy and the volume, in this order and one at a time ([`open_inode`]);
//!   truncations, holes and clones change the volume, then the copy, before they are answered
//!   ([`service`]);
//! - stores through writable shared maps reach the copy only. They are brought to the volume with
//!   fsync, msync and close, and when the last map has gone ([`collect`]).
//! - before the first change the copy loses its name: it is no cache any more, and nobody else gets
//!   it.
//!
//! **Other clients.** Close-to-open, as ever: an open that finds that the volume's content is not
//! what the copy followed ([`Fs::is_whole_of`]) waits until the copy has been brought up to date,
//! in place. Programs that had the file open may see the new content early. What was stored through
//! maps here stays, page by page, where the other client has changed nothing.
//!
//! **This client's own changes** move what the copy follows when their answers arrive. An open may
//! be answered by the node with a content of which the answer is still under way, or with an older
//! one: it waits for commits that are under way, and an older content is none to go back to.
//!
//! **Ends.** A map outlives the descriptor and the kernel does not tell, so a copy that nobody has
//! open stays live until a write lease shows that nobody maps it either; the service looks twice a
//! second.

mod answers;
mod collect;
mod open_inode;
mod page_sums;
mod service;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use kestrel_client::fs::{Caller, Fs, WholeCopies, WholeCopy};
use kestrel_fuse::{Backings, Negotiated, Notifier};
use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;

pub use answers::{PassthroughConfig, PassthroughState, PassthroughStats};
use open_inode::{Live, OpenInode, Pending};
use service::{Job, Service};

/// Shards of the table of open inodes; a power of two.
const SHARDS: usize = 64;

/// How the kernel is told to treat an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// Through its page cache.
    Ordinary,
    /// From the backing file of this number; `direct`: reads and writes come here all the same.
    Passed { backing: i32, direct: bool },
}

/// Gets the mode of an open, or why there can be none.
pub(crate) type Answer = Box<dyn FnOnce(FsResult<OpenMode>) + Send>;

/// An open that was granted and is to be answered.
pub(crate) struct Opening {
    /// The handle's number.
    pub fh: u64,
    /// Attributes as the open answered them.
    pub inode: Inode,
    /// May read, and write.
    pub reads: bool,
    /// See `reads`.
    pub writes: bool,
    /// It has truncated the file.
    pub truncated: bool,
    /// `O_DIRECT`: no alignment is demanded of such reads here, as the cache's file system might.
    pub direct: bool,
    /// It may make the inode live: an OPEN, not a CREATE.
    pub may_begin: bool,
}

impl Opening {
    fn is_plain_reader(&self) -> bool {
        !self.writes && !self.truncated && !self.direct
    }
}

/// Since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Opens that the kernel serves by itself, and those beside them with direct I/O.
    pub passed: AtomicU64,
    /// See `passed`.
    pub beside: AtomicU64,
    /// Copies brought up to date while in use.
    pub refreshed: AtomicU64,
}

/// Pass-through of a mount.
pub(crate) struct Passthrough {
    fs: Arc<Fs>,
    backings: Backings,
    shards: Vec<Mutex<FxHashMap<InodeId, Arc<OpenInode>>>>,
    /// Live inodes.
    live: AtomicUsize,
    service: Service,
    pub counters: Counters,
}

impl Passthrough {
    /// Starts pass-through if the kernel and this process's rights allow it.
    ///
    /// # Errors
    /// Why not, and what would help.
    pub fn start(
        fs: &Arc<Fs>,
        copies: &WholeCopies,
        negotiated: &Negotiated,
        notifier: &Notifier,
    ) -> Result<Arc<Self>, String> {
        if !negotiated.features.passthrough {
            return Err(
                "the kernel does not offer it; Linux 6.9 or newer with CONFIG_FUSE_PASSTHROUGH \
                 does"
                    .into(),
            );
        }
        let backings = notifier.backings();
        // A file of each cache directory is registered for a moment: that shows what no flag does.
        let mut tried = copies.probe()?.into_iter().map(|file| backings.open(file.as_fd()));
        if let Some(Err(error)) = tried.find(Result::is_err) {
            let what = match error.raw_os_error() {
                Some(libc::EPERM) => "it needs CAP_SYS_ADMIN: run as root",
                Some(libc::ELOOP) => {
                    "the cache directory lies on a stacked file system (overlay): name another one"
                }
                _ => "see the error",
            };
            return Err(format!(
                "a file of the cache directory cannot be a backing file: {error}; {what}"
            ));
        }
        fs.start_whole(copies.clone(), true)?;
        let passthrough = Arc::new(Self {
            fs: fs.clone(),
            backings,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            live: AtomicUsize::new(0),
            service: Service::new(),
            counters: Counters::default(),
        });
        passthrough
            .service
            .start(&passthrough)
            .map_err(|why| format!("starting a thread: {why}"))?;
        Ok(passthrough)
    }

    pub fn stats(&self) -> PassthroughStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let copies = self.fs.whole_counters();
        PassthroughStats {
            live: self.live.load(Ordering::Relaxed),
            opens: get(&self.counters.passed),
            beside: get(&self.counters.beside),
            refreshed: get(&self.counters.refreshed),
            made: get(&copies.made),
            made_bytes: get(&copies.made_bytes),
        }
    }

    fn shard(&self, ino: InodeId) -> &Mutex<FxHashMap<InodeId, Arc<OpenInode>>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// The inode's entry, made if it is missing.
    fn enter(&self, ino: InodeId) -> Arc<OpenInode> {
        self.shard(ino).lock().entry(ino).or_insert_with(|| Arc::new(OpenInode::new(ino))).clone()
    }

    /// The inode and its copy, if it is live.
    pub fn live(&self, ino: InodeId) -> Option<(Arc<OpenInode>, Arc<Live>)> {
        if self.live.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let node = self.shard(ino).lock().get(&ino).cloned()?;
        let live = node.state.lock().live.clone()?;
        Some((node, live))
    }

    /// Decides how the kernel shall treat an open file; `answer` is called exactly once, perhaps
    /// later.
    pub fn open(self: &Arc<Self>, opening: Opening, answer: Answer) {
        let ino = opening.inode.ino;
        loop {
            let node = self.enter(ino);
            let mut state = node.state.lock();
            if state.gone {
                continue;
            }
            let Some(live) = state.live.clone() else {
                let begun = (opening.may_begin && opening.is_plain_reader() && state.ordinary == 0)
                    .then(|| self.begin(&opening.inode))
                    .flatten();
                let Some(live) = begun else {
                    state.ordinary += 1;
                    drop(state);
                    return answer(Ok(OpenMode::Ordinary));
                };
                state.pass(opening.fh);
                state.live = Some(live.clone());
                drop(state);
                return self.confirm(node, live, opening, answer);
            };
            if state.passed.is_empty()
                && !live.has_writers()
                && !opening.is_plain_reader()
                && !live.is_in_use()
            {
                self.end(&node, &mut state);
                continue;
            }
            state.pass(opening.fh);
            drop(state);
            let is_current = self.fs.is_whole_of(ino, opening.inode.data_change);
            let needs_handle = opening.reads && opening.writes && !live.has_writers();
            if is_current && !opening.truncated && !needs_handle {
                return answer(Ok(self.mode(&live, &opening)));
            }
            let job = Job::Open { node, live, opening, answer };
            if is_current {
                return self.service.submit(job);
            }
            // A commit of ours may have made this content, and its answer not be here yet.
            let again = self.clone();
            return self.fs.when_committed(ino, Box::new(move || again.service.submit(job)));
        }
    }

    /// Makes an inode live, if there is a copy of its content. The caller enters it.
    fn begin(&self, inode: &Inode) -> Option<Arc<Live>> {
        let copy: WholeCopy = self.fs.find_whole(inode)?;
        let backing = match self.backings.open(copy.file().as_fd()) {
            Ok(backing) => backing,
            Err(error) => {
                log::warn!("inode {}: its whole copy cannot be registered: {error}", inode.ino);
                return None;
            }
        };
        self.fs.follow_whole(inode.ino, inode.data_change);
        self.live.fetch_add(1, Ordering::SeqCst);
        Some(Arc::new(Live::new(copy, backing)))
    }

    /// An inode has just become live. A truncation may have come between the answer to the open and
    /// that, which nobody told the copy of: so the content is looked at again. What comes from here
    /// on finds the inode live.
    fn confirm(
        self: &Arc<Self>,
        node: Arc<OpenInode>,
        live: Arc<Live>,
        mut opening: Opening,
        answer: Answer,
    ) {
        let (passthrough, ino) = (self.clone(), opening.inode.ino);
        let done = move |now: FsResult<Inode>| match now {
            Ok(now) if passthrough.fs.is_whole_of(ino, now.data_change) => {
                answer(Ok(passthrough.mode(&live, &opening)));
            }
            Ok(now) => {
                opening.inode = now;
                passthrough.service.submit(Job::Open { node, live, opening, answer });
            }
            Err(error) => answer(Err(error)),
        };
        self.fs.getattr(Caller::ROOT, ino, Box::new(done));
    }

    fn mode(&self, live: &Live, opening: &Opening) -> OpenMode {
        let direct = !opening.is_plain_reader();
        let counter = if direct { &self.counters.beside } else { &self.counters.passed };
        counter.fetch_add(1, Ordering::Relaxed);
        OpenMode::Passed { backing: live.backing_id(), direct }
    }

    /// The kernel has released an open file, or never got it.
    pub fn released(self: &Arc<Self>, ino: InodeId, fh: u64) {
        let Some(node) = self.shard(ino).lock().get(&ino).cloned() else { return };
        let mut state = node.state.lock();
        if !state.passed.remove(&fh) {
            state.ordinary = state.ordinary.saturating_sub(1);
            if state.ordinary == 0 && state.live.is_none() {
                self.leave(&node, &mut state);
            }
            return;
        }
        let Some(live) = state.live.clone().filter(|_| state.passed.is_empty()) else { return };
        if !live.has_writers() && !live.is_in_use() {
            self.end(&node, &mut state);
            if state.ordinary == 0 {
                self.leave(&node, &mut state);
            }
            return;
        }
        drop(state);
        self.service.submit(Job::Linger(node));
    }

    /// Ends the life of a copy that nobody uses.
    fn end(&self, node: &OpenInode, state: &mut open_inode::State) {
        if let Some(live) = state.live.take() {
            self.fs.unfollow_whole(node.ino);
            self.live.fetch_sub(1, Ordering::SeqCst);
            live.close(&self.fs);
        }
    }

    fn leave(&self, node: &OpenInode, state: &mut open_inode::State) {
        state.gone = true;
        self.shard(node.ino).lock().remove(&node.ino);
    }

    /// Announces a change of the volume that [`Passthrough::changed`] will tell of; keep it until
    /// then.
    pub fn pending(&self, ino: InodeId) -> Option<Pending> {
        self.live(ino).map(|(node, _)| Pending::new(node))
    }

    /// Runs `then` when the volume has what was stored through maps of an inode; at once if there
    /// is nothing of the kind.
    pub fn collected(self: &Arc<Self>, ino: InodeId, then: Box<dyn FnOnce(FsResult<()>) + Send>) {
        match self.live(ino) {
            Some((node, live)) if live.has_writers() => {
                self.service.submit(Job::Collect { node, live, then })
            }
            _ => then(Ok(())),
        }
    }

    /// The volume's content has changed other than by a write: runs `then` when the copy has too.
    pub fn changed(
        self: &Arc<Self>,
        ino: InodeId,
        change: VolumeChange,
        then: Box<dyn FnOnce(FsResult<()>) + Send>,
    ) {
        match self.live(ino) {
            Some((node, live)) => self.service.submit(Job::Change { node, live, change, then }),
            None => then(Ok(())),
        }
    }

    /// Writes to a live inode: to the copy and, with `store`, to the volume. Waits. Answers where
    /// the volume has the bytes, as `store` does; if that is elsewhere, the copy is made anew.
    ///
    /// # Errors
    /// Those of the cache's disk, and of `store`; the copy is as before then.
    pub fn write(
        self: &Arc<Self>,
        (node, live): (Arc<OpenInode>, Arc<Live>),
        offset: u64,
        bytes: &[u8],
        store: impl FnOnce() -> FsResult<u64>,
    ) -> FsResult<u64> {
        let turn = node.turn.lock();
        let result = self.write_beside(&live, offset, bytes).and_then(|()| store());
        drop(turn);
        if result.as_ref() != Ok(&offset) {
            self.service.submit(Job::Change {
                node,
                live,
                change: VolumeChange::Unknown,
                then: Box::new(drop),
            });
        }
        result
    }

    /// Brings what was stored through maps to the volume, before the mount's process ends.
    pub fn finish(self: &Arc<Self>) {
        self.service.stop();
        let nodes: Vec<Arc<OpenInode>> = self
            .shards
            .iter()
            .flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>())
            .collect();
        for node in nodes {
            let Some(live) = node.state.lock().live.take() else { continue };
            if live.has_writers()
                && let Err(error) = self.collect(&node, &live)
            {
                log::error!("inode {}: what was stored through maps is lost: {error}", node.ino);
            }
            live.close(&self.fs);
        }
    }
}

/// What has changed in the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VolumeChange {
    /// The size, to this.
    Size(u64),
    /// This part.
    Part { offset: u64, len: u64 },
    /// Something, it is not known what.
    Unknown,
}
