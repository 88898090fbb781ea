//! Is there an order of all calls, each at one instant between its begin and its answer, in which
//! the model answers the same?
//!
//! The search of Wing and Gong (1993) with Lowe's memory (2017) of what was tried: a set of calls
//! done and the state they led to need not be looked at twice. Calls without an answer may have
//! happened at any time after they began, or not at all; they are tried only where the others
//! cannot go on, which keeps the search short.

mod cuts;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kestrel_model::{Model, ModelInode, target};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Op, Outcome, Reply};
use rustc_hash::{FxHashSet, FxHasher};

use crate::history::Record;
use crate::prng::mix;
use cuts::{Cuts, is_unheard_clone, with_found_snapshots, with_hidden_snapshots};

/// Files and directories of the model by number.
type Nodes = BTreeMap<InodeId, Arc<ModelInode>>;

/// Opens that every file has in the model, so that it never goes: when files without names go is
/// checked by other means.
const OPENS: u32 = 1 << 20;

/// Most states looked at; a search beyond is given up.
const STATES_MAX: usize = 100_000;

/// What the search came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Linearity {
    /// There is such an order.
    Linearizable,
    /// There is none. In words: how far it went, and what did not fit there.
    Violated(String),
    /// It was given up.
    Undecided,
}

/// A state of the search.
struct Frame {
    model: Model,
    /// Calls that may be next, in the order in which they are to be tried; used up from the end.
    candidates: Vec<usize>,
    /// The call that led here.
    done: Option<usize>,
}

struct Search<'a> {
    records: &'a [Record],
    cuts: Cuts,
    /// Calls that count, in the order of their begin.
    calls: Vec<usize>,
    is_done: Vec<bool>,
    /// Everything before this place of `calls` is done.
    first: usize,
    done_hash: u64,
    seen: FxHashSet<(u64, u64)>,
    left: usize,
    best_left: usize,
    best: Vec<String>,
}

/// Searches an order for the records of a history. `one_clock`: numbers of snapshots and stamps of
/// changes are of one clock, so that the order is theirs, a snapshot is on record at its instant,
/// and all hear of a removal at once.
pub fn check(records: &[Record], one_clock: bool) -> Linearity {
    let records = with_found_snapshots(records);
    if one_clock {
        return search(&records, one_clock);
    }
    // A clone without an answer has its two instants only if it was made.
    let found = search(&with_hidden_snapshots(&records, false), one_clock);
    match found {
        Linearity::Violated(_) if records.iter().any(is_unheard_clone) => {
            search(&with_hidden_snapshots(&records, true), one_clock)
        }
        found => found,
    }
}

fn search(records: &[Record], one_clock: bool) -> Linearity {
    let cuts = if one_clock { Cuts::of_one_clock(records) } else { Cuts::of_many_clocks(records) };
    let counts = |record: &Record| {
        !record.refused && (record.answered.is_some() || changes(&record.request.op))
    };
    let calls: Vec<usize> = (0..records.len()).filter(|call| counts(&records[*call])).collect();
    let left = calls.iter().filter(|call| records[**call].answered.is_some()).count();
    let mut search = Search {
        records,
        cuts,
        calls,
        is_done: vec![false; records.len()],
        first: 0,
        done_hash: 0,
        seen: FxHashSet::default(),
        left,
        best_left: usize::MAX,
        best: Vec::new(),
    };
    search.run(!one_clock)
}

/// Whether a call without an answer may have left a trace.
fn changes(op: &Op) -> bool {
    op.is_numbered() && !matches!(op, Op::Release(_))
}

impl Search<'_> {
    fn run(&mut self, late_reads: bool) -> Linearity {
        let mut root = Model::without_times();
        root.late_reads = late_reads;
        root.node_mut(1).data_change = 0;
        let candidates = self.candidates();
        let mut stack = vec![Frame { model: root, candidates, done: None }];
        while let Some(frame) = stack.last_mut() {
            if self.left == 0 {
                return Linearity::Linearizable;
            }
            let Some(call) = frame.candidates.pop() else {
                if self.left < self.best_left {
                    self.best_left = self.left;
                    self.best = self.explain(stack.last().map(|frame| &frame.model));
                }
                if let Some(Frame { done: Some(call), .. }) = stack.pop() {
                    self.undo(call);
                }
                continue;
            };
            if !self.cuts.may_be_next(call, &self.is_done) {
                continue;
            }
            let mut model = frame.model.clone();
            if self.step(&mut model, call).is_err() {
                continue;
            }
            // A call without an answer that changes nothing here need not have happened here.
            if self.records[call].answered.is_none() && model == frame.model {
                continue;
            }
            self.mark(call);
            let mut hasher = FxHasher::default();
            model.hash(&mut hasher);
            if !self.seen.insert((self.done_hash, hasher.finish())) {
                self.undo(call);
                continue;
            }
            if self.seen.len() > STATES_MAX {
                return Linearity::Undecided;
            }
            let candidates = self.candidates();
            stack.push(Frame { model, candidates, done: Some(call) });
        }
        Linearity::Violated(format!(
            "{} answers have no place:\n  {}",
            self.best_left,
            self.best.join("\n  ")
        ))
    }

    /// Lets the model do the request of a call. The model does not look at what may not be on
    /// record yet, unless the answer shows it.
    fn step(&self, model: &mut Model, call: usize) -> Result<(), String> {
        let record = &self.records[call];
        let hidden = self.cuts.hidden_from(call, record);
        let shown = std::mem::take(&mut model.snapshots);
        let (hidden, shown): (Vec<_>, Vec<_>) =
            shown.into_iter().enumerate().partition(|(_, past)| hidden.contains(&past.id));
        model.snapshots = shown.into_iter().map(|(_, past)| past).collect();
        let done = step(model, record);
        for (index, past) in hidden {
            model.snapshots.insert(index.min(model.snapshots.len()), past);
        }
        done
    }

    fn mark(&mut self, call: usize) {
        self.is_done[call] = true;
        self.done_hash ^= mix(call as u64 + 1);
        self.left -= usize::from(self.records[call].answered.is_some());
        while self.calls.get(self.first).is_some_and(|call| self.is_done[*call]) {
            self.first += 1;
        }
    }

    fn undo(&mut self, call: usize) {
        self.is_done[call] = false;
        self.done_hash ^= mix(call as u64 + 1);
        self.left += usize::from(self.records[call].answered.is_some());
        let position = self.calls.partition_point(|other| *other < call);
        self.first = self.first.min(position);
    }

    /// Calls of which one must be next: those begun before the first answer among those left. The
    /// best is last: answered ones before unanswered, and early answers first.
    fn candidates(&self) -> Vec<usize> {
        let mut deadline = u64::MAX;
        let (mut answered, mut unheard) = (Vec::new(), Vec::new());
        for call in &self.calls[self.first..] {
            let record = &self.records[*call];
            if record.begun > deadline {
                break;
            }
            if self.is_done[*call] {
                continue;
            }
            match &record.answered {
                Some((at, _)) => {
                    deadline = deadline.min(*at);
                    answered.push((*at, *call));
                }
                None => unheard.push(*call),
            }
        }
        answered.retain(|(_, call)| self.records[*call].begun < deadline);
        unheard.retain(|call| self.records[*call].begun < deadline);
        answered.sort_unstable_by(|a, b| b.cmp(a));
        unheard.extend(answered.into_iter().map(|(_, call)| call));
        unheard
    }

    /// What stands in the way of each call that could be next.
    fn explain(&self, model: Option<&Model>) -> Vec<String> {
        let Some(model) = model else { return Vec::new() };
        let told = |call: usize| {
            let record = &self.records[call];
            let why = match self.step(&mut model.clone(), call) {
                Err(why) => why,
                Ok(()) if self.cuts.may_be_next(call, &self.is_done) => "leads nowhere".into(),
                Ok(()) => "its stamp is on the other side of a snapshot".into(),
            };
            let answered = if record.answered.is_some() { "" } else { " (unheard)" };
            format!(
                "call {call} of client {}{answered}: {:?}: {why}",
                record.client, record.request.op
            )
        };
        self.candidates().into_iter().map(told).collect()
    }
}

/// Lets the model do the request of a record.
fn step(model: &mut Model, record: &Record) -> Result<(), String> {
    let (creds, op) = (&record.request.creds, &record.request.op);
    match op {
        // Opens are not the model's: see OPENS.
        Op::Release(_) | Op::AllocObjects(_) | Op::Usage | Op::TreeUsage(_) | Op::Sync => {
            return Ok(());
        }
        _ => {}
    }
    let Some((_, reply)) = &record.answered else {
        model.assume(creds, op);
        hold_everything(model);
        return Ok(());
    };
    if is_excused(model, record, reply) {
        return Ok(());
    }
    model.judge(creds, op, reply)?;
    hold_everything(model);
    Ok(())
}

/// What a client may be told of a file that it does not have open: that it does not exist, if it
/// has no name (it may be gone, or not yet) or not where the client saw it (after a restart it
/// cannot be found where it went).
fn is_excused(model: &Model, record: &Record, reply: &Reply) -> bool {
    let excuse = Excuse { held: record.held, reply };
    match &record.request.op {
        // What a client has open now it does not have open then.
        Op::At(snapshot, op) => model
            .past(*snapshot)
            .is_some_and(|past| Excuse { held: None, ..excuse }.fits(past.nodes(), op)),
        op => excuse.fits(&model.nodes, op),
    }
}

struct Excuse<'a> {
    /// The file that the client had open all the while.
    held: Option<InodeId>,
    reply: &'a Reply,
}

impl Excuse<'_> {
    fn fits(&self, nodes: &Nodes, op: &Op) -> bool {
        match op {
            Op::Clone { from, to, .. } => {
                [from, to].iter().any(|file| self.is_file_excused(nodes, file))
            }
            // What no client has open may be gone.
            Op::Chunks { ino, .. } => nodes.get(ino).is_some_and(|node| node.nlink == 0),
            op => target(op).is_some_and(|file| self.is_file_excused(nodes, file)),
        }
    }

    fn is_file_excused(&self, nodes: &Nodes, file: &InodeRef) -> bool {
        let InodeRef { ino, seen } = file;
        let Err(Outcome::Failed(why)) = self.reply else { return false };
        if self.held == Some(*ino) {
            return false;
        }
        let Some(node) = nodes.get(ino) else { return why.errno == libc::EBADF };
        let is_there = seen.as_ref().is_some_and(|(dir, name)| {
            nodes.get(dir).and_then(|dir| dir.children.get(name.as_bytes())) == Some(ino)
        });
        let may_be_gone = node.kind != Kind::Dir && (node.nlink == 0 || !is_there);
        let is_gone = [libc::ESTALE, libc::ENOENT].contains(&why.errno);
        why.errno == libc::EBADF || (may_be_gone && is_gone)
    }
}

fn hold_everything(model: &mut Model) {
    let loose = |model: &Model| {
        model
            .nodes
            .iter()
            .find(|(_, node)| node.kind != Kind::Dir && node.opens != OPENS)
            .map(|(ino, _)| *ino)
    };
    while let Some(ino) = loose(model) {
        model.node_mut(ino).opens = OPENS;
    }
}
