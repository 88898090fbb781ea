//! QuotaList of what counts for an inode: what `statfs` shows. No permission is needed.

use kestrel_types::name::InodeRef;
use kestrel_types::request::Answer;

use crate::stop::Run;
use crate::view::View;

/// Runs the operation.
pub fn list(view: &mut View<'_>, inode: &InodeRef) -> Run<Answer> {
    Ok(Answer::Quotas(view.quotas_above(inode)?))
}
