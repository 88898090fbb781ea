//! Is there an order of calls that explains all answers? Exactly, by Lowe's just-in-time search.
//!
//! G. Lowe, "Testing for linearizability", Concurrency and Computation 29(4), 2017 (after Wing and
//! Gong, JPDC 17, 1993): go through the beginnings and ends of calls in the order of time and keep
//! all *configurations*: a state of the model, with the calls that have taken effect but not
//! returned. Only when a call returns must it have taken effect: then each configuration that lacks
//! it is extended by pending calls, in every order that the model allows, until it has it. Equal
//! configurations are one (the memoisation). The history is linearizable if some configuration
//! survives each return.
//!
//! Cost: linear in the length of the history times the number of configurations, which is bounded
//! by the calls pending at a time. A call without an answer stays pending for ever: tens of those
//! make the search give up.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

use super::RecordedCall;

/// Most calls that may be pending at one time.
const PENDING_MAX: usize = 64;

/// Most configurations at one time; more than that is given up.
pub const CONFIGURATIONS_MAX: usize = 1 << 20;

/// A sequential object.
pub trait Model: Clone + Eq + Hash + Debug {
    /// What can be called.
    type Call: Debug;
    /// What a call can say.
    type Answer: Debug;

    /// The state after a call that gave this answer; `None` if it cannot have given it in this
    /// state. Without an answer: the state after whatever the call does in this state.
    fn step(&self, call: &Self::Call, answer: Option<&Self::Answer>) -> Option<Self>;

    /// Whether the call may have given this answer in this state without doing anything, for what
    /// is known to be so with the system under test and cannot be helped.
    fn may_do_nothing(&self, _call: &Self::Call, _answer: Option<&Self::Answer>) -> bool {
        false
    }
}

/// What is known of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Linearity<M> {
    /// There is an order that explains it.
    Linearizable {
        /// Most configurations that there were at one time.
        configurations: usize,
    },
    /// There is none.
    Violation {
        /// Index of the event with a return that nothing explains.
        event: usize,
        /// Indexes of the other events that were pending then, in the order of their beginnings.
        pending: Vec<usize>,
        /// States that the calls before may have led to: a few of them, without the pending calls'
        /// effects where possible.
        before: Vec<M>,
    },
    /// Too many calls were pending, or too many configurations are possible.
    Unknown,
}

/// A state, and which of the pending calls, by slot, it includes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Configuration<M> {
    state: M,
    done: u64,
}

/// Decides whether a history is linearizable.
pub fn check<M: Model>(initial: M, events: &[RecordedCall<M::Call, M::Answer>]) -> Linearity<M> {
    // Ends after beginnings at the same nanosecond: the two calls count as concurrent.
    let mut points: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * events.len());
    for (index, event) in events.iter().enumerate() {
        points.push((event.begin, false, index));
        if event.answer.is_some() {
            points.push((event.end, true, index));
        }
    }
    points.sort_unstable();
    // The pending calls: slot by slot, the index of an event.
    let mut slots: [Option<usize>; PENDING_MAX] = [None; PENDING_MAX];
    let mut configurations = HashSet::from([Configuration { state: initial, done: 0 }]);
    let mut most = 1;
    for (_, returns, index) in points {
        if !returns {
            let Some(slot) = slots.iter_mut().find(|slot| slot.is_none()) else {
                return Linearity::Unknown;
            };
            *slot = Some(index);
            continue;
        }
        let Some(slot) = slots.iter().position(|slot| *slot == Some(index)) else {
            return Linearity::Unknown;
        };
        let Some(survivors) = with_effect(&configurations, slot, &slots, events) else {
            return Linearity::Unknown;
        };
        if survivors.is_empty() {
            return violation(index, &slots, events, configurations);
        }
        slots[slot] = None;
        most = most.max(survivors.len());
        configurations = survivors;
    }
    Linearity::Linearizable { configurations: most }
}

/// All configurations that follow from these and include the call in `slot`, which is then taken
/// off; `None` if there are too many.
fn with_effect<M: Model>(
    configurations: &HashSet<Configuration<M>>,
    slot: usize,
    slots: &[Option<usize>; PENDING_MAX],
    events: &[RecordedCall<M::Call, M::Answer>],
) -> Option<HashSet<Configuration<M>>> {
    let mut survivors = HashSet::new();
    let mut seen: HashSet<Configuration<M>> = configurations.clone();
    let mut todo: Vec<Configuration<M>> = configurations.iter().cloned().collect();
    while let Some(Configuration { state, done }) = todo.pop() {
        if done & 1 << slot != 0 {
            survivors.insert(Configuration { state, done: done & !(1 << slot) });
            continue;
        }
        for (other, index) in
            slots.iter().enumerate().filter_map(|(at, index)| Some((at, (*index)?)))
        {
            if done & 1 << other != 0 {
                continue;
            }
            let RecordedCall { call, answer, .. } = &events[index];
            let nothing = state.may_do_nothing(call, answer.as_ref()).then(|| state.clone());
            for state in state.step(call, answer.as_ref()).into_iter().chain(nothing) {
                let next = Configuration { state, done: done | 1 << other };
                if seen.insert(next.clone()) {
                    todo.push(next);
                }
            }
        }
        if seen.len() > CONFIGURATIONS_MAX {
            return None;
        }
    }
    Some(survivors)
}

fn violation<M: Model>(
    event: usize,
    slots: &[Option<usize>],
    events: &[RecordedCall<M::Call, M::Answer>],
    configurations: HashSet<Configuration<M>>,
) -> Linearity<M> {
    let mut pending: Vec<usize> =
        slots.iter().flatten().copied().filter(|index| *index != event).collect();
    pending.sort_unstable_by_key(|index| events[*index].begin);
    let mut before: Vec<_> = configurations.into_iter().collect();
    before.sort_by_cached_key(|held| (held.done.count_ones(), format!("{:?}", held.state)));
    before.truncate(3);
    Linearity::Violation {
        event,
        pending,
        before: before.into_iter().map(|held| held.state).collect(),
    }
}

#[cfg(test)]
mod tests;
