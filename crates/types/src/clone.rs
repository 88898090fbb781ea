//! Clones: directories that get their names when they are first looked at
//! (`docs/design/metadata.md`, "Clones"); their records, and the rows of table `clone`.
//!
//! A directory of a clone that has not been looked at yet is *based*: its inode has the clone's
//! number ([`crate::policy::PolicyRecord::base`]), and a row of table `clone` says which directory
//! at the clone's snapshot its names come from ([`PendingDir`]).

use crate::clock::Nanos;
use crate::codec::{DecodeError, Reader, put_string, put_varint};
use crate::ids::{InodeId, SnapshotId};
use crate::key::{Key, KeyRef, Table, record_number};
use crate::name::{NAME_MAX, Name};

/// Version of the rows of table `clone`, and of records of before.
const VERSION: u8 = 1;

/// What the name of a clone's record began with before the record of its snapshot told of it; its
/// number follows in 16 hexadecimal digits.
pub const RECORD_PREFIX: &[u8] = b"clone ";

/// First byte of the suffix of a row that says where the names of a directory come from.
const PENDING: u8 = 1;

/// First byte of the suffix of a row about a file with several names.
const LINK: u8 = 2;

/// Number of a clone: that of the directory which was made. Never reused within a volume.
pub type CloneId = u64;

/// Most clones that are not finished.
pub const CLONES_MAX: usize = 1024;

/// A clone that is not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloneInfo {
    /// Its number. Programs before version 2 of snapshots' records took its timestamp.
    pub id: CloneId,
    /// Its commit timestamp: that of all that is in it.
    pub stamp: u64,
    /// The directory that was made.
    pub dir: InodeId,
    /// The directory that it is a clone of.
    pub source: InodeId,
    /// The moment that the source is read at.
    pub snapshot: SnapshotId,
    /// When it was made: `ctime` of all that is in it.
    pub created: Nanos,
    /// The user that made it. Set-id bits of files of other users go, unless it is the superuser.
    pub uid: u32,
}

impl CloneInfo {
    /// Its bytes in the record of the snapshot, which says which snapshot that is.
    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        for number in [self.id, self.stamp, self.dir, self.source] {
            put_varint(out, number);
        }
        out.extend_from_slice(&self.created.to_be_bytes());
        put_varint(out, u64::from(self.uid));
    }

    pub(crate) fn decode_from(
        reader: &mut Reader<'_>,
        snapshot: SnapshotId,
    ) -> Result<Self, DecodeError> {
        let (id, stamp) = (reader.varint()?, reader.varint()?);
        let (dir, source) = (reader.varint()?, reader.varint()?);
        if id == 0 {
            return Err(DecodeError("a clone without a number"));
        }
        let (created, uid) = (reader.i64()?, reader.varint32()?);
        Ok(Self { id, stamp, dir, source, snapshot, created, uid })
    }

    /// Key of the record that it had before the record of its snapshot told of it.
    pub fn own_record_key(&self) -> Key {
        Key::of_numbered_record(RECORD_PREFIX, self.id)
    }

    /// Reads such a record; `None` if `suffix`, a name of a record of table `system`, is not that
    /// of a clone's.
    ///
    /// # Errors
    /// If the record is truncated, out of bounds or of a newer version.
    pub fn decode_own_record(suffix: &[u8], row: &[u8]) -> Option<Result<Self, DecodeError>> {
        let digits = suffix.strip_prefix(RECORD_PREFIX)?;
        Some(Self::decode_row(digits, row))
    }

    fn decode_row(digits: &[u8], row: &[u8]) -> Result<Self, DecodeError> {
        let id = record_number(digits).filter(|id| *id != 0);
        let id = id.ok_or(DecodeError("the name of the record has no number"))?;
        let mut reader = versioned(row)?;
        let (dir, source, snapshot) = (reader.varint()?, reader.varint()?, reader.varint()?);
        let (created, uid) = (reader.i64()?, reader.varint32()?);
        reader.end()?;
        Ok(Self { id, stamp: id, dir, source, snapshot, created, uid })
    }
}

/// Where the names of a based directory come from, and which of them it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDir {
    /// The directory that has these names at the clone's snapshot.
    pub source: InodeId,
    /// The last name that it has; `None` if it has none yet.
    pub after: Option<Name>,
    /// The file behind the next name, if a part of its extents has been copied.
    pub file: Option<PartialFile>,
}

/// A new file of which a part of the extents has been copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialFile {
    /// Its number.
    pub ino: InodeId,
    /// The first chunk that has not been copied.
    pub chunk: u64,
}

impl PendingDir {
    /// Key of the row of a directory.
    pub fn key(clone: CloneId, dir: InodeId) -> Key {
        key_of(clone, PENDING, dir)
    }

    /// The row's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.source);
        // No name is empty.
        put_string(&mut out, self.after.as_ref().map_or(&[], Name::as_bytes));
        if let Some(PartialFile { ino, chunk }) = self.file {
            put_varint(&mut out, ino);
            put_varint(&mut out, chunk);
        }
        out.into()
    }

    /// Reads what [`PendingDir::encode`] wrote.
    ///
    /// # Errors
    /// If the row is truncated, out of bounds or of a newer version.
    pub fn decode(row: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = versioned(row)?;
        let source = reader.varint()?;
        let after = match reader.string(NAME_MAX)? {
            [] => None,
            name => Some(Name::new(name).map_err(|_| DecodeError("not a valid name"))?),
        };
        let file = match reader.remaining() {
            0 => None,
            _ => Some(PartialFile { ino: reader.varint()?, chunk: reader.varint()? }),
        };
        reader.end()?;
        Ok(Self { source, after, file })
    }
}

/// What a clone has of a file that had several names at its snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClonedLink {
    /// The new file.
    pub ino: InodeId,
    /// Names that the clone has given it so far.
    pub names: u32,
    /// Names of the old one at the snapshot, those outside of the cloned tree among them.
    pub total: u32,
}

impl ClonedLink {
    /// Key of the row about the file that has the number `old` at the snapshot.
    pub fn key(clone: CloneId, old: InodeId) -> Key {
        key_of(clone, LINK, old)
    }

    /// The row's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.ino);
        put_varint(&mut out, u64::from(self.names));
        put_varint(&mut out, u64::from(self.total));
        out.into()
    }

    /// Reads what [`ClonedLink::encode`] wrote.
    ///
    /// # Errors
    /// If the row is truncated, out of bounds or of a newer version.
    pub fn decode(row: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = versioned(row)?;
        let (ino, names, total) = (reader.varint()?, reader.varint32()?, reader.varint32()?);
        reader.end()?;
        Ok(Self { ino, names, total })
    }
}

/// What a row of table `clone` is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloneRow {
    /// [`PendingDir`] of this directory.
    Pending(InodeId),
    /// [`ClonedLink`] of the file with this number at the snapshot.
    Link(InodeId),
}

impl CloneRow {
    /// What the suffix of a row says; `None` if no such row has it.
    pub fn of(suffix: &[u8]) -> Option<Self> {
        let (kind, number) = suffix.split_first()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        match *kind {
            PENDING => Some(Self::Pending(number)),
            LINK => Some(Self::Link(number)),
            _ => None,
        }
    }
}

/// The rows of a clone's files with several names come after this suffix.
pub fn links_begin() -> [u8; 1] {
    [LINK]
}

fn key_of(clone: CloneId, kind: u8, number: u64) -> Key {
    let mut suffix = [kind; 9];
    suffix[1..].copy_from_slice(&number.to_be_bytes());
    KeyRef::new(Table::Clone, clone, &suffix).to_owned()
}

fn versioned(row: &[u8]) -> Result<Reader<'_>, DecodeError> {
    let unknown = DecodeError("clone of an unknown format version");
    Reader::versioned(row, VERSION, unknown)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// A record of before is read; cut or of another form it is not.
    #[test]
    fn records_of_clones() {
        let info = CloneInfo {
            id: 0x0123_4567_89ab_cdef,
            stamp: 0x0123_4567_89ab_cdef,
            dir: 77,
            source: 1,
            snapshot: 300,
            created: -5,
            uid: 1000,
        };
        let key = info.own_record_key();
        assert_eq!(&*key.suffix, b"clone 0123456789abcdef");
        let row = [&[1, 77, 1, 0xac, 2][..], &(-5i64).to_be_bytes(), &[0xe8, 7]].concat();
        let read = |suffix: &[u8], row: &[u8]| CloneInfo::decode_own_record(suffix, row);
        assert_eq!(read(&key.suffix, &row), Some(Ok(info)));
        assert_eq!(read(b"clock", &row), None);
        for suffix in [&b"clone "[..], b"clone 123", b"clone 0000000000000000"] {
            assert!(read(suffix, &row).is_some_and(|read| read.is_err()));
        }
        for len in 0..row.len() {
            assert!(read(&key.suffix, &row[..len]).is_some_and(|it| it.is_err()));
        }
    }

    /// Rows of table `clone` come back as they were, and their keys say what they are about.
    #[test]
    fn rows_of_clones() {
        let name = Some(Name::new(b"a").unwrap());
        for (after, file) in [
            (None, None),
            (name.clone(), None),
            (None, Some(PartialFile { ino: 300, chunk: 8192 })),
            (name, Some(PartialFile { ino: 20, chunk: 0 })),
        ] {
            let pending = PendingDir { source: 9, after, file };
            let row = pending.encode();
            assert_eq!(PendingDir::decode(&row), Ok(pending.clone()));
            for len in 0..row.len() {
                assert_ne!(PendingDir::decode(&row[..len]), Ok(pending.clone()));
            }
        }
        let link = ClonedLink { ino: 300, names: 2, total: 3 };
        let row = link.encode();
        assert_eq!(ClonedLink::decode(&row), Ok(link));
        assert!((0..row.len()).all(|len| ClonedLink::decode(&row[..len]).is_err()));
        let (pending, link) = (PendingDir::key(7, 20), ClonedLink::key(7, 20));
        assert_eq!(CloneRow::of(&pending.suffix), Some(CloneRow::Pending(20)));
        assert_eq!(CloneRow::of(&link.suffix), Some(CloneRow::Link(20)));
        assert!(pending < link && pending.suffix[..] < links_begin()[..]);
        for suffix in [&b""[..], b"\x01", b"\x03\0\0\0\0\0\0\0\0", b"\x01\0\0\0\0\0\0\0\0\0"] {
            assert_eq!(CloneRow::of(suffix), None);
        }
    }
}
