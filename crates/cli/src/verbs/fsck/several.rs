//! The check of a volume that several nodes share, over the rows of all of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kestrel_admin::check::{Options, ReadData, check};
use kestrel_admin::cut::{Cut, CutError};
use kestrel_admin::finding::Finding;
use kestrel_admin::gather::{Gathered, Gathering};
use kestrel_admin::rows::Rows;
use kestrel_client::descriptor::{ClusterSection, Descriptor};
use kestrel_client::volume::{Resources, Volume, scratch_reserve};
use kestrel_data::store::BlockStore;
use kestrel_meta::member::change::records::ChangeRecords;
use kestrel_types::key::Table;
use kestrel_types::placement::{NodeId, Placement};
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

/// A node that the arguments name.
struct Named {
    dir: PathBuf,
    descriptor: Descriptor,
    section: ClusterSection,
}

/// The directories of the nodes of one cluster.
fn named(args: &FsckArgs) -> Result<BTreeMap<NodeId, Named>, Failure> {
    let mut nodes: BTreeMap<NodeId, Named> = BTreeMap::new();
    for url in std::iter::once(&args.volume).chain(&args.others) {
        let dir = locate("fsck", url)?;
        let descriptor = Descriptor::read(&dir).map_err(failed)?;
        let Some(section) = descriptor.cluster.clone() else {
            let why = "not a node of a cluster; several directories are checked together if they are all nodes of one";
            return Err(failed(format!("{}: {why}", dir.display())));
        };
        let secret = section.secret().map_err(failed)?;
        let differs = |other: &&Named| {
            other.descriptor.uuid != descriptor.uuid || other.section.secret().ok() != Some(secret)
        };
        if let Some(other) = nodes.values().find(differs) {
            return Err(failed(format!(
                "{}: of another cluster than {}",
                dir.display(),
                other.dir.display()
            )));
        }
        if let Some(other) = nodes.get(&section.node) {
            let [dir, other] = [&dir, &other.dir].map(|dir| dir.display());
            return Err(failed(format!("{dir}: node {}, as {other} is", section.node)));
        }
        nodes.insert(section.node, Named { dir, descriptor, section });
    }
    Ok(nodes)
}

/// The newest table that a node at rest knows of.
fn table_of(volume: &Volume, section: &ClusterSection) -> Result<Placement, Failure> {
    let records = ChangeRecords::read(&*volume.engine).map_err(failed)?;
    match records.newest() {
        Some(table) => Ok(table.clone()),
        None => section.placement().map_err(failed),
    }
}

/// Refuses to judge a part of a volume.
fn are_all(nodes: &BTreeMap<NodeId, Named>, placement: &Placement) -> Result<(), Failure> {
    let members = placement.map.members();
    let missing: Vec<String> = members
        .iter()
        .filter(|member| !nodes.contains_key(&member.id))
        .map(|member| format!("{} ({})", member.id, member.address))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(failed(format!(
        "{} nodes share the volume; name the directories of all: missing are {}",
        members.len(),
        missing.join(", ")
    )))
}

/// Checks the volume of a cluster of which no node runs.
pub fn at_rest(args: &FsckArgs, feed: &Feed<'_>) -> Result<Value, Failure> {
    if args.repair {
        return Err(Failure::usage(
            "fsck: --repair: what several nodes share cannot be repaired yet; restore it from a backup of all nodes",
        ));
    }
    let named = named(args)?;
    let resources = Resources { store: args.store.options("fsck")?, ..Resources::default() };
    let mut nodes: Vec<(NodeId, Volume)> = Vec::with_capacity(named.len());
    let mut tables = Vec::with_capacity(named.len());
    for (node, Named { dir, section, .. }) in &named {
        let volume = Volume::open_part(dir, "kestrel fsck", &resources).map_err(failed)?;
        tables.push(table_of(&volume, section)?);
        nodes.push((*node, volume));
    }
    // The newest of all is the cluster's.
    let newest = tables.into_iter().max_by_key(|table| table.version);
    let placement = newest.ok_or_else(|| Failure::usage("fsck: no directory is named"))?;
    are_all(&named, &placement)?;
    let [(_, first), ..] = &*nodes else { return Err(Failure::usage("fsck: no directory is named")) };
    Cut::remove_stale(&first.dir);
    let mut gathering =
        Gathering::new(&first.dir, scratch_reserve(&first.dir), &placement).map_err(failed)?;
    for (node, volume) in &nodes {
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
