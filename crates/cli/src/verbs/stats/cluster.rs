//! The figures of a volume that several nodes serve: each node's, and what they add up to.

use std::fmt::Write as _;

use kestrel_client::error::VolumeError;
use kestrel_client::remote::{self, NodeAnswer};
use kestrel_daemon::metrics::percentile_ns;
use serde_json::{Map, Value, json};

use super::{difference, grown};

/// Not added up, since each node tells the same thing: it is the most of what they tell.
const MOST: [&str; 5] = [
    "uptime_seconds",
    "cluster_map_version",
    "cluster_exceptions",
    "cluster_nodes",
    "cluster_map_changing",
];

/// The same, the least.
const LEAST: &str = "cluster_nodes_up";

/// Asks the servers of the volume: one node, or all.
///
/// # Errors
/// If nobody answers.
pub fn ask(url: &str) -> Result<Value, VolumeError> {
    let who = kestrel_daemon::who("kestrel stats");
    let question = json!({ "verb": "stats" });
    add_up(remote::ask_each(url, &who, &question, kestrel_client::control::QUICK, &mut |_, _| ())?)
}

/// The sums of all that answer, and each node's figures in `nodes`.
fn add_up(answers: Vec<NodeAnswer>) -> Result<Value, VolumeError> {
    let (mut sums, mut nodes, mut failed) = (Map::new(), Vec::new(), None);
    for NodeAnswer { node, address, answer } in answers {
        match answer {
            // The only node there is.
            Ok(stats) if node == 0 => return Ok(stats),
            Ok(stats) => {
                if let Value::Object(stats) = &stats {
                    add(&mut sums, stats);
                }
                nodes.push(
                    json!({ "node": node, "address": address, "up": true, "figures": stats }),
                );
            }
            Err(why) => {
                nodes.push(json!({ "node": node, "address": address, "up": false,
                    "why": why.to_string() }));
                failed = failed.or(Some(why));
            }
        }
    }
    if sums.is_empty() {
        return Err(failed.unwrap_or_else(|| VolumeError::Io("no node answers".into())));
    }
    let mut whole = Value::Object(sums);
    whole["nodes"] = nodes.into();
    Ok(whole)
}

fn add(sums: &mut Map<String, Value>, stats: &Map<String, Value>) {
    for (name, figure) in stats {
        match sums.get_mut(name) {
            None => {
                sums.insert(name.clone(), figure.clone());
            }
            Some(sum) if MOST.contains(&name.as_str()) => {
                *sum = sum.as_u64().max(figure.as_u64()).into()
            }
            Some(sum) if name == LEAST => *sum = sum.as_u64().min(figure.as_u64()).into(),
            Some(sum) => add_value(sum, figure),
        }
    }
}

/// Adds numbers, lists of them place by place, and figures of kinds of requests kind by kind.
fn add_value(sum: &mut Value, other: &Value) {
    match (sum, other) {
        (Value::Array(sums), Value::Array(others)) => {
            for (at, other) in others.iter().enumerate() {
                let same = match other["kind"].as_str() {
                    Some(kind) => sums.iter_mut().find(|sum| sum["kind"] == kind),
                    None => sums.get_mut(at),
                };
                match same {
                    Some(sum) => add_value(sum, other),
                    None => sums.push(other.clone()),
                }
            }
        }
        (Value::Object(sums), Value::Object(others)) => add(sums, others),
        (sum, other) => {
            if let (Some(one), Some(other)) = (sum.as_u64(), other.as_u64()) {
                *sum = one.saturating_add(other).into();
            }
        }
    }
}

/// Adds a line for each node, if there are several.
pub fn add_nodes(now: &Value, before: &Value, seconds: f64, out: &mut String) {
    let Some(nodes) = now["nodes"].as_array() else { return };
    let _ = writeln!(
        out,
        "{:<22} {:>10} {:>10} {:>10} {:>10} {:>8} {:>6} {:>11} {:>7}",
        "node",
        "per s",
        "p50 µs",
        "p99 µs",
        "files open",
        "clients",
        "lease",
        "leases lost",
        "fenced"
    );
    for node in nodes {
        let name = format!("{} {}", node["node"], node["address"].as_str().unwrap_or("?"));
        if node["up"] != true {
            let _ = writeln!(out, "{name:<22} does not answer; the sums lack its part");
            continue;
        }
        let same = |other: &&Value| other["node"] == node["node"];
        let earlier = before["nodes"].as_array().and_then(|nodes| nodes.iter().find(same));
        let (stats, earlier) =
            (&node["figures"], earlier.map_or(&Value::Null, |node| &node["figures"]));
        let latency = latency(stats, earlier);
        let us = |part: f64| percentile_ns(&latency, part) as f64 / 1000.0;
        let number = |name: &str| stats[name].as_u64().unwrap_or(0);
        let _ = writeln!(
            out,
            "{name:<22} {:>10.0} {:>10.1} {:>10.1} {:>10} {:>8} {:>6} {:>11} {:>7}",
            grown(stats, earlier, "metadata_requests_total") as f64 / seconds,
            us(0.5),
            us(0.99),
            number("metadata_open_files"),
            number("server_connected"),
            if stats["cluster_lease_held"] == 1 { "yes" } else { "no" },
            number("cluster_lease_lapses_total"),
            number("cluster_fenced_total")
        );
    }
}

/// The histogram of all kinds of requests together.
fn latency(now: &Value, before: &Value) -> Vec<u64> {
    let mut all: Vec<u64> = Vec::new();
    for kind in now["metadata_requests"].as_array().into_iter().flatten() {
        let same = |other: &&Value| other["kind"] == kind["kind"];
        let earlier =
            before["metadata_requests"].as_array().and_then(|kinds| kinds.iter().find(same));
        let earlier = earlier.map_or(&Value::Null, |kind| &kind["latency_log2_ns"]);
        for (at, count) in difference(&kind["latency_log2_ns"], earlier).into_iter().enumerate() {
            if at >= all.len() {
                all.resize(at + 1, 0);
            }
            all[at] += count;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of nodes stand below their headings.
    #[test]
    fn aligned_nodes() {
        let node = json!({ "node": 1, "address": "10.0.0.1:9440", "up": true,
                           "figures": { "metadata_open_files": 12, "server_connected": 3 } });
        let mut out = String::new();
        add_nodes(&json!({ "nodes": [node] }), &Value::Null, 1.0, &mut out);
        let widths: Vec<usize> = out.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths[0], widths[1], "{out}");
    }

    #[test]
    fn figures_are_added_up_and_who_is_away_is_told() {
        let stats = |requests: u64, kind: &str| {
            json!({
                "uptime_seconds": requests, "cluster_nodes_up": requests,
                "metadata_requests_total": requests, "metadata_batches_log2": [requests, 1],
                "metadata_requests": [{ "kind": kind, "requests": requests,
                    "latency_log2_ns": [0, requests] }],
            })
        };
        let answer = |node: u32, answer| NodeAnswer { node, address: format!("n{node}:1"), answer };
        let away = || Err(VolumeError::Io("it is away".into()));
        let whole =
            vec![answer(1, Ok(stats(3, "a"))), answer(2, Ok(stats(5, "a"))), answer(3, away())];
        let whole = add_up(whole).unwrap();
        assert_eq!(
            (&whole["metadata_requests_total"], &whole["uptime_seconds"]),
            (&json!(8), &json!(5))
        );
        assert_eq!(whole["cluster_nodes_up"], 3);
        assert_eq!(whole["metadata_batches_log2"], json!([8, 2]));
        assert_eq!(whole["metadata_requests"][0]["latency_log2_ns"], json!([0, 8]));
        assert_eq!(whole["nodes"][1]["figures"]["metadata_requests_total"], 5);
        assert_eq!(
            (&whole["nodes"][2]["up"], whole["nodes"].as_array().unwrap().len()),
            (&json!(false), 3)
        );
        let two = add_up(vec![answer(1, Ok(stats(1, "a"))), answer(2, Ok(stats(1, "b")))]).unwrap();
        assert_eq!(two["metadata_requests"].as_array().unwrap().len(), 2);
        assert!(add_up(vec![answer(1, away())]).is_err());
        assert!(add_up(vec![answer(0, Ok(stats(1, "a")))]).unwrap()["nodes"].is_null());
    }
}
