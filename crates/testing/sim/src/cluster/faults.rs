//! What goes wrong.

use kestrel_cluster::RESTART_MIN;
use kestrel_types::clock::SECOND;
use kestrel_types::placement::NodeId;

use super::{ClusterRun, Event};
use crate::event_queue::Scene;
use crate::network::MS;

impl ClusterRun {
    /// Something goes wrong, and then something else.
    pub(super) fn inject_fault(&mut self) {
        if self.troubled {
            self.fault();
            let after = self.prng.pause();
            self.plan_in(after, Event::Fault);
        }
    }

    /// Something goes wrong.
    pub(super) fn fault(&mut self) {
        if !self.troubled {
            return;
        }
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        let node = *self.prng.pick(&nodes).expect("there are nodes");
        match self.prng.below(13) {
            0..=4 => self.crash(node),
            5..=8 => self.cut(node),
            9 => self.stop(node),
            // Two things at once.
            10 => {
                self.cut(node);
                let other = *self.prng.pick(&nodes).expect("there are nodes");
                self.crash(other);
            }
            11 => self.jump_clock(),
            _ => self.fail_store(node),
        }
    }

    /// Now and then a change of the table loses one of the members that say something about it.
    pub(super) fn fault_in_change(&mut self, from: NodeId, to: NodeId) {
        if self.troubled && self.prng.chance(1) {
            let (node, after) =
                (*self.prng.pick(&[from, to]).expect("two"), self.prng.between(0, 20 * MS));
            self.plan_in(after, Event::Crash(node));
        }
    }

    /// A member's store gives no answer any more: what was not synced may be in it or not. The
    /// process sends what it makes of that, and ends.
    fn fail_store(&mut self, node: NodeId) {
        let now = self.queue.now;
        if !self.host(node).fail_store(now) {
            return;
        }
        self.say(|| format!("node {node}: its store answers no more"));
        self.stats.stores_failed += 1;
        self.after(node);
        let (start, after) = (self.hosts[&node].started(), self.prng.between(0, 100 * MS));
        self.plan_in(after, Event::Failed(node, start));
    }

    /// The process of a member ends after its store has failed; what the store has shows at its
    /// next start.
    pub(super) fn end_failed(&mut self, node: NodeId, start: u64) {
        if !self.hosts[&node].is_up(start) {
            return;
        }
        let (now, keep) = (self.queue.now, self.prng.below(101));
        self.say(|| {
            format!("node {node}: ends, {keep} % of what it had no answer to is in its store")
        });
        self.host(node).kill(Some(keep), now);
        self.host(node).elsewhere = self.shared && self.prng.chance(50);
        let after = self.prng.downtime();
        self.plan_in(after, Event::Start(node));
    }

    pub(super) fn crash(&mut self, node: NodeId) {
        if self.hosts[&node].member().is_none() || self.hosts[&node].has_failed() {
            return;
        }
        let keep = self.prng.crash();
        self.stats.crashes += 1;
        self.say(|| match keep {
            None => format!("node {node}: crashes"),
            Some(keep) => format!("node {node}: crashes, {keep} % of what was not synced stays"),
        });
        let now = self.queue.now;
        if self.shared && self.prng.chance(15) {
            let start = self.hosts[&node].started();
            self.host(node).give_up_lease(now);
            self.host(node).elsewhere = self.prng.chance(50);
            return self.plan_in(RESTART_MIN, Event::End(node, start));
        }
        if self.shared && self.prng.chance(60) {
            self.haunt(node);
        } else if keep.is_none() && self.prng.chance(50) {
            self.say(|| format!("node {node}: is only presumed to have crashed"));
            self.stats.ghosts += 1;
            self.host(node).haunt(now);
        } else {
            self.host(node).kill(keep, now);
            self.host(node).elsewhere = self.shared && self.prng.chance(50);
        }
        let after = self.prng.downtime();
        self.plan_in(after, Event::Start(node));
    }

    /// Cuts a node off from some or all, one way or both.
    fn cut(&mut self, node: NodeId) {
        let until = self.queue.now + self.prng.span();
        let ways = self.prng.below(3);
        let mut others: Vec<NodeId> =
            self.hosts.keys().copied().filter(|other| *other != node).collect();
        others.push(0);
        if self.prng.chance(50) {
            let one = *self.prng.pick(&others).expect("there are others");
            others = vec![one];
        }
        self.say(|| format!("network: {node} and {others:?} cut ({ways}) until {} ms", until / MS));
        for other in others {
            if ways != 0 {
                self.cuts.insert((node, other), until);
            }
            if ways != 1 {
                self.cuts.insert((other, node), until);
            }
        }
    }

    fn stop(&mut self, node: NodeId) {
        let until = self.queue.now + self.prng.span();
        self.say(|| format!("node {node}: stops until {} ms", until / MS));
        self.host(node).stopped_until = until;
    }

    fn jump_clock(&mut self) {
        let by = self.prng.between(-20, 20) * SECOND;
        self.say(|| format!("the wall clocks jump by {} s", by / SECOND));
        self.queue.clock.advance(by);
    }

    pub(super) fn start(&mut self, node: NodeId) {
        if self.hosts[&node].member().is_some() || self.hosts[&node].lost {
            return;
        }
        let (now, earliest) = (self.queue.now, self.hosts[&node].rests_until());
        if now < earliest {
            return self.plan_at(earliest, Event::Start(node));
        }
        let start = self.host(node).start(now);
        self.say(|| format!("node {node}: starts"));
        self.await_claims(node);
        self.after(node);
        self.plan_in(MS, Event::Tick(node, start));
    }

    /// The faults are over: everything runs and is connected.
    pub(super) fn heal(&mut self) {
        self.say(|| "the faults are over".into());
        self.troubled = false;
        self.healed_at = Some(self.queue.now);
        self.cuts.clear();
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        for node in nodes {
            if self.hosts[&node].has_failed() {
                let start = self.hosts[&node].started();
                self.end_failed(node, start);
            }
            self.host(node).stopped_until = 0;
            self.host(node).lay();
            self.start(node);
        }
    }
}
