//! Compression of chunks: LZ4 blocks and Zstandard frames.

use std::cell::RefCell;

pub use kestrel_types::compression::Compression;
use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use zstd::bulk::{Compressor as ZstdCompressor, Decompressor as ZstdDecompressor};

/// A compressed chunk is kept only if it is at least one in this many bytes smaller: less is not
/// worth decompressing.
const GAIN_SHARE: usize = 16;

/// How the compressed chunks of an object are compressed: the byte in its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Method {
    None = 0,
    Lz4 = 1,
    Zstd = 2,
}

impl Method {
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::None, Self::Lz4, Self::Zstd].into_iter().find(|method| *method as u8 == byte)
    }

    /// That of objects which are compressed like this.
    pub fn of(compression: Compression) -> Self {
        match compression {
            Compression::None => Self::None,
            Compression::Lz4 => Self::Lz4,
            Compression::Zstd(_) => Self::Zstd,
        }
    }
}

/// Contexts of the compressors: expensive to make, so each thread that needs them keeps one of
/// each. At most a few MiB a thread (Zstandard at level 19), some 100 KiB at the usual levels.
#[derive(Default)]
struct Contexts {
    out: Vec<u8>,
    lz4: Option<CompressTable>,
    zstd: Option<(u8, ZstdCompressor<'static>)>,
    unzstd: Option<ZstdDecompressor<'static>>,
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::default();
}

/// Appends the chunk in compressed form to `out` if that is worth it; false if not, `out` being
/// then as it was.
pub(super) fn compress(compression: Compression, chunk: &[u8], out: &mut Vec<u8>) -> bool {
    if compression == Compression::None {
        return false;
    }
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.out.resize(get_maximum_output_size(chunk.len()), 0);
        let limit = chunk.len() - chunk.len().div_ceil(GAIN_SHARE);
        let len = match compression {
            Compression::None => return false,
            Compression::Lz4 => {
                let table = contexts.lz4.get_or_insert_with(CompressTable::large);
                compress_into_with_table(chunk, &mut contexts.out, table).ok()
            }
            Compression::Zstd(level) => {
                if contexts.zstd.as_ref().is_none_or(|(made_for, _)| *made_for != level) {
                    contexts.zstd =
                        ZstdCompressor::new(level.into()).ok().map(|made| (level, made));
                }
                // Without memory for a context chunks stay as they are, which every reader
                // understands.
                let Some((_, zstd)) = &mut contexts.zstd else { return false };
                zstd.compress_to_buffer(chunk, &mut contexts.out[..limit]).ok()
            }
        };
        let Some(len) = len.filter(|len| *len <= limit) else { return false };
        out.extend_from_slice(&contexts.out[..len]);
        true
    })
}

/// Fills `out` with what `stored` was before it was compressed. False if it is no such thing, or of
/// another length.
pub(super) fn decompress(method: Method, stored: &[u8], out: &mut [u8]) -> bool {
    let len = match method {
        Method::None => return false,
        Method::Lz4 => decompress_into(stored, out).ok(),
        Method::Zstd => CONTEXTS.with_borrow_mut(|contexts| {
            if contexts.unzstd.is_none() {
                contexts.unzstd = ZstdDecompressor::new().ok();
            }
            contexts.unzstd.as_mut()?.decompress_to_buffer(stored, out).ok()
        }),
    };
    len == Some(out.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gains_is_compressed_and_what_does_not_is_left() {
        let text: Vec<u8> = (0..65_540u32).map(|i| (i / 7 % 50) as u8).collect();
        let mut x = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        })
        .take(65_540)
        .collect();
        for compression in [Compression::Lz4, Compression::Zstd(1), Compression::Zstd(19)] {
            let mut out = vec![9];
            assert!(compress(compression, &text, &mut out));
            assert!(out[0] == 9 && out.len() < text.len() / 2);
            let mut back = vec![0; text.len()];
            assert!(decompress(Method::of(compression), &out[1..], &mut back));
            assert_eq!(back, text);
            assert!(
                !decompress(Method::of(compression), &out[1..], &mut back[1..]),
                "too little room"
            );
            let mut more = vec![0; text.len() + 1];
            assert!(!decompress(Method::of(compression), &out[1..], &mut more), "too much room");
            assert!(
                !decompress(Method::of(compression), &out[1..out.len() - 1], &mut back),
                "cut off"
            );
            let mut out = Vec::new();
            for incompressible in [&noise[..], &text[..0], &text[..1], &text[..7]] {
                assert!(!compress(compression, incompressible, &mut out));
                assert!(out.is_empty());
            }
        }
        assert!(!compress(Compression::None, &text, &mut Vec::new()));
    }
}
