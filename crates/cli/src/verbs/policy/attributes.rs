//! Extended attributes of directories, by `getxattr(2)` and its kin.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most bytes that a value is read with. Those of policies are shorter.
const VALUE_MAX: usize = 4096;

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The value of an attribute; `None` if there is none of this name.
///
/// # Errors
/// Those of `getxattr(2)`.
pub fn get(path: &Path, name: &str) -> io::Result<Option<String>> {
    let (path, name) = (c_string(path.as_os_str().as_bytes())?, c_string(name.as_bytes())?);
    let mut value = vec![0u8; VALUE_MAX];
    // SAFETY: both names end with NUL, and the buffer has as many bytes as it says.
    let len = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    match usize::try_from(len) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(String::from_utf8_lossy(&value).into_owned()))
        }
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
            error => Err(error),
        },
    }
}

/// Sets an attribute, whether or not it was set.
///
/// # Errors
/// Those of `setxattr(2)`.
pub fn set(path: &Path, name: &str, value: &str) -> io::Result<()> {
    let (path, name) = (c_string(path.as_os_str().as_bytes())?, c_string(name.as_bytes())?);
    // SAFETY: both names end with NUL, and the value has as many bytes as it says.
    let result = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes an attribute. Whether there was one.
///
/// # Errors
/// Those of `removexattr(2)`.
pub fn remove(path: &Path, name: &str) -> io::Result<bool> {
    let (path, name) = (c_string(path.as_os_str().as_bytes())?, c_string(name.as_bytes())?);
    // SAFETY: both names end with NUL.
    if unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENODATA) => Ok(false),
        error => Err(error),
    }
}
