//! What a member does when its log fails: nothing any more, until it is started again.
//!
//! A decision that was being written when the log failed may be on disk or not; only a restart,
//! which reads the log, can tell. So the member must not say to anybody that it was made, nor that
//! it was not: participants go on asking, and hear after the restart. The same holds for what was
//! decided and could not be synced. Clients hear `EIO`, as those of a node do that has a volume for
//! itself.
//!
//! A process with a store that others can claim is only one process of its member: another one
//! goes on where it was. So its clients hear nothing, as when it crashes, and ask again.

use kestrel_engine::BatchKind;
use kestrel_meta::ids::counter_row;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::Position;
use kestrel_types::request::Done;

use super::ClusterNode;
use super::work::Back;

impl ClusterNode {
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

    /// A decision could not be committed. `Ok(Err(_))`: it was not made, for sure. `Err(())`:
    /// nobody knows, and the member has stopped.
    pub(super) fn not_decided(&mut self, why: FsError) -> Result<FsResult<Position>, ()> {
        if why.errno != libc::EIO {
            return Ok(Err(why));
        }
        // A log that takes another batch has left nothing of the one that failed; one that may have
        // refuses everything from then on.
        if self.is_taken() {
            return Ok(Err(why));
        }
        self.stop(why);
        Err(())
    }

    /// Whether the log takes a batch that changes nothing.
    fn is_taken(&self) -> bool {
        self.commit(BatchKind::Freeing, vec![counter_row("epoch", self.epoch)]).is_ok()
    }

    /// Whether a store that others can claim has refused something because it is lost to this
    /// start: then the member has stopped. What it cannot do of itself (a batch above the limit) it
    /// fails at, and takes the next one.
    pub(super) fn has_lost_store(&mut self, why: &FsError) -> bool {
        if !self.cluster().is_shared() || why.errno != libc::EIO {
            return false;
        }
        if self.failure.is_none() {
            if self.is_taken() {
                return false;
            }
            self.stop(why.clone());
        }
        true
    }

    /// A request to a member that has stopped.
    pub(super) fn refuse(&mut self, done: Done, why: FsError) {
        if !self.cluster().is_shared() {
            self.finished.push((done, Err(why.into())));
        }
    }

    fn stop(&mut self, why: FsError) {
        if self.cluster().is_shared() {
            log::error!("this node stops: {why}; start it again if nobody serves in its place");
        } else {
            log::error!(
                "this node stops: its log has failed: {why}; check the disk and start it again"
            );
        }
        self.broadcast.clear();
        self.own.clear();
        self.waiting.clear();
        self.fetches.clear();
        self.polls.clear();
        self.walks.clear();
        self.comparisons.clear();
        self.leads.clear();
        self.decisions.clear();
        for (_, work) in std::mem::take(&mut self.works) {
            if let Back::Here(done) = work.back {
                self.refuse(done, why.clone());
            }
        }
        self.snapshots.clear();
        self.clones.clear();
        self.quotas.clear();
        self.coordinator.fail(&why);
        if let Some(counted) = self.counting.take() {
            counted(Err(why.clone()));
        }
        if let Some(reaping) = self.reaping.take() {
            reaping.fail(&why);
        }
        self.failure = Some(why);
        if self.cluster().is_shared() {
            self.give_up_lease(self.now);
        }
        self.tell_finished();
    }
}
