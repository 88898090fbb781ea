//! What counts towards quotas, by the rows of all members, while nothing changes: a state machine
//! that says what to ask next and takes the answers.
//!
//! Of directories the sums of their shares are added up, so no name is looked at
//! ([`crate::tree`]). Names are looked at for users, groups and the volume, and where there are
//! files in table `link`: nothing leads from these to their names. What it finds is what
//! `kestrel_meta` finds on one node, by the same rules.

use std::collections::{BTreeMap, BTreeSet};

use kestrel_meta::node::{CountedFile, CountedPage, QuotaCount, QuotaPart, home_by_names};
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::key::Key;
use kestrel_types::placement::NodeId;
use kestrel_types::quota::{QuotaRecord, QuotaSubject, QuotaUsage};
use rustc_hash::FxHashMap;

use crate::message::polls::{PollAnswer, PollQuestion, TreePosition};
use crate::tree::ToldTree;

/// Most directories asked about at a time.
const DIRS_MAX: usize = 1024;

/// What a change of quotas has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing but what was counted so far.
    Nothing,
    /// What a new quota of this directory takes from the one above.
    New(InodeId),
    /// What the quota of this directory, which goes, leaves to the one above.
    Gone(InodeId),
    /// What this user, this group or the volume has.
    Owner(QuotaSubject),
    /// Everything. Homes of files stay where they are possible.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Parents,
    Parts,
    Files,
    Walk,
    Names,
    Done,
}

/// What changes by what was counted.
#[derive(Debug, Default)]
pub(super) struct CountOutcome {
    /// Differences to what the rows of quotas say.
    pub changes: Vec<(QuotaSubject, QuotaUsage)>,
    /// Files that another quota counts from now on, with the member that has them.
    pub homes: Vec<(NodeId, InodeId, Option<InodeId>)>,
}

/// See the module's header.
pub(crate) struct QuotaCounting {
    need: Need,
    step: Step,
    /// Directories with quotas, as they are to be.
    dirs: BTreeSet<InodeId>,
    /// Users, groups and the volume that are counted.
    owners: Vec<QuotaSubject>,
    /// Directories that are no more.
    missing: BTreeSet<InodeId>,
    /// What is above a directory, as far as it is known.
    parents: FxHashMap<InodeId, InodeId>,
    /// Directories of which the next quota above is looked for, and how far that is.
    climbing: Vec<(InodeId, InodeId)>,
    above: BTreeMap<InodeId, InodeId>,
    own: BTreeMap<QuotaSubject, QuotaUsage>,
    /// All directories are walked through, and homes are found by names.
    full: bool,
    files: Vec<(NodeId, CountedFile)>,
    /// By file in table `link`: the quotas that its names are under.
    names: FxHashMap<InodeId, Vec<Option<InodeId>>>,
    counted: BTreeMap<QuotaSubject, QuotaUsage>,
    /// Directories that nobody has been asked about, and the quotas that they are under.
    todo: Vec<(InodeId, InodeId)>,
    asked: Vec<InodeId>,
    asked_of: InodeId,
    after: Option<TreePosition>,
    /// By directory, if names are looked at: the nearest quota.
    nearest: FxHashMap<InodeId, InodeId>,
    /// Where each member is with the rows that it counts.
    places: Vec<(NodeId, Option<Key>)>,
    nodes: Vec<NodeId>,
}

impl QuotaCounting {
    /// For these quotas, as they are to be, by the rows of these members.
    pub(super) fn new(records: &[QuotaRecord], need: Need, nodes: Vec<NodeId>) -> Self {
        let dir_of = |record: &QuotaRecord| match record.of {
            QuotaSubject::Dir(dir) => Some(dir),
            _ => None,
        };
        let dirs: BTreeSet<InodeId> = records.iter().filter_map(dir_of).collect();
        let is_owner = |of: &QuotaSubject| !matches!(of, QuotaSubject::Dir(_));
        let owners = match need {
            Need::All => records.iter().map(|record| record.of).filter(is_owner).collect(),
            Need::Owner(of) => vec![of],
            _ => Vec::new(),
        };
        let gone = if let Need::Gone(dir) = need { Some(dir) } else { None };
        let climbing = dirs.iter().copied().chain(gone).filter(|dir| *dir != ROOT);
        Self {
            need,
            step: Step::Parents,
            climbing: climbing.map(|dir| (dir, dir)).collect(),
            dirs,
            owners,
            missing: BTreeSet::new(),
            parents: FxHashMap::default(),
            above: BTreeMap::new(),
            own: BTreeMap::new(),
            full: need == Need::All,
            files: Vec::new(),
            names: FxHashMap::default(),
            counted: BTreeMap::new(),
            todo: Vec::new(),
            asked: Vec::new(),
            asked_of: ROOT,
            after: None,
            nearest: FxHashMap::default(),
            places: Vec::new(),
            nodes,
        }
    }

    /// Whether a directory is no more.
    pub(super) fn is_missing(&self, dir: InodeId) -> bool {
        self.missing.contains(&dir)
    }

    /// The next quota above that of a directory.
    pub(super) fn above(&self, dir: InodeId) -> Option<InodeId> {
        self.above.get(&dir).copied()
    }

    /// What members had counted towards quotas: of directories without what is below other ones.
    pub(super) fn own(&self) -> &BTreeMap<QuotaSubject, QuotaUsage> {
        &self.own
    }

    /// What all members are asked next; `None`: all is known.
    pub(super) fn question(&mut self) -> Option<PollQuestion> {
        loop {
            match self.step {
                Step::Parents => {
                    let wanted = self.climb();
                    if !wanted.is_empty() {
                        return Some(PollQuestion::Parents(wanted));
                    }
                    self.step = Step::Parts;
                }
                Step::Parts => return Some(PollQuestion::Quotas(None)),
                Step::Files | Step::Names => {
                    let (files, owners) = (self.step == Step::Files, self.owners.clone());
                    return Some(PollQuestion::Count(
                        QuotaCount { files, owners },
                        self.places.clone(),
                    ));
                }
                Step::Walk => {
                    if self.after.is_none() && !self.next_dirs() {
                        self.after_walk();
                        continue;
                    }
                    return Some(PollQuestion::Tree(self.asked.clone(), self.after));
                }
                Step::Done => return None,
            }
        }
    }

    /// Goes up as far as parents are known. Directories of which the parent is to be asked for.
    fn climb(&mut self) -> Vec<InodeId> {
        let mut wanted = Vec::new();
        let climbing = std::mem::take(&mut self.climbing);
        for (dir, mut at) in climbing {
            loop {
                if at == ROOT {
                    break;
                }
                let Some(parent) = self.parents.get(&at) else {
                    self.climbing.push((dir, at));
                    wanted.push(at);
                    break;
                };
                if self.dirs.contains(parent) {
                    self.above.insert(dir, *parent);
                    break;
                }
                at = *parent;
            }
        }
        wanted
    }

    /// The next directories to ask about, all under one quota. Whether there are any.
    fn next_dirs(&mut self) -> bool {
        let Some((_, of)) = self.todo.last() else { return false };
        self.asked_of = *of;
        self.asked.clear();
        while let Some((dir, _)) =
            self.todo.pop_if(|(_, of)| *of == self.asked_of && self.asked.len() < DIRS_MAX)
        {
            self.asked.push(dir);
        }
        true
    }

    fn after_walk(&mut self) {
        let is_needed = !self.owners.is_empty() || self.full && !self.files.is_empty();
        self.begin_pages(if is_needed { Step::Names } else { Step::Done });
    }

    fn begin_pages(&mut self, step: Step) {
        self.step = step;
        self.places = self.nodes.iter().map(|node| (*node, None)).collect();
    }

    /// All members have answered.
    ///
    /// # Errors
    /// What one of them met.
    pub(super) fn take(&mut self, answers: BTreeMap<NodeId, PollAnswer>) -> FsResult<()> {
        for answer in answers.values() {
            if let PollAnswer::Failed(why) = answer {
                return Err(why.clone());
            }
        }
        match self.step {
            Step::Parents => self.take_parents(answers),
            Step::Parts => self.take_parts(answers),
            Step::Walk => self.take_tree(answers),
            Step::Files | Step::Names => self.take_pages(answers),
            Step::Done => {}
        }
        Ok(())
    }

    fn take_parents(&mut self, answers: BTreeMap<NodeId, PollAnswer>) {
        for answer in answers.into_values() {
            if let PollAnswer::Parents(found) = answer {
                self.parents.extend(found);
            }
        }
        let parents = &self.parents;
        let (known, lost): (Vec<_>, Vec<_>) =
            self.climbing.drain(..).partition(|(_, at)| parents.contains_key(at));
        self.climbing = known;
        self.missing.extend(lost.iter().filter(|(dir, at)| dir == at).map(|(dir, _)| *dir));
    }

    fn take_parts(&mut self, answers: BTreeMap<NodeId, PollAnswer>) {
        for answer in answers.into_values() {
            let PollAnswer::Quotas(parts) = answer else { continue };
            for QuotaPart { of, own, .. } in parts {
                let sum = self.own.entry(of).or_default();
                *sum = sum.plus(own);
            }
        }
        match self.need {
            Need::Nothing => self.step = Step::Done,
            _ => self.begin_pages(Step::Files),
        }
    }

    fn take_tree(&mut self, answers: BTreeMap<NodeId, PollAnswer>) {
        let ToldTree { sum: [files, _, bytes], children, end, .. } = ToldTree::of(answers);
        let sum = QuotaUsage { files, bytes };
        let counted = self.counted.entry(QuotaSubject::Dir(self.asked_of)).or_default();
        *counted = counted.plus(sum);
        let inner = children.into_iter().filter(|child| !self.dirs.contains(child));
        self.todo.extend(inner.map(|child| (child, self.asked_of)));
        if end.is_none() && self.full && !self.files.is_empty() {
            self.nearest.extend(self.asked.iter().map(|dir| (*dir, self.asked_of)));
        }
        self.after = end;
    }

    fn take_pages(&mut self, answers: BTreeMap<NodeId, PollAnswer>) {
        let mut places = Vec::new();
        for (node, answer) in answers {
            let PollAnswer::Counted(page) = answer else { continue };
            let CountedPage { owners, names, files, last } = *page;
            for (of, sum) in owners {
                let counted = self.counted.entry(of).or_default();
                *counted = counted.plus(sum);
            }
            for (dir, ino) in names {
                let under = self.nearest.get(&dir).copied();
                let unders = self.names.entry(ino).or_default();
                if !unders.contains(&under) {
                    unders.push(under);
                }
            }
            self.files.extend(files.into_iter().map(|file| (node, file)));
            places.extend(last.map(|last| (node, Some(last))));
        }
        self.places = places;
        if !self.places.is_empty() {
            return;
        }
        match self.step {
            Step::Files => self.after_files(),
            _ => self.step = Step::Done,
        }
    }

    fn after_files(&mut self) {
        let dir = match self.need {
            Need::New(dir) => {
                self.full = !self.files.is_empty();
                Some(dir)
            }
            Need::Gone(dir) => {
                self.full = self.files.iter().any(|(_, file)| file.home == Some(dir));
                None
            }
            _ => None,
        };
        self.todo = if self.full {
            self.dirs.iter().map(|dir| (*dir, *dir)).collect()
        } else {
            dir.into_iter().map(|dir| (dir, dir)).collect()
        };
        self.todo.retain(|(dir, _)| !self.missing.contains(dir));
        self.step = Step::Walk;
    }

    /// What changes. When all is known.
    pub(super) fn outcome(&self) -> CountOutcome {
        let mut outcome = CountOutcome::default();
        let none = QuotaUsage::default();
        let counted = |of| self.counted.get(&of).copied().unwrap_or_default();
        let own = |of| self.own.get(&of).copied().unwrap_or_default();
        if self.full {
            let mut sums: BTreeMap<InodeId, QuotaUsage> =
                self.dirs.iter().map(|dir| (*dir, counted(QuotaSubject::Dir(*dir)))).collect();
            for (node, file) in &self.files {
                let home = self.home_of(file);
                if let Some(sum) = home.and_then(|home| sums.get_mut(&home)) {
                    *sum = sum.plus(QuotaUsage { files: 0, bytes: file.bytes });
                }
                if home != file.home {
                    outcome.homes.push((*node, file.ino, home));
                }
            }
            let sums = sums.into_iter().map(|(dir, sum)| (QuotaSubject::Dir(dir), sum));
            outcome.changes.extend(sums.map(|(of, sum)| (of, sum.minus(own(of)))));
        } else if let Need::New(dir) = self.need {
            let sum = counted(QuotaSubject::Dir(dir));
            outcome.changes.push((QuotaSubject::Dir(dir), sum.minus(own(QuotaSubject::Dir(dir)))));
            let above = self.above(dir).map(|above| (QuotaSubject::Dir(above), none.minus(sum)));
            outcome.changes.extend(above);
        } else if let Need::Gone(dir) = self.need {
            let left = own(QuotaSubject::Dir(dir));
            outcome.changes.extend(self.above(dir).map(|above| (QuotaSubject::Dir(above), left)));
        }
        let owners = self.owners.iter().map(|of| (*of, counted(*of).minus(own(*of))));
        outcome.changes.extend(owners);
        outcome.changes.retain(|(_, change)| *change != none);
        outcome
    }

    /// The directory of the quota that is to count a file in table `link`.
    fn home_of(&self, file: &CountedFile) -> Option<InodeId> {
        let names = self.names.get(&file.ino).map_or(&[][..], Vec::as_slice);
        let home = file.home.filter(|home| self.dirs.contains(home));
        home_by_names(home, names, self.need != Need::All)
    }
}

/// What counts towards each quota with what counts towards those further down.
pub(crate) fn totals(
    records: &[QuotaRecord],
    own: impl Fn(QuotaSubject) -> QuotaUsage,
) -> BTreeMap<QuotaSubject, QuotaUsage> {
    let above: BTreeMap<QuotaSubject, Option<InodeId>> =
        records.iter().map(|record| (record.of, record.above)).collect();
    let mut sums: BTreeMap<QuotaSubject, QuotaUsage> =
        records.iter().map(|record| (record.of, QuotaUsage::default())).collect();
    for record in records {
        let (change, mut at, mut steps) = (own(record.of), Some(record.of), 0);
        // Damaged records could lead in a circle.
        while let Some(of) = at.filter(|_| steps <= records.len()) {
            if let Some(sum) = sums.get_mut(&of) {
                *sum = sum.plus(change);
            }
            at = above.get(&of).copied().flatten().map(QuotaSubject::Dir);
            steps += 1;
        }
    }
    sums
}
