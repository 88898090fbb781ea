//! `kestrel dump`.

use std::path::{Path, PathBuf};

use clap::Args;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::{NodeFanOut, Reached, RemoteUrl};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::dump::write;
use kestrel_daemon::nodes::cut;
use kestrel_daemon::units::{bytes, count};
use kestrel_types::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use super::{ask, locate, open, print_json};
use crate::args::store::StoreArgs;
use crate::at_rest::{self, AtRest};
use crate::progress::Progress;

/// Write all metadata of a volume to a file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel dump /data/vol /backup/vol.dump
  kestrel dump /data/vol /backup/vol.dump --force --json

  kestrel dump kestrel://10.0.0.1/photos /backup/photos.dump
  kestrel dump kestrel://10.0.0.1,10.0.0.2,10.0.0.3/photos /backup/photos.dump
  kestrel dump /data/node1 /backup/photos.dump --node /data/node2 --node /data/node3

Works on mounted and unmounted volumes; the dump of one in use is the state at one moment, also of
one that several nodes serve: it takes all of them, and changes wait for a fraction of a second. It
holds names, attributes, small files and the places of all others, so a dump and the objects restore
everything, on one node or on several, whatever it was dumped from. By URL it takes a token that may
administer, and room for a copy of the metadata beside the file. The format is JSON Lines, described
in docs/format/dump.md.")]
pub struct DumpArgs {
    /// The volume: a path, file:///path, s3://… or, where it is served, kestrel://host[:port]/NAME
    pub volume: String,
    /// File to write
    pub file: PathBuf,
    /// Of a cluster with no node running: the directory of another node; once for each of them
    #[arg(long = "node", value_name = "DIR")]
    pub nodes: Vec<String>,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// The dump of a volume that is served, by its URL, or of what several nodes share; `None` if it is
/// in one directory.
fn of_nodes(args: &DumpArgs, file: &Path) -> Result<Option<Value>, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("dump", why);
    let mut progress = Progress::new();
    let mut tick = |rows| progress.tick("gathering rows", rows);
    let (whole, descriptor) = if RemoteUrl::is_one(&args.volume) {
        if !args.nodes.is_empty() {
            return Err(Failure::usage(
                "dump: a URL stands alone: --node is for nodes that do not run",
            ));
        }
        let who = kestrel_daemon::who("kestrel dump");
        let beside =
            file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let panel = match NodeFanOut::reach(&args.volume, &who).map_err(|why| fail(&why))? {
            Reached::Several(panel) => panel,
            Reached::One(node) => {
                let descriptor = node.descriptor().map_err(|why| fail(&why))?;
                let copy = cut::copy(&node, beside, &mut tick).map_err(|why| fail(&why))?;
                let mut tick = |rows| progress.tick("dumping rows", rows);
                let written = write(copy.engine(), &descriptor, file, args.force, &mut tick);
                return written.map(Some).map_err(|why| fail(&why));
            }
        };
        let descriptor = panel.descriptor().map_err(|why| fail(&why))?;
        (cut::gather(&panel, beside, &mut tick).map_err(|why| fail(&why))?, descriptor)
    } else if at_rest::is_meant("dump", &args.volume, &args.nodes) {
        let nodes = AtRest::open("dump", &args.volume, &args.nodes, &args.store)?;
        (nodes.gather(&mut tick)?, nodes.first()?.descriptor.clone())
    } else {
        return Ok(None);
    };
    let damaged = whole.findings.len();
    let whole = whole.into_one(SystemClock.now()).map_err(|why| fail(&why))?;
    let mut tick = |rows| progress.tick("dumping rows", rows);
    let mut written = write(whole.engine(), &descriptor, file, args.force, &mut tick)
        .map_err(|why| fail(&why))?;
    written["left_out"] = damaged.into();
    if damaged > 0 {
        eprintln!(
            "kestrel dump: {damaged} rows or records of the nodes are not as they should be, and \
             not in the dump; run `kestrel fsck`"
        );
    }
    Ok(Some(written))
}

/// Dumps.
pub fn run(args: &DumpArgs) -> Result<ExitStatus, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("dump", why);
    let file = std::path::absolute(&args.file)
        .map_err(|why| fail(&format!("{}: {why}", args.file.display())))?;
    let name =
        file.to_str().ok_or_else(|| Failure::usage("dump: the name of the file must be UTF-8"))?;
    let question = json!({ "verb": "dump", "file": name, "force": args.force });
    let asked = match of_nodes(args, &file)? {
        Some(done) => Some(done),
        None => {
            let dir = locate("dump", &args.volume, args.store.credentials.as_deref())?;
            Descriptor::read(&dir).map_err(|why| fail(&why))?;
            ask("dump", &dir, &question, None)?
        }
    };
    let done = match asked {
        Some(done) => done,
        None => {
            let volume = open("dump", &args.volume, &args.store)?;
            let mut progress = Progress::new();
            let mut tick = |rows| progress.tick("dumping rows", rows);
            write(&*volume.engine, &volume.descriptor, &file, args.force, &mut tick)
                .map_err(|why| fail(&why))?
        }
    };
    if args.json {
        print_json(&done);
    } else {
        let number = |name: &str| done[name].as_u64().unwrap_or(0);
        println!(
            "{}: {} rows and {} changes, {}",
            file.display(),
            count(number("rows")),
            count(number("changes")),
            bytes(number("bytes"))
        );
    }
    match done["left_out"].as_u64() {
        None | Some(0) => Ok(ExitStatus::Good),
        Some(_) => Ok(ExitStatus::Bad),
    }
}
