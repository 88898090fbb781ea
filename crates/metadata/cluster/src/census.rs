//! What all nodes have, for the balancer: a poll that each member answers when its process has
//! counted.

use std::collections::BTreeMap;

use kestrel_balancer::report::Report;
use kestrel_meta::owners::MapView;
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::placement::NodeId;

use super::Member;
use super::poll::{Answer, Question, Then, out_of_reach};

/// Tells what a node has by this table, or begins to count and tells nothing yet. It must not
/// block.
pub type Census = dyn Fn(&MapView) -> Option<Report> + Send + Sync;

/// Hears what all nodes have.
pub type Counted = Box<dyn FnOnce(FsResult<Vec<Report>>) + Send>;

impl Member {
    /// Has `census` asked what the node has. Before that others wait for it in vain.
    pub fn set_census(&mut self, census: Box<Census>) {
        self.census = Some(census);
    }

    /// Asks all members what they have. `done` hears it; `ETIMEDOUT` if a member is away or still
    /// counts, which may answer when it is asked again; `EBUSY` if they are being asked already.
    pub fn count_entries(&mut self, done: Counted, now: Nanos) {
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
        self.poll(Question::Entries, Then::Counted);
        self.pump();
    }

    /// All have told what they have, or somebody has not.
    pub(super) fn counted(&mut self, answers: Option<BTreeMap<NodeId, Answer>>) {
        let Some(done) = self.counting.take() else { return };
        let report = |(node, answer)| match answer {
            Answer::Entries(report) => Some(Report { node, ..report }),
            _ => None,
        };
        done(
            answers.map(|answers| answers.into_iter().filter_map(report).collect()).ok_or_else(out_of_reach),
        );
    }
}
