//! Figures of a directory and everything below it: every node has its own shares of each directory,
//! and a part of the rows that say which directories are in which.
//!
//! All members are asked about some directories at a time. As on one node, directories made or
//! removed meanwhile may be counted or not.

use std::collections::BTreeMap;

use kestrel_meta::node::TreePart;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer as Answered, Op, Usage};
use kestrel_types::snapshot::SnapshotId;

use super::ClusterNode;
use super::message::polls::{PollAnswer, PollQuestion, TreePosition};
use super::poll::{CHILDREN_MAX, Then, is_gone, out_of_reach};

/// Most directories asked about at a time.
const DIRS_MAX: usize = 64;

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
pub(super) struct ToldTree {
    /// Entries, directories among them, bytes.
    pub sum: [i64; 3],
    /// Directories in them.
    pub children: Vec<InodeId>,
    /// There may be more after this place: up to there everybody has told all.
    pub end: Option<TreePosition>,
}

impl ToldTree {
    pub fn of(answers: BTreeMap<NodeId, PollAnswer>) -> Self {
        let (mut told, mut found) = (Self { sum: [0; 3], children: Vec::new(), end: None }, vec![]);
        for answer in answers.into_values() {
            let PollAnswer::Tree(TreePart { sum, children, more }) = answer else { continue };
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
        let Some(walk) = self.walks.get_mut(&ticket) else { return };
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
        let question = walk.question(None);
        self.poll(question, Then::WalkOn(ticket));
    }

    /// All members have told what they know of the directories, or somebody is out of reach.
    pub(super) fn walked(&mut self, ticket: u64, answers: Option<BTreeMap<NodeId, PollAnswer>>) {
        let Some(walk) = self.walks.get_mut(&ticket) else { return };
        let Some(answers) = answers else {
            self.walks.remove(&ticket);
            return self.answer(ticket, Err(out_of_reach().into()));
        };
        if is_gone(&answers) {
            self.walks.remove(&ticket);
            return self.lacked_at(ticket);
        }
        let ToldTree { sum, children, end } = ToldTree::of(answers);
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
