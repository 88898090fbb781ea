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

use crate::client::{Client, Versions};
use crate::event_queue::{EventQueue, Scene};
use crate::feed::FeedScene;
use crate::history::History;
use crate::host::{Host, Out};
use crate::network::{MS, Network, Way};
use crate::prng::Prng;
use crate::run::{Failure, RunPlan, RunStats};
use event::Event;

/// How long a client waits for an answer: less than many faults last, or more than nearly all.
const DEADLINES: [Nanos; 2] = [2 * SECOND, 20 * SECOND];

/// How long clients make calls at most, in virtual time.
const TIME_MAX: Nanos = 200 * SECOND;

/// See the module's header.
pub struct World {
    plan: RunPlan,
    queue: EventQueue<Event>,
    prng: Prng,
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
    stats: RunStats,
    /// Percent of the typical that syncs take.
    disk: Nanos,
    clients_begun: u64,
    deadline: Nanos,
}

impl Scene for World {
    type Event = Event;

    fn queue(&self) -> &EventQueue<Event> {
        &self.queue
    }

    fn queue_mut(&mut self) -> &mut EventQueue<Event> {
        &mut self.queue
    }

    fn happen(&mut self, event: Event) {
        if self.is_postponed(&event) {
            let until = match &event {
                Event::ToClient(wire, _) | Event::ClientLoses(wire) => self
                    .network
                    .wires
                    .get(wire)
                    .map_or(self.queue.now, |wire| self.clients[wire.client].stopped_until),
                Event::ClientTick(client_index)
                | Event::Think(client_index)
                | Event::Connect(client_index) => self.clients[*client_index].stopped_until,
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
                self.host.receive(wire, &bytes, self.queue.now);
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
                let client_index = self.network.wires.get(&wire).map(|wire| wire.client);
                if let Some(client_index) = client_index
                    .filter(|client_index| self.clients[*client_index].connection == Some(wire))
                {
                    self.disconnect(client_index);
                }
            }
            Event::Connect(client_index) => self.connect(client_index),
            Event::ClientTick(client_index) => self.tick_client(client_index),
            Event::Think(client_index) => self.think(client_index),
            Event::HostTick(start) if start == self.start && self.host.is_up() => {
                self.host.tick(self.queue.now);
                self.after_host();
                let after = self.prng.between(100 * MS, 200 * MS);
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
                let wall = self.queue.clock.now();
                self.host.reap(wall);
                self.host.tidy(1);
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
        let mut prng = Prng::new(plan.seed);
        let queue = EventQueue::new(plan.trace);
        let clock = queue.clock.clone();
        let count = 2 + prng.below(3) as usize;
        let delay = MS / 10 * prng.between(1, 60);
        let workers = 1 + prng.below(3) as usize;
        let tokens = prng.chance(35);
        let mut world = Self {
            plan,
            queue,
            network: Network::new(count, delay),
            host: Host::new(clock, workers, tokens),
            clock_set_back: 0,
            start: 0,
            host_stopped_until: 0,
            sync_planned: false,
            clients: Vec::new(),
            history: History::default(),
            troubled: true,
            stats: RunStats::default(),
            disk: MS / 10 * prng.between(1, 50),
            clients_begun: 0,
            deadline: DEADLINES[usize::from(prng.chance(60))],
            prng,
        };
        for client_index in 0..count {
            let client = world.new_client();
            world.clients.push(client);
            world.plan_in(world.delay(20 * MS), Event::Connect(client_index));
            world.plan_in(world.delay(50 * MS), Event::Think(client_index));
            world.plan_in(world.delay(60 * MS), Event::ClientTick(client_index));
        }
        world.host.start(0);
        if Versions::of_seed(plan.seed).feed {
            world.record_changes();
        }
        world.plan_in(MS, Event::HostTick(0));
        world.plan_in(3 * SECOND, Event::Reap);
        let first = world.prng.between(MS, 2 * SECOND);
        world.plan_in(first, Event::Fault);
        world
    }

    fn new_client(&mut self) -> Client {
        self.clients_begun += 1;
        let mut prng = self.prng.split();
        let (token, expires) = self
            .new_token(&mut prng)
            .map_or((None, None), |(token, expires)| (Some(token), expires));
        let mut client = Client::new(self.clients_begun, prng, self.queue.now, token);
        client.expires = expires;
        client.versions = Versions::of_seed(self.plan.seed);
        client
    }

    fn delay(&self, most: Nanos) -> Nanos {
        // The same for all: what matters is drawn where it matters.
        most / 2
    }

    /// Runs to the end, and answers what it was.
    pub fn run(mut self) -> Result<RunStats, Failure> {
        let mend = self.prng.between(10, 40) * SECOND;
        self.plan_at(mend, Event::Mend);
        self.run_until(TIME_MAX, |world| {
            !world.troubled && world.history.records.len() >= world.plan.calls
        });
        self.finish();
        match self.queue.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(self.stats),
        }
    }

    fn is_postponed(&self, event: &Event) -> bool {
        match event {
            Event::ToClient(wire, _) | Event::ClientLoses(wire) => {
                let client_index = self.network.wires.get(wire).map(|wire| wire.client);
                client_index.is_some_and(|client_index| {
                    self.clients[client_index].stopped_until > self.queue.now
                })
            }
            Event::ClientTick(client_index)
            | Event::Think(client_index)
            | Event::Connect(client_index) => {
                self.clients[*client_index].stopped_until > self.queue.now
            }
            Event::ToHost(..)
            | Event::HostTick(_)
            | Event::Accept(_)
            | Event::HostLoses(_)
            | Event::Reap => self.host_stopped_until > self.queue.now,
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
            let at = self.network.arrival(wire, Way::Down, self.queue.now, &mut self.prng);
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
            let slow = if self.troubled && self.prng.chance(1) { 500 } else { 1 };
            let after = self.prng.between(self.disk / 4, self.disk * 2) * slow;
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
        self.host.start(self.queue.now);
        self.say(|| "node: starts".into());
        self.plan_in(MS, Event::HostTick(self.start));
        self.after_host();
    }
}
