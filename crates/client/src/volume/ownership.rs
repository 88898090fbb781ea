//! Which directory serves the rows of a node if other machines reach its store, and the directories
//! from which a machine serves nodes in the place of others.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use kestrel_cluster::ownership::{self, HOLDER_BYTES_MAX, Ownership, ownership_key};
use kestrel_engine::Engine;
use kestrel_types::error::FsError;
use kestrel_types::placement::{NodeId, PlacementMap};

use super::{MountedVolume, Volume};
use crate::descriptor::{ClusterSection, Descriptor, RowsAt};
use crate::error::VolumeError;
use crate::keys;
use crate::storage::StoreOptions;
use kestrel_types::hex::to_hex;

/// Within a node's directory: those of the nodes that its machine serves in the place of others.
const NODES_DIR: &str = "nodes";

/// What tells this machine from others, if it has it.
const MACHINE_ID: &str = "/etc/machine-id";

impl Volume {
    /// The word by which other nodes know this one: of rows that any directory can serve their own,
    /// else the directory's.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn node_uuid(&self, section: &ClusterSection) -> Result<u64, VolumeError> {
        if !self.engine.is_shared() {
            return section.node_uuid();
        }
        match ownership::node_uuid(&*self.engine).map_err(|why| self.failed(why))? {
            Some(node_uuid) => Ok(node_uuid),
            None => Err(VolumeError::Invalid(format!(
                "{}: its rows have no word by which other nodes know it; form the cluster anew, \
                 from a dump",
                self.dir.display()
            ))),
        }
    }

    /// Puts on record that this directory serves the rows now. Whether no earlier start of the node
    /// can be running ([`kestrel_cluster::ownership`]).
    pub(super) fn take_ownership(&self, by_force: bool) -> Result<bool, VolumeError> {
        if !self.engine.is_shared() {
            return Ok(true);
        }
        let taken = || {
            let last = Ownership::read(&*self.engine)?;
            let holder = uuid_of(&self.dir)?;
            // A process that ended the session of another knows nothing of that other process,
            // whatever is on record: it may be a copy.
            let settled = !by_force && Ownership::is_exclusive(last.as_ref(), &holder);
            Ownership { holder: Some(holder), settled }.write(&*self.engine)?;
            Ok(settled)
        };
        taken().map_err(|why| self.failed(why))
    }

    fn failed(&self, why: FsError) -> VolumeError {
        VolumeError::engine_at(&self.dir, why)
    }
}

/// The word of a directory, which no copy of it has: where it lies, on which machine.
fn uuid_of(dir: &Path) -> Result<Box<[u8]>, FsError> {
    let failed =
        |why: std::io::Error| FsError::because(libc::EIO, format!("{}: {why}", dir.display()));
    let inode = fs::metadata(dir).map_err(failed)?.ino();
    let node_uuid = match Descriptor::read(dir) {
        Ok(Descriptor {
            cluster: Some(ClusterSection { node_uuid: Some(node_uuid), .. }), ..
        }) => node_uuid,
        _ => String::new(),
    };
    let machine = fs::read_to_string(MACHINE_ID).unwrap_or_default();
    let mut word = format!("{node_uuid} {inode} {}", machine.trim()).into_bytes();
    word.truncate(HOLDER_BYTES_MAX);
    Ok(word.into())
}

impl MountedVolume {
    /// Of a node: it has a lease now, so no start before it can answer anybody any more. Nothing
    /// happens if that is on record, or if no other machine reaches the rows.
    ///
    /// # Errors
    /// The engine's.
    pub fn settle_ownership(&self) -> Result<(), FsError> {
        self.change_ownership(|ownership| ownership.settled = true)
    }

    /// Of a node that answers nothing any more: the next process that serves it need not wait for
    /// this one.
    ///
    /// # Errors
    /// The engine's.
    pub fn leave_ownership(&self) -> Result<(), FsError> {
        self.change_ownership(|ownership| ownership.holder = None)
    }

    fn change_ownership(&self, change: impl Fn(&mut Ownership)) -> Result<(), FsError> {
        let Some(host) = self.fs.member().filter(|_| self.volume.engine.is_shared()) else {
            return Ok(());
        };
        // In the member's epoch, which is newer than that of the opening.
        let engine: &dyn Engine = &**host.node().engine();
        let Some(mut ownership) = Ownership::read(engine)? else { return Ok(()) };
        let before = ownership.clone();
        change(&mut ownership);
        if ownership == before { Ok(()) } else { ownership.write(engine) }
    }
}

/// The process that has the rows of a node open, one that only coordinates (`idle`) or not, in
/// words, as the store says that other machines reach too; none if no process has. `credentials`: a
/// file with those of a bucket.
///
/// # Errors
/// In words, if there is no such store, or it does not answer.
pub fn holder_of(
    descriptor: &Descriptor,
    (node, idle): (NodeId, bool),
    credentials: Option<&Path>,
) -> Result<Option<String>, String> {
    let rows = descriptor.rows_of(idle).map_err(|why| why.to_string())?;
    match rows.with_credentials(credentials) {
        RowsAt::Postgres(place) => kestrel_postgres::holder(&place, node),
        RowsAt::Etcd(place) => kestrel_etcd::holder(&place, node),
        RowsAt::Bucket(place) => kestrel_bucket::holder(&place, node),
        RowsAt::Directory => Err(NOT_SHARED.into()),
    }
}

/// Whether the last process that served a node has ended as it was told to.
///
/// # Errors
/// As for [`holder_of`], if the record of that is damaged, and without the key of metadata that is
/// encrypted.
pub fn has_left(
    descriptor: &Descriptor,
    (node, idle): (NodeId, bool),
    options: &StoreOptions,
) -> Result<bool, String> {
    let key = ownership_key();
    let rows = descriptor.rows_of(idle).map_err(|why| why.to_string())?;
    let rows = rows.with_credentials(options.credentials.as_deref());
    let rows = keys::with_keys(rows, descriptor, options.key_file.as_deref());
    let row = match rows.map_err(|why| why.to_string())? {
        RowsAt::Postgres(place) => kestrel_postgres::peek(&place, node, key.borrow())?,
        RowsAt::Etcd(place) => kestrel_etcd::peek(&place, node, key.borrow())?,
        RowsAt::Bucket(place) => kestrel_bucket::peek(&place, node, key.borrow())?,
        RowsAt::Directory => return Err(NOT_SHARED.into()),
    };
    let ownership =
        row.as_deref().map(Ownership::decode).transpose().map_err(|why| why.to_string())?;
    Ok(ownership.is_none_or(|ownership| ownership.holder.is_none()))
}

const NOT_SHARED: &str = "the metadata of the node lies in its own directory";

/// Makes, in the directory of another node of the cluster, the one from which its machine serves
/// `node`, or finds it. `placement` is the cluster's present table; that of the directory if none
/// is given.
///
/// # Errors
/// If that node's rows cannot be served from here, in words.
pub fn stand_in(
    dir: &Path,
    node: NodeId,
    placement: Option<&PlacementMap>,
) -> Result<PathBuf, VolumeError> {
    let refused = |why: String| VolumeError::Invalid(format!("{}: {why}", dir.display()));
    let descriptor = Descriptor::read(dir)?;
    let Some(section) = descriptor.cluster.clone() else {
        return Err(refused(
            "it has its volume to itself; only a node of a cluster stands in for others".into(),
        ));
    };
    let placement = placement.cloned().map_or_else(|| section.placement(), Ok)?;
    if node == section.node {
        return Err(refused(format!(
            "this is the directory of node {node} itself; serve it as it is"
        )));
    }
    if placement.map.member(node).is_none() {
        return Err(refused(format!("the cluster has no node {node}")));
    }
    if !descriptor.is_shared(placement.is_idle(node))? {
        return Err(refused(format!(
            "the metadata of node {node} lies in that node's directory, which no other machine can \
             serve; of a cluster with its metadata in PostgreSQL or a bucket any can"
        )));
    }
    let place = dir.join(NODES_DIR).join(node.to_string());
    let make = fs::DirBuilder::new().recursive(true).mode(0o700).create(&place);
    make.map_err(|error| VolumeError::io("create", &place, error))?;
    let stands = ClusterSection {
        node,
        placement: to_hex(&placement.encode()),
        joining: false,
        counters: None,
        ..section
    };
    // A directory keeps its word: by it the next start knows that this was the last one.
    let stands = match Descriptor::read(&place) {
        Ok(Descriptor { cluster: Some(ClusterSection { node_uuid, .. }), .. }) => {
            ClusterSection { node_uuid, ..stands }
        }
        _ => stands.born()?,
    };
    descriptor.in_cluster(stands)?.write(&place)?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Durability;
    use crate::volume::{NewVolume, form};

    /// A node with rows in its directory is served from no other directory.
    #[test]
    fn no_stand_in_for_rows_in_a_directory() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("one");
        let addresses = ["127.0.0.1:9441".to_string(), "127.0.0.1:9442".to_string()];
        let new = NewVolume::plain("shared", Durability::Commit);
        form(dir.to_str().unwrap(), new, &addresses, None, &StoreOptions::default()).unwrap();
        for (node, why) in
            [(1, "node 1 itself"), (2, "lies in that node's directory"), (3, "no node 3")]
        {
            let told = stand_in(&dir, node, None).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        }
        assert!(!dir.join(NODES_DIR).exists());
    }

    /// A directory that stands in for another node has an identity of its own and keeps it.
    #[test]
    fn uuid_of_stand_in_directory() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("one");
        let addresses = ["127.0.0.1:9441".to_string(), "127.0.0.1:9442".to_string()];
        let new = NewVolume::plain("shared", Durability::Commit);
        let first =
            form(dir.to_str().unwrap(), new, &addresses, None, &StoreOptions::default()).unwrap();
        // As if its metadata were in a database: nothing is asked of that here.
        let url = "postgres://kestrel@127.0.0.1:1/x";
        first.with_metadata(Some(url.into())).unwrap().write(&dir).unwrap();
        let made = stand_in(&dir, 2, None).unwrap();
        assert_eq!(made, dir.join("nodes/2"));
        let mode = fs::metadata(&made).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o700);
        let read = || Descriptor::read(&made).unwrap().cluster.unwrap();
        let [own, stands] = [Descriptor::read(&dir).unwrap().cluster.unwrap(), read()];
        assert_eq!((stands.node, stands.secret().unwrap()), (2, own.secret().unwrap()));
        assert_ne!(stands.node_uuid().unwrap(), own.node_uuid().unwrap());
        let word = uuid_of(&made).unwrap();
        stand_in(&dir, 2, None).unwrap();
        assert_eq!((read(), uuid_of(&made).unwrap()), (stands, word.clone()));
        assert_ne!(uuid_of(&dir).unwrap(), word);
    }
}
