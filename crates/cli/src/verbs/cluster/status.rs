//! `kestrel cluster status`: the nodes of a volume.

use clap::Args;
use kestrel_client::remote::RemoteUrl;
use serde_json::Value;

use super::failed;
use crate::failure::{Failure, Verdict};
use crate::units::{bytes, count};
use crate::verbs::print_json;
use crate::verbs::status::several;

/// Show the nodes of a volume that several share, and whether all are up.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster status kestrel://10.0.0.1,10.0.0.2,10.0.0.3/photos
  kestrel cluster status kestrel://10.0.0.1/photos --json

One node that answers is enough to learn of the others. The exit code is 0 if all of them answer and reach each other, 1 if not.")]
pub struct StatusArgs {
    /// The volume: kestrel://host[:port][,host2[:port]…]/NAME
    pub url: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Shows them.
pub fn run(args: &StatusArgs) -> Result<Verdict, Failure> {
    RemoteUrl::parse(&args.url).map_err(|why| Failure::usage(format!("cluster: {why}")))?;
    let status = several::ask(&args.url).map_err(failed)?;
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
        table(nodes);
        changes(&status, nodes);
    }
    Ok(if is_well { Verdict::Good } else { Verdict::Bad })
}

/// Tells of the table of placement, and of what is about to become of it.
fn changes(status: &Value, nodes: &[Value]) {
    let versions = nodes.iter().filter_map(|node| node["table"].as_u64());
    let (least, most) = (versions.clone().min().unwrap_or(0), versions.max().unwrap_or(0));
    let exceptions = status["exceptions"].as_u64().unwrap_or(0);
    let version = if least == most { most.to_string() } else { format!("{least} to {most}") };
    println!("table {version}, {} exceptions", count(exceptions));
    for node in status["expected"].as_array().into_iter().flatten() {
        println!("node {} is expected at {}", node["node"], node["address"].as_str().unwrap_or("?"));
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
        if node["joining"] == true {
            println!("node {} has not joined yet", node["node"]);
        }
    }
}

fn peers(node: &Value) -> &[Value] {
    node["peers"].as_array().map_or(&[], Vec::as_slice)
}

fn is_well(node: &Value) -> bool {
    node["up"] == true && peers(node).iter().all(|peer| peer["up"] == true)
}

fn table(nodes: &[Value]) {
    println!(
        "{:>5}  {:<28} {:>6}  {:<7} {:>9} {:>9} {:>11} {:>10}  not reached",
        "node", "address", "slots", "state", "up for s", "sessions", "entries", "bytes"
    );
    for node in nodes {
        let number = |name: &str| node[name].as_u64().unwrap_or(0);
        let address = node["address"].as_str().unwrap_or("?");
        let state = match (node["up"] == true, node["leaving"] == true) {
            (true, false) => "up",
            (true, true) => "leaving",
            (false, _) => "down",
        };
        print!("{:>5}  {address:<28} {:>6}  {state:<7}", number("node"), number("slots"));
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
        println!(
            " {:>9} {:>9} {:>11} {:>10}  {}",
            number("uptime_seconds"),
            number("sessions"),
            count(number("entries")),
            bytes(number("bytes")),
            if lost.is_empty() { "-".to_string() } else { lost.join(", ") }
        );
    }
}
