//! Objects: numbers that clients were given and may still store bytes under, and a block store from
//! which members delete what nothing refers to.
//!
//! The store is no more than the list of what was deleted. A client uses numbers until it is done
//! with them, or for some time after it has died: as long as copies of its calls may be under way,
//! which in a real cluster its sessions' end makes void.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::Engine;
use kestrel_types::clock::{Clock, Nanos, SECOND};
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::extent::ExtentList;
use kestrel_types::ids::ObjectId;
use kestrel_types::inode::{Data, Inode};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::placement::NodeId;
use kestrel_types::snapshot::{decode_history, decode_history_key, references};
use kestrel_types::stat::ObjStat;
use parking_lot::Mutex;

use super::{ClusterRun, Event};
use crate::event_queue::Scene;
use crate::network::MS;

/// How long after a client's death its numbers stay in use.
pub const LINGERS: Nanos = 60 * SECOND;

/// How long it may take until all that nothing refers to is deleted: a few of the periods after
/// which objects are looked at again.
const COLLECTED_MAX: Nanos = 200 * SECOND;

/// The state of objects, outside of all nodes.
#[derive(Default)]
pub struct Objects {
    /// Numbers in use.
    pub used: Arc<Mutex<BTreeSet<ObjectId>>>,
    /// Numbers that clients were ever given.
    given: BTreeSet<ObjectId>,
    /// What was deleted.
    deleted: BTreeSet<ObjectId>,
}

impl ClusterRun {
    /// A member looks for objects to delete, now and then.
    pub(super) fn collect_garbage(&mut self, node: NodeId) {
        let (now, wall) = (self.queue.now, self.queue.clock.now());
        self.zombie_collects(node);
        self.host(node).condemn(wall, now);
        self.after(node);
        let after = self.prng.between(SECOND, 8 * SECOND);
        self.plan_in(after, Event::CollectGarbage(node));
    }

    /// The objects that a member was told to delete are deleted a little later, if its process
    /// lives that long.
    pub(super) fn plan_deletions(&mut self, node: NodeId) {
        for (start, objects) in self.host(node).take_free() {
            if !objects.is_empty() {
                let after = self.prng.between(MS, SECOND);
                self.plan_in(after, Event::Delete(node, start, objects));
            }
        }
    }

    /// A member's process deletes objects from the store, and mostly lives to report it to the
    /// member.
    pub(super) fn delete(&mut self, node: NodeId, start: u64, objects: &[ObjectId]) {
        if self.zombie_deletes(node, start, objects) {
            self.say(|| format!("node {node} (zombie): deletes objects {objects:?}"));
            return self.objects.deleted.extend(objects);
        }
        if !self.hosts[&node].is_up(start) {
            return;
        }
        self.say(|| format!("node {node}: deletes objects {objects:?}"));
        self.objects.deleted.extend(objects);
        if !self.prng.chance(10) {
            let now = self.queue.now;
            self.host(node).reaped(objects, now);
            self.after(node);
        }
    }

    /// All numbers are done with, everything that nothing refers to goes, and nothing else has.
    pub(super) fn check_objects(&mut self) {
        self.objects.used.lock().clear();
        let until = self.queue.now + COLLECTED_MAX;
        // While members forget an object, one after the other, the sum may be anything.
        let reaped = |world: &Self| {
            let (referred, sums) = world.references();
            sums.iter().all(|(object, sum)| *sum != 0 && referred.contains_key(object))
        };
        self.run_until(until, reaped);
        if self.queue.failure.is_some() {
            return;
        }
        let (referred, sums) = self.references();
        for (object, bytes) in &referred {
            if self.objects.deleted.contains(object) {
                return self.fail(format!(
                    "object {object:#x} is deleted, and files refer to {bytes} bytes of it"
                ));
            }
        }
        if let Some((object, _)) = sums.iter().find(|(_, sum)| **sum == 0) {
            self.fail(format!("nothing refers to object {object:#x}, and it is not deleted"));
        } else if let Some((object, sum)) =
            sums.iter().find(|(object, _)| !referred.contains_key(object))
        {
            self.fail(format!(
                "object {object:#x} has {sum} bytes on record, and nothing refers to it"
            ));
        }
    }

    /// What files refer to, and the sums of shares.
    fn references(&self) -> (BTreeMap<ObjectId, u64>, BTreeMap<ObjectId, i64>) {
        let (mut referred, mut sums): (BTreeMap<_, u64>, BTreeMap<_, i64>) = Default::default();
        let mut refer = |inode: &Inode| {
            if let Data::Packed { range, .. } = &inode.data {
                *referred.entry(range.object).or_default() += u64::from(range.len);
            }
        };
        let each = |engine: &dyn Engine, table, take: &mut dyn FnMut(ObjectId, &[u8])| {
            let visited = engine.scan_table(table, None, &mut |key, row| {
                take(key.id, row);
                ControlFlow::Continue(())
            });
            visited.expect("no fault was injected");
        };
        for host in self.hosts.values() {
            each(&**host.engine(), Table::Entry, &mut |_, row| {
                if let Ok(Entry::Inode(inode)) = Entry::decode(row) {
                    refer(&inode);
                }
            });
            each(&**host.engine(), Table::Link, &mut |_, row| {
                if let Ok(inode) = Inode::decode(&mut Reader::new(row)) {
                    refer(&inode);
                }
            });
        }
        for host in self.hosts.values() {
            let visited = host.engine().scan_table(Table::History, None, &mut |key, row| {
                let of = decode_history_key(KeyRef::new(Table::History, key.id, key.suffix));
                let old = decode_history(row).unwrap_or_default();
                let items = of.zip(old).map(|((of, _), old)| references(of.table, old));
                for item in items.into_iter().flatten() {
                    *referred.entry(item.range.object).or_default() += u64::from(item.bytes);
                }
                ControlFlow::Continue(())
            });
            visited.expect("no fault was injected");
        }
        for host in self.hosts.values() {
            each(&**host.engine(), Table::Chunk, &mut |_, row| {
                let list = ExtentList::decode(&mut Reader::new(row)).unwrap_or_default();
                for item in list.references() {
                    *referred.entry(item.range.object).or_default() += u64::from(item.bytes);
                }
            });
            each(&**host.engine(), Table::ObjStat, &mut |object, row| {
                *sums.entry(object).or_default() +=
                    ObjStat::decode(row).map_or(0, |stat| stat.referenced);
            });
        }
        (referred, sums)
    }

    /// A client was given numbers.
    pub(super) fn objects_given(&mut self, objects: impl IntoIterator<Item = ObjectId>) {
        for object in objects {
            self.objects.used.lock().insert(object);
            if !self.objects.given.insert(object) {
                self.fail(format!("the number of object {object:#x} was given to two clients"));
            }
        }
    }

    /// No client will store bytes under these numbers any more.
    pub(super) fn objects_done(&mut self, objects: &[ObjectId]) {
        let mut used = self.objects.used.lock();
        for object in objects {
            used.remove(object);
        }
    }
}
