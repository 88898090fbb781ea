//! Balancing: which names need an exception so that no node holds more than its share
//! (`docs/design/metadata.md`, section 4; FalconFS §4.2.2).
//!
//! While the fullest of n nodes holds more than (1/n + ε) of all entries, its most frequent name
//! that helps is either moved to the emptiest node or spread over all of them. Then exceptions are
//! taken back that are no longer needed: spread names first, since those cost a client a second
//! hop, and only if that leaves the nodes below (1/n + ε/2), so that a name does not come and go.
//!
//! Differences from FalconFS; its text leaves these open:
//! - Moving is preferred if it brings both nodes within the goal; otherwise whichever leaves the
//!   smaller maximum. A moved name still takes one hop.
//! - The most frequent name is passed over if neither helps.
//! - The result is the best state on the way, so a plan that cannot reach the goal is still never
//!   worse than none.
//!
//! **It ends.** A move needs `emptiest + entries < fullest`, so it lowers the sum of squared loads;
//! a name is spread at most once. **It is small.** At most [`exceptions_allowed`] exceptions, O(n
//! log n); reports hold no more names than could be used.

use std::fmt;

use kestrel_types::name::Name;
use kestrel_types::placement::exceptions::EXCEPTIONS_MAX;
use kestrel_types::placement::{Exceptions, NodeId, PlacementMap, Rule};

use crate::load_report::{LoadReport, names_wanted};
use crate::model::{Lies, Model};

/// How even is even enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// ε: what a node may hold above its n-th part, as a part of all entries; 0 to 1.
    pub epsilon: f64,
}

impl Goal {
    /// The usual goal: a quarter above the n-th part, but no more than 1 % of all entries.
    pub fn usual(nodes: usize) -> Self {
        Self { epsilon: (0.25 / nodes.max(1) as f64).min(0.01) }
    }

    /// Most entries that a node may hold of `total` on `nodes` nodes; never less than the n-th part
    /// rounded up.
    pub fn limit(&self, total: u64, nodes: usize) -> u64 {
        Self::at(self.epsilon, total, nodes)
    }

    fn at(epsilon: f64, total: u64, nodes: usize) -> u64 {
        let fair = total.div_ceil(nodes.max(1) as u64);
        let extra = (total as f64 * epsilon.clamp(0.0, 1.0)) as u64;
        fair.saturating_add(extra)
    }
}

/// Most exceptions that balancing `nodes` nodes makes: as many as a node reports names, and no more
/// than a map takes.
pub fn exceptions_allowed(nodes: usize) -> usize {
    names_wanted(nodes).min(EXCEPTIONS_MAX)
}

/// A name that gets another rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleChange {
    /// The name.
    pub name: Name,
    /// Its rule so far.
    pub from: Option<Rule>,
    /// Its rule from now on.
    pub to: Option<Rule>,
    /// Entries of it in the cluster.
    pub entries: u64,
    /// Where they go. Until they are there, requests for this name wait, and nothing else does.
    pub moves: Vec<Move>,
}

/// Entries of one name that go from one node to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// From this node.
    pub from: NodeId,
    /// To this one; `None` if each entry goes to its directory's node.
    pub to: Option<NodeId>,
    /// How many; expected ones if they are spread.
    pub entries: u64,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancePlan {
    /// The exceptions to put in force.
    pub exceptions: Exceptions,
    /// What differs from those in force.
    pub changes: Vec<RuleChange>,
    /// Most entries that a node should hold.
    pub limit: u64,
    /// Entries of the nodes that own slots, in the order of their ids: as reported.
    pub before: Vec<u64>,
    /// And as expected afterwards.
    pub expected: Vec<u64>,
}

impl BalancePlan {
    /// Whether every node is expected to be within the limit.
    pub fn reaches_goal(&self) -> bool {
        self.expected.iter().all(|load| *load <= self.limit)
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BalanceError {
    /// A node that owns slots has not reported.
    NoReport(NodeId),
    /// A node reports fewer entries than its names add up to.
    WrongReport(NodeId),
}

impl fmt::Display for BalanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BalanceError::NoReport(node) => {
                write!(f, "balancing: node {node} has not reported; try again when it serves")
            }
            BalanceError::WrongReport(node) => {
                write!(
                    f,
                    "balancing: node {node} reports fewer entries than its names have; run kestrel \
                     fsck on it"
                )
            }
        }
    }
}

impl std::error::Error for BalanceError {}

/// Makes a plan from the reports of all nodes. To be put in force, its exceptions get the next
/// map version.
///
/// # Errors
/// If a report is missing or contradicts itself.
pub fn balance(
    placement: &PlacementMap,
    reports: &[LoadReport],
    goal: &Goal,
) -> Result<BalancePlan, BalanceError> {
    plan(placement, reports, goal, even_out)
}

/// As [`balance`], but makes no exceptions: takes those back that are not needed.
///
/// # Errors
/// As [`balance`].
pub fn unneeded(
    placement: &PlacementMap,
    reports: &[LoadReport],
    goal: &Goal,
) -> Result<BalancePlan, BalanceError> {
    plan(placement, reports, goal, |before, _| before.clone())
}

fn plan(
    placement: &PlacementMap,
    reports: &[LoadReport],
    goal: &Goal,
    add: fn(&Model, u64) -> Model,
) -> Result<BalancePlan, BalanceError> {
    if let Some(wrong) = reports.iter().find(|report| !report.adds_up()) {
        return Err(BalanceError::WrongReport(wrong.node));
    }
    let before = Model::new(placement, reports).map_err(BalanceError::NoReport)?;
    let limit = goal.limit(before.total(), before.nodes());
    let mut after = add(&before, limit);
    take_back(&mut after, Goal::at(goal.epsilon / 2.0, before.total(), before.nodes()));
    let changes =
        (0..before.names.len()).filter_map(|name| change(&before, &after, name)).collect();
    Ok(BalancePlan {
        exceptions: after.exceptions_in_force(),
        changes,
        limit,
        before: before.loads,
        expected: after.loads,
    })
}

/// Adds exceptions until no node is above the limit, or nothing helps.
fn even_out(before: &Model, limit: u64) -> Model {
    let allowed = exceptions_allowed(before.nodes());
    let mut model = before.clone();
    let mut steps = Vec::new();
    // Steps after which the fullest node was less full than ever before.
    let mut best = (model.most(), 0);
    while model.most() > limit && model.exceptions() < allowed {
        let Some((name, rule)) = next_step(&model, limit) else { break };
        model.set(name, rule);
        steps.push((name, rule));
        if model.most() < best.0 {
            best = (model.most(), steps.len());
        }
    }
    if best.1 == steps.len() {
        return model;
    }
    let mut model = before.clone();
    for (name, rule) in &steps[..best.1] {
        model.set(*name, *rule);
    }
    model
}

/// The most frequent name of the fullest node that helps, and what to do with it.
fn next_step(model: &Model, limit: u64) -> Option<(usize, Option<Rule>)> {
    let (fullest, emptiest) = (model.fullest(), model.emptiest());
    model.names_on(fullest).take_while(|name| model.names[*name].entries > 0).find_map(|name| {
        let entries = model.names[name].entries;
        let moved = model.loads[emptiest] + entries;
        let helps = moved < model.loads[fullest];
        let moving = model.rule_for(name, emptiest);
        if helps && moved.max(model.loads[fullest] - entries) <= limit {
            return Some((name, moving));
        }
        let most_if = |rule| {
            let lies = model.lies_under(name, rule);
            model.loads_with(name, &lies).into_iter().max().unwrap_or_default()
        };
        let most_if_spread = most_if(Some(Rule::PathWalk));
        if helps && most_if(moving) <= most_if_spread {
            return Some((name, moving));
        }
        // A single entry, spread, stays where it is or goes anywhere: no gain to count on.
        (entries > 1 && model.nodes() > 1).then_some((name, Some(Rule::PathWalk)))
    })
}

/// Takes back exceptions without which no node is above the limit: spread names first, rare ones
/// before frequent ones.
fn take_back(model: &mut Model, limit: u64) {
    let mut names: Vec<usize> =
        (0..model.names.len()).filter(|i| model.names[*i].rule.is_some()).collect();
    names.sort_by_key(|name| {
        let reported = &model.names[*name];
        (reported.rule != Some(Rule::PathWalk), reported.entries, *name)
    });
    for name in names {
        let home = model.lies_under(name, None);
        let most = model.loads_with(name, &home).into_iter().max().unwrap_or_default();
        if model.names[name].entries == 0 || most <= limit {
            model.set(name, None);
        }
    }
}

/// What a plan does with a name; `None` if nothing.
fn change(before: &Model, after: &Model, name: usize) -> Option<RuleChange> {
    let (old, new) = (&before.names[name], &after.names[name]);
    if old.rule == new.rule {
        return None;
    }
    let sources: Vec<(usize, u64)> = match &old.lies {
        Lies::On(node) => vec![(*node, old.entries)],
        Lies::Spread(counts) => counts.iter().copied().enumerate().collect(),
    };
    let moves = sources
        .into_iter()
        .map(|(node, entries)| {
            let (to, staying) = match &new.lies {
                Lies::On(target) => (Some(*target), if *target == node { entries } else { 0 }),
                Lies::Spread(counts) => (None, counts[node].min(entries)),
            };
            Move {
                from: before.id(node),
                to: to.map(|to| before.id(to)),
                entries: entries - staying,
            }
        })
        .filter(|one| one.entries > 0)
        .collect();
    Some(RuleChange {
        name: old.name.clone(),
        from: old.rule,
        to: new.rule,
        entries: old.entries,
        moves,
    })
}
