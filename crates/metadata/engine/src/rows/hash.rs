//! Hash of keys in memory. Never on disk, so it may change; keyed by random seeds, so that a user
//! cannot choose names that collide.
//!
//! Folded multiplication: the 128-bit product of two words, its halves combined (wyhash, foldhash).

use std::hash::{BuildHasher, Hasher as _, RandomState};

use kestrel_types::key::{KeyRef, Table};

/// The seeds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hasher(u64, u64);

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

impl Hasher {
    /// Seeds that differ in every process.
    pub fn random() -> Self {
        let random = || RandomState::new().build_hasher().finish();
        Self::with_seeds(random(), random())
    }

    /// Given seeds.
    pub fn with_seeds(a: u64, b: u64) -> Self {
        // A multiplier must not be even or small.
        Self(a | 1 << 63 | 1, b | 1 << 63 | 1)
    }

    /// Hash of `(table, id)`.
    pub fn group(&self, table: Table, id: u64) -> u64 {
        fold(id ^ self.0, self.1.wrapping_add((table as u64) << 32 | table as u64))
    }

    /// Hash of a key.
    pub fn key(&self, key: KeyRef<'_>) -> u64 {
        let mut hash = self.group(key.table, key.id) ^ key.suffix.len() as u64;
        let mut pairs = key.suffix.chunks_exact(16);
        for pair in &mut pairs {
            hash = fold(hash ^ word(&pair[..8]), self.0 ^ word(&pair[8..]));
        }
        let (low, high) = pairs.remainder().split_at(pairs.remainder().len().min(8));
        hash = fold(hash ^ word(low), self.1 ^ word(high));
        fold(hash, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_keys_spread_over_all_bits() {
        let hasher = Hasher::with_seeds(0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321);
        let mut counts = [0u32; 256];
        let mut low = [0u32; 256];
        for number in 0..65_536u64 {
            let name = format!("file-{number:08}");
            let hash = hasher.key(KeyRef::new(Table::Entry, number / 100, name.as_bytes()));
            counts[(hash >> 56) as usize] += 1;
            low[(hash & 255) as usize] += 1;
        }
        for count in counts.iter().chain(&low) {
            assert!((150..370).contains(count), "expected about 256, got {count}");
        }
    }
}
