//! Change feeds: read, and bounded by time. What is in them [`crate::view`] notes, in the batch of
//! the change.
//!
//! Of several nodes each reads what it has ([`Node::feed_part`]), and trims that.

use std::ops::ControlFlow;

use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::codec::DecodeError;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::feed::{
    FEED_PAGE_MAX, FeedEvent, FeedPosition, FeedRow, FeedStart, MARKS_OF_NODES, decode_feed_mark,
    encode_feed_mark,
};
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Creds};

use super::Node;
use crate::feeds::{
    BatchUnderWay, DirOnWay, FeedPart, FeedPlace, FeedQuestion, Feeds, check_reader, find_feed,
    merge, stamp_events,
};
use crate::stop::engine_error;

/// A page ends at about so many bytes of events.
const PAGE_BYTES: usize = 1 << 20;

/// Most events that are looked at for one page.
const LOOKED_AT_MAX: usize = 64 * 1024;

/// Most events that are removed in one batch.
const TRIM_BATCH: usize = 4096;

/// Whether a volume has change feeds, for a node with so many workers.
///
/// # Errors
/// The engine's.
pub fn read_feeds(engine: &dyn Engine, workers: usize) -> FsResult<Feeds> {
    Ok(Feeds::new(workers, next_feed(engine, 0)?.is_some()))
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

/// Marks of a feed: the rows that are no events.
#[derive(Default)]
struct FeedMarks {
    /// The feed was not there up to here; 0 if this node has no record of that.
    began: u64,
    /// Events up to here may have been removed.
    trimmed: u64,
}

impl Node {
    /// The number by which events of this node are known; 0 if it has the volume alone.
    fn feed_node(&self) -> NodeId {
        self.core.cluster.as_ref().map_or(0, |cluster| cluster.me)
    }

    /// Executes FeedRead at a node that has the volume alone. `wait` becomes the position that the
    /// answer waits for.
    pub(super) fn read_feed(
        &self,
        creds: &Creds,
        dir: InodeId,
        from: FeedStart,
        limit: u32,
        wait: &mut Position,
    ) -> FsResult<Answer> {
        check_reader(creds)?;
        let place = find_feed(dir, from, |at| {
            let removed = FsError::new(libc::ENOENT, "the directory has been removed");
            let dentry = self.dentry_of(at, wait)?.ok_or(removed)?;
            FsResult::Ok(DirOnWay { feed: dentry.policy.own.feed, place: self.place_of(at, wait)? })
        })?;
        let asked = FeedQuestion::new(place, from, limit);
        let part = self.feed_part(&asked, LOOKED_AT_MAX, wait)?;
        Ok(Answer::Feed(Box::new(merge(&asked, from, [part])?)))
    }

    /// The feed that a directory is in ([`find_feed`]), if the replica knows all directories on the
    /// way at one moment.
    pub fn known_feed(&self, dir: InodeId, from: FeedStart) -> Option<FsResult<FeedPlace>> {
        let (replica, before) = (&self.core.replica, self.dir_changes()?);
        let found = find_feed(dir, from, |at| {
            let known = replica.get(at).zip(replica.place(at));
            let ((dentry, _), place) = known.ok_or(None)?;
            Ok::<_, Option<FsError>>(DirOnWay { feed: dentry.policy.own.feed, place })
        });
        let found = match found {
            Ok(place) => Ok(place),
            Err(why) => Err(why?),
        };
        (self.dir_changes() == Some(before)).then_some(found)
    }

    /// What this node has of a feed. At most `looked_at` events are looked at. `wait` becomes the
    /// position that it waits for.
    ///
    /// # Errors
    /// The engine's; `EIO` for a damaged row.
    pub fn feed_part(
        &self,
        asked: &FeedQuestion,
        looked_at: usize,
        wait: &mut Position,
    ) -> FsResult<FeedPart> {
        if self.core.cluster.is_some() {
            // Of several nodes one that changes nothing must not hold up what the others tell.
            self.raise_ceiling()?;
        }
        // Before the events are read: those of batches that end later have later timestamps.
        let (settled, recorded) = self.stamps.settled();
        *wait = recorded.max(*wait);
        let complete = self.core.feeds.complete_to(settled);
        let mut part = FeedPart { complete, ..FeedPart::default() };
        if asked.limit > 0 {
            let limit = (asked.limit as usize).min(FEED_PAGE_MAX);
            let limits = PageLimits { events: limit, bytes: PAGE_BYTES, looked_at };
            self.feed_events(asked, limits, &mut part, wait)?;
        }
        // After the events were read: what was removed meanwhile may be missing among them.
        let FeedMarks { began, trimmed } = self.feed_marks(asked.place.feed)?;
        Ok(FeedPart { began, trimmed, ..part })
    }

    /// Reads the rows of a feed that are no events: they lie before the events and after them.
    fn visit_feed_marks(&self, feed: InodeId, visit: &mut dyn FnMut(Key, &[u8])) -> FsResult<()> {
        let keys = [FeedRow::Start.key(feed), FeedRow::Trimmed(0).key(feed)];
        let read = self.engine.get_many(&keys.each_ref().map(Key::borrow), &mut |index, row| {
            row.value.into_iter().for_each(|value| visit(keys[index].clone(), value));
        });
        read.map_err(engine_error)?;
        let from = [MARKS_OF_NODES];
        let scanned = self.engine.scan(Table::Feed, feed, Some(&from), &mut |suffix, value, _| {
            visit(Key::new(Table::Feed, feed, suffix), value);
            ControlFlow::Continue(())
        });
        scanned.map(drop).map_err(engine_error)
    }

    /// What is known of a feed besides its events.
    fn feed_marks(&self, feed: InodeId) -> FsResult<FeedMarks> {
        let (mut marks, mut failed) = (FeedMarks::default(), None);
        self.visit_feed_marks(feed, &mut |key, value| match decode_feed_mark(value) {
            Ok(stamp) => match FeedRow::of(&key.suffix) {
                Some(FeedRow::Start) => marks.began = stamp,
                Some(FeedRow::Trimmed(_)) => marks.trimmed = stamp.max(marks.trimmed),
                Some(FeedRow::Event(_)) | None => {}
            },
            Err(why) => failed = Some(damaged(feed, &why)),
        })?;
        failed.map_or(Ok(marks), Err)
    }

    /// Adds the events to a part.
    fn feed_events(
        &self,
        asked: &FeedQuestion,
        mut left: PageLimits,
        part: &mut FeedPart,
        wait: &mut Position,
    ) -> FsResult<()> {
        let FeedQuestion { place, after, .. } = asked;
        let (complete, mut last, mut failed) = (FeedPosition::end_of(part.complete), *after, None);
        let suffix = FeedRow::Event(*after).suffix();
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
                    part.more = Some(last);
                    return ControlFlow::Break(());
                }
                *wait = changed_at.max(*wait);
                (last, left.looked_at) = (position, left.looked_at - 1);
                match FeedEvent::decode(value) {
                    Ok(event) => {
                        if let Some(event) = event.below(&place.path) {
                            left.events -= 1;
                            left.bytes = left.bytes.saturating_sub(value.len() + 64);
                            part.events.push((position, event));
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
        failed.map_or(Ok(()), Err)
    }

    /// Removes events that are older than the policies of their directories say, a batch of them;
    /// whether there may be more. `hours_of` says for how many hours a directory's feed is kept: 0
    /// if it has none, or is no more.
    ///
    /// # Errors
    /// The engine's; a damaged row; those of `hours_of`.
    pub fn trim_feeds(
        &self,
        now: Nanos,
        hours_of: &mut dyn FnMut(InodeId) -> FsResult<u16>,
    ) -> FsResult<bool> {
        let may_have = match &self.core.cluster {
            None => self.core.feeds.in_use(),
            // Rows that leave stay as they are until they have left.
            Some(cluster) => cluster.table().leaving.is_none() && cluster.may_answer(),
        };
        if !may_have {
            return Ok(false);
        }
        let mut from = 0;
        while let Some(feed) = next_feed(&*self.engine, from)? {
            if self.trim_feed(feed, now, hours_of)? {
                return Ok(true);
            }
            let Some(next) = feed.checked_add(1) else { break };
            from = next;
        }
        Ok(false)
    }

    fn trim_feed(
        &self,
        feed: InodeId,
        now: Nanos,
        hours_of: &mut dyn FnMut(InodeId) -> FsResult<u16>,
    ) -> FsResult<bool> {
        // Before the policy is read: a feed that begins after that has later events, and another
        // mark of its beginning.
        let ended = self.core.feeds.complete_to(self.stamps.settled().0);
        let marks = self.feed_mark_rows(feed)?;
        let hours = hours_of(feed)?;
        // Of a feed that has ended all events go.
        let cut = if hours == 0 {
            ended
        } else {
            let since = now.saturating_sub(Nanos::from(hours) * 3600 * SECOND);
            u64::try_from(since).unwrap_or(0)
        };
        let (mut rows, mut last) = (Vec::new(), None);
        let scanned = self.engine.scan(Table::Feed, feed, None, &mut |suffix, _, _| {
            match FeedRow::of(suffix) {
                Some(FeedRow::Event(position)) if position.stamp > cut => {
                    return ControlFlow::Break(());
                }
                Some(FeedRow::Event(position)) if self.owns_feed_row(feed, suffix) => {
                    last = Some(position.stamp);
                }
                _ => return ControlFlow::Continue(()),
            }
            rows.push(Mutation { key: Key::new(Table::Feed, feed, suffix), value: None });
            if rows.len() < TRIM_BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        scanned.map_err(engine_error)?;
        let Some(last) = last else {
            if hours == 0 {
                self.remove_feed_marks(&marks)?;
            }
            return Ok(false);
        };
        let more = rows.len() == TRIM_BATCH;
        let value = Some(encode_feed_mark(last));
        rows.push(Mutation { key: FeedRow::Trimmed(self.feed_node()).key(feed), value });
        self.engine.commit(BatchKind::Freeing, rows).map_err(engine_error)?;
        Ok(more)
    }

    /// Whether a row of a feed is this node's.
    fn owns_feed_row(&self, feed: InodeId, suffix: &[u8]) -> bool {
        let cluster = self.core.cluster.as_ref();
        cluster.is_none_or(|cluster| cluster.table().owns(Table::Feed, feed, suffix))
    }

    /// This node's marks of a feed, as rows.
    fn feed_mark_rows(&self, feed: InodeId) -> FsResult<Vec<Mutation>> {
        let mut marks = Vec::new();
        self.visit_feed_marks(feed, &mut |key, value| {
            if self.owns_feed_row(feed, &key.suffix) {
                marks.push(Mutation { key, value: Some(value.into()) });
            }
        })?;
        Ok(marks)
    }

    /// Removes what is left of a feed that has ended, unless it has begun again since these marks
    /// were read.
    fn remove_feed_marks(&self, marks: &[Mutation]) -> FsResult<()> {
        if marks.is_empty() {
            return Ok(());
        }
        let _all = self.hold_all();
        let keys: Vec<KeyRef<'_>> = marks.iter().map(|mark| mark.key.borrow()).collect();
        let mut is_same = true;
        let read = self.engine.get_many(&keys, &mut |index, row| {
            is_same &= row.value == marks[index].value.as_deref();
        });
        read.map_err(engine_error)?;
        if is_same {
            let gone = marks.iter().map(|mark| Mutation { key: mark.key.clone(), value: None });
            self.engine.commit(BatchKind::Freeing, gone.collect()).map_err(engine_error)?;
        }
        Ok(())
    }

    /// For how many hours a directory's feed is kept, at a node that has the volume alone; 0 if it
    /// has none, or is no more.
    ///
    /// # Errors
    /// The engine's; a damaged row.
    pub fn feed_hours(&self, dir: InodeId) -> FsResult<u16> {
        match self.dentry_of(dir, &mut 0) {
            Ok(Some(dentry)) => Ok(dentry.policy.own.feed.map_or(0, |kept| kept.hours())),
            Ok(None) | Err(FsError { errno: libc::ENOENT, .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// A transaction is about to be decided, with every worker's state held: until the guard is
    /// dropped, feeds are complete up to now only.
    pub fn begin_decision(&self) -> BatchUnderWay<'_> {
        self.core.feeds.begin(self.core.workers, || self.stamps.last())
    }

    /// Gives events that a transaction has noted a new timestamp: that of its decision, which is
    /// above what every participant has issued.
    ///
    /// # Errors
    /// The engine's.
    pub fn stamp_feed_events(&self, events: &mut [Mutation]) -> FsResult<()> {
        if events.is_empty() {
            return Ok(());
        }
        let stamp = self.stamps.tick(&*self.engine, self.clock.now()).map_err(engine_error)?;
        stamp_events(events, stamp);
        Ok(())
    }
}
