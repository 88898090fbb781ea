//! Open files.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use kestrel_client::native::{NativeCalls, NativeFile, NativeVolume, OpenHow, SeekFrom};
use kestrel_types::error::FsResult;
use parking_lot::Mutex;

use crate::arguments::{answer, bytes, offset, path, room, transfer_len};
use crate::boundary::{CallError, CallResult, guarded};
use crate::handles::{self, Handled};
use crate::names::mode_bits;
use crate::structs::kestrel_attributes;
use crate::volume::{OpenVolume, Use};

/// Flags of open(2) that are heard, or change nothing here.
const OPEN_FLAGS: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_LARGEFILE
    | libc::O_NOATIME
    | libc::O_NOCTTY
    | libc::O_NONBLOCK
    // O_LARGEFILE as programs see it, where the C library's is 0.
    | 0o100_000;

/// An open file.
pub struct OpenNativeFile {
    /// The volume that it is open in.
    pub volume: Arc<OpenVolume>,
    /// None: it is closed. Cloned only by those that use the volume.
    file: Mutex<Option<Arc<NativeFile>>>,
    /// For errors.
    path: Box<[u8]>,
}

impl Handled for OpenNativeFile {
    fn kind() -> &'static str {
        "file"
    }

    fn volume(&self) -> Option<usize> {
        Some(self.volume.number())
    }

    fn end(&self, volume: &NativeVolume) -> CallResult<()> {
        self.close(volume.calls(&|| false))
    }
}

impl OpenNativeFile {
    /// The file, and the use of its volume that a call has meanwhile.
    ///
    /// # Errors
    /// `EBADF` if one of them is closed.
    pub fn enter(&self) -> CallResult<(Use, Arc<NativeFile>)> {
        let used = self.volume.enter()?;
        let file = self.file.lock().clone();
        Ok((used, file.ok_or(CallError::new(libc::EBADF, "the file is closed"))?))
    }

    /// Closes it. Calls that use it meanwhile end as they would have; the last of them gives it
    /// back.
    ///
    /// # Errors
    /// Those of storing what was written.
    pub fn close(&self, calls: NativeCalls<'_>) -> CallResult<()> {
        let Some(file) = self.file.lock().take() else { return Ok(()) };
        let closed = match Arc::try_unwrap(file) {
            Ok(file) => calls.close(file),
            Err(file) if file.is_writable() => calls.flush(&file),
            Err(_) => Ok(()),
        };
        closed.map_err(|why| CallError::from(why).about(&*self.path))
    }

    /// For errors.
    pub fn path(&self) -> &[u8] {
        &self.path
    }
}

/// A call about an open file.
///
/// # Errors
/// Those of the call.
fn with<T>(
    handle: i64,
    call: impl FnOnce(NativeCalls<'_>, &NativeFile) -> FsResult<T>,
) -> CallResult<T> {
    let open = handles::get::<OpenNativeFile>(handle)?;
    let about = |why: CallError| why.about(&*open.path);
    let (used, file) = open.enter().map_err(about)?;
    used.run(|calls| call(calls, &file)).map_err(about)
}

/// How a file is opened, by the flags of open(2).
///
/// # Errors
/// `EINVAL` of flags that would have to mean something here and do not.
pub fn open_how(flags: c_int, mode: u32) -> CallResult<OpenHow> {
    if flags & !OPEN_FLAGS != 0 {
        let why = format!(
            "the open flags {:#o} are not offered; durability is by kestrel_fsync, directories are \
             opened by kestrel_opendir",
            flags & !OPEN_FLAGS
        );
        return Err(CallError { errno: libc::EINVAL, about: Vec::new(), why: why.into() });
    }
    let mode = if flags & libc::O_CREAT != 0 { mode_bits(mode)? } else { 0 };
    Ok(OpenHow::from_flags(flags, mode)?)
}

/// Opens a file and gives it a handle.
///
/// # Errors
/// Those of open(2).
pub fn open(volume: &Arc<OpenVolume>, used: &Use, path: &[u8], how: OpenHow) -> CallResult<i64> {
    let file = used.run(|calls| calls.open(path, how)).map_err(|why| why.about(path))?;
    handles::add(Arc::new(OpenNativeFile {
        volume: volume.clone(),
        file: Mutex::new(Some(Arc::new(file))),
        path: path.into(),
    }))
}

/// Closes a handle.
///
/// # Errors
/// Those of storing what was written; it is closed all the same.
pub fn close(handle: i64) -> CallResult<()> {
    // If the volume is being closed meanwhile, that closes the file.
    let used = handles::get::<OpenNativeFile>(handle)?.volume.enter()?;
    let open = handles::take::<OpenNativeFile>(handle)?;
    used.run(|calls| open.close(calls))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_open(
    volume: i64,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> i64 {
    guarded("kestrel_open", || {
        // SAFETY: kestrel.h says what the pointer is.
        let path = unsafe { self::path(path) }?;
        let volume = handles::get::<OpenVolume>(volume)?;
        let how = open_how(flags, mode).map_err(|why| why.about(path))?;
        open(&volume, &volume.enter()?, path, how)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_close(file: i64) -> c_int {
    guarded("kestrel_close", || close(file))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_pread(file: i64, buffer: *mut c_void, len: usize, at: i64) -> i64 {
    guarded("kestrel_pread", || {
        // SAFETY: kestrel.h says what the pointer is.
        let (out, at) = (unsafe { room(buffer, transfer_len(len)) }?, offset(at)?);
        with(file, |calls, file| calls.read_at(file, at, out)).map(|len| len as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_pwrite(
    file: i64,
    buffer: *const c_void,
    len: usize,
    at: i64,
) -> i64 {
    guarded("kestrel_pwrite", || {
        // SAFETY: kestrel.h says what the pointer is.
        let (data, at) = (unsafe { bytes(buffer, transfer_len(len)) }?, offset(at)?);
        with(file, |calls, file| calls.write_at(file, at, data))?;
        Ok(data.len() as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_read(file: i64, buffer: *mut c_void, len: usize) -> i64 {
    guarded("kestrel_read", || {
        // SAFETY: kestrel.h says what the pointer is.
        let out = unsafe { room(buffer, transfer_len(len)) }?;
        with(file, |calls, file| calls.read(file, out)).map(|len| len as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_write(file: i64, buffer: *const c_void, len: usize) -> i64 {
    guarded("kestrel_write", || {
        // SAFETY: kestrel.h says what the pointer is.
        let data = unsafe { bytes(buffer, transfer_len(len)) }?;
        with(file, |calls, file| calls.write(file, data))?;
        Ok(data.len() as i64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_lseek(file: i64, at: i64, whence: c_int) -> i64 {
    guarded("kestrel_lseek", || {
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(offset(at)?),
            libc::SEEK_CUR => SeekFrom::Current(at),
            libc::SEEK_END => SeekFrom::End(at),
            libc::SEEK_DATA => SeekFrom::Data(offset(at)?),
            libc::SEEK_HOLE => SeekFrom::Hole(offset(at)?),
            _ => return Err(CallError::new(libc::EINVAL, "`whence` is none of those of lseek(2)")),
        };
        with(file, |calls, file| calls.seek(file, to)).map(|at| at as i64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_ftruncate(file: i64, size: i64) -> c_int {
    guarded("kestrel_ftruncate", || {
        let size = offset(size)?;
        with(file, |calls, file| calls.file_truncate(file, size))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_flush(file: i64) -> c_int {
    guarded("kestrel_flush", || {
        with(file, |calls, file| match file.is_writable() {
            true => calls.flush(file),
            false => Ok(()),
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_fsync(file: i64) -> c_int {
    guarded("kestrel_fsync", || with(file, |calls, file| calls.fsync(file)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_fstat(file: i64, out: *mut kestrel_attributes) -> c_int {
    guarded("kestrel_fstat", || {
        // SAFETY: kestrel.h says what the pointer is.
        let out = unsafe { answer(out) }?;
        let inode = with(file, |calls, file| calls.file_stat(file))?;
        out.write(kestrel_attributes::of(&inode));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_copy_range(
    from: i64,
    from_offset: i64,
    to: i64,
    to_offset: i64,
    len: u64,
) -> i64 {
    guarded("kestrel_copy_range", || {
        let (from_offset, to_offset) = (offset(from_offset)?, offset(to_offset)?);
        let (from, to) =
            (handles::get::<OpenNativeFile>(from)?, handles::get::<OpenNativeFile>(to)?);
        let (source, target) = (from.enter()?, to.enter()?);
        let about = |why: CallError| why.about([from.path(), b" -> ", to.path()].concat());
        let copied = target
            .0
            .run(|calls| calls.copy_range((&source.1, from_offset), (&target.1, to_offset), len));
        copied.map(|len| len as i64).map_err(about)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags that would promise something are refused, not ignored.
    #[test]
    fn open_flags() {
        let how = open_how(libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0o644).unwrap();
        assert!(how.flags.read && how.flags.write && how.create && how.mode == 0o644);
        for refused in
            [libc::O_SYNC, libc::O_DSYNC, libc::O_DIRECT, libc::O_DIRECTORY, libc::O_PATH]
        {
            assert_eq!(open_how(refused, 0).unwrap_err().errno, libc::EINVAL);
        }
        assert_eq!(open_how(libc::O_NOFOLLOW, 0).unwrap_err().errno, libc::EINVAL);
        assert_eq!(open_how(libc::O_CREAT | 1, 0o100_644).unwrap_err().errno, libc::EINVAL);
        // Without O_CREAT the mode is nothing.
        assert!(open_how(libc::O_RDONLY, u32::MAX).is_ok());
    }
}
