//! Walking the probe paths.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{Probes, WalkKind};

/// A mount that does not answer within this time gets no hints.
const DEADLINE: Duration = Duration::from_secs(5);

/// Without it, opens and stats would differ in LOOKUP_FOLLOW.
const BASE: u32 = libc::O_NOFOLLOW as u32;

/// Flags that 64-bit Linux adds to every open, as `SystemCall::open_flags` does.
const ADDED: u32 = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };

/// The walks that open, with what their registers must show.
pub(super) const OPENS: [(WalkKind, u32); 4] = [
    (WalkKind::Open, BASE | ADDED | libc::O_RDONLY as u32),
    (WalkKind::Create, BASE | ADDED | (libc::O_RDWR | libc::O_CREAT) as u32),
    (WalkKind::Exclusive, BASE | ADDED | (libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) as u32),
    (WalkKind::Directory, BASE | ADDED | (libc::O_RDONLY | libc::O_DIRECTORY) as u32),
];

/// Walks them all, from the directory `root`, and waits for that, but no longer than [`DEADLINE`].
pub fn run(root: OwnedFd, probes: &Probes) -> io::Result<()> {
    let paths = Paths::new(probes)?;
    let number = root.as_raw_fd();
    let (tell, results) = mpsc::channel();
    // Not joined: when the mount does not answer, nothing can be done about it here.
    thread::Builder::new().name("walk-probes".into()).spawn(move || {
        let alone = alone_with(number);
        let go_on = alone.is_ok();
        // Sending fails when no thread waits any more.
        let _ = tell.send(alone);
        if go_on {
            paths.walk(ALONE_ROOT);
            let _ = tell.send(Ok(()));
        }
    })?;
    // It has a descriptor of its own then, or none.
    results.recv().map_err(io::Error::other)??;
    drop(root);
    results.recv_timeout(DEADLINE).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// The walking thread's descriptor of the root directory.
const ALONE_ROOT: RawFd = 0;

/// Gives the calling thread a descriptor table of its own, in which there is nothing but a copy of
/// `root`.
fn alone_with(root: RawFd) -> io::Result<()> {
    let check = |result: i32| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: no memory is touched. What is closed is closed in the copy of the table, which no
    // other thread has.
    unsafe {
        check(libc::unshare(libc::CLONE_FILES))?;
        if root != ALONE_ROOT {
            check(libc::dup2(root, ALONE_ROOT))?;
        }
        check(libc::syscall(libc::SYS_close_range, ALONE_ROOT + 1, u32::MAX, 0) as i32)
    }
}

/// The paths, made before the thread starts.
struct Paths {
    plain: CString,
    within: CString,
    stale: CString,
    follow: CString,
    opens: Vec<(CString, i32)>,
}

impl Paths {
    fn new(probes: &Probes) -> io::Result<Paths> {
        let path = |kind, more: &str| {
            let mut name = probes.name(kind);
            name.extend_from_slice(more.as_bytes());
            CString::new(name).map_err(io::Error::from)
        };
        let open =
            |&(kind, flags): &(WalkKind, u32)| Ok((path(kind, "")?, (flags & !ADDED) as i32));
        Ok(Paths {
            plain: path(WalkKind::Plain, "")?,
            within: path(WalkKind::Within, "/x")?,
            stale: path(WalkKind::Stale, "")?,
            follow: path(WalkKind::Follow, "")?,
            opens: OPENS.iter().map(open).collect::<io::Result<_>>()?,
        })
    }

    /// All of these fail; what matters is what the program records of them.
    fn walk(&self, root: RawFd) {
        const NOFOLLOW: i32 = libc::AT_SYMLINK_NOFOLLOW;
        let stats = [
            (&self.plain, NOFOLLOW),
            (&self.within, NOFOLLOW),
            (&self.stale, NOFOLLOW),
            (&self.follow, 0),
        ];
        for (path, flags) in stats {
            let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
            // SAFETY: the path ends in NUL, and `stat` takes what is written.
            unsafe { libc::fstatat(root, path.as_ptr(), stat.as_mut_ptr(), flags) };
        }
        for (path, flags) in &self.opens {
            // The call itself, since the C library adds flags of its own. SAFETY: the path ends in
            // NUL; the mode is there for O_CREAT. If a descriptor comes back against all
            // expectation, it goes with the thread.
            unsafe { libc::syscall(libc::SYS_openat, root, path.as_ptr(), *flags, 0o600) };
        }
    }
}
