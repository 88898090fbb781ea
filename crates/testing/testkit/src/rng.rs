//! A small seeded generator (splitmix64): the same seed gives the same operations on every machine.

/// Seeded random numbers. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

/// One round of splitmix64's output function: a good 64-bit mixer by itself.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let out = mix(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        out
    }

    /// A number below `bound` (0 when `bound` is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of 100 calls.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One element of a slice that is not empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// Fills `out` with bytes that depend on `seed` and the position only. No byte is zero, so that a
/// hole or a lost write can never look like data.
pub fn fill(seed: u64, out: &mut [u8]) {
    fill_at(seed, 0, out);
}

/// As [`fill`], for the bytes from position `offset` on.
pub fn fill_at(seed: u64, offset: u64, out: &mut [u8]) {
    let base = mix(seed ^ 0x6b65_7374_7265_6c21);
    let mut word_index = u64::MAX;
    let mut word = [0u8; 8];
    for (i, byte) in out.iter_mut().enumerate() {
        let at = offset + i as u64;
        if at / 8 != word_index {
            word_index = at / 8;
            word = (mix(base.wrapping_add(word_index)) | 0x0101_0101_0101_0101).to_le_bytes();
        }
        *byte = word[(at % 8) as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        assert_ne!(Rng::new(1).next_u64(), Rng::new(2).next_u64());
    }

    #[test]
    fn fill_depends_on_position_only_and_has_no_zero() {
        let mut whole = vec![0u8; 1000];
        fill(42, &mut whole);
        assert!(whole.iter().all(|&b| b != 0));
        let mut part = vec![0u8; 300];
        fill_at(42, 133, &mut part);
        assert_eq!(part, whole[133..433]);
    }
}
