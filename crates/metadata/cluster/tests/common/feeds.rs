//! Change feeds in tests of several members.

use kestrel_types::feed::{FeedPage, FeedStart};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Op, XattrFlags};

use super::members::Cluster;

pub const FEED: &[u8] = b"kestrel.feed";

/// Gives a directory a feed.
pub fn record(dir: u64) -> Op {
    let value = b"1d"[..].into();
    Op::SetXattr(InodeRef::by_id(dir), FEED.into(), value, XattrFlags::default())
}

impl Cluster {
    pub fn page(&mut self, dir: u64, from: FeedStart, limit: u32) -> FeedPage {
        match self.ask(1, Op::FeedRead { dir, from, limit }) {
            Ok(Answer::Feed(page)) => *page,
            other => panic!("{other:?}"),
        }
    }

    /// All events after a place, read by pages of so many: what they say, and where to go on.
    pub fn events(
        &mut self,
        dir: u64,
        mut from: FeedStart,
        limit: u32,
    ) -> (Vec<String>, FeedStart) {
        let mut told = Vec::new();
        loop {
            let page = self.page(dir, from, limit);
            assert!(page.events.len() <= limit as usize);
            for (_, event) in &page.events {
                let to = event.to.as_ref().map_or(String::new(), |to| {
                    format!(" -> {}", String::from_utf8_lossy(&to.path))
                });
                let path = String::from_utf8_lossy(&event.path);
                told.push(format!("{} {path}{to}", event.kind.name()));
            }
            from = FeedStart::After(page.feed, page.next);
            if !page.more {
                return (told, from);
            }
        }
    }
}
