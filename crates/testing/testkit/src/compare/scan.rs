//! A directory scan while the directory changes: what is there throughout must appear exactly once.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::compare::outcome::Outcome;
use crate::rng::Rng;
use crate::sys;

fn create(dir: i32, name: &str) -> sys::Sys<i64> {
    let fd = sys::openat(
        dir,
        &sys::cstring(name.as_bytes()),
        libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC,
        0o644,
    )?;
    sys::close(fd as i32)
}

/// One random change to the names that may change.
fn churn(dir: i32, rng: &mut Rng, names: u64) {
    let one = sys::cstring(format!("moving-{}", rng.below(names)).as_bytes());
    let two = sys::cstring(format!("moving-{}", rng.below(names)).as_bytes());
    // Failures are expected: the names come and go at random.
    let _ = match rng.below(4) {
        0 => sys::unlinkat(dir, &one, 0),
        1 => sys::renameat2(dir, &one, dir, &two, 0),
        2 => sys::linkat(dir, &one, dir, &two, 0),
        _ => create(dir, &one.to_string_lossy()),
    };
}

/// Makes a directory of still and moving names below `path`, scans it under change, and removes it.
pub fn scan((dir, path): (i32, CString), seed: u64, threaded: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let mut name = path.to_bytes().to_vec();
    name.extend_from_slice(format!("/scan-{seed:x}").as_bytes());
    let name = sys::cstring(&name);
    if let Err(e) = sys::mkdirat(dir, &name, 0o755) {
        return Outcome::of(Err(e));
    }
    let fd = match sys::openat(dir, &name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)
    {
        Ok(fd) => fd as i32,
        Err(e) => return Outcome::of(Err(e)),
    };
    let mut out = Outcome::default();
    let (still, moving) = (rng.range(20, 300), rng.range(5, 100));
    for i in 0..still {
        if let Err(e) = create(fd, &format!("still-{i}")) {
            out.field("create", crate::errno::name(e));
        }
        if i % 3 == 0 {
            let _ = create(fd, &format!("moving-{}", rng.below(moving)));
        }
    }
    let buf_len = *rng.pick(&[512, 1024, 4096]);
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        if threaded {
            let mut rng = Rng::new(seed ^ 1);
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    churn(fd, &mut rng, moving);
                }
            });
        }
        let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let mut buf = vec![0; buf_len];
        loop {
            match sys::getdents64(fd, &mut buf) {
                Ok(0) => break,
                Ok(n) => {
                    for entry in sys::dirents(&buf[..n as usize]) {
                        *seen.entry(entry.name).or_default() += 1;
                    }
                }
                Err(e) => {
                    out.violations.push(format!("getdents: {}", crate::errno::name(e)));
                    break;
                }
            }
            if !threaded {
                (0..rng.below(12)).for_each(|_| churn(fd, &mut rng, moving));
            }
        }
        stop.store(true, Ordering::Relaxed);
        seen
    });
    for i in 0..still {
        let times = seen.get(format!("still-{i}").as_bytes()).copied().unwrap_or(0);
        if times != 1 {
            out.violations
                .push(format!("still-{i} of {still} was listed {times} times (buffer {buf_len})"));
        }
    }
    for i in 0..still {
        let _ = sys::unlinkat(fd, &sys::cstring(format!("still-{i}").as_bytes()), 0);
    }
    for i in 0..moving {
        let _ = sys::unlinkat(fd, &sys::cstring(format!("moving-{i}").as_bytes()), 0);
    }
    let _ = sys::close(fd);
    out.field("rmdir", Outcome::of(sys::unlinkat(dir, &name, libc::AT_REMOVEDIR)).show_ret());
    out
}
