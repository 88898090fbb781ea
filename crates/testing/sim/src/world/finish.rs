//! The end of a run: everything has to come to rest, and what is left has to be right.

use std::sync::Arc;

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Answer, Creds, Op, Reply, Request};
use kestrel_types::wire::{LockKind, LockRequest};
use parking_lot::Mutex;

use super::World;
use crate::client::Client;
use crate::event_queue::Scene;

/// How long everything may take to come to rest once nothing goes wrong any more: a call waits for
/// its deadline at most.
const REST_MAX: Nanos = 120 * SECOND;

impl World {
    /// A session was given up: nothing may be expected of what its client held.
    pub(super) fn notice_expired(&mut self) {
        for id in self.host.expired(self.agenda.now) {
            if let Some(place) =
                self.clients.iter().position(|client| client.id == id && !client.broken)
            {
                self.say(|| format!("client {place}: its session is given up"));
                self.tally.expired += 1;
                self.clients[place].lose_session();
                self.clients[place].broken = true;
                self.clients[place].doubtful = self.history.records.len();
            }
        }
    }

    pub(super) fn finish(&mut self) {
        self.come_to_rest();
        self.look_around();
        self.say_farewell();
        let history = std::mem::take(&mut self.history);
        self.tally = self.judge(&history, self.tally);
    }

    /// Every call ends.
    fn come_to_rest(&mut self) {
        let until = self.agenda.now + REST_MAX;
        let rests = |world: &Self| {
            let rests = |client: &Client| client.calls == 0 && client.link.is_up();
            world.clients.iter().all(rests) && !world.host.is_dirty()
        };
        while !rests(self) && self.agenda.now < until && self.agenda.failure.is_none() {
            // Locks are given up, or calls that wait for them wait for ever.
            for place in 0..self.clients.len() {
                self.give_up_locks(place);
            }
            self.run_until(self.agenda.now + 5 * SECOND, rests);
        }
        self.tally.retries = self.clients.iter().map(|client| client.link.stats().retries).sum();
        for (place, client) in self.clients.iter().enumerate() {
            if client.calls > 0 || !client.link.is_up() {
                let why = format!(
                    "client {place} has {} calls without an end {} s after the faults ended; \
                     served: {}",
                    client.calls,
                    REST_MAX / SECOND,
                    client.link.is_up()
                );
                return self.fail(why);
            }
        }
    }

    fn give_up_locks(&mut self, place: usize) {
        for ino in [100, 101] {
            for owner in [1, 2] {
                for kind in [LockKind::Posix, LockKind::Flock] {
                    self.ask_lock(place, LockRequest::ReleaseOwner { ino, owner, kind });
                }
            }
        }
    }

    /// Looks at the whole tree, as a client that nothing happens to.
    fn look_around(&mut self) {
        let mut dirs = vec![1];
        while let Some(dir) = dirs.pop() {
            if self.agenda.failure.is_some() {
                return;
            }
            let list = Op::ReadDir { dir, after: None, limit: 4096, check: true };
            let Some(Ok(Answer::Entries { entries, .. })) = self.observe(list) else {
                return self.fail(format!("directory {dir} cannot be listed at the end"));
            };
            for entry in entries {
                self.observe(Op::Lookup(PathRef::new(dir, entry.name.clone())));
                self.observe(Op::ListXattr(InodeRef {
                    ino: entry.ino,
                    seen: Some((dir, entry.name)),
                }));
                if entry.kind == Kind::Dir {
                    dirs.push(entry.ino);
                }
            }
        }
    }

    fn observe(&mut self, op: Op) -> Option<Reply> {
        let request = Request { creds: Creds::root(), op };
        let call = self.history.ask(usize::MAX, request.clone(), None);
        let slot: Arc<Mutex<Option<Reply>>> = Arc::default();
        let filled = slot.clone();
        if let Some(node) = self.host.node() {
            node.submit(request, Box::new(move |reply| *filled.lock() = Some(reply)));
        }
        self.host.sync();
        let reply = slot.lock().take();
        match &reply {
            Some(reply) => self.history.hear(call, reply.clone()),
            None => self.fail("a call of the node itself has no answer"),
        }
        reply
    }

    /// Clients leave, some with a word, some without; nothing of them may be left.
    fn say_farewell(&mut self) {
        for place in 0..self.clients.len() {
            if self.agenda.failure.is_none() && self.dice.chance(50) {
                self.clients[place].link.bye();
                self.after_client(place);
            }
            // Clients that do not speak any more are not heard of.
            self.clients[place].stopped_until = Nanos::MAX;
        }
        let until = self.agenda.now + 30 * SECOND;
        self.run_until(until, |world| {
            world.host.server().is_some_and(|server| {
                let stats = server.stats(world.agenda.now);
                stats.sessions == 0 && stats.grace_left == 0 && !world.host.is_dirty()
            })
        });
        if self.agenda.failure.is_some() {
            return;
        }
        self.host.tick(self.agenda.now);
        self.host.sync();
        let (Some(server), Some(node)) = (self.host.server(), self.host.node()) else {
            return self.fail("the node does not run at the end");
        };
        let stats = server.stats(self.agenda.now);
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
        self.check_volume(&*engine);
    }
}
