//! Removal of whole trees (`kestrel rm -r`): the name goes at once, by a rename into a directory
//! that only the superuser can enter, and what was below it goes in the background, many requests
//! at a time.
//!
//! The directory is `/.trash/removing`, made when it is needed and removed when it is empty. A tree
//! in it has its inode number as its name. The process that has the root's entry `.trash` in its
//! engine removes what it finds there: after a crash, too, as the names that are left say what is
//! left to do.
//!
//! **Order.** The names in a directory go before the directory. A directory is known to
//! [`TreeRemoval`] from the page that names it until it is gone, and no page is asked for while
//! directories of the page before are left: memory does not grow with the tree.
//!
//! **Inside the tree.** Symbolic links go as names. What lies at a name is compared with what was
//! listed there before it is listed itself, so that a directory that has been moved out of the tree
//! stays.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_meta::node::Node;
use kestrel_types::crash;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, Creds, DirEntry, Op, RenameFlags};
use kestrel_types::trash::TRASH;

use super::background::{Stop, stopped_after};
use super::{Caller, Done, Fs, into_inode, plain, unanswered, unexpected, wait};

/// The directory in [`TRASH`] with the trees that are being removed.
pub(crate) const REMOVING: &[u8] = b"removing";

/// Permission bits of both.
const TRASH_MODE: u32 = 0o700;

/// Directories that are listed at once.
const DIRS_AT_ONCE: usize = 32;

/// Names that are asked for at once while no other requests come, and while some do.
const NAMES_IDLE: usize = 4096;
const NAMES_BUSY: usize = 128;

/// So many requests of others in a step, and so many more a second of it, are work that waits for
/// the node; fewer are looks at what is left, and the like.
const OTHERS_MIN: u64 = 4;
const OTHERS_PER_SECOND: f64 = 200.0;

/// While other requests come, the removal rests for so many times the time that it worked.
const REST_FACTOR: u32 = 20;

/// Longest rest.
const REST_MAX: Duration = Duration::from_millis(500);

/// How often a directory that is not empty any more when it should go is listed again.
const LISTINGS_MAX: u32 = 8;

/// Time until what could not be removed is tried again: what somebody has to change first, and what
/// other nodes did not answer in time.
pub(super) const RETRY: Duration = Duration::from_secs(60);
const RETRY_SOON: Duration = Duration::from_secs(2);

pub(super) const FOREIGN_TRASH: FsError =
    FsError::new(libc::EEXIST, "the volume has a /.trash that is not root's alone: rename it");

/// What has been removed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemovedCount {
    /// Names of anything but directories.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
}

/// What a removal could not remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRemoved {
    /// Its path below the tree's root; empty for the root.
    pub path: Vec<u8>,
    /// Why.
    pub error: FsError,
}

impl NotRemoved {
    /// When the background work tries again; it tells the log, unless that helps nobody.
    fn retry_after(&self, tree: InodeId) -> Duration {
        let Self { path, error } = self;
        if matches!(error.errno, libc::ETIMEDOUT | libc::EREMCHG) {
            return RETRY_SOON;
        }
        let path = path.escape_ascii();
        log::warn!("/.trash/removing/{tree}/{path}: not removed, tried again in a minute: {error}");
        RETRY
    }
}

/// A directory that is to go.
struct Dir {
    place: PathRef,
    /// Its first page has been asked for: it was at its place.
    seen: bool,
    /// The last name that was listed.
    after: Option<Name>,
    /// Nothing follows.
    end: bool,
    /// Directories in it that are left.
    below: usize,
    /// Something in it stays.
    stays: bool,
    /// Why it was not listed.
    unreadable: Option<FsError>,
    /// How often it was listed.
    listings: u32,
}

/// The removal of one tree.
pub struct TreeRemoval {
    creds: Creds,
    root: InodeId,
    dirs: HashMap<InodeId, Dir>,
    /// To be listed, the next one last.
    ready: Vec<InodeId>,
    /// Empty, as far as is known.
    empty: Vec<InodeId>,
    removed: RemovedCount,
    failed: Option<NotRemoved>,
    /// Sent so far.
    requests: u64,
}

impl TreeRemoval {
    /// The removal of the directory `root` at `place`, with the permissions of `creds`.
    pub fn new(creds: Creds, place: PathRef, root: InodeId) -> Self {
        let mut removal = Self {
            creds,
            root,
            dirs: HashMap::new(),
            ready: Vec::new(),
            empty: Vec::new(),
            removed: RemovedCount::default(),
            failed: None,
            requests: 0,
        };
        removal.add(root, place);
        removal
    }

    /// Nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.dirs.is_empty()
    }

    /// What has been removed.
    pub fn removed(&self) -> RemovedCount {
        self.removed
    }

    /// The first thing that could not be removed. The rest of the tree goes all the same.
    pub fn failed(&self) -> Option<&NotRemoved> {
        self.failed.as_ref()
    }

    /// Removes about so many names, all directories together.
    pub fn step(&mut self, fs: &Fs, names: usize) {
        let first = self.ready.len().saturating_sub(DIRS_AT_ONCE);
        let listed = self.ready.split_off(first);
        let limit = (names / listed.len().max(1)).max(1);
        let pages = self.pages(fs, &listed, limit);
        let mut unlinks = Vec::new();
        for (dir, page) in listed.iter().zip(pages) {
            match page {
                Ok(entries) => {
                    for entry in entries {
                        let place = PathRef::new(*dir, entry.name);
                        match entry.kind {
                            Kind::Dir => self.add_below(*dir, entry.ino, place),
                            _ => unlinks.push((*dir, place)),
                        }
                    }
                }
                Err(error) => self.unlisted(*dir, error),
            }
        }
        let ops = unlinks.iter().map(|(_, place)| Op::Unlink(place.clone())).collect::<Vec<_>>();
        for ((dir, place), answer) in unlinks.into_iter().zip(self.ask(fs, ops)) {
            match answer {
                Ok(_) => self.removed.files += 1,
                // Something else has the name: the directory is not empty in the end, and is listed
                // again.
                Err(FsError { errno: libc::ENOENT | libc::EISDIR, .. }) => {}
                Err(error) => self.stays(dir, Some(&place.name), error),
            }
        }
        for dir in listed {
            self.settle(dir);
        }
        self.remove_empty(fs);
    }

    fn ask(&mut self, fs: &Fs, ops: Vec<Op>) -> Vec<FsResult<Answer>> {
        self.requests += ops.len() as u64;
        fs.replies(&self.creds, ops).into_iter().map(plain).collect()
    }

    /// The next page of each directory.
    fn pages(&mut self, fs: &Fs, listed: &[InodeId], limit: usize) -> Vec<FsResult<Vec<DirEntry>>> {
        let (mut ops, mut looked_up) = (Vec::new(), Vec::new());
        for ino in listed {
            let Some(dir) = self.dirs.get_mut(ino) else { continue };
            looked_up.push(!dir.seen);
            if !dir.seen {
                dir.seen = true;
                ops.push(Op::Lookup(dir.place.clone()));
            }
            let after = dir.after.clone();
            ops.push(Op::ReadDir { dir: *ino, after, limit, check: true });
        }
        let mut answers = self.ask(fs, ops).into_iter();
        let mut next = || answers.next().unwrap_or_else(|| Err(unanswered()));
        let mut pages = Vec::with_capacity(listed.len());
        for (ino, looked_up) in listed.iter().zip(looked_up) {
            let at_place = match looked_up {
                true => next().and_then(into_inode).map(|inode| inode.ino),
                false => Ok(*ino),
            };
            let page = next();
            pages.push(at_place.and_then(|found| match found == *ino {
                true => self.take_page(*ino, page),
                false => Err(FsError::new(libc::ESTALE, "something else has the name now")),
            }));
        }
        pages
    }

    fn take_page(&mut self, ino: InodeId, page: FsResult<Answer>) -> FsResult<Vec<DirEntry>> {
        match page? {
            Answer::Entries { entries, end, .. } => {
                if let Some(dir) = self.dirs.get_mut(&ino) {
                    dir.end = end;
                    if let Some(last) = entries.last() {
                        dir.after = Some(last.name.clone());
                    }
                }
                Ok(entries)
            }
            other => Err(unexpected(&other)),
        }
    }

    fn add(&mut self, ino: InodeId, place: PathRef) {
        let dir = Dir {
            place,
            seen: false,
            after: None,
            end: false,
            below: 0,
            stays: false,
            unreadable: None,
            listings: 1,
        };
        self.dirs.insert(ino, dir);
        self.ready.push(ino);
    }

    fn add_below(&mut self, parent: InodeId, ino: InodeId, place: PathRef) {
        // A directory that was moved within the tree while it is removed has been listed twice.
        if self.dirs.contains_key(&ino) {
            return;
        }
        self.add(ino, place);
        if let Some(dir) = self.dirs.get_mut(&parent) {
            dir.below += 1;
        }
    }

    /// A directory could not be listed.
    fn unlisted(&mut self, ino: InodeId, error: FsError) {
        match error.errno {
            libc::ENOENT | libc::ESTALE => self.forget(ino, false),
            // An empty one goes, whichever permissions it has.
            libc::EACCES => {
                if let Some(dir) = self.dirs.get_mut(&ino) {
                    (dir.end, dir.unreadable) = (true, Some(error));
                }
            }
            _ => self.stays(ino, None, error),
        }
    }

    /// Where a directory goes on once nothing is being done with it.
    fn settle(&mut self, ino: InodeId) {
        let Some(dir) = self.dirs.get(&ino) else { return };
        match dir {
            Dir { below: 1.., .. } => {}
            Dir { end: false, .. } => self.ready.push(ino),
            Dir { stays: true, .. } => self.forget(ino, true),
            Dir { .. } => self.empty.push(ino),
        }
    }

    /// A directory is not to be looked at any more; if it stays, so does the one above.
    fn forget(&mut self, ino: InodeId, stays: bool) {
        let Some(dir) = self.dirs.remove(&ino) else { return };
        let above = dir.place.base;
        if ino == self.root {
            return;
        }
        if let Some(parent) = self.dirs.get_mut(&above) {
            parent.below -= 1;
            parent.stays |= stays;
            if parent.below == 0 {
                self.settle(above);
            }
        }
    }

    /// Removes the directories that are empty, and those above that become empty by that.
    fn remove_empty(&mut self, fs: &Fs) {
        while !self.empty.is_empty() {
            let places = self.next_empty(fs.node().is_some());
            let ops = places.iter().map(|(ino, place)| Op::RmDir(place.clone(), Some(*ino)));
            let ops: Vec<_> = ops.collect();
            for ((ino, _), answer) in places.into_iter().zip(self.ask(fs, ops)) {
                match answer {
                    Ok(_) => {
                        self.removed.dirs += 1;
                        self.forget(ino, false);
                    }
                    Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => {
                        self.forget(ino, false);
                    }
                    Err(error) => self.not_empty(ino, error),
                }
            }
        }
    }

    /// Empty directories that are removed at once. On several nodes two removals in one directory
    /// are transactions that lock the same rows and get in each other's way.
    fn next_empty(&mut self, is_one_node: bool) -> Vec<(InodeId, PathRef)> {
        let (mut places, mut later) = (Vec::new(), Vec::new());
        let mut parents = HashSet::new();
        for ino in std::mem::take(&mut self.empty) {
            let Some(dir) = self.dirs.get(&ino) else { continue };
            if is_one_node || parents.insert(dir.place.base) {
                places.push((ino, dir.place.clone()));
            } else {
                later.push(ino);
            }
        }
        self.empty = later;
        places
    }

    /// A directory did not go: if something was made in it meanwhile, that goes, too.
    fn not_empty(&mut self, ino: InodeId, error: FsError) {
        let Some(dir) = self.dirs.get_mut(&ino) else { return };
        let is_listable = dir.unreadable.is_none() && dir.listings < LISTINGS_MAX;
        if error.errno == libc::ENOTEMPTY && is_listable {
            (dir.after, dir.end) = (None, false);
            dir.listings += 1;
            self.ready.push(ino);
            return;
        }
        let error = dir.unreadable.take().unwrap_or(error);
        self.stays(ino, None, error);
        self.forget(ino, true);
    }

    /// Something in a directory, or the directory itself, stays.
    fn stays(&mut self, ino: InodeId, name: Option<&Name>, error: FsError) {
        if self.failed.is_none() {
            self.failed = Some(NotRemoved { path: self.path_of(ino, name), error });
        }
        if let Some(dir) = self.dirs.get_mut(&ino) {
            (dir.end, dir.stays) = (dir.end || name.is_none(), true);
        }
    }

    fn path_of(&self, mut ino: InodeId, name: Option<&Name>) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = name.map(Name::as_bytes).into_iter().collect();
        while ino != self.root
            && let Some(dir) = self.dirs.get(&ino)
        {
            parts.push(dir.place.name.as_bytes());
            ino = dir.place.base;
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

/// Whether other requests come beside those of a removal.
pub(super) struct Pace {
    is_busy: bool,
    /// The end of the step before, and the node's requests then.
    since: Instant,
    requests: u64,
}

impl Pace {
    fn new(requests: u64) -> Self {
        Self { is_busy: false, since: Instant::now(), requests }
    }

    /// Names that are removed in the next step.
    pub(super) fn names(&self) -> usize {
        if self.is_busy { NAMES_BUSY } else { NAMES_IDLE }
    }

    /// A step of so many requests has ended; the node has had so many in all.
    fn stepped(&mut self, own: u64, requests: u64) {
        let others = requests.saturating_sub(self.requests + own);
        let few = OTHERS_MIN + (self.since.elapsed().as_secs_f64() * OTHERS_PER_SECOND) as u64;
        *self = Self { is_busy: others > few, ..Self::new(requests) };
    }
}

/// Where a tree went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakenTree {
    /// Its name is gone; the rest goes in the background.
    Background,
    /// It is in the trash.
    Kept {
        /// When it expires, seconds since 1970.
        expiry: u64,
    },
    /// It is where it was: it cannot be renamed for this reason. [`TreeRemoval`] removes it there.
    InPlace(FsError),
}

impl Fs {
    /// Takes the name of the directory `tree` away, as the superuser; the background work removes
    /// what was below it.
    ///
    /// # Errors
    /// `ENOENT` and `ESTALE` if the directory is not at `place` any more; those of the requests.
    pub fn take_tree(self: &Arc<Self>, place: &PathRef, tree: InodeId) -> FsResult<TakenTree> {
        if self.metadata.is_subtree() {
            // The server looks into the volume's root alone.
            let why = "the token of this client is for a part of the volume";
            return Ok(TakenTree::InPlace(FsError::new(libc::EACCES, why)));
        }
        let number = Name::new(tree.to_string().as_bytes())?;
        let mut tries = 0;
        loop {
            tries += 1;
            let removing = match self.make_removing() {
                Ok(removing) => removing,
                // Whatever keeps it from being made.
                Err(error) => return Ok(TakenTree::InPlace(error)),
            };
            match self.rename_tree(place, &PathRef::new(removing, number.clone()), tree) {
                Ok(()) => break,
                // The background work removes it when it is empty.
                Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. })
                    if tries < LISTINGS_MAX && self.trash_dir(REMOVING)? != Some(removing) => {}
                Err(error) => {
                    // The directories that were made for it go again.
                    self.wake_background();
                    return in_place(error);
                }
            }
        }
        crash::point("removal.renamed");
        self.wake_background();
        Ok(TakenTree::Background)
    }

    /// Renames a tree; another directory that has its name gets it back.
    pub(super) fn rename_tree(
        self: &Arc<Self>,
        place: &PathRef,
        there: &PathRef,
        tree: InodeId,
    ) -> FsResult<()> {
        let flags = RenameFlags { no_replace: true, ..RenameFlags::default() };
        let rename = |from: &PathRef, to: &PathRef| {
            self.ask_as_root(Op::Rename(from.clone(), to.clone(), flags))
        };
        match rename(place, there)? {
            Answer::Renamed { moved, .. } if moved == tree => Ok(()),
            Answer::Renamed { .. } => {
                rename(there, place)?;
                Err(FsError::new(libc::ESTALE, "something else has the name now"))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Files and directories that are left of a tree that was taken; nothing once it is gone.
    ///
    /// # Errors
    /// Those of the requests.
    pub fn left_of_tree(self: &Arc<Self>, tree: InodeId) -> FsResult<Option<(u64, u64)>> {
        let path = [&*trash_path(REMOVING), b"/", tree.to_string().as_bytes()].concat();
        let gone = |error: FsError| match error.errno {
            libc::ENOENT | libc::ESTALE => Ok(None),
            _ => Err(error),
        };
        if let Err(error) = self.ask_as_root(Op::Lookup(PathRef::from_path(ROOT, &path)?)) {
            return gone(error);
        }
        match self.ask_as_root(Op::TreeUsage(tree)) {
            Ok(Answer::Usage(usage)) => Ok(Some((usage.files, usage.dirs))),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => gone(error),
        }
    }

    pub(super) fn ask_as_root(self: &Arc<Self>, op: Op) -> FsResult<Answer> {
        wait(|done| self.ask(Caller::ROOT, op, done))
    }

    /// A directory of the trash, if there is one.
    pub(super) fn trash_dir(self: &Arc<Self>, name: &[u8]) -> FsResult<Option<InodeId>> {
        let mut above = ROOT;
        for name in [TRASH, name] {
            let found = self.ask_as_root(Op::Lookup(PathRef::new(above, Name::new(name)?)));
            let inode = match found.and_then(into_inode) {
                Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => return Ok(None),
                found => found?,
            };
            if !is_trash_dir(&inode) {
                return Err(FOREIGN_TRASH);
            }
            above = inode.ino;
        }
        Ok(Some(above))
    }

    fn make_removing(self: &Arc<Self>) -> FsResult<InodeId> {
        match self.trash_dir(REMOVING)? {
            Some(removing) => Ok(removing),
            None => wait(|done| self.make_trash_dir(REMOVING, done)),
        }
    }

    /// Makes a directory of the trash, unless it is there.
    pub(super) fn make_trash_dir(self: &Arc<Self>, name: &'static [u8], done: Done<InodeId>) {
        self.make_trash_dir_tried(name, LISTINGS_MAX, done);
    }

    fn make_trash_dir_tried(
        self: &Arc<Self>,
        name: &'static [u8],
        tries: u32,
        done: Done<InodeId>,
    ) {
        if tries == 0 {
            let why = "/.trash goes as often as it is made; try again";
            return done(Err(FsError::new(libc::EBUSY, why)));
        }
        let fs = self.clone();
        self.make_roots_dir(TRASH, move |made| {
            if let Err(error) = made {
                return done(Err(error));
            }
            let again = fs.clone();
            fs.make_roots_dir(&trash_path(name), move |made| match made {
                // The background work removes them when they are empty.
                Err(FsError { errno: libc::ENOENT, .. }) => {
                    again.make_trash_dir_tried(name, tries - 1, done);
                }
                made => done(made),
            });
        });
    }

    /// Makes a directory that only the superuser can enter, or looks whether it is one.
    fn make_roots_dir(
        self: &Arc<Self>,
        path: &[u8],
        then: impl FnOnce(FsResult<InodeId>) + Send + 'static,
    ) {
        let place = match PathRef::from_path(ROOT, path) {
            Ok(place) => place,
            Err(error) => return then(Err(error)),
        };
        let fs = self.clone();
        self.ask(Caller::ROOT, Op::MkDir(place.clone(), TRASH_MODE), move |made| match made {
            Err(FsError { errno: libc::EEXIST, .. }) => {
                fs.ask(Caller::ROOT, Op::Lookup(place), move |found| {
                    then(found.and_then(into_inode).and_then(|inode| match is_trash_dir(&inode) {
                        true => Ok(inode.ino),
                        false => Err(FOREIGN_TRASH),
                    }));
                });
            }
            made => then(made.and_then(into_inode).map(|inode| inode.ino)),
        });
    }

    /// A page of the names in a directory, as the superuser, and whether nothing follows.
    ///
    /// # Errors
    /// Those of the request.
    pub fn names_of(
        self: &Arc<Self>,
        dir: InodeId,
        after: Option<Name>,
        limit: usize,
    ) -> FsResult<(Vec<DirEntry>, bool)> {
        match self.ask_as_root(Op::ReadDir { dir, after, limit, check: false })? {
            Answer::Entries { entries, end, .. } => Ok((entries, end)),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes what was taken before, until nothing is left that can go.
    pub(super) fn remove_taken(
        self: &Arc<Self>,
        stop: &Stop,
        retry: &mut Option<Instant>,
    ) -> FsResult<()> {
        if retry.is_some_and(|at| Instant::now() < at) || !self.keeps_trash()? {
            return Ok(());
        }
        *retry = None;
        let removing = match self.trash_dir(REMOVING) {
            Ok(Some(removing)) => removing,
            Ok(None) => return self.remove_trash(),
            Err(error) if error == FOREIGN_TRASH => return Ok(()),
            Err(error) => return Err(error),
        };
        let root = Creds::root();
        let mut pace = self.pace();
        let mut after = None;
        loop {
            let (entries, _) = self.names_of(removing, after, DIRS_AT_ONCE)?;
            let Some(last) = entries.last() else { break };
            after = Some(last.name.clone());
            for entry in entries {
                let place = PathRef::new(removing, entry.name);
                let mut removal = TreeRemoval::new(root.clone(), place, entry.ino);
                while !removal.is_done() {
                    if self.remove_some(&mut removal, &mut pace, stop) {
                        return Ok(());
                    }
                }
                if let Some(failed) = removal.failed() {
                    *retry = Some(Instant::now() + failed.retry_after(entry.ino));
                }
            }
        }
        self.remove_trash()
    }

    /// Removes the directories for what is removed, unless something is in them.
    fn remove_trash(self: &Arc<Self>) -> FsResult<()> {
        for path in [trash_path(REMOVING), TRASH.to_vec()] {
            match self.ask_as_root(Op::RmDir(PathRef::from_path(ROOT, &path)?, None)) {
                Err(FsError { errno: libc::ENOTEMPTY, .. }) => break,
                Ok(_) | Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// One step of a removal, and a rest if other requests came since the one before. True if the
    /// background work is to end.
    fn remove_some(&self, removal: &mut TreeRemoval, pace: &mut Pace, stop: &Stop) -> bool {
        let begun = Instant::now();
        let before = removal.requests;
        removal.step(self, pace.names());
        crash::point("removal.step");
        self.rests(pace, (begun, removal.requests - before), stop)
    }

    /// A rest after a step that began then and sent so many requests, if others came meanwhile.
    /// True if the background work is to end.
    pub(super) fn rests(&self, pace: &mut Pace, (begun, own): (Instant, u64), stop: &Stop) -> bool {
        pace.stepped(own, self.metadata.stats().requests_total());
        let rest = (begun.elapsed() * REST_FACTOR).min(REST_MAX);
        stopped_after(stop, if pace.is_busy { rest } else { Duration::ZERO })
    }

    /// The pace of background work that begins.
    pub(super) fn pace(&self) -> Pace {
        Pace::new(self.metadata.stats().requests_total())
    }

    /// Whether the node in this process has the root's entry [`TRASH`].
    pub(super) fn keeps_trash(&self) -> FsResult<bool> {
        let node: &Arc<Node> = match (self.node(), self.member()) {
            (Some(node), _) => node,
            (None, Some(member)) => member.node(),
            (None, None) => return Ok(false),
        };
        node.has_entry(ROOT, TRASH)
    }
}

/// The path of a directory of the trash.
fn trash_path(name: &[u8]) -> Vec<u8> {
    [TRASH, b"/", name].concat()
}

/// Whether something is a directory of the trash, which is the superuser's alone.
fn is_trash_dir(inode: &Inode) -> bool {
    inode.kind == Kind::Dir && inode.uid == 0 && u32::from(inode.mode) & 0o777 == TRASH_MODE
}

/// Where a tree is after it could not be renamed.
pub(super) fn in_place(error: FsError) -> FsResult<TakenTree> {
    match error.errno {
        // Below a quota; permissions of this client; no room.
        libc::EXDEV | libc::EACCES | libc::EPERM | libc::EDQUOT | libc::ENOSPC => {
            Ok(TakenTree::InPlace(error))
        }
        _ => Err(error),
    }
}
