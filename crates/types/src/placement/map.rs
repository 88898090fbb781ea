//! The placement map: exceptions and cluster map under one version.
//!
//! The coordinator makes tables, each with a version of one more than the last. Nodes get a new one
//! at once; every reply carries the version of the node that gave it, and a client that sees a
//! newer one than its own fetches it. One number for both parts, so that comparing versions
//! compares everything that decides about an owner.
//!
//! A node leaves in two tables. The first marks it as *leaving*: it owns no slots any more, and
//! clients move out of it. The next one has it no longer among the members but among the *former*
//! nodes, each with its *heir*: the member that has the shares which bear the former one's number.
//! Former nodes stay in the table for ever, so a number is never used again.
//!
//! One member is the *coordinator*, and the next table may say that it is another one. Members that
//! are *idle* serve no clients: they coordinate, or wait to. A member is idle from the table with
//! which it came to the one with which it goes, so nothing of the volume ever was at one.

use std::collections::BTreeMap;
use std::fmt;

use super::slot_map::{MEMBERS_MAX, SlotMapError};
use super::{Exceptions, Member, NodeId, Slot, SlotMap, slot_of_id};
use crate::codec::{DecodeError, Reader, put_varint};
use crate::ids::InodeId;
use crate::request::{Op, Subject};

/// Newest version of the encoding (`docs/format/placement.md`).
const FORMAT: u8 = 3;

/// Version of the encoding of tables in which the coordinator is the member with the lowest number,
/// and no member idle: programs that know no newer one go on reading these.
const FORMAT_ALL_SERVE: u8 = 2;

/// As [`FORMAT_ALL_SERVE`], of tables that no node leaves or has left.
const FORMAT_ALL_STAY: u8 = 1;

/// Longest encoded table, bytes. A frame holds 4 MiB.
pub const PLACEMENT_BYTES_MAX: usize = 4_000_000;

// Exceptions (name with its length, kind, slot), members (number, address with its length),
// leaving, former and idle ones, a run for each slot, the rest.
const _: () = assert!(
    super::exceptions::EXCEPTIONS_MAX * (2 + 255 + 1 + 2)
        + MEMBERS_MAX * (4 + 2 + 255)
        + MEMBERS_MAX * (4 + 4 + 4 + 4)
        + super::SLOTS * (2 + 3)
        + 64
        <= PLACEMENT_BYTES_MAX
);

/// Where a client sends a request for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner<'a> {
    /// To this node.
    Node(&'a Member),
    /// To any: the owner depends on the directory, which the node finds out.
    Any,
}

/// Where everything is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementMap {
    /// Counts the tables of this cluster, from 1 on.
    pub version: u64,
    /// Slots to nodes.
    pub map: SlotMap,
    /// Names that are not placed by their hash.
    pub exceptions: Exceptions,
    /// Members that clients move out of, ascending. They own no slots.
    pub leaving: Vec<NodeId>,
    /// Nodes that have left, ascending, each with its heir, a member.
    pub former: Vec<(NodeId, NodeId)>,
    /// The member that leads changes of the table and renames of directories.
    pub coordinator: NodeId,
    /// Members that serve no clients, ascending. They own no slots, and never did.
    pub idle: Vec<NodeId>,
}

/// Why a table could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementError {
    /// A newer version of KestrelFS wrote it.
    Newer(u8),
    /// It is damaged.
    Damaged(DecodeError),
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlacementError::Newer(format) => write!(
                f,
                "placement table: its format is {format}, this program knows {FORMAT}; use the \
                 version of kestrel that the \
                 rest of the cluster runs"
            ),
            PlacementError::Damaged(why) => {
                write!(f, "placement table: damaged: {why}; fetch it from the coordinator again")
            }
        }
    }
}

impl std::error::Error for PlacementError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Damaged(why) => Some(why),
            Self::Newer(_) => None,
        }
    }
}

impl PlacementMap {
    /// The first table of a cluster: the member with the lowest number coordinates, and all serve.
    pub fn new(map: SlotMap, exceptions: Exceptions) -> Self {
        let (leaving, former, idle) = (Vec::new(), Vec::new(), Vec::new());
        let coordinator = lowest(&map);
        Self { version: 1, map, exceptions, leaving, former, coordinator, idle }
    }

    /// The same with one member more, which owns no slots; of an older table's version still.
    ///
    /// # Errors
    /// If the members then make no cluster.
    pub fn with_member(&self, member: Member, idle: bool) -> Result<Self, SlotMapError> {
        let id = member.id;
        let mut members = self.map.members().to_vec();
        members.push(member);
        let mut next = self.clone();
        next.map = SlotMap::new(members, |slot| self.map.owner(slot).id)?;
        if idle {
            next.idle.push(id);
            next.idle.sort_unstable();
        }
        next.check()?;
        Ok(next)
    }

    /// The next table, in which another member coordinates.
    ///
    /// # Errors
    /// If it is no member, does so already, or is leaving.
    pub fn with_coordinator(&self, node: NodeId) -> Result<Self, SlotMapError> {
        if node == self.coordinator {
            return Err(SlotMapError("the node is the coordinator already"));
        }
        let next = Self { version: self.version + 1, coordinator: node, ..self.clone() };
        next.check()?;
        Ok(next)
    }

    /// The same, of the same version, with members where they are at present: a node may have gone
    /// elsewhere since the table was made. What tables are told apart by does not change; one that
    /// is to follow another keeps that one's addresses.
    #[must_use]
    pub fn at(&self, address_book: &BTreeMap<NodeId, String>) -> Self {
        Self { map: self.map.at(address_book), ..self.clone() }
    }

    /// Whether this member serves no clients.
    #[inline]
    pub fn is_idle(&self, node: NodeId) -> bool {
        self.idle.binary_search(&node).is_ok()
    }

    /// Members that serve clients, ascending. There is one: it owns slots.
    pub fn serving(&self) -> impl Iterator<Item = &Member> + '_ {
        self.map.members().iter().filter(|member| !self.is_idle(member.id))
    }

    /// The member that leads all that is done with snapshots and with quotas: the coordinator if it
    /// serves, or else the first member that does and stays, or does.
    pub fn snapshot_leader(&self) -> Option<&Member> {
        if !self.is_idle(self.coordinator) {
            return self.map.member(self.coordinator);
        }
        let stays = self.serving().find(|member| !self.is_leaving(member.id));
        stays.or_else(|| self.serving().next())
    }

    /// A member that may get what another one leaves behind: this one if it serves and stays.
    pub fn heir_for(&self, node: NodeId, rather: NodeId) -> Option<NodeId> {
        let may = |heir: NodeId| heir != node && !self.is_idle(heir) && !self.is_leaving(heir);
        let others = self.map.members().iter().map(|member| member.id);
        std::iter::once(rather).chain(others).find(|heir| may(*heir))
    }

    /// Whether clients move out of this member.
    pub fn is_leaving(&self, node: NodeId) -> bool {
        self.leaving.binary_search(&node).is_ok()
    }

    /// The member that has the shares of a node that has left.
    pub fn heir_of(&self, node: NodeId) -> Option<NodeId> {
        let at = self.former.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        Some(self.former[at].1)
    }

    /// The next table, in which a member is leaving.
    ///
    /// # Errors
    /// If it is no member, is leaving already, or owns slots.
    pub fn with_leaving(&self, node: NodeId) -> Result<Self, SlotMapError> {
        let mut next = self.clone();
        match next.leaving.binary_search(&node) {
            Ok(_) => return Err(SlotMapError("the node is leaving already")),
            Err(at) => next.leaving.insert(at, node),
        }
        next.version += 1;
        next.check()?;
        Ok(next)
    }

    /// The next table, in which a member has left: `heir` has its shares, and those of former nodes
    /// that it had.
    ///
    /// # Errors
    /// If it is no member, owns slots or coordinates, or the heir is no other member, is leaving,
    /// or idle.
    pub fn without(&self, node: NodeId, heir: NodeId) -> Result<Self, SlotMapError> {
        if self.map.member(node).is_none() {
            return Err(SlotMapError("the node is no member"));
        }
        if self.is_leaving(heir) {
            return Err(SlotMapError("an heir is not leaving"));
        }
        let members =
            self.map.members().iter().filter(|member| member.id != node).cloned().collect();
        let mut next = self.clone();
        next.map = SlotMap::new(members, |slot| self.map.owner(slot).id)?;
        next.leaving.retain(|other| *other != node);
        next.idle.retain(|other| *other != node);
        for (_, has) in next.former.iter_mut().filter(|(_, has)| *has == node) {
            *has = heir;
        }
        next.former.push((node, heir));
        next.former.sort_unstable();
        next.version += 1;
        next.check()?;
        Ok(next)
    }

    /// Whether leaving, former and idle nodes and the coordinator fit the members, and each other.
    fn check(&self) -> Result<(), SlotMapError> {
        let Self { map, leaving, former, idle, .. } = self;
        if former.len() > MEMBERS_MAX {
            return Err(SlotMapError("more than 1,024 nodes have left"));
        }
        if !leaving.is_sorted_by(|one, next| one < next)
            || !former.is_sorted_by(|one, next| one.0 < next.0)
        {
            return Err(SlotMapError("leaving or former nodes out of order"));
        }
        if !idle.is_sorted_by(|one, next| one < next) {
            return Err(SlotMapError("idle nodes out of order"));
        }
        if map.member(self.coordinator).is_none() || self.is_leaving(self.coordinator) {
            return Err(SlotMapError("the coordinator is no member, or is leaving"));
        }
        for (member, slots) in map.members().iter().zip(map.slots_of_members()) {
            if slots > 0 && self.is_leaving(member.id) {
                return Err(SlotMapError("a node that is leaving owns slots"));
            }
            if slots > 0 && self.is_idle(member.id) {
                return Err(SlotMapError("a node that serves no clients owns slots"));
            }
        }
        if idle.iter().any(|node| map.member(*node).is_none()) {
            return Err(SlotMapError("a node that is no member is idle"));
        }
        if former.iter().any(|(_, heir)| self.is_idle(*heir)) {
            return Err(SlotMapError("an heir serves no clients"));
        }
        if leaving.iter().any(|node| map.member(*node).is_none()) {
            return Err(SlotMapError("a node that is no member is leaving"));
        }
        if former
            .iter()
            .any(|(node, heir)| map.member(*node).is_some() || map.member(*heir).is_none())
        {
            return Err(SlotMapError("a former node is a member, or its heir is none"));
        }
        Ok(())
    }

    /// The slot of an entry.
    #[inline]
    pub fn slot_of(&self, parent: InodeId, name: &[u8]) -> Slot {
        self.exceptions.slot_of(parent, name)
    }

    /// The node that owns an entry.
    #[inline]
    pub fn owner_of(&self, parent: InodeId, name: &[u8]) -> &Member {
        self.map.owner(self.slot_of(parent, name))
    }

    /// Where a client sends a request for a name in a directory if it does not know the directory's
    /// number.
    #[inline]
    pub fn owner_of_name(&self, name: &[u8]) -> Owner<'_> {
        match self.exceptions.slot_of_name(name) {
            Some(slot) => Owner::Node(self.map.owner(slot)),
            None => Owner::Any,
        }
    }

    /// The node that leads an operation: a function of the request alone, so that a request that is
    /// sent again comes to the node that knows whether it was executed. It owns the (first) entry
    /// in question, unless its placement depends on a directory that the request does not name.
    /// `None`: what the client has open concerns the node where it opened it, and figures of the
    /// volume any node tells. What rows were at a snapshot the node knows that has the rows.
    pub fn leader(&self, op: &Op) -> Option<&Member> {
        match op {
            Op::At(_, op) => return self.leader(op),
            Op::SnapshotCreate { .. }
            | Op::SnapshotRename { .. }
            | Op::SnapshotRemove { .. }
            | Op::SnapshotHold { .. }
            | Op::SnapshotList { .. }
            | Op::SnapshotChanges { .. }
            | Op::CloneDir { .. }
            | Op::CloneStep(_)
            | Op::QuotaSet(..)
            | Op::QuotaRemove(_)
            | Op::QuotaList(None)
            | Op::QuotaCheck { .. } => return self.snapshot_leader(),
            _ => {}
        }
        match op.subject() {
            Subject::Path(place) => Some(self.owner_of(place.base, place.name.as_bytes())),
            Subject::Inode(inode) => Some(match &inode.seen {
                Some((parent, name)) => self.owner_of(*parent, name.as_bytes()),
                None => self.home_of(inode.ino),
            }),
            Subject::Number(ino) => Some(self.home_of(ino)),
            Subject::Held(_) | Subject::Open(_) | Subject::Volume => None,
        }
    }

    /// The node that owns what is found by an id.
    #[inline]
    pub fn home_of(&self, id: u64) -> &Member {
        self.map.owner(slot_of_id(id))
    }

    /// The table's bytes, at most [`PLACEMENT_BYTES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let all_stay = self.leaving.is_empty() && self.former.is_empty();
        let format = match (self.all_serve(), all_stay) {
            (false, _) => FORMAT,
            (true, false) => FORMAT_ALL_SERVE,
            (true, true) => FORMAT_ALL_STAY,
        };
        let mut out = vec![format];
        out.extend_from_slice(&self.version.to_be_bytes());
        self.map.encode_into(&mut out);
        self.exceptions.encode_into(&mut out);
        if format != FORMAT_ALL_STAY {
            put_varint(&mut out, self.leaving.len() as u64);
            for node in &self.leaving {
                out.extend_from_slice(&node.to_be_bytes());
            }
            put_varint(&mut out, self.former.len() as u64);
            for (node, heir) in &self.former {
                out.extend_from_slice(&node.to_be_bytes());
                out.extend_from_slice(&heir.to_be_bytes());
            }
        }
        if format == FORMAT {
            out.extend_from_slice(&self.coordinator.to_be_bytes());
            put_varint(&mut out, self.idle.len() as u64);
            for node in &self.idle {
                out.extend_from_slice(&node.to_be_bytes());
            }
        }
        debug_assert!(out.len() <= PLACEMENT_BYTES_MAX);
        out
    }

    /// Whether formats 1 and 2 say all there is.
    fn all_serve(&self) -> bool {
        self.coordinator == lowest(&self.map) && self.idle.is_empty()
    }

    /// Reads what [`PlacementMap::encode`] wrote, all of it. Two encodings of equal tables are
    /// equal.
    ///
    /// # Errors
    /// If the bytes are of a newer format, truncated, too many, or out of bounds or order.
    pub fn decode(bytes: &[u8]) -> Result<Self, PlacementError> {
        let mut reader = Reader::new(bytes);
        let format = match reader.u8().map_err(PlacementError::Damaged)? {
            format @ (FORMAT_ALL_STAY | FORMAT_ALL_SERVE | FORMAT) => format,
            0 => return Err(PlacementError::Damaged(DecodeError("format 0"))),
            newer => return Err(PlacementError::Newer(newer)),
        };
        Self::decode_body(&mut reader, format).map_err(PlacementError::Damaged)
    }

    fn decode_body(reader: &mut Reader<'_>, format: u8) -> Result<Self, DecodeError> {
        let version = reader.u64()?;
        if version == 0 {
            return Err(DecodeError("table version 0"));
        }
        let map = SlotMap::decode(reader)?;
        let exceptions = Exceptions::decode(reader)?;
        let mut table = Self { version, ..Self::new(map, exceptions) };
        if format != FORMAT_ALL_STAY {
            for _ in 0..count(reader)? {
                table.leaving.push(reader.u32()?);
            }
            for _ in 0..count(reader)? {
                table.former.push((reader.u32()?, reader.u32()?));
            }
            if format == FORMAT_ALL_SERVE && table.leaving.is_empty() && table.former.is_empty() {
                return Err(DecodeError("format 2 of a table that no node leaves"));
            }
        }
        if format == FORMAT {
            table.coordinator = reader.u32()?;
            for _ in 0..count(reader)? {
                table.idle.push(reader.u32()?);
            }
            if table.all_serve() {
                return Err(DecodeError("format 3 of a table that needs none"));
            }
        }
        reader.end()?;
        table.check().map_err(|why| DecodeError(why.0))?;
        Ok(table)
    }
}

/// The member with the lowest number.
fn lowest(map: &SlotMap) -> NodeId {
    map.members().first().map_or(0, |member| member.id)
}

/// How many nodes follow.
fn count(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let count = reader.varint()?;
    if count > MEMBERS_MAX as u64 {
        return Err(DecodeError("more nodes than a cluster may have"));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Rule, SLOTS, hash_name, slot_of_hash};
    use super::*;
    use crate::name::Name;

    fn member(id: u32) -> Member {
        Member { id, address: format!("node-{id}.example:7000") }
    }

    fn name() -> impl Strategy<Value = Name> {
        prop::collection::vec(any::<u8>(), 1..=255)
            .prop_filter_map("not a name", |b| Name::new(&b).ok())
    }

    fn rule() -> impl Strategy<Value = Rule> {
        prop_oneof![Just(Rule::PathWalk), (0..SLOTS as Slot).prop_map(Rule::Override)]
    }

    prop_compose! {
        fn placement()(version in 1u64.., ids in prop::collection::btree_set(any::<u32>(), 1..20),
            seeds in prop::collection::vec(any::<usize>(), 1..50), run in 1usize..2000,
            rules in prop::collection::vec((name(), rule()), 0..20),
            gone in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..4),
            idle in prop::collection::vec((0u32..100, any::<bool>()), 0..4)) -> PlacementMap {
            let ids: Vec<u32> = ids.into_iter().collect();
            // Some leave, but the first one stays.
            let gone: Vec<(u32, bool)> =
                gone.iter().map(|(at, left)| (ids[at.index(ids.len())], *left)).collect();
            let stay: Vec<u32> =
                ids.iter().copied().filter(|id| *id == ids[0]
                    || gone.iter().all(|(gone, _)| gone != id)).collect();
            let members = ids.iter().map(|id| member(*id)).collect();
            let map = SlotMap::new(members, |slot| {
                stay[seeds[usize::from(slot) / run % seeds.len()] % stay.len()]
            }).unwrap();
            let mut exceptions = Exceptions::default();
            for (name, rule) in rules {
                exceptions.set(name, Some(rule)).unwrap();
            }
            let mut table = PlacementMap { version, ..PlacementMap::new(map, exceptions) };
            for (node, left) in gone {
                if node == ids[0] || table.map.member(node).is_none() || table.is_leaving(node) {
                    continue;
                }
                table = if left {
                    table.without(node, ids[0]).unwrap()
                } else {
                    table.with_leaving(node).unwrap()
                };
            }
            for (id, leads) in idle {
                if table.map.member(id).is_none() && table.heir_of(id).is_none() {
                    table = table.with_member(member(id), true).unwrap();
                    if leads {
                        table = table.with_coordinator(id).unwrap_or(table);
                    }
                }
            }
            PlacementMap { version, ..table }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn tables_round_trip_and_part_of_one_is_an_error(
            table in placement(),
            cut in any::<prop::sample::Index>()
        ) {
            let bytes = table.encode();
            prop_assert_eq!(PlacementMap::decode(&bytes).unwrap(), table);
            prop_assert!(PlacementMap::decode(&bytes[..cut.index(bytes.len())]).is_err());
            let mut more = bytes;
            more.push(0);
            prop_assert!(PlacementMap::decode(&more).is_err());
        }

        #[test]
        fn what_is_decoded_is_what_would_be_encoded(
            table in placement(),
            at in any::<prop::sample::Index>(),
            to in any::<u8>()
        ) {
            let mut bytes = table.encode();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(found) = PlacementMap::decode(&bytes) {
                prop_assert_eq!(found.encode(), bytes);
            }
        }

        #[test]
        fn garbage_is_an_error_not_a_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200)
        ) {
            let _ = PlacementMap::decode(&bytes);
            for format in [FORMAT_ALL_STAY, FORMAT_ALL_SERVE, FORMAT] {
                if let Some(first) = bytes.first_mut() {
                    *first = format;
                }
                let _ = PlacementMap::decode(&bytes);
            }
        }

        #[test]
        fn rules_decide_and_without_one_the_hash_does(mut table in placement(), name in name(),
            parent in any::<u64>(),
            rule in prop::option::of(rule())) {
            table.exceptions.set(name.clone(), rule).unwrap();
            let bytes = name.as_bytes();
            prop_assert_eq!(table.exceptions.rule(bytes), rule);
            let slot = table.slot_of(parent, bytes);
            prop_assert_eq!(table.owner_of(parent, bytes), table.map.owner(slot));
            match rule {
                None => prop_assert_eq!(slot, slot_of_hash(hash_name(bytes))),
                Some(Rule::Override(to)) => prop_assert_eq!(slot, to),
                Some(Rule::PathWalk) => prop_assert_eq!(table.owner_of_name(bytes), Owner::Any),
            }
            if rule != Some(Rule::PathWalk) {
                prop_assert_eq!(table.owner_of_name(bytes),
                    Owner::Node(table.owner_of(parent, bytes)));
            }
        }
    }

    fn small() -> PlacementMap {
        let map = SlotMap::even(vec![member(1), member(2), member(5)]).unwrap();
        PlacementMap { version: 7, ..PlacementMap::new(map, Exceptions::default()) }
    }

    /// All slots are the first node's.
    fn drained() -> PlacementMap {
        let map = SlotMap::new(vec![member(1), member(2), member(5)], |_| 1).unwrap();
        PlacementMap { version: 7, ..PlacementMap::new(map, Exceptions::default()) }
    }

    /// A placement map of a newer format is refused, and the error says what to do.
    #[test]
    fn placement_map_of_a_newer_version() {
        let mut bytes = small().encode();
        bytes[0] = FORMAT + 1;
        let error = PlacementMap::decode(&bytes).unwrap_err();
        assert_eq!(error, PlacementError::Newer(FORMAT + 1));
        assert!(error.to_string().contains("use the version of kestrel"), "{error}");
    }

    #[test]
    fn the_encoding_never_changes() {
        let mut table = small();
        table.exceptions.set(Name::new(b"Makefile").unwrap(), Some(Rule::PathWalk)).unwrap();
        table
            .exceptions
            .set(Name::new(b"train.txt").unwrap(), Some(Rule::Override(0x1234)))
            .unwrap();
        let bytes: String = table.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, ENCODED);
    }

    const ENCODED: &str = "\
        0100000000000000070300000001136e6f64652d312e6578616d706c653a3730303000000002136e6f64652d322e6578616d706c65\
        3a3730303000000005136e6f64652d352e6578616d706c653a3730303000d62a01d52a\
        02d52a0209747261696e2e747874011234084d616b6566696c6502";

    #[test]
    fn the_encoding_of_who_has_left_never_changes() {
        let table = drained().with_leaving(5).unwrap().without(2, 1).unwrap();
        let bytes: String = table.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, ENCODED_LEFT);
    }

    const ENCODED_LEFT: &str = "\
        0200000000000000090200000001136e6f64652d312e6578616d706c653a3730303000000005136e6f64652d352e6578616d706c65\
        3a3730303000808001000100000005010000000200000001";

    #[test]
    fn the_encoding_of_who_coordinates_never_changes() {
        let table = drained().with_member(member(9), true).unwrap().with_coordinator(9).unwrap();
        let bytes: String = table.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, ENCODED_ROLES);
    }

    const ENCODED_ROLES: &str = "\
        0300000000000000080400000001136e6f64652d312e6578616d706c653a3730303000000002136e6f64652d322e6578616d706c65\
        3a3730303000000005136e6f64652d352e6578616d706c653a3730303000000009136e6f64652d392e6578616d706c653a37303030\
        008080010000000000000901000000\
        09";

    /// An idle cluster member gets no slots, and a coordinator cannot leave.
    #[test]
    fn idle_members_and_the_coordinator() {
        let table = small().with_member(member(9), true).unwrap();
        assert!(table.is_idle(9) && !table.is_idle(5) && table.coordinator == 1);
        assert_eq!(table.serving().map(|member| member.id).collect::<Vec<_>>(), [1, 2, 5]);
        let handed = table.with_coordinator(9).unwrap();
        assert_eq!((handed.coordinator, handed.version), (9, table.version + 1));
        let drained = drained().with_member(member(9), true).unwrap();
        assert_eq!((drained.heir_for(2, 9), drained.heir_for(2, 5)), (Some(1), Some(5)));
        for (made, why) in [
            (table.with_coordinator(1), "already"),
            (table.with_coordinator(3), "is no member"),
            (handed.with_leaving(9), "is leaving"),
            (handed.without(9, 1), "is no member"),
            (drained.with_leaving(2).unwrap().without(2, 9), "heir serves no clients"),
            (drained.with_leaving(2).unwrap().with_coordinator(2), "is leaving"),
        ] {
            let error = made.unwrap_err().to_string();
            assert!(error.contains(why), "{error} {why}");
        }
        let taken = SlotMap::new(table.map.members().to_vec(), |_| 9).unwrap();
        let bytes = PlacementMap { map: taken, ..table }.encode();
        assert!(PlacementMap::decode(&bytes).is_err(), "it owns slots");
        let map = SlotMap::new(drained.map.members().to_vec(), |_| 2).unwrap();
        let gone =
            PlacementMap { map, ..drained }.with_coordinator(9).unwrap().without(1, 2).unwrap();
        assert_eq!((gone.coordinator, gone.heir_of(1)), (9, Some(2)));
    }

    /// A cluster member that leaves has an heir, and so has an heir that leaves.
    #[test]
    fn heirs_of_members_that_leave() {
        let table = drained().with_leaving(2).unwrap();
        assert!(table.is_leaving(2) && !table.is_leaving(1) && table.heir_of(2).is_none());
        let table = table.without(2, 5).unwrap();
        assert_eq!((table.version, table.is_leaving(2), table.heir_of(2)), (9, false, Some(5)));
        let table = table.with_leaving(5).unwrap().without(5, 1).unwrap();
        assert_eq!(
            (table.heir_of(2), table.heir_of(5), table.heir_of(1)),
            (Some(1), Some(1), None)
        );
        assert_eq!(table.map.members().len(), 1);
    }

    #[test]
    fn what_is_no_leaving_is_refused() {
        let table = drained().with_leaving(5).unwrap();
        for (made, why) in [
            (small().with_leaving(2), "owns slots"),
            (table.with_leaving(5), "already"),
            (table.with_leaving(3), "no member"),
            (table.without(3, 1), "no member"),
            (table.without(1, 2), "slot's owner"),
            (table.without(2, 2), "its heir"),
            (table.without(2, 3), "its heir"),
            (table.without(2, 5), "heir is not leaving"),
        ] {
            let error = made.unwrap_err().to_string();
            assert!(error.contains(why), "{error} {why}");
        }
    }

    /// An even map gives each member the same number of slots.
    #[test]
    fn even_map() {
        for nodes in [1, 2, 3, 7, 16, 1000, 1024] {
            let map = SlotMap::even((0..nodes).map(|i| member(i * 3)).collect()).unwrap();
            let slots = map.slots_of_members();
            let (least, most) = (slots.iter().min().unwrap(), slots.iter().max().unwrap());
            assert!(
                most - least <= 1 && slots.iter().sum::<usize>() == SLOTS,
                "{nodes}: {least} {most}"
            );
        }
    }

    /// A placement map with new addresses of its nodes is the same otherwise.
    #[test]
    fn placement_map_with_new_addresses() {
        let table = small();
        let at = |node, address: &str| BTreeMap::from([(node, address.to_string())]);
        let moved = table.at(&at(2, "elsewhere:1"));
        assert_eq!(moved.map.member(2).map(|member| member.address.as_str()), Some("elsewhere:1"));
        let (other, back) = (member(1).address, moved.at(&at(2, &member(2).address)));
        assert_eq!(
            (moved.map.member(1).map(|member| &member.address), back),
            (Some(&other), table.clone())
        );
        for none in [at(9, "elsewhere:1"), at(2, ""), at(2, &"x".repeat(256))] {
            assert_eq!(table.at(&none), table);
        }
    }

    #[test]
    fn what_is_no_cluster_is_refused() {
        for (members, why) in [
            (vec![], "at least one"),
            (vec![member(1), member(2), member(1)], "one number"),
            ((0..1025).map(member).collect(), "1,024"),
            (vec![Member { id: 1, address: String::new() }], "address"),
            (vec![Member { id: 1, address: "x".repeat(256) }], "address"),
        ] {
            let error = SlotMap::even(members).unwrap_err();
            assert!(error.to_string().contains(why), "{error} {why}");
        }
        assert!(SlotMap::new(vec![member(1)], |_| 2).is_err());
    }

    #[test]
    fn a_full_table_says_so_and_fits_a_frame() {
        let mut table = small();
        for i in 0..super::super::exceptions::EXCEPTIONS_MAX {
            let name = Name::new(format!("{i:0>255}").as_bytes()).unwrap();
            table.exceptions.set(name, Some(Rule::Override((i % SLOTS) as Slot))).unwrap();
        }
        let one_more = Name::new(b"one more").unwrap();
        assert!(table.exceptions.set(one_more.clone(), Some(Rule::PathWalk)).is_err());
        assert_eq!(table.exceptions.rule(one_more.as_bytes()), None);
        let bytes = table.encode();
        assert!(bytes.len() <= PLACEMENT_BYTES_MAX, "{}", bytes.len());
        assert_eq!(PlacementMap::decode(&bytes), Ok(table));
    }
}
