//! The placement table: exceptions and cluster map under one version.
//!
//! The coordinator makes tables, each with a version of one more than the last. Nodes get a new one at once; every reply
//! carries the version of the node that gave it, and a client that sees a newer one than its own fetches it. One number for
//! both parts, so that whoever compares versions compares everything that decides about an owner.

use std::fmt;

use super::{ClusterMap, ExceptionTable, Member, Slot, slot_of_id};
use crate::codec::{DecodeError, Reader};
use crate::ids::InodeId;
use crate::request::{Op, Subject};

/// Version of the encoding (`docs/format/placement.md`).
const FORMAT: u8 = 1;

/// Longest encoded table, bytes. A frame holds 4 MiB.
pub const PLACEMENT_BYTES_MAX: usize = 4_000_000;

// Exceptions (name with its length, kind, slot), members (number, address with its length), a run for each slot, the rest.
const _: () = assert!(
    super::exceptions::EXCEPTIONS_MAX * (2 + 255 + 1 + 2)
        + super::map::MEMBERS_MAX * (4 + 2 + 255)
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
pub struct Placement {
    /// Counts the tables of this cluster, from 1 on.
    pub version: u64,
    /// Slots to nodes.
    pub map: ClusterMap,
    /// Names that are not placed by their hash.
    pub exceptions: ExceptionTable,
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
                "placement table: its format is {format}, this program knows {FORMAT}; use the version of kestrel that the \
                 rest of the cluster runs"
            ),
            PlacementError::Damaged(why) => {
                write!(f, "placement table: damaged: {why}; fetch it from the coordinator again")
            }
        }
    }
}

impl std::error::Error for PlacementError {}

impl Placement {
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

    /// Where a client sends a request for a name in a directory whose number it does not know.
    #[inline]
    pub fn owner_of_name(&self, name: &[u8]) -> Owner<'_> {
        match self.exceptions.slot_of_name(name) {
            Some(slot) => Owner::Node(self.map.owner(slot)),
            None => Owner::Any,
        }
    }

    /// The node that leads an operation: a function of the request alone, so that a request that is sent again comes to the node
    /// that knows whether it was executed. It owns the (first) entry in question, unless that is one whose placement depends on a
    /// directory that the request does not name. `None`: what the client has open concerns the node where it opened it,
    /// and figures of the volume any node tells.
    pub fn leader(&self, op: &Op) -> Option<&Member> {
        match op.subject() {
            Subject::Place(place) => Some(self.owner_of(place.base, place.name.as_bytes())),
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
        let mut out = vec![FORMAT];
        out.extend_from_slice(&self.version.to_be_bytes());
        self.map.encode_into(&mut out);
        self.exceptions.encode_into(&mut out);
        debug_assert!(out.len() <= PLACEMENT_BYTES_MAX);
        out
    }

    /// Reads what [`Placement::encode`] wrote, all of it. Two encodings of equal tables are equal.
    ///
    /// # Errors
    /// If the bytes are of a newer format, truncated, too many, or out of bounds or order.
    pub fn decode(bytes: &[u8]) -> Result<Self, PlacementError> {
        let mut reader = Reader::new(bytes);
        match reader.u8().map_err(PlacementError::Damaged)? {
            FORMAT => {}
            0 => return Err(PlacementError::Damaged(DecodeError("format 0"))),
            newer => return Err(PlacementError::Newer(newer)),
        }
        Self::decode_body(&mut reader).map_err(PlacementError::Damaged)
    }

    fn decode_body(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = reader.u64()?;
        if version == 0 {
            return Err(DecodeError("table version 0"));
        }
        let map = ClusterMap::decode(reader)?;
        let exceptions = ExceptionTable::decode(reader)?;
        reader.end()?;
        Ok(Self { version, map, exceptions })
    }
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
        prop::collection::vec(any::<u8>(), 1..=255).prop_filter_map("not a name", |b| Name::new(&b).ok())
    }

    fn rule() -> impl Strategy<Value = Rule> {
        prop_oneof![Just(Rule::PathWalk), (0..SLOTS as Slot).prop_map(Rule::Override)]
    }

    prop_compose! {
        fn placement()(version in 1u64.., ids in prop::collection::btree_set(any::<u32>(), 1..20),
            seeds in prop::collection::vec(any::<usize>(), 1..50), run in 1usize..2000,
            rules in prop::collection::vec((name(), rule()), 0..20)) -> Placement {
            let ids: Vec<u32> = ids.into_iter().collect();
            let members = ids.iter().map(|id| member(*id)).collect();
            let map = ClusterMap::new(members, |slot| {
                ids[seeds[usize::from(slot) / run % seeds.len()] % ids.len()]
            }).unwrap();
            let mut exceptions = ExceptionTable::default();
            for (name, rule) in rules {
                exceptions.set(name, Some(rule)).unwrap();
            }
            Placement { version, map, exceptions }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn tables_round_trip_and_part_of_one_is_an_error(table in placement(), cut in any::<prop::sample::Index>()) {
            let bytes = table.encode();
            prop_assert_eq!(Placement::decode(&bytes).unwrap(), table);
            prop_assert!(Placement::decode(&bytes[..cut.index(bytes.len())]).is_err());
            let mut more = bytes;
            more.push(0);
            prop_assert!(Placement::decode(&more).is_err());
        }

        #[test]
        fn what_is_decoded_is_what_would_be_encoded(table in placement(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut bytes = table.encode();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(found) = Placement::decode(&bytes) {
                prop_assert_eq!(found.encode(), bytes);
            }
        }

        #[test]
        fn garbage_is_an_error_not_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Placement::decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT;
            }
            let _ = Placement::decode(&bytes);
        }

        #[test]
        fn rules_decide_and_without_one_the_hash_does(mut table in placement(), name in name(), parent in any::<u64>(),
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
                prop_assert_eq!(table.owner_of_name(bytes), Owner::Node(table.owner_of(parent, bytes)));
            }
        }
    }

    fn small() -> Placement {
        Placement {
            version: 7,
            map: ClusterMap::even(vec![member(1), member(2), member(5)]).unwrap(),
            exceptions: ExceptionTable::default(),
        }
    }

    #[test]
    fn a_table_from_the_future_is_refused_and_says_what_to_do() {
        let mut bytes = small().encode();
        bytes[0] = FORMAT + 1;
        let error = Placement::decode(&bytes).unwrap_err();
        assert_eq!(error, PlacementError::Newer(FORMAT + 1));
        assert!(error.to_string().contains("use the version of kestrel"), "{error}");
    }

    #[test]
    fn the_encoding_never_changes() {
        let mut table = small();
        table.exceptions.set(Name::new(b"Makefile").unwrap(), Some(Rule::PathWalk)).unwrap();
        table.exceptions.set(Name::new(b"train.txt").unwrap(), Some(Rule::Override(0x1234))).unwrap();
        let bytes: String = table.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, ENCODED);
    }

    const ENCODED: &str = "\
        0100000000000000070300000001136e6f64652d312e6578616d706c653a3730303000000002136e6f64652d322e6578616d706c65\
        3a3730303000000005136e6f64652d352e6578616d706c653a3730303000d62a01d52a\
        02d52a0209747261696e2e747874011234084d616b6566696c6502";

    #[test]
    fn an_even_map_gives_everybody_the_same_number_of_slots() {
        for nodes in [1, 2, 3, 7, 16, 1000, 1024] {
            let map = ClusterMap::even((0..nodes).map(|i| member(i * 3)).collect()).unwrap();
            let slots = map.slots_of_members();
            let (least, most) = (slots.iter().min().unwrap(), slots.iter().max().unwrap());
            assert!(most - least <= 1 && slots.iter().sum::<usize>() == SLOTS, "{nodes}: {least} {most}");
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
            let error = ClusterMap::even(members).unwrap_err();
            assert!(error.to_string().contains(why), "{error} {why}");
        }
        assert!(ClusterMap::new(vec![member(1)], |_| 2).is_err());
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
        assert_eq!(Placement::decode(&bytes), Ok(table));
    }
}
