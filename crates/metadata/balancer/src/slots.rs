//! Slots for nodes that join, and away from nodes that leave: everybody gets an equal number, and
//! no more slots move than that takes.

use kestrel_types::placement::slot_map::SlotMapError;
use kestrel_types::placement::{Member, NodeId, SLOTS, Slot, SlotMap};

/// A slot that gets another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotMove {
    /// The slot.
    pub slot: Slot,
    /// Its owner so far.
    pub from: NodeId,
    /// Its owner from now on.
    pub to: NodeId,
}

/// The map of a cluster with these members, those that join included, in which nodes that leave own
/// nothing, and what moves. A node leaves in two steps: it is drained by this, and dropped from the
/// members when nothing is left on it.
///
/// # Errors
/// If no member would stay, a slot's owner is not among the members, or the members make no cluster
/// ([`SlotMap::new`]).
pub fn resize(
    map: &SlotMap,
    members: &[Member],
    leaving: &[NodeId],
) -> Result<(SlotMap, Vec<SlotMove>), SlotMapError> {
    let mut staying: Vec<NodeId> =
        members.iter().map(|member| member.id).filter(|id| !leaving.contains(id)).collect();
    staying.sort_unstable();
    if staying.is_empty() {
        return Err(SlotMapError(
            "nobody stays to own the slots; add a node before the last one leaves",
        ));
    }
    if map.members().iter().any(|owner| !members.iter().any(|member| member.id == owner.id)) {
        return Err(SlotMapError(
            "a node can only be dropped once it owns nothing; drain it first",
        ));
    }
    let mut quotas = quotas(map, &staying);
    let mut moving = Vec::new();
    let mut owners: Vec<NodeId> = (0..SLOTS as Slot).map(|slot| map.owner(slot).id).collect();
    for (slot, owner) in owners.iter().enumerate() {
        match staying.binary_search(owner) {
            Ok(at) if quotas[at] > 0 => quotas[at] -= 1,
            _ => moving.push(slot),
        }
    }
    let mut moves = Vec::with_capacity(moving.len());
    let mut takers = (0..staying.len()).flat_map(|at| std::iter::repeat_n(staying[at], quotas[at]));
    for slot in moving {
        // Quotas add up to the number of slots, so there are as many takers as slots that move.
        let Some(to) = takers.next() else { break };
        moves.push(SlotMove { slot: slot as Slot, from: owners[slot], to });
        owners[slot] = to;
    }
    let map = SlotMap::new(members.to_vec(), |slot| owners[usize::from(slot)])?;
    Ok((map, moves))
}

/// Slots that each node that stays will own. Where the number does not divide, the nodes with the
/// most keep one more.
fn quotas(map: &SlotMap, staying: &[NodeId]) -> Vec<usize> {
    let counts = map.slots_of_members();
    let owned = |id: NodeId| {
        let at = map.members().iter().position(|member| member.id == id);
        at.map_or(0, |at| counts[at])
    };
    let mut order: Vec<usize> = (0..staying.len()).collect();
    order.sort_by_key(|at| (usize::MAX - owned(staying[*at]), *at));
    let mut quotas = vec![SLOTS / staying.len(); staying.len()];
    for at in order.into_iter().take(SLOTS % staying.len()) {
        quotas[at] += 1;
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(ids: impl IntoIterator<Item = NodeId>) -> Vec<Member> {
        ids.into_iter().map(|id| Member { id, address: format!("n{id}:1") }).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Each node gets an equal number of slots, with no more moves than needed.
        #[test]
        fn equal_slots_with_fewest_moves(
            old in prop::collection::btree_set(0u32..40, 1..12),
            new in prop::collection::btree_set(40u32..60, 0..6),
            leaving in prop::collection::vec(0u32..60, 0..8), seed in any::<u64>(),
        ) {
            let ids: Vec<NodeId> = old.iter().copied().collect();
            let map = SlotMap::new(members(ids.clone()), |slot| {
                let at = (seed ^ u64::from(slot / 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
                ids[at as usize % ids.len()]
            }).unwrap();
            let all = members(old.union(&new).copied());
            let staying = all.iter().filter(|member| !leaving.contains(&member.id)).count();
            let Ok((after, moves)) = resize(&map, &all, &leaving) else {
                prop_assert_eq!(staying, 0);
                return Ok(());
            };
            let counts = after.slots_of_members();
            let mut surplus = 0;
            for (member, count) in after.members().iter().zip(&counts) {
                if leaving.contains(&member.id) {
                    prop_assert_eq!(*count, 0);
                } else {
                    prop_assert!(*count == SLOTS / staying || *count == SLOTS.div_ceil(staying));
                }
                let before = map.members().iter().position(|one| one.id == member.id)
                    .map_or(0, |at| map.slots_of_members()[at]);
                surplus += before.saturating_sub(*count);
            }
            prop_assert_eq!(moves.len(), surplus);
            let changed =
                (0..SLOTS as Slot).filter(|slot| map.owner(*slot) != after.owner(*slot)).count();
            prop_assert_eq!(moves.len(), changed);
            for one in &moves {
                prop_assert_eq!((map.owner(one.slot).id, after.owner(one.slot).id),
                    (one.from, one.to));
            }
            // Nothing is left to do.
            prop_assert!(resize(&after, &all, &leaving).unwrap().1.is_empty());
        }
    }

    #[test]
    fn a_cluster_grows_and_shrinks_again() {
        let one = SlotMap::even(members([1])).unwrap();
        let (two, moves) = resize(&one, &members([1, 2]), &[]).unwrap();
        assert_eq!((moves.len(), two.slots_of_members()), (SLOTS / 2, vec![SLOTS / 2; 2]));
        let (drained, moves) = resize(&two, &members([1, 2]), &[1]).unwrap();
        assert_eq!((moves.len(), drained.slots_of_members()), (SLOTS / 2, vec![0, SLOTS]));
        assert!(resize(&two, &members([1, 2]), &[1, 2]).unwrap_err().to_string().contains("stays"));
        assert!(resize(&two, &members([2]), &[]).unwrap_err().to_string().contains("drain"));
    }
}
