//! What a session may do: what the token allows that it was begun with. Checked for every call,
//! before the node gets it.
//!
//! A request that may be carried out is changed to what it may mean: users are squashed and mapped,
//! and an operation that does not depend on its user is carried out without one. Inodes are
//! authorized by what the session was granted ([`crate::granted`]); one that is not found
//! there is an [`UnverifiedInode`], which is looked up in the node's rows
//! (`crate::server::subtree`).

use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

use kestrel_types::clock::Nanos;
use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::range::Range;
use kestrel_types::request::{Creds, Named, Op, Request};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::token::{Ended, TokenRecord};
use kestrel_types::wire::{LockKind, LockMode, LockRequest};

use crate::granted::{GrantedInodes, Tree};
use crate::opens::Opens;

/// The credentials where they do not matter, and of sessions without a user.
const NOBODY: u32 = 65_534;

const NOT_COVERED: FsError =
    FsError::new(libc::EACCES, "the token of this client does not cover the user of this request");
const READ_ONLY: FsError = FsError::new(libc::EROFS, "the token of this client is read-only");
const NOT_FOR_WRITING: FsError = FsError::new(
    libc::EBADF,
    "a lock for writing needs a file open for writing, and the token is read-only",
);
const NOT_LISTABLE: FsError =
    FsError::new(libc::EACCES, "this client has not opened the directory for reading");

const NO_SNAPSHOTS: FsError = FsError::new(
    libc::EPERM,
    "the token of this client is confined to a subtree: snapshots need one for the whole volume",
);

const NOT_OPEN_FOR_WRITING: FsError =
    FsError::new(libc::EBADF, "this client does not have the file open for writing");
const NOT_OPEN_HERE: FsError = FsError::new(
    libc::EOPNOTSUPP,
    "this client does not have the file open that it copies from, at this node",
);

/// What is told of what is not within the subtree: no more than of what is not there.
pub(crate) const OUTSIDE: FsError = FsError::new(
    libc::ESTALE,
    "the token of this client knows no such file or directory: look for it by its path",
);

/// An object that is never there.
const WITHHELD: ObjectId = ObjectId::MAX;

/// Numbers of [`Ended`] in [`Grant::ended`].
const LIVE: u8 = 0;
const EXPIRED: u8 = 1;
const REVOKED: u8 = 2;

/// What a token allows at present, shared by the sessions that it was shown for.
#[derive(Debug)]
pub struct Grant {
    /// The token's record when the first of them began. When it ends is below.
    pub record: TokenRecord,
    expires: AtomicI64,
    ended: AtomicU8,
}

/// An inode in a request that is not verified yet to be within the subtree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnverifiedInode {
    /// A directory, by number.
    Dir(InodeId),
    /// An inode, and where it was seen.
    Ref(InodeRef),
}

/// A directory that a session may list if the request is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listable {
    /// This one, as it is (0) or was at a snapshot.
    Dir(SnapshotId, InodeId),
    /// The one that the answer names, as it is (0) or was at a snapshot.
    Answered(SnapshotId),
}

/// What a request that may be carried out leaves to find out, or to note of its answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Authorized {
    /// To be within the subtree before it is carried out.
    pub unverified: Vec<UnverifiedInode>,
    /// Read permission of this directory is checked: if that is allowed, the session may list it.
    pub listed: Option<Listable>,
}

impl Grant {
    /// What a record allows.
    pub fn new(record: TokenRecord) -> Self {
        let expires = AtomicI64::new(record.expires.unwrap_or(Nanos::MAX));
        Self { record, expires, ended: AtomicU8::new(LIVE) }
    }

    /// Takes over changes of the token. True if it ends by that.
    pub fn learn(&self, record: &TokenRecord, now: Nanos) -> bool {
        self.expires.fetch_min(record.expires.unwrap_or(Nanos::MAX), Ordering::Relaxed);
        if record.revoked.is_some() {
            return self.end(REVOKED);
        }
        self.refresh(now)
    }

    /// Time has passed. True if the token ends by that. The clock may also have been wrong: one
    /// that expired by it is good again when it is back, unlike one that was revoked.
    pub fn refresh(&self, now: Nanos) -> bool {
        if self.expires.load(Ordering::Relaxed) <= now {
            return self.end(EXPIRED);
        }
        let _ = self.ended.compare_exchange(EXPIRED, LIVE, Ordering::Relaxed, Ordering::Relaxed);
        false
    }

    fn end(&self, why: u8) -> bool {
        let before = self.ended.load(Ordering::Relaxed);
        // What is revoked stays so.
        let ends = before == LIVE || (before, why) == (EXPIRED, REVOKED);
        ends && self
            .ended
            .compare_exchange(before, why, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Why it allows nothing any more, if that is so.
    pub fn ended(&self) -> Option<Ended> {
        match self.ended.load(Ordering::Relaxed) {
            LIVE => None,
            EXPIRED => Some(Ended::Expired),
            _ => Some(Ended::Revoked),
        }
    }

    /// The error for a client after its token has ended.
    pub fn why_ended(&self, ended: Ended) -> FsError {
        let why = format!(
            "token {} ({}) has {}: ask an administrator of the volume for a new one",
            self.record.id,
            self.record.name,
            match ended {
                Ended::Revoked => "been revoked",
                Ended::Expired => "expired",
            }
        );
        FsError::because(libc::EACCES, why)
    }

    /// The only directory there is for its sessions, if they are confined.
    pub fn root(&self) -> Option<InodeId> {
        self.record.subtree.as_ref().map(|tree| tree.dir)
    }

    /// Whether a session may make this request, which is changed to what it may mean.
    ///
    /// # Errors
    /// `EACCES` for a user or group that the token does not cover; `EROFS` for changes if it is
    /// read-only; `EACCES` once it has ended.
    pub fn authorize(
        &self,
        request: &mut Request,
        given: &mut GrantedInodes,
        opens: &Opens,
        tree: &dyn Tree,
    ) -> Result<Authorized, FsError> {
        if let Some(ended) = self.ended() {
            return Err(self.why_ended(ended));
        }
        if self.record.read_only && request.op.is_change() {
            return Err(READ_ONLY);
        }
        let mut authorized = Authorized::default();
        if self.limits_users() {
            authorize_handles(&mut request.op, opens)?;
            self.authorize_user(request, given, &mut authorized)?;
        }
        if let Some(root) = self.root() {
            if is_of_snapshots(&request.op) {
                return Err(NO_SNAPSHOTS);
            }
            if is_of_the_volume(&request.op) {
                // Its answer tells of all the volume.
                return Err(OUTSIDE);
            }
            let by_descriptor = needs_only_an_open(&request.op);
            let mut within = Within { root, given, opens, tree, by_descriptor };
            collect_unverified(&mut request.op, &mut within, &mut authorized.unverified);
        }
        Ok(authorized)
    }

    /// As [`Grant::authorize`], of a request about a lock.
    ///
    /// # Errors
    /// `EBADF` for a POSIX lock for writing if the token is read-only; `EACCES` once it has ended.
    pub fn authorize_lock(
        &self,
        request: &LockRequest,
        given: &mut GrantedInodes,
        opens: &Opens,
        tree: &dyn Tree,
    ) -> Result<Option<UnverifiedInode>, FsError> {
        if let Some(ended) = self.ended() {
            return Err(self.why_ended(ended));
        }
        if let LockRequest::Set { lock, .. } = request
            && self.record.read_only
            && (lock.kind, lock.mode) == (LockKind::Posix, LockMode::Write)
        {
            return Err(NOT_FOR_WRITING);
        }
        Ok(self.unverified(&InodeRef::by_id(request.ino()), given, opens, tree))
    }

    /// An entry if a file is not verified yet to be within the subtree, and the session does not
    /// have it open either.
    pub fn unverified(
        &self,
        file: &InodeRef,
        given: &mut GrantedInodes,
        opens: &Opens,
        tree: &dyn Tree,
    ) -> Option<UnverifiedInode> {
        let mut within = Within { root: self.root()?, given, opens, tree, by_descriptor: true };
        (!within.has(file)).then(|| UnverifiedInode::Ref(file.clone()))
    }

    /// How a session that is to have a file open, by its own claim, has it: for writing or not; not
    /// at all if none of the users that the token covers could open it. More than an open would
    /// give it such a claim does not.
    pub fn claimed(&self, inode: &Inode) -> Option<bool> {
        let may = |bits| !self.limits_users() || self.some_user_may(inode, bits);
        may(0o7).then(|| may(0o2))
    }

    /// Takes the content of a small file out of an answer, unless the session has it open or could
    /// read it by opening it. What it has instead is no content anywhere, and cannot be taken for
    /// some: a client that reads it fails, and sends the request again.
    pub fn withhold(&self, inode: &mut Inode, opens: &Opens) {
        let Inode { kind: Kind::File, data: Data::Inline(content), .. } = inode else { return };
        let len = content.len() as u32;
        if len == 0
            || !self.limits_users()
            || opens.get(inode.ino).count > 0
            || self.some_user_may(inode, 0o5)
        {
            return;
        }
        inode.data =
            Data::Packed { range: Range { object: WITHHELD, offset: 0, len }, visible: len };
    }

    /// Whether some user that the token covers has one of these permissions (of the three bits of a
    /// class), or may give them to himself.
    fn some_user_may(&self, inode: &Inode, bits: u16) -> bool {
        let TokenRecord { gids, .. } = &self.record;
        self.covers(0)
            || self.covers(inode.uid)
            || inode.mode & bits != 0
            || gids.has(inode.gid) && inode.mode >> 3 & bits != 0
            || inode.mode >> 3 & bits != 0 && self.some_named_may(inode, bits)
    }

    /// Whether the ACL names a user or group that the token covers, with one of these permissions
    /// by itself and by the mask.
    fn some_named_may(&self, inode: &Inode, bits: u16) -> bool {
        let Some(acl) = inode.acls.as_ref().and_then(|acls| acls.access.as_ref()) else {
            return false;
        };
        acl.named.iter().any(|named| {
            let covers = match named.group {
                true => self.record.gids.has(named.id),
                false => self.covers(named.id),
            };
            covers && u16::from(named.perm) & inode.mode >> 3 & bits != 0
        })
    }

    /// Whether a request may come to be this user's.
    fn covers(&self, uid: u32) -> bool {
        let TokenRecord { uids, squash, map, .. } = &self.record;
        let is_squashed = |user: u32| user == 0 && squash.is_some();
        let itself = !is_squashed(uid) && map.binary_search_by_key(&uid, |pair| pair.0).is_err();
        uids.has(uid)
            && (itself
                || squash.is_some_and(|(squashed, _)| squashed == uid)
                || map.iter().any(|(from, to)| *to == uid && !is_squashed(*from)))
    }

    /// Whether the credentials make a difference.
    fn limits_users(&self) -> bool {
        let TokenRecord { uids, gids, squash, map, .. } = &self.record;
        squash.is_some()
            || !map.is_empty()
            || *uids != kestrel_types::token::Ids::All
            || *gids != kestrel_types::token::Ids::All
    }

    fn authorize_user(
        &self,
        request: &mut Request,
        given: &mut GrantedInodes,
        authorized: &mut Authorized,
    ) -> Result<(), FsError> {
        let covered = self.map_user(&mut request.creds);
        // An honest client goes on with a listing, and ends what it does through handles,
        // without a particular user.
        let (at, op) = read_at(&mut request.op);
        if let Op::ReadDir { dir, check, .. } = op {
            if !*check && given.listed.get((at, *dir)).is_none() {
                *check = true;
                if covered.is_err() {
                    return Err(NOT_LISTABLE);
                }
            }
            if *check {
                covered?;
                authorized.listed = Some(Listable::Dir(at, *dir));
            }
            return Ok(());
        }
        match covered {
            Ok(()) => {
                authorized.listed = allows_listing(at, op);
                Ok(())
            }
            Err(_) if needs_no_user(op) => {
                request.creds = Creds { uid: NOBODY, gid: NOBODY, groups: Some([].into()) };
                Ok(())
            }
            Err(why) => Err(why),
        }
    }

    /// Maps the credentials to those that they stand for.
    fn map_user(&self, creds: &mut Creds) -> Result<(), FsError> {
        let TokenRecord { uids, gids, squash, map, .. } = &self.record;
        match squash {
            Some((uid, gid)) if creds.uid == 0 => {
                *creds = Creds { uid: *uid, gid: *gid, groups: Some([].into()) };
            }
            _ => {
                if let Ok(at) = map.binary_search_by_key(&creds.uid, |pair| pair.0) {
                    creds.uid = map[at].1;
                }
            }
        }
        if !uids.has(creds.uid) || !gids.has(creds.gid) {
            return Err(NOT_COVERED);
        }
        // A client that leaves groups out has fewer rights, which it may choose by itself.
        if let Some(groups) = &creds.groups
            && !groups.iter().all(|group| gids.has(*group))
        {
            creds.groups = Some(groups.iter().copied().filter(|group| gids.has(*group)).collect());
        }
        Ok(())
    }
}

/// A mount's request without a user, or without a check of permissions, because it has the file
/// open: it has to have it open here.
fn authorize_handles(op: &mut Op, opens: &Opens) -> Result<(), FsError> {
    match read_at(op).1 {
        Op::Compact { inode, .. } if !opens.get(inode.ino).write => Err(NOT_OPEN_FOR_WRITING),
        // A client then copies what it can read.
        Op::Clone { from, .. } if opens.get(from.ino).count == 0 => Err(NOT_OPEN_HERE),
        // An open for nothing asks for no permission, and its answer has the content.
        Op::Open(_, flags) | Op::OpenAt(_, flags) | Op::Create { flags, .. }
            if !(flags.write || flags.exec || flags.truncate) =>
        {
            flags.read = true;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether an operation is about snapshots.
fn is_of_snapshots(op: &Op) -> bool {
    matches!(
        op,
        Op::At(..)
            | Op::SnapshotCreate { .. }
            | Op::SnapshotRename { .. }
            | Op::SnapshotRemove { .. }
            | Op::SnapshotHold { .. }
            | Op::SnapshotList { .. }
            | Op::SnapshotChanges { .. }
            | Op::SnapshotUsage { .. }
            | Op::CloneDir { .. }
            | Op::CloneStep(_)
    )
}

/// Whether an operation is about all of the volume.
fn is_of_the_volume(op: &Op) -> bool {
    matches!(
        op,
        Op::Locate { .. }
            | Op::QuotaSet(..)
            | Op::QuotaRemove(_)
            | Op::QuotaList(None)
            | Op::QuotaCheck { .. }
            | Op::FeedRead { .. }
    )
}

/// The operation that is executed, and at which snapshot; 0 for the present.
fn read_at(op: &mut Op) -> (SnapshotId, &mut Op) {
    match op {
        Op::At(at, op) => (*at, op),
        op => (0, op),
    }
}

/// Whether the node does not look at the credentials, or only at what their user may leave as it
/// was. The latter is taken away.
fn needs_no_user(op: &mut Op) -> bool {
    match op {
        Op::Parent(_)
        | Op::GetAttr(_)
        | Op::ReadLink(_)
        | Op::Accessed(..)
        | Op::Release(_)
        | Op::Compact { .. }
        | Op::Chunks { .. }
        | Op::AllocObjects(_)
        | Op::Usage
        | Op::TreeUsage(_)
        | Op::QuotaList(Some(_))
        | Op::Sync => true,
        Op::Commit(commit) => {
            commit.kill_suid = true;
            true
        }
        Op::SetAttr(_, set) if set.through_handle => {
            set.kill_suid = true;
            true
        }
        _ => false,
    }
}

/// The directory, if it is one, that a session may list if the request is allowed: a mount sends
/// such a request when it opens one.
fn allows_listing(at: SnapshotId, op: &Op) -> Option<Listable> {
    match op {
        Op::Access(inode, mask) => {
            (mask & libc::R_OK as u32 != 0).then_some(Listable::Dir(at, inode.ino))
        }
        Op::Open(inode, flags) => flags.read.then_some(Listable::Dir(at, inode.ino)),
        Op::OpenAt(_, flags) => flags.read.then_some(Listable::Answered(at)),
        _ => None,
    }
}

/// Whether an operation is what an open descriptor of a file asks for, wherever the file is by now.
/// (Of a stat the server cannot tell whether it is asked for by a descriptor.)
fn needs_only_an_open(op: &Op) -> bool {
    match op {
        Op::SetAttr(_, set) => set.through_handle,
        Op::GetAttr(_)
        | Op::Accessed(..)
        | Op::Chunks { .. }
        | Op::Commit(_)
        | Op::Compact { .. }
        | Op::Clone { .. }
        | Op::Release(_) => true,
        _ => false,
    }
}

/// What is verified to be within the subtree of a session.
struct Within<'a> {
    root: InodeId,
    given: &'a mut GrantedInodes,
    opens: &'a Opens,
    tree: &'a dyn Tree,
    /// To have a file open is enough.
    by_descriptor: bool,
}

impl Within<'_> {
    fn has_dir(&mut self, dir: InodeId) -> bool {
        self.given.has_dir(dir, self.root, self.tree)
    }

    /// Whether a file is, or a directory.
    fn has(&mut self, inode: &InodeRef) -> bool {
        self.by_descriptor && self.opens.get(inode.ino).count > 0
            || self.given.has_file(inode.ino, inode.seen.as_ref(), self.root, self.tree)
            || self.has_dir(inode.ino)
    }

    /// Notes an inode that is not verified.
    fn note(&mut self, inode: &InodeRef, unverified: &mut Vec<UnverifiedInode>) {
        if !self.has(inode) {
            unverified.push(UnverifiedInode::Ref(inode.clone()));
        }
    }
}

/// Collects the inodes in a request that are not verified to be within the subtree. A path never
/// leaves it: names are names, and links are the client's to follow.
fn collect_unverified(op: &mut Op, within: &mut Within<'_>, unverified: &mut Vec<UnverifiedInode>) {
    // What is above it is itself, as above the root.
    if *op == Op::Parent(within.root) {
        *op = Op::GetAttr(InodeRef::by_id(within.root));
        return;
    }
    // No client may make that request, wherever the file is.
    if matches!(op, Op::Sweep(_)) {
        return;
    }
    op.visit_named(&mut |named| match named {
        Named::Dir(dir) if within.has_dir(*dir) => {}
        Named::Dir(dir) => unverified.push(UnverifiedInode::Dir(*dir)),
        Named::Ref(inode) => within.note(inode, unverified),
        Named::File(ino) => within.note(&InodeRef::by_id(*ino), unverified),
    });
}
