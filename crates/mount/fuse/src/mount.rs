//! Mounting and unmounting.
//!
//! | file | |
//! | --- | --- |
//! | `options` | options of a mount |
//! | `fusermount` | mounting without privileges, through `fusermount3` |
//! | `mountinfo` | `/proc/self/mountinfo`: which file systems are mounted where |
//! | `remount` | changing the options of a present mount |
//!
//! Root mounts with `mount(2)`; other users go through the set-user-ID helper `fusermount3`, which
//! passes the device descriptor back over a socket. Unmounting is careful to take away only the
//! mount that it is for: before it acts it looks at `/proc/self/mountinfo` for the mount on top of
//! the directory and compares device numbers.
//!
//! Nothing here touches the mounted file system itself (no `stat` of the mount point), since a dead
//! server would hang it.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use crate::config::Negotiated;
use crate::error::{Error, Result};

mod fusermount;
mod mountinfo;
mod options;
mod remount;

pub use mountinfo::{MountEntry, mounts};
pub use options::{Atime, MountOptions};
pub use remount::remount;

/// A mounted file system that is not served yet: hand it to
/// [`Session::start`](crate::Session::start). Dropping it unmounts.
pub struct Mount {
    device: Option<Arc<OwnedFd>>,
    unmounter: Unmounter,
    armed: bool,
    inherited: Option<Inherited>,
}

/// A connection of which another process served requests before.
pub struct Inherited {
    /// Its descriptors, at least one: the very same ones, passed from process to process.
    pub descriptors: Vec<OwnedFd>,
    /// What INIT settled.
    pub negotiated: Negotiated,
    /// Device number of the mounted file system ([`Unmounter::device`]).
    pub device: (u32, u32),
}

/// Takes one particular mount away, from any thread; clones are cheap. When the mount is gone it
/// does nothing, even if another one has its place and its device number by then.
#[derive(Clone, Debug)]
pub struct Unmounter(Arc<Point>);

#[derive(Debug)]
struct Point {
    dir: PathBuf,
    /// The kernel gives the number to others once the mount is gone.
    device: (u32, u32),
    /// The connection, as long as a process serves it.
    connection: Weak<OwnedFd>,
    /// Open as long as `fusermount3` shall keep the mount (`auto_unmount`).
    helper: Option<OwnedFd>,
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Only if no process uses it, else EBUSY.
    Clean,
    /// Take it out of the tree now; its users may go on until they are done.
    Detach,
    /// Cut the connection, so that all waiting calls fail with ECONNABORTED, and take it out of the
    /// tree. Works on a hung or dead server.
    Force,
}

impl Mount {
    /// Mounts on the directory `dir`. What was left there by a server that died is taken away
    /// first.
    pub fn new(dir: &Path, options: &MountOptions) -> Result<Mount> {
        let what = || format!("cannot mount on {}", dir.display());
        let dir = prepare(dir)?;
        let (device, helper) = if options.use_helper || !is_root() {
            let (device, helper) = fusermount::mount(&dir, options)?;
            (device, helper)
        } else {
            (mount_directly(&dir, options).map_err(|e| Error::new(what(), e))?, None)
        };
        let entry = mountinfo::top(&dir).and_then(|entry| {
            entry.ok_or_else(|| {
                Error::plain(what(), "mounted, but /proc/self/mountinfo does not show it")
            })
        });
        match entry {
            Ok(entry) => {
                let fd = Arc::new(device);
                let (device, connection) = (entry.device, Arc::downgrade(&fd));
                let unmounter = Unmounter(Arc::new(Point { dir, device, connection, helper }));
                Ok(Mount { device: Some(fd), unmounter, armed: true, inherited: None })
            }
            Err(error) => {
                let _ = remove(&dir, How::Detach);
                Err(error)
            }
        }
    }

    /// Takes over the mount on `dir` from another process. It stays when this is dropped.
    pub fn inherit(dir: &Path, mut inherited: Inherited) -> Result<Mount> {
        if inherited.descriptors.is_empty() {
            let what = format!("cannot take over the mount on {}", dir.display());
            return Err(Error::plain(what, "its descriptors are missing"));
        }
        let fd = Arc::new(inherited.descriptors.remove(0));
        let (device, connection) = (inherited.device, Arc::downgrade(&fd));
        let dir = dir.to_path_buf();
        let unmounter = Unmounter(Arc::new(Point { dir, device, connection, helper: None }));
        Ok(Mount { device: Some(fd), unmounter, armed: false, inherited: Some(inherited) })
    }

    /// What the process before has left, apart from the first descriptor; it can be had once.
    pub(crate) fn take_inherited(&mut self) -> Option<Inherited> {
        self.inherited.take()
    }

    /// Takes it away again.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Whether `fusermount3` will look after the mount when this process dies (`auto_unmount`).
    pub(crate) fn has_helper(&self) -> bool {
        self.unmounter.0.helper.is_some()
    }

    /// The `/dev/fuse` descriptor; it can be had once.
    pub(crate) fn take_device(&mut self) -> Result<Arc<OwnedFd>> {
        self.device
            .take()
            .ok_or_else(|| Error::plain("cannot serve the mount", "it is being served already"))
    }

    /// Leaves unmounting to another owner.
    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.armed {
            let _ = self.unmounter.force();
        }
    }
}

impl Unmounter {
    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Major and minor device number (`st_dev`) of the mounted file system.
    pub fn device(&self) -> (u32, u32) {
        self.0.device
    }

    /// Whether the mount is still there, and not covered by another.
    pub fn is_mounted(&self) -> bool {
        matches!(self.locate(), Ok(Some(_)))
    }

    /// Where the mount is now.
    fn locate(&self) -> Result<Option<PathBuf>> {
        let all = mounts()?;
        let ours = |entry: &MountEntry| entry.device == self.0.device;
        let on_top = |dir: &Path| mountinfo::top_of(&all, dir).is_some_and(ours);
        if !self.is_connected() {
            // The device number may have been given to another mount; a dead mount with it in this
            // one's place is this one, or no loss.
            return Ok((on_top(&self.0.dir) && is_dead(&self.0.dir)).then(|| self.0.dir.clone()));
        }
        // A directory above may have been renamed.
        let elsewhere =
            all.iter().filter(|entry| ours(entry)).map(|entry| entry.mount_point.as_path());
        let found = std::iter::once(self.0.dir.as_path()).chain(elsewhere).find(|dir| on_top(dir));
        Ok(found.map(Path::to_path_buf))
    }

    /// Whether the kernel still has the connection; if so, the device number is still its own.
    fn is_connected(&self) -> bool {
        let Some(fd) = self.0.connection.upgrade() else { return false };
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one live pollfd.
        let rc = unsafe { libc::poll(&raw mut poll, 1, 0) };
        rc == 0 || poll.revents & libc::POLLERR == 0
    }

    /// Unmounts if no process uses it, else fails with EBUSY. Done already is success, here and
    /// below.
    pub fn unmount(&self) -> Result<()> {
        self.run(How::Clean)
    }

    /// See [`How::Detach`].
    pub fn detach(&self) -> Result<()> {
        self.run(How::Detach)
    }

    /// See [`How::Force`].
    pub fn force(&self) -> Result<()> {
        self.run(How::Force)
    }

    fn run(&self, how: How) -> Result<()> {
        if how == How::Force && self.is_connected() {
            // Also when it has been detached: its users may hang.
            let _ = abort(self.0.device.1);
        }
        match self.locate()? {
            Some(dir) => remove(&dir, how),
            None => Ok(()),
        }
    }
}

/// Unmounts the FUSE file system on top of `dir`, whichever process serves it; ENOTCONN and hangs
/// of a dead server do not matter. ENOENT (see [`Error::raw_os_error`]) when there is none, EINVAL
/// when it is not FUSE.
pub fn unmount(dir: &Path, how: How) -> Result<()> {
    let what = || format!("cannot unmount {}", dir.display());
    let Some(entry) = find(dir)? else {
        return Err(Error::errno(format!("{}: nothing is mounted there", what()), libc::ENOENT));
    };
    if !entry.is_fuse() {
        return Err(Error::errno(
            format!("{}: it is {}, not FUSE", what(), entry.fs_type),
            libc::EINVAL,
        ));
    }
    if how == How::Force {
        let _ = abort(entry.device.1);
    }
    remove(&entry.mount_point, how)
}

/// The mount on top of the directory `dir`, if it is a mount point. Does not touch what is mounted.
pub fn find(dir: &Path) -> Result<Option<MountEntry>> {
    mountinfo::top(&resolve(dir)?)
}

/// Cuts off the connection with minor device number `minor`: every waiting call fails with
/// ECONNABORTED, every further one with ENOTCONN. Needs `fusectl`, which systemd mounts on
/// `/sys/fs/fuse/connections`, and the mount's owner or root.
pub fn abort(minor: u32) -> io::Result<()> {
    fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), b"1")
}

/// Lets the kernel read ahead up to `bytes` on the mount with this device number, which at INIT can
/// only be lowered from its default of 128 KiB. Needs root. Large reads come in requests of this
/// size.
pub(crate) fn raise_readahead(device: (u32, u32), bytes: u32) -> io::Result<()> {
    let (major, minor) = device;
    fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), (bytes >> 10).to_string())
}

/// Whether this process may call `mount(2)`.
fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// The directory's absolute path without symbolic links. Only the parent is looked at, unless the
/// path is that of a mount point as it stands.
fn resolve(dir: &Path) -> Result<PathBuf> {
    let what = || format!("cannot find {}", dir.display());
    let absolute = std::path::absolute(dir).map_err(|e| Error::new(what(), e))?;
    if mountinfo::top(&absolute)?.is_some() {
        return Ok(absolute);
    }
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => {
            let candidate = fs::canonicalize(parent).map_err(|e| Error::new(what(), e))?.join(name);
            if mountinfo::top(&candidate)?.is_some() {
                return Ok(candidate);
            }
            fs::canonicalize(&candidate).map_err(|e| Error::new(what(), e))
        }
        _ => fs::canonicalize(&absolute).map_err(|e| Error::new(what(), e)),
    }
}

/// Whether no process serves the mount on top of `dir` any more. A live server has to answer a
/// request.
pub fn is_dead(dir: &Path) -> bool {
    let Ok(dir) = c_string(dir.as_os_str().as_bytes()) else { return false };
    let mut totals = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a live C string and room for the result. Unlike stat, statfs is never answered from a
    // cache.
    let rc = unsafe { libc::statfs(dir.as_ptr(), totals.as_mut_ptr()) };
    rc != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOTCONN)
}

/// Checks the directory to mount on and takes away what a dead server left there.
fn prepare(dir: &Path) -> Result<PathBuf> {
    let what = || format!("cannot mount on {}", dir.display());
    let dir = resolve(dir)?;
    while is_dead(&dir) {
        match mountinfo::top(&dir)? {
            Some(entry) if entry.is_kestrel() => remove(&dir, How::Detach)?,
            _ => return Err(Error::errno(what(), libc::ENOTCONN)),
        }
    }
    match fs::metadata(&dir) {
        Ok(metadata) if metadata.is_dir() => Ok(dir),
        Ok(_) => Err(Error::errno(what(), libc::ENOTDIR)),
        Err(error) => Err(Error::new(what(), error)),
    }
}

fn mount_directly(dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device: OwnedFd = open_device()?;
    // SAFETY: no preconditions.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let data = options.kernel_data(device.as_raw_fd(), uid, gid);
    let source = c_string(options.source.as_bytes())?;
    let kind = c_string(format!("fuse.{}", options.subtype).as_bytes())?;
    let (target, data) = (c_string(dir.as_os_str().as_bytes())?, c_string(data.as_bytes())?);
    // SAFETY: all pointers are to live C strings.
    let rc = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            options.flags(),
            data.as_ptr().cast(),
        )
    };
    if rc == 0 {
        return Ok(device);
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EPERM) => io::Error::new(error.kind(), format!("{error}{CONTAINER_HINT}")),
        _ => error,
    })
}

const CONTAINER_HINT: &str = "; a container needs --device /dev/fuse --cap-add SYS_ADMIN";

fn open_device() -> io::Result<OwnedFd> {
    OpenOptions::new().read(true).write(true).open("/dev/fuse").map(OwnedFd::from).map_err(
        |error| {
            let hint = match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                    "; is the fuse module there (modprobe fuse)?"
                }
                Some(libc::EACCES | libc::EPERM) => CONTAINER_HINT,
                _ => return error,
            };
            io::Error::new(error.kind(), format!("/dev/fuse: {error}{hint}"))
        },
    )
}

/// Takes away the mount on top of `dir`.
fn remove(dir: &Path, how: How) -> Result<()> {
    let what = || format!("cannot unmount {}", dir.display());
    let target = c_string(dir.as_os_str().as_bytes()).map_err(|e| Error::new(what(), e))?;
    let umount = |flags: i32| {
        // SAFETY: a live C string.
        let rc = unsafe { libc::umount2(target.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    let direct = match how {
        How::Clean => umount(0),
        How::Detach => umount(libc::MNT_DETACH),
        // MNT_FORCE aborts the connection, too, but is for the initial user namespace only.
        How::Force => {
            umount(libc::MNT_FORCE | libc::MNT_DETACH).or_else(|_| umount(libc::MNT_DETACH))
        }
    };
    match direct {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && !is_root() => {
            fusermount::unmount(dir, how)
        }
        other => other.map_err(|e| Error::new(what(), e)),
    }
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL byte in a path or name"))
}
