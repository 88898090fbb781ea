//! Rates of the null file system over both transports: `cargo bench -p kestrel-fuse [--
//! --transports device,uring --workers 2,16 --threads 1,4 --seconds 2 --kinds fstat,create]`.
//!
//! Needs root. The server runs in this process and the load in a child, so that the CPU time of
//! both sides can be measured apart. Each line gives operations per second, CPU microseconds per
//! operation of server and load, and the rate over io_uring against that over the device, measured
//! just before. io_uring is left out, with the reason, where the kernel does not offer it: `echo Y
//! > /sys/module/fuse/parameters/enable_uring` switches it on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_fuse::null::{self, NullOptions};
use kestrel_fuse::{Config, MountOptions, TransportChoice};

const KINDS: [&str; 6] = ["fstat", "open", "create", "read128k", "direct128k", "direct1m"];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)).cloned()
    };
    let numbers = |name: &str, default: &str| -> Vec<usize> {
        option(name)
            .unwrap_or(default.into())
            .split(',')
            .map(|n| n.parse().expect("a number"))
            .collect()
    };
    if let Some(kind) = option("--load") {
        let seconds = option("--seconds").and_then(|s| s.parse().ok()).unwrap_or(1.0);
        load(
            &kind,
            Path::new(&option("--dir").expect("--dir")),
            numbers("--threads", "1")[0],
            seconds,
        );
        return;
    }
    let seconds = option("--seconds").unwrap_or("2".into());
    let kinds = option("--kinds").map(|k| k.split(',').map(str::to_owned).collect());
    let kinds: Vec<String> = kinds.unwrap_or(KINDS.map(str::to_owned).to_vec());
    let dir = std::env::temp_dir().join(format!("kestrel-null-bench.{}", std::process::id()));
    fs::create_dir(&dir).expect("temporary directory");
    let transports: Vec<TransportChoice> = option("--transports")
        .unwrap_or("device,uring".into())
        .split(',')
        .map(|name| name.parse().expect("a transport"))
        .collect();
    println!(
        "{:>9} {:>7} {:>6} {:>10} {:>7} {:>10} {:>8} {:>8} {:>6}",
        "transport", "workers", "clone", "load", "threads", "ops/s", "srv µs", "load µs", "ratio"
    );
    for workers in numbers("--workers", "0") {
        for clone in numbers("--clone", "1") {
            for threads in numbers("--threads", "1,4") {
                for kind in &kinds {
                    let mut first = None;
                    for transport in &transports {
                        let config = Config {
                            workers,
                            clone_fd: clone != 0,
                            transport: *transport,
                            ..Config::default()
                        };
                        let rate = measure(&dir, &config, kind, threads, &seconds, first);
                        first = first.or(rate);
                    }
                }
            }
        }
    }
    let _ = fs::remove_dir(&dir);
}

/// One line of the table; the rate, for the next one's ratio.
fn measure(
    dir: &PathBuf,
    config: &Config,
    kind: &str,
    threads: usize,
    seconds: &str,
    device: Option<f64>,
) -> Option<f64> {
    let null = NullOptions { file_bytes: 1 << 30, ..Default::default() };
    let session = match null::start(dir, null, &MountOptions::default(), config) {
        Ok(session) => session,
        Err(why) => {
            println!("{:>9} left out: {why}", config.transport.to_string());
            return None;
        }
    };
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--load", kind, "--dir"])
        .arg(dir)
        .args(["--threads", &threads.to_string(), "--seconds", seconds])
        .stdout(Stdio::piped())
        .spawn()
        .expect("load");
    // A line when the load begins, one when it ends, one with the figures.
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let mut line = || lines.next().and_then(|line| line.ok()).expect("the load process ended");
    line();
    let before = cpu(libc::RUSAGE_SELF);
    line();
    let server = cpu(libc::RUSAGE_SELF) - before;
    let text = line();
    assert!(child.wait().expect("wait").success());
    let mut fields = text.split_whitespace().map(|field| field.parse::<f64>().expect("number"));
    let (ops, wall, load) =
        (fields.next().unwrap_or(0.0), fields.next().unwrap_or(1.0), fields.next().unwrap_or(0.0));
    let ratio = device.map(|device| format!("{:.2}", ops / wall / device)).unwrap_or_default();
    println!(
        "{:>9} {:>7} {:>6} {:>10} {:>7} {:>10.0} {:>8.2} {:>8.2} {:>6}",
        session.transport(),
        session.workers(),
        config.clone_fd,
        kind,
        threads,
        ops / wall,
        server / ops * 1e6,
        load / ops * 1e6,
        ratio
    );
    let unmounter = session.unmounter();
    unmounter.unmount().or_else(|_| unmounter.force()).expect("unmount");
    session.join().expect("end");
    Some(ops / wall)
}

fn cpu(whose: i32) -> f64 {
    // SAFETY: rusage is plain data and getrusage fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whose, &raw mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Runs the operation on `threads` threads for the given time and prints count, seconds and CPU
/// seconds.
fn load(kind: &str, dir: &Path, threads: usize, seconds: f64) {
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let ready = Barrier::new(threads + 1);
    let (mut wall, mut before, mut after) = (0.0, 0.0, 0.0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, total, ready) = (&stop, &total, &ready);
            scope.spawn(move || {
                let own = dir.join(format!("d{thread}"));
                fs::create_dir(&own).expect("mkdir");
                let file = own.join("file");
                fs::File::create_new(&file).expect("create");
                let mut operation: Box<dyn FnMut(u64)> = match kind {
                    "fstat" => {
                        let open = fs::File::open(&file).expect("open");
                        Box::new(move |_| {
                            open.metadata().expect("fstat");
                        })
                    }
                    "stat" => Box::new(move |_| {
                        fs::metadata(&file).expect("stat");
                    }),
                    "open" => Box::new(move |_| {
                        fs::File::open(&file).expect("open");
                    }),
                    "create" => {
                        // Relative to the open directory: LOOKUP, CREATE and RELEASE, and no
                        // lookups on the way.
                        let dir = fs::File::open(&own).expect("open directory");
                        Box::new(move |n| create_at(dir.as_raw_fd(), &format!("f{n}\0")))
                    }
                    "shared" => {
                        let dir = fs::File::open(dir).expect("open directory");
                        Box::new(move |n| create_at(dir.as_raw_fd(), &format!("{thread}.{n}\0")))
                    }
                    "unlink" => {
                        // More than can be removed in the time.
                        let names = (seconds * 150_000.0) as u64 / threads as u64;
                        for n in 0..names {
                            fs::File::create_new(own.join(format!("f{n}"))).expect("create");
                        }
                        Box::new(move |n| {
                            assert!(n < names, "too few files to unlink");
                            fs::remove_file(own.join(format!("f{n}"))).expect("unlink");
                        })
                    }
                    "read128k" => {
                        let open = fs::File::open(&file).expect("open");
                        let mut buffer = vec![0u8; 128 << 10];
                        Box::new(move |n| {
                            let offset = (n as i64 % 8000) * (128 << 10);
                            if n % 8000 == 0 {
                                // SAFETY: a plain call on an open descriptor.
                                unsafe {
                                    libc::posix_fadvise(
                                        open.as_raw_fd(),
                                        0,
                                        0,
                                        libc::POSIX_FADV_DONTNEED,
                                    )
                                };
                            }
                            // SAFETY: the buffer is as long as the length given.
                            let got = unsafe {
                                libc::pread(
                                    open.as_raw_fd(),
                                    buffer.as_mut_ptr().cast(),
                                    buffer.len(),
                                    offset,
                                )
                            };
                            assert_eq!(got, buffer.len() as isize);
                        })
                    }
                    "direct128k" => direct(&file, 128 << 10),
                    "direct1m" => direct(&file, 1 << 20),
                    other => panic!("unknown load {other}"),
                };
                ready.wait();
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    operation(n);
                    n += 1;
                }
                total.fetch_add(n, Ordering::Relaxed);
            });
        }
        ready.wait();
        println!("begin");
        let start = Instant::now();
        before = cpu(libc::RUSAGE_SELF);
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        println!("end");
        wall = start.elapsed().as_secs_f64();
        after = cpu(libc::RUSAGE_SELF);
    });
    println!("{} {wall} {}", total.load(Ordering::Relaxed), after - before);
}

/// Reads past the page cache: each read is one request of that size.
fn direct(file: &Path, bytes: usize) -> Box<dyn FnMut(u64)> {
    let open =
        fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(file).expect("open");
    let mut buffer = vec![0u8; bytes + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    Box::new(move |n| {
        let offset = n % ((1 << 30) / bytes as u64) * bytes as u64;
        open.read_exact_at(&mut buffer[start..start + bytes], offset).expect("read");
    })
}

/// Creates and closes a file; the name ends in NUL.
fn create_at(dir: i32, name: &str) {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;
    assert!(name.ends_with('\0'));
    // SAFETY: the name ends in NUL, and the descriptor is closed once.
    unsafe {
        let fd = libc::openat(dir, name.as_ptr().cast(), flags, 0o644);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        libc::close(fd);
    }
}
