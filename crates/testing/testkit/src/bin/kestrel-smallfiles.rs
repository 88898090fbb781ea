//! Many files of one size, written or read by many threads as fast as they can: the load of
//! `bench/s3.py`. See `--help`.

use std::fs::{File, create_dir_all};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use kestrel_testkit::args::Args;
use kestrel_testkit::rng::{Rng, fill, mix};

const HELP: &str = "\
kestrel-smallfiles: many files of one size, written or read by many threads

usage: kestrel-smallfiles write|read --dir DIR [--files N] [--size BYTES] [--threads N] [--seed S]

write   makes DIR/NNN/NNNNNN (a thousand files a directory), each opened, written and closed by \
    one of the threads
read    opens, reads and closes each once, in a random order that --seed changes, and compares \
    every byte
Prints JSON: files, bytes, seconds, files_per_second, megabytes_per_second (10^6). exit: 0, or 1 \
    at the first failure.

examples:
  kestrel-smallfiles write --dir /mnt/k/small --files 10000 --size 102400 --threads 64
";

/// What the content of all files is cut from: enough that no two neighbours share their bytes.
const POOL_EXTRA: usize = 8 << 20;

/// Files of a directory.
const DIR_FILES: u64 = 1000;

struct Job {
    dir: PathBuf,
    size: usize,
    pool: Vec<u8>,
}

impl Job {
    fn path(&self, file: u64) -> PathBuf {
        self.dir.join(format!("{:03}/{file:06}", file / DIR_FILES))
    }

    fn content(&self, file: u64) -> &[u8] {
        let at = mix(file) as usize % POOL_EXTRA;
        &self.pool[at..at + self.size]
    }

    fn write(&self, file: u64) -> Result<(), String> {
        let path = self.path(file);
        let written = File::create(&path).and_then(|mut out| {
            out.write_all(self.content(file))?;
            close(out)
        });
        written.map_err(|error| format!("{}: {error}", path.display()))
    }

    fn read(&self, file: u64, buffer: &mut Vec<u8>) -> Result<(), String> {
        let path = self.path(file);
        let read = File::open(&path).and_then(|from| read_whole(from, buffer));
        read.map_err(|error| format!("{}: {error}", path.display()))?;
        if buffer != self.content(file) {
            return Err(format!(
                "{}: not the bytes that were written ({})",
                path.display(),
                buffer.len()
            ));
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let verb = words.next().unwrap_or_default();
    let done = match verb.as_str() {
        "" | "help" | "--help" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        "write" | "read" => Args::parse(words, &["dir", "files", "size", "threads", "seed"], &[])
            .and_then(|args| run(&args, verb == "write")),
        other => Err(format!("unknown command: {other} (see --help)")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("kestrel-smallfiles: {what}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, write: bool) -> Result<(), String> {
    let files = args.number("files", 10_000)?;
    let size = args.number("size", 102_400)? as usize;
    let threads = args.number("threads", 64)?;
    let mut pool = vec![0; size + POOL_EXTRA];
    fill(1, &mut pool);
    let job = Job { dir: PathBuf::from(args.need("dir")?), size, pool };
    let order = shuffled(files, if write { None } else { Some(args.number("seed", 1)?) });
    if write {
        for number in 0..files.div_ceil(DIR_FILES) {
            make_dir(&job.path(number * DIR_FILES))?;
        }
    }
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let failed = std::sync::Mutex::new(None);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = Vec::with_capacity(size + 1);
                while let Some(&file) = order.get(next.fetch_add(1, Relaxed)) {
                    let result = if write { job.write(file) } else { job.read(file, &mut buffer) };
                    if let Err(why) = result {
                        // The others stop at their next file.
                        next.store(order.len(), Relaxed);
                        *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                            Some(why);
                        return;
                    }
                    done.fetch_add(1, Relaxed);
                }
            });
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    if let Some(why) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(why);
    }
    let (files, bytes) = (done.into_inner(), files * size as u64);
    println!(
        "{{\"files\":{files},\"bytes\":{bytes},\"seconds\":{seconds:.6},\"files_per_second\":{:.1},\
         \"megabytes_per_second\":{:.2}}}",
        files as f64 / seconds,
        bytes as f64 / seconds / 1e6
    );
    Ok(())
}

/// Reads a file as a data loader in Python or C does: its size by fstat(2), then the bytes.
/// (`std::fs` asks for the time of birth besides, which a FUSE file system is asked for separately,
/// for each file.)
fn read_whole(mut from: File, buffer: &mut Vec<u8>) -> std::io::Result<()> {
    // SAFETY: the structure is plain integers, for which all zeros is a valid value.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `found` outlives the call.
    if unsafe { libc::fstat(from.as_raw_fd(), &raw mut found) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // One byte more, so that the read that fills it is known to be the last.
    buffer.resize(usize::try_from(found.st_size).unwrap_or(0) + 1, 0);
    let mut done = 0;
    loop {
        match from.read(&mut buffer[done..])? {
            0 => break,
            read => done += read,
        }
        if done == buffer.len() {
            buffer.resize(2 * done, 0);
        }
    }
    buffer.truncate(done);
    Ok(())
}

/// Closes a file and tells what close said: dropping it would hide a failed upload.
fn close(file: File) -> std::io::Result<()> {
    // SAFETY: the descriptor is ours, and nobody uses it after this.
    if unsafe { libc::close(file.into_raw_fd()) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

fn make_dir(file: &Path) -> Result<(), String> {
    let dir = file.parent().unwrap_or(file);
    create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))
}

/// 0 to `count`, in order or shuffled (Fisher and Yates).
fn shuffled(count: u64, seed: Option<u64>) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    if let Some(seed) = seed {
        let mut random = Rng::new(seed);
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
    }
    order
}
