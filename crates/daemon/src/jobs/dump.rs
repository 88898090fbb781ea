//! Dumps of all metadata of a volume into a file.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use kestrel_admin::dump::{About, dump};
use kestrel_client::descriptor::Descriptor;
use kestrel_engine::Engine;
use kestrel_types::clock::{Clock, SystemClock};
use serde_json::{Value, json};

/// A hidden name beside that of `file`, of this process.
///
/// # Errors
/// If `file` is not the name of a file.
fn beside(file: &Path, suffix: &str) -> Result<PathBuf, String> {
    let name =
        file.file_name().ok_or_else(|| format!("{}: not the name of a file", file.display()))?;
    let mut other = std::ffi::OsString::from(".");
    other.push(name);
    other.push(format!(".{}.{suffix}", std::process::id()));
    Ok(file.with_file_name(other))
}

/// What a dump that is begun now says of the volume.
///
/// # Errors
/// If the descriptor cannot be written down.
pub fn about(descriptor: &Descriptor) -> Result<About, String> {
    Ok(About {
        // What a volume keeps to itself stays there.
        volume: serde_json::to_value(descriptor.of_one().map_err(|why| why.to_string())?)
            .map_err(|why| why.to_string())?,
        program: format!("kestrel {}", env!("CARGO_PKG_VERSION")),
        now: SystemClock.now(),
    })
}

/// An empty file for changes, readable by nobody else.
fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// An empty file in `dir` without a name: nothing is left of it however this process ends.
///
/// # Errors
/// In words.
pub fn spool_in(dir: &Path) -> Result<File, String> {
    let path = dir.join(format!(".dump.{}.spool", std::process::id()));
    let made = create(&path).and_then(|file| std::fs::remove_file(&path).map(|()| file));
    made.map_err(|why| format!("{}: {why}", path.display()))
}

/// Makes `file` of what `write` writes to the one that it gets, in the directory that it gets: it
/// appears complete and durable or not at all.
///
/// # Errors
/// In words; those of `write`. A file that is there already, without `force`.
pub fn write_whole<T>(
    file: &Path,
    force: bool,
    write: impl FnOnce(&mut File, &Path) -> Result<T, String>,
) -> Result<T, String> {
    if !force && file.symlink_metadata().is_ok() {
        return Err(format!("{}: exists; choose another name or use --force", file.display()));
    }
    let partial = beside(file, "partial")?;
    let parent =
        file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fail = |why: std::io::Error| format!("{}: {why}", file.display());
    let make = || {
        let mut out = create(&partial).map_err(fail)?;
        let written = write(&mut out, parent)?;
        out.sync_all().map_err(fail)?;
        std::fs::rename(&partial, file).map_err(fail)?;
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(fail)?;
        Ok(written)
    };
    let made = make();
    if made.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    made
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
    let about = about(descriptor)?;
    let counts = write_whole(file, force, |out, parent| {
        let mut out = BufWriter::with_capacity(1 << 20, out);
        let counts = dump(engine, &about, &mut out, spool_in(parent)?, progress);
        let counts = counts.map_err(|why| why.to_string())?;
        out.flush().map_err(|why| format!("{}: {why}", file.display()))?;
        Ok(counts)
    })?;
    Ok(json!({ "file": file, "rows": counts.rows, "changes": counts.changes,
            "bytes": counts.bytes }))
}
