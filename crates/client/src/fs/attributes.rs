//! Attributes and permissions.

use std::sync::Arc;

use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, InodeFlags, Kind};
use kestrel_types::request::{Op, SetAttr, Usage};

use super::{Answer, Caller, Done, Fs, into_inode, unexpected};

impl Fs {
    /// Attributes, with what has been written here and is not committed.
    pub fn getattr(self: &Arc<Self>, caller: Caller, ino: InodeId, done: Done<Inode>) {
        let fs = self.clone();
        self.ask(caller, Op::GetAttr(self.known.reference(ino)), move |answer| {
            let inode = answer.and_then(into_inode).map(|mut inode| {
                if inode.kind == Kind::File {
                    fs.known.told_as(ino, inode.data_change);
                    fs.files.learn(&mut inode);
                }
                inode
            });
            done(inode.or_else(|error| fs.removed_inode(ino, error)));
        });
    }

    /// Changes attributes. Size and times are ordered after everything written before.
    pub fn setattr(
        self: &Arc<Self>,
        caller: Caller,
        ino: InodeId,
        set: SetAttr,
        done: Done<Inode>,
    ) {
        let ordered = set.size.is_some()
            || set.mtime.is_some()
            || set.mode.is_some()
            || set.uid.is_some()
            || set.gid.is_some();
        if ordered && self.files.get(ino).is_some_and(|file| file.lock().is_dirty()) {
            let fs = self.clone();
            self.flush_ino(
                ino,
                Box::new(move |flushed| match flushed {
                    Ok(()) => fs.setattr_now(caller, ino, set, done),
                    // What could not be stored is not wanted any more, and the truncation may be
                    // what makes room.
                    Err(_) if set.size == Some(0) => {
                        fs.discard(ino);
                        fs.setattr_now(caller, ino, set, done);
                    }
                    Err(error) => done(Err(error)),
                }),
            );
            return;
        }
        self.setattr_now(caller, ino, set, done);
    }

    /// Forgets what was written to a file and not committed, before it is truncated to nothing.
    pub(super) fn discard(&self, ino: InodeId) {
        if let Some(file) = self.files.get(ino) {
            let mut state = file.lock();
            if !state.flushing {
                state.discard();
            }
        }
    }

    /// Sets flags (chattr). What was written before is stored first: an immutable file takes
    /// nothing more.
    pub fn set_flags(
        self: &Arc<Self>,
        caller: Caller,
        ino: InodeId,
        flags: InodeFlags,
        done: Done<Inode>,
    ) {
        let fs = self.clone();
        self.flush_ino(
            ino,
            Box::new(move |flushed| match flushed {
                Ok(()) => {
                    let again = fs.clone();
                    fs.when_access_is_told(
                        ino,
                        Box::new(move || again.set_flags_now(caller, ino, flags, done)),
                    );
                }
                Err(error) => done(Err(error)),
            }),
        );
    }

    fn set_flags_now(
        self: &Arc<Self>,
        caller: Caller,
        ino: InodeId,
        flags: InodeFlags,
        done: Done<Inode>,
    ) {
        let fs = self.clone();
        self.ask(caller, Op::SetFlags(self.known.reference(ino), flags), move |answer| {
            done(answer.and_then(into_inode).map(|inode| fs.accept(inode, None)));
        });
    }

    fn setattr_now(
        self: &Arc<Self>,
        caller: Caller,
        ino: InodeId,
        set: SetAttr,
        done: Done<Inode>,
    ) {
        if set.atime.is_some() && self.accesses.is_on() {
            let fs = self.clone();
            let then = move || fs.ask_setattr(caller, ino, set, done);
            return self.when_access_is_forgotten(ino, Box::new(then));
        }
        self.ask_setattr(caller, ino, set, done);
    }

    fn ask_setattr(
        self: &Arc<Self>,
        caller: Caller,
        ino: InodeId,
        set: SetAttr,
        done: Done<Inode>,
    ) {
        let fs = self.clone();
        let again = set.clone();
        self.ask(caller, Op::SetAttr(self.known.reference(ino), set), move |answer| {
            let inode = answer.and_then(into_inode).map(|inode| fs.accept(inode, None));
            done(inode.or_else(|error| fs.set_removed(caller, ino, &again, error)));
        });
    }

    /// Takes in an inode that an operation of ours changed, based on the content `base` if it was.
    /// The kernel changed its own pages in step.
    pub(super) fn accept(&self, mut inode: Inode, base: Option<u64>) -> Inode {
        if inode.kind == Kind::File {
            if let Some(file) = self.files.get(inode.ino) {
                file.lock().refresh(inode.clone());
            }
            if base.is_some() || !self.is_remote() {
                self.whole.moved(inode.ino, base, inode.data_change);
            }
            match base {
                Some(base) => self.known.cached_moved(inode.ino, base, inode.data_change),
                // Nobody else changes files here.
                None if !self.is_remote() => {
                    self.known.cached_as(inode.ino, inode.data_change);
                }
                // If the content changed, what it was before is not known, and the next open will
                // find a difference.
                None => {}
            }
            self.files.overlay(&mut inode);
        }
        inode
    }

    /// Checks permissions as access(2) does; `mask` of `R_OK | W_OK | X_OK`.
    pub fn access(self: &Arc<Self>, caller: Caller, ino: InodeId, mask: u32, done: Done<()>) {
        let fs = self.clone();
        self.ask(caller, Op::Access(self.known.reference(ino), mask), move |answer| {
            done(answer.map(drop).or_else(|error| fs.access_removed(caller, ino, mask, error)));
        });
    }

    /// Files, directories and bytes of the volume.
    pub fn usage(self: &Arc<Self>, done: Done<Usage>) {
        self.ask(Caller::ROOT, Op::Usage, move |answer| done(answer.and_then(into_usage)));
    }

    /// Files, directories and bytes below a directory, from its shares, without walking files.
    pub fn tree_usage(self: &Arc<Self>, dir: InodeId, done: Done<Usage>) {
        self.ask(Caller::ROOT, Op::TreeUsage(dir), move |answer| done(answer.and_then(into_usage)));
    }
}

fn into_usage(answer: Answer) -> kestrel_types::error::FsResult<Usage> {
    match answer {
        Answer::Usage(usage) => Ok(usage),
        other => Err(unexpected(&other)),
    }
}
