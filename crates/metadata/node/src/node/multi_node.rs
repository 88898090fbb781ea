//! A node as one of several that share a volume: what its `kestrel_cluster` needs of it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kestrel_types::clock::{Clock, Nanos};
use kestrel_types::codec::Reader;
use kestrel_types::error::FsResult;
use kestrel_types::feed::FeedRow;
use kestrel_types::ids::{InodeId, ObjectId, Position};
use kestrel_types::inode::Inode;
use kestrel_types::key::{Table, number_of};
use kestrel_types::quota::QuotaSubject;
use kestrel_types::request::{Op, Reply, Request};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use kestrel_types::stat::DirStat;

use super::dispatch::AllWorkers;
use super::{Node, NodeConfig, RootAttr};
use crate::effects::{Mark, OpenChange};
use crate::feeds::FeedPlace;
use crate::ids::Block;
use crate::lease::LeaseView;
use crate::ops;
use crate::ops::{policy, readdir, removal_check, usage};
use crate::owners::{MapView, Owners};
use crate::perm::Dentry;
use crate::pipeline::UsageChange;
use crate::quotas::QuotaCharges;
use crate::rows::{Missing, TxnRows};
use crate::session::Claim;
use crate::stop::{Route, Run, Stop, Want, engine_error};
use crate::txn::{self, Origin};
use crate::view::{Core, View};
use crate::worker::{QueuedRequest, ReplySink, ReplyTarget, WorkerState};
use kestrel_engine::{Engine, Mutation};

use std::collections::BTreeSet;

/// What a run of a transaction on the rows it has been lent came to.
pub enum Ran {
    /// It needs more.
    Lacks(Missing),
    /// It needs a dentry in the replica.
    Dentry(Want),
    /// It needs a lease.
    Unleased,
    /// Rows that were cut off the file have to be deleted first, which its home does.
    Later,
    /// A snapshot is being made, and this waits for that.
    Stopped,
    /// It makes a snapshot, and nothing is in the way of that.
    Cut,
    /// It reads a change feed: this one, of which all nodes have a part.
    Feed(FeedPlace),
    /// It shows these quotas, of which all nodes have counted a part.
    Quotas(Vec<QuotaSubject>),
    /// This directory belongs to a clone and has not all names yet.
    Names(InodeId),
    /// It clones this directory as it was at a snapshot, which has not been read.
    CloneSource(InodeId, SnapshotId),
    /// It has ended.
    Ended(Box<Ended>),
}

/// What a node's rows say of some directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreePart {
    /// Entries, directories among them, bytes.
    pub sum: [i64; 3],
    /// Directories in them, in order, each with the index of the one that it is in.
    pub children: Vec<(u32, InodeId)>,
    /// There are more.
    pub more: bool,
    /// Those of the directories that lack names and have this node as their home.
    pub based: Vec<InodeId>,
    /// There are clones that are not finished.
    pub clones: bool,
}

/// What a node keeps in memory of rows that came to it, or went.
#[derive(Default)]
pub struct Moved {
    /// Files in table `link`: whether they have come, their size, and whether they have no name.
    pub files: Vec<(InodeId, bool, i64, bool)>,
    /// Files with rows that are being deleted: from which chunk on, of those that have come.
    pub sweeps: Vec<(InodeId, Option<u64>)>,
    /// What shares of directories that came or went count for in the volume's figures.
    pub usage: UsageChange,
}

/// What changes of rows do to what a node keeps of them in memory.
pub struct MemoryEffect {
    /// The volume's figures.
    usage: UsageChange,
    /// Rows to be deleted.
    sweeps: Vec<(InodeId, Option<u64>)>,
}

/// A transaction that needs no more rows: its answer and what there is to commit.
pub struct Ended {
    /// The answer.
    pub reply: Reply,
    /// What it changes, on whichever nodes.
    pub mutations: Vec<Mutation>,
    /// Directories that it changes or removes.
    pub dirs: Vec<InodeId>,
    /// Objects that it adds references to.
    pub referred: Vec<ObjectId>,
    /// Nobody may hear the answer before this is durable: changes of directories that the paths
    /// rely on.
    pub wait: Position,
    /// Opens that count, or do not any more, at the leader, once it is decided.
    pub opens: Vec<OpenChange>,
    /// Records of snapshots that it writes, at the leader.
    pub snapshots: Vec<SnapshotInfo>,
    /// Events of change feeds, which the leader keeps. Their timestamps are for the decision to say
    /// ([`Node::stamp_feed_events`]).
    pub feed_events: Vec<Mutation>,
    /// What it charges to quotas, at the leader, by the quotas that there were when it ran.
    pub charges: QuotaCharges,
    /// What it changes is no change of the volume: all snapshots since a clone was made have it
    /// ([`crate::clones`]).
    pub below: bool,
}

impl Ended {
    /// Of an operation that changes nothing.
    pub(super) fn nothing() -> Self {
        Self {
            reply: Ok(kestrel_types::request::Answer::Done),
            mutations: Vec::new(),
            dirs: Vec::new(),
            referred: Vec::new(),
            wait: 0,
            opens: Vec::new(),
            snapshots: Vec::new(),
            feed_events: Vec::new(),
            charges: QuotaCharges::default(),
            below: false,
        }
    }
}

impl Node {
    /// As [`Node::format`], for one node of a cluster: of the root's rows it gets those that it
    /// owns.
    ///
    /// # Errors
    /// As [`Node::format`].
    pub fn format_one_of(
        engine: &dyn Engine,
        root: RootAttr,
        now: Nanos,
        cluster: &Owners,
    ) -> FsResult<()> {
        let table = cluster.table();
        Self::format_rows(engine, root, now, &|key| table.owns(key.table, key.id, &key.suffix))
    }

    /// As [`Node::open`], for one node of a cluster.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn open_one_of(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        config: NodeConfig,
        cluster: Owners,
    ) -> FsResult<Arc<Self>> {
        Self::open_as(engine, clock, config, Some(cluster))
    }

    /// What it knows of the other nodes, if it is one of several.
    #[inline]
    pub fn cluster(&self) -> Option<&Owners> {
        self.core.cluster.as_deref()
    }

    /// What the namespace replica believes of a directory: its dentry and its name.
    pub fn known_dir(&self, dir: InodeId) -> Option<(Dentry, Box<[u8]>)> {
        let (dentry, _) = self.core.replica.get(dir)?;
        let (_, name) = self.core.replica.place(dir)?;
        Some((dentry, name))
    }

    /// How many directories have changed (their names, parents or permissions, or that they exist)
    /// so far; none while this node may miss such changes, for want of a lease. A change is counted
    /// here before anybody hears that it was made. So what [`Node::dir_above`] says between two
    /// calls with the same answer was true in between.
    #[inline]
    pub fn dir_changes(&self) -> Option<u64> {
        let changes = self.core.replica.forgotten();
        let counts = self.core.cluster.as_ref().is_none_or(|cluster| cluster.lease.is_held());
        counts.then_some(changes)
    }

    /// The directory above a directory, if the namespace replica has it: see [`Node::dir_changes`].
    #[inline]
    pub fn dir_above(&self, dir: InodeId) -> Option<InodeId> {
        self.core.replica.get(dir).map(|(dentry, _)| dentry.parent)
    }

    /// Files without names that have it as their home.
    pub fn orphans(&self) -> usize {
        self.core.orphans.len()
    }

    /// The table if the node may have rows that it does not own.
    pub(super) fn strangers_table(&self) -> Option<Arc<MapView>> {
        self.core.cluster.as_ref().map(|cluster| cluster.table()).filter(|table| table.strangers)
    }

    /// The engine below the layer that keeps history.
    pub fn engine_below(&self) -> &Arc<dyn Engine> {
        &self.below
    }

    /// Whether it is one of several.
    pub(super) fn shares_volume(&self) -> bool {
        self.core.cluster.is_some()
    }

    /// Whether another process may claim its store while it runs.
    pub(super) fn is_claimable(&self) -> bool {
        self.core.cluster.as_ref().is_some_and(|cluster| cluster.is_shared())
    }

    /// What all workers share.
    #[inline]
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Holds every worker's state: no batch runs meanwhile. What waits is served by
    /// [`Node::drive_due`].
    pub fn quiesce(&self) -> AllWorkers<'_> {
        self.hold_quietly()
    }

    /// Has a request, or a claim of opens, served by this node alone, or says to `sink` why it
    /// cannot be; by [`Node::drive_due`].
    pub fn submit_alone(
        &self,
        request: Request,
        origin: Option<Origin>,
        claim: Option<Claim>,
        sink: Arc<dyn ReplySink>,
        number: usize,
    ) {
        if claim.is_some() {
            let job = QueuedRequest::new(request, ReplyTarget::Sink(sink, number));
            self.workers[self.core.workers].push(QueuedRequest { claim, ..job });
        } else {
            self.enqueue(request, origin, ReplyTarget::Sink(sink, number), Instant::now());
        }
        self.due.store(true, Ordering::Release);
    }

    /// As [`Node::submit_batch`], with numbers that the caller has chosen, and with what it cannot
    /// serve alone handed back.
    pub fn submit_numbered(
        &self,
        requests: impl Iterator<Item = (usize, Request, Option<Origin>)>,
        sink: &Arc<dyn ReplySink>,
    ) {
        let (mut pending, now) = (0, Instant::now());
        for (number, request, origin) in requests {
            pending |= self.enqueue(request, origin, ReplyTarget::Sink(sink.clone(), number), now);
        }
        self.drive(pending);
    }

    /// Files, directories and bytes of the volume, as far as this node's shares have them.
    pub fn figures(&self) -> [i64; 3] {
        self.usage_now()
    }

    /// Of directories what this node's rows say: the figures of its shares, unless `after` some
    /// place; and up to `limit` directories in them.
    pub fn tree_part(
        &self,
        dirs: &[InodeId],
        after: Option<(u32, InodeId)>,
        limit: usize,
    ) -> FsResult<TreePart> {
        let table = self.strangers_table();
        let strange =
            |kind, suffix: &[u8]| table.as_ref().is_some_and(|table| !table.owns(kind, 0, suffix));
        let (mut sum, mut based) = (DirStat::default(), Vec::new());
        let clones = self.has_clones()?;
        if after.is_none() {
            for dir in dirs {
                if clones && self.lacks_names(*dir)? {
                    based.push(*dir);
                }
                usage::add_shares(
                    &*self.engine,
                    *dir,
                    &|share| !strange(Table::DirStat, share),
                    &mut sum,
                )?;
            }
        }
        let (mut children, mut more) = (Vec::new(), false);
        for (index, dir) in (0u32..).zip(dirs).skip(after.map_or(0, |(index, _)| index as usize)) {
            let last = after.filter(|(at, _)| *at == index).map(|(_, child)| child.to_be_bytes());
            let last = last.as_ref().map(|last| &last[..]);
            let visited = self.engine.scan(Table::Subdir, *dir, last, &mut |child, _, _| {
                if strange(Table::Subdir, child) {
                    return ControlFlow::Continue(());
                }
                more = children.len() == limit;
                if more {
                    return ControlFlow::Break(());
                }
                children.push((index, number_of(child)));
                ControlFlow::Continue(())
            });
            visited.map_err(engine_error)?;
            if more {
                break;
            }
        }
        Ok(TreePart { sum: [sum.children, sum.subdirs, sum.bytes], children, more, based, clones })
    }

    /// What a transaction's changes of rows do to what is kept in memory. With every worker's state
    /// held, before they are committed.
    ///
    /// # Errors
    /// The engine's.
    pub fn effect_of(&self, changes: &[Mutation]) -> FsResult<MemoryEffect> {
        let counted = |change: &&Mutation| matches!(change.key.table, Table::DirStat | Table::Link);
        let counted: Vec<&Mutation> = changes.iter().filter(counted).collect();
        let keys: Vec<_> = counted.iter().map(|change| change.key.borrow()).collect();
        let mut usage: UsageChange = [0; 3];
        let read = self.engine.get_many(&keys, &mut |index, row| {
            let change = counted[index];
            let before = figures_of(change.key.table, row.value);
            let after = figures_of(change.key.table, change.value.as_deref());
            usage =
                std::array::from_fn(|i| usage[i].wrapping_add(after[i]).wrapping_sub(before[i]));
        });
        read.map_err(engine_error)?;
        let mut sweeps = Vec::new();
        let swept = changes.iter().filter(|change| change.key.table == Table::Sweep);
        // One row goes and another comes: the one that comes counts.
        for comes in [false, true] {
            let some = swept.clone().filter(|change| change.value.is_some() == comes);
            sweeps.extend(
                some.map(|change| (change.key.id, comes.then(|| number_of(&change.key.suffix)))),
            );
        }
        Ok(MemoryEffect { usage, sweeps })
    }

    /// The changes are committed.
    pub fn take_effect(&self, effect: MemoryEffect) {
        self.add_usage(effect.usage);
        for (ino, first) in effect.sweeps {
            self.core.sweeps.set(ino, first);
        }
    }

    /// Rows have come, and gone, with a new table. With every worker's state held.
    pub fn take_moved(&self, moved: Moved) {
        self.add_usage(moved.usage);
        for (ino, comes, size, orphans) in moved.files {
            self.add_usage([0, 0, if comes { size } else { size.wrapping_neg() }]);
            match (comes, orphans) {
                (true, true) => self.core.orphans.insert(ino),
                (true, false) => {}
                // Its new home asks all members whether they have it open.
                (false, _) => {
                    self.core.orphans.remove(ino);
                    self.core.opens.keep(ino);
                }
            }
        }
        for (ino, first) in moved.sweeps {
            self.core.sweeps.set(ino, first);
        }
    }

    /// Whether a request has an answer on record, or one that came later has: then the node says
    /// so.
    #[inline]
    pub fn has_answer(&self, origin: Origin) -> bool {
        origin.retry && txn::is_answered(&*self.engine, origin)
    }

    /// Something that no inode number was made of.
    pub fn counter(&self) -> FsResult<u64> {
        self.inodes.take(&*self.engine, 1).map_err(engine_error)
    }

    /// The newest timestamp it has issued or observed.
    #[inline]
    pub fn stamp(&self) -> u64 {
        self.stamps.last()
    }

    /// Another node has issued this timestamp.
    #[inline]
    pub fn observe(&self, stamp: u64) {
        self.stamps.observe(stamp);
    }

    /// Sees to it that the log has a ceiling above every timestamp issued or observed.
    pub fn raise_ceiling(&self) -> FsResult<()> {
        self.stamps.tick(&*self.engine, self.clock.now()).map(drop).map_err(engine_error)
    }

    /// A batch was committed beside the workers.
    #[inline]
    pub fn note_commit(&self, position: u64) {
        self.committed_at(position);
    }

    /// Position of the newest batch, of the workers or beside them.
    #[inline]
    pub fn last_commit(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Runs an operation, or a claim of opens, on the rows that were lent for it. Nothing is
    /// committed, and nothing of what it does besides stays: that is for the deciding member.
    /// `no_dirs`: what has been found to be no directory, so that it is looked at as a row.
    /// `counter`: what the number of a new inode is made of.
    pub fn transact(
        &self,
        (request, claim): (&Request, Option<Claim>),
        lent: &TxnRows,
        no_dirs: &BTreeSet<Want>,
        counter: u64,
    ) -> FsResult<Ran> {
        let mut held = self.hold_quietly();
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let lease_view = self
            .core
            .cluster
            .as_ref()
            .map_or_else(|| LeaseView::of(None, false), |cluster| cluster.lease_view());
        if !lease_view.may_begin() {
            return Ok(Ran::Unleased);
        }
        let stamp = self.stamps.tick(&*self.engine, self.clock.now()).map_err(engine_error)?;
        let WorkerState { rows, effects, walks, .. } = held.exclusive();
        rows.clear();
        let ran = loop {
            effects.back_to(&Mark::default(), &self.core.opens);
            effects.clear();
            let ids = &mut Block::of_one(counter);
            let mut view = View {
                rows,
                core: &self.core,
                table: table.as_deref(),
                lease_view: &lease_view,
                effects,
                ids,
                walks,
                worker: self.core.workers,
                now: self.clock.now(),
                stamp,
                dry: false,
                route: &Route::AsAsked,
                planned: &mut None,
                wait: 0,
                depends: false,
                no_dirs: Some(no_dirs),
            };
            let mut charges = QuotaCharges::default();
            let result = run(&mut view, request, claim, lent).and_then(|listing| {
                view.note_feed_events(request)?;
                charges = view.quota_charges(request)?;
                Ok(listing)
            });
            let wait = view.wait;
            let reply = match result {
                Ok(Listing::Lacks(missing)) => break Ran::Lacks(missing),
                Ok(Listing::Feed(place)) => break Ran::Feed(place),
                Ok(Listing::Answer(answer)) => Ok(answer),
                Err(Stop::Need) => {
                    rows.rollback();
                    let missing = rows.supply(lent, self.core.scan_rows);
                    if missing == Missing::default() {
                        continue;
                    }
                    break Ran::Lacks(missing);
                }
                Err(Stop::Dentry(want)) => break Ran::Dentry(want),
                Err(Stop::Unleased) => break Ran::Unleased,
                Err(Stop::Unswept(..)) => break Ran::Later,
                Err(Stop::Stopped) => break Ran::Stopped,
                Err(Stop::Cut) => break Ran::Cut,
                Err(Stop::Quotas(of)) => break Ran::Quotas(of),
                Err(Stop::Based(dir)) => break Ran::Names(dir),
                Err(Stop::CloneSource(dir, at)) => break Ran::CloneSource(dir, at),
                Err(stop) => Err(stop.without_rows()),
            };
            let mut ended = Ended { reply, wait, charges, ..Ended::nothing() };
            if ended.reply.is_ok() {
                rows.keep();
                ended.mutations = rows.mutations(0);
                ended.dirs = effects.dirs_changed.iter().copied().collect();
                ended.referred = std::mem::take(&mut effects.referred);
                ended.snapshots = std::mem::take(&mut effects.snapshots);
                let rows = std::mem::take(&mut effects.feed_rows).into_iter();
                let is_event = |row: &Mutation| {
                    matches!(FeedRow::of(&row.key.suffix), Some(FeedRow::Event(_)))
                };
                let (events, marks): (Vec<_>, Vec<_>) = rows.partition(is_event);
                ended.mutations.extend(marks);
                ended.feed_events = events;
                ended.opens = effects.postpone_opens(&self.core.opens);
            }
            break Ran::Ended(Box::new(ended));
        };
        rows.rollback();
        rows.clear();
        effects.back_to(&Mark::default(), &self.core.opens);
        effects.clear();
        Ok(ran)
    }
}

/// What a row counts for in the volume's figures. A damaged one is fsck's business.
pub fn figures_of(table: Table, row: Option<&[u8]>) -> UsageChange {
    let Some(row) = row else { return [0; 3] };
    match table {
        Table::DirStat => {
            let stat = DirStat::decode(row).unwrap_or_default();
            [stat.children - stat.subdirs, stat.subdirs, stat.bytes]
        }
        _ => {
            [0, 0, Inode::decode(&mut Reader::new(row)).map_or(0, |inode| inode.size.cast_signed())]
        }
    }
}

enum Listing {
    Answer(kestrel_types::request::Answer),
    Lacks(Missing),
    Feed(FeedPlace),
}

/// Runs the operation; a listing, which has no worker of its own, too.
fn run(
    view: &mut View<'_>,
    request: &Request,
    claim: Option<Claim>,
    lent: &TxnRows,
) -> Run<Listing> {
    if let Some(claim) = claim {
        return ops::open::claim(view, &request.op, claim).map(Listing::Answer);
    }
    let (dir, after, limit, check, plus) = match &request.op {
        Op::ReadDir { dir, after, limit, check } => (dir, after, limit, *check, false),
        Op::ReadDirPlus { dir, after, limit } | Op::RemovalCheck { dir, after, limit } => {
            (dir, after, limit, true, true)
        }
        Op::FeedRead { dir, from, .. } => return view.feed_of(*dir, *from).map(Listing::Feed),
        _ => return ops::execute(view, request).map(Listing::Answer),
    };
    let dir = view.dir(*dir)?;
    view.need_dir_names(&dir)?;
    let removed = matches!(request.op, Op::RemovalCheck { .. });
    match plus {
        true if removed => removal_check::check(&request.creds, &dir)?,
        true => readdir::check_plus(&request.creds, &dir)?,
        false => readdir::check(&request.creds, &dir, check)?,
    }
    let span = readdir::span(dir.ino, after.as_ref(), *limit);
    match lent.spans.get(&span) {
        Some(rows) if removed => {
            removal_check::merged(&request.creds, &dir, rows, *limit).map(Listing::Answer)
        }
        Some(rows) if plus => {
            let mut answer = readdir::merged_plus(dir.ino, rows, *limit)?;
            if view.may_have_policies() && policy::is_searched_by_all(&dir) {
                readdir::tell_policy(&mut answer, view.handed_down(&dir)?);
            }
            Ok(Listing::Answer(answer))
        }
        Some(rows) => Ok(Listing::Answer(readdir::merged(dir, rows, *limit)?)),
        None => Ok(Listing::Lacks(Missing { keys: Vec::new(), spans: vec![span] })),
    }
}
