//! The cluster map: which node owns each slot, and where nodes are reached.

use std::collections::BTreeMap;

use super::{SLOTS, Slot};
use crate::codec::{DecodeError, Reader, put_string, put_varint};
use crate::ids::NodeId;

/// Most nodes of a cluster.
pub const MEMBERS_MAX: usize = 1024;

/// Longest address of a node, bytes.
pub const ADDRESS_MAX: usize = 255;

/// A metadata node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub id: NodeId,
    /// Where it listens: `host:port`.
    pub address: String,
}

/// Which node owns which slots. Every slot has exactly one owner, a member; members may own none
/// (they join or leave).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotMap {
    /// Ascending by number, 1 to [`MEMBERS_MAX`].
    members: Vec<Member>,
    /// For each slot the index of its owner in `members`.
    owners: Box<[u16]>,
}

/// Why members and owners make no map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotMapError(pub &'static str);

impl std::fmt::Display for SlotMapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for SlotMapError {}

impl SlotMap {
    /// A map with these members; `owner` tells the node of each slot.
    ///
    /// # Errors
    /// If there are no members or too many, two have one number, an address is too long or empty,
    /// or a slot's owner is not a member.
    pub fn new(
        mut members: Vec<Member>,
        owner: impl Fn(Slot) -> NodeId,
    ) -> Result<Self, SlotMapError> {
        members.sort_by_key(|member| member.id);
        check(&members)?;
        let owners = (0..SLOTS as Slot)
            .map(|slot| {
                let at = members.binary_search_by_key(&owner(slot), |member| member.id);
                // A member's index is below MEMBERS_MAX.
                at.map(|at| at as u16).map_err(|_| SlotMapError("a slot's owner is not a member"))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { members, owners })
    }

    /// A new cluster: each of these members gets an equal run of slots.
    ///
    /// # Errors
    /// As [`SlotMap::new`].
    pub fn even(mut members: Vec<Member>) -> Result<Self, SlotMapError> {
        members.sort_by_key(|member| member.id);
        let ids: Vec<NodeId> = members.iter().map(|member| member.id).collect();
        if ids.is_empty() {
            return Err(SlotMapError("a cluster has at least one node"));
        }
        Self::new(members, |slot| ids[usize::from(slot) * ids.len() / SLOTS])
    }

    /// All members, ascending by number.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member with this number.
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        let at = self.members.binary_search_by_key(&id, |member| member.id).ok()?;
        Some(&self.members[at])
    }

    /// The node that owns a slot.
    ///
    /// # Panics
    /// If there is no such slot; [`super::Exceptions`] and the hashes give none.
    #[inline]
    pub fn owner(&self, slot: Slot) -> &Member {
        &self.members[self.index_of_owner(slot)]
    }

    /// The index of a slot's owner among [`SlotMap::members`]; panics as [`SlotMap::owner`].
    #[inline]
    pub fn index_of_owner(&self, slot: Slot) -> usize {
        usize::from(self.owners[usize::from(slot)])
    }

    /// Slots of each member, in the order of [`SlotMap::members`].
    pub fn slots_of_members(&self) -> Vec<usize> {
        let mut counts = vec![0; self.members.len()];
        for owner in &self.owners {
            counts[usize::from(*owner)] += 1;
        }
        counts
    }

    /// The same with other addresses for these members. What is no address (1 to [`ADDRESS_MAX`]
    /// bytes) is left out.
    pub(super) fn at(&self, addresses: &BTreeMap<NodeId, String>) -> Self {
        let mut map = self.clone();
        for member in &mut map.members {
            if let Some(address) = addresses.get(&member.id).filter(|address| is_address(address)) {
                member.address.clone_from(address);
            }
        }
        map
    }

    /// Appends the map: members, then runs of slots with one owner.
    pub(super) fn encode_into(&self, out: &mut Vec<u8>) {
        put_varint(out, self.members.len() as u64);
        for member in &self.members {
            out.extend_from_slice(&member.id.to_be_bytes());
            put_string(out, member.address.as_bytes());
        }
        for run in self.owners.chunk_by(|one, other| one == other) {
            put_varint(out, u64::from(run[0]));
            put_varint(out, run.len() as u64);
        }
    }

    /// Reads what [`SlotMap::encode_into`] wrote.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.varint()?;
        if count > MEMBERS_MAX as u64 {
            return Err(DecodeError("more nodes than a cluster may have"));
        }
        let mut members: Vec<Member> = Vec::new();
        for _ in 0..count {
            let id = reader.u32()?;
            let address = str::from_utf8(reader.string(ADDRESS_MAX)?)
                .map_err(|_| DecodeError("an address that is not UTF-8"))?;
            if members.last().is_some_and(|last| last.id >= id) {
                return Err(DecodeError("nodes out of order"));
            }
            members.push(Member { id, address: address.to_string() });
        }
        check(&members).map_err(|why| DecodeError(why.0))?;
        let mut owners: Vec<u16> = Vec::with_capacity(SLOTS);
        while owners.len() < SLOTS {
            let owner = reader.varint()?;
            let len = reader.varint()?;
            if owner >= members.len() as u64 || len == 0 || len > (SLOTS - owners.len()) as u64 {
                return Err(DecodeError("owners of slots out of bounds"));
            }
            if owners.last().is_some_and(|last| u64::from(*last) == owner) {
                return Err(DecodeError("owners of slots are not in longest runs"));
            }
            // Both were just found to be small.
            owners.resize(owners.len() + len as usize, owner as u16);
        }
        Ok(Self { members, owners: owners.into_boxed_slice() })
    }
}

fn is_address(address: &str) -> bool {
    (1..=ADDRESS_MAX).contains(&address.len())
}

/// Whether these, sorted, can be the members of a cluster.
fn check(members: &[Member]) -> Result<(), SlotMapError> {
    if members.is_empty() {
        return Err(SlotMapError("a cluster has at least one node"));
    }
    if members.len() > MEMBERS_MAX {
        return Err(SlotMapError("a cluster has at most 1,024 nodes"));
    }
    if members.is_sorted_by(|one, next| one.id < next.id) {
        if members.iter().all(|member| is_address(&member.address)) {
            return Ok(());
        }
        return Err(SlotMapError("an address has 1 to 255 bytes"));
    }
    Err(SlotMapError("two nodes have one number"))
}
