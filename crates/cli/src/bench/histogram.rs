//! Latencies in logarithmic buckets: 32 a doubling, so a percentile is at most 3.2 % above the true
//! one. Fixed size, merged by addition.

use serde::{Deserialize, Serialize};

/// Buckets a doubling; a power of two.
const SUB: u64 = 32;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Enough for every `u64`.
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB as usize;

/// Counts of values (nanoseconds) by magnitude.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

/// A histogram on its way between processes: only the buckets that hold something.
#[derive(Debug, Serialize, Deserialize)]
pub struct Packed {
    buckets: Vec<(usize, u64)>,
    sum: f64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, sum: 0, max: 0 }
    }
}

/// Bucket of a value: values below 32 have one each, above that 32 a doubling.
fn bucket(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let doubling = 63 - value.leading_zeros() - SUB_BITS;
    let sub = (value >> doubling) - SUB;
    (u64::from(doubling + 1) * SUB + sub) as usize
}

/// Largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let doubling = bucket / SUB - 1;
    let low = (SUB + bucket % SUB) << doubling;
    low + ((1u64 << doubling) - 1)
}

impl Histogram {
    /// Counts one value.
    pub fn add(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Adds all of another's counts.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Largest value.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Mean, 0 if empty.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// Smallest value that at least `part` (0 to 1) of the values do not exceed, within a bucket's
    /// width.
    pub fn percentile(&self, part: f64) -> u64 {
        let wanted = ((self.count as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(index).min(self.max);
            }
        }
        self.max
    }

    /// For sending.
    pub fn pack(&self) -> Packed {
        let buckets = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(i, count)| (i, *count));
        Packed { buckets: buckets.collect(), sum: self.sum as f64, max: self.max }
    }

    /// What was sent; buckets out of bounds are an error of the sender and ignored.
    pub fn unpack(packed: &Packed) -> Self {
        let mut histogram = Self { sum: packed.sum as u128, max: packed.max, ..Self::default() };
        for (index, count) in &packed.buckets {
            if let Some(slot) = histogram.counts.get_mut(*index) {
                *slot += count;
                histogram.count += count;
            }
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ordered_tight_and_cover_everything() {
        let mut values: Vec<u64> = (0..2000).collect();
        values.extend((0..64).flat_map(|bit| [1u64 << bit, (1u64 << bit) - 1, (1u64 << bit) | 1]));
        values.push(u64::MAX);
        values.sort_unstable();
        for pair in values.windows(2) {
            assert!(bucket(pair[0]) <= bucket(pair[1]), "{pair:?}");
        }
        for value in values {
            let high = upper(bucket(value));
            assert!(
                bucket(value) < BUCKETS && high >= value && high - value <= value / 31,
                "{value} {high}"
            );
        }
    }

    /// Percentiles are exact to a bucket, also after the histogram was packed and unpacked.
    #[test]
    fn percentiles_of_packed_histograms() {
        let mut histogram = Histogram::default();
        for value in 1..=100_000u64 {
            histogram.add(value);
        }
        let packed = serde_json::to_string(&histogram.pack()).unwrap();
        let histogram = Histogram::unpack(&serde_json::from_str(&packed).unwrap());
        assert_eq!(histogram.count, 100_000);
        for (part, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.999, 99_900.0)] {
            let got = histogram.percentile(part) as f64;
            assert!((exact..exact * 1.04).contains(&got), "{part}: {got}");
        }
        assert_eq!(histogram.percentile(1.0), 100_000);
        assert_eq!(Histogram::default().percentile(0.5), 0);
        assert!((histogram.mean() - 50_000.5).abs() < 1.0);
    }
}
