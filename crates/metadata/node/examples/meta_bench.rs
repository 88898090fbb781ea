//! Execute and commit without a mount: what the metadata node can do on this machine, next to what
//! its disk can do.
//!
//! `cargo run --release -p kestrel-meta --example meta_bench -- [DIR] [FILES] [fsync|commit]`
//! prints one JSON object. Two workers, two threads, each with up to 1,024 requests in flight, sent
//! 256 at a time; `commit` (the default) answers after the log is synced. `create_numbered` is
//! create as a client across a network asks for it: its answer is kept with the change.
//! (`create_plain`: the same without, in the same state of the volume, to compare with.) `floor`
//! appends the bytes of as many creates to a raw file with one fdatasync for each 256 and 1,024 of
//! them.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_engine::Engine;
use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_meta::node::{Durability, Node, NodeConfig, Origin, RootAttr};
use kestrel_types::clock::SystemClock;
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, Creds, Done, Op, OpenFlags, RenameFlags, Reply, Request};
use kestrel_types::wire::ClientId;

const THREADS: u64 = 2;
const PER_DIR: u64 = 100;
const SEND: usize = 256;
const IN_FLIGHT: u64 = 1024;

fn name(file: u64) -> Name {
    Name::new(format!("file{file:08}").as_bytes()).expect("a short name is valid")
}

struct Bench {
    node: Arc<Node>,
    dirs: Vec<u64>,
    files: u64,
    /// Requests that were numbered, of each client.
    numbered: u64,
}

fn cpu_seconds() -> f64 {
    // SAFETY: rusage is plain data, and the pointer is to a live one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn expect_success(reply: &Reply) {
    if let Err(outcome) = reply {
        eprintln!("meta_bench: a request failed: {outcome:?}");
        std::process::exit(1);
    }
}

impl Bench {
    fn place(&self, file: u64) -> PathRef {
        PathRef::new(self.dirs[(file / PER_DIR) as usize], name(file))
    }

    /// Sends one request a file, from `THREADS` threads; prints rate and CPU.
    fn run(&self, label: &str, make: &(dyn Fn(&Self, u64) -> Op + Sync)) {
        self.run_from(label, &|_, _| None, make);
    }

    /// As [`Bench::run`], each thread a client that numbers its requests.
    fn run_numbered(&mut self, label: &str, make: &(dyn Fn(&Self, u64) -> Op + Sync)) {
        let before = self.numbered;
        let origin = |thread: u64, number| {
            let client = ClientId((u128::from(thread) + 1).to_be_bytes());
            Some(Origin { client, seq: before + number + 1, retry: false })
        };
        self.run_from(label, &origin, make);
        self.numbered += self.files;
    }

    fn run_from(
        &self,
        label: &str,
        origin: &(dyn Fn(u64, u64) -> Option<Origin> + Sync),
        make: &(dyn Fn(&Self, u64) -> Op + Sync),
    ) {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let done_count = Arc::new(AtomicU64::new(0));
                    let share = self.files / THREADS;
                    let (mut sent, first) = (0, thread * share);
                    while sent < share {
                        let count = SEND.min((share - sent) as usize);
                        let requests = (0..count as u64).map(|i| {
                            let op = make(self, first + sent + i);
                            let (counter, waker) = (done_count.clone(), std::thread::current());
                            let done: Done = Box::new(move |reply| {
                                expect_success(&reply);
                                if counter.fetch_add(1, Ordering::Release) % SEND as u64 == 0 {
                                    waker.unpark();
                                }
                            });
                            let request =
                                Request { creds: Creds { uid: 0, gid: 0, groups: None }, op };
                            (request, origin(thread, sent + i), done)
                        });
                        let requests: Vec<_> = requests.collect();
                        sent += count as u64;
                        self.node.submit_many_from(requests);
                        while sent - done_count.load(Ordering::Acquire) > IN_FLIGHT - SEND as u64 {
                            std::thread::park_timeout(Duration::from_millis(1));
                        }
                    }
                    while done_count.load(Ordering::Acquire) < share {
                        std::thread::park_timeout(Duration::from_micros(100));
                    }
                });
            }
        });
        self.report(label, start, cpu);
    }

    /// As [`Bench::run`], with blocking calls from many threads, as a mount makes them.
    fn blocking(&self, label: &str, threads: u64, make: &(dyn Fn(&Self, u64) -> Op + Sync)) {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    let share = self.files / threads;
                    for file in thread * share..(thread + 1) * share {
                        let op = make(self, file);
                        expect_success(&self.node.call(Request { creds: Creds::root(), op }));
                    }
                });
            }
        });
        self.report(label, start, cpu);
    }

    fn report(&self, label: &str, start: Instant, cpu: f64) {
        let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let files = self.files as f64;
        println!(
            "  \"{label}\": {{\"per_second\": {:.0}, \"cpu_us\": {:.2}}},",
            files / wall,
            cpu * 1e6 / files
        );
    }
}

/// A well-mixing permutation of `0..count` for random order: multiplication by an odd number
/// coprime to it.
fn shuffled(file: u64, count: u64) -> u64 {
    (file.wrapping_mul(2_654_435_761) + 12_345) % count
}

fn floor(dir: &Path, batch: usize) -> std::io::Result<f64> {
    let path = dir.join("floor");
    let mut file = File::create(&path)?;
    // What one create adds to the log: an entry, and its part of a directory's share.
    let bytes = vec![0x5a; batch * 110];
    let start = Instant::now();
    let mut batches = 0;
    while start.elapsed() < Duration::from_secs(1) {
        file.write_all(&bytes)?;
        file.sync_data()?;
        batches += 1;
    }
    let rate = (batches * batch) as f64 / start.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir: PathBuf = args.next().unwrap_or_else(|| "/tmp/meta_bench".into()).into();
    let files: u64 = args.next().map_or(Ok(400_000), |files| files.parse())?;
    let durability = if args.next().as_deref() == Some("fsync") {
        Durability::Fsync
    } else {
        Durability::Commit
    };
    std::fs::remove_dir_all(&dir).ok();
    std::fs::create_dir_all(&dir)?;
    let options = EmbeddedOptions {
        sync_interval: (durability == Durability::Fsync).then_some(Duration::from_secs(1)),
        memory_bytes: 4 << 30,
        ..EmbeddedOptions::default()
    };
    println!("{{\n  \"files\": {files}, \"durability\": \"{durability:?}\",");
    for batch in [256, 1024] {
        println!("  \"floor_{batch}\": {{\"per_second\": {:.0}}},", floor(&dir, batch)?);
    }
    let engine = EmbeddedEngine::open(
        &dir.join("meta"),
        [7; 16],
        options,
        Arc::new(|| Ok(())),
        &mut |_| true,
    )?;
    let engine: Arc<dyn Engine> = Arc::new(engine);
    Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, 0)?;
    let config = NodeConfig { workers: 2, durability, ..NodeConfig::default() };
    let node = Node::open(engine.clone(), Arc::new(SystemClock), config)?;
    let mut bench = Bench { node, dirs: Vec::new(), files, numbered: 0 };
    for dir in 0..=files / PER_DIR {
        let place = PathRef::new(1, Name::new(format!("dir{dir:06}").as_bytes())?);
        let request = Request { creds: Creds::root(), op: Op::MkDir(place, 0o755) };
        match bench.node.call(request) {
            Ok(Answer::Entry { inode, .. }) => bench.dirs.push(inode.ino),
            other => return Err(format!("mkdir: {other:?}").into()),
        }
    }
    let create = |bench: &Bench, file: u64| Op::Create {
        place: bench.place(file),
        mode: 0o644,
        flags: OpenFlags { write: true, ..OpenFlags::default() },
        exclusive: true,
    };
    let lookup = |bench: &Bench, file: u64| Op::Lookup(bench.place(shuffled(file, bench.files)));
    bench.run("create", &create);
    bench.run("lookup", &lookup);
    let mut inodes = vec![0; files as usize];
    for file in 0..files {
        let op = Op::Lookup(bench.place(file));
        if let Ok(Answer::Entry { inode, .. }) =
            bench.node.call(Request { creds: Creds::root(), op })
        {
            inodes[file as usize] = inode.ino;
        }
    }
    bench.run("release", &|_, file| Op::Release(inodes[file as usize]));
    bench.run("getattr", &|bench, file| {
        let file = shuffled(file, bench.files);
        let seen = Some((bench.dirs[(file / PER_DIR) as usize], name(file)));
        Op::GetAttr(InodeRef { ino: inodes[file as usize], seen })
    });
    bench.run("stat_directory", &|bench, file| {
        Op::GetAttr(InodeRef::by_id(bench.dirs[(shuffled(file, bench.files) / PER_DIR) as usize]))
    });
    bench.blocking("lookup_16_threads", 16, &lookup);
    bench.blocking("lookup_1_thread", 1, &lookup);
    bench.run("rename", &|bench, file| {
        let from = bench.place(file);
        let to = PathRef::new(
            from.base,
            Name::new(format!("g{file}").as_bytes()).unwrap_or(from.name.clone()),
        );
        Op::Rename(from, to, RenameFlags::default())
    });
    bench.run("unlink", &|bench, file| {
        let place = bench.place(file);
        Op::Unlink(PathRef::new(
            place.base,
            Name::new(format!("g{file}").as_bytes()).unwrap_or(place.name),
        ))
    });
    let remove = |bench: &Bench, file: u64| Op::Unlink(bench.place(file));
    let make = |bench: &Bench, file: u64| Op::MkNod {
        place: bench.place(file),
        kind: Kind::File,
        mode: 0o644,
        rdev: 0,
    };
    for round in 0..3 {
        bench.run(&format!("create_plain_{round}"), &make);
        bench.run(&format!("unlink_plain_{round}"), &remove);
        bench.run_numbered(&format!("create_numbered_{round}"), &make);
        bench.run_numbered(&format!("unlink_numbered_{round}"), &remove);
    }
    let stats = bench.node.stats();
    let engine = engine.stats();
    println!(
        "  \"batches\": {:?}, \"log_syncs\": {}, \"commits\": {}\n}}",
        stats.batches, engine.syncs, engine.commits
    );
    drop(bench);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
