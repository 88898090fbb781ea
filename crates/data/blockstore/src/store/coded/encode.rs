//! Coding a whole object.

use std::io::IoSlice;

use kestrel_types::ids::ObjectId;

use super::buffers::Buffers;
use super::compression::{self, Compression, Method};
use super::head::{CHUNK_BYTES, CHUNKS_MAX, FIRST_CHUNK_BYTES, HeadWriter, Header, object_key};
use super::keys::{Keys, NoncePart, SALT_BYTES, random_salt};
use crate::error::{Error, Result};
use crate::object::VolumeId;
use crate::store::total_len;

/// The parts of an object as one sequence of bytes, taken piece by piece.
struct Plain<'a> {
    parts: &'a [IoSlice<'a>],
    /// Bytes of the first part that were taken.
    taken: usize,
}

impl<'a> Plain<'a> {
    /// The next bytes: at most `max`, fewer at the end of a part, none at the end.
    fn next(&mut self, max: usize) -> &'a [u8] {
        while let Some((part, rest)) = self.parts.split_first() {
            if self.taken < part.len() {
                let piece = &part[self.taken..][..max.min(part.len() - self.taken)];
                self.taken += piece.len();
                return piece;
            }
            self.parts = rest;
            self.taken = 0;
        }
        &[]
    }
}

/// What an object is coded for and with.
pub(super) struct Encoder<'a> {
    pub volume: VolumeId,
    pub compression: Compression,
    pub keys: Option<&'a Keys>,
}

impl Encoder<'_> {
    /// The object as it is stored, in memory from `buffers`.
    ///
    /// # Errors
    /// `Invalid` if it is larger than the format allows (1 GiB); `Io` if the system has no
    /// randomness.
    pub fn encode(
        &self,
        object: ObjectId,
        parts: &[IoSlice<'_>],
        buffers: &Buffers,
    ) -> Result<Vec<u8>> {
        let salt = match self.write_key() {
            Some(_) => random_salt(Some(object))?,
            None => [0; SALT_BYTES],
        };
        self.encode_with(object, parts, salt, buffers)
    }

    fn write_key(&self) -> Option<u32> {
        self.keys.and_then(Keys::write_key)
    }

    /// [`Encoder::encode`] with the random bytes given, which must not repeat for an object of this
    /// volume and number.
    pub fn encode_with(
        &self,
        object: ObjectId,
        parts: &[IoSlice<'_>],
        salt: [u8; SALT_BYTES],
        buffers: &Buffers,
    ) -> Result<Vec<u8>> {
        let header = Header {
            method: Method::of(self.compression),
            key: self.write_key(),
            volume: self.volume,
            object,
            plain_len: total_len(parts) as u64,
            first_chunk_bytes: FIRST_CHUNK_BYTES,
            chunk_bytes: CHUNK_BYTES,
            salt,
        };
        let chunks = header.chunks();
        if chunks > CHUNKS_MAX {
            return Err(Error::Invalid { what: "an object larger than 1 GiB cannot be coded" });
        }
        let key = object_key(&header, self.keys)?;
        let (head_len, tag_len) = (header.head_len(), header.tag_len());
        let sizes: Vec<usize> = (0..chunks)
            .map(|chunk| header.plain_of(chunk))
            // Chunks are smaller than 2 MiB.
            .map(|plain| (plain.end - plain.start) as usize)
            .collect();
        let mut out = buffers.take(head_len + total_len(parts) + tag_len * sizes.len());
        out.resize(head_len, 0);
        let mut head = HeadWriter::new(header);
        let mut plain = Plain { parts, taken: 0 };
        let mut gathered = Vec::new();
        for (len, chunk) in sizes.into_iter().zip(0u32..) {
            let begin = out.len();
            let is_compressed = self.append(&mut plain, len, &mut gathered, &mut out);
            if let Some(key) = &key {
                let tag =
                    key.seal(NoncePart::Chunk(chunk), head.header_bytes(), &mut out[begin..])?;
                out.extend_from_slice(&tag);
            }
            head.push(&out[begin..], is_compressed);
        }
        head.finish(key.as_ref(), &mut out)?;
        Ok(out)
    }

    /// Appends the next chunk, compressed (true) or as it is.
    fn append(
        &self,
        plain: &mut Plain<'_>,
        len: usize,
        gathered: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> bool {
        if self.compression == Compression::None {
            let mut left = len;
            while left > 0 {
                let piece = plain.next(left);
                left -= piece.len();
                out.extend_from_slice(piece);
            }
            return false;
        }
        let mut piece = plain.next(len);
        if piece.len() < len {
            gathered.clear();
            while !piece.is_empty() {
                gathered.extend_from_slice(piece);
                piece = plain.next(len - gathered.len());
            }
            piece = gathered;
        }
        let is_compressed = compression::compress(self.compression, piece, out);
        if !is_compressed {
            out.extend_from_slice(piece);
        }
        is_compressed
    }
}
