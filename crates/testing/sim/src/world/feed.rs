//! The change feed of the root: a reader that applies its events has the tree.

use kestrel_model::{FeedMirror, NamesBelow};
use kestrel_types::feed::FeedStart;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::policy::{PolicyField, XATTR_PREFIX};
use kestrel_types::request::{Answer, Op, XattrFlags};

use super::World;
use crate::event_queue::Scene;

/// How long events are kept: longer than a run.
const KEPT: &[u8] = b"24h";

impl World {
    /// The root has a feed from now on.
    pub(super) fn record_changes(&mut self) {
        let name = [XATTR_PREFIX, PolicyField::Feed.name().as_bytes()].concat().into();
        let root = InodeRef::by_id(ROOT);
        let set = self.observe(Op::SetXattr(root, name, KEPT.into(), XattrFlags::default()));
        if !matches!(set, Some(Ok(_))) {
            self.fail(format!("the root has no feed: {set:?}"));
        }
    }

    /// Applies all events of the root's feed and compares what they make with the tree.
    pub(super) fn replay_feed(&mut self) {
        let mut mirror = FeedMirror::default();
        let mut from = FeedStart::Oldest;
        loop {
            let limit = self.prng.between(1, 60) as u32;
            let page = match self.ask(Op::FeedRead { dir: ROOT, from, limit }) {
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
        let Some(Ok(Answer::Entries { entries, .. })) = self.ask(list) else {
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
