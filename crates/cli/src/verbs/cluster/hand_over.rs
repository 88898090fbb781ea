//! `kestrel cluster hand-over`: another machine serves a node.

use std::time::{Duration, Instant};

use clap::Args;
use kestrel_client::remote::{NodeFanOut, RemoteUrl};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_types::placement::{NodeId, PlacementMap};
use serde_json::json;

use super::failed;
use crate::verbs::print_json;

/// How long the machine may take until it serves the node.
const ANSWER: Duration = Duration::from_secs(60);

/// Have another node's machine serve a node, without a pause beyond a second.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster hand-over kestrel://10.0.0.1/photos --node 2
  kestrel cluster hand-over kestrel://10.0.0.1/photos --node 2 --to 3
  kestrel serve /data/node2 --take-over

For a machine that is to be restarted or to go: a process is started on the machine of node M, which
has the node's process end and goes on in its place. Clients go on. The metadata has to be in a
database or bucket that both machines reach. The last line of the examples, on the node's own
machine, takes it back. What the node's process does not give up within some seconds is taken from
it.")]
pub struct HandOverArgs {
    /// The volume: kestrel://host[:port][,host2[:port]…]/NAME
    pub url: String,
    /// The node
    #[arg(long, value_name = "N")]
    pub node: NodeId,
    /// The node with the machine that serves it then; the next one that serves clients by default
    #[arg(long, value_name = "M")]
    pub to: Option<NodeId>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Hands it over.
pub fn run(args: &HandOverArgs) -> Result<ExitStatus, Failure> {
    RemoteUrl::parse(&args.url).map_err(|why| Failure::usage(format!("cluster: {why}")))?;
    let fail = |why: String| Failure::new("cluster", why);
    let who = kestrel_daemon::who("kestrel cluster hand-over");
    let wanted = |table: &PlacementMap, node| successor(table, args) == Some(node);
    let panel = NodeFanOut::connect_to(&args.url, &who, wanted).map_err(failed)?;
    let panel = panel
        .ok_or_else(|| fail(format!("{}: one node serves it; there is no other one", args.url)))?;
    let table = &panel.placement;
    if table.map.member(args.node).is_none() {
        return Err(Failure::usage(format!(
            "cluster: --node {}: there is no such node",
            args.node
        )));
    }
    let to = successor(table, args).ok_or_else(|| match args.to {
        Some(to) => Failure::usage(format!(
            "cluster: --to {to}: there is no such node, or it is the same one"
        )),
        None => fail("no other node serves clients".into()),
    })?;
    let begun = Instant::now();
    let question = json!({ "verb": "stand-in", "node": args.node });
    let answer = panel.ask(to, &question, ANSWER).map_err(failed)?;
    let seconds = begun.elapsed().as_secs_f64();
    if args.json {
        print_json(&json!({ "node": args.node, "to": to, "process": answer["process"],
                "seconds": seconds }));
    } else {
        println!(
            "node {} is served on the machine of node {to} (process {}, log {}) after {seconds:.1} \
             s",
            args.node,
            answer["process"],
            answer["log"].as_str().unwrap_or("?")
        );
    }
    Ok(ExitStatus::Good)
}

/// The node on the machine that takes it: that one, or the next in cyclic order that serves
/// clients.
fn successor(table: &PlacementMap, args: &HandOverArgs) -> Option<NodeId> {
    let members =
        || table.map.members().iter().map(|member| member.id).filter(|node| *node != args.node);
    if let Some(to) = args.to {
        return members().find(|node| *node == to);
    }
    let serves = |node: &NodeId| !table.is_idle(*node);
    members().filter(serves).find(|node| *node > args.node).or_else(|| members().find(serves))
}
