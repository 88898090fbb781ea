//! The collection of a volume that several nodes share.
//!
//! What refers to an object may lie at any node, so the rows of all are gathered, of one moment; if
//! one does not answer, nothing is looked at. Of nodes in use no object is deleted here: it is
//! scheduled with them, and they ask each other whether anybody refers to it or a client may come
//! to, as they do for what files gave up.

use kestrel_client::remote::NodeFanOut;
use kestrel_daemon::failure::Failure;
use kestrel_daemon::jobs::gc::{GcMode, collect as collect_rows, options, served};
use kestrel_daemon::progress_stream::ProgressStream;
use serde_json::Value;

use super::{GcArgs, Target};
use crate::at_rest::{self, AtRest};

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::new("gc", why)
}

/// Collects what several nodes share; `None` if one node has the volume.
pub(super) fn collect(
    args: &GcArgs,
    target: &Target,
    feed: &ProgressStream<'_>,
) -> Result<Option<Value>, Failure> {
    match target {
        Target::Served(url) => {
            if !args.others.is_empty() {
                return Err(Failure::usage(
                    "gc: a URL stands alone: all nodes of a volume that is served are asked",
                ));
            }
            let who = kestrel_daemon::who("kestrel gc");
            let Some(panel) = NodeFanOut::connect(url, &who).map_err(failed)? else {
                return Ok(None);
            };
            let (store, scratch) = (args.store.options(), std::env::temp_dir());
            let how = GcMode { store, grace: args.grace, delete: args.delete, scratch };
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
