//! What engines have in common that keep their rows in a store elsewhere, which a URL names.

use std::time::Duration;

use kestrel_types::key::SUFFIX_MAX;

use super::{BATCH_MUTATIONS_MAX, Mutation};

/// How long to wait for a store that does not answer, unless its URL has another time.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(60);

/// Longest that a URL may say.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Bytes that a mutation takes in a queue beside its suffix and value.
const MUTATION_OVERHEAD: usize = 64;

/// The deadline in a URL, 1 s to 24 h: `90s`, `5m`, `1h`, or seconds.
pub fn deadline(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(['s', 'm', 'h']);
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let duration = Duration::from_secs(digits.parse::<u32>().ok()?.checked_mul(unit)?.into());
    (Duration::from_secs(1)..=DEADLINE_MAX).contains(&duration).then_some(duration)
}

/// Bytes that a batch takes while it is queued.
pub fn queued_bytes(mutations: &[Mutation]) -> usize {
    let each = |mutation: &Mutation| {
        let value = mutation.value.as_ref().map_or(0, |value| value.len());
        mutation.key.suffix.len() + value + MUTATION_OVERHEAD
    };
    mutations.iter().map(each).sum()
}

/// Whether a batch, its keys and its values, of up to `value_max` bytes each, keep to their limits.
pub fn is_within_limits(mutations: &[Mutation], value_max: usize) -> bool {
    let fits = |mutation: &Mutation| {
        mutation.key.suffix.len() <= SUFFIX_MAX
            && mutation.value.as_ref().is_none_or(|value| value.len() <= value_max)
    };
    mutations.len() <= BATCH_MUTATIONS_MAX && mutations.iter().all(fits)
}
