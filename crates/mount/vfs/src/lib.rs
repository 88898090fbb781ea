//! The mount: turns requests of the kernel into calls of the client, and its answers into replies.
//!
//! [`mount`] takes a file system ([`kestrel_client::fs::Fs`]), a directory and a [`MountConfig`],
//! and gives a [`Mount`] that serves until it is unmounted.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use kestrel_client::volume::{Resources, Volume};
//! use kestrel_vfs::MountConfig;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let resources = Resources::default();
//! let volume = Volume::open("/srv/v", "example", &resources)?.serve(&resources, false)?;
//! let config = MountConfig::default();
//! let mount = kestrel_vfs::mount(volume.fs.clone(), Path::new("/mnt/v"), &config)?;
//! mount.session.join()?; // until it is unmounted
//! volume.fs.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | `dispatch` | one arm for each operation of the kernel: begin here |
//! | `core` | the state of a mount, and the ways to answer |
//! | `lookup`, `open`, `rename`, `attributes` | the operations of these names |
//! | `shortcut` | what the VFS shortcut adds: LOOKUPs that are opens, answers without a request |
//! | `paths` | the path nodes of the shortcut: what the kernel calls by number and we by name |
//! | `naming` | what node ids stand for: inode numbers, or path nodes |
//! | `trust` | how long the kernel may trust what it is told |
//! | `last_lookups` | what threads were told last |
//! | `passthrough` | files that the kernel reads by itself from their whole copies |
//! | `direct`, `kernel_size` | `O_DIRECT` beside cached reads; files that others truncated |
//! | `locking`, `interruptible` | locks that other clients see; callers that are killed |
//! | `snapshots` | `.snap` in every directory, and what is in snapshots |
//! | `kept_dirs` | directories of immutable trees, which are opened without a request |
//! | `handover` | handing the mount over to another process |
//! | `handles`, `export` | numbers of open files; file handles of `name_to_handle_at(2)` and NFS |
//! | `convert`, `flags` | structures of the kernel and ours; flags of `chattr(1)` |
//!
//! # Invariants
//!
//! - No decision about semantics is made here: the client and the metadata node make them.
//! - The state is the numbers of open handles and, with the shortcut, the names of the directories
//!   that the kernel knows. Without the shortcut node ids are inode numbers.
//! - A walk hint decides only which of several right ways is taken (`docs/shortcut.md`).

mod attributes;
mod convert;
mod core;
mod direct;
mod dispatch;
mod export;
mod flags;
mod handles;
mod handover;
mod interruptible;
mod kept_dirs;
mod kernel_size;
mod last_lookups;
mod locking;
mod lookup;
mod naming;
mod open;
mod passthrough;
mod paths;
mod rename;
mod shortcut;
mod snapshots;
mod trust;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kestrel_client::fs::{AccessTimes, Fs};
use kestrel_fuse as fuse;
use kestrel_walkhint::{Attach, WalkHints};

use crate::core::Core;
use crate::dispatch::Mounted;
use crate::naming::Naming;
use crate::paths::Paths;
use crate::snapshots::FOREVER;
use crate::trust::Trust;

pub use crate::handover::{Handover, PausedMount, Predecessor};
pub use crate::passthrough::{PassthroughConfig, PassthroughState, PassthroughStats};
pub use crate::paths::{NodesMax, ShortcutStats};
pub use crate::snapshots::is_shown_of_snapshot;

/// For tests: an environment variable. `fentry`: the kernel has no tracepoint; `none`: it has
/// nothing to offer.
const PRETENDED: &str = "KESTREL_WALK_HINTS";

/// How long the kernel may trust attributes of files that it alone changes: it forgets them itself
/// when it does. Long enough for a program that opens, looks at and reads a file while many others
/// do, short enough that a mistake in this heals.
pub const OWN_FILES_TTL: Duration = Duration::from_secs(1);

/// How long attributes that came with a listing are used by default.
pub const LISTING_TTL: Duration = Duration::from_secs(1);

/// How a volume is mounted.
#[derive(Debug, Clone, Default)]
pub struct MountConfig {
    /// Options of the kernel's mount.
    pub options: fuse::MountOptions,
    /// Options of the FUSE session: workers, sizes, features.
    pub session: fuse::Config,
    /// How long the kernel may trust attributes. Zero: then every stat sees what any client did
    /// before it (with the shortcut: before it, or in the tick of the kernel's clock in which it
    /// came). `None`: zero, but for files of a volume that only this mount changes, which the
    /// kernel knows all about; those [`OWN_FILES_TTL`].
    pub attr_ttl: Option<Duration>,
    /// How long the kernel may trust names; with the shortcut, names of files. Zero by default.
    pub entry_ttl: Duration,
    /// How long attributes that came with a listing may be used ([`kestrel_client::listed`]);
    /// `None`: [`LISTING_TTL`].
    pub listing_ttl: Option<Duration>,
    /// Whether walks take the shortcut.
    pub shortcut: ShortcutConfig,
    /// How many nodes the kernel may know, with the shortcut.
    pub nodes_max: NodesMax,
    /// Whether the kernel reads files by itself that lie whole in the local cache.
    pub passthrough: PassthroughConfig,
    /// Which reads change access times.
    pub access_times: AccessTimes,
    /// The file system is at a snapshot ([`Fs::at`]): nothing in it changes. The kernel keeps
    /// everything and checks permissions itself; what is said above about trust, shortcut,
    /// pass-through and access times has no effect.
    pub immutable: bool,
    /// The mount can be handed over to another process ([`Mount::handover`]); without shortcut and
    /// pass-through, of which the kernel would know more than the next process does.
    pub hands_over: bool,
}

/// The VFS shortcut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShortcutConfig {
    /// Every component of a path is looked up.
    #[default]
    Off,
    /// One request an operation where this kernel and our rights permit it.
    Auto {
        /// How long the kernel may trust the name of a directory after an operation has proved it,
        /// at most [`NAMES_MAX`]. `None`: not at all, but [`NAMES_ALONE`] where nobody else changes
        /// the volume.
        names: Option<Duration>,
    },
}

/// Longest time for which the kernel may trust the name of a directory: a caller that takes the
/// permission to search away waits as long.
pub const NAMES_MAX: Duration = Duration::from_secs(1);

/// How long it trusts them on a volume that only this mount changes.
pub const NAMES_ALONE: Duration = Duration::from_millis(100);

/// Whether walks take the shortcut, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortcutMode {
    /// They do.
    pub shortcut: bool,
    /// Why, or why not and what would help.
    pub why: String,
}

/// A mounted file system that is being served.
pub struct Mount {
    /// The session of the kernel.
    pub session: fuse::Session,
    /// How walks are answered.
    pub mode: ShortcutMode,
    /// The shortcut's counters.
    pub shortcut: Shortcut,
    /// Pass-through: on or why not, and its figures.
    pub passthrough: PassthroughState,
    /// What hands the mount over, if it can be ([`MountConfig::hands_over`]).
    pub handover: Option<Handover>,
}

/// Counters of the shortcut; clones are cheap.
#[derive(Clone, Default)]
pub struct Shortcut(Option<Arc<Paths>>);

impl Shortcut {
    /// Their values; none if walks do not take it.
    pub fn stats(&self) -> Option<ShortcutStats> {
        self.0.as_ref().map(|paths| paths.stats())
    }
}

/// Mounts a file system at `dir`. When this returns the mount serves.
///
/// # Errors
/// If the kernel or `fusermount3` refuses; the text says why and what to do.
pub fn mount(fs: Arc<Fs>, dir: &Path, config: &MountConfig) -> fuse::Result<Mount> {
    mount_or_take_over(fs, dir, config, None)
}

/// Goes on with a mount that another process has handed over. `fs` is of the same volume, and has
/// done nothing yet. When this returns the mount serves.
///
/// # Errors
/// If what the other process left cannot be had; the mount is still there then.
pub fn take_over(
    fs: Arc<Fs>,
    config: &MountConfig,
    predecessor: Predecessor,
) -> fuse::Result<Mount> {
    let dir = predecessor.dir()?;
    mount_or_take_over(fs, &dir, config, Some(predecessor))
}

fn mount_or_take_over(
    fs: Arc<Fs>,
    dir: &Path,
    config: &MountConfig,
    predecessor: Option<Predecessor>,
) -> fuse::Result<Mount> {
    let mut session = config.session.clone();
    // Other clients see the locks of a volume that a server serves; those of an embedded one are
    // the kernel's own.
    (session.features.export, session.features.no_export) = (true, false);
    // So are those of what never changes: a lock there keeps no other machine from anything.
    let has_locks = fs.has_locks() && !config.immutable;
    (session.features.posix_locks, session.features.flock_locks) = (has_locks, has_locks);
    let (hints, mut mode) = load_hints(config.shortcut);
    if config.hands_over {
        mode.why = "the mount is supervised".into();
    }
    fs.set_listing_ttl(config.listing_ttl.unwrap_or(LISTING_TTL));
    fs.set_access_times(config.access_times);
    let alone = fs.is_alone();
    if config.immutable {
        return mount_immutable(fs, dir, config, session);
    }
    let names = match config.shortcut {
        ShortcutConfig::Auto { names: Some(names) } => names.min(NAMES_MAX),
        ShortcutConfig::Auto { names: None } if alone => NAMES_ALONE,
        _ => Duration::ZERO,
    };
    let unsaid = if alone { OWN_FILES_TTL } else { Duration::ZERO };
    let trust = Trust {
        dirs: config.attr_ttl.unwrap_or_default(),
        files: config.attr_ttl.unwrap_or(unsaid),
        entry: config.entry_ttl,
        names,
        alone,
        immutable: false,
    };
    let paths =
        hints.as_ref().map(|hints| Paths::new(fs.clone(), hints.clone(), trust, config.nodes_max));
    let naming = paths.clone().map_or(Naming::Numbers, Naming::Paths);
    // A kernel that checks permissions needs the ACLs for that.
    session.features.posix_acl = config.options.default_permissions;
    // A directory may have a default ACL, which takes the place of the umask.
    session.features.dont_mask = true;
    session.features.passthrough = matches!(config.passthrough, PassthroughConfig::Auto(_));
    let core = Core::new(fs, naming, trust);
    let passthrough = core.passthrough.clone();
    passthrough.configure(config.passthrough.clone());
    session.hands_over = config.hands_over;
    session.features.resend = config.hands_over;
    if let Some(locking) = &core.locking {
        locking.mounted_at(dir);
    }
    let mount = match predecessor {
        None => fuse::Mount::new(dir, &config.options)?,
        Some(predecessor) => predecessor.hand_to(&core)?,
    };
    let mounted = Mounted(core.clone());
    let session = fuse::Session::start(mount, mounted, &session)?;
    let handover = session.intake().map(|intake| Handover::new(core, intake, &session));
    if let (Some(hints), Some(paths)) = (hints, &paths) {
        match hints.calibrate(dir) {
            Ok(()) => {
                paths.hints_are_measured();
                mode.why = format!("walk hints by {}", hints.attach());
            }
            Err(why) => mode = ShortcutMode { shortcut: false, why: why.to_string() },
        }
    }
    Ok(Mount { session, mode, shortcut: Shortcut(paths), passthrough, handover })
}

/// Mounts a file system that never changes.
fn mount_immutable(
    fs: Arc<Fs>,
    dir: &Path,
    config: &MountConfig,
    mut session: fuse::Config,
) -> fuse::Result<Mount> {
    let why = "nothing changes in the mount: the kernel keeps all names";
    session.features.cache_symlinks = true;
    // For that it needs the ACLs, each of which it asks for once.
    session.features.posix_acl = true;
    let options = fuse::MountOptions {
        read_only: true,
        // Names that the kernel keeps are not asked for, so it must look at permissions itself.
        default_permissions: true,
        ..config.options.clone()
    };
    let trust = Trust {
        dirs: FOREVER,
        files: FOREVER,
        entry: FOREVER,
        names: Duration::ZERO,
        alone: true,
        immutable: true,
    };
    let core = Core::new(fs, Naming::Numbers, trust);
    let passthrough = core.passthrough.clone();
    passthrough.configure(PassthroughConfig::Off("nothing changes in the mount".into()));
    let mounted = Mounted(core);
    let session = fuse::Session::start(fuse::Mount::new(dir, &options)?, mounted, &session)?;
    let mode = ShortcutMode { shortcut: false, why: why.into() };
    Ok(Mount { session, mode, shortcut: Shortcut(None), passthrough, handover: None })
}

/// Loads the program that tells of walks, if it is wanted and can be had.
fn load_hints(config: ShortcutConfig) -> (Option<Arc<WalkHints>>, ShortcutMode) {
    if config == ShortcutConfig::Off {
        return (
            None,
            ShortcutMode { shortcut: false, why: "switched off by --no-shortcut".into() },
        );
    }
    match hints_as_told() {
        Ok(hints) => (Some(hints), ShortcutMode { shortcut: true, why: String::new() }),
        Err(why) => (None, ShortcutMode { shortcut: false, why }),
    }
}

/// Loads the program; a test can pretend that the kernel has less to offer.
fn hints_as_told() -> Result<Arc<WalkHints>, String> {
    let pretended = std::env::var(PRETENDED).unwrap_or_default();
    let loaded = match pretended.as_str() {
        "" => WalkHints::load(),
        "fentry" => WalkHints::load_by(Attach::Fentry),
        other => return Err(format!("{PRETENDED}={other}: no walk hints are wanted")),
    };
    loaded.map_err(|why| why.to_string())
}
