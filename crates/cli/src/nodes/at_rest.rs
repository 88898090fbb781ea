//! The volume of a cluster of which no node runs: the directories of all its nodes, in this process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kestrel_admin::cut::{Cut, CutError};
use kestrel_admin::gather::{Gathered, gather};
use kestrel_client::control::QUICK;
use kestrel_client::descriptor::{ClusterSection, Descriptor};
use kestrel_client::error::VolumeError;
use kestrel_client::storage::StoreOptions;
use kestrel_client::volume::{Resources, Volume, VolumeLock, scratch_reserve};
use kestrel_meta::engine::Engine;
use kestrel_meta::member::change::records::ChangeRecords;
use kestrel_types::placement::{Member, NodeId, Placement};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::verbs::store_args::StoreArgs;
use crate::verbs::{ask, locate};

/// What is said of a directory that has more to be done.
const CUT_SHORT: &str =
    "; a change of the settings or keys of all nodes was cut short: repeat it, and it is finished";

/// Whether a volume and further directories name nodes of a cluster.
pub fn is_meant(verb: &str, volume: &str, others: &[String]) -> bool {
    let is_node = |dir: &Path| Descriptor::read(dir).is_ok_and(|descriptor| descriptor.cluster.is_some());
    !others.is_empty() || locate(verb, volume).is_ok_and(|dir| is_node(&dir))
}

/// A node that the arguments name.
struct Named {
    dir: PathBuf,
    descriptor: Descriptor,
    section: ClusterSection,
}

/// The directories of the nodes of one cluster.
fn named(verb: &'static str, urls: &[&str]) -> Result<BTreeMap<NodeId, Named>, Failure> {
    let failed = |why: String| Failure::new(verb, why);
    let mut nodes: BTreeMap<NodeId, Named> = BTreeMap::new();
    for url in urls {
        let dir = locate(verb, url)?;
        let descriptor = Descriptor::read(&dir).map_err(|why| failed(why.to_string()))?;
        let Some(section) = descriptor.cluster.clone() else {
            let why = "not a node of a cluster; several directories are for the nodes of one";
            return Err(failed(format!("{}: {why}", dir.display())));
        };
        let secret = section.secret().map_err(|why| failed(why.to_string()))?;
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
fn table_of(verb: &'static str, volume: &Volume, section: &ClusterSection) -> Result<Placement, Failure> {
    let records = ChangeRecords::read(&*volume.engine).map_err(|why| Failure::new(verb, why))?;
    match records.newest() {
        Some(table) => Ok(table.clone()),
        None => section.placement().map_err(|why| Failure::new(verb, why)),
    }
}

/// Refuses a part of a volume.
fn are_all(verb: &'static str, nodes: &BTreeMap<NodeId, Named>, members: &[Member]) -> Result<(), Failure> {
    let missing: Vec<String> = members
        .iter()
        .filter(|member| !nodes.contains_key(&member.id))
        .map(|member| format!("{} ({})", member.id, member.address))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        verb,
        format!(
            "{} nodes share the volume; name the directories of all: missing are {}",
            members.len(),
            missing.join(", ")
        ),
    ))
}

/// The nodes that a node knows of, and the version of its table: asked if it runs, read with one of these keys if it does not.
fn members_of(
    verb: &'static str,
    named: &Named,
    key_files: [Option<&Path>; 2],
) -> Result<(u64, Vec<Member>), Failure> {
    let question = json!({ "verb": "status" });
    if let Some(status) = ask(verb, &named.dir, &question, QUICK)? {
        let member = |node: &Value| {
            let address = node["address"].as_str()?.to_string();
            Some(Member { id: NodeId::try_from(node["node"].as_u64()?).ok()?, address })
        };
        let members = status["nodes"].as_array().and_then(|nodes| nodes.iter().map(member).collect());
        let told = status["table"].as_u64().zip(members);
        let why = "the process that serves it does not tell which nodes there are; stop it";
        return told.ok_or_else(|| Failure::new(verb, format!("{}: {why}", named.dir.display())));
    }
    let open = |key_file: Option<&Path>| {
        let store = StoreOptions { key_file: key_file.map(Path::to_path_buf), ..StoreOptions::default() };
        let resources = Resources { store, ..Resources::default() };
        Volume::open_part(&named.dir, &format!("kestrel {verb}"), &resources)
    };
    let opened = match (open(key_files[0]), key_files[1]) {
        (Err(VolumeError::Key(_)), Some(other)) if key_files[0] != Some(other) => open(Some(other)),
        (opened, _) => opened,
    };
    let part = opened.map_err(|why| {
        let hint = if Descriptor::is_changing(&named.dir) { CUT_SHORT } else { "" };
        Failure::new(verb, format!("{why}{hint}"))
    })?;
    let table = table_of(verb, &part, &named.section)?;
    Ok((table.version, table.map.members().to_vec()))
}

/// The directories of all nodes of a cluster, which one or the other of these keys opens.
///
/// # Errors
/// If they are not all nodes of one cluster, or it cannot be told which nodes there are.
pub fn dirs(
    verb: &'static str,
    volume: &str,
    others: &[String],
    key_files: [Option<&Path>; 2],
) -> Result<Vec<PathBuf>, Failure> {
    let urls: Vec<&str> = std::iter::once(volume).chain(others.iter().map(String::as_str)).collect();
    let named = named(verb, &urls)?;
    let known = named.values().map(|node| members_of(verb, node, key_files));
    let known = known.collect::<Result<Vec<_>, _>>()?;
    let newest = known.into_iter().max_by_key(|(version, _)| *version);
    let (_, members) = newest.ok_or_else(|| Failure::usage(format!("{verb}: no directory is named")))?;
    are_all(verb, &named, &members)?;
    Ok(named.into_values().map(|node| node.dir).collect())
}

/// All nodes of a volume, opened here.
pub struct AtRest {
    verb: &'static str,
    /// Who owns what.
    pub placement: Placement,
    /// Each node's part.
    pub parts: BTreeMap<NodeId, Volume>,
}

impl AtRest {
    /// Opens the nodes in these directories.
    ///
    /// # Errors
    /// If they are not all nodes of one cluster, or one is in use.
    pub fn open(
        verb: &'static str,
        volume: &str,
        others: &[String],
        store: &StoreArgs,
    ) -> Result<Self, Failure> {
        let urls: Vec<&str> = std::iter::once(volume).chain(others.iter().map(String::as_str)).collect();
        let named = named(verb, &urls)?;
        let resources = Resources { store: store.options(verb)?, ..Resources::default() };
        let (mut parts, mut tables) = (BTreeMap::new(), Vec::with_capacity(named.len()));
        for (node, Named { dir, section, descriptor }) in &named {
            if let Some(pid) = VolumeLock::holder(dir) {
                let url = section.url(&descriptor.settings.name).unwrap_or_default();
                let why = format!("in use by process {pid}: end all nodes of the volume, or ask them: {url}");
                return Err(Failure::new(verb, format!("{}: {why}", dir.display())));
            }
            let opened = Volume::open_part(dir, &format!("kestrel {verb}"), &resources);
            let part = opened.map_err(|why| Failure::new(verb, why))?;
            tables.push(table_of(verb, &part, section)?);
            parts.insert(*node, part);
        }
        // The newest of all is the cluster's.
        let newest = tables.into_iter().max_by_key(|table| table.version);
        let placement = newest.ok_or_else(|| Failure::usage(format!("{verb}: no directory is named")))?;
        are_all(verb, &named, placement.map.members())?;
        Ok(Self { verb, placement, parts })
    }

    /// The part of the first node, for what is the same of all.
    ///
    /// # Errors
    /// If there is none.
    pub fn first(&self) -> Result<&Volume, Failure> {
        let none = || Failure::usage(format!("{}: no directory is named", self.verb));
        self.parts.values().next().ok_or_else(none)
    }

    /// The nodes' engines.
    pub fn engines(&self) -> BTreeMap<NodeId, &dyn Engine> {
        self.parts.iter().map(|(node, part)| (*node, &*part.engine as &dyn Engine)).collect()
    }

    /// Gathers the rows of all.
    ///
    /// # Errors
    /// If they cannot be read, or the copy cannot be written.
    pub fn gather(&self, progress: &mut dyn FnMut(u64)) -> Result<Gathered, Failure> {
        let failed = |why: CutError| Failure::new(self.verb, why);
        let dir = &self.first()?.dir;
        Cut::remove_stale(dir);
        gather(&self.engines(), &self.placement, (dir, scratch_reserve(dir)), progress).map_err(failed)
    }
}
