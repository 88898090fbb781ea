//! The change feed of the root: a reader that applies its events has the tree.

use kestrel_model::{FeedMirror, NamesBelow};
use kestrel_types::feed::FeedStart;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::policy::{PolicyField, XATTR_PREFIX};
use kestrel_types::request::{Answer, Op, Outcome, Reply, XattrFlags};

use crate::event_queue::Scene;

/// How long events are kept: longer than a run.
const KEPT: &[u8] = b"24h";

/// A run in which the root may have a feed.
pub(crate) trait FeedScene: Scene {
    /// A call of the superuser, which is judged like those of clients.
    fn observe(&mut self, op: Op) -> Option<Reply>;

    /// The same while something may go wrong: no answer if the client dies.
    fn try_to_observe(&mut self, op: Op) -> Option<Reply> {
        self.observe(op)
    }

    /// A call of the superuser that is not judged.
    fn ask(&mut self, op: Op) -> Option<Reply>;

    /// Most events of the next page.
    fn page_limit(&mut self) -> u32;

    /// The root has a feed from now on.
    fn record_changes(&mut self) {
        let name: Box<[u8]> = [XATTR_PREFIX, PolicyField::Feed.name().as_bytes()].concat().into();
        let root = InodeRef::by_id(ROOT);
        let set = Op::SetXattr(root, name, KEPT.into(), XattrFlags::default());
        match patiently(|| self.try_to_observe(set.clone())) {
            Some(Ok(_)) => {}
            other => self.fail(format!("the root has no feed: {other:?}")),
        }
    }

    /// Applies all events of the root's feed and compares what they make with the tree.
    fn replay_feed(&mut self) {
        let mut mirror = FeedMirror::default();
        let mut from = FeedStart::Oldest;
        loop {
            let limit = self.page_limit();
            let page = match patiently(|| self.ask(Op::FeedRead { dir: ROOT, from, limit })) {
                Some(Ok(Answer::Feed(page))) => page,
                other => return self.fail(format!("the feed cannot be read: {other:?}")),
            };
            for (_, event) in &page.events {
                // Nothing is moved in from beside the root.
                if let Err(why) = mirror.apply(event, &mut |_, _, _| {}) {
                    return self.fail(format!("the feed skips or reorders changes: {why}"));
                }
            }
            from = FeedStart::After(page.feed, page.next);
            if !page.more {
                break;
            }
        }
        let mut names = NamesBelow::new();
        self.names_below(ROOT, b"", &mut names);
        if mirror.names != names {
            let (told, there) = (mirror.names, names);
            self.fail(format!("the feed tells of {told:?}, the tree has {there:?}"));
        }
    }

    /// Adds the paths of all names below a directory.
    fn names_below(&mut self, dir: InodeId, at: &[u8], names: &mut NamesBelow) {
        let list = Op::ReadDir { dir, after: None, limit: 4096, check: false };
        let Some(Ok(Answer::Entries { entries, .. })) = patiently(|| self.ask(list.clone())) else {
            return self.fail(format!("directory {dir} cannot be listed at the end"));
        };
        for entry in entries {
            let path = match at {
                [] => entry.name.as_bytes().to_vec(),
                at => [at, b"/", entry.name.as_bytes()].concat(),
            };
            if entry.kind == Kind::Dir {
                self.names_below(entry.ino, &path, names);
            }
            names.insert(path, entry.ino);
        }
    }
}

/// Asks again if there was no answer, or nodes could not be reached in time.
pub(crate) fn patiently(mut ask: impl FnMut() -> Option<Reply>) -> Option<Reply> {
    for _ in 0..9 {
        match ask() {
            None => {}
            Some(Err(Outcome::Failed(why))) if why.errno == libc::ETIMEDOUT => {}
            reply => return reply,
        }
    }
    ask()
}
