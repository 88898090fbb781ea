//! The rows of all servers of a job become those of one, and as that the job is published.
//!
//! No server has its rows open any more, and each of them was sealed. What each had acknowledged is
//! durable there. A transaction over several servers of which the leader has the decision on record
//! is carried out in full; one without was not made ([`kestrel_cluster`]). What servers keep each
//! for itself (counters, shares of a directory) becomes one, and what ends with the job anyway is
//! left out: sessions, snapshots, quotas, change feeds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_bucket::version::{JobChanges, JobRecord, JobServers};
use kestrel_bucket::{BucketEngine, BucketOptions};
use kestrel_cluster::decode_prepared;
use kestrel_engine::row_cache::Bytes;
use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_meta::node::Node;
use kestrel_meta::owners::MapView;
use kestrel_meta::txn::{RECORDS_ID, TxnKey};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::crash;
use kestrel_types::ids::{InodeId, ObjectId, objects_of_job};
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::{PlacementMap, id_in, job_object_above};
use kestrel_types::stat::{DirStat, ObjStat};

use super::servers::first_share_of;
use super::{BATCH_ROWS, Jobs, damaged, engine, node};
use crate::error::VolumeError;
use crate::volume::Resources;
use crate::volume::job::{owned_by, placement_of, seal};

/// The rows of a server of which this process is the holder.
struct ServerRows {
    view: MapView,
    rows: BucketEngine,
}

/// Gathers the rows of a job's servers. A process that has rows of one open is superseded if
/// `resources.take_over` is set, else it is in the way; then nothing has been changed.
///
/// # Errors
/// If a process is in the way, rows are damaged, or the store fails: it can be repeated.
pub(super) fn gather(
    jobs: &Jobs,
    record: &JobRecord,
    servers: &JobServers,
    resources: &Resources,
) -> Result<(), VolumeError> {
    let placement = placement_of(servers)?;
    let opened = claim(jobs, record, &placement, resources)?;
    for server in &opened {
        seal(&server.rows).map_err(engine)?;
    }
    crash::point("job.servers-sealed");
    // What a process that was killed meanwhile has written.
    jobs.jobs.remove_server_rows(record, 0).map_err(engine)?;
    jobs.jobs.create_rows(record).map_err(engine)?;
    let options = options_of(resources, 1);
    let one = jobs.jobs.open(record, options, Arc::new(|| Ok(()))).map_err(engine)?;
    let changes = transactions(&opened).map_err(engine)?;
    let mut gathering = Gathering::new(&one);
    gathering.fill(&opened, &changes).map_err(engine)?;
    let figures = figures_of(&opened)?.filter(|_| changes.is_empty() && !gathering.has_orphans);
    let records = records_of(&opened, record.number(), figures)?;
    gathering.batch.extend(records);
    gathering.send().map_err(engine)?;
    one.settle().map_err(engine)?;
    drop(one);
    crash::point("job.servers-gathered");
    jobs.jobs.set_gathered(record).map_err(engine)
}

fn options_of(resources: &Resources, count: usize) -> BucketOptions {
    BucketOptions {
        memory_bytes: resources.metadata_bytes / count as u64,
        take_over: resources.take_over,
        ..BucketOptions::default()
    }
}

/// Opens the rows of all servers.
fn claim(
    jobs: &Jobs,
    record: &JobRecord,
    placement: &PlacementMap,
    resources: &Resources,
) -> Result<Vec<ServerRows>, VolumeError> {
    let members = placement.map.members();
    let mut opened = Vec::new();
    for member in members {
        let server = (member.id, Some(owned_by(member.id, placement)?));
        let options = options_of(resources, members.len() + 1);
        let rows = jobs.jobs.open_server(record, server, options, Arc::new(|| Ok(())));
        let rows = rows.map_err(engine)?;
        let view = MapView::new(member.id, placement.clone()).map_err(node)?;
        opened.push(ServerRows { view, rows });
    }
    Ok(opened)
}

/// Changes of rows, by their encoded keys.
type RowChanges = BTreeMap<Vec<u8>, Option<Box<[u8]>>>;

/// What transactions were to change that were decided and not carried out by all servers.
fn transactions(servers: &[ServerRows]) -> Result<RowChanges, EngineError> {
    let (mut decided, mut prepared) = (BTreeSet::new(), Vec::new());
    for ServerRows { rows, view } in servers {
        let mut why = None;
        rows.scan(Table::Txn, RECORDS_ID, None, &mut |suffix, row, _| {
            match TxnKey::decode(RECORDS_ID, suffix) {
                Some(TxnKey::Decided(txn)) if txn.node == view.me => drop(decided.insert(txn)),
                Some(TxnKey::Prepared(txn)) => match decode_prepared(row) {
                    Ok(changes) => prepared.push((txn, changes)),
                    Err(error) => why = Some(damaged(error.0)),
                },
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        why.map_or(Ok(()), Err)?;
    }
    let mut changes = RowChanges::new();
    let made = prepared.into_iter().filter(|(txn, _)| decided.contains(txn));
    for Mutation { key, value } in made.flat_map(|(_, made)| made.mutations) {
        let mut bytes = Vec::new();
        key.borrow().encode_into(&mut bytes);
        changes.insert(bytes, value);
    }
    Ok(changes)
}

/// The figures of the job, if all servers were stopped cleanly.
fn figures_of(servers: &[ServerRows]) -> Result<Option<[i64; 3]>, VolumeError> {
    let mut sum = [0_i64; 3];
    for server in servers {
        let (_, _, figures) = Node::rows_at_rest(&server.rows).map_err(node)?;
        let Some(figures) = figures else { return Ok(None) };
        for (sum, own) in sum.iter_mut().zip(figures) {
            *sum = sum.wrapping_add(own);
        }
    }
    Ok(Some(sum))
}

/// What one server has on record: it counts on above all numbers that any has given.
fn records_of(
    servers: &[ServerRows],
    job: u32,
    figures: Option<[i64; 3]>,
) -> Result<Vec<Mutation>, VolumeError> {
    let (mut clock, mut inodes, mut objects) = (0, 0, 0);
    for server in servers {
        let (stamp, counter, counted) = Node::counters_at_rest(&server.rows).map_err(node)?;
        (clock, inodes, objects) = (stamp.max(clock), counter.max(inodes), counted.max(objects));
    }
    let numbers: (InodeId, ObjectId) =
        (id_in(inodes, 0, 0), job_object_above(objects_of_job(job).start, objects));
    Ok(Node::records_at_rest(figures, clock, numbers))
}

/// Rows that are written to those of one server.
struct Gathering<'a> {
    one: &'a BucketEngine,
    batch: Vec<Mutation>,
    /// The directory of the shares that are being added up.
    dir: Option<DirSum>,
    /// The same of an object.
    object: Option<(ObjectId, i64)>,
    /// There are files without names.
    has_orphans: bool,
}

/// Shares of a directory, added up.
struct DirSum {
    dir: InodeId,
    /// None: all were removed.
    sum: Option<DirStat>,
    /// The share that versions have was among them.
    has_first: bool,
}

/// The next row of each server.
struct ServerCursor<'a> {
    view: &'a MapView,
    rows: JobChanges<'a>,
    next: Option<(Bytes, Option<Bytes>)>,
}

fn decoded<T>(read: Result<T, DecodeError>) -> Result<T, EngineError> {
    read.map_err(|why| damaged(why.0))
}

impl<'a> Gathering<'a> {
    fn new(one: &'a BucketEngine) -> Self {
        Self { one, batch: Vec::new(), dir: None, object: None, has_orphans: false }
    }

    /// Writes what all servers have changed, and these changes in the place of theirs.
    fn fill(&mut self, servers: &[ServerRows], changes: &RowChanges) -> Result<(), EngineError> {
        let mut cursors = Vec::new();
        for ServerRows { view, rows } in servers {
            let mut rows = rows.changes();
            let next = rows.next_row()?;
            cursors.push(ServerCursor { view, rows, next });
        }
        let mut changes = changes.iter().peekable();
        loop {
            let keys = cursors.iter().enumerate();
            let keys = keys.filter_map(|(at, cursor)| Some((&cursor.next.as_ref()?.0[..], at)));
            let least = keys.min();
            let change = changes.peek().map(|(key, _)| key.as_slice());
            match (least, change) {
                (None, None) => break,
                (Some((key, at)), change) if change.is_none_or(|change| key < change) => {
                    let cursor = &mut cursors[at];
                    let Some((key, value)) = cursor.next.take() else { break };
                    cursor.next = cursor.rows.next_row()?;
                    self.take_of(cursor.view, &key, value.as_deref())?;
                }
                (least, Some(change)) => {
                    if let Some((_, at)) = least.filter(|(key, _)| *key == change) {
                        cursors[at].next = cursors[at].rows.next_row()?;
                    }
                    let Some((key, value)) = changes.next() else { break };
                    self.take(row_key(key)?, value.as_deref())?;
                }
                (Some(_), None) => break,
            }
        }
        self.end_dir()?;
        self.end_object();
        Ok(())
    }

    /// A row that a server has.
    fn take_of(
        &mut self,
        view: &MapView,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), EngineError> {
        let key = row_key(key)?;
        if !view.owns(key.table, key.id, key.suffix) {
            return Err(damaged("it lies at a server that does not own it"));
        }
        self.take(key, value)
    }

    fn take(&mut self, key: KeyRef<'_>, value: Option<&[u8]>) -> Result<(), EngineError> {
        if key.table != Table::DirStat || self.dir.as_ref().is_some_and(|sum| sum.dir != key.id) {
            self.end_dir()?;
        }
        if key.table != Table::ObjStat || self.object.is_some_and(|(object, _)| object != key.id) {
            self.end_object();
        }
        match key.table {
            Table::Entry | Table::DirId | Table::Subdir | Table::Chunk | Table::Xattr => {
                self.put(key.to_owned(), value.map(Into::into))
            }
            Table::Link => {
                if let Some(value) = value {
                    let inode = decoded(Inode::decode(&mut Reader::new(value)))?;
                    self.has_orphans |= inode.nlink == 0;
                }
                self.put(key.to_owned(), value.map(Into::into))
            }
            Table::DirStat => self.add_dir(key, value),
            Table::ObjStat => {
                let share = value.map(ObjStat::decode).transpose();
                let referenced = decoded(share)?.unwrap_or_default().referenced;
                let (_, sum) = self.object.get_or_insert((key.id, 0));
                *sum = sum.saturating_add(referenced);
                Ok(())
            }
            // Rows that are being deleted.
            Table::Sweep if value.is_some() => self.put(key.to_owned(), value.map(Into::into)),
            Table::Clone if value.is_some() => Err(EngineError::Refused(
                "a clone in the job is not finished; go on with `kestrel job resume`, and publish \
                 the job when it is"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    fn add_dir(&mut self, key: KeyRef<'_>, value: Option<&[u8]>) -> Result<(), EngineError> {
        let share = decoded(value.map(DirStat::decode).transpose())?;
        let empty = || DirSum { dir: key.id, sum: None, has_first: false };
        let dir = self.dir.get_or_insert_with(empty);
        dir.has_first |= *first_share_of(key.id).suffix == *key.suffix;
        if let Some(share) = share {
            dir.sum.get_or_insert_default().merge(&share);
        }
        Ok(())
    }

    /// All shares of a directory have come.
    fn end_dir(&mut self) -> Result<(), EngineError> {
        let Some(DirSum { dir, mut sum, has_first }) = self.dir.take() else { return Ok(()) };
        let first = first_share_of(dir);
        if !has_first {
            let mut key = Vec::new();
            first.borrow().encode_into(&mut key);
            if let Some(below) = self.one.row_below(&key)? {
                sum.get_or_insert_default().merge(&decoded(DirStat::decode(&below))?);
            }
        }
        self.put(first, sum.map(|sum| sum.encode()))
    }

    /// All shares of an object have come.
    fn end_object(&mut self) {
        let Some((object, referenced)) = self.object.take() else { return };
        if referenced > 0 {
            let share = kestrel_meta::rows::share_suffix(0);
            let value = Some(ObjStat { referenced }.encode());
            self.batch.push(Mutation { key: Key::new(Table::ObjStat, object, &share), value });
        }
    }

    fn put(&mut self, key: Key, value: Option<Box<[u8]>>) -> Result<(), EngineError> {
        self.batch.push(Mutation { key, value });
        if self.batch.len() < BATCH_ROWS { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> Result<(), EngineError> {
        self.one.commit(BatchKind::Growing, std::mem::take(&mut self.batch)).map(drop)
    }
}

fn row_key(key: &[u8]) -> Result<KeyRef<'_>, EngineError> {
    KeyRef::decode(key).ok_or_else(|| damaged("its key"))
}
