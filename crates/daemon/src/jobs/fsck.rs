//! The check of a volume in use.

use std::path::Path;

use kestrel_admin::check::{Live, Options, ReadData, Totals, check};
use kestrel_admin::cut::Cut;
use kestrel_admin::finding::{Finding, Severity};
use kestrel_blockstore::store::BlockStore;
use kestrel_client::volume::scratch_reserve;
use kestrel_engine::Engine;
use kestrel_engine::cancellable::CancellableScan;
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use kestrel_types::ids::ObjectId;
use serde_json::{Value, json};

use super::gc::GRACE_SECONDS_DEFAULT;
use crate::progress_stream::ProgressStream;

/// Reads of data at a time, from a local disk and from a store over a network.
const READERS_LOCAL: usize = 4;

const READERS_REMOTE: usize = 32;

/// A finding as it is told.
pub fn finding_event(finding: &Finding) -> Value {
    let severity = if finding.kind.severity() == Severity::Error { "error" } else { "info" };
    json!({ "finding": {
        "kind": finding.kind.name(), "severity": severity, "path": finding.path,
        "detail": finding.detail,
        "repairable": finding.fix.is_some(),
    } })
}

/// Threads that read data: on a remote store what takes long is the way.
pub fn readers(store: &dyn BlockStore) -> usize {
    if store.is_remote() { READERS_REMOTE } else { READERS_LOCAL }
}

/// A volume in use, as the process that serves it knows it.
pub struct InUse<'a> {
    /// Its directory.
    pub dir: &'a Path,
    /// Its metadata.
    pub engine: &'a dyn Engine,
    /// Its data.
    pub store: &'a dyn BlockStore,
    /// Whether an object is still being written.
    pub is_open: &'a dyn Fn(ObjectId) -> bool,
}

/// Checks a volume in use, on a cut of its metadata; up to `limit` findings are told, all are
/// counted.
///
/// # Errors
/// In words.
pub fn check_in_use(
    volume: &InUse<'_>,
    data: bool,
    limit: usize,
    feed: &ProgressStream<'_>,
) -> Result<Value, String> {
    let listening = feed.listening();
    let go_on = || listening.go_on();
    Cut::remove_stale(volume.dir);
    // The moment that "young" counts from lies before the cut.
    let now = SystemClock.now();
    let live = CancellableScan::new(volume.engine, &go_on);
    let mut copied = |rows| feed.progress("copying metadata", rows);
    let cut = Cut::take(&live, volume.dir, scratch_reserve(volume.dir), &mut copied)
        .map_err(|why| why.to_string())?;
    let engine = CancellableScan::new(cut.engine(), &go_on);
    let is_on = || listening.is_on();
    let grace = i64::try_from(GRACE_SECONDS_DEFAULT).unwrap_or(i64::MAX).saturating_mul(SECOND);
    let mut options = Options {
        store: Some(volume.store),
        live: Some(Live { engine: volume.engine, now, grace, is_open: volume.is_open }),
        ..Options::default()
    };
    if data {
        options.data = Some(ReadData { threads: readers(volume.store), go_on: &is_on });
    }
    let mut told = 0;
    let mut report = |finding: Finding| {
        if told < limit {
            feed.event(&finding_event(&finding));
        }
        told += 1;
    };
    let totals =
        check(&engine, &mut options, &mut report, &mut |what, done| feed.progress(what, done))
            .map_err(|why| why.to_string())?;
    Ok(summary(&totals, 0))
}

/// The sums of a check as they are told.
pub fn summary(totals: &Totals, repaired: u64) -> Value {
    let counts: serde_json::Map<String, Value> = totals
        .findings
        .iter()
        .map(|(kind, count)| (kind.name().to_string(), (*count).into()))
        .collect();
    json!({
        "clean": totals.errors() == 0,
        "errors": totals.errors(),
        "repaired": repaired,
        "files": totals.files,
        "directories": totals.dirs,
        "bytes": totals.bytes,
        "orphans": totals.orphans,
        "orphan_bytes": totals.orphan_bytes,
        "rows": totals.rows,
        "objects": totals.objects,
        "referenced_bytes": totals.referenced_bytes,
        "stored_objects": totals.stored_objects,
        "stored_bytes": totals.stored_bytes,
        "scheduled_objects": totals.scheduled_objects,
        "leaked_objects": totals.leaked_objects,
        "leaked_bytes": totals.leaked_bytes,
        "verified_bytes": totals.verified_bytes,
        "archived_bytes": totals.archived_bytes,
        "counts": counts,
    })
}
