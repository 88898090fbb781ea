//! Counters of the cache (`docs/metrics.md`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters, their names and their documentation in one place.
macro_rules! stats {
    ($($(#[doc = $doc:literal])* $field:ident => $name:literal,)*) => {
        /// Since the cache was opened.
        #[derive(Debug, Default)]
        pub(crate) struct CacheStats {
            $($(#[doc = $doc])* pub $field: Counter,)*
        }

        impl CacheStats {
            pub fn report(&self, report: &mut dyn FnMut(&'static str, u64)) {
                $(report($name, self.$field.get());)*
            }
        }
    };
}

stats! {
    /// Reads that needed no request.
    hits => "cache_disk_hits",
    /// Reads that needed one, their own or one that was under way.
    misses => "cache_disk_misses",
    /// Bytes requested by `hits`.
    hit_bytes => "cache_disk_hit_bytes",
    /// Bytes requested by `misses`.
    miss_bytes => "cache_disk_miss_bytes",
    /// Bytes of objects written to cache disks.
    fill_bytes => "cache_disk_fill_bytes",
    /// Pages with a wrong checksum: dropped and fetched again.
    corrupt => "cache_disk_corrupt",
    /// Reads that went to the store because no cache disk was in service.
    bypassed => "cache_disk_bypassed",
    /// Calls of cache disks that failed or were given up.
    errors => "cache_disk_errors",
    /// Bytes of disk freed by eviction.
    evicted_bytes => "cache_disk_evicted_bytes",
    /// Fetches and puts that were not written to a cache disk: too much waiting, no room, or out of
    /// service.
    dropped_writes => "cache_disk_dropped_writes",
    /// Reads answered by another read's request.
    coalesced => "store_coalesced_reads",
    /// Bytes fetched beyond what was requested.
    span_bytes => "cache_span_bytes",
    /// Of those, what was requested later.
    span_used_bytes => "cache_span_used_bytes",
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
