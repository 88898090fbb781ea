//! The volume of a cluster of which no node runs: the directories of all its nodes, in this
//! process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kestrel_admin::cluster_view::{ClusterView, gather};
use kestrel_admin::cut::{Cut, CutError};
use kestrel_client::control::QUICK;
use kestrel_client::descriptor::{ClusterSection, Descriptor};
use kestrel_client::error::VolumeError;
use kestrel_client::state_dir::is_bucket_url;
use kestrel_client::storage::StoreOptions;
use kestrel_client::volume::{Volume, VolumeLock, scratch_reserve};
use kestrel_cluster::change::records::ChangeRecords;
use kestrel_daemon::ask::{ask, locate};
use kestrel_daemon::failure::Failure;
use kestrel_daemon::memory::of_verb;
use kestrel_daemon::serve::CUT_SHORT;
use kestrel_engine::Engine;
use kestrel_types::placement::{Member, NodeId, PlacementMap};
use serde_json::{Value, json};

use crate::args::store::StoreArgs;

/// Whether a volume and further directories name nodes of a cluster.
pub fn is_meant(verb: &str, volume: &str, others: &[String]) -> bool {
    let is_node =
        |dir: &Path| Descriptor::read(dir).is_ok_and(|descriptor| descriptor.cluster.is_some());
    // A bucket alone has no nodes.
    let may_be = || !is_bucket_url(volume);
    !others.is_empty() || (may_be() && locate(verb, volume, None).is_ok_and(|dir| is_node(&dir)))
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
        let dir = locate(verb, url, None)?;
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
fn table_of(
    verb: &'static str,
    volume: &Volume,
    section: &ClusterSection,
) -> Result<PlacementMap, Failure> {
    let records = ChangeRecords::read(&*volume.engine).map_err(|why| Failure::new(verb, why))?;
    match records.newest() {
        Some(table) => Ok(table.clone()),
        None => section.placement().map_err(|why| Failure::new(verb, why)),
    }
}

/// What a node knows of the cluster.
struct MembersSeen {
    /// Of its table.
    version: u64,
    members: Vec<Member>,
    /// Nodes that have left. One that runs does not tell them; one that has left does not run, and
    /// knows it of itself.
    former: Vec<NodeId>,
}

impl MembersSeen {
    fn of(table: &PlacementMap) -> Self {
        let former = table.former.iter().map(|(node, _)| *node).collect();
        Self { version: table.version, members: table.map.members().to_vec(), former }
    }
}

/// Refuses a part of a volume, and what is none: a node that has left has rows that are not the
/// volume's any more.
fn are_all(
    verb: &'static str,
    nodes: &BTreeMap<NodeId, Named>,
    members: &[Member],
    former: &[NodeId],
) -> Result<(), Failure> {
    for (node, Named { dir, .. }) in nodes {
        if members.iter().any(|member| member.id == *node) {
            continue;
        }
        let why = if former.contains(node) {
            format!("node {node} has left the cluster: leave its directory out; it can be deleted")
        } else {
            format!(
                "node {node} is not one of the cluster's nodes, which it may be about to join: \
                 leave its directory out"
            )
        };
        return Err(Failure::new(verb, format!("{}: {why}", dir.display())));
    }
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

/// What a node knows: asked if it runs, read with one of these keys if it does not.
fn known_of(
    verb: &'static str,
    named: &Named,
    key_files: [Option<&Path>; 2],
) -> Result<MembersSeen, Failure> {
    let question = json!({ "verb": "status" });
    if let Some(status) = ask(verb, &named.dir, &question, QUICK)? {
        let member = |node: &Value| {
            let address = node["address"].as_str()?.to_string();
            Some(Member { id: NodeId::try_from(node["node"].as_u64()?).ok()?, address })
        };
        let members =
            status["nodes"].as_array().and_then(|nodes| nodes.iter().map(member).collect());
        let told = status["table"].as_u64().zip(members);
        let why = "the process that serves it does not tell which nodes there are; stop it";
        let told =
            told.map(|(version, members)| MembersSeen { version, members, former: Vec::new() });
        return told.ok_or_else(|| Failure::new(verb, format!("{}: {why}", named.dir.display())));
    }
    let open = |key_file: Option<&Path>| {
        let store =
            StoreOptions { key_file: key_file.map(Path::to_path_buf), ..StoreOptions::default() };
        let resources = of_verb(store);
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
    Ok(MembersSeen::of(&table_of(verb, &part, &named.section)?))
}

/// The newest of what nodes know, in the order of their numbers. Of several the first: a node that
/// is about to join has a table of its own of the version that the others have, with itself in it,
/// and has the highest number.
fn newest<T>(known: Vec<T>, version: impl Fn(&T) -> u64) -> Option<T> {
    known
        .into_iter()
        .reduce(|newest, next| if version(&next) > version(&newest) { next } else { newest })
}

/// The directories of all nodes of a cluster, which one or the other of these keys opens.
///
/// # Errors
/// If they are not all nodes of one cluster and nothing else, or it cannot be told which nodes
/// there are.
pub fn dirs(
    verb: &'static str,
    volume: &str,
    others: &[String],
    key_files: [Option<&Path>; 2],
) -> Result<Vec<PathBuf>, Failure> {
    let urls: Vec<&str> =
        std::iter::once(volume).chain(others.iter().map(String::as_str)).collect();
    let named = named(verb, &urls)?;
    let known = named.values().map(|node| known_of(verb, node, key_files));
    let known = known.collect::<Result<Vec<_>, _>>()?;
    let former: Vec<NodeId> = known.iter().flat_map(|known| known.former.iter().copied()).collect();
    let newest = newest(known, |known| known.version);
    let MembersSeen { members, .. } =
        newest.ok_or_else(|| Failure::usage(format!("{verb}: no directory is named")))?;
    are_all(verb, &named, &members, &former)?;
    Ok(named.into_values().map(|node| node.dir).collect())
}

/// All nodes of a volume, opened here.
pub struct AtRest {
    verb: &'static str,
    /// The placement map.
    pub placement: PlacementMap,
    /// Each node's part.
    pub parts: BTreeMap<NodeId, Volume>,
}

impl AtRest {
    /// Opens the nodes in these directories.
    ///
    /// # Errors
    /// If they are not all nodes of one cluster and nothing else, or one is in use.
    pub fn open(
        verb: &'static str,
        volume: &str,
        others: &[String],
        store: &StoreArgs,
    ) -> Result<Self, Failure> {
        let urls: Vec<&str> =
            std::iter::once(volume).chain(others.iter().map(String::as_str)).collect();
        let named = named(verb, &urls)?;
        let resources = of_verb(store.options());
        let (mut parts, mut tables) = (BTreeMap::new(), Vec::with_capacity(named.len()));
        for (node, Named { dir, section, descriptor }) in &named {
            if let Some(pid) = VolumeLock::holder(dir) {
                let url = section.url(&descriptor.settings.name).unwrap_or_default();
                let why = format!(
                    "in use by process {pid}: end all nodes of the volume, or ask them: {url}"
                );
                return Err(Failure::new(verb, format!("{}: {why}", dir.display())));
            }
            let opened = Volume::open_part(dir, &format!("kestrel {verb}"), &resources);
            let part = opened.map_err(|why| Failure::new(verb, why))?;
            tables.push(table_of(verb, &part, section)?);
            parts.insert(*node, part);
        }
        // The newest of all is the cluster's.
        let newest = newest(tables, |table: &PlacementMap| table.version);
        let placement =
            newest.ok_or_else(|| Failure::usage(format!("{verb}: no directory is named")))?;
        let MembersSeen { members, former, .. } = MembersSeen::of(&placement);
        are_all(verb, &named, &members, &former)?;
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
    pub fn gather(&self, progress: &mut dyn FnMut(u64)) -> Result<ClusterView, Failure> {
        let failed = |why: CutError| Failure::new(self.verb, why);
        let dir = &self.first()?.dir;
        Cut::remove_stale(dir);
        gather(&self.engines(), &self.placement, (dir, scratch_reserve(dir)), progress)
            .map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use kestrel_client::descriptor::Durability;
    use kestrel_client::volume::{NewVolume, Token, form, join};
    use kestrel_engine::{BatchKind, Mutation};
    use kestrel_types::key::{Key, Table};
    use kestrel_types::placement::SlotMap;

    use super::*;

    /// Two nodes of a cluster that a third has left, and one that was announced: their directories.
    fn cluster(place: &Path) -> [String; 4] {
        let dirs = [1, 2, 3, 4]
            .map(|node| place.join(format!("node{node}")).to_str().unwrap().to_string());
        let new = NewVolume::plain("shared", Durability::Commit);
        let addresses = [1, 2, 3].map(|node| format!("127.0.0.1:{node}"));
        let options = StoreOptions::default();
        let token = Token::of(&form(&dirs[0], new, &addresses, None, &options).unwrap()).unwrap();
        for node in [2, 3] {
            join(&dirs[node as usize - 1], &token, node, &options).unwrap();
        }
        let formed = token.placement().unwrap();
        let owner = |slot| formed.map.owner(slot).id % 2 + 1;
        let map = SlotMap::new(formed.map.members().to_vec(), owner).unwrap();
        let drained = PlacementMap { map, ..formed.clone() };
        let table = drained.with_leaving(3).unwrap().without(3, 1).unwrap();
        for dir in &dirs[..3] {
            let part =
                Volume::open_part(Path::new(dir), "a test", &of_verb(StoreOptions::default()))
                    .unwrap();
            let key = Key::new(Table::System, 0, b"table");
            let row = Mutation { key, value: Some(table.encode().into()) };
            part.engine.commit(BatchKind::Growing, vec![row]).unwrap();
            part.engine.sync().unwrap();
        }
        let fourth = Member { id: 4, address: "127.0.0.1:4".into() };
        let token = token.joining(&table, fourth, false, [16, 1]).unwrap();
        join(&dirs[3], &token, 4, &options).unwrap();
        dirs
    }

    /// The command refuses the directory of a node that has left, and of a node that is not in the
    /// cluster.
    #[test]
    fn directories_of_former_and_future_nodes() {
        let place = tempfile::tempdir().unwrap();
        let dirs_of = cluster(place.path());
        let store = StoreArgs {
            credentials: None,
            key_file: None,
            max_uploads: 1,
            max_downloads: 1,
            upload_limit: 0,
            download_limit: 0,
        };
        for (named, expected) in [
            (&[1, 2][..], None),
            (
                &[1, 2, 3],
                Some("node 3 has left the cluster: leave its directory out; it can be deleted"),
            ),
            (&[3], Some("node 3 has left the cluster")),
            (&[3, 2], Some("node 3 has left the cluster")),
            (&[1, 2, 4], Some("node 4 is not one of the cluster's nodes")),
            (&[1], Some("missing are 2")),
        ] {
            let [volume, others @ ..] = named else { panic!("no directory") };
            let volume = &dirs_of[volume - 1];
            let others: Vec<String> = others.iter().map(|node| dirs_of[node - 1].clone()).collect();
            let opened =
                AtRest::open("fsck", volume, &others, &store).map(|nodes| nodes.parts.len());
            let found = dirs("config", volume, &others, [None, None]).map(|dirs| dirs.len());
            for result in [opened, found] {
                match (result, expected) {
                    (Ok(nodes), None) => assert_eq!(nodes, named.len()),
                    (Err(why), Some(expected)) => {
                        assert!(why.to_string().contains(expected), "{why}")
                    }
                    (result, _) => panic!("{named:?}: {result:?}"),
                }
            }
        }
    }
}
