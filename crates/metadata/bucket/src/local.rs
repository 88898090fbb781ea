//! The local log of an engine with a log directory: commits are appended to it, one thread syncs
//! it, and what is synced is uploaded later, in order, by `sender`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_engine::local_log::LocalLog;
use kestrel_engine::{EngineError, Mutation};
use kestrel_types::crash;
use kestrel_types::ids::Position;
use parking_lot::Mutex;

use crate::log_dir::LogDir;
use crate::shared::EngineShared;

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

/// Syncs the local log for all callers that wait, until the engine ends or nothing can be written
/// any more.
pub fn run(shared: &Arc<EngineShared>, local: &Local) {
    while shared.wait_appended(local) {
        match local.log.sync(&shared.before_sync) {
            Ok(position) => {
                crash::point("bucket.local.synced");
                shared.logged(position);
            }
            Err(why) => {
                let dir = local.dir.lock().path().display().to_string();
                return shared.fail(match why {
                    why @ EngineError::Fenced { .. } => why,
                    why => EngineError::Io(format!(
                        "log directory: {dir}: {why}; what was acknowledged is kept: end this \
                         process, see to the disk, and mount again with the same --log-dir"
                    )),
                });
            }
        }
    }
}
