//! What a member has on record of tables, in table `system` (`docs/format.md`).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::{Engine, Mutation};
use kestrel_meta::ids::{counter_row, decode_counter};
use kestrel_meta::owners::MapView;
use kestrel_meta::stop::engine_error;
use kestrel_types::codec::{DecodeError, Reader, put_varint};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::slot_map::ADDRESS_MAX;
use kestrel_types::placement::{NodeId, PLACEMENT_BYTES_MAX, PlacementMap};

use crate::message::changes::{Announced, Attempt};

/// The present table.
pub const TABLE: &str = "table";

/// The node may have rows that it does not own.
pub const STRANGERS: &str = "strangers";

/// Rows that leave are kept from everybody until the coordinator says how the attempt ended.
pub const FROZEN: &str = "frozen";

/// The coordinator has decided on this table, and some members may not know.
pub const CHANGE: &str = "change";

/// Files with numbers below may be open elsewhere.
pub const ONLY_HERE: &str = "only here";

/// No node after this one was forgotten before it came: with those in the table and those expected,
/// the highest number ever reserved.
pub const LAST_NODE: &str = "last node";

/// Attempts of earlier coordinators have epochs up to this one.
pub const ERA: &str = "era";

/// How names of records of expected nodes begin; the node's number follows, in decimal digits. The
/// row is its address, after a zero byte if it is to be idle.
const EXPECT: &str = "expect ";

/// Version of the records "strangers" and "frozen".
const VERSION: u8 = 1;

/// Rows that a node has and does not own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ForeignRows {
    /// There are none.
    #[default]
    None,
    /// They are of no use to anybody.
    Leftover,
    /// They have come for this attempt, and are the node's if it succeeds.
    Coming(Attempt),
}

/// All of them.
#[derive(Debug, Default)]
pub struct ChangeRecords {
    /// The present table, if it is not that with which the node was formed.
    pub table: Option<PlacementMap>,
    /// Rows that are not its own.
    pub strangers: ForeignRows,
    /// Frozen for this attempt.
    pub frozen: Option<(Attempt, Arc<PlacementMap>)>,
    /// Decided.
    pub change: Option<Arc<PlacementMap>>,
    /// Counters of files that can only be open here are not below.
    pub only_here: u64,
    /// Nodes to come; of members those that are taken out again because they never came.
    pub expected: BTreeMap<NodeId, Announced>,
    /// Nodes up to this one may have been forgotten.
    pub last_node: NodeId,
    /// Epochs of attempts of earlier coordinators are up to this one.
    pub era: u64,
}

/// The node that a record of this name expects, if it is one of those.
pub fn expected_of(name: &[u8]) -> Option<NodeId> {
    let number = std::str::from_utf8(name).ok()?.strip_prefix(EXPECT)?.parse().ok()?;
    (format!("{EXPECT}{number}").as_bytes() == name).then_some(number)
}

/// A record with this value, or without one.
fn row(name: &str, value: Option<Vec<u8>>) -> Mutation {
    Mutation { key: Key::new(Table::System, 0, name.as_bytes()), value: value.map(Into::into) }
}

/// Deletes a record.
pub(crate) fn gone(name: &str) -> Mutation {
    row(name, None)
}

pub(crate) fn table_row(table: &PlacementMap) -> Mutation {
    row(TABLE, Some(table.encode()))
}

pub(crate) fn change_row(table: &PlacementMap) -> Mutation {
    row(CHANGE, Some(table.encode()))
}

pub(crate) fn only_here_row(counter: u64) -> Mutation {
    counter_row(ONLY_HERE, counter)
}

pub(crate) fn last_node_row(node: NodeId) -> Mutation {
    counter_row(LAST_NODE, u64::from(node))
}

pub(crate) fn era_row(era: u64) -> Mutation {
    counter_row(ERA, era)
}

pub(crate) fn expect_row(node: NodeId, announced: Option<&Announced>) -> Mutation {
    let value = announced.map(|Announced { address, idle }| {
        let mut value = if *idle { vec![0] } else { Vec::new() };
        value.extend_from_slice(address.as_bytes());
        value
    });
    row(&format!("{EXPECT}{node}"), value)
}

fn put_attempt(out: &mut Vec<u8>, attempt: Attempt) {
    put_varint(out, attempt.epoch);
    put_varint(out, attempt.number);
}

pub(crate) fn strangers_row(strangers: ForeignRows) -> Mutation {
    let value = match strangers {
        ForeignRows::None => None,
        ForeignRows::Leftover => Some(vec![VERSION, 0]),
        ForeignRows::Coming(attempt) => {
            let mut out = vec![VERSION, 1];
            put_attempt(&mut out, attempt);
            Some(out)
        }
    };
    row(STRANGERS, value)
}

pub(crate) fn frozen_row(attempt: Attempt, next: &PlacementMap) -> Mutation {
    let mut out = vec![VERSION];
    put_attempt(&mut out, attempt);
    out.extend_from_slice(&next.encode());
    row(FROZEN, Some(out))
}

fn attempt(r: &mut Reader<'_>) -> Result<Attempt, DecodeError> {
    Ok(Attempt { epoch: r.varint()?, number: r.varint()? })
}

/// Reads the record "strangers".
///
/// # Errors
/// If it is none.
pub fn decode_strangers(bytes: &[u8]) -> Result<ForeignRows, DecodeError> {
    let mut r = Reader::new(bytes);
    if r.u8()? != VERSION {
        return Err(DecodeError("a record of an unknown format version"));
    }
    let strangers = match r.u8()? {
        0 => ForeignRows::Leftover,
        1 => ForeignRows::Coming(attempt(&mut r)?),
        _ => return Err(DecodeError("an unknown kind of rows")),
    };
    r.end()?;
    Ok(strangers)
}

/// Reads the record "frozen".
///
/// # Errors
/// If it is none.
pub fn decode_frozen(bytes: &[u8]) -> Result<(Attempt, PlacementMap), DecodeError> {
    let mut r = Reader::new(bytes);
    if r.u8()? != VERSION {
        return Err(DecodeError("a record of an unknown format version"));
    }
    let attempt = attempt(&mut r)?;
    Ok((attempt, decode_table(r.bytes(r.remaining().min(PLACEMENT_BYTES_MAX))?)?))
}

/// Reads a table that is a record.
///
/// # Errors
/// If it is none.
pub fn decode_table(bytes: &[u8]) -> Result<PlacementMap, DecodeError> {
    PlacementMap::decode(bytes).map_err(|_| DecodeError("no table of placement"))
}

/// Reads the record of an expected node.
///
/// # Errors
/// If it is none.
pub fn decode_announced(bytes: &[u8]) -> Result<Announced, DecodeError> {
    let (idle, address) = match bytes {
        [0, address @ ..] => (true, address),
        address => (false, address),
    };
    let address = std::str::from_utf8(address)
        .ok()
        .filter(|address| (1..=ADDRESS_MAX).contains(&address.len()));
    let address = address.ok_or(DecodeError("no address"))?.to_owned();
    Ok(Announced { address, idle })
}

impl ChangeRecords {
    /// Reads them.
    ///
    /// # Errors
    /// `EIO` for a damaged one; the engine's.
    pub fn read(engine: &dyn Engine) -> FsResult<Self> {
        let (mut records, mut damage) = (Self::default(), None);
        let visited = engine.scan(Table::System, 0, None, &mut |name, row, _| {
            if let Err(why) = records.take(name, row) {
                let name = String::from_utf8_lossy(name);
                damage =
                    Some(format!("metadata: damaged record {name:?}: {why}; run kestrel fsck"));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        visited.map_err(engine_error)?;
        damage.map_or(Ok(records), |why| Err(FsError::because(libc::EIO, why)))
    }

    /// The table that a member starts with: the one on record, or else that with which it was
    /// formed.
    pub(crate) fn present(&self, me: NodeId, formed: PlacementMap) -> FsResult<MapView> {
        let table = MapView::new(me, self.table.clone().unwrap_or(formed))?;
        let leaving = self.frozen.as_ref().map(|(_, next)| next.clone());
        let strangers = self.strangers != ForeignRows::None;
        Ok(MapView { leaving, strangers, only_here: self.only_here, ..table })
    }

    /// The newest table that these say is decided. Of several nodes at rest the newest of all is
    /// the cluster's: a node that has an older one has not heard of it, and everything is where the
    /// newest one says, besides rows that records "strangers" and "frozen" explain.
    pub fn newest(&self) -> Option<&PlacementMap> {
        self.table.iter().chain(self.change.as_deref()).max_by_key(|table| table.version)
    }

    fn take(&mut self, name: &[u8], row: &[u8]) -> Result<(), DecodeError> {
        if name == TABLE.as_bytes() {
            self.table = Some(decode_table(row)?);
        } else if name == STRANGERS.as_bytes() {
            self.strangers = decode_strangers(row)?;
        } else if name == FROZEN.as_bytes() {
            self.frozen =
                decode_frozen(row).map(|(attempt, next)| Some((attempt, Arc::new(next))))?;
        } else if name == CHANGE.as_bytes() {
            self.change = Some(Arc::new(decode_table(row)?));
        } else if name == ONLY_HERE.as_bytes() {
            self.only_here = decode_counter(row)?;
        } else if name == LAST_NODE.as_bytes() {
            let last = NodeId::try_from(decode_counter(row)?);
            self.last_node = last.map_err(|_| DecodeError("no number of a node"))?;
        } else if name == ERA.as_bytes() {
            self.era = decode_counter(row)?;
        } else if let Some(node) = expected_of(name) {
            self.expected.insert(node, decode_announced(row)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::placement::{Exceptions, Member, SlotMap};

    use super::*;

    #[test]
    fn records_survive_a_round_trip_and_damage_is_noticed() {
        let members = vec![Member { id: 1, address: "a".into() }];
        let (map, exceptions) = (SlotMap::even(members).unwrap(), Exceptions::default());
        let table = PlacementMap { version: 4, ..PlacementMap::new(map, exceptions) };
        let attempt = Attempt { epoch: 3, number: 500 };
        for strangers in [ForeignRows::Leftover, ForeignRows::Coming(attempt)] {
            let row = strangers_row(strangers).value.unwrap();
            assert_eq!(decode_strangers(&row), Ok(strangers));
            assert!(decode_strangers(&row[..row.len() - 1]).is_err());
        }
        let row = frozen_row(attempt, &table).value.unwrap();
        assert_eq!(decode_frozen(&row), Ok((attempt, table)));
        assert!((0..row.len()).all(|len| decode_frozen(&row[..len]).is_err()));
        for idle in [false, true] {
            let announced = Announced { address: "a:1".into(), idle };
            let row = expect_row(12, Some(&announced));
            assert_eq!(expected_of(&row.key.suffix), Some(12));
            assert_eq!(decode_announced(&row.value.unwrap()), Ok(announced));
        }
        assert!(decode_announced(b"").is_err() && decode_announced(b"\0").is_err());
        assert_eq!(expected_of(b"expect 12"), Some(12));
        for name in [&b"expect 012"[..], b"expect ", b"expect x", b"peer 1"] {
            assert_eq!(expected_of(name), None);
        }
    }
}
