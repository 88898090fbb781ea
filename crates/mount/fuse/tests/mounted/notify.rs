//! Notifications make the kernel send requests again.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kestrel_fuse::{End, Entry, FileSystem, Operation, Reply, Request};

use crate::kit::{Mounted, can_mount, errno};
use crate::replies::attr;

const LONG: Duration = Duration::from_secs(1000);

/// Lets the kernel cache everything, and counts its requests.
#[derive(Default)]
struct Cached {
    lookups: AtomicU64,
    getattrs: AtomicU64,
}

impl FileSystem for Cached {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.op {
            Operation::Lookup { name } if name == "file" => {
                self.lookups.fetch_add(1, Ordering::Relaxed);
                let attr = attr(2, libc::S_IFREG | 0o644, 0);
                reply.entry(&Entry {
                    nodeid: 2,
                    attr,
                    attr_ttl: LONG,
                    entry_ttl: LONG,
                    ..Entry::default()
                });
            }
            Operation::Lookup { .. } => {
                self.lookups.fetch_add(1, Ordering::Relaxed);
                reply.negative(LONG);
            }
            Operation::Getattr { .. } => {
                self.getattrs.fetch_add(1, Ordering::Relaxed);
                let mode =
                    if request.nodeid == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
                reply.attr(&attr(request.nodeid, mode, 0), LONG);
            }
            Operation::Forget(_) => {}
            _ => reply.error(libc::ENOSYS),
        }
    }
}

#[test]
fn invalidation() {
    if !can_mount() {
        return;
    }
    let fs = Arc::new(Cached::default());
    let mounted = Mounted::new(fs.clone());
    let notifier = mounted.session().notifier();
    let counts = |touch: &dyn Fn()| {
        let before = (fs.lookups.load(Ordering::Relaxed), fs.getattrs.load(Ordering::Relaxed));
        touch();
        (
            fs.lookups.load(Ordering::Relaxed) - before.0,
            fs.getattrs.load(Ordering::Relaxed) - before.1,
        )
    };
    let stat = || {
        fs::metadata(mounted.path("file")).unwrap();
    };
    let absent = || assert_eq!(errno(fs::metadata(mounted.path("absent"))), libc::ENOENT);
    stat();
    absent();
    assert_eq!(counts(&stat), (0, 0), "cached");
    assert_eq!(counts(&absent), (0, 0), "cached absence");

    assert!(notifier.invalidate_inode(2, -1, 0).unwrap());
    assert_eq!(counts(&stat), (0, 1));
    assert!(notifier.invalidate_entry(1, "file".as_ref()).unwrap());
    assert_eq!(counts(&stat), (1, 0));
    assert!(notifier.expire_entry(1, "file".as_ref()).unwrap());
    assert_eq!(counts(&stat), (1, 0));
    assert!(notifier.invalidate_entry(1, "absent".as_ref()).unwrap());
    assert_eq!(counts(&absent), (1, 0));
    assert!(notifier.deleted(1, 2, "file".as_ref()).unwrap());
    assert_eq!(counts(&stat), (1, 0));

    assert!(!notifier.invalidate_inode(999, 0, 0).unwrap(), "unknown node");
    assert!(!notifier.invalidate_entry(1, "never seen".as_ref()).unwrap());
    assert!(notifier.invalidate_entry(1, "x".repeat(5000).as_ref()).is_err());

    assert_eq!(mounted.unmount(), End::Unmounted);
    assert!(matches!(notifier.invalidate_inode(2, 0, 0), Err(_) | Ok(false)), "after the end");
}
