//! The check of a volume that several nodes share, over the rows of all of them.

use kestrel_admin::check::{Live, Options, ReadData, check};
use kestrel_admin::cluster_view::ClusterView;
use kestrel_admin::cut::Cut;
use kestrel_admin::finding::Finding;
use kestrel_admin::repair::cluster::{self, ClusterRepair};
use kestrel_blockstore::store::BlockStore;
use kestrel_client::volume::scratch_reserve;
use kestrel_daemon::failure::Failure;
use kestrel_daemon::jobs::fsck::{finding_event, readers, summary};
use kestrel_daemon::progress_stream::ProgressStream;
use serde_json::Value;

use super::{FsckArgs, mend};
use crate::at_rest::AtRest;

/// Checks the volume of a cluster of which no node runs, and repairs it if asked.
pub fn at_rest(args: &FsckArgs, feed: &ProgressStream<'_>) -> Result<Value, Failure> {
    let nodes = AtRest::open("fsck", &args.volume, &args.others, &args.store)?;
    let first = nodes.first()?;
    let (dir, store) = (first.dir.clone(), first.store.clone());
    let failed = |why: String| Failure::new("fsck", why);
    if !args.repair {
        let whole = nodes.gather(&mut |done| feed.progress("gathering metadata", done))?;
        return judge(&whole, &*store, args.data, None, feed).map_err(failed);
    }
    Cut::remove_stale(&dir);
    let engines = nodes.engines();
    let volume = ClusterRepair {
        nodes: &engines,
        placement: &nodes.placement,
        scratch: &dir,
        reserve_bytes: scratch_reserve(&dir),
    };
    let done = mend(args, &*store, feed, &mut |options, now, did, left, progress| {
        cluster::repair(&volume, options, now, did, left, progress)
    });
    done.map_err(|why| failed(why.to_string()))
}

/// Checks what has been gathered: of a volume in use if `live` tells of it.
pub fn judge(
    whole: &ClusterView,
    store: &dyn BlockStore,
    data: bool,
    live: Option<Live<'_>>,
    feed: &ProgressStream<'_>,
) -> Result<Value, String> {
    let mut options =
        Options { store: Some(store), is_of_several: true, live, ..Options::default() };
    if data {
        options.data = Some(ReadData { threads: readers(store), go_on: &|| true });
    }
    let mut report = |finding: Finding| feed.event(&finding_event(&finding));
    whole.findings.iter().for_each(|finding| feed.event(&finding_event(finding)));
    let mut totals = check(whole.engine(), &mut options, &mut report, &mut |what, done| {
        feed.progress(what, done);
    })
    .map_err(|why| why.to_string())?;
    whole.count(&mut totals);
    Ok(summary(&totals, 0))
}
