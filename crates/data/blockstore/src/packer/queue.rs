//! What waits to be written.

use std::collections::VecDeque;

use kestrel_types::ids::InodeId;

use super::Done;
use crate::payload::Payload;
use crate::store::PutOptions;

/// Something to store.
pub(super) struct Submission {
    pub payload: Payload,
    /// [`crate::frame::data_checks`] of the payload.
    pub checks: Vec<u32>,
    pub inode: InodeId,
    /// How its object is put.
    pub options: PutOptions,
    pub done: Done,
}

/// Submissions in the order they came, and their bytes.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Submission>,
    bytes: u64,
}

impl Queue {
    pub fn push(&mut self, submission: Submission) {
        self.bytes += submission.payload.len() as u64;
        self.waiting.push_back(submission);
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes of all payloads that wait.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next round: at least one submission if there is any, then as many as stay within
    /// `bytes_max`.
    pub fn take(&mut self, bytes_max: u64) -> Vec<Submission> {
        let (mut bytes, mut count) = (0, 0);
        for submission in &self.waiting {
            let more = bytes + submission.payload.len() as u64;
            if count > 0 && more > bytes_max {
                break;
            }
            (bytes, count) = (more, count + 1);
        }
        self.bytes -= bytes;
        self.waiting.drain(..count).collect()
    }
}
