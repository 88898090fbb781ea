//! What the benchmark writes, so that it can tell what it reads, and its random orders.

use std::io;

/// Bytes between two marks that say where in which file they lie.
const PAGE: usize = 4096;

/// A number for a file, from its path.
pub fn file_tag(path: &str) -> u64 {
    path.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Writes at each page of the file that begins in `buffer` a number that only belongs there.
pub fn mark(buffer: &mut [u8], tag: u64, offset: u64) {
    for (at, value) in marks(buffer.len(), tag, offset) {
        buffer[at..at + 8].copy_from_slice(&value);
    }
}

/// Fails if a mark is not as it was written.
pub fn check(buffer: &[u8], tag: u64, offset: u64) -> io::Result<()> {
    for (at, value) in marks(buffer.len(), tag, offset) {
        if buffer[at..at + 8] != value {
            return Err(io::Error::other(format!(
                "the bytes at {} are not those written",
                offset + at as u64
            )));
        }
    }
    Ok(())
}

fn marks(len: usize, tag: u64, offset: u64) -> impl Iterator<Item = (usize, [u8; 8])> {
    let first = (offset.next_multiple_of(PAGE as u64) - offset) as usize;
    (first..len).step_by(PAGE).filter(move |at| at + 8 <= len).map(move |at| {
        let page = (offset + at as u64) / PAGE as u64;
        (at, (tag ^ page.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes())
    })
}

/// The next number of SplitMix64 (Steele, Lea, Flood, 2014).
pub fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Brings items into a random order (Fisher and Yates) that the seed decides.
pub fn shuffle(items: &mut [u64], seed: u64) {
    let mut state = seed;
    for i in (1..items.len()).rev() {
        items.swap(i, (next_random(&mut state) % (i as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_find_every_misplaced_page() {
        let mut whole = vec![0u8; 3 * PAGE + 100];
        mark(&mut whole, 7, 0);
        check(&whole, 7, 0).unwrap();
        check(&whole[100..], 7, 100).unwrap();
        assert!(check(&whole, 8, 0).is_err());
        assert!(check(&whole[PAGE..], 7, 0).is_err());
        whole[2 * PAGE..].fill(0);
        assert!(check(&whole, 7, 0).is_err());
        check(b"short", 7, 0).unwrap();
    }

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u64> = (0..1000).collect();
        shuffle(&mut items, 5);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
