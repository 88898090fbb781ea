//! The exception table: the names that hashing alone would place badly, and where they go instead.
//!
//! Two kinds of names need it (FalconFS §4.2): *hot* ones, which so many directories hold that
//! their slot would overflow (`Makefile`), are spread by directory and name; and where few names
//! meet many nodes, some names are moved to another slot one by one. A balanced cluster of n nodes
//! needs O(n log n) exceptions, whatever it holds.

use super::{SLOTS, Slot, hash_name, hash_spread, slot_of_hash};
use crate::codec::{DecodeError, Reader, put_string, put_varint};
use crate::ids::InodeId;
use crate::name::{NAME_MAX, Name};

/// Most exceptions of a table: n log₂ n for the largest cluster ([`super::slot_map::MEMBERS_MAX`])
/// and some room. An encoded table stays below 3.2 MB, so it fits one frame.
pub const EXCEPTIONS_MAX: usize = 12_288;

/// What is done with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Every entry of this name lives in this slot.
    Override(Slot),
    /// Entries of this name are spread over all slots by directory and name. Clients do not know
    /// the directory's number, so they ask any node, which resolves the path and forwards.
    PathWalk,
}

const OVERRIDE: u8 = 1;
const PATH_WALK: u8 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Exception {
    hash: u64,
    name: Name,
    rule: Rule,
}

/// Names with a rule of their own. Looked up with the name's hash, which placement computes anyway:
/// without exceptions a look-up costs nothing but that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exceptions {
    /// Ascending by hash, then name; no name twice.
    sorted: Vec<Exception>,
}

impl Exceptions {
    /// Where a name is, or where it belongs.
    fn position(&self, hash: u64, name: &[u8]) -> Result<usize, usize> {
        self.sorted
            .binary_search_by(|one| one.hash.cmp(&hash).then_with(|| one.name.as_bytes().cmp(name)))
    }

    fn find(&self, hash: u64, name: &[u8]) -> Option<Rule> {
        if self.sorted.is_empty() {
            return None;
        }
        self.position(hash, name).ok().map(|at| self.sorted[at].rule)
    }

    /// The rule of a name, if it has one.
    pub fn rule(&self, name: &[u8]) -> Option<Rule> {
        self.find(hash_name(name), name)
    }

    /// The slot of an entry.
    #[inline]
    pub fn slot_of(&self, parent: InodeId, name: &[u8]) -> Slot {
        let hash = hash_name(name);
        match self.find(hash, name) {
            None => slot_of_hash(hash),
            Some(Rule::Override(slot)) => slot,
            Some(Rule::PathWalk) => slot_of_hash(hash_spread(parent, name)),
        }
    }

    /// The slot of all entries of a name; `None` if it differs by directory.
    #[inline]
    pub fn slot_of_name(&self, name: &[u8]) -> Option<Slot> {
        let hash = hash_name(name);
        match self.find(hash, name) {
            None => Some(slot_of_hash(hash)),
            Some(Rule::Override(slot)) => Some(slot),
            Some(Rule::PathWalk) => None,
        }
    }

    /// Gives a name a rule, or takes it away. The coordinator, which changes a table that is in
    /// use, gives it a new version and has the entries moved; see [`super::PlacementMap`].
    ///
    /// # Errors
    /// If the table is full; it is unchanged then.
    ///
    /// # Panics
    /// If the rule names a slot that does not exist, which no decoded table does.
    pub fn set(&mut self, name: Name, rule: Option<Rule>) -> Result<(), Full> {
        if let Some(Rule::Override(slot)) = rule {
            assert!(usize::from(slot) < SLOTS, "slot {slot} of {SLOTS}");
        }
        let hash = hash_name(name.as_bytes());
        match (self.position(hash, name.as_bytes()), rule) {
            (Ok(at), Some(rule)) => self.sorted[at].rule = rule,
            (Ok(at), None) => drop(self.sorted.remove(at)),
            (Err(_), None) => {}
            (Err(_), Some(_)) if self.sorted.len() >= EXCEPTIONS_MAX => return Err(Full),
            (Err(at), Some(rule)) => self.sorted.insert(at, Exception { hash, name, rule }),
        }
        Ok(())
    }

    /// Exceptions there are.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether every name is placed by its hash.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// All exceptions, in an order that depends on nothing but the table's content.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, Rule)> {
        self.sorted.iter().map(|one| (&one.name, one.rule))
    }

    /// Appends the table: count, then of each exception its name, its kind and, for an override,
    /// its slot.
    pub(super) fn encode_into(&self, out: &mut Vec<u8>) {
        put_varint(out, self.sorted.len() as u64);
        for one in &self.sorted {
            put_string(out, one.name.as_bytes());
            match one.rule {
                Rule::Override(slot) => {
                    out.push(OVERRIDE);
                    out.extend_from_slice(&slot.to_be_bytes());
                }
                Rule::PathWalk => out.push(PATH_WALK),
            }
        }
    }

    /// Reads what [`Exceptions::encode_into`] wrote.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.varint()?;
        if count > EXCEPTIONS_MAX as u64 {
            return Err(DecodeError("more exceptions than a table may have"));
        }
        let mut table = Self::default();
        for _ in 0..count {
            let name = Name::new(reader.string(NAME_MAX)?)
                .map_err(|_| DecodeError("an exception of what is not a name"))?;
            let rule = match reader.u8()? {
                OVERRIDE => Rule::Override(slot(reader)?),
                PATH_WALK => Rule::PathWalk,
                _ => return Err(DecodeError("unknown kind of exception")),
            };
            let hash = hash_name(name.as_bytes());
            let one = Exception { hash, name, rule };
            if table
                .sorted
                .last()
                .is_some_and(|last| (last.hash, &last.name) >= (one.hash, &one.name))
            {
                return Err(DecodeError("exceptions out of order"));
            }
            table.sorted.push(one);
        }
        Ok(table)
    }
}

fn slot(reader: &mut Reader<'_>) -> Result<Slot, DecodeError> {
    let slot = reader.u16()?;
    if usize::from(slot) < SLOTS { Ok(slot) } else { Err(DecodeError("slot out of bounds")) }
}

/// The table has [`EXCEPTIONS_MAX`] exceptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the exception table is full: it has at most {EXCEPTIONS_MAX} names")
    }
}

impl std::error::Error for Full {}
