//! What directories' figures were at snapshots, where their shares become one.
//!
//! A share has history of its own. At a snapshot the one share has the sum of what all of them were
//! then.

use std::collections::{BTreeMap, BTreeSet};

use kestrel_engine::Engine;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::snapshot::{
    SnapshotId, decode_history, decode_history_key, encode_history, history_key,
};
use kestrel_types::stat::DirStat;

use super::Batch;
use crate::info::InfoError;
use crate::rows::{Rows, delete};

/// The share that is left.
pub(crate) const ONE_SHARE: [u8; 2] = [0, 0];

/// History of the shares of one directory.
#[derive(Default)]
struct DirHistory {
    /// By share, what it was at snapshots.
    shares: BTreeMap<Box<[u8]>, BTreeMap<SnapshotId, Option<DirStat>>>,
    keys: Vec<Key>,
}

/// Makes the history of directories' shares that of one share each. The shares themselves are as
/// they were.
///
/// # Errors
/// Those of the engine; damaged rows.
pub(crate) fn add_up_history(engine: &dyn Engine) -> Result<(), InfoError> {
    let mut batch = Batch { engine, changes: Vec::new() };
    let (mut dir, mut found) = (0, DirHistory::default());
    for row in Rows::new(engine, Table::History) {
        let (key, value) = row?;
        let Some((of, at)) = decode_history_key(key.borrow()) else { continue };
        if of.table != Table::DirStat {
            continue;
        }
        if of.id != dir {
            add_up_dir(engine, dir, &std::mem::take(&mut found), &mut batch)?;
            dir = of.id;
        }
        let then = decode_history(&value)?.map(DirStat::decode).transpose()?;
        found.shares.entry(of.suffix.into()).or_default().insert(at, then);
        found.keys.push(key.clone());
    }
    add_up_dir(engine, dir, &found, &mut batch)?;
    Ok(batch.send()?)
}

fn add_up_dir(
    engine: &dyn Engine,
    dir: u64,
    found: &DirHistory,
    batch: &mut Batch<'_>,
) -> Result<(), InfoError> {
    let mut present: BTreeMap<Box<[u8]>, DirStat> = BTreeMap::new();
    if !found.keys.is_empty() {
        for row in Rows::from(engine, Table::DirStat, dir, &[]) {
            let (key, value) = row?;
            if key.id != dir {
                break;
            }
            present.insert(key.suffix, DirStat::decode(&value)?);
        }
    }
    for key in &found.keys {
        batch.add(delete(key))?;
    }
    let snapshots: BTreeSet<SnapshotId> =
        found.shares.values().flat_map(|share| share.keys().copied()).collect();
    let shares: BTreeSet<&Box<[u8]>> = found.shares.keys().chain(present.keys()).collect();
    for snapshot in snapshots {
        let mut sum: Option<DirStat> = None;
        for share in &shares {
            // A share is what its next history row says, or what it is.
            let next = found.shares.get(*share).and_then(|share| share.range(snapshot..).next());
            let then = match next {
                Some((_, then)) => *then,
                None => present.get(*share).copied(),
            };
            if let Some(then) = then {
                sum.get_or_insert_default().merge(&then);
            }
        }
        let value = sum.map(|sum| sum.encode());
        let key = history_key(KeyRef::new(Table::DirStat, dir, &ONE_SHARE), snapshot);
        let value = Some(encode_history(value.as_deref()));
        batch.add(kestrel_engine::Mutation { key, value })?;
    }
    Ok(())
}
