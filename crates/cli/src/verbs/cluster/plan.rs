//! `kestrel cluster plan`: how evenly a tree would lie on several nodes.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use clap::Args;
use kestrel_balancer::balance::{Goal, exceptions_allowed};
use kestrel_balancer::tree_load::TreeLoad;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::count;
use kestrel_types::placement::slot_map::MEMBERS_MAX;
use kestrel_types::placement::{Exceptions, Member, PlacementMap, Rule, SlotMap};
use serde_json::{Value, json};

use crate::verbs::print_json;

/// Longest line that is read: a path of 4,095 bytes with something around it is told from a file
/// that is no list of paths.
const LINE_BYTES_MAX: u64 = 16 * 1024;

/// Names with exceptions that are shown; JSON has them all.
const SHOWN_MAX: usize = 20;

/// Count how evenly a tree would lie on the nodes of a cluster once it is balanced. Needs no
/// cluster
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  find /data -mindepth 1 | kestrel cluster plan --nodes 16
  kestrel cluster plan --nodes 4 --paths list.txt --json
  zcat Contents-amd64.gz | sed 's/ *[^ ]*$//' | kestrel cluster plan --nodes 16     (all files of \
      all Debian packages)

A name's hash says which node owns its entries. Names of which so many directories have one that
their node would overflow are spread by directory, which costs clients a second hop for these names;
where few names meet many nodes, single names are moved. Both are exceptions, and every node and
client holds the table of them. What is printed is counted with the exceptions in force, not
estimated. The exit code is 1 if the goal is not reached.")]
pub struct PlanArgs {
    /// Metadata nodes
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub nodes: usize,
    /// File with one path a line, as find prints them; - is standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub paths: String,
    /// What a node may hold above its n-th part, as a part of all entries; by default a quarter of
    /// the n-th part, at most 0.01
    #[arg(long, value_name = "E", allow_negative_numbers = true)]
    pub epsilon: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The fullest and the emptiest node.
struct Spread {
    most: u64,
    least: u64,
}

impl Spread {
    fn of(loads: &[u64]) -> Self {
        Self {
            most: loads.iter().copied().max().unwrap_or_default(),
            least: loads.iter().copied().min().unwrap_or_default(),
        }
    }
}

/// What was found.
struct PlanReport {
    census: TreeLoad,
    balanced: PlacementMap,
    limit: u64,
    before: Vec<u64>,
    after: Vec<u64>,
    rounds: usize,
}

impl PlanReport {
    fn reaches_goal(&self) -> bool {
        Spread::of(&self.after).most <= self.limit
    }

    fn spread_names(&self) -> usize {
        self.balanced.exceptions.iter().filter(|(_, rule)| *rule == Rule::PathWalk).count()
    }
}

/// Counts, balances, prints.
pub fn run(args: &PlanArgs) -> Result<ExitStatus, Failure> {
    if !(1..=MEMBERS_MAX).contains(&args.nodes) {
        return Err(Failure::usage(format!(
            "cluster plan: --nodes {}: from 1 to {MEMBERS_MAX}",
            args.nodes
        )));
    }
    let goal = match args.epsilon {
        None => Goal::usual(args.nodes),
        Some(epsilon) if (0.0..=1.0).contains(&epsilon) => Goal { epsilon },
        Some(epsilon) => {
            return Err(Failure::usage(format!(
                "cluster plan: --epsilon {epsilon}: from 0 to 1, as in 0.01"
            )));
        }
    };
    let census = read(&args.paths)?;
    if census.entries() == 0 {
        return Err(failed(&args.paths, "no paths in it; write one a line, as find does"));
    }
    let found = balance(census, args.nodes, &goal)?;
    if args.json {
        print_json(&document(args, &goal, &found));
    } else {
        show(args, &goal, &found);
    }
    Ok(if found.reaches_goal() { ExitStatus::Good } else { ExitStatus::Bad })
}

fn failed(from: &str, why: impl std::fmt::Display) -> Failure {
    let from = if from == "-" { "standard input" } else { from };
    Failure::new("cluster plan", format!("{from}: {why}"))
}

fn read(from: &str) -> Result<TreeLoad, Failure> {
    if from == "-" {
        return read_lines(from, io::stdin().lock());
    }
    let file = File::open(from).map_err(|error| failed(from, error))?;
    read_lines(from, BufReader::with_capacity(1 << 20, file))
}

fn read_lines(from: &str, mut input: impl BufRead) -> Result<TreeLoad, Failure> {
    let mut census = TreeLoad::default();
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let mut bounded = io::Read::take(&mut input, LINE_BYTES_MAX);
        if bounded.read_until(b'\n', &mut line).map_err(|error| failed(from, error))? == 0 {
            break;
        }
        let path = line.strip_suffix(b"\n").unwrap_or(&line);
        census.add(path).map_err(|why| failed(from, format!("line {number}: {why}")))?;
    }
    Ok(census)
}

fn balance(census: TreeLoad, nodes: usize, goal: &Goal) -> Result<PlanReport, Failure> {
    let member = |id| Member { id, address: format!("node-{id}") };
    // MEMBERS_MAX fits.
    let map = SlotMap::even((1..=nodes as u32).map(member).collect())
        .map_err(|why| Failure::new("cluster plan", why))?;
    let mut balanced = PlacementMap::new(map, Exceptions::default());
    let before = census.loads(&balanced);
    let rounds =
        census.settle(&mut balanced, goal).map_err(|why| Failure::new("cluster plan", why))?;
    let after = census.loads(&balanced);
    let limit = goal.limit(census.entries(), nodes);
    Ok(PlanReport { census, balanced, limit, before, after, rounds })
}

fn show(args: &PlanArgs, goal: &Goal, found: &PlanReport) {
    let total = found.census.entries();
    let part = |entries: u64| format!("{:.2} %", 100.0 * entries as f64 / total as f64);
    println!(
        "{} entries, {} different names, {} nodes; a node should hold at most {} (1/{} + {})",
        count(total),
        count(found.census.names() as u64),
        args.nodes,
        part(found.limit),
        args.nodes,
        goal.epsilon
    );
    println!("\n{:<24}{:>10}{:>10}{:>14}", "", "fullest", "emptiest", "exceptions");
    let rows = [
        ("placed by name", &found.before, 0),
        ("balanced", &found.after, found.balanced.exceptions.len()),
    ];
    for (label, loads, exceptions) in rows {
        let Spread { most, least } = Spread::of(loads);
        println!(
            "{label:<24}{:>10}{:>10}{:>14}",
            part(most),
            part(least),
            count(exceptions as u64)
        );
    }
    let excepted = found.census.excepted(&found.balanced);
    if !excepted.is_empty() {
        println!(
            "\n{} names moved, {} spread by directory; entries of each:",
            excepted.len() - found.spread_names(),
            found.spread_names()
        );
    }
    for (name, rule) in excepted.iter().take(SHOWN_MAX) {
        let what = if *rule == Rule::PathWalk { "spread" } else { "moved" };
        println!("  {what:<8}{:>12}  {}", count(name.entries), name.name.as_bytes().escape_ascii());
    }
    if excepted.len() > SHOWN_MAX {
        println!("  … and {} more (--json prints all)", excepted.len() - SHOWN_MAX);
    }
    if !found.reaches_goal() {
        println!(
            "\nthe goal is not reached with the {} exceptions that {} nodes may have; give it a \
             larger --epsilon",
            count(exceptions_allowed(args.nodes) as u64),
            args.nodes
        );
    }
}

fn document(args: &PlanArgs, goal: &Goal, found: &PlanReport) -> Value {
    let total = found.census.entries();
    let loads = |loads: &[u64]| {
        let Spread { most, least } = Spread::of(loads);
        json!({
            "fullest": most,
            "emptiest": least,
            "fullest_part": most as f64 / total as f64,
            "emptiest_part": least as f64 / total as f64,
            "nodes": loads,
        })
    };
    let exceptions: Vec<Value> = found
        .census
        .excepted(&found.balanced)
        .iter()
        .map(|(name, rule)| {
            let text = String::from_utf8_lossy(name.name.as_bytes()).into_owned();
            match rule {
                Rule::PathWalk => {
                    json!({ "name": text, "entries": name.entries, "rule": "path-walk" })
                }
                Rule::Override(slot) => json!({
                    "name": text,
                    "entries": name.entries,
                    "rule": "override",
                    "slot": slot,
                    "node": found.balanced.map.owner(*slot).id,
                }),
            }
        })
        .collect();
    let most_frequent: Vec<Value> = found
        .census
        .most_frequent(10)
        .iter()
        .map(|name| {
            json!({ "name": String::from_utf8_lossy(name.name.as_bytes()),
            "entries": name.entries })
        })
        .collect();
    json!({
        "nodes": args.nodes,
        "epsilon": goal.epsilon,
        "entries": total,
        "names": found.census.names(),
        "limit": found.limit,
        "limit_part": found.limit as f64 / total as f64,
        "reaches_goal": found.reaches_goal(),
        "rounds": found.rounds,
        "before": loads(&found.before),
        "after": loads(&found.after),
        "overrides": found.balanced.exceptions.len() - found.spread_names(),
        "path_walks": found.spread_names(),
        "exceptions": exceptions,
        "most_frequent": most_frequent,
    })
}
