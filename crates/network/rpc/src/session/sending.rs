//! What goes out, and when: the window, the bounds, and the order after an outage.

use kestrel_types::clock::Nanos;
use kestrel_types::error::FsError;
use kestrel_types::wire::{self, ToServer};

use super::calls::Sent;
use super::{CallId, IN_FLIGHT_MAX, LOCK_WAITS_MAX, Link, OUTPUT_BYTES_MAX, Stage};

impl<D> Link<D> {
    /// Sends what waits, as far as there is room.
    pub(super) fn pump(&mut self) {
        if !matches!(self.stage, Stage::Up) {
            return;
        }
        while self.output.len() < OUTPUT_BYTES_MAX {
            let Some(&id) = self.queue.front() else { return };
            let Some(pending) = self.calls.get_mut(id) else {
                self.dequeue();
                self.retried();
                continue;
            };
            if pending.sent == Sent::Never {
                let waits = usize::from(pending.waits());
                if self.in_flight[waits] >= [IN_FLIGHT_MAX, LOCK_WAITS_MAX][waits] {
                    return;
                }
                if pending.call.body.is_numbered() {
                    let Some(seq) = self.numbers.next() else { return };
                    pending.call.seq = seq;
                }
                self.in_flight[waits] += 1;
                self.stats.sent += 1;
            } else {
                pending.call.retry = true;
                self.stats.retries += 1;
            }
            self.dequeue();
            self.send(id);
            self.retried();
        }
    }

    fn dequeue(&mut self) {
        self.queue.pop_front();
        self.retrying = self.retrying.saturating_sub(1);
    }

    /// Sends what had to wait until everything was sent again.
    pub(super) fn retried(&mut self) {
        if self.retrying > 0 {
            return;
        }
        if std::mem::take(&mut self.announce) {
            // Later than the last message of the node.
            self.ping(self.last_received);
        }
        for id in std::mem::take(&mut self.cancels) {
            self.say(&ToServer::Cancel { id: id.0 });
        }
    }

    pub(super) fn say_cancel(&mut self, id: CallId) {
        if self.retrying > 0 {
            self.cancels.push(id);
        } else {
            self.say(&ToServer::Cancel { id: id.0 });
        }
    }

    /// Encodes a call for the present connection.
    pub(super) fn send(&mut self, id: CallId) {
        let Some(pending) = self.calls.get_mut(id) else { return };
        pending.sent = Sent::Now;
        pending.call.acked = self.numbers.acked();
        let cancelled = pending.cancelled;
        match wire::encode_call(&pending.call, self.security.checksum(), &mut self.output) {
            Ok(()) if cancelled => self.say_cancel(id),
            Ok(()) => {}
            Err(too_large) => {
                self.end(id, Err(FsError::because(libc::EMSGSIZE, too_large.to_string())))
            }
        }
    }

    /// Sends a Ping, the client's sign of life; `now` is not later than that.
    pub(super) fn ping(&mut self, now: Nanos) {
        self.pings.push_back(now);
        self.say(&ToServer::Ping { oldest_open_object: self.oldest_open_object });
    }

    /// Encodes a message that is no call. These are small and within their limits, so there is
    /// nothing to fail.
    pub(super) fn say(&mut self, message: &ToServer) {
        let encoded = wire::encode_to_server(message, self.security.checksum(), &mut self.output);
        debug_assert!(encoded.is_ok(), "{encoded:?}");
    }
}
