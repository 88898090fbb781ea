//! The holder: asks for sums, and forgets them when it is told to.

use std::collections::BTreeMap;

use kestrel_types::clock::Nanos;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::stat::DirStat;

use super::{COOL_MAX, Gathering, SumMessage};
use crate::lease::NEVER;
use crate::member::lease::LEASE;
use crate::member::message::Message;
use crate::member::work::Stage;
use crate::member::{Member, RESEND};
use crate::sums::DIRS_MAX;

impl Member {
    /// The leases on sums end when the first of them does.
    pub(in crate::member) fn hold_sums(&self) {
        let held = self.sums.others.iter().map(|node| self.sums.held.get(node).copied().unwrap_or(NEVER));
        self.cluster().sums.set_until(held.min().unwrap_or(NEVER));
    }

    /// A member has granted what was asked for then, and keeps its promise about sums.
    pub(in crate::member) fn sums_granted(&mut self, from: NodeId, sent: Nanos) {
        let until = sent + LEASE;
        let before = self.sums.held.get(&from).copied().unwrap_or(NEVER);
        if until <= before {
            return;
        }
        if self.time() >= before {
            // Nobody may have told this one what has changed since.
            self.change_sums(|member| member.cluster().sums.forget_node(from));
            self.ask_anew(from);
        }
        self.sums.held.insert(from, until);
        self.hold_sums();
    }

    /// Answers of a member to what it was asked until now do not count.
    pub(in crate::member) fn ask_anew(&mut self, node: NodeId) {
        let asked = |gathering: &Gathering| gathering.asked.contains_key(&node);
        let dirs = self.sums.gathering.iter().filter(|(_, gathering)| asked(gathering));
        for dir in dirs.map(|(dir, _)| *dir).collect::<Vec<_>>() {
            self.ask_sum(dir, node);
        }
    }

    pub(in crate::member) fn ask_sum(&mut self, dir: InodeId, node: NodeId) {
        let number = self.number();
        if let Some(gathering) = self.sums.gathering.get_mut(&dir) {
            gathering.asked.insert(node, number);
        }
        self.send_ask(dir, node, number);
    }

    pub(in crate::member) fn send_ask(&mut self, dir: InodeId, node: NodeId, number: u64) {
        let (table, epoch) = (self.table.placement.version, self.epoch);
        self.send(node, Message::Sum(SumMessage::Ask { number, table, epoch, dir }));
    }

    /// A request shows a directory, and what other members' shares come to is not known, or does
    /// not count.
    pub(in crate::member) fn gather(&mut self, dir: InodeId, ticket: u64) {
        let now = self.time();
        let known = &self.cluster().sums;
        let refused = self.sums.refused.get(&dir).is_some_and(|until| now < *until);
        if refused || !known.is_held(now) {
            return self.lead(ticket);
        }
        let missing = known.missing(dir, &self.sums.others);
        if missing.is_empty() {
            return self.run_alone(ticket);
        }
        let Some(work) = self.works.get_mut(&ticket) else { return };
        work.stage = Stage::Gathering;
        let now = self.now;
        let fresh = || Gathering { asked: BTreeMap::new(), tickets: Vec::new(), sent: now };
        let gathering = self.sums.gathering.entry(dir).or_insert_with(fresh);
        gathering.tickets.push(ticket);
        let ask = missing.into_iter().filter(|node| !gathering.asked.contains_key(node));
        for node in ask.collect::<Vec<_>>() {
            self.ask_sum(dir, node);
        }
    }

    pub(in crate::member) fn told_sum(
        &mut self,
        from: NodeId,
        number: u64,
        epoch: u64,
        dir: InodeId,
        sum: DirStat,
    ) {
        // An earlier start of it may still be running, and its promise does not bind the newer one.
        if self.newest_start(from).is_none_or(|newest| epoch < newest) {
            return;
        }
        let Some(gathering) = self.sums.gathering.get_mut(&dir) else { return };
        if gathering.asked.get(&from) != Some(&number) {
            return;
        }
        gathering.asked.remove(&from);
        let complete = gathering.asked.is_empty();
        self.change_sums(|member| member.cluster().sums.put(dir, from, sum));
        if complete && let Some(gathering) = self.sums.gathering.remove(&dir) {
            for ticket in self.waiting_for_sums(gathering.tickets) {
                self.run_alone(ticket);
            }
        }
    }

    /// Those of the requests that still wait.
    pub(in crate::member) fn waiting_for_sums(&self, tickets: Vec<u64>) -> Vec<u64> {
        let waits =
            |ticket: &u64| self.works.get(ticket).is_some_and(|work| matches!(work.stage, Stage::Gathering));
        tickets.into_iter().filter(waits).collect()
    }

    pub(in crate::member) fn refused_sum(&mut self, from: NodeId, number: u64, dir: InodeId, pause: u64) {
        let Some(gathering) = self.sums.gathering.get_mut(&dir) else { return };
        if gathering.asked.get(&from) != Some(&number) {
            return;
        }
        gathering.asked.remove(&from);
        let pause = Nanos::try_from(pause).unwrap_or(Nanos::MAX).min(COOL_MAX);
        self.lead_instead(dir, pause);
    }

    /// Requests that wait for a sum borrow rows instead, and so do others for a while. What else
    /// was asked for may still come, and is kept.
    pub(in crate::member) fn lead_instead(&mut self, dir: InodeId, pause: Nanos) {
        if pause > 0 {
            if self.sums.refused.len() >= DIRS_MAX {
                self.sums.refused.clear();
            }
            self.sums.refused.insert(dir, self.time() + pause);
        }
        let Some(gathering) = self.sums.gathering.get_mut(&dir) else { return };
        let tickets = std::mem::take(&mut gathering.tickets);
        if gathering.asked.is_empty() {
            self.sums.gathering.remove(&dir);
        }
        for ticket in self.waiting_for_sums(tickets) {
            self.lead(ticket);
        }
    }

    /// What a member has said of directories does not count any more.
    pub(in crate::member) fn forget_sums(
        &mut self,
        from: NodeId,
        number: u64,
        (epoch, holder): (u64, u64),
        dirs: &[InodeId],
    ) {
        if self.newest_start(from).is_none_or(|newest| epoch < newest) {
            return;
        }
        self.leases.starts.insert(from, epoch);
        self.change_sums(|member| {
            let known = &member.cluster().sums;
            match dirs {
                [] => known.forget_node(from),
                dirs => dirs.iter().for_each(|dir| known.forget(*dir, from)),
            }
        });
        // An answer that was given before may still come.
        if dirs.is_empty() {
            self.ask_anew(from);
        }
        for dir in dirs {
            if let Some(gathering) = self.sums.gathering.get_mut(dir) {
                gathering.asked.remove(&from);
                self.lead_instead(*dir, 0);
            }
        }
        if holder == self.epoch || self.leases.sole {
            self.send(from, Message::Sum(SumMessage::Revoked { number }));
        }
    }

    pub(in crate::member) fn tick_gathering(&mut self) {
        let now = self.now;
        let due = self.sums.gathering.iter().filter(|(_, gathering)| gathering.sent + RESEND <= now);
        for dir in due.map(|(dir, _)| *dir).collect::<Vec<_>>() {
            let Some(mut gathering) = self.sums.gathering.remove(&dir) else { continue };
            gathering.tickets = self.waiting_for_sums(gathering.tickets);
            if gathering.tickets.is_empty() {
                continue;
            }
            gathering.sent = now;
            let asked: Vec<(NodeId, u64)> =
                gathering.asked.iter().map(|(node, number)| (*node, *number)).collect();
            self.sums.gathering.insert(dir, gathering);
            for (node, number) in asked {
                self.send_ask(dir, node, number);
            }
        }
    }
}
