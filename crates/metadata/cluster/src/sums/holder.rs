//! The holder: asks for sums, and forgets them when it is told to.

use std::collections::BTreeMap;

use kestrel_meta::lease::NEVER;
use kestrel_meta::sums::DIRS_MAX;
use kestrel_types::clock::Nanos;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::stat::DirStat;

use super::{COOL_MAX, Gathering, Subject};
use crate::lease::LEASE;
use crate::message::Message;
use crate::message::sums::{Also, Names, SumMessage};
use crate::work::Stage;
use crate::{ClusterNode, RESEND};

impl ClusterNode {
    /// The leases on sums end when the first of them does.
    pub(crate) fn hold_sums(&self) {
        let held =
            self.sums.others.iter().map(|node| self.sums.held.get(node).copied().unwrap_or(NEVER));
        self.cluster().sums.set_until(held.min().unwrap_or(NEVER));
    }

    /// A member has granted what was asked for then, and keeps its promise about sums.
    pub(crate) fn sums_granted(&mut self, from: NodeId, sent: Nanos) {
        let until = sent + LEASE;
        let before = self.sums.held.get(&from).copied().unwrap_or(NEVER);
        if until <= before {
            return;
        }
        if self.time() >= before {
            // Nobody may have told this one what has changed since.
            self.change_sums(|member| member.cluster().sums.forget_node(from));
            self.forget_names(from, &[]);
            self.ask_anew(from);
        }
        self.sums.held.insert(from, until);
        self.hold_sums();
    }

    /// Answers of a member to what it was asked until now do not count.
    pub(crate) fn ask_anew(&mut self, node: NodeId) {
        let asked = |gathering: &Gathering| gathering.asked.contains_key(&node);
        let subjects = self.sums.gathering.iter().filter(|(_, gathering)| asked(gathering));
        for subject in subjects.map(|(subject, _)| subject.clone()).collect::<Vec<_>>() {
            self.ask_sum(subject, node);
        }
    }

    fn ask_sum(&mut self, subject: Subject, node: NodeId) {
        let number = self.number();
        if let Some(gathering) = self.sums.gathering.get_mut(&subject) {
            gathering.asked.insert(node, number);
        }
        self.send_ask(subject, node, number);
    }

    fn send_ask(&mut self, (dir, also): Subject, node: NodeId, number: u64) {
        let (table, epoch) = (self.table.placement.version, self.epoch);
        self.send(node, Message::Sum(SumMessage::Ask { number, table, epoch, dir, also }));
    }

    /// Whether there may be leases on a directory at present.
    pub(super) fn may_gather(&self, dir: InodeId) -> bool {
        let now = self.time();
        let refused = self.sums.refused.get(&dir).is_some_and(|until| now < *until);
        !refused && self.cluster().sums.is_held(now)
    }

    /// A request shows a directory, and what other members' shares come to is not known, or does
    /// not count.
    pub(crate) fn gather(&mut self, dir: InodeId, ticket: u64) {
        if !self.may_gather(dir) {
            return self.lead(ticket);
        }
        let missing = self.cluster().sums.missing(dir, &self.sums.others);
        if missing.is_empty() {
            return self.run_alone(ticket);
        }
        self.gather_from(missing, (dir, Also::Nothing), ticket);
    }

    /// A request waits for what these members say.
    pub(super) fn gather_from(&mut self, nodes: Vec<NodeId>, subject: Subject, ticket: u64) {
        let Some(work) = self.works.get_mut(&ticket) else { return };
        work.stage = Stage::Gathering;
        let now = self.now;
        let fresh = || Gathering { asked: BTreeMap::new(), tickets: Vec::new(), sent: now };
        let gathering = self.sums.gathering.entry(subject.clone()).or_insert_with(fresh);
        gathering.tickets.push(ticket);
        let ask = nodes.into_iter().filter(|node| !gathering.asked.contains_key(node));
        for node in ask.collect::<Vec<_>>() {
            self.ask_sum(subject.clone(), node);
        }
    }

    /// What was asked of a member by this number.
    fn subject_of(&self, node: NodeId, number: u64, dir: InodeId) -> Option<Subject> {
        let from = (dir, Also::Nothing);
        let about = self.sums.gathering.range(from..).take_while(|((other, _), _)| *other == dir);
        let mut asked = about.filter(|(_, gathering)| gathering.asked.get(&node) == Some(&number));
        asked.next().map(|(subject, _)| subject.clone())
    }

    /// All that is being asked about a directory.
    fn subjects_of(&self, dir: InodeId) -> Vec<Subject> {
        let about = self.sums.gathering.range((dir, Also::Nothing)..);
        about.map(|(subject, _)| subject.clone()).take_while(|(other, _)| *other == dir).collect()
    }

    pub(super) fn told_sum(
        &mut self,
        from: NodeId,
        (number, epoch): (u64, u64),
        dir: InodeId,
        (sum, names): (DirStat, Option<Names>),
    ) {
        // An earlier start of it may still be running, and its promise does not bind the newer one.
        if self.newest_start(from).is_none_or(|newest| epoch < newest) {
            return;
        }
        let Some(subject) = self.subject_of(from, number, dir) else { return };
        let Some(gathering) = self.sums.gathering.get_mut(&subject) else { return };
        gathering.asked.remove(&from);
        let complete = gathering.asked.is_empty();
        self.change_sums(|member| member.cluster().sums.put(dir, from, sum));
        if let (Also::Names { after, .. }, Some(names)) = (&subject.1, names) {
            self.keep_names(dir, from, after.clone(), names);
        }
        if complete && let Some(gathering) = self.sums.gathering.remove(&subject) {
            for ticket in self.waiting_for_sums(gathering.tickets) {
                self.run_alone(ticket);
            }
        }
    }

    /// Those of the requests that still wait.
    pub(crate) fn waiting_for_sums(&self, tickets: Vec<u64>) -> Vec<u64> {
        let waits = |ticket: &u64| {
            self.works.get(ticket).is_some_and(|work| matches!(work.stage, Stage::Gathering))
        };
        tickets.into_iter().filter(waits).collect()
    }

    pub(super) fn refused_sum(&mut self, from: NodeId, number: u64, dir: InodeId, pause: u64) {
        let Some(subject) = self.subject_of(from, number, dir) else { return };
        let pause = Nanos::try_from(pause).unwrap_or(Nanos::MAX).min(COOL_MAX);
        if pause > 0 {
            if self.sums.refused.len() >= DIRS_MAX {
                self.sums.refused.clear();
            }
            self.sums.refused.insert(dir, self.time() + pause);
        }
        self.lead_instead(from, &subject);
    }

    /// Requests that wait for what this member says borrow rows instead. What others were asked for
    /// may still come, and is kept.
    fn lead_instead(&mut self, from: NodeId, subject: &Subject) {
        let Some(gathering) = self.sums.gathering.get_mut(subject) else { return };
        if gathering.asked.remove(&from).is_none() {
            return;
        }
        let tickets = std::mem::take(&mut gathering.tickets);
        if gathering.asked.is_empty() {
            self.sums.gathering.remove(subject);
        }
        for ticket in self.waiting_for_sums(tickets) {
            self.lead(ticket);
        }
    }

    /// What a member has said of directories does not count any more.
    pub(crate) fn forget_sums(
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
        self.forget_names(from, dirs);
        for subject in dirs.iter().flat_map(|dir| self.subjects_of(*dir)).collect::<Vec<_>>() {
            self.lead_instead(from, &subject);
        }
        if holder == self.epoch || self.leases.exclusive {
            self.send(from, Message::Sum(SumMessage::Revoked { number }));
        }
    }

    pub(crate) fn tick_gathering(&mut self) {
        let now = self.now;
        let due =
            self.sums.gathering.iter().filter(|(_, gathering)| gathering.sent + RESEND <= now);
        for subject in due.map(|(subject, _)| subject.clone()).collect::<Vec<_>>() {
            let Some(mut gathering) = self.sums.gathering.remove(&subject) else { continue };
            gathering.tickets = self.waiting_for_sums(gathering.tickets);
            if gathering.tickets.is_empty() {
                continue;
            }
            gathering.sent = now;
            let asked: Vec<(NodeId, u64)> =
                gathering.asked.iter().map(|(node, number)| (*node, *number)).collect();
            self.sums.gathering.insert(subject.clone(), gathering);
            for (node, number) in asked {
                self.send_ask(subject.clone(), node, number);
            }
        }
    }
}
