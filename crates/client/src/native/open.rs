//! [`NativeVolume`]: opening what a URL names.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kestrel_rpc::token::Token;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::request::Creds;
use parking_lot::Mutex;

use super::{Gone, NativeCalls};
use crate::error::VolumeError;
use crate::follow::{self, FOLLOW_EVERY, FollowedVolume};
use crate::fs::{Caller, Fs};
use crate::groups::supplementary_groups;
use crate::memory::{MemoryLimit, MemoryPlan, Wanted, Work};
use crate::remote::{DEADLINE_DEFAULT, Introduction, RemoteUrl, RemoteVolume, with_token};
use crate::snapshot::SnapshotUrl;
use crate::version::{OpenVersion, VersionUrl};
use crate::volume::{self, MountedVolume, Resources, Volume};

/// How a program opens a volume.
#[derive(Debug, Clone)]
pub struct NativeOptions {
    /// The token that servers are shown; none: the one of the process, if it has one.
    pub token: Option<String>,
    /// For people that look at the server.
    pub who: String,
    /// Nothing will be changed.
    pub read_only: bool,
    /// How long a call waits for a server that does not answer.
    pub deadline: Duration,
}

impl Default for NativeOptions {
    fn default() -> Self {
        let who = format!("process {}", std::process::id());
        Self { token: None, who, read_only: false, deadline: DEADLINE_DEFAULT }
    }
}

/// What makes two users share a volume, and the volume. It is locked while the volume is opened or
/// closed.
pub(super) struct SharedPlace {
    pub url: String,
    pub token: Option<String>,
    pub read_only: bool,
    pub volume: Mutex<Weak<NativeVolume>>,
}

/// What keeps a volume open.
enum Opened {
    Embedded(Box<MountedVolume>),
    Served(Box<RemoteVolume>),
    Version(Box<OpenVersion>),
    Followed(Box<FollowedVolume>),
}

impl Opened {
    fn fs(&self) -> &Arc<Fs> {
        match self {
            Self::Embedded(volume) => &volume.fs,
            Self::Served(volume) => &volume.fs,
            Self::Version(version) => version.fs(),
            Self::Followed(volume) => &volume.fs,
        }
    }
}

/// What a volume that is open consists of.
struct Parts {
    /// What is seen of it: the volume, or a snapshot. It goes first.
    fs: Arc<Fs>,
    opened: Opened,
}

/// A volume that a program uses by paths.
pub struct NativeVolume {
    parts: ManuallyDrop<Parts>,
    creds: Creds,
    caller: Caller,
    url: String,
    read_only: bool,
    pid: u32,
    closed: AtomicBool,
    shared: Option<Arc<SharedPlace>>,
}

impl NativeVolume {
    /// Opens what `url` names: a volume in a directory or a bucket, one that is served, a snapshot
    /// (`VOLUME@NAME`, `VOLUME:/DIR@NAME`) or a published version (`VOLUME//NAME`). A volume in a
    /// bucket that is opened to be read is followed beside the process that writes it. Calls are
    /// made with this process's effective user and groups. Starts threads.
    ///
    /// # Errors
    /// If there is no such volume, or it cannot be opened; the text says what to do.
    pub fn open(url: &str, options: &NativeOptions) -> Result<Self, VolumeError> {
        let token = options.token.as_deref().map(Token::parse).transpose();
        let token = token.map_err(|why| VolumeError::Invalid(format!("the token: {why}")))?;
        let (opened, at, read_only) =
            with_token(token.map(Arc::new), || Self::open_parts(url, options))?;
        let fs = match &at {
            Some(at) => at.open(opened.fs())?,
            None => opened.fs().clone(),
        };
        // SAFETY: they take nothing and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let pid = std::process::id();
        let creds = Creds { uid, gid, groups: Some(supplementary_groups(pid)) };
        Ok(Self {
            parts: ManuallyDrop::new(Parts { fs, opened }),
            creds,
            caller: Caller { uid, gid, pid },
            url: url.to_string(),
            read_only,
            pid,
            closed: AtomicBool::new(false),
            shared: None,
        })
    }

    /// The same volume, which users share.
    pub(super) fn shared_as(mut self, shared: Arc<SharedPlace>) -> Self {
        self.shared = Some(shared);
        self
    }

    pub(super) fn shared(&self) -> Option<Arc<SharedPlace>> {
        self.shared.clone()
    }

    fn open_parts(
        url: &str,
        options: &NativeOptions,
    ) -> Result<(Opened, Option<SnapshotUrl>, bool), VolumeError> {
        if url.contains('\0') {
            return Err(VolumeError::Invalid("a URL has no NUL".into()));
        }
        let limit = MemoryLimit::of_process();
        let resources =
            Resources::within(MemoryPlan::new(limit.bytes, Work::Mount, Wanted::default()));
        let how = |read_only| Introduction {
            who: options.who.clone(),
            deadline: options.deadline,
            read_only,
        };
        if let Some(version) = VersionUrl::parse(url)? {
            let opened = version.open(&how(true), &resources)?;
            return Ok((Opened::Version(Box::new(opened)), None, true));
        }
        let at = SnapshotUrl::parse(url)?;
        let read_only = options.read_only || at.is_some();
        let named = at.as_ref().map_or(url, |at| &at.volume);
        if RemoteUrl::is_one(named) {
            let opened = RemoteVolume::open(named, &how(read_only), &resources)?;
            return Ok((Opened::Served(Box::new(opened)), at, read_only));
        }
        let dir = volume::find(named, None, true)?;
        if read_only && follow::is_followed(&dir)? {
            let opened = FollowedVolume::open(&dir, FOLLOW_EVERY, &resources)?;
            return Ok((Opened::Followed(Box::new(opened)), at, true));
        }
        let opened = Volume::open(named, &options.who, &resources)?.serve(&resources, read_only)?;
        Ok((Opened::Embedded(Box::new(opened)), at, read_only))
    }

    /// The operations, for a caller that may go away.
    pub fn calls<'a>(&'a self, gone: Gone<'a>) -> NativeCalls<'a> {
        NativeCalls { volume: self, gone }
    }

    /// The URL by which it was opened.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether nothing can be changed by it.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether this process has opened it, and is not one that `fork` made from that process.
    pub fn is_of_this_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The file system, if it can be used.
    ///
    /// # Errors
    /// `EBADF` if the volume is closed, or the parent process's.
    pub(super) fn fs(&self) -> FsResult<&Arc<Fs>> {
        if !self.is_of_this_process() {
            let why = "the volume was opened before this process was forked; open it anew";
            return Err(FsError::new(libc::EBADF, why));
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(FsError::new(libc::EBADF, "the volume is closed"));
        }
        Ok(&self.parts.fs)
    }

    pub(super) fn creds(&self) -> &Creds {
        &self.creds
    }

    pub(super) fn caller(&self) -> Caller {
        self.caller
    }

    /// Stores what was written, makes it durable, and closes the volume; once. What a process that
    /// was forked has of its parent's is left alone.
    ///
    /// # Errors
    /// The first file that could not be stored.
    pub fn close(&self) -> FsResult<()> {
        if !self.is_of_this_process() || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let stored = self.parts.opened.fs().shutdown();
        if let Opened::Embedded(volume) = &self.parts.opened {
            let settled = volume.volume.engine.settle();
            return stored.and(settled.map_err(|error| {
                FsError::because(libc::EIO, format!("closing the volume: {error}"))
            }));
        }
        stored
    }
}

impl Drop for NativeVolume {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            // Threads of the parent's are not here, and its locks may be held.
            return;
        }
        if let Err(error) = self.close() {
            log::error!("{}: the last changes could not be stored: {error}", self.url);
        }
        // SAFETY: dropped once, here, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.parts) };
    }
}

impl std::fmt::Debug for NativeVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeVolume").field("url", &self.url).finish_non_exhaustive()
    }
}
