//! `kestrel fsck --salvage`.

use std::path::Path;

use kestrel_admin::repair::repair;
use kestrel_admin::salvage::LostPath;
use kestrel_client::volume::{Salvaged, salvage};
use kestrel_daemon::failure::Failure;
use kestrel_daemon::progress_stream::ProgressStream;
use serde_json::{Value, json};

use super::{FsckArgs, mend};
use crate::verbs::{locate_directory, open};

/// Makes a new volume of what is intact and repairs it; what the salvage and the repair could not
/// bring back comes as events.
pub(super) fn run(args: &FsckArgs, new: &str, feed: &ProgressStream<'_>) -> Result<Value, Failure> {
    let (from, to) = (locate_directory("fsck", &args.volume)?, locate_directory("fsck", new)?);
    let fail = |why: &dyn std::fmt::Display| Failure::new("fsck", why);
    let mut tick = |rows| feed.progress("recovering rows", rows);
    let Salvaged { descriptor, dir, rows, lost } =
        salvage(&from, &to, &args.store.options(), &mut tick).map_err(|why| fail(&why))?;
    let events: Vec<Value> = lost.iter().map(event).collect();
    for event in events.iter().take(args.limit) {
        feed.event(&json!({ "lost": event }));
    }
    let mut done = if descriptor.cluster.is_some() {
        // Sums and references of one node mean nothing without the others'.
        json!({ "clean": lost.is_empty(), "errors": 0, "repaired": 0 })
    } else {
        let volume = open("fsck", path_of(&dir)?, &args.store)?;
        mend(args, &*volume.store, feed, &mut |options, now, did, left, progress| {
            repair(&*volume.engine, options, now, did, left, progress)
        })
        .map_err(|why| fail(&why))?
    };
    if !lost.is_empty() {
        done["clean"] = false.into();
    }
    done["recovered_rows"] = rows.into();
    done["lost"] = lost.len().into();
    done["volume"] = dir.to_string_lossy().into();
    done["is_node"] = descriptor.cluster.is_some().into();
    Ok(done)
}

fn path_of(dir: &Path) -> Result<&str, Failure> {
    dir.to_str().ok_or_else(|| Failure::usage("fsck: the new volume's path must be UTF-8"))
}

fn event(lost: &LostPath) -> Value {
    json!({ "path": lost.path, "detail": lost.detail, "place": lost.place })
}

/// Prints how it ended.
pub(super) fn print(done: &Value) {
    let number = |name: &str| done[name].as_u64().unwrap_or(0);
    let volume = done["volume"].as_str().unwrap_or("?");
    println!(
        "{} rows recovered into {volume}, {} losses",
        number("recovered_rows"),
        number("lost")
    );
    if done["is_node"] == true {
        println!(
            "a node of a cluster: put it in the old directory's place, then `kestrel fsck \
             --repair` with all nodes"
        );
    }
}
