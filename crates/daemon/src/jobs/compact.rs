//! Compaction: rewriting what is scattered.

use std::sync::Arc;

use kestrel_client::fs::{CompactOptions, Compacted, Fs};
use kestrel_engine::Engine;
use kestrel_types::clock::SECOND;
use serde_json::{Value, json};

use crate::ask::paths;
use crate::nodes::{ClusterNodes, cut};
use crate::progress_stream::ProgressStream;

/// What the serving process is asked to do.
pub struct CompactRequest {
    /// Only files at or below these paths.
    pub paths: Option<Vec<Vec<u8>>>,
    /// Only tell.
    pub dry_run: bool,
    /// Seconds that objects must be old.
    pub grace_seconds: u64,
    /// Bytes a second; 0: no limit.
    pub bytes_per_second: u64,
}

/// Compacts the volume that has its metadata in this process.
///
/// # Errors
/// In words.
pub fn compact(
    fs: &Arc<Fs>,
    wish: &CompactRequest,
    feed: &ProgressStream<'_>,
) -> Result<Value, String> {
    Ok(told(&compact_by(fs, None, wish, feed)?, wish))
}

/// Compacts the volume that these nodes share, as a client of theirs: by copies of their metadata,
/// each of one moment.
///
/// # Errors
/// In words.
pub fn compact_nodes(
    fs: &Arc<Fs>,
    nodes: &dyn ClusterNodes,
    wish: &CompactRequest,
    feed: &ProgressStream<'_>,
) -> Result<Value, String> {
    let mut sum = Compacted::default();
    loop {
        let mut progress = |rows| feed.progress("fetching metadata", rows);
        let whole = cut::gather(nodes, &std::env::temp_dir(), &mut progress)?;
        let done = compact_by(fs, Some(whole.engine()), wish, feed)?;
        sum.sparse_objects += done.sparse_objects;
        sum.unused_bytes += done.unused_bytes;
        sum.deep_chunks += done.deep_chunks;
        sum.stored_bytes += done.stored_bytes;
        sum.moved += done.moved;
        sum.changed += done.changed;
        sum.failed += done.failed;
        sum.folded += done.folded;
        if !done.unfinished {
            return Ok(told(&sum, wish));
        }
    }
}

fn compact_by(
    fs: &Arc<Fs>,
    rows: Option<&dyn Engine>,
    wish: &CompactRequest,
    feed: &ProgressStream<'_>,
) -> Result<Compacted, String> {
    let listening = feed.listening();
    let go_on = |stored| listening.is_on_after(stored, wish.bytes_per_second);
    let options = CompactOptions {
        rows,
        paths: wish.paths.as_deref(),
        grace: i64::try_from(wish.grace_seconds).unwrap_or(i64::MAX).saturating_mul(SECOND),
        dry_run: wish.dry_run,
        is_worth: &|_| true,
        go_on: &go_on,
    };
    fs.compact_volume(&options, &mut |what, done| feed.progress(what, done))
        .map_err(|why| why.to_string())
}

fn told(done: &Compacted, wish: &CompactRequest) -> Value {
    json!({
        "sparse_objects": done.sparse_objects,
        "unused_bytes": done.unused_bytes,
        "deep_chunks": done.deep_chunks,
        "stored_bytes": done.stored_bytes,
        "moved_references": done.moved,
        "changed_references": done.changed,
        "failed": done.failed,
        "folded_windows": done.folded,
        "dry_run": wish.dry_run,
    })
}

impl CompactRequest {
    /// What a question asks for.
    ///
    /// # Errors
    /// If it names paths that are none.
    pub fn of(question: &Value) -> Result<Self, String> {
        let number = |name: &str| question[name].as_u64().unwrap_or(0);
        Ok(Self {
            paths: question.get("paths").map(paths).transpose()?,
            dry_run: question["dry_run"] == true,
            grace_seconds: number("grace_seconds"),
            bytes_per_second: number("bytes_per_second"),
        })
    }
}
