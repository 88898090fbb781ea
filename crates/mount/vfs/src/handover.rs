//! Handing a mount over to another process, and taking it over.
//!
//! **Order.** What is written is stored while requests still come, so that little is left to do
//! when none is taken any more. Then no request is under way but those that wait for locks, which
//! the kernel sends again to the next process; the rest is stored; and only then is there no way
//! back: this process answers nothing any more, and writes down what the next one has to know.
//!
//! **Node ids** of a mount without the shortcut are inode numbers, so the next process understands
//! them. Those of snapshots are not; a mount with something open below a `.snap` is not handed
//! over, and names below it are looked up again.
//!
//! **The kernel's pages.** The thread that has the kernel drop pages waits for requests that only
//! other threads answer. No request is kept out while it is at work.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_client::fs::Fs;
use kestrel_client::handover::{FORMAT, HexBytes, MountNote};
use kestrel_fuse::{self as fuse, Inherited, Intake, Negotiated, Session};
use kestrel_types::error::FsResult;

use crate::core::Core;

/// Time between two attempts to find the kernel's pages at rest.
const RETRY: Duration = Duration::from_millis(5);

/// Hands a mount over; clones are cheap.
#[derive(Clone)]
pub struct Handover {
    core: Arc<Core>,
    intake: Intake,
    dir: PathBuf,
    device: (u32, u32),
    negotiated: Vec<u64>,
}

/// A mount that takes no requests. It takes them again when this is dropped.
pub struct PausedMount<'a> {
    of: &'a Handover,
    /// There is no way back.
    left: bool,
}

/// What another process has left of a mount.
pub struct Predecessor {
    /// The descriptors of the connection, at least one.
    pub descriptors: Vec<OwnedFd>,
    /// What it has written down.
    pub note: MountNote,
}

impl Handover {
    pub(crate) fn new(core: Arc<Core>, intake: Intake, session: &Session) -> Self {
        let unmounter = session.unmounter();
        Self {
            core,
            intake,
            dir: unmounter.dir().to_path_buf(),
            device: unmounter.device(),
            negotiated: session.negotiated().to_numbers().to_vec(),
        }
    }

    /// Takes no further requests, and stores everything. Takes `limit` at most.
    ///
    /// # Errors
    /// Why that cannot be now; the mount goes on.
    pub fn pause(&self, limit: Duration) -> Result<PausedMount<'_>, String> {
        let end = Instant::now() + limit;
        let left = || end.saturating_duration_since(Instant::now());
        let stored = |fs: &Arc<Fs>| {
            fs.store_all(left()).map_err(|why| format!("what is written cannot be stored: {why}"))
        };
        stored(&self.core.fs)?;
        let paused = self.at_rest(end)?;
        stored(&self.core.fs)?;
        Ok(paused)
    }

    fn at_rest(&self, end: Instant) -> Result<PausedMount<'_>, String> {
        let Self { core, intake, .. } = self;
        let left = || end.saturating_duration_since(Instant::now());
        let is_mending = || core.locking.as_ref().is_some_and(|locking| locking.is_mending());
        loop {
            if !intake.close(left()) {
                return Err("a request is being handled for too long; try again".into());
            }
            let paused = PausedMount { of: self, left: false };
            if !is_mending() {
                if !intake.wait_for_answers(left()) {
                    return Err(format!(
                        "{} requests have no answer yet; try again when the server and the store \
                         answer",
                        intake.unanswered()
                    ));
                }
                if core.snapshots.as_ref().is_some_and(|snapshots| !snapshots.is_closed()) {
                    return Err("a file or directory below a .snap is open; close it first".into());
                }
                if !is_mending() {
                    return Ok(paused);
                }
            }
            drop(paused);
            if left().is_zero() {
                return Err("the kernel is being told of changes all the time; try again".into());
            }
            std::thread::sleep(RETRY);
        }
    }
}

impl PausedMount<'_> {
    /// Leaves the mount to another process: nothing is answered any more. What that has to know,
    /// and whether what was stored is durable.
    pub fn leave(mut self) -> (MountNote, FsResult<()>) {
        self.left = true;
        let Handover { core, intake, .. } = self.of;
        intake.silence();
        if let Some(locking) = &core.locking {
            locking.cancel_all(&core.fs);
        }
        let durable = core.fs.leave();
        let (files, next_file) = core.files.all();
        let (dirs, next_dir) = core.dirs.all();
        let note = MountNote {
            format: FORMAT,
            dir: HexBytes::new(self.of.dir.as_os_str().as_bytes()),
            device: self.of.device,
            negotiated: self.of.negotiated.clone(),
            next: (next_file, next_dir),
            files: files.iter().map(|(fh, file)| core.fs.note_handle(*fh, file)).collect(),
            dirs: dirs.iter().map(|(fh, dir)| Fs::note_directory(*fh, dir)).collect(),
            client: core.fs.client_state(),
        };
        (note, durable)
    }
}

impl Drop for PausedMount<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.of.intake.open();
        }
    }
}

impl Predecessor {
    /// Where the mount is.
    ///
    /// # Errors
    /// If that cannot be understood.
    pub fn dir(&self) -> fuse::Result<PathBuf> {
        let bytes = self.note.dir.bytes().map_err(|why| cannot(&why))?;
        Ok(OsString::from_vec(bytes).into())
    }

    /// Has a mount go on with what the other process had; the kernel's connection.
    pub(crate) fn hand_to(self, core: &Arc<Core>) -> fuse::Result<fuse::Mount> {
        let dir = self.dir()?;
        let Self { descriptors, note } = self;
        let negotiated = Negotiated::from_numbers(&note.negotiated)
            .filter(|_| note.format == FORMAT)
            .ok_or_else(|| cannot(&"it is of another version"))?;
        core.fs.take_state(&note.client).map_err(|why| cannot(&why))?;
        let files = core.fs.take_files(&note.files).map_err(|why| cannot(&why))?;
        let numbered = note.files.iter().map(|file| file.fh).zip(files);
        core.files.take(numbered, note.next.0);
        let dirs = note.dirs.iter().map(|dir| Ok((dir.fh, Fs::take_directory(dir)?)));
        let dirs = dirs.collect::<FsResult<Vec<_>>>().map_err(|why| cannot(&why))?;
        core.dirs.take(dirs, note.next.1);
        fuse::Mount::inherit(&dir, Inherited { descriptors, negotiated, device: note.device })
    }
}

fn cannot(why: &dyn std::fmt::Display) -> fuse::Error {
    fuse::Error::plain("the mount cannot be taken over", why.to_string())
}
