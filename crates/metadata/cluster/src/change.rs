//! Tables that change: what every member does when slots and names get other owners, or members
//! come.
//!
//! | file | what it has |
//! | --- | --- |
//! | `change/copying.rs` | the source sends leaving rows while it serves them |
//! | `change/freeze.rs` | the source serves leaving rows no more, and sends what is left |
//! | `change/taking.rs` | the destination takes rows in |
//! | `change/adopt.rs` | the next table becomes the present one |
//! | `change/range_delete.rs` | walks over rows; deletes those of other members |
//! | `change/departure.rs` | a member that leaves |
//! | `change/records.rs` | records of a change, in table `system` |
//!
//! A change makes of table v the table v + 1. The *coordinator*, which table v names, leads it
//! (`coordinate`), one at a time. Rows with another owner by v + 1 than by v are
//! *leaving*: their owner, the *source*, sends them to the next one, the *destination*, while it
//! goes on serving them. An attempt goes through these steps, each when all members have done the
//! one before:
//!
//! 1. **Clean** (`range_delete`). A member may have rows that it does not own, *strangers*:
//!    copies on their way in, leftovers of rows that went. Record "strangers" is in the log before
//!    the first of them. They are deleted before anything else comes.
//! 2. **Copy** (`copying`). The source has every batch shown to it from now on, which says what
//!    has changed since, and scans its rows.
//! 3. **Freeze** (`freeze`). The source keeps leaving rows from everybody, as if they were lent,
//!    waits until none of them is lent, sends what has changed, and puts on record that it is
//!    frozen.
//! 4. **Decide.** When all are frozen the coordinator puts the next table on record. Until then
//!    anything unexpected ends the attempt by Abort: a restart, a lock of a file, a full disk,
//!    silence.
//! 5. **Adopt** (`adopt`). All members get the table; new ones hear it when all others have it.
//!
//! **A row has at most one member that serves it.** By table v that is the source, until it is
//! frozen; it stays so, crashes included, until it hears Abort or adopts. No member adopts before
//! all are frozen, durably. A frozen source has nothing lent of what leaves, and no batch changes
//! any of it, since that begins with every worker's state held. So between the moment at which the
//! last source is frozen and the adoption of the destination no member serves the row, and
//! afterwards only the destination does.
//!
//! **Nothing is lost.** What a source had committed before it was frozen its scan saw, or the
//! batches shown to it name the row: it is read again after all batches that changed it, and sent
//! after all that was sent of it before, deletions too. A destination says that it has rows when
//! they are durable there, and a source is frozen when the destination has all. The destination had
//! none of these rows before (clean), so afterwards it has the same. If it starts again in between
//! it takes no more rows of that attempt, which ends the attempt unless all had come; what it has
//! it keeps until it hears Abort, or that a newer attempt begins: the record names the attempt.
//!
//! **A member that restarts finds one table or the other**, never a mix: a batch makes the new
//! table the present one, with all that goes with it. What a restart makes a member forget of an
//! attempt under way it declines to go on with. An attempt that is decided goes on after any
//! restart, the coordinator's too, which has the decision on record; about one that it has not on
//! record it says Abort to every member that asks. So no attempt is both decided and aborted.
//! Attempts are numbered upwards, starts of the coordinator included, and a message of an older one
//! than what a member has, or had, to do with means nothing to it.
//!
//! **No transaction sees two tables.** Borrow, Fetch and Poll carry the version of the sender's
//! table, and a member that has another one refuses. Prepare and Decide carry none: what a
//! transaction has been lent under v are, once any member has adopted, rows that keep their owner;
//! and the leader of one gives it up when it adopts, unless it is decided. A listing needs every
//! member's part of the directory at one time: a source lends none while it is frozen, and waits
//! until those that are lent are given back.
//!
//! **A new member's dentries are never stale.** It fetches none before it has the table, that is,
//! after all others have: from then on each change of a directory is told to it as to everybody.
//! Transactions that were undecided when their leader adopted have been given up.
//!
//! **Opens** stay where they were counted. A file may be deleted without asking others only if no
//! client can have opened it elsewhere, and for that it no longer suffices that it lies where it
//! was made: from its first gain of slots or names on a member believes that only of files that it
//! has made since (record "only here", [`MapView::made_here`]). Files without names go to their
//! new home as such, which asks all members; the old one forgets that its last release would have
//! deleted them.
//!
//! **Leaving.** One table marks a member as leaving, which tells clients to move out; the next one
//! is without it (`departure`). For that one it is a source: its shares of directories and
//! objects go to its heir as they are, bearing its number. It declines as long as anything is left
//! that only it knows, and from Freeze on begins nothing, so that when it says that it is frozen no
//! member waits for anything of it, nor it of any. Since then it serves no request, so the others
//! need not wait until it has adopted: it is told first, and they go on without it after a while.
//!
//! **Another coordinator.** A change of the table by which only the role of the coordinator moves
//! is led by the one by table v; then that one waits, its decision on record, until its *successor*
//! has taken over: it adopts first, by one batch with all that only a coordinator knows
//! ([`Charge`]) and with the decision. From then on the successor has the others adopt, the former
//! coordinator among them, which gives up the role, and its records, by the batch with which it
//! adopts. The successor leads nothing else before all have, and the former one has led nothing
//! else since it decided, so at no moment do two of them lead; and at every moment one of them has
//! the decision and the charge on record. The record that is locked to move directories is the
//! coordinator's, so it leaves like other rows, frozen on record, and two transactions cannot have
//! it. Attempts have higher epochs than those of earlier coordinators (record "era").
//!
//! **Once.** Answers stay where they were recorded. A request that may have been executed is
//! answered from the record before anything is said of its leader, so a client that asks again
//! hears what came of it; one without a record was not executed, is told so (`Misdirected`), and
//! may be asked elsewhere as a new one.

pub(crate) mod adopt;
mod copying;
mod departure;
mod freeze;
mod range_delete;
pub mod records;
mod taking;

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_engine::{BatchKind, Mutation};
use kestrel_meta::owners::{MapView, has_shares_of};
use kestrel_meta::stop::engine_error;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::placement::{NodeId, PlacementMap, SLOTS, Slot};

use super::ClusterNode;
use super::message::Message;
use copying::Copying;
use range_delete::RangeDelete;
use records::{ChangeRecords, ForeignRows};

pub use super::message::changes::{Announced, Attempt, ChangeMessage, ChangeStats, Charge, Phase};
pub use departure::DepartureGuard;

/// Time between two questions of a member that waits for the coordinator.
const ASK: Nanos = SECOND;

/// Hears how a change of the table ended.
pub type Changed = Box<dyn FnOnce(FsResult<()>) + Send>;

/// Hears the number of a node to come.
pub type Expected = Box<dyn FnOnce(FsResult<NodeId>) + Send>;

/// Of files for which the given function holds: how many have locks, or calls that wait for locks,
/// at this node. It must not block.
pub type LockGuard = dyn Fn(&dyn Fn(InodeId) -> bool) -> usize + Send + Sync;

/// Hears of tables: one that is the node's from now on, and a next one that has new nodes, before
/// it is anybody's. It must not block.
pub type MapListener = dyn Fn(&PlacementMap) + Send + Sync;

/// A member's part in an attempt.
struct Part {
    attempt: Attempt,
    next: Arc<PlacementMap>,
    step: Step,
    /// Record "frozen" is of this attempt.
    recorded: bool,
    /// It is known from the record "frozen" only: what has come of rows is forgotten.
    restarted: bool,
    /// What came from each source.
    taken: BTreeMap<NodeId, Taken>,
}

enum Step {
    /// Strangers are being deleted.
    Cleaning,
    Clean,
    Copying(Box<Copying>),
    Freezing(Box<Copying>),
    /// Where the log says so.
    Frozen(Position),
}

/// The rows of a source up to this message are here, in the log up to this position.
struct Taken {
    stream: u64,
    number: u64,
    position: Position,
}

/// What a member knows of changes.
pub(super) struct MapChanges {
    /// It is not one of the cluster yet.
    pub joining: bool,
    strangers: ForeignRows,
    /// The newest attempt it had to do with since the start.
    latest: Attempt,
    part: Option<Part>,
    purge: Option<RangeDelete>,
    /// When the coordinator was asked last. He is asked all the time, and so knows that the member
    /// lives.
    asked: Nanos,
    rows_sent: u64,
    rows_taken: u64,
    rows_purged: u64,
}

impl MapChanges {
    /// As the records say.
    pub fn new(records: &ChangeRecords, joining: bool, now: Nanos) -> Self {
        let purge = (records.strangers == ForeignRows::Leftover).then(RangeDelete::default);
        let part = records.frozen.as_ref().map(|(attempt, next)| Part {
            attempt: *attempt,
            next: next.clone(),
            step: Step::Frozen(0),
            recorded: true,
            restarted: true,
            taken: BTreeMap::new(),
        });
        Self {
            joining: joining && records.table.is_none(),
            strangers: records.strangers,
            latest: part.as_ref().map_or(Attempt::default(), |part| part.attempt),
            part,
            purge,
            asked: now - ASK,
            rows_sent: 0,
            rows_taken: 0,
            rows_purged: 0,
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        !self.joining && self.part.is_none() && self.strangers == ForeignRows::None
    }

    /// The attempt that the coordinator has to say something about.
    pub fn undecided(&self) -> Option<Attempt> {
        match (&self.part, self.strangers) {
            (Some(part), _) => Some(part.attempt),
            (None, ForeignRows::Coming(attempt)) => Some(attempt),
            _ => None,
        }
    }
}

/// Whether a node loses slots, names or shares by a change of the table, or may.
fn loses(me: NodeId, present: &PlacementMap, next: &PlacementMap) -> bool {
    let lost = |before, after| before == me && after != me;
    moves(present, next, lost) || shares_move(present, next, lost)
}

/// Whether it is the coordinator and another member is to be.
fn hands_over(me: NodeId, present: &PlacementMap, next: &PlacementMap) -> bool {
    present.coordinator == me && next.coordinator != me
}

/// Whether it gains slots or names.
fn gains(me: NodeId, present: &PlacementMap, next: &PlacementMap) -> bool {
    moves(present, next, |before, after| before != me && after == me)
}

/// Whether it gets shares of a node that leaves.
fn inherits(me: NodeId, present: &PlacementMap, next: &PlacementMap) -> bool {
    shares_move(present, next, |before, after| before != me && after == me)
}

fn shares_move(
    present: &PlacementMap,
    next: &PlacementMap,
    counts: impl Fn(NodeId, NodeId) -> bool,
) -> bool {
    let members = present.map.members().iter().map(|member| member.id);
    let mut holders = members.chain(present.former.iter().map(|(node, _)| *node));
    holders.any(|node| counts(has_shares_of(present, node), has_shares_of(next, node)))
}

fn moves(
    present: &PlacementMap,
    next: &PlacementMap,
    counts: impl Fn(NodeId, NodeId) -> bool,
) -> bool {
    let moved = |slot: Slot| counts(present.map.owner(slot).id, next.map.owner(slot).id);
    // Which node has entries of a name that gets or loses an exception only the entries tell.
    present.exceptions != next.exceptions || (0..SLOTS as Slot).any(moved)
}

impl ClusterNode {
    /// The present table.
    pub fn placement(&self) -> PlacementMap {
        self.table.placement.clone()
    }

    /// What there is to say of changes.
    pub fn change_stats(&self) -> ChangeStats {
        let changing = &self.changing;
        let phase = changing.part.as_ref().map_or(Phase::None, |part| match part.step {
            Step::Cleaning | Step::Clean => Phase::Cleaning,
            Step::Copying(_) => Phase::Copying,
            Step::Freezing(_) => Phase::Freezing,
            Step::Frozen(_) => Phase::Frozen,
        });
        ChangeStats {
            table: self.table.placement.version,
            phase,
            leads: self.coordinator.leads(),
            joining: changing.joining,
            rows_sent: changing.rows_sent,
            rows_taken: changing.rows_taken,
            purging: changing.purge.is_some(),
            rows_purged: changing.rows_purged,
        }
    }

    /// Has `guard` asked before files go to another node.
    pub fn set_lock_guard(&mut self, guard: Box<LockGuard>) {
        self.lock_guard = Some(guard);
    }

    /// Has `guard` asked before this node leaves.
    pub fn set_departure_guard(&mut self, guard: Box<DepartureGuard>) {
        self.departure_guard = Some(guard);
    }

    /// Whether this node has left the cluster.
    pub fn has_left(&self) -> bool {
        self.table.has_left()
    }

    /// Has `told` hear of tables.
    pub fn set_table_listener(&mut self, told: Box<MapListener>) {
        self.table_listener = Some(told);
    }

    /// The member that leads changes.
    pub(super) fn coordinator(&self) -> NodeId {
        self.table.placement.coordinator
    }

    /// Whether this one, with a table of this version, may be lent rows and told things: no member
    /// that is yet to join.
    pub(super) fn agrees(&self, from: NodeId, table: u64) -> bool {
        let present = &self.table.placement;
        !self.changing.joining
            && !self.table.has_left()
            && present.version == table
            && present.map.member(from).is_some()
    }

    pub(super) fn tell(&mut self, to: NodeId, message: ChangeMessage) {
        self.send(to, Message::Change(message));
    }

    pub(super) fn heard_of_change(&mut self, from: NodeId, message: ChangeMessage) {
        use ChangeMessage as M;
        match message {
            M::Join
            | M::Clean(_)
            | M::Ready(_)
            | M::Frozen(_)
            | M::Declined { .. }
            | M::Adopted(_)
            | M::Ask(_) => self.coordinate(from, message),
            M::Rows { attempt, stream, number, rows } => {
                self.take_rows(from, attempt, (stream, number), rows)
            }
            M::GotRows { attempt, stream, number } => self.got_rows(from, attempt, stream, number),
            // By the table that is decided it is the coordinator, and has the others adopt it.
            M::Adopt(table) if from == table.coordinator => self.adopt(table, None),
            // One that was may have said it then.
            _ if from != self.coordinator() => {
                log::debug!(
                    "node {from} says what only node {} may say of the table",
                    self.coordinator()
                );
            }
            M::Begin { attempt, next } => self.begin_change(attempt, next),
            M::Copy(attempt) => self.copy(attempt),
            M::Freeze(attempt) => self.freeze(attempt),
            M::Abort(attempt) => self.abort(attempt),
            M::Adopt(table) => self.adopt(table, None),
            M::Entrust { next, charge } => self.adopt(next, Some(charge)),
        }
    }

    fn begin_change(&mut self, attempt: Attempt, next: Arc<PlacementMap>) {
        let expected = next.version == self.table.placement.version + 1;
        if self.changing.joining || !expected || attempt < self.changing.latest {
            return;
        }
        match (&self.changing.part, self.changing.strangers) {
            (Some(part), _) if part.attempt == attempt => {
                if !matches!(part.step, Step::Cleaning) {
                    self.tell(self.coordinator(), ChangeMessage::Clean(attempt));
                }
                return;
            }
            // It has taken rows of this one, and has forgotten from which member.
            (None, ForeignRows::Coming(before)) if before >= attempt => {
                return self.decline(attempt, forgotten());
            }
            _ => {}
        }
        if self.snapshots.is_busy() {
            // It is said again.
            return;
        }
        if let Some(why) = self.lacks_records(&next) {
            return self.decline(attempt, why);
        }
        if !self.end_part() {
            return;
        }
        // They are looked at again when rows are frozen; here so that nothing is copied in vain.
        let (table, me) = (&self.table, self.me);
        let leaves = |ino: InodeId| table.home_of(ino) == me && next.home_of(ino).id != me;
        let files = self.lock_guard.as_ref().map_or(0, |guard| guard(&leaves));
        if files > 0 {
            return self.decline(attempt, self.has_locks(files));
        }
        if next.map.member(me).is_none()
            && let Some(why) = self.why_it_stays()
        {
            return self.decline(attempt, why);
        }
        let told = self.table_listener.as_ref();
        if let Some(told) = told.filter(|_| next.map.members().len() > self.table.nodes().count()) {
            told(&next);
        }
        self.changing.latest = attempt;
        let clean = self.changing.strangers == ForeignRows::None;
        let step = if clean { Step::Clean } else { Step::Cleaning };
        let (recorded, restarted, taken) = (false, false, BTreeMap::new());
        self.changing.part = Some(Part { attempt, next, step, recorded, restarted, taken });
        if clean {
            self.tell(self.coordinator(), ChangeMessage::Clean(attempt));
        }
    }

    /// The part in this attempt; if there is none the coordinator hears that the attempt cannot go
    /// on.
    fn part_in(&mut self, attempt: Attempt) -> Option<&mut Part> {
        if self.changing.part.as_ref().is_some_and(|part| part.attempt == attempt) {
            return self.changing.part.as_mut();
        }
        self.decline(attempt, forgotten());
        None
    }

    pub(super) fn decline(&mut self, attempt: Attempt, why: FsError) {
        self.tell(self.coordinator(), ChangeMessage::Declined { attempt, why });
    }

    fn abort(&mut self, attempt: Attempt) {
        if self.changing.undecided() == Some(attempt) {
            self.end_part();
        }
    }

    /// Ends the part in an attempt that has failed: rows that leave are served again, those that
    /// came are to be deleted. False if that could not be put on record: everything is as it was.
    fn end_part(&mut self) -> bool {
        let recorded = self.changing.part.as_ref().is_some_and(|part| part.recorded);
        let came = matches!(self.changing.strangers, ForeignRows::Coming(_));
        let mut rows = Vec::new();
        rows.extend(recorded.then(|| records::gone(records::FROZEN)));
        rows.extend(came.then(|| records::strangers_row(ForeignRows::Leftover)));
        if !rows.is_empty()
            && let Err(why) = self.commit_beside(BatchKind::Freeing, rows)
        {
            log::error!("the end of a change of the table that failed: {why}");
            return false;
        }
        self.changing.part = None;
        if came {
            self.changing.strangers = ForeignRows::Leftover;
            self.changing.purge = Some(RangeDelete::default());
        }
        if self.table.leaving.is_some() {
            self.set_table(MapView { leaving: None, ..MapView::clone(&self.table) });
        }
        true
    }

    /// Makes this the node's table. A request that waits for rows looks again.
    fn set_table(&mut self, table: MapView) {
        let node = self.node.clone();
        let quiet = node.quiesce();
        self.put_table(table);
        drop(quiet);
    }

    /// As [`ClusterNode::set_table`], with every worker's state held.
    fn put_table(&mut self, table: MapView) {
        let node = self.node.clone();
        // History of rows that leave or come is left alone from now on, or not any more.
        let _gate = node.core().snapshots.gate.write();
        self.table = Arc::new(table);
        self.cluster().set_table(self.table.clone());
        self.lease_by_table();
        self.sums_by_table();
        self.unlocked = true;
        self.unlocks += 1;
    }

    /// Commits rows that are records, or not the node's: nothing that it keeps in memory depends on
    /// them.
    fn commit_beside(&self, kind: BatchKind, rows: Vec<Mutation>) -> FsResult<Position> {
        let position = self.node.engine().commit(kind, rows).map_err(engine_error)?;
        self.node.note_commit(position);
        Ok(position)
    }

    pub(super) fn tick_change(&mut self) {
        self.tick_purge();
        self.drive_copying();
        self.drive_freezing();
        if self.changing.asked + ASK <= self.now {
            self.changing.asked = self.now;
            if self.changing.joining {
                // The role may have moved since it was set up: a member that does not have it
                // passes over that.
                for node in self.table.nodes().filter(|node| *node != self.me).collect::<Vec<_>>() {
                    self.tell(node, ChangeMessage::Join);
                }
            } else if let Some(attempt) = self.changing.undecided() {
                self.tell(self.coordinator(), ChangeMessage::Ask(attempt));
            }
        }
        self.tick_coordinator();
    }
}

/// A member cannot go on with an attempt that it knows nothing, or not all, of.
fn forgotten() -> FsError {
    FsError::new(libc::EAGAIN, "metadata: a node started again while the table was being changed")
}
