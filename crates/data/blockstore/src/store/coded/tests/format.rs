//! The format, pinned. The bytes were made by another implementation (Python, `cryptography`), from
//! `docs/format/objects.md`.

use super::super::buffers::Buffers;
use super::super::encode::Encoder;
use super::*;

/// `hello` as object 0x01020304, encrypted with data key 1 (32 bytes of 1) and the salt 0, 1, … 31.
const ENCRYPTED: &str = "\
    4b5354434f4445440001000100000001abababababababababababababababab0000000001020304000000000000\
    0005000100540001000400000001000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\
    e9d2134a00000015a04c4553aad15b5022c032b7d8e76fb6bc219b6b1e4d6860e4bf227c9f87faee9663d85b8103\
    d1f816ddd7cd4e";

/// 100 times `a` as object 7, an LZ4 block.
const LZ4: &str = "\
    4b5354434f4445440001010000000000abababababababababababababababab0000000000000007000000000000\
    00640001005400010004000000010000000000000000000000000000000000000000000000000000000000000000\
    6173124c8000000bd9b4013900000000000000000000000000000000f0225e6b1f6101004b506161616161";

/// 100 times `a` as object 8, a Zstandard frame, encrypted with data key 2 and a salt of nines.
const ZSTD_ENCRYPTED: &str = "\
    4b5354434f4445440001020100000002abababababababababababababababab0000000000000008000000000000\
    00640001005400010004000000010909090909090909090909090909090909090909090909090909090909090909\
    d429d89a8000001a9afa28f6ce4c0974a77d9c73c6f3146cf4a4f226ba179b9f715973e36e69f83e69ce9fdfd808\
    401ea2ad7d0d9592b7abb7b8";

fn from_hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn store_of(object: ObjectId, stored: &[u8]) -> Arc<MemoryStore> {
    let inner = Arc::new(MemoryStore::put_only());
    put(&*inner, object, stored);
    inner
}

#[test]
fn pinned_objects_are_read() {
    for (object, stored, plain) in [
        (0x0102_0304, ENCRYPTED, b"hello".to_vec()),
        (7, LZ4, vec![b'a'; 100]),
        (8, ZSTD_ENCRYPTED, vec![b'a'; 100]),
    ] {
        let inner = store_of(object, &from_hex(stored));
        assert_eq!(
            read_anew(&inner, &coding(Compression::None, None), object, plain.len()).unwrap(),
            plain
        );
    }
}

#[test]
fn objects_are_written_as_pinned() {
    let keys = keys(Some(1));
    let encoder = Encoder { volume: VOLUME, compression: Compression::None, keys: Some(&keys) };
    let salt = std::array::from_fn(|index| index as u8);
    let buffers = Buffers::default();
    let stored = encoder
        .encode_with(0x0102_0304, &[IoSlice::new(b"hel"), IoSlice::new(b"lo")], salt, &buffers)
        .unwrap();
    assert_eq!(stored, from_hex(ENCRYPTED));
    // Three chunks, the last of one byte.
    let plain: Vec<u8> = (0..FIRST + CHUNK + 1).map(|at| (at / 9 % 40) as u8).collect();
    let stored = encoder.encode_with(9, &[IoSlice::new(&plain)], [5; 32], &buffers).unwrap();
    assert_eq!((stored.len(), crc32c::crc32c(&stored)), (131_349, 0x465c_2961));
}

/// Changes a byte of the header and makes its checksum right.
fn with_header_byte(stored: &str, at: usize, byte: u8) -> Vec<u8> {
    let mut stored = from_hex(stored);
    stored[at] = byte;
    let check = crc32c::crc32c(&stored[..92]);
    stored[92..96].copy_from_slice(&check.to_be_bytes());
    stored
}

#[test]
fn what_a_newer_version_wrote_is_refused_as_such() {
    for (at, byte, what) in [
        (9, 2, "format version 2"),
        (8, 1, "format version 257"),
        (10, 3, "method 3"),
        (11, 2, "cipher 2"),
    ] {
        let inner = store_of(7, &with_header_byte(LZ4, at, byte));
        let why = why(read_anew(&inner, &Coding::default(), 7, 100));
        assert!(why.contains(what) && why.contains("use a newer kestrel"), "{why}");
    }
}

/// Impossible sizes are refused, and cost no memory.
#[test]
fn impossible_sizes_in_object_headers() {
    // Plain length, sizes of chunks, number of chunks.
    for range in [40..48, 48..52, 52..56, 56..60] {
        for at in range {
            for byte in [0, 1, 0x7f, 0xff] {
                let stored = with_header_byte(LZ4, at, byte);
                if stored == from_hex(LZ4) {
                    continue;
                }
                let inner = store_of(7, &stored);
                assert!(read_anew(&inner, &Coding::default(), 7, 100).is_err(), "byte {at} {byte}");
            }
        }
    }
}

#[test]
fn no_two_objects_have_the_same_salt() {
    let inner = Arc::new(MemoryStore::put_only());
    let store = coded(&inner, coding(Compression::None, Some(1)));
    let mut salts = std::collections::BTreeSet::new();
    for object in 1..=100 {
        put(&store, object, b"the same bytes");
        assert!(salts.insert(inner.bytes(object).unwrap()[60..92].to_vec()));
    }
}

#[test]
fn objects_too_large_to_be_coded_are_refused() {
    let inner = Arc::new(MemoryStore::put_only());
    let store = coded(&inner, coding(Compression::Lz4, None));
    let part = vec![0; 1 << 20];
    let parts = vec![IoSlice::new(&part); 1025];
    assert!(matches!(store.put(1, &parts), Err(Error::Invalid { .. })));
    assert!(inner.bytes(1).is_none());
}
