//! What a volume is and holds. Each node of a cluster tells its part; the asking process adds the
//! parts up.

use std::path::Path;

use kestrel_admin::info::{self, InfoError};
use kestrel_client::descriptor::{ClusterSection, Descriptor};
use kestrel_client::error::VolumeError;
use kestrel_client::remote::{self, NodeAnswer};
use kestrel_engine::Engine;
use kestrel_types::ids::ROOT;
use serde_json::{Value, json};

/// Name, settings and sums of a volume.
///
/// # Errors
/// If the metadata cannot be read.
pub fn describe(
    dir: &Path,
    descriptor: &Descriptor,
    engine: &dyn Engine,
) -> Result<Value, InfoError> {
    let tree = info::tree_sums(engine, ROOT)?;
    let objects = info::object_sums(engine)?;
    let mut out = settings(dir, descriptor, engine);
    out["files"] = tree.files.into();
    out["directories"] = (tree.dirs + 1).into();
    out["bytes"] = tree.bytes.into();
    out["objects"] = objects.objects.into();
    out["object_bytes"] = objects.referenced_bytes.into();
    Ok(out)
}

/// Name and settings of a volume, and what its metadata takes here.
fn settings(dir: &Path, descriptor: &Descriptor, engine: &dyn Engine) -> Value {
    let stats = engine.stats();
    let mut out = known(descriptor);
    out["volume"] = dir.to_string_lossy().into();
    out["metadata_disk_bytes"] = (stats.log_disk_bytes + stats.run_disk_bytes).into();
    if stats.uploads_behind {
        out["upload_backlog"] = json!({
            "bytes": stats.backlog_bytes,
            "oldest_seconds": stats.backlog_age_ms as f64 / 1000.0,
        });
    }
    out
}

/// Name and settings of a volume, which each of its clients knows.
pub fn known(descriptor: &Descriptor) -> Value {
    let settings = &descriptor.settings;
    json!({
        "name": settings.name,
        "uuid": descriptor.uuid,
        "format_version": descriptor.format_version,
        "created": crate::logger::utc(descriptor.created),
        "durability": settings.durability,
        "storage": settings.storage,
        // Without its password.
        "metadata": descriptor.metadata().ok().and_then(|rows| rows.shown()),
        "block_size": settings.block_bytes,
        "inline_max": settings.inline_max,
        "grace_seconds": settings.grace_seconds,
        "atime": settings.atime,
    })
}

/// Figures that are the sums of the nodes'.
const SUMS: [&str; 5] = ["files", "directories", "bytes", "object_bytes", "metadata_disk_bytes"];

/// The same of its clients.
const SERVED_SUMS: [&str; 4] = ["sessions_total", "connected", "opens", "locks"];

/// What one node tells: name and settings of the volume, and its part of the figures.
///
/// # Errors
/// If the metadata cannot be read.
pub fn describe_part(
    dir: &Path,
    descriptor: &Descriptor,
    section: &ClusterSection,
    engine: &dyn Engine,
) -> Result<Value, InfoError> {
    let sums = info::part_sums(engine)?;
    let mut out = settings(dir, descriptor, engine);
    out["node"] = section.node.into();
    out["files"] = sums.files.into();
    out["directories"] = sums.dirs.into();
    out["bytes"] = sums.bytes.into();
    out["object_bytes"] = sums.referenced_bytes.into();
    Ok(out)
}

/// Asks the servers of the volume: one node, or all.
///
/// # Errors
/// If nobody answers.
pub fn ask(url: &str) -> Result<Value, VolumeError> {
    let who = crate::who("kestrel status");
    let question = json!({ "verb": "status" });
    add_up(remote::ask_each(url, &who, &question, kestrel_client::control::QUICK, &mut |_, _| ())?)
}

/// The status of the whole: that of the first node that answers, with the sums of all, and what
/// each is like in `nodes`. Figures lack the part of nodes that do not answer, which `nodes` tells.
///
/// # Errors
/// If none answers.
pub fn add_up(answers: Vec<NodeAnswer>) -> Result<Value, VolumeError> {
    let mut whole: Option<Value> = None;
    let (mut nodes, mut failed) = (Vec::new(), None);
    for NodeAnswer { node, address, answer } in answers {
        match answer {
            // The only node there is.
            Ok(status) if status["node"].is_null() => return Ok(status),
            Ok(status) => {
                nodes.push(of_node(node, &address, &status));
                match &mut whole {
                    None => whole = Some(status),
                    Some(whole) => add(whole, &status),
                }
            }
            Err(why) => {
                nodes.push(json!({ "node": node, "address": address, "up": false,
                    "why": why.to_string() }));
                failed = failed.or(Some(why));
            }
        }
    }
    let Some(mut whole) = whole else {
        return Err(failed.unwrap_or_else(|| VolumeError::Io("no node answers".into())));
    };
    // Slots of nodes that do not answer are known from the others' table.
    let table = whole["nodes"].take();
    for (node, listed) in nodes.iter_mut().flat_map(|node| {
        let listed =
            table.as_array().into_iter().flatten().find(|listed| listed["node"] == node["node"]);
        listed.map(|listed| (node, listed))
    }) {
        node["slots"] = listed["slots"].clone();
        node["leaving"] = listed["leaving"].clone();
        node["role"] = listed["role"].clone();
    }
    // The root belongs to no directory.
    whole["directories"] = (whole["directories"].as_i64().unwrap_or(0) + 1).into();
    whole["nodes"] = nodes.into();
    // A part of a node, not of the volume.
    for name in ["node", "pid", "address"] {
        whole[name] = Value::Null;
    }
    Ok(whole)
}

/// What `nodes` tells of one that answers.
fn of_node(node: u32, address: &str, status: &Value) -> Value {
    let served = &status["served"];
    json!({
        "node": node,
        "address": address,
        "up": true,
        "table": status["table"],
        "change": status["change"],
        "joining": status["joining"],
        "lease": status["lease"],
        "balance": status["balance"],
        "stands_in": status["stands_in"],
        "uptime_seconds": status["uptime_seconds"],
        "process": status["pid"],
        "sessions": served["sessions_total"],
        "connected": served["connected"],
        "opens": served["opens"],
        "locks": served["locks"],
        "grace_left_seconds": served["grace_left_seconds"],
        "entries": status["files"].as_i64().unwrap_or(0) + status["directories"].as_i64().unwrap_or(0),
        "bytes": status["bytes"],
        "metadata_disk_bytes": status["metadata_disk_bytes"],
        "peers": status["peers"],
    })
}

fn add(whole: &mut Value, part: &Value) {
    let sum = |one: &Value, other: &Value| one.as_i64().unwrap_or(0) + other.as_i64().unwrap_or(0);
    for name in SUMS {
        whole[name] = sum(&whole[name], &part[name]).into();
    }
    let (whole, part) = (&mut whole["served"], &part["served"]);
    for name in SERVED_SUMS {
        whole[name] = sum(&whole[name], &part[name]).into();
    }
    let more = part["sessions"].as_array().into_iter().flatten().cloned();
    if let Some(sessions) = whole["sessions"].as_array_mut() {
        sessions.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(node: u32, files: i64) -> NodeAnswer {
        let status = json!({
            "name": "v", "node": node, "table": 1, "files": files, "directories": 2,
            "bytes": 10 * files, "object_bytes": -1,
            "metadata_disk_bytes": 5, "served": { "sessions_total": 1, "connected": 1, "opens": 0,
                "locks": 0, "sessions": [node] },
            "nodes": [{ "node": 1, "slots": 100 }, { "node": 2, "slots": 200 }],
        });
        NodeAnswer { node, address: format!("node-{node}:1"), answer: Ok(status) }
    }

    fn silent(node: u32) -> NodeAnswer {
        let answer = Err(VolumeError::Io("it is away".into()));
        NodeAnswer { node, address: format!("node-{node}:1"), answer }
    }

    #[test]
    fn parts_are_added_up_and_the_root_is_counted_once() {
        let whole = add_up(vec![part(1, 3), part(2, -1)]).unwrap();
        for (name, sum) in [("files", 2), ("directories", 5), ("bytes", 20), ("object_bytes", -2)] {
            assert_eq!(whole[name], sum, "{name}");
        }
        assert_eq!(whole["served"]["sessions"], json!([1, 2]));
        assert_eq!((&whole["node"], &whole["nodes"][1]["slots"]), (&Value::Null, &json!(200)));
        assert_eq!(whole["nodes"][1]["entries"], 1);
    }

    /// The status reports a node that is away, and it is an error if no node answers.
    #[test]
    fn status_with_nodes_away() {
        let whole = add_up(vec![part(1, 3), silent(2)]).unwrap();
        assert_eq!((&whole["files"], &whole["nodes"][1]["up"]), (&json!(3), &json!(false)));
        assert_eq!(whole["nodes"][1]["slots"], 200);
        assert!(add_up(vec![silent(1), silent(2)]).unwrap_err().to_string().contains("it is away"));
    }
}
