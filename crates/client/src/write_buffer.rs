//! Bytes written but not yet stored: sorted pieces of a file that do not overlap.
//!
//! Writes that continue a piece extend it in place, so sequential writing costs one copy and no
//! allocation per call. The file is divided in slots of the volume's block size and a piece never
//! crosses from one into the next, so a piece that fills its slot is one block, which can be stored
//! while the application goes on writing.

use std::collections::BTreeMap;
use std::ops::Range;

/// Sorted, non-overlapping, non-empty pieces by file offset.
#[derive(Debug)]
pub struct WriteBuffer {
    slot_bytes: u64,
    pieces: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl WriteBuffer {
    /// An empty buffer with pieces that do not cross multiples of `slot_bytes`, at least 1.
    pub fn new(slot_bytes: u32) -> Self {
        Self { slot_bytes: u64::from(slot_bytes.max(1)), pieces: BTreeMap::new(), bytes: 0 }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The pieces in order of their offsets.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pieces.iter().map(|(offset, bytes)| (*offset, bytes.as_slice()))
    }

    /// First byte after the last one held; 0 if nothing is held.
    pub fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(start, piece)| start + piece.len() as u64)
    }

    /// Moves all bytes from file offset `from` on, so that the first of them comes to `to`. What
    /// lies before `from` stays; where moved bytes come to lie over it they replace it.
    pub fn shift(&mut self, from: u64, to: u64) {
        for (start, bytes) in self.take() {
            let stays = from.saturating_sub(start).min(bytes.len() as u64) as usize;
            let (before, moved) = bytes.split_at(stays);
            self.write(start, before);
            self.write((start + stays as u64).saturating_sub(from).saturating_add(to), moved);
        }
    }

    /// Takes in bytes written at `offset`; they replace what was there.
    pub fn write(&mut self, mut offset: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let room = (self.slot_bytes - offset % self.slot_bytes) as usize;
            let (part, rest) = data.split_at(room.min(data.len()));
            self.write_in_slot(offset, part);
            offset += part.len() as u64;
            data = rest;
        }
    }

    fn write_in_slot(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let slot_bytes = self.slot_bytes;
        if let Some((start, piece)) = self.pieces.range_mut(..=offset).next_back() {
            let piece_end = start + piece.len() as u64;
            let same_slot = start / slot_bytes == offset / slot_bytes;
            if end <= piece_end {
                let at = (offset - start) as usize;
                piece[at..at + data.len()].copy_from_slice(data);
                return;
            }
            if same_slot && piece_end >= offset {
                let start = *start;
                piece.truncate((offset - start) as usize);
                piece.extend_from_slice(data);
                self.bytes += (end - piece_end) as usize;
                self.absorb_after(start, end);
                return;
            }
        }
        self.remove(offset..end);
        self.pieces.insert(offset, data.to_vec());
        self.bytes += data.len();
        self.absorb_after(offset, end);
    }

    /// After the piece at `start` has grown to `end`: drops what it covers and joins the piece that
    /// begins where it ends.
    fn absorb_after(&mut self, start: u64, end: u64) {
        while let Some((&next, piece)) = self.pieces.range(start + 1..=end).next() {
            let joins = next / self.slot_bytes == start / self.slot_bytes;
            if next == end && !joins {
                break;
            }
            let covered = ((end - next) as usize).min(piece.len());
            let Some(tail) = self.pieces.remove(&next) else { break };
            self.bytes -= covered;
            if covered < tail.len()
                && let Some(grown) = self.pieces.get_mut(&start)
            {
                grown.extend_from_slice(&tail[covered..]);
                break;
            }
        }
    }

    /// Forgets the bytes of `range`.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((&start, piece)) = self.pieces.range_mut(..range.start).next_back() {
            let piece_end = start + piece.len() as u64;
            if piece_end > range.start {
                let tail = piece.split_off((range.start - start) as usize);
                self.bytes -= tail.len();
                if piece_end > range.end {
                    let kept = tail[(range.end - range.start) as usize..].to_vec();
                    self.bytes += kept.len();
                    self.pieces.insert(range.end, kept);
                }
            }
        }
        let inside: Vec<u64> = self.pieces.range(range.clone()).map(|(start, _)| *start).collect();
        for start in inside {
            let Some(piece) = self.pieces.remove(&start) else { continue };
            self.bytes -= piece.len();
            let piece_end = start + piece.len() as u64;
            if piece_end > range.end {
                let kept = piece[(range.end - start) as usize..].to_vec();
                self.bytes += kept.len();
                self.pieces.insert(range.end, kept);
            }
        }
    }

    /// Takes all pieces out.
    pub fn take(&mut self) -> Vec<(u64, Vec<u8>)> {
        self.bytes = 0;
        std::mem::take(&mut self.pieces).into_iter().collect()
    }

    /// Takes out the pieces that fill their slot.
    pub fn take_full(&mut self) -> Vec<(u64, Vec<u8>)> {
        let slot_bytes = self.slot_bytes;
        let full: Vec<u64> = self
            .pieces
            .iter()
            .filter(|(_, piece)| piece.len() as u64 == slot_bytes)
            .map(|(start, _)| *start)
            .collect();
        let taken: Vec<_> = full
            .into_iter()
            .filter_map(|start| self.pieces.remove(&start).map(|piece| (start, piece)))
            .collect();
        self.bytes -= taken.iter().map(|(_, piece)| piece.len()).sum::<usize>();
        taken
    }
}

/// Copies the part of a piece at file offset `start` that lies within `out`, which stands for file
/// offset `offset ..`.
pub fn copy_piece(start: u64, piece: &[u8], offset: u64, out: &mut [u8]) {
    let (piece_end, end) = (start + piece.len() as u64, offset + out.len() as u64);
    let (from, to) = (start.max(offset), piece_end.min(end));
    if from < to {
        out[(from - offset) as usize..(to - offset) as usize]
            .copy_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PIECE_BYTES: u64 = 4 << 20;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, usize, u8),
        Remove(u64, u64),
        TakeFull,
        Shift(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Offsets around a slot boundary, so that pieces meet it.
        let offset = PIECE_BYTES - 300..PIECE_BYTES + 300;
        let step = prop_oneof![
            6 => (offset.clone(), 1usize..200, any::<u8>())
                .prop_map(|(o, l, b)| Step::Write(o, l, b)),
            2 => (offset, 0u64..200).prop_map(|(o, l)| Step::Remove(o, l)),
            1 => Just(Step::TakeFull),
            1 => (0u64..900, 0u64..900).prop_map(|(from, to)| Step::Shift(from, to)),
        ];
        prop::collection::vec(step, 1..60)
    }

    proptest! {
        #[test]
        fn behaves_as_an_array_of_optional_bytes(steps in steps()) {
            let base = PIECE_BYTES - 300;
            let mut model = vec![None; 900];
            let mut buffer = WriteBuffer::new(PIECE_BYTES as u32);
            for step in steps {
                match step {
                    Step::Write(offset, len, byte) => {
                        buffer.write(offset, &vec![byte; len]);
                        model[(offset - base) as usize..][..len].fill(Some(byte));
                    }
                    Step::Remove(offset, len) => {
                        buffer.remove(offset..offset + len);
                        model[(offset - base) as usize..][..len as usize].fill(None);
                    }
                    Step::Shift(from, to) => {
                        let mut moved = model[from as usize..].to_vec();
                        // The array ends there; the buffer does not.
                        moved.truncate(900 - to as usize);
                        buffer.remove(base + from + moved.len() as u64..base + 900);
                        buffer.shift(base + from, base + to);
                        model[from as usize..].fill(None);
                        for (at, byte) in moved.into_iter().enumerate()
                            .filter(|(_, byte)| byte.is_some())
                        {
                            model[to as usize + at] = byte;
                        }
                    }
                    Step::TakeFull => prop_assert!(buffer.take_full().is_empty()),
                }
                prop_assert_eq!(buffer.bytes(), model.iter().flatten().count());
                prop_assert_eq!(buffer.bytes(),
                    buffer.pieces().map(|(_, piece)| piece.len()).sum::<usize>());
                let mut out = vec![0; 900];
                for (start, piece) in buffer.pieces() {
                    copy_piece(start, piece, base, &mut out);
                }
                let want: Vec<u8> = model.iter().map(|byte| byte.unwrap_or(0)).collect();
                prop_assert_eq!(out, want);
                let mut last_end = 0;
                for (start, piece) in buffer.pieces() {
                    prop_assert!(start >= last_end && !piece.is_empty());
                    last_end = start + piece.len() as u64;
                    prop_assert_eq!(start / PIECE_BYTES, (last_end - 1) / PIECE_BYTES);
                }
            }
        }
    }

    #[test]
    fn sequential_writing_fills_whole_slots() {
        let mut buffer = WriteBuffer::new(PIECE_BYTES as u32);
        for step in 0..96u64 {
            buffer.write(step * 128 * 1024, &vec![step as u8; 128 * 1024]);
        }
        let full = buffer.take_full();
        assert_eq!(
            full.iter().map(|(start, _)| *start).collect::<Vec<_>>(),
            [0, PIECE_BYTES, 2 * PIECE_BYTES]
        );
        assert!(buffer.is_empty() && buffer.bytes() == 0);
    }
}
