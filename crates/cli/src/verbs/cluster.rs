//! `kestrel cluster`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `cluster/init.rs`, `join.rs` | the first node, and another one |
//! | `cluster/add_node.rs`, `token.rs` | announce a node; the token it joins with |
//! | `cluster/remove_node.rs`, `drain.rs` | a node leaves; take from a node what can be taken |
//! | `cluster/status.rs` | the nodes of a volume |
//! | `cluster/balance.rs`, `plan.rs` | even the nodes out; how a tree would lie on several nodes |
//! | `cluster/coordinator.rs` | another node leads changes |
//! | `cluster/hand_over.rs` | another machine serves a node |
//! | `cluster/ca.rs` | the certificate authority by which clients know the servers |
//! | `cluster/change.rs` | what the verbs that change the placement map have in common |

mod add_node;
pub mod balance;
mod ca;
mod change;
mod coordinator;
mod drain;
mod hand_over;
mod init;
mod join;
mod plan;
mod remove_node;
mod status;
mod token;

use clap::{Args, Subcommand};
use kestrel_client::error::VolumeError;
use kestrel_daemon::failure::{ExitStatus, Failure};

/// Form a cluster of several metadata nodes, change it, or plan one.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  kestrel cluster init /data/node1 --node 10.0.0.1:9440 --node 10.0.0.2:9440 --node 10.0.0.3:9440 \
      --storage s3://…
  kestrel cluster token /data/node1 | ssh node2 kestrel cluster join - /data/node2 --node 2
  kestrel serve /data/node2
  kestrel cluster status kestrel://10.0.0.1/photos
  kestrel cluster add-node /data/node1 --node 10.0.0.4:9440 | ssh node4 kestrel cluster join - \
      /data/node4
  kestrel cluster balance kestrel://10.0.0.1/photos
  kestrel cluster remove-node kestrel://10.0.0.1/photos --node 3
  kestrel cluster hand-over kestrel://10.0.0.1/photos --node 2
  find /data -mindepth 1 | kestrel cluster plan --nodes 16

docs/operations/cluster.md tells how a cluster is formed, run and changed.")]
pub struct ClusterArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Init(init::InitArgs),
    Join(join::JoinArgs),
    Token(token::TokenArgs),
    Ca(ca::CaArgs),
    AddNode(add_node::AddNodeArgs),
    Balance(balance::BalanceArgs),
    Drain(drain::DrainArgs),
    HandOver(hand_over::HandOverArgs),
    RemoveNode(remove_node::RemoveNodeArgs),
    Coordinator(coordinator::CoordinatorArgs),
    Status(status::StatusArgs),
    Plan(plan::PlanArgs),
}

/// Does it.
pub fn run(args: &ClusterArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::Init(args) => init::run(args),
        Action::Join(args) => join::run(args),
        Action::Token(args) => token::run(args),
        Action::Ca(args) => ca::run(args),
        Action::AddNode(args) => add_node::run(args),
        Action::Balance(args) => balance::run(args),
        Action::Drain(args) => drain::run(args),
        Action::HandOver(args) => hand_over::run(args),
        Action::RemoveNode(args) => remove_node::run(args),
        Action::Coordinator(args) => coordinator::run(args),
        Action::Status(args) => status::run(args),
        Action::Plan(args) => plan::run(args),
    }
}

fn failed(why: VolumeError) -> Failure {
    Failure::new("cluster", why)
}
