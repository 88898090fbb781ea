//! Change feeds: whether their rows can be read.
//!
//! An event that is lost must not be skipped in silence: where one is removed, the feed is marked
//! as without events up to there, so that readers of before hear that they are too late.

use kestrel_engine::EngineError;
use kestrel_types::codec::DecodeError;
use kestrel_types::feed::{FeedEvent, FeedRow, decode_feed_mark, encode_feed_mark};
use kestrel_types::key::{Key, Table};

use super::{Check, readable};
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::rows::{delete, put};

/// Looks at every row.
pub fn check(check: &mut Check<'_>) -> Result<(), EngineError> {
    let mut damaged: Vec<(Key, DecodeError)> = Vec::new();
    let mut newest: Option<(u64, u64)> = None;
    let mut found = Vec::new();
    for row in check.rows(Table::Feed) {
        let (key, value) = row?;
        check.row("checking change feeds");
        if newest.is_some_and(|(feed, _)| feed != key.id) {
            found.extend(finding(&mut damaged, newest.take()));
        }
        let row = FeedRow::of(&key.suffix);
        let stamp = match row {
            Some(FeedRow::Event(position)) => position.stamp,
            _ => 0,
        };
        newest = Some((key.id, newest.map_or(0, |(_, newest)| newest).max(stamp)));
        if let Err(why) = decode(row, &value) {
            damaged.push((key, why));
        }
    }
    found.extend(finding(&mut damaged, newest));
    found.into_iter().for_each(|finding| check.found(finding));
    Ok(())
}

fn decode(row: Option<FeedRow>, value: &[u8]) -> Result<(), DecodeError> {
    match row.ok_or(DecodeError("a row that no feed has"))? {
        FeedRow::Start | FeedRow::Trimmed(_) => decode_feed_mark(value).map(drop),
        FeedRow::Event(_) => FeedEvent::decode(value).map(drop),
    }
}

/// What is found of a feed, with the timestamp of its newest event.
fn finding(damaged: &mut Vec<(Key, DecodeError)>, feed: Option<(u64, u64)>) -> Option<Finding> {
    let (feed, newest) = feed?;
    let (first, why) = damaged.first()?;
    let what = match FeedRow::of(&first.suffix) {
        Some(FeedRow::Event(position)) => format!("event {position:?}"),
        _ => format!("row {}", readable(&first.suffix)),
    };
    let detail = format!("{} rows, the first: {what}: {why}", damaged.len());
    let path = format!("feed of directory {feed}");
    // A damaged mark may have been later than every event.
    let up_to = damaged.iter().map(|(key, _)| match FeedRow::of(&key.suffix) {
        Some(FeedRow::Event(position)) => position.stamp,
        _ => newest,
    });
    let mark = up_to.max().unwrap_or(newest);
    let mut rows: Vec<_> = damaged.drain(..).map(|(key, _)| delete(&key)).collect();
    rows.push(put(Table::Feed, feed, &FeedRow::Trimmed(0).suffix(), encode_feed_mark(mark)));
    let says = "removed; readers of earlier events hear that they are gone";
    Some(Finding::new(FindingKind::FeedDamaged, path, detail).with(
        Stage::Derived,
        says,
        Act::Rows(rows),
    ))
}
