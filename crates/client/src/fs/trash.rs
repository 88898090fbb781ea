//! The trash: what is removed below a directory with the policy `trash` is kept for a time in the
//! directory `/.trash/kept` of the volume ([`kestrel_types::trash`]).
//!
//! The node moves single names there ([`kestrel_meta`], `View::kept_place`). This makes the
//! directory, with the first policy, moves whole trees to it, and removes what has expired, in the
//! process that has the root's entry `.trash` in its engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_types::clock::SECOND;
use kestrel_types::crash;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::policy::{Policy, XATTR_EFFECTIVE, XATTR_PREFIX};
use kestrel_types::request::{Creds, DirEntry, Op};
use kestrel_types::trash::{KEPT, KeptName, TRASH};

use super::background::Stop;
use super::tree_removal::{FOREIGN_TRASH, RETRY, TakenTree, in_place};
use super::{Done, Fs, into_bytes, into_inode, plain};

/// Entries that are looked at for one request.
const PAGE_ENTRIES: usize = 1024;

/// Longest time between two looks for what has expired.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// How many directories lie above each other at most where a loop would be damage.
const DEPTH_MAX: usize = 4096;

const NOT_FROM_HERE: FsError = FsError::new(
    libc::EPERM,
    "the token of this client is for a part of the volume, and the trash is not in it",
);

/// A page of the trash.
pub struct KeptPage {
    /// What is kept.
    pub items: Vec<(KeptName, Inode)>,
    /// The last name that was looked at.
    pub last: Option<Name>,
    /// Nothing follows.
    pub end: bool,
}

impl Fs {
    /// The directory with what is kept, if there is one.
    ///
    /// # Errors
    /// `EPERM` for a client with a token for a subtree; `EEXIST` if `/.trash` is not root's alone;
    /// those of the requests.
    pub fn kept_dir(self: &Arc<Self>) -> FsResult<Option<InodeId>> {
        if self.metadata.is_subtree() {
            return Err(NOT_FROM_HERE);
        }
        self.trash_dir(KEPT)
    }

    /// Makes the directory for what is kept, unless it is there; then calls `then`.
    pub(super) fn with_kept_dir(self: &Arc<Self>, then: Done<()>) {
        if self.metadata.is_subtree() {
            return then(Err(NOT_FROM_HERE));
        }
        self.make_trash_dir(KEPT, Box::new(|made| then(made.map(|_| ()))));
    }

    /// Whether a directory is in the trash, or has been removed.
    ///
    /// # Errors
    /// Those of the requests.
    pub fn is_in_trash(self: &Arc<Self>, dir: InodeId) -> FsResult<bool> {
        let trash = match self.ask_as_root(Op::Lookup(PathRef::from_path(ROOT, TRASH)?)) {
            Err(FsError { errno: libc::ENOENT, .. }) => None,
            found => Some(into_inode(found?)?.ino),
        };
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if Some(at) == trash {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            at = match self.ask_as_root(Op::Parent(at)).and_then(into_inode) {
                Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => return Ok(true),
                above => above?.ino,
            };
        }
        Err(FsError::new(libc::EIO, "a directory lies in itself; run kestrel fsck"))
    }

    /// Takes the name of the directory `tree` away and keeps it with all that is below, if that is
    /// what counts where it lies. `None` if nothing is kept there.
    ///
    /// # Errors
    /// `ENOENT` and `ESTALE` if the directory is not at `place` any more; those of the requests.
    pub fn keep_tree(
        self: &Arc<Self>,
        place: &PathRef,
        tree: InodeId,
    ) -> FsResult<Option<TakenTree>> {
        let name = [XATTR_PREFIX, XATTR_EFFECTIVE].concat().into_boxed_slice();
        let text = match self.ask_as_root(Op::GetXattr(InodeRef::by_id(place.base), name)) {
            Err(FsError { errno: libc::ENODATA, .. }) => Box::default(),
            text => into_bytes(text?)?,
        };
        let policy = Policy::from_effective(&text);
        let Some(expiry) = policy.trash.and_then(|time| time.expiry(self.clock.now())) else {
            return Ok(None);
        };
        if self.metadata.is_subtree() {
            return Ok(Some(TakenTree::InPlace(NOT_FROM_HERE)));
        }
        if self.is_in_trash(place.base)? {
            return Ok(None);
        }
        let Some(kept) = self.trash_dir(KEPT)? else {
            // The node says what to do about that.
            return Ok(Some(TakenTree::InPlace(FsError::new(libc::ENOENT, "no /.trash/kept"))));
        };
        let name = KeptName::new(expiry, place.base, tree, place.name.as_bytes());
        let there = PathRef::new(kept, Name::new(&name.encode())?);
        match self.rename_tree(place, &there, tree) {
            Ok(()) => {
                crash::point("trash.renamed");
                Ok(Some(TakenTree::Kept { expiry }))
            }
            Err(error) => in_place(error).map(Some),
        }
    }

    /// What is kept, behind the name `after`, oldest expiry first. A directory that has been
    /// removed is an empty one: what was in it is kept by itself.
    ///
    /// # Errors
    /// Those of [`Fs::kept_dir`] and of the requests.
    pub fn kept_page(self: &Arc<Self>, after: Option<Name>, limit: usize) -> FsResult<KeptPage> {
        let nothing = KeptPage { items: Vec::new(), last: None, end: true };
        let Some(dir) = self.kept_dir()? else { return Ok(nothing) };
        let limit = limit.clamp(1, PAGE_ENTRIES);
        let (entries, end) = self.names_of(dir, after, limit)?;
        let last = entries.last().map(|entry| entry.name.clone());
        let named = |entry: DirEntry| Some((KeptName::decode(entry.name.as_bytes())?, entry));
        let named: Vec<_> = entries.into_iter().filter_map(named).collect();
        let ops = named.iter().map(|(_, entry)| Op::Lookup(PathRef::new(dir, entry.name.clone())));
        let found = self.replies(&Creds::root(), ops.collect());
        let mut items = Vec::with_capacity(named.len());
        for ((name, _), reply) in named.into_iter().zip(found) {
            match plain(reply).and_then(into_inode) {
                Ok(inode) => items.push((name, inode)),
                // Gone since it was listed.
                Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(KeptPage { items, last, end })
    }

    /// Removes something from the trash for good: of a directory the name at once, the rest in the
    /// background.
    ///
    /// # Errors
    /// Those of the requests.
    pub fn remove_kept(self: &Arc<Self>, place: &PathRef, item: &Inode) -> FsResult<()> {
        if item.kind != Kind::Dir {
            return self.ask_as_root(Op::Unlink(place.clone())).map(|_| ());
        }
        match self.take_tree(place, item.ino)? {
            TakenTree::InPlace(error) => Err(error),
            TakenTree::Background | TakenTree::Kept { .. } => Ok(()),
        }
    }

    /// Removes what has expired, and notes when to look again.
    pub(super) fn remove_expired(
        self: &Arc<Self>,
        stop: &Stop,
        look: &mut Option<Instant>,
    ) -> FsResult<()> {
        if look.is_some_and(|at| Instant::now() < at) || !self.keeps_trash()? {
            return Ok(());
        }
        *look = Some(Instant::now() + LOOK_INTERVAL);
        let dir = match self.trash_dir(KEPT) {
            Ok(Some(dir)) => dir,
            Ok(None) => return Ok(()),
            Err(error) if error == FOREIGN_TRASH => return Ok(()),
            Err(error) => return Err(error),
        };
        let (mut after, mut first_error, mut pace) = (None, None, self.pace());
        loop {
            let begun = Instant::now();
            let (entries, end) = self.names_of(dir, after, pace.names())?;
            after = entries.last().map(|entry| entry.name.clone());
            let now = (self.clock.now().max(0) / SECOND).cast_unsigned();
            let mut all_expired = true;
            let (mut files, mut trees) = (Vec::new(), Vec::new());
            for entry in entries {
                // What somebody else has put here stays.
                let Some(name) = KeptName::decode(entry.name.as_bytes()) else { continue };
                if name.expiry > now {
                    all_expired = false;
                    break;
                }
                let place = PathRef::new(dir, entry.name);
                match entry.kind {
                    Kind::Dir => trees.push((place, entry.ino)),
                    _ => files.push(Op::Unlink(place)),
                }
            }
            let own = (files.len() + trees.len() + 1) as u64;
            for reply in self.replies(&Creds::root(), files) {
                if let Err(error) = plain(reply) {
                    first_error = first_error.or(Some(error));
                }
            }
            for (place, tree) in trees {
                match self.take_tree(&place, tree) {
                    Ok(TakenTree::InPlace(error)) | Err(error) => {
                        first_error = first_error.or(Some(error));
                    }
                    Ok(_) => {}
                }
            }
            if end || !all_expired || self.rests(&mut pace, (begun, own), stop) {
                break;
            }
        }
        if first_error.is_some() {
            *look = Some(Instant::now() + RETRY);
        }
        first_error.map_or(Ok(()), Err)
    }
}
