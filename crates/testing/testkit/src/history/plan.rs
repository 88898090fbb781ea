//! Which calls a thread makes: the same for the same seed, on few names, so that they meet.

use super::tree::{DIR_NAMES, ROOT_NAMES, SUB_NAMES};
use crate::rng::Rng;

/// Files that are overwritten under the promise of close-to-open.
pub const REGISTERS: usize = 2;

/// Files with a number that is counted up under locks.
pub const COUNTERS: usize = 2;

/// A place as it is planned: the directory is opened first, whatever it is by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// One of [`ROOT_NAMES`].
    Root(usize),
    /// One of [`SUB_NAMES`] in whatever directory has this one of [`ROOT_NAMES`].
    Sub(usize, usize),
}

/// A planned call; see [`super::tree::Call`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in tree::Call")]
pub enum PlannedCall {
    Create(Spot),
    Publish(Spot),
    Unlink(Spot),
    Mkdir(usize),
    Rmdir(usize),
    Rename(Spot, Spot, bool),
    Stat(Spot),
    Read(Spot),
    ListRoot,
    List(usize),
    /// Overwrites a file in place.
    Overwrite(usize),
    /// Reads a file that is overwritten.
    ReadRegister(usize),
    /// Appends a record to the log; `held`: through a descriptor that stays open, and with fsync in
    /// place of close.
    Append {
        held: bool,
    },
    /// Reads the log.
    ReadLog,
    /// Adds one to a counter under a lock: of the first a BSD lock, of the second one of the open
    /// file description.
    Add(usize),
}

/// The next call. In `overwriting` of 100 cases it is on a file that is overwritten, in `sharing`
/// of the others on the log or a counter.
pub fn next(rng: &mut Rng, overwriting: u64, sharing: u64) -> PlannedCall {
    if rng.percent(overwriting) {
        let at = rng.below(REGISTERS as u64) as usize;
        return if rng.percent(40) {
            PlannedCall::Overwrite(at)
        } else {
            PlannedCall::ReadRegister(at)
        };
    }
    if rng.percent(sharing) {
        return match rng.below(10) {
            0..4 => PlannedCall::Append { held: rng.percent(50) },
            4..7 => PlannedCall::ReadLog,
            _ => PlannedCall::Add(rng.below(COUNTERS as u64) as usize),
        };
    }
    let dir = |rng: &mut Rng| rng.below(DIR_NAMES as u64) as usize;
    match rng.below(90) {
        0..10 => PlannedCall::Create(spot(rng)),
        10..22 => PlannedCall::Publish(spot(rng)),
        22..35 => PlannedCall::Unlink(spot(rng)),
        35..43 => PlannedCall::Mkdir(dir(rng)),
        43..51 => PlannedCall::Rmdir(dir(rng)),
        51..66 => rename(rng),
        66..75 => PlannedCall::Stat(spot(rng)),
        75..86 => PlannedCall::Read(spot(rng)),
        86..88 => PlannedCall::ListRoot,
        _ => PlannedCall::List(dir(rng)),
    }
}

fn spot(rng: &mut Rng) -> Spot {
    if rng.percent(40) {
        Spot::Sub(rng.below(DIR_NAMES as u64) as usize, rng.below(SUB_NAMES.len() as u64) as usize)
    } else {
        Spot::Root(rng.below(ROOT_NAMES.len() as u64) as usize)
    }
}

/// From a name that may be a directory only to one that may be one, so that directories stay where
/// the model has them.
fn rename(rng: &mut Rng) -> PlannedCall {
    let no_replace = rng.percent(20);
    loop {
        let (from, to) = (spot(rng), spot(rng));
        let may_be_dir = |spot| matches!(spot, Spot::Root(name) if name < DIR_NAMES);
        if !may_be_dir(from) || may_be_dir(to) {
            return PlannedCall::Rename(from, to, no_replace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_stay_in_the_root() {
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            if let PlannedCall::Rename(Spot::Root(from), to, _) = next(&mut rng, 10, 10)
                && from < DIR_NAMES
            {
                assert!(matches!(to, Spot::Root(to) if to < DIR_NAMES), "{from} to {to:?}");
            }
        }
    }
}
