//! What sessions stand for: what is open, locked and being written here, kept so that it can be
//! claimed again from a server that has lost it.
//!
//! With several nodes each has its own part: the opens that it counts, the locks of files
//! that have it as their home, and the object numbers that it handed out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kestrel_rpc::client::ReclaimSource;
use kestrel_types::ids::{InodeId, ObjectId, ROOT};
use kestrel_types::name::InodeRef;
use kestrel_types::placement::{Member, NodeId, PlacementMap};
use kestrel_types::wire::{
    LockSpan, RECLAIM_ITEMS_MAX, Reclaim, ReclaimOpen, ReclaimReply, SessionState, Welcome,
};
use parking_lot::{Mutex, RwLock};

use super::opens::Opens;
use crate::fs::Fs;
use crate::object_ids::ObjectNumbers;
use crate::storage::Offer;
use crate::subtree;

/// What this client holds, of all nodes together.
pub struct Reclaimable {
    /// The volume's servers, for the log.
    server: String,
    /// Identity of the volume, and of its version if one is served, known since the first welcome.
    volume: OnceLock<String>,
    /// The directory that is the root here, known likewise.
    root: OnceLock<InodeId>,
    /// The present placement map, if there are several nodes.
    placement: RwLock<Option<Arc<PlacementMap>>>,
    /// Open files.
    pub opens: Opens,
    /// Object numbers.
    pub numbers: ObjectNumbers,
    /// The file system, which knows places and locks, once it exists. Before that nothing is held.
    fs: OnceLock<Weak<Fs>>,
    /// Ends requests that wait and name objects of a lost session.
    objects_lost: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Hears of tables.
    newer_table: OnceLock<Box<NewerMap>>,
    /// Hears of connections that are lost.
    node_lost: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A node has a table of this version.
pub type NewerMap = dyn Fn(NodeId, u64) + Send + Sync;

impl Reclaimable {
    /// Of a client that has nothing yet.
    pub fn new(server: String) -> Self {
        Self {
            server,
            volume: OnceLock::new(),
            root: OnceLock::new(),
            placement: RwLock::default(),
            opens: Opens::default(),
            numbers: ObjectNumbers::remembered(),
            fs: OnceLock::new(),
            objects_lost: OnceLock::new(),
            newer_table: OnceLock::new(),
            node_lost: OnceLock::new(),
        }
    }

    /// Sets the file system. Called once.
    pub fn belongs_to(&self, fs: &Arc<Fs>) {
        let _ = self.fs.set(Arc::downgrade(fs));
    }

    /// Tells that there are several nodes, and the placement map from now on; first before
    /// anything is held. What is locked does not move.
    pub fn is_placed_by(&self, placement: Arc<PlacementMap>) {
        self.numbers.avoid(&placement.leaving);
        *self.placement.write() = Some(placement);
    }

    fn placement(&self) -> Option<Arc<PlacementMap>> {
        self.placement.read().clone()
    }

    /// Has `tell` called when a node mentions a newer table than it did before. Once. `tell` must
    /// not wait.
    pub fn when_a_table_is_newer(&self, tell: Box<NewerMap>) {
        let _ = self.newer_table.set(tell);
    }

    /// Has `tell` called when a node does not answer any more. Once. `tell` must not wait.
    pub fn when_a_node_is_lost(&self, tell: Box<dyn Fn() + Send + Sync>) {
        let _ = self.node_lost.set(tell);
    }

    /// Has `tell` called when objects are lost that nothing refers to yet. Once. `tell` must not
    /// wait.
    pub fn when_objects_are_lost(&self, tell: Box<dyn Fn() + Send + Sync>) {
        let _ = self.objects_lost.set(tell);
    }

    /// The file system, once it exists.
    pub fn fs(&self) -> Option<Arc<Fs>> {
        self.fs.get()?.upgrade()
    }

    /// The directory that is the root here: another one than the volume's if this client is
    /// confined to a subtree.
    pub fn root(&self) -> InodeId {
        self.root.get().copied().unwrap_or(ROOT)
    }

    /// A file, and where it was seen, as nodes know it.
    pub fn last_seen(&self, ino: InodeId) -> InodeRef {
        let mut inode = self.fs().map_or(InodeRef::by_id(ino), |fs| fs.last_seen(ino));
        subtree::reference_below(self.root(), &mut inode);
        inode
    }

    /// A node that deletes objects may not know any more that this client has some to which nothing
    /// refers yet, under numbers of this node.
    pub fn lose_objects(&self, node: NodeId) {
        if !self.numbers.lose(node) {
            return;
        }
        if let Some(tell) = self.objects_lost.get() {
            tell();
        }
    }
}

/// One node's part of what is held.
pub struct NodeReclaimable {
    reclaimable: Arc<Reclaimable>,
    /// The node: 0 in a volume of one node; of the first connection known since it was welcomed.
    node: OnceLock<NodeId>,
    /// Where it is as far as is known, unless it is the first one, where the URL says.
    address: Mutex<Option<String>>,
    /// Locks of each part of the reclaim under way.
    claimed: Mutex<Vec<Vec<InodeId>>>,
    /// The node is overdue, and what that means has been done.
    overdue: AtomicBool,
    /// How often it has let this client in.
    welcomes: AtomicU64,
    /// That something else is served there has been told.
    told_other: AtomicBool,
}

impl NodeReclaimable {
    /// Of the node that will be connected to first, whichever that is.
    pub fn first(reclaimable: Arc<Reclaimable>) -> Self {
        Self {
            reclaimable,
            node: OnceLock::new(),
            address: Mutex::default(),
            claimed: Mutex::default(),
            overdue: AtomicBool::new(false),
            welcomes: AtomicU64::new(0),
            told_other: AtomicBool::new(false),
        }
    }

    /// Of another node.
    pub fn of(reclaimable: Arc<Reclaimable>, member: &Member) -> Self {
        let (node, address) = (OnceLock::from(member.id), Mutex::new(Some(member.address.clone())));
        Self {
            reclaimable,
            node,
            address,
            claimed: Mutex::default(),
            overdue: AtomicBool::new(false),
            welcomes: AtomicU64::new(0),
            told_other: AtomicBool::new(false),
        }
    }

    /// Its number.
    pub fn node(&self) -> NodeId {
        self.node.get().copied().unwrap_or(0)
    }

    /// Whether the node keeps the locks of a file.
    fn is_home_of(&self, ino: InodeId) -> bool {
        self.reclaimable
            .placement()
            .is_none_or(|placement| placement.home_of(ino).id == self.node())
    }

    /// Where it is, if it is not only known by the URL.
    pub fn address(&self) -> Option<String> {
        self.address.lock().clone()
    }

    /// It is there now.
    pub fn is_at(&self, address: &str) {
        *self.address.lock() = Some(address.to_string());
    }

    /// What the log and errors call it.
    pub fn name(&self) -> String {
        let server = &self.reclaimable.server;
        match (self.reclaimable.placement(), self.address()) {
            (None, None) => server.clone(),
            (_, Some(address)) => format!("{server}: node {} at {address}", self.node()),
            (Some(_), None) => format!("{server}: node {}", self.node()),
        }
    }

    fn oldest(&self) -> ObjectId {
        // Before the file system exists there is no object.
        self.reclaimable
            .fs()
            .map_or(0, |fs| self.reclaimable.numbers.done_below(self.node(), fs.packer()))
    }

    /// Whether the server is a node of the volume that is mounted.
    fn check_volume(&self, offer: &Offer) -> Result<(), String> {
        let name = self.name();
        let uuid = offer.descriptor(&name).map_err(|why| why.to_string())?.uuid;
        let (what, id) = match &offer.version {
            Some(version) => ("version", format!("{version} of the volume {uuid}")),
            None => ("volume", format!("uuid {uuid}")),
        };
        let mounted = self.reclaimable.volume.get_or_init(|| id.clone());
        if *mounted != id {
            let why = format!(
                "another {what} ({id}) is served at {name} now; serve the old one there, or mount \
                 again"
            );
            if !self.told_other.swap(true, Ordering::AcqRel) {
                log::error!("{why}");
            }
            return Err(why);
        }
        self.told_other.store(false, Ordering::Release);
        Ok(())
    }
}

impl ReclaimSource for NodeReclaimable {
    fn welcomed(&self, welcome: &Welcome) -> Result<(), String> {
        let offer =
            Offer::from_json(&welcome.descriptor, &self.name()).map_err(|why| why.to_string())?;
        // A volume of one node does not number it.
        let answers = if offer.placement.is_some() { welcome.node } else { 0 };
        self.check_volume(&offer)?;
        let root = *self.reclaimable.root.get_or_init(|| welcome.root);
        if root != welcome.root {
            return Err(format!(
                "{}: the token leads to another subtree now; mount again",
                self.name()
            ));
        }
        let node = *self.node.get_or_init(|| answers);
        if node == answers {
            self.overdue.store(false, Ordering::Release);
            self.welcomes.fetch_add(1, Ordering::AcqRel);
            if let Some(fs) = self.reclaimable.fs() {
                fs.reconnected();
            }
            return Ok(());
        }
        let at = self.address().map_or(String::new(), |address| format!("at {address} "));
        Err(format!(
            "{at}answers node {answers}, not node {node} as the table of nodes says; start node {node} there, and node \
             {answers} at its own address"
        ))
    }

    fn reclaim(&self, lost: SessionState) -> Vec<Reclaim> {
        let fs = self.reclaimable.fs();
        let opens: Vec<ReclaimOpen> = self
            .reclaimable
            .opens
            .all_at(self.node())
            .into_iter()
            .map(|(ino, open)| ReclaimOpen {
                file: self.reclaimable.last_seen(ino),
                count: open.count,
                linkable: open.linkable,
            })
            .collect();
        let is_ours = |ino| self.is_home_of(ino);
        let locks = match (&fs, lost) {
            (Some(fs), SessionState::Known | SessionState::Restarted) => {
                fs.locks_to_reclaim(&is_ours)
            }
            // Nothing was held at a node that was away when the volume was mounted.
            (Some(_), _) if self.welcomes.load(Ordering::Acquire) == 1 => Vec::new(),
            (Some(fs), SessionState::New | SessionState::Expired) => {
                // Others may have had them meanwhile.
                log::warn!("{}: away for longer than the lease: locks are lost (EIO)", self.name());
                fs.locks_lost(&is_ours);
                Vec::new()
            }
            (None, _) => Vec::new(),
        };
        if matches!(lost, SessionState::New | SessionState::Expired) {
            self.reclaimable.lose_objects(self.node());
        }
        let oldest = self.oldest();
        let objects = self.reclaimable.numbers.held_of(self.node());
        let parts = parts(opens, locks, objects, oldest);
        let files = |part: &Reclaim| part.locks.iter().map(|lock| lock.ino).collect();
        *self.claimed.lock() = parts.iter().map(files).collect();
        parts
    }

    fn reclaimed(&self, replies: Vec<ReclaimReply>, _lost: SessionState) {
        let claimed = std::mem::take(&mut *self.claimed.lock());
        let (mut opens, mut unlocked) = (0, Vec::new());
        for (part, reply) in claimed.into_iter().zip(replies) {
            match reply {
                Ok(reclaimed) => {
                    opens += reclaimed.lost_opens.len();
                    let lose = |ino| self.reclaimable.opens.lost(self.node(), ino);
                    reclaimed.lost_opens.into_iter().for_each(lose);
                    let at = |at: u32| part.get(usize::try_from(at).ok()?).copied();
                    unlocked.extend(reclaimed.lost_locks.into_iter().filter_map(at));
                }
                Err(why) => {
                    log::error!("{}: what was open could not be claimed again: {why}", self.name());
                    unlocked.extend(part);
                }
            }
        }
        if opens > 0 || !unlocked.is_empty() {
            log::warn!(
                "{}: {opens} open files are gone (ESTALE), {} locks are lost (EIO)",
                self.name(),
                unlocked.len()
            );
        }
        if let Some(fs) = self.reclaimable.fs() {
            fs.locks_reclaimed(&unlocked);
        }
    }

    fn oldest_open_object(&self) -> ObjectId {
        self.oldest()
    }

    /// Of several nodes. One that is alone commits nothing for a client that it has forgotten, and
    /// is asked nothing before it has said what became of the session.
    fn overdue(&self) {
        if self.reclaimable.placement().is_none() {
            return;
        }
        let first = !self.overdue.swap(true, Ordering::AcqRel);
        if first {
            self.reclaimable.lose_objects(self.node());
        }
        // Each time: a late answer may have granted one.
        let locked =
            self.reclaimable.fs().map_or(0, |fs| fs.locks_suspect(&|ino| self.is_home_of(ino)));
        if first || locked > 0 {
            log::warn!(
                "{}: not heard of for longer than the lease: locks of {locked} files are lost (EIO)",
                self.name()
            );
        }
    }

    fn outage(&self, why: &str) {
        log::warn!(
            "{}: the metadata server does not answer: {why}; calls wait for it",
            self.name()
        );
        if let Some(tell) = self.reclaimable.node_lost.get() {
            tell();
        }
        if self.reclaimable.placement().is_some() {
            self.reclaimable.numbers.ask_again();
        }
    }

    fn restored(&self, after: Duration) {
        log::info!("{}: the metadata server answers again after {after:.1?}", self.name());
        // A caller that waits for numbers may have asked a node that is still away.
        if self.reclaimable.placement().is_some() {
            self.reclaimable.numbers.ask_again();
        }
    }

    fn newer_table(&self, version: u64) {
        if let Some(tell) = self.reclaimable.newer_table.get() {
            tell(self.node(), version);
        }
    }
}

/// Cuts a reclaim into messages. At least one, and only the last is marked as such.
fn parts(
    opens: Vec<ReclaimOpen>,
    locks: Vec<LockSpan>,
    objects: Vec<(ObjectId, u32)>,
    oldest_open_object: ObjectId,
) -> Vec<Reclaim> {
    let (mut opens, mut locks, mut objects) =
        (opens.into_iter(), locks.into_iter(), objects.into_iter());
    let mut parts = Vec::new();
    loop {
        let part = Reclaim {
            opens: opens.by_ref().take(RECLAIM_ITEMS_MAX).collect(),
            locks: locks.by_ref().take(RECLAIM_ITEMS_MAX).collect(),
            objects: objects.by_ref().take(RECLAIM_ITEMS_MAX).collect(),
            oldest_open_object,
            last: opens.len() == 0 && locks.len() == 0 && objects.len() == 0,
        };
        let last = part.last;
        parts.push(part);
        if last {
            return parts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reclaim of any size is cut into messages of which only one is marked as the last.
    #[test]
    fn reclaim_split_into_messages() {
        let open = |ino| ReclaimOpen { file: InodeRef::by_id(ino), count: 1, linkable: false };
        for (count, messages) in
            [(0, 1), (1, 1), (RECLAIM_ITEMS_MAX, 1), (RECLAIM_ITEMS_MAX + 1, 2)]
        {
            let opens: Vec<_> = (0..count as u64).map(open).collect();
            let parts = parts(opens.clone(), Vec::new(), vec![(7, 9)], 7);
            assert_eq!(parts.len(), messages);
            assert!(parts.iter().rev().skip(1).all(|part| !part.last) && parts[messages - 1].last);
            assert_eq!(parts.iter().flat_map(|part| part.opens.clone()).collect::<Vec<_>>(), opens);
            assert_eq!(parts[0].objects, [(7, 9)]);
        }
    }
}
