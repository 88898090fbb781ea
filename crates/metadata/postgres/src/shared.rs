//! What the engine's callers and its sender share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use kestrel_engine::elsewhere::{is_within_limits, queued_bytes};
use kestrel_engine::row_cache::RowCache;
use kestrel_engine::{BatchKind, BeforeSync, EngineError, EngineStats, Epoch, Mutation};
use kestrel_types::ids::Position;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::health::DatabaseHealth;
use crate::schema::{ShardRecord, Texts};
use crate::session::Session;
use crate::url::PgUrl;

/// Connections for reads.
const READERS: usize = 4;
/// Most bytes of a value.
const VALUE_MAX: usize = 16 << 20;
/// See the module's header.
pub struct EngineShared {
    pub url: PgUrl,
    pub shard: i32,
    pub texts: Texts,
    pub row_cache: RowCache,
    pub before_sync: BeforeSync,
    pub readers: [tokio::sync::Mutex<Option<Arc<Session>>>; READERS],
    reader: AtomicUsize,
    queue: Mutex<Queue>,
    /// There is room in the queue, or there will be none.
    room: Condvar,
    /// The queue has batches, or the engine stops.
    pub news: Notify,
    queue_bytes_max: usize,
    epoch: AtomicU64,
    /// A claim of this process is under way.
    claiming: AtomicBool,
    generation: AtomicU64,
    stopping: AtomicBool,
    /// The shard is another process's now, or not what it was: rows in memory must not be used.
    lost: AtomicBool,
    pub health: DatabaseHealth,
    confirmations: AtomicU64,
    pub counters: Counters,
}

/// Batches that no transaction has yet.
struct Queue {
    batches: VecDeque<(Position, Vec<Mutation>)>,
    /// Of these and those under way.
    bytes: usize,
    /// Newest position.
    position: Position,
    /// The epoch that commits must have.
    epoch: Epoch,
    failure: Option<EngineError>,
    /// The database's disk is full.
    full: bool,
}

/// What was done.
#[derive(Default)]
pub struct Counters {
    pub commits: AtomicU64,
    pub mutations: AtomicU64,
    pub bytes: AtomicU64,
    pub transactions: AtomicU64,
    pub hits: AtomicU64,
    pub reads: AtomicU64,
}

impl Counters {
    /// Counts rows that memory knew and rows that it did not.
    pub fn count_reads(&self, hits: usize, reads: usize) {
        self.hits.fetch_add(hits as u64, Ordering::Relaxed);
        self.reads.fetch_add(reads as u64, Ordering::Relaxed);
    }
}

impl EngineShared {
    /// For a shard that stands like this.
    pub fn new(
        (url, shard): (PgUrl, i32),
        fence: ShardRecord,
        (row_bytes, queue_bytes_max): (usize, usize),
        before_sync: BeforeSync,
    ) -> Self {
        let texts = Texts::new(&url.schema);
        Self {
            texts,
            url,
            shard,
            row_cache: RowCache::new(fence.position, row_bytes),
            before_sync,
            readers: Default::default(),
            reader: AtomicUsize::new(0),
            queue: Mutex::new(Queue {
                batches: VecDeque::new(),
                bytes: 0,
                position: fence.position,
                epoch: fence.epoch,
                failure: None,
                full: false,
            }),
            room: Condvar::new(),
            news: Notify::new(),
            queue_bytes_max,
            epoch: AtomicU64::new(fence.epoch.0),
            claiming: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            health: DatabaseHealth::default(),
            confirmations: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// The newest epoch that this process has begun.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    /// Counts databases that were taken for the primary: readers go where the sender went.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// The sender has lost its connection.
    pub fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Which of the connections for reads is next.
    pub fn next_reader(&self) -> usize {
        self.reader.fetch_add(1, Ordering::Relaxed) % READERS
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

    /// Whether a shard with this record is the one that this engine has written; `durable` is the
    /// position from before the record was read.
    ///
    /// # Errors
    /// `Fenced` if another process has claimed it, `Refused` if it has forgotten something.
    pub fn expects(&self, fence: ShardRecord, durable: Position) -> Result<(), EngineError> {
        // In this order: a claim that ends meanwhile has stored its epoch before.
        let claiming = self.claiming.load(Ordering::SeqCst);
        let held = self.epoch();
        let own = claiming && fence.epoch.0 == held.0 + 1;
        if fence.epoch > held && !own {
            return Err(EngineError::Fenced { held, current: fence.epoch });
        }
        if fence.position < durable || fence.epoch < held {
            return Err(EngineError::Refused(format!(
                "metadata in PostgreSQL: {} has lost changes that were acknowledged as durable: it \
                 stands at batch {} of epoch {}, and had {} \
                 of epoch {}. A standby was promoted that had not received everything, or a backup \
                 was restored. Nothing more is written \
                 there. Bring back the database that has them, or unmount, check with `kestrel \
                 fsck`, and go on without them",
                self.url.shown(),
                fence.position,
                fence.epoch,
                durable,
                held
            )));
        }
        Ok(())
    }

    /// [`kestrel_engine::Engine::commit`] by a holder of `epoch`.
    pub fn commit(
        &self,
        epoch: Epoch,
        kind: BatchKind,
        mutations: Vec<Mutation>,
    ) -> Result<Position, EngineError> {
        if !is_within_limits(&mutations, VALUE_MAX) {
            return Err(EngineError::Io(
                "metadata engine: a batch, key or value is above its limit".into(),
            ));
        }
        let bytes = queued_bytes(&mutations);
        let count = mutations.len() as u64;
        let until = Instant::now() + self.url.deadline;
        let mut queue = self.queue.lock();
        loop {
            if let Some(why) = &queue.failure {
                return Err(why.clone());
            }
            if epoch != queue.epoch {
                return Err(EngineError::Fenced { held: epoch, current: queue.epoch });
            }
            if queue.full && kind == BatchKind::Growing {
                return Err(EngineError::NoSpace);
            }
            if queue.bytes <= self.queue_bytes_max {
                break;
            }
            if self.room.wait_until(&mut queue, until).timed_out() {
                return Err(EngineError::Io(
                    "metadata in PostgreSQL: too many changes wait for the database; see that it \
                     runs and is fast enough, and try again"
                        .into(),
                ));
            }
        }
        queue.position += 1;
        queue.bytes += bytes;
        let position = queue.position;
        self.row_cache.apply(position, &mutations);
        queue.batches.push_back((position, mutations));
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

    /// Takes up to about so many mutations and bytes out of the queue, in order.
    pub fn take(&self, mutations_max: usize, bytes_max: usize) -> Vec<(Position, Vec<Mutation>)> {
        let mut queue = self.queue.lock();
        let (mut taken, mut mutations, mut bytes) = (Vec::new(), 0, 0);
        while mutations < mutations_max
            && bytes < bytes_max
            && let Some(batch) = queue.batches.pop_front()
        {
            mutations += batch.1.len();
            bytes += queued_bytes(&batch.1);
            taken.push(batch);
        }
        taken
    }

    /// The database has everything up to `position`; the last transaction was of so many bytes.
    pub fn stored(&self, position: Position, bytes: usize) {
        {
            let mut queue = self.queue.lock();
            queue.bytes = queue.bytes.saturating_sub(bytes);
            queue.full = false;
        }
        self.room.notify_all();
        self.counters.transactions.fetch_add(1, Ordering::Relaxed);
        self.row_cache.stored(position);
    }

    /// Bytes of batches, as the queue counts them.
    pub fn weigh(batches: &[(Position, Vec<Mutation>)]) -> usize {
        batches.iter().map(|(_, mutations)| queued_bytes(mutations)).sum()
    }

    /// The database's disk is full.
    pub fn set_full(&self) {
        self.queue.lock().full = true;
        self.room.notify_all();
    }

    /// The database, which is full, has confirmed that the shard is this process's.
    pub fn confirmed(&self) {
        self.confirmations.fetch_add(1, Ordering::SeqCst);
    }

    /// [`kestrel_engine::Engine::confirmations`].
    pub fn confirmations(&self) -> u64 {
        self.confirmations.load(Ordering::SeqCst)
    }

    /// Nothing more will be written.
    pub fn fail(&self, why: EngineError) {
        self.health.ends();
        let mut queue = self.queue.lock();
        if let EngineError::Fenced { .. } | EngineError::Refused(_) =
            queue.failure.get_or_insert(why.clone())
        {
            self.lost.store(true, Ordering::SeqCst);
        }
        drop(queue);
        self.room.notify_all();
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

    /// Takes no commits until [`EngineShared::claimed`]: those of earlier holders are refused
    /// already, and none of the new ones is queued.
    pub fn begin_claim(&self) {
        self.claiming.store(true, Ordering::SeqCst);
        let mut queue = self.queue.lock();
        queue.epoch.0 += 1;
    }

    /// The claim is over; it began this epoch, or failed.
    pub fn claimed(&self, epoch: Option<Epoch>) {
        let mut queue = self.queue.lock();
        let epoch = epoch.unwrap_or(Epoch(queue.epoch.0 - 1));
        queue.epoch = epoch;
        self.epoch.store(epoch.0, Ordering::SeqCst);
        self.claiming.store(false, Ordering::SeqCst);
    }

    /// [`kestrel_engine::Engine::tap`]: no batch is applied meanwhile.
    pub fn tap(&self, tap: kestrel_engine::Tap) -> kestrel_engine::TapGuard {
        let _still = self.queue.lock();
        self.row_cache.tap(tap)
    }

    /// [`kestrel_engine::Engine::stats`].
    pub fn stats(&self) -> EngineStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EngineStats {
            commits: load(&self.counters.commits),
            mutations: load(&self.counters.mutations),
            log_bytes: load(&self.counters.bytes),
            syncs: load(&self.counters.transactions),
            memory_hits: load(&self.counters.hits),
            run_reads: load(&self.counters.reads),
            ..self.row_cache.stats()
        }
    }
}
