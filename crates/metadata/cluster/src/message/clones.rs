//! What members say of directories of clones that lack names ([`crate::clones`]).

use kestrel_types::clone::CloneId;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;

/// See the module's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloneMessage {
    /// A request needs the names of this directory, by this placement map. To its home.
    Want {
        /// The directory.
        dir: InodeId,
        /// Version of the sender's placement map.
        table: u64,
    },
    /// Answers, once or more.
    Given {
        /// The directory.
        dir: InodeId,
        /// Names that came into being since the home began.
        names: u64,
        /// It has all names.
        done: bool,
    },
    /// Answers: it cannot get them.
    Failed {
        /// The directory.
        dir: InodeId,
        /// Why.
        why: FsError,
    },
}

/// What a member has of clones that are not finished.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloneReport {
    /// Start of the member.
    pub epoch: u64,
    /// Counts the batches and agreements since, that had rows of clones.
    pub changes: u64,
    /// Clones with directories that lack names, or that are about to come into being.
    pub pending: Vec<CloneId>,
    /// Clones of which it has rows of files with several names.
    pub links: Vec<CloneId>,
}
