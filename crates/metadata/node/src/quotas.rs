//! Quotas in a node's memory: limits, what counts towards them, and what running batches have
//! reserved.
//!
//! What counts is a function of the rows: each entry below a directory is a file, and each inode
//! has its bytes. So a batch charges what its operations did to entries and inodes, whatever they
//! were ([`crate::rows::BatchRows::counted_changes`]), and no operation has to think of it.
//!
//! - **Exact.** A batch writes what it charges in its own commit: a row for each quota and worker
//!   ([`kestrel_types::quota`]). A directory's rows count what no directory with a quota further
//!   down counts; the sums for the outer ones are made in memory, so a tree of nested quotas costs
//!   one row.
//! - **Never above.** An operation that grows reserves before it ends, in one counter of the quota
//!   that all workers share. What shrinks is given back when its batch has committed.
//!
//! - **Of several nodes** each counts what it has committed itself, and may not come above its part
//!   of a limit. The member that leads quotas lends parts (`kestrel_cluster`, `quotas`); a change
//!   that does not fit stops until the node has a larger one ([`Refusal::Part`]).
//!
//! The set of quotas changes with every worker's state held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use kestrel_engine::Mutation;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::{NodeId, WORKERS_MAX};
use kestrel_types::quota::{
    OverSince, QuotaInfo, QuotaLimits, QuotaRecord, QuotaRow, QuotaSubject, QuotaUsage,
};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::rows::{Counted, CountedChange};
use crate::stop::{QuotaWant, Stop};

/// Files and bytes, in this order.
pub type QuotaPair = [i64; 2];

/// What a node has counted towards a quota: all of it, or, of several nodes, its part.
pub struct QuotaCounters {
    /// Towards it and, of a directory, those below it; files and bytes, with what is reserved.
    total: [AtomicI64; 2],
    /// By worker, the exclusive one last: as in the rows.
    shares: Box<[[AtomicI64; 2]]>,
    /// Number of the first worker's share.
    first: u16,
    /// Of several nodes: what the totals must not come above.
    part: Option<[AtomicI64; 2]>,
    /// Rows of workers that the node has no more, or of nodes that it is the heir of.
    rest: QuotaUsage,
    /// Since when the totals are above the soft limits; 0 if they are not.
    since: [AtomicI64; 2],
}

fn pair(usage: QuotaUsage) -> QuotaPair {
    [usage.files, usage.bytes]
}

fn usage_of(pair: &[AtomicI64; 2]) -> QuotaUsage {
    let [files, bytes] = pair;
    QuotaUsage { files: files.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
}

fn least_of(one: QuotaUsage, other: QuotaUsage) -> QuotaUsage {
    QuotaUsage { files: one.files.min(other.files), bytes: one.bytes.min(other.bytes) }
}

fn add(to: &[AtomicI64; 2], change: QuotaUsage) {
    for (to, change) in to.iter().zip(pair(change)) {
        if change != 0 {
            to.fetch_add(change, Ordering::Relaxed);
        }
    }
}

impl QuotaCounters {
    /// By the rows of a quota, for a node with so many workers: that which has this number, if it
    /// is one of several.
    pub fn new(
        rows: &[(u16, QuotaUsage)],
        since: OverSince,
        (workers, me): (usize, Option<NodeId>),
    ) -> Self {
        let none = || [AtomicI64::new(0), AtomicI64::new(0)];
        let shares: Box<[_]> = (0..=workers).map(|_| none()).collect();
        let first = (me.unwrap_or(0) as u16).wrapping_mul(WORKERS_MAX as u16);
        let mut rest = QuotaUsage::default();
        for (number, usage) in rows {
            match shares.get(usize::from(number.wrapping_sub(first))) {
                Some(share) => add(share, *usage),
                None => rest = rest.plus(*usage),
            }
        }
        let since = [since.files, since.bytes].map(AtomicI64::new);
        Self { total: none(), shares, first, part: me.map(|_| none()), rest, since }
    }

    /// The sum of the rows.
    pub fn own(&self) -> QuotaUsage {
        self.shares.iter().fold(self.rest, |sum, share| sum.plus(usage_of(share)))
    }

    /// The row of a worker's share.
    pub fn row(&self, of: QuotaSubject, worker: usize) -> QuotaRow {
        QuotaRow::Share(of, self.first.wrapping_add(worker as u16))
    }

    /// A worker's share.
    pub fn share(&self, worker: usize) -> QuotaUsage {
        usage_of(&self.shares[worker])
    }

    /// Changes a worker's share: its row was written.
    pub fn add_share(&self, worker: usize, change: QuotaUsage) {
        add(&self.shares[worker], change);
    }

    /// Since when the totals are above the soft limits, as far as this node knows.
    pub fn since(&self) -> OverSince {
        let [files, bytes] = &self.since;
        OverSince { files: files.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
    }
}

/// A quota.
pub struct Quota {
    /// What it limits.
    pub of: QuotaSubject,
    /// The limits.
    pub limits: QuotaLimits,
    /// Of a directory: the next one further up.
    pub above: Option<Arc<Quota>>,
    /// What counts.
    pub counters: Arc<QuotaCounters>,
}

/// Why nothing was charged.
#[derive(Debug)]
pub enum Refusal {
    /// A limit would be exceeded.
    Failed(FsError),
    /// The node's part of a quota is too small.
    Part(QuotaWant),
}

impl From<Refusal> for Stop {
    fn from(why: Refusal) -> Self {
        match why {
            Refusal::Failed(why) => Self::Fail(why),
            Refusal::Part(want) => Self::QuotaPart(want),
        }
    }
}

/// Whether a change of users' and groups' usage may exceed their limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Owners {
    /// It may not.
    #[default]
    Limited,
    /// It may: the superuser gives files away.
    Free,
}

impl Quota {
    /// As answers tell of it.
    pub fn info(&self) -> QuotaInfo {
        QuotaInfo {
            of: self.of,
            limits: self.limits,
            used: usage_of(&self.counters.total),
            since: self.counters.since(),
            counted: None,
        }
    }

    /// The hard and the soft limit of files (0) or bytes (1).
    pub fn limits_of(&self, what: usize) -> (Option<u64>, Option<u64>) {
        let QuotaLimits { bytes, files, soft_bytes, soft_files, .. } = self.limits;
        if what == 0 { (files, soft_files) } else { (bytes, soft_bytes) }
    }

    /// What the node must not come above, files (0) or bytes (1): its part, if it has one and
    /// there is a limit.
    fn part(&self, what: usize) -> Option<&AtomicI64> {
        let part = self.counters.part.as_ref()?;
        (self.limits_of(what) != (None, None)).then_some(&part[what])
    }

    /// The growth of the node's part that a change needs which begins at this total, if any.
    fn lacking(&self, what: usize, total: i64, more: i64, free: bool) -> Option<QuotaWant> {
        let part = self.part(what)?.load(Ordering::Relaxed);
        let fits = i128::from(total) + i128::from(more) <= part.into();
        (!fits).then_some(QuotaWant { of: self.of, what: what as u8, more, free })
    }

    /// What the node has counted.
    pub fn used(&self) -> QuotaPair {
        pair(usage_of(&self.counters.total))
    }

    /// The node may count up to this.
    pub fn enlarge_part(&self, what: usize, to: i64) {
        if let Some(part) = &self.counters.part {
            part[what].fetch_max(to, Ordering::Relaxed);
        }
    }

    /// The node gives back what it has not used: its parts are what it has counted from now on.
    /// With every worker's state held.
    pub fn give_back_parts(&self) -> QuotaPair {
        let used = self.used();
        for (part, used) in self.counters.part.iter().flatten().zip(used) {
            part.store(used, Ordering::Relaxed);
        }
        used
    }

    /// The quota is above its soft limits since then.
    pub fn set_since(&self, since: OverSince) {
        let [files, bytes] = &self.counters.since;
        files.store(since.files, Ordering::Relaxed);
        bytes.store(since.bytes, Ordering::Relaxed);
    }

    /// Reserves, files (0) or bytes (1), above nought. Whether it is above the soft limit since
    /// now.
    fn reserve(&self, what: usize, more: i64, now: Nanos, free: bool) -> Result<bool, Refusal> {
        if self.counters.part.is_some() {
            return self.reserve_part(what, more, free).map(|()| false);
        }
        let (hard, soft) = self.limits_of(what);
        let total = &self.counters.total[what];
        let above = |limit: Option<u64>, sum: i128| limit.is_some_and(|limit| sum > limit.into());
        let mut before = total.load(Ordering::Relaxed);
        loop {
            let sum = i128::from(before) + i128::from(more);
            if !free && above(hard, sum) {
                return Err(Refusal::Failed(self.used_up(what, false)));
            }
            let since = &self.counters.since[what];
            let mut is_news = false;
            if above(soft, sum) {
                let over = since.load(Ordering::Relaxed);
                let grace = i64::from(self.limits.grace).saturating_mul(SECOND);
                if !free && over != 0 && now.saturating_sub(over) > grace {
                    return Err(Refusal::Failed(self.used_up(what, true)));
                }
                is_news = over == 0;
            }
            let after = before.wrapping_add(more);
            match total.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if is_news => {
                    let set =
                        since.compare_exchange(0, now.max(1), Ordering::Relaxed, Ordering::Relaxed);
                    return Ok(set.is_ok());
                }
                Ok(_) => return Ok(false),
                Err(now_there) => before = now_there,
            }
        }
    }

    /// As [`Quota::reserve`], of the node's part.
    fn reserve_part(&self, what: usize, more: i64, free: bool) -> Result<(), Refusal> {
        let total = &self.counters.total[what];
        let mut before = total.load(Ordering::Relaxed);
        loop {
            if let Some(want) = self.lacking(what, before, more, free) {
                return Err(Refusal::Part(want));
            }
            let after = before.wrapping_add(more);
            match total.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now_there) => before = now_there,
            }
        }
    }

    fn give_back(&self, change: QuotaUsage) {
        if change == QuotaUsage::default() {
            return;
        }
        add(&self.counters.total, QuotaUsage::default().minus(change));
        self.look_at_soft_limits();
    }

    /// What a batch has changed, of which this is reserved, is committed.
    fn settle(&self, reserved: QuotaUsage, change: QuotaUsage) {
        if let Some(part) = &self.counters.part {
            // First: nobody may use what is freed.
            add(part, least_of(change, QuotaUsage::default()));
        }
        self.give_back(reserved.minus(change));
    }

    /// Usage that is not above a soft limit any more has its whole grace period again. Of several
    /// nodes none knows that by itself.
    fn look_at_soft_limits(&self) {
        if self.counters.part.is_some() {
            return;
        }
        for what in 0..2 {
            let since = &self.counters.since[what];
            if since.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let total = i128::from(self.counters.total[what].load(Ordering::Relaxed));
            if self.limits_of(what).1.is_none_or(|soft| total <= soft.into()) {
                since.store(0, Ordering::Relaxed);
            }
        }
    }

    /// The error of what does not fit, files (0) or bytes (1); `soft`: because the grace period of
    /// the soft limit is over.
    pub fn used_up(&self, what: usize, soft: bool) -> FsError {
        let unit = if what == 0 { "files" } else { "bytes" };
        let errno = match self.of {
            QuotaSubject::Volume => libc::ENOSPC,
            _ => libc::EDQUOT,
        };
        let why = if soft { "has been above its soft limit for too long" } else { "is used up" };
        FsError::because(errno, format!("the quota of {} {why}: {unit}", name(self.of)))
    }
}

/// A subject in words, for messages.
pub fn name(of: QuotaSubject) -> String {
    match of {
        QuotaSubject::Dir(ino) => format!("directory {ino}"),
        QuotaSubject::User(uid) => format!("user {uid}"),
        QuotaSubject::Group(gid) => format!("group {gid}"),
        QuotaSubject::Volume => "the volume".into(),
    }
}

/// All quotas of a volume.
#[derive(Default)]
pub struct QuotaTable {
    /// By what they limit.
    pub all: FxHashMap<QuotaSubject, Arc<Quota>>,
    /// How many are of directories.
    pub dirs: usize,
    /// Counts changes of the set.
    pub version: u64,
}

impl QuotaTable {
    /// A directory's.
    pub fn dir(&self, dir: InodeId) -> Option<&Arc<Quota>> {
        self.all.get(&QuotaSubject::Dir(dir))
    }
}

impl QuotaTable {
    /// The quotas as records, in order.
    pub fn records(&self) -> Vec<QuotaRecord> {
        let record = |quota: &Arc<Quota>| {
            let above = quota.above.as_ref().and_then(|above| match above.of {
                QuotaSubject::Dir(dir) => Some(dir),
                _ => None,
            });
            QuotaRecord { of: quota.of, limits: quota.limits, above }
        };
        let mut records: Vec<QuotaRecord> = self.all.values().map(record).collect();
        records.sort_by_key(|record| record.of);
        records
    }
}

/// A quota that is put into a table.
pub struct NewQuota {
    /// What it limits.
    pub of: QuotaSubject,
    /// The limits.
    pub limits: QuotaLimits,
    /// Of a directory: that of the next quota further up.
    pub above: Option<InodeId>,
    /// What counts.
    pub counters: Arc<QuotaCounters>,
}

/// See the module's header.
#[derive(Default)]
pub struct Quotas {
    in_use: AtomicBool,
    table: RwLock<Arc<QuotaTable>>,
    refused: AtomicU64,
}

impl Quotas {
    /// Whether there are any.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// All of them.
    pub fn table(&self) -> Arc<QuotaTable> {
        self.table.read().clone()
    }

    /// Counts changes of the set.
    pub fn version(&self) -> u64 {
        self.table.read().version
    }

    /// An operation was refused.
    pub fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Charges a worker that holds every worker's state with what an operation on the rows of
    /// several nodes does. The rows that say so; nothing is charged before
    /// [`Quotas::charged`] is called with the same.
    ///
    /// # Errors
    /// If the node's part of a quota is too small, or the set of quotas is another one by now
    /// (`None`).
    pub fn charge_all(
        &self,
        charges: &QuotaCharges,
        worker: usize,
    ) -> Result<Vec<Mutation>, Option<QuotaWant>> {
        let table = self.table();
        if table.version != charges.version {
            return Err(None);
        }
        let mut rows = Vec::new();
        for (of, change) in &charges.own {
            let Some(quota) = table.all.get(of) else { return Err(None) };
            let share = quota.counters.share(worker).plus(*change);
            let key = quota.counters.row(*of, worker).key();
            rows.push(Mutation { key, value: Some(share.encode()) });
        }
        for (quota, change) in totals_of(&table, &charges.own) {
            let is_owner = matches!(quota.of, QuotaSubject::User(_) | QuotaSubject::Group(_));
            let free = is_owner && charges.owners == Owners::Free;
            let used = quota.used();
            for (what, more) in pair(change).into_iter().enumerate().filter(|(_, more)| *more > 0) {
                if let Some(want) = quota.lacking(what, used[what], more, free) {
                    return Err(Some(want));
                }
            }
        }
        Ok(rows)
    }

    /// The rows of [`Quotas::charge_all`] are committed, and nobody has run since.
    pub fn charged(&self, charges: &QuotaCharges, worker: usize) {
        let table = self.table();
        for (of, change) in &charges.own {
            if let Some(quota) = table.all.get(of) {
                quota.counters.add_share(worker, *change);
            }
        }
        for (quota, change) in totals_of(&table, &charges.own) {
            quota.settle(QuotaUsage::default(), change);
        }
    }

    /// Operations that were refused since the node was opened.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The quotas stay, but what an operation was charged with before does not count any more: it
    /// may have read rows of other nodes from before these had the same set. With every worker's
    /// state held.
    pub fn renew(&self) {
        let mut table = self.table.write();
        let (all, dirs, version) = (table.all.clone(), table.dirs, table.version + 1);
        *table = Arc::new(QuotaTable { all, dirs, version });
    }

    /// Puts others in their place and adds up anew. With every worker's state held.
    pub fn replace(&self, new: Vec<NewQuota>) {
        let mut table = QuotaTable { version: self.table().version + 1, ..QuotaTable::default() };
        let above: FxHashMap<InodeId, Option<InodeId>> = new
            .iter()
            .filter_map(|quota| match quota.of {
                QuotaSubject::Dir(dir) => Some((dir, quota.above)),
                _ => None,
            })
            .collect();
        let depth = |quota: &NewQuota| {
            let (mut at, mut depth) = (quota.above, 0);
            while let Some(dir) = at.filter(|_| depth <= above.len()) {
                (at, depth) = (above.get(&dir).copied().flatten(), depth + 1);
            }
            depth
        };
        let mut ordered: Vec<(usize, NewQuota)> =
            new.into_iter().map(|quota| (depth(&quota), quota)).collect();
        ordered.sort_by_key(|(depth, _)| *depth);
        for (_, NewQuota { of, limits, above, counters }) in ordered {
            let above = above.and_then(|dir| table.dir(dir).cloned());
            counters.total.iter().for_each(|sum| sum.store(0, Ordering::Relaxed));
            table.dirs += usize::from(matches!(of, QuotaSubject::Dir(_)));
            table.all.insert(of, Arc::new(Quota { of, limits, above, counters }));
        }
        for quota in table.all.values() {
            let (own, mut at) = (quota.counters.own(), Some(quota));
            while let Some(quota) = at {
                add(&quota.counters.total, own);
                at = quota.above.as_ref();
            }
        }
        for quota in table.all.values() {
            quota.look_at_soft_limits();
            quota.give_back_parts();
        }
        let in_use = !table.all.is_empty();
        *self.table.write() = Arc::new(table);
        self.in_use.store(in_use, Ordering::Release);
    }
}

/// What an operation on rows of several nodes does to the rows of quotas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaCharges {
    /// By the set of quotas with this number.
    pub version: u64,
    /// The changes.
    pub own: Vec<(QuotaSubject, QuotaUsage)>,
    /// Whether it may exceed limits of users and groups.
    pub owners: Owners,
}

/// What changes of the rows of quotas come to, of each quota with those above it.
fn totals_of<'t>(
    table: &'t QuotaTable,
    own: &[(QuotaSubject, QuotaUsage)],
) -> Vec<(&'t Arc<Quota>, QuotaUsage)> {
    let mut totals: Vec<(&Arc<Quota>, QuotaUsage)> = Vec::new();
    for (of, change) in own {
        let mut at = table.all.get(of);
        while let Some(quota) = at {
            match totals.iter_mut().find(|(known, _)| Arc::ptr_eq(known, quota)) {
                Some((_, sum)) => *sum = sum.plus(*change),
                None => totals.push((quota, *change)),
            }
            at = quota.above.as_ref();
        }
    }
    totals
}

/// What a batch has charged to a quota so far.
struct Charge {
    quota: Arc<Quota>,
    /// That of the next quota further up.
    above: Option<ChargeIndex>,
    /// The batch has charged it.
    is_used: bool,
    /// To its rows.
    own: QuotaUsage,
    /// To the total.
    total: QuotaUsage,
    /// Of that, what has been reserved.
    reserved: QuotaUsage,
    /// It came above a soft limit.
    is_above: bool,
}

impl Charge {
    /// The batch has ended.
    fn clear(&mut self) {
        let none = QuotaUsage::default();
        (self.own, self.total, self.reserved) = (none, none, none);
        (self.is_used, self.is_above) = (false, false);
    }

    /// Reserves what is charged beyond what is reserved.
    fn reserve(&mut self, owners: Owners, now: Nanos) -> Result<(), Refusal> {
        let is_owner = matches!(self.quota.of, QuotaSubject::User(_) | QuotaSubject::Group(_));
        let free = is_owner && owners == Owners::Free;
        let files = self.total.files.max(0).saturating_sub(self.reserved.files);
        let bytes = self.total.bytes.max(0).saturating_sub(self.reserved.bytes);
        if files > 0 {
            self.is_above |= self.quota.reserve(0, files, now, free)?;
            self.reserved.files += files;
        }
        if bytes > 0 {
            // What was reserved of files goes back with what is too much ([`Charges::trim`]).
            self.is_above |= self.quota.reserve(1, bytes, now, free)?;
            self.reserved.bytes += bytes;
        }
        Ok(())
    }
}

/// Place of a quota among those that a worker knows, until its batch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChargeIndex(usize);

/// Quotas that a worker remembers from batch to batch.
const KNOWN_MAX: usize = 64;

/// An entry that an operation added or took away.
pub struct ChargedName {
    /// What counts of it.
    pub counted: Counted,
    /// The nearest directory above with a quota.
    pub under: Option<InodeId>,
}

/// What is put together for one operation at a time; empty in between. Kept so that no operation
/// allocates.
#[derive(Default)]
pub struct ChargeScratch {
    /// Entries and inodes that it has changed.
    pub counted: Vec<CountedChange>,
    /// Entries that it took away.
    pub gone: Vec<ChargedName>,
    /// Entries that it added.
    pub come: Vec<ChargedName>,
    /// Changes of what is in the rows of quotas.
    pub changes: Vec<(ChargeIndex, QuotaUsage)>,
}

impl ChargeScratch {
    /// Makes it empty.
    pub fn clear(&mut self) {
        self.counted.clear();
        self.gone.clear();
        self.come.clear();
        self.changes.clear();
    }
}

/// What a batch has charged.
#[derive(Default)]
pub struct Charges {
    /// Each quota after those above it.
    known: Vec<Charge>,
    /// The set of quotas that they are of.
    version: u64,
    /// Those that the batch has charged.
    used: Vec<ChargeIndex>,
    /// Operations that have charged something.
    operations: usize,
    /// What the last of them did.
    last: Vec<(ChargeIndex, QuotaUsage)>,
}

impl Charges {
    /// Operations of the batch that have charged something.
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// An operation is about to be charged by this table.
    pub fn begin(&mut self, table: &QuotaTable) {
        // What is charged is told by its place until the batch has ended.
        let is_stale = self.version != table.version || self.known.len() > KNOWN_MAX;
        if is_stale && self.used.is_empty() {
            self.known.clear();
            self.version = table.version;
        }
    }

    /// The place of a quota. Nothing is charged to it by that.
    pub fn index(&mut self, quota: &Arc<Quota>) -> ChargeIndex {
        let known = self.known.iter().position(|charge| Arc::ptr_eq(&charge.quota, quota));
        ChargeIndex(known.unwrap_or_else(|| {
            let above = quota.above.as_ref().map(|above| self.index(above));
            self.known.push(Charge {
                quota: quota.clone(),
                above,
                is_used: false,
                own: QuotaUsage::default(),
                total: QuotaUsage::default(),
                reserved: QuotaUsage::default(),
                is_above: false,
            });
            self.known.len() - 1
        }))
    }

    /// Charges what an operation does to the rows of quotas, or nothing if one of the totals would
    /// come above its limit.
    pub fn charge(
        &mut self,
        quotas: &Quotas,
        own: &[(ChargeIndex, QuotaUsage)],
        owners: Owners,
        now: Nanos,
    ) -> Result<(), Refusal> {
        // All is added before anything is reserved: what moves below one quota does not grow it.
        own.iter().for_each(|(at, change)| self.add(*at, *change));
        let reserved = own.iter().try_for_each(|(at, _)| self.reserve(*at, owners, now));
        self.last.clear();
        self.last.extend_from_slice(own);
        self.operations += 1;
        if reserved.is_err() {
            self.undo_last();
        }
        if let Err(Refusal::Failed(_)) = &reserved {
            quotas.count_refusal();
        }
        reserved
    }

    /// The last operation that has charged something stops.
    pub fn undo_last(&mut self) {
        let (none, last) = (QuotaUsage::default(), std::mem::take(&mut self.last));
        last.iter().for_each(|(at, change)| self.add(*at, none.minus(*change)));
        self.last = last;
        self.last.clear();
        self.operations = self.operations.saturating_sub(1);
        self.trim();
    }

    /// What an operation does to the rows of quotas, by what they limit: it is charged elsewhere.
    pub fn named(&self, own: &[(ChargeIndex, QuotaUsage)]) -> Vec<(QuotaSubject, QuotaUsage)> {
        let none = QuotaUsage::default();
        let some = own.iter().filter(|(_, change)| *change != none);
        some.map(|(at, change)| (self.known[at.0].quota.of, *change)).collect()
    }

    fn add(&mut self, at: ChargeIndex, change: QuotaUsage) {
        let own = &mut self.known[at.0].own;
        *own = own.plus(change);
        let mut next = Some(at);
        while let Some(at) = next {
            let charge = &mut self.known[at.0];
            charge.total = charge.total.plus(change);
            next = charge.above;
            if !charge.is_used {
                charge.is_used = true;
                self.used.push(at);
            }
        }
    }

    fn reserve(&mut self, at: ChargeIndex, owners: Owners, now: Nanos) -> Result<(), Refusal> {
        let mut next = Some(at);
        while let Some(at) = next {
            let charge = &mut self.known[at.0];
            charge.reserve(owners, now)?;
            next = charge.above;
        }
        Ok(())
    }

    /// Gives back what is reserved beyond what is charged.
    fn trim(&mut self) {
        for at in &self.used {
            let charge = &mut self.known[at.0];
            let needed =
                QuotaUsage { files: charge.total.files.max(0), bytes: charge.total.bytes.max(0) };
            charge.quota.give_back(charge.reserved.minus(needed));
            charge.reserved = needed;
        }
    }

    /// How many quotas the batch has charged.
    pub fn count(&self) -> usize {
        self.used.len()
    }

    /// Adds the rows of a batch of this worker.
    pub fn rows(&self, worker: usize, rows: &mut Vec<Mutation>) {
        for at in &self.used {
            let Charge { quota, own, is_above, .. } = &self.known[at.0];
            if *own != QuotaUsage::default() {
                let key = quota.counters.row(quota.of, worker).key();
                let share = quota.counters.share(worker).plus(*own);
                rows.push(Mutation { key, value: Some(share.encode()) });
            }
            if *is_above {
                let value = Some(quota.counters.since().encode());
                rows.push(Mutation { key: QuotaRow::Since(quota.of).key(), value });
            }
        }
    }

    /// The batch of this worker has committed.
    pub fn commit(&mut self, worker: usize) {
        self.operations = 0;
        for at in self.used.drain(..) {
            let charge = &mut self.known[at.0];
            let quota = &charge.quota;
            quota.counters.add_share(worker, charge.own);
            quota.settle(charge.reserved, charge.total);
            if charge.is_above && quota.counters.since() != OverSince::default() {
                log::warn!(
                    "the quota of {} is above its soft limit: {:?}",
                    name(quota.of),
                    quota.info().used
                );
            }
            charge.clear();
        }
    }

    /// The batch has not committed.
    pub fn undo(&mut self) {
        self.operations = 0;
        for at in self.used.drain(..) {
            let charge = &mut self.known[at.0];
            charge.quota.give_back(charge.reserved);
            charge.clear();
        }
    }
}
