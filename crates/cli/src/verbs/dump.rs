//! `kestrel dump`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use kestrel_admin::dump::{About, dump};
use kestrel_client::descriptor::Descriptor;
use kestrel_meta::engine::Engine;
use kestrel_types::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use super::store_args::StoreArgs;
use super::{ask, locate, open, print_json};
use crate::failure::{Failure, Verdict};
use crate::progress::Progress;
use crate::units::{bytes, count};

/// Write all metadata of a volume to a file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel dump /data/vol /backup/vol.dump
  kestrel dump /data/vol /backup/vol.dump --force --json

Works on mounted and unmounted volumes; the dump of a mounted one is the state at one moment. It holds names, attributes,
small files and the places of all others, so a dump and the objects restore everything. The format is JSON Lines,
described in docs/format/dump.md.")]
pub struct DumpArgs {
    /// The volume: a path or file:///path
    pub volume: String,
    /// File to write
    pub file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Writes a dump to `file`, which appears complete and durable or not at all.
///
/// # Errors
/// In words.
pub fn write(
    engine: &dyn Engine,
    descriptor: &Descriptor,
    file: &Path,
    force: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Value, String> {
    if !force && file.symlink_metadata().is_ok() {
        return Err(format!("{}: exists; choose another name or use --force", file.display()));
    }
    let name = file.file_name().ok_or_else(|| format!("{}: not the name of a file", file.display()))?;
    let beside = |suffix: &str| {
        let mut other = std::ffi::OsString::from(".");
        other.push(name);
        other.push(format!(".{}{suffix}", std::process::id()));
        file.with_file_name(other)
    };
    let (partial, spool) = (beside(".partial"), beside(".spool"));
    let about = About {
        volume: serde_json::to_value(descriptor).map_err(|why| why.to_string())?,
        program: format!("kestrel {}", env!("CARGO_PKG_VERSION")),
        now: SystemClock.now(),
    };
    let mut write = || -> Result<Value, String> {
        let fail = |why: std::io::Error| format!("{}: {why}", file.display());
        let create = |path: &Path| {
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
        };
        let spool_file = create(&spool).map_err(fail)?;
        // It has no name from now on, so nothing is left of it however this ends.
        std::fs::remove_file(&spool).map_err(fail)?;
        let mut out = BufWriter::with_capacity(1 << 20, create(&partial).map_err(fail)?);
        let counts = dump(engine, &about, &mut out, spool_file, progress).map_err(|why| why.to_string())?;
        out.flush().map_err(fail)?;
        out.get_ref().sync_all().map_err(fail)?;
        std::fs::rename(&partial, file).map_err(fail)?;
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(fail)?;
        Ok(json!({ "file": file, "rows": counts.rows, "changes": counts.changes, "bytes": counts.bytes }))
    };
    let written = write();
    if written.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    written
}

/// Dumps.
pub fn run(args: &DumpArgs) -> Result<Verdict, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("dump", why);
    let dir = locate("dump", &args.volume)?;
    Descriptor::read(&dir).map_err(|why| fail(&why))?;
    let file =
        std::path::absolute(&args.file).map_err(|why| fail(&format!("{}: {why}", args.file.display())))?;
    let name = file.to_str().ok_or_else(|| Failure::usage("dump: the name of the file must be UTF-8"))?;
    let question = json!({ "verb": "dump", "file": name, "force": args.force });
    let done = match ask("dump", &dir, &question, None)? {
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
    Ok(Verdict::Good)
}
