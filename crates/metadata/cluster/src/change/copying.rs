//! The source: rows that leave are sent to their next owners while they are served.
//!
//! Each destination has one message under way at a time. What is queued for it is sent in order, so
//! of two values of a row the newer one comes later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kestrel_engine::{Mutation, TapGuard};
use kestrel_meta::node::Node;
use kestrel_meta::owners::{MapView, owner};
use kestrel_meta::stop::engine_error;
use kestrel_types::clock::Nanos;
use kestrel_types::error::FsResult;
use kestrel_types::key::Key;
use kestrel_types::placement::{NodeId, PlacementMap};
use parking_lot::Mutex;

use super::range_delete::{Cursor, visited_max};
use super::{Step, loses};
use crate::message::changes::{Attempt, ChangeMessage};
use crate::{ClusterNode, RESEND};

/// A message has no more bytes of rows, unless it is one row.
const MESSAGE_BYTES: usize = 256 << 10;

/// The scan waits while a destination has so much to get.
const QUEUE_BYTES: usize = 2 * MESSAGE_BYTES;

/// Most rows that are read again in one step.
fn read_max(node: &Node) -> usize {
    (node.core().scan_rows / 4).max(1)
}

/// Rows that may be left to send when a source says that it is ready: they are sent while nobody
/// has them.
fn left_max(node: &Node) -> usize {
    node.core().scan_rows / 32
}

/// So many changed rows are not remembered: some are read again before the scan goes on.
const CHANGED_MAX: usize = 1 << 16;

/// After reading changed rows again so often a source is ready however many have changed since.
const PASSES_MAX: u32 = 64;

/// What a destination gets.
#[derive(Default)]
struct CopyStream {
    queue: VecDeque<Mutation>,
    bytes: usize,
    /// Of the last message.
    number: u64,
    under_way: Option<Vec<Mutation>>,
    sent: Nanos,
}

/// The copying of one attempt.
pub(super) struct Copying {
    /// A number that no other copying has.
    stream: u64,
    next: Arc<PlacementMap>,
    /// Rows that leave and have changed since they were read last.
    changed: Arc<Mutex<BTreeSet<Key>>>,
    _tap: Option<TapGuard>,
    /// `None`: all rows have been visited.
    scan: Option<Cursor>,
    destinations: BTreeMap<NodeId, CopyStream>,
    passes: u32,
    /// The coordinator has been told that little is left.
    said: bool,
}

fn bytes_of(row: &Mutation) -> usize {
    row.key.suffix.len() + row.value.as_ref().map_or(0, |value| value.len()) + 32
}

impl Copying {
    /// Of a member that loses nothing: it is done.
    fn nothing(stream: u64, next: Arc<PlacementMap>) -> Self {
        let (changed, destinations) = (Arc::default(), BTreeMap::new());
        Self { stream, next, changed, _tap: None, scan: None, destinations, passes: 0, said: false }
    }

    /// Has the batches shown to it from now on. With every worker's state held, so that none is on
    /// its way.
    fn of(node: &Node, stream: u64, table: Arc<MapView>, next: Arc<PlacementMap>) -> Self {
        let mut copying = Self::nothing(stream, next.clone());
        let changed = copying.changed.clone();
        let tap = move |batch: &[Mutation]| {
            let leaves = |key: &Key| {
                let me = table.me;
                table.owns(key.table, key.id, &key.suffix)
                    && owner(&next, me, key.table, key.id, &key.suffix) != me
            };
            let keys = batch.iter().map(|row| &row.key).filter(|key| leaves(key));
            let keys: Vec<Key> = keys.cloned().collect();
            if !keys.is_empty() {
                changed.lock().extend(keys);
            }
        };
        copying._tap = Some(node.engine().tap(Box::new(tap)));
        copying.scan = Some(Cursor::default());
        copying
    }

    fn queue(&mut self, me: NodeId, row: Mutation) {
        let to = owner(&self.next, me, row.key.table, row.key.id, &row.key.suffix);
        let destination = self.destinations.entry(to).or_default();
        destination.bytes += bytes_of(&row);
        destination.queue.push_back(row);
    }

    fn is_full(&self) -> bool {
        self.destinations.values().any(|destination| destination.bytes >= QUEUE_BYTES)
    }

    /// Whether all that was read has arrived.
    fn is_delivered(&self) -> bool {
        self.destinations
            .values()
            .all(|destination| destination.queue.is_empty() && destination.under_way.is_none())
    }

    /// Whether nothing is left to send.
    pub fn is_over(&self) -> bool {
        self.scan.is_none() && self.changed.lock().is_empty() && self.is_delivered()
    }

    /// Visits some rows more.
    fn scan_some(&mut self, node: &Node, table: &MapView) -> FsResult<()> {
        let Some(mut cursor) = self.scan.take() else { return Ok(()) };
        let me = table.me;
        let walked = cursor.walk(&**node.engine(), visited_max(node), |key, value| {
            if table.owns(key.table, key.id, key.suffix)
                && owner(&self.next, me, key.table, key.id, key.suffix) != me
            {
                self.queue(me, Mutation { key: key.to_owned(), value: Some(value.into()) });
            }
            !self.is_full()
        });
        if !matches!(walked, Ok(true)) {
            self.scan = Some(cursor);
        }
        walked.map(drop)
    }

    /// Reads some of the rows again that have changed.
    fn read_some(&mut self, node: &Node, me: NodeId) -> FsResult<()> {
        let keys = {
            let mut changed = self.changed.lock();
            let rest = changed.iter().nth(read_max(node)).cloned();
            let rest = rest.map(|rest| changed.split_off(&rest)).unwrap_or_default();
            std::mem::replace(&mut *changed, rest)
        };
        if keys.is_empty() {
            return Ok(());
        }
        self.passes += u32::from(self.scan.is_none());
        // They are named before they can be read: the batches that named these are done when every
        // role has been held.
        drop(node.quiesce());
        let keys: Vec<Key> = keys.into_iter().collect();
        let borrowed: Vec<_> = keys.iter().map(Key::borrow).collect();
        let mut rows = Vec::with_capacity(keys.len());
        let read = node.engine().get_many(&borrowed, &mut |index, row| {
            rows.push(Mutation { key: keys[index].clone(), value: row.value.map(Into::into) });
        });
        if let Err(why) = read {
            self.changed.lock().extend(keys);
            return Err(engine_error(why));
        }
        rows.into_iter().for_each(|row| self.queue(me, row));
        Ok(())
    }

    /// Messages to be sent, and how many rows are in those that were not sent before.
    fn messages(&mut self, attempt: Attempt, now: Nanos) -> (Vec<(NodeId, ChangeMessage)>, u64) {
        let (mut messages, mut count) = (Vec::new(), 0);
        for (to, destination) in &mut self.destinations {
            if destination.under_way.is_none() && !destination.queue.is_empty() {
                let (mut rows, mut bytes) = (Vec::new(), 0);
                while let Some(row) = destination.queue.front() {
                    let more = bytes_of(row);
                    if !rows.is_empty() && bytes + more > MESSAGE_BYTES {
                        break;
                    }
                    bytes += more;
                    rows.extend(destination.queue.pop_front());
                }
                destination.bytes -= bytes;
                destination.number += 1;
                destination.sent = now - RESEND;
                count += rows.len() as u64;
                destination.under_way = Some(rows);
            }
            if let Some(rows) =
                destination.under_way.as_ref().filter(|_| destination.sent + RESEND <= now)
            {
                destination.sent = now;
                let (stream, number, rows) = (self.stream, destination.number, rows.clone());
                messages.push((*to, ChangeMessage::Rows { attempt, stream, number, rows }));
            }
        }
        (messages, count)
    }
}

impl ClusterNode {
    /// The coordinator says that all are clean.
    pub(super) fn copy(&mut self, attempt: Attempt) {
        let (node, table, stream) = (self.node.clone(), self.table.clone(), self.number());
        let coordinator = self.coordinator();
        let Some(part) = self.part_in(attempt) else { return };
        match &part.step {
            Step::Clean => {}
            Step::Copying(copying) => {
                if copying.said {
                    self.tell(coordinator, ChangeMessage::Ready(attempt));
                }
                return;
            }
            Step::Cleaning | Step::Freezing(_) | Step::Frozen(_) => return,
        }
        let next = part.next.clone();
        let copying = if loses(table.me, &table.placement, &next) {
            let quiet = node.quiesce();
            let copying = Copying::of(&node, stream, table, next);
            drop(quiet);
            copying
        } else {
            Copying::nothing(stream, next)
        };
        part.step = Step::Copying(Box::new(copying));
        self.drive_copying();
    }

    pub(super) fn got_rows(&mut self, from: NodeId, attempt: Attempt, stream: u64, number: u64) {
        let Some(part) = self.changing.part.as_mut().filter(|part| part.attempt == attempt) else {
            return;
        };
        let (Step::Copying(copying) | Step::Freezing(copying)) = &mut part.step else { return };
        if copying.stream != stream {
            return;
        }
        if let Some(destination) =
            copying.destinations.get_mut(&from).filter(|destination| destination.number == number)
        {
            destination.under_way = None;
            self.drive_copying();
            self.drive_freezing();
        }
    }

    /// Reads and sends what is to be sent next.
    pub(super) fn drive_copying(&mut self) {
        let (node, table, now) = (self.node.clone(), self.table.clone(), self.now);
        // A store takes its time to delete objects, and while a node that leaves is frozen nobody
        // has a directory's figures.
        let deletes = self.is_about_to_leave() && self.reaping.is_some();
        if !self.cluster().may_answer() {
            return;
        }
        let Some(part) = &mut self.changing.part else { return };
        let (attempt, freezing) = (part.attempt, matches!(part.step, Step::Freezing(_)));
        let (Step::Copying(copying) | Step::Freezing(copying)) = &mut part.step else { return };
        let read = if copying.is_full() {
            Ok(())
        } else if copying.scan.is_some() && copying.changed.lock().len() <= CHANGED_MAX {
            copying.scan_some(&node, &table)
        } else if copying.scan.is_some()
            || copying.is_delivered()
                && (freezing || copying.changed.lock().len() > left_max(&node))
        {
            copying.read_some(&node, table.me)
        } else {
            Ok(())
        };
        let (messages, count) = copying.messages(attempt, now);
        let few = copying.changed.lock().len() <= left_max(&node) || copying.passes >= PASSES_MAX;
        let ready =
            !copying.said && copying.scan.is_none() && copying.is_delivered() && few && !deletes;
        copying.said |= ready;
        self.changing.rows_sent += count;
        for (to, message) in messages {
            self.tell(to, message);
        }
        if ready {
            self.tell(self.coordinator(), ChangeMessage::Ready(attempt));
        }
        if let Err(why) = read {
            self.decline(attempt, why);
        }
    }
}
