//! Requests that need no worker: they read the engine where a batch would gain nothing and a
//! worker's state would be held too long, or ask for numbers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kestrel_types::entry::Entry;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ObjectId, Position, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::op_kind;
use kestrel_types::placement::{
    JOB_OBJECT_COUNTERS_MAX, OBJECT_BLOCK, OBJECT_COUNTERS_MAX, job_object_in, object_in,
};
use kestrel_types::policy::Policy;
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request, Usage};

use super::dispatch::several;
use super::reply_thread::PendingReply;
use super::snapshot_changes::Compared;
use super::{Durability, Node};
use crate::clones::WITHOUT_NAMES;
use crate::ops::{chunks, locate, policy, readdir, removal_check};
use crate::owners::MapView;
use crate::perm::{self, Dentry, EXEC, READ, WRITE};
use crate::pipeline;
use crate::replica::PolicyUse;
use crate::stop::{Stop, engine_error};
use crate::view::{decode_dir_id, guard_of};
use crate::worker::{HandedBack, NotAloneReason, ReplySlot, ReplyTarget, Woken};

/// Most object numbers handed out at once.
pub const OBJECTS_MAX: u32 = OBJECT_BLOCK as u32;

impl Node {
    pub(super) fn call_without_worker(&self, request: Request) -> Reply {
        let slot = std::sync::Arc::new(ReplySlot::default());
        let waiter = slot.clone();
        self.submit_without_worker(request, ReplyTarget::Slot(waiter));
        loop {
            if let Woken::Done(reply) = slot.wait() {
                return reply;
            }
        }
    }

    pub(super) fn submit_without_worker(&self, request: Request, sink: ReplyTarget) {
        let since = Instant::now();
        let kind = op_kind::kind(&request.op);
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let hand_back = |request: Request, sink: ReplyTarget, why| match sink {
            ReplyTarget::Sink(sink, number) => {
                sink.hand_back(number, HandedBack { request, origin: None, why })
            }
            sink => sink.give(Err(several())),
        };
        let may_answer = || self.core.cluster.as_ref().is_none_or(|cluster| cluster.may_answer());
        if !may_answer() {
            return hand_back(request, sink, NotAloneReason::Unleased);
        }
        if self.is_kept(&request.op, table.as_deref()) {
            return hand_back(request, sink, NotAloneReason::Locked);
        }
        let mut wait = 0;
        let reply = match &request.op {
            Op::At(snapshot, op) => match self.at_snapshot(&request.creds, *snapshot, op) {
                Some(reply) => {
                    // That there is no such snapshot may be undone by a loss of power.
                    wait = if reply.is_err() { self.core.snapshots.changed_at() } else { 0 };
                    reply
                }
                None => return hand_back(request, sink, NotAloneReason::Away),
            },
            Op::FeedRead { .. } | Op::SnapshotUsage { .. } | Op::SnapshotChanges { .. }
                if table.as_ref().is_some_and(|table| !table.is_alone()) =>
            {
                return hand_back(request, sink, NotAloneReason::Away);
            }
            // One node leads them, as `kestrel_cluster` does.
            Op::QuotaSet(..)
            | Op::QuotaRemove(_)
            | Op::QuotaList(None)
            | Op::QuotaCheck { .. }
            | Op::CloneStep(_)
            | Op::TreeUsage(_)
                if table.is_some() =>
            {
                return hand_back(request, sink, NotAloneReason::Away);
            }
            _ => self.answer(&request, &mut wait),
        };
        if table.is_some()
            && reply == Err(Outcome::Failed(WITHOUT_NAMES))
            && let Op::ReadDir { dir, .. }
            | Op::ReadDirPlus { dir, .. }
            | Op::RemovalCheck { dir, .. } = request.op
        {
            return hand_back(request, sink, NotAloneReason::Names(dir));
        }
        if let (
            Some(table),
            Op::Chunks { .. }
            | Op::ReadDir { .. }
            | Op::ReadDirPlus { .. }
            | Op::RemovalCheck { .. },
        ) = (&table, &request.op)
            && !self
                .core
                .cluster
                .as_ref()
                .is_some_and(|cluster| Arc::ptr_eq(table, &cluster.table()))
        {
            // What was read may be another node's by now, and changed there, or gone from here.
            return hand_back(request, sink, NotAloneReason::Locked);
        }
        // As a batch does ([`crate::pipeline`]).
        if !may_answer() {
            return hand_back(request, sink, NotAloneReason::Unleased);
        }
        if self.is_claimable() && pipeline::is_lost(&*self.engine, &reply) {
            return hand_back(request, sink, NotAloneReason::Later);
        }
        let sync = matches!(request.op, Op::Sync);
        let tray = self.reply_thread.tray(
            self.counters.clone(),
            self.core.workers + 2,
            self.is_claimable(),
        );
        let pending = PendingReply { sink, reply, kind, since };
        let must_wait = sync || self.durability == Durability::Commit;
        if must_wait && wait > self.engine.durable() {
            self.engine.on_durable(wait, Box::new(move |result| tray.give(vec![pending], &result)));
        } else {
            tray.give_here(pending);
        }
    }

    /// Whether a file's chunks are kept from everybody because they are lent or leave. If a
    /// transaction over several nodes is about to change them, a client that has heard that it
    /// ended asks for them after that, and must not see them as they were: they stay lent until
    /// this node, too, has made the changes. (A client that asks at the same time may see either,
    /// as on one node: the check and the reading are two moments.)
    fn is_kept(&self, op: &Op, table: Option<&MapView>) -> bool {
        match (op, &self.core.cluster, table) {
            (Op::Chunks { ino, .. }, Some(cluster), Some(table)) => {
                let owned = table.home_of(*ino) == table.me && !table.is_leaving_home(*ino);
                !owned || cluster.locks.bars_range((Table::Chunk, *ino))
            }
            _ => false,
        }
    }

    /// The answer. `wait` becomes the position that it waits for: a refusal, too, may tell of a
    /// change that is not durable.
    pub(super) fn answer(&self, request: &Request, wait: &mut Position) -> Result<Answer, Outcome> {
        match &request.op {
            Op::ReadDir { dir, after, limit, check } => {
                let check = if *check { READ } else { 0 };
                let parent = self.opened_dir(&request.creds, *dir, check, wait)?.parent;
                let (answer, seen) =
                    readdir::run(&*self.engine, *dir, parent, after.as_ref(), *limit)?;
                *wait = seen.max(*wait);
                Ok(answer)
            }
            Op::ReadDirPlus { dir, after, limit } => {
                self.opened_dir(&request.creds, *dir, READ | EXEC, wait)?;
                // Before the entries: what was immutable then is as it was read.
                let policy = self.known_policy(*dir);
                let (mut answer, seen) =
                    readdir::run_plus(&*self.engine, *dir, after.as_ref(), *limit)?;
                *wait = seen.max(*wait);
                readdir::tell_policy(&mut answer, policy);
                Ok(answer)
            }
            Op::RemovalCheck { dir, after, limit } => {
                let creds = &request.creds;
                let dir = self.opened_dir(creds, *dir, READ | WRITE | EXEC, wait)?;
                let (answer, seen) =
                    removal_check::run(&*self.engine, creds, &dir, after.as_ref(), *limit)?;
                *wait = seen.max(*wait);
                Ok(answer)
            }
            Op::Chunks { ino, first, last } => {
                let (answer, seen) = chunks::run(&*self.engine, *ino, *first, *last)?;
                *wait = seen;
                Ok(answer)
            }
            Op::AllocObjects(count) if (1..=OBJECTS_MAX).contains(count) => {
                let (first, taken_at) = self.take_objects(*count)?;
                *wait = taken_at;
                Ok(Answer::Objects { first, count: *count })
            }
            Op::AllocObjects(_) => {
                Err(FsError::new(libc::EINVAL, "ask for 1 to 1048576 object numbers").into())
            }
            Op::Usage => {
                let [files, dirs, bytes] =
                    self.usage_now().map(|value| value.max(0).cast_unsigned());
                Ok(Answer::Usage(Usage { files, dirs, bytes }))
            }
            Op::Locate { .. } if request.creds.uid != 0 => {
                Err(FsError::new(libc::EPERM, "only the superuser looks for files by number")
                    .into())
            }
            Op::SnapshotList { dir, ancestors } => {
                self.list_snapshots(&request.creds, (*dir, *ancestors), wait)
            }
            Op::SnapshotChanges { dir, older, newer, files, limit, after } => {
                let compared = Compared { dir: *dir, older: *older, newer: *newer, limit: *limit };
                self.snapshot_changes(&request.creds, &compared, (files, after.as_ref()), wait)
            }
            Op::SnapshotUsage { snapshot, after } => {
                Ok(Answer::SnapshotUsage(self.snapshot_usage(*snapshot, after.as_ref())?))
            }
            // A hint, so nothing to wait for: the client asks for what is there.
            Op::Locate { files, after } => {
                Ok(locate::run(&*self.engine, (files, after.as_ref()), &|_, _| true)?)
            }
            Op::TreeUsage(dir) => {
                self.place_of(*dir, wait)?;
                Ok(Answer::Usage(self.tree_usage(None, *dir)?))
            }
            Op::CloneStep(dir) => self.clone_step(&request.creds, *dir),
            Op::QuotaSet(of, limits) => self.set_quota(&request.creds, *of, limits, wait),
            Op::QuotaRemove(of) => self.remove_quota(&request.creds, *of, wait),
            Op::QuotaList(_) => self.list_quotas(&request.creds),
            Op::QuotaCheck { repair } => self.check_quotas(&request.creds, *repair, wait),
            Op::FeedRead { dir, from, limit } => {
                Ok(self.read_feed(&request.creds, *dir, *from, *limit, wait)?)
            }
            // Of several nodes in mode `commit` what any of them has acknowledged is durable there,
            // and the halves that participants have yet to make are on record: there is nobody to
            // ask. Of others the client asks each.
            Op::Sync => {
                *wait = self.committed.load(Ordering::Relaxed);
                Ok(Answer::Done)
            }
            _ => Err(FsError::new(libc::EINVAL, "this request needs a worker").into()),
        }
    }

    /// Numbers for objects, and the position to wait for: a client that gets them writes objects
    /// before anything of that is in a log, and a crash must not have the same numbers handed out
    /// again. Of several nodes each has blocks of its own.
    fn take_objects(&self, count: u32) -> FsResult<(ObjectId, Position)> {
        let count = u64::from(count);
        let Some(cluster) = &self.core.cluster else {
            let taken = self.objects.take_in_block(&*self.engine, count, u64::MAX);
            let (first, wait) = taken.map_err(engine_error)?;
            // Another machine that takes the volume over must not hand them out again, either.
            self.engine.upload(wait).map_err(engine_error)?;
            return Ok((first, wait));
        };
        let taken = self.objects.take_in_block(&*self.engine, count, OBJECT_BLOCK);
        let (first, wait) = taken.map_err(engine_error)?;
        let from = self.core.objects_from;
        let max = if from == 0 { OBJECT_COUNTERS_MAX } else { JOB_OBJECT_COUNTERS_MAX };
        if first >= max {
            return Err(FsError::new(libc::ENOSPC, "metadata: no object numbers are left"));
        }
        if from == 0 {
            return Ok((object_in(first, cluster.me), wait));
        }
        // Its node may be of mode `fsync`, in which nobody waits.
        self.engine.upload(wait).map_err(engine_error)?;
        Ok((job_object_in(from, first, cluster.me), wait))
    }

    /// A directory that shall be listed, if the caller has the permissions `check` in it. `wait`
    /// becomes the position that an answer waits for, whatever it is.
    fn opened_dir(
        &self,
        creds: &Creds,
        dir: InodeId,
        check: u32,
        wait: &mut Position,
    ) -> Result<Dentry, Outcome> {
        let dentry = match self.core.replica.get(dir) {
            Some((known, changed_at)) => {
                *wait = changed_at;
                known
            }
            None => match self.dentry_of(dir, wait)? {
                Some(read) => read,
                // Of a clone that is newer than the snapshot (`crate::clones`).
                None if self.core.is_snapshot => {
                    let why = "the directory was not there at the snapshot";
                    return Err(FsError::new(libc::ENOENT, why).into());
                }
                // It was moved between the two reads: nobody moves it now.
                None => {
                    let _all = self.hold_all();
                    let damaged = FsError::because(
                        libc::EIO,
                        format!("metadata: damaged dirid row of {dir}"),
                    );
                    self.dentry_of(dir, wait)?.ok_or(damaged)?
                }
            },
        };
        if check != 0 {
            perm::check(creds, &dentry.guard, check).map_err(Stop::without_rows)?;
        }
        if dentry.policy.base.is_some() {
            if self.core.is_snapshot && self.core.cluster.is_none() {
                self.core.clones.want(dir);
            }
            if self.core.is_snapshot || self.core.cluster.is_some() {
                return Err(WITHOUT_NAMES.into());
            }
            self.give_all_names(dir)?;
            *wait = self.committed.load(Ordering::Relaxed);
        }
        Ok(dentry)
    }

    /// What counts for how a client may keep what is in a directory, if the replica knows it at one
    /// moment.
    fn known_policy(&self, dir: InodeId) -> Policy {
        let replica = &self.core.replica;
        let held = self.core.cluster.as_ref().is_none_or(|cluster| cluster.holds_lease());
        if replica.policy_use() != PolicyUse::Some || !held {
            return Policy::default();
        }
        let forgotten = replica.forgotten();
        let Some((mut at, _)) = replica.get(dir) else { return Policy::default() };
        let (listed, mut policy) = (policy::is_searched_by_all(&at), at.policy.own);
        while at.ino != ROOT {
            let Some((above, _)) = replica.get(at.parent) else { return Policy::default() };
            policy = policy.over(above.policy.own);
            at = above;
        }
        if listed && replica.forgotten() == forgotten { policy } else { Policy::default() }
    }

    /// A directory's dentry as the rows have it; `None` if it is not where it is said to be. `wait`
    /// becomes at least the position of what was read.
    pub(super) fn dentry_of(&self, dir: InodeId, wait: &mut Position) -> FsResult<Option<Dentry>> {
        let damaged = |why| {
            FsError::because(
                libc::EIO,
                format!("metadata: damaged entry of directory {dir}: {why}"),
            )
        };
        let (parent, name) = self.place_of(dir, wait)?;
        let mut found = Ok(None);
        let read =
            self.engine.get_many(&[KeyRef::new(Table::Entry, parent, &name)], &mut |_, row| {
                *wait = row.changed_at.max(*wait);
                found = row.value.map(Entry::decode).transpose();
            });
        read.map_err(engine_error)?;
        let parent = if dir == ROOT { ROOT } else { parent };
        Ok(match found.map_err(damaged)? {
            Some(Entry::Inode(inode)) if inode.ino == dir && inode.kind == Kind::Dir => {
                let policy = inode.policy().map_err(damaged)?;
                Some(Dentry { ino: dir, parent, guard: guard_of(&inode), policy })
            }
            _ => None,
        })
    }

    /// Where a directory is: the one above it, and its name; nowhere of the root. `wait` becomes at
    /// least the position of what was read, also where that is that the directory is no more.
    pub fn place_of(&self, dir: InodeId, wait: &mut Position) -> FsResult<(InodeId, Box<[u8]>)> {
        if dir == ROOT {
            return Ok((0, Box::default()));
        }
        let mut place = Err(FsError::new(libc::ENOENT, "the directory has been removed"));
        let read = self.engine.get_many(&[KeyRef::new(Table::DirId, dir, b"")], &mut |_, row| {
            *wait = row.changed_at.max(*wait);
            if let Some(bytes) = row.value {
                place = decode_dir_id(bytes).map(|(parent, name)| (parent, name.into())).map_err(
                    |why| {
                        FsError::because(
                            libc::EIO,
                            format!("metadata: damaged dirid row of {dir}: {why}"),
                        )
                    },
                );
            }
        });
        read.map_err(engine_error)?;
        place
    }
}
