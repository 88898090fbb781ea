//! Opening: a new engine, or recovery of one.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use kestrel_types::ids::Position;

use super::super::checkpoint::{self, Checkpoint};
use super::super::disk::real::RealDisk;
use super::super::disk::{Disk, io_error};
use super::super::durability::Waiters;
use super::super::fence::Fenced;
use super::super::log::format::{Change, SEGMENT_HEADER};
use super::super::log::recovery::{RecoveryContext, Verify, recover};
use super::super::log::segments::{Segments, Sizes, generation_of};
use super::super::log::{Log, Start};
use super::super::rows::MemoryRows;
use super::super::runs::Runs;
use super::super::runs::lsm::LsmRuns;
use super::super::small_record::{ADVICE, Uuid};
use super::flush::Flusher;
use super::sync::Syncer;
use super::{BeforeSync, Counters, EmbeddedEngine, EmbeddedOptions, EngineError, Epoch, Shared};

/// What a thread does.
type ThreadBody = fn(&Shared);

/// Longest wait for a process that has let go of its volume and is still ending.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Keeps the directory for this process; the lock ends with the file.
pub(super) fn lock(dir: &Path) -> Result<File, EngineError> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|why| io_error("opening its lock", &why))?;
    let begun = Instant::now();
    // SAFETY: takes no pointers; the descriptor is open.
    while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        if begun.elapsed() > LOCK_WAIT {
            return Err(EngineError::Refused(format!(
                "metadata engine: {} is in use by another process; unmount it there",
                dir.display()
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(file)
}

pub(super) fn open(
    dir: &Path,
    uuid: Uuid,
    options: EmbeddedOptions,
    before_sync: BeforeSync,
    verify: &mut Verify<'_>,
) -> Result<EmbeddedEngine, EngineError> {
    let fail = |why: io::Error| io_error("opening its directory", &why);
    fs::create_dir_all(dir).map_err(fail)?;
    let lock = lock(dir)?;
    let disk = Arc::new(RealDisk::open(&dir.join("log")).map_err(fail)?);
    let runs_dir = dir.join("runs");
    if checkpoint::read(&*disk, &uuid)?.is_none() && runs_dir.exists() {
        // Left by a first open that did not get as far as its checkpoint; or the checkpoint is
        // gone.
        let tables = fs::read_dir(runs_dir.join("tables")).map_or(0, Iterator::count);
        if tables > 0 {
            return Err(no_checkpoint(&disk.describe("checkpoint")));
        }
        fs::remove_dir_all(&runs_dir).map_err(fail)?;
    }
    let runs = LsmRuns::open(
        &runs_dir,
        options.cache_bytes(),
        options.compression,
        options.merge_reserve(),
    )?;
    // The new directories' names.
    for made in [Some(dir), dir.parent().filter(|parent| !parent.as_os_str().is_empty())]
        .into_iter()
        .flatten()
    {
        File::open(made).and_then(|made| made.sync_all()).map_err(fail)?;
    }
    assemble(disk, Box::new(runs), uuid, options, before_sync, verify, Some(lock))
}

fn no_checkpoint(path: &str) -> EngineError {
    EngineError::Corrupt(format!(
        "checkpoint {path} is missing, although there is metadata; {ADVICE}"
    ))
}

/// Makes the files of a new log go away that a first open left that did not get as far as its
/// checkpoint.
fn clear(disk: &dyn Disk) -> Result<(), EngineError> {
    let fail = |why: io::Error| io_error("making a log", &why);
    let names = disk.list().map_err(fail)?;
    for name in names.iter().filter(|name| generation_of(name).is_some()) {
        let file = disk.open(name).map_err(fail)?;
        let mut first = [0; 64];
        file.read_at(&mut first, SEGMENT_HEADER as u64).map_err(fail)?;
        if first != [0; 64] {
            return Err(no_checkpoint(&disk.describe("checkpoint")));
        }
    }
    for name in &names {
        disk.remove(name).map_err(fail)?;
    }
    disk.sync_names().map_err(fail)
}

/// Puts an engine together on a disk and runs, recovering what is there.
pub(super) fn assemble(
    disk: Arc<dyn Disk>,
    runs: Box<dyn Runs>,
    uuid: Uuid,
    options: EmbeddedOptions,
    before_sync: BeforeSync,
    verify: &mut Verify<'_>,
    lock: Option<File>,
) -> Result<EmbeddedEngine, EngineError> {
    let sizes = Sizes::new(options.first_segment_bytes, options.segment_bytes);
    let rows = MemoryRows::new();
    let (mut start, position) = match checkpoint::read(&*disk, &uuid)? {
        Some(checkpoint) => {
            let mut apply = |position: Position, changes: &[Change<'_>]| {
                rows.apply(position, changes.len(), |index| changes[index]);
            };
            let context = RecoveryContext { disk: disk.clone(), uuid, sizes };
            let start = recover(context, checkpoint, verify, &mut apply)?;
            (start, checkpoint.position)
        }
        None => {
            clear(&*disk)?;
            let fence = Arc::new(Fenced::open(&*disk, &uuid, Epoch(0))?);
            let segments = Segments {
                disk: disk.clone(),
                uuid,
                epoch: fence.held(),
                base: 0,
                fence,
                sizes,
                next_generation: 1,
                free: Vec::new(),
            };
            let start = Start {
                segments,
                older: std::collections::VecDeque::new(),
                unsynced: Vec::new(),
                surplus: Vec::new(),
                position: 0,
                durable: 0,
            };
            (start, 0)
        }
    };
    let surplus = std::mem::take(&mut start.surplus);
    let durable = start.durable;
    let fence = start.segments.fence.clone();
    let epoch = fence.held();
    let log = Log::start(start, options.reserve_bytes)?;
    let generation = log.generation_after(position);
    checkpoint::write(&*disk, &uuid, Checkpoint { position, generation, durable })
        .map_err(|why| io_error("writing the checkpoint", &why))?;
    log.retire_surplus(&surplus)?;
    let waiters = Waiters::default();
    waiters.advance(durable);
    let flusher = Flusher::default();
    flusher.start(position);
    let shared = Arc::new(Shared {
        options,
        uuid,
        disk,
        rows,
        log,
        fence,
        runs,
        waiters,
        taps: Arc::default(),
        before_sync,
        syncer: Syncer::default(),
        flusher,
        counters: Counters::default(),
        _lock: lock,
    });
    // The changes that the last process left unsynced become durable without a request.
    shared.syncer.request(shared.log.appended());
    let mut engine = EmbeddedEngine { shared, epoch, threads: Vec::new() };
    let roles: [(&str, ThreadBody); 5] = [
        ("kestrel-sync", Shared::run_syncer),
        ("kestrel-log", |shared| shared.log.keep()),
        ("kestrel-flush", Shared::run_flusher),
        ("kestrel-evict", Shared::run_evictor),
        ("kestrel-merge", Shared::run_compactor),
    ];
    for (name, body) in roles {
        let shared = engine.shared.clone();
        let thread = thread::Builder::new().name(name.into()).spawn(move || body(&shared));
        engine.threads.push(thread.map_err(|why| io_error("starting a thread", &why))?);
    }
    Ok(engine)
}
