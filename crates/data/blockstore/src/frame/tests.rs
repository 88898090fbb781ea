//! Layout, windows and damage.

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;
use crate::store::MemoryStore;

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn stored(bytes: &[u8], cut: usize, offset: u32) -> (MemoryStore, Range) {
    let store = MemoryStore::new();
    let payload: Payload = bytes.chunks(cut).map(<[u8]>::to_vec).collect();
    let mut gather = Gather::default();
    gather.small(&vec![0xee; offset as usize]);
    gather.frames(&payload, &data_checks(&payload), 5, offset);
    let range = Range { object: 5, offset, len: bytes.len() as u32 };
    assert_eq!(gather.len(), u64::from(offset + range.stored_len()));
    store.put(5, &gather.slices()).unwrap();
    (store, range)
}

fn read(store: &MemoryStore, range: Range, skip: u32, len: usize) -> Result<Vec<u8>> {
    let mut out = vec![0xaa; len];
    assert_eq!(
        read_window(store, None, range, skip, &mut out, Wait::Yes)?,
        WindowRead::Whole { cached: 0 }
    );
    Ok(out)
}

#[test]
fn lengths_around_a_frame() {
    for len in [1, 2, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME - 1, 3 * FRAME, 3 * FRAME + 7] {
        let bytes = pattern(len);
        for cut in [len, FRAME, 4096, 1000, 70_001] {
            let (store, range) = stored(&bytes, cut, 48);
            assert_eq!(read(&store, range, 0, len).unwrap(), bytes, "len {len} cut {cut}");
        }
    }
}

/// A frame is stored as it is sent, and large data is not copied.
#[test]
fn frame_bytes_without_copies() {
    for (len, cut) in [(10, 10), (9000, 9000), (300_000, 300_000), (300_000, 70_001), (50_000, 900)]
    {
        let buffers: Vec<Vec<u8>> = pattern(len).chunks(cut).map(<[u8]>::to_vec).collect();
        let ranges: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr_range()).collect();
        let payload: Payload = buffers.into_iter().collect();
        let mut gather = Gather::default();
        gather.small(b"head");
        gather.frames(&payload, &data_checks(&payload), 5, 4);
        let written: Vec<u8> = gather.slices().iter().flat_map(|slice| slice.to_vec()).collect();
        let sent = gather.into_shared();
        assert_eq!(sent.concat(), written, "{len} {cut}");
        let copied = |buffer: &&Bytes| !ranges.iter().any(|range| range.contains(&buffer.as_ptr()));
        let copied: usize = sent.iter().filter(copied).map(Bytes::len).sum();
        // Less than a piece at each end of each buffer, in each of its frames.
        assert!(
            cut < JOINED_BYTES_MAX || copied < 2 * JOINED_BYTES_MAX * len.div_ceil(cut),
            "{copied}"
        );
        assert!(len != 300_000 || copied < len / 5, "{copied}");
    }
}

/// Damage of any byte of a frame is noticed, and no unverified byte is returned.
#[test]
fn damage_of_any_byte_of_a_frame() {
    let bytes = pattern(300);
    let (store, range) = stored(&bytes, 300, 7);
    for at in 7..7 + range.stored_len() as usize {
        for flip in [1, 0x80, 0xff] {
            store.tamper(5, |stored| stored[at] ^= flip);
            for (skip, len) in [(0, 300), (0, 10), (100, 50), (299, 1)] {
                let mut out = vec![0xaa; len];
                let error =
                    read_window(&store, None, range, skip, &mut out, Wait::Yes).unwrap_err();
                assert!(matches!(error, Error::Corrupt { object: 5, offset: 7, .. }), "{error}");
                assert!(out.iter().all(|byte| *byte == 0));
            }
            store.tamper(5, |stored| stored[at] ^= flip);
        }
    }
    assert_eq!(read(&store, range, 0, 300).unwrap(), bytes);
}

#[test]
fn damage_names_the_frame_and_spares_the_others() {
    let bytes = pattern(3 * FRAME);
    let (store, range) = stored(&bytes, 3 * FRAME, 100);
    store.tamper(5, |stored| stored[100 + FRAME + CHECK + 17] ^= 4);
    let expected = 100 + (FRAME + CHECK) as u64;
    for (skip, len) in [(0, 3 * FRAME), (FRAME as u32, 1), (2 * FRAME as u32 - 1, 2)] {
        match read(&store, range, skip, len) {
            Err(Error::Corrupt { offset, .. }) => assert_eq!(offset, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(read(&store, range, 0, FRAME).unwrap(), bytes[..FRAME]);
    assert_eq!(read(&store, range, 2 * FRAME as u32, FRAME).unwrap(), bytes[2 * FRAME..]);
}

#[test]
fn right_bytes_at_a_wrong_offset() {
    let bytes = pattern(2 * FRAME);
    let (store, range) = stored(&bytes, 2 * FRAME, 64);
    // The same object under another number.
    let copy = store.bytes(5).unwrap();
    store.put(6, &[IoSlice::new(&copy)]).unwrap();
    assert_eq!(
        read(&store, Range { object: 6, ..range }, 0, 10).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    // The same frames at another offset.
    store.put(7, &[IoSlice::new(&copy[64..])]).unwrap();
    assert_eq!(
        read(&store, Range { object: 7, offset: 0, ..range }, 0, 10).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    // Two frames swapped.
    store.tamper(5, |stored| {
        let (a, b) = stored[64..].split_at_mut(FRAME + CHECK);
        a.swap_with_slice(b);
    });
    assert_eq!(read(&store, range, 0, 10).unwrap_err().kind(), ErrorKind::Corrupt);
    // A range that ends early makes its last frame another one.
    assert_eq!(
        read(&store, Range { len: 10, ..range }, 0, 10).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

#[test]
fn missing_short_and_impossible() {
    let (store, range) = stored(&pattern(1000), 1000, 0);
    store.tamper(5, |stored| stored.truncate(500));
    assert_eq!(read(&store, range, 0, 10).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(
        read(&store, Range { object: 9, ..range }, 0, 10).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    for (skip, len) in [(1000, 1), (0, 1001), (u32::MAX, 1)] {
        assert!(matches!(read(&store, range, skip, len), Err(Error::Invalid { .. })));
    }
    assert!(matches!(read(&store, Range { object: 0, ..range }, 0, 1), Err(Error::Invalid { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_window_reads_what_was_written(
        len in 1..5 * FRAME, cut in 1..3 * FRAME, offset in 0..200u32, a in 0.0..1.0f64,
        b in 0.0..1.0f64,
    ) {
        let bytes = pattern(len);
        let (store, range) = stored(&bytes, cut.max(len / 50), offset);
        let skip = (a * len as f64) as usize;
        let wanted = ((b * (len - skip) as f64) as usize).max(1);
        prop_assert_eq!(read(&store, range, skip as u32, wanted).unwrap(),
            &bytes[skip..skip + wanted]);
    }
}
