//! `kestrel status`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `status/text.rs` | the lines that people read |
//! | `status/clients.rs` | the clients of a served volume, each once |

mod clients;
mod text;

use std::path::Path;

use clap::Args;
use kestrel_client::descriptor::FILE_NAME;
use kestrel_client::remote::RemoteUrl;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::status::{ask as ask_served, describe};
use serde_json::{Value, json};

use super::{Target, control_dir, mount_above, open, print_json};
use crate::args::store::StoreArgs;

/// Show what a volume holds, where it is mounted, and which clients it has.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel status /data/vol
  kestrel status /mnt/data --verbose
  kestrel status file:///data/vol --json
  kestrel status kestrel://meta1/photos")]
pub struct StatusArgs {
    /// The volume: a path, file:///path, s3://… or kestrel://host[:port]/NAME; or a directory of a
    /// mount
    pub volume: String,
    /// Show everything: settings, transport, memory, each client and each node
    #[arg(short, long)]
    pub verbose: bool,
    /// Print JSON: all of it, with --verbose or without
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// The volume, or the process behind the mount that the argument lies in.
fn target(args: &StatusArgs) -> Result<Target, Failure> {
    let path = Path::new(&args.volume);
    if !RemoteUrl::is_one(&args.volume)
        && !path.join(FILE_NAME).exists()
        && let Ok(path) = std::fs::canonicalize(path)
        && let Ok(entry) = mount_above("status", &path)
    {
        return Ok(Target::Here(control_dir(&entry)));
    }
    Target::of("status", &args.volume, args.store.credentials.as_deref())
}

/// Shows it.
pub fn run(args: &StatusArgs) -> Result<ExitStatus, Failure> {
    let target = target(args)?;
    let question = json!({ "verb": "status" });
    let asked = match &target {
        Target::Served(url) => Some(ask_served(url).map_err(|why| Failure::new("status", why))?),
        Target::Here(_) => {
            target.ask("status", &question, kestrel_client::control::QUICK, &mut |_| {})?
        }
    };
    let status = match (asked, &target) {
        (Some(mut status), Target::Served(url)) => {
            status["volume"] = url.as_str().into();
            status
        }
        (Some(status), Target::Here(_)) => status,
        (None, _) => {
            let volume = open("status", &args.volume, &args.store)?;
            let mut status = describe(&volume.dir, &volume.descriptor, &*volume.engine)
                .map_err(|why| Failure::new("status", format!("{target}: {why}")))?;
            status["mounted"] = false.into();
            for name in ["pid", "mount_point", "served", "address"] {
                status[name] = Value::Null;
            }
            status
        }
    };
    if args.json {
        print_json(&status);
    } else {
        // The server counts the session of this question, too.
        text::page(&status, args.verbose, &kestrel_daemon::who("kestrel status")).print();
    }
    Ok(ExitStatus::Good)
}
