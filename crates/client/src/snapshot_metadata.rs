//! The metadata of a volume as it was at a snapshot: every request of an [`Fs`](crate::Fs) is
//! executed at one moment of the past.
//!
//! [`SnapshotMetadata`] stands between such an `Fs` and the metadata of the live volume. It wraps
//! what reads in [`Op::At`] and refuses what would change something with `EROFS`; block store,
//! caches, memory budgets and threads are those of the live `Fs` ([`crate::fs::Fs::at`]).
//!
//! **Without asking.** What is at a snapshot never changes. So an inode that the node has told of
//! once answers the next look-up, stat, open, permission check or `readlink(2)` here, by the
//! caller's permissions, as long as it is kept: a second walk sends no request. Opens are not
//! counted, so a release asks nobody either.
//!
//! **Removal.** A snapshot that this process has removed answers `ESTALE` from then on. One that
//! another process has removed does so with the first request that has to be sent.

use std::sync::{Arc, OnceLock};

use kestrel_meta::ops::access;
use kestrel_rpc::client::RemoteStats;
use kestrel_types::acl::{XATTR_ACCESS, XATTR_DEFAULT};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ObjectId, ROOT};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::op_counters::NodeStats;
use kestrel_types::perm::{EXEC, READ};
use kestrel_types::request::{Answer, Creds, Done, Op, OpenFlags, Outcome, Reply, Request, Usage};
use kestrel_types::snapshot::SnapshotId;

use crate::kept_inodes::KeptInodes;
use crate::metadata::{Metadata, attribute_of_none};
use crate::subtree;

/// The way to the metadata of a volume as it was at a snapshot.
pub(crate) struct SnapshotMetadata {
    live: Arc<dyn Metadata>,
    at: SnapshotId,
    /// The directory that is the root.
    root: InodeId,
    kept: Arc<KeptInodes>,
    /// What the volume had, once that was asked for.
    usage: Arc<OnceLock<Usage>>,
}

/// What becomes of a request at a snapshot.
enum Handling {
    /// The node is asked, unless what is kept answers.
    Ask,
    /// It is done: nothing is counted and nothing is to be made durable.
    Nothing,
    /// It would change something.
    Refuse,
}

impl Handling {
    fn of(op: &Op) -> Self {
        match op {
            Op::Accessed(..) | Op::Release(_) | Op::Sync => Self::Nothing,
            Op::Open(_, flags) | Op::OpenAt(_, flags) if !flags.write && !flags.truncate => {
                Self::Ask
            }
            Op::AllocObjects(_) => Self::Refuse,
            op if op.is_numbered() => Self::Refuse,
            _ => Self::Ask,
        }
    }
}

impl SnapshotMetadata {
    /// The volume of `live` at a snapshot, with `root` for its root directory.
    pub fn new(
        live: Arc<dyn Metadata>,
        (at, root): (SnapshotId, InodeId),
        kept: Arc<KeptInodes>,
    ) -> Self {
        Self { live, at, root, kept, usage: Arc::default() }
    }

    /// The answer by what is kept, if that is enough.
    fn answer(&self, creds: &Creds, op: &Op) -> Option<Reply> {
        let kept = |ino| self.kept.inode(self.at, ino);
        let answered = match op {
            Op::GetAttr(inode) => Ok(Answer::Inode(Box::new((*kept(inode.ino)?).clone()))),
            Op::Access(inode, mask) => {
                let inode = kept(inode.ino).filter(|inode| self.may_answer(inode, *mask))?;
                access::of_removed(creds, &inode, *mask).map(|()| Answer::Done)
            }
            Op::ReadLink(inode) => match &*kept(inode.ino)? {
                Inode { kind: Kind::Symlink, data: Data::Inline(target), .. } => {
                    Ok(Answer::Bytes(target.clone()))
                }
                _ => return None,
            },
            Op::Open(inode, flags) => self.opened(creds, &*kept(inode.ino)?, flags, None)?,
            Op::Lookup(place) => self.found(creds, place)?.map(|inode| Answer::Entry {
                parent: place.base,
                inode: Box::new((*inode).clone()),
            }),
            Op::OpenAt(place, flags) => match self.found(creds, place)? {
                Ok(inode) => self.opened(creds, &inode, flags, Some(place.base))?,
                Err(outcome) => Err(outcome),
            },
            Op::Usage => Ok(Answer::Usage(*self.usage.get()?)),
            Op::Chunks { ino, first, last } => {
                Ok((*self.kept.stretch(self.at, *ino, (*first, *last))?).clone())
            }
            Op::ListXattr(inode) => Ok(Answer::Bytes(self.attribute_names(creds, inode.ino)?)),
            Op::GetXattr(inode, name) => self.attribute(creds, inode.ino, name)?,
            _ => return None,
        };
        Some(answered)
    }

    /// Names of extended attributes, if they are kept: users other than root are not told all.
    fn attribute_names(&self, creds: &Creds, ino: InodeId) -> Option<Box<[u8]>> {
        if !self.kept.inode(self.at, ino)?.xattrs {
            return Some(Box::default());
        }
        let names = self.kept.attribute(self.at, ino, b"").filter(|_| creds.uid == 0)?;
        Some(names.as_ref().into())
    }

    /// An extended attribute, if what is kept says all about it.
    fn attribute(
        &self,
        creds: &Creds,
        ino: InodeId,
        name: &[u8],
    ) -> Option<Result<Answer, Outcome>> {
        let inode = self.kept.inode(self.at, ino)?;
        if matches!(name, XATTR_ACCESS | XATTR_DEFAULT) {
            // ACLs are part of the inode.
            return inode.acls.is_none().then(|| Err(no_attribute().into()));
        }
        if let Some(error) = attribute_of_none(name)
            && (!inode.xattrs || error.errno == libc::EOPNOTSUPP)
        {
            return Some(Err(error.into()));
        }
        let value = match inode.xattrs {
            true => self.kept.attribute(self.at, ino, name),
            false => None,
        };
        let names = || self.kept.attribute(self.at, ino, b"");
        let is_absent = !inode.xattrs
            || names().is_some_and(|names| !names.split(|byte| *byte == 0).any(|one| one == name));
        let answer = match value {
            Some(value) => Ok(Answer::Bytes(value.as_ref().into())),
            None if is_absent => Err(no_attribute().into()),
            None => return None,
        };
        match name {
            name if name.starts_with(b"security.") => Some(answer),
            name if name.starts_with(b"trusted.") && creds.uid == 0 => Some(answer),
            name if name.starts_with(b"user.")
                && name.len() > b"user.".len()
                && matches!(inode.kind, Kind::File | Kind::Dir) =>
            {
                Some(access::of_removed(creds, &inode, READ).and(answer))
            }
            _ => None,
        }
    }

    /// What is kept of an entry of a directory that is kept, or why the caller may not look.
    fn found(&self, creds: &Creds, place: &PathRef) -> Option<Result<Arc<Inode>, Outcome>> {
        if !place.dirs.is_empty() {
            return None;
        }
        let inode = self.kept.inode(self.at, self.kept.named(self.at, place.base, &place.name)?)?;
        let dir = self.kept.inode(self.at, place.base).filter(|dir| dir.kind == Kind::Dir)?;
        Some(access::of_removed(creds, &dir, EXEC).map(|()| inode))
    }

    /// Opens what is kept; `None` if that is for the node to judge.
    fn opened(
        &self,
        creds: &Creds,
        inode: &Inode,
        flags: &OpenFlags,
        parent: Option<InodeId>,
    ) -> Option<Result<Answer, Outcome>> {
        let mask = mask_of(flags);
        if !matches!(inode.kind, Kind::File | Kind::Dir) || !self.may_answer(inode, mask) {
            return None;
        }
        Some(access::of_removed(creds, inode, mask).map(|()| Answer::Opened {
            inode: Box::new(inode.clone()),
            created: false,
            parent,
        }))
    }

    /// Whether a question for permissions can be answered here: a server lets a directory be listed
    /// that it was asked about.
    fn may_answer(&self, inode: &Inode, mask: u32) -> bool {
        inode.kind != Kind::Dir || mask & READ == 0 || self.kept.is_listable(self.at, inode.ino)
    }
}

/// The permissions that an open to read needs.
fn mask_of(flags: &OpenFlags) -> u32 {
    (u32::from(flags.read) * READ) | (u32::from(flags.exec) * EXEC)
}

/// What of a request is kept with its answer.
#[derive(Default)]
struct Asked {
    /// The last name of its path.
    name: Option<Name>,
    /// It asks whether a directory may be listed.
    lists: bool,
    /// Which one, if the answer does not say.
    dir: Option<InodeId>,
    /// It asks for this extended attribute of an inode; under the empty name for all names.
    attribute: Option<(InodeId, Box<[u8]>)>,
    /// It asks for the extents of these chunks of a file.
    stretch: Option<(InodeId, (u64, u64))>,
    /// It asks what the volume has.
    is_usage: bool,
}

impl Asked {
    fn of(creds: &Creds, op: &Op) -> Self {
        match op {
            Op::Usage => Self { is_usage: true, ..Self::default() },
            Op::Chunks { ino, first, last } => {
                Self { stretch: Some((*ino, (*first, *last))), ..Self::default() }
            }
            Op::ListXattr(inode) if creds.uid == 0 => {
                Self { attribute: Some((inode.ino, Box::default())), ..Self::default() }
            }
            Op::GetXattr(inode, name) => {
                Self { attribute: Some((inode.ino, name.clone())), ..Self::default() }
            }
            Op::Lookup(place) => Self { name: Some(place.name.clone()), ..Self::default() },
            Op::OpenAt(place, flags) => {
                Self { name: Some(place.name.clone()), lists: flags.read, ..Self::default() }
            }
            Op::Open(_, flags) => Self { lists: flags.read, ..Self::default() },
            Op::Access(inode, mask) => {
                let dir = Some(inode.ino);
                Self { lists: mask & READ != 0, dir, ..Self::default() }
            }
            _ => Self::default(),
        }
    }

    /// The directory that may be listed, if the reply says so.
    fn listable(&self, reply: &Reply) -> Option<InodeId> {
        match reply {
            Ok(Answer::Done) if self.lists => self.dir,
            Ok(Answer::Opened { inode, .. }) if self.lists && inode.kind == Kind::Dir => {
                Some(inode.ino)
            }
            _ => None,
        }
    }
}

impl Metadata for SnapshotMetadata {
    fn submit(&self, request: Request, mut done: Done) {
        let Request { creds, mut op } = request;
        match Handling::of(&op) {
            Handling::Ask => {}
            Handling::Nothing => return done(Ok(Answer::Done)),
            Handling::Refuse => return done(Err(read_only().into())),
        }
        if self.kept.is_gone(self.at) {
            return done(Err(gone().into()));
        }
        let root = self.root;
        if root != ROOT {
            subtree::op_below(root, &mut op);
            let above = done;
            done = Box::new(move |mut reply| {
                subtree::reply_above(root, &mut reply);
                above(reply);
            });
        }
        if let Some(reply) = self.answer(&creds, &op) {
            return done(reply);
        }
        let (at, kept, asked) = (self.at, self.kept.clone(), Asked::of(&creds, &op));
        let usage = self.usage.clone();
        let request = Request { creds, op: Op::At(at, Box::new(op)) };
        self.live.submit(
            request,
            Box::new(move |reply| {
                kept.learn(at, asked.name.as_ref(), &reply);
                if let (Some((ino, name)), Ok(Answer::Bytes(value))) = (&asked.attribute, &reply) {
                    kept.learn_attribute(at, *ino, name, value);
                }
                if let (Some((ino, stretch)), Ok(answer)) = (asked.stretch, &reply) {
                    kept.learn_stretch(at, ino, stretch, answer);
                }
                if let Ok(Answer::Usage(found)) = &reply
                    && asked.is_usage
                {
                    usage.get_or_init(|| *found);
                }
                if let Some(dir) = asked.listable(&reply) {
                    kept.note_listable(at, dir);
                }
                done(reply);
            }),
        );
    }

    fn is_remote(&self) -> bool {
        self.live.is_remote()
    }

    fn catch_up(&self, done: Box<dyn FnOnce() + Send>) {
        self.live.catch_up(done);
    }

    fn is_lost(&self, object: ObjectId) -> bool {
        self.live.is_lost(object)
    }

    fn connection_stats(&self) -> Option<RemoteStats> {
        self.live.connection_stats()
    }

    fn stats(&self) -> NodeStats {
        self.live.stats()
    }

    /// The live volume stays open.
    fn close(&self) -> FsResult<()> {
        Ok(())
    }
}

fn read_only() -> FsError {
    FsError::new(libc::EROFS, "a snapshot never changes: change the live directory")
}

fn no_attribute() -> FsError {
    FsError::new(libc::ENODATA, "no such extended attribute")
}

fn gone() -> FsError {
    FsError::new(libc::ESTALE, "the snapshot was removed")
}

#[cfg(test)]
mod tests;
