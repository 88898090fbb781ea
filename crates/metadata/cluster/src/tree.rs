//! Figures of a directory and everything below it: every node has its own shares of each directory,
//! and a part of the rows that say which directories are in which.
//!
//! All members are asked about some directories at a time. As on one node, directories made or
//! removed meanwhile may be counted or not.
//!
//! **Clones.** A directory that lacks names gets them before the directories in it are counted. The
//! home says of a directory whether it lacks names, and others may have answered before it got
//! them: so where there are clones, members are asked once more which directories are in it.

use std::collections::BTreeMap;

use kestrel_meta::node::TreePart;
use kestrel_types::clock::Nanos;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer as Answered, Op, Usage};
use kestrel_types::snapshot::SnapshotId;

use super::ClusterNode;
use super::message::polls::{PollAnswer, PollQuestion, TreePosition};
use super::poll::{CHILDREN_MAX, Then, is_gone, out_of_reach};
use super::work::Stage;

/// Most directories asked about at a time.
const DIRS_MAX: usize = 64;

/// The place before all directories that are in others.
const BEFORE_ALL: TreePosition = (0, 0);

/// No clone ends in less time after the last of its directories has got its names
/// ([`crate::clones`]).
const CLONE_MIN: Nanos = crate::clones::INTERVAL;

/// A walk under way.
#[derive(Default)]
pub(super) struct Walk {
    /// The figures of then are asked for.
    at: Option<SnapshotId>,
    /// Directories nobody has been asked about.
    todo: Vec<InodeId>,
    /// Those that members have been asked about.
    asked: Vec<InodeId>,
    /// Entries, directories among them, bytes.
    sum: [i64; 3],
    dirs: u64,
    /// Directories that have been counted, and lack names.
    based: Vec<InodeId>,
    /// When members were asked about these; `None`: they lack no names.
    first_asked: Option<Nanos>,
}

impl Walk {
    /// What members are asked of the directories that it is at.
    fn question(&self, after: Option<TreePosition>) -> PollQuestion {
        let question = PollQuestion::Tree(self.asked.clone(), after);
        match self.at {
            Some(snapshot) => PollQuestion::At(snapshot, Box::new(question)),
            None => question,
        }
    }
}

/// What all members have told of some directories.
#[derive(Default)]
pub(super) struct ToldTree {
    /// Entries, directories among them, bytes.
    pub sum: [i64; 3],
    /// Directories in them.
    pub children: Vec<InodeId>,
    /// Of these directories, those of clones that lack names.
    pub based: Vec<InodeId>,
    /// There are clones that are not finished.
    pub clones: bool,
    /// There may be more after this place: up to there everybody has told all.
    pub end: Option<TreePosition>,
}

impl ToldTree {
    pub fn of(answers: BTreeMap<NodeId, PollAnswer>) -> Self {
        let (mut told, mut found) = (Self::default(), vec![]);
        for answer in answers.into_values() {
            let PollAnswer::Tree(part) = answer else { continue };
            let TreePart { sum, children, more, based, clones } = part;
            told.based.extend(based);
            told.clones |= clones;
            told.sum = std::array::from_fn(|i| told.sum[i].wrapping_add(sum[i]));
            if let (true, Some(last)) = (more, children.last()) {
                told.end = Some(told.end.map_or(*last, |end| end.min(*last)));
            }
            found.extend(children);
        }
        found.retain(|place| told.end.is_none_or(|end| *place <= end));
        told.children = found.into_iter().map(|(_, child)| child).collect();
        told
    }
}

impl ClusterNode {
    /// Begins to answer `Op::TreeUsage`. Whether the request is that.
    pub(super) fn begin_walk(&mut self, ticket: u64) -> bool {
        let Some(work) = self.works.get_mut(&ticket) else { return true };
        let is_walk = matches!(work.request.op, Op::TreeUsage(_));
        if is_walk {
            work.stage = Stage::Polling;
            self.walk_tree(ticket);
        }
        is_walk
    }

    /// Begins to answer `Op::TreeUsage`, at the directory's home.
    pub(super) fn walk_tree(&mut self, ticket: u64) {
        let Some(work) = self.works.get(&ticket) else { return };
        let (at, op) = match &work.request.op {
            Op::At(snapshot, op) => (Some(*snapshot), &**op),
            op => (None, op),
        };
        let Op::TreeUsage(dir) = *op else { return };
        let node = at.map_or_else(|| Ok(self.node.clone()), |at| self.node.node_at(at));
        let mut wait = 0;
        match node.and_then(|node| node.place_of(dir, &mut wait)) {
            Ok(_) => {
                self.walks.insert(ticket, Walk { at, todo: vec![dir], ..Walk::default() });
                self.ask_tree(ticket);
            }
            // Where it lies nobody answers at present.
            Err(why) if why.errno == libc::EIO && self.cluster().is_shared() => {
                self.rest(ticket, false)
            }
            Err(why) => self.answer_after(ticket, Err(why.into()), wait),
        }
    }

    /// Asks about the next directories, or answers.
    fn ask_tree(&mut self, ticket: u64) {
        let now = self.now;
        let Some(walk) = self.walks.get_mut(&ticket) else { return };
        if walk.todo.is_empty()
            && let Some(dir) = walk.based.pop()
        {
            return self.await_names(ticket, dir);
        }
        if walk.todo.is_empty() {
            let [children, subdirs, bytes] = walk.sum;
            let files = children.wrapping_sub(subdirs).max(0).cast_unsigned();
            // Without the one that was asked about.
            let usage = Usage { files, dirs: walk.dirs - 1, bytes: bytes.max(0).cast_unsigned() };
            self.walks.remove(&ticket);
            return self.answer(ticket, Ok(Answered::Usage(usage)));
        }
        walk.asked = walk.todo.split_off(walk.todo.len().saturating_sub(DIRS_MAX));
        walk.dirs += walk.asked.len() as u64;
        walk.first_asked = Some(now);
        let question = walk.question(None);
        self.poll(question, Then::WalkOn(ticket));
    }

    /// All members have told what they know of the directories, or somebody is out of reach.
    pub(super) fn walked(&mut self, ticket: u64, answers: Option<BTreeMap<NodeId, PollAnswer>>) {
        let now = self.now;
        let Some(walk) = self.walks.get_mut(&ticket) else { return };
        let Some(answers) = answers else {
            self.walks.remove(&ticket);
            return self.answer(ticket, Err(out_of_reach().into()));
        };
        if is_gone(&answers) {
            self.walks.remove(&ticket);
            return self.lacked_at(ticket);
        }
        let ToldTree { sum, children, based, clones, end } = ToldTree::of(answers);
        let begun = walk.first_asked.take();
        if begun.is_some_and(|begun| clones || now - begun >= CLONE_MIN) {
            walk.sum = std::array::from_fn(|i| walk.sum[i].wrapping_add(sum[i]));
            walk.asked.retain(|dir| !based.contains(dir));
            walk.based.extend(based);
            if walk.asked.is_empty() {
                return self.ask_tree(ticket);
            }
            // Their figures have been counted.
            let question = walk.question(Some(BEFORE_ALL));
            return self.poll(question, Then::WalkOn(ticket));
        }
        walk.sum = std::array::from_fn(|i| walk.sum[i].wrapping_add(sum[i]));
        walk.todo.extend(children);
        match end {
            Some(end) => {
                let question = walk.question(Some(end));
                self.poll(question, Then::WalkOn(ticket));
            }
            None => self.ask_tree(ticket),
        }
    }

    /// A directory that lacked names has them: the walk goes on in it.
    pub(super) fn walk_into(&mut self, ticket: u64, dir: InodeId) {
        let (Some(walk), Some(work)) = (self.walks.get_mut(&ticket), self.works.get_mut(&ticket))
        else {
            return;
        };
        work.stage = Stage::Polling;
        walk.asked = vec![dir];
        // Its own figures have been counted.
        let question = walk.question(Some(BEFORE_ALL));
        self.poll(question, Then::WalkOn(ticket));
    }

    /// What this member knows of directories.
    pub(super) fn tell_tree(
        &mut self,
        from: NodeId,
        number: u64,
        dirs: &[InodeId],
        after: Option<TreePosition>,
    ) {
        match self.node.tree_part(dirs, after, CHILDREN_MAX) {
            Ok(part) => self.answer_poll(from, number, PollAnswer::Tree(part), 0),
            // The asking member gives up at its deadline.
            Err(why) => log::error!("figures of directories that another node asks for: {why}"),
        }
    }
}
