//! A node over the rows of one moment of a volume that another process writes.
//!
//! It is what a node that reads a snapshot is, but for the present: its rows never change, so what
//! it keeps of them (replica, paths, policies) stays true, and no open is counted. A follower has a
//! new one for each moment that it comes to, which begins with nothing kept, and lets go of the one
//! before when the last request that it was asked has its answer.

use std::sync::Arc;

use kestrel_engine::Engine;
use kestrel_types::clock::Clock;
use kestrel_types::error::FsResult;
use kestrel_types::ids::Position;
use kestrel_types::placement::WORKERS_MAX;
use kestrel_types::snapshot::HISTORY_SHARE;

use super::feeds::read_feeds;
use super::quotas::read_quotas;
use super::snapshots::FixedRows;
use super::start::recorded_shares;
use super::{Node, NodeConfig};
use crate::history::known::KnownSnapshots;
use crate::stop::engine_error;

impl Node {
    /// Opens a moment. The node counts its requests on from where `before` is, the node of an
    /// earlier moment with the same settings.
    ///
    /// # Errors
    /// Those of the engine, and `EIO` for damaged records.
    pub fn open_moment(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        config: &NodeConfig,
        before: Option<&Self>,
    ) -> FsResult<Arc<Self>> {
        let workers = config.workers.clamp(1, WORKERS_MAX);
        let snapshots = KnownSnapshots::read(&*engine, HISTORY_SHARE).map_err(engine_error)?;
        let quotas = read_quotas(&*engine, workers, None)?;
        let feeds = read_feeds(&*engine, workers)?;
        let counters = before.map(|before| before.counters.clone());
        let node = Self::over_fixed_rows(FixedRows {
            below: engine.clone(),
            clock,
            replica_bytes: config.replica_bytes,
            snapshot_replicas: config.replica_bytes,
            workers,
            shares: recorded_shares(&*engine)?,
            engine,
            batch_max: config.batch_max.max(1),
            scan_rows: config.scan_rows.max(1),
            grace: config.grace,
            snapshots: Arc::new(snapshots),
            quotas,
            feeds,
            cluster: None,
            counters: counters.filter(|counters| counters.len() == workers + 3),
        })?;
        Ok(Arc::new(node))
    }

    /// The position of its rows in the log.
    pub fn moment(&self) -> Position {
        self.engine.durable()
    }
}
