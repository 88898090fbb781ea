//! What the engine's callers and its threads share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_blockstore::named::{ETag, NamedObject, NamedStore};
use kestrel_engine::elsewhere::{is_within_limits, queued_bytes};
use kestrel_engine::local_log::LoggedBatch;
use kestrel_engine::row_cache::RowCache;
use kestrel_engine::{
    BatchKind, BeforeSync, EngineError, EngineStats, Epoch, Mutation, Tap, TapGuard,
};
use kestrel_types::ids::Position;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Uuid;
use crate::health::{Health, failed, read_checked};
use crate::local::{Local, Queued};
use crate::manifest::{MANIFEST, Manifest};
use crate::tree::Tree;

/// Most bytes of a value.
const VALUE_MAX: usize = 16 << 20;
/// Most bytes of a batch: it becomes one log object.
const BATCH_BYTES_MAX: usize = 512 << 20;
/// How long a commit waits for room on the disk of a log directory.
const LOCAL_ROOM_WAIT: Duration = Duration::from_secs(5);
/// Bytes of batches for which an upload does not wait for more.
const UPLOAD_BYTES: usize = 4 << 20;
/// Most bytes of batches that wait for the store.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// The manifest as this process has written it last.
pub struct Published {
    pub manifest: Manifest,
    pub tag: ETag,
    /// One that was written and not acknowledged: it may be the manifest by now.
    pub uncertain: Option<Manifest>,
}

/// Batches that no log object has yet.
struct Queue {
    batches: VecDeque<Queued>,
    /// Age of the oldest batch under way.
    under_way: Option<Instant>,
    /// Of these.
    mutations: usize,
    /// Of these and those under way.
    bytes: usize,
    /// Newest position.
    position: Position,
    /// Newest position that may be uploaded: the local log has it durably.
    logged: Position,
    /// Up to here a caller waits for the upload.
    wanted: Position,
    /// The epoch that commits must have.
    epoch: Epoch,
    failure: Option<EngineError>,
    /// The store is full, or a quota of it.
    full: bool,
    stopping: bool,
}

/// What was done.
#[derive(Default)]
pub struct EngineCounters {
    pub commits: AtomicU64,
    pub mutations: AtomicU64,
    pub log_objects: AtomicU64,
    pub log_bytes: AtomicU64,
    pub local_syncs: AtomicU64,
    pub flushes: AtomicU64,
    pub hits: AtomicU64,
    pub reads: AtomicU64,
    /// Log objects that are in no table.
    pub live_log: AtomicU64,
}

/// See the module's header.
pub struct EngineShared {
    pub store: Arc<dyn NamedStore>,
    pub health: Arc<Health>,
    pub uuid: Uuid,
    pub node: u32,
    /// Before each name of an object: that of the node.
    pub prefix: String,
    /// How long to wait for a store that does not answer.
    pub deadline: Duration,
    pub tree: Tree,
    pub row_cache: RowCache,
    pub before_sync: BeforeSync,
    pub counters: EngineCounters,
    /// Where batches are durable before they are uploaded, if that is wanted.
    pub local: Option<Local>,
    /// How long batches may wait for more; none: they do not.
    upload_every: Option<Duration>,
    published: Mutex<Published>,
    queue: Mutex<Queue>,
    /// The queue has batches, or the engine stops.
    news: Condvar,
    /// There is room in the queue, or there will be none.
    room: Condvar,
    /// The local log has something to be synced, or the engine stops.
    appended: Condvar,
    /// The shard is another process's now, or not what it was: rows must not be read.
    lost: AtomicBool,
    confirmations: AtomicU64,
}

/// What an engine is made of.
pub struct Parts {
    pub store: Arc<dyn NamedStore>,
    pub health: Arc<Health>,
    pub uuid: Uuid,
    pub node: u32,
    pub prefix: String,
    pub deadline: Duration,
    pub tree: Tree,
    pub row_bytes: usize,
    pub before_sync: BeforeSync,
    pub published: Published,
    pub position: Position,
    pub local: Option<Local>,
    pub upload_every: Option<Duration>,
}

impl EngineShared {
    /// For rows that stand like this.
    pub fn new(parts: Parts) -> Self {
        let epoch = Epoch(parts.published.manifest.epoch);
        Self {
            store: parts.store,
            health: parts.health,
            uuid: parts.uuid,
            node: parts.node,
            prefix: parts.prefix,
            deadline: parts.deadline,
            tree: parts.tree,
            row_cache: RowCache::new(parts.position, parts.row_bytes),
            before_sync: parts.before_sync,
            counters: EngineCounters::default(),
            upload_every: parts.local.as_ref().map(|it| it.upload_every).or(parts.upload_every),
            local: parts.local,
            published: Mutex::new(parts.published),
            queue: Mutex::new(Queue {
                batches: VecDeque::new(),
                under_way: None,
                mutations: 0,
                bytes: 0,
                position: parts.position,
                logged: parts.position,
                wanted: 0,
                epoch,
                failure: None,
                full: false,
                stopping: false,
            }),
            news: Condvar::new(),
            room: Condvar::new(),
            appended: Condvar::new(),
            lost: AtomicBool::new(false),
            confirmations: AtomicU64::new(0),
        }
    }

    /// The full name of an object of this node.
    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The error of a call to the store.
    pub fn failed(&self, why: &kestrel_blockstore::error::Error) -> EngineError {
        failed(&*self.store, why)
    }

    /// The epoch that this process writes in.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.published.lock().manifest.epoch)
    }

    /// The manifest.
    pub fn manifest(&self) -> Manifest {
        self.published.lock().manifest.clone()
    }

    /// Changes the manifest. One change at a time. After an error that is neither `Fenced` nor
    /// `Refused` the change may be made or not; the next call finds out.
    ///
    /// # Errors
    /// `Fenced` if another process has claimed the rows; the store's.
    pub fn publish(&self, change: impl FnOnce(&mut Manifest)) -> Result<Manifest, EngineError> {
        let mut published = self.published.lock();
        self.settle_uncertain(&mut published)?;
        let mut next = published.manifest.clone();
        change(&mut next);
        next.revision += 1;
        let (name, bytes) = (self.name(MANIFEST), bytes::Bytes::from(next.encode()));
        match self.health.watch(|| self.store.replace(&name, bytes, &published.tag)) {
            Ok(Some(tag)) => {
                *published = Published { manifest: next.clone(), tag, uncertain: None };
                Ok(next)
            }
            // The store compares what is there with what was to be written, but an answer may have
            // been damaged on its way.
            Ok(None) => match self.read_manifest()? {
                (found, tag) if found.same_as(&next) => {
                    *published = Published { manifest: next.clone(), tag, uncertain: None };
                    Ok(next)
                }
                (found, _) => Err(self.why_replaced(&found, Epoch(published.manifest.epoch))),
            },
            Err(why) => {
                published.uncertain = Some(next);
                Err(self.failed(&why))
            }
        }
    }

    /// Finds out whether a change was made although its answer was lost. If so, readers see the
    /// tables that it names.
    fn settle_uncertain(&self, published: &mut Published) -> Result<(), EngineError> {
        let Some(uncertain) = &published.uncertain else { return Ok(()) };
        let (found, tag) = self.read_manifest()?;
        if found.same_as(uncertain) {
            let runs = self.tree.runs(&uncertain.runs);
            self.tree.change(|view| view.runs = runs);
            (published.manifest, published.tag) = (uncertain.clone(), tag);
        }
        published.uncertain = None;
        Ok(())
    }

    /// The manifest as it is in the store.
    fn read_manifest(&self) -> Result<(Manifest, ETag), EngineError> {
        let decode = |found: &NamedObject| Manifest::decode(&found.bytes);
        match read_checked(&*self.store, &self.name(MANIFEST), decode)? {
            Some((manifest, object)) => Ok((manifest, object.tag)),
            None => Err(self.changed("the manifest is gone")),
        }
    }

    /// Why something of this process is not what it was in the store.
    pub fn superseded(&self, held: Epoch) -> EngineError {
        match self.read_manifest() {
            Ok((found, _)) => self.why_replaced(&found, held),
            Err(why) => why,
        }
    }

    fn why_replaced(&self, found: &Manifest, held: Epoch) -> EngineError {
        if found.epoch > held.0 {
            return EngineError::Fenced { held, current: Epoch(found.epoch) };
        }
        self.changed("what this process wrote is not what is there")
    }

    fn changed(&self, why: &str) -> EngineError {
        EngineError::Refused(format!(
            "metadata in a bucket: {}: {why}: objects were changed or an older state of the bucket \
             was brought back. Nothing more is written there. End this process, check with \
             `kestrel fsck`, and go on from a copy of the bucket or a dump of the volume",
            self.store.shown()
        ))
    }

    /// [`kestrel_engine::Engine::commit`] by a holder of `epoch`.
    ///
    /// # Errors
    /// As that has them.
    pub fn commit(
        &self,
        epoch: Epoch,
        kind: BatchKind,
        mutations: Vec<Mutation>,
    ) -> Result<Position, EngineError> {
        let bytes = queued_bytes(&mutations);
        if !is_within_limits(&mutations, VALUE_MAX) || bytes > BATCH_BYTES_MAX {
            return Err(EngineError::Io(
                "metadata engine: a batch, key or value is above its limit".into(),
            ));
        }
        let count = mutations.len() as u64;
        let until = Instant::now() + self.deadline;
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
            if queue.bytes <= self.local.as_ref().map_or(QUEUE_BYTES_MAX, |it| it.backlog_max) {
                match self.append(&mut queue, kind, &mutations) {
                    Ok(true) => break,
                    Ok(false) => continue,
                    Err(why @ EngineError::NoSpace) => return Err(why),
                    Err(why) => {
                        drop(queue);
                        self.fail(why.clone());
                        return Err(why);
                    }
                }
            }
            if self.room.wait_until(&mut queue, until).timed_out() {
                return Err(EngineError::Io(format!(
                    "metadata in a bucket: too many changes wait for {}; see that it answers and \
                     is fast enough, and try again",
                    self.store.shown()
                )));
            }
        }
        let position = self.enqueue(&mut queue, mutations);
        drop(queue);
        self.news.notify_one();
        self.appended.notify_one();
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.mutations.fetch_add(count, Ordering::Relaxed);
        Ok(position)
    }

    /// Appends a batch to the local log, if there is one. False: its disk was full, something has
    /// been uploaded since, and it may be tried again.
    fn append(
        &self,
        queue: &mut MutexGuard<'_, Queue>,
        kind: BatchKind,
        mutations: &[Mutation],
    ) -> Result<bool, EngineError> {
        let Some(local) = &self.local else { return Ok(true) };
        match local.log.append(kind, mutations) {
            Ok(position) if position == queue.position + 1 => Ok(true),
            Ok(position) => Err(EngineError::Io(format!(
                "log directory: a batch has position {position} there, and follows {}",
                queue.position
            ))),
            // What is uploaded makes room.
            Err(EngineError::NoSpace) if queue.bytes > 0 => {
                let stored = self.row_cache.stored_position();
                queue.wanted = queue.position;
                self.news.notify_all();
                self.room.wait_for(queue, LOCAL_ROOM_WAIT);
                match self.row_cache.stored_position() > stored || queue.failure.is_some() {
                    true => Ok(false),
                    false => Err(EngineError::NoSpace),
                }
            }
            Err(why) => Err(why),
        }
    }

    /// Applies a batch and queues it for the store.
    fn enqueue(&self, queue: &mut Queue, mutations: Vec<Mutation>) -> Position {
        queue.position += 1;
        queue.bytes += queued_bytes(&mutations);
        queue.mutations += mutations.len();
        let position = queue.position;
        self.row_cache.apply(position, &mutations);
        queue.batches.push_back(Queued { position, mutations, at: Instant::now() });
        if self.local.is_none() {
            queue.logged = position;
        }
        position
    }

    /// Takes in batches of the local log that the bucket does not have; they follow what it has.
    pub fn take_in(&self, batches: Vec<LoggedBatch>) {
        let mut queue = self.queue.lock();
        for batch in batches {
            self.enqueue(&mut queue, batch.mutations);
        }
    }

    /// Waits until the local log has something that is not synced. False: it has not, and will not
    /// have.
    pub fn wait_appended(&self, local: &Local) -> bool {
        let mut queue = self.queue.lock();
        while queue.failure.is_none() {
            if local.log.position() > queue.logged {
                return true;
            }
            if queue.stopping {
                return false;
            }
            self.appended.wait(&mut queue);
        }
        false
    }

    /// The local log has everything up to `position`, durably: it is acknowledged, unless this
    /// process has lost the rows meanwhile.
    pub fn logged(&self, position: Position) {
        {
            let mut queue = self.queue.lock();
            if queue.failure.is_some() {
                return;
            }
            queue.logged = position;
        }
        self.counters.local_syncs.fetch_add(1, Ordering::Relaxed);
        self.row_cache.logged(position);
        self.news.notify_one();
    }

    /// [`kestrel_engine::Engine::upload`].
    ///
    /// # Errors
    /// As that has them.
    pub fn upload(&self, position: Position) -> Result<(), EngineError> {
        let Some(local) = &self.local else { return Ok(()) };
        let until = Instant::now() + self.deadline;
        let mut queue = self.queue.lock();
        let target = position.min(queue.position);
        queue.wanted = queue.wanted.max(target);
        self.news.notify_all();
        while self.row_cache.stored_position() < target {
            if let Some(why) = &queue.failure {
                return Err(why.clone());
            }
            if self.room.wait_until(&mut queue, until).timed_out() {
                return Err(EngineError::Io(format!(
                    "metadata in a bucket: {} bytes of changes are not in {} yet, which does not \
                     take them; they are kept in {}, and the next mount on this machine uploads \
                     them",
                    queue.bytes,
                    self.store.shown(),
                    local.dir.lock().path().display()
                )));
            }
        }
        Ok(())
    }

    /// A caller waits until everything up to `position` is durable.
    pub fn want(&self, position: Position) {
        if self.local.is_some() || self.upload_every.is_none() {
            // It is on its way.
            return;
        }
        let mut queue = self.queue.lock();
        queue.wanted = queue.wanted.max(position.min(queue.position));
        drop(queue);
        self.news.notify_one();
    }

    /// Newest position, durable or not.
    pub fn appended(&self) -> Position {
        self.queue.lock().position
    }

    /// Waits for batches and takes them out of the queue, in order, up to about so many bytes.
    /// `None`: there are none, and the engine stops.
    ///
    /// The callers that have just got their answers, for so many mutations, are likely to commit
    /// again: with what has come before that they make one object, if they do so within `linger`.
    /// Otherwise callers would fall into two groups that take turns, with twice the objects.
    pub fn take(
        &self,
        bytes_max: usize,
        (answered, linger): (usize, Duration),
    ) -> Option<Vec<Queued>> {
        let mut queue = self.queue.lock();
        let expected = answered + queue.mutations;
        let until = Instant::now() + linger;
        while !self.is_due(&queue) {
            let is_over = queue.stopping && queue.batches.is_empty();
            if is_over || queue.failure.is_some() {
                return None;
            }
            match (self.upload_every, queue.batches.front()) {
                (Some(every), Some(first)) if first.position <= queue.logged => {
                    let due = first.at + every;
                    self.news.wait_until(&mut queue, due);
                }
                _ => self.news.wait(&mut queue),
            }
        }
        while self.upload_every.is_none()
            && queue.mutations < expected
            && queue.bytes < bytes_max
            && !queue.stopping
            && !self.news.wait_until(&mut queue, until).timed_out()
        {}
        let (mut taken, mut bytes) = (Vec::new(), 0);
        let logged = queue.logged;
        while bytes < bytes_max
            && queue.batches.front().is_some_and(|batch| batch.position <= logged)
            && let Some(batch) = queue.batches.pop_front()
        {
            bytes += queued_bytes(&batch.mutations);
            queue.mutations -= batch.mutations.len();
            queue.under_way.get_or_insert(batch.at);
            taken.push(batch);
        }
        Some(taken)
    }

    /// Whether there are batches that are to go to the store now.
    fn is_due(&self, queue: &Queue) -> bool {
        let Some(first) = queue.batches.front().filter(|it| it.position <= queue.logged) else {
            return false;
        };
        let Some(every) = self.upload_every else { return true };
        queue.stopping
            || queue.wanted >= first.position
            || queue.bytes >= UPLOAD_BYTES
            || first.at.elapsed() >= every
    }

    /// The store has everything up to `position`; the last object was of so many queued bytes.
    pub fn stored(&self, position: Position, bytes: usize) {
        if let Some(local) = &self.local {
            if let Err(why) = local.log.retire(position) {
                // Opening the log finds in the bucket what has been uploaded.
                log::warn!("log directory: {why}; tried again after the next upload");
            }
            local.dir.lock().uploaded();
        }
        // Before the lock: a caller that waits for this looks while it has the lock.
        self.row_cache.stored(position);
        {
            let mut queue = self.queue.lock();
            queue.bytes = queue.bytes.saturating_sub(bytes);
            queue.full = false;
            queue.under_way = None;
        }
        self.room.notify_all();
    }

    /// The store takes nothing, being full. Whether the rows are still this process's it is asked.
    pub fn set_full(&self) {
        self.queue.lock().full = true;
        self.room.notify_all();
        let held = self.epoch();
        if self.read_manifest().is_ok_and(|(found, _)| found.epoch == held.0) {
            self.confirmations.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// [`kestrel_engine::Engine::confirmations`].
    pub fn confirmations(&self) -> u64 {
        self.confirmations.load(Ordering::SeqCst)
    }

    /// Begins to close: what is queued still goes.
    pub fn stop(&self) {
        self.queue.lock().stopping = true;
        self.news.notify_all();
        self.appended.notify_all();
    }

    /// Whether the engine is being closed.
    pub fn is_stopping(&self) -> bool {
        self.queue.lock().stopping
    }

    /// Whether nothing more will be written.
    pub fn has_failed(&self) -> bool {
        self.queue.lock().failure.is_some()
    }

    /// Whether this process may still say that batches of its local log are safe.
    ///
    /// # Errors
    /// Why not: it has lost the rows, say, and the volume goes on without these batches.
    pub fn acknowledges(&self) -> Result<(), EngineError> {
        let failure = || self.queue.lock().failure.clone();
        self.local.as_ref().and_then(|_| failure()).map_or(Ok(()), Err)
    }

    /// Nothing more will be written.
    pub fn fail(&self, why: EngineError) {
        let mut queue = self.queue.lock();
        if queue.failure.is_none() {
            log::error!("{why}");
        }
        if let EngineError::Fenced { .. } | EngineError::Refused(_) =
            queue.failure.get_or_insert(why.clone())
        {
            self.lost.store(true, Ordering::SeqCst);
        }
        drop(queue);
        self.room.notify_all();
        self.news.notify_all();
        self.appended.notify_all();
        self.row_cache.failed(why);
    }

    /// Whether rows may still be read.
    ///
    /// # Errors
    /// `Fenced` or `Refused`, if that has happened.
    pub fn readable(&self) -> Result<(), EngineError> {
        if !self.lost.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.queue.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// Begins a new epoch: commits of earlier holders are refused from now on.
    ///
    /// # Errors
    /// As for [`EngineShared::publish`]; then commits of the present holder go on.
    pub fn begin_epoch(&self) -> Result<Epoch, EngineError> {
        let next = {
            let mut queue = self.queue.lock();
            queue.epoch.0 += 1;
            queue.epoch
        };
        match self.publish(|manifest| manifest.epoch = next.0) {
            Ok(_) => Ok(next),
            Err(why) => {
                self.queue.lock().epoch = Epoch(next.0 - 1);
                if let EngineError::Fenced { .. } | EngineError::Refused(_) = &why {
                    self.fail(why.clone());
                }
                Err(why)
            }
        }
    }

    /// [`kestrel_engine::Engine::tap`]: no batch is applied meanwhile.
    pub fn tap(&self, tap: Tap) -> TapGuard {
        let _queue = self.queue.lock();
        self.row_cache.tap(tap)
    }

    /// Bytes that have yet to be uploaded, and the age of the oldest, milliseconds.
    fn backlog(&self) -> (u64, u64) {
        if self.local.is_none() {
            return (0, 0);
        }
        let queue = self.queue.lock();
        let oldest = queue.under_way.or_else(|| queue.batches.front().map(|first| first.at));
        let age = oldest.map_or(0, |at| at.elapsed().as_millis());
        (queue.bytes as u64, u64::try_from(age).unwrap_or(u64::MAX))
    }

    /// [`kestrel_engine::Engine::stats`].
    pub fn stats(&self) -> EngineStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let EngineCounters {
            commits,
            mutations,
            log_objects,
            log_bytes,
            local_syncs,
            flushes,
            hits,
            reads,
            ..
        } = &self.counters;
        let view = self.tree.view();
        let memtables = std::iter::once(&view.active).chain(&view.frozen);
        let dirty: u64 = memtables.map(|memtable| memtable.bytes() as u64).sum();
        let tables = view.runs.iter().flat_map(|run| run.iter());
        let memory = self.row_cache.stats();
        let (backlog_bytes, backlog_age_ms) = self.backlog();
        let syncs = if self.local.is_some() { local_syncs } else { log_objects };
        EngineStats {
            commits: load(commits),
            mutations: load(mutations),
            log_bytes: load(log_bytes),
            syncs: load(syncs),
            log_disk_bytes: self.local.as_ref().map_or(0, |local| local.log.disk_bytes()),
            backlog_bytes,
            backlog_age_ms,
            uploads_behind: self.local.is_some(),
            memory_hits: load(hits),
            run_reads: load(reads),
            memory_bytes: memory.memory_bytes + dirty,
            dirty_bytes: dirty,
            run_disk_bytes: tables.map(|table| table.record.bytes).sum(),
            flushes: load(flushes),
            ..memory
        }
    }
}
