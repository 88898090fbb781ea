//! How the parts of messages are written and read: integers, strings, lists, and the types that
//! occur everywhere.

use std::borrow::Cow;
use std::sync::Arc;

use super::{GROUPS_MAX, REASON_BYTES_MAX, TooLarge};
use crate::codec::{DecodeError, Reader, put_string, put_varint};
use crate::error::FsError;
use crate::extent::{Extent, Source};
use crate::feed::FeedEvent;
use crate::ids::InodeId;
use crate::inode::{Inode, Kind};
use crate::name::{Dirs, InodeRef, NAME_MAX, Name, PATH_MAX, PathRef};
use crate::perm::{split_umask, with_umask};
use crate::range::Range;
use crate::request::Creds;
use crate::snapshot_changes::{CURSOR_BYTES_MAX, HistoryCursor};

/// Most directories in a [`PathRef`]: a path of [`PATH_MAX`] bytes has no more.
pub(super) const DIRS_MAX: usize = PATH_MAX / 2;

/// Bit above the permission bits: the umask follows.
const HAS_UMASK: u16 = 0x8000;

/// Largest errno value that Linux knows.
const ERRNO_MAX: i32 = 4095;

/// What a message is written into. A limit that is exceeded is remembered; the frame is then not
/// sent.
pub(super) struct WireWriter<'a> {
    out: &'a mut Vec<u8>,
    excess: Option<&'static str>,
}

impl<'a> WireWriter<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, excess: None }
    }

    pub fn finish(self) -> Result<(), TooLarge> {
        self.excess.map_or(Ok(()), |what| Err(TooLarge(what)))
    }

    #[inline]
    pub fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    #[inline]
    pub fn varint(&mut self, value: u64) {
        put_varint(self.out, value);
    }

    #[inline]
    pub fn fixed<const N: usize>(&mut self, bytes: [u8; N]) {
        self.out.extend_from_slice(&bytes);
    }

    /// Permission bits and umask ([`crate::perm::with_umask`]).
    #[inline]
    pub fn made_with(&mut self, made: u32) {
        let (mode, umask) = split_umask(made);
        if umask == 0 {
            return self.fixed(mode.to_be_bytes());
        }
        self.fixed((mode | HAS_UMASK).to_be_bytes());
        self.fixed(umask.to_be_bytes());
    }

    /// Bytes up to the end of the frame.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// A string of any length that fits the frame.
    pub fn string(&mut self, bytes: &[u8]) {
        put_string(self.out, bytes);
    }

    /// A string with a limit of its own.
    pub fn bounded(&mut self, bytes: &[u8], len_max: usize, what: &'static str) {
        self.limit(bytes.len(), len_max, what);
        self.string(bytes);
    }

    /// Count and elements of a list of any length that fits the frame.
    pub fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Self, &T)) {
        self.varint(items.len() as u64);
        items.iter().for_each(|item| put(self, item));
    }

    /// Remembers it if a length is above its limit.
    pub fn limit(&mut self, len: usize, len_max: usize, what: &'static str) {
        if len > len_max {
            self.excess = Some(what);
        }
    }

    pub fn name(&mut self, name: &Name) {
        let bytes = name.as_bytes();
        const { assert!(NAME_MAX <= u8::MAX as usize) };
        self.out.push(bytes.len() as u8);
        self.out.extend_from_slice(bytes);
    }

    pub fn place(&mut self, place: &PathRef) {
        self.varint(place.base);
        self.limit(place.dirs.len(), DIRS_MAX, "the number of directories in a path");
        self.varint(place.dirs.len() as u64);
        self.out.extend_from_slice(place.dirs.as_bytes());
        self.name(&place.name);
    }

    pub fn inode_ref(&mut self, inode: &InodeRef) {
        self.varint(inode.ino);
        self.name_after(inode.seen.as_ref());
    }

    /// A directory and a name in it, if there is one.
    pub fn name_after(&mut self, after: Option<&(InodeId, Name)>) {
        self.u8(u8::from(after.is_some()));
        after.iter().for_each(|(dir, name)| {
            self.varint(*dir);
            self.name(name);
        });
    }

    /// Where a listing by pages goes on, if it does.
    pub fn cursor(&mut self, cursor: Option<&HistoryCursor>) {
        let bytes = cursor.map_or(&[][..], |cursor| &**cursor);
        self.bounded(bytes, CURSOR_BYTES_MAX, "the bytes of a cursor");
    }

    pub fn inode(&mut self, inode: &Inode) {
        inode.encode_into(self.out);
    }

    pub fn feed_event(&mut self, event: &FeedEvent) {
        event.encode_into(self.out);
    }

    pub fn range(&mut self, range: &Range) {
        range.encode_into(self.out);
    }

    pub fn extent(&mut self, extent: &Extent) {
        self.varint(u64::from(extent.pos));
        self.varint(u64::from(extent.len));
        match &extent.source {
            Source::Hole => self.u8(0),
            Source::Stored { range, skip } => {
                self.varint(u64::from(*skip) + 1);
                self.range(range);
            }
        }
    }

    pub fn creds(&mut self, creds: &Creds) {
        self.varint(u64::from(creds.uid));
        self.varint(u64::from(creds.gid));
        match &creds.groups {
            None => self.u8(0),
            Some(groups) => {
                self.limit(groups.len(), GROUPS_MAX, "the number of groups");
                self.varint(groups.len() as u64 + 1);
                groups.iter().for_each(|group| self.varint(u64::from(*group)));
            }
        }
    }

    /// An error. An errno that is none becomes `EIO`; a reason above its limit is cut.
    pub fn error(&mut self, errno: i32, reason: &str) {
        let errno = if (1..=ERRNO_MAX).contains(&errno) { errno } else { libc::EIO };
        self.varint(errno as u64);
        let mut len = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(len) {
            len -= 1;
        }
        self.string(&reason.as_bytes()[..len]);
    }
}

/// Reads one element of a list.
type Take<'a, T> = fn(&mut Reader<'a>) -> Result<T, DecodeError>;

/// A list of at most `count_max` elements of at least `bytes_min` bytes each; memory is taken only
/// for as many as the bytes that are left can hold.
pub(super) fn list<'a, T>(
    reader: &mut Reader<'a>,
    count_max: usize,
    bytes_min: usize,
    take: Take<'a, T>,
) -> Result<Vec<T>, DecodeError> {
    let count = usize::try_from(reader.varint()?).map_err(|_| DecodeError("count too large"))?;
    elements(reader, count, count_max, bytes_min, take)
}

fn elements<'a, T>(
    reader: &mut Reader<'a>,
    count: usize,
    count_max: usize,
    bytes_min: usize,
    take: Take<'a, T>,
) -> Result<Vec<T>, DecodeError> {
    if count > count_max || count > reader.remaining() / bytes_min {
        return Err(DecodeError("count above its limit"));
    }
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(take(reader)?);
    }
    Ok(items)
}

/// Bits of which none but `known` may be set.
pub(super) fn flags(reader: &mut Reader<'_>, known: u8) -> Result<u8, DecodeError> {
    let flags = reader.u8()?;
    if flags & !known == 0 { Ok(flags) } else { Err(DecodeError("unknown flags")) }
}

pub(super) fn boolean(reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
    Ok(flags(reader, 1)? == 1)
}

pub(super) fn size(reader: &mut Reader<'_>) -> Result<usize, DecodeError> {
    usize::try_from(reader.varint()?).map_err(|_| DecodeError("integer too large"))
}

/// Bytes of any length that the frame holds.
pub(super) fn bytes(reader: &mut Reader<'_>) -> Result<Box<[u8]>, DecodeError> {
    Ok(reader.string(usize::MAX)?.into())
}

pub(super) fn text<'a>(reader: &mut Reader<'a>, len_max: usize) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(reader.string(len_max)?).map_err(|_| DecodeError("not UTF-8"))
}

pub(super) fn mode(reader: &mut Reader<'_>) -> Result<u16, DecodeError> {
    let mode = reader.u16()?;
    if mode <= 0o7777 { Ok(mode) } else { Err(DecodeError("mode out of bounds")) }
}

/// Permission bits and umask ([`crate::perm::with_umask`]).
pub(super) fn made_with(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let bits = reader.u16()?;
    let (mode, has_umask) = (bits & !HAS_UMASK, bits & HAS_UMASK != 0);
    let umask = if has_umask { reader.u16()? } else { 0 };
    if mode > 0o7777 || umask > 0o777 || has_umask && umask == 0 {
        return Err(DecodeError("mode out of bounds"));
    }
    Ok(with_umask(mode, umask))
}

pub(super) fn kind(reader: &mut Reader<'_>) -> Result<Kind, DecodeError> {
    Kind::from_u8(reader.u8()?).ok_or(DecodeError("unknown file type"))
}

pub(super) fn name(reader: &mut Reader<'_>) -> Result<Name, DecodeError> {
    let len = usize::from(reader.u8()?);
    Name::new(reader.bytes(len)?).map_err(|_| DecodeError("not a valid name"))
}

pub(super) fn place(reader: &mut Reader<'_>) -> Result<PathRef, DecodeError> {
    let (base, count) = (reader.varint()?, reader.varint32()?);
    if count as usize > DIRS_MAX {
        return Err(DecodeError("count above its limit"));
    }
    Ok(PathRef { base, dirs: Dirs::decode(reader, count)?, name: name(reader)? })
}

pub(super) fn seen(reader: &mut Reader<'_>) -> Result<(InodeId, Name), DecodeError> {
    Ok((reader.varint()?, name(reader)?))
}

pub(super) fn inode_ref(reader: &mut Reader<'_>) -> Result<InodeRef, DecodeError> {
    Ok(InodeRef { ino: reader.varint()?, seen: name_after(reader)? })
}

pub(super) fn name_after(reader: &mut Reader<'_>) -> Result<Option<(InodeId, Name)>, DecodeError> {
    Ok(if boolean(reader)? { Some(seen(reader)?) } else { None })
}

/// What [`WireWriter::cursor`] wrote: an empty one is none.
pub(super) fn cursor(reader: &mut Reader<'_>) -> Result<Option<HistoryCursor>, DecodeError> {
    let bytes = reader.string(CURSOR_BYTES_MAX)?;
    Ok((!bytes.is_empty()).then(|| bytes.into()))
}

pub(super) fn inode(reader: &mut Reader<'_>) -> Result<Box<Inode>, DecodeError> {
    Inode::decode(reader).map(Box::new)
}

pub(super) fn extent(reader: &mut Reader<'_>) -> Result<Extent, DecodeError> {
    let (pos, len) = (reader.varint32()?, reader.varint32()?);
    let source = match reader.varint32()?.checked_sub(1) {
        None => Source::Hole,
        Some(skip) => Source::Stored { range: Range::decode(reader)?, skip },
    };
    let extent = Extent { pos, len, source };
    extent.check().map_err(|_| DecodeError("extent out of bounds"))?;
    Ok(extent)
}

/// A list of extents as long as the frame holds.
pub(super) fn extents(reader: &mut Reader<'_>) -> Result<Vec<Extent>, DecodeError> {
    list(reader, usize::MAX, 3, extent)
}

pub(super) fn creds(reader: &mut Reader<'_>) -> Result<Creds, DecodeError> {
    let (uid, gid) = (reader.varint32()?, reader.varint32()?);
    let groups = match size(reader)?.checked_sub(1) {
        None => None,
        // Needs no memory.
        Some(0) => Some(Arc::default()),
        Some(count) => {
            Some(elements(reader, count, GROUPS_MAX, 1, |reader| reader.varint32())?.into())
        }
    };
    Ok(Creds { uid, gid, groups })
}

pub(super) fn error(reader: &mut Reader<'_>) -> Result<FsError, DecodeError> {
    let errno =
        i32::try_from(reader.varint()?).ok().filter(|errno| (1..=ERRNO_MAX).contains(errno));
    let errno = errno.ok_or(DecodeError("not an errno"))?;
    let reason = match text(reader, REASON_BYTES_MAX)? {
        "" => Cow::Borrowed(""),
        reason => Cow::Owned(reason.to_owned()),
    };
    Ok(FsError { errno, reason })
}
