//! `kestrel cluster coordinator`: another node leads changes.

use clap::Args;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_types::placement::{NodeId, PlacementMap};
use serde_json::json;

use super::change::ClusterTarget;
use crate::progress::Progress;
use crate::verbs::print_json;

/// Have another node lead changes of the cluster, and renames of directories into other ones.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster coordinator kestrel://10.0.0.1/photos --node 4
  kestrel cluster remove-node kestrel://10.0.0.1/photos --node 1

Any node that is not leaving can; one that was added with --role coordinator does nothing else. All
nodes have to be up. Clients go on; renames of directories wait for a moment. Nodes that were
announced and have not come yet are known to the new one. The former one can be removed \
    afterwards.")]
pub struct CoordinatorArgs {
    /// The volume: kestrel://host[:port][,host2[:port]…]/NAME
    pub url: String,
    /// The node
    #[arg(long, value_name = "N")]
    pub node: NodeId,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("cluster", why)
}

/// Has it lead.
pub fn run(args: &CoordinatorArgs) -> Result<ExitStatus, Failure> {
    let target = ClusterTarget::connect(&args.url, "kestrel cluster coordinator")?;
    let present = target.table()?;
    if present.map.member(args.node).is_none() {
        return Err(Failure::usage(format!(
            "cluster: --node {}: there is no such node",
            args.node
        )));
    }
    if present.coordinator == args.node {
        say(args, &present, "leads changes already");
        return Ok(ExitStatus::Good);
    }
    let next = present
        .with_coordinator(args.node)
        .map_err(|why| fail(format!("node {} cannot lead changes: {why}", args.node)))?;
    target.change(&next, &mut Progress::new())?;
    say(args, &next, "leads changes from now on");
    Ok(ExitStatus::Good)
}

fn say(args: &CoordinatorArgs, table: &PlacementMap, what: &str) {
    if args.json {
        print_json(&json!({ "coordinator": table.coordinator, "table": table.version }));
    } else {
        println!("node {} {what}; table {}", args.node, table.version);
    }
}
