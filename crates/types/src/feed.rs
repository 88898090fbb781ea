//! The change feed of a directory: an event for each change of a name below it.
//!
//! A directory with the policy `feed` ([`crate::policy::Policy::feed`]) has a feed of its own: rows
//! of table `feed` (`docs/format.md`, "Change feeds"), written in the batch of the change. An event
//! names its subject by the path that it had then, from the directory of the feed. Events of one
//! name are in the order of the changes.

use crate::clock::Nanos;
use crate::codec::{DecodeError, Reader, put_string, put_varint};
use crate::ids::{InodeId, NodeId};
use crate::inode::Kind;
use crate::key::{Key, Table};

/// Longest path of an event, bytes: that of a name 2,048 directories down.
pub const FEED_PATH_MAX: usize = 2048 * 256;

/// Most events of one page.
pub const FEED_PAGE_MAX: usize = 4096;

/// What happened to a name. Numbers are on disk and in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FeedEventKind {
    /// It was made.
    Create = 1,
    /// It was removed; of a tree that `kestrel rm -r` removed, all of it.
    Remove = 2,
    /// It got another name, with all that is below it, and replaced what had that name.
    Rename = 3,
    /// It and what has the other name have each other's names now.
    Exchange = 4,
    /// It came from elsewhere, with all that is below it, and replaced what had the name: from
    /// outside of the feed's directory, from the trash, or as a clone.
    MovedIn = 5,
    /// It went elsewhere, with all that is below it.
    MovedOut = 6,
    /// The content of a file changed.
    Modify = 7,
    /// Its attributes changed: mode, owner, times, extended attributes, ACLs, flags, policies.
    Attributes = 8,
}

impl FeedEventKind {
    /// All there are.
    pub const ALL: [FeedEventKind; 8] = [
        Self::Create,
        Self::Remove,
        Self::Rename,
        Self::Exchange,
        Self::MovedIn,
        Self::MovedOut,
        Self::Modify,
        Self::Attributes,
    ];

    /// As users see it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Exchange => "exchange",
            Self::MovedIn => "moved-in",
            Self::MovedOut => "moved-out",
            Self::Modify => "modify",
            Self::Attributes => "attributes",
        }
    }

    /// The kind with this number.
    ///
    /// # Errors
    /// If there is none.
    pub fn from_u8(number: u8) -> Result<Self, DecodeError> {
        let found = Self::ALL.into_iter().find(|kind| *kind as u8 == number);
        found.ok_or(DecodeError("unknown kind of a feed's event; use a newer release"))
    }
}

/// The other name of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedTarget {
    /// The name, as a path.
    pub path: Box<[u8]>,
    /// What had it before: inode and type.
    pub before: Option<(InodeId, Kind)>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedEvent {
    /// What happened.
    pub kind: FeedEventKind,
    /// What has the name `path`, or had it before.
    pub ino: InodeId,
    /// Its type.
    pub file: Kind,
    /// The name, as a path; names are joined by `/`.
    pub path: Box<[u8]>,
    /// Of [`FeedEventKind::Rename`] and [`FeedEventKind::Exchange`] alone: the other name.
    pub to: Option<FeedTarget>,
}

/// Bytes of a position.
pub const POSITION_BYTES: usize = 14;

/// Numbers that a node has for its workers: [`FeedPosition::worker`].
const WORKERS_A_NODE: u16 = 32;

/// Position of an event in a feed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedPosition {
    /// Timestamp of the change.
    pub stamp: u64,
    /// The worker that made it: 32 × the number of its node, which is 0 of a volume that is not
    /// shared, + its number there, at most 31.
    pub worker: u16,
    /// Number of the event among those of the batch.
    pub number: u32,
}

impl FeedPosition {
    /// The worker with this number, at the node with that one; 0 of a volume that is not shared.
    pub const fn worker_of(node: NodeId, worker: usize) -> u16 {
        node as u16 * WORKERS_A_NODE + worker as u16 % WORKERS_A_NODE
    }

    /// The node that made the event; 0 if the volume was not shared then.
    pub const fn node(self) -> NodeId {
        (self.worker / WORKERS_A_NODE) as NodeId
    }

    /// The last position with this timestamp.
    pub const fn end_of(stamp: u64) -> Self {
        Self { stamp, worker: u16::MAX, number: u32::MAX }
    }

    /// Its bytes, in keys and messages: they sort as positions do.
    pub fn to_bytes(self) -> [u8; POSITION_BYTES] {
        let mut bytes = [0; POSITION_BYTES];
        bytes[..8].copy_from_slice(&self.stamp.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.worker.to_be_bytes());
        bytes[10..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// Reads what [`FeedPosition::to_bytes`] gave.
    ///
    /// # Errors
    /// If the bytes are truncated.
    pub fn decode_from(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { stamp: reader.u64()?, worker: reader.u16()?, number: reader.u32()? })
    }

    /// When it was, in nanoseconds since 1970.
    pub fn time(self) -> Nanos {
        self.stamp.try_into().unwrap_or(Nanos::MAX)
    }
}

/// A feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedId {
    /// The directory that has it.
    pub dir: InodeId,
    /// Timestamp of its beginning: a directory of another volume with that number has another one,
    /// and a feed that was ended and began again, too.
    pub began: u64,
}

/// Where a reader goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeedStart {
    /// With what comes from now on.
    Now,
    /// With the oldest event that is kept.
    Oldest,
    /// After a position in a feed.
    After(FeedId, FeedPosition),
}

/// A part of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPage {
    /// The feed.
    pub feed: FeedId,
    /// Events, oldest first. Paths begin at the directory that was asked about.
    pub events: Vec<(FeedPosition, FeedEvent)>,
    /// Where to go on.
    pub next: FeedPosition,
    /// There are more already.
    pub more: bool,
}

/// Suffixes of marks of nodes begin with this: events have timestamps below 2^63.
pub const MARKS_OF_NODES: u8 = 0xff;

/// What a row of table `feed` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedRow {
    /// Since when there is a feed of the directory: [`encode_feed_mark`].
    Start,
    /// Up to when a node has removed events, 0 where the volume is not shared:
    /// [`encode_feed_mark`].
    Trimmed(NodeId),
    /// An event: [`FeedEvent::encode`].
    Event(FeedPosition),
}

impl FeedRow {
    /// The row's key in the feed of a directory.
    pub fn key(self, dir: InodeId) -> Key {
        Key::new(Table::Feed, dir, &self.suffix())
    }

    /// Rest of its key. [`FeedRow::Start`] comes first, events come in their order, marks of nodes
    /// after them ([`MARKS_OF_NODES`]).
    pub fn suffix(self) -> Vec<u8> {
        match self {
            Self::Start => Vec::new(),
            Self::Trimmed(0) => vec![0],
            Self::Trimmed(node) => {
                let [high, low] = (node as u16).to_be_bytes();
                vec![MARKS_OF_NODES, high, low]
            }
            Self::Event(position) => position.to_bytes().to_vec(),
        }
    }

    /// The node with the number that an event or a mark bears; 0 if it bears none.
    pub fn node_of(suffix: &[u8]) -> NodeId {
        match Self::of(suffix) {
            Some(Self::Event(position)) => position.node(),
            Some(Self::Trimmed(node)) => node,
            Some(Self::Start) | None => 0,
        }
    }

    /// What the row with this suffix is; `None` if there is no such row.
    pub fn of(suffix: &[u8]) -> Option<Self> {
        match suffix {
            [] => Some(Self::Start),
            [0] => Some(Self::Trimmed(0)),
            [MARKS_OF_NODES, high, low] => {
                let node = NodeId::from(u16::from_be_bytes([*high, *low]));
                Some(Self::Trimmed(node)).filter(|_| node > 0)
            }
            suffix if suffix.len() == POSITION_BYTES => {
                FeedPosition::decode_from(&mut Reader::new(suffix)).ok().map(Self::Event)
            }
            _ => None,
        }
    }
}

/// Version of the encodings in this module.
const VERSION: u8 = 1;

fn versioned(bytes: &[u8]) -> Result<Reader<'_>, DecodeError> {
    let unknown = DecodeError("row of a feed of an unknown format version; use a newer release");
    Reader::versioned(bytes, VERSION, unknown)
}

/// The value of [`FeedRow::Start`] and [`FeedRow::Trimmed`]: a timestamp up to which the feed has
/// no events.
pub fn encode_feed_mark(stamp: u64) -> Box<[u8]> {
    [&[VERSION][..], &stamp.to_be_bytes()].concat().into()
}

/// Reads what [`encode_feed_mark`] wrote.
///
/// # Errors
/// If the bytes are not that, or of a newer version.
pub fn decode_feed_mark(bytes: &[u8]) -> Result<u64, DecodeError> {
    let mut reader = versioned(bytes)?;
    let stamp = reader.u64()?;
    reader.end()?;
    Ok(stamp)
}

impl FeedEventKind {
    /// Whether its events have another name.
    pub const fn has_target(self) -> bool {
        matches!(self, Self::Rename | Self::Exchange)
    }
}

impl FeedEvent {
    /// The row's value.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(self.path.len() + 16);
        out.push(VERSION);
        self.encode_into(&mut out);
        out.into_boxed_slice()
    }

    /// Appends it as rows and messages have it.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.kind as u8, self.file as u8]);
        put_varint(out, self.ino);
        put_string(out, &self.path);
        if let Some(FeedTarget { path, before }) = &self.to {
            put_string(out, path);
            let (ino, kind) = before.map_or((0, 0), |(ino, kind)| (ino, kind as u8));
            put_varint(out, ino);
            out.push(kind);
        }
    }

    /// Reads what [`FeedEvent::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are not that, or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = versioned(bytes)?;
        let event = Self::decode_from(&mut reader)?;
        reader.end()?;
        Ok(event)
    }

    /// Reads what [`FeedEvent::encode_into`] wrote.
    ///
    /// # Errors
    /// If the bytes are not that.
    pub fn decode_from(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const FILE: DecodeError = DecodeError("unknown file type");
        let kind = FeedEventKind::from_u8(reader.u8()?)?;
        let file = Kind::from_u8(reader.u8()?).ok_or(FILE)?;
        let (ino, path) = (reader.varint()?, reader.string(FEED_PATH_MAX)?.into());
        let to = if kind.has_target() {
            let path = reader.string(FEED_PATH_MAX)?.into();
            let before = match (reader.varint()?, reader.u8()?) {
                (0, 0) => None,
                (ino, kind) => Some((ino, Kind::from_u8(kind).ok_or(FILE)?)),
            };
            Some(FeedTarget { path, before })
        } else {
            None
        };
        Ok(Self { kind, ino, file, path, to })
    }

    /// The event as a reader of the directory `dir` of the feed sees it, a path that ends in `/`,
    /// or empty for all of the feed: with paths from there. `None` if it is not about anything
    /// below.
    pub fn below(self, dir: &[u8]) -> Option<Self> {
        if dir.is_empty() {
            return Some(self);
        }
        let cut = |path: &[u8]| path.strip_prefix(dir).map(Box::<[u8]>::from);
        let path = cut(&self.path);
        let Some(FeedTarget { path: other, before }) = self.to else {
            return path.map(|path| Self { path, to: None, ..self });
        };
        match (path, cut(&other)) {
            (Some(path), Some(other)) => {
                Some(Self { path, to: Some(FeedTarget { path: other, before }), ..self })
            }
            // Of an exchange: what had the other name has this one now.
            (Some(path), None) => Some(match before {
                Some((ino, file)) if self.kind == FeedEventKind::Exchange => {
                    Self { kind: FeedEventKind::MovedIn, ino, file, path, to: None }
                }
                _ => Self { kind: FeedEventKind::MovedOut, path, to: None, ..self },
            }),
            (None, Some(path)) => {
                Some(Self { kind: FeedEventKind::MovedIn, path, to: None, ..self })
            }
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use proptest::prelude::*;

    use super::*;

    fn event(kind: FeedEventKind, path: &str, to: Option<&str>) -> FeedEvent {
        let target = |path: &str| FeedTarget {
            path: path.as_bytes().into(),
            before: (kind == FeedEventKind::Exchange).then_some((9, Kind::Dir)),
        };
        let to = to.map(target);
        FeedEvent { kind, ino: 7, file: Kind::File, path: path.as_bytes().into(), to }
    }

    fn any_event() -> impl Strategy<Value = FeedEvent> {
        let path = || prop::collection::vec(any::<u8>(), 1..40);
        let kind = prop::sample::select(FeedEventKind::ALL.to_vec());
        let before = prop::option::of((1u64.., Just(Kind::Symlink)));
        (kind, any::<u64>(), path(), path(), before).prop_map(|(kind, ino, path, to, before)| {
            let to = kind.has_target().then(|| FeedTarget { path: to.into(), before });
            FeedEvent { kind, ino, file: Kind::File, path: path.into(), to }
        })
    }

    proptest! {
        #[test]
        fn event_round_trips(event in any_event()) {
            let bytes = event.encode();
            prop_assert_eq!(FeedEvent::decode(&bytes), Ok(event));
            for cut in 0..bytes.len() {
                prop_assert!(FeedEvent::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn garbage_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (FeedEvent::decode(&bytes), decode_feed_mark(&bytes), FeedRow::of(&bytes));
        }

        /// Keys of events are in the order of their positions, after the two records of a volume
        /// that is not shared, and before those of nodes.
        #[test]
        fn rows_in_order(
            a in (1u64 << 56..1 << 63, 0u32..1024, 0usize..32, any::<u32>()),
            b in (1u64 << 56..1 << 63, 0u32..1024, 0usize..32, any::<u32>()),
            node in 1u32..1024,
        ) {
            let position = |(stamp, node, worker, number)| {
                let worker = FeedPosition::worker_of(node, worker);
                FeedPosition { stamp, worker, number }
            };
            prop_assert_eq!(FeedRow::node_of(&FeedRow::Event(position(a)).suffix()), a.1);
            let (a, b) = (position(a), position(b));
            let (row, other) = (FeedRow::Event(a), FeedRow::Event(b));
            prop_assert_eq!(row.suffix().cmp(&other.suffix()), a.cmp(&b));
            let (trimmed, of_node) = (FeedRow::Trimmed(0), FeedRow::Trimmed(node));
            prop_assert!(FeedRow::Start.suffix() < trimmed.suffix());
            prop_assert!(trimmed.suffix() < row.suffix() && row.suffix() < of_node.suffix());
            prop_assert_eq!(FeedRow::node_of(&of_node.suffix()), node);
            for row in [FeedRow::Start, trimmed, of_node, row] {
                prop_assert_eq!(FeedRow::of(&row.suffix()), Some(row));
            }
        }
    }

    /// A reader further down sees what concerns it: moves over its edge are moves in and out.
    #[test]
    fn events_below_a_directory() {
        use FeedEventKind::{Create, Exchange, MovedIn, MovedOut, Rename};
        let below = |kind, path, to| event(kind, path, to).below(b"a/");
        assert_eq!(below(Create, "a/f", None), Some(event(Create, "f", None)));
        for path in ["b/f", "a", "ab/f"] {
            assert_eq!(below(Create, path, None), None);
        }
        assert_eq!(below(Rename, "a/f", Some("a/d/g")), Some(event(Rename, "f", Some("d/g"))));
        assert_eq!(below(Rename, "a/f", Some("b/g")), Some(event(MovedOut, "f", None)));
        assert_eq!(below(Rename, "b/f", Some("a/g")), Some(event(MovedIn, "g", None)));
        assert_eq!(below(Rename, "b/f", Some("b/g")), None);
        let other = FeedEvent { ino: 9, file: Kind::Dir, ..event(MovedIn, "f", None) };
        assert_eq!(below(Exchange, "a/f", Some("b/g")), Some(other));
        assert_eq!(below(Exchange, "b/f", Some("a/g")), Some(event(MovedIn, "g", None)));
        assert_eq!(event(Create, "x", None).below(b""), Some(event(Create, "x", None)));
    }

    /// Rows of a newer version are refused.
    #[test]
    fn newer_rows_are_refused() {
        let mut bytes = event(FeedEventKind::Create, "f", None).encode();
        bytes[0] = 2;
        assert!(FeedEvent::decode(&bytes).unwrap_err().0.contains("newer"));
        assert_eq!(decode_feed_mark(&encode_feed_mark(77)), Ok(77));
    }
}
