//! The figures of a mount or server as people read them: one screen, or all.

use std::fmt::Write as _;

use kestrel_daemon::metrics::percentile_ns;
use kestrel_daemon::units::{bytes, count};
use serde_json::Value;

use super::{cluster, difference, grown};

/// Kinds of operations on the screen, the most frequent ones.
const KINDS_MAX: usize = 8;

/// Two moments, and the seconds between them.
struct Span<'a> {
    now: &'a Value,
    before: &'a Value,
    seconds: f64,
}

impl Span<'_> {
    fn grown(&self, name: &str) -> u64 {
        grown(self.now, self.before, name)
    }

    fn per_second(&self, name: &str) -> f64 {
        self.grown(name) as f64 / self.seconds
    }

    fn rate(&self, name: &str) -> String {
        format!("{}/s", bytes(self.per_second(name) as u64))
    }

    /// What is there now, such as memory.
    fn now(&self, name: &str) -> u64 {
        self.now[name].as_u64().unwrap_or(0)
    }

    /// `part` in per cent of the sum of `whole`.
    fn share(&self, part: &str, whole: &[&str]) -> String {
        let all: u64 = whole.iter().map(|name| self.grown(name)).sum();
        match all {
            0 => "-".into(),
            all => format!("{:.0} %", 100.0 * self.grown(part) as f64 / all as f64),
        }
    }
}

/// What happened between two moments `seconds` apart: on one screen, or `all` of it.
pub fn screen(now: &Value, before: &Value, seconds: f64, all: bool) -> String {
    let span = Span { now, before, seconds };
    let mut out = String::new();
    operations(&span, all, &mut out);
    let _ = writeln!(
        out,
        "{:<16} {:>10.0}   read {}, written {}, cold reads {:.0}/s",
        "all",
        span.per_second("metadata_requests_total"),
        span.rate("read_bytes_total"),
        span.rate("written_bytes_total"),
        span.per_second("cold_reads_total")
    );
    if all {
        batches(&span, &mut out);
    }
    data(&span, &mut out);
    way(&span, &mut out);
    let _ = writeln!(
        out,
        "memory: metadata {}, unstored data {}; open files {}; bad reads {}",
        bytes(span.now("engine_memory_bytes")),
        bytes(span.now("dirty_bytes")),
        count(span.now("metadata_open_files")),
        count(span.now("bad_reads_total"))
    );
    cluster::add_nodes(now, before, seconds, &mut out);
    if all {
        counters(&span, &mut out);
    }
    out
}

/// A line for each kind of operation, the most frequent first.
fn operations(span: &Span<'_>, all: bool, out: &mut String) {
    let _ = writeln!(
        out,
        "{:<16} {:>10} {:>10} {:>10} {:>10} {:>8}",
        "operation", "per s", "p50 µs", "p99 µs", "mean µs", "errors"
    );
    let before = span.before["metadata_requests"].as_array();
    let kinds = span.now["metadata_requests"].as_array().into_iter().flatten();
    let mut kinds: Vec<(u64, &Value, &Value)> = kinds
        .map(|kind| {
            let same = |other: &&Value| other["kind"] == kind["kind"];
            let earlier = before.and_then(|kinds| kinds.iter().find(same)).unwrap_or(&Value::Null);
            (grown(kind, earlier, "requests"), kind, earlier)
        })
        .filter(|(requests, ..)| *requests > 0)
        .collect();
    kinds.sort_by_key(|(requests, ..)| std::cmp::Reverse(*requests));
    let shown = if all { kinds.len() } else { kinds.len().min(KINDS_MAX) };
    for (requests, kind, earlier) in &kinds[..shown] {
        let latency = difference(&kind["latency_log2_ns"], &earlier["latency_log2_ns"]);
        let us = |part: f64| percentile_ns(&latency, part) as f64 / 1000.0;
        let _ = writeln!(
            out,
            "{:<16} {:>10.0} {:>10.1} {:>10.1} {:>10.1} {:>8}",
            kind["kind"].as_str().unwrap_or("?"),
            *requests as f64 / span.seconds,
            us(0.5),
            us(0.99),
            grown(kind, earlier, "nanoseconds") as f64 / 1000.0 / *requests as f64,
            grown(kind, earlier, "errors")
        );
    }
    let rest: u64 = kinds[shown..].iter().map(|(requests, ..)| requests).sum();
    if rest > 0 {
        let number = kinds.len() - shown;
        let name = if number == 1 { "1 other".into() } else { format!("{number} others") };
        let _ = writeln!(out, "{name:<16} {:>10.0}   --all lists them", rest as f64 / span.seconds);
    }
}

/// Batches of the metadata node, and its log.
fn batches(span: &Span<'_>, out: &mut String) {
    let histogram = "metadata_batches_log2";
    let batches = difference(&span.now[histogram], &span.before[histogram]);
    let total: u64 = batches.iter().sum();
    let requests = span.grown("metadata_requests_total");
    let mean = if total > 0 { requests as f64 / total as f64 } else { 0.0 };
    let _ = writeln!(
        out,
        "batches {:.0}/s of {mean:.1}; log {:.0} syncs/s, {}; engine {:.0} rows/s",
        total as f64 / span.seconds,
        span.per_second("engine_log_syncs_total"),
        span.rate("engine_log_bytes_total"),
        span.per_second("engine_mutations_total")
    );
}

/// What went to and came from the object store and the caches before it, if there is one.
fn data(span: &Span<'_>, out: &mut String) {
    let kinds = ["get", "put", "head"];
    if kinds.iter().all(|kind| span.now(&format!("store_{kind}_requests_total")) == 0) {
        return;
    }
    let _ = writeln!(
        out,
        "store: {:.0} PUT/s {}, {:.0} GET/s {}; {} retries, {} errors, {} throttled",
        span.per_second("store_put_requests_total"),
        span.rate("store_put_bytes_total"),
        span.per_second("store_get_requests_total"),
        span.rate("store_get_bytes_total"),
        count(span.grown("store_retries_total")),
        count(span.grown("store_errors_total")),
        count(span.grown("store_throttled_total"))
    );
    let disk = ["cache_disk_hit_bytes_total", "cache_disk_miss_bytes_total"];
    let _ = writeln!(
        out,
        "hits: memory {} of bytes ({} held), disk cache {} of bytes ({} held); {:.0} files a PUT",
        span.share("cache_memory_hit_bytes_total", &["stored_read_bytes_total"]),
        bytes(span.now("cache_memory_bytes")),
        span.share("cache_disk_hit_bytes_total", &disk),
        bytes(span.now("cache_disk_bytes")),
        span.grown("pack_members_total") as f64 / span.grown("pack_rounds_total").max(1) as f64
    );
}

/// What the way to a metadata server cost, if there is one (times of operations include it), and of
/// a server its clients.
fn way(span: &Span<'_>, out: &mut String) {
    if span.now("metadata_sent_bytes_total") > 0 {
        let _ = writeln!(
            out,
            "server: sent {}, received {}, {} in flight; {} calls sent again, {} reconnects, {} \
             given up",
            span.rate("metadata_sent_bytes_total"),
            span.rate("metadata_received_bytes_total"),
            span.now["metadata_in_flight"],
            count(span.grown("metadata_retries_total")),
            count(span.grown("metadata_reconnects_total")),
            count(span.grown("metadata_unanswered_total"))
        );
    }
    if span.now("server_accepted_total") > 0 {
        let _ = writeln!(
            out,
            "clients: {} of {} connected; received {}, sent {}; {} calls sent again, {} sessions \
             expired",
            span.now["server_connected"],
            span.now["server_sessions"],
            span.rate("server_received_bytes_total"),
            span.rate("server_sent_bytes_total"),
            count(span.grown("server_retries_total")),
            count(span.grown("server_sessions_expired_total"))
        );
    }
}

/// Every counter that is not zero: what a `_total` has grown by, and what the others are now.
fn counters(span: &Span<'_>, out: &mut String) {
    let names = span.now.as_object().into_iter().flat_map(|all| all.keys());
    let values = names.filter(|name| span.now[name.as_str()].is_u64()).map(|name| {
        (name, if name.ends_with("_total") { span.grown(name) } else { span.now(name) })
    });
    let mut values: Vec<_> = values.filter(|(_, value)| *value > 0).collect();
    values.sort_unstable();
    let width = values.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let _ = writeln!(out, "\n{:<width$} {:>20}", "counter", "value");
    for (name, value) in values {
        let _ = writeln!(out, "{name:<width$} {:>20}", count(value));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stats(requests: u64, kinds: u64) -> Value {
        let kinds: Vec<Value> = (0..kinds)
            .map(|kind| {
                let requests = requests * (kind + 1);
                json!({ "kind": format!("kind{kind}"), "requests": requests, "errors": 0,
                        "nanoseconds": 5000 * requests, "latency_log2_ns": [0, requests] })
            })
            .collect();
        json!({ "metadata_requests": kinds, "metadata_requests_total": requests,
            "metadata_open_files": 3,
                "metadata_batches_log2": [requests], "dirty_bytes": 4096 })
    }

    /// The screen has the most frequent operations first, and counts the others.
    #[test]
    fn most_frequent_operations_first() {
        let out = screen(&stats(10, 11), &stats(4, 11), 2.0, false);
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[1].starts_with("kind10 ") && lines[1].contains(" 33 "), "{out}");
        assert!(lines[8].starts_with("kind3 "), "{out}");
        assert!(lines[9].starts_with("3 others ") && lines[9].contains(" 18 "), "{out}");
        assert!(lines[10].starts_with("all "), "{out}");
        assert!(lines.len() <= 24 && !out.contains("batches"), "{out}");
        assert!(out.contains("unstored data 4 KiB; open files 3"), "{out}");
    }

    /// --all has every operation and every counter that is not zero.
    #[test]
    fn all_operations_and_counters() {
        let out = screen(&stats(10, 11), &stats(4, 11), 1.0, true);
        assert!(out.contains("\nkind0 ") && out.contains("\nbatches 6/s of 1.0"), "{out}");
        let ends = |name: &str, value: &str| {
            out.lines().any(|line| line.starts_with(name) && line.ends_with(&format!(" {value}")))
        };
        assert!(ends("metadata_requests_total", "6") && ends("dirty_bytes", "4,096"), "{out}");
    }

    /// A figure that is not there, as of a process of another version, counts as zero.
    #[test]
    fn figures_that_are_missing() {
        let out = screen(&json!({}), &Value::Null, 1.0, true);
        assert!(out.starts_with("operation ") && out.contains("bad reads 0"), "{out}");
    }
}
