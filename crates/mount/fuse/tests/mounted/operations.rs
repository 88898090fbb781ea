//! Every operation as this kernel sends it: system calls against a file system that writes down
//! what arrives.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kestrel_fuse::{
    Config, Dirents, Entry, Features, FileKind, FileSystem, Lock, MountOptions, OpenFlags, Opened,
    Operation, ReaddirPlus, Reply, Request, Statfs, Statx, Timestamp,
};

use crate::kit::{Mounted, c_path, can_mount, check, config, errno};
use crate::replies::attr;

const FILE: u32 = libc::S_IFREG | 0o644;

/// Node 1 is the root; names beginning with d are directories, with l symbolic links, with -
/// absent, others files.
#[derive(Default)]
struct Recorder {
    log: Mutex<Vec<String>>,
    /// Address of the last payload.
    payload: Mutex<usize>,
    open_flags: OpenFlags,
}

impl Recorder {
    fn mode(nodeid: u64) -> u32 {
        match nodeid {
            1 | 2 => libc::S_IFDIR | 0o777,
            3 => libc::S_IFLNK | 0o777,
            _ => FILE,
        }
    }

    fn entry(nodeid: u64) -> Entry {
        Entry { nodeid, attr: attr(100 + nodeid, Self::mode(nodeid), 1 << 20), ..Entry::default() }
    }

    fn nodeid(name: &str) -> u64 {
        match name.as_bytes()[0] {
            b'd' => 2,
            b'l' => 3,
            byte => u64::from(byte),
        }
    }

    /// What was written down since the last call, lookups and the like left out.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    #[track_caller]
    fn expect(&self, part: &str) {
        let log = self.take();
        assert!(log.iter().any(|line| line.contains(part)), "no {part:?} in {log:#?}");
    }
}

impl FileSystem for Recorder {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let mut line = format!("{} n{} {:?}", request.opcode.name(), request.nodeid, request.op);
        if let Some(group) = request.supp_group {
            let _ = write!(line, " group {group}");
        }
        self.log.lock().unwrap().push(line);
        match request.op {
            Operation::Lookup { name } if name.to_str().unwrap().starts_with('-') => {
                reply.error(libc::ENOENT)
            }
            Operation::Lookup { name } => {
                reply.entry(&Self::entry(Self::nodeid(name.to_str().unwrap())))
            }
            Operation::Symlink { .. } => reply.entry(&Self::entry(3)),
            Operation::Mkdir { .. } => reply.entry(&Self::entry(2)),
            Operation::Mknod { .. } => reply.entry(&Self::entry(b'm'.into())),
            Operation::Link { target, .. } => reply.entry(&Self::entry(target)),
            Operation::Getattr { .. } | Operation::Setattr(_) => {
                reply.attr(&Self::entry(request.nodeid).attr, Duration::ZERO)
            }
            Operation::Readlink => reply.data(b"where/ever"),
            Operation::Open { .. } | Operation::Opendir { .. } => {
                reply.opened(Opened { fh: 88, flags: self.open_flags, backing_id: 0 })
            }
            Operation::Create { .. } | Operation::Tmpfile { .. } => reply.created(
                &Self::entry(b'c'.into()),
                Opened { fh: 99, flags: self.open_flags, backing_id: 0 },
            ),
            Operation::Read { offset, size, .. } => {
                reply.data(&vec![(offset >> 12) as u8; size as usize]);
            }
            Operation::Write(write) => {
                *self.payload.lock().unwrap() = write.data.as_ptr() as usize;
                assert!(write.data.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
                reply.written(write.data.len() as u32);
            }
            Operation::Statfs => reply.statfs(&Statfs {
                blocks: 1000,
                bfree: 500,
                bavail: 400,
                files: 30,
                ffree: 20,
                bsize: 4096,
                frsize: 1024,
                namelen: 255,
            }),
            Operation::Getxattr { name, size } if name == "user.a" => reply.xattr(size, b"value"),
            Operation::Getxattr { .. } => reply.error(libc::ENODATA),
            Operation::Listxattr { size } => reply.xattr(size, b"user.a\0user.b\0"),
            Operation::Readdir { offset, size, .. } => {
                let mut dirents = Dirents::plain(size);
                if offset == 0 {
                    assert!(dirents.push("file".as_ref(), 7, FileKind::Regular, 1));
                    assert!(dirents.push("dir".as_ref(), 8, FileKind::Directory, 2));
                }
                reply.dirents(dirents);
            }
            Operation::Readdirplus { offset, size, .. } => {
                let mut dirents = Dirents::plus(size);
                if offset == 0 {
                    assert!(dirents.push_plus("file".as_ref(), &Self::entry(b'f'.into()), 1));
                    assert!(dirents.push_plus("dir".as_ref(), &Self::entry(2), 2));
                }
                reply.dirents(dirents);
            }
            Operation::Lseek { offset, .. } => reply.lseek(offset + 5),
            Operation::CopyFileRange { length, .. } => reply.copied(length),
            Operation::Statx { .. } => reply.statx(&Statx {
                attr: Self::entry(request.nodeid).attr,
                btime: Some(Timestamp { sec: 12345, nsec: 6 }),
                ..Statx::default()
            }),
            Operation::Ioctl(ioctl) => reply.ioctl(3, &vec![b'o'; ioctl.out_size as usize]),
            Operation::Poll { .. } => reply.poll(libc::POLLIN as u32),
            Operation::Getlk(lock) => {
                reply.lock(&Lock { kind: libc::F_WRLCK as u32, pid: 1, ..lock })
            }
            Operation::Forget(_) | Operation::Interrupt { .. } => {}
            _ => reply.empty(),
        }
    }
}

fn mounted(features: Features) -> Option<(Arc<Recorder>, Mounted)> {
    mounted_opening(features, OpenFlags::default())
}

fn mounted_opening(features: Features, open_flags: OpenFlags) -> Option<(Arc<Recorder>, Mounted)> {
    can_mount().then(|| {
        let recorder = Arc::new(Recorder { open_flags, ..Recorder::default() });
        let config = Config { features, ..config() };
        let mounted = Mounted::with(recorder.clone(), &MountOptions::default(), &config);
        (recorder, mounted)
    })
}

#[test]
fn names() {
    let Some((recorder, mounted)) = mounted(Features::default()) else { return };
    let path = |name: &str| mounted.path(name);
    std::os::unix::fs::symlink("some/target", path("-l")).unwrap();
    recorder.expect(r#"symlink n1 Symlink { name: "-l", target: "some/target" }"#);
    assert_eq!(fs::read_link(path("link")).unwrap().to_str(), Some("where/ever"));
    recorder.expect("readlink n3");
    fs::create_dir(path("-d")).unwrap();
    recorder.expect(
        r#"mkdir n1 Mkdir { name: "-d", mode: 511, umask: 18 }"#.replace("511", "493").as_str(),
    );
    let fifo = c_path(&path("-fifo"));
    // SAFETY: a live C string.
    check(unsafe { libc::mknod(fifo.as_ptr(), libc::S_IFREG | 0o600, 0) }).unwrap();
    recorder.expect(r#"Mknod { name: "-fifo", mode: 33152, rdev: 0"#);
    fs::hard_link(path("file"), path("-new")).unwrap();
    recorder.expect(r#"link n1 Link { target: 102, new_name: "-new" }"#);
    fs::rename(path("file"), path("dir/-other")).unwrap();
    recorder.expect(r#"Rename { name: "file", new_parent: 2, new_name: "-other", flags: 0 }"#);
    let (from, to) = (c_path(&path("file")), c_path(&path("dir/other")));
    let flags = libc::RENAME_EXCHANGE;
    // SAFETY: live C strings.
    check(unsafe { libc::renameat2(-1, from.as_ptr(), -1, to.as_ptr(), flags) }).unwrap();
    recorder.expect("rename2 n1");
    fs::remove_file(path("dir/file")).unwrap();
    recorder.expect(r#"unlink n2 Unlink { name: "file" }"#);
    fs::remove_dir(path("dir")).unwrap();
    recorder.expect(r#"rmdir n1 Rmdir { name: "dir" }"#);
    // SAFETY: a live C string.
    check(unsafe { libc::access(c_path(&path("file")).as_ptr(), libc::R_OK | libc::W_OK) })
        .unwrap();
    recorder.expect("access n102 Access { mask: 6 }");
    let forgets = || recorder.log.lock().unwrap().iter().any(|line| line.contains("Forget"));
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    crate::kit::wait_for("forget", forgets);
    assert_eq!(mounted.session().stats(), Default::default());
}

#[test]
fn attributes() {
    let Some((recorder, mounted)) = mounted(Features::default()) else { return };
    let file = mounted.path("file");
    assert_eq!(fs::metadata(&file).unwrap().ino(), 202);
    recorder.take();
    // SAFETY: plain data, filled by the call on a live C string.
    check(unsafe { libc::stat(c_path(&file).as_ptr(), &raw mut *Box::new(std::mem::zeroed())) })
        .unwrap();
    recorder.expect("getattr n102 Getattr { fh: None }");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o4750)).unwrap();
    recorder.expect("mode: Some(35304)");
    std::os::unix::fs::chown(&file, Some(5), Some(6)).unwrap();
    recorder.expect("uid: Some(5), gid: Some(6)");
    File::options().write(true).open(&file).unwrap().set_len(77).unwrap();
    recorder.expect("Setattr { fh: Some(88), mode: None, uid: None, gid: None, size: Some(77)");
    let times = [
        libc::timespec { tv_sec: -5, tv_nsec: 999_999_999 },
        libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
    ];
    // SAFETY: a live C string and two timespecs.
    check(unsafe { libc::utimensat(-1, c_path(&file).as_ptr(), times.as_ptr(), 0) }).unwrap();
    recorder.expect("atime: Some(At(Timestamp { sec: -5, nsec: 999999999 })), mtime: Some(Now)");
    // SAFETY: plain data, filled by the call.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let name = c_path(&file);
    // SAFETY: a live C string and a live structure.
    check(unsafe { libc::statx(-1, name.as_ptr(), 0, libc::STATX_BTIME, &raw mut stat) }).unwrap();
    recorder.expect("statx n102");
    assert_eq!((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec), (12345, 6));
    // SAFETY: plain data, filled by the call.
    let mut totals: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a live C string and a live structure.
    check(unsafe { libc::statfs(name.as_ptr(), &raw mut totals) }).unwrap();
    assert_eq!(
        (totals.f_blocks, totals.f_bavail, totals.f_frsize, totals.f_namelen),
        (1000, 400, 1024, 255)
    );
    assert_eq!(mounted.session().stats(), Default::default());
}

#[test]
fn extended_attributes() {
    let Some((recorder, mounted)) = mounted(Features::default()) else { return };
    let file = c_path(&mounted.path("file"));
    let get = |name: &CStr, room: usize| {
        let mut value = vec![0u8; room];
        // SAFETY: live C strings and a buffer of the given size.
        let len = check(unsafe {
            libc::getxattr(file.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), room) as i64
        })?;
        value.truncate(len as usize);
        std::io::Result::Ok(value)
    };
    assert_eq!(get(c"user.a", 10).unwrap(), b"value");
    assert_eq!(errno(get(c"user.a", 2)), libc::ERANGE);
    assert_eq!(errno(get(c"user.none", 2)), libc::ENODATA);
    // SAFETY: live C strings and values of the given sizes.
    unsafe {
        assert_eq!(libc::getxattr(file.as_ptr(), c"user.a".as_ptr(), std::ptr::null_mut(), 0), 5);
        assert_eq!(libc::listxattr(file.as_ptr(), std::ptr::null_mut(), 0), 14);
        recorder.take();
        let set = |value: &[u8], flags| {
            check(libc::setxattr(
                file.as_ptr(),
                c"user.b".as_ptr(),
                value.as_ptr().cast(),
                value.len(),
                flags,
            ))
        };
        set(b"xy", libc::XATTR_CREATE).unwrap();
        recorder.expect(
            r#"Setxattr { name: "user.b", value: [120, 121], flags: 1, kill_sgid: false }"#,
        );
        set(&[b'z'; 65536], 0).unwrap();
        recorder.expect("setxattr n102");
        check(libc::removexattr(file.as_ptr(), c"user.b".as_ptr())).unwrap();
    }
    recorder.expect(r#"Removexattr { name: "user.b" }"#);
    assert_eq!(mounted.session().stats(), Default::default());
}

#[test]
fn open_files() {
    let direct = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES;
    let Some((recorder, mounted)) = mounted_opening(Features::default(), direct) else { return };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .truncate(true)
        .open(mounted.path("file"))
        .unwrap();
    recorder.expect(&format!(
        "Open {{ flags: {}",
        libc::O_RDWR | libc::O_TRUNC | libc::O_LARGEFILE | 0o100000
    ));

    // A megabyte travels in one piece, with its payload on a page boundary.
    // (A caller's buffer that straddles one page more would make two.)
    let mut data = vec![0u8; (1 << 20) + 4096];
    let start = data.as_ptr().align_offset(4096);
    let data = &mut data[start..][..1 << 20];
    data.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    assert_eq!(file.write_at(data, 1 << 40).unwrap(), 1 << 20);
    recorder.expect("Write { fh: 88, offset: 1099511627776, bytes: 1048576");
    assert_eq!(*recorder.payload.lock().unwrap() % 4096, 0);
    assert_eq!(file.read_at(data, 7 << 12).unwrap(), 1 << 20);
    assert!(data.iter().all(|byte| *byte == 7));
    recorder.expect("Read { fh: 88, offset: 28672, size: 1048576");

    file.sync_all().unwrap();
    recorder.expect("Fsync { fh: 88, datasync: false }");
    file.sync_data().unwrap();
    recorder.expect("Fsync { fh: 88, datasync: true }");
    let fd = file.as_raw_fd();
    // SAFETY: plain calls on an open descriptor, with buffers that live.
    unsafe {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        check(libc::fallocate(fd, mode, 10, 20)).unwrap();
        recorder.expect("Fallocate { fh: 88, offset: 10, length: 20, mode: 3 }");
        assert_eq!(libc::lseek(fd, 100, libc::SEEK_HOLE), 105);
        recorder.expect("Lseek { fh: 88, offset: 100, whence: 4 }");
        let other = File::options().write(true).open(mounted.path("other")).unwrap();
        let (mut from, mut to) = (1, 2);
        let length = 3 << 20;
        assert_eq!(
            libc::copy_file_range(fd, &mut from, other.as_raw_fd(), &mut to, length, 0),
            length as isize
        );
        recorder.expect(
            "fh_in: 88, offset_in: 1, nodeid_out: 111, fh_out: 88, offset_out: 2, length: 3145728",
        );
        // _IOWR('k', 1, [u8; 8])
        let mut argument = *b"abcdefgh";
        assert_eq!(libc::ioctl(fd, 0xc008_6b01, &raw mut argument), 3);
        assert_eq!(&argument, b"oooooooo");
        recorder.expect("Ioctl { fh: 88, flags: 0, cmd: 3221777153");
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&raw mut poll, 1, 0), 1);
        recorder.expect("poll n102");
    }
    drop(file);
    crate::kit::wait_for("release", || {
        recorder.log.lock().unwrap().iter().any(|l| l.contains("Release {"))
    });
    recorder.expect("Flush { fh: 88");

    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(mounted.path("-c"))
        .unwrap();
    recorder.expect(r#"Create { name: "-c", mode: 33184, umask: 18"#);
    created.set_len(1).unwrap();
    recorder.expect("fh: Some(99)");
    let flags = libc::O_TMPFILE;
    OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .mode(0o600)
        .open(mounted.path("dir"))
        .unwrap();
    recorder.expect("tmpfile n2 Tmpfile { mode: 33152");
    assert_eq!(mounted.session().stats(), Default::default());
}

#[test]
fn directories() {
    for readdirplus in [ReaddirPlus::Never, ReaddirPlus::Auto, ReaddirPlus::Always] {
        let Some((recorder, mounted)) = mounted(Features { readdirplus, ..Features::default() })
        else {
            return;
        };
        let names: Vec<_> =
            fs::read_dir(mounted.path("dir")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["file", "dir"]);
        let plus =
            recorder.log.lock().unwrap().iter().any(|line| line.starts_with("readdirplus n2"));
        assert_eq!(plus, readdirplus != ReaddirPlus::Never);
        let dir = File::open(mounted.path("dir")).unwrap();
        dir.sync_all().unwrap();
        recorder.expect("Fsyncdir { fh: 88, datasync: false }");
        drop(dir);
        crate::kit::wait_for("releasedir", || {
            recorder.log.lock().unwrap().iter().any(|line| line.contains("Releasedir {"))
        });
        assert_eq!(mounted.session().stats(), Default::default());
    }
}

#[test]
fn locks() {
    let features = Features { posix_locks: true, flock_locks: true, ..Features::default() };
    let Some((recorder, mounted)) = mounted(features) else { return };
    let file = File::options().read(true).write(true).open(mounted.path("file")).unwrap();
    // SAFETY: plain data; plain calls on an open descriptor with a live structure.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as i16, 10, 20);
        check(libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock)).unwrap();
        recorder.expect("start: 10, end: 29, kind: 1");
        check(libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &raw const lock)).unwrap();
        recorder.expect("wait: true");
        check(libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock)).unwrap();
        assert_eq!((lock.l_type, lock.l_start, lock.l_pid), (libc::F_WRLCK as i16, 10, 1));
        check(libc::flock(file.as_raw_fd(), libc::LOCK_EX)).unwrap();
        recorder.expect("flock: true");
    }
    assert_eq!(mounted.session().stats(), Default::default());
}

#[test]
fn kernel_keeps_locks_by_default() {
    let Some((recorder, mounted)) = mounted(Features::default()) else { return };
    let open = || File::options().read(true).write(true).open(mounted.path("file")).unwrap();
    let (first, second) = (open(), open());
    // SAFETY: plain calls on open descriptors.
    unsafe {
        check(libc::flock(first.as_raw_fd(), libc::LOCK_EX)).unwrap();
        assert_eq!(
            errno(check(libc::flock(second.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB))),
            libc::EWOULDBLOCK
        );
    }
    assert!(!recorder.take().iter().any(|line| line.contains("etlk")));
}

#[test]
fn working_directory_and_descriptors() {
    let Some((recorder, mounted)) = mounted(Features::default()) else { return };
    let dir = c_path(&mounted.path("dir"));
    // SAFETY: a live C string; the descriptor is ours.
    let dir = unsafe {
        let fd = check(libc::open(dir.as_ptr(), libc::O_PATH | libc::O_CLOEXEC)).unwrap();
        OwnedFd::from_raw_fd(fd as i32)
    };
    recorder.take();
    // SAFETY: a live descriptor and C string.
    check(unsafe { libc::faccessat(dir.as_raw_fd(), c"sub".as_ptr(), libc::X_OK, 0) }).unwrap();
    recorder.expect("lookup n2");
    assert_eq!(mounted.session().stats(), Default::default());
}
