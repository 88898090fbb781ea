//! Bytes on their way into the store, in as many buffers as they came in.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

/// A buffer that others use too, as [`Bytes`] can own it.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What is stored as one range: the concatenation of its buffers, which are never copied.
#[derive(Default)]
pub struct Payload {
    parts: Vec<Bytes>,
    len: usize,
}

impl Payload {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a buffer.
    pub fn push(&mut self, bytes: Vec<u8>) {
        self.len += bytes.len();
        self.parts.push(Bytes::from(bytes));
    }

    /// Appends a part of a buffer that is shared (and not changed any more). Parts outside it are
    /// cut off.
    pub fn push_shared(&mut self, bytes: Arc<Vec<u8>>, window: Range<usize>) {
        let end = window.end.min(bytes.len());
        let start = window.start.min(end);
        self.len += end - start;
        self.parts.push(Bytes::from_owner(Shared(bytes)).slice(start..end));
    }

    /// The buffers cut at multiples of `size` bytes: for each piece the number of its frame.
    pub(crate) fn pieces(&self, size: usize) -> Vec<(usize, Bytes)> {
        let mut pieces = Vec::with_capacity(self.parts.len() + self.len / size + 1);
        let mut at = 0;
        for part in &self.parts {
            let mut rest = part.clone();
            while !rest.is_empty() {
                let piece = rest.split_to((size - at % size).min(rest.len()));
                at += piece.len();
                pieces.push(((at - piece.len()) / size, piece));
            }
        }
        pieces
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        let mut payload = Self::new();
        payload.push(bytes);
        payload
    }
}

impl FromIterator<Vec<u8>> for Payload {
    fn from_iter<I: IntoIterator<Item = Vec<u8>>>(buffers: I) -> Self {
        let mut payload = Self::new();
        buffers.into_iter().for_each(|bytes| payload.push(bytes));
        payload
    }
}
