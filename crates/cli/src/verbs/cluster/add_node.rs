//! `kestrel cluster add-node`: announces a node, and prints the token it joins with.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use kestrel_client::control::QUICK;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::address;
use kestrel_client::volume::Token;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::duration_arg;
use kestrel_types::hex::from_hex;
use kestrel_types::placement::{Member, NodeId, PlacementMap};
use serde_json::{Value, json};

use super::failed;
use crate::args::RoleArg;
use crate::verbs::print_json;

/// Time between two looks whether all nodes are there.
const LOOK: Duration = Duration::from_millis(500);

/// Announce a node that is to join a running cluster, and print the token it joins with. It is
/// secret.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  (umask 077; kestrel cluster add-node /data/node1 --node 10.0.0.4:9440 > token)
  kestrel cluster join token /data/node4          (there)
  kestrel serve /data/node4                       (there: returns when it has joined)
  kestrel cluster balance kestrel://10.0.0.1/photos
  (umask 077; kestrel cluster add-node /data/node1 --node 10.0.0.5:9440 --role coordinator > token)

DIR is that of the node that leads changes of the cluster; it runs. The new node gets a number of
its own, for ever, and joins without owning anything; `kestrel cluster balance` gives it its part.
Clients go on, and connect to it by themselves. All nodes have to be up; one that is not is waited
for. With --role coordinator it never owns anything and serves no clients: it waits to be told to
lead changes (`kestrel cluster coordinator`).")]
pub struct AddNodeArgs {
    /// The directory of the node that leads changes: a path or file:///path
    pub directory: String,
    /// Address under which clients and the other nodes reach the new one: HOST or HOST:PORT
    #[arg(long = "node", value_name = "ADDR")]
    pub node: String,
    /// What it is there for: its part of the volume, or to coordinate only
    #[arg(long, value_enum, default_value = "metadata")]
    pub role: RoleArg,
    /// How long a node that is not up is waited for
    #[arg(long, value_name = "TIME", value_parser = duration_arg, default_value = "30s")]
    pub wait: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("cluster", why)
}

/// Announces it.
pub fn run(args: &AddNodeArgs) -> Result<ExitStatus, Failure> {
    let dir = crate::verbs::locate_directory("cluster", &args.directory)?;
    let descriptor = Descriptor::read(&dir).map_err(failed)?;
    let token = Token::of(&descriptor).map_err(failed)?;
    let address = address(&args.node)
        .map_err(|why| Failure::usage(format!("cluster: --node {}: {why}", args.node)))?;
    if ["0.0.0.0:", "[::]:", "*:"].iter().any(|anywhere| address.starts_with(anywhere)) {
        let why = "clients and the other nodes connect to it; `kestrel serve --listen` says where \
                   to listen";
        return Err(Failure::usage(format!("cluster: --node {}: {why}", args.node)));
    }
    wait_for_all(&dir, args.wait)?;
    let answer = ask(
        &dir,
        &json!({ "verb": "expect", "address": address, "role": args.role.role().word() }),
    )?;
    let bytes = answer["table"].as_str().and_then(from_hex).unwrap_or_default();
    let placement = PlacementMap::decode(&bytes).map_err(fail)?;
    let node = answer["node"].as_u64().and_then(|node| NodeId::try_from(node).ok());
    let node = node
        .ok_or_else(|| fail("the node's answer has no number; use the same version of kestrel"))?;
    let counters = ["inodes", "objects"].map(|name| answer[name].as_u64());
    let [Some(inodes), Some(objects)] = counters else {
        return Err(fail("the node's answer has no counters; use the same version of kestrel"));
    };
    let member = Member { id: node, address: address.clone() };
    let idle = args.role == RoleArg::Coordinator;
    let token = token.joining(&placement, member, idle, [inodes, objects]).map_err(failed)?;
    if args.json {
        let role = args.role.role().word();
        print_json(
            &json!({ "node": node, "address": address, "role": role, "token": token.to_string() }),
        );
        return Ok(ExitStatus::Good);
    }
    eprintln!(
        "node {node} may join from {address}: kestrel cluster join TOKEN DIR, then kestrel serve \
         DIR, there"
    );
    println!("{token}");
    Ok(ExitStatus::Good)
}

fn ask(dir: &Path, question: &Value) -> Result<Value, Failure> {
    let answer = crate::verbs::ask("cluster", dir, question, QUICK)?;
    answer.ok_or_else(|| {
        fail(format!("{0}: nobody serves it; start it with `kestrel serve {0}`", dir.display()))
    })
}

/// Waits until the node is connected to all others, and says for which it waits.
fn wait_for_all(dir: &Path, limit: Duration) -> Result<(), Failure> {
    let (begun, mut told) = (Instant::now(), String::new());
    loop {
        let status = ask(dir, &json!({ "verb": "status" }))?;
        if status["coordinator"] != status["node"] {
            let nodes = status["nodes"].as_array().into_iter().flatten();
            let leads = nodes.into_iter().find(|node| node["node"] == status["coordinator"]);
            return Err(fail(format!(
                "{}: node {} leads changes of this cluster, at {}; give its directory, there",
                dir.display(),
                status["coordinator"],
                leads.and_then(|node| node["address"].as_str()).unwrap_or("?")
            )));
        }
        let members = status["nodes"].as_array().into_iter().flatten();
        let members: Vec<&Value> = members.map(|member| &member["node"]).collect();
        let peers = status["peers"].as_array().into_iter().flatten();
        let away = peers.filter(|peer| peer["up"] != true && members.contains(&&peer["node"]));
        let away: Vec<String> = away
            .map(|peer| {
                format!(
                    "node {} ({})",
                    peer["node"],
                    peer["why"].as_str().unwrap_or("no connection")
                )
            })
            .collect();
        if away.is_empty() {
            return Ok(());
        }
        let away = away.join(", ");
        if begun.elapsed() >= limit {
            return Err(fail(format!(
                "not up after {} s: {away}; all nodes take part when one is added: start it, then \
                 try again",
                limit.as_secs()
            )));
        }
        if away != told {
            eprintln!("waiting for {away}");
            told = away;
        }
        std::thread::sleep(LOOK);
    }
}
