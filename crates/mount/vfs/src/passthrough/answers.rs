//! Where pass-through comes in between an operation and its answer.

use std::sync::{Arc, OnceLock};

use kestrel_client::fs::{Done, FileHandle, Fs, Opened, WholeCopies};
use kestrel_fuse::{self as fuse, Negotiated, Notifier, Reply};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;

use super::open_inode::{Live, OpenInode};
use super::{OpenMode, Opening, Passthrough, VolumeChange};
use crate::core::Core;

/// Whether files that lie whole in the local cache are read by the kernel itself.
#[derive(Clone)]
pub enum PassthroughConfig {
    /// They are not, for this reason.
    Off(String),
    /// Where kernel, rights and cache directory permit it.
    Auto(WholeCopies),
}

impl Default for PassthroughConfig {
    fn default() -> Self {
        Self::Off("not asked for".into())
    }
}

impl std::fmt::Debug for PassthroughConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off(why) => write!(f, "Off({why:?})"),
            Self::Auto(_) => f.write_str("Auto"),
        }
    }
}

/// Figures of pass-through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassthroughStats {
    /// Inodes that the kernel reads by itself at present.
    pub live: usize,
    /// Opens that it served by itself since the start.
    pub opens: u64,
    /// Opens for writing, beside those.
    pub beside: u64,
    /// Copies brought up to date while in use.
    pub refreshed: u64,
    /// Copies made, and their bytes.
    pub made: u64,
    /// See `made`.
    pub made_bytes: u64,
}

/// A mount's pass-through, once the kernel has said what it offers. Clones are of the same.
#[derive(Clone, Default)]
pub struct PassthroughState(Arc<Settled>);

#[derive(Default)]
struct Settled {
    config: OnceLock<PassthroughConfig>,
    started: OnceLock<Result<Arc<Passthrough>, String>>,
}

impl PassthroughState {
    /// What is wanted, before the session starts.
    pub(crate) fn configure(&self, config: PassthroughConfig) {
        // Once for each mount.
        let _ = self.0.config.set(config);
    }

    /// Settles it with what the kernel offers.
    pub(crate) fn start(&self, fs: &Arc<Fs>, negotiated: &Negotiated, notifier: &Notifier) {
        let started = match self.0.config.get().cloned().unwrap_or_default() {
            PassthroughConfig::Off(why) => Err(why),
            PassthroughConfig::Auto(copies) => {
                Passthrough::start(fs, &copies, negotiated, notifier)
            }
        };
        // The kernel settles once.
        let _ = self.0.started.set(started);
    }

    /// Brings to the volume what only the copies have.
    pub(crate) fn finish(&self) {
        if let Some(passthrough) = self.get() {
            passthrough.finish();
        }
    }

    pub(crate) fn get(&self) -> Option<&Arc<Passthrough>> {
        self.0.started.get()?.as_ref().ok()
    }

    /// Why it is off; none: it is on.
    pub fn why_off(&self) -> Option<&str> {
        match self.0.started.get() {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(why),
            None => Some("the mount does not serve yet"),
        }
    }

    /// Its figures, if it is on.
    pub fn stats(&self) -> Option<PassthroughStats> {
        self.get().map(|passthrough| passthrough.stats())
    }
}

/// A file that the kernel reads from a copy, for handles beside it with reads and writes that come
/// here.
pub struct LiveFile {
    passthrough: Arc<Passthrough>,
    node: Arc<OpenInode>,
    live: Arc<Live>,
}

impl LiveFile {
    /// Answers a READ: from the copy, because what was stored through maps is there and nowhere
    /// else.
    pub fn answer(&self, offset: u64, len: usize, reply: Reply) {
        match fuse::block_in_place(|| self.live.read(offset, len)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Writes to the copy and, with `store`, to the volume. Waits.
    ///
    /// # Errors
    /// As for [`Passthrough::write`].
    pub fn write(
        self,
        offset: u64,
        bytes: &[u8],
        store: impl FnOnce() -> FsResult<u64>,
    ) -> FsResult<u64> {
        self.passthrough.write((self.node, self.live), offset, bytes, store)
    }
}

/// Whether the kernel may answer all reads through an open file by itself: from pages that it has
/// kept, or from a whole copy. Then the open stands for them.
fn is_read_unseen(opened: &fuse::Opened) -> bool {
    let has = |flag: fuse::OpenFlags| opened.flags.0 & flag.0 != 0;
    (has(fuse::OpenFlags::KEEP_CACHE) || has(fuse::OpenFlags::PASSTHROUGH))
        && !has(fuse::OpenFlags::DIRECT_IO)
}

/// The error of an operation of which a part may have been done.
fn may_be_half_done(error: &FsError) -> bool {
    matches!(error.errno, libc::EIO | libc::ENOSPC | libc::ETIMEDOUT)
}

impl Core {
    /// Numbers a handle and tells how the kernel shall treat it; `answer` is called exactly once,
    /// perhaps later.
    pub fn settle_open(
        self: &Arc<Self>,
        opened: Opened,
        (direct, may_begin): (bool, bool),
        answer: impl FnOnce(FsResult<fuse::Opened>) + Send + 'static,
    ) {
        if !self.fs.keeps_access_times()
            || direct
            || !opened.handle.readable()
            || opened.inode.size == 0
        {
            return self.settle_mode(opened, (direct, may_begin), answer);
        }
        let (core, handle) = (self.clone(), opened.handle.clone());
        let counted = move |opened: FsResult<fuse::Opened>| {
            if opened.as_ref().is_ok_and(is_read_unseen) {
                core.read_unseen(&handle);
            }
            answer(opened);
        };
        self.settle_mode(opened, (direct, may_begin), counted);
    }

    fn settle_mode(
        self: &Arc<Self>,
        opened: Opened,
        (direct, may_begin): (bool, bool),
        answer: impl FnOnce(FsResult<fuse::Opened>) + Send + 'static,
    ) {
        let Some(passthrough) = self.passthrough.get().cloned() else {
            return answer(Ok(self.give_number(opened)));
        };
        let (inode, truncated, handle) =
            (opened.inode.clone(), opened.truncated, opened.handle.clone());
        let (ino, reads, writes) = (inode.ino, handle.readable(), handle.writable());
        let mut opened = self.give_number(opened);
        let fh = opened.fh;
        let opening = Opening { fh, inode, reads, writes, truncated, direct, may_begin };
        let (core, again) = (self.clone(), passthrough.clone());
        let settled = move |mode| match mode {
            Ok(OpenMode::Ordinary) => answer(Ok(opened)),
            Ok(OpenMode::Passed { backing, direct }) => {
                let no_flush = opened.flags.0 & fuse::OpenFlags::NOFLUSH.0;
                opened.flags = fuse::OpenFlags(no_flush) | fuse::OpenFlags::PASSTHROUGH;
                if direct {
                    opened.flags |= fuse::OpenFlags::DIRECT_IO;
                }
                opened.backing_id = backing;
                answer(Ok(opened));
            }
            Err(error) => {
                core.files.remove(fh);
                again.released(ino, fh);
                core.fs.abandon(handle, Box::new(drop));
                answer(Err(error));
            }
        };
        passthrough.open(opening, Box::new(settled));
    }

    /// The copy that the kernel reads a file from, if it does.
    pub fn live(&self, ino: InodeId) -> Option<LiveFile> {
        let passthrough = self.passthrough.get()?;
        let (node, live) = passthrough.live(ino)?;
        Some(LiveFile { passthrough: passthrough.clone(), node, live })
    }

    /// Takes a handle out, because the kernel has released it.
    pub fn take_file(&self, fh: u64) -> Option<Arc<FileHandle>> {
        let file = self.files.remove(fh)?;
        if let Some(passthrough) = self.passthrough.get() {
            passthrough.released(file.ino(), fh);
        }
        Some(file)
    }

    /// Completes an operation that changes the content of `ino` other than by a write: first the
    /// copy that the kernel reads from, if there is one, then the caller.
    pub fn following<T: Send + 'static>(
        &self,
        ino: InodeId,
        change: impl FnOnce(&T) -> VolumeChange + Send + 'static,
        done: Done<T>,
    ) -> Done<T> {
        let Some(passthrough) = self.passthrough.get().cloned() else { return done };
        let pending = passthrough.pending(ino);
        Box::new(move |result: FsResult<T>| {
            let change = match &result {
                Ok(value) => change(value),
                Err(error) if may_be_half_done(error) => VolumeChange::Unknown,
                Err(_) => return done(result),
            };
            let followed = move |followed: FsResult<()>| {
                drop(pending);
                done(result.and_then(|value| followed.map(|()| value)));
            };
            passthrough.changed(ino, change, Box::new(followed));
        })
    }

    /// Goes on when the volume has what was stored through maps of `ino`.
    pub fn collected<T: 'static>(
        self: &Arc<Self>,
        ino: InodeId,
        done: Done<T>,
        go_on: impl FnOnce(&Arc<Self>, Done<T>) + Send + 'static,
    ) {
        let Some(passthrough) = self.passthrough.get() else { return go_on(self, done) };
        let core = self.clone();
        let then = move |collected: FsResult<()>| match collected {
            Ok(()) => go_on(&core, done),
            Err(error) => done(Err(error)),
        };
        passthrough.collected(ino, Box::new(then));
    }
}
