//! The collection of objects that nothing refers to.
//!
//! Of a volume that several nodes share: what refers to an object may lie at any node, so the rows
//! of all nodes are gathered as they are at one moment. If one node does not answer, the collection
//! fails. Objects of nodes in use are not deleted here: the collection schedules them with the
//! nodes, which ask each other before they delete an object, as they do for what files gave up.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use kestrel_admin::gc::{self, GcError, GcEvent, Options};
use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_client::remote::NodeFanOut;
use kestrel_client::storage::StoreOptions;
use kestrel_engine::Engine;
use kestrel_engine::cancellable::CancellableScan;
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use kestrel_types::ids::ObjectId;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::nodes::{QueryNodes, cut};
use crate::progress_stream::ProgressStream;

/// Age below which an object is left alone, if nothing else is asked for.
pub const GRACE_SECONDS_DEFAULT: u64 = 3600;

/// Leaked objects listed at most; all are counted.
const LISTED_MAX: usize = 1000;

/// What to collect, by the present time.
pub fn options(
    grace_seconds: u64,
    delete: bool,
    is_open: &dyn Fn(ObjectId) -> bool,
) -> Options<'_> {
    let grace = i64::try_from(grace_seconds).unwrap_or(i64::MAX).saturating_mul(SECOND);
    Options { now: SystemClock.now(), grace, delete, is_open, go_on: &|| true }
}

/// Collects; what is found is told as it is found, the answer has the sums.
///
/// # Errors
/// Those of the collection; nothing was deleted then.
pub fn collect(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    options: &Options<'_>,
    feed: &ProgressStream<'_>,
) -> Result<Value, GcError> {
    collect_and(engine, store, options, feed, &mut |_| ())
}

/// The same; `leaked` gets every object that is found.
fn collect_and(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    options: &Options<'_>,
    feed: &ProgressStream<'_>,
    leaked: &mut dyn FnMut(ObjectId),
) -> Result<Value, GcError> {
    let listening = feed.listening();
    let go_on = || listening.go_on();
    let engine = CancellableScan::new(engine, &go_on);
    let is_on = || listening.is_on();
    let options = Options { go_on: &is_on, ..*options };
    let mut listed = 0;
    let mut report = |event: GcEvent<'_>| {
        if let GcEvent::Leaked { object, .. } = event {
            leaked(object);
        }
        listed += 1;
        if listed <= LISTED_MAX {
            feed.event(&match event {
                GcEvent::Leaked { object, size, age } => {
                    json!({ "leaked": { "object": object, "bytes": size,
                        "age_seconds": age / SECOND } })
                }
                GcEvent::Disputed(object) => json!({ "disputed": object }),
                GcEvent::Failed(object, why) => {
                    json!({ "failed": { "object": object, "error": why.to_string() } })
                }
                GcEvent::Unknown(name) => json!({ "unknown": name }),
            });
        }
    };
    let totals = gc::collect(&engine, store, &options, &mut report, &mut |what, done| {
        feed.progress(what, done)
    })?;
    Ok(json!({
        "objects": totals.objects,
        "bytes": totals.bytes,
        "referenced_objects": totals.referenced,
        "scheduled_objects": totals.scheduled,
        "young_objects": totals.young,
        "disputed_objects": totals.disputed,
        "leaked_objects": totals.leaked,
        "leaked_bytes": totals.leaked_bytes,
        "deleted_objects": totals.deleted,
        "failed_objects": totals.failed,
        "sparse_objects": totals.sparse,
        "sparse_bytes": totals.sparse_bytes,
        "unknown_names": totals.unknown,
        "dry_run": !options.delete,
    }))
}

/// Objects in one question.
const OBJECTS: usize = 10_000;

/// Times between two looks at what the nodes have deleted.
const LOOKS: [Duration; 4] = [
    Duration::from_secs(2),
    Duration::from_secs(3),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// How what several nodes serve is collected.
pub struct GcMode {
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
pub fn served(
    how: &GcMode,
    panel: &NodeFanOut,
    feed: &ProgressStream<'_>,
) -> Result<Value, Failure> {
    let storage = panel.open_storage(&how.store).map_err(failed)?;
    // What is written from now on is young.
    let options = options(how.grace.as_secs(), false, &|_| false);
    let scratch = &how.scratch;
    let mut progress = |done| feed.progress("fetching metadata", done);
    let whole = cut::gather(panel, scratch, &mut progress).map_err(failed)?;
    let mut leaked = Vec::new();
    let done = collect_and(whole.engine(), &*storage.store, &options, feed, &mut |object| {
        leaked.push(object)
    });
    let mut done = done.map_err(failed)?;
    done["dry_run"] = (!how.delete).into();
    if how.delete && !leaked.is_empty() {
        let node =
            panel.members().first().copied().ok_or_else(|| failed("the volume has no nodes"))?;
        for some in leaked.chunks(OBJECTS) {
            QueryNodes::ask(panel, node, &json!({ "verb": "reap", "objects": some }))
                .map_err(failed)?;
        }
        let left = wait_for(&*storage.store, &leaked, feed)?;
        done["deleted_objects"] = (leaked.len() - left).into();
        done["handed_over_objects"] = left.into();
    }
    Ok(done)
}

/// How many of these objects are still there when the nodes have had time to delete them.
fn wait_for(
    store: &dyn BlockStore,
    objects: &[ObjectId],
    feed: &ProgressStream<'_>,
) -> Result<usize, Failure> {
    let objects: HashSet<ObjectId> = objects.iter().copied().collect();
    let mut left = objects.len();
    for pause in LOOKS {
        std::thread::sleep(pause);
        left = 0;
        for page in list_all(store) {
            left += page
                .map_err(failed)?
                .objects
                .iter()
                .filter(|info| objects.contains(&info.object))
                .count();
        }
        feed.progress("deleting objects", (objects.len() - left.min(objects.len())) as u64);
        if left == 0 {
            break;
        }
    }
    Ok(left)
}

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::new("gc", why)
}
