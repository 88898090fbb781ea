//! `kestrel bench`: what a directory of any file system can do. Metadata, small files, large files,
//! with latencies and processor time per operation.
//!
//! | file | what it has |
//! | --- | --- |
//! | `bench/step.rs` | one measured step, and its threads |
//! | `bench/workers.rs` | threads and child processes that run steps |
//! | `bench/pattern.rs` | bytes that are written and checked; random orders |
//! | `bench/histogram.rs` | latencies |
//! | `bench/cpu.rs` | processor time |
//! | `bench/report.rs` | the table or the JSON |
//!
//! Everything happens in one new directory below the one given, which is removed at the end, also
//! after an error or ctrl-C. It needs nothing of KestrelFS, so that any two file systems can be
//! compared.

mod cpu;
mod histogram;
mod pattern;
mod report;
mod step;
mod workers;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::units::{bytes, short, size_arg};

use report::{Report, ReportRow};
use step::{BenchOp, BenchStep, STOP};
use workers::{PROCESSES_MAX, Workers};

pub use cpu::rusage_us;
pub use workers::work;

/// Most threads of all processes together.
const THREADS_MAX: u64 = 4096;
/// Most files a thread.
const FILES_MAX: u64 = 100_000_000;
/// Largest read or write.
const BLOCK_MAX: u64 = 256 << 20;
/// Room that must remain free beyond what the benchmark writes, bytes.
const SPARE_BYTES: u64 = 64 << 20;

/// Groups of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// mkdir, create, stat, open, readdir, rename, unlink, rmdir; a directory for each thread
    Metadata,
    /// The same, all threads in one directory
    Shared,
    /// Write, read cold and read again files of each of --sizes
    Small,
    /// Write, read cold and read at random one large file for each thread
    Large,
}

/// Measure a directory of any file system.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel bench /mnt/data
  kestrel bench /mnt/data --threads 16 --phase metadata,shared --files 2000
  kestrel bench /mnt/data --phase small --sizes 4K,64K,1M --fsync
  kestrel bench /mnt/data --processes 4 --threads 4 --json > result.json

The columns: operations (entries, blocks) a second; megabytes (10^6) a second; latency of one call,
or of one file from open to close; processor time per operation of the whole machine (user, system
and interrupt time from /proc/stat: servers and everything else that ran meanwhile are counted;
steps of 10 ms) and of the benchmark itself. `cold` steps follow a sync and a drop of the kernel's
caches, which needs root and concerns the whole machine; without root only the pages of the files
themselves are dropped.")]
pub struct BenchArgs {
    /// Directory to measure; a new directory below it is used and removed
    pub dir: PathBuf,
    /// Threads of each process
    #[arg(long, default_value_t = 4)]
    pub threads: u64,
    /// Processes
    #[arg(long, default_value_t = 1)]
    pub processes: u64,
    /// Files of each thread
    #[arg(long, default_value_t = 1000)]
    pub files: u64,
    /// Sizes of small files
    #[arg(long, value_delimiter = ',', value_parser = size_arg, default_value = "4K,64K")]
    pub sizes: Vec<u64>,
    /// What to measure; all by default
    #[arg(long = "phase", value_delimiter = ',', value_enum)]
    pub phases: Vec<Phase>,
    /// Call fsync before closing a file that was written
    #[arg(long)]
    pub fsync: bool,
    /// Size of each thread's large file
    #[arg(long, value_parser = size_arg, default_value = "256M")]
    pub large_size: u64,
    /// Bytes of one sequential read or write
    #[arg(long, value_parser = size_arg, default_value = "1M")]
    pub block: u64,
    /// Bytes of one random read
    #[arg(long, value_parser = size_arg, default_value = "64K")]
    pub random_block: u64,
    /// Fewer small files, so that a step writes at most so much
    #[arg(long, value_parser = size_arg, default_value = "4G")]
    pub bytes_max: u64,
    /// Directories between the benchmark's own and the files
    #[arg(long, default_value_t = 0)]
    pub depth: u64,
    /// Name files relative to their directory, as tar, rsync and find do, instead of by full path
    #[arg(long)]
    pub relative: bool,
    /// End a step after so many seconds (0: never); deleting is never cut short
    #[arg(long, default_value_t = 60)]
    pub seconds_max: u64,
    /// Seed of the random orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Drop no caches: measure what is in memory
    #[arg(long)]
    pub warm: bool,
    /// Do not check what is read (for file systems that keep nothing)
    #[arg(long)]
    pub no_verify: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    fn wants(&self, phase: Phase) -> bool {
        self.phases.is_empty() || self.phases.contains(&phase)
    }

    fn workers(&self) -> u64 {
        self.processes * self.threads
    }

    /// Files of `size` bytes each thread writes.
    fn small_files(&self, size: u64) -> u64 {
        (self.bytes_max / size.max(1) / self.workers()).clamp(1, self.files)
    }

    fn check(&self) -> Result<(), Failure> {
        let bounds = [
            ("--threads", self.threads, 1, THREADS_MAX),
            ("--processes", self.processes, 1, PROCESSES_MAX),
            ("--files", self.files, 1, FILES_MAX),
            ("--block", self.block, 512, BLOCK_MAX),
            ("--random-block", self.random_block, 512, BLOCK_MAX),
            ("--large-size", self.large_size, 1, 1 << 50),
            ("--depth", self.depth, 0, 100),
        ];
        for (name, value, min, max) in bounds {
            if !(min..=max).contains(&value) {
                return Err(Failure::usage(format!(
                    "{name} {value}: must be between {min} and {max}"
                )));
            }
        }
        if self.workers() > THREADS_MAX {
            let all = self.workers();
            return Err(Failure::usage(format!(
                "{all} threads in all: at most {THREADS_MAX}; use fewer --threads or --processes"
            )));
        }
        if self.sizes.len() > 16 || self.sizes.iter().any(|size| *size > 1 << 40) {
            return Err(Failure::usage("--sizes: at most 16 sizes of at most 1T".to_string()));
        }
        if self.random_block > self.large_size {
            return Err(Failure::usage("--random-block: larger than --large-size".to_string()));
        }
        Ok(())
    }

    /// Most bytes that exist at one time.
    fn room_needed(&self) -> u64 {
        let small = self.sizes.iter().map(|size| size.saturating_mul(self.small_files(*size)));
        let small = small.max().filter(|_| self.wants(Phase::Small)).unwrap_or(0);
        let large = if self.wants(Phase::Large) { self.large_size } else { 0 };
        small.max(large).saturating_mul(self.workers())
    }
}

/// Runs the benchmark.
///
/// # Errors
/// If an option is absurd, the directory cannot be written, there is not enough room, or an
/// operation fails; what was made is removed first.
pub fn run(args: &BenchArgs) -> Result<ExitStatus, Failure> {
    args.check()?;
    let place = fs::canonicalize(&args.dir).map_err(|why| {
        Failure::new("bench", format!("{}: {why}; give an existing directory", args.dir.display()))
    })?;
    let room = free_bytes(&place);
    if room.is_some_and(|room| args.room_needed().saturating_add(SPARE_BYTES) > room) {
        return Err(Failure::new(
            "bench",
            format!(
                "{}: {} needed, {} free; use fewer --files, --threads or a smaller --large-size",
                place.display(),
                bytes(args.room_needed() + SPARE_BYTES),
                bytes(room.unwrap_or(0))
            ),
        ));
    }
    kestrel_daemon::signals::on_signal(|number| {
        workers::stop();
        if number > 1 {
            std::process::exit(130);
        }
    });
    let dir = WorkDir::new(&place)?;
    let mut bench = Bench {
        args,
        dir: dir.path.clone(),
        crew: Workers::new(args.processes, args.threads)
            .map_err(|why| Failure::new("bench", format!("cannot start the processes: {why}")))?,
        report: Report::new(args, &place),
    };
    let done = bench.all();
    let report = bench.report;
    drop(bench.crew);
    dir.remove()?;
    done?;
    if STOP.load(Ordering::SeqCst) {
        return Err(Failure::new(
            "bench",
            "interrupted; everything it had made is removed".to_string(),
        ));
    }
    report.end(args.json);
    Ok(ExitStatus::Good)
}

struct Bench<'a> {
    args: &'a BenchArgs,
    dir: PathBuf,
    crew: Workers,
    report: Report,
}

impl Bench<'_> {
    fn all(&mut self) -> Result<(), Failure> {
        if self.args.wants(Phase::Metadata) {
            self.metadata("metadata", false)?;
        }
        if self.args.wants(Phase::Shared) {
            self.metadata("shared", true)?;
        }
        if self.args.wants(Phase::Small) {
            for size in self.args.sizes.clone() {
                self.small(size)?;
            }
        }
        if self.args.wants(Phase::Large) {
            self.large()?;
        }
        Ok(())
    }

    fn step(&self, dir: &Path, op: BenchOp) -> BenchStep {
        BenchStep {
            op,
            dir: dir.to_string_lossy().into_owned(),
            shared: false,
            relative: self.args.relative,
            count: self.args.files,
            size: 0,
            block: self.args.block,
            fsync: self.args.fsync,
            verify: !self.args.no_verify,
            seconds_max: self.args.seconds_max,
            seed: self.args.seed,
        }
    }

    /// A new directory for a phase, with the directories its threads work in.
    fn stage(&self, name: &str, shared: bool) -> Result<PathBuf, Failure> {
        let mut dir = self.dir.join(name);
        for level in 0..self.args.depth {
            dir.push(format!("d{level}"));
        }
        let step = BenchStep { shared, ..self.step(&dir, BenchOp::Create) };
        let threads = if shared { 1 } else { self.args.workers() };
        for thread in 0..threads {
            let own = step::directory(&step, thread);
            fs::create_dir_all(&own)
                .map_err(|why| Failure::new("bench", format!("mkdir {own}: {why}")))?;
        }
        Ok(dir)
    }

    fn metadata(&mut self, phase: &str, shared: bool) -> Result<(), Failure> {
        let dir = self.stage(phase, shared)?;
        let base = BenchStep { shared, ..self.step(&dir, BenchOp::Create) };
        let some = (self.args.files / 10).max(1);
        self.measure(
            phase,
            "mkdir",
            BenchStep { op: BenchOp::Mkdir, count: some, ..base.clone() },
        )?;
        self.measure(
            phase,
            "rmdir",
            BenchStep { op: BenchOp::Rmdir, seconds_max: 0, ..base.clone() },
        )?;
        self.measure(phase, "create", BenchStep { op: BenchOp::Create, ..base.clone() })?;
        let cold = self.drop_caches(None);
        self.measure(
            phase,
            if cold { "stat (cold)" } else { "stat" },
            BenchStep { op: BenchOp::Stat, ..base.clone() },
        )?;
        self.measure(phase, "open+close", BenchStep { op: BenchOp::Open, ..base.clone() })?;
        let listings = if shared { 3 } else { 10 };
        self.measure(
            phase,
            "readdir entries",
            BenchStep { op: BenchOp::Readdir, count: listings, ..base.clone() },
        )?;
        self.measure(phase, "rename", BenchStep { op: BenchOp::Rename, ..base.clone() })?;
        self.measure(phase, "unlink", BenchStep { op: BenchOp::Unlink, seconds_max: 0, ..base })
    }

    fn small(&mut self, size: u64) -> Result<(), Failure> {
        let phase = format!("small {}", short(size));
        let dir = self.stage(&format!("small{size}"), false)?;
        let base = BenchStep {
            size,
            count: self.args.small_files(size),
            block: size.clamp(1, self.args.block),
            ..self.step(&dir, BenchOp::WriteFile)
        };
        let write = if self.args.fsync { "write+fsync+close" } else { "write+close" };
        self.measure(&phase, write, base.clone())?;
        if !self.args.warm {
            let cold = self.drop_caches(Some(&dir));
            let name = if cold { "read (cold)" } else { "read (pages dropped)" };
            self.measure(&phase, name, BenchStep { op: BenchOp::ReadFile, ..base.clone() })?;
        }
        let seed = self.args.seed + 1;
        self.measure(
            &phase,
            "read (again)",
            BenchStep { op: BenchOp::ReadFile, seed, ..base.clone() },
        )?;
        self.measure(&phase, "unlink", BenchStep { op: BenchOp::Unlink, seconds_max: 0, ..base })
    }

    fn large(&mut self) -> Result<(), Failure> {
        let phase = format!("large {}", short(self.args.large_size));
        let dir = self.stage("large", false)?;
        let base = BenchStep { size: self.args.large_size, ..self.step(&dir, BenchOp::WriteLarge) };
        self.measure(&phase, if self.args.fsync { "write+fsync" } else { "write" }, base.clone())?;
        let cold = !self.args.warm && self.drop_caches(Some(&dir));
        let name = if cold { "read (cold)" } else { "read" };
        self.measure(&phase, name, BenchStep { op: BenchOp::ReadLarge, ..base.clone() })?;
        let cold = !self.args.warm && self.drop_caches(Some(&dir));
        let name = if cold { "random read (cold)" } else { "random read" };
        let blocks = self.args.large_size / self.args.random_block;
        let random = BenchStep {
            op: BenchOp::ReadRandom,
            block: self.args.random_block,
            count: blocks.max(1),
            ..base.clone()
        };
        self.measure(&phase, name, random)?;
        self.measure(&phase, "unlink", BenchStep { op: BenchOp::Unlink, seconds_max: 0, ..base })
    }

    /// Does a step and reports it. Does nothing once interrupted.
    fn measure(&mut self, phase: &str, op: &str, step: BenchStep) -> Result<(), Failure> {
        if STOP.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (done, machine_us) = self.crew.run(&step);
        if let Some(why) = &done.error {
            return Err(Failure::new("bench", why.clone()));
        }
        if !STOP.load(Ordering::SeqCst) {
            self.report.add(ReportRow::new(phase, op, &done, machine_us), self.args.json);
        }
        Ok(())
    }

    /// Empties the kernel's caches; if that is not allowed, drops at least the pages of the files
    /// below `dir`. Tells whether the caches are empty.
    fn drop_caches(&self, dir: Option<&Path>) -> bool {
        if self.args.warm || STOP.load(Ordering::SeqCst) {
            return false;
        }
        // SAFETY: sync takes no arguments and cannot fail.
        unsafe { libc::sync() };
        if fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
            // What was dropped may still be freed in the background; it must not count as the next
            // step's work.
            std::thread::sleep(Duration::from_millis(50));
            return true;
        }
        if let Some(dir) = dir {
            forget_below(dir);
        }
        false
    }
}

fn forget_below(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            forget_below(&path);
        } else {
            let _ = step::forget_pages(&path.to_string_lossy());
        }
    }
}

/// Bytes an unprivileged user may still write; `None` if the file system does not say.
fn free_bytes(dir: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeros is a valid statvfs.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with NUL and `stat` is valid for writes; both outlive the call.
    let done = unsafe { libc::statvfs(path.as_ptr(), &mut stat) };
    (done == 0 && stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The benchmark's own directory.
struct WorkDir {
    path: PathBuf,
    removed: bool,
}

impl WorkDir {
    fn new(place: &Path) -> Result<Self, Failure> {
        let path = place.join(format!("kestrel-bench.{}", std::process::id()));
        fs::create_dir(&path).map_err(|why| {
            Failure::new(
                "bench",
                format!("cannot create {}: {why}; give a directory you may write", path.display()),
            )
        })?;
        Ok(Self { path, removed: false })
    }

    fn remove(mut self) -> Result<(), Failure> {
        self.removed = true;
        remove_tree(&self.path).map_err(|why| {
            Failure::new(
                "bench",
                format!("cannot remove {}: {why}; remove it by hand", self.path.display()),
            )
        })
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if !self.removed {
            let _ = remove_tree(&self.path);
        }
    }
}

/// Removes a directory with everything in it, for up to 10 seconds against threads that are just
/// ending.
fn remove_tree(path: &Path) -> std::io::Result<()> {
    let begun = Instant::now();
    loop {
        match fs::remove_dir_all(path) {
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_) if begun.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(100))
            }
            done => return done,
        }
    }
}
