//! What all nodes have, for the balancer: a poll that each member answers when its process has
//! counted.

use std::collections::BTreeMap;

use kestrel_balancer::load_report::LoadReport;
use kestrel_meta::owners::MapView;
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::placement::NodeId;

use super::ClusterNode;
use super::poll::{Then, out_of_reach};
use crate::message::polls::{PollAnswer, PollQuestion};

/// Tells what a node has by this table, or begins to count and tells nothing yet. It must not
/// block.
pub type LoadSource = dyn Fn(&MapView) -> Option<LoadReport> + Send + Sync;

/// Hears what all nodes have.
pub type LoadListener = Box<dyn FnOnce(FsResult<Vec<LoadReport>>) + Send>;

impl ClusterNode {
    /// Has `census` asked what the node has. Before that others wait for it in vain.
    pub fn set_census(&mut self, census: Box<LoadSource>) {
        self.census = Some(census);
    }

    /// Asks all members what they have. `done` hears it; `ETIMEDOUT` if a member is away or still
    /// counts, which may answer when it is asked again; `EBUSY` if they are being asked already.
    pub fn count_entries(&mut self, done: LoadListener, now: Nanos) {
        self.at(now);
        if let Some(why) = self.failure() {
            return done(Err(why.clone()));
        }
        if self.counting.is_some() {
            return done(Err(FsError::new(
                libc::EBUSY,
                "metadata: the entries of all nodes are being counted",
            )));
        }
        self.counting = Some(done);
        self.poll(PollQuestion::Entries, Then::Counted);
        self.pump();
    }

    /// All have told what they have, or somebody has not.
    pub(super) fn counted(&mut self, answers: Option<BTreeMap<NodeId, PollAnswer>>) {
        let Some(done) = self.counting.take() else { return };
        let report = |(node, answer)| match answer {
            PollAnswer::Entries(report) => Some(LoadReport { node, ..report }),
            _ => None,
        };
        done(
            answers
                .map(|answers| answers.into_iter().filter_map(report).collect())
                .ok_or_else(out_of_reach),
        );
    }
}
