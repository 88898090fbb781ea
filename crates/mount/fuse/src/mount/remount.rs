//! Changing the options of a mount that is there.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Atime, MountEntry, MountOptions, c_string, find};
use crate::error::{Error, Result};

/// What a mount's options are now.
fn present(entry: &MountEntry) -> MountOptions {
    // Of strict access times nothing is shown.
    let atime = Some(Atime::Strict);
    let mut now = MountOptions { nosuid: false, nodev: false, atime, ..MountOptions::default() };
    for option in entry.options.split(',').chain(entry.super_options.split(',')) {
        // The others are the kernel's own.
        let _ = now.set(option);
    }
    now.read_only = entry.is_read_only();
    now
}

/// What remounting cannot change.
fn fixed(options: &MountOptions) -> (bool, bool, Option<u32>) {
    (options.allow_other, options.default_permissions, options.max_read)
}

/// Changes options of the mount on top of `dir`, each in the form of `mount -o`; those that are not
/// named stay. All options as they are now. Needs root.
///
/// # Errors
/// When nothing of ours is mounted there, or an option is unknown or cannot be changed; EBUSY (see
/// [`Error::raw_os_error`]) for `ro` while files are open for writing; EPERM.
pub fn remount<'a>(dir: &Path, options: impl IntoIterator<Item = &'a str>) -> Result<MountOptions> {
    let what = || format!("cannot remount {}", dir.display());
    let refused = |why: String| Error::plain(what(), why);
    let Some(entry) = find(dir)? else {
        return Err(refused("nothing is mounted there".into()));
    };
    if !entry.is_kestrel() {
        return Err(refused(format!("it is {}, not KestrelFS", entry.fs_type)));
    }
    let now = present(&entry);
    let mut wanted = now.clone();
    for option in options {
        // Options that the kernel reports itself are handed on by mount(8) as they are already.
        let kernel =
            ["user_id=", "group_id=", "rootmode=", "fd="].iter().any(|key| option.starts_with(key));
        if !kernel && !wanted.set(option) {
            return Err(refused(format!(
                "-o {option}: unknown option; see `kestrel mount --help`"
            )));
        }
    }
    if fixed(&wanted) != fixed(&now) {
        let why = "allow_other, default_permissions and max_read stay as they are; unmount, and \
                   mount with them";
        return Err(refused(why.into()));
    }
    let target =
        c_string(entry.mount_point.as_os_str().as_bytes()).map_err(|e| Error::new(what(), e))?;
    // SAFETY: a live C string; remounting reads neither source nor type, and FUSE no data.
    let rc = unsafe {
        libc::mount(
            std::ptr::null(),
            target.as_ptr(),
            std::ptr::null(),
            libc::MS_REMOUNT | wanted.flags(),
            std::ptr::null(),
        )
    };
    if rc == 0 { Ok(wanted) } else { Err(Error::new(what(), io::Error::last_os_error())) }
}
