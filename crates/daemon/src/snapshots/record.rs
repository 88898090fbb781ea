//! The record of a schedule: an extended attribute of the directory.
//!
//! Its value is the schedule as text (`1h=24,1d=7`). Metadata nodes let the directory's owner and
//! the superuser set it, which are the users that make and remove its snapshots.

use kestrel_client::fs::unexpected;
use kestrel_engine::{Engine, EngineError};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Op, XattrFlags};
use kestrel_types::snapshot::SCHEDULE_XATTR as ATTRIBUTE;
use std::ops::ControlFlow;

use super::calls::SnapshotCalls;
use super::schedule::SnapshotSchedule;

/// The text on record of a directory, if there is one; `root` asks for the superuser.
///
/// # Errors
/// Those of reading an attribute.
pub fn read(root: &SnapshotCalls<'_>, dir: InodeId) -> FsResult<Option<String>> {
    match root.ask(None, Op::GetXattr(InodeRef::by_id(dir), ATTRIBUTE.into())) {
        Ok(Answer::Bytes(bytes)) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Ok(other) => Err(unexpected(&other)),
        Err(FsError { errno: libc::ENODATA, .. }) => Ok(None),
        Err(why) => Err(why),
    }
}

/// Puts a schedule on record, or takes it away.
///
/// # Errors
/// Those of changing an attribute.
pub fn write(
    root: &SnapshotCalls<'_>,
    dir: InodeId,
    schedule: Option<&SnapshotSchedule>,
) -> FsResult<()> {
    let (inode, name) = (InodeRef::by_id(dir), Box::from(ATTRIBUTE));
    let op = match schedule {
        Some(schedule) => {
            let text = schedule.to_string().into_bytes().into_boxed_slice();
            Op::SetXattr(inode, name, text, XattrFlags::default())
        }
        None => Op::RemoveXattr(inode, name),
    };
    match root.ask(None, op) {
        Err(FsError { errno: libc::ENODATA, .. }) if schedule.is_none() => Ok(()),
        answer => answer.map(|_| ()),
    }
}

/// All directories with a schedule, from the rows of a whole volume. `go_on` is asked before each
/// step, of which there is one for each inode with extended attributes.
///
/// # Errors
/// Those of the engine.
pub fn find_all(
    engine: &dyn Engine,
    go_on: &dyn Fn(u64) -> bool,
) -> Result<Vec<InodeId>, EngineError> {
    let mut found = Vec::new();
    // The record of the next inode that may have one; other attributes of inodes are passed over.
    let mut next = Some(0);
    let mut steps = 0;
    while let Some(id) = next.take() {
        if !go_on(steps) {
            return Err(EngineError::Io("the search was given up".into()));
        }
        steps += 1;
        let from = KeyRef { table: Table::Xattr, id, suffix: ATTRIBUTE };
        engine.scan_table(Table::Xattr, Some(from), &mut |key, _| {
            if key.suffix == ATTRIBUTE {
                found.push(key.id);
            }
            next = if key.id == id { id.checked_add(1) } else { Some(key.id) };
            if key.suffix == ATTRIBUTE {
                next = key.id.checked_add(1);
            }
            ControlFlow::Break(())
        })?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kestrel_engine::{BatchKind, MemoryEngine, Mutation};
    use kestrel_types::Key;

    use super::*;

    /// Records are found among other attributes, whatever comes before and after them.
    #[test]
    fn directories_with_a_schedule() {
        let engine = Arc::new(MemoryEngine::default()).claim().unwrap();
        assert_eq!(find_all(&*engine, &|_| true).unwrap(), [0; 0]);
        let names: [&[u8]; 3] = [b"a", ATTRIBUTE, b"user.z"];
        let row = |id: u64, name: &[u8]| Mutation {
            key: Key::new(Table::Xattr, id, name),
            value: Some(Box::from(*b"\x01x")),
        };
        let mut rows = Vec::new();
        for id in 1..=15u64 {
            let of = names.iter().enumerate().filter(|(bit, _)| (id >> bit) & 1 == 1);
            rows.extend(of.map(|(_, name)| row(id, name)));
        }
        engine.commit(BatchKind::Growing, rows).unwrap();
        let with: Vec<u64> = (1..=15).filter(|id| id & 2 == 2).collect();
        assert_eq!(find_all(&*engine, &|_| true).unwrap(), with);
        assert!(find_all(&*engine, &|steps| steps < 3).is_err());
    }
}
