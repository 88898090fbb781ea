//! Frames: how messages are cut out of a stream of bytes.
//!
//! Header, big-endian: payload length u32, kind u8, flags u8 (bit 0: checksum present), reserved
//! u16 = 0, checksum u32, reserved u32 = 0. The checksum is the CRC-32C of the header's first eight
//! bytes and the payload; 0 if the flag is off.

use super::basic::WireWriter;
use super::{FRAME_BYTES_MAX, HEADER_BYTES, TooLarge, WireError};

/// Flag of a header: the checksum is there.
const HAS_CHECKSUM: u8 = 1;

/// What a splitter's buffer holds to begin with, and shrinks to when a large frame has gone, bytes.
const BUFFER_BYTES: usize = 64 * 1024;

/// Whether frames are sent with a checksum. Receivers take both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// Without: for loopback.
    Off,
    /// With: for anything that crosses a wire.
    Crc32c,
}

/// One frame, as it lies in the buffer of its [`Frames`]; its checksum has been verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What the payload is.
    pub kind: u8,
    /// The payload.
    pub payload: &'a [u8],
}

/// Cuts frames out of a stream that comes in pieces.
///
/// Read into [`Frames::space`], tell [`Frames::filled`] how much came, then take frames with
/// [`Frames::next_frame`] until there is none. The buffer grows as bytes arrive, not as a header
/// announces them.
#[derive(Debug)]
pub struct Frames {
    /// Bytes `start .. end` wait to be taken; the rest is room.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    payload_max: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self::new(FRAME_BYTES_MAX)
    }
}

impl Frames {
    /// A splitter that takes frames with payloads up to `payload_max` bytes.
    pub fn new(payload_max: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, end: 0, payload_max }
    }

    /// Changes the limit of payloads: a node takes only [`super::HELLO_BYTES_MAX`] before it knows
    /// the client.
    pub fn set_payload_max(&mut self, payload_max: usize) {
        self.payload_max = payload_max;
    }

    /// Room to read into, never empty. Frames not yet taken keep theirs, so take them before
    /// reading on.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == 0 && self.buffer.len() > BUFFER_BYTES {
            self.buffer.truncate(BUFFER_BYTES);
            self.buffer.shrink_to_fit();
        }
        if self.buffer.len() - self.end < BUFFER_BYTES / 2 {
            let len = (self.buffer.len() * 2).max(BUFFER_BYTES);
            self.buffer.resize(len, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Says that `len` bytes were read into the space. More than there was room for counts as all
    /// of it.
    pub fn filled(&mut self, len: usize) {
        self.end = self.buffer.len().min(self.end + len);
    }

    /// Appends bytes: [`Frames::space`] and [`Frames::filled`] for callers that have a buffer of
    /// their own.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = self.space();
            let (now, later) = bytes.split_at(bytes.len().min(space.len()));
            space[..now.len()].copy_from_slice(now);
            self.filled(now.len());
            bytes = later;
        }
    }

    /// Bytes that wait for the rest of their frame, or to be taken.
    pub fn pending(&self) -> usize {
        self.end - self.start
    }

    /// Takes the next frame; `None` if it has not come completely.
    ///
    /// # Errors
    /// If the header is not one, or the checksum does not fit. Nothing can be taken after that.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        let waiting = &self.buffer[self.start..self.end];
        let Some((header, rest)) = waiting.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [l0, l1, l2, l3, kind, flags, r0, r1, c0, c1, c2, c3, r2, r3, r4, r5] = *header;
        let len = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let checksum = u32::from_be_bytes([c0, c1, c2, c3]);
        if len > self.payload_max {
            return Err(WireError::Oversized { len, max: self.payload_max });
        }
        if flags & !HAS_CHECKSUM != 0 || [r0, r1, r2, r3, r4, r5] != [0; 6] {
            return Err(WireError::UnknownFlags);
        }
        let Some(payload) = rest.get(..len) else { return Ok(None) };
        let expected =
            if flags & HAS_CHECKSUM == 0 { 0 } else { checksum_of(&header[..8], payload) };
        if checksum != expected {
            return Err(WireError::Checksum);
        }
        self.start += HEADER_BYTES + len;
        Ok(Some(Frame { kind, payload }))
    }
}

fn checksum_of(head: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), payload)
}

/// Appends a frame; `put` writes its payload; if that exceeds a limit, nothing.
pub(super) fn put(
    out: &mut Vec<u8>,
    kind: u8,
    checksum: Checksum,
    put: impl FnOnce(&mut WireWriter<'_>),
) -> Result<(), TooLarge> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let mut writer = WireWriter::new(out);
    put(&mut writer);
    let written = writer.finish().and_then(|()| {
        let len = out.len() - start - HEADER_BYTES;
        if len <= FRAME_BYTES_MAX {
            Ok(len as u32)
        } else {
            Err(TooLarge("the length of the message"))
        }
    });
    if written.is_err() {
        out.truncate(start);
    }
    let len = written?;
    let (header, payload) = out[start..].split_at_mut(HEADER_BYTES);
    header[..4].copy_from_slice(&len.to_be_bytes());
    header[4] = kind;
    if checksum == Checksum::Crc32c {
        header[5] = HAS_CHECKSUM;
        let sum = checksum_of(&header[..8], payload);
        header[8..12].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(())
}
