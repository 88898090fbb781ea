//! `kestrel cluster balance`: the same number of slots for every node, and exceptions for names
//! that would overflow one.

use clap::Args;
use kestrel_balancer::balance::RuleChange;
use kestrel_balancer::next::{ROUNDS_MAX, even_names, even_slots};
use kestrel_daemon::balance::{rule, tell};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::count;
use kestrel_types::placement::{NodeId, PlacementMap};
use serde_json::{Value, json};

use super::change::{ClusterTarget, slots};
use crate::progress::Progress;
use crate::verbs::print_json;

/// Even out what the nodes of a cluster have.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster balance kestrel://10.0.0.1/photos --dry-run
  kestrel cluster balance kestrel://10.0.0.1/photos
  kestrel cluster balance kestrel://10.0.0.1/photos --without 4

First every node gets the same number of slots, by as few moves as possible; a node that was added
gets its own by this. Then names of which so many directories have one that a node holds more than
its part become exceptions, as `kestrel cluster plan` tells of a list of paths, and exceptions that
are not needed any more go. Clients work meanwhile; what moves waits for a moment. Slots in which
files are locked do not move: the verb says so, and can be run again. Returns when all nodes have
the new table. All nodes have to be up.")]
pub struct BalanceArgs {
    /// The volume: kestrel://host[:port][,host2[:port]…]/NAME
    pub url: String,
    /// What a node may hold above its n-th part, as a part of all entries; by default a quarter of
    /// the n-th part, at most 0.01
    #[arg(long, value_name = "E", allow_negative_numbers = true)]
    pub epsilon: Option<f64>,
    /// A node that is to own no slots, as one that was drained; may be given several times
    #[arg(long, value_name = "N")]
    pub without: Vec<NodeId>,
    /// Tell what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("cluster", why)
}

/// What was done.
#[derive(Default)]
struct BalanceReport {
    slots_moved: usize,
    names: Vec<Value>,
    /// Entries of the nodes that own slots, as last counted, and the most that one should have.
    loads: Vec<u64>,
    limit: u64,
}

/// Balances it.
pub fn run(args: &BalanceArgs) -> Result<ExitStatus, Failure> {
    if args.epsilon.is_some_and(|epsilon| !(0.0..=1.0).contains(&epsilon)) {
        return Err(Failure::usage("cluster: --epsilon: from 0 to 1, as in 0.01"));
    }
    let target = ClusterTarget::connect(&args.url, "kestrel cluster balance")?;
    let mut progress = Progress::new();
    let mut present = target.table()?;
    for node in &args.without {
        if present.map.member(*node).is_none() {
            return Err(Failure::usage(format!(
                "cluster: --without {node}: there is no such node"
            )));
        }
    }
    let mut done = BalanceReport::default();
    if let Some((next, moves)) = even_slots(&present, &args.without).map_err(fail)? {
        done.slots_moved = moves;
        if !args.dry_run {
            target.change(&next, &mut progress)?;
        }
        if !args.json {
            let moved = if args.dry_run { "slots would move" } else { "slots moved" };
            println!("{} {moved}; each node has about {}", count(moves as u64), fair_part(&next));
        }
        present = next;
    }
    if args.dry_run && done.slots_moved > 0 {
        // Nobody knows what each would have then.
        if !args.json {
            println!("which names become exceptions is found when the slots have moved");
        }
    } else {
        names(args, &target, &mut present, &mut done, &mut progress)?;
    }
    if args.json {
        print_json(&json!({
            "table": present.version, "dry_run": args.dry_run, "slots_moved": done.slots_moved,
            "nodes": slots(&present),
            "exceptions": present.exceptions.len(), "names_changed": done.names,
            "entries": done.loads, "limit": done.limit,
        }));
    } else if done.slots_moved == 0 && done.names.is_empty() {
        println!("nothing to do: table {}", present.version);
    } else if !args.dry_run {
        println!(
            "table {} is in force, with {} exceptions",
            present.version,
            present.exceptions.len()
        );
    }
    Ok(ExitStatus::Good)
}

fn fair_part(placement: &PlacementMap) -> String {
    let owners = placement.map.slots_of_members().into_iter().filter(|slots| *slots > 0);
    count(owners.max().unwrap_or(0) as u64)
}

/// Makes and takes back exceptions until the nodes are even enough, or nothing helps.
fn names(
    args: &BalanceArgs,
    target: &ClusterTarget,
    present: &mut PlacementMap,
    done: &mut BalanceReport,
    progress: &mut Progress,
) -> Result<(), Failure> {
    for _ in 0..ROUNDS_MAX {
        let reports = target.reports(progress)?;
        let (plan, next) = even_names(present, &reports, args.epsilon).map_err(fail)?;
        (done.loads, done.limit) = (plan.before.clone(), plan.limit);
        let Some(next) = next else { return Ok(()) };
        if !args.dry_run {
            target.change(&next, progress)?;
        }
        for change in &plan.changes {
            if !args.json {
                println!("{}", tell(change, &next));
            }
            done.names.push(document(change, &next));
        }
        *present = next;
        if args.dry_run {
            return Ok(());
        }
    }
    Ok(())
}

fn document(change: &RuleChange, next: &PlacementMap) -> Value {
    json!({
        "name": String::from_utf8_lossy(change.name.as_bytes()),
        "entries": change.entries,
        "rule": rule(change, next),
    })
}
