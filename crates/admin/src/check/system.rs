//! Volume-wide records: counters must be above everything that was handed out, sums must be true.

use kestrel_engine::EngineError;
use kestrel_types::ids::ROOT;
use kestrel_types::key::{Key, Table};

use super::{Check, World};
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::rows::{
    CLOCK, DirId, INODES, LEASE, SHARES, USAGE, WORKERS_MAX, decode_ceiling, decode_usage, delete,
    encode_ceiling, get, put, readable,
};

/// Numbers that shares of the workers of several nodes may have.
const SHARES_OF_CLUSTER: u32 = 1 << 16;

/// Learns how many workers have shares. Without the record all that may exist are read, which is
/// always right. Of several nodes each has its own workers; the code that puts their rows together
/// looks whether a share is one of theirs.
pub fn shares(check: &mut Check<'_>) -> Result<(), EngineError> {
    if check.is_of_several {
        check.shares = SHARES_OF_CLUSTER;
        return Ok(());
    }
    let stored = get(check.engine, Key::new(Table::System, 0, SHARES))?;
    let detail = match stored.as_deref().map(decode_ceiling) {
        Some(Ok(shares)) if (1..=u64::from(WORKERS_MAX)).contains(&shares) => {
            check.shares = u32::try_from(shares).unwrap_or(WORKERS_MAX);
            return Ok(());
        }
        Some(Ok(shares)) => format!("{shares} workers; there are 1 to {WORKERS_MAX}"),
        Some(Err(why)) => why.to_string(),
        None => "the record is missing".to_string(),
    };
    check.shares = WORKERS_MAX;
    let rows = vec![put(Table::System, 0, SHARES, encode_ceiling(u64::from(WORKERS_MAX)))];
    let finding = Finding::new(FindingKind::SystemWrong, readable(SHARES), detail);
    check.found(finding.with(Stage::Numbers, format!("set to {WORKERS_MAX}"), Act::Rows(rows)));
    Ok(())
}

/// Checks the counters that entries and inodes were numbered from, the root's place, and the sums
/// of a clean stop.
pub fn check(check: &mut Check<'_>, world: &World) -> Result<(), EngineError> {
    let highest = world.inodes.max().max(world.dirs.last().map(|dir| dir.0)).unwrap_or(ROOT);
    numbers(check, INODES, highest)?;
    let newest = check.snapshots.last().copied().unwrap_or(0).max(world.newest_change);
    ceiling(check, CLOCK, newest)?;
    root_dir_id(check)?;
    lease(check)?;
    usage(check)
}

/// Where it is missing no start has promised clients anything.
fn lease(check: &mut Check<'_>) -> Result<(), EngineError> {
    let key = Key::new(Table::System, 0, LEASE);
    if let Some(Err(why)) = get(check.engine, key.clone())?.as_deref().map(decode_ceiling) {
        let finding = Finding::new(FindingKind::SystemWrong, readable(LEASE), why.to_string());
        let fix = "removed: the next start waits for clients as long as its own lease";
        check.found(finding.with(Stage::Derived, fix, Act::Rows(vec![delete(&key)])));
    }
    Ok(())
}

/// Checks that a counter that numbers are taken from is above `highest`. Of several nodes each has
/// its own, which is looked at when their rows are put together.
pub fn numbers(check: &mut Check<'_>, name: &[u8], highest: u64) -> Result<(), EngineError> {
    if check.is_of_several { Ok(()) } else { ceiling(check, name, highest) }
}

/// Checks that a counter's ceiling is above `highest`.
fn ceiling(check: &mut Check<'_>, name: &[u8], highest: u64) -> Result<(), EngineError> {
    let stored = get(check.engine, Key::new(Table::System, 0, name))?;
    let detail = match stored.as_deref().map(decode_ceiling) {
        Some(Ok(ceiling)) if ceiling > highest => return Ok(()),
        Some(Ok(ceiling)) => format!("the counter stands at {ceiling}; {highest} is in use"),
        Some(Err(why)) => why.to_string(),
        None => "the counter is missing".to_string(),
    };
    let finding = Finding::new(FindingKind::SystemWrong, readable(name), detail);
    let Some(above) = highest.checked_add(1) else {
        check.found(finding);
        return Ok(());
    };
    let rows = vec![put(Table::System, 0, name, encode_ceiling(above))];
    check.found(finding.with(Stage::Numbers, format!("set to {above}"), Act::Rows(rows)));
    Ok(())
}

/// The root's place is nowhere: parent 0, no name.
fn root_dir_id(check: &mut Check<'_>) -> Result<(), EngineError> {
    let nowhere = DirId { parent: 0, name: Box::new([]) };
    let stored = get(check.engine, Key::new(Table::DirId, ROOT, &[]))?;
    if stored.as_deref().map(DirId::decode) == Some(Ok(nowhere.clone())) {
        return Ok(());
    }
    let rows = vec![put(Table::DirId, ROOT, &[], nowhere.encode())];
    let finding =
        Finding::new(FindingKind::DirIdWrong, "/", "the root's place is missing or wrong");
    check.found(finding.with(Stage::Derived, "written anew", Act::Rows(rows)));
    Ok(())
}

/// The record of a clean stop spares the next start to add everything up and to look for open files
/// without a name: it must be right. Without it the start does both.
fn usage(check: &mut Check<'_>) -> Result<(), EngineError> {
    let key = Key::new(Table::System, 0, USAGE);
    let Some(stored) = get(check.engine, key.clone())? else { return Ok(()) };
    let totals = &check.totals;
    let found = [totals.files, totals.dirs - 1, totals.bytes].map(u64::cast_signed);
    let detail = match decode_usage(&stored) {
        Ok(recorded) if recorded == found && check.totals.orphans == 0 => return Ok(()),
        // It counts what clones have not been given yet.
        Ok(_) if check.clones.has_pending() => return Ok(()),
        Ok(recorded) if recorded == found => {
            "it tells of a clean stop, but files were open".to_string()
        }
        Ok(recorded) => {
            format!("it says {recorded:?} files, directories, bytes; there are {found:?}")
        }
        Err(why) => why.to_string(),
    };
    let finding = Finding::new(FindingKind::SystemWrong, readable(USAGE), detail);
    let fix = "removed: the next start counts anew";
    check.found(finding.with(Stage::Derived, fix, Act::Rows(vec![delete(&key)])));
    Ok(())
}
