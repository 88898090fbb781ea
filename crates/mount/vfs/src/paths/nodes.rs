//! The table of path nodes: what the kernel calls by number and we by name.
//!
//! A **path node** stands for a directory by its parent node and its name. As long as the kernel
//! knows it there is no other for the same two; what lies at that name on the server may change at
//! any time, and the node then means the other thing. The root, number 1, is not in the table.
//!
//! **Identity.** A node may be bound to one directory, by its inode number: while it is open, and
//! once somebody may work in it. It then means that directory wherever it is and whatever its name
//! means meanwhile.
//!
//! **What the kernel was told.** It keeps attributes for a moment and one inode for a node. So the
//! attributes of one directory only are told of a node ([`PathNodes::told`]), and it is bound to no
//! other: otherwise an open that was answered before its name changed, and attributes that were
//! asked for after, would be those of two directories.
//!
//! **Attached and detached.** A node is found by its name while it is attached. A local rename
//! moves the node, as the kernel moves its entry. When the name goes away here, or is found to mean
//! another directory than what the kernel was told, that node is detached: it has no path any more,
//! and is bound to what it was, if that is known.
//!
//! **Life.** A node lives until the kernel has forgotten it as often as it learned of it and no
//! node lies below it; messages of the kernel may overtake each other, so children may be forgotten
//! after their parents.
//!
//! **Numbers and file handles.** A file handle of the kernel's is a node's number, which may come
//! back after this mount has ended ([`PathNodes::by_handle`]). So the number of a node contains its
//! directory's, if that is known when the node is made, or before an operation has gone through the
//! node, and no other node has the number. Other nodes are numbered from the time of the mount's
//! start in nanoseconds on: such a number is not used again, and means nothing to a later mount.
//!
//! Pure: no I/O, no clock (times are given, in milliseconds since any start), no lock but for what
//! was seen.

use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_fuse::Attr;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::name::{Name, PATH_MAX, PathRef};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::seen::{DirAttr, Seen};

/// Set in the numbers of path nodes; no inode number has it.
const PATH_NODE: u64 = 1 << 63;

/// Set in the numbers of path nodes that say nothing of their directory.
const MADE: u64 = 1 << 62;

/// Bytes of a path from its base, from which on a directory is not taken for granted but bound to
/// its identity, so that what lies below it has a short path again: half of what a request may
/// carry.
const LONG_PATH_BYTES: usize = PATH_MAX / 2;

/// Whether a node's number is that of a path node; others are inode numbers.
pub fn is_path(node: u64) -> bool {
    node & PATH_NODE != 0
}

/// The directory of the number that a path node's number contains, if it does.
fn directory_of(node: u64) -> Option<InodeId> {
    (is_path(node) && node & MADE == 0).then_some(node & !PATH_NODE)
}

/// The path node with a number that contains that of a directory, if it fits.
fn node_of(ino: InodeId) -> Option<u64> {
    (ino & (PATH_NODE | MADE) == 0).then_some(PATH_NODE | ino)
}

/// What an operation on a node is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeTarget {
    /// This inode.
    Inode(InodeId),
    /// Whatever is at this place.
    At(PathRef),
    /// Nothing: its name went away.
    Gone,
}

/// Whether the kernel may believe a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameTrust {
    /// It may.
    Yes,
    /// It may not.
    No,
    /// It may not as long as the attributes of this node are not known.
    Unknown(u64),
}

/// The keeper of what is known about directories that nodes are bound to. Called with the table
/// locked.
pub trait Directories {
    /// A node is about to be bound to this directory.
    fn bound(&self, ino: InodeId);

    /// It is not bound to it any more.
    fn let_go(&self, ino: InodeId);
}

#[derive(Debug)]
struct PathNode {
    parent: u64,
    name: Name,
    attached: bool,
    /// What it is bound to.
    identity: Option<InodeId>,
    /// The only directory of which the kernel was told attributes for this node; 0 if it was told
    /// none.
    told: AtomicU64,
    /// Open handles of it.
    opens: u32,
    /// It may be somebody's working directory; nobody tells when that ends.
    worked_in: bool,
    /// It was found by a file handle, and its name has not been looked up since.
    by_handle: bool,
    /// Its children.
    children: u32,
    /// As often as the kernel learned of it and has not forgotten.
    lookups: AtomicU64,
    /// When an operation last proved that a directory is there.
    verified_ms: AtomicU64,
    /// What was seen of it, and whether names in it are believed.
    seen: Mutex<Seen>,
    /// Its own name may be believed until then.
    lent_until_ms: AtomicU64,
}

impl PathNode {
    /// One that the kernel learns of, at this name, and that is this directory if that is known.
    fn new(parent: u64, name: &Name, ino: Option<InodeId>) -> Self {
        Self {
            parent,
            name: name.clone(),
            attached: true,
            identity: None,
            told: AtomicU64::new(ino.unwrap_or(0)),
            opens: 0,
            worked_in: false,
            by_handle: false,
            children: 0,
            lookups: AtomicU64::new(1),
            verified_ms: AtomicU64::new(0),
            seen: Mutex::default(),
            lent_until_ms: AtomicU64::new(0),
        }
    }

    fn told(&self) -> Option<InodeId> {
        Some(self.told.load(Ordering::Relaxed)).filter(|ino| *ino != 0)
    }

    /// Whether it can be this directory; it is no other from now on.
    fn is(&self, ino: InodeId) -> bool {
        let told = self.told.compare_exchange(0, ino, Ordering::Relaxed, Ordering::Relaxed);
        told.is_ok() || told == Err(ino)
    }
}

/// The table.
#[derive(Debug, Default)]
pub struct PathNodes {
    nodes: FxHashMap<u64, PathNode>,
    by_name: FxHashMap<(u64, Name), u64>,
    /// Directories that nodes are bound to, and how many.
    bound: FxHashMap<InodeId, u32>,
    made: u64,
    /// Of the root directory.
    root: Mutex<Seen>,
}

impl PathNodes {
    /// An empty table of a mount that starts at this time, in nanoseconds since the epoch.
    pub fn starting(now: u64) -> Self {
        Self { made: now % MADE, ..Self::default() }
    }

    /// Path nodes in it.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Numbers of nodes that nothing here needs, for the kernel to be asked to drop them: at most
    /// `count`, in no order, from another place on with each `turn`.
    pub fn droppable(&self, count: usize, turn: usize) -> Vec<u64> {
        let free = |node: &PathNode| node.identity.is_none() && node.children == 0;
        let start = turn.wrapping_mul(count) % self.nodes.len().max(1);
        let all = self.nodes.iter().skip(start).chain(self.nodes.iter().take(start));
        all.filter(|(_, node)| free(node)).map(|(id, _)| *id).take(count).collect()
    }

    /// Where the entry `name` of a node is: from the nearest inode number on the way up; `None` if
    /// that ends at something gone.
    pub fn place(&self, dir: u64, name: Name) -> Option<PathRef> {
        let (mut at, mut dirs) = (dir, Vec::new());
        let base = loop {
            if !is_path(at) {
                break at;
            }
            let node = self.nodes.get(&at)?;
            match node.identity {
                Some(ino) => break ino,
                None if node.attached => {
                    dirs.push(&node.name);
                    at = node.parent;
                }
                None => return None,
            }
        };
        Some(PathRef { base, dirs: dirs.into_iter().rev().collect(), name })
    }

    /// A path node without an identity.
    fn unbound(&self, at: u64) -> Option<&PathNode> {
        self.nodes.get(&at).filter(|node| node.identity.is_none())
    }

    /// What a node stands for.
    pub fn target(&self, id: u64) -> NodeTarget {
        if !is_path(id) {
            return NodeTarget::Inode(id);
        }
        let Some(node) = self.nodes.get(&id) else { return NodeTarget::Gone };
        match node.identity {
            Some(ino) => NodeTarget::Inode(ino),
            None if !node.attached => NodeTarget::Gone,
            None => {
                self.place(node.parent, node.name.clone()).map_or(NodeTarget::Gone, NodeTarget::At)
            }
        }
    }

    /// Whether paths below a node are so long that the next directory should be bound to its
    /// identity.
    pub fn is_long(&self, mut at: u64) -> bool {
        let mut bytes = 0;
        while let Some(node) = self.unbound(at) {
            bytes += node.name.as_bytes().len() + 1;
            at = node.parent;
        }
        bytes >= LONG_PATH_BYTES
    }

    /// The node of a name and whether it is bound.
    pub fn find(&self, parent: u64, name: &Name) -> Option<(u64, Option<InodeId>)> {
        let id = *self.by_name.get(&(parent, name.clone()))?;
        Some((id, self.nodes.get(&id)?.identity))
    }

    /// Counts a lookup of a node that exists: the kernel is about to learn of it.
    pub fn learned(&self, id: u64) {
        if let Some(node) = self.nodes.get(&id) {
            node.lookups.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the kernel may be told that a node is this directory. No other from now on: see the
    /// head of this file.
    pub fn told(&self, id: u64, ino: InodeId) -> bool {
        self.nodes.get(&id).is_none_or(|node| node.is(ino))
    }

    /// The node of a name, made if need be, and one more lookup of it. If it is known which
    /// directory is there (`ino`), which the kernel is told then, a node that is another one makes
    /// way.
    pub fn enter(
        &mut self,
        parent: u64,
        name: &Name,
        ino: Option<InodeId>,
        directories: &dyn Directories,
    ) -> u64 {
        if let Some((id, _)) = self.find(parent, name) {
            let was = ino.filter(|ino| self.is_replaceable(id, *ino));
            if was.is_none() && ino.is_none_or(|ino| self.told(id, ino)) {
                self.learned(id);
                return id;
            }
            self.detach(parent, name, was, directories);
        }
        let contains = ino.and_then(node_of);
        if let Some(id) = contains
            && let Some(node) = self.nodes.get_mut(&id)
            && node.by_handle
        {
            // The kernel connects what it found by number to the tree: it must be the same node.
            node.by_handle = false;
            (node.parent, node.name, node.attached) = (parent, name.clone(), true);
            *node.lookups.get_mut() += 1;
            self.by_name.insert((parent, name.clone()), id);
            self.adopt(parent);
            return id;
        }
        let free = contains.filter(|id| !self.nodes.contains_key(id));
        let id = free.unwrap_or_else(|| {
            self.made += 1;
            PATH_NODE | MADE | self.made
        });
        self.nodes.insert(id, PathNode::new(parent, name, ino));
        self.by_name.insert((parent, name.clone()), id);
        self.adopt(parent);
        id
    }

    /// Whether a node with a number that says nothing of its directory makes way for one with a
    /// number that does, so that file handles of the directory outlast the mount. Only where no
    /// operation has gone through the node: with the kernel's entry of a node go mounts on what
    /// lies below it.
    fn is_replaceable(&self, id: u64, ino: InodeId) -> bool {
        let unused = |node: &PathNode| {
            node.told().is_none() && node.verified_ms.load(Ordering::Relaxed) == 0
        };
        id & MADE != 0
            && self.unbound(id).is_some_and(unused)
            && node_of(ino).is_some_and(|contains| !self.nodes.contains_key(&contains))
    }

    /// The directory that a node was made for, by its number alone; `None` if that does not say.
    pub fn directory_of(&self, id: u64) -> Option<InodeId> {
        let node = self.nodes.get(&id);
        node.and_then(|node| node.identity.or(node.told())).or_else(|| directory_of(id))
    }

    /// The node of a directory that the kernel has asked for by number, and one more lookup of it:
    /// the node `wanted`, or one that is there, or a new one, which has no name until that is
    /// looked up. `None` if it cannot be that node.
    pub fn by_handle(
        &mut self,
        ino: InodeId,
        wanted: Option<u64>,
        directories: &dyn Directories,
    ) -> Option<u64> {
        let there = wanted.or_else(|| {
            let attached =
                self.nodes.iter().find(|(_, node)| node.attached && node.told() == Some(ino));
            attached.map(|(id, _)| *id).or_else(|| node_of(ino))
        })?;
        if let Some(node) = self.nodes.get(&there) {
            if !node.is(ino) {
                return None;
            }
            self.learned(there);
            return Some(there);
        }
        directory_of(there).filter(|of| *of == ino)?;
        // The name is never shown: the node has no path.
        let mut node = PathNode::new(ROOT, &Name::new(b"handle").ok()?, Some(ino));
        (node.attached, node.by_handle) = (false, true);
        self.nodes.insert(there, node);
        self.bind(there, ino, directories);
        Some(there)
    }

    fn adopt(&mut self, parent: u64) {
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children += 1;
        }
    }

    /// The kernel forgot `count` lookups of a node.
    pub fn forget(&mut self, id: u64, count: u64, directories: &dyn Directories) {
        if let Some(node) = self.nodes.get_mut(&id) {
            let lookups = node.lookups.get_mut();
            *lookups = lookups.saturating_sub(count);
        }
        self.drop_unknown(id, directories);
    }

    /// Drops a node nobody refers to, and what it kept alive above it.
    fn drop_unknown(&mut self, mut id: u64, directories: &dyn Directories) {
        while let Some(node) = self.nodes.get_mut(&id) {
            if *node.lookups.get_mut() > 0 || node.children > 0 {
                return;
            }
            let Some(node) = self.nodes.remove(&id) else { return };
            if node.attached {
                self.by_name.remove(&(node.parent, node.name));
            }
            if let Some(ino) = node.identity {
                self.unbind(ino, directories);
            }
            let Some(parent) = self.nodes.get_mut(&node.parent) else { return };
            parent.children = parent.children.saturating_sub(1);
            id = node.parent;
        }
    }

    /// A name went away, or means something else now: its node, if there is one, has no path any
    /// more. It is bound to what the kernel was told, else to `was`, the directory that the name
    /// meant.
    pub fn detach(
        &mut self,
        parent: u64,
        name: &Name,
        was: Option<InodeId>,
        directories: &dyn Directories,
    ) {
        if let Some(id) = self.by_name.remove(&(parent, name.clone())) {
            self.lose_path(id, was, directories);
        }
    }

    /// A node's name was found to mean another directory.
    pub fn displaced(&mut self, id: u64, directories: &dyn Directories) {
        if let Some((parent, name)) = self.name_of(id) {
            self.detach(parent, &name, None, directories);
        }
    }

    fn lose_path(&mut self, id: u64, was: Option<InodeId>, directories: &dyn Directories) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.attached = false;
        if node.identity.is_none()
            && let Some(ino) = node.told().or(was)
        {
            self.bind(id, ino, directories);
        }
    }

    fn bind(&mut self, id: u64, ino: InodeId, directories: &dyn Directories) {
        if let Some(node) = self.nodes.get_mut(&id) {
            // First, so that the last attributes are kept if it is removed at this moment.
            directories.bound(ino);
            node.identity = Some(ino);
            *node.told.get_mut() = ino;
            *self.bound.entry(ino).or_default() += 1;
        }
    }

    fn unbind(&mut self, ino: InodeId, directories: &dyn Directories) {
        if let Some(nodes) = self.bound.get_mut(&ino) {
            *nodes -= 1;
            if *nodes == 0 {
                self.bound.remove(&ino);
            }
        }
        directories.let_go(ino);
    }

    /// Whether a node is bound to this directory.
    pub fn is_bound(&self, ino: InodeId) -> bool {
        self.bound.contains_key(&ino)
    }

    /// An entry was renamed here, and what it replaced, `was`, is gone, or with `exchange` the two
    /// changed places.
    pub fn renamed(
        &mut self,
        from: (u64, &Name),
        to: (u64, &Name),
        (exchange, was): (bool, Option<InodeId>),
        directories: &dyn Directories,
    ) {
        if (from.0, from.1) == (to.0, to.1) {
            return;
        }
        let moved = self.by_name.remove(&(from.0, from.1.clone()));
        let other = self.by_name.remove(&(to.0, to.1.clone()));
        if let Some(id) = moved {
            self.attach(id, to, directories);
        }
        match other {
            Some(id) if exchange => self.attach(id, from, directories),
            Some(id) => self.lose_path(id, was, directories),
            None => {}
        }
    }

    /// Gives a node another place.
    fn attach(&mut self, id: u64, (parent, name): (u64, &Name), directories: &dyn Directories) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let old = std::mem::replace(&mut node.parent, parent);
        node.name = name.clone();
        self.by_name.insert((parent, name.clone()), id);
        self.adopt(parent);
        if let Some(node) = self.nodes.get_mut(&old) {
            node.children = node.children.saturating_sub(1);
            self.drop_unknown(old, directories);
        }
    }

    /// Binds a node to the directory that was found at its place, because it is open now or, with
    /// `works`, may be worked in. False if it is another one, or gone: the caller walks again.
    pub fn hold(
        &mut self,
        id: u64,
        ino: InodeId,
        works: bool,
        directories: &dyn Directories,
    ) -> bool {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.is(ino)) else { return false };
        node.worked_in |= works;
        node.opens += u32::from(!works);
        if node.identity.is_none() {
            self.bind(id, ino, directories);
        }
        true
    }

    /// An open handle of a node was closed. What is detached stays bound: it has nothing else.
    pub fn closed(&mut self, id: u64, directories: &dyn Directories) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.opens = node.opens.saturating_sub(1);
        let free = node.opens == 0 && !node.worked_in && node.attached;
        if free && let Some(ino) = node.identity.take() {
            self.unbind(ino, directories);
        }
    }

    /// Parent and name of an attached node.
    pub fn name_of(&self, id: u64) -> Option<(u64, Name)> {
        let node = self.nodes.get(&id).filter(|node| node.attached)?;
        Some((node.parent, node.name.clone()))
    }

    /// An operation went through a node: it and all above it are directories.
    pub fn verified(&self, mut at: u64, now_ms: u64) {
        // What a bound node's own name means has not been proved.
        while let Some(node) = self.unbound(at) {
            if node.verified_ms.fetch_max(now_ms, Ordering::Relaxed) >= now_ms {
                return;
            }
            at = node.parent;
        }
    }

    /// When a node was last proved to be a directory; 0 if never.
    pub fn verified_ms(&self, id: u64) -> u64 {
        self.nodes.get(&id).map_or(0, |node| node.verified_ms.load(Ordering::Relaxed))
    }

    fn seen_of(&self, id: u64) -> Option<&Mutex<Seen>> {
        if id == ROOT { Some(&self.root) } else { self.nodes.get(&id).map(|node| &node.seen) }
    }

    /// Notes the attributes of a node's directory, as somebody asked for them; false if it is
    /// another one ([`PathNodes::told`]).
    pub fn seen(&self, id: u64, dir: &DirAttr) -> bool {
        let is = self.told(id, dir.attr.ino);
        if is && let Some(seen) = self.seen_of(id) {
            seen.lock().note(dir);
        }
        is
    }

    /// Notes attributes that were changed here. When names in it are believed no more, if that has
    /// to be waited for.
    pub fn changed(&self, id: u64, dir: &DirAttr, now_ms: u64) -> Option<u64> {
        self.seen_of(id)?.lock().changed(dir, now_ms)
    }

    /// The attributes when last seen.
    pub fn last_attr(&self, id: u64) -> Option<Attr> {
        self.seen_of(id)?.lock().attr()
    }

    /// What `ask` says of the directories that a node's path leads through, from the nearest up to
    /// the root. A detached node has no path.
    fn on_the_way(&self, id: u64, mut ask: impl FnMut(&mut Seen) -> Option<bool>) -> NameTrust {
        let mut at = id;
        while at != ROOT {
            let Some(node) = self.nodes.get(&at).filter(|node| node.attached) else {
                return NameTrust::No;
            };
            at = node.parent;
            match self.seen_of(at).map(|seen| ask(&mut seen.lock())) {
                Some(Some(true)) => {}
                Some(None) => return NameTrust::Unknown(at),
                _ => return NameTrust::No,
            }
        }
        NameTrust::Yes
    }

    /// Lets the kernel believe a node's name until then, if everybody may search every directory on
    /// the way to it: see [`Seen`].
    pub fn lend(&self, id: u64, until_ms: u64) -> NameTrust {
        // Looked at first, so that nobody waits for what was not lent in the end; a change in
        // between is found by `Seen::lend`.
        let lent = match self.on_the_way(id, |seen| seen.lends()) {
            NameTrust::Yes => self.on_the_way(id, |seen| seen.lend(until_ms)),
            other => other,
        };
        if lent == NameTrust::Yes
            && let Some(node) = self.nodes.get(&id)
        {
            node.lent_until_ms.fetch_max(until_ms, Ordering::Relaxed);
        }
        lent
    }

    /// Lends nothing below a node until [`PathNodes::recalled`]. What was lent below it, or is its
    /// own name, and is not bound: the kernel may have let somebody take hold of it. None of it if
    /// the node is not known.
    pub fn recall(&self, id: u64) -> Vec<u64> {
        let Some(lent) = self.seen_of(id).map(|seen| seen.lock().recall()) else {
            return Vec::new();
        };
        let own = |node: &PathNode| {
            node.lent_until_ms.load(Ordering::Relaxed) > 0 && node.identity.is_none()
        };
        if !lent {
            return self.nodes.get(&id).filter(|node| own(node)).map(|_| id).into_iter().collect();
        }
        let below = |at: u64| {
            let up =
                |at: &u64| self.nodes.get(at).filter(|node| node.attached).map(|node| node.parent);
            std::iter::successors(Some(at), up).any(|at| at == id)
        };
        self.nodes.iter().filter(|(at, node)| own(node) && below(**at)).map(|(at, _)| *at).collect()
    }

    /// What [`PathNodes::recall`] was for is done.
    pub fn recalled(&self, id: u64) {
        if let Some(seen) = self.seen_of(id) {
            seen.lock().recalled();
        }
    }

    /// Whether names in a directory may be believed.
    pub fn is_public(&self, dir: u64) -> bool {
        self.seen_of(dir).is_some_and(|seen| seen.lock().lends() == Some(true))
            && self.on_the_way(dir, |seen| seen.lends()) == NameTrust::Yes
    }

    /// Somebody should find out a directory's attributes, and is the first to hear of it.
    pub fn claim_look(&self, id: u64) -> bool {
        self.seen_of(id).is_some_and(|seen| seen.lock().claim_look())
    }

    /// That came to nothing.
    pub fn looked_in_vain(&self, id: u64) {
        if let Some(seen) = self.seen_of(id) {
            seen.lock().looked_in_vain();
        }
    }

    /// When a node's name and all names below it are believed no more, if it is attached where not
    /// everybody may go and that has to be waited for.
    pub fn lent_in_private(&self, parent: u64, name: &Name, now_ms: u64) -> Option<u64> {
        let id = self.by_name.get(&(parent, name.clone()))?;
        let node = self.nodes.get(id)?;
        let until =
            node.lent_until_ms.load(Ordering::Relaxed).max(node.seen.lock().lent_until_ms());
        (until > now_ms && !self.is_public(parent)).then_some(until)
    }
}

#[cfg(test)]
mod tests;
