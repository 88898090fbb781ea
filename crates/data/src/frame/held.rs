//! A frame's bytes in memory, and parts of it that several hold without copying.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use kestrel_types::range::FRAME_BYTES;

/// Large frames begin on a page: the kernel then copies them page by page to its own, and not in halves.
const PAGE: usize = 4096;

/// Frames of fewer bytes are as malloc gives them: a page of slack would be a good part of them.
const ALIGNED_BYTES_MIN: usize = FRAME_BYTES as usize / 2;

/// Bytes of a frame.
#[derive(Debug, Default)]
pub struct FrameBytes {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl FrameBytes {
    /// So many zeros.
    pub fn new(len: usize) -> Self {
        if len < ALIGNED_BYTES_MIN {
            return Self { memory: vec![0; len], start: 0, len };
        }
        let memory = vec![0; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Self { memory, start, len }
    }

    /// The same memory for another frame of `len` bytes, which hold anything; none if it has not the room, or far too much.
    pub fn reused(mut self, len: usize) -> Option<Self> {
        let room = self.memory.len() - self.start;
        self.len = len;
        (len <= room && len >= ALIGNED_BYTES_MIN).then_some(self)
    }

    /// Whether its memory has room for a frame of full size.
    pub fn is_full_size(&self) -> bool {
        self.memory.len() - self.start >= FRAME_BYTES as usize
    }
}

impl From<Vec<u8>> for FrameBytes {
    fn from(memory: Vec<u8>) -> Self {
        let len = memory.len();
        Self { memory, start: 0, len }
    }
}

impl Deref for FrameBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for FrameBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// A part of a verified frame, which stays as long as anybody holds one.
#[derive(Debug, Clone)]
pub struct Piece {
    frame: Arc<FrameBytes>,
    window: Range<usize>,
}

impl Piece {
    /// Bytes `window` of the frame, as far as it has them.
    pub(crate) fn new(frame: Arc<FrameBytes>, window: Range<usize>) -> Self {
        let end = window.end.min(frame.len());
        let start = window.start.min(end);
        Self { frame, window: start..end }
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.frame[self.window.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_frames_lie_on_pages_and_memory_is_used_again() {
        let full = FRAME_BYTES as usize;
        let mut frame = FrameBytes::new(full);
        assert_eq!((frame.len(), frame.as_ptr() as usize % PAGE), (full, 0));
        frame.fill(7);
        let at = frame.as_ptr();
        assert!(frame.is_full_size());
        let frame = frame.reused(full - 10_000).unwrap();
        assert_eq!((frame.as_ptr(), frame.len()), (at, full - 10_000));
        assert!(frame.is_full_size());
        assert!(frame.reused(10).is_none(), "a small frame does not hold the memory of a large one");
        let small = FrameBytes::new(100);
        assert!(small.len() == 100 && !small.is_full_size() && small.reused(full).is_none());
        assert_eq!(FrameBytes::from(vec![1, 2, 3])[..], [1, 2, 3]);
    }

    #[test]
    fn pieces_stay_within_their_frame() {
        let frame = Arc::new(FrameBytes::from(vec![1, 2, 3, 4]));
        assert_eq!(Piece::new(frame.clone(), 1..3)[..], [2, 3]);
        assert_eq!(Piece::new(frame.clone(), 2..9)[..], [3, 4]);
        assert!(Piece::new(frame, 7..9).is_empty());
    }
}
