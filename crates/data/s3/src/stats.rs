//! Counters of a store (`docs/metrics.md`).

use std::sync::atomic::{AtomicU64, Ordering};

/// What a request does; counted apart because stores charge them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// PUT of an object or a part; POST that begins or completes a multipart upload.
    Put,
    /// GET of an object.
    Get,
    /// HEAD.
    Head,
    /// GET of a listing.
    List,
    /// DELETE.
    Delete,
}

/// Counts since the store was opened. Every attempt counts as a request: the store charges for it.
#[derive(Debug, Default)]
pub(crate) struct S3Stats {
    requests: [AtomicU64; 5],
    put_bytes: AtomicU64,
    get_bytes: AtomicU64,
    retries: AtomicU64,
    errors: AtomicU64,
    throttled: AtomicU64,
}

impl S3Stats {
    /// A request goes out with a body of that many bytes.
    pub(crate) fn sent(&self, kind: Kind, bytes: u64) {
        self.requests[kind as usize].fetch_add(1, Ordering::Relaxed);
        if kind == Kind::Put {
            self.put_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A piece of an object came in.
    pub(crate) fn received(&self, bytes: u64) {
        self.get_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An attempt is made again.
    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// A request failed for good.
    pub(crate) fn failed(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// The store answered that it gets too many requests.
    pub(crate) fn throttled(&self) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports every counter.
    pub(crate) fn report(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let names = [
            "store_put_requests",
            "store_get_requests",
            "store_head_requests",
            "store_list_requests",
            "store_delete_requests",
        ];
        for (name, count) in names.into_iter().zip(&self.requests) {
            report(name, count.load(Ordering::Relaxed));
        }
        for (name, count) in [
            ("store_put_bytes", &self.put_bytes),
            ("store_get_bytes", &self.get_bytes),
            ("store_retries", &self.retries),
            ("store_errors", &self.errors),
            ("store_throttled", &self.throttled),
        ] {
            report(name, count.load(Ordering::Relaxed));
        }
    }
}
