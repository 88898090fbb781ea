//! The workload: does what the planner says, and writes down every operation before and after.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::crash::log::show_op;
use crate::crash::model::{Op, Piece, State, bytes_of};
use crate::crash::plan::Planner;
use crate::rng::{self, Rng};
use crate::sys::{self, Sys};
use crate::{errno, rng::mix};

/// What to run.
#[derive(Clone, Debug)]
pub struct Load {
    /// A directory of the file system under test; `shared` and `t0`, `t1`, … are made in it.
    pub dir: PathBuf,
    /// The log, on another file system.
    pub log: PathBuf,
    /// Threads.
    pub threads: u64,
    /// Seed.
    pub seed: u64,
    /// Operations of each thread at most.
    pub ops: u64,
    /// Milliseconds at most.
    pub ms: u64,
    /// A directory of the disk that is going to be shut down instead of a power failure.
    pub disk: Option<PathBuf>,
}

/// How a run went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Operations that were acknowledged.
    pub acked: u64,
    /// The errno that ended threads, if the mount died or the disk was full.
    pub ended_by: Option<i32>,
    /// What should not have happened while the mount was alive.
    pub wrong: Vec<String>,
}

/// A mount that is gone (or shut down) answers with one of these.
fn is_death(e: i32) -> bool {
    matches!(
        e,
        libc::ENOTCONN
            | libc::ECONNABORTED
            | libc::EIO
            | libc::ESHUTDOWN
            | libc::ENODEV
            | libc::ESTALE
            | libc::EROFS
            | libc::ETIMEDOUT
            | libc::EINTR
    )
}

fn is_full(e: i32) -> bool {
    matches!(e, libc::ENOSPC | libc::EDQUOT)
}

struct Shared {
    log: i32,
    start_ms: u64,
    acked: AtomicU64,
}

impl Shared {
    fn line(&self, text: &str) -> Result<(), String> {
        // One write to a descriptor in append mode: lines of several threads never mix.
        let n = sys::write(self.log, text.as_bytes())
            .map_err(|e| format!("the log: {}", errno::name(e)))?;
        if n as usize == text.len() { Ok(()) } else { Err("the log: short write".into()) }
    }

    fn ms(&self) -> u64 {
        sys::monotonic_ms() - self.start_ms
    }
}

fn path_bytes(path: &Path) -> std::ffi::CString {
    use std::os::unix::ffi::OsStrExt;
    sys::cstring(path.as_os_str().as_bytes())
}

/// Runs until the time or the operations are over, or the mount dies.
pub fn run(load: &Load) -> Result<Report, String> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // Everything goes relative to this handle: when the mount is taken away, nothing can land in
    // the directory below it.
    let root = sys::openat(libc::AT_FDCWD, &path_bytes(&load.dir), flags, 0)
        .map_err(|e| format!("{}: {}", load.dir.display(), errno::name(e)))? as i32;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND | libc::O_CLOEXEC;
    let log = sys::openat(libc::AT_FDCWD, &path_bytes(&load.log), flags, 0o644)
        .map_err(|e| format!("{}: {}", load.log.display(), errno::name(e)))? as i32;
    let shared = Shared { log, start_ms: sys::monotonic_ms(), acked: AtomicU64::new(0) };
    shared.line(&format!("H seed {}\nH threads {}\n", load.seed, load.threads))?;
    match sys::mkdirat(root, c"shared", 0o777) {
        Ok(_) | Err(libc::EEXIST) => {}
        Err(e) if is_death(e) || is_full(e) => {
            return Ok(Report { ended_by: Some(e), ..Report::default() });
        }
        Err(e) => return Err(format!("mkdir shared: {}", errno::name(e))),
    }
    let shared = &shared;
    let ends: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..load.threads)
            .map(|thread| scope.spawn(move || Worker::new(load, shared, root, thread).run()))
            .collect();
        handles
            .into_iter()
            .map(|h| h.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    let mut report = Report { acked: shared.acked.load(Ordering::Relaxed), ..Report::default() };
    for end in ends {
        match end {
            Ok(e) => report.ended_by = report.ended_by.or(e),
            Err(what) => report.wrong.push(what),
        }
    }
    let _ = sys::close(root);
    let _ = sys::close(log);
    Ok(report)
}

struct Worker<'a> {
    load: &'a Load,
    shared: &'a Shared,
    root: i32,
    thread: u64,
    planner: Planner,
    state: State,
    held: Option<i32>,
    rng: Rng,
}

impl<'a> Worker<'a> {
    fn new(load: &'a Load, shared: &'a Shared, root: i32, thread: u64) -> Self {
        let planner = Planner::new(load.seed, thread);
        let rng = Rng::new(mix(load.seed) ^ thread);
        Self { load, shared, root, thread, planner, state: State::default(), held: None, rng }
    }

    /// The errno that ended it, or what went wrong.
    fn run(mut self) -> Result<Option<i32>, String> {
        for seq in 0..self.load.ops {
            if self.shared.ms() >= self.load.ms {
                return Ok(None);
            }
            let op = self.planner.next(&self.state);
            let thread = self.thread;
            self.shared.line(&format!(
                "I {thread} {seq} {} {}\n",
                self.shared.ms(),
                show_op(&op)
            ))?;
            match self.perform(&op).and_then(|()| self.has_power()) {
                Ok(()) => {
                    self.shared.line(&format!("A {thread} {seq} {}\n", self.shared.ms()))?;
                    self.shared.acked.fetch_add(1, Ordering::Relaxed);
                    self.state.apply(&op);
                }
                Err(e) => {
                    self.shared.line(&format!(
                        "E {thread} {seq} {} {}\n",
                        self.shared.ms(),
                        errno::name(e)
                    ))?;
                    if is_death(e) || is_full(e) {
                        return Ok(Some(e));
                    }
                    return Err(format!(
                        "thread {thread}, op {seq}: {}: {}",
                        show_op(&op),
                        errno::name(e)
                    ));
                }
            }
            if self.rng.percent(10)
                && let Some(e) = self.check_one()?
            {
                return Ok(Some(e));
            }
        }
        Ok(None)
    }

    /// A disk that is shut down ends nobody, as a power failure would. An fsync that XFS is shut
    /// down under may even succeed: after it has written the pages it asks whether the log still
    /// holds something of the file, and the log that has given up holds nothing (`xfs_file_fsync`,
    /// Linux 6.18). What is opened after that is `EIO`: then nobody has heard of this success.
    fn has_power(&self) -> Sys<()> {
        let Some(disk) = &self.load.disk else { return Ok(()) };
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        sys::openat(libc::AT_FDCWD, &path_bytes(disk), flags, 0)
            .and_then(|fd| sys::close(fd as i32))
            .map(drop_value)
    }

    fn open(&self, path: &str, flags: i32) -> Sys<i32> {
        sys::openat(self.root, &sys::cstring(path.as_bytes()), flags | libc::O_CLOEXEC, 0o644)
            .map(|fd| fd as i32)
    }

    fn with_file(&self, path: &str, flags: i32, body: impl FnOnce(i32) -> Sys<()>) -> Sys<()> {
        let fd = self.open(path, flags)?;
        let done = body(fd);
        let closed = sys::close(fd);
        done.and(closed.map(drop_value))
    }

    fn perform(&mut self, op: &Op) -> Sys<()> {
        let c = |path: &String| sys::cstring(path.as_bytes());
        let create = libc::O_WRONLY | libc::O_CREAT;
        let append = libc::O_WRONLY | libc::O_APPEND;
        match op {
            Op::Create { path, .. } => self.with_file(path, create | libc::O_EXCL, |_| Ok(())),
            Op::Write { path, key, len, sync, .. } => {
                self.with_file(path, create | libc::O_TRUNC, |fd| {
                    write_all(fd, *key, *len, None).and_then(|()| end(fd, *sync))
                })
            }
            Op::Append { path, key, len, sync } => self.with_file(path, append, |fd| {
                write_all(fd, *key, *len, None).and_then(|()| end(fd, *sync))
            }),
            Op::Overwrite { path, off, key, len } => {
                self.with_file(path, libc::O_WRONLY, |fd| write_all(fd, *key, *len, Some(*off)))
            }
            Op::Truncate { path, len } => self.with_file(path, libc::O_WRONLY, |fd| {
                sys::ftruncate(fd, *len as i64).map(drop_value)
            }),
            Op::Rename { from, to } => {
                sys::renameat2(self.root, &c(from), self.root, &c(to), 0).map(drop_value)
            }
            Op::Exchange { from, to } => {
                sys::renameat2(self.root, &c(from), self.root, &c(to), libc::RENAME_EXCHANGE)
                    .map(drop_value)
            }
            Op::Link { from, to } => {
                sys::linkat(self.root, &c(from), self.root, &c(to), 0).map(drop_value)
            }
            Op::Unlink { path } => sys::unlinkat(self.root, &c(path), 0).map(drop_value),
            Op::Symlink { target, path } => {
                sys::symlinkat(&c(target), self.root, &c(path)).map(drop_value)
            }
            Op::Mkdir { path } => sys::mkdirat(self.root, &c(path), 0o777).map(drop_value),
            Op::Rmdir { path } => {
                sys::unlinkat(self.root, &c(path), libc::AT_REMOVEDIR).map(drop_value)
            }
            Op::SetXattr { path, name, key, len } => {
                let value = bytes_of(&[Piece { key: *key, skip: 0, len: *len }]);
                self.with_file(path, libc::O_RDONLY, |fd| {
                    sys::fsetxattr(fd, &c(name), &value, 0).map(drop_value)
                })
            }
            Op::RemoveXattr { path, name } => self.with_file(path, libc::O_RDONLY, |fd| {
                sys::fremovexattr(fd, &c(name)).map(drop_value)
            }),
            Op::Hold { path } => {
                self.held = Some(self.open(path, append)?);
                Ok(())
            }
            Op::HoldAppend { key, len } => write_all(self.held.unwrap_or(-1), *key, *len, None),
            Op::HoldSync => sys::fsync(self.held.unwrap_or(-1)).map(drop_value),
            Op::HoldClose => sys::close(self.held.take().unwrap_or(-1)).map(drop_value),
            Op::SyncDir { path } => {
                self.with_file(path, libc::O_RDONLY | libc::O_DIRECTORY, |fd| {
                    sys::fsync(fd).map(drop_value)
                })
            }
            Op::Sync => sys::syncfs(self.root).map(drop_value),
        }
    }

    /// Reads one file back while the mount lives. Returns the errno when the mount died meanwhile.
    fn check_one(&mut self) -> Result<Option<i32>, String> {
        let files: Vec<_> =
            self.state.nodes.keys().filter(|p| self.state.inode(p).is_some()).cloned().collect();
        if files.is_empty() {
            return Ok(None);
        }
        let path = self.rng.pick(&files).clone();
        let Some((_, inode)) = self.state.inode(&path) else { return Ok(None) };
        let expected = bytes_of(&[&inode.content[..], &inode.pending[..]].concat());
        let mut found = vec![0; expected.len() + 1];
        let mut have = 0;
        let read = self.with_file(&path, libc::O_RDONLY, |fd| {
            while have < found.len() {
                match sys::read(fd, &mut found[have..])? {
                    0 => break,
                    n => have += n as usize,
                }
            }
            Ok(())
        });
        match read {
            Err(e) if is_death(e) => Ok(Some(e)),
            Err(e) => Err(format!("thread {}: reading {path}: {}", self.thread, errno::name(e))),
            Ok(()) if found[..have] == expected[..] => Ok(None),
            Ok(()) => Err(format!(
                "thread {}: {path} reads wrong: {have} bytes instead of {}, first difference at \
                 {:?}",
                self.thread,
                expected.len(),
                found.iter().zip(&expected).position(|(a, b)| a != b)
            )),
        }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        if let Some(fd) = self.held.take() {
            let _ = sys::close(fd);
        }
    }
}

fn drop_value(_: i64) {}

fn end(fd: i32, sync: bool) -> Sys<()> {
    if sync { sys::fsync(fd).map(drop_value) } else { Ok(()) }
}

fn write_all(fd: i32, key: u64, len: u64, at: Option<u64>) -> Sys<()> {
    let mut buf = vec![0; len.min(1 << 17) as usize];
    let mut done = 0;
    while done < len {
        let n = buf.len().min((len - done) as usize);
        rng::fill_at(key, done, &mut buf[..n]);
        done += match at {
            Some(at) => sys::pwrite(fd, &buf[..n], (at + done) as i64)?,
            None => sys::write(fd, &buf[..n])?,
        } as u64;
    }
    Ok(())
}
