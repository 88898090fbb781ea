//! A tree of a known shape and random walks in it: the experiment of FalconFS §6.4. The shape gives
//! every path, so that the load keeps nothing in memory but its threads' stacks, and what a memory
//! limit leaves goes to the kernel's caches.

use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::rng::Rng;
use crate::sys;

/// Bytes of a thread's stack: a path and a buffer.
const STACK: usize = 64 << 10;
/// Bytes read at a time.
const PIECE: usize = 16 << 10;

/// The shape of a tree.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Directories on the way to a file.
    pub levels: u32,
    /// Subdirectories of each directory above the leaves.
    pub fanout: u64,
    /// Files of each leaf directory.
    pub files: u64,
    /// Bytes of each file.
    pub size: u64,
}

impl Shape {
    /// Directories that hold files.
    pub fn leaves(&self) -> u64 {
        self.fanout.saturating_pow(self.levels)
    }

    /// All directories.
    pub fn directories(&self) -> u64 {
        (1..=self.levels).map(|level| self.fanout.saturating_pow(level)).sum()
    }

    /// The names of leaf number `leaf` below `root`, to `level` names.
    fn directory(&self, root: &str, leaf: u64, level: u32) -> String {
        let mut path = root.to_string();
        for above in (self.levels - level..self.levels).rev() {
            path.push_str(&format!("/d{}", leaf / self.fanout.pow(above) % self.fanout));
        }
        path
    }
}

/// What a walk does with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Opens and closes it.
    Open,
    /// Opens, reads and closes it.
    Read,
    /// Asks for its attributes.
    Stat,
}

/// What was done.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Files.
    pub files: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Time.
    pub seconds: f64,
}

/// Makes the tree below `root`, which must be empty, with `threads` threads.
///
/// # Errors
/// The first that a call gave.
pub fn make(root: &Path, shape: Shape, threads: u64) -> Result<Done, String> {
    let root = text(root)?;
    let begun = Instant::now();
    for level in 1..shape.levels {
        let step = shape.fanout.pow(shape.levels - level);
        for leaf in (0..shape.leaves()).step_by(step as usize) {
            make_directory(&shape.directory(root, leaf, level))?;
        }
    }
    let next = AtomicU64::new(0);
    let work = || -> Result<(), String> {
        let content = vec![b'k'; shape.size as usize];
        loop {
            let leaf = next.fetch_add(1, Ordering::Relaxed);
            if leaf >= shape.leaves() {
                return Ok(());
            }
            let directory = shape.directory(root, leaf, shape.levels);
            make_directory(&directory)?;
            for number in 0..shape.files {
                let path = format!("{directory}/f{number}");
                std::fs::write(&path, &content).map_err(|why| format!("{path}: {why}"))?;
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))
        })
    })?;
    Ok(Done {
        files: shape.leaves() * shape.files,
        failed: 0,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Walks to random files with `threads` threads for `time`, each thread by an order of its own from
/// `seed`.
///
/// # Errors
/// If a thread cannot be started. Calls that fail are counted.
pub fn walk(
    root: &Path,
    shape: Shape,
    threads: u64,
    time: Duration,
    call: Call,
    seed: u64,
) -> Result<Done, String> {
    let root = text(root)?;
    let (stop, files, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (shared, begun) = ((&stop, &files, &failed), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = move || {
                let (stop, files, failed) = shared;
                let mut rng = Rng::new(seed.wrapping_add(thread));
                let (mut done, mut wrong) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let directory = shape.directory(root, rng.below(shape.leaves()), shape.levels);
                    let path =
                        sys::cstring(format!("{directory}/f{}", rng.below(shape.files)).as_bytes());
                    done += 1;
                    wrong += u64::from(!visit(&path, call, shape.size));
                }
                files.fetch_add(done, Ordering::Relaxed);
                failed.fetch_add(wrong, Ordering::Relaxed);
            };
            let started = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
            if let Err(why) = started {
                stop.store(true, Ordering::Relaxed);
                return Err(format!("cannot start a thread: {why}"));
            }
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(Done {
        files: files.into_inner(),
        failed: failed.into_inner(),
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Whether the file could be used.
fn visit(path: &CString, call: Call, size: u64) -> bool {
    if call == Call::Stat {
        return sys::fstatat(libc::AT_FDCWD, path, 0).is_ok_and(|st| st.st_size as u64 == size);
    }
    let Ok(fd) = sys::openat(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC, 0) else {
        return false;
    };
    let mut good = true;
    if call == Call::Read {
        let mut buf = [0; PIECE];
        let mut total = 0;
        loop {
            match sys::read(fd as i32, &mut buf) {
                Ok(0) => break,
                Ok(got) => total += got as u64,
                Err(libc::EINTR) => {}
                Err(_) => {
                    good = false;
                    break;
                }
            }
        }
        good &= total == size;
    }
    sys::close(fd as i32).is_ok() && good
}

fn make_directory(path: &str) -> Result<(), String> {
    std::fs::create_dir(path).map_err(|why| format!("{path}: {why}"))
}

fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{}: not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_what_it_walks() {
        let root = std::env::temp_dir().join(format!("kestrel-traverse-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        let shape = Shape { levels: 3, fanout: 2, files: 3, size: 20_000 };
        assert_eq!((shape.leaves(), shape.directories()), (8, 14));
        assert_eq!(make(&root, shape, 2).unwrap().files, 24);
        assert!(root.join("d1/d0/d1/f2").exists() && !root.join("d2").exists());
        for call in [Call::Open, Call::Read, Call::Stat] {
            let done = walk(&root, shape, 4, Duration::from_millis(20), call, 1).unwrap();
            assert_eq!(done.failed, 0, "{call:?}");
            assert!(done.files > 0);
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
