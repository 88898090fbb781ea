//! Chunks of a body as AWS's clients send them (`aws-chunked`), cut small.
//!
//! ```text
//! HEX[;chunk-signature=…]\r\n BYTES \r\n … 0[;…]\r\n trailers
//! ```
//!
//! The protocol library keeps a whole chunk in memory, and a chunk may be as long as a client
//! likes: some send an object as one. A chunk without a signature is cut into small ones here,
//! which says the same. One with a signature cannot be: above [`SIGNED_CHUNK_MAX`] it is refused.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

/// Longest chunk with a signature, bytes. Clients send 64 KiB to 1 MiB.
pub const SIGNED_CHUNK_MAX: u64 = 4 << 20;

/// Longest line before a chunk, bytes.
const LINE_MAX: usize = 1024;

/// What comes next.
#[derive(Debug, Default)]
enum Expect {
    /// The line before a chunk.
    #[default]
    Line,
    /// So many bytes of a chunk that is passed on as it is, with what ends it.
    Passed(u64),
    /// So many bytes of a chunk that is cut.
    Cut(u64),
    /// The end of a chunk that was cut: so many bytes of it are there.
    End(usize),
    /// The trailers.
    Rest,
}

/// Cuts the chunks of one body.
#[derive(Debug, Default)]
pub struct ChunkCutter {
    expect: Expect,
    line: Vec<u8>,
    out: VecDeque<Bytes>,
}

/// Why a body is refused.
pub type BadChunks = &'static str;

impl ChunkCutter {
    /// Takes bytes of the body.
    ///
    /// # Errors
    /// If they are no chunks, or too long ones.
    pub fn push(&mut self, mut bytes: Bytes) -> Result<(), BadChunks> {
        while bytes.has_remaining() {
            match &mut self.expect {
                Expect::Line => self.take_line(&mut bytes)?,
                Expect::Passed(left) => {
                    let taken = bytes.split_to(bytes.len().min(clamp(*left)));
                    *left -= taken.len() as u64;
                    if *left == 0 {
                        self.expect = Expect::Line;
                    }
                    self.out.push_back(taken);
                }
                Expect::Cut(left) => {
                    let taken = bytes.split_to(bytes.len().min(clamp(*left)));
                    *left -= taken.len() as u64;
                    if *left == 0 {
                        self.expect = Expect::End(0);
                    }
                    self.out.push_back(format!("{:x}\r\n", taken.len()).into());
                    self.out.push_back(taken);
                    self.out.push_back(Bytes::from_static(b"\r\n"));
                }
                Expect::End(count) => {
                    if bytes.get_u8() != b"\r\n"[*count] {
                        return Err("a chunk of the body does not end where it says");
                    }
                    *count += 1;
                    if *count == 2 {
                        self.expect = Expect::Line;
                    }
                }
                Expect::Rest => self.out.push_back(bytes.split_to(bytes.len())),
            }
        }
        Ok(())
    }

    fn take_line(&mut self, bytes: &mut Bytes) -> Result<(), BadChunks> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = bytes.split_to(end.map_or(bytes.len(), |at| at + 1));
        self.line.extend_from_slice(&taken);
        if self.line.len() > LINE_MAX {
            return Err("the line before a chunk of the body is too long");
        }
        if end.is_none() {
            return Ok(());
        }
        let line = std::mem::take(&mut self.line);
        let text = line.strip_suffix(b"\r\n").and_then(|text| std::str::from_utf8(text).ok());
        let text = text.ok_or("the line before a chunk of the body is none")?;
        let digits = text.split(';').next().unwrap_or_default();
        let size = u64::from_str_radix(digits, 16)
            .ok()
            .filter(|_| digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .ok_or("the line before a chunk of the body has no length")?;
        let is_signed = text.contains(';');
        if is_signed && size > SIGNED_CHUNK_MAX {
            return Err("a chunk with a signature has at most 4 MiB; send smaller chunks");
        }
        self.expect = match size {
            0 => Expect::Rest,
            _ if is_signed => Expect::Passed(size + 2),
            _ => Expect::Cut(size),
        };
        if size == 0 || is_signed {
            self.out.push_back(line.into());
        }
        Ok(())
    }

    /// The next bytes of the body with cut chunks.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.out.pop_front()
    }
}

fn clamp(left: u64) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(body: &[u8], at_once: usize) -> Result<Vec<u8>, BadChunks> {
        let mut cutter = ChunkCutter::default();
        let mut out = Vec::new();
        for piece in body.chunks(at_once) {
            cutter.push(Bytes::copy_from_slice(piece))?;
            while let Some(bytes) = cutter.pop() {
                out.extend_from_slice(&bytes);
            }
        }
        Ok(out)
    }

    /// A chunk without a signature comes out as chunks of what was there at once, trailers as they
    /// are.
    #[test]
    fn unsigned_chunks_are_cut() {
        let body = b"6\r\nabcdef\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n";
        assert_eq!(cut(body, 1000).unwrap(), body);
        let small = cut(body, 5).unwrap();
        assert_eq!(small, b"2\r\nab\r\n4\r\ncdef\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n");
        assert!(cut(body, 1).unwrap().starts_with(b"1\r\na\r\n1\r\nb\r\n"));
    }

    /// Chunks with signatures pass as they are, up to a length.
    #[test]
    fn signed_chunks_pass() {
        let body = b"3;chunk-signature=00\r\nabc\r\n0;chunk-signature=00\r\n\r\n";
        for at_once in [1, 4, 1000] {
            assert_eq!(cut(body, at_once).unwrap(), body);
        }
        assert!(cut(b"ffffffff;chunk-signature=00\r\n", 1000).is_err());
    }

    /// What is no chunk is refused, and nothing grows without end.
    #[test]
    fn bad_chunks() {
        for bad in [
            &b"x\r\n"[..],
            b"\r\n",
            b"-1\r\n",
            b"+1\r\nab",
            b"2\r\nabc\r\n",
            b"00000000000000001\r\n",
            b"3\n",
            &[b'1'; 2000],
            b"\xff\xff\r\n",
        ] {
            assert!(cut(bad, 7).is_err(), "{bad:?}");
        }
    }
}
