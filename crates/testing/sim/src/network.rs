//! The network between clients and the node: connections with bytes that arrive in order, late, or
//! never.
//!
//! As TCP: within a direction of a connection bytes keep their order; between connections nothing
//! does. A cut of a direction delays bytes until it is repaired. When one side gives a connection
//! up, what is under way in either direction may still arrive at the other, which learns of the end
//! later.

use std::collections::BTreeMap;

use kestrel_types::clock::Nanos;

use crate::prng::Prng;

/// A millisecond.
pub const MS: Nanos = 1_000_000;

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the node.
    Up,
    /// Back.
    Down,
}

/// A connection.
#[derive(Debug)]
pub struct Wire {
    /// The client's place.
    pub client: usize,
    /// When the last bytes of each direction arrive.
    last: [Nanos; 2],
    /// The client's side has not given it up.
    pub client_open: bool,
    /// The node's side has not given it up.
    pub host_open: bool,
}

/// How a client's machine is connected.
#[derive(Debug, Clone, Copy, Default)]
struct Cable {
    /// Each direction is cut until then.
    cut_until: [Nanos; 2],
}

/// See the module's header.
#[derive(Debug)]
pub struct Network {
    /// Connections by number.
    pub wires: BTreeMap<u64, Wire>,
    cables: Vec<Cable>,
    last_wire: u64,
    /// Typical delay.
    delay: Nanos,
}

fn index(way: Way) -> usize {
    match way {
        Way::Up => 0,
        Way::Down => 1,
    }
}

impl Network {
    /// A network of so many clients.
    pub fn new(clients: usize, delay: Nanos) -> Self {
        Self {
            wires: BTreeMap::new(),
            cables: vec![Cable::default(); clients],
            last_wire: 0,
            delay,
        }
    }

    /// A connection of a client begins; its number.
    pub fn connect(&mut self, client: usize, now: Nanos) -> u64 {
        self.last_wire += 1;
        let wire = Wire { client, last: [now; 2], client_open: true, host_open: true };
        self.wires.insert(self.last_wire, wire);
        self.last_wire
    }

    /// When bytes that leave now arrive.
    pub fn arrival(&mut self, wire: u64, way: Way, now: Nanos, prng: &mut Prng) -> Nanos {
        let Some(wire) = self.wires.get_mut(&wire) else { return now };
        let slow = if prng.chance(2) { 50 } else { 1 };
        let delay = prng.between(self.delay / 10, self.delay * 2) * slow;
        let from = now.max(self.cables[wire.client].cut_until[index(way)]);
        let last = &mut wire.last[index(way)];
        *last = (*last + 1).max(from + delay);
        *last
    }

    /// Whether a direction of a client is cut.
    pub fn is_cut(&self, client: usize, way: Way, now: Nanos) -> bool {
        self.cables[client].cut_until[index(way)] > now
    }

    /// Cuts a direction. What is under way arrives all the same.
    pub fn cut(&mut self, client: usize, way: Way, until: Nanos) {
        self.cables[client].cut_until[index(way)] = until;
    }

    /// Mends everything.
    pub fn mend(&mut self) {
        self.cables.fill(Cable::default());
    }
}
