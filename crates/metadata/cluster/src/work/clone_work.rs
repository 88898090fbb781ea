//! A part of a clone that is given to it ([`crate::clones`] takes it on).

use kestrel_meta::node::CloneJob;
use kestrel_meta::rows::TxnRows;

/// A part of a clone that a transaction gives it.
pub(crate) struct CloneWork {
    pub job: CloneJob,
    /// The rows at the snapshot that it needs, once all are here.
    pub then: Option<TxnRows>,
}

impl CloneWork {
    /// What its transaction runs on, if that is here.
    pub fn parts(&self) -> Option<(&CloneJob, &TxnRows)> {
        self.then.as_ref().map(|then| (&self.job, then))
    }
}
