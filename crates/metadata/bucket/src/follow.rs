//! Following: the rows of a node as the process that writes them has made them durable, read
//! without a claim. A follower writes nothing to the store; any number of them read beside one
//! writer.
//!
//! | file | what it has |
//! | --- | --- |
//! | `follow/rows.rs` | [`FollowedRows`]: the rows of one moment, as an engine |
//! | `follow/live_log.rs` | rows of the log that no table has, as layers that never change |
//!
//! [`Follower::poll`] reads the log on from where it ended the last time, and the manifest after
//! the first object that is missing. The order tells why it is missing: log objects go only after a
//! manifest does not need them any more, so if the manifest that was read *afterwards* still needs
//! that object, it has not been made.
//!
//! - **It needs it**: the follower has come to the end. The runs of the manifest take the place of
//!   those before; layers of the log that are in tables now are dropped. Those that stay may have
//!   rows that tables have as well: rows of the log are never older than those of tables as long as
//!   the follower has read the log up to where the manifest begins.
//! - **It does not**: what the follower wanted is in tables by now. It begins anew, from the
//!   manifest.
//!
//! **One moment.** Log objects have whole batches, and the log has one order, whatever processes
//! wrote it: a fence or an earlier process's last object are places in it like others. What is
//! shown is a prefix of the log and never changes ([`FollowedRows`]); the next poll makes another
//! one.
//! Positions, epochs and revisions never fall; a bucket in which they do has had an older state
//! brought back, and is not followed there.

mod live_log;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_blockstore::named::{NamedObject, NamedStore};
use kestrel_engine::EngineError;
use kestrel_types::ids::Position;

use crate::health::{Health, failed, read_by};
use crate::log::{Found, LogRecord, RowChanges, name, number_of, read_window};
use crate::manifest::{MANIFEST, Manifest};
use crate::recover::{READ_AHEAD, not_there};
use crate::table::TableIdentity;
use crate::tree::{Run, Tree, View};
use crate::url::prefix_of;
use crate::{BucketUrl, Uuid};
use live_log::LiveLog;
pub use rows::FollowedRows;

/// Times that a poll begins anew because what it wants is gone again: each time a writer has
/// written a whole memtable meanwhile.
const ROUNDS_MAX: usize = 20;

/// How often it is looked whether the store has lost an object that the follower waits for.
const LOST_LOOK: Duration = Duration::from_secs(60);

/// A request of a poll is given up on after this time. The next poll tries it again, at once: so a
/// store that is back after long is not waited for as long.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);

/// Where a follower is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowedTo {
    /// The epoch that the manifest names: that of the newest claim.
    pub epoch: u64,
    /// The newest batch that is shown.
    pub position: Position,
    /// The number of the log object that is waited for.
    pub log_next: u64,
    /// Changes of the manifest.
    pub revision: u64,
}

/// See the module's header.
pub struct Follower {
    store: Arc<dyn NamedStore>,
    health: Arc<Health>,
    prefix: String,
    uuid: Uuid,
    node: u32,
    tree: Arc<Tree>,
    /// Memory for rows of a moment, bytes.
    row_bytes: usize,
    manifest: Manifest,
    runs: Vec<Arc<Run>>,
    log: LiveLog,
    /// The number of the next log object.
    next: u64,
    position: Position,
    /// The epoch of the last log object.
    log_epoch: u64,
    /// Log objects that the last poll found.
    found_before: usize,
    /// When it was looked for an object that the store has lost; `None`: the next poll looks.
    looked_for_lost: Option<Instant>,
    shown: Arc<FollowedRows>,
    /// The rows are not those that are shown any more.
    is_changed: bool,
}

/// How a way through the log ended.
enum LogEnd {
    /// The next object is missing. `gap`: a later one is there.
    Missing { gap: bool },
    /// The next object is of an epoch that the manifest is too old for.
    NewEpoch,
}

impl Follower {
    /// Begins to follow the rows of a node, and reads what there is.
    ///
    /// # Errors
    /// `Refused` for another volume's rows, a newer format, rows that are not there; `Corrupt`; the
    /// store's.
    pub fn open(
        url: &BucketUrl,
        uuid: Uuid,
        node: u32,
        memory_bytes: u64,
    ) -> Result<Self, EngineError> {
        let log = url.clone().within(LOOK_DEADLINE).open(false)?;
        Self::open_on((log, url.open_rows(&uuid, node)?), uuid, node, memory_bytes)
    }

    pub(crate) fn open_on(
        (store, of_tables): (Arc<dyn NamedStore>, Arc<dyn NamedStore>),
        uuid: Uuid,
        node: u32,
        memory_bytes: u64,
    ) -> Result<Self, EngineError> {
        let (prefix, health) = (prefix_of(node), Arc::<Health>::default());
        let identity = TableIdentity { uuid, node, id: 0 };
        let parts = (of_tables, health.clone());
        let tree = Arc::new(Tree::new(parts, prefix.clone(), identity, memory_bytes / 2));
        let row_bytes = usize::try_from(memory_bytes / 4).unwrap_or(usize::MAX);
        let shown = Arc::new(FollowedRows::new(tree.clone(), View::default(), (0, 0), row_bytes));
        let mut follower = Self {
            manifest: Manifest::new(&uuid, node),
            store,
            health,
            prefix,
            uuid,
            node,
            tree,
            row_bytes,
            runs: Vec::new(),
            log: LiveLog::default(),
            next: 0,
            position: 0,
            log_epoch: 0,
            found_before: READ_AHEAD,
            looked_for_lost: Some(Instant::now()),
            shown,
            is_changed: true,
        };
        let manifest = follower.read_manifest()?;
        follower.begin_from(manifest);
        follower.poll()?;
        Ok(follower)
    }

    /// Where it is.
    pub fn followed_to(&self) -> FollowedTo {
        FollowedTo {
            epoch: self.manifest.epoch,
            position: self.position,
            log_next: self.next,
            revision: self.manifest.revision,
        }
    }

    /// How long the store has not answered; other threads may ask while a poll is under way.
    pub fn silence(&self) -> impl Fn() -> Duration + Send + Sync + use<> {
        let health = self.health.clone();
        move || health.silence()
    }

    /// The rows of the moment that the last poll has come to. The same value as long as nothing
    /// changes.
    pub fn rows(&mut self) -> Arc<FollowedRows> {
        if std::mem::take(&mut self.is_changed) {
            let view =
                View { frozen: self.log.layers(), runs: self.runs.clone(), ..View::default() };
            let at = (self.position, self.manifest.epoch);
            self.shown = Arc::new(FollowedRows::new(self.tree.clone(), view, at, self.row_bytes));
        }
        self.shown.clone()
    }

    /// Reads on to the end of the log. After an error [`Follower::rows`] are those of the moment
    /// that it had come to, which may be later than the one before.
    ///
    /// # Errors
    /// `Refused` if the rows are another volume's now, gone, of a newer format, or older than they
    /// were; `Corrupt` for objects that are damaged or were lost; the store's.
    pub fn poll(&mut self) -> Result<(), EngineError> {
        let polled = self.read_on();
        if let Err(EngineError::Corrupt(_)) = &polled {
            self.looked_for_lost = None;
        }
        polled
    }

    fn read_on(&mut self) -> Result<(), EngineError> {
        let mut gap_at = None;
        for _ in 0..ROUNDS_MAX {
            let end = self.read_log()?;
            let manifest = self.read_manifest()?;
            if manifest.log_first > self.next {
                self.begin_from(manifest);
                continue;
            }
            let knew = self.manifest.epoch;
            self.learn(manifest);
            match end {
                LogEnd::NewEpoch if self.manifest.epoch > knew => {}
                LogEnd::NewEpoch => {
                    return Err(self.changed("its epoch is above that of the manifest"));
                }
                // It was made between the two reads, or the store has lost it.
                LogEnd::Missing { gap: true } if gap_at == Some(self.next) => {
                    return Err(self.lost());
                }
                LogEnd::Missing { gap: true } => gap_at = Some(self.next),
                LogEnd::Missing { gap: false } => return self.look_for_lost(),
            }
        }
        Err(EngineError::Io(format!(
            "metadata in a bucket: {}: the log goes into tables faster than it can be read",
            self.store.shown()
        )))
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn read<T>(
        &self,
        name: &str,
        decode: impl Fn(&NamedObject) -> Result<T, EngineError>,
    ) -> Result<Option<T>, EngineError> {
        let read = || {
            let found = self.health.watch(|| self.store.read(name));
            found.map_err(|why| failed(&*self.store, &why))
        };
        Ok(read_by(&read, decode)?.map(|(decoded, _)| decoded))
    }

    fn read_manifest(&self) -> Result<Manifest, EngineError> {
        let decode = |found: &NamedObject| Manifest::decode(&found.bytes);
        let found = self.read(&self.name(MANIFEST), decode)?;
        let found = found.ok_or_else(|| not_there(&*self.store, self.node))?;
        found.check(&self.uuid, self.node, self.store.shown())?;
        let known = &self.manifest;
        let is_older = found.epoch < known.epoch
            || found.revision < known.revision
            || found.revision == known.revision && !found.same_as(known)
            || found.log_first < known.log_first
            || found.log_first > self.next && found.position < self.position;
        if is_older {
            return Err(EngineError::Refused(format!(
                "metadata in a bucket: {}: an older state of the bucket was brought back; mount \
                 again to follow from there",
                self.store.shown()
            )));
        }
        Ok(found)
    }

    /// Begins anew with what a manifest says.
    fn begin_from(&mut self, manifest: Manifest) {
        (self.next, self.position) = (manifest.log_first, manifest.position);
        self.log = LiveLog::default();
        self.runs = self.tree.runs(&manifest.runs);
        self.manifest = manifest;
        self.is_changed = true;
    }

    /// Takes over the tables of a manifest that begins where the follower has been.
    fn learn(&mut self, manifest: Manifest) {
        if manifest.revision == self.manifest.revision {
            return;
        }
        if manifest.runs != self.manifest.runs {
            self.runs = self.tree.runs(&manifest.runs);
        }
        self.log.drop_before(manifest.log_first);
        self.manifest = manifest;
        self.is_changed = true;
    }

    /// Reads the log on to the first object that is missing.
    fn read_log(&mut self) -> Result<LogEnd, EngineError> {
        let mut window = self.found_before.clamp(1, READ_AHEAD);
        let mut found = 0;
        let end = loop {
            match self.read_some(window, &mut found) {
                Ok(None) => window = (window * 2).min(READ_AHEAD),
                Ok(Some(end)) => break Ok(end),
                Err(why) => break Err(why),
            }
        };
        self.found_before = found;
        end
    }

    /// Reads up to so many log objects; how the log ended, if it did. What comes before an error
    /// counts.
    fn read_some(
        &mut self,
        window: usize,
        found: &mut usize,
    ) -> Result<Option<LogEnd>, EngineError> {
        let numbers: Vec<u64> = (self.next..).take(window).collect();
        let records = read_window(&numbers, &|number| self.read_record(number));
        let (mut rows, mut records) = (RowChanges::new(), records.into_iter());
        let end = loop {
            let record = match records.next() {
                Some(Ok(Some(record))) => record,
                Some(Ok(None)) => {
                    let gap = records.any(|later| matches!(later, Ok(Some(_))));
                    break Ok(Some(LogEnd::Missing { gap }));
                }
                Some(Err(why)) => break Err(why),
                None => break Ok(None),
            };
            if record.epoch > self.manifest.epoch {
                break Ok(Some(LogEnd::NewEpoch));
            }
            if record.epoch < self.log_epoch || record.position < self.position {
                break Err(self.changed("its epoch or position is below that of the one before"));
            }
            rows.extend(record.rows);
            (self.log_epoch, self.position) = (record.epoch, record.position);
            self.next += 1;
            *found += 1;
        };
        if !rows.is_empty() {
            self.log.add(self.next - 1, rows);
            self.is_changed = true;
        }
        end
    }

    fn read_record(&self, number: u64) -> Found {
        let decode =
            |found: &NamedObject| LogRecord::decode((&self.uuid, self.node), number, &found.bytes);
        self.read(&self.name(&name(number)), decode)
    }

    /// Now and then: whether there are objects behind the one that is waited for.
    fn look_for_lost(&mut self) -> Result<(), EngineError> {
        if self.looked_for_lost.is_some_and(|looked| looked.elapsed() < LOST_LOOK) {
            return Ok(());
        }
        let below = self.name("log/");
        let listed = self.health.watch(|| self.store.list(&below));
        let listed = listed.map_err(|why| failed(&*self.store, &why))?;
        self.looked_for_lost = Some(Instant::now());
        let is_behind = listed.iter().filter_map(|(name, _)| number_of(name));
        if is_behind.max().is_none_or(|last| last <= self.next) {
            return Ok(());
        }
        // It may have been made, or put into tables, since it was missed.
        if self.read_record(self.next)?.is_some() || self.read_manifest()?.log_first > self.next {
            return Ok(());
        }
        Err(self.lost())
    }

    fn lost(&self) -> EngineError {
        self.corrupt(
            "it is missing, and later ones are there: the store has lost an object that it had \
             acknowledged",
        )
    }

    fn changed(&self, why: &str) -> EngineError {
        self.corrupt(&format!("{why}: objects of the log were changed"))
    }

    fn corrupt(&self, why: &str) -> EngineError {
        EngineError::Corrupt(format!(
            "metadata in a bucket: {}{}: {why}; bring it back from a copy of the bucket",
            self.prefix,
            name(self.next)
        ))
    }
}
