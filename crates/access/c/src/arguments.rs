//! Pointers of a program as paths, bytes and options.

use std::ffi::{CStr, c_char, c_void};

use crate::boundary::{CallError, CallResult};

/// Most bytes of one read or write, as of Linux: more is cut to it.
const TRANSFER_MAX: usize = 0x7fff_f000;

/// Most files of one batch.
const BATCH_MAX: usize = 1 << 24;

fn null() -> CallError {
    CallError::new(libc::EFAULT, "a pointer is NULL")
}

/// A path or name: any bytes up to a NUL.
///
/// # Safety
/// Not NULL, it points to bytes that end with a NUL, and that stay as they are during the call.
///
/// # Errors
/// `EFAULT` of NULL.
pub unsafe fn path<'a>(given: *const c_char) -> CallResult<&'a [u8]> {
    if given.is_null() {
        return Err(null());
    }
    // SAFETY: it ends with a NUL, says the caller.
    Ok(unsafe { CStr::from_ptr(given) }.to_bytes())
}

/// A text, if there is one.
///
/// # Safety
/// As for [`path`].
///
/// # Errors
/// `EINVAL` if it is not UTF-8.
pub unsafe fn text_or_null<'a>(given: *const c_char) -> CallResult<Option<&'a str>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: as of this function.
    let bytes = unsafe { path(given) }?;
    let not_text = |_| CallError::new(libc::EINVAL, "a text is not UTF-8");
    std::str::from_utf8(bytes).map(Some).map_err(not_text)
}

/// Bytes that a program has.
///
/// # Safety
/// Not NULL, it points to as many bytes, which stay as they are during the call.
///
/// # Errors
/// `EFAULT` of NULL with bytes.
pub unsafe fn bytes<'a>(given: *const c_void, len: usize) -> CallResult<&'a [u8]> {
    match (given.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null()),
        // SAFETY: says the caller. As with write(2), a program that changes them meanwhile has
        // bytes of both moments written.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(given.cast(), len) }),
    }
}

/// Room of a program's.
///
/// # Safety
/// Not NULL, it points to as many bytes that are the call's alone.
///
/// # Errors
/// `EFAULT` of NULL with bytes.
pub unsafe fn room<'a>(given: *mut c_void, len: usize) -> CallResult<&'a mut [u8]> {
    match (given.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(null()),
        // SAFETY: says the caller. Nothing reads them before they are written.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts_mut(given.cast(), len) }),
    }
}

/// What of a transfer is done with one call.
pub fn transfer_len(len: usize) -> usize {
    len.min(TRANSFER_MAX)
}

/// An offset in a file.
///
/// # Errors
/// `EINVAL` if it is negative.
pub fn offset(given: i64) -> CallResult<u64> {
    u64::try_from(given)
        .map_err(|_| CallError::new(libc::EINVAL, "an offset or size is not negative"))
}

/// The paths of a batch.
///
/// # Safety
/// Not NULL, `given` points to as many pointers, each as for [`path`].
///
/// # Errors
/// `EFAULT` of NULL, `E2BIG` of more than 16,777,216 paths.
pub unsafe fn paths<'a>(given: *const *const c_char, count: usize) -> CallResult<Vec<&'a [u8]>> {
    if count > BATCH_MAX {
        return Err(CallError::new(libc::E2BIG, "a batch has at most 16,777,216 paths"));
    }
    if given.is_null() && count > 0 {
        return Err(null());
    }
    // SAFETY: says the caller.
    (0..count).map(|at| unsafe { path(*given.add(at)) }).collect()
}

/// Where an answer goes.
///
/// # Safety
/// Not NULL, it points to a `T` that is the call's alone; what is in it does not matter.
///
/// # Errors
/// `EFAULT` of NULL.
pub unsafe fn answer<'a, T>(given: *mut T) -> CallResult<&'a mut std::mem::MaybeUninit<T>> {
    if given.is_null() {
        return Err(null());
    }
    // SAFETY: says the caller.
    Ok(unsafe { &mut *given.cast() })
}

/// Gives bytes of which a program does not know the number before: how many there are. With no room
/// that is all.
///
/// # Errors
/// `ERANGE` if they have no place in the room.
pub fn give(value: &[u8], room: &mut [u8]) -> CallResult<i64> {
    if !room.is_empty() {
        let small = CallError::new(libc::ERANGE, "the room is too small; ask for the size with 0");
        room.get_mut(..value.len()).ok_or(small)?.copy_from_slice(value);
    }
    Ok(value.len() as i64)
}

/// Options of a program, which begin with their size: fields that an older program does not know
/// are 0, and those that this library does not know must be.
///
/// # Safety
/// Not NULL, `given` points to a `u32` that says how many bytes there are, and `T` is of integers
/// and pointers alone.
///
/// # Errors
/// `EINVAL` if the size is none, `E2BIG` if there is something unknown.
pub unsafe fn options<T: Default>(given: *const T) -> CallResult<T> {
    let mut options = T::default();
    if given.is_null() {
        return Ok(options);
    }
    // SAFETY: says the caller.
    let size = unsafe { *given.cast::<u32>() } as usize;
    if !(8..=4096).contains(&size) {
        return Err(CallError::new(
            libc::EINVAL,
            "`size` of the options is not that of the struct",
        ));
    }
    let known = size_of::<T>();
    // SAFETY: there are as many bytes, says the caller.
    let all = unsafe { std::slice::from_raw_parts(given.cast::<u8>(), size) };
    if all.iter().skip(known).any(|byte| *byte != 0) {
        return Err(CallError::new(
            libc::E2BIG,
            "the options have fields that this version of the library does not know; install the \
             version that the program was built with",
        ));
    }
    // SAFETY: no more than either has; all bytes are values of `T`.
    unsafe {
        let out: *mut T = &mut options;
        std::ptr::copy_nonoverlapping(all.as_ptr(), out.cast(), size.min(known));
    }
    Ok(options)
}

/// Refuses bits that mean nothing.
///
/// # Errors
/// `EINVAL`.
pub fn check_flags(flags: i32, known: i32) -> CallResult<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => {
            let why = format!("the flags {unknown:#x} mean nothing here");
            Err(CallError { errno: libc::EINVAL, about: Vec::new(), why: why.into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structs::kestrel_options;

    /// NULL, sizes of older and newer programs, and what is no size.
    #[test]
    fn options_of_other_versions() {
        #[repr(C)]
        struct Newer {
            options: kestrel_options,
            more: [u64; 2],
        }
        let mut newer = Newer { options: kestrel_options::default(), more: [0; 2] };
        let mut read = |size: usize, deadline_ms, more| {
            newer.options =
                kestrel_options { size: size as u32, deadline_ms, ..Default::default() };
            newer.more[1] = more;
            // SAFETY: there are as many bytes.
            let read = unsafe { options::<kestrel_options>((&raw const newer).cast()) };
            read.map(|read| read.deadline_ms).map_err(|why| why.errno)
        };
        assert_eq!(read(size_of::<kestrel_options>(), 7, 0), Ok(7));
        assert_eq!(read(size_of::<Newer>(), 7, 0), Ok(7));
        assert_eq!(read(size_of::<Newer>(), 7, 1), Err(libc::E2BIG));
        // A program from before there was a deadline.
        assert_eq!(read(24, 7, 1), Ok(0));
        assert_eq!(read(0, 7, 0), Err(libc::EINVAL));
        // SAFETY: NULL.
        assert_eq!(unsafe { options(std::ptr::null::<kestrel_options>()) }.unwrap().size, 0);
    }

    /// What has no place is not given in part.
    #[test]
    fn values_and_room() {
        let mut room = [0; 3];
        assert_eq!(give(b"abcd", &mut []).unwrap(), 4);
        assert_eq!(give(b"abcd", &mut room).unwrap_err().errno, libc::ERANGE);
        assert_eq!(room, [0; 3]);
        assert_eq!(give(b"abc", &mut room).unwrap(), 3);
        assert_eq!(&room, b"abc");
        assert!(offset(-1).is_err() && check_flags(3, 1).is_err() && check_flags(1, 1).is_ok());
    }
}
