//! Questions to one of several nodes about the placement map: what it is, what the node has
//! that decides about it, and, to the coordinator, that it be another one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use kestrel_admin::rows::{INODES, OBJECTS, decode_ceiling, get};
use kestrel_cluster::addresses::NodeAddress;
use kestrel_cluster::change::{Announced, ChangeStats, Phase};
use kestrel_cluster::host::NodeHost;
use kestrel_cluster::lease::LeaseStats;
use kestrel_engine::Engine;
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::slot_map::MEMBERS_MAX;
use kestrel_types::placement::{NodeId, PlacementMap};
use serde_json::{Value, json};

use super::load::count;
use super::role::NodeRole;
use super::serving::Serving;

/// Bytes of a table in one answer.
const PART_BYTES: usize = 256 << 10;

/// Time between two messages about a change that goes on.
const TELL: Duration = Duration::from_millis(200);

/// Answers one of these questions.
///
/// # Errors
/// In words.
pub fn answer(
    serving: &Serving,
    question: &Value,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    let host = serving.volume.fs.member().ok_or("this is no node of a cluster")?;
    let verb = question["verb"].as_str();
    if serving.volume.descriptor.job.is_some() && matches!(verb, Some("change" | "expect")) {
        // A server sees those rows of the job's inputs that it owned when the job began.
        return Err(
            "not supported: which servers share a job does not change while it is served; \
                    begin the job with as many as it needs"
                .into(),
        );
    }
    match verb {
        Some("table") => part_of_table(host, question),
        Some("whereabouts") => Ok(addresses(host, question)),
        Some("entries") => entries(host, &*serving.volume.engine, tell),
        Some("change") => change(host, question, tell),
        Some("expect") => expect(host, &*serving.volume.engine, question),
        Some("forget") => forget(host, question),
        _ => Err("the question is not about the table".into()),
    }
}

/// What a status tells of the table, and of a change that is under way.
pub fn describe(serving: &Serving, out: &mut Value) {
    let Some(host) = serving.volume.fs.member() else { return };
    let placement = present(host);
    out["table"] = placement.version.into();
    out["exceptions"] = placement.exceptions.len().into();
    let slots = placement.map.slots_of_members();
    let node = |(member, slots): (&kestrel_types::placement::Member, usize)| {
        json!({
            "node": member.id, "address": member.address, "slots": slots,
            "leaving": placement.is_leaving(member.id),
            "role": NodeRole::of(placement.is_idle(member.id)).word(),
        })
    };
    out["nodes"] = placement.map.members().iter().zip(slots).map(node).collect();
    out["coordinator"] = placement.coordinator.into();
    out["kept"] = kept(serving, placement.is_idle(placement.coordinator)).into();
    let expected = |(node, announced): (NodeId, Announced)| {
        json!({ "node": node, "address": announced.address,
            "role": NodeRole::of(announced.idle).word() })
    };
    out["expected"] = host.expected().into_iter().map(expected).collect();
    out["joining"] = serving.node.as_ref().is_some_and(|node| node.is_joining(host)).into();
    out["change"] = stats(&host.change_stats());
    let LeaseStats { held, lapses, fences, fenced } = host.lease_stats();
    out["lease"] = json!({ "held": held, "lapses": lapses, "fences": fences, "fenced": fenced });
    if let Some(node) = &serving.node {
        let home = node.stands_in.map(
            |(home, since)| json!({ "machine_of": home, "seconds": since.elapsed().as_secs() }),
        );
        out["stands_in"] = home.into();
        out["standing_in"] =
            serving.succession.get().map(|succession| succession.describe()).into();
        out["balance"] = node.balancing.describe(node.pace, host.leads_changes());
    }
}

/// Where the coordinator, which is idle or not, keeps the table and what it decides; none if in its
/// directory.
fn kept(serving: &Serving, idle: bool) -> Option<String> {
    // It could be read when this process began.
    serving.volume.descriptor.rows_of(idle).ok()?.shown()
}

/// What the metrics of a node tell of its table, its lease, and the other nodes.
pub fn metrics(serving: &Serving, put: &mut dyn FnMut(&'static str, u64)) {
    let (Some(host), Some(node)) = (serving.volume.fs.member(), &serving.node) else { return };
    let (table, change) = (host.table(), host.change_stats());
    let placement = &table.placement;
    let members = placement.map.members();
    let slots = members.iter().zip(placement.map.slots_of_members());
    let own =
        slots.filter(|(member, _)| member.id == node.node).map(|(_, slots)| slots as u64).sum();
    let up = node
        .peers
        .stats()
        .into_iter()
        .filter(|(other, stats)| stats.up && placement.map.member(*other).is_some());
    put("cluster_map_version", placement.version);
    put("cluster_exceptions", placement.exceptions.len() as u64);
    put("cluster_nodes", members.len() as u64);
    // This one is among them.
    put("cluster_nodes_up", up.count() as u64 + 1);
    put("cluster_slots", own);
    put("cluster_coordinates", host.leads_changes().into());
    put("cluster_map_changing", (change.phase != Phase::None || change.leads).into());
    put("cluster_rows_sent", change.rows_sent);
    put("cluster_rows_taken", change.rows_taken);
    let lease = host.lease_stats();
    put("cluster_lease_held", lease.held.into());
    put("cluster_lease_lapses", lease.lapses);
    put("cluster_fences", lease.fences);
    put("cluster_fenced", lease.fenced);
    let stats = host.stats();
    put("cluster_handed_back", stats.handed_back);
    put("cluster_misdirected", stats.misdirected);
    put("cluster_messages_sent", stats.sent);
    put("cluster_messages_received", stats.received);
    put("cluster_messages_dropped", stats.overrun + stats.unsent);
    let [taken, failed] = serving.succession.get().map_or([0; 2], |succession| succession.stats());
    put("cluster_takeovers", taken);
    put("cluster_takeovers_failed", failed);
    put("cluster_stands_in", node.stands_in.is_some().into());
    let [looks, changes] = node.balancing.stats();
    put("cluster_balance_looks", looks);
    put("cluster_balance_changes", changes);
}

fn stats(stats: &ChangeStats) -> Value {
    json!({
        "phase": stats.phase.word(),
        "leads": stats.leads,
        "rows_sent": stats.rows_sent,
        "rows_taken": stats.rows_taken,
        "purging": stats.purging,
        "rows_purged": stats.rows_purged,
    })
}

/// The table, with nodes where they are.
fn present(host: &NodeHost) -> PlacementMap {
    host.placement().at(&host.addresses())
}

/// Where nodes are that have said so, each with the number of the start that did: `nodes` of the
/// question, or all. From memory, without waiting for anything: clients that have lost a node ask
/// again and again.
pub fn addresses(host: &NodeHost, question: &Value) -> Value {
    let told = |at: NodeAddress| json!([at.node, at.epoch, at.address]);
    let kept = host.address_book();
    let nodes: Value = match question["nodes"].as_array() {
        Some(nodes) => {
            let nodes = nodes
                .iter()
                .filter_map(|node| NodeId::try_from(node.as_u64()?).ok())
                .take(MEMBERS_MAX);
            nodes.filter_map(|node| kept.of(node)).map(told).collect()
        }
        None => kept.all().into_iter().map(told).collect(),
    };
    json!({ "nodes": nodes })
}

/// The table's bytes in hexadecimal digits, from the byte `from` on. Parts are of one table if
/// `version` and `moves`, the changes of nodes' addresses so far, are the same.
fn part_of_table(host: &NodeHost, question: &Value) -> Result<Value, String> {
    // First: an address that changes now is in a part with too low a number, which fits no other.
    let moves = host.address_book().changes();
    let placement = present(host);
    let bytes = placement.encode();
    let from = question["from"].as_u64().unwrap_or(0);
    let rest = usize::try_from(from)
        .ok()
        .and_then(|from| bytes.get(from..))
        .ok_or("the table ends before")?;
    let part = &rest[..rest.len().min(PART_BYTES)];
    Ok(json!({ "version": placement.version, "moves": moves, "bytes": bytes.len(),
            "part": to_hex(part) }))
}

/// Counts the node's entries, and its most frequent names.
fn entries(
    host: &NodeHost,
    engine: &dyn Engine,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    let table = host.table();
    let counted =
        count((host.me(), &table), engine, &mut |entries| tell(&json!({ "entries": entries })))?;
    let report = counted.ok_or("nobody waits for the answer any more")?;
    let names: Value = report
        .names
        .iter()
        .map(|count| json!([to_hex(count.name.as_bytes()), count.entries]))
        .collect();
    let version = table.placement.version;
    Ok(json!({ "node": report.node, "table": version, "entries": report.entries, "names": names }))
}

/// Makes this the cluster's table. Tells how it goes, and answers when all nodes have it.
fn change(
    host: &Arc<NodeHost>,
    question: &Value,
    tell: &mut dyn FnMut(&Value) -> bool,
) -> Result<Value, String> {
    let bytes = question["table"].as_str().and_then(from_hex).ok_or("the question has no table")?;
    let next = PlacementMap::decode(&bytes).map_err(|why| why.to_string())?;
    // The asker has been told where nodes are; in the table they stay where they joined.
    let joined: BTreeMap<NodeId, String> = host
        .placement()
        .map
        .members()
        .iter()
        .map(|member| (member.id, member.address.clone()))
        .collect();
    let next = next.at(&joined);
    let version = next.version;
    let (ended, end) = mpsc::channel();
    host.change(
        next,
        Box::new(move |result| {
            // A caller that does not listen any more does not need it.
            let _ = ended.send(result);
        }),
    );
    loop {
        match end.recv_timeout(TELL) {
            Ok(Ok(())) => return Ok(json!({ "table": version })),
            Ok(Err(why)) => return Err(why.reason.into_owned()),
            // It goes on whether or not somebody listens.
            Err(RecvTimeoutError::Timeout) => drop(tell(&stats(&host.change_stats()))),
            Err(RecvTimeoutError::Disconnected) => return Err("the node is shutting down".into()),
        }
    }
}

/// Takes a node out that was announced and never came.
fn forget(host: &NodeHost, question: &Value) -> Result<Value, String> {
    let node = question["node"].as_u64().and_then(|node| NodeId::try_from(node).ok());
    let node = node.ok_or("the question names no node")?;
    let (ended, end) = mpsc::channel();
    host.forget(
        node,
        Box::new(move |result| {
            let _ = ended.send(result);
        }),
    );
    let done = end.recv().map_err(|_| "the node is shutting down".to_string())?;
    done.map_err(|why| why.reason.into_owned())?;
    Ok(json!({ "table": host.placement().version }))
}

/// Reserves the number of a node to come, and tells where its counters are to begin: where this
/// node's have come to.
fn expect(host: &NodeHost, engine: &dyn Engine, question: &Value) -> Result<Value, String> {
    let address = question["address"].as_str().ok_or("the question has no address")?.to_string();
    let idle = question["role"] == NodeRole::Coordinator.word();
    let (reserved, number) = mpsc::channel();
    host.expect(
        Announced { address, idle },
        Box::new(move |result| {
            let _ = reserved.send(result);
        }),
    );
    let node = number.recv().map_err(|_| "the node is shutting down".to_string())?;
    let node = node.map_err(|why| why.reason.into_owned())?;
    let counter = |name: &[u8]| {
        let row = get(engine, Key::new(Table::System, 0, name)).map_err(|why| why.to_string())?;
        let row = row.ok_or("a counter is missing; run kestrel fsck")?;
        decode_ceiling(&row).map_err(|why| why.to_string())
    };
    let (inodes, objects) = (counter(INODES)?, counter(OBJECTS)?);
    let table = to_hex(&present(host).encode());
    Ok(json!({ "node": node, "table": table, "inodes": inodes, "objects": objects }))
}
