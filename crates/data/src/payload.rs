//! Bytes on their way into the store, in as many buffers as they came in.

use std::ops::Range;
use std::sync::Arc;

enum Part {
    Owned(Vec<u8>),
    Shared(Arc<Vec<u8>>, Range<usize>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes, window) => &bytes[window.clone()],
        }
    }
}

/// What is stored as one range: the concatenation of its buffers, which are never copied.
#[derive(Default)]
pub struct Payload {
    parts: Vec<Part>,
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
        self.parts.push(Part::Owned(bytes));
    }

    /// Appends a part of a buffer that others use too (and nobody changes). Parts outside it are cut off.
    pub fn push_shared(&mut self, bytes: Arc<Vec<u8>>, window: Range<usize>) {
        let end = window.end.min(bytes.len());
        let start = window.start.min(end);
        self.len += end - start;
        self.parts.push(Part::Shared(bytes, start..end));
    }

    /// The buffers, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(Part::bytes)
    }

    /// The buffers cut at multiples of `size` bytes: for each piece the number of its frame.
    pub(crate) fn pieces(&self, size: usize) -> Vec<(usize, &[u8])> {
        let mut pieces = Vec::with_capacity(self.parts.len() + self.len / size + 1);
        let mut at = 0;
        for part in self.parts() {
            let mut rest = part;
            while !rest.is_empty() {
                let (piece, tail) = rest.split_at((size - at % size).min(rest.len()));
                pieces.push((at / size, piece));
                at += piece.len();
                rest = tail;
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
