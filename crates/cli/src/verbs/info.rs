//! `kestrel info`.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clap::Args;
use kestrel_admin::info;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::{NodeFanOut, RemoteUrl};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::info::{of_nodes, tell_places};
use kestrel_daemon::nodes::engine::NodesEngine;
use kestrel_daemon::units::{bytes, count};
use serde_json::{Value, json};

use super::{Target, ask, control_dir, locate, mount_above, open, path_value, print_json};
use crate::args::store::StoreArgs;

/// Extents printed for people; --json prints all that are known.
const EXTENTS_SHOWN: usize = 20;

/// Show how a file is stored, or what a directory holds.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel info /mnt/data/model.bin
  kestrel info /mnt/data --json
  kestrel info --volume /data/vol /models/model.bin
  kestrel info --volume kestrel://10.0.0.1/photos /models

The sums of a directory are kept up to date by every change: they come at once, however large the
tree is.")]
pub struct InfoArgs {
    /// A path in a mounted volume
    pub path: PathBuf,
    /// Look into this volume, which is not mounted here (a path, file:///path, or
    /// kestrel://host[:port]/NAME); PATH begins at its root
    #[arg(long)]
    pub volume: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Shows it.
pub fn run(args: &InfoArgs) -> Result<ExitStatus, Failure> {
    let found = match &args.volume {
        Some(url) => in_volume(args, url)?,
        None => in_mount(args)?,
    };
    if args.json {
        print_json(&found);
    } else {
        show(args, &found);
    }
    Ok(ExitStatus::Good)
}

fn in_volume(args: &InfoArgs, url: &str) -> Result<Value, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("info", why);
    if RemoteUrl::is_one(url) {
        return in_served(args, url);
    }
    let dir = locate("info", url, args.store.credentials.as_deref())?;
    let descriptor = Descriptor::read(&dir).map_err(|why| fail(&why))?;
    if let Some(section) = &descriptor.cluster {
        return in_served(args, &section.url(&descriptor.settings.name).map_err(|why| fail(&why))?);
    }
    let volume = open("info", url, &args.store)?;
    let mut found = info::find_path(&*volume.engine, args.path.as_os_str().as_bytes())
        .and_then(|inode| info::describe(&*volume.engine, &inode))
        .map_err(|why| Failure::new("info", format!("{}: {why}", args.path.display())))?;
    tell_places(&mut found, &volume.storage);
    Ok(found)
}

/// Looks into a volume that is served, by one node or by several, which are all asked.
fn in_served(args: &InfoArgs, url: &str) -> Result<Value, Failure> {
    let fail = |why: &dyn std::fmt::Display| {
        Failure::new("info", format!("{}: {why}", args.path.display()))
    };
    let path = args.path.as_os_str().as_bytes();
    let who = kestrel_daemon::who("kestrel info");
    let Some(panel) = NodeFanOut::connect(url, &who).map_err(|why| fail(&why))? else {
        let question = json!({ "verb": "info", "path": path_value(path) });
        return Target::of("info", url, args.store.credentials.as_deref())?
            .ask("info", &question, kestrel_client::control::QUICK, &mut |_| {})?
            .ok_or_else(|| fail(&"nobody serves it"));
    };
    let storage = panel.open_storage(&args.store.options()).map_err(|why| fail(&why))?;
    let engine = NodesEngine::new(&panel).map_err(|why| fail(&why))?;
    let inode = info::find_path(&engine, path).map_err(|why| fail(&why))?;
    let mut found = of_nodes(&panel, &engine, &inode).map_err(|why| fail(&why))?;
    tell_places(&mut found, &storage);
    Ok(found)
}

fn in_mount(args: &InfoArgs) -> Result<Value, Failure> {
    let fail = |why: &dyn std::fmt::Display| {
        Failure::new("info", format!("{}: {why}", args.path.display()))
    };
    // The last component is not followed: a symbolic link is looked at itself.
    let (parent, name) = match (args.path.parent(), args.path.file_name()) {
        (Some(parent), Some(name)) => (parent.to_path_buf(), Some(name.to_os_string())),
        _ => (args.path.clone(), None),
    };
    let parent = if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent };
    let parent = std::fs::canonicalize(&parent).map_err(|why| fail(&why))?;
    let path = name.as_ref().map_or(parent.clone(), |name| parent.join(name));
    let meta = std::fs::symlink_metadata(&path).map_err(|why| fail(&why))?;
    let entry = mount_above("info", &path)?;
    let question = if meta.is_dir() {
        json!({ "verb": "info", "dir": meta.ino() })
    } else {
        let above = std::fs::symlink_metadata(&parent).map_err(|why| fail(&why))?;
        let name = name.unwrap_or_default();
        json!({ "verb": "info", "parent": above.ino(), "name": name.as_bytes(), "ino": meta.ino() })
    };
    let dir = control_dir(&entry);
    ask("info", &dir, &question, kestrel_client::control::QUICK)?
        .ok_or_else(|| fail(&format!("nobody serves the volume {}; mount it again", dir.display())))
}

fn show(args: &InfoArgs, found: &Value) {
    let number = |name: &str| found[name].as_u64().unwrap_or(0);
    println!(
        "{}: {} {}",
        args.path.display(),
        found["kind"].as_str().unwrap_or("?"),
        number("ino")
    );
    let tree = &found["tree"];
    if tree.is_object() {
        let sum = |name: &str| tree[name].as_u64().unwrap_or(0);
        if tree["entries_here"].is_u64() {
            println!("entries      {}", count(sum("entries_here")));
        }
        println!(
            "in the tree  {} files, {} directories",
            count(sum("files")),
            count(sum("directories"))
        );
        println!("bytes        {} ({})", count(sum("bytes")), bytes(sum("bytes")));
        return;
    }
    println!("size         {} ({})", count(number("size")), bytes(number("size")));
    println!("layout       {}", found["layout"].as_str().unwrap_or("?"));
    let Some(extents) = found["extents"].as_array() else { return };
    println!(
        "stored       {} in {} extents of {} objects",
        bytes(number("stored_bytes")),
        count(number("extents_total")),
        count(number("objects"))
    );
    if extents.iter().any(|extent| extent["cached_bytes"].is_u64()) {
        let cached = extents.iter().filter_map(|extent| extent["cached_bytes"].as_u64()).sum();
        println!("disk cache   {}", bytes(cached));
    }
    println!("{:>16} {:>12} {:>12}   object", "file offset", "bytes", "at");
    for extent in extents.iter().take(EXTENTS_SHOWN) {
        let field = |name: &str| extent[name].as_u64().unwrap_or(0);
        println!(
            "{:>16} {:>12} {:>12}   {}",
            field("file_offset"),
            field("len"),
            field("object_offset"),
            extent["place"].as_str().unwrap_or("?")
        );
    }
    if extents.len() > EXTENTS_SHOWN {
        println!(
            "… {} more; --json lists them",
            count(number("extents_total") - EXTENTS_SHOWN as u64)
        );
    }
}
