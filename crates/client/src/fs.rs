//! The file system as mounts and native programs call it: every operation of POSIX on inodes, handles and names.
//!
//! Calls never block on a disk on purpose. They answer through a callback, on the calling thread whenever memory can
//! answer, otherwise from the thread on which the last thing they needed became ready. The only place where metadata and
//! data meet.

mod attributes;
mod background;
mod compact;
mod copy;
mod flush;
mod handles;
mod listing;
mod namespace;
mod read;
mod removed;
mod repack;
mod space;
mod write;
mod xattr;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_data::packer::Packer;
use kestrel_data::reader::Reader;
use kestrel_data::store::BlockStore;
use kestrel_data::{Budget, Pool, ReadAheadConfig, Turn};
use kestrel_meta::node::Node;
use kestrel_types::clock::Clock;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request};

pub use self::copy::CopyRange;
pub(crate) use self::flush::Flush;
pub use self::handles::{DirHandle, FileHandle};
pub use self::listing::{Listed, Sink};
pub use self::namespace::{Creation, NewNode};
pub use self::read::Content;
pub use self::repack::{CompactOptions, Compacted};
pub use self::space::{Fallocate, Hole, Seek};

use self::background::Background;
use crate::file::OpenFiles;
use crate::groups::supplementary_groups;
use crate::known::KnownInodes;

/// How long a job may wait for the I/O pool before it fails.
const IO_DEADLINE: Duration = Duration::from_secs(60);

/// Completion of an operation. Called exactly once, possibly before the call that takes it returns.
pub type Done<T> = Box<dyn FnOnce(FsResult<T>) + Send>;

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread, for its supplementary groups; 0 if unknown.
    pub pid: u32,
}

impl Caller {
    /// The superuser, on behalf of nobody.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };
}

/// An open file as the mount gives it to the kernel.
#[derive(Debug)]
pub struct Opened {
    /// Attributes.
    pub inode: Inode,
    /// Handle for reads, writes and the release.
    pub handle: Arc<FileHandle>,
    /// Pages that the kernel holds of this file are still its content.
    pub keep_cache: bool,
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
    /// Read-ahead of one handle.
    pub readahead: ReadAheadConfig,
    /// How long a written byte may stay in memory only, nanoseconds.
    pub flush_interval: i64,
    /// The volume is mounted read-only: nothing in the background changes it either.
    pub read_only: bool,
}

/// Threads for what may have to wait for the block store.
pub struct IoPools {
    /// For what somebody waits for.
    pub wanted: Pool,
    /// For read-ahead, which must not stand in front of it.
    pub ahead: Pool,
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

/// A mounted file system.
pub struct Fs {
    node: Arc<Node>,
    store: Arc<dyn BlockStore>,
    packer: Packer,
    reader: Reader,
    pools: IoPools,
    budget: Budget,
    clock: Arc<dyn Clock>,
    config: FsConfig,
    known: KnownInodes,
    files: OpenFiles,
    counters: FsCounters,
    background: Background,
}

impl Fs {
    /// Assembles a file system from its parts and starts its background work.
    pub fn new(
        node: Arc<Node>,
        store: Arc<dyn BlockStore>,
        packer: Packer,
        reader: Reader,
        pools: IoPools,
        clock: Arc<dyn Clock>,
        config: FsConfig,
    ) -> Arc<Self> {
        let fs = Arc::new(Self {
            budget: Budget::new(config.dirty_bytes_max),
            files: OpenFiles::new(config.block_bytes),
            known: KnownInodes::default(),
            counters: FsCounters::default(),
            background: Background::default(),
            node,
            store,
            packer,
            reader,
            pools,
            clock,
            config,
        });
        fs.start_background();
        fs
    }

    /// The metadata node behind this client.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
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

    /// Inodes the kernel refers to at present.
    pub fn known_inodes(&self) -> usize {
        self.known.len()
    }

    /// Whether an object is still being written; the collector leaves it alone.
    pub fn is_open_object(&self, object: u64) -> bool {
        self.packer.is_open(object)
    }

    /// The kernel forgot `count` lookups of an inode.
    pub fn forget(&self, ino: InodeId, count: u64) {
        self.known.forgot(ino, count);
    }

    /// Asks the node. Supplementary groups are looked up only if the answer depends on them.
    fn request(self: &Arc<Self>, caller: Caller, op: Op, done: impl FnOnce(Reply) + Send + 'static) {
        if caller.uid == 0 {
            self.node.submit(Request { creds: Creds { groups: None, ..creds(caller) }, op }, Box::new(done));
            return;
        }
        let fs = self.clone();
        let again = op.clone();
        let first = Request { creds: creds(caller), op };
        self.node.submit(
            first,
            Box::new(move |reply| match reply {
                Err(Outcome::NeedGroups) => {
                    let groups = Some(supplementary_groups(caller.pid));
                    let second = Request { creds: Creds { groups, ..creds(caller) }, op: again };
                    fs.node.submit(second, Box::new(done));
                }
                reply => done(reply),
            }),
        );
    }

    /// Asks the node for something that can only be answered or fail.
    fn ask(self: &Arc<Self>, caller: Caller, op: Op, done: impl FnOnce(FsResult<Answer>) + Send + 'static) {
        self.request(caller, op, move |reply| done(plain(reply)));
    }

    /// Asks for an inode, and tells the kernel's table and the caller of it.
    fn ask_entry(self: &Arc<Self>, caller: Caller, dir: InodeId, name: Name, op: Op, done: Done<Inode>) {
        let fs = self.clone();
        self.ask(caller, op, move |answer| {
            done(answer.and_then(into_inode).map(|inode| fs.introduce(inode, Some((dir, &name)))));
        });
    }

    /// Notes that the kernel will know an inode, and shows what is not committed in its attributes.
    fn introduce(&self, mut inode: Inode, place: Option<(InodeId, &Name)>) -> Inode {
        self.known.learned(inode.ino, inode.kind, place);
        if inode.kind == Kind::File {
            self.files.overlay(&mut inode);
        }
        inode
    }

    /// Runs a job on the I/O pool. It is called in any case, with [`Turn::Late`] if it had to wait too long or the queue is
    /// full.
    fn on_pool(&self, job: impl FnOnce(Turn) + Send + 'static) {
        if let Err(job) = self.pools.wanted.try_submit(Some(Instant::now() + IO_DEADLINE), Box::new(job)) {
            job(Turn::Late);
        }
    }

    fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

fn creds(caller: Caller) -> Creds {
    Creds { uid: caller.uid, gid: caller.gid, groups: None }
}

/// An outcome that is neither answer nor failure reached a caller that cannot act on it.
fn plain(reply: Reply) -> FsResult<Answer> {
    reply.map_err(|outcome| match outcome {
        Outcome::Failed(error) => error,
        Outcome::NeedGroups => FsError::new(libc::EACCES, "the caller's groups could not be determined"),
        Outcome::Conflict(_) => FsError::new(libc::EAGAIN, "the file changed meanwhile"),
        Outcome::Symlink { .. } => {
            FsError::new(libc::ELOOP, "a symbolic link in mid-path must be resolved by the caller")
        }
    })
}

/// The error of a job that the I/O pool could not run in time.
fn too_late() -> FsError {
    FsError::new(libc::ETIMEDOUT, "the block store does not keep up: the I/O queue is full")
}

/// An answer of another type than the operation has is a defect of the node; it must not become a success.
fn unexpected(answer: &Answer) -> FsError {
    FsError::because(libc::EIO, format!("the metadata node gave an answer of the wrong type: {answer:?}"))
}

fn into_inode(answer: Answer) -> FsResult<Inode> {
    match answer {
        Answer::Inode(inode) => Ok(*inode),
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
    receive
        .recv()
        .unwrap_or_else(|_| Err(FsError::new(libc::EIO, "the operation was dropped without an answer")))
}
