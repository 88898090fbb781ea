//! One run: clients, a network and a node on one virtual clock, and the faults that befall them.
//!
//! | file | |
//! | --- | --- |
//! | `clients` | what clients do: connect, ask, hear, and lose their connections |
//! | `event` | the kinds of events |
//! | `locks` | locks as clients believe to hold them: no two may exclude each other |
//! | `tokens` | clients with tokens that end or are revoked |
//! | `faults` | the faults of a run |
//! | `finish` | the end of a run: everything comes to rest, and the volume is sound |
//!
//! Everything happens in events, one at a time, in the order of their times; equal times in the
//! order in which the events were planned. So a seed determines a run completely.

mod clients;
mod event;
mod faults;
mod finish;
mod locks;
mod tokens;

use kestrel_types::clock::{Clock, Nanos, SECOND};

use crate::client::Client;
use crate::event_queue::{EventQueue, Scene};
use crate::history::History;
use crate::host::{Host, Out};
use crate::network::{MS, Network, Way};
use crate::prng::Prng;
use event::Event;

/// How long a client waits for an answer: less than many faults last, or more than nearly all.
const DEADLINES: [Nanos; 2] = [2 * SECOND, 20 * SECOND];

/// How long clients ask at most, in virtual time.
const TIME_MAX: Nanos = 200 * SECOND;

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub String);

/// What a run may be.
#[derive(Debug, Clone, Copy)]
pub struct RunPlan {
    /// The seed.
    pub seed: u64,
    /// Most calls of all clients together.
    pub calls: usize,
    /// Say what happens.
    pub trace: bool,
}

/// What a run was.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunStats {
    /// Calls asked.
    pub calls: usize,
    /// Of these, those with an answer that no client heard.
    pub unheard: usize,
    /// Crashes of the node.
    pub crashes: usize,
    /// Sessions that expired.
    pub expired: usize,
    /// Calls sent again.
    pub retries: u64,
    /// Changes of tables that succeeded.
    pub changes: usize,
    /// Members that have left, and nodes that were taken out before they came.
    pub left: usize,
    /// Times that the role of the coordinator moved.
    pub handed: usize,
    /// Calls that the member that was asked did not lead.
    pub misdirected: usize,
    /// Leases that nodes have lost.
    pub lapses: u64,
    /// Nodes that were fenced for a change of a directory.
    pub fenced: u64,
    /// Nodes that were presumed dead and went on.
    pub ghosts: usize,
    /// Their commits that the engine refused.
    pub refused: u64,
    /// Nodes that went on fully alive while another process served in their place.
    pub zombies: usize,
    /// Stores that gave no answer any more.
    pub stores_failed: usize,
    /// Virtual time, nanoseconds.
    pub time: Nanos,
    /// The order of the calls was not decided.
    pub undecided: bool,
}

/// See the module's header.
pub struct World {
    plan: RunPlan,
    agenda: EventQueue<Event>,
    dice: Prng,
    network: Network,
    host: Host,
    /// Counts starts of the node: timers of an earlier one do nothing.
    start: u64,
    /// The node's process is stopped until then.
    host_stopped_until: Nanos,
    sync_planned: bool,
    /// How often the wall clock was set back.
    clock_set_back: u64,
    clients: Vec<Client>,
    history: History,
    /// Faults still happen.
    troubled: bool,
    tally: RunStats,
    /// Percent of the typical that syncs take.
    disk: Nanos,
    clients_begun: u64,
    deadline: Nanos,
}

impl Scene for World {
    type Event = Event;

    fn agenda(&self) -> &EventQueue<Event> {
        &self.agenda
    }

    fn agenda_mut(&mut self) -> &mut EventQueue<Event> {
        &mut self.agenda
    }

    fn happen(&mut self, event: Event) {
        if self.is_postponed(&event) {
            let until = match &event {
                Event::ToClient(wire, _) | Event::ClientLoses(wire) => self
                    .network
                    .wires
                    .get(wire)
                    .map_or(self.agenda.now, |wire| self.clients[wire.client].stopped_until),
                Event::ClientTick(place) | Event::Think(place) | Event::Connect(place) => {
                    self.clients[*place].stopped_until
                }
                _ => self.host_stopped_until,
            };
            return self.plan_at(until, event);
        }
        match event {
            Event::Accept(wire) => {
                if self.host.is_up() {
                    self.host.accept(wire);
                } else {
                    let after = self.delay(4 * MS);
                    self.plan_in(after, Event::ClientLoses(wire));
                }
            }
            Event::ToHost(wire, bytes) => {
                self.host.receive(wire, &bytes, self.agenda.now);
                self.after_host();
            }
            Event::HostLoses(wire) => {
                self.host.lose(wire);
                if let Some(wire) = self.network.wires.get_mut(&wire) {
                    wire.host_open = false;
                }
                self.after_host();
            }
            Event::ToClient(wire, bytes) => self.client_reads(wire, &bytes),
            Event::ClientLoses(wire) => {
                let place = self.network.wires.get(&wire).map(|wire| wire.client);
                if let Some(place) =
                    place.filter(|place| self.clients[*place].connection == Some(wire))
                {
                    self.disconnect(place);
                }
            }
            Event::Connect(place) => self.connect(place),
            Event::ClientTick(place) => self.tick_client(place),
            Event::Think(place) => self.think(place),
            Event::HostTick(start) if start == self.start && self.host.is_up() => {
                self.host.tick(self.agenda.now);
                self.after_host();
                let after = self.dice.between(100 * MS, 200 * MS);
                self.plan_in(after, Event::HostTick(start));
            }
            Event::Synced(start) if start == self.start => {
                self.sync_planned = false;
                self.host.sync();
                self.after_host();
            }
            Event::HostTick(_) | Event::Synced(_) => {}
            Event::Start => self.start_host(),
            Event::Fault => self.trouble(),
            Event::Reap => {
                let wall = self.agenda.clock.now();
                self.host.reap(wall);
                self.after_host();
                if self.troubled {
                    self.plan_in(2 * SECOND, Event::Reap);
                }
            }
            Event::Mend => self.mend(),
        }
    }
}

impl World {
    /// The world of a seed, before anything has happened.
    pub fn new(plan: RunPlan) -> Self {
        let mut dice = Prng::new(plan.seed);
        let agenda = EventQueue::new(plan.trace);
        let clock = agenda.clock.clone();
        let count = 2 + dice.below(3) as usize;
        let delay = MS / 10 * dice.between(1, 60);
        let workers = 1 + dice.below(3) as usize;
        let tokens = dice.chance(35);
        let mut world = Self {
            plan,
            agenda,
            network: Network::new(count, delay),
            host: Host::new(clock, workers, tokens),
            clock_set_back: 0,
            start: 0,
            host_stopped_until: 0,
            sync_planned: false,
            clients: Vec::new(),
            history: History::default(),
            troubled: true,
            tally: RunStats::default(),
            disk: MS / 10 * dice.between(1, 50),
            clients_begun: 0,
            deadline: DEADLINES[usize::from(dice.chance(60))],
            dice,
        };
        for place in 0..count {
            let client = world.new_client();
            world.clients.push(client);
            world.plan_in(world.delay(20 * MS), Event::Connect(place));
            world.plan_in(world.delay(50 * MS), Event::Think(place));
            world.plan_in(world.delay(60 * MS), Event::ClientTick(place));
        }
        world.host.start(0);
        world.plan_in(MS, Event::HostTick(0));
        world.plan_in(3 * SECOND, Event::Reap);
        let first = world.dice.between(MS, 2 * SECOND);
        world.plan_in(first, Event::Fault);
        world
    }

    fn new_client(&mut self) -> Client {
        self.clients_begun += 1;
        let mut dice = self.dice.split();
        let (token, expires) = self
            .new_token(&mut dice)
            .map_or((None, None), |(token, expires)| (Some(token), expires));
        let mut client = Client::new(self.clients_begun, dice, self.agenda.now, token);
        client.expires = expires;
        client
    }

    fn delay(&self, most: Nanos) -> Nanos {
        // The same for all: what matters is drawn where it matters.
        most / 2
    }

    /// Runs to the end and says what it was.
    pub fn run(mut self) -> Result<RunStats, Failure> {
        let mend = self.dice.between(10, 40) * SECOND;
        self.plan_at(mend, Event::Mend);
        self.run_until(TIME_MAX, |world| {
            !world.troubled && world.history.records.len() >= world.plan.calls
        });
        self.finish();
        match self.agenda.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(self.tally),
        }
    }

    fn is_postponed(&self, event: &Event) -> bool {
        match event {
            Event::ToClient(wire, _) | Event::ClientLoses(wire) => {
                let place = self.network.wires.get(wire).map(|wire| wire.client);
                place.is_some_and(|place| self.clients[place].stopped_until > self.agenda.now)
            }
            Event::ClientTick(place) | Event::Think(place) | Event::Connect(place) => {
                self.clients[*place].stopped_until > self.agenda.now
            }
            Event::ToHost(..)
            | Event::HostTick(_)
            | Event::Accept(_)
            | Event::HostLoses(_)
            | Event::Reap => self.host_stopped_until > self.agenda.now,
            _ => false,
        }
    }

    /// What the node has sent goes on its way; what it has written waits for the disk.
    fn after_host(&mut self) {
        loop {
            let out = self.host.outgoing.lock().pop_front();
            let Some((wire, out)) = out else { break };
            let Some(state) = self.network.wires.get(&wire) else { continue };
            if !state.host_open {
                continue;
            }
            let at = self.network.arrival(wire, Way::Down, self.agenda.now, &mut self.dice);
            match out {
                Out::Frames(bytes) => self.plan_at(at, Event::ToClient(wire, bytes)),
                Out::Close => {
                    self.plan_at(at, Event::ClientLoses(wire));
                    self.plan_in(0, Event::HostLoses(wire));
                }
            }
        }
        if self.host.is_dirty() && !self.sync_planned {
            self.sync_planned = true;
            let slow = if self.troubled && self.dice.chance(1) { 500 } else { 1 };
            let after = self.dice.between(self.disk / 4, self.disk * 2) * slow;
            self.plan_in(after, Event::Synced(self.start));
        }
        self.notice_expired();
    }

    fn start_host(&mut self) {
        if self.host.is_up() {
            return;
        }
        self.start += 1;
        self.sync_planned = false;
        self.host.start(self.agenda.now);
        self.say(|| "node: starts".into());
        self.plan_in(MS, Event::HostTick(self.start));
        self.after_host();
    }
}
