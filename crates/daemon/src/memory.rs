//! The memory of a process that serves something: what its limit is, and how it is divided.

use kestrel_client::memory::{LIMIT_MIN, MemoryLimit, MemoryPlan, Wanted, Work};
use kestrel_client::storage::StoreOptions;
use kestrel_client::volume::Resources;
use kestrel_fuse::Config;
use kestrel_rpc::server::ListenerConfig;
use kestrel_vfs::NodesMax;

use crate::failure::Failure;
use crate::units::bytes;

/// Largest and smallest request of the kernel where memory is short, bytes.
const REQUEST_BYTES: std::ops::RangeInclusive<u32> = 128 << 10..=1 << 20;

/// Spare FUSE threads that are worth smaller requests.
const SPARE_WORTH: usize = 16;

/// What a node that the kernel knows takes here, bytes.
const PATH_BYTES: usize = 400;
const INODE_BYTES: usize = 200;

/// A connection is not read while it has not taken this share of all answers, one in so many, but
/// at least so many bytes.
const UNSENT_SHARE: usize = 8;
const UNSENT_MIN: usize = 512 << 10;

/// What a large answer takes, bytes: a page of a listing with attributes. As many requests as fit
/// are taken at a time, but at least a few.
const ANSWER_BYTES: usize = 1 << 20;
const BATCH_LEAST: usize = 8;

/// Memory pools of the allocator that processes with less memory than the defaults take share
/// between their threads.
#[cfg(target_env = "gnu")]
const ARENAS_MAX: libc::c_int = 4;

/// The memory of this process.
#[derive(Debug, Clone)]
pub struct Memory {
    /// What it may use.
    pub limit: MemoryLimit,
    /// How that is divided.
    pub plan: MemoryPlan,
}

impl Memory {
    /// Divides the memory of this process, says so if there is little, and sets the allocator up.
    /// Before other threads begin.
    ///
    /// # Errors
    /// If there is too little to begin with.
    pub fn divide(verb: &'static str, work: Work, wanted: Wanted) -> Result<Self, Failure> {
        let limit = MemoryLimit::of_process();
        if limit.bytes < LIMIT_MIN {
            let least = bytes(LIMIT_MIN);
            return Err(Failure::new(
                verb,
                format!("{limit}, which is not enough; give it {least} or more"),
            ));
        }
        let plan = MemoryPlan::new(limit.bytes, work, wanted);
        if plan.bound > limit.bytes {
            log::warn!(
                "{limit}, but with what is asked for the process may come to use {}, and be killed \
                 for it: lower \
                 --metadata-memory{}, or raise the limit",
                bytes(plan.bound),
                if work == Work::Mount { ", --write-buffer or --data-cache" } else { "" }
            );
        }
        if plan.is_short {
            log::info!(
                "{limit}: at most {} for metadata rows, {} for written data, {} for file data in \
                 memory; {} in all",
                bytes(plan.metadata_bytes),
                bytes(plan.dirty_bytes_max),
                bytes(plan.data_cache_bytes),
                bytes(plan.bound)
            );
            few_arenas();
        }
        Ok(Self { limit, plan })
    }

    /// Makes the requests of the kernel fit: their size, and how many may be under way.
    pub fn fit(&self, config: Config) -> Config {
        fit(&self.plan, config, kestrel_fuse::workers_default())
    }

    /// How many nodes the kernel may know.
    pub fn nodes_max(&self) -> NodesMax {
        if !self.plan.is_short {
            return NodesMax::default();
        }
        let half = usize::try_from(self.plan.known_bytes / 2).unwrap_or(usize::MAX);
        let paths = (half / PATH_BYTES).min(NodesMax::default().paths);
        NodesMax { paths, inodes: Some(half / INODE_BYTES) }
    }

    /// Makes what a server keeps for its clients fit.
    pub fn fit_server(&self, config: ListenerConfig) -> ListenerConfig {
        if !self.plan.is_short {
            return config;
        }
        let unsent = usize::try_from(self.plan.unsent_bytes).unwrap_or(usize::MAX);
        ListenerConfig {
            unsent_bytes_max: (unsent / UNSENT_SHARE).clamp(UNSENT_MIN, config.unsent_bytes_max),
            batch_max: (unsent / ANSWER_BYTES).clamp(BATCH_LEAST, config.batch_max),
            ..config
        }
    }
}

/// [`Memory::fit`] on a machine for which so many FUSE threads are right.
fn fit(plan: &MemoryPlan, config: Config, workers: usize) -> Config {
    if !plan.is_short {
        return config;
    }
    let buffers = |request: u32| (plan.transport_bytes / u64::from(request)).max(1) as usize;
    // A thread holds one buffer and keeps its memory. At most half of them are for those that do
    // not wait.
    let workers = match config.workers {
        0 => workers.min(buffers(*REQUEST_BYTES.start()) / 2).max(2),
        wanted => wanted,
    };
    let mut request = config.max_write.min(*REQUEST_BYTES.end());
    while request > *REQUEST_BYTES.start() && buffers(request) < workers + SPARE_WORTH {
        request /= 2;
    }
    let spare_least = 4.min(config.spare_workers);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let background = (plan.read_bytes_max / u64::from(request))
        .clamp(4, u64::from(config.max_background)) as u16;
    Config {
        workers,
        spare_workers: buffers(request)
            .saturating_sub(workers)
            .clamp(spare_least, config.spare_workers),
        ring_entries: (buffers(request) / processors).clamp(4, config.ring_entries.max(4)),
        ring_entries_more: buffers(request).min(config.ring_entries_more),
        max_write: request,
        max_readahead: request.min(config.max_readahead),
        max_background: background,
        congestion_threshold: config.congestion_threshold.min(background / 4 * 3).max(1),
        ..config
    }
}

/// What a verb that opens a volume for itself may use.
pub fn of_verb(store: StoreOptions) -> Resources {
    let memory = MemoryPlan::new(MemoryLimit::of_process().bytes, Work::Mount, Wanted::default());
    Resources { store: StoreOptions { memory, ..store }, ..Resources::within(memory) }
}

/// Has threads share pools of memory: what one has freed then serves the others.
fn few_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes a setting of the allocator, which takes a lock for it. Where it is refused
    // nothing has changed.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// With enough memory the requests of the kernel are as they are; else their buffers fit, down
    /// to the smallest.
    #[test]
    fn requests_of_the_kernel_fit() {
        let defaults = Config { spare_workers: 128, ..Config::default() };
        let plan = |limit| MemoryPlan::new(limit, Work::Mount, Wanted::default());
        let same = fit(&plan(8 << 30), defaults.clone(), 4);
        assert_eq!((same.max_write, same.spare_workers, same.workers), (1 << 20, 128, 0));
        assert_eq!((same.max_background, same.ring_entries), (128, 64));
        for mib in [64, 100, 128, 200, 256, 512, 1024, 2048] {
            let plan = plan(mib * MIB);
            for workers in [2, 4, 64] {
                let fitted = fit(&plan, defaults.clone(), workers);
                let threads = (fitted.workers + fitted.spare_workers) as u64;
                let taken = threads * u64::from(fitted.max_write);
                assert!(
                    taken <= plan.transport_bytes.max(6 * (128 << 10)),
                    "{mib} MiB: {taken} bytes"
                );
                assert!(fitted.spare_workers >= 4 && fitted.workers >= 2, "{mib} MiB: {fitted:?}");
                assert!(fitted.congestion_threshold <= fitted.max_background);
            }
        }
    }
}
