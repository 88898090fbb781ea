//! What numbers of snapshots say of the order of calls.
//!
//! On one node the number of a snapshot is the stamp of its batch: every change before it has a
//! lower one, every later change a higher one. The answers tell most stamps. That is a promise of
//! its own, and it shortens the search: a snapshot that is put at a wrong place would be found out
//! only where it is read.

use kestrel_types::ids::InodeId;
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};

use crate::history::Record;

/// Snapshots of which clones of the present are made have numbers from here on here.
const OF_CLONES: SnapshotId = 1 << 63;

/// Calls by the side of a snapshot that they are on.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    /// Of each call: snapshots that were made before it.
    made_before: Vec<Vec<usize>>,
    /// Of each call that made a snapshot: the changes before it.
    changed_before: Vec<Vec<usize>>,
    /// Of each call about records of snapshots: those that were being made at the same time, and
    /// those that nobody sees.
    in_making: Vec<Vec<SnapshotId>>,
}

/// The snapshot that a call has made.
fn made(record: &Record) -> Option<&SnapshotInfo> {
    match (&record.request.op, &record.answered) {
        (Op::SnapshotCreate { .. }, Some((_, Ok(Answer::Snapshots(made))))) => made.first(),
        _ => None,
    }
}

/// The stamp of what a call has changed, if its answer tells it.
fn stamp_of(op: &Op, reply: &Reply) -> Option<u64> {
    match (op, reply) {
        (
            Op::SetAttr(..)
            | Op::SetFlags(..)
            | Op::MkDir(..)
            | Op::MkNod { .. }
            | Op::Symlink(..)
            | Op::Link(..)
            | Op::Commit(_)
            | Op::Clone { .. },
            Ok(Answer::Inode(inode) | Answer::Entry { inode, .. }),
        )
        | (
            Op::Create { .. } | Op::TmpFile { .. },
            Ok(Answer::Opened { inode, created: true, .. }),
        ) => Some(inode.change),
        _ => None,
    }
}

impl Cuts {
    /// Nodes with clocks of their own. A snapshot is on record some time after its instant, but
    /// before the answer to the call that makes it.
    pub(super) fn of_many_clocks(records: &[Record]) -> Self {
        let made: Vec<(u64, u64, &SnapshotInfo)> = records
            .iter()
            .filter_map(|record| Some((record.begun, record.answered.as_ref()?.0, made(record)?)))
            .collect();
        let in_making = |record: &Record| {
            let end = record.answered.as_ref().map_or(u64::MAX, |(at, _)| *at);
            let at_a_time = |(begun, answered, _): &&(u64, u64, &SnapshotInfo)| {
                *begun < end && record.begun < *answered
            };
            match record.request.op {
                Op::SnapshotList { .. }
                | Op::SnapshotRename { .. }
                | Op::SnapshotRemove { .. }
                | Op::SnapshotHold { .. } => {
                    let unseen = made.iter().filter(|(.., info)| info.hidden);
                    let in_making = made.iter().filter(at_a_time).chain(unseen);
                    in_making.map(|(.., info)| info.id).collect()
                }
                _ => Vec::new(),
            }
        };
        Self { in_making: records.iter().map(in_making).collect(), ..Self::default() }
    }

    /// Snapshots that a call need not know: they were being made, and its answer does not show
    /// them.
    pub(super) fn hidden_from(&self, call: usize, record: &Record) -> Vec<SnapshotId> {
        let Some(in_making) = self.in_making.get(call).filter(|ids| !ids.is_empty()) else {
            return Vec::new();
        };
        match &record.answered {
            Some((_, Ok(Answer::Snapshots(shown)))) => {
                let is_shown = |id: &SnapshotId| shown.iter().any(|info| info.id == *id);
                in_making.iter().copied().filter(|id| !is_shown(id)).collect()
            }
            Some((_, Err(Outcome::Failed(why)))) if why.errno == libc::ENOENT => in_making.clone(),
            _ => Vec::new(),
        }
    }

    /// One node.
    pub(super) fn of_one_clock(records: &[Record]) -> Self {
        let made: Vec<_> = records.iter().map(|record| made(record).map(|info| info.id)).collect();
        let stamps: Vec<_> = records
            .iter()
            .zip(&made)
            .map(|(record, made)| {
                let (_, reply) = record.answered.as_ref()?;
                made.or_else(|| stamp_of(&record.request.op, reply))
            })
            .collect();
        let below = |stamps: &[Option<u64>], limit: Option<u64>| -> Vec<usize> {
            let all = stamps.iter().enumerate();
            all.filter(|(_, stamp)| stamp.is_some() && **stamp < limit)
                .map(|(call, _)| call)
                .collect()
        };
        Self {
            made_before: stamps.iter().map(|stamp| below(&made, *stamp)).collect(),
            changed_before: made.iter().map(|made| below(&stamps, *made)).collect(),
            ..Self::default()
        }
    }

    /// Whether a call may be the next one, after those that are done.
    pub(super) fn may_be_next(&self, call: usize, is_done: &[bool]) -> bool {
        let all_done = |before: &[Vec<usize>]| {
            before.get(call).is_none_or(|before| before.iter().all(|other| is_done[*other]))
        };
        all_done(&self.made_before) && all_done(&self.changed_before)
    }
}

/// Whether nobody knows if a clone of the present was made.
pub(super) fn is_unheard_clone(record: &Record) -> bool {
    let clones = matches!(record.request.op, Op::CloneDir { at: None, .. });
    clones && record.answered.is_none() && !record.refused
}

/// The record of a snapshot that nobody sees, which a call has made.
fn hidden_snapshot(record: &Record, (dir, id): (InodeId, SnapshotId), answered: u64) -> Record {
    let name = Name::new(format!("\u{1}{id}").as_bytes()).expect("a valid name");
    let op = Op::SnapshotCreate { dir, name: name.clone() };
    let info = SnapshotInfo {
        id,
        dir,
        name,
        created: 0,
        removing: false,
        cutting: false,
        hidden: true,
        holds: Vec::new(),
        clones: Vec::new(),
    };
    let answered = Some((answered, Ok(Answer::Snapshots(vec![info]))));
    Record { request: Request { creds: Creds::root(), op }, answered, ..record.clone() }
}

/// The records, with each clone of the present, and each comparison with it, as what it is on
/// several nodes: a snapshot that nobody sees, at one instant, and a clone of that, at a later one.
/// `unheard`: also clones without an answer.
pub(super) fn with_hidden_snapshots(records: &[Record], unheard: bool) -> Vec<Record> {
    let mut all = Vec::with_capacity(records.len());
    for (number, mut record) in (0..).zip(records.iter().cloned()) {
        let compared = match (&record.request.op, &record.answered) {
            (
                Op::SnapshotChanges { dir, newer: None, .. },
                Some((answered, Ok(Answer::SnapshotChanges(page)))),
            ) => page.newer.map(|made| (*dir, *answered, made)),
            _ => None,
        };
        if let Some((dir, answered, made)) = compared {
            all.push(hidden_snapshot(&record, (dir, made), answered));
            if let Op::SnapshotChanges { newer, .. } = &mut record.request.op {
                *newer = Some(made);
            }
        }
        let answered = match record.answered {
            Some((answered, Ok(_))) => Some(answered),
            None if unheard && is_unheard_clone(&record) => Some(u64::MAX),
            _ => None,
        };
        if let Op::CloneDir { source: dir, at: None, .. } = record.request.op
            && let Some(answered) = answered
        {
            let id = OF_CLONES + number;
            all.push(hidden_snapshot(&record, (dir, id), answered));
            if let Op::CloneDir { at, .. } = &mut record.request.op {
                *at = Some(id);
            }
        }
        all.push(record);
    }
    all
}

/// The records, with an answer for each creation of a snapshot that got none and must have
/// happened: a listing shows the snapshot, and only this call can have made it.
pub(super) fn with_found_snapshots(records: &[Record]) -> Vec<Record> {
    let mut records = records.to_vec();
    let mut known: Vec<SnapshotId> =
        records.iter().filter_map(|record| Some(made(record)?.id)).collect();
    let mut listed: Vec<(u64, SnapshotInfo)> = Vec::new();
    for (at, reply) in records.iter().filter_map(|record| record.answered.as_ref()) {
        if let Ok(Answer::Snapshots(list)) = reply {
            listed.extend(list.iter().map(|info| (*at, info.clone())));
        }
    }
    listed.sort_by_key(|(at, _)| *at);
    for (at, info) in listed {
        if known.contains(&info.id) {
            continue;
        }
        known.push(info.id);
        let may_have_made = |record: &&mut Record| {
            record.answered.is_none()
                && !record.refused
                && record.begun < at
                && matches!(record.request.op, Op::SnapshotCreate { dir, .. } if dir == info.dir)
        };
        let mut makers = records.iter_mut().filter(may_have_made);
        if let (Some(maker), None) = (makers.next(), makers.next())
            && let Op::SnapshotCreate { name, .. } = &maker.request.op
        {
            // It may be in removal by now. A reply to the call would not have said so.
            let made =
                SnapshotInfo { name: name.clone(), holds: Vec::new(), removing: false, ..info };
            maker.answered = Some((at, Ok(Answer::Snapshots(vec![made]))));
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use kestrel_types::ids::ROOT;

    use crate::history::History;
    use crate::linear::{Linearity, check};

    use super::*;

    /// The maker of a snapshot gets no answer, and the first listing that shows the snapshot shows
    /// it in removal. That is an order of the three calls (seed 141742 of one node with sessions).
    #[test]
    fn unheard_snapshot_first_listed_in_removal() {
        let name = || Name::new(b"t").unwrap();
        let call = |history: &mut History, op, reply| {
            let call = history.begin(0, Request { creds: Creds::root(), op }, None);
            if let Some(reply) = reply {
                history.finish(call, Ok(reply));
            }
        };
        let listed = SnapshotInfo {
            id: 7,
            dir: ROOT,
            name: name(),
            created: 7,
            removing: true,
            cutting: false,
            hidden: false,
            holds: Vec::new(),
            clones: Vec::new(),
        };
        let mut history = History::default();
        call(&mut history, Op::SnapshotCreate { dir: ROOT, name: name() }, None);
        let removal = Op::SnapshotRemove { dir: ROOT, name: name() };
        call(&mut history, removal, Some(Answer::Done));
        let listing = Op::SnapshotList { dir: None, ancestors: false };
        call(&mut history, listing, Some(Answer::Snapshots(vec![listed])));
        assert_eq!(check(&history.records, true), Linearity::Linearizable);
    }
}
