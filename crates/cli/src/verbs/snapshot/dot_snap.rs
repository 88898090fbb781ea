//! Snapshots through `.snap` of a mount, by what every user may call: for users that may not ask
//! the process behind the mount.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use kestrel_daemon::ask::{path_bytes, path_value};
use kestrel_daemon::failure::Failure;
use serde_json::{Value, json};

use super::VERB;

/// Name of the directory with a directory's snapshots.
pub const NAME: &str = ".snap";

/// Why `.snap` is not enough.
pub const NOT_THROUGH_IT: &str =
    "only root and the user of the mount can do this with a path: use kestrel://host/NAME:/dir";

/// Answers a question about the directory at `dir`, as far as that can be done here.
pub fn answer(dir: &Path, question: &Value, shown: &str) -> Result<Value, Failure> {
    let snap = dir.join(NAME);
    let at = |field: &str| -> PathBuf {
        let bytes = path_bytes(&question[field]).unwrap_or_default();
        snap.join(OsStr::from_bytes(&bytes))
    };
    let act = question["act"].as_str().unwrap_or_default();
    let done = match act {
        "create" => std::fs::DirBuilder::new().mode(0o755).create(at("name")),
        "remove" => std::fs::remove_dir(at("name")),
        "rename" => rename(&at("name"), &at("to")),
        "list" => return list(&snap).map_err(|why| failed(&why, shown)),
        _ => {
            return Err(Failure::new(VERB, format!("{shown}: {NOT_THROUGH_IT}")));
        }
    };
    done.map(|()| Value::Null).map_err(|why| failed(&why, shown))
}

/// rename(2) would replace another snapshot, were the mount not to refuse it.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    if std::fs::symlink_metadata(to).is_ok() {
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    std::fs::rename(from, to)
}

fn list(snap: &Path) -> io::Result<Value> {
    let names = std::fs::read_dir(snap)?.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names: Vec<_> = names.collect::<io::Result<_>>()?;
    names.sort();
    let described = names.iter().map(|name| {
        let name = path_value(name.as_bytes());
        json!({ "name": name, "shown": name })
    });
    Ok(json!({ "snapshots": described.collect::<Vec<_>>() }))
}

/// What failed, in the words of the process that could not be asked.
fn failed(why: &io::Error, shown: &str) -> Failure {
    let text = match why.raw_os_error() {
        Some(libc::EEXIST | libc::ENOTEMPTY) => {
            "there is a snapshot of this name; choose another name".into()
        }
        Some(libc::ENOENT) => {
            "there is no such snapshot; `kestrel snapshot list` shows those that there are".into()
        }
        Some(libc::EBUSY) => "a tag holds the snapshot; its owner releases it with `kestrel \
                              snapshot release`"
            .into(),
        Some(libc::EPERM | libc::EACCES) => {
            "not allowed; the directory's owner and root may change its snapshots".into()
        }
        Some(libc::EROFS) => "the mount is read-only; mount the volume for writing first".into(),
        _ => why.to_string(),
    };
    Failure::new(VERB, format!("{shown}: {text}"))
}
