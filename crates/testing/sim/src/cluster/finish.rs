//! The end of a run: everything has to come to rest, and what is left has to be right.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kestrel_cluster::change::records::{ERA, LAST_NODE, expected_of};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::ids::counter_row;
use kestrel_meta::owners::Owners;
use kestrel_meta::perm::Dentry;
use kestrel_meta::txn::TxnKey;
use kestrel_meta::view::guard_of;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::Table;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};

use super::ClusterRun;
use super::quotas::{is_about_quotas, is_refusal};
use crate::client::Versions;
use crate::event_queue::Scene;
use crate::feed::FeedScene;
use crate::history::Record;
use crate::run::Failure;

/// How long everything may take to come to rest once nothing goes wrong any more.
pub(super) const REST_MAX: Nanos = 120 * SECOND;

impl ClusterRun {
    pub(super) fn finish(&mut self) {
        self.come_to_rest();
        self.change_once_more();
        self.observe_all(&|op| op);
        self.look_back();
        self.check_open_files();
        self.use_up_a_limit();
        self.say_farewell();
        self.check_objects();
        self.read_feed();
        self.check_quotas();
        self.leave_for_good();
        self.read_feed();
        self.check_quotas();
        self.rename_without_one();
        self.check_rows();
        // A member that finds out in time that nothing has changed need not have sent a request.
        let timed_out = |record: &Record| {
            let reply = record.answered.as_ref().map(|(_, reply)| reply);
            matches!(reply, Some(Err(Outcome::Failed(why))) if why.errno == libc::ETIMEDOUT)
        };
        // The model knows no quotas.
        let has_quotas = self.has_quotas();
        let is_of_quotas = |record: &Record| {
            let reply = record.answered.as_ref().map(|(_, reply)| reply);
            is_about_quotas(&record.request.op) || has_quotas && reply.is_some_and(is_refusal)
        };
        let is_judged = |record: &Record| !timed_out(record) && !is_of_quotas(record);
        self.history.records.retain(is_judged);
        let history = std::mem::take(&mut self.history);
        self.stats = self.judge(&history, false, self.stats);
    }

    /// The feed of the root tells of all that has happened, whichever nodes are left.
    fn read_feed(&mut self) {
        if Versions::of_seed(self.plan.seed).feed && self.queue.failure.is_none() {
            self.replay_feed();
        }
    }

    fn is_at_rest(&self) -> bool {
        self.clients.iter().all(|caller| !caller.waits())
            && self.maps_rest()
            && self.leaving.is_idle()
            && self.hosts.values().filter(|host| !host.lost).all(|host| {
                host.engine().appended() == host.engine().durable()
                    && host
                        .member()
                        .is_some_and(|member| member.is_idle() && !member.node().in_grace())
            })
    }

    fn come_to_rest(&mut self) {
        // No new calls.
        self.plan.calls = 0;
        let until = self.queue.now + REST_MAX;
        self.run_until(until, Self::is_at_rest);
        if self.queue.failure.is_none() && !self.is_at_rest() {
            let waiting: Vec<usize> = (0..self.clients.len())
                .filter(|client_index| self.clients[*client_index].waits())
                .collect();
            let busy: Vec<_> = self
                .hosts
                .iter()
                .filter(|(_, host)| {
                    !host.lost && host.member().is_none_or(|member| !member.is_idle())
                })
                .map(|(node, _)| *node)
                .collect();
            let why = format!(
                "no rest {} s after the faults ended: clients {waiting:?} wait, nodes {busy:?} are \
                 busy",
                REST_MAX / SECOND
            );
            self.fail(why);
        }
    }

    /// Looks at the whole tree, as a client that nothing happens to.
    fn observe_all(&mut self, at: &dyn Fn(Op) -> Op) {
        let mut dirs = vec![ROOT];
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
                    self.observe(at(Op::GetAttr(InodeRef::by_id(entry.ino))));
                    dirs.push(entry.ino);
                } else {
                    self.observe(at(Op::Chunks { ino: entry.ino, first: 0, last: 9 }));
                }
            }
        }
    }

    /// Looks at the tree of each snapshot, compares it with those that are left and with the
    /// present, and removes it, in any order; then no history is left.
    fn look_back(&mut self) {
        let mut left = self.snapshots();
        while !left.is_empty() && self.queue.failure.is_none() {
            let index = self.prng.below(left.len() as u64) as usize;
            let SnapshotInfo { id, dir, name, holds, .. } = left.swap_remove(index);
            for other in &left {
                let (older, newer) = (id.min(other.id), Some(id.max(other.id)));
                self.observe(compared(older, newer));
            }
            self.observe(compared(id, None));
            self.observe_all(&|op| Op::At(id, Box::new(op)));
            for tag in holds {
                self.observe(Op::SnapshotHold { dir, name: name.clone(), tag, hold: false });
            }
            self.observe(Op::SnapshotRemove { dir, name });
        }
        let until = self.queue.now + REST_MAX;
        self.run_until(until, |world| world.history_rows() == 0);
        if self.queue.failure.is_none() && self.history_rows() != 0 {
            self.fail(format!("{} rows of history are left of no snapshot", self.history_rows()));
        }
    }

    fn snapshots(&mut self) -> Vec<SnapshotInfo> {
        if self.queue.failure.is_some() {
            return Vec::new();
        }
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

    /// Rows of table `history` of all nodes.
    fn history_rows(&self) -> usize {
        let mut rows = 0;
        for host in self.hosts.values().filter(|host| !host.lost) {
            let visited = host.engine().scan_table(Table::History, None, &mut |_, _| {
                rows += 1;
                ControlFlow::Continue(())
            });
            visited.expect("no fault was injected");
        }
        rows
    }

    /// The invariants of the volume, over the raw rows of all nodes: each row at its owner, no
    /// transaction or lock left, and together a volume that is sound.
    fn check_rows(&mut self) {
        if self.queue.failure.is_some() {
            return;
        }
        let until = self.queue.now + REST_MAX;
        self.run_until(until, Self::is_at_rest);
        let volume = MemoryEngine::new(SyncWhen::Asked);
        let mut rows = vec![counter_row("clock", u64::MAX), counter_row("inodes", u64::MAX)];
        let mut wrong = Vec::new();
        for (node, host) in &self.hosts {
            let Some(cluster) = host.member().and_then(|member| member.node().cluster()) else {
                continue;
            };
            if cluster.locks.any() {
                wrong.push(format!("node {node} has locks that nobody holds"));
            }
            for name in left_of_changes(&**host.engine()) {
                wrong.push(format!("node {node} has the record {name:?} of a change of the table"));
            }
            if cluster.table().placement.coordinator != *node
                && keeps_what_a_coordinator_does(&**host.engine())
            {
                wrong.push(format!("node {node} keeps what the coordinator alone does"));
            }
            for table in Table::ALL.into_iter().filter(|table| *table != Table::System) {
                let visited = host.engine().scan_table(table, None, &mut |key, value| {
                    if table == Table::Sweep {
                        wrong.push(format!(
                            "node {node} has not deleted what was cut off file {}",
                            key.id
                        ));
                    }
                    wrong.extend(misplaced(*node, cluster, key.table, key.id, key.suffix));
                    // A member that has left keeps the records of quotas that there were then.
                    let is_old = table == Table::Quota && cluster.table().has_left();
                    if table != Table::Txn && !is_old {
                        rows.push(Mutation { key: key.to_owned(), value: Some(value.into()) });
                    }
                    ControlFlow::Continue(())
                });
                visited.expect("no fault was injected");
            }
        }
        if let Some(why) = wrong.into_iter().next() {
            return self.fail(why);
        }
        volume.commit(BatchKind::Growing, rows).expect("no fault was injected");
        let _found = self.check_volume(&volume);
        self.check_replicas(&volume);
    }

    /// The replicas hold what the rows have, of every directory that a client has seen.
    fn check_replicas(&mut self, volume: &MemoryEngine) {
        let mut dirs: BTreeMap<InodeId, Option<Known>> = BTreeMap::new();
        for record in &self.history.records {
            if let Some((_, Ok(Answer::Entry { inode, .. } | Answer::Inode(inode)))) =
                &record.answered
                && inode.kind == Kind::Dir
            {
                dirs.insert(inode.ino, None);
            }
        }
        let visited = volume.scan_table(Table::Entry, None, &mut |key, row| {
            if let Ok(Entry::Inode(inode)) = Entry::decode(row)
                && inode.kind == Kind::Dir
            {
                let parent = if inode.ino == ROOT { ROOT } else { key.id };
                let policy = inode.policy().expect("no fault was injected");
                let dentry = Dentry { ino: inode.ino, parent, guard: guard_of(&inode), policy };
                dirs.insert(inode.ino, Some((dentry, key.suffix.into())));
            }
            ControlFlow::Continue(())
        });
        visited.expect("no fault was injected");
        // A member that has left serves no path.
        for (node, host) in self.hosts.iter().filter(|(_, host)| !host.is_out()) {
            let Some(member) = host.member() else { continue };
            for (ino, dir) in &dirs {
                let known = member.node().known_dir(*ino);
                if known.is_some() && known != *dir {
                    let why = format!(
                        "node {node} believes {known:?} of directory {ino}, which is {dir:?}"
                    );
                    self.queue.failure.get_or_insert(Failure(why));
                }
            }
        }
    }
}

/// A directory's dentry and name.
type Known = (Dentry, Box<[u8]>);

/// Records of a change that is under way.
fn left_of_changes(engine: &dyn Engine) -> Vec<&'static str> {
    let mut left = Vec::new();
    let visited = engine.scan_table(Table::System, None, &mut |key, _| {
        left.extend(
            ["change", "frozen", "strangers"]
                .into_iter()
                .find(|name| name.as_bytes() == key.suffix),
        );
        ControlFlow::Continue(())
    });
    visited.expect("no fault was injected");
    left
}

/// Whether there are records of nodes to come, or of attempts of earlier coordinators.
fn keeps_what_a_coordinator_does(engine: &dyn Engine) -> bool {
    let mut any = false;
    let visited = engine.scan_table(Table::System, None, &mut |key, _| {
        any |= key.suffix == LAST_NODE.as_bytes()
            || key.suffix == ERA.as_bytes()
            || expected_of(key.suffix).is_some();
        ControlFlow::Continue(())
    });
    visited.expect("no fault was injected");
    any
}

/// What is wrong about a row where it is.
fn misplaced(node: u32, cluster: &Owners, table: Table, id: u64, suffix: &[u8]) -> Option<String> {
    if table == Table::Txn {
        return match TxnKey::decode(id, suffix) {
            Some(TxnKey::Answer(..)) => None,
            other => Some(format!("left in table txn of node {node}: {other:?}")),
        };
    }
    let owner = cluster.table().owner(table, id, suffix);
    (owner != node)
        .then(|| format!("node {node} has a row of table {table:?}, {id}, that is node {owner}'s"))
}

impl FeedScene for ClusterRun {
    /// The first client makes a call, and gets the answer.
    fn observe(&mut self, op: Op) -> Option<Reply> {
        let reply = self.try_to_observe(op);
        if reply.is_none() {
            self.fail("a call after the end of all faults has no answer");
        }
        reply
    }

    fn try_to_observe(&mut self, op: Op) -> Option<Reply> {
        let record = self.history.records.len();
        self.call(0, Request { creds: Creds::root(), op });
        let until = self.queue.now + REST_MAX;
        self.run_until(until, |world| !world.clients[0].waits());
        self.history.records[record].answered.as_ref().map(|(_, reply)| reply.clone())
    }

    fn ask(&mut self, op: Op) -> Option<Reply> {
        let record = self.history.records.len();
        let reply = self.observe(op);
        self.history.records.truncate(record);
        reply
    }

    fn page_limit(&mut self) -> u32 {
        self.prng.between(1, 60) as u32
    }
}

/// A comparison of two moments of all of the volume.
fn compared(older: SnapshotId, newer: Option<SnapshotId>) -> Op {
    let (files, limit, after) = (Vec::new(), 10_000, None);
    Op::SnapshotChanges { dir: ROOT, older, newer, files, limit, after }
}
