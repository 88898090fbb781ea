//! What clients do: connect, make calls, get answers, and lose their connections.

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
    pub(super) fn connect(&mut self, client_index: usize) {
        if self.clients[client_index].connection.is_some() {
            return;
        }
        let wire = self.network.connect(client_index, self.queue.now);
        let client = &mut self.clients[client_index];
        client.connected(wire);
        let incarnation = client.link.connected(self.queue.now, self.host.security());
        self.say(|| format!("client {client_index}: connection {wire}, incarnation {incarnation}"));
        let at = self.network.arrival(wire, Way::Up, self.queue.now, &mut self.prng);
        self.plan_at(at, Event::Accept(wire));
        self.after_client(client_index);
    }

    /// The client gives its connection up. What it has sent may still arrive.
    pub(super) fn disconnect(&mut self, client_index: usize) {
        let Some(wire) = self.clients[client_index].connection.take() else { return };
        self.say(|| format!("client {client_index}: gives up connection {wire}"));
        if let Some(state) = self.network.wires.get_mut(&wire) {
            state.client_open = false;
        }
        // What is under way arrives at the node, in a while; then, perhaps much later, the end of
        // the connection.
        let at = self.network.arrival(wire, Way::Up, self.queue.now, &mut self.prng);
        let late = if self.prng.chance(30) { self.prng.between(0, 8 * SECOND) } else { 0 };
        self.plan_at(at + late, Event::HostLoses(wire));
        let client = &mut self.clients[client_index];
        client.link.disconnected(self.queue.now);
        client.failures += 1;
        let longest = (20 * MS) << client.failures.min(5);
        let after = self.prng.between(MS, longest);
        self.plan_in(after, Event::Connect(client_index));
        self.after_client(client_index);
    }

    pub(super) fn client_reads(&mut self, wire: u64, bytes: &[u8]) {
        let Some(state) = self.network.wires.get(&wire) else { return };
        let client_index = state.client;
        if self.clients[client_index].connection != Some(wire) {
            return;
        }
        let client = &mut self.clients[client_index];
        let mut messages = client.read(bytes);
        let outcome = client.link.received(self.queue.now, &mut messages);
        client.failures = 0;
        self.after_client(client_index);
        if let Err(broken) = outcome {
            self.say(|| format!("client {client_index}: {broken}"));
            // Only what a new connection, or some time, mends is an answer to a client that keeps
            // the protocol.
            if !broken.0.contains("refused") {
                self.fail(format!("client {client_index}: {broken}"));
            }
            self.disconnect(client_index);
        }
    }

    pub(super) fn tick_client(&mut self, client_index: usize) {
        if self.clients[client_index].outdated {
            self.kill_client(client_index);
        }
        let oldest = self.clients[client_index].oldest_object;
        let pulse = self.clients[client_index].link.tick(self.queue.now, oldest);
        if pulse == ConnectionHealth::Lost {
            self.disconnect(client_index);
        } else {
            self.after_client(client_index);
        }
        let after = self.prng.between(50 * MS, 150 * MS);
        self.plan_in(after, Event::ClientTick(client_index));
    }

    /// What a client has to send goes on its way, what has ended is noted, what it should know it
    /// learns.
    pub(super) fn after_client(&mut self, client_index: usize) {
        loop {
            let client = &mut self.clients[client_index];
            let ended = client.completions();
            let event = client.link.next_event();
            if ended.is_empty() && event.is_none() {
                break;
            }
            for completion in ended {
                self.ended(client_index, completion.done, completion.result.ok());
            }
            match event {
                Some(LinkEvent::ReclaimWanted { lost }) => {
                    self.say(|| format!("client {client_index}: reclaims, {lost:?}"));
                    let client = &mut self.clients[client_index];
                    if lost != SessionState::Restarted {
                        client.lose_session();
                    }
                    let mut prng = client.prng.split();
                    let parts = client.held(&mut prng);
                    client.link.reclaim(parts);
                }
                Some(LinkEvent::Reclaimed { replies, lost }) => {
                    let lost_items: Vec<_> = replies.into_iter().filter_map(Result::ok).collect();
                    self.say(|| {
                        format!(
                            "client {client_index}: reclaimed after {lost:?}, lost {lost_items:?}"
                        )
                    });
                    self.check_lost(client_index, &lost_items);
                    self.clients[client_index].reclaimed(&lost_items);
                }
                Some(LinkEvent::Welcomed(welcome)) => {
                    self.say(|| format!("client {client_index}: welcomed, {:?}", welcome.session));
                    self.clients[client_index].link.accept();
                }
                Some(LinkEvent::Refused(refused)) => {
                    self.say(|| format!("client {client_index}: {refused:?}"));
                    let client = &mut self.clients[client_index];
                    client.outdated |= client.expires.is_some() && refused.errno == libc::EACCES;
                }
                _ => {}
            }
        }
        let client = &mut self.clients[client_index];
        let mut bytes = Vec::new();
        client.link.take_output(&mut bytes);
        if let Some(wire) = client.connection.filter(|_| !bytes.is_empty()) {
            let at = self.network.arrival(wire, Way::Up, self.queue.now, &mut self.prng);
            self.plan_at(at, Event::ToHost(wire, bytes));
        }
    }

    /// What a client lost by its answer has to have been lost.
    pub(super) fn check_lost(&mut self, client_index: usize, lost: &[Reclaimed]) {
        for ino in lost.iter().flat_map(|part| &part.lost_opens) {
            let held = self.clients[client_index]
                .handles
                .get(ino)
                .is_some_and(|handle| handle.free > 0 && !handle.lost);
            if held {
                self.fail(format!(
                    "client {client_index}: the node lost inode {ino}, which it has open"
                ));
            }
        }
    }

    pub(super) fn ended(
        &mut self,
        client_index: usize,
        asked: PendingCall,
        answer: Option<Answered>,
    ) {
        self.clients[client_index].calls -= 1;
        if answer.as_ref().is_some_and(is_refusal) {
            self.say(|| format!("client {client_index}: {asked:?} is refused"));
            self.clients[client_index].outdated = true;
            return match asked {
                PendingCall::Op(call) => self.history.refuse(call),
                PendingCall::Lock(request) => self.lock_ended(client_index, &request, None),
                PendingCall::Release(_) => {}
            };
        }
        match (asked, answer) {
            (PendingCall::Op(call), Some(Answered::Op(reply))) => {
                self.op_ended(client_index, call, reply)
            }
            (PendingCall::Release(ino), Some(Answered::Op(reply))) => {
                self.released(client_index, ino, &reply)
            }
            (PendingCall::Lock(request), answer) => {
                let reply = match answer {
                    Some(Answered::Lock(reply)) => Some(reply),
                    _ => None,
                };
                self.lock_ended(client_index, &request, reply);
            }
            (PendingCall::Op(call), None) => {
                self.say(|| format!("client {client_index}: call {call} ends without an answer"));
            }
            // A client that is not let in any more gives everything up.
            (PendingCall::Release(_), None) if self.clients[client_index].expires.is_some() => {}
            (asked, answer) => {
                self.fail(format!("client {client_index}: {asked:?} was answered {answer:?}"))
            }
        }
    }

    pub(super) fn op_ended(&mut self, client_index: usize, call: usize, reply: Reply) {
        self.say(|| format!("client {client_index}: call {call} is answered {}", brief(&reply)));
        self.check_late(client_index, call, &reply);
        if let Err(Outcome::Failed(why)) = &reply
            && [libc::EIO, libc::EPERM, libc::ENFILE].contains(&why.errno)
            && !matches!(why.errno, libc::EPERM if self.history.records[call].request.creds.uid != 0
                || !why.reason.contains("node"))
        {
            self.fail(format!("call {call} of client {client_index} failed: {why}"));
        }
        let op = self.history.records[call].request.op.clone();
        if let Some(ino) = self.history.records[call].held
            && self.clients[client_index]
                .handles
                .get(&ino)
                .is_none_or(|handle| handle.lost || handle.free == 0)
        {
            self.history.records[call].held = None;
        }
        self.clients[client_index].learn(call, &op, &reply);
        self.history.finish(call, reply);
    }

    pub(super) fn released(&mut self, client_index: usize, ino: u64, reply: &Reply) {
        let client = &mut self.clients[client_index];
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
                "client {client_index}: release of inode {ino}, which it has open: {why:?}"
            ));
        }
    }

    /// A client begins an action.
    pub(super) fn think(&mut self, client_index: usize) {
        let asking = self.history.records.len() < self.plan.calls;
        let busy = self.clients[client_index].calls > (self.plan.seed as usize + client_index) % 4;
        if asking && !busy {
            self.next_call(client_index);
        }
        if asking || self.troubled {
            let longest = if self.prng.chance(10) { 600 * MS } else { 40 * MS };
            let after = self.prng.between(MS, longest);
            self.plan_in(after, Event::Think(client_index));
        }
    }

    pub(super) fn next_call(&mut self, client_index: usize) {
        let client = &mut self.clients[client_index];
        if client.calls == 0 && client.objects.len() > 1 && client.prng.chance(20) {
            client.objects.remove(0);
            client.oldest_object = client.objects[0];
        }
        match workload::action(client) {
            ClientAction::Op(request) => {
                if let Op::Release(ino) = request.op {
                    return self.release(client_index, ino);
                }
                let held = self.clients[client_index].expects(&request.op);
                let call = self.history.begin(client_index, request.clone(), held);
                self.history.records[call].late =
                    self.is_outlived(client_index).then_some(self.clock_set_back);
                self.say(|| {
                    format!(
                        "client {client_index}: call {call}: {:?} as {}",
                        request.op, request.creds.uid
                    )
                });
                let deadline = CallDeadline::Until(self.queue.now + self.deadline);
                let client = &mut self.clients[client_index];
                client.calls += 1;
                client.link.submit(Body::Op(request), deadline, PendingCall::Op(call));
            }
            ClientAction::Lock(request) => self.lock_call(client_index, request),
        }
        self.after_client(client_index);
    }

    pub(super) fn release(&mut self, client_index: usize, ino: u64) {
        let client = &mut self.clients[client_index];
        let Some(handle) = client.handles.get_mut(&ino).filter(|handle| handle.free > 0) else {
            return;
        };
        handle.free -= 1;
        handle.writes = handle.writes.min(handle.free);
        let closed = handle.free == 0;
        client.calls += 1;
        let request = Request { creds: Creds::root(), op: Op::Release(ino) };
        client.link.submit(Body::Op(request), CallDeadline::Always, PendingCall::Release(ino));
        self.say(|| format!("client {client_index}: releases inode {ino}"));
        if closed {
            // The node may answer the release first, lose the call with its power, and find the
            // file closed when the call is sent again. Real clients close after their calls.
            self.history.let_go(client_index, ino);
        }
        self.after_client(client_index);
    }

    pub(super) fn lock_call(&mut self, client_index: usize, request: LockRequest) {
        self.begin_lock(client_index, &request);
        let client = &mut self.clients[client_index];
        client.calls += 1;
        client.link.submit(
            Body::Lock(request),
            CallDeadline::Outage(self.deadline),
            PendingCall::Lock(request),
        );
        self.say(|| format!("client {client_index}: {request:?}"));
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
