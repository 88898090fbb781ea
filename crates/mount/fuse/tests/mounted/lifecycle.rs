//! Beginning and end: readiness, clean, lazy and forced unmounts, servers that hang, fail or die.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use kestrel_fuse::mount::{self, How};
use kestrel_fuse::null::{self, NullFs, NullOptions};
use kestrel_fuse::{
    Config, End, Entry, FileSystem, Mount, MountOptions, Negotiated, Notifier, Operation, Reply,
    Request, Session, TransportChoice,
};

use crate::helper::Helper;
use crate::kit::{Mounted, TempDir, can_mount, check, config, errno, wait_for};
use crate::replies::attr;

/// A file system that hangs on the name `hang`, counts good-byes, and may refuse to start.
#[derive(Default)]
struct Stubborn {
    hanging: Mutex<u32>,
    released: Mutex<bool>,
    release: Condvar,
    destroyed: AtomicU32,
    refuse: i32,
}

impl Stubborn {
    fn hang(&self) {
        *self.hanging.lock().unwrap() += 1;
        let mut released = self.released.lock().unwrap();
        while !*released {
            released = self.release.wait(released).unwrap();
        }
    }

    fn let_go(&self) {
        *self.released.lock().unwrap() = true;
        self.release.notify_all();
    }
}

impl FileSystem for Stubborn {
    fn init(&self, negotiated: &Negotiated, _: &Notifier) -> Result<(), i32> {
        assert!(negotiated.features.parallel_dirops && !negotiated.features.writeback_cache);
        if self.refuse == 0 { Ok(()) } else { Err(self.refuse) }
    }

    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Operation::Lookup { name } if name == "hang" => self.hang(),
            Operation::Lookup { name } if name == "file" => {
                let attr = attr(2, libc::S_IFREG | 0o644, 0);
                reply.entry(&Entry { nodeid: 2, attr, ..Entry::default() });
            }
            Operation::Lookup { .. } => reply.error(libc::ENOENT),
            Operation::Getattr { .. } => {
                let mode =
                    if request.nodeid == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
                reply.attr(&attr(request.nodeid, mode, 0), Duration::ZERO);
            }
            Operation::Open { .. } | Operation::Opendir { .. } => reply.opened(Default::default()),
            Operation::Forget(_) | Operation::Interrupt { .. } => {}
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn clean_unmount_waits_for_users() {
    if !can_mount() {
        return;
    }
    let fs = Arc::new(Stubborn::default());
    let mounted = Mounted::new(fs.clone());
    let unmounter = mounted.session().unmounter();
    assert!(unmounter.is_mounted());
    let entry = mount::find(mounted.dir()).unwrap().unwrap();
    assert!(entry.is_kestrel());
    assert_eq!((entry.source.to_str(), entry.device), (Some("kestrel"), unmounter.device()));
    let device = fs::metadata(mounted.dir()).unwrap().dev();
    assert_eq!((libc::major(device), libc::minor(device)), unmounter.device());

    let file = File::open(mounted.path("file")).unwrap();
    assert_eq!(unmounter.unmount().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    assert!(!mounted.session().is_over());
    drop(file);
    assert_eq!(mounted.unmount(), End::Unmounted);
    assert_eq!(fs.destroyed.load(Ordering::SeqCst), 1);
    assert!(!unmounter.is_mounted());
    unmounter.unmount().unwrap();
    unmounter.force().unwrap();
}

#[test]
fn open_files_after_a_lazy_unmount() {
    if !can_mount() {
        return;
    }
    let fs = Arc::new(Stubborn::default());
    let mut mounted = Mounted::new(fs.clone());
    let file = File::open(mounted.path("file")).unwrap();
    mounted.session().unmounter().detach().unwrap();
    assert_eq!(fs::read_dir(mounted.dir()).unwrap().count(), 0, "the directory below");
    file.metadata().unwrap();
    assert_eq!(fs.destroyed.load(Ordering::SeqCst), 0);
    drop(file);
    assert_eq!(mounted.take_session().join().unwrap(), End::Unmounted);
    assert_eq!(fs.destroyed.load(Ordering::SeqCst), 1);
}

/// Starts a process that looks up `hang`, and waits until the handler hangs.
fn hang(fs: &Stubborn, dir: &Path) -> std::process::Child {
    let child = Command::new("cat").arg(dir.join("hang")).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the handler to hang", || *fs.hanging.lock().unwrap() == 1);
    child
}

#[test]
fn force_gets_out_of_a_hung_handler() {
    if !can_mount() {
        return;
    }
    let fs = Arc::new(Stubborn::default());
    let config = Config { workers: 1, ..config() };
    let mut mounted = Mounted::with(fs.clone(), &MountOptions::default(), &config);
    let mut child = hang(&fs, mounted.dir());
    // A second caller, with no thread left to serve it.
    let mut second =
        Command::new("stat").arg(mounted.path("file")).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(50));

    let start = Instant::now();
    mount::unmount(mounted.dir(), How::Force).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(!second.wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(mount::find(mounted.dir()).unwrap(), None);
    let error = mount::unmount(mounted.dir(), How::Force).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");

    fs.let_go();
    mounted.take_session().join().unwrap();
    assert_eq!(fs.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn dropping_a_session_unmounts() {
    if !can_mount() {
        return;
    }
    let fs = Arc::new(Stubborn::default());
    let mut mounted = Mounted::new(fs.clone());
    let mut child = hang(&fs, mounted.dir());
    drop(mounted.take_session());
    assert_eq!(mount::find(mounted.dir()).unwrap(), None);
    assert!(!child.wait().unwrap().success());
    fs.let_go();
    wait_for("good-bye", || fs.destroyed.load(Ordering::SeqCst) == 1);
}

#[test]
fn mounts_that_are_not_served_go_away() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    drop(Mount::new(dir.path(), &MountOptions::default()).unwrap());
    assert_eq!(mount::find(dir.path()).unwrap(), None);

    let mount = Mount::new(dir.path(), &MountOptions::default()).unwrap();
    let refusing = Stubborn { refuse: libc::ENOSPC, ..Stubborn::default() };
    let error = Session::start(mount, refusing, &config()).err().unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(mount::find(dir.path()).unwrap(), None);
}

#[test]
fn wrong_mount_points() {
    let dir = TempDir::new();
    let options = MountOptions::default();
    assert!(Mount::new(&dir.path().join("absent"), &options).is_err());
    let error = mount::unmount(dir.path(), How::Clean).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
    let error = mount::unmount(Path::new("/proc"), How::Force).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
    if can_mount() {
        let file = dir.path().join("file");
        File::create(&file).unwrap();
        assert_eq!(Mount::new(&file, &options).err().unwrap().raw_os_error(), Some(libc::ENOTDIR));
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn options_reach_the_kernel() {
    if !can_mount() {
        return;
    }
    let mut options =
        MountOptions { source: "/data/my vol\\ume".into(), ..MountOptions::default() };
    for option in ["ro", "noexec", "allow_other", "max_read=65536"] {
        assert!(options.set(option));
    }
    let mounted = Mounted::with(NullFs::new(NullOptions::default()), &options, &config());
    let entry = mount::find(mounted.dir()).unwrap().unwrap();
    assert_eq!(entry.source, "/data/my vol\\ume");
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(entry.options.split(',').any(|o| o == option), "{option} in {}", entry.options);
    }
    assert!(
        entry.super_options.contains("allow_other")
            && entry.super_options.contains("max_read=65536")
    );
    assert_eq!(errno(File::create(mounted.path("x"))), libc::EROFS);
}

#[test]
fn unusual_names_and_paths() {
    if !can_mount() {
        return;
    }
    let outer = TempDir::new();
    let odd = outer.path().join("a b\\c\td\u{e9}#");
    fs::create_dir(&odd).unwrap();
    let link = outer.path().join("link");
    std::os::unix::fs::symlink(&odd, &link).unwrap();
    let session =
        null::start(&link, NullOptions::default(), &MountOptions::default(), &config()).unwrap();
    assert!(mount::find(&odd).unwrap().is_some());
    assert!(mount::find(&link).unwrap().is_some(), "through the symbolic link");
    mount::unmount(&link.join("../link"), How::Detach).unwrap();
    assert_eq!(session.join().unwrap(), End::Unmounted);
    fs::remove_file(link).unwrap();
    fs::remove_dir(odd).unwrap();
}

#[test]
fn a_mount_that_was_moved_is_found() {
    if !can_mount() {
        return;
    }
    let outer = TempDir::new();
    let (old, new) = (outer.path().join("old"), outer.path().join("new"));
    fs::create_dir_all(old.join("mnt")).unwrap();
    let session =
        null::start(&old.join("mnt"), NullOptions::default(), &MountOptions::default(), &config())
            .unwrap();
    fs::rename(&old, &new).unwrap();
    assert!(session.unmounter().is_mounted());
    session.unmounter().unmount().unwrap();
    assert_eq!(session.join().unwrap(), End::Unmounted);
    fs::remove_dir_all(new).unwrap();
}

#[test]
fn one_mount_on_another() {
    if !can_mount() {
        return;
    }
    let below = Mounted::null();
    File::create(below.path("below")).unwrap();
    let start = || {
        null::start(below.dir(), NullOptions::default(), &MountOptions::default(), &config())
            .unwrap()
    };
    let above = start();
    assert!(!below.path("below").exists());
    assert!(!below.session().unmounter().is_mounted(), "covered");
    below.session().unmounter().unmount().unwrap();
    assert!(above.unmounter().is_mounted(), "unmounting what is covered leaves the cover alone");
    above.unmounter().unmount().unwrap();
    above.join().unwrap();
    assert!(below.path("below").exists());
}

#[test]
fn a_dead_server_is_replaced() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut helper = Helper::serve(dir.path(), "", 0).unwrap();
    File::create(dir.path().join("file")).unwrap();
    helper.kill();
    // The kernel takes rings down a moment after the process.
    wait_for("the end of the connection", || errno(fs::metadata(dir.path())) == libc::ENOTCONN);
    assert!(mount::find(dir.path()).unwrap().is_some());
    let session =
        null::start(dir.path(), NullOptions::default(), &MountOptions::default(), &config())
            .unwrap();
    assert!(!dir.path().join("file").exists(), "a new file system");
    session.unmounter().unmount().unwrap();
    session.join().unwrap();
    assert_eq!(mount::find(dir.path()).unwrap(), None, "nothing is left of the dead one");
}

#[test]
fn abort_by_fusectl() {
    if !can_mount() {
        return;
    }
    // The connections' directory in a place of our own; abort() looks at the usual one, which may
    // not be mounted.
    let control = TempDir::new();
    let at = crate::kit::c_path(control.path());
    // SAFETY: live C strings.
    let rc = unsafe {
        libc::mount(c"none".as_ptr(), at.as_ptr(), c"fusectl".as_ptr(), 0, std::ptr::null())
    };
    if check(rc).is_err() {
        eprintln!("skipped: no fusectl");
        return;
    }
    let fs = Arc::new(Stubborn::default());
    let mut mounted = Mounted::new(fs.clone());
    let mut child = hang(&fs, mounted.dir());
    let minor = mounted.session().unmounter().device().1;
    let aborted = fs::write(control.path().join(format!("{minor}/abort")), "1");
    // SAFETY: a live C string.
    unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    aborted.unwrap();
    assert!(!child.wait().unwrap().success());
    fs.let_go();
    assert_eq!(mounted.take_session().join().unwrap(), End::Aborted);
    assert_eq!(mount::find(mounted.dir()).unwrap(), None, "join takes a dead mount away");
}

#[test]
fn through_fusermount() {
    let helper = |program| Command::new(program).arg("-V").stdout(Stdio::null()).status();
    if !can_mount() || helper("fusermount3").is_err() {
        eprintln!("skipped: needs fusermount3");
        return;
    }
    // As root, because the mount wants it.
    let options =
        MountOptions { use_helper: true, source: "a,b\\c".into(), ..MountOptions::default() };
    let mounted = Mounted::with(NullFs::new(NullOptions::default()), &options, &config());
    File::create(mounted.path("file")).unwrap();
    let entry = mount::find(mounted.dir()).unwrap().unwrap();
    assert_eq!((entry.fs_type.as_str(), entry.source.to_str()), ("fuse.kestrel", Some("a,b\\c")));
    mounted.unmount();

    // It complains in its own words.
    let dir = TempDir::new();
    let options = MountOptions { subtype: "k".repeat(5000), ..options };
    assert!(Mount::new(dir.path(), &options).is_err());

    // And watches over a server that dies.
    if crate::TRANSPORT == TransportChoice::Uring {
        return; // It looks too early: see `Config::transport`.
    }
    let mut server = Helper::serve(dir.path(), "use_helper,auto_unmount", 0).unwrap();
    server.kill();
    wait_for("auto_unmount", || mount::find(dir.path()).unwrap().is_none());
}

#[test]
fn without_privileges() {
    const NOBODY: u32 = 65534;
    let dir = TempDir::new();
    if !can_mount() || Command::new("fusermount3").arg("-V").stdout(Stdio::null()).status().is_err()
    {
        eprintln!("skipped: needs fusermount3");
        return;
    }
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), None).unwrap();
    let mut server = match Helper::serve(dir.path(), "", NOBODY) {
        Ok(server) => server,
        Err(error) if error.contains("Permission denied") => {
            eprintln!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let entry = mount::find(dir.path()).unwrap().unwrap();
    assert!(
        entry.super_options.contains("user_id=65534") && entry.options.contains("nosuid"),
        "{entry:?}"
    );
    assert_eq!(
        errno(fs::metadata(dir.path().join("x"))),
        libc::EACCES,
        "not even root without allow_other"
    );
    // Its owner may take it away.
    use std::os::unix::process::CommandExt;
    let status =
        Command::new("fusermount3").arg("-u").arg(dir.path()).uid(NOBODY).status().unwrap();
    assert!(status.success());
    assert_eq!(server.line(), "");
    assert_eq!(server.line(), "ended Ok(Unmounted)");
}
