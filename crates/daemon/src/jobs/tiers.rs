//! Tiers: telling where files' objects are, moving them, asking archives for them.

use std::sync::Arc;

use kestrel_blockstore::store::RestoreSpeed;
use kestrel_client::fs::{Fs, TierAct, TierOptions, TierReport, TierSum};
use kestrel_engine::Engine;
use kestrel_types::tier::Tier;
use serde_json::{Value, json};

use crate::ask::paths;
use crate::nodes::{ClusterNodes, cut};
use crate::progress_stream::ProgressStream;

/// Longest time that an archive is asked to keep an object readable, days.
pub const RESTORE_DAYS_MAX: u64 = 3650;

/// What the serving process is asked to do.
pub struct TierRequest {
    /// The files at or below these paths.
    pub paths: Vec<Vec<u8>>,
    /// What to do.
    pub act: TierAct,
    /// Bytes moved a second; 0: no limit.
    pub bytes_per_second: u64,
}

impl TierRequest {
    /// What a question asks for.
    ///
    /// # Errors
    /// If it names paths that are none, or nothing to do.
    pub fn of(question: &Value) -> Result<Self, String> {
        let act = match question["act"].as_str() {
            Some("status") => TierAct::Status,
            Some("migrate") => TierAct::Migrate { dry_run: question["dry_run"] == true },
            Some("restore") => {
                let days = question["days"].as_u64().filter(|days| *days <= RESTORE_DAYS_MAX);
                let days = days.and_then(|days| u32::try_from(days).ok()).filter(|days| *days > 0);
                let speed = match question["speed"].as_str() {
                    Some("expedited") => RestoreSpeed::Expedited,
                    Some("bulk") => RestoreSpeed::Bulk,
                    Some("standard") | None => RestoreSpeed::Standard,
                    Some(other) => return Err(format!("{other:?} is no speed of a restore")),
                };
                let days = days.ok_or(format!("days are 1 to {RESTORE_DAYS_MAX}"))?;
                TierAct::Restore { days, speed }
            }
            other => return Err(format!("{other:?} is nothing that is done with tiers")),
        };
        Ok(Self {
            paths: match question.get("paths") {
                Some(given) => paths(given)?,
                // The whole volume.
                None => vec![Vec::new()],
            },
            act,
            bytes_per_second: question["bytes_per_second"].as_u64().unwrap_or(0),
        })
    }

    /// Whether it changes anything.
    pub fn changes(&self) -> bool {
        !matches!(self.act, TierAct::Status | TierAct::Migrate { dry_run: true })
    }
}

/// Does it on the volume that has its metadata in this process.
///
/// # Errors
/// In words.
pub fn serve(fs: &Arc<Fs>, wish: &TierRequest, feed: &ProgressStream<'_>) -> Result<Value, String> {
    serve_by(fs, None, wish, feed)
}

/// Does it on the volume that these nodes share, as a client of theirs: by a copy of their
/// metadata, of one moment.
///
/// # Errors
/// In words.
pub fn serve_nodes(
    fs: &Arc<Fs>,
    nodes: &dyn ClusterNodes,
    wish: &TierRequest,
    feed: &ProgressStream<'_>,
) -> Result<Value, String> {
    let mut progress = |rows| feed.progress("fetching metadata", rows);
    let whole = cut::gather(nodes, &std::env::temp_dir(), &mut progress)?;
    serve_by(fs, Some(whole.engine()), wish, feed)
}

fn serve_by(
    fs: &Arc<Fs>,
    rows: Option<&dyn Engine>,
    wish: &TierRequest,
    feed: &ProgressStream<'_>,
) -> Result<Value, String> {
    let listening = feed.listening();
    let go_on = |moved| listening.is_on_after(moved, wish.bytes_per_second);
    let options = TierOptions { rows, paths: &wish.paths, go_on: &go_on };
    let mut dealt = 0;
    let report = fs.tier_files(&options, wish.act, &mut |what, done| {
        dealt += done;
        feed.progress(what, dealt);
    });
    report.map(|report| told(&report)).map_err(|why| why.to_string())
}

fn told(report: &TierReport) -> Value {
    let sum = |sum: &TierSum| json!({ "objects": sum.objects, "bytes": sum.bytes });
    let found = report.found.iter().map(|(tier, found)| {
        let mut row = sum(found);
        row["tier"] = tier.map_or("other", Tier::name).into();
        row
    });
    let moved = report.moved.iter().map(|(tier, moved)| {
        let mut row = sum(moved);
        row["tier"] = tier.name().into();
        row["days_min"] = tier.days_min().into();
        row
    });
    json!({
        "found": found.collect::<Vec<_>>(),
        "archived": sum(&report.archived),
        "restoring": sum(&report.restoring),
        "restored": sum(&report.restored),
        "moved": moved.collect::<Vec<_>>(),
        "stored_again": sum(&report.shared),
        "to_be_restored": sum(&report.unreadable),
        "in_use": sum(&report.in_use),
        "failed": sum(&report.failed),
    })
}
