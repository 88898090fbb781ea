//! Snapshots in a live mount: `.snap` in every directory, and what is below it.
//!
//! | file | |
//! | --- | --- |
//! | `nodes` | node ids and inode numbers of snapshots |
//! | `directory` | `.snap` itself: look up, list, make, remove and rename snapshots |
//! | `inside` | what is in a snapshot: everything is read, nothing changes |
//!
//! **The way in.** No listing shows `.snap`, and LOOKUP of exactly that name in a live directory
//! gives it. The kernel does not keep that name, nor those of snapshots in it: another client may
//! change both. In shortcut mode LOOKUP of `.snap` is the operation at the end of the walk to its
//! directory; what follows in the path is looked up component by component, since nodes of
//! snapshots are no path nodes.
//!
//! **Inside.** Each snapshot has an [`Fs`] of its own ([`Fs::at`]). The kernel keeps attributes,
//! listings and pages for as long as it likes. It keeps a name only where every user may search
//! all directories from the root of the snapshot to it: the kernel asks nobody for a name that it
//! keeps. Other names are looked up each time, which the client answers without a request from
//! what it keeps of the snapshot, by the caller's permissions.
//!
//! **Live files pay one test.** Node ids of snapshots differ from all others in two bits;
//! `Mounted::handle` looks at these once and hands the request over. The rest of the mount knows
//! nothing of snapshots but the name `.snap`, with which nothing can be made.

mod directory;
mod inside;
mod nodes;

use std::sync::{Arc, Weak};
use std::time::Duration;

use kestrel_client::fs::{Caller, DirHandle, FileHandle, Fs};
use kestrel_fuse::{Entry, Operation, Reply, Request};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::snapshot::SnapshotId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use self::directory::OpenSnapshotDir;
use self::nodes::{Distances, SnapshotInode, SnapshotNode, SnapshotNodes, View};
pub use self::nodes::{is_shown_of_snapshot, is_snapshot};
use crate::convert;
use crate::core::Core;
use crate::handles::Handles;
use crate::paths::SEARCH_ALL;

/// Name of the directory with the snapshots of a directory.
pub const SNAPSHOT_DIR: &[u8] = b".snap";

/// Snapshots of before are not looked for among fewer.
const VIEWS_MIN: usize = 64;

/// How long the kernel keeps what never changes.
pub const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A file of a snapshot that is open.
struct OpenSnapshotFile {
    view: Arc<View>,
    file: Arc<FileHandle>,
}

/// An open directory.
enum OpenDir {
    /// `.snap`.
    Snapshots(OpenSnapshotDir),
    /// One of a snapshot.
    Inside(Arc<View>, Arc<DirHandle>),
}

/// Snapshots of which the kernel knows a node or has something open, and some of before.
#[derive(Default)]
struct Views {
    of: FxHashMap<SnapshotId, Weak<View>>,
    /// At this size those of before are dropped.
    full: usize,
}

/// What a mount knows of snapshots.
#[derive(Default)]
pub struct Snapshots {
    nodes: SnapshotNodes,
    views: Mutex<Views>,
    distances: Mutex<Distances>,
    files: Handles<OpenSnapshotFile>,
    dirs: Handles<OpenDir>,
    /// What threads that list `.snap` have been told a moment ago.
    told: directory::Told,
}

impl Snapshots {
    /// The volume at a snapshot.
    fn view(&self, live: &Arc<Fs>, at: SnapshotId) -> Arc<View> {
        let mut views = self.views.lock();
        if let Some(view) = views.of.get(&at).and_then(Weak::upgrade) {
            return view;
        }
        if views.of.len() >= views.full {
            views.of.retain(|_, view| view.strong_count() > 0);
            views.full = VIEWS_MIN.max(2 * views.of.len());
        }
        let distance = self.distances.lock().of(at);
        let view = Arc::new(View::new(at, live, distance));
        views.of.insert(at, Arc::downgrade(&view));
        view
    }

    /// Whether nothing of a snapshot is open.
    pub fn is_closed(&self) -> bool {
        self.files.is_empty() && self.dirs.is_empty()
    }

    /// The kernel forgot lookups of a node.
    pub fn forget(&self, node: u64, count: u64) {
        if let Some(SnapshotNode::Inode(inode)) = self.nodes.forget(node, count)
            && inode.ino != inode.root
        {
            inode.view.fs().forget(inode.ino, count);
        }
    }

    /// The entry that tells the kernel of an inode in a snapshot. `above` is the directory in which
    /// it was found, and the snapshot's `Fs` was told that the kernel will know it; `None`: it is
    /// the root of its snapshot, of which the `Fs` knows nothing.
    fn entry(
        &self,
        (view, root): (&Arc<View>, InodeId),
        above: Option<&SnapshotInode>,
        inode: &Inode,
    ) -> Entry {
        let searched = inode.kind != Kind::Dir || u32::from(inode.mode) & SEARCH_ALL == SEARCH_ALL;
        let found = SnapshotInode {
            view: view.clone(),
            root,
            ino: inode.ino,
            is_public: searched && above.is_none_or(|above| above.is_public),
        };
        let nodeid = self.nodes.enter(SnapshotNode::Inode(found));
        let kept = above.is_some_and(|above| above.is_public);
        let mut attr = convert::attr(inode);
        attr.ino = view.shown(inode.ino);
        let entry_ttl = if kept { FOREVER } else { Duration::ZERO };
        Entry { nodeid, generation: 1, attr, attr_ttl: FOREVER, entry_ttl }
    }
}

impl Core {
    /// A request about a node of a snapshot.
    pub(crate) fn snapshot_request(self: &Arc<Self>, request: Request<'_>, reply: Reply) {
        let caller: Caller = convert::caller(&request);
        let Some(snapshots) = &self.snapshots else { return reply.error(libc::ESTALE) };
        match request.op {
            Operation::Forget(forgets) => {
                return forgets.for_each(|(node, count)| self.forget(node, count));
            }
            Operation::Release { fh, .. } => return self.release_in_snapshot(caller, fh, reply),
            Operation::Releasedir { fh, .. } => {
                if let Some(dir) = snapshots.dirs.remove(fh)
                    && let OpenDir::Inside(view, dir) = &*dir
                {
                    view.fs().closedir(dir);
                }
                return reply.empty();
            }
            _ => {}
        }
        match snapshots.nodes.get(request.nodeid) {
            Some(SnapshotNode::Dir(dir)) => self.in_snapshot_dir(caller, dir, request, reply),
            Some(SnapshotNode::Inode(inode)) => self.in_snapshot(caller, inode, request, reply),
            None => reply.error(libc::ESTALE),
        }
    }

    /// The kernel forgot lookups of a node.
    pub(crate) fn forget(&self, node: u64, count: u64) {
        match &self.snapshots {
            Some(snapshots) if is_snapshot(node) => snapshots.forget(node, count),
            _ => self.naming.forget(&self.fs, node, count),
        }
    }
}
