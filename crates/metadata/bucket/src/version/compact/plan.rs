//! The plan of a compaction, and what is recorded of each of its partitions.

use std::time::Duration;

use kestrel_engine::EngineError;
use kestrel_types::hex::{from_hex, to_hex};
use serde::{Deserialize, Serialize};

use super::{CompactionOrder, sealed};
use crate::Uuid;
use crate::document::DocumentHead;
use crate::hex;
use crate::table::TableRecord;
use crate::version::VersionPlace;
use crate::version::registry::PLANS;
use crate::version::{VersionId, VersionInput, check_name, damaged};

/// What every plan begins with, and the version of its format.
const MAGIC: &str = "kestrelfs-compaction";
const FORMAT: u32 = 1;

/// Most partitions: each takes a few requests, and its own tables.
pub const PARTITIONS_MAX: usize = 65_536;

/// Beyond all keys.
const END: [u8; 2] = [u8::MAX; 2];

/// Bits of the number of a table that count tables of one worker, and takeovers of a partition; the
/// partition is in those above.
const TABLE_BITS: u32 = 16;
const ATTEMPT_BITS: u32 = 16;

/// How a compaction is done; recorded once, and the same for all workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactionPlan {
    magic: String,
    format: u32,
    volume: String,
    id: String,
    input: VersionInput,
    into: String,
    created: i64,
    user: u32,
    patience_ms: u64,
    cuts: Vec<Cut>,
}

/// The first key of a partition but the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Cut(#[serde(with = "hex")] Vec<u8>);

/// State of a partition, by the objects that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    Free,
    Claimed,
    Done,
}

/// A worker has a partition. The object is replaced as long as the worker is at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The worker's name.
    pub worker: String,
    /// How many workers had the partition before.
    pub attempt: u64,
    /// How often the worker was heard of.
    pub beats: u64,
}

/// A partition is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionRecord {
    /// Rows in its tables.
    pub rows: u64,
    /// Its tables, in ascending order.
    pub tables: Vec<TableRecord>,
}

/// The object of the plan of a compaction into a version of this name.
pub fn object_of(into: &str) -> String {
    format!("{PLANS}{}", to_hex(into.as_bytes()))
}

/// What the names of objects about partitions of a version begin with.
pub fn tasks_of(id: &VersionId) -> String {
    VersionPlace::part_of(id, "task/")
}

/// The name in the name of a plan's object.
pub fn into_of(object: &str) -> Option<String> {
    let name = String::from_utf8(from_hex(object.strip_prefix(PLANS)?)?).ok()?;
    check_name(&name).is_ok().then_some(name)
}

impl CompactionPlan {
    /// The plan of an order.
    pub(super) fn new(volume: &Uuid, order: &CompactionOrder<'_>, cuts: Vec<Vec<u8>>) -> Self {
        let input = VersionInput { id: order.input.id.clone(), name: order.input.name.clone() };
        Self {
            magic: MAGIC.into(),
            format: FORMAT,
            volume: to_hex(volume),
            id: to_hex(&order.id),
            input,
            into: order.into.into(),
            created: order.created,
            user: order.user,
            patience_ms: u64::try_from(order.patience.as_millis()).unwrap_or(u64::MAX),
            cuts: cuts.into_iter().map(Cut).collect(),
        }
    }

    /// The object.
    ///
    /// # Errors
    /// Never, in truth.
    pub(super) fn encode(&self) -> Result<Vec<u8>, EngineError> {
        sealed::seal(self)
    }

    /// Reads the object of the plan of a compaction into a version of this name.
    ///
    /// # Errors
    /// `Refused` for a newer format or another volume's, `Corrupt` for a damaged one.
    pub(super) fn decode(into: &str, volume: &Uuid, bytes: &[u8]) -> Result<Self, EngineError> {
        let what = format!("the plan of the compaction into version {into}");
        let version: DocumentHead = sealed::open(&what, bytes)?;
        if version.magic != MAGIC || version.format != FORMAT {
            return Err(EngineError::Refused(format!(
                "{what} has format {}, which is not known to this program; use a newer one",
                version.format
            )));
        }
        let plan: Self = sealed::open(&what, bytes)?;
        if plan.volume != to_hex(volume) {
            return Err(EngineError::Refused(format!(
                "{what} is of the volume {}: another place is meant",
                plan.volume
            )));
        }
        let is_id = |text: &str| from_hex(text).is_some_and(|id| id.len() == 16);
        let is_right = plan.into == into
            && is_id(&plan.id)
            && is_id(&plan.input.id)
            && check_name(&plan.input.name).is_ok()
            && plan.cuts.len() < PARTITIONS_MAX
            && plan.cuts.is_sorted_by(|one, next| one.0 < next.0);
        if !is_right {
            return Err(damaged(&what, "its parts contradict each other"));
        }
        Ok(plan)
    }

    /// The identity of the version that is made.
    pub fn id(&self) -> VersionId {
        let bytes = from_hex(&self.id).unwrap_or_default();
        // `decode` lets no other length through, and `new` makes none.
        bytes.try_into().unwrap_or_default()
    }

    /// The name that it is to have.
    pub fn target(&self) -> &str {
        &self.into
    }

    /// What is compacted.
    pub fn input(&self) -> &VersionInput {
        &self.input
    }

    /// When the compaction began.
    pub fn created(&self) -> i64 {
        self.created
    }

    /// The user that compacts.
    pub fn user(&self) -> u32 {
        self.user
    }

    /// A worker that was not heard of for so long is taken for dead.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }

    /// Number of partitions.
    pub fn partitions(&self) -> usize {
        self.cuts.len() + 1
    }

    /// The keys of a partition: from the first one on, below the second.
    pub(super) fn range(&self, partition: usize) -> (&[u8], &[u8]) {
        let cut = |at: usize| self.cuts.get(at).map(|cut| cut.0.as_slice());
        let from = partition.checked_sub(1).and_then(cut).unwrap_or(&[]);
        (from, cut(partition).unwrap_or(&END))
    }

    /// What the names of objects about partitions begin with.
    pub(super) fn tasks(&self) -> String {
        tasks_of(&self.id())
    }

    /// The object by which a worker claims a partition.
    pub(super) fn claim(&self, partition: usize) -> String {
        format!("{}{partition:08x}-claim", self.tasks())
    }

    /// The object that says that a partition is done.
    pub(super) fn done(&self, partition: usize) -> String {
        format!("{}{partition:08x}-done", self.tasks())
    }

    /// The partition that an object is about, and what it says.
    pub(super) fn task_of(&self, object: &str) -> Option<(usize, Task)> {
        let (digits, state) = object.strip_prefix(&self.tasks())?.split_once('-')?;
        let task = match state {
            "claim" => Task::Claimed,
            "done" => Task::Done,
            _ => return None,
        };
        Some((usize::from_str_radix(digits, 16).ok()?, task))
    }
}

/// The number of a table of a partition. No two workers write one of the same number.
pub fn table_number(partition: usize, attempt: u64, table: u64) -> Result<u64, EngineError> {
    if attempt >> ATTEMPT_BITS != 0 || table >> TABLE_BITS != 0 {
        return Err(EngineError::Io(format!(
            "compaction: partition {partition} has no numbers for tables left; choose more \
             partitions, or let `kestrel version clean` remove what was done"
        )));
    }
    Ok((partition as u64) << (ATTEMPT_BITS + TABLE_BITS) | attempt << TABLE_BITS | table)
}
