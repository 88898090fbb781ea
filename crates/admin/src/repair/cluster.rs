//! Repairs a volume that several nodes share and of which none runs: its rows are put together
//! ([`crate::cluster_view`]), checked and repaired as those of one node, and every change goes to
//! the node that owns the row too (`write_through`).
//!
//! First comes what each node has for itself (counters, sessions, records of transactions), then
//! rows that lie at another node than the one that owns them (`misplaced`). In the end the rows are
//! put together anew and checked: what is reported then is what the nodes have.
//!
//! **Crashes.** No log spans nodes, so a repair of rows of several may be carried out in part. What
//! is left is damage again, never less data, and the next run repairs it. At worst something is in
//! `/lost+found` twice.

use std::path::Path;

use kestrel_cluster::change::records::{ChangeRecords, ForeignRows};
use kestrel_engine::{BatchKind, Engine};
use kestrel_meta::owners::MapView;
use kestrel_types::clock::Nanos;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::{PlacementMap, WORKERS_MAX};

use super::misplaced::MisplacedRows;
use super::write_through::WriteThrough;
use super::{RepairError, rounds};
use crate::check::{self, Options, Progress, Totals};
use crate::cluster_view::{ClusterView, gather};
use crate::cut::CutError;
use crate::dump::spread::{LOADING, TargetNodes, keep_clear_of};
use crate::finding::{Act, Finding, FindingKind, Fix};
use crate::rows::{OBJECTS, get};

/// How often the rows are put together, at most: each time something was repaired before.
const GATHERINGS_MAX: u32 = 100;

/// A volume that several nodes share.
pub struct ClusterRepair<'a> {
    /// The rows of all nodes, none of which is in use.
    pub nodes: &'a TargetNodes<'a>,
    /// The placement map.
    pub placement: &'a PlacementMap,
    /// Where a copy of the metadata may be made that goes away.
    pub scratch: &'a Path,
    /// Bytes that stay free there.
    pub reserve_bytes: u64,
}

/// Checks and repairs it. `did` gets every finding that was repaired; `left` those that remain.
/// Returns the totals of the last check and the number of repairs.
///
/// # Errors
/// As for [`super::repair`]; if the placement map is being changed, a dump was loaded in part,
/// or a node's rows are an old copy.
pub fn repair(
    volume: &ClusterRepair<'_>,
    options: &mut Options<'_>,
    now: Nanos,
    did: &mut dyn FnMut(&Finding, &Fix),
    left: &mut dyn FnMut(Finding),
    progress: Progress<'_>,
) -> Result<(Totals, u64), RepairError> {
    volume.refuse_changes()?;
    let first = volume.nodes.keys().next().copied().unwrap_or_default();
    options.is_of_several = true;
    options.share = u16::try_from(first as usize * WORKERS_MAX).unwrap_or(0);
    // Reading all data takes long and no repair depends on it: the last check alone does it.
    let data = options.data.take();
    let mut done = 0;
    for _ in 0..GATHERINGS_MAX {
        let whole = volume.gather(progress)?;
        if let Some(node) = whole.outdated.first() {
            // What the others have of what it lacks would be taken for damage, and thrown away.
            return Err(RepairError::Refused(format!(
                "node {node}: its directory is an old copy, or was made anew: repeat this with the \
                 newest one there is; if it is lost, \
                 load a dump, the last one of the volume or one of these directories, into new \
                 nodes"
            )));
        }
        let view = MapView::new(first, volume.placement.clone());
        let view = view.map_err(|why| RepairError::Refused(why.reason.to_string()))?;
        let write_through = WriteThrough::new(whole.engine(), volume.nodes, view);
        let mut kept = Vec::new();
        let mut applied = volume.node_by_node(&write_through, &whole, options, now, did)?;
        let mut totals = Totals::default();
        if applied == 0 {
            let mut keep = |finding| kept.push(finding);
            (totals, applied) = rounds(
                (&write_through, Some(&write_through)),
                options,
                now,
                did,
                &mut keep,
                progress,
            )?;
        }
        done += applied;
        if applied > 0 {
            continue;
        }
        options.data = data;
        if data.is_some() {
            kept.clear();
            let mut keep = |finding| kept.push(finding);
            totals = check::check(whole.engine(), options, &mut keep, progress)?;
        }
        whole.findings.iter().cloned().chain(kept).for_each(left);
        whole.count(&mut totals);
        return Ok((totals, done));
    }
    let finding = Finding::new(FindingKind::RowMisplaced, "/", "rounds exhausted");
    Err(RepairError::NoProgress(Box::new(finding)))
}

impl ClusterRepair<'_> {
    fn gather(&self, progress: Progress<'_>) -> Result<ClusterView, CutError> {
        let scratch = (self.scratch, self.reserve_bytes);
        gather(self.nodes, self.placement, scratch, &mut |rows| {
            progress("gathering metadata", rows)
        })
    }

    /// Rows that are on their way between nodes would overtake their repair.
    fn refuse_changes(&self) -> Result<(), RepairError> {
        for (node, engine) in self.nodes {
            let refused = |why: String| RepairError::Refused(format!("node {node}: {why}"));
            let records = ChangeRecords::read(*engine).map_err(|why| refused(why.to_string()))?;
            if records.frozen.is_some()
                || records.change.is_some()
                || matches!(records.strangers, ForeignRows::Coming(_))
                || records.table.is_some_and(|map| map.version != self.placement.version)
            {
                let why = "the placement map is being changed: start all nodes, wait until \
                           `kestrel cluster status` tells of no \
                           change, stop them and repeat this";
                return Err(refused(why.into()));
            }
            if get(*engine, Key::new(Table::System, 0, LOADING))?.is_some() {
                return Err(refused("a dump was loaded in part: repeat the load".into()));
            }
        }
        Ok(())
    }

    /// Carries out the repairs of the earliest stage among those that concern rows of single nodes;
    /// how many.
    fn node_by_node(
        &self,
        write_through: &WriteThrough<'_>,
        whole: &ClusterView,
        options: &Options<'_>,
        now: Nanos,
        did: &mut dyn FnMut(&Finding, &Fix),
    ) -> Result<u64, RepairError> {
        let fixes =
            || whole.findings.iter().filter_map(|finding| Some((finding, finding.fix.as_ref()?)));
        let Some(stage) = fixes().map(|(_, fix)| fix.stage).min() else { return Ok(0) };
        write_through.begin()?;
        let mut misplaced = None;
        let (mut is_of_objects, mut applied) = (false, 0);
        for (finding, fix) in fixes().filter(|(_, fix)| fix.stage == stage) {
            let fix_text = match &fix.act {
                Act::AtNode(node, rows) => {
                    is_of_objects |= rows.iter().any(|row| *row.key.suffix == *OBJECTS);
                    write_through.node(*node)?.commit(BatchKind::Freeing, rows.clone())?;
                    Some(fix.says.clone())
                }
                Act::Bring(node, key) => {
                    let misplaced = match &mut misplaced {
                        Some(misplaced) => misplaced,
                        none => none.insert(MisplacedRows::new(write_through, now)?),
                    };
                    misplaced.bring(*node, key)?
                }
                _ => None,
            };
            if let Some(fix_text) = fix_text {
                did(finding, &Fix { says: fix_text, ..fix.clone() });
                applied += 1;
            }
        }
        write_through.sync()?;
        if let (true, Some(store)) = (is_of_objects, options.store) {
            keep_clear_of(self.nodes, store)?;
        }
        Ok(applied)
    }
}
