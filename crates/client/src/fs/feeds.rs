//! Change feeds: what happened below a directory, in order ([`kestrel_types::feed`]).

use std::sync::Arc;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::feed::{FeedPage, FeedStart};
use kestrel_types::ids::InodeId;
use kestrel_types::name::InodeRef;
use kestrel_types::policy::{Policy, PolicyField, XATTR_PREFIX};
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
    /// events after the position are gone, or it is one in another feed; `ETIMEDOUT` if one of
    /// several nodes does not answer; those of the request.
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

    /// Removes expired events that a node in this process has, a batch of them; whether there may
    /// be more.
    pub(super) fn trim_feeds(self: &Arc<Self>) -> FsResult<bool> {
        let now = self.clock.now();
        match (self.node(), self.member()) {
            (Some(node), _) => node.trim_feeds(now, &mut |dir| node.feed_hours(dir)),
            (None, Some(member)) => member.node().trim_feeds(now, &mut |dir| self.feed_hours(dir)),
            (None, None) => Ok(false),
        }
    }

    /// For how many hours a directory's feed is kept; 0 if it has none, or is no more.
    fn feed_hours(self: &Arc<Self>, dir: InodeId) -> FsResult<u16> {
        let name = [XATTR_PREFIX, PolicyField::Feed.name().as_bytes()].concat().into();
        match self.ask_as_root(Op::GetXattr(InodeRef::by_id(dir), name)) {
            Ok(Answer::Bytes(value)) => {
                let mut own = Policy::default();
                let known = own.set(PolicyField::Feed, &value);
                let hours = own.feed.map(|kept| kept.hours()).filter(|_| known);
                hours.ok_or(FsError::new(libc::EIO, "the policy feed cannot be read"))
            }
            Ok(other) => Err(unexpected(&other)),
            Err(FsError { errno: libc::ENODATA | libc::ENOENT | libc::ESTALE, .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }
}
