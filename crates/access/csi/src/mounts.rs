//! What the kernel has mounted, bind mounts, and room.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A line of `/proc/self/mountinfo` (proc(5)).
pub struct MountLine {
    /// Numbers of the file system's device.
    pub device: String,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// Type and source.
    pub fs_type: String,
}

/// All mounts that this process sees.
///
/// # Errors
/// If the list cannot be read.
pub fn all() -> io::Result<Vec<MountLine>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(line).collect())
}

fn line(text: &[u8]) -> Option<MountLine> {
    let mut words = text.split(|byte| *byte == b' ');
    let device = String::from_utf8_lossy(words.nth(2)?).into_owned();
    let dir = PathBuf::from(std::ffi::OsString::from_vec(unescaped(words.nth(1)?)));
    // Optional fields end with a hyphen.
    let fs_type = String::from_utf8_lossy(words.skip_while(|word| *word != b"-").nth(1)?);
    Some(MountLine { device, dir, fs_type: fs_type.into_owned() })
}

/// Blanks and backslashes are written as three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), word);
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// The last mount on exactly this directory.
///
/// # Errors
/// If the list cannot be read.
pub fn at(dir: &Path) -> io::Result<Option<MountLine>> {
    Ok(all()?.into_iter().rfind(|line| line.dir == dir))
}

/// Mounts the directory `from` on `to` as well, and read-only if that is asked for.
///
/// # Errors
/// As mount(2).
pub fn bind(from: &Path, to: &Path, read_only: bool) -> io::Result<()> {
    let (from, to) = (c_path(from)?, c_path(to)?);
    mount(Some(&from), &to, libc::MS_BIND)?;
    if read_only {
        let flags = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
        let kept = libc::MS_NOSUID | libc::MS_NODEV;
        if let Err(why) = mount(None, &to, flags | kept) {
            // SAFETY: a path that ends with a zero byte.
            unsafe { libc::umount2(to.as_ptr(), libc::MNT_DETACH) };
            return Err(why);
        }
    }
    Ok(())
}

fn mount(from: Option<&CString>, to: &CString, flags: libc::c_ulong) -> io::Result<()> {
    let source = from.map_or(std::ptr::null(), |path| path.as_ptr());
    // SAFETY: paths that end with a zero byte; no type or data are needed for these flags.
    let done =
        unsafe { libc::mount(source, to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes all mounts on this directory away.
///
/// # Errors
/// As umount2(2).
pub fn unmount(dir: &Path) -> io::Result<()> {
    let path = c_path(dir)?;
    while at(dir)?.is_some() {
        // SAFETY: a path that ends with a zero byte.
        if unsafe { libc::umount2(path.as_ptr(), libc::UMOUNT_NOFOLLOW) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// How much room there is.
pub struct Room {
    pub bytes: u64,
    pub free_bytes: u64,
    pub files: u64,
    pub free_files: u64,
}

/// Room at a path: of a directory with a quota, what that leaves.
///
/// # Errors
/// As statvfs(3).
pub fn room(path: &Path) -> io::Result<Room> {
    let path = c_path(path)?;
    // SAFETY: all zeros is a valid statvfs, and the path ends with a zero byte.
    let (done, is) = unsafe {
        let mut is: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut is), is)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = |blocks: u64| blocks.saturating_mul(is.f_frsize);
    Ok(Room {
        bytes: bytes(is.f_blocks),
        free_bytes: bytes(is.f_bavail),
        files: is.f_files,
        free_files: is.f_favail,
    })
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in a path"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line with optional fields and a blank in the path.
    #[test]
    fn lines_of_mountinfo() {
        let text = b"36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 - fuse.kestrel /src rw";
        let line = line(text).unwrap();
        assert_eq!(line.dir, Path::new("/mnt/a b"));
        assert_eq!((line.device.as_str(), line.fs_type.as_str()), ("98:0", "fuse.kestrel"));
        assert!(super::line(b"").is_none());
        assert_eq!(unescaped(b"a\\134\\0"), b"a\\\\0");
    }
}
