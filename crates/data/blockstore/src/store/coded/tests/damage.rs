//! Bytes that are not those that were stored are never returned, and the error names the damage.

use super::*;
use crate::error::ErrorKind;

const LEN: usize = FIRST + CHUNK + 500;

/// Read by a store that has not read the object before; true if the damage was noticed.
fn is_noticed(inner: &Arc<MemoryStore>, coding: &Coding, object: ObjectId, written: &[u8]) -> bool {
    match read_anew(inner, coding, object, written.len()) {
        Ok(got) => {
            assert_eq!(got, written, "wrong bytes were returned");
            false
        }
        Err(_) => true,
    }
}

#[test]
fn every_flipped_byte_is_noticed() {
    for coding in codings().into_iter().filter(Coding::changes_objects) {
        let inner = Arc::new(MemoryStore::put_only());
        // Small, so that every byte can be tried, with compressed and raw chunks.
        for (object, written) in [(1, bytes(3000, 1)), (2, vec![7; 5000]), (3, bytes(0, 0))] {
            put(&coded(&inner, coding.clone()), object, &written);
            for at in 0..inner.bytes(object).unwrap().len() {
                for flip in [1, 0x80] {
                    inner.tamper(object, |stored| stored[at] ^= flip);
                    assert!(
                        is_noticed(&inner, &coding, object, &written),
                        "{coding:?} object {object} byte {at}"
                    );
                    inner.tamper(object, |stored| stored[at] ^= flip);
                }
            }
            assert!(!is_noticed(&inner, &coding, object, &written));
        }
    }
}

/// A flipped byte of a large object spoils its chunk only.
#[test]
fn flipped_byte_in_large_object() {
    for coding in codings().into_iter().filter(Coding::changes_objects) {
        let inner = Arc::new(MemoryStore::put_only());
        let written = bytes(LEN, 3);
        put(&coded(&inner, coding.clone()), 1, &written);
        let stored_len = inner.bytes(1).unwrap().len();
        for at in (0..stored_len).step_by(997) {
            inner.tamper(1, |stored| stored[at] ^= 4);
            assert!(is_noticed(&inner, &coding, 1, &written), "{coding:?} byte {at}");
            inner.tamper(1, |stored| stored[at] ^= 4);
        }
        inner.tamper(1, |stored| stored[stored_len - 1] ^= 4);
        let store = coded(&inner, coding);
        assert_eq!(read(&store, 1, 0, FIRST + CHUNK).unwrap(), written[..FIRST + CHUNK]);
        assert_eq!(read(&store, 1, LEN - 1, 1).unwrap_err().kind(), ErrorKind::Corrupt);
        // A reader that looks again, past the caches, sees it healed.
        inner.tamper(1, |stored| stored[stored_len - 1] ^= 4);
        let mut out = [0; 1];
        store.read_fresh(1, LEN as u64 - 1, &mut [IoSliceMut::new(&mut out)]).unwrap();
        assert_eq!(out[0], written[LEN - 1]);
    }
}

#[test]
fn a_fresh_read_does_not_trust_the_head_in_memory() {
    let inner = Arc::new(MemoryStore::put_only());
    let store = coded(&inner, coding(Compression::Lz4, Some(1)));
    let written = bytes(5000, 1);
    put(&store, 1, &written);
    assert_eq!(read(&store, 1, 0, 5000).unwrap(), written);
    inner.tamper(1, |stored| stored[50] ^= 1);
    assert_eq!(read(&store, 1, 0, 5000).unwrap(), written, "the chunks are as they were");
    let fresh = store.read_fresh(1, 0, &mut [IoSliceMut::new(&mut [0; 10])]);
    assert_eq!(fresh.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn objects_cut_off_anywhere_are_noticed() {
    for coding in codings().into_iter().filter(Coding::changes_objects) {
        let inner = Arc::new(MemoryStore::put_only());
        let written = bytes(2000, 5);
        put(&coded(&inner, coding.clone()), 1, &written);
        let stored = inner.bytes(1).unwrap();
        for len in 0..stored.len() {
            inner.tamper(1, |bytes| bytes.truncate(len));
            assert!(is_noticed(&inner, &coding, 1, &written), "{coding:?} cut at {len}");
            inner.tamper(1, |bytes| bytes.clone_from(&stored));
        }
        inner.tamper(1, |bytes| bytes.extend_from_slice(b"more"));
        assert_eq!(
            read_anew(&inner, &coding, 1, 2000).unwrap(),
            written,
            "what is behind the last chunk is nobody's"
        );
    }
}

/// Where the chunks of an object lie, by the table of an object without compression.
fn chunk_spans(stored: &[u8], chunks: usize) -> Vec<std::ops::Range<usize>> {
    let mut at = 96 + 8 * chunks + 20;
    let lens = (0..chunks).map(|chunk| {
        u32::from_be_bytes(stored[96 + 8 * chunk..][..4].try_into().unwrap()) as usize
    });
    lens.map(|len| {
        at += len;
        at - len..at
    })
    .collect()
}

#[test]
fn swapped_chunks() {
    for write in [None, Some(1)] {
        // Compressed with a method that gains nothing here: chunks of equal size, which fit in each
        // other's place.
        let coding = coding(Compression::Lz4, write);
        let inner = Arc::new(MemoryStore::put_only());
        let noise = |seed: u64| -> Vec<u8> {
            let mut x = seed;
            std::iter::repeat_with(|| {
                x = x
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (x >> 56) as u8
            })
            .take(FIRST + 3 * CHUNK)
            .collect()
        };
        let written = [noise(1), noise(2)];
        put(&coded(&inner, coding.clone()), 1, &written[0]);
        put(&coded(&inner, coding.clone()), 2, &written[1]);
        let (one, two) = (inner.bytes(1).unwrap(), inner.bytes(2).unwrap());
        let spans = chunk_spans(&one, 4);
        assert_eq!(spans[3].end, one.len());

        // Swapped within the object, alone and together with their entries in the table.
        let swap = |stored: &mut Vec<u8>| {
            stored[spans[1].start..spans[2].end].rotate_left(spans[1].len());
        };
        inner.tamper(1, swap);
        assert!(is_noticed(&inner, &coding, 1, &written[0]));
        inner.tamper(1, |stored| stored[104..120].rotate_left(8));
        assert!(is_noticed(&inner, &coding, 1, &written[0]));
        // Taken from another object, alone and with the line of its table.
        inner.tamper(1, |stored| {
            stored.clone_from(&one);
            stored[spans[1].clone()].copy_from_slice(&two[spans[1].clone()]);
        });
        assert!(is_noticed(&inner, &coding, 1, &written[0]));
        inner.tamper(1, |stored| stored[104..112].copy_from_slice(&two[104..112]));
        assert!(is_noticed(&inner, &coding, 1, &written[0]));
        // A whole object under another's name, of another volume.
        inner.tamper(1, |stored| stored.clone_from(&two));
        let error = read_anew(&inner, &coding, 1, 10).unwrap_err();
        assert!(error.to_string().contains("another object"), "{error}");
        let other = CodedStore::new(inner.clone(), [1; 16], coding.clone());
        let error = read(&other, 2, 0, 10).unwrap_err();
        assert!(error.to_string().contains("another volume"), "{error}");
    }
}

/// An attacker that can compute checksums but has no key.
fn reseal(stored: &mut [u8], chunks: usize) {
    let header = crc32c::crc32c(&stored[..92]);
    stored[92..96].copy_from_slice(&header.to_be_bytes());
    let end = 96 + 8 * chunks + 16;
    let table = crc32c::crc32c(&stored[..end]);
    stored[end..end + 4].copy_from_slice(&table.to_be_bytes());
}

/// An encrypted object that was changed is refused, also when its checksums fit.
#[test]
fn forged_object_with_right_checksums() {
    let coding = coding(Compression::Lz4, Some(1));
    let inner = Arc::new(MemoryStore::put_only());
    let written = bytes(FIRST + 10, 2);
    put(&coded(&inner, coding.clone()), 1, &written);
    let stored = inner.bytes(1).unwrap();
    for at in (0..96 + 16 + 20).filter(|at| !(92..96).contains(at)) {
        inner.tamper(1, |bytes| {
            bytes[at] ^= 1;
            reseal(bytes, 2);
        });
        let store = coded(&inner, coding.clone());
        if inner.bytes(1).unwrap() != stored {
            assert!(store.size(1).is_err(), "byte {at}");
            assert!(read(&store, 1, 0, 1).is_err(), "byte {at}");
        }
        inner.tamper(1, |bytes| bytes.clone_from(&stored));
    }
}

#[test]
fn keys_that_are_wrong_or_lost_are_named() {
    let inner = Arc::new(MemoryStore::put_only());
    put(&coded(&inner, coding(Compression::Lz4, Some(2))), 1, &bytes(100, 1));
    let with = |numbers: &[(u32, u8)]| {
        let keys = numbers
            .iter()
            .map(|(number, byte)| (*number, DataKey::new(Zeroizing::new([*byte; 32]))));
        let cipher = Keys::new(keys.collect(), None, true).unwrap();
        Coding { compression: Compression::None, cipher: Some(cipher) }
    };
    assert!(why(read_anew(&inner, &with(&[(1, 1)]), 1, 100)).contains("data key 2"));
    assert!(why(read_anew(&inner, &with(&[(2, 9)]), 1, 100)).contains("data key 2"));
    assert!(why(read_anew(&inner, &Coding::default(), 1, 100)).contains("no keys"));
    let error = coded(&inner, Coding::default()).size(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "a missing key is no damage");
    assert_eq!(read_anew(&inner, &with(&[(2, 2)]), 1, 100).unwrap(), bytes(100, 1));
}

#[test]
fn where_everything_is_encrypted_nothing_else_is_read() {
    let key = || (1, DataKey::new(Zeroizing::new([1; 32])));
    let strict = Keys::new(vec![key()], Some(1), false).unwrap();
    let strict = Coding { compression: Compression::None, cipher: Some(strict) };
    let inner = Arc::new(MemoryStore::put_only());
    put(&coded(&inner, coding(Compression::None, None)), 1, b"KSTLOBJ\nand so on");
    put(&coded(&inner, coding(Compression::Lz4, None)), 2, &[5; 1000]);
    put(&coded(&inner, strict.clone()), 3, &[5; 1000]);
    for object in [1, 2] {
        let store = coded(&inner, strict.clone());
        for _ in 0..2 {
            assert!(why(read(&store, object, 0, 5)).contains("not encrypted"));
            assert!(why(store.size(object)).contains("not encrypted"));
        }
    }
    assert_eq!(read_anew(&inner, &strict, 3, 1000).unwrap(), [5; 1000]);
}
