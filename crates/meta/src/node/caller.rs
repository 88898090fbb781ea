//! Requests that need no worker: they read the engine where a batch would gain nothing and a role would be held too long,
//! or ask for numbers.

use std::sync::atomic::Ordering;
use std::time::Instant;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request, Usage};

use super::courier::Parcel;
use super::{Done, Durability, Node};
use crate::ops::{self, chunks, readdir, usage};
use crate::perm::{self, READ};
use crate::pipeline::engine_error;
use crate::view::{Stop, decode_dir_id};
use crate::worker::{Sink, Slot, Woken};

/// Most object numbers handed out at once.
pub const OBJECTS_MAX: u32 = 1 << 20;

impl Node {
    pub(super) fn call_without_lane(&self, request: Request) -> Reply {
        let slot = std::sync::Arc::new(Slot::default());
        let waiter = slot.clone();
        self.submit_without_lane(request, Box::new(move |reply| waiter.fill(reply)));
        loop {
            if let Woken::Done(reply) = slot.wait() {
                return reply;
            }
        }
    }

    pub(super) fn submit_without_lane(&self, request: Request, done: Done) {
        let since = Instant::now();
        let kind = ops::kind(&request.op);
        let (reply, wait) = match self.answer(&request) {
            Ok((answer, wait)) => (Ok(answer), wait),
            Err(outcome) => (Err(outcome), 0),
        };
        let sync = matches!(request.op, Op::Sync);
        let tray = self.courier.tray(self.counters.clone(), self.core.workers + 2);
        let parcel = Parcel { sink: Sink::Callback(done), reply, kind, since };
        let must_wait = sync || self.durability == Durability::Commit;
        if must_wait && wait > self.engine.durable() {
            self.engine.on_durable(wait, Box::new(move |result| tray.give(vec![parcel], &result)));
        } else {
            tray.give_here(parcel);
        }
    }

    /// The answer, and the position to wait for.
    fn answer(&self, request: &Request) -> Result<(Answer, Position), Outcome> {
        match &request.op {
            Op::ReadDir { dir, after, limit, check } => {
                let parent = self.opened_dir(&request.creds, *dir, *check)?;
                Ok(readdir::run(&*self.engine, *dir, parent, after.as_ref(), *limit)?)
            }
            Op::Chunks { ino, first, last } => Ok(chunks::run(&*self.engine, *ino, *first, *last)?),
            Op::AllocObjects(count) if (1..=OBJECTS_MAX).contains(count) => {
                let first = self.objects.take(&*self.engine, u64::from(*count)).map_err(engine_error)?;
                Ok((Answer::Objects { first, count: *count }, 0))
            }
            Op::AllocObjects(_) => {
                Err(FsError::new(libc::EINVAL, "ask for 1 to 1048576 object numbers").into())
            }
            Op::Usage => {
                let [files, dirs, bytes] = self.usage_now().map(|value| value.max(0).cast_unsigned());
                Ok((Answer::Usage(Usage { files, dirs, bytes }), 0))
            }
            Op::TreeUsage(dir) => {
                self.parent_of(*dir)?;
                Ok((Answer::Usage(usage::tree(&*self.engine, *dir)?), 0))
            }
            Op::Sync => Ok((Answer::Done, self.committed.load(Ordering::Relaxed))),
            _ => Err(FsError::new(libc::EINVAL, "this request needs a worker").into()),
        }
    }

    /// The directory above one that shall be listed; with `check`, only if the caller may read it.
    fn opened_dir(&self, creds: &Creds, dir: InodeId, check: bool) -> Result<InodeId, Outcome> {
        if let Some((dentry, _)) = self.core.replica.get(dir) {
            if check {
                perm::check(creds, dentry.guard, READ).map_err(Stop::without_rows)?;
            }
            return Ok(dentry.parent);
        }
        // Any worker may bring the dentry into the replica; this request does, and checks.
        let mask = if check { READ } else { 0 };
        let access = Op::Access(InodeRef::by_id(dir), mask);
        self.call(Request { creds: creds.clone(), op: access }).map_err(|outcome| match outcome {
            Outcome::Failed(error) if error.errno == libc::ESTALE => removed().into(),
            other => other,
        })?;
        Ok(self.parent_of(dir)?)
    }

    fn parent_of(&self, dir: InodeId) -> FsResult<InodeId> {
        if dir == ROOT {
            return Ok(ROOT);
        }
        let mut parent = Err(removed());
        let key = KeyRef::new(Table::DirId, dir, b"");
        let read = self.engine.get_many(&[key], &mut |_, row| {
            if let Some(bytes) = row.value {
                parent = decode_dir_id(bytes).map(|(parent, _)| parent).map_err(|why| {
                    FsError::because(libc::EIO, format!("metadata: damaged dirid row of {dir}: {why}"))
                });
            }
        });
        read.map_err(engine_error)?;
        parent
    }
}

fn removed() -> FsError {
    FsError::new(libc::ENOENT, "the directory has been removed")
}
