//! How many lines may be written about what any client can cause: so many for each address and so
//! many in all, in a window of time.

use kestrel_types::clock::Nanos;
use rustc_hash::FxHashMap;

/// See the module's header. Also if the clock goes back, a window has its lines once.
#[derive(Debug)]
pub struct Quota {
    window: Nanos,
    in_all: u32,
    each: u32,
    /// The present window, and what it has had.
    number: Nanos,
    lines: u32,
    by_address: FxHashMap<Box<str>, u32>,
    /// How many got no line since [`Quota::take_left_out`].
    left_out: u64,
}

impl Quota {
    /// At most `in_all` lines in each `window`, and at most `each` of them about one address.
    pub fn new(window: Nanos, in_all: u32, each: u32) -> Self {
        Self {
            window,
            in_all,
            each,
            number: 0,
            lines: 0,
            by_address: FxHashMap::default(),
            left_out: 0,
        }
    }

    /// Whether something about `peer`, an address with or without its port, gets a line.
    pub fn allows(&mut self, now: Nanos, peer: &str) -> bool {
        self.turn(now);
        let address = host(peer);
        let of_address = self.by_address.get(address).copied().unwrap_or_default();
        if self.lines >= self.in_all || of_address >= self.each {
            self.left_out += 1;
            return false;
        }
        self.lines += 1;
        // No more addresses than lines.
        self.by_address.insert(address.into(), of_address + 1);
        true
    }

    /// How many got no line since the last call.
    pub fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    /// How many got no line in windows before the present one, once.
    pub fn take_left_out_before(&mut self, now: Nanos) -> u64 {
        if now.div_euclid(self.window) == self.number { 0 } else { self.take_left_out() }
    }

    fn turn(&mut self, now: Nanos) {
        let number = now.div_euclid(self.window);
        if number != self.number {
            (self.number, self.lines) = (number, 0);
            self.by_address.clear();
        }
    }
}

/// An address without its port.
fn host(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address has its share, all together have theirs, and a new window has both again.
    #[test]
    fn lines_are_bounded_by_address_and_in_all() {
        let mut quota = Quota::new(10, 5, 2);
        let mut lines = |now, hosts: &[&str]| {
            let admitted = hosts.iter().filter(|host| quota.allows(now, &format!("{host}:7")));
            (admitted.count(), quota.take_left_out())
        };
        assert_eq!(lines(0, &["a", "a", "a", "a", "b"]), (3, 2));
        assert_eq!(lines(9, &["c", "c", "d", "e", "[::1]"]), (2, 3));
        assert_eq!(lines(10, &["a", "a", "a", "[::1]", "[::1]", "[::1]"]), (4, 2));
        // A clock that goes back.
        assert_eq!(lines(-25, &["a", "a", "a"]), (2, 1));
    }

    /// The count of lines left out is reported when their window is over.
    #[test]
    fn left_out_lines_of_past_windows() {
        let mut quota = Quota::new(10, 1, 1);
        assert!(quota.allows(3, "a:1") && !quota.allows(4, "a:2") && !quota.allows(5, "b:1"));
        assert_eq!(quota.take_left_out_before(9), 0);
        assert_eq!((quota.take_left_out_before(10), quota.take_left_out_before(30)), (2, 0));
    }
}
