//! A volume that a server serves: metadata across the network, file data straight from and to the
//! block store.
//!
//! | file | |
//! | --- | --- |
//! | `contact` | how long the first contact to a server is waited for |
//! | `access` | the token that this process shows to servers |
//! | `metadata` | [`RemoteMetadata`]: the metadata of a volume that servers serve |
//! | `calls` | each call to the node that leads it, and its answer back |
//! | `nodes` | a connection to each metadata node of the volume |
//! | `addresses` | the present addresses of nodes: asked for when a connection is lost |
//! | `node_query` | what one node is asked: its placement map, and where other nodes are |
//! | `routes` | which of several nodes is asked |
//! | `pending` | calls without an answer: which answers lead to another attempt |
//! | `redirects` | calls that went to a node that does not lead them, while they wait |
//! | `map_refresher` | the thread that fetches newer placement maps and sends redirected calls on |
//! | `opens` | what a client has open at its servers, as their answers say |
//! | `reclaimable` | what is open, locked and being written, kept for a reclaim |
//! | `durable` | bytes are durable before the metadata that names them is sent |
//! | `leaving` | nodes that leave the cluster: what the client holds there moves |
//! | `fan_out` | questions to the nodes of a volume, over connections that stay |
//! | `query` | questions to servers about a volume, without opening it |
//!
//! **Outages.** Calls wait while the server does not answer, up to a deadline, and fail with `EIO`
//! then; what comes later waits again. Nothing has to be mounted anew: the connection comes back by
//! itself, and what is open goes on. One line in the log tells that an outage began, one that it is
//! over.
//!
//! **What the server may forget.** A restarted server is told what is open, locked and being
//! written before anything else (`reclaimable`). A client that was away for longer than the lease
//! has lost its locks, and files without names.
//!
//! **Order of bytes and names.** A commit is sent when the bytes it names are durable
//! (`durable`).
//!
//! **Tokens.** A server that asks for one is shown the one that this process has (`access`). A
//! client that its token confines to a subtree has that subtree's directory for the root
//! (`crate::subtree`).
//!
//! **Several nodes** may serve a volume; the first that answers tells which. A client has a session
//! with each (`nodes`), asks the node that leads a request (`routes`), and claims again from a
//! node what that one counted. An outage of one stops what it leads, and nothing else. When the
//! table changes, a node that is asked by the old one and does not lead the request says so, and is
//! not asked again before there is a newer one (`redirects`). What is held at a node that leaves
//! is had elsewhere before it goes (`leaving`).

mod access;
mod addresses;
mod calls;
mod contact;
mod durable;
mod fan_out;
mod leaving;
mod map_refresher;
mod metadata;
mod node_query;
mod nodes;
mod opens;
mod pending;
mod query;
mod reclaimable;
mod redirects;
mod routes;

use std::sync::Arc;
use std::time::Duration;

use kestrel_types::clock::{Clock, SystemClock};

pub use self::access::{TOKEN_FILE_ENV, be_node, read_from as read_token_from, token, with_token};
pub use self::contact::{CONTACT_DEFAULT, tell_waiting, wait_for_contact};
pub use self::fan_out::{NodeFanOut, Reached, SingleNode};
pub use self::metadata::{MOVED_OUT, RemoteMetadata};
pub use self::node_query::table_in_parts;
pub use self::nodes::NodeLink;
pub(crate) use self::query::volume_at;
pub use self::query::{NodeAnswer, ask, ask_each};
pub use crate::answering::is_answering;
pub use crate::url::{ADDRESSES_MAX, Ca, PORT_DEFAULT, RemoteUrl, SCHEME, address};

use self::durable::SyncFirst;
use self::nodes::{FirstConnection, NodeConnections};
use self::reclaimable::Reclaimable;
use crate::descriptor::{Descriptor, Durability};
use crate::error::VolumeError;
use crate::fs::Fs;
use crate::handover::SessionNote;
use crate::storage::Storage;
use crate::volume::Resources;
use crate::volume::assembly::Assembly;

/// How long a call waits for a server that does not answer, unless another time is given.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(60);

/// How a client presents itself to a server.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// For people who look at the server: host, process, mount point.
    pub who: String,
    /// How long a call waits for a server that does not answer.
    pub deadline: Duration,
    /// Nothing will be changed.
    pub read_only: bool,
}

impl Introduction {
    /// Of a program of this name that only reads, with the default deadline.
    pub fn of_reader(name: &str) -> Self {
        Self { who: name.to_string(), deadline: DEADLINE_DEFAULT, read_only: true }
    }
}

/// A volume in use through its server.
pub struct RemoteVolume {
    /// Where it is served.
    pub url: RemoteUrl,
    /// What it is.
    pub descriptor: Descriptor,
    /// Where its data is.
    pub storage: Arc<Storage>,
    /// The way to its metadata, which the file system uses.
    pub metadata: Arc<RemoteMetadata>,
    /// The file system. Call [`Fs::shutdown`] before dropping it.
    pub fs: Arc<Fs>,
}

impl RemoteVolume {
    /// Connects to a server that `url` names, learns from it what the volume is, connects to the
    /// other nodes if there are several, opens the block store, and starts a file system. Waits for
    /// a server that nobody reaches as long as [`wait_for_contact`] says, and for the other nodes
    /// of its volume as long; goes on without them if most of the nodes answer. Starts threads: a
    /// process that goes to the background does so before.
    ///
    /// # Errors
    /// If no server answers, none serves this volume, half of several nodes or more cannot be had,
    /// or the volume's store cannot be used from here; the text says which and what to do.
    pub fn open(url: &str, how: &Introduction, resources: &Resources) -> Result<Self, VolumeError> {
        Self::resume(url, how, resources, &[])
    }

    /// The same, going on with the sessions that another process had with the nodes of the volume,
    /// and left ([`Fs::leave`]).
    ///
    /// # Errors
    /// As for [`RemoteVolume::open`], and if a session has ended.
    pub fn resume(
        url: &str,
        how: &Introduction,
        resources: &Resources,
        sessions: &[SessionNote],
    ) -> Result<Self, VolumeError> {
        let url = RemoteUrl::parse(url)?;
        let server = url.to_string();
        let reclaimable = Arc::new(Reclaimable::new(server.clone()));
        sessions.iter().for_each(|note| reclaimable.opens.take(note.node, &note.opens));
        let first = FirstConnection::connect(&url, how, &reclaimable, sessions)?;
        let opened = first.offer.descriptor(&server).and_then(|descriptor| {
            let storage = Storage::open_offered(&first.offer, &server, &resources.store)?;
            Ok((descriptor, Arc::new(storage)))
        });
        let (descriptor, storage) = opened.inspect_err(|_| first.close())?;
        let metadata =
            Arc::new(RemoteMetadata::new(NodeConnections::connect(first)?, reclaimable.clone())?);
        if storage.needs_sync() {
            metadata.sync_first(SyncFirst::new(storage.store.clone())?);
        }
        if descriptor.settings.durability == Durability::Fsync {
            metadata.sync_all_nodes();
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let plan = Assembly {
            metadata: metadata.clone(),
            numbers: reclaimable.numbers.clone(),
            clock,
            read_only: how.read_only,
        };
        let fs = plan.assemble(&descriptor, storage.store.clone(), resources)?;
        reclaimable.belongs_to(&fs);
        Ok(Self { url, descriptor, storage, metadata, fs })
    }
}
