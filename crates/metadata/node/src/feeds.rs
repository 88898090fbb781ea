//! Change feeds in a node's memory: whether there are any, and which changes are under way; the
//! feed that a directory is in, and pages of it made of the parts that nodes have.
//!
//! Workers commit their batches in any order, but a reader goes on after a timestamp. So a page of
//! a feed ends where no batch with an earlier timestamp is still to come
//! ([`Feeds::complete_to`]). Events get a timestamp when their batch commits, later than those of
//! all that it has read: a name in a directory comes after the directory, whichever worker made
//! that while the batch ran. Of several nodes each has the events of the changes that it made, and
//! a page ends where that is so at all of them ([`merge`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kestrel_engine::Mutation;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::feed::{FeedEvent, FeedId, FeedPage, FeedPosition, FeedRow, FeedStart};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::request::Creds;
use kestrel_types::retention::Retention;

const NOT_ROOT: FsError = FsError::new(
    libc::EPERM,
    "only the superuser reads a change feed: it tells of all that is below the directory",
);

const NO_FEED: FsError = FsError::new(
    libc::ENODATA,
    "no changes are recorded below the directory: kestrel policy set DIRECTORY feed=7d records \
     them",
);

const GONE: FsError = FsError::new(libc::ESTALE, "events after the cursor are not kept any more");

const OTHER_FEED: FsError = FsError::new(
    libc::ESTALE,
    "the cursor is of another feed: of another volume, or of one that has ended (policy feed)",
);

/// Fails unless a caller may read feeds.
///
/// # Errors
/// `EPERM`.
pub const fn check_reader(creds: &Creds) -> FsResult<()> {
    if creds.uid == 0 { Ok(()) } else { Err(NOT_ROOT) }
}

/// The place of a directory in a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPlace {
    /// The directory that has the feed.
    pub feed: InodeId,
    /// The path from there, which ends in `/`; empty for that directory.
    pub path: Box<[u8]>,
}

impl FeedPlace {
    /// Of a directory, by the names between the directory of the feed and it, the last one first.
    pub fn new(feed: InodeId, names: &[Box<[u8]>]) -> Self {
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.extend_from_slice(name);
            path.push(b'/');
        }
        Self { feed, path: path.into() }
    }

    /// The path of a name in the directory.
    pub fn path_of(&self, name: &[u8]) -> Box<[u8]> {
        [&*self.path, name].concat().into()
    }
}

/// What a walk up to a feed asks of a directory.
pub struct DirOnWay {
    /// What its own policy says of feeds.
    pub feed: Option<Retention>,
    /// The directory above it, and its name there; anything of the root.
    pub place: (InodeId, Box<[u8]>),
}

/// The nearest feed that a directory is in, or the one of the directory that `from` names.
///
/// # Errors
/// `ENODATA` if it is in none, `ESTALE` if it is not in that one; those of `look`.
pub fn find_feed<E: From<FsError>>(
    dir: InodeId,
    from: FeedStart,
    mut look: impl FnMut(InodeId) -> Result<DirOnWay, E>,
) -> Result<FeedPlace, E> {
    let wanted = match from {
        FeedStart::After(feed, _) => Some(feed.dir),
        FeedStart::Now | FeedStart::Oldest => None,
    };
    let (mut at, mut names) = (dir, Vec::<Box<[u8]>>::new());
    loop {
        let DirOnWay { feed, place: (parent, name) } = look(at)?;
        let hours = feed.map(|kept| kept.hours());
        if hours.is_some_and(|hours| hours > 0) && wanted.is_none_or(|wanted| wanted == at) {
            return Ok(FeedPlace::new(at, &names));
        }
        if at == ROOT || hours == Some(0) {
            return Err(if wanted.is_some() { OTHER_FEED } else { NO_FEED }.into());
        }
        names.push(name);
        at = parent;
    }
}

/// What a node is asked of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedQuestion {
    /// Events below this directory of the feed are wanted.
    pub place: FeedPlace,
    /// Events after this position.
    pub after: FeedPosition,
    /// Most of them.
    pub limit: u32,
}

impl FeedQuestion {
    /// What a request to read a feed asks for.
    pub fn new(place: FeedPlace, from: FeedStart, limit: u32) -> Self {
        let (after, limit) = match from {
            FeedStart::Now => (FeedPosition::end_of(u64::MAX), 0),
            FeedStart::Oldest => (FeedPosition::default(), limit.max(1)),
            FeedStart::After(_, after) => (after, limit.max(1)),
        };
        Self { place, after, limit }
    }
}

/// What a node has of a feed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedPart {
    /// When the feed began, if this node has that record; 0 else.
    pub began: u64,
    /// Events up to here may have been removed.
    pub trimmed: u64,
    /// No event up to here comes later.
    pub complete: u64,
    /// Events, oldest first: all up to [`FeedPart::complete`], or up to the next.
    pub events: Vec<(FeedPosition, FeedEvent)>,
    /// There are more after this position.
    pub more: Option<FeedPosition>,
}

/// The page of a feed that the parts of all nodes make, for a reader that asked `from` there.
///
/// # Errors
/// `ESTALE` if the reader was in another feed, or events that it has not read were removed.
pub fn merge(
    asked: &FeedQuestion,
    from: FeedStart,
    parts: impl IntoIterator<Item = FeedPart>,
) -> FsResult<FeedPage> {
    let (mut began, mut trimmed, mut end) = (0, 0, FeedPosition::end_of(u64::MAX));
    let (mut events, mut more) = (Vec::new(), false);
    for part in parts {
        (began, trimmed) = (part.began.max(began), part.trimmed.max(trimmed));
        end = end.min(FeedPosition::end_of(part.complete)).min(part.more.unwrap_or(end));
        more |= part.more.is_some();
        events.extend(part.events);
    }
    let feed = FeedId { dir: asked.place.feed, began };
    // Events after this are kept, and of this feed.
    let kept_after = FeedPosition::end_of(began.max(trimmed));
    let after = match from {
        FeedStart::Now | FeedStart::Oldest => kept_after,
        FeedStart::After(of, _) if of != feed => return Err(OTHER_FEED),
        FeedStart::After(_, after) if after < kept_after => return Err(GONE),
        FeedStart::After(_, after) => after,
    };
    // By the clock of another node a change was later than what all are complete up to.
    more |= events.iter().any(|(position, _)| *position > end);
    events.retain(|(position, _)| after < *position && *position <= end);
    events.sort_unstable_by_key(|(position, _)| *position);
    // While rows move to another node, both have some.
    events.dedup_by_key(|(position, _)| *position);
    let limit = asked.limit as usize;
    if events.len() > limit {
        events.truncate(limit);
        more = true;
        end = events.last().map_or(end, |(position, _)| *position);
    }
    Ok(FeedPage { feed, events, next: end.max(after), more })
}

/// Gives rows of events a timestamp; other rows of feeds stay as they are.
pub fn stamp_events(rows: &mut [Mutation], stamp: u64) {
    for row in rows {
        if let Some(FeedRow::Event(position)) = FeedRow::of(&row.key.suffix) {
            row.key = FeedRow::Event(FeedPosition { stamp, ..position }).key(row.key.id);
        }
    }
}

/// No batch is under way.
const IDLE: u64 = u64::MAX;

/// See the module's header.
pub struct Feeds {
    in_use: AtomicBool,
    /// By worker, the exclusive one last: its batch has a timestamp above this.
    under_way: Box<[AtomicU64]>,
}

/// A batch is under way until this is dropped.
pub struct BatchUnderWay<'a>(&'a AtomicU64);

impl Drop for BatchUnderWay<'_> {
    fn drop(&mut self) {
        self.0.store(IDLE, Ordering::Release);
    }
}

impl Feeds {
    /// Of a node with so many workers.
    pub fn new(workers: usize, in_use: bool) -> Self {
        let under_way = (0..=workers).map(|_| AtomicU64::new(IDLE)).collect();
        Self { in_use: AtomicBool::new(in_use), under_way }
    }

    /// Whether a directory of the volume has, or had, a feed.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// A directory gets a feed.
    pub fn set_in_use(&self) {
        self.in_use.store(true, Ordering::Relaxed);
    }

    /// A worker's batch begins: `last` gives the newest timestamp that there is, and the batch gets
    /// a later one.
    #[inline]
    pub fn begin(&self, worker: usize, last: impl Fn() -> u64) -> BatchUnderWay<'_> {
        let slot = &self.under_way[worker];
        // Before the batch gets its timestamp: a reader that knows of a later one looks here after
        // that.
        slot.store(last(), Ordering::SeqCst);
        BatchUnderWay(slot)
    }

    /// The timestamp up to which every batch has ended, `last` at most: what was the newest before
    /// the call.
    pub fn complete_to(&self, last: u64) -> u64 {
        let slots = self.under_way.iter().map(|slot| slot.load(Ordering::SeqCst));
        slots.fold(last, u64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page ends before the batches that are under way.
    #[test]
    fn complete_before_batches_under_way() {
        let feeds = Feeds::new(2, true);
        assert_eq!(feeds.complete_to(10), 10);
        let first = feeds.begin(0, || 10);
        let second = feeds.begin(2, || 11);
        assert_eq!(feeds.complete_to(12), 10);
        drop(first);
        assert_eq!(feeds.complete_to(12), 11);
        drop(second);
        assert_eq!(feeds.complete_to(12), 12);
    }
}
