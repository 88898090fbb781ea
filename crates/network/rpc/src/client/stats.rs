//! What a connection counts.

use std::iter::Sum;
use std::time::Duration;

/// Counters since the connection was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Calls submitted.
    pub calls: u64,
    /// Calls sent, retries not counted: round trips.
    pub sent: u64,
    /// Calls sent again after a reconnect.
    pub retries: u64,
    /// Calls that ended without an answer.
    pub failed: u64,
    /// Times the connection was made again.
    pub reconnects: u64,
    /// Sessions that the node had lost.
    pub reclaims: u64,
    /// Bytes written.
    pub bytes_sent: u64,
    /// Bytes read.
    pub bytes_received: u64,
    /// Messages: what was written at a time, be it several calls.
    pub messages: u64,
    /// Writes.
    pub writes: u64,
    /// Reads that brought something.
    pub reads: u64,
    /// Calls sent and not answered, at present.
    pub in_flight: usize,
    /// Calls that wait to be sent, at present.
    pub waiting: usize,
    /// How long there has been no service; none if there is.
    pub outage: Option<Duration>,
}

impl Sum for RemoteStats {
    /// Of several connections; the outage is the longest.
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            calls: sum.calls + one.calls,
            sent: sum.sent + one.sent,
            retries: sum.retries + one.retries,
            failed: sum.failed + one.failed,
            reconnects: sum.reconnects + one.reconnects,
            reclaims: sum.reclaims + one.reclaims,
            bytes_sent: sum.bytes_sent + one.bytes_sent,
            bytes_received: sum.bytes_received + one.bytes_received,
            messages: sum.messages + one.messages,
            writes: sum.writes + one.writes,
            reads: sum.reads + one.reads,
            in_flight: sum.in_flight + one.in_flight,
            waiting: sum.waiting + one.waiting,
            outage: sum.outage.max(one.outage),
        })
    }
}
