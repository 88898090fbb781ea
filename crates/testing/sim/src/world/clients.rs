//! What clients do: connect, ask, hear, and lose their connections.

use kestrel_rpc::session::{CallDeadline, ConnectionHealth, LinkEvent};
use kestrel_types::clock::SECOND;
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request};
use kestrel_types::wire::{Answered, Body, LockRequest, Reclaimed, SessionState};

use super::World;
use super::event::Event;
use super::tokens::is_refusal;
use crate::client::PendingCall;
use crate::event_queue::Scene;
use crate::network::{MS, Way};
use crate::workload::{self, ClientAction};

impl World {
    pub(super) fn connect(&mut self, place: usize) {
        if self.clients[place].connection.is_some() {
            return;
        }
        let wire = self.network.connect(place, self.agenda.now);
        let client = &mut self.clients[place];
        client.connected(wire);
        let incarnation = client.link.connected(self.agenda.now, self.host.security());
        self.say(|| format!("client {place}: connection {wire}, incarnation {incarnation}"));
        let at = self.network.arrival(wire, Way::Up, self.agenda.now, &mut self.dice);
        self.plan_at(at, Event::Accept(wire));
        self.after_client(place);
    }

    /// The client gives its connection up. What it has sent may still arrive.
    pub(super) fn disconnect(&mut self, place: usize) {
        let Some(wire) = self.clients[place].connection.take() else { return };
        self.say(|| format!("client {place}: gives up connection {wire}"));
        if let Some(state) = self.network.wires.get_mut(&wire) {
            state.client_open = false;
        }
        // What is under way arrives at the node, in a while; then, perhaps much later, the end of
        // the connection.
        let at = self.network.arrival(wire, Way::Up, self.agenda.now, &mut self.dice);
        let late = if self.dice.chance(30) { self.dice.between(0, 8 * SECOND) } else { 0 };
        self.plan_at(at + late, Event::HostLoses(wire));
        let client = &mut self.clients[place];
        client.link.disconnected(self.agenda.now);
        client.failures += 1;
        let longest = (20 * MS) << client.failures.min(5);
        let after = self.dice.between(MS, longest);
        self.plan_in(after, Event::Connect(place));
        self.after_client(place);
    }

    pub(super) fn client_reads(&mut self, wire: u64, bytes: &[u8]) {
        let Some(state) = self.network.wires.get(&wire) else { return };
        let place = state.client;
        if self.clients[place].connection != Some(wire) {
            return;
        }
        let client = &mut self.clients[place];
        let mut messages = client.read(bytes);
        let outcome = client.link.received(self.agenda.now, &mut messages);
        client.failures = 0;
        self.after_client(place);
        if let Err(broken) = outcome {
            self.say(|| format!("client {place}: {broken}"));
            // Only what a new connection, or some time, mends is an answer to a client that keeps
            // the protocol.
            if !broken.0.contains("refused") {
                self.fail(format!("client {place}: {broken}"));
            }
            self.disconnect(place);
        }
    }

    pub(super) fn tick_client(&mut self, place: usize) {
        if self.clients[place].outdated {
            self.kill_client(place);
        }
        let oldest = self.clients[place].oldest_object;
        let pulse = self.clients[place].link.tick(self.agenda.now, oldest);
        if pulse == ConnectionHealth::Lost {
            self.disconnect(place);
        } else {
            self.after_client(place);
        }
        let after = self.dice.between(50 * MS, 150 * MS);
        self.plan_in(after, Event::ClientTick(place));
    }

    /// What a client has to send goes on its way, what has ended is noted, what it should know it
    /// learns.
    pub(super) fn after_client(&mut self, place: usize) {
        loop {
            let client = &mut self.clients[place];
            let ended = client.completions();
            let event = client.link.next_event();
            if ended.is_empty() && event.is_none() {
                break;
            }
            for completion in ended {
                self.ended(place, completion.done, completion.result.ok());
            }
            match event {
                Some(LinkEvent::ReclaimWanted { lost }) => {
                    self.say(|| format!("client {place}: reclaims, {lost:?}"));
                    let client = &mut self.clients[place];
                    if lost != SessionState::Restarted {
                        client.lose_session();
                    }
                    let mut dice = client.dice.split();
                    let parts = client.held(&mut dice);
                    client.link.reclaim(parts);
                }
                Some(LinkEvent::Reclaimed { replies, lost }) => {
                    let lost_items: Vec<_> = replies.into_iter().filter_map(Result::ok).collect();
                    self.say(|| {
                        format!("client {place}: reclaimed after {lost:?}, lost {lost_items:?}")
                    });
                    self.judge_lost(place, &lost_items);
                    self.clients[place].reclaimed(&lost_items);
                }
                Some(LinkEvent::Welcomed(welcome)) => {
                    self.say(|| format!("client {place}: welcomed, {:?}", welcome.session));
                    self.clients[place].link.accept();
                }
                Some(LinkEvent::Refused(refused)) => {
                    self.say(|| format!("client {place}: {refused:?}"));
                    let client = &mut self.clients[place];
                    client.outdated |= client.expires.is_some() && refused.errno == libc::EACCES;
                }
                _ => {}
            }
        }
        let client = &mut self.clients[place];
        let mut bytes = Vec::new();
        client.link.take_output(&mut bytes);
        if let Some(wire) = client.connection.filter(|_| !bytes.is_empty()) {
            let at = self.network.arrival(wire, Way::Up, self.agenda.now, &mut self.dice);
            self.plan_at(at, Event::ToHost(wire, bytes));
        }
    }

    /// What a client was told to have lost has to have been lost.
    pub(super) fn judge_lost(&mut self, place: usize, lost: &[Reclaimed]) {
        for ino in lost.iter().flat_map(|part| &part.lost_opens) {
            let held = self.clients[place]
                .handles
                .get(ino)
                .is_some_and(|handle| handle.free > 0 && !handle.lost);
            if held {
                self.fail(format!("client {place}: the node lost inode {ino}, which it has open"));
            }
        }
    }

    pub(super) fn ended(&mut self, place: usize, asked: PendingCall, answer: Option<Answered>) {
        self.clients[place].calls -= 1;
        if answer.as_ref().is_some_and(is_refusal) {
            self.say(|| format!("client {place}: {asked:?} is refused"));
            self.clients[place].outdated = true;
            return match asked {
                PendingCall::Op(call) => self.history.refuse(call),
                PendingCall::Lock(request) => self.lock_ended(place, &request, None),
                PendingCall::Release(_) => {}
            };
        }
        match (asked, answer) {
            (PendingCall::Op(call), Some(Answered::Op(reply))) => self.heard(place, call, reply),
            (PendingCall::Release(ino), Some(Answered::Op(reply))) => {
                self.released(place, ino, &reply)
            }
            (PendingCall::Lock(request), answer) => {
                let reply = match answer {
                    Some(Answered::Lock(reply)) => Some(reply),
                    _ => None,
                };
                self.lock_ended(place, &request, reply);
            }
            (PendingCall::Op(call), None) => {
                self.say(|| format!("client {place}: call {call} ends without an answer"));
            }
            // A client that is not let in any more gives everything up.
            (PendingCall::Release(_), None) if self.clients[place].expires.is_some() => {}
            (asked, answer) => {
                self.fail(format!("client {place}: {asked:?} was answered {answer:?}"))
            }
        }
    }

    pub(super) fn heard(&mut self, place: usize, call: usize, reply: Reply) {
        self.say(|| format!("client {place}: call {call} is answered {}", brief(&reply)));
        self.judge_late(place, call, &reply);
        if let Err(Outcome::Failed(why)) = &reply
            && [libc::EIO, libc::EPERM, libc::ENFILE].contains(&why.errno)
            && !matches!(why.errno, libc::EPERM if self.history.records[call].request.creds.uid != 0
                || !why.reason.contains("node"))
        {
            self.fail(format!("call {call} of client {place} failed: {why}"));
        }
        let op = self.history.records[call].request.op.clone();
        if let Some(ino) = self.history.records[call].held
            && self.clients[place]
                .handles
                .get(&ino)
                .is_none_or(|handle| handle.lost || handle.free == 0)
        {
            self.history.records[call].held = None;
        }
        self.clients[place].learn(call, &op, &reply);
        self.history.hear(call, reply);
    }

    pub(super) fn released(&mut self, place: usize, ino: u64, reply: &Reply) {
        let client = &mut self.clients[place];
        if let Some(left) = client.lost_releases.get_mut(&ino).filter(|left| **left > 0) {
            *left -= 1;
            return;
        }
        let Some(handle) = client.handles.get_mut(&ino) else { return };
        handle.count = handle.count.saturating_sub(1);
        let lost = handle.lost;
        if handle.count == 0 {
            client.handles.remove(&ino);
        }
        if let Err(why) = reply
            && !lost
        {
            self.fail(format!(
                "client {place}: release of inode {ino}, which it has open: {why:?}"
            ));
        }
    }

    /// A client asks something.
    pub(super) fn think(&mut self, place: usize) {
        let asking = self.history.records.len() < self.plan.calls;
        let busy = self.clients[place].calls > (self.plan.seed as usize + place) % 4;
        if asking && !busy {
            self.ask(place);
        }
        if asking || self.troubled {
            let longest = if self.dice.chance(10) { 600 * MS } else { 40 * MS };
            let after = self.dice.between(MS, longest);
            self.plan_in(after, Event::Think(place));
        }
    }

    pub(super) fn ask(&mut self, place: usize) {
        let client = &mut self.clients[place];
        if client.calls == 0 && client.objects.len() > 1 && client.dice.chance(20) {
            client.objects.remove(0);
            client.oldest_object = client.objects[0];
        }
        match workload::wish(client) {
            ClientAction::Op(request) => {
                if let Op::Release(ino) = request.op {
                    return self.release(place, ino);
                }
                let held = self.clients[place].expects(&request.op);
                let call = self.history.ask(place, request.clone(), held);
                self.history.records[call].late =
                    self.is_outlived(place).then_some(self.clock_set_back);
                self.say(|| {
                    format!(
                        "client {place}: call {call}: {:?} as {}",
                        request.op, request.creds.uid
                    )
                });
                let deadline = CallDeadline::Until(self.agenda.now + self.deadline);
                let client = &mut self.clients[place];
                client.calls += 1;
                client.link.submit(Body::Op(request), deadline, PendingCall::Op(call));
            }
            ClientAction::Lock(request) => self.ask_lock(place, request),
        }
        self.after_client(place);
    }

    pub(super) fn release(&mut self, place: usize, ino: u64) {
        let client = &mut self.clients[place];
        let Some(handle) = client.handles.get_mut(&ino).filter(|handle| handle.free > 0) else {
            return;
        };
        handle.free -= 1;
        handle.writes = handle.writes.min(handle.free);
        client.calls += 1;
        let request = Request { creds: Creds::root(), op: Op::Release(ino) };
        client.link.submit(Body::Op(request), CallDeadline::Always, PendingCall::Release(ino));
        self.say(|| format!("client {place}: releases inode {ino}"));
        self.after_client(place);
    }

    pub(super) fn ask_lock(&mut self, place: usize, request: LockRequest) {
        self.begin_lock(place, &request);
        let client = &mut self.clients[place];
        client.calls += 1;
        client.link.submit(
            Body::Lock(request),
            CallDeadline::Outage(self.deadline),
            PendingCall::Lock(request),
        );
        self.say(|| format!("client {place}: {request:?}"));
    }
}

/// A reply, for the trace.
fn brief(reply: &Reply) -> String {
    match reply {
        Ok(Answer::Inode(inode)) => {
            format!("inode {} nlink {}", inode.ino, inode.nlink)
        }
        Ok(Answer::Entry { parent, inode }) => {
            format!("inode {} nlink {} in {parent}", inode.ino, inode.nlink)
        }
        Ok(Answer::Opened { inode, created, parent }) => {
            format!(
                "open inode {} nlink {} created {created} in {parent:?}",
                inode.ino, inode.nlink
            )
        }
        other => format!("{other:?}"),
    }
}
