//! The entry: the record of one name in one directory.

use crate::codec::{DecodeError, Reader, put_varint};
use crate::ids::InodeId;
use crate::inode::{Inode, InodeFlags, KIND_MASK, Kind};

/// What a name in a directory stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A file with this one name, or a directory: entry and inode are one record.
    Inode(Inode),
    /// One of several names of a file; its inode lies in table `link`.
    Link {
        /// The file.
        ino: InodeId,
        /// Its type.
        kind: Kind,
    },
}

/// First byte of a link reference; an inode's record begins with its version, which stays below
/// this.
const LINK_TAG: u8 = 0x80;

impl Entry {
    /// Inode number behind the name.
    pub fn ino(&self) -> InodeId {
        match self {
            Entry::Inode(inode) => inode.ino,
            Entry::Link { ino, .. } => *ino,
        }
    }

    /// Type of what is behind the name.
    pub fn kind(&self) -> Kind {
        match self {
            Entry::Inode(inode) => inode.kind,
            Entry::Link { kind, .. } => *kind,
        }
    }

    /// The record's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(64);
        match self {
            Entry::Inode(inode) => inode.encode_into(&mut out),
            Entry::Link { ino, kind } => {
                out.extend_from_slice(&[LINK_TAG, *kind as u8]);
                put_varint(&mut out, *ino);
            }
        }
        out.into_boxed_slice()
    }

    /// Reads what [`Entry::encode`] wrote, all of it.
    ///
    /// # Errors
    /// If the bytes are truncated, out of bounds, of a newer version, or too many.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let entry = if bytes.first() == Some(&LINK_TAG) {
            reader.u8()?;
            let kind = Kind::from_u8(reader.u8()?).ok_or(DecodeError("unknown file type"))?;
            Entry::Link { ino: reader.varint()?, kind }
        } else {
            Entry::Inode(Inode::decode(&mut reader)?)
        };
        reader.end()?;
        Ok(entry)
    }

    /// Inode number and type without decoding the rest: what a directory listing needs.
    ///
    /// # Errors
    /// As [`Entry::decode`], as far as it looks.
    pub fn peek(bytes: &[u8]) -> Result<(InodeId, Kind), DecodeError> {
        let mut reader = Reader::new(bytes);
        let tag = reader.u8()?;
        let kind =
            Kind::from_u8(reader.u8()? & KIND_MASK).ok_or(DecodeError("unknown file type"))?;
        if tag != LINK_TAG {
            reader.u8()?;
        }
        Ok((reader.varint()?, kind))
    }

    /// The same record with another inode number, which `number` makes of its own, without decoding
    /// the rest. `None`: the number stays what it is.
    ///
    /// # Errors
    /// As [`Entry::decode`], as far as it looks; those of `number`.
    pub fn renumbered(
        bytes: &[u8],
        number: impl FnOnce(InodeId) -> Result<InodeId, DecodeError>,
    ) -> Result<Option<Vec<u8>>, DecodeError> {
        let mut reader = Reader::new(bytes);
        let head = if reader.u8()? == LINK_TAG { 2 } else { 3 };
        for _ in 1..head {
            reader.u8()?;
        }
        let before = reader.varint()?;
        let after = number(before)?;
        if after == before {
            return Ok(None);
        }
        let rest = reader.rest();
        let mut out = Vec::with_capacity(bytes.len() + 8);
        out.extend_from_slice(&bytes[..head]);
        put_varint(&mut out, after);
        out.extend_from_slice(rest);
        Ok(Some(out))
    }

    /// What decides whether an entry may be removed, without decoding the rest.
    ///
    /// # Errors
    /// As [`Entry::decode`], as far as it looks.
    pub fn peek_removed(bytes: &[u8]) -> Result<RemovedEntry, DecodeError> {
        let (ino, kind) = Self::peek(bytes)?;
        let file = match bytes.first() {
            Some(&LINK_TAG) => None,
            _ => Some(Inode::peek_owner(bytes)?),
        };
        Ok(RemovedEntry { ino, kind, file })
    }
}

/// See [`Entry::peek_removed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedEntry {
    /// Inode number.
    pub ino: InodeId,
    /// Type.
    pub kind: Kind,
    /// Owner, size in bytes and flags; none of a file with its inode in another row.
    pub file: Option<(u32, u64, InodeFlags)>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::compression::Compression;
    use crate::inode::{Data, InodeFlags};
    use crate::policy::{Consistency, Policy};
    use crate::range::Range;
    use crate::tier::Tier;
    use proptest::prelude::*;

    fn data() -> impl Strategy<Value = Data> {
        prop_oneof![
            Just(Data::None),
            Just(Data::Chunked),
            prop::collection::vec(any::<u8>(), 0..200).prop_map(|bytes| Data::Inline(bytes.into())),
            (1u64.., any::<u32>(), 1u32..1 << 24).prop_map(|(object, offset, len)| Data::Packed {
                range: Range { object, offset, len },
                visible: len.div_ceil(2),
            }),
        ]
    }

    prop_compose! {
        pub(crate) fn inode()(ino in 1u64.., kind in 1u8..8, mode in 0u16..0o10000,
            ids in any::<(u32, u32, u32, u32)>(),
            size in 0..=i64::MAX as u64, times in any::<[i64; 4]>(), same in any::<bool>(),
            changes in any::<(u64, u64)>(), data in data(), flags in 0u8..32,
            effective in prop::option::of(prop::sample::select(vec![Consistency::Strict,
                Consistency::CloseToOpen, Consistency::Immutable])),
            compression in prop::option::of(prop::sample::select(vec![Compression::None,
                Compression::Lz4, Compression::Zstd(3)])),
            tier in prop::option::of(prop::sample::select(&Tier::ALL[..])),
            acls in crate::acl::tests::acls()) -> Inode {
            // Most have none.
            let flags = InodeFlags::from_bits(flags).unwrap_or_default();
            let [atime, mtime, ctime, btime] = if same { [times[0]; 4] } else { times };
            Inode { ino, kind: Kind::from_u8(kind).unwrap(), mode, uid: ids.0, gid: ids.1,
                nlink: ids.2, rdev: ids.3,
                size, atime, mtime, ctime, btime, change: changes.0,
                data_change: if same { changes.0 } else { changes.1 }, xattrs: same, flags, acls,
                data,
                effective: Policy { consistency: effective, compression, tier,
                    ..Policy::default() } }
        }
    }

    proptest! {
        #[test]
        fn entries_round_trip(inode in inode()) {
            let entry = Entry::Inode(inode);
            let bytes = entry.encode();
            prop_assert_eq!(Entry::peek(&bytes).unwrap(), (entry.ino(), entry.kind()));
            let removed = Entry::peek_removed(&bytes).unwrap();
            prop_assert_eq!((removed.ino, removed.kind), (entry.ino(), entry.kind()));
            if let Entry::Inode(inode) = &entry {
                prop_assert_eq!(removed.file, Some((inode.uid, inode.size, inode.flags)));
            }
            prop_assert_eq!(Entry::decode(&bytes).unwrap(), entry);
            for len in 0..bytes.len() {
                prop_assert!(Entry::decode(&bytes[..len]).is_err());
            }
        }

        /// A record that gets another number is what it would be if it were written anew.
        #[test]
        fn renumbered_entries(inode in inode(), number in 1u64..) {
            let link = Entry::Link { ino: inode.ino, kind: inode.kind };
            for entry in [Entry::Inode(inode.clone()), link] {
                let before = entry.ino();
                let expected = match entry.clone() {
                    Entry::Inode(inode) => Entry::Inode(Inode { ino: number, ..inode }),
                    Entry::Link { kind, .. } => Entry::Link { ino: number, kind },
                };
                let bytes = entry.encode();
                let found = Entry::renumbered(&bytes, |_| Ok(number)).unwrap();
                let expected = (before != number).then(|| expected.encode().into_vec());
                prop_assert_eq!(found, expected);
                prop_assert_eq!(Entry::renumbered(&bytes, Ok).unwrap(), None);
            }
        }

        #[test]
        fn garbage_is_an_error_not_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Entry::decode(&bytes);
            let _ = Entry::renumbered(&bytes, |number| Ok(number.wrapping_add(1)));
            let _ = Entry::peek(&bytes);
            let _ = Entry::peek_removed(&bytes);
        }
    }

    /// Records of before there were flags are read as ever, and are still what is written where
    /// there are none.
    #[test]
    fn flags_take_a_new_row_version() {
        let mut inode = Inode::new(7, Kind::File, 1, 2);
        let plain = Entry::Inode(inode.clone()).encode();
        inode.flags = InodeFlags::IMMUTABLE.with(InodeFlags::NO_DUMP);
        let flagged = Entry::Inode(inode.clone()).encode();
        assert_eq!((plain[0], flagged[0], flagged.len()), (1, 2, plain.len() + 1));
        assert_eq!(Entry::decode(&flagged), Ok(Entry::Inode(inode)));
        let mut unknown = flagged.clone();
        *unknown.last_mut().unwrap() = 16;
        assert!(Entry::decode(&unknown).is_err());
    }

    #[test]
    fn an_empty_file_takes_little_room() {
        let inode = Inode {
            ino: 10_000_000,
            kind: Kind::File,
            mode: 0o644,
            uid: 1000,
            gid: 1000,
            nlink: 1,
            rdev: 0,
            size: 0,
            atime: 1,
            mtime: 1,
            ctime: 1,
            btime: 1,
            change: 1,
            data_change: 1,
            xattrs: false,
            flags: InodeFlags::default(),
            acls: None,
            data: Data::None,
            effective: Policy::default(),
        };
        assert!(Entry::Inode(inode).encode().len() <= 32);
    }
}
