//! Measures a block store, and checks that it does what the file system needs of it.
//!
//! | file | |
//! | --- | --- |
//! | `check` | whether a store does what the file system needs of it |
//! | `measure` | how fast a store is: put, get, range, list, delete |
//! | `workers` | threads that share a list of jobs |
//!
//! Works on any [`kestrel_blockstore::BlockStore`] that is empty and that no other process uses
//! ([`crate::S3Store::scratch`], a fresh directory), on objects numbered from 1. Nothing depends on
//! timing: a check passes or fails by what the store answers. What was written is deleted as it
//! goes; the maker of the store removes the rest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kestrel_blockstore::error::Error;

mod check;
mod measure;
mod workers;

pub use check::{Check, CheckOutcome, check};
pub use measure::{Measurement, Operation, measure};

/// What to do.
#[derive(Debug, Clone)]
pub struct BenchPlan {
    /// Sizes of objects to measure with, bytes.
    pub sizes: Vec<u64>,
    /// Threads that make requests at a time.
    pub threads: usize,
    /// Longest time for writing and for each kind of reading, per size.
    pub time: Duration,
    /// Most bytes written per size.
    pub bytes_max: u64,
    /// Whether the store claims to refuse to overwrite by itself.
    pub puts_conditionally: bool,
    /// An object this large takes the way of large objects (parts), bytes.
    pub large_bytes: u64,
    /// Seed of contents and orders.
    pub seed: u64,
}

/// Checked between requests; makes everything end early.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Not stopped.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Ends everything after the requests under way.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why it ended early.
#[derive(Debug, Clone)]
pub enum Ended {
    /// [`Stop::stop`].
    Stopped,
    /// The store failed.
    Failed(Error),
    /// What came back is not what was written, though the store reported no error.
    Wrong(String),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// `len` bytes that differ from object to object and place to place (xorshift64*, Vigna 2016).
fn content(seed: u64, object: u64, len: u64) -> Vec<u8> {
    let mut state = (seed ^ object.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
    let mut out = Vec::with_capacity(len as usize + 8);
    while (out.len() as u64) < len {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        out.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    out.truncate(len as usize);
    out
}

#[cfg(test)]
mod tests;
