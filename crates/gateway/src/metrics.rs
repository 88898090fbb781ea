//! What the gateway counts, for Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Upper bounds of the buckets of durations, seconds.
const BOUNDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 10.0, 60.0];

/// Most names of operations: S3 has fewer.
const OPERATIONS_MAX: usize = 128;

/// Counters since the start.
#[derive(Debug, Default)]
pub struct GatewayMetrics {
    /// Connections that are open.
    pub connections: AtomicU64,
    /// Connections that were taken.
    pub connections_total: AtomicU64,
    /// Connections that were refused because there were too many.
    pub connections_refused: AtomicU64,
    /// Requests that are being answered.
    pub requests: AtomicU64,
    /// Bytes of bodies of requests.
    pub received_bytes: AtomicU64,
    /// Bytes of bodies of answers.
    pub sent_bytes: AtomicU64,
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
    operations: Mutex<BTreeMap<String, u64>>,
    durations: [AtomicU64; BOUNDS.len()],
    duration_count: AtomicU64,
    duration_micros: AtomicU64,
}

impl GatewayMetrics {
    /// A request with this method was answered so after this time.
    pub fn answered(&self, method: &http::Method, status: u16, after: Duration) {
        let method = match *method {
            http::Method::GET => "GET",
            http::Method::HEAD => "HEAD",
            http::Method::PUT => "PUT",
            http::Method::POST => "POST",
            http::Method::DELETE => "DELETE",
            _ => "other",
        };
        *self.answers.lock().entry((method, status)).or_default() += 1;
        let seconds = after.as_secs_f64();
        for (bound, count) in BOUNDS.iter().zip(&self.durations) {
            if seconds <= *bound {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.duration_count.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.duration_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// An operation of S3 was asked for, with a good signature.
    pub fn operation(&self, name: &str) {
        let mut operations = self.operations.lock();
        if let Some(count) = operations.get_mut(name) {
            *count += 1;
        } else if operations.len() < OPERATIONS_MAX {
            operations.insert(name.into(), 1);
        }
    }

    /// The page for Prometheus.
    pub fn page(&self) -> String {
        let mut out = String::new();
        let mut one = |name: &str, kind: &str, help: &str, value: &AtomicU64| {
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "# HELP kestrel_gateway_{name} {help}\n# TYPE kestrel_gateway_{name} {kind}\n\
                 kestrel_gateway_{name} {}",
                value.load(Ordering::Relaxed)
            );
        };
        one("connections", "gauge", "Connections that are open.", &self.connections);
        one("connections_total", "counter", "Connections taken.", &self.connections_total);
        one(
            "connections_refused_total",
            "counter",
            "Connections answered with SlowDown because there were too many.",
            &self.connections_refused,
        );
        one("requests", "gauge", "Requests that are being answered.", &self.requests);
        let received = "Bytes of bodies of requests.";
        one("received_bytes_total", "counter", received, &self.received_bytes);
        one("sent_bytes_total", "counter", "Bytes of bodies of answers.", &self.sent_bytes);
        let name = "kestrel_gateway_requests_total";
        let _ = writeln!(out, "# HELP {name} Requests answered, by method and status.");
        let _ = writeln!(out, "# TYPE {name} counter");
        for ((method, status), count) in &*self.answers.lock() {
            let _ = writeln!(out, "{name}{{method=\"{method}\",status=\"{status}\"}} {count}");
        }
        let name = "kestrel_gateway_operations_total";
        let _ = writeln!(out, "# HELP {name} Requests with a good signature, by operation.");
        let _ = writeln!(out, "# TYPE {name} counter");
        for (operation, count) in &*self.operations.lock() {
            let _ = writeln!(out, "{name}{{operation=\"{operation}\"}} {count}");
        }
        self.histogram(&mut out);
        out
    }

    fn histogram(&self, out: &mut String) {
        let name = "kestrel_gateway_request_seconds";
        let _ = writeln!(out, "# HELP {name} Time from a request's head to its answer's head.");
        let _ = writeln!(out, "# TYPE {name} histogram");
        for (bound, count) in BOUNDS.iter().zip(&self.durations) {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let count = self.duration_count.load(Ordering::Relaxed);
        let seconds = self.duration_micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{name}_sum {seconds}\n{name}_count {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has what was counted.
    #[test]
    fn page_of_counters() {
        let metrics = GatewayMetrics::default();
        metrics.answered(&http::Method::GET, 200, Duration::from_millis(3));
        metrics.answered(&http::Method::GET, 200, Duration::from_secs(3));
        metrics.operation("GetObject");
        let page = metrics.page();
        for line in [
            "kestrel_gateway_requests_total{method=\"GET\",status=\"200\"} 2",
            "kestrel_gateway_operations_total{operation=\"GetObject\"} 1",
            "kestrel_gateway_request_seconds_bucket{le=\"0.005\"} 1",
            "kestrel_gateway_request_seconds_bucket{le=\"+Inf\"} 2",
            "# TYPE kestrel_gateway_connections gauge",
        ] {
            assert!(page.lines().any(|of_page| of_page == line), "{line} in {page}");
        }
    }
}
