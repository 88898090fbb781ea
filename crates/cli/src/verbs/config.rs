//! `kestrel config`.

use std::path::PathBuf;

use clap::Args;
use kestrel_blockstore::store::coded::Compression;
use kestrel_client::descriptor::{CodingSettings, Descriptor};
use kestrel_client::keys::{self, SettingsChange};
use kestrel_client::remote::{NodeFanOut, Reached, RemoteUrl, SingleNode};
use kestrel_client::volume::VolumeLock;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::settings::describe;
use kestrel_daemon::nodes::{QueryNodes, ask_all};
use kestrel_types::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use super::{locate, print_json};
use crate::args::atime::AtimeArg;
use crate::at_rest;

/// Show or change settings of a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel config /data/vol
  kestrel config /data/vol --compress zstd:3
  kestrel config /data/vol --atime relatime
  kestrel config /data/vol --encrypt --key-file /root/photos.key
  kestrel config kestrel://10.0.0.1/photos
  kestrel config kestrel://10.0.0.1/photos --compress zstd:3 --token-file admin.token
  kestrel config /data/node1 --node /data/node2 --node /data/node3 --compress lz4

Changes apply to what is written from the next mount on; what is stored already stays as it is and
stays readable. A mount's own option goes before the volume's --atime; of a served volume restart
the server, then mount again. Nodes that share a volume have the same settings: name the directories
of all, and they are changed at all or at none; a change that was cut short is finished by the \
    next.")]
pub struct ConfigArgs {
    /// The volume: a path, file:///path or kestrel://host[:port]/NAME; one of several nodes is only
    /// looked at by URL
    pub volume: String,
    /// To change one that several nodes share: the directory of another node; once for each of them
    #[arg(long = "node", value_name = "DIR")]
    pub nodes: Vec<String>,
    /// Compress new objects: none, lz4, zstd or zstd:LEVEL with a level from 1 to 19
    #[arg(long, value_name = "METHOD")]
    pub compress: Option<Compression>,
    /// Encrypt new objects; what is stored already is not encrypted by this
    #[arg(long, conflicts_with = "no_encrypt")]
    pub encrypt: bool,
    /// Do not encrypt new objects; the key is still needed for those that are
    #[arg(long)]
    pub no_encrypt: bool,
    /// Which reads change access times, at mounts that are not told otherwise
    #[arg(long, value_enum, value_name = "MODE")]
    pub atime: Option<AtimeArg>,
    /// File with the volume's key; by default the one that KESTREL_KEY_FILE names
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Does it.
pub fn run(args: &ConfigArgs) -> Result<ExitStatus, Failure> {
    let encrypt = if args.encrypt { Some(true) } else { args.no_encrypt.then_some(false) };
    let atime = args.atime.map(AtimeArg::mode);
    let change = SettingsChange { compression: args.compress, encrypt, atime };
    let is_changed = change.compression.is_some() || change.encrypt.is_some() || atime.is_some();
    if RemoteUrl::is_one(&args.volume) {
        return of_served(args, &change);
    }
    let failed = |why| Failure::new("config", why);
    let dir = locate("config", &args.volume, None)?;
    let now = SystemClock.now();
    let key_file = args.key_file.as_deref();
    let nodes = at_rest::is_meant("config", &args.volume, &args.nodes);
    let (descriptor, dirs) = if nodes && is_changed {
        let dirs = at_rest::dirs("config", &args.volume, &args.nodes, [key_file, None])?;
        (keys::change_nodes(&dirs, &change, key_file, now), dirs)
    } else if is_changed {
        (keys::change(&dir, &change, key_file, now), vec![dir.clone()])
    } else {
        (Descriptor::read(&dir), vec![dir.clone()])
    };
    let told = describe(&descriptor.map_err(failed)?);
    let open_in: Vec<u32> = dirs.iter().filter_map(|dir| VolumeLock::holder(dir)).collect();
    if args.json {
        let mut out = told;
        out["volume"] = dir.to_string_lossy().into();
        out["in_use_by"] = open_in.first().copied().into();
        print_json(&out);
        return Ok(ExitStatus::Good);
    }
    show(&told, &dir.display());
    for pid in open_in.iter().filter(|_| is_changed) {
        let what =
            if nodes { "a node is started and volumes are mounted" } else { "it is mounted" };
        println!("process {pid} has the volume open: changes apply when {what} again");
    }
    Ok(ExitStatus::Good)
}

fn show(told: &Value, place: &dyn std::fmt::Display) {
    println!("volume       {} ({place})", told["name"].as_str().unwrap_or("?"));
    println!("access times {}", told["atime"].as_str().unwrap_or("?"));
    println!("compression  {}", told["compression"].as_str().unwrap_or("?"));
    match told["volume_key"].as_str() {
        None => println!("encryption   none"),
        Some(key) => println!(
            "encryption   {}, volume key {key}, {} data keys",
            told["cipher"]
                .as_str()
                .filter(|_| told["encrypted"] == true)
                .unwrap_or("not for new objects"),
            told["data_keys"]
        ),
    }
}

/// The settings of a volume that one node serves, which may be changed.
pub struct OfNode {
    node: SingleNode,
    /// What it will be when it is opened the next time.
    pub descriptor: Descriptor,
    /// That is what the node goes by now.
    pub is_in_use: bool,
}

impl OfNode {
    /// Asks the node.
    ///
    /// # Errors
    /// In words.
    pub fn ask(node: SingleNode) -> Result<Self, String> {
        let descriptor = node.descriptor().map_err(|why| why.to_string())?;
        let mut asked = Self { node, descriptor, is_in_use: true };
        asked.go_by(&json!({ "verb": "settings" }))?;
        Ok(asked)
    }

    /// Has the node put these settings in the place of those it has.
    ///
    /// # Errors
    /// In words.
    pub fn change(&mut self, coding: Option<CodingSettings>) -> Result<(), String> {
        if coding == self.descriptor.coding {
            return Ok(());
        }
        self.go_by(
            &json!({ "verb": "settings", "before": self.descriptor.coding, "after": coding }),
        )
    }

    fn go_by(&mut self, question: &Value) -> Result<(), String> {
        let answer = QueryNodes::ask(&self.node, 0, question)?;
        self.descriptor.coding =
            serde_json::from_value(answer["coding"].clone()).map_err(|why| {
                format!("the server's answer is not valid: {why}; use the same version of kestrel")
            })?;
        self.is_in_use = answer["is_in_use"] == true;
        Ok(())
    }
}

/// What is said of settings that the node does not go by yet.
pub const NOT_YET: &str = "the server has the volume open: changes apply when it is started and \
                           volumes are mounted again";

/// Shows or changes the settings of a volume that one node serves.
fn of_node(
    node: SingleNode,
    args: &ConfigArgs,
    change: &SettingsChange,
) -> Result<ExitStatus, Failure> {
    let failed = |why: String| Failure::new("config", why);
    let mut node = OfNode::ask(node).map_err(failed)?;
    if change.compression.is_some() || change.encrypt.is_some() {
        let coding =
            keys::changed(&node.descriptor, change, args.key_file.as_deref(), SystemClock.now());
        let coding = coding.map_err(|why| failed(why.to_string()))?;
        node.change(coding).map_err(failed)?;
    }
    let mut told = describe(&node.descriptor);
    if args.json {
        told["volume"] = args.volume.as_str().into();
        told["in_use"] = node.is_in_use.into();
        print_json(&told);
        return Ok(ExitStatus::Good);
    }
    show(&told, &args.volume);
    if !node.is_in_use {
        println!("{NOT_YET}");
    }
    Ok(ExitStatus::Good)
}

/// Shows the settings of a volume by its URL: those of all its nodes, which are the same. Changes
/// those of one node.
fn of_served(args: &ConfigArgs, change: &SettingsChange) -> Result<ExitStatus, Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::new("config", why);
    if !args.nodes.is_empty() {
        return Err(Failure::usage(
            "config: a URL stands alone: --node is for directories of nodes",
        ));
    }
    let who = kestrel_daemon::who("kestrel config");
    let panel = match NodeFanOut::reach(&args.volume, &who).map_err(|why| failed(&why))? {
        Reached::One(node) => return of_node(node, args, change),
        Reached::Several(panel) => panel,
    };
    if change.compression.is_some() || change.encrypt.is_some() {
        return Err(Failure::usage(
            "config: several nodes share the volume; their settings are changed where all their \
             directories are: name those",
        ));
    }
    let answers = ask_all(&panel, &json!({ "verb": "coding" })).map_err(|why| failed(&why))?;
    let Some((first, told)) = answers.first() else {
        return Err(failed(&"the volume has no nodes"));
    };
    let other = answers.iter().find(|(_, other)| other != told);
    if args.json {
        let mut out = told.clone();
        out["volume"] = args.volume.as_str().into();
        out["same_on_all_nodes"] = other.is_none().into();
        print_json(&out);
    } else {
        show(told, &args.volume);
    }
    if let Some((node, _)) = other {
        eprintln!(
            "kestrel config: nodes {first} and {node} differ: one was not started since the last \
             change"
        );
        return Ok(ExitStatus::Bad);
    }
    Ok(ExitStatus::Good)
}
