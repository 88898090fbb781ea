//! What goes wrong.

use kestrel_types::clock::SECOND;

use super::World;
use super::event::Event;
use crate::event_queue::Scene;
use crate::network::{MS, Way};

impl World {
    /// Something goes wrong.
    pub(super) fn trouble(&mut self) {
        if !self.troubled {
            return;
        }
        let client_index = self.prng.below(self.clients.len() as u64) as usize;
        match self.prng.below(20) {
            0..=4 => self.crash(),
            5..=8 => self.drop_connection(client_index),
            9..=11 => self.cut(client_index),
            12 => self.stop_client(client_index),
            13 => self.stop_host(),
            14 => self.kill_client(client_index),
            15 => self.jump_clock(),
            // Two things at once.
            16 => {
                self.cut(client_index);
                self.crash();
            }
            17 => {
                self.drop_connection(client_index);
                self.stop_client(client_index);
            }
            _ => {}
        }
        let after = self.prng.pause();
        self.plan_in(after, Event::Fault);
    }

    fn crash(&mut self) {
        if !self.host.is_up() {
            return;
        }
        let keep = self.prng.crash();
        self.stats.crashes += 1;
        self.say(|| match keep {
            None => "node: crashes".into(),
            Some(keep) => {
                format!("node: crashes, the power is gone, {keep} % of what was not synced stays")
            }
        });
        self.host.kill(keep);
        self.start += 1;
        self.sync_planned = false;
        self.host_stopped_until = 0;
        let wires: Vec<u64> = self
            .network
            .wires
            .iter()
            .filter(|(_, wire)| wire.host_open)
            .map(|(number, _)| *number)
            .collect();
        for wire in wires {
            if let Some(state) = self.network.wires.get_mut(&wire) {
                state.host_open = false;
            }
            // A process that dies closes its connections; a machine that dies does not.
            if self.prng.chance(70) {
                let at = self.network.arrival(wire, Way::Down, self.queue.now, &mut self.prng);
                self.plan_at(at, Event::ClientLoses(wire));
            }
        }
        let after = self.prng.downtime();
        self.plan_in(after, Event::Start);
    }

    fn drop_connection(&mut self, client_index: usize) {
        let Some(wire) = self.clients[client_index].connection else { return };
        if self.prng.chance(50) {
            self.disconnect(client_index);
        } else {
            self.say(|| format!("node: connection {wire} breaks"));
            self.plan_in(0, Event::HostLoses(wire));
            let at = self.network.arrival(wire, Way::Down, self.queue.now, &mut self.prng);
            self.plan_at(at, Event::ClientLoses(wire));
        }
    }

    fn cut(&mut self, client_index: usize) {
        let until = self.queue.now + self.prng.span();
        let ways = match self.prng.below(3) {
            0 => vec![Way::Up],
            1 => vec![Way::Down],
            _ => vec![Way::Up, Way::Down],
        };
        self.say(|| {
            format!("network: {ways:?} of client {client_index} cut until {} ms", until / MS)
        });
        for way in ways {
            self.network.cut(client_index, way, until);
        }
    }

    fn stop_client(&mut self, client_index: usize) {
        let until = self.queue.now + self.prng.span();
        self.say(|| format!("client {client_index}: stops until {} ms", until / MS));
        self.clients[client_index].stopped_until = until;
    }

    fn stop_host(&mut self) {
        self.host_stopped_until = self.queue.now + self.prng.span();
        self.say(|| format!("node: stops until {} ms", self.host_stopped_until / MS));
    }

    /// A client's process is gone; another takes its place.
    pub(super) fn kill_client(&mut self, client_index: usize) {
        self.say(|| format!("client {client_index}: dies"));
        if let Some(wire) = self.clients[client_index].connection.take() {
            let late = if self.prng.chance(50) { self.prng.between(0, 5 * SECOND) } else { 0 };
            let at = self.network.arrival(wire, Way::Up, self.queue.now, &mut self.prng);
            self.plan_at(at + late, Event::HostLoses(wire));
        }
        let mut client = self.new_client();
        // It may have had a look around before.
        client.seen_inodes.clone_from(&self.clients[client_index].seen_inodes);
        self.clients[client_index] = client;
        let after = self.prng.between(MS, SECOND);
        self.plan_in(after, Event::Connect(client_index));
    }

    fn jump_clock(&mut self) {
        let by = self.prng.between(-20, 20) * SECOND;
        self.say(|| format!("node: the wall clock jumps by {} s", by / SECOND));
        self.clock_set_back += u64::from(by < 0);
        self.queue.clock.advance(by);
    }

    /// The faults are over: everything runs and is connected.
    pub(super) fn mend(&mut self) {
        self.say(|| "the faults are over".into());
        self.troubled = false;
        self.network.mend();
        self.host_stopped_until = 0;
        for client in &mut self.clients {
            client.stopped_until = 0;
        }
        self.start_host();
    }
}
