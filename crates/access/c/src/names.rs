//! Operations by path.

use std::ffi::{c_char, c_int, c_void};

use kestrel_client::native::Times;
use kestrel_types::request::{RenameFlags, SetTime, XattrFlags};

use crate::arguments::{answer, bytes, check_flags, give, offset, path, room};
use crate::boundary::{CallError, CallResult, guarded};
use crate::structs::kestrel_attributes;
use crate::volume::{at, at_two};

/// `KESTREL_NOFOLLOW`.
pub const NOFOLLOW: i32 = 1;
/// `KESTREL_EXIST_OK`.
const EXIST_OK: i32 = 1;
/// `KESTREL_NOREPLACE` and `KESTREL_EXCHANGE`, those of renameat2(2).
const NOREPLACE: i32 = 1;
const EXCHANGE: i32 = 2;
/// `KESTREL_TIME_NOW` and `KESTREL_TIME_OMIT`.
const TIME_NOW: i64 = i64::MIN;
const TIME_OMIT: i64 = i64::MIN + 1;
/// `KESTREL_KEEP_ID`.
const KEEP_ID: u32 = u32::MAX;

/// Permission bits.
///
/// # Errors
/// `EINVAL` if there are other bits.
pub fn mode_bits(mode: u32) -> CallResult<u16> {
    match mode & !0o7777 {
        0 => Ok(mode as u16),
        _ => Err(CallError::new(libc::EINVAL, "a mode is permission bits alone, at most 07777")),
    }
}

/// Whether symbolic links at the end are followed.
///
/// # Errors
/// `EINVAL` of other flags.
pub fn follows(flags: c_int) -> CallResult<bool> {
    check_flags(flags, NOFOLLOW)?;
    Ok(flags & NOFOLLOW == 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_stat(
    volume: i64,
    path: *const c_char,
    flags: c_int,
    out: *mut kestrel_attributes,
) -> c_int {
    guarded("kestrel_stat", || {
        let follow = follows(flags)?;
        // SAFETY: kestrel.h says what the pointers are.
        let out = unsafe { answer(out) }?;
        // SAFETY: as above.
        let inode = unsafe { at(volume, path, |calls, path| calls.stat(path, follow)) }?;
        out.write(kestrel_attributes::of(&inode));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_access(volume: i64, path: *const c_char, mask: c_int) -> c_int {
    guarded("kestrel_access", || {
        check_flags(mask, libc::R_OK | libc::W_OK | libc::X_OK)?;
        // SAFETY: kestrel.h says what the pointer is.
        unsafe { at(volume, path, |calls, path| calls.access(path, mask as u32)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_mkdir(volume: i64, path: *const c_char, mode: u32) -> c_int {
    guarded("kestrel_mkdir", || {
        let mode = mode_bits(mode)?;
        // SAFETY: kestrel.h says what the pointer is.
        unsafe { at(volume, path, |calls, path| calls.mkdir(path, mode)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_mkdirs(
    volume: i64,
    path: *const c_char,
    mode: u32,
    flags: c_int,
) -> c_int {
    guarded("kestrel_mkdirs", || {
        check_flags(flags, EXIST_OK)?;
        let (mode, exist_ok) = (mode_bits(mode)?, flags & EXIST_OK != 0);
        // SAFETY: kestrel.h says what the pointer is.
        unsafe { at(volume, path, |calls, path| calls.make_dirs(path, mode, exist_ok)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_unlink(volume: i64, path: *const c_char) -> c_int {
    // SAFETY: kestrel.h says what the pointer is.
    guarded("kestrel_unlink", || unsafe { at(volume, path, |calls, path| calls.unlink(path)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_rmdir(volume: i64, path: *const c_char) -> c_int {
    // SAFETY: kestrel.h says what the pointer is.
    guarded("kestrel_rmdir", || unsafe { at(volume, path, |calls, path| calls.rmdir(path)) })
}

/// The flags of a rename.
///
/// # Errors
/// `EINVAL` of unknown ones, and of both.
pub fn rename_flags(flags: c_int) -> CallResult<RenameFlags> {
    check_flags(flags, NOREPLACE | EXCHANGE)?;
    let (no_replace, exchange) = (flags & NOREPLACE != 0, flags & EXCHANGE != 0);
    if no_replace && exchange {
        let why = "KESTREL_NOREPLACE and KESTREL_EXCHANGE exclude each other";
        return Err(CallError::new(libc::EINVAL, why));
    }
    Ok(RenameFlags { no_replace, exchange, replaced: None })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_rename(
    volume: i64,
    from: *const c_char,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    guarded("kestrel_rename", || {
        let flags = rename_flags(flags)?;
        // SAFETY: kestrel.h says what the pointers are.
        unsafe { at_two(volume, (from, to), |calls, from, to| calls.rename(from, to, flags)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_symlink(
    volume: i64,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    guarded("kestrel_symlink", || {
        // SAFETY: kestrel.h says what the pointers are.
        unsafe { at_two(volume, (target, path), |calls, to, path| calls.symlink(to, path)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_link(
    volume: i64,
    path: *const c_char,
    other: *const c_char,
) -> c_int {
    guarded("kestrel_link", || {
        // SAFETY: kestrel.h says what the pointers are.
        unsafe { at_two(volume, (path, other), |calls, path, other| calls.link(path, other)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_readlink(
    volume: i64,
    path: *const c_char,
    buffer: *mut c_void,
    len: usize,
) -> i64 {
    guarded("kestrel_readlink", || {
        // SAFETY: kestrel.h says what the pointers are.
        let room = unsafe { room(buffer, len) }?;
        // SAFETY: as above.
        let target = unsafe { at(volume, path, |calls, path| calls.readlink(path)) }?;
        give(&target, room)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_chmod(
    volume: i64,
    path: *const c_char,
    mode: u32,
    flags: c_int,
) -> c_int {
    guarded("kestrel_chmod", || {
        let (mode, follow) = (mode_bits(mode)?, follows(flags)?);
        // SAFETY: kestrel.h says what the pointer is.
        unsafe { at(volume, path, |calls, path| calls.chmod(path, mode, follow)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_chown(
    volume: i64,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: c_int,
) -> c_int {
    guarded("kestrel_chown", || {
        let follow = follows(flags)?;
        let to_set = |id: u32| (id != KEEP_ID).then_some(id);
        let ids = (to_set(uid), to_set(gid));
        // SAFETY: kestrel.h says what the pointer is.
        unsafe { at(volume, path, |calls, path| calls.chown(path, ids, follow)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_utimens(
    volume: i64,
    path: *const c_char,
    atime_ns: i64,
    mtime_ns: i64,
    flags: c_int,
) -> c_int {
    guarded("kestrel_utimens", || {
        let follow = follows(flags)?;
        let to_set = |time| match time {
            TIME_OMIT => None,
            TIME_NOW => Some(SetTime::Now),
            time => Some(SetTime::At(time)),
        };
        let times = Times { atime: to_set(atime_ns), mtime: to_set(mtime_ns) };
        // SAFETY: kestrel.h says what the pointer is.
        unsafe { at(volume, path, |calls, path| calls.set_times(path, times, follow)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_truncate(volume: i64, path: *const c_char, size: i64) -> c_int {
    guarded("kestrel_truncate", || {
        let size = offset(size)?;
        // SAFETY: kestrel.h says what the pointer is.
        unsafe { at(volume, path, |calls, path| calls.truncate(path, size)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_getxattr(
    volume: i64,
    path: *const c_char,
    name: *const c_char,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
) -> i64 {
    guarded("kestrel_getxattr", || {
        let follow = follows(flags)?;
        // SAFETY: kestrel.h says what the pointers are.
        let (name, room) = unsafe { (self::path(name)?, room(buffer, len)?) };
        // SAFETY: as above.
        let value = unsafe { at(volume, path, |calls, path| calls.getxattr(path, name, follow)) }?;
        give(&value, room)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_listxattr(
    volume: i64,
    path: *const c_char,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
) -> i64 {
    guarded("kestrel_listxattr", || {
        let follow = follows(flags)?;
        // SAFETY: kestrel.h says what the pointers are.
        let room = unsafe { room(buffer, len) }?;
        // SAFETY: as above.
        let names = unsafe { at(volume, path, |calls, path| calls.listxattr(path, follow)) }?;
        let mut all = names.join(&0);
        if !all.is_empty() {
            all.push(0);
        }
        give(&all, room)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_setxattr(
    volume: i64,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    len: usize,
    flags: c_int,
) -> c_int {
    guarded("kestrel_setxattr", || {
        // KESTREL_XATTR_CREATE and KESTREL_XATTR_REPLACE stand above KESTREL_NOFOLLOW.
        check_flags(flags, NOFOLLOW | 2 | 4)?;
        let how = XattrFlags { create: flags & 2 != 0, replace: flags & 4 != 0 };
        let follow = flags & NOFOLLOW == 0;
        // SAFETY: kestrel.h says what the pointers are.
        let (name, value) = unsafe { (self::path(name)?, bytes(value, len)?) };
        // SAFETY: as above.
        unsafe { at(volume, path, |calls, path| calls.setxattr(path, (name, value), how, follow)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_removexattr(
    volume: i64,
    path: *const c_char,
    name: *const c_char,
    flags: c_int,
) -> c_int {
    guarded("kestrel_removexattr", || {
        let follow = follows(flags)?;
        // SAFETY: kestrel.h says what the pointers are.
        let name = unsafe { self::path(name) }?;
        // SAFETY: as above.
        unsafe { at(volume, path, |calls, path| calls.removexattr(path, name, follow)) }
    })
}
