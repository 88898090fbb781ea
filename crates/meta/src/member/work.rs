//! Requests on their way through a member: to the one that leads them, through its node, and back.

use std::collections::BTreeSet;

use kestrel_types::clock::{MILLISECOND, Nanos};
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Op, Reply, Request};

use super::lead::Lead;
use super::message::Message;
use super::poll::{Question, Then, out_of_reach};
use super::{DEADLINE, FORWARDED_MAX, Member, RESEND, Todo};
use crate::engine::BatchKind;
use crate::node::Done;
use crate::ops;
use crate::ops::open::Claim;
use crate::txn::{self, Origin};
use crate::view::Want;
use crate::worker::{Elsewhere, Stray};

/// The longest random pause before something is tried again.
const PAUSE_MAX: Nanos = 500 * MILLISECOND;

/// Who gets a reply.
pub(super) enum Back {
    Here(Done),
    /// The member that sent the request on, and its number there.
    To(NodeId, u64),
    /// This member itself, which deletes this file without a name.
    Deletion(InodeId),
}

/// A request that another member leads.
pub(super) struct Forwarding {
    to: NodeId,
    request: Request,
    origin: Option<Origin>,
    pub done: Done,
    since: Nanos,
    sent: Nanos,
}

/// How far a request is.
pub(super) enum Stage {
    /// The node serves it, or waits for the log.
    Alone,
    /// It waits until locks are given up.
    Parked,
    /// It waits for a dentry.
    Fetching,
    /// It is tried again then: as a transaction, or alone.
    Resting { until: Nanos, leads: bool },
    /// It is a transaction.
    Leading(Lead),
    /// It waits for what all members say; the poll has its own deadline.
    Polling,
    /// It has ended; the reply waits for the log.
    Ending,
}

/// A request that this member leads.
pub(super) struct Work {
    pub request: Request,
    pub origin: Option<Origin>,
    /// It is no request but claims opens of before a restart; the request is an Open of the file.
    pub claim: Option<Claim>,
    pub backs: Vec<Back>,
    pub until: Nanos,
    pub stage: Stage,
    pub tries: u32,
    /// How often locks had been given up when the node tried it last.
    unlocks: u64,
    /// Parts of its path that were no directories.
    pub no_dirs: BTreeSet<Want>,
    /// What the number of a new inode is made of: the same in every run of a transaction.
    pub counter: Option<u64>,
}

impl Member {
    /// Takes a request in: here, or at the member that leads it.
    pub(super) fn admit(&mut self, request: Request, origin: Option<Origin>, back: Back) {
        let leader = self.table.leader(&request.op);
        if leader == self.me {
            self.begin(request, origin, None, back);
            return;
        }
        let Back::Here(done) = back else {
            // The sender has another table. There is one so far: it is a mistake, and a loop must not come of it.
            let why = FsError::new(libc::EINVAL, "member: another member leads this request");
            return self.give(back, Err(why.into()));
        };
        let number = self.number();
        let (to, since) = (leader, self.now);
        self.send(to, Message::Forward { number, request: request.clone(), origin });
        self.forwards.insert(number, Forwarding { to, request, origin, done, since, sent: since });
    }

    pub(super) fn forwarded(&mut self, number: u64, reply: Reply) {
        if let Some(forwarding) = self.forwards.remove(&number) {
            self.finished.push((forwarding.done, reply));
        }
    }

    /// Leads a request, or a claim of opens, whoever owns what it is about. Its ticket.
    pub(super) fn begin(
        &mut self,
        request: Request,
        origin: Option<Origin>,
        claim: Option<Claim>,
        back: Back,
    ) -> u64 {
        let ticket = self.number();
        // Another copy of it may be running.
        let running = match (origin, &back) {
            (Some(origin), _) => *self.running.entry((origin.client, origin.seq)).or_insert(ticket),
            (None, Back::To(node, number)) => *self.reading.entry((*node, *number)).or_insert(ticket),
            (None, Back::Here(_) | Back::Deletion(_)) => ticket,
        };
        if let Some(work) = self.works.get_mut(&running) {
            work.add_back(back);
            return running;
        }
        // Whether it was executed before only its row can tell: it may have come by way of another member.
        let origin = origin.map(|origin| Origin { retry: true, ..origin });
        let until = self.now + DEADLINE;
        let (backs, no_dirs) = (vec![back], BTreeSet::new());
        let stage = Stage::Alone;
        let work = Work {
            request,
            origin,
            claim,
            backs,
            until,
            stage,
            tries: 0,
            unlocks: 0,
            no_dirs,
            counter: None,
        };
        self.works.insert(ticket, work);
        self.run_alone(ticket);
        ticket
    }

    /// Takes a request of a session that the node has tried to serve alone. Copies of it do not come: its session sees to that.
    pub(super) fn take_up(&mut self, stray: Stray, done: Done) {
        let Stray { request, origin, why } = stray;
        if let Some(failure) = self.failure() {
            let failure = failure.clone();
            return self.finished.push((done, Err(failure.into())));
        }
        let ticket = self.number();
        let until = self.now + DEADLINE;
        let (backs, no_dirs, stage) = (vec![Back::Here(done)], BTreeSet::new(), Stage::Alone);
        // What it met may have been given up before this: then it is not parked.
        let unlocks = self.unlocks.wrapping_sub(1);
        let work = Work {
            request,
            origin,
            claim: None,
            backs,
            until,
            stage,
            tries: 0,
            unlocks,
            no_dirs,
            counter: None,
        };
        self.works.insert(ticket, work);
        self.elsewhere(ticket, why);
    }

    /// Lets the node try it alone.
    pub(super) fn run_alone(&mut self, ticket: u64) {
        let alone = self.table.is_alone();
        let Some(work) = self.works.get_mut(&ticket) else { return };
        if matches!(work.request.op, Op::ReadDir { .. }) && !alone {
            return self.lead(ticket);
        }
        if matches!(work.request.op, Op::Usage) && !alone {
            work.stage = Stage::Polling;
            return self.poll(Question::Usage, Then::TellUsage(ticket));
        }
        if matches!(work.request.op, Op::TreeUsage(_)) && !alone {
            work.stage = Stage::Polling;
            return self.walk_tree(ticket);
        }
        work.stage = Stage::Alone;
        work.unlocks = self.unlocks;
        let (request, inbox) = (work.request.clone(), self.inbox.clone());
        self.node.submit_alone(request, work.origin, work.claim, inbox, ticket as usize);
    }

    /// The node cannot serve it alone.
    pub(super) fn elsewhere(&mut self, ticket: u64, why: Elsewhere) {
        match why {
            Elsewhere::Away => self.lead(ticket),
            Elsewhere::Later => self.rest(ticket, false),
            Elsewhere::Locked => {
                let Some(work) = self.works.get_mut(&ticket) else { return };
                // Locks that were given up since the node tried it wake nobody any more.
                if work.unlocks != self.unlocks {
                    return self.run_alone(ticket);
                }
                work.stage = Stage::Parked;
            }
            Elsewhere::Dentry(want) => {
                if let Some(work) = self.works.get_mut(&ticket) {
                    work.stage = Stage::Fetching;
                }
                self.fetch(want, ticket);
            }
        }
    }

    pub(super) fn resume_parked(&mut self) {
        let parked = |work: &Work| matches!(work.stage, Stage::Parked);
        let parked: Vec<u64> =
            self.works.iter().filter(|(_, work)| parked(work)).map(|(ticket, _)| *ticket).collect();
        for ticket in parked {
            self.run_alone(ticket);
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
        if let Some(origin) = work.origin {
            let number = (origin.client, origin.seq);
            if self.running.get(&number) == Some(&ticket) {
                self.running.remove(&number);
            }
        }
        for back in work.backs {
            if let (None, Back::To(node, number)) = (work.origin, &back) {
                self.reading.remove(&(*node, *number));
            }
            // There is more than one only if somebody asked again.
            self.give(back, reply.clone());
        }
    }

    /// Ends a request that changed nothing with this reply, which is recorded unless requests come by sessions, or it may change how
    /// files are open.
    pub(super) fn conclude(&mut self, ticket: u64, reply: Reply) {
        let any_way = !self.cluster().by_sessions;
        let Some(work) = self.works.get_mut(&ticket) else { return };
        work.stage = Stage::Ending;
        // A session sees to it that no copy comes late, and what has changed nothing may be tried again after a restart.
        let recorded = work.origin.filter(|_| any_way && !ops::counts_opens(&work.request.op));
        let Some(origin) = recorded else { return self.answer(ticket, reply) };
        match self.commit(BatchKind::Freeing, vec![txn::answer_row(origin, &reply)]) {
            Ok(position) => self.when_durable(position, Todo::Answer(ticket, reply)),
            Err(why) => self.answer(ticket, Err(why.into())),
        }
    }

    fn give(&mut self, back: Back, reply: Reply) {
        match back {
            Back::Here(done) => self.finished.push((done, reply)),
            Back::To(node, number) => self.send(node, Message::Forwarded(number, reply)),
            Back::Deletion(ino) => self.deleted(ino, reply),
        }
    }

    pub(super) fn tick_works(&mut self) {
        let now = self.now;
        let due = |work: &Work| match &work.stage {
            // The node answers, and so do the log and the poll.
            Stage::Alone | Stage::Ending | Stage::Polling => false,
            Stage::Resting { until, .. } => *until <= now || work.until <= now,
            Stage::Leading(lead) => work.until <= now && !lead.is_decided() || lead.sent() + RESEND <= now,
            Stage::Parked | Stage::Fetching => work.until <= now,
        };
        let due: Vec<u64> =
            self.works.iter().filter(|(_, work)| due(work)).map(|(ticket, _)| *ticket).collect();
        for ticket in due {
            let Some(work) = self.works.get(&ticket) else { continue };
            let decided = matches!(&work.stage, Stage::Leading(lead) if lead.is_decided());
            match &work.stage {
                _ if work.until <= now && !decided => self.time_out(ticket),
                Stage::Resting { leads: true, .. } => self.lead(ticket),
                Stage::Resting { leads: false, .. } => self.run_alone(ticket),
                _ => self.send_again(ticket),
            }
        }
        let mut again = Vec::new();
        self.forwards.retain(|number, forwarding| {
            if forwarding.sent + RESEND <= now {
                forwarding.sent = now;
                let Forwarding { to, request, origin, .. } = &*forwarding;
                let (request, origin) = (request.clone(), *origin);
                again.push((*to, Message::Forward { number: *number, request, origin }));
            }
            forwarding.since + FORWARDED_MAX > now
        });
        for (to, message) in again {
            self.send(to, message);
        }
    }

    fn time_out(&mut self, ticket: u64) {
        self.give_up(ticket);
        self.forget_fetches(ticket);
        let claims = self.node.core().reclaiming.lasts();
        if let Some(work) = self.works.get_mut(&ticket).filter(|work| claims && work.claim.is_some()) {
            // Nodes may start one after the other: what was open is not lost before the time for claims is over.
            work.until = self.now + DEADLINE;
            return self.rest(ticket, true);
        }
        self.conclude(ticket, Err(out_of_reach().into()));
    }
}

impl Work {
    /// Somebody else wants the reply, or the same again.
    fn add_back(&mut self, back: Back) {
        let same = |other: &Back| match (other, &back) {
            (Back::To(node, number), Back::To(other, same)) => (node, number) == (other, same),
            _ => false,
        };
        if !self.backs.iter().any(same) {
            self.backs.push(back);
        }
    }
}
