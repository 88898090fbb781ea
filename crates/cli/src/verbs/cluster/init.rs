//! `kestrel cluster init`: a volume that several nodes share, and the first of them.

use clap::Args;
use kestrel_client::descriptor::Durability;
use kestrel_client::remote::address;
use kestrel_client::volume::{self, Token};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::role::NodeRole;
use serde_json::{Value, json};

use super::failed;
use crate::verbs::format::{DurabilityArg, NewVolumeArgs};
use crate::verbs::print_json;

/// Create a volume that several metadata nodes share, and make a directory the first node's.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster init /data/node1 --node 10.0.0.1 --node 10.0.0.2 --node 10.0.0.3 --name photos \
      --storage s3://…
  kestrel cluster init /data/node1 --node 10.0.0.1 --node 10.0.0.2 --coordinator 10.0.0.9 \
      --storage s3://…
  kestrel cluster init /data/node1 --node 10.0.0.1 --node 10.0.0.2 --coordinator 10.0.0.9 \\
    --registry etcd://10.0.0.4,10.0.0.5,10.0.0.6/photos
  kestrel cluster init n1 --node 127.0.0.1:9441 --node 127.0.0.1:9442 --node 127.0.0.1:9443     \
      (all on this machine)

The nodes are numbered from 1 in the order of their addresses, the first is the one in this
directory. Prints the token with which `kestrel cluster join` makes the directories of the others to
standard output, and all else to standard error, so (umask 077; kestrel cluster init … >token) makes
a file for `kestrel cluster join token DIR`. A program that has the token can speak as a node: keep
it as a password is kept. When all have joined, serve each with `kestrel serve DIR`. Addresses are
those under which clients and the other nodes reach a node. A node can move to another address later
(`kestrel serve DIR --listen ADDR`, or `--advertise ADDR`), `kestrel cluster add-node` adds a node,
and `kestrel cluster remove-node` takes one out. Node 1 coordinates unless --coordinator gives the
address of one more node, with the last number, that does nothing else; it joins as the others do.
Without --storage file data goes to objects/ in this directory, which all nodes and all clients must
then reach under the same path.")]
pub struct InitArgs {
    /// Where: a path or file:///path; missing or empty
    pub directory: String,
    /// Address of a node: HOST or HOST:PORT; once for each node, at least two
    #[arg(long = "node", value_name = "ADDR", required = true)]
    pub nodes: Vec<String>,
    /// Address of a node more that owns nothing and only coordinates: HOST or HOST:PORT
    #[arg(long, value_name = "ADDR")]
    pub coordinator: Option<String>,
    /// Keep what the coordinator knows in etcd: etcd://HOST[:PORT][,HOST2]/PREFIX, or etcds:// for
    /// TLS; in its directory by default. The password comes from ETCDCTL_PASSWORD or a file (see
    /// docs/operations/etcd.md)
    #[arg(long, value_name = "URL", requires = "coordinator")]
    pub registry: Option<String>,
    /// When changes survive power loss: before they are acknowledged; a cluster knows no other way
    #[arg(long, value_enum, default_value = "commit")]
    pub durability: DurabilityArg,
    #[command(flatten)]
    pub new: NewVolumeArgs,
}

/// The nodes' addresses, each with its port; the coordinator's comes last, if it is one by itself.
fn addresses(args: &InitArgs) -> Result<Vec<String>, Failure> {
    let mut addresses: Vec<String> = Vec::with_capacity(args.nodes.len() + 1);
    let nodes = args.nodes.iter().map(|node| ("--node", node));
    for (flag, node) in nodes.chain(args.coordinator.iter().map(|node| ("--coordinator", node))) {
        let bad = |why: &str| Failure::usage(format!("cluster: {flag} {node}: {why}"));
        let address = address(node).map_err(bad)?;
        if ["0.0.0.0:", "[::]:", "*:"].iter().any(|anywhere| address.starts_with(anywhere)) {
            return Err(bad(
                "clients and the other nodes connect to it; `kestrel serve --listen` says where to \
                 listen",
            ));
        }
        if addresses.contains(&address) {
            return Err(bad("another node has this address"));
        }
        addresses.push(address);
    }
    if args.nodes.len() < 2 {
        return Err(Failure::usage(
            "cluster: a cluster has at least two nodes; `kestrel format` makes a volume of one",
        ));
    }
    Ok(addresses)
}

/// What a node is there for.
fn role(args: &InitArgs, node: usize) -> NodeRole {
    NodeRole::of(node > args.nodes.len())
}

/// Creates the volume.
pub fn run(args: &InitArgs) -> Result<ExitStatus, Failure> {
    let dir = crate::verbs::locate_directory("cluster", &args.directory)?;
    let addresses = addresses(args)?;
    if args.durability != DurabilityArg::Commit {
        return Err(Failure::usage(
            "cluster: --durability fsync: what a node has told the others must not be lost with \
             its machine, so a volume that \
             several share has durability commit",
        ));
    }
    let mut new = args.new.new_volume("cluster", &dir, Durability::Commit)?;
    new.registry.clone_from(&args.registry);
    let options = args.new.store.options();
    let (nodes, coordinator) = addresses.split_at(args.nodes.len());
    let coordinator = coordinator.first().map(String::as_str);
    let made = volume::form(&args.directory, new, nodes, coordinator, &options).map_err(failed)?;
    let token = Token::of(&made).map_err(failed)?;
    if args.new.json {
        let nodes: Vec<Value> = (1..)
            .zip(&addresses)
            .map(|(node, address)| {
                json!({ "node": node, "address": address,
                    "role": role(args, node).word() })
            })
            .collect();
        print_json(&json!({
            "volume": dir, "name": made.settings.name, "uuid": made.uuid, "node": 1, "nodes": nodes,
            "token": token.to_string(),
        }));
        return Ok(ExitStatus::Good);
    }
    // The token alone goes to standard output, so that `>FILE` makes a file that `join` takes.
    eprintln!("volume {:?} created, which {} nodes share:", made.settings.name, nodes.len());
    for (node, address) in (1..).zip(&addresses) {
        let place = match role(args, node) {
            NodeRole::Coordinator => "  coordinates".into(),
            NodeRole::Metadata if node == 1 => format!("  {}", dir.display()),
            NodeRole::Metadata => String::new(),
        };
        eprintln!("  node {node}  {address}{place}");
    }
    eprintln!(
        "make the directory of each other node N with: kestrel cluster join TOKEN DIR --node N"
    );
    eprintln!("then serve each with: kestrel serve DIR");
    eprintln!(
        "the token, which is secret (`kestrel cluster token {}` prints it again):",
        dir.display()
    );
    println!("{token}");
    Ok(ExitStatus::Good)
}
