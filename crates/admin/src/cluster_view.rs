//! The metadata of a volume that several nodes share, put together from the rows of each: for the
//! check, which judges a volume as a whole.
//!
//! What one node keeps for itself is checked here, row by row, and not part of the whole: its
//! counters against the numbers that it has made up, its sessions and answers. Of the rest every
//! row must lie at the node that owns it; others are reported and left out, as they are not read. A
//! transaction over several nodes that was decided, but of which the decision has not reached a
//! node, is carried out in the whole, as that node will when it does.
//!
//! The rows of each node are to be those of one moment at which no node did anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::{self, Read};
use std::path::Path;

use kestrel_cluster::change::records::{FROZEN, STRANGERS, TABLE};
use kestrel_cluster::peer_identity::{PeerIdentity, peer_of};
use kestrel_cluster::{Prepared, decode_decision, decode_prepared, encode_decision};
use kestrel_engine::embedded::EmbeddedEngine;
use kestrel_engine::{Engine, EngineError, Mutation};
use kestrel_meta::locks::TxnId;
use kestrel_meta::owners::{MEMBER_SHARES, MapView};
use kestrel_meta::tokens;
use kestrel_meta::txn::{TxnKey, decode_answer, decode_session};
use kestrel_types::clock::Nanos;
use kestrel_types::entry::Entry;
use kestrel_types::ids::FIRST_INODE;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::{
    COUNTERS_MAX, NodeId, OBJECT_COUNTERS_MAX, PlacementMap, is_history_share, maker_of_id,
    maker_of_object,
};
use kestrel_types::quota::QuotaRow;
use kestrel_types::snapshot::{RECORD_PREFIX, SnapshotInfo, decode_history_key};
use kestrel_types::token::TokenRecord;

use crate::check::{Totals, decode_quota_row, removed_record};
use crate::cut::{Batch, CutError, Scratch, empty};
use crate::dump::spread::TargetNodes;
use crate::dump::{DumpError, spool};
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::rows::{
    CLOCK, EPOCH, INODES, LEASE, OBJECTS, Row, Rows, SHARES, USAGE, WORKERS_MAX, decode_ceiling,
    decode_usage, delete, encode_ceiling, encode_shares_with_history, encode_usage, put, readable,
};

/// Findings kept: more say no more.
const FINDINGS_MAX: usize = 100_000;

/// What was read of one node.
struct Node {
    view: MapView,
    /// Volume-wide records, by name.
    records: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Highest counter seen in an inode number that it made up, and in an object's.
    inodes: u64,
    objects: u64,
    /// See [`of_absent`].
    absent: [u64; 2],
    /// Transactions that it has agreed to.
    prepared: BTreeMap<TxnId, Prepared>,
    /// Transactions that it has decided.
    decided: BTreeSet<TxnId>,
}

/// Puts together the rows of nodes at rest, which are all that the table has, in a scratch
/// directory below `scratch`, where so many bytes stay free.
///
/// # Errors
/// If rows cannot be read, or the copy cannot be written.
pub fn gather(
    nodes: &TargetNodes<'_>,
    placement: &PlacementMap,
    (scratch, reserve_bytes): (&Path, u64),
    progress: &mut dyn FnMut(u64),
) -> Result<ClusterView, CutError> {
    let mut builder = ClusterViewBuilder::new(scratch, reserve_bytes, placement)?;
    for (node, engine) in nodes {
        let rows = Table::ALL.into_iter().flat_map(|table| Rows::new(*engine, table));
        builder.add(*node, rows.map(|row| row.map_err(CutError::from)), progress)?;
    }
    builder.finish()
}

/// See the module's header.
pub struct ClusterViewBuilder {
    nodes: BTreeMap<NodeId, Node>,
    findings: Vec<Finding>,
    rows: EmbeddedEngine,
    scratch: Scratch,
}

/// The whole: its rows, and what was found while they were put together.
pub struct ClusterView {
    rows: EmbeddedEngine,
    _scratch: Scratch,
    /// What was found.
    pub findings: Vec<Finding>,
    /// Nodes with directories that are old copies, or were made anew: what others have of theirs
    /// means nothing.
    pub outdated: Vec<NodeId>,
}

impl ClusterView {
    /// Makes of them the rows of a volume of one node ([`crate::merge`]), for a dump.
    ///
    /// # Errors
    /// If the copy cannot be read or written.
    pub fn into_one(self, now: Nanos) -> Result<Self, CutError> {
        let made = crate::merge::make(&self.rows, now);
        made.map(|()| self).map_err(|why| CutError::Rows(why.to_string()))
    }

    /// Adds what was found while they were put together to what a check counted.
    pub fn count(&self, totals: &mut Totals) {
        for finding in &self.findings {
            *totals.findings.entry(finding.kind).or_default() += 1;
        }
    }

    /// The rows. Only a repair changes them.
    pub fn engine(&self) -> &dyn Engine {
        &self.rows
    }
}

impl ClusterViewBuilder {
    /// The whole is kept in a scratch directory below `parent`, which goes away with it;
    /// `reserve_bytes` stay free there.
    ///
    /// # Errors
    /// If it cannot be made, or the table makes no cluster.
    pub fn new(
        parent: &Path,
        reserve_bytes: u64,
        placement: &PlacementMap,
    ) -> Result<Self, CutError> {
        let (rows, scratch) = empty(parent, reserve_bytes)?;
        let copy = |why: &dyn Display| CutError::Copy(parent.into(), why.to_string());
        let mut nodes = BTreeMap::new();
        for member in placement.map.members() {
            let view = MapView::new(member.id, placement.clone()).map_err(|why| copy(&why))?;
            let node = Node {
                view,
                records: BTreeMap::new(),
                inodes: 0,
                objects: 0,
                absent: [0; 2],
                prepared: BTreeMap::new(),
                decided: BTreeSet::new(),
            };
            nodes.insert(member.id, node);
        }
        Ok(Self { nodes, findings: Vec::new(), rows, scratch })
    }

    /// Adds all rows of a node, which come table by table in the order of [`Table::ALL`].
    ///
    /// # Errors
    /// Those of the rows, and if the copy cannot be written.
    pub fn add<E>(
        &mut self,
        node: NodeId,
        rows: impl Iterator<Item = Result<Row, E>>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CutError>
    where
        CutError: From<E>,
    {
        let copy = self.scratch.0.clone();
        let mut batch = Batch::new(&self.rows);
        let mut done = 0;
        for row in rows {
            let (key, value) = row?;
            done += 1;
            if done % 4096 == 0 {
                progress(done);
            }
            match classify(&mut self.nodes, node, &key, &value) {
                RowStatus::Ours => {}
                RowStatus::Whole => {
                    let change = put(key.table, key.id, &key.suffix, value);
                    batch
                        .add(change)
                        .map_err(|why| CutError::Copy(copy.clone(), why.to_string()))?;
                }
                RowStatus::Wrong(finding) => note(&mut self.findings, *finding),
            }
        }
        batch.send().map_err(|why| CutError::Copy(copy, why.to_string()))
    }

    /// What a node changed while its rows were read, in order, as it was recorded
    /// ([`crate::recording`]).
    ///
    /// # Errors
    /// If it cannot be read, and if the copy cannot be written.
    pub fn follow(&mut self, node: NodeId, mut recorded: impl Read) -> Result<(), CutError> {
        let Self { nodes, findings, rows, scratch } = self;
        let mut batch = Batch::new(rows);
        let mut failed = None;
        let read = spool::read(&mut recorded, &mut |key, value| {
            let change = match &value {
                None => forget(nodes, node, &key),
                Some(value) => match classify(nodes, node, &key, value) {
                    RowStatus::Ours => false,
                    RowStatus::Whole => true,
                    RowStatus::Wrong(finding) => {
                        note(findings, *finding);
                        false
                    }
                },
            };
            if !change {
                return Ok(());
            }
            let change = Mutation { key, value: value.map(Vec::into_boxed_slice) };
            batch.add(change).map_err(|why| {
                failed = Some(why);
                DumpError::from(io::Error::other("the copy could not be written"))
            })
        });
        let copy = |why: EngineError| CutError::Copy(scratch.0.clone(), why.to_string());
        match (failed, read) {
            (Some(why), _) => Err(copy(why)),
            (None, Err(why)) => Err(CutError::Rows(why.to_string())),
            (None, Ok(())) => batch.send().map_err(copy),
        }
    }

    /// All nodes have been added: the whole.
    ///
    /// # Errors
    /// If the copy cannot be written.
    pub fn finish(self) -> Result<ClusterView, CutError> {
        let Self { mut nodes, mut findings, rows, scratch } = self;
        for (id, node) in &nodes {
            unchanged(*id, node).map_err(CutError::Rows)?;
        }
        let copy = |why: &dyn Display| CutError::Copy(scratch.0.clone(), why.to_string());
        let decided: BTreeSet<(NodeId, TxnId)> = nodes
            .iter()
            .flat_map(|(id, node)| node.decided.iter().map(|txn| (*id, *txn)))
            .collect();
        let mut batch = Batch::new(&rows);
        for node in nodes.values_mut() {
            for (txn, prepared) in std::mem::take(&mut node.prepared) {
                if decided.contains(&(txn.node, txn)) {
                    for change in prepared.mutations {
                        batch.add(change).map_err(|why| copy(&why))?;
                    }
                }
            }
        }
        let newest = newest_clock(&nodes);
        let counters = nodes.iter().flat_map(|(id, node)| counters(*id, node, newest));
        let counters = counters.chain(nodes.iter().filter_map(|(id, node)| lease(*id, node)));
        let counters =
            counters.chain(nodes.iter().flat_map(|(id, node)| damaged_snapshots(*id, node)));
        for finding in counters.chain(nodes.iter().flat_map(|(id, node)| peers(*id, node, &nodes)))
        {
            note(&mut findings, finding);
        }
        for change in records(&nodes) {
            batch.add(change).map_err(|why| copy(&why))?;
        }
        batch.send().map_err(|why| copy(&why))?;
        drop(batch);
        let mut outdated =
            nodes.values().flat_map(|node| outdated(node, &nodes)).collect::<Vec<_>>();
        outdated.dedup();
        Ok(ClusterView { rows, _scratch: scratch, findings, outdated })
    }
}

/// Whether a node still had the map by which its rows were checked when the last of them was read:
/// by a newer one some of them are another node's, which has them among those that were passed
/// over.
fn unchanged(id: NodeId, node: &Node) -> Result<(), String> {
    let Some(row) = node.records.get(TABLE.as_bytes()) else { return Ok(()) };
    match PlacementMap::decode(row) {
        Ok(map) if map.version <= node.view.placement.version => Ok(()),
        Ok(_) => Err(format!("node {id}: the placement map has changed meanwhile; repeat it")),
        Err(why) => Err(format!("node {id}: record \"{TABLE}\": {why}")),
    }
}

fn note(findings: &mut Vec<Finding>, finding: Finding) {
    if findings.len() < FINDINGS_MAX {
        findings.push(finding);
    }
}

/// What a row of a node is.
enum RowStatus {
    /// A matter of that node alone, and in order.
    Ours,
    /// Part of the whole.
    Whole,
    Wrong(Box<Finding>),
}

fn classify(
    nodes: &mut BTreeMap<NodeId, Node>,
    from: NodeId,
    key: &Key,
    value: &[u8],
) -> RowStatus {
    let path = || format!("node {from}: {:?} #{} {}", key.table, key.id, readable(&key.suffix));
    let Some(node) = nodes.get_mut(&from) else {
        let detail = "the node is not one of the cluster's".to_string();
        return RowStatus::Wrong(Box::new(Finding::new(FindingKind::RowMisplaced, path(), detail)));
    };
    match key.table {
        Table::System => {
            node.records.insert(key.suffix.clone(), value.into());
            return RowStatus::Ours;
        }
        Table::Txn => return classify_record(node, from, key, value, &path()),
        Table::History if decode_history_key(key.borrow()).is_none() => {
            let finding = Finding::new(FindingKind::RowUnknown, path(), "not the history of a row");
            let act = Act::AtNode(from, vec![delete(key)]);
            return RowStatus::Wrong(Box::new(finding.with(Stage::Tree, "removed", act)));
        }
        _ => {}
    }
    if is_record_of_quota(key) {
        if let Err(why) = decode_quota_row(key.id, &key.suffix, value) {
            let finding = Finding::new(FindingKind::QuotaWrong, path(), why.to_string());
            let act = Act::AtNode(from, vec![delete(key)]);
            return RowStatus::Wrong(Box::new(finding.with(Stage::Numbers, "removed", act)));
        }
        let leads = snapshot_leader(&node.view.placement) == Some(from);
        return if leads { RowStatus::Whole } else { RowStatus::Ours };
    }
    let owner = node.view.owner(key.table, key.id, &key.suffix);
    if owner != from {
        // Rows on their way to or from another node: nothing reads them, and there they are in
        // order.
        let explained = |name: &str| node.records.contains_key(name.as_bytes());
        if explained(STRANGERS) || explained(FROZEN) {
            return RowStatus::Ours;
        }
        let finding =
            Finding::new(FindingKind::RowMisplaced, path(), format!("it belongs to node {owner}"));
        let fix = format!("brought to node {owner}");
        return RowStatus::Wrong(Box::new(finding.with(
            Stage::Tree,
            fix,
            Act::Bring(from, key.clone()),
        )));
    }
    if let (Table::DirStat | Table::ObjStat, Ok(share)) =
        (key.table, <[u8; 2]>::try_from(&*key.suffix))
    {
        let worker = u64::from(u16::from_be_bytes(share)) % u64::from(WORKERS_MAX);
        let shares = node.records.get(SHARES).and_then(|row| decode_ceiling(row).ok());
        let of_history = key.table == Table::ObjStat && is_history_share(&share);
        if shares.is_none_or(|shares| worker >= shares) && !of_history {
            let detail = format!("a share of worker {worker}, which the node does not read");
            let finding = Finding::new(FindingKind::RowMisplaced, path(), detail);
            let act = Act::AtNode(from, vec![delete(key)]);
            return RowStatus::Wrong(Box::new(finding.with(Stage::Tree, "removed", act)));
        }
    }
    let ino = match key.table {
        Table::Entry => Entry::peek(value).ok().map(|(ino, _)| ino),
        Table::Link | Table::Chunk | Table::DirId => Some(key.id),
        _ => None,
    };
    if let Some((counter, maker)) = ino.map(maker_of_id) {
        match nodes.get_mut(&maker) {
            Some(maker) => maker.inodes = maker.inodes.max(counter),
            None => of_absent(nodes, maker, [counter, 0]),
        }
    }
    if key.table == Table::ObjStat {
        let (counter, maker) = maker_of_object(key.id);
        match nodes.get_mut(&maker) {
            Some(maker) => maker.objects = maker.objects.max(counter),
            None => of_absent(nodes, maker, [0, counter]),
        }
    }
    RowStatus::Whole
}

/// Numbers that a node made that is not there: the counters of all are above them, since a node
/// that is added begins where the coordinator's are, which any may be.
fn of_absent(nodes: &mut BTreeMap<NodeId, Node>, maker: NodeId, [inode, object]: [u64; 2]) {
    for node in nodes.values_mut().filter(|_| maker != 0) {
        let [inodes, objects] = &mut node.absent;
        (*inodes, *objects) = (inode.max(*inodes), object.max(*objects));
    }
}

/// A row of a node goes. Whether it may be part of the whole.
fn forget(nodes: &mut BTreeMap<NodeId, Node>, from: NodeId, key: &Key) -> bool {
    let Some(node) = nodes.get_mut(&from) else { return false };
    match (key.table, TxnKey::decode(key.id, &key.suffix)) {
        (Table::System, _) => drop(node.records.remove(&key.suffix)),
        (Table::Txn, Some(TxnKey::Decided(txn))) => drop(node.decided.remove(&txn)),
        (Table::Txn, Some(TxnKey::Prepared(txn))) => drop(node.prepared.remove(&txn)),
        (Table::Txn, _) => {}
        _ if is_record_of_quota(key) => {
            return snapshot_leader(&node.view.placement) == Some(from);
        }
        _ => return node.view.owner(key.table, key.id, &key.suffix) == from,
    }
    false
}

/// Whether every node that serves has such a row: of the whole it is as the node has it that leads
/// quotas.
fn is_record_of_quota(key: &Key) -> bool {
    key.table == Table::Quota
        && matches!(
            QuotaRow::of(key.id, &key.suffix),
            Some(QuotaRow::Record(_) | QuotaRow::Above(_) | QuotaRow::Since(_))
        )
}

/// The node that leads snapshots and quotas.
fn snapshot_leader(placement: &PlacementMap) -> Option<NodeId> {
    placement.snapshot_leader().map(|leader| leader.id)
}

/// A session, an answer, or what is on record of a transaction.
fn classify_record(
    node: &mut Node,
    from: NodeId,
    key: &Key,
    value: &[u8],
    path: &str,
) -> RowStatus {
    let finding = |why: &dyn Display| Finding::new(FindingKind::TxnWrong, path, why.to_string());
    let removed = |why: &dyn Display, fix: &str| {
        let act = Act::AtNode(from, vec![delete(key)]);
        RowStatus::Wrong(Box::new(finding(why).with(Stage::Numbers, fix, act)))
    };
    let wrong = |why: &dyn Display| removed(why, "removed");
    match TxnKey::decode(key.id, &key.suffix) {
        None => wrong(&"its key is none"),
        Some(TxnKey::Session(client)) => {
            decode_session(client, value).map_or_else(|why| wrong(&why), |_| RowStatus::Ours)
        }
        Some(TxnKey::Answer(..)) => {
            decode_answer(value).map_or_else(|why| wrong(&why), |_| RowStatus::Ours)
        }
        Some(TxnKey::Decided(txn)) => {
            node.decided.insert(txn);
            let Err(why) = decode_decision(value) else { return RowStatus::Ours };
            // A node that has no part in it reports it as done.
            let others: Vec<NodeId> = node.view.nodes().filter(|other| *other != from).collect();
            let right = put(key.table, key.id, &key.suffix, encode_decision(&others));
            let act = Act::AtNode(from, vec![right]);
            RowStatus::Wrong(Box::new(finding(&why).with(
                Stage::Numbers,
                "all nodes will be told of it",
                act,
            )))
        }
        Some(TxnKey::Prepared(txn)) => match decode_prepared(value) {
            Ok(prepared) => {
                node.prepared.insert(txn, prepared);
                RowStatus::Ours
            }
            // The node does not start with it.
            Err(why) => removed(&why, "removed: what the node had agreed to change is lost"),
        },
    }
}

/// What is wrong with the counters of a node; `newest` is the highest of the clocks of all.
fn counters(id: NodeId, node: &Node, newest: u64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let counters = [
        (INODES, node.inodes, node.inodes.max(node.absent[0]).max(FIRST_INODE - 1), COUNTERS_MAX),
        (OBJECTS, node.objects, node.objects.max(node.absent[1]), OBJECT_COUNTERS_MAX),
        // Whether the highest is above all rows is a matter of the whole.
        (CLOCK, 0, newest, u64::MAX),
        (SHARES, 0, MEMBER_SHARES as u64 - 1, u64::MAX),
    ];
    for (name, least, below, max) in counters {
        let detail = match node.records.get(name).map(|row| decode_ceiling(row)) {
            Some(Ok(ceiling)) if ceiling > least => continue,
            Some(Ok(ceiling)) => format!("the counter stands at {ceiling}; {least} is in use"),
            Some(Err(why)) => why.to_string(),
            None => "the record is missing".into(),
        };
        let path = format!("node {id}: {}", readable(name));
        let mut finding = Finding::new(FindingKind::SystemWrong, path, detail);
        if let Some(right) = below.checked_add(1).filter(|right| *right < max) {
            let value = match name == SHARES && has_snapshots(node) {
                true => encode_shares_with_history(right),
                false => encode_ceiling(right),
            };
            let act = Act::AtNode(id, vec![put(Table::System, 0, name, value)]);
            finding = finding.with(Stage::Numbers, format!("set to {right}"), act);
        }
        findings.push(finding);
    }
    findings
}

/// What is wrong with the record of the lease that a node's clients have.
fn lease(id: NodeId, node: &Node) -> Option<Finding> {
    let why = decode_ceiling(node.records.get(LEASE)?).err()?;
    let finding = Finding::new(
        FindingKind::SystemWrong,
        format!("node {id}: {}", readable(LEASE)),
        why.to_string(),
    );
    let fix = "removed: the node waits for clients as long as its own lease at its next start";
    let act = Act::AtNode(id, vec![delete(&Key::new(Table::System, 0, LEASE))]);
    Some(finding.with(Stage::Numbers, fix, act))
}

/// How often a node was started.
fn starts(node: &Node) -> u64 {
    node.records.get(EPOCH).and_then(|row| decode_ceiling(row).ok()).unwrap_or(0)
}

/// Nodes of which this one has seen later starts than their directories.
fn outdated(node: &Node, nodes: &BTreeMap<NodeId, Node>) -> Vec<NodeId> {
    let mut outdated = Vec::new();
    for (name, value) in &node.records {
        if let (Some(peer), Ok(known)) = (peer_of(name), PeerIdentity::decode(value))
            && nodes.get(&peer).is_some_and(|other| known.epoch > starts(other))
        {
            outdated.push(peer);
        }
    }
    outdated
}

/// What is wrong with a node's records of the others: they have been started at least as often as
/// the records have it.
fn peers(id: NodeId, node: &Node, nodes: &BTreeMap<NodeId, Node>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, value) in &node.records {
        let Some(peer) = peer_of(name).filter(|peer| node.view.placement.heir_of(*peer).is_none())
        else {
            continue;
        };
        let detail = match (PeerIdentity::decode(value), nodes.get(&peer).filter(|_| peer != id)) {
            (Err(why), _) => why.to_string(),
            (Ok(_), None) => "it is about a node that is none of the others".into(),
            (Ok(known), Some(other)) if known.epoch <= starts(other) => continue,
            (Ok(known), Some(other)) => format!(
                "it has seen start {} of node {peer}, but the directory of that node was started \
                 {} times: the directory is an old copy, or made anew",
                known.epoch,
                starts(other)
            ),
        };
        let path = format!("node {id}: {}", readable(name));
        let mut finding = Finding::new(FindingKind::SystemWrong, path, detail);
        if PeerIdentity::decode(value).is_err() {
            let act = Act::AtNode(id, vec![delete(&Key::new(Table::System, 0, name))]);
            finding = finding.with(Stage::Numbers, "removed: the node learns it anew", act);
        }
        findings.push(finding);
    }
    findings
}

/// The highest of the nodes' clocks.
fn newest_clock(nodes: &BTreeMap<NodeId, Node>) -> u64 {
    let clocks = nodes.values().filter_map(|node| decode_ceiling(node.records.get(CLOCK)?).ok());
    clocks.max().unwrap_or_default()
}

/// Records of tokens, merged from all nodes. One that cannot be read is left to the check of its
/// node.
fn tokens_of(nodes: &BTreeMap<NodeId, Node>) -> Vec<Mutation> {
    let mut all: BTreeMap<Box<[u8]>, TokenRecord> = BTreeMap::new();
    let records =
        nodes.values().flat_map(|node| &node.records).filter(|(name, _)| tokens::is_one(name));
    for (name, value) in records {
        let Ok(record) = TokenRecord::decode(value) else { continue };
        match all.get_mut(name).filter(|known| known.id == record.id) {
            Some(known) => drop(known.merge(&record)),
            None => drop(all.insert(name.clone(), record)),
        }
    }
    let row =
        |(name, record): (Box<[u8]>, TokenRecord)| put(Table::System, 0, &name, record.encode());
    all.into_iter().map(row).collect()
}

/// Whether a node has records of snapshots.
fn has_snapshots(node: &Node) -> bool {
    node.records.keys().any(|name| name.starts_with(RECORD_PREFIX))
}

/// Records of snapshots as the node has them that leads snapshots; of those that it does not know,
/// for which nobody has rows but by an error, as another one has them, in removal.
fn snapshots_of(nodes: &BTreeMap<NodeId, Node>) -> Vec<Mutation> {
    let placement = nodes.values().next().map(|node| &node.view.placement);
    let leader = placement.and_then(snapshot_leader);
    let mut all: BTreeMap<&[u8], Box<[u8]>> = BTreeMap::new();
    let leads = |node: &NodeId| Some(*node) == leader;
    let in_order = nodes.iter().filter(|(node, _)| !leads(node));
    for (id, node) in in_order.chain(nodes.iter().filter(|(node, _)| leads(node))) {
        for (name, value) in &node.records {
            let Some(record) = SnapshotInfo::decode(name, value) else { continue };
            match record {
                Ok(info) if !leads(id) => {
                    all.insert(&**name, SnapshotInfo { removing: true, ..info }.encode());
                }
                _ => drop(all.insert(&**name, value.clone())),
            }
        }
    }
    all.into_iter().map(|(name, value)| put(Table::System, 0, name, value)).collect()
}

/// What is wrong with the records of snapshots that a node has: it does not start with one that is
/// damaged.
fn damaged_snapshots(id: NodeId, node: &Node) -> Vec<Finding> {
    let damaged = node.records.iter().filter_map(|(name, value)| {
        let why = SnapshotInfo::decode(name, value)?.err()?;
        let path = format!("node {id}: {}", readable(name));
        let finding = Finding::new(FindingKind::SystemWrong, path, why.to_string());
        let removed = removed_record(name);
        let act = Act::AtNode(id, vec![removed]);
        let says = "made one of a snapshot that is being removed";
        Some(finding.with(Stage::Numbers, says, act))
    });
    damaged.collect()
}

/// Records of the whole: the newest of the nodes' clocks, the sum of their figures if all of them
/// were stopped, tokens, and snapshots.
fn records(nodes: &BTreeMap<NodeId, Node>) -> Vec<Mutation> {
    let mut rows = vec![put(Table::System, 0, CLOCK, encode_ceiling(newest_clock(nodes)))];
    let sums: Option<Vec<[i64; 3]>> =
        nodes.values().map(|node| decode_usage(node.records.get(USAGE)?).ok()).collect();
    if let Some(sums) = sums {
        let sum = |at: usize| sums.iter().fold(0_i64, |sum, node| sum.wrapping_add(node[at]));
        rows.push(put(Table::System, 0, USAGE, encode_usage([sum(0), sum(1), sum(2)])));
    }
    rows.extend(tokens_of(nodes));
    rows.extend(snapshots_of(nodes));
    rows
}
