//! `kestrel cluster status`: the nodes of a volume.

use clap::Args;
use kestrel_client::remote::RemoteUrl;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::status;
use kestrel_daemon::role::NodeRole;
use kestrel_daemon::units::{bytes, count};
use serde_json::Value;

use super::change::ClusterTarget;
use super::failed;
use crate::progress::Progress;
use crate::verbs::print_json;

/// Show the nodes of a volume that several share, and whether all are up.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster status kestrel://10.0.0.1,10.0.0.2,10.0.0.3/photos
  kestrel cluster status kestrel://10.0.0.1/photos --json
  kestrel cluster status kestrel://10.0.0.1/photos --count

`entries` and `bytes` are the node's parts of sums: what was added at it less what was removed at
it, wherever it lies now. The role with an asterisk is that of the node that leads changes. One node
that answers is enough to learn of the others. The exit code is 0 if all of them answer, reach each
other and have leases, 1 if not.")]
pub struct StatusArgs {
    /// The volume: kestrel://host[:port][,host2[:port]…]/NAME
    pub url: String,
    /// Count the entries that each node owns. All nodes have to be up, and look at all of theirs
    #[arg(long)]
    pub count: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Shows them.
pub fn run(args: &StatusArgs) -> Result<ExitStatus, Failure> {
    RemoteUrl::parse(&args.url).map_err(|why| Failure::usage(format!("cluster: {why}")))?;
    let mut status = status::ask(&args.url).map_err(failed)?;
    if args.count && status["nodes"].is_array() {
        count_owned(&args.url, &mut status)?;
    }
    let Some(nodes) = status["nodes"].as_array() else {
        let why = format!("{}: one node serves it; see `kestrel status`", args.url);
        return Err(Failure::new("cluster", why));
    };
    let is_well = nodes.iter().all(is_well);
    if args.json {
        let mut out = status.clone();
        out["all_up"] = is_well.into();
        print_json(&out);
    } else {
        table(nodes, &status["coordinator"]);
        changes(&status, nodes);
    }
    Ok(if is_well { ExitStatus::Good } else { ExitStatus::Bad })
}

/// Adds to each node's part of the status what it owns.
fn count_owned(url: &str, status: &mut Value) -> Result<(), Failure> {
    let reports =
        ClusterTarget::connect(url, "kestrel cluster status")?.reports(&mut Progress::new())?;
    for node in status["nodes"].as_array_mut().into_iter().flatten() {
        if let Some(report) = reports.iter().find(|report| node["node"] == report.node) {
            node["owned"] = report.entries.into();
        }
    }
    Ok(())
}

/// Tells of the placement map, and of what is about to become of it.
fn changes(status: &Value, nodes: &[Value]) {
    let versions = nodes.iter().filter_map(|node| node["table"].as_u64());
    let (least, most) = (versions.clone().min().unwrap_or(0), versions.max().unwrap_or(0));
    let exceptions = status["exceptions"].as_u64().unwrap_or(0);
    let version = if least == most { most.to_string() } else { format!("{least} to {most}") };
    println!("table {version}, {} exceptions", count(exceptions));
    if let Some(kept) = status["kept"].as_str() {
        println!("kept by the coordinator in {kept}");
    }
    for node in status["expected"].as_array().into_iter().flatten() {
        println!(
            "node {} is expected at {}",
            node["node"],
            node["address"].as_str().unwrap_or("?")
        );
    }
    for node in nodes.iter().filter(|node| node["balance"]["leads"] == true) {
        balancing(&node["balance"]);
    }
    for node in nodes {
        let change = &node["change"];
        let phase = change["phase"].as_str().unwrap_or("none");
        if phase != "none" {
            let rows = change["rows_sent"].as_u64().unwrap_or(0);
            println!(
                "node {}: a change of the table: {phase}, {} rows sent so far",
                node["node"],
                count(rows)
            );
        }
        if let Some(home) = node["stands_in"]["machine_of"].as_u64() {
            let seconds = node["stands_in"]["seconds"].as_u64().unwrap_or(0);
            println!(
                "node {} is served in place of its own process, on the machine of node {home}, for \
                 {} s",
                node["node"],
                count(seconds)
            );
        }
        if node["joining"] == true {
            println!("node {} has not joined yet", node["node"]);
        } else if !has_lease(node) {
            println!(
                "node {} has no lease: it reaches too few nodes and resolves no paths",
                node["node"]
            );
        }
    }
}

/// What the node that leads changes does by itself.
fn balancing(told: &Value) {
    let Some(every) = told["every_seconds"].as_u64() else { return println!("balancing: off") };
    let ago = |name: &str| told[name].as_u64().map(|seconds| format!("{} s ago", count(seconds)));
    let found = ago("looked_seconds_ago").map_or("not looked yet".into(), |ago| {
        format!("{ago}: {}", told["found"].as_str().unwrap_or("?"))
    });
    println!("balancing: every {} s; {found}", count(every));
    if let Some(ago) = ago("did_seconds_ago") {
        println!("balancing: {ago}: {}", told["did"].as_str().unwrap_or("?"));
    }
}

fn peers(node: &Value) -> &[Value] {
    node["peers"].as_array().map_or(&[], Vec::as_slice)
}

fn is_well(node: &Value) -> bool {
    node["up"] == true && has_lease(node) && peers(node).iter().all(|peer| peer["up"] == true)
}

/// Whether it has the lease that it needs. A node that serves no clients needs none, and a node
/// that is down is told of as such.
fn has_lease(node: &Value) -> bool {
    node["role"] == NodeRole::Coordinator.word() || node["lease"]["held"] != false
}

/// What a node is there for; the one that leads changes is marked.
fn role(node: &Value, coordinator: &Value) -> String {
    let role = node["role"].as_str().unwrap_or("?");
    if node["node"] == *coordinator { format!("{role}*") } else { role.into() }
}

fn table(nodes: &[Value], coordinator: &Value) {
    let all: u64 = nodes.iter().filter_map(|node| node["owned"].as_u64()).sum();
    println!(
        "{:>5}  {:<28} {:<12} {:>6}  {:<7} {:>9} {:>9} {:>11} {:>10}  {}not reached",
        "node",
        "address",
        "role",
        "slots",
        "state",
        "up for s",
        "sessions",
        "entries",
        "bytes",
        if all > 0 { format!("{:>20}  ", "owns") } else { String::new() }
    );
    for node in nodes {
        let number = |name: &str| node[name].as_u64().unwrap_or(0);
        let address = node["address"].as_str().unwrap_or("?");
        let state = match (node["up"] == true, node["leaving"] == true) {
            (true, false) => "up",
            (true, true) => "leaving",
            (false, _) => "down",
        };
        let role = role(node, coordinator);
        print!(
            "{:>5}  {address:<28} {role:<12} {:>6}  {state:<7}",
            number("node"),
            number("slots")
        );
        if node["up"] != true {
            println!(" {}", node["why"].as_str().unwrap_or(""));
            continue;
        }
        let lost: Vec<String> = peers(node)
            .iter()
            .filter(|peer| peer["up"] != true)
            .map(|peer| match peer["why"].as_str() {
                Some(why) => format!("{} ({why})", peer["node"]),
                None => peer["node"].to_string(),
            })
            .collect();
        let owned = node["owned"].as_u64().filter(|_| all > 0).map(|owned| {
            let part = format!("{} ({:.1} %)", count(owned), 100.0 * owned as f64 / all as f64);
            format!("{part:>20}  ")
        });
        println!(
            " {:>9} {:>9} {:>11} {:>10}  {}{}",
            number("uptime_seconds"),
            number("sessions"),
            count(number("entries")),
            bytes(number("bytes")),
            owned.unwrap_or_default(),
            if lost.is_empty() { "-".to_string() } else { lost.join(", ") }
        );
    }
}
