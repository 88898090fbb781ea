//! Mounts that go away even when a test fails.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kestrel_fuse::null::{NullFs, NullOptions};
use kestrel_fuse::{Config, End, FileSystem, Mount, MountOptions, Session, TransportChoice, mount};

use crate::switch;

/// No test may take longer; then its mount is cut off, so that a call that waits on it gets an
/// error.
const DEADLINE: Duration = Duration::from_secs(60);

/// Whether tests can mount here.
pub fn can_mount() -> bool {
    // SAFETY: no preconditions.
    let able = unsafe { libc::geteuid() } == 0 && Path::new("/dev/fuse").exists();
    if !able {
        eprintln!("skipped: needs root and /dev/fuse");
        return false;
    }
    match crate::TRANSPORT {
        TransportChoice::Uring => switch::uring_on(),
        _ => true,
    }
}

/// Settings as they are by default, over the transport that these tests are about.
pub fn config() -> Config {
    Config { transport: crate::TRANSPORT, ..Config::default() }
}

/// A directory of this test alone, removed when dropped; a mount on it is taken away first.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("kestrel-fuse-test.{}.{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        while matches!(mount::find(&self.0), Ok(Some(_)))
            && mount::unmount(&self.0, mount::How::Force).is_ok()
        {}
        let _ = fs::remove_dir(&self.0);
    }
}

/// A mounted file system.
pub struct Mounted {
    session: Option<Session>,
    dir: TempDir,
    _watchdog: mpsc::Sender<()>,
}

impl Mounted {
    pub fn new(fs: impl FileSystem) -> Mounted {
        Mounted::with(fs, &MountOptions::default(), &config())
    }

    pub fn null() -> Mounted {
        Mounted::new(NullFs::new(NullOptions::default()))
    }

    pub fn with(fs: impl FileSystem, options: &MountOptions, config: &Config) -> Mounted {
        let dir = TempDir::new();
        let mount = Mount::new(dir.path(), options).unwrap();
        let unmounter = mount.unmounter();
        let session = Session::start(mount, fs, config).unwrap();
        let expected =
            if config.transport == TransportChoice::Uring { "io_uring" } else { "device" };
        assert_eq!(session.transport(), expected, "{}", session.transport_why());
        let (watchdog, over) = mpsc::channel();
        std::thread::spawn(move || {
            if over.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("deadline passed, cutting off {}", unmounter.dir().display());
                let _ = unmounter.force();
            }
        });
        Mounted { session: Some(session), dir, _watchdog: watchdog }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    /// Unmounts in good order and waits for the end.
    pub fn unmount(mut self) -> End {
        // Files closed a moment ago may still count as use.
        let unmounter = self.session().unmounter();
        wait_for("unmount", || match unmounter.unmount() {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => false,
            Err(error) => panic!("{error}"),
        });
        self.session.take().unwrap().join().unwrap()
    }

    pub fn take_session(&mut self) -> Session {
        self.session.take().unwrap()
    }
}

/// Polls until `done`, and fails after ten seconds.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// The error number of a call that has to fail.
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Turns a system call's result into Rust's.
pub fn check(result: impl Into<i64>) -> io::Result<i64> {
    match result.into() {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}
