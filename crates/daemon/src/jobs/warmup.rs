//! Warming up: bringing files near before they are needed.

use kestrel_admin::warmup::{self, Act};
use kestrel_blockstore::store::BlockStore;
use kestrel_engine::Engine;
use kestrel_engine::cancellable::CancellableScan;
use serde_json::{Value, json};

use crate::ask::paths;
use crate::progress_stream::ProgressStream;

/// What the serving process is asked to do.
pub struct WarmupRequest {
    /// Paths from the root on.
    pub paths: Vec<Vec<u8>>,
    /// What to do with file data, if anything.
    pub data: Option<Act>,
    /// Read rows.
    pub metadata: bool,
    /// Threads.
    pub threads: usize,
}

impl WarmupRequest {
    /// What a question asks for.
    ///
    /// # Errors
    /// If it names no paths.
    pub fn of(question: &Value) -> Result<Self, String> {
        Ok(Self {
            paths: paths(&question["paths"])?,
            data: match question["act"].as_str() {
                Some("fill") => Some(Act::Fill),
                Some("check") => Some(Act::Check),
                Some("evict") => Some(Act::Evict),
                _ => None,
            },
            metadata: question["metadata"] == true,
            threads: usize::try_from(question["threads"].as_u64().unwrap_or(1)).unwrap_or(1),
        })
    }
}

/// Warms up.
///
/// # Errors
/// In words.
pub fn warm(
    engine: &dyn Engine,
    store: &dyn BlockStore,
    wish: &WarmupRequest,
    feed: &ProgressStream<'_>,
) -> Result<Value, String> {
    let listening = feed.listening();
    let (go_on, is_on) = (|| listening.go_on(), || listening.is_on());
    let engine = CancellableScan::new(engine, &go_on);
    let data = match (wish.data, store.near()) {
        (Some(act), Some(near)) => Some((act, near)),
        (Some(_), None) => {
            return Err(
                "the mount has no cache directory to warm up; mount the volume with --cache-dir"
                    .into(),
            );
        }
        (None, _) => None,
    };
    let options = warmup::Options {
        paths: &wish.paths,
        data,
        metadata: wish.metadata,
        threads: wish.threads,
        go_on: &is_on,
    };
    let mut tell = |files: u64, bytes: u64| {
        // One figure that only grows, whatever is warmed up.
        if wish.data.is_some() {
            feed.progress("bytes", bytes)
        } else {
            feed.progress("files", files)
        }
    };
    let done = warmup::run(&engine, &options, &mut tell).map_err(|why| why.to_string())?;
    for failure in &done.failures {
        feed.event(&json!({ "failure": failure }));
    }
    Ok(json!({
        "files": done.files,
        "bytes": done.bytes,
        "cached_bytes": done.cached_bytes,
        "evicted_bytes": done.evicted_bytes,
        "metadata_rows": done.rows,
        "missing_paths": done.missing,
        "failed": done.failed,
        "unfinished": done.unfinished,
    }))
}
