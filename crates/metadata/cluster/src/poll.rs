//! Polls: a question to all members that serve clients, this one included if it does.
//!
//! It is sent again to members that have not answered. It ends with all answers, by member, or
//! after [`DEADLINE`] with `None`: a member is not to be had, and what it would have said is not
//! known. A member answers each copy of a question as things are when it gets it; the first answer
//! counts. One that has another table does not answer, and when the table of the asking member
//! changes it asks again from the start: so all answers are by one table.

use std::collections::BTreeMap;

use kestrel_meta::history::at::GONE;
use kestrel_meta::node::Node;
use kestrel_meta::ops::locate;
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::name::Name;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer as Answered, Usage};
use kestrel_types::snapshot::SnapshotId;

use super::message::Message;
use super::message::polls::{PollAnswer, PollQuestion};
use super::{ClusterNode, DEADLINE, Deferred, RESEND};

/// Most directories in others that a member tells at a time.
pub(super) const CHILDREN_MAX: usize = 4096;

/// What happens when a poll has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Then {
    /// The request with this ticket hears the sum.
    TellUsage(u64),
    /// The request with this ticket hears which files were found.
    TellLocated(u64),
    /// The walk for this request goes on.
    WalkOn(u64),
    /// This round of deleting objects goes on.
    Weighed(u64),
    /// As above.
    Confirmed(u64),
    /// As above.
    Forgotten(u64),
    /// Callers that wait for what all nodes have hear it.
    Counted,
    /// Nothing.
    Nothing,
    /// Those of these files without names that nobody has open are deleted. With the numbers of
    /// their cases.
    Delete(Vec<(InodeId, u64)>),
}

/// A poll under way.
pub(super) struct Poll {
    question: PollQuestion,
    answers: BTreeMap<NodeId, PollAnswer>,
    then: Then,
    /// When the members that have not answered were asked last.
    sent: Nanos,
    until: Nanos,
}

impl Poll {
    /// Whether it decides about files without names.
    pub fn is_about_orphans(&self) -> bool {
        matches!(self.then, Then::Delete(_))
    }
}

impl ClusterNode {
    /// Asks all of them. `then` hears the answers in [`ClusterNode::poll_ended`].
    pub(super) fn poll(&mut self, question: PollQuestion, then: Then) {
        let (number, now) = (self.number(), self.now);
        let poll =
            Poll { question, answers: BTreeMap::new(), then, sent: now, until: now + DEADLINE };
        self.polls.insert(number, poll);
        self.send_poll(number);
    }

    fn send_poll(&mut self, number: u64) {
        let now = self.now;
        let nodes: Vec<NodeId> = self.table.serving().collect();
        let table = self.table.placement.version;
        let Some(poll) = self.polls.get_mut(&number) else { return };
        poll.sent = now;
        let silent = nodes.into_iter().filter(|node| !poll.answers.contains_key(node));
        let (silent, question): (Vec<NodeId>, _) = (silent.collect(), poll.question.clone());
        for node in silent {
            self.send(node, Message::Poll { number, table, question: question.clone() });
        }
    }

    /// Answers another member, or this one.
    pub(super) fn polled(&mut self, from: NodeId, number: u64, question: PollQuestion) {
        let (answer, wait) = match question {
            // A crash undoes what is not durable; figures may come out wrong by that much for a
            // moment, as on one node.
            PollQuestion::Usage => (PollAnswer::Usage(self.node.figures()), 0),
            PollQuestion::Held(mut files) => {
                let core = self.node.core();
                let soon = self.about_to_open();
                let is_open = |ino: &InodeId| core.opens.get(*ino).count > 0 || soon.contains(ino);
                files.retain(|ino| core.reclaiming.lasts() || is_open(ino));
                (PollAnswer::Held(files), 0)
            }
            PollQuestion::Tree(dirs, after) => return self.tell_tree(from, number, &dirs, after),
            PollQuestion::Weigh(round, objects) => {
                return self.weigh(from, number, round, &objects);
            }
            PollQuestion::Confirm(round, objects) => {
                return self.confirm(from, number, round, objects);
            }
            PollQuestion::Entries => {
                match self.census.as_ref().and_then(|census| census(&self.table)) {
                    Some(report) => (PollAnswer::Entries(report), 0),
                    None => return,
                }
            }
            PollQuestion::Locate(files, after) => {
                match self.locate(&self.node, &files, after.as_ref()) {
                    Ok(located) => (located, 0),
                    // The asking member gives up at its deadline.
                    Err(why) => {
                        return log::error!("files that another node looks for by number: {why}");
                    }
                }
            }
            PollQuestion::At(snapshot, question) => match self.polled_at(snapshot, *question) {
                Ok(answer) => (answer, 0),
                Err(why) if why.errno == libc::ESTALE => (PollAnswer::Gone, 0),
                Err(why) => return log::error!("what another node asks of a snapshot: {why}"),
            },
            // Its shares are on their way to another member, which is asked by the next table.
            PollQuestion::Forget(..) if self.is_frozen_to_leave() => return,
            PollQuestion::Forget(round, objects) => match self
                .node
                .forget_objects(from, round, &objects)
            {
                Ok(position) => (PollAnswer::Done, position),
                // It is asked again.
                Err(why) => {
                    return log::error!("shares of objects that another node has deleted: {why}");
                }
            },
        };
        self.answer_poll(from, number, answer, wait);
    }

    /// Tells an answer once this is durable.
    pub(super) fn answer_poll(
        &mut self,
        to: NodeId,
        number: u64,
        answer: PollAnswer,
        wait: Position,
    ) {
        // Another one may have begun to serve while rows were read.
        if !self.cluster().may_answer() {
            return;
        }
        self.when_durable(wait, Deferred::Send(to, Message::Polled { number, answer }));
    }

    /// A member has answered.
    pub(super) fn told(&mut self, from: NodeId, number: u64, answer: PollAnswer) {
        let count = self.table.serving().count();
        let placement = &self.table.placement;
        let is_asked = placement.map.member(from).is_some() && !placement.is_idle(from);
        let Some(poll) = self.polls.get_mut(&number).filter(|_| is_asked) else { return };
        if !poll.question.is_answered_by(&answer) {
            return log::error!("node {from} answered something else than it was asked");
        }
        poll.answers.entry(from).or_insert(answer);
        if poll.answers.len() == count
            && let Some(poll) = self.polls.remove(&number)
        {
            self.poll_ended(poll.then, Some(poll.answers));
        }
    }

    /// The files that are among the next names which this member owns.
    fn locate(
        &self,
        node: &Node,
        files: &[InodeId],
        after: Option<&(InodeId, Name)>,
    ) -> FsResult<PollAnswer> {
        let (table, me) = (&self.table, self.me);
        let own = |dir: InodeId, name: &[u8]| table.owner_of_entry(dir, name) == me;
        match locate::run(&**node.engine(), (files, after), &own)? {
            Answered::Located { found, next } => Ok(PollAnswer::Located(found, next)),
            _ => Ok(PollAnswer::Located(Vec::new(), None)),
        }
    }

    /// What this member's rows were at a snapshot.
    fn polled_at(&self, snapshot: SnapshotId, question: PollQuestion) -> FsResult<PollAnswer> {
        let node = self.node.node_at(snapshot)?;
        match question {
            PollQuestion::Tree(dirs, after) => {
                node.tree_part(&dirs, after, CHILDREN_MAX).map(PollAnswer::Tree)
            }
            PollQuestion::Locate(files, after) => self.locate(&node, &files, after.as_ref()),
            _ => Err(FsError::new(libc::EINVAL, "nobody asks this of a snapshot")),
        }
    }

    fn poll_ended(&mut self, then: Then, answers: Option<BTreeMap<NodeId, PollAnswer>>) {
        match then {
            Then::TellUsage(ticket) => {
                let reply = match answers {
                    Some(answers) => Ok(Answered::Usage(sum(answers.values()))),
                    None => Err(out_of_reach().into()),
                };
                self.answer(ticket, reply);
            }
            Then::TellLocated(ticket) => {
                let reply = match answers {
                    Some(answers) if is_gone(&answers) => return self.lacked_at(ticket),
                    Some(answers) => Ok(merge_located(answers)),
                    None => Err(out_of_reach().into()),
                };
                self.answer(ticket, reply);
            }
            Then::WalkOn(ticket) => self.walked(ticket, answers),
            Then::Weighed(round) => self.weighed(round, answers),
            Then::Confirmed(round) => self.confirmed(round, answers),
            Then::Forgotten(round) => self.forgotten(round, answers.is_some()),
            Then::Counted => self.counted(answers),
            Then::Nothing => {}
            Then::Delete(cases) => self.delete_unless_held(&cases, answers),
        }
    }

    /// The table has changed: members may be others, and what each has. What was asked for requests
    /// these ask for themselves.
    pub(super) fn ask_again(&mut self) {
        for poll in std::mem::take(&mut self.polls).into_values() {
            match poll.then {
                Then::TellUsage(_) | Then::TellLocated(_) | Then::WalkOn(_) => {}
                // Some of the files may have another home now.
                Then::Delete(_) => self.poll_ended(poll.then, None),
                // The weights that it goes by were those of other members, or of what they had
                // then.
                Then::Confirmed(round) => self.end_round_early(round),
                then => self.poll(poll.question, then),
            }
        }
    }

    pub(super) fn tick_polls(&mut self) {
        let now = self.now;
        let due =
            self.polls.iter().filter(|(_, poll)| poll.sent + RESEND <= now || poll.until <= now);
        for number in due.map(|(number, _)| *number).collect::<Vec<_>>() {
            match self.polls.get(&number) {
                Some(poll) if poll.until > now => self.send_poll(number),
                _ => {
                    if let Some(poll) = self.polls.remove(&number) {
                        self.poll_ended(poll.then, None);
                    }
                }
            }
        }
    }
}

/// Somebody did not answer in time.
pub(super) fn out_of_reach() -> FsError {
    let text =
        "metadata: other nodes of the cluster could not be reached in time; nothing has changed";
    FsError::new(libc::ETIMEDOUT, text)
}

/// What becomes of a read at a snapshot that is removed meanwhile.
pub(super) const fn gone() -> FsError {
    FsError::new(libc::ESTALE, GONE)
}

/// Whether a member has said that there is no such snapshot.
pub(super) fn is_gone(answers: &BTreeMap<NodeId, PollAnswer>) -> bool {
    answers.values().any(|answer| *answer == PollAnswer::Gone)
}

/// What all members have found, and from where on none of them has read.
fn merge_located(answers: BTreeMap<NodeId, PollAnswer>) -> Answered {
    let (mut found, mut next) = (Vec::new(), None);
    for answer in answers.into_values() {
        let PollAnswer::Located(files, read) = answer else { continue };
        found.extend(files);
        next = match (next, read) {
            (Some(next), Some(read)) => Some(std::cmp::min(next, read)),
            (next, read) => next.or(read),
        };
    }
    Answered::Located { found, next }
}

fn sum<'a>(answers: impl Iterator<Item = &'a PollAnswer>) -> Usage {
    let mut sum = [0i64; 3];
    for answer in answers {
        if let PollAnswer::Usage(part) = answer {
            sum = std::array::from_fn(|i| sum[i].wrapping_add(part[i]));
        }
    }
    let [files, dirs, bytes] = sum.map(|value| value.max(0).cast_unsigned());
    Usage { files, dirs, bytes }
}
