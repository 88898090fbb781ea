//! Answers: late, from other threads, never, and wrong ones.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kestrel_fuse::{
    Attr, Config, Entry, FileSystem, MountOptions, OpenFlags, Opened, Operation, Reply, Request,
};

use crate::kit::{Mounted, can_mount, config, errno};

const DIR: u32 = libc::S_IFDIR | 0o755;
const FILE: u32 = libc::S_IFREG | 0o644;

pub fn attr(ino: u64, mode: u32, size: u64) -> Attr {
    Attr { ino, mode, size, nlink: 1, blksize: 4096, ..Attr::default() }
}

/// Any name is a file; what its READ does depends on the name.
struct Odd {
    names: Mutex<Vec<String>>,
    later: Sender<Box<dyn FnOnce() + Send>>,
}

impl Odd {
    fn new() -> Odd {
        let (later, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || {
            for job in jobs {
                job();
            }
        });
        Odd { names: Mutex::default(), later }
    }

    fn read(&self, name: &str, reply: Reply) {
        let later = |job: Box<dyn FnOnce() + Send>| self.later.send(job).unwrap();
        match name {
            "inline" => reply.data(b"now"),
            "pieces" => reply.data_vectored(&[b"a", b"", b"bc"]),
            "later" => later(Box::new(move || {
                std::thread::sleep(Duration::from_millis(20));
                reply.data(b"later");
            })),
            "dropped" => drop(reply),
            "dropped-later" => later(Box::new(move || drop(reply))),
            "panics" => panic!("expected by the test"),
            "bad-errno" => reply.error(100_000),
            "too-much" => reply.data(&vec![b'x'; 1 << 20]),
            _ => reply.error(libc::EREMOTEIO),
        }
    }
}

impl FileSystem for Odd {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Operation::Lookup { name } => {
                let mut names = self.names.lock().unwrap();
                names.push(name.to_str().unwrap().to_owned());
                let nodeid = names.len() as u64 + 1;
                // All files are one inode under many node ids.
                reply.entry(&Entry { nodeid, attr: attr(4711, FILE, 4096), ..Entry::default() });
            }
            Operation::Getattr { .. } if request.nodeid == 1 => {
                reply.attr(&attr(1, DIR, 0), Duration::ZERO)
            }
            Operation::Getattr { .. } => reply.attr(&attr(4711, FILE, 4096), Duration::ZERO),
            Operation::Open { .. } => reply.opened(Opened::default()),
            Operation::Read { .. } => {
                let name = self.names.lock().unwrap()[request.nodeid as usize - 2].clone();
                self.read(&name, reply);
            }
            Operation::Forget(_) => {}
            _ => reply.error(libc::ENOSYS),
        }
    }
}

#[test]
fn every_kind_of_answer() {
    if !can_mount() {
        return;
    }
    let mounted =
        Mounted::with(Odd::new(), &MountOptions::default(), &Config { workers: 3, ..config() });
    let read = |name: &str| {
        let mut content = Vec::new();
        File::open(mounted.path(name))?.read_to_end(&mut content)?;
        std::io::Result::Ok(content)
    };
    // Pages beyond the answer read as zeros up to the size; the beginning is what counts.
    assert_eq!(&read("inline").unwrap()[..3], b"now");
    assert_eq!(&read("pieces").unwrap()[..3], b"abc");
    assert_eq!(&read("later").unwrap()[..5], b"later");
    for name in ["dropped", "dropped-later", "panics", "bad-errno", "too-much"] {
        assert_eq!(errno(read(name)), libc::EIO, "{name}");
    }
    assert_eq!(errno(read("other")), libc::EREMOTEIO);
    // Counted after the caller has its error.
    crate::kit::wait_for("counting", || {
        let stats = mounted.session().stats();
        stats.panics > 0 && stats.refused > 0
    });
    assert_eq!(mounted.session().stats().malformed, 0);
    // All worker threads are still there.
    for _ in 0..20 {
        assert_eq!(&read("inline").unwrap()[..3], b"now");
    }
}

#[test]
fn inode_numbers_are_not_node_ids() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(Odd::new());
    for name in ["a", "b", "a"] {
        assert_eq!(fs::metadata(mounted.path(name)).unwrap().ino(), 4711);
    }
}

/// Keeps reads until the test answers them; an interrupted one answers EINTR.
struct Deferred(Arc<Mutex<Vec<(u64, Reply)>>>);

impl FileSystem for Deferred {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Operation::Lookup { name } => {
                let nodeid = name.to_str().unwrap().parse::<u64>().unwrap() + 2;
                reply.entry(&Entry { nodeid, attr: attr(nodeid, FILE, 8), ..Entry::default() });
            }
            Operation::Getattr { .. } if request.nodeid == 1 => {
                reply.attr(&attr(1, DIR, 0), Duration::ZERO)
            }
            Operation::Getattr { .. } => reply.attr(&attr(request.nodeid, FILE, 8), Duration::ZERO),
            Operation::Open { .. } => {
                reply.opened(Opened { flags: OpenFlags::DIRECT_IO, ..Opened::default() })
            }
            Operation::Read { .. } => self.0.lock().unwrap().push((request.nodeid, reply)),
            Operation::Interrupt { unique } => {
                let mut waiting = self.0.lock().unwrap();
                if let Some(at) = waiting.iter().position(|(_, reply)| reply.unique() == unique) {
                    waiting.remove(at).1.error(libc::EINTR);
                }
            }
            Operation::Forget(_) => {}
            _ => reply.error(libc::ENOSYS),
        }
    }
}

#[test]
fn one_worker_many_requests_in_progress() {
    if !can_mount() {
        return;
    }
    const READERS: u64 = 32;
    let waiting = Arc::new(Mutex::new(Vec::new()));
    let config = Config { workers: 1, ..config() };
    let mounted = Mounted::with(Deferred(waiting.clone()), &MountOptions::default(), &config);
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let path = mounted.path(&reader.to_string());
            scope.spawn(move || {
                let mut content = [0; 8];
                File::open(path).unwrap().read_exact(&mut content).unwrap();
                assert_eq!(u64::from_le_bytes(content), reader + 2);
            });
        }
        // All of them wait at once, though there is one thread to serve them.
        crate::kit::wait_for("all readers waiting", || {
            waiting.lock().unwrap().len() == READERS as usize
        });
        for (node, reply) in waiting.lock().unwrap().drain(..).rev() {
            reply.data(&node.to_le_bytes());
        }
    });
}

/// Sleeps in every read until as many as the test wants are asleep.
struct Sleepy {
    asleep: Arc<Mutex<u64>>,
    wanted: u64,
}

impl FileSystem for Sleepy {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Operation::Read { .. } => {
                *self.asleep.lock().unwrap() += 1;
                kestrel_fuse::block_in_place(|| {
                    crate::kit::wait_for("company", || *self.asleep.lock().unwrap() >= self.wanted)
                });
                reply.data(b"12345678");
            }
            _ => Deferred(Arc::default()).handle(request, reply),
        }
    }
}

#[test]
fn spare_workers_take_over() {
    if !can_mount() {
        return;
    }
    const WANTED: u64 = 9;
    let asleep = Arc::new(Mutex::new(0));
    // One worker slot and eight spare threads: nine can sleep.
    let config = Config { workers: 1, spare_workers: WANTED as usize - 1, ..config() };
    let mounted = Mounted::with(
        Sleepy { asleep: asleep.clone(), wanted: WANTED },
        &MountOptions::default(),
        &config,
    );
    for round in 1..=3 {
        std::thread::scope(|scope| {
            for reader in 0..WANTED {
                let path = mounted.path(&reader.to_string());
                scope.spawn(move || {
                    let mut content = [0; 8];
                    File::open(path).unwrap().read_exact(&mut content).unwrap();
                    assert_eq!(&content, b"12345678", "round {round}");
                });
            }
        });
        *asleep.lock().unwrap() = 0;
    }
    assert_eq!(mounted.unmount(), kestrel_fuse::End::Unmounted);
}

#[test]
fn callers_may_leave() {
    if !can_mount() {
        return;
    }
    let waiting = Arc::new(Mutex::new(Vec::new()));
    let mounted = Mounted::new(Deferred(waiting.clone()));
    let mut reader =
        Command::new("cat").arg(mounted.path("5")).stderr(Stdio::null()).spawn().unwrap();
    crate::kit::wait_for("the read", || !waiting.lock().unwrap().is_empty());
    reader.kill().unwrap();
    // Without the answer to the interrupted read the process could not die.
    assert!(!reader.wait().unwrap().success());
    assert!(waiting.lock().unwrap().is_empty());
    assert_eq!(mounted.session().stats().refused, 0);
}
