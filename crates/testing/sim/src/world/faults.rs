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
        let place = self.dice.below(self.clients.len() as u64) as usize;
        match self.dice.below(20) {
            0..=4 => self.crash(),
            5..=8 => self.drop_connection(place),
            9..=11 => self.cut(place),
            12 => self.stop_client(place),
            13 => self.stop_host(),
            14 => self.kill_client(place),
            15 => self.jump_clock(),
            // Two things at once.
            16 => {
                self.cut(place);
                self.crash();
            }
            17 => {
                self.drop_connection(place);
                self.stop_client(place);
            }
            _ => {}
        }
        let after = self.dice.pause();
        self.plan_in(after, Event::Fault);
    }

    fn crash(&mut self) {
        if !self.host.is_up() {
            return;
        }
        let keep = self.dice.crash();
        self.tally.crashes += 1;
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
            // A process that dies says so; a machine that dies does not.
            if self.dice.chance(70) {
                let at = self.network.arrival(wire, Way::Down, self.agenda.now, &mut self.dice);
                self.plan_at(at, Event::ClientLoses(wire));
            }
        }
        let after = self.dice.downtime();
        self.plan_in(after, Event::Start);
    }

    fn drop_connection(&mut self, place: usize) {
        let Some(wire) = self.clients[place].connection else { return };
        if self.dice.chance(50) {
            self.disconnect(place);
        } else {
            self.say(|| format!("node: connection {wire} breaks"));
            self.plan_in(0, Event::HostLoses(wire));
            let at = self.network.arrival(wire, Way::Down, self.agenda.now, &mut self.dice);
            self.plan_at(at, Event::ClientLoses(wire));
        }
    }

    fn cut(&mut self, place: usize) {
        let until = self.agenda.now + self.dice.span();
        let ways = match self.dice.below(3) {
            0 => vec![Way::Up],
            1 => vec![Way::Down],
            _ => vec![Way::Up, Way::Down],
        };
        self.say(|| format!("network: {ways:?} of client {place} cut until {} ms", until / MS));
        for way in ways {
            self.network.cut(place, way, until);
        }
    }

    fn stop_client(&mut self, place: usize) {
        let until = self.agenda.now + self.dice.span();
        self.say(|| format!("client {place}: stops until {} ms", until / MS));
        self.clients[place].stopped_until = until;
    }

    fn stop_host(&mut self) {
        self.host_stopped_until = self.agenda.now + self.dice.span();
        self.say(|| format!("node: stops until {} ms", self.host_stopped_until / MS));
    }

    /// A client's process is gone; another takes its place.
    pub(super) fn kill_client(&mut self, place: usize) {
        self.say(|| format!("client {place}: dies"));
        if let Some(wire) = self.clients[place].connection.take() {
            let late = if self.dice.chance(50) { self.dice.between(0, 5 * SECOND) } else { 0 };
            let at = self.network.arrival(wire, Way::Up, self.agenda.now, &mut self.dice);
            self.plan_at(at + late, Event::HostLoses(wire));
        }
        let mut client = self.new_client();
        // It may have had a look around before.
        client.known.clone_from(&self.clients[place].known);
        self.clients[place] = client;
        let after = self.dice.between(MS, SECOND);
        self.plan_in(after, Event::Connect(place));
    }

    fn jump_clock(&mut self) {
        let by = self.dice.between(-20, 20) * SECOND;
        self.say(|| format!("node: the wall clock jumps by {} s", by / SECOND));
        self.clock_set_back += u64::from(by < 0);
        self.agenda.clock.advance(by);
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
