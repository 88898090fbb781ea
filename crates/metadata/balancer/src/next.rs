//! What to do next for a balanced cluster. `kestrel cluster balance` goes by this, and so does the
//! coordinator, which balances by itself.
//!
//! The balancer looks, makes one change of the map, and looks again: what a name leaves and where
//! it goes is counted, not reckoned. By itself the coordinator does nothing that people may have
//! meant otherwise: it gives no slots to a node that owns none, which is how a node looks that was
//! drained, and it leaves a cluster alone of which a node is away or leaving.

use std::fmt;

use kestrel_types::placement::slot_map::SlotMapError;
use kestrel_types::placement::{NodeId, PlacementMap};

use crate::balance::{BalanceError, BalancePlan, Goal, balance, unneeded};
use crate::load_report::LoadReport;
use crate::slots::resize;

/// Most changes of names in one go: names that are spread do not land quite evenly.
pub const ROUNDS_MAX: usize = 4;

/// Fewer entries than this on each node are not evened out by names, unless a goal is given: chance
/// alone makes nodes differ by some. With fewer than half of it exceptions that were made for more
/// go.
pub const ENTRIES_MIN: u64 = 2000;

/// The next map, in which all members own the same number of slots but those that are leaving or
/// named in `without`, and how many slots move; `None` if it is so.
///
/// # Errors
/// As [`resize`].
pub fn even_slots(
    present: &PlacementMap,
    without: &[NodeId],
) -> Result<Option<(PlacementMap, usize)>, SlotMapError> {
    let without = [without, &present.leaving, &present.idle].concat();
    let (map, moves) = resize(&present.map, present.map.members(), &without)?;
    let next = PlacementMap { version: present.version + 1, map, ..present.clone() };
    Ok((!moves.is_empty()).then_some((next, moves.len())))
}

/// What exceptions the names need that were reported, `epsilon` being what a node may hold above
/// its part, or the usual; and the next map, unless it would be as the present one.
///
/// # Errors
/// As [`balance`].
pub fn even_names(
    present: &PlacementMap,
    reports: &[LoadReport],
    epsilon: Option<f64>,
) -> Result<(BalancePlan, Option<PlacementMap>), BalanceError> {
    let owners = present.map.slots_of_members().into_iter().filter(|slots| *slots > 0).count();
    let total: u64 = reports.iter().map(|report| report.entries).sum();
    let enough = ENTRIES_MIN.saturating_mul(owners as u64);
    let usual = Goal::usual(owners);
    let plan = match epsilon {
        Some(epsilon) => balance(present, reports, &Goal { epsilon }),
        None if total >= enough => balance(present, reports, &usual),
        None if total >= enough / 2 => unneeded(present, reports, &usual),
        None => unneeded(present, reports, &Goal { epsilon: 1.0 }),
    }?;
    let exceptions = plan.exceptions.clone();
    let next = PlacementMap { version: present.version + 1, exceptions, ..present.clone() };
    let differs = !plan.changes.is_empty();
    Ok((plan, differs.then_some(next)))
}

/// What the coordinator sees of its cluster.
#[derive(Debug, Clone, Copy)]
pub struct Sight<'a> {
    /// The present map.
    pub present: &'a PlacementMap,
    /// A change of it is under way, or rows of one before are still being deleted.
    pub changing: bool,
    /// Members that it does not reach.
    pub away: &'a [NodeId],
    /// The load of all nodes, by the present map, if they were asked for it.
    pub reports: Option<&'a [LoadReport]>,
}

/// What it does by itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Nothing, for this reason.
    Wait(Reason),
    /// It requests the load of the nodes.
    Ask,
    /// So many slots go to other nodes.
    Slots(PlacementMap, usize),
    /// Names get other rules.
    Names(PlacementMap, BalancePlan),
}

/// Why the coordinator does nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// There is one node.
    Alone,
    /// The map changes.
    Changing,
    /// This node is away.
    Away(NodeId),
    /// This node is leaving.
    Leaving(NodeId),
    /// The nodes are even enough. Entries of the fullest, and what it may have.
    Even(u64, u64),
    /// The cluster has so few entries, fewer than this, that chance alone makes nodes differ.
    Few(u64, u64),
    /// What could be done would not help enough: entries of the fullest, of the fullest after it,
    /// and what one may have.
    TooLittle(u64, u64, u64),
    /// There is no plan.
    NoPlan(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Alone => f.write_str("there is one node"),
            Reason::Changing => f.write_str("the map is being changed"),
            Reason::Away(node) => write!(f, "node {node} is away"),
            Reason::Leaving(node) => write!(f, "node {node} is leaving"),
            Reason::Even(most, limit) => {
                write!(
                    f,
                    "nothing to do: no node has more than {most} entries, and {limit} are allowed"
                )
            }
            Reason::Few(total, enough) => {
                write!(
                    f,
                    "nothing to do: {total} entries, and names are evened out from {enough} on"
                )
            }
            Reason::TooLittle(most, expected, limit) => write!(
                f,
                "the fullest node has {most} entries where {limit} are allowed, and exceptions \
                 would leave it {expected}"
            ),
            Reason::NoPlan(why) => f.write_str(why),
        }
    }
}

/// What the coordinator does by itself, as things are.
pub fn decide(sight: &Sight<'_>) -> Decision {
    let Sight { present, changing, away, reports } = *sight;
    if present.map.members().len() < 2 {
        return Decision::Wait(Reason::Alone);
    }
    if changing {
        return Decision::Wait(Reason::Changing);
    }
    if let Some(node) = away.first() {
        return Decision::Wait(Reason::Away(*node));
    }
    if let Some(node) = present.leaving.first() {
        return Decision::Wait(Reason::Leaving(*node));
    }
    match even_slots(present, &owning_nothing(present)) {
        Ok(Some((next, moves))) => return Decision::Slots(next, moves),
        Ok(None) => {}
        Err(why) => return Decision::Wait(Reason::NoPlan(why.to_string())),
    }
    let Some(reports) = reports else { return Decision::Ask };
    match even_names(present, reports, None) {
        Err(why) => Decision::Wait(Reason::NoPlan(why.to_string())),
        Ok((plan, next)) => decide_names(plan, next),
    }
}

/// A name that is moved is kept from everybody for a moment: not for less than what a node may have
/// above its part.
fn decide_names(plan: BalancePlan, next: Option<PlacementMap>) -> Decision {
    let (before, after) = (most(&plan.before), most(&plan.expected));
    let (total, nodes): (u64, _) = (plan.before.iter().sum(), plan.before.len() as u64);
    let Some(next) = next else {
        let enough = ENTRIES_MIN.saturating_mul(nodes);
        return Decision::Wait(match before <= plan.limit {
            true => Reason::Even(before, plan.limit),
            false if total < enough => Reason::Few(total, enough),
            false => Reason::TooLittle(before, before, plan.limit),
        });
    };
    let allowed_above = plan.limit.saturating_sub(total.div_ceil(nodes.max(1)));
    if before > plan.limit && after > plan.limit && before.saturating_sub(after) < allowed_above {
        return Decision::Wait(Reason::TooLittle(before, after, plan.limit));
    }
    Decision::Names(next, plan)
}

fn most(loads: &[u64]) -> u64 {
    loads.iter().copied().max().unwrap_or_default()
}

/// Members without slots.
fn owning_nothing(present: &PlacementMap) -> Vec<NodeId> {
    let members = present.map.members().iter().zip(present.map.slots_of_members());
    members.filter(|(_, slots)| *slots == 0).map(|(member, _)| member.id).collect()
}
