//! Pass-through: the kernel reads from a backing file, and writers beside readers reach the file
//! system.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kestrel_fuse::*;

use crate::kit::*;

const CONTENT: &[u8] = b"what the backing file says";

/// One file, `f`, read from a backing file by opens that only read.
#[derive(Default)]
struct Passing {
    backing: OnceLock<Backing>,
    offered: OnceLock<bool>,
    reads: AtomicU32,
    writes: AtomicU32,
}

impl Passing {
    fn attr() -> Attr {
        Attr {
            ino: 2,
            mode: libc::S_IFREG | 0o666,
            nlink: 1,
            size: CONTENT.len() as u64,
            ..Attr::default()
        }
    }
}

impl FileSystem for Passing {
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) -> std::result::Result<(), i32> {
        self.offered.set(negotiated.features.passthrough).unwrap();
        if negotiated.features.passthrough {
            let path =
                std::env::temp_dir().join(format!("kestrel-fuse-backing.{}", std::process::id()));
            fs::write(&path, CONTENT).unwrap();
            let file = File::open(&path).unwrap();
            fs::remove_file(&path).unwrap();
            let backing = notifier.backings().open(file.as_fd());
            let _ = backing.map(|backing| self.backing.set(backing));
        }
        Ok(())
    }

    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Operation::Lookup { .. } => {
                reply.entry(&Entry { nodeid: 2, attr: Self::attr(), ..Entry::default() })
            }
            Operation::Getattr { .. } if request.nodeid == 2 => {
                reply.attr(&Self::attr(), Duration::ZERO)
            }
            Operation::Getattr { .. } => {
                let attr =
                    Attr { ino: 1, mode: libc::S_IFDIR | 0o755, nlink: 2, ..Attr::default() };
                reply.attr(&attr, Duration::ZERO);
            }
            Operation::Open { flags, .. } => {
                let mut flags_out = OpenFlags::PASSTHROUGH;
                if flags as i32 & libc::O_ACCMODE != libc::O_RDONLY {
                    flags_out |= OpenFlags::DIRECT_IO;
                }
                let backing_id = self.backing.get().unwrap().id();
                reply.opened(Opened { fh: 0, flags: flags_out, backing_id });
            }
            Operation::Read { .. } => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                reply.data(b"asked");
            }
            Operation::Write(write) => {
                self.writes.fetch_add(1, Ordering::Relaxed);
                reply.written(write.data.len() as u32);
            }
            Operation::Flush { .. } | Operation::Release { .. } => reply.empty(),
            _ => reply.error(libc::ENOSYS),
        }
    }
}

fn mounted(fs: &Arc<Passing>) -> Mounted {
    let mut config = config();
    config.features.passthrough = true;
    Mounted::with(fs.clone(), &MountOptions::default(), &config)
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

/// The backing file serves readers, and the file system serves writers.
#[test]
fn passthrough_for_readers_only() {
    if !can_mount() {
        return;
    }
    let fs = Arc::<Passing>::default();
    let mounted = mounted(&fs);
    if fs.backing.get().is_none() {
        eprintln!("skipped: no pass-through here: offered {:?}", fs.offered.get());
        return;
    }
    let path = mounted.path("f");
    assert_eq!(read(&path), CONTENT);
    assert_eq!(fs.reads.load(Ordering::Relaxed), 0, "the kernel reads by itself");
    let reader = File::open(&path).unwrap();
    let mut writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    writer.write_all(b"new").unwrap();
    assert_eq!(fs.writes.load(Ordering::Relaxed), 1);
    let mut found = [0; 5];
    writer.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"asked", "direct I/O goes before pass-through");
    reader.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"what ");
    drop((reader, writer));
    mounted.unmount();
}

#[test]
fn without_agreement_nothing_can_be_registered() {
    if !can_mount() {
        return;
    }
    let fs = Arc::<Passing>::default();
    let mounted = Mounted::new(fs.clone());
    assert_eq!(fs.offered.get(), Some(&false), "not asked for");
    let file = File::open("/bin/sh").unwrap();
    let refused = mounted.session().notifier().backings().open(file.as_fd());
    assert_eq!(errno(refused.map(|backing| backing.id())), libc::EPERM);
}
