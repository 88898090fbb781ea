//! One measured step: what every thread of every process does, and the threads that do it.
//!
//! A thread keeps between steps how many files it made and renamed, so that a step that ran into
//! its time limit is followed correctly by the next one.

use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::cpu::Cpu;
use super::histogram::{Histogram, Packed};
use super::pattern::{check, file_tag, mark, next_random, shuffle};

/// Set by ctrl-C, and in child processes when the parent goes away: every thread ends after the
/// call it is in.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// Set by the first thread that fails, so that the others do not go on for long.
static FAILED: AtomicBool = AtomicBool::new(false);

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchOp {
    /// Makes directories.
    Mkdir,
    /// Removes them.
    Rmdir,
    /// Creates empty files, exclusively, and closes them.
    Create,
    /// `lstat`, in random order.
    Stat,
    /// Opens for reading and closes, in random order.
    Open,
    /// Lists the whole directory; items are entries.
    Readdir,
    /// Renames within the directory.
    Rename,
    /// Unlinks, in random order.
    Unlink,
    /// Creates, writes and closes files.
    WriteFile,
    /// Opens, reads and closes files, in random order.
    ReadFile,
    /// Writes one large file; items are blocks.
    WriteLarge,
    /// Reads it from front to back.
    ReadLarge,
    /// Reads blocks at random.
    ReadRandom,
}

/// A step, the same for all threads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BenchStep {
    /// What is done.
    pub op: BenchOp,
    /// Directory of the phase.
    pub dir: String,
    /// All threads work in one directory instead of one each.
    pub shared: bool,
    /// Each thread works in its directory and names files relative to it.
    pub relative: bool,
    /// Files (or directories, listings, blocks to read at random) a thread.
    pub count: u64,
    /// Bytes of a file.
    pub size: u64,
    /// Bytes of one read or write.
    pub block: u64,
    /// Call fsync before close.
    pub fsync: bool,
    /// Check what is read.
    pub verify: bool,
    /// Stop after so many seconds; 0: never.
    pub seconds_max: u64,
    /// Seed of the random order.
    pub seed: u64,
}

/// What the threads of a step (of one process, or of all) did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Latencies of calls (for files: open to close).
    pub latency: Histogram,
    /// Operations, entries, files or blocks.
    pub items: u64,
    /// Bytes of data moved.
    pub bytes: u64,
    /// Monotonic nanoseconds when the first thread began and the last one ended.
    pub span: (u64, u64),
    /// Processor time of the processes.
    pub process_us: u64,
    /// First failure.
    pub error: Option<String>,
    /// The time limit ended the step.
    pub cut: bool,
}

/// An outcome on its way between processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct PackedOutcome {
    latency: Packed,
    items: u64,
    bytes: u64,
    span: (u64, u64),
    process_us: u64,
    error: Option<String>,
    cut: bool,
}

impl Outcome {
    /// Adds what others did in the same step.
    pub fn merge(&mut self, other: Outcome) {
        self.latency.merge(&other.latency);
        self.items += other.items;
        self.bytes += other.bytes;
        self.span = match (self.span, other.span) {
            ((0, 0), span) | (span, (0, 0)) => span,
            (a, b) => (a.0.min(b.0), a.1.max(b.1)),
        };
        self.process_us += other.process_us;
        self.error = self.error.take().or(other.error);
        self.cut |= other.cut;
    }

    /// For sending.
    pub fn pack(self) -> PackedOutcome {
        let Self { latency, items, bytes, span, process_us, error, cut } = self;
        PackedOutcome { latency: latency.pack(), items, bytes, span, process_us, error, cut }
    }

    /// What was sent.
    pub fn unpack(packed: PackedOutcome) -> Self {
        let PackedOutcome { latency, items, bytes, span, process_us, error, cut } = packed;
        Self { latency: Histogram::unpack(&latency), items, bytes, span, process_us, error, cut }
    }

    /// Seconds from first to last.
    pub fn seconds(&self) -> f64 {
        (self.span.1.saturating_sub(self.span.0)) as f64 / 1e9
    }
}

/// Monotonic nanoseconds, the same in all processes of the machine.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes and outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The threads of one process.
#[derive(Debug)]
pub struct Threads(Vec<Thread>);

#[derive(Debug)]
struct Thread {
    index: u64,
    made: u64,
    renamed: u64,
}

impl Threads {
    /// Threads with these numbers, unique over all processes.
    pub fn new(numbers: impl Iterator<Item = u64>) -> Self {
        Self(numbers.map(|index| Thread { index, made: 0, renamed: 0 }).collect())
    }

    /// Does one step. `go` is called when all threads stand ready, and they start when it returns.
    pub fn run(&mut self, step: &BenchStep, go: impl FnOnce() -> io::Result<()>) -> Outcome {
        FAILED.store(false, Ordering::SeqCst);
        let barrier = Barrier::new(self.0.len() + 1);
        let mut total = Outcome::default();
        std::thread::scope(|scope| {
            let running: Vec<_> = self
                .0
                .iter_mut()
                .map(|thread| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        let entered = enter(step, thread.index);
                        let mut run = Run::prepare(step, thread);
                        barrier.wait();
                        run.start();
                        if let Err(why) = entered.and_then(|()| run.perform()) {
                            FAILED.store(true, Ordering::SeqCst);
                            run.out.error = Some(why);
                        }
                        run.finish()
                    })
                })
                .collect();
            if let Err(why) = go() {
                STOP.store(true, Ordering::SeqCst);
                total.error = Some(format!("start of a step: {why}"));
            }
            let cpu = Cpu::now();
            barrier.wait();
            for thread in running {
                match thread.join() {
                    Ok(outcome) => total.merge(outcome),
                    Err(_) => total.error = Some("a bench thread panicked".into()),
                }
            }
            total.process_us = Cpu::since(&cpu).process_us;
        });
        total
    }
}

/// One thread within one step.
struct Run<'a> {
    step: &'a BenchStep,
    thread: &'a mut Thread,
    order: Vec<u64>,
    buffer: Vec<u8>,
    path: String,
    other: String,
    deadline: u64,
    out: Outcome,
}

impl<'a> Run<'a> {
    fn prepare(step: &'a BenchStep, thread: &'a mut Thread) -> Self {
        let made = thread.made;
        let count = match step.op {
            BenchOp::Mkdir
            | BenchOp::Create
            | BenchOp::WriteFile
            | BenchOp::ReadRandom
            | BenchOp::Readdir => step.count,
            BenchOp::WriteLarge | BenchOp::ReadLarge => step.size.div_ceil(step.block.max(1)),
            BenchOp::Rmdir
            | BenchOp::Stat
            | BenchOp::Open
            | BenchOp::Rename
            | BenchOp::Unlink
            | BenchOp::ReadFile => made,
        };
        let mut order: Vec<u64> = (0..count).collect();
        if matches!(step.op, BenchOp::Stat | BenchOp::Open | BenchOp::Unlink | BenchOp::ReadFile) {
            shuffle(&mut order, step.seed ^ thread.index.wrapping_mul(0x9e37_79b9));
        }
        if step.op == BenchOp::ReadRandom {
            let blocks = (step.size / step.block.max(1)).max(1);
            let mut state = step.seed ^ thread.index.wrapping_mul(0x9e37_79b9);
            order.iter_mut().for_each(|slot| *slot = next_random(&mut state) % blocks);
        }
        let buffer_len = match step.op {
            BenchOp::WriteFile
            | BenchOp::ReadFile
            | BenchOp::WriteLarge
            | BenchOp::ReadLarge
            | BenchOp::ReadRandom => step.block,
            _ => 0,
        };
        let mut buffer = vec![0; usize::try_from(buffer_len).unwrap_or(1 << 20)];
        let mut state = thread.index + 1;
        for eight in buffer.chunks_exact_mut(8) {
            eight.copy_from_slice(&next_random(&mut state).to_le_bytes());
        }
        let (path, other) = (String::new(), String::new());
        Self {
            step,
            thread,
            order,
            buffer,
            path,
            other,
            deadline: u64::MAX,
            out: Outcome::default(),
        }
    }

    fn start(&mut self) {
        self.out.span.0 = now_ns();
        if self.step.seconds_max > 0 {
            self.deadline = self.out.span.0 + self.step.seconds_max * 1_000_000_000;
        }
    }

    fn finish(mut self) -> Outcome {
        self.out.span.1 = now_ns();
        self.out
    }

    /// Path of file `i` of this thread into `path` (or `other`, the name it is renamed to).
    fn name(&mut self, i: u64) {
        let renamed = i < self.thread.renamed;
        write_name(&mut self.path, self.step, self.thread.index, i, renamed);
        write_name(&mut self.other, self.step, self.thread.index, i, !renamed);
    }

    fn perform(&mut self) -> Result<(), String> {
        match self.step.op {
            BenchOp::Mkdir => {
                self.thread.made = 0;
                self.each("mkdir", |run| fs::DirBuilder::new().mode(0o755).create(&run.path))
            }
            BenchOp::Rmdir => {
                self.each("rmdir", |run| fs::remove_dir(&run.path))?;
                self.thread.made = 0;
                Ok(())
            }
            BenchOp::Create => {
                (self.thread.made, self.thread.renamed) = (0, 0);
                self.each("create", |run| create(&run.path).map(drop))
            }
            BenchOp::Stat => self.each("stat", |run| stat(&run.path)),
            BenchOp::Open => self.each("open", |run| File::open(&run.path).map(drop)),
            BenchOp::Rename => self.each("rename", |run| fs::rename(&run.path, &run.other)),
            BenchOp::Unlink => {
                self.each("unlink", |run| fs::remove_file(&run.path))?;
                (self.thread.made, self.thread.renamed) = (0, 0);
                Ok(())
            }
            BenchOp::Readdir => self.readdir(),
            BenchOp::WriteFile => {
                (self.thread.made, self.thread.renamed) = (0, 0);
                self.each("write", |run| run.write_file())
            }
            BenchOp::ReadFile => self.each("read", |run| run.read_file()),
            BenchOp::WriteLarge => self.write_large(),
            BenchOp::ReadLarge | BenchOp::ReadRandom => self.read_large(),
        }
    }

    /// Whether to go on; notes when the time limit ends the step.
    fn goes_on(&mut self, now: u64) -> bool {
        if now >= self.deadline {
            self.out.cut = true;
        }
        !self.out.cut && !STOP.load(Ordering::Relaxed) && !FAILED.load(Ordering::Relaxed)
    }

    /// Runs `call` on every file in order, timing each.
    fn each(
        &mut self,
        verb: &str,
        call: impl Fn(&mut Self) -> io::Result<()>,
    ) -> Result<(), String> {
        let mut before = now_ns();
        for index in 0..self.order.len() {
            if !self.goes_on(before) {
                break;
            }
            let i = self.order[index];
            self.name(i);
            before = now_ns();
            call(self).map_err(|why| format!("{verb} {}: {why}", self.path))?;
            let after = now_ns();
            self.out.latency.add(after - before);
            self.out.items += 1;
            before = after;
            match self.step.op {
                BenchOp::Mkdir | BenchOp::Create | BenchOp::WriteFile => self.thread.made = i + 1,
                BenchOp::Rename => self.thread.renamed = i + 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn readdir(&mut self) -> Result<(), String> {
        let dir = directory(self.step, self.thread.index);
        for _ in 0..self.order.len() {
            let before = now_ns();
            if !self.goes_on(before) {
                break;
            }
            let listing = fs::read_dir(&dir).map_err(|why| format!("readdir {dir}: {why}"))?;
            for entry in listing {
                entry.map_err(|why| format!("readdir {dir}: {why}"))?;
                self.out.items += 1;
            }
            self.out.latency.add(now_ns() - before);
        }
        Ok(())
    }

    fn write_file(&mut self) -> io::Result<()> {
        let tag = file_tag(&self.path);
        let mut file = create(&self.path)?;
        let mut done = 0;
        while done < self.step.size {
            let len = (self.step.size - done).min(self.step.block) as usize;
            mark(&mut self.buffer[..len], tag, done);
            file.write_all(&self.buffer[..len])?;
            done += len as u64;
        }
        if self.step.fsync {
            file.sync_all()?;
        }
        close(file)?;
        self.out.bytes += done;
        Ok(())
    }

    fn read_file(&mut self) -> io::Result<()> {
        let tag = file_tag(&self.path);
        let mut file = File::open(&self.path)?;
        let mut done = 0;
        loop {
            let len = file.read(&mut self.buffer)?;
            if len == 0 {
                break;
            }
            if self.step.verify {
                check(&self.buffer[..len], tag, done)?;
            }
            done += len as u64;
        }
        if self.step.verify && done != self.step.size {
            return Err(io::Error::other(format!(
                "holds {done} bytes, {} were written",
                self.step.size
            )));
        }
        self.out.bytes += done;
        Ok(())
    }

    fn write_large(&mut self) -> Result<(), String> {
        self.name(0);
        let path = self.path.clone();
        let fail = |why: io::Error| format!("write {path}: {why}");
        let mut file = create(&path).map_err(fail)?;
        self.thread.made = 1;
        let tag = file_tag(&path);
        while self.out.bytes < self.step.size {
            let before = now_ns();
            if !self.goes_on(before) {
                break;
            }
            let len = (self.step.size - self.out.bytes).min(self.step.block) as usize;
            mark(&mut self.buffer[..len], tag, self.out.bytes);
            file.write_all(&self.buffer[..len]).map_err(fail)?;
            self.out.latency.add(now_ns() - before);
            self.out.items += 1;
            self.out.bytes += len as u64;
        }
        if self.step.fsync {
            file.sync_all().map_err(fail)?;
        }
        close(file).map_err(fail)
    }

    fn read_large(&mut self) -> Result<(), String> {
        self.name(0);
        let path = self.path.clone();
        let fail = |why: io::Error| format!("read {path}: {why}");
        let file = File::open(&path).map_err(fail)?;
        let written = file.metadata().map_err(fail)?.len();
        let tag = file_tag(&path);
        for index in 0..self.order.len() {
            let before = now_ns();
            if !self.goes_on(before) {
                break;
            }
            let at = self.order[index] * self.step.block;
            if at >= written && self.step.verify {
                continue;
            }
            let mut len = 0;
            while len < self.buffer.len() {
                match file.read_at(&mut self.buffer[len..], at + len as u64).map_err(fail)? {
                    0 => break,
                    more => len += more,
                }
            }
            self.out.latency.add(now_ns() - before);
            if self.step.verify {
                check(&self.buffer[..len], tag, at).map_err(fail)?;
                let expected = (written - at).min(self.step.block);
                if len as u64 != expected {
                    return Err(format!(
                        "read {path}: got {len} bytes at {at}, {expected} were written"
                    ));
                }
            }
            self.out.items += 1;
            self.out.bytes += len as u64;
        }
        Ok(())
    }
}

/// Directory a thread works in.
pub fn directory(step: &BenchStep, thread: u64) -> String {
    if step.shared { format!("{}/shared", step.dir) } else { format!("{}/t{thread}", step.dir) }
}

/// Makes the directory of a thread that works with relative names its working directory, and that
/// of no other thread.
fn enter(step: &BenchStep, thread: u64) -> Result<(), String> {
    if !step.relative {
        return Ok(());
    }
    // SAFETY: takes no pointers; gives this thread a working directory of its own.
    if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
        return Err(format!("a working directory for each thread: {}", io::Error::last_os_error()));
    }
    let dir = directory(step, thread);
    std::env::set_current_dir(&dir).map_err(|why| format!("chdir {dir}: {why}"))
}

fn write_name(out: &mut String, step: &BenchStep, thread: u64, i: u64, renamed: bool) {
    out.clear();
    if !step.relative {
        out.push_str(&step.dir);
        let _ = if step.shared { write!(out, "/shared/") } else { write!(out, "/t{thread}/") };
    }
    let mark = if renamed { "r" } else { "f" };
    let _ = if step.shared { write!(out, "t{thread}.{mark}{i}") } else { write!(out, "{mark}{i}") };
}

/// Asks for the attributes of a name as find, tar and rsync do. `std::fs` also wants to know the
/// time of birth, which costs a request of its own where a file system has it.
fn stat(path: &str) -> io::Result<()> {
    let path = CString::new(path)?;
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path ends with a zero byte, and `found` is valid for writes; both outlive the
    // call.
    if unsafe { libc::lstat(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn create(path: &str) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)
}

/// Closes and says how it went: file systems may report a failed write only here.
fn close(file: File) -> io::Result<()> {
    let fd = std::os::fd::IntoRawFd::into_raw_fd(file);
    // SAFETY: the descriptor was ours and nobody else has it.
    if unsafe { libc::close(fd) } != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Tells the kernel that the pages of a file are not needed: what an unprivileged user can do to
/// read it cold.
pub fn forget_pages(path: &str) -> io::Result<()> {
    let file = File::open(path)?;
    // SAFETY: posix_fadvise takes no pointers; the descriptor is open during the call.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}
