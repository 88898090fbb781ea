//! From bytes to operations.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::operation::ForgetList;
use super::{Dialect, Forgets, Ioctl, Lock, Operation, SetTime, Setattr, Write};
use crate::abi::{self, Opcode, Wire};
use crate::attr::Timestamp;

/// The arguments: a fixed structure, then names and payload. They lie one after the other on the
/// device and apart in an io_uring entry.
pub(super) struct Args<'a> {
    pub(super) fixed: &'a [u8],
    pub(super) rest: Option<&'a [u8]>,
}

impl<'a> Args<'a> {
    /// Takes the fixed structure that every operation has at most one of, before everything else.
    #[inline]
    fn fixed<T: Wire>(&mut self) -> Option<T> {
        let value = T::read(self.fixed)?;
        self.fixed = match self.rest.take() {
            Some(rest) => rest,
            None => &self.fixed[size_of::<T>()..],
        };
        Some(value)
    }

    /// For operations without a fixed structure.
    #[inline]
    fn no_fixed(&mut self) {
        if let Some(rest) = self.rest.take() {
            self.fixed = rest;
        }
    }

    /// Takes a string that ends in NUL; `None` when there is no NUL.
    #[inline]
    fn string(&mut self) -> Option<&'a OsStr> {
        let end = self.fixed.iter().position(|byte| *byte == 0)?;
        let (string, rest) = self.fixed.split_at(end);
        self.fixed = &rest[1..];
        Some(OsStr::from_bytes(string))
    }

    /// Takes a name of a directory entry.
    #[inline]
    fn name(&mut self) -> Option<&'a OsStr> {
        self.string().filter(|name| {
            let bytes = name.as_bytes();
            !bytes.is_empty() && bytes.len() <= abi::NAME_BYTES_MAX && !bytes.contains(&b'/')
        })
    }

    /// Takes the name of an extended attribute. Unlike a directory entry it may contain `/`.
    #[inline]
    fn attribute(&mut self) -> Option<&'a OsStr> {
        self.string().filter(|name| (1..=abi::NAME_BYTES_MAX).contains(&name.len()))
    }

    /// Takes exactly `len` bytes.
    #[inline]
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.fixed.split_at_checked(len)?;
        self.fixed = rest;
        Some(bytes)
    }
}

/// Looks through extension records for the caller's group; the outer `None` means malformed.
pub(super) fn supplementary_group(mut records: &[u8]) -> Option<Option<u32>> {
    let word = |bytes: &[u8], at: usize| bytes.get(at..).and_then(u32::read);
    let mut group = None;
    while !records.is_empty() {
        let header = abi::ExtHeader::read(records)?;
        let size = header.size as usize;
        if size < size_of::<abi::ExtHeader>() || size > records.len() {
            return None;
        }
        if header.kind == abi::EXT_GROUPS {
            let body = &records[size_of::<abi::ExtHeader>()..size];
            if word(body, 0)? > 0 {
                group = Some(word(body, 4)?);
            }
        }
        // Records are padded to eight bytes; the last one may lack its padding.
        records = records.get(size.next_multiple_of(8)..).unwrap_or_default();
    }
    Some(group)
}

/// `Some(value)` when `bit` is set.
#[inline]
fn when<T>(bits: u32, bit: u32, value: T) -> Option<T> {
    (bits & bit != 0).then_some(value)
}

/// Reads the arguments of one operation; `None` when they are not as they should be.
#[inline]
pub(super) fn operation<'a>(
    opcode: Opcode,
    header: &abi::InHeader,
    args: &mut Args<'a>,
    dialect: &Dialect,
) -> Option<Operation<'a>> {
    use Operation as Op;
    Some(match opcode {
        Opcode::Lookup => {
            args.no_fixed();
            Op::Lookup { name: args.name()? }
        }
        Opcode::Forget => {
            let arg: abi::ForgetIn = args.fixed()?;
            Op::Forget(Forgets(ForgetList::One(Some((header.nodeid, arg.nlookup)))))
        }
        Opcode::BatchForget => {
            let arg: abi::BatchForgetIn = args.fixed()?;
            let len = (arg.count as usize).checked_mul(size_of::<abi::ForgetOne>())?;
            Op::Forget(Forgets(ForgetList::Many(args.bytes(len)?)))
        }
        Opcode::Getattr => {
            let arg: abi::GetattrIn = args.fixed()?;
            Op::Getattr { fh: when(arg.getattr_flags, abi::GETATTR_FH, arg.fh) }
        }
        Opcode::Setattr => Op::Setattr(setattr(&args.fixed()?)),
        Opcode::Readlink => Op::Readlink,
        Opcode::Symlink => {
            args.no_fixed();
            Op::Symlink { name: args.name()?, target: args.string()? }
        }
        Opcode::Mknod => {
            let arg: abi::MknodIn = args.fixed()?;
            Op::Mknod { name: args.name()?, mode: arg.mode, rdev: arg.rdev, umask: arg.umask }
        }
        Opcode::Mkdir => {
            let arg: abi::MkdirIn = args.fixed()?;
            Op::Mkdir { name: args.name()?, mode: arg.mode, umask: arg.umask }
        }
        Opcode::Unlink => {
            args.no_fixed();
            Op::Unlink { name: args.name()? }
        }
        Opcode::Rmdir => {
            args.no_fixed();
            Op::Rmdir { name: args.name()? }
        }
        Opcode::Rename => {
            let arg: abi::RenameIn = args.fixed()?;
            Op::Rename {
                name: args.name()?,
                new_parent: arg.newdir,
                new_name: args.name()?,
                flags: 0,
            }
        }
        Opcode::Rename2 => {
            let arg: abi::Rename2In = args.fixed()?;
            Op::Rename {
                name: args.name()?,
                new_parent: arg.newdir,
                new_name: args.name()?,
                flags: arg.flags,
            }
        }
        Opcode::Link => {
            let arg: abi::LinkIn = args.fixed()?;
            Op::Link { target: arg.oldnodeid, new_name: args.name()? }
        }
        Opcode::Open => {
            let arg: abi::OpenIn = args.fixed()?;
            Op::Open {
                flags: arg.flags,
                kill_suidgid: arg.open_flags & abi::OPEN_KILL_SUIDGID != 0,
            }
        }
        Opcode::Read => {
            let arg: abi::ReadIn = args.fixed()?;
            Op::Read {
                fh: arg.fh,
                offset: arg.offset,
                size: arg.size,
                flags: arg.flags,
                lock_owner: when(arg.read_flags, abi::READ_LOCKOWNER, arg.lock_owner),
            }
        }
        Opcode::Write => {
            let arg: abi::WriteIn = args.fixed()?;
            Op::Write(Write {
                fh: arg.fh,
                offset: arg.offset,
                data: args.bytes(arg.size as usize)?,
                flags: arg.flags,
                cached: arg.write_flags & abi::WRITE_CACHE != 0,
                kill_suidgid: arg.write_flags & abi::WRITE_KILL_SUIDGID != 0,
                lock_owner: when(arg.write_flags, abi::WRITE_LOCKOWNER, arg.lock_owner),
            })
        }
        Opcode::Statfs => Op::Statfs,
        Opcode::Release => {
            let arg: abi::ReleaseIn = args.fixed()?;
            let flock_owner = when(arg.release_flags, abi::RELEASE_FLOCK_UNLOCK, arg.lock_owner);
            Op::Release { fh: arg.fh, flags: arg.flags, flock_owner }
        }
        Opcode::Fsync => {
            let arg: abi::FsyncIn = args.fixed()?;
            Op::Fsync { fh: arg.fh, datasync: arg.fsync_flags & abi::FSYNC_FDATASYNC != 0 }
        }
        Opcode::Setxattr => {
            let (size, flags, ext) = if dialect.setxattr_ext {
                let arg: abi::SetxattrIn = args.fixed()?;
                (arg.size, arg.flags, arg.setxattr_flags)
            } else {
                let arg: abi::SetxattrInCompat = args.fixed()?;
                (arg.size, arg.flags, 0)
            };
            Op::Setxattr {
                name: args.attribute()?,
                value: args.bytes(size as usize)?,
                flags,
                kill_sgid: ext & abi::SETXATTR_ACL_KILL_SGID != 0,
            }
        }
        Opcode::Getxattr => {
            let arg: abi::GetxattrIn = args.fixed()?;
            Op::Getxattr { name: args.attribute()?, size: arg.size }
        }
        Opcode::Listxattr => {
            let arg: abi::GetxattrIn = args.fixed()?;
            Op::Listxattr { size: arg.size }
        }
        Opcode::Removexattr => {
            args.no_fixed();
            Op::Removexattr { name: args.attribute()? }
        }
        Opcode::Flush => {
            let arg: abi::FlushIn = args.fixed()?;
            Op::Flush { fh: arg.fh, lock_owner: arg.lock_owner }
        }
        Opcode::Opendir => {
            let arg: abi::OpenIn = args.fixed()?;
            Op::Opendir { flags: arg.flags }
        }
        Opcode::Readdir => {
            let arg: abi::ReadIn = args.fixed()?;
            Op::Readdir { fh: arg.fh, offset: arg.offset, size: arg.size }
        }
        Opcode::Readdirplus => {
            let arg: abi::ReadIn = args.fixed()?;
            Op::Readdirplus { fh: arg.fh, offset: arg.offset, size: arg.size }
        }
        Opcode::Releasedir => {
            let arg: abi::ReleaseIn = args.fixed()?;
            Op::Releasedir { fh: arg.fh, flags: arg.flags }
        }
        Opcode::Fsyncdir => {
            let arg: abi::FsyncIn = args.fixed()?;
            Op::Fsyncdir { fh: arg.fh, datasync: arg.fsync_flags & abi::FSYNC_FDATASYNC != 0 }
        }
        Opcode::Getlk => Op::Getlk(lock(&args.fixed()?)),
        Opcode::Setlk => Op::Setlk { lock: lock(&args.fixed()?), wait: false },
        Opcode::Setlkw => Op::Setlk { lock: lock(&args.fixed()?), wait: true },
        Opcode::Access => {
            let arg: abi::AccessIn = args.fixed()?;
            Op::Access { mask: arg.mask }
        }
        Opcode::Create => {
            let arg: abi::CreateIn = args.fixed()?;
            Op::Create {
                name: args.name()?,
                mode: arg.mode,
                umask: arg.umask,
                flags: arg.flags,
                kill_suidgid: arg.open_flags & abi::OPEN_KILL_SUIDGID != 0,
            }
        }
        Opcode::Tmpfile => {
            // A name follows that means nothing.
            let arg: abi::CreateIn = args.fixed()?;
            Op::Tmpfile { mode: arg.mode, umask: arg.umask, flags: arg.flags }
        }
        Opcode::Interrupt => {
            let arg: abi::InterruptIn = args.fixed()?;
            Op::Interrupt { unique: arg.unique }
        }
        Opcode::Destroy => Op::Destroy,
        Opcode::Ioctl => {
            let arg: abi::IoctlIn = args.fixed()?;
            Op::Ioctl(Ioctl {
                fh: arg.fh,
                flags: arg.flags,
                cmd: arg.cmd,
                arg: arg.arg,
                data: args.bytes(arg.in_size as usize)?,
                out_size: arg.out_size,
            })
        }
        Opcode::Poll => {
            let arg: abi::PollIn = args.fixed()?;
            Op::Poll { fh: arg.fh, kh: arg.kh, flags: arg.flags, events: arg.events }
        }
        Opcode::Fallocate => {
            let arg: abi::FallocateIn = args.fixed()?;
            Op::Fallocate { fh: arg.fh, offset: arg.offset, length: arg.length, mode: arg.mode }
        }
        Opcode::Lseek => {
            let arg: abi::LseekIn = args.fixed()?;
            Op::Lseek { fh: arg.fh, offset: arg.offset, whence: arg.whence }
        }
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
            let arg: abi::CopyFileRangeIn = args.fixed()?;
            Op::CopyFileRange {
                fh_in: arg.fh_in,
                offset_in: arg.off_in,
                nodeid_out: arg.nodeid_out,
                fh_out: arg.fh_out,
                offset_out: arg.off_out,
                length: arg.len,
                flags: arg.flags,
            }
        }
        Opcode::Syncfs => Op::Syncfs,
        Opcode::Statx => {
            let arg: abi::StatxIn = args.fixed()?;
            let fh = when(arg.getattr_flags, abi::GETATTR_FH, arg.fh);
            Op::Statx { fh, flags: arg.sx_flags, mask: arg.sx_mask }
        }
        // INIT is the session's own; a second one makes no sense.
        Opcode::Init => return None,
    })
}

fn setattr(arg: &abi::SetattrIn) -> Setattr {
    use abi::fattr;
    let valid = arg.valid;
    let time = |set: u32, now: u32, sec: u64, nsec: u32| {
        let at = if valid & now != 0 {
            SetTime::Now
        } else {
            SetTime::At(Timestamp { sec: sec as i64, nsec })
        };
        when(valid, set, at)
    };
    Setattr {
        fh: when(valid, fattr::FH, arg.fh),
        mode: when(valid, fattr::MODE, arg.mode),
        uid: when(valid, fattr::UID, arg.uid),
        gid: when(valid, fattr::GID, arg.gid),
        size: when(valid, fattr::SIZE, arg.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, arg.atime, arg.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, arg.mtime, arg.mtimensec),
        ctime: when(valid, fattr::CTIME, Timestamp { sec: arg.ctime as i64, nsec: arg.ctimensec }),
        kill_suidgid: valid & fattr::KILL_SUIDGID != 0,
        lock_owner: when(valid, fattr::LOCKOWNER, arg.lock_owner),
    }
}

fn lock(arg: &abi::LkIn) -> Lock {
    Lock {
        fh: arg.fh,
        owner: arg.owner,
        start: arg.lk.start,
        end: arg.lk.end,
        kind: arg.lk.kind,
        pid: arg.lk.pid,
        flock: arg.lk_flags & abi::LK_FLOCK != 0,
    }
}
