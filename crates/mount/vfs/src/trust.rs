//! How long the kernel may trust what it is told.

use std::time::Duration;

use kestrel_types::inode::{Inode, Kind};
use kestrel_types::policy::Consistency;

/// What the kernel may keep for the moment between a lookup and the stat that made it: it rounds up
/// to the next tick of its clock.
pub const MOMENT: Duration = Duration::from_nanos(1);

/// How long the kernel may trust what it is told.
#[derive(Debug, Clone, Copy)]
pub struct Trust {
    /// Attributes of directories.
    pub dirs: Duration,
    /// Attributes of everything else.
    pub files: Duration,
    /// Names of files; without the shortcut of directories too.
    pub entry: Duration,
    /// With the shortcut: names of directories, after they were last proved.
    pub names: Duration,
    /// Nobody else changes the volume, so what was proved once stays true.
    pub alone: bool,
    /// Nothing changes: the volume is at a snapshot.
    pub immutable: bool,
}

impl Trust {
    /// How long the kernel may trust the attributes of an inode.
    pub fn attributes(&self, inode: &Inode) -> Duration {
        let told = if inode.kind == Kind::Dir { self.dirs } else { self.files };
        told.max(attributes_kept(inode))
    }

    /// How long the kernel may trust the name of an inode.
    pub fn name(&self, inode: &Inode) -> Duration {
        self.entry.max(name_kept(inode))
    }
}

/// How long the kernel may keep the attributes of an inode by the policy of its directories.
pub fn attributes_kept(inode: &Inode) -> Duration {
    inode.effective.consistency.and_then(Consistency::kept).unwrap_or_default()
}

/// How long the kernel may keep the name of an inode by the policy of its directories. That of a
/// directory with a policy of its own is not below that policy.
pub fn name_kept(inode: &Inode) -> Duration {
    let own = inode.policy().map(|record| record.own.consistency);
    if own == Ok(None) { attributes_kept(inode) } else { Duration::ZERO }
}
