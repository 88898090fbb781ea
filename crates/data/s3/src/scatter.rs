//! Bytes that arrive in pieces, written to a caller's buffers in order.

use std::io::IoSliceMut;

/// Where the next byte goes.
pub(crate) struct Scatter<'a, 'b> {
    parts: &'a mut [IoSliceMut<'b>],
    part: usize,
    /// Byte within that part.
    at: usize,
    filled: u64,
}

impl<'a, 'b> Scatter<'a, 'b> {
    /// Begins at the first byte of the first buffer.
    pub(crate) fn new(parts: &'a mut [IoSliceMut<'b>]) -> Self {
        Self { parts, part: 0, at: 0, filled: 0 }
    }

    /// Takes the next piece; false if there is no room for all of it.
    pub(crate) fn take(&mut self, mut piece: &[u8]) -> bool {
        while !piece.is_empty() {
            let Some(part) = self.parts.get_mut(self.part) else { return false };
            let count = piece.len().min(part.len() - self.at);
            part[self.at..self.at + count].copy_from_slice(&piece[..count]);
            piece = &piece[count..];
            self.at += count;
            self.filled += count as u64;
            if self.at == part.len() {
                self.part += 1;
                self.at = 0;
            }
        }
        true
    }

    /// Bytes taken so far.
    pub(crate) fn filled(&self) -> u64 {
        self.filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_in_order() {
        for step in 1..12 {
            let (mut a, mut empty, mut b) = ([0u8; 3], [0u8; 0], [0u8; 5]);
            let mut parts =
                [IoSliceMut::new(&mut a), IoSliceMut::new(&mut empty), IoSliceMut::new(&mut b)];
            let mut scatter = Scatter::new(&mut parts);
            for piece in [1u8, 2, 3, 4, 5, 6, 7, 8].chunks(step) {
                assert!(scatter.take(piece));
            }
            assert_eq!(scatter.filled(), 8);
            assert!(scatter.take(&[]));
            assert!(!scatter.take(&[9]));
            assert_eq!((a, b), ([1, 2, 3], [4, 5, 6, 7, 8]));
        }
    }
}
