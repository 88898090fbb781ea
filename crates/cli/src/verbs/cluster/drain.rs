//! `kestrel cluster drain`: takes everything from a node that can be taken.

use clap::Args;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::count;
use kestrel_types::placement::NodeId;
use serde_json::json;

use super::change::{ClusterTarget, drained, slots};
use crate::progress::Progress;
use crate::verbs::print_json;

/// Move everything away from a node that other nodes can have.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster drain kestrel://10.0.0.1/photos --node 4

All entries, and what is found by number, go to the other nodes that own slots, while clients work.
The node stays a member and has to go on running: it keeps its part of the figures of directories
and objects, hands out the numbers of objects, and files that were opened there are open there. A
later `kestrel cluster balance` gives it slots again, unless it is told `--without` the node. To be
rid of a node, `kestrel cluster remove-node` drains it and takes it out of the cluster.")]
pub struct DrainArgs {
    /// The volume: kestrel://host[:port][,host2[:port]…]/NAME
    pub url: String,
    /// The node
    #[arg(long, value_name = "N")]
    pub node: NodeId,
    /// Tell what would move, and move nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Drains it.
pub fn run(args: &DrainArgs) -> Result<ExitStatus, Failure> {
    let target = ClusterTarget::connect(&args.url, "kestrel cluster drain")?;
    let present = target.table()?;
    if present.map.member(args.node).is_none() {
        return Err(Failure::usage(format!(
            "cluster: --node {}: there is no such node",
            args.node
        )));
    }
    let (next, moves) = drained(&present, args.node)?;
    if !args.dry_run && moves > 0 {
        target.change(&next, &mut Progress::new())?;
    }
    let changes = moves > 0 && !args.dry_run;
    let version = if changes { next.version } else { present.version };
    if args.json {
        print_json(&json!({ "node": args.node, "slots_moved": moves, "table": version,
                "nodes": slots(&next) }));
    } else if moves == 0 {
        println!("node {} has no slots", args.node);
    } else {
        let done = if args.dry_run { "would go" } else { "went" };
        println!(
            "{} slots {done} from node {} to others; table {version}",
            count(moves as u64),
            args.node
        );
    }
    Ok(ExitStatus::Good)
}
