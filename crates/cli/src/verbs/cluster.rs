//! `kestrel cluster`.

mod plan;

use clap::{Args, Subcommand};

use crate::failure::{Failure, Verdict};

/// Plan a cluster of several metadata nodes.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  find /data -mindepth 1 | kestrel cluster plan --nodes 16")]
pub struct ClusterArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Plan(plan::PlanArgs),
}

/// Does it.
pub fn run(args: &ClusterArgs) -> Result<Verdict, Failure> {
    match &args.action {
        Action::Plan(args) => plan::run(args),
    }
}
