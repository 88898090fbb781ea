//! Parts of a frame in memory, which several hold without copying.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::buffer::Buffer;

/// A part of a verified frame, which stays as long as a piece of it is held.
#[derive(Debug, Clone)]
pub struct FramePiece {
    frame: Arc<Buffer>,
    window: Range<usize>,
}

impl FramePiece {
    /// Bytes `window` of the frame, as far as it has them.
    pub(crate) fn new(frame: Arc<Buffer>, window: Range<usize>) -> Self {
        let end = window.end.min(frame.len());
        let start = window.start.min(end);
        Self { frame, window: start..end }
    }
}

impl Deref for FramePiece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.frame[self.window.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_within_their_frame() {
        let frame = Arc::new(Buffer::from(vec![1, 2, 3, 4]));
        assert_eq!(FramePiece::new(frame.clone(), 1..3)[..], [2, 3]);
        assert_eq!(FramePiece::new(frame.clone(), 2..9)[..], [3, 4]);
        assert!(FramePiece::new(frame, 7..9).is_empty());
    }
}
