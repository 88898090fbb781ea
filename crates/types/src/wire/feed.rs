//! Change feeds in requests and answers.

use super::basic::{self, WireWriter};
use crate::codec::{DecodeError, Reader};
use crate::feed::{
    FEED_PAGE_MAX, FeedEvent, FeedId, FeedPage, FeedPosition, FeedStart, POSITION_BYTES,
};

// Where a reader begins.
const NOW: u8 = 0;
const OLDEST: u8 = 1;
const AFTER: u8 = 2;

/// Least bytes of a position and an event: its kind, type and inode, and the length of its path.
const EVENT_BYTES_MIN: usize = POSITION_BYTES + 4;

fn put_feed(feed: FeedId, w: &mut WireWriter<'_>) {
    w.varint(feed.dir);
    w.fixed(feed.began.to_be_bytes());
}

fn feed(r: &mut Reader<'_>) -> Result<FeedId, DecodeError> {
    Ok(FeedId { dir: r.varint()?, began: r.u64()? })
}

pub(super) fn put_start(start: FeedStart, w: &mut WireWriter<'_>) {
    match start {
        FeedStart::Now => w.u8(NOW),
        FeedStart::Oldest => w.u8(OLDEST),
        FeedStart::After(feed, position) => {
            w.u8(AFTER);
            put_feed(feed, w);
            w.fixed(position.to_bytes());
        }
    }
}

pub(super) fn start(r: &mut Reader<'_>) -> Result<FeedStart, DecodeError> {
    match r.u8()? {
        NOW => Ok(FeedStart::Now),
        OLDEST => Ok(FeedStart::Oldest),
        AFTER => Ok(FeedStart::After(feed(r)?, FeedPosition::decode_from(r)?)),
        _ => Err(DecodeError("unknown beginning of a feed")),
    }
}

pub(super) fn put_page(page: &FeedPage, w: &mut WireWriter<'_>) {
    put_feed(page.feed, w);
    w.fixed(page.next.to_bytes());
    w.u8(page.more.into());
    w.list(&page.events, |w, (position, event)| {
        w.fixed(position.to_bytes());
        w.feed_event(event);
    });
}

pub(super) fn page(r: &mut Reader<'_>) -> Result<FeedPage, DecodeError> {
    let (feed, next, more) = (feed(r)?, FeedPosition::decode_from(r)?, basic::boolean(r)?);
    let event =
        |r: &mut Reader<'_>| Ok((FeedPosition::decode_from(r)?, FeedEvent::decode_from(r)?));
    let events = basic::list(r, FEED_PAGE_MAX, EVENT_BYTES_MIN, event)?;
    Ok(FeedPage { feed, events, next, more })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::FeedEventKind;
    use crate::inode::Kind;

    /// A page of the smallest events is read again: the count of a list is held against the bytes
    /// that are left.
    #[test]
    fn smallest_events() {
        let (kind, file) = (FeedEventKind::Modify, Kind::File);
        let event = FeedEvent { kind, ino: 0, file, path: Box::default(), to: None };
        let events = vec![(FeedPosition::default(), event); 3];
        let (feed, next) = (FeedId { dir: 1, began: 1 }, FeedPosition::default());
        let whole = FeedPage { feed, events, next, more: false };
        let mut bytes = Vec::new();
        put_page(&whole, &mut WireWriter::new(&mut bytes));
        assert_eq!(page(&mut Reader::new(&bytes)), Ok(whole));
    }
}
