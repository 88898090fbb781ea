//! Connections that have not sent Hello: how many there may be, and which of them make room for
//! others.
//!
//! A new connection is always taken. Where an address has more than its share, or all together are
//! too many, one of them is cut off: the oldest of its address if that had time for an honest
//! handshake ([`HANDSHAKE`]), any of its address otherwise. So connections that send nothing, or a
//! byte now and then, delay no handshake of others, and one address takes no room from others.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::channel::Channel;

/// An honest handshake takes no longer, as a rule: a few round trips.
const HANDSHAKE: Duration = Duration::from_secs(1);

/// A connection that has not sent Hello.
struct UnidentifiedConn {
    number: u64,
    channel: Arc<Channel>,
    since: Instant,
}

/// See the module's header.
#[derive(Default)]
pub(super) struct UnidentifiedConns {
    /// By address, the oldest first. None is empty.
    by_address: FxHashMap<IpAddr, VecDeque<UnidentifiedConn>>,
    count: usize,
}

/// The address that counts: a host with an address of IPv6 has a network of 64 bits.
fn counted(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        ip => ip,
    }
}

impl UnidentifiedConns {
    /// Takes a connection in. Where there are more than `share` of its address then, or more than
    /// `max` in all, the answer is one that is to be cut off.
    pub fn enter(
        &mut self,
        (number, address): (u64, SocketAddr),
        channel: &Arc<Channel>,
        (share, max): (usize, usize),
        now: Instant,
    ) -> Option<Arc<Channel>> {
        let address = counted(address);
        let same = self.by_address.entry(address).or_default();
        same.push_back(UnidentifiedConn { number, channel: channel.clone(), since: now });
        self.count += 1;
        let crowded = if same.len() > share {
            address
        } else if self.count > max {
            self.by_address
                .iter()
                .max_by_key(|(_, conns)| conns.len())
                .map(|(address, _)| *address)?
        } else {
            return None;
        };
        self.make_room(crowded, number, now)
    }

    /// Takes out one of an address, but not the newest, `number`.
    fn make_room(&mut self, address: IpAddr, number: u64, now: Instant) -> Option<Arc<Channel>> {
        let conns = self.by_address.get_mut(&address)?;
        let others = conns.iter().filter(|conn| conn.number != number).count();
        let had_time =
            |conn: &UnidentifiedConn| now.saturating_duration_since(conn.since) >= HANDSHAKE;
        let at = if conns.front().is_some_and(had_time) {
            0
        } else {
            // Any: a host that sends many cannot foresee which of them stay. (Fibonacci hashing.)
            (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % others.max(1)
        };
        let number = conns.get(at)?.number;
        self.leave(number, address)
    }

    /// A connection has sent Hello, or has ended.
    pub fn forget(&mut self, number: u64, address: SocketAddr) {
        self.leave(number, counted(address));
    }

    fn leave(&mut self, number: u64, address: IpAddr) -> Option<Arc<Channel>> {
        let conns = self.by_address.get_mut(&address)?;
        let at = conns.iter().position(|conn| conn.number == number)?;
        let conn = conns.remove(at)?;
        if conns.is_empty() {
            self.by_address.remove(&address);
        }
        self.count -= 1;
        Some(conn.channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], port))
    }

    fn channel() -> Arc<Channel> {
        Arc::new(Channel::new("peer".into(), 0))
    }

    /// An address never has more than its share, and takes nothing from another one.
    #[test]
    fn an_address_has_a_share() {
        let (mut conns, now) = (UnidentifiedConns::default(), Instant::now());
        let honest = channel();
        assert!(conns.enter((1, address(1, 1)), &honest, (4, 8), now).is_none());
        let mut cut = 0;
        for number in 2..600 {
            let gone = conns.enter((number, address(2, number as u16)), &channel(), (4, 8), now);
            cut += usize::from(gone.is_some_and(|gone| !Arc::ptr_eq(&gone, &honest)));
        }
        assert_eq!((cut, conns.count, conns.by_address.len()), (594, 5, 2));
        conns.forget(1, address(1, 1));
        conns.forget(1, address(1, 1));
        assert_eq!((conns.count, conns.by_address.len()), (4, 1));
    }

    /// Above the bound of all addresses it is the most crowded one that makes room.
    #[test]
    fn the_most_crowded_address_makes_room() {
        let (mut conns, now) = (UnidentifiedConns::default(), Instant::now());
        let crowd: Vec<_> = (0..4).map(|_| channel()).collect();
        for (number, one) in (0..).zip(&crowd) {
            assert!(conns.enter((number, address(1, 1)), one, (4, 8), now).is_none());
        }
        for host in 2..6 {
            let number = u64::from(host) * 10;
            assert!(conns.enter((number, address(host, 1)), &channel(), (4, 8), now).is_none());
        }
        let gone =
            conns.enter((99, address(9, 1)), &channel(), (4, 8), now).expect("one is cut off");
        assert!(crowd.iter().any(|one| Arc::ptr_eq(one, &gone)));
        assert_eq!(conns.count, 8);
    }

    /// Those that had time for their handshake go first, in order; the newest never goes.
    #[test]
    fn the_oldest_goes_when_it_had_time() {
        let (mut conns, begun) = (UnidentifiedConns::default(), Instant::now());
        let old: Vec<_> = (0..3).map(|_| channel()).collect();
        for (number, one) in (0..).zip(&old) {
            conns.enter((number, address(1, 1)), one, (3, 8), begun);
        }
        for (number, one) in (3..).zip(&old) {
            let gone = conns.enter((number, address(1, 1)), &channel(), (3, 8), begun + HANDSHAKE);
            assert!(gone.is_some_and(|gone| Arc::ptr_eq(&gone, one)));
        }
        for number in 10..200 {
            let newest = channel();
            let gone = conns.enter((number, address(1, 1)), &newest, (3, 8), begun + HANDSHAKE);
            assert!(gone.is_some_and(|gone| !Arc::ptr_eq(&gone, &newest)));
        }
    }

    /// One customer's network of IPv6 is one address; an IPv4 address is the same in both forms.
    #[test]
    fn addresses_of_a_network_count_as_one() {
        let of = |text: &str| counted(SocketAddr::new(text.parse().expect("an address"), 1));
        assert_eq!(of("2001:db8:0:1::5"), of("2001:db8:0:1:ffff::1"));
        assert_ne!(of("2001:db8:0:1::5"), of("2001:db8:0:2::5"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
