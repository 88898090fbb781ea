//! Change feeds: what happened below a directory, in order ([`kestrel_types::feed`]).

use std::sync::Arc;

use kestrel_types::error::FsResult;
use kestrel_types::feed::{FeedPage, FeedStart};
use kestrel_types::ids::InodeId;
use kestrel_types::request::{Answer, Creds, Op};

use super::{Fs, plain, unanswered, unexpected};

impl Fs {
    /// A part of the change feed that a directory is in, of what is below the directory: at most
    /// `limit` events. A reader begins with [`FeedStart::Now`] or [`FeedStart::Oldest`] and goes on
    /// after [`FeedPage::next`], or after the last event that it has dealt with: no event is left
    /// out, and none comes before one that changed the same name earlier.
    ///
    /// # Errors
    /// `EPERM` for anybody but the superuser; `ENODATA` where nothing is recorded; `ESTALE` if the
    /// events after the position are gone, or it is one in another feed; `EOPNOTSUPP` of a volume
    /// that several nodes share; those of the request.
    pub fn feed_page(
        self: &Arc<Self>,
        creds: &Creds,
        dir: InodeId,
        from: FeedStart,
        limit: u32,
    ) -> FsResult<FeedPage> {
        let mut replies = self.replies(creds, vec![Op::FeedRead { dir, from, limit }]);
        match plain(replies.pop().unwrap_or_else(|| Err(unanswered().into())))? {
            Answer::Feed(page) => Ok(*page),
            other => Err(unexpected(&other)),
        }
    }
}
