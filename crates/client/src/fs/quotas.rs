//! Quotas: those that count for an inode.

use std::sync::Arc;

use kestrel_types::ids::InodeId;
use kestrel_types::quota::QuotaInfo;
use kestrel_types::request::{Answer, Op};

use super::{Caller, Done, Fs, unexpected};

impl Fs {
    /// The quotas of the directories above what is made in a directory, or written to a file, the
    /// nearest first, and that of the volume.
    ///
    /// # Errors
    /// `ESTALE` if the inode is gone.
    pub fn quotas_above(self: &Arc<Self>, ino: InodeId, done: Done<Vec<QuotaInfo>>) {
        let op = Op::QuotaList(Some(self.known.reference(ino)));
        self.ask(Caller::ROOT, op, move |answer| {
            done(answer.and_then(|answer| match answer {
                Answer::Quotas(quotas) => Ok(quotas),
                other => Err(unexpected(&other)),
            }));
        });
    }
}
