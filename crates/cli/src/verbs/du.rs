//! `kestrel du`.

use std::ffi::OsString;
use std::io::{BufWriter, Write as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use kestrel_client::control::QUICK;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::{NodeFanOut, RemoteUrl};
use kestrel_daemon::ask::path_bytes;
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::jobs::usage;
use kestrel_daemon::logger::utc;
use kestrel_daemon::units::{bytes, count};
use serde_json::{Value, json};

use super::owner_names::{group_name, user_name};
use super::snapshot::place::Place;
use super::{Target, ask, control_dir, locate, mount_above, open, path_value, print_json};
use crate::args::store::StoreArgs;

/// What directories are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rank {
    /// Bytes of the files in the directory itself
    Bytes,
    /// Number of files in the directory itself
    Files,
    /// When something was made, removed or written in the directory itself, newest first
    Changed,
    /// By how many bytes the files in the directory itself have grown since a snapshot (--since)
    Growth,
}

/// Which owner of a file counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Owners {
    User,
    Group,
}

/// Show what the directories of a tree hold, without reading their files.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel du /mnt/data                    the directories in it, the largest first
  kestrel du /mnt/data --depth 0          the whole tree in one line
  kestrel du /mnt/data --top 20           the 20 directories with most bytes in their own files
  kestrel du /mnt/data --top 5 --by files --json
  kestrel du /mnt/data --top 10 --by growth --since monday
  kestrel du /mnt/data --owners user      what the files of each user come to
  kestrel du --volume /data/vol /models

Figures come from the sums that every change keeps up to date: a tree takes time by its directories,
however many files it has. SIZE is the sum of file sizes; a file with several names counts as a file
at each and with no bytes. Growth is told since a snapshot that PATH/.snap has, by default the
newest one; a directory that was made since has grown by all it has. --owners looks at each file's
attributes, so it takes time by their number; a file with several names counts once.")]
pub struct DuArgs {
    /// A directory in a mounted volume
    path: PathBuf,
    /// Show directories down to so many levels below PATH
    #[arg(short, long, value_name = "LEVELS", default_value_t = 1, conflicts_with = "top")]
    depth: u32,
    /// Show the first N directories by what lies in them directly, wherever they are below PATH
    #[arg(long, value_name = "N")]
    top: Option<u64>,
    /// With --top: what the directories are ranked by
    #[arg(long, value_enum, default_value_t = Rank::Bytes, requires = "top")]
    by: Rank,
    /// With --by growth: the snapshot that growth is measured from [default: the newest]
    #[arg(long, value_name = "NAME", requires = "top")]
    since: Option<OsString>,
    /// Show the files of the tree by their users or groups, those with most bytes first
    #[arg(long, value_enum, value_name = "KIND", conflicts_with_all = ["depth", "top"])]
    owners: Option<Owners>,
    /// Look into this volume, which is not mounted here (a path, file:///path, or
    /// kestrel://host[:port]/NAME); PATH begins at its root
    #[arg(long)]
    volume: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

impl DuArgs {
    /// The question, but for the directory.
    fn question(&self) -> Value {
        let mut question = json!({ "verb": "du" });
        match self.owners {
            Some(Owners::User) => question["owners"] = "user".into(),
            Some(Owners::Group) => question["owners"] = "group".into(),
            None => {}
        }
        match self.top {
            None => question["depth"] = self.depth.into(),
            Some(count) => {
                question["top"] = count.into();
                question["by"] = match self.by {
                    Rank::Bytes => "bytes".into(),
                    Rank::Files => "files".into(),
                    Rank::Changed => "changed".into(),
                    Rank::Growth => "growth".into(),
                };
            }
        }
        question
    }

    /// How long a process may be silent: to look at every file takes as long as it takes.
    fn limit(&self) -> Option<Duration> {
        if self.owners.is_some() { None } else { QUICK }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::new("du", format!("{}: {why}", self.path.display()))
    }
}

/// Shows it.
pub fn run(args: &DuArgs) -> Result<ExitStatus, Failure> {
    if args.since.is_some() && args.by != Rank::Growth {
        return Err(Failure::usage("du: --since is for --by growth"));
    }
    let mut question = args.question();
    let since = match args.by {
        Rank::Growth if args.top.is_some() => Some(snapshot_since(args)?),
        _ => None,
    };
    question["since"] = since.into();
    let found = match &args.volume {
        Some(url) => in_volume(args, url, question)?,
        None => in_mount(args, question)?,
    };
    if since.is_some() && !snapshots(args)?.iter().any(|one| one["id"].as_u64() == since) {
        return Err(args.failed(&"the snapshot was removed meanwhile; measure from another one"));
    }
    if args.json {
        print_json(&found);
    } else {
        let shown = match args.owners {
            Some(owners) => show_owners(owners, &found),
            None => show(args, &found),
        };
        shown.map_err(|why| args.failed(&why))?;
    }
    Ok(ExitStatus::Good)
}

/// The snapshots that the `.snap` of the directory has.
fn snapshots(args: &DuArgs) -> Result<Vec<Value>, Failure> {
    let place = match &args.volume {
        None => args.path.clone().into_os_string(),
        Some(url) => {
            let path = args.path.as_os_str().as_bytes();
            let path = path.strip_prefix(b"/").unwrap_or(path);
            OsString::from_vec([url.as_bytes(), b":/", path].concat())
        }
    };
    let own = |why: Failure| Failure::new("du", why.reason());
    let mut place = Place::of(&place, &args.store).map_err(own)?;
    let mut found = place.ask(json!({ "act": "list", "ancestors": true })).map_err(own)?;
    place.close().map_err(own)?;
    let all = found["snapshots"].as_array_mut().map(std::mem::take).unwrap_or_default();
    Ok(all.into_iter().filter(|one| one["removing"] != true).collect())
}

/// The number of the snapshot that growth is measured from.
fn snapshot_since(args: &DuArgs) -> Result<u64, Failure> {
    let all = snapshots(args)?;
    let named = all.iter().filter(|one| {
        let name = path_bytes(&one["shown"]);
        args.since.as_ref().is_none_or(|since| name.as_deref() == Some(since.as_bytes()))
    });
    named.filter_map(|one| one["id"].as_u64()).max().ok_or_else(|| match &args.since {
        Some(name) => {
            let name = name.to_string_lossy();
            args.failed(&format!("there is no snapshot {name}; `kestrel snapshot list` lists them"))
        }
        None => args.failed(&"it has no snapshot; make one with `kestrel snapshot create`"),
    })
}

fn in_volume(args: &DuArgs, url: &str, mut question: Value) -> Result<Value, Failure> {
    question["path"] = path_value(args.path.as_os_str().as_bytes());
    if RemoteUrl::is_one(url) {
        return in_served(args, url, &question);
    }
    let dir = locate("du", url, args.store.credentials.as_deref())?;
    let descriptor = Descriptor::read(&dir).map_err(|why| args.failed(&why))?;
    if let Some(section) = &descriptor.cluster {
        let url = section.url(&descriptor.settings.name).map_err(|why| args.failed(&why))?;
        return in_served(args, &url, &question);
    }
    if let Some(found) = ask("du", &dir, &question, args.limit())? {
        return Ok(found);
    }
    let volume = open("du", url, &args.store)?;
    usage::answer(&*volume.engine, &question).map_err(|why| args.failed(&why))
}

/// A volume that is served, by one node or by several, which are all asked.
fn in_served(args: &DuArgs, url: &str, question: &Value) -> Result<Value, Failure> {
    let process = kestrel_daemon::who("kestrel du");
    match NodeFanOut::connect(url, &process).map_err(|why| args.failed(&why))? {
        Some(nodes) => usage::answer_of_nodes(&nodes, question).map_err(|why| args.failed(&why)),
        None => Target::of("du", url, args.store.credentials.as_deref())?
            .ask("du", question, args.limit(), &mut |_| {})?
            .ok_or_else(|| args.failed(&"no process serves it")),
    }
}

fn in_mount(args: &DuArgs, mut question: Value) -> Result<Value, Failure> {
    let path = std::fs::canonicalize(&args.path).map_err(|why| args.failed(&why))?;
    let meta = std::fs::symlink_metadata(&path).map_err(|why| args.failed(&why))?;
    if !meta.is_dir() {
        return Err(args.failed(&"not a directory; `kestrel info` tells of a file"));
    }
    let entry = mount_above("du", &path)?;
    if kestrel_vfs::is_shown_of_snapshot(meta.ino()) {
        return Err(args.failed(
            &"it lies in a snapshot; `kestrel snapshot info` tells how much the tree had",
        ));
    }
    question["dir"] = meta.ino().into();
    let dir = control_dir(&entry);
    ask("du", &dir, &question, args.limit())?.ok_or_else(|| {
        args.failed(&format!("no process serves the volume {}; mount it again", dir.display()))
    })
}

fn show(args: &DuArgs, found: &Value) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (size, files, changed) = match args.top {
        None => ("bytes", "files", "changed_ns"),
        Some(_) => ("bytes_here", "files_here", "changed_here_ns"),
    };
    let growth = if args.by == Rank::Growth { format!("{:>11} ", "GROWTH") } else { String::new() };
    writeln!(
        out,
        "{growth}{:>10} {:>14} {:>12}  {:19}  PATH",
        "SIZE", "FILES", "DIRECTORIES", "CHANGED (UTC)"
    )?;
    for one in found["dirs"].as_array().into_iter().flatten() {
        let number = |name: &str| one[name].as_u64().unwrap_or(0);
        let path = path_bytes(&one["path"]).unwrap_or_default();
        let path = args.path.join(Path::new(std::ffi::OsStr::from_bytes(&path)));
        // Seconds are enough for people.
        let changed = one[changed].as_i64().map_or(String::new(), utc);
        if let Some(growth) = one["growth_bytes_here"].as_i64() {
            let sign = if growth < 0 { '-' } else { '+' };
            write!(out, "{:>11} ", format!("{sign}{}", bytes(growth.unsigned_abs())))?;
        }
        writeln!(
            out,
            "{:>10} {:>14} {:>12}  {:19}  {}",
            bytes(number(size)),
            count(number(files)),
            count(number("directories")),
            changed.get(..19).unwrap_or("-"),
            shown(&path),
        )?;
    }
    let total = &found["total"];
    let number = |name: &str| total[name].as_u64().unwrap_or(0);
    writeln!(
        out,
        "in the tree: {} in {} files and {} directories",
        bytes(number("bytes")),
        count(number("files")),
        count(number("directories"))
    )?;
    out.flush()?;
    let clones = found["unfinished_clones"].as_u64().unwrap_or(0);
    if clones > 0 {
        eprintln!(
            "kestrel du: {clones} clones of this volume are being completed: directories below \
             theirs may not be counted yet; run it again later"
        );
    }
    Ok(())
}

fn show_owners(owners: Owners, found: &Value) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let title = if owners == Owners::User { "USER" } else { "GROUP" };
    writeln!(out, "{:>10} {:>14}  {title}", "SIZE", "FILES")?;
    for one in found["owners"].as_array().into_iter().flatten() {
        let number = |name: &str| one[name].as_u64().unwrap_or(0);
        let name = match owners {
            Owners::User => user_name(number("id")),
            Owners::Group => group_name(number("id")),
        };
        writeln!(out, "{:>10} {:>14}  {name}", bytes(number("bytes")), count(number("files")))?;
    }
    out.flush()
}

/// A path on one line, without the `/` at the end that joining an empty path leaves.
fn shown(path: &Path) -> String {
    let text = path.to_string_lossy().into_owned();
    let cut = if text.len() > 1 { text.strip_suffix('/').unwrap_or(&text) } else { &text };
    cut.chars()
        .flat_map(|c| match c {
            c if c.is_control() => c.escape_default().collect::<Vec<_>>(),
            c => vec![c],
        })
        .collect()
}
