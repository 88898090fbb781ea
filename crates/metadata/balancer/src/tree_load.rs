//! A tree, counted as the nodes of a cluster would hold it: what balancing makes of a real list of
//! paths.
//!
//! Takes about 100 bytes of memory for each entry, so the 7 million paths of all Debian packages
//! fit one gigabyte.

use std::fmt;

use kestrel_types::ids::{FIRST_INODE, InodeId, ROOT};
use kestrel_types::name::{Name, PATH_MAX};
use kestrel_types::placement::{PlacementMap, Rule};
use rustc_hash::FxHashMap;

use crate::balance::{BalanceError, Goal, balance};
use crate::load_report::{LoadReport, NameCount, names_wanted, sharing};

/// Most entries; their numbers have 32 bits.
pub const ENTRIES_MAX: usize = u32::MAX as usize - 1;

/// Rounds of [`TreeLoad::settle`]: names that are spread do not land quite evenly, so a second
/// round may find more to do.
pub const ROUNDS_MAX: usize = 8;

/// The root, among numbers of entries.
const TOP: u32 = u32::MAX;

/// Why a path could not be counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathError(String);

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PathError {}

/// The entries of a tree.
#[derive(Debug, Default)]
pub struct TreeLoad {
    /// `(parent, name)` → number of the entry.
    entries: FxHashMap<(u32, u32), u32>,
    /// Name → its number.
    numbers: FxHashMap<Name, u32>,
    /// By number of the name.
    names: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    name: Name,
    entries: u64,
}

impl TreeLoad {
    /// Counts a path and every directory on it, from the root on, each once however often it is
    /// named. Empty components and `.` are skipped, so what `find` prints can be passed on.
    ///
    /// # Errors
    /// If the path is too long, or a component is not a name; nothing is counted then.
    pub fn add(&mut self, path: &[u8]) -> Result<(), PathError> {
        if path.len() > PATH_MAX {
            return Err(PathError(format!(
                "a path has at most {PATH_MAX} bytes, this one {}",
                path.len()
            )));
        }
        let parts =
            || path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        for part in parts() {
            Name::check(part).map_err(|error| {
                PathError(format!("{:?}: {}", String::from_utf8_lossy(part), error.reason))
            })?;
        }
        if self.entries.len() + parts().count() > ENTRIES_MAX {
            return Err(PathError(format!("more than {ENTRIES_MAX} entries")));
        }
        let mut dir = TOP;
        for part in parts() {
            let name = self.number(part);
            let next = self.entries.len() as u32;
            let names = &mut self.names;
            dir = *self.entries.entry((dir, name)).or_insert_with(|| {
                names[name as usize].entries += 1;
                next
            });
        }
        Ok(())
    }

    /// The number of a name that has been checked.
    fn number(&mut self, part: &[u8]) -> u32 {
        // Looked up by bytes; a name is kept only when it is new.
        if let Some(number) = self.numbers.get(part) {
            return *number;
        }
        let number = self.names.len() as u32;
        if let Ok(name) = Name::new(part) {
            self.names.push(Counted { name: name.clone(), entries: 0 });
            self.numbers.insert(name, number);
        }
        number
    }

    /// Entries counted: files and directories, without the root.
    pub fn entries(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Different names among them.
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// The most frequent names, most frequent first; of equally frequent ones the lesser first.
    pub fn most_frequent(&self, count: usize) -> Vec<NameCount> {
        top(self.names.iter(), count).into_iter().map(Counted::count).collect()
    }

    /// For every name its entries on each member of the map, in the order of the members.
    fn each<'a>(
        &'a self,
        placement: &PlacementMap,
        mut visit: impl FnMut(&'a Counted, usize, u64),
    ) {
        let mut spread: FxHashMap<u32, Vec<u64>> = FxHashMap::default();
        for (number, counted) in self.names.iter().enumerate() {
            match placement.exceptions.slot_of_name(counted.name.as_bytes()) {
                Some(slot) => visit(counted, placement.map.index_of_owner(slot), counted.entries),
                None => drop(spread.insert(number as u32, vec![0; placement.map.members().len()])),
            }
        }
        if spread.is_empty() {
            return;
        }
        for (parent, number) in self.entries.keys() {
            if let Some(counts) = spread.get_mut(number) {
                let name = &self.names[*number as usize].name;
                let slot = placement.slot_of(dir_id(*parent), name.as_bytes());
                counts[placement.map.index_of_owner(slot)] += 1;
            }
        }
        for (number, counts) in spread {
            for (member, entries) in counts.into_iter().enumerate() {
                visit(&self.names[number as usize], member, entries);
            }
        }
    }

    /// What the nodes that own slots would report if this map were in force.
    pub fn reports(&self, placement: &PlacementMap) -> Vec<LoadReport> {
        let members = placement.map.members();
        let wanted = names_wanted(sharing(placement).len());
        let mut names: Vec<Vec<(&Counted, u64)>> = vec![Vec::new(); members.len()];
        self.each(placement, |counted, member, entries| names[member].push((counted, entries)));
        let report = |member: usize| {
            let entries = names[member].iter().map(|(_, entries)| entries).sum();
            let here = std::mem::take(&mut names[member]);
            let (excepted, hashed): (Vec<_>, Vec<_>) =
                here.into_iter().filter(|(_, entries)| *entries > 0).partition(|(counted, _)| {
                    placement.exceptions.rule(counted.name.as_bytes()).is_some()
                });
            let mut reported: Vec<NameCount> =
                top(hashed.iter().map(|(counted, _)| *counted), wanted)
                    .into_iter()
                    .map(Counted::count)
                    .collect();
            reported.extend(
                excepted
                    .into_iter()
                    .map(|(counted, entries)| NameCount { name: counted.name.clone(), entries }),
            );
            LoadReport { node: members[member].id, entries, names: reported }
        };
        sharing(placement).into_iter().map(report).collect()
    }

    /// Entries of the nodes that own slots, in the order of their ids, if this map were in force.
    pub fn loads(&self, placement: &PlacementMap) -> Vec<u64> {
        let mut loads = vec![0; placement.map.members().len()];
        self.each(placement, |_, member, entries| loads[member] += entries);
        sharing(placement).into_iter().map(|member| loads[member]).collect()
    }

    /// Balances until nothing is left to do, as a coordinator would from report to report, and puts
    /// the exceptions into the map. Answers in how many rounds; the last one finds nothing to do,
    /// unless there have been [`ROUNDS_MAX`].
    ///
    /// # Errors
    /// As [`balance`].
    pub fn settle(&self, placement: &mut PlacementMap, goal: &Goal) -> Result<usize, BalanceError> {
        for round in 1..=ROUNDS_MAX {
            let plan = balance(placement, &self.reports(placement), goal)?;
            if plan.changes.is_empty() {
                return Ok(round);
            }
            placement.exceptions = plan.exceptions;
            placement.version += 1;
        }
        Ok(ROUNDS_MAX)
    }

    /// Exceptions of each kind in force, most frequent name first, with the entries of each.
    pub fn excepted(&self, placement: &PlacementMap) -> Vec<(NameCount, Rule)> {
        let mut found: Vec<(NameCount, Rule)> = placement
            .exceptions
            .iter()
            .map(|(name, rule)| {
                let number = self.numbers.get(name.as_bytes());
                let entries = number.map_or(0, |number| self.names[*number as usize].entries);
                (NameCount { name: name.clone(), entries }, rule)
            })
            .collect();
        found.sort_by(|(one, _), (other, _)| {
            other.entries.cmp(&one.entries).then_with(|| one.name.cmp(&other.name))
        });
        found
    }
}

impl Counted {
    fn count(&self) -> NameCount {
        NameCount { name: self.name.clone(), entries: self.entries }
    }
}

/// Inode number of a directory, as a volume that was filled in this order might have given it.
fn dir_id(number: u32) -> InodeId {
    if number == TOP { ROOT } else { FIRST_INODE + u64::from(number) }
}

/// The most frequent ones, in order.
fn top<'a>(names: impl Iterator<Item = &'a Counted>, count: usize) -> Vec<&'a Counted> {
    let mut names: Vec<&Counted> = names.collect();
    let order = |one: &&Counted, other: &&Counted| {
        other.entries.cmp(&one.entries).then_with(|| one.name.cmp(&other.name))
    };
    if count < names.len() {
        names.select_nth_unstable_by(count, order);
        names.truncate(count);
    }
    names.sort_unstable_by(order);
    names
}
