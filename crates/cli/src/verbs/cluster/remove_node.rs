//! `kestrel cluster remove-node`: a node leaves the cluster.

use std::time::{Duration, Instant};

use clap::Args;
use kestrel_client::remote::NodeFanOut;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{count, duration_arg};
use kestrel_types::placement::{NodeId, PlacementMap};
use serde_json::{Value, json};

use super::change::{ClusterTarget, drained};
use crate::progress::Progress;
use crate::verbs::print_json;

/// Time between two looks at what is waited for.
const LOOK: Duration = Duration::from_secs(1);

/// How long the node may take to say which clients have a session there.
const QUICK: Duration = Duration::from_secs(10);

/// Clients that are named while they are waited for.
const NAMED_MAX: usize = 5;

const VERB: &str = "kestrel cluster remove-node";

/// Take a node out of a running cluster, for good.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster remove-node kestrel://10.0.0.1/photos --node 4
  kestrel cluster remove-node kestrel://10.0.0.1/photos --node 4 --timeout 1h
  kestrel cluster remove-node kestrel://10.0.0.1/photos --node 4 --undo

What the node owns goes to the others, as `kestrel cluster drain` does. Then clients are told to
open elsewhere what they have open there; they go on working meanwhile, and the command names the
clients that it waits for. When no client has anything open there, another node gets the node's part
of the sums of directories and objects, and the node leaves the cluster: its process ends by itself,
and its directory can be deleted. Its number is never used again. All nodes have to be up. A command
that was stopped or timed out can be run again; --undo takes it back.

A node that was announced and never came, and one that was added and was lost before it joined, are
taken out at once: start it no more. A node that has joined and was lost cannot be removed: restore
its directory. Nor can the one that leads changes, before another one does (`kestrel cluster
coordinator`).")]
pub struct RemoveNodeArgs {
    /// The volume: kestrel://host[:port][,host2[:port]…]/NAME
    pub url: String,
    /// The node
    #[arg(long, value_name = "N")]
    pub node: NodeId,
    /// How long to wait for clients that have files open there, and for nodes that are not up
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "10m")]
    pub timeout: Duration,
    /// It stays after all: take back that it is leaving. `kestrel cluster balance` gives it a part
    /// again
    #[arg(long)]
    pub undo: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("cluster", why)
}

/// Removes it.
pub fn run(args: &RemoveNodeArgs) -> Result<ExitStatus, Failure> {
    let target = ClusterTarget::coordinator_of(&args.url, VERB)?;
    let present = target.table()?;
    if present.coordinator == args.node {
        return Err(fail(format!(
            "node {} leads changes of this cluster; have another one do so first: kestrel cluster \
             coordinator {} --node N",
            args.node, args.url
        )));
    }
    let is_member = present.map.member(args.node).is_some();
    let is_expected = target.expects(args.node)?;
    if !is_member && !is_expected {
        return match present.heir_of(args.node) {
            Some(_) => {
                say(args, "has left already", present.version, 0);
                Ok(ExitStatus::Good)
            }
            None => {
                Err(Failure::usage(format!("cluster: --node {}: there is no such node", args.node)))
            }
        };
    }
    if is_expected {
        if args.undo {
            return Err(fail(format!("node {} is not leaving: it has not joined", args.node)));
        }
        let version = target.forget(args.node)?;
        say(args, "was announced, and has not come: it is expected no more", version, 0);
        return Ok(ExitStatus::Good);
    }
    let leave = Leave { args, target, begun: Instant::now() };
    match args.undo {
        true => leave.undo(&present),
        false => leave.run(),
    }
}

/// The last words.
fn say(args: &RemoveNodeArgs, what: &str, table: u64, slots_moved: usize) {
    if args.json {
        print_json(
            &json!({ "node": args.node, "table": table, "slots_moved": slots_moved, "what": what }),
        );
    } else {
        println!("node {} {what}; table {table}", args.node);
    }
}

/// A member that is to leave.
struct Leave<'a> {
    args: &'a RemoveNodeArgs,
    target: ClusterTarget,
    begun: Instant,
}

impl Leave<'_> {
    fn undo(&self, present: &PlacementMap) -> Result<ExitStatus, Failure> {
        if !present.is_leaving(self.args.node) {
            return Err(fail(format!("node {} is not leaving", self.args.node)));
        }
        let next = self.change("it stays", |present| {
            let mut next = present.clone();
            next.leaving.retain(|node| *node != self.args.node);
            next.version += 1;
            Ok((next.leaving != present.leaving).then_some(next))
        })?;
        say(self.args, "stays", next.version, 0);
        Ok(ExitStatus::Good)
    }

    fn run(&self) -> Result<ExitStatus, Failure> {
        let node = self.args.node;
        let mut slots_moved = 0;
        self.change("its slots go to others", |present| {
            let (next, moves) = drained(present, node)?;
            slots_moved += moves;
            Ok((moves > 0).then_some(next))
        })?;
        if slots_moved > 0 {
            self.told(&format!(
                "{} slots went from node {node} to others",
                count(slots_moved as u64)
            ));
        }
        let before = self.target.table()?;
        self.change("clients are told", |present| match present.is_leaving(node) {
            true => Ok(None),
            false => present.with_leaving(node).map(Some).map_err(fail),
        })?;
        if !before.is_leaving(node) {
            self.told(&format!("clients open elsewhere what they have open at node {node}"));
        }
        self.wait_for_clients()?;
        let done = self.change("its figures go to another node", |present| {
            if present.heir_of(node).is_some() {
                return Ok(None);
            }
            // Somebody may have come since.
            self.wait_for_clients()?;
            let heir = heir(present).ok_or_else(|| fail("no node stays"))?;
            present.without(node, heir).map(Some).map_err(fail)
        })?;
        say(
            self.args,
            "has left the cluster: its process ends, and its directory can be deleted",
            done.version,
            slots_moved,
        );
        Ok(ExitStatus::Good)
    }

    fn told(&self, what: &str) {
        if !self.args.json {
            println!("{what}");
        }
    }

    fn is_late(&self) -> bool {
        self.begun.elapsed() >= self.args.timeout
    }

    /// Makes the table what `next` says of the present one, until that is done; nothing if it says
    /// so. The table that is in force then.
    fn change(
        &self,
        step: &str,
        mut next: impl FnMut(&PlacementMap) -> Result<Option<PlacementMap>, Failure>,
    ) -> Result<PlacementMap, Failure> {
        let mut told = String::new();
        loop {
            let present = self.target.table()?;
            let Some(next) = next(&present)? else { return Ok(present) };
            let Err(why) = self.target.change(&next, &mut Progress::new()) else { return Ok(next) };
            let why = why.reason().to_string();
            if self.is_late() {
                return Err(fail(format!("{step}: {why}. Run it again, or with --undo")));
            }
            if why != told {
                eprintln!("{step}: {why}; trying again");
                told = why;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until no client has a session with the node.
    fn wait_for_clients(&self) -> Result<(), Failure> {
        let mut told = String::new();
        loop {
            let why = match self.clients() {
                Ok(clients) if clients.is_empty() => return Ok(()),
                Ok(clients) => {
                    format!(
                        "clients hold something at node {}: {}",
                        self.args.node,
                        named(&clients)
                    )
                }
                Err(why) => why,
            };
            if self.is_late() {
                return Err(fail(format!(
                    "{why}. It is leaving still; run this again, or with --undo to keep it"
                )));
            }
            if why != told {
                eprintln!("waiting: {why}");
                told = why;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The clients that have a session with the node, but for the asker. No connection stays, since
    /// that would be one more.
    fn clients(&self) -> Result<Vec<String>, String> {
        let (node, who) = (self.args.node, kestrel_daemon::who(VERB));
        let panel = NodeFanOut::connect_to(&self.args.url, &who, |_, other| other == node);
        let panel = panel.map_err(|why| why.to_string())?.ok_or("one node serves the volume")?;
        let status =
            panel.ask(node, &json!({ "verb": "status" }), QUICK).map_err(|why| why.to_string())?;
        let sessions =
            status["served"]["sessions"].as_array().ok_or("the node tells of no sessions")?;
        let alive = sessions
            .iter()
            .filter(|session| session["state"] != "expired" && session["who"] != who);
        let name = |session: &Value| {
            let client = session["who"].as_str().unwrap_or("?");
            match session["opens"].as_u64().unwrap_or(0) {
                0 => client.to_string(),
                opens => format!("{client} ({} open files)", count(opens)),
            }
        };
        Ok(alive.map(name).collect())
    }
}

fn named(clients: &[String]) -> String {
    let more = clients.len().saturating_sub(NAMED_MAX);
    let first = clients[..clients.len() - more].join(", ");
    if more > 0 { format!("{first}, and {more} more") } else { first }
}

/// The node that gets the part of a node that leaves: of those that stay the one that has inherited
/// least.
fn heir(present: &PlacementMap) -> Option<NodeId> {
    let inherited = |node: NodeId| present.former.iter().filter(|(_, heir)| *heir == node).count();
    let staying =
        present.serving().map(|member| member.id).filter(|node| !present.is_leaving(*node));
    staying.min_by_key(|node| inherited(*node))
}
