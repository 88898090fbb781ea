//! Change feeds: read, and bounded by time. What is in them [`crate::view`] notes, in the batch of
//! the change.

use std::ops::ControlFlow;

use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::codec::DecodeError;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::feed::{
    FEED_PAGE_MAX, FeedEvent, FeedId, FeedPage, FeedPosition, FeedRow, FeedStart, decode_feed_mark,
    encode_feed_mark,
};
use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::request::{Answer, Creds};

use super::Node;
use crate::feeds::{FeedPlace, Feeds, SEVERAL_NODES};
use crate::stop::engine_error;

/// A page ends at about so many bytes of events.
const PAGE_BYTES: usize = 1 << 20;

/// Most events that are looked at for one page.
const LOOKED_AT_MAX: usize = 64 * 1024;

/// Most events that are removed in one batch.
const TRIM_BATCH: usize = 4096;

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

/// Whether a volume has change feeds, for a node with so many workers.
///
/// # Errors
/// `EOPNOTSUPP` if it has some and several nodes share it; the engine's.
pub fn read_feeds(engine: &dyn Engine, workers: usize, several: bool) -> FsResult<Feeds> {
    let in_use = next_feed(engine, 0)?.is_some();
    if in_use && several {
        return Err(SEVERAL_NODES);
    }
    Ok(Feeds::new(workers, in_use))
}

/// The first directory, from a number on, that has rows of a feed.
fn next_feed(engine: &dyn Engine, from: InodeId) -> FsResult<Option<InodeId>> {
    let mut found = None;
    let from = KeyRef::new(Table::Feed, from, b"");
    let visited = engine.scan_table(Table::Feed, Some(from), &mut |key, _| {
        found = Some(key.id);
        ControlFlow::Break(())
    });
    visited.map_err(engine_error)?;
    Ok(found)
}

fn damaged(feed: InodeId, why: &DecodeError) -> FsError {
    let text = format!("metadata: damaged row of the feed of directory {feed}: {why}");
    FsError::because(libc::EIO, text)
}

/// What a page may still take.
struct PageLimits {
    events: usize,
    bytes: usize,
    looked_at: usize,
}

/// What is in a page: see [`FeedPage`].
struct FeedEvents {
    events: Vec<(FeedPosition, FeedEvent)>,
    next: FeedPosition,
    more: bool,
}

/// Timestamps up to which a feed has no events.
struct FeedMarks {
    /// It was not there; 0 if the row that says so was lost.
    began: u64,
    /// They have been removed.
    trimmed: u64,
}

impl FeedMarks {
    /// Events after this are kept.
    fn kept_after(&self) -> FeedPosition {
        FeedPosition::end_of(self.began.max(self.trimmed))
    }
}

impl Node {
    /// Executes FeedRead. `wait` becomes the position that the answer waits for.
    pub(super) fn read_feed(
        &self,
        creds: &Creds,
        dir: InodeId,
        from: FeedStart,
        limit: u32,
        wait: &mut Position,
    ) -> FsResult<Answer> {
        if creds.uid != 0 {
            return Err(NOT_ROOT);
        }
        if self.core.cluster.is_some() {
            return Err(SEVERAL_NODES);
        }
        let wanted = match from {
            FeedStart::After(feed, _) => Some(feed.dir),
            FeedStart::Now | FeedStart::Oldest => None,
        };
        let place = self.feed_of(dir, wanted, wait)?;
        // Before the events are read: those of batches that end later have later timestamps.
        let (settled, recorded) = self.stamps.settled();
        *wait = recorded.max(*wait);
        let complete = FeedPosition::end_of(self.core.feeds.complete_to(settled));
        let marks = self.feed_marks(place.feed)?;
        let feed = FeedId { dir: place.feed, began: marks.began };
        let after = match from {
            FeedStart::Now => {
                let next = complete.max(marks.kept_after());
                let page = FeedPage { feed, events: Vec::new(), next, more: false };
                return Ok(Answer::Feed(Box::new(page)));
            }
            FeedStart::Oldest => marks.kept_after(),
            FeedStart::After(of, _) if of != feed => return Err(OTHER_FEED),
            FeedStart::After(_, after) => after,
        };
        let limit = usize::try_from(limit).map_or(FEED_PAGE_MAX, |limit| limit.min(FEED_PAGE_MAX));
        let found = self.feed_events(&place, after, complete, limit, wait)?;
        // After the events were read: what was removed meanwhile may be missing among them.
        if after < self.feed_marks(place.feed)?.kept_after() {
            return Err(GONE);
        }
        let FeedEvents { events, next, more } = found;
        Ok(Answer::Feed(Box::new(FeedPage { feed, events, next, more })))
    }

    /// The nearest feed that a directory is in, or the one of the directory `wanted`.
    fn feed_of(
        &self,
        dir: InodeId,
        wanted: Option<InodeId>,
        wait: &mut Position,
    ) -> FsResult<FeedPlace> {
        let (mut at, mut names) = (dir, Vec::<Box<[u8]>>::new());
        loop {
            let removed = FsError::new(libc::ENOENT, "the directory has been removed");
            let dentry = self.dentry_of(at, wait)?.ok_or(removed)?;
            let hours = dentry.policy.own.feed.map(|kept| kept.hours());
            if hours.is_some_and(|hours| hours > 0) && wanted.is_none_or(|wanted| wanted == at) {
                return Ok(FeedPlace::new(at, &names));
            }
            if at == ROOT || hours == Some(0) {
                return Err(if wanted.is_some() { OTHER_FEED } else { NO_FEED });
            }
            let (parent, name) = self.place_of(at, wait)?;
            names.push(name);
            at = parent;
        }
    }

    /// What is known of a feed besides its events.
    fn feed_marks(&self, feed: InodeId) -> FsResult<FeedMarks> {
        let keys = [FeedRow::Start.key(feed), FeedRow::Trimmed.key(feed)];
        let mut marks = [Ok(0), Ok(0)];
        let read = self.engine.get_many(&keys.each_ref().map(Key::borrow), &mut |index, row| {
            if let Some(bytes) = row.value {
                marks[index] = decode_feed_mark(bytes);
            }
        });
        read.map_err(engine_error)?;
        let [began, trimmed] = marks.map(|mark| mark.map_err(|why| damaged(feed, &why)));
        Ok(FeedMarks { began: began?, trimmed: trimmed? })
    }

    fn feed_events(
        &self,
        place: &FeedPlace,
        after: FeedPosition,
        complete: FeedPosition,
        limit: usize,
        wait: &mut Position,
    ) -> FsResult<FeedEvents> {
        let mut left =
            PageLimits { events: limit.max(1), bytes: PAGE_BYTES, looked_at: LOOKED_AT_MAX };
        let (mut events, mut last, mut more, mut failed) = (Vec::new(), after, false, None);
        let suffix = FeedRow::Event(after).suffix();
        let scanned = self.engine.scan(
            Table::Feed,
            place.feed,
            Some(&suffix),
            &mut |suffix, value, changed_at| {
                let Some(FeedRow::Event(position)) = FeedRow::of(suffix) else {
                    return ControlFlow::Continue(());
                };
                if position > complete {
                    return ControlFlow::Break(());
                }
                if left.events == 0 || left.bytes == 0 || left.looked_at == 0 {
                    more = true;
                    return ControlFlow::Break(());
                }
                *wait = changed_at.max(*wait);
                (last, left.looked_at) = (position, left.looked_at - 1);
                match FeedEvent::decode(value) {
                    Ok(event) => {
                        if let Some(event) = event.below(&place.path) {
                            left.events -= 1;
                            left.bytes = left.bytes.saturating_sub(value.len() + 64);
                            events.push((position, event));
                        }
                        ControlFlow::Continue(())
                    }
                    Err(why) => {
                        failed = Some(damaged(place.feed, &why));
                        ControlFlow::Break(())
                    }
                }
            },
        );
        scanned.map_err(engine_error)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let next = if more { last } else { complete.max(after) };
        Ok(FeedEvents { events, next, more })
    }

    /// Removes events that are older than the policies of their directories say, a batch of them;
    /// whether there may be more.
    ///
    /// # Errors
    /// The engine's; a damaged row.
    pub fn trim_feeds(&self, now: Nanos) -> FsResult<bool> {
        if !self.core.feeds.in_use() || self.core.cluster.is_some() {
            return Ok(false);
        }
        let mut from = 0;
        while let Some(feed) = next_feed(&*self.engine, from)? {
            if self.trim_feed(feed, now)? {
                return Ok(true);
            }
            let Some(next) = feed.checked_add(1) else { break };
            from = next;
        }
        Ok(false)
    }

    fn trim_feed(&self, feed: InodeId, now: Nanos) -> FsResult<bool> {
        // Before the policy is read: a feed that begins after that has later events.
        let ended = self.core.feeds.complete_to(self.stamps.settled().0);
        let hours = self.feed_hours(feed)?;
        // Of a feed that has ended all events go.
        let cut = if hours == 0 {
            ended
        } else {
            let since = now.saturating_sub(Nanos::from(hours) * 3600 * SECOND);
            u64::try_from(since).unwrap_or(0)
        };
        let (mut rows, mut last, mut marks) = (Vec::new(), None, Vec::new());
        let scanned = self.engine.scan(Table::Feed, feed, None, &mut |suffix, _, _| {
            match FeedRow::of(suffix) {
                Some(FeedRow::Event(position)) if position.stamp > cut => {
                    return ControlFlow::Break(());
                }
                Some(FeedRow::Event(position)) => last = Some(position.stamp),
                _ => {
                    marks.push(Mutation { key: Key::new(Table::Feed, feed, suffix), value: None });
                    return ControlFlow::Continue(());
                }
            }
            rows.push(Mutation { key: Key::new(Table::Feed, feed, suffix), value: None });
            if rows.len() < TRIM_BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        scanned.map_err(engine_error)?;
        let Some(last) = last else {
            if hours == 0 {
                self.remove_feed_marks(feed, marks)?;
            }
            return Ok(false);
        };
        let more = rows.len() == TRIM_BATCH;
        let value = Some(encode_feed_mark(last));
        rows.push(Mutation { key: FeedRow::Trimmed.key(feed), value });
        self.engine.commit(BatchKind::Freeing, rows).map_err(engine_error)?;
        Ok(more)
    }

    /// Removes what is left of a feed that has ended, unless it has begun again.
    fn remove_feed_marks(&self, feed: InodeId, marks: Vec<Mutation>) -> FsResult<()> {
        let _all = self.hold_all();
        if !marks.is_empty() && self.feed_hours(feed)? == 0 {
            self.engine.commit(BatchKind::Freeing, marks).map_err(engine_error)?;
        }
        Ok(())
    }

    /// How long a directory's feed is kept; 0 if it has none, or is no more.
    fn feed_hours(&self, dir: InodeId) -> FsResult<u16> {
        match self.dentry_of(dir, &mut 0) {
            Ok(Some(dentry)) => Ok(dentry.policy.own.feed.map_or(0, |kept| kept.hours())),
            Ok(None) | Err(FsError { errno: libc::ENOENT, .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }
}
