//! The end of a run: everything has to come to rest, and what is left has to be right.

use std::sync::Arc;

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Answer, Creds, Op, Reply, Request};
use kestrel_types::snapshot::SnapshotInfo;
use kestrel_types::wire::{LockKind, LockRequest};
use parking_lot::Mutex;

use super::World;
use crate::client::{Client, Versions};
use crate::event_queue::Scene;
use crate::feed::FeedScene;

/// How long everything may take to come to rest once nothing goes wrong any more: a call waits for
/// its deadline at most.
const REST_MAX: Nanos = 120 * SECOND;

impl World {
    /// A session was given up: nothing may be expected of what its client held.
    pub(super) fn notice_expired(&mut self) {
        for id in self.host.expired(self.queue.now) {
            if let Some(client_index) =
                self.clients.iter().position(|client| client.id == id && !client.broken)
            {
                self.say(|| format!("client {client_index}: its session is given up"));
                self.stats.expired += 1;
                self.clients[client_index].lose_session();
                self.clients[client_index].broken = true;
                self.clients[client_index].uncertain_before = self.history.records.len();
            }
        }
    }

    pub(super) fn finish(&mut self) {
        self.come_to_rest();
        self.look_around();
        if Versions::of_seed(self.plan.seed).feed && self.queue.failure.is_none() {
            self.replay_feed();
        }
        self.look_back();
        self.say_farewell();
        let history = std::mem::take(&mut self.history);
        self.stats = self.judge(&history, true, self.stats);
    }

    /// Every call ends.
    fn come_to_rest(&mut self) {
        let until = self.queue.now + REST_MAX;
        let rests = |world: &Self| {
            let rests = |client: &Client| client.calls == 0 && client.link.is_up();
            world.clients.iter().all(rests) && !world.host.is_dirty()
        };
        while !rests(self) && self.queue.now < until && self.queue.failure.is_none() {
            // Locks are given up, or calls that wait for them wait for ever.
            for client_index in 0..self.clients.len() {
                self.give_up_locks(client_index);
            }
            self.run_until(self.queue.now + 5 * SECOND, rests);
        }
        self.stats.retries = self.clients.iter().map(|client| client.link.stats().retries).sum();
        for (client_index, client) in self.clients.iter().enumerate() {
            if client.calls > 0 || !client.link.is_up() {
                let why = format!(
                    "client {client_index} has {} calls without an end {} s after the faults ended; \
                     served: {}",
                    client.calls,
                    REST_MAX / SECOND,
                    client.link.is_up()
                );
                return self.fail(why);
            }
        }
    }

    fn give_up_locks(&mut self, client_index: usize) {
        for ino in [100, 101] {
            for owner in [1, 2] {
                for kind in [LockKind::Posix, LockKind::Flock] {
                    self.lock_call(client_index, LockRequest::ReleaseOwner { ino, owner, kind });
                }
            }
        }
    }

    /// Looks at the whole tree, as a client that nothing happens to.
    fn look_around(&mut self) {
        self.look_at_tree(&|op| op);
    }

    /// Looks at the tree of each snapshot and removes them, in any order; then no history is left.
    fn look_back(&mut self) {
        let mut left = self.snapshots();
        while !left.is_empty() && self.queue.failure.is_none() {
            let index = self.prng.below(left.len() as u64) as usize;
            let SnapshotInfo { id, dir, name, holds, .. } = left.swap_remove(index);
            self.look_at_tree(&|op| Op::At(id, Box::new(op)));
            for tag in holds {
                self.observe(Op::SnapshotHold { dir, name: name.clone(), tag, hold: false });
            }
            self.observe(Op::SnapshotRemove { dir, name });
            if self.prng.chance(50) {
                self.host.tidy(usize::MAX);
            }
        }
        self.host.tidy(usize::MAX);
        self.host.sync();
        if self.queue.failure.is_none() && !self.snapshots().is_empty() {
            self.fail("snapshots are left that were removed");
        }
    }

    fn snapshots(&mut self) -> Vec<SnapshotInfo> {
        match self.observe(Op::SnapshotList { dir: None, ancestors: false }) {
            Some(Ok(Answer::Snapshots(list))) => {
                list.into_iter().filter(|info| !info.removing).collect()
            }
            other => {
                self.fail(format!("snapshots cannot be listed at the end: {other:?}"));
                Vec::new()
            }
        }
    }

    fn look_at_tree(&mut self, at: &dyn Fn(Op) -> Op) {
        let mut dirs = vec![1];
        while let Some(dir) = dirs.pop() {
            if self.queue.failure.is_some() {
                return;
            }
            let list = Op::ReadDir { dir, after: None, limit: 4096, check: true };
            let Some(Ok(Answer::Entries { entries, .. })) = self.observe(at(list)) else {
                return self.fail(format!("directory {dir} cannot be listed at the end"));
            };
            for entry in entries {
                self.observe(at(Op::Lookup(PathRef::new(dir, entry.name.clone()))));
                let seen = Some((dir, entry.name));
                self.observe(at(Op::ListXattr(InodeRef { ino: entry.ino, seen })));
                if entry.kind == Kind::Dir {
                    dirs.push(entry.ino);
                } else if entry.kind == Kind::File {
                    self.observe(at(Op::Chunks { ino: entry.ino, first: 0, last: 9 }));
                }
            }
        }
    }

    /// Clients leave, some with a word, some without; nothing of them may be left.
    fn say_farewell(&mut self) {
        for client_index in 0..self.clients.len() {
            if self.queue.failure.is_none() && self.prng.chance(50) {
                self.clients[client_index].link.bye();
                self.after_client(client_index);
            }
            // Clients that send nothing any more lose their sessions.
            self.clients[client_index].stopped_until = Nanos::MAX;
        }
        let until = self.queue.now + 30 * SECOND;
        self.run_until(until, |world| {
            world.host.server().is_some_and(|server| {
                let stats = server.stats(world.queue.now);
                stats.sessions == 0 && stats.grace_left == 0 && !world.host.is_dirty()
            })
        });
        if self.queue.failure.is_some() {
            return;
        }
        self.host.tick(self.queue.now);
        self.host.sync();
        let (Some(server), Some(node)) = (self.host.server(), self.host.node()) else {
            return self.fail("the node does not run at the end");
        };
        let stats = server.stats(self.queue.now);
        let open = node.stats().open_files;
        if (stats.sessions, stats.opens, stats.lock_ranges, stats.lock_waits, open)
            != (0, 0, 0, 0, 0)
        {
            return self.fail(format!(
                "left when all sessions ended: {stats:?}, {open} files open at the node"
            ));
        }
        self.check_rows();
    }

    /// The invariants of the volume, over its raw rows.
    fn check_rows(&mut self) {
        let engine = self.host.engine().clone();
        if let Some(found) = self.check_volume(&*engine)
            && found.history != 0
        {
            self.fail(format!("{} rows of history are left of no snapshot", found.history));
        }
    }
}

impl FeedScene for World {
    /// Asks the node; what is asked and answered is a part of the history.
    fn observe(&mut self, op: Op) -> Option<Reply> {
        let request = Request { creds: Creds::root(), op: op.clone() };
        let call = self.history.begin(usize::MAX, request, None);
        let reply = self.ask(op);
        if let Some(reply) = &reply {
            self.history.finish(call, reply.clone());
        }
        reply
    }

    /// Asks the node.
    fn ask(&mut self, op: Op) -> Option<Reply> {
        let slot: Arc<Mutex<Option<Reply>>> = Arc::default();
        let filled = slot.clone();
        if let Some(node) = self.host.node() {
            let request = Request { creds: Creds::root(), op };
            node.submit(request, Box::new(move |reply| *filled.lock() = Some(reply)));
        }
        self.host.sync();
        let reply = slot.lock().take();
        if reply.is_none() {
            self.fail("a call of the node itself has no answer");
        }
        reply
    }

    fn page_limit(&mut self) -> u32 {
        self.prng.between(1, 60) as u32
    }
}
