//! Answers to questions of `kestrel watch`: the act `feed` of [`super::answer`].
//!
//! Further fields: directory; `from`: `now`, `oldest` or a cursor; `limit`. The answer is a page:
//! `{"dir", "events": […], "cursor", "more"}`. An event is `{"cursor", "time", "time_ns", "event",
//! "type", "inode", "path"}`, with `to` and, if something had that name, `replaced` where there are
//! two names. While one of several nodes does not answer, the page has no events, and `unreachable`
//! says so.
//!
//! A cursor is text: `DIRECTORY-BEGINNING-TIMESTAMP-WORKER-NUMBER`, in hexadecimal digits.

use kestrel_types::error::FsError;
use kestrel_types::feed::{FEED_PAGE_MAX, FeedEvent, FeedId, FeedPosition, FeedStart, FeedTarget};
use kestrel_types::ids::InodeId;
use serde_json::{Value, json};

use super::calls::SnapshotCalls;
use super::named::shown_name;
use crate::ask::path_value;
use crate::logger::utc;

/// A position in a feed as text.
pub fn cursor_text(feed: FeedId, position: FeedPosition) -> String {
    let FeedId { dir, began } = feed;
    let FeedPosition { stamp, worker, number } = position;
    format!("{dir:x}-{began:x}-{stamp:x}-{worker:x}-{number:x}")
}

/// Reads what [`cursor_text`] wrote, `now` and `oldest`.
///
/// # Errors
/// In words.
pub fn start_of(text: &str) -> Result<FeedStart, String> {
    match text {
        "now" => return Ok(FeedStart::Now),
        "oldest" => return Ok(FeedStart::Oldest),
        _ => {}
    }
    let wrong =
        || format!("{text:?} is no cursor: give one that kestrel watch printed, `now` or `oldest`");
    let part = |part: &str, digits_max: usize| {
        let is_number = !part.is_empty()
            && part.len() <= digits_max
            && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(part, 16).ok().filter(|_| is_number).ok_or_else(wrong)
    };
    let parts: Vec<&str> = text.split('-').collect();
    let [dir, began, stamp, worker, number] = parts[..] else { return Err(wrong()) };
    let feed = FeedId { dir: part(dir, 16)?, began: part(began, 16)? };
    let position = FeedPosition {
        stamp: part(stamp, 16)?,
        worker: part(worker, 4)?.try_into().map_err(|_| wrong())?,
        number: part(number, 8)?.try_into().map_err(|_| wrong())?,
    };
    Ok(FeedStart::After(feed, position))
}

/// Answers a question.
///
/// # Errors
/// In words.
pub fn answer(calls: &SnapshotCalls<'_>, question: &Value, dir: InodeId) -> Result<Value, String> {
    let from = start_of(question["from"].as_str().ok_or("the question has no cursor")?)?;
    let limit = question["limit"].as_u64().unwrap_or(FEED_PAGE_MAX as u64);
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let page = calls.fs().feed_page(calls.creds(), dir, from, limit);
    if let Err(FsError { errno: libc::ETIMEDOUT, reason }) = &page {
        let unreachable = reason.clone();
        return Ok(json!({
            "dir": dir,
            "events": [],
            "cursor": question["from"],
            "more": false,
            "unreachable": unreachable,
        }));
    }
    let page = page.map_err(|why| too_late(calls, dir, from, why))?;
    let events: Vec<Value> = page
        .events
        .iter()
        .map(|(position, event)| described(page.feed, *position, event))
        .collect();
    Ok(json!({
        "dir": dir,
        "events": events,
        "cursor": cursor_text(page.feed, page.next),
        "more": page.more,
    }))
}

fn described(feed: FeedId, position: FeedPosition, event: &FeedEvent) -> Value {
    let mut value = json!({
        "cursor": cursor_text(feed, position),
        "time": utc(position.time()),
        "time_ns": position.time(),
        "event": event.kind.name(),
        "type": event.file.word(),
        "inode": event.ino,
        "path": path_value(&event.path),
    });
    if let Some(FeedTarget { path, before }) = &event.to {
        value["to"] = path_value(path);
        if let Some((ino, kind)) = before {
            value["replaced"] = json!({ "inode": ino, "type": kind.word() });
        }
    }
    value
}

/// The words of a refusal. A reader that is too late hears by which snapshot it finds out what has
/// changed since.
fn too_late(calls: &SnapshotCalls<'_>, dir: InodeId, from: FeedStart, why: FsError) -> String {
    let FeedStart::After(_, position) = from else { return why.reason.into_owned() };
    if why.errno != libc::ESTALE {
        return why.reason.into_owned();
    }
    let known = calls.list(Some(dir), true).unwrap_or_default();
    let before = known.iter().filter(|one| one.id <= position.stamp && !one.removing);
    let advice = match before.max_by_key(|one| one.id) {
        Some(one) => {
            let name = String::from_utf8_lossy(&shown_name(one, dir)).into_owned();
            format!(
                "`kestrel snapshot diff DIRECTORY {name}` lists what has changed since {}",
                utc(one.created)
            )
        }
        None => "no snapshot is as old as it, so look at the whole directory".into(),
    };
    format!("{}; {advice}, and `--since oldest` goes on after that", why.reason)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// A cursor is read as it was written, and what is no cursor is refused.
    #[test]
    fn cursor_texts() {
        let feed = FeedId { dir: 77, began: 1_795_823_000_000_000_000 };
        let position = FeedPosition { stamp: u64::MAX, worker: u16::MAX, number: u32::MAX };
        let text = cursor_text(feed, position);
        assert_eq!(start_of(&text), Ok(FeedStart::After(feed, position)));
        assert_eq!(start_of("now"), Ok(FeedStart::Now));
        assert_eq!(start_of("oldest"), Ok(FeedStart::Oldest));
        for text in [
            "",
            "1",
            "1-2-3-4",
            "1-2-3-4-5-6",
            "1-2-3-10000-5",
            "1-2-3-4-100000000",
            "1-2-+3-4-5",
            "1-2--4-5",
            "1-2-3-4-G",
            "1-2-3-4-A",
        ] {
            assert!(start_of(text).unwrap_err().contains("no cursor"), "{text}");
        }
    }
}
