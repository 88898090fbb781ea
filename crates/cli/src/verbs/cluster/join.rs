//! `kestrel cluster join`: the directory of another node.

use std::fs::File;
use std::io::{self, Read};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use clap::Args;
use kestrel_client::volume::{self, Token};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_types::placement::{Member, NodeId};
use serde_json::json;

use super::failed;
use crate::args::store::StoreArgs;
use crate::verbs::print_json;

/// How a token begins, whatever its version; anything else names a file.
const TOKEN_BEGINS: &str = "kestrel-cluster-";

/// Longest file with a token that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How long somebody at the node's address has to answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Make a directory that of another node of a cluster.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel cluster join /root/token /data/node2 --node 2
  kestrel cluster token /data/node1 | ssh node2 kestrel cluster join - /data/node2 --node 2
  kestrel cluster add-node /data/node1 --node 10.0.0.4 | ssh node4 kestrel cluster join - \
      /data/node4

Needs no node that runs: all it takes is in the token. Each node joins once, unless it has lost its
directory. If the volume keeps its metadata in PostgreSQL or a bucket, that node joins again with
--node N and finds its rows there. If it kept them in its directory, they are lost, and the other
nodes refuse a directory that was made anew: restore all nodes from a dump
(docs/operations/backup.md).")]
pub struct JoinArgs {
    /// The token that `kestrel cluster init`, `token` or `add-node` printed, a file with it, or -
    /// for standard input
    pub token: String,
    /// Where: a path or file:///path; missing or empty
    pub directory: String,
    /// Number of the node; by default the one that was added, or the one with the address of
    /// this machine, if there is just one
    #[arg(long, value_name = "N")]
    pub node: Option<NodeId>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// The token itself, given or read.
fn token(text: &str) -> Result<Token, Failure> {
    if text.starts_with(TOKEN_BEGINS) {
        return Token::parse(text).map_err(failed);
    }
    let mut read = String::new();
    let done = if text == "-" {
        io::stdin().lock().take(FILE_BYTES_MAX).read_to_string(&mut read)
    } else {
        File::open(text).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut read))
    };
    done.map_err(|why| {
        // Not what was given: it may be most of a token.
        let what = "`kestrel cluster token DIR` prints one";
        Failure::new(
            "cluster",
            format!("neither a token nor a file with one was given: {why}; {what}"),
        )
    })?;
    Token::parse(&read).map_err(failed)
}

/// Whether an address is this machine's and nobody listens there.
fn is_here(address: &str) -> bool {
    TcpListener::bind(address).is_ok()
}

fn is_answered(address: &str) -> bool {
    let addresses = address.to_socket_addrs().into_iter().flatten();
    addresses.into_iter().any(|address| TcpStream::connect_timeout(&address, ANSWER_TIME).is_ok())
}

/// The node that joins: the one named, or the only one that it can be.
fn choose(
    args: &JoinArgs,
    joins_as: Option<NodeId>,
    members: &[Member],
) -> Result<NodeId, Failure> {
    let named = |node: NodeId| members.iter().find(|member| member.id == node);
    let wanted = match (joins_as, args.node) {
        (Some(joins), Some(node)) if joins != node => {
            let why =
                format!("the token is that of node {joins}, which is to join; leave --node away");
            return Err(Failure::usage(format!("cluster: --node {node}: {why}")));
        }
        (joins, node) => joins.or(node),
    };
    let member = match wanted {
        Some(node) => named(node).ok_or_else(|| {
            Failure::usage(format!(
                "cluster: --node {node}: the cluster's nodes are 1 to {}",
                members.len()
            ))
        })?,
        None => only_here(members)?,
    };
    if is_answered(&member.address) {
        let why = format!(
            "node {}: somebody serves at {} already; it has joined",
            member.id, member.address
        );
        return Err(Failure::new("cluster", why));
    }
    Ok(member.id)
}

/// The only node but the first, which formed the cluster, that has an address of this machine.
fn only_here(members: &[Member]) -> Result<&Member, Failure> {
    let others = members.get(1..).unwrap_or_default();
    let here: Vec<&Member> = others.iter().filter(|member| is_here(&member.address)).collect();
    if let [member] = here[..] {
        return Ok(member);
    }
    let all: Vec<String> =
        members.iter().map(|member| format!("{} {}", member.id, member.address)).collect();
    Err(Failure::usage(format!(
        "cluster: which node this is does not follow from the addresses; give --node: {}",
        all.join(", ")
    )))
}

/// Makes it.
pub fn run(args: &JoinArgs) -> Result<ExitStatus, Failure> {
    let token = token(&args.token)?;
    let placement = token.placement().map_err(failed)?;
    let node = choose(args, token.joins_as(), placement.map.members())?;
    let options = args.store.options();
    let made = volume::join(&args.directory, &token, node, &options).map_err(failed)?;
    let dir = crate::verbs::locate_directory("cluster", &args.directory)?;
    if args.json {
        print_json(
            &json!({ "volume": dir, "name": made.settings.name, "uuid": made.uuid, "node": node }),
        );
    } else {
        println!("{}: node {node} of volume {:?}", dir.display(), made.settings.name);
        println!("serve it with: kestrel serve {}", dir.display());
    }
    Ok(ExitStatus::Good)
}
