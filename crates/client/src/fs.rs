//! The file system as mounts and native programs call it: every operation of POSIX on inodes,
//! handles and names.
//!
//! | file | |
//! | --- | --- |
//! | `namespace` | names: look up, create, remove, rename, link, open |
//! | `by_path` | questions by path, of programs that keep no inode numbers |
//! | `by_number` | inodes by number alone, as file handles of the kernel name them |
//! | `handover` | handing a mount over to another process, and taking it over |
//! | `handles` | what an open of a file or directory holds |
//! | `attributes` | attributes and permissions |
//! | `access_times` | which reads change access times, and telling the node of them |
//! | `protected` | `fs.protected_symlinks` and its relatives (proc_sys_fs(5)) |
//! | `xattr` | extended attributes |
//! | `listing` | listing directories |
//! | `removed` | inodes that are removed and that the kernel still holds |
//! | `locks` | locks that all clients of a volume see: `fcntl(2)`, `flock(2)` |
//! | `read` | reading: the newest layer that has a byte gives it |
//! | `write` | writing: to the file's buffer, full blocks on to the block store |
//! | `flush` | what was written to a file becomes its committed content |
//! | `flush_next` | one flush of a file after the other |
//! | `space` | holes: allocate, punch and zero |
//! | `seek` | `lseek(2)` for data and holes |
//! | `copy` | `copy_file_range(2)`: by reference where possible, by copying otherwise |
//! | `chunk_lists` | extent lists of chunks from the metadata, a page at a time |
//! | `whole` | whole copies of files in the disk cache, for pass-through |
//! | `clones` | clones of directories |
//! | `quotas` | which quotas count for an inode |
//! | `background` | what a client does on its own: old bytes, deleted objects, sparse objects |
//! | `compact` | compaction of one file: windows in many pieces are stored again in one |
//! | `storing` | how bytes are stored: what the policies of directories say |
//! | `tiers` | tiers of the objects that files lie in |
//! | `repack` | compaction of a volume: live bytes of sparse objects are stored together |
//! | `repeat` | loops over requests |
//! | `snapshots` | snapshots of directories; the file system at one of them |
//! | `tree_removal` | removal of whole trees |
//! | `feeds` | change feeds |
//! | `trash` | what is removed and kept for a time |
//!
//! Calls never block on a disk on purpose. They answer through a callback, on the calling thread
//! whenever memory can answer, otherwise from the thread on which the last thing they needed became
//! ready. The only place where metadata and data meet.

mod access_times;
mod attributes;
mod background;
mod by_number;
mod by_path;
mod chunk_lists;
pub mod clones;
mod compact;
mod copy;
mod feeds;
mod flush;
mod flush_next;
mod handles;
mod handover;
mod listing;
mod locks;
mod namespace;
mod protected;
mod quotas;
mod read;
mod removed;
mod repack;
mod repeat;
mod seek;
mod snapshots;
mod space;
mod storing;
mod tiers;
pub mod trash;
pub mod tree_removal;
mod whole;
mod write;
mod xattr;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kestrel_blockstore::packer::Packer;
use kestrel_blockstore::reader::Reader;
use kestrel_blockstore::store::BlockStore;
use kestrel_blockstore::{Budget, Buffers, Payload, Pool, ReadAheadConfig, StoredRange, Turn};
use kestrel_cluster::host::NodeHost;
use kestrel_meta::node::Node;
use kestrel_types::clock::{Clock, Nanos};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::request::{Answer, Creds, Done as RequestDone, Op, Outcome, Reply, Request};

pub use self::access_times::{AccessTimes, AtimeMode};
pub use self::by_path::{ContentDone, EachReply, FoundContent, PackedContent};
pub use self::chunk_lists::Page;
pub use self::copy::CopyRange;
pub use self::handles::{DirHandle, FileHandle};
pub use self::listing::{EntrySink, Listed};
pub use self::locks::{LockWait, LockedRange, TellOutdated};
pub use self::namespace::{Creation, NewNode, OpenedEntry};
pub use self::protected::Protected;
pub use self::read::{ReadBytes, ReadRoom};
pub use self::repack::{CompactOptions, Compacted};
pub use self::seek::Seek;
pub use self::space::{Fallocate, Hole};
pub use self::tiers::{TierAct, TierOptions, TierReport, TierSum};
pub use self::whole::{WHOLE_BYTES_MIN, WholeCopies, WholeCopy, WholeCounters, WholeId, WholeMade};
pub use self::write::WriteAt;
pub use crate::caller::{Caller, Done};
pub use crate::file::Outdated;

use self::background::Background;
use crate::accesses::Accesses;
use crate::answering::is_answering;
use crate::dir_stream::KeptPositions;
use crate::file::{OpenFile, OpenFiles};
use crate::groups::supplementary_groups;
use crate::held_locks::HeldLocks;
use crate::inode_table::InodeTable;
use crate::kept_inodes::KeptInodes;
use crate::listed::ListedAttributes;
use crate::metadata::Metadata;

/// How long a job may wait for the I/O pool before it fails.
const IO_DEADLINE: Duration = Duration::from_secs(60);

/// Completion of [`Fs::store_bytes`].
type Stored = Box<dyn FnOnce(kestrel_blockstore::Result<StoredRange>) + Send>;

/// An open file as the mount gives it to the kernel.
#[derive(Debug)]
pub struct Opened {
    /// Attributes.
    pub inode: Inode,
    /// Handle for reads, writes and the release.
    pub handle: Arc<FileHandle>,
    /// Pages that the kernel holds of this file are still its content.
    pub keep_cache: bool,
    /// The open has truncated the file.
    pub truncated: bool,
}

/// Limits and sizes of a client.
#[derive(Debug, Clone)]
pub struct FsConfig {
    /// Largest stored range, bytes.
    pub block_bytes: u32,
    /// Largest file kept in its record, bytes.
    pub inline_max: u32,
    /// Most bytes written by applications and not yet stored, all files together.
    pub dirty_bytes_max: u64,
    /// Most bytes of reads that are under way with a [`ReadRoom`]; none: that is not bounded.
    pub read_bytes_max: Option<u64>,
    /// Memory kept for the next reads while nobody reads, bytes.
    pub read_kept_bytes: usize,
    /// Most attributes that came with listings and are kept.
    pub listed_entries_max: usize,
    /// Memory for what is known of snapshots, bytes.
    pub snapshot_bytes: usize,
    /// Read-ahead of one handle.
    pub readahead: ReadAheadConfig,
    /// How long a written byte may stay in memory only, nanoseconds.
    pub flush_interval: i64,
    /// The volume is mounted read-only: nothing in the background changes it either.
    pub read_only: bool,
    /// How the volume's mounts keep access times unless told otherwise.
    pub atime: AtimeMode,
}

/// Threads for what may have to wait for the block store.
pub struct IoPools {
    /// For what somebody waits for.
    pub wanted: Pool,
    /// For read-ahead, which must not stand in front of it.
    pub ahead: Pool,
    /// For copied bytes that wait until there is room for them.
    pub copies: Pool,
}

/// Bytes moved, for `kestrel stats`.
#[derive(Debug, Default)]
pub struct FsCounters {
    /// Bytes given to applications.
    pub read_bytes: AtomicU64,
    /// Bytes taken from applications.
    pub written_bytes: AtomicU64,
    /// Reads that had to wait for the block store on another thread.
    pub cold_reads: AtomicU64,
    /// Stored bytes that failed their checksum or were missing.
    pub bad_reads: AtomicU64,
    /// Files committed.
    pub commits: AtomicU64,
    /// Windows compacted.
    pub compactions: AtomicU64,
    /// References moved out of sparse objects.
    pub repacked_ranges: AtomicU64,
    /// Bytes stored again for them.
    pub repacked_bytes: AtomicU64,
    /// Objects deleted after their grace period.
    pub reaped_objects: AtomicU64,
}

/// What a file system is put together from.
pub struct FsParts {
    /// The way to the metadata.
    pub metadata: Arc<dyn Metadata>,
    /// The block store.
    pub store: Arc<dyn BlockStore>,
    /// What writes to it.
    pub packer: Packer,
    /// What reads from it.
    pub reader: Reader,
    /// Threads for what may have to wait for it.
    pub pools: IoPools,
    /// Times of writes.
    pub clock: Arc<dyn Clock>,
}

/// What the file systems of one client have in common: the live one, and those at snapshots.
struct SharedParts {
    store: Arc<dyn BlockStore>,
    packer: Arc<Packer>,
    reader: Arc<Reader>,
    buffers: Arc<Buffers>,
    pools: Arc<IoPools>,
    budget: Budget,
    reading: Option<Budget>,
    clock: Arc<dyn Clock>,
    kept: Arc<KeptInodes>,
    counters: Arc<FsCounters>,
}

/// Tells whether somebody else may still come to refer to an object.
pub type InUse = dyn Fn(ObjectId) -> bool + Send + Sync;

/// A mounted file system.
pub struct Fs {
    metadata: Arc<dyn Metadata>,
    store: Arc<dyn BlockStore>,
    packer: Arc<Packer>,
    reader: Arc<Reader>,
    /// Memory for what is read.
    buffers: Arc<Buffers>,
    pools: Arc<IoPools>,
    budget: Budget,
    /// For reads that are under way.
    reading: Option<Budget>,
    clock: Arc<dyn Clock>,
    config: FsConfig,
    /// What is known of snapshots.
    kept: Arc<KeptInodes>,
    known: InodeTable,
    /// Reads that the node has not heard of.
    accesses: Arc<Accesses>,
    listed: Arc<ListedAttributes>,
    /// Where listings stopped that were read through handles which are closed.
    positions: KeptPositions,
    files: OpenFiles,
    locks: HeldLocks,
    /// Tells the kernel of files with outdated pages.
    outdated: OnceLock<Box<TellOutdated>>,
    /// Number of the next handle.
    next_handle: AtomicU64,
    /// How often a connection to a node was made anew: what was under way then may have been
    /// executed, though its answer was lost.
    reconnections: AtomicU64,
    counters: Arc<FsCounters>,
    background: Background,
    /// Looks for files by number.
    locator: by_number::Locator,
    /// Copies of whole files that the kernel reads by itself.
    whole: whole::Whole,
    /// Objects that clients of this volume's server are writing.
    used_elsewhere: OnceLock<Arc<InUse>>,
}

impl Fs {
    /// Assembles a file system from its parts and starts its background work.
    pub fn new(parts: FsParts, config: FsConfig) -> Arc<Self> {
        let FsParts { metadata, store, packer, reader, pools, clock } = parts;
        let shared = SharedParts {
            store,
            packer: Arc::new(packer),
            reader: Arc::new(reader),
            buffers: Buffers::new(config.read_kept_bytes),
            pools: Arc::new(pools),
            budget: Budget::new(config.dirty_bytes_max),
            reading: config.read_bytes_max.map(Budget::new),
            clock,
            kept: Arc::new(KeptInodes::new(config.snapshot_bytes)),
            counters: Arc::default(),
        };
        Self::assemble(metadata, shared, config)
    }

    fn assemble(metadata: Arc<dyn Metadata>, shared: SharedParts, config: FsConfig) -> Arc<Self> {
        let SharedParts { store, packer, reader, buffers, pools, budget, reading, .. } = shared;
        let fs = Arc::new(Self {
            files: OpenFiles::new(config.block_bytes),
            known: InodeTable::default(),
            accesses: Arc::default(),
            listed: Arc::new(ListedAttributes::new(config.listed_entries_max)),
            positions: KeptPositions::default(),
            locks: HeldLocks::default(),
            outdated: OnceLock::new(),
            next_handle: AtomicU64::new(1),
            reconnections: AtomicU64::new(0),
            background: Background::default(),
            locator: by_number::Locator::default(),
            whole: whole::Whole::default(),
            used_elsewhere: OnceLock::new(),
            kept: shared.kept,
            counters: shared.counters,
            clock: shared.clock,
            metadata,
            store,
            packer,
            reader,
            buffers,
            pools,
            budget,
            reading,
            config,
        });
        fs.start_background();
        fs
    }

    /// What a file system at a snapshot has in common with this one.
    fn shared(&self) -> SharedParts {
        SharedParts {
            store: self.store.clone(),
            packer: self.packer.clone(),
            reader: self.reader.clone(),
            buffers: self.buffers.clone(),
            pools: self.pools.clone(),
            budget: self.budget.clone(),
            reading: self.reading.clone(),
            clock: self.clock.clone(),
            kept: self.kept.clone(),
            counters: self.counters.clone(),
        }
    }

    /// The way to the metadata.
    pub fn metadata(&self) -> &Arc<dyn Metadata> {
        &self.metadata
    }

    /// The metadata node, if it is in this process and keeps the whole volume.
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.metadata.local()
    }

    /// Waits until other machines that read the rows in their store see all that was done so far.
    /// Of several nodes each has its rows there when they are durable.
    ///
    /// # Errors
    /// The engine's.
    pub fn upload(&self) -> FsResult<()> {
        self.node().map_or(Ok(()), |node| node.upload())
    }

    /// The member, if this process is one of several nodes that share the volume.
    pub fn member(&self) -> Option<&Arc<NodeHost>> {
        self.metadata.member()
    }

    /// The block store behind this client.
    pub fn store(&self) -> &Arc<dyn BlockStore> {
        &self.store
    }

    /// Verified reads of stored data: counters and memory cache.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Writes to the block store: counters.
    pub fn packer(&self) -> &Packer {
        &self.packer
    }

    /// Counters since the start.
    pub fn counters(&self) -> &FsCounters {
        &self.counters
    }

    /// Some of the files that the kernel refers to, at most `count`.
    pub fn known_files(&self, count: usize) -> Vec<InodeId> {
        self.known.files(count)
    }

    /// Inodes the kernel refers to at present.
    pub fn known_inodes(&self) -> usize {
        self.known.len()
    }

    /// Whether an object is still being written, here or by a client of this process; garbage
    /// collection leaves it alone.
    pub fn is_open_object(&self, object: ObjectId) -> bool {
        self.packer.is_open(object)
            || self.used_elsewhere.get().is_some_and(|in_use| in_use(object))
    }

    /// Objects for which `in_use` holds are not deleted either. For a process that serves the
    /// volume to others, which calls this once, before the first of them comes.
    pub fn also_in_use(&self, in_use: Arc<InUse>) {
        if self.used_elsewhere.set(in_use).is_err() {
            log::error!(
                "the volume is served twice by one process: objects of the second server's clients \
                 are at risk"
            );
        }
    }

    /// The time, by the clock that stamps writes.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Whether the metadata is across a network.
    pub fn is_remote(&self) -> bool {
        self.metadata.is_remote()
    }

    /// Whether nobody but this client changes the volume.
    pub fn is_alone(&self) -> bool {
        self.metadata.is_alone()
    }

    /// An inode and where it was last seen.
    pub(crate) fn last_seen(&self, ino: InodeId) -> InodeRef {
        self.known.reference(ino)
    }

    /// The kernel forgot `count` lookups of an inode.
    pub fn forget(&self, ino: InodeId, count: u64) {
        if self.accesses.is_on() {
            self.accesses.keep_place(ino, || self.known.reference(ino));
        }
        self.known.forgot(ino, count);
    }

    /// Asks the node. Supplementary groups are looked up only if the answer depends on them.
    fn request(
        self: &Arc<Self>,
        caller: Caller,
        op: Op,
        done: impl FnOnce(Reply) + Send + 'static,
    ) {
        if caller.uid == 0 {
            self.submit(
                Request { creds: Creds { groups: None, ..creds(caller) }, op },
                Box::new(done),
            );
            return;
        }
        let fs = self.clone();
        let again = op.clone();
        let first = Request { creds: creds(caller), op };
        self.submit(
            first,
            Box::new(move |reply| match reply {
                Err(Outcome::NeedGroups) => {
                    let groups = Some(supplementary_groups(caller.pid));
                    let second = Request { creds: Creds { groups, ..creds(caller) }, op: again };
                    fs.submit(second, Box::new(done));
                }
                reply => done(reply),
            }),
        );
    }

    /// Sends a request. What it changes is not answered by what came with listings once it is done.
    /// Inodes in the answer show what was read here.
    fn submit(&self, request: Request, done: RequestDone) {
        let done = self.noting(&request.op, done);
        self.metadata.submit(request, done);
    }

    /// What `done` is called through for a request of this kind.
    fn noting(&self, op: &Op, done: RequestDone) -> RequestDone {
        let done = match self.listed.changing(op) {
            None => done,
            Some(change) => {
                let listed = self.listed.clone();
                Box::new(move |reply| {
                    listed.changed(&change, &reply);
                    done(reply);
                })
            }
        };
        if !self.accesses.is_on() {
            return done;
        }
        let accesses = self.accesses.clone();
        Box::new(move |mut reply: Reply| {
            accesses.show_in(&mut reply);
            done(reply);
        })
    }

    /// Sends several requests at once and waits for their replies, in the same order.
    pub fn replies(&self, creds: &Creds, ops: Vec<Op>) -> Vec<Reply> {
        let (send, receive) = std::sync::mpsc::channel();
        let unanswered = |_| Err(Outcome::Failed(unanswered()));
        let mut replies: Vec<Reply> = ops.iter().map(unanswered).collect();
        let requests = ops.into_iter().enumerate().map(|(number, op)| {
            let send = send.clone();
            // A receiver that has gone waits for nothing.
            let done = Box::new(move |reply| drop(send.send((number, reply))));
            let done = self.noting(&op, done);
            (Request { creds: creds.clone(), op }, done)
        });
        let requests = requests.collect();
        drop(send);
        self.metadata.submit_many(requests);
        for (number, reply) in receive {
            if let Some(place) = replies.get_mut(number) {
                *place = reply;
            }
        }
        replies
    }

    /// Asks the node for something that can only be answered or fail.
    fn ask(
        self: &Arc<Self>,
        caller: Caller,
        op: Op,
        done: impl FnOnce(FsResult<Answer>) + Send + 'static,
    ) {
        self.request(caller, op, move |reply| done(plain(reply)));
    }

    /// Asks for the entry `name`, and tells the kernel's table and the caller of it.
    fn ask_entry(self: &Arc<Self>, caller: Caller, name: Name, op: Op, done: Done<Inode>) {
        let fs = self.clone();
        self.ask(caller, op, move |answer| {
            done(answer.and_then(|answer| match answer {
                Answer::Entry { parent, inode } => Ok(fs.introduce(*inode, Some((parent, &name)))),
                other => Err(unexpected(&other)),
            }));
        });
    }

    /// Notes that the kernel will know an inode, and shows what is not committed in its attributes.
    fn introduce(&self, mut inode: Inode, place: Option<(InodeId, &Name)>) -> Inode {
        self.learn_compression(&inode);
        self.known.learned(inode.ino, inode.kind, place);
        if inode.kind == Kind::File {
            self.known.told_as(inode.ino, inode.data_change);
            self.files.overlay(&mut inode);
        }
        inode
    }

    /// Runs a job on the I/O pool. It is called in any case, with [`Turn::Late`] if it had to wait
    /// too long or the queue is full.
    fn on_pool(&self, job: impl FnOnce(Turn) + Send + 'static) {
        self.on(&self.pools.wanted, job);
    }

    /// Runs a job on one of the pools, as [`Fs::on_pool`].
    fn on(&self, pool: &Pool, job: impl FnOnce(Turn) + Send + 'static) {
        if let Err(job) = pool.try_submit(Some(Instant::now() + IO_DEADLINE), Box::new(job)) {
            job(Turn::Late);
        }
    }

    /// Runs a job that may wait for a disk or for room: here, unless this thread brings answers
    /// that others wait for.
    fn where_waiting_is_fine(&self, job: impl FnOnce(Turn) + Send + 'static) {
        if is_answering() { self.on_pool(job) } else { job(Turn::Run) }
    }

    /// Stores bytes of a file; [`Packer::store_with`].
    fn store_bytes(self: &Arc<Self>, payload: Payload, file: &OpenFile, done: Stored) {
        let (ino, options) = (file.ino, file.lock().put_options);
        if !self.packer.waits(options) {
            // Its threads do the waiting.
            return self.packer.store_with(payload, ino, options, done);
        }
        let fs = self.clone();
        self.where_waiting_is_fine(move |turn| match turn {
            Turn::Run => fs.packer.store_with(payload, ino, options, done),
            Turn::Late => done(Err(kestrel_blockstore::Error::Deadline {
                during: "waiting for a thread to store",
            })),
        });
    }

    fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

fn creds(caller: Caller) -> Creds {
    Creds { uid: caller.uid, gid: caller.gid, groups: None }
}

/// An outcome that is neither answer nor failure reached a caller that cannot act on it.
pub fn plain(reply: Reply) -> FsResult<Answer> {
    reply.map_err(|outcome| match outcome {
        Outcome::Failed(error) => error,
        Outcome::NeedGroups => {
            FsError::new(libc::EACCES, "the caller's groups could not be determined")
        }
        Outcome::Conflict(_) => FsError::new(libc::EAGAIN, "the file changed meanwhile"),
        Outcome::Symlink { .. } => {
            FsError::new(libc::ESTALE, "a symbolic link in mid-path: walk the path again")
        }
        Outcome::Misdirected { .. } => FsError::new(
            libc::EREMCHG,
            "the metadata nodes have moved what this is about: try again",
        ),
    })
}

/// The error of a request that nothing answers: its completion was dropped.
pub fn unanswered() -> FsError {
    FsError::new(libc::EIO, "the request was dropped without an answer")
}

/// The error of a job that the I/O pool could not run in time.
fn too_late() -> FsError {
    FsError::new(libc::ETIMEDOUT, "the block store does not keep up: the I/O queue is full")
}

/// An answer of another type than the operation has is a defect of the node; it must not become a
/// success.
pub fn unexpected(answer: &Answer) -> FsError {
    FsError::because(
        libc::EIO,
        format!("the metadata node gave an answer of the wrong type: {answer:?}"),
    )
}

/// The inode of an answer.
///
/// # Errors
/// `EIO` if it has none.
pub fn into_inode(answer: Answer) -> FsResult<Inode> {
    match answer {
        Answer::Inode(inode) | Answer::Entry { inode, .. } => Ok(*inode),
        other => Err(unexpected(&other)),
    }
}

fn into_bytes(answer: Answer) -> FsResult<Box<[u8]>> {
    match answer {
        Answer::Bytes(bytes) => Ok(bytes),
        other => Err(unexpected(&other)),
    }
}

/// Runs an asynchronous call and waits for it. For tools and tests; a mount never waits.
pub fn wait<T: Send + 'static>(call: impl FnOnce(Done<T>)) -> FsResult<T> {
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    call(Box::new(move |result| {
        let _ = send.send(result);
    }));
    receive.recv().unwrap_or_else(|_| {
        Err(FsError::new(libc::EIO, "the operation was dropped without an answer"))
    })
}
