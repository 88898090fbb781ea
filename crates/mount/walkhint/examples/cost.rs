//! What hints cost: `cargo run --release -p kestrel-walkhint --example cost` (as root).
//!
//! Mounts a null file system, looks names up on it, and reports: the time to load and to calibrate;
//! what the kernel measures of the program's runs (`kernel.bpf_stats_enabled`, switched on for the
//! duration) for requests of our mount that are not LOOKUPs, for LOOKUPs of short and of long
//! paths, and for LOOKUPs of another mount; and the time that `WalkHints::take` needs.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kestrel_fuse::null::{NullFs, NullOptions};
use kestrel_fuse::transport::TransportChoice;
use kestrel_fuse::{Config, FileSystem, Mount, MountOptions, Operation, Reply, Request, Session};
use kestrel_walkhint::{Lookup, WalkHints};

type AnyError = Box<dyn std::error::Error>;

/// The null file system, with hints taken for every LOOKUP.
struct Hinted {
    null: NullFs,
    hints: Option<Arc<WalkHints>>,
    last: Mutex<Option<(Lookup, Vec<u8>)>>,
}

impl FileSystem for Hinted {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        if let (Some(hints), Operation::Lookup { name }) = (&self.hints, &request.op) {
            let lookup =
                Lookup { unique: request.unique, tid: request.pid, nodeid: request.nodeid };
            if let Some(errno) = hints.probe(&lookup, name.as_bytes()) {
                return reply.error(errno);
            }
            if hints.take(&lookup, name.as_bytes()).walk().is_some()
                && let Ok(mut last) = self.last.lock()
            {
                *last = Some((lookup, name.as_bytes().to_vec()));
            }
        }
        if let (Some(hints), Operation::Create { name, .. }) = (&self.hints, &request.op)
            && hints.is_probe(name.as_bytes())
        {
            return reply.error(libc::EPERM);
        }
        self.null.handle(request, reply);
    }
}

/// A mount that is gone at the end.
struct Mounted {
    session: Option<Session>,
    fs: Arc<Hinted>,
    dir: tempfile::TempDir,
}

impl Mounted {
    fn new(hints: Option<Arc<WalkHints>>) -> Result<Mounted, AnyError> {
        let dir = tempfile::tempdir()?;
        let fs = Arc::new(Hinted {
            null: NullFs::new(NullOptions::default()),
            hints,
            last: Mutex::default(),
        });
        let mount = Mount::new(dir.path(), &MountOptions::default())?;
        let config = Config { transport: TransportChoice::Device, ..Config::default() };
        let session = Session::start(mount, fs.clone(), &config)?;
        Ok(Mounted { session: Some(session), fs, dir })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.session.take());
    }
}

/// The kernel's statistics of BPF programs, as long as this lives. They cost time themselves, about
/// 20 ns a run.
struct Statistics(String);

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl Statistics {
    fn on() -> Result<Statistics, AnyError> {
        let before = fs::read_to_string(SWITCH)?;
        fs::write(SWITCH, "1")?;
        Ok(Statistics(before))
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, &self.0);
    }
}

/// Runs of our program and their nanoseconds so far.
fn runs() -> Result<(u64, u64), AnyError> {
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        let Ok(info) = fs::read_to_string(entry?.path()) else { continue };
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        if let (Some(count), Some(time)) = (field("run_cnt:"), field("run_time_ns:")) {
            return Ok((count, time));
        }
    }
    Err("no BPF program among our descriptors".into())
}

const WALKS: u64 = 50_000;

/// Does something many times; the program's mean time and the whole call's.
fn measure(what: &str, mut call: impl FnMut()) -> Result<(), AnyError> {
    let (count, time) = runs()?;
    let start = Instant::now();
    (0..WALKS).for_each(|_| call());
    let elapsed = start.elapsed();
    let (count, time) = {
        let now = runs()?;
        (now.0 - count, now.1 - time)
    };
    println!(
        "{what}: {} ns a run of the program ({count} runs), {} ns a call",
        time / count.max(1),
        elapsed.as_nanos() / u128::from(WALKS)
    );
    Ok(())
}

/// Nanoseconds of processor time that this thread has had: other work on the machine does not
/// count.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` takes what is written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn lstat(path: &Path) {
    let _ = fs::symlink_metadata(path);
}

fn main() -> Result<(), AnyError> {
    let start = Instant::now();
    let hints = WalkHints::load()?;
    println!("load: {:.1} ms ({})", start.elapsed().as_secs_f64() * 1e3, hints.attach());
    let ours = Mounted::new(Some(hints.clone()))?;
    let start = Instant::now();
    hints.calibrate(ours.dir.path())?;
    println!("calibrate: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
    let other = Mounted::new(None)?;

    let _statistics = Statistics::on()?;
    let short = ours.dir.path().join("absent");
    let long = ours.dir.path().join(format!("absent/{}", "x".repeat(255)));
    let longest = ours.dir.path().join(format!("absent{}", "/xxxxxxxxx".repeat(400)));
    let elsewhere = other.dir.path().join("absent");
    measure("lookup, last component", || lstat(&short))?;
    measure("lookup, 256 bytes follow", || lstat(&long))?;
    measure("lookup, 4000 bytes follow", || lstat(&longest))?;
    measure("lookup of another mount", || lstat(&elsewhere))?;
    measure("getattr (no lookup)", || lstat(ours.dir.path()))?;

    for path in [&short, &longest] {
        lstat(path);
        let (lookup, name) =
            ours.fs.last.lock().map_err(|_| "poisoned")?.clone().ok_or("no hint arrived")?;
        let start = cpu_ns();
        let taken = (0..WALKS)
            .filter_map(|_| hints.take(std::hint::black_box(&lookup), &name).walk())
            .count();
        let each = (cpu_ns() - start) / WALKS;
        println!("take, path of {} bytes: {each} ns ({taken} of {WALKS})", path.as_os_str().len());
    }
    println!("{:?}", hints.stats());
    Ok(())
}
