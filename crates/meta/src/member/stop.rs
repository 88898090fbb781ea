//! What a member does when its log fails: nothing any more, until it is started again.
//!
//! A decision that was being written when the log failed may be on disk or not; only a restart, which reads the log, can tell. So the
//! member must not say to anybody that it was made, nor that it was not: lenders go on asking, and hear after the restart. The same holds for
//! what was decided and could not be synced. Clients hear `EIO`, as those of a node do that has a volume for itself.

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::Position;

use super::Member;
use super::work::Back;
use crate::engine::BatchKind;
use crate::ids::counter_row;

impl Member {
    /// Why it has stopped, if it has: its process must end and be started again.
    pub fn failure(&self) -> Option<&FsError> {
        self.failure.as_ref()
    }

    /// Notices what the log could not make durable. Whether the member goes on.
    pub(super) fn is_sound(&mut self) -> bool {
        let failed = self.sync_failure.lock().take();
        if let Some(why) = failed {
            self.stop(why);
        }
        self.failure.is_none()
    }

    /// A decision could not be committed. `Ok(Err(_))`: it was not made, for sure. `Err(())`: nobody knows, and the member has stopped.
    pub(super) fn not_decided(&mut self, why: FsError) -> Result<FsResult<Position>, ()> {
        if why.errno != libc::EIO {
            return Ok(Err(why));
        }
        // A log that takes another batch has left nothing of the one that failed; one that may have refuses everything from then on.
        match self.commit(BatchKind::Freeing, vec![counter_row("epoch", self.epoch)]) {
            Ok(_) => Ok(Err(why)),
            Err(_) => {
                self.stop(why);
                Err(())
            }
        }
    }

    fn stop(&mut self, why: FsError) {
        log::error!("this node stops: its log has failed: {why}; check the disk and start it again");
        self.own.clear();
        self.waiting.clear();
        self.fetches.clear();
        self.polls.clear();
        self.walks.clear();
        self.leads.clear();
        self.decisions.clear();
        for (_, work) in std::mem::take(&mut self.works) {
            if let Back::Here(done) = work.back {
                self.finished.push((done, Err(why.clone().into())));
            }
        }
        self.coordinator.fail(&why);
        if let Some(reaping) = self.reaping.take() {
            reaping.fail(&why);
        }
        self.failure = Some(why);
        self.tell_finished();
    }
}
