//! What passed through: requests by kind, faults by name, bytes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::kind::Kind;

#[derive(Clone, Copy, Default)]
struct OfKind {
    requests: u64,
    forwarded: u64,
    failed: u64,
    in_flight: u64,
    in_flight_max: u64,
}

#[derive(Default)]
struct Inner {
    kinds: BTreeMap<Kind, OfKind>,
    faults: BTreeMap<&'static str, u64>,
    bytes_up: u64,
    bytes_down: u64,
}

/// Counts since the start or the last reset.
#[derive(Default)]
pub struct Counts {
    inner: Mutex<Inner>,
}

/// A request that is being worked on; counts as in flight until it is dropped.
pub struct InFlight<'a> {
    counts: &'a Counts,
    kind: Kind,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut inner = self.counts.lock();
        let of_kind = inner.kinds.entry(self.kind).or_default();
        of_kind.in_flight = of_kind.in_flight.saturating_sub(1);
    }
}

impl Counts {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request came, hit by these faults.
    pub fn begin(&self, kind: Kind, faults: &[&'static str]) -> InFlight<'_> {
        let mut inner = self.lock();
        let of_kind = inner.kinds.entry(kind).or_default();
        of_kind.requests += 1;
        of_kind.in_flight += 1;
        of_kind.in_flight_max = of_kind.in_flight_max.max(of_kind.in_flight);
        for fault in faults {
            *inner.faults.entry(fault).or_default() += 1;
        }
        InFlight { counts: self, kind }
    }

    /// The store answered it; with an error if `status` says so.
    pub fn answered(&self, kind: Kind, status: u16) {
        let mut inner = self.lock();
        let of_kind = inner.kinds.entry(kind).or_default();
        of_kind.forwarded += 1;
        of_kind.failed += u64::from(status >= 400);
    }

    /// So many bytes of bodies went to the store and came from it.
    pub fn bytes(&self, up: usize, down: usize) {
        let mut inner = self.lock();
        inner.bytes_up += up as u64;
        inner.bytes_down += down as u64;
    }

    /// Everything as JSON; begins anew if `reset`.
    pub fn json(&self, reset: bool) -> String {
        let mut inner = self.lock();
        let column = |value: fn(&OfKind) -> u64| {
            let of = |kind: &Kind| inner.kinds.get(kind).map_or(0, value);
            let pairs: Vec<_> =
                Kind::ALL.iter().map(|kind| format!("\"{}\":{}", kind.name(), of(kind))).collect();
            format!("{{{}}}", pairs.join(","))
        };
        let faults: Vec<_> =
            inner.faults.iter().map(|(name, count)| format!("\"{name}\":{count}")).collect();
        let text = format!(
            "{{\"requests\":{},\"forwarded\":{},\"store_errors\":{},\"in_flight_max\":{},\
             \"faults\":{{{}}},\"bytes_up\":{},\"bytes_down\":{}}}",
            column(|of| of.requests),
            column(|of| of.forwarded),
            column(|of| of.failed),
            column(|of| of.in_flight_max),
            faults.join(","),
            inner.bytes_up,
            inner.bytes_down,
        );
        if reset {
            // Requests in flight stay so.
            for of_kind in inner.kinds.values_mut() {
                let in_flight = of_kind.in_flight;
                *of_kind = OfKind { in_flight, in_flight_max: in_flight, ..OfKind::default() };
            }
            inner.faults.clear();
            (inner.bytes_up, inner.bytes_down) = (0, 0);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_begins_anew() {
        let counts = Counts::default();
        let first = counts.begin(Kind::Put, &["latency"]);
        drop(counts.begin(Kind::Put, &[]));
        counts.answered(Kind::Put, 503);
        counts.bytes(5, 7);
        let text = counts.json(true);
        for part in [
            "\"requests\":{\"put\":2,",
            "\"in_flight_max\":{\"put\":2,",
            "{\"latency\":1}",
            "\"bytes_down\":7",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(counts.json(false).contains("\"in_flight_max\":{\"put\":1,"));
        drop(first);
    }
}
