//! What a server has behind it: a node that has a volume to itself, or a member of a cluster.

use std::sync::{Arc, Weak};

use kestrel_cluster::host::NodeHost;
use kestrel_meta::node::{Node, ReplySink};
use kestrel_meta::owners::Owners;
use kestrel_meta::txn::Origin;
use kestrel_meta::view::decode_dir_id;
use kestrel_types::entry::Entry;
use kestrel_types::ids::InodeId;
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::name::Name;
use kestrel_types::request::{Done, Request};
use kestrel_types::wire::ReclaimOpen;

use crate::granted::{Place, Tree};

/// Version of the placement map of a node that has a volume to itself.
const STANDALONE_VERSION: u64 = 1;

/// A request of the server's own.
pub(crate) type Submission = (Request, Done);

/// See the module's header.
#[derive(Clone)]
pub enum Backend {
    /// A node that has a volume to itself.
    Standalone(Arc<Node>),
    /// A member of a cluster. It refuses requests that another one leads.
    Member(Arc<NodeHost>),
}

impl From<Arc<Node>> for Backend {
    fn from(node: Arc<Node>) -> Self {
        Self::Standalone(node)
    }
}

impl From<Arc<NodeHost>> for Backend {
    fn from(host: Arc<NodeHost>) -> Self {
        Self::Member(host)
    }
}

impl Backend {
    /// The node: sessions, what they hold and claim are its own matter, cluster or not.
    pub fn node(&self) -> &Arc<Node> {
        match self {
            Self::Standalone(node) => node,
            Self::Member(host) => host.node(),
        }
    }

    /// Version of the present placement map.
    pub fn map_version(&self) -> u64 {
        version(self.node())
    }

    /// Whether it is a node that has left its cluster: it serves no client.
    pub fn has_left(&self) -> bool {
        self.node().cluster().is_some_and(|cluster| cluster.table().has_left())
    }

    /// Whether it may say anything at this moment that clients rely on: it does not if another
    /// process may serve in its place by now ([`NodeHost::may_answer`]).
    pub fn may_answer(&self) -> bool {
        may_answer(self.node())
    }

    /// The present map, for callers that must not keep the node open.
    pub(crate) fn current_map(&self) -> CurrentMap {
        CurrentMap(Arc::downgrade(self.node()))
    }

    /// Executes requests of a session; `sink` gets each reply with the request's index.
    pub(crate) fn submit_batch(
        &self,
        requests: Vec<(Request, Option<Origin>)>,
        sink: &Arc<impl ReplySink + 'static>,
    ) {
        match self {
            Self::Standalone(node) => node.submit_batch(requests, sink),
            Self::Member(host) => host.submit_batch(requests, sink),
        }
    }

    /// A client claims opens that it had ([`Node::reclaim_open`]).
    pub(crate) fn reclaim_open(&self, open: ReclaimOpen, done: Done) {
        let ReclaimOpen { file, count, linkable } = open;
        match self {
            Self::Standalone(node) => node.reclaim_open(file, count, linkable, done),
            Self::Member(host) => host.reclaim_open(file, count, linkable, done),
        }
    }

    /// Executes requests of the server's own.
    pub(crate) fn submit_own(&self, requests: Vec<Submission>) {
        match self {
            Self::Standalone(node) => node.submit_many(requests),
            Self::Member(host) => {
                requests.into_iter().for_each(|(request, done)| host.submit(request, done))
            }
        }
    }
}

impl Tree for Backend {
    #[inline]
    fn changes(&self) -> Option<u64> {
        self.node().dir_changes()
    }

    fn above(&self, dir: InodeId) -> Option<InodeId> {
        self.node().dir_above(dir)
    }

    fn is_named(&self, file: InodeId, dir: InodeId, name: &Name) -> bool {
        // Of a cluster a row may be another node's by now, or a transaction that has been decided
        // may not have come to it yet.
        let Self::Standalone(node) = self else { return false };
        let mut named = false;
        let key = KeyRef::new(Table::Entry, dir, name.as_bytes());
        let read = node.engine().get_many(&[key], &mut |_, row| {
            let entry = row.value.and_then(|row| Entry::peek(row).ok());
            named = entry.is_some_and(|(ino, _)| ino == file);
        });
        read.is_ok() && named
    }

    fn moved_to(&self, file: InodeId) -> Option<Place> {
        if let Self::Standalone(node) = self {
            let (dir, name) = node.core().moved.get(file)?;
            return Some((dir, Name::new(&name).ok()?));
        }
        let mut place = None;
        let key = KeyRef::new(Table::Moved, file, b"");
        let read = self.node().engine().get_many(&[key], &mut |_, row| {
            let read = row.value.and_then(|row| decode_dir_id(row).ok());
            place = read.and_then(|(dir, name)| Some((dir, Name::new(name).ok()?)));
        });
        read.ok().and(place)
    }
}

fn version(node: &Node) -> u64 {
    node.cluster().map_or(STANDALONE_VERSION, Owners::version)
}

fn may_answer(node: &Node) -> bool {
    node.cluster().is_none_or(Owners::may_answer)
}

/// The placement map, as it is whenever it is looked at.
#[derive(Clone)]
pub(crate) struct CurrentMap(Weak<Node>);

impl CurrentMap {
    /// Its version.
    pub fn version(&self) -> u64 {
        self.0.upgrade().map_or(STANDALONE_VERSION, |node| version(&node))
    }

    /// As [`Backend::may_answer`].
    pub fn may_answer(&self) -> bool {
        self.0.upgrade().is_some_and(|node| may_answer(&node))
    }

    /// Whether the node keeps the locks of a file: it is its home, and no other one becomes that
    /// just now.
    pub fn keeps_locks_of(&self, ino: InodeId) -> bool {
        let Some(node) = self.0.upgrade() else { return true };
        node.cluster().is_none_or(|cluster| {
            let table = cluster.table();
            table.home_of(ino) == cluster.me && !table.is_leaving_home(ino)
        })
    }
}
