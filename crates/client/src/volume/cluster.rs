//! Making a volume that several nodes share: the first node with the volume, then each other node
//! with a token.

use std::path::Path;

use kestrel_types::placement::slot_map::SlotMapError;
use kestrel_types::placement::{Exceptions, Member, NodeId, PlacementMap, SlotMap};

use super::format::{clear, format_as, make, occupy};
use super::token::Token;
use super::{NewVolume, engine};
use crate::descriptor::{ClusterSection, Descriptor, RowsAt, directory_of};
use crate::error::VolumeError;
use crate::storage::{self, OBJECTS_DIR, StoreOptions};

/// Number of the node that makes the volume.
const FIRST_NODE: NodeId = 1;

/// Creates a volume that nodes at these addresses (`host:port`) share, and makes the directory the
/// first one's. They are numbered from 1 in their order and own equally many slots. With an address
/// for it one more node, which gets the last number, only coordinates; where its metadata goes
/// `new.registry` says.
///
/// # Errors
/// As for [`super::format`], and if the addresses make no cluster.
pub fn form(
    url: &str,
    mut new: NewVolume,
    addresses: &[String],
    coordinator: Option<&str>,
    options: &StoreOptions,
) -> Result<Descriptor, VolumeError> {
    let members =
        (FIRST_NODE..).zip(addresses).map(|(id, address)| Member { id, address: address.clone() });
    let invalid = |why: SlotMapError| VolumeError::Invalid(why.to_string());
    let map = SlotMap::even(members.collect()).map_err(invalid)?;
    let mut placement = PlacementMap::new(map, Exceptions::default());
    if let (Some(address), Some(last)) =
        (coordinator, placement.map.members().last().map(|last| last.id))
    {
        let member = Member { id: last + 1, address: address.into() };
        placement = placement.with_member(member, true).map_err(invalid)?;
        placement.coordinator = last + 1;
    }
    if new.registry.is_some() && coordinator.is_none() {
        return Err(VolumeError::Invalid(
            "a registry keeps what a node has that only coordinates; name the address of one"
                .into(),
        ));
    }
    let leads = placement.coordinator;
    let section = ClusterSection::new(FIRST_NODE, &placement)?;
    if new.settings.storage.is_none() {
        new.settings.storage = Some(shared_objects(&directory_of(url)?)?);
    }
    format_as(url, new, options, &|dir, descriptor| {
        let objects_word = storage::mark_objects(dir, &descriptor, options)?;
        engine::create_registry(&descriptor, leads)?;
        descriptor.in_cluster(ClusterSection { objects_word, ..section.clone() }.born()?)
    })
}

/// The directory of objects within the first node's, as the other nodes find it.
fn shared_objects(dir: &Path) -> Result<String, VolumeError> {
    let objects = std::path::absolute(dir)
        .map_err(|error| VolumeError::io("find", dir, error))?
        .join(OBJECTS_DIR);
    match objects.to_str() {
        Some(path) => Ok(format!("file://{path}")),
        None => Err(VolumeError::Invalid(format!(
            "{}: not UTF-8, so that other nodes cannot be told where the objects are; give \
             --storage",
            dir.display()
        ))),
    }
}

/// Makes an empty or missing directory that of another node of the token's cluster.
///
/// # Errors
/// If the node is not one that can join, and as for [`super::format`].
pub fn join(
    url: &str,
    token: &Token,
    node: NodeId,
    options: &StoreOptions,
) -> Result<Descriptor, VolumeError> {
    let descriptor = token.of_new_node(node)?;
    // Where metadata is elsewhere it may have lost its directory, as any other.
    if node == FIRST_NODE && matches!(descriptor.rows()?, RowsAt::Directory) {
        return Err(VolumeError::Invalid(format!(
            "node {FIRST_NODE} is the one that formed the cluster; the others join it"
        )));
    }
    let dir = directory_of(url)?;
    if let Ok(Descriptor { cluster: Some(section), settings, .. }) = Descriptor::read(&dir) {
        return Err(VolumeError::Invalid(format!(
            "{0}: node {1} of volume {2:?} already; serve it with `kestrel serve {0}`",
            dir.display(),
            section.node,
            settings.name
        )));
    }
    // Also from here must the objects be reached: before anything is made.
    storage::check_reached(&dir, &descriptor, options)?;
    let (lock, _) = occupy(&dir, false)?;
    let made = make(&dir, &descriptor, true, options);
    if made.is_err() {
        clear(&dir);
    }
    drop(lock);
    made.map(|()| descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Durability;
    use crate::volume::{Resources, Volume};
    use kestrel_meta::ids::{decode_counter, system_key};

    fn new_volume() -> NewVolume {
        NewVolume::plain("shared", Durability::Commit)
    }

    fn addresses(count: u16) -> Vec<String> {
        (1..=count).map(|node| format!("127.0.0.1:{}", 9440 + node)).collect()
    }

    fn url(dir: &Path) -> String {
        dir.to_str().unwrap().to_string()
    }

    /// The descriptors of the nodes of one cluster differ only in number and UUID.
    #[test]
    fn descriptors_of_one_cluster() {
        let place = tempfile::tempdir().unwrap();
        let (one, two) = (url(&place.path().join("one")), url(&place.path().join("two")));
        let options = StoreOptions::default();
        let first = form(&one, new_volume(), &addresses(3), None, &options).unwrap();
        let token = Token::of(&first).unwrap();
        let token = Token::parse(&token.to_string()).unwrap();
        let second = join(&two, &token, 2, &options).unwrap();
        assert_eq!((second.uuid.as_str(), second.created), (first.uuid.as_str(), first.created));
        let [first, second] = [first, second].map(|descriptor| descriptor.cluster.unwrap());
        assert_eq!((first.node, second.node), (1, 2));
        let born = |section: &ClusterSection| section.node_uuid().unwrap();
        assert_ne!(born(&first), born(&second));
        let three =
            join(&url(&place.path().join("three")), &token, 2, &options).unwrap().cluster.unwrap();
        assert_ne!(born(&three), born(&second), "a directory that is made anew is another one");
        assert_eq!(ClusterSection { node: 1, ..second.unborn() }, first.unborn());
        assert_eq!(Descriptor::read(Path::new(&two)).unwrap().cluster.unwrap().node, 2);
        // There it is now, and nobody formats it away.
        let why = join(&two, &token, 2, &options).unwrap_err().to_string();
        assert!(why.contains("node 2 of volume \"shared\" already"), "{why}");
        let full = place.path().join("full");
        std::fs::create_dir(&full).unwrap();
        std::fs::write(full.join("file"), "").unwrap();
        assert!(matches!(join(&url(&full), &token, 3, &options), Err(VolumeError::NotEmpty(_))));
        let again = NewVolume { force: true, ..new_volume() };
        let why = super::super::format(&two, again, &options).unwrap_err().to_string();
        assert!(why.contains("node 2 of a cluster"), "{why}");
    }

    /// The counters of a node that is added begin where its token says.
    #[test]
    fn first_counters_of_added_node() {
        let place = tempfile::tempdir().unwrap();
        let (one, three) = (url(&place.path().join("one")), url(&place.path().join("three")));
        let options = StoreOptions::default();
        let token =
            Token::of(&form(&one, new_volume(), &addresses(2), None, &options).unwrap()).unwrap();
        let table = token.placement().unwrap();
        let third = Member { id: 3, address: "10.0.0.3:9440".into() };
        assert!(token.joining(&table, third.clone(), false, [1 << 39, 1]).is_err());
        let joining = token.joining(&table, third, false, [5_000, 70_000]).unwrap();
        let joining = Token::parse(&joining.to_string()).unwrap();
        let made = join(&three, &joining, 3, &options).unwrap();
        assert_eq!(Descriptor::read(Path::new(&three)).unwrap(), made);
        let volume = Volume::open_part(Path::new(&three), "a test", &Resources::default()).unwrap();
        for (name, expected) in [("inodes", 5_000), ("objects", 70_000)] {
            let mut found = None;
            let scanned = volume.engine.get_many(&[system_key(name)], &mut |_, row| {
                found = row.value.and_then(|value| decode_counter(value).ok());
            });
            scanned.unwrap();
            assert_eq!(found, Some(expected), "{name}");
        }
    }

    #[test]
    fn who_cannot_join_is_told_why_and_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let (one, two) = (place.path().join("one"), place.path().join("two"));
        let options = StoreOptions::default();
        let token =
            Token::of(&form(&url(&one), new_volume(), &addresses(2), None, &options).unwrap())
                .unwrap();
        for (node, why) in [(1, "formed the cluster"), (3, "node 3"), (0, "node 0")] {
            let error = join(&url(&two), &token, node, &options).unwrap_err().to_string();
            assert!(error.contains(why) && !two.exists(), "{error}");
        }
        std::fs::rename(&one, place.path().join("elsewhere")).unwrap();
        let error = join(&url(&two), &token, 2, &options).unwrap_err().to_string();
        assert!(error.contains("not reached from here") && !two.exists(), "{error}");
        for bad in [&[][..], &["x".to_string(), String::new()]] {
            assert!(form(&url(&two), new_volume(), bad, None, &options).is_err());
        }
    }
}
