//! Threads that share a list of jobs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Ended, Stop};

/// What a crew did.
pub(super) struct WorkersReport {
    /// Number of jobs.
    pub(super) count: u64,
    /// From the first job's begin to the last one's end.
    pub(super) took: Duration,
    /// How long each job took, ascending.
    pub(super) latencies: Vec<Duration>,
}

/// Runs jobs number 0, 1, 2, … below `jobs` on so many threads until all are done, `time` has
/// passed, or one fails; the first one in any case, however long its thread takes to start. Jobs
/// that were begun are finished, and what was done is always a run of numbers from 0.
pub(super) fn run(
    threads: usize,
    jobs: u64,
    time: Duration,
    stop: &Stop,
    job: impl Fn(u64) -> Result<(), Ended> + Sync,
) -> Result<WorkersReport, Ended> {
    let next = AtomicU64::new(0);
    let all = Mutex::new(Vec::new());
    let failure = Mutex::new(None);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut latencies = Vec::new();
                let is_time = || begin.elapsed() < time || next.load(Ordering::Relaxed) == 0;
                while is_time() && failure.lock().is_none() {
                    if stop.is_stopped() {
                        failure.lock().get_or_insert(Ended::Stopped);
                        break;
                    }
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= jobs {
                        break;
                    }
                    let began = Instant::now();
                    if let Err(ended) = job(number) {
                        failure.lock().get_or_insert(ended);
                        break;
                    }
                    latencies.push(began.elapsed());
                }
                all.lock().append(&mut latencies);
            });
        }
    });
    let took = begin.elapsed();
    match failure.into_inner() {
        Some(ended) => Err(ended),
        None => {
            let mut latencies = all.into_inner();
            latencies.sort_unstable();
            Ok(WorkersReport { count: latencies.len() as u64, took, latencies })
        }
    }
}
