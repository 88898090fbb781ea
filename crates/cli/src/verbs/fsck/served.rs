//! The check of a volume that several nodes serve: their rows are fetched as they are at one moment
//! ([`kestrel_daemon::nodes::cut`]) and checked here.

use kestrel_admin::check::Live;
use kestrel_client::remote::NodeFanOut;
use kestrel_daemon::failure::Failure;
use kestrel_daemon::jobs::gc::GRACE_SECONDS_DEFAULT;
use kestrel_daemon::nodes::cut;
use kestrel_daemon::nodes::engine::NodesEngine;
use kestrel_daemon::progress_stream::ProgressStream;
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use serde_json::Value;

use super::{FsckArgs, cluster};

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::new("fsck", why)
}

/// Checks the volume that several nodes serve at a URL; `None` if it has only one.
pub fn check(args: &FsckArgs, feed: &ProgressStream<'_>) -> Result<Option<Value>, Failure> {
    let who = kestrel_daemon::who("kestrel fsck");
    let Some(panel) = NodeFanOut::connect(&args.volume, &who).map_err(failed)? else {
        return Ok(None);
    };
    let storage = panel.open_storage(&args.store.options()).map_err(failed)?;
    // The moment that "young" counts from lies before the cut.
    let now = SystemClock.now();
    let mut progress = |done| feed.progress("fetching metadata", done);
    let whole = cut::gather(&panel, &std::env::temp_dir(), &mut progress).map_err(failed)?;
    let nodes = NodesEngine::new(&panel).map_err(failed)?;
    let grace = i64::try_from(GRACE_SECONDS_DEFAULT).unwrap_or(i64::MAX).saturating_mul(SECOND);
    let live = Live { engine: &nodes, now, grace, is_open: &|_| false };
    cluster::judge(&whole, &*storage.store, args.data, Some(live), feed).map(Some).map_err(failed)
}
