//! `kestrel csi`.

use std::path::{Path, PathBuf};

use clap::Args;
use kestrel_csi::{CsiConfig, Driver};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::log_level_arg;
use kestrel_daemon::{logger, service_manager};
use log::LevelFilter;

/// Give volumes to containers: the driver for Kubernetes (Container Storage Interface).
#[derive(Debug, Args)]
#[command(after_help = "Example:
  kestrel csi --endpoint unix:///csi/csi.sock --node-id node-17 --url kestrel://meta1/photos

Stays in the foreground and answers the services Identity, Controller and Node of CSI 1.11. A volume
that it makes is a directory below DIR of the KestrelFS volume, with a quota; a snapshot is a
snapshot of that directory, and a volume from a snapshot or of another volume is a clone. It runs as
root, and keeps nothing but what is mounted: it may be started again at any moment.
docs/operations/kubernetes.md tells the rest.")]
pub struct CsiArgs {
    /// The socket where the orchestrator connects: unix:///PATH
    #[arg(long, value_name = "URL")]
    endpoint: String,
    /// This machine, as the orchestrator calls it
    #[arg(long, value_name = "NAME")]
    node_id: String,
    /// The volume in which directories are made: kestrel://host[:port]/NAME, or any that can be
    /// mounted
    #[arg(long, value_name = "VOLUME")]
    url: String,
    /// Name of the directory in the volume's root below which they are made
    #[arg(long, value_name = "NAME", default_value = "csi")]
    dir: String,
    /// Directory of this machine for mounts
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kestrel/csi")]
    state_dir: PathBuf,
    /// What to log: error, warn, info, debug, trace
    #[arg(long, default_value = "info", value_name = "LEVEL", value_parser = log_level_arg)]
    log_level: LevelFilter,
}

/// Serves calls until the process is told to end.
pub fn run(args: &CsiArgs, token_file: Option<&Path>) -> Result<ExitStatus, Failure> {
    logger::install(args.log_level);
    let token_file = token_file
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("KESTREL_TOKEN_FILE").map(PathBuf::from));
    let config = CsiConfig {
        endpoint: args.endpoint.clone(),
        node_id: args.node_id.clone(),
        url: args.url.clone(),
        token_file,
        dir: args.dir.clone(),
        state_dir: args.state_dir.clone(),
    };
    let fail = |why: String| Failure::new("csi", why);
    let ready = || {
        log::info!("{} serves {} at {}", kestrel_csi::DRIVER_NAME, args.url, args.endpoint);
        service_manager::ready(&format!("serves {} at {}", args.url, args.endpoint));
    };
    Driver::new(config).map_err(fail)?.serve(ready).map_err(fail)?;
    Ok(ExitStatus::Good)
}
