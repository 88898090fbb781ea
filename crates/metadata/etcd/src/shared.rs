//! What the engine's callers and its sender share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use kestrel_engine::elsewhere::{is_within_limits, queued_bytes};
use kestrel_engine::row_cache::RowCache;
use kestrel_engine::{
    BatchKind, BeforeSync, EngineError, EngineStats, Epoch, Mutation, Tap, TapGuard,
};
use kestrel_types::ids::Position;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::{Client, io};
use crate::mirror::Mirror;
use crate::store::{self, Shard, ShardRecord};

/// Most bytes of rows that a shard may have: etcd is for what is small, and all of it is read when
/// a shard is opened.
pub const SHARD_BYTES_MAX: usize = 16 << 20;
/// Most bytes of batches that wait for etcd, what frees among them.
const QUEUE_BYTES_MAX: usize = 24 << 20;
/// Memory for rows beside those that etcd has, bytes.
const ROW_BYTES: usize = 1 << 20;
/// See the module's header.
pub struct EngineShared {
    pub client: Arc<Client>,
    pub shard: Shard,
    pub row_cache: RowCache,
    pub mirror: Mirror,
    pub before_sync: BeforeSync,
    queue: Mutex<Queue>,
    /// The queue has something, or the engine stops.
    pub news: Notify,
    /// Nothing is written any more: this process lets go of the shard.
    pub over: Notify,
    stopping: AtomicBool,
    /// The shard is another process's now, or not what it was: rows in memory must not be used.
    lost: AtomicBool,
    pub counters: Counters,
}

/// What the sender has to do.
pub enum Work {
    /// To write these, which are so many bytes as the queue counts them.
    Write(Vec<(Position, Vec<Mutation>)>, usize),
    /// To begin the next epoch, and say so.
    Claim(SyncSender<Result<Epoch, EngineError>>),
}

enum Item {
    Batch(Position, Vec<Mutation>),
    Claim(SyncSender<Result<Epoch, EngineError>>),
}

struct Queue {
    items: VecDeque<Item>,
    /// Of batches here and with the sender.
    bytes: usize,
    /// Newest position.
    position: Position,
    /// The epoch that commits must have.
    epoch: Epoch,
    failure: Option<EngineError>,
    /// etcd is full.
    full: bool,
}

/// What was done.
#[derive(Default)]
pub struct Counters {
    pub commits: AtomicU64,
    pub mutations: AtomicU64,
    pub bytes: AtomicU64,
    pub transactions: AtomicU64,
    pub reads: AtomicU64,
}

impl EngineShared {
    /// For a shard that stands like this, and has these rows.
    pub fn new(
        client: Arc<Client>,
        shard: Shard,
        fence: ShardRecord,
        mirror: Mirror,
        before_sync: BeforeSync,
    ) -> Self {
        Self {
            client,
            shard,
            row_cache: RowCache::new(fence.position, ROW_BYTES),
            mirror,
            before_sync,
            queue: Mutex::new(Queue {
                items: VecDeque::new(),
                bytes: 0,
                position: fence.position,
                epoch: fence.epoch,
                failure: None,
                full: false,
            }),
            news: Notify::new(),
            over: Notify::new(),
            stopping: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    /// Whether the engine is being closed.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Begins to close: what is queued still goes.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.news.notify_one();
    }

    /// [`kestrel_engine::Engine::commit`] by a holder of `epoch`.
    pub fn commit(
        &self,
        epoch: Epoch,
        kind: BatchKind,
        mutations: Vec<Mutation>,
    ) -> Result<Position, EngineError> {
        let bytes = queued_bytes(&mutations);
        if bytes > QUEUE_BYTES_MAX || !is_within_limits(&mutations, store::BYTES_MAX) {
            return Err(io("a batch, key or value is above its limit"));
        }
        let count = mutations.len() as u64;
        let mut queue = self.queue.lock();
        if let Some(why) = &queue.failure {
            return Err(why.clone());
        }
        if epoch != queue.epoch {
            return Err(EngineError::Fenced { held: epoch, current: queue.epoch });
        }
        let is_above = self.mirror.bytes() + queue.bytes + bytes > SHARD_BYTES_MAX;
        if kind == BatchKind::Growing && (is_above || queue.full) {
            if is_above {
                log::error!(
                    "metadata in etcd: the rows of node {} would grow above {} MiB, which is more \
                     than belongs there",
                    self.shard.number,
                    SHARD_BYTES_MAX >> 20
                );
            }
            return Err(EngineError::NoSpace);
        }
        if queue.bytes + bytes > QUEUE_BYTES_MAX {
            return Err(io("too many changes wait for etcd; see that it runs, and try again"));
        }
        queue.position += 1;
        queue.bytes += bytes;
        let position = queue.position;
        self.row_cache.apply(position, &mutations);
        queue.items.push_back(Item::Batch(position, mutations));
        drop(queue);
        self.news.notify_one();
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.mutations.fetch_add(count, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(position)
    }

    /// Newest position, durable or not.
    pub fn appended(&self) -> Position {
        self.queue.lock().position
    }

    /// Takes what is next: batches that fit in one transaction, or a single one that does not.
    pub fn next(&self) -> Option<Work> {
        let mut queue = self.queue.lock();
        let (mut batches, mut rows, mut bytes) = (Vec::new(), 0, 0);
        loop {
            match queue.items.pop_front() {
                Some(Item::Batch(position, mutations)) => {
                    let more = queued_bytes(&mutations);
                    let fits = rows + mutations.len() <= store::ROWS_MAX
                        && bytes + more <= store::BYTES_MAX;
                    if !batches.is_empty() && !fits {
                        queue.items.push_front(Item::Batch(position, mutations));
                        break;
                    }
                    rows += mutations.len();
                    bytes += more;
                    batches.push((position, mutations));
                }
                Some(Item::Claim(reply)) if batches.is_empty() => return Some(Work::Claim(reply)),
                Some(claim @ Item::Claim(_)) => {
                    queue.items.push_front(claim);
                    break;
                }
                None => break,
            }
        }
        (!batches.is_empty()).then_some(Work::Write(batches, bytes))
    }

    /// etcd has everything up to `position`, of which the last transaction was so many bytes.
    pub fn stored(&self, position: Position, bytes: usize) {
        {
            let mut queue = self.queue.lock();
            queue.bytes = queue.bytes.saturating_sub(bytes);
            queue.full = false;
        }
        self.counters.transactions.fetch_add(1, Ordering::Relaxed);
        self.row_cache.stored(position);
    }

    /// etcd is full.
    pub fn set_full(&self) {
        self.queue.lock().full = true;
    }

    /// Nothing more will be written.
    pub fn fail(&self, why: EngineError) {
        let mut queue = self.queue.lock();
        let failure = queue.failure.get_or_insert(why.clone());
        if let EngineError::Fenced { .. } | EngineError::Refused(_) = failure {
            self.lost.store(true, Ordering::SeqCst);
        }
        let dropped = std::mem::take(&mut queue.items);
        drop(queue);
        for item in dropped {
            if let Item::Claim(reply) = item {
                // The receiver is there: it waits for this.
                let _ = reply.send(Err(why.clone()));
            }
        }
        self.over.notify_one();
        self.row_cache.failed(why);
    }

    /// Whether rows may still be read.
    ///
    /// # Errors
    /// `Fenced` or `Refused`, if that has happened to the shard.
    pub fn readable(&self) -> Result<(), EngineError> {
        if !self.lost.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.queue.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// Claims the next epoch, behind what is committed. Takes no commits until that is done: those
    /// of earlier holders are refused already, and none of the new ones is queued.
    ///
    /// # Errors
    /// Why nothing is written any more.
    pub fn begin_claim(
        &self,
        reply: SyncSender<Result<Epoch, EngineError>>,
    ) -> Result<(), EngineError> {
        let mut queue = self.queue.lock();
        if let Some(why) = &queue.failure {
            return Err(why.clone());
        }
        queue.epoch.0 += 1;
        queue.items.push_back(Item::Claim(reply));
        drop(queue);
        self.news.notify_one();
        Ok(())
    }

    /// The claim failed.
    pub fn unclaimed(&self) {
        self.queue.lock().epoch.0 -= 1;
    }

    /// [`kestrel_engine::Engine::tap`]: no batch is applied meanwhile.
    pub fn tap(&self, tap: Tap) -> TapGuard {
        let _still = self.queue.lock();
        self.row_cache.tap(tap)
    }

    /// [`kestrel_engine::Engine::stats`].
    pub fn stats(&self) -> EngineStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let row_cache = self.row_cache.stats();
        EngineStats {
            commits: load(&self.counters.commits),
            mutations: load(&self.counters.mutations),
            log_bytes: load(&self.counters.bytes),
            syncs: load(&self.counters.transactions),
            memory_hits: load(&self.counters.reads),
            memory_bytes: row_cache.memory_bytes + self.mirror.bytes() as u64,
            ..row_cache
        }
    }
}
