//! Randomness of a run: everything from one seed.

use kestrel_types::clock::{Nanos, SECOND};

use crate::network::MS;

/// SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Debug, Clone)]
pub struct Prng(u64);

impl Prng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x6b65_7374_7265_6c73)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is above 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// A number from `from` to `to`, both included.
    pub fn between(&mut self, from: i64, to: i64) -> i64 {
        from + self.below((to - from + 1).unsigned_abs()).cast_signed()
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.below(of.len() as u64) as usize) }
    }

    /// How long a fault lasts: short, or longer than leases and most patience.
    pub fn span(&mut self) -> Nanos {
        self.up_to(50, SECOND, 9 * SECOND)
    }

    /// How long nothing goes wrong after a fault.
    pub fn pause(&mut self) -> Nanos {
        self.up_to(30, 300 * MS, 4 * SECOND)
    }

    /// How long a process that crashed stays away.
    pub fn downtime(&mut self) -> Nanos {
        self.up_to(20, 8 * SECOND, SECOND)
    }

    /// A time up to `one` in `percent` of 100 cases, up to `other` else.
    fn up_to(&mut self, percent: u64, one: Nanos, other: Nanos) -> Nanos {
        let longest = if self.chance(percent) { one } else { other };
        self.between(MS, longest)
    }

    /// What a crash leaves of what was not synced, percent; none: only the process dies, and all of
    /// it stays.
    pub fn crash(&mut self) -> Option<u64> {
        let power = self.chance(70);
        power.then(|| if self.chance(50) { 0 } else { self.below(101) })
    }

    /// A generator of its own for a part of the run.
    pub fn split(&mut self) -> Self {
        Self(self.bits())
    }
}

/// Spreads 64 bits.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
