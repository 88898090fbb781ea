//! The packer and the reader over a local directory, against raw files in the same directory.

use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_blockstore::store::local::LocalConfig;
use kestrel_blockstore::{BlockStore, LocalStore, Packer, PackerConfig, Reader, ReaderConfig};
use kestrel_types::range::Range;

use crate::{cpu_us, data, store_one};

const FILE_BYTES: usize = 64 * 1024;
const THREADS: usize = 16;
const RUNS: usize = 3;

#[derive(Clone, Copy)]
struct Figure {
    per_second: f64,
    cpu_us: f64,
}

/// Runs `work(thread, number)` on many threads for the given time.
fn measure(threads: usize, time: Duration, work: impl Fn(usize, u64) + Sync) -> Figure {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let (cpu, start) = (cpu_us(), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, count, work) = (&stop, &count, &work);
            scope.spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    work(thread, number);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    let done = count.load(Ordering::Relaxed) as f64;
    Figure { per_second: done / start.elapsed().as_secs_f64(), cpu_us: (cpu_us() - cpu) / done }
}

fn median(mut runs: Vec<Figure>) -> Figure {
    runs.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    runs[runs.len() / 2]
}

fn raw_write(dir: &Path, time: Duration, bytes: &[u8], sync: bool) -> Figure {
    let _ = std::fs::remove_dir_all(dir);
    for thread in 0..THREADS {
        std::fs::create_dir_all(dir.join(thread.to_string())).expect("bench directory");
    }
    let figure = measure(THREADS, time, |thread, number| {
        let mut file =
            std::fs::File::create(dir.join(format!("{thread}/{number}"))).expect("create");
        file.write_all(bytes).expect("write");
        if sync {
            file.sync_all().expect("fsync");
        }
    });
    std::fs::remove_dir_all(dir).expect("remove");
    figure
}

struct Volume {
    store: Arc<LocalStore>,
    packer: Packer,
}

fn volume(dir: &Path) -> Volume {
    let _ = std::fs::remove_dir_all(dir);
    let store = Arc::new(LocalStore::create(dir, LocalConfig::default()).expect("store"));
    store.sync().expect("first sync");
    let next = AtomicU64::new(1);
    let ids = Arc::new(move || Ok(next.fetch_add(1, Ordering::Relaxed)));
    let packer = Packer::new(store.clone(), ids, PackerConfig::new([1; 16])).expect("packer");
    Volume { store, packer }
}

fn packed_write(dir: &Path, time: Duration, bytes: &[u8], sync: bool) -> (Figure, f64) {
    let volume = volume(dir);
    let figure = measure(THREADS, time, |_, _| {
        store_one(&volume.packer, bytes);
        if sync {
            volume.store.sync().expect("sync");
        }
    });
    let stats = volume.packer.stats();
    let (members, rounds) =
        (stats.members.load(Ordering::Relaxed), stats.rounds.load(Ordering::Relaxed));
    drop(volume);
    std::fs::remove_dir_all(dir).expect("remove");
    (figure, members as f64 / rounds.max(1) as f64)
}

fn pick(thread: usize, number: u64, count: usize) -> usize {
    let mixed = (number + thread as u64 * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % count
}

fn reads(dir: &Path, time: Duration, bytes: &[u8]) -> [(&'static str, Figure); 4] {
    const FILES: usize = 2000;
    std::fs::create_dir_all(dir).expect("bench directory");
    let volume = volume(&dir.join("volume"));
    let ranges: Vec<Range> = (0..FILES).map(|_| store_one(&volume.packer, bytes)).collect();
    let raw = dir.join("raw");
    std::fs::create_dir_all(&raw).expect("bench directory");
    let paths: Vec<PathBuf> = (0..FILES).map(|file| raw.join(file.to_string())).collect();
    for path in &paths {
        std::fs::write(path, bytes).expect("write");
    }
    let open: Vec<_> = paths.iter().map(|path| std::fs::File::open(path).expect("open")).collect();
    let store: Arc<dyn BlockStore> = volume.store.clone();
    let reader = Reader::new(store, ReaderConfig::default());
    let mut stats = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        stats[0].push(measure(1, time, |thread, number| {
            let mut out = [0; FILE_BYTES];
            let range = ranges[pick(thread, number, FILES)];
            if !reader.try_read(range, 0, &mut out).expect("read") {
                reader.read(range, 0, &mut out).expect("read");
            }
            std::hint::black_box(&out);
        }));
        stats[1].push(measure(1, time, |thread, number| {
            let mut out = [0; FILE_BYTES];
            open[pick(thread, number, FILES)].read_exact_at(&mut out, 0).expect("read");
            std::hint::black_box(&out);
        }));
        stats[2].push(measure(1, time, |thread, number| {
            let mut out = [0; FILE_BYTES];
            let file = std::fs::File::open(&paths[pick(thread, number, FILES)]).expect("open");
            file.read_exact_at(&mut out, 0).expect("read");
            std::hint::black_box(&out);
        }));
        stats[3].push(measure(1, time, |thread, number| {
            let mut out = [0; 4096];
            let file = pick(thread, number / 16, 500);
            reader.read(ranges[file], (number % 16) as u32 * 4096, &mut out).expect("read");
            std::hint::black_box(&out);
        }));
    }
    drop(volume);
    std::fs::remove_dir_all(dir).expect("remove");
    let names = [
        "read_64k_verified",
        "read_64k_pread",
        "read_64k_open_pread_close",
        "read_4k_sequential_verified",
    ];
    let mut all = names.into_iter().zip(stats.map(median));
    std::array::from_fn(|_| all.next().expect("four names, four figures"))
}

/// Each variant runs three times, interleaved with the others; the median run counts. CPU is that
/// of the whole process, user and system, per operation.
pub fn run(dir: PathBuf, seconds: f64) {
    let (time, bytes) = (Duration::from_secs_f64(seconds), data(FILE_BYTES));
    std::fs::create_dir_all(&dir).expect("bench directory");
    let mut runs: [Vec<Figure>; 4] = Default::default();
    let mut members = [0.0; 2];
    for _ in 0..RUNS {
        runs[0].push(raw_write(&dir.join("raw"), time, &bytes, false));
        let (figure, per_round) = packed_write(&dir.join("pack"), time, &bytes, false);
        runs[1].push(figure);
        members[0] = per_round;
        runs[2].push(raw_write(&dir.join("raw"), time, &bytes, true));
        let (figure, per_round) = packed_write(&dir.join("pack"), time, &bytes, true);
        runs[3].push(figure);
        members[1] = per_round;
    }
    let [raw, process, raw_sync, disk] = runs.map(median);
    println!(
        "{{\n  \"threads\": {THREADS}, \"file_bytes\": {FILE_BYTES}, \"seconds_per_run\": \
         {seconds},"
    );
    let print = |name: &str, figure: Figure| {
        println!(
            "  \"{name}\": {{\"per_second\": {:.0}, \"cpu_us\": {:.1}}},",
            figure.per_second, figure.cpu_us
        );
    };
    print("write_close", raw);
    print("pack", process);
    print("write_fsync_close", raw_sync);
    print("pack_sync", disk);
    reads(&dir.join("reads"), time, &bytes)
        .into_iter()
        .for_each(|(name, figure)| print(name, figure));
    println!(
        "  \"members_per_round\": {:.1}, \"members_per_round_synced\": {:.1},",
        members[0], members[1]
    );
    println!(
        "  \"ratio\": {:.2}, \"ratio_sync\": {:.2}\n}}",
        process.per_second / raw.per_second,
        disk.per_second / raw_sync.per_second
    );
}
