//! Which transport a mount gets, and the reason that it gives. These tests set the fuse module's
//! switch for io_uring, so they need it for themselves; they wait a while for other tests of the
//! machine to let go of it.

#![allow(clippy::unwrap_used)] // What a test helper cannot do is a failed test.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kestrel_fuse::null::{self, NullOptions};
use kestrel_fuse::{Config, End, MountOptions, Session, TransportChoice};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const LOCK: &str = "/run/lock/kestrel-uring";

/// The switch in the hand of this test alone; what it was is restored.
struct Switch {
    before: String,
    _lock: File,
}

impl Switch {
    fn take() -> Option<Switch> {
        // SAFETY: no preconditions.
        if unsafe { libc::geteuid() } != 0 || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        }
        let Ok(before) = fs::read_to_string(SWITCH) else {
            eprintln!("skipped: no {SWITCH}");
            return None;
        };
        let lock = File::options().create(true).append(true).open(LOCK).unwrap();
        let start = Instant::now();
        // SAFETY: a live descriptor.
        while unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            if start.elapsed() > Duration::from_secs(20) {
                eprintln!("skipped: other tests use {SWITCH}");
                return None;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let switch = Switch { before, _lock: lock };
        if fs::write(SWITCH, &switch.before).is_err() {
            eprintln!("skipped: {SWITCH} cannot be written");
            return None;
        }
        Some(switch)
    }

    fn set(&self, on: bool) {
        fs::write(SWITCH, if on { "Y" } else { "N" }).unwrap();
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, &self.before);
    }
}

/// A directory with a mount on it.
struct Mounted {
    dir: PathBuf,
    session: Option<Session>,
}

impl Mounted {
    fn start(transport: TransportChoice) -> Result<Mounted, String> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = std::env::temp_dir()
            .join(format!("kestrel-transports.{}.{number}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let config = Config { transport, ..Config::default() };
        match null::start(&dir, NullOptions::default(), &MountOptions::default(), &config) {
            Ok(session) => Ok(Mounted { dir, session: Some(session) }),
            Err(why) => {
                assert_eq!(kestrel_fuse::mount::find(&dir).unwrap(), None, "nothing is left");
                fs::remove_dir(&dir).unwrap();
                Err(why.to_string())
            }
        }
    }

    /// Uses the mount, unmounts it, and answers the transport and its reason.
    fn use_once(mut self) -> (&'static str, String) {
        let session = self.session.take().unwrap();
        fs::write(self.dir.join("file"), "text").unwrap();
        assert_eq!(fs::read(self.dir.join("file")).unwrap(), [0; 4]);
        let transport = (session.transport(), session.transport_why().to_owned());
        session.unmounter().unmount().or_else(|_| session.unmounter().detach()).unwrap();
        assert_eq!(session.join().unwrap(), End::Unmounted);
        transport
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.unmounter().force();
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Forbids io_uring_setup to this thread.
fn forbid_io_uring() {
    let statement =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    // Loads the call's number; refuses this one with EPERM; lets others pass.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a live program.
    let rc =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn as_chosen_and_as_the_machine_allows() {
    let Some(switch) = Switch::take() else { return };
    let start = Mounted::start;

    switch.set(true);
    let (name, why) = start(TransportChoice::Auto).unwrap().use_once();
    if name == "device" {
        eprintln!("skipped: this kernel has no FUSE over io_uring: {why}");
        return;
    }
    assert_eq!((name, why.as_str()), ("io_uring", "the kernel offers it"));
    assert_eq!(start(TransportChoice::Uring).unwrap().use_once(), ("io_uring", "chosen".into()));
    assert_eq!(start(TransportChoice::Device).unwrap().use_once(), ("device", "chosen".into()));

    // What serves goes on when it is switched off; new mounts do without.
    let before = start(TransportChoice::Uring).unwrap();
    switch.set(false);
    assert_eq!(before.use_once().0, "io_uring");
    let (name, why) = start(TransportChoice::Auto).unwrap().use_once();
    assert_eq!(name, "device");
    assert!(why.contains("switched off") && why.contains("enable_uring"), "{why}");
    let error = start(TransportChoice::Uring).err().unwrap();
    assert!(error.starts_with("cannot serve over io_uring: it is switched off"), "{error}");

    // The kernel would, the process may not.
    switch.set(true);
    std::thread::spawn(move || {
        forbid_io_uring();
        let (name, why) = start(TransportChoice::Auto).unwrap().use_once();
        assert_eq!(name, "device");
        assert!(why.contains("may not use io_uring"), "{why}");
        let error = start(TransportChoice::Uring).err().unwrap();
        assert!(error.contains("may not use io_uring"), "{error}");
    })
    .join()
    .unwrap();
}
