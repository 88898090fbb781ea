//! Serves the requests that a member leads: through its node, and back ([`crate::work`]).

use std::collections::BTreeSet;

use kestrel_meta::session::Claim;
use kestrel_meta::worker::{HandedBack, NotAloneReason};
use kestrel_types::clock::{MILLISECOND, Nanos};
use kestrel_types::ids::Position;
use kestrel_types::request::{Done, Op, Outcome, Reply, Request};

use super::message::polls::PollQuestion;
use super::poll::{Then, out_of_reach};
use super::work::{Back, Stage, Work};
use super::{ClusterNode, DEADLINE, Deferred, RESEND, Requester, forward, lease};

/// The longest random pause before something is tried again.
const PAUSE_MAX: Nanos = 500 * MILLISECOND;

impl ClusterNode {
    /// Leads a request, or a claim of opens, whichever member owns what it is about. Its ticket.
    pub(super) fn begin(
        &mut self,
        request: Request,
        asker: Requester,
        claim: Option<Claim>,
        back: Back,
    ) -> u64 {
        let ticket = self.put((request, asker), claim, back);
        self.run_alone(ticket);
        ticket
    }

    /// Has a request under way, which the node is going to be given, or has been.
    pub(super) fn put(
        &mut self,
        (request, asker): (Request, Requester),
        claim: Option<Claim>,
        back: Back,
    ) -> u64 {
        let ticket = self.number();
        let work = Work {
            request,
            asker,
            claim,
            back,
            until: self.now + DEADLINE,
            stage: Stage::Alone,
            tries: 0,
            // What the node met before this may have been given up since: then it is not parked.
            unlocks: self.unlocks.wrapping_sub(1),
            no_dirs: BTreeSet::new(),
            rounds: 0,
            counter: None,
            clone_work: None,
        };
        self.works.insert(ticket, work);
        ticket
    }

    /// Takes a request of a session that the node has tried to serve alone. Copies of it do not
    /// come: its session sees to that.
    pub(super) fn take_up(&mut self, handed_back: HandedBack, done: Done, now: Nanos) {
        self.at(now);
        let HandedBack { request, origin, why } = handed_back;
        if let Some(failure) = self.failure() {
            let failure = failure.clone();
            return self.refuse(done, failure);
        }
        let ticket = self.put((request, Requester::Session(origin)), None, Back::Here(done));
        self.elsewhere(ticket, why);
    }

    /// Lets the node try it alone.
    pub(super) fn run_alone(&mut self, ticket: u64) {
        if self.is_misdirected(ticket) || self.forward(ticket) {
            return;
        }
        if self.works.get(&ticket).is_some_and(|work| work.clone_work.is_some()) {
            return self.run_clone_work(ticket);
        }
        if self.begin_quota_request(ticket) || self.step_clone(ticket) || self.begin_walk(ticket) {
            return;
        }
        let alone = self.table.is_alone();
        let Some(work) = self.works.get_mut(&ticket) else { return };
        if matches!(work.request.op, Op::ReadDir { .. }) && !alone {
            return self.list(ticket);
        }
        let is_led = matches!(
            work.request.op,
            Op::ReadDirPlus { .. } | Op::RemovalCheck { .. } | Op::FeedRead { .. }
        );
        if is_led && !alone {
            return self.lead(ticket);
        }
        if matches!(work.request.op, Op::Usage) && !alone {
            work.stage = Stage::Polling;
            return self.poll(PollQuestion::Usage, Then::TellUsage(ticket));
        }
        if let (Op::Locate { files, after }, 0, false) =
            (&work.request.op, work.request.creds.uid, alone)
        {
            let question = PollQuestion::Locate(files.clone(), after.clone());
            work.stage = Stage::Polling;
            return self.poll(question, Then::TellLocated(ticket));
        }
        if matches!(work.request.op, Op::SnapshotUsage { .. }) && !alone {
            return self.tell_removal(ticket);
        }
        if matches!(work.request.op, Op::SnapshotChanges { .. }) && !alone {
            return self.compare(ticket);
        }
        if let (Op::At(snapshot, op), false) = (&work.request.op, alone) {
            return match self.node.at_snapshot(&work.request.creds, *snapshot, op) {
                Some(reply) => self.end_at(ticket, reply),
                None => self.lead(ticket),
            };
        }
        if matches!(work.request.op, Op::SnapshotList { dir: Some(_), .. }) && !alone {
            return self.lead(ticket);
        }
        work.stage = Stage::Alone;
        work.unlocks = self.unlocks;
        let (request, inbox) = (work.request.clone(), self.inbox.clone());
        self.node.submit_alone(request, work.asker.origin(), work.claim, inbox, ticket as usize);
    }

    /// Ends a request of a session that another member leads by the present table, unless it was
    /// executed before: then the record is what the session hears. Whether it was ended.
    pub(super) fn is_misdirected(&mut self, ticket: u64) -> bool {
        let Some(work) = self.works.get(&ticket) else { return false };
        let Requester::Session(origin) = work.asker else { return false };
        if self.table.leader(&work.request.op) == self.me
            || origin.is_some_and(|origin| self.node.has_answer(origin))
        {
            return false;
        }
        let table = self.table.placement.version;
        self.answer(ticket, Err(Outcome::Misdirected { table }));
        true
    }

    /// The node cannot serve it alone.
    pub(super) fn elsewhere(&mut self, ticket: u64, why: NotAloneReason) {
        match why {
            NotAloneReason::Away => self.lead(ticket),
            NotAloneReason::Later => self.rest(ticket, false),
            NotAloneReason::Cut => self.begin_cut(ticket),
            NotAloneReason::QuotaPart(want) => self.await_part(ticket, want),
            NotAloneReason::Quotas(of) => self.tell_quotas(ticket, Some(of)),
            NotAloneReason::Unleased => self.await_lease(ticket),
            NotAloneReason::Sum(dir) => self.gather(dir, ticket),
            NotAloneReason::Names(dir) => self.await_names(ticket, dir),
            NotAloneReason::CloneSource(_, at) => self.read_source_at(ticket, at),
            NotAloneReason::Leased(dir) if !self.revoke(dir) => self.run_alone(ticket),
            NotAloneReason::Locked | NotAloneReason::Leased(_) | NotAloneReason::Stopped => {
                self.park(ticket);
            }
            NotAloneReason::Dentry(want) => {
                if let Some(work) = self.works.get_mut(&ticket) {
                    work.stage = Stage::Fetching;
                }
                self.fetch(want, ticket);
            }
        }
    }

    /// It waits until locks are given up, or changes go on.
    pub(super) fn park(&mut self, ticket: u64) {
        let Some(work) = self.works.get_mut(&ticket) else { return };
        // Locks that were given up since the node tried it wake nobody any more.
        if work.unlocks != self.unlocks {
            return self.run_alone(ticket);
        }
        work.stage = Stage::Parked;
        self.parked.insert(ticket);
    }

    pub(super) fn resume_parked(&mut self) {
        for ticket in std::mem::take(&mut self.parked) {
            // It may have run out of time meanwhile.
            if self.works.get(&ticket).is_some_and(|work| matches!(work.stage, Stage::Parked)) {
                self.run_alone(ticket);
            }
        }
    }

    /// It is tried again after a random time, which grows with the number of tries.
    pub(super) fn rest(&mut self, ticket: u64, leads: bool) {
        let Some(work) = self.works.get_mut(&ticket) else { return };
        work.tries += 1;
        // They may be directories by then.
        work.no_dirs.clear();
        let most = ((2 * MILLISECOND) << work.tries.min(8)).min(PAUSE_MAX);
        let until = self.now + MILLISECOND + self.random_time(most);
        if let Some(work) = self.works.get_mut(&ticket) {
            work.stage = Stage::Resting { until, leads };
        }
    }

    /// Ends a request with this reply.
    pub(super) fn answer(&mut self, ticket: u64, reply: Reply) {
        let Some(work) = self.works.remove(&ticket) else { return };
        match work.back {
            Back::Here(done) => self.finished.push((done, reply)),
            Back::Deletion(ino) => self.deleted(ino, reply),
            Back::Names(dir) => self.names_given(dir, reply),
            Back::ClonedFile(clone, old) => self.clone_link_ended(clone, old, reply),
            Back::Forwarded(node, number) => self.answer_forward(node, number, reply),
        }
    }

    /// As [`ClusterNode::answer`], once a position is durable.
    pub(super) fn answer_after(&mut self, ticket: u64, reply: Reply, wait: Position) {
        if wait <= self.node.engine().durable() {
            return self.answer(ticket, reply);
        }
        self.when_durable(wait, Deferred::Answer(ticket, reply));
    }

    pub(super) fn tick_works(&mut self) {
        let now = self.now;
        let due = |work: &Work| match &work.stage {
            // The node answers, and so do the log and the poll.
            Stage::Alone | Stage::Ending | Stage::Polling | Stage::Cutting => false,
            Stage::Resting { until, .. } => *until <= now || work.until <= now,
            Stage::Leading(lead) => {
                work.until <= now && !lead.is_decided() || lead.sent() + RESEND <= now
            }
            Stage::Forwarded { sent } => work.until <= now || Self::is_forward_due(*sent, now),
            Stage::ReadingAt(read) => work.until <= now || read.is_due(now),
            Stage::ListingSnapshots(listing) => work.until <= now || listing.is_due(now),
            Stage::Parked
            | Stage::Fetching
            | Stage::Unleased
            | Stage::Gathering
            | Stage::AwaitingQuota
            | Stage::AwaitingNames
            | Stage::AwaitingCut => work.until <= now,
        };
        let due: Vec<u64> =
            self.works.iter().filter(|(_, work)| due(work)).map(|(ticket, _)| *ticket).collect();
        for ticket in due {
            let Some(work) = self.works.get(&ticket) else { continue };
            let decided = matches!(&work.stage, Stage::Leading(lead) if lead.is_decided());
            match &work.stage {
                _ if work.until <= now && !decided => self.time_out(ticket),
                Stage::Resting { leads: true, .. } if !self.table.is_alone() => self.lead(ticket),
                Stage::Resting { .. } | Stage::Forwarded { .. } => self.run_alone(ticket),
                Stage::ReadingAt(_) => self.ask_again_at(ticket),
                Stage::ListingSnapshots(_) => self.list_again(ticket),
                _ => self.send_again(ticket),
            }
        }
    }

    fn time_out(&mut self, ticket: u64) {
        let why = match self.works.get(&ticket).map(|work| &work.stage) {
            Some(Stage::Unleased) => lease::unleased(),
            Some(Stage::Forwarded { .. }) => forward::unknown(),
            _ => out_of_reach(),
        };
        self.give_up(ticket);
        self.forget_fetches(ticket);
        self.forget_waiting(ticket);
        self.walks.remove(&ticket);
        self.comparisons.remove(&ticket);
        let claims = self.node.core().reclaiming.lasts();
        let (now, mute) = (self.now, !self.cluster().may_answer());
        let is_numbered = |work: &Work| mute && work.asker.origin().is_some();
        if let Some(work) = self.works.get_mut(&ticket).filter(|work| is_numbered(work)) {
            // Of a retry an earlier start, or another process, may have made what it asks for: this
            // one must not say that nothing has changed. And the first asker would hear of a
            // failure where others only hear of a pause, for its session keeps the answer. It has a
            // deadline of its own.
            work.until = now + DEADLINE;
            return self.await_lease(ticket);
        }
        if let Some(work) =
            self.works.get_mut(&ticket).filter(|work| claims && work.claim.is_some())
        {
            // Nodes may start one after the other: what was open is not lost before the time for
            // claims is over.
            work.until = self.now + DEADLINE;
            return self.rest(ticket, true);
        }
        self.answer(ticket, Err(why.into()));
    }
}
