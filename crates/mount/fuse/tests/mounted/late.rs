//! Answers that come late, in other orders, from other threads, in large numbers and large sizes;
//! and ends in the midst of them.

use kestrel_testkit::stop::StopOnDrop;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kestrel_fuse::null::{NullFs, NullOptions};
use kestrel_fuse::{
    Config, End, Entry, FileSystem, MountOptions, OpenFlags, Opened, Operation, Reply, Request,
};

use crate::helper::Helper;
use crate::kit::{Mounted, TempDir, can_mount, config, errno, wait_for};
use crate::replies::attr;

const FILE: u32 = libc::S_IFREG | 0o644;
const DIR: u32 = libc::S_IFDIR | 0o755;

/// Files of any name that is a number; READs and WRITEs are kept, the rest is answered at once.
#[derive(Default)]
struct Keeper {
    reads: Mutex<Vec<(u64, u64, usize, Reply)>>,
    writes: Mutex<Vec<(Vec<u8>, Reply)>>,
}

impl FileSystem for Keeper {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Operation::Lookup { name } => match name.to_str().unwrap().parse::<u64>() {
                Ok(number) => {
                    let nodeid = number + 2;
                    reply.entry(&Entry {
                        nodeid,
                        attr: attr(nodeid, FILE, 1 << 30),
                        ..Entry::default()
                    });
                }
                Err(_) => reply.error(libc::ENOENT),
            },
            Operation::Getattr { .. } if request.nodeid == 1 => {
                reply.attr(&attr(1, DIR, 0), Duration::ZERO)
            }
            Operation::Getattr { .. } => {
                reply.attr(&attr(request.nodeid, FILE, 1 << 30), Duration::ZERO)
            }
            Operation::Open { .. } => {
                let flags = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES;
                reply.opened(Opened { flags, ..Opened::default() });
            }
            Operation::Read { offset, size, .. } => {
                self.reads.lock().unwrap().push((request.nodeid, offset, size as usize, reply));
            }
            Operation::Write(write) => {
                self.writes.lock().unwrap().push((write.data.to_vec(), reply))
            }
            Operation::Release { .. } | Operation::Flush { .. } => reply.empty(),
            Operation::Forget(_) | Operation::Interrupt { .. } => {}
            _ => reply.error(libc::ENOSYS),
        }
    }
}

/// The bytes that a READ of a file brings: they follow from file and offset.
fn content(nodeid: u64, offset: u64, size: usize) -> Vec<u8> {
    (0..size as u64).map(|n| ((offset + n) * 7 + nodeid * 13 + ((offset + n) >> 8)) as u8).collect()
}

/// Answers what is kept, the last first or the first first, until the test stops it.
fn answer(fs: &Keeper, stop: &AtomicBool, backwards: bool) {
    while !stop.load(Ordering::Relaxed) {
        let mut reads = fs.reads.lock().unwrap();
        let next = if reads.is_empty() {
            None
        } else {
            let at = if backwards { reads.len() - 1 } else { 0 };
            Some(reads.remove(at))
        };
        drop(reads);
        match next {
            Some((nodeid, offset, size, reply)) => {
                let bytes = content(nodeid, offset, size);
                let (head, tail) = bytes.split_at(size / 3);
                reply.data_vectored(&[head, tail]);
            }
            None => std::thread::yield_now(),
        }
    }
}

#[test]
fn out_of_order_from_many_threads() {
    if !can_mount() {
        return;
    }
    let fs = Arc::new(Keeper::default());
    let mounted = Mounted::new(fs.clone());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopper = StopOnDrop::new(&stop);
        for backwards in [true, false, true] {
            let (fs, stop) = (&fs, &stop);
            scope.spawn(move || answer(fs, stop, backwards));
        }
        let readers: Vec<_> = (0..12u64)
            .map(|reader| {
                let file = File::open(mounted.path(&reader.to_string())).unwrap();
                scope.spawn(move || {
                    for round in 0..100u64 {
                        // From one byte to the largest request.
                        let size =
                            [1, 100, 4096, 5000, 131_072, 1 << 20][(round + reader) as usize % 6];
                        let offset = round * 4096;
                        let mut buffer = vec![0; size];
                        file.read_exact_at(&mut buffer, offset).unwrap();
                        assert!(
                            buffer == content(reader + 2, offset, size),
                            "{reader} {round} {size}"
                        );
                    }
                })
            })
            .collect();
        let outcome: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        drop(stopper);
        assert!(outcome.iter().all(Result::is_ok));
    });
    assert_eq!(mounted.session().stats(), Default::default());
    assert_eq!(mounted.unmount(), End::Unmounted);
}

/// Starts so many readers, one file and thread each.
fn readers(mounted: &Mounted, count: u64) -> Vec<std::thread::JoinHandle<std::io::Result<()>>> {
    let reader = |number: u64| {
        let path = mounted.path(&number.to_string());
        std::thread::spawn(move || File::open(path)?.read_exact(&mut [0; 8]))
    };
    (0..count).map(reader).collect()
}

#[test]
fn more_requests_than_ring_entries() {
    if !can_mount() {
        return;
    }
    const READERS: u64 = 300;
    let fs = Arc::new(Keeper::default());
    // Over io_uring each queue begins with four entries.
    let config = Config { ring_entries: 4, ..config() };
    let mounted = Mounted::with(fs.clone(), &MountOptions::default(), &config);
    let mut readers = Vec::new();
    for reader in 0..READERS {
        let file = File::open(mounted.path(&reader.to_string())).unwrap();
        readers.push(std::thread::spawn(move || file.read_exact_at(&mut [0; 8], 0)));
        // Others are served meanwhile, however many are kept.
        wait_for("the read", || fs.reads.lock().unwrap().len() as u64 == reader + 1);
        assert!(fs::metadata(mounted.path("77")).is_ok());
    }
    for (nodeid, offset, size, reply) in fs.reads.lock().unwrap().drain(..) {
        reply.data(&content(nodeid, offset, size));
    }
    assert!(readers.into_iter().all(|reader| reader.join().unwrap().is_ok()));
    assert_eq!(mounted.unmount(), End::Unmounted);
}

#[test]
fn abort_with_requests_kept() {
    if !can_mount() {
        return;
    }
    let fs = Arc::new(Keeper::default());
    let mut mounted = Mounted::new(fs.clone());
    let readers = readers(&mounted, 20);
    wait_for("the reads", || fs.reads.lock().unwrap().len() == 20);
    mounted.session().unmounter().force().unwrap();
    for reader in readers {
        assert!(reader.join().unwrap().is_err(), "cut off");
    }
    // Without waiting for the file system, which still has the requests.
    let end = mounted.take_session().join().unwrap();
    assert!(matches!(end, End::Aborted | End::Unmounted));
    // Answers without a caller do no harm, also when all else is gone.
    drop(mounted);
    for (nodeid, offset, size, reply) in fs.reads.lock().unwrap().drain(..) {
        reply.data(&content(nodeid, offset, size));
    }
}

#[test]
fn writes_arrive_whole_and_may_be_kept() {
    if !can_mount() {
        return;
    }
    let fs = Arc::new(Keeper::default());
    let mounted = Mounted::new(fs.clone());
    let max_write = mounted.session().negotiated().max_write as usize;
    let file =
        File::options().write(true).custom_flags(libc::O_DIRECT).open(mounted.path("1")).unwrap();
    let mut sent = Vec::new();
    std::thread::scope(|scope| {
        for (number, size) in [1, 511, 4096, 8192, 8193, 100_000, max_write].into_iter().enumerate()
        {
            let data = content(number as u64, 0, size);
            sent.push(data.clone());
            let file = &file;
            scope.spawn(move || {
                // Page-aligned, so that it is one request.
                let mut buffer = vec![0; size + 4096];
                let start = buffer.as_ptr().align_offset(4096);
                buffer[start..start + size].copy_from_slice(&data);
                assert_eq!(file.write_at(&buffer[start..start + size], 0).unwrap(), size);
            });
        }
        wait_for("the writes", || fs.writes.lock().unwrap().len() == sent.len());
        for (data, reply) in fs.writes.lock().unwrap().drain(..).rev() {
            assert!(sent.contains(&data), "{} bytes", data.len());
            reply.written(data.len() as u32);
        }
    });
    drop(file);
    assert_eq!(mounted.session().stats(), Default::default());
}

/// The null file system, which sees to it that no request comes twice.
struct Once {
    inner: Arc<NullFs>,
    uniques: Mutex<HashSet<u64>>,
    answered: AtomicU64,
}

impl FileSystem for Once {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if !matches!(request.op, Operation::Forget(_) | Operation::Interrupt { .. }) {
            assert!(self.uniques.lock().unwrap().insert(request.unique), "each request once");
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.handle(request, reply);
    }
}

#[test]
fn unmount_under_load() {
    if !can_mount() {
        return;
    }
    for force in [false, true, true] {
        let inner = Arc::new(NullFs::new(NullOptions::default()));
        let fs = Arc::new(Once { inner, uniques: Mutex::default(), answered: AtomicU64::new(0) });
        let mut mounted = Mounted::new(fs.clone());
        let unmounter = mounted.session().unmounter();
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stopper = StopOnDrop::new(stop);
            for thread in 0..6 {
                let dir = mounted.dir();
                scope.spawn(move || {
                    for round in 0.. {
                        let path = dir.join(format!("{thread}.{round}"));
                        if stop.load(Ordering::Relaxed) || fs::write(&path, [1; 10_000]).is_err() {
                            return;
                        }
                        let _ = fs::read(&path);
                        let _ = fs::remove_file(&path);
                    }
                });
            }
            wait_for("some load", || fs.answered.load(Ordering::Relaxed) > 3000);
            if force {
                unmounter.force().unwrap();
            } else {
                let busy = (0..50).filter(|_| match unmounter.unmount() {
                    Ok(()) => false,
                    Err(error) => error.raw_os_error() == Some(libc::EBUSY),
                });
                assert!(busy.count() <= 50);
            }
        });
        // What they wrote last went below the mount, to the directory, if it was gone by then.
        if force {
            let end = mounted.take_session().join().unwrap();
            assert!(matches!(end, End::Aborted | End::Unmounted));
        } else {
            let _ = unmounter.unmount();
            assert_eq!(mounted.take_session().join().unwrap(), End::Unmounted);
        }
        fs::read_dir(mounted.dir())
            .unwrap()
            .for_each(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
    }
}

#[test]
fn the_server_is_killed_under_load() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut helper = Helper::serve(dir.path(), "", 0).unwrap();
    let kept = File::create(dir.path().join("kept")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let dir = dir.path();
            scope.spawn(move || {
                let path = dir.join(thread.to_string());
                // Until the end of the connection, which everybody learns of.
                while fs::write(&path, [1; 10_000]).is_ok() && fs::read(&path).is_ok() {}
            });
        }
        wait_for("some load", || dir.path().join("5").exists());
        helper.kill();
    });
    wait_for("the end of the connection", || errno(fs::metadata(dir.path())) == libc::ENOTCONN);
    // SAFETY: a live descriptor.
    assert_eq!(unsafe { libc::fsync(kept.as_raw_fd()) }, -1);
}
