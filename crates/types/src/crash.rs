//! Named points where tests kill the process, to prove that dying there loses nothing that was
//! acknowledged.
//!
//! `KESTREL_CRASH_AT=name:count` makes the process send itself SIGKILL when it reaches point `name`
//! for the `count`-th time. Unset, a point costs one relaxed load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Every point in the code, for `kestrel crash-points`.
pub const POINTS: &[&str] = &[
    "engine.log.before-append",
    "engine.log.appended",
    "engine.sync.before",
    "engine.sync.after",
    "engine.flush.before-ingest",
    "engine.flush.ingested",
    "engine.flush.checkpointed",
    "bucket.log.before",
    "bucket.log.put",
    "bucket.local.checked",
    "bucket.local.claimed",
    "bucket.local.synced",
    "bucket.flush.tables",
    "bucket.flush.manifest",
    "bucket.ingest.tables",
    "bucket.ingest.manifest",
    "bucket.merge.tables",
    "bucket.merge.manifest",
    "bucket.claim.manifest",
    "bucket.claim.fence",
    "format.begun",
    "format.removed",
    "format.made",
    "format.published",
    "job.log.written",
    "job.named",
    "job.rank.sealed",
    "job.rank.written",
    "job.ranks.merged",
    "job.ranks.replaced",
    "job.ranks.sealed",
    "job.rows-removed",
    "job.sealed",
    "job.servers-gathered",
    "job.servers-sealed",
    "job.written",
    "version.held",
    "version.written",
    "version.named",
    "version.renamed",
    "version.unnamed",
    "version.removed",
    "compact.held",
    "compact.planned",
    "compact.claimed",
    "compact.written",
    "compact.recorded",
    "compact.named",
    "node.commit.before",
    "node.commit.after",
    "data.pack.before-write",
    "data.pack.written",
    "client.flush.stored",
    "client.flush.committed",
    "client.compact.stored",
    "client.repack.stored",
    "client.repack.committed",
    "gateway.replace",
    "gateway.joined",
    "tier.before-copy",
    "tier.copied",
    "tier.linked",
    "descriptor.change.written",
    "descriptor.change.renamed",
    "descriptor.replace.written",
    "descriptor.replace.renamed",
    "gc.before-delete",
    "gc.deleted",
    "cache.fill.before-write",
    "cache.fill.written",
    "cache.evict.cut",
    "cache.whole.written",
    "cache.whole.named",
    "reap.before-delete",
    "reap.deleted",
    "snapshot.record.before",
    "snapshot.record.committed",
    "snapshot.remove.before-step",
    "snapshot.remove.step",
    "snapshot.remove.before-end",
    "snapshot.remove.ended",
    "cut.stopped",
    "cut.before-record",
    "cut.recorded",
    "cut.before-end",
    "cut.ended",
    "clone.record.before",
    "clone.record.committed",
    "clone.names.before",
    "clone.names.committed",
    "clone.dir.before-end",
    "clone.dir.ended",
    "clone.links.before",
    "clone.links.committed",
    "clone.end.before",
    "clone.end.committed",
    "quota.before",
    "quota.committed",
    "quota-set.counted",
    "quota-set.before-record",
    "quota-set.recorded",
    "quota-set.before-end",
    "quota-part.returned",
    "removal.renamed",
    "trash.renamed",
    "removal.step",
];

static ARMED: AtomicBool = AtomicBool::new(false);
static LEFT: AtomicU64 = AtomicU64::new(0);
static POINT: OnceLock<String> = OnceLock::new();

/// Arms the point that the environment names. Call once, before other threads start.
///
/// # Errors
/// If the variable is set but names no point of [`POINTS`] or no count.
pub fn arm_from_environment() -> Result<(), String> {
    let Ok(wish) = std::env::var("KESTREL_CRASH_AT") else { return Ok(()) };
    let (name, count) = wish.split_once(':').unwrap_or((&wish, "1"));
    let count: u64 =
        count.parse().map_err(|_| format!("KESTREL_CRASH_AT={wish}: the count is not a number"))?;
    if !POINTS.contains(&name) {
        return Err(format!(
            "KESTREL_CRASH_AT={wish}: no such point; `kestrel crash-points` lists them"
        ));
    }
    if POINT.set(name.to_string()).is_ok() {
        LEFT.store(count.max(1), Ordering::SeqCst);
        ARMED.store(true, Ordering::SeqCst);
    }
    Ok(())
}

/// Marks a point. Kills the process if it is the armed one and its count is reached.
#[inline]
pub fn point(name: &'static str) {
    if ARMED.load(Ordering::Relaxed) {
        reached(name);
    }
}

#[cold]
fn reached(name: &str) {
    debug_assert!(POINTS.contains(&name), "{name} is missing in POINTS");
    if POINT.get().is_some_and(|point| point == name) && LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        // SAFETY: kill and getpid take no pointers.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
