//! How much to fetch beyond what was requested: a policy without I/O and without time of its own.
//!
//! **When.** The first requests for bytes of an object fetch what was requested, no more. An object
//! that needs one request after another is being read as a whole, if in no order (an epoch of
//! training over the files of a pack): each next request fetches more around the bytes requested,
//! 256 KiB, then 1 MiB, then 4 MiB. This is the bet of the ski rental problem (Karlin, Manasse,
//! Rudolph, Sleator, 1988): by the time the rest of an object is bought, as much has been paid in
//! single requests, so a random reader never pays more than a small multiple of the best that could
//! be done.
//!
//! **How much in all.** An account bounds what is wasted: every byte fetched without being
//! requested is paid from it, a byte that is requested later earns [`SpanConfig::earnings`] times
//! itself, and requested bytes earn a small share. The account begins with [`SpanConfig::credit`].
//! So random reads of objects too large for the cache stop fetching ahead when that is used up, and
//! over-fetch by at most [`SpanConfig::demand_share`] of what they read from then on.

use std::ops::Range;

use crate::page::PAGE_BYTES;

/// Settings of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanConfig {
    /// Largest fetch, bytes; a single page turns fetching ahead off.
    pub bytes_max: u64,
    /// Bytes that may be wasted before anything was earned.
    pub credit: u64,
    /// Most that may be on the account, bytes.
    pub credit_max: u64,
    /// What a byte earns that was fetched ahead and requested later.
    pub earnings: u64,
    /// One in so many requested bytes is earned too.
    pub demand_share: u64,
}

impl Default for SpanConfig {
    fn default() -> Self {
        Self {
            bytes_max: 4 * 1024 * 1024,
            credit: 512 * 1024 * 1024,
            credit_max: 4 * 1024 * 1024 * 1024,
            earnings: 4,
            demand_share: 8,
        }
    }
}

/// Requests for an object within the last while, and the size of the next fetch that follows from
/// them, bytes.
const STEPS: [(u32, u64); 3] = [(6, 4 * 1024 * 1024), (4, 1024 * 1024), (2, 256 * 1024)];

/// The account.
#[derive(Debug)]
pub(crate) struct SpanPolicy {
    config: SpanConfig,
    credit: u64,
}

impl SpanPolicy {
    pub fn new(config: SpanConfig) -> Self {
        Self { config, credit: config.credit.min(config.credit_max) }
    }

    /// What to fetch for the pages `wanted` of an object that needed `requests` requests lately.
    /// `is_here` is true for a page that need not be fetched; `end` is the object's end, if its
    /// size has been read. Contains `wanted`.
    pub fn plan(
        &self,
        wanted: &Range<u32>,
        requests: u32,
        end: Option<u32>,
        is_here: impl Fn(u32) -> bool,
    ) -> Range<u32> {
        let step =
            STEPS.iter().find(|(least, _)| requests >= *least).map_or(0, |(_, bytes)| *bytes);
        let span = (step.min(self.config.bytes_max) / PAGE_BYTES) as u32;
        if span <= wanted.end - wanted.start {
            return wanted.clone();
        }
        // Spans are aligned, so that those of one object tile it.
        let from = wanted.start / span * span;
        let until = wanted
            .end
            .div_ceil(span)
            .saturating_mul(span)
            .min(end.unwrap_or(u32::MAX))
            .max(wanted.end);
        let mut left = self.credit / PAGE_BYTES;
        let mut plan = wanted.clone();
        while left > 0 && plan.end < until && !is_here(plan.end) {
            plan.end += 1;
            left -= 1;
        }
        while left > 0 && plan.start > from && !is_here(plan.start - 1) {
            plan.start -= 1;
            left -= 1;
        }
        plan
    }

    /// Notes a fetch.
    pub fn fetched(&mut self, wanted_bytes: u64, ahead_bytes: u64) {
        self.earn(wanted_bytes / self.config.demand_share.max(1));
        self.credit = self.credit.saturating_sub(ahead_bytes);
    }

    /// Notes that bytes fetched ahead were requested.
    pub fn used(&mut self, bytes: u64) {
        self.earn(bytes.saturating_mul(self.config.earnings));
    }

    fn earn(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add(bytes).min(self.config.credit_max);
    }
}

#[cfg(test)]
mod tests;
