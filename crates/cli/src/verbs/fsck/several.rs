//! The check of a volume that several nodes share, over the rows of all of them.

use kestrel_admin::check::{Options, ReadData, check};
use kestrel_admin::finding::Finding;
use kestrel_admin::gather::Gathered;
use kestrel_data::store::BlockStore;
use serde_json::Value;

use super::{FsckArgs, finding_event, readers, summary};
use crate::failure::Failure;
use crate::feed::Feed;
use crate::nodes::at_rest::AtRest;

/// Checks the volume of a cluster of which no node runs.
pub fn at_rest(args: &FsckArgs, feed: &Feed<'_>) -> Result<Value, Failure> {
    if args.repair {
        return Err(Failure::usage(
            "fsck: --repair: what several nodes share cannot be repaired yet; restore it from a dump or a backup of all nodes",
        ));
    }
    let nodes = AtRest::open("fsck", &args.volume, &args.others, &args.store)?;
    let whole = nodes.gather(&mut |done| feed.progress("gathering metadata", done))?;
    judge(&whole, &*nodes.first()?.store, args.data, feed).map_err(|why| Failure::new("fsck", why))
}

/// Checks what has been gathered.
pub fn judge(whole: &Gathered, store: &dyn BlockStore, data: bool, feed: &Feed<'_>) -> Result<Value, String> {
    let mut options = Options { store: Some(store), is_of_several: true, ..Options::default() };
    if data {
        options.data = Some(ReadData { threads: readers(store), go_on: &|| true });
    }
    let mut report = |finding: Finding| feed.event(&finding_event(&finding));
    whole.findings.iter().for_each(|finding| feed.event(&finding_event(finding)));
    let mut totals = check(whole.engine(), &mut options, &mut report, &mut |what, done| {
        feed.progress(what, done);
    })
    .map_err(|why| why.to_string())?;
    for finding in &whole.findings {
        *totals.findings.entry(finding.kind).or_default() += 1;
    }
    Ok(summary(&totals, 0))
}
