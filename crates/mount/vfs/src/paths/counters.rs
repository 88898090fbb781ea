//! What the shortcut did.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the mount.
#[derive(Debug, Default)]
pub struct Counters {
    /// LOOKUPs answered "a directory" without a request.
    pub faked: AtomicU64,
    /// LOOKUPs answered "no such entry" without a request, because a CREATE follows.
    pub left_to_create: AtomicU64,
    /// LOOKUPs with a hint that were asked for real.
    pub hinted: AtomicU64,
    /// LOOKUPs without a hint.
    pub unhinted: AtomicU64,
    /// OPENs and OPENDIRs answered with what their LOOKUP had opened.
    pub opens: AtomicU64,
    /// Answers that made the kernel walk again.
    pub stale: AtomicU64,
    /// Requests for attributes of directories, to know whether names in them may be believed.
    pub looks: AtomicU64,
}

/// Their values, and sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShortcutStats {
    /// LOOKUPs answered "a directory" without a request.
    pub faked: u64,
    /// LOOKUPs answered "no such entry" without a request, because a CREATE follows.
    pub left_to_create: u64,
    /// LOOKUPs with a hint that were asked for real.
    pub hinted: u64,
    /// LOOKUPs without a hint.
    pub unhinted: u64,
    /// OPENs and OPENDIRs answered with what their LOOKUP had opened.
    pub opens: u64,
    /// Answers that made the kernel walk again.
    pub stale: u64,
    /// Requests for attributes of directories, to know whether names in them may be believed.
    pub looks: u64,
    /// Path nodes the kernel knows.
    pub path_nodes: u64,
}

impl Counters {
    /// Counts one.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stats(&self, path_nodes: usize) -> ShortcutStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShortcutStats {
            faked: load(&self.faked),
            left_to_create: load(&self.left_to_create),
            hinted: load(&self.hinted),
            unhinted: load(&self.unhinted),
            opens: load(&self.opens),
            stale: load(&self.stale),
            looks: load(&self.looks),
            path_nodes: path_nodes as u64,
        }
    }
}
