//! The VFS shortcut: directories are path nodes, and a walk through them costs no request.
//!
//! | file | |
//! | --- | --- |
//! | `nodes` | the table of path nodes: a number for the kernel, a name for us |
//! | `plan` | how one LOOKUP is answered |
//! | `seen` | what is known about a directory, and how long the kernel believes names in it |
//! | `filter` | a small memory of names, that forgets |
//! | `waiting` | opens that were made with a LOOKUP, and wait for their OPEN |
//! | `expiry` | the thread that gives back unused opens and limits the number of path nodes |
//! | `counters` | counters of the shortcut |
//!
//! - A LOOKUP in mid-path, where the walk hint says so, is answered "a directory" without asking
//!   ([`LookupPlan::Fake`]). The operation at the end of the walk carries the whole path, and its
//!   answer has the errno that the walk should have had.
//! - A name is only believed for a time if an operation has proved it. A fake that nothing has
//!   proved is for this walk alone: otherwise `..` could climb out of what was never there. So no
//!   name that the kernel goes by without asking is older than `--shortcut-names`; where nobody
//!   else changes the volume, what was proved once stays true, and is believed anew each time that
//!   the kernel asks.
//! - A name is only believed where everybody may search every directory on the way to it; see
//!   [`seen`].
//! - Directories that are open or may be worked in are their identity; see [`nodes`].
//! - What turns out to be no directory is answered `ESTALE`: the kernel walks again, with a flag,
//!   and is told the truth at every step. Symbolic links are remembered, so that this happens once.
//!
//! A hint decides only which of several right ways is taken; without one every LOOKUP is a real
//! one. `docs/shortcut.md` explains it all.

mod counters;
mod expiry;
mod filter;
mod nodes;
mod plan;
mod seen;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kestrel_client::fs::{Caller, Done, Fs};
use kestrel_fuse::{Attr, Entry, Notifier};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_walkhint::WalkHints;
use parking_lot::{Mutex, RwLock};

pub use self::counters::{Counters, ShortcutStats};
pub use self::nodes::{NodeTarget, is_path};
pub use self::plan::{LookupPlan, Purpose, WalkUse};
use self::seen::DirAttr;
pub use self::seen::SEARCH_ALL;
pub use self::waiting::{PreparedOpen, Waiting};

use self::expiry::ExpiryThread;
use self::filter::Filter;
use self::nodes::{Directories, NameTrust, PathNodes};
use self::waiting::Waits;
use crate::convert;
use crate::trust::{MOMENT, Trust, attributes_kept, name_kept};

/// How many nodes the kernel may know before it is asked to drop some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodesMax {
    /// Path nodes. One takes some 400 bytes here.
    pub paths: usize,
    /// Inodes. One takes some 200 bytes here. `None`: as many as it likes.
    pub inodes: Option<usize>,
}

impl Default for NodesMax {
    fn default() -> Self {
        Self { paths: 100_000, inodes: None }
    }
}

/// By how much the kernel may believe longer than it was told: it rounds up to the tick of its
/// clock (at most 10 ms), and begins when its thread takes the answer.
const TICKS: Duration = Duration::from_millis(20);

/// Names of directories, and what is known about them.
pub struct Paths {
    fs: Arc<Fs>,
    nodes_max: NodesMax,
    table: RwLock<PathNodes>,
    /// Names that were found to be symbolic links.
    links: Filter,
    /// Names that were last found to be neither directory nor absent.
    files: Filter,
    hints: Arc<WalkHints>,
    /// The hints are measured, and of use.
    hinted: AtomicBool,
    waits: Waits,
    keeper: ExpiryThread,
    trust: Trust,
    start: Instant,
    counters: Counters,
}

impl Directories for Fs {
    fn bound(&self, ino: InodeId) {
        self.remember_directory(ino);
    }

    fn let_go(&self, ino: InodeId) {
        self.forget(ino, 1);
    }
}

impl NodeTarget {
    /// The attributes of what it is.
    pub fn attributes(self, fs: &Arc<Fs>, caller: Caller, done: Done<Inode>) {
        match self {
            Self::Inode(ino) => fs.getattr(caller, ino, done),
            Self::At(place) => fs.find_directory(caller, place, done),
            Self::Gone => done(Err(FsError::new(libc::ESTALE, "the directory is gone"))),
        }
    }
}

/// Calls what it holds when it is dropped.
struct Last<F: FnOnce()>(Mutex<Option<F>>);

impl<F: FnOnce()> Drop for Last<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.get_mut().take() {
            call();
        }
    }
}

impl Paths {
    /// An empty table.
    pub fn new(fs: Arc<Fs>, hints: Arc<WalkHints>, trust: Trust, nodes_max: NodesMax) -> Arc<Self> {
        Arc::new(Self {
            nodes_max,
            table: RwLock::new(PathNodes::starting(fs.now().cast_unsigned())),
            fs,
            links: Filter::default(),
            files: Filter::default(),
            hints,
            hinted: AtomicBool::new(false),
            waits: Waits::default(),
            keeper: ExpiryThread::default(),
            trust,
            start: Instant::now(),
            counters: Counters::default(),
        })
    }

    /// The mount is there: starts the thread that talks to the kernel.
    pub fn begin(self: &Arc<Self>, notifier: Notifier, prunes: bool) {
        self.keeper.start(self, notifier, prunes);
    }

    /// Ends it.
    pub fn stop(&self) {
        self.keeper.stop();
    }

    /// From now on hints are taken.
    pub fn hints_are_measured(&self) {
        self.hinted.store(true, Ordering::Release);
    }

    /// Whether this name in the root is one by which the hints are measured.
    pub fn is_probe(&self, name: &[u8]) -> bool {
        self.hints.is_probe(name)
    }

    /// Counters and sizes.
    pub fn stats(&self) -> ShortcutStats {
        self.counters.stats(self.table.read().len())
    }

    /// Where an entry is; none if the directory is gone.
    pub fn place(&self, dir: u64, name: Name) -> Option<PathRef> {
        self.table.read().place(dir, name)
    }

    /// What an operation on a node is about.
    pub fn target(&self, node: u64) -> NodeTarget {
        self.table.read().target(node)
    }

    fn now_ms(&self) -> u64 {
        // Zero is "never".
        self.start.elapsed().as_millis() as u64 + 1
    }

    /// An operation went through a directory.
    pub fn passed(&self, dir: u64) {
        if is_path(dir) {
            let now = self.now_ms();
            self.table.read().verified(dir, now);
        }
    }

    /// How long the kernel may believe the name of a node; a node of which the attributes would
    /// have to be known for that. Those of the node itself have to be, too: while the kernel
    /// believes a name it does not ask for them.
    fn names_ttl(&self, table: &PathNodes, node: u64) -> (Duration, Option<u64>) {
        let (verified, names) = (table.verified_ms(node), self.trust.names.as_millis() as u64);
        if verified == 0 || names == 0 || !self.hinted.load(Ordering::Acquire) {
            return (Duration::ZERO, None);
        }
        let now = self.now_ms();
        let until = names + if self.trust.alone { now } else { verified };
        if until <= now {
            return (Duration::ZERO, None);
        }
        match table.lend(node, until) {
            // The kernel itself checks whether a caller owns a directory (setxattr(2) of an ACL,
            // chattr, O_NOATIME), by what it was told last.
            NameTrust::Yes if table.last_attr(node).is_none() => {
                (Duration::ZERO, table.claim_look(node).then_some(node))
            }
            NameTrust::Yes => (Duration::from_millis(until - now), None),
            NameTrust::No => (Duration::ZERO, None),
            NameTrust::Unknown(dir) => (Duration::ZERO, table.claim_look(dir).then_some(dir)),
        }
    }

    /// Finds out the attributes of a directory, for [`Paths::seen`]. Once for a directory that
    /// walks go through again and again.
    fn find_out(self: &Arc<Self>, node: u64) {
        let paths = self.clone();
        let found = Box::new(move |found: FsResult<Inode>| {
            Counters::count(&paths.counters.looks);
            match found {
                Ok(inode) if inode.kind == Kind::Dir && paths.seen(node, &inode) => {}
                _ => paths.table.read().looked_in_vain(node),
            }
        });
        self.target(node).attributes(&self.fs, Caller::ROOT, found);
    }

    /// The entry that tells the kernel of an inode found or made at a name, of which `fs` was told
    /// that the kernel will know it by number. It counts as a lookup.
    pub fn entry(&self, at: Option<(u64, &Name)>, inode: &Inode) -> Entry {
        let attr_ttl = self.trust.files.max(MOMENT).max(attributes_kept(inode));
        let Some((dir, name)) = at else {
            return convert::entry(inode, attr_ttl, self.trust.entry);
        };
        self.passed(dir);
        if inode.kind != Kind::Dir {
            self.files.add(dir, name);
            match inode.kind {
                Kind::Symlink => self.links.add(dir, name),
                _ => self.links.remove(dir, name),
            }
            return convert::entry(inode, attr_ttl, self.trust.name(inode));
        }
        // The kernel knows directories by their path nodes.
        self.fs.forget(inode.ino, 1);
        self.directory(dir, name, inode)
    }

    /// The directory that a node was made for, by its number alone; `None` if that does not say.
    pub fn directory_of(&self, node: u64) -> Option<InodeId> {
        self.table.read().directory_of(node)
    }

    /// The entry that tells the kernel of an inode that it has asked for by number (`wanted`), or
    /// of the directory above one; `fs` was told that the kernel will know it by number. None if
    /// the kernel has to look it up by its name.
    pub fn numbered_entry(&self, wanted: Option<u64>, inode: &Inode) -> Option<Entry> {
        let is_dir = inode.kind == Kind::Dir;
        if !wanted.map_or(is_dir && inode.ino != ROOT, is_path) {
            return Some(convert::entry(inode, self.trust.files.max(MOMENT), Duration::ZERO));
        }
        let nodeid = match is_dir {
            true => self.table.write().by_handle(inode.ino, wanted, &*self.fs),
            false => None,
        };
        // The kernel knows directories by their path nodes.
        self.fs.forget(inode.ino, 1);
        let entry = convert::entry(inode, self.trust.dirs, Duration::ZERO);
        nodeid.map(|nodeid| Entry { nodeid, ..entry })
    }

    /// The entry of a directory that was found at a name, of which the kernel knows nothing by
    /// number.
    pub fn directory(&self, dir: u64, name: &Name, inode: &Inode) -> Entry {
        self.passed(dir);
        self.links.remove(dir, name);
        self.files.remove(dir, name);
        // Attributes may only be kept where the next walk asks for the name again: there may be
        // another directory then. Not so in an immutable tree.
        let attr_ttl = self.trust.dirs.max(MOMENT).max(attributes_kept(inode));
        let mut entry = convert::entry(inode, attr_ttl, name_kept(inode));
        let long = {
            let mut table = self.table.write();
            entry.nodeid = table.enter(dir, name, Some(inode.ino), &*self.fs);
            table.verified(entry.nodeid, self.now_ms());
            table.seen(entry.nodeid, &DirAttr::of(inode));
            if table.is_bound(inode.ino) {
                // The kernel may know it by another node too, and change it there.
                entry.attr_ttl = self.trust.dirs;
            }
            table.is_long(entry.nodeid)
        };
        self.crowded();
        if long {
            self.hold(entry.nodeid, inode.ino, true);
        }
        entry
    }

    /// The entry that tells the kernel of a directory nobody has asked for.
    fn fake(self: &Arc<Self>, dir: u64, name: &Name) -> Entry {
        let known = {
            let table = self.table.read();
            table.find(dir, name).map(|(node, _)| {
                table.learned(node);
                (node, self.names_ttl(&table, node), table.last_attr(node))
            })
        };
        let (nodeid, (entry_ttl, unknown), attr) = known.unwrap_or_else(|| {
            let node = self.table.write().enter(dir, name, None, &*self.fs);
            self.crowded();
            (node, (Duration::ZERO, None), None)
        });
        if let Some(node) = unknown {
            self.find_out(node);
        }
        // Without sticky bit, so that the kernel leaves all checks to us.
        let plain = Attr {
            ino: nodeid,
            mode: libc::S_IFDIR | 0o755,
            nlink: 2,
            blksize: 4096,
            ..Attr::default()
        };
        Entry {
            nodeid,
            generation: 1,
            attr: attr.unwrap_or(plain),
            attr_ttl: Duration::ZERO,
            entry_ttl,
        }
    }

    /// The entry of a directory that `caller` lists and found by this name a moment ago, to walk to
    /// what is in it.
    fn listed_directory(&self, caller: Caller, dir: u64, name: &Name) -> Option<Entry> {
        let table = self.table.read();
        let (nodeid, ino) = table.find(dir, name)?;
        let (ino, attr) = (ino?, table.last_attr(nodeid)?);
        if attr.ino != ino || !self.fs.is_reached(caller, ino, (dir, name)) {
            return None;
        }
        table.learned(nodeid);
        // Everybody may pass what the kernel believes.
        let until = self.now_ms() + TICKS.as_millis() as u64;
        let entry_ttl =
            if table.lend(nodeid, until) == NameTrust::Yes { MOMENT } else { Duration::ZERO };
        Some(Entry { nodeid, generation: 1, attr, attr_ttl: Duration::ZERO, entry_ttl })
    }

    /// Something is at a path node's name that is no directory.
    pub fn no_directory(&self, node: u64) {
        if let Some((parent, name)) = self.table.read().name_of(node) {
            self.files.add(parent, &name);
        }
        Counters::count(&self.counters.stale);
    }

    /// Attributes of a path node, as just seen. False if the kernel may not be told them, because
    /// its name means another directory than before: it has to walk again.
    pub fn seen(&self, node: u64, inode: &Inode) -> bool {
        let is = {
            let table = self.table.read();
            table.verified(node, self.now_ms());
            table.seen(node, &DirAttr::of(inode))
        };
        if !is {
            self.table.write().displaced(node, &*self.fs);
        }
        is
    }

    /// Before `then` takes the right to search directories below these nodes away: binds what the
    /// kernel may have let somebody take hold of there to its identity. Ends with
    /// [`Paths::recalled`].
    pub fn recall(self: &Arc<Self>, nodes: &[u64], then: impl FnOnce() + Send + 'static) {
        if nodes.is_empty() {
            return then();
        }
        let lent: Vec<u64> = {
            let table = self.table.read();
            nodes.iter().flat_map(|node| table.recall(*node)).collect()
        };
        // Called when the last one drops it.
        let then = Arc::new(Last(Mutex::new(Some(then))));
        for node in lent {
            let NodeTarget::At(place) = self.target(node) else { continue };
            let (paths, then) = (self.clone(), then.clone());
            let found = move |found: FsResult<Inode>| {
                if let Ok(inode) = found {
                    paths.hold(node, inode.ino, true);
                }
                drop(then);
            };
            self.fs.find_directory(Caller::ROOT, place, Box::new(found));
        }
    }

    /// What [`Paths::recall`] was for is done.
    pub fn recalled(&self, nodes: &[u64]) {
        let table = self.table.read();
        nodes.iter().for_each(|node| table.recalled(*node));
    }

    /// The nodes that a rename would move to where not everybody may go.
    pub fn leaving(&self, from: (u64, &Name), to: (u64, &Name), exchange: bool) -> Vec<u64> {
        let table = self.table.read();
        let node = |(dir, name): (u64, &Name), goes: u64| {
            let (node, _) = table.find(dir, name).filter(|_| !table.is_public(goes))?;
            Some(node)
        };
        node(from, to.0).into_iter().chain(node(to, from.0).filter(|_| exchange)).collect()
    }

    /// Attributes of a directory were changed here. When the change may be told, if not now.
    pub fn changed(&self, node: u64, inode: &Inode) -> Option<Instant> {
        let until = self.table.read().changed(node, &DirAttr::of(inode), self.now_ms());
        until.map(|until| self.when_believed_no_more(until))
    }

    /// The moment when what was lent until then has ended in the kernel.
    fn when_believed_no_more(&self, until_ms: u64) -> Instant {
        self.start + Duration::from_millis(until_ms) + TICKS
    }

    /// Runs `tell` at that time, or at once if there is none or when the mount ends.
    pub fn tell(&self, when: Option<Instant>, tell: impl FnOnce() + Send + 'static) {
        match when {
            Some(due) => self.keeper.at(due, Box::new(tell)),
            None => tell(),
        }
    }

    /// A name was removed here; `gone` is what it meant.
    pub fn removed(&self, dir: u64, name: &Name, gone: Option<Box<Inode>>) {
        self.passed(dir);
        self.absent(dir, name);
        self.bury(gone, |was| self.table.write().detach(dir, name, was, &*self.fs));
    }

    /// Keeps the last attributes of a directory that was removed, if a node is bound to it after
    /// `detach`.
    fn bury(&self, gone: Option<Box<Inode>>, detach: impl FnOnce(Option<InodeId>)) {
        match gone.filter(|inode| inode.kind == Kind::Dir) {
            Some(inode) => {
                let ino = inode.ino;
                // First, so that a request of this moment finds them.
                self.fs.remember_removed(inode);
                detach(Some(ino));
                self.fs.forget(ino, 1);
            }
            None => detach(None),
        }
    }

    /// There is nothing at a name.
    pub fn absent(&self, dir: u64, name: &Name) {
        self.files.remove(dir, name);
        self.links.remove(dir, name);
    }

    /// An entry was renamed or exchanged here; `gone` is what was replaced. When that may be told,
    /// if not now.
    pub fn renamed(
        &self,
        from: (u64, &Name),
        to: (u64, &Name),
        exchange: bool,
        gone: Option<Box<Inode>>,
    ) -> Option<Instant> {
        let was_file = self.files.has(from.0, from.1);
        let other_file = exchange && self.files.has(to.0, to.1);
        for ((dir, name), is_file) in [(from, other_file), (to, was_file)] {
            self.passed(dir);
            self.absent(dir, name);
            if is_file {
                self.files.add(dir, name);
            }
        }
        self.bury(gone, |was| self.table.write().renamed(from, to, (exchange, was), &*self.fs));
        let (table, now) = (self.table.read(), self.now_ms());
        let lent =
            [from, to].into_iter().filter_map(|(dir, name)| table.lent_in_private(dir, name, now));
        lent.max().map(|until| self.when_believed_no_more(until))
    }

    /// Binds a path node to its directory, because it was opened or, with `works`, may be worked
    /// in. False if it is another one or gone: the kernel has to walk again.
    pub fn hold(&self, node: u64, ino: InodeId, works: bool) -> bool {
        // Walks through it ask from now on, as soon as the kernel no longer believes its name
        // (`--shortcut-names`).
        !is_path(node) || self.table.write().hold(node, ino, works, &*self.fs)
    }

    /// A directory was closed.
    pub fn closed(&self, node: u64) {
        if is_path(node) {
            self.table.write().closed(node, &*self.fs);
        }
    }

    /// The kernel forgot lookups of a node.
    pub fn forget(&self, node: u64, count: u64) {
        match is_path(node) {
            true => self.table.write().forget(node, count, &*self.fs),
            false => self.fs.forget(node, count),
        }
    }

    /// Has path nodes dropped if there are too many.
    fn crowded(&self) {
        if self.table.read().len() > self.nodes_max.paths {
            self.keeper.crowded();
        }
    }

    /// Lets an open wait for its OPEN.
    pub fn wait(&self, waiting: Waiting) {
        self.keeper.waits();
        if let Some(old) = self.waits.put(waiting, Instant::now()) {
            old.give_back(&self.fs);
        }
    }

    /// What waits for a thread.
    pub fn waiting(&self, pid: u32) -> Option<Waiting> {
        self.waits.take(pid)
    }

    /// Gives back what waits for a thread that asks for something else.
    pub fn asks_for_something_else(&self, pid: u32) {
        if let Some(waiting) = self.waits.take(pid) {
            waiting.give_back(&self.fs);
        }
    }

    /// Counters, to count.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
