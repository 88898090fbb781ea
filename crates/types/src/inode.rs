//! The inode: attributes of a file or directory and where its bytes are.

use std::sync::Arc;

use crate::acl::{ACLS_BYTES_MAX, Acls};
use crate::clock::{Nanos, SECOND};
use crate::codec::{DecodeError, Reader, put_string, put_varint};
use crate::ids::InodeId;
use crate::policy::{Policy, PolicyRecord, RECORD_BYTES_MAX};
use crate::range::Range;

/// Largest inline content, bytes: the upper bound of the volume setting.
pub const INLINE_MAX: usize = 16 * 1024;

/// Largest file, bytes (8 EiB − 1, as `off_t` allows).
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// Bytes of a chunk of a large file.
pub const CHUNK_BYTES: u64 = 64 * 1024 * 1024;

/// Number of the chunk that holds file offset `offset`; chunk numbers fit 38 bits.
pub const fn chunk_of(offset: u64) -> u64 {
    offset / CHUNK_BYTES
}

/// Type of a file. Numbers are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Regular file.
    File = 1,
    /// Directory.
    Dir = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// Character device.
    Char = 5,
    /// Block device.
    Block = 6,
    /// Unix-domain socket.
    Socket = 7,
}

impl Kind {
    /// The kind with this number.
    pub fn from_u8(number: u8) -> Option<Kind> {
        use Kind::*;
        [File, Dir, Symlink, Fifo, Char, Block, Socket]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }

    /// Its name in what verbs print for programs, as `kestrel ls --json`.
    pub fn word(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Dir => "directory",
            Kind::Symlink => "symlink",
            Kind::Fifo => "fifo",
            Kind::Char => "char",
            Kind::Block => "block",
            Kind::Socket => "socket",
        }
    }

    /// The `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        match self {
            Kind::File => libc::S_IFREG,
            Kind::Dir => libc::S_IFDIR,
            Kind::Symlink => libc::S_IFLNK,
            Kind::Fifo => libc::S_IFIFO,
            Kind::Char => libc::S_IFCHR,
            Kind::Block => libc::S_IFBLK,
            Kind::Socket => libc::S_IFSOCK,
        }
    }

    /// The kind that `st_mode` names.
    pub fn from_mode(mode: u32) -> Option<Kind> {
        use Kind::*;
        [File, Dir, Symlink, Fifo, Char, Block, Socket]
            .into_iter()
            .find(|kind| kind.mode_bits() == mode & libc::S_IFMT)
    }

    /// The `d_type` of a directory entry.
    pub fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// Where a file's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Nowhere: empty, or one hole as long as the size; also directories and special files.
    None,
    /// In the record itself (small files, targets of symbolic links). Bytes beyond it up to the
    /// size are a hole. Of a directory: its [`PolicyRecord`].
    Inline(Box<[u8]>),
    /// The first `visible` bytes of one stored range. Bytes beyond it up to the size are a hole.
    Packed {
        /// The stored bytes.
        range: Range,
        /// Logical bytes of the range that are still part of the file, 1 to `range.len`.
        visible: u32,
    },
    /// In table `chunk`, one row of extents for each chunk that has any.
    Chunked,
}

/// Flags of a file or directory, as `chattr(1)` sets them. Numbers are on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct InodeFlags(u8);

impl InodeFlags {
    /// Nothing of it changes: content, attributes, names (`chattr +i`).
    pub const IMMUTABLE: InodeFlags = InodeFlags(1);
    /// A file is only appended to, a directory only gets new names (`chattr +a`).
    pub const APPEND: InodeFlags = InodeFlags(2);
    /// `dump(8)` leaves it out (`chattr +d`). Means nothing here; new files and directories have it
    /// from their directory.
    pub const NO_DUMP: InodeFlags = InodeFlags(4);
    /// Its access time is not kept (`chattr +A`); passed on as [`InodeFlags::NO_DUMP`] is.
    pub const NO_ATIME: InodeFlags = InodeFlags(8);

    /// All there are.
    const ALL: u8 = 15;

    /// From their number; `None` if there are unknown ones among them.
    pub fn from_bits(bits: u8) -> Option<InodeFlags> {
        (bits & !Self::ALL == 0).then_some(InodeFlags(bits))
    }

    /// Their number, of four bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether any of `flags` is set.
    pub const fn has(self, flags: InodeFlags) -> bool {
        self.0 & flags.0 != 0
    }

    /// These and others.
    #[must_use]
    pub const fn with(self, flags: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 | flags.0)
    }

    /// Those that are also in `flags`.
    #[must_use]
    pub const fn only(self, flags: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 & flags.0)
    }

    /// Those that are in one of the two alone.
    #[must_use]
    pub const fn difference(self, other: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 ^ other.0)
    }
}

/// Seconds after which an access time is due whatever happened: a day.
const ACCESS_DUE_SECONDS: i64 = 24 * 60 * 60;

/// Whether a read at `now` is worth noting by Linux's rule for `relatime`: there was no read since
/// the last change of content or attributes, or none for a day.
pub fn is_access_due(atime: Nanos, mtime: Nanos, ctime: Nanos, now: Nanos) -> bool {
    let seconds = now.div_euclid(SECOND).saturating_sub(atime.div_euclid(SECOND));
    mtime.max(ctime) >= atime || seconds >= ACCESS_DUE_SECONDS
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Number.
    pub ino: InodeId,
    /// Type.
    pub kind: Kind,
    /// Permission bits, set-id and sticky bits (12 bits).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names of a file; 1 unless it lies in table `link`. Unused for directories: their count comes
    /// from their shares.
    pub nlink: u32,
    /// Device number of a special file, as the kernel encodes it.
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Last access, as far as mounts tell of reads, or as it was set.
    pub atime: Nanos,
    /// Last change of content. For a directory: of what was set explicitly, see
    /// [`crate::stat::DirStat`].
    pub mtime: Nanos,
    /// Last change of attributes; for a directory as `mtime`.
    pub ctime: Nanos,
    /// Creation.
    pub btime: Nanos,
    /// Commit timestamp (hybrid clock) of this record.
    pub change: u64,
    /// Commit timestamp of the last change of the content.
    pub data_change: u64,
    /// Rows in table `xattr` may exist. Stays set once an extended attribute was set, so that files
    /// that never had one (nearly all) cost no look-up when they are read or removed.
    pub xattrs: bool,
    /// What may be done with it.
    pub flags: InodeFlags,
    /// Its ACLs, if it has any; then [`Inode::xattrs`] is set, too.
    pub acls: Option<Arc<Acls>>,
    /// Content.
    pub data: Data,
    /// What the directories of its path say, its own record included if it is a directory. Only in
    /// answers, and only as far as it decides what a client does: a stored record has none.
    pub effective: Policy,
}

/// Copies of an inode are on the path of every request; up to 128 bytes they are a few moves, and
/// calls of memcpy beyond.
const _: () = assert!(size_of::<Inode>() <= 128);

/// Version of the encoding of an inode without flags.
const VERSION: u8 = 1;

/// Version of the encoding of an inode that has flags.
const VERSION_FLAGS: u8 = 2;

/// Version of the encoding of an inode in an answer that says what its effective policy is.
const VERSION_EFFECTIVE: u8 = 3;

/// Version of the encoding of an inode with ACLs. It has an effective policy, which may be empty.
const VERSION_ACLS: u8 = 4;

/// Bit of the byte that holds the type: [`Inode::xattrs`].
const HAS_XATTRS: u8 = 0x80;

/// The bits of the byte that holds the type which are the type.
pub(crate) const KIND_MASK: u8 = 0x7f;

const ATIME_IS_MTIME: u8 = 1;
const CTIME_IS_MTIME: u8 = 2;
const BTIME_IS_MTIME: u8 = 4;
const DATA_CHANGE_IS_CHANGE: u8 = 8;
const HAS_NLINK: u8 = 16;
const HAS_RDEV: u8 = 32;
const DATA_SHIFT: u32 = 6;

impl Inode {
    /// An empty one that was made at `now` by the commit `stamp`: root's, with one name and no
    /// permission.
    pub fn new(ino: InodeId, kind: Kind, now: Nanos, stamp: u64) -> Self {
        Self {
            ino,
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: stamp,
            data_change: stamp,
            xattrs: false,
            flags: InodeFlags::default(),
            acls: None,
            data: Data::None,
            effective: Policy::default(),
        }
    }

    /// What a directory itself says of policies.
    ///
    /// # Errors
    /// If that is damaged, or of a later release.
    pub fn policy(&self) -> Result<PolicyRecord, DecodeError> {
        match (&self.data, self.kind) {
            (Data::Inline(bytes), Kind::Dir) => PolicyRecord::decode(bytes),
            _ => Ok(PolicyRecord::default()),
        }
    }

    /// Sets what a directory itself says of policies.
    pub fn set_policy(&mut self, record: PolicyRecord) {
        self.data = record.encode().map_or(Data::None, Data::Inline);
    }

    /// `st_mode`: type and permission bits.
    pub fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.mode)
    }

    /// Whether every user has these permissions, 0 to 7, by the mode and without an ACL that could
    /// take them from some.
    pub fn all_may(&self, perm: u16) -> bool {
        let all = perm << 6 | perm << 3 | perm;
        self.mode & all == all && self.acls.as_ref().is_none_or(|acls| acls.access.is_none())
    }

    /// Appends the record's bytes (`docs/format.md`, "Inode").
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let data_tag = match self.data {
            Data::None => 0u8,
            Data::Inline(_) => 1,
            Data::Packed { .. } => 2,
            Data::Chunked => 3,
        };
        let flags = flag(self.atime == self.mtime, ATIME_IS_MTIME)
            | flag(self.ctime == self.mtime, CTIME_IS_MTIME)
            | flag(self.btime == self.mtime, BTIME_IS_MTIME)
            | flag(self.data_change == self.change, DATA_CHANGE_IS_CHANGE)
            | flag(self.nlink != 1, HAS_NLINK)
            | flag(self.rdev != 0, HAS_RDEV)
            | data_tag << DATA_SHIFT;
        let has_policy = self.acls.is_some() || self.effective != Policy::default();
        let has_flags = has_policy || self.flags != InodeFlags::default();
        let version = match (has_policy, has_flags) {
            (true, _) if self.acls.is_some() => VERSION_ACLS,
            (true, _) => VERSION_EFFECTIVE,
            (false, true) => VERSION_FLAGS,
            (false, false) => VERSION,
        };
        out.extend_from_slice(&[version, self.kind as u8 | flag(self.xattrs, HAS_XATTRS), flags]);
        put_varint(out, self.ino);
        put_varint(out, u64::from(self.mode));
        put_varint(out, u64::from(self.uid));
        put_varint(out, u64::from(self.gid));
        put_varint(out, self.size);
        out.extend_from_slice(&self.change.to_be_bytes());
        out.extend_from_slice(&self.mtime.to_be_bytes());
        for (time, bit) in [
            (self.atime, ATIME_IS_MTIME),
            (self.ctime, CTIME_IS_MTIME),
            (self.btime, BTIME_IS_MTIME),
        ] {
            if flags & bit == 0 {
                out.extend_from_slice(&time.to_be_bytes());
            }
        }
        if flags & DATA_CHANGE_IS_CHANGE == 0 {
            out.extend_from_slice(&self.data_change.to_be_bytes());
        }
        if flags & HAS_NLINK != 0 {
            put_varint(out, u64::from(self.nlink));
        }
        if flags & HAS_RDEV != 0 {
            put_varint(out, u64::from(self.rdev));
        }
        if has_flags {
            out.push(self.flags.bits());
        }
        if has_policy {
            let record = PolicyRecord { own: self.effective, ..PolicyRecord::default() };
            put_string(out, &record.encode().unwrap_or_default());
        }
        if let Some(acls) = &self.acls {
            put_string(out, &acls.encode());
        }
        match &self.data {
            Data::None | Data::Chunked => {}
            Data::Inline(bytes) => put_string(out, bytes),
            Data::Packed { range, visible } => {
                range.encode_into(out);
                put_varint(out, u64::from(*visible));
            }
        }
    }

    /// [`Inode::change`] of a record, without the rest of it; `None` if it is no inode's.
    pub fn peek_change(row: &[u8]) -> Option<u64> {
        let mut reader = Reader::new(row);
        let version = reader.u8().ok()?;
        if !matches!(version, VERSION | VERSION_FLAGS | VERSION_ACLS) {
            return None;
        }
        reader.u16().ok()?;
        // Number, mode, owner, group, size.
        for _ in 0..5 {
            reader.varint().ok()?;
        }
        reader.u64().ok()
    }

    /// Owner, size in bytes and flags of a record, without the rest of it.
    ///
    /// # Errors
    /// As [`Inode::decode`], as far as it looks.
    pub fn peek_owner(row: &[u8]) -> Result<(u32, u64, InodeFlags), DecodeError> {
        let mut reader = Reader::new(row);
        let version = reader.u8()?;
        if !(VERSION..=VERSION_ACLS).contains(&version) {
            return Err(DecodeError("inode of an unknown format version"));
        }
        reader.u8()?;
        let flags = reader.u8()?;
        // Number and mode.
        reader.varint()?;
        reader.varint()?;
        let uid = reader.varint32()?;
        reader.varint32()?;
        let size = reader.varint()?;
        if version == VERSION {
            return Ok((uid, size, InodeFlags::default()));
        }
        // The commit's stamp, the last modification, and what differs from them.
        let times = [ATIME_IS_MTIME, CTIME_IS_MTIME, BTIME_IS_MTIME, DATA_CHANGE_IS_CHANGE];
        let apart = times.iter().filter(|bit| flags & **bit == 0).count();
        reader.bytes(8 * (2 + apart))?;
        for bit in [HAS_NLINK, HAS_RDEV] {
            if flags & bit != 0 {
                reader.varint32()?;
            }
        }
        let flags = InodeFlags::from_bits(reader.u8()?);
        Ok((uid, size, flags.ok_or(DecodeError("unknown inode flags"))?))
    }

    /// Reads what [`Inode::encode_into`] wrote.
    ///
    /// # Errors
    /// If the bytes are truncated, out of bounds or of a newer version.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = reader.u8()?;
        if !(VERSION..=VERSION_ACLS).contains(&version) {
            return Err(DecodeError("inode of an unknown format version"));
        }
        let kind_byte = reader.u8()?;
        let kind = Kind::from_u8(kind_byte & KIND_MASK).ok_or(DecodeError("unknown file type"))?;
        let xattrs = kind_byte & HAS_XATTRS != 0;
        let flags = reader.u8()?;
        let ino = reader.varint()?;
        let mode = u16::try_from(reader.varint()?).ok().filter(|mode| *mode <= 0o7777);
        let mode = mode.ok_or(DecodeError("mode out of bounds"))?;
        let (uid, gid) = (reader.varint32()?, reader.varint32()?);
        let size = reader.varint()?;
        let change = reader.u64()?;
        let mtime = reader.i64()?;
        let mut time = |bit: u8| if flags & bit == 0 { reader.i64() } else { Ok(mtime) };
        let (atime, ctime, btime) =
            (time(ATIME_IS_MTIME)?, time(CTIME_IS_MTIME)?, time(BTIME_IS_MTIME)?);
        let data_change = if flags & DATA_CHANGE_IS_CHANGE == 0 { reader.u64()? } else { change };
        let nlink = if flags & HAS_NLINK == 0 { 1 } else { reader.varint32()? };
        let rdev = if flags & HAS_RDEV == 0 { 0 } else { reader.varint32()? };
        let inode_flags = if version == VERSION {
            Some(InodeFlags::default())
        } else {
            InodeFlags::from_bits(reader.u8()?)
        };
        let inode_flags = inode_flags.ok_or(DecodeError("unknown inode flags"))?;
        let effective = match version {
            VERSION_EFFECTIVE | VERSION_ACLS => match reader.string(RECORD_BYTES_MAX)? {
                [] if version == VERSION_ACLS => Policy::default(),
                record => PolicyRecord::decode(record)?.own,
            },
            _ => Policy::default(),
        };
        let acls = match version {
            VERSION_ACLS => Some(Arc::new(Acls::decode(reader.string(ACLS_BYTES_MAX)?)?)),
            _ => None,
        };
        let data = match flags >> DATA_SHIFT {
            0 => Data::None,
            1 => Data::Inline(reader.string(INLINE_MAX)?.into()),
            2 => {
                let range = Range::decode(reader)?;
                let visible = reader.varint32()?;
                if visible == 0 || visible > range.len {
                    return Err(DecodeError("visible bytes out of bounds"));
                }
                Data::Packed { range, visible }
            }
            _ => Data::Chunked,
        };
        if ino == 0 || size > FILE_SIZE_MAX {
            return Err(DecodeError("inode out of bounds"));
        }
        let inode = Self {
            ino,
            kind,
            mode,
            uid,
            gid,
            nlink,
            rdev,
            size,
            atime,
            mtime,
            ctime,
            btime,
            change,
            data_change,
            xattrs,
            flags: inode_flags,
            acls,
            data,
            effective,
        };
        Ok(inode)
    }
}
