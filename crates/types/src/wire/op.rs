//! Requests: the credentials, and the operation with its operands.

use super::basic::{self, WireWriter, flags, inode_ref, list, made_with, mode, place};
use super::{TooLarge, feed, quota};
use crate::codec::{DecodeError, Reader};
use crate::extent::Extent;
use crate::ids::InodeId;
use crate::inode::InodeFlags;
use crate::name::Name;
use crate::request::{
    Accessed, Commit, NewData, Op, OpenFlags, RenameFlags, Request, SetAttr, SetTime, XattrFlags,
};
use crate::snapshot_changes::CHANGED_FILES_MAX;

// First byte of an operation. Numbers are never given to another one.
const LOOKUP: u8 = 1;
const PARENT: u8 = 2;
const GET_ATTR: u8 = 3;
const SET_ATTR: u8 = 4;
const ACCESS: u8 = 5;
const READ_LINK: u8 = 6;
const CREATE: u8 = 7;
const OPEN: u8 = 8;
const TMP_FILE: u8 = 9;
const RELEASE: u8 = 10;
const MK_NOD: u8 = 11;
const MK_DIR: u8 = 12;
const SYMLINK: u8 = 13;
const UNLINK: u8 = 14;
const LINK: u8 = 17;
const READ_DIR: u8 = 18;
const COMMIT: u8 = 19;
const COMPACT: u8 = 20;
const CLONE: u8 = 21;
const CHUNKS: u8 = 22;
const SWEEP: u8 = 23;
const GET_XATTR: u8 = 24;
const SET_XATTR: u8 = 25;
const LIST_XATTR: u8 = 26;
const REMOVE_XATTR: u8 = 27;
const ALLOC_OBJECTS: u8 = 28;
const USAGE: u8 = 29;
const TREE_USAGE: u8 = 30;
const SYNC: u8 = 31;
const OPEN_AT: u8 = 32;
const RM_DIR: u8 = 33;
const RENAME: u8 = 34;
const LOCATE: u8 = 35;
const READ_DIR_PLUS: u8 = 36;
const SET_FLAGS: u8 = 37;
const ACCESSED: u8 = 38;
const AT: u8 = 39;
const SNAPSHOT_CREATE: u8 = 40;
const SNAPSHOT_RENAME: u8 = 41;
const SNAPSHOT_REMOVE: u8 = 42;
const SNAPSHOT_HOLD: u8 = 43;
const SNAPSHOT_LIST: u8 = 44;
const SNAPSHOT_CHANGES: u8 = 45;
const SNAPSHOT_USAGE: u8 = 46;
const CLONE_DIR: u8 = 47;
const CLONE_STEP: u8 = 48;
const QUOTA_SET: u8 = 55;
const QUOTA_REMOVE: u8 = 56;
const QUOTA_LIST: u8 = 57;
const QUOTA_CHECK: u8 = 58;
const FEED_READ: u8 = 59;
const REMOVAL_CHECK: u8 = 60;

// Content of a commit.
const UNCHANGED: u8 = 0;
const INLINE: u8 = 1;
const PACKED: u8 = 2;
const PATCHES: u8 = 3;

/// Appends the bytes of a request, as they are in a Call frame.
///
/// # Errors
/// If it exceeds a limit; `out` is then as it was.
pub fn encode_request(request: &Request, out: &mut Vec<u8>) -> Result<(), TooLarge> {
    let start = out.len();
    let mut writer = WireWriter::new(out);
    put_request(request, &mut writer);
    writer.finish().inspect_err(|_| out.truncate(start))
}

/// Reads what [`encode_request`] wrote, and leaves what follows.
///
/// # Errors
/// If the bytes are truncated or out of bounds.
pub fn decode_request(reader: &mut Reader<'_>) -> Result<Request, DecodeError> {
    request(reader)
}

pub(super) fn put_request(request: &Request, w: &mut WireWriter<'_>) {
    w.creds(&request.creds);
    put_op(&request.op, w);
}

// Called from one place: the message is built where it ends up instead of being moved there.
#[inline(always)]
pub(super) fn request(r: &mut Reader<'_>) -> Result<Request, DecodeError> {
    Ok(Request { creds: basic::creds(r)?, op: op(r)? })
}

/// A page of a directory: the directory, the name before it, and how many entries.
fn put_page(tag: u8, (dir, after, limit): (InodeId, Option<&Name>, usize), w: &mut WireWriter<'_>) {
    put_id(tag, dir, w);
    w.varint(limit as u64);
    w.u8(u8::from(after.is_some()));
    after.iter().for_each(|name| w.name(name));
}

fn page(r: &mut Reader<'_>) -> Result<(InodeId, Option<Name>, usize), DecodeError> {
    let (dir, limit) = (r.varint()?, basic::size(r)?);
    let after = if basic::boolean(r)? { Some(basic::name(r)?) } else { None };
    Ok((dir, after, limit))
}

/// The directory that an operation is about, or a snapshot; 0, which is none's number, if it takes
/// any.
pub(super) fn put_expected(ino: Option<InodeId>, w: &mut WireWriter<'_>) {
    w.varint(ino.unwrap_or(0));
}

pub(super) fn expected(r: &mut Reader<'_>) -> Result<Option<InodeId>, DecodeError> {
    Ok(Some(r.varint()?).filter(|ino| *ino != 0))
}

fn put_op(op: &Op, w: &mut WireWriter<'_>) {
    match op {
        Op::Lookup(place) => put_place(LOOKUP, place, w),
        Op::Parent(ino) => put_id(PARENT, *ino, w),
        Op::GetAttr(inode) => put_ref(GET_ATTR, inode, w),
        Op::SetAttr(inode, changes) => {
            put_ref(SET_ATTR, inode, w);
            put_set_attr(changes, w);
        }
        Op::SetFlags(inode, flags) => {
            put_ref(SET_FLAGS, inode, w);
            w.u8(flags.bits());
        }
        Op::Accessed(inode, accessed) => {
            put_ref(ACCESSED, inode, w);
            w.fixed(accessed.at.to_be_bytes());
            w.u8(u8::from(accessed.relative));
        }
        Op::Access(inode, mask) => {
            put_ref(ACCESS, inode, w);
            w.varint(u64::from(*mask));
        }
        Op::ReadLink(inode) => put_ref(READ_LINK, inode, w),
        Op::Create { place, mode, flags, exclusive } => {
            put_place(CREATE, place, w);
            w.made_with(*mode);
            put_open_flags(*flags, w);
            w.u8(u8::from(*exclusive));
        }
        Op::Open(inode, flags) => {
            put_ref(OPEN, inode, w);
            put_open_flags(*flags, w);
        }
        Op::OpenAt(place, flags) => {
            put_place(OPEN_AT, place, w);
            put_open_flags(*flags, w);
        }
        Op::TmpFile { dir, mode, exclusive } => {
            put_id(TMP_FILE, *dir, w);
            w.made_with(*mode);
            w.u8(u8::from(*exclusive));
        }
        Op::Release(ino) => put_id(RELEASE, *ino, w),
        Op::MkNod { place, kind, mode, rdev } => {
            put_place(MK_NOD, place, w);
            w.u8(*kind as u8);
            w.made_with(*mode);
            w.varint(u64::from(*rdev));
        }
        Op::MkDir(place, mode) => {
            put_place(MK_DIR, place, w);
            w.made_with(*mode);
        }
        Op::Symlink(place, target) => {
            put_place(SYMLINK, place, w);
            w.string(target);
        }
        Op::Unlink(place) => put_place(UNLINK, place, w),
        Op::RmDir(place, expected) => {
            put_place(RM_DIR, place, w);
            put_expected(*expected, w);
        }
        Op::Rename(from, to, flags) => {
            put_place(RENAME, from, w);
            w.place(to);
            w.u8(u8::from(flags.no_replace) | u8::from(flags.exchange) << 1);
            put_expected(flags.replaced, w);
        }
        Op::Link(inode, to) => {
            put_ref(LINK, inode, w);
            w.place(to);
        }
        Op::ReadDir { dir, after, limit, check } => {
            put_id(READ_DIR, *dir, w);
            w.varint(*limit as u64);
            w.u8(u8::from(*check) | u8::from(after.is_some()) << 1);
            after.iter().for_each(|name| w.name(name));
        }
        Op::ReadDirPlus { dir, after, limit } => {
            put_page(READ_DIR_PLUS, (*dir, after.as_ref(), *limit), w);
        }
        Op::RemovalCheck { dir, after, limit } => {
            put_page(REMOVAL_CHECK, (*dir, after.as_ref(), *limit), w);
        }
        Op::Commit(commit) => {
            put_ref(COMMIT, &commit.inode, w);
            put_commit(commit, w);
        }
        Op::Compact { inode, chunk, old, new } => {
            put_ref(COMPACT, inode, w);
            w.varint(*chunk);
            w.list(old, WireWriter::extent);
            w.list(new, WireWriter::extent);
        }
        Op::Clone { from, from_offset, to, to_offset, len } => {
            put_ref(CLONE, from, w);
            w.varint(*from_offset);
            w.inode_ref(to);
            w.varint(*to_offset);
            w.varint(*len);
        }
        Op::Chunks { ino, first, last } => {
            put_id(CHUNKS, *ino, w);
            w.varint(*first);
            w.varint(*last);
        }
        Op::Sweep(ino) => put_id(SWEEP, *ino, w),
        Op::GetXattr(inode, name) => {
            put_ref(GET_XATTR, inode, w);
            w.string(name);
        }
        Op::SetXattr(inode, name, value, flags) => {
            put_ref(SET_XATTR, inode, w);
            w.string(name);
            w.string(value);
            w.u8(u8::from(flags.create) | u8::from(flags.replace) << 1);
        }
        Op::ListXattr(inode) => put_ref(LIST_XATTR, inode, w),
        Op::RemoveXattr(inode, name) => {
            put_ref(REMOVE_XATTR, inode, w);
            w.string(name);
        }
        Op::Locate { files, after } => {
            w.u8(LOCATE);
            w.list(files, |w, ino| w.varint(*ino));
            w.name_after(after.as_ref());
        }
        Op::AllocObjects(count) => put_id(ALLOC_OBJECTS, u64::from(*count), w),
        Op::Usage => w.u8(USAGE),
        Op::TreeUsage(dir) => put_id(TREE_USAGE, *dir, w),
        Op::Sync => w.u8(SYNC),
        Op::At(snapshot, op) => {
            let nested = usize::from(matches!(**op, Op::At(..)));
            w.limit(nested, 0, "the number of snapshots in each other");
            put_id(AT, *snapshot, w);
            put_op(op, w);
        }
        Op::SnapshotCreate { dir, name } => put_named(SNAPSHOT_CREATE, *dir, name, w),
        Op::SnapshotRename { dir, from, to } => {
            put_named(SNAPSHOT_RENAME, *dir, from, w);
            w.name(to);
        }
        Op::SnapshotRemove { dir, name } => put_named(SNAPSHOT_REMOVE, *dir, name, w),
        Op::SnapshotHold { dir, name, tag, hold } => {
            put_named(SNAPSHOT_HOLD, *dir, name, w);
            w.name(tag);
            w.u8(u8::from(*hold));
        }
        Op::SnapshotList { dir, ancestors } => {
            w.u8(SNAPSHOT_LIST);
            w.u8(u8::from(*ancestors));
            put_expected(*dir, w);
        }
        Op::SnapshotChanges { dir, older, newer, files, limit, after } => {
            put_id(SNAPSHOT_CHANGES, *dir, w);
            w.varint(*older);
            put_expected(*newer, w);
            w.limit(files.len(), CHANGED_FILES_MAX, "the number of changed files");
            w.list(files, |w, ino| w.varint(*ino));
            w.varint(*limit as u64);
            w.cursor(after.as_ref());
        }
        Op::SnapshotUsage { snapshot, after } => {
            put_id(SNAPSHOT_USAGE, *snapshot, w);
            w.cursor(after.as_ref());
        }
        Op::CloneDir { source, at, place } => {
            put_id(CLONE_DIR, *source, w);
            put_expected(*at, w);
            w.place(place);
        }
        Op::CloneStep(dir) => put_id(CLONE_STEP, *dir, w),
        Op::QuotaSet(of, limits) => {
            w.u8(QUOTA_SET);
            quota::put_subject(*of, w);
            quota::put_limits(limits, w);
        }
        Op::QuotaRemove(of) => {
            w.u8(QUOTA_REMOVE);
            quota::put_subject(*of, w);
        }
        Op::QuotaList(above) => {
            w.u8(QUOTA_LIST);
            w.u8(above.is_some().into());
            if let Some(above) = above {
                w.inode_ref(above);
            }
        }
        Op::QuotaCheck { repair } => {
            w.u8(QUOTA_CHECK);
            w.u8((*repair).into());
        }
        Op::FeedRead { dir, from, limit } => {
            put_id(FEED_READ, *dir, w);
            feed::put_start(*from, w);
            w.varint((*limit).into());
        }
    }
}

// Called from one place: the message is built where it ends up instead of being moved there.
#[inline(always)]
fn op(r: &mut Reader<'_>) -> Result<Op, DecodeError> {
    Ok(match r.u8()? {
        LOOKUP => Op::Lookup(place(r)?),
        PARENT => Op::Parent(r.varint()?),
        GET_ATTR => Op::GetAttr(inode_ref(r)?),
        SET_ATTR => Op::SetAttr(inode_ref(r)?, set_attr(r)?),
        SET_FLAGS => {
            let (inode, flags) = (inode_ref(r)?, InodeFlags::from_bits(r.u8()?));
            Op::SetFlags(inode, flags.ok_or(DecodeError("unknown inode flags"))?)
        }
        ACCESSED => {
            Op::Accessed(inode_ref(r)?, Accessed { at: r.i64()?, relative: basic::boolean(r)? })
        }
        ACCESS => Op::Access(inode_ref(r)?, r.varint32()?),
        READ_LINK => Op::ReadLink(inode_ref(r)?),
        CREATE => Op::Create {
            place: place(r)?,
            mode: made_with(r)?,
            flags: open_flags(r)?,
            exclusive: basic::boolean(r)?,
        },
        OPEN => Op::Open(inode_ref(r)?, open_flags(r)?),
        OPEN_AT => Op::OpenAt(place(r)?, open_flags(r)?),
        TMP_FILE => {
            Op::TmpFile { dir: r.varint()?, mode: made_with(r)?, exclusive: basic::boolean(r)? }
        }
        RELEASE => Op::Release(r.varint()?),
        MK_NOD => Op::MkNod {
            place: place(r)?,
            kind: basic::kind(r)?,
            mode: made_with(r)?,
            rdev: r.varint32()?,
        },
        MK_DIR => Op::MkDir(place(r)?, made_with(r)?),
        SYMLINK => Op::Symlink(place(r)?, basic::bytes(r)?),
        UNLINK => Op::Unlink(place(r)?),
        RM_DIR => Op::RmDir(place(r)?, expected(r)?),
        RENAME => {
            let (from, to, flags, replaced) = (place(r)?, place(r)?, flags(r, 3)?, expected(r)?);
            let (no_replace, exchange) = (flags & 1 != 0, flags & 2 != 0);
            Op::Rename(from, to, RenameFlags { no_replace, exchange, replaced })
        }
        LINK => Op::Link(inode_ref(r)?, place(r)?),
        READ_DIR => {
            let (dir, limit, flags) = (r.varint()?, basic::size(r)?, flags(r, 3)?);
            let after = if flags & 2 != 0 { Some(basic::name(r)?) } else { None };
            Op::ReadDir { dir, after, limit, check: flags & 1 != 0 }
        }
        READ_DIR_PLUS => {
            let (dir, after, limit) = page(r)?;
            Op::ReadDirPlus { dir, after, limit }
        }
        REMOVAL_CHECK => {
            let (dir, after, limit) = page(r)?;
            Op::RemovalCheck { dir, after, limit }
        }
        COMMIT => Op::Commit(commit(r)?),
        COMPACT => Op::Compact {
            inode: inode_ref(r)?,
            chunk: r.varint()?,
            old: basic::extents(r)?,
            new: basic::extents(r)?,
        },
        CLONE => Op::Clone {
            from: inode_ref(r)?,
            from_offset: r.varint()?,
            to: inode_ref(r)?,
            to_offset: r.varint()?,
            len: r.varint()?,
        },
        CHUNKS => Op::Chunks { ino: r.varint()?, first: r.varint()?, last: r.varint()? },
        SWEEP => Op::Sweep(r.varint()?),
        GET_XATTR => Op::GetXattr(inode_ref(r)?, basic::bytes(r)?),
        SET_XATTR => {
            let (inode, name, value) = (inode_ref(r)?, basic::bytes(r)?, basic::bytes(r)?);
            let flags = flags(r, 3)?;
            Op::SetXattr(
                inode,
                name,
                value,
                XattrFlags { create: flags & 1 != 0, replace: flags & 2 != 0 },
            )
        }
        LIST_XATTR => Op::ListXattr(inode_ref(r)?),
        REMOVE_XATTR => Op::RemoveXattr(inode_ref(r)?, basic::bytes(r)?),
        LOCATE => Op::Locate {
            files: list(r, usize::MAX, 1, Reader::varint)?,
            after: basic::name_after(r)?,
        },
        ALLOC_OBJECTS => Op::AllocObjects(r.varint32()?),
        USAGE => Op::Usage,
        TREE_USAGE => Op::TreeUsage(r.varint()?),
        SYNC => Op::Sync,
        AT => Op::At(r.varint()?, op_at(r)?),
        SNAPSHOT_CREATE => Op::SnapshotCreate { dir: r.varint()?, name: basic::name(r)? },
        SNAPSHOT_RENAME => {
            Op::SnapshotRename { dir: r.varint()?, from: basic::name(r)?, to: basic::name(r)? }
        }
        SNAPSHOT_REMOVE => Op::SnapshotRemove { dir: r.varint()?, name: basic::name(r)? },
        SNAPSHOT_HOLD => Op::SnapshotHold {
            dir: r.varint()?,
            name: basic::name(r)?,
            tag: basic::name(r)?,
            hold: basic::boolean(r)?,
        },
        SNAPSHOT_LIST => {
            let ancestors = basic::boolean(r)?;
            Op::SnapshotList { dir: expected(r)?, ancestors }
        }
        SNAPSHOT_CHANGES => Op::SnapshotChanges {
            dir: r.varint()?,
            older: r.varint()?,
            newer: expected(r)?,
            files: list(r, CHANGED_FILES_MAX, 1, Reader::varint)?,
            limit: basic::size(r)?,
            after: basic::cursor(r)?,
        },
        SNAPSHOT_USAGE => Op::SnapshotUsage { snapshot: r.varint()?, after: basic::cursor(r)? },
        CLONE_DIR => Op::CloneDir { source: r.varint()?, at: expected(r)?, place: place(r)? },
        CLONE_STEP => Op::CloneStep(r.varint()?),
        QUOTA_SET => Op::QuotaSet(quota::subject(r)?, Box::new(quota::limits(r)?)),
        QUOTA_REMOVE => Op::QuotaRemove(quota::subject(r)?),
        QUOTA_LIST => {
            let above = basic::boolean(r)?;
            Op::QuotaList(if above { Some(inode_ref(r)?) } else { None })
        }
        QUOTA_CHECK => Op::QuotaCheck { repair: basic::boolean(r)? },
        FEED_READ => Op::FeedRead { dir: r.varint()?, from: feed::start(r)?, limit: r.varint32()? },
        _ => return Err(DecodeError("unknown operation")),
    })
}

/// The operation within another one, which no third one is within.
#[inline(never)]
fn op_at(r: &mut Reader<'_>) -> Result<Box<Op>, DecodeError> {
    if r.clone().u8() == Ok(AT) {
        return Err(DecodeError("a snapshot within a snapshot"));
    }
    op(r).map(Box::new)
}

fn put_named(tag: u8, dir: InodeId, name: &Name, w: &mut WireWriter<'_>) {
    put_id(tag, dir, w);
    w.name(name);
}

fn put_id(tag: u8, id: u64, w: &mut WireWriter<'_>) {
    w.u8(tag);
    w.varint(id);
}

fn put_place(tag: u8, place: &crate::name::PathRef, w: &mut WireWriter<'_>) {
    w.u8(tag);
    w.place(place);
}

fn put_ref(tag: u8, inode: &crate::name::InodeRef, w: &mut WireWriter<'_>) {
    w.u8(tag);
    w.inode_ref(inode);
}

fn put_open_flags(flags: OpenFlags, w: &mut WireWriter<'_>) {
    let OpenFlags { read, write, exec, truncate, kill_suid, append } = flags;
    let bits = [read, write, exec, truncate, kill_suid, append];
    w.u8(bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit)));
}

fn open_flags(r: &mut Reader<'_>) -> Result<OpenFlags, DecodeError> {
    let bits = flags(r, 0x3f)?;
    Ok(OpenFlags {
        read: bits & 1 != 0,
        write: bits & 2 != 0,
        exec: bits & 4 != 0,
        truncate: bits & 8 != 0,
        kill_suid: bits & 16 != 0,
        append: bits & 32 != 0,
    })
}

// Bits of the byte that a SetAttr begins with: what follows, in this order.
const HAS_MODE: u8 = 1;
const HAS_UID: u8 = 2;
const HAS_GID: u8 = 4;
const HAS_SIZE: u8 = 8;
const HAS_ATIME: u8 = 16;
const HAS_MTIME: u8 = 32;
const THROUGH_HANDLE: u8 = 64;
const KILL_SUID: u8 = 128;

fn put_set_attr(changes: &SetAttr, w: &mut WireWriter<'_>) {
    let bits = [
        (changes.mode.is_some(), HAS_MODE),
        (changes.uid.is_some(), HAS_UID),
        (changes.gid.is_some(), HAS_GID),
        (changes.size.is_some(), HAS_SIZE),
        (changes.atime.is_some(), HAS_ATIME),
        (changes.mtime.is_some(), HAS_MTIME),
        (changes.through_handle, THROUGH_HANDLE),
        (changes.kill_suid, KILL_SUID),
    ];
    w.u8(bits.iter().filter(|(on, _)| *on).fold(0, |byte, (_, bit)| byte | bit));
    changes.mode.iter().for_each(|mode| w.fixed(mode.to_be_bytes()));
    changes.uid.iter().for_each(|uid| w.varint(u64::from(*uid)));
    changes.gid.iter().for_each(|gid| w.varint(u64::from(*gid)));
    changes.size.iter().for_each(|size| w.varint(*size));
    [changes.atime, changes.mtime].into_iter().flatten().for_each(|time| match time {
        SetTime::Now => w.u8(0),
        SetTime::At(time) => {
            w.u8(1);
            w.fixed(time.to_be_bytes());
        }
    });
}

fn set_attr(r: &mut Reader<'_>) -> Result<SetAttr, DecodeError> {
    fn time(r: &mut Reader<'_>) -> Result<SetTime, DecodeError> {
        Ok(if basic::boolean(r)? { SetTime::At(r.i64()?) } else { SetTime::Now })
    }
    let bits = r.u8()?;
    Ok(SetAttr {
        mode: if bits & HAS_MODE != 0 { Some(mode(r)?) } else { None },
        uid: if bits & HAS_UID != 0 { Some(r.varint32()?) } else { None },
        gid: if bits & HAS_GID != 0 { Some(r.varint32()?) } else { None },
        size: if bits & HAS_SIZE != 0 { Some(r.varint()?) } else { None },
        atime: if bits & HAS_ATIME != 0 { Some(time(r)?) } else { None },
        mtime: if bits & HAS_MTIME != 0 { Some(time(r)?) } else { None },
        through_handle: bits & THROUGH_HANDLE != 0,
        kill_suid: bits & KILL_SUID != 0,
    })
}

/// All of a commit but its inode, which comes first.
fn put_commit(commit: &Commit, w: &mut WireWriter<'_>) {
    w.fixed(commit.base.to_be_bytes());
    w.fixed(commit.mtime.to_be_bytes());
    w.u8(u8::from(commit.kill_suid) | u8::from(commit.size.is_some()) << 1);
    commit.size.iter().for_each(|size| w.varint(*size));
    match &commit.data {
        NewData::Unchanged => w.u8(UNCHANGED),
        NewData::Inline(bytes) => {
            w.u8(INLINE);
            w.string(bytes);
        }
        NewData::Packed(range) => {
            w.u8(PACKED);
            w.range(range);
        }
        NewData::Patches(patches) => {
            w.u8(PATCHES);
            w.list(patches, |w, (chunk, extent)| {
                w.varint(*chunk);
                w.extent(extent);
            });
        }
    }
}

fn commit(r: &mut Reader<'_>) -> Result<Commit, DecodeError> {
    fn patch(r: &mut Reader<'_>) -> Result<(u64, Extent), DecodeError> {
        Ok((r.varint()?, basic::extent(r)?))
    }
    let inode = inode_ref(r)?;
    let (base, mtime, flags) = (r.u64()?, r.i64()?, flags(r, 3)?);
    let size = if flags & 2 != 0 { Some(r.varint()?) } else { None };
    let data = match r.u8()? {
        UNCHANGED => NewData::Unchanged,
        INLINE => NewData::Inline(basic::bytes(r)?),
        PACKED => NewData::Packed(crate::range::Range::decode(r)?),
        PATCHES => NewData::Patches(list(r, usize::MAX, 4, patch)?),
        _ => return Err(DecodeError("unknown content of a commit")),
    };
    Ok(Commit { inode, base, data, size, mtime, kill_suid: flags & 1 != 0 })
}
