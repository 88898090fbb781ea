//! Polls: a question to all members that serve clients, this one included if it does.
//!
//! It is sent again to members that have not answered. It ends with all answers, by member, or
//! after [`DEADLINE`] with `None`: a member is not to be had, and what it would have said is not
//! known. A member answers each copy of a question as things are when it gets it; the first answer
//! counts. One that has another table does not answer, and when the table of the asking member
//! changes it asks again from the start: so all answers are by one table.

use std::collections::BTreeMap;

use kestrel_meta::feeds::{FeedPlace, FeedQuestion, check_reader, merge};
use kestrel_meta::history::at::GONE;
use kestrel_meta::history::changes::LocatedPage;
use kestrel_meta::node::{BAD_CURSOR, CountedPage, Node};
use kestrel_meta::ops::locate;
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::feed::FeedStart;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::name::Name;
use kestrel_types::placement::NodeId;
use kestrel_types::quota::QuotaSubject;
use kestrel_types::request::{Answer as Answered, Op, Usage};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::snapshot_changes::{HistoryCursor, SnapshotUsage};

use super::message::Message;
use super::message::polls::{PollAnswer, PollQuestion};
use super::message::snapshots::SnapshotOrder;
use super::work::Stage;
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
    /// The request with this ticket, which asks so, hears a page of a change feed.
    TellFeed(u64, FeedStart, Box<FeedQuestion>),
    /// The request with this ticket hears what removing a snapshot would give back of this node's
    /// history.
    TellRemoval(u64, NodeId),
    /// The request with this ticket hears what counts towards these quotas, or all.
    TellQuotas(u64, Option<Vec<QuotaSubject>>),
    /// The leader of snapshots looks which clones have ended.
    Clones,
    /// This change of the quotas goes on.
    CountQuotas(SnapshotOrder),
    /// The walk for this request goes on.
    WalkOn(u64),
    /// The comparison of two moments for this request goes on.
    CompareOn(u64),
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
            PollQuestion::Feed(asked) => {
                let (looked_at, mut wait) = ((self.node.core().scan_rows / 2).max(1), 0);
                match self.node.feed_part(&asked, looked_at, &mut wait) {
                    Ok(part) => (PollAnswer::Feed(Box::new(part)), wait),
                    // Where the rows are nobody answers at present.
                    Err(why) if why.errno == libc::EIO && self.cluster().is_shared() => return,
                    Err(why) => (PollAnswer::Failed(why), 0),
                }
            }
            PollQuestion::Removal(snapshot, node, after) if node == self.me => {
                match self.node.snapshot_usage(snapshot, after.as_ref()) {
                    Ok(usage) => (PollAnswer::Removal(usage), 0),
                    Err(why) if why.errno == libc::ESTALE => (PollAnswer::Gone, 0),
                    Err(why) if why.errno == libc::EIO && self.cluster().is_shared() => return,
                    Err(why) => (PollAnswer::Failed(why), 0),
                }
            }
            PollQuestion::Removal(..) => (PollAnswer::Done, 0),
            PollQuestion::Quotas(of) => {
                // Of a node that does not yet know the quotas, too.
                (PollAnswer::Quotas(self.node.quota_parts(of.as_deref())), self.node.last_commit())
            }
            PollQuestion::Clones(ending) => match self.report_clones(&ending) {
                Ok(report) => (PollAnswer::Clones(report), self.node.last_commit()),
                Err(why) => return log::error!("clones that another node asks for: {why}"),
            },
            PollQuestion::Parents(dirs) => match self.node.parents_of(&dirs) {
                Ok(found) => (PollAnswer::Parents(found), 0),
                Err(why) if why.errno == libc::EIO && self.cluster().is_shared() => return,
                Err(why) => (PollAnswer::Failed(why), 0),
            },
            PollQuestion::Count(count, places) => {
                let place = places.iter().find(|(node, _)| *node == self.me);
                let page = place.map(|(_, after)| self.node.count_page(&count, after.as_ref()));
                match page.unwrap_or_else(|| Ok(CountedPage::default())) {
                    Ok(page) => (PollAnswer::Counted(Box::new(page)), 0),
                    Err(why) if why.errno == libc::EIO && self.cluster().is_shared() => return,
                    Err(why) => (PollAnswer::Failed(why), 0),
                }
            }
            PollQuestion::Changes(asked) => match self.node.tell_changes(&asked) {
                Ok(part) => (PollAnswer::Changes(Box::new(part)), 0),
                Err(why) if why.errno == libc::ESTALE => (PollAnswer::Gone, 0),
                Err(why) if why.errno == libc::EIO && self.cluster().is_shared() => return,
                Err(why) => (PollAnswer::Failed(why), 0),
            },
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

    /// Begins to answer `Op::FeedRead`, if the replica knows the feed; else a transaction has to
    /// look for it. Whether it did.
    pub(super) fn read_feed(&mut self, ticket: u64) -> bool {
        let Some(work) = self.works.get(&ticket) else { return true };
        let Op::FeedRead { dir, from, .. } = work.request.op else { return false };
        if let Err(why) = check_reader(&work.request.creds) {
            self.answer(ticket, Err(why.into()));
            return true;
        }
        match self.node.known_feed(dir, from) {
            None => return false,
            Some(Ok(place)) => self.poll_feed(ticket, place),
            Some(Err(why)) => self.answer(ticket, Err(why.into())),
        }
        true
    }

    /// Asks all members for their parts of a feed. Each has issued no timestamp below this member's
    /// when it answers, so that all are complete up to now.
    pub(super) fn poll_feed(&mut self, ticket: u64, place: FeedPlace) {
        if let Err(why) = self.node.raise_ceiling() {
            return self.answer(ticket, Err(why.into()));
        }
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let Op::FeedRead { from, limit, .. } = work.request.op else { return };
        work.stage = Stage::Polling;
        let asked = Box::new(FeedQuestion::new(place, from, limit));
        self.poll(PollQuestion::Feed(asked.clone()), Then::TellFeed(ticket, from, asked));
    }

    /// Begins to answer `Op::SnapshotUsage`: the nodes have their turn one after the other, as a
    /// cursor begins with the number of the node that it is at.
    pub(super) fn tell_removal(&mut self, ticket: u64) {
        let first = self.table.serving().next();
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let Op::SnapshotUsage { snapshot, after } = &work.request.op else { return };
        let (snapshot, place) = match after.as_deref() {
            None => (*snapshot, first.map(|node| (node, None))),
            Some(cursor) => (*snapshot, place_of_removal(cursor)),
        };
        match place.filter(|(node, _)| self.table.serving().any(|other| other == *node)) {
            Some((node, after)) => {
                work.stage = Stage::Polling;
                let question = PollQuestion::Removal(snapshot, node, after);
                self.poll(question, Then::TellRemoval(ticket, node));
            }
            None => self.answer(ticket, Err(BAD_CURSOR.into())),
        }
    }

    /// What a node has told of a removal, and where the next part begins: there, or at the next
    /// node.
    fn removal_of(&self, node: NodeId, told: Option<PollAnswer>) -> FsResult<Answered> {
        let usage = match told {
            Some(PollAnswer::Removal(usage)) => usage,
            Some(PollAnswer::Failed(why)) => return Err(why),
            _ => return Err(BAD_CURSOR),
        };
        let next = match &usage.next {
            Some(inner) => Some((node, &**inner)),
            None => self.table.serving().find(|other| *other > node).map(|next| (next, &[][..])),
        };
        let next = next.map(|(node, inner)| [&node.to_be_bytes(), inner].concat().into());
        Ok(Answered::SnapshotUsage(SnapshotUsage { next, ..usage }))
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
                    Some(answers) => {
                        let (found, next) = merge_located(answers);
                        Ok(Answered::Located { found, next })
                    }
                    None => Err(out_of_reach().into()),
                };
                self.answer(ticket, reply);
            }
            Then::TellFeed(ticket, from, asked) => {
                let reply = match answers {
                    Some(answers) => page_of(&asked, from, answers),
                    None => Err(out_of_reach()),
                };
                self.answer(ticket, reply.map_err(Into::into));
            }
            Then::TellRemoval(ticket, node) => {
                let reply = match answers {
                    Some(answers) if is_gone(&answers) => Err(gone()),
                    Some(mut answers) => self.removal_of(node, answers.remove(&node)),
                    None => Err(out_of_reach()),
                };
                self.answer_at(ticket, reply.map_err(Into::into));
            }
            Then::TellQuotas(ticket, of) => self.quotas_told(ticket, of, answers),
            Then::CountQuotas(order) => self.heard_count(order, answers),
            Then::WalkOn(ticket) => self.walked(ticket, answers),
            Then::CompareOn(ticket) => self.compare_on(ticket, answers),
            Then::Clones => self.clones_reported(answers),
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
                Then::TellUsage(_)
                | Then::TellLocated(_)
                | Then::TellFeed(..)
                | Then::TellRemoval(..)
                | Then::TellQuotas(..)
                // The leader, if it still is one, begins anew.
                | Then::Clones
                // Its cut has failed.
                | Then::CountQuotas(_)
                | Then::WalkOn(_)
                | Then::CompareOn(_) => {}
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
    let text = "metadata: other nodes of the cluster could not be reached in time; nothing has \
                changed; see kestrel cluster status";
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
pub(super) fn merge_located(answers: BTreeMap<NodeId, PollAnswer>) -> LocatedPage {
    let (mut found, mut next) = (Vec::new(), None);
    for answer in answers.into_values() {
        let PollAnswer::Located(files, read) = answer else { continue };
        found.extend(files);
        next = match (next, read) {
            (Some(next), Some(read)) => Some(std::cmp::min(next, read)),
            (next, read) => next.or(read),
        };
    }
    (found, next)
}

/// The node that a cursor of a removal is at, and the node's own cursor; `None` if it is none.
fn place_of_removal(cursor: &[u8]) -> Option<(NodeId, Option<HistoryCursor>)> {
    let (node, inner) = cursor.split_first_chunk()?;
    Some((NodeId::from_be_bytes(*node), (!inner.is_empty()).then(|| inner.into())))
}

/// The page of a change feed that the parts of all members make.
fn page_of(
    asked: &FeedQuestion,
    from: FeedStart,
    answers: BTreeMap<NodeId, PollAnswer>,
) -> FsResult<Answered> {
    let mut parts = Vec::new();
    for answer in answers.into_values() {
        match answer {
            PollAnswer::Feed(part) => parts.push(*part),
            PollAnswer::Failed(why) => return Err(why),
            _ => {}
        }
    }
    merge(asked, from, parts).map(|page| Answered::Feed(Box::new(page)))
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
