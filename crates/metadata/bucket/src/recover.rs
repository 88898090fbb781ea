//! Opening the rows of a node: the claim, and what of the log is in no table.
//!
//! 1. The manifest is read, and replaced by one of the next epoch: an earlier process cannot change
//!    it any more.
//! 2. The log is read from where the manifest says, several objects at a time, up to the first that
//!    is missing. There must be no later one.
//! 3. A fence is made in its place. If that fails an earlier process was faster: its object is
//!    read, and the next place tried. Once the fence is there an earlier process can add nothing:
//!    it makes one object at a time, and its next one has the fence's number.
//!
//! An opening that was cut off leaves a fence, too: objects without rows are taken for fences.
//!
//! If the process of an epoch did not end as it was told to, the fences after it stay for ever: the
//! process may be stopped, and go on after years. A fence is an object of 77 bytes.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kestrel_blockstore::named::{NamedObject, NamedStore, encrypted_volume};
use kestrel_engine::embedded::Verify;
use kestrel_engine::local_log::{LocalLog, LoggedBatch};
use kestrel_engine::{BeforeSync, EngineError, Epoch};
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::crash;
use kestrel_types::hex::from_hex;

use crate::flusher::{FlushLimits, Flusher};
use crate::health::{Health, failed, read_checked};
use crate::holder::{self, HOLDER, Holder, Stopper};
use crate::local::Local;
use crate::local_sync;
use crate::log::{LogRecord, RowChanges, name, number_of, read_window};
use crate::log_dir::{LogDir, LogDirOptions};
use crate::manifest::{MANIFEST, Manifest};
use crate::sender::Sender;
use crate::shared::{EngineShared, Parts, Published};
use crate::table::TableIdentity;
use crate::tree::layer::Layer;
use crate::tree::{MemTable, Tree};
use crate::url::{BucketUrl, ROOT, prefix_of};
use crate::{BucketEngine, BucketOptions, Threads, Uuid};

/// Log objects that are read at a time.
pub const READ_AHEAD: usize = 32;

/// Bytes of memtables: a part of memory, and at most this.
const MEMTABLE_BYTES_MAX: u64 = 32 << 20;
const MEMTABLE_BYTES_MIN: u64 = 64 << 10;

/// Cache of the blocks that a look without a claim reads.
const PEEK_CACHE_BYTES: u64 = 4 << 20;

/// Least bytes of batches in a log directory that wait for the store before commits wait.
const BACKLOG_BYTES_MIN: usize = 64 << 20;

/// Longest wait for a process that has let go of its volume and is still ending, and the pause
/// between two looks.
const HOLDER_WAIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

fn read_manifest(
    store: &dyn NamedStore,
    prefix: &str,
) -> Result<Option<(Manifest, NamedObject)>, EngineError> {
    let decode = |found: &NamedObject| Manifest::decode(&found.bytes);
    read_checked(store, &format!("{prefix}{MANIFEST}"), decode)
}

/// The rows of a node are not there.
pub fn not_there(store: &dyn NamedStore, node: u32) -> EngineError {
    EngineError::Refused(format!(
        "metadata in a bucket: {} has no metadata of node {node}: another bucket or prefix is \
         meant, or it was removed",
        store.shown()
    ))
}

/// See [`BucketEngine::create`].
pub fn create(url: &BucketUrl, uuid: &Uuid, node: u32, joins: bool) -> Result<(), EngineError> {
    let store = url.open(true)?;
    create_in(&*store, uuid, node, joins)
}

pub fn create_in(
    store: &dyn NamedStore,
    uuid: &Uuid,
    node: u32,
    joins: bool,
) -> Result<(), EngineError> {
    let mut has_others = false;
    for other in nodes_in(store)?.1 {
        if let Some((found, _)) = read_manifest(store, &prefix_of(other))? {
            found.check(uuid, other, store.shown())?;
            has_others = true;
        }
    }
    if joins && !has_others {
        return Err(EngineError::Refused(format!(
            "metadata in a bucket: {} has no metadata of the volume: another bucket or prefix is \
             meant",
            store.shown()
        )));
    }
    let prefix = prefix_of(node);
    let new = Manifest::new(uuid, node);
    let made = store.create(&format!("{prefix}{MANIFEST}"), new.encode().into());
    if made.map_err(|why| failed(store, &why))? {
        return Ok(());
    }
    let (found, _) = read_manifest(store, &prefix)?.ok_or_else(|| not_there(store, node))?;
    found.check(uuid, node, store.shown())
}

/// All objects of the rows of nodes, and the nodes that have some. The volume's descriptor is not
/// among them.
fn nodes_in(store: &dyn NamedStore) -> Result<(Vec<String>, BTreeSet<u32>), EngineError> {
    let listed = store.list(ROOT).map_err(|why| failed(store, &why))?;
    let of_node = |name: &str| name.strip_prefix(ROOT)?.split_once('/')?.0.parse::<u32>().ok();
    let listed = listed.into_iter().map(|(name, _)| name);
    let (names, nodes) = listed.filter_map(|name| of_node(&name).map(|node| (name, node))).unzip();
    Ok((names, nodes))
}

/// See [`BucketEngine::remove`].
pub fn remove(url: &BucketUrl, uuid: &Uuid) -> Result<(), EngineError> {
    // Keys may be gone, or those of another volume.
    let store = url.open_stored(false)?;
    let store = &*store;
    let (listed, nodes) = nodes_in(store)?;
    for node in nodes {
        match is_volume(store, uuid, node)? {
            None => continue,
            Some(false) => return Ok(()),
            Some(true) => {}
        }
        if let Some(holder) = holder_in(store, node)? {
            return Err(EngineError::Refused(format!(
                "metadata in a bucket: {holder} has the volume open"
            )));
        }
    }
    // The manifests go last: an end in between leaves something that is this volume's.
    let (manifests, rest): (Vec<_>, Vec<_>) =
        listed.iter().partition(|name| name.ends_with(MANIFEST));
    for name in rest.into_iter().chain(manifests) {
        store.remove(name).map_err(|why| failed(store, &why))?;
    }
    Ok(())
}

/// Whether the manifest of a node, if there is one, is of this volume. `store` has it as it is
/// stored.
fn is_volume(store: &dyn NamedStore, uuid: &Uuid, node: u32) -> Result<Option<bool>, EngineError> {
    let prefix = prefix_of(node);
    let stored = store.read(&format!("{prefix}{MANIFEST}")).map_err(|why| failed(store, &why))?;
    if let Some(volume) = stored.and_then(|stored| encrypted_volume(&stored.bytes)) {
        return Ok(Some(volume == *uuid));
    }
    let found = read_manifest(store, &prefix)?;
    Ok(found.map(|(manifest, _)| manifest.check(uuid, node, store.shown()).is_ok()))
}

/// The process that has the rows of a node open, in words, if there is one.
pub fn holder_in(store: &dyn NamedStore, node: u32) -> Result<Option<String>, EngineError> {
    let name = format!("{}{HOLDER}", prefix_of(node));
    let Some((holder, found)) = read_checked(store, &name, Holder::decode)? else {
        return Ok(None);
    };
    Ok(holder.is_there(found.age).then_some(holder.words))
}

/// See [`crate::holder`].
pub fn holder_of(url: &BucketUrl, node: u32) -> Result<Option<String>, EngineError> {
    holder_in(&*url.open(false)?, node)
}

/// What was read of the log.
struct LogRead {
    /// The first number that is missing.
    next: u64,
    /// The newest position.
    position: u64,
    /// Objects without rows: fences.
    fences: Vec<u64>,
}

/// Reads log objects from where a manifest says up to the first that is missing.
fn replay(
    store: &dyn NamedStore,
    manifest: &Manifest,
    shard: (&Uuid, u32),
    mut apply: impl FnMut(RowChanges),
) -> Result<LogRead, EngineError> {
    replay_records(store, manifest, shard, |record| apply(record.rows))
}

/// The same, with all that the objects say.
fn replay_records(
    store: &dyn NamedStore,
    manifest: &Manifest,
    (uuid, node): (&Uuid, u32),
    mut apply: impl FnMut(LogRecord),
) -> Result<LogRead, EngineError> {
    let prefix = prefix_of(node);
    let (mut next, mut position, mut epoch) = (manifest.log_first, manifest.position, 0);
    let mut fences = Vec::new();
    loop {
        let numbers: Vec<u64> = (next..).take(READ_AHEAD).collect();
        let read = |number: u64| {
            let decode =
                |found: &NamedObject| LogRecord::decode((uuid, node), number, &found.bytes);
            let found = read_checked(store, &format!("{prefix}{}", name(number)), decode)?;
            Ok(found.map(|(record, _)| record))
        };
        let found = read_window(&numbers, &read);
        for (number, record) in numbers.into_iter().zip(found) {
            let Some(record) = record? else { return Ok(LogRead { next, position, fences }) };
            if record.epoch < epoch || record.epoch > manifest.epoch || record.position < position {
                return Err(EngineError::Corrupt(format!(
                    "metadata in a bucket: {prefix}{}: it is of epoch {} and position {}, after \
                     {epoch} and {position}: objects of the log were changed",
                    name(number),
                    record.epoch,
                    record.position
                )));
            }
            (epoch, position) = (record.epoch, record.position);
            if record.rows.is_empty() {
                fences.push(number);
            }
            apply(record);
            next = number + 1;
        }
    }
}

/// A log object with a higher number than this, if there is one.
fn later_object(
    store: &dyn NamedStore,
    prefix: &str,
    number: u64,
) -> Result<Option<u64>, EngineError> {
    let listed = store.list(&format!("{prefix}log/")).map_err(|why| failed(store, &why))?;
    Ok(listed.iter().filter_map(|(name, _)| number_of(name)).filter(|it| *it > number).max())
}

/// See [`crate::peek`].
pub fn peek(url: &BucketUrl, node: u32, key: &[u8]) -> Result<Option<Box<[u8]>>, EngineError> {
    let store = url.open(false)?;
    let manifest = || {
        let found = read_manifest(&*store, &prefix_of(node))?;
        Ok(found.ok_or_else(|| not_there(&*store, node))?.0)
    };
    loop {
        let before = manifest()?;
        let value = look(&store, &before, node, key);
        // Objects may have gone meanwhile because a later manifest does not need them.
        if manifest()?.revision == before.revision {
            return value;
        }
    }
}

/// A row by a manifest.
fn look(
    store: &Arc<dyn NamedStore>,
    manifest: &Manifest,
    node: u32,
    key: &[u8],
) -> Result<Option<Box<[u8]>>, EngineError> {
    let uuid = uuid_of(manifest)?;
    let mut found = None;
    replay(&**store, manifest, (&uuid, node), |mut rows| {
        if let Some(value) = rows.remove(key) {
            found = Some(value);
        }
    })?;
    if let Some(value) = found {
        return Ok(value);
    }
    let identity = TableIdentity { uuid, node, id: 0 };
    let parts = (store.clone(), Arc::default());
    let tree = Tree::new(parts, prefix_of(node), identity, PEEK_CACHE_BYTES);
    let runs = tree.runs(&manifest.runs);
    tree.change(|view| view.runs = runs);
    let value = tree.get(&tree.view(), key)?;
    Ok(value.map(|value| value[..].into()))
}

fn uuid_of(manifest: &Manifest) -> Result<Uuid, EngineError> {
    let digits = from_hex(&manifest.volume);
    digits
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| crate::wire::corrupt(MANIFEST, "its volume is no identity"))
}

fn has_it_open(store: &dyn NamedStore, holder: &str) -> EngineError {
    EngineError::Refused(format!(
        "metadata in a bucket: {holder} has {} open; unmount or stop it there, or, if it is gone \
         for good, take it over with --take-over",
        store.shown()
    ))
}

/// Begins the next epoch in the manifest; waits so long for a process that may be ending. `check`
/// is shown the manifest that is going to be replaced.
fn claim(
    store: &dyn NamedStore,
    (uuid, node): (&Uuid, u32),
    (take_over, writer): (bool, u64),
    patience: Duration,
    check: &mut dyn FnMut(&Manifest) -> Result<(), EngineError>,
) -> Result<(Published, bool), EngineError> {
    let (prefix, begun) = (prefix_of(node), Instant::now());
    loop {
        let (found, object) =
            read_manifest(store, &prefix)?.ok_or_else(|| not_there(store, node))?;
        found.check(uuid, node, store.shown())?;
        if !take_over && let Some(holder) = holder_in(store, node)? {
            if begun.elapsed() > patience {
                return Err(has_it_open(store, &holder));
            }
            thread::sleep(PAUSE);
            continue;
        }
        check(&found)?;
        let was_closed = found.closed;
        let mut next = found;
        next.epoch += 1;
        next.revision += 1;
        next.writer = writer;
        next.closed = false;
        let name = format!("{prefix}{MANIFEST}");
        let replaced = store.replace(&name, next.encode().into(), &object.tag);
        match replaced.map_err(|why| failed(store, &why))? {
            Some(tag) => {
                return Ok((Published { manifest: next, tag, uncertain: None }, was_closed));
            }
            None => {
                // The claim may have been made: its answer was lost, and the next one damaged.
                if let Some((found, object)) = read_manifest(store, &prefix)?
                    && found.same_as(&next)
                {
                    let (manifest, tag) = (next, object.tag);
                    return Ok((Published { manifest, tag, uncertain: None }, was_closed));
                }
                if !take_over {
                    return Err(has_it_open(store, "another process"));
                }
            }
        }
    }
}

/// A number that no other opening has.
fn nonce() -> u64 {
    // Seeded by the system, and another one each time.
    let random = RandomState::new().hash_one(std::process::id());
    random ^ SystemClock.now().unsigned_abs()
}

/// Bytes that no other process makes up.
pub fn random_bytes() -> [u8; 16] {
    (u128::from(nonce()) << 64 | u128::from(nonce())).to_be_bytes()
}

/// Makes the rows below those of a job, which share the cache of its tree.
pub type Below<'a> = Option<&'a dyn Fn(&Tree) -> Result<Arc<[Arc<Layer>]>, EngineError>>;

/// The log of a log directory as it was found, before the rows are claimed.
pub struct FoundLog {
    dir: LogDir,
    shard: (Uuid, u32),
    log: Option<LocalLog>,
    /// Behind what the log knows to be in the bucket.
    batches: Vec<LoggedBatch>,
}

impl FoundLog {
    /// Looks what a directory has. `verify` as for [`LocalLog::open`].
    ///
    /// # Errors
    /// As for [`LogDir::open`] and [`LogDir::recover`].
    pub fn look(
        options: LogDirOptions,
        shard: (Uuid, u32),
        verify: &mut Verify<'_>,
    ) -> Result<Self, EngineError> {
        let mut dir = LogDir::open(options, shard.0, shard.1)?;
        let (log, batches) = dir.recover(verify)?.unzip();
        Ok(Self { dir, shard, log, batches: batches.unwrap_or_default() })
    }

    /// Decides whether the batches fit a manifest that is going to be claimed by `opening`, and
    /// notes the opening.
    fn check(
        &mut self,
        store: &dyn NamedStore,
        manifest: &Manifest,
        opening: u64,
    ) -> Result<(), EngineError> {
        if !self.batches.is_empty() && !self.dir.knows(manifest.writer) {
            // The volume has gone on without them, unless they were uploaded before.
            let uploaded = self.position_of_takeover(store, manifest)?;
            let lost = self.batches.partition_point(|batch| batch.position <= uploaded);
            if lost < self.batches.len() {
                self.dir.give_up(&self.batches[lost..])?;
            }
            self.batches.clear();
            self.log = None;
        }
        crash::point("bucket.local.checked");
        self.dir.begin(opening)
    }

    /// The position up to which the bucket had batches when another process claimed the rows, as
    /// far as its fence tells; else what is certain.
    fn position_of_takeover(
        &self,
        store: &dyn NamedStore,
        manifest: &Manifest,
    ) -> Result<u64, EngineError> {
        let (uuid, node) = (&self.shard.0, self.shard.1);
        let prefix = prefix_of(node);
        let mut found = None;
        let mut look = |record: &LogRecord| {
            let is_other = record.epoch > self.dir.epoch() && !self.dir.knows(record.nonce);
            if is_other && record.rows.is_empty() {
                found.get_or_insert(record.position);
            }
        };
        for number in &manifest.fences {
            let name = format!("{prefix}{}", name(*number));
            let decode =
                |found: &NamedObject| LogRecord::decode((uuid, node), *number, &found.bytes);
            if let Some((record, _)) = read_checked(store, &name, decode)? {
                look(&record);
            }
        }
        replay_records(store, manifest, (uuid, node), |record| look(&record))?;
        Ok(found.unwrap_or(0))
    }

    /// The rows are claimed, and the bucket has batches up to `position`: the log goes on, or
    /// begins anew if nothing of it is left to be uploaded. With the batches that are.
    fn go_on(
        mut self,
        (opening, epoch): (u64, u64),
        position: u64,
        memory_bytes: u64,
    ) -> Result<(Local, Vec<LoggedBatch>), EngineError> {
        let mut batches = self.batches;
        batches.retain(|batch| batch.position > position);
        if let Some(first) = batches.first().filter(|first| first.position != position + 1) {
            return Err(EngineError::Corrupt(format!(
                "log directory: {} goes on at position {}, and the bucket ends at {position}: an \
                 older state of the bucket was brought back, or objects were removed: bring them \
                 back, or set the log aside with `kestrel mount … --discard-log`",
                self.dir.path().display(),
                first.position
            )));
        }
        let goes_on = |log: &LocalLog| !batches.is_empty() || log.position() == position;
        let log = match self.log.take_if(|log| goes_on(log)) {
            Some(log) => log,
            None => self.dir.make_log(position)?,
        };
        self.dir.claimed(opening, epoch)?;
        crash::point("bucket.local.claimed");
        if batches.is_empty() {
            self.dir.uploaded();
        } else {
            ::log::info!(
                "{} batches of the log in {} are uploaded now",
                batches.len(),
                self.dir.path().display()
            );
        }
        let upload_every = self.dir.upload_every();
        let backlog_max = usize::try_from(memory_bytes / 4).unwrap_or(usize::MAX);
        let backlog_max = backlog_max.max(BACKLOG_BYTES_MIN);
        let dir = parking_lot::Mutex::new(self.dir);
        Ok((Local { log, dir, upload_every, backlog_max }, batches))
    }
}

/// See [`BucketEngine::open`].
pub fn open(
    (store, deadline): (Arc<dyn NamedStore>, Duration),
    (uuid, node): (Uuid, u32),
    options: BucketOptions,
    before_sync: BeforeSync,
) -> Result<BucketEngine, EngineError> {
    open_logged((store, deadline), (uuid, node), (options, limits_of(options)), before_sync, None)
}

/// When memtables are frozen, by these settings.
pub fn limits_of(options: BucketOptions) -> FlushLimits {
    let memtable_bytes = (options.memory_bytes / 8).clamp(MEMTABLE_BYTES_MIN, MEMTABLE_BYTES_MAX);
    FlushLimits::new(usize::try_from(memtable_bytes).unwrap_or(usize::MAX))
}

#[cfg(test)]
pub fn open_with(
    place: (Arc<dyn NamedStore>, Duration),
    shard: (Uuid, u32),
    options: (BucketOptions, FlushLimits),
    before_sync: BeforeSync,
) -> Result<BucketEngine, EngineError> {
    open_logged(place, shard, options, before_sync, None)
}

/// The same with a log directory, if there is one.
pub fn open_logged(
    (store, deadline): (Arc<dyn NamedStore>, Duration),
    (uuid, node): (Uuid, u32),
    (options, limits): (BucketOptions, FlushLimits),
    before_sync: BeforeSync,
    found_log: Option<FoundLog>,
) -> Result<BucketEngine, EngineError> {
    let shard = (uuid, node);
    open_above((store, deadline), shard, (options, limits), before_sync, (found_log, None))
}

/// The same above rows that never change, if there are some.
pub fn open_above(
    (store, deadline): (Arc<dyn NamedStore>, Duration),
    (uuid, node): (Uuid, u32),
    (options, limits): (BucketOptions, FlushLimits),
    before_sync: BeforeSync,
    (mut found_log, below): (Option<FoundLog>, Below<'_>),
) -> Result<BucketEngine, EngineError> {
    let nonce = nonce();
    let mut check = |manifest: &Manifest| match &mut found_log {
        Some(found) => found.check(&*store, manifest, nonce),
        None => Ok(()),
    };
    let patience = HOLDER_WAIT.min(deadline);
    let (published, was_closed) =
        claim(&*store, (&uuid, node), (options.take_over, nonce), patience, &mut check)?;
    let epoch = published.manifest.epoch;
    let (prefix, health) = (prefix_of(node), Arc::<Health>::default());
    let holder = Holder::this_process(node, epoch);
    crash::point("bucket.claim.manifest");
    let held = holder::take(&*store, &format!("{prefix}{HOLDER}"), &holder);
    let held = held.map_err(|why| failed(&*store, &why))?;
    let memtable = Arc::<MemTable>::default();
    let apply = |rows| memtable.apply(rows);
    let mut log = replay(&*store, &published.manifest, (&uuid, node), apply)?;
    let mut fences = std::mem::take(&mut log.fences);
    let mut go_on = |log: &LogRead| {
        let mut rest = published.manifest.clone();
        (rest.log_first, rest.position) = (log.next, log.position);
        let mut more = replay(&*store, &rest, (&uuid, node), apply)?;
        fences.append(&mut more.fences);
        Ok(more)
    };
    // An object that is missing is the end of the log only if there are no later ones: the store
    // may have lost it. An earlier process may have made it just now.
    while let Some(later) = later_object(&*store, &prefix, log.next)? {
        let more = go_on(&log)?;
        if more.next == log.next {
            return Err(EngineError::Corrupt(format!(
                "metadata in a bucket: {prefix}{} is missing, and {prefix}{} is there: the store \
                 has lost an object that it had acknowledged: bring it back from a copy of the \
                 bucket, or load a dump of the volume",
                name(log.next),
                name(later)
            )));
        }
        log = more;
    }
    let fence = loop {
        let record = LogRecord { epoch, position: log.position, nonce, rows: RowChanges::new() };
        let name = format!("{prefix}{}", name(log.next));
        let made = store.create(&name, record.encode((&uuid, node), log.next));
        if made.map_err(|why| failed(&*store, &why))? {
            break log.next;
        }
        // An earlier process was faster, or a later one has come.
        let (manifest, _) =
            read_manifest(&*store, &prefix)?.ok_or_else(|| not_there(&*store, node))?;
        if manifest.epoch > epoch {
            return Err(EngineError::Fenced { held: Epoch(epoch), current: Epoch(manifest.epoch) });
        }
        log = go_on(&log)?;
    };
    fences.push(fence);
    crash::point("bucket.claim.fence");
    let identity = TableIdentity { uuid, node, id: 0 };
    let cache_bytes = options.memory_bytes / 4;
    let tree = Tree::new((store.clone(), health.clone()), prefix.clone(), identity, cache_bytes);
    let runs = tree.runs(&published.manifest.runs);
    tree.change(|view| (view.active, view.runs) = (memtable.clone(), runs));
    if let Some(below) = below {
        let layers = below(&tree)?;
        tree.change(|view| view.layers = layers);
    }
    let row_bytes = usize::try_from(options.memory_bytes / 2).unwrap_or(usize::MAX);
    let claimed = (nonce, epoch);
    let (local, batches) = found_log
        .map(|found| found.go_on(claimed, log.position, options.memory_bytes))
        .transpose()?
        .unzip();
    let live_log = fence + 1 - published.manifest.log_first;
    let shared = Arc::new(EngineShared::new(Parts {
        store,
        health,
        uuid,
        node,
        prefix,
        deadline,
        tree,
        row_bytes,
        before_sync,
        published,
        position: log.position,
        local,
        upload_every: options.upload_every,
    }));
    shared.take_in(batches.unwrap_or_default());
    shared.counters.live_log.store(live_log, std::sync::atomic::Ordering::Relaxed);
    if !was_closed {
        // Before anything of this epoch is flushed, and with that log objects removed.
        shared.publish(|manifest| {
            manifest.fences.append(&mut fences);
            manifest.fences.sort_unstable();
            manifest.fences.dedup();
        })?;
    }
    let (flusher, stopper) =
        (Arc::new(Flusher::new(limits, options.merges)), Arc::<Stopper>::default());
    let sender =
        Sender { shared: shared.clone(), flusher: flusher.clone(), next: fence + 1, nonce };
    let opened = shared.manifest();
    let logger = |name, body: fn(&Arc<EngineShared>, &Local)| {
        let shared = shared.clone();
        shared.local.is_some().then(|| {
            spawn(name, move || {
                if let Some(local) = &shared.local {
                    body(&shared, local);
                }
            })
        })
    };
    let threads = Threads {
        local: [
            logger("kestrel-local", local_sync::run),
            logger("kestrel-files", |_, local| local.log.keep()),
        ]
        .into_iter()
        .flatten()
        .collect::<Result<_, _>>()?,
        sender: spawn("kestrel-log", move || sender.run())?,
        flusher: {
            let (flusher, shared) = (flusher.clone(), shared.clone());
            spawn("kestrel-flush", move || flusher.run(&shared, &opened))?
        },
        merger: {
            let (flusher, shared) = (flusher.clone(), shared.clone());
            spawn("kestrel-merge", move || flusher.run_merges(&shared))?
        },
        holder: {
            let (stopper, shared) = (stopper.clone(), shared.clone());
            spawn("kestrel-holder", move || holder::stay(&shared, &stopper, holder, held))?
        },
    };
    Ok(BucketEngine {
        epoch: shared.epoch(),
        shared,
        claim: parking_lot::Mutex::new(()),
        stopper,
        flusher,
        threads: Some(threads),
    })
}

fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, EngineError> {
    let spawned = thread::Builder::new().name(name.into()).spawn(body);
    spawned.map_err(|why| EngineError::Io(format!("metadata engine: starting a thread: {why}")))
}
