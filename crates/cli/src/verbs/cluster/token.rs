//! `kestrel cluster token`: what other nodes need to join.

use clap::Args;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::volume::Token;
use kestrel_daemon::failure::{ExitStatus, Failure};

use super::failed;

/// Print the token with which nodes join a cluster. It is secret.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  (umask 077; kestrel cluster token /data/node1 > token)
  kestrel cluster token /data/node1 | ssh node2 kestrel cluster join - /data/node2 --node 2")]
pub struct TokenArgs {
    /// The directory of a node: a path or file:///path
    pub directory: String,
}

/// Prints it.
pub fn run(args: &TokenArgs) -> Result<ExitStatus, Failure> {
    let dir = crate::verbs::locate_directory("cluster", &args.directory)?;
    let descriptor = Descriptor::read(&dir).map_err(failed)?;
    println!("{}", Token::of(&descriptor).map_err(failed)?);
    Ok(ExitStatus::Good)
}
