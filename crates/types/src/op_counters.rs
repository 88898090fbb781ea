//! Counters of metadata requests, at a node or at a client of nodes: requests and errors by kind,
//! latency, batch sizes.
//!
//! Each worker has its own counters, written by the thread that holds its role, so that counting
//! shares no cache line between workers and needs no locked instruction. Replies that waited for a
//! sync are counted by the thread that gave them, in a worker of their own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::op_kind::KINDS;

/// Latency buckets: bucket `i` holds latencies of `2^i` to `2^(i+1) - 1` nanoseconds, the last one
/// all above.
pub const LATENCY_BUCKETS: usize = 32;

/// Batch-size buckets: bucket `i` holds batches of `2^i` to `2^(i+1) - 1` requests.
pub const BATCH_BUCKETS: usize = 12;

#[derive(Debug)]
struct KindCounters {
    requests: AtomicU64,
    errors: AtomicU64,
    nanos: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

/// Counters of one worker.
#[derive(Debug)]
pub struct WorkerCounters {
    kinds: Vec<KindCounters>,
    batches: [AtomicU64; BATCH_BUCKETS],
}

/// Adds to a counter that only the caller writes now.
#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

#[inline]
fn bucket(value: u64, buckets: usize) -> usize {
    (63 - value.max(1).leading_zeros() as usize).min(buckets - 1)
}

impl Default for WorkerCounters {
    fn default() -> Self {
        let zeros = || KindCounters {
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            latency: [const { AtomicU64::new(0) }; LATENCY_BUCKETS],
        };
        Self {
            kinds: KINDS.iter().map(|_| zeros()).collect(),
            batches: [const { AtomicU64::new(0) }; BATCH_BUCKETS],
        }
    }
}

impl WorkerCounters {
    /// A batch of `size` requests ran. The caller holds the worker's state.
    #[inline]
    pub fn batch(&self, size: usize) {
        bump(&self.batches[bucket(size as u64, BATCH_BUCKETS)], 1);
    }

    /// A request was answered. The caller holds the worker's state.
    #[inline]
    pub fn reply(&self, kind: usize, failed: bool, took: Duration) {
        let counters = &self.kinds[kind];
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        bump(&counters.requests, 1);
        if failed {
            bump(&counters.errors, 1);
        }
        bump(&counters.nanos, nanos);
        bump(&counters.latency[bucket(nanos, LATENCY_BUCKETS)], 1);
    }

    /// A request was answered, maybe by several threads at once.
    #[inline]
    pub fn reply_shared(&self, kind: usize, failed: bool, took: Duration) {
        let counters = &self.kinds[kind];
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        counters.requests.fetch_add(1, Ordering::Relaxed);
        counters.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
        counters.nanos.fetch_add(nanos, Ordering::Relaxed);
        counters.latency[bucket(nanos, LATENCY_BUCKETS)].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counters of one kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindStats {
    /// Its name.
    pub kind: &'static str,
    /// Requests answered.
    pub requests: u64,
    /// Of these, otherwise than with an answer.
    pub errors: u64,
    /// Sum of latencies, nanoseconds.
    pub nanos: u64,
    /// Latencies; see [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
}

/// Counters of a node since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// By kind of request.
    pub kinds: Vec<KindStats>,
    /// Batches by size; see [`BATCH_BUCKETS`].
    pub batches: [u64; BATCH_BUCKETS],
    /// Batches that held every worker's state.
    pub exclusive_batches: u64,
    /// Files open.
    pub open_files: u64,
    /// Directories in the replica.
    pub dentries: u64,
    /// Quotas of the volume.
    pub quotas: u64,
    /// Of these, above a soft limit.
    pub quotas_above_soft_limit: u64,
    /// Operations that a quota refused.
    pub quota_refusals: u64,
}

impl NodeStats {
    /// Requests of all kinds: `metadata_requests_total`.
    pub fn requests_total(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.requests).sum()
    }
}

/// Adds workers up; the one at `exclusive` holds every worker's state.
pub fn sum(workers: &[WorkerCounters], exclusive: usize) -> NodeStats {
    let mut stats = NodeStats::default();
    for (kind, name) in KINDS.iter().enumerate() {
        let mut total = KindStats {
            kind: name,
            requests: 0,
            errors: 0,
            nanos: 0,
            latency: [0; LATENCY_BUCKETS],
        };
        for counters in workers.iter().map(|worker| &worker.kinds[kind]) {
            total.requests += counters.requests.load(Ordering::Relaxed);
            total.errors += counters.errors.load(Ordering::Relaxed);
            total.nanos += counters.nanos.load(Ordering::Relaxed);
            for (sum, count) in total.latency.iter_mut().zip(&counters.latency) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        stats.kinds.push(total);
    }
    for (number, worker) in workers.iter().enumerate() {
        for (sum, count) in stats.batches.iter_mut().zip(&worker.batches) {
            let count = count.load(Ordering::Relaxed);
            *sum += count;
            if number == exclusive {
                stats.exclusive_batches += count;
            }
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 1023, 1024].map(|n| bucket(n, 32)), [0, 0, 1, 1, 2, 9, 10]);
        assert_eq!(bucket(u64::MAX, 32), 31);
    }
}
