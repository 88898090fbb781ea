//! What hints say about opening.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use kestrel_walkhint::{Hint, Intent};

use crate::rig::{Rig, Seen, ways};

/// The hint of the last LOOKUP, and the flags of the OPEN or CREATE after it.
fn last(rig: &Rig) -> (Option<Hint>, Option<u32>) {
    let mut result = (None, None);
    for seen in rig.seen() {
        match seen {
            Seen::Lookup { hint, .. } => result = (hint, None),
            Seen::Open { flags } => result.1 = Some(flags),
        }
    }
    result
}

/// Flags that the kernel takes out of an OPEN.
const NOT_SENT: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC;

/// The forecast is what comes.
fn comes_true(rig: &Rig, what: &str) -> Hint {
    let (hint, sent) = last(rig);
    let hint = hint.unwrap_or_else(|| panic!("{what}: no hint"));
    let hinted = hint.open_flags.unwrap_or_else(|| panic!("{what}: no flags"));
    let sent = sent.unwrap_or_else(|| panic!("{what}: no OPEN"));
    assert_eq!(
        hinted & !NOT_SENT as u32,
        sent & !NOT_SENT as u32,
        "{what}: {hinted:#o} told, {sent:#o} sent"
    );
    assert!(hint.intent.open && !hint.follows, "{what}");
    hint
}

#[test]
fn opens_of_path_descriptors() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/b");
        for (flags, keeps) in [
            (libc::O_PATH, true),
            (libc::O_PATH | libc::O_DIRECTORY, true),
            (libc::O_DIRECTORY, false),
        ] {
            OpenOptions::new().read(true).custom_flags(flags).open(rig.path("a/b")).unwrap();
            assert_eq!(last(&rig).0.unwrap().keeps, keeps, "{flags:#o}");
        }
        fs::metadata(rig.path("a/b")).unwrap();
        assert!(!last(&rig).0.unwrap().keeps);
    }
}

#[test]
fn flags_are_forecast() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/b");
        rig.file("a/b/f");
        let path = rig.path("a/b/f");
        let only_open = Intent { open: true, follow: true, ..Intent::default() };

        File::open(&path).unwrap();
        assert_eq!(comes_true(&rig, "O_RDONLY").intent, only_open);
        OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert_eq!(comes_true(&rig, "O_RDWR").intent, only_open);
        OpenOptions::new()
            .append(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_SYNC)
            .open(&path)
            .unwrap();
        comes_true(&rig, "O_APPEND");
        let hint = {
            OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
            comes_true(&rig, "O_TRUNC")
        };
        assert_ne!(hint.open_flags.unwrap() & libc::O_TRUNC as u32, 0);

        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(rig.path("a/b/new"))
            .unwrap();
        let hint = comes_true(&rig, "O_CREAT");
        assert_eq!(hint.intent, Intent { create: true, ..only_open });
        OpenOptions::new().write(true).create_new(true).open(rig.path("a/b/newer")).unwrap();
        let hint = comes_true(&rig, "O_EXCL");
        assert_eq!(
            hint.intent,
            Intent { create: true, exclusive: true, follow: false, ..only_open }
        );

        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(rig.path("a/b"))
            .unwrap();
        let (hint, _) = last(&rig);
        assert_eq!(hint.unwrap().intent, Intent { directory: true, ..only_open });
        // Relative to a directory.
        open_at(&directory, "f", libc::O_WRONLY);
        comes_true(&rig, "openat");
        // Only a name: not opened.
        OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        let (hint, sent) = last(&rig);
        let hint = hint.unwrap();
        let followed = Intent { follow: true, ..Intent::default() };
        assert_eq!((hint.intent, hint.open_flags, sent), (followed, None, None));
    }
}

fn open_at(directory: &File, name: &str, flags: i32) {
    let name = CString::new(name).unwrap();
    // SAFETY: the name ends in NUL; the descriptor is closed.
    unsafe {
        assert_eq!(libc::close(libc::openat(directory.as_raw_fd(), name.as_ptr(), flags)), 0)
    };
}

/// The other system calls that open.
#[test]
fn every_call_that_opens() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.file("f");
        let path = CString::new(rig.path("f").as_os_str().as_bytes()).unwrap();
        let how: [u64; 3] = [(libc::O_RDWR | libc::O_APPEND) as u64, 0, 0];
        let open = |number: i64, args: [u64; 4]| {
            // SAFETY: a call that opens, with arguments as it takes them; paths and structures live
            // on.
            let fd = unsafe { libc::syscall(number, args[0], args[1], args[2], args[3]) };
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            // SAFETY: ours.
            unsafe { libc::close(fd as i32) };
        };
        let (here, name) = (libc::AT_FDCWD as u64, path.as_ptr() as u64);
        open(libc::SYS_openat2, [here, name, how.as_ptr() as u64, 24]);
        comes_true(&rig, "openat2");
        #[cfg(target_arch = "x86_64")]
        {
            open(libc::SYS_open, [name, libc::O_RDWR as u64, 0, 0]);
            comes_true(&rig, "open");
            open(libc::SYS_creat, [name, 0o600, 0, 0]);
            let hint = comes_true(&rig, "creat");
            assert!(hint.intent.create);
        }
        let exe = rig.path("exe.x");
        let error = Command::new(&exe).spawn().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOEXEC), "{error}");
        comes_true(&rig, "execve");
    }
}

/// The flags of a walk within the path are not yet those of its end.
#[test]
fn directories_on_the_way_have_no_intent() {
    for way in ways() {
        let rig = Rig::new(way);
        rig.dirs("a/b");
        rig.file("a/b/f");
        let through = rig.path("lnk.a+b+f");
        for path in [rig.path("a/b/f"), through] {
            fs::read(&path).unwrap();
            let hints = rig.hinted();
            assert!(hints.iter().filter(|(_, hint)| hint.follows).all(|(_, hint)| {
                hint.intent == Intent::default() && hint.open_flags.is_none()
            }));
            assert!(hints.last().unwrap().1.intent.open);
        }
        assert!(Path::new("/proc/self").exists());
    }
}
