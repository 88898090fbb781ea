//! Questions to all members, and their answers ([`crate::poll`]).

use kestrel_balancer::load_report::LoadReport;
use kestrel_meta::feeds::{FeedPart, FeedQuestion};
use kestrel_meta::node::told::{ChangesPart, ChangesQuestion};
use kestrel_meta::node::{CountedPage, QuotaCount, QuotaPart, ReferencePart, TreePart};
use kestrel_types::clone::CloneId;
use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::key::Key;
use kestrel_types::name::Name;
use kestrel_types::placement::NodeId;
use kestrel_types::quota::QuotaSubject;
use kestrel_types::request::DirEntry;
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::snapshot_changes::{HistoryCursor, SnapshotUsage};

use super::clones::CloneReport;

/// A place in the answer to a question about directories: which of them, and the last directory in
/// it that was told.
pub type TreePosition = (u32, InodeId);

/// A member's part of what decides about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// One of its clients may still come to refer to it.
    Used,
    /// Its shares.
    Part(ReferencePart),
}

/// What members are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollQuestion {
    /// The volume's figures, as far as the member's own shares have them.
    Usage,
    /// Which of these files somebody has open there, or may have.
    Held(Vec<InodeId>),
    /// Of these directories: their figures, unless that is a question for more, and which
    /// directories are in them, after this place.
    Tree(Vec<InodeId>, Option<TreePosition>),
    /// A round of deleting objects begins (`gc`): what the member has to say of each of
    /// them.
    Weigh(u64, Vec<ObjectId>),
    /// Of this round: which of these objects nothing there has come to refer to; they are
    /// condemned.
    Confirm(u64, Vec<ObjectId>),
    /// This round has ended, and these objects are deleted.
    Forget(u64, Vec<ObjectId>),
    /// What entries the node has. A node that has not counted them does not answer yet.
    Entries,
    /// Which of these files are among the next names that the node owns, after this directory and
    /// name.
    Locate(Vec<InodeId>, Option<(InodeId, Name)>),
    /// A part of a change feed.
    Feed(Box<FeedQuestion>),
    /// What removing a snapshot would give back of the history of this node, from a cursor on. The
    /// other nodes have nothing to say.
    Removal(SnapshotId, NodeId, Option<HistoryCursor>),
    /// What the member has counted towards quotas: these, or all.
    Quotas(Option<Vec<QuotaSubject>>),
    /// The directories above those of these that have the member as their home.
    Parents(Vec<InodeId>),
    /// What counts towards quotas in some rows of each of these members, after a row.
    Count(QuotaCount, Vec<(NodeId, Option<Key>)>),
    /// What the member has of clones. Of these no directory lacks names: what is left of them is
    /// done.
    Clones(Vec<CloneId>),
    /// What may differ between two snapshots, or rows of both.
    Changes(Box<ChangesQuestion>),
    /// The same as it was at a snapshot: [`PollQuestion::Tree`] or [`PollQuestion::Locate`].
    At(SnapshotId, Box<PollQuestion>),
}

/// What a member says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollAnswer {
    /// Files, directories, bytes: parts of sums, so below nought too.
    Usage([i64; 3]),
    /// Those of the files that are open, or may be.
    Held(Vec<InodeId>),
    /// What the rows there say of the directories.
    Tree(TreePart),
    /// One for each object asked about.
    Weighed(Vec<Weight>),
    /// Those of the objects that are condemned.
    Confirmed(Vec<ObjectId>),
    /// It is done, durably.
    Done,
    /// Entries, and names.
    Entries(LoadReport),
    /// Files, each with its directory, and the directory and name that were read last; `None` if
    /// all names were.
    Located(Vec<(InodeId, DirEntry)>, Option<(InodeId, Name)>),
    /// What it has of a change feed.
    Feed(Box<FeedPart>),
    /// A part of what removing a snapshot would give back.
    Removal(SnapshotUsage),
    /// What it has counted towards quotas.
    Quotas(Vec<QuotaPart>),
    /// Directories, and those above them.
    Parents(Vec<(InodeId, InodeId)>),
    /// What counts towards quotas in some of its rows.
    Counted(Box<CountedPage>),
    /// What it has of clones.
    Clones(CloneReport),
    /// What it has of two snapshots.
    Changes(Box<ChangesPart>),
    /// It cannot tell, and why.
    Failed(FsError),
    /// There is no such snapshot.
    Gone,
}

impl PollQuestion {
    /// Whether this is an answer to it.
    pub(crate) fn is_answered_by(&self, answer: &PollAnswer) -> bool {
        if let PollQuestion::At(_, question) = self {
            return matches!(answer, PollAnswer::Gone) || question.is_answered_by(answer);
        }
        matches!(
            (self, answer),
            (PollQuestion::Usage, PollAnswer::Usage(_))
                | (PollQuestion::Held(_), PollAnswer::Held(_))
                | (PollQuestion::Tree(..), PollAnswer::Tree(_))
                | (PollQuestion::Weigh(..), PollAnswer::Weighed(_))
                | (PollQuestion::Confirm(..), PollAnswer::Confirmed(_))
                | (PollQuestion::Forget(..), PollAnswer::Done)
                | (PollQuestion::Entries, PollAnswer::Entries(_))
                | (PollQuestion::Locate(..), PollAnswer::Located(..))
                | (PollQuestion::Feed(_), PollAnswer::Feed(_) | PollAnswer::Failed(_))
                | (PollQuestion::Quotas(_), PollAnswer::Quotas(_))
                | (PollQuestion::Clones(_), PollAnswer::Clones(_))
                | (
                    PollQuestion::Changes(_),
                    PollAnswer::Changes(_) | PollAnswer::Gone | PollAnswer::Failed(_)
                )
                | (PollQuestion::Parents(_), PollAnswer::Parents(_) | PollAnswer::Failed(_))
                | (PollQuestion::Count(..), PollAnswer::Counted(_) | PollAnswer::Failed(_))
                | (
                    PollQuestion::Removal(..),
                    PollAnswer::Removal(_)
                        | PollAnswer::Done
                        | PollAnswer::Gone
                        | PollAnswer::Failed(_)
                )
        )
    }
}
