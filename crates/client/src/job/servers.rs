//! Jobs that several servers share: the nodes of a cluster above the rows of the job's inputs.
//!
//! Which server owns which row never changes as long as the job is served, so each sees those rows
//! of the inputs that it owns, whatever else happens ([`OwnsRow`]). Rows that the inputs have of
//! directories' figures bear the number 0, which no server has: it is that of a node that has left
//! the cluster, and the first server is its heir.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kestrel_bucket::BucketOptions;
use kestrel_bucket::version::{JobRecord, JobServers, NUMBERS_END, OwnsRow};
use kestrel_cluster::ownership;
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::node::Node;
use kestrel_types::codec::Reader;
use kestrel_types::hex::to_hex;
use kestrel_types::ids::{FIRST_OBJECT, InodeId};
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::{
    Exceptions, Member, NodeId, PlacementMap, SlotMap, counter_above, id_in,
};

use super::{BATCH_ROWS, Jobs, damaged, engine, node};
use crate::descriptor::{ClusterSection, Descriptor, FILE_NAME, random};
use crate::error::VolumeError;
use crate::state_dir::job_dir;
use crate::volume::job::{owned_by, placement_of};

/// Most servers of a job: as many addresses as a URL may have.
pub const SERVERS_MAX: usize = crate::url::ADDRESSES_MAX;

/// Number of the first server, which has the figures of directories that the inputs have.
const FIRST_SERVER: NodeId = 1;

/// The number in shares of directories that versions have.
const SHARES_OF_VERSIONS: NodeId = 0;

/// Counters of inodes that a new job has at least for each of its servers.
const COUNTERS_MIN: u64 = 1 << 32;

/// A server of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobServer {
    /// Its number, from 1 on.
    pub number: NodeId,
    /// Where it was last, `host:port`.
    pub address: String,
    /// The process that has its rows open, in words, if there is one.
    pub open_by: Option<String>,
}

fn invalid(why: impl std::fmt::Display) -> VolumeError {
    VolumeError::Invalid(why.to_string())
}

/// Fails unless a job may have servers at these addresses.
///
/// # Errors
/// If there are too many, or one is there twice.
pub(super) fn check_addresses(addresses: &[String]) -> Result<(), VolumeError> {
    if addresses.len() > SERVERS_MAX {
        return Err(invalid(format!(
            "{} servers: a job has at most {SERVERS_MAX}",
            addresses.len()
        )));
    }
    let twice = addresses.iter().enumerate().find(|(at, one)| addresses[..*at].contains(one));
    match twice {
        Some((_, address)) => {
            Err(invalid(format!("{address}: two servers cannot have one address")))
        }
        None => Ok(()),
    }
}

/// Servers at these addresses, which share the names evenly; inodes have numbers from `first` on.
///
/// # Errors
/// If the addresses make no cluster, or there are no numbers left.
pub(super) fn new_servers(addresses: &[String], first: InodeId) -> Result<JobServers, VolumeError> {
    if id_in(counter_above(first) + COUNTERS_MIN, 0, 0) > NUMBERS_END {
        return Err(invalid(
            "not supported: several servers of a job on versions that have used up the numbers of \
             inodes; begin it with one server",
        ));
    }
    let member =
        |(number, address): (NodeId, &String)| Member { id: number, address: address.clone() };
    let members = (FIRST_SERVER..).zip(addresses).map(member).collect();
    let map = SlotMap::even(members).map_err(invalid)?;
    let mut placement = PlacementMap::new(map, Exceptions::default());
    placement.former.push((SHARES_OF_VERSIONS, FIRST_SERVER));
    let section = ClusterSection::new(FIRST_SERVER, &placement)?;
    let ClusterSection { placement, secret, workers, .. } = section;
    Ok(JobServers { placement, secret, workers })
}

/// The directory of a server on this machine, which may not be there.
///
/// # Errors
/// If nothing says where state directories lie.
pub fn server_dir(record: &JobRecord, server: NodeId) -> Result<PathBuf, VolumeError> {
    Ok(job_dir(&record.id)?.join(format!("server-{server}")))
}

/// The directories on this machine of the servers that a job has or had.
pub(super) fn directories(record: &JobRecord) -> Result<Vec<PathBuf>, VolumeError> {
    numbers(record)?.into_iter().map(|server| server_dir(record, server)).collect()
}

fn numbers(record: &JobRecord) -> Result<Vec<NodeId>, VolumeError> {
    let Some(servers) = &record.servers else { return Ok(Vec::new()) };
    Ok(placement_of(servers)?.map.members().iter().map(|member| member.id).collect())
}

/// All that may have rows of a job, each with the rows that it owns: its servers, and number 0, the
/// one that it has or that gathered rows are of.
pub(super) fn all_with_rows(
    record: &JobRecord,
) -> Result<Vec<(NodeId, Option<OwnsRow>)>, VolumeError> {
    let mut found = vec![(0, None)];
    if let Some(servers) = &record.servers {
        let placement = placement_of(servers)?;
        for server in numbers(record)? {
            found.push((server, Some(owned_by(server, &placement)?)));
        }
    }
    Ok(found)
}

impl Jobs {
    /// The servers of a job; none of one that has one server, or had several and is being
    /// published.
    ///
    /// # Errors
    /// The store's.
    pub fn servers(&self, record: &JobRecord) -> Result<Vec<JobServer>, VolumeError> {
        let Some(servers) = self.jobs.servers(record).map_err(engine)? else {
            return Ok(Vec::new());
        };
        let placement = self.placed_at_present(record, servers)?;
        let server = |member: &Member| {
            let open_by = self.jobs.server_holder(record, member.id).map_err(engine)?;
            Ok(JobServer { number: member.id, address: member.address.clone(), open_by })
        };
        placement.map.members().iter().map(server).collect()
    }

    /// The map with the servers where they were last.
    fn placed_at_present(
        &self,
        record: &JobRecord,
        servers: &JobServers,
    ) -> Result<PlacementMap, VolumeError> {
        let addresses = self.jobs.addresses(record).map_err(engine)?;
        Ok(placement_of(servers)?.at(&addresses))
    }

    /// Notes where servers of a job are going to be.
    ///
    /// # Errors
    /// The store's.
    pub fn place_servers(
        &self,
        record: &JobRecord,
        addresses: &BTreeMap<NodeId, String>,
    ) -> Result<(), VolumeError> {
        let put = |(server, address): (&NodeId, &String)| {
            self.jobs.set_address(record, *server, address).map_err(engine)
        };
        addresses.iter().try_for_each(put)
    }

    /// Makes the directory from which this machine serves a server of a job, or finds it; it knows
    /// where all servers are at present.
    ///
    /// # Errors
    /// If the job has no such server, or the directory cannot be made.
    pub fn make_server_dir(
        &self,
        record: &JobRecord,
        server: NodeId,
    ) -> Result<PathBuf, VolumeError> {
        let Some(servers) = self.jobs.servers(record).map_err(engine)? else {
            return Err(invalid(format!(
                "job {}: it has one server, or is being published",
                record.number()
            )));
        };
        let placement = self.placed_at_present(record, servers)?;
        if placement.map.member(server).is_none() {
            return Err(invalid(format!(
                "job {}: it has no server {server}; they are numbered from 1 to {}",
                record.number(),
                placement.map.members().len()
            )));
        }
        let dir = server_dir(record, server)?;
        std::fs::create_dir_all(&dir).map_err(|why| VolumeError::io("create", &dir, why))?;
        let section = ClusterSection {
            node: server,
            placement: to_hex(&placement.encode()),
            secret: servers.secret.clone(),
            workers: servers.workers,
            objects_word: self.storage.objects_word()?,
            ..ClusterSection::new(server, &placement)?
        };
        let section = match node_uuid_in(&dir) {
            // By it the next start knows that the last one was here.
            Some(node_uuid) => ClusterSection { node_uuid: Some(node_uuid), ..section },
            None => section.born()?,
        };
        let storage = self.storage.url(&self.descriptor.settings)?;
        let descriptor = self.descriptor.of_job(record.number(), &storage)?;
        descriptor.in_cluster(section)?.write(&dir)?;
        Ok(dir)
    }
}

fn node_uuid_in(dir: &Path) -> Option<String> {
    if !dir.join(FILE_NAME).exists() {
        return None;
    }
    Descriptor::read(dir).ok()?.cluster?.node_uuid
}

/// Makes the rows of the servers of a new job of those of one server, and removes those.
pub(super) fn spread(
    jobs: &Jobs,
    record: &JobRecord,
    servers: &JobServers,
) -> Result<(), VolumeError> {
    let options = BucketOptions::default();
    let one = jobs.jobs.open(record, options, Arc::new(|| Ok(()))).map_err(engine)?;
    let (clock, inodes, figures) = Node::rows_at_rest(&one).map_err(node)?;
    let placement = placement_of(servers)?;
    let links = link_bytes(&one, &placement)?;
    for member in placement.map.members() {
        let server = member.id;
        let owns = owned_by(server, &placement)?;
        jobs.jobs.create_server_rows(record, server).map_err(engine)?;
        let opened = jobs.jobs.open_server(
            record,
            (server, Some(owns.clone())),
            options,
            Arc::new(|| Ok(())),
        );
        let opened = opened.map_err(engine)?;
        let (mut batch, mut rows) = (Vec::new(), one.changes());
        while let Some((key, value)) = rows.next_row().map_err(engine)? {
            let key = KeyRef::decode(&key).ok_or_else(|| engine(damaged("its key")))?;
            if key.table == Table::System || !owns(key) {
                continue;
            }
            batch.push(Mutation { key: key.to_owned(), value: value.as_deref().map(Into::into) });
            if batch.len() == BATCH_ROWS {
                opened.commit(BatchKind::Growing, std::mem::take(&mut batch)).map_err(engine)?;
            }
        }
        let figures = figures.map(|figures| figures_of(server, figures, &links));
        let counters = (counter_above(inodes), FIRST_OBJECT);
        batch.extend(Node::records_at_rest(figures, clock, counters));
        opened.commit(BatchKind::Growing, batch).map_err(engine)?;
        ownership::bear(&opened, u64::from_be_bytes(random()?)).map_err(node)?;
        opened.settle().map_err(engine)?;
    }
    drop(one);
    jobs.jobs.remove_server_rows(record, 0).map_err(engine)
}

/// Bytes of files with several names, by the server that counts them.
fn link_bytes(
    rows: &dyn Engine,
    placement: &PlacementMap,
) -> Result<BTreeMap<NodeId, i64>, VolumeError> {
    let (mut bytes, mut why) = (BTreeMap::new(), None);
    let visited = rows.scan_table(Table::Link, None, &mut |key, row| match Inode::decode(
        &mut Reader::new(row),
    ) {
        Ok(inode) => {
            let sum: &mut i64 = bytes.entry(placement.home_of(key.id).id).or_default();
            *sum = sum.wrapping_add(inode.size.cast_signed());
            ControlFlow::Continue(())
        }
        Err(error) => {
            why = Some(damaged(error.0));
            ControlFlow::Break(())
        }
    });
    visited.and(why.map_or(Ok(()), Err)).map_err(engine)?;
    Ok(bytes)
}

/// The part of the job's figures that a server has: the first one has those of all directories that
/// the inputs have, and each those of files with several names that it owns.
fn figures_of(server: NodeId, figures: [i64; 3], links: &BTreeMap<NodeId, i64>) -> [i64; 3] {
    let own = links.get(&server).copied().unwrap_or(0);
    if server != FIRST_SERVER {
        return [0, 0, own];
    }
    let others: i64 = links.values().sum::<i64>() - own;
    [figures[0], figures[1], figures[2] - others]
}

/// The key of the share of a directory that versions have.
pub(super) fn first_share_of(dir: InodeId) -> Key {
    Key::new(Table::DirStat, dir, &kestrel_meta::rows::share_suffix(0))
}
