//! Requests about snapshots and quotas of a member's own process: its schedules, and people at its
//! machine. The member that leads snapshots executes them on behalf of the process.
//!
//! A client's session goes to the leader by itself ([`crate::Requester::Session`]). A member's own
//! process has no session, so its member sends the request on, again and again until it has the
//! answer. The leader keeps its last answers, and executes no request twice. A leader that
//! restarts has forgotten them: then the requester may hear that what it asked for is there
//! already.

use std::collections::{BTreeMap, VecDeque};

use kestrel_types::clock::Nanos;
use kestrel_types::error::FsError;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Op, Outcome, Reply, Request};

use super::message::Message;
use super::work::{Back, Stage};
use super::{ClusterNode, RESEND, Requester};

/// Answers that the leader keeps for members that may ask again.
const ANSWERS_MAX: usize = 64;

/// A request of another member: which member's, and its number there.
type From = (NodeId, u64);

/// Requests of other members' processes.
#[derive(Default)]
pub(super) struct Forwarded {
    /// Those under way, and answers to the last ones that have ended.
    answers: BTreeMap<From, Option<Reply>>,
    /// Those that have ended, the oldest first.
    ended: VecDeque<From>,
}

/// Whether an operation is forwarded: each that the leader of snapshots and quotas executes.
fn is_forwarded(op: &Op) -> bool {
    matches!(
        op,
        Op::SnapshotCreate { .. }
            | Op::SnapshotRename { .. }
            | Op::SnapshotRemove { .. }
            | Op::SnapshotHold { .. }
            | Op::SnapshotList { .. }
            | Op::CloneDir { .. }
            | Op::CloneStep(_)
            | Op::QuotaSet(..)
            | Op::QuotaRemove(_)
            | Op::QuotaList(None)
            | Op::QuotaCheck { .. }
    )
}

impl ClusterNode {
    /// Sends a request of this member's own process to the member that leads it, if that is another
    /// one that has to. Whether it did.
    pub(super) fn forward(&mut self, ticket: u64) -> bool {
        let now = self.now;
        let Some(work) = self.works.get_mut(&ticket) else { return false };
        let is_own = matches!(work.asker, Requester::Own) && is_forwarded(&work.request.op);
        let leader = self.table.leader(&work.request.op);
        if !is_own || leader == self.me {
            return false;
        }
        work.stage = Stage::Forwarded { sent: now };
        let (table, request) = (self.table.placement.version, Box::new(work.request.clone()));
        self.send(leader, Message::Forward { number: ticket, table, request });
        true
    }

    /// Whether a request that was sent on is to be sent again.
    pub(super) fn is_forward_due(sent: Nanos, now: Nanos) -> bool {
        sent + RESEND <= now
    }

    /// Another member sends a request of its process.
    pub(super) fn take_forward(&mut self, from: NodeId, number: u64, table: u64, request: Request) {
        if !self.agrees(from, table)
            || !is_forwarded(&request.op)
            || self.table.leader(&request.op) != self.me
        {
            let reply = Err(Outcome::Misdirected { table: self.table.placement.version });
            return self.send(from, Message::Forwarded { number, reply });
        }
        match self.forwarded.answers.get(&(from, number)) {
            Some(None) => {}
            Some(Some(reply)) => {
                let reply = reply.clone();
                self.send(from, Message::Forwarded { number, reply });
            }
            None => {
                self.forwarded.answers.insert((from, number), None);
                self.begin(request, Requester::Own, None, Back::Forwarded(from, number));
            }
        }
    }

    /// A request of another member's process has ended.
    pub(super) fn answer_forward(&mut self, to: NodeId, number: u64, reply: Reply) {
        let Forwarded { answers, ended } = &mut self.forwarded;
        answers.insert((to, number), Some(reply.clone()));
        ended.push_back((to, number));
        if ended.len() > ANSWERS_MAX
            && let Some(oldest) = ended.pop_front()
        {
            answers.remove(&oldest);
        }
        self.send(to, Message::Forwarded { number, reply });
    }

    /// The leader has answered.
    pub(super) fn heard_of_forward(&mut self, number: u64, reply: Reply) {
        let stage = self.works.get(&number).map(|work| &work.stage);
        if !matches!(stage, Some(Stage::Forwarded { .. })) {
            return;
        }
        match reply {
            // One of the two has a newer table.
            Err(Outcome::Misdirected { .. }) => self.rest(number, false),
            reply => self.answer(number, reply),
        }
    }
}

/// The leader did not answer in time.
pub(super) fn unknown() -> FsError {
    let text = "metadata: the node that leads snapshots did not answer in time; whether it has \
                done this `kestrel snapshot list` shows";
    FsError::new(libc::ETIMEDOUT, text)
}
