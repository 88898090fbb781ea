//! The check of a volume that several nodes share, over the rows of all of them.

use std::collections::BTreeMap;
use std::path::Path;

use kestrel_admin::check::{Options, ReadData, check};
use kestrel_admin::cut::{Cut, CutError};
use kestrel_admin::finding::Finding;
use kestrel_admin::gather::{Gathered, Gathering};
use kestrel_admin::rows::Rows;
use kestrel_client::descriptor::{ClusterSection, Descriptor};
use kestrel_client::volume::{Resources, Volume, scratch_reserve};
use kestrel_data::store::BlockStore;
use kestrel_types::key::Table;
use kestrel_types::placement::NodeId;
use serde_json::Value;

use super::{FsckArgs, finding_event, readers, summary};
use crate::failure::Failure;
use crate::feed::Feed;
use crate::verbs::locate;

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::new("fsck", why)
}

/// Whether the arguments name nodes of a cluster at rest.
pub fn is_meant(args: &FsckArgs) -> bool {
    let is_node = |dir: &Path| Descriptor::read(dir).is_ok_and(|descriptor| descriptor.cluster.is_some());
    !args.others.is_empty() || locate("fsck", &args.volume).is_ok_and(|dir| is_node(&dir))
}

/// Opens the directories of all nodes of one cluster.
fn open_all(args: &FsckArgs) -> Result<BTreeMap<NodeId, (Volume, ClusterSection)>, Failure> {
    let mut nodes: BTreeMap<NodeId, (Volume, ClusterSection)> = BTreeMap::new();
    let resources = Resources { store: args.store.options("fsck")?, ..Resources::default() };
    for url in std::iter::once(&args.volume).chain(&args.others) {
        let dir = locate("fsck", url)?;
        let descriptor = Descriptor::read(&dir).map_err(failed)?;
        let Some(section) = descriptor.cluster.clone() else {
            let why = "not a node of a cluster; several directories are checked together if they are all nodes of one";
            return Err(failed(format!("{}: {why}", dir.display())));
        };
        let differs = |(volume, first): &(Volume, ClusterSection)| {
            volume.descriptor.uuid != descriptor.uuid || first.placement_hex() != section.placement_hex()
        };
        if let Some((_, found)) = nodes.first_key_value().filter(|(_, found)| differs(found)) {
            return Err(failed(format!(
                "{}: of another cluster than {}",
                dir.display(),
                found.0.dir.display()
            )));
        }
        if let Some((other, _)) = nodes.get(&section.node) {
            let [dir, other] = [&dir, &other.dir].map(|dir| dir.display());
            return Err(failed(format!("{dir}: node {}, as {other} is", section.node)));
        }
        let volume = Volume::open_part(&dir, "kestrel fsck", &resources).map_err(failed)?;
        nodes.insert(section.node, (volume, section));
    }
    Ok(nodes)
}

/// Checks the volume of a cluster of which no node runs.
pub fn at_rest(args: &FsckArgs, feed: &Feed<'_>) -> Result<Value, Failure> {
    if args.repair {
        return Err(Failure::usage(
            "fsck: --repair: what several nodes share cannot be repaired yet; restore it from a backup of all nodes",
        ));
    }
    let nodes = open_all(args)?;
    let Some((first, section)) = nodes.values().next() else {
        return Err(Failure::usage("fsck: no directory is named"));
    };
    let placement = section.placement().map_err(failed)?;
    let missing: Vec<String> = placement
        .map
        .members()
        .iter()
        .filter(|member| !nodes.contains_key(&member.id))
        .map(|member| format!("{} ({})", member.id, member.address))
        .collect();
    if !missing.is_empty() {
        return Err(failed(format!(
            "{}: one of {} nodes that share a volume; name the directories of all: missing are {}",
            first.dir.display(),
            placement.map.members().len(),
            missing.join(", ")
        )));
    }
    Cut::remove_stale(&first.dir);
    let mut gathering =
        Gathering::new(&first.dir, scratch_reserve(&first.dir), &placement).map_err(failed)?;
    for (node, (volume, _)) in &nodes {
        let rows = Table::ALL.into_iter().flat_map(|table| Rows::new(&*volume.engine, table));
        let rows = rows.map(|row| row.map_err(CutError::from));
        let mut progress = |done| feed.progress("gathering metadata", done);
        gathering.add(*node, rows, &mut progress).map_err(failed)?;
    }
    judge(&gathering.finish().map_err(failed)?, &*first.store, args.data, feed).map_err(failed)
}

/// Checks what has been gathered.
pub fn judge(whole: &Gathered, store: &dyn BlockStore, data: bool, feed: &Feed<'_>) -> Result<Value, String> {
    let mut options = Options { store: Some(store), is_of_several: true, ..Options::default() };
    if data {
        options.data = Some(ReadData { threads: readers(store), go_on: &|| true });
    }
    let mut report = |finding: Finding| feed.event(&finding_event(&finding));
    whole.findings.iter().for_each(|finding| feed.event(&finding_event(finding)));
    let mut totals = check(whole.engine(), &mut options, &mut report, &mut |what, done| {
        feed.progress(what, done);
    })
    .map_err(|why| why.to_string())?;
    for finding in &whole.findings {
        *totals.findings.entry(finding.kind).or_default() += 1;
    }
    Ok(summary(&totals, 0))
}
