//! The collection of a volume that several nodes share.
//!
//! What refers to an object may lie at any node, so the rows of all are gathered, of one moment; if one does not answer, nothing is
//! looked at. Of nodes in use no object is deleted here: it is scheduled with them, and they ask each other whether anybody refers to it or a
//! client may come to, as they do for what files gave up.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_client::remote::Panel;
use kestrel_client::storage::StoreOptions;
use kestrel_types::ids::ObjectId;
use serde_json::{Value, json};

use super::{GcArgs, Target, collect as collect_rows, collect_and, options};
use crate::failure::Failure;
use crate::feed::Feed;
use crate::nodes::at_rest::{self, AtRest};
use crate::nodes::{Asked, cut};

/// Objects in one question.
const OBJECTS: usize = 10_000;

/// Times between two looks at what the nodes have deleted.
const LOOKS: [Duration; 4] =
    [Duration::from_secs(2), Duration::from_secs(3), Duration::from_secs(5), Duration::from_secs(10)];

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::new("gc", why)
}

/// Collects what several nodes share; `None` if one node has the volume.
pub(super) fn collect(args: &GcArgs, target: &Target, feed: &Feed<'_>) -> Result<Option<Value>, Failure> {
    match target {
        Target::Served(url) => {
            if !args.others.is_empty() {
                return Err(Failure::usage(
                    "gc: a URL stands alone: all nodes of a volume that is served are asked",
                ));
            }
            let who = crate::serve::who("kestrel gc");
            let Some(panel) = Panel::connect(url, &who).map_err(failed)? else { return Ok(None) };
            let (store, scratch) = (args.store.options(), std::env::temp_dir());
            let how = How { store, grace: args.grace, delete: args.delete, scratch };
            served(&how, &panel, feed).map(Some)
        }
        Target::Here(_) if at_rest::is_meant("gc", &args.volume, &args.others) => {
            let nodes = AtRest::open("gc", &args.volume, &args.others, &args.store)?;
            let whole = nodes.gather(&mut |done| feed.progress("gathering metadata", done))?;
            if args.delete {
                // Rows that are not in the whole may refer to what seems to be left over.
                if let Some(finding) = whole.findings.first() {
                    let why = "nothing was deleted; run `kestrel fsck` with the same directories";
                    return Err(failed(format!("{}: {}; {why}", finding.path, finding.detail)));
                }
                // That nothing refers to an object must be durable before it goes.
                nodes.engines().values().try_for_each(|engine| engine.sync()).map_err(failed)?;
            }
            let options = options(args.grace.as_secs(), args.delete, &|_| false);
            let done = collect_rows(whole.engine(), &*nodes.first()?.store, &options, feed);
            done.map(Some).map_err(failed)
        }
        Target::Here(_) => Ok(None),
    }
}

/// How what several nodes serve is collected.
pub struct How {
    /// How the objects are reached.
    pub store: StoreOptions,
    /// Objects last written to less than this ago are left alone.
    pub grace: Duration,
    /// Have the nodes delete what is found.
    pub delete: bool,
    /// Where the rows of all nodes are put together.
    pub scratch: PathBuf,
}

/// Collects what nodes in use share.
///
/// # Errors
/// If one of them does not answer, or the store cannot be listed; nothing was deleted then.
pub fn served(how: &How, panel: &Panel, feed: &Feed<'_>) -> Result<Value, Failure> {
    let storage = panel.open_storage(&how.store).map_err(failed)?;
    // What is written from now on is young.
    let options = options(how.grace.as_secs(), false, &|_| false);
    let scratch = &how.scratch;
    let mut progress = |done| feed.progress("fetching metadata", done);
    let whole = cut::gather(panel, scratch, &mut progress).map_err(failed)?;
    let mut leaked = Vec::new();
    let done =
        collect_and(whole.engine(), &*storage.store, &options, feed, &mut |object| leaked.push(object));
    let mut done = done.map_err(failed)?;
    done["dry_run"] = (!how.delete).into();
    if how.delete && !leaked.is_empty() {
        let node = panel.members().first().copied().ok_or_else(|| failed("the volume has no nodes"))?;
        for some in leaked.chunks(OBJECTS) {
            Asked::ask(panel, node, &json!({ "verb": "reap", "objects": some })).map_err(failed)?;
        }
        let left = wait_for(&*storage.store, &leaked, feed)?;
        done["deleted_objects"] = (leaked.len() - left).into();
        done["handed_over_objects"] = left.into();
    }
    Ok(done)
}

/// How many of these objects are still there when the nodes have had time to delete them.
fn wait_for(store: &dyn BlockStore, objects: &[ObjectId], feed: &Feed<'_>) -> Result<usize, Failure> {
    let objects: HashSet<ObjectId> = objects.iter().copied().collect();
    let mut left = objects.len();
    for pause in LOOKS {
        std::thread::sleep(pause);
        left = 0;
        for page in list_all(store) {
            left +=
                page.map_err(failed)?.objects.iter().filter(|info| objects.contains(&info.object)).count();
        }
        feed.progress("deleting objects", (objects.len() - left.min(objects.len())) as u64);
        if left == 0 {
            break;
        }
    }
    Ok(left)
}
