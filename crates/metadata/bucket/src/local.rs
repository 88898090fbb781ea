//! What an engine with a log directory has beside the others: the log, and batches that wait for
//! their upload.

use std::time::{Duration, Instant};

use kestrel_engine::Mutation;
use kestrel_engine::local_log::LocalLog;
use kestrel_types::ids::Position;
use parking_lot::Mutex;

use crate::log_dir::LogDir;

/// The log, and how far it has come.
pub struct Local {
    pub log: LocalLog,
    pub dir: Mutex<LogDir>,
    /// How old the oldest batch becomes that is not uploaded.
    pub upload_every: Duration,
    /// Above so many bytes that are not uploaded, commits wait.
    pub backlog_max: usize,
}

/// A batch that no log object has yet.
pub struct Queued {
    pub position: Position,
    pub mutations: Vec<Mutation>,
    /// When it was committed, or found when the rows were opened.
    pub at: Instant,
}
