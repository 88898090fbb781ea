//! The thread that syncs the local log, for all callers that wait: group commit. What is synced is
//! uploaded later, in order, by `sender`.

use std::sync::Arc;

use kestrel_engine::EngineError;
use kestrel_types::crash;

use crate::local::Local;
use crate::shared::EngineShared;

/// Runs until the engine ends, or nothing more can be written.
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
