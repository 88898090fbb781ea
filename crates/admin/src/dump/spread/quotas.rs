//! Rows of quotas.

use std::collections::BTreeMap;

use kestrel_engine::Engine;
use kestrel_meta::view::decode_dir_id;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;
use kestrel_types::quota::{QuotaRow, QuotaSubject, QuotaUsage, encode_home};

use super::{Spread, first_share};
use crate::dump::DumpError;
use crate::rows::{Rows, get, put};

/// Longest way up that is followed: damaged rows could lead in a circle.
const DEPTH_MAX: usize = 1 << 16;

impl Spread<'_> {
    /// Records go to every node that serves, with the quota that is above; what was counted is one
    /// node's; and which quota counts a file goes to the file's home.
    pub(super) fn quotas(&mut self, from: &dyn Engine) -> Result<(), DumpError> {
        let nodes: Vec<NodeId> = self.view.serving().collect();
        let leader = self.view.placement.snapshot_leader().map(|leader| leader.id);
        let leader = leader.or(nodes.first().copied()).unwrap_or_default();
        let (mut records, mut counted) = (Vec::new(), BTreeMap::new());
        for row in Rows::new(from, Table::Quota) {
            let (key, value) = row?;
            match QuotaRow::of(key.id, &key.suffix) {
                Some(QuotaRow::Record(of)) => records.push((of, key, value)),
                Some(QuotaRow::Share(of, _)) => {
                    let share = QuotaUsage::decode(&value);
                    let share = share.map_err(|why| DumpError::Mismatch(why.to_string()))?;
                    let sum: &mut QuotaUsage = counted.entry(of).or_default();
                    *sum = sum.plus(share);
                }
                Some(QuotaRow::Since(_)) => {
                    self.send(leader, put(key.table, key.id, &key.suffix, value))?;
                }
                Some(QuotaRow::Home(ino)) => {
                    let to = self.view.home_of(ino);
                    self.send(to, put(key.table, key.id, &key.suffix, value))?;
                }
                // It is found anew.
                Some(QuotaRow::Above(_)) | None => {}
            }
        }
        let dirs: Vec<InodeId> = records.iter().filter_map(|(of, ..)| dir_of(*of)).collect();
        for (of, key, value) in &records {
            let above = match dir_of(*of) {
                Some(dir) => next_above(from, &dirs, dir)?,
                None => None,
            };
            for node in &nodes {
                let row = put(key.table, key.id, &key.suffix, value.clone());
                self.send(*node, row)?;
                if let Some(above) = above {
                    let key = QuotaRow::Above(*of).key();
                    let row = put(key.table, key.id, &key.suffix, encode_home(above));
                    self.send(*node, row)?;
                }
            }
            if let Some(sum) = counted.get(of) {
                let key = QuotaRow::Share(*of, u16::from_be_bytes(first_share(leader))).key();
                self.send(leader, put(key.table, key.id, &key.suffix, sum.encode()))?;
            }
        }
        self.flush()
    }
}

fn dir_of(of: QuotaSubject) -> Option<InodeId> {
    match of {
        QuotaSubject::Dir(dir) => Some(dir),
        _ => None,
    }
}

/// The next directory above that has a quota.
fn next_above(
    from: &dyn Engine,
    dirs: &[InodeId],
    dir: InodeId,
) -> Result<Option<InodeId>, DumpError> {
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == ROOT {
            return Ok(None);
        }
        let Some(row) = get(from, Key::new(Table::DirId, at, b""))? else { return Ok(None) };
        let found = decode_dir_id(&row).map_err(|why| DumpError::Mismatch(why.to_string()))?;
        at = found.0;
        if dirs.contains(&at) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}
